"""Proxies of other projects: tinyproxy and mitmproxy, if they are installed."""

from __future__ import annotations

import asyncio
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
import trustme

from agent import Agent, errors
from agent.testing import Answer, LoopbackServer
from tests.engine.play import agent_at, hung_up, pings, stream_or_whole
from tests.support.drivers import Driver, run_and_leave_nothing

TINYPROXY, MICROSOCKS = shutil.which("tinyproxy"), shutil.which("microsocks")
needs_tinyproxy = pytest.mark.skipif(TINYPROXY is None, reason="tinyproxy is not installed (apt install tinyproxy)")
needs_microsocks = pytest.mark.skipif(MICROSOCKS is None, reason="microsocks is not installed (apt install microsocks)")
KINDS = [pytest.param("http", marks=needs_tinyproxy), pytest.param("socks5", marks=needs_microsocks)]
GOOD = ("hello", "t0 t1 t2 ")


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


@contextmanager
def run_proxy(kind: str, folder: Path, login: str | None = None) -> Iterator[int]:
    """The port of a proxy of this kind, which wants `user:password` if a login is given."""
    port = free_port()
    user, _, password = (login or "").partition(":")
    if kind == "http":
        settings = folder / f"tinyproxy-{port}.conf"
        authentication = f"BasicAuth {user} {password}\n" if login else ""
        settings.write_text(
            f"Port {port}\nListen 127.0.0.1\nTimeout 600\nMaxClients 100\nAllow 127.0.0.1\n"
            f'LogLevel Critical\nLogFile "{folder / "log"}"\n{authentication}'
        )
        command = [str(TINYPROXY), "-d", "-c", str(settings)]
    else:
        command = [str(MICROSOCKS), "-i", "127.0.0.1", "-p", str(port)]
        command += ["-u", user, "-P", password] if login else []
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            deadline = time.monotonic() + 10
            while True:
                try:
                    socket.create_connection(("127.0.0.1", port), 1).close()
                    break
                except OSError:
                    assert time.monotonic() < deadline, "the proxy does not start"
                    time.sleep(0.02)
            yield port
        finally:
            process.kill()


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(params=["plain", "secure"])
def target(request: pytest.FixtureRequest, authority: trustme.CA) -> Iterator[LoopbackServer]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)

    def network(asked: Any) -> Answer:
        return pings() if "pings" in asked.url else stream_or_whole(asked)

    with LoopbackServer(network, ssl_context=context if request.param == "secure" else None) as server:
        yield server


def trust_proxy(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context


def complete_and_stream(drive: Driver, agent: Agent) -> tuple[str | None, str | None]:
    async def main() -> tuple[str | None, str | None]:
        return (await agent.acomplete("hi")).text, (await agent.astream("hi").collect()).text

    if drive.awaits:
        return run_and_leave_nothing(main())
    return agent.complete("hi").text, agent.stream("hi").collect().text


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", ["argument", "environment", "login"])
def test_calls_and_streams_go_through(
    drive_http: Driver,
    target: LoopbackServer,
    authority: trustme.CA,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    how: str,
) -> None:
    login = "user:pass_word" if how == "login" else None
    with run_proxy(kind, tmp_path, login) as port:
        url = f"{kind}://{login + '@' if login else ''}127.0.0.1:{port}"
        if how == "environment":
            monkeypatch.setenv("ALL_PROXY", url)
        transport = drive_http.transport(
            ssl_context=trust_proxy(authority), proxy=None if how == "environment" else url
        )
        agent = agent_at(target, transport=transport)
        assert complete_and_stream(drive_http, agent) == GOOD
        assert complete_and_stream(drive_http, agent) == GOOD
        assert len(target.requests) == 4
        transport.close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_wrong_login_is_final_and_not_shown(
    drive_http: Driver, target: LoopbackServer, authority: trustme.CA, tmp_path: Path, kind: str
) -> None:
    if kind == "http" and target.url.startswith("http:"):
        pytest.skip("tinyproxy answers a forwarded request with status 401, which could be the vendor's")
    with run_proxy(kind, tmp_path, "user:right") as port:
        transport = drive_http.transport(
            ssl_context=trust_proxy(authority), proxy=f"{kind}://user:wrong-canary@127.0.0.1:{port}"
        )
        agent = agent_at(target, transport=transport, max_retries=2)
        with pytest.raises(errors.ConnectionError) as caught:
            drive_http.call(agent)
        assert not caught.value.retryable
        assert "canary" not in str(caught.value)
        assert target.requests == []
        transport.close()


@pytest.mark.timing
@pytest.mark.parametrize("kind", KINDS)
def test_a_deadline_holds_and_the_connection_is_closed(
    drive_http: Driver, target: LoopbackServer, authority: trustme.CA, tmp_path: Path, kind: str
) -> None:
    with run_proxy(kind, tmp_path) as port:
        transport = drive_http.transport(ssl_context=trust_proxy(authority), proxy=f"{kind}://127.0.0.1:{port}")
        drive_http.call(agent_at(target, transport=transport))  # everything is imported
        agent = agent_at(target, "pings", transport=transport, deadline=0.5)
        started = time.monotonic()
        with pytest.raises(errors.StreamInterrupted) as caught:
            drive_http.call(agent, streaming=True)
        assert time.monotonic() - started < 0.9
        assert isinstance(caught.value.__cause__, errors.TimeoutError)
        assert hung_up(target, "pings")
        transport.close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_stream_that_is_left_closes_its_connection(
    target: LoopbackServer, authority: trustme.CA, tmp_path: Path, kind: str, drive_http: Driver
) -> None:
    with run_proxy(kind, tmp_path) as port:
        transport = drive_http.transport(ssl_context=trust_proxy(authority), proxy=f"{kind}://127.0.0.1:{port}")
        agent = agent_at(target, "pings", transport=transport)

        async def main() -> None:
            async for _ in agent.astream("hi"):
                break

        if drive_http.awaits:
            asyncio.run(main())
        else:
            for _ in agent.stream("hi"):
                break
        assert target.wait_until(lambda: target.open_connections == 0)
        transport.close()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("awaits", [False, True], ids=["sync", "async"])
def test_a_users_client_may_have_a_proxy(
    target: LoopbackServer, authority: trustme.CA, tmp_path: Path, kind: str, awaits: bool
) -> None:
    with run_proxy(kind, tmp_path) as port:
        options: dict[str, Any] = {"proxy": f"{kind}://127.0.0.1:{port}", "verify": trust_proxy(authority)}

        async def main() -> str | None:
            async with httpx2.AsyncClient(**options) as client:
                return (await agent_at(target, http_client=client).astream("hi").collect()).text

        if awaits:
            assert run_and_leave_nothing(main()) == GOOD[1]
        else:
            with httpx2.Client(**options) as client:
                assert agent_at(target, http_client=client).stream("hi").collect().text == GOOD[1]


@pytest.mark.parametrize("kind", KINDS)
def test_a_proxy_that_goes_away_is_a_connection_error(
    drive_http: Driver, target: LoopbackServer, authority: trustme.CA, tmp_path: Path, kind: str
) -> None:
    with run_proxy(kind, tmp_path) as port:
        transport = drive_http.transport(ssl_context=trust_proxy(authority), proxy=f"{kind}://127.0.0.1:{port}")
        assert drive_http.call(agent_at(target, transport=transport)).text == "hello"
    with pytest.raises(errors.ConnectionError):
        drive_http.call(agent_at(target, transport=transport))
    transport.close()
