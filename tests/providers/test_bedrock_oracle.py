"""botocore as oracle: it accepts every body, and decodes responses and streams as we do."""

from __future__ import annotations

import base64
import hashlib
import hmac
import io
import json
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
from botocore.config import Config
from botocore.eventstream import EventStream
from botocore.exceptions import ClientError
from botocore.loaders import Loader
from botocore.model import ServiceModel
from botocore.parsers import create_parser
from botocore.serialize import create_serializer
from botocore.session import Session
from botocore.validate import ParamValidator
from hypothesis import given, settings

from agent import Agent, errors
from agent.engine.wire import Reply, WireRequest
from agent.providers.base import ApiAddress
from agent.providers.bedrock import BedrockCodec
from agent.providers.bedrock.server import SERVER
from agent.providers.server_stream import response_events
from agent.testing import LoopbackServer, VendorScript
from agent.types import (
    AgentRequest,
    AgentResponse,
    Citation,
    Part,
    TextContent,
    ThinkingContent,
    ToolCall,
    ToolSpec,
    Usage,
)
from tests.support.cases import examples
from tests.support.drivers import Driver
from tests.support.values import agent_requests

CLAUDE = "us.anthropic.claude-sonnet-4-5-20250929-v1:0"
PROFILE = "arn:aws:bedrock:us-east-1:123456789012:application-inference-profile/ab12cd34ef56"
CODEC = BedrockCodec(ApiAddress("http://127.0.0.1", None))
SECRET = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
WEATHER = ToolSpec(name="weather", parameters={"type": "object", "properties": {"city": {"type": "string"}}})
USAGE = Usage(prompt_tokens=130, completion_tokens=40, cache_read_tokens=100, cache_write_tokens=20)


@cache
def service() -> ServiceModel:
    return ServiceModel(Loader().load_service_model("bedrock-runtime", "service-2"), "bedrock-runtime")


def read_params(shape: Any, value: Any) -> Any:
    """Return parameters as botocore takes them, with bytes; check patterns, enums and limits."""
    match shape.type_name:
        case "structure" if not getattr(shape, "is_document_type", False):
            assert isinstance(value, dict), shape
            return {
                name: read_params(shape.members[name], inner) if name in shape.members else inner
                for name, inner in value.items()
            }
        case "list":
            return [read_params(shape.member, inner) for inner in value]
        case "map":
            return {key: read_params(shape.value, inner) for key, inner in value.items()}
        case "blob":
            return base64.b64decode(value, validate=True)
        case "string":
            assert not shape.enum or value in shape.enum, f"{shape.name} has no value {value!r}"
            pattern = shape.metadata.get("pattern")
            assert pattern is None or re.fullmatch(pattern, value), f"{value!r} does not fit {shape.name}"
            assert len(value) <= shape.metadata.get("max", len(value))
        case "float" | "integer":
            assert value <= shape.metadata.get("max", value)
        case _:
            pass
    return value


def check_body(wire: WireRequest, model: str) -> dict[str, Any]:
    """Return a body that botocore accepts, and would send itself to the same path."""
    names = {"converse": "Converse", "converse-stream": "ConverseStream", "count-tokens": "CountTokens"}
    operation = service().operation_model(names[wire.url.rpartition("/")[2]])
    body: dict[str, Any] = json.loads(wire.body)
    params = {"modelId": model, **read_params(operation.input_shape, body)}
    report = ParamValidator().validate(params, operation.input_shape)
    assert not report.has_errors(), report.generate_report()
    sent = create_serializer("rest-json").serialize_to_request(params, operation)
    assert json.loads(sent["body"]) == body
    assert wire.url == f"http://127.0.0.1{sent['url_path']}"
    return body


MODELS = (CLAUDE, "anthropic.claude-opus-4-8", "us.amazon.nova-2-lite-v1:0", "mistral.mistral-large-2407-v1:0", PROFILE)


@pytest.mark.parametrize("model", MODELS)
def test_any_request_is_one_that_botocore_accepts(model: str) -> None:
    @settings(max_examples=examples(25, 2_000))
    @given(agent_requests(model))
    def check(request: AgentRequest) -> None:
        try:
            body = check_body(CODEC.encode(request, stream=True), model)
        except errors.UnsupportedFeatureError as error:
            if "by URL, except s3://" in error.message:
                return
            raise
        messages = body["messages"]
        assert [message["role"] for message in messages] == [("user", "assistant")[n % 2] for n in range(len(messages))]
        points = json.dumps(body).count('"cachePoint"')
        assert points <= 4
        called = {block["toolUse"]["name"] for turn in messages for block in turn["content"] if "toolUse" in block}
        assert not called or body["toolConfig"]["tools"]
        for turn in messages:
            kinds = [next(iter(block)) for block in turn["content"]]
            assert kinds
            assert "document" not in kinds or "text" in kinds
            assert all(block["text"].strip() for block in turn["content"] if "text" in block)
        names = re.findall(r'"document": \{"format": "\w+", "name": "([^"]*)"', json.dumps(body))
        assert len(names) == len(set(names))

    check()


