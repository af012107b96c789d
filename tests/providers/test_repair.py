"""History repair: calls, results, reasoning and media that a vendor would reject."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typing_extensions import override

from agent.providers import repair as repair_module
from agent.providers.repair import NO_RESULT, repair
from agent.types import (
    CodeContent,
    ImageContent,
    Message,
    Origin,
    Role,
    TextContent,
    ThinkingContent,
    ToolCall,
    ToolResult,
    VendorContent,
)
from tests.support.cases import examples
from tests.support.values import ORIGINS, calls, conversations, results, text_parts

HOME = ORIGINS[2]
ELSEWHERE = Origin(provider="other", api="other", model="m")
CALL = ToolCall(id="c1", name="look", arguments={})
ANSWER = Message.tool("found", tool_call_id="c1", name="look")


def build_call_message(*calls: ToolCall) -> Message:
    return Message(Role.ASSISTANT, list(calls))


def check_pairs(messages: Sequence[Message]) -> None:
    """Every call has exactly one result, in the tool messages right after it; nothing is empty or foreign."""
    open_calls: list[str] = []
    seen: set[str] = set()
    for message in messages:
        assert message.parts, "no message is empty"
        results = [part.tool_call_id for part in message.parts if isinstance(part, ToolResult)]
        if message.role is Role.TOOL:
            assert len(results) == len(message.parts), "a tool's message holds nothing but results"
            for id in results:
                open_calls.remove(id)
            continue
        assert not results
        assert not open_calls, "all calls have results before the next message"
        for part in message.parts:
            if isinstance(part, TextContent):
                assert part.text or part.signature
            if isinstance(part, ThinkingContent | VendorContent):
                assert part.origin == HOME or message.role is not Role.ASSISTANT
            if isinstance(part, ToolCall) and message.role is Role.ASSISTANT:
                assert part.id not in seen
                seen.add(part.id)
                open_calls.append(part.id)
    assert not open_calls


@given(conversations)
@settings(max_examples=examples(150, 600), deadline=None, print_blob=True)
def test_any_conversation_becomes_a_valid_one_and_stays_it(messages: list[Message]) -> None:
    repaired, warnings = repair(messages, HOME)
    check_pairs(repaired)
    assert repair(messages, HOME) == (repaired, warnings), "the same repair each time"
    again, more = repair(repaired, HOME)
    assert again == repaired
    assert more == ()
    assert all(one is other for one, other in zip(again, repaired, strict=True)), "valid messages are not rebuilt"


anybodys_parts = st.one_of(text_parts, results, results)
mixed_turns = st.one_of(
    st.builds(Message, st.sampled_from((Role.USER, Role.TOOL)), st.lists(anybodys_parts, min_size=1, max_size=3)),
    st.builds(Message, st.just(Role.ASSISTANT), st.lists(anybodys_parts | calls(), min_size=1, max_size=4)),
    st.builds(Message, st.just(Role.ASSISTANT), st.lists(calls(), min_size=1, max_size=3)),
)


@given(st.lists(mixed_turns, max_size=6))
@settings(max_examples=examples(100, 400), deadline=None, print_blob=True)
def test_results_may_stand_anywhere_and_nothing_that_was_said_is_lost(messages: list[Message]) -> None:
    repaired, warnings = repair(messages, HOME)
    check_pairs(repaired)
    assert repair(repaired, HOME) == (repaired, ())
    left = "".join(part.text or "" for message in repaired for part in message.parts)
    for part in (part for message in messages for part in message.parts):
        if isinstance(part, TextContent) or (
            isinstance(part, ToolResult) and repair_module.REPEATED_RESULT not in warnings
        ):
            assert part.text in left


@given(conversations)
@settings(max_examples=200, deadline=None, print_blob=True)
def test_a_repair_does_not_change_when_the_conversation_goes_on(messages: list[Message]) -> None:
    """Repairs are stable, so later requests keep the cached prefix."""
    before, _ = repair([*messages, Message.user("first")], HOME)
    after, _ = repair([*messages, Message.user("first"), Message.assistant("ok"), Message.user("then")], HOME)
    assert after[: len(before)] == before


def test_a_conversation_in_order_comes_back_as_the_same_objects() -> None:
    messages = [Message.user("hi"), build_call_message(CALL), ANSWER, Message.assistant("done"), Message.user("go on")]
    repaired, warnings = repair(messages, HOME)
    assert warnings == ()
    assert all(one is other for one, other in zip(repaired, messages, strict=True))


def test_a_call_that_nobody_answered_is_answered_with_an_error() -> None:
    repaired, warnings = repair([Message.user("hi"), build_call_message(CALL), Message.user("never mind")], HOME)
    assert [message.role for message in repaired] == [Role.USER, Role.ASSISTANT, Role.TOOL, Role.USER]
    result = repaired[2].parts[0]
    assert isinstance(result, ToolResult)
    assert (result.tool_call_id, result.name, result.content, result.is_error) == ("c1", "look", NO_RESULT, True)
    assert warnings == (repair_module.UNANSWERED,)


def test_a_call_at_the_very_end_is_answered_too() -> None:
    repaired, warnings = repair([Message.user("hi"), build_call_message(CALL)], HOME)
    assert repaired[-1].role is Role.TOOL
    assert warnings == (repair_module.UNANSWERED,)


def test_one_of_two_parallel_calls_without_a_result_is_answered_beside_the_other() -> None:
    repaired, warnings = repair(
        [build_call_message(CALL, ToolCall(id="c2", name="look")), ANSWER, Message.user("so?")], HOME
    )
    answered = [part.tool_call_id for message in repaired for part in message.parts if isinstance(part, ToolResult)]
    assert answered == ["c1", "c2"]
    assert warnings == (repair_module.UNANSWERED,)


def test_a_result_that_comes_too_late_is_moved_to_its_call() -> None:
    repaired, warnings = repair([build_call_message(CALL), Message.user("hurry"), ANSWER], HOME)
    assert [message.role for message in repaired] == [Role.ASSISTANT, Role.TOOL, Role.USER]
    assert repaired[1].text == "found"
    assert warnings == (repair_module.MOVED_RESULT,)


def test_a_result_without_its_call_is_told_as_text_and_keeps_its_picture() -> None:
    picture = ImageContent(image_data=b"png", media_type="image/png")
    stray = Message(Role.TOOL, [ToolResult(tool_call_id="x", name="look", content=[TextContent(text="hm"), picture])])
    repaired, warnings = repair([stray], HOME)
    assert repaired[0].role is Role.USER
    assert "look" in repaired[0].text
    assert "hm" in repaired[0].text
    assert picture in repaired[0].parts
    assert warnings == (repair_module.STRAY_RESULT,)


def test_a_result_that_names_no_call_is_told_as_text() -> None:
    repaired, warnings = repair([Message.user("hi"), Message(Role.TOOL, "21 degrees")], HOME)
    assert [(message.role, message.text) for message in repaired[1:]] == [(Role.USER, "21 degrees")]
    assert warnings == (repair_module.STRAY_RESULT,)


def test_only_the_first_of_several_results_is_kept() -> None:
    repaired, warnings = repair([build_call_message(CALL), ANSWER, Message.tool("again", tool_call_id="c1")], HOME)
    assert [message.text for message in repaired[1:]] == ["found"]
    assert warnings == (repair_module.REPEATED_RESULT,)


def test_a_call_whose_id_was_used_before_is_renamed_together_with_its_result() -> None:
    repaired, warnings = repair([build_call_message(CALL), ANSWER, build_call_message(CALL), ANSWER], HOME)
    ids = [part.id for message in repaired for part in message.parts if isinstance(part, ToolCall | ToolResult)]
    assert ids == ["c1", "c1", "c1#2", "c1#2"]
    assert warnings == (repair_module.REPEATED_CALL,)


def test_what_a_user_says_beside_results_is_said_after_them() -> None:
    both = Message(Role.USER, [TextContent(text="note"), ToolResult(tool_call_id="c1", content="found")])
    repaired, warnings = repair([build_call_message(CALL), both], HOME)
    assert [(message.role, message.text) for message in repaired[1:]] == [(Role.TOOL, "found"), (Role.USER, "note")]
    assert warnings == ()


def test_results_that_a_user_brings_are_a_tools() -> None:
    """Anthropic's own form, in which many conversations are stored."""
    brought = Message(Role.USER, [ToolResult(tool_call_id="c1", content="found")])
    repaired, warnings = repair([build_call_message(CALL), brought], HOME)
    assert repaired[1] == Message(Role.TOOL, brought.parts)
    assert warnings == ()


