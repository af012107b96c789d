"""Responses that the vendor processes in the background: submit, wait, retrieve by id, and cancel."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from .. import errors
from ..engine.context import Call, Context
from ..engine.flow import Flow, Send, Sleep
from ..engine.wire import WireRequest
from ..providers import Provider
from ..providers.base import StoresResponses
from ..types import AgentRequest, AgentResponse
from .call import Endpoint, add_cost, sign_request

_FIRST_POLL = 1.0
_LONGEST_POLL = 10.0
"""Bounds of the seconds between two polls."""
_MAX_POLL_FAILURES = 10
"""Number of consecutive polls that may fail."""


def without_waiting(call: Call) -> Call:
    """Return the call that submits a background response and does not wait for it."""

    def submit(request: AgentRequest, context: Context) -> Flow[AgentResponse]:
        context.waits = False
        return call(request, context)

    return submit


def retrieve(response_id: str, *, wait: bool) -> Callable[[Endpoint], Call]:
    """Return the call that requests a stored response, and that may wait until it is complete."""

    def once(endpoint: Endpoint) -> Call:
        def call(request: AgentRequest, context: Context) -> Flow[AgentResponse]:
            wire = _get_stored_responses(endpoint.provider).encode_retrieve(response_id, request)
            response = yield from _exchange(endpoint, wire, request, context)
            if wait and response.status is not None:
                response = yield from wait_for_response(endpoint, response, request, context)
            return add_cost(response, request, endpoint.provider.name)

        return call

    return once


def cancel(response_id: str) -> Callable[[Endpoint], Call]:
    """Return the call that cancels a background response."""

    def once(endpoint: Endpoint) -> Call:
        def call(request: AgentRequest, context: Context) -> Flow[AgentResponse]:
            wire = _get_stored_responses(endpoint.provider).encode_cancel(response_id)
            return (yield from _exchange(endpoint, wire, request, context))

        return call

    return once


def wait_for_response(
    endpoint: Endpoint, response: AgentResponse, request: AgentRequest, context: Context
) -> Flow[AgentResponse]:
    """Poll a background response until it is complete.

    Failed polls are repeated, but the request is not sent again: the vendor still works on its response.
    """
    wait, failures = _FIRST_POLL, 0
    stored = _get_stored_responses(endpoint.provider)
    while response.status is not None:
        try:
            yield from Sleep(wait)
            wire = stored.encode_retrieve(response.id or "", request)
            response, failures = (yield from _exchange(endpoint, wire, request, context)), 0
            wait = min(1.5 * wait, _LONGEST_POLL)
        except errors.AgentError as error:
            if error.status_code == 200 and not isinstance(error, errors.ProtocolError):
                raise  # the vendor failed to complete the response
            failures += 1
            if not error.retryable or failures > _MAX_POLL_FAILURES:
                raise errors.ResponsePendingError(
                    f"the response {response.id} is not complete (status {response.status}): {error.message}",
                    response=response,
                    deadline=getattr(error, "deadline", False),
                    provider=endpoint.provider.name,
                    model=request.model,
                    status_code=error.status_code,
                    request_id=error.request_id,
                ) from error
            wait = max(wait, error.retry_after or 0.0)
    return response


def _exchange(endpoint: Endpoint, wire: WireRequest, request: AgentRequest, context: Context) -> Flow[AgentResponse]:
    """Send an encoded request and decode the response."""
    wire = yield from sign_request(endpoint.provider, wire)
    reply = yield from Send(wire, endpoint.limits, endpoint.via)
    context.headers = reply.headers
    if reply.status != 200:
        raise endpoint.provider.decode_error(reply, request)
    return endpoint.provider.decode(reply, request)


def _get_stored_responses(provider: Provider) -> StoresResponses:
    """Return the provider if responses can be requested by id. Raises UnsupportedFeatureError otherwise."""
    if hasattr(provider, "encode_retrieve"):
        return cast(StoresResponses, provider)
    raise errors.UnsupportedFeatureError(
        f"{provider.name} does not return responses by id.",
        field="response_id",
        fix="Use a provider with background responses, such as openai.",
        provider=provider.name,
    )
