"""The official SDK as judge: bodies satisfy its types, and it finds in answers what we find."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from google import genai
from google.genai import types
from google.oauth2.credentials import Credentials
from hypothesis import HealthCheck, given, settings
from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel

from agent import Agent, errors
from agent.engine.wire import Answer, Reply
from agent.providers.base import ApiAddress
from agent.providers.gemini import VERTEX, GeminiCodec
from agent.providers.gemini.models import SKIP_SIGNATURE, features_of
from agent.testing import LoopbackServer
from agent.testing.rules import VendorState
from agent.testing.rules.gemini import GeminiRules, normalize_keys
from agent.types import (
    AgentRequest,
    AgentResponse,
    BuiltinTool,
    CodeExecution,
    ComputerUse,
    ContentPart,
    FileContent,
    FileSearch,
    ImageGeneration,
    McpConnector,
    Message,
    Origin,
    Role,
    SearchResultContent,
    TextContent,
    ToolCall,
    ToolResult,
    ToolSpec,
    VideoContent,
    WebSearch,
)
from tests.providers.sdk_oracles import Replay, build_answer
from tests.support.cases import examples, for_each
from tests.support.corpus import HAS_RECORDINGS, Exchange, exchanges, vendor
from tests.support.recorded_requests import read_request
from tests.support.recording_checks import collect_own_text, decode_recording
from tests.support.values import agent_requests

RECORDED = exchanges("gemini.generate")
REQUESTS = [exchange for exchange in RECORDED if exchange.request is not None]
ANSWERS = [exchange for exchange in RECORDED if exchange.expected["kind"] == "message"]
CODEC = GeminiCodec(ApiAddress("http://127.0.0.1", None))


class Generation(types.GenerationConfig):
    """The settings of a generation. The SDK has that of images in another of its types."""

    image_config: types.ImageConfig | None = None


class Body(BaseModel):
    """The REST body, made of the SDK's own types, which forbid unknown keys and read base64."""

    model_config = ConfigDict(alias_generator=to_camel, extra="forbid", val_json_bytes="base64")

    contents: list[types.Content]
    system_instruction: types.Content | None = None
    tools: list[types.Tool] | None = None
    tool_config: types.ToolConfig | None = None
    generation_config: Generation | None = None
    safety_settings: list[types.SafetySetting] | None = None
    cached_content: str | None = None
    labels: dict[str, str] | None = None
    model_armor_config: types.ModelArmorConfig | None = None
    service_tier: types.ServiceTier | None = None
    store: bool | None = None


def encode_checked(request: AgentRequest, codec: GeminiCodec = CODEC) -> dict[str, Any]:
    """The body of a request, which satisfies the SDK's types and the API's rules."""
    body: dict[str, Any] = json.loads(codec.encode(request, stream=False).body)
    Body.model_validate_json(json.dumps(with_valid_signatures(body)))
    check_rules(body, request, codec.name)
    return body


def with_valid_signatures(value: Any) -> Any:
    """Generated signatures are no base64, which real ones are."""
    if isinstance(value, list):
        return [with_valid_signatures(item) for item in value]
    if isinstance(value, dict):
        return {
            key: "c2ln" if key == "thoughtSignature" else with_valid_signatures(item) for key, item in value.items()
        }
    return value


