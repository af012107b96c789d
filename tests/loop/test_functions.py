"""The loop as a function of a stream function, and the queue that its events come through."""

from __future__ import annotations

import asyncio
import dataclasses
import pickle
import threading
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from pydantic_core import to_json

from agent import errors, tool
from agent.loop import (
    AgentContext,
    AgentLoopConfig,
    AgentMessage,
    AgentTool,
    AgentToolResult,
    Context,
    EventStream,
    Model,
    Signal,
    SimpleStreamOptions,
    agent_loop,
    agent_loop_continue,
    stream_function,
    to_model_messages,
)
from agent.testing import scripted_agent
from agent.types import Message, Secret, StreamEvent, TextContent, ThinkingLevel, ToolCall
from tests.loop.stories import check_history, story

MODEL = Model(provider="scripted", id="m")


def config(**settings: Any) -> AgentLoopConfig:
    return AgentLoopConfig(model=MODEL, convert_to_llm=to_model_messages, **settings)


class Fake:
    """A custom stream response."""

    def __init__(self, message: dict[str, Any], texts: Sequence[str] = ()) -> None:
        self._message = message
        self._texts = list(texts)

    def __aiter__(self) -> AsyncIterator[StreamEvent]:
        return self

    async def __anext__(self) -> StreamEvent:
        if not self._texts:
            raise StopAsyncIteration
        await asyncio.sleep(0)
        return StreamEvent.text_delta(self._texts.pop(0))

    async def result(self) -> Any:
        return self._message


async def collect(stream: EventStream) -> list[Any]:
    return [event async for event in stream]


def test_a_brought_stream_function_drives_the_loop() -> None:
    seen: list[tuple[Model, Context, SimpleStreamOptions]] = []
    answers = iter(
        (
            Fake(
                {"role": "assistant", "content": [{"type": "tool_call", "id": "c1", "name": "look", "arguments": {}}]}
            ),
            Fake({"role": "assistant", "content": [{"type": "text", "text": "A river."}]}, ["A ", "river."]),
        )
    )

    async def stream(model: Model, context: Context, options: SimpleStreamOptions) -> Any:
        seen.append((model, context, options))
        return next(answers)

    async def execute(tool_call_id: str) -> AgentToolResult:
        return AgentToolResult(content=[TextContent(text=f"saw it ({tool_call_id})")])

    async def main() -> tuple[list[Any], Any]:
        context = AgentContext("Be brief.", [], [AgentTool("look", "Looks.", execute=execute)])
        events = agent_loop(["Look around."], context, config(temperature=0.5, max_tokens=9), None, stream)
        told = await collect(events)
        assert context.messages == []  # it is the caller's
        return told, await events.result()

    told, messages = asyncio.run(main())
    assert [message.text for message in messages] == ["Look around.", "", "saw it (c1)", "A river."]
    assert story(told)[-5:] == [
        "message_start assistant",
        "message_update text_delta",
        "message_end assistant",
        "turn_end 0 results",
        "agent_end 4 messages",
    ]
    model, context, options = seen[1]
    assert model is MODEL
    assert (context.system_prompt, [message.role.value for message in context.messages]) == (
        "Be brief.",
        ["user", "assistant", "tool"],
    )
    assert (options["temperature"], options["max_tokens"]) == (0.5, 9)


class Generated:
    """A stream response of dicts, whose `__aiter__` is an async generator."""

    def __init__(self, message: dict[str, Any], *events: dict[str, Any]) -> None:
        self._message = message
        self._events = events

    async def __aiter__(self) -> AsyncIterator[dict[str, Any]]:
        for event in self._events:
            yield event

    async def result(self) -> dict[str, Any]:
        return self._message


def test_events_and_messages_may_be_dicts_and_come_from_any_async_iterator() -> None:
    written = {"type": "tool_call", "id": "c1", "name": "look", "arguments": {"place": "river"}}
    answers = iter(
        (
            Generated(
                {"role": "assistant", "content": [written]},
                {"type": "message_start"},
                {"type": "tool_call_start", "tool_call": {"id": "c1", "name": "look"}},
                {"type": "tool_call_delta", "tool_call_delta": {"arguments": '{"place": '}},
                {"type": "tool_call_delta", "tool_call_delta": {"arguments": '"river"}'}},
                {"type": "tool_call_end", "tool_call": {**written, "type": "tool_call"}},
            ),
            Generated({"role": "assistant", "content": "Wet.", "stop_reason": "tired"}),
        )
    )

    async def stream(model: Model, context: Context, options: SimpleStreamOptions) -> Any:
        return next(answers)

    async def execute(tool_call_id: str, arguments: dict[str, str]) -> str:
        return f"saw the {arguments['place']}"

    partial: list[str | None] = []

    async def main() -> tuple[list[Any], Any]:
        events = agent_loop(["Look."], AgentContext(tools=[AgentTool("look", execute=execute)]), config(), None, stream)
        seen = []
        async for event in events:
            seen.append(event)
            if event.type == "message_update" and event.message.tool_calls:
                partial.append(event.message.tool_calls[0].partial_json)
        return seen, await events.result()

    seen, messages = asyncio.run(main())
    assert partial == ["", '{"place": ', '{"place": "river"}', None]
    assert messages[1].tool_calls == [ToolCall("c1", "look", {"place": "river"})]
    assert [event.assistant_message_event.tool_result for event in seen if event.type == "message_update"][-1] == (
        "saw the river"
    )
    assert messages[-1].stop_reason == "tired"


