"""`agent_loop`: the loop as a function over any stream function, without state between calls.

`Agent` and `Router` need none of this. It serves applications that call a model in their own way.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Protocol, Self, TypeAlias, TypedDict

from pydantic import SecretStr
from typing_extensions import override

from ..agent import Agent
from ..calls.streams import AsyncResponseStream
from ..client import Client
from ..engine.context import Context as RunContext
from ..engine.drivers.asyncio import AioRun
from ..engine.flow import Emit, Flow, Invoke
from ..errors import AgentError, ConfigurationError, ProviderError
from ..tools.base import AgentTool, Signal, Tool
from ..tools.functions import as_tool
from ..transports import get_transport
from ..types import AgentRequest, AgentResponse, Message, Role, Secret, StreamEvent, ThinkingLevel, ToolLoopConfig
from ..types._base import validate_with
from .events import AgentMessage, AssistantMessageEvent, MessageLike, coerce_message
from .flow import run_loop
from .hooks import AfterToolCall, BeforeToolCall, Hooks, ModelCall, RunPlan, call_hook
from .journal import Journal
from .run_state import RunState, message_stop_reason


@dataclass
class Context:
    """The conversation that a stream function gets."""

    system_prompt: str = ""
    messages: list[Message] = field(default_factory=list)
    tools: list[Tool] | None = None


@dataclass
class AgentContext:
    """The conversation that a run starts with. Messages with custom roles are allowed."""

    system_prompt: str = ""
    messages: list[AgentMessage] = field(default_factory=list)
    tools: list[Tool] | None = None


@dataclass
class Model:
    """A model and its reasoning effort."""

    provider: str = ""
    id: str = ""
    api: str = ""
    thinking_level: ThinkingLevel = ThinkingLevel.OFF


AbortSignal: TypeAlias = Signal | asyncio.Event


class SimpleStreamOptions(TypedDict, total=False):
    """Options of a stream function."""

    api_key: str | None
    temperature: float | None
    max_tokens: int | None
    signal: AbortSignal | None


class StreamResponse(Protocol):
    """A streamed response. It never raises: a failure is a message with the stop reason `error`.

    Messages and events may be dicts. `__aiter__` may return any async iterator, such as an async generator.
    """

    def result(self) -> Awaitable[Message | AgentResponse | Mapping[str, Any]]: ...  # Any: a message as a dict

    def __aiter__(self) -> AsyncIterator[AssistantMessageEvent | Mapping[str, Any]]: ...  # Any: an event as a dict


StreamFn: TypeAlias = Callable[[Model, Context, SimpleStreamOptions], Awaitable[StreamResponse]]
ConvertToLlmFn: TypeAlias = Callable[[Sequence[AgentMessage]], Any]
"""Converts the conversation to the messages that the model is sent. Plain or async."""
TransformContextFn: TypeAlias = Callable[..., Any]
"""Selects or rewrites messages before `convert_to_llm`. Plain or async. A second parameter gets the abort `Signal`."""
ApiKeyResolver: TypeAlias = Callable[[str], Any]
"""Returns the API key of a provider, before each model call. Plain or async."""
AgentMessageProvider: TypeAlias = Callable[[], Any]
"""Returns queued messages. Plain or async."""


@dataclass
class AgentLoopConfig:
    """Settings of `agent_loop`.

    `api_key` is stored as a `Secret`: masked in reprs and dumps, absent from pickles.
    """

    model: Model
    convert_to_llm: ConvertToLlmFn
    transform_context: TransformContextFn | None = None
    get_api_key: ApiKeyResolver | None = None
    get_steering_messages: AgentMessageProvider | None = None
    get_follow_up_messages: AgentMessageProvider | None = None
    api_key: str | Secret | None = None
    temperature: float | None = None
    max_tokens: int | None = None
    _: KW_ONLY
    before_tool_call: BeforeToolCall | None = None
    after_tool_call: AfterToolCall | None = None
    loop: ToolLoopConfig = field(default_factory=ToolLoopConfig)
    journal: Journal | None = None
    deps: Any = None

    @override
    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, Secret(value) if name == "api_key" and isinstance(value, str) else value)


class AgentState(TypedDict, total=False):
    """Snapshot of a loop's state."""

    system_prompt: str
    model: Model | None
    thinking_level: ThinkingLevel
    tools: list[AgentTool | Tool]
    messages: list[AgentMessage]
    is_streaming: bool
    stream_message: AgentMessage | None
    pending_tool_calls: set[str]
    error: str | None


