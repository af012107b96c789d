"""Composition of middleware around a call: a function from Call to Call.

The first middleware is the outermost: `before` runs from the first to the last, the other methods from the last to the
first. An error reaches `on_error` of the middleware outside the place where it was raised. An error in `on_event`
closes the flow below, as if the caller had left the stream, so that routers do not treat it as a failure of the target.
Cancellation and interrupts reach no method.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

from pydantic_core import to_json

from .. import errors
from ..engine.context import Call, Context, sum_attempts
from ..engine.flow import Effect, Emit, Flow, Invoke, Now, intercept
from ..types import (
    AgentRequest,
    AgentResponse,
    Attempt,
    Part,
    RefusalContent,
    StreamEvent,
    TextContent,
    ThinkingContent,
    ToolCall,
)
from ..types.usage import LazyCost
from .base import ANSWERED_BY, CallInfo, Middleware

T = TypeVar("T")
_METHODS = ("before", "after", "on_event", "on_error")
_START_FIELDS = ("provider", "model", "id", "request_id")
_SENT_FIELDS = frozenset((*_START_FIELDS, "content", "usage"))
"""Fields of a response that other events than the last carry, and its usage."""


def wrap_call(
    call: Call,
    middleware: Sequence[Middleware],
    *,
    streaming: bool,
    target: str,
    fingerprint: Callable[[AgentRequest], str],
    every_target: bool = False,
) -> Call:
    """Return the call with middleware around it.

    Args:
        call: The call to wrap.
        middleware: The first is the outermost.
        streaming: Whether the call emits events.
        target: Name of the call's target.
        fingerprint: Returns the fingerprint of a request as this call would send it.
        every_target: Whether attempts have other target names than `target`, as those of a router do.
    """
    layers = [_Layer.from_middleware(one) for one in middleware]

    def call_with_middleware(request: AgentRequest, context: Context) -> Flow[AgentResponse]:
        base = yield from _describe_call(request, context, streaming=streaming, target=target)
        base.hash_request, base.every_target = fingerprint, every_target
        context.headers = None  # headers of another target's response
        flow = _run_layers(layers, 0, call, request, base)
        try:
            return (yield from (intercept(flow, partial(_mark_emitted, base)) if streaming else flow))
        except errors.AgentError as error:
            error.committed = error.committed or base.emitted
            raise

    return call_with_middleware


def wrap_token_count(call: Call, middleware: Sequence[Middleware], *, target: str) -> Call:
    """Return a token-counting call whose request passes through `before`, for example to be redacted.

    `call.counting` tells caches, rate limits and trackers to ignore it.
    """
    layers = [_Layer.from_middleware(one) for one in middleware]

    def count_with_middleware(request: AgentRequest, context: Context) -> Flow[AgentResponse]:
        base = yield from _describe_call(request, context, streaming=False, target=target)
        base.counting = True
        for layer in layers:
            if layer.before is not None:
                result = yield from _run_hook(layer.before, context, request, base.for_middleware(request))
                request = request if isinstance(result, AgentResponse) else _check_request(result, request, layer)
        return (yield from call(request, context))

    return count_with_middleware


def _describe_call(request: AgentRequest, context: Context, *, streaming: bool, target: str) -> Flow[CallInfo]:
    return CallInfo(
        streaming=streaming,
        target=target,
        request=request,
        run=context.run,
        started=(yield from Now()),
        context=context,
        first_attempt=len(context.attempts),
    )


def observe_events(flow: Flow[T], middleware: Sequence[Middleware], info: CallInfo) -> Flow[T]:
    """Return the flow with its events passed through `on_event` of the middleware. No other method runs."""
    for one in reversed(middleware):
        layer = _Layer.from_middleware(one)
        if layer.on_event is not None:
            flow = _observe_layer(flow, layer, info.for_middleware())
    return flow


def _observe_layer(flow: Flow[T], layer: _Layer, info: CallInfo) -> Flow[T]:
    try:
        return (yield from intercept(flow, partial(_handle_events, layer, info)))
    except _EventError as failure:
        error = failure.error
    try:
        raise error
    finally:
        del error  # the frame and the error would keep each other alive


def validate_middleware(middleware: Iterable[Any]) -> tuple[Middleware, ...]:
    """Return the middleware as a tuple. Raises a ConfigurationError for objects that are not middleware."""
    if isinstance(middleware, Middleware) or not isinstance(middleware, Iterable):
        raise errors.ConfigurationError(
            f"middleware is a {type(middleware).__name__}, not a list.",
            field="middleware",
            fix="Pass a list: middleware=[Logging()].",
        )
    result = tuple(middleware)
    for one in result:
        if isinstance(one, type):
            raise errors.ConfigurationError(
                f"middleware contains the class {one.__name__}, not an instance.",
                field="middleware",
                fix=f"Pass {one.__name__}().",
            )
        if not any(callable(getattr(one, method, None)) for method in _METHODS):
            raise errors.ConfigurationError(
                f"{type(one).__name__} is not middleware: it has none of its methods.",
                field="middleware",
                fix="Pass objects with any of the methods before, after, on_event and on_error.",
            )
        _Layer.from_middleware(one)
    return result


# One middleware


class _Method(NamedTuple):
    """One method of a middleware."""

    function: Callable[..., Any]
    is_async: bool
    name: str


class _Layer(NamedTuple):
    """The overridden methods of a middleware."""

    name: str
    before: _Method | None
    after: _Method | None
    on_event: _Method | None
    on_error: _Method | None

    @classmethod
    def from_middleware(cls, middleware: Any) -> _Layer:
        return cls(type(middleware).__name__, *(_find_method(middleware, method) for method in _METHODS))


def _find_method(middleware: Any, method: str) -> _Method | None:
    function = getattr(middleware, method, None)
    if not callable(function) or getattr(function, "__func__", None) is getattr(Middleware, method):
        return None
    name = f"{type(middleware).__name__}.{method}"
    if inspect.isasyncgenfunction(function):
        raise errors.ConfigurationError(
            f"{name} is an async generator.", field="middleware", fix="Return a list of events instead of yielding."
        )
    return _Method(function, inspect.iscoroutinefunction(function), name)


def _run_hook(method: _Method, context: Context, *args: Any) -> Flow[Any]:
    """Run a method inline, as an effect, or as a flow."""
    if method.is_async:
        return (yield from Invoke(method.function, args, context=context.user_context))
    value = method.function(*args)
    if isinstance(value, Generator):
        return (yield from _check_effects(value, method))
    if hasattr(type(value), "__await__"):
        return (yield from Invoke(lambda: value, (), context=context.user_context))
    return value


def _check_effects(flow: Flow[T], method: _Method) -> Flow[T]:
    """Run a flow. Raises a ConfigurationError with the method's name if it yields anything but effects."""
    reply: Any = None
    error: Exception | None = None
    try:
        while True:
            try:
                effect = flow.send(reply) if error is None else flow.throw(error)
            except StopIteration as stop:
                result: T = stop.value
                return result
            finally:
                error = None
            if not isinstance(effect, Effect):
                raise errors.ConfigurationError(
                    f"{method.name} yielded a {type(effect).__name__}, not an effect.",
                    field="middleware",
                    fix="Yield only effects of agent.engine.flow, and return the value: several events as a list.",
                )
            try:
                reply = yield effect
            except Exception as exception:
                reply, error = None, exception
    finally:
        flow.close()


