"""`http_client=`: a user's client of httpx2 or httpx sends everything, with what was set on it."""

from __future__ import annotations

import asyncio
import pickle
import ssl
import threading
import time
from collections.abc import Callable
from typing import Any

import httpx
import httpx2
import pytest
import trustme

from agent import Agent, Router, errors
from agent.testing import Answer, LoopbackServer
from agent.transports.http import HttpClientTransport
from tests.engine.play import SSE, completion, hung_up, stall, stream_or_whole, token, whole
from tests.support.drivers import run_and_leave_nothing

LIBRARIES = [httpx2, httpx]
library = pytest.mark.parametrize("library", LIBRARIES, ids=["httpx2", "httpx"])
awaits = pytest.mark.parametrize("awaits", [False, True], ids=["sync", "async"])
streaming = pytest.mark.parametrize("streaming", [False, True], ids=["whole", "stream"])
ANSWER = completion("mocked")


class Played:
    """One call through a client that is made and closed around it."""

    def __init__(self, library: Any, *, awaits: bool) -> None:
        self.library = library
        self.awaits = awaits

    def client(self, **options: Any) -> Any:
        return (self.library.AsyncClient if self.awaits else self.library.Client)(**options)

    def text(self, url: str, client: Any, *, streaming: bool = False, **options: Any) -> str | None:
        agent = Agent(
            "openai-chat:m", http_client=client, **{"api_key": "sk-test", "base_url": url, "max_retries": 0, **options}
        )

        async def main() -> str | None:
            async with client:
                return (await (agent.astream("hi").collect() if streaming else agent.acomplete("hi"))).text

        if self.awaits:
            return run_and_leave_nothing(main())
        with client:
            return (agent.stream("hi").collect() if streaming else agent.complete("hi")).text


@pytest.fixture(
    params=[(one, way) for one in LIBRARIES for way in (False, True)],
    ids=lambda case: f"{case[0].__name__}-{'async' if case[1] else 'sync'}",
)
def play(request: pytest.FixtureRequest) -> Played:
    return Played(request.param[0], awaits=request.param[1])


@streaming
def test_a_client_sends_and_keeps_its_connection(play: Played, streaming: bool) -> None:
    with LoopbackServer(stream_or_whole) as server:
        client = play.client()
        agent = Agent("openai-chat:m", api_key="sk-test", base_url=f"{server.url}/v1", http_client=client)

        async def main() -> list[str | None]:
            async with client:
                return [
                    (await (agent.astream("hi").collect() if streaming else agent.acomplete("hi"))).text
                    for _ in range(3)
                ]

        if play.awaits:
            texts = run_and_leave_nothing(main())
        else:
            with client:
                texts = [(agent.stream("hi").collect() if streaming else agent.complete("hi")).text for _ in range(3)]
        assert texts == ["t0 t1 t2 " if streaming else "hello"] * 3
        assert server.connections_made == 1
        assert server.wait_until(lambda: server.open_connections == 0)


def test_event_hooks_see_request_and_response_and_may_read_it(play: Played) -> None:
    seen: list[str] = []

    def on_request(request: Any) -> None:
        seen.append(request.url.path)

    def on_response(response: Any) -> None:
        response.read()
        seen.append(response.text)

    async def on_request_async(request: Any) -> None:
        on_request(request)

    async def on_response_async(response: Any) -> None:
        await response.aread()
        seen.append(response.text)

    hooks: dict[str, Any] = {
        "request": [on_request_async if play.awaits else on_request],
        "response": [on_response_async if play.awaits else on_response],
    }
    with LoopbackServer(stream_or_whole) as server:
        assert play.text(f"{server.url}/v1", play.client(event_hooks=hooks)) == "hello"
        assert play.text(f"{server.url}/v1", play.client(event_hooks=hooks), streaming=True) == "t0 t1 t2 "
    assert seen[0] == "/v1/chat/completions"
    assert "hello" in seen[1]
    assert len(seen) == 4


@streaming
def test_a_mock_transport_answers(play: Played, streaming: bool) -> None:
    def handler(request: Any) -> Any:
        assert request.headers["authorization"] == "Bearer sk-test"
        content = token("mocked") + b"data: [DONE]\n\n" if streaming else ANSWER
        return play.library.Response(200, content=content, headers=SSE if streaming else {})

    client = play.client(transport=play.library.MockTransport(handler))
    if streaming:
        with pytest.raises(errors.StreamInterrupted):  # no finish reason: the codec judges it as it does any other
            play.text("https://vendor.test/v1", client, streaming=True)
    else:
        assert play.text("https://vendor.test/v1", client) == "mocked"


def test_mounts_default_headers_and_base_parameters_are_the_clients(play: Played) -> None:
    seen: list[Any] = []

    def handler(request: Any) -> Any:
        seen.append(request)
        return play.library.Response(200, content=ANSWER)

    mounted = play.library.MockTransport(handler)
    client = play.client(mounts={"all://vendor.test": mounted}, headers={"x-org": "acme"}, params={"trace": "1"})
    assert play.text("https://vendor.test/v1", client) == "mocked"
    assert seen[0].headers["x-org"] == "acme"
    assert seen[0].headers["accept-encoding"] == "identity"
    assert seen[0].url.params["trace"] == "1"


