"""Dialects of Chat Completions: differences between vendors as data.

A vendor is one `Dialect`. Settings for some of its models name them with a regular expression.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, get_args

from ...schemas.dialect import FORMATS, NUMBERS, SchemaDialect
from ...types import ProviderCapabilities, ThinkingLevel
from ..base import make_capabilities

API = "openai-chat"

OPAQUE_KEYS = ("reasoning_details", "thinking_blocks", "extra_content", "thought_signature")
"""Keys of a message with opaque data, which is sent back to the same vendor unchanged."""

SIGNED_CONTENT = "content"
"""Key in the `provider_data` of thinking for the signed blocks before the text."""

MAX_NAME_LENGTH = 64
"""Maximum length of a tool name."""

OptionalField = Literal[
    "frequency_penalty", "presence_penalty", "logit_bias", "modalities", "n", "service_tier", "store", "top_k", "user",
    "verbosity",
]  # fmt: skip
"""Request fields that only some vendors have."""
OPTIONAL_FIELDS: frozenset[str] = frozenset(get_args(OptionalField))
_COMMON_FIELDS: frozenset[OptionalField] = frozenset(
    ("frequency_penalty", "presence_penalty", "logit_bias", "n", "top_k", "user")
)
"""Optional fields of servers for open models."""
Setting = Literal["temperature", "top_p", "seed", "stop", "logprobs", "parallel_tool_calls", "name"] | OptionalField
ToolChoice = Literal["auto", "none", "required", "named"]
Fragment = Mapping[str, Any]
"""Keys that are merged into a body or a content block."""

_LEVELS = tuple(ThinkingLevel)


@lru_cache(maxsize=1024)
def matches(models: str, model: str) -> bool:
    """Whether a regular expression matches a model name."""
    return re.search(models, model) is not None


@dataclass(frozen=True, slots=True)
class Thinking:
    """Thinking levels of some models, with the keys that select each."""

    levels: Mapping[ThinkingLevel, Fragment]
    """Empty for models without thinking. Without OFF, thinking cannot be disabled."""
    models: str = ""
    refuses: frozenset[Setting] = frozenset()
    """Settings that these models refuse while they think."""
    budget: Callable[[int], Fragment] | None = None
    """Keys for a maximum number of reasoning tokens."""

    def nearest(self, level: ThinkingLevel) -> ThinkingLevel | None:
        """The closest level, the higher one of two. None if thinking cannot be disabled."""
        if level in self.levels or level is ThinkingLevel.OFF:
            return level if level in self.levels else None
        levels = [other for other in self.levels if other is not ThinkingLevel.OFF]
        rank = _LEVELS.index
        return min(levels, key=lambda other: (abs(rank(other) - rank(level)), -rank(other)), default=None)


def efforts(
    words: str,
    *,
    off: Fragment | None = None,
    on: Fragment | None = None,
    key: str = "reasoning_effort",
    models: str = "",
    refuses: frozenset[Setting] = frozenset(),
    budget: Callable[[int], Fragment] | None = None,
) -> Thinking:
    """Build thinking levels from efforts such as "low medium xhigh=max", with the keys in `on` for each.

    A key with a dot is nested: "reasoning.effort" is {"reasoning": {"effort": …}}.
    """
    levels: dict[ThinkingLevel, Fragment] = {} if off is None else {ThinkingLevel.OFF: off}
    outer, _, inner = key.partition(".")
    for entry in words.split():
        level, _, word = entry.partition("=")
        levels[ThinkingLevel(level)] = {**(on or {}), outer: {inner: word or level} if inner else word or level}
    return Thinking(levels, models, refuses, budget)


def switch(
    on: Fragment, off: Fragment | None, *, models: str = "", budget: Callable[[int], Fragment] | None = None
) -> Thinking:
    """Build thinking that is on or off."""
    levels = {ThinkingLevel.MEDIUM: on} if off is None else {ThinkingLevel.OFF: off, ThinkingLevel.MEDIUM: on}
    return Thinking(levels, models, budget=budget)


@dataclass(frozen=True, slots=True)
class CacheMarks:
    """Prompt cache breakpoints: keys of the content block that ends a cached prefix."""

    short: Fragment
    long: Fragment
    models: str = ""
    whole_requests: bool = True
    """Whether the request's `cache` sets a breakpoint. Vendors that cache automatically need none."""
    most: int = 4

    def fragment(self, hint: Literal["short", "long"]) -> Fragment:
        return self.short if hint == "short" else self.long


@dataclass(frozen=True, slots=True)
class CallIds:
    """Call ids that a vendor accepts. Others are replaced by a hash of the given length."""

    form: re.Pattern[str] = re.compile(r"[!-~]{1,128}")
    length: int = 24


STRICT_IDS = CallIds(re.compile(r"[a-zA-Z0-9_-]{1,64}"))
"""Call ids that Claude and its hosts accept."""


