"""Settings of a router: when to trust a target, how fast to ask it, how much to spend. Data, and no behaviour."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from ._base import Value
from .messages import Seconds

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
