"""Wire safety: unsafe keys, headers and URLs are rejected before anything is sent."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable
from typing import Any, cast

import pytest

from agent import Agent, AgentConfig, Router, errors
from agent.engine.wire import Limits, WireRequest
from agent.testing import Answer, LoopbackServer
from agent.transports.http import HttpTransport
from tests.engine.play import JSON, whole
from tests.support.drivers import Driver

MODELS = ["openai-chat:m", "openai-responses:m", "anthropic:m", "gemini:m", "groq:m"]
FRAMING = [
    "Content-Length",
    "transfer-encoding",
    "HOST",
    "Connection",
    "Keep-Alive",
    "TE",
    "Trailer",
    "Upgrade",
    "Expect",
    "Proxy-Connection",
    "Proxy-Authorization",
]
HALF = "\ud83d"


@pytest.mark.parametrize("header", FRAMING)
@pytest.mark.parametrize("model", MODELS)
def test_a_header_that_controls_framing_is_refused_when_the_agent_is_made(model: str, header: str) -> None:
    with pytest.raises(errors.ConfigurationError, match=header) as caught:
        Agent(model, api_key="sk-test", headers={header: "5-canary"})
    assert caught.value.field == "headers"
    assert "canary" not in str(caught.value)


@pytest.mark.parametrize("header", FRAMING)
def test_a_header_that_controls_framing_never_reaches_the_wire(drive_http: Driver, header: str) -> None:
    """Also one that a codec or a caller of the transport adds."""
    server = drive_http.serve(lambda request: whole("ok"))
    transport = drive_http.transport(proxy=False)
    request = WireRequest(f"{server.url}/v1", ((header.encode(), b"5"),), b"{}")
    with pytest.raises(errors.ConfigurationError, match=header) as caught:
        drive_http.send(transport, request)
    assert caught.value.field == "headers"
    assert server.connections_made == 0


@pytest.mark.parametrize("value", ["→", HALF, "a\rb", "a\nb", "a\0b", "a\x1bb", "a\x7fb"])
def test_a_header_value_that_http_cannot_hold_is_refused_by_name(value: str) -> None:
    with pytest.raises(errors.ConfigurationError, match="x-name") as caught:
        Agent("openai-chat:m", api_key="sk-test", headers={"x-name": f"canary{value}"})
    assert caught.value.field == "headers"
    assert "canary" not in str(caught.value)


def test_a_header_in_latin_1_is_sent() -> None:
    with LoopbackServer(lambda request: whole("ok")) as server:
        Agent("openai-chat:m", base_url=f"{server.url}/v1", headers={"x-name": "Zoé\tB"}).complete("hi")
        assert (b"x-name", "Zoé\tB".encode("latin-1")) in server.requests[0].headers


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("form", ["complete", "stream", "json", "count_tokens"])
@pytest.mark.parametrize("where", ["model", "message", "system"])
def test_half_a_character_is_a_typed_error_and_nothing_is_sent(model: str, form: str, where: str) -> None:
    provider = model.partition(":")[0]
    options: dict[str, Any] = {"model": f"m{HALF}"} if where == "model" else {}
    if where == "system":
        options["system"] = HALF
    with LoopbackServer(lambda request: whole("ok")) as server:
        agent = Agent(f"{provider}:m", api_key="sk-test", base_url=f"{server.url}/v1", max_retries=0)
        text = f"hi{HALF}" if where == "message" else "hi"
        with pytest.raises(errors.ConfigurationError) as caught:
            if form == "stream":
                agent.stream(text, **options).collect()
            elif form == "json":
                agent.json(text, schema={"type": "object"}, **options)
            elif form == "count_tokens":
                agent.count_tokens(text, exact=True, **options)
            else:
                agent.complete(text, **options)
        str(caught.value).encode()
        assert server.requests == []


@pytest.mark.parametrize("field", ["api_key", "base_url", "headers"])
def test_half_a_character_in_a_setting_is_refused_by_name(field: str) -> None:
    value: Any = {"api_key": f"k{HALF}", "base_url": f"https://h/v1{HALF}", "headers": {"x": HALF}}[field]
    with pytest.raises(errors.ConfigurationError) as caught:
        Agent("openai-chat:m", **cast(Any, {"api_key": "k", field: value}))
    assert caught.value.field == field
    str(caught.value).encode()


@pytest.mark.parametrize("url", ["http://127.0.0.1:0/v1", "https://api.example.com:0"])
def test_port_0_is_refused(url: str) -> None:
    with pytest.raises(errors.ConfigurationError, match="port 0") as caught:
        Agent("openai-chat:m", api_key="k", base_url=url)
    assert caught.value.field == "base_url"


def test_port_0_is_not_taken_for_the_usual_port(drive_http: Driver) -> None:
    with pytest.raises(errors.ConfigurationError):
        drive_http.send(drive_http.transport(proxy=False), WireRequest("http://127.0.0.1:0/", (), b"{}"))


# Error messages

FORGED = "gpt\r\nERROR root: all keys deleted\x1b[2J\u2028x\x85y\u202e"


def send_one_line(text: str) -> bool:
    return len(text.splitlines()) == 1 and "\x1b" not in text and "\u202e" not in text


def test_a_model_name_cannot_forge_a_line_of_a_log(caplog: pytest.LogCaptureFixture) -> None:
    with LoopbackServer(lambda request: Answer([b"{}"], status=404, headers=JSON)) as server:
        agent = Agent(f"openai-chat:{FORGED}", api_key="k", base_url=f"{server.url}/v1", max_retries=0)
        with pytest.raises(errors.ModelNotFoundError) as caught:
            agent.complete("hi")
        assert send_one_line(str(caught.value))
        assert caught.value.model == FORGED, "the attribute keeps the requested model"
        logging.getLogger("x").error("failed: %s", caught.value)
        assert send_one_line(caplog.records[-1].getMessage())


def test_a_vendors_words_cannot_forge_a_line_of_a_log() -> None:
    said = b'{"error": {"message": "no\\r\\nERROR root: forged\\u001b[2J", "code": "a\\nb"}}'
    with LoopbackServer(lambda request: Answer([said], status=400, headers={**JSON, "x-request-id": "r"})) as server:
        agent = Agent("openai-chat:m", api_key="k", base_url=f"{server.url}/v1", max_retries=0)
        with pytest.raises(errors.BadRequestError) as caught:
            agent.complete("hi")
        assert send_one_line(str(caught.value))
        assert send_one_line(caught.value.message)
        assert "no ERROR root: forged\\x1b[2J" in caught.value.message
        assert caught.value.body is not None
        assert all(send_one_line(attempt.message or "-") for attempt in caught.value.attempts)
        assert send_one_line(str(pickle.loads(pickle.dumps(caught.value))))


def test_a_route_is_printed_without_forged_lines() -> None:
    with LoopbackServer(lambda request: Answer([b"{}"], status=500, headers=JSON)) as server:
        agent = Agent(f"openai-chat:{FORGED}", api_key="k", base_url=f"{server.url}/v1", max_retries=0)
        with pytest.raises(errors.AgentError) as caught:
            Router([agent, agent], retry=None).complete("hi")
        assert not any(line.strip().startswith("ERROR") for line in str(caught.value).splitlines())
        assert send_one_line(caught.value.message)


def test_a_setting_that_is_quoted_in_an_error_stays_on_its_line() -> None:
    makers: tuple[Callable[[], Agent], ...] = (
        lambda: Agent("no\r\nsuch:model"),
        lambda: Agent("openai-chat:m", api_key="k", base_url="https://h/\r\nERROR x"),
        lambda: Agent("openai-chat:m", transport="a\nb"),
        lambda: Agent("nothing\nhere"),
    )
    for make in makers:
        with pytest.raises(errors.ConfigurationError) as caught:
            make()
        assert send_one_line(str(caught.value))


# A key and a proxy on another machine


@pytest.mark.parametrize("proxy", ["http://192.0.2.1:3128", "socks5://192.0.2.1:1080", "192.0.2.1:3128"])
@pytest.mark.parametrize("how", ["environment", "argument"])
@pytest.mark.parametrize("header", [None, "x-api-key", "Cookie"])
def test_a_key_is_not_sent_in_the_clear_to_a_proxy_on_another_machine(
    drive_http: Driver, proxy: str, how: str, header: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if how == "environment":
        monkeypatch.setenv("ALL_PROXY", proxy)
    transport = drive_http.transport(proxy=proxy if how == "argument" else None)
    settings: dict[str, Any] = {"api_key": "sk-test"} if header is None else {"headers": {header: "sk-test"}}
    agent = Agent("openai-chat:m", base_url="http://localhost:11434/v1", transport=transport, **settings)
    with pytest.raises(errors.ConfigurationError, match="unencrypted") as caught:
        drive_http.call(agent)
    assert caught.value.field == "proxy"
    assert "NO_PROXY" in str(caught.value)


@pytest.mark.filterwarnings("ignore:A test tried to use")
@pytest.mark.parametrize(
    ("url", "proxy", "settings"),
    [
        ("http://localhost:1/v1", "http://192.0.2.1:3128", {"allow_insecure": True}),
        ("https://example.com/v1", "http://192.0.2.1:3128", {}),
        ("http://localhost:1/v1", "http://127.0.0.1:3128", {}),
        ("http://localhost:1/v1", "https://192.0.2.1:3128", {}),
        ("http://localhost:1/v1", "http://192.0.2.1:3128", {"api_key": None}),
    ],
)
def test_where_no_key_is_exposed_or_the_user_allows_it_the_proxy_is_used(
    url: str, proxy: str, settings: dict[str, Any]
) -> None:
    """The connection itself fails here: no proxy is listening."""
    given = {"api_key": "sk-test", "max_retries": 0, "connect_timeout": 0.2, **settings}
    agent = Agent("openai-chat:m", base_url=url, transport=HttpTransport(proxy=proxy), **given)
    with pytest.raises((errors.ConnectionError, errors.TimeoutError, RuntimeError)):
        agent.complete("hi")


def test_limits_do_not_allow_a_key_in_the_clear_unless_told() -> None:
    assert not Limits().allow_insecure
    assert not AgentConfig(provider="x").allow_insecure
