"""The server side of each wire format, judged by its own codec and by the official SDKs' types."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import anthropic
import anthropic.types
import openai
import openai.types.chat
import openai.types.responses
import pytest
from google import genai
from google.genai import types as genai_types
from hypothesis import assume, given
from hypothesis import strategies as st
from pydantic import TypeAdapter
from typing_extensions import override

from agent import errors
from agent.engine.wire import MAX_REPLY_BYTES, Reply
from agent.http.sse import SseDecoder
from agent.providers import Provider, load_provider, server_dialects
from agent.providers.server_dialect import InboundRequest, ServerDialect
from agent.providers.server_stream import response_events
from agent.testing import Answer, LoopbackServer
from agent.types import (
    AgentConfig,
    AgentRequest,
    AgentResponse,
    ImageContent,
    Message,
    Origin,
    Part,
    RefusalContent,
    Role,
    StreamEvent,
    TextContent,
    ThinkingContent,
    ToolCall,
    ToolResult,
    ToolSpec,
    Usage,
    VendorContent,
)
from tests.support import recording_checks
from tests.support import values as strategies
from tests.support.corpus import Exchange, exchanges
from tests.support.recording_checks import events_of

Strategy = st.SearchStrategy[Any]


@dataclass(frozen=True)
class Format:
    """A wire format: codec, server dialect, features and losses."""

    name: str
    model: str
    body_type: Any
    event_type: Any
    normal: Callable[[Iterable[Part]], list[Part]]
    """The content as this format can say it."""
    reasons: tuple[str, ...]
    thinking: Strategy
    texts: Strategy
    calls: Strategy
    writes_cache: bool = True

    @property
    def codec(self) -> Provider:
        return load_provider(self.name)(AgentConfig(provider=self.name, model=self.model, api_key="sk-test"))

    @property
    def server(self) -> ServerDialect:
        return next(server for server in server_dialects() if server.api == self.name)

    @property
    def request(self) -> AgentRequest:
        return AgentRequest(input="Hi", model=self.model)

    def inbound(self, *, stream: bool = True) -> InboundRequest:
        wire = self.codec.encode(self.request, stream=stream)
        return self.server.decode_request(wire.url, wire.body)

    @override
    def __str__(self) -> str:
        return self.name


def join_events(parts: Iterable[Part], *kinds: type[Part]) -> list[Part]:
    """All text of some kinds as one part of each."""
    found: list[Part] = []
    for kind, field in ((ThinkingContent, "thinking"), (TextContent, "text"), (RefusalContent, "refusal")):
        text = "".join(getattr(part, field) for part in parts if isinstance(part, kind))
        if kind in kinds and text:
            values: Any = {field: text}
            found.append(kind(**values))
    return found


def chat_form(parts: Iterable[Part]) -> list[Part]:
    """Reasoning, text, refusal, calls: a message has one place for each."""
    parts = list(parts)
    calls = [part for part in parts if isinstance(part, ToolCall)]
    return [*join_events(parts, ThinkingContent, TextContent, RefusalContent), *calls]


def blocks_form(parts: Iterable[Part]) -> list[Part]:
    """Blocks as they are, with the explanation of a refusal last."""
    parts = list(parts)
    return [*(part for part in parts if not isinstance(part, RefusalContent)), *join_events(parts, RefusalContent)]


def gemini_form(parts: Iterable[Part]) -> list[Part]:
    """Neighbours of one kind are one part, unless one is signed. A refusal has no part."""
    kept = [part for part in parts if not isinstance(part, RefusalContent)]
    found: list[Part] = []
    for _, run in groupby(kept, key=lambda part: (type(part), getattr(part, "signature", None) or "")):
        several = list(run)
        if isinstance(several[0], ToolCall) or getattr(several[0], "signature", None):
            found += several
        else:
            found += join_events(several, ThinkingContent, TextContent)
    return found


plain_text = st.builds(TextContent, text=strategies.said)
plain_thinking = st.builds(ThinkingContent, thinking=strategies.said)
plain_calls = st.builds(ToolCall, id=strategies.ids, name=strategies.tool_names, arguments=strategies.arguments)
odd_calls = plain_calls | st.builds(
    ToolCall, id=strategies.ids, name=strategies.tool_names, invalid_arguments=st.just('{"a": ')
)

signatures = st.sampled_from(("c2lnbmVk", "c2VhbGVkIQ=="))

FORMATS = (
    Format(
        "openai-chat",
        "gpt-4o",
        openai.types.chat.ChatCompletion,
        openai.types.chat.ChatCompletionChunk,
        chat_form,
        ("stop", "length", "content_filter"),
        plain_thinking,
        plain_text,
        odd_calls,
    ),
    Format(
        "openai-responses",
        "gpt-5",
        openai.types.responses.Response,
        openai.types.responses.ResponseStreamEvent,
        list,
        ("stop", "length", "content_filter"),
        st.builds(ThinkingContent, thinking=strategies.texts, encrypted_content=strategies.opaque) | plain_thinking,
        plain_text,
        odd_calls,
    ),
    Format(
        "anthropic",
        "claude-sonnet-4-5",
        anthropic.types.Message,
        anthropic.types.RawMessageStreamEvent,
        blocks_form,
        ("stop", "length", "pause"),
        st.builds(ThinkingContent, thinking=strategies.texts, signature=strategies.opaque)
        | st.builds(ThinkingContent, thinking=st.just(""), redacted=st.just(True), encrypted_content=strategies.opaque)
        | plain_thinking,
        plain_text,
        odd_calls,
    ),
    Format(
        "gemini",
        "gemini-2.5-pro",
        genai_types.GenerateContentResponse,
        genai_types.GenerateContentResponse,
        gemini_form,
        ("stop", "length", "content_filter"),
        st.builds(ThinkingContent, thinking=strategies.said, signature=signatures) | plain_thinking,
        st.builds(TextContent, text=strategies.said, signature=st.none() | signatures),
        plain_calls,
        writes_cache=False,
    ),
)
every_format = pytest.mark.parametrize("format", FORMATS, ids=str)


@st.composite
def usages(draw: st.DrawFn, *, writes_cache: bool) -> Usage:
    prompt, completion = draw(st.integers(0, 10_000)), draw(st.integers(0, 10_000))
    read = draw(st.integers(0, prompt))
    written = draw(st.integers(0, prompt - read)) if writes_cache else 0
    reasoning = draw(st.integers(0, completion))
    return Usage.from_counts(prompt, completion, cache_read=read, cache_write=written, reasoning=reasoning)


@st.composite
def responses(draw: st.DrawFn, format: Format) -> AgentResponse:
    """Responses that the wire format can express."""
    refused = draw(st.integers(0, 4)) == 0 and format.name != "gemini"
    refusal = st.builds(RefusalContent, refusal=strategies.said)
    parts = draw(
        st.lists(
            st.one_of(format.texts, format.texts, format.thinking, format.calls),
            max_size=5,
            unique_by=lambda part: part.id if isinstance(part, ToolCall) else id(part),
        )
    )
    if refused:
        parts = [*(part for part in parts if not isinstance(part, ToolCall)), draw(refusal)]
    called = any(isinstance(part, ToolCall) for part in parts)
    reasons = ("tool_calls", "length") if called else ("refusal",) if refused else format.reasons
    return AgentResponse(
        model=format.model,
        id=draw(st.none() | st.just("response-1")),
        content=parts,
        usage=draw(usages(writes_cache=format.writes_cache)),
        stop_reason=draw(st.sampled_from(reasons)),
    )


_BARE: dict[str, Any] = {"origin": None, "provider_data": None}


def bare(part: Part) -> Part:
    """A part without the names that a vendor gives it."""
    own: dict[str, Any] = {}
    if isinstance(part, ThinkingContent):
        own = {"id": "", "summary": ()}
    elif isinstance(part, ToolCall):
        own = {"item_id": None}
    return part.model_copy(update={**_BARE, **own})


def assert_same(found: AgentResponse, expected: AgentResponse, form: Callable[[Iterable[Part]], list[Part]]) -> None:
    assert [bare(part) for part in found.content] == [bare(part) for part in form(expected.content)]
    assert (found.stop_reason, found.usage) == (expected.stop_reason, expected.usage)
    assert expected.id in (None, found.id)
    assert found.model == expected.model


def encode_stream(format: Format, events: Iterable[StreamEvent], response: AgentResponse) -> list[bytes]:
    encoder = format.server.encoder(format.inbound())
    pieces = [encoder.encode_event(event) for event in events]
    return [*pieces, encoder.end(response)]


def decode_recording(format: Format, pieces: Iterable[bytes]) -> tuple[list[StreamEvent], AgentResponse]:
    decoder = format.codec.decoder({}, format.request)
    events: list[StreamEvent] = []
    for piece in pieces:
        events += decoder.feed(piece)
    events += decoder.end()
    assert decoder.failure is None, decoder.failure
    assert decoder.done
    return events, decoder.response()


# Responses


@every_format
@given(data=st.data())
def test_a_client_reads_the_response_that_was_written(format: Format, data: st.DataObject) -> None:
    response = data.draw(responses(format))
    body = format.server.encode_response(response, format.inbound(stream=False))
    assert_same(format.codec.decode(Reply(200, {}, body), format.request), response, format.normal)


@every_format
@given(data=st.data())
def test_a_client_reads_the_same_from_the_stream(format: Format, data: st.DataObject) -> None:
    response = data.draw(responses(format))
    pieces = encode_stream(format, response_events(response, format.server), response)
    assert_same(decode_recording(format, pieces)[1], response, format.normal)


@every_format
@pytest.mark.parametrize("target", FORMATS, ids=lambda format: f"to-{format}")
@given(data=st.data())
def test_a_stream_can_be_carried_over_from_another_format(format: Format, target: Format, data: st.DataObject) -> None:
    """Events of one vendor's decoder, interleaved as they are, become a sound stream of any format."""
    response = data.draw(responses(format))
    events, found = decode_recording(format, encode_stream(format, response_events(response, format.server), response))
    _, carried = decode_recording(target, encode_stream(target, events, found))
    for view in ("text", "thinking"):
        assert (getattr(carried, view) or "") == (getattr(found, view) or "")
    assert [(call.id, call.name, call.arguments) for call in carried.tool_calls] == [
        (
            call.id,
            call.name,
            call.arguments
            if call.invalid_arguments is None or target.name != "gemini"
            else {"invalid_arguments": call.invalid_arguments},
        )
        for call in found.tool_calls
    ]


