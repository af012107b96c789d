"""A simulated world for the tool loop: a model, misbehaving tools, decisions, and crashes.

Running a scenario runs the real loop in virtual time, one life after the other: when a life ends before the run does,
the next one takes it up from the journal. Invariants are checked in each life and at the end, and the
end is compared with that of the same run where nothing goes wrong.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import inf
from typing import Any

from agent import Router, errors
from agent.client import Client
from agent.engine.drivers.simulated import Stopped
from agent.engine.flow import AnyEffect, Invoke, Open, Read, Send
from agent.engine.wire import Answer, WireRequest
from agent.loop import Allow, Ask, Change, Deny, PausedRun, RunResult, ToolCallRecord, list_calls
from agent.loop.run_state import INTERRUPTED
from agent.testing import SimulatedLoop, Simulation
from agent.tools.base import ToolContext
from agent.types import Message, TextContent, ToolCall, ToolResult, Usage
from tests.loop.cast import Model, MortalSimulation, TriedTool, WatchedJournal, agent_at, is_sub, toolbox
from tests.loop.scenarios import Scenario, Wish
from tests.loop.stories import check_history
from tests.routing.world import FAULTS

RUN = "run"
MOST_LIVES = 14
RIVAL = 1000
"""The number of a life that is lived beside another, and more."""


@dataclass
class Life:
    """From one start of the run to its end, or to a crash."""

    number: int
    until: float
    """Its deadline."""
    events: list[Any] = field(default_factory=list)
    over: bool = False
    result: RunResult | None = None
    error: BaseException | None = None

    @property
    def outcome(self) -> RunResult | None:
        return self.result if self.result is not None else getattr(self.error, "result", None)


@dataclass
class Start:
    """A tool that began."""

    call: str
    tool: TriedTool
    life: int


# The world


class World:
    """A scenario while it runs. If it is `calm`, nothing goes wrong, and decisions are made at once."""

    def __init__(self, scenario: Scenario, *, calm: bool = False) -> None:
        self.scenario = scenario = scenario.calm if calm else scenario
        self.journal = WatchedJournal()
        self.model = Model(scenario.turns)
        self.lives: list[Life] = []
        self.rivals: list[Life] = []
        self.starts: list[Start] = []
        self.steps = 0
        self.at_work: set[str] = set()
        self.completed: set[str] = set()
        """Ids of calls whose tools came to their end."""
        self.interrupted: set[str] = set()
        """Ids of calls that had begun, and not ended, when a life was over."""
        self.problems: list[str] = []
        self._asks = not calm
        self._rivalled = scenario.rival is not None
        """Whether another process may act at any time."""
        self._ends: list[tuple[Life, SimulatedLoop]] = []
        self._began = 0.0
        self._log = hashlib.sha256()
        self._asked = self._effects = 0
        self._answers, self._breaks = dict(scenario.answers), dict(scenario.breaks)
        self._tools = toolbox(self)
        self._agents = [agent_at(vendor, number) for number, vendor in enumerate(scenario.vendors)]

    def broken(self, promise: str) -> None:
        self.problems.append(f"life {len(self.lives)}: {promise}")

    @property
    def log(self) -> str:
        """The same for the same seed, to the last step."""
        return self._log.hexdigest()

    @property
    def breaks_left(self) -> int:
        """How many faults did not find their effect."""
        return len(self._breaks)

    @property
    def end(self) -> Life:
        return self.lives[-1]

    @property
    def now(self) -> float:
        return self._simulation.now

    # Faults

    def answer(self, request: WireRequest) -> Answer:
        good = self.model(request)
        if good.status == 400:
            self.broken(f"the vendor refuses what it was sent: {self.model.refusals[-1]}")
        if is_sub(request):
            return good
        self._asked += 1
        if self.journal.answers >= self.scenario.max_iterations and not self._rivalled:
            self.broken(f"the model was called, though it has answered {self.journal.answers} times")
        good.after = 0.2
        fault = self._answers.pop(self._asked - 1, None)
        return good if fault is None else FAULTS[fault](good)

    def fault(self, simulation: Simulation, effect: AnyEffect) -> Exception | None:
        """Break an effect, if it is time for that and it can break in that way."""
        kinds = self._ways_to_break(effect)
        if not kinds:
            return None
        self._effects += 1
        place = next((place for place, kind in self._breaks.items() if place < self._effects and kind in kinds), None)
        return None if place is None else _broke(self._breaks.pop(place), effect)

    def _ways_to_break(self, effect: AnyEffect) -> tuple[str, ...]:
        match effect:
            case Send(request) | Open(request) if is_sub(request):
                return ()
            case Send() | Open() | Read():
                return ("connection", "timeout")
            case Invoke(function) if getattr(function, "__self__", None) is self.journal:
                return ("journal", "journal, but written")
            case Invoke(function) if function == self.before_tool_call:
                return ("hook",)
            case _:
                return ()

    # Observations

    def begins(self, tool: TriedTool, context: ToolContext[Life]) -> int:
        """A tool begins. How often it has for this call, in this life."""
        life, call = context.deps, context.call_id
        before = [start for start in self.starts if start.call == call]
        keys = self.journal.keys
        again = any(start.life == life.number for start in before)
        if not tool.idempotent and any(start.life != life.number for start in before):
            self.broken(f"{call} is run again")
        if f"ended:{call}" in keys and not (self._rivalled and (tool.idempotent or again)):
            self.broken(f"{call} is run though it has ended")
        if f"begun:{call}" not in keys:
            self.broken(f"{call} is run, and it is not in the journal")
        if life.over:
            self.broken(f"{call} is run after the end")
        if self.now >= life.until:
            self.broken(f"{call} is run after the deadline")
        if not self._rivalled and (tool.sequential or not self.scenario.parallel) and self.at_work - {call}:
            self.broken(f"{call} is run beside {self.at_work}")
        turn, place = _place(call)
        if not self.scenario.parallel and any(f"ended:t{turn}c{other}" not in keys for other in range(place)):
            self.broken(f"{call} is run before its turn")
        self.at_work.add(call)
        self.starts.append(Start(call, tool, life.number))
        return 1 + sum(start.life == life.number for start in before)

    def wish(self, call: str) -> Wish:
        turn, place = _place(call)
        return self.scenario.turns[turn][place]

    def before_tool_call(self, call: ToolCall, context: Any) -> Any:
        match self.wish(call.id).said.split():
            case ["nothing"]:
                return None
            case ["ask:", "answered"]:
                return Ask("may it?")
            case ["ask:", _] if self._asks:
                return Ask("may it?")
            case ["allow"] | [_, "yes"]:
                return Allow()
            case ["deny"] | [_, "no"]:
                return Deny("not today")
            case _:
                return Change(_change_arguments(call))

    def decide(self, paused: PausedRun) -> PausedRun:
        """Decide the pending calls of a serialized run."""
        again = PausedRun.from_json(paused.to_json())
        for waiting in again.pending:
            said = self.wish(waiting.id).said
            if waiting.kind == "external" or said == "ask: answered":
                again = again.answer(waiting.id, {"answered": waiting.id})
            elif said == "ask: no":
                again = again.deny(waiting.id, reason="not today")
            elif said == "ask: changed":
                again = again.approve(waiting.id, arguments=_change_arguments(waiting.call))
            else:
                again = again.approve(waiting.id)
        return again

    # Lives

    def run(self) -> World:
        request: str | PausedRun = "Do it."
        for number in range(MOST_LIVES):
            life = self._live(number, request)
            self._judge_life(life)
            if life.result is not None and life.result.paused is not None:
                request = self.decide(life.result.paused)
            elif life.result is not None or _is_final(life.error):
                self._judge_end()
                return self
        self.broken(f"the run never ended: {self.end.error!r}")
        return self

    def _live(self, number: int, request: str | PausedRun) -> Life:
        scenario = self.scenario
        simulation = MortalSimulation(self.answer, seed=scenario.seed + number, fault=self.fault, now=self._began)
        self._simulation = simulation
        limit = scenario.deadline if number < 4 else None
        life = Life(number, inf if limit is None else simulation.now + limit)
        self.lives.append(life)
        loop = self._start(life, request, limit)
        self._speak(loop)
        if scenario.rival is not None and number < 2:
            rival = Life(RIVAL + number, inf)
            simulation.at(simulation.now + scenario.rival, lambda: self._compete(rival, request))
        if number < len(scenario.crashes):
            simulation.most, how = scenario.crashes[number]
            simulation.last = loop.abort if how == "abort" else _crash
        try:
            for event in loop:
                if not loop.state.ended and event.type == "tool_execution_end":
                    self._judge_telling(event.tool_call_id)
                life.events.append(event)
            life.result = loop.result
        except Stopped:
            simulation.cancel(loop.run)
        except Exception as error:
            life.error = error
        life.over = True
        self._began = simulation.now
        self.steps += simulation.happened
        simulation.last = None
        simulation.finish()
        for rival, loop in self._ends:
            rival.result, rival.error = loop.run.result, loop.run.error
            if rival.error is not None and not isinstance(rival.error, errors.AgentError):
                self.broken(f"a foreign error: {rival.error!r}")
        if simulation.open_bodies:
            self.broken(f"{simulation.open_bodies} answers were left open")
        self.interrupted |= self.journal.ids("begun") - self.journal.ids("ended")
        self._log.update("\n".join(simulation.log).encode())
        return life

    def _start(self, life: Life, request: str | PausedRun, limit: float | None) -> SimulatedLoop:
        scenario = self.scenario
        return SimulatedLoop(
            self._simulation, self._caller(), request, streaming=scenario.streaming, deadline=limit, deps=life,
            tools=self._tools, run_id=RUN, journal=self.journal, before_tool_call=self.before_tool_call,
            loop={
                "parallel_tool_execution": scenario.parallel, "stop_on_error": scenario.stop_on_error,
                "max_tool_calls_per_iteration": scenario.cap, "max_iterations": scenario.max_iterations,
                "token_budget": scenario.token_budget,
            },
        )  # fmt: skip

    def _caller(self) -> Client:
        if len(self._agents) == 1:
            return self._agents[0]
        return Router(list(self._agents), on_partial="restart")  # a new process has no experience with its targets

    def _compete(self, rival: Life, request: str | PausedRun) -> None:
        """Start the same run again in another process."""
        loop = self._start(rival, request, None)
        self.rivals.append(rival)
        self._ends.append((rival, loop))

    def _speak(self, loop: SimulatedLoop) -> None:
        for when, how in self.scenario.spoken:
            if when >= self.now:
                say = loop.steer if how == "steer" else loop.follow_up
                self._simulation.at(when, lambda say=say, text=f"{how} at {when}": say(text))  # type: ignore[misc]

    # Invariants

    def _judge_telling(self, call: str) -> None:
        """Check that reported events are in the journal, unless the run is being cancelled."""
        if f"ended:{call}" not in self.journal.keys:
            self.broken(f"the end of {call} is reported before it is in the journal")

    def _judge_life(self, life: Life) -> None:
        self._judge_nesting(life)
        done = life.outcome
        if life.error is not None and (done is None or not isinstance(life.error, errors.AgentError)):
            self.broken(f"a foreign error, or one without a result: {life.error!r}")
        if done is None:
            return
        if done.turns > self.scenario.max_iterations:
            self.broken(f"{done.turns} turns")
        try:
            if done.paused is None:
                check_history(list(done.messages))
        except AssertionError as error:
            self.broken(str(error))

    def _judge_nesting(self, life: Life) -> None:
        """Whatever begins ends, inside of whatever it began in. A life that was crashed may leave things open."""
        open_things: list[str] = []
        tools: set[str] = set()
        ended: set[str] = set()
        for event in life.events:
            what, _, how = event.type.rpartition("_")
            if what == "tool_execution":
                call = event.tool_call_id
                if open_things != ["agent", "turn"] or (call in tools if how == "start" else call not in tools - ended):
                    self.broken(f"{event.type} of {call} in {open_things}")
                (ended if how == "end" else tools).add(call)
            elif how == "start":
                if open_things != ["agent", "turn", "message"][: len(open_things)] or what in open_things:
                    self.broken(f"{event.type} in {open_things}")
                open_things.append(what)
            elif how == "end" and (not open_things or open_things.pop() != what):
                self.broken(f"{event.type} in {open_things}")
        if (open_things or tools != ended) and life.outcome is not None:
            self.broken(f"left open: {open_things}, {tools - ended}")

    def _judge_end(self) -> None:
        done = self.end.outcome
        assert done is not None
        messages = [message for message in done.messages if message.stop_reason not in ("error", "aborted")]
        records = {record.id: record for record in list_calls(self.journal.read(RUN))}
        results = {part.tool_call_id: part for part in _results(messages)}
        for call in (call for message in messages for call in message.tool_calls or ()):
            record, result = records.get(call.id), results.get(call.id)
            if record is not None and result is not None:
                self._judge_call(record, result)
            elif record is None and self.end.error is None:
                self.broken(f"nothing is written down about {call.id}")
        if self.end.error is None:
            self._judge_bill(done.usage)

    def _judge_call(self, record: ToolCallRecord, result: ToolResult) -> None:
        starts = [start for start in self.starts if start.call == record.id]
        tool = starts[0].tool if starts else None
        if (record.outcome == "interrupted") != (result.text == INTERRUPTED):
            self.broken(f"{record.id} is {record.outcome}, and the model reads {result.text!r}")
        if tool is not None and not tool.idempotent and len(starts) > 1 + tool.retries:
            self.broken(f"{record.id} was run {len(starts)} times")
        if record.name == "sub":
            return  # it is not ours, and was not watched
        match record.outcome:
            case "completed":
                answered = self.wish(record.id).said == "ask: answered" or record.name == "outside"
                truth = answered or record.id in self.completed
            case "failed":
                truth = bool(starts)
            case "interrupted":
                is_safe = tool is not None and tool.idempotent
                truth = not is_safe and (record.id in self.interrupted or self._rivalled)
            case "rejected" | "skipped":
                truth = not starts
            case "running":
                truth = False
        if not truth:
            self.broken(f"{record.id} is said to be {record.outcome}, and was run {len(starts)} times")

    def _judge_bill(self, usage: Usage | None) -> None:
        total = 0
        for entry in self.journal.read(RUN):
            answers = [entry.data["response"]] if "response" in entry.data else entry.data.get("spent", ())
            total += sum(answer["usage"]["total_tokens"] for answer in answers)
        if usage is None or usage.total_tokens != total:
            self.broken(f"usage is {usage}, and the journal holds {total} tokens")


def _crash() -> None:
    raise Stopped


def _broke(kind: str, effect: AnyEffect) -> Exception:
    match kind:
        case "connection":
            return errors.ConnectionError("broken")
        case "timeout":
            return errors.TimeoutError("broken")
        case "hook":
            return RuntimeError("broken")
        case "journal, but written":
            assert isinstance(effect, Invoke)
            effect.function(*effect.args)
            return OSError("the connection to the disk was lost")
        case _:
            return OSError("no space left on device")


def _place(call: str) -> tuple[int, int]:
    turn, place = call.removeprefix("t").split("c")
    return int(turn), int(place)


def _change_arguments(call: ToolCall) -> dict[str, Any]:
    return {"task": "another task"} if call.name == "sub" else {"n": 100}


def _is_final(error: BaseException | None) -> bool:
    """Whether starting the run again would come to the same end."""
    if isinstance(error, errors.BudgetExceededError):
        return True
    return isinstance(error, errors.ToolExecutionError) and "before_tool_call" not in str(error)


def _results(messages: Sequence[Message]) -> list[ToolResult]:
    return [part for message in messages for part in message.parts if isinstance(part, ToolResult)]


# Comparing


def summarize_messages(messages: Sequence[Message]) -> list[Any]:
    """A conversation without what depends on who answered."""
    return [
        (
            message.role.value,
            [part.text for part in message.parts if isinstance(part, TextContent)],
            [(call.id, call.name, dict(call.arguments)) for call in message.tool_calls or ()],
            [(result.tool_call_id, result.text, result.is_error) for result in _results([message])],
        )
        for message in messages
        if message.stop_reason not in ("error", "aborted")
    ]


@lru_cache(maxsize=4)
def _run_undisturbed(scenario: Scenario) -> World:
    return World(scenario, calm=True).run()


def differences(world: World) -> list[str]:
    """Differences from the undisturbed run, apart from interrupted calls."""
    scenario = world.scenario
    if len(world.lives) == 1 and not scenario.answers and not scenario.breaks:
        return []  # nothing disturbed it
    if scenario.spoken or scenario.token_budget is not None:
        return []  # steering depends on timing, and cancelled calls on costs
    if scenario.stop_on_error and scenario.asks:
        return []  # an earlier failure prevents the other calls
    calm = _run_undisturbed(scenario.calm)
    ours, theirs = world.end.outcome, calm.end.outcome
    if calm.problems or ours is None or theirs is None:
        return ["undisturbed, too, it goes wrong", *calm.problems]
    cut = {record.id for record in list_calls(world.journal.read(RUN)) if record.outcome == "interrupted"}
    if type(world.end.error) is not type(calm.end.error):
        if cut:
            return []  # a call that was interrupted is none that failed, or brought nothing new
        return [f"it ended with {world.end.error!r} instead of {calm.end.error!r}"]
    mine, other = summarize_messages(ours.messages), summarize_messages(theirs.messages)
    if scenario.stop_on_error and (cut or scenario.rival is not None):
        return []
    if len(mine) != len(other):
        return [f"{len(mine)} messages instead of {len(other)}"]
    return [
        f"{one} instead of {another}"
        for one, another in zip(mine, other, strict=True)
        if one != another and not (one[3] and one[3][0][0] in cut)
    ]


def violations(scenario: Scenario) -> list[str]:
    world = World(scenario).run()
    return world.problems or differences(world)
