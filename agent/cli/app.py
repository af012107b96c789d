"""The commands of `agent`, loaded when they are wanted, and what is made of the errors they end with.

A command lives in the module that `COMMANDS` names, and gets here by its function `register(app)`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from io import TextIOWrapper
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_command, get_group
from typing_extensions import override

from agent.errors import AgentError

from . import completion, error_messages, exit_codes, terminal

COMMANDS = {
    "run": "run",
    "chat": "chat.command",
    "sessions": "sessions",
    "models": "models",
    "explain": "explain",
    "check": "check",
    "batch": "batch",
    "graph": "graph",
    "local": "local",
    "doctor": "doctor",
}
"""Names of commands, in the order of the help page, and the modules beside this one that have them."""

_CLICK_ERRORS: tuple[type[Any], ...] = tuple(
    kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException"
)


class _Interrupted(Exception):
    """Ctrl-C, under a name that the framework does not take for its own."""


class _CutOff(Exception):
    """A broken pipe, likewise."""


class Commands(TyperGroup):
    """Loads a command's module when the command is asked for."""

    @override
    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    @override
    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            return None
        if cmd_name not in self.commands:
            part = typer.Typer(rich_markup_mode=None, context_settings=_SETTINGS)
            import_module(f".{COMMANDS[cmd_name]}", __package__).register(part)
            loaded = get_group(part).commands
            for one in loaded.values():
                _without_types(one)
            self.commands.update(loaded)
        return self.commands[cmd_name]

    @override
    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] not in COMMANDS:
            for name in COMMANDS:  # a suggestion is made of those that are loaded
                self.get_command(ctx, name)
        return super().resolve_command(ctx, args)

    @override
    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise _Interrupted from None
        except BrokenPipeError:
            raise _CutOff from None


def _without_types(command: Any) -> None:
    """Help pages name arguments for what they are; that they are strings says nothing to anybody at a shell."""
    for param in command.params:
        if param.param_type_name == "argument":
            param.display_type_rich = lambda ctx: None
    for inner in getattr(command, "commands", {}).values():
        _without_types(inner)


_SETTINGS = {"help_option_names": ["-h", "--help"]}

app = typer.Typer(
    name="agent",
    cls=Commands,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=False,
    context_settings=_SETTINGS,
)


def _version(wanted: bool) -> None:
    if wanted:
        from agent import __version__  # lazy: reads the distribution's metadata

        terminal.say(f"agent {__version__}")
        raise typer.Exit(exit_codes.OK)


@app.callback()
def _agent(
    version: Annotated[
        bool, typer.Option("--version", "-V", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Ask language models of any vendor, one or several as a route."""


def command() -> Any:
    """The whole command line as one object, for parsing and for help pages."""
    return get_command(app)


def run_app(arguments: Sequence[str]) -> int:
    """Run one command. Whatever it raises becomes lines on standard error and an exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # a letter that the terminal does not have is no reason to fail
    try:
        with completion.in_bash():
            code = command().main(args=list(arguments) or ["--help"], prog_name="agent", standalone_mode=False)
        sys.stdout.flush()
    except SystemExit as end:  # completion scripts end this way
        return end.code if isinstance(end.code, int) else exit_codes.OK
    except BaseException as error:
        return _ended_by(error, arguments)
    return code if isinstance(code, int) else exit_codes.OK


def _ended_by(error: BaseException, arguments: Sequence[str]) -> int:
    if isinstance(error, _CLICK_ERRORS):
        _show_usage(error, arguments)
        return exit_codes.USAGE
    if isinstance(error, (_Interrupted, KeyboardInterrupt, typer.Abort)):
        seen = next((stream for stream in (sys.stderr, sys.stdout) if stream.isatty()), None)
        if seen is not None:  # there is a ^C in the line
            seen.write("\n")
        return exit_codes.INTERRUPTED
    if isinstance(error, (_CutOff, BrokenPipeError)):
        return error_messages.unwritten(BrokenPipeError())
    if isinstance(error, (AgentError, exit_codes.Problem)):
        error_messages.tell_failure(error)
        return error_messages.exit_code(error)
    if os.environ.get("AGENT_TRACEBACK"):
        raise error
    if isinstance(error, OSError):
        return error_messages.unwritten(error)
    terminal.complain(
        f"{type(error).__name__}: {error}", "This is a mistake in this program; AGENT_TRACEBACK=1 shows where it is."
    )
    return exit_codes.FAILED


def _show_usage(error: Any, arguments: Sequence[str]) -> None:
    context = error.ctx or _context_of(arguments)
    sys.stderr.write(f"{context.get_usage()}\n")
    terminal.complain(error.format_message(), f"{context.command_path} --help")


def _context_of(arguments: Sequence[str]) -> Any:
    """Where the options of the parser's own errors belong, which it does not say."""
    group = command()
    top = group.make_context("agent", [], resilient_parsing=True)
    named = group.get_command(top, next(iter(arguments), ""))
    return top if named is None else named.make_context(named.name, [], parent=top, resilient_parsing=True)