def results_in(messages: Sequence[Message]) -> list[tuple[str, str]]:
    return [(part.tool_call_id, part.text) for one in messages for part in one.parts if isinstance(part, ToolResult)]


@pytest.mark.parametrize(
    "between",
    [
        Message(Role.TOOL, [ToolResult(tool_call_id="unknown", content="whose?")]),
        Message(Role.USER, [ToolResult(tool_call_id="unknown", content="whose?"), TextContent(text="note")]),
        Message(Role.TOOL, "a tool's words without any call"),
    ],
)
def test_what_is_said_among_results_waits_for_the_last_of_them(between: Message) -> None:
    calls = build_call_message(CALL, ToolCall(id="c2", name="look"))
    repaired, warnings = repair([calls, between, ANSWER, Message.tool("more", tool_call_id="c2")], HOME)
    assert results_in(repaired) == [("c1", "found"), ("c2", "more")]
    assert [message.role for message in repaired] == [Role.ASSISTANT, Role.TOOL, Role.TOOL, Role.USER]
    assert repair_module.UNANSWERED not in warnings
    assert repair_module.REPEATED_RESULT not in warnings


def test_a_user_who_speaks_beside_the_first_of_two_results_does_not_lose_the_second() -> None:
    both = Message(Role.USER, [ToolResult(tool_call_id="c1", content="found"), TextContent(text="note")])
    later = Message.tool("more", tool_call_id="c2")
    repaired, warnings = repair([build_call_message(CALL, ToolCall(id="c2", name="look")), both, later], HOME)
    assert results_in(repaired) == [("c1", "found"), ("c2", "more")]
    assert repaired[-1] == Message(Role.USER, [TextContent(text="note")])
    assert warnings == ()


