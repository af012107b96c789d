"""The official SDK as judge: bodies satisfy its types, and it finds in answers what we find."""

from __future__ import annotations

import json
import os
from typing import IO, Annotated, Any, Literal, NotRequired, Required, Union, get_args, get_origin

import anthropic
import pytest
from anthropic.types import message_count_tokens_params, message_create_params
from anthropic.types.beta import message_create_params as beta_message_create_params
from hypothesis import given, settings
from pydantic import BaseModel, TypeAdapter
from typing_extensions import TypedDict, get_type_hints, is_typeddict

from agent import Agent, errors
from agent.engine.wire import Answer
from agent.providers.anthropic import AnthropicCodec
from agent.providers.anthropic.models import features_of
from agent.providers.base import ApiAddress
from agent.testing import LoopbackServer
from agent.testing.rules import VendorState
from agent.testing.rules.anthropic import AnthropicRules
from agent.types import (
    AgentRequest,
    AgentResponse,
    BuiltinTool,
    CodeExecution,
    ComputerUse,
    ContentPart,
    DocumentContent,
    FileContent,
    FileSearch,
    ImageGeneration,
    McpConnector,
    Message,
    Origin,
    SearchResultContent,
    TextContent,
    UserLocation,
    WebSearch,
)
from tests.providers.sdk_oracles import Replay
from tests.support.cases import examples, for_each
from tests.support.corpus import HAS_RECORDINGS, Exchange, exchanges, vendor
from tests.support.recorded_requests import read_request
from tests.support.recording_checks import collect_own_text, decode_recording
from tests.support.values import agent_requests

RECORDED = exchanges("anthropic.messages")
REQUESTS = [exchange for exchange in RECORDED if exchange.request is not None]
ANSWERS = [exchange for exchange in RECORDED if exchange.expected["kind"] == "message"]
CODEC = AnthropicCodec(ApiAddress("http://127.0.0.1", None))

OLDER_KEYS = frozenset(("temperature", "top_p", "top_k", "output_format"))
"""Keys of the API's version 2023-06-01, which we send, that the SDK has given up with the version it sends."""


class Strict:
    """Strict version of the SDK's types: no unknown keys, checked lists, and no models for dicts."""

    def __init__(self) -> None:
        self._made: dict[Any, Any] = {}

    def of(self, kind: Any) -> Any:
        if is_typeddict(kind):
            if kind not in self._made:
                self._made[kind] = self._make_typed_dict(kind)
            return self._made[kind]
        origin, arguments = get_origin(kind), get_args(kind)
        if origin in (Required, NotRequired):
            return origin[self.of(arguments[0])]
        if origin is Annotated:
            return self.of(arguments[0])
        if origin is Union:
            return Union[tuple(self.of(one) for one in arguments if not _is_no_json(one))]  # noqa: UP007
        if origin is not None and origin not in (Literal, dict) and len(arguments) == 1:
            return list[self.of(arguments[0])]  # type: ignore[misc]  # Iterable, List, Sequence
        return kind

    def _make_typed_dict(self, kind: Any) -> Any:
        if getattr(kind, "__pydantic_config__", {}).get("extra") == "allow":
            return kind
        fields = {name: self.of(hint) for name, hint in get_type_hints(kind, include_extras=True).items()}
        optional = {
            name: hint if get_origin(hint) is Required or name in kind.__required_keys__ else NotRequired[hint]
            for name, hint in fields.items()
        }
        made: Any = TypedDict(kind.__name__, optional)  # type: ignore[misc]
        setattr(made, "__pydantic_config__", {"extra": "forbid"})  # noqa: B010  # the checker sees a class without it
        return made


