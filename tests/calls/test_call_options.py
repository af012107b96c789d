"""Options of one call in every form: `timeout`, `max_retries`, `headers`, `api_key` and `extra`."""

from __future__ import annotations

import asyncio
import json
import pickle
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from pydantic import SecretStr

from agent import Agent, Router, Target, ToolContext, errors
from agent.client import Client
from agent.engine.wire import Answer, WireRequest
from agent.sessions import AgentSession
from agent.testing import LoopbackServer, Script, scripted_agent


class Vendor:
    """Answers every request, except those for the models `busy` and `slow`."""

    def __init__(self) -> None:
        self.script = Script()
        self.headers: list[dict[str, str]] = []
        self.bodies: list[dict[str, Any]] = []

    def __call__(self, request: WireRequest) -> Answer:
        self.headers.append({name.decode().lower(): value.decode() for name, value in request.headers})
        self.bodies.append(json.loads(request.body))
        model = self.bodies[-1]["model"]
        if model == "busy":
            return Answer([b'{"error": {"message": "busy"}}'], status=503)
        if model == "slow":
            return Answer([b"{}"], after=30.0)
        return Script("5")(request) if model == "json" else self.script(request)


@pytest.fixture(scope="module")
def server() -> Iterator[LoopbackServer]:
    with LoopbackServer(Vendor()) as server:
        yield server


@pytest.fixture
def vendor(server: LoopbackServer) -> Vendor:
    vendor = server.network = Vendor()
    return vendor


def drain(stream: Any) -> None:
    for _ in stream:
        pass


async def adrain(stream: Any) -> None:
    async for _ in stream:
        pass


CALLS: dict[str, Callable[..., Any]] = {
    "complete": lambda client, **options: client.complete("5", **options),
    "stream": lambda client, **options: drain(client.stream("5", **options)),
    "run": lambda client, **options: client.run("5", **options),
    "run_stream": lambda client, **options: client.run_stream("5", **options).collect(),
    "json": lambda client, **options: client.json("5", schema=int, **options),
}
ASYNC_CALLS: dict[str, Callable[..., Any]] = {
    "acomplete": lambda client, **options: client.acomplete("5", **options),
    "astream": lambda client, **options: adrain(client.astream("5", **options)),
    "arun": lambda client, **options: client.arun("5", **options),
    "arun_stream": lambda client, **options: client.arun_stream("5", **options).collect(),
    "ajson": lambda client, **options: client.ajson("5", schema=int, **options),
}
CLIENT_CALLS: dict[str, Callable[..., Any]] = {
    "stream_json": lambda client, **options: drain(client.stream_json("5", schema=int, **options)),
    "batch": lambda client, **options: client.batch(["5"], **options).unwrap(),
    "batch_stream": lambda client, **options: next(iter(client.batch_stream(["5"], **options))).unwrap(),
}
ASYNC_CLIENT_CALLS: dict[str, Callable[..., Any]] = {
    "astream_json": lambda client, **options: adrain(client.astream_json("5", schema=int, **options)),
    "abatch": lambda client, **options: client.abatch(["5"], **options),
    "abatch_stream": lambda client, **options: client.abatch_stream(["5"], **options).collect(),
}
CLIENTS: dict[str, Callable[[Agent], Client | AgentSession]] = {
    "agent": lambda agent: agent,
    "router": lambda agent: Router([agent]),
    "nested": lambda agent: Router([Router([agent])]),
    "session": lambda agent: agent.session(),
}


def every_form() -> list[Any]:
    return [
        pytest.param(client, name, id=f"{client}-{name}")
        for client in CLIENTS
        for name in {**CALLS, **ASYNC_CALLS, **({} if client == "session" else {**CLIENT_CALLS, **ASYNC_CLIENT_CALLS})}
    ]


