"""What a command tells the shell that called it.

The numbers are part of the interface: scripts go by them, and the guide to the command line lists them.
"""

from __future__ import annotations

OK = 0
FAILED = 1
"""The model or the vendor failed, or a check found a problem."""
USAGE = 2
"""Wrong options, or input that cannot be used. Nothing was sent."""
SETUP = 3
"""Something has to be installed or set first: a key, an extra, an engine."""
PARTLY = 4
"""Of a batch: some lines failed, and are in a file of their own."""
INTERRUPTED = 130
"""Ctrl-C."""
CUT_OFF = 141
"""Whoever read the output went away, as `head` does when it has enough."""


class Problem(Exception):
    """Ends a command with a message, advice, and an exit code. Printed as `error: …` and `fix: …`."""

    def __init__(self, message: str, *, fix: str | None = None, code: int = USAGE) -> None:
        super().__init__(message)
        self.message = message
        self.fix = fix
        self.code = code
