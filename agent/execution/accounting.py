"""What an answer cost, put on it: on every one, also on those that broke off or were left before their end."""

from __future__ import annotations

from ..costs import Cost, price, service_tier
from ..tokens import Received, completed
from ..types import AgentRequest, AgentResponse


def cost_of(response: AgentResponse, request: AgentRequest, provider: str, first: object = None) -> Cost | None:
    """By the model that answered, which says more than the name it was asked by.

    Args:
        first: What a stream began with. Of some vendors' streams it is all that is kept that names the tier of service.
    """
    if response.usage is None:
        return None
    names = (response.model, request.model or "")
    tier = service_tier(response.raw if response.raw is not None else first)
    try:
        return price(response.usage, provider=provider, models=names, tier=tier)
    except (ArithmeticError, LookupError, TypeError, ValueError):
        return None  # an answer that was paid for must not fail because its price cannot be worked out


def priced(response: AgentResponse, request: AgentRequest, provider: str, first: object = None) -> AgentResponse:
    """The response with its cost, if anybody knows it."""
    cost = cost_of(response, request, provider, first)
    if cost is None:
        return response
    return response.changed(cost_estimate=cost.dollars, cost_source=cost.source)


def settled(partial: AgentResponse, request: AgentRequest, provider: str, received: Received) -> AgentResponse:
    """A part of an answer with what is known of its usage, completed by estimates, and the cost of that."""
    whole = partial if partial.model else partial.changed(provider=provider, model=request.model or "")
    usage = completed(whole, request, received)
    heard = whole if usage is whole.usage else whole.changed(usage=usage)
    return priced(heard, request, provider, received.first)
