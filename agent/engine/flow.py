"""Flows and effects: flows decide, drivers act.

A flow is a generator that yields effects (I/O requests), receives their results and returns its own. One flow serves
sync calls, asyncio and simulated time:

    reply = yield from Send(wire, limits)

Flows follow three rules. They hold no lock and no context variable across a yield. They never yield in `finally`,
because a flow that is being closed cannot act; `with body:` marks the body as released instead. Only an `Exception`
enters a flow: cancellation and interrupts close it, so neither can be retried by mistake.
"""

from __future__ import annotations

import contextvars
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from typing import Any, Generic, TypeAlias, TypeVar

from .wire import Body, Limits, Reply, WireRequest

R = TypeVar("R")
T = TypeVar("T")


class Effect(Generic[R]):
    """An I/O request that resolves to an R."""

    __slots__ = ()

    def __iter__(self) -> Generator[Any, Any, R]:
        reply: R = yield self
        return reply


# Effects are plain classes: as dataclasses they would take 7 % of the import time of the package.


class Send(Effect[Reply]):
    """Send a request and read the whole reply, through `via` or the transport of the run."""

    __slots__ = __match_args__ = ("request", "limits", "via")

    def __init__(self, request: WireRequest, limits: Limits, via: Any = None) -> None:
        self.request: WireRequest = request
        self.limits: Limits = limits
        self.via: Any = via


class Open(Effect[Body]):
    """Send a request and wait for the headers of the reply."""

    __slots__ = __match_args__ = ("request", "limits", "via")

    def __init__(self, request: WireRequest, limits: Limits, via: Any = None) -> None:
        self.request: WireRequest = request
        self.limits: Limits = limits
        self.via: Any = via


class Read(Effect[bytes]):
    """Read the next bytes of a body, b"" at its end.

    `idle` is the idle timeout in seconds. A read that is not `fresh` continues the wait of the one before: flows pass
    fresh=False while only pings arrive, so that pings do not keep a stalled stream alive.
    """

    __slots__ = __match_args__ = ("body", "idle", "fresh")

    def __init__(self, body: Body, idle: float | None = None, fresh: bool = True) -> None:
        self.body: Body = body
        self.idle: float | None = idle
        self.fresh: bool = fresh


class Sleep(Effect[None]):
    """Wait. Fails at the deadline."""

    __slots__ = __match_args__ = ("seconds",)

    def __init__(self, seconds: float) -> None:
        self.seconds: float = seconds


class Now(Effect[float]):
    """Get the time in seconds on the driver's monotonic clock."""

    __slots__ = ()


class Random(Effect[float]):
    """Get a random number in [0, 1)."""

    __slots__ = ()


class Emit(Effect[None]):
    """Emit events to the consumer of the run: all events of one chunk in one effect."""

    __slots__ = __match_args__ = ("events",)

    def __init__(self, events: Sequence[Any]) -> None:
        self.events: Sequence[Any] = events


class Invoke(Effect[Any]):
    """Call user code, sync or async. On an event loop, `blocking` sync code runs in a thread.

    With `reports`, the function gets a keyword argument `report`, a callable whose arguments reach the parent flow as
    `Emitted` events.
    """

    __slots__ = __match_args__ = ("function", "args", "kwargs", "blocking", "reports", "context")

    def __init__(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
        blocking: bool = False,
        reports: bool = False,
        context: contextvars.Context | None = None,
    ) -> None:
        self.function: Callable[..., Any] = function
        self.args: tuple[Any, ...] = args
        self.kwargs: Mapping[str, Any] = {} if kwargs is None else kwargs
        self.blocking: bool = blocking
        self.reports: bool = reports
        self.context: contextvars.Context | None = context


class Query(Effect[Any]):
    """Query a shared store: `function` blocks, `on_loop` is its async form. Both have a short timeout."""

    __slots__ = __match_args__ = ("function", "on_loop", "args")

    def __init__(
        self, function: Callable[..., Any], on_loop: Callable[..., Awaitable[Any]], args: tuple[Any, ...]
    ) -> None:
        self.function: Callable[..., Any] = function
        self.on_loop: Callable[..., Awaitable[Any]] = on_loop
        self.args: tuple[Any, ...] = args


