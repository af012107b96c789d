"""Gemini: Google's generateContent, from the Gemini API with a key, or from Vertex AI.

Signatures are the heart of it. Gemini seals its reasoning on single parts of an answer and wants them back on exactly
those, so every part is kept as it came, and a part from elsewhere never carries one.
"""

from __future__ import annotations

from ...wire_formats import WireFormat
from ..base import ProviderFactory
from .body import API
from .codec import GeminiCodec
from .platform import GEMINI_API, VERTEX, Platform
from .schema_dialect import SCHEMA_DIALECT

__all__ = ["API", "GEMINI_API", "VERTEX", "WIRE_FORMAT", "GeminiCodec", "Platform", "provider"]

WIRE_FORMAT = WireFormat(
    API, price_list="google", schema_dialect=SCHEMA_DIALECT, rules="agent.testing.rules:GeminiRules"
)


def provider(name: str) -> ProviderFactory:
    """The factory for "gemini", the Gemini API, and "vertex", Vertex AI."""
    return lambda config: GeminiCodec.from_config(config, name)