def test_an_event_that_is_no_event_ends_the_run_with_a_typed_error() -> None:
    async def stream(model: Model, context: Context, options: SimpleStreamOptions) -> Any:
        return Generated({"role": "assistant", "content": ""}, {"type": "nonsense"})

    async def main() -> Any:
        return await agent_loop(["Hi"], AgentContext(), config(), None, stream).result()

    assert "Invalid StreamEvent: type" in asyncio.run(main())[-1].error_message


def test_an_event_of_asyncio_aborts_the_loop() -> None:
    async def main() -> Any:
        abort = asyncio.Event()

        async def hang(tool_call_id: str) -> None:
            abort.set()
            await asyncio.sleep(60)

        stream = stream_function(scripted_agent(ToolCall("1", "hang"), "x"))
        context = AgentContext(tools=[AgentTool("hang", execute=hang)])
        return await asyncio.wait_for(agent_loop(["Hi"], context, config(), abort, stream).result(), 30)

    assert asyncio.run(main())[-1].stop_reason == "aborted"


def test_a_queue_may_end_without_a_result() -> None:
    async def main() -> tuple[list[Any], Any]:
        events = EventStream(lambda event: False, lambda event: [])
        events.push("one")
        events.end(None)
        events.push("two")
        return await collect(events), await asyncio.wait_for(events.result(), 5)

    assert asyncio.run(main()) == (["one"], [])


def test_an_agent_is_a_stream_function_that_never_raises() -> None:
    async def main() -> tuple[Message, Message, list[str]]:
        stream = stream_function(scripted_agent("Hello.", errors.BadRequestError("no")))
        answer = await stream(MODEL, Context(messages=[Message.user("Hi")]), {})
        types: list[str] = [event.type async for event in answer]
        good: Any = await answer.result()
        bad: Any = await (await stream(MODEL, Context(messages=[Message.user("Hi")]), {})).result()
        return good, bad, types

    good, bad, types = asyncio.run(main())
    assert (good.text, good.stop_reason, good.provider) == ("Hello.", "stop", "scripted")
    assert "text_delta" in types
    assert bad.stop_reason == "error"
    assert "no" in (bad.error_message or "")


def test_a_failure_is_the_last_message() -> None:
    async def main() -> Any:
        events = agent_loop(
            ["Hi"], AgentContext(), config(), None, stream_function(scripted_agent(errors.BadRequestError("no")))
        )
        await collect(events)
        return await events.result()

    messages = asyncio.run(main())
    assert messages[-1].stop_reason == "error"
    assert "no" in messages[-1].error_message


def test_a_stream_function_that_raises_after_all_ends_the_run_the_same_way() -> None:
    async def stream(model: Model, context: Context, options: SimpleStreamOptions) -> Any:
        raise RuntimeError("oops")

    async def main() -> Any:
        return await agent_loop(["Hi"], AgentContext(), config(), None, stream).result()

    messages = asyncio.run(main())
    assert messages[-1].stop_reason == "error"
    assert "oops" in messages[-1].error_message


def test_a_signal_aborts_the_run() -> None:
    signal = Signal()

    @tool
    async def hang() -> str:
        signal.set()
        await asyncio.sleep(30)
        return "never"

    async def main() -> Any:
        context = AgentContext(tools=[hang])
        agent = scripted_agent(ToolCall(id="c1", name="hang", arguments={}))
        events = agent_loop(["Hi"], context, config(), signal, stream_function(agent))
        told = await collect(events)
        return told, await events.result()

    told, messages = asyncio.run(main())
    assert told[-1].type == "agent_end"
    assert messages[-1].stop_reason == "aborted"
    check_history(messages)


def test_a_loop_continues_only_from_something_to_answer() -> None:
    async def main() -> list[str]:
        stream = stream_function(scripted_agent("Yes."))
        with pytest.raises(errors.ConfigurationError, match="no message to answer"):
            agent_loop_continue(AgentContext(), config(), None, stream)
        with pytest.raises(errors.ConfigurationError, match="the model sent"):
            agent_loop_continue(AgentContext(messages=[Message.assistant("Hi")]), config(), None, stream)
        events = agent_loop_continue(AgentContext(messages=[Message.user("Hi")]), config(), None, stream)
        return [message.text for message in await events.result()]  # type: ignore[union-attr]

    assert asyncio.run(main()) == ["Yes."]


