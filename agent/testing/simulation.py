"""Running an agent's calls in a simulation: the same flows as in production, in virtual time."""

from __future__ import annotations

import math
from typing import Any

from ..caller import Caller
from ..context import Context
from ..drivers.simulated import SimulatedRun, Simulation
from ..flow import Flow
from ..requests import RequestLike
from ..types import AgentResponse


def simulate(
    simulation: Simulation, agent: Caller, request: RequestLike, *, streaming: bool = False, **overrides: Any
) -> AgentResponse:
    """One call of an agent or a router in a simulated world. Its events are in `simulation.events`."""
    flow, deadline = _begun(simulation, agent, request, streaming, overrides)
    response: AgentResponse = simulation.run(flow, deadline)
    return response


def start(
    simulation: Simulation, agent: Caller, request: RequestLike, *, streaming: bool = False, **overrides: Any
) -> SimulatedRun:
    """Begin a call beside whatever else goes on in the world; `simulation.finish()` lets all of it happen."""
    flow, deadline = _begun(simulation, agent, request, streaming, overrides)
    return simulation.start(flow, deadline)


def _begun(
    simulation: Simulation, agent: Caller, request: RequestLike, streaming: bool, overrides: dict[str, Any]
) -> tuple[Flow[AgentResponse], float]:
    limit = agent.deadline_of(request, **overrides)
    deadline = math.inf if limit is None else simulation.now + limit
    return agent.flow_for(request, streaming=streaming, context=Context(deadline=deadline), **overrides), deadline
