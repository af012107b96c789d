"""Terminal output: sanitized text, styles, tables, messages, and the display of answers and runs.

Text from models, tools and vendors is untrusted: a few bytes of a control sequence can set the title, fill the
clipboard, hide text or overwrite earlier output. Only plain text passes `Sanitizer`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import textwrap
import unicodedata
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Literal, TextIO

from pydantic_core import to_jsonable_python

if TYPE_CHECKING:
    from agent.loop.events import AgentEvent
    from agent.types import AgentResponse, StreamEvent

_CONTROLS = "\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff"
_SUSPICIOUS = re.compile(f"[{_CONTROLS}]")
_STRING = "(?:\x1b[\\]PX^_]|[\x90\x98\x9d\x9e\x9f])"
_STRING_TEXT = "[^\n\x07\x18\x1a\x1b\x90\x98\x9b-\x9f]{0,8192}"
_PARAMETERS = "(?:\x1b\\[|\x9b)[ -?]{0,256}"
_ESCAPE = "\x1b[ -/]{0,256}"
_SEQUENCE = re.compile(
    f"{_STRING}(?P<text>{_STRING_TEXT})(?P<end>[\x07\x18\x1a\x9c]|\x1b\\\\)?"
    f"|{_PARAMETERS}[@-~]?|{_ESCAPE}[0-~]?|[{_CONTROLS}]"
)
"""Control sequences. The first kind has a terminator, such as one that sets the title."""
_UNFINISHED = re.compile(f"(?:{_STRING}{_STRING_TEXT}\x1b?|{_PARAMETERS}|{_ESCAPE})\\Z")


class Sanitizer:
    """Incremental filter that removes control sequences from text.

    Newlines and tabs stay. A sequence with a terminator is dropped as a whole if it ends on the same line; otherwise
    only its introducer is dropped. Text is buffered for at most one line.
    """

    def __init__(self) -> None:
        self._unfinished = ""

    def feed(self, chunk: str) -> str:
        """Return the text that is safe to print so far."""
        text = self._unfinished + chunk
        unfinished = _UNFINISHED.search(text)
        end = len(text) if unfinished is None else unfinished.start()
        self._unfinished = text[end:]
        return sanitize(text[:end])

    def finish(self) -> str:
        """Return the buffered text of an unterminated sequence."""
        text, self._unfinished = self._unfinished, ""
        return sanitize(text)


def sanitize(text: str) -> str:
    """Remove control sequences, bidirectional overrides and other characters that command a terminal."""
    return _SEQUENCE.sub(_replace_sequence, text)


def _replace_sequence(match: re.Match[str]) -> str:
    if "\ud800" <= match[0] <= "\udfff":
        return "\ufffd"  # a lone surrogate could be encoded as any byte
    return "" if match["end"] else _SUSPICIOUS.sub("", match["text"] or "")


def sanitize_line(text: str) -> str:
    """Sanitize text and join its lines with spaces."""
    return " ".join(sanitize(text).split())


def format_json(value: object) -> str:
    """Return indented JSON in which control characters are escaped instead of removed."""
    text = json.dumps(value, ensure_ascii=False, indent=2)
    return _SUSPICIOUS.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def format_dollars(amount: float | None) -> str:
    """Format an amount with enough digits for small sums; empty if it is unknown."""
    if amount is None:
        return ""
    if amount == 0:
        return "$0"
    if amount < 0.000001:
        return "<$0.000001"
    integer, _, cents = f"{amount:.2f}".partition(".") if amount >= 1 else f"{amount:.6f}".rstrip("0").partition(".")
    return f"${integer}.{cents.ljust(2, '0')}"


# Writing

Style = Literal["plain", "dim", "red", "bold", "green", "yellow"]
_CODES = {"dim": "2", "red": "31", "bold": "1", "green": "32", "yellow": "33"}


def has_colors(stream: TextIO) -> bool:
    """Whether to use colors: on a terminal, unless NO_COLOR, FORCE_COLOR or TERM=dumb says otherwise."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return bool(os.environ.get("FORCE_COLOR")) or stream.isatty()


def _apply_style(text: str, style: Style, stream: TextIO) -> str:
    text = sanitize(text)
    if style == "plain" or not text or not has_colors(stream):
        return text
    return f"\x1b[{_CODES[style]}m{text}\x1b[0m"


def write_output(text: str) -> None:
    """Write sanitized text to standard output and flush."""
    sys.stdout.write(text)
    sys.stdout.flush()


def write_line(text: str = "", style: Style = "plain") -> None:
    """Write a line to standard output."""
    write_output(_apply_style(text, style, sys.stdout) + "\n")


def write_json(value: object) -> None:
    """Write a value as JSON to standard output."""
    write_output(format_json(value) + "\n")


