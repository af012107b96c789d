"""SDK clients: event loops, threads, timeouts, cancellation and leaks."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import anthropic
import httpx2
import openai
import pytest
from google import genai

from agent import Agent, errors
from agent.engine.wire import Limits, WireRequest
from agent.testing import Answer, LoopbackServer, VendorScript
from agent.transports import sdk_clients
from agent.transports.sdk_clients import PostPath

KEY = "sk-brought-0123456789"
AWS: dict[str, Any] = {"aws_access_key": "AKIA0", "aws_secret_key": KEY, "aws_region": "us-east-1"}
Make = Callable[..., Any]


def _openai(url: str, **options: Any) -> Any:
    return openai.OpenAI(api_key=KEY, base_url=f"{url}/v1", **options)


def _async_openai(url: str, **options: Any) -> Any:
    return openai.AsyncOpenAI(api_key=KEY, base_url=f"{url}/v1", **options)


def _anthropic(url: str, **options: Any) -> Any:
    return anthropic.Anthropic(api_key=KEY, base_url=url, **options)


def _async_anthropic(url: str, **options: Any) -> Any:
    return anthropic.AsyncAnthropic(api_key=KEY, base_url=url, **options)


def _genai(url: str, **options: Any) -> Any:
    if "timeout" in options:
        options["timeout"] = int(options["timeout"] * 1000)
    settings: Any = {"base_url": url, **options}
    return genai.Client(api_key=KEY, http_options=settings)


def _async_genai(url: str, **options: Any) -> Any:
    """With httpx2, even if aiohttp is installed, which the client would prefer."""
    return _genai(url, async_client_args={"transport": httpx2.AsyncHTTPTransport()}, **options)


BLOCKING = [
    ("openai-chat:gpt-4o", _openai),
    ("anthropic:claude-sonnet-5", _anthropic),
    ("gemini:gemini-2.5-flash", _genai),
]
ASYNC = [
    ("openai-chat:gpt-4o", _async_openai),
    ("anthropic:claude-sonnet-5", _async_anthropic),
    ("gemini:gemini-2.5-flash", _async_genai),
]


def clients(kinds: list[tuple[str, Make]]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(("target", "make"), kinds, ids=[target.partition(":")[0] for target, _ in kinds])


@pytest.fixture
def server() -> Iterator[LoopbackServer]:
    with LoopbackServer(VendorScript()) as running:
        yield running


async def _close_client(client: Any) -> None:
    await (client.aio.aclose() if isinstance(client, genai.Client) else client.close())


# Nothing stays behind


@clients(BLOCKING)
def test_connections_are_kept_and_threads_are_not(target: str, make: Make, server: LoopbackServer) -> None:
    before = threading.active_count()
    client = make(server.url)
    agent = Agent(target, client=client, max_retries=0)
    for _ in range(10):
        agent.complete("hi")
        agent.stream("hi").collect()
    assert server.connections_made == 1
    for _ in range(5):
        for event in agent.stream("hi there, all of you"):
            if event.type == "text_delta":
                break
    assert server.wait_until(lambda: server.open_connections <= 1)
    assert server.wait_until(lambda: threading.active_count() <= before)
    client.close()
    assert server.wait_until(lambda: server.open_connections == 0)


# A client that was closed


@clients(BLOCKING)
def test_a_closed_client_is_said_to_be_closed_and_not_tried_again(
    target: str, make: Make, server: LoopbackServer
) -> None:
    client = make(server.url)
    agent = Agent(target, client=client)
    agent.complete("hi")
    client.close()
    with pytest.raises(errors.ConfigurationError, match="has been closed") as caught:
        agent.complete("hi")
    assert caught.value.field == "client"
    assert len(caught.value.attempts) == 1


@clients(ASYNC)
def test_a_closed_async_client_is_said_to_be_closed(target: str, make: Make, server: LoopbackServer) -> None:
    async def main() -> None:
        client = make(server.url)
        agent = Agent(target, client=client)
        await agent.acomplete("hi")
        await _close_client(client)
        with pytest.raises(errors.ConfigurationError, match="has been closed"):
            await agent.astream("hi").collect()

    asyncio.run(main())


# Event loops


def alone(code: str) -> str:
    """Output of a separate program that leaves connections to closed event loops."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=60
    )
    return done.stdout.strip() or done.stderr


