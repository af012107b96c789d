"""What Gemini's model families take and refuse, as data. A model that is not known is treated as one of the newest.

Only what facts about models in general do not hold: how thinking is asked for, and which features may be combined.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from ...types import ThinkingLevel

SCHEMA_DIALECT = "gemini"
"""What `agent.schemas` calls the schemas that Gemini takes."""

SKIP_SIGNATURE = "skip_thought_signature_validator"
"""Documented by Google: stands for the signature of a call that this model did not make itself."""

_WORDS = ("MINIMAL", "LOW", "MEDIUM", "HIGH")
_WANTED = {
    ThinkingLevel.OFF: 0,
    ThinkingLevel.MINIMAL: 0,
    ThinkingLevel.LOW: 1,
    ThinkingLevel.MEDIUM: 2,
    ThinkingLevel.HIGH: 3,
    ThinkingLevel.XHIGH: 3,
}
_BUDGETS = {
    ThinkingLevel.MINIMAL: 512,
    ThinkingLevel.LOW: 2048,
    ThinkingLevel.MEDIUM: 8192,
    ThinkingLevel.HIGH: 24576,
    ThinkingLevel.XHIGH: 32768,
}


@dataclass(frozen=True, slots=True)
class Family:
    """Models that are alike."""

    models: str
    """A regular expression for the beginning of their names."""
    levels: tuple[str, ...] = ()
    """The words these models take for how hard to think; empty if they take none."""
    budget: tuple[int, int] | None = None
    """Fewest and most tokens to think with, for models that take a number instead of a word."""
    can_stop_thinking: bool = False
    signed_calls: bool = True
    """Refuses a turn whose first call has no signature."""
    schema_with_tools: bool = True
    """Takes an output schema beside tools."""
    mixes_tools: bool = True
    """Takes its own tools and the caller's in one request."""
    media_in_results: bool = True
    """Takes pictures and documents inside a function's response; elsewhere they follow it."""
    validated_calls: bool = True
    """Can be made to keep to the schemas of functions."""

    def thinking_config(self, level: ThinkingLevel) -> tuple[Mapping[str, Any] | None, str | None]:
        """How a level is asked for, and a warning if it is not quite what was meant."""
        off = level is ThinkingLevel.OFF
        if self.budget is not None:
            return self._budget_config(level, off)
        if not self.levels:
            return None, None if off else f"thinking={level.value!r} was left out: this model does not think"
        wanted = _WANTED[level]
        nearest = min(self.levels, key=lambda word: (abs(_WORDS.index(word) - wanted), -_WORDS.index(word)))
        if off:
            return {"thinkingLevel": nearest}, f"thinking cannot be turned off: it was set to {nearest.lower()!r}"
        warning = None
        if nearest.lower() != level.value:
            warning = f"thinking={level.value!r} was sent as {nearest.lower()!r}, the nearest that this model knows"
        return {"thinkingLevel": nearest, "includeThoughts": True}, warning

    def _budget_config(self, level: ThinkingLevel, off: bool) -> tuple[Mapping[str, Any], str | None]:
        assert self.budget is not None
        fewest, most = self.budget
        if not off:
            return {"thinkingBudget": min(max(_BUDGETS[level], fewest), most), "includeThoughts": True}, None
        if self.can_stop_thinking:
            return {"thinkingBudget": 0}, None
        return {"thinkingBudget": fewest}, f"thinking cannot be turned off: it was limited to {fewest} tokens"


def _older(models: str, **rest: Any) -> Family:
    """A family from before Gemini 3."""
    return Family(
        models, signed_calls=False, schema_with_tools=False, mixes_tools=False, media_in_results=False, **rest
    )


FAMILIES = (
    _older(r"gemini-2\.5-flash-lite", budget=(512, 24576), can_stop_thinking=True),
    _older(r"gemini-2\.5-flash-(image|native-audio|preview-tts|tts)"),
    _older(r"gemini-2\.5-flash|gemini-robotics-er-1\.5", budget=(1, 24576), can_stop_thinking=True),
    _older(r"gemini-2\.5", budget=(128, 32768)),
    _older(r"gemini-(1|2)\b|gemini-pro$|gemma|learnlm", validated_calls=False),
    Family(r"gemini-3-pro(?!-image)", levels=("LOW", "HIGH")),
    Family(r"gemini-3(\.\d+)?-pro-image", levels=("LOW", "HIGH"), signed_calls=False),
    Family(
        r"gemini-[3-9](\.\d+)?-pro|gemini-pro-latest|gemini-3\.[89]-flash(?!-lite)", levels=("LOW", "MEDIUM", "HIGH")
    ),
)
"""The first whose expression fits."""

NEWEST = Family("", levels=_WORDS)


@lru_cache(maxsize=256)
def family_of(model: str) -> Family:
    name = model.rsplit("/", 1)[-1]
    return next((family for family in FAMILIES if re.match(family.models, name)), NEWEST)
