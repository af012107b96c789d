"""Tool loops in a simulated world: the same flow as in production, in virtual time, and tools that take such time."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from typing_extensions import Unpack, override

from ..calls.requests import RequestLike
from ..client import Client
from ..engine.context import Context
from ..engine.drivers.simulated import SimulatedRun, Simulation
from ..engine.flow import Emit, Flow, Sleep
from ..errors import Aborted
from ..loop.events import AgentEvent, MessageLike, read_message
from ..loop.results import PausedRun, RunResult
from ..loop.run_state import RunState
from ..tools.base import FlowTool, ToolContext
from ..types import AgentResponse

if TYPE_CHECKING:
    from ..types.options import PreflightOptions


@dataclass
class TimedTool(FlowTool):
    """A tool that takes time, in whichever world it runs: reports at given times, then a result or a failure."""

    result: Any = "done"
    """What it returns; an exception is raised."""
    after: float = 0.0
    reports: Sequence[tuple[float, Any]] = ()
    """Seconds since the last report, and what is reported."""
    calls: int = 0

    @property
    @override
    def can_run(self) -> bool:
        return True

    @override
    def steps(self, arguments: Any, context: ToolContext[Any]) -> Flow[Any]:
        self.calls += 1
        waited = 0.0
        for after, report in self.reports:
            yield from Sleep(after)
            waited += after
            yield from Emit([report])
        yield from Sleep(max(0.0, self.after - waited))
        if isinstance(self.result, BaseException):
            raise self.result
        return self.result(arguments) if callable(self.result) else self.result


class SimulatedLoop:
    """A run in a simulation, with what `RunStream` has: events to iterate over, `steer`, `follow_up`, `abort`."""

    def __init__(
        self,
        simulation: Simulation,
        agent: Client,
        request: RequestLike | PausedRun,
        *,
        streaming: bool = True,
        **options: Any,  # Any: options as for `run`, and their dependencies
    ) -> None:
        context = Context()
        self._simulation = simulation
        flow, begun = agent.run_flow(request, streaming=streaming, context=context, **options)
        limit = begun.deadline
        self.record: RunState = begun.record
        context.deadline = math.inf if limit is None else simulation.now + limit
        self.run: SimulatedRun = simulation.start(flow, context.deadline)
        self._aborted = False

    def __iter__(self) -> Iterator[AgentEvent]:
        seen = 0
        while True:
            while seen < len(self.run.events):
                seen += 1
                yield self.run.events[seen - 1]
            if self.run.over:
                return
            if self._aborted and not self.record.over:
                yield from self._cut_short()
                return
            if not self._simulation.step():
                raise AssertionError("nothing can happen any more: the run waits for something that will not come")

    def _cut_short(self) -> list[AgentEvent]:
        record = self.record
        self._simulation.cancel(self.run)
        events: list[AgentEvent] = record.closing("aborted", None)
        aborted = Aborted("the run was aborted")
        aborted.result = record.result(now=self._simulation.now, stop_reason="error")
        self.run.error = aborted
        return events

    @property
    def result(self) -> RunResult:
        if self.run.error is not None:
            raise self.run.error
        result: RunResult = self.run.result
        return result

    def steer(self, message: MessageLike) -> None:
        self.record.steering.put(read_message(message))

    def follow_up(self, message: MessageLike) -> None:
        self.record.follow_ups.put(read_message(message))

    def abort(self) -> None:
        self._aborted = True


def simulate(
    simulation: Simulation,
    agent: Client,
    request: RequestLike,
    *,
    streaming: bool = False,
    **overrides: Unpack[PreflightOptions],
) -> AgentResponse:
    """One call of an agent or a router in a simulated world. Its events are in `simulation.events`."""
    flow, deadline = _begun(simulation, agent, request, streaming, overrides)
    response: AgentResponse = simulation.run(flow, deadline)
    return response


def start(
    simulation: Simulation,
    agent: Client,
    request: RequestLike,
    *,
    streaming: bool = False,
    **overrides: Unpack[PreflightOptions],
) -> SimulatedRun:
    """Begin a call beside whatever else goes on in the world; `simulation.finish()` lets all of it happen."""
    flow, deadline = _begun(simulation, agent, request, streaming, overrides)
    return simulation.start(flow, deadline)


def _begun(
    simulation: Simulation, agent: Client, request: RequestLike, streaming: bool, overrides: PreflightOptions
) -> tuple[Flow[AgentResponse], float]:
    limit = agent.deadline_of(request, **overrides)
    deadline = math.inf if limit is None else simulation.now + limit
    return agent.call_flow(request, streaming=streaming, context=Context(deadline=deadline), **overrides), deadline