def test_keys_are_asked_for_before_each_call_and_hooks_have_their_say() -> None:
    keys: list[str | None] = []
    steering: list[list[AgentMessage]] = [[], [Message.user("Also.")]]
    follow_ups: list[list[Any]] = [[{"role": "user", "content": "And?"}]]
    answers = iter(("One.", "Two.", "Three."))

    async def stream(model: Model, context: Context, options: SimpleStreamOptions) -> Any:
        keys.append(options["api_key"])
        return Fake({"role": "assistant", "content": next(answers)})

    async def key(provider: str) -> str:
        return f"{provider}-{len(keys)}"

    async def main() -> list[str]:
        settings = config(
            get_api_key=key,
            get_steering_messages=lambda: steering.pop() if steering else [],
            get_follow_up_messages=lambda: follow_ups.pop() if follow_ups else [],
            transform_context=lambda messages, signal: messages,
        )
        return [message.text for message in await agent_loop(["Hi"], AgentContext(), settings, None, stream).result()]  # type: ignore[union-attr]

    assert asyncio.run(main()) == ["Hi", "One.", "Also.", "Two.", "And?", "Three."]
    assert keys == ["scripted-0", "scripted-1", "scripted-2"]


def test_the_api_key_is_a_secret() -> None:
    settings = config(api_key="sk-secret")
    assert settings.api_key == "sk-secret"
    for shown in (repr(settings), str(dataclasses.asdict(settings)), to_json(settings, fallback=str).decode()):
        assert "sk-secret" not in shown
    assert b"sk-secret" not in pickle.dumps(settings)
    assert pickle.loads(pickle.dumps(settings)).api_key is None
    settings.api_key = "sk-other"
    assert "sk-other" not in repr(settings)
    assert "sk-other" not in repr(dataclasses.replace(settings, temperature=0.5))


def test_a_stream_function_gets_the_api_key_as_text() -> None:
    keys: list[Any] = []

    async def stream(model: Model, context: Any, options: Any) -> Any:
        keys.append(options["api_key"])
        return await stream_function(scripted_agent("Hi."))(model, context, {"temperature": None})

    async def main() -> None:
        await agent_loop(["Hi"], AgentContext(), config(api_key="sk-secret"), None, stream).result()
        await agent_loop(["Hi"], AgentContext(), config(get_api_key=lambda name: Secret("sk-2")), None, stream).result()

    asyncio.run(main())
    assert keys == ["sk-secret", "sk-2"]
    assert [type(key) for key in keys] == [str, str]


def test_without_a_stream_function_the_model_is_asked_by_its_name() -> None:
    async def main() -> list[str]:
        settings = config(max_tokens=100)
        settings.model = Model(provider="scripted", id="echo", thinking_level=ThinkingLevel.OFF)
        return [message.text for message in await agent_loop(["Hi"], AgentContext(), settings).result()]  # type: ignore[union-attr]

    assert asyncio.run(main()) == ["Hi", "You said: Hi"]


# The queue


def make_stream() -> EventStream:
    return EventStream(lambda event: event == "end", lambda event: [Message.user("result")])


def test_events_come_out_in_order_and_the_end_event_brings_the_result() -> None:
    async def main() -> tuple[list[Any], Any]:
        stream = make_stream()
        for event in ("a", "b", "end", "too late"):
            stream.push(event)
        return await collect(stream), await stream.result()

    events, result = asyncio.run(main())
    assert events == ["a", "b", "end"]
    assert [message.text for message in result] == ["result"]


def test_a_stream_may_be_filled_from_another_thread_and_ended_by_hand() -> None:
    async def main() -> tuple[list[Any], Any]:
        stream = make_stream()

        def fill() -> None:
            for number in range(100):
                stream.push(number)
            stream.end([Message.user("by hand")])
            stream.end([Message.user("too late")])

        thread = threading.Thread(target=fill)
        waiting = asyncio.create_task(stream.result())
        reading = asyncio.create_task(collect(stream))
        await asyncio.sleep(0)
        thread.start()
        events = await reading
        thread.join()
        return events, await waiting

    events, result = asyncio.run(main())
    assert events == list(range(100))
    assert [message.text for message in result] == ["by hand"]


def test_a_reader_that_is_cancelled_leaves_nothing_behind() -> None:
    async def main() -> int:
        stream = make_stream()
        task = asyncio.create_task(collect(stream))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return len(stream._changed._listeners)

    assert asyncio.run(main()) == 0