@every_format
@given(data=st.data())
def test_official_types_accept_every_body_and_every_event(format: Format, data: st.DataObject) -> None:
    response = data.draw(responses(format))
    if not any(call.invalid_arguments for call in response.tool_calls):  # such a call breaks the vendor's own type
        body = format.server.encode_response(response, format.inbound(stream=False))
        TypeAdapter(format.body_type).validate_json(body)
    decoder = SseDecoder(MAX_REPLY_BYTES)
    adapter = TypeAdapter(format.event_type)
    for piece in encode_stream(format, response_events(response, format.server), response):
        for payload in decoder.feed(piece):
            if payload != b"[DONE]":
                adapter.validate_json(payload)


def test_images_and_computer_calls_pass_through_a_server_of_the_responses_api() -> None:
    format = next(one for one in FORMATS if one.name == "openai-responses")
    origin = Origin(provider=format.codec.name, api="openai-responses", model=format.request.model or "")
    click = {"actions": [{"type": "click", "button": "left", "x": 1, "y": 2}]}
    computer = {"type": "computer_call", "pending_safety_checks": []}
    response = AgentResponse(
        model=format.model,
        content=[
            ImageContent(image_data=b"RIFF", media_type="image/webp", provider_data={"id": "ig_1"}, origin=origin),
            ToolCall(id="c1", name="computer", arguments=click, item_id="cu_1", provider_data=computer, origin=origin),
        ],
        usage=Usage(prompt_tokens=1),
        stop_reason="tool_calls",
    )
    body = format.server.encode_response(response, format.inbound(stream=False))
    TypeAdapter(format.body_type).validate_json(body)
    whole = format.codec.decode(Reply(200, {}, body), format.request)
    assert [bare(part) for part in whole.content] == [bare(part) for part in response.content]
    events = [StreamEvent.content_part_event(part) for part in whole.content[:1]]
    ended = StreamEvent.tool_call_end(whole.tool_calls[0], index=1)
    assert decode_recording(format, encode_stream(format, [*events, ended], whole))[1].content == whole.content


