"""Bedrock: bodies, warnings, errors, regions and credentials."""

from __future__ import annotations

import builtins
import json
import logging
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from agent import Agent, Message, ToolSpec, errors
from agent.engine.wire import Answer, Reply
from agent.http.event_stream import encode_message
from agent.models import facts
from agent.models.prices import ServiceTier, price, service_tier
from agent.providers.base import ApiAddress
from agent.providers.bedrock import BedrockCodec
from agent.providers.bedrock import fields as warnings
from agent.providers.bedrock.messages import (
    DOCUMENT_TEXT_ADDED,
    NO_CACHE,
    NO_CACHE_POINT,
    NO_OUTPUT,
    TOO_MANY_CACHE_POINTS,
)
from agent.testing import LoopbackServer, VendorScript
from agent.types import (
    AgentRequest,
    AgentResponse,
    AudioContent,
    DocumentContent,
    FileContent,
    ImageContent,
    Origin,
    Part,
    Role,
    SearchResultContent,
    TextContent,
    ThinkingContent,
    ToolCall,
    ToolResult,
    Usage,
    VendorContent,
    VideoContent,
)
from tests.support.drivers import Driver

CLAUDE = "us.anthropic.claude-sonnet-4-5-20250929-v1:0"
NOVA, LLAMA, MISTRAL = (
    "us.amazon.nova-2-lite-v1:0",
    "meta.llama3-1-70b-instruct-v1:0",
    "mistral.mistral-large-2407-v1:0",
)
PROFILE = "arn:aws:bedrock:eu-west-1:123456789012:application-inference-profile/ab12cd34ef56"
CODEC = BedrockCodec(ApiAddress("https://bedrock-runtime.us-east-1.amazonaws.com", None))
WEATHER = ToolSpec(name="weather", parameters={"type": "object", "properties": {"city": {"type": "string"}}})
CALL = ToolCall(id="call_1", name="weather", arguments={"city": "Bern"})
USED = [
    Message.user("Hi"),
    Message.assistant([CALL]),
    Message(Role.TOOL, [ToolResult(tool_call_id="call_1", content="7")]),
]
USAGE = {"inputTokens": 10, "outputTokens": 5, "totalTokens": 15}


def encode(*messages: Message, model: str = CLAUDE, **fields: Any) -> tuple[dict[str, Any], tuple[str, ...]]:
    given = {"messages": messages} if messages else {"input": "Hi"}
    wire = CODEC.encode(AgentRequest(**{"model": model, **given, **fields}), stream=False)
    return json.loads(wire.body), wire.warnings


def content(*parts: Part, model: str = CLAUDE, role: Role = Role.USER) -> tuple[list[dict[str, Any]], tuple[str, ...]]:
    """Encode parts in the middle of a conversation."""
    middle = (
        [Message(role, parts)] if role is Role.USER else [Message.user("Hi"), Message(role, parts), Message.user("?")]
    )
    body, warned = encode(*middle, model=model)
    return body["messages"][min(1, len(middle) - 1)]["content"], warned


# Requests


def test_settings_are_sent_where_converse_has_them() -> None:
    fields: dict[str, Any] = {
        "max_tokens": 99,
        "temperature": 0.5,
        "stop": ["END", " "],
        "service_tier": "flex",
        "top_k": 3,
    }
    body, warned = encode(**fields, metadata={"team": "a", "n": 1})
    assert body["inferenceConfig"] == {"maxTokens": 99, "temperature": 0.5, "stopSequences": ["END"]}
    assert (body["serviceTier"], body["requestMetadata"]) == ({"type": "flex"}, {"team": "a"})
    assert body["additionalModelRequestFields"] == {"top_k": 3}
    assert warned == (warnings.BLANK_STOP, warnings.NOT_TEXT.format("n"))


