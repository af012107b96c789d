"""Direct connections: Happy Eyeballs, keep-alive, stale connections, and no leaks."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from agent import Agent, errors
from agent.engine.wire import Limits, WireRequest
from agent.http import connections
from agent.http.connections import ATTEMPT_DELAY, SocketAddress, interleave
from agent.testing import LoopbackServer, Script
from agent.transports.http import HttpTransport
from tests.engine.play import END, agent_at, completion, stream_or_whole, token
from tests.support.cases import sample
from tests.support.drivers import Driver, run_and_leave_nothing

ROOT = Path(__file__).parents[2]
awaits = pytest.mark.parametrize("awaits", [False, True], ids=["sync", "async"])
REPLY = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"


class ClosingServer:
    """Answers the first request of each connection, and closes it when the second one has come.

    That is what a client sees whose request crosses the server's close.
    """

    def __init__(
        self,
        *,
        reset: bool = False,
        after: bytes = b"",
        ever: bool = True,
        taken: int | None = None,
        reply: bytes = b"",
    ) -> None:
        self.connections = 0
        self.requests = 0
        self._reset, self._after, self._ever, self._taken = reset, after, ever, taken
        self._reply = reply or REPLY % (len(completion("hello")), completion("hello"))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._main, daemon=True).start()

    def _main(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            if not self._ever and self.connections > 1:
                return
            self._take(connection)
            connection.sendall(self._reply)
            if self._taken is None:
                self._take(connection)
            else:
                left = self._taken
                while left and (data := connection.recv(left)):
                    left -= len(data)
            connection.sendall(self._after)
            if self._reset:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")

    def _take(self, connection: socket.socket) -> None:
        data = b""
        while b"\r\n\r\n" not in data:
            data += connection.recv(65536)
            if not data:
                raise OSError
        head, _, body = data.partition(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].split()[0])
        while len(body) < length:
            body += connection.recv(65536)
        self.requests += 1

    def close(self) -> None:
        self._listener.close()


@contextmanager
def serve_and_close(**options: Any) -> Iterator[ClosingServer]:
    server = ClosingServer(**options)
    yield server
    server.close()


def calls(agent: Agent, count: int, *, awaits: bool) -> list[str | None]:
    async def main() -> list[str | None]:
        return [(await agent.acomplete("hi")).text for _ in range(count)]

    return run_and_leave_nothing(main()) if awaits else [agent.complete("hi").text for _ in range(count)]


@awaits
@pytest.mark.parametrize("reset", [False, True], ids=["closed", "reset"])
def test_a_kept_connection_that_the_server_has_just_closed_is_replaced_once(awaits: bool, reset: bool) -> None:
    """At once and without an error; it is no retry, so it happens with max_retries=0, too."""
    with serve_and_close(reset=reset) as server:
        transport = HttpTransport(proxy=False)
        agent = Agent("openai-chat:m", api_key="k", base_url=f"{server.url}/v1", transport=transport, max_retries=0)
        started = time.monotonic()
        assert calls(agent, 4, awaits=awaits) == ["hello"] * 4
        assert time.monotonic() - started < 2
        assert server.connections == 4
        transport.close()


@awaits
def test_the_replacement_is_not_recorded_as_an_attempt(awaits: bool) -> None:
    with serve_and_close() as server:
        agent = Agent(
            "openai-chat:m",
            api_key="k",
            base_url=f"{server.url}/v1",
            transport=HttpTransport(proxy=False),
            max_retries=0,
        )

        async def main() -> int:
            await agent.acomplete("hi")
            return len((await agent.acomplete("hi")).route or ())

        if awaits:
            assert run_and_leave_nothing(main()) == 1
        else:
            agent.complete("hi")
            assert len(agent.complete("hi").route or ()) == 1


@awaits
def test_a_replacement_that_fails_is_an_error(awaits: bool) -> None:
    with serve_and_close(ever=False) as server:
        agent = Agent(
            "openai-chat:m",
            api_key="k",
            base_url=f"{server.url}/v1",
            transport=HttpTransport(proxy=False),
            max_retries=0,
        )
        with pytest.raises(errors.ConnectionError):
            calls(agent, 2, awaits=awaits)
        assert server.connections == 2


@awaits
def test_a_connection_that_breaks_after_the_first_byte_is_not_replaced(awaits: bool) -> None:
    """The server has taken the request, and may have acted on it."""
    with serve_and_close(after=b"HTTP/1.1 2") as server:
        agent = Agent(
            "openai-chat:m",
            api_key="k",
            base_url=f"{server.url}/v1",
            transport=HttpTransport(proxy=False),
            max_retries=0,
        )
        with pytest.raises(errors.ConnectionError):
            calls(agent, 2, awaits=awaits)
        assert server.connections == 1


WHOLE = REPLY % (len(completion("hello")), completion("hello"))
STREAM = b"".join(b"%x\r\n%b\r\n" % (len(event), event) for event in (token("hel"), token("lo"), END, b""))
STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n" + STREAM


def call_twice(drive: Driver, agent: Agent, *, streaming: bool, text: str = "hi") -> list[str | None]:
    """Two calls over one connection. Returns their texts; the second call may fail."""
    texts: list[str | None] = []

    async def main() -> None:
        for _ in range(2):
            response = await (agent.astream(text).collect() if streaming else agent.acomplete(text))
            texts.append(response.text)

    try:
        if drive.awaits:
            run_and_leave_nothing(main())
        else:
            for _ in range(2):
                texts.append((agent.stream(text).collect() if streaming else agent.complete(text)).text)
    except errors.AgentError:
        assert texts, "the first call failed"
    return texts


@pytest.mark.parametrize("streaming", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("reset", [False, True], ids=["closed", "reset"])
def test_a_reused_connection_may_close_at_every_byte_of_the_response(
    drive_http: Driver, reset: bool, streaming: bool
) -> None:
    """It is replaced before the first byte. After that the call fails, unless everything has arrived."""
    reply = STREAM if streaming else WHOLE
    sufficient = reply.index(b"[DONE]") if streaming else len(reply)
    for cut in sample(range(len(reply) + 1), 12):
        with serve_and_close(reset=reset, after=reply[:cut], reply=reply) as server:
            transport = drive_http.transport(proxy=False)
            texts = call_twice(drive_http, agent_at(server, transport=transport), streaming=streaming)
            assert texts == ["hello"] * len(texts), cut
            if cut == 0:
                assert (len(texts), server.connections) == (2, 2)
            elif not reset:  # a reset may discard what has arrived
                assert server.connections == 1, cut
                assert len(texts) == 1 or cut >= sufficient, cut
            assert len(texts) == 2 or cut < len(reply) or reset, cut
            transport.close()


@pytest.mark.parametrize("reset", [False, True], ids=["closed", "reset"])
def test_a_reused_connection_may_close_at_any_byte_of_the_request(drive_http: Driver, reset: bool) -> None:
    request = "x" * 1_000_000
    for taken in sample([0, 1, 20, 100, 300, 1000, 65_000, 66_000, 130_000, 900_000], 5):
        with serve_and_close(reset=reset, taken=taken) as server:
            transport = drive_http.transport(proxy=False)
            agent = agent_at(server, transport=transport)
            assert call_twice(drive_http, agent, streaming=False, text=request) == ["hello"] * 2, taken
            assert server.connections == 2, taken
            transport.close()


@awaits
def test_a_new_connection_that_is_closed_is_an_error_at_once(awaits: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        accepted = 0

        def serve() -> None:
            nonlocal accepted
            with suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    accepted += 1
                    with connection:
                        connection.recv(65536)

        threading.Thread(target=serve, daemon=True).start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
        agent = Agent("openai-chat:m", api_key="k", base_url=url, transport=HttpTransport(proxy=False), max_retries=0)
        with pytest.raises(errors.ConnectionError):
            calls(agent, 1, awaits=awaits)
        assert accepted == 1


# Happy Eyeballs


def test_addresses_alternate_between_families() -> None:
    def at(family: int, name: str) -> SocketAddress:
        return SocketAddress(family, (name, 1))

    six = [at(socket.AF_INET6, f"6-{number}") for number in range(3)]
    four = [at(socket.AF_INET, f"4-{number}") for number in range(1)]
    assert interleave([*six, *four]) == [six[0], four[0], six[1], six[2]]
    assert interleave([]) == []


@contextmanager
def black_hole() -> Iterator[int]:
    """A port whose connections are never accepted nor refused: its queue is full."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        address = listener.getsockname()
        filling = []
        for _ in range(8):
            filler = socket.socket()
            filler.setblocking(False)
            with suppress(BlockingIOError):
                filler.connect(address)
            filling.append(filler)
        time.sleep(0.05)
        yield address[1]
        for filler in filling:
            filler.close()


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def resolves_to(monkeypatch: pytest.MonkeyPatch, *ports: int) -> None:
    """Resolve every host to these ports of the loopback address."""
    found = [SocketAddress(socket.AF_INET, ("127.0.0.1", port)) for port in ports]
    monkeypatch.setattr(connections, "resolve_addresses", lambda host, port: found)


