"""Request profile: required capabilities, length and conversation of one request, computed on demand."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from math import inf
from typing import NamedTuple

from ..models.token_estimates import TokenCount, estimate_prompt, find_framing
from ..types import (
    AgentRequest,
    AudioContent,
    DocumentContent,
    ImageContent,
    Message,
    Part,
    TextContent,
    ThinkingLevel,
    ToolResult,
    ToolSpec,
)
from .limits import SpendLedger
from .targets import Target

_NEED_OF_PART = {ImageContent: "vision", DocumentContent: "documents", AudioContent: "audio"}
_MEDIA = 100_000
"""Upper bound for the tokens of an image or document. A request with media is always measured properly."""
_PER_MESSAGE = 100
_PER_PART = 20

NO_RANDOM = 1.0
"""Value of `RequestProfile.random` for strategies that need no randomness."""


class RequestProfile:
    """One request as a strategy sees it."""

    def __init__(self, request: AgentRequest, streaming: bool, now: float, random: float) -> None:
        self.request = request
        self.streaming = streaming
        self.now = now
        self.random = random
        """A random number from 0 up to 1, for strategies that need one."""
        self._counts: dict[object, TokenCount] = {}
        self._asked: dict[int, AgentRequest] = {}

    @cached_property
    def _measure(self) -> _Measure:
        return _measure(self.request.messages)

    def asked(self, target: Target) -> AgentRequest:
        """Return the request as a target sends it: with its own system prompt, sampling and tools."""
        asked = self._asked.get(id(target))
        if asked is None:
            asked = self._asked[id(target)] = target.callee.apply_defaults(self.request)
        return asked

    @cached_property
    def needs(self) -> frozenset[str]:
        """Capabilities that the request requires."""
        needs = self._measure.needs
        return needs | {"tools"} if self.request.tools else needs

    def fits_window(self, window: float) -> bool:
        """Whether the request surely fits a context window and needs no capability."""
        request = self.request
        if request.tools:
            return False
        if not request.messages and request.system is None:
            return 2 * len(request.input or "") + 2 * _PER_MESSAGE + (request.max_tokens or 0) <= window
        return not self.needs and self.most_tokens <= window

    @cached_property
    def wishes(self) -> frozenset[str]:
        """Capabilities that the request requires or could use."""
        found = set(self.needs)
        if self.request.output_schema is not None:
            found.add("native_schema_output")
        if self.request.thinking not in (None, ThinkingLevel.OFF):
            found.add("thinking")
        return frozenset(found)

    @cached_property
    def most_prompt_tokens(self) -> int:
        """Upper bound for the tokens of the prompt."""
        request = self.request
        letters = self._measure.letters + len(request.input or "") + len(request.system or "")
        tools = sum(2 * len(repr(tool)) for tool in request.tools)
        return 2 * letters + tools + _PER_MESSAGE * (len(request.messages) + 2)

    @property
    def most_tokens(self) -> int:
        """Upper bound for the tokens of prompt and answer, if the answer is limited."""
        return self.most_prompt_tokens + (self.request.max_tokens or 0)

    def tokens(self, target: Target) -> TokenCount:
        """Estimate the tokens of the prompt for a target's model."""
        asked = self.asked(target)
        family = find_framing(asked.model or "")
        count = self._counts.get(family)
        if count is None:
            count = self._counts[family] = estimate_prompt(asked)
        return count

    @cached_property
    def key(self) -> bytes:
        """Key of the conversation, the same for each of its turns: from the session, or else from its beginning."""
        digest = blake2b(digest_size=16)
        request = self.request
        if request.session_id is not None:
            digest.update(b"session\0" + request.session_id.encode(errors="replace"))
            return digest.digest()
        digest.update((request.system or "").encode(errors="replace"))
        for tool in request.tools:
            name = tool.name if isinstance(tool, ToolSpec) else str(tool.get("name"))
            digest.update(b"\0" + name.encode(errors="replace"))
        first = next(iter(request.messages), None)
        opening = (request.input or "") if first is None else first.text
        digest.update(b"\0\0" + opening.encode(errors="replace"))
        return digest.digest()


