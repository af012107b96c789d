"""Input of a chat: lines from a keyboard or a pipe, and texts of several lines.

A line that ends in a backslash continues on the next line. A text that starts with three quotes ends at the next three.
With `readline`, lines can be edited, the history persists, and a multi-line paste is one text.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol

from typing_extensions import override

from ..terminal import has_colors, write_note

QUOTES = '"""'
_HISTORY_LENGTH = 1000
_PROMPT, _CONTINUATION = "> ", ". "

CompleteLine = Callable[[str], list[str]]
"""Returns the completions of a partial line."""


class LineSource(Protocol):
    def read_line(self, prompt: str) -> str:
        """Return the next line without its line break.

        Raises:
            EOFError: There is no more input.
            KeyboardInterrupt: Ctrl-C was pressed.
        """
        ...


def read_text(lines: LineSource) -> str:
    """Read the next text, of one or several lines. The end of input also ends a text."""
    text = lines.read_line(_PROMPT)
    if text.lstrip().startswith(QUOTES):
        return _read_block(text.lstrip().removeprefix(QUOTES), lines)
    while text.endswith("\\") and not text.endswith("\\\\"):
        try:
            text = f"{text[:-1]}\n{lines.read_line(_CONTINUATION)}"
        except EOFError:
            return text[:-1]
    return text


def _read_block(first: str, lines: LineSource) -> str:
    block = [first] if first.strip() else []
    if block and first.rstrip().endswith(QUOTES):
        return first.rstrip().removesuffix(QUOTES)
    while True:
        try:
            line = lines.read_line(_CONTINUATION)
        except EOFError:
            return "\n".join(block)
        if line.rstrip().endswith(QUOTES):
            last = line.rstrip().removesuffix(QUOTES)
            return "\n".join([*block, last] if last else block)
        block.append(line)


class PipedLines:
    """Lines of a file or a pipe. Invalid UTF-8 becomes replacement characters."""

    def __init__(self, source: Iterable[bytes] | Iterable[str]) -> None:
        self._lines: Iterator[Any] = iter(source)

    def read_line(self, prompt: str) -> str:
        line = next(self._lines, None)
        if line is None:
            raise EOFError
        text = line.decode("utf-8", "replace") if isinstance(line, bytes) else str(line)
        return text.rstrip("\r\n")


class Keyboard:
    """Lines typed at a terminal.

    Args:
        history: The file of the input history, readable only by its owner; None for no history.
        complete: The completion of the tab key.
    """

    def __init__(self, history: Path | None = None, complete: CompleteLine | None = None) -> None:
        self._readline = _import_readline()
        self._history = history
        self._history_length = 0
        if self._readline is not None:
            self._load_history(self._readline)
            if not _is_libedit(self._readline) and os.environ.get("TERM", "dumb") != "dumb":
                # Otherwise the first line of a multi-line paste would be sent on its own.
                self._readline.parse_and_bind("set enable-bracketed-paste on")
            if complete is not None:
                _install_completer(self._readline, complete)

    def read_line(self, prompt: str) -> str:
        while True:
            try:
                line = input(self._format_prompt(prompt))
            except UnicodeDecodeError:
                write_note("The input was not UTF-8 and is ignored.")
                continue
            self._append_history()
            return line.encode("utf-8", "surrogateescape").decode("utf-8", "replace")

    def ask(self, question: str) -> str:
        """Ask for a line that is not part of the history, and discard input typed before the question.

        Raises:
            EOFError: Earlier input cannot be discarded.
        """
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
    def has_partial_line(self) -> bool:
        """Whether the interrupted line contains text, as far as known."""
        return self._readline is not None and bool(self._readline.get_line_buffer())

    def _format_prompt(self, prompt: str) -> str:
        if not has_colors(sys.stdout):
            return prompt
        if self._readline is None:
            return f"\x1b[1m{prompt}\x1b[0m"
        # \x01 and \x02 exclude the escape sequences from readline's column count.
        return f"\x01\x1b[1m\x02{prompt}\x01\x1b[0m\x02"

    def _load_history(self, readline: Any) -> None:
        readline.clear_history()
        if self._history is None:
            return
        with contextlib.suppress(OSError):  # the chat works without its history
            self._history.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            os.close(os.open(self._history, os.O_RDWR | os.O_CREAT, 0o600))
            os.chmod(self._history, 0o600)
            readline.read_history_file(self._history)
            readline.set_history_length(_HISTORY_LENGTH)
        self._history_length = readline.get_current_history_length()

    def _append_history(self) -> None:
        """Store the last line immediately, because the chat can be killed."""
        if self._readline is None or self._history is None:
            return
        length, self._history_length = self._history_length, self._readline.get_current_history_length()
        if self._history_length == length:  # an empty line, or a repetition
            return
        with contextlib.suppress(OSError):
            if hasattr(self._readline, "append_history_file"):
                self._readline.append_history_file(1, self._history)
            else:
                self._readline.write_history_file(self._history)
            os.chmod(self._history, 0o600)


class PromptedLines(Keyboard):
    """A keyboard without line editing, with the prompt on standard error."""

    def __init__(self) -> None:
        self._readline = self._history = None

    @override
    def _format_prompt(self, prompt: str) -> str:
        sys.stderr.write(prompt)
        sys.stderr.flush()
        return ""

    @override
    def ask(self, question: str) -> str:
        if not discard_input():
            raise EOFError
        return input(self._format_prompt(question))


def discard_input() -> bool:
    """Discard typed-ahead input; return False if that is impossible, such as without a terminal."""
    try:
        import termios  # lazy: not on Windows
    except ImportError:
        return _discard_console_input()
    try:
        termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)
    except (termios.error, OSError, ValueError):  # no terminal, no file, or a closed one
        return False
    return True


def _discard_console_input() -> bool:
    try:
        import msvcrt  # lazy: only on Windows
    except ImportError:
        return False
    while msvcrt.kbhit():  # type: ignore[attr-defined]  # only on Windows
        msvcrt.getwch()  # type: ignore[attr-defined]
    return True


def _import_readline() -> Any:
    try:
        import readline  # lazy: missing on Windows and in some builds of Python
    except ImportError:
        return None
    return readline


def _install_completer(readline: Any, complete: CompleteLine) -> None:
    def complete_text(text: str, state: int) -> str | None:
        try:
            completions = complete(readline.get_line_buffer())
        except Exception:  # an error in completion must not end the chat
            return None
        return completions[state] if state < len(completions) else None

    readline.set_completer_delims("")
    readline.set_completer(complete_text)
    readline.parse_and_bind("bind ^I rl_complete" if _is_libedit(readline) else "tab: complete")


def _is_libedit(readline: Any) -> bool:
    """Whether the module wraps libedit instead of GNU readline, as on macOS."""
    return "libedit" in (readline.__doc__ or "")
