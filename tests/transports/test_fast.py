"""What is the other transport's own: its name, what it leaves to the usual one, and what its library must not do.

How it behaves on the network, the suites of both transports say.
"""

from __future__ import annotations

import asyncio
import gc
import importlib.util
import logging
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agent import Agent, Router, errors, transports
from agent.testing import Answer, LoopbackServer, Piece, RawAnswer
from agent.transports.direct_aio import AioConnections
from agent.wire import Limits, WireRequest
from tests.drive import make_transport, needs_aiohttp, run_and_leave_nothing
from tests.drivers.play import JSON, NO_TLS, agent_at, completion, streamed_or_whole, whole

ROOT = Path(__file__).parents[2]
PLAIN = ((b"content-type", b"application/json"),)

# Names


def test_an_unknown_name_is_refused_when_the_agent_is_made() -> None:
    with pytest.raises(errors.ConfigurationError, match="no transport named 'quick'") as caught:
        Agent("openai-chat:m", transport="quick")
    assert caught.value.field == "transport"
    assert "http, fast" in str(caught.value)


def test_without_aiohttp_the_fix_is_named_when_the_agent_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(errors.ConfigurationError, match=r"pip install 'agent-llm-router\[fast\]'") as caught:
        Agent("openai-chat:m", transport="fast")
    assert caught.value.field == "transport"
    Agent("openai-chat:m", transport="http")


@needs_aiohttp
def test_a_name_travels_with_the_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
    agent = Agent("openai-chat:m", transport="fast")
    copy: Agent = pickle.loads(pickle.dumps(agent))
    for one in (agent, agent.with_config(temperature=0.5), copy):
        assert one._transport is transports.load("fast")
    assert Agent("openai-chat:m", transport="http")._transport is transports.load("http")


@needs_aiohttp
def test_agents_that_differ_in_their_transport_share_a_keys_troubles() -> None:
    usual, fast = (Agent("openai-chat:m", api_key="k", transport=name) for name in (None, "fast"))
    assert usual.identity() == fast.identity()


@needs_aiohttp
def test_a_router_may_mix_transports() -> None:
    with LoopbackServer(streamed_or_whole) as server:
        router = Router([agent_at(server, "a", transport="aiohttp"), agent_at(server, "b")], strategy="round_robin")

        async def main() -> None:
            for _ in range(4):
                assert (await router.acomplete("hi")).text == "hello"

        run_and_leave_nothing(main())
        assert router.complete("hi").text == "hello"


