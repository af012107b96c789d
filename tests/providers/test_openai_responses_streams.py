"""Stream decoding of the Responses API."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agent import errors
from agent.engine.wire import Reply
from agent.types import RefusalContent, TextContent, ToolCall
from tests.providers.test_openai_responses_response import (
    CALL,
    CODEC,
    CREATED,
    MESSAGE,
    REASONING,
    REQUEST,
    answer,
    decode_response,
    decode_stream,
    event,
    fed,
    read,
)

OTHER = {**MESSAGE, "id": "msg_2", "content": [{"type": "output_text", "text": "Bye", "annotations": []}]}
OTHER_CALL = {**CALL, "id": "fc_2", "call_id": "call_2", "arguments": '{"city":"Rome"}'}
CUSTOM = {
    "type": "custom_tool_call",
    "id": "ct_1",
    "call_id": "call_3",
    "name": "run",
    "input": "",
    "status": "in_progress",
}


def add_item(place: int | None, item: dict[str, Any]) -> dict[str, Any]:
    begun = {**item, "content": []} if "content" in item else {**item, "arguments": ""}
    return event("output_item.added", item=begun, **({} if place is None else {"output_index": place}))


def end_item(place: int | None, item: dict[str, Any]) -> dict[str, Any]:
    return event("output_item.done", item=item, **({} if place is None else {"output_index": place}))


def words(place: int, text: str, **more: Any) -> dict[str, Any]:
    return event("output_text.delta", output_index=place, content_index=0, delta=text, **more)


def arguments(place: int, text: str) -> dict[str, Any]:
    return event("function_call_arguments.delta", output_index=place, delta=text)


def test_an_item_that_is_announced_twice_is_one_item() -> None:
    events = [
        CREATED,
        add_item(0, CALL),
        arguments(0, '{"city":'),
        add_item(0, CALL),
        arguments(0, '"Paris"}'),
        end_item(0, CALL),
    ]
    assert decode_stream(*events, decode_response(CALL)) == read(CALL)
    assert decode_stream(*events, decode_response()) == read(CALL)


def test_a_place_that_is_given_to_several_items_loses_none() -> None:
    """Some vendors count wrongly: every item is number 0."""
    items = (REASONING, MESSAGE, OTHER, CALL, OTHER_CALL)
    events = [one for item in items for one in (add_item(0, item), end_item(0, item))]
    assert decode_stream(CREATED, *events, decode_response()) == read(*items)
    assert decode_stream(CREATED, *events, decode_response(*items)) == read(*items)


def test_items_that_grow_at_the_same_place_are_told_apart_by_their_ids() -> None:
    events = [
        add_item(0, CALL),
        add_item(0, OTHER_CALL),
        {**arguments(0, '{"city":"Paris"}'), "item_id": "fc_1"},
        {**arguments(0, '{"city":"Rome"}'), "item_id": "fc_2"},
        end_item(0, {**OTHER_CALL, "arguments": ""}),
        end_item(0, {**CALL, "arguments": ""}),
    ]
    assert decode_stream(CREATED, *events, decode_response()) == read(CALL, OTHER_CALL)


def test_items_that_end_without_place_or_beginning_are_all_found() -> None:
    ends = [end_item(None, MESSAGE), end_item(None, OTHER), end_item(None, CALL)]
    assert decode_stream(CREATED, *ends, decode_response()) == read(MESSAGE, OTHER, CALL)
    assert decode_stream(CREATED, *ends, decode_response(MESSAGE, OTHER, CALL)) == read(MESSAGE, OTHER, CALL)


def test_an_id_that_several_items_share_loses_none() -> None:
    twins = [{**MESSAGE, "id": "same"}, {**OTHER, "id": "same"}]
    events = [one for place, item in enumerate(twins) for one in (add_item(place, item), end_item(place, item))]
    assert decode_stream(CREATED, *events, decode_response(*twins)) == read(*twins)


def test_the_name_of_a_call_may_follow_its_arguments() -> None:
    decoder = fed(CREATED, arguments(0, '{"city":'), add_item(0, CALL), arguments(0, '"Paris"}'), decode_response())
    assert decoder.response().tool_calls == read(CALL).tool_calls


def test_arguments_that_no_call_claims_are_no_answer() -> None:
    decoder = fed(CREATED, words(0, "Hello"), arguments(1, '{"city":"Paris"}'), decode_response())
    assert isinstance(decoder.failure, errors.ProtocolError)
    assert not decoder.done
    assert decoder.partial().text == "Hello"


def test_what_the_vendor_says_at_the_end_counts_more_than_what_it_said_on_the_way() -> None:
    assert decode_stream(
        CREATED, add_item(0, MESSAGE), words(0, "Hel"), end_item(0, MESSAGE), decode_response()
    ) == read(MESSAGE)


def test_words_that_follow_the_end_of_their_item_are_not_told_twice() -> None:
    late = [
        words(0, "Hello"),
        event("reasoning_summary_text.delta", output_index=1, summary_index=0, delta="hm"),
        arguments(2, CALL["arguments"]),
    ]
    items: tuple[dict[str, Any], ...] = (MESSAGE, REASONING, CALL)
    ends = [end_item(place, item) for place, item in enumerate(items)]
    assert decode_stream(CREATED, *ends, *late, decode_response(*items)) == read(*items)


def test_a_refusal_that_only_deltas_tell_is_no_text() -> None:
    refusal = event("refusal.delta", output_index=0, content_index=0, delta="No.")
    response = decode_stream(
        CREATED, add_item(0, MESSAGE), refusal, end_item(0, {**MESSAGE, "content": []}), decode_response()
    )
    assert [type(part) for part in response.content] == [RefusalContent]
    assert (response.text, response.refusal, response.stop_reason) == (None, "No.", "refusal")


def test_an_incomplete_answer_is_incomplete_whatever_its_status_says() -> None:
    details = {"reason": "max_output_tokens"}
    for status in ({}, {"status": None}):
        body: dict[str, Any] = {"id": "r", "model": "m", "output": [], "incomplete_details": details, **status}
        response = decode_stream(CREATED, add_item(0, MESSAGE), words(0, "Hel"), event("incomplete", response=body))
        assert (response.text, response.stop_reason) == ("Hel", "length")


def test_a_call_that_the_limit_cut_off_is_never_acted_upon() -> None:
    cut = event("incomplete", response=answer(status="incomplete", incomplete_details={"reason": "max_output_tokens"}))
    piece = event("custom_tool_call_input.delta", output_index=0, delta="rm -rf /tmp")
    response = decode_stream(CREATED, event("output_item.added", output_index=0, item=CUSTOM), piece, cut)
    (call,) = response.tool_calls
    assert (call.arguments, call.invalid_arguments) == ({}, "rm -rf /tmp")
    assert response.stop_reason == "length"


def test_a_closing_event_that_reports_an_error_is_a_failure() -> None:
    wrong = {"code": "rate_limit_exceeded", "message": "slow down"}
    decoder = fed(CREATED, words(0, "Hel"), decode_response(MESSAGE, error=wrong))
    assert isinstance(decoder.failure, errors.RateLimitError)
    assert not decoder.done


@pytest.mark.parametrize(
    "usage", [{"input_tokens": "5"}, {"input_tokens": 5, "input_tokens_details": [1]}, [1], "x", 7]
)
def test_counts_that_cannot_be_read_do_not_cost_the_answer(usage: Any) -> None:
    response = read(MESSAGE, usage=usage)
    assert response.text == "Hello"
    assert decode_stream(CREATED, decode_response(MESSAGE, usage=usage)) == response


def test_a_count_that_no_number_can_hold_does_not_cost_the_answer() -> None:
    body = json.dumps(answer(MESSAGE, usage={"input_tokens": 0.5})).replace("0.5", "1e999")
    response = CODEC.decode(Reply(200, {}, body.encode()), REQUEST)
    assert response.text == "Hello"
    assert response.usage is not None
    assert response.usage.prompt_tokens == 0


def test_several_parts_of_a_summary_are_kept_apart() -> None:
    parts = [{"type": "summary_text", "text": text} for text in ("**One**\n\na", "**Two**\n\nb")]
    thought = {**REASONING, "summary": parts}
    events = [
        event("reasoning_summary_text.delta", output_index=0, summary_index=place, delta=part["text"])
        for place, part in enumerate(parts)
    ]
    assert decode_stream(CREATED, *events, end_item(0, thought), end_item(1, MESSAGE), decode_response()) == read(
        thought, MESSAGE
    )


def test_a_failure_after_content_keeps_the_content_and_what_it_cost() -> None:
    body = answer(status="failed", error={"code": "server_error", "message": "broke"})
    decoder = fed(CREATED, words(0, "Hel"), event("failed", response=body), decode_response(MESSAGE))
    assert isinstance(decoder.failure, errors.ProviderError)
    assert not decoder.done
    partial = decoder.partial()
    assert (partial.text, partial.usage and partial.usage.total_tokens) == ("Hel", 8)


def test_an_answer_that_is_no_stream_but_a_failure_says_what_is_wrong() -> None:
    decoder = fed()
    decoder.feed(json.dumps({"error": {"message": "slow down", "code": "rate_limit_exceeded"}}, indent=1).encode())
    assert decoder.end() == []
    assert isinstance(decoder.failure, errors.RateLimitError)


def test_events_nobody_knows_change_nothing() -> None:
    unknown = [
        event("something.new", output_index=0, delta="x", item_id="msg_1"),
        event("web_search_call.searching", output_index=0, item_id="msg_1"),
        {"type": "keepalive"},
        {},
    ]
    assert decode_stream(
        CREATED, *unknown, add_item(0, MESSAGE), *unknown, end_item(0, MESSAGE), *unknown, decode_response()
    ) == read(MESSAGE)


def test_parts_are_what_they_were_said_to_be() -> None:
    response = decode_stream(
        CREATED, add_item(0, MESSAGE), words(0, "Hello"), add_item(1, CALL), decode_response(MESSAGE, CALL)
    )
    assert [type(part) for part in response.content] == [TextContent, ToolCall]
