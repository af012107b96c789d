"""The innermost flows: one request and its response, buffered or streamed, with attempts and retries."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from os import urandom
from typing import Any, NamedTuple, Protocol, TypeAlias

from .. import errors
from ..engine.context import Call, Context, OpenAttempt, run_validation, sum_attempt_costs, sum_attempt_usage
from ..engine.flow import Emit, Flow, Invoke, Now, Open, Random, Read, Send, Sleep
from ..engine.wire import MAX_STREAM_BYTES, Body, Limits, Reply, Transport, WireRequest, deadline_error
from ..models.prices import price, service_tier
from ..models.token_estimates import StreamTokenCounter, complete_usage
from ..providers import Provider, StreamDecoder
from ..types import AgentRequest, AgentResponse, Attempt, RetryConfig, Route, StreamEvent
from ..types.secrets import find_secrets, redact, reveal_extra
from ..types.usage import LazyCost


def add_cost(response: AgentResponse, request: AgentRequest, provider: str, first: object = None) -> AgentResponse:
    """Return the response with its cost, which is computed on first access.

    The prices are those of the time of the call, for the model in the response, which is more precise than the
    requested name.

    Args:
        first: The first event of a stream. Some vendors name the service tier only there.
    """
    if response.usage is None:
        return response
    names = (response.model, request.model or "")
    raw = response.raw if response.raw is not None else first
    # Without the request: otherwise each response would keep the whole conversation alive.
    compute = partial(_compute_cost, response, provider, names, raw, datetime.now(UTC))
    return response.with_cost(LazyCost.lazy(compute))


def _compute_cost(
    response: AgentResponse, provider: str, names: tuple[str, ...], raw: object, when: datetime
) -> tuple[float | None, str | None]:
    try:
        cost = price(response.usage, provider=provider, models=names, tier=service_tier(raw), when=when)
    except (ArithmeticError, LookupError, TypeError, ValueError):
        cost = None  # a paid response must not fail because its price is unknown
    return (response.cost_estimate, response.cost_source) if cost is None else cost


def settle_response(
    partial_response: AgentResponse, request: AgentRequest, provider: str, received: StreamTokenCounter
) -> AgentResponse:
    """Return a partial response with its usage, completed by estimates, and its cost."""
    whole = partial_response
    if not whole.model:
        whole = whole.copy_with(provider=provider, model=request.model or "")
    usage = complete_usage(whole, request, received)
    return add_cost(whole if usage is whole.usage else whole.copy_with(usage=usage), request, provider, received.first)


_AFTER_THE_END = 0.25
"""Seconds to wait for bytes after the terminal event, so that the connection can be reused."""
_ERROR_BYTES = 64 * 1024
_ERROR_SECONDS = 5.0


class Endpoint(NamedTuple):
    """A provider, its limits and its transport; None for the transport of the run."""

    provider: Provider
    limits: Limits
    idle: float | None = None
    via: Transport | None = None


def sign_request(provider: Provider, wire: WireRequest) -> Flow[WireRequest]:
    """Return the request with its signature, for providers that sign each request."""
    sign = getattr(provider, "sign", None)
    if sign is None:
        return wire
    signed: WireRequest = yield from Invoke(sign, (wire,), blocking=True)
    return signed


def reveal_secrets(request: AgentRequest) -> AgentRequest:
    """Return the request for the codec, with the credentials in `extra` as text."""
    return request.copy_with(extra=reveal_extra(request.extra))


def _encode(provider: Provider, request: AgentRequest, context: Context, *, stream: bool) -> Flow[WireRequest]:
    if request.extra:
        request = reveal_secrets(request)
    wire = yield from run_validation(partial(provider.encode, stream=stream), request)
    if getattr(provider, "idempotency", False) and b"idempotency-key" not in dict(wire.headers):
        # Retries of a request share the key.
        key = context.idempotency_keys.setdefault(hash((wire.url, wire.body)), urandom(16).hex())
        wire.call_headers = ((b"idempotency-key", key.encode()),)
    if getattr(provider, "sign", None) is not None:
        wire = yield from sign_request(provider, wire)
    return wire


def complete(endpoint: Endpoint) -> Call:
    """Send the request and read the whole response."""
    provider, limits, via = endpoint.provider, endpoint.limits, endpoint.via

    def call(request: AgentRequest, context: Context) -> Flow[AgentResponse]:
        wire = yield from _encode(provider, request, context, stream=False)
        reply = yield from Send(wire, limits, via)
        context.headers = reply.headers
        if reply.status != 200:
            raise provider.decode_error(reply, request)
        response = provider.decode(reply, request)
        if response.status is not None and context.waits:
            from .background import wait_for_response  # lazy: import cycle

            response = yield from wait_for_response(endpoint, response, request, context)
        response = add_cost(response, request, provider.name)
        return with_warnings(response, wire.warnings) if wire.warnings else response

    return call


def stream(endpoint: Endpoint) -> Call:
    """Send the request and emit events while the response arrives.

    A stream is complete when its terminal event has arrived. A failure before the first event raises an ordinary
    error, a later one StreamInterrupted.
    """
    provider, limits, idle, via = endpoint.provider, endpoint.limits, endpoint.idle, endpoint.via

    def call(request: AgentRequest, context: Context) -> Flow[AgentResponse]:
        wire = yield from _encode(provider, request, context, stream=True)
        with (yield from Open(wire, limits, via)) as body:
            context.headers = body.headers
            if body.status != 200:
                raise provider.decode_error((yield from _read_error(body)), request)
            decoder = provider.decoder(body.headers, request)
            started = False
            received = StreamTokenCounter()
            try:
                size = 0
                fresh, stale = Read(body, idle, fresh=True), Read(body, idle, fresh=False)
                read = fresh
                while not decoder.done and decoder.failure is None:
                    chunk: bytes = yield read  # a bare yield: the two Read objects are reused for every chunk
                    size += len(chunk)
                    if size > MAX_STREAM_BYTES:
                        raise errors.ProtocolError(
                            f"the stream is longer than {MAX_STREAM_BYTES} bytes", retryable=False
                        )
                    ended = not chunk
                    events = decoder.end() if ended else decoder.feed(chunk)
                    del chunk  # tracebacks with local variables must not show the vendor's text
                    if decoder.done and (yield from Now()) > context.deadline:
                        raise deadline_error("decoding the response")
                    if events:
                        if not started:
                            started = True
                            context.first_event = yield from Now()
                        received.add_all(events)
                        yield Emit(events)
                    read = fresh if events else stale
                    del events  # a waiting stream keeps no events that were handed out
                    if ended:
                        break
                if not body.closed:
                    yield from _drain(body, decoder)
                response = add_cost(_result(decoder, provider, request), request, provider.name, received.first)
                return with_warnings(response, wire.warnings) if wire.warnings else response
            except errors.AgentError as error:
                if started:
                    partial_response = settle_response(decoder.partial(), request, provider.name, received)
                    raise _stream_interrupted(error, partial_response) from error
                raise

    return call


def _result(decoder: StreamDecoder, provider: Provider, request: AgentRequest) -> AgentResponse:
    if decoder.failure is not None:
        raise decoder.failure
    if not decoder.done:
        raise errors.ProtocolError(
            f"{provider.name}: the stream ended without its terminal event", provider=provider.name, model=request.model
        )
    return decoder.response()


def _stream_interrupted(error: errors.AgentError, partial: AgentResponse) -> errors.StreamInterrupted:
    return errors.StreamInterrupted(
        f"the stream broke off: {error.message}",
        partial=partial,
        deadline=getattr(error, "deadline", False),
        provider=error.provider,
        model=error.model,
        status_code=error.status_code,
        request_id=error.request_id,
        code=error.code,
        body=error.body,
    )


def _read_error(body: Body) -> Flow[Reply]:
    """Read the body of an error response, up to a limit."""
    parts: list[bytes] = []
    size = 0
    try:
        while size < _ERROR_BYTES and (chunk := (yield from Read(body, _ERROR_SECONDS))):
            parts.append(chunk)
            size += len(chunk)
    except (errors.ConnectionError, errors.ProtocolError):
        pass  # the status is sufficient
    except errors.TimeoutError as error:
        if error.deadline:
            raise
    return Reply(body.status, body.headers, b"".join(parts))


def _drain(body: Body, decoder: StreamDecoder) -> Flow[None]:
    """Read the rest of the body, so that the connection can be reused. Errors are ignored.

    After a failure, the rest may contain the usage.
    """
    try:
        while chunk := (yield from Read(body, _AFTER_THE_END)):
            decoder.feed(chunk)
    except errors.AgentError:
        pass


def with_warnings(response: AgentResponse, warnings: tuple[str, ...]) -> AgentResponse:
    return response.copy_with(warnings=tuple(dict.fromkeys((*response.warnings, *warnings))))


def hide_secrets(error: errors.AgentError, provider: Provider, request: AgentRequest) -> errors.AgentError:
    """Redact the texts of a failed attempt and drop its frames, which hold the request and the reply."""
    redact_headers: Callable[[str], str] = getattr(provider, "redact", str)
    secrets = find_secrets(request.extra) if request.extra else ()

    def hide(text: str) -> str:
        return redact(redact_headers(text), secrets) if secrets else redact_headers(text)

    return errors.redact_failure(error, hide)


def attempt(call: Call, *, target: str, provider: Provider, model: str | None) -> Call:
    """Record every attempt in the context, with its outcome and cost. Its failure shows no secrets."""

    def record_attempt(request: AgentRequest, context: Context) -> Flow[AgentResponse]:
        started = yield from Now()
        context.first_event = context.headers = None
        began = started - context.origin
        sent_to = request.model or model or ""
        context.log.begin(OpenAttempt(target, provider.name, sent_to, request, began, context.reason, context.waited))
        error: errors.AgentError | None = None
        response: AgentResponse | None = None
        try:
            response = yield from call(request, context)
        except errors.AgentError as raised:
            error = hide_secrets(raised, provider, request)
            error.provider = error.provider or provider.name
            error.model = error.model or request.model
        context.ended = ended = yield from Now()
        received = response if response is not None else _partial_of(error)
        record = Attempt(
            target=target,
            provider=provider.name,
            model=sent_to,
            reason=context.reason,
            started=began,
            latency_ms=(ended - started) * 1000,
            first_token_ms=_since(started, context.first_event),
            waited=context.waited,
            error=None if error is None else type(error).__name__,
            message=None if error is None else error.message,
            status_code=None if error is None else error.status_code,
            request_id=response.request_id if response is not None else error.request_id if error else None,
            usage=None if received is None else received.usage,
        )
        if received is not None:
            record._set_cost(LazyCost.lazy(partial(_cost_of, received)))
        context.log.add(record)
        context.waited = context.reason = None
        if error is not None:
            try:
                raise error
            finally:
                error = None  # otherwise the error and this frame form a reference cycle
        assert response is not None
        return response

    return record_attempt


def _since(started: float, when: float | None) -> float | None:
    return None if when is None else (when - started) * 1000


def _cost_of(response: AgentResponse) -> tuple[float | None, str | None]:
    return response.cost_estimate, None


def _partial_of(error: errors.AgentError | None) -> AgentResponse | None:
    """Return the partial response of a broken stream, which was paid for."""
    return error.partial if isinstance(error, errors.StreamInterrupted) else None


Settle: TypeAlias = Callable[[AgentResponse, StreamTokenCounter], AgentResponse]
"""Estimates the usage and cost of a partial response."""

_LEFT = "the stream was closed before the response was complete"


def record_route(call: Call, *, streaming: bool) -> Call:
    """Put the attempts on the response or the error. A failing stream emits an error event first."""

    def outer(request: AgentRequest, context: Context) -> Flow[AgentResponse]:
        context.started = yield from Now()
        if context.run is None:
            context.origin = context.started
        try:
            response = yield from call(request, context)
            ended = yield from Now()
            if ended > context.deadline and not streaming:
                raise deadline_error("decoding the response")
        except errors.AgentError as error:
            error.attempts = Route(context.log.finished, context.candidates or ())
            if isinstance(error, errors.StreamInterrupted) and error.partial is not None:
                error.partial = _with_route(error.partial, context)
            if streaming:
                yield Emit([StreamEvent.error_event(str(error))])
            raise
        return _with_route(response, context, latency_ms=(ended - context.started) * 1000)

    return outer


def settle_stream(context: Context, settle: Settle) -> Settle:
    """Settle a stream that was left, aborted or broken.

    Closes its open attempts and puts the route on its response.
    """

    def settle_partial(partial: AgentResponse, received: StreamTokenCounter) -> AgentResponse:
        response = settle(partial, received)
        answering = bool(partial.model or partial.content)  # false after a restart without output
        alone = context.log.open_attempts == 1

        def close(attempt: OpenAttempt) -> Attempt:
            if answering and alone:
                closed = attempt.close("Cancelled", _LEFT, usage=response.usage)
                return closed.with_cost(LazyCost.lazy(lambda: (response.cost_estimate, None)))
            usage, cost = attempt.estimate()
            return attempt.close("Cancelled", _LEFT, usage=usage, cost=cost)

        context.log.close(close)
        return _with_route(response, context)

    return settle_partial


def _with_route(response: AgentResponse, context: Context, **changes: Any) -> AgentResponse:
    """Return the response with its attempts. Usage and cost are the sums over all attempts."""
    route = Route(context.log.finished, context.candidates or ())
    if len(route) > 1 and (usage := sum_attempt_usage(route)) is not None:
        changes["usage"] = usage
        response = response.with_cost(LazyCost.lazy(partial(_sum_costs, route, response)))
    return response.copy_with(route=route, **changes)


def _sum_costs(route: Route, response: AgentResponse) -> tuple[float | None, str | None]:
    cost = sum_attempt_costs(route)
    return cost, None if cost is None else response.cost_source


LONGEST_WAIT = 120.0
"""Longest wait in seconds. If a vendor asks for a longer one, the error is raised and the caller decides."""


class Budget(Protocol):
    """The retry budget that all calls of a client share."""

    def deposit(self) -> None: ...

    def withdraw(self, now: float) -> bool: ...


def retry(call: Call, config: RetryConfig, budget: Budget) -> Call:
    """Retry after retryable failures, within the retry budget.

    The configuration or the vendor sets the wait before a retry. If it is too long, or does not fit before the
    deadline, the failure is raised at once. An attempt that has emitted events is not retried, since the text of the
    next one would be appended to its text.
    """
    if config.max_retries == 0:
        return call

    def call_with_retries(request: AgentRequest, context: Context) -> Flow[AgentResponse]:
        attempt = 0
        budget.deposit()
        while True:
            attempt += 1
            try:
                return (yield from call(request, context))
            except errors.AgentError as error:
                if error.committed or not config.should_retry(error, attempt=attempt):
                    raise
                wait = config.get_delay(attempt=attempt, error=error, rand=(yield from Random()))
                now = yield from Now()
                if wait > max(config.max_delay, LONGEST_WAIT) or now + wait >= context.deadline:
                    raise
                if not budget.withdraw(now):
                    raise
            yield from Sleep(wait)
            context.waited = wait

    return call_with_retries
