"""What `stream_json` and `astream_json` return: a value while it arrives, and the typed one it becomes.

What is iterated over is plain JSON. Half a value has the form of the schema, but not all of its parts, strings and
numbers may break off, and nothing has been checked. The typed value is in `output` when the stream has ended, or there
is an error.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from pydantic_core import from_json
from typing_extensions import override

from . import errors
from .engine.stream import AsyncStream, Stream
from .streams import ResponseView, StartedResponse
from .types import AgentResponse, StreamEvent

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


class JsonView(ResponseView[Any]):
    """What has arrived of a value."""

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
    def output(self) -> Any:
        """The value as its schema or type wants it, at the end of the stream; None if the model called a tool."""
        if self._result is None and self._error is None and self._closed:
            raise errors.ConfigurationError(
                "The stream did not come to its end, so there is no output.",
                field="output",
                fix="Iterate to the end first, or call collect(). What had come is in response.",
            )
        return self._outcome().output


class JsonStream(JsonView, Stream[Any, AgentResponse]):
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


class AsyncJsonStream(JsonView, AsyncStream[Any, AgentResponse]):
    """Iterate over it with `async for`, or use it in an `async with` block. There is nothing to await first."""
