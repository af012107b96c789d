"""Running an agent's calls in a simulation: the same flows as in production, in virtual time."""

from __future__ import annotations

import math
from typing import Any

from ..agent import Agent
from ..context import Context
from ..drivers.simulated import Simulation
from ..requests import RequestLike, read_request
from ..types import AgentResponse


def simulate(
    simulation: Simulation, agent: Agent, request: RequestLike, *, streaming: bool = False, **overrides: Any
) -> AgentResponse:
    """One call of an agent in a simulated world. Its events are in `simulation.events`."""
    asked = read_request(request, overrides)
    limit = asked.deadline if asked.deadline is not None else agent.config.deadline
    deadline = math.inf if limit is None else simulation.now + limit
    flow = agent.flow_for(asked, streaming=streaming, context=Context(deadline=deadline))
    response: AgentResponse = simulation.run(flow, deadline)
    return response
