"""Targets of a router: an agent or a nested router with its limits, health and response times."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from typing_extensions import override

from .. import errors
from ..engine.context import Call
from ..errors import printable
from ..models.prices import price
from ..models.token_estimates import estimate_prompt
from ..providers.rate_limit_hints import RemainingLimits, make_limit_reader
from ..types import AgentRequest, AgentResponse, ProviderCapabilities, Usage
from ..types.option_errors import check_keywords
from ..types.routing import BreakerConfig, RateLimit
from ..types.secrets import Secret
from .health import Cooldown, Health, Permit, Timings
from .limits import RateLimiter, Reservation, SpendLedger, WindowEntry

if TYPE_CHECKING:
    from .shared_state import Lease

DEFAULT_RESPONSE_TOKENS = 300
"""Assumed length of a response from a target without observations."""


class RoutableClient(Protocol):
    """Interface of agents and routers as targets of a router."""

    def attempt_call(self, name: str, *, streaming: bool) -> Call:
        """Return a call that makes one attempt and records it under this name."""
        ...

    def apply_defaults(self, request: AgentRequest) -> AgentRequest:
        """Return the request with the defaults of this agent."""
        ...

    @property
    def capabilities(self) -> ProviderCapabilities: ...

    def provider_and_model(self) -> tuple[str, str]:
        """Return the provider and model; a router returns its name and an empty string."""
        ...

    def identity(self) -> tuple[Hashable, Hashable]:
        """Return two keys: one for the API key, one for the model behind that API key."""
        ...

    def own_tools(self, response: AgentResponse | None) -> Sequence[Any]:
        """Return the tools that are sent with every request."""
        ...


class CostEstimate(NamedTuple):
    """Expected and largest possible cost of a request in US dollars."""

    expected: float
    maximum: float


class Target:
    """An agent in a router, with its weight, level and limits.

    Args:
        agent: An Agent, a Router, or `provider:model`.
        name: Name in routes; by default `provider:model`.
        weight: Relative share of the requests, for strategies that distribute them.
        level: Fallback level. Targets of a level are used when those of all lower levels fail.
        rpm: Requests in any 60 seconds.
        tpm: Tokens in any 60 seconds.
        concurrency: Maximum number of concurrent requests.
    """

    @check_keywords("A target")
    def __init__(
        self,
        agent: Any,  # Any: an agent or a router, whose modules import this one
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
                f"The weight of a target is {weight}.", field="weight", fix="Use a finite number above 0."
            )
        self.agent = agent
        self.name: str = name or ""
        self.weight = weight
        self.level = level
        self.limit: RateLimit = RateLimit(rpm=rpm, tpm=tpm, concurrency=concurrency)
        self.limiter: RateLimiter = RateLimiter(self.limit)
        self.timings: Timings = Timings()
        self._account: str | None = None
        """Hash of the API key of a call, if it is not the target's own."""
        self._turn: list[float] = [0.0]  # a list, because copies share it
        self.health: Health = None  # type: ignore[assignment]  # set by its router
        self._calls: dict[bool, Call] = {}
        self._capabilities: ProviderCapabilities | None = None

    @property
    def turn(self) -> float:
        """Next turn, for strategies with turns. Each turn adds the inverse of the weight."""
        return self._turn[0]

    @turn.setter
    def turn(self, turn: float) -> None:
        self._turn[0] = turn

    @property
    def shared_name(self) -> str:
        """Name in a shared state. Accounts of one name are kept apart."""
        return self.name if self._account is None else f"{self.name}#{self._account}"

    def hash_key(self) -> str:
        """Return a hash of the API key and address, equal in all processes."""
        access = self.callee.identity()[0]
        parts = access if isinstance(access, tuple) else ()
        texts = [part.get_secret_value() if isinstance(part, Secret) else str(part) for part in parts]
        digest = blake2b(digest_size=8, key=b"api key")
        for part, text in zip(parts, texts, strict=True):
            if not isinstance(part, int):  # ids of objects differ in each process
                digest.update(text.encode(errors="replace") + b"\0")
        return digest.hexdigest()

    @property
    def callee(self) -> RoutableClient:
        callee: RoutableClient = self.agent
        return callee

    @cached_property
    def is_router(self) -> bool:
        return self.callee.provider_and_model()[1] == ""

    def with_agent(self, agent: Any, *, is_other_account: bool = False) -> Target:  # Any: as in the constructor
        """Return the target with another agent. Health and limits are shared in the same account only."""
        limit = self.limit
        other = Target(agent, name=self.name, weight=self.weight, level=self.level, **limit.model_dump())
        other.timings, other._turn = self.timings, self._turn
        if not is_other_account:
            other.limiter, other.health, other._account = self.limiter, self.health, self._account
        else:
            other._account = other.hash_key()
        return other

    def call(self, *, streaming: bool) -> Call:
        """Return the call that makes one attempt at this target."""
        call = self._calls.get(streaming)
        if call is None:
            call = self._calls[streaming] = self.callee.attempt_call(self.name, streaming=streaming)
        return call

    @property
    def capabilities(self) -> ProviderCapabilities:
        if self._capabilities is None:
            self._capabilities = self.callee.capabilities
        return self._capabilities

    @property
    def failure(self) -> errors.AgentError | None:
        """Configuration error that makes the target unusable, such as a missing key; None if it is usable."""
        try:
            _ = self.capabilities
        except errors.AgentError as error:
            return error.with_traceback(None)
        return None

    @property
    def problem(self) -> str | None:
        """Message of the failure, with its fix."""
        failure = self.failure
        return None if failure is None else " ".join(filter(None, (failure.message, failure.fix)))

    @property
    def provider(self) -> str:
        return self.callee.provider_and_model()[0]

    @property
    def model(self) -> str:
        return self.callee.provider_and_model()[1]

    @property
    def aliases(self) -> frozenset[str]:
        """Names by which a request or `only` can select the target."""
        provider, model = self.callee.provider_and_model()
        return frozenset((self.name, model, f"{provider}:{model}")) if model else frozenset((self.name,))

    @property
    def in_flight(self) -> int:
        return self.limiter.in_flight

    @property
    def window(self) -> int | None:
        """Context window in tokens."""
        return self.capabilities.max_context_tokens

    def price(self, request: AgentRequest, *, cached: int = 0, tokens: int | None = None) -> float | None:
        """Estimate the cost of a request in US dollars; None if the price is not known.

        Args:
            cached: Tokens of the prompt that the vendor has cached.
            tokens: Tokens of the prompt; estimated by default.
        """
        request = self.callee.apply_defaults(request)
        prompt = estimate_prompt(request).tokens if tokens is None else tokens
        usual = self.timings.usual_tokens() or DEFAULT_RESPONSE_TOKENS
        completion = round(usual if request.max_tokens is None else min(usual, request.max_tokens))
        return self._calculate_price(request, prompt, completion, min(cached, prompt))

    def estimate_response_tokens(self) -> int:
        """Number of tokens that a response is expected not to exceed."""
        return self.timings.estimate_tokens(DEFAULT_RESPONSE_TOKENS)

    def estimate_cost(self, request: AgentRequest, prompt: int) -> CostEstimate | None:
        """Estimate the cost of a request with a prompt of at most so many tokens; None if it is not known."""
        most = request.max_tokens or self.capabilities.max_output_tokens
        if most is None:
            return None
        completion = min(most, self.estimate_response_tokens())
        expected = self._calculate_price(request, prompt, completion, 0)
        maximum = self._calculate_price(request, prompt, most, 0)
        return None if expected is None or maximum is None else CostEstimate(expected, maximum)

    def _calculate_price(self, request: AgentRequest, prompt: int, completion: int, cached: int) -> float | None:
        provider, model = self.callee.provider_and_model()
        usage = Usage(prompt_tokens=prompt, completion_tokens=completion, cache_read_tokens=cached)
        cost = price(usage, provider=provider, models=(request.model or model,))
        return None if cost is None else cost.dollars

    @override
    @printable
    def __repr__(self) -> str:
        return f"Target({self.name!r})"