class _Measure(NamedTuple):
    """Characters of a conversation, and the capabilities that its parts require."""

    letters: int
    needs: frozenset[str]


def _measure(messages: Sequence[Message]) -> _Measure:
    letters = 0
    needs: set[str] = set()
    for message in messages:
        content = message.content
        if isinstance(content, str):
            letters += len(content)
            continue
        letters += sum(map(_letters, content))
        needs |= {_NEED_OF_PART[type(part)] for part in _parts(content) if type(part) in _NEED_OF_PART}
    return _Measure(letters, frozenset(needs))


def _parts(content: Iterable[Part]) -> Iterable[Part]:
    for part in content:
        yield part
        if isinstance(part, ToolResult) and not isinstance(part.content, str):
            yield from part.content


def _letters(part: Part) -> int:
    if type(part) is TextContent:
        return len(part.text) + _PER_PART
    if isinstance(part, ToolResult):
        inner = part.content
        return len(inner) if isinstance(inner, str) else sum(_letters(one) for one in inner)
    return _MEDIA if type(part) in _NEED_OF_PART else len(repr(part))


_NEEDS = {"tools": "call tools", "vision": "take images", "documents": "take documents", "audio": "take audio"}


@dataclass(frozen=True, slots=True)
class Exclusion:
    """Why a target is not asked now."""

    reason: str
    seconds: float | None = None
    """Seconds until it can be asked; None if waiting does not help."""
    health: bool = False
    """Whether only its open breaker excludes it. If that holds for all targets, the request is sent to one of them."""
    money: bool = False
    """Whether a spend limit excludes it."""


def exclude_incapable(profile: RequestProfile, target: Target) -> Exclusion | None:
    """Exclude a target that cannot serve the request."""
    if (problem := target.problem) is not None:
        return Exclusion(problem)
    if profile.needs:
        capable = target.capabilities
        for need in profile.needs:
            if not getattr(capable, need):
                return Exclusion(f"it cannot {_NEEDS[need]}")
    window = target.window
    if window is None:
        return None
    answer = profile.request.max_tokens or 0
    if profile.most_prompt_tokens + answer <= window:
        return None
    count = profile.tokens(target)
    if count.low + min(answer, target.capabilities.max_output_tokens or answer) > window:
        return Exclusion(f"its window is {window:,} tokens, and the request has about {count.tokens:,}")
    return None


def exclude_unavailable(target: Target, profile: RequestProfile, now: float) -> Exclusion | None:
    """Exclude a target that is cooling down, at a rate limit, or has an open breaker."""
    health = target.health
    if target.is_available(now, profile):
        return None
    seconds, why = health.rest(now)
    if seconds > 0:
        return Exclusion(why, seconds if seconds < inf else None)
    tokens = profile.tokens(target).tokens if target.limiter.limits_tokens else 0
    wait = target.limiter.wait_seconds(tokens, now)
    if wait > 0:
        return Exclusion("it is at its rate limit", wait)
    if not health.breaker.admits(now):
        return Exclusion("its breaker is open", health.breaker.seconds_shut(now), health=True)
    return None


def exclude_too_expensive(target: Target, profile: RequestProfile, ledger: SpendLedger, now: float) -> Exclusion | None:
    """Exclude a target whose price would exceed a spend limit."""
    dollars = target.most_dollars(profile.asked(target))
    if dollars is None:
        unknown = Exclusion("what it would cost is not known, and there is a spend limit", money=True)
        return unknown if ledger.refuses_unpriced else None
    refusal = ledger.refusal(dollars, profile.request.metadata, now)
    if refusal is None:
        return None
    return Exclusion(f"it may cost ${dollars:.6f}, and {refusal}", refusal.seconds, money=True)
