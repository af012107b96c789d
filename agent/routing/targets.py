"""A target: one agent, or one router, among others; and what its router remembers about it.

A target may be shared by several routers, which then share what they know of it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, Protocol

from typing_extensions import override

from .. import errors
from ..context import Call
from ..costs import price
from ..tokens import estimate_prompt
from ..types import AgentRequest, AgentResponse, ProviderCapabilities, Usage
from ..types.policies import RateLimit
from .budgets import Reservation, SpendLedger
from .health import Health, Permit
from .rates import Entry, Rates
from .timings import Timings

if TYPE_CHECKING:
    from ..providers.hints import Allowance

USUAL_TOKENS = 300
"""Of an answer, where nothing is known."""


class Callee(Protocol):
    """What a router needs of the agents and routers it asks."""

    def one_call(self, name: str, *, streaming: bool) -> Call:
        """A call that tries once, and is noted under this name."""
        ...

    def as_asked(self, request: AgentRequest) -> AgentRequest:
        """The request with this one's own defaults, as it would be sent."""
        ...

    @property
    def capabilities(self) -> ProviderCapabilities: ...

    def named(self) -> tuple[str, str]:
        """Provider and model; of a router, its name and nothing."""
        ...

    def identity(self) -> tuple[Hashable, Hashable]:
        """What shares troubles with it: everything that uses its key, and everything that is the same model, too."""
        ...

    def own_tools(self, response: AgentResponse | None) -> Sequence[Any]:
        """The tools that it offers with every request."""
        ...


class Sized(Protocol):
    """A question, as far as its size matters."""

    @property
    def most_taken(self) -> int:
        """Tokens that question and answer surely do not exceed; measured when somebody asks."""
        ...