_REASONS = {
    "trial": "trial of a degraded target",
    "probe": "half-open probe",
    "panic": "no target is healthy",
}


@dataclass(slots=True)
class Admission:
    """Capacity reserved for one attempt at one target. It must be settled or abandoned exactly once."""

    target: Target
    permit: Permit
    entry: WindowEntry
    started: float
    reason: str
    """Why the target was chosen."""
    ledger: SpendLedger
    reservation: Reservation
    lease: Lease | None = None
    """Reservation in a shared state."""
    is_settled: bool = False

    def __post_init__(self) -> None:
        self.reason = _REASONS.get(self.permit.kind, self.reason)

    def settle_success(self, response: AgentResponse, now: float, first_event: float | None) -> None:
        """Record a response, and the time of its first event."""
        usage = response.usage
        first = None if first_event is None else first_event - self.started
        tokens = 0 if usage is None else usage.completion_tokens
        self.target.timings.observe(now, now - self.started, first, tokens)
        cost = response.cost_estimate if self._is_charged else None
        self.ledger.settle(self.reservation, cost or 0.0, is_response=cost is not None)
        self._settle(now, False, usage, cost)

    def settle_failure(self, now: float, *, blamed: bool | None, partial: AgentResponse | None = None) -> None:
        """Record a failure. `blamed` is the outcome for the circuit breaker; None to ignore it."""
        cost = partial.cost_estimate if partial is not None and self._is_charged else None
        self._settle(now, blamed, None if partial is None else partial.usage, cost)

    def settle_cancelled(self, now: float, usage: Usage | None, cost: float | None) -> None:
        """Record an attempt that lost a race. Its cost counts."""
        self._settle(now, None, usage, cost)

    def abandon(self) -> None:
        """Return the capacity without an outcome, unless it was settled."""
        if not self.is_settled:
            self._settle(self.started, None, None, None)

    @property
    def _is_charged(self) -> bool:
        """Whether a spend limit counts its cost."""
        return bool(self.reservation.accounts) or (self.lease is not None and bool(self.lease.accounts))

    def _settle(self, now: float, failed: bool | None, usage: Usage | None, cost: float | None) -> None:
        self.is_settled = True
        self.target.health.breaker.settle(self.permit, now, failed=failed)
        self.target.limiter.release(self.entry, None if usage is None else usage.total_tokens)
        self.ledger.settle(self.reservation, cost or 0.0)
        if self.lease is not None:
            self.lease.settle(None if usage is None else usage.total_tokens, cost or 0.0)


