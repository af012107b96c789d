"""Redaction: placeholders in requests, restored values in responses, streams and structured output."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from agent import Agent, AgentRequest, AgentResponse, Message, Router, StreamEvent, ToolCall, errors
from agent.engine.wire import Answer, WireRequest
from agent.middleware import CallInfo, Redaction
from agent.middleware.patterns import PlaceholderTable, find_placeholders
from agent.middleware.redaction import StreamRestoration, change_value
from agent.testing import Script, ScriptedTransport, Simulation, scripted_agent, simulate
from agent.types import (
    Citation,
    CodeContent,
    DiffContent,
    DocumentContent,
    ImageContent,
    RefusalContent,
    TextContent,
    ThinkingContent,
    ToolResult,
    fold,
)
from tests.middleware.spies import plain_agent
from tests.support.drivers import Driver

AMY, BOB = "amy@example.com", "bob@example.org"
ODD = 'Q\\"uo\nte\té'
"""A value that JSON writes otherwise."""


def bodies(script: Script) -> list[str]:
    return [json.dumps(body, ensure_ascii=False) for body in script.requests]


def send_redacted(request: Any, *redactions: Redaction, **overrides: Any) -> tuple[str, AgentResponse]:
    """Return the text that was sent, and the restored echo."""
    script = Script()
    agent = Agent("scripted:m", transport=ScriptedTransport(script), middleware=redactions or [Redaction()])
    response = agent.complete(request, **overrides)
    return bodies(script)[0], response


# Going out


def test_nothing_private_goes_out_and_everything_comes_back(drive: Driver) -> None:
    script = Script()
    text = f"Mail {AMY} and {BOB}, {AMY} first; call +49 30 1234567, pay 4111 1111 1111 1111, use sk-abcdefghijklmnop12"
    for ask in (drive.complete, drive.stream):
        outcome = ask(script, text, make=lambda url: plain_agent(url, [Redaction()]))
        assert outcome.ok.text == f"You said: {text}"
    assert outcome.text == f"You said: {text}"
    for body in bodies(script):
        assert "Mail [EMAIL_1] and [EMAIL_2], [EMAIL_1] first; call [PHONE_1], pay [CARD_1], use [KEY_1]" in body


def test_every_place_of_a_request_is_looked_through() -> None:
    call = ToolCall(id="1", name="send", arguments={"to": [AMY], BOB: {"x": AMY}, "n": 1})
    request = AgentRequest(
        system=f"You serve {AMY}.",
        messages=[
            Message("user", [TextContent(text=f"a {BOB}"), ImageContent(image_url="https://example.com/a.png")]),
            Message("user", [CodeContent(code=f"mail({AMY!r})"), DiffContent(old_code=AMY, new_code=BOB)]),
            Message("user", [DocumentContent(text=f"doc {AMY}", title=f"for {BOB}")]),
            Message("assistant", [TextContent(text=f"ok {AMY}"), call]),
            Message("tool", [ToolResult(tool_call_id="1", content=f"sent to {AMY}")]),
            Message("assistant", [ToolCall(id="2", name="send", arguments={}, invalid_arguments=f"{{{BOB}")]),
            Message("tool", [ToolResult(tool_call_id="2", content=[TextContent(text=f"bad {BOB}")])]),
            Message("assistant", [RefusalContent(refusal=f"not {AMY}"), ThinkingContent(thinking=f"hm {BOB}")]),
        ],
        input=f"and {AMY}",
    )
    redaction, info = Redaction(), CallInfo(streaming=False, target="t", request=request)
    redacted = redaction.before(request, info)
    assert redacted is not None
    dumped = redacted.model_dump_json()
    assert "@" not in dumped
    assert dumped.count("[EMAIL_1]") + dumped.count("[EMAIL_2]") == request.model_dump_json().count("@example.")
    assert redacted.messages[3].tool_calls == [
        call.model_copy(update={"arguments": {"to": ["[EMAIL_1]"], "[EMAIL_2]": {"x": "[EMAIL_1]"}, "n": 1}})
    ]
    assert request.input == f"and {AMY}", "the caller's request is never changed"


def test_a_document_that_is_text_is_looked_through_and_others_are_not() -> None:
    text = DocumentContent(data=f"to {AMY}".encode(), media_type="text/plain")
    other = DocumentContent(data=b"%PDF \xff" + AMY.encode(), media_type="text/csv")
    request = AgentRequest(messages=[Message("user", [text, other])], input=AMY)
    redacted = Redaction().before(request, CallInfo(streaming=False, target="t", request=request))
    assert redacted is not None
    assert [part.data for part in redacted.messages[0].parts if isinstance(part, DocumentContent)] == [
        b"to [EMAIL_1]", other.data,
    ]  # fmt: skip


def test_what_holds_nothing_private_stays_the_same_object() -> None:
    plain = Message("user", "nothing here")
    request = AgentRequest(messages=[plain, Message("user", AMY)])
    info = CallInfo(streaming=False, target="t", request=request)
    redacted = Redaction().before(request, info)
    assert redacted is not None
    assert redacted.messages[0] is plain
    nothing = AgentRequest(messages=[plain], input="nothing")
    assert Redaction().before(nothing, CallInfo(streaming=False, target="t", request=nothing)) is None


def test_sealed_reasoning_is_neither_redacted_nor_restored() -> None:
    """Its vendor wants it back as it was."""
    sealed = ThinkingContent(thinking=f"about {BOB}", signature="seal")
    request = AgentRequest(messages=[Message("assistant", [sealed, TextContent(text="x")])], input=AMY)
    redaction, info = Redaction(), CallInfo(streaming=False, target="t", request=request)
    redacted = redaction.before(request, info)
    assert redacted is not None
    assert redacted.messages[0].parts[0] is sealed
    thought = ThinkingContent(thinking="write to [EMAIL_1]")
    answer = redaction.after(AgentResponse(content=[thought, TextContent(text="[EMAIL_1]")]), info)
    assert answer is not None
    assert (answer.thinking, answer.text) == ("write to [EMAIL_1]", AMY)
    event = StreamEvent.thinking_delta("write to [EMAIL_1]")
    assert redaction.on_event(event, info) == [event]


def test_what_is_about_the_call_is_left_alone() -> None:
    request = AgentRequest(input=AMY, metadata={"user": BOB}, session_id=BOB)
    redacted = Redaction().before(request, CallInfo(streaming=False, target="t", request=request))
    assert redacted is not None
    assert (redacted.metadata, redacted.session_id) == ({"user": BOB}, BOB)


def test_a_conversation_is_numbered_the_same_way_in_every_turn() -> None:
    first, _ = send_redacted([Message("user", f"{BOB} and {AMY}")])
    history = [Message("user", f"{BOB} and {AMY}"), Message("assistant", f"{AMY}?"), Message("user", "new@example.net")]
    second, _ = send_redacted(history)
    assert "[EMAIL_1] and [EMAIL_2]" in first
    assert "[EMAIL_1] and [EMAIL_2]" in second
    assert "[EMAIL_2]?" in second
    assert "[EMAIL_3]" in second


def test_a_placeholder_that_was_there_before_keeps_its_meaning() -> None:
    body, response = send_redacted(f"[EMAIL_1] stands for {AMY}")
    assert "[EMAIL_1] stands for [EMAIL_2]" in body
    assert response.text == f"You said: [EMAIL_1] stands for {AMY}"


def test_a_placeholder_that_the_model_made_up_stays() -> None:
    agent = scripted_agent("[EMAIL_7] [EMAIL_1]", middleware=[Redaction()])
    assert agent.complete(AMY).text == f"[EMAIL_7] {AMY}"


def test_the_answer_may_keep_the_placeholders() -> None:
    _, response = send_redacted(AMY, Redaction(restore=False))
    assert response.text == "You said: [EMAIL_1]"
    agent = scripted_agent("to [EMAIL_1]", middleware=[Redaction(restore=False)])
    stream = agent.stream(AMY)
    assert [event.text for event in stream if event.text] == ["to", " [EMAIL_1]"]


def test_only_what_was_asked_for_is_hidden() -> None:
    body, _ = send_redacted(f"{AMY} +49 30 1234567", Redaction("phone"))
    assert AMY in body
    assert "[PHONE_1]" in body


def test_own_patterns_come_first_and_own_functions_say_where() -> None:
    def names(text: str) -> list[tuple[int, int]]:
        start = text.find("Zoe")
        return [(start, start + 3)] if start >= 0 else []

    redaction = Redaction(patterns={"STAFF": r"\w+@example\.com", "NAME": names})
    body, response = send_redacted(f"Zoe, {AMY}, {BOB}", redaction)
    assert "[NAME_1], [STAFF_1], [EMAIL_1]" in body
    assert response.text == f"You said: Zoe, {AMY}, {BOB}"


def test_of_what_overlaps_nothing_is_left() -> None:
    table = PlaceholderTable(
        [("A", lambda text: [(0, 4)]), ("B", lambda text: [(2, 8)]), ("C", lambda text: [(8, 99), (5, 5)])]
    )
    assert table.redact("0123456789") == "[A_1][C_1]"
    assert table.restore("[A_1]") == "01234567"
    assert table.restore("[C_1]") == "89"


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: Redaction("e-mail"), "Unknown kinds of private values: e-mail. Use key, email"),
        (lambda: Redaction(patterns={"low": "x"}), "'low' is not a valid kind for placeholders"),
    ],
)
def test_what_cannot_be_looked_for_is_said(make: Any, complaint: str) -> None:
    with pytest.raises(errors.ConfigurationError, match=complaint):
        make()


letters = st.text(st.sampled_from('ab[]_1"\\\n@. EMAIL'), max_size=30)
with_values = st.lists(letters | st.sampled_from([AMY, BOB, "[EMAIL_1]", "[EMAIL_2]"]), max_size=6).map("".join)
FINDERS = [
    ("EMAIL", lambda text: [(i, i + len(v)) for v in (AMY, BOB) for i in range(len(text)) if text.startswith(v, i)])
]


@given(with_values)
def test_whatever_is_hidden_can_be_shown_again(text: str) -> None:
    table = PlaceholderTable(FINDERS, frozenset(find_placeholders(text)))
    hidden = table.redact(text)
    assert AMY not in hidden
    assert table.restore(hidden) == text
    assert json.loads(f'"{table.restore(json.dumps(hidden)[1:-1], in_json=True)}"') == text


@given(with_values, st.lists(st.integers(0, 40), max_size=6))
def test_a_text_in_pieces_says_the_same_as_the_whole(text: str, cuts: list[int]) -> None:
    table = PlaceholderTable(FINDERS)
    hidden = table.redact(text) + "[EMAIL_1"
    restoration = StreamRestoration(table, in_json=False)
    ends = [0, *sorted(min(cut, len(hidden)) for cut in cuts), len(hidden)]
    deltas = [StreamEvent.text_delta(hidden[a:b], index=0) for a, b in pairwise(ends)]
    told = [event.text or "" for delta in [*deltas, END] for event in restoration.restore_event(delta)]
    assert "".join(told) == table.restore(hidden)


# Coming back, in streams


SAID = "Dear [EMAIL_1], [x] [EMAIL_2]! [EMA"
MEANT = f"Dear {AMY}, [x] {BOB}! [EMA"


def collect_events(
    events: Sequence[StreamEvent], request: AgentRequest, redaction: Redaction | None = None
) -> list[StreamEvent]:
    """The events as the caller sees them."""
    redaction = redaction or Redaction()
    info = CallInfo(streaming=True, target="t", request=request)
    redaction.before(request, info)
    seen: list[StreamEvent] = []
    for event in events:
        made = redaction.on_event(event, info)
        seen += [event] if made is None else made
    return seen


BOTH = AgentRequest(input=f"{AMY} {BOB}")
END = StreamEvent.message_end(response=AgentResponse(stop_reason="stop"))


@pytest.mark.parametrize("index", [0, None])
def test_a_placeholder_is_found_wherever_the_deltas_are_cut(index: int | None) -> None:
    for first in range(len(SAID) + 1):
        for second in range(first, len(SAID) + 1):
            cut = [SAID[:first], SAID[first:second], SAID[second:]]
            events = collect_events([*(StreamEvent.text_delta(piece, index=index) for piece in cut), END], BOTH)
            assert "".join(event.text or "" for event in events) == MEANT
            assert events[-1] is END
            assert not any(event.text == "" for event in events)


@pytest.mark.parametrize("kind", ["text", "arguments"])
def test_a_placeholder_is_found_wherever_the_bytes_are_cut(kind: str) -> None:
    """The whole way: bytes, events of the vendor's, a decoder, a driver."""
    arguments = {"to": ["[EMAIL_2]"]}
    line = "[x] [EMAIL_1]! [EMA" if kind == "text" else ToolCall(id="1", name="send", arguments=arguments)
    asked = b'{"model":"m","messages":[{"role":"user","content":"hi"}],"stream":true}'
    answer = Script(line)(WireRequest("http://x/chat/completions", (), asked))
    data = b"".join(piece.outcome for piece in answer.iter_pieces() if isinstance(piece.outcome, bytes))
    agent = scripted_agent(middleware=[Redaction()])
    for cut in range(1, len(data)):
        simulation = Simulation(lambda request, cut=cut: Answer([data[:cut], data[cut:]], headers=answer.headers))  # type: ignore[misc]
        response = simulate(simulation, agent, BOTH, streaming=True)
        assert fold(simulation.events).content == response.content
        if kind == "text":
            assert response.text == f"[x] {AMY}! [EMA"
        else:
            assert response.tool_calls[0].arguments == {"to": [BOB]}


