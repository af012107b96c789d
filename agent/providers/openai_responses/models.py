"""Differences between models of the Responses API, as data.

The first row whose pattern matches the start of a model's name applies.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh"]
EFFORTS: tuple[Effort, ...] = ("none", "minimal", "low", "medium", "high", "xhigh")
"""In ascending order."""


@dataclass(frozen=True, slots=True, eq=False)
class ModelFeatures:
    """Features of some models."""

    models: str
    """Regular expression for the start of the model's name, without the vendor's prefix."""
    efforts: tuple[Effort, ...] = EFFORTS
    """Reasoning efforts, in ascending order. Empty for models without reasoning."""
    reasoning_optional: bool = False
    """Whether the model reasons only with an effort. Without reasoning, it accepts sampling settings."""
    long_cache: Literal["retention", "ttl"] | None = None
    """The setting for a cache lifetime of hours."""
    cache_breakpoints: bool = False
    """Whether content parts can be marked as the end of a cached prefix."""
    verbosity: bool = True


_LOW_TO_HIGH: tuple[Effort, ...] = ("low", "medium", "high")
_LOW_TO_XHIGH: tuple[Effort, ...] = ("low", "medium", "high", "xhigh")
_NONE_TO_XHIGH: tuple[Effort, ...] = ("none", "low", "medium", "high", "xhigh")

MODELS: tuple[ModelFeatures, ...] = (
    ModelFeatures(r"gpt-5-chat", ()),
    ModelFeatures(r"gpt-5\.\d+-chat", ("medium",), long_cache="retention"),
    ModelFeatures(r"gpt-5-pro", ("high",)),
    ModelFeatures(r"gpt-5-codex", _LOW_TO_HIGH, long_cache="retention"),
    ModelFeatures(r"gpt-5-(?:mini|nano)", ("minimal", "low", "medium", "high")),
    ModelFeatures(r"gpt-5(?![.\d])", ("minimal", "low", "medium", "high"), long_cache="retention"),
    ModelFeatures(r"gpt-5\.1-codex-max", _LOW_TO_XHIGH, long_cache="retention"),
    ModelFeatures(r"gpt-5\.1-codex", _LOW_TO_HIGH, long_cache="retention"),
    ModelFeatures(r"gpt-5\.1", ("none", "low", "medium", "high"), reasoning_optional=True, long_cache="retention"),
    ModelFeatures(r"gpt-5\.[2-5]-pro", ("medium", "high", "xhigh"), long_cache="retention"),
    ModelFeatures(r"gpt-5\.[2-5]-codex", _LOW_TO_XHIGH, long_cache="retention"),
    ModelFeatures(r"gpt-5\.[2-4]", _NONE_TO_XHIGH, reasoning_optional=True, long_cache="retention"),
    ModelFeatures(r"gpt-5\.5", _NONE_TO_XHIGH, long_cache="retention"),
    ModelFeatures(r"gpt-(?:5\.[6-9]|[6-9])", _NONE_TO_XHIGH, long_cache="ttl", cache_breakpoints=True),
    ModelFeatures(r"(?:ft:)?(?:gpt-[34]|chatgpt-4)", (), verbosity=False),
    ModelFeatures(r"o[1-9]", _LOW_TO_HIGH, verbosity=False),
    ModelFeatures(r"gpt-oss|codex-mini", _LOW_TO_HIGH),
    ModelFeatures(r"grok-3-mini", ("low", "high")),
)
UNKNOWN_MODEL = ModelFeatures("")


@lru_cache(512)
def features_of(model: str) -> ModelFeatures:
    """Find the features of a model, with or without a prefix (`openai/gpt-5`, `openai.gpt-oss-20b`)."""
    name = model.lower().rpartition("/")[2].removeprefix("openai.")
    return next((features for features in MODELS if re.match(features.models, name)), UNKNOWN_MODEL)


API = "openai-responses"
SCHEMA_DIALECT = "openai"
MAX_NAME_LENGTH = 64
"""Maximum length of a tool name."""
CUSTOM = "custom"
"""`provider_data["type"]` of a custom tool call, whose input is text."""
COMPUTER_CALL = "computer_call"
"""`provider_data["type"]` of a call of the computer tool."""