def test_a_request_can_be_counted() -> None:
    request = AgentRequest(input="Hi", system="Be brief.", model=CLAUDE, tools=[WEATHER], thinking="low", stop=["x"])
    body = check_body(CODEC.encode_count(request), CLAUDE.removeprefix("us."))
    assert body["input"]["converse"].keys() == {"messages", "system", "toolConfig", "additionalModelRequestFields"}


CONTENTS: dict[str, list[Part]] = {
    "text": [TextContent(text="Once upon a time\n\nthere was ☃.")],
    "calls": [
        ThinkingContent(thinking="I look.", signature="sig=="),
        TextContent(text="Let me look."),
        ToolCall(id="call_1", name="weather", arguments={"city": "Köln", "days": [1, {"x": None}]}),
        ToolCall(id="call_2", name="weather", arguments={}),
    ],
    "redacted": [ThinkingContent(thinking="", redacted=True, encrypted_content="c2VhbGVk"), TextContent(text="4")],
    "citations": [
        TextContent(
            text="It is blue.",
            citations=[
                Citation(title="Sky", provider_data={"title": "Sky", "location": {"web": {"url": "https://s.example"}}})
            ],
        )
    ],
}
contents = pytest.mark.parametrize("content", CONTENTS.values(), ids=CONTENTS)


def describe(blocks: list[dict[str, Any]]) -> list[Any]:
    """Blocks as botocore parses them."""
    described: list[Any] = []
    for block in blocks:
        match block:
            case {"text": text}:
                described.append(text)
            case {"reasoningContent": {"reasoningText": reasoning}}:
                described.append(("thinking", reasoning["text"], reasoning.get("signature", "")))
            case {"reasoningContent": {"redactedContent": data}}:
                described.append(("redacted", base64.b64encode(data).decode()))
            case {"toolUse": call}:
                described.append((call["toolUseId"], call["name"], call["input"]))
            case {"citationsContent": cited}:
                described.append((cited["content"][0]["text"], [source["title"] for source in cited["citations"]]))
            case _:
                raise AssertionError(block)
    return described


def describe_ours(response: AgentResponse) -> list[Any]:
    described: list[Any] = []
    for part in response.content:
        match part:
            case TextContent(citations=citations) if citations:
                described.append((part.text, [citation.title for citation in citations]))
            case TextContent():
                described.append(part.text)
            case ThinkingContent(redacted=True):
                described.append(("redacted", part.encrypted_content))
            case ThinkingContent():
                described.append(("thinking", part.thinking, part.signature))
            case ToolCall():
                described.append((part.id, part.name, dict(part.arguments)))
            case _:
                raise AssertionError(part)
    return described


def assert_same_usage(ours: Usage | None, theirs: dict[str, Any]) -> None:
    assert ours == USAGE
    assert (theirs["inputTokens"], theirs["outputTokens"]) == (ours.input_tokens, ours.completion_tokens)
    assert (theirs["cacheReadInputTokens"], theirs["cacheWriteInputTokens"]) == (100, 20)


@contents
def test_botocore_reads_a_response_as_we_do(content: list[Part]) -> None:
    request = AgentRequest(input="hi", model=CLAUDE)
    inbound = SERVER.decode_request(CODEC.encode(request, stream=False).url, CODEC.encode(request, stream=False).body)
    body = SERVER.encode_response(AgentResponse(content=content, usage=USAGE), inbound)
    shape = service().operation_model("Converse").output_shape
    parsed = create_parser("rest-json").parse({"body": body, "headers": {}, "status_code": 200}, shape)
    ours = CODEC.decode(Reply(200, {}, body), request)
    assert describe(parsed["output"]["message"]["content"]) == describe_ours(ours)
    assert parsed["stopReason"] == ours.raw_stop_reason
    assert_same_usage(ours.usage, parsed["usage"])


class RawStream(io.BytesIO):
    """A body as botocore's HTTP client gives it to its event stream."""

    def stream(self) -> Iterator[bytes]:
        yield self.read()


@contents
def test_botocore_reads_a_stream_as_we_do(content: list[Part]) -> None:
    request = AgentRequest(input="hi", model=CLAUDE)
    wire = CODEC.encode(request, stream=True)
    response = AgentResponse(content=content, usage=USAGE)
    encoder = SERVER.encoder(SERVER.decode_request(wire.url, wire.body))
    data = b"".join(encoder.encode_event(event) for event in response_events(response, SERVER)) + encoder.end(response)
    shape = service().operation_model("ConverseStream").output_shape.members["stream"]
    parser = create_parser("rest-json")._event_stream_parser
    theirs = list(EventStream(RawStream(data), shape, parser, "ConverseStream"))
    whole = CODEC.decode(Reply(200, {}, SERVER.encode_response(response, SERVER.decode_request(wire.url, wire.body))),
                         request)  # fmt: skip
    for cuts in [[data], [bytes([byte]) for byte in data], *([data[:at], data[at:]] for at in range(0, len(data), 7))]:
        decoder = CODEC.decoder({}, request)
        events = [event for chunk in cuts for event in decoder.feed(chunk)]
        assert (decoder.failure, decoder.done) == (None, True)
        assert decoder.response() == whole
    texts = [event for event in theirs if "text" in event.get("contentBlockDelta", {}).get("delta", {})]
    assert [event.raw for event in events if event.type == "text_delta"] == texts
    assert theirs[-2]["messageStop"]["stopReason"] == whole.raw_stop_reason
    assert_same_usage(whole.usage, theirs[-1]["metadata"]["usage"])