@pytest.mark.parametrize(
    ("model", "level", "sent", "warned"),
    [
        (CLAUDE, "low", {"additionalModelRequestFields": {"thinking": {"type": "enabled", "budget_tokens": 2048}}}, ()),
        ("anthropic.claude-opus-4-6-v1", "high", {"additionalModelRequestFields": {"thinking": {"type": "adaptive"}},
                                                  "outputConfig": {"effort": "high"}}, ()),
        (NOVA, "minimal", {"additionalModelRequestFields":
                           {"reasoningConfig": {"type": "enabled", "maxReasoningEffort": "low"}}}, ()),
        ("openai.gpt-oss-120b-1:0", "xhigh", {"additionalModelRequestFields": {"reasoning_effort": "high"}}, ()),
        (LLAMA, "low", {}, (warnings.DOES_NOT_THINK,)),
        (LLAMA, "off", {}, ()),
    ],
)  # fmt: skip
def test_thinking_is_requested_as_the_model_expects_it(
    model: str, level: str, sent: dict[str, Any], warned: tuple[str, ...]
) -> None:
    body, found = encode(model=model, thinking=level)
    assert ({key: value for key, value in body.items() if key != "messages"}, found) == (sent, warned)


@pytest.mark.parametrize(
    ("model", "fields", "sent", "warned"),
    [
        (CLAUDE, {"tool_choice": "required"}, {"any": {}}, ()),
        (CLAUDE, {"tool_choice": "weather"}, {"tool": {"name": "weather"}}, ()),
        (CLAUDE, {"tool_choice": "auto", "parallel_tool_calls": False}, None, (warnings.NO_PARALLEL_CONTROL,)),
        (MISTRAL, {"tool_choice": "required"}, {"any": {}}, ()),
        (MISTRAL, {"tool_choice": "weather"}, None, (warnings.NO_FORCED_CALL.format("weather"),)),
        (LLAMA, {"tool_choice": "required"}, None, (warnings.NO_FORCED_CALL.format("required"),)),
        ("anthropic.claude-opus-5-5", {"tool_choice": "required"}, None, (warnings.NO_FORCED_CALL.format("required"),)),
        (PROFILE, {"tool_choice": "weather"}, {"tool": {"name": "weather"}}, ()),
    ],
)
def test_a_tool_choice_is_sent_if_the_model_supports_it(
    model: str, fields: dict[str, Any], sent: Any, warned: tuple[str, ...]
) -> None:
    body, found = encode(model=model, tools=[WEATHER], **fields)
    assert (body["toolConfig"].get("toolChoice"), found) == (sent, warned)
    assert body["toolConfig"]["tools"] == [
        {"toolSpec": {"name": "weather", "inputSchema": {"json": dict(WEATHER.parameters)}}}
    ]


def test_without_tool_calls_the_tools_are_left_out_and_otherwise_declared() -> None:
    assert "toolConfig" not in encode(tools=[WEATHER], tool_choice="none")[0]
    body, warned = encode(*USED, tools=[WEATHER], tool_choice="none")
    assert (body["toolConfig"].keys(), warned) == ({"tools"}, (warnings.NO_CHOICE_OF_NONE,))
    body, warned = encode(*USED, tool_choice="weather")
    assert body["toolConfig"]["tools"][0]["toolSpec"]["name"] == "weather"
    assert warned == (warnings.CHOICE_WITHOUT_TOOLS, warnings.TOOLS_ADDED)


def test_sampling_follows_the_rules_of_the_model() -> None:
    assert encode(model=LLAMA, temperature=1.5)[1] == (warnings.TOO_HIGH,)
    assert encode(model="openai.gpt-6-sol", top_p=0.5)[1] == (warnings.NO_SAMPLING.format("top_p"),)
    body, warned = encode(temperature=0.5, top_p=0.5)
    assert (body["inferenceConfig"], len(warned)) == ({"temperature": 0.5}, 1)
    assert encode(model=NOVA, top_k=5)[0]["additionalModelRequestFields"] == {"inferenceConfig": {"topK": 5}}
    assert encode(model=LLAMA, top_k=5)[1] == (warnings.NO_TOP_K,)


def test_extra_is_merged_into_the_objects_of_the_body() -> None:
    extra = {
        "additionalModelRequestFields": {"anthropic_beta": ["x"]},
        "guardrailConfig": {"guardrailIdentifier": "g", "guardrailVersion": "1"},
        "inferenceConfig": {"topP": 0.1},
    }
    body, _ = encode(thinking="low", max_tokens=9999, extra=extra)
    assert body["additionalModelRequestFields"].keys() == {"thinking", "anthropic_beta"}
    assert body["inferenceConfig"] == {"maxTokens": 9999, "topP": 0.1}
    assert body["guardrailConfig"] == extra["guardrailConfig"]
    for key, fields in (("messages", {}), ("modelId", {}), ("system", {"system": "x"})):
        with pytest.raises(errors.ConfigurationError, match=key):
            encode(extra={key: []}, **fields)


