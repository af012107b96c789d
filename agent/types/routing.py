"""Routing records (candidates, attempts, routes) and settings (circuit breaker, hedging, limits)."""

from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias

from pydantic import Field, GetCoreSchemaHandler, ValidatorFunctionWrapHandler, computed_field
from pydantic_core import CoreSchema, core_schema
from typing_extensions import override

from ..errors import printable
from ._base import Value, align_columns
from .messages import Seconds
from .usage import Priced, Usage

StrategyName: TypeAlias = Literal[
    "fallback", "round_robin", "fastest", "cheapest", "capability", "least_busy", "sticky"
]
"""Names of the built-in strategies, as in `agent.routing.strategies.STRATEGIES`."""


class RoutingStrategy(StrEnum):
    """Built-in routing strategies; `custom` stands for your own."""

    FALLBACK = "fallback"
    ROUND_ROBIN = "round_robin"
    FASTEST = "fastest"
    CHEAPEST = "cheapest"
    CAPABILITY = "capability"
    LEAST_BUSY = "least_busy"
    STICKY = "sticky"
    CUSTOM = "custom"


class RouteResult(Value, frozen=True):
    """A selected agent and the reason. The agent is not serialized."""

    agent: Any = Field(default=None, exclude=True)
    reason: str | None = None


class Attempt(Priced, frozen=True):
    """One attempt at one target. Times are in seconds unless the name says otherwise."""

    target: str
    provider: str = ""
    model: str = ""
    reason: str | None = None
    """Why this target was selected."""
    started: float | None = None
    """Seconds since the start of the call."""
    latency_ms: float | None = None
    first_token_ms: float | None = None
    """Time to first token of a stream, in milliseconds."""
    waited: float | None = None
    """Seconds the attempt was delayed before it was sent (backoff, rate limit)."""
    error: str | None = None
    """Class name of the error; `Cancelled` after a faster hedge or an abandoned stream."""
    message: str | None = None
    status_code: int | None = None
    request_id: str | None = None
    usage: Usage | None = None
    if TYPE_CHECKING:
        cost: float | None = None
    else:

        @computed_field
        @property
        def cost(self) -> float | None:
            """Cost in US dollars, if known."""
            return self._cost.get()[0]


class Candidate(Value, frozen=True):
    """A target as considered for one request: its rank, or why it was excluded."""

    target: str
    provider: str = ""
    model: str = ""
    place: int | None = None
    """Rank from 1; None if excluded."""
    reason: str | None = None
    """Why the target has this rank or was excluded."""
    score: float | None = None
    """Score of the strategy, if numeric; lower is better."""
    health: str = "ok"
    """`ok`, `degraded`, `half-open` or `open`, the state of the circuit breaker; or `no key`."""


_CANDIDATES = ("place", "target", "health", "score", "reason")
_ATTEMPTS = ("attempt", "target", "waited", "took", "cost", "outcome", "reason")


class Route(tuple[Attempt, ...]):
    """The attempts of a call, in order, and the candidates; `str()` prints tables. Candidates may be lazy."""

    _candidates: Sequence[Candidate] | Callable[[], Sequence[Candidate]]

    def __new__(
        cls,
        attempts: Iterable[Attempt] = (),
        candidates: Sequence[Candidate] | Callable[[], Sequence[Candidate]] = (),
    ) -> Self:
        self = super().__new__(cls, attempts)
        self._candidates = candidates
        return self

    @property
    def candidates(self) -> Sequence[Candidate]:
        """All targets of the router in ranked order, excluded targets last."""
        if callable(self._candidates):
            self._candidates = tuple(self._candidates())
        return self._candidates

    @override
    @printable
    def __str__(self) -> str:
        parts = [candidates_table(self.candidates)] if self.candidates else []
        parts.append(attempts_table(self))
        return "\n\n".join(parts)

    @override
    def __reduce__(self) -> Any:
        return Route, (tuple(self), tuple(self.candidates))

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_wrap_validator_function(
            _read_route,
            handler.generate_schema(tuple[Attempt, ...]),
            serialization=core_schema.plain_serializer_function_ser_schema(_write_route),
        )