ODDLY = AgentRequest(input=f"{ODD} {AMY}")


def test_arguments_are_json_whatever_the_value_holds() -> None:
    redaction = Redaction(
        patterns={"NAME": lambda text: [(text.find(ODD), text.find(ODD) + len(ODD))] if ODD in text else []}
    )
    call = ToolCall(id="1", name="f", arguments={"a": "[NAME_1]", "b": {"[EMAIL_1]": ["x [NAME_1]"]}})
    meant = {"a": ODD, "b": {AMY: [f"x {ODD}"]}}
    text = json.dumps(call.arguments)
    for cut in range(len(text)):
        events = [
            StreamEvent.tool_call_start(ToolCall(id="1", name="f"), index=1),
            StreamEvent.tool_call_delta_event(text[:cut], index=1),
            StreamEvent.text_delta("[EMAIL", index=0),
            StreamEvent.tool_call_delta_event(text[cut:], index=1),
            StreamEvent.text_delta("_1]", index=0),
        ]
        for ending in ([StreamEvent.tool_call_end(call, index=1)], []):
            seen = collect_events([*events, *ending, END], ODDLY, redaction)
            written = "".join((event.tool_call_delta or {}).get("arguments", "") for event in seen)
            assert json.loads(written) == meant
            response = fold(seen)
            assert response.tool_calls[0].arguments == meant
            assert response.text == AMY


