"""Parts of the simulated worlds: a scripted model, tools, a journal, and crashes."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

from typing_extensions import override

from agent import Agent
from agent.engine.flow import Emit, Flow, Sleep
from agent.engine.wire import Answer, WireRequest
from agent.loop import MemoryJournal
from agent.testing import Simulation, VendorScript
from agent.tools.base import FlowTool, ToolContext
from agent.types import AgentResponse, TextContent, ToolCall, ToolSpec
from tests.loop.scenarios import Wish

_TURN = re.compile(rb"\[turn (\d+)\]")
_SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


class Model(VendorScript):
    """Returns the scripted response for a conversation, whatever the number of calls."""

    def __init__(self, turns: Sequence[Sequence[Wish]]) -> None:
        super().__init__("", strict=True, delay=0.01)
        self._turns = turns
        self._is_sub = False

    @override
    def __call__(self, request: WireRequest) -> Answer:
        self._is_sub = is_sub(request)
        return super().__call__(request)

    @override
    def _next_line(self) -> Any:
        return self._reply

    def _reply(self, body: dict[str, Any]) -> AgentResponse | str:
        if self._is_sub:
            return "The task is done."
        turn = max((int(number) for number in _TURN.findall(repr(body).encode())), default=-1) + 1
        calls = [
            ToolCall(id=f"t{turn}c{place}", name=wish.tool, arguments=_arguments(wish))
            for place, wish in enumerate(self._turns[turn] if turn < len(self._turns) else ())
        ]
        return AgentResponse(content=(TextContent(text=f"[turn {turn}]"), *calls))


def is_sub(request: WireRequest) -> bool:
    return urlsplit(request.url).path.startswith("/sub/")


def _arguments(wish: Wish) -> dict[str, Any]:
    if wish.tool == "sub":
        return {"task": f"task {wish.number}"}
    return {"n": "many" if wish.tool == "choosy" else wish.number}


@dataclass
class TriedTool(FlowTool):
    """A tool that the world observes. It takes effect when it starts."""

    world: Any = None
    after: float = 0.0
    fails: int = 0
    """How often a call of it raises before it works."""

    @property
    @override
    def can_run(self) -> bool:
        return True

    @override
    def steps(self, arguments: Any, context: ToolContext[Any]) -> Flow[Any]:
        times, began = self.world.begins(self, context), self.world.now
        try:
            yield from Sleep(self.after / 2)
            yield from Emit([f"{context.call_id} is half done"])
            yield from Sleep(self.after / 2)
            if self.timeout is not None and self.world.now > began + self.timeout:
                self.world.broken(f"{context.call_id} goes on after its time")
            if times <= self.fails:
                raise ValueError(f"{self.name} broke")
            self.world.completed.add(context.call_id)
            return {"brought": arguments["n"], "by": self.name}
        finally:
            self.world.at_work.discard(context.call_id)


def toolbox(world: Any) -> list[Any]:
    def make(name: str, **settings: Any) -> TriedTool:
        return TriedTool(name, f"{name}.", _SCHEMA, world=world, **settings)

    every: dict[str, Callable[[], Any]] = {
        "quick": lambda: make("quick"),
        "slow": lambda: make("slow", after=2.0),
        "safe": lambda: make("safe", after=1.5, idempotent=True),
        "broken": lambda: make("broken", after=0.4, fails=1000),
        "flaky": lambda: make("flaky", after=0.3, fails=1, retries=2),
        "stuck": lambda: make("stuck", after=100.0, timeout=4.0),
        "lone": lambda: make("lone", after=0.6, sequential=True),
        "wild": lambda: make("wild", after=0.2, risk="exec"),
        "choosy": lambda: make("choosy"),
        "outside": lambda: ToolSpec(name="outside", description="Elsewhere.", parameters=_SCHEMA),
        "sub": lambda: agent_at("openai-chat", "sub").as_tool("sub", "Asks another agent."),
    }
    wanted = {wish.tool for turn in world.scenario.turns for wish in turn} | {"quick"}
    return [made() for name, made in every.items() if name in wanted]


@lru_cache
def agent_at(vendor: str, place: int | str) -> Agent:
    return Agent(
        f"{vendor}:m", api_key="k", base_url=f"http://127.0.0.1/{place}/v1",
        max_retries=1, timeout=30.0, first_byte_timeout=6.0, idle_timeout=5.0,
    )  # fmt: skip


class WatchedJournal(MemoryJournal):
    """Knows at any time what is in it."""

    def __init__(self) -> None:
        super().__init__()
        self.keys: set[str] = set()
        self.answers = 0

    @override
    def write(self, run_id: str, key: str, data: Mapping[str, Any]) -> bool:
        written = super().write(run_id, key, data)
        if "/" not in run_id:  # those of sub-agents are theirs
            self.answers += written and "response" in data
            self.keys.add(key)
        return written

    def ids(self, kind: str) -> set[str]:
        return {key.removeprefix(f"{kind}:") for key in self.keys if key.startswith(kind)}


class MortalSimulation(Simulation):
    """Comes to its end after some steps."""

    happened = 0
    """How many things have happened in it."""
    most: int | None = None
    """After how many it ends."""
    last: Callable[[], None] | None = None
    """The outcome."""

    @override
    def step(self) -> bool:
        if self.happened == self.most and self.last is not None:
            self.last()
        self.happened += 1
        return super().step()