class City(BaseModel):
    name: str


@pytest.mark.parametrize(
    ("model", "native"), [(CLAUDE, True), ("qwen.qwen3-32b-v1:0", True), (NOVA, False), (PROFILE, False)]
)
def test_a_schema_is_enforced_natively_where_the_model_can(model: str, native: bool) -> None:
    with LoopbackServer(VendorScript()) as server:
        agent = Agent(f"bedrock:{model}", base_url=server.url, api_key="k")
        assert agent.json("?", schema=City).output == City(name="example")
        body = json.loads(server.requests[0].body)
    if native:
        schema = json.loads(body["outputConfig"]["textFormat"]["structure"]["jsonSchema"]["schema"])
        assert schema["properties"]["name"]["type"] == "string"
    else:
        assert body["toolConfig"]["toolChoice"] == {"tool": {"name": "final_answer"}}


# Content


@pytest.mark.parametrize(
    ("part", "block"),
    [
        (ImageContent(image_data=b"x", media_type="image/jpg"),
         {"image": {"format": "jpeg", "source": {"bytes": "eA=="}}}),
        (ImageContent(image_url="s3://bucket/a.webp"),
         {"image": {"format": "webp", "source": {"s3Location": {"uri": "s3://bucket/a.webp"}}}}),
        (VideoContent(data=b"x", media_type="video/mp4"), {"video": {"format": "mp4", "source": {"bytes": "eA=="}}}),
        (VideoContent(url="s3://b/v", media_type="video/3gpp", provider_data={"bucketOwner": "123456789012"}),
         {"video": {"format": "three_gp",
                    "source": {"s3Location": {"uri": "s3://b/v", "bucketOwner": "123456789012"}}}}),
        (AudioContent(data=b"x", media_type="audio/mpeg"), {"audio": {"format": "mp3", "source": {"bytes": "eA=="}}}),
        (DocumentContent(text="x", title="My notes: 1/2", citations=True, context="old"),
         {"document": {"format": "txt", "name": "My notes 1 2", "source": {"bytes": "eA=="},
                       "context": "old", "citations": {"enabled": True}}}),
        (SearchResultContent(source="s", title="t", content="x", citations=True),
         {"searchResult": {"source": "s", "title": "t", "content": [{"text": "x"}], "citations": {"enabled": True}}}),
        (DocumentContent(data=b"x", media_type="text/csv"),
         {"document": {"format": "csv", "name": "document", "source": {"bytes": "eA=="}}}),
        (VendorContent(kind="guardContent", provider_data={"guardContent": {"text": {"text": "x"}}}, origin=Origin(
            provider="bedrock", api="bedrock", model=CLAUDE)), {"guardContent": {"text": {"text": "x"}}}),
    ],
)  # fmt: skip
def test_content_of_a_user_is_sent(part: Part, block: dict[str, Any]) -> None:
    assert content(TextContent(text="Look"), part) == ([{"text": "Look"}, block], ())


def test_documents_have_different_names_and_text_beside_them() -> None:
    blocks, warned = content(DocumentContent(text="a"), DocumentContent(text="b"))
    assert [block.get("document", {}).get("name") for block in blocks] == ["document", "document 2", None]
    assert warned == (DOCUMENT_TEXT_ADDED,)


@pytest.mark.parametrize(
    "part",
    [
        ImageContent(image_url="https://example.com/a.png"),
        ImageContent(image_data=b"x", media_type="image/tiff"),
        DocumentContent(data=b"x", media_type="application/zip"),
        DocumentContent(url="https://example.com/a.pdf"),
        VideoContent(data=b"x", media_type="video/ogg"),
        FileContent(file_id="f"),
        ToolResult(tool_call_id="call_1", content=[AudioContent(data=b"x")]),
    ],
)
def test_content_that_converse_cannot_take_is_refused(part: Part) -> None:
    before = [Message.user("Hi"), Message.assistant([CALL])] if isinstance(part, ToolResult) else []
    with pytest.raises(errors.UnsupportedFeatureError, match="bedrock does not support"):
        encode(*before, Message(Role.TOOL if before else Role.USER, [part]), tools=[WEATHER])


