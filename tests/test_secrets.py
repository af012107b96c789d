"""Keys never leak: a canary is searched for in everything an agent prints, saves, raises or sends."""

from __future__ import annotations

import asyncio
import base64
import copy
import json
import logging
import pickle
import pprint
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from agent import Agent, AgentConfig, AgentRequest, Router, errors, tool
from agent.batch import run_file
from agent.engine.wire import Answer, WireRequest
from agent.loop import Ask, SqliteJournal
from agent.middleware import Cache, Logging, SqliteResponseStore
from agent.providers.codec import secrets_in
from agent.stores import SqliteStore
from agent.testing import LoopbackServer, RawAnswer, Script
from agent.transports.http import HttpTransport
from agent.types import AgentResponse, ToolCall
from tests.support.leaks import KEY, assert_hidden, assert_no_trace, traces_of_the_key


def echo_request(request: WireRequest) -> Answer:
    """A vendor that quotes the key in its complaint, as some do."""
    body = json.dumps({"error": {"message": f"Incorrect API key provided: {KEY}", "headers": str(request.headers)}})
    return Answer([body.encode()], status=401)


def broken(request: WireRequest) -> Answer:
    return Answer(
        [
            b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n',
            b'data: {"error": {"message": "' + KEY.encode() + b'"}}\n\n',
        ]
    )


def unreachable(request: WireRequest) -> Answer:
    return Answer(failure=errors.ConnectionError("gone"))


def redirect(request: WireRequest) -> Answer:
    return Answer(status=307, headers={"location": "https://evil.example/"})


def nonsense(request: WireRequest) -> Answer:
    return Answer([b"<html>" + KEY.encode()])


def not_http(request: WireRequest) -> Answer:
    return RawAnswer([b"what? " + request.body])