def check_rules(body: dict[str, Any], request: AgentRequest, provider: str) -> None:
    """Check rules of the API that its types do not express."""
    model = request.model or ""
    seals = collect_own_text(request, Origin(provider=provider, api="gemini", model=model))
    broken = GeminiRules().check(body, VendorState(seals), model=model)
    assert [violation.message for violation in broken] == []
    contents = body["contents"]
    assert [content["role"] for content in contents] == [("user", "model")[n % 2] for n in range(len(contents))]
    waiting: list[tuple[str | None, str]] = []
    for content in contents:
        parts = content["parts"]
        responses = [part["functionResponse"] for part in parts if "functionResponse" in part]
        assert [(response.get("id"), response["name"]) for response in responses] == waiting, "in the order of calls"
        assert all("functionResponse" in part for part in parts[: len(responses)]), "responses come first"
        calls = [part for part in parts if "functionCall" in part]
        waiting = [(part["functionCall"].get("id"), part["functionCall"]["name"]) for part in calls]
        if calls and features_of(model).signed_calls:
            assert "thoughtSignature" in calls[0], "in older turns, too"
        for part in parts:
            assert part.get("text") != "" or "thoughtSignature" in part, "text is empty only where it is signed"
            assert part.get("thoughtSignature") != SKIP_SIGNATURE or "functionCall" in part
            assert len(part.keys() - {"thought", "thoughtSignature", "videoMetadata"}) == 1
            assert isinstance(part.get("functionCall", {"args": {}})["args"], dict)
    assert all(part["text"] for part in (body.get("systemInstruction") or {}).get("parts", ()))


def function_names(body: dict[str, Any]) -> list[str]:
    return [function["name"] for tool in body.get("tools") or () for function in tool.get("functionDeclarations") or ()]


@for_each("exchange", REQUESTS, by=vendor)
def test_a_recorded_request_goes_out_again_and_says_the_same(exchange: Exchange) -> None:
    recorded = exchange.request or {}
    request = read_request(exchange)
    sent, meant = encode_checked(request), normalize_keys(recorded)
    assert texts_in(sent["contents"]) == texts_in(meant["contents"])
    for key in ("functionCall", "thoughtSignature"):
        assert values_of(sent["contents"], key) == values_of(meant["contents"], key)
    responses = values_of(sent["contents"], "functionResponse"), values_of(meant["contents"], "functionResponse")
    assert [(one["name"], one.get("id")) for one in responses[0]] == [
        (one["name"], one.get("id")) for one in responses[1]
    ]
    assert function_names(sent) == function_names(meant)
    for key in ("safetySettings", "cachedContent", "modelArmorConfig"):
        assert normalize_keys(sent).get(key) == meant.get(key)
    settings = meant.get("generationConfig") or {}
    for key in ("temperature", "maxOutputTokens", "stopSequences", "seed", "responseModalities", "responseMimeType"):
        if key != "temperature" or "temperature" in (sent.get("generationConfig") or {}):
            assert (sent.get("generationConfig") or {}).get(key) == settings.get(key)


def texts_in(contents: list[dict[str, Any]]) -> list[str]:
    return [part["text"] for content in contents for part in content["parts"] if part.get("text")]


def values_of(contents: list[dict[str, Any]], key: str) -> list[Any]:
    found = [part[key] for content in contents for part in content["parts"] if key in part]
    return [{"args": {}, **value} if key == "functionCall" else value for value in found]