def name_targets(targets: Sequence[Target]) -> None:
    """Name targets after their agents. Duplicates get a number."""
    taken: set[str] = set()
    for target in targets:
        provider, model = target.callee.provider_and_model()
        base = target.name or (f"{provider}:{model}" if model else provider)
        name, number = base, 1
        while name in taken:
            number += 1
            name = f"{base}#{number}"
        if target.name and name != target.name and target.health is None:
            raise errors.ConfigurationError(
                f"Two targets are named {target.name!r}.", field="targets", fix="Use a different name for each."
            )
        target.name = name
        taken.add(name)


def share_health(targets: Sequence[Target], config: BreakerConfig) -> None:
    """Set the health of targets: shared per model and API key, with one cooldown per API key."""
    key_cooldowns: dict[Hashable, Cooldown] = {}
    healths: dict[Hashable, Health] = {}
    for target in targets:
        if target.health is not None:
            key_id, model_id = target.callee.identity()
            key_cooldowns.setdefault(key_id, target.health.key_cooldown)
            healths.setdefault(model_id, target.health)
    for target in targets:
        if target.health is None:
            key_id, model_id = target.callee.identity()
            if model_id not in healths:
                healths[model_id] = Health(config, key_cooldowns.setdefault(key_id, Cooldown()))
            target.health = healths[model_id]


def merge_tools(targets: Sequence[Target], response: AgentResponse | None) -> list[Any]:
    """Return the tools of all targets. Among tools of one name, that of the responding target wins."""
    attempts = response.route if response is not None else ()
    responder = next((attempt.target for attempt in reversed(attempts) if attempt.error is None), None)
    tools: dict[str, Any] = {}
    for target in sorted(targets, key=lambda target: target.name != responder):
        for tool in target.callee.own_tools(response):
            tools.setdefault(getattr(tool, "name", ""), tool)
    return list(tools.values())


def update_rate_limits(target: Target, headers: Mapping[str, str] | None, now: float) -> bool:
    """Update the rate limits of a target from the headers of a response. Returns whether they hold any."""
    read = _find_limit_reader(tuple(headers)) if headers else None
    if headers and read is not None:
        target.limiter.update_from_vendor(*read(headers, now))
    return read is not None


@lru_cache(maxsize=256)
def _find_limit_reader(names: tuple[str, ...]) -> Callable[[Mapping[str, str], float], RemainingLimits] | None:
    if not any("ratelimit" in name for name in names):
        return None
    return make_limit_reader(names)
