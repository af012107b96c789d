"""Flows decide; drivers act. This module holds what a flow may ask for, and nothing that performs it.

A flow is a generator. It yields effects, is sent their replies, and returns its result, so one flow serves blocking
calls, asyncio and simulated time alike:

    reply = yield from Send(wire, limits)

Each effect names the type of its reply; the only untyped value is the one inside `Effect.__iter__`.

Three rules keep flows sound. They hold no lock and no context variable across a yield. They never yield in `finally`,
since a flow being closed cannot act; `with body:` leaves a note instead. And only an `Exception` ever enters a flow:
cancellation and interrupts close it, so nothing can be retried by mistake.
"""

from __future__ import annotations

import contextvars
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, Generic, TypeAlias, TypeVar

from .wire import Body, Limits, Reply, WireRequest

R = TypeVar("R")
T = TypeVar("T")


class Effect(Generic[R]):
    """A wish whose fulfilment is an R."""

    __slots__ = ()

    def __iter__(self) -> Generator[Any, Any, R]:
        reply: R = yield self
        return reply


# The classes below are written out: made by `dataclass`, they would take a fifteenth of the package's import.


class Send(Effect[Reply]):
    """One buffered exchange, through `via` or else through the run's own transport."""

    __slots__ = __match_args__ = ("request", "limits", "via")

    def __init__(self, request: WireRequest, limits: Limits, via: Any = None) -> None:
        self.request = request
        self.limits = limits
        self.via = via


class Open(Effect[Body]):
    """Send, and wait for the reply's headers."""

    __slots__ = __match_args__ = ("request", "limits", "via")

    def __init__(self, request: WireRequest, limits: Limits, via: Any = None) -> None:
        self.request = request
        self.limits = limits
        self.via = via


class Read(Effect[bytes]):
    """The next bytes of a body, b"" at its end.

    `idle` limits the waiting since the last read that was `fresh`: the flow says so when it has seen something
    meaningful, so that pings do not keep a stalled stream alive.
    """

    __slots__ = __match_args__ = ("body", "idle", "fresh")

    def __init__(self, body: Body, idle: float | None = None, fresh: bool = True) -> None:
        self.body = body
        self.idle = idle
        self.fresh = fresh


class Sleep(Effect[None]):
    """Let time pass. Fails at the deadline."""

    __slots__ = __match_args__ = ("seconds",)

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds


class Now(Effect[float]):
    """Seconds on the driver's monotonic clock."""

    __slots__ = ()


class Random(Effect[float]):
    """A number from 0 up to 1."""

    __slots__ = ()


class Emit(Effect[None]):
    """Events for whoever consumes the run: one effect for all that one chunk brought."""

    __slots__ = __match_args__ = ("events",)

    def __init__(self, events: Sequence[Any]) -> None:
        self.events = events
        """StreamEvents of a model call, or a tool loop's own events."""


class Invoke(Effect[Any]):
    """Run user code, plain or async. `blocking` code is kept off an event loop, in a thread of its own.

    With `reports`, the function gets a keyword argument `report`; what it passes there reaches the flow that spawned
    this one as `Emitted` event.
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
        self.function = function
        self.args = args
        self.kwargs: Mapping[str, Any] = {} if kwargs is None else kwargs
        self.blocking = blocking
        self.reports = reports
        self.context = context


class Spawn(Effect["Branch"]):
    """Run a flow beside this one. With `pause` it stops at its first Emit and hands over the rest of itself."""

    __slots__ = __match_args__ = ("flow", "pause")

    def __init__(self, flow: Generator[Any, Any, Any], pause: bool = False) -> None:
        self.flow = flow
        self.pause = pause


class Wait(Effect["BranchEvent | None"]):
    """The oldest event of these branches; None when `timeout` seconds have passed."""

    __slots__ = __match_args__ = ("branches", "timeout")

    def __init__(self, branches: Sequence[Branch], timeout: float | None = None) -> None:
        self.branches = branches
        self.timeout = timeout


class Cancel(Effect[None]):
    """Stop these branches, and wait until what they held is closed."""

    __slots__ = __match_args__ = ("branches",)

    def __init__(self, branches: Sequence[Branch]) -> None:
        self.branches = branches


class Detach(Effect[None]):
    """Run a flow that nobody waits for, at most for so many seconds. Its events and its failure are nobody's."""

    __slots__ = __match_args__ = ("flow", "seconds")

    def __init__(self, flow: Generator[Any, Any, Any], seconds: float) -> None:
        self.flow = flow
        self.seconds = seconds


AnyEffect: TypeAlias = Send | Open | Read | Sleep | Now | Random | Emit | Invoke | Spawn | Wait | Cancel | Detach
Flow: TypeAlias = Generator[AnyEffect, Any, T]


class Branch:
    """A name for a running branch; what it really is belongs to the driver."""

    __slots__ = ("done", "run")

    def __init__(self, run: Any = None) -> None:
        self.run = run
        self.done = False


class Emitted:
    """A branch emitted events, or its user code reported something."""

    __slots__ = __match_args__ = ("branch", "events")

    def __init__(self, branch: Branch, events: Sequence[Any]) -> None:
        self.branch = branch
        self.events = events


class Paused:
    """A branch stopped at its first Emit. `rest` is the flow from there on; whoever waits may continue it."""

    __slots__ = __match_args__ = ("branch", "rest")

    def __init__(self, branch: Branch, rest: Generator[Any, Any, Any]) -> None:
        self.branch = branch
        self.rest = rest


class Finished:
    """A branch returned."""

    __slots__ = __match_args__ = ("branch", "value")

    def __init__(self, branch: Branch, value: Any) -> None:
        self.branch = branch
        self.value = value


class Failed:
    """A branch raised."""

    __slots__ = __match_args__ = ("branch", "error")

    def __init__(self, branch: Branch, error: BaseException) -> None:
        self.branch = branch
        self.error = error


BranchEvent: TypeAlias = Emitted | Paused | Finished | Failed


def take_event(waiting: deque[BranchEvent], branches: Sequence[Branch], children: list[Any]) -> BranchEvent | None:
    """The oldest event of these branches, taken out of what waits; one that has ended is no child any more."""
    for event in waiting:
        if event.branch in branches:
            waiting.remove(event)
            if isinstance(event, Finished | Failed):
                event.branch.done = True
                children.remove(event.branch.run)
            return event
    return None


def fatal_error(event: BranchEvent | None) -> BaseException | None:
    """What a branch died of, if that is no mere Exception: an interrupt or an exit ends the whole run."""
    if isinstance(event, Failed) and not isinstance(event.error, Exception):
        return event.error
    return None


def rest_of(flow: Flow[T], pending: Emit) -> Flow[T]:
    """A flow that was stopped at `pending`, as a flow again."""
    try:
        yield pending
        return (yield from flow)
    finally:
        flow.close()


def intercept(flow: Flow[T], on_emit: Callable[[Emit], Flow[None]]) -> Flow[T]:
    """Run `flow`, but let `on_emit` take each Emit of it. Everything else passes through, throw and close included."""
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
