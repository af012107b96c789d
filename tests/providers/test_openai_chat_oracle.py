"""Comparison of the Chat Completions codec with OpenAI's SDK.

The SDK's types validate encoded requests, and the SDK decodes the same responses.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import openai
import pytest
import respx
from hypothesis import HealthCheck, given, settings
from openai.types.chat.completion_create_params import (
    CompletionCreateParamsNonStreaming,
    CompletionCreateParamsStreaming,
)

from agent import Agent, errors
from agent.providers.base import ApiAddress
from agent.providers.compatible import DIALECTS, ROWS
from agent.providers.openai_chat import OPENAI, ChatCodec, Dialect
from agent.testing import LoopbackServer, Script
from agent.testing.rules import VendorState
from agent.testing.rules.openai_chat import ChatRules
from agent.types import (
    AgentRequest,
    AgentResponse,
    CodeExecution,
    Message,
    TextContent,
    ThinkingContent,
    UserLocation,
    WebSearch,
)
from tests.providers.sdk_oracles import Replay, build_answer, sdk_types
from tests.support.cases import examples, for_each
from tests.support.corpus import HAS_RECORDINGS, Exchange, chat_codec, exchanges, vendor
from tests.support.recorded_requests import read_request
from tests.support.recording_checks import Anything
from tests.support.values import agent_requests

RECORDED = [exchange for exchange in exchanges("openai.chat") if exchange.expected["kind"] == "message"]


REQUESTS = [exchange for exchange in exchanges("openai.chat") if exchange.request is not None]
REASONING_KEYS = ("reasoning_content", "reasoning", "reasoning_details", "extra_content", "thought_signature")
MANY = settings(
    max_examples=examples(250, 2_000), suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
SOME = settings(MANY, max_examples=50)


def broken_rules(body: dict[str, Any], request: AgentRequest, dialect: Dialect) -> Iterator[str]:
    """Check rules of the API and of other vendors that the SDK's types do not express."""
    elsewhere = dialect.name != OPENAI.name
    rules = ChatRules(max_call_id_length=128) if elsewhere else ChatRules()
    if elsewhere and body.get("tool_choice") == dialect.required_word:
        body = {**body, "tool_choice": "required"}  # the same, in a word of the vendor's own
    for violation in rules.check(body, VendorState(extra_keys=Anything() if elsewhere else ())):
        if not (elsewhere and OTHERS_DIFFER.search(violation.message)):
            yield violation.message
    messages: list[dict[str, Any]] = body["messages"]
    yield from _rules_of_calls(messages, dialect)
    if any(message["content"] in ("", []) for message in messages if message["role"] != "tool"):
        yield "an empty message, which the API takes beside calls"
    ours = {
        part.thinking
        for message in request.messages
        for part in message.parts
        if isinstance(part, ThinkingContent)
        and part.origin is not None
        and (part.origin.provider, part.origin.model) == (dialect.name, request.model)
    }
    if not ours and any(message.get(key, "").strip() for message in messages for key in REASONING_KEYS):
        yield "reasoning that was made elsewhere"
    for tool in body.get("tools") or ():
        if tool.get("function") is not None and tool["function"]["parameters"].get("type") != "object":
            yield "parameters that are no object"


OTHERS_DIFFER = re.compile(r"with this model|must contain the word 'json'")
"""Rules that only some vendors have: about models of the format's maker, and a word that vendors without schemas
require in the prompt, which the caller has to write."""


def _rules_of_calls(messages: list[dict[str, Any]], dialect: Dialect) -> Iterator[str]:
    before = None
    for message in messages:
        for call in message.get("tool_calls") or ():
            if not dialect.call_ids.form.fullmatch(call["id"]):
                yield f"the call's id {call['id']!r}"
        if message["role"] == "user" and before == "tool" and not dialect.user_after_tool:
            yield "a user right after a tool"
        before = message["role"]


def codec_of(dialect: Dialect) -> ChatCodec:
    return ChatCodec(dialect, ApiAddress("http://127.0.0.1", None))


CODEC = codec_of(OPENAI)


