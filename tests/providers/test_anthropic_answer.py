"""Decoding of messages, whole and streamed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from agent import errors
from agent.engine.wire import Reply
from agent.providers.repair import REPEATED_CALL
from agent.types import (
    AgentRequest,
    AgentResponse,
    Citation,
    Message,
    RefusalContent,
    StreamEvent,
    TextContent,
    ThinkingContent,
    ToolSpec,
    VendorContent,
)
from tests.providers.anthropic_requests import CODEC, HOME, SONNET, body_of
from tests.support.cases import for_each
from tests.support.corpus import Exchange, codec_for, exchanges

REQUEST = AgentRequest(input="Hi", model=SONNET)
WHOLE = [
    exchange
    for exchange in exchanges("anthropic.messages")
    if exchange.stream is None and exchange.expected["kind"] == "message"
]
USAGE = {"input_tokens": 5, "output_tokens": 7}
EITHER, OR = ({"type": "object", "properties": {name: {"type": "string"}}, "required": [name]} for name in "ab")


def message(*blocks: dict[str, Any], **fields: Any) -> dict[str, Any]:
    kept = {"id": "msg_1", "type": "message", "role": "assistant", "model": SONNET, "content": list(blocks)}
    return {**kept, "stop_reason": "end_turn", "stop_sequence": None, "usage": USAGE, **fields}


def read(body: dict[str, Any], request: AgentRequest = REQUEST) -> AgentResponse:
    return CODEC.decode(Reply(200, {"request-id": "req_1"}, json.dumps(body).encode()), request)


def sse(*events: dict[str, Any]) -> bytes:
    return b"".join(
        f"event: {event.get('type')}\ndata: {json.dumps(event, ensure_ascii=False)}\n\n".encode() for event in events
    )


def start(index: int, block: dict[str, Any]) -> dict[str, Any]:
    return {"type": "content_block_start", "index": index, "content_block": block}


def delta(index: int, kind: str, **fields: Any) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": index, "delta": {"type": kind, **fields}}


def stop(index: int) -> dict[str, Any]:
    return {"type": "content_block_stop", "index": index}


def message_start(**fields: Any) -> dict[str, Any]:
    return {"type": "message_start", "message": message(stop_reason=None, **fields)}


def end(reason: str = "end_turn", **fields: Any) -> list[dict[str, Any]]:
    told = {"type": "message_delta", "delta": {"stop_reason": reason, "stop_sequence": None}, "usage": USAGE, **fields}
    return [told, {"type": "message_stop"}]


def events_of(*events: dict[str, Any], request: AgentRequest = REQUEST) -> tuple[list[StreamEvent], Any]:
    decoder = CODEC.decoder({"request-id": "req_1"}, request)
    seen = decoder.feed(sse(*events)) + decoder.end()
    return seen, decoder


def decode_stream(*events: dict[str, Any], request: AgentRequest = REQUEST) -> AgentResponse:
    _, decoder = events_of(*events, request=request)
    assert decoder.failure is None, decoder.failure
    assert decoder.done
    response: AgentResponse = decoder.response()
    return response


def as_stream(body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A whole message cut into the events that it would have been streamed as."""
    counts = body["usage"]
    yield {"type": "message_start", "message": {**body, "content": [], "stop_reason": None, "stop_details": None}}
    yield {"type": "ping"}
    for index, block in enumerate(body["content"]):
        yield from block_events(index, block)
    kept = {key: body.get(key) for key in ("stop_reason", "stop_sequence", "stop_details", "container")}
    yield {"type": "message_delta", "delta": kept, "usage": {"output_tokens": counts["output_tokens"]}}
    yield {"type": "message_stop"}


def block_events(index: int, block: dict[str, Any]) -> Iterator[dict[str, Any]]:
    match block["type"]:
        case "text":
            yield start(index, {**block, "text": "", **({"citations": []} if block.get("citations") else {})})
            for at in range(0, len(block["text"]), 9):
                yield delta(index, "text_delta", text=block["text"][at : at + 9])
            for citation in block.get("citations") or ():
                yield delta(index, "citations_delta", citation=citation)
        case "thinking":
            yield start(index, {**block, "thinking": "", "signature": ""})
            yield delta(index, "thinking_delta", thinking=block["thinking"])
            yield delta(index, "signature_delta", signature=block["signature"])
        case "tool_use" | "server_tool_use" | "mcp_tool_use":
            yield start(index, {**block, "input": {}})
            text = json.dumps(block["input"])
            for piece in ("", text[:3], text[3:]):
                yield delta(index, "input_json_delta", partial_json=piece)
        case "compaction":
            yield start(index, {**block, "content": None})
            yield delta(index, "compaction_delta", content=block["content"])
        case _:
            yield start(index, block)
    yield stop(index)


