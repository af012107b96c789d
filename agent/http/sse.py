"""Incremental decoder for server-sent events.

Chunks may be cut anywhere, even inside a character or between CR and LF; the payloads are the same.
"""

from __future__ import annotations

from ..engine.wire import MAX_EVENT_BYTES

_BOM = b"\xef\xbb\xbf"
_COST_OF_A_LINE = 40
"""Memory overhead of one buffered line in bytes."""


class FramingError(ValueError):
    """The bytes of a stream cannot be split into events."""


class EventTooLong(FramingError):
    """One event exceeds the size limit."""


class SseDecoder:
    """Splits a byte stream into events. `feed` returns the data of each complete event.

    Comments, ids, event names and retry hints are skipped. An event without its final blank line is not returned;
    `pending` reports it. The limit applies to the data lines of an event.
    """

    __slots__ = ("_data", "_data_size", "_is_too_long", "_line", "_line_size", "_skip_lf", "_started", "limit")

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self.limit: int = max_event_bytes
        self._line: list[bytes] = []
        """Pieces of the unfinished line, kept separate so that a long line is not copied once per chunk."""
        self._line_size = 0
        self._data: list[bytes] = []
        """Data lines of the current event."""
        self._data_size = 0
        self._skip_lf = False
        """Whether the last byte was a CR, so that a following LF belongs to it."""
        self._started = False
        self._is_too_long = False
        """Whether the current event is too long, and the events before it were returned first."""

    @property
    def pending(self) -> bool:
        """Whether part of an unfinished event is buffered. Blank lines and comments do not count."""
        return bool(self._data) or self._is_too_long or (bool(self._line) and self._line[0][:1] != b":")

    def feed(self, chunk: bytes) -> list[bytes]:
        if self._is_too_long:
            self._is_too_long = False
            raise self._too_long()
        if self._skip_lf and chunk:
            self._skip_lf = False
            if chunk[0] == 0x0A:
                chunk = chunk[1:]
        if b"\r" in chunk:
            self._skip_lf = chunk[-1] == 0x0D
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        if not self._started:
            chunk = self._take_line() + chunk
            self._started = not _BOM.startswith(chunk)
            chunk = chunk.removeprefix(_BOM) if self._started else chunk
        payloads: list[bytes] = []
        try:
            self._parse(chunk, payloads)
        except EventTooLong:
            if not payloads:
                raise
            self._is_too_long = True
        return payloads

    def _parse(self, chunk: bytes, payloads: list[bytes]) -> None:
        """Append the payloads of the events that end in a chunk, whose line ends are LF."""
        end = chunk.rfind(b"\n")
        if end >= 0:
            lines = self._take_line() + chunk[:end]
            if self._data or b"data" in lines:  # otherwise only blank lines and comments, perhaps millions
                self._parse_lines(lines, payloads)
        self._buffer(chunk[end + 1 :])

    def _parse_lines(self, lines: bytes, payloads: list[bytes]) -> None:
        data, limit = self._data, self.limit
        for line in lines.split(b"\n"):
            if line[:5] == b"data:" or line == b"data":
                if self._data_size + len(line) > limit:
                    raise self._too_long()
                data.append(line[6:] if line[5:6] == b" " else line[5:])
                self._data_size += len(line) + _COST_OF_A_LINE
            elif not line and data:
                payloads.append(data[0] if len(data) == 1 else b"\n".join(data))
                data.clear()
                self._data_size = 0

    def _buffer(self, piece: bytes) -> None:
        """Keep a piece of the unfinished line. Of other lines than data, the beginning is sufficient."""
        if self._line_size < 5:
            piece = self._take_line() + piece
        elif self._line[0][:5] != b"data:":
            return
        if not piece:
            return
        self._line.append(piece)
        self._line_size += len(piece)
        if self._line[0][:5] == b"data:" and self._data_size + self._line_size > self.limit:
            raise self._too_long()

    def _take_line(self) -> bytes:
        line = b"".join(self._line)
        self._line.clear()
        self._line_size = 0
        return line

    def _too_long(self) -> EventTooLong:
        """The error for an event beyond the limit, of which nothing is kept."""
        self._take_line()
        self._data.clear()
        self._data_size = 0
        return EventTooLong(f"a stream event is longer than {self.limit} bytes")