def test_the_arguments_of_parallel_calls_are_not_mixed_up() -> None:
    events = [
        StreamEvent.tool_call_start(ToolCall(id="1", name="f"), index=0),
        StreamEvent.tool_call_start(ToolCall(id="2", name="f"), index=1),
        StreamEvent.tool_call_delta_event('{"a":"[EMA', index=0),
        StreamEvent.tool_call_delta_event('{"a":"[EMAIL_2', index=1),
        StreamEvent.tool_call_delta_event('IL_1]"}', index=0),
        StreamEvent.tool_call_delta_event(']"}', index=1),
        END,
    ]
    assert [call.arguments for call in fold(collect_events(events, BOTH)).tool_calls] == [{"a": AMY}, {"a": BOB}]


def test_what_was_held_back_comes_before_what_follows_it() -> None:
    call = ToolCall(id="1", name="f")
    events = [
        StreamEvent.text_delta("see [EMAIL"),
        StreamEvent.tool_call_start(call),
        StreamEvent.tool_call_delta_event('{"a":"[EM'),
        StreamEvent.tool_call_delta_event('A"}'),
        StreamEvent.tool_call_delta_event("["),
        StreamEvent.refusal_delta("no [EMAIL_1]"),
        END,
    ]
    seen = collect_events(events, BOTH)
    assert [(event.type, event.text or (event.tool_call_delta or {}).get("arguments")) for event in seen] == [
        ("text_delta", "see "),
        ("text_delta", "[EMAIL"),
        ("tool_call_start", None),
        ("tool_call_delta", '{"a":"'),
        ("tool_call_delta", '[EMA"}'),
        ("tool_call_delta", "["),
        ("refusal_delta", f"no {AMY}"),
        ("message_end", None),
    ]


