"""`agent chat`: an interactive conversation. Errors are printed, and the chat continues."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...errors import AgentError
from ...loop.hooks import Allow, Decision, Deny
from ...types import ContentPart, Message, TextContent
from .. import attachments, options
from ..errors import CommandError, ExitCode, report_error
from ..output import RunDisplay, format_tool_call, print_remarks
from ..terminal import sanitize_line, write_line, write_note
from .commands import complete_line, format_count, run_command
from .input import Keyboard, LineSource, PipedLines, PromptedLines, read_text
from .records import is_question, load_exact, load_latest, load_models
from .session import ChatSession, ChatSettings, ChatTurn
from .transcripts import format_dag

if TYPE_CHECKING:
    from agent.stores import SqliteStore
    from agent.stores.base import SessionRecord

    from ...loop.results import RunResult
    from ...tools.base import ToolContext
    from ...types import ToolCall

HISTORY_FILE = "chat_history"
"""The input history, in `options.data_folder()`."""


def register(app: typer.Typer) -> None:
    app.command("chat")(chat)


def complete_session(incomplete: str) -> list[str]:
    """Complete session ids, latest first. Completion creates no files and raises no errors."""
    if not (options.data_folder() / options.SESSIONS_FILE).is_file():
        return []
    try:
        with options.open_session_store() as store:
            return [header.id for header in store.list(limit=200) if header.id.startswith(incomplete)]
    except (AgentError, CommandError):
        return []


def chat(
    session: Annotated[
        str | None,
        typer.Argument(
            metavar="SESSION",
            help="The session to continue, or the name of a new one. By default a new session.",
            autocompletion=complete_session,
            show_default=False,
        ),
    ] = None,
    models: options.ModelOption = None,
    strategy: options.StrategyOption = None,
    system: options.SystemOption = None,
    tool: options.ToolOption = None,
    allow_exec: Annotated[
        bool, typer.Option("--allow-exec", help="Allow tools that execute code, without approval.")
    ] = False,
    continue_: Annotated[bool, typer.Option("--continue", "-c", help="Continue the latest session.")] = False,
    new: Annotated[bool, typer.Option("--new", help="Start a new session; fail if the name exists.")] = False,
) -> None:
    """Chat with a model. Sessions are stored; /help lists the commands.

    If standard input is a pipe, each line is a turn, and only the answers go to standard output.
    """
    if continue_ and (session or new):
        raise CommandError("--continue excludes a session name and --new.", fix="Remove --continue, or the others.")
    with options.open_session_store() as store:
        record = _load_record(store, session, continue_=continue_, new=new)
        recorded = load_models(record) if record is not None else []
        settings = ChatSettings(
            create_client=lambda names: options.create_client(names, strategy),
            models=tuple(models or recorded) or (options.default_model(),),
            tools=options.load_tools(tool) if tool else (),
            before_tool_call=lambda call, context: repl.approve(call, context),
            loop=options.tool_limits(allow_exec=allow_exec),
        )
        chat_session = ChatSession(store, settings, record, name=None if record else session, system=system)
        repl = ChatRepl(chat_session, _open_lines(lambda: repl), attachments.read_attachment)
        raise typer.Exit(repl.run())


def _load_record(store: SqliteStore, session: str | None, *, continue_: bool, new: bool) -> SessionRecord | None:
    if continue_:
        return load_latest(store)
    record = None if session is None else load_exact(store, session)
    if new and record is not None:
        raise CommandError(f"The session {session!r} exists already.", fix="Remove --new to continue it.")
    return record


def _open_lines(repl: Callable[[], ChatRepl]) -> LineSource:
    if sys.stdin is None:  # closed by the parent process
        return PipedLines(())
    if not sys.stdin.isatty():
        return PipedLines(getattr(sys.stdin, "buffer", sys.stdin))
    if not sys.stdout.isatty():
        return PromptedLines()
    return Keyboard(options.data_folder() / HISTORY_FILE, lambda line: complete_line(repl(), line))


ReadFile = Callable[[str], ContentPart]
_RISKS = {"exec": "execute code", "write": "change data", "network": "use the network", "read": "read data"}


class ChatRepl:
    """The read-eval-print loop of a chat.

    Args:
        session: The conversation.
        lines: The source of input lines.
        read_file: Converts an attached file to a content part.
    """

    def __init__(self, session: ChatSession, lines: LineSource, read_file: ReadFile) -> None:
        self.session = session
        self._lines = lines
        self._read_file = read_file
        self._attached: list[ContentPart] = []
        self._is_over = False
        self._exit_code = ExitCode.OK
        self._approved_tools: set[str] = set()
        """Tools approved for the rest of the chat."""

    @property
    def is_interactive(self) -> bool:
        return isinstance(self._lines, Keyboard)

    def leave(self) -> None:
        """Stop after the current command."""
        self._is_over = True

    def run(self) -> ExitCode:
        """Run until the end of input; return the exit code of the first failure, or 0 at a terminal."""
        warned = False
        if self.is_interactive:
            self._greet()
        while not self._is_over:
            try:
                text = read_text(self._lines)
            except EOFError:
                if self.is_interactive:
                    write_note("")
                break
            except KeyboardInterrupt:
                if not isinstance(self._lines, Keyboard):
                    raise
                write_note("")
                if self._lines.has_partial_line:  # Ctrl-C discards the line
                    continue
                if warned:
                    break
                write_note("Press Ctrl-C again, or Ctrl-D, to leave; /help lists the commands.")
                warned = True
                continue
            warned = False
            if text.strip():
                self._handle_text(text)
        if self.is_interactive and self.session.is_stored:
            write_note(f"to continue: agent chat {self.session.id}")
        return ExitCode.OK if self.is_interactive else self._exit_code

    def _greet(self) -> None:
        session = self.session
        if session.is_stored:
            title = f"session {session.id}, {format_count(session.turns, 'turn')}"
        else:
            title = f"new session {session.id}" if session.is_named else "new session"
        write_note(f"{', '.join(session.settings.models)} · {title} · /help lists the commands")
        for text, style in _last_turn(session):
            write_line(text, style)

    def _handle_text(self, text: str) -> None:
        try:
            if text.startswith("/") and not text.startswith("//"):
                run_command(self, text)
            else:
                self.run_turn(self.session.start_turn(self._message(text[1:] if text.startswith("//") else text)))
                self._attached.clear()
        except (AgentError, CommandError) as error:
            self._report(error)
        except KeyboardInterrupt:
            if not self.is_interactive:
                raise
            write_note("")

    def _report(self, error: Exception) -> None:
        self._record_exit_code(report_error(error))

    def _record_exit_code(self, code: ExitCode) -> None:
        if self._exit_code is ExitCode.OK:
            self._exit_code = code

    def _message(self, text: str) -> Message:
        return Message.user([*self._attached, TextContent(text=text)] if self._attached else text)

    def attach(self, name: str) -> None:
        """Attach a file to the next question."""
        self._attached.append(self._read_file(name))
        write_note(f"{Path(name).name} is attached to the next question")

    def run_turn(self, turn: ChatTurn) -> None:
        """Display a turn as it runs, and store it. A failed or interrupted turn is not stored."""
        session, display, old_id = self.session, RunDisplay(), self.session.id
        was_stored = session.is_stored
        try:
            for event in turn.run:
                display.show(event)
            display.printer.end_line()
            result: RunResult = turn.finish()
            self._record_exit_code(print_remarks(result))
        except AgentError as error:
            display.printer.end_line()
            self._report(error)
            write_note("This turn is not stored. /retry repeats it.")
        except KeyboardInterrupt:
            display.printer.end_line()
            is_stored = session.handle_interrupt()
            if not self.is_interactive:
                raise
            if is_stored:
                write_note("The answer was complete and is stored. /undo removes it.")
            else:
                write_note("Interrupted. This turn is not stored; /retry repeats it.")
        else:
            self._attached.clear()
            if was_stored and session.id != old_id:
                write_note(
                    f"Another process has changed {old_id}. This turn is stored in the fork {session.id}, where the"
                    f" chat continues; /switch {old_id} opens the other one."
                )

    def approve(self, call: ToolCall, context: ToolContext[Any]) -> Decision | None:
        """Decide about a tool call; None leaves it to the allowed risks."""
        if call.name in self._approved_tools:
            return Allow()
        if context.risk in self.session.settings.loop.allowed_risks or not isinstance(self._lines, Keyboard):
            return None
        write_note(f"? {format_tool_call(call.name, call.arguments)}", "plain")  # in full, for an informed decision
        question = f"Allow {sanitize_line(call.name)} to {_RISKS.get(context.risk, 'do harm')}? [y/N/always] "
        try:
            answer = self._lines.ask(question).strip().lower()
        except EOFError:
            answer = ""
        if answer in ("a", "always"):
            self._approved_tools.add(call.name)
        return Allow() if answer in ("y", "yes", "a", "always") else Deny("The user at the terminal denied the call.")


def _last_turn(session: ChatSession) -> Sequence[tuple[str, Any]]:
    nodes = session.dag.nodes()
    last = next((index for index in range(len(nodes) - 1, -1, -1) if is_question(nodes[index])), None)
    if last is None:
        return ()
    earlier = {node.id for node in nodes[:last]}
    return [line for line in format_dag(session.dag, skip=earlier) if line[0]]
