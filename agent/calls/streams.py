"""Streams of responses and typed values.

Leaving the loop closes the stream and its connection; a closed stream cannot be resumed. The content received so far
stays available as a response without a stop reason, whose usage is completed by estimates and marked as `estimated`.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeAlias

from pydantic_core import from_json
from typing_extensions import TypeVar, override

from .. import errors
from ..engine.drivers.sync import SyncRun
from ..engine.stream import AsyncStream, Stream, StreamBase
from ..models.token_estimates import StreamTokenCounter
from ..types import AgentResponse, AnyStreamEvent, Fold, Part, StreamEvent, ToolCall, Usage
from ..types._base import is_finite
from ..types.response import OutputT

if TYPE_CHECKING:
    from ..engine.drivers.asyncio import AioRun


E = TypeVar("E")

Settle: TypeAlias = Callable[[AgentResponse, StreamTokenCounter], AgentResponse]
"""Adds estimated usage and cost to a response that did not arrive completely."""

Finish: TypeAlias = Callable[[AgentResponse], AgentResponse]
"""Completes a response that has arrived."""


@dataclass(frozen=True, slots=True)
class StartedResponse:
    """A streaming call that was started."""

    run: SyncRun | AioRun
    settle: Settle
    finish: Finish


class ResponseView(StreamBase[E, AgentResponse[OutputT]], Generic[E, OutputT]):
    """The received part of a response.

    Args:
        start: Starts the call.
        scope: See `StreamBase`.
    """

    def __init__(self, start: Callable[[], StartedResponse], scope: Callable[[Any], Any] | None = None) -> None:
        super().__init__(scope)
        self.start = start
        self._fold = Fold()
        self._received = StreamTokenCounter()
        self._has_begun = False
        self._settled: AgentResponse[OutputT] | None = None
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
    def _finish(self, result: AgentResponse) -> AgentResponse[OutputT]:
        assert self._started is not None
        return self._started.finish(result)

    @property
    def partial(self) -> AgentResponse[OutputT]:
        """The response received so far. It has no `stop_reason` before the stream ends."""
        return self._result or self._settle() or self._fold.partial()

    def _settle(self) -> AgentResponse[OutputT] | None:
        """Settle a stream that was left or failed; None if it is still open or nothing has arrived."""
        if self._settled is None and self._closed and self._has_begun and self._started is not None:
            self._settled = self._started.settle(self._fold.partial(), self._received)
        return self._settled

    @property
    def response(self) -> AgentResponse[OutputT]:
        """The response. Raises the failure of a stream that failed, and an error while the stream goes on.

        If the stream was left or aborted, this is the response received so far, without a `stop_reason`.
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
        """The tool calls that are complete."""
        return self.partial.tool_calls

    @property
    def usage(self) -> Usage | None:
        """The usage reported so far, completed by estimates once the stream is over."""
        return self.partial.usage


class ResponseStream(ResponseView[AnyStreamEvent, OutputT], Stream[AnyStreamEvent, AgentResponse[OutputT]]):
    """A stream of events. Iterate over it, or use it in a `with` block.

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
        """Iterate over the text only."""
        for event in self:
            if event.type == "text_delta" and event.text:
                yield event.text


class AsyncResponseStream(ResponseView[AnyStreamEvent, OutputT], AsyncStream[AnyStreamEvent, AgentResponse[OutputT]]):
    """Iterate over it with `async for`, or use it in an `async with` block. No `await` is needed before."""

    @override
    def _receive(self, events: Sequence[Any]) -> Iterable[Any]:
        return self._observe(events)

    async def text_stream(self) -> AsyncIterator[str]:
        """Iterate over the text only."""
        async for event in self:
            if event.type == "text_delta" and event.text:
                yield event.text

    async def result(self) -> AgentResponse[OutputT]:
        """Return the same as `collect`, under the name of the agent loop's stream protocol."""
        return await self.collect()


_LONG_TEXT = 16_384
_NOTHING: Any = object()