def test_a_late_result_finds_the_latest_call_of_its_id() -> None:
    late = Message.tool("at last", tool_call_id="c1")
    repaired, warnings = repair(
        [build_call_message(CALL), ANSWER, build_call_message(CALL), Message.user("hurry"), late], HOME
    )
    assert results_in(repaired) == [("c1", "found"), ("c1#2", "at last")]
    assert warnings == (repair_module.REPEATED_CALL, repair_module.MOVED_RESULT)


def test_an_assistant_that_holds_its_own_results_is_told_in_order() -> None:
    told = [TextContent(text="so"), CALL, ToolResult(tool_call_id="c1", content="found"), TextContent(text="done")]
    repaired, warnings = repair([Message.user("hi"), Message(Role.ASSISTANT, told), Message.user("go on")], HOME)
    assert [message.role for message in repaired] == [
        Role.USER, Role.ASSISTANT, Role.TOOL, Role.ASSISTANT, Role.USER,
    ]  # fmt: skip
    assert [message.text for message in repaired] == ["hi", "so", "found", "done", "go on"]
    assert warnings == ()


def test_a_turn_of_reasoning_alone_is_left_out_with_a_warning() -> None:
    alone = Message(Role.ASSISTANT, [ThinkingContent(thinking="hm", signature="s", origin=HOME)])
    repaired, warnings = repair([Message.user("hi"), alone, Message.user("so?")], HOME)
    assert [message.text for message in repaired] == ["hi", "so?"]
    assert warnings == (repair_module.ONLY_THINKING,)


def test_an_id_used_thousands_of_times_costs_no_more_than_others() -> None:
    """Some servers call every call "call_0". Looking for a free number anew each time would be quadratic."""
    messages = [message for _ in range(5_000) for message in (build_call_message(CALL), ANSWER)]
    repaired, _ = repair(messages, HOME)
    assert repaired[-1].parts[0].tool_call_id == "c1#5000"  # type: ignore[union-attr]
    pass_over = repair_module._Repair(messages[:200], HOME, "drop", assistant_media=False)
    pass_over._call_counts = counts = Counting()
    pass_over.run()
    assert counts.lookups <= 4 * 100


class Counting(dict[str, int]):
    """A dict that counts its lookups."""

    lookups = 0

    @override
    def __contains__(self, key: object) -> bool:
        self.lookups += 1
        return super().__contains__(key)


