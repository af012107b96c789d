"""HTTP as it is and as it goes wrong: connections are reused, limits hold, errors are ours."""

from __future__ import annotations

import asyncio
import resource
import socket
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from agent import Agent, errors
from agent.engine.wire import Limits, Reply, WireRequest
from agent.http.exchange import max_idle_connections
from agent.testing import Answer, LoopbackServer, RawAnswer
from agent.transports.http import HttpTransport
from tests.engine.play import END, JSON, SSE, agent_at, completion, sse, stream_or_whole, token, tokens, whole
from tests.support.drivers import AnyHttp, Driver, run_and_leave_nothing


def gzip_body(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=31)
    return packer.compress(data) + packer.flush()


def compress_body(data: bytes, encoding: str) -> bytes:
    return gzip_body(data) if "gzip" in encoding else zlib.compress(data)


def send(drive: Driver, transport: AnyHttp, url: str, limits: Limits | None = None) -> Reply:
    return drive.send(transport, WireRequest(url, (), b"{}"), limits)


# Connections


def test_connections_are_reused_after_calls_and_streams(drive_http: Driver) -> None:
    server = drive_http.serve(stream_or_whole)
    transport = drive_http.transport(proxy=False)
    agent = agent_at(server, transport=transport)

    async def main() -> None:
        for _ in range(4):
            await agent.astream("hi").collect()
            await agent.acomplete("hi")

    if drive_http.awaits:
        run_and_leave_nothing(main())
    else:
        for _ in range(4):
            agent.stream("hi").collect()
            agent.complete("hi")
    assert (len(server.requests), server.connections_made) == (8, 1)
    transport.close()


def test_a_connection_whose_answer_was_refused_is_still_reused(drive_http: Driver) -> None:
    """A failure that was read to its end says nothing against the connection."""
    server = drive_http.serve(lambda request: Answer([b"{}"], status=500, headers=JSON))
    transport = drive_http.transport(proxy=False)
    agent = agent_at(server, transport=transport, retry=_quick(2))
    with pytest.raises(errors.ProviderError):
        _send_and_stream(drive_http, agent, streaming=True)
    assert (len(server.requests), server.connections_made) == (3, 1)
    transport.close()