class Partials:
    """Parses a value from text that arrives in pieces.

    Each parse starts at the first character, so it waits until the text has grown by a 256th, or by a 16th if it is
    long: short values are parsed at every piece, and long ones do not keep an event loop busy.

    Args:
        unwrap: Converts a partial value to the caller's schema.
        restore: Converts the complete value to the caller's schema.
    """

    def __init__(self, unwrap: Callable[[Any], Any], restore: Callable[[Any], Any]) -> None:
        self._unwrap = unwrap
        self._restore = restore
        self._last: Any = _NOTHING
        self._begin(None)

    def _begin(self, index: int | None) -> None:
        self._index = index
        self._pieces: list[str] = []
        self._size = self._read = 0

    def feed(self, event: StreamEvent) -> Any:
        """Return the value so far if it has changed, else `Partials.NOTHING`."""
        if event.type == "restart":
            self._begin(None)
        if event.type != "text_delta" or not event.text:
            return _NOTHING
        if event.index != self._index:  # a new text block: the previous one preceded the value
            self._begin(event.index)
        self._pieces.append(event.text)
        self._size += len(event.text)
        share = 256 if self._read < _LONG_TEXT else 16
        return self._parse(self._unwrap) if self._size - self._read > self._read // share else _NOTHING

    def end(self, response: AgentResponse) -> Any:
        """Return the complete value if it differs from the last one."""
        return _NOTHING if response.output is None else self._parse(self._restore)

    NOTHING = _NOTHING

    def _parse(self, convert: Callable[[Any], Any]) -> Any:
        self._read = self._size
        text = "".join(self._pieces)
        self._pieces = [text]
        value = _value_in(text)
        return _NOTHING if value is _NOTHING else self._new(convert(value))

    def _new(self, value: Any) -> Any:
        if value is None or (self._last is not _NOTHING and value == self._last):
            return _NOTHING
        self._last = value
        return value


def _value_in(text: str) -> Any:
    value = _parse_partial(text)
    return value if is_finite(value) else _NOTHING


def _parse_partial(text: str) -> Any:
    """Parse the complete or partial JSON value in a text."""
    start = _start(text)
    try:
        return from_json(text[start:], allow_partial="trailing-strings", allow_inf_nan=False)
    except ValueError:
        pass
    try:
        return json.JSONDecoder().raw_decode(text, start)[0]  # the value is complete, and other text follows
    except (ValueError, RecursionError):
        return _NOTHING


def _start(text: str) -> int:
    """Return the position of the value: the first bracket, if other text precedes it."""
    found = [position for position in (text.find("{"), text.find("[")) if position >= 0]
    return min(found) if found and text.lstrip()[:1] not in '"-0123456789' else 0


# Any: a partial value may lack every field, so it has no type that is both right and useful.
class JsonView(ResponseView[Any, OutputT]):
    """The received part of a typed value."""

    def __init__(self, start: Callable[[], StartedResponse], partials: Partials) -> None:
        super().__init__(start)
        self._partials = partials

    @override
    def _receive(self, events: Sequence[Any]) -> Iterator[Any]:
        for event in self._observe(events):
            if (value := self._partials.feed(event)) is not _NOTHING:
                yield value

    @override
    def _last_events(self) -> Iterator[Any]:
        assert self._result is not None
        if (value := self._partials.end(self._result)) is not _NOTHING:
            yield value

    @property
    def output(self) -> OutputT:
        """The validated value, available at the end of the stream; None if the model called a tool."""
        if self._result is None and self._error is None and self._closed:
            raise errors.ConfigurationError(
                "The stream was closed before its end, so there is no output.",
                field="output",
                fix="Iterate to the end first, or call collect(). The part that was received is in `response`.",
            )
        return self._outcome().output


class JsonStream(JsonView[OutputT], Stream[Any, AgentResponse[OutputT]]):
    """A stream of events. Iterate over it, or use it in a `with` block.

    ```python
    from pydantic import BaseModel

    from agent import Agent


    class City(BaseModel):
        name: str
        people: int


    stream = Agent("scripted:echo").stream_json("Which city?", schema=City)
    for partial in stream:
        print(partial)  # {}, {"name": ""}, {"name": "exam"} …
    assert isinstance(stream.output, City)
    ```
    """


class AsyncJsonStream(JsonView[OutputT], AsyncStream[Any, AgentResponse[OutputT]]):
    """Iterate over it with `async for`, or use it in an `async with` block. No `await` is needed before."""