def test_what_is_known_of_a_message_is_known_for_each_home() -> None:
    """The same message goes to several models, and what one of them may see is foreign to the other."""
    other = HOME.model_copy(update={"model": "another"})
    message = Message(Role.ASSISTANT, [ThinkingContent(thinking="hm", origin=HOME), TextContent(text="yes")])
    for _ in range(2):
        assert repair([message], HOME) == ([message], ())
        assert repair([message], other)[1] == (repair_module.FOREIGN_THINKING_DROPPED,)
        assert repair([message], other, "text")[1] == (repair_module.FOREIGN_THINKING_AS_TEXT,)


@pytest.mark.parametrize("origin", [None, ELSEWHERE, HOME.model_copy(update={"model": "another"})])
def test_reasoning_made_elsewhere_is_left_out_with_a_warning(origin: Origin | None) -> None:
    thought = ThinkingContent(thinking="hm", signature="s", origin=origin)
    repaired, warnings = repair([Message(Role.ASSISTANT, [thought, TextContent(text="yes")])], HOME)
    assert repaired[0].parts == (TextContent(text="yes"),)
    assert warnings == (repair_module.FOREIGN_THINKING_DROPPED,)


def test_reasoning_made_elsewhere_can_be_told_as_text() -> None:
    thought = ThinkingContent(thinking="hm", origin=ELSEWHERE)
    repaired, warnings = repair([Message(Role.ASSISTANT, [thought, TextContent(text="yes")])], HOME, "text")
    assert "hm" in repaired[0].text
    assert warnings == (repair_module.FOREIGN_THINKING_AS_TEXT,)


def test_reasoning_of_ones_own_is_untouched() -> None:
    message = Message(Role.ASSISTANT, [ThinkingContent(thinking="hm", origin=HOME), TextContent(text="yes")])
    assert repair([message], HOME) == ([message], ())


def test_a_block_of_another_vendor_is_left_out_with_a_warning() -> None:
    block = VendorContent(kind="search", provider_data={"type": "search"}, origin=ELSEWHERE)
    repaired, warnings = repair([Message(Role.ASSISTANT, [block, TextContent(text="yes")])], HOME)
    assert repaired[0].parts == (TextContent(text="yes"),)
    assert warnings == (repair_module.FOREIGN_BLOCK_DROPPED,)


def test_empty_text_and_empty_messages_are_left_out_silently() -> None:
    messages = [
        Message.user(""),
        Message.assistant(""),
        Message(Role.ASSISTANT, [TextContent(text=""), CodeContent(code="x")]),
        Message(Role.USER, [TextContent(text="")]),
    ]
    repaired, warnings = repair(messages, HOME)
    assert [message.parts for message in repaired] == [(CodeContent(code="x"),)]
    assert warnings == ()


def test_an_empty_text_that_carries_a_seal_of_ones_own_is_kept() -> None:
    sealed = TextContent(text="", signature="s", origin=HOME)
    message = Message(Role.ASSISTANT, [CALL, sealed])
    assert repair([message, ANSWER], HOME)[0][0] is message


def test_what_an_assistant_showed_is_shown_by_the_user_where_assistants_cannot() -> None:
    picture = ImageContent(image_data=b"png", media_type="image/png", origin=ELSEWHERE)
    drawn = Message(Role.ASSISTANT, [TextContent(text="Look:"), picture, CALL])
    repaired, warnings = repair([Message.user("draw"), drawn, ANSWER, Message.user("nice")], HOME)
    assert [message.role for message in repaired] == [Role.USER, Role.ASSISTANT, Role.TOOL, Role.USER, Role.USER]
    assert repaired[1].parts == (TextContent(text="Look:"), CALL)
    assert repaired[3].parts == (TextContent(text=repair_module.ASSISTANT_MEDIA), picture)
    assert warnings == (repair_module.MOVED_MEDIA,)


def test_what_an_assistant_showed_stays_where_it_was_made_and_where_assistants_can() -> None:
    own = Message(Role.ASSISTANT, [ImageContent(image_data=b"png", media_type="image/png", origin=HOME)])
    other = Message(Role.ASSISTANT, [ImageContent(image_data=b"png", media_type="image/png", origin=ELSEWHERE)])
    assert repair([own], HOME) == ([own], ())
    assert repair([other], HOME, assistant_media=True) == ([other], ())
    assert repair([other], HOME)[1] == (repair_module.MOVED_MEDIA,), "one answer does not stand for the other"
