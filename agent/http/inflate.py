"""Compressed answers, unpacked piece by piece and never beyond what was agreed.

We ask for plain bytes; a proxy may compress all the same. A few kilobytes can unpack to gigabytes, so the ratio is
watched while unpacking, not afterwards.
"""

from __future__ import annotations

import zlib
from typing import Any

from .. import errors

MAX_RATIO = 100
_SMALL = 64 * 1024
"""Below this size no ratio is suspicious."""


class Inflater:
    """Unpacks gzip and deflate."""

    __slots__ = ("_encoding", "_packed", "_unpacked", "_zlib")

    def __init__(self, encoding: str) -> None:
        self._encoding = encoding
        self._zlib: Any = zlib.decompressobj(zlib.MAX_WBITS | 32)
        self._packed = 0
        self._unpacked = 0

    def feed(self, chunk: bytes) -> bytes:
        self._packed += len(chunk)
        data = self._unpack(chunk)
        while self._zlib.eof and (rest := self._zlib.unused_data):
            # gzip may be several packages in a row: some servers close one with every flush
            self._zlib = zlib.decompressobj(zlib.MAX_WBITS | 32)
            data += self._unpack(rest)
        return data

    def _unpack(self, chunk: bytes) -> bytes:
        limit = max(_SMALL, self._packed * MAX_RATIO)
        try:
            # One more than allowed tells that there is more; and zero would mean no limit.
            data: bytes = self._zlib.decompress(chunk, limit - self._unpacked + 1)
        except zlib.error as error:
            raise errors.ProtocolError(f"the answer's {self._encoding} encoding is broken") from error
        self._unpacked += len(data)
        if self._unpacked > limit or self._zlib.unconsumed_tail:
            raise errors.ProtocolError(f"the answer unpacks to more than {MAX_RATIO} times its size", retryable=False)
        return data

    def finish(self) -> bytes:
        """What is left at the end, once; a stream that was cut is an error."""
        if self._zlib is None:
            return b""
        data: bytes = self._zlib.flush()
        if self._packed and not self._zlib.eof:
            raise errors.ProtocolError(f"the answer's {self._encoding} encoding was cut off")
        self._zlib = None
        return data


def inflater_for(encoding: str | None) -> Inflater | None:
    """An inflater for a Content-Encoding header; None if the bytes are plain."""
    name = (encoding or "identity").strip().lower()
    if name in ("", "identity"):
        return None
    if name in ("gzip", "x-gzip", "deflate"):
        return Inflater(name)
    raise errors.ProtocolError(f"the answer came in the encoding {name!r}, which was not asked for", retryable=False)
