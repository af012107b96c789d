"""Targets of a router: an agent or a nested router with its limits, health and response times.

Routers that share a target share its health, limits and response times.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any, Protocol

from typing_extensions import override

from .. import errors
from ..engine.context import Call
from ..models.prices import price
from ..models.token_estimates import estimate_prompt
from ..providers.rate_limit_hints import RemainingLimits, make_limit_reader
from ..types import AgentRequest, AgentResponse, ProviderCapabilities, Usage
from ..types.routing import BreakerConfig, RateLimit
from .health import Cooldown, Health, Permit, Timings
from .limits import Entry, RateLimiter, Reservation, SpendLedger

USUAL_TOKENS = 300
"""Tokens of an answer, if nothing is known about the target's answers."""


class Callee(Protocol):
    """Interface of agents and routers inside a router."""

    def attempt_call(self, name: str, *, streaming: bool) -> Call:
        """Return a call that makes one attempt, recorded under this name."""
        ...

    def apply_defaults(self, request: AgentRequest) -> AgentRequest:
        """Return the request with the defaults of this agent, as it is sent."""
        ...

    @property
    def capabilities(self) -> ProviderCapabilities: ...

    def provider_and_model(self) -> tuple[str, str]:
        """Provider and model; a router returns its name and an empty string."""
        ...

    def identity(self) -> tuple[Hashable, Hashable]:
        """Two keys: one shared by everything behind the same API key, one by the same model behind it."""
        ...

    def own_tools(self, response: AgentResponse | None) -> Sequence[Any]:
        """Tools that are offered with every request."""
        ...


class Sized(Protocol):
    """A request whose size can be estimated."""

    @property
    def most_tokens(self) -> int:
        """Upper bound for the tokens of prompt and answer."""
        ...