def test_data_without_a_field_is_the_vendors_whole_and_streamed() -> None:
    iterations = [{"type": "message", "input_tokens": 5, "output_tokens": 7}]
    usage = {**USAGE, "service_tier": "priority", "inference_geo": "eu", "iterations": iterations, "speed": None}
    container = {"id": "c1", "expires_at": "2026-01-01"}
    edits = {"applied_edits": [{"type": "clear_tool_uses_20250919", "cleared_tool_uses": 2}]}
    body = message(
        {"type": "text", "text": "hi"},
        stop_reason="stop_sequence",
        stop_sequence="END",
        usage=usage,
        container=container,
        context_management=edits,
        diagnostics=None,
    )
    streamed = [*as_stream({**body, "context_management": None})]
    streamed[-2]["context_management"] = edits
    whole = read(body)
    assert whole.stop_sequence == "END"
    assert whole.service_tier == "priority"
    assert whole.vendor == {
        "container": container,
        "context_management": edits,
        "usage": {"inference_geo": "eu", "iterations": iterations},
    }
    assert decode_stream(*streamed) == whole


def test_calls_with_one_id_get_different_ones() -> None:
    call = {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {"a": 1}}
    body = message(call, call, {**call, "id": None}, stop_reason="tool_use")
    whole = read(body)
    assert [one.id for one in whole.tool_calls] == ["toolu_1", "toolu_1#2", "toolu"]
    assert whole.warnings == (REPEATED_CALL,)
    assert decode_stream(*as_stream(body)) == whole


def test_tools_of_the_vendor_are_events() -> None:
    blocks: list[dict[str, Any]] = [
        {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "x"}},
        {"type": "web_search_tool_result", "tool_use_id": "s1", "content": []},
        {"type": "mcp_tool_use", "id": "m1", "name": "look", "server_name": "docs", "input": {}},
        {"type": "mcp_tool_result", "tool_use_id": "m1", "is_error": True, "content": []},
        {"type": "web_fetch_tool_result", "tool_use_id": "x", "content": {"type": "web_fetch_tool_result_error"}},
    ]
    events, decoder = events_of(*as_stream(message(*blocks)))
    assert [(event.tool, event.status, event.id) for event in events if event.type == "tool_progress"] == [
        ("web_search", "in_progress", "s1"),
        ("web_search", "completed", "s1"),
        ("look", "in_progress", "m1"),
        ("look", "failed", "m1"),
        ("web_fetch", "failed", "x"),
    ]
    assert [event.part for event in events if event.type == "content_part"] == list(decoder.response().content)
    assert [part.provider_data for part in decoder.response().content] == blocks


@for_each("exchange", WHOLE)
def test_a_message_is_the_same_whole_and_streamed(exchange: Exchange) -> None:
    body, codec = exchange.response["body"], codec_for(exchange)
    whole = codec.decode(Reply(200, {}, json.dumps(body).encode()), exchange.agent_request)
    decoder = codec.decoder({}, exchange.agent_request)
    decoder.feed(sse(*as_stream(body)))
    assert decoder.failure is None
    assert decoder.response() == whole
    assert decoder.response().raw["content"] == body["content"]


def test_text_with_its_sources() -> None:
    source = {"type": "web_search_result_location", "url": "https://x.test", "title": "T", "cited_text": "q"}
    body = message({"type": "text", "text": "So.", "citations": [source]}, {"type": "text", "text": " Yes."})
    cited, plain = read(body).content
    assert cited == TextContent(
        text="So.",
        citations=[Citation(url="https://x.test", title="T", quote="q", provider_data=source)],
        origin=HOME,
    )
    assert plain == TextContent(text=" Yes.")
    assert decode_stream(*as_stream(body)).content == (cited, plain)