def test_what_was_held_back_of_arguments_comes_before_their_end() -> None:
    call = ToolCall(id="1", name="f", invalid_arguments='{"a":"[EMAIL_1')
    events = [
        StreamEvent.tool_call_start(ToolCall(id="1", name="f"), index=0),
        StreamEvent.tool_call_delta_event('{"a":"[EMAIL_1', index=0),
        StreamEvent.tool_call_end(call, index=0),
        END,
    ]
    seen = collect_events(events, BOTH)
    assert [event.type for event in seen] == [
        "tool_call_start", "tool_call_delta", "tool_call_delta", "tool_call_end", "message_end",
    ]  # fmt: skip
    assert fold(seen).tool_calls == [call]


def test_a_finished_part_takes_the_place_of_what_was_said_of_it() -> None:
    part = TextContent(text="to [EMAIL_1]", citations=[Citation(url="u", start=3, end=12), Citation(url="v")])
    events = collect_events(
        [StreamEvent.text_delta("to [EM", index=0), StreamEvent.content_part_event(part, index=0), END], BOTH
    )
    response = fold(events)
    assert response.text == f"to {AMY}"
    (restored,) = response.content
    assert isinstance(restored, TextContent)
    assert [(one.start, one.end) for one in restored.citations] == [(3, 3 + len(AMY)), (None, None)]


