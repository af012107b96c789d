"""Differences between Gemini models and between platforms, as data.

General facts, such as token limits and sampling, are in `agent.models`. The first row whose pattern matches the start
of a model's name applies. Unknown models are treated as the newest ones.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypedDict
from urllib.parse import quote, urlsplit

from ...schemas.dialect import SchemaDialect
from ...types import ThinkingLevel

API = "gemini"
SCHEMA_DIALECT_NAME = "gemini"

SKIP_SIGNATURE = "skip_thought_signature_validator"
"""Google's documented replacement for the signature of a call that the model did not make."""

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
BUDGETS = {
    ThinkingLevel.MINIMAL: 512,
    ThinkingLevel.LOW: 2048,
    ThinkingLevel.MEDIUM: 8192,
    ThinkingLevel.HIGH: 24576,
    ThinkingLevel.XHIGH: 32768,
}


class ThinkingConfig(TypedDict, total=False):
    thinkingLevel: str
    thinkingBudget: int
    includeThoughts: bool


@dataclass(frozen=True, slots=True)
class ModelFeatures:
    """Features of a family of models."""

    pattern: str
    """A regular expression for the start of the models' names."""
    levels: tuple[str, ...] = ()
    """Supported thinking levels."""
    budget: tuple[int, int] | None = None
    """Minimum and maximum thinking budget in tokens, for models without levels."""
    can_stop_thinking: bool = False
    signed_calls: bool = True
    """The first function call of a turn must have a signature."""
    schema_with_tools: bool = True
    """Supports an output schema together with tools."""
    mixes_tools: bool = True
    """Supports server-side tools together with functions."""
    media_in_results: bool = True
    """Function responses may contain images and documents. For other models, they follow the response."""
    validated_calls: bool = True
    """Can enforce the schemas of functions."""
    caches: bool = True
    """Caches the beginnings of prompts without being asked."""

    def encode_thinking(self, level: ThinkingLevel) -> tuple[ThinkingConfig | None, str | None]:
        """Return the supported setting nearest to a level, and a warning if it differs."""
        off = level is ThinkingLevel.OFF
        if self.budget is not None:
            return self.encode_budget(0 if off else min(BUDGETS[level], self.budget[1]))
        if not self.levels:
            return None, None if off else f"thinking={level.value!r} was dropped: the model does not support thinking"
        rank = _RANKS[level]
        nearest = min(self.levels, key=lambda word: (abs(_LEVELS.index(word) - rank), -_LEVELS.index(word)))
        if off:
            return {"thinkingLevel": nearest}, f"thinking cannot be disabled: it was set to {nearest.lower()!r}"
        warning = None
        if nearest.lower() != level.value:
            warning = f"thinking={level.value!r} was sent as {nearest.lower()!r}, the nearest supported level"
        return {"thinkingLevel": nearest, "includeThoughts": True}, warning

    def encode_budget(self, budget: int) -> tuple[ThinkingConfig, str | None]:
        """Return the supported budget nearest to one in tokens, and a warning if it differs."""
        least, most = self.budget or (0, 0)
        if budget == 0:
            if self.can_stop_thinking:
                return {"thinkingBudget": 0}, None
            return {"thinkingBudget": least}, f"thinking cannot be disabled: it was limited to {least} tokens"
        nearest = min(max(budget, least), most)
        warning = None if nearest == budget else f"thinking_budget was sent as {nearest}, the nearest supported budget"
        return {"thinkingBudget": nearest, "includeThoughts": True}, warning


def _before_gemini_3(pattern: str, **features: Any) -> ModelFeatures:
    return ModelFeatures(
        pattern, signed_calls=False, schema_with_tools=False, mixes_tools=False, media_in_results=False, **features
    )


MODELS = (
    _before_gemini_3(r"gemini-2\.5-flash-lite", budget=(512, 24576), can_stop_thinking=True),
    _before_gemini_3(r"gemini-2\.5-flash-(image|native-audio|preview-tts|tts)"),
    _before_gemini_3(r"gemini-2\.5-flash|gemini-robotics-er-1\.5", budget=(1, 24576), can_stop_thinking=True),
    _before_gemini_3(r"gemini-2\.5", budget=(128, 32768)),
    _before_gemini_3(r"gemini-(1|2)\b|gemini-pro$|gemma|learnlm", validated_calls=False, caches=False),
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


# For `responseJsonSchema` and `parametersJsonSchema`, without keywords that older models reject, such as references.
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


# Platforms.

_VERSION = re.compile(r"/v\d+(?:alpha|beta)?\d*(?:/|$)")
LOCATION_IN_URL = re.compile(r"/projects/[^/]+/locations/[^/]+")
_RESOURCE = re.compile(r"(projects/[^/]+/locations/[^/]+)/(.+)")
_MODEL = re.compile(r"(?:publishers/google/)?models/([^/]+)")
_OTHER_MODEL = re.compile(r"(tunedModels|endpoints)/([^/]+)")


@dataclass(frozen=True, slots=True)
class Platform:
    """Differences of one platform."""

    version: str
    """Version of the API if the base URL has none."""
    models: str
    """Path of the models below the base URL."""
    labels: bool
    """Requests can carry labels."""
    hosts_data: bool
    """Stores files and requests, searches files, and connects to MCP servers."""
    shows_server_tools: bool
    """Reports the calls of server-side tools. Requests with server-side tools and functions must ask for it."""
    wraps_counted: bool
    """Counts the tokens of a request inside another object; otherwise only those of `COUNTED_KEYS`."""
    any_ids: bool
    """Accepts ids of calls from other vendors."""

    def root(self, base_url: str) -> str:
        """Return the base URL with a version. An empty URL stays empty, because an SDK client completes paths."""
        root = re.sub(r"/publishers/google(?:/models)?$", "", base_url.rstrip("/"))
        return root if not root or _VERSION.search(urlsplit(root).path) else f"{root}/{self.version}"

    def path(self, model: str, method: str) -> str:
        """Return a method's path below the root, with the model quoted as one segment."""
        kind, name = self.models, model
        if match := _MODEL.fullmatch(model):
            name = match[1]
        elif match := _OTHER_MODEL.fullmatch(model):
            kind, name = match[1], match[2]
        return f"{kind}/{quote(name, safe='@')}:{method}"

    def url(self, root: str, model: str, method: str) -> str:
        """Return a method's URL. A project and location in the model's name replace those of the root."""
        if match := _RESOURCE.fullmatch(model):
            where, model = "/".join(quote(step, safe=":") for step in match[1].split("/")), match[2]
            root = LOCATION_IN_URL.sub("", root)
            root = f"{root}/{where}" if root else where
        path = self.path(model, method)
        return f"{root}/{path}" if root else path


GEMINI_API = Platform(
    "v1beta", "models", labels=False, hosts_data=True, shows_server_tools=True, wraps_counted=True, any_ids=True
)
VERTEX = Platform(
    "v1",
    "publishers/google/models",
    labels=True,
    hosts_data=False,
    shows_server_tools=False,
    wraps_counted=False,
    any_ids=False,
)
COUNTED_KEYS = frozenset(("contents", "systemInstruction", "tools", "generationConfig"))
"""Keys of a body that Vertex AI accepts for counting tokens."""
