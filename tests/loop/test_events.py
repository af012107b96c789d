"""The order of a run's events, the same under every driver."""

from __future__ import annotations

import json
from typing import Any

from inline_snapshot import snapshot

from agent import errors
from agent.testing import Answer, Script, TimedTool
from agent.types import ToolCall
from tests.loop.stories import check_history, story
from tests.support.drivers import Driver


def call(id: str, name: str, /, **arguments: Any) -> ToolCall:
    return ToolCall(id=id, name=name, arguments=arguments)


def look(after: float = 0.0, **settings: Any) -> TimedTool:
    return TimedTool("look", "Looks.", after=after, **settings)


def test_a_run_without_tools(drive: Driver) -> None:
    ran = drive.run(Script("Hello!"))
    assert story(ran.events) == snapshot(
        [
            "agent_start",
            "turn_start",
            "message_start user",
            "message_end user",
            "message_start assistant",
            "message_update text_delta",
            "message_end assistant",
            "turn_end 0 results",
            "agent_end 2 messages",
        ]
    )
    assert ran.ok.text == "Hello!"


def test_a_run_with_one_tool(drive: Driver) -> None:
    tool = look(0.02, reports=[(0.01, "looking")], result="a river")
    ran = drive.run(Script(call("c1", "look"), "A river."), tools=[tool])
    assert story(ran.events) == snapshot(
        [
            "agent_start",
            "turn_start",
            "message_start user",
            "message_end user",
            "message_start assistant",
            "message_update tool_call_start",
            "message_update tool_call_delta",
            "message_update tool_call_end",
            "message_end assistant",
            "tool_execution_start c1 look",
            "tool_execution_update c1 looking",
            "tool_execution_end c1 a river",
            "message_start tool",
            "message_update tool_result",
            "message_end tool",
            "turn_end 1 results",
            "turn_start",
            "message_start assistant",
            "message_update text_delta",
            "message_end assistant",
            "turn_end 0 results",
            "agent_end 4 messages",
        ]
    )
    assert ran.ok.text == "A river."


def test_a_run_with_three_parallel_tools(drive: Driver) -> None:
    tools = [
        TimedTool(name, f"{name}.", after=after, result=name)
        for name, after in (("slow", 0.3), ("quick", 0.0), ("middling", 0.15))
    ]
    calls = [call("c1", "slow"), call("c2", "quick"), call("c3", "middling")]
    ran = drive.run(Script(calls, "Done."), tools=tools)
    assert story(ran.events) == snapshot(
        [
            "agent_start",
            "turn_start",
            "message_start user",
            "message_end user",
            "message_start assistant",
            "message_update tool_call_start",
            "message_update tool_call_delta",
            "message_update tool_call_start",
            "message_update tool_call_delta",
            "message_update tool_call_start",
            "message_update tool_call_delta",
            "message_update tool_call_end",
            "message_end assistant",
            "tool_execution_start c1 slow",
            "tool_execution_start c2 quick",
            "tool_execution_start c3 middling",
            "tool_execution_end c2 quick",
            "tool_execution_end c3 middling",
            "tool_execution_end c1 slow",
            "message_start tool",
            "message_update tool_result",
            "message_end tool",
            "message_start tool",
            "message_update tool_result",
            "message_end tool",
            "message_start tool",
            "message_update tool_result",
            "message_end tool",
            "turn_end 3 results",
            "turn_start",
            "message_start assistant",
            "message_update text_delta",
            "message_end assistant",
            "turn_end 0 results",
            "agent_end 6 messages",
        ]
    )