@dataclass(frozen=True, slots=True)
class BatchDialect:
    """The Batch API as one vendor implements it. The defaults are OpenAI's."""

    max_requests: int = 50_000
    max_bytes: int = 200_000_000
    discount: float | None = 0.5
    batches_path: str = "/batches"
    upload_path: str = "/files"
    purpose: str = "batch"
    named_files: bool = False
    """Requires the file's name and type as fields of the upload."""
    metadata: bool = True
    """Accepts metadata for batches."""
    job_form: bool = False
    """Takes a list of files, the model and a timeout in hours, and omits method and URL in lines."""
    page_size: int = 100


_CAPABILITIES = make_capabilities(system_messages=True, documents=True, audio=True)


@dataclass(frozen=True, slots=True)
class Dialect:
    """Chat Completions as one vendor implements them."""

    name: str = API

    # Address and authentication.
    base_url: str | None = None
    """May contain environment variables in braces, for addresses that differ by customer."""
    resource_path: str = ""
    """Path of the API for a base_url that is only a host."""
    dated_path: str = ""
    """Used instead of `resource_path`, with {model} and {version}, where `version_variable` is a date."""
    version_variable: str = ""
    base_url_variables: tuple[str, ...] = ()
    key_variables: tuple[str, ...] = ()
    key_required: bool = True
    key_header: str = "authorization"
    key_prefix: str = "Bearer "

    # Request fields.
    max_tokens_key: str = "max_tokens"
    completion_models: str | None = None
    """Models that require `max_completion_tokens` instead of `max_tokens_key`."""
    seed_key: str = "seed"
    required_word: str = "required"
    """The vendor's tool choice for "call any tool"."""
    tool_choices: frozenset[ToolChoice] = frozenset(("auto", "none", "required", "named"))
    strict: bool = True
    """Whether the vendor accepts strict schemas."""
    refused: tuple[tuple[str, frozenset[Setting]], ...] = ()
    """Settings dropped with a warning, by models that refuse them ("" for all). `n` raises an error."""
    optional: frozenset[OptionalField] = _COMMON_FIELDS
    """Optional fields that the vendor has. Others are dropped with a warning; `n` raises an error."""
    user_key: str = "user"
    search_models: str | None = None
    """Models that search the web with `web_search_options`."""
    most_stops: int = 4
    thinking: tuple[Thinking, ...] = (efforts("minimal low medium high xhigh", off={"reasoning_effort": "none"}),)
    """Thinking levels; the first with matching models is used."""
    developer_models: str | None = None
    """Models whose system messages have the role "developer"."""
    metadata: bool = False
    """Accepts metadata for stored completions."""
    session_key: str | None = None
    """Key for the session id, which routes requests to the same prompt cache."""
    cache_marks: CacheMarks | None = None
    caches: bool = False
    """Caches prompts by itself, for some minutes."""
    long_caches: tuple[tuple[str, Fragment], ...] = ()
    """Keys that request a long lifetime of that cache, by models."""
    idempotency: bool = False
    """Recognizes retried requests by the header `Idempotency-Key`."""

    # Messages.
    call_ids: CallIds = CallIds()
    replayed: frozenset[str] = frozenset(OPAQUE_KEYS)
    """Opaque keys of assistant messages that are sent back to this vendor."""
    reasoning_key: str | None = None
    """Key for the model's own reasoning as text, "content" for a content block; None if it is not sent."""
    reasoning_filler: str | None = None
    """Reasoning sent with tool calls that have none, where the vendor requires it."""
    refusals: bool = False
    """Accepts refusals in assistant messages. Elsewhere they are sent as text."""
    result_images: bool = False
    """Accepts images in tool messages. Elsewhere they follow in a user message."""
    user_after_tool: bool = True
    """Accepts a user message directly after a tool message. Elsewhere an assistant message "OK" is inserted."""
    file_ids: bool = False
    """Stores files, and accepts their ids."""
    video_urls: bool = False
    """Accepts videos by URL or as data."""
    document_urls: bool = False
    """Accepts documents by URL."""

    # Responses.
    finish_reasons: bool = True
    """Responses have a finish reason. Elsewhere usage and [DONE] end a stream."""
    stream_usage: bool = True
    """Accepts `stream_options` to report usage at the end of a stream."""

    batch: BatchDialect | None = None
    """The vendor's Batch API, if it has one."""
    capabilities: ProviderCapabilities = _CAPABILITIES

    def refuses(self, setting: str, model: str) -> bool:
        return any(setting in settings and matches(models, model) for models, settings in self.refused)

    def limit_key(self, model: str) -> str:
        if self.completion_models is not None and matches(self.completion_models, model):
            return "max_completion_tokens"
        return self.max_tokens_key

    def find_thinking(self, model: str) -> Thinking:
        return next((thinking for thinking in self.thinking if matches(thinking.models, model)), _NO_THINKING)

    def find_long_cache(self, model: str) -> Fragment | None:
        return next((fragment for models, fragment in self.long_caches if matches(models, model)), None)


_NO_THINKING = Thinking({})