def test_a_proxy_of_the_client_is_used(play: Played) -> None:
    with LoopbackServer(stream_or_whole) as proxy:
        client = play.client(proxy=proxy.url)
        assert play.text("http://vendor.test/v1", client, allow_insecure=True) == "hello"
        assert len(proxy.requests) == 1


def test_certificates_of_the_client_are_used(play: Played) -> None:
    authority = trustme.CA()
    theirs, ours = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context()
    authority.issue_cert("127.0.0.1").configure_cert(theirs)
    authority.configure_trust(ours)
    with LoopbackServer(stream_or_whole, ssl_context=theirs) as server:
        assert play.text(f"{server.url}/v1", play.client(verify=ours)) == "hello"
        with pytest.raises(errors.ConnectionError) as caught:
            play.text(f"{server.url}/v1", play.client(), max_retries=2)
        assert not caught.value.retryable


@pytest.mark.parametrize("status", [301, 307, 308])
def test_a_redirect_is_not_followed_whatever_the_client_is_set_to(play: Played, status: int) -> None:
    with LoopbackServer(lambda request: whole("stolen")) as thief:
        moved = Answer(status=status, headers={"location": f"{thief.url}/v1"})
        with LoopbackServer(lambda request: moved) as server:
            with pytest.raises(errors.ProtocolError, match="redirect"):
                play.text(f"{server.url}/v1", play.client(follow_redirects=True))
            assert (len(server.requests), len(thief.requests)) == (1, 0)


@pytest.mark.parametrize(
    ("raised", "kind", "retryable"),
    [
        (lambda library: library.ConnectError("no"), errors.ConnectionError, True),
        (lambda library: library.ReadError("no"), errors.ConnectionError, True),
        (lambda library: library.RemoteProtocolError("no"), errors.ConnectionError, True),
        (lambda library: library.ProxyError("407"), errors.ConnectionError, False),
        (lambda library: library.ReadTimeout("no"), errors.TimeoutError, True),
        (lambda library: library.ConnectTimeout("no"), errors.TimeoutError, True),
        (lambda library: library.PoolTimeout("no"), errors.PoolExhaustedError, False),
        (lambda library: library.DecodingError("no"), errors.ProtocolError, True),
        (lambda library: library.UnsupportedProtocol("no"), errors.ConfigurationError, False),
    ],
)
def test_its_exceptions_are_ours_with_the_cause(
    play: Played, raised: Callable[[Any], Exception], kind: type[errors.AgentError], retryable: bool
) -> None:
    error = raised(play.library)

    def handler(request: Any) -> Any:
        raise error

    with pytest.raises(errors.AgentError) as caught:
        play.text("https://vendor.test/v1", play.client(transport=play.library.MockTransport(handler)))
    assert type(caught.value) is kind
    assert caught.value.retryable is retryable
    if kind is errors.ConfigurationError:
        assert caught.value.__cause__ is None, "its message may quote a header"
    else:
        assert caught.value.__cause__ is error


def test_what_a_hook_raises_reaches_the_caller(play: Played) -> None:
    def refuse(request: Any) -> None:
        raise LookupError("not today")

    async def arefuse(request: Any) -> None:
        refuse(request)

    client = play.client(event_hooks={"request": [arefuse if play.awaits else refuse]})
    with pytest.raises(LookupError, match="not today"):
        play.text("https://vendor.test/v1", client)


@pytest.mark.timing
@streaming
def test_the_deadline_holds_and_the_connection_is_closed(play: Played, streaming: bool) -> None:
    with LoopbackServer(lambda request: stall()) as server:
        client = play.client()
        agent = Agent(
            "openai-chat:m",
            api_key="k",
            base_url=f"{server.url}/any/v1",
            http_client=client,
            deadline=0.4,
            max_retries=0,
        )
        started = time.monotonic()

        async def main() -> None:
            await (agent.astream("hi").collect() if streaming else agent.acomplete("hi"))

        with pytest.raises((errors.TimeoutError, errors.StreamInterrupted)):
            if play.awaits:
                run_and_leave_nothing(main())
            else:
                (agent.stream("hi").collect if streaming else lambda: agent.complete("hi"))()
        assert time.monotonic() - started < 0.8
        assert hung_up(server)
        if not play.awaits:
            client.close()


def test_an_answer_larger_than_allowed_is_refused(play: Played, monkeypatch: pytest.MonkeyPatch) -> None:
    from agent.engine.wire import Limits

    monkeypatch.setattr(Limits.__init__, "__defaults__", (10.0, None, None, 1000, False))
    with LoopbackServer(lambda request: whole("x" * 2000)) as server:
        with pytest.raises(errors.ProtocolError, match="larger"):
            play.text(f"{server.url}/v1", play.client())
        assert server.wait_until(lambda: server.open_connections == 0)


# Which client