class Target:
    """An agent in a router, with its place and its limits.

    Args:
        agent: An Agent, a Router, or `provider:model`.
        name: What it is called in routes; by default as the agent is.
        weight: Its share of the requests, where a strategy shares them out.
        level: Targets of a higher level are asked when those of the lower ones cannot answer.
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
        self.rates = Rates(self.limit)
        self.timings = Timings()
        self.turn = 0.0
        """When its turn comes, where targets take turns: grows by the inverse of its weight each time."""
        self.health: Health = None  # type: ignore[assignment]  # given by its router, which knows who shares it
        self._calls: dict[bool, Call] = {}
        self._capabilities: ProviderCapabilities | None = None
        self._window: int | None = None
        self.in_order: Any = None
        """Its place where places are as given."""

    @property
    def callee(self) -> Callee:
        callee: Callee = self.agent
        return callee

    @cached_property
    def nested(self) -> bool:
        """Whether it is a router itself."""
        return self.callee.named()[1] == ""

    def at_ease(self, now: float, question: Sized) -> bool:
        """Whether nothing at all speaks against asking it now."""
        rates, health = self.rates, self.health
        return (
            (rates.unlimited or rates.has_plenty(question.most_taken))
            and health.breaker.healthy
            and health.parking.end <= now
            and health.key.end <= now
        )

    def with_agent(self, agent: Any) -> Target:
        """The same target for another agent, such as one with other settings; what is remembered stays shared."""
        limit = self.limit
        other = Target(agent, name=self.name, weight=self.weight, level=self.level, **limit.model_dump())
        other.rates, other.timings, other.health, other.turn = self.rates, self.timings, self.health, self.turn
        return other

    def call(self, *, streaming: bool) -> Call:
        call = self._calls.get(streaming)
        if call is None:
            call = self._calls[streaming] = self.callee.one_call(self.name, streaming=streaming)
        return call

    @property
    def capabilities(self) -> ProviderCapabilities:
        if self._capabilities is None:
            self._capabilities = self.callee.capabilities
            self._window = self._capabilities.max_context_tokens
        return self._capabilities

    @property
    def problem(self) -> str | None:
        """Why it cannot be asked at all, such as a missing key; None if it can."""
        if self._capabilities is None:
            try:
                _ = self.capabilities
            except errors.AgentError as error:
                return error.message
        return None

    @property
    def provider(self) -> str:
        return self.callee.named()[0]

    @property
    def model(self) -> str:
        return self.callee.named()[1]

    @property
    def known_as(self) -> frozenset[str]:
        """Names by which a request can ask for it."""
        provider, model = self.callee.named()
        return frozenset((self.name, model, f"{provider}:{model}")) if model else frozenset((self.name,))

    @property
    def in_flight(self) -> int:
        """Requests under way."""
        return self.rates.in_flight

    @property
    def window(self) -> int | None:
        """Tokens of prompt and answer that it can take."""
        if self._capabilities is None:
            _ = self.capabilities
        return self._window

    def price(self, request: AgentRequest, *, cached: int = 0, tokens: int | None = None) -> float | None:
        """US dollars that the request will probably cost here; None if the price is not known.

        Args:
            cached: How many tokens of the prompt the vendor still has in its cache.
            tokens: Of the prompt, if that is known; otherwise it is estimated.
        """
        asked = self.callee.as_asked(request)
        prompt = estimate_prompt(asked).tokens if tokens is None else tokens
        usual = self.timings.usual_tokens() or USUAL_TOKENS
        answer = round(usual if asked.max_tokens is None else min(usual, asked.max_tokens))
        return self._dollars(asked, prompt, answer, min(cached, prompt))

    def most_dollars(self, asked: AgentRequest) -> float | None:
        """The most that a request can cost here; None if that is not known."""
        answer = asked.max_tokens or self.capabilities.max_output_tokens
        if answer is None:
            return None
        return self._dollars(asked, estimate_prompt(asked).high, answer, 0)

    def _dollars(self, asked: AgentRequest, prompt: int, answer: int, cached: int) -> float | None:
        provider, model = self.callee.named()
        usage = Usage(prompt_tokens=prompt, completion_tokens=answer, cache_read_tokens=cached)
        cost = price(usage, provider=provider, models=(asked.model or model,))
        return None if cost is None else cost.dollars

    @override
    def __repr__(self) -> str:
        return f"Target({self.name!r})"


_GROUNDS = {
    "trial": "to find out whether it is back",
    "probe": "to find out whether it is back",
    "panic": "no target is healthy",
}


class Admission:
    """One request at one target: what was taken for it, to be given back whatever becomes of it."""

    __slots__ = ("_entry", "_ledger", "_permit", "_reservation", "_settled", "started", "target", "why")

    def __init__(
        self,
        target: Target,
        permit: Permit,
        entry: Entry,
        started: float,
        why: str,
        ledger: SpendLedger | None = None,
        reservation: Reservation | None = None,
    ) -> None:
        self.target = target
        self.started = started
        self.why = _GROUNDS.get(permit.kind, why)
        """Why this target."""
        self._permit = permit
        self._entry = entry
        self._ledger = ledger
        self._reservation = reservation
        self._settled = False

    def succeeded(self, response: AgentResponse, now: float, first: float | None) -> None:
        usage = response.usage
        self.target.timings.observe(
            now, now - self.started, None if first is None else first - self.started, _answered(usage)
        )
        self._settle(now, False, usage, None if self._reservation is None else response.cost_estimate)

    def failed(self, now: float, *, blamed: bool | None, partial: AgentResponse | None = None) -> None:
        """It failed; None if nobody knows whose fault that is."""
        cost = None if partial is None or self._reservation is None else partial.cost_estimate
        self._settle(now, blamed, None if partial is None else partial.usage, cost)

    def cancelled(self, now: float, usage: Usage | None, cost: float | None) -> None:
        """It was given up because another was faster; it will be billed all the same."""
        self._settle(now, None, usage, cost)

    def abandon(self) -> None:
        """Nothing is known of it any more. After it has been settled, this does nothing."""
        if not self._settled:
            self._settle(self.started, None, None, None)

    def _settle(self, now: float, failed: bool | None, usage: Usage | None, cost: float | None) -> None:
        self._settled = True
        self.target.health.breaker.settle(self._permit, now, failed=failed)
        self.target.rates.end(self._entry, None if usage is None else usage.total_tokens)
        if self._ledger is not None and self._reservation is not None:
            self._ledger.settle(self._reservation, cost or 0.0)


def _answered(usage: Usage | None) -> int:
    return 0 if usage is None else usage.completion_tokens


def learn_from_headers(target: Target, headers: Mapping[str, str] | None, now: float) -> None:
    """What the vendor says may still be asked."""
    if not headers:
        return
    read = _reader_of(tuple(headers))
    if read is not None:
        target.rates.learn(*read(headers, now))


@lru_cache(maxsize=256)
def _reader_of(names: tuple[str, ...]) -> Callable[[Mapping[str, str], float], Allowance] | None:
    if not any("ratelimit" in name for name in names):
        return None
    from ..providers.hints import allowance_reader  # reading dates and durations takes a while to import

    return allowance_reader(names)
