"""Comparison of the Responses codec with OpenAI's SDK.

The SDK's types validate encoded requests, and the SDK decodes the same responses.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import openai
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from openai.types.responses.input_token_count_params import InputTokenCountParams
from openai.types.responses.response_create_params import (
    ResponseCreateParamsNonStreaming,
    ResponseCreateParamsStreaming,
)

from agent import Agent
from agent.providers.base import ApiAddress
from agent.providers.openai_responses import ResponsesCodec
from agent.testing import LoopbackServer
from agent.testing.rules import VendorState
from agent.testing.rules.openai_responses import ResponsesRules
from agent.types import (
    AgentRequest,
    Message,
    Origin,
    Part,
    RefusalContent,
    TextContent,
    ThinkingContent,
    ToolCall,
    VendorContent,
)
from tests.providers.sdk_oracles import Replay, build_answer, sdk_types
from tests.support.cases import examples, for_each
from tests.support.corpus import HAS_RECORDINGS, Exchange, exchanges, vendor
from tests.support.recorded_requests import read_request
from tests.support.recording_checks import collect_own_text, decode_recording
from tests.support.values import agent_requests

RECORDED = exchanges("openai.responses")
REQUESTS = [
    exchange
    for exchange in RECORDED
    if exchange.request is not None and exchange.request.get("temperature") != -1  # our types refuse that one, too
]
ANSWERS = [exchange for exchange in RECORDED if exchange.expected["kind"] == "message"]
CODEC = ResponsesCodec(ApiAddress("", None), name="openai")


def broken_rules(body: dict[str, Any], request: AgentRequest) -> Iterator[str]:
    """Check rules of the API that the SDK's types do not express, and our own guarantees."""
    home = Origin(provider="openai", api="openai-responses", model=request.model or "")
    stored = {request.extra["previous_response_id"]} if "previous_response_id" in request.extra else set()
    known = VendorState(collect_own_text(request, home) | stored)
    for violation in ResponsesRules().check(body, known):
        if not (violation.field or "").startswith(tuple(request.extra)):  # the caller's own words are sent as they are
            yield violation.message
    items: list[dict[str, Any]] = body.get("input") or []
    waiting: set[str] = set()
    for item in items:
        content, kind = item.get("content"), item.get("type")
        if content in ("", []) or any("" in block.values() for block in content or () if isinstance(block, dict)):
            yield "an empty message or block, which the API takes from assistants"
        if kind in ("function_call", "custom_tool_call"):
            waiting.add(item["call_id"])
        elif kind in ("function_call_output", "custom_tool_call_output"):
            waiting.discard(item["call_id"])
        elif waiting and item.get("role") in ("user", "system") and "previous_response_id" not in body:
            yield "a call was not answered before the conversation went on"
        if "call_id" in item and not re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", item["call_id"] or "server"):
            yield f"the call's id {item['call_id']!r}"
    for tool in body.get("tools") or ():
        if tool.get("type") == "function" and "tools" not in request.extra and "parameters" not in tool:
            yield "a function without parameters"


SAME_ID_TWICE = ("xai",)
"""Vendors whose own answers have several items of one id."""


def judge(request: AgentRequest, *, twice: bool = False) -> dict[str, Any]:
    """The body, after everybody has had a look at it."""
    body: dict[str, Any] = json.loads(CODEC.encode(request, stream=False).body)
    # The API takes sealed reasoning without its id, as recordings show; the SDK's types do not.
    named = [{"id": "rs_"} | item if item.get("type") == "reasoning" else item for item in body.get("input") or ()]
    sdk_types(ResponseCreateParamsNonStreaming).validate_python({**body, "input": named})
    streamed = json.loads(CODEC.encode(request, stream=True).body)
    assert streamed == {**body, "stream": True}
    broken = [rule for rule in broken_rules(body, request) if not (twice and rule.startswith("Duplicate item"))]
    assert broken == []
    return body