_NONE: Fragment = {"reasoning_effort": "none"}
_SAMPLING: frozenset[Setting] = frozenset(("temperature", "top_p", "logprobs"))
OPENAI_THINKING = (
    Thinking({}, models=r"gpt-3|gpt-4|chatgpt-4|gpt-5(\.\d)?-chat|gpt-audio"),
    efforts("high", models=r"gpt-5-pro"),
    efforts("minimal low medium high", models=r"gpt-5(-mini|-nano)?(-\d{4}.*)?$"),
    efforts("low medium high", models=r"(^|/)o[134](-|$)|gpt-oss|codex-mini|gpt-5-codex"),
    efforts("low medium high", off=_NONE, models=r"gpt-5\.1($|-\d|-codex($|-mini))", refuses=_SAMPLING),
    efforts("low medium high xhigh", off=_NONE, models=r"gpt-\d", refuses=_SAMPLING),
    efforts("low medium high xhigh", off=_NONE),
)
"""Thinking levels of OpenAI's models at any host."""

OPENAI_REASONING = r"(^|/)o[134](-|$)|gpt-[5-9]"
"""OpenAI's reasoning models at any host."""

OPENAI_REFUSALS: tuple[tuple[str, frozenset[Setting]], ...] = (
    (
        r"(^|/)o[134](-|$)|gpt-5(-mini|-nano|-pro)?(-\d{4}.*)?$",
        frozenset(("stop", "logprobs", "frequency_penalty", "presence_penalty", "logit_bias")),
    ),
    (r"(^|/)o1(-|$)|(^|/)o3-mini", frozenset(("parallel_tool_calls",))),
)
"""Settings that OpenAI's reasoning models reject with `unsupported_parameter`."""

OPENAI_FIELDS: frozenset[OptionalField] = frozenset(get_args(OptionalField)) - {"top_k"}
OPENAI_LONG_CACHES: tuple[tuple[str, Fragment], ...] = (
    (r"^gpt-5(?!\.[6-9])", {"prompt_cache_retention": "24h"}),
)  # newer models have breakpoints

OPENAI = Dialect(
    base_url="https://api.openai.com/v1",
    key_variables=("OPENAI_API_KEY",),
    base_url_variables=("OPENAI_BASE_URL",),
    max_tokens_key="max_completion_tokens",
    refused=OPENAI_REFUSALS,
    thinking=OPENAI_THINKING,
    developer_models=r"^o[134]($|-(?!mini-|preview))|^gpt-[5-9]",
    metadata=True,
    session_key="prompt_cache_key",
    cache_marks=CacheMarks(
        short={"prompt_cache_breakpoint": {"mode": "explicit"}},
        long={"prompt_cache_breakpoint": {"mode": "explicit", "ttl": "12h"}},
        models=r"^gpt-5\.[6-9]|^gpt-[6-9]",
        whole_requests=False,
    ),
    caches=True,
    long_caches=OPENAI_LONG_CACHES,
    optional=OPENAI_FIELDS,
    user_key="safety_identifier",
    search_models="search",
    idempotency=True,
    call_ids=CallIds(re.compile(r"[!-~]{1,40}")),
    refusals=True,
    file_ids=True,
    batch=BatchDialect(),
)

UNKNOWN = Dialect(
    base_url=OPENAI.base_url,
    key_variables=OPENAI.key_variables,
    base_url_variables=OPENAI.base_url_variables,
    completion_models=OPENAI_REASONING,
    refused=OPENAI_REFUSALS,
    thinking=(Thinking({}, models=r"gpt-3|gpt-4"), efforts("minimal low medium high xhigh", off=_NONE)),
    optional=OPENAI_FIELDS | {"top_k"},
    search_models="",
    idempotency=True,
    call_ids=STRICT_IDS,
    file_ids=True,
    video_urls=True,
    batch=BatchDialect(),
)
"""Unknown compatible servers, with the features of most servers.

Servers for open models ignore `max_completion_tokens` silently and generate without a limit.
"""


SCHEMA_DIALECT = SchemaDialect(
    name="openai",
    enforced={
        "string": frozenset(("pattern", "format")),
        "integer": NUMBERS,
        "number": NUMBERS,
        "array": frozenset(("minItems", "maxItems")),
    },
    formats=FORMATS,
    all_required=True,
    loose=True,
    most_properties=5_000,
    most_listed=1_000,
    deepest=10,
)

CHAT_TEMPLATE = switch(
    {"chat_template_kwargs": {"enable_thinking": True}}, {"chat_template_kwargs": {"enable_thinking": False}}
)
GATEWAY = efforts(
    "minimal low medium high xhigh",
    key="reasoning.effort",
    off={"reasoning": {"enabled": False}},
    budget=lambda tokens: {"reasoning": {"max_tokens": tokens}},
)
"""Gateways accept one form for all models behind them."""
EPHEMERAL = CacheMarks(
    short={"cache_control": {"type": "ephemeral"}}, long={"cache_control": {"type": "ephemeral", "ttl": "1h"}}
)
"""Claude's cache breakpoints, which gateways pass on."""


def list_fields(names: str) -> frozenset[OptionalField]:
    return frozenset(field for field in get_args(OptionalField) if field in names.split())