def test_reasoning_shown_and_sealed() -> None:
    body = message(
        {"type": "thinking", "thinking": "Hm.", "signature": "sig"},
        {"type": "thinking", "thinking": "", "signature": "only a seal"},
        {"type": "redacted_thinking", "data": "sealed"},
    )
    assert read(body).content == (
        ThinkingContent(thinking="Hm.", signature="sig", origin=HOME),
        ThinkingContent(thinking="", signature="only a seal", origin=HOME),
        ThinkingContent(thinking="", redacted=True, encrypted_content="sealed", origin=HOME),
    )
    assert decode_stream(*as_stream(body)) == read(body)


def test_estimates_that_come_with_reasoning_are_no_part_of_it() -> None:
    answer = decode_stream(
        message_start(),
        start(0, {"type": "thinking", "thinking": "", "signature": ""}),
        delta(0, "thinking_delta", thinking="", estimated_tokens=50),
        delta(0, "thinking_delta", thinking="Hm.", estimated_tokens=None),
        delta(0, "signature_delta", signature="sig"),
        stop(0),
        start(1, {"type": "text", "text": "Yes."}),
        stop(1),
        *end(),
    )
    assert answer.content[0] == ThinkingContent(thinking="Hm.", signature="sig", origin=HOME)
    sent = body_of(Message.user("Hi"), answer.message, Message.user("Go on"))["messages"][1]["content"]
    assert sent[0] == {"type": "thinking", "thinking": "Hm.", "signature": "sig"}


def test_an_answer_that_another_model_went_on_with_is_that_models() -> None:
    names = {"from": {"model": SONNET}, "to": {"model": "claude-opus-4-8"}}
    body = message(
        {"type": "text", "text": "Well, "},
        {"type": "fallback", **names, "trigger": {"type": "refusal"}},
        {"type": "text", "text": "yes."},
        model="claude-opus-4-8",
    )
    first, *rest = as_stream(body)
    first["message"]["model"] = SONNET
    answer = decode_stream(first, *rest)
    assert answer == read(body)
    assert answer.model == answer.raw["model"] == "claude-opus-4-8"


def test_what_a_tool_of_the_vendor_has_found_may_be_long() -> None:
    kind = "web_fetch_tool_result"
    block = {"type": kind, "tool_use_id": "srvtoolu_1", "content": {"data": "A" * 2_000_000}}
    answer = decode_stream(message_start(), start(0, block), stop(0), *end())
    assert answer.content == (VendorContent(kind=kind, provider_data=block, origin=HOME),)


def test_blocks_that_nobody_knows_yet_are_kept_and_go_back_verbatim() -> None:
    block = {"type": "hologram", "id": "h1", "frames": [1, 2], "caption": "look", "input": {"a": 1}}
    answer = decode_stream(
        message_start(),
        start(0, {"type": "hologram", "id": "h1", "frames": [1], "caption": None, "input": {}}),
        delta(0, "frames_delta", frames=[2]),
        delta(0, "caption_delta", caption="lo"),
        delta(0, "caption_delta", caption="ok"),
        delta(0, "input_json_delta", partial_json='{"a"'),
        delta(0, "input_json_delta", partial_json=": 1}"),
        stop(0),
        {"type": "an event that is yet to be invented"},
        *end(),
    )
    assert answer.content == (VendorContent(kind="hologram", provider_data=block, origin=HOME),)
    assert answer == read(message(block)).model_copy(update={"request_id": "req_1"})
    sent = body_of(Message.user("Hi"), answer.message, Message.user("Go on"))["messages"][1]["content"]
    assert sent == [block]


def test_a_call_keeps_its_place_its_name_and_what_only_the_vendor_knows_of_it() -> None:
    request = REQUEST.model_copy(update={"tools": [ToolSpec(name="ns:run")]})
    name = body_of(Message.user("Hi"), tools=request.tools)["tools"][0]["name"]
    assert name != "ns:run"
    caller = {"type": "code_execution_20250825", "tool_id": "srvtoolu_1"}
    body = message(
        {"type": "tool_use", "id": "toolu_1", "name": name, "input": {"a": 1}, "caller": caller},
        {"type": "text", "text": "Done."},
        stop_reason="tool_use",
    )
    answer = read(body, request)
    (call,) = answer.tool_calls
    assert (call.name, call.arguments, call.provider_data, call.origin) == (
        "ns:run",
        {"a": 1},
        {"caller": caller},
        HOME,
    )
    assert decode_stream(*as_stream(body), request=request) == answer