class Target:
    """An agent in a router, with its weight, level and limits.

    Args:
        agent: An Agent, a Router, or `provider:model`.
        name: Its name in routes; by default the agent's.
        weight: Its share of the requests, for strategies that distribute them.
        level: Targets of a higher level are asked when no target of a lower one can answer.
        rpm: Requests in any 60 seconds.
        tpm: Tokens in any 60 seconds.
        concurrency: Requests at the same time.
    """

    def __init__(
        self,
        agent: Any,
        *,
        name: str | None = None,
        weight: float = 1.0,
        level: int = 0,
        rpm: int | None = None,
        tpm: int | None = None,
        concurrency: int | None = None,
    ) -> None:
        if not weight > 0 or weight == float("inf"):
            raise errors.ConfigurationError(
                f"The weight of a target is {weight}.", field="weight", fix="Use a number above 0."
            )
        self.agent = agent
        self.name = name or ""
        self.weight = weight
        self.level = level
        self.limit = RateLimit(rpm=rpm, tpm=tpm, concurrency=concurrency)
        self.limiter = RateLimiter(self.limit)
        self.timings = Timings()
        self.turn = 0.0
        """Its next turn, for strategies with turns. Grows by the inverse of its weight."""
        self.health: Health = None  # type: ignore[assignment]  # set by its router
        self._calls: dict[bool, Call] = {}
        self._capabilities: ProviderCapabilities | None = None
        self._window: int | None = None

    @property
    def callee(self) -> Callee:
        callee: Callee = self.agent
        return callee

    @cached_property
    def is_router(self) -> bool:
        """Whether the target is a router."""
        return self.callee.provider_and_model()[1] == ""

    def is_available(self, now: float, request: Sized) -> bool:
        """Whether the target is healthy, not cooling down, and far from its limits."""
        limiter, health = self.limiter, self.health
        return (
            (limiter.unlimited or limiter.has_plenty(request.most_tokens))
            and health.breaker.healthy
            and health.cooldown.end <= now
            and health.key_cooldown.end <= now
        )

    def with_agent(self, agent: Any) -> Target:
        """Return the target with another agent. Health, limits and response times stay shared."""
        limit = self.limit
        other = Target(agent, name=self.name, weight=self.weight, level=self.level, **limit.model_dump())
        other.limiter, other.timings, other.health, other.turn = self.limiter, self.timings, self.health, self.turn
        return other

    def call(self, *, streaming: bool) -> Call:
        """Return the call that makes one attempt at this target."""
        call = self._calls.get(streaming)
        if call is None:
            call = self._calls[streaming] = self.callee.attempt_call(self.name, streaming=streaming)
        return call

    @property
    def capabilities(self) -> ProviderCapabilities:
        """Capabilities of the model."""
        if self._capabilities is None:
            self._capabilities = self.callee.capabilities
            self._window = self._capabilities.max_context_tokens
        return self._capabilities

    @property
    def problem(self) -> str | None:
        """Why the target cannot be asked at all, such as a missing key; None if it can."""
        if self._capabilities is None:
            try:
                _ = self.capabilities
            except errors.AgentError as error:
                return error.message
        return None

    @property
    def provider(self) -> str:
        """Name of the provider."""
        return self.callee.provider_and_model()[0]

    @property
    def model(self) -> str:
        """Name of the model."""
        return self.callee.provider_and_model()[1]

    @property
    def known_as(self) -> frozenset[str]:
        """Names by which a request can select the target."""
        provider, model = self.callee.provider_and_model()
        return frozenset((self.name, model, f"{provider}:{model}")) if model else frozenset((self.name,))

    @property
    def in_flight(self) -> int:
        """Number of requests in flight."""
        return self.limiter.in_flight

    @property
    def window(self) -> int | None:
        """Context window in tokens."""
        if self._capabilities is None:
            _ = self.capabilities
        return self._window

    def price(self, request: AgentRequest, *, cached: int = 0, tokens: int | None = None) -> float | None:
        """Estimate the cost of a request in US dollars; None if the price is not known.

        Args:
            cached: Tokens of the prompt that are in the vendor's cache.
            tokens: Tokens of the prompt; estimated by default.
        """
        asked = self.callee.apply_defaults(request)
        prompt = estimate_prompt(asked).tokens if tokens is None else tokens
        usual = self.timings.usual_tokens() or USUAL_TOKENS
        answer = round(usual if asked.max_tokens is None else min(usual, asked.max_tokens))
        return self._dollars(asked, prompt, answer, min(cached, prompt))

    def most_dollars(self, asked: AgentRequest) -> float | None:
        """Upper bound for the cost of a request in US dollars; None if it is not known."""
        answer = asked.max_tokens or self.capabilities.max_output_tokens
        if answer is None:
            return None
        return self._dollars(asked, estimate_prompt(asked).high, answer, 0)

    def _dollars(self, asked: AgentRequest, prompt: int, answer: int, cached: int) -> float | None:
        provider, model = self.callee.provider_and_model()
        usage = Usage(prompt_tokens=prompt, completion_tokens=answer, cache_read_tokens=cached)
        cost = price(usage, provider=provider, models=(asked.model or model,))
        return None if cost is None else cost.dollars

    @override
    def __repr__(self) -> str:
        return f"Target({self.name!r})"


_REASONS = {
    "trial": "to find out whether it is back",
    "probe": "to find out whether it is back",
    "panic": "no target is healthy",
}