@settings(max_examples=examples(200, 2_000), suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(agent_requests("gemini-2.5-pro"))
def test_whatever_is_asked_becomes_a_body_that_the_sdks_types_allow(request: AgentRequest) -> None:
    if request.tools and request.output_schema is not None:
        with pytest.raises(errors.UnsupportedFeatureError, match="supports none together with tools"):
            encode_checked(request)
        request = request.model_copy(update={"output_schema": None})
    encode_checked(request)


@settings(max_examples=examples(60, 300), suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(agent_requests("gemini-3-pro-preview"))
def test_gemini_3_takes_everything_that_can_be_asked(request: AgentRequest) -> None:
    encode_checked(request)
    vertex = GeminiCodec(ApiAddress("http://127.0.0.1", None), name="vertex", platform=VERTEX)
    body = encode_checked(request, vertex)
    assert set(body.get("labels") or {}) <= set(request.metadata)


OLD, NEW = "gemini-2.5-flash-lite", "gemini-3.5-flash"


@pytest.mark.parametrize(
    ("model", "fields", "sent", "warning"),
    [
        (OLD, {"thinking_budget": 5000}, {"thinkingConfig": {"thinkingBudget": 5000, "includeThoughts": True}}, None),
        (OLD, {"thinking_budget": 5}, {"thinkingConfig": {"thinkingBudget": 512, "includeThoughts": True}}, "as 512"),
        (OLD, {"thinking_budget": 0}, {"thinkingConfig": {"thinkingBudget": 0}}, None),
        (
            OLD,
            {"thinking": "high", "thinking_budget": 600},
            {"thinkingConfig": {"thinkingBudget": 600, "includeThoughts": True}},
            None,
        ),
        (OLD, {"thinking": "off", "thinking_budget": 600}, {"thinkingConfig": {"thinkingBudget": 0}}, "is off"),
        (
            NEW,
            {"thinking_budget": 5000},
            {"thinkingConfig": {"thinkingLevel": "MEDIUM", "includeThoughts": True}},
            "thinking='medium'",
        ),
        (
            NEW,
            {"thinking": "low", "thinking_budget": 5000},
            {"thinkingConfig": {"thinkingLevel": "LOW", "includeThoughts": True}},
            "levels only",
        ),
        ("gemini-2.0-flash", {"thinking_budget": 5000}, {}, "does not support thinking"),
        (NEW, {"modalities": ["text", "image"]}, {"responseModalities": ["TEXT", "IMAGE"]}, None),
        (NEW, {"service_tier": "flex", "store": False}, {"serviceTier": "flex", "store": False}, None),
        (NEW, {"cached_content": "cachedContents/1"}, {"cachedContent": "cachedContents/1"}, None),
        (NEW, {"cache": "short"}, {}, None),
        (NEW, {"cache": "long"}, {}, "cached_content"),
        ("gemini-2.0-flash", {"cache": "short"}, {}, "cached_content"),
        (NEW, {"input": None, "messages": [Message.user([TextContent(text="Hi", cache="long")])]}, {}, "cache='long'"),
        (NEW, {"tools": [ToolSpec(name="look", cache="long")]}, {}, "cache='long'"),
    ],
)
def test_settings_are_sent_in_the_form_of_the_sdk(
    model: str, fields: dict[str, Any], sent: dict[str, Any], warning: str | None
) -> None:
    request = AgentRequest(**{"input": "Hi", **fields}, model=model)
    body = encode_checked(request)
    settings = {**body, **body.get("generationConfig", {})}
    assert {key: settings.get(key) for key in sent} == sent
    warnings = CODEC.encode(request, stream=False).warnings
    assert len(warnings) == (warning is not None)
    assert warning is None or warning in warnings[0]


@pytest.mark.parametrize(
    ("part", "sent"),
    [
        (
            VideoContent(data=b"x", start=1.5, end=60, fps=0.5),
            {
                "inlineData": {"mimeType": "video/mp4", "data": "eA=="},
                "videoMetadata": {"startOffset": "1.5s", "endOffset": "60s", "fps": 0.5},
            },
        ),
        (
            VideoContent(url="https://a.b/c.webm"),
            {"fileData": {"fileUri": "https://a.b/c.webm", "mimeType": "video/webm"}},
        ),
        (VideoContent(url="https://youtu.be/x"), {"fileData": {"fileUri": "https://youtu.be/x"}}),
        (
            FileContent(file_id="files/abc"),
            {"fileData": {"fileUri": "https://generativelanguage.googleapis.com/v1beta/files/abc"}},
        ),
        (
            FileContent(file_id="gs://b/c", media_type="video/mp4"),
            {"fileData": {"fileUri": "gs://b/c", "mimeType": "video/mp4"}},
        ),
        (
            SearchResultContent(source="https://a.b", title="T", content="One."),
            {"text": "T (https://a.b):\nOne."},
        ),
    ],
)
def test_content_is_sent_in_the_form_of_the_sdk(part: ContentPart, sent: dict[str, Any]) -> None:
    body = encode_checked(AgentRequest(model=NEW, messages=[Message.user([part, TextContent(text="Hi")])]))
    assert body["contents"][0]["parts"] == [sent, {"text": "Hi"}]
    call = ToolCall(id="c1", name="look", arguments={})
    result = Message(Role.TOOL, [ToolResult(tool_call_id="c1", content=[part])])
    for model in (OLD, NEW):
        encode_checked(AgentRequest(model=model, messages=[Message.user("Hi"), Message.assistant([call]), result]))


VERTEX_CODEC = GeminiCodec(ApiAddress("http://127.0.0.1", None), platform=VERTEX, name="vertex")


@pytest.mark.parametrize(
    ("codec", "tool", "sent", "warning"),
    [
        (CODEC, WebSearch(), {"googleSearch": {}}, None),
        (CODEC, WebSearch(max_uses=1, blocked_domains=["a.b"]), {"googleSearch": {}}, "blocked_domains, max_uses of"),
        (VERTEX_CODEC, WebSearch(blocked_domains=["a.b"]), {"googleSearch": {"excludeDomains": ["a.b"]}}, None),
        (CODEC, CodeExecution(), {"codeExecution": {}}, None),
        (CODEC, ComputerUse(), {"computerUse": {"environment": "ENVIRONMENT_BROWSER"}}, None),
        (CODEC, ComputerUse(environment="mac"), {"computerUse": {"environment": "ENVIRONMENT_DESKTOP"}}, None),
        (
            CODEC,
            FileSearch(stores=["fileSearchStores/s"], max_results=3, filters="a=1"),
            {"fileSearch": {"fileSearchStoreNames": ["fileSearchStores/s"], "topK": 3, "metadataFilter": "a=1"}},
            None,
        ),
        (
            CODEC,
            McpConnector(label="docs", url="https://mcp.test", token="s3cret"),
            {
                "mcpServers": [
                    {
                        "name": "docs",
                        "streamableHttpTransport": {
                            "url": "https://mcp.test",
                            "headers": {"Authorization": "Bearer s3cret"},
                        },
                    }
                ]
            },
            None,
        ),
    ],
)
def test_built_in_tools_are_sent_in_the_form_of_the_sdk(
    codec: GeminiCodec, tool: BuiltinTool, sent: dict[str, Any], warning: str | None
) -> None:
    request = AgentRequest(input="Hi", model=NEW, tools=[tool])
    assert encode_checked(request, codec)["tools"] == [sent]
    warnings = codec.encode(request, stream=False).warnings
    assert len(warnings) == (warning is not None)
    assert warning is None or warnings[0].startswith(warning)


def test_image_generation_is_a_setting() -> None:
    for size, image in (("16:9", {"aspectRatio": "16:9"}), ("2K", {"imageSize": "2K"}), ("1024x1024", None)):
        request = AgentRequest(input="Hi", model=NEW, tools=[ImageGeneration(size=size)])
        body = encode_checked(request)
        assert "tools" not in body
        generation = body["generationConfig"]
        assert generation["responseModalities"] == ["TEXT", "IMAGE"]
        assert generation.get("imageConfig") == image
        assert len(CODEC.encode(request, stream=False).warnings) == (image is None)


def test_what_the_platform_lacks_is_refused() -> None:
    tools = (FileSearch(stores=["s"]), McpConnector(label="a", url="https://mcp.test"))
    requests = [AgentRequest(input="Hi", model=NEW, tools=[tool]) for tool in tools]
    file = FileContent(file_id="files/abc")
    for request in (*requests, AgentRequest(model=NEW, messages=[Message.user([file])])):
        CODEC.encode(request, stream=False)
        with pytest.raises(errors.UnsupportedFeatureError):
            VERTEX_CODEC.encode(request, stream=False)


def test_cached_content_replaces_the_system_prompt_and_the_tools() -> None:
    for fields in ({"system": "Be brief."}, {"tools": [ToolSpec(name="look")]}):
        with pytest.raises(errors.UnsupportedFeatureError) as caught:
            encode_checked(AgentRequest(input="Hi", model=NEW, cached_content="cachedContents/1", **fields))
        assert caught.value.field == "cached_content"
    stored = VERTEX_CODEC.encode(AgentRequest(input="Hi", model=NEW, store=True), stream=False)
    assert "store" not in json.loads(stored.body)
    assert stored.warnings == ("store was dropped: vertex does not support it",)


FORGETFUL = {"google-test-native-output-with-builtin-tools-stream-f4b559"}
"""A stream whose last chunk leaves out counts that earlier ones had. We keep those; the SDK sees the last alone."""


def sdk_client(url: str, *, vertex: bool) -> genai.Client:
    options = types.HttpOptions(base_url=url, api_version="v1" if vertex else "v1beta")
    if vertex:
        return genai.Client(
            vertexai=True,
            project="p",
            location="us-central1",
            credentials=Credentials(token="ya29.test"),  # type: ignore[no-untyped-call]
            http_options=options,
        )
    return genai.Client(api_key="x", http_options=options)


def by_sdk(client: genai.Client, *, streaming: bool) -> dict[str, Any]:
    """Text, thoughts, calls, finish reason and total as the SDK sees them."""
    if streaming:
        chunks = list(client.models.generate_content_stream(model="m", contents="hi"))
    else:
        chunks = [client.models.generate_content(model="m", contents="hi")]
    parts = [
        part
        for chunk in chunks
        for candidate in (chunk.candidates or ())[:1]
        for part in (candidate.content and candidate.content.parts) or ()
    ]
    reasons = [
        candidate.finish_reason.value
        for chunk in chunks
        for candidate in chunk.candidates or ()
        if candidate.finish_reason is not None
    ]
    usage = chunks[-1].usage_metadata
    return {
        "text": "".join(part.text or "" for part in parts if not part.thought),
        "thinking": "".join(part.text or "" for part in parts if part.thought),
        "calls": [(part.function_call.name, part.function_call.args or {}) for part in parts if part.function_call],
        "reason": reasons[-1] if reasons else None,
        "total": usage.total_token_count if usage else None,
        "model": chunks[-1].model_version,
        "id": chunks[-1].response_id,
    }


def by_us(response: AgentResponse) -> dict[str, Any]:
    return {
        "text": response.text or "",
        "thinking": response.thinking,
        "calls": [(call.name, call.arguments) for call in response.tool_calls],
        "reason": response.raw_stop_reason,
        "total": response.usage.total_tokens if response.usage else 0,
        "model": response.model,
        "id": response.id,
    }


def is_supported_by_sdk(exchange: Exchange) -> bool:
    """The SDK asks for events, and cannot read a stream that is a JSON array."""
    return exchange.stream is not None or not isinstance(exchange.response["body"], list)


@pytest.mark.parametrize("vertex", [False, True], ids=["gemini", "vertex"])
def test_every_recorded_answer_holds_what_the_sdk_finds_in_it(vertex: bool) -> None:
    replay = Replay()
    compared = Counter[bool]()
    with LoopbackServer(replay) as server, sdk_client(server.url, vertex=vertex) as client:
        for exchange in filter(is_supported_by_sdk, ANSWERS):
            if (exchange.provider == "vertexai") is not vertex:
                continue
            replay.answer = build_answer(exchange)
            streaming = exchange.stream is not None
            ours, theirs = by_us(decode_recording(exchange)), by_sdk(client, streaming=streaming)
            if theirs["total"] is None or exchange.case in FORGETFUL:
                theirs["total"] = ours["total"]
            assert ours == theirs, exchange.name
            compared[streaming] += 1
    counted = {True: 8, False: 17} if vertex else {True: 29, False: 52}
    assert compared == counted or (compared.keys() == counted.keys() and not HAS_RECORDINGS)


@for_each("exchange", [exchange for exchange in ANSWERS if exchange.stream is not None], by=vendor)
def test_a_stream_holds_the_same_as_its_chunks_in_one_answer(exchange: Exchange) -> None:
    lines = (exchange.stream or b"").decode().splitlines()
    chunks = [json.loads(line.removeprefix("data:")) for line in lines if line.startswith("data:")]
    codec = GeminiCodec(ApiAddress("http://127.0.0.1", None), name=exchange.provider)
    headers = exchange.response.get("headers") or {}
    whole = codec.decode(Reply(200, headers, json.dumps(chunks).encode()), exchange.agent_request)
    assert decode_recording(exchange) == whole


def test_every_recorded_answer_can_be_answered_in_turn() -> None:
    """Decoded responses are sent back with results, signatures and vendor-specific blocks."""
    for exchange in ANSWERS:
        message = read_request_home(decode_recording(exchange).message, exchange)
        results = [
            ToolResult(tool_call_id=call.id, name=call.name, content="done") for call in message.tool_calls or ()
        ]
        request = AgentRequest(
            model=exchange.model,
            messages=[Message.user("hi"), message, *([Message(Role.TOOL, results)] if results else [])],
            input="go on",
        )
        sent = encode_checked(request, GeminiCodec(ApiAddress("http://127.0.0.1", None), name=exchange.provider))
        for part in (part for content in sent["contents"] for part in content["parts"]):
            if "functionCall" in part and "id" in part["functionCall"]:
                assert not part["functionCall"]["id"].startswith("gemini_")


def read_request_home(message: Message, exchange: Exchange) -> Message:
    """The message after storage, as a history would bring it back."""
    stored = Message.from_dict(json.loads(json.dumps(message.to_dict())))
    assert stored == message
    assert all(
        part.origin is None or part.origin.model == exchange.model
        for part in stored.parts
        if isinstance(part, ToolCall)
    )
    return stored


ANSWER = {"candidates": [{"content": {"parts": [{"text": "hi"}]}, "finishReason": "STOP"}], "usageMetadata": {}}


def test_the_sdk_and_the_agent_send_the_same_to_the_same_place() -> None:
    replay = Replay()
    replay.answer = Answer([json.dumps(ANSWER).encode()], headers={"content-type": "application/json"})
    with LoopbackServer(replay) as server, sdk_client(server.url, vertex=False) as client:
        config = types.GenerateContentConfig(temperature=0.5, system_instruction="Be brief.", stop_sequences=["END"])
        client.models.generate_content(model="gemini-2.5-flash", contents="hi", config=config)
        agent = Agent("gemini:gemini-2.5-flash", base_url=server.url, api_key="x", temperature=0.5)
        agent.complete("hi", system="Be brief.", stop=["END"])
        theirs, ours = server.requests
    assert ours.url == theirs.url == "/v1beta/models/gemini-2.5-flash:generateContent"
    assert dict(ours.headers)[b"x-goog-api-key"] == dict(theirs.headers)[b"x-goog-api-key"] == b"x"
    sent, meant = json.loads(ours.body), json.loads(theirs.body)
    meant["systemInstruction"].pop("role", None)
    assert sent == meant


def test_the_sdk_and_the_agent_stream_from_the_same_place() -> None:
    replay = Replay()
    data = b"data: " + json.dumps(ANSWER).encode() + b"\n\n"
    replay.answer = Answer([data], headers={"content-type": "text/event-stream"})
    with LoopbackServer(replay) as server, sdk_client(server.url, vertex=False) as client:
        assert "".join(chunk.text or "" for chunk in client.models.generate_content_stream(model="m", contents="hi"))
        with Agent("gemini:m", base_url=server.url, api_key="x").stream("hi") as stream:
            assert stream.collect().text == "hi"
        theirs, ours = server.requests
    assert ours.url == theirs.url == "/v1beta/models/m:streamGenerateContent?alt=sse"
    assert json.loads(ours.body) == json.loads(theirs.body)


def test_the_sdk_counts_tokens_at_the_same_place() -> None:
    replay = Replay()
    replay.answer = Answer([b'{"totalTokens": 7}'], headers={"content-type": "application/json"})
    with LoopbackServer(replay) as server, sdk_client(server.url, vertex=False) as client:
        assert client.models.count_tokens(model="m", contents="hi").total_tokens == 7
        (theirs,) = server.requests
    request = AgentRequest(model="m", input="hi")
    ours = CODEC.encode_count(request)
    assert ours.url.endswith(theirs.url)
    inner = json.loads(ours.body)["generateContentRequest"]
    assert inner.pop("model") == "models/m"
    assert inner == json.loads(theirs.body)
    assert CODEC.decode_count(Reply(200, {}, b'{"totalTokens": 7}'), request) == 7
