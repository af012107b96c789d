"""What `run_stream` and `arun_stream` return: the events of a run as they happen, and ways to steer it.

A run that fails or is aborted says so in its last events, and the iteration ends like any other; only the result raises
the error. Leaving the loop ends the run.
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
from .events import AgentEvent, AgentMessage, MessageLike, read_message
from .results import RunResult
from .run_state import RunState

if TYPE_CHECKING:
    from ..engine.drivers.asyncio import AioRun


Finish: TypeAlias = Callable[[RunResult], RunResult]
"""Completes the result of a run."""


@dataclass(frozen=True, slots=True)
class StartedRun:
    """An agent run that was started."""

    run: SyncRun | AioRun
    record: RunState
    signal: Signal
    finish: Finish

    def then(self, finish: Finish) -> StartedRun:
        """The same run with another step that completes its result."""
        return replace(self, finish=lambda result: finish(self.finish(result)))


class RunView(StreamBase[AgentEvent, RunResult[OutputT]], Generic[OutputT]):
    """The state of a run, and ways to steer it.

    Args:
        start: Starts the run.
        record: The run's record, if it exists before the start.
        signal: The run's abort signal, if it exists before the start.
        scope: See `StreamBase`.
    """

    _noun = "run"
    _raises = False

    def __init__(
        self,
        start: Callable[[], StartedRun],
        record: RunState | None = None,
        signal: Signal | None = None,
        *,
        scope: Callable[[Any], Any] | None = None,
    ) -> None:
        super().__init__(scope)
        self.start = start
        self._record = record
        self._signal = signal
        self._complete: Finish | None = None
        self.idle = Signal()
        """Set when the run is over."""

    @property
    def run_id(self) -> str:
        return self._started_record().run_id

    @property
    def messages(self) -> list[AgentMessage]:
        """What the run has added to the conversation so far."""
        return [] if self._record is None else self._record.added

    @property
    def stream_message(self) -> Message | None:
        """The message that the model is writing."""
        speaking = None if self._record is None else self._record.speaking
        return None if speaking is None else speaking.so_far()

    @property
    def pending_tool_calls(self) -> set[str]:
        """Ids of the calls that have no result yet."""
        slots = () if self._record is None else self._record.slots
        return {slot.call.id for slot in slots if slot.result is None}

    @property
    def result(self) -> RunResult[OutputT]:
        """The result of the run. Raises the run's failure, and an error while the run goes on."""
        return self._outcome()

    @property
    def is_streaming(self) -> bool:
        """Whether the run goes on."""
        return self._iterated and not self.idle.is_set()

    def steer(self, message: MessageLike) -> None:
        """Add a message now. The model sees it after the tool that runs; calls that have not begun are skipped."""
        self._started_record().steering.put(read_message(message))

    def follow_up(self, message: MessageLike) -> None:
        """Add a message when the run would otherwise end."""
        self._started_record().follow_ups.put(read_message(message))

    def _started_record(self) -> RunState:
        if self._record is None:
            raise errors.ConfigurationError(
                "The run has not started.", field="run", fix="Iterate over it first: its conversation is read then."
            )
        return self._record

    def _start_run(self) -> Any:
        started = self.start()
        self._record, self._signal, self._complete = started.record, started.signal, started.finish
        return started.run

    @override
    def _finish(self, result: RunResult) -> RunResult[OutputT]:
        return result if self._complete is None else self._complete(result)

    @override
    def _events_of_abort(self) -> Iterable[AgentEvent]:
        """The last events of a run that was aborted, unless it came to its end first."""
        record = self._started_record()
        if record.over:
            return ()
        events = record.closing("aborted", None)
        aborted = errors.Aborted("the run was aborted")
        aborted.result = record.result(now=record.began, stop_reason="error")
        self._error = record.error = aborted
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
        """End the run from any thread: running calls are given up, and the last events say so."""
        self._aborted = True  # before the signal: a run that reacts to it must not pass for one that failed
        if self._signal is not None:
            self._signal.set()
        super().abort()

    def wait_for_idle(self, timeout: float | None = None) -> bool:
        """Wait, in another thread than the one that iterates, until the run is over. False on timeout."""
        return self.idle.block(timeout)

    @override
    def close(self) -> None:
        """End the run."""
        try:
            super().close()
        finally:
            self.idle.set()


class AsyncRunStream(RunView[OutputT], AsyncStream[AgentEvent, RunResult[OutputT]]):
    """Iterate over it with `async for`, or use it in an `async with` block. There is nothing to await first."""

    @override
    def abort(self) -> None:
        """End the run from any task or thread: running calls are given up, and the last events say so."""
        self._aborted = True  # before the signal: a run that reacts to it must not pass for one that failed
        if self._signal is not None:
            self._signal.set()
        super().abort()

    async def wait_for_idle(self) -> None:
        """Wait, in another task than the one that iterates, until the run is over."""
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