def judge(request: AgentRequest, dialect: Dialect = OPENAI) -> dict[str, Any]:
    """The body, after everybody has had a look at it."""
    codec = codec_of(dialect)
    body: dict[str, Any] = json.loads(codec.encode(request, stream=False).body)
    streamed = json.loads(codec.encode(request, stream=True).body)
    added = {"stream": True, **({"stream_options": {"include_usage": True}} if dialect.stream_usage else {})}
    assert streamed == {**body, **added}
    if dialect.name == OPENAI.name:
        sdk_types(CompletionCreateParamsNonStreaming).validate_python(body)
        sdk_types(CompletionCreateParamsStreaming).validate_python(streamed)
    assert list(broken_rules(body, request, dialect)) == []
    return body


@MANY
@given(agent_requests("gpt-5"))
def test_whatever_a_caller_asks_for_is_a_body_that_the_sdk_would_send(request: AgentRequest) -> None:
    judge(request)
    # And, by turns, one that keeps to the rules of every other vendor; to generate a request costs most here.
    dialect = ROWS[sum(map(ord, request.input or "")) % len(ROWS)]
    if not dialect.capabilities.tools:
        request = request.model_copy(update={"tools": (), "tool_choice": None})
    judge(request, dialect)


@SOME
@given(agent_requests("gpt-5.6"))
def test_marks_for_the_cache_are_where_the_sdk_has_them(request: AgentRequest) -> None:
    judge(request)


@for_each("exchange", REQUESTS, by=vendor)
def test_a_recorded_request_read_and_written_again_is_one_that_the_sdk_would_send(exchange: Exchange) -> None:
    body = exchange.request or {}
    request = read_request(exchange)
    # Gateways take more than OpenAI: their own keys are no business of OpenAI's types.
    known = CompletionCreateParamsNonStreaming.__annotations__.keys() - {"reasoning_effort"}
    ours = {key: value for key, value in request.extra.items() if key in known and key != "cache_control"}
    tools = [tool for tool in request.tools if not isinstance(tool, dict) or tool.get("type") == "custom"]
    try:
        judge(request.model_copy(update={"extra": ours, "tools": tools}), OPENAI)
    except errors.UnsupportedFeatureError:
        assert b'"file_data": "https://' in json.dumps(body).encode(), "only documents by address cannot be sent"


@for_each("exchange", REQUESTS, by=vendor)
def test_a_recorded_request_read_and_written_again_says_the_same_to_its_own_vendor(exchange: Exchange) -> None:
    body = exchange.request or {}
    dialect = chat_codec(exchange.provider).dialect
    request = read_request(exchange)
    written = judge(request, replace(dialect, name=exchange.provider) if dialect.name != OPENAI.name else dialect)
    assert summarize(written) == summarize(body)


def summarize(body: dict[str, Any]) -> list[tuple[str, Any]]:
    """Texts, calls and results of a body in their order, whichever way they are written."""
    found: list[tuple[str, Any]] = []
    for message in body["messages"]:
        role = "system" if message["role"] == "developer" else message["role"]
        content = message.get("content")
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content or ()
        for block in blocks:
            found.append((role, block["text"] if block["type"] == "text" else block["type"]))
        for call in message.get("tool_calls") or ():
            function = call.get("function") or {}
            found.append((function.get("name", "custom"), json.loads(function.get("arguments") or "{}")))
        if message.get("refusal"):
            found.append((role, message["refusal"]))
    return [entry for entry in found if entry != ("assistant", "OK") and entry[1] != ""]


def by_sdk(client: openai.OpenAI, *, streaming: bool) -> tuple[str, list[tuple[str, str]], int | None]:
    """Text, calls and total tokens as the SDK sees them, pieced together as its documentation says."""
    messages: Any = [{"role": "user", "content": "hi"}]
    if not streaming:
        completion = client.chat.completions.create(model="m", messages=messages)
        message: Any = completion.choices[0].message
        content: Any = message.content
        text = content if isinstance(content, str) else "".join(block.get("text", "") for block in content or ())
        calls = [
            (call.function.name, call.function.arguments)
            for call in message.tool_calls or ()
            if call.type == "function" or getattr(call, "function", None)
        ]
        return text, calls, completion.usage.total_tokens if completion.usage else None
    text, total, pieces = "", None, dict[int, list[str]]()
    for chunk in client.chat.completions.create(model="m", messages=messages, stream=True):
        total = chunk.usage.total_tokens if chunk.usage else total
        for choice in chunk.choices[:1]:
            if choice.index or choice.delta is None:
                continue
            delta: Any = choice.delta.content
            text += delta if isinstance(delta, str) else "".join(block.get("text", "") for block in delta or ())
            for call in choice.delta.tool_calls or ():
                name, arguments = pieces.setdefault(call.index, ["", ""])
                function = call.function
                pieces[call.index] = [
                    name or (function.name if function else "") or "",
                    arguments + ((function.arguments if function else "") or ""),
                ]
    return text, [(name, arguments) for name, arguments in pieces.values()], total


