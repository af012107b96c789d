"""Request profile: capabilities, size and conversation of a request, and filters of targets."""

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
    tool_name,
)
from .limits import SpendLedger
from .targets import CostEstimate, Target

_NEED_OF_PART = {ImageContent: "vision", DocumentContent: "documents", AudioContent: "audio"}
_MEDIA_CHARACTERS = 100_000
"""Characters counted for an image or document, so that its tokens are always estimated."""
_MESSAGE_TOKENS = 100
_PART_CHARACTERS = 20

NO_RANDOM = 1.0
"""Value of `RequestProfile.random` for strategies that need no randomness."""


class RequestProfile:
    """Properties of one request, computed on demand for filters and strategies."""

    def __init__(self, request: AgentRequest, streaming: bool, now: float, random: float) -> None:
        self.request = request
        self.streaming = streaming
        self.now = now
        self.random = random
        """Random number in [0, 1) for strategies with `needs_random`."""
        self._counts: dict[object, TokenCount] = {}
        self._requests: dict[int, AgentRequest] = {}
        self._costs: dict[tuple[int, int], CostEstimate | None] = {}

    @cached_property
    def _measure(self) -> _Measure:
        return _measure(self.request.messages)

    def request_for(self, target: Target) -> AgentRequest:
        """Return the request with the defaults of a target: its system prompt, sampling and tools."""
        request = self._requests.get(id(target))
        if request is None:
            request = self._requests[id(target)] = target.callee.apply_defaults(self.request)
        return request

    @cached_property
    def needs(self) -> frozenset[str]:
        """Capabilities that the request requires."""
        needs = self._measure.needs
        return needs | {"tools"} if self.request.tools else needs

    @cached_property
    def useful_capabilities(self) -> frozenset[str]:
        """Capabilities that the request requires or could use."""
        capabilities = set(self.needs)
        if self.request.output_schema is not None:
            capabilities.add("native_schema_output")
        if self.request.thinking not in (None, ThinkingLevel.OFF):
            capabilities.add("thinking")
        return frozenset(capabilities)

    @cached_property
    def most_prompt_tokens(self) -> int:
        """Upper bound for the tokens of the prompt."""
        request = self.request
        characters = self._measure.characters + len(request.input or "") + len(request.system or "")
        tools = sum(2 * len(repr(tool)) for tool in request.tools)
        return 2 * characters + tools + _MESSAGE_TOKENS * (len(request.messages) + 2)

    def tokens(self, target: Target) -> TokenCount:
        """Estimate the tokens of the prompt for a target's model."""
        request = self.request_for(target)
        framing = find_framing(request.model or "")
        count = self._counts.get(framing)
        if count is None:
            count = self._counts[framing] = estimate_prompt(request)
        return count

    def estimate_cost(self, target: Target) -> CostEstimate | None:
        """Estimate the cost at a target; None if its price is not known. Calculated again if it has learned."""
        key = id(target), target.estimate_response_tokens()
        if key not in self._costs:
            self._costs[key] = target.estimate_cost(self.request_for(target), self.tokens(target).high)
        return self._costs[key]

    @cached_property
    def key(self) -> bytes:
        """Key of the conversation, equal for all its turns: a hash of the session id or first messages."""
        digest = blake2b(digest_size=16)
        request = self.request
        if request.session_id is not None:
            digest.update(b"session\0" + request.session_id.encode(errors="replace"))
            return digest.digest()
        digest.update((request.system or "").encode(errors="replace"))
        for tool in request.tools:
            digest.update(b"\0" + str(tool_name(tool)).encode(errors="replace"))
        first = next(iter(request.messages), None)
        opening = (request.input or "") if first is None else first.text
        digest.update(b"\0\0" + opening.encode(errors="replace"))
        return digest.digest()


class _Measure(NamedTuple):
    """Characters of a conversation, and the capabilities that its parts require."""

    characters: int
    needs: frozenset[str]


def _measure(messages: Sequence[Message]) -> _Measure:
    characters = 0
    needs: set[str] = set()
    for message in messages:
        content = message.content
        if isinstance(content, str):
            characters += len(content)
            continue
        characters += sum(map(_count_characters, content))
        needs |= {_NEED_OF_PART[type(part)] for part in _parts(content) if type(part) in _NEED_OF_PART}
    return _Measure(characters, frozenset(needs))


def _parts(content: Iterable[Part]) -> Iterable[Part]:
    for part in content:
        yield part
        if isinstance(part, ToolResult) and not isinstance(part.content, str):
            yield from part.content


def _count_characters(part: Part) -> int:
    if type(part) is TextContent:
        return len(part.text) + _PART_CHARACTERS
    if isinstance(part, ToolResult):
        inner = part.content
        return len(inner) if isinstance(inner, str) else sum(_count_characters(one) for one in inner)
    return _MEDIA_CHARACTERS if type(part) in _NEED_OF_PART else len(repr(part))


_CAPABILITY_NAMES = {"tools": "tools", "vision": "images", "documents": "documents", "audio": "audio"}


@dataclass(frozen=True, slots=True)
class Exclusion:
    """Why a target is excluded."""

    reason: str
    seconds: float | None = None
    """Seconds until it becomes available; None if waiting does not help."""
    health: bool = False
    """Whether only its open circuit breaker excludes it. If that holds for all targets, one is tried anyway."""
    money: bool = False
    """Whether a spend limit excludes it."""


def exclude_incapable(profile: RequestProfile, target: Target) -> Exclusion | None:
    """Exclude a target that lacks a required capability or has too small a context window."""
    if (problem := target.problem) is not None:
        return Exclusion(problem)
    if profile.needs:
        capabilities = target.capabilities
        for need in profile.needs:
            if not getattr(capabilities, need):
                return Exclusion(f"does not support {_CAPABILITY_NAMES[need]}")
    window = target.window
    if window is None:
        return None
    completion = profile.request.max_tokens or 0
    if profile.most_prompt_tokens + completion <= window:
        return None
    count = profile.tokens(target)
    if count.low + min(completion, target.capabilities.max_output_tokens or completion) > window:
        return Exclusion(f"context window of {window:,} tokens is too small for about {count.tokens:,}")
    return None


def exclude_unavailable(target: Target, profile: RequestProfile, now: float) -> Exclusion | None:
    """Exclude a target that is cooling down, at a rate limit, or has an open circuit breaker."""
    health = target.health
    seconds, reason = health.longest_cooldown(now)
    if seconds > 0:
        return Exclusion(reason, seconds if seconds < inf else None)
    tokens = profile.tokens(target).tokens if target.limiter.limits_tokens else 0
    wait = target.limiter.wait_seconds(tokens, now)
    if wait > 0:
        return Exclusion("rate limit reached", wait)
    if not health.breaker.admits(now):
        return Exclusion("circuit breaker open", health.breaker.seconds_until_probe(now), health=True)
    return None


def exclude_too_expensive(
    target: Target, profile: RequestProfile, ledger: SpendLedger, now: float, *, is_shared: bool = False
) -> Exclusion | None:
    """Exclude a target whose expected cost would exceed a spend limit. A shared state checks its own."""
    cost = profile.estimate_cost(target)
    if cost is None:
        return Exclusion("unknown price under a spend limit", money=True) if ledger.refuses_unpriced else None
    refusal = None if is_shared else ledger.find_refusal(*cost, profile.request.metadata, now)
    if refusal is None:
        return None
    return Exclusion(f"expected to cost ${cost.expected:.6f}; {refusal}", refusal.seconds, money=True)