def _read_route(value: Any, attempts: ValidatorFunctionWrapHandler) -> Route:
    if type(value) is Route:
        return value
    if isinstance(value, dict):
        considered = tuple(Candidate.model_validate(one) for one in value.get("candidates", ()))
        return Route(attempts(value.get("attempts", ())), considered)
    return Route(attempts(value))


def _write_route(route: Route) -> Any:
    """Serialize to a list of attempts, or with candidates to an object that holds both."""
    attempts = [attempt.to_dict() for attempt in route]
    if not route.candidates:
        return attempts
    return {"candidates": [candidate.to_dict() for candidate in route.candidates], "attempts": attempts}


def candidates_table(candidates: Iterable[Candidate]) -> str:
    return align_columns(
        _CANDIDATES,
        (
            (
                "-" if one.place is None else str(one.place),
                one.target,
                one.health,
                "" if one.score is None else f"{one.score:.4g}",
                one.reason or "",
            )
            for one in candidates
        ),
    )


def attempts_table(attempts: Iterable[Attempt]) -> str:
    return align_columns(
        _ATTEMPTS,
        (
            (
                str(number),
                one.target,
                "" if one.waited is None else f"{one.waited:.2f} s",
                "" if one.latency_ms is None else f"{one.latency_ms:.0f} ms",
                "" if one.cost is None else f"${one.cost:.6f}",
                "ok" if one.error is None else one.error + (f" {one.status_code}" if one.status_code else ""),
                one.reason or "",
            )
            for number, one in enumerate(attempts, 1)
        ),
    )


OnPartial = Literal["raise", "restart", "continue"]
"""Reaction to a stream that breaks after its first event."""


class BreakerConfig(Value, frozen=True, extra="forbid"):
    """Circuit breaker of a target: when it opens, and for how long."""

    window: int = Field(default=20, ge=1, le=10_000)
    """Number of latest outcomes to consider."""
    min_samples: int = Field(default=10, ge=1)
    """Minimum number of outcomes before the breaker can open."""
    failure_threshold: float = Field(default=0.8, gt=0, le=1)
    """Failure rate in the window at which the breaker opens."""
    degraded_threshold: float = Field(default=0.5, gt=0, le=1)
    """Estimated failure rate at which healthy targets are preferred. The estimate adds four successes."""
    cooldown: Seconds = 15.0
    """Cooldown in seconds until the breaker is half-open: one request tests the target."""


class HedgeConfig(Value, frozen=True, extra="forbid"):
    """Hedging: when to send a request to a second target because the first is slow."""

    delay: Seconds | None = None
    """Seconds to wait for the first target; None uses the 95th percentile of its latencies."""
    initial_delay: Seconds | None = None
    """Seconds to wait while too few latencies are known; None does not hedge until then."""
    max_share: float = Field(default=0.05, gt=0, le=1)
    """Maximum share of requests that are hedged."""


class RateLimit(Value, frozen=True, extra="forbid"):
    """Rate limit of a target."""

    rpm: int | None = Field(default=None, ge=1)
    """Requests per 60 seconds, in a sliding window."""
    tpm: int | None = Field(default=None, ge=1)
    """Tokens per 60 seconds, in a sliding window, prompts and completions."""
    concurrency: int | None = Field(default=None, ge=1)
    """Concurrent requests."""


class SpendLimit(Value, frozen=True, extra="forbid"):
    """Spend limit. The expected cost of a request is reserved before it is sent."""

    dollars: float = Field(gt=0, allow_inf_nan=False)
    per: str | None = None
    """A metadata key: each of its values gets its own limit."""
    window: Seconds | None = None
    """Seconds after which the limit resets; None never resets it."""
    unpriced: Literal["refuse", "allow"] = "refuse"
    """Whether to exclude targets without a known price, or to use them without counting the cost."""
    strict: bool = False
    """Whether the excess of one response over its expected cost is the most that is ever overspent, even if responses
    suddenly become longer. Then fewer requests are in flight when the limit is low. A shared state is always strict."""