class AgentStreamResponse:
    """A StreamResponse over an agent's stream."""

    def __init__(self, stream: AsyncResponseStream) -> None:
        self._stream = stream
        self._events: Any = None
        self._message: Message | None = None

    def __aiter__(self) -> AsyncIterator[StreamEvent]:
        return self

    async def __anext__(self) -> StreamEvent:
        if self._events is None:
            self._events = self._stream.__aiter__()
        try:
            event: StreamEvent = await self._events.__anext__()
            return event
        except StopAsyncIteration:
            response = self._stream.response
            self._message = response.message.replace(
                stop_reason=message_stop_reason(response), provider=response.provider, model=response.model
            )
        except AgentError as error:
            partial = [part for part in self._stream.content if part.type != "tool_call"]
            self._message = Message(Role.ASSISTANT, partial, stop_reason="error", error_message=str(error))
        raise StopAsyncIteration

    async def result(self) -> Message:
        async for _ in self:
            pass
        assert self._message is not None
        return self._message

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()


def stream_function(
    caller: Client | Callable[[Model], Client],
) -> Callable[[Model, Context, SimpleStreamOptions], Awaitable[AgentStreamResponse]]:
    """Return a stream function for an agent or router.

    Args:
        caller: The agent or router, or a function that returns one for a model.
    """

    async def stream(model: Model, context: Context, options: SimpleStreamOptions) -> AgentStreamResponse:
        client = caller if isinstance(caller, Client) else caller(model)
        settings: dict[str, Any] = {
            name: value for name in ("temperature", "max_tokens") if (value := options.get(name)) is not None
        }
        if context.system_prompt:
            settings["system"] = context.system_prompt
        if context.tools:
            settings["tools"] = context.tools
        if model.thinking_level is not ThinkingLevel.OFF:
            settings["thinking"] = model.thinking_level
        if options.get("api_key"):
            client = client.with_config(api_key=options["api_key"])
        return AgentStreamResponse(client.astream(context.messages, **settings))

    return stream


def wrap_stream_fn(
    stream_fn: StreamFn, config: AgentLoopConfig, system_prompt: str, tools: Sequence[Tool] | None, signal: AbortSignal
) -> ModelCall:
    """Return the model call of a run that uses a stream function."""

    def call_model(messages: Sequence[Message], turn: int, context: RunContext) -> Flow[AgentResponse]:
        key: Any = config.api_key
        if config.get_api_key is not None:
            key = (yield from call_hook("get_api_key", config.get_api_key, config.model.provider)) or key
        options: SimpleStreamOptions = {
            "api_key": key.get_secret_value() if isinstance(key, SecretStr) else key,
            "temperature": config.temperature,
            "max_tokens": config.max_tokens,
            "signal": signal,
        }
        model_context = Context(system_prompt, list(messages), None if tools is None else list(tools))
        response = yield from Invoke(stream_fn, (config.model, model_context, options))
        events = response.__aiter__()
        while (event := (yield from Invoke(_next, (events,)))) is not None:
            if event.type != "error":
                yield Emit([event])
        return _read_message((yield from Invoke(response.result)), config.model)

    return call_model


async def _next(events: AsyncIterator[Any]) -> StreamEvent | None:
    try:
        event = await events.__anext__()
    except StopAsyncIteration:
        return None
    return event if isinstance(event, StreamEvent) else validate_with(lambda: StreamEvent.from_dict(event))


def _read_message(value: Any, model: Model) -> AgentResponse:
    """Convert a stream function's message to a response. Raise the failure it reports."""
    if isinstance(value, AgentResponse):
        return value
    message = value if isinstance(value, Message) else Message.from_dict(value)
    if message.stop_reason in ("error", "aborted"):
        raise ProviderError(
            message.error_message or "the model failed", provider=model.provider or None, model=model.id or None
        )
    return AgentResponse(
        content=message.parts,
        usage=message.usage,
        stop_reason=message.stop_reason or ("tool_calls" if message.tool_calls else "stop"),  # type: ignore[arg-type]
        provider=message.provider or model.provider,
        model=message.model or model.id,
    )


class EventStream:
    """An async event queue: `push` adds events, `async for` reads them, `result()` waits for the end.

    Args:
        is_end_event: Whether an event is the last one.
        get_result: Returns the result, given the last event.
    """

    def __init__(
        self, is_end_event: Callable[[Any], bool], get_result: Callable[[Any], Sequence[AgentMessage]]
    ) -> None:  # Any: events of any type
        self._is_end_event = is_end_event
        self._get_result = get_result
        self._events: deque[Any] = deque()
        self._result: Sequence[AgentMessage] | None = None
        self._ended = False
        self._changed = Signal()
        """Set, and replaced, when an event or the end arrives."""
        self._lock = threading.Lock()

    def push(self, event: Any) -> None:  # Any: an event of any type
        """Add an event. Events after the end are dropped."""
        with self._lock:
            if self._ended:
                return
            self._events.append(event)
            if self._is_end_event(event):
                self._result, self._ended = self._get_result(event), True
        self._wake()

    def end(self, result: Sequence[AgentMessage] | None = None) -> None:
        """Close the stream. A second call has no effect."""
        with self._lock:
            if not self._ended:
                self._result, self._ended = result, True
        self._wake()

    async def result(self) -> Sequence[AgentMessage]:
        """Wait for the end and return its result, or an empty list. Events need not be read."""
        while True:
            changed = self._changed
            if self._ended:
                return self._result if self._result is not None else []
            await changed.wait()

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        while True:
            changed = self._changed
            with suppress(IndexError):
                return self._events.popleft()
            if self._ended and not self._events:
                raise StopAsyncIteration
            await changed.wait()

    def _wake(self) -> None:
        with self._lock:
            changed, self._changed = self._changed, Signal()
        changed.set()