@pytest.mark.timing
@awaits
@pytest.mark.parametrize("dead", ["black hole", "refused", "both"])
def test_a_dead_first_address_costs_at_most_300_ms(awaits: bool, dead: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with black_hole() as hole, LoopbackServer(stream_or_whole) as server:
        good = int(server.url.rpartition(":")[2])
        before = {"black hole": [hole], "refused": [free_port()], "both": [free_port(), hole]}[dead]
        resolves_to(monkeypatch, *before, good)
        agent = Agent(
            "openai-chat:m",
            api_key="k",
            base_url="http://localhost:1/v1",
            transport=HttpTransport(proxy=False),
            max_retries=0,
        )
        calls(agent_at(server, transport=HttpTransport(proxy=False)), 1, awaits=awaits)  # everything is imported
        started = time.monotonic()
        assert calls(agent, 1, awaits=awaits) == ["hello"]
        took = time.monotonic() - started
        assert took < 0.3 + 0.1
        assert took >= (0 if dead == "refused" else ATTEMPT_DELAY - 0.01)
        assert server.wait_until(lambda: server.open_connections <= 2)


@awaits
def test_an_address_that_is_refused_at_once_waits_for_nobody(awaits: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    with LoopbackServer(stream_or_whole) as server:
        resolves_to(monkeypatch, *(free_port() for _ in range(5)), int(server.url.rpartition(":")[2]))
        agent = Agent("openai-chat:m", base_url="http://localhost:1/v1", transport=HttpTransport(proxy=False))
        assert calls(agent, 1, awaits=awaits) == ["hello"]


@awaits
def test_a_slow_first_address_that_answers_in_the_end_is_used(awaits: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """All the others are dead: the first is still waited for."""
    with black_hole() as hole:
        resolves_to(monkeypatch, hole, free_port())
        agent = Agent(
            "openai-chat:m",
            base_url="http://localhost:1/v1",
            transport=HttpTransport(proxy=False),
            connect_timeout=0.6,
            max_retries=0,
        )
        started = time.monotonic()
        with pytest.raises(errors.TimeoutError):
            calls(agent, 1, awaits=awaits)
        assert time.monotonic() - started >= 0.59


@awaits
def test_addresses_that_are_all_dead_are_an_error(awaits: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    resolves_to(monkeypatch, free_port(), free_port())
    agent = Agent(
        "openai-chat:m", base_url="http://localhost:1/v1", transport=HttpTransport(proxy=False), max_retries=0
    )
    with pytest.raises(errors.ConnectionError, match=r"(?i)refused"):
        calls(agent, 1, awaits=awaits)


def test_a_race_that_is_cancelled_leaves_no_task_and_no_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    with black_hole() as hole:
        resolves_to(monkeypatch, hole, hole, hole)

        async def main() -> None:
            transport = HttpTransport(proxy=False)
            call = asyncio.create_task(transport.asend(WireRequest("http://localhost:1/", (), b""), Limits()))
            await asyncio.sleep(0.3)
            call.cancel()
            with suppress(asyncio.CancelledError):
                await call
            await asyncio.sleep(0.01)
            assert asyncio.all_tasks() == {asyncio.current_task()}

        asyncio.run(main())


# Platforms


def test_no_platform_needs_poll_or_epoll() -> None:
    """As on Windows: `select.select` is all there is."""
    with LoopbackServer(stream_or_whole) as server:
        program = f"""
import select
for name in ("poll", "epoll", "kqueue", "devpoll"):
    if hasattr(select, name):
        delattr(select, name)
import asyncio, selectors
assert selectors.DefaultSelector is selectors.SelectSelector
from agent import Agent
agent = Agent("openai-chat:m", api_key="k", base_url="{server.url}/v1", max_retries=0)
for _ in range(3):
    assert agent.complete("hi").text == "hello"
    assert agent.stream("hi").collect().text == "t0 t1 t2 "
async def main():
    for _ in range(3):
        assert (await agent.acomplete("hi")).text == "hello"
        assert (await agent.astream("hi").collect()).text == "t0 t1 t2 "
asyncio.run(main())
print("done")
"""
        done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60)
        assert done.stdout == "done\n", done.stderr
        assert server.connections_made == 2, "kept connections are recognised as open"


# Nothing is left behind


def leave_nothing(count: int, carrier: str, *, awaits: bool) -> None:
    library = "httpx2" if carrier == "httpx" else None
    before = set(threading.enumerate())
    with LoopbackServer(stream_or_whole) as server:
        transport = HttpTransport(proxy=False, library=library)  # type: ignore[arg-type]
        agent = agent_at(server, transport=transport)

        async def call_once(number: int) -> None:
            if number % 2:
                await agent.acomplete("hi")
            else:
                await agent.astream("hi").collect()

        async def main() -> None:
            for start in range(0, count, 20):
                await asyncio.gather(*(call_once(number) for number in range(start, min(start + 20, count))))
            assert asyncio.all_tasks() == {asyncio.current_task()}

        if awaits:
            run_and_leave_nothing(main())
        else:
            for number in range(count):
                agent.complete("hi") if number % 2 else agent.stream("hi").collect()
            transport.close()
        assert len(server.requests) == count
        assert server.connections_made <= 20
        assert server.wait_until(lambda: server.open_connections == 0)
    deadline = time.monotonic() + 5
    while (left := set(threading.enumerate()) - before) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not left


@awaits
@pytest.mark.parametrize("carrier", ["http", "httpx"])
def test_a_thousand_calls_leave_no_socket_task_or_thread(carrier: str, awaits: bool) -> None:
    leave_nothing(500 if carrier == "httpx" else 1000, carrier, awaits=awaits)


@pytest.mark.soak
@awaits
@pytest.mark.parametrize("carrier", ["http", "httpx"])
def test_twenty_thousand_calls_leave_no_socket_task_or_thread(carrier: str, awaits: bool) -> None:
    leave_nothing(20_000, carrier, awaits=awaits)


# IPv6


@contextmanager
def relay_from_ipv6(port: int) -> Iterator[str]:
    """Forward connections to [::1] to a port of 127.0.0.1."""
    try:
        listener = socket.create_server(("::1", 0), family=socket.AF_INET6)
    except OSError:
        pytest.skip("this machine has no IPv6")

    def pump(source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError), source:
            while data := source.recv(65536):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    def main() -> None:
        with suppress(OSError):
            while True:
                accepted, _ = listener.accept()
                server = socket.create_connection(("127.0.0.1", port))
                for ends in ((accepted, server), (server, accepted)):
                    threading.Thread(target=pump, args=ends, daemon=True).start()

    threading.Thread(target=main, daemon=True).start()
    with listener:
        yield f"http://[::1]:{listener.getsockname()[1]}"


@pytest.mark.parametrize("carrier", ["http", "httpx"])
def test_an_ipv6_address_is_reached(carrier: str) -> None:
    async def main(agent: Agent) -> list[str | None]:
        return [(await agent.acomplete("hi")).text, (await agent.astream("hi").collect()).text]

    with LoopbackServer(Script()) as server, relay_from_ipv6(int(server.url.rpartition(":")[2])) as url:
        agent = Agent("openai-chat:m", api_key="k", base_url=url, max_retries=0, transport=carrier)
        answers = [agent.complete("hi").text, agent.stream("hi").collect().text, *asyncio.run(main(agent))]
        assert answers == ["You said: hi"] * 4
        assert {dict(request.headers)[b"host"].decode() for request in server.requests} == {url.removeprefix("http://")}