@library
def test_a_pair_serves_both_kinds_of_calls(library: Any) -> None:
    with LoopbackServer(stream_or_whole) as server, library.Client() as client:

        async def main() -> str | None:
            async with library.AsyncClient() as awaited:
                agent = Agent("openai-chat:m", api_key="k", base_url=f"{server.url}/v1", http_client=(client, awaited))
                assert (await asyncio.to_thread(agent.complete, "hi")).text == "hello"
                return (await agent.acomplete("hi")).text

        assert run_and_leave_nothing(main()) == "hello"


@library
def test_a_call_without_its_client_says_what_to_pass(library: Any) -> None:
    blocking = Agent("openai-chat:m", api_key="k", http_client=library.Client())
    with pytest.raises(errors.ConfigurationError, match="AsyncClient") as caught:
        run_and_leave_nothing(_acomplete(blocking))
    assert caught.value.field == "http_client"
    awaiting = Agent("openai-chat:m", api_key="k", http_client=library.AsyncClient())
    with pytest.raises(errors.ConfigurationError, match=r"httpx2\.Client\(\)") as caught:
        awaiting.complete("hi")
    assert caught.value.field == "http_client"


async def _acomplete(agent: Agent) -> None:
    await agent.acomplete("hi")


@pytest.mark.parametrize(
    "wrong",
    ["https://proxy", object(), (), httpx2, httpx2.Client, (httpx2.Client(), httpx2.Client()), [None], {"a": 1}, 5],
    ids=["url", "object", "nothing", "module", "class", "two sync clients", "list", "dict", "number"],
)
def test_a_wrong_object_is_refused_when_the_agent_is_made(wrong: Any) -> None:
    with pytest.raises(errors.ConfigurationError) as caught:
        Agent("openai-chat:m", api_key="k", http_client=wrong)
    assert caught.value.field == "http_client"
    assert "httpx2.Client" in str(caught.value)


@pytest.mark.parametrize("other", [{"transport": "http"}, {"client": object()}])
def test_it_excludes_transport_and_client(other: dict[str, Any]) -> None:
    with pytest.raises(errors.ConfigurationError) as caught:
        Agent("openai-chat:m", api_key="k", http_client=httpx2.Client(), **other)
    assert caught.value.field == "http_client"


def test_a_changed_agent_keeps_its_client_or_gets_another() -> None:
    def handler(name: str) -> Any:
        return httpx2.MockTransport(lambda request: httpx2.Response(200, content=completion(name)))

    with httpx2.Client(transport=handler("a")) as a, httpx2.Client(transport=handler("b")) as b:
        agent = Agent("openai-chat:m", api_key="k", http_client=a)
        assert agent.with_config(temperature=0.5).complete("hi").text == "a"
        assert agent.with_config(http_client=b).complete("hi").text == "b"
        assert agent.complete("hi").text == "a"


def test_targets_of_a_router_each_use_their_own() -> None:
    def handler(request: Any) -> Any:
        return (
            httpx2.Response(200, content=completion(request.url.host))
            if request.url.host == "b.test"
            else httpx2.Response(500)
        )

    with httpx2.Client(transport=httpx2.MockTransport(handler)) as client:
        targets = [
            Agent("openai-chat:m", api_key="k", base_url=f"https://{name}.test/v1", http_client=client, max_retries=0)
            for name in "ab"
        ]
        assert Router(targets).complete("hi").text == "b.test"


def test_an_agent_with_a_client_cannot_be_pickled_and_says_so() -> None:
    agent = Agent("openai-chat:m", api_key="k", http_client=httpx2.Client())
    with pytest.raises(TypeError, match="HTTP client"):
        pickle.dumps(agent)


def test_a_closed_client_is_a_typed_error(play: Played) -> None:
    client = play.client()
    if play.awaits:
        asyncio.run(client.aclose())
    else:
        client.close()
    agent = Agent("openai-chat:m", api_key="k", base_url="https://vendor.test/v1", http_client=client)
    with pytest.raises(errors.ConfigurationError) as caught:
        run_and_leave_nothing(_acomplete(agent)) if play.awaits else agent.complete("hi")
    assert caught.value.field == "http_client"


def test_no_thread_is_left_after_blocking_calls() -> None:
    before = set(threading.enumerate())
    with LoopbackServer(stream_or_whole) as server, httpx2.Client() as client:
        agent = Agent("openai-chat:m", api_key="k", base_url=f"{server.url}/v1", http_client=client)
        for _ in range(20):
            agent.complete("hi")
            for _ in agent.stream("hi"):
                break
    deadline = time.monotonic() + 5
    while (left := set(threading.enumerate()) - before) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not left


def test_the_environments_proxy_on_another_machine_is_refused_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", "http://192.0.2.1:3128")
    agent = Agent("openai-chat:m", api_key="k", base_url="http://localhost:1/v1", http_client=httpx2.Client())
    with pytest.raises(errors.ConfigurationError, match="unencrypted"):
        agent.complete("hi")
    assert repr(HttpClientTransport(httpx2.Client())) == "HttpClientTransport()"