def write_note(text: str, style: Style = "dim") -> None:
    """Write a line to standard error. A closed standard error is ignored."""
    try:
        sys.stderr.write(_apply_style(text, style, sys.stderr) + "\n")
        sys.stderr.flush()
    except OSError:
        discard_buffer(sys.stderr)


def write_error(message: str, fix: str | None = None) -> None:
    """Write `error: …` and, if there is advice, `fix: …` to standard error."""
    write_note(f"error: {sanitize_line(message)}", "red")
    write_fix(fix)


def write_fix(fix: str | None) -> None:
    if fix:
        write_note(f"fix: {sanitize_line(fix)}", "plain")


def discard_buffer(stream: TextIO) -> None:
    """Redirect a broken stream to the null device, so that flushing it at exit does not fail again."""
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


# Tables. Widths are terminal columns, not characters.

_GAP = 2
_MIN_WIDTH = 12
"""The narrowest that an elastic column becomes."""


def terminal_width() -> int:
    """Columns of the terminal; 80 if there is none."""
    return shutil.get_terminal_size((80, 24)).columns


def output_width() -> int | None:
    """Columns of standard output; None if it is not a terminal, and lines need no limit."""
    return terminal_width() if sys.stdout.isatty() else None


def display_width(text: str) -> int:
    """The number of terminal columns that a text occupies."""
    return len(text) if text.isascii() else sum(map(_char_width, text))


def _char_width(char: str) -> int:
    if unicodedata.category(char) in ("Mn", "Me", "Cf"):  # combining accents, and joiners of emoji
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def truncate(line: str, limit: int) -> str:
    """Shorten a line to at most `limit` columns."""
    if display_width(line) <= limit:
        return line
    kept, used = "", 1
    for char in line:
        used += _char_width(char)
        if used > limit:
            break
        kept += char
    return f"{kept}…"


def format_table(
    columns: Mapping[str, Sequence[str]],
    limit: int | None = None,
    *,
    right: Collection[str] = (),
    elastic: Collection[str] = (),
) -> list[str]:
    """Format sanitized columns under their headings, in order of importance.

    Args:
        columns: The cells of each column.
        limit: Columns of the terminal; None for no limit. In a narrow terminal, columns in `elastic` are shortened
            first, then the last columns are dropped.
        right: Right-aligned columns.
    """
    cleaned = {name: [sanitize_line(cell) for cell in column] for name, column in columns.items()}
    fitted = cleaned if limit is None else _fit_columns(cleaned, limit, elastic)
    widths = {name: _column_width(name, column) for name, column in fitted.items()}
    rows = [tuple(fitted), *zip(*fitted.values(), strict=True)]
    return [
        (" " * _GAP)
        .join(_pad(cell, widths[name], name in right) for name, cell in zip(fitted, row, strict=True))
        .rstrip()
        for row in rows
    ]


def format_pairs(pairs: Iterable[tuple[str, str]], limit: int | None = None, indent: str = "") -> list[str]:
    """Format names with texts beside them; long texts wrap with a hanging indent."""
    cleaned = [(sanitize_line(name), sanitize_line(text)) for name, text in pairs]
    width = max((display_width(name) for name, _ in cleaned), default=0) + _GAP
    margin = f"{indent}{' ' * width}"
    lines: list[str] = []
    for name, text in cleaned:
        first, *rest = wrap_text(text, None if limit is None else max(20, limit - len(margin)))
        lines.append(f"{indent}{_pad(name, width)}{first}".rstrip())
        lines += [f"{margin}{line}" for line in rest]
    return lines


def wrap_text(text: str, limit: int | None) -> list[str]:
    """Wrap a text at spaces."""
    if limit is None:
        return [text]
    return textwrap.wrap(text, limit, break_long_words=False, break_on_hyphens=False) or [""]


def _fit_columns(columns: Mapping[str, Sequence[str]], limit: int, elastic: Collection[str]) -> dict[str, list[str]]:
    first = next(iter(columns))
    widths = {name: _column_width(name, column) for name, column in columns.items()}
    widths[first] = min(widths[first], limit)
    while (excess := sum(widths.values()) + _GAP * (len(widths) - 1) - limit) > 0:
        widest = max((name for name in widths if name in elastic), key=lambda name: widths[name], default=first)
        if widest in elastic and sum(max(0, widths[name] - _MIN_WIDTH) for name in widths if name in elastic) >= excess:
            widths[widest] -= 1
        elif len(widths) > 1:
            widths.popitem()
        else:
            break
    return {name: [truncate(cell, width) for cell in columns[name]] for name, width in widths.items()}


def _column_width(name: str, column: Sequence[str]) -> int:
    return max(len(name), *map(display_width, column)) if column else len(name)