def test_a_client_with_two_sides_serves_any_number_of_loops() -> None:
    printed = alone("""
        import asyncio, threading
        from google import genai
        from agent import Agent
        from agent.testing import LoopbackServer, VendorScript

        async def ask():
            whole = await asyncio.gather(*(agent.acomplete(f"{number}") for number in range(5)))
            return [*(response.text for response in whole), (await agent.astream("6").collect()).text]

        found = []
        with LoopbackServer(VendorScript()) as server:
            client = genai.Client(api_key="k", http_options={"base_url": server.url})
            agent = Agent("gemini:gemini-2.5-flash", client=client, max_retries=0)
            for _ in range(3):
                found.append(asyncio.run(ask()))
            threads = [threading.Thread(target=lambda: found.append(asyncio.run(ask()))) for _ in range(3)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        print(found == [[f"You said: {number}" for number in (0, 1, 2, 3, 4, 6)]] * 6)
        """)
    assert printed == "True"


@pytest.mark.parametrize("error", [RuntimeError("Event loop is closed"), openai.APIConnectionError(request=None)])  # type: ignore[arg-type]
def test_a_connection_from_an_ended_loop_is_tried_again_on_this_one(error: Exception) -> None:
    if not isinstance(error, RuntimeError):
        error.__cause__ = RuntimeError("Event loop is closed")
    found = sdk_clients.map_sdk_error(error, "x")
    assert isinstance(found, errors.ConnectionError)
    assert found.retryable
    assert "one event loop" in str(found)


@pytest.mark.parametrize("kind", ["openai.AsyncOpenAI", "anthropic.AsyncAnthropic"])
def test_an_async_client_on_a_second_loop_costs_an_attempt_at_most(kind: str) -> None:
    printed = alone(f"""
        import asyncio, anthropic, openai
        from agent import Agent, RetryConfig
        from agent.testing import LoopbackServer, VendorScript

        with LoopbackServer(VendorScript()) as server:
            client = {kind}(api_key="k", base_url=server.url)
            target = "{"openai-chat" if kind.startswith("openai") else "anthropic"}:any"
            agent = Agent(target, client=client, retry=RetryConfig(max_retries=1, initial_delay=0.0))
            responses = [asyncio.run(agent.acomplete("hi")) for _ in range(3)]
        failed = {{attempt.error for response in responses for attempt in response.route[:-1]}}
        print([response.text for response in responses] == ["You said: hi"] * 3, failed <= {{"ConnectionError"}})
        """)
    assert printed == "True True"


# Limits


@pytest.fixture
def nobody() -> Iterator[str]:
    """An address where connecting hangs, because the accept queue is full."""
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    listening.listen(0)
    waiting = [socket.socket() for _ in range(4)]
    for one in waiting:
        one.setblocking(False)
        one.connect_ex(listening.getsockname())
    yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    for one in (*waiting, listening):
        one.close()


@pytest.mark.timing
@clients(BLOCKING)
def test_connecting_has_its_own_limit(target: str, make: Make, nobody: str) -> None:
    agent = Agent(target, client=make(nobody), max_retries=0, connect_timeout=0.2, deadline=5.0)
    started = time.monotonic()
    with pytest.raises(errors.TimeoutError, match="ConnectTimeout"):
        agent.complete("hi")
    assert time.monotonic() - started < 2.5


@pytest.mark.timing
@clients(ASYNC)
def test_connecting_has_its_own_limit_with_await(target: str, make: Make, nobody: str) -> None:
    async def main() -> None:
        client = make(nobody)
        started = time.monotonic()
        with pytest.raises(errors.TimeoutError, match="ConnectTimeout"):
            await Agent(target, client=client, max_retries=0, connect_timeout=0.2, deadline=5.0).acomplete("hi")
        assert time.monotonic() - started < 2.5
        await _close_client(client)

    asyncio.run(main())


