"""Events, and what they add up to."""

from __future__ import annotations

import copy
import pickle
from typing import Any, get_args

import pytest
from pydantic import BaseModel, ValidationError

from agent.types import (
    AgentResponse,
    AnyStreamEvent,
    Fold,
    ImageContent,
    Part,
    RefusalContent,
    StreamEvent,
    StreamEventType,
    TextContent,
    TextDelta,
    ThinkingContent,
    ToolCall,
    ToolResult,
    Usage,
    UsageEvent,
    fold,
)

text = StreamEvent.text_delta
thought = StreamEvent.thinking_delta
start = StreamEvent.tool_call_start
fragment = StreamEvent.tool_call_delta_event
end = StreamEvent.tool_call_end
F = ToolCall(id="1", name="f")
G = ToolCall(id="2", name="g")


def fill(call: ToolCall, **arguments: Any) -> ToolCall:
    return call.model_copy(update={"arguments": arguments})


def content(*events: StreamEvent) -> tuple[Part, ...]:
    return tuple(fold(events).content)


def test_raw_is_outside_everything_but_copies() -> None:
    event = text("a", raw={"chunk": 1})
    assert event.raw == {"chunk": 1}
    assert event == text("a")
    assert hash(event) == hash(text("a"))
    assert "raw" not in event.model_dump()
    assert "chunk" not in repr(event)
    assert pickle.loads(pickle.dumps(event)).raw is None
    assert event.model_copy(update={"text": "b"}).raw == {"chunk": 1}
    assert event.model_copy(update={"raw": 2}).raw == 2


def test_factories_fill_their_own_fields() -> None:
    usage = Usage(prompt_tokens=1)
    assert fragment('{"a', id="1", name="f", index=2).tool_call_delta == {"id": "1", "name": "f", "arguments": '{"a'}
    assert fragment("x").tool_call_delta == {"arguments": "x"}
    assert StreamEvent.usage_event(usage).usage == usage
    assert StreamEvent.tool_result_event("done").tool_result == "done"
    assert StreamEvent.restart_event("overloaded").error == "overloaded"
    assert StreamEvent.content_part_event(F, index=3).part == F
    assert StreamEvent.message_start(response=AgentResponse(id="r")).response == AgentResponse(id="r")


ONE_OF_EACH = [
    text("a", index=0),
    thought("b"),
    StreamEvent.refusal_delta("c"),
    start(F, index=1),
    fragment("{}", id="1", index=1),
    end(F, index=1),
    StreamEvent.tool_result_event("done"),
    StreamEvent.content_part_event(F, index=3),
    StreamEvent.partial_image(ImageContent(image_data=b"a"), index=4),
    StreamEvent.tool_progress("web_search_call", "searching", id="ws_1", index=5),
    StreamEvent.message_start(response=AgentResponse(id="r")),
    StreamEvent.message_end(usage=Usage(prompt_tokens=1)),
    StreamEvent.usage_event(Usage(prompt_tokens=1)),
    StreamEvent.error_event("broken"),
    StreamEvent.restart_event(),
]


def test_there_is_one_class_for_each_type_and_the_examples_cover_all() -> None:
    assert [type(event) for event in ONE_OF_EACH] == list(get_args(AnyStreamEvent))
    assert [event.type for event in ONE_OF_EACH] == list(get_args(StreamEventType))


@pytest.mark.parametrize("event", ONE_OF_EACH, ids=lambda event: event.type)
def test_every_event_survives_dumping_pickling_and_construction(event: StreamEvent) -> None:
    assert StreamEvent(**event.model_dump()) == event
    assert StreamEvent.model_validate(event.model_dump()) == event
    assert StreamEvent.model_validate_json(event.model_dump_json()) == event
    assert StreamEvent.from_dict(event.to_dict()) == event
    assert type(event).model_validate(event.to_dict()) == event
    assert pickle.loads(pickle.dumps(event)) == event
    assert hash(pickle.loads(pickle.dumps(event))) == hash(event)
    assert copy.deepcopy(event) is event
    assert event.model_copy() is event
    assert event.type in repr(event.to_dict())


@pytest.mark.parametrize("event", ONE_OF_EACH, ids=lambda event: event.type)
def test_events_cannot_be_changed(event: StreamEvent) -> None:
    for name in ("type", "text", "raw", "nonsense"):
        with pytest.raises((AttributeError, TypeError)):
            setattr(event, name, "x")


def test_an_event_has_none_for_the_fields_of_other_types() -> None:
    event = text("a")
    names = "tool_call tool_call_delta tool_result usage error part response index tool status id raw"
    others = names.split()
    assert [getattr(event, name) for name in others] == [None] * len(others)
    assert set(event.model_dump()) == {"type", "text", *others} - {"raw"}