def test_every_recorded_answer_holds_what_the_sdk_finds_in_it() -> None:
    replay = Replay()
    compared = 0
    with (
        LoopbackServer(replay) as server,
        openai.OpenAI(base_url=server.url, api_key="sk-test", max_retries=0) as client,
    ):
        for exchange in RECORDED:
            if exchange.expected["tool_calls"] and "custom_input" in exchange.expected["tool_calls"][0]:
                continue  # custom tools have no function to compare
            replay.answer = build_answer(exchange)
            text, calls, total = by_sdk(client, streaming=exchange.stream is not None)
            ours = decode_recording(exchange)
            assert (ours.text or "") == text, exchange.name
            if not exchange.expected.get("legacy_function_call"):
                assert [(call.name, call.arguments) for call in ours.tool_calls] == [
                    (name, json.loads(arguments or "{}")) for name, arguments in calls
                ], exchange.name
            if total is not None:
                assert ours.usage is not None
                assert ours.usage.total_tokens >= total, exchange.name
            compared += 1
    assert compared >= (200 if HAS_RECORDINGS else 5)


def decode_recording(exchange: Exchange) -> AgentResponse:
    codec, request = chat_codec(exchange.provider), exchange.agent_request
    if exchange.stream is None:
        return codec.decode(exchange.reply, request)
    decoder = codec.decoder({}, request)
    decoder.feed(exchange.stream)
    decoder.end()
    return decoder.response()


def test_the_sdk_and_the_agent_send_the_same_to_the_same_place() -> None:
    script = Script("one", "two")
    with LoopbackServer(script) as server, openai.OpenAI(base_url=f"{server.url}/v1", api_key="sk-test") as client:
        client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}], temperature=0.5)
        Agent("openai-chat:m", base_url=f"{server.url}/v1", api_key="sk-test", temperature=0.5).complete("hi")
        theirs, ours = server.requests
    assert ours.url == theirs.url
    assert script.requests[0] == script.requests[1]
    for name in (b"authorization", b"content-type", b"host"):
        assert dict(ours.headers)[name] == dict(theirs.headers)[name]


def test_calls_can_be_mocked_at_the_wire_with_respx(httpx2_mock: respx.Router) -> None:
    answer = {"choices": [{"message": {"content": "mocked"}, "finish_reason": "stop"}]}
    route = httpx2_mock.post("https://api.openai.com/v1/chat/completions").mock(
        return_value=httpx.Response(200, json=answer)
    )
    agent = Agent("openai-chat:gpt-4o", api_key="sk-test")
    assert agent.complete("hi").text == "mocked"
    assert asyncio.run(agent.acomplete("hi")).text == "mocked"
    assert json.loads(route.calls[0].request.content)["model"] == "gpt-4o"