@pytest.mark.parametrize(
    ("parameters", "written", "arguments"),
    [
        ({"anyOf": [EITHER, OR]}, {"value": {"a": "x"}}, {"a": "x"}),
        ({"type": "object", "properties": {"a": {"enum": ["x", [1]]}}}, {"a": "[1]"}, {"a": [1]}),
    ],
    ids=["in an object", "as text"],
)
def test_arguments_of_a_strict_tool_are_what_its_own_schema_wants(
    parameters: dict[str, Any], written: dict[str, Any], arguments: dict[str, Any]
) -> None:
    request = REQUEST.model_copy(update={"tools": [ToolSpec(name="f", parameters=parameters, strict=True)]})
    body = message({"type": "tool_use", "id": "toolu_1", "name": "f", "input": written}, stop_reason="tool_use")
    answer = read(body, request)
    assert answer.tool_calls[0].arguments == arguments
    assert decode_stream(*as_stream(body), request=request) == answer
    loose = request.model_copy(update={"tools": [ToolSpec(name="f", parameters=parameters)]})
    assert read(body, loose).tool_calls[0].arguments == written


def test_arguments_may_be_given_whole_at_the_start() -> None:
    block = {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"a": 1}}
    events, decoder = events_of(message_start(), start(0, block), stop(0), *end("tool_use"))
    assert decoder.response().tool_calls[0].arguments == {"a": 1}
    assert [event.type for event in events] == [
        "message_start", "tool_call_start", "tool_call_delta", "tool_call_end", "usage", "message_end",
    ]  # fmt: skip


def test_a_call_that_broke_off_ends_only_with_the_message_and_keeps_what_was_written() -> None:
    begun = [
        message_start(),
        start(0, {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {}}),
        delta(0, "input_json_delta", partial_json='{"a": '),
        stop(0),
    ]
    events, decoder = events_of(*begun)
    assert "tool_call_end" not in [event.type for event in events]
    assert decoder.partial().tool_calls == []
    (call,) = decode_stream(*begun, *end("max_tokens")).tool_calls
    assert (call.arguments, call.invalid_arguments) == ({}, '{"a": ')


def test_nothing_is_handed_out_before_there_is_content() -> None:
    decoder = CODEC.decoder({}, REQUEST)
    assert decoder.feed(sse(message_start(), {"type": "ping"}, start(0, {"type": "text", "text": ""}))) == []
    first, second = decoder.feed(sse(delta(0, "text_delta", text="Hi")))
    assert (first.type, second.type) == ("message_start", "text_delta")
    assert first.response is not None
    assert first.response.usage is not None
    events, _ = events_of(message_start(), *end())
    assert [event.type for event in events] == ["message_start", "message_end"]


def test_counts_at_the_end_replace_those_from_the_start_and_the_others_stay() -> None:
    begun = {"input_tokens": 3, "cache_read_input_tokens": 100, "cache_creation_input_tokens": 20, "output_tokens": 1}
    final = {"input_tokens": 4, "cache_read_input_tokens": None, "output_tokens": 50}
    usage = decode_stream(message_start(usage=begun), *end(usage=final)).usage
    assert usage is not None
    assert (usage.input_tokens, usage.cache_read_tokens, usage.cache_write_tokens) == (4, 100, 20)
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (124, 50, 174)


def test_everything_that_is_billed_is_counted() -> None:
    usage = read(
        message(
            usage={
                "input_tokens": 10,
                "cache_creation_input_tokens": 30,
                "cache_creation": {"ephemeral_5m_input_tokens": 10, "ephemeral_1h_input_tokens": 20},
                "output_tokens": 9,
                "output_tokens_details": {"thinking_tokens": 4},
                "server_tool_use": {"web_search_requests": 2, "web_fetch_requests": 0},
                "iterations": [
                    {"type": "message", "input_tokens": 10, "output_tokens": 9},
                    {"type": "compaction", "input_tokens": 600, "cache_read_input_tokens": 1, "output_tokens": 60},
                    {"type": "advisor_message", "input_tokens": 7, "output_tokens": 8},
                ],
            }
        )
    ).usage
    assert usage is not None
    assert (usage.prompt_tokens, usage.cache_write_tokens, usage.reasoning_tokens) == (40, 30, 4)
    assert usage.details == {
        "cache_write_5m_tokens": 10,
        "cache_write_1h_tokens": 20,
        "web_searches": 2,
        "compaction_input_tokens": 601,
        "compaction_output_tokens": 60,
        "advisor_input_tokens": 7,
        "advisor_output_tokens": 8,
    }


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        ("end_turn", "stop"),
        ("stop_sequence", "stop"),
        ("max_tokens", "length"),
        ("model_context_window_exceeded", "length"),
        ("tool_use", "tool_calls"),
        ("pause_turn", "pause"),
        ("compaction", "pause"),
        ("refusal", "refusal"),
        ("bored", "other"),
    ],
)
def test_reasons_for_stopping(raw: str, reason: str) -> None:
    answer = read(message(stop_reason=raw))
    assert (answer.stop_reason, answer.raw_stop_reason) == (reason, raw)
    assert decode_stream(message_start(), *end(raw)) == answer