def test_constructing_an_event_validates_and_converts() -> None:
    assert StreamEvent(type="usage", usage={"prompt_tokens": 3}) == StreamEvent.usage_event(Usage(prompt_tokens=3))  # type: ignore[arg-type]
    assert StreamEvent(type="text_delta", text="a", raw=5).raw == 5
    assert isinstance(StreamEvent(type="text_delta", text="a"), TextDelta)
    wrong: list[dict[str, Any]] = [
        {"type": "nonsense"},
        {"type": "text_delta", "text": 5},
        {"type": "text_delta", "text": "a", "usage": Usage()},
        {"type": "usage"},
        {"type": "tool_call_start"},
        {},
    ]
    for fields in wrong:
        with pytest.raises(ValidationError):
            StreamEvent(**fields)
    with pytest.raises(ValidationError):
        text(5)  # type: ignore[arg-type]
    with pytest.raises(ValidationError):
        text("a", index="first")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="not a UsageEvent"):
        UsageEvent.model_validate(text("a").to_dict())


def test_events_work_as_fields_of_pydantic_models() -> None:
    class Log(BaseModel):
        events: list[StreamEvent]
        deltas: list[TextDelta] = []

    log = Log(events=ONE_OF_EACH, deltas=[{"type": "text_delta", "text": "a"}])  # type: ignore[list-item]
    assert Log.model_validate(log.model_dump()) == log
    assert Log.model_validate_json(log.model_dump_json()) == log
    assert log.events[0] is ONE_OF_EACH[0]
    assert log.deltas == [text("a")]
    assert "StreamEventData" in Log.model_json_schema()["$defs"]
    for wrong in ([{"type": "nonsense"}], [5]):
        with pytest.raises(ValidationError):
            Log.model_validate({"events": wrong})
    with pytest.raises(ValidationError):
        Log(events=[], deltas=[{"type": "error", "error": "x"}])  # type: ignore[list-item]


def test_text_joins_the_last_block_of_its_kind() -> None:
    assert content(text("a"), text("b"), thought("c"), thought("d"), text("e")) == (
        TextContent(text="ab"),
        ThinkingContent(thinking="cd"),
        TextContent(text="e"),
    )


def test_blocks_are_ordered_by_index() -> None:
    assert content(text("b", index=1), thought("a", index=0), text("c", index=2), text("B", index=1)) == (
        ThinkingContent(thinking="a"),
        TextContent(text="bB"),
        TextContent(text="c"),
    )


def test_a_block_without_index_stays_behind_the_one_before() -> None:
    assert content(text("a", index=5), thought("b"), text("c", index=1)) == (
        TextContent(text="c"),
        TextContent(text="a"),
        ThinkingContent(thinking="b"),
    )


def test_blocks_in_which_nothing_was_said_vanish() -> None:
    assert content(text(""), thought(""), start(F)) == (F,)


def test_a_refusal_is_its_own_kind_of_block() -> None:
    refused = StreamEvent.refusal_delta
    assert content(text("a"), refused("I can"), refused("not")) == (
        TextContent(text="a"),
        RefusalContent(refusal="I cannot"),
    )


def test_fragments_go_to_the_call_of_their_index() -> None:
    events = [start(F, index=0), start(G, index=1), fragment('{"y"', index=1), fragment('{"x":1}', index=0)]
    assert content(*events, fragment(":2}", index=1)) == (fill(F, x=1), fill(G, y=2))


def test_fragments_go_to_the_call_of_their_id() -> None:
    events = [start(F), start(G), fragment('{"x":1}', id="1"), fragment('{"y":2}', id="2")]
    assert content(*events) == (fill(F, x=1), fill(G, y=2))


def test_fragments_without_address_go_to_the_last_call() -> None:
    assert content(start(F), fragment('{"x":1}'), start(G), fragment('{"y":2}')) == (
        fill(F, x=1),
        fill(G, y=2),
    )


def test_text_between_fragments_does_not_disturb_them() -> None:
    assert content(start(F), fragment('{"x"'), text("hm"), fragment(":1}")) == (
        fill(F, x=1),
        TextContent(text="hm"),
    )


def test_a_named_fragment_opens_its_call() -> None:
    assert content(fragment('{"x":1}', id="1", name="f", index=0)) == (fill(F, x=1),)


def test_a_fragment_without_a_call_is_an_error() -> None:
    with pytest.raises(ValueError, match="unknown tool call"):
        fold([fragment("{}")])
    with pytest.raises(ValueError, match="unknown tool call"):
        fold([start(F, index=0), fragment("{}", index=1)])


def test_the_finished_call_replaces_what_had_arrived() -> None:
    whole = fill(F, x=1)
    assert content(start(F, index=0), fragment('{"x', index=0), end(whole, index=0)) == (whole,)
    assert content(start(F), fragment('{"x'), end(whole)) == (whole,)
    assert content(end(whole)) == (whole,)
    nameless = ToolCall(id="", name="f")
    assert content(start(nameless), end(whole)) == (whole,)


def test_two_finished_calls_stay_two() -> None:
    assert content(end(F), end(G)) == (F, G)
    assert content(end(F, index=0), end(G, index=0)) == (F, G)
    assert content(end(F, index=0), end(F, index=0)) == (F,)
    assert content(start(F), end(F), start(G), end(G)) == (F, G)


