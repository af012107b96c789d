"""Differences between Gemini models in what requests may contain, as data.

General facts about models, such as token limits and whether they take a temperature, are in `agent.models`. The first
row whose pattern matches the start of a model's name applies; unknown models are treated as the newest ones.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from ...schemas.dialect import SchemaDialect
from ...types import ThinkingLevel
from .params import ThinkingConfig

API = "gemini"
SCHEMA_DIALECT_NAME = "gemini"

SKIP_SIGNATURE = "skip_thought_signature_validator"
"""Documented by Google: stands for the signature of a call that the model did not make itself."""

_LEVELS = ("MINIMAL", "LOW", "MEDIUM", "HIGH")
_RANKS = {
    ThinkingLevel.OFF: 0,
    ThinkingLevel.MINIMAL: 0,
    ThinkingLevel.LOW: 1,
    ThinkingLevel.MEDIUM: 2,
    ThinkingLevel.HIGH: 3,
    ThinkingLevel.XHIGH: 3,
}
"""Positions in `_LEVELS`."""
_BUDGETS = {
    ThinkingLevel.MINIMAL: 512,
    ThinkingLevel.LOW: 2048,
    ThinkingLevel.MEDIUM: 8192,
    ThinkingLevel.HIGH: 24576,
    ThinkingLevel.XHIGH: 32768,
}


@dataclass(frozen=True, slots=True)
class ModelFeatures:
    """Features of a family of models."""

    pattern: str
    """A regular expression for the start of the models' names."""
    levels: tuple[str, ...] = ()
    """Thinking levels that the models take."""
    budget: tuple[int, int] | None = None
    """Minimum and maximum thinking budget, for models that take a number of tokens instead of a level."""
    can_stop_thinking: bool = False
    signed_calls: bool = True
    """Rejects a turn whose first function call has no signature."""
    schema_with_tools: bool = True
    """Takes an output schema together with tools."""
    mixes_tools: bool = True
    """Takes server-side tools together with functions."""
    media_in_results: bool = True
    """Takes images and documents inside a function response. For other models they follow it."""
    validated_calls: bool = True
    """Can enforce the schemas of functions."""

    def thinking_config(self, level: ThinkingLevel) -> tuple[ThinkingConfig | None, str | None]:
        """Return the setting nearest to a level, and a warning if it differs from the level."""
        off = level is ThinkingLevel.OFF
        if self.budget is not None:
            return self._budget_config(level, *self.budget)
        if not self.levels:
            return None, None if off else f"thinking={level.value!r} was left out: this model does not think"
        rank = _RANKS[level]
        nearest = min(self.levels, key=lambda word: (abs(_LEVELS.index(word) - rank), -_LEVELS.index(word)))
        if off:
            return {"thinkingLevel": nearest}, f"thinking cannot be turned off: it was set to {nearest.lower()!r}"
        warning = None
        if nearest.lower() != level.value:
            warning = f"thinking={level.value!r} was sent as {nearest.lower()!r}, the nearest that this model knows"
        return {"thinkingLevel": nearest, "includeThoughts": True}, warning

    def _budget_config(self, level: ThinkingLevel, least: int, most: int) -> tuple[ThinkingConfig, str | None]:
        if level is not ThinkingLevel.OFF:
            return {"thinkingBudget": min(max(_BUDGETS[level], least), most), "includeThoughts": True}, None
        if self.can_stop_thinking:
            return {"thinkingBudget": 0}, None
        return {"thinkingBudget": least}, f"thinking cannot be turned off: it was limited to {least} tokens"


def _before_gemini_3(pattern: str, **features: Any) -> ModelFeatures:
    return ModelFeatures(
        pattern, signed_calls=False, schema_with_tools=False, mixes_tools=False, media_in_results=False, **features
    )


MODELS = (
    _before_gemini_3(r"gemini-2\.5-flash-lite", budget=(512, 24576), can_stop_thinking=True),
    _before_gemini_3(r"gemini-2\.5-flash-(image|native-audio|preview-tts|tts)"),
    _before_gemini_3(r"gemini-2\.5-flash|gemini-robotics-er-1\.5", budget=(1, 24576), can_stop_thinking=True),
    _before_gemini_3(r"gemini-2\.5", budget=(128, 32768)),
    _before_gemini_3(r"gemini-(1|2)\b|gemini-pro$|gemma|learnlm", validated_calls=False),
    ModelFeatures(r"gemini-3-pro(?!-image)", levels=("LOW", "HIGH")),
    ModelFeatures(r"gemini-3(\.\d+)?-pro-image", levels=("LOW", "HIGH"), signed_calls=False),
    ModelFeatures(
        r"gemini-[3-9](\.\d+)?-pro|gemini-pro-latest|gemini-3\.[89]-flash(?!-lite)", levels=("LOW", "MEDIUM", "HIGH")
    ),
)
NEWEST = ModelFeatures("", levels=_LEVELS)


@lru_cache(maxsize=256)
def features_of(model: str) -> ModelFeatures:
    name = model.rsplit("/", 1)[-1]
    return next((features for features in MODELS if re.match(features.pattern, name)), NEWEST)


# Of `responseJsonSchema` and `parametersJsonSchema`: without what their older siblings refuse, such as references and
# constants.
SCHEMA_DIALECT = SchemaDialect(
    name=SCHEMA_DIALECT_NAME,
    enforced={
        "string": frozenset(("format",)),
        "integer": frozenset(("minimum", "maximum", "format")),
        "number": frozenset(("minimum", "maximum", "format")),
        "array": frozenset(("minItems", "maxItems")),
    },
    formats=frozenset(("date-time", "date", "time", "int32", "int64", "float", "double")),
    literals=frozenset(("string",)),
    const=False,
    closed=False,
    references=False,
    recursion=4,
    tuples=True,
    anything=True,
    object_root=False,
    ordering=True,
    most_nodes=1_500,
)
