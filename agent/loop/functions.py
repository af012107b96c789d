"""The loop as functions: a conversation in, a stream of events out. Nothing is kept between two calls."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from ..agent import Agent
from ..context import Context as RunContext
from ..drivers.aio import AioRun
from ..errors import ConfigurationError
from ..looping.flow import looped
from ..looping.plan import Hooks, Plan
from ..looping.record import Record
from ..looping.shapes import AgentMessage, MessageLike, read_message
from ..tools.functions import as_tool
from ..tools.signal import Signal
from ..transports import load
from ..types import AgentRequest, Message, Role
from .config import AgentContext, AgentLoopConfig, Model, StreamFn
from .event_stream import EventStream
from .stream_functions import asked_through, stream_function


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
    record = Record("run", list(history), len(history))
    ask = asked_through(
        stream_fn or stream_function(_agent_for), config, context.system_prompt, context.tools, stopping
    )
    plan = Plan(
        ask=ask,
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


async def _driven(plan: Plan, record: Record, events: EventStream, signal: Signal) -> None:
    run = AioRun(load("http"), looped(plan, record, RunContext()))
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


def _close(record: Record, events: EventStream, reason: str, error: Exception | None) -> None:
    if not record.over:
        for event in record.closing(reason, error):
            events.push(event)


def _agent_for(model: Model) -> Any:
    return Agent(f"{model.provider}:{model.id}")