def test_a_call_without_fragments_keeps_its_arguments() -> None:
    assert content(start(fill(F, x=1))) == (fill(F, x=1),)
    assert content(start(F), fragment("")) == (F,)
    assert content(start(F), fragment(" ")) == (F,)


@pytest.mark.parametrize("broken", ['{"x":', "[1]", "nonsense"])
def test_arguments_that_are_no_json_object_name_the_tool(broken: str) -> None:
    with pytest.raises(ValueError, match="call to f"):
        fold([start(F), fragment(broken)])


def test_a_finished_part_replaces_the_block_at_its_index() -> None:
    sealed = ThinkingContent(thinking="hm", signature="s")
    part = StreamEvent.content_part_event
    assert content(thought("hm", index=0), text("a", index=1), part(sealed, index=0)) == (sealed, TextContent(text="a"))
    assert content(text("a"), part(sealed)) == (TextContent(text="a"), sealed)
    assert content(text("a", index=0), part(TextContent(text="A"), index=0), text("b", index=0)) == (
        TextContent(text="A"),
        TextContent(text="b"),
    )


def test_a_finished_part_may_replace_a_call() -> None:
    part = StreamEvent.content_part_event(TextContent(text="a"), index=0)
    assert content(start(F, index=0), part) == (TextContent(text="a"),)
    with pytest.raises(ValueError, match="unknown tool call"):
        fold([start(F, index=0), part, fragment("{}")])


def test_usage_replaces_and_never_adds() -> None:
    snapshots = [Usage(prompt_tokens=10), Usage(prompt_tokens=10, completion_tokens=5)]
    events = [StreamEvent.usage_event(usage) for usage in snapshots]
    assert fold(events).usage == snapshots[1]
    assert fold([*events, StreamEvent.message_end(usage=Usage(prompt_tokens=11))]).usage == Usage(prompt_tokens=11)
    assert fold([text("a")]).usage is None


def test_the_envelope_is_merged_from_start_and_end() -> None:
    begun = AgentResponse(provider="p", model="m", id="r", request_id="q", warnings=["a"], text="ignored")
    ended = AgentResponse(provider="", model="m-2", stop_reason="stop", usage=Usage(prompt_tokens=1), warnings=["b"])
    response = fold(
        [StreamEvent.message_start(response=begun), text("x"), StreamEvent.message_end(response=ended, raw=1)]
    )
    assert response == AgentResponse(
        provider="p",
        model="m-2",
        id="r",
        request_id="q",
        stop_reason="stop",
        usage=Usage(prompt_tokens=1),
        warnings=["a", "b"],
        text="x",
    )


def test_raw_of_the_final_facts_becomes_raw_of_the_response() -> None:
    ended = AgentResponse(stop_reason="stop", raw={"x": 1})
    assert fold([StreamEvent.message_end(response=ended)]).raw == {"x": 1}


def test_a_restart_drops_everything_but_the_bill() -> None:
    events = [
        StreamEvent.message_start(response=AgentResponse(provider="a", model="m", id="1")),
        text("never mind"),
        start(F),
        StreamEvent.usage_event(Usage(prompt_tokens=10, completion_tokens=1)),
        StreamEvent.restart_event(),
        StreamEvent.message_start(response=AgentResponse(provider="b")),
        text("answer"),
        StreamEvent.message_end(usage=Usage(prompt_tokens=20, completion_tokens=2)),
    ]
    assert fold(events) == AgentResponse(
        provider="b", text="answer", usage=Usage(prompt_tokens=30, completion_tokens=3)
    )
    assert fold(events[:-1]).usage == Usage(prompt_tokens=10, completion_tokens=1)


def test_errors_and_results_change_no_content() -> None:
    assert content(text("a"), StreamEvent.error_event("x"), StreamEvent.tool_result_event("y"), text("b")) == (
        TextContent(text="ab"),
    )


def test_a_partial_response_leaves_open_calls_out_and_never_raises() -> None:
    folding = Fold()
    for event in (text("a"), start(F), fragment("{"), start(G), end(fill(G, y=2))):
        folding.add(event)
    partial = folding.partial()
    assert partial.content == (TextContent(text="a"), fill(G, y=2))
    assert partial.stop_reason is None
    folding.add(text("b"))
    assert folding.partial().text == "ab"
    with pytest.raises(ValueError, match="call to f"):
        folding.response()


def test_any_part_may_arrive_whole() -> None:
    result = ToolResult(tool_call_id="1", content="x")
    assert content(StreamEvent.content_part_event(result)) == (result,)


@pytest.mark.parametrize("kind", ["tool_call_start", "tool_call_end", "content_part"])
def test_an_event_without_its_payload_is_an_error(kind: Any) -> None:
    with pytest.raises(ValueError, match=kind):
        Fold().add(StreamEvent(type=kind))


def test_adding_is_quick_however_long_the_answer() -> None:
    folding = Fold()
    event = text("x" * 10, index=0)
    for _ in range(100_000):
        folding.add(event)
    assert len(folding.response().get_text()) == 1_000_000