def test_tool_results_are_sent_in_the_form_of_the_model() -> None:
    def result(model: str, **fields: Any) -> dict[str, Any]:
        turn = Message(Role.TOOL, [ToolResult(tool_call_id="call_1", **fields)])
        body, _ = encode(Message.user("Hi"), Message.assistant([CALL]), turn, model=model, tools=[WEATHER])
        encoded: dict[str, Any] = body["messages"][-1]["content"][0]["toolResult"]
        return encoded

    assert result(CLAUDE, content="7") == {"toolUseId": "call_1", "content": [{"text": "7"}]}
    assert result(MISTRAL, content="7")["content"] == [{"json": {"result": "7"}}]
    failed = result(CLAUDE, content=" ", is_error=True)
    assert failed == {"toolUseId": "call_1", "content": [{"text": NO_OUTPUT}], "status": "error"}
    image = ImageContent(image_data=b"x", media_type="image/png")
    assert [*result(CLAUDE, content=[TextContent(text="a"), image])["content"][1]] == ["image"]


def test_reasoning_and_citations_return_to_their_model_only() -> None:
    own = Origin(provider="bedrock", api="bedrock", model=CLAUDE)
    parts: list[Part] = [
        ThinkingContent(thinking="hm", signature="sig", origin=own),
        ThinkingContent(thinking="", redacted=True, encrypted_content="c2Vj", origin=own),
        TextContent(text="4"),
    ]
    blocks, _ = content(*parts, role=Role.ASSISTANT)
    assert blocks == [
        {"reasoningContent": {"reasoningText": {"text": "hm", "signature": "sig"}}},
        {"reasoningContent": {"redactedContent": "c2Vj"}},
        {"text": "4"},
    ]
    assert content(*parts, role=Role.ASSISTANT, model=NOVA)[0] == [{"text": "4"}]
    blocks, warned = content(ThinkingContent(thinking="hm", origin=own), TextContent(text="4"), role=Role.ASSISTANT)
    assert (blocks, len(warned)) == ([{"text": "4"}], 1)


# Prompt caching

POINT, LONG_POINT = {"cachePoint": {"type": "default"}}, {"cachePoint": {"type": "default", "ttl": "1h"}}


def test_cache_points_follow_what_they_cache() -> None:
    body, warned = encode(system="Be brief.", tools=[WEATHER], cache="long")
    assert [
        content[-1] for content in (body["toolConfig"]["tools"], body["system"], body["messages"][0]["content"])
    ] == [LONG_POINT] * 3
    tool = WEATHER.model_copy(update={"cache": "short"})
    marked = TextContent(text="a", cache="long")
    body, _ = encode(Message.user([marked, TextContent(text="b", cache="short")]), tools=[tool])
    assert body["messages"][0]["content"] == [{"text": "a"}, LONG_POINT, {"text": "b"}, POINT]
    assert body["toolConfig"]["tools"][1] == LONG_POINT  # a long one must not follow a short one
    assert warned == ()


def test_cache_points_that_a_model_does_not_support_are_dropped_with_a_warning() -> None:
    many = Message.user([TextContent(text=str(n), cache="short") for n in range(6)])
    body, warned = encode(many)
    assert [block for block in body["messages"][0]["content"] if "cachePoint" not in block][:3] == [
        {"text": "0"}, {"text": "1"}, {"text": "2"}
    ]  # fmt: skip
    assert (json.dumps(body).count("cachePoint"), warned) == (4, (TOO_MANY_CACHE_POINTS,))
    tool = WEATHER.model_copy(update={"cache": "short"})
    body, warned = encode(many, tools=[tool], model=NOVA)
    assert len(body["toolConfig"]["tools"]) == 1
    assert warned == (NO_CACHE, TOO_MANY_CACHE_POINTS)
    assert encode(model=LLAMA, cache="short") == (
        {"messages": [{"role": "user", "content": [{"text": "Hi"}]}]},
        (NO_CACHE,),
    )
    assert NO_CACHE_POINT in content(TextContent(text="a"), TextContent(text=" ", cache="short"))[1]


# Responses


