"""Proxies: which one is used, that it works, and that its password is never shown."""

from __future__ import annotations

import asyncio
import base64
import ipaddress
import ssl
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest
import trustme

from agent import Agent, errors
from agent.testing import LoopbackServer
from agent.transports.proxies import ProxySettings, client_proxy
from tests.engine.play import agent_at, stream_or_whole
from tests.support.drivers import Driver, run_and_leave_nothing
from tests.transports.test_connections import call_twice, serve_and_close


class TinyProxy:
    """Speaks CONNECT, plain forwarding and SOCKS5, on one port."""

    def __init__(
        self,
        *,
        demand: str | None = None,
        silent: bool | list[bytes] = False,
        garbage: bool = False,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        self._ssl_context = ssl_context
        self.seen: list[str] = []
        self.credentials: list[str] = []
        self._demand = demand
        self._silent = silent
        self._garbage = garbage
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._connections: dict[asyncio.StreamWriter, asyncio.Task[None]] = {}
        ready = threading.Event()
        self._thread = threading.Thread(target=lambda: self._loop.run_until_complete(self._main(ready)), daemon=True)
        self._thread.start()
        ready.wait()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(5)
        self._loop.close()

    async def _main(self, ready: threading.Event) -> None:
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0, ssl=self._ssl_context)
        self.port = server.sockets[0].getsockname()[1]
        ready.set()
        await self._stop.wait()
        server.close()
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for writer in self._connections:
            await _close(writer)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections[writer] = self._loop.create_task(self._serve(reader, writer))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            first = await reader.readexactly(1)
            if isinstance(self._silent, list):  # begins to negotiate
                for piece in self._silent:
                    writer.write(piece)
                    await asyncio.sleep(0.05)
            if self._silent:
                await asyncio.sleep(30)
            if self._garbage:
                writer.write(b"\xde\xad\xbe\xef" * 4)
                await writer.drain()
            elif first == b"\x05":
                await self._socks(reader, writer)
            else:
                await self._http(first, reader, writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            await _close(writer)

    async def _http(self, first: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = first + await reader.readuntil(b"\r\n\r\n")
        line, *rest = head.decode("latin-1").split("\r\n")
        method, target, _ = line.split(" ", 2)
        self.seen.append(f"{method} {target}")
        given = [one.split(": ", 1)[1] for one in rest if one.lower().startswith("proxy-authorization")]
        self.credentials.extend(base64.b64decode(one.removeprefix("Basic ")).decode() for one in given)
        if self._demand is not None and self._demand not in self.credentials:
            writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\ncontent-length: 0\r\n\r\n")
            await writer.drain()
            return
        if method == "CONNECT":
            host, port = target.rsplit(":", 1)
            writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
            await self._join(host, int(port), b"", reader, writer)
        else:
            origin = target.split("/")[2]
            host, port = origin.rsplit(":", 1)
            path = target[target.index(origin) + len(origin) :]
            await self._join(host, int(port), head.replace(target.encode(), path.encode(), 1), reader, writer)

    async def _socks(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        methods = await reader.readexactly((await reader.readexactly(1))[0])
        if b"\x02" in methods:
            writer.write(b"\x05\x02")
            await reader.readexactly(1)
            user = await reader.readexactly((await reader.readexactly(1))[0])
            password = await reader.readexactly((await reader.readexactly(1))[0])
            self.credentials.append(f"{user.decode()}:{password.decode()}")
            right = self._demand in (None, self.credentials[-1])
            writer.write(b"\x01\x00" if right else b"\x01\x01")
            if not right:
                await writer.drain()
                return
        else:
            writer.write(b"\x05\x00")
        _, _, _, kind = await reader.readexactly(4)
        if kind == 1:
            host = ".".join(str(byte) for byte in await reader.readexactly(4))
        elif kind == 4:
            host = str(ipaddress.ip_address(await reader.readexactly(16)))
        else:
            host = (await reader.readexactly((await reader.readexactly(1))[0])).decode()
        port = int.from_bytes(await reader.readexactly(2), "big")
        self.seen.append(f"SOCKS {host}:{port}")
        writer.write(b"\x05\x00\x00\x01\x7f\x00\x00\x01\x00\x00")
        await self._join(host, port, b"", reader, writer)

    async def _join(
        self, host: str, port: int, opening: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        # The servers listen on IPv4 only, but IPv6 hosts in requests are tested too.
        there, onward = await asyncio.open_connection(
            "127.0.0.1" if host in ("localhost", "::1", "[::1]") else host, port
        )
        onward.write(opening)
        copies = [asyncio.ensure_future(_copy(reader, onward)), asyncio.ensure_future(_copy(there, writer))]
        try:
            await asyncio.wait(copies, return_when=asyncio.FIRST_COMPLETED)
        finally:
            onward.close()  # first of all: the awaits below may be cancelled
            for copy in copies:
                copy.cancel()
            await asyncio.gather(*copies, return_exceptions=True)
            await _close(onward)


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(OSError, asyncio.CancelledError):
        await writer.wait_closed()


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await source.read(65536):
            target.write(data)
            await target.drain()


@pytest.fixture
def proxies() -> Iterator[Callable[..., TinyProxy]]:
    made: list[TinyProxy] = []

    def start(**options: Any) -> TinyProxy:
        made.append(TinyProxy(**options))
        return made[-1]

    yield start
    for proxy in made:
        proxy.close()


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def secure(authority: trustme.CA, tmp_path: Path) -> Iterator[tuple[LoopbackServer, Path]]:
    path = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(path))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    with LoopbackServer(stream_or_whole, ssl_context=context) as server:
        yield server, path


def complete_and_stream(drive: Driver, agent: Agent) -> tuple[str | None, str | None]:
    async def main() -> tuple[str | None, str | None]:
        return (await agent.acomplete("hi")).text, (await agent.astream("hi").collect()).text

    if drive.awaits:
        return run_and_leave_nothing(main())
    return agent.complete("hi").text, agent.stream("hi").collect().text


def error_from_exception(drive: Driver, agent: Agent) -> tuple[type[errors.AgentError], bool, str]:
    """Type, retryability and text of a failure, without the error, whose traceback keeps sockets alive."""
    try:
        complete_and_stream(drive, agent)
    except errors.AgentError as error:
        shown = "".join(traceback.format_exception(error)) + repr(error)
        return type(error), error.retryable, shown
    raise AssertionError("the call succeeded")


GOOD = ("hello", "t0 t1 t2 ")


@pytest.mark.parametrize("variable", ["HTTP_PROXY", "http_proxy", "ALL_PROXY", "argument"])
def test_plain_requests_are_forwarded(
    drive_http: Driver, proxies: Callable[..., TinyProxy], monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    proxy, server = proxies(), drive_http.serve(stream_or_whole)
    url = f"http://127.0.0.1:{proxy.port}"
    if variable != "argument":
        monkeypatch.setenv(variable, url)
    transport = drive_http.transport(proxy=url if variable == "argument" else None)
    assert complete_and_stream(drive_http, agent_at(server, transport=transport)) == GOOD
    assert proxy.seen[0] == f"POST {server.url}/any/v1/chat/completions"
    transport.close()


@pytest.mark.parametrize("variable", ["HTTPS_PROXY", "ALL_PROXY", "argument"])
def test_secure_requests_go_through_a_tunnel(
    drive_http: Driver,
    proxies: Callable[..., TinyProxy],
    secure: tuple[LoopbackServer, Path],
    monkeypatch: pytest.MonkeyPatch,
    variable: str,
) -> None:
    proxy, (server, ca_file) = proxies(), secure
    url = f"127.0.0.1:{proxy.port}"  # without a scheme, as many write it
    if variable != "argument":
        monkeypatch.setenv(variable, url)
    transport = drive_http.transport(ca_file=ca_file, proxy=url if variable == "argument" else None)
    assert complete_and_stream(drive_http, agent_at(server, transport=transport)) == GOOD
    assert set(proxy.seen) == {f"CONNECT {server.url.removeprefix('https://')}"}
    transport.close()


def test_a_proxy_may_be_reached_over_tls_itself(
    drive_http: Driver,
    proxies: Callable[..., TinyProxy],
    secure: tuple[LoopbackServer, Path],
    authority: trustme.CA,
) -> None:
    server, ca_file = secure
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    proxy = proxies(ssl_context=context)
    transport = drive_http.transport(ca_file=ca_file, proxy=f"https://127.0.0.1:{proxy.port}")
    assert complete_and_stream(drive_http, agent_at(server, transport=transport)) == GOOD
    assert set(proxy.seen) == {f"CONNECT {server.url.removeprefix('https://')}"}
    transport.close()


@pytest.mark.parametrize("scheme", ["socks5", "socks5h"])
def test_a_socks_proxy_carries_everything(
    drive_http: Driver, proxies: Callable[..., TinyProxy], secure: tuple[LoopbackServer, Path], scheme: str
) -> None:
    proxy, (server, ca_file) = proxies(), secure
    transport = drive_http.transport(ca_file=ca_file, proxy=f"{scheme}://127.0.0.1:{proxy.port}")
    assert complete_and_stream(drive_http, agent_at(server, transport=transport)) == GOOD
    plain = drive_http.serve(stream_or_whole)
    assert complete_and_stream(drive_http, agent_at(plain, transport=transport)) == GOOD
    assert all(one.startswith("SOCKS 127.0.0.1:") for one in proxy.seen)
    transport.close()


@pytest.mark.parametrize("scheme", ["http", "socks5"])
@pytest.mark.parametrize("target", ["plain", "secure"])
def test_an_ipv6_host_is_reached_through_a_proxy(
    drive_http: Driver,
    proxies: Callable[..., TinyProxy],
    authority: trustme.CA,
    tmp_path: Path,
    target: str,
    scheme: str,
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("::1").configure_cert(context)
    path = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(path))
    proxy = proxies()
    with LoopbackServer(stream_or_whole, ssl_context=context if target == "secure" else None) as server:
        url = server.url.replace("127.0.0.1", "[::1]")
        origin = url.partition("://")[2]
        port = int(origin.rpartition(":")[2])
        transport = drive_http.transport(ca_file=path, proxy=f"{scheme}://127.0.0.1:{proxy.port}")
        agent = Agent("openai-chat:m", api_key="k", base_url=f"{url}/v1", transport=transport, max_retries=0)
        assert complete_and_stream(drive_http, agent) == GOOD
        if scheme == "socks5":
            assert set(proxy.seen) == {f"SOCKS ::1:{port}"}
        elif target == "secure":
            assert set(proxy.seen) == {f"CONNECT {origin}"}
        else:
            assert set(proxy.seen) == {f"POST {url}/v1/chat/completions"}
        assert dict(server.requests[0].headers)[b"host"] == origin.encode()
        transport.close()


def test_an_http_proxy_is_not_for_https(
    drive_http: Driver,
    proxies: Callable[..., TinyProxy],
    secure: tuple[LoopbackServer, Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    proxy, (server, ca_file) = proxies(), secure
    monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{proxy.port}")
    transport = drive_http.transport(ca_file=ca_file)
    assert complete_and_stream(drive_http, agent_at(server, transport=transport)) == GOOD
    assert proxy.seen == []
    transport.close()


@pytest.mark.parametrize("how", ["NO_PROXY", "argument"])
def test_a_proxy_can_be_avoided(
    drive_http: Driver, proxies: Callable[..., TinyProxy], monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    proxy, server = proxies(), drive_http.serve(stream_or_whole)
    monkeypatch.setenv("ALL_PROXY", f"http://127.0.0.1:{proxy.port}")
    if how == "NO_PROXY":
        monkeypatch.setenv("NO_PROXY", "example.com, 127.0.0.0/8")
    transport = drive_http.transport(proxy=False if how == "argument" else None)
    assert complete_and_stream(drive_http, agent_at(server, transport=transport)) == GOOD
    assert proxy.seen == []
    transport.close()


@pytest.mark.parametrize("scheme", ["http", "socks5"])
@pytest.mark.parametrize("target", ["plain", "secure"])
def test_credentials_are_sent_to_the_proxy_and_shown_to_nobody(
    drive_http: Driver,
    proxies: Callable[..., TinyProxy],
    secure: tuple[LoopbackServer, Path],
    scheme: str,
    target: str,
) -> None:
    proxy = proxies(demand="user:p@ss/word")
    server = drive_http.serve(stream_or_whole) if target == "plain" else secure[0]
    transport = drive_http.transport(ca_file=secure[1], proxy=f"{scheme}://user:p%40ss%2Fword@127.0.0.1:{proxy.port}")
    agent = agent_at(server, transport=transport)
    assert complete_and_stream(drive_http, agent) == GOOD
    assert "user:p@ss/word" in proxy.credentials
    assert "word" not in repr(transport)
    if target == "secure":
        assert b"proxy-authorization" not in dict(server.requests[0].headers)
    transport.close()


@pytest.mark.parametrize("scheme", ["http", "socks5"])
@pytest.mark.parametrize("target", ["plain", "secure"])
def test_a_proxy_that_refuses_us_is_final(
    drive_http: Driver,
    proxies: Callable[..., TinyProxy],
    secure: tuple[LoopbackServer, Path],
    scheme: str,
    target: str,
) -> None:
    """407: a retry with the same credentials is useless, and the password stays secret."""
    proxy = proxies(demand="user:right")
    server = drive_http.serve(stream_or_whole) if target == "plain" else secure[0]
    transport = drive_http.transport(ca_file=secure[1], proxy=f"{scheme}://user:wr0ng-canary@127.0.0.1:{proxy.port}")
    kind, retryable, shown = error_from_exception(drive_http, agent_at(server, transport=transport, max_retries=2))
    assert (kind, retryable) == (errors.ConnectionError, False)
    assert server.requests == []
    encoded = base64.b64encode(b"user:wr0ng-canary").decode()
    assert "wr0ng" not in shown
    assert encoded not in shown
    transport.close()


@pytest.mark.timing
@pytest.mark.parametrize("scheme", ["http", "socks5"])
def test_a_proxy_that_hangs_does_not_outlast_the_deadline(
    drive_http: Driver, proxies: Callable[..., TinyProxy], secure: tuple[LoopbackServer, Path], scheme: str
) -> None:
    proxy, (server, ca_file) = proxies(silent=True), secure
    transport = drive_http.transport(ca_file=ca_file, proxy=f"{scheme}://127.0.0.1:{proxy.port}")
    started = time.monotonic()
    kind, _, shown = error_from_exception(drive_http, agent_at(server, transport=transport, deadline=0.3))
    assert kind is errors.TimeoutError
    assert "deadline" in shown
    assert time.monotonic() - started < 0.5
    transport.close()


@pytest.mark.timing
@pytest.mark.parametrize(
    ("scheme", "silent"),
    [
        ("http", True),
        ("http", [b"HTTP/1.1 200 OK\r\nx: ", *[b"y"] * 40]),
        ("socks5", True),
        ("socks5", [b"\x05\x00"]),
    ],
    ids=["http", "http-drip", "socks", "socks-drip"],
)
def test_connect_timeout_covers_the_proxy(
    drive_http: Driver, proxies: Callable[..., TinyProxy], scheme: str, silent: bool | list[bytes]
) -> None:
    """Silent from the first byte, after some, or dripping them."""
    proxy = proxies(silent=silent)
    transport = drive_http.transport(proxy=f"{scheme}://127.0.0.1:{proxy.port}")
    agent = Agent(
        "openai-chat:m", api_key="k", base_url="https://127.0.0.1:1/v1", transport=transport, max_retries=0,
        connect_timeout=0.3, timeout=20,
    )  # fmt: skip
    for streaming in (False, True):
        started = time.monotonic()
        with pytest.raises(errors.TimeoutError, match="connect_timeout") as caught:
            drive_http.call(agent, streaming=streaming)
        assert not caught.value.deadline
        assert 0.28 < time.monotonic() - started < 0.3 + 0.4
    transport.close()


@pytest.mark.parametrize("scheme", ["http", "socks5"])
def test_a_stale_connection_through_a_proxy_is_replaced(
    drive_http: Driver, proxies: Callable[..., TinyProxy], scheme: str
) -> None:
    with serve_and_close() as server:
        proxy = proxies()
        transport = drive_http.transport(proxy=f"{scheme}://127.0.0.1:{proxy.port}")
        agent = agent_at(server, transport=transport, max_retries=0)
        assert call_twice(drive_http, agent, streaming=False) == ["hello"] * 2
        assert len(proxy.seen) == 2 if scheme == "socks5" else server.connections == 2
        transport.close()


@pytest.mark.parametrize("scheme", ["http", "socks5"])
def test_a_proxy_that_talks_nonsense_is_a_typed_error(
    drive_http: Driver, proxies: Callable[..., TinyProxy], secure: tuple[LoopbackServer, Path], scheme: str
) -> None:
    proxy, (server, ca_file) = proxies(garbage=True), secure
    transport = drive_http.transport(ca_file=ca_file, proxy=f"{scheme}://127.0.0.1:{proxy.port}")
    assert error_from_exception(drive_http, agent_at(server, transport=transport))[0] is errors.ConnectionError
    transport.close()


def test_a_proxy_that_is_not_there_is_a_connection_error(drive_http: Driver) -> None:
    server = drive_http.serve(stream_or_whole)
    transport = drive_http.transport(proxy="http://127.0.0.1:9")
    assert error_from_exception(drive_http, agent_at(server, transport=transport))[0] is errors.ConnectionError
    assert server.requests == []


@pytest.mark.parametrize(
    "url",
    [
        "ftp://proxy:1",
        "gopher://user:canary@proxy",
        "http://",
        "http://user:canary@[bad",
        "http://user:canary@proxy:port",
        "http://user:canary@proxy:99999",
        "http://user:canary@proxy:0",
    ],
)
def test_a_proxy_of_an_unknown_kind_or_with_no_readable_address_is_refused(url: str) -> None:
    with pytest.raises(errors.ConfigurationError) as caught:
        client_proxy(httpx2, url, ssl.create_default_context())
    assert "canary" not in str(caught.value)


def test_a_password_with_special_characters_is_decoded() -> None:
    proxy = client_proxy(httpx2, "http://us%40er:p%3Ass@[::1]:3128", ssl.create_default_context())
    assert proxy.auth == ("us@er", "p:ss")
    assert (proxy.url.host, proxy.url.port) == ("::1", 3128)


# Which proxy


@pytest.mark.parametrize(
    ("excluded", "url", "direct"),
    [
        ("*", "https://anything.example", True),
        ("example.com", "https://example.com", True),
        ("example.com", "https://api.example.com/v1", True),
        ("example.com", "https://notexample.com", False),
        ("EXAMPLE.com", "https://Example.COM", True),
        (".example.com", "https://api.example.com", True),
        (".example.com", "https://example.com", False),
        ("example.com:8443", "https://example.com:8443", True),
        ("example.com:8443", "https://example.com", False),
        ("example.com:443", "https://example.com", True),
        ("example.com:80", "http://example.com", True),
        ("localhost", "http://localhost:1234", True),
        ("localhost", "http://api.localhost", False),
        ("127.0.0.1", "http://127.0.0.1:8000", True),
        ("127.0.0.1:8000", "http://127.0.0.1:8000", True),
        ("127.0.0.1:8000", "http://127.0.0.1:8001", False),
        ("10.0.0.0/8", "https://10.1.2.3", True),
        ("10.0.0.0/8", "https://11.1.2.3", False),
        ("10.0.0.0/8", "https://10.example.com", False),
        ("192.168.1.7/24", "https://192.168.1.9", True),
        ("::1", "http://[::1]:8000", True),
        ("[::1]", "http://[::1]:8000", True),
        ("[::1]:8000", "http://[::1]:8000", True),
        ("[::1]:8000", "http://[::1]:8001", False),
        ("fd00::/8", "https://[fd12::1]", True),
        ("fd00::/8", "https://[fe80::1]", False),
        ("10.0.0.0/8", "https://[::1]", False),
        ("https://example.com", "https://example.com", True),
        ("https://example.com", "http://example.com", False),
        ("all://example.com:99", "http://example.com:99", True),
        ("all://example.com:99", "http://example.com", False),
        ("http://[bad, https://example.com:port, example.com", "https://example.com", True),
        ("http://[bad, https://example.com:port", "https://example.com", False),
        ("a.example, ,b.example ", "https://b.example", True),
        ("", "https://example.com", False),
        (",", "https://example.com", False),
    ],
)
def test_no_proxy(excluded: str, url: str, direct: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", "http://proxy.example:3128")
    monkeypatch.setenv("NO_PROXY", excluded)
    found = ProxySettings.from_environment().for_url(url)
    assert found == (None if direct else "http://proxy.example:3128")


@pytest.mark.parametrize(
    ("settings", "url", "proxy"),
    [
        ({"HTTP_PROXY": "http://a"}, "http://x", "http://a"),
        ({"HTTP_PROXY": "http://a"}, "https://x", None),
        ({"HTTPS_PROXY": "http://b"}, "https://x", "http://b"),
        ({"HTTP_PROXY": "http://a", "ALL_PROXY": "socks5://c"}, "https://x", "socks5://c"),
        ({"HTTP_PROXY": "http://a", "ALL_PROXY": "socks5://c"}, "http://x", "http://a"),
        ({"HTTPS_PROXY": "b:3128"}, "https://x", "http://b:3128"),
        ({"HTTPS_PROXY": "", "ALL_PROXY": ""}, "https://x", None),
        ({}, "https://x", None),
    ],
)
def test_the_environment_decides(
    settings: dict[str, str], url: str, proxy: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    assert ProxySettings.from_environment().for_url(url) == proxy


def test_one_proxy_for_everything() -> None:
    assert ProxySettings.always("http://p:1").for_url("https://x") == "http://p:1"
    assert ProxySettings().for_url("https://x") is None
