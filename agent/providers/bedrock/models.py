"""Differences between the models on Bedrock, as data.

The first row whose pattern occurs in a model's id applies. Ids have a region prefix (`us.anthropic.claude-…`), or are
ARNs. An ARN that does not name a model gets the last row, so that nothing is dropped without need.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Literal

from ...types import ThinkingLevel

API = "bedrock"
MAX_CACHE_POINTS = 4


@dataclass(frozen=True, slots=True)
class ModelFeatures:
    """Features of a family of models."""

    pattern: str
    """Regular expression that occurs in the models' ids."""
    thinking: Literal["none", "claude", "reasoning_config", "effort"] = "none"
    """How thinking is requested: with the fields of Claude or Nova, with an effort, or not at all."""
    forced_calls: tuple[str, ...] = ()
    """Supported choices that force a tool call: any tool, or a tool by name."""
    native_schema: bool = False
    """Enforces output schemas."""
    cached: tuple[str, ...] = ()
    """Parts of the prompt that can have cache points: tools, system prompt, messages."""
    top_k: tuple[str, ...] = ()
    """Path of `top_k` in the additional model fields."""
    json_results: bool = False
    """Accepts tool results only as JSON."""


_FORCED = ("any", "tool")
_PROMPT = ("system", "messages")
_ALL = ("tools", *_PROMPT)
_NOVA_TOP_K = ("inferenceConfig", "topK")

MODELS = (
    ModelFeatures(r"claude", "claude", _FORCED, native_schema=True, cached=_ALL, top_k=("top_k",)),
    ModelFeatures(r"nova-2", "reasoning_config", _FORCED, cached=_PROMPT, top_k=_NOVA_TOP_K),
    ModelFeatures(r"\bnova", forced_calls=_FORCED, cached=_PROMPT, top_k=_NOVA_TOP_K),
    ModelFeatures(r"openai\.gpt", "effort", native_schema=True),
    ModelFeatures(r"mistral-large-3|ministral|magistral|voxtral", forced_calls=("any",), native_schema=True),
    ModelFeatures(r"mistral|mixtral|pixtral", forced_calls=("any",), json_results=True),
    ModelFeatures(r"qwen3|deepseek\.v3|gemma-3|minimax|kimi|nemotron|glm", native_schema=True),
    ModelFeatures(r"\b(?:meta|deepseek|ai21|cohere|writer|google|amazon)\."),
)
OTHER_MODELS = ModelFeatures("", forced_calls=_FORCED, cached=_ALL)

EFFORTS: dict[ThinkingLevel, str] = {
    ThinkingLevel.MINIMAL: "low",
    ThinkingLevel.LOW: "low",
    ThinkingLevel.MEDIUM: "medium",
    ThinkingLevel.HIGH: "high",
    ThinkingLevel.XHIGH: "high",
}

_REGION_PREFIX = re.compile(r"^(?:[a-z]{2,6}|us-gov)\.(?=[a-z0-9-]+\.)")
_ARN = re.compile(r"arn:[^:]+:[^:]+:(?P<region>[^:]*):")


@cache
def features_of(model: str) -> ModelFeatures:
    name = model.lower()
    return next((features for features in MODELS if re.search(features.pattern, name)), OTHER_MODELS)


def region_in(model: str) -> str | None:
    """Return the region in an ARN."""
    match = _ARN.match(model)
    return match["region"] or None if match else None


def foundation_model(model: str) -> str | None:
    """Return the id of the model behind an inference profile; None if an ARN does not name it."""
    if model.startswith("arn:"):
        resource, _, model = model.partition("/")
        if resource.rpartition(":")[2] not in ("foundation-model", "inference-profile"):
            return None
    return _REGION_PREFIX.sub("", model)
