"""Differences between Claude models, as data.

General facts, such as token limits and sampling, are in `agent.models`. The rows follow the vendor's migration guides.
The first row whose pattern occurs in a model's id applies. Clouds add prefixes and suffixes:
`anthropic.claude-opus-4-6-v1`, `claude-opus-4@20250514`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Literal

from ...schemas.dialect import FORMATS, SchemaDialect
from ...types import ThinkingLevel

API = "anthropic"
VERSION = "2023-06-01"
"""Version of the API. Later versions reject `temperature` for all models."""

MAX_BREAKPOINTS = 4
"""Maximum number of prompt cache markers in a request."""
MIN_THINKING_BUDGET = 1024
"""Minimum thinking budget, and minimum number of tokens for the response."""

Effort = Literal["low", "medium", "high", "xhigh", "max"]
_ALL_EFFORTS: tuple[Effort, ...] = ("low", "medium", "high", "xhigh", "max")


@dataclass(frozen=True, slots=True)
class ModelFeatures:
    """Features of a family of models."""

    pattern: str
    """Regular expression that occurs in the models' ids."""
    thinking: Literal["none", "budget", "adaptive"]
    """No thinking, thinking with a token budget, or adaptive thinking with an effort."""
    thinking_off: Literal["omit", "disabled", "between_tools", "never"] = "omit"
    """How thinking is disabled: by omitting the setting, by one of two values, or never."""
    efforts: tuple[Effort, ...] = ()
    hides_thinking: bool = False
    """Responses contain thinking only on request."""
    forced_calls: bool = True
    """A request can force a tool call."""
    prefill: bool = True
    """The conversation may end with an assistant message that the model continues."""
    both_samplers: bool = True
    """Temperature and top_p can be combined."""


MODELS = (
    ModelFeatures(
        r"(?:fable|mythos)-5[-.]\d(?!\d)", "adaptive", "never", _ALL_EFFORTS, True, forced_calls=False, prefill=False
    ),
    ModelFeatures(r"mythos-preview", "adaptive", "never", ("low", "medium", "high", "max"), True, prefill=False),
    ModelFeatures(r"(?:fable|mythos)-5", "adaptive", "never", _ALL_EFFORTS, True, prefill=False),
    ModelFeatures(r"opus-5[-.]\d(?!\d)", "adaptive", "never", _ALL_EFFORTS, True, forced_calls=False, prefill=False),
    ModelFeatures(
        r"sonnet-5[-.]\d(?!\d)", "adaptive", "between_tools", _ALL_EFFORTS, True, forced_calls=False, prefill=False
    ),
    ModelFeatures(r"(?:opus|sonnet|haiku)-5", "adaptive", "disabled", _ALL_EFFORTS, True, prefill=False),
    ModelFeatures(r"opus-4[-.][78](?!\d)", "adaptive", "omit", _ALL_EFFORTS, True, prefill=False),
    ModelFeatures(
        r"(?:opus|sonnet)-4[-.]6(?!\d)",
        "adaptive",
        efforts=("low", "medium", "high", "max"),
        prefill=False,
        both_samplers=False,
    ),
    ModelFeatures(r"(?:opus|sonnet|haiku)-4[-.][1-5](?!\d)", "budget", both_samplers=False),
    ModelFeatures(r"(?:opus|sonnet|haiku)-4|claude-4|claude-3[-.]7", "budget"),
    ModelFeatures(r"claude-(?:instant|[123])", "none"),
    ModelFeatures(r"claude", "adaptive", "never", _ALL_EFFORTS, True),  # newer than this table
)
OTHER_MODELS = ModelFeatures("", "budget", "disabled")
"""Other vendors' models behind this API. They follow its older form."""


@cache
def features_of(model: str) -> ModelFeatures:
    name = model.lower()
    return next((features for features in MODELS if re.search(features.pattern, name)), OTHER_MODELS)


THINKING_BUDGETS = {
    ThinkingLevel.MINIMAL: 1_024,
    ThinkingLevel.LOW: 2_048,
    ThinkingLevel.MEDIUM: 8_192,
    ThinkingLevel.HIGH: 16_384,
    ThinkingLevel.XHIGH: 32_768,
}
EFFORTS: dict[ThinkingLevel, tuple[Effort, ...]] = {
    ThinkingLevel.MINIMAL: ("low",),
    ThinkingLevel.LOW: ("low",),
    ThinkingLevel.MEDIUM: ("medium",),
    ThinkingLevel.HIGH: ("high",),
    ThinkingLevel.XHIGH: ("xhigh", "max"),
}
"""Efforts by level, the preferred one first."""


SCHEMA_DIALECT = SchemaDialect(
    name="anthropic",
    enforced={"string": frozenset(("format",)), "array": frozenset(("minItems",))},
    formats=FORMATS | {"uri"},
    recursion=4,
    min_items=1,
    most_optional=24,
    most_unions=16,
)
