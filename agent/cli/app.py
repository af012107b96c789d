"""The command group of `agent`, error handling, and shell completion.

The module of a command is imported when the command is used; its `register(app)` adds the command.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from importlib import import_module
from io import TextIOWrapper
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_command, get_group
from typing_extensions import override

from agent.errors import AgentError

from . import print_version, terminal
from .errors import CommandError, ExitCode, report_error, report_os_error

COMMANDS = {
    "run": "run",
    "chat": "chat",
    "sessions": "sessions",
    "models": "doctor",
    "explain": "run",
    "check": "run",
    "batch": "run",
    "graph": "sessions",
    "local": "doctor",
    "doctor": "doctor",
}
"""Command names, in the order of the help page, and the modules that define them."""

_CONTEXT_SETTINGS = {"help_option_names": ["-h", "--help"]}
_CLICK_ERRORS: tuple[type[Any], ...] = tuple(
    base for base in typer.BadParameter.__mro__ if base.__name__ == "ClickException"
)


class _CommandGroup(TyperGroup):
    """A group that imports commands lazily."""

    @override
    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    @override
    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            return None
        if cmd_name not in self.commands:
            part = typer.Typer(rich_markup_mode=None, context_settings=_CONTEXT_SETTINGS)
            import_module(f".{COMMANDS[cmd_name]}", __package__).register(part)
            commands = get_group(part).commands
            for item in commands.values():
                _hide_argument_types(item)
            self.commands.update(commands)
        return self.commands[cmd_name]

    @override
    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] not in COMMANDS:
            for name in COMMANDS:  # suggestions come from the loaded commands
                self.get_command(ctx, name)
        return super().resolve_command(ctx, args)


def _hide_argument_types(item: Any) -> None:
    """Remove the types of arguments, such as TEXT, from help pages."""
    for param in item.params:
        if param.param_type_name == "argument":
            param.display_type_rich = lambda ctx: None
    for inner in getattr(item, "commands", {}).values():
        _hide_argument_types(inner)


app: typer.Typer = typer.Typer(
    name="agent",
    cls=_CommandGroup,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=False,
    context_settings=_CONTEXT_SETTINGS,
)


def _exit_with_version(enabled: bool) -> None:
    if enabled:
        raise typer.Exit(print_version())


@app.callback()
def _agent(
    version: Annotated[
        bool, typer.Option("--version", "-V", callback=_exit_with_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Call language models of any vendor, one model or a route of several."""


def create_command() -> Any:
    """Create the click command of the whole command line, for parsing and for help pages."""
    return get_command(app)


def run_app(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code; errors are written to standard error."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # for characters that the terminal's encoding lacks
    command = create_command()
    try:
        if INSTRUCTION_VARIABLE in os.environ:
            with fix_bash_completion():
                command.main(prog_name="agent")
        # Not through `main`, which would handle interrupts and broken pipes itself.
        with command.make_context("agent", list(arguments) or ["--help"]) as context:
            command.invoke(context)
        sys.stdout.flush()
    except typer.Exit as error:
        return error.exit_code
    except SystemExit as error:  # completion ends this way
        return error.code if isinstance(error.code, int) else ExitCode.OK
    except BaseException as error:
        return _handle_error(error, arguments)
    return ExitCode.OK


def _handle_error(error: BaseException, arguments: Sequence[str]) -> int:
    if isinstance(error, _CLICK_ERRORS):
        _print_usage_error(error, arguments)
        return ExitCode.USAGE
    if isinstance(error, (KeyboardInterrupt, typer.Abort)):
        stream = next((stream for stream in (sys.stderr, sys.stdout) if stream.isatty()), None)
        if stream is not None:  # the terminal has echoed ^C in the current line
            stream.write("\n")
        return ExitCode.INTERRUPTED
    if isinstance(error, BrokenPipeError):
        return report_os_error(error)
    if isinstance(error, (AgentError, CommandError)):
        return report_error(error)
    if os.environ.get("AGENT_TRACEBACK"):
        raise error
    if isinstance(error, OSError):
        return report_os_error(error)
    terminal.write_error(
        f"{type(error).__name__}: {error}", "This is a bug in agent. Set AGENT_TRACEBACK=1 for the traceback."
    )
    return ExitCode.FAILED


def _print_usage_error(error: Any, arguments: Sequence[str]) -> None:
    context = error.ctx or _find_context(arguments)
    sys.stderr.write(f"{context.get_usage()}\n")
    terminal.write_error(error.format_message(), f"{context.command_path} --help")


def _find_context(arguments: Sequence[str]) -> Any:
    """Find the command of a parser error that names no context."""
    group = create_command()
    top = group.make_context("agent", [], resilient_parsing=True)
    item = group.get_command(top, next(iter(arguments), ""))
    return top if item is None else item.make_context(item.name, [], parent=top, resilient_parsing=True)


# Completion

INSTRUCTION_VARIABLE = "_AGENT_COMPLETE"
_WORDS, _INDEX = "COMP_WORDS", "COMP_CWORD"


@contextmanager
def fix_bash_completion() -> Iterator[None]:
    """Complete model names, which contain a colon, in bash.

    Bash splits `openai:gpt` into three words and replaces only the last one. So the words are joined before completion,
    and the part up to the colon is removed from the completions.
    """
    words = os.environ.get(_WORDS, "").split("\n")
    index = os.environ.get(_INDEX, "")
    if os.environ.get(INSTRUCTION_VARIABLE) != "complete_bash" or not index.isdigit() or int(index) >= len(words):
        yield
        return
    joined, position = join_words(words, int(index))
    os.environ.update({_WORDS: "\n".join(joined), _INDEX: str(position)})
    output = io.StringIO()
    try:
        with redirect_stdout(output):
            yield
    finally:
        prefix = "" if len(joined) == len(words) else joined[position][: joined[position].rfind(":") + 1]
        for line in output.getvalue().splitlines():
            sys.stdout.write(f"{line.removeprefix(prefix)}\n")


def join_words(words: Sequence[str], index: int) -> tuple[list[str], int]:
    """Join the words that bash split at colons, up to the one at `index`; return them and the new index."""
    joined: list[str] = []
    after_colon = False
    for word in words[: index + 1]:
        is_colon = bool(word) and set(word) == {":"}
        if len(joined) > 1 and (is_colon or after_colon) and not word.startswith("-"):
            joined[-1] += word
        else:
            joined.append(word)
        after_colon = is_colon
    return joined, len(joined) - 1
