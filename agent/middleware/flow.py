"""Middleware around a call: who is asked when, and what becomes of the answers. A function from Call to Call.

The first of the list is the outermost: `before` is asked in the order of the list, everything else the other way round.

What goes wrong inside reaches the `on_error` of those further out, and of nobody else: what a method of a middleware
raises is for the ones around it. An error in `on_event` ends the stream as a caller who leaves it would: nothing below
takes it for a failure of the vendor's, so no router goes on elsewhere. Cancellation and interrupts reach no method.
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
from .base import ANSWERED_BY, CallInfo, Facts, Middleware

_OPENING = ("provider", "model", "id", "request_id")
_NOT_FACTS = frozenset((*_OPENING, "content", "usage"))


def replay_events(response: AgentResponse) -> list[StreamEvent]:
    """Events that add up to the response: `fold(replay_events(response)) == response`."""
    opening = AgentResponse(**{name: getattr(response, name) for name in _OPENING})
    events: list[StreamEvent] = [StreamEvent.message_start(response=opening)]
    for index, part in enumerate(response.content):
        events += _events_of(part, index)
    rest = {
        name: getattr(response, name)
        for name in AgentResponse.model_fields
        if name not in _NOT_FACTS and name in response.model_fields_set
    }
    ending = AgentResponse(**rest, raw=response.raw).with_cost(LazyCost(response.cost_estimate, response.cost_source))
    events.append(StreamEvent.message_end(usage=response.usage, response=ending))
    return events


def _events_of(part: Part, index: int) -> list[StreamEvent]:
    spoken: StreamEvent
    plain: Part
    match part:
        case ToolCall():
            return _call(part, index)
        case TextContent(text) if text:
            spoken, plain = StreamEvent.text_delta(text, index=index), TextContent(text=text)
        case ThinkingContent(text) if text:
            spoken, plain = StreamEvent.thinking_delta(text, index=index), ThinkingContent(thinking=text)
        case RefusalContent(text) if text:
            spoken, plain = StreamEvent.refusal_delta(text, index=index), RefusalContent(refusal=text)
        case _:
            return [StreamEvent.content_part_event(part, index=index)]
    # What a part holds besides its words, such as sources and signatures, comes with the finished part.
    return [spoken] if part == plain else [spoken, StreamEvent.content_part_event(part, index=index)]


def _call(call: ToolCall, index: int) -> list[StreamEvent]:
    text = to_json(call.arguments).decode() if call.invalid_arguments is None else call.invalid_arguments
    return [
        StreamEvent.tool_call_start(ToolCall(id=call.id, name=call.name), index=index),
        StreamEvent.tool_call_delta_event(text, id=call.id, index=index),
        StreamEvent.tool_call_end(call, index=index),
    ]


T = TypeVar("T")
_METHODS = ("before", "after", "on_event", "on_error")


def wrap_call(
    call: Call,
    middleware: Sequence[Middleware],
    *,
    streaming: bool,
    target: str,
    fingerprint: Callable[[AgentRequest], str],
    every_target: bool = False,
) -> Call:
    """The call with middleware around it.

    Args:
        call: What it stands around.
        middleware: The outermost first.
        streaming: Whether the call emits events.
        target: What the call is known as.
        fingerprint: Digests a request as this call would send it.
        every_target: Whether the attempts of the call are made under other names than `target`, as a router's are.
    """
    layers = [_Layer.of(one) for one in middleware]

    def around(request: AgentRequest, context: Context) -> Flow[AgentResponse]:
        facts = _facts(request, context, streaming=streaming, target=target, fingerprint=fingerprint)
        facts.every_target = every_target
        facts.started = yield from Now()
        context.headers = None  # of a reply that another target sent, perhaps; here nobody has replied yet
        flow = _through(layers, 0, call, request, facts)
        try:
            return (yield from (intercept(flow, partial(_passed, facts)) if streaming else flow))
        except errors.AgentError as error:
            error.committed = error.committed or facts.emitted
            raise

    return around


def wrap_token_count(call: Call, middleware: Sequence[Middleware], *, target: str) -> Call:
    """The call with nothing but what `before` makes of its request, for counting tokens: no text may go out there that
    would not go out otherwise. Whoever answers, throttles or counts calls is told by `call.counting` to stay out."""
    layers = [_Layer.of(one) for one in middleware]

    def asked(request: AgentRequest, context: Context) -> Flow[AgentResponse]:
        facts = _facts(request, context, streaming=False, target=target, fingerprint=None)
        facts.counting = True
        facts.started = yield from Now()
        for layer in layers:
            if layer.before is not None:
                changed = yield from _ask(layer.before, facts, request, CallInfo.of(facts, request))
                request = request if isinstance(changed, AgentResponse) else _request(changed, request, layer)
        return (yield from call(request, context))

    return asked


def observe_events(flow: Flow[T], middleware: Sequence[Middleware], info: CallInfo) -> Flow[T]:
    """The flow with every event of it shown to `on_event`, whatever class it has; nothing else of it is touched."""
    for one in reversed(middleware):
        layer = _Layer.of(one)
        if layer.on_event is not None:
            flow = _listening(flow, layer, info.beside())
    return flow


def _listening(flow: Flow[T], layer: _Layer, info: CallInfo) -> Flow[T]:
    left: Exception
    try:
        return (yield from intercept(flow, partial(_heard, layer, info)))
    except _Left as leaving:
        left = leaving.error
    try:
        raise left
    finally:
        del left  # or the error and this frame keep each other alive


def validate_middleware(given: Iterable[Any]) -> tuple[Middleware, ...]:
    """What was passed as middleware, if it is that."""
    if isinstance(given, Middleware) or not isinstance(given, Iterable):
        raise errors.ConfigurationError(
            f"middleware is a {type(given).__name__}.", field="middleware", fix="Pass a list: middleware=[Logging()]."
        )
    found = tuple(given)
    for one in found:
        if isinstance(one, type):
            raise errors.ConfigurationError(
                f"middleware holds the class {one.__name__}.", field="middleware", fix=f"Pass {one.__name__}()."
            )
        if not any(callable(getattr(one, method, None)) for method in _METHODS):
            raise errors.ConfigurationError(
                f"A {type(one).__name__} is no middleware.",
                field="middleware",
                fix="Pass objects with any of the methods before, after, on_event and on_error.",
            )
        _Layer.of(one)
    return found


# One middleware


class _Hook(NamedTuple):
    """One method, and how it is performed."""

    function: Callable[..., Any]
    awaits: bool
    name: str


class _Layer(NamedTuple):
    """The methods that a middleware really has."""

    name: str
    before: _Hook | None
    after: _Hook | None
    on_event: _Hook | None
    on_error: _Hook | None

    @classmethod
    def of(cls, middleware: Any) -> _Layer:
        return cls(type(middleware).__name__, *(_hook(middleware, method) for method in _METHODS))


def _hook(middleware: Any, method: str) -> _Hook | None:
    function = getattr(middleware, method, None)
    if not callable(function) or getattr(function, "__func__", None) is getattr(Middleware, method):
        return None
    name = f"{type(middleware).__name__}.{method}"
    if inspect.isasyncgenfunction(function):
        raise errors.ConfigurationError(
            f"{name} is an async generator.", field="middleware", fix="Return what it yields, as a list."
        )
    return _Hook(function, inspect.iscoroutinefunction(function), name)


def _ask(hook: _Hook, facts: Facts, *args: Any) -> Flow[Any]:
    """Perform a method: inline, as an effect, or as a flow of its own."""
    if hook.awaits:
        return (yield from Invoke(hook.function, args, context=facts.context.user_context))
    value = hook.function(*args)
    return (yield from _come_to(value, hook, facts)) if _takes_time(value) else value


def _takes_time(value: Any) -> bool:
    return value is not None and (isinstance(value, Generator) or hasattr(type(value), "__await__"))


def _come_to(value: Any, hook: _Hook, facts: Facts) -> Flow[Any]:
    if isinstance(value, Generator):
        return (yield from _only_effects(value, hook))
    return (yield from Invoke(_itself, (value,), context=facts.context.user_context))


def _itself(value: T) -> T:
    return value


def _only_effects(flow: Flow[T], hook: _Hook) -> Flow[T]:
    """The flow, but what no driver could perform is named together with the method that yielded it."""
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
                    f"{hook.name} yielded a {type(effect).__name__}.",
                    field="middleware",
                    fix="Yield only effects of agent.engine.flow, and return the value: several events as a list.",
                )
            try:
                reply = yield effect
            except Exception as raised:
                reply, error = None, raised
    finally:
        flow.close()


# The layers


class _Left(BaseException):
    """A middleware has raised while it was shown an event. It passes by the flow below, which is closed."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error


