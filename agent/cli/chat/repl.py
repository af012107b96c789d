"""A chat: read a text, take the turn or obey the command, show what comes of it, and again.

Whatever fails is told in a line or two, and the chat goes on. Only the person, or the end of the input, ends it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ...errors import AgentError
from ...loop.events import AgentEvent
from ...loop.hooks import Allow, Decision, Deny
from ...loop.results import RunResult
from ...tools.base import ToolContext
from ...types import ContentPart, Message, StreamEvent, TextContent, ToolCall
from .. import exit_codes
from ..error_messages import exit_code, tell_failure
from ..output import Voice, remarks
from ..terminal import note, one_line, say
from .commands import obey
from .conversation import Conversation, Turn
from .input import Keyboard, Lines, read_text
from .records import is_question
from .transcripts import call_of, called, lines_of, returned


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


ReadFile = Callable[[str], ContentPart]
_RISKS = {"exec": "run code", "write": "change things", "network": "use the network", "read": "read"}


class Chat:
    """A person, or a script in place of one, and a conversation.

    Args:
        conversation: What they talk in.
        lines: Where their words come from.
        read_file: What becomes of a file that they attach.
    """

    def __init__(self, conversation: Conversation, lines: Lines, read_file: ReadFile) -> None:
        self.conversation = conversation
        self._lines = lines
        self._read_file = read_file
        self._attached: list[ContentPart] = []
        self._over = False
        self._code = exit_codes.OK
        self._always: set[str] = set()
        """Tools that need not be asked about any more."""

    @property
    def is_interactive(self) -> bool:
        return isinstance(self._lines, Keyboard)

    def leave(self) -> None:
        """No more is read."""
        self._over = True

    def talk(self) -> int:
        """Until the end. The exit code is that of the first failure if a script talks, and 0 if a person does."""
        warned = False
        if self.is_interactive:
            self._greet()
        while not self._over:
            try:
                text = read_text(self._lines)
            except EOFError:
                if self.is_interactive:
                    note("")
                break
            except KeyboardInterrupt:
                if not isinstance(self._lines, Keyboard):
                    raise
                note("")
                if self._lines.has_begun:  # the line is given up, not the chat
                    continue
                if warned:
                    break
                note("Ctrl-C again, or Ctrl-D, leaves; /help lists the commands.")
                warned = True
                continue
            warned = False
            if text.strip():
                self._do(text)
        if self.is_interactive and self.conversation.is_stored:
            note(f"to go on: agent chat {self.conversation.id}")
        return exit_codes.OK if self.is_interactive else self._code

    def _greet(self) -> None:
        conversation = self.conversation
        turns = conversation.turns
        if conversation.is_stored:
            place = f"session {conversation.id}, {turns} turn{'' if turns == 1 else 's'}"
        else:
            place = f"new session {conversation.id}" if conversation.is_named else "new session"
        note(f"{', '.join(conversation.asking.models)} · {place} · /help lists the commands")
        for text, style in _last_turn(conversation):
            say(text, style)

    def _do(self, text: str) -> None:
        try:
            if text.startswith("/") and not text.startswith("//"):
                obey(self, text)
            else:
                said = text[1:] if text.startswith("//") else text
                self.take_turn(self.conversation.ask(self._message(said)))
                self._attached.clear()
        except (AgentError, exit_codes.Problem) as error:
            self._fail(error)
        except KeyboardInterrupt:
            if not self.is_interactive:
                raise
            note("")

    def _fail(self, error: Exception) -> None:
        tell_failure(error)
        if self._code == exit_codes.OK:
            self._code = exit_code(error)

    def _message(self, text: str) -> Message:
        if not self._attached:
            return Message.user(text)
        return Message.user([*self._attached, TextContent(text=text)])

    def attach(self, name: str) -> None:
        """Send a file with the next question."""
        self._attached.append(self._read_file(name))
        note(f"{Path(name).name} goes with the next question")

    # Turns

    def take_turn(self, turn: Turn) -> None:
        """Show a turn while it happens, and keep it. One that fails or is stopped leaves no trace."""
        conversation, screen, name = self.conversation, Screen(), self.conversation.id
        was_stored = conversation.is_stored
        try:
            for event in turn.run:
                screen.see(event)
            screen.end_line()
            self._remark(turn.keep())
        except AgentError as error:
            screen.end_line()
            self._fail(error)
            note("Nothing of this turn is kept. /retry asks again.")
        except KeyboardInterrupt:
            screen.end_line()
            kept = conversation.stopped()
            if not self.is_interactive:
                raise
            if kept:
                note("The answer was complete, and is kept. /undo takes it back.")
            else:
                note("Stopped. Nothing of this turn is kept; /retry asks again.")
        else:
            self._attached.clear()
            if was_stored and conversation.id != name:
                note(
                    f"Somebody else went on with {name} meanwhile. This turn is kept in {conversation.id}, and the"
                    f" chat goes on there; /switch {name} leads to theirs."
                )

    def _remark(self, result: RunResult) -> None:
        code = remarks(result)
        if self._code == exit_codes.OK:
            self._code = code

    def approve(self, call: ToolCall, context: ToolContext[Any]) -> Decision | None:
        """Whether a tool may be called: what is allowed by itself is not asked about."""
        if context.risk in self.conversation.asking.loop.allowed_risks or call.name in self._always:
            return Allow() if call.name in self._always else None
        if not isinstance(self._lines, Keyboard):
            return None  # nobody can be asked, and then the risk decides
        note(f"? {call_of(call.name, call.arguments)}", "plain")  # whoever decides has to see all of it
        question = f"{one_line(call.name)} may {_RISKS.get(context.risk, 'do harm')}. Allow it? [y/N/always] "
        try:
            said = self._lines.answer(question).strip().lower()
        except EOFError:
            said = ""
        if said in ("a", "always"):
            self._always.add(call.name)
        return Allow() if said in ("y", "yes", "a", "always") else Deny("The person at the terminal said no.")


def _last_turn(conversation: Conversation) -> Sequence[tuple[str, Any]]:
    """What was said last, so that somebody who comes back knows where it was."""
    nodes = conversation.dag.nodes()
    last = next((at for at in range(len(nodes) - 1, -1, -1) if is_question(nodes[at])), None)
    if last is None:
        return ()
    before = {node.id for node in nodes[:last]}
    return [line for line in lines_of(conversation.dag, leave_out=before) if line[0]]
