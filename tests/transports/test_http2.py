"""HTTP/2 through `http_client=`: requests share one connection, which no single request may close."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.exceptions
import httpx
import httpx2
import pytest
import trustme

from agent import Agent, errors
from tests.engine.play import END, completion, token

HEADERS = {"json": "application/json", "stream": "text/event-stream"}


class Http2Server:
    """HTTP/2 server over TLS.

    Requests for the model `slow` get one event and then wait for `resume`. Other models name a failure: `reset` and
    `goaway` instead of a response, `reset-late` and `cut-late` within the body, and `429` as the status.
    """

    def __init__(self, authority: trustme.CA) -> None:
        self.connections = 0
        self.open_connections = 0
        self.resets = 0
        self.resume = threading.Event()
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.set_alpn_protocols(["h2"])
        authority.issue_cert("127.0.0.1").configure_cert(self._context)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"https://127.0.0.1:{self._listener.getsockname()[1]}/v1"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self.resume.set()
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                accepted, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(accepted,), daemon=True).start()

    def _serve(self, accepted: socket.socket) -> None:
        self.connections += 1
        self.open_connections += 1
        lock = threading.Lock()
        try:
            with (
                suppress(OSError, h2.exceptions.H2Error),
                self._context.wrap_socket(accepted, server_side=True) as connected,
            ):
                connection = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False))
                connection.initiate_connection()
                connected.sendall(connection.data_to_send())
                bodies: dict[int, bytes] = {}
                while data := connected.recv(65536):
                    with lock:
                        events = connection.receive_data(data)
                        connected.sendall(connection.data_to_send())
                    for event in events:
                        if isinstance(event, h2.events.DataReceived):
                            bodies[event.stream_id] = bodies.get(event.stream_id, b"") + event.data
                        elif isinstance(event, h2.events.StreamReset):
                            self.resets += 1
                        elif isinstance(event, h2.events.StreamEnded):
                            respond = (connected, connection, lock, event.stream_id, bodies.pop(event.stream_id))
                            threading.Thread(target=self._respond, args=respond, daemon=True).start()
        finally:
            self.open_connections -= 1

    def _respond(self, connected: Any, connection: Any, lock: threading.Lock, stream: int, body: bytes) -> None:
        def write(send: Callable[[], None]) -> None:
            with lock:
                send()
                connected.sendall(connection.data_to_send())

        streaming, model = b'"stream":true' in body, str(json.loads(body)["model"])
        kind = HEADERS["stream" if streaming else "json"]
        with suppress(OSError, h2.exceptions.H2Error):  # the client has reset the stream or closed the connection
            if model == "429":
                write(lambda: connection.send_headers(stream, [(":status", model), ("retry-after", "7")]))
                write(lambda: connection.send_data(stream, b'{"error": {"message": "slow down"}}', end_stream=True))
                return
            if model == "reset":
                write(lambda: connection.reset_stream(stream, h2.errors.ErrorCodes.REFUSED_STREAM))
                return
            if model == "goaway":
                write(lambda: connection.close_connection(h2.errors.ErrorCodes.ENHANCE_YOUR_CALM))
                connected.shutdown(socket.SHUT_RDWR)
                return
            write(lambda: connection.send_headers(stream, [(":status", "200"), ("content-type", kind)]))
            if streaming:
                write(lambda: connection.send_data(stream, token("first ")))
            if model == "slow":
                self.resume.wait(20)
            if model.endswith("-late"):
                time.sleep(0.05)  # the client reads the first event
            if model == "reset-late":
                write(lambda: connection.reset_stream(stream))
                return
            if model == "cut-late":
                connected.shutdown(socket.SHUT_RDWR)
                return
            last = token("last") + END if streaming else completion("hello")
            write(lambda: connection.send_data(stream, last, end_stream=True))


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def server(authority: trustme.CA) -> Iterator[Http2Server]:
    server = Http2Server(authority)
    yield server
    server.close()


@pytest.fixture(params=[httpx2, httpx], ids=lambda library: library.__name__)
def options(request: pytest.FixtureRequest, authority: trustme.CA) -> dict[str, Any]:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    versions: list[str] = []

    def record(response: Any) -> None:
        versions.append(response.http_version)

    async def record_async(response: Any) -> None:
        versions.append(response.http_version)

    return {
        "sync": lambda: request.param.Client(http2=True, verify=context, event_hooks={"response": [record]}),
        "async": lambda: request.param.AsyncClient(
            http2=True, verify=context, event_hooks={"response": [record_async]}
        ),
        "versions": versions,
    }


def agent_with(server: Http2Server, client: Any, model: str = "quick", **settings: Any) -> Agent:
    values = {"api_key": "sk-test", "base_url": server.url, "max_retries": 0, **settings}
    return Agent(f"openai-chat:{model}", http_client=client, **values)


def test_sync_calls_and_streams_share_one_connection(server: Http2Server, options: dict[str, Any]) -> None:
    with options["sync"]() as client:
        agent = agent_with(server, client)
        assert [agent.complete("hi").text for _ in range(2)] == ["hello"] * 2
        assert agent.stream("hi").collect().text == "first last"
    assert set(options["versions"]) == {"HTTP/2"}
    assert server.connections == 1


def test_async_calls_in_flight_share_one_connection(server: Http2Server, options: dict[str, Any]) -> None:
    async def main() -> list[str | None]:
        async with options["async"]() as client:
            agent = agent_with(server, client)
            await agent.acomplete("hi")
            responses = await asyncio.gather(*(agent.acomplete("hi") for _ in range(5)))
            return [response.text for response in [*responses, await agent.astream("hi").collect()]]

    assert asyncio.run(main()) == ["hello"] * 5 + ["first last"]
    assert set(options["versions"]) == {"HTTP/2"}
    assert server.connections == 1


def test_abandoning_an_async_stream_leaves_the_others_alone(server: Http2Server, options: dict[str, Any]) -> None:
    async def main() -> str | None:
        async with options["async"]() as client:
            slow = agent_with(server, client, "slow")
            async with slow.astream("hi") as kept, slow.astream("hi") as abandoned:
                events = [aiter(stream) for stream in (kept, abandoned)]
                for iterator in events:
                    await anext(iterator)
                await abandoned.aclose()
                assert (await agent_with(server, client).acomplete("hi")).text == "hello"
                server.resume.set()
                async for _ in events[0]:
                    pass
                return kept.response.text

    assert asyncio.run(main()) == "first last"
    assert server.connections == 1


@pytest.mark.timing
def test_a_sync_timeout_is_exact_and_leaves_the_other_stream_alone(
    server: Http2Server, options: dict[str, Any]
) -> None:
    with options["sync"]() as client:
        kept = agent_with(server, client, "slow").stream("hi")
        events = iter(kept)
        next(events)
        with pytest.raises(errors.TimeoutError):
            agent_with(server, client, "slow", timeout=0.3).complete("hi")
        server.resume.set()
        for _ in events:
            pass
        assert kept.response.text == "first last"
    assert server.connections == 1


@pytest.mark.parametrize("awaits", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("streaming", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("failure", ["429", "reset", "goaway", "reset-late", "cut-late"])
def test_failures_are_typed_errors(
    server: Http2Server, options: dict[str, Any], failure: str, streaming: bool, awaits: bool
) -> None:
    async def acall() -> None:
        async with options["async"]() as client:
            agent = agent_with(server, client, failure)
            await (agent.astream("hi").collect() if streaming else agent.acomplete("hi"))

    def call() -> None:
        with options["sync"]() as client:
            agent = agent_with(server, client, failure)
            agent.stream("hi").collect() if streaming else agent.complete("hi")

    with pytest.raises(errors.AgentError) as caught:
        asyncio.run(acall()) if awaits else call()
    if failure == "429":
        assert (type(caught.value), caught.value.retry_after) == (errors.RateLimitError, 7.0)
    elif failure.endswith("-late") and streaming:
        assert isinstance(caught.value, errors.StreamInterrupted)
        assert caught.value.partial is not None
        assert caught.value.partial.text == "first "
    else:
        assert type(caught.value) is errors.ConnectionError
    assert caught.value.retryable == (not isinstance(caught.value, errors.StreamInterrupted))


@pytest.mark.parametrize("awaits", [False, True], ids=["sync", "async"])
def test_a_lost_connection_is_replaced(server: Http2Server, options: dict[str, Any], awaits: bool) -> None:
    async def main() -> str | None:
        async with options["async"]() as client:
            with pytest.raises(errors.ConnectionError):
                await agent_with(server, client, "goaway").acomplete("hi")
            return (await agent_with(server, client).acomplete("hi")).text

    if awaits:
        assert asyncio.run(main()) == "hello"
    else:
        with options["sync"]() as client:
            with pytest.raises(errors.ConnectionError):
                agent_with(server, client, "goaway").complete("hi")
            assert agent_with(server, client).complete("hi").text == "hello"
    assert server.connections == 2
