"""A turn on the screen while it happens: the answer's text on standard output, what tools do on standard error."""

from __future__ import annotations

from typing import Any

from ...looping.events import AgentEvent
from ...types import StreamEvent
from ..answering import Voice
from ..terminal import note, one_line
from .transcripts import called, returned


class Screen:
    """Shows the events of one turn. Text of the model and of tools is cleaned, whatever pieces it comes in."""

    def __init__(self) -> None:
        self._voice = Voice()

    def see(self, event: AgentEvent) -> None:
        """Show what has happened."""
        match event.type:
            case "message_update":
                self._piece(event.assistant_message_event)
            case "message_end":
                self.end_line()
            case "tool_execution_start":
                self.note(called(event.tool_name, event.args))
            case "tool_execution_end":
                self.note(returned(event.tool_name, _words(event.result), failed=event.is_error))
            case _:
                pass

    def _piece(self, piece: StreamEvent | None) -> None:
        if piece is None:
            return
        if piece.type == "text_delta":
            self._voice.say(piece.text or "")
        elif piece.type == "content_part" and piece.part is not None:
            self._voice.say(f"[{piece.part.type}]")
        elif piece.type == "restart":
            self.note(f"The answer begins again: {one_line(piece.error or 'the stream broke')}")

    def end_line(self) -> None:
        """Whatever comes next begins on a line of its own."""
        self._voice.pause()

    def note(self, text: str) -> None:
        """Something about the turn that is not the answer."""
        self.end_line()
        note(text)


def _words(result: Any) -> str:
    content = getattr(result, "content", "")
    if isinstance(content, str):
        return content
    parts = (part if isinstance(part, dict) else part.to_dict() for part in content or ())
    return " ".join(str(part.get("text") or f"[{part.get('type')}]") for part in parts)
