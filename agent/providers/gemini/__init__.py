"""Google's generateContent API, served by the Gemini API and by Vertex AI.

Gemini signs parts of its responses and requires each signature on the same part. So parts are kept unchanged, and
signatures of other models are never sent.
"""

from __future__ import annotations

from ...wire_formats import WireFormat
from ..base import ProviderFactory
from .codec import GeminiCodec
from .models import API, GEMINI_API, SCHEMA_DIALECT, VERTEX, Platform

__all__ = ["API", "GEMINI_API", "VERTEX", "WIRE_FORMAT", "GeminiCodec", "Platform", "provider"]

WIRE_FORMAT = WireFormat(
    API, price_list="google", schema_dialect=SCHEMA_DIALECT, rules="agent.testing.rules.gemini:GeminiRules"
)


def provider(name: str) -> ProviderFactory:
    """Factory for "gemini", the Gemini API, and "vertex", Vertex AI."""
    return lambda config: GeminiCodec.from_config(config, name)
