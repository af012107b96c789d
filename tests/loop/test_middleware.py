"""Middleware around the turns of a run, and its run events."""

from __future__ import annotations

from typing import Any

from typing_extensions import override

from agent import Agent, Router, tool
from agent.middleware import CallInfo, Middleware
from agent.testing import Script
from agent.types import AgentRequest, AgentResponse, ToolCall
from tests.support.drivers import Driver


@tool
def add(a: int, b: int) -> int:
    return a + b


class Watcher(Middleware):
    def __init__(self) -> None:
        self.calls: list[str] = []
        self.events: list[str] = []

    @override
    def before(self, request: AgentRequest, call: CallInfo) -> AgentRequest | None:
        self.calls.append(f"before {call.run.id} {call.run.turn}")
        return None

    @override
    def after(self, response: AgentResponse, call: CallInfo) -> AgentResponse | None:
        self.calls.append(f"after {call.run.turn}")
        return None

    @override
    def on_event(self, event: Any, call: CallInfo) -> Any:
        self.events.append(event.type)
        return None


def script() -> Script:
    return Script(ToolCall(id="c1", name="add", arguments={"a": 1, "b": 1}), "2")


def test_middleware_stands_around_every_turn_and_hears_both_kinds_of_events(drive: Driver) -> None:
    watcher = Watcher()
    ran = drive.run(script(), tools=[add], middleware=[watcher], asked={"run_id": "seven"})
    assert ran.ok.text == "2"
    assert watcher.calls == ["before seven 1", "after 1", "before seven 2", "after 2"]
    assert {"agent_start", "tool_execution_end", "agent_end"} <= set(watcher.events)
    assert {"tool_call_delta", "text_delta"} <= set(watcher.events)


def test_a_routers_middleware_hears_its_runs(drive: Driver) -> None:
    watcher = Watcher()

    def make(url: str) -> Router:
        agent = Agent("openai-chat:m", base_url=f"{url}/v1", api_key="k", tools=[add])
        return Router([agent], middleware=[watcher])

    assert drive.run(script(), make=make, base_url="http://127.0.0.1").ok.text == "2"
    assert len(watcher.calls) == 4
    assert watcher.events[-1] == "agent_end"


def test_events_that_middleware_drops_are_not_told(drive: Driver) -> None:
    class Quiet(Middleware):
        @override
        def on_event(self, event: Any, call: CallInfo) -> Any:
            return () if event.type == "message_update" else None

    ran = drive.run(script(), tools=[add], middleware=[Quiet()])
    assert ran.ok.text == "2"
    assert "message_update" not in {event.type for event in ran.events}
