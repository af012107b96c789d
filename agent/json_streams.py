"""What `stream_json` and `astream_json` return: a value while it arrives, and the typed one it becomes.

What is iterated over is plain JSON. Half a value has the form of the schema, but not all of its parts, strings and
numbers may break off, and nothing has been checked. The typed value is in `output` when the stream has ended, or there
is an error.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, Self

from pydantic_core import from_json

from . import errors
from .streams import AsyncResponseStream, ResponseStream
from .types import AgentResponse, StreamEvent, Usage

_SHARE = 256
_NOTHING: Any = object()


class Partials:
    """Text goes in piece by piece, and what it holds so far comes out whenever that has changed.

    Each reading begins at the first character, so it waits for a 256th of what has been read before: short values are
    read at every piece, and reading takes no more than 256 times as long as reading the whole value once.

    Args:
        unwrap: Makes what the caller's schema means of half a value.
        restore: Of a whole one.
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
        """The value so far, if it has changed; `Partials.NOTHING` otherwise."""
        if event.type == "restart":
            self._begin(None)
        if event.type != "text_delta" or not event.text:
            return _NOTHING
        if event.index != self._index:  # another block of text: words before the value, and now the value
            self._begin(event.index)
        self._pieces.append(event.text)
        self._size += len(event.text)
        return self._changed(self._unwrap) if self._size - self._read > self._read // _SHARE else _NOTHING

    def end(self, response: AgentResponse) -> Any:
        """The whole value, if it is not what was said last."""
        return _NOTHING if response.output is None else self._changed(self._restore)

    NOTHING = _NOTHING

    def _changed(self, meant: Callable[[Any], Any]) -> Any:
        self._read = self._size
        text = "".join(self._pieces)
        self._pieces = [text]
        value = _value_in(text)
        return _NOTHING if value is _NOTHING else self._new(meant(value))

    def _new(self, value: Any) -> Any:
        if value is None or (self._last is not _NOTHING and value == self._last):
            return _NOTHING
        self._last = value
        return value


def _value_in(text: str) -> Any:
    """What a text holds of a value, whatever stands around it."""
    start = _start(text)
    try:
        return from_json(text[start:], allow_partial="trailing-strings", allow_inf_nan=False)
    except ValueError:
        pass
    try:
        return json.JSONDecoder().raw_decode(text, start)[0]  # it has ended, and words or a code fence follow
    except (ValueError, RecursionError):
        return _NOTHING


def _start(text: str) -> int:
    """Where the value begins: at the first bracket, if there are words or a code fence before."""
    found = [position for position in (text.find("{"), text.find("[")) if position >= 0]
    return min(found) if found and text.lstrip()[:1] not in '"-0123456789' else 0


class _Typed:
    """What both kinds of stream know."""

    _stream: ResponseStream | AsyncResponseStream

    @property
    def response(self) -> AgentResponse:
        """The whole response, when the stream has ended."""
        return self._stream.response

    @property
    def output(self) -> Any:
        """The value as its schema or type wants it, when the stream has ended; None if the model called a tool."""
        response = self._stream.response
        if not self._stream.ended:
            raise errors.ConfigurationError(
                "The stream did not come to its end, so there is no output.",
                field="output",
                fix="Iterate to the end first, or call collect(). What had come is in response.",
            )
        return response.output

    @property
    def text(self) -> str:
        """The text that has arrived."""
        return self._stream.text

    @property
    def usage(self) -> Usage | None:
        return self._stream.usage

    def abort(self) -> None:
        """End the stream from anywhere. Whoever iterates gets Aborted."""
        self._stream.abort()


class JsonStream(_Typed):
    """Iterate over it, or use it in a `with` block.

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

    def __init__(self, stream: ResponseStream, partials: Partials) -> None:
        self._stream: ResponseStream = stream
        self._partials = partials

    def __iter__(self) -> Iterator[Any]:
        for event in self._stream:
            if (value := self._partials.feed(event)) is not _NOTHING:
                yield value
        if (value := self._partials.end(self._stream.response)) is not _NOTHING:
            yield value

    def collect(self) -> AgentResponse:
        """Read to the end, and return the response."""
        return self._stream.collect()

    def close(self) -> None:
        self._stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class AsyncJsonStream(_Typed):
    """Iterate over it with `async for`, or use it in an `async with` block. There is nothing to await first."""

    def __init__(self, stream: AsyncResponseStream, partials: Partials) -> None:
        self._stream: AsyncResponseStream = stream
        self._partials = partials

    def __aiter__(self) -> _Iteration:
        return _Iteration(self._stream, self._partials)

    async def collect(self) -> AgentResponse:
        """Read to the end, and return the response."""
        return await self._stream.collect()

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()


class _Iteration:
    """What `async for` holds. It is no generator, so that leaving the loop ends the stream at once."""

    __slots__ = ("_ended", "_events", "_partials", "_stream")

    def __init__(self, stream: AsyncResponseStream, partials: Partials) -> None:
        self._stream = stream
        self._events = aiter(stream)
        self._partials = partials
        self._ended = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        while not self._ended:
            try:
                value = self._partials.feed(await anext(self._events))
            except StopAsyncIteration:
                self._ended = True
                value = self._partials.end(self._stream.response)
            if value is not _NOTHING:
                return value
        raise StopAsyncIteration
