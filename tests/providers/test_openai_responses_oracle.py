"""Comparison of the Responses codec with OpenAI's SDK.

The SDK's types validate encoded requests, and the SDK decodes the same responses.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from openai.types.responses.input_token_count_params import InputTokenCountParams
from openai.types.responses.response_create_params import (
    ResponseCreateParamsNonStreaming,
    ResponseCreateParamsStreaming,
)

from agent import Agent, errors
from agent.engine.wire import Reply
from agent.providers.base import ApiAddress
from agent.providers.openai_responses import ResponsesCodec
from agent.providers.openai_responses.fields import LONG_CACHE, RESULTS
from agent.providers.openai_responses.messages import COMPUTER_TEXT, FAILED, NO_SCREENSHOT
from agent.testing import LoopbackServer
from agent.testing.rules import VendorState
from agent.testing.rules.openai_responses import ResponsesRules
from agent.types import (
    AgentRequest,
    BuiltinTool,
    CodeExecution,
    ComputerUse,
    ContentPart,
    DocumentContent,
    FileContent,
    FileSearch,
    ImageContent,
    ImageGeneration,
    McpConnector,
    Message,
    Origin,
    Part,
    RefusalContent,
    Role,
    SearchResultContent,
    TextContent,
    ThinkingContent,
    ToolCall,
    ToolResult,
    ToolSpec,
    UserLocation,
    VendorContent,
    WebSearch,
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
    stored = {request.extra.get("previous_response_id", request.previous_response_id) or ""}
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


NEW, OLD, O3 = "gpt-5.6", "gpt-4o", "o3"


def encode_checked(model: str = NEW, **fields: Any) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return a body that the SDK's types accept, and the warnings."""
    request = AgentRequest(**{"input": "Hi", **fields}, model=model)
    return judge(request), CODEC.encode(request, stream=False).warnings


@pytest.mark.parametrize(
    ("model", "fields", "sent", "warning"),
    [
        (NEW, {"verbosity": "low"}, {"text": {"verbosity": "low"}}, None),
        (OLD, {"verbosity": "low"}, {"text": None}, "verbosity was left out: gpt-4o"),
        (O3, {"verbosity": "low"}, {"text": None}, "verbosity was left out: o3"),
        (NEW, {"store": True}, {"store": True}, None),
        (NEW, {"store": False}, {"store": False}, None),
        (NEW, {}, {"store": False}, None),
        (NEW, {"background": True}, {"background": True, "store": None}, None),
        (NEW, {"background": True, "store": True}, {"background": True, "store": True}, None),
        (NEW, {"previous_response_id": "resp_1"}, {"previous_response_id": "resp_1", "store": None}, None),
        (NEW, {"conversation": "conv_1"}, {"conversation": "conv_1", "store": None}, None),
        (NEW, {"conversation": "conv_1", "store": False}, {"conversation": "conv_1", "store": False}, None),
        (NEW, {"n": 1, "modalities": ["text"]}, {}, None),
        (NEW, {"modalities": ["text", "image"]}, {}, "image was left out"),
        (NEW, {"thinking_budget": 5}, {"reasoning": None}, "thinking_budget was left out"),
        (NEW, {"service_tier": "flex", "user": "u1"}, {"service_tier": "flex", "safety_identifier": "u1"}, None),
        (NEW, {"cache": "short"}, {"prompt_cache_options": None}, None),
        (NEW, {"cache": "long"}, {"prompt_cache_options": {"ttl": "12h"}}, None),
        ("gpt-5", {"cache": "long"}, {"prompt_cache_retention": "24h"}, None),
        (OLD, {"cache": "long"}, {}, "cache='long' was left out"),
    ],
)
def test_settings_are_sent_in_the_form_of_the_sdk(
    model: str, fields: dict[str, Any], sent: dict[str, Any], warning: str | None
) -> None:
    body, warnings = encode_checked(model, **fields)
    assert {key: body.get(key) for key in sent} == sent
    assert len(warnings) == (warning is not None)
    assert warning is None or warning in warnings[0]