# Requests


@every_format
@given(data=st.data(), stream=st.booleans())
def test_a_request_that_was_read_is_sent_on_as_it_came(format: Format, data: st.DataObject, stream: bool) -> None:
    """Whatever a codec writes is understood so well that it writes the same again."""
    request = data.draw(strategies.agent_requests(format.model))
    try:
        wire = format.codec.encode(request, stream=stream)
    except errors.ConfigurationError:
        assume(False)
    inbound = format.server.decode_request(wire.url, wire.body)
    assert (inbound.model, inbound.stream) == (format.model, stream)
    assert inbound.unsupported == ()
    again = format.codec.encode(inbound.request, stream=stream)
    assert in_one_form(json.loads(again.body)) == in_one_form(json.loads(wire.body))


def in_one_form(body: dict[str, Any]) -> dict[str, Any]:
    """Normalize a body: plain text as a block, and instructions as an item."""
    body = {**body}
    if isinstance(messages := body.get("messages"), list):
        body["messages"] = [_in_blocks(message) for message in messages]
    if isinstance(items := body.get("input"), list):
        instructions = body.pop("instructions", None)
        told = [] if instructions is None else [{"role": "system", "content": instructions}]
        body["input"] = [_output_joined(item) for item in (*told, *items)]
    return body


def _output_joined(item: dict[str, Any]) -> dict[str, Any]:
    """Texts of a result are joined: a codec sends them as one."""
    output = item.get("output")
    if not isinstance(output, list) or any(block.keys() != {"type", "text"} for block in output):
        return item
    return {**item, "output": "".join(block["text"] for block in output)}