def _is_no_json(kind: Any) -> bool:
    """The SDK's own objects, and open files."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _is_no_json(arguments[0])
    if origin is Union:
        return all(map(_is_no_json, arguments))
    return origin in (IO, os.PathLike) or (isinstance(kind, type) and issubclass(kind, BaseModel))


def make_adapter(*kinds: Any) -> TypeAdapter[Any]:
    strict: Any = Union[tuple(Strict().of(kind) for kind in kinds)]  # noqa: UP007
    return TypeAdapter(strict)


PLAIN = make_adapter(
    message_create_params.MessageCreateParamsNonStreaming, message_create_params.MessageCreateParamsStreaming
)
BETA = make_adapter(
    beta_message_create_params.MessageCreateParamsNonStreaming, beta_message_create_params.MessageCreateParamsStreaming
)
COUNTING = make_adapter(message_count_tokens_params.MessageCountTokensParams)


def encode_checked(
    request: AgentRequest, *, stream: bool = False, beta: bool = False, refused: str | None = None
) -> dict[str, Any]:
    """Return a request body that satisfies the SDK's types and the API's rules."""
    wire = CODEC.encode(request, stream=stream)
    body: dict[str, Any] = json.loads(wire.body)
    known = {key: value for key, value in body.items() if key not in OLDER_KEYS}
    beta = beta or any(name == b"anthropic-beta" for name, _ in wire.headers)
    (BETA if beta else PLAIN).validate_python(known)
    check_rules(body, request, refused)
    return body


def check_rules(body: dict[str, Any], request: AgentRequest, refused: str | None = None) -> None:
    """Check rules of the API that its types do not express."""
    home = Origin(provider="anthropic", api="anthropic", model=request.model or "")
    broken = AnthropicRules().check(body, VendorState(collect_own_text(request, home)))
    assert [violation.message for violation in broken] == ([refused] if refused else [])
    messages = body["messages"]
    assert [message["role"] for message in messages] == [("user", "assistant")[n % 2] for n in range(len(messages))]
    for message in messages:
        assert message["content"]
        for block in message["content"]:
            assert block["type"] != "tool_result" or block.get("content") not in ([], "")


@settings(max_examples=examples(200, 2_000))
@given(agent_requests("claude-sonnet-4-5"))
def test_any_request_is_one_that_the_sdk_and_the_api_accept(request: AgentRequest) -> None:
    body = encode_checked(request)
    again = CODEC.encode(request, stream=False)
    assert json.loads(again.body) == body, "the same request is written the same way twice, from kept bytes, too"


@pytest.mark.parametrize(
    "model",
    ["claude-3-haiku-20240307", "claude-opus-4-6", "claude-opus-4-8", "claude-sonnet-5", "claude-opus-5-5", "glm-4.6"],
)
def test_so_it_is_for_every_family_of_models(model: str) -> None:
    features = features_of(model)

    @settings(max_examples=60)
    @given(agent_requests(model))
    def check(request: AgentRequest) -> None:
        body = encode_checked(request, stream=True)
        kind = (body.get("thinking") or {}).get("type")
        assert kind in (None, "disabled", "enabled" if features.thinking == "budget" else "adaptive")
        assert features.thinking != "none" or kind is None
        assert (body.get("output_config") or {}).get("effort") in (None, *features.efforts)
        if not features.forced_calls:
            assert (body.get("tool_choice") or {}).get("type") in (None, "auto", "none")

    check()


BUDGET, EFFORT = "claude-sonnet-4-5", "claude-opus-5"


@pytest.mark.parametrize(
    ("model", "fields", "sent", "warning"),
    [
        (BUDGET, {"thinking_budget": 5000}, {"thinking": {"type": "enabled", "budget_tokens": 5000}}, None),
        (BUDGET, {"thinking_budget": 5}, {"thinking": {"type": "enabled", "budget_tokens": 1024}}, "raised to 1024"),
        (BUDGET, {"thinking_budget": 0}, {"thinking": None}, None),
        (EFFORT, {"thinking_budget": 0}, {"thinking": {"type": "disabled"}}, None),
        (EFFORT, {"thinking_budget": 5000}, {"output_config": {"effort": "medium"}}, "thinking='medium'"),
        (EFFORT, {"thinking_budget": 99999}, {"output_config": {"effort": "xhigh"}}, "thinking='xhigh'"),
        (EFFORT, {"thinking_budget": 99, "thinking": "high"}, {"output_config": {"effort": "high"}}, "'high'"),
        (BUDGET, {"thinking_budget": 9999, "thinking": "off"}, {"thinking": None}, "thinking is off"),
        (BUDGET, {"user": "u1"}, {"metadata": {"user_id": "u1"}}, None),
        (BUDGET, {"user": "u1", "metadata": {"user_id": "u2"}}, {"metadata": {"user_id": "u1"}}, None),
        (BUDGET, {"n": 1, "modalities": ["text"]}, {}, None),
        (BUDGET, {"modalities": ["text", "image"]}, {}, "image was left out"),
        (BUDGET, {"top_k": 5, "service_tier": "auto"}, {"top_k": 5, "service_tier": "auto"}, None),
    ],
)
def test_settings_are_sent_in_the_form_of_the_sdk(
    model: str, fields: dict[str, Any], sent: dict[str, Any], warning: str | None
) -> None:
    request = AgentRequest(input="Hi", model=model, **fields)
    body = encode_checked(request)
    assert {key: body.get(key) for key in sent} == sent
    warnings = CODEC.encode(request, stream=False).warnings
    assert len(warnings) == (warning is not None)
    assert warning is None or warning in warnings[0]


@pytest.mark.parametrize(
    ("part", "block"),
    [
        (FileContent(file_id="f1"), {"type": "document", "source": {"type": "file", "file_id": "f1"}}),
        (
            FileContent(file_id="f1", media_type="text/plain", title="T"),
            {"type": "document", "source": {"type": "file", "file_id": "f1"}, "title": "T"},
        ),
        (
            FileContent(file_id="f1", media_type="image/png"),
            {"type": "image", "source": {"type": "file", "file_id": "f1"}},
        ),
        (FileContent(file_id="f1", media_type="text/csv"), {"type": "container_upload", "file_id": "f1"}),
        (
            SearchResultContent(
                source="https://a.b",
                title="T",
                content=[TextContent(text="One."), TextContent(text=" ")],
                citations=True,
                cache="short",
            ),
            {
                "type": "search_result",
                "source": "https://a.b",
                "title": "T",
                "content": [{"type": "text", "text": "One."}],
                "citations": {"enabled": True},
                "cache_control": {"type": "ephemeral"},
            },
        ),
        (
            DocumentContent(text="Hi", citations=False, context="A letter."),
            {
                "type": "document",
                "source": {"type": "text", "media_type": "text/plain", "data": "Hi"},
                "citations": {"enabled": False},
                "context": "A letter.",
            },
        ),
    ],
)
def test_content_is_sent_in_the_form_of_the_sdk(part: ContentPart, block: dict[str, Any]) -> None:
    body = encode_checked(AgentRequest(model=BUDGET, messages=[Message.user([part, TextContent(text="Hi")])]))
    assert body["messages"][0]["content"][0] == block


@pytest.mark.parametrize(
    ("model", "tool", "sent", "warning"),
    [
        (
            BUDGET,
            WebSearch(max_uses=3, allowed_domains=["a.b"], user_location=UserLocation(city="Rome")),
            {
                "type": "web_search_20250305",
                "name": "web_search",
                "max_uses": 3,
                "allowed_domains": ["a.b"],
                "user_location": {"type": "approximate", "city": "Rome"},
            },
            None,
        ),
        (
            BUDGET,
            WebSearch(blocked_domains=["a.b"], context_size="low", extra={"type": "web_search_20260318"}),
            {"type": "web_search_20260318", "name": "web_search", "blocked_domains": ["a.b"]},
            "context_size of web_search was left out: anthropic does not support it",
        ),
        (
            BUDGET,
            CodeExecution(container="c1", file_ids=["f1"]),
            {"type": "code_execution_20250825", "name": "code_execution"},
            "file_ids of code_execution was left out: anthropic does not support it",
        ),
        (
            BUDGET,
            ComputerUse(width=640, height=480),
            {"type": "computer_20250124", "name": "computer", "display_width_px": 640, "display_height_px": 480},
            None,
        ),
        (
            EFFORT,
            ComputerUse(environment="mac"),
            {"type": "computer_20251124", "name": "computer", "display_width_px": 1280, "display_height_px": 800},
            "environment of computer_use was left out: anthropic does not support it",
        ),
        (
            BUDGET,
            McpConnector(label="docs", url="https://mcp.test", token="s3cret", allowed_tools=["look"]),
            {
                "type": "mcp_toolset",
                "mcp_server_name": "docs",
                "default_config": {"enabled": False},
                "configs": {"look": {"enabled": True}},
            },
            None,
        ),
    ],
)
def test_built_in_tools_are_sent_in_the_form_of_the_sdk(
    model: str, tool: BuiltinTool, sent: dict[str, Any], warning: str | None
) -> None:
    request = AgentRequest(input="Hi", model=model, tools=[tool])
    body = encode_checked(request, beta=True)
    assert body["tools"] == [sent]
    wire = CODEC.encode(request, stream=False)
    assert wire.warnings == (() if warning is None else (warning,))
    if isinstance(tool, McpConnector):
        server = {"type": "url", "name": "docs", "url": "https://mcp.test", "authorization_token": "s3cret"}
        assert body["mcp_servers"] == [server]
        assert dict(wire.headers)[b"anthropic-beta"] == b"mcp-client-2025-11-20"
    assert body.get("container") == (tool.container if isinstance(tool, CodeExecution) else None)
    assert "container" not in json.loads(CODEC.encode_count(request).body)


def test_built_in_tools_that_the_api_lacks_are_refused() -> None:
    for tool in (FileSearch(stores=["s"]), ImageGeneration(), McpConnector(label="a", connector_id="c")):
        with pytest.raises(errors.UnsupportedFeatureError) as caught:
            CODEC.encode(AgentRequest(input="Hi", model=BUDGET, tools=[tool]), stream=False)
        assert caught.value.field == "tools"
    forced = AgentRequest(input="Hi", model=BUDGET, tools=[ComputerUse()], tool_choice="computer_use")
    assert json.loads(CODEC.encode(forced, stream=False).body)["tool_choice"] == {"type": "tool", "name": "computer"}


def test_betas_are_a_header() -> None:
    def headers(**fields: Any) -> dict[bytes, bytes]:
        codec = AnthropicCodec(ApiAddress("http://127.0.0.1", None), {"anthropic-beta": "b-2026-01-01"})
        return dict(codec.encode(AgentRequest(input="Hi", model=BUDGET, **fields), stream=False).headers)

    betas = ["a-2026-01-01", "b-2025-01-01", "context-1m-2025-08-07"]
    assert headers(betas=betas)[b"anthropic-beta"] == b"b-2026-01-01,a-2026-01-01,context-1m-2025-08-07"
    assert headers(extra={"speed": "fast"})[b"anthropic-beta"] == b"b-2026-01-01,fast-mode-2026-02-01"
    for refused in ({"betas": ["two words"]}, {"extra": {"betas": ["a"]}}, {"n": 2}):
        with pytest.raises(errors.ConfigurationError) as caught:
            headers(**refused)
        assert caught.value.field in ("betas", "extra", "n")
        assert caught.value.fix


@settings(max_examples=100)
@given(agent_requests("claude-sonnet-4-5"))
def test_any_request_can_be_counted(request: AgentRequest) -> None:
    COUNTING.validate_python(json.loads(CODEC.encode_count(request).body))


@for_each("exchange", REQUESTS, by=vendor)
def test_a_recorded_request_is_written_again_as_it_was(exchange: Exchange) -> None:
    assert exchange.request is not None
    recorded = exchange.request
    request = read_request(exchange)
    effort = recorded.get("output_config", {}).get("effort")  # may be invalid
    error = exchange.expected["error"]["message"] if exchange.expected["kind"] == "error" and effort else None
    written = encode_checked(request, stream=bool(recorded.get("stream")), beta=True, refused=error)
    if not any(message["role"] == "system" for message in recorded["messages"]):
        assert canonical(written["messages"]) == canonical(recorded["messages"])
    assert [_plain(block) for block in _blocks(written.get("system") or [])] == [
        _plain(block) for block in _blocks(recorded.get("system") or [])
    ]
    assert written["max_tokens"] == recorded["max_tokens"]
    assert len(written.get("tools") or ()) == len(recorded.get("tools") or ())
    assert (written.get("thinking") or {}).get("type") == expect_thinking_type(recorded)


def expect_thinking_type(recorded: dict[str, Any]) -> str | None:
    """Newer models have another type of thinking, and omit the setting if thinking is off by default."""
    kind = (recorded.get("thinking") or {}).get("type")
    if kind == "disabled" and features_of(recorded["model"]).thinking_off == "omit":
        return None
    if kind == "enabled" and features_of(recorded["model"]).thinking == "adaptive":
        return "adaptive"
    return kind


def canonical(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Messages in the longest of the forms that mean the same."""
    written: list[dict[str, Any]] = []
    for message in messages:
        blocks = [_plain(block) for block in _blocks(message["content"])]
        if written and written[-1]["role"] == message["role"]:
            written[-1]["content"] += blocks
        else:
            written.append({"role": message["role"], "content": blocks})
    return written