def reply(*blocks: dict[str, Any], stop: str = "end_turn", usage: Any = None, **more: Any) -> AgentResponse:
    message = {"role": "assistant", "content": blocks}
    body = {
        "output": {"message": message},
        "stopReason": stop,
        "usage": usage or USAGE,
        "metrics": {"latencyMs": 1},
        **more,
    }
    headers = {"x-amzn-requestid": "req-1"}
    return CODEC.decode(Reply(200, headers, json.dumps(body).encode()), AgentRequest(input="x", model=CLAUDE))


def test_usage_includes_the_cache_and_its_lifetimes() -> None:
    usage = {**USAGE, "cacheReadInputTokens": 100, "cacheWriteInputTokens": 30,
             "cacheDetails": [{"ttl": "1h", "inputTokens": 20}, {"ttl": "5m", "inputTokens": 10}]}  # fmt: skip
    response = reply({"text": "x"}, usage=usage)
    assert response.request_id == "req-1"
    assert response.usage == Usage(
        prompt_tokens=140, completion_tokens=5, cache_read_tokens=100, cache_write_tokens=30,
        details={"cache_write_1h_tokens": 20, "cache_write_5m_tokens": 10},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("raw", "reason"),
    [("guardrail_intervened", "content_filter"), ("model_context_window_exceeded", "length"),
     ("malformed_tool_use", "error"), ("stop_sequence", "stop"), ("new_reason", "other")],
)  # fmt: skip
def test_stop_reasons_are_translated(raw: str, reason: str) -> None:
    response = reply({"text": "x"}, stop=raw)
    assert (response.stop_reason, response.raw_stop_reason) == (reason, raw)


def test_blocks_of_every_kind_are_read() -> None:
    server_call = {"toolUse": {"toolUseId": "t", "name": "nova_code", "input": {}, "type": "server_tool_use"}}
    response = reply(
        {"image": {"format": "png", "source": {"bytes": "eA=="}}},
        {"audio": {"format": "mp3", "source": {"bytes": "eA=="}}},
        server_call,
        {"toolUse": {"toolUseId": "t", "name": "f", "input": "{bad"}},
        {"text": ""},
        trace={"promptRouter": {"invokedModelId": "arn:aws:bedrock:us-east-1::foundation-model/amazon.nova-pro-v1:0"}},
    )
    assert [part.type for part in response.content] == ["image", "audio", "vendor", "tool_call"]
    assert response.content[2].provider_data == server_call
    assert response.tool_calls[0].invalid_arguments == "{bad"
    assert response.model.endswith("nova-pro-v1:0")
    tool = WEATHER.model_copy(update={"strict": True, "name": "look.up"})
    request = AgentRequest(input="x", model=CLAUDE, tools=[tool])
    sent = json.loads(CODEC.encode(request, stream=False).body)["toolConfig"]["tools"][0]["toolSpec"]
    assert sent["strict"] is True
    body = {"output": {"message": {"content": [{"toolUse": {"toolUseId": "t", "name": sent["name"], "input": {}}}]}}}
    decoded = CODEC.decode(Reply(200, {}, json.dumps({**body, "stopReason": "tool_use"}).encode()), request)
    assert decoded.tool_calls[0].name == "look.up"


def event(name: str, payload: dict[str, Any], kind: str = "event") -> bytes:
    headers = {f":{kind}-type": name, ":message-type": kind}
    return encode_message(headers, json.dumps({**payload, "p": "abcd"}).encode())


def delta(index: int, **delta: Any) -> bytes:
    return event("contentBlockDelta", {"contentBlockIndex": index, "delta": delta})


START, STOP = event("messageStart", {"role": "assistant"}), event("messageStop", {"stopReason": "end_turn"})
END = STOP + event("metadata", {"usage": USAGE, "metrics": {"latencyMs": 3}, "serviceTier": {"type": "priority"}})
STREAM_HEADERS = {"content-type": "application/vnd.amazon.eventstream", "x-amzn-requestid": "req-1"}