def call(client: Any, name: str, **options: Any) -> Any:
    """Call in the form with this name. A batch raises the error of its request."""
    if (sync := {**CALLS, **CLIENT_CALLS}.get(name)) is not None:
        return sync(client, **options)

    async def main() -> Any:
        result = await {**ASYNC_CALLS, **ASYNC_CLIENT_CALLS}[name](client, **options)
        return result.unwrap() if "batch" in name else result

    return asyncio.run(main())


def agent_at(server: LoopbackServer, model: str = "m", **options: Any) -> Agent:
    return Agent(f"openai-chat:{model}", base_url=f"{server.url}/v1", api_key="own", **options)


@pytest.mark.parametrize(("client", "name"), every_form())
def test_every_form_of_a_call_takes_them(client: str, name: str, server: LoopbackServer, vendor: Vendor) -> None:
    agent = agent_at(server, "json", headers={"X-Team": "red", "X-Own": "1"})
    target = CLIENTS[client](agent)
    call(target, name, api_key=SecretStr("theirs"), headers={"x-team": "blue"}, extra={"top_k": 3}, timeout=20)
    assert vendor.headers[-1]["authorization"] == "Bearer theirs"
    assert (vendor.headers[-1]["x-team"], vendor.headers[-1]["x-own"]) == ("blue", "1")
    assert vendor.bodies[-1]["top_k"] == 3
    call(target, name)
    assert (vendor.headers[-1]["authorization"], vendor.headers[-1]["x-team"]) == ("Bearer own", "red")
    assert "top_k" not in vendor.bodies[-1]


@pytest.mark.parametrize(("client", "name"), every_form())
def test_retries_and_timeouts_are_those_of_the_call(
    client: str, name: str, server: LoopbackServer, vendor: Vendor
) -> None:
    for model, options, failure in (("busy", {}, "OverloadedError"), ("slow", {"timeout": 0.05}, "TimeoutError")):
        with pytest.raises(errors.AgentError) as caught:
            call(CLIENTS[client](agent_at(server, model, max_retries=2)), name, max_retries=0, **options)
        assert [attempt.error for attempt in caught.value.attempts] == [failure]
    assert [body["model"] for body in vendor.bodies].count("busy") == 1


def test_more_retries_than_those_of_the_agent(server: LoopbackServer, vendor: Vendor) -> None:
    router = Router([agent_at(server, "busy")])
    cases: list[tuple[Client, Any]] = [
        (agent_at(server, "busy", max_retries=0), {"max_retries": 1}),
        (router, {"max_retries": 1}),
        (router.with_config(max_retries=1), {}),
    ]
    for client, options in cases:
        vendor.bodies.clear()
        with pytest.raises(errors.AgentError):
            client.complete("hi", **options)
        assert len(vendor.bodies) == 2


def test_a_key_goes_to_its_vendor_only(server: LoopbackServer, vendor: Vendor) -> None:
    router = Router([agent_at(server), Router([scripted_agent("hi")])])
    for keys, message in (
        ("sk-theirs", "does not say which"),
        ({"openai": "sk-theirs"}, "has a key for 'openai', which this call does not use"),
    ):
        with pytest.raises(errors.ConfigurationError, match=message) as caught:
            router.complete("hi", api_key=keys)
        assert caught.value.field == "api_key"
        assert "sk-theirs" not in f"{caught.value!r} {caught.value}"
    assert vendor.headers == []
    router.complete("hi", api_key={"openai-chat": "theirs", "scripted": "unused"})
    assert vendor.headers[-1]["authorization"] == "Bearer theirs"
    agent_at(server).complete("hi", api_key={"openai-chat": "dict"})
    assert vendor.headers[-1]["authorization"] == "Bearer dict"


def test_the_key_of_a_call_replaces_get_api_key(server: LoopbackServer, vendor: Vendor) -> None:
    agent = Agent("openai-chat:m", base_url=f"{server.url}/v1", get_api_key=lambda: "rotating")
    agent.complete("hi", api_key="theirs")
    agent.complete("hi", timeout=5)
    assert [headers["authorization"] for headers in vendor.headers] == ["Bearer theirs", "Bearer rotating"]