def _facts(
    request: AgentRequest,
    context: Context,
    *,
    streaming: bool,
    target: str,
    fingerprint: Callable[[AgentRequest], str] | None,
) -> Facts:
    return Facts(
        streaming=streaming,
        target=target,
        request=request,
        fingerprint=fingerprint,
        run=context.run,
        context=context,
        made_before=len(context.attempts),
    )


def _passed(facts: Facts, emit: Emit) -> Flow[None]:
    facts.emitted = True
    yield emit


def _through(
    layers: Sequence[_Layer], depth: int, call: Call, request: AgentRequest, facts: Facts
) -> Flow[AgentResponse]:
    """The call through all layers from this one on."""
    if depth == len(layers):
        return (yield from call(request, facts.context))
    layer = layers[depth]
    info = CallInfo.of(facts, request)
    if layer.before is not None:
        changed = yield from _ask(layer.before, facts, request, info)
        if isinstance(changed, AgentResponse):
            return (yield from _answered(changed, layer, facts))
        request = _request(changed, request, layer)
    flow = _through(layers, depth + 1, call, request, facts)
    if facts.streaming and layer.on_event is not None:
        flow = intercept(flow, partial(_heard, layer, info))
    left: Exception | None = None
    try:
        response = yield from flow
    except _Left as leaving:
        left = leaving.error
    except Exception as error:
        if layer.on_error is None:
            raise
        instead = yield from _ask(layer.on_error, facts, error, info)
        if not isinstance(instead, AgentResponse):
            try:
                _raise_instead(instead, error, layer)
            finally:
                del instead  # or the error and this frame keep each other alive
            raise
        if facts.emitted or getattr(error, "committed", False):
            raise  # the caller has seen part of another answer
        return (yield from _answered(instead, layer, facts, info.attempts))
    if left is not None:
        try:
            raise left
        finally:
            left = None
    if layer.after is None:
        return response
    other = yield from _ask(layer.after, facts, response, info)
    if other is None:
        return response
    if not isinstance(other, AgentResponse):
        raise _wrong(layer, "after", other, "an AgentResponse")
    return other