def test_a_stream_may_hold_blocks_of_every_kind(drive: Driver) -> None:
    data = START + b"".join(
        [
            delta(0, reasoningContent={"text": "hm"}), delta(0, reasoningContent={"signature": "si"}),
            delta(0, reasoningContent={"signature": "g"}),
            delta(1, reasoningContent={"redactedContent": "c2Vj"}),
            delta(1, reasoningContent={"redactedContent": "cmV0"}),
            delta(2, text="Blue"), delta(2, citation={"title": "Sky"}), delta(2, text="."),
            event("contentBlockStart", {"contentBlockIndex": 3, "start": {"image": {"format": "png"}}}),
            delta(3, image={"source": {"bytes": "eA=="}}), delta(3, image={"source": {"bytes": "eQ=="}}),
            event("contentBlockStart", {"contentBlockIndex": 4, "start": {"toolResult": {"toolUseId": "t"}}}),
            delta(4, toolResult=[{"text": "42"}]),
            event("contentBlockStart", {"contentBlockIndex": 5, "start": {"toolUse": {"toolUseId": "c", "name": "f"}}}),
            delta(5, toolUse={"input": '{"a": '}), event("contentBlockStop", {"contentBlockIndex": 5}),
            event("newEvent", {"x": 1}),
        ]
    ) + END  # fmt: skip
    response = drive.stream(lambda request: Answer([data], headers=STREAM_HEADERS), agent=f"bedrock:{CLAUDE}").ok
    thinking, sealed, text, image, other, call = response.content
    assert isinstance(thinking, ThinkingContent)
    assert isinstance(sealed, ThinkingContent)
    assert isinstance(call, ToolCall)
    assert (thinking.thinking, thinking.signature, sealed.encrypted_content) == ("hm", "sig", "c2VjcmV0")
    assert isinstance(text, TextContent)
    assert (text.text, text.citations[0].title) == ("Blue.", "Sky")
    assert (image.image_data, call.invalid_arguments) == (b"xy", '{"a": ')
    assert other.provider_data == {"toolResult": {"toolUseId": "t", "content": [{"text": "42"}]}}
    assert (response.request_id, response.raw["metrics"]) == ("req-1", {"latencyMs": 3})
    assert response.raw["output"]["message"]["content"][0]["reasoningContent"]["reasoningText"]["signature"] == "sig"


@pytest.mark.parametrize("data", [START + delta(0, text="a") + STOP, START + delta(0, text="a") + END[:-1], START])
def test_a_stream_without_its_metadata_is_incomplete(drive: Driver, data: bytes) -> None:
    outcome = drive.stream(lambda request: Answer([data], headers=STREAM_HEADERS), agent=f"bedrock:{CLAUDE}")
    expected = errors.StreamInterrupted if b"contentBlockDelta" in data else errors.ProtocolError
    assert type(outcome.failed) is expected


# Errors


@pytest.mark.parametrize(
    ("status", "name", "message", "kind", "retryable"),
    [
        (429, "ThrottlingException", "Too many tokens, please wait", errors.RateLimitError, True),
        (400, "ValidationException", "Malformed input request", errors.BadRequestError, False),
        (400, "ValidationException", "Input is too long for requested model.", errors.ContextLengthError, False),
        (400, "ValidationException", "The provided model identifier is invalid.", errors.ModelNotFoundError, False),
        (403, "AccessDeniedException", "You don't have access to the model", errors.AuthenticationError, False),
        (403, "ExpiredTokenException", "The security token is expired", errors.AuthenticationError, False),
        (404, "ResourceNotFoundException", "This model version has reached its end of life",
         errors.ModelNotFoundError, False),
        (408, "ModelTimeoutException", "Processing took too long", errors.ProviderError, True),
        (424, "ModelErrorException", "The model failed", errors.ProviderError, True),
        (429, "ModelNotReadyException", "Model is not ready", errors.OverloadedError, True),
        (500, "InternalServerException", "oh", errors.ProviderError, True),
        (503, "ServiceUnavailableException", "busy", errors.OverloadedError, True),
        (400, "ServiceQuotaExceededException", "over", errors.QuotaExceededError, False),
    ],
)  # fmt: skip
def test_exceptions_are_typed(
    drive: Driver, status: int, name: str, message: str, kind: type[errors.AgentError], retryable: bool
) -> None:
    headers = {"x-amzn-errortype": f"{name}:http://internal.amazon.com/", "x-amzn-requestid": "req-9"}
    body = json.dumps({"message": message}).encode()
    error = drive.complete(
        lambda request: Answer([body], status=status, headers=headers), agent=f"bedrock:{CLAUDE}"
    ).failed
    assert (type(error), error.retryable, error.code, error.request_id) == (kind, retryable, name, "req-9")
    assert error.message == message


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("throttlingException", errors.RateLimitError),
        ("validationException", errors.BadRequestError),
        ("modelStreamErrorException", errors.ProviderError),
        ("internalServerException", errors.ProviderError),
        ("serviceUnavailableException", errors.OverloadedError),
    ],
)
def test_exceptions_in_a_stream_are_typed(drive: Driver, name: str, kind: type[errors.AgentError]) -> None:
    data = START + event(name, {"message": "no"}, "exception")
    error = drive.stream(lambda request: Answer([data], headers=STREAM_HEADERS), agent=f"bedrock:{CLAUDE}").failed
    assert (type(error), error.message, error.request_id) == (kind, "no", "req-1")
    assert error.retryable is (kind is not errors.BadRequestError)
    assert error.code == name[0].upper() + name[1:]
    broken = START + delta(0, text="Once") + event(name, {"message": "no"}, "exception")
    error = drive.stream(lambda request: Answer([broken], headers=STREAM_HEADERS), agent=f"bedrock:{CLAUDE}").failed
    assert isinstance(error, errors.StreamInterrupted)
    assert error.partial is not None
    assert error.partial.text == "Once"


