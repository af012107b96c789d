"""What is known of how a conversation begins is believed only of the very same messages."""

from __future__ import annotations

import gc
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.types import Message, ToolCall, prefixes
from agent.types.notes import notes_on
from agent.types.prefixes import folded, keep_prefix, known_prefix, prefix_end, with_ids


def talk(turns: int) -> list[Message]:
    return [say for number in range(turns) for say in (Message.user(f"q{number}"), Message.assistant(f"a{number}"))]


def texts(known: str | None, messages: Sequence[Message]) -> str:
    return (known or "") + "".join(message.text for message in messages)


class Reader:
    """A fold that remembers how many messages it was shown."""

    def __init__(self) -> None:
        self.seen = 0

    def __call__(self, known: str | None, messages: Sequence[Message]) -> str:
        self.seen += len(messages)
        return texts(known, messages)


def test_a_fold_is_shown_only_what_is_new() -> None:
    said, reader = talk(50), Reader()
    assert folded(said, "k", reader) == texts(None, said)
    assert reader.seen == 100
    for number in range(20):
        said += [Message.user(f"more {number}"), Message.assistant("yes")]
        reader.seen = 0
        assert folded(said, "k", reader) == texts(None, said)
        assert reader.seen <= 4


def test_of_a_short_conversation_nothing_is_kept() -> None:
    said = talk(prefixes.LEAST // 2 - 1)
    folded(said, "k", texts)
    assert not any("k" in notes_on(message) for message in said)


@given(st.data())
def test_a_changed_conversation_is_folded_as_if_it_were_new(data: st.DataObject) -> None:
    said = talk(20)
    for _ in range(6):
        folded(said, "k", texts)
        place = data.draw(st.integers(0, len(said) - 1))
        match data.draw(st.sampled_from(("replace", "leave out", "put in", "cut", "go on", "copy"))):
            case "replace":
                said[place] = Message.user("another")
            case "leave out":
                del said[place]
            case "put in":
                said.insert(place, Message.user("by the way"))
            case "cut":
                said = [*said[: max(place, 2)], *talk(10)]
            case "copy":
                said[place] = said[place].changed(content="the same place, other words")
            case _:
                said += talk(1)
        assert folded(said, "k", texts) == texts(None, said)


def test_an_equal_message_is_not_the_same() -> None:
    said = talk(20)
    folded(said, "k", texts)
    start, fact = known_prefix(said, "k")
    assert start > 30
    assert fact == texts(None, said[:start])
    said[3] = Message.from_dict(said[3].to_dict())
    assert known_prefix(said, "k") == (0, None)


def test_folds_under_two_names_do_not_meet() -> None:
    said = talk(20)
    folded(said, "k", texts)
    assert known_prefix(said, "other") == (0, None)


def test_a_beginning_ends_where_no_call_waits_and_the_model_has_not_just_spoken() -> None:
    call = Message.assistant("", tool_calls=[ToolCall(id="1", name="f", arguments={})])
    result = Message.tool("x", tool_call_id="1")
    said = [Message.user("q"), call, result, Message.assistant("a"), Message.user("q")]
    assert [prefix_end(said[:count], 0) for count in range(1, 6)] == [0, 1, 1, 3, 3]
    assert prefix_end(said, 3) == 3  # nothing to add


def test_what_was_known_before_is_let_go_of() -> None:
    said = talk(20)
    keep_prefix(said, "k", 3, "early")
    keep_prefix(said, "k", 39, "late", instead_of=3)
    assert "k" not in notes_on(said[2])
    assert known_prefix(said, "k") == (39, "late")


def test_a_conversation_that_is_over_is_freed_at_once() -> None:
    said = talk(20)
    folded(said, "k", texts)
    gc.collect()
    gc.disable()
    try:
        before = sum(isinstance(one, Message) for one in gc.get_objects())
        said.clear()
        assert before - sum(isinstance(one, Message) for one in gc.get_objects()) == 40
    finally:
        gc.enable()


@pytest.mark.parametrize("sizes", [(1,) * 200, (5, 0, 1, 100, 1, 1), (100, 1, 1, 1, 1)])
def test_ids_are_in_few_sets_and_none_is_lost(sizes: tuple[int, ...]) -> None:
    ids: prefixes.Ids = ()
    every: set[str] = set()
    for turn, size in enumerate(sizes):
        more = {f"{turn}-{number}" for number in range(size)}
        before, kept = ids, [frozenset(some) for some in ids]
        ids = with_ids(ids, more)
        assert [*before] == kept
        every |= more
        assert frozenset().union(*ids) == every
    assert len(ids) <= 9
