"""An AgentLoop keeps a conversation, tells its listeners, and can be spoken to while it works."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from agent import Agent, ToolContext, errors, tool
from agent.loop import AgentLoop, Hooks
from agent.testing import Script, ScriptedTransport, scripted_agent
from agent.types import Message, ThinkingLevel, ToolCall
from tests.loop.stories import check_history


def call(id: str, name: str, /, **arguments: Any) -> ToolCall:
    return ToolCall(id=id, name=name, arguments=arguments)


@tool
def add(a: int, b: int) -> int:
    return a + b


@pytest.fixture(params=["sync", "async"])
def prompt(request: pytest.FixtureRequest) -> Any:
    def ask(loop: AgentLoop, *messages: Any) -> Any:
        if request.param == "sync":
            return loop.prompt(*messages) if messages else loop.continue_()
        return asyncio.run(loop.aprompt(*messages)) if messages else asyncio.run(loop.acontinue_())

    return ask


def texts(loop: AgentLoop) -> list[str]:
    return [message.text if isinstance(message, Message) else message["role"] for message in loop.messages]


def test_the_conversation_goes_on_from_run_to_run(prompt: Any) -> None:
    script = Script("Hello, Ada!", "You are Ada.")
    loop = AgentLoop(Agent("scripted:m", transport=ScriptedTransport(script)), system_prompt="Be kind.")
    assert prompt(loop, "I am Ada.").text == "Hello, Ada!"
    assert prompt(loop, "And me?").text == "You are Ada."
    assert texts(loop) == ["I am Ada.", "Hello, Ada!", "And me?", "You are Ada."]
    assert [message["role"] for message in script.requests[1]["messages"]] == ["system", "user", "assistant", "user"]


def test_listeners_hear_every_event_until_they_leave(prompt: Any) -> None:
    loop = AgentLoop(scripted_agent("One.", "Two."))
    heard: list[str] = []
    leave = loop.subscribe(lambda event: heard.append(event.type))
    prompt(loop, "a")
    assert (heard[0], heard[-1]) == ("agent_start", "agent_end")
    count = len(heard)
    leave()
    leave()
    prompt(loop, "b")
    assert len(heard) == count


def test_async_listeners_are_awaited() -> None:
    heard: list[str] = []

    async def listen(event: Any) -> None:
        await asyncio.sleep(0)
        heard.append(event.type)

    loop = AgentLoop(scripted_agent("One."))
    loop.subscribe(listen)
    asyncio.run(loop.aprompt("a"))
    assert heard[-1] == "agent_end"


def test_steering_and_follow_ups_come_one_at_a_time_or_all_at_once(prompt: Any) -> None:
    for mode, turns in (("one_at_a_time", 4), ("all", 2)):
        loop = AgentLoop(scripted_agent("a", "b", "c", "d"), follow_up_mode=mode)  # type: ignore[arg-type]
        for text in ("two", "three", "four"):
            loop.follow_up(text)
        assert prompt(loop, "one").turns == turns
        assert [text for text in texts(loop) if text in ("one", "two", "three", "four")] == [
            "one",
            "two",
            "three",
            "four",
        ]


def test_steering_is_heard_after_the_tool_that_runs(prompt: Any) -> None:
    @tool
    def work(context: ToolContext[AgentLoop]) -> str:
        context.deps.steer("Faster!")
        return "worked"

    loop = AgentLoop(scripted_agent(call("c1", "work"), "Faster it is."), tools=[work])
    loop.deps = loop
    prompt(loop, "Go.")
    assert texts(loop) == ["Go.", "", "worked", "Faster!", "Faster it is."]


def test_what_was_queued_while_idle_is_said_by_continuing(prompt: Any) -> None:
    loop = AgentLoop(scripted_agent("Yes?"))
    loop.steer("Psst.")
    assert prompt(loop).text == "Yes?"
    assert texts(loop) == ["Psst.", "Yes?"]
    loop.follow_up("Again.")
    loop.clear_queues()
    with pytest.raises(errors.ConfigurationError, match="the model sent the last one"):
        prompt(loop)


def test_continuing_while_it_runs_is_refused_and_loses_no_queued_message() -> None:
    @tool
    def work(context: ToolContext[AgentLoop]) -> str:
        context.deps.follow_up("And then?")
        with pytest.raises(errors.ConfigurationError, match="running"):
            context.deps.continue_()
        return "worked"

    loop = AgentLoop(scripted_agent(call("c1", "work"), "Done.", "Nothing."), tools=[work])
    loop.deps = loop
    loop.prompt("Go.")
    assert texts(loop) == ["Go.", "", "worked", "Done.", "And then?", "Nothing."]


def test_after_a_failure_the_loop_says_so_and_can_continue(prompt: Any) -> None:
    loop = AgentLoop(scripted_agent(errors.BadRequestError("no"), "Better."))
    with pytest.raises(errors.BadRequestError):
        prompt(loop, "Go.")
    assert "no" in (loop.state["error"] or "")
    assert loop.messages[-1].stop_reason == "error"  # type: ignore[union-attr]
    assert prompt(loop).text == "Better."
    assert loop.state["error"] is None


def test_the_broken_off_turn_is_not_sent_again(prompt: Any) -> None:
    script = Script(errors.BadRequestError("no"), "Better.")
    loop = AgentLoop(Agent("scripted:m", transport=ScriptedTransport(script)))
    with pytest.raises(errors.BadRequestError):
        prompt(loop, "Go.")
    prompt(loop)
    assert [message["role"] for message in script.requests[1]["messages"]] == ["user"]


def test_only_one_run_at_a_time_and_others_wait_until_it_is_idle() -> None:
    begun, release = threading.Event(), threading.Event()

    @tool
    def work() -> str:
        begun.set()
        release.wait(5)
        return "worked"

    loop = AgentLoop(scripted_agent(call("c1", "work"), "Done."), tools=[work])
    thread = threading.Thread(target=loop.prompt, args=("Go.",))
    thread.start()
    begun.wait(5)
    state = loop.state
    assert state["is_streaming"]
    assert state["pending_tool_calls"] == {"c1"}
    assert len(state["messages"]) == 2
    assert not loop.wait_for_idle(0.01)
    with pytest.raises(errors.ConfigurationError, match="running"):
        loop.prompt("Me too.")
    with pytest.raises(errors.ConfigurationError, match="running"):
        loop.reset()
    release.set()
    assert loop.wait_for_idle(5)
    thread.join()
    assert not loop.state["is_streaming"]
    loop.reset()
    assert loop.messages == []


def test_an_abort_keeps_what_was_said() -> None:
    begun, release = threading.Event(), threading.Event()

    @tool
    def hang() -> str:
        begun.set()
        release.wait(20)
        return "never"

    loop = AgentLoop(scripted_agent(call("c1", "hang"), "Better."), tools=[hang])
    failures: list[BaseException] = []

    def run() -> None:
        try:
            loop.prompt("Go.")
        except errors.Aborted as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    begun.wait(5)
    loop.abort()
    thread.join(5)
    assert len(failures) == 1
    assert loop.messages[-1].stop_reason == "aborted"  # type: ignore[union-attr]
    check_history([message for message in loop.messages if isinstance(message, Message)])
    loop.abort()  # nothing runs, nothing happens
    release.set()


def test_an_async_abort_and_waiting_for_idleness() -> None:
    @tool
    async def hang() -> str:
        await asyncio.sleep(20)
        return "never"

    async def main() -> AgentLoop:
        loop = AgentLoop(scripted_agent(call("c1", "hang")), tools=[hang])
        running = asyncio.create_task(loop.aprompt("Go."))
        while not loop.state["pending_tool_calls"]:
            await asyncio.sleep(0.005)
        loop.abort()
        await loop.await_for_idle()
        with pytest.raises(errors.Aborted):
            await running
        return loop

    assert asyncio.run(main()).messages[-1].stop_reason == "aborted"  # type: ignore[union-attr]


def test_messages_with_roles_of_their_own_are_kept_and_not_sent(prompt: Any) -> None:
    script = Script("Hello.", "Noted.")
    agent = Agent("scripted:m", transport=ScriptedTransport(script))
    loop = AgentLoop(agent, messages=[{"role": "banner", "text": "Welcome"}])
    prompt(loop, "Hi")
    assert [message["role"] for message in script.requests[0]["messages"]] == ["user"]
    assert texts(loop) == ["banner", "Hi", "Hello."]
    told = AgentLoop(
        agent,
        messages=[{"role": "note", "text": "it rains"}],
        hooks=Hooks(
            convert_to_llm=lambda messages: [
                message if isinstance(message, Message) else Message.user(f"Note: {message['text']}")
                for message in messages
            ]
        ),
    )
    prompt(told, "Hi")
    assert script.requests[1]["messages"][0]["content"] == "Note: it rains"


def test_the_state_describes_the_loop() -> None:
    loop = AgentLoop(scripted_agent(), system_prompt="Be brief.", tools=[add], thinking_level=ThinkingLevel.LOW)
    state = loop.state
    assert state["system_prompt"] == "Be brief."
    assert state["model"] is not None
    assert (state["model"].provider, state["model"].id) == ("scripted", "script")
    assert state["thinking_level"] is ThinkingLevel.LOW
    assert [tool.name for tool in state["tools"]] == ["add"]
    assert (state["is_streaming"], state["stream_message"], state["pending_tool_calls"]) == (False, None, set())