def _heard(layer: _Layer, info: CallInfo, emit: Emit) -> Flow[None]:
    """Show events to a middleware, and emit what it makes of them."""
    hook, facts = layer.on_event, info._facts
    assert hook is not None
    events: list[Any] = []
    changed = False
    left: Exception | None = None
    try:
        for event in emit.events:
            made = (yield from _ask(hook, facts, event, info)) if hook.awaits else hook.function(event, info)
            if _takes_time(made):
                made = yield from _come_to(made, hook, facts)
            if made is None:
                events.append(event)
                continue
            changed = True
            if isinstance(made, list | tuple):
                events.extend(made)
            else:
                events.append(made)
    except Exception as error:
        left = error
        changed = True
    if not changed:
        yield emit
    elif events:
        yield Emit(events)  # also those that came together with the one that was too much
    if left is not None:
        try:
            raise _Left(left) from None
        finally:
            left = None


def _request(changed: Any, request: AgentRequest, layer: _Layer) -> AgentRequest:
    """What `before` has made of a request."""
    if changed is None:
        return request
    if not isinstance(changed, AgentRequest):
        raise _wrong(layer, "before", changed, "an AgentRequest or an AgentResponse")
    if changed.model is None and request.model is not None:  # one that was made anew, and means the same model
        return changed.model_copy(update={"model": request.model})
    return changed


def _raise_instead(instead: Any, error: Exception, layer: _Layer) -> None:
    if instead is None or instead is error:
        return
    if not isinstance(instead, Exception):
        raise _wrong(layer, "on_error", instead, "an AgentResponse or an exception")
    if isinstance(instead, errors.AgentError):
        instead.committed = instead.committed or bool(getattr(error, "committed", False))
    try:
        raise instead from error
    finally:
        del instead


def _answered(
    response: AgentResponse, layer: _Layer, facts: Facts, spent: Sequence[Attempt] = ()
) -> Flow[AgentResponse]:
    """An answer that a middleware gave: on record as such, and told as a stream where that is expected."""
    context = facts.context
    context.ended = now = yield from Now()
    began = now if spent else facts.started  # in place of a failure, it came after that
    context.log.add(
        Attempt(
            target=facts.target,
            provider=response.provider,
            model=response.model,
            reason=f"{ANSWERED_BY}{layer.name}",
            started=began - context.started,
            latency_ms=(now - began) * 1000,
            usage=response.usage,
            cost=response.cost_estimate,
        )
    )
    context.waited = context.reason = None
    context.first_event = now if facts.streaming else None
    billed = _charged(response, spent)
    if facts.streaming:
        yield Emit(replay_events(billed))
    return billed


def _charged(response: AgentResponse, attempts: Sequence[Attempt]) -> AgentResponse:
    """An answer in place of a failure that was paid for says what that cost, unless it says something itself."""
    usage, cost = sum_attempts(attempts)
    if response.usage is not None or usage is None:
        return response
    return response.model_copy(update={"usage": usage, "cost_estimate": cost})


def _wrong(layer: _Layer, method: str, value: Any, wanted: str) -> errors.ConfigurationError:
    return errors.ConfigurationError(
        f"{layer.name}.{method} returned a {type(value).__name__}.",
        field="middleware",
        fix=f"Return {wanted}, or None.",
    )