def test_a_stream_that_begins_again_forgets_what_was_held_back() -> None:
    events = collect_events(
        [
            StreamEvent.text_delta("x [EM", index=0),
            StreamEvent.restart_event("again"),
            StreamEvent.text_delta("AIL_1]"),
            END,
        ],
        BOTH,
    )
    assert fold(events).text == "AIL_1]"


def test_a_tools_result_in_a_stream_is_restored() -> None:
    (event,) = collect_events([StreamEvent.tool_result_event("sent to [EMAIL_1]")], BOTH)
    assert event.tool_result == f"sent to {AMY}"


def test_the_vendors_event_stays_with_the_event() -> None:
    (event,) = collect_events([StreamEvent.text_delta("[EMAIL_1]", raw={"as": "it came"})], BOTH)
    assert (event.text, event.raw) == (AMY, {"as": "it came"})


def test_the_part_of_a_broken_stream_is_restored(drive: Driver) -> None:
    data = json.dumps({"choices": [{"index": 0, "delta": {"content": "to [EMAIL_1]"}}]}).encode()
    outcome = drive.stream(
        Script(Answer([b"data: " + data + b"\n\n"])), AMY, make=lambda url: plain_agent(url, [Redaction()])
    )
    assert isinstance(outcome.failed, errors.StreamInterrupted)
    assert outcome.failed.partial is not None
    assert outcome.failed.partial.text == outcome.text == f"to {AMY}"


# Typed values


class Place(NamedTuple):
    name: str


@dataclass(frozen=True)
class Note:
    text: str
    number: int = 0


class Letter(BaseModel):
    to: str
    cc: list[str] = []
    notes: tuple[Note, ...] = ()
    by_name: dict[str, str] = {}