def cut_short(request: WireRequest) -> Answer:
    return RawAnswer([b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{"])


NETWORKS: dict[str, Callable[[WireRequest], Answer]] = {
    "echoing": echo_request,
    "broken": broken,
    "unreachable": unreachable,
    "moved": redirect,
    "nonsense": nonsense,
    "not HTTP": not_http,
    "cut short": cut_short,
}


@pytest.fixture(params=["http", "httpx"])
def carrier(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=NETWORKS.values(), ids=list(NETWORKS))
def failing_agent(request: pytest.FixtureRequest, carrier: str) -> Iterator[Agent]:
    with LoopbackServer(request.param) as server:
        yield Agent("openai-chat:m", api_key=KEY, base_url=server.url, max_retries=0, transport=carrier)


def failures_of(agent: Agent) -> Iterator[errors.AgentError]:
    def collect_events() -> object:
        return agent.stream("x").collect()

    async def acollect_events() -> object:
        return await agent.astream("x").collect()

    calls: list[Callable[[], object]] = [
        lambda: agent.complete("x"),
        collect_events,
        lambda: asyncio.run(agent.acomplete("x")),
        lambda: asyncio.run(acollect_events()),
    ]
    for call in calls:
        with pytest.raises(errors.AgentError) as caught:
            call()
        yield caught.value


def test_no_failure_shows_the_key(failing_agent: Agent, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        for error in failures_of(failing_agent):
            assert_no_trace(error)
    assert_hidden("the log", "\n".join(record.getMessage() + str(record.__dict__) for record in caplog.records))


@pytest.fixture
def agent() -> Agent:
    return Agent("openai-chat:m", api_key=KEY, base_url="http://127.0.0.1:9")


def test_no_view_of_an_agent_shows_the_key(agent: Agent) -> None:
    codec = agent.provider
    for thing in (agent, agent.config, codec, agent.config.api_key, agent.with_config(temperature=0.1)):
        for view in (repr, str, pprint.pformat):
            assert_hidden(f"{view.__name__} of {type(thing).__name__}", view(thing))
    assert_hidden("vars", repr(vars(agent)))
    assert_hidden("vars of the config", repr(vars(agent.config)))
    assert_hidden("format", f"{agent.config} {agent.config.api_key} {agent.config.api_key!r:>80}")


def test_no_dump_of_a_config_holds_the_key(agent: Agent) -> None:
    config = agent.config
    assert_hidden("model_dump", repr(config.model_dump()))
    assert_hidden("model_dump json", repr(config.model_dump(mode="json")))
    assert_hidden("model_dump_json", config.model_dump_json())
    assert_hidden("to_dict", json.dumps(config.to_dict()))
    assert_hidden("dict", repr(dict(config)))


def test_no_pickle_holds_the_key_and_the_other_side_finds_its_own(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        assert_hidden(f"pickle {protocol}", pickle.dumps(agent, protocol))
        assert_hidden(f"pickle {protocol} of the config", pickle.dumps(agent.config, protocol))
    monkeypatch.setenv("OPENAI_API_KEY", "sk-other")
    with LoopbackServer(Script()) as server:
        there: Agent = pickle.loads(pickle.dumps(agent.with_config(base_url=server.url)))
        assert there.config.api_key is None
        assert there.complete("x").text == "You said: x"
        assert dict(server.requests[0].headers)[b"authorization"] == b"Bearer sk-other"


def test_a_copy_keeps_the_key_and_still_hides_it(agent: Agent) -> None:
    copied = copy.deepcopy(agent.config)
    assert copied.api_key == KEY
    assert_hidden("repr of a copy", repr(copied))


def test_no_answer_or_event_holds_the_key() -> None:
    with LoopbackServer(Script()) as server:
        agent = Agent("openai-chat:m", api_key=KEY, base_url=server.url)
        response = agent.complete("x")
        stream = agent.stream("x")
        events = list(stream)
        answers: list[Any] = [response, stream.response, *events]
        for value in answers:
            assert_hidden("an answer", repr(value))
            assert_hidden("its dump", value.model_dump_json())
            assert_hidden("its raw", repr(value.raw))
        assert_hidden("a stream", repr(vars(stream)))
        assert dict(server.requests[0].headers)[b"authorization"] == f"Bearer {KEY}".encode()


def test_a_wrong_setting_beside_the_key_does_not_show_it() -> None:
    makers: list[Callable[[], AgentConfig]] = [
        lambda: AgentConfig(provider="openai", api_key=KEY, temperature="hot"),  # type: ignore[arg-type]
        lambda: AgentConfig(provider="openai", apikey=KEY),  # type: ignore[call-arg]
        lambda: AgentConfig.model_validate({"provider": "openai", "api_key": KEY, "nonsense": KEY}),
        lambda: AgentConfig.model_validate_json(json.dumps({"provider": "openai", "api_key": [KEY]})),
    ]
    for make in makers:
        with pytest.raises(ValueError, match="AgentConfig") as caught:
            make()
        assert_hidden("a validation error", str(caught.value) + repr(caught.value))


# --- headers ----------------------------------------------------------------------------------------------------------

HEADERS = {"X-Gateway": KEY, "X-Gateway-Auth": f"Basic {KEY}", "Cookie": f"session={KEY}; theme=dark"}


@pytest.fixture
def agent_with_headers() -> Agent:
    return Agent("openai-chat:m", api_key="sk-other", base_url="http://127.0.0.1:9", headers=HEADERS)


def test_no_view_or_dump_shows_the_values_of_headers(agent_with_headers: Agent) -> None:
    agent = agent_with_headers
    router = Router([agent, agent.with_config(temperature=0.1)])
    things = [agent, agent.config, agent.config.headers, agent.provider, router, vars(agent), vars(agent.config)]
    for thing in things:
        for view in (repr, str, pprint.pformat):
            assert_hidden(f"{view.__name__} of {type(thing).__name__}", view(thing))
    config = agent.config
    for name, dump in {
        "model_dump": config.model_dump(),
        "model_dump json": config.model_dump(mode="json"),
        "model_dump_json": config.model_dump_json(),
        "to_dict": config.to_dict(),
        "dict": dict(config),
        "copy": config.headers.copy(),
    }.items():
        assert_hidden(name, repr(dump))
    assert_hidden("explain", str(router.explain("x")))
    assert_hidden("check", str(agent.check("x")))


def test_no_pickle_holds_headers_and_the_other_side_passes_its_own(agent_with_headers: Agent) -> None:
    agent = agent_with_headers
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        for thing in (agent, agent.config, agent.config.headers, agent.config.model_dump()):
            assert_hidden(f"pickle {protocol} of {type(thing).__name__}", pickle.dumps(thing, protocol))
    with LoopbackServer(Script()) as server:
        there: Agent = pickle.loads(pickle.dumps(agent.with_config(base_url=server.url)))
        assert there.config.headers == {}
        there.with_config(headers={"X-Gateway": "own"}).complete("x")
        assert dict(server.requests[0].headers)[b"x-gateway"] == b"own"


def test_copies_and_variants_send_the_same_headers(agent_with_headers: Agent) -> None:
    with LoopbackServer(Script()) as server:
        agent = agent_with_headers.with_config(base_url=server.url)
        variants = [
            agent,
            agent.with_config(temperature=0.1),
            copy.deepcopy(agent),
            Agent(copy.deepcopy(agent.config)),
            Agent(AgentConfig.model_validate(agent.config.model_dump())),
            Agent(agent.config.model_copy(update={"temperature": 0.2})),
        ]
        for variant in variants:
            variant.complete("x")
        for request in server.requests:
            sent = dict(request.headers)
            assert {name: sent[name.lower().encode()].decode() for name in HEADERS} == HEADERS


def test_a_dumped_config_is_read_back_without_its_headers(agent_with_headers: Agent) -> None:
    read = AgentConfig.model_validate_json(agent_with_headers.config.model_dump_json())
    assert read.headers == {}


@pytest.mark.parametrize("network", NETWORKS.values(), ids=list(NETWORKS))
def test_no_failure_shows_the_values_of_headers(
    network: Callable[[WireRequest], Answer], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG), LoopbackServer(network) as server:
        agent = Agent(
            "openai-chat:m",
            api_key="sk-other",
            base_url=server.url,
            headers=HEADERS,
            max_retries=0,
            middleware=[Logging()],
        )
        for error in failures_of(agent):
            assert_no_trace(error)
    assert_hidden("the log", "\n".join(record.getMessage() + str(record.__dict__) for record in caplog.records))


@pytest.mark.parametrize("network", [echo_request, broken, nonsense])
@pytest.mark.parametrize("name", HEADERS)
def test_a_vendor_that_quotes_a_header_does_not_show_it(name: str, network: Callable[[WireRequest], Answer]) -> None:
    with LoopbackServer(network) as server:
        given = {name: HEADERS[name]}
        agent = Agent("openai-chat:m", api_key="sk-o", base_url=server.url, headers=given, max_retries=0)
        for error in failures_of(agent):
            assert_no_trace(error)


def test_a_header_without_credentials_may_be_quoted() -> None:
    plain = {"anthropic-beta": "context-1m-2025-08-07", "x-team": "blue", "referer": "https://example.com/chat-room-2"}
    assert secrets_in(plain) == []


def test_the_password_of_a_proxy_is_not_shown() -> None:
    transport = HttpTransport(proxy=f"http://user:{quote(KEY, safe='')}@127.0.0.1:9")
    agent = Agent(
        "openai-chat:m", api_key="sk-o", base_url="http://h.example", allow_insecure=True, transport=transport
    )
    assert_hidden("repr", repr(transport) + repr(vars(transport)) + repr(vars(agent)))
    for error in failures_of(agent.with_config(max_retries=0)):
        assert_no_trace(error)
    with pytest.raises(TypeError, match="pickle"):
        pickle.dumps(agent)


def test_addresses_and_commands_of_mcp_servers_hide_credentials() -> None:
    pytest.importorskip("mcp")
    from agent.mcp.transports import ServerAddress, StdioCommand

    address = ServerAddress(f"https://user:{quote(KEY, safe='')}@example.com/mcp", {"X-Gateway": KEY})
    command = StdioCommand("npx", ("some-server", f"--token={KEY}"), {"TOKEN": KEY})
    assert_hidden("an address", repr(address))
    assert_hidden("a command", repr(command))


def test_the_canary_would_be_found() -> None:
    """The net has no holes: each way of hiding the key in a text is noticed."""
    for leak in (KEY, KEY[3:12], quote(KEY, safe=""), base64.b64encode(KEY.encode()).decode(), repr(KEY)):
        assert traces_of_the_key(f"... {leak} ...")
    assert not traces_of_the_key(repr(AgentResponse(text="nothing")))


# --- extra ------------------------------------------------------------------------------------------------------------

EXTRA = {"connector": {"authorization": KEY, "top": 3}, "sources": [{"key": KEY}, f"Bearer {KEY}"], "mode": "fast"}


@tool
def look() -> str:
    """Look around."""
    return "a sea"


def ask(call: ToolCall, context: Any) -> Ask:
    return Ask("May I?")


def test_credentials_in_extra_are_sent_and_nowhere_stored(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    calls: list[Any] = [ToolCall(id="1", name="look"), "Hi", "Hi", "Hi"] * 2
    with caplog.at_level(logging.DEBUG), LoopbackServer(Script(*calls)) as server:
        made = Agent("openai-chat:m", api_key=KEY, base_url=server.url, headers=HEADERS, middleware=[Logging()])
        variants: Any = ((made.with_config(extra=EXTRA), {}), (made, {"extra": EXTRA}))
        gate: Any = {"tools": [look], "before_tool_call": ask}
        for number, (agent, options) in enumerate(variants):
            folder = tmp_path / str(number)
            folder.mkdir()
            journal, store = SqliteJournal(folder / "journal"), SqliteStore(folder / "sessions")
            paused = agent.run("x", **gate, journal=journal, run_id=f"r{number}", **options)
            assert paused.paused is not None
            cached = agent.with_config(middleware=[Cache(SqliteResponseStore(folder / "cache"))])
            answer = cached.complete("x", **options)
            agent.session("s", store=store).complete("x", **options)
            (folder / "in").write_text('"one"\n')
            run_file(agent, folder / "in", folder / "out", **options)
            router = Router([agent, agent.with_config(temperature=0.1)])
            views = {
                "a paused run": paused.paused.to_json(),
                "a result": repr(paused),
                "an answer": repr(answer) + answer.model_dump_json(),
                "an explanation": str(router.explain("x", **options)) + str(agent.check("x", **options)),
                "an agent": repr(agent) + repr(agent.config) + repr(vars(agent)),
                "a dump": agent.config.model_dump_json() + repr(agent.config.model_dump()),
                "a request": repr(AgentRequest(input="x", **options)),
                "a dumped request": AgentRequest(input="x", **options).model_dump_json(),
                "a pickle": pickle.dumps((agent, agent.config, router, AgentRequest(input="x", **options), answer)),
            }  # fmt: skip
            for name, view in views.items():
                assert_hidden(name, view)
            for path in folder.iterdir():
                assert_hidden(path.name, path.read_bytes())
        for request in server.requests:
            sent = json.loads(request.body)
            assert {name: sent[name] for name in EXTRA} == EXTRA
    assert_hidden("the log", "\n".join(record.getMessage() + str(record.__dict__) for record in caplog.records))


def test_a_masked_credential_in_extra_is_read_back_as_absent() -> None:
    config = AgentConfig(provider="openai", extra=EXTRA)
    absent = {"connector": {"top": 3}, "sources": [{}], "mode": "fast"}
    assert AgentConfig.model_validate_json(config.model_dump_json()).extra == absent
    assert AgentConfig.model_validate(config.model_dump()) == config
    assert pickle.loads(pickle.dumps(config)).extra == absent
    assert config.extra == EXTRA


def test_settings_of_extra_that_only_look_like_credentials_stay_public() -> None:
    public = {"max_tokens": 5, "prompt_cache_key": "k", "stop_token_ids": [1], "tokenizer": "x", "keyword": "y"}
    assert AgentConfig(provider="openai", extra=public).to_dict()["extra"] == public


def test_a_vendor_that_quotes_a_credential_of_extra_does_not_show_it() -> None:
    with LoopbackServer(echo_request) as server:
        agent = Agent("openai-chat:m", api_key="sk-o", base_url=server.url, extra=EXTRA, max_retries=0)
        for error in failures_of(agent):
            assert_no_trace(error)
