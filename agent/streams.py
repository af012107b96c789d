"""What `stream` and `astream` return: the events of a response while it arrives, and the response at the end.

Leaving the loop closes the stream and its connection, and a closed stream cannot be resumed. What had arrived by then
stays available, as a response without a stop reason. Its usage is what the vendor had reported, completed by estimates
and marked as `estimated`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from typing_extensions import override

from . import errors
from .drivers.sync import SyncRun
from .engine.stream import AsyncStream, Stream, StreamBase
from .tokens import Received
from .types import AgentResponse, AnyStreamEvent, Fold, Part, StreamEvent, ToolCall, Usage

if TYPE_CHECKING:
    from .drivers.aio import AioRun

E = TypeVar("E")

Settle: TypeAlias = Callable[[AgentResponse, Received], AgentResponse]
"""Adds estimated usage and cost to a response that did not arrive completely."""

Finish: TypeAlias = Callable[[AgentResponse], AgentResponse]
"""Completes a response that has arrived."""


@dataclass(frozen=True, slots=True)
class StartedResponse:
    """A streaming call that was started."""

    run: SyncRun | AioRun
    settle: Settle
    finish: Finish


class ResponseView(StreamBase[E, AgentResponse]):
    """What has arrived of a response.

    Args:
        start: Starts the call.
        scope: See `StreamBase`.
    """

    def __init__(self, start: Callable[[], StartedResponse], scope: Callable[[Any], Any] | None = None) -> None:
        super().__init__(scope)
        self.start = start
        self._fold = Fold()
        self._received = Received()
        self._has_begun = False
        self._settled: AgentResponse | None = None
        self._started: StartedResponse | None = None

    def _start_run(self) -> Any:
        self._started = started = self.start()
        return started.run

    def _observe(self, events: Sequence[StreamEvent]) -> Iterator[StreamEvent]:
        """Fold each event before it is handed out."""
        self._has_begun = self._has_begun or any(event.type != "error" for event in events)
        fold, received = self._fold, self._received
        for event in events:
            fold.add(event)
            received.add(event)
            yield event

    @override
    def _finish(self, result: AgentResponse) -> AgentResponse:
        assert self._started is not None
        return self._started.finish(result)

    @property
    def partial(self) -> AgentResponse:
        """What has arrived: the whole response at the end, one without a `stop_reason` before."""
        return self._result or self._settle() or self._fold.partial()

    def _settle(self) -> AgentResponse | None:
        """What had arrived of a stream that was left or that failed; None if it goes on or nothing had come."""
        if self._settled is None and self._closed and self._has_begun and self._started is not None:
            self._settled = self._started.settle(self._fold.partial(), self._received)
        return self._settled

    @property
    def response(self) -> AgentResponse:
        """The response. Raises the failure of a stream that failed, and an error while the stream goes on.

        If the stream was left or aborted, this is what had arrived by then, without a `stop_reason`.
        """
        if self._result is None and (self._error is None or isinstance(self._error, errors.Aborted)):
            settled = self._settle()
            if settled is not None:
                return settled
        return self._outcome()

    @property
    def text(self) -> str:
        """The text that has arrived."""
        return self.partial.text or ""

    @property
    def thinking(self) -> str:
        """The reasoning that has arrived."""
        return self.partial.thinking

    @property
    def content(self) -> Sequence[Part]:
        """The content that has arrived."""
        return self.partial.content

    @property
    def tool_calls(self) -> list[ToolCall]:
        """The calls that are complete."""
        return self.partial.tool_calls

    @property
    def usage(self) -> Usage | None:
        """What the vendor has reported so far; once the stream is over, completed by estimates."""
        return self.partial.usage


class ResponseStream(ResponseView[AnyStreamEvent], Stream[AnyStreamEvent, AgentResponse]):
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

    @override
    def _receive(self, events: Sequence[Any]) -> Iterable[Any]:
        return self._observe(events)

    def text_stream(self) -> Iterator[str]:
        """Only the text, piece by piece."""
        for event in self:
            if event.type == "text_delta" and event.text:
                yield event.text


class AsyncResponseStream(ResponseView[AnyStreamEvent], AsyncStream[AnyStreamEvent, AgentResponse]):
    """Iterate over it with `async for`, or use it in an `async with` block. There is nothing to await first."""

    @override
    def _receive(self, events: Sequence[Any]) -> Iterable[Any]:
        return self._observe(events)

    async def text_stream(self) -> AsyncIterator[str]:
        """Only the text, piece by piece."""
        async for event in self:
            if event.type == "text_delta" and event.text:
                yield event.text

    async def result(self) -> AgentResponse:
        """The same as `collect`, as the agent loop's stream protocol calls it."""
        return await self.collect()
