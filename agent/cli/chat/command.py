"""`agent chat`: a conversation at the terminal, or one that a pipe holds. It is kept, and can be gone on with."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agent.errors import AgentError

from .. import attachments, exit_codes, options, references, targets
from .commands import completions
from .conversation import Asking, Conversation, chosen_models
from .input import Keyboard, Piped, Prompted
from .records import latest, loaded
from .repl import Chat

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.stores import SqliteStore
    from agent.stores.base import SessionRecord

    from .input import Lines

HISTORY = "chat_history"
"""The file with the lines that were typed, in the folder of `targets.home`."""


def register(app: typer.Typer) -> None:
    app.command("chat")(chat)


def complete_session(incomplete: str) -> list[str]:
    """Names of sessions, the latest first. A key that is pressed makes no files, and no errors either."""
    if not (targets.home() / targets.SESSIONS).is_file():
        return []
    try:
        with targets.session_store() as store:
            return [one.id for one in store.list(limit=200) if one.id.startswith(incomplete)]
    except (AgentError, exit_codes.Problem):
        return []


def chat(
    session: Annotated[
        str | None,
        typer.Argument(
            metavar="SESSION",
            help="The session to go on with, or the name of a new one. By default a new one with a short name.",
            autocompletion=complete_session,
            show_default=False,
        ),
    ] = None,
    models: options.Models = None,
    strategy: options.Strategy = None,
    system: options.System = None,
    tool: options.Tools = None,
    allow_exec: Annotated[
        bool, typer.Option("--allow-exec", help="Let tools run that execute code, without asking.")
    ] = False,
    go_on: Annotated[bool, typer.Option("--continue", "-c", help="Go on with the latest session.")] = False,
    new: Annotated[bool, typer.Option("--new", help="Begin a new session; it is an error if there is one.")] = False,
) -> None:
    """Talk with a model. What is said is kept, and /help lists what else can be done.

    If standard input is a pipe, each of its lines is a turn, and only answers go to standard output.
    """
    if go_on and (session or new):
        raise exit_codes.Problem(
            "--continue goes on with the latest session.", fix="Leave out --continue, or the name and --new."
        )
    with targets.session_store() as store:
        record = _record(store, session, go_on=go_on, new=new)
        talking = _prepared(
            store,
            record,
            {"models": models or (), "strategy": strategy, "allow_exec": allow_exec},
            name=None if record is not None else session,
            system=system,
            tools=references.tools(tool) if tool else (),
        )
        raise typer.Exit(talking.talk())


def _record(store: SqliteStore, session: str | None, *, go_on: bool, new: bool) -> SessionRecord | None:
    """The session to go on with, if there is one."""
    if go_on:
        return latest(store)
    record = None if session is None else loaded(store, session)
    if new and record is not None:
        raise exit_codes.Problem(f"There is a session {session!r} already.", fix="Leave out --new to go on with it.")
    return record


def _prepared(
    store: SqliteStore, record: SessionRecord | None, how: dict[str, Any], *, name: Any, system: Any, tools: Any
) -> Chat:
    before = chosen_models(record) if record is not None else []
    asked = Asking(
        make=lambda names: targets.caller(names, how["strategy"]),
        models=tuple(how["models"]) or tuple(before) or (targets.default_model(),),
        tools=tools,
        before_tool_call=lambda call, context: talking.approve(call, context),
        loop=targets.loop(allow_exec=how["allow_exec"]),
    )
    conversation = Conversation(store, asked, record, name=name, system=system)
    talking = Chat(conversation, _lines(lambda: talking), attachments.part_of)
    return talking


def _lines(talking: Callable[[], Chat]) -> Lines:
    """A keyboard if somebody sits there, a pipe otherwise."""
    if sys.stdin is None:  # it was closed
        return Piped(())
    if not sys.stdin.isatty():
        return Piped(getattr(sys.stdin, "buffer", sys.stdin))
    if not sys.stdout.isatty():
        return Prompted()
    return Keyboard(targets.home() / HISTORY, lambda line: completions(talking(), line))
