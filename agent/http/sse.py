"""Incremental decoder for server-sent events.

Chunks may be cut anywhere, even inside a character or between CR and LF; the payloads are the same.
"""

from __future__ import annotations

from ..engine.wire import MAX_EVENT_BYTES

_BOM = b"\xef\xbb\xbf"
_COST_OF_A_LINE = 40
"""Memory overhead of one buffered line in bytes."""


class EventTooLong(ValueError):
    """One event exceeds the size limit."""


class SseDecoder:
    """Splits a byte stream into events. `feed` returns the data of each complete event.

    Comments, ids, event names and retry hints are skipped. An event without its final blank line is not returned;
    `pending` reports it.
    """

    __slots__ = ("_buffered", "_buffered_size", "_data", "_data_size", "_skip_lf", "_started", "limit")

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self.limit: int = max_event_bytes
        self._buffered: list[bytes] = []
        """Unparsed chunks, kept separate so that a long line is not copied once per chunk."""
        self._buffered_size = 0
        self._data: list[bytes] = []
        """Data lines of the current event, if it is parsed line by line."""
        self._data_size = 0
        self._skip_lf = False
        """Whether the last byte was a CR, so that a following LF belongs to it."""
        self._started = False

    @property
    def pending(self) -> bool:
        """Whether part of an unfinished event is buffered. Blank lines and comments do not count."""
        if self._data:
            return True
        return any(line and line[:1] != b":" for line in b"".join(self._buffered).split(b"\n"))

    @property
    def idle(self) -> bool:
        """Whether the next byte starts a new event."""
        return self._started and not (self._buffered or self._data or self._skip_lf)

    def feed(self, chunk: bytes) -> list[bytes]:
        events = self._split_plain(chunk)
        if events is not None:
            return events
        if self._skip_lf and chunk:
            self._skip_lf = False
            if chunk[0] == 0x0A:
                chunk = chunk[1:]
        if b"\r" in chunk:
            self._skip_lf = chunk[-1] == 0x0D
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        if b"\n" not in chunk:
            self._buffer(chunk)
            return []
        buffer = b"".join((*self._buffered, chunk)) if self._buffered else chunk
        searched = max(0, self._buffered_size - 1)
        self._buffered.clear()
        self._buffered_size = 0
        if not self._started:
            self._started = True
            buffer = buffer.removeprefix(_BOM)
            searched = 0
        return self._parse_lines(buffer) if self._data else self._parse_blocks(buffer, searched)

    def _split_plain(self, chunk: bytes) -> list[bytes] | None:
        """Fast path for events of one data line each, which most vendors send. None for other chunks."""
        start = self._buffered[0] if self._buffered else chunk
        blank = b"\r\n\r\n" if b"\r" in chunk else b"\n\n"
        end = chunk.rfind(blank)
        if start[:6] != b"data: " or end < 0 or self._data:
            return None
        whole, rest = chunk[:end], chunk[end + len(blank) :]
        if self._buffered:
            whole = b"".join((*self._buffered, whole))
        events = whole[6:].split(blank + b"data: ")
        newlines = (len(events) - 1) * 2
        if whole.count(b"\n") != newlines or (len(blank) == 4 and whole.count(b"\r") != newlines):
            return None  # other fields, or mixed line ends
        if len(whole) > self.limit or (rest and (b"\n" in rest or b"\r" in rest)):
            return None
        self._buffered.clear()
        self._buffered_size = 0
        self._started = True
        self._skip_lf = False
        if rest:
            self._buffer(rest)
        return events

    def _buffer(self, rest: bytes) -> None:
        if rest:
            self._buffered.append(rest)
            self._buffered_size += len(rest)
            self._check_size(self._buffered_size + self._data_size)

    def _check_size(self, size: int) -> None:
        if size > self.limit:
            self._buffered.clear()  # the error must not keep megabytes alive
            self._data.clear()
            raise EventTooLong(f"a stream event is longer than {self.limit} bytes")

    def _parse_blocks(self, buffer: bytes, searched: int) -> list[bytes]:
        """Split off whole events. The buffer up to `searched` has no event end and is not searched again."""
        if b"data" not in buffer:  # only blank lines and comments, perhaps millions
            end = buffer.rfind(b"\n\n")
            self._buffer(buffer if end < 0 else buffer[end + 2 :])
            return []
        first = buffer.find(b"\n\n", searched)
        if first < 0:
            return self._parse_lines(buffer)  # kept as one buffer, it would be copied with every chunk
        *blocks, rest = (buffer[:first], *buffer[first + 2 :].split(b"\n\n"))
        payloads: list[bytes] = []
        for block in blocks:
            if len(block) > self.limit:
                self._check_size(len(block))
            # Fast path: one data line, perhaps after an `event:` line.
            start = block.find(b"\n") + 1 if block[:6] == b"event:" else 0
            if block[start : start + 6] == b"data: " and block.find(b"\n", start) < 0:
                payloads.append(block[start + 6 :])
            else:
                for line in block.split(b"\n"):
                    self._parse_line(line, payloads)
                self._parse_line(b"", payloads)
        self._buffer(rest)
        return payloads

    def _parse_lines(self, buffer: bytes) -> list[bytes]:
        payloads: list[bytes] = []
        *lines, rest = buffer.split(b"\n")
        for line in lines:
            self._parse_line(line, payloads)
        self._buffer(rest)
        return payloads

    def _parse_line(self, line: bytes, payloads: list[bytes]) -> None:
        if not line:
            if self._data:
                payloads.append(self._data[0] if len(self._data) == 1 else b"\n".join(self._data))
                self._data.clear()
                self._data_size = 0
        elif line[:5] == b"data:" or line == b"data":
            self._data.append(line[6:] if line[5:6] == b" " else line[5:])
            self._data_size += len(line) + _COST_OF_A_LINE
            self._check_size(self._data_size)