class Spawn(Effect["Branch"]):
    """Run a flow concurrently as a branch. With `pause`, stop at its first Emit and return the rest."""

    __slots__ = __match_args__ = ("flow", "pause")

    def __init__(self, flow: Generator[Any, Any, Any], pause: bool = False) -> None:
        self.flow: Generator[Any, Any, Any] = flow
        self.pause: bool = pause


class Wait(Effect["BranchEvent | None"]):
    """Wait for the oldest event of these branches; None after `timeout` seconds."""

    __slots__ = __match_args__ = ("branches", "timeout")

    def __init__(self, branches: Sequence[Branch], timeout: float | None = None) -> None:
        self.branches: Sequence[Branch] = branches
        self.timeout: float | None = timeout


class Cancel(Effect[None]):
    """Cancel branches and wait until their resources are closed."""

    __slots__ = __match_args__ = ("branches",)

    def __init__(self, branches: Sequence[Branch]) -> None:
        self.branches: Sequence[Branch] = branches


class Detach(Effect[None]):
    """Run a flow in the background for at most `seconds`. Its events and failures are discarded."""

    __slots__ = __match_args__ = ("flow", "seconds")

    def __init__(self, flow: Generator[Any, Any, Any], seconds: float) -> None:
        self.flow: Generator[Any, Any, Any] = flow
        self.seconds: float = seconds


AnyEffect: TypeAlias = (
    Send | Open | Read | Sleep | Now | Random | Emit | Invoke | Query | Spawn | Wait | Cancel | Detach
)
Flow: TypeAlias = Generator[AnyEffect, Any, T]


class Branch:
    """Handle of a running branch; `run` belongs to the driver."""

    __slots__ = ("done", "run")

    def __init__(self, run: Any = None) -> None:
        self.run: Any = run
        self.done: bool = False


class Emitted:
    """A branch emitted events, or its user code reported some."""

    __slots__ = __match_args__ = ("branch", "events")

    def __init__(self, branch: Branch, events: Sequence[Any]) -> None:
        self.branch: Branch = branch
        self.events: Sequence[Any] = events


class Paused:
    """A branch stopped at its first Emit. The parent may continue it as `rest`."""

    __slots__ = __match_args__ = ("branch", "rest")

    def __init__(self, branch: Branch, rest: Generator[Any, Any, Any]) -> None:
        self.branch: Branch = branch
        self.rest: Generator[Any, Any, Any] = rest


class Finished:
    """A branch returned."""

    __slots__ = __match_args__ = ("branch", "value")

    def __init__(self, branch: Branch, value: Any) -> None:
        self.branch: Branch = branch
        self.value: Any = value


class Failed:
    """A branch raised."""

    __slots__ = __match_args__ = ("branch", "error")

    def __init__(self, branch: Branch, error: BaseException) -> None:
        self.branch: Branch = branch
        self.error: BaseException = error


BranchEvent: TypeAlias = Emitted | Paused | Finished | Failed


def take_event(queue: deque[BranchEvent], branches: Sequence[Branch], children: list[Any]) -> BranchEvent | None:
    """Remove the oldest event of these branches from the queue; remove ended branches from the children."""
    for event in queue:
        if event.branch in branches:
            queue.remove(event)
            if isinstance(event, Finished | Failed):
                event.branch.done = True
                children.remove(event.branch.run)
            return event
    return None


def fatal_error(event: BranchEvent | None) -> BaseException | None:
    """Return the interrupt or exit that a branch raised, which ends the whole run."""
    if isinstance(event, Failed) and not isinstance(event.error, Exception):
        return event.error
    return None


def rest_of(flow: Flow[T], pending: Emit) -> Flow[T]:
    """Resume a flow that was paused at `pending`."""
    try:
        yield pending
        return (yield from flow)
    finally:
        flow.close()


def intercept(flow: Flow[T], on_emit: Callable[[Emit], Flow[None]]) -> Flow[T]:
    """Run `flow`, and handle its Emits with `on_emit`. Other effects, throw and close pass through."""
    reply: Any = None
    error: Exception | None = None
    try:
        while True:
            try:
                effect = flow.send(reply) if error is None else flow.throw(error)
            except StopIteration as stop:
                result: T = stop.value
                return result
            finally:
                error = None
            try:
                if isinstance(effect, Emit):
                    yield from on_emit(effect)
                    reply = None
                else:
                    reply = yield effect
            except Exception as raised:
                reply, error = None, raised
    finally:
        flow.close()
