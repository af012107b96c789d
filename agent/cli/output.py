"""Output of answers and runs: text on standard output, tool calls and remarks on standard error."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pydantic_core import to_jsonable_python

from . import terminal
from .errors import ExitCode, remove_library_advice
from .terminal import sanitize, sanitize_line, write_note

if TYPE_CHECKING:
    from agent.loop.events import AgentEvent
    from agent.types import AgentResponse, StreamEvent


class TextPrinter:
    """Writes sanitized text to standard output in pieces, and ends it with a line break."""

    def __init__(self) -> None:
        self._sanitizer = terminal.Sanitizer()
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
            terminal.write_output(text)
            self._mid_line = not text.endswith("\n")


def print_text(text: str) -> None:
    """Print a complete answer."""
    printer = TextPrinter()
    printer.write(text)
    printer.end_line()


def print_stream(open_stream: Callable[[], Any]) -> AgentResponse:
    """Print a streamed answer as it arrives."""
    printer = TextPrinter()
    try:
        with open_stream() as stream:
            for event in stream:
                if event.type == "text_delta":
                    printer.write(event.text or "")
                elif event.type == "restart":
                    printer.end_line()
                    _note_restart(event)
        response: AgentResponse = stream.response
        return response
    except KeyboardInterrupt:
        printer.interrupt()
        raise
    finally:
        printer.end_line()


def _note_restart(event: StreamEvent) -> None:
    write_note(f"The answer starts again: {sanitize_line(event.error or 'the stream broke')}")


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
                    self._show_piece(event.assistant_message_event)
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

    def _show_piece(self, piece: StreamEvent) -> None:
        if piece.type == "text_delta" and self._show_text:
            self.printer.write(piece.text or "")
        elif piece.type == "content_part" and piece.part is not None and self._show_parts:
            self.printer.write(f"[{piece.part.type}]")
        elif piece.type == "restart":
            self.printer.end_line()
            _note_restart(piece)


def print_run(open_run: Callable[[], Any], *, quiet: bool = False) -> AgentResponse:
    """Print a run with tools as it happens; `quiet` shows only the tools."""
    limit = max(40, terminal.terminal_width() - 20) if sys.stderr.isatty() else 200
    display = RunDisplay(show_text=not quiet, show_parts=False, limit=limit)
    try:
        with open_run() as run:
            for event in run:
                display.show(event)
        result: AgentResponse = run.result
        return result
    except KeyboardInterrupt:
        display.printer.interrupt()
        raise
    finally:
        display.printer.end_line()


def format_tool_call(name: str, arguments: Any) -> str:
    """Format a complete tool call; control characters in the arguments are escaped."""
    pairs = (
        f"{key}={terminal.format_json(to_jsonable_python(value, fallback=str))}"
        for key, value in dict(arguments or {}).items()
    )
    return sanitize(f"{name}({', '.join(pairs)})")


def tool_call_line(name: str, arguments: Any, limit: int = 100) -> str:
    return _shorten(f"→ {sanitize_line(format_tool_call(name, arguments))}", limit)


def tool_result_line(name: str, text: str, *, is_error: bool = False, limit: int = 100) -> str:
    return _shorten(f"{'✗' if is_error else '←'} {sanitize_line(f'{name}: {text}')}", limit)


def _shorten(line: str, limit: int) -> str:
    return line if len(line) <= limit else f"{line[: limit - 1]}…"


def _result_text(result: Any) -> str:
    content = getattr(result, "content", "")
    if isinstance(content, str):
        return content
    parts = (part if isinstance(part, dict) else part.to_dict() for part in content or ())
    return " ".join(str(part.get("text") or f"[{part.get('type')}]") for part in parts)


def print_remarks(response: AgentResponse, *, verbose: bool = False) -> ExitCode:
    """Print warnings, refusals and, if `verbose`, the summary and the route; return the exit code."""
    for warning in response.warnings:
        write_note(f"warning: {sanitize_line(warning)}", "yellow")
    code = ExitCode.OK
    if response.stop_reason == "length":
        write_note("warning: The answer was cut off at the token limit; see --max-tokens.", "yellow")
    if response.refusal is not None:
        terminal.write_error(f"The model refused: {response.refusal}")
        code = ExitCode.FAILED
    elif response.stop_reason == "content_filter":
        terminal.write_error("The vendor's content filter stopped the answer.")
        code = ExitCode.FAILED
    if verbose:
        write_note(_summarize(response))
        if len(response.route) > 1 or response.route.candidates:
            write_note(remove_library_advice(str(response.route)))
    return code


def _summarize(response: AgentResponse) -> str:
    """Model, tokens, latency and cost, in one line."""
    usage = response.usage
    facts = [f"{response.provider}:{response.model}"]
    if usage is not None:
        facts.append(f"{usage.prompt_tokens or 0:,} + {usage.completion_tokens or 0:,} tokens")
    if response.latency_ms is not None:
        facts.append(f"{response.latency_ms / 1000:.1f} s")
    facts.append(terminal.format_dollars(response.cost_estimate) or "cost unknown")
    return " · ".join(facts)
