"""What `stream` and `astream` return: events while they arrive, and the response they add up to.

Leaving the loop closes the stream and its connection, whether the loop ended, broke or raised. A closed stream cannot
be resumed. What had arrived by then stays: as a response without a stop reason, whose usage is what the vendor had said
by then, completed by estimates and marked as `estimated`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from operator import length_hint
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from . import errors
from .drivers.sync import SyncRun
from .tokens import Received
from .types import AgentResponse, Fold, Part, StreamEvent, ToolCall, Usage
from .wire import Cancelled

if TYPE_CHECKING:
    from .drivers.aio import AioRun


Settle: TypeAlias = Callable[[AgentResponse, Received], AgentResponse]
"""Works out what a part of an answer cost."""


_MOST_WAITING = 16


class _Progress:
    """What has been seen of a stream so far.

    Events arrive a few at a time. What was handed out of them is added up when many were, or when somebody asks.
    """

    def __init__(self, settle: Settle | None) -> None:
        self._fold = Fold()
        self._received = Received()
        self._begun = False
        self._closed = False
        self._response: AgentResponse | None = None
        self._settle = settle
        self._left: AgentResponse | None = None
        self._waiting: list[StreamEvent] = []
        """Events that were handed out, and not added up yet."""
        self._arrived: Sequence[StreamEvent] = ()
        """The latest. Some of them may have been added up already."""
        self._ahead: Iterator[StreamEvent] = iter(())
        """Those of them that were not handed out yet."""
        self._noted = 0
        self._noting = threading.Lock()

    def _hand_out(self, events: Sequence[StreamEvent]) -> Iterator[StreamEvent]:
        with self._noting:
            self._arrived, self._ahead, self._noted = events, iter(events), 0
        return self._ahead

    def _handed_out(self) -> None:
        """All that had arrived. While more is waited for, no more than a few events are kept."""
        with self._noting:
            self._waiting += self._arrived[self._noted :]
            self._arrived, self._noted = (), 0
        if len(self._waiting) >= _MOST_WAITING:
            self._note()

    def _note(self) -> None:
        """Add up what was handed out."""
        with self._noting:  # somebody else may look while the stream is read
            handed_out = len(self._arrived) - length_hint(self._ahead)
            events = [*self._waiting, *self._arrived[self._noted : handed_out]]
            self._waiting.clear()
            self._noted = handed_out
            folded = self._fold.add_all(events)
            self._received.add_all(events[:folded])
            self._begun = self._begun or any(event.type != "error" for event in events)
            if folded < len(events):
                raise ValueError("the events of the stream do not fit together")

    def _seen(self) -> AgentResponse:
        if self._response is not None:
            return self._response
        self._note()
        return self._settled() or self._fold.partial()

    def _settled(self) -> AgentResponse | None:
        """What was heard of a stream that was left, or that failed; None if it goes on or nothing had come."""
        if self._left is None and self._closed:
            self._note()
            if self._begun:
                partial = self._fold.partial()
                self._left = partial if self._settle is None else self._settle(partial, self._received)
        return self._left

    @property
    def response(self) -> AgentResponse:
        """The whole response; of a stream that was left, what had come by then, without a `stop_reason`.

        While the stream goes on there is none: use `text` and the others, or `collect` first.
        """
        response = self._response if self._response is not None else self._settled()
        if response is None:
            raise errors.ConfigurationError(
                "The stream has not ended, so there is no response yet.",
                field="response",
                fix="Iterate to the end first, or call collect().",
            )
        return response

    @property
    def ended(self) -> bool:
        """Whether the whole answer has come. One that was left, or that failed, never has."""
        return self._response is not None

    @property
    def text(self) -> str:
        """The text that has arrived."""
        return self._seen().text or ""

    @property
    def thinking(self) -> str:
        return self._seen().thinking

    @property
    def content(self) -> Sequence[Part]:
        return self._seen().content

    @property
    def tool_calls(self) -> list[ToolCall]:
        """The calls that are complete."""
        return self._seen().tool_calls

    @property
    def usage(self) -> Usage | None:
        """What the vendor has said so far; when the stream is over, all of it, estimated where it did not say."""
        return self._seen().usage


Finish: TypeAlias = Callable[[AgentResponse], AgentResponse]
"""Has the last word about a response that has come whole."""


class ResponseStream(_Progress):
    """Iterate over it, or use it in a `with` block.

    ```python
    from agent import Agent

    with Agent("scripted:echo").stream("Tell me a story") as stream:
        for event in stream:
            if event.type == "text_delta":
                print(event.text, end="")
    print(stream.response.usage)
    ```
    """

    def __init__(
        self, start: Callable[[], SyncRun], settle: Settle | None = None, finish: Finish | None = None
    ) -> None:
        super().__init__(settle)
        self._finish = finish
        self._start = start
        self._run: SyncRun | None = None
        self._aborted = False
        self._lock = threading.Lock()

    def __iter__(self) -> Iterator[StreamEvent]:
        run = self._begin()
        try:
            while (events := run.advance()) is not None:
                yield from self._hand_out(events)
                self._handed_out()
                del events
            self._response = run.result if self._finish is None else self._finish(run.result)
        except Cancelled:
            raise errors.Aborted("the stream was aborted") from None
        finally:
            self._closed = True
            run.close()

    def _begin(self) -> SyncRun:
        with self._lock:
            if self._closed or self._run is not None:
                raise errors.ConfigurationError(
                    "The stream was iterated before, and cannot be resumed.", field="stream", fix="Start a new one."
                )
            self._run = run = self._start()
            run.cancelled = self._aborted
            return run

    def text_stream(self) -> Iterator[str]:
        """Only the text, piece by piece."""
        for event in self:
            if event.type == "text_delta" and event.text:
                yield event.text

    def collect(self) -> AgentResponse:
        """Read to the end, and return the response."""
        if self._response is None:
            for _ in self:
                pass
        return self.response

    def abort(self) -> None:
        """End the stream from any thread. Whoever iterates gets Aborted."""
        with self._lock:
            self._aborted = True
            run = self._run
        if run is not None:
            run.cancel()

    def close(self) -> None:
        self._closed = True
        if self._run is not None:
            self._run.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __del__(self) -> None:
        run = getattr(self, "_run", None)  # an object that was interrupted while being made is finalized, too
        if run is not None:
            run.close()


class AsyncResponseStream(_Progress):
    """Iterate over it with `async for`, or use it in an `async with` block. There is nothing to await first."""

    def __init__(self, start: Callable[[], AioRun], settle: Settle | None = None, finish: Finish | None = None) -> None:
        super().__init__(settle)
        self._finish = finish
        self._start = start
        self._run: AioRun | None = None
        self._aborted = False

    def __aiter__(self) -> _Iteration:
        if self._closed or self._run is not None:
            raise errors.ConfigurationError(
                "The stream was iterated before, and cannot be resumed.", field="stream", fix="Start a new one."
            )
        if self._aborted:
            raise errors.Aborted("the stream was aborted")
        self._run = self._start()
        return _Iteration(self, self._run)

    async def text_stream(self) -> Any:
        """Only the text, piece by piece."""
        async for event in self:
            if event.type == "text_delta" and event.text:
                yield event.text

    async def collect(self) -> AgentResponse:
        """Read to the end, and return the response."""
        if self._response is None:
            async for _ in self:
                pass
        return self.response

    async def result(self) -> AgentResponse:
        """As `collect`: the name the agent loop's stream protocol has for it."""
        return await self.collect()

    def abort(self) -> None:
        """End the stream from any task or thread. Whoever iterates gets Aborted."""
        self._aborted = True
        if self._run is not None:
            self._run.abandon()

    async def aclose(self) -> None:
        self._closed = True
        if self._run is not None:
            await self._run.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()


class _Iteration:
    """What `async for` holds: when the loop is left nothing refers to it any more, and its finalizer closes the run."""

    __slots__ = ("_ready", "_run", "_stream")

    def __init__(self, stream: AsyncResponseStream, run: AioRun) -> None:
        self._stream = stream
        self._run = run
        self._ready: Iterator[StreamEvent] = iter(())

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> StreamEvent:
        while True:
            for event in self._ready:
                return event
            self._stream._handed_out()
            try:
                events = None if self._run.finished else await self._run.advance()
            except BaseException:
                self._stream._closed = True
                raise
            if events is None:
                self._end()
                raise StopAsyncIteration
            self._ready = self._stream._hand_out(events)

    def _end(self) -> None:
        stream = self._stream
        stream._closed = True
        if stream._response is None and self._run.result is not None:
            result = self._run.result
            stream._response = result if stream._finish is None else stream._finish(result)
        if stream._response is None and stream._aborted:
            raise errors.Aborted("the stream was aborted")

    def __del__(self) -> None:
        run = getattr(self, "_run", None)  # as above: it may be half-made
        if run is not None:
            self._stream._closed = True
            if not run.finished:
                run.abandon()
