"""How vendors differ in speaking Chat Completions, as data.

Nothing here reads or writes anything: the codec asks a dialect what a vendor calls things, what it refuses, and what it
wants back. A vendor is one `Dialect`; what is true of some of its models only says which, as a regular expression.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal

from ...types import ProviderCapabilities, ThinkingLevel

API = "openai-chat"

OPAQUE_KEYS = ("reasoning_details", "extra_content", "thought_signature")
"""Parts of a message that mean something only to the vendor that made them, and must be sent back as they came."""

SIGNED_CONTENT = "content"
"""What `provider_data` of thinking calls the signed blocks that stand before the text of its message."""

MAX_NAME_LENGTH = 64
"""Of a tool name."""

Setting = Literal["temperature", "top_p", "seed", "stop", "logprobs", "parallel_tool_calls", "name"]
ToolChoice = Literal["auto", "none", "required", "named"]
Fragment = Mapping[str, Any]
"""What is joined to a body, or to a block of one."""

_LEVELS = tuple(ThinkingLevel)


@lru_cache(maxsize=1024)
def matches(models: str, model: str) -> bool:
    """Whether a regular expression for model names finds this one. Cached: calls repeat the same few."""
    return re.search(models, model) is not None


@dataclass(frozen=True, slots=True)
class Thinking:
    """How some models are told how hard to think: what goes into the body, by level."""

    levels: Mapping[ThinkingLevel, Fragment]
    """Empty for models that do not think at all. Without OFF, thinking cannot be stopped."""
    models: str = ""
    refuses: frozenset[Setting] = frozenset()
    """What these models do not take while they think."""

    def nearest(self, level: ThinkingLevel) -> ThinkingLevel | None:
        """The level itself, or the one that comes closest; of two, the higher. None: there is nothing to say."""
        if level in self.levels or level is ThinkingLevel.OFF:
            return level if level in self.levels else None
        known = [other for other in self.levels if other is not ThinkingLevel.OFF]
        rank = _LEVELS.index
        return min(known, key=lambda other: (abs(rank(other) - rank(level)), -rank(other)), default=None)


def efforts(
    words: str,
    *,
    off: Fragment | None = None,
    on: Fragment | None = None,
    key: str = "reasoning_effort",
    models: str = "",
    refuses: frozenset[Setting] = frozenset(),
) -> Thinking:
    """Thinking by words of effort, such as "low medium high xhigh=max"; `on` goes along with each of them.

    A key with a dot in it is an object's: "reasoning.effort" is {"reasoning": {"effort": …}}.
    """
    levels: dict[ThinkingLevel, Fragment] = {} if off is None else {ThinkingLevel.OFF: off}
    outer, _, inner = key.partition(".")
    for entry in words.split():
        level, _, word = entry.partition("=")
        levels[ThinkingLevel(level)] = {**(on or {}), outer: {inner: word or level} if inner else word or level}
    return Thinking(levels, models, refuses)


def switch(on: Fragment, off: Fragment | None, *, models: str = "") -> Thinking:
    """Thinking that is on or off, and knows no levels."""
    return Thinking(
        {ThinkingLevel.MEDIUM: on} if off is None else {ThinkingLevel.OFF: off, ThinkingLevel.MEDIUM: on}, models
    )


@dataclass(frozen=True, slots=True)
class CacheMarks:
    """What marks the end of a prompt's part that shall be kept, on the content block that ends it."""

    short: Fragment
    long: Fragment
    models: str = ""
    whole_requests: bool = True
    """Whether a request that shall be kept as a whole is marked, too; a vendor that caches by itself needs no mark."""
    most: int = 4

    def fragment(self, hint: Literal["short", "long"]) -> Fragment:
        return self.short if hint == "short" else self.long


@dataclass(frozen=True, slots=True)
class CallIds:
    """What a vendor takes for the id of a call; another one is replaced by a hash of that length."""

    form: re.Pattern[str] = re.compile(r"[!-~]{1,128}")
    length: int = 24


STRICT_IDS = CallIds(re.compile(r"[a-zA-Z0-9_-]{1,64}"))
"""What Claude takes, and so every host that passes calls on to it."""


def _capabilities() -> ProviderCapabilities:
    return ProviderCapabilities.trusted(
        streaming=True,
        tools=True,
        structured_output=True,
        json_mode=True,
        vision=True,
        system_messages=True,
        native_schema_output=True,
        thinking=True,
        documents=True,
        audio=True,
    )