def test_steering_in_the_middle_skips_calls_that_have_not_begun(drive: Driver) -> None:
    tool = look()
    calls = [call("c1", "look"), call("c2", "look"), call("c3", "look")]

    def watch(event: Any, run: Any) -> None:
        if event.type == "tool_execution_start" and event.tool_call_id == "c1":
            run.steer("Never mind, look north.")

    script = Script(calls, "North it is.")
    ran = drive.run(script, tools=[tool], asked={"watching": watch, "loop": {"parallel_tool_execution": False}})
    assert story(ran.events) == snapshot(
        [
            "agent_start",
            "turn_start",
            "message_start user",
            "message_end user",
            "message_start assistant",
            "message_update tool_call_start",
            "message_update tool_call_delta",
            "message_update tool_call_start",
            "message_update tool_call_delta",
            "message_update tool_call_start",
            "message_update tool_call_delta",
            "message_update tool_call_end",
            "message_end assistant",
            "tool_execution_start c1 look",
            "tool_execution_end c1 done",
            "message_start tool",
            "message_update tool_result",
            "message_end tool",
            "tool_execution_start c2 look",
            "tool_execution_end c2 error Skipped: the user sent a message.",
            "message_start tool",
            "message_update tool_result",
            "message_end tool",
            "tool_execution_start c3 look",
            "tool_execution_end c3 error Skipped: the user sent a message.",
            "message_start tool",
            "message_update tool_result",
            "message_end tool",
            "turn_end 3 results",
            "turn_start",
            "message_start user",
            "message_end user",
            "message_start assistant",
            "message_update text_delta",
            "message_end assistant",
            "turn_end 0 results",
            "agent_end 7 messages",
        ]
    )
    assert tool.calls == 1
    check_history(list(ran.ok.messages))


def test_steering_during_parallel_calls_waits_for_those_that_have_begun(drive: Driver) -> None:
    tool = look(0.01)

    def watch(event: Any, run: Any) -> None:
        if event.type == "tool_execution_start" and event.tool_call_id == "c1":
            run.steer("Stop.")

    ran = drive.run(
        Script([call("c1", "look"), call("c2", "look")], "Stopped."), tools=[tool], asked={"watching": watch}
    )
    assert tool.calls == 2
    assert [message.role.value for message in ran.ok.messages] == snapshot(
        ["user", "assistant", "tool", "tool", "user", "assistant"]
    )


def test_a_follow_up_is_heard_when_the_run_would_end(drive: Driver) -> None:
    def watch(event: Any, run: Any) -> None:
        if event.type == "tool_execution_start":
            run.follow_up("And then?")

    script = Script(call("c1", "look"), "A river.", "A bridge.")
    ran = drive.run(script, tools=[look()], asked={"watching": watch})
    assert story(ran.events) == snapshot(
        [
            "agent_start",
            "turn_start",
            "message_start user",
            "message_end user",
            "message_start assistant",
            "message_update tool_call_start",
            "message_update tool_call_delta",
            "message_update tool_call_end",
            "message_end assistant",
            "tool_execution_start c1 look",
            "tool_execution_end c1 done",
            "message_start tool",
            "message_update tool_result",
            "message_end tool",
            "turn_end 1 results",
            "turn_start",
            "message_start assistant",
            "message_update text_delta",
            "message_end assistant",
            "turn_end 0 results",
            "turn_start",
            "message_start user",
            "message_end user",
            "message_start assistant",
            "message_update text_delta",
            "message_end assistant",
            "turn_end 0 results",
            "agent_end 6 messages",
        ]
    )
    assert ran.ok.text == "A bridge."


def test_an_abort_while_a_tool_runs(drive: Driver) -> None:
    def watch(event: Any, run: Any) -> None:
        if event.type == "tool_execution_update":
            run.abort()

    tools = [look(60.0, reports=[(0.01, "looking")]), TimedTool("wait", "Waits.", after=60.0)]
    ran = drive.run(Script([call("c1", "look"), call("c2", "wait")]), tools=tools, asked={"watching": watch})
    assert story(ran.events) == snapshot(
        [
            "agent_start",
            "turn_start",
            "message_start user",
            "message_end user",
            "message_start assistant",
            "message_update tool_call_start",
            "message_update tool_call_delta",
            "message_update tool_call_start",
            "message_update tool_call_delta",
            "message_update tool_call_end",
            "message_end assistant",
            "tool_execution_start c1 look",
            "tool_execution_start c2 wait",
            "tool_execution_update c1 looking",
            "tool_execution_end c1 error The call was interrupted; it may have taken effect.",
            "tool_execution_end c2 error The call was interrupted; it may have taken effect.",
            "message_start tool",
            "message_update tool_result",
            "message_end tool",
            "message_start tool",
            "message_update tool_result",
            "message_end tool",
            "message_start assistant [aborted]",
            "message_update error",
            "message_end assistant [aborted]",
            "turn_end 2 results",
            "agent_end 5 messages",
        ]
    )
    assert isinstance(ran.failed, errors.Aborted)
    check_history(list(ran.failed.result.messages))


