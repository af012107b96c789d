"""`agent sessions`: the conversations that are kept. List them, read them, write them to files, branch off, delete."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from agent.stores import ConflictError
from agent.stores.base import check_session_id

from . import exit_codes, options, targets
from .chat.command import complete_session
from .chat.commands import table_of
from .chat.conversation import chosen_models
from .chat.records import copied, dag_of, family_of, found, summaries, summary_of
from .chat.transcripts import data_of, lines_of, picture_of, write_graph, write_transcript
from .tables import room
from .terminal import as_json, note, one_line, say, write

Id: TypeAlias = Annotated[
    str,
    typer.Argument(
        metavar="ID", help="The session, or how its name begins.", autocompletion=complete_session, show_default=False
    ),
]
Limit: TypeAlias = Annotated[int, typer.Option("--limit", "-n", min=1, metavar="N", help="How many at most.")]


def register(app: typer.Typer) -> None:
    part = typer.Typer(rich_markup_mode=None, no_args_is_help=False)
    part.callback(invoke_without_command=True)(sessions)
    for command in (list_, show, export, delete, fork, graph):
        part.command(command.__name__.rstrip("_"))(command)
    app.add_typer(part, name="sessions")


def sessions(context: typer.Context, limit: Limit = 20, json: options.AsJson = False) -> None:
    """List, show, fork and delete what is kept.

    Without a command, the conversations are listed.
    """
    if context.invoked_subcommand is None:
        list_(limit, json)


def list_(limit: Limit = 20, json: options.AsJson = False) -> None:
    """List the sessions, the latest first."""
    with targets.session_store() as store:
        found = summaries(store, limit)
    if json:
        write(as_json([one.to_dict() for one in found]) + "\n")
    elif not found:
        note("Nothing is kept yet. Start a conversation with: agent chat")
    else:
        for line in table_of(found, room()):
            say(line)


def show(id: Id, json: options.AsJson = False) -> None:
    """Show what was said."""
    with targets.session_store() as store:
        record = found(store, id)
    dag = dag_of(record)
    if json:
        write(as_json(data_of(dag, record.id, record.title, record)) + "\n")
        return
    for text, style in lines_of(dag):
        say(text, style)


def export(
    id: Id,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Its ending says what it is: .md, .txt, .json, .html.")],
    force: Annotated[bool, typer.Option("--force", "-f", help="Replace a file that is there.")] = False,
) -> None:
    """Write what was said to a file."""
    _check_free(file, force=force)
    with targets.session_store() as store:
        record = found(store, id)
    write_transcript(file, dag_of(record), id=record.id, title=record.title, record=record, replace=force)
    note(f"wrote {file}")


def delete(
    id: Id, yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask whether it is meant.")] = False
) -> None:
    """Delete a session with everything that was said in it. Its forks stay."""
    with targets.session_store() as store:
        record = found(store, id)
        summary = summary_of(record)
        if not yes:
            _ask(f"Delete {record.id} ({one_line(summary.title) or 'no title'}, turns: {summary.turns})? [y/N] ")
        store.delete(record.id)
    note(f"deleted {record.id}")


def _ask(question: str) -> None:
    if sys.stdin is None or not sys.stdin.isatty():
        raise exit_codes.Problem("Nobody is there to say whether it is meant.", fix="Add --yes.")
    sys.stderr.write(question)
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        note("nothing was deleted")
        raise typer.Exit(exit_codes.OK)


def fork(id: Id, new: Annotated[str, typer.Argument(metavar="NEW", help="The name of the new session.")]) -> None:
    """Begin a new session where another one is now. The other one stays as it is."""
    check_session_id(new)
    with targets.session_store() as store:
        record = found(store, id)
        try:
            copied(
                store,
                dag_of(record),
                new,
                forked_from=record.id,
                title=record.title,
                models=chosen_models(record),
            )
        except ConflictError:
            raise exit_codes.Problem(f"There is a session {new!r} already.", fix="Use another name.") from None
    note(f"{new} goes on from {record.id}; talk there with: agent chat {new}")


def graph(
    id: Id,
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="FILE", help="Write it there: a page if it ends in .html, a graph if in .json.", show_default=False
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", "-f", help="Replace a file that is there.")] = False,
) -> None:
    """Draw a session with its forks and what was undone."""
    with targets.session_store() as store:
        record = found(store, id)
        family = family_of(store, record)
    if file is None:
        say(picture_of(family, None, room()))
        return
    _check_free(file, force=force)
    write_graph(file, family, record.title or record.id, replace=force)
    note(f"wrote {file}")


def _check_free(file: Path, *, force: bool) -> None:
    if file.is_file() and not force:
        raise exit_codes.Problem(f"There is {file} already.", fix="Name another file, or add --force.")