# Layers


class _EventError(BaseException):
    """Carries an error of `on_event` past the flow below, which is closed."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error


def _mark_emitted(base: CallInfo, emit: Emit) -> Flow[None]:
    base.emitted = True
    yield emit


def _run_layers(
    layers: Sequence[_Layer], depth: int, call: Call, request: AgentRequest, base: CallInfo
) -> Flow[AgentResponse]:
    """Run the call inside the layers from `depth` on."""
    context = base.context
    if depth == len(layers):
        return (yield from call(request, context))
    layer = layers[depth]
    info = base.for_middleware(request)
    if layer.before is not None:
        result = yield from _run_hook(layer.before, context, request, info)
        if isinstance(result, AgentResponse):
            return (yield from _answer(result, layer, base))
        request = _check_request(result, request, layer)
    flow = _run_layers(layers, depth + 1, call, request, base)
    if base.streaming and layer.on_event is not None:
        flow = intercept(flow, partial(_handle_events, layer, info))
    event_error: Exception | None = None
    try:
        response = yield from flow
    except _EventError as failure:
        event_error = failure.error
    except Exception as error:
        if layer.on_error is None:
            raise
        replacement = yield from _run_hook(layer.on_error, context, error, info)
        if not isinstance(replacement, AgentResponse):
            try:
                _raise_replacement(replacement, error, layer)
            finally:
                del replacement  # the frame and the error would keep each other alive
            raise
        if base.emitted or getattr(error, "committed", False):
            raise  # the caller has already received events of another response
        return (yield from _answer(replacement, layer, base, info.attempts))
    if event_error is not None:
        try:
            raise event_error
        finally:
            event_error = None
    if layer.after is None:
        return response
    result = yield from _run_hook(layer.after, context, response, info)
    if result is None:
        return response
    if not isinstance(result, AgentResponse):
        raise _wrong_return(layer, "after", result, "an AgentResponse")
    return result


def _handle_events(layer: _Layer, info: CallInfo, emit: Emit) -> Flow[None]:
    """Pass events through `on_event` of a middleware, and emit the results."""
    assert layer.on_event is not None
    events: list[Any] = []
    changed = False
    event_error: Exception | None = None
    try:
        for event in emit.events:
            result = yield from _run_hook(layer.on_event, info.context, event, info)
            changed = changed or result is not None
            if isinstance(result, list | tuple):
                events += result
            else:
                events.append(event if result is None else result)
    except Exception as error:
        event_error = error
        changed = True
    if not changed:
        yield emit
    elif events:
        yield Emit(events)  # events before the one that failed are emitted
    if event_error is not None:
        try:
            raise _EventError(event_error) from None
        finally:
            event_error = None


def _check_request(result: Any, request: AgentRequest, layer: _Layer) -> AgentRequest:
    """Return the request to continue with after `before`."""
    if result is None:
        return request
    if not isinstance(result, AgentRequest):
        raise _wrong_return(layer, "before", result, "an AgentRequest or an AgentResponse")
    if result.model is None and request.model is not None:  # a request built from scratch keeps the model
        return result.model_copy(update={"model": request.model})
    return result


def _raise_replacement(replacement: Any, error: Exception, layer: _Layer) -> None:
    if replacement is None or replacement is error:
        return
    if not isinstance(replacement, Exception):
        raise _wrong_return(layer, "on_error", replacement, "an AgentResponse or an exception")
    if isinstance(replacement, errors.AgentError):
        replacement.committed = replacement.committed or bool(getattr(error, "committed", False))
    try:
        raise replacement from error
    finally:
        del replacement


def _answer(
    response: AgentResponse, layer: _Layer, base: CallInfo, attempts: Sequence[Attempt] = ()
) -> Flow[AgentResponse]:
    """Record a response from a middleware as an attempt, and emit it as events in a stream.

    Args:
        attempts: The failed attempts that it replaces. Their cost is its cost, unless it has its own usage.
    """
    context = base.context
    context.ended = now = yield from Now()
    began = now if attempts else base.started
    context.log.add(
        Attempt(
            target=base.target,
            provider=response.provider,
            model=response.model,
            reason=f"{ANSWERED_BY}{layer.name}",
            started=began - context.origin,
            latency_ms=(now - began) * 1000,
            usage=response.usage,
            cost=response.cost_estimate,
        )
    )
    context.waited = context.reason = None
    context.first_event = now if base.streaming else None
    usage, cost = sum_attempts(attempts)
    if response.usage is None and usage is not None:
        response = response.model_copy(update={"usage": usage, "cost_estimate": cost})
    if base.streaming:
        yield Emit(replay_events(response))
    return response


def _wrong_return(layer: _Layer, method: str, value: Any, expected: str) -> errors.ConfigurationError:
    return errors.ConfigurationError(
        f"{layer.name}.{method} returned a {type(value).__name__}.",
        field="middleware",
        fix=f"Return {expected}, or None.",
    )


# Events of a complete response


def replay_events(response: AgentResponse) -> list[StreamEvent]:
    """Return stream events that fold into the response: `fold(replay_events(response)) == response`."""
    start = AgentResponse(**{name: getattr(response, name) for name in _START_FIELDS})
    events: list[StreamEvent] = [StreamEvent.message_start(response=start)]
    for index, part in enumerate(response.content):
        events += _part_events(part, index)
    fields = {
        name: getattr(response, name)
        for name in AgentResponse.model_fields
        if name not in _SENT_FIELDS and name in response.model_fields_set
    }
    end = AgentResponse(**fields, raw=response.raw).with_cost(LazyCost(response.cost_estimate, response.cost_source))
    events.append(StreamEvent.message_end(usage=response.usage, response=end))
    return events


def _part_events(part: Part, index: int) -> list[StreamEvent]:
    delta: StreamEvent
    plain: Part
    match part:
        case ToolCall():
            arguments = part.invalid_arguments
            return [
                StreamEvent.tool_call_start(ToolCall(id=part.id, name=part.name), index=index),
                StreamEvent.tool_call_delta_event(
                    to_json(part.arguments).decode() if arguments is None else arguments, id=part.id, index=index
                ),
                StreamEvent.tool_call_end(part, index=index),
            ]
        case TextContent(text) if text:
            delta, plain = StreamEvent.text_delta(text, index=index), TextContent(text=text)
        case ThinkingContent(text) if text:
            delta, plain = StreamEvent.thinking_delta(text, index=index), ThinkingContent(thinking=text)
        case RefusalContent(text) if text:
            delta, plain = StreamEvent.refusal_delta(text, index=index), RefusalContent(refusal=text)
        case _:
            return [StreamEvent.content_part_event(part, index=index)]
    # Other fields of a part, such as citations and signatures, are sent with the finished part.
    return [delta] if part == plain else [delta, StreamEvent.content_part_event(part, index=index)]
