"""The loop as functions: a conversation in, a stream of events out. Nothing is kept between two calls."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Protocol, Self, TypeAlias, TypedDict

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
from ..types import AgentRequest, AgentResponse, Message, Role, StreamEvent, ThinkingLevel, ToolLoopConfig
from .events import AgentMessage, AssistantMessageEvent, MessageLike, read_message
from .flow import run_loop
from .hooks import AfterToolCall, BeforeToolCall, Hooks, ModelCall, RunPlan, heard
from .journal import Journal
from .run_state import RunState


@dataclass
class Context:
    """What a stream function is given: a conversation that models understand."""

    system_prompt: str = ""
    messages: list[Message] = field(default_factory=list)
    tools: list[Tool] | None = None


@dataclass
class AgentContext:
    """What a run begins with. Messages with roles of their own may stand among the others."""

    system_prompt: str = ""
    messages: list[AgentMessage] = field(default_factory=list)
    tools: list[Tool] | None = None


@dataclass
class Model:
    """Which model, and how hard it shall think."""

    provider: str = ""
    id: str = ""
    api: str = ""
    thinking_level: ThinkingLevel = ThinkingLevel.OFF


class SimpleStreamOptions(TypedDict, total=False):
    """What a stream function is told besides."""

    api_key: str | None
    temperature: float | None
    max_tokens: int | None
    signal: Signal | None


class StreamResponse(Protocol):
    """A model's answer while it arrives. It never raises: a failure is a message with the stop reason `error`."""

    def result(self) -> Awaitable[Message | AgentResponse]: ...

    def __aiter__(self) -> AsyncIterator[AssistantMessageEvent]: ...

    async def __anext__(self) -> AssistantMessageEvent: ...


StreamFn: TypeAlias = Callable[[Model, Context, SimpleStreamOptions], Awaitable[StreamResponse]]
ConvertToLlmFn: TypeAlias = Callable[[Sequence[AgentMessage]], Any]
"""From the conversation of a run to the messages a model is sent. Plain or async."""
TransformContextFn: TypeAlias = Callable[..., Any]
"""From the conversation to the part of it that matters now, before `convert_to_llm`. Plain or async. A second
parameter, if there is one, is the `Signal` that is set when the run is aborted."""
ApiKeyResolver: TypeAlias = Callable[[str], Any]
"""The key for a provider, asked for before each model call. Plain or async."""
AgentMessageProvider: TypeAlias = Callable[[], Any]
"""Messages that are waiting, if any. Plain or async."""


@dataclass
class AgentLoopConfig:
    """How `agent_loop` runs."""

    model: Model
    convert_to_llm: ConvertToLlmFn
    transform_context: TransformContextFn | None = None
    get_api_key: ApiKeyResolver | None = None
    get_steering_messages: AgentMessageProvider | None = None
    get_follow_up_messages: AgentMessageProvider | None = None
    api_key: str | None = field(default=None, repr=False)
    temperature: float | None = None
    max_tokens: int | None = None
    _: KW_ONLY
    before_tool_call: BeforeToolCall | None = None
    after_tool_call: AfterToolCall | None = None
    loop: ToolLoopConfig = field(default_factory=ToolLoopConfig)
    journal: Journal | None = None
    deps: Any = None


class AgentState(TypedDict, total=False):
    """Everything about a loop that can be looked at, as it is now."""

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
    """An agent's answer behind the protocol: iterate over its events, and await its message."""

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
            facts = {"stop_reason": response.stop_reason, "provider": response.provider, "model": response.model}
            self._message = response.message.model_copy(update=facts)
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


def stream_function(caller: Client | Callable[[Model], Client]) -> StreamFn:
    """An agent or router as a stream function; or a function that finds one for a model."""

    async def stream(model: Model, context: Context, options: SimpleStreamOptions) -> AgentStreamResponse:
        chosen = caller if isinstance(caller, Client) else caller(model)
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
            chosen = chosen.with_config(api_key=options["api_key"])
        return AgentStreamResponse(chosen.astream(context.messages, **settings))

    return stream


def asked_through(
    stream_fn: StreamFn, config: AgentLoopConfig, system_prompt: str, tools: Sequence[Tool] | None, signal: Signal
) -> ModelCall:
    """How a run asks through a stream function."""

    def ask(messages: Sequence[Message], turn: int, context: RunContext) -> Flow[AgentResponse]:
        key = config.api_key
        if config.get_api_key is not None:
            key = (yield from heard("get_api_key", config.get_api_key, config.model.provider)) or key
        options: SimpleStreamOptions = {
            "api_key": key,
            "temperature": config.temperature,
            "max_tokens": config.max_tokens,
            "signal": signal,
        }
        given = Context(system_prompt, list(messages), None if tools is None else list(tools))
        answer = yield from Invoke(stream_fn, (config.model, given, options))
        while (event := (yield from Invoke(_next, (answer,)))) is not None:
            if event.type != "error":
                yield Emit([event])
        return _read((yield from Invoke(answer.result)), config.model)

    return ask


async def _next(answer: Any) -> StreamEvent | None:
    try:
        event: StreamEvent = await answer.__anext__()
        return event
    except StopAsyncIteration:
        return None