@settings(max_examples=examples(200, 2_000), suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(agent_requests("gpt-5"))
def test_whatever_a_caller_asks_for_is_a_body_that_the_sdk_would_send(request: AgentRequest) -> None:
    judge(request)


HOME = Origin(provider="openai", api="openai-responses", model="gpt-5")
PROGRAM = {"type": "program", "call_id": "p", "code": "", "fingerprint": ""}
CUSTOM: dict[str, Any] = {"arguments": {"input": "x"}, "provider_data": {"type": "custom"}}


def mark_as_own(kind: str, n: int) -> Part:
    match kind:
        case "sealed" | "unsealed":
            return ThinkingContent(
                thinking="", id=f"rs_{n}", encrypted_content="S" if kind == "sealed" else "", origin=HOME
            )
        case "text":
            return TextContent(text="a", provider_data={"id": f"msg_{n}"}, origin=HOME)
        case "refusal":
            return RefusalContent(refusal="r", provider_data={"id": f"msg_{n}"}, origin=HOME)
        case "call" | "custom":
            facts = CUSTOM if kind == "custom" else {}
            return ToolCall(id=f"call_{n}", name="f", item_id=f"fc_{n}", origin=HOME, **facts)
        case "block":
            return VendorContent(kind="program", provider_data={**PROGRAM, "id": f"cm_{n}"}, origin=HOME)
        case _:
            return TextContent(text=kind)


kinds = st.sampled_from(("sealed", "unsealed", "text", "refusal", "call", "custom", "block", "edited", ""))
turns_at_home = st.builds(
    lambda kinds, start: Message.assistant([mark_as_own(kind, start + n) for n, kind in enumerate(kinds)]),
    st.lists(kinds, max_size=6),
    st.sampled_from((0, 10)),
)


@settings(max_examples=examples(150, 500), suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(turns_at_home, max_size=3))
def test_turns_of_the_model_itself_go_back_in_order_however_they_were_edited(turns: list[Message]) -> None:
    body = judge(AgentRequest(model="gpt-5", messages=turns, input="go on"))
    ids = [item["id"] for item in body["input"] if item.get("type") == "reasoning"]
    made = iter([part.id for turn in turns for part in turn.parts if isinstance(part, ThinkingContent)])
    assert all(id in made for id in ids), "in the order in which they were made"


@settings(max_examples=examples(60, 200), suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(agent_requests("gpt-5.6"))
def test_marks_for_the_cache_are_where_the_sdk_has_them(request: AgentRequest) -> None:
    judge(request)


@settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(agent_requests("gpt-5"))
def test_streams_and_counts_are_asked_for_in_the_sdks_words(request: AgentRequest) -> None:
    streamed = json.loads(CODEC.encode(request, stream=True).body)
    sdk_types(ResponseCreateParamsStreaming).validate_python(streamed)
    sdk_types(InputTokenCountParams).validate_python(json.loads(CODEC.encode_count(request).body))


@for_each("exchange", REQUESTS, by=vendor)
def test_a_recorded_request_read_and_written_again_is_one_that_the_sdk_would_send(exchange: Exchange) -> None:
    body = exchange.request or {}
    request = read_request(exchange)
    # Gateways take more than OpenAI: their own keys are no business of OpenAI's types.
    known = ResponseCreateParamsNonStreaming.__annotations__.keys()
    ours = {key: value for key, value in request.extra.items() if key in known}
    written = judge(request.model_copy(update={"extra": ours}), twice=exchange.provider in SAME_ID_TWICE)
    assert summarize(written) == summarize(body)


def summarize(body: dict[str, Any]) -> tuple[list[str], list[tuple[str, Any]], list[Any]]:
    """Texts, calls and outputs of a body, whichever way they are written."""
    given = body.get("input") or []
    items = given if isinstance(given, list) else [{"content": given}]
    texts = [body["instructions"]] if body.get("instructions") else []
    calls: list[tuple[str, Any]] = []
    outputs: list[Any] = []
    for item in items:
        content = item.get("content") if item.get("type") != "reasoning" else None
        blocks = [{"text": content}] if isinstance(content, str) else content or ()
        texts.extend(block["text"] for block in blocks if block.get("text"))
        if item.get("type") == "function_call":
            calls.append((item["name"], json.loads(item["arguments"])))
        if item.get("type") == "function_call_output":
            output = item["output"]
            outputs.append(output if isinstance(output, str) else [block["type"] for block in output])
    return texts, calls, outputs


def by_sdk(client: openai.OpenAI, *, streaming: bool) -> tuple[str, Any]:
    """The text, pieced together from deltas where there are any, and the response as the SDK sees them."""
    if not streaming:
        response = client.responses.create(model="m", input="hi")
        return response.output_text, response
    text, last = "", None
    for event in client.responses.create(model="m", input="hi", stream=True):
        if event.type == "response.output_text.delta":
            text += event.delta
        elif event.type in ("response.completed", "response.incomplete"):
            last = event.response
    return text, last


def test_every_recorded_answer_holds_what_the_sdk_finds_in_it() -> None:
    replay = Replay()
    with (
        LoopbackServer(replay) as server,
        openai.OpenAI(base_url=server.url, api_key="sk-test", max_retries=0) as client,
    ):
        for exchange in ANSWERS:
            replay.answer = build_answer(exchange)
            text, theirs = by_sdk(client, streaming=exchange.stream is not None)
            ours = decode_recording(exchange)
            assert (ours.text or "") == text, exchange.name
            assert [(call.name, call.arguments, call.id, call.item_id) for call in ours.tool_calls] == [
                (
                    item.name,
                    json.loads(item.arguments or "{}") if item.type == "function_call" else {"input": item.input},
                    item.call_id,
                    item.id,
                )
                for item in theirs.output
                if item.type in ("function_call", "custom_tool_call")
            ], exchange.name
            assert theirs.status == ("incomplete" if ours.stop_reason == "length" else "completed"), exchange.name
            assert (ours.id, ours.model) == (theirs.id, theirs.model), exchange.name
            assert ours.usage is not None
            assert theirs.usage is not None
            assert ours.usage.prompt_tokens == theirs.usage.input_tokens, exchange.name
            assert ours.usage.total_tokens == theirs.usage.total_tokens, exchange.name
            assert ours.usage.completion_tokens == theirs.usage.output_tokens, exchange.name
            kinds = [item.type for item in theirs.output if item.type not in KNOWN]
            assert [part.kind for part in ours.content if part.type == "vendor"] == kinds, exchange.name
    assert len(ANSWERS) == 127 or not HAS_RECORDINGS


def test_the_sdk_and_the_agent_send_the_same_to_the_same_place_and_read_the_same() -> None:
    replay = Replay()
    with (
        LoopbackServer(replay) as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="sk-test", max_retries=0) as client,
    ):
        agent = Agent("openai-responses:m", base_url=f"{server.url}/v1", api_key="sk-test", temperature=0.5)
        for exchange in (ANSWERS[0], next(found for found in ANSWERS if found.stream is None)):
            replay.answer = build_answer(exchange)
            streaming = exchange.stream is not None
            text, _ = by_sdk(client, streaming=streaming)
            ours = agent.stream("hi").collect() if streaming else agent.complete("hi")
            assert ours.text == text
            theirs, own = server.requests[-2:]
            assert own.url == theirs.url
            for name in (b"authorization", b"content-type", b"host"):
                assert dict(own.headers)[name] == dict(theirs.headers)[name]


KNOWN = ("message", "reasoning", "function_call", "custom_tool_call")
