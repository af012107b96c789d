"""What somebody types, or what a pipe brings: texts of one line or several, one after the other.

A line that ends in a backslash goes on in the next one. A text that begins with three quotes goes on to the next three.
Where there is `readline`, lines can be edited and the last ones come back with the arrow keys, in later chats, too; and
what is pasted is one text, however many lines it has.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol

from typing_extensions import override

from ..terminal import has_colours, note

QUOTES = '"""'
_KEPT = 1000
_FIRST, _NEXT = "> ", ". "

Complete = Callable[[str], list[str]]
"""From the line so far to the lines it could become."""


class Lines(Protocol):
    """Where lines come from."""

    def line(self, prompt: str) -> str:
        """The next line without its end. `EOFError` if there is none, `KeyboardInterrupt` on Ctrl-C."""
        ...


def read_text(lines: Lines) -> str:
    """The next text. `EOFError` if nothing comes any more; a text that the end of the input cuts off is whole."""
    first = lines.line(_FIRST)
    if first.lstrip().startswith(QUOTES):
        return _block(first.lstrip().removeprefix(QUOTES), lines)
    text = first
    while text.endswith("\\") and not text.endswith("\\\\"):
        try:
            text = f"{text[:-1]}\n{lines.line(_NEXT)}"
        except EOFError:
            return text[:-1]
    return text


def _block(opening: str, lines: Lines) -> str:
    held = [opening] if opening.strip() else []
    if held and opening.rstrip().endswith(QUOTES):
        return opening.rstrip().removesuffix(QUOTES)
    while True:
        try:
            line = lines.line(_NEXT)
        except EOFError:
            return "\n".join(held)
        if line.rstrip().endswith(QUOTES):
            last = line.rstrip().removesuffix(QUOTES)
            return "\n".join([*held, last] if last else held)
        held.append(line)


class Piped:
    """Lines of a file or a pipe. Bytes that are no UTF-8 become replacement characters."""

    def __init__(self, source: Iterable[bytes] | Iterable[str]) -> None:
        self._lines: Iterator[Any] = iter(source)

    def line(self, prompt: str) -> str:
        line = next(self._lines, None)
        if line is None:
            raise EOFError
        text = line.decode("utf-8", "replace") if isinstance(line, bytes) else str(line)
        return text.rstrip("\r\n")


class Keyboard:
    """Lines that somebody types.

    Args:
        history: The file in which the last lines are kept; only its owner can read it. None for none.
        complete: What the tab key offers.
    """

    def __init__(self, history: Path | None = None, complete: Complete | None = None) -> None:
        self._readline = _readline()
        self._history = history
        self._remembered = 0
        if self._readline is not None:
            self._remember(self._readline)
            if not _is_libedit(self._readline) and os.environ.get("TERM", "dumb") != "dumb":
                # Without it, the first line of what is pasted would be sent before the second is there.
                self._readline.parse_and_bind("set enable-bracketed-paste on")
            if complete is not None:
                _offer(self._readline, complete)

    def line(self, prompt: str) -> str:
        while True:
            try:
                line = input(self._shown(prompt))
            except UnicodeDecodeError:
                note("That was no UTF-8, and is left out.")
                continue
            self._keep()
            return line.encode("utf-8", "surrogateescape").decode("utf-8", "replace")

    def answer(self, question: str) -> str:
        """A line that is no part of the history, and is typed after the question. `EOFError` if that is not certain."""
        if not discard_input():
            raise EOFError
        if self._readline is None or not hasattr(self._readline, "set_auto_history"):
            return input(question)
        self._readline.set_auto_history(False)
        try:
            return input(question)
        finally:
            self._readline.set_auto_history(True)

    @property
    def has_begun(self) -> bool:
        """Whether there is something in the line that was interrupted, as far as that is known."""
        return self._readline is not None and bool(self._readline.get_line_buffer())

    def _shown(self, prompt: str) -> str:
        if not has_colours(sys.stdout):
            return prompt
        if self._readline is None:
            return f"\x1b[1m{prompt}\x1b[0m"
        # readline counts columns, and is told which characters take none.
        return f"\x01\x1b[1m\x02{prompt}\x01\x1b[0m\x02"

    def _remember(self, readline: Any) -> None:
        readline.clear_history()
        if self._history is None:
            return
        # A chat without its history is better than none.
        with contextlib.suppress(OSError):
            self._history.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            os.close(os.open(self._history, os.O_RDWR | os.O_CREAT, 0o600))
            os.chmod(self._history, 0o600)
            readline.read_history_file(self._history)
            readline.set_history_length(_KEPT)
        self._remembered = readline.get_current_history_length()

    def _keep(self) -> None:
        """The line that was just read, at once: the chat may be killed."""
        if self._readline is None or self._history is None:
            return
        before, self._remembered = self._remembered, self._readline.get_current_history_length()
        if self._remembered == before:  # an empty line, or the same as before
            return
        with contextlib.suppress(OSError):
            if hasattr(self._readline, "append_history_file"):
                self._readline.append_history_file(1, self._history)
            else:
                self._readline.write_history_file(self._history)
            os.chmod(self._history, 0o600)


class Prompted(Keyboard):
    """As a keyboard, with the prompt on standard error, for when standard output goes elsewhere. It edits nothing."""

    def __init__(self) -> None:
        self._readline = self._history = None

    @override
    def _shown(self, prompt: str) -> str:
        sys.stderr.write(prompt)
        sys.stderr.flush()
        return ""

    @override
    def answer(self, question: str) -> str:
        if not discard_input():
            raise EOFError
        return input(self._shown(question))


def discard_input() -> bool:
    """Discard what was typed ahead. False if that is not possible, as where standard input is no terminal."""
    try:
        import termios
    except ImportError:
        return _discard_console_input()
    try:
        termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)
    except (termios.error, OSError, ValueError):  # no terminal, no file, or a closed one
        return False
    return True


def _discard_console_input() -> bool:
    try:
        import msvcrt
    except ImportError:
        return False
    while msvcrt.kbhit():  # type: ignore[attr-defined]  # only on Windows
        msvcrt.getwch()  # type: ignore[attr-defined]
    return True


def _readline() -> Any:
    try:
        import readline
    except ImportError:  # Windows, and some builds of Python
        return None
    return readline


def _offer(readline: Any, complete: Complete) -> None:
    def offered(text: str, state: int) -> str | None:
        try:
            found = complete(readline.get_line_buffer())
        except Exception:  # whatever goes wrong, a tab key must not end a chat
            return None
        return found[state] if state < len(found) else None

    readline.set_completer_delims("")
    readline.set_completer(offered)
    readline.parse_and_bind("bind ^I rl_complete" if _is_libedit(readline) else "tab: complete")


def _is_libedit(readline: Any) -> bool:
    """Whether it is the other library of that name, as on macOS."""
    return "libedit" in (readline.__doc__ or "")