LETTER = {"to": "[EMAIL_1]", "cc": ["[NAME_1]"], "notes": [{"text": "[EMAIL_1]"}], "by_name": {"[EMAIL_1]": "x"}}
MEANT_LETTER = Letter(to=AMY, cc=[ODD], notes=(Note(AMY),), by_name={AMY: "x"})
ODD_NAME = Redaction(
    patterns={"NAME": lambda text: [(text.find(ODD), text.find(ODD) + len(ODD))] if ODD in text else []}
)


@pytest.mark.parametrize("streaming", [False, True])
def test_a_typed_value_is_restored_and_its_text_is_json_still(streaming: bool) -> None:
    agent = scripted_agent(LETTER, middleware=[ODD_NAME])
    asked = f"{AMY} {ODD}"
    if streaming:
        stream = agent.stream(asked, schema=Letter)
        events = list(stream)
        response = stream.response
        assert fold(events).text == response.text
    else:
        response = agent.json(asked, schema=Letter)
    assert response.output == MEANT_LETTER
    assert Letter.model_validate_json(response.text or "") == MEANT_LETTER


def test_a_value_is_restored_while_it_arrives() -> None:
    stream = scripted_agent(LETTER, middleware=[ODD_NAME]).stream_json(f"{AMY} {ODD}", schema=Letter)
    partials = list(stream)
    assert partials[-1]["cc"] == [ODD]
    assert not any("[" in str(partial.get("to", "")) for partial in partials)
    assert stream.output == MEANT_LETTER


def test_json_output_is_restored() -> None:
    agent = scripted_agent({"a": ["[EMAIL_1]", 1]}, middleware=[Redaction()])
    assert agent.json(AMY, schema={"type": "object"}).output == {"a": [AMY, 1]}


def test_what_did_not_fit_its_schema_is_shown_with_the_values() -> None:
    agent = scripted_agent(*[{"to": ["[EMAIL_1]"]}] * 3, middleware=[Redaction()])
    with pytest.raises(errors.SchemaValidationError) as caught:
        agent.json(AMY, schema=Letter)
    assert json.loads(caught.value.text or "") == {"to": [AMY]}
    assert caught.value.response is not None
    assert AMY in (caught.value.response.text or "")


def test_values_of_all_kinds_are_walked_through() -> None:
    value = {"a": [Place("x"), {1: "x"}, {"x"}, frozenset(("x",)), Note("x", 3), Letter(to="x"), 1.5, None, b"x"]}
    walked = change_value(value, str.upper)
    assert walked == {
        "A": [Place("X"), {1: "X"}, {"X"}, frozenset(("X",)), Note("X", 3), Letter(to="X"), 1.5, None, b"x"]
    }
    assert type(walked["A"][0]) is Place
    unchanged = [Letter(to="x"), Note("x"), ("x",)]
    assert change_value(unchanged, str) is unchanged


# In a router


def test_an_agent_in_a_router_keeps_its_redaction_and_the_other_does_not_get_one() -> None:
    outside, inside = Script(errors.OverloadedError("busy")), Script()
    careful = Agent("scripted:vendor", transport=ScriptedTransport(outside), middleware=[Redaction()], max_retries=0)
    trusted = Agent("scripted:ours", transport=ScriptedTransport(inside))
    response = Router([careful, trusted]).complete(AMY)
    assert response.text == f"You said: {AMY}"
    assert "[EMAIL_1]" in bodies(outside)[0]
    assert AMY not in bodies(outside)[0]
    assert AMY in bodies(inside)[0]


def test_a_routers_redaction_holds_for_all_its_targets(drive: Driver) -> None:
    script = Script(errors.OverloadedError("busy"), "to [EMAIL_1]")

    def make(url: str) -> Router:
        return Router([plain_agent(url), plain_agent(url)], middleware=[Redaction()])

    outcome = drive.stream(script, AMY, make=make)
    assert (outcome.ok.text, outcome.text) == (f"to {AMY}", f"to {AMY}")
    assert len(bodies(script)) == 2
    assert not any(AMY in body for body in bodies(script))
