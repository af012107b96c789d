"""One way to try a behaviour under every driver.

A test describes the network as a function from request to `Answer` and says what the agent should make of it. The
blocking and the asyncio driver meet that network behind a real loopback server, the simulated one in virtual time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self, TypeAlias, TypeVar

from typing_extensions import override

from agent import Agent, Router
from agent.engine.drivers.asyncio import AioRun
from agent.engine.drivers.sync import SyncRun
from agent.engine.flow import Flow, Send
from agent.engine.wire import Limits, Reply, Transport, WireRequest
from agent.errors import AgentError
from agent.loop.results import RunResult
from agent.testing import LoopbackServer, Network, SimulatedLoop, Simulation, simulate
from agent.transports.http import HttpTransport
from agent.types import AgentResponse, StreamEvent

T = TypeVar("T")
AnyHttp: TypeAlias = HttpTransport


@dataclass
class Outcome:
    """Outcome of a call."""

    response: AgentResponse | None = None
    events: list[StreamEvent] = field(default_factory=list)
    error: AgentError | None = None
    seconds: float = 0.0
    requests: list[WireRequest] = field(default_factory=list)

    @property
    def ok(self) -> AgentResponse:
        if self.response is None:
            raise AssertionError(f"the call failed: {self.error!r}") from self.error
        return self.response

    @property
    def failed(self) -> AgentError:
        assert self.error is not None, f"the call succeeded: {self.response!r}"
        return self.error

    @property
    def text(self) -> str:
        return "".join(event.text or "" for event in self.events if event.type == "text_delta")


@dataclass
class Ran:
    """Outcome of a run."""

    result: RunResult | None = None
    events: list[Any] = field(default_factory=list)
    error: AgentError | None = None
    seconds: float = 0.0
    requests: list[WireRequest] = field(default_factory=list)

    @property
    def ok(self) -> RunResult:
        if self.result is None:
            raise AssertionError(f"the run failed: {self.error!r}") from self.error
        return self.result

    @property
    def failed(self) -> AgentError:
        assert self.error is not None, f"the run succeeded: {self.result!r}"
        return self.error


class Driver:
    """Runs calls of an agent against a network."""

    name = ""
    awaits = False
    carrier: str | None = None
    """The name of the transport, if it is not the usual one."""

    def __init__(self) -> None:
        self._servers: list[LoopbackServer] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for server in self._servers:
            server.close()

    def serve(self, network: Network) -> LoopbackServer:
        server = LoopbackServer(network)
        self._servers.append(server)
        return server

    def transport(self, **settings: Any) -> AnyHttp:
        """A transport of its own, of the kind that this driver uses."""
        return make_transport(self.carrier, **settings)

    def complete(self, network: Network, request: Any = "hi", **options: Any) -> Outcome:
        return self._run(network, request, options, streaming=False)

    def stream(self, network: Network, request: Any = "hi", **options: Any) -> Outcome:
        return self._run(network, request, options, streaming=True)

    def run(self, network: Network, request: Any = "hi", *, asked: dict[str, Any] | None = None, **options: Any) -> Ran:
        """Stream the events of a run. `asked` are options of the run, `options` those of the agent."""
        server = self.serve(network)
        agent = make_agent({"transport": self.carrier, **options}, base_url=server.url)
        ran = Ran(requests=server.requests)
        started = time.monotonic()
        try:
            self._loop(agent, request, asked or {}, ran)
        except AgentError as error:
            ran.error = error
        ran.seconds = time.monotonic() - started
        return ran

    def send(self, transport: Transport, request: WireRequest, limits: Limits | None = None) -> Reply:
        """One exchange, below any provider."""

        def flow() -> Flow[Reply]:
            return (yield from Send(request, limits or Limits()))

        async def main() -> None:
            run = AioRun(transport, flow())
            await run.advance()
            results.append(run.result)

        results: list[Reply] = []
        if self.awaits:
            run_and_leave_nothing(main())
        else:
            run = SyncRun(transport, flow())
            run.advance()
            results.append(run.result)
        return results[0]

    def call(self, agent: Agent, *, streaming: bool = False) -> AgentResponse:
        """One call of an agent, whose errors are raised."""

        async def main() -> AgentResponse:
            return await (agent.astream("hi").collect() if streaming else agent.acomplete("hi"))

        if self.awaits:
            return run_and_leave_nothing(main())
        return agent.stream("hi").collect() if streaming else agent.complete("hi")

    def _loop(self, agent: Agent | Router, request: Any, asked: dict[str, Any], ran: Ran) -> None:
        raise NotImplementedError

    def _run(self, network: Network, request: Any, options: dict[str, Any], *, streaming: bool) -> Outcome:
        server = self.serve(network)
        agent = make_agent({"transport": self.carrier, **options}, base_url=server.url)
        outcome = Outcome(requests=server.requests)
        started = time.monotonic()
        try:
            self._call(agent, request, outcome, streaming=streaming)
        except AgentError as error:
            outcome.error = error
        outcome.seconds = time.monotonic() - started
        return outcome

    def _call(self, agent: Agent | Router, request: Any, outcome: Outcome, *, streaming: bool) -> None:
        raise NotImplementedError


def make_transport(name: str | None, **settings: Any) -> HttpTransport:
    return HttpTransport(library="httpx2" if name == "httpx" else None, **settings)


def make_agent(options: dict[str, Any], base_url: str | None = None) -> Agent | Router:
    if "make" in options:
        made: Agent | Router = options["make"](base_url or options["base_url"].removesuffix("/v1"))
        return made
    settings = {"api_key": "sk-test", **options}
    if "retry" not in settings:
        settings.setdefault("max_retries", 0)
    if base_url is not None:
        settings["base_url"] = f"{base_url}/v1"
    return Agent(settings.pop("agent", "openai-chat:test-model"), **settings)


class SyncDriver(Driver):
    name = "sync"

    @override
    def _call(self, agent: Agent | Router, request: Any, outcome: Outcome, *, streaming: bool) -> None:
        if not streaming:
            outcome.response = agent.complete(request)
            return
        stream = agent.stream(request)
        for event in stream:
            outcome.events.append(event)
        outcome.response = stream.response

    @override
    def _loop(self, agent: Agent | Router, request: Any, asked: dict[str, Any], ran: Ran) -> None:
        watching = asked.pop("watching", None)
        stream = agent.run_stream(request, **asked)
        for event in stream:
            ran.events.append(event)
            if watching is not None:
                watching(event, stream)
        ran.result = stream.result


class AioDriver(Driver):
    name = "aio"
    awaits = True

    @override
    def _loop(self, agent: Agent | Router, request: Any, asked: dict[str, Any], ran: Ran) -> None:
        run_and_leave_nothing(self._aloop(agent, request, asked, ran))

    async def _aloop(self, agent: Agent | Router, request: Any, asked: dict[str, Any], ran: Ran) -> None:
        watching = asked.pop("watching", None)
        stream = agent.arun_stream(request, **asked)
        async for event in stream:
            ran.events.append(event)
            if watching is not None:
                watching(event, stream)
        ran.result = stream.result

    @override
    def _call(self, agent: Agent | Router, request: Any, outcome: Outcome, *, streaming: bool) -> None:
        run_and_leave_nothing(self._acall(agent, request, outcome, streaming=streaming))

    async def _acall(self, agent: Agent | Router, request: Any, outcome: Outcome, *, streaming: bool) -> None:
        if not streaming:
            outcome.response = await agent.acomplete(request)
            return
        stream = agent.astream(request)
        async for event in stream:
            outcome.events.append(event)
        outcome.response = stream.response


class HttpxDriver(SyncDriver):
    """Sync calls through an httpx2 client."""

    name = "httpx"
    carrier = "httpx"


class AsyncHttpxDriver(AioDriver):
    """Async calls through an httpx2 client."""

    name = "aio-httpx"
    carrier = "httpx"


class SimulatedDriver(Driver):
    name = "simulated"

    @override
    def run(self, network: Network, request: Any = "hi", *, asked: dict[str, Any] | None = None, **options: Any) -> Ran:
        simulation = Simulation(network)
        ran = Ran(requests=simulation.requests)
        options_of_run = dict(asked or {})
        watching = options_of_run.pop("watching", None)
        try:
            agent = make_agent({"base_url": "http://127.0.0.1/v1", **options})
            run = SimulatedLoop(simulation, agent, request, **options_of_run)
            for event in run:
                ran.events.append(event)
                if watching is not None:
                    watching(event, run)
            ran.result = run.result
        except AgentError as error:
            ran.error = error
        ran.seconds = simulation.now
        assert simulation.open_bodies == 0, "a body was left open"
        return ran

    @override
    def _run(self, network: Network, request: Any, options: dict[str, Any], *, streaming: bool) -> Outcome:
        simulation = Simulation(network)
        outcome = Outcome(requests=simulation.requests)
        try:
            agent = make_agent({"base_url": "http://127.0.0.1/v1", **options})
            outcome.response = simulate(simulation, agent, request, streaming=streaming)
        except AgentError as error:
            outcome.error = error
        outcome.events = simulation.events
        outcome.seconds = simulation.now
        assert simulation.open_bodies == 0, "a body was left open"
        assert simulation.open_bodies_while_sleeping == 0, "a body was held open while waiting to retry"
        assert simulation.open_bodies_while_emitting <= 1, "two streams were open at once"
        return outcome


def run_and_leave_nothing(work: Coroutine[Any, Any, T]) -> T:
    """asyncio.run, and no task may be left when the work is done."""

    async def main() -> T:
        before = asyncio.all_tasks()
        try:
            return await work
        finally:
            for _ in range(10):  # httpx nests async generators, and each is finalized in its own iteration
                await asyncio.sleep(0)
            left = asyncio.all_tasks() - before
            assert not left, f"tasks were left behind: {left}"

    return asyncio.run(main())