@pytest.mark.parametrize(
    ("model", "fields", "sent", "warning"),
    [
        ("gpt-5.6", {"n": 2}, {"n": 2}, None),
        ("gpt-4o", {"frequency_penalty": 0.5, "logit_bias": {"5": 1}}, {"frequency_penalty": 0.5}, None),
        (
            "o3",
            {"frequency_penalty": 0.5, "logit_bias": {"5": 1}},
            {"frequency_penalty": None},
            "frequency_penalty was",
        ),
        ("gpt-5.6", {"user": "u", "verbosity": "low"}, {"safety_identifier": "u", "verbosity": "low"}, None),
        ("gpt-5.6", {"service_tier": "flex"}, {"service_tier": "flex"}, None),
        ("gpt-5.6", {"store": True, "metadata": {"a": "b"}}, {"store": True, "metadata": {"a": "b"}}, None),
        ("gpt-5.6", {"metadata": {"a": "b"}}, {"metadata": None}, None),
        ("gpt-5.6", {"top_k": 3}, {"top_k": None}, "top_k was left out"),
        ("gpt-5.6", {"thinking_budget": 3000}, {"reasoning_effort": None}, "thinking_budget was left out"),
        ("gpt-5.6", {"cache": "short"}, {"prompt_cache_retention": None}, None),
        ("gpt-5.6", {"cache": "long"}, {"prompt_cache_options": None}, "cache='long' was left out"),
        ("gpt-5.1", {"cache": "long"}, {"prompt_cache_retention": "24h"}, None),
        ("gpt-4o", {"cache": "long"}, {"prompt_cache_retention": None}, "cache='long' was left out"),
        (
            "gpt-audio",
            {"modalities": ["text", "audio"], "extra": {"audio": {"voice": "alloy", "format": "wav"}}},
            {"modalities": ["text", "audio"]},
            None,
        ),
        (
            "gpt-4o-search-preview",
            {"tools": [WebSearch(context_size="low", user_location=UserLocation(city="Rome"), max_uses=1)]},
            {
                "web_search_options": {
                    "search_context_size": "low",
                    "user_location": {"type": "approximate", "approximate": {"city": "Rome"}},
                },
                "tools": None,
            },
            "max_uses of web_search was left out",
        ),
    ],
)
def test_settings_are_sent_in_the_form_of_the_sdk(
    model: str, fields: dict[str, Any], sent: dict[str, Any], warning: str | None
) -> None:
    request = AgentRequest.from_dict({"input": "Hi", "model": model, **fields})
    body = judge(request)
    assert {key: body.get(key) for key in sent} == sent
    warnings = CODEC.encode(request, stream=False).warnings
    assert bool(warnings) == (warning is not None)
    assert warning is None or warnings[0].startswith(warning)


@pytest.mark.parametrize(
    "fields",
    [
        {"modalities": ["audio"]},
        {"tools": [WebSearch()]},
        {"tools": [CodeExecution()]},
    ],
)
def test_what_the_api_lacks_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(errors.UnsupportedFeatureError) as caught:
        judge(AgentRequest(input="Hi", model="gpt-5.6", **fields))
    assert (caught.value.field in fields, bool(caught.value.fix)) == (True, True)


@pytest.mark.parametrize("dialect", ROWS, ids=lambda dialect: dialect.name)
def test_several_answers_are_requested_or_refused(dialect: Dialect) -> None:
    assert ("n" in encode_with(dialect, n=1)) == ("n" in dialect.optional)
    if "n" in dialect.optional:
        assert encode_with(dialect, n=3)["n"] == 3
    else:
        with pytest.raises(errors.UnsupportedFeatureError):
            encode_with(dialect, n=3)


@pytest.mark.parametrize("dialect", [OPENAI, *ROWS], ids=lambda dialect: dialect.name)
def test_cache_hints_are_honoured_or_warned_about(dialect: Dialect) -> None:
    part = TextContent(text="Hi", cache="short")
    for request in (AgentRequest(input="Hi", cache="short"), AgentRequest(messages=[Message.user([part])])):
        wire = codec_of(dialect).encode(request.model_copy(update={"model": "m"}), stream=False)
        honoured = dialect.caches or b"cache_control" in wire.body
        assert honoured != any(warning.startswith("cache was left out") for warning in wire.warnings)


def test_budgets_of_reasoning_are_sent_where_the_vendor_has_them() -> None:
    sent: dict[str, dict[str, Any]] = {
        "alibaba": {"enable_thinking": True, "thinking_budget": 3000},
        "openrouter": {"reasoning": {"max_tokens": 3000}},
    }
    for name, keys in sent.items():
        body = encode_with(DIALECTS[name], thinking="high", thinking_budget=3000)
        assert {key: body[key] for key in keys} == keys
    assert encode_with(DIALECTS["openrouter"], thinking_budget=0)["reasoning"] == {"enabled": False}


def encode_with(dialect: Dialect, **fields: Any) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(
        codec_of(dialect).encode(AgentRequest(input="Hi", model="m", **fields), stream=False).body
    )
    return body
