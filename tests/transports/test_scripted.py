"""The transport that needs no socket, and the server that has one: both play the same script."""

from __future__ import annotations

import asyncio
import socket
import time

import pytest

from agent import errors
from agent.testing import Answer, LoopbackServer, Piece, RawAnswer, Script, ScriptedTransport, scripted_agent
from agent.types import RetryConfig
from tests.engine.play import FOREVER, agent_at, endless, never, sse, stall, token, tokens, whole
from tests.support.drivers import Driver, make_agent, run_and_leave_nothing


def test_a_script_answers_line_by_line_and_then_fails() -> None:
    agent = scripted_agent("one", "two", max_retries=0)
    assert [agent.complete("hi").text, agent.stream("hi").collect().text] == ["one", "two"]
    with pytest.raises(errors.BadRequestError, match="no more lines"):
        agent.complete("hi")


def test_a_scripted_stream_arrives_piece_by_piece() -> None:
    agent = scripted_agent("one two three", delay=0.02)
    started = time.monotonic()
    pieces = list(agent.stream("hi").text_stream())
    assert pieces == ["one", " two", " three"]
    assert time.monotonic() - started > 0.1


def test_scripted_failures_are_retried_as_real_ones() -> None:
    script = Script(errors.OverloadedError("busy"), errors.RateLimitError("slow down", retry_after=0), "fine")
    agent = make_agent(
        {"transport": ScriptedTransport(script), "retry": RetryConfig(max_retries=2, initial_delay=0)},
        base_url="http://127.0.0.1",
    )
    response = agent.complete("hi")
    assert response.text == "fine"
    assert [attempt.error for attempt in response.route] == ["OverloadedError", "RateLimitError", None]


@pytest.mark.timing
@pytest.mark.parametrize("answer", [never, stall, endless], ids=lambda made: made.__name__)
def test_limits_hold_without_a_socket(answer: object) -> None:
    agent = make_agent(
        {"transport": ScriptedTransport(lambda request: answer()), "deadline": 0.2},  # type: ignore[operator]
        base_url="http://127.0.0.1",
    )

    async def main() -> None:
        await agent.astream("hi").collect()

    for call in (lambda: agent.stream("hi").collect(), lambda: run_and_leave_nothing(main())):
        started = time.monotonic()
        with pytest.raises((errors.TimeoutError, errors.StreamInterrupted)):
            call()
        assert 0.19 < time.monotonic() - started < 0.3


@pytest.mark.timing
def test_an_abort_reaches_a_script_that_waits() -> None:
    import threading

    agent = make_agent({"transport": ScriptedTransport(lambda request: stall())}, base_url="http://127.0.0.1")
    stream = agent.stream("hi")
    threading.Timer(0.1, stream.abort).start()
    started = time.monotonic()
    with pytest.raises(errors.Aborted):
        stream.collect()
    assert time.monotonic() - started < 0.4


def test_an_answer_larger_than_allowed_is_refused_without_a_socket() -> None:
    from agent.engine.wire import MAX_REPLY_BYTES

    huge = Answer([b"x" * (MAX_REPLY_BYTES + 1)])
    agent = make_agent({"transport": ScriptedTransport(lambda request: huge)}, base_url="http://127.0.0.1")
    with pytest.raises(errors.ProtocolError, match="larger"):
        agent.complete("hi")
    with pytest.raises(errors.ProtocolError, match="larger"):
        asyncio.run(agent.acomplete("hi"))


# The loopback server


def test_the_server_counts_requests_connections_and_hangups(drive_real: Driver) -> None:
    server = drive_real.serve(lambda request: endless() if b'"stream":true' in request.body else whole())
    agent = agent_at(server)
    agent.complete("hi")
    assert (len(server.requests), server.disconnects) == (1, [])
    before = time.monotonic()
    for _ in agent.stream("hi"):
        break
    assert server.wait_until(lambda: len(server.disconnects) == 1)
    path, when = server.disconnects[0]
    assert path == "/any/v1/chat/completions"
    assert before <= when <= time.monotonic()


def test_the_server_plays_raw_bytes_as_they_are() -> None:
    with LoopbackServer(lambda request: RawAnswer([b"hel", Piece(b"lo", 0.01)])) as server:
        port = int(server.url.rsplit(":", 1)[1])
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}")
            data = b""
            while chunk := client.recv(100):
                data += chunk
        assert data == b"hello"
        assert server.requests[0].body == b"{}"


@pytest.mark.timing
def test_the_server_closes_at_once_with_answers_under_way() -> None:
    server = LoopbackServer(lambda request: sse(token("a"), Piece(b"", FOREVER)))
    stream = agent_at(server).stream("hi")
    iterator = iter(stream)
    next(iterator)
    started = time.monotonic()
    server.close()
    server.close()
    assert time.monotonic() - started < 1
    with pytest.raises(errors.StreamInterrupted):
        list(iterator)


@pytest.mark.timing
def test_wait_until_says_whether_it_came_true() -> None:
    with LoopbackServer(lambda request: tokens(1)) as server:
        assert server.wait_until(lambda: True)
        started = time.monotonic()
        assert not server.wait_until(lambda: False, timeout=0.05)
        assert time.monotonic() - started < 0.3
