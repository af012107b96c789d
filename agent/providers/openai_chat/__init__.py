"""The Chat Completions API, which OpenAI defined and many vendors speak with an accent.

Accents are data: a `Dialect` says what a vendor calls things and what it leaves out. The codec reads every spelling
it knows of and writes the dialect's.
"""

from __future__ import annotations

import os
from dataclasses import replace

from ...types import AgentConfig
from ..base import ProviderFactory
from .address import path_at_openai
from .codec import ChatCodec
from .dialect import API, OPENAI, UNKNOWN, Dialect

__all__ = ["API", "OPENAI", "ChatCodec", "Dialect", "provider"]


def provider(name: str) -> ProviderFactory:
    """The factory for OpenAI's own API under the given name, or for whatever is compatible with it at a base_url."""

    def made(config: AgentConfig) -> ChatCodec:
        given = (value for variable in OPENAI.base_url_variables if (value := os.environ.get(variable, "").strip()))
        base_url = config.base_url or next(given, None)
        path = "" if base_url is None else path_at_openai(base_url)
        dialect = UNKNOWN if path is None else replace(OPENAI, resource_path=path)
        return ChatCodec.from_config(config, replace(dialect, name=name))

    return made
