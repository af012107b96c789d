"""What each of the four APIs answers with status 400, in its own words: for a server that plays them strictly.

One module per wire format; `base` has the one shape of a broken rule. The words follow those that real requests have
met. Nothing here knows how answers are written.
"""

from __future__ import annotations

from .anthropic import AnthropicRules
from .base import Issued, Known, Rules, Violation
from .gemini import GeminiRules
from .openai_chat import ChatRules
from .openai_responses import ResponsesRules
from .validator import Judge, broken_rules, rules_at

__all__ = [
    "AnthropicRules",
    "ChatRules",
    "GeminiRules",
    "Issued",
    "Judge",
    "Known",
    "ResponsesRules",
    "Rules",
    "Violation",
    "broken_rules",
    "rules_at",
]