def _read(said: Any, model: Model) -> AgentResponse:
    """What a stream function's message comes to; one that says it failed is raised, for the run to end with."""
    if isinstance(said, AgentResponse):
        return said
    message = said if isinstance(said, Message) else Message.from_dict(said)
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
    """Push events in, iterate over them with `async for`, and `await result()`.

    Args:
        is_end_event: Whether an event is the last one.
        get_result: The result, from that event.
    """

    def __init__(
        self, is_end_event: Callable[[Any], bool], get_result: Callable[[Any], Sequence[AgentMessage]]
    ) -> None:
        self._is_end_event = is_end_event
        self._get_result = get_result
        self._events: deque[Any] = deque()
        self._result: Sequence[AgentMessage] | None = None
        self._waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []
        self._lock = threading.Lock()

    def push(self, event: Any) -> None:
        """Add an event. What comes after the end is dropped."""
        with self._lock:
            if self._result is not None:
                return
            self._events.append(event)
            if self._is_end_event(event):
                self._result = self._get_result(event)
        self._wake()

    def end(self, result: Sequence[AgentMessage]) -> None:
        """Say that no more will come. A second end changes nothing."""
        with self._lock:
            if self._result is None:
                self._result = result
        self._wake()

    async def result(self) -> Sequence[AgentMessage]:
        """What the end brought; waits for it. Events need not be read for that."""
        while self._result is None:
            await self._wait(lambda: self._result is not None)
        return self._result

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        while True:
            with suppress(IndexError):
                return self._events.popleft()
            if self._result is not None and not self._events:
                raise StopAsyncIteration
            await self._wait(lambda: bool(self._events) or self._result is not None)

    async def _wait(self, is_there: Callable[[], bool]) -> None:
        loop = asyncio.get_running_loop()
        woken: asyncio.Future[None] = loop.create_future()
        with self._lock:
            if is_there():
                return
            self._waiting.append((loop, woken))
        try:
            await woken
        finally:
            with self._lock, suppress(ValueError):
                self._waiting.remove((loop, woken))

    def _wake(self) -> None:
        with self._lock:
            waiting = list(self._waiting)
        for loop, woken in waiting:
            with suppress(RuntimeError):  # that loop has ended
                loop.call_soon_threadsafe(_settle, woken)


def _settle(heard: asyncio.Future[None]) -> None:
    if not heard.done():
        heard.set_result(None)


def agent_loop(
    prompts: Sequence[MessageLike],
    context: AgentContext,
    config: AgentLoopConfig,
    signal: Signal | None = None,
    stream_fn: StreamFn | None = None,
) -> EventStream:
    """Say something, and run until the model has nothing more to do. Call it inside an event loop.

    The stream's result is the list of messages that were added; `context` is not changed. A failure is the last of
    them, with the stop reason `error` or `aborted`.
    """
    return _begun([read_message(prompt) for prompt in prompts], context, config, signal, stream_fn)


def agent_loop_continue(
    context: AgentContext,
    config: AgentLoopConfig,
    signal: Signal | None = None,
    stream_fn: StreamFn | None = None,
) -> EventStream:
    """As `agent_loop`, from a conversation that already ends with something to answer."""
    check_continuable([read_message(message) for message in context.messages])
    return _begun([], context, config, signal, stream_fn)


def check_continuable(messages: Sequence[AgentMessage]) -> None:
    """A conversation can go on by itself if somebody else than the model had the last word."""
    last = messages[-1] if messages else None
    if last is None or (isinstance(last, Message) and last.role is Role.ASSISTANT):
        raise ConfigurationError(
            "There is nothing to answer: " + ("no messages." if last is None else "the last message is the model's."),
            field="messages",
            fix="Say something with a prompt.",
        )


def _begun(
    prompts: Sequence[AgentMessage],
    context: AgentContext,
    config: AgentLoopConfig,
    signal: Signal | None,
    stream_fn: StreamFn | None,
) -> EventStream:
    events = EventStream(lambda event: event.type == "agent_end", lambda event: list(event.messages))
    stopping = signal if signal is not None else Signal()
    history = [read_message(message) for message in context.messages]
    tools = {tool.name: tool for tool in map(as_tool, context.tools or ())}
    record = RunState("run", list(history), len(history))
    ask = asked_through(
        stream_fn or stream_function(_agent_for), config, context.system_prompt, context.tools, stopping
    )
    plan = RunPlan(
        call_model=ask,
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
        signal=stopping,
        prompts=prompts,
    )
    _tasks.add(task := asyncio.get_running_loop().create_task(_driven(plan, record, events, stopping)))
    task.add_done_callback(_tasks.discard)
    return events


_tasks: set[asyncio.Task[None]] = set()
"""Loops hold their tasks only weakly."""


async def _driven(plan: RunPlan, record: RunState, events: EventStream, signal: Signal) -> None:
    run = AioRun(get_transport("http"), run_loop(plan, record, RunContext()))
    watching = asyncio.get_running_loop().create_task(_abandoned_at(signal, run))
    try:
        while (told := await run.advance()) is not None:
            for event in told:
                events.push(event)
        if not record.over:
            _close(record, events, "aborted", None)
    except Exception as error:
        if not record.over:  # the flow tells of its own failures; this one could not
            _close(record, events, "error", error)
    except BaseException:
        _close(record, events, "aborted", None)
        raise
    finally:
        watching.cancel()
        await run.aclose()
        events.end(record.added)


async def _abandoned_at(signal: Signal, run: AioRun) -> None:
    await signal.wait()
    await run.aclose()


def _close(record: RunState, events: EventStream, reason: str, error: Exception | None) -> None:
    if not record.over:
        for event in record.closing(reason, error):
            events.push(event)


def _agent_for(model: Model) -> Any:
    return Agent(f"{model.provider}:{model.id}")