def _in_blocks(message: dict[str, Any]) -> dict[str, Any]:
    content = message.get("content")
    return {**message, "content": [{"type": "text", "text": content}]} if isinstance(content, str) else message


LOOKUP = {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]}


@st.composite
def portable_requests(draw: st.DrawFn, model: str) -> AgentRequest:
    """Responses that every wire format can express."""
    turns: list[Message] = []
    for number in range(draw(st.integers(0, 2))):
        call = draw(plain_calls).model_copy(update={"id": f"call_{number}", "name": "lookup"})
        turns += [
            Message.user(draw(strategies.words)),
            Message.assistant([TextContent(text=draw(strategies.words)), call]),
            Message(Role.TOOL, [ToolResult(tool_call_id=call.id, content=draw(strategies.words))]),
            Message.assistant(draw(strategies.words)),
        ]
    picture = ImageContent(image_data=b"\x89PNG picture", media_type="image/png")
    asked: list[Any] = [TextContent(text=draw(strategies.words)), *draw(st.sampled_from(([], [picture])))]
    tool = ToolSpec(name="lookup", description="Finds.", parameters=LOOKUP)
    return AgentRequest(
        model=model,
        messages=[
            *draw(st.sampled_from(((), (Message.system("Be brief."),)))),
            *turns,
            Message.user(asked[0].text if len(asked) == 1 else asked),
        ],
        tools=[tool],
        tool_choice=draw(st.sampled_from((None, "auto", "none", "required", "lookup"))),
        max_tokens=draw(st.integers(2048, 4096)),
        temperature=draw(st.none() | st.sampled_from((0.0, 0.5, 1.0))),
    )


@given(data=st.data())
@every_format
def test_a_request_comes_through_unchanged(format: Format, data: st.DataObject) -> None:
    request = data.draw(portable_requests(format.model))
    wire = format.codec.encode(request, stream=False)
    left_out = any("left out" in warning for warning in wire.warnings)
    found = format.server.decode_request(wire.url, wire.body).request
    same = {"messages": _bare_messages(found), "temperature": request.temperature if left_out else found.temperature}
    assert found.model_copy(update=same) == request.model_copy(update={"messages": _bare_messages(request)})


def _bare_messages(request: AgentRequest) -> tuple[Message, ...]:
    """Messages without origins, and without the names and ids that only some formats have."""
    return tuple(
        message
        if isinstance(message.content, str)
        else Message(message.role, [_bare_result(bare(part)) for part in message.content])
        for message in request.to_messages()
    )


def _bare_result(part: Part) -> Part:
    if isinstance(part, ImageContent):
        return part.model_copy(update={"detail": None})
    return part.model_copy(update={"name": None}) if isinstance(part, ToolResult) else part


