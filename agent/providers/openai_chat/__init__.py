"""The Chat Completions API, which OpenAI defined and many vendors speak with an accent.

Accents are data: a `Dialect` says what a vendor calls things and what it leaves out. The codec reads every spelling
it knows of and writes the dialect's.
"""

from __future__ import annotations

from dataclasses import replace

from ..base import ProviderFactory
from .codec import ChatCodec
from .dialect import API, OPENAI, Dialect

__all__ = ["API", "OPENAI", "ChatCodec", "Dialect", "provider"]


def provider(name: str) -> ProviderFactory:
    """The factory for OpenAI's own API under the given name."""
    dialect = replace(OPENAI, name=name)
    return lambda config: ChatCodec.from_config(config, dialect)
