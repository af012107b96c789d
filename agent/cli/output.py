"""An answer on its way to the terminal: its text as it comes, what the tools do meanwhile, and what it came to.

The text goes to standard output and nothing else does; whatever is said about it goes to standard error.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from pydantic_core import to_jsonable_python

from . import error_messages, exit_codes, terminal

if TYPE_CHECKING:
    from agent.types import AgentResponse


class Voice:
    """Text in pieces to standard output, cleaned, and ended by a line break."""

    def __init__(self) -> None:
        self._cleaner = terminal.Cleaner()
        self._mid_line = False

    def say(self, piece: str) -> None:
        self._write(self._cleaner.feed(piece))

    def pause(self) -> None:
        """Something else is to be shown on a line of its own."""
        self._write(self._cleaner.finish())
        if self._mid_line:
            self._write("\n")

    def stop(self) -> None:
        """Ctrl-C. On a terminal whoever says so ends the line, in which there is a ^C."""
        self._write(self._cleaner.finish())
        if not sys.stdout.isatty():
            self.pause()
        self._mid_line = False

    def _write(self, text: str) -> None:
        if text:
            terminal.write(text)
            self._mid_line = not text.endswith("\n")


def stream(open_stream: Callable[[], Any]) -> AgentResponse:
    """Show an answer while it arrives."""
    voice = Voice()
    try:
        with open_stream() as answer:
            for event in answer:
                if event.type == "text_delta":
                    voice.say(event.text or "")
                elif event.type == "restart":
                    voice.pause()
                    terminal.note(f"The answer begins again: {event.error or 'the stream broke'}")
        response: AgentResponse = answer.response
        return response
    except KeyboardInterrupt:
        voice.stop()
        raise
    finally:
        voice.pause()


def run_stream(open_run: Callable[[], Any], *, quiet: bool = False) -> AgentResponse:
    """Show a run while it goes on: what the model says, and dimly what it has the tools do.

    Args:
        open_run: Begins the run.
        quiet: Whether the model's words are kept back, because something else is printed in the end.
    """
    voice = Voice()
    try:
        with open_run() as run:
            for event in run:
                if event.type == "message_update" and not quiet:
                    piece = event.assistant_message_event
                    if piece is not None and piece.type == "text_delta":
                        voice.say(piece.text or "")
                elif event.type == "tool_execution_start":
                    voice.pause()
                    terminal.note(f"→ {event.tool_name}({_short(event.args)})")
                elif event.type == "tool_execution_end":
                    text = "" if event.result is None else _result_text(event.result)
                    mark = "✗" if event.is_error else "←"
                    terminal.note(f"{mark} {event.tool_name}: {_cut(terminal.one_line(text))}")
        result: AgentResponse = run.result
        return result
    except KeyboardInterrupt:
        voice.stop()
        raise
    finally:
        voice.pause()


def show(response: AgentResponse) -> None:
    """Print an answer that came whole."""
    voice = Voice()
    voice.say(response.text or "")
    voice.pause()


def remarks(response: AgentResponse, *, verbose: bool = False) -> int:
    """Say what is worth knowing about an answer, and what exit code it deserves."""
    for warning in response.warnings:
        terminal.note(f"warning: {terminal.one_line(warning)}", "yellow")
    code = exit_codes.OK
    if response.stop_reason == "length":
        terminal.note("warning: The answer was cut off at its longest; see --max-tokens.", "yellow")
    if response.refusal is not None:
        terminal.complain(f"The model refused: {response.refusal}")
        code = exit_codes.FAILED
    elif response.stop_reason == "content_filter":
        terminal.complain("The vendor's filter ended the answer.")
        code = exit_codes.FAILED
    if verbose:
        terminal.note(summary(response))
        if len(response.route) > 1 or response.route.candidates:
            terminal.note(error_messages.without_library_advice(str(response.route)))
    return code


def summary(response: AgentResponse) -> str:
    """Who answered, how much it was, how long it took and what it cost, in one line."""
    usage = response.usage
    facts = [f"{response.provider}:{response.model}"]
    if usage is not None:
        facts.append(f"{usage.prompt_tokens or 0:,} + {usage.completion_tokens or 0:,} tokens")
    if response.latency_ms is not None:
        facts.append(f"{response.latency_ms / 1000:.1f} s")
    facts.append(terminal.dollars(response.cost_estimate) or "cost not known")
    return " · ".join(facts)


def value_of(response: AgentResponse) -> Any:
    """The typed output as plain data."""
    return to_jsonable_python(response.output)


def _short(arguments: Any) -> str:
    pairs = (
        f"{name}={json.dumps(value, ensure_ascii=False, default=str)}" for name, value in (arguments or {}).items()
    )
    return _cut(terminal.one_line(", ".join(pairs)))


def _result_text(result: Any) -> str:
    content = result.content
    if isinstance(content, str):
        return content
    parts = (part if isinstance(part, Mapping) else {"type": part.type, "text": part.text} for part in content)
    return " ".join(str(part.get("text") or f"({part.get('type')})") for part in parts)


def _cut(text: str) -> str:
    most = max(40, terminal.width() - 30) if sys.stderr.isatty() else 200
    return text if len(text) <= most else f"{text[: most - 1]}…"