def _blocks(content: str | list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _plain(block: dict[str, Any]) -> dict[str, Any]:
    plain = {key: value for key, value in block.items() if value not in (None, False, [], "")}
    if control := plain.get("cache_control"):
        plain["cache_control"] = {"ttl": "5m", **control}
    if plain["type"] == "tool_result":
        plain["content"] = _blocks(plain.get("content", []))
    if plain["type"] == "image" and plain["source"]["type"] == "base64":
        plain["source"] = plain["source"]["data"]  # the label is corrected where it is wrong
    return plain


def by_sdk(client: anthropic.Anthropic, exchange: Exchange) -> Any:
    """The message that the SDK makes of a recording."""
    asked: dict[str, Any] = {"model": "m", "max_tokens": 99, "messages": [{"role": "user", "content": "hi"}]}
    if exchange.stream is None:
        return client.beta.messages.create(**asked)
    with client.beta.messages.stream(**asked) as stream:
        return stream.get_final_message()


def compare(ours: AgentResponse, theirs: Any) -> None:
    assert (ours.text or "") == "".join(block.text for block in theirs.content if block.type == "text")
    assert ours.thinking == "".join(block.thinking for block in theirs.content if block.type == "thinking")
    assert [(call.id, call.name, call.arguments) for call in ours.tool_calls] == [
        (block.id, block.name, block.input) for block in theirs.content if block.type == "tool_use"
    ]
    assert [part.type for part in ours.content] == [_TYPE.get(block.type, "vendor") for block in theirs.content]
    assert ours.raw_stop_reason == theirs.stop_reason
    assert ours.usage is not None
    assert ours.usage.input_tokens == theirs.usage.input_tokens
    assert ours.usage.output_tokens == theirs.usage.output_tokens
    assert ours.usage.cache_read_tokens == (theirs.usage.cache_read_input_tokens or 0)
    assert ours.usage.cache_write_tokens == (theirs.usage.cache_creation_input_tokens or 0)


_TYPE = {"text": "text", "thinking": "thinking", "redacted_thinking": "thinking", "tool_use": "tool_call"}


def test_every_recorded_answer_holds_what_the_sdk_finds_in_it() -> None:
    replay = Replay()
    with (
        LoopbackServer(replay) as server,
        anthropic.Anthropic(base_url=server.url, api_key="sk-test", max_retries=0) as client,
    ):
        for exchange in ANSWERS:
            kind = "application/json" if exchange.stream is None else "text/event-stream"
            data = exchange.reply.body if exchange.stream is None else exchange.stream
            replay.answer = Answer([data], headers={"content-type": kind})
            compare(decode_recording(exchange), by_sdk(client, exchange))
    assert len(ANSWERS) == 108 or not HAS_RECORDINGS


def test_the_sdk_and_the_agent_send_the_same_to_the_same_place() -> None:
    answer = {"id": "m", "type": "message", "role": "assistant", "model": "m", "content": [], "usage": {}}
    replay = Replay()
    replay.answer = Answer([json.dumps({**answer, "stop_reason": "end_turn"}).encode()])
    with (
        LoopbackServer(replay) as server,
        anthropic.Anthropic(base_url=server.url, api_key="sk-test", max_retries=0) as client,
    ):
        client.messages.create(
            model="claude-opus-4-8",
            max_tokens=99,
            system="Be brief.",
            messages=[{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
        )
        Agent("anthropic:claude-opus-4-8", base_url=server.url, api_key="sk-test", max_tokens=99).complete(
            "hi", system="Be brief."
        )
        theirs, ours = server.requests
    assert ours.url == theirs.url
    assert json.loads(ours.body) == json.loads(theirs.body)
    sent, expected = dict(ours.headers), dict(theirs.headers)
    for name in (b"content-type", b"host"):
        assert sent[name] == expected[name]
    # The SDK sends the key in the other of the two headers that the API takes, and the API's latest version.
    assert b"Bearer " + sent[b"x-api-key"] == expected[b"authorization"]
    assert sent[b"anthropic-version"] == b"2023-06-01"
