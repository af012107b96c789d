"""Answers that behave in a known way, and a stage on which a flow meets them under any driver."""

from __future__ import annotations

import asyncio
import gc
import json
import math
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Protocol, Self, TypeAlias

from typing_extensions import override

from agent import Agent
from agent.engine.drivers.asyncio import AioRun
from agent.engine.drivers.simulated import Simulation
from agent.engine.drivers.sync import SyncRun
from agent.engine.flow import Emit, Flow, Open, Read, Sleep
from agent.engine.wire import Limits, WireRequest
from agent.testing import Answer, LoopbackServer, Piece, RawAnswer
from agent.transports.http import HttpTransport
from agent.types import StreamEvent
from tests.support.drivers import AnyHttp, make_transport, run_and_leave_nothing

FOREVER = 30.0
SSE = {"content-type": "text/event-stream"}
JSON = {"content-type": "application/json"}
NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""Reading the system's authorities takes long enough to disturb the timing of a test."""
Answers: TypeAlias = Mapping[str, Callable[[], Answer]]


def token(text: str, reason: str | None = None) -> bytes:
    """One event of a stream."""
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": reason}
    return b"data: " + json.dumps({"id": "x", "model": "m", "choices": [choice]}).encode() + b"\n\n"


END = token("", "stop") + b"data: [DONE]\n\n"
PING = b": ping\n\n"


def sse(*pieces: Piece | bytes | Exception, after: float = 0.0) -> Answer:
    return Answer(pieces, after=after, headers=SSE)


def tokens(count: int, each: float = 0.0) -> Answer:
    return sse(*(Piece(token(f"t{number} "), each) for number in range(count)), END)


def endless() -> Answer:
    return sse(*(Piece(token(f"t{number} "), 0.01) for number in range(3000)))


def stall() -> Answer:
    return sse(token("a"), Piece(b"", FOREVER))


def pings() -> Answer:
    return sse(token("a"), *(Piece(PING, 0.05) for _ in range(600)))


def never() -> Answer:
    return Answer(after=FOREVER)


def cut() -> Answer:
    return sse(token("a"), token("b"), Piece(ConnectionResetError("cut"), 0.02))


def whole(text: str = "hello", after: float = 0.0) -> Answer:
    return Answer([completion(text)], after=after, headers=JSON)


def completion(text: str) -> bytes:
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    return json.dumps({"id": "x", "model": "m", "choices": [choice]}).encode()


def drip_body() -> Answer:
    body = completion("hello")
    return Answer([Piece(bytes([byte]), 0.02) for byte in body], headers={**JSON, "content-length": str(len(body))})


def drip_head() -> Answer:
    return RawAnswer([Piece(bytes([byte]), 0.02) for byte in b"HTTP/1.1 200 OK\r\nx-a: " + b"y" * 2000])


def error_reply(status: int = 500) -> Answer:
    return Answer([b'{"error": {"message": "no"}}'], status=status, headers=JSON)


def stream_or_whole(request: WireRequest) -> Answer:
    """A valid stream or response."""
    return tokens(3) if b'"stream":true' in request.body.replace(b" ", b"") else whole()


class HasUrl(Protocol):
    url: str


def agent_at(server: LoopbackServer | HasUrl, mode: str = "any", **options: Any) -> Agent:
    settings: dict[str, Any] = {"api_key": "sk-test", "base_url": f"{server.url}/{mode}/v1", **options}
    if "retry" not in settings:
        settings.setdefault("max_retries", 0)
    return Agent("openai-chat:test-model", **settings)


def hung_up(server: LoopbackServer, mode: str = "any", within: float = 2.0) -> bool:
    return server.wait_until(lambda: any(f"/{mode}" in path for path, _ in server.disconnects), within)