@every_format
@pytest.mark.parametrize("name", ["api_base", "base_url", "Extra-Headers", "api_key", "litellm_params"])
@pytest.mark.parametrize("nested", [False, True])
def test_a_request_cannot_say_where_it_goes(format: Format, name: str, nested: bool) -> None:
    wire = format.codec.encode(format.request, stream=False)
    banned: dict[str, Any] = {name: "https://elsewhere.example"}
    body = {**json.loads(wire.body), **({"x_new": [{"deep": banned}]} if nested else banned)}
    with pytest.raises(errors.ConfigurationError, match=name) as caught:
        format.server.decode_request(wire.url, json.dumps(body).encode())
    assert format.server.encode_error(caught.value)[0] == 400


@every_format
def test_a_parameter_of_a_tool_may_have_any_name(format: Format) -> None:
    schema = {"type": "object", "properties": {"headers": {"type": "string"}, "base_url": {"type": "string"}}}
    tool = ToolSpec(name="fetch", parameters=schema)
    wire = format.codec.encode(format.request.model_copy(update={"tools": (tool,)}), stream=False)
    (found,) = format.server.decode_request(wire.url, wire.body).request.tools
    assert isinstance(found, ToolSpec)
    assert found.parameters["properties"].keys() == {"headers", "base_url"}


@every_format
def test_a_new_field_is_carried(format: Format) -> None:
    wire = format.codec.encode(format.request, stream=False)
    body = {**json.loads(wire.body), "x_new": {"a": [1]}}
    request = format.server.decode_request(wire.url, json.dumps(body).encode()).request
    assert request.extra["x_new"] == {"a": [1]}
    assert json.loads(format.codec.encode(request, stream=False).body)["x_new"] == {"a": [1]}


_ODD: tuple[Any, ...] = (
    5,
    "x",
    [],
    {},
    [5],
    [None],
    {"type": 5},
    [{"type": "x"}],
    [{"role": "user", "content": 5}],
    True,
)


@every_format
@given(data=st.data())
def test_a_request_of_the_wrong_shape_is_refused_and_nothing_else(format: Format, data: st.DataObject) -> None:
    """Any part of a body may be anything: it is read, or answered with status 400."""
    request = data.draw(strategies.agent_requests(format.model))
    try:
        wire = format.codec.encode(request, stream=False)
    except errors.ConfigurationError:
        assume(False)
    body = json.loads(wire.body)
    place: Any = body
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        key = data.draw(st.sampled_from(keys))
        if not isinstance(place[key], dict | list) or not place[key] or data.draw(st.booleans()):
            place[key] = data.draw(st.sampled_from(_ODD))
            break
        place = place[key]
    with suppress(errors.ConfigurationError):
        format.server.decode_request(wire.url, json.dumps(body).encode())


@every_format
@pytest.mark.parametrize("body", [b"", b"[]", b"null", b"{", b"\xff"])
def test_a_body_that_is_no_json_object_is_refused(format: Format, body: bytes) -> None:
    url = format.codec.encode(format.request, stream=False).url
    with pytest.raises(errors.ConfigurationError):
        format.server.decode_request(url, body)


# Errors, counts, and what else a server says

KINDS: tuple[type[errors.AgentError], ...] = (
    errors.AuthenticationError,
    errors.BadRequestError,
    errors.ModelNotFoundError,
    errors.RateLimitError,
    errors.QuotaExceededError,
    errors.OverloadedError,
    errors.ContentFilterError,
)


@every_format
@pytest.mark.parametrize("kind", KINDS)
def test_a_client_reads_an_error_as_what_it_is(format: Format, kind: type[errors.AgentError]) -> None:
    status, body = format.server.encode_error(kind("sorry"))
    found = format.codec.decode_error(Reply(status, {}, body), format.request)
    assert (type(found), found.message) == (kind, "sorry")


@every_format
@pytest.mark.parametrize("kind", [errors.OverloadedError, errors.RateLimitError, errors.ProviderError])
@pytest.mark.parametrize("words", [0, 3])
def test_a_stream_that_breaks_says_why_and_has_no_end(
    format: Format, kind: type[errors.AgentError], words: int
) -> None:
    encoder = format.server.encoder(format.inbound())
    events = [StreamEvent.text_delta(f"word {number} ", index=0) for number in range(words)]
    written = b"".join([*(encoder.encode_event(event) for event in events), encoder.fail(kind("sorry"))])
    decoder = format.codec.decoder({}, format.request)
    decoder.feed(written)
    decoder.end()
    assert not decoder.done
    assert type(decoder.failure) is kind
    assert decoder.failure.message == "sorry"
    assert (decoder.partial().text or "").startswith("word 0" if words else "")


