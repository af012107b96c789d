"""Asking the vendor how many tokens a request has. A flow as any other: retried, timed, for all drivers."""

from __future__ import annotations

from typing import cast

from .. import errors
from ..context import Call, Context
from ..flow import Flow, Send
from ..providers import Provider
from ..providers.base import CountsTokens
from ..tokens import TokenCount
from ..types import AgentRequest, AgentResponse, Usage
from .call import Endpoint
from .output_modes import as_sent


def counter_of(provider: Provider) -> CountsTokens | None:
    """The provider as one that counts, if its vendor has an endpoint for it."""
    if provider.capabilities.token_counting and hasattr(provider, "encode_count"):
        return cast(CountsTokens, provider)
    return None


def counted(endpoint: Endpoint) -> Call:
    """Send the request to be counted. The answer is one without content: its prompt tokens are the count."""
    provider, limits = endpoint.provider, endpoint.limits
    counter = counter_of(provider)

    def call(request: AgentRequest, context: Context) -> Flow[AgentResponse]:
        if counter is None:
            raise errors.UnsupportedFeatureError(
                f"{provider.name} has no way to count tokens without answering.",
                field="exact",
                fix="Leave exact out, or pass exact=False for an estimate.",
                provider=provider.name,
                model=request.model,
            )

        reply = yield from Send(counter.encode_count(as_sent(provider, request)), limits, endpoint.via)
        if reply.status != 200:
            raise provider.decode_error(reply, request)
        tokens = counter.decode_count(reply, request)
        return AgentResponse(
            provider=provider.name, model=request.model or "", usage=Usage(prompt_tokens=tokens), stop_reason="stop"
        )

    return call


def token_count(response: AgentResponse) -> TokenCount:
    """The count in such an answer."""
    assert response.usage is not None
    return TokenCount(tokens=response.usage.prompt_tokens, exact=True, margin=0.0, method=response.provider)