def boto_client(url: str) -> Any:
    session = Session()
    session.set_credentials("AKIDEXAMPLE", SECRET)
    options = Config(retries={"total_max_attempts": 1})
    return session.create_client("bedrock-runtime", region_name="us-west-2", endpoint_url=url, config=options)


def test_the_official_client_and_the_agent_agree_about_a_server() -> None:
    script = VendorScript(*[AgentResponse(content=CONTENTS["calls"], usage=USAGE)] * 4)
    with LoopbackServer(script) as server:
        agent = Agent(f"bedrock:{CLAUDE}", base_url=server.url, api_key="key", tools=[WEATHER], temperature=0.5)
        ours, streamed = agent.complete("Hi", system="Be brief."), agent.stream("Hi").collect()
        client = boto_client(server.url)
        asked = {
            "modelId": CLAUDE,
            "system": [{"text": "Be brief."}],
            "messages": [{"role": "user", "content": [{"text": "Hi"}]}],
            "inferenceConfig": {"temperature": 0.5},
            "toolConfig": {"tools": [{"toolSpec": {"name": "weather", "inputSchema": {"json": WEATHER.parameters}}}]},
        }
        theirs = client.converse(**asked)
        events = list(client.converse_stream(**asked)["stream"])
        client.close()
        sent, expected = server.requests[0], server.requests[2]
    assert (sent.url, json.loads(sent.body)) == (expected.url, json.loads(expected.body))
    assert describe(theirs["output"]["message"]["content"]) == describe_ours(ours) == describe_ours(streamed)
    assert [name for event in events for name in event][-2:] == ["messageStop", "metadata"]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.RateLimitError("slow"), "ThrottlingException"),
        (errors.BadRequestError("no"), "ValidationException"),
        (errors.OverloadedError("busy"), "ServiceUnavailableException"),
        (errors.AuthenticationError("no"), "AccessDeniedException"),
    ],
)
def test_the_official_client_reads_our_errors(error: errors.AgentError, code: str) -> None:
    with LoopbackServer(VendorScript(error)) as server:
        client = boto_client(server.url)
        with pytest.raises(ClientError) as caught:
            client.converse(modelId=CLAUDE, messages=[{"role": "user", "content": [{"text": "Hi"}]}])
        client.close()
    assert caught.value.response["Error"] == {"Code": code, "Message": error.message}


# Signatures


def verify_signature(request: WireRequest, secret: str, region: str) -> dict[str, str]:
    """Compute the signature of a received request from the specification of SigV4, and return its headers."""
    headers = {name.decode(): value.decode() for name, value in request.headers}
    parts = re.fullmatch(
        r"AWS4-HMAC-SHA256 Credential=(\w+)/(\d+)/([\w-]+)/(\w+)/aws4_request, SignedHeaders=([\w;-]+), "
        r"Signature=([0-9a-f]{64})",
        headers["authorization"],
    )
    assert parts is not None
    _, day, found_region, name, signed, signature = parts.groups()
    assert (found_region, name, headers["x-amz-date"][:8]) == (region, "bedrock", day)
    path = request.url.replace("%", "%25")  # every segment is encoded twice
    lines = "".join(f"{header}:{headers[header]}\n" for header in signed.split(";"))
    digest = hashlib.sha256(request.body).hexdigest()
    canonical = f"POST\n{path}\n\n{lines}\n{signed}\n{digest}"
    scope = f"{day}/{region}/bedrock/aws4_request"
    hashed = hashlib.sha256(canonical.encode()).hexdigest()
    key = f"AWS4{secret}".encode()
    for piece in (day, region, "bedrock", "aws4_request"):
        key = hmac.new(key, piece.encode(), hashlib.sha256).digest()
    text = f"AWS4-HMAC-SHA256\n{headers['x-amz-date']}\n{scope}\n{hashed}"
    assert signature == hmac.new(key, text.encode(), hashlib.sha256).hexdigest()
    return headers


@pytest.mark.parametrize("model", [CLAUDE, PROFILE], ids=["id", "arn"])
def test_requests_are_signed_with_credentials_from_the_environment(
    drive_http: Driver, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_SESSION_TOKEN", "token-0123456789")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    for call in (drive_http.complete, drive_http.stream):
        outcome = call(VendorScript("Hello"), agent=f"bedrock:{model}", api_key=None)
        assert outcome.ok.text == "Hello"
        headers = verify_signature(outcome.requests[-1], SECRET, "us-east-1")
        assert headers["x-amz-security-token"] == "token-0123456789"