def _pad(cell: str, width: int, right: bool = False) -> str:
    space = " " * (width - display_width(cell))
    return f"{space}{cell}" if right else f"{cell}{space}"


# Answers and runs: text on standard output, tool calls on standard error


class TextPrinter:
    """Writes sanitized text to standard output in pieces, and ends it with a line break."""

    def __init__(self) -> None:
        self._sanitizer = Sanitizer()
        self._mid_line = False

    def write(self, text: str) -> None:
        self._write(self._sanitizer.feed(text))

    def end_line(self) -> None:
        """End the current line, if it has any text."""
        self._write(self._sanitizer.finish())
        if self._mid_line:
            self._write("\n")

    def interrupt(self) -> None:
        """Stop after Ctrl-C. On a terminal, the error handler ends the line, which contains ^C."""
        self._write(self._sanitizer.finish())
        if not sys.stdout.isatty():
            self.end_line()
        self._mid_line = False

    def _write(self, text: str) -> None:
        if text:
            write_output(text)
            self._mid_line = not text.endswith("\n")


def print_text(text: str) -> None:
    """Print a complete answer."""
    printer = TextPrinter()
    printer.write(text)
    printer.end_line()


@contextmanager
def _end_of_line(printer: TextPrinter) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        printer.interrupt()
        raise
    finally:
        printer.end_line()


def print_stream(open_stream: Callable[[], Any]) -> AgentResponse:
    """Print a streamed answer as it arrives."""
    display = RunDisplay(show_parts=False)
    with _end_of_line(display.printer), open_stream() as stream:
        for event in stream:
            display.show_piece(event)
    response: AgentResponse = stream.response
    return response


class RunDisplay:
    """Displays the events of a run: text of the model, tool calls and tool results.

    Args:
        show_text: Whether to print the model's text.
        show_parts: Whether to print a placeholder for other content, such as `[image]`.
        limit: The longest line for a tool call or result.
    """

    def __init__(self, *, show_text: bool = True, show_parts: bool = True, limit: int = 100) -> None:
        self.printer: TextPrinter = TextPrinter()
        self._show_text = show_text
        self._show_parts = show_parts
        self._limit = limit

    def show(self, event: AgentEvent) -> None:
        match event.type:
            case "message_update":
                if event.assistant_message_event is not None:
                    self.show_piece(event.assistant_message_event)
            case "message_end":
                self.printer.end_line()
            case "tool_execution_start":
                self.printer.end_line()
                write_note(tool_call_line(event.tool_name, event.args, self._limit))
            case "tool_execution_end":
                self.printer.end_line()
                text = _result_text(event.result)
                write_note(tool_result_line(event.tool_name, text, is_error=event.is_error, limit=self._limit))
            case _:
                pass

    def show_piece(self, piece: StreamEvent) -> None:
        """Display an event of the model's answer."""
        if piece.type == "text_delta" and self._show_text:
            self.printer.write(piece.text or "")
        elif piece.type == "content_part" and piece.part is not None and self._show_parts:
            self.printer.write(f"[{piece.part.type}]")
        elif piece.type == "restart":
            self.printer.end_line()
            write_note(f"The answer starts again: {sanitize_line(piece.error or 'the stream broke')}")


def print_run(open_run: Callable[[], Any], *, quiet: bool = False) -> AgentResponse:
    """Print a run with tools as it happens; `quiet` shows only the tools."""
    limit = max(40, terminal_width() - 20) if sys.stderr.isatty() else 200
    display = RunDisplay(show_text=not quiet, show_parts=False, limit=limit)
    with _end_of_line(display.printer), open_run() as run:
        for event in run:
            display.show(event)
    result: AgentResponse = run.result
    return result


def format_tool_call(name: str, arguments: Any) -> str:
    """Format a complete tool call; control characters in the arguments are escaped."""
    pairs = (
        f"{key}={format_json(to_jsonable_python(value, fallback=str))}" for key, value in dict(arguments or {}).items()
    )
    return sanitize(f"{name}({', '.join(pairs)})")


def tool_call_line(name: str, arguments: Any, limit: int = 100) -> str:
    return truncate(f"→ {sanitize_line(format_tool_call(name, arguments))}", limit)


def tool_result_line(name: str, text: str, *, is_error: bool = False, limit: int = 100) -> str:
    return truncate(f"{'✗' if is_error else '←'} {sanitize_line(f'{name}: {text}')}", limit)


def _result_text(result: Any) -> str:
    content = getattr(result, "content", "")
    if isinstance(content, str):
        return content
    parts = (part if isinstance(part, dict) else part.to_dict() for part in content or ())
    return " ".join(str(part.get("text") or f"[{part.get('type')}]") for part in parts)
