"""Stream functions: the loop's own protocol for asking a model, in both directions.

`stream_function(agent)` makes one of an agent or router; `asked_through` lets a run use one that somebody brought.
A stream function never raises: a failure is a message with the stop reason `error`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Self

from ..caller import Caller
from ..context import Context as RunContext
from ..errors import AgentError, ProviderError
from ..flow import Emit, Flow, Invoke
from ..looping.plan import Ask, heard
from ..streams import AsyncResponseStream
from ..tools.base import Tool
from ..tools.signal import Signal
from ..types import AgentResponse, Message, Role, StreamEvent, ThinkingLevel
from .config import AgentLoopConfig, Context, Model, SimpleStreamOptions, StreamFn


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


def stream_function(caller: Caller | Callable[[Model], Caller]) -> StreamFn:
    """An agent or router as a stream function; or a function that finds one for a model."""

    async def stream(model: Model, context: Context, options: SimpleStreamOptions) -> AgentStreamResponse:
        chosen = caller if isinstance(caller, Caller) else caller(model)
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
) -> Ask:
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
