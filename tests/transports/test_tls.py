"""TLS: trusted certificates, rejected certificates, timeouts and aborts."""

from __future__ import annotations

import datetime
import random
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
import trustme

from agent import Agent, errors
from agent.engine.wire import WireRequest
from agent.testing import Answer, LoopbackServer, RawAnswer
from agent.transports.http import HttpTransport
from tests.engine.play import agent_at, completion, endless, hung_up, pings, stream_or_whole, whole
from tests.support.cases import examples
from tests.support.drivers import Driver, run_and_leave_nothing
from tests.transports.test_connections import black_hole, calls, free_port, resolves_to

LONG = 3_000_000


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def ca_file(authority: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ca") / "ca.pem"
    authority.cert_pem.write_to_path(str(path))
    return path


def network(request: WireRequest) -> Answer | RawAnswer:
    if "pings" in request.url:
        return pings()
    if "late" in request.url:
        return whole("late", after=0.2)
    if "long" in request.url:
        return whole(f"{len(request.body)} " + "é" * LONG)
    if "closing" in request.url:  # the end of the answer is the end of the connection
        return RawAnswer([b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n" + completion("closing")])
    return endless() if "endless" in request.url else stream_or_whole(request)


Serve = Callable[..., LoopbackServer]


@pytest.fixture
def serve(authority: trustme.CA) -> Iterator[Serve]:
    servers: list[LoopbackServer] = []

    def start(
        name: str = "127.0.0.1", version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3, **options: Any
    ) -> LoopbackServer:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = context.maximum_version = version
        authority.issue_cert(name, **options).configure_cert(context)
        servers.append(LoopbackServer(network, ssl_context=context))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


def call(drive: Driver, agent: Agent, *, streaming: bool = False) -> Any:
    async def main() -> Any:
        return await (agent.astream("hi").collect() if streaming else agent.acomplete("hi"))

    if drive.awaits:
        return run_and_leave_nothing(main())
    return agent.stream("hi").collect() if streaming else agent.complete("hi")


def test_a_ca_file_makes_its_servers_trusted(drive_http: Driver, serve: Serve, ca_file: Path) -> None:
    server = serve()
    transport = drive_http.transport(ca_file=ca_file, proxy=False)
    agent = agent_at(server, transport=transport)
    assert call(drive_http, agent).text == "hello"
    assert call(drive_http, agent, streaming=True).text == "t0 t1 t2 "
    transport.close()


both_versions = pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])


@both_versions
def test_connections_are_kept_and_answers_may_take_their_time(
    drive_http: Driver, serve: Serve, ca_file: Path, version: ssl.TLSVersion
) -> None:
    """TLS messages between handshake and response do not end the response."""
    server = serve(version=version)
    transport = drive_http.transport(ca_file=ca_file, proxy=False)
    agent = agent_at(server, "late", transport=transport)

    async def main() -> list[str | None]:
        return [(await agent.acomplete("hi")).text for _ in range(3)]

    texts = run_and_leave_nothing(main()) if drive_http.awaits else [agent.complete("hi").text for _ in range(3)]
    assert texts == ["late"] * 3
    assert server.connections_made == 1
    transport.close()


@both_versions
def test_megabytes_go_both_ways(drive_http: Driver, serve: Serve, ca_file: Path, version: ssl.TLSVersion) -> None:
    server = serve(version=version)
    transport = drive_http.transport(ca_file=ca_file, proxy=False)
    agent = agent_at(server, "long", transport=transport)
    question = "x" * LONG

    async def main() -> Any:
        return await agent.acomplete(question)

    text = (run_and_leave_nothing(main()) if drive_http.awaits else agent.complete(question)).text
    sent, _, said = (text or "").partition(" ")
    assert int(sent) > LONG
    assert said == "é" * LONG
    transport.close()


@both_versions
def test_an_answer_may_end_with_its_connection(
    drive_http: Driver, serve: Serve, ca_file: Path, version: ssl.TLSVersion
) -> None:
    server = serve(version=version)
    transport = drive_http.transport(ca_file=ca_file, proxy=False)
    assert call(drive_http, agent_at(server, "closing", transport=transport)).text == "closing"
    transport.close()


@pytest.mark.parametrize("said", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x16\x03\x03\x00\x02\x02\x00"])
def test_a_handshake_that_breaks_off_or_is_none_is_a_connection_error(drive_http: Driver, said: bytes) -> None:
    def answer() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(4096)
            connection.sendall(said)

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(5)
        thread = threading.Thread(target=answer)
        thread.start()
        url = f"https://127.0.0.1:{listener.getsockname()[1]}/v1"
        agent = Agent("openai-chat:m", transport=drive_http.carrier, api_key="sk-test", base_url=url, max_retries=0)
        with pytest.raises(errors.ConnectionError):
            call(drive_http, agent)
        thread.join()


def test_what_is_damaged_on_the_way_is_not_taken_for_an_answer(serve: Serve, ca_file: Path) -> None:
    """A man in the middle who changes a byte of the answer."""
    server = serve()
    port = int(server.url.rpartition(":")[2])

    def relay() -> None:
        client, _ = listener.accept()
        with client, socket.create_connection(("127.0.0.1", port)) as upstream:
            for side in (client, upstream):
                side.settimeout(0.3)
            while True:
                with suppress(TimeoutError):
                    upstream.sendall(client.recv(65536))
                try:
                    data = bytearray(upstream.recv(65536))
                except TimeoutError:
                    continue
                if server.requests:
                    data[-9] ^= 1
                client.sendall(data)
                if server.requests:
                    return

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(5)
        thread = threading.Thread(target=relay)
        thread.start()
        transport = HttpTransport(ca_file=ca_file, proxy=False)
        url = f"https://127.0.0.1:{listener.getsockname()[1]}/late/v1"
        agent = Agent("openai-chat:m", transport=transport, api_key="sk-test", base_url=url, max_retries=0)

        async def main() -> None:
            await agent.acomplete("hi")

        with pytest.raises(errors.ConnectionError):
            run_and_leave_nothing(main())
        thread.join()


def test_an_ssl_context_can_be_brought(drive_http: Driver, serve: Serve, authority: trustme.CA) -> None:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    transport = drive_http.transport(ssl_context=context, proxy=False)
    assert call(drive_http, agent_at(serve(), transport=transport)).text == "hello"
    transport.close()


def test_ssl_cert_file_is_respected(
    drive_http: Driver, serve: Serve, ca_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(ca_file))
    transport = drive_http.transport(proxy=False)
    assert call(drive_http, agent_at(serve(), transport=transport)).text == "hello"
    transport.close()


@pytest.mark.parametrize("fault", ["missing", "empty", "no certificate", "a folder"])
def test_a_ca_file_that_cannot_be_used_is_named_when_the_transport_is_made(
    drive_http: Driver, tmp_path: Path, fault: str
) -> None:
    path = tmp_path / "authorities.pem"
    if fault == "a folder":
        path.mkdir()
    elif fault != "missing":
        path.write_text("" if fault == "empty" else "-----BEGIN NOTHING-----\n")
    with pytest.raises(errors.ConfigurationError) as caught:
        drive_http.transport(ca_file=path)
    assert caught.value.field == "ca_file"
    assert str(path) in str(caught.value)


def test_an_ssl_cert_file_that_cannot_be_used_is_named_before_any_connection(
    drive_http: Driver, serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "authorities.pem"
    monkeypatch.setenv("SSL_CERT_FILE", str(path))
    server = serve()
    agent = agent_at(server, transport=drive_http.transport(proxy=False), max_retries=2)
    with pytest.raises(errors.ConfigurationError) as caught:
        call(drive_http, agent)
    assert caught.value.field == "SSL_CERT_FILE"
    assert str(path) in str(caught.value)
    assert server.connections_made == 0


@both_versions
@pytest.mark.parametrize("client", ["none", "of another authority"])
def test_a_client_certificate_that_the_server_rejects_is_final(
    drive_http: Driver, authority: trustme.CA, version: ssl.TLSVersion, client: str
) -> None:
    if drive_http.name == "aio-httpx" and version == ssl.TLSVersion.TLSv1_3:
        pytest.skip("anyio loses the alert that says why, where the connection is reset right after it")
    theirs = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    theirs.minimum_version = theirs.maximum_version = version
    authority.issue_cert("127.0.0.1").configure_cert(theirs)
    theirs.verify_mode = ssl.CERT_REQUIRED
    authority.configure_trust(theirs)
    ours = ssl.create_default_context()
    authority.configure_trust(ours)
    if client != "none":
        trustme.CA().issue_cert("client@example.com").configure_cert(ours)
    handshakes = 0

    def serve() -> None:
        """In a thread, since asyncio hangs up without the alert that says why."""
        nonlocal handshakes
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            handshakes += 1
            with connection, suppress(OSError), theirs.wrap_socket(connection, server_side=True) as secured:
                secured.recv(4096)

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(5)
        thread = threading.Thread(target=serve)
        thread.start()
        transport = drive_http.transport(ssl_context=ours, proxy=False)
        url = f"https://127.0.0.1:{listener.getsockname()[1]}/v1"
        agent = Agent("openai-chat:m", transport=transport, api_key="sk-test", base_url=url, max_retries=2)
        with pytest.raises(errors.ConnectionError) as caught:
            call(drive_http, agent)
        assert not caught.value.retryable
        assert (len(caught.value.attempts), handshakes) == (1, 1)
        transport.close()
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("fault", ["unknown authority", "wrong host", "expired"])
def test_a_certificate_that_does_not_verify_is_final(
    drive_http: Driver, serve: Serve, ca_file: Path, fault: str, streaming: bool
) -> None:
    """Never sent, never tried again, never without verification."""
    past = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
    server = {
        "unknown authority": lambda: serve(),
        "wrong host": lambda: serve("elsewhere.example"),
        "expired": lambda: serve(not_after=past),
    }[fault]()
    transport = (
        drive_http.transport(proxy=False)
        if fault == "unknown authority"
        else drive_http.transport(ca_file=ca_file, proxy=False)
    )
    agent = agent_at(server, transport=transport, max_retries=2)
    with pytest.raises(errors.ConnectionError) as caught:
        call(drive_http, agent, streaming=streaming)
    assert not caught.value.retryable
    assert "certificate" in str(caught.value).lower()
    assert server.requests == []
    assert len(caught.value.attempts) == 1
    transport.close()


def test_tls_on_a_plain_port_is_a_connection_error(drive_http: Driver, serve: Serve) -> None:
    url = serve().url.replace("https:", "http:")
    agent = Agent("openai-chat:m", transport=drive_http.carrier, api_key="sk-test", base_url=f"{url}/v1", max_retries=0)
    with pytest.raises(errors.ConnectionError):
        call(drive_http, agent)


@pytest.mark.timing
@pytest.mark.parametrize("mode", ["pings", "endless"])
def test_the_deadline_holds_under_tls(drive_http: Driver, serve: Serve, ca_file: Path, mode: str) -> None:
    server = serve()
    transport = drive_http.transport(ca_file=ca_file, proxy=False)
    started = time.monotonic()
    with pytest.raises(errors.StreamInterrupted) as caught:
        call(drive_http, agent_at(server, mode, transport=transport, deadline=0.5), streaming=True)
    took = time.monotonic() - started
    assert isinstance(caught.value.__cause__, errors.TimeoutError)
    assert 0.49 < took < 0.6
    assert hung_up(server, mode)


@pytest.mark.timing
def test_a_handshake_that_hangs_ends_at_the_deadline(drive_http: Driver) -> None:
    """A server that accepts, and says nothing."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(5)
        port = listener.getsockname()[1]
        agent = Agent(
            "openai-chat:m",
            transport=drive_http.carrier,
            api_key="sk-test",
            base_url=f"https://127.0.0.1:{port}/v1",
            max_retries=0,
            deadline=0.3,
        )
        started = time.monotonic()
        with pytest.raises(errors.TimeoutError) as caught:
            call(drive_http, agent)
        assert caught.value.deadline
        assert 0.29 < time.monotonic() - started < 0.4


@pytest.mark.timing
def test_abort_wakes_a_reader_under_tls(serve: Serve, ca_file: Path) -> None:
    server = serve()
    transport = HttpTransport(ca_file=ca_file, proxy=False)
    stream = agent_at(server, "pings", transport=transport).stream("hi")
    threading.Timer(0.2, stream.abort).start()
    started = time.monotonic()
    with pytest.raises(errors.Aborted):
        stream.collect()
    assert time.monotonic() - started < 0.5
    assert hung_up(server, "pings")


def test_leaving_a_stream_under_tls_closes_its_socket(drive_http: Driver, serve: Serve, ca_file: Path) -> None:
    server = serve()
    agent = agent_at(server, "endless", transport=drive_http.transport(ca_file=ca_file, proxy=False))

    async def main() -> None:
        async for _ in agent.astream("hi"):
            break

    if drive_http.awaits:
        import asyncio

        asyncio.run(main())
    else:
        for _ in agent.stream("hi"):
            break
    assert server.wait_until(lambda: server.open_connections == 0)


# Hosts with dead addresses


@pytest.fixture(scope="module")
def dead_ports() -> Iterator[dict[str, int]]:
    """Addresses that refuse, drop packets, or fail the TLS handshake."""

    def serve_badly(listener: socket.socket, said: bytes | None) -> None:
        kept = []
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                if said is None:
                    kept.append(connection)
                else:
                    with connection:
                        connection.sendall(said)

    foreign = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("localhost").configure_cert(foreign)
    with ExitStack() as stack:
        ports = {"refused": free_port(), "black hole": stack.enter_context(black_hole())}
        for name, said in (("closed", b""), ("no TLS", b"HTTP/1.1 400 No\r\n\r\n"), ("silent", None)):
            listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            threading.Thread(target=serve_badly, args=(listener, said), daemon=True).start()
            ports[name] = listener.getsockname()[1]
        server = stack.enter_context(LoopbackServer(stream_or_whole, ssl_context=foreign))
        ports["foreign certificate"] = int(server.url.rpartition(":")[2])
        yield ports


@pytest.mark.timing
@pytest.mark.parametrize("seed", range(examples(8, 400)))
@pytest.mark.parametrize("awaits", [False, True], ids=["sync", "async"])
def test_one_address_that_works_is_sufficient(
    awaits: bool, seed: int, serve: Serve, ca_file: Path, dead_ports: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(seed)
    names = [*rng.choices(list(dead_ports), k=20 if seed % 4 == 0 else rng.randrange(1, 6)), "good"]
    if seed % 8:
        rng.shuffle(names)
    good = int(serve("localhost").url.rpartition(":")[2])
    resolves_to(monkeypatch, *(dead_ports.get(name, good) for name in names))
    transport = HttpTransport(ca_file=ca_file, proxy=False)
    agent = Agent("openai-chat:m", base_url="https://localhost:1/v1", transport=transport, max_retries=0,
        connect_timeout=2.0)  # fmt: skip
    started = time.monotonic()
    assert calls(agent, 1, awaits=awaits) == ["hello"]
    assert time.monotonic() - started < min(0.3 * names.index("good") + 0.5, 2.0), names
    transport.close()


@pytest.mark.parametrize("awaits", [False, True], ids=["sync", "async"])
def test_a_rejected_certificate_is_reported_rather_than_a_dead_address(
    awaits: bool, dead_ports: dict[str, int], ca_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolves_to(monkeypatch, dead_ports["foreign certificate"], dead_ports["refused"])
    agent = Agent("openai-chat:m", base_url="https://localhost:1/v1", transport=HttpTransport(ca_file=ca_file))
    with pytest.raises(errors.ConnectionError, match=r"(?i)certificate") as caught:
        calls(agent, 1, awaits=awaits)
    assert not caught.value.retryable