@every_format
def test_a_ping_means_nothing(format: Format) -> None:
    response = AgentResponse(text="Hello there", usage=Usage(), model=format.model)
    encoder = format.server.encoder(format.inbound())
    pieces = [encoder.ping() + encoder.encode_event(event) for event in response_events(response, format.server)]
    assert decode_recording(format, [*pieces, encoder.ping(), encoder.end(response)])[1].text == "Hello there"


@every_format
def test_nothing_is_written_before_the_first_content(format: Format) -> None:
    encoder = format.server.encoder(format.inbound())
    assert encoder.encode_event(StreamEvent.message_start(response=AgentResponse(model="m"))) == b""


@every_format
def test_a_stream_cannot_begin_anew(format: Format) -> None:
    encoder = format.server.encoder(format.inbound())
    encoder.encode_event(StreamEvent.text_delta("Hel"))
    with pytest.raises(errors.ProtocolError, match="on_partial"):
        encoder.encode_event(StreamEvent.restart_event("elsewhere"))


@pytest.mark.parametrize("format", FORMATS[1:], ids=str)
def test_a_client_reads_a_count(format: Format) -> None:
    codec: Any = format.codec
    wire = codec.encode_count(format.request)
    assert format.server.match_endpoint(wire.url) == "count"
    inbound = format.server.decode_request(wire.url, wire.body)
    assert (inbound.model, inbound.request.to_messages()) == (format.model, format.request.to_messages())
    assert codec.decode_count(Reply(200, {}, format.server.encode_count(17)), format.request) == 17


@pytest.mark.parametrize("format", FORMATS, ids=str)
def test_official_clients_read_a_list_of_models(format: Format) -> None:
    headers = {"content-type": "application/json"}
    with LoopbackServer(
        lambda request: Answer([format.server.encode_models(["one", "two"])], headers=headers)
    ) as server:
        assert _list_items(format.name, server.url) == ["one", "two"]


def _list_items(name: str, url: str) -> list[str | None]:
    match name:
        case "anthropic":
            with anthropic.Anthropic(api_key="sk-test", base_url=url) as claude:
                return [model.id for model in claude.models.list()]
        case "gemini":
            client = genai.Client(api_key="sk-test", http_options={"base_url": url})
            try:
                return [(model.name or "").removeprefix("models/") for model in client.models.list()]
            finally:
                client.close()
        case _:
            with openai.OpenAI(api_key="sk-test", base_url=url) as gpt:
                return [model.id for model in gpt.models.list()]


# Features of one wire format


def _format(name: str) -> Format:
    return next(format for format in FORMATS if format.name == name)


@pytest.mark.parametrize("wanted", [False, True])
def test_a_chat_stream_ends_with_usage_only_where_that_is_asked_for(wanted: bool) -> None:
    chat = _format("openai-chat")
    body: dict[str, Any] = {"model": "m", "messages": [], "stream": True}
    if wanted:
        body["stream_options"] = {"include_usage": True}
    inbound = chat.server.decode_request("/v1/chat/completions", json.dumps(body).encode())
    encoder = chat.server.encoder(inbound)
    assert (b'"usage"' in encoder.end(AgentResponse(text="x", usage=Usage(prompt_tokens=3)))) is wanted


@pytest.mark.parametrize("query", ["", "?alt=sse"])
def test_gemini_streams_events_or_one_array(query: str) -> None:
    gemini = _format("gemini")
    path = f"/v1beta/models/gemini-2.5-pro:streamGenerateContent{query}"
    inbound = gemini.server.decode_request(path, b'{"contents": [{"parts": [{"text": "Hi"}]}]}')
    assert (inbound.stream, inbound.model) == (True, "gemini-2.5-pro")
    response = AgentResponse(text="one two three", usage=Usage())
    encoder = gemini.server.encoder(inbound)
    written = b"".join([*map(encoder.encode_event, response_events(response, gemini.server)), encoder.end(response)])
    if query:
        assert written.startswith(b"data: ")
    else:
        assert len(json.loads(written)) == 4
    assert gemini.server.stream_headers(inbound)["content-type"] == (
        "text/event-stream" if query else "application/json"
    )