def test_a_refusal_is_explained_where_the_vendor_explains_it() -> None:
    details = {"type": "refusal", "category": "cyber", "explanation": "This could enable harm."}
    body = message({"type": "text", "text": "I"}, stop_reason="refusal", stop_details=details)
    answer = read(body)
    assert answer.refusal == "This could enable harm."
    assert answer.content[-1] == RefusalContent(refusal="This could enable harm.")
    assert answer.raw["stop_details"]["category"] == "cyber"
    assert decode_stream(*as_stream(body)) == answer


def test_what_has_no_place_of_its_own_stays_in_raw() -> None:
    container = {"id": "container_1", "expires_at": "2026-01-01T00:00:00Z"}
    answer = decode_stream(message_start(), {
        "type": "message_delta", "delta": {"stop_reason": "end_turn", "container": container}, "usage": USAGE,
        "context_management": {"applied_edits": [1]}, "input_transformations": None,
    }, {"type": "message_stop"})  # fmt: skip
    assert answer.raw["container"] == container
    assert answer.raw["context_management"] == {"applied_edits": [1]}
    assert answer.raw["type"] == "message"
    assert read(message(container=container)).raw["container"] == container


@pytest.mark.parametrize(
    ("kind", "expected", "retryable"),
    [
        ("overloaded_error", errors.OverloadedError, True),
        ("rate_limit_error", errors.RateLimitError, True),
        ("api_error", errors.ProviderError, True),
        ("authentication_error", errors.AuthenticationError, False),
        ("invalid_request_error", errors.BadRequestError, False),
    ],
)
def test_an_error_in_the_stream_is_of_its_real_kind_and_what_came_before_is_kept(
    kind: str, expected: type[errors.AgentError], retryable: bool
) -> None:
    events, decoder = events_of(
        message_start(),
        start(0, {"type": "text", "text": ""}),
        delta(0, "text_delta", text="So far"),
        {"type": "error", "error": {"type": kind, "message": "Sorry"}},
        *end(),
    )
    assert type(decoder.failure) is expected
    assert decoder.failure.retryable is retryable
    assert not decoder.done
    assert events[-1].text == decoder.partial().text == "So far"
    assert decoder.partial().usage is not None


@pytest.mark.malformed
@pytest.mark.parametrize(
    "events",
    [
        [message_start(), {"type": "message_stop"}],
        [message_start(), delta(3, "text_delta", text="for no block")],
        [message_start(), {"no type": 1}],
        [message_start(), start(0, {"type": "tool_use", "id": "x"})],
    ],
)
def test_a_stream_that_makes_no_sense_is_an_error(events: list[dict[str, Any]]) -> None:
    _, decoder = events_of(*events)
    assert isinstance(decoder.failure, errors.ProtocolError)
    assert not decoder.done


TEXT = {"type": "text", "text": ""}


