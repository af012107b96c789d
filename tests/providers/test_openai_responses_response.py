"""Decoded responses of the Responses API, complete and streamed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agent import errors
from agent.engine.wire import Reply
from agent.providers.base import ApiAddress
from agent.providers.openai_responses import ResponsesCodec
from agent.providers.openai_responses.stream import ResponsesDecoder
from agent.providers.repair import REPEATED_CALL
from agent.types import (
    AgentRequest,
    AgentResponse,
    ImageContent,
    Message,
    Origin,
    Part,
    TextContent,
    ThinkingContent,
    ToolCall,
    ToolSpec,
    VendorContent,
)
from tests.support.cases import for_each
from tests.support.corpus import Exchange, codec_for, exchanges, vendor
from tests.support.recording_checks import decode_recording

CODEC = ResponsesCodec(ApiAddress("", None), name="openai")
REQUEST = AgentRequest(input="?", model="gpt-5")
HOME = Origin(provider="openai", api="openai-responses", model="gpt-5")
USAGE = {"input_tokens": 5, "output_tokens": 3, "total_tokens": 8}

MESSAGE = {
    "type": "message",
    "id": "msg_1",
    "role": "assistant",
    "status": "completed",
    "content": [{"type": "output_text", "text": "Hello", "annotations": []}],
}
CALL = {
    "type": "function_call",
    "id": "fc_1",
    "call_id": "call_1",
    "name": "get_weather",
    "arguments": '{"city":"Paris"}',
    "status": "completed",
}
SUMMARY = [{"type": "summary_text", "text": "hm"}]
REASONING = {
    "type": "reasoning",
    "id": "rs_1",
    "summary": SUMMARY,
    "encrypted_content": "SEALED",
}
SEARCH = {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "q"}}


def answer(*items: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"id": "resp_1", "model": "gpt-5-x", "status": "completed", "output": items, "usage": USAGE, **more}


def read(*items: dict[str, Any], request: AgentRequest = REQUEST, **more: Any) -> AgentResponse:
    return CODEC.decode(Reply(200, {}, json.dumps(answer(*items, **more)).encode()), request)


def event(kind: str, **more: Any) -> dict[str, Any]:
    return {"type": kind if kind in ("error", "keepalive") else f"response.{kind}", **more}


def fed(*events: dict[str, Any], request: AgentRequest = REQUEST) -> ResponsesDecoder:
    decoder = CODEC.decoder({}, request)
    assert isinstance(decoder, ResponsesDecoder)
    for one in events:
        decoder.feed(b"data: " + json.dumps(one).encode() + b"\n\n")
    decoder.end()
    return decoder


def decode_stream(*events: dict[str, Any], request: AgentRequest = REQUEST) -> AgentResponse:
    decoder = fed(*events, request=request)
    assert decoder.failure is None, decoder.failure
    assert decoder.done
    return decoder.response()


CREATED = event("created", response={"id": "resp_1", "model": "gpt-5-x", "output": []})


def decode_response(*items: dict[str, Any], **more: Any) -> dict[str, Any]:
    return event("completed", response=answer(*items, **more))


# Whole answers.


def test_reasoning_text_and_calls_keep_what_must_go_back() -> None:
    response = read(REASONING, {**MESSAGE, "phase": "commentary"}, CALL)
    thinking, text, call = response.content
    assert thinking == ThinkingContent(
        thinking="hm", id="rs_1", encrypted_content="SEALED", summary=SUMMARY, origin=HOME
    )
    assert text == TextContent(text="Hello", provider_data={"id": "msg_1", "phase": "commentary"}, origin=HOME)
    assert (call.id, call.item_id, call.arguments, call.origin) == ("call_1", "fc_1", {"city": "Paris"}, HOME)  # type: ignore[union-attr]
    assert (response.stop_reason, response.raw_stop_reason) == ("tool_calls", "completed")
    assert (response.id, response.model) == ("resp_1", "gpt-5-x")


def test_sources_are_citations_with_the_vendors_own_form_inside() -> None:
    page = {"type": "url_citation", "url": "https://a", "title": "A", "start_index": 1, "end_index": 3}
    file = {"type": "file_citation", "file_id": "f", "filename": "a.pdf", "index": 4}
    block = {"type": "output_text", "text": "Hello", "annotations": [page, file]}
    text = read({**MESSAGE, "content": [block]}).content[0]
    assert isinstance(text, TextContent)
    first, second = text.citations
    assert (first.url, first.title, first.start, first.end, first.provider_data) == ("https://a", "A", 1, 3, page)
    assert (second.url, second.title, second.start, second.provider_data) == (None, "a.pdf", 4, file)


def test_a_refusal_is_no_text() -> None:
    response = read({**MESSAGE, "content": [{"type": "refusal", "refusal": "No."}]})
    assert (response.text, response.refusal, response.stop_reason) == (None, "No.", "refusal")


@pytest.mark.parametrize(
    ("details", "reason", "raw"),
    [
        ({"reason": "max_output_tokens"}, "length", "max_output_tokens"),
        ({"reason": "content_filter"}, "content_filter", "content_filter"),
        ({"reason": "steered"}, "other", "steered"),
        (None, "other", "incomplete"),
    ],
)
def test_an_incomplete_answer_says_why(details: Any, reason: str, raw: str) -> None:
    response = read(MESSAGE, status="incomplete", incomplete_details=details)
    assert (response.stop_reason, response.raw_stop_reason) == (reason, raw)
    assert response == decode_stream(
        CREATED, event("incomplete", response=answer(MESSAGE, status="incomplete", incomplete_details=details))
    )


def test_a_call_that_was_cut_off_has_no_arguments_even_if_they_can_be_read() -> None:
    for text in ('{"city": "Par', "{}"):
        (call,) = read({**CALL, "arguments": text, "status": "incomplete"}, status="incomplete").tool_calls
        assert (call.arguments, call.invalid_arguments) == ({}, text)


@pytest.mark.parametrize(
    ("text", "arguments", "invalid"),
    [("", {}, None), ("[1]", {}, "[1]"), ("{oops", {}, "{oops"), ('{"a": 1}', {"a": 1}, None)],
)
def test_arguments_that_are_no_object_are_kept_as_text(text: str, arguments: Any, invalid: str | None) -> None:
    (call,) = read({**CALL, "arguments": text}).tool_calls
    assert (call.arguments, call.invalid_arguments) == (arguments, invalid)


def test_a_call_without_an_id_gets_one_that_stays_the_same() -> None:
    bare = {key: value for key, value in CALL.items() if key not in ("id", "call_id")}
    first, second = read(bare, bare).tool_calls
    assert first.id != second.id
    assert [call.id for call in read(bare, bare).tool_calls] == [first.id, second.id]
    assert decode_stream(CREATED, decode_response(bare, bare)) == read(bare, bare)


def test_spellings_of_the_same_thing() -> None:
    assert read({**CALL, "arguments": {"city": "Paris"}}).content == read(CALL).content
    assert read({**MESSAGE, "content": "Hello"}).content == read(MESSAGE).content
    assert read({**MESSAGE, "content": [{"type": "refusal", "refusal": ""}]}).content == ()
    assert read({**MESSAGE, "status": "incomplete"}).content[0].provider_data == {"id": "msg_1", "status": "incomplete"}


def test_a_custom_tool_is_given_text() -> None:
    custom = {"type": "custom_tool_call", "id": "ctc_1", "call_id": "call_1", "name": "run", "input": "1+1"}
    (call,) = read(custom).tool_calls
    assert (call.arguments, call.provider_data) == ({"input": "1+1"}, {"type": "custom"})


def test_names_and_optional_arguments_come_back_as_the_caller_knows_them() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "string"}}, "required": ["a"]}
    tool = ToolSpec(name="search.web", parameters=schema, strict=True)
    request = AgentRequest(input="?", model="gpt-5", tools=[tool])
    sent = json.loads(CODEC.encode(request, stream=False).body)["tools"][0]["name"]
    item = {**CALL, "name": sent, "arguments": '{"a": "x", "b": null}'}
    response = read(item, request=request)
    assert [(call.name, call.arguments) for call in response.tool_calls] == [("search.web", {"a": "x"})]
    started = event("output_item.added", output_index=0, item={**item, "arguments": ""})
    finished = event("output_item.done", output_index=0, item=item)
    assert decode_stream(CREATED, started, finished, decode_response(item), request=request) == response


def test_what_only_the_vendor_understands_is_kept_as_it_came() -> None:
    odd = {"type": "brand_new_call", "id": "x", "anything": [1, {"a": None}]}
    block = {**MESSAGE, "content": [{"type": "output_hologram", "data": "x"}]}
    response = read(SEARCH, odd, block)
    assert [(part.kind, part.provider_data, part.origin) for part in response.content if part.type == "vendor"] == [
        ("web_search_call", SEARCH, HOME),
        ("brand_new_call", odd, HOME),
        ("output_hologram", block, HOME),
    ]


def test_probabilities_of_tokens() -> None:
    token = {"token": "Hi", "logprob": -0.1, "bytes": [1], "top_logprobs": [{"token": "Ho", "logprob": -2.0}]}
    message = {**MESSAGE, "content": [{"type": "output_text", "text": "Hi", "logprobs": [token]}]}
    expected = ({"token": "Hi", "logprob": -0.1, "top": [{"token": "Ho", "logprob": -2.0}]},)
    assert read(message).logprobs == expected
    bare = {**MESSAGE, "content": [{"type": "output_text", "text": "Hi"}]}
    delta = event("output_text.delta", output_index=0, content_index=0, delta="Hi", logprobs=[token])
    assert (
        decode_stream(CREATED, delta, event("output_item.done", output_index=0, item=bare), decode_response()).logprobs
        == expected
    )


def test_usage_in_all_spellings() -> None:
    counts = {
        "input_tokens": 100,
        "input_tokens_details": {"cached_tokens": 40, "cache_write_tokens": 10},
        "output_tokens": 20,
        "output_tokens_details": {"reasoning_tokens": 5},
        "total_tokens": 120,
    }
    usage = read(MESSAGE, usage=counts).usage
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (100, 20, 120)
    assert (usage.cache_read_tokens, usage.cache_write_tokens, usage.reasoning_tokens) == (40, 10, 5)
    assert (usage.billed, dict(usage.details)) == (None, {})


@pytest.mark.parametrize(
    ("usage", "more", "billed", "details"),
    [
        ({"cost": 0.0025}, {}, 0.0025, {}),
        ({"cost_in_usd_ticks": 9243500}, {}, 0.00092435, {}),
        ({"cost_in_usd_ticks": 0}, {}, None, {}),
        ({"cost": 0.25, "is_byok": True, "cost_details": {"upstream_inference_cost": 0.5}}, {}, 0.75, {}),
        ({}, {"tool_usage": {"web_search": {"num_requests": 3}}}, None, {"web_searches": 3}),
        (
            {"server_side_tool_usage_details": {"web_search_calls": 2, "code_interpreter_calls": 1}},
            {},
            None,
            {"web_searches": 2, "code_executions": 1},
        ),
        ({}, {"output": [SEARCH, MESSAGE]}, None, {"web_searches": 1}),
        ({}, {"output": [SEARCH, {**SEARCH, "action": {"type": "open_page"}}, MESSAGE]}, None, {"web_searches": 1}),
    ],
    ids=[
        "OpenRouter's cost",
        "xAI's ticks",
        "ticks where another bills",
        "OpenRouter with a key of one's own",
        "tool usage",
        "xAI's tools",
        "searches counted",
        "pages opened",
    ],
)
def test_what_else_was_billed(usage: Any, more: Any, billed: float | None, details: dict[str, int]) -> None:
    found = read(MESSAGE, **{"usage": {**USAGE, **usage}, **more}).usage
    assert found is not None
    assert (found.billed, dict(found.details)) == (billed, details)
    told = {"usage": {**USAGE, **usage}, "output": [MESSAGE], **more}
    assert decode_stream(CREATED, decode_response(**told)).usage == found


@pytest.mark.malformed
@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (answer(status="failed", error={"code": "rate_limit_exceeded", "message": "slow"}), errors.RateLimitError),
        (answer(status="failed", error={"code": "server_error", "message": "oops"}), errors.ProviderError),
        (answer(status="failed", error=None), errors.ProtocolError),
        (answer(status="in_progress", id=None), errors.ProtocolError),
        ({"id": "resp_1"}, errors.ProtocolError),
        ([], errors.ProtocolError),
    ],
    ids=["rate limit", "server error", "failed without a reason", "not finished", "no output", "no object"],
)
def test_a_response_that_failed_or_is_not_finished_is_never_an_answer(body: Any, kind: type[Exception]) -> None:
    with pytest.raises(kind) as caught:
        CODEC.decode(Reply(200, {}, json.dumps(body).encode()), REQUEST)
    assert type(caught.value) is kind


# Streams.


def test_nothing_is_emitted_before_content() -> None:
    decoder = CODEC.decoder({}, REQUEST)
    for one in (
        CREATED,
        event("in_progress", response={"id": "resp_1"}),
        event("keepalive"),
        event("output_item.added", output_index=0, item={**MESSAGE, "content": []}),
        event("content_part.added", output_index=0, content_index=0, part={"type": "output_text", "text": ""}),
    ):
        assert decoder.feed(b": comment\n\ndata: " + json.dumps(one).encode() + b"\n\n") == []
    delta = event("output_text.delta", output_index=0, content_index=0, delta="Hi")
    events = decoder.feed(b"data: " + json.dumps(delta).encode() + b"\n\n")
    assert [one.type for one in events] == ["message_start", "text_delta"]
    assert events[0].response is not None
    assert (events[0].response.id, events[0].response.model) == ("resp_1", "gpt-5-x")


WHOLE = read(REASONING, MESSAGE, CALL)
ADDED = [
    event("output_item.added", output_index=0, item={**REASONING, "summary": [], "encrypted_content": "early"}),
    event("output_item.added", output_index=1, item={**MESSAGE, "content": []}),
    event("output_item.added", output_index=2, item={**CALL, "arguments": ""}),
]
DELTAS = [
    event("reasoning_summary_text.delta", output_index=0, summary_index=0, delta="hm"),
    event("output_text.delta", output_index=1, content_index=0, delta="Hel"),
    event("output_text.delta", output_index=1, content_index=0, delta="lo"),
    event("function_call_arguments.delta", output_index=2, delta='{"city":'),
    event("function_call_arguments.delta", output_index=2, delta='"Paris"}'),
]
DONE = [
    event("output_item.done", output_index=place, item=item) for place, item in enumerate((REASONING, MESSAGE, CALL))
]


@pytest.mark.parametrize(
    "events",
    [
        [CREATED, *ADDED, *DELTAS, *DONE, decode_response(REASONING, MESSAGE, CALL)],
        [CREATED, *ADDED, *DELTAS, *DONE, decode_response()],
        [CREATED, *DONE, decode_response()],
        [CREATED, *reversed(DONE), decode_response()],
        [CREATED, decode_response(REASONING, MESSAGE, CALL)],
        [CREATED, *ADDED[::-1], DELTAS[3], *DELTAS[1:3], DELTAS[0], DELTAS[4], *DONE[::-1], decode_response()],
        [CREATED, *ADDED, *DELTAS, decode_response(REASONING, MESSAGE, CALL)],
        [CREATED, *DELTAS[1:3], decode_response(REASONING, MESSAGE, CALL)],
        [*DONE, decode_response(REASONING, MESSAGE, CALL)],
        [CREATED, DONE[0], DONE[2], decode_response(REASONING, MESSAGE, CALL)],
        [CREATED, *ADDED, *DELTAS, *DONE, *DONE, decode_response(REASONING, MESSAGE, CALL), decode_response(MESSAGE)],
        [
            CREATED,
            *ADDED,
            *DELTAS,
            event("output_item.done", output_index=0, item={**REASONING, "encrypted_content": None}),
            *DONE[1:],
            decode_response(REASONING, MESSAGE, CALL),
        ],
        [CREATED, *ADDED, *DELTAS, *DONE, decode_response({**REASONING, "id": "rs_new"}, MESSAGE, CALL)],
    ],
    ids=[
        "everything",
        "nothing in the closing event",
        "no deltas",
        "items in reverse",
        "only the closing event",
        "interleaved",
        "no ends of items",
        "deltas of some items only",
        "no opening",
        "an item that only the closing event knows",
        "everything twice",
        "sealed only in the closing event",
        "a new id in the closing event",
    ],
)
def test_a_stream_adds_up_to_the_unstreamed_answer(events: list[dict[str, Any]]) -> None:
    assert decode_stream(*events) == WHOLE


def test_deltas_are_the_answer_where_nothing_else_repeats_them() -> None:
    bare_items = [
        event("output_item.done", output_index=0, item={"type": "reasoning", "id": "rs_1"}),
        event("output_item.done", output_index=1, item={"type": "message", "id": "msg_1"}),
        event("output_item.done", output_index=2, item={key: CALL[key] for key in CALL if key != "arguments"}),
    ]
    response = decode_stream(CREATED, *ADDED, *DELTAS, *bare_items, decode_response())
    assert (response.thinking, response.text) == ("hm", "Hello")
    assert [call.arguments for call in response.tool_calls] == [{"city": "Paris"}]


def test_blocks_whose_numbers_do_not_begin_at_zero_stand_in_their_order() -> None:
    blocks = [{"type": "output_text", "text": "a"}, {"type": "refusal", "refusal": "b"}]
    events = [
        event("output_text.delta", output_index=0, content_index=1, delta="a"),
        event("refusal.delta", output_index=0, content_index=2, delta="b"),
        event("output_item.done", output_index=0, item={**MESSAGE, "content": blocks}),
    ]
    response = decode_stream(CREATED, *events, decode_response())
    assert response == read({**MESSAGE, "content": blocks})
    assert (response.text, response.refusal) == ("a", "b")


def test_events_without_a_place_go_by_the_items_id() -> None:
    events = [
        event("output_item.added", item={**MESSAGE, "content": []}),
        event("output_item.added", item={**CALL, "arguments": ""}),
        event("output_text.delta", item_id="msg_1", content_index=0, delta="Hello"),
        event("function_call_arguments.delta", item_id="fc_1", delta=CALL["arguments"]),
        event("output_item.done", item=CALL),
        event("output_item.done", item=MESSAGE),
    ]
    assert decode_stream(CREATED, *events, decode_response()) == read(MESSAGE, CALL)


def test_a_thought_and_its_summary_are_not_told_twice() -> None:
    item = {**REASONING, "content": [{"type": "reasoning_text", "text": "hm, hm"}]}
    events = [
        event("reasoning_summary_text.delta", output_index=0, delta="hm"),
        event("reasoning_text.delta", output_index=0, delta="hm, hm"),
        event("output_item.done", output_index=0, item=item),
    ]
    assert decode_stream(CREATED, *events, DONE[1], decode_response()).thinking == "hm"
    assert read(item, MESSAGE).thinking == "hm"


def test_sources_that_come_one_by_one_are_kept() -> None:
    page = {"type": "url_citation", "url": "https://a", "title": "A", "start_index": 1, "end_index": 3}
    events = [
        event("output_text.delta", output_index=0, content_index=0, delta="Hello"),
        event("output_text.annotation.added", output_index=0, content_index=0, annotation=page),
        event("output_item.done", output_index=0, item=MESSAGE),
    ]
    text = decode_stream(CREATED, *events, decode_response()).content[0]
    assert isinstance(text, TextContent)
    assert [citation.url for citation in text.citations] == ["https://a"]


def test_a_custom_tools_text_may_come_in_deltas_alone() -> None:
    custom = {"type": "custom_tool_call", "id": "ctc_1", "call_id": "call_1", "name": "run"}
    events = [
        event("output_item.added", output_index=0, item={**custom, "input": ""}),
        event("custom_tool_call_input.delta", output_index=0, delta="1+"),
        event("custom_tool_call_input.delta", output_index=0, delta=""),
        event("custom_tool_call_input.delta", output_index=0, delta="1"),
        event("output_item.done", output_index=0, item=custom),
    ]
    assert decode_stream(CREATED, *events, decode_response()) == read({**custom, "input": "1+1"})


def test_items_that_nobody_announced_are_found() -> None:
    events = [
        event("output_text.delta", output_index=0, content_index=0, delta=""),
        event("output_text.delta", output_index=0, content_index=0, delta="Hello"),
        event("function_call_arguments.delta", output_index=1, delta=CALL["arguments"]),
    ]
    assert decode_stream(*events, decode_response(MESSAGE, CALL)) == read(MESSAGE, CALL)
    assert decode_stream(*ADDED[1:2], *events[:2], decode_response(MESSAGE, CALL)) == read(MESSAGE, CALL)
    assert decode_stream(decode_response(MESSAGE, CALL)) == read(MESSAGE, CALL)


def test_calls_are_ended_when_the_vendor_ends_them_and_not_before() -> None:
    decoder = fed(CREATED, ADDED[2], *DELTAS[3:])
    assert decoder.partial().tool_calls == []
    decoder = fed(CREATED, ADDED[2], *DELTAS[3:], DONE[2])
    assert [call.arguments for call in decoder.partial().tool_calls] == [{"city": "Paris"}]
    assert not decoder.done


def test_a_picture_may_be_larger_than_other_events() -> None:
    picture = {"type": "image_generation_call", "id": "ig_1", "status": "completed", "result": "A" * 3_000_000}
    response = decode_stream(CREATED, event("output_item.done", output_index=0, item=picture), decode_response(picture))
    assert response.content == (
        ImageContent(
            image_data=b"\0" * 2_250_000,
            media_type="image/png",
            provider_data={key: value for key, value in picture.items() if key != "result"},
            origin=response.content[0].origin,
        ),
    )


def test_data_without_a_field_is_the_vendors_whole_and_streamed() -> None:
    kept: dict[str, Any] = {
        "conversation": {"id": "conv_1"},
        "created_at": 1789000000,
        "incomplete_details": {"reason": "max_output_tokens"},
        "moderation": {"input": {"flagged": False}},
        "reasoning": {"effort": "low", "context": "all_turns"},
        "content_filters": [{"blocked": False}],
    }
    usage = {
        **USAGE,
        "input_tokens_details": {"cache_write_tokens": 4, "cache_write_tokens_details": {"ttl_12h_tokens": 3}},
        "num_sources_used": 2,
    }
    echoes = {"instructions": "Be brief.", "tools": [{"type": "web_search"}], "temperature": 1.0, "store": True}
    more = {**kept, **echoes, "service_tier": "flex", "status": "incomplete", "usage": usage, "error": None}
    whole = read(MESSAGE, **more)
    assert whole.service_tier == "flex"
    assert whole.vendor == {**kept, "usage": {"num_sources_used": 2}}
    assert whole.usage is not None
    assert whole.usage.details == {"cache_write_12h_tokens": 3}
    assert (whole.stop_reason, whole.raw_stop_reason) == ("length", "max_output_tokens")
    assert decode_stream(CREATED, event("incomplete", response=answer(MESSAGE, **more))) == whole


def test_calls_with_one_id_get_different_ones_whole_and_streamed() -> None:
    others = [{**CALL, "id": f"fc_{number}"} for number in (2, 3)]
    whole = read(CALL, *others)
    assert [call.id for call in whole.tool_calls] == ["call_1", "call_1#2", "call_1#3"]
    assert whole.warnings == (REPEATED_CALL,)
    items = [CALL, *others]
    streamed = [
        one
        for position, item in enumerate(items)
        for one in (
            event("output_item.added", output_index=position, item={**item, "arguments": ""}),
            event("function_call_arguments.delta", output_index=position, delta=item["arguments"]),
            event("output_item.done", output_index=position, item=item),
        )
    ]
    assert decode_stream(CREATED, *streamed, decode_response(*items)) == whole
    assert decode_stream(CREATED, decode_response(*items)) == whole


def test_content_that_is_a_value_is_its_json_text() -> None:
    city = {"name": "Paris"}
    for content in (city, [{"type": "output_text", "text": city, "annotations": []}]):
        whole = read({**MESSAGE, "content": content})
        assert whole.text == '{"name":"Paris"}'
        assert decode_stream(CREATED, decode_response({**MESSAGE, "content": content})) == whole


@pytest.mark.malformed
def test_items_and_citations_that_cannot_be_read_do_not_discard_the_response() -> None:
    block = {"type": "output_text", "text": "Hello", "annotations": ["?", {"type": "url_citation", "url": 5}]}
    items: list[dict[str, Any]] = [
        {**MESSAGE, "content": [block]},
        {"type": "reasoning", "summary": "?"},
        {**CALL, "arguments": 5},
    ]
    items.append({"type": "image_generation_call", "id": "ig_1", "result": "not base64"})
    whole = read(*items)
    text, reasoning, call, image = whole.content
    assert text.text == "Hello"
    assert (reasoning.provider_data, image.provider_data) == (items[1], items[3])
    assert isinstance(call, ToolCall)
    assert call.invalid_arguments == "5"
    assert len(whole.warnings) == 4
    assert decode_stream(CREATED, decode_response(*items)) == whole


IMAGE = {"type": "image_generation_call", "id": "ig_1", "status": "completed", "output_format": "webp", "size": "1x1"}


def test_generated_images_are_images_and_previews_are_events() -> None:
    item = {**IMAGE, "result": "UklGRg=="}
    whole = read(item)
    assert whole.content == (
        ImageContent(image_data=b"RIFF", media_type="image/webp", provider_data=IMAGE, origin=HOME),
    )
    place = {"item_id": "ig_1", "output_index": 0}
    preview = event("image_generation_call.partial_image", **place, partial_image_b64="AAAA", output_format="webp")
    decoder = CODEC.decoder({}, REQUEST)
    sent = [
        CREATED,
        event("output_item.added", output_index=0, item={**IMAGE, "status": "in_progress", "result": None}),
        event("image_generation_call.in_progress", **place),
        event("image_generation_call.generating", **place),
        preview,
        {**preview, "partial_image_b64": 5},
        event("image_generation_call.completed", **place),
        event("output_item.done", output_index=0, item=item),
        decode_response(item),
    ]
    events = [one for sent_one in sent for one in decoder.feed(b"data: %b\n\n" % json.dumps(sent_one).encode())]
    assert [one.status or one.type for one in events] == [
        *("message_start", "in_progress", "generating", "partial_image", "completed", "content_part", "message_end")
    ]
    assert events[3].part == ImageContent(image_data=b"\0\0\0", media_type="image/webp")
    assert decoder.response() == whole
    again = json.loads(CODEC.encode(REQUEST.with_messages(whole.message, Message.user("Go on")), stream=False).body)
    assert again["input"][1] == item


def test_tools_of_the_vendor_are_events() -> None:
    place = {"item_id": "ws_1", "output_index": 0}
    decoder = CODEC.decoder({}, REQUEST)
    kinds = ("web_search_call.in_progress", "web_search_call.searching", "web_search_call.completed")
    others = ("mcp_list_tools.failed", "mcp_call.in_progress", "code_interpreter_call.interpreting")
    sent = [CREATED, *(event(kind, **place) for kind in (*kinds, *others)), decode_response(SEARCH)]
    events = [one for sent_one in sent for one in decoder.feed(b"data: %b\n\n" % json.dumps(sent_one).encode())]
    assert [(one.tool, one.status) for one in events if one.type == "tool_progress"] == [
        ("web_search", "in_progress"),
        ("web_search", "searching"),
        ("web_search", "completed"),
        ("mcp_list_tools", "failed"),
        ("mcp", "in_progress"),
        ("code_interpreter", "interpreting"),
    ]
    assert {one.id for one in events if one.type == "tool_progress"} == {"ws_1"}
    assert decoder.response() == read(SEARCH)


def test_a_stream_in_the_background_names_its_response_at_once() -> None:
    decoder = CODEC.decoder({}, REQUEST)
    queued = event("created", response={"id": "resp_1", "status": "queued", "background": True, "output": []})
    assert [one.type for one in decoder.feed(b"data: %b\n\n" % json.dumps(queued).encode())] == ["message_start"]
    assert decoder.partial().id == "resp_1"


@pytest.mark.malformed
@pytest.mark.parametrize(
    ("last", "kind", "message"),
    [
        (event("error", code="rate_limit_exceeded", message="slow"), errors.RateLimitError, "slow"),
        (
            event("error", error={"type": "insufficient_quota", "code": "insufficient_quota", "message": "pay"}),
            errors.QuotaExceededError,
            "pay",
        ),
        (
            event("failed", response=answer(status="failed", error={"code": "server_error", "message": "oops"})),
            errors.ProviderError,
            "oops",
        ),
        (
            event("failed", response=answer(status="failed", error={"code": "request_too_large", "message": "x"})),
            errors.ContextLengthError,
            "x",
        ),
        (event("failed", response=answer(status="failed", error=None)), errors.ProviderError, "failed"),
        (event("completed", response=answer(status="failed", error={"message": "oops"})), errors.ProviderError, "oops"),
        ({"error": {"message": "too many requests", "code": 429}}, errors.RateLimitError, "too many"),
        (event("output_text.delta", output_index=0), errors.ProtocolError, "cannot be read"),
    ],
    ids=["flat", "nested", "failed", "too long", "no reason", "completed as failed", "a gateway's", "no sense"],
)  # fmt: skip
def test_a_failure_in_the_stream_has_its_real_class_and_keeps_what_had_come(
    last: dict[str, Any], kind: type[errors.AgentError], message: str
) -> None:
    decoder = fed(CREATED, ADDED[1], *DELTAS[1:3], last)
    assert not decoder.done
    assert type(decoder.failure) is kind
    assert message in decoder.failure.message
    assert decoder.partial().text == "Hello"


def test_what_a_failed_answer_cost_is_kept_even_if_said_afterwards() -> None:
    failed = event("failed", response=answer(status="failed", error={"message": "oops"}))
    decoder = fed(CREATED, *DELTAS[1:3], event("error", message="oops"), failed)
    usage = decoder.partial().usage
    assert usage is not None
    assert usage.total_tokens == 8


def test_a_stream_that_just_stops_is_not_done() -> None:
    decoder = fed(CREATED, *ADDED, *DELTAS, *DONE)
    assert not decoder.done
    decoder.feed(b"data: [DONE]\n\n")
    assert not decoder.done


# Recordings.


@for_each(
    "exchange",
    [
        exchange
        for exchange in exchanges("openai.responses")
        if exchange.stream is not None and exchange.expected["kind"] == "message"
    ],
    by=vendor,
)
def test_a_recorded_stream_adds_up_to_its_closing_event(exchange: Exchange) -> None:
    lines = (exchange.stream or b"").decode().splitlines()
    closing = next(line for line in reversed(lines) if '"response.completed"' in line and line.startswith("data:"))
    body = json.dumps(json.loads(closing[5:])["response"]).encode()
    whole = codec_for(exchange).decode(Reply(200, exchange.response.get("headers") or {}, body), exchange.agent_request)
    assert without_seals(decode_recording(exchange)) == without_seals(whole)


def without_seals(response: AgentResponse) -> AgentResponse:
    """Vendors seal the same thing anew each time they write it, and one gives it a new id as well."""

    def open_item(part: Part) -> Part:
        if isinstance(part, ThinkingContent):
            return part.model_copy(update={"encrypted_content": "", "id": ""})
        if isinstance(part, VendorContent) and "fingerprint" in (part.provider_data or {}):
            return part.model_copy(update={"provider_data": {**(part.provider_data or {}), "fingerprint": ""}})
        return part

    return response.model_copy(update={"content": list(map(open_item, response.content))})