class Admission:
    """Capacity reserved for one request at one target, returned whatever the outcome."""

    __slots__ = ("_entry", "_ledger", "_permit", "_reservation", "_settled", "reason", "started", "target")

    def __init__(
        self,
        target: Target,
        permit: Permit,
        entry: Entry,
        started: float,
        reason: str,
        ledger: SpendLedger | None = None,
        reservation: Reservation | None = None,
    ) -> None:
        self.target = target
        self.started = started
        self.reason = _REASONS.get(permit.kind, reason)
        """Why this target is asked."""
        self._permit = permit
        self._entry = entry
        self._ledger = ledger
        self._reservation = reservation
        self._settled = False

    def succeeded(self, response: AgentResponse, now: float, first: float | None) -> None:
        """The request was answered, with the first event at a time."""
        usage = response.usage
        self.target.timings.observe(
            now, now - self.started, None if first is None else first - self.started, _answered(usage)
        )
        self._settle(now, False, usage, None if self._reservation is None else response.cost_estimate)

    def failed(self, now: float, *, blamed: bool | None, partial: AgentResponse | None = None) -> None:
        """The request failed. `blamed` is None if it is unknown whether the target is at fault."""
        cost = None if partial is None or self._reservation is None else partial.cost_estimate
        self._settle(now, blamed, None if partial is None else partial.usage, cost)

    def cancelled(self, now: float, usage: Usage | None, cost: float | None) -> None:
        """The request was given up because another was faster. It is billed all the same."""
        self._settle(now, None, usage, cost)

    def abandon(self) -> None:
        """Return the capacity with an unknown outcome, unless it was returned already."""
        if not self._settled:
            self._settle(self.started, None, None, None)

    def _settle(self, now: float, failed: bool | None, usage: Usage | None, cost: float | None) -> None:
        self._settled = True
        self.target.health.breaker.settle(self._permit, now, failed=failed)
        self.target.limiter.release(self._entry, None if usage is None else usage.total_tokens)
        if self._ledger is not None and self._reservation is not None:
            self._ledger.settle(self._reservation, cost or 0.0)


def _answered(usage: Usage | None) -> int:
    return 0 if usage is None else usage.completion_tokens


def name_targets(targets: Sequence[Target]) -> None:
    """Name targets after their agents. Duplicates get a number."""
    taken: set[str] = set()
    for target in targets:
        provider, model = target.callee.provider_and_model()
        plain = target.name or (f"{provider}:{model}" if model else provider)
        name, number = plain, 1
        while name in taken:
            number += 1
            name = f"{plain}#{number}"
        if target.name and name != target.name and target.health is None:
            raise errors.ConfigurationError(
                f"Two targets are named {target.name!r}.", field="targets", fix="Use a different name for each."
            )
        target.name = name
        taken.add(name)


def share_health(targets: Sequence[Target], config: BreakerConfig) -> None:
    """Give targets with the same model and key one health, and targets with the same key one key cooldown."""
    keys: dict[Hashable, Cooldown] = {}
    known: dict[Hashable, Health] = {}
    for target in targets:
        access, whole = target.callee.identity()
        if target.health is not None:
            keys.setdefault(access, target.health.key_cooldown)
            known.setdefault(whole, target.health)
    for target in targets:
        if target.health is None:
            access, whole = target.callee.identity()
            if whole not in known:
                known[whole] = Health(config, keys.setdefault(access, Cooldown()))
            target.health = known[whole]


def merge_tools(targets: Sequence[Target], response: AgentResponse | None) -> list[Any]:
    """Tools of the targets. Of tools with the same name, the answering target's wins."""
    attempts = response.route if response is not None else ()
    answered = next((attempt.target for attempt in reversed(attempts) if attempt.error is None), None)
    found: dict[str, Any] = {}
    for target in sorted(targets, key=lambda target: target.name != answered):
        for tool in target.callee.own_tools(response):
            found.setdefault(getattr(tool, "name", ""), tool)
    return list(found.values())


def learn_from_headers(target: Target, headers: Mapping[str, str] | None, now: float) -> None:
    """Update the limits of a target from the headers of a response."""
    if not headers:
        return
    read = _reader_of(tuple(headers))
    if read is not None:
        target.limiter.learn(*read(headers, now))


@lru_cache(maxsize=256)
def _reader_of(names: tuple[str, ...]) -> Callable[[Mapping[str, str], float], RemainingLimits] | None:
    if not any("ratelimit" in name for name in names):
        return None
    return make_limit_reader(names)