def test_blocks_that_all_have_the_same_index_each_keep_their_place() -> None:
    """Seen from servers that translate other APIs into this one."""
    search = {"type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {}}
    answer = decode_stream(
        message_start(),
        *(start(0, TEXT), delta(0, "text_delta", text="Let me see."), stop(0)),
        *(start(0, search), stop(0)),
        *(start(0, TEXT), delta(0, "text_delta", text="Yes."), stop(0)),
        *(start(0, CALLED), delta(0, "input_json_delta", partial_json='{"a": 1}'), stop(0)),
        *end("tool_use"),
    )
    assert [part.type for part in answer.content] == ["text", "vendor", "text", "tool_call"]
    assert answer.text == "Let me see.Yes."
    assert answer.tool_calls[0].arguments == {"a": 1}
    assert [block["type"] for block in answer.raw["content"]] == ["text", "server_tool_use", "text", "tool_use"]


CALLED = {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {}}


def test_a_block_that_begins_where_another_still_grows_ends_that_one() -> None:
    answer = decode_stream(
        message_start(),
        *(start(0, CALLED), delta(0, "input_json_delta", partial_json='{"half')),
        *(start(0, {**CALLED, "id": "toolu_2"}), delta(0, "input_json_delta", partial_json='{"a": 1}'), stop(0)),
        *end("tool_use"),
    )
    broken, whole = answer.tool_calls
    assert (broken.id, broken.invalid_arguments) == ("toolu_1", '{"half')
    assert (whole.id, whole.arguments) == ("toolu_2", {"a": 1})


def test_an_end_that_comes_twice_and_a_piece_that_is_null_do_no_harm() -> None:
    pieces = (delta(0, "input_json_delta", partial_json=piece) for piece in (None, '{"a"', ": 1}"))
    answer = decode_stream(message_start(), start(0, CALLED), *pieces, stop(0), stop(0), *end("tool_use"))
    assert answer.tool_calls[0].arguments == {"a": 1}


def test_keys_of_a_text_delta_besides_its_text_are_kept() -> None:
    start = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
    pieces: list[dict[str, Any]] = [{"text": "a"}, {"text": None, "note": "x"}, {"text": "b", "note": "y"}]
    deltas = [{"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", **piece}} for piece in pieces]
    seen, decoder = events_of(message_start(), start, *deltas, stop(0), *end())
    (part,) = decoder.response().content
    assert (part.text, part.provider_data) == ("ab", {"note": "xy"})
    assert [event.text for event in seen if event.type == "text_delta"] == ["a", "b"]


def test_a_stream_that_does_not_say_who_answers_is_still_an_answer_of_the_vendors() -> None:
    answer = decode_stream(start(0, TEXT), delta(0, "text_delta", text="Hi"), stop(0), *end())
    assert (answer.provider, answer.model, answer.text) == ("anthropic", SONNET, "Hi")


@pytest.mark.parametrize(("given", "kept"), [([None, True], "[null,true]"), (7, "7"), ("{", "{")])
def test_arguments_that_are_no_object_are_kept_as_they_were_written(given: Any, kept: str) -> None:
    whole = read(message({**CALLED, "input": given}, stop_reason="tool_use")).tool_calls[0]
    text = given if isinstance(given, str) else json.dumps(given)
    pieces = delta(0, "input_json_delta", partial_json=text)
    grown = decode_stream(message_start(), start(0, CALLED), pieces, stop(0), *end("tool_use")).tool_calls[0]
    assert whole == grown
    assert whole.invalid_arguments == kept


@pytest.mark.parametrize("count", ["7", None, [], -1, 1e400])
def test_an_answer_does_not_fail_for_a_count_that_is_none(count: Any) -> None:
    body = message({"type": "text", "text": "Hi"}, usage={"input_tokens": 5, "output_tokens": count})
    whole = CODEC.decode(Reply(200, {}, json.dumps(body).replace("Infinity", "1e400").encode()), REQUEST)
    assert whole.usage is not None
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (5, 0)


@pytest.mark.malformed
def test_a_stream_whose_end_cannot_be_read_is_not_done() -> None:
    told = {"type": "message_delta", "delta": {"stop_reason": ["odd"]}}
    _, decoder = events_of(message_start(), told, {"type": "message_stop"})
    assert isinstance(decoder.failure, errors.ProtocolError)
    assert not decoder.done


def test_blocks_that_were_never_ended_end_with_the_message() -> None:
    begun = start(0, {"type": "thinking", "thinking": "Hm.", "signature": "sig"})
    answer = decode_stream(message_start(), begun, start(1, {"type": "text", "text": "So."}), *end())
    assert answer.content == (
        ThinkingContent(thinking="Hm.", signature="sig", origin=HOME),
        TextContent(text="So."),
    )


@pytest.mark.malformed
@pytest.mark.parametrize(
    "body", [b"[]", b"{}", b"?", b'{"content": [{"text": "no type"}]}', b'{"content": [1]}', b'{"content": []}']
)
def test_what_is_no_message_is_an_error(body: bytes) -> None:
    with pytest.raises(errors.ProtocolError):
        CODEC.decode(Reply(200, {}, body), REQUEST)


def test_an_error_inside_a_success_is_an_error() -> None:
    body = json.dumps({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}).encode()
    with pytest.raises(errors.OverloadedError):
        CODEC.decode(Reply(200, {}, body), REQUEST)
