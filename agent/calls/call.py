"""One request and its answer, buffered or streamed. The innermost flows; everything else wraps them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeAlias

from .. import errors
from ..engine.context import Call, Context, OpenAttempt, sum_attempts
from ..engine.flow import Emit, Flow, Now, Open, Random, Read, Send, Sleep
from ..engine.wire import MAX_STREAM_BYTES, Body, Limits, Reply, Transport
from ..models.prices import price, service_tier
from ..models.token_estimates import StreamTokenCounter, complete_usage
from ..providers import Provider, StreamDecoder
from ..types import AgentRequest, AgentResponse, Attempt, RetryConfig, Route, StreamEvent, Usage
from ..types.usage import LazyCost


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
    return response.with_cost(LazyCost.lazy(compute))


def _worked_out(
    usage: Usage, provider: str, names: tuple[str, ...], raw: object, when: datetime, known: tuple[Any, Any]
) -> tuple[float | None, str | None]:
    try:
        cost = price(usage, provider=provider, models=names, tier=service_tier(raw), when=when)
    except (ArithmeticError, LookupError, TypeError, ValueError):
        cost = None  # an answer that was paid for must not fail because its price cannot be worked out
    return known if cost is None else cost


def settled(heard: AgentResponse, request: AgentRequest, provider: str, received: StreamTokenCounter) -> AgentResponse:
    """A part of an answer with its usage, completed by estimates, and its cost."""
    whole = heard if heard.model else heard.copy_with(provider=provider, model=request.model or "")
    usage = complete_usage(whole, request, received)
    return priced(whole if usage is whole.usage else whole.copy_with(usage=usage), request, provider, received.first)


_AFTER_THE_END = 0.25
"""Seconds to wait for what follows the terminal event, so that the connection can be used again."""
_ERROR_BYTES = 64 * 1024
_ERROR_SECONDS = 5.0


class Endpoint(NamedTuple):
    """A provider, the limits for talking to it, and the way there; None for the run's own transport."""

    provider: Provider
    limits: Limits
    idle: float | None = None
    via: Transport | None = None


def complete(endpoint: Endpoint) -> Call:
    """Send the request, and read the whole answer."""
    provider, limits, via = endpoint.provider, endpoint.limits, endpoint.via

    def call(request: AgentRequest, context: Context) -> Flow[AgentResponse]:
        wire = provider.encode(request, stream=False)
        reply = yield from Send(wire, limits, via)
        context.headers = reply.headers
        if reply.status != 200:
            raise provider.decode_error(reply, request)
        return with_warnings(priced(provider.decode(reply, request), request, provider.name), wire.warnings)

    return call


def stream(endpoint: Endpoint) -> Call:
    """Send the request, and emit events while the answer arrives.

    A stream is complete when its terminal event has come. Whatever happens before is a failure: an ordinary error as
    long as nothing has been emitted, and StreamInterrupted from then on.
    """
    provider, limits, idle, via = endpoint.provider, endpoint.limits, endpoint.idle, endpoint.via

    def call(request: AgentRequest, context: Context) -> Flow[AgentResponse]:
        wire = provider.encode(request, stream=True)
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
                    del chunk  # a vendor's words have no place in a traceback that shows local variables
                    if events:
                        if not started:
                            started = True
                            context.first_event = yield from Now()
                        received.add_all(events)
                        yield Emit(events)
                    read = fresh if events else stale
                    del events  # of thousands of streams that wait, none need keep what it has told
                    if ended:
                        break
                if not body.closed:
                    yield from _drain(body, decoder)
                response = priced(_result(decoder, provider, request), request, provider.name, received.first)
                return with_warnings(response, wire.warnings)
            except errors.AgentError as error:
                if started:
                    heard = settled(decoder.partial(), request, provider.name, received)
                    raise _interrupted(error, heard) from error
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


def _interrupted(error: errors.AgentError, partial: AgentResponse) -> errors.StreamInterrupted:
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
    """What a vendor says about a failure; never more than is worth reading."""
    parts: list[bytes] = []
    size = 0
    try:
        while size < _ERROR_BYTES and (chunk := (yield from Read(body, _ERROR_SECONDS))):
            parts.append(chunk)
            size += len(chunk)
    except (errors.ConnectionError, errors.ProtocolError):
        pass  # the status alone says enough
    except errors.TimeoutError as error:
        if error.deadline:
            raise
    return Reply(body.status, body.headers, b"".join(parts))


def _drain(body: Body, decoder: StreamDecoder) -> Flow[None]:
    """Read to the end of the bytes, so that the connection can be used again. Never worth an error.

    After a failure, what follows may still say what it cost.
    """
    try:
        while chunk := (yield from Read(body, _AFTER_THE_END)):
            decoder.feed(chunk)
    except errors.AgentError:
        pass


