"""Tools for tests: scripted agents, an HTTP server on loopback, fault injection and simulated time.

```python
from agent import errors
from agent.testing import scripted_agent

agent = scripted_agent(errors.RateLimitError("slow down", retry_after=0.0), "Hello!")
assert agent.complete("Hi").text == "Hello!"
```
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

from typing_extensions import Unpack

from ..agent import Agent
from ..engine.drivers.simulated import SimulatedRun, SimulatedTool, Simulation, Stopped
from ..engine.wire import Answer, Network, Piece
from ..providers.scripted import Line, Script
from ..transports.http import set_default_library
from ..transports.scripted import ScriptedTransport
from .conformance import WIRE_FORMAT_CASES, check_wire_format
from .faults import FAULTS, Chaos, Fault, FaultContext, FaultyTransport, InjectedFault
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
