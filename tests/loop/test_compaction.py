"""Old turns are summed up when the conversation outgrows its room, and calls stay with their results."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agent import Agent, errors, tool
from agent.loop import AgentLoop, Compaction, Hooks
from agent.loop.hooks import _tokens
from agent.testing import Script, ScriptedTransport, scripted_agent
from agent.types import Message, Role, ToolCall, ToolResult
from tests.loop.stories import check_history

WORDS = "the quick brown fox jumps over the lazy dog " * 20


def turn(number: int, calls: int = 0) -> list[Message]:
    """A question, maybe calls and their results, and an answer."""
    asked = [ToolCall(id=f"c{number}_{place}", name="look", arguments={"at": place}) for place in range(calls)]
    results = [Message(Role.TOOL, [ToolResult(tool_call_id=one.id, name="look", content=WORDS)]) for one in asked]
    middle = [Message(Role.ASSISTANT, asked), *results] if asked else []
    return [Message.user(f"{number}: {WORDS}"), *middle, Message.assistant(f"answer {number}: {WORDS}")]


def summariser(*lines: Any) -> tuple[Agent, Script]:
    script = Script(*lines) if lines else Script("A summary.", "A longer summary.", "The longest summary.")
    return Agent("scripted:m", transport=ScriptedTransport(script)), script


def test_a_conversation_that_fits_is_left_alone() -> None:
    agent, script = summariser()
    messages = turn(1)
    assert Compaction(agent, window=100_000)(messages) == messages
    assert not script.requests


def test_old_turns_are_told_in_a_summary_and_the_latest_stay() -> None:
    agent, script = summariser()
    messages = [message for number in range(8) for message in turn(number, calls=2)]
    compact = Compaction(agent, window=4000, at=0.8, keep=0.3)
    shown = compact(messages)
    assert isinstance(shown[0], Message)
    assert "A summary." in shown[0].text
    assert shown[-1] is messages[-1]
    assert shown[1:] == messages[-len(shown) + 1 :]
    assert _tokens(shown) < 0.5 * 4000
    check_history([message for message in shown if isinstance(message, Message)])
    assert "look" in str(script.requests[0])  # tool calls are part of the summarized text


@pytest.mark.parametrize("calls", [0, 1, 3])
@pytest.mark.parametrize("window", [1500, 3000, 6000, 9000])
def test_no_call_is_ever_parted_from_its_result(window: int, calls: int) -> None:
    messages = [message for number in range(12) for message in turn(number, calls=calls)]
    agent, _ = summariser(*(["Summary."] * 40))
    compact = Compaction(agent, window=window)
    for end in range(1, len(messages) + 1):
        if messages[end - 1].role is Role.TOOL or messages[end - 1].tool_calls:
            continue
        check_history([message for message in compact(messages[:end]) if isinstance(message, Message)])


def test_what_was_summed_up_stays_summed_up() -> None:
    agent, _ = summariser()
    messages = [message for number in range(8) for message in turn(number)]
    compact = Compaction(agent, window=3000)
    first = compact(messages)
    assert compact.count == 1
    grown = [*messages, Message.user("A short question.")]
    assert compact(grown) == [*first, grown[-1]]
    assert compact.count == 1  # the summary is cached
    much = [*grown, *(message for number in range(8, 14) for message in turn(number))]
    again = compact(much)
    assert compact.count == 2
    assert "longer summary" in again[0].text  # type: ignore[union-attr]


def test_the_second_summary_is_made_of_the_first() -> None:
    agent, script = summariser()
    compact = Compaction(agent, window=3000)
    messages = [message for number in range(8) for message in turn(number)]
    compact(messages)
    compact([*messages, *(message for number in range(8, 14) for message in turn(number))])
    assert "A summary." in str(script.requests[1])


def test_one_turn_that_is_too_long_by_itself_is_sent_as_it_is() -> None:
    agent, script = summariser()
    messages = [Message.user(WORDS * 50)]
    assert Compaction(agent, window=1000)(messages) == messages
    assert not script.requests


def test_an_empty_summary_is_an_error_and_not_a_loss() -> None:
    agent, _ = summariser("")
    with pytest.raises(errors.AgentError, match="empty"):
        Compaction(agent, window=2000)([message for number in range(8) for message in turn(number)])


def test_a_window_that_nobody_knows_must_be_given() -> None:
    with pytest.raises(errors.ConfigurationError, match="window"):
        Compaction(scripted_agent())
    with pytest.raises(errors.ConfigurationError, match="keep"):
        Compaction(scripted_agent(), window=100, at=0.2, keep=0.5)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_loop_with_compaction_keeps_the_whole_conversation_and_sends_the_short_one(asynchronous: bool) -> None:
    @tool
    def look() -> str:
        return WORDS

    script = Script(ToolCall(id="c1", name="look", arguments={}), "Done.")
    agent = Agent("scripted:m", transport=ScriptedTransport(script))
    short, _ = summariser("All that came before.")
    before = [message for number in range(8) for message in turn(number)]
    loop = AgentLoop(
        agent, messages=before, tools=[look], hooks=Hooks(transform_context=Compaction(short, window=3000))
    )
    result = asyncio.run(loop.aprompt("Go on.")) if asynchronous else loop.prompt("Go on.")
    assert result.text == "Done."
    assert loop.messages[: len(before)] == before
    assert "All that came before." in script.requests[0]["messages"][0]["content"]
    assert len(script.requests[0]["messages"]) < len(before)
