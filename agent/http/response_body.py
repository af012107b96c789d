"""A buffered response body, kept within its limit."""

from __future__ import annotations

from collections.abc import Mapping
from io import BytesIO

from .. import errors


class Collector:
    """Collects the pieces of a body and raises when they exceed the limit."""

    __slots__ = ("_buffer", "_first", "_max_bytes", "_size")

    def __init__(self, headers: Mapping[str, str], max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._first = b""
        self._buffer: BytesIO | None = None
        """The whole body once it has come in several pieces: joining a list would need twice the memory."""
        self._size = 0
        announced = headers.get("content-length", "")
        if announced.isdigit() and int(announced) > max_bytes:
            raise self._too_large()

    def add(self, piece: bytes) -> None:
        self._size += len(piece)
        if self._size > self._max_bytes:
            self._first, self._buffer = b"", None  # the error must not keep the megabytes alive
            raise self._too_large()
        if self._buffer is not None:
            self._buffer.write(piece)
        elif self._first:
            self._buffer = BytesIO()
            self._buffer.write(self._first)
            self._buffer.write(piece)
        else:
            self._first = piece

    def finish(self) -> bytes:
        return self._first if self._buffer is None else self._buffer.getvalue()

    def _too_large(self) -> errors.ProtocolError:
        return errors.ProtocolError(f"the answer is larger than {self._max_bytes} bytes", retryable=False)
