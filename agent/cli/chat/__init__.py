"""`agent chat`: an interactive conversation. Errors are printed, and the chat continues.

A line that ends in a backslash continues on the next line. A text that starts with three quotes ends at the next three.
With `readline`, lines can be edited, the history persists, and a multi-line paste is one text.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import typer
from typing_extensions import override

from ...errors import AgentError
from ...graph.node import is_question
from ...loop.hooks import Allow, Decision, Deny
from ...types import ContentPart, Message, TextContent
from .. import options
from ..errors import CommandError, ExitCode, print_remarks, report_error
from ..terminal import RunDisplay, format_tool_call, has_colors, sanitize_line, write_line, write_note
from .commands import complete_line, format_count, run_command
from .records import format_nodes, load_exact, load_latest, load_models
from .session import ChatSession, ChatSettings, ChatTurn

if TYPE_CHECKING:
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
        if continue_:
            record: SessionRecord | None = load_latest(store)
        else:
            record = None if session is None else load_exact(store, session)
        if new and record is not None:
            raise CommandError(f"The session {session!r} exists already.", fix="Remove --new to continue it.")
        recorded = load_models(record) if record is not None else []
        settings = ChatSettings(
            create_client=lambda names: options.create_client(names, strategy),
            models=tuple(models or recorded) or (options.default_model(),),
            tools=options.load_tools(tool) if tool else (),
            before_tool_call=lambda call, context: repl.approve(call, context),
            loop=options.tool_limits(allow_exec=allow_exec),
        )
        chat_session = ChatSession(store, settings, record, name=None if record else session, system=system)
        repl = ChatRepl(chat_session, _open_lines(lambda: repl))
        raise typer.Exit(repl.run())


def _open_lines(repl: Callable[[], ChatRepl]) -> LineSource:
    if sys.stdin is None:  # closed by the parent process
        return PipedLines(())
    if not sys.stdin.isatty():
        return PipedLines(getattr(sys.stdin, "buffer", sys.stdin))
    if not sys.stdout.isatty():
        return PromptedLines()
    return Keyboard(options.data_folder() / HISTORY_FILE, lambda line: complete_line(repl(), line))


_RISKS = {"exec": "execute code", "write": "change data", "network": "use the network", "read": "read data"}


class ChatRepl:
    """The read-eval-print loop of a chat.

    Args:
        session: The conversation.
        lines: The source of input lines.
    """

    def __init__(self, session: ChatSession, lines: LineSource) -> None:
        self.session: ChatSession = session
        self._lines = lines
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
        nodes = session.dag.nodes()
        questions = [place for place, node in enumerate(nodes) if is_question(node)]
        for text, style in format_nodes(nodes[questions[-1] :] if questions else ()):
            write_line(text, style)

    def _handle_text(self, text: str) -> None:
        try:
            if text.startswith("/") and not text.startswith("//"):
                run_command(self, text)
            else:
                text = text[1:] if text.startswith("//") else text
                content = [*self._attached, TextContent(text=text)] if self._attached else text
                self.run_turn(self.session.start_turn(Message.user(content)))
                self._attached.clear()
        except (AgentError, CommandError) as error:
            self._record_exit_code(report_error(error))
        except KeyboardInterrupt:
            if not self.is_interactive:
                raise
            write_note("")

    def _record_exit_code(self, code: ExitCode) -> None:
        if self._exit_code is ExitCode.OK:
            self._exit_code = code

    def attach(self, name: str) -> None:
        """Attach a file to the next question."""
        self._attached.append(options.read_attachment(name))
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
            self._record_exit_code(report_error(error))
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


# Input

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
