"""The attributes of a stream: while it runs, at its end, and after a failure."""

from __future__ import annotations

import asyncio
import gc
import json
from typing import Any

import pytest
from typing_extensions import override

from agent import Agent, errors
from agent.engine.wire import AsyncBody, Limits, RunTimeout, SyncBody, WireRequest
from agent.testing import scripted_agent
from agent.types import AgentResponse, StreamEvent, TextContent, ThinkingContent, ToolCall, Usage

ANSWER = AgentResponse(
    content=(
        ThinkingContent(thinking="let me see"),
        TextContent(text="one two three"),
        ToolCall(id="c", name="f", arguments={"a": 1}),
    ),
    usage=Usage(prompt_tokens=3, completion_tokens=5),
)


class Sync:
    """Both kinds of stream behind one face, so that each test is written once."""

    def texts(self, agent: Agent) -> list[str]:
        return list(agent.stream("x").text_stream())

    def collect(self, agent: Agent, times: int = 1) -> list[AgentResponse]:
        stream = agent.stream("x")
        return [stream.collect() for _ in range(times)]

    def views(self, agent: Agent) -> list[tuple[Any, ...]]:
        with agent.stream("x") as stream:
            seen = [self._view(stream) for _ in stream]
            return [*seen, self._view(stream)]

    def response_too_early(self, agent: Agent) -> None:
        assert agent.stream("x").response is not None

    def twice(self, agent: Agent) -> None:
        stream = agent.stream("x")
        for _ in stream:
            break
        list(stream)

    def after_close(self, agent: Agent) -> None:
        stream = agent.stream("x")
        stream.close()
        list(stream)

    def abort_before_the_start(self, agent: Agent) -> None:
        stream = agent.stream("x")
        stream.abort()
        list(stream)

    def _view(self, stream: Any) -> tuple[Any, ...]:
        return stream.text, stream.thinking, len(stream.tool_calls), len(stream.content), stream.usage


class Async(Sync):
    @override
    def texts(self, agent: Agent) -> list[str]:
        async def main() -> list[str]:
            return [text async for text in agent.astream("x").text_stream()]

        return asyncio.run(main())

    @override
    def collect(self, agent: Agent, times: int = 1) -> list[AgentResponse]:
        async def main() -> list[AgentResponse]:
            stream = agent.astream("x")
            return [await stream.result() for _ in range(times)]

        return asyncio.run(main())

    @override
    def views(self, agent: Agent) -> list[tuple[Any, ...]]:
        async def main() -> list[tuple[Any, ...]]:
            async with agent.astream("x") as stream:
                seen = [self._view(stream) async for _ in stream]
                return [*seen, self._view(stream)]

        return asyncio.run(main())

    @override
    def response_too_early(self, agent: Agent) -> None:
        assert agent.astream("x").response is not None

    @override
    def twice(self, agent: Agent) -> None:
        async def main() -> None:
            stream = agent.astream("x")
            async for _ in stream:
                break
            async for _ in stream:
                pass

        asyncio.run(main())

    @override
    def after_close(self, agent: Agent) -> None:
        async def main() -> None:
            stream = agent.astream("x")
            await stream.aclose()
            await stream.collect()

        asyncio.run(main())

    @override
    def abort_before_the_start(self, agent: Agent) -> None:
        async def main() -> None:
            stream = agent.astream("x")
            stream.abort()
            await stream.collect()

        asyncio.run(main())


@pytest.fixture(params=[Sync(), Async()], ids=["sync", "async"])
def face(request: pytest.FixtureRequest) -> Sync:
    assert isinstance(request.param, Sync)
    return request.param


def test_the_text_alone_can_be_had(face: Sync) -> None:
    assert face.texts(scripted_agent(ANSWER)) == ["one", " two", " three"]


def test_collecting_gives_the_response_as_often_as_asked(face: Sync) -> None:
    first, second = face.collect(scripted_agent(ANSWER), times=2)
    assert first.text == "one two three"
    assert first is second


def test_what_has_arrived_can_be_looked_at_while_the_rest_is_coming(face: Sync) -> None:
    views = face.views(scripted_agent(ANSWER))
    texts = [view[0] for view in views]
    assert texts[0] == ""
    assert "one two" in texts
    assert views[-1] == ("one two three", "let me see", 1, 3, ANSWER.usage)
    calls = [view[2] for view in views]
    assert calls[-4:] == [0, 1, 1, 1], "a call counts when it is complete, not before"


def test_there_is_no_response_before_the_end(face: Sync) -> None:
    with pytest.raises(errors.ConfigurationError, match="has not ended") as caught:
        face.response_too_early(scripted_agent(ANSWER))
    assert "collect()" in str(caught.value)


def test_a_stream_cannot_be_resumed(face: Sync) -> None:
    with pytest.raises(errors.ConfigurationError, match="cannot be resumed"):
        face.twice(scripted_agent(ANSWER))
    with pytest.raises(errors.ConfigurationError, match="cannot be resumed"):
        face.after_close(scripted_agent(ANSWER))


def test_a_stream_that_was_aborted_before_it_began_sends_nothing(face: Sync) -> None:
    agent = scripted_agent(ANSWER)
    with pytest.raises(errors.Aborted):
        face.abort_before_the_start(agent)
    assert face.collect(agent)[0].text == "one two three", "the script's line was still there"


def test_a_loop_that_ends_in_an_error_keeps_what_had_arrived() -> None:
    stream = scripted_agent(ANSWER).stream("x")
    with pytest.raises(ZeroDivisionError):
        for event in stream:
            if event.text == " two":
                raise ZeroDivisionError
    assert stream.text == "one two"


class _Batches:
    """A transport that brings a hundred words at a time; before each it counts the events that are alive."""

    def __init__(self) -> None:
        self.living: list[int] = []
        self._pieces = iter([_words(100, "word ")] * 5 + [_words(1, "end", "stop") + b"data: [DONE]\n\n"])

    def next_piece(self) -> bytes:
        self.living.append(sum(isinstance(thing, StreamEvent) for thing in gc.get_objects()))
        return next(self._pieces, b"")

    def open(self, request: WireRequest, limits: Limits, timeout: RunTimeout) -> SyncBody:
        body = _Blocking(200, {})
        body.source, body.timeout = self, timeout
        timeout.run.bodies.append(body)
        return body

    async def aopen(self, request: WireRequest, limits: Limits, bodies: list[AsyncBody]) -> AsyncBody:
        body = _Awaited(200, {})
        body.source = self
        bodies.append(body)
        return body


class _Blocking(SyncBody):
    source: _Batches

    @override
    def read(self) -> bytes:
        return self.source.next_piece()

    @override
    def close(self) -> None:
        pass


class _Awaited(AsyncBody):
    source: _Batches

    @override
    async def read(self) -> bytes:
        return self.source.next_piece()

    @override
    async def aclose(self) -> None:
        pass


def _words(times: int, text: str, reason: str | None = None) -> bytes:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": reason}
    return (b"data: " + json.dumps({"id": "c", "model": "m", "choices": [choice]}).encode() + b"\n\n") * times


def test_a_stream_that_waits_for_more_keeps_only_a_few_events(face: Sync) -> None:
    transport: Any = _Batches()
    agent = Agent("openai-chat:m", api_key="sk-0123456789abcdef", transport=transport)
    assert len(face.texts(agent)) == 501
    before, *while_waiting = transport.living
    assert max(while_waiting) - before < 25