def test_a_call_shares_the_state_of_its_router(server: LoopbackServer, vendor: Vendor) -> None:
    agents = [agent_at(server, model) for model in ("one", "two")]
    router = Router([Target(agent, rpm=9) for agent in agents], strategy="round_robin")
    for _ in range(4):
        router.complete("hi", timeout=5)
    assert [body["model"] for body in vendor.bodies] == ["one", "two", "one", "two"]
    router.complete("hi", route={"only": ["two"]}, headers={"x-a": "b"})
    assert (vendor.bodies[-1]["model"], vendor.headers[-1]["x-a"]) == ("two", "b")


def test_a_rejected_key_of_one_call_does_not_affect_others(server: LoopbackServer, vendor: Vendor) -> None:
    def reject(request: WireRequest) -> Answer:
        return Answer([b'{"error": {"message": "wrong key"}}'], status=401)

    router = Router([agent_at(server)], max_wait=0.1)
    server.network = reject
    for _ in range(5):
        with pytest.raises(errors.AgentError, match="AuthenticationError"):
            router.complete("hi", api_key="wrong")
    server.network = vendor
    assert router.complete("hi").text == "You said: hi"


@pytest.mark.parametrize("form", ["agent", "router", "session"])
@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"timeout": 0}, "timeout"),
        ({"timeout": "long"}, "timeout"),
        ({"max_retries": -1}, "max_retries"),
        ({"headers": {"a\n": "b"}}, "headers"),
        ({"headers": ["a"]}, "headers"),
        ({"headers": {"host": "b"}}, "headers"),
        ({"api_key": ""}, "api_key"),
        ({"api_key": 5}, "api_key"),
        ({"extra": "top_k"}, "extra"),
        ({"time_out": 5}, "time_out"),
    ],
)
def test_invalid_ones_are_refused_before_anything_is_sent(
    form: str, options: Mapping[str, Any], field: str, server: LoopbackServer, vendor: Vendor
) -> None:
    client: Any = CLIENTS[form](agent_at(server))
    for name in ("complete", "run"):
        with pytest.raises(errors.ConfigurationError) as caught:
            getattr(client, name)("hi", **options)
        assert (caught.value.field or "").partition(".")[0] == field
    assert vendor.bodies == []


def test_tokens_are_counted_and_checked_with_them() -> None:
    agent = Agent("openai-chat:m")
    assert not agent.check("hi").ok
    assert agent.check("hi", api_key="theirs").ok
    assert agent.count_tokens("hi", api_key="theirs").tokens > 0


def test_a_sub_agent_runs_with_them_and_hides_the_key(server: LoopbackServer, vendor: Vendor) -> None:
    tool = agent_at(server).as_tool("ask", "Asks.", api_key="sk-theirs", headers={"x-team": "blue"})
    assert "sk-theirs" not in repr(tool)
    assert b"sk-theirs" not in pickle.dumps(tool)
    asyncio.run(tool.run({"task": "hi"}, ToolContext(None)))
    assert (vendor.headers[-1]["authorization"], vendor.headers[-1]["x-team"]) == ("Bearer sk-theirs", "blue")


def test_an_sdk_client_keeps_its_key(server: LoopbackServer, vendor: Vendor) -> None:
    openai = pytest.importorskip("openai")
    with openai.OpenAI(api_key="own", base_url=f"{server.url}/v1", max_retries=0) as client:
        agent = Agent("openai-chat:m", client=client)
        with pytest.raises(errors.ConfigurationError, match="client has its own key"):
            agent.complete("hi", api_key="theirs")
        agent.complete("hi", headers={"x-team": "blue"}, timeout=5)
    assert (vendor.headers[-1]["authorization"], vendor.headers[-1]["x-team"]) == ("Bearer own", "blue")