def with_warnings(response: AgentResponse, warnings: tuple[str, ...]) -> AgentResponse:
    if not warnings:
        return response
    return response.copy_with(warnings=tuple(dict.fromkeys((*response.warnings, *warnings))))


def attempt(call: Call, *, target: str, provider: str, model: str | None) -> Call:
    """Note every try in the context, whatever becomes of it, and what it cost."""

    def noted(request: AgentRequest, context: Context) -> Flow[AgentResponse]:
        started = yield from Now()
        context.first_event = context.headers = None
        began = started - context.started
        sent_to = request.model or model or ""
        context.log.begin(OpenAttempt(target, provider, sent_to, request, began, context.reason, context.waited))
        error: errors.AgentError | None = None
        response: AgentResponse | None = None
        try:
            response = yield from call(request, context)
        except errors.AgentError as raised:
            error = raised
            error.provider = error.provider or provider
            error.model = error.model or request.model
        context.ended = ended = yield from Now()
        heard = response if response is not None else _part_of(error)
        record = Attempt(
            target=target,
            provider=provider,
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
            usage=None if heard is None else heard.usage,
        )
        context.log.add(record if heard is None else record.with_cost(LazyCost.lazy(partial(_cost_of, heard))))
        context.waited = context.reason = None
        if error is not None:
            try:
                raise error
            finally:
                error = None  # or the error and this frame keep each other alive
        assert response is not None
        return response

    return noted


def _since(started: float, when: float | None) -> float | None:
    return None if when is None else (when - started) * 1000


def _cost_of(heard: AgentResponse) -> tuple[float | None, str | None]:
    return heard.cost_estimate, None


def _part_of(error: errors.AgentError | None) -> AgentResponse | None:
    """What had come of a broken stream: it was paid for."""
    return error.partial if isinstance(error, errors.StreamInterrupted) else None


Settle: TypeAlias = Callable[[AgentResponse, StreamTokenCounter], AgentResponse]
"""Estimates the usage and cost of a partial response."""

_LEFT = "the stream ended before its answer did"


def recorded(call: Call, *, streaming: bool) -> Call:
    """Put the attempts on the response, or on the error. A stream that fails says so in an event before it raises."""

    def outer(request: AgentRequest, context: Context) -> Flow[AgentResponse]:
        context.started = yield from Now()
        try:
            response = yield from call(request, context)
        except errors.AgentError as error:
            error.attempts = _route(context)
            if isinstance(error, errors.StreamInterrupted) and error.partial is not None:
                error.partial = _with_route(error.partial, error.attempts)
            if streaming:
                yield Emit([StreamEvent.error_event(str(error))])
            raise
        ended = yield from Now()
        return _with_route(response, _route(context), latency_ms=(ended - context.started) * 1000)

    return outer


def settle_stream(context: Context, settle: Settle) -> Settle:
    """Settle a stream that was left, aborted or broken: close its open attempts, and put the route on its response."""

    def settled(partial: AgentResponse, received: StreamTokenCounter) -> AgentResponse:
        heard = settle(partial, received)
        answering = bool(partial.model or partial.content)  # not after a restart whose attempt has said nothing yet
        alone = context.log.open_attempts == 1

        def close(attempt: OpenAttempt) -> Attempt:
            if answering and alone:
                closed = attempt.close("Cancelled", _LEFT, usage=heard.usage)
                return closed.with_cost(LazyCost.lazy(lambda: (heard.cost_estimate, None)))
            usage, cost = attempt.estimate()
            return attempt.close("Cancelled", _LEFT, usage=usage, cost=cost)

        context.log.close(close)
        return _with_route(heard, _route(context))

    return settled


def _route(context: Context) -> Route:
    return Route(context.log.finished, context.candidates or ())


def _with_route(response: AgentResponse, route: Route, **changes: Any) -> AgentResponse:
    """The response with its attempts. Its usage and cost are the sums of theirs, also of those that failed."""
    if len(route) > 1:
        usage, cost = sum_attempts(route)
        if usage is not None:
            source = None if cost is None else response.cost_source
            changes |= {"usage": usage, "cost_estimate": cost, "cost_source": source}
    return response.copy_with(route=route, **changes)


LONGEST_WAIT = 120.0
"""Seconds. A vendor that asks for more patience gets none: the caller is told, and can decide."""


class Budget(Protocol):
    """What all calls of one caller may be repeated together."""

    def deposit(self) -> None: ...

    def withdraw(self, now: float) -> bool: ...


def retry(call: Call, config: RetryConfig, budget: Budget) -> Call:
    """Repeat after retryable failures, waiting as the configuration and the vendor say, within the budget.

    A wait that is too long, or does not fit before the deadline, is not begun: the failure is raised at once. Once
    events of an attempt have been handed out there is no second one, since its text would be added to the first one's.
    """
    if config.max_retries == 0:
        return call

    def retried(request: AgentRequest, context: Context) -> Flow[AgentResponse]:
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

    return retried