@pytest.mark.timing
@clients(BLOCKING)
def test_a_deadline_holds_while_the_client_connects(target: str, make: Make, nobody: str) -> None:
    started = time.monotonic()
    with pytest.raises(errors.TimeoutError) as caught:
        Agent(target, client=make(nobody), connect_timeout=1.0).complete("hi", deadline=0.2)
    assert caught.value.deadline
    assert time.monotonic() - started < 0.95


def _slow(request: WireRequest) -> Answer:
    answer = VendorScript("hi")(request)
    answer.after = 0.4
    return answer


@clients([*BLOCKING, *ASYNC])
def test_the_time_limits_are_the_agents_and_not_the_clients(target: str, make: Make) -> None:
    async def main(url: str) -> str | None:
        client = make(url, timeout=0.1)
        agent = Agent(target, client=client, max_retries=0)
        if make in (_openai, _anthropic):
            return agent.complete("hi").text
        text = (await agent.acomplete("hi")).text
        await _close_client(client)
        return text

    with LoopbackServer(_slow) as server:
        assert asyncio.run(main(server.url)) == "hi"


# Settings of the client


def _betas(request: WireRequest) -> list[str]:
    return [value.decode() for name, value in request.headers if name == b"anthropic-beta"]


def test_betas_of_the_client_the_agent_and_the_request_are_all_sent(server: LoopbackServer) -> None:
    client = _anthropic(server.url, default_headers={"Anthropic-Beta": "mine-2026-01-01"})
    with client:
        plain = Agent("anthropic:claude-sonnet-5", client=client)
        plain.complete("hi")
        Agent("anthropic:claude-sonnet-5", client=client, headers={"anthropic-beta": "his-2026-01-01"}).complete("hi")
        tool = {"type": "code_execution_20250522", "name": "code_execution"}
        plain.complete("hi", tools=[tool])
        assert client.default_headers["Anthropic-Beta"] == "mine-2026-01-01"
    first, second, third = (_betas(request)[0] for request in server.requests)
    assert (first, second) == ("mine-2026-01-01", "mine-2026-01-01,his-2026-01-01")
    assert third.startswith("mine-2026-01-01,")
    assert "code-execution" in third


def test_where_a_cloud_cannot_count_tokens_they_are_estimated() -> None:
    with anthropic.AnthropicBedrock(base_url="http://127.0.0.1:1", **AWS) as client:
        agent = Agent("anthropic:anthropic.claude-sonnet-5", client=client)
        assert not agent.count_tokens("hi").exact
        with pytest.raises(errors.UnsupportedFeatureError):
            agent.count_tokens("hi", exact=True)


def test_a_client_counts_tokens_where_its_vendor_does(server: LoopbackServer) -> None:
    with _anthropic(server.url) as client:
        assert Agent("anthropic:claude-sonnet-5", client=client).count_tokens("hi").exact
    assert server.requests[-1].url == "/v1/messages/count_tokens"


def test_a_client_on_an_older_http_library_is_asked_in_its_own_words(monkeypatch: pytest.MonkeyPatch) -> None:
    library = ModuleType("httpx")
    library.Response = type("Response", (), {"status_code": 200, "headers": {}})  # type: ignore[attr-defined]
    library.Timeout = lambda total, connect: ("httpx", total, connect)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "httpx", library)
    asked: dict[str, Any] = {}

    class Client:
        _client = type("Client", (), {"__module__": "httpx._client"})()

        def post(self, path: str, **options: Any) -> Any:
            asked.update(options, path=path)
            return library.Response()

    opened = PostPath(Client()).open(WireRequest("/v1/messages", (), b"{}"), Limits(connect=3.0, total=60.0))
    assert opened.head.status == 200
    assert asked["cast_to"] is library.Response
    assert asked["options"]["timeout"] == ("httpx", 60.0, 3.0)


def test_extra_reaches_the_body_through_a_client(server: LoopbackServer) -> None:
    with _openai(server.url) as client:
        Agent("openai-chat:gpt-4o", client=client, extra={"service_tier": "flex"}).complete("hi")
    assert json.loads(server.requests[0].body)["service_tier"] == "flex"
