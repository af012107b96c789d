"""Invalid input raises an error that names the field and the fix before anything is sent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agent import Agent, AgentConfig, AgentRequest, Message, RetryConfig, Router, ToolSpec, errors, register_provider
from agent.testing import LoopbackServer, Script
from agent.transports.http import HttpTransport
from agent.types import (
    AudioContent,
    DocumentContent,
    ImageContent,
    TextContent,
    ToolCall,
    ToolLoopConfig,
    Usage,
    WebSearch,
)

KEY = "sk-canary-0123456789abcdef"


@pytest.fixture
def server() -> Any:
    with LoopbackServer(Script()) as server:
        yield server


BAD_AGENTS: dict[str, tuple[Callable[[], Any], str, str]] = {
    "unknown provider": (lambda: Agent("nobody:m"), "provider", "Use one of"),
    "provider of another library": (lambda: Agent("vertex_ai:m"), "provider", "Did you mean vertex?"),
    "misspelled provider": (lambda: Agent("opnai:m"), "provider", "Did you mean openai or openai-chat?"),
    "no colon": (lambda: Agent("gpt-5.6"), "model", 'Did you mean "openai:gpt-5.6"?'),
    "misspelled model": (lambda: Agent("cluade-opus-4-5"), "model", 'Did you mean "anthropic:claude-opus-4-5"'),
    "a slash": (lambda: Agent("openai/gpt-5"), "model", 'Did you mean "openai:gpt-5"?'),
    "unknown model": (lambda: Agent("zzzzzzzz"), "model", "with a colon"),
    "no model": (lambda: Agent("openai:"), "model", "with a colon"),
    "no provider": (lambda: Agent(":gpt-4o"), "model", 'Did you mean "openai:gpt-4o"?'),
    "not a config": (lambda: Agent(42), "config", "Write Agent("),  # type: ignore[arg-type]
    "unknown setting": (lambda: Agent("openai:m", apikey=KEY), "apikey", "Did you mean"),  # type: ignore[call-arg]
    "wrong type": (lambda: Agent("openai:m", temperature="hot"), "temperature", "number"),  # type: ignore[arg-type]
    "negative timeout": (lambda: Agent("openai:m", timeout=-1), "timeout", "greater than"),
    "line break in key": (lambda: Agent("openai:m", api_key=f"{KEY}\r\nX-Evil: 1"), "api_key", "whitespace"),
    "space in key": (lambda: Agent("openai:m", api_key=f"{KEY} x"), "api_key", "whitespace"),
    "empty key": (lambda: Agent("openai:m", api_key=""), "api_key", ""),
    "line break in header": (lambda: Agent("openai:m", headers={"x": f"a\r\n{KEY}"}), "headers", ""),
    "base_url without scheme": (lambda: Agent("openai:m", base_url="example.com/v1"), "base_url", "http"),
    "base_url with password": (lambda: Agent("openai:m", base_url=f"https://me:{KEY}@example.com"), "base_url", ""),
    "base_url of another kind": (lambda: Agent("openai:m", base_url="ftp://example.com"), "base_url", "http"),
    "retry said twice": (
        lambda: Agent("openai:m", retry=RetryConfig(max_retries=3), max_retries=0),
        "max_retries",
        "Use RetryConfig(max_retries=",
    ),
    "bad tool": (lambda: Agent("openai:m", tools=[42]), "tools", ""),  # type: ignore[list-item]
    "bad provider name": (lambda: register_provider("a:b", lambda config: None), "name", "without colons"),  # type: ignore[arg-type, return-value]
    "file and context": (lambda: HttpTransport(ca_file="x", ssl_context=object()), "ca_file", "Load the CA file"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize(("make", "field", "fix"), BAD_AGENTS.values(), ids=BAD_AGENTS)
def test_a_bad_setting_is_named_with_its_fix(make: Callable[[], Any], field: str, fix: str) -> None:
    with pytest.raises(errors.ConfigurationError) as caught:
        make()
    assert caught.value.field is not None
    assert caught.value.field.startswith(field), caught.value.field
    assert fix in str(caught.value)
    assert_no_key(caught.value)


BAD_VALUES: dict[str, tuple[Callable[[], Any], str, str]] = {
    "text": (lambda: TextContent(text="x", txet="y"), "txet", "Did you mean text?"),  # type: ignore[call-arg]
    "image": (lambda: ImageContent(image_data=b"x", mediatype="y"), "mediatype", "mediaType"),  # type: ignore[call-arg]
    "document": (lambda: DocumentContent(url="x", titel="y"), "titel", "Did you mean title?"),  # type: ignore[call-arg]
    "tool call": (lambda: ToolCall(id="1", name="f", argumens={}), "argumens", "arguments"),  # type: ignore[call-overload]
    "message": (lambda: Message("user", "x", nmae="y"), "nmae", "Did you mean name?"),  # type: ignore[call-arg]
    "tool": (lambda: ToolSpec(name="f", descripion="x"), "descripion", "description"),  # type: ignore[call-overload]
    "built-in tool": (lambda: WebSearch(max_use=1), "max_use", "Did you mean max_uses?"),  # type: ignore[call-arg]
    "usage": (lambda: Usage(promt_tokens=1), "promt_tokens", "Did you mean prompt_tokens?"),  # type: ignore[call-arg]
    "config": (lambda: AgentConfig(provider="x", instructions="y"), "instructions", "default_system="),  # type: ignore[call-arg]
    "request": (lambda: AgentRequest(input="x", output_type=int), "output_type", "Use schema="),  # type: ignore[call-arg]
    "retries": (lambda: RetryConfig(num_retries=1), "num_retries", "Use max_retries="),  # type: ignore[call-arg]
    "limits of a run": (lambda: ToolLoopConfig(max_turns=1), "max_turns", "Use max_iterations="),  # type: ignore[call-arg]
    "dict of limits": (
        lambda: Agent("scripted:m").run("x", loop={"max_iteration": 1}),
        "max_iteration",
        "Did you mean max_iterations?",
    ),
    "router": (lambda: Router(["scripted:m"], temprature=1), "temprature", "Did you mean temperature? Set it on"),  # type: ignore[call-arg]
    "strategy": (lambda: Router(["scripted:m"], strategy="cheepest"), "strategy", "Did you mean cheapest?"),  # type: ignore[arg-type]
    "strategy of another library": (
        lambda: Router(["scripted:m"], strategy="latency-based-routing"),  # type: ignore[arg-type]
        "strategy",
        "Did you mean fastest?",
    ),
    "choice": (lambda: Router(["scripted:m"], on_partial="restrat"), "on_partial", "Did you mean restart?"),  # type: ignore[arg-type]
    "path as bytes": (lambda: ImageContent(image_data=Path("a.png")), "image_data", "read_bytes()"),  # type: ignore[arg-type]
    "file name as bytes": (lambda: AudioContent(data="a.mp3"), "data", "read_bytes()"),  # type: ignore[arg-type]
    "path in a dict": (
        lambda: Agent("scripted:m").complete([{"role": "user", "content": [{"type": "image", "data": Path("a")}]}]),
        "messages.0.content",
        "read_bytes()",
    ),
}


@pytest.mark.parametrize(("make", "field", "fix"), BAD_VALUES.values(), ids=BAD_VALUES)
def test_an_unknown_keyword_of_a_value_gets_a_suggestion(make: Callable[[], Any], field: str, fix: str) -> None:
    with pytest.raises(errors.ConfigurationError) as caught:
        make()
    assert (caught.value.field or "").startswith(field), caught.value.field
    assert fix in str(caught.value)


def test_dicts_may_have_keys_that_a_value_does_not_have() -> None:
    assert TextContent.from_dict({"type": "text", "text": "x", "vendor_key": 1}).text == "x"
    assert Message.model_validate({"role": "user", "content": "x", "vendor_key": 1}).text == "x"


@pytest.mark.parametrize(
    ("other", "ours"),
    [("instructions", "system"), ("system_prompt", "system"), ("api_base", "base_url"), ("retries", "max_retries"),
     ("num_retries", "max_retries"), ("response_format", "schema"), ("output_type", "schema"),
     ("reasoning_effort", "thinking"), ("max_completion_tokens", "max_tokens")],
)  # fmt: skip
def test_names_of_other_libraries_are_mapped(other: str, ours: str) -> None:
    agent = Agent("scripted:m")
    calls: list[Callable[..., Any]] = [agent.complete, agent.stream, agent.run, agent.session().run]
    for call in calls:
        with pytest.raises(errors.ConfigurationError, match=ours) as caught:
            call("x", **{other: 1})
        assert caught.value.field == other


OUTPUT_SCHEMA: Any = {"output_schema": int}
BAD_REQUESTS: dict[str, tuple[Callable[[Agent], Any], str, str]] = {
    "empty text": (lambda agent: agent.complete(""), "input", "Pass input"),
    "empty request": (lambda agent: agent.complete(AgentRequest()), "input", "Pass input"),
    "no messages": (lambda agent: agent.complete([]), "input", "Pass input"),
    "not a request": (lambda agent: agent.complete(42), "request", "Pass text"),  # type: ignore[call-overload]
    "unknown field": (lambda agent: agent.complete("x", temprature=1), "temprature", "Did you mean temperature?"),  # type: ignore[call-overload]
    "wrong type": (lambda agent: agent.complete("x", max_tokens="many"), "max_tokens", "integer"),  # type: ignore[call-overload]
    "out of range": (lambda agent: agent.complete("x", temperature=3), "temperature", "less than or equal to 2"),
    "no tokens": (lambda agent: agent.complete("x", max_tokens=0), "max_tokens", "greater than"),
    "no time": (lambda agent: agent.complete("x", deadline=0), "deadline", "greater than"),
    "bad role": (lambda agent: agent.complete([{"role": "boss", "content": "x"}]), "messages", ""),
    "choice without tools": (lambda agent: agent.complete("x", tool_choice="auto"), "tool_choice", "Add tools"),
    "choice not offered": (
        lambda agent: agent.complete("x", tools=[ToolSpec(name="f")], tool_choice="g"),
        "tool_choice",
        "one of f",
    ),
    "tool twice": (
        lambda agent: agent.complete("x", tools=[ToolSpec(name="f"), ToolSpec(name="f")]),
        "",
        "rename or remove",
    ),
    "tool name": (lambda agent: agent.complete("x", tools=[{"name": "a b", "parameters": {}}]), "tools", ""),
    "two schemas": (lambda agent: agent.complete("x", schema=int, **OUTPUT_SCHEMA), "schema", "one of them"),
    "no schema": (lambda agent: agent.json("x"), "schema", "Pass schema"),  # type: ignore[call-overload]
    "image without data": (
        lambda agent: agent.complete([{"role": "user", "content": [{"type": "image"}]}]),
        "messages",
        "",
    ),
    "model in extra": (lambda agent: agent.complete("x", extra={"model": "y"}), "extra", "with the request field"),
    "stream": (lambda agent: agent.stream(""), "input", "Pass input"),
    "async stream": (lambda agent: agent.astream(""), "input", "Pass input"),
    "async": (lambda agent: asyncio.run(agent.acomplete("")), "input", "Pass input"),
    "bad override": (lambda agent: agent.with_config(timeout="long"), "timeout", "number"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize(("act", "field", "fix"), BAD_REQUESTS.values(), ids=BAD_REQUESTS)
def test_a_bad_request_is_named_with_its_fix_and_never_sent(
    server: LoopbackServer, act: Callable[[Agent], Any], field: str, fix: str
) -> None:
    agent = Agent("openai-chat:m", api_key=KEY, base_url=server.url)
    with pytest.raises(errors.ConfigurationError) as caught:
        act(agent)
    assert (caught.value.field or "").startswith(field), caught.value.field
    assert fix in str(caught.value)
    assert server.requests == []
    assert_no_key(caught.value)


def test_a_missing_key_names_the_variable_to_set() -> None:
    with pytest.raises(errors.AuthenticationError, match="OPENAI_API_KEY"):
        Agent("openai-chat:m").complete("x")
    with pytest.raises(errors.AuthenticationError, match="OPENAI_API_KEY"):
        Agent("openai-chat:m").stream("x")


def test_no_key_is_needed_on_this_machine(server: LoopbackServer) -> None:
    assert Agent("openai-chat:m", base_url=server.url).complete("x").text == "You said: x"
    assert b"authorization" not in dict(server.requests[0].headers)


def test_the_key_and_the_address_may_come_from_the_environment(
    server: LoopbackServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", f" {KEY}\n")
    monkeypatch.setenv("OPENAI_BASE_URL", f"{server.url}/v1/")
    assert Agent("openai-chat:m").complete("x").text == "You said: x"
    assert dict(server.requests[0].headers)[b"authorization"] == f"Bearer {KEY}".encode()
    assert server.requests[0].url == "/v1/chat/completions"


def test_a_broken_key_in_the_environment_is_refused_and_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", f"{KEY}\r\nX-Evil: 1")
    with pytest.raises(errors.ConfigurationError) as caught:
        Agent("openai-chat:m").complete("x")
    assert caught.value.field == "api_key"
    assert_no_key(caught.value)


@pytest.mark.parametrize("url", ["http://example.com/v1", "http://10.0.0.1", "http://localhost.example.com"])
def test_a_key_is_not_sent_in_the_clear(url: str) -> None:
    with pytest.raises(errors.ConfigurationError, match="unencrypted") as caught:
        Agent("openai-chat:m", api_key=KEY, base_url=url).complete("x")
    assert caught.value.field == "base_url"
    assert_no_key(caught.value)


@pytest.mark.parametrize("url", ["http://localhost:1", "http://127.0.0.1:1", "http://[::1]:1", "http://a.localhost:1"])
def test_on_this_machine_a_key_may_go_in_the_clear(url: str) -> None:
    Agent("openai-chat:m", api_key=KEY, base_url=url).stream("x")


def test_who_owns_the_network_may_say_so() -> None:
    Agent("openai-chat:m", api_key=KEY, base_url="http://10.0.0.1", allow_insecure=True).stream("x")


def test_a_model_may_be_named_by_the_request() -> None:
    config = AgentConfig(provider="scripted")
    with pytest.raises(errors.ConfigurationError) as caught:
        Agent(config).complete("x")
    assert caught.value.field == "model"
    assert Agent(config).complete("x", model="m").model == "m"


def test_nothing_passed_in_is_ever_changed() -> None:
    request = AgentRequest(input="x", messages=[Message.user("y")])
    before = request.model_dump_json()
    agent = Agent("scripted:m", temperature=0.5, default_system="s", tools=[ToolSpec(name="f")])
    agent.complete(request, max_tokens=5)
    agent.stream(request).collect()
    assert request.model_dump_json() == before
    assert agent.with_config(temperature=0.9).config.temperature == 0.9
    assert agent.config.temperature == 0.5


def assert_no_key(error: BaseException) -> None:
    seen: BaseException | None = error
    while seen is not None:
        assert KEY not in str(seen)
        assert KEY not in repr(seen)
        seen = seen.__cause__ or seen.__context__
