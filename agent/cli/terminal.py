"""What may reach a terminal, and how: foreign text without control sequences, notes in grey, errors in red.

Whoever writes to a terminal commands it: a few bytes set its title, fill the clipboard, hide text or overwrite what
was said before. A model's words are foreign words, so nothing of theirs but text gets through.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from contextlib import suppress
from typing import Literal, TextIO

_TEXT, _ESCAPE, _CONTROL, _STRING, _STRING_ESCAPE = range(5)

_LONGEST_CONTROL = 256
_LONGEST_STRING = 8192

_SUSPICIOUS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_STRINGS_AFTER_ESCAPE = frozenset("]PX^_")
_STRINGS = frozenset("\x90\x98\x9d\x9e\x9f")


class Cleaner:
    """Text without control sequences, of a text that comes in pieces.

    Newlines and tabs stay. A sequence with a terminator, such as one that sets the title, is dropped whole if it is
    complete by the end of its line; if it is not, only what makes it a sequence is dropped. Nothing is held back for
    longer than that.
    """

    def __init__(self) -> None:
        self._state = _TEXT
        self._held: list[str] = []

    def feed(self, chunk: str) -> str:
        """What may be shown so far."""
        if self._state == _TEXT and not _SUSPICIOUS.search(chunk):
            return chunk
        out: list[str] = []
        for char in chunk:
            self._take(char, out)
        return "".join(out)

    def finish(self) -> str:
        """What was held back, in case a sequence was complete after all."""
        out: list[str] = []
        self._release(out)
        return "".join(out)

    def _take(self, char: str, out: list[str]) -> None:
        match self._state:
            case 1:
                self._after_escape(char, out)
            case 2:
                self._in_control(char, out)
            case 3:
                self._in_string(char, out)
            case 4:
                self._end_of_string(char, out)
            case _:
                self._in_text(char, out)

    def _in_text(self, char: str, out: list[str]) -> None:
        if char == "\x1b":
            self._state = _ESCAPE
        elif char == "\x9b":
            self._state = _CONTROL
        elif char in _STRINGS:
            self._state = _STRING
        elif not _SUSPICIOUS.match(char):
            out.append(char)
        elif "\ud800" <= char <= "\udfff":
            out.append("\ufffd")  # written as it is, half a pair can become any byte

    def _after_escape(self, char: str, out: list[str]) -> None:
        if char == "[" and not self._held:
            self._state = _CONTROL
        elif char in _STRINGS_AFTER_ESCAPE and not self._held:
            self._state = _STRING
        elif " " <= char <= "/" and len(self._held) < _LONGEST_CONTROL:
            self._held.append(char)
        else:
            self._drop()
            if not "0" <= char <= "~":
                self._take(char, out)

    def _in_control(self, char: str, out: list[str]) -> None:
        if " " <= char <= "?" and len(self._held) < _LONGEST_CONTROL:
            self._held.append(char)
        else:
            self._drop()
            if not "@" <= char <= "~":
                self._take(char, out)

    def _in_string(self, char: str, out: list[str]) -> None:
        if char in "\x07\x9c\x18\x1a":
            self._drop()
        elif char == "\x1b":
            self._state = _STRING_ESCAPE
        elif char == "\n" or char in _STRINGS or char == "\x9b" or len(self._held) >= _LONGEST_STRING:
            self._release(out)
            self._take(char, out)
        elif not _SUSPICIOUS.match(char):
            self._held.append(char)

    def _end_of_string(self, char: str, out: list[str]) -> None:
        if char == "\\":
            self._drop()
        else:
            self._release(out)
            self._state = _ESCAPE
            self._take(char, out)

    def _drop(self) -> None:
        self._state = _TEXT
        self._held.clear()

    def _release(self, out: list[str]) -> None:
        if self._state in (_STRING, _STRING_ESCAPE):
            out.extend(self._held)
        self._drop()


def clean(text: str) -> str:
    """The text without control sequences, bidirectional overrides and anything else that commands a terminal."""
    if not _SUSPICIOUS.search(text):
        return text
    cleaner = Cleaner()
    return cleaner.feed(text) + cleaner.finish()


def one_line(text: str) -> str:
    """As `clean`, for a place with room for one line."""
    return " ".join(clean(text).split())


Style = Literal["plain", "dim", "red", "bold", "green", "yellow"]
_CODES = {"dim": "2", "red": "31", "bold": "1", "green": "32", "yellow": "33"}


def has_colours(stream: TextIO) -> bool:
    """Whether colours make sense there: on a terminal, unless the environment says otherwise."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return bool(os.environ.get("FORCE_COLOR")) or stream.isatty()


def styled(text: str, style: Style, stream: TextIO) -> str:
    """Cleaned text in a style, if the stream has any."""
    said = clean(text)
    if style == "plain" or not said or not has_colours(stream):
        return said
    return f"\x1b[{_CODES[style]}m{said}\x1b[0m"


def write(text: str) -> None:
    """Text that has been cleaned, to standard output, at once."""
    sys.stdout.write(text)
    sys.stdout.flush()


def say(text: str = "", style: Style = "plain") -> None:
    """A line on standard output."""
    write(styled(text, style, sys.stdout) + "\n")


def note(text: str, style: Style = "dim") -> None:
    """A line on standard error, about what goes on. That nobody can read it is no reason to stop."""
    try:
        sys.stderr.write(styled(text, style, sys.stderr) + "\n")
        sys.stderr.flush()
    except OSError:
        abandon(sys.stderr)


def abandon(stream: TextIO) -> None:
    """Whatever is still in its buffer has nowhere to go; written at exit, it would be one more error."""
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def dollars(amount: float | None) -> str:
    """A sum; small ones with enough digits to be seen."""
    if amount is None:
        return ""
    if amount == 0:
        return "$0"
    if amount < 0.000001:
        return "<$0.000001"
    whole, _, cents = f"{amount:.2f}".partition(".") if amount >= 1 else f"{amount:.6f}".rstrip("0").partition(".")
    return f"${whole}.{cents.ljust(2, '0')}"


def complain(message: str, fix: str | None = None) -> None:
    """An error, and what helps against it, on standard error."""
    note(f"error: {one_line(message)}", "red")
    advise(fix)


def advise(fix: str | None) -> None:
    """What helps against the error above, if anything does."""
    if fix:
        note(f"fix: {one_line(fix)}", "plain")


def width() -> int:
    """Columns of the terminal; 80 if there is none."""
    return shutil.get_terminal_size((80, 24)).columns


def as_json(value: object) -> str:
    """JSON text to print. What commands a terminal is escaped, as JSON can; nothing is lost."""
    text = json.dumps(value, ensure_ascii=False, indent=2)
    return _SUSPICIOUS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
