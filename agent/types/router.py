"""What routing leaves behind: the names of strategies, a choice, and the record of one attempt.

Choosing and asking happen elsewhere; these are only facts about it.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from pydantic import Field

from ._base import Value
from .usage import Usage


class RoutingStrategy(StrEnum):
    """Ways to order the targets of a router."""

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


class Attempt(Value, frozen=True):
    """One try at one target, successful or not. Times are seconds unless the name says otherwise."""

    target: str
    provider: str = ""
    model: str = ""
    reason: str | None = None
    """Why this target, now."""
    started: float | None = None
    """How long after the start of the whole call."""
    latency_ms: float | None = None
    waited: float | None = None
    """How long the try was held back before it was sent."""
    error: str | None = None
    """Class name of the error, if it failed."""
    message: str | None = None
    status_code: int | None = None
    request_id: str | None = None
    usage: Usage | None = None
    cost: float | None = None
