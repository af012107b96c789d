"""For your tests: agents that answer from a script, a real server on loopback, and simulated time.

```python
from agent import errors
from agent.testing import scripted_agent

agent = scripted_agent(errors.RateLimitError("slow down", retry_after=0.0), "Hello!")
assert agent.complete("Hi").text == "Hello!"
```
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from typing_extensions import Unpack

from ..agent import Agent
from ..engine.drivers.simulated import SimulatedRun, SimulatedTool, Simulation, Stopped
from ..engine.wire import Answer, Network, Piece
from ..providers.scripted import Line, Script
from ..transports.scripted import ScriptedTransport
from .chaos import Chaos, FaultyTransport, Injected
from .conformance import WIRE_FORMAT_CASES, check_wire_format
from .faults import FAULTS, Exchange, Fault
from .httpx_mode import use_httpx
from .rules import Violation, find_violations
from .server import LoopbackServer, RawAnswer, VendorScript
from .simulation import SimulatedLoop, TimedTool, simulate, start
from .stores import STORE_CASES, check_store

if TYPE_CHECKING:
    from ..types.options import AgentOptions

__all__ = [
    "FAULTS",
    "STORE_CASES",
    "WIRE_FORMAT_CASES",
    "Answer",
    "Chaos",
    "Exchange",
    "Fault",
    "FaultyTransport",
    "Injected",
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


def scripted_agent(*lines: Line, model: str = "script", delay: float = 0.0, **options: Unpack[AgentOptions]) -> Agent:
    """An agent that answers these lines, one after the other: text, responses, parts, errors, or functions.

    Args:
        lines: See `Script`. Without any, the agent echoes.
        delay: Seconds between the pieces of a stream.
        options: Anything that `Agent` takes.
    """
    return Agent(f"scripted:{model}", transport=ScriptedTransport(Script(*lines, delay=delay)), **options)