def test_what_a_vendor_would_have_stored_is_named() -> None:
    items = [{"type": "item_reference", "id": "msg_1"}]
    body: dict[str, Any] = {"model": "m", "input": items, "previous_response_id": "resp_1"}
    inbound = _format("openai-responses").server.decode_request("/v1/responses", json.dumps(body).encode())
    assert inbound.unsupported == ("previous_response_id", "input[0]")
    body = {"model": "m", "messages": [], "n": 2, "store": True}
    inbound = _format("openai-chat").server.decode_request("/v1/chat/completions", json.dumps(body).encode())
    assert inbound.unsupported == ("n",)
    assert inbound.warnings == ("store was left out: responses are not stored",)


def test_sealed_reasoning_keeps_the_id_that_its_vendor_gave_it() -> None:
    """The Responses API refuses sealed reasoning under another id."""
    format = _format("openai-responses")
    response = AgentResponse(content=[ThinkingContent(thinking="Hm", id="rs_9", encrypted_content="sealed")])
    events, _ = decode_recording(format, encode_stream(format, response_events(response, format.server), response))
    written = encode_stream(format, events, response)
    (part,) = decode_recording(format, written)[1].content
    assert isinstance(part, ThinkingContent)
    assert (part.id, part.encrypted_content) == ("rs_9", "sealed")
    assert set(re.findall(rb"rs_\w+", b"".join(written))) == {b"rs_9"}


@every_format
def test_a_block_that_is_interrupted_is_told_once(format: Format) -> None:
    """Some vendors go on with an earlier block, and repeat it as a whole at the end."""
    whole = ThinkingContent(thinking="one two")
    events = [
        StreamEvent.thinking_delta("one ", index=0),
        StreamEvent.text_delta("Hello", index=1),
        StreamEvent.thinking_delta("two", index=0),
        StreamEvent.content_part_event(whole, index=0),
    ]
    response = AgentResponse(content=[whole, TextContent(text="Hello")], model=format.model)
    _, found = decode_recording(format, encode_stream(format, events, response))
    assert (found.thinking, found.text) == ("one two", "Hello")


@every_format
def test_opaque_parts_of_another_vendor_are_reported_and_not_written(format: Format) -> None:
    origin = Origin(provider="acme", api="acme", model="m")
    part = VendorContent(kind="search", provider_data={"type": "search", "secret": "x"}, origin=origin)
    response = AgentResponse(content=[part, TextContent(text="Found.")], model=format.model)
    assert format.server.find_losses(response) == ("a part of type 'vendor'",)
    assert b"secret" not in format.server.encode_response(response, format.inbound(stream=False))
    assert b"secret" not in b"".join(encode_stream(format, response_events(response, format.server), response))


# Recorded responses

RECORDED_APIS = {
    "openai.chat": "openai-chat",
    "openai.responses": "openai-responses",
    "anthropic.messages": "anthropic",
    "gemini.generate": "gemini",
}
RESPONSES = [exchange for api in RECORDED_APIS for exchange in exchanges(api) if exchange.expected["kind"] == "message"]


def _summarize(response: AgentResponse) -> tuple[Any, ...]:
    """Summarize a response. Chat Completions and Gemini merge adjacent text; ids may be the server's."""
    calls = [(call.id, call.name, call.arguments, call.invalid_arguments) for call in response.tool_calls]
    return response.text or "", response.thinking, calls, response.refusal


@pytest.mark.parametrize("exchange", RESPONSES, ids=lambda exchange: exchange.name)
def test_a_recorded_response_is_told_again_as_it_was(exchange: Exchange) -> None:
    """The server side of the same format writes what the vendor said, whole and as a stream."""
    format = _format(RECORDED_APIS[exchange.api])
    response = recording_checks.decode_recording(exchange)
    if exchange.api == "gemini.generate":  # which has no place for what a refusal says
        response = response.model_copy(update={"content": [*format.normal(response.content)]})
    body = format.server.encode_response(response, format.inbound(stream=False))
    whole = format.codec.decode(Reply(200, {}, body), format.request)
    told = response_events(response, format.server)
    events = told if exchange.stream is None else events_of(exchange, [exchange.stream])
    _, again = decode_recording(format, encode_stream(format, events, response))
    for found in (whole, again):
        assert _summarize(found) == _summarize(response)
        assert found.model == response.model
        assert response.id in (None, found.id)
        if response.usage is not None and found.usage is not None:
            assert found.usage.prompt_tokens == response.usage.prompt_tokens
            assert found.usage.completion_tokens == response.usage.completion_tokens
