"""Run streams: the return values of `run_stream` and `arun_stream`.

A failed or aborted run ends with events that say so, and the iteration ends normally; only `result` raises the error.
Leaving the loop ends the run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, TypeAlias

from typing_extensions import override

from .. import errors
from ..engine.drivers.sync import SyncRun
from ..engine.stream import AsyncStream, Stream, StreamBase
from ..tools.base import Signal
from ..types import Message
from ..types.response import OutputT
from .events import AgentEvent, AgentMessage, MessageLike, coerce_message
from .results import RunResult
from .run_state import RunState

if TYPE_CHECKING:
    from ..engine.drivers.asyncio import AioRun


Finish: TypeAlias = Callable[[RunResult], RunResult]
"""Completes the result of a run."""


@dataclass(frozen=True, slots=True)
class StartedRun:
    """A run that a driver executes."""

    run: SyncRun | AioRun
    state: RunState
    signal: Signal
    finish: Finish

    def then(self, finish: Finish) -> StartedRun:
        """Add a step that completes the result."""
        return replace(self, finish=lambda result: finish(self.finish(result)))


class RunView(StreamBase[AgentEvent, RunResult[OutputT]], Generic[OutputT]):
    """State of a run, and the methods that steer it.

    Args:
        start: Starts the run.
        state: The run's state, if it exists before the start.
        signal: The run's abort signal, if it exists before the start.
        scope: See `StreamBase`.
    """

    _noun = "run"
    _raises = False

    def __init__(
        self,
        start: Callable[[], StartedRun],
        state: RunState | None = None,
        signal: Signal | None = None,
        *,
        scope: Callable[[Any], Any] | None = None,
    ) -> None:
        super().__init__(scope)
        self.start = start
        self._state = state
        self._signal = signal
        self._complete: Finish | None = None
        self.idle: Signal = Signal()
        """Set when the run is over."""

    @property
    def run_id(self) -> str:
        return self._require_state().run_id

    @property
    def messages(self) -> list[AgentMessage]:
        """Messages the run has added so far."""
        return [] if self._state is None else self._state.added

    @property
    def stream_message(self) -> Message | None:
        """The message being streamed."""
        partial_message = None if self._state is None else self._state.partial_message
        return None if partial_message is None else partial_message.build()

    @property
    def pending_tool_calls(self) -> set[str]:
        """Ids of the calls without a result."""
        slots = () if self._state is None else self._state.slots
        return {slot.call.id for slot in slots if slot.result is None}

    @property
    def result(self) -> RunResult[OutputT]:
        """The result of the run. Raises the run's failure, or an error while the run is in progress."""
        return self._outcome()

    @property
    def is_streaming(self) -> bool:
        """Whether the run is in progress."""
        return self._iterated and not self.idle.is_set()

    def steer(self, message: MessageLike) -> None:
        """Add a message now. The model sees it after the current tool; later calls are skipped."""
        self._require_state().steering.put(coerce_message(message))

    def follow_up(self, message: MessageLike) -> None:
        """Add a message when the run would otherwise end."""
        self._require_state().follow_ups.put(coerce_message(message))

    def _signal_abort(self) -> None:
        self._aborted = True  # before the signal: a run that reacts to it must not pass for one that failed
        if self._signal is not None:
            self._signal.set()

    def _require_state(self) -> RunState:
        if self._state is None:
            raise errors.ConfigurationError(
                "The run has not started.", field="run", fix="Iterate over it first: the run starts with the iteration."
            )
        return self._state

    def _start_run(self) -> Any:
        started = self.start()
        self._state, self._signal, self._complete = started.state, started.signal, started.finish
        return started.run

    @override
    def _finish(self, result: RunResult) -> RunResult[OutputT]:
        return result if self._complete is None else self._complete(result)

    @override
    def _events_of_abort(self) -> Iterable[AgentEvent]:
        """Return the last events of an aborted run, unless it had ended before."""
        state = self._require_state()
        if state.ended:
            return ()
        events = state.close("aborted", None)
        aborted = errors.Aborted("the run was aborted")
        aborted.result = state.result(now=state.started_at, stop_reason="error")
        self._error = state.error = aborted
        return events


class RunStream(RunView[OutputT], Stream[AgentEvent, RunResult[OutputT]]):
    """Iterate over it, or use it in a `with` block.

    ```python
    from agent import Agent

    with Agent("scripted:echo").run_stream("Hello!") as run:
        for event in run:
            if event.type == "message_end":
                print(event.message.role, event.message.text)
    print(run.result.text)
    ```
    """

    @override
    def abort(self) -> None:
        """End the run from any thread. Running tools are cancelled; the last events report the abort."""
        self._signal_abort()
        super().abort()

    def wait_for_idle(self, timeout: float | None = None) -> bool:
        """Wait in another thread until the run is over. Return False on timeout."""
        return self.idle.block(timeout)

    @override
    def close(self) -> None:
        """End the run."""
        try:
            super().close()
        finally:
            self.idle.set()


class AsyncRunStream(RunView[OutputT], AsyncStream[AgentEvent, RunResult[OutputT]]):
    """Iterate over it with `async for`, or use it in an `async with` block; do not await it."""

    @override
    def abort(self) -> None:
        """End the run from any task or thread. Running tools are cancelled; the last events report the abort."""
        self._signal_abort()
        super().abort()

    async def wait_for_idle(self) -> None:
        """Wait in another task until the run is over."""
        await self.idle.wait()

    @override
    async def aclose(self) -> None:
        """End the run."""
        try:
            await super().aclose()
        finally:
            self.idle.set()

    @override
    def _abandon(self) -> None:
        super()._abandon()
        self.idle.set()
