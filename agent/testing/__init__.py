"""Tools for tests: scripted agents, an HTTP server on loopback, fault injection and simulated time.

```python
from agent import errors
from agent.testing import scripted_agent

agent = scripted_agent(errors.RateLimitError("slow down", retry_after=0.0), "Hello!")
assert agent.complete("Hi").text == "Hello!"
```
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from typing_extensions import Unpack, override

from .._missing_names import reject_names
from ..agent import Agent
from ..calls.requests import RequestLike
from ..client import Client
from ..engine.context import Context
from ..engine.drivers.simulated import SimulatedRun, SimulatedTool, Simulation, Stopped
from ..engine.flow import Emit, Flow, Sleep
from ..engine.wire import Answer, Network, Piece
from ..errors import Aborted
from ..loop.events import AgentEvent, MessageLike, coerce_message
from ..loop.results import PausedRun, RunResult
from ..loop.run_state import RunState
from ..providers.scripted import Line, Script
from ..tools.base import FlowTool, ToolContext
from ..transports.http import set_default_library
from ..transports.scripted import ScriptedTransport
from ..types import AgentResponse
from .conformance import WIRE_FORMAT_CASES, check_wire_format
from .faults import FAULTS, Chaos, Fault, FaultContext, FaultyTransport, InjectedFault
from .rules import Violation, find_violations
from .server import LoopbackServer, RawAnswer, VendorScript
from .stores import STORE_CASES, check_store

if TYPE_CHECKING:
    from ..types.options import AgentOptions, AllRunOptions, PreflightOptions

__all__ = [
    "FAULTS",
    "STORE_CASES",
    "WIRE_FORMAT_CASES",
    "Answer",
    "Chaos",
    "Fault",
    "FaultContext",
    "FaultyTransport",
    "InjectedFault",
    "LoopbackServer",
    "Network",
    "Piece",
    "RawAnswer",
    "Script",
    "ScriptedTransport",
    "SimulatedLoop",
    "SimulatedRun",
    "SimulatedTool",
    "Simulation",
    "Stopped",
    "TimedTool",
    "VendorScript",
    "Violation",
    "check_store",
    "check_wire_format",
    "find_violations",
    "scripted_agent",
    "simulate",
    "start",
    "use_httpx",
]

if not TYPE_CHECKING:
    __getattr__ = reject_names(__name__, __all__)


def scripted_agent(*lines: Line, model: str = "script", delay: float = 0.0, **options: Unpack[AgentOptions]) -> Agent:
    """Return an agent that answers from a script of text, responses, parts, errors or functions.

    Args:
        lines: See `Script`. Without lines, the agent echoes.
        delay: Seconds between the pieces of a stream.
        options: Options of `Agent`.
    """
    return Agent(f"scripted:{model}", transport=ScriptedTransport(Script(*lines, delay=delay)), **options)


@contextmanager
def use_httpx(library: Literal["httpx2", "httpx"] = "httpx2") -> Iterator[None]:
    """Send HTTP requests through clients of httpx2 or httpx, so that mocks and recorders see them.

    ```python
    from agent.testing import use_httpx

    with use_httpx():
        ...  # respx, pytest-httpx2 and VCR see the requests
    ```

    Agents with an `http_client` or an SDK's `client` are not affected. `AGENT_HTTP=httpx` does the same for a process.
    """
    previous = set_default_library(library)
    try:
        yield
    finally:
        set_default_library(previous)


# Simulations: calls, runs and tools in virtual time. They use the same flows as real calls.


@dataclass
class TimedTool(FlowTool):
    """Tool that takes time, real or virtual, and reports progress."""

    result: Any = "done"
    """Result, exception to raise, or function of the arguments."""
    after: float = 0.0
    """Seconds until the result."""
    reports: Sequence[tuple[float, Any]] = ()
    """Progress reports, each with the seconds since the previous one."""
    calls: int = 0

    @property
    @override
    def can_run(self) -> bool:
        return True

    @override
    def steps(self, arguments: Any, context: ToolContext[Any]) -> Flow[Any]:  # Any: see `Tool.run`
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
    """Run in a simulation, with the interface of `RunStream`: events, `steer`, `follow_up` and `abort`."""

    def __init__(
        self,
        simulation: Simulation,
        agent: Client,
        request: RequestLike | PausedRun,
        *,
        streaming: bool = True,
        **options: Unpack[AllRunOptions],
    ) -> None:
        context = Context()
        self._simulation = simulation
        flow, run = agent.run_flow(request, streaming=streaming, context=context, **options)
        self.state: RunState = run.state
        context.deadline = math.inf if run.deadline is None else simulation.now + run.deadline
        self.run: SimulatedRun = simulation.start(flow, context.deadline)
        self._aborted = False

    def __iter__(self) -> Iterator[AgentEvent]:
        position = 0
        while True:
            while position < len(self.run.events):
                position += 1
                yield self.run.events[position - 1]
            if self.run.finished:
                return
            if self._aborted and not self.state.ended:
                yield from self._abort_run()
                return
            if not self._simulation.step():
                raise AssertionError("the run waits for an event that cannot happen any more")

    def _abort_run(self) -> list[AgentEvent]:
        state = self.state
        self._simulation.cancel(self.run)
        events: list[AgentEvent] = state.close("aborted", None)
        self.run.error = error = Aborted("the run was aborted")
        error.result = state.result(now=self._simulation.now, stop_reason="error")
        return events

    @property
    def result(self) -> RunResult:
        if self.run.error is not None:
            raise self.run.error
        result: RunResult = self.run.result
        return result

    def steer(self, message: MessageLike) -> None:
        self.state.steering.put(coerce_message(message))

    def follow_up(self, message: MessageLike) -> None:
        self.state.follow_ups.put(coerce_message(message))

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
    """Simulate one call of an agent or a router. Its events are in `simulation.events`."""
    flow, deadline = _create_flow(simulation, agent, request, streaming, overrides)
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
    """Start a call in a simulation with several calls; `simulation.finish()` completes all of them."""
    flow, deadline = _create_flow(simulation, agent, request, streaming, overrides)
    return simulation.start(flow, deadline)


def _create_flow(
    simulation: Simulation, agent: Client, request: RequestLike, streaming: bool, overrides: PreflightOptions
) -> tuple[Flow[AgentResponse], float]:
    limit = agent.deadline_of(request, **overrides)
    deadline = math.inf if limit is None else simulation.now + limit
    return agent.call_flow(request, streaming=streaming, context=Context(deadline=deadline), **overrides), deadline