@needs_aiohttp
def test_nothing_of_aiohttp_is_loaded_before_it_is_needed() -> None:
    code = (
        "import sys; from agent import Agent; Agent('openai-chat:m', api_key='k', transport='fast');"
        "print([name for name in ('aiohttp', 'asyncio', 'yarl') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert (done.stdout, done.stderr) == ("[]\n", "")


@needs_aiohttp
def test_blocking_calls_of_the_shared_one_use_the_usual_connections() -> None:
    with LoopbackServer(streamed_or_whole) as server:
        for name in ("http", "aiohttp", "http"):
            assert agent_at(server, transport=name).complete("hi").text == "hello"
        assert server.connections_made == 1


# What is left to the other one


@needs_aiohttp
@pytest.mark.parametrize(
    "header", [(b"x-note", "Grüße".encode("latin-1")), (b"x-note", b"a\r\nx-other: b"), (b"bad name", b"x")]
)
def test_headers_that_aiohttp_would_write_otherwise_are_sent_or_refused_as_usual(header: tuple[bytes, bytes]) -> None:
    def outcome(name: str) -> Any:
        transport = make_transport(name, proxy=False, ssl_context=NO_TLS)
        with LoopbackServer(lambda request: whole()) as server:
            request = WireRequest(f"{server.url}/v1", (*PLAIN, header), b"{}")
            try:
                asyncio.run(_asend(transport, request))
            except errors.ConfigurationError as error:
                return str(error), error.field
            return server.requests[0].headers[-3:]

    assert outcome("aiohttp") == outcome("http")


async def _asend(transport: Any, request: WireRequest) -> Any:
    return await transport.asend(request, Limits())


@needs_aiohttp
def test_both_transports_send_the_same_request() -> None:
    def sent(name: str) -> tuple[str, dict[bytes, bytes], bytes]:
        with LoopbackServer(streamed_or_whole) as server:
            agent = agent_at(server, "a%2Fb/c%20d;e", transport=name, headers={"x-trace": "1"})
            asyncio.run(agent.acomplete("Grüße"))
            (request,) = server.requests
            headers = {key.lower(): value for key, value in request.headers}
            assert headers.pop(b"host") == server.url.removeprefix("http://").encode()
            return request.url, headers, request.body

    assert sent("aiohttp") == sent("http")


# What aiohttp must not do


@needs_aiohttp
def test_a_request_is_never_sent_twice_by_the_transport() -> None:
    """aiohttp asks again by itself where a kept connection turns out to be dead; not with POST."""
    seen: list[bytes] = []

    def network(request: WireRequest) -> Answer:
        seen.append(request.body)
        return whole() if len(seen) == 1 else Answer(failure=ConnectionResetError("dead"))

    with LoopbackServer(network) as server:
        transport = make_transport("aiohttp", proxy=False, ssl_context=NO_TLS)

        async def main() -> None:
            await transport.asend(WireRequest(f"{server.url}/v1", PLAIN, b"{}"), Limits())
            with pytest.raises(errors.ConnectionError):
                await transport.asend(WireRequest(f"{server.url}/v1", PLAIN, b"{}"), Limits())

        run_and_leave_nothing(main())
        assert (len(seen), server.connections_made) == (2, 1)


@needs_aiohttp
def test_cookies_are_forgotten_and_the_environment_is_not_asked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login somebody password canary\n")
    monkeypatch.setenv("NETRC", str(netrc))
    with LoopbackServer(lambda request: Answer([completion("a")], headers={**JSON, "set-cookie": "a=b"})) as server:
        agent = agent_at(server, transport="aiohttp")

        async def main() -> None:
            await agent.acomplete("hi")
            await agent.acomplete("hi")

        run_and_leave_nothing(main())
        for request in server.requests:
            headers = {name.lower(): value for name, value in request.headers}
            assert b"cookie" not in headers
            assert headers[b"authorization"] == b"Bearer sk-test"


@needs_aiohttp
def test_what_came_before_a_failure_is_read_before_it_is_raised() -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n"
    with LoopbackServer(lambda request: RawAnswer([head + b"good"])) as server:
        transport = make_transport("aiohttp", proxy=False, ssl_context=NO_TLS)

        async def main() -> None:
            body = await transport.aopen(WireRequest(f"{server.url}/v1", PLAIN, b"{}"), Limits(), [])
            await asyncio.sleep(0.1)  # by now the connection has been lost, too
            assert await body.read() == b"good"
            with pytest.raises(errors.ConnectionError):
                await body.read()
            await body.aclose()

        run_and_leave_nothing(main())


@needs_aiohttp
def test_a_reader_hears_of_bytes_that_are_not_http_when_they_come_late() -> None:
    head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhi\r\n"
    with LoopbackServer(lambda request: RawAnswer([head, Piece(b"zz\r\n", 0.05), Piece(b"", 5)])) as server:
        transport = make_transport("aiohttp", proxy=False, ssl_context=NO_TLS)

        async def main() -> None:
            body = await transport.aopen(WireRequest(f"{server.url}/v1", PLAIN, b"{}"), Limits(), [])
            assert await body.read() == b"hi"
            with pytest.raises(errors.ConnectionError):
                await asyncio.wait_for(body.read(), 2)
            await body.aclose()

        run_and_leave_nothing(main())


@needs_aiohttp
def test_one_answer_does_not_keep_other_tasks_waiting() -> None:
    """A megabyte in chunks of one byte, all of it already here."""
    chunks = b"1\r\nx\r\n" * 200_000
    head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
    with LoopbackServer(lambda request: RawAnswer([head + chunks + b"0\r\n\r\n"])) as server:
        transport = make_transport("aiohttp", proxy=False, ssl_context=NO_TLS)

        async def main() -> int:
            turns = 0

            async def other() -> None:
                nonlocal turns
                while True:
                    turns += 1
                    await asyncio.sleep(0)

            beside = asyncio.create_task(other())
            reply = await transport.asend(WireRequest(f"{server.url}/v1", PLAIN, b"{}"), Limits())
            beside.cancel()
            assert len(reply.body) == 200_000
            return turns

        assert asyncio.run(main()) > 30


# Warnings


@needs_aiohttp
@pytest.mark.parametrize("awhile", [0.0, 0.05])
def test_a_transport_that_is_dropped_closes_its_connections_without_complaints(
    caplog: pytest.LogCaptureFixture, awhile: float
) -> None:
    """As the loop ends, or some time before."""
    with LoopbackServer(streamed_or_whole) as server:

        async def call() -> None:
            transport = make_transport("aiohttp", proxy=False, ssl_context=NO_TLS)
            await _asend(transport, WireRequest(f"{server.url}/v1", PLAIN, b"{}"))

        async def main() -> None:
            await call()
            if awhile:
                await asyncio.sleep(awhile)
                assert server.open_connections == 0

        asyncio.run(main())
        gc.collect()
        assert server.wait_until(lambda: server.open_connections == 0)
    assert [record.getMessage() for record in caplog.records if record.levelno > logging.DEBUG] == []


@needs_aiohttp
def test_a_loop_that_was_closed_without_being_shut_down_causes_no_complaints_of_aiohttp(
    caplog: pytest.LogCaptureFixture, recwarn: pytest.WarningsRecorder
) -> None:
    with LoopbackServer(lambda request: RawAnswer([b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"])) as server:
        made = [make_transport("aiohttp", proxy=False, ssl_context=NO_TLS)]

        async def main() -> None:
            await _asend(made[0], WireRequest(f"{server.url}/v1", PLAIN, b"{}"))
            await asyncio.sleep(0.05)  # the server has hung up: asyncio would complain of an open socket by itself

        with caplog.at_level(logging.DEBUG):
            for _ in range(2):
                loop = asyncio.new_event_loop()
                loop.run_until_complete(main())
                loop.close()
            made.clear()
            gc.collect()
        assert [record.getMessage() for record in caplog.records if "nclosed" in record.getMessage()] == []
        assert [str(warning.message) for warning in recwarn if "client" in str(warning.message)] == []


def test_a_transport_that_could_not_serve_a_proxy_is_refused_when_it_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    from agent.transports.fast import FastTransport

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(errors.ConfigurationError, match=r"pip install 'agent-llm-router\[fast\]'"):
        FastTransport()


@needs_aiohttp
def test_what_needs_no_proxy_goes_over_connections_of_our_own_and_loads_nothing_else() -> None:
    from agent.transports.fast import FastTransport

    with LoopbackServer(streamed_or_whole) as server:
        transport = FastTransport(proxy=False)

        async def main() -> int:
            agent = agent_at(server, transport=transport)
            await agent.acomplete("hi")
            await agent.astream("hi").collect()
            direct = await transport._http._acarrier(None)
            assert isinstance(direct, AioConnections)
            return len(direct.idle)

        assert run_and_leave_nothing(main()) == 1
        assert transport._through_proxies is None
        transport.close()


@needs_aiohttp
def test_what_goes_through_a_proxy_is_carried_by_aiohttp() -> None:
    from agent.transports.fast import FastTransport
    from agent.transports.over_aiohttp import AiohttpTransport

    with LoopbackServer(streamed_or_whole) as proxy:
        transport = FastTransport(proxy=proxy.url)

        async def main() -> int:
            settings: dict[str, Any] = {"api_key": "sk-test", "allow_insecure": True, "transport": transport}
            agent = Agent("openai-chat:m", base_url="http://vendor.test/v1", **settings)
            await agent.acomplete("hi")
            carrier = transport._through_proxies
            assert isinstance(carrier, AiohttpTransport)
            await agent.astream("hi").collect()
            assert transport._through_proxies is carrier
            return len(carrier._sessions.by_loop)

        assert run_and_leave_nothing(main()) == 1
        transport.close()


@needs_aiohttp
def test_aiohttp_is_loaded_by_the_first_request_that_needs_it() -> None:
    program = """
import sys
from agent import Agent
assert type(Agent("openai-chat:m", api_key="k", transport="fast")._transport).__name__ == "FastTransport"
assert "aiohttp" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT, timeout=60)