@contextmanager
def without_gc() -> Iterator[None]:
    """Reference counts must do: a collector that may come at any time proves nothing."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def branch_threads(within: float = 1.0) -> list[threading.Thread]:
    """Threads of branches that are left after a moment."""
    end = time.monotonic() + within
    while True:
        left = [thread for thread in threading.enumerate() if thread.name == "agent-branch"]
        if not left or time.monotonic() >= end:
            return left
        time.sleep(0.005)


def busy_connections(transport: HttpTransport) -> list[Any]:
    """Connections of blocking calls that are neither idle nor closed, when no call is under way."""
    idle = set(transport._direct.idle)
    return [one for one in transport._direct.open if one not in idle and not one.closed]


async def pools_are_idle(transport: AnyHttp) -> bool:
    """Whether no connection of this loop carries anything."""
    loop_pools = await transport._loop_pools()
    idle = set(loop_pools.direct.idle)
    pools = [carrier.client._transport._pool for carrier in loop_pools.clients.values()]
    return all(
        connection in idle or connection.transport.is_closing() for connection in loop_pools.direct.open
    ) and all(connection.is_idle() or connection.is_closed() for pool in pools for connection in pool.connections)


@dataclass
class Played:
    """Outcome of a flow."""

    value: Any = None
    error: BaseException | None = None
    events: list[StreamEvent] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def texts(self) -> list[str]:
        return [event.text or "" for event in self.events]


class Stage:
    """Performs flows under one driver, against answers chosen by the last part of a request's path."""

    name = ""
    real = True
    carrier: str | None = None

    def __init__(self) -> None:
        self.answers: Answers = {}
        self.asked: set[str] = set()
        self.transport: AnyHttp = make_transport(self.carrier, proxy=False, ssl_context=NO_TLS)
        self.server = LoopbackServer(self._answer)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.transport.close()
        self.server.close()

    def _answer(self, request: WireRequest) -> Answer:
        mode = request.url.rsplit("/", 1)[-1]
        self.asked.add(mode)
        return self.answers[mode]()

    def ask(self, mode: str) -> WireRequest:
        return WireRequest(f"{self.server.url}/{mode}", (), b"{}")

    def play(self, flow: Flow[Any], deadline: float = math.inf, **answers: Callable[[], Answer]) -> Played:
        """Perform the flow to its end; `deadline` is in seconds from now."""
        self.answers = answers
        played = Played()
        started = time.monotonic()
        try:
            self._perform(flow, deadline, played)
        except BaseException as error:
            played.error = error
        played.seconds = time.monotonic() - started
        return played

    def _perform(self, flow: Flow[Any], deadline: float, played: Played) -> None:
        raise NotImplementedError

    def leftovers(self, mode: str) -> bool:
        """Whether the client left this answer before its end."""
        return hung_up(self.server, mode)

    def is_everything_closed(self) -> bool:
        self.transport.close()
        return self.server.wait_until(lambda: self.server.open_connections == 0)


class SyncStage(Stage):
    name = "sync"

    @override
    def _perform(self, flow: Flow[Any], deadline: float, played: Played) -> None:
        run = SyncRun(self.transport, flow, time.monotonic() + deadline)
        while (events := run.advance()) is not None:
            played.events.extend(events)
        played.value = run.result


class AioStage(Stage):
    name = "aio"

    @override
    def _perform(self, flow: Flow[Any], deadline: float, played: Played) -> None:
        async def main() -> None:
            run = AioRun(self.transport, flow, asyncio.get_running_loop().time() + deadline)
            while (events := await run.advance()) is not None:
                played.events.extend(events)
            played.value = run.result

        run_and_leave_nothing(main())


class HttpxStage(SyncStage):
    """Sync calls through an httpx2 client."""

    name = "httpx"
    carrier = "httpx"


class AsyncHttpxStage(AioStage):
    """Async calls through an httpx2 client."""

    name = "aio-httpx"
    carrier = "httpx"


class SimulatedStage(Stage):
    name = "simulated"
    real = False

    def __init__(self) -> None:
        self.answers = {}
        self.asked = set()
        self.simulation = Simulation(self._answer)

    @override
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self.simulation.open_bodies == 0

    @override
    def ask(self, mode: str) -> WireRequest:
        return WireRequest(f"http://simulated/{mode}", (), b"{}")

    @override
    def play(self, flow: Flow[Any], deadline: float = math.inf, **answers: Callable[[], Answer]) -> Played:
        started = self.simulation.now
        played = super().play(flow, deadline, **answers)
        played.seconds = self.simulation.now - started
        return played

    @override
    def _perform(self, flow: Flow[Any], deadline: float, played: Played) -> None:
        try:
            played.value = self.simulation.run(flow, self.simulation.now + deadline)
        finally:
            played.events = self.simulation.events

    @override
    def leftovers(self, mode: str) -> bool:
        return self.simulation.open_bodies == 0

    @override
    def is_everything_closed(self) -> bool:
        return self.simulation.open_bodies == 0


# Small flows, in terms of which many tests are written.


def listen(stage: Stage, mode: str, idle: float | None = None) -> Flow[str]:
    """Emit each chunk of an answer as one event; the result is all of it."""
    heard: list[str] = []
    with (yield from Open(stage.ask(mode), Limits())) as body:
        while chunk := (yield from Read(body, idle)):
            heard.append(chunk.decode())
            yield from Emit([StreamEvent.text_delta(heard[-1])])
    return "".join(heard)


def once_asked(stage: Stage, mode: str, flow: Flow[Any]) -> Flow[Any]:
    """Start a flow after a request for another mode has arrived."""
    while mode not in stage.asked:
        yield from Sleep(0.002)
    return (yield from flow)
