"""What a connection saw of its server: its last words, how it ended. For error messages, so bounded and harmless.

A server's words may hold what it was given in confidence, and escape sequences for the terminal they end up on.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_KEPT = 4_096
_SHORTEST_SECRET = 6
_COLOURS = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")


class Notes:
    """Written by a transport, read by whoever explains a failure."""

    def __init__(self, label: str, secrets: Iterable[str] = ()) -> None:
        self.label = label
        self._secrets = sorted({each for each in secrets if len(each) >= _SHORTEST_SECRET}, key=len, reverse=True)
        self.clear()

    def clear(self) -> None:
        """Before another try."""
        self.exit_code: int | None = None
        self.reason: str | None = None
        """Why the connection ended, where the transport knows."""
        self.heard = False
        """Whether the server ever said something that is a message."""
        self.babble: str | None = None
        """The first line on its output that was no message."""
        self._stderr = bytearray()

    def hear_stderr(self, data: bytes) -> None:
        self._stderr += data
        del self._stderr[:-_KEPT]

    def clean(self, text: str) -> str:
        """Without control characters, and without what was passed in confidence."""
        for secret in self._secrets:
            text = text.replace(secret, "***")
        text = _COLOURS.sub("", text)
        return "".join(each if each.isprintable() or each == "\n" else " " for each in text)

    @property
    def last_words(self) -> str:
        """The end of what it wrote to stderr."""
        return self.clean(self._stderr.decode("utf-8", "replace")).strip()[-2_000:]

    def epitaph(self) -> str:
        """How it ended, and what it said last."""
        parts: list[str] = []
        if self.reason is not None:
            parts.append(self.reason)
        elif self.exit_code is not None:
            parts.append(f"it ended with status {self.exit_code}")
        if self.babble is not None and not self.heard:
            parts.append(f"it wrote what is no message to its output: {self.babble!r}")
        if words := self.last_words:  # the last line; the others are for those who look for them
            parts.append(f"it last said: {words.rpartition(chr(10))[2].strip()[-300:]}")
        return "; ".join(parts)