def test_the_verbosity_and_the_schema_share_an_object() -> None:
    body, _ = encode_checked(verbosity="low", output_schema={"type": "object"})
    assert body["text"].keys() == {"verbosity", "format"}


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"n": 2}, "n"),
        ({"background": True, "store": False}, "store"),
        ({"conversation": "conv_1", "previous_response_id": "resp_1"}, "conversation"),
        ({"tools": [FileSearch(stores=["vs_1"], filters="year = 2026")]}, "tools"),
    ],
)
def test_what_the_api_cannot_do_is_refused(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(errors.UnsupportedFeatureError) as caught:
        CODEC.encode(AgentRequest(input="Hi", model=NEW, **fields), stream=False)
    assert caught.value.field == field
    assert caught.value.fix


def test_a_stored_response_is_continued_with_results_alone() -> None:
    results = [Message(Role.TOOL, [ToolResult(tool_call_id="call_1", content="21 °C")])]
    for stored in ({"previous_response_id": "x"}, {"conversation": "x"}):
        request = AgentRequest(messages=results, model=NEW).model_copy(update=stored)
        body = json.loads(CODEC.encode(request, stream=False).body)
        assert body["input"] == [{"type": "function_call_output", "call_id": "call_1", "output": "21 °C"}]


def test_a_long_cache_of_any_part_is_that_of_the_prompt() -> None:
    part = TextContent(text="Hi", cache="long")
    result = ToolResult(tool_call_id="call_1", content="ok", cache="long")
    called = [Message.user("Hi"), Message.assistant([ToolCall(id="call_1", name="f")])]
    for messages in (
        [Message.user([part])],
        [Message.user("Hi"), Message.assistant([part]), Message.user("Hi")],
        [*called, Message(Role.TOOL, [result])],
    ):
        assert encode_checked("gpt-5", messages=messages, input=None)[0]["prompt_cache_retention"] == "24h"
        assert encode_checked(OLD, messages=messages, input=None)[1] == (LONG_CACHE,)
    tool = ToolSpec(name="f", cache="long")
    assert encode_checked("gpt-5", tools=[tool])[0]["prompt_cache_retention"] == "24h"


@pytest.mark.parametrize(
    ("part", "block"),
    [
        (FileContent(file_id="file_1"), {"type": "input_file", "file_id": "file_1"}),
        (
            FileContent(file_id="file_1", media_type="image/png"),
            {"type": "input_image", "file_id": "file_1", "detail": "auto"},
        ),
        (
            SearchResultContent(source="https://a.b", title="T", content="One."),
            {"type": "input_text", "text": "T (https://a.b):\nOne."},
        ),
        (DocumentContent(url="https://a.b/c.pdf"), {"type": "input_file", "file_url": "https://a.b/c.pdf"}),
    ],
)
def test_content_is_sent_in_the_form_of_the_sdk(part: ContentPart, block: dict[str, Any]) -> None:
    body, warnings = encode_checked(messages=[Message.user([part, TextContent(text="Hi")])], input=None)
    assert body["input"][0]["content"][0] == block
    assert warnings == ()


@pytest.mark.parametrize(
    ("tool", "sent", "warning"),
    [
        (
            WebSearch(allowed_domains=["a.b"], user_location=UserLocation(city="Rome"), context_size="low"),
            {
                "type": "web_search",
                "filters": {"allowed_domains": ["a.b"]},
                "user_location": {"type": "approximate", "city": "Rome"},
                "search_context_size": "low",
            },
            None,
        ),
        (
            WebSearch(max_uses=2, blocked_domains=["a.b"], extra={"external_web_access": False}),
            {"type": "web_search", "external_web_access": False},
            "blocked_domains, max_uses of web_search was left out: openai does not support it",
        ),
        (CodeExecution(), {"type": "code_interpreter", "container": {"type": "auto"}}, None),
        (
            CodeExecution(file_ids=["f1"]),
            {"type": "code_interpreter", "container": {"type": "auto", "file_ids": ["f1"]}},
            None,
        ),
        (
            CodeExecution(container="cntr_1", file_ids=["f1"]),
            {"type": "code_interpreter", "container": "cntr_1"},
            "file_ids of code_execution was left out: openai does not support it",
        ),
        (
            FileSearch(stores=["vs_1"], max_results=3, filters={"type": "eq", "key": "year", "value": 2026}),
            {
                "type": "file_search",
                "vector_store_ids": ["vs_1"],
                "max_num_results": 3,
                "filters": {"type": "eq", "key": "year", "value": 2026},
            },
            None,
        ),
        (ComputerUse(), {"type": "computer"}, None),
        (
            ComputerUse(width=640, environment="mac"),
            {"type": "computer"},
            "environment, width of computer_use was left out: openai does not support it",
        ),
        (
            McpConnector(
                label="docs", url="https://mcp.test", token="s3cret", allowed_tools=["a"], require_approval="never"
            ),
            {
                "type": "mcp",
                "server_label": "docs",
                "server_url": "https://mcp.test",
                "authorization": "s3cret",
                "allowed_tools": ["a"],
                "require_approval": "never",
            },
            None,
        ),
        (
            McpConnector(label="mail", connector_id="connector_gmail"),
            {"type": "mcp", "server_label": "mail", "connector_id": "connector_gmail"},
            None,
        ),
        (
            ImageGeneration(
                model="gpt-image-2", size="1024x1024", quality="low", background="opaque", partial_images=2
            ),
            {
                "type": "image_generation",
                "model": "gpt-image-2",
                "size": "1024x1024",
                "quality": "low",
                "background": "opaque",
                "partial_images": 2,
            },
            None,
        ),
        (ImageGeneration(format="webp"), {"type": "image_generation", "output_format": "webp"}, None),
    ],
)
def test_built_in_tools_are_sent_in_the_form_of_the_sdk(
    tool: BuiltinTool, sent: dict[str, Any], warning: str | None
) -> None:
    body, warnings = encode_checked(tools=[tool])
    assert body["tools"] == [sent]
    assert warnings == (() if warning is None else (warning,))
    assert any(name.startswith(sent["type"]) for name in body["include"]) == (sent["type"] in RESULTS)
    if isinstance(tool, WebSearch):
        return  # the API has no choice of its own for it
    forced, _ = encode_checked(tools=[tool], tool_choice=tool.name)
    kind = {"type": sent["type"]}
    assert forced["tool_choice"] == ({**kind, "server_label": tool.name} if sent["type"] == "mcp" else kind)


def test_the_first_computer_tool_is_for_its_own_model() -> None:
    body, warnings = encode_checked("computer-use-preview", tools=[ComputerUse(width=640, height=480)])
    size = {"display_width": 640, "display_height": 480}
    assert body["tools"] == [{"type": "computer_use_preview", "environment": "browser", **size}]
    assert warnings == ()


CHECK = {"id": "sc_1", "code": "malicious_instructions", "message": "Careful."}
CLICK = {"type": "click", "button": "left", "x": 1, "y": 2}


@pytest.mark.parametrize("actions", [{"actions": [CLICK, {"type": "screenshot"}]}, {"action": CLICK}])
@pytest.mark.parametrize("checks", [[], [CHECK]])
def test_computer_calls_are_tool_calls_and_screenshots_their_results(
    actions: dict[str, Any], checks: list[dict[str, str]]
) -> None:
    item = {"type": "computer_call", "id": "cu_1", "call_id": "call_1", "status": "completed", **actions}
    item["pending_safety_checks"] = checks
    body = {"id": "resp_1", "model": NEW, "status": "completed", "output": [item], "usage": {"input_tokens": 1}}
    request = AgentRequest(input="Hi", model=NEW, tools=[ComputerUse()])
    response = CODEC.decode(Reply(200, {}, json.dumps(body).encode()), request)
    (call,) = response.tool_calls
    assert (call.id, call.name, call.item_id) == ("call_1", "computer", "cu_1")
    assert call.arguments == {**actions, **({"pending_safety_checks": checks} if checks else {})}
    assert response.stop_reason == "tool_calls"
    decoder = CODEC.decoder({}, request)
    decoder.feed(b"data: %b\n\n" % json.dumps({"type": "response.completed", "response": body}).encode())
    assert decoder.response() == response

    def answer(result: ToolResult) -> tuple[list[dict[str, Any]], tuple[str, ...]]:
        messages = [Message.user("Hi"), response.message, Message(Role.TOOL, [result])]
        sent, warnings = encode_checked(messages=messages, input=None, tools=[ComputerUse()])
        assert sent["input"][1] == item
        return sent["input"][2:], warnings

    shown = ImageContent(image_data=b"PNG", media_type="image/png")
    screenshot = {"type": "computer_screenshot", "image_url": "data:image/png;base64,UE5H"}
    output = {"type": "computer_call_output", "call_id": "call_1", "output": screenshot}
    acknowledged = {"acknowledged_safety_checks": checks} if checks else {}
    assert answer(ToolResult(tool_call_id="call_1", content=shown)) == ([{**output, **acknowledged}], ())
    file = {**output, **acknowledged, "output": {"type": "computer_screenshot", "file_id": "file_1"}}
    assert answer(ToolResult(tool_call_id="call_1", content=FileContent(file_id="file_1"))) == ([file], ())
    failed, warnings = answer(ToolResult(tool_call_id="call_1", content="No display.", is_error=True))
    assert failed[0] == {**output, "output": {"type": "computer_screenshot", "image_url": NO_SCREENSHOT}}
    assert [block["text"] for block in failed[1]["content"]] == [FAILED, "No display."]
    assert warnings == (COMPUTER_TEXT,)


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
            others = [part for part in ours.content if part.type in ("vendor", "image")]
            assert [part.kind if part.type == "vendor" else IMAGE for part in others] == kinds, exchange.name
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


IMAGE = "image_generation_call"
KNOWN = ("message", "reasoning", "function_call", "custom_tool_call")