@dataclass(frozen=True, slots=True)
class Dialect:
    """How one vendor speaks Chat Completions."""

    name: str = API

    # Where it is, and how it is asked.
    base_url: str | None = None
    """May hold variables of the environment in braces: an address that differs from customer to customer."""
    resource_path: str = ""
    """Where the API is below a base_url that is only a host."""
    dated_path: str = ""
    """Used instead of `resource_path`, with {model} and {version}, where `version_variable` holds a date."""
    version_variable: str = ""
    base_url_variables: tuple[str, ...] = ()
    key_variables: tuple[str, ...] = ()
    key_required: bool = True
    key_header: str = "authorization"
    key_prefix: str = "Bearer "

    # What it calls things, and what it refuses.
    max_tokens_key: str = "max_tokens"
    completion_models: str | None = None
    """Models that take `max_completion_tokens`, and refuse the older name."""
    seed_key: str = "seed"
    required_word: str = "required"
    """The tool choice that lets the model choose the tool, but makes it call one."""
    tool_choices: frozenset[ToolChoice] = frozenset(("auto", "none", "required", "named"))
    strict: bool = True
    """Whether schemas may be marked as strict."""
    refused: tuple[tuple[str, frozenset[Setting]], ...] = ()
    """Settings that are left out, with a warning, by the models they are refused by ("" for all)."""
    most_stops: int = 4
    thinking: tuple[Thinking, ...] = (efforts("minimal low medium high xhigh", off={"reasoning_effort": "none"}),)
    """The first that fits the model counts."""
    developer_models: str | None = None
    """Models whose system messages are a developer's."""
    metadata: bool = False
    """Takes metadata with answers that it stores."""
    session_key: str | None = None
    """Where a session's name goes, which helps the vendor to find its prompt cache."""
    cache_marks: CacheMarks | None = None

    # Messages.
    call_ids: CallIds = CallIds()
    replayed: frozenset[str] = frozenset(OPAQUE_KEYS)
    """Keys of an assistant's message that mean something only to this vendor, and are sent back to it."""
    reasoning_key: str | None = None
    """Where a model's own reasoning is sent back as text; "content" for a block there. None: it is not wanted."""
    reasoning_filler: str | None = None
    """What stands there in a turn with calls that has no reasoning, if something must."""
    refusals: bool = False
    """Has a field for a refusal; elsewhere it is told as text."""
    result_images: bool = False
    """Takes images inside a tool's message; elsewhere they follow in a user's."""
    user_after_tool: bool = True
    """Takes a user's message right after a tool's; elsewhere the assistant says OK in between."""
    document_urls: bool = False
    """Fetches documents itself."""

    # Answers.
    done_sentinel: bool = True
    """Streams end with [DONE]. Without it, a finish reason, usage and the end of the bytes must do."""
    stream_usage: bool = True
    """Takes `stream_options` to report usage at the end of a stream."""

    capabilities: ProviderCapabilities = field(default_factory=_capabilities)

    def refuses(self, setting: str, model: str) -> bool:
        return any(setting in settings and matches(models, model) for models, settings in self.refused)

    def limit_key(self, model: str) -> str:
        newer = self.completion_models is not None and matches(self.completion_models, model)
        return "max_completion_tokens" if newer else self.max_tokens_key

    def thinking_of(self, model: str) -> Thinking:
        fitting = (thinking for thinking in self.thinking if matches(thinking.models, model))
        return next(fitting, _UNTOLD)


_UNTOLD = Thinking({})

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
"""Which efforts OpenAI's models take, wherever they are served."""

OPENAI_REASONING = r"(^|/)o[134](-|$)|gpt-[5-9]"
"""OpenAI's reasoning models, wherever they are served."""

OPENAI_REFUSALS: tuple[tuple[str, frozenset[Setting]], ...] = (
    (r"(^|/)o[134](-|$)|gpt-5(-mini|-nano|-pro)?(-\d{4}.*)?$", frozenset(("stop", "logprobs"))),
    (r"(^|/)o1(-|$)|(^|/)o3-mini", frozenset(("parallel_tool_calls",))),
)
"""What OpenAI's reasoning models answer with `unsupported_parameter`."""

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
    call_ids=CallIds(re.compile(r"[!-~]{1,40}")),
    refusals=True,
)

UNKNOWN = Dialect(
    base_url=OPENAI.base_url,
    key_variables=OPENAI.key_variables,
    base_url_variables=OPENAI.base_url_variables,
    completion_models=OPENAI_REASONING,
    refused=OPENAI_REFUSALS,
    thinking=(Thinking({}, models=r"gpt-3|gpt-4"), efforts("minimal low medium high xhigh", off=_NONE)),
    call_ids=STRICT_IDS,
)
"""Whoever calls itself compatible and is not known by name: asked only for what most understand.

Servers for open models pass over `max_completion_tokens` without a word, and write until they are stopped.
"""