def agent_loop(
    prompts: Sequence[MessageLike],
    context: AgentContext,
    config: AgentLoopConfig,
    signal: AbortSignal | None = None,
    stream_fn: StreamFn | None = None,
) -> EventStream:
    """Run the loop with these prompts until the model makes no more calls. Call it inside an event loop.

    The stream's result is the list of added messages; `context` is not changed. If the run fails, the last message
    has the stop reason `error` or `aborted`.
    """
    return _start_loop([coerce_message(prompt) for prompt in prompts], context, config, signal, stream_fn)


def agent_loop_continue(
    context: AgentContext,
    config: AgentLoopConfig,
    signal: AbortSignal | None = None,
    stream_fn: StreamFn | None = None,
) -> EventStream:
    """Like `agent_loop`, but from a conversation that already ends with a message to answer."""
    check_continuable([coerce_message(message) for message in context.messages])
    return _start_loop([], context, config, signal, stream_fn)


def check_continuable(messages: Sequence[AgentMessage]) -> None:
    """Raise ConfigurationError if the conversation does not end with a message that the model can answer."""
    last = messages[-1] if messages else None
    if last is None or (isinstance(last, Message) and last.role is Role.ASSISTANT):
        raise ConfigurationError(
            "The conversation has no message to answer: "
            + ("it is empty." if last is None else "the model sent the last one."),
            field="messages",
            fix="Pass a prompt.",
        )


def _start_loop(
    prompts: Sequence[AgentMessage],
    context: AgentContext,
    config: AgentLoopConfig,
    signal: AbortSignal | None,
    stream_fn: StreamFn | None,
) -> EventStream:
    events = EventStream(lambda event: event.type == "agent_end", lambda event: list(event.messages))
    abort_signal = signal if signal is not None else Signal()
    history = [coerce_message(message) for message in context.messages]
    tools = {tool.name: tool for tool in map(as_tool, context.tools or ())}
    state = RunState("run", list(history), len(history))
    call_model = wrap_stream_fn(
        stream_fn or stream_function(lambda model: Agent(f"{model.provider}:{model.id}")),
        config,
        context.system_prompt,
        context.tools,
        abort_signal,
    )
    plan = RunPlan(
        call_model=call_model,
        tools=lambda response: tools,
        request=AgentRequest(system=context.system_prompt or None),
        config=config.loop,
        hooks=Hooks(
            before_tool_call=config.before_tool_call,
            after_tool_call=config.after_tool_call,
            transform_context=config.transform_context,
            convert_to_llm=config.convert_to_llm,
            get_steering_messages=config.get_steering_messages,
            get_follow_up_messages=config.get_follow_up_messages,
            journal=config.journal,
        ),
        deps=config.deps,
        signal=abort_signal,
        prompts=prompts,
    )
    _tasks.add(task := asyncio.get_running_loop().create_task(_drive(plan, state, events, abort_signal)))
    task.add_done_callback(_tasks.discard)
    return events


_tasks: set[asyncio.Task[None]] = set()
"""Strong references: event loops hold their tasks weakly."""


async def _drive(plan: RunPlan, state: RunState, events: EventStream, signal: AbortSignal) -> None:
    run = AioRun(get_transport("http"), run_loop(plan, state, RunContext()))
    watcher = asyncio.get_running_loop().create_task(_close_on_signal(signal, run))
    try:
        while (batch := await run.advance()) is not None:
            for event in batch:
                events.push(event)
        if not state.ended:
            _close(state, events, "aborted", None)
    except Exception as error:
        if not state.ended:  # the flow reports its own failures, but not those of its driver
            _close(state, events, "error", error)
    except BaseException:
        _close(state, events, "aborted", None)
        raise
    finally:
        watcher.cancel()
        await run.aclose()
        events.end(state.added)


async def _close_on_signal(signal: AbortSignal, run: AioRun) -> None:
    await signal.wait()
    await run.aclose()


def _close(state: RunState, events: EventStream, reason: str, error: Exception | None) -> None:
    if not state.ended:
        for event in state.close(reason, error):
            events.push(event)
