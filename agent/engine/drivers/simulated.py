"""Simulated driver: performs flows in virtual time.

It has one thread, a scripted network and seeded scheduling: the same seed gives the same run, to the last event. A
simulated hour takes milliseconds, so production flows can be tested against thousands of fault orders.
"""

from __future__ import annotations

import contextvars
import heapq
import inspect
import math
import random
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias, assert_never

from ... import errors
from ..flow import (
    AnyEffect,
    Branch,
    BranchEvent,
    Cancel,
    Detach,
    Emit,
    Emitted,
    Failed,
    Finished,
    Flow,
    Invoke,
    Now,
    Open,
    Paused,
    Query,
    Random,
    Read,
    Send,
    Sleep,
    Spawn,
    Wait,
    fatal_error,
    rest_of,
    take_event,
)
from ..wire import (
    Answer,
    Body,
    Limits,
    Network,
    Piece,
    Reply,
    WireRequest,
    deadline_error,
    exchange_deadline,
    read_timeout,
    reply_deadline,
    reply_timeout,
)


@dataclass(slots=True)
class SimulatedTool:
    """A function for Invoke in virtual time: reports after some seconds, then a result or an exception."""

    result: Any
    after: float = 0.0
    reports: Sequence[tuple[float, Any]] = ()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise AssertionError("only the simulated driver can run this tool")


class SimulatedBody(Body):
    """A response that arrives in virtual time."""

    __slots__ = ("pieces",)

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.status, answer.headers)
        self.pieces: deque[Piece] = deque(answer.iter_pieces())

    def next_piece(self) -> Piece:
        """Take the next piece and its delay. An empty piece is only a pause, as on a socket."""
        waited = 0.0
        while self.pieces:
            piece = self.pieces.popleft()
            waited += piece.after
            if isinstance(piece.outcome, Exception) or piece.outcome:
                return Piece(piece.outcome, waited)
        return Piece(b"", waited)


