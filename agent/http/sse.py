"""Server-sent events, pushed as bytes and returned as payloads.

A decoder is fed whatever the network brings, cut anywhere, even inside a character or between CR and LF, and returns
the same payloads for every way of cutting. It knows no vendor and no JSON.
"""

from __future__ import annotations

from ..engine.wire import MAX_EVENT_BYTES

_BOM = b"\xef\xbb\xbf"
_COST_OF_A_LINE = 40
"""Bytes that a line of an event takes beside its own."""


class EventTooLong(ValueError):
    """One event is longer than allowed."""


class SseDecoder:
    """`feed(bytes)` returns the data of each finished event; comments, ids, names and retry hints are passed over.

    An event that was begun but not ended by a blank line is not returned: `pending` says so.
    """

    __slots__ = ("_data", "_data_size", "_held", "_held_size", "_skip_lf", "_started", "limit")

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self.limit = max_event_bytes
        self._held: list[bytes] = []
        """Bytes not looked at yet, in the pieces they came in: a long line must not be copied once per piece."""
        self._held_size = 0
        self._data: list[bytes] = []
        """The data lines of the current event, where lines were taken one by one."""
        self._data_size = 0
        self._skip_lf = False
        """The last byte was a CR: a LF that follows belongs to it."""
        self._started = False

    @property
    def pending(self) -> bool:
        """Whether bytes of an unfinished event are held. Blank lines and comments are none."""
        if self._data:
            return True
        return any(line and line[:1] != b":" for line in b"".join(self._held).split(b"\n"))

    @property
    def idle(self) -> bool:
        """Whether the next byte begins a new event."""
        return self._started and not (self._held or self._data or self._skip_lf)

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
            self._hold(chunk)
            return []
        buffer = b"".join((*self._held, chunk)) if self._held else chunk
        searched = max(0, self._held_size - 1)
        self._held.clear()
        self._held_size = 0
        if not self._started:
            self._started = True
            buffer = buffer.removeprefix(_BOM)
            searched = 0
        # Whole events can be split off at once, unless one was begun line by line.
        return self._take_lines(buffer) if self._data else self._take_blocks(buffer, searched)

    def _split_plain(self, chunk: bytes) -> list[bytes] | None:
        """Split off events of one data line each, as most vendors send them. None for other chunks."""
        start = self._held[0] if self._held else chunk
        blank = b"\r\n\r\n" if b"\r" in chunk else b"\n\n"
        end = chunk.rfind(blank)
        if start[:6] != b"data: " or end < 0 or self._data:
            return None
        whole, rest = chunk[:end], chunk[end + len(blank) :]
        if self._held:
            whole = b"".join((*self._held, whole))
        events = whole[6:].split(blank + b"data: ")
        newlines = (len(events) - 1) * 2
        if whole.count(b"\n") != newlines or (len(blank) == 4 and whole.count(b"\r") != newlines):
            return None  # there are other lines, or other line ends
        if len(whole) > self.limit or (rest and (b"\n" in rest or b"\r" in rest)):
            return None
        self._held.clear()
        self._held_size = 0
        self._started = True
        self._skip_lf = False
        if rest:
            self._hold(rest)
        return events

    def _hold(self, rest: bytes) -> None:
        if rest:
            self._held.append(rest)
            self._held_size += len(rest)
            self._check(self._held_size + self._data_size)

    def _check(self, size: int) -> None:
        if size > self.limit:
            self._held.clear()  # whoever keeps the error must not keep the megabytes
            self._data.clear()
            raise EventTooLong(f"an event of the stream is longer than {self.limit} bytes")

    def _take_blocks(self, buffer: bytes, searched: int) -> list[bytes]:
        """Split off whole events. None ends before `searched`: megabytes are not searched twice."""
        if b"data" not in buffer:  # blank lines and comments, of which there may be millions
            end = buffer.rfind(b"\n\n")
            self._hold(buffer if end < 0 else buffer[end + 2 :])
            return []
        first = buffer.find(b"\n\n", searched)
        if first < 0:
            return self._take_lines(buffer)  # held as they are, they would be copied with every line that comes
        *blocks, rest = (buffer[:first], *buffer[first + 2 :].split(b"\n\n"))
        payloads: list[bytes] = []
        for block in blocks:
            if len(block) > self.limit:
                self._check(len(block))
            # A line of data, perhaps after one that names the event: what vendors nearly always send.
            start = block.find(b"\n") + 1 if block[:6] == b"event:" else 0
            if block[start : start + 6] == b"data: " and block.find(b"\n", start) < 0:
                payloads.append(block[start + 6 :])
            else:
                for line in block.split(b"\n"):
                    self._take_line(line, payloads)
                self._take_line(b"", payloads)
        self._hold(rest)
        return payloads

    def _take_lines(self, buffer: bytes) -> list[bytes]:
        payloads: list[bytes] = []
        *lines, rest = buffer.split(b"\n")
        for line in lines:
            self._take_line(line, payloads)
        self._hold(rest)
        return payloads

    def _take_line(self, line: bytes, payloads: list[bytes]) -> None:
        if not line:
            if self._data:
                payloads.append(self._data[0] if len(self._data) == 1 else b"\n".join(self._data))
                self._data.clear()
                self._data_size = 0
        elif line[:5] == b"data:" or line == b"data":
            self._data.append(line[6:] if line[5:6] == b" " else line[5:])
            self._data_size += len(line) + _COST_OF_A_LINE
            self._check(self._data_size)