def test_an_error_message_of_a_stream_is_an_error() -> None:
    decoder = CODEC.decoder({}, AgentRequest(input="x", model=CLAUDE))
    decoder.feed(
        encode_message({":message-type": "error", ":error-code": "InternalError", ":error-message": "oh"}, b"")
    )
    assert decoder.failure is not None
    assert (decoder.failure.message, decoder.failure.code) == ("oh", "InternalError")


def test_a_model_that_needs_an_inference_profile_is_explained() -> None:
    message = "Invocation of model ID m with on-demand throughput isn't supported."
    error = CODEC.decode_error(
        Reply(400, {}, json.dumps({"message": message}).encode()), AgentRequest(input="x", model="a.m")
    )
    assert "us.a.m" in str(error)


# Addresses and credentials


def url_of(agent: Agent, **fields: Any) -> str:
    return agent.provider.encode(AgentRequest(input="x", **{"model": agent.config.model, **fields}), stream=False).url


@pytest.fixture
def _aws(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No profile, and no metadata service."""
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / name))


@pytest.mark.usefixtures("_aws")
def test_the_region_comes_from_the_arn_the_environment_or_the_profile(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(errors.ConfigurationError, match="AWS_REGION") as caught:
        _ = Agent("bedrock:m", api_key="k").provider
    assert caught.value.field == "region"
    (tmp_path / "AWS_CONFIG_FILE").write_text("[default]\nregion = eu-central-1\n[profile cn]\nregion = cn-north-1\n")
    assert url_of(Agent("bedrock:m", api_key="k")).startswith(
        "https://bedrock-runtime.eu-central-1.amazonaws.com/model/m"
    )
    monkeypatch.setenv("AWS_PROFILE", "cn")
    assert "//bedrock-runtime.cn-north-1.amazonaws.com.cn/" in url_of(Agent("bedrock:m", api_key="k"))
    monkeypatch.setenv("AWS_PROFILE", "missing")
    with pytest.raises(errors.ConfigurationError, match="missing"):
        _ = Agent("bedrock:m", api_key="k").provider
    monkeypatch.setenv("AWS_REGION", "us-west-2")
    assert "//bedrock-runtime.us-west-2.amazonaws.com/" in url_of(Agent("bedrock:m", api_key="k"))
    agent = Agent(f"bedrock:{PROFILE}", api_key="k")
    assert url_of(agent) == (
        "https://bedrock-runtime.eu-west-1.amazonaws.com/model/arn%3Aaws%3Abedrock%3Aeu-west-1%3A123456789012"
        "%3Aapplication-inference-profile%2Fab12cd34ef56/converse"
    )
    monkeypatch.setenv("AWS_REGION", "evil.example/")
    with pytest.raises(errors.ConfigurationError, match="not the name of an AWS region"):
        _ = Agent("bedrock:m", api_key="k").provider
    monkeypatch.setenv("AWS_ENDPOINT_URL_BEDROCK_RUNTIME", "https://vpce-1.example")
    monkeypatch.setenv("AWS_REGION", "us-west-2")
    assert url_of(Agent("bedrock:m", api_key="k")) == "https://vpce-1.example/model/m/converse"


@pytest.mark.usefixtures("_aws")
def test_an_api_key_is_a_bearer_token(drive: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_BEARER_TOKEN_BEDROCK", "bedrock-api-key-0123456789")
    for options in ({"api_key": None}, {"api_key": "bedrock-api-key-0123456789"}):
        outcome = drive.complete(VendorScript("Hello"), agent=f"bedrock:{CLAUDE}", **options)
        assert outcome.ok.text == "Hello"
        assert dict(outcome.requests[0].headers)[b"authorization"] == b"Bearer bedrock-api-key-0123456789"


@pytest.mark.usefixtures("_aws")
def test_missing_credentials_are_explained_before_anything_is_sent(drive_real: Driver) -> None:
    with LoopbackServer(VendorScript()) as server:
        agent = Agent(f"bedrock:{CLAUDE}", base_url=server.url)
        with pytest.raises(errors.ConfigurationError, match="region"):
            drive_real.call(agent)
        agent = Agent(f"bedrock:{CLAUDE}", base_url="https://bedrock-runtime.us-east-1.amazonaws.com")
        with pytest.raises(errors.AuthenticationError, match="AWS_BEARER_TOKEN_BEDROCK"):
            drive_real.call(agent)
        assert server.requests == []


@pytest.mark.usefixtures("_aws")
def test_without_botocore_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def fake(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("botocore"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", fake)
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    with pytest.raises(errors.ConfigurationError, match=r"agent-llm-router\[bedrock\]"):
        _ = Agent(f"bedrock:{CLAUDE}").provider
    assert Agent(f"bedrock:{CLAUDE}", api_key="k").provider.name == "bedrock"  # a key needs no botocore


def test_credentials_are_loaded_again_for_each_request_and_never_quoted(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    secrets = {"AWS_SECRET_ACCESS_KEY": "secret-0123456789", "AWS_SESSION_TOKEN": "tok-0123456789"}
    for name, value in {**secrets, "AWS_ACCESS_KEY_ID": "AKIDEXAMPLE", "AWS_REGION": "us-east-1"}.items():
        monkeypatch.setenv(name, value)

    def quote(request: Any) -> Answer:
        headers = {name.decode(): value.decode() for name, value in request.headers}
        message = f"The canonical request should have been x-amz-security-token:{headers['x-amz-security-token']}"
        return Answer([json.dumps({"message": message}).encode()], status=403)

    with LoopbackServer(quote) as server:
        agent = Agent(f"bedrock:{CLAUDE}", base_url=server.url, max_retries=0)
        with pytest.raises(errors.AuthenticationError) as caught:
            agent.complete("Hi")
        request = server.requests[0]
    for secret in ("secret-0123456789", "tok-0123456789"):
        assert secret not in f"{caught.value} {caught.value.body} {agent.provider!r} {request!r} {caplog.text}"
        assert secret not in repr(vars(caught.value))


# Prices and facts


@pytest.mark.parametrize(
    "model", [CLAUDE, "anthropic.claude-sonnet-4-5-20250929-v1:0", NOVA, LLAMA,
              f"arn:aws:bedrock:us-east-1:123456789012:inference-profile/{CLAUDE}"],
)  # fmt: skip
def test_models_have_prices(model: str) -> None:
    cost = price(Usage(prompt_tokens=1000, completion_tokens=100), provider="bedrock", models=(model,))
    assert cost is not None
    assert cost.dollars > 0


@pytest.mark.parametrize(
    "model",
    [CLAUDE, "in.anthropic.claude-sonnet-4-5-20250929-v1:0", f"arn:aws:bedrock:us-east-1:1:inference-profile/{CLAUDE}"],
)
def test_facts_are_found_under_ids_with_a_region_and_in_arns(model: str) -> None:
    assert facts("bedrock", model).context_window == 200_000
    assert facts("bedrock", PROFILE).context_window is None


def test_the_service_tier_of_a_response_sets_its_price() -> None:
    assert service_tier({"serviceTier": {"type": "priority"}}) is ServiceTier.PRIORITY
    assert service_tier({"serviceTier": {"type": "reserved"}}) is ServiceTier.OTHER
    assert service_tier({"serviceTier": {"type": "default"}}) is ServiceTier.STANDARD