def test_an_abort_while_the_model_speaks(drive: Driver) -> None:
    def watch(event: Any, run: Any) -> None:
        if event.type == "message_update" and event.assistant_message_event.type == "text_delta":
            run.abort()

    ran = drive.run(Script("One two three four five.", delay=0.005), asked={"watching": watch})
    assert story(ran.events) == snapshot(
        [
            "agent_start",
            "turn_start",
            "message_start user",
            "message_end user",
            "message_start assistant",
            "message_update text_delta",
            "message_update error",
            "message_end assistant [aborted]",
            "turn_end 0 results",
            "agent_end 2 messages",
        ]
    )
    assert isinstance(ran.failed, errors.Aborted)


def test_a_failure_of_the_model_in_the_second_turn(drive: Driver) -> None:
    ran = drive.run(Script(call("c1", "look"), errors.BadRequestError("no")), tools=[look()])
    assert story(ran.events) == snapshot(
        [
            "agent_start",
            "turn_start",
            "message_start user",
            "message_end user",
            "message_start assistant",
            "message_update tool_call_start",
            "message_update tool_call_delta",
            "message_update tool_call_end",
            "message_end assistant",
            "tool_execution_start c1 look",
            "tool_execution_end c1 done",
            "message_start tool",
            "message_update tool_result",
            "message_end tool",
            "turn_end 1 results",
            "turn_start",
            "message_start assistant",
            "message_update error",
            "message_end assistant [error]",
            "turn_end 0 results",
            "agent_end 4 messages",
        ]
    )
    assert isinstance(ran.failed, errors.BadRequestError)
    assert ran.events[-1].messages[-1].error_message == str(ran.failed)
    assert [message.role.value for message in ran.failed.result.messages] == ["user", "assistant", "tool", "assistant"]


def test_a_stream_that_breaks_in_the_middle(drive: Driver) -> None:
    delta = {"index": 0, "delta": {"role": "assistant", "content": "The an"}}
    chunk = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [delta]}
    broken = Answer([f"data: {json.dumps(chunk)}\n\n".encode()], headers={"content-type": "text/event-stream"})
    ran = drive.run(lambda request: broken)
    assert story(ran.events) == snapshot(
        [
            "agent_start",
            "turn_start",
            "message_start user",
            "message_end user",
            "message_start assistant",
            "message_update text_delta",
            "message_update error",
            "message_end assistant [error]",
            "turn_end 0 results",
            "agent_end 2 messages",
        ]
    )
    assert isinstance(ran.failed, errors.StreamInterrupted)
    assert ran.events[-1].messages[-1].text == "The an"


def test_a_failure_of_a_tool_that_must_not_fail(drive: Driver) -> None:
    tools = [TimedTool("bad", "Fails.", result=ValueError("broken")), look(0.05)]
    script = Script([call("c1", "bad"), call("c2", "look")])
    ran = drive.run(script, tools=tools, asked={"loop": {"stop_on_error": True}})
    assert story(ran.events) == snapshot(
        [
            "agent_start",
            "turn_start",
            "message_start user",
            "message_end user",
            "message_start assistant",
            "message_update tool_call_start",
            "message_update tool_call_delta",
            "message_update tool_call_start",
            "message_update tool_call_delta",
            "message_update tool_call_end",
            "message_end assistant",
            "tool_execution_start c1 bad",
            "tool_execution_start c2 look",
            "tool_execution_end c1 error ValueError: broken",
            "message_start tool",
            "message_update tool_result",
            "message_end tool",
            "tool_execution_end c2 done",
            "message_start tool",
            "message_update tool_result",
            "message_end tool",
            "message_start assistant [error]",
            "message_update error",
            "message_end assistant [error]",
            "turn_end 2 results",
            "agent_end 5 messages",
        ]
    )
    assert isinstance(ran.failed, errors.ToolExecutionError)
    assert ran.failed.tool_name == "bad"
    check_history(list(ran.failed.result.messages))
