"""Records of routing: strategy names, candidates, attempts and routes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias

from pydantic import Field, GetCoreSchemaHandler, ValidatorFunctionWrapHandler, computed_field
from pydantic_core import CoreSchema, core_schema
from typing_extensions import override

from ._base import Value, table
from .messages import Seconds
from .usage import Priced, Usage

StrategyName: TypeAlias = Literal[
    "fallback", "round_robin", "fastest", "cheapest", "capability", "least_busy", "sticky"
]
"""Names of the built-in strategies, as in `agent.routing.strategies.STRATEGIES`."""


class RoutingStrategy(StrEnum):
    """Built-in routing strategies, and `custom` for strategies of your own."""

    FALLBACK = "fallback"
    ROUND_ROBIN = "round_robin"
    FASTEST = "fastest"
    CHEAPEST = "cheapest"
    CAPABILITY = "capability"
    LEAST_BUSY = "least_busy"
    STICKY = "sticky"
    CUSTOM = "custom"


class RouteResult(Value, frozen=True):
    """The agent that was chosen, and why. The agent itself is never dumped."""

    agent: Any = Field(default=None, exclude=True)
    reason: str | None = None


class Attempt(Priced, frozen=True):
    """One try at one target, successful or not. Times are seconds unless the name says otherwise."""

    target: str
    provider: str = ""
    model: str = ""
    reason: str | None = None
    """Why this target, now."""
    started: float | None = None
    """How long after the start of the whole call."""
    latency_ms: float | None = None
    first_token_ms: float | None = None
    """Of a stream: how long until something came."""
    waited: float | None = None
    """How long the try was held back before it was sent."""
    error: str | None = None
    """Class name of the error, if it failed; `Cancelled` if another attempt was faster, or the stream was left."""
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
    """A target as a router saw it for one request: its place in the order, or why it has none."""

    target: str
    provider: str = ""
    model: str = ""
    place: int | None = None
    """From 1; None if it was left out."""
    reason: str | None = None
    """Why it has that place, or why it was left out."""
    score: float | None = None
    """What the strategy went by, if it went by a number; less is better."""
    health: str = "closed"
    """State of its circuit breaker: closed, degraded, open or half-open."""


_CANDIDATES = ("place", "target", "health", "score", "reason")
_ATTEMPTS = ("attempt", "target", "waited", "took", "cost", "outcome", "reason")


class Route(tuple[Attempt, ...]):
    """The attempts of a call, in order, and who else was considered. Printed, it is a table.

    It is made from what was tried, and from who was considered, or a function that says so when somebody asks.
    """

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
        """Every target of the router, in the order it would have been asked, those that were left out last."""
        if callable(self._candidates):
            self._candidates = tuple(self._candidates())
        return self._candidates

    @override
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
    """A list of attempts; with candidates, an object that holds both."""
    attempts = [attempt.to_dict() for attempt in route]
    if not route.candidates:
        return attempts
    return {"candidates": [candidate.to_dict() for candidate in route.candidates], "attempts": attempts}


def candidates_table(candidates: Iterable[Candidate]) -> str:
    return table(
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
    return table(
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
"""What becomes of a stream that breaks after it has begun."""


class BreakerConfig(Value, frozen=True, extra="forbid"):
    """When a target is left alone, and for how long."""

    window: int = Field(default=20, ge=1, le=10_000)
    """How many of the latest outcomes are looked at."""
    least: int = Field(default=10, ge=1)
    """With fewer outcomes than this nothing is concluded."""
    failing: float = Field(default=0.8, gt=0, le=1)
    """Share of the window that must have failed for the breaker to open."""
    degraded: float = Field(default=0.5, gt=0, le=1)
    """Estimated failure rate from which the target is asked after healthy ones. The estimate adds four successes."""
    pause: Seconds = 15.0
    """Seconds until one request may find out whether the target is back."""


class HedgeConfig(Value, frozen=True, extra="forbid"):
    """When a second target is asked because the first is slow."""

    after: Seconds | None = None
    """Seconds to wait for the first; None learns it: the 95th percentile of what the target has needed so far."""
    until_learned: Seconds | None = None
    """What to wait while too little is known; None does not hedge until then."""
    share: float = Field(default=0.05, gt=0, le=1)
    """At most this share of all requests is hedged, counted from the first."""


class RateLimit(Value, frozen=True, extra="forbid"):
    """How much a target may be asked."""

    rpm: int | None = Field(default=None, ge=1)
    """Requests in any 60 seconds."""
    tpm: int | None = Field(default=None, ge=1)
    """Tokens in any 60 seconds, prompts and answers."""
    concurrency: int | None = Field(default=None, ge=1)
    """Requests at the same time."""


class SpendLimit(Value, frozen=True, extra="forbid"):
    """How much may be spent. The most that a request can cost is set aside before it is sent."""

    dollars: float = Field(gt=0, allow_inf_nan=False)
    per: str | None = None
    """A key of the requests' metadata: each of its values has this limit for itself."""
    window: Seconds | None = None
    """Seconds after which the limit is whole again; None: never."""
    unpriced: Literal["refuse", "allow"] = "refuse"
    """What becomes of a target whose price is not known: it is left out, or asked and not counted."""
