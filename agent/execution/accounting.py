"""What an answer cost, put on it: on every one, also on those that broke off or were left before their end."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from typing import Any

from ..costs import price, service_tier
from ..tokens import Received, completed
from ..types import AgentRequest, AgentResponse, Usage
from ..types.cost import Cost


def priced(response: AgentResponse, request: AgentRequest, provider: str, first: object = None) -> AgentResponse:
    """The response with its cost, if anybody knows it: worked out when somebody asks, by the prices of now.

    By the model that answered, which says more than the name it was asked by.

    Args:
        first: What a stream began with. Of some vendors' streams it is all that is kept that names the tier of service.
    """
    if response.usage is None:
        return response
    names = (response.model, request.model or "")
    raw = response.raw if response.raw is not None else first
    known = (response.cost_estimate, response.cost_source)
    # Not the request: whoever keeps the answers of a long conversation would keep all of it with each of them.
    compute = partial(_worked_out, response.usage, provider, names, raw, datetime.now(UTC), known)
    return response.with_cost(Cost.lazy(compute))


def _worked_out(
    usage: Usage, provider: str, names: tuple[str, ...], raw: object, when: datetime, known: tuple[Any, Any]
) -> tuple[float | None, str | None]:
    try:
        cost = price(usage, provider=provider, models=names, tier=service_tier(raw), when=when)
    except (ArithmeticError, LookupError, TypeError, ValueError):
        cost = None  # an answer that was paid for must not fail because its price cannot be worked out
    return known if cost is None else cost


def settled(heard: AgentResponse, request: AgentRequest, provider: str, received: Received) -> AgentResponse:
    """A part of an answer with what is known of its usage, completed by estimates, and the cost of that."""
    whole = heard if heard.model else heard.changed(provider=provider, model=request.model or "")
    usage = completed(whole, request, received)
    return priced(whole if usage is whole.usage else whole.changed(usage=usage), request, provider, received.first)
