"""`agent sessions` and `agent graph`: list, show, export, fork, delete and draw stored conversations."""

from __future__ import annotations

import re
import sys
import tempfile
import webbrowser
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from agent.graph import DAG
from agent.stores import ConflictError
from agent.stores.base import SessionRecord, check_session_id

from . import options
from .chat import complete_session
from .chat.commands import format_count, format_summaries
from .chat.records import (
    create_fork,
    decode_dag,
    draw_tree,
    format_nodes,
    list_summaries,
    load_by_prefix,
    load_models,
    load_tree,
    summarize_record,
    to_session_dict,
    write_transcript,
    write_tree,
)
from .errors import CommandError, ExitCode
from .terminal import output_width, sanitize_line, write_json, write_line, write_note

IdArgument: TypeAlias = Annotated[
    str,
    typer.Argument(
        metavar="ID", help="The session id, or the start of it.", autocompletion=complete_session, show_default=False
    ),
]
LimitOption: TypeAlias = Annotated[
    int, typer.Option("--limit", "-n", min=1, metavar="N", help="Maximum number of sessions.")
]
ForceOption: TypeAlias = Annotated[bool, typer.Option("--force", "-f", help="Replace an existing file.")]


def register(app: typer.Typer) -> None:
    group = typer.Typer(rich_markup_mode=None, no_args_is_help=False)
    group.callback(invoke_without_command=True)(sessions)
    group.command("list")(list_sessions)
    group.command("show")(show_session)
    group.command("export")(export_session)
    group.command("delete")(delete_session)
    group.command("fork")(fork_session)
    group.command("graph")(draw_session)
    app.add_typer(group, name="sessions")
    app.command("graph")(show_graph)


def sessions(context: typer.Context, limit: LimitOption = 20, json: options.JsonOption = False) -> None:
    """List, show, export, fork and delete sessions.

    Without a command, lists the sessions.
    """
    if context.invoked_subcommand is None:
        list_sessions(limit, json)


def list_sessions(limit: LimitOption = 20, json: options.JsonOption = False) -> None:
    """List the sessions, latest first."""
    with options.open_session_store() as store:
        summaries = list_summaries(store, limit)
    if json:
        write_json([item.to_dict() for item in summaries])
    elif not summaries:
        write_note("There are no stored sessions. Start one with: agent chat")
    else:
        for line in format_summaries(summaries, output_width()):
            write_line(line)


def _load_session(id: str) -> SessionRecord:
    with options.open_session_store() as store:
        return load_by_prefix(store, id)


def show_session(id: IdArgument, json: options.JsonOption = False) -> None:
    """Show a conversation."""
    record = _load_session(id)
    dag = decode_dag(record)
    if json:
        write_json(to_session_dict(dag, record.id, record.title, record))
        return
    for text, style in format_nodes(dag):
        write_line(text, style)


def export_session(
    id: IdArgument,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A .md, .txt, .json or .html file.")],
    force: ForceOption = False,
) -> None:
    """Write a conversation to a file."""
    _check_free(file, force=force)
    record = _load_session(id)
    write_transcript(file, decode_dag(record), id=record.id, title=record.title, record=record, replace=force)
    write_note(f"wrote {file}")


def delete_session(
    id: IdArgument, yes: Annotated[bool, typer.Option("--yes", "-y", help="Skip the confirmation.")] = False
) -> None:
    """Delete a session. Its forks are kept."""
    with options.open_session_store() as store:
        record = load_by_prefix(store, id)
        summary = summarize_record(record)
        if not yes:
            title = sanitize_line(summary.title) or "no title"
            _confirm(f"Delete {record.id} ({title}, {format_count(summary.turns, 'turn')})? [y/N] ")
        store.delete(record.id)
    write_note(f"deleted {record.id}")


def _confirm(question: str) -> None:
    if sys.stdin is None or not sys.stdin.isatty():
        raise CommandError("Standard input is not a terminal, so the deletion cannot be confirmed.", fix="Add --yes.")
    sys.stderr.write(question)
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        write_note("nothing was deleted")
        raise typer.Exit(ExitCode.OK)


def fork_session(
    id: IdArgument, new: Annotated[str, typer.Argument(metavar="NEW", help="The id of the new session.")]
) -> None:
    """Copy a session under a new id. The original is unchanged."""
    check_session_id(new)
    with options.open_session_store() as store:
        record = load_by_prefix(store, id)
        dag, models = decode_dag(record), load_models(record)
        try:
            create_fork(store, dag, new, forked_from=record.id, title=record.title, models=models)
        except ConflictError:
            raise CommandError(f"The session {new!r} exists already.", fix="Use another name.") from None
    write_note(f"{new} is a fork of {record.id}; continue it with: agent chat {new}")


def draw_session(
    id: IdArgument,
    file: Annotated[
        Path | None,
        typer.Argument(metavar="FILE", help="A .html page, or a .json graph. By default text.", show_default=False),
    ] = None,
    force: ForceOption = False,
) -> None:
    """Draw a session with its forks and undone turns."""
    with options.open_session_store() as store:
        record = load_by_prefix(store, id)
        tree = load_tree(store, record)
    if file is None:
        write_line(draw_tree(tree, None, output_width()))
        return
    _check_free(file, force=force)
    write_tree(file, tree, record.title or record.id, replace=force)
    write_note(f"wrote {file}")


def _check_free(file: Path, *, force: bool) -> None:
    if file.is_file() and not force:
        raise CommandError(f"{file} exists already.", fix="Name another file, or add --force.")


def show_graph(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A graph that DAG.save() or `agent chat` wrote.")],
    out: Annotated[
        Path | None, options.option("--out", "-o", metavar="PAGE", help="The HTML page; by default a temporary file.")
    ] = None,
    mermaid: Annotated[bool, typer.Option("--mermaid", help="Print a Mermaid diagram.")] = False,
    text: Annotated[bool, typer.Option("--text", help="Print text.")] = False,
    no_open: Annotated[bool, typer.Option("--no-open", help="Write the page without opening a browser.")] = False,
) -> None:
    """Show a conversation graph in the browser."""
    if mermaid and text:
        raise CommandError("--mermaid and --text exclude each other.", fix="Pass one of them.")
    if (mermaid or text) and (out is not None or no_open):
        raise CommandError("--out and --no-open apply to pages.", fix="Remove --mermaid and --text.")
    path = Path(file).expanduser()
    try:
        dag = DAG.load(path)
    except OSError as error:
        raise CommandError(f"{file} cannot be read: {error.strerror or error}.", fix="Check the path.") from None
    if not len(dag):
        raise CommandError(f"{file} contains no conversation.", fix="Write one with: agent sessions graph ID FILE.json")
    if mermaid or text:
        write_line(dag.mermaid() if mermaid else str(dag))
        return
    if (page := out) is None:  # in a new folder that only this user can read
        name = re.sub("[^A-Za-z0-9_-]+", "-", path.stem)[:60] or "graph"
        page = Path(tempfile.mkdtemp(prefix="agent-graph-"), f"{name}.html")
    dag.save_html(page, title=path.stem)
    write_line(str(page))
    if not no_open and not webbrowser.open(page.resolve().as_uri()):
        write_note("No browser was found. Open the page manually.")
