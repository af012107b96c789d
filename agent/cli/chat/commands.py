"""The slash commands of a chat, such as `/model`, `/fork` and `/undo`."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import ConfigurationError
from .. import terminal
from ..options import is_url
from ..terminal import (
    format_pairs,
    format_table,
    output_width,
    sanitize_line,
    truncate,
    wrap_text,
    write_line,
    write_note,
)
from .records import (
    SessionSummary,
    SpendingTotal,
    draw_tree,
    format_nodes,
    list_summaries,
    write_transcript,
    write_tree,
)

if TYPE_CHECKING:
    from . import ChatRepl

_LIST_LIMIT = 20


@dataclass(frozen=True)
class ChatCommand:
    """A slash command, the placeholder of its argument, and its help text."""

    run: Callable[[ChatRepl, str], None]
    argument: str
    help: str


def _model(repl: ChatRepl, argument: str) -> None:
    settings = repl.session.settings
    if argument:
        settings.set_models(argument.replace(",", " ").split())
    write_note(f"model: {', '.join(settings.models)}")


def _fork(repl: ChatRepl, argument: str) -> None:
    old_id = repl.session.fork(argument or None)
    write_note(f"now in {repl.session.id}; {old_id} is unchanged (/switch {old_id})")


def _switch(repl: ChatRepl, argument: str) -> None:
    session = repl.session
    if not argument:
        names = sorted({name for sessions in session.load_tree().sessions.values() for name in sessions})
        for name in names or [session.id]:
            write_line(f"{'*' if name == session.id else ' '} {name}")
        return
    session.switch(argument)
    write_note(f"now in {session.id}, {format_count(session.turns, 'turn')}")


def _undo(repl: ChatRepl, argument: str) -> None:
    session = repl.session
    if argument and not (argument.isdigit() and int(argument)):
        raise ConfigurationError(
            f"{argument!r} is not a number of turns.", field="/undo", fix="Write /undo or /undo 2."
        )
    before = session.instructions
    turns = int(argument or 1)
    session.undo(turns)
    message = f"undid {format_count(turns, 'turn')}; {format_count(session.turns, 'turn')} left"
    if session.instructions != before:
        message += f"; instructions: {sanitize_line(session.instructions or 'none')}"
    write_note(message)


def _graph(repl: ChatRepl, argument: str) -> None:
    session = repl.session
    tree = session.load_tree()
    if not argument:
        write_line(draw_tree(tree, session.id, output_width()))
        return
    path = _parse_path(argument)
    write_tree(path, tree, session.title or session.id)
    write_note(f"wrote {path}")


def _cost(repl: ChatRepl, argument: str) -> None:
    session = repl.session
    rows = [("this conversation", session.spending)]
    if (total := session.total_spending) != session.spending:
        rows.append(("including undone turns", total))
    rows.append(("this chat", session.chat_spending))
    columns = {
        "": [name for name, _ in rows],
        "answers": [str(spending.responses) for _, spending in rows],
        "in": [f"{spending.usage.input_tokens:,}" for _, spending in rows],
        "out": [f"{spending.usage.output_tokens:,}" for _, spending in rows],
        "cost": [_format_cost(spending) for _, spending in rows],
    }
    for line in format_table(columns, output_width(), right=[*columns][1:]):
        write_line(line)
    if session.interrupted:
        write_note(f"excluding {format_count(session.interrupted, 'interrupted turn')}, whose cost is unknown")


def _format_cost(spending: SpendingTotal) -> str:
    if spending.unpriced and spending.unpriced == spending.responses:
        return "unknown"
    return f"{terminal.format_dollars(spending.known_cost)}{' and more' if spending.unpriced else ''}"


def _history(repl: ChatRepl, argument: str) -> None:
    lines = list(format_nodes(repl.session.dag))
    for text, style in lines:
        write_line(text, style)
    if not lines:
        write_note("The conversation is empty.")


def _system(repl: ChatRepl, argument: str) -> None:
    if argument:
        repl.session.set_instructions(argument)
    write_note(f"instructions: {sanitize_line(repl.session.instructions or 'none')}")


def _attach(repl: ChatRepl, argument: str) -> None:
    if not argument:
        raise ConfigurationError("The file name is missing.", field="/attach", fix="Write /attach FILE.")
    repl.attach(argument if is_url(argument) else str(_parse_path(argument)))


def _save(repl: ChatRepl, argument: str) -> None:
    if not argument:
        raise ConfigurationError("The file name is missing.", field="/save", fix="Write /save FILE.md.")
    session, path = repl.session, _parse_path(argument)
    write_transcript(path, session.dag, id=session.id, title=session.title)
    write_note(f"wrote {path}")


def _sessions(repl: ChatRepl, argument: str) -> None:
    summaries = list_summaries(repl.session.store, _LIST_LIMIT)
    if not summaries:
        write_note("There are no stored sessions.")
        return
    for line in format_summaries(summaries, output_width(), current=repl.session.id):
        write_line(line)


def format_summaries(summaries: Sequence[SessionSummary], limit: int | None, current: str | None = None) -> list[str]:
    """Format sessions as a table of at most `limit` columns; `current` is marked."""
    columns = {
        "session": [f"{item.id}{' *' if item.id == current else ''}" for item in summaries],
        "title": [truncate(sanitize_line(item.title), 40) for item in summaries],
        "turns": [str(item.turns) for item in summaries],
        "model": [item.model for item in summaries],
        "updated": [
            datetime.fromtimestamp(item.updated_at).astimezone().strftime("%Y-%m-%d %H:%M") for item in summaries
        ],
        "cost": [terminal.format_dollars(item.cost) for item in summaries],
    }
    return format_table(columns, limit, right={"turns", "cost"}, elastic={"title", "model"})


def _help(repl: ChatRepl, argument: str) -> None:
    for line in format_help(output_width()):
        write_line(line)


COMMANDS: Mapping[str, ChatCommand] = {
    "model": ChatCommand(_model, "NAME…", "use another model from here on; several form a route"),
    "fork": ChatCommand(_fork, "[NAME]", "continue in a new session; the old one is unchanged"),
    "switch": ChatCommand(_switch, "[NAME]", "switch to another session; without a name, list the forks"),
    "undo": ChatCommand(_undo, "[N]", "undo the last turn, or the last N"),
    "retry": ChatCommand(lambda repl, _: repl.run_turn(repl.session.retry_turn()), "", "repeat the last question"),
    "graph": ChatCommand(_graph, "[FILE]", "draw the session with its forks, or write it to a .html or .json file"),
    "cost": ChatCommand(_cost, "", "show tokens and cost of the conversation and of this chat"),
    "history": ChatCommand(_history, "", "show the conversation"),
    "system": ChatCommand(_system, "[TEXT]", "show or replace the instructions"),
    "attach": ChatCommand(_attach, "FILE", "attach a file to the next question"),
    "save": ChatCommand(_save, "FILE", "write the conversation to a .md, .txt, .json or .html file"),
    "sessions": ChatCommand(_sessions, "", "list the latest sessions"),
    "help": ChatCommand(_help, "", "show this list"),
    "quit": ChatCommand(lambda repl, _: repl.leave(), "", "leave, as Ctrl-D does"),
}
_ALIASES = {"exit": "quit", "q": "quit", "?": "help", "h": "help"}


def format_help(limit: int | None = None) -> list[str]:
    """Format the list of commands in at most `limit` columns."""
    commands = [(f"/{name} {command.argument}".rstrip(), command.help) for name, command in COMMANDS.items()]
    notes = (
        'A line that ends in \\ continues on the next line; text between """ and """ can span lines.',
        "Ctrl-C interrupts an answer. A line that starts with // is sent with one /.",
    )
    return [*format_pairs(commands, limit), "", *(line for note in notes for line in wrap_text(note, limit))]


def run_command(repl: ChatRepl, line: str) -> None:
    """Run the slash command of an input line."""
    name, _, argument = line.removeprefix("/").partition(" ")
    name = name.strip().lower()
    command = COMMANDS.get(_ALIASES.get(name, name))
    if command is None:
        near = difflib.get_close_matches(name, COMMANDS, n=1, cutoff=0.5)
        raise ConfigurationError(
            f"There is no command /{name}.",
            field="command",
            fix=f"Did you mean /{near[0]}?" if near else "See /help. To send the line as text, start it with //",
        )
    command.run(repl, argument.strip())


def complete_line(repl: ChatRepl, line: str) -> list[str]:
    """Complete commands, session ids and file names."""
    name, space, argument = line.partition(" ")
    if not line.startswith("/"):
        return []
    if not space:
        return [f"/{command} " for command in COMMANDS if command.startswith(name[1:])]
    if name == "/switch":
        headers = repl.session.store.list(limit=200)
        return [f"{name} {header.id}" for header in headers if header.id.startswith(argument)]
    if name in ("/attach", "/save", "/graph"):
        path = _parse_path(argument) if argument else Path()
        folder = path if not argument or argument.endswith("/") else path.parent
        prefix = "" if folder == path else path.name
        stem = argument[: len(argument) - len(prefix)] if prefix else argument
        entries = sorted(folder.iterdir()) if folder.is_dir() else []
        return [
            f"{name} {stem}{entry.name}{'/' if entry.is_dir() else ''}"
            for entry in entries
            if entry.name.startswith(prefix)
        ]
    return []


def _parse_path(argument: str) -> Path:
    return Path(argument.strip("\"'")).expanduser()


def format_count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