def run_coroutine(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine that never waits, because a simulation has no event loop."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value
    coroutine.close()
    raise AssertionError("user code waits in real time; use a SimulatedTool in simulations")


Fault: TypeAlias = Callable[["Simulation", AnyEffect], Exception | None]


class Stopped(BaseException):
    """The simulation abandoned the run at `stop_at`."""


class SimulatedRun:
    """State and outcome of one flow in a simulation."""

    ended_at: float
    started_at: float

    def __init__(self, flow: Flow[Any], deadline: float, parent: SimulatedRun | None, *, pause: bool) -> None:
        self.flow = flow
        self.deadline = deadline
        self.parent = parent
        self.pause = pause
        self.branch: Branch = Branch(self)
        self.branch_events: deque[BranchEvent] = deque()
        self.waiting: Wait | None = None
        self.step = 0
        """Counts resumptions; actions scheduled for an earlier one are outdated."""
        self.finished = False
        self.started_at = self.ended_at = math.nan
        self.bodies: list[SimulatedBody] = []
        self.children: list[SimulatedRun] = []
        self.result: Any = None
        self.error: BaseException | None = None
        self.events: list[Any] = []


class Simulation:
    """A virtual clock, a scripted network and a seeded random generator.

    Args:
        network: Returns the scripted reply to each request.
        seed: The same seed replays a run exactly.
        fault: Called before each effect; returns an exception to fail the effect with.
        stop_at: The step at which the run is abandoned, as by a consumer that leaves.
    """

    def __init__(
        self,
        network: Network,
        *,
        seed: int = 0,
        fault: Fault | None = None,
        stop_at: int | None = None,
        now: float = 0.0,
    ) -> None:
        self.random: random.Random = random.Random(seed)
        self.now: float = now
        self.steps: int = 0
        self.log: list[str] = []
        self.requests: list[WireRequest] = []
        self.open_bodies: int = 0
        self.open_bodies_while_emitting: int = 0
        self.open_bodies_while_sleeping: int = 0
        self.events: list[Any] = []
        self._network = network
        self._fault = fault
        self._stop_at = stop_at
        self._scheduled: list[tuple[float, float, int, Callable[[], None]]] = []
        self._count = 0
        self._ready: list[tuple[SimulatedRun, Any, Exception | None]] = []

    def at(self, when: float, act: Callable[[], None]) -> None:
        """Schedule an action. Actions at the same time happen in random order."""
        self._count += 1
        heapq.heappush(self._scheduled, (when, self.random.random(), self._count, act))

    def run(self, flow: Flow[Any], deadline: float = math.inf) -> Any:
        """Perform a flow to its end. Its events are in `events` even if it fails."""
        root = self.start(flow, deadline)
        self.events = root.events
        while not root.finished:
            if self._stop_at is not None and self.steps >= self._stop_at:
                self.cancel(root)
                raise Stopped
            if not self.step():
                raise AssertionError("deadlock: the flow waits, and no action is scheduled")
        if root.error is not None:
            try:
                raise root.error
            finally:
                root.error = None
        return root.result

    def start(self, flow: Flow[Any], deadline: float = math.inf) -> SimulatedRun:
        """Start a concurrent flow. It advances during `run`, `step` and `finish`."""
        root = SimulatedRun(flow, deadline, None, pause=False)
        root.started_at = self.now
        self._ready.append((root, None, None))
        return root

    def finish(self) -> None:
        """Run all flows and scheduled actions to their end."""
        while self.step():
            pass

    def cancel(self, run: SimulatedRun) -> None:
        """Cancel a run, as an abandoning caller would."""
        if not run.finished:
            run.ended_at = self.now
            self._close(run)

    def step(self) -> bool:
        """Perform the next action. Returns False if there is none."""
        if self._ready:
            chosen = self.random.randrange(len(self._ready)) if len(self._ready) > 1 else 0
            self._advance(*self._ready.pop(chosen))
        elif self._scheduled:
            when, _, _, act = heapq.heappop(self._scheduled)
            self.now = max(self.now, when)
            act()
        else:
            return False
        return True

    # One step

    def _advance(self, run: SimulatedRun, reply: Any, error: Exception | None) -> None:
        if run.finished:
            return
        self.steps += 1
        try:
            effect = run.flow.send(reply) if error is None else run.flow.throw(error)
        except StopIteration as stop:
            self._end(run, Finished(run.branch, stop.value))
            return
        except BaseException as raised:
            self._end(run, Failed(run.branch, raised))
            return
        self.log.append(f"{self.now:.6f} {type(effect).__name__}")
        for body in [body for body in run.bodies if body.released]:
            self._close_body(run, body)
        broken = self._fault(self, effect) if self._fault is not None else None
        if broken is None:
            self._perform(run, effect)
            return
        if isinstance(effect, Read) and isinstance(effect.body, SimulatedBody):
            self._close_body(run, effect.body)
        self._resume(run, error=broken)

    def _resume(self, run: SimulatedRun, reply: Any = None, error: Exception | None = None) -> None:
        run.step += 1
        self._ready.append((run, reply, error))

    def _resume_at(
        self,
        run: SimulatedRun,
        when: float,
        outcome: Any,
        until: float,
        expired: Callable[[], Exception],
        lost_body: SimulatedBody | None = None,
    ) -> None:
        """Resume with the outcome at `when`, or with a timeout at `until`. An unused `lost_body` is closed."""
        step = run.step

        def close() -> None:
            if lost_body is not None:
                self._close_body(run, lost_body)

        def arrive() -> None:
            if run.finished or run.step != step:
                close()
            elif isinstance(outcome, Exception):
                self._resume(run, error=outcome)
            else:
                self._resume(run, outcome)

        def expire() -> None:
            if not run.finished and run.step == step:
                close()
                self._resume(run, error=expired())

        if when <= until:
            self.at(when, arrive)
        else:
            self.at(until, expire)

    def _perform(self, run: SimulatedRun, effect: AnyEffect) -> None:
        match effect:
            case Send(request, limits):
                self._send(run, request, limits)
            case Open(request, limits):
                self._open(run, request, limits)
            case Read():
                self._read(run, effect)
            case Sleep(seconds):
                self.open_bodies_while_sleeping = max(self.open_bodies_while_sleeping, len(run.bodies))
                expired = partial(deadline_error, "waiting for the next attempt")
                self._resume_at(run, self.now + seconds, None, run.deadline, expired)
            case Now():
                self._resume(run, self.now)
            case Random():
                self._resume(run, self.random.random())
            case Emit():
                self._emit(run, effect)
            case Invoke():
                self._invoke(run, effect)
            case Query(function, _, args):
                self._resume(run, function(*args))
            case Spawn(flow, pause):
                child = SimulatedRun(flow, run.deadline, run, pause=pause)
                run.children.append(child)
                self._ready.append((child, None, None))
                self._resume(run, child.branch)
            case Wait():
                self._wait(run, effect)
            case Cancel(branches):
                self._cancel(run, branches)
            case Detach(flow, seconds):
                self.start(flow, self.now + seconds)
                self._resume(run)
            case _:
                assert_never(effect)

    # Network

    def _send(self, run: SimulatedRun, request: WireRequest, limits: Limits) -> None:
        if self.now >= run.deadline:
            self._resume(run, error=reply_timeout(limits, run.deadline, self.now, whole=True))
            return
        self.requests.append(request)
        answer = self._network(request)
        when, outcome = self.now + answer.after, answer.failure
        data: list[bytes] = []
        for piece in answer.iter_pieces() if outcome is None else ():
            when += piece.after
            if isinstance(piece.outcome, Exception):
                outcome = piece.outcome
                break
            data.append(piece.outcome)
        until = reply_deadline(limits, self.now, run.deadline, whole=True)
        reply = outcome if outcome is not None else Reply(answer.status, answer.headers, b"".join(data))
        self._resume_at(run, when, reply, until, lambda: reply_timeout(limits, run.deadline, self.now, whole=True))

    def _open(self, run: SimulatedRun, request: WireRequest, limits: Limits) -> None:
        if self.now >= run.deadline:
            self._resume(run, error=reply_timeout(limits, run.deadline, self.now, whole=False))
            return
        self.requests.append(request)
        answer = self._network(request)
        until = reply_deadline(limits, self.now, run.deadline, whole=False)
        lost_body: SimulatedBody | None = None
        outcome: Exception | SimulatedBody
        if answer.failure is not None:
            outcome = answer.failure
        else:
            outcome = body = SimulatedBody(answer)
            body.deadline = exchange_deadline(limits, self.now)
            self.open_bodies += 1
            run.bodies.append(body)
            lost_body = body
        when = self.now + answer.after
        self._resume_at(
            run, when, outcome, until, lambda: reply_timeout(limits, run.deadline, self.now, whole=False), lost_body
        )

    def _read(self, run: SimulatedRun, effect: Read) -> None:
        body, idle = effect.body, effect.idle
        assert isinstance(body, SimulatedBody)
        if body.closed:
            self._resume(run, error=errors.ConnectionError("the response was read after its end"))
            return
        if effect.fresh:
            body.idle_used = 0.0
        until = min(run.deadline, body.deadline)
        if idle is not None:
            until = min(until, self.now + idle - body.idle_used)
        piece = body.next_piece()
        body.idle_used += piece.after

        def make_timeout() -> Exception:
            return read_timeout(body, idle, run.deadline, self.now)

        self._resume_at(run, self.now + piece.after, piece.outcome, until, make_timeout, body)
        if isinstance(piece.outcome, Exception) or not piece.outcome:
            self._close_body(run, body)

    def _close_body(self, run: SimulatedRun, body: SimulatedBody) -> None:
        if not body.closed:
            body.closed = True
            self.open_bodies -= 1
        for holder in (run, *run.children):
            if body in holder.bodies:
                holder.bodies.remove(body)

    # User code

    def _emit(self, run: SimulatedRun, effect: Emit) -> None:
        if run.parent is None:
            self.open_bodies_while_emitting = max(self.open_bodies_while_emitting, self.open_bodies)
            run.events.extend(effect.events)
            self._resume(run)
        elif run.pause:
            run.finished = True
            self._post(run.parent, Paused(run.branch, rest_of(run.flow, effect)))
        else:
            self._post(run.parent, Emitted(run.branch, effect.events))
            self._resume(run)

    def _invoke(self, run: SimulatedRun, effect: Invoke) -> None:
        function = effect.function
        if isinstance(function, SimulatedTool):
            for after, report in function.reports:
                self.at(self.now + after, self._reporter(run, report))
            expired = partial(deadline_error, "running user code")
            self._resume_at(run, self.now + function.after, function.result, run.deadline, expired)
            return
        kwargs = dict(effect.kwargs)
        if effect.reports:
            kwargs["report"] = lambda report: self._reporter(run, report)()
        context = contextvars.copy_context() if effect.context is None else effect.context.copy()
        try:
            value = context.run(function, *effect.args, **kwargs)
            self._resume(run, context.run(run_coroutine, value) if inspect.iscoroutine(value) else value)
        except (StopIteration, StopAsyncIteration) as error:
            self._resume(run, error=RuntimeError(f"user code raised {type(error).__name__}"))
        except Exception as error:
            self._resume(run, error=error)
        except BaseException as error:
            self._end(run, Failed(run.branch, error))

    def _reporter(self, run: SimulatedRun, report: Any) -> Callable[[], None]:
        def post() -> None:
            if not run.finished and run.parent is not None:
                self._post(run.parent, Emitted(run.branch, [report]))

        return post

    # Branches

    def _wait(self, run: SimulatedRun, effect: Wait) -> None:
        run.waiting = effect
        if self._deliver(run):
            return
        until = run.deadline if effect.timeout is None else min(run.deadline, self.now + effect.timeout)
        if until == math.inf:
            return
        step = run.step

        def expire() -> None:
            if not run.finished and run.step == step:
                run.waiting = None
                late = self.now >= run.deadline
                self._resume(run, error=deadline_error("waiting for branches") if late else None)

        self.at(until, expire)

    def _cancel(self, run: SimulatedRun, branches: Sequence[Branch]) -> None:
        for branch in branches:
            if branch.run in run.children:
                self._close(branch.run)
                run.children.remove(branch.run)
        run.branch_events = deque(event for event in run.branch_events if event.branch not in branches)
        self._resume(run)

    def _post(self, run: SimulatedRun, event: BranchEvent) -> None:
        run.branch_events.append(event)
        if run.waiting is not None:
            self._deliver(run)

    def _deliver(self, run: SimulatedRun) -> bool:
        assert run.waiting is not None
        event = take_event(run.branch_events, run.waiting.branches, run.children)
        if event is None:
            return False
        run.waiting = None
        if (death := fatal_error(event)) is not None:
            self._end(run, Failed(run.branch, death))
        else:
            self._resume(run, event)
        return True

    def _end(self, run: SimulatedRun, event: Finished | Failed) -> None:
        if isinstance(event, Finished):
            run.result = event.value
        else:
            run.error = event.error
        run.ended_at = self.now
        self._close(run)
        if run.parent is not None and not run.parent.finished:
            self._post(run.parent, event)

    def _close(self, run: SimulatedRun) -> None:
        run.finished = True
        run.flow.close()
        for child in list(run.children):
            self._close(child)
        for body in list(run.bodies):
            self._close_body(run, body)