def test_an_idle_connection_that_the_server_closed_is_not_used(drive_http: Driver) -> None:
    server = drive_http.serve(
        lambda request: RawAnswer([b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"])  # and the server hangs up
    )
    transport = drive_http.transport(proxy=False)
    for _ in range(3):
        assert send(drive_http, transport, server.url).body == b"{}"
        assert server.wait_until(lambda: server.open_connections == 0)
    transport.close()


def test_250_streams_at_once_all_finish() -> None:
    """No call waits for a connection."""
    gate = threading.Event()

    def network(request: WireRequest) -> Answer:
        return tokens(3, 0.1)

    with LoopbackServer(network) as server:
        transport = HttpTransport(proxy=False)
        agent = agent_at(server, transport=transport)

        async def main() -> int:
            responses = await asyncio.gather(*(agent.astream("hi").collect() for _ in range(250)))
            return sum(response.text == "t0 t1 t2 " for response in responses)

        assert run_and_leave_nothing(main()) == 250
        assert server.wait_until(lambda: server.open_connections == 0)
        gate.set()


@pytest.mark.parametrize(("allowed", "kept"), [(400, 100), (resource.RLIM_INFINITY, 1024), (1_000_000, 1024)])
def test_idle_connections_take_at_most_a_quarter_of_the_files_that_may_be_open(
    allowed: int, kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (allowed, allowed))
    assert max_idle_connections() == kept


@pytest.mark.parametrize("awaits", [True, False], ids=["async", "sync"])
def test_of_a_crowd_no_more_connections_are_kept_than_allowed(awaits: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (40, 40))
    with LoopbackServer(lambda request: tokens(2, 0.2)) as server:
        transport = HttpTransport(proxy=False)
        agent = agent_at(server, transport=transport)

        async def main() -> bool:
            await asyncio.gather(*(agent.astream("hi").collect() for _ in range(30)))
            return await asyncio.to_thread(server.wait_until, lambda: server.open_connections == 10)

        if awaits:
            assert run_and_leave_nothing(main())
        else:
            threads = [threading.Thread(target=agent.stream("hi").collect) for _ in range(30)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert server.wait_until(lambda: server.open_connections == 10)
        assert server.connections_made == 30
        transport.close()


def test_150_blocking_streams_at_once_all_finish() -> None:
    with LoopbackServer(lambda request: tokens(2, 0.2)) as server:
        transport = HttpTransport(proxy=False)
        agent = agent_at(server, transport=transport)
        texts: list[str | None] = []
        threads = [threading.Thread(target=lambda: texts.append(agent.stream("hi").collect().text)) for _ in range(150)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert texts == ["t0 t1 "] * 150
        transport.close()
        assert server.wait_until(lambda: server.open_connections == 0)


def _quick(retries: int) -> Any:
    from agent.types import RetryConfig

    return RetryConfig(max_retries=retries, initial_delay=0)


def _send_and_stream(drive: Driver, agent: Agent, *, streaming: bool) -> Any:
    async def main() -> Any:
        return await (agent.astream("hi").collect() if streaming else agent.acomplete("hi"))

    if drive.awaits:
        return run_and_leave_nothing(main())
    return agent.stream("hi").collect() if streaming else agent.complete("hi")


# Redirects


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("streaming", [False, True])
def test_a_redirect_is_refused_and_nothing_reaches_the_other_origin(
    drive_http: Driver, status: int, streaming: bool
) -> None:
    thief = drive_http.serve(lambda request: whole("stolen"))
    server = drive_http.serve(lambda request: Answer(status=status, headers={"location": f"{thief.url}/v1"}))
    agent = agent_at(server, headers={"x-secret": "canary"}, max_retries=2, transport=drive_http.carrier)
    with pytest.raises(errors.ProtocolError, match="redirect") as caught:
        _send_and_stream(drive_http, agent, streaming=streaming)
    assert not caught.value.retryable
    assert (len(server.requests), len(thief.requests), thief.connections_made) == (1, 0, 0)


# Encodings


@pytest.mark.parametrize("encoding", ["gzip", "x-gzip", "deflate", "GZIP"])
def test_compressed_answers_are_unpacked(drive_http: Driver, encoding: str) -> None:
    head = {**JSON, "content-encoding": encoding}
    outcome = drive_http.complete(
        lambda request: Answer([compress_body(completion("hello"), encoding.lower())], headers=head)
    )
    assert outcome.ok.text == "hello"


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_compressed_streams_are_unpacked_as_they_arrive(drive_http: Driver, encoding: str) -> None:
    data = compress_body(token("a") + token("b") + END, encoding)
    pieces = [data[start : start + 7] for start in range(0, len(data), 7)]
    head = {**SSE, "content-encoding": encoding}
    outcome = drive_http.stream(lambda request: Answer(pieces, headers=head))
    assert outcome.ok.text == "ab"


def test_a_stream_of_several_gzip_packages_is_unpacked(drive_http: Driver) -> None:
    """Some servers close a package with every flush."""
    pieces = [gzip_body(token("a")) + gzip_body(token("b")), gzip_body(END)]
    outcome = drive_http.stream(lambda request: Answer(pieces, headers={**SSE, "content-encoding": "gzip"}))
    assert outcome.ok.text == "ab"


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("damage", ["truncated", "garbage", "unknown"])
def test_a_broken_encoding_is_a_protocol_error(drive_http: Driver, damage: str, streaming: bool) -> None:
    data = gzip_body((token("a") + END) if streaming else completion("hello"))
    body = {"truncated": data[:-12], "garbage": b"not gzip at all", "unknown": data}[damage]
    head = {**(SSE if streaming else JSON), "content-encoding": "br" if damage == "unknown" else "gzip"}
    call = drive_http.stream if streaming else drive_http.complete
    outcome = call(lambda request: Answer([body], headers=head))
    if streaming and damage == "truncated":
        assert outcome.error is None or isinstance(outcome.error, errors.ProviderError)
    else:
        assert isinstance(outcome.failed, errors.ProtocolError)


@contextmanager
def little_memory(megabytes: int) -> Iterator[None]:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    used = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    assert used < megabytes, f"{used:.0f} MB"


@pytest.mark.parametrize("streaming", [False, True])
def test_a_bomb_is_refused_before_it_goes_off(drive_http: Driver, streaming: bool) -> None:
    """200 MB of spaces in 200 KB."""
    packer = zlib.compressobj(9, wbits=31)
    bomb = b"".join(packer.compress(b" " * 1_000_000) for _ in range(200)) + packer.flush()
    head = {**(SSE if streaming else JSON), "content-encoding": "gzip"}
    call = drive_http.stream if streaming else drive_http.complete
    with little_memory(64):
        outcome = call(lambda request: Answer([bomb], headers=head))
    assert isinstance(outcome.failed, errors.ProtocolError)
    assert not outcome.failed.retryable


# Sizes


@pytest.mark.parametrize("announced", [True, False])
def test_an_answer_larger_than_allowed_is_refused(drive_http: Driver, announced: bool) -> None:
    head = {**JSON, "content-length": "5000"} if announced else JSON
    server = drive_http.serve(lambda request: Answer([b"x" * 1000] * 5, headers=head))
    transport = drive_http.transport(proxy=False)
    with pytest.raises(errors.ProtocolError, match="larger than 4999 bytes") as caught:
        send(drive_http, transport, server.url, Limits(max_bytes=4999))
    assert not caught.value.retryable
    assert caught.value.__cause__ is None
    assert len(send(drive_http, transport, server.url, Limits(max_bytes=5000)).body) == 5000
    transport.close()


def test_an_announced_size_is_believed_before_it_is_read(drive_http: Driver) -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-length: 99999999999\r\n\r\n"
    server = drive_http.serve(lambda request: RawAnswer([head, b""]))
    with pytest.raises(errors.ProtocolError, match="larger"):
        send(drive_http, drive_http.transport(proxy=False), server.url)


# Invalid HTTP

BROKEN = {
    "nothing": b"",
    "garbage": b"\x16\x03\x01 hello?\r\n\r\n",
    "another protocol": b"SSH-2.0-OpenSSH_9.6\r\n",
    "half a head": b"HTTP/1.1 200 OK\r\ncontent-ty",
    "a short body": b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 500\r\n\r\n{",
    "a cut chunk": b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\nff\r\n{",
    "a bad chunk size": b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n",
    "endless headers": b"HTTP/1.1 200 OK\r\n" + b"x-long: " + b"y" * 300_000 + b"\r\n\r\n",
    "two lengths": b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\n{}",
    "a bad length": b"HTTP/1.1 200 OK\r\ncontent-length: many\r\n\r\n{}",
    "a bad header": b"HTTP/1.1 200 OK\r\nno colon here\r\n\r\n{}",
    "a bad status": b"HTTP/1.1 two hundred\r\n\r\n",
}


@pytest.mark.timing
@pytest.mark.parametrize("name", BROKEN)
@pytest.mark.parametrize("streaming", [False, True])
def test_what_is_not_http_is_a_typed_error(drive_http: Driver, name: str, streaming: bool) -> None:
    call = drive_http.stream if streaming else drive_http.complete
    outcome = call(lambda request: RawAnswer([BROKEN[name]]))
    assert isinstance(outcome.failed, errors.ConnectionError | errors.ProtocolError)
    assert outcome.failed.retryable
    assert outcome.seconds < 2


@pytest.mark.parametrize("streaming", [False, True])
def test_a_reset_connection_is_a_typed_error(drive_http: Driver, streaming: bool) -> None:
    call = drive_http.stream if streaming else drive_http.complete
    before = call(lambda request: Answer(failure=OSError("reset before the headers")))
    assert isinstance(before.failed, errors.ConnectionError)
    middle = call(lambda request: sse(token("a"), ConnectionResetError("reset in the middle")))
    assert isinstance(middle.failed, errors.StreamInterrupted if streaming else errors.ConnectionError)
    if streaming:
        assert isinstance(middle.failed.__cause__, errors.ConnectionError)


@pytest.mark.parametrize("streaming", [False, True])
def test_an_answer_may_end_with_its_connection(drive_http: Driver, streaming: bool) -> None:
    """HTTP/1.0: no length, no chunks."""
    kind, body = ("text/event-stream", token("a") + END) if streaming else ("application/json", completion("a"))
    raw = f"HTTP/1.0 200 OK\r\ncontent-type: {kind}\r\n\r\n".encode() + body
    call = drive_http.stream if streaming else drive_http.complete
    assert call(lambda request: RawAnswer([raw])).ok.text == "a"


def test_nobody_listening_is_a_connection_error(drive_http: Driver) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        agent = Agent(
            "openai-chat:m",
            transport=drive_http.carrier,
            api_key="sk-test",
            base_url=f"http://127.0.0.1:{port}/v1",
            max_retries=0,
        )
        with pytest.raises(errors.ConnectionError) as caught:
            _send_and_stream(drive_http, agent, streaming=False)
    assert caught.value.retryable


def test_a_large_request_reaches_a_slow_reader(drive_http: Driver) -> None:
    server = drive_http.serve(lambda request: whole(str(len(request.body))))
    agent = agent_at(server, transport=drive_http.carrier)
    text = "x" * 5_000_000

    async def main() -> Any:
        return await agent.acomplete(text)

    response = run_and_leave_nothing(main()) if drive_http.awaits else agent.complete(text)
    assert int(response.text or "") > 5_000_000


@pytest.mark.parametrize("deadline", [0.3])
def test_a_server_that_does_not_read_cannot_hold_a_request_past_its_deadline(
    drive_http: Driver, deadline: float
) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(5)
        port = listener.getsockname()[1]
        agent = Agent(
            "openai-chat:m",
            transport=drive_http.carrier,
            api_key="sk-test",
            base_url=f"http://127.0.0.1:{port}/v1",
            max_retries=0,
            deadline=deadline,
        )
        with pytest.raises(errors.TimeoutError) as caught:

            async def main() -> Any:
                return await agent.acomplete("x" * 20_000_000)

            run_and_leave_nothing(main()) if drive_http.awaits else agent.complete("x" * 20_000_000)
        assert caught.value.deadline


def test_settings_that_exclude_each_other_are_refused() -> None:
    import ssl

    with pytest.raises(errors.ConfigurationError, match="exclude each other"):
        HttpTransport(ca_file="x.pem", ssl_context=ssl.create_default_context())


def test_the_host_header_names_host_and_port(drive_http: Driver) -> None:
    server = drive_http.serve(lambda request: whole())
    transport = drive_http.transport(proxy=False)
    send(drive_http, transport, server.url)
    headers = dict(server.requests[0].headers)
    assert headers[b"host"] == server.url.removeprefix("http://").encode()
    assert headers[b"accept-encoding"] == b"identity"
    transport.close()


@pytest.mark.parametrize("close", [lambda transport: transport.close()])
def test_closing_a_transport_closes_its_idle_connections(close: Callable[[HttpTransport], None]) -> None:
    with LoopbackServer(stream_or_whole) as server:
        transport = HttpTransport(proxy=False)
        agent = agent_at(server, transport=transport)
        agent.complete("hi")
        assert server.open_connections == 1
        close(transport)
        assert server.wait_until(lambda: server.open_connections == 0)
        assert agent.complete("hi").text == "hello", "it opens again when it is needed"
        transport.close()
