"""The commands of a chat: `/model`, `/fork`, `/undo` and the rest. Each says what it did in a line or shows what it was
asked for.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import ConfigurationError
from .. import terminal
from ..attachments import is_address
from ..tables import cut, hanging, room, table, wrapped
from ..terminal import note, one_line, say
from .records import Spent, Summary, summaries
from .transcripts import lines_of, picture_of, write_graph, write_transcript

if TYPE_CHECKING:
    from .repl import Chat

_LISTED = 20


@dataclass(frozen=True)
class Command:
    """One command."""

    act: Callable[[Chat, str], None]
    arguments: str
    about: str


def _model(chat: Chat, given: str) -> None:
    conversation = chat.conversation
    if given:
        conversation.asking.change(given.replace(",", " ").split())
    note(f"{'now ' if given else ''}asking {', '.join(conversation.asking.models)}")


def _fork(chat: Chat, given: str) -> None:
    old = chat.conversation.fork(given or None)
    note(f"now in {chat.conversation.id}; {old} stays as it is (/switch {old})")


def _switch(chat: Chat, given: str) -> None:
    if not given:
        _branches(chat)
        return
    chat.conversation.switch(given)
    note(f"now in {chat.conversation.id}, {_counted(chat.conversation.turns, 'turn')}")


def _branches(chat: Chat) -> None:
    names = sorted({name for standing in chat.conversation.family().names.values() for name in standing})
    for name in names or [chat.conversation.id]:
        say(f"{'*' if name == chat.conversation.id else ' '} {name}")


def _undo(chat: Chat, given: str) -> None:
    conversation = chat.conversation
    if given and not (given.isdigit() and int(given)):
        raise ConfigurationError(f"{given!r} is no number of turns.", field="/undo", fix="Write /undo or /undo 2.")
    before = conversation.instructions
    turns = int(given or 1)
    conversation.undo(turns)
    said = f"went back {_counted(turns, 'turn')}; {_counted(conversation.turns, 'turn')} left"
    if conversation.instructions != before:
        said += f"; instructions: {one_line(conversation.instructions or 'none')}"
    note(said)


def _retry(chat: Chat, given: str) -> None:
    chat.take_turn(chat.conversation.ask_again())


def _graph(chat: Chat, given: str) -> None:
    family = chat.conversation.family()
    if not given:
        say(picture_of(family, chat.conversation.id, room()))
        return
    path = _path(given)
    write_graph(path, family, chat.conversation.title or chat.conversation.id)
    note(f"wrote {path}")


def _cost(chat: Chat, given: str) -> None:
    conversation = chat.conversation
    lines = [("this conversation", conversation.spent)]
    if (in_all := conversation.spent_in_all) != conversation.spent:
        lines.append(("with all that was undone", in_all))
    lines.append(("this run", conversation.run_spent))
    counted = zip(*((name, *spent_cells(spent)) for name, spent in lines), strict=True)
    headers = ("", "answers", "in", "out", "cost")
    for line in table(dict(zip(headers, counted, strict=True)), room(), right=headers[1:]):
        say(line)
    if conversation.interrupted:
        note(f"{_counted(conversation.interrupted, 'interrupted turn')} not counted: the cost is not known")


def spent_cells(spent: Spent) -> Sequence[str]:
    """Answers, tokens in, tokens out, dollars."""
    usage = spent.usage
    return str(spent.answers), f"{usage.input_tokens:,}", f"{usage.output_tokens:,}", dollars(spent)


def dollars(spent: Spent) -> str:
    """The cost, and whether it is all of it."""
    if spent.known_cost is None:
        return "unknown" if spent.answers else "$0"
    return f"{terminal.dollars(spent.cost)}{' and more' if spent.unknown else ''}"


def _history(chat: Chat, given: str) -> None:
    shown = False
    for text, style in lines_of(chat.conversation.dag):
        say(text, style)
        shown = True
    if not shown:
        note("nothing has been said yet")


def _system(chat: Chat, given: str) -> None:
    if given:
        chat.conversation.instruct(given)
    note(f"instructions: {one_line(chat.conversation.instructions or 'none')}")


def _attach(chat: Chat, given: str) -> None:
    if not given:
        raise ConfigurationError("No file is named.", field="/attach", fix="Write /attach FILE.")
    chat.attach(given if is_address(given) else str(_path(given)))


def _save(chat: Chat, given: str) -> None:
    if not given:
        raise ConfigurationError("No file is named.", field="/save", fix="Write /save FILE.md.")
    conversation, path = chat.conversation, _path(given)
    write_transcript(path, conversation.dag, id=conversation.id, title=conversation.title)
    note(f"wrote {path}")


def _sessions(chat: Chat, given: str) -> None:
    found = summaries(chat.conversation.store, _LISTED)
    if not found:
        note("nothing is kept yet")
    for line in table_of(found, room(), here=chat.conversation.id) if found else ():
        say(line)


def table_of(found: Sequence[Summary], most: int | None, here: str | None = None) -> list[str]:
    """Sessions as a table for people, in that many columns."""
    columns = {
        "session": [f"{one.id}{' *' if one.id == here else ''}" for one in found],
        "title": [cut(one_line(one.title), 40) for one in found],
        "turns": [str(one.turns) for one in found],
        "model": [one.model for one in found],
        "updated": [datetime.fromtimestamp(one.updated_at).astimezone().strftime("%Y-%m-%d %H:%M") for one in found],
        "cost": [terminal.dollars(one.cost) for one in found],
    }
    return table(columns, most, right={"turns", "cost"}, elastic={"title", "model"})


def _help(chat: Chat, given: str) -> None:
    for line in help_lines(room()):
        say(line)


def _quit(chat: Chat, given: str) -> None:
    chat.leave()


COMMANDS: Mapping[str, Command] = {
    "model": Command(_model, "NAME…", "ask another model from here on; several are a route"),
    "fork": Command(_fork, "[NAME]", "go on in a new branch; the old one stays"),
    "switch": Command(_switch, "[NAME]", "go to another session; without a name, list the branches"),
    "undo": Command(_undo, "[N]", "take back the last turn, or the last N"),
    "retry": Command(_retry, "", "ask the last question again"),
    "graph": Command(_graph, "[FILE]", "draw the conversation with its branches, or write it to a .html or .json file"),
    "cost": Command(_cost, "", "tokens and dollars of the conversation and of this run"),
    "history": Command(_history, "", "show what was said"),
    "system": Command(_system, "[TEXT]", "show the instructions, or give others"),
    "attach": Command(_attach, "FILE", "send a file with the next question"),
    "save": Command(_save, "FILE", "write what was said to a .md, .txt, .json or .html file"),
    "sessions": Command(_sessions, "", "list the latest sessions"),
    "help": Command(_help, "", "this list"),
    "quit": Command(_quit, "", "leave; so does Ctrl-D"),
}
_ALSO = {"exit": "quit", "q": "quit", "?": "help", "h": "help"}


def help_lines(most: int | None = None) -> list[str]:
    """What there is to know about a chat, in that many columns."""
    shown = [(f"/{name} {command.arguments}".rstrip(), command.about) for name, command in COMMANDS.items()]
    notes = (
        'A line that ends in \\ goes on in the next one; a text between """ and """ may have any number of lines.',
        "Ctrl-C stops an answer. A line that begins with // is sent with one /.",
    )
    return [*hanging(shown, most), "", *(line for note in notes for line in wrapped(note, most))]


def obey(chat: Chat, line: str) -> None:
    """Do what a line that begins with a slash says."""
    name, _, rest = line.removeprefix("/").partition(" ")
    name = name.strip().lower()
    command = COMMANDS.get(_ALSO.get(name, name))
    if command is None:
        near = difflib.get_close_matches(name, COMMANDS, n=1, cutoff=0.5)
        raise ConfigurationError(
            f"There is no command /{name}.",
            field="command",
            fix=f"Did you mean /{near[0]}?" if near else "See /help. To send such a line, begin it with //",
        )
    command.act(chat, rest.strip())


def completions(chat: Chat, line: str) -> list[str]:
    """What a line could become: commands, names of sessions, files."""
    name, space, rest = line.partition(" ")
    if not line.startswith("/"):
        return []
    if not space:
        return [f"/{known} " for known in COMMANDS if known.startswith(name[1:])]
    if name == "/switch":
        return [f"{name} {one.id}" for one in chat.conversation.store.list(limit=200) if one.id.startswith(rest)]
    if name in ("/attach", "/save", "/graph"):
        path = _path(rest) if rest else Path()
        folder = path if not rest or rest.endswith("/") else path.parent
        begun = "" if folder == path else path.name
        stem = rest[: len(rest) - len(begun)] if begun else rest
        found = sorted(folder.iterdir()) if folder.is_dir() else []
        return [f"{name} {stem}{one.name}{'/' if one.is_dir() else ''}" for one in found if one.name.startswith(begun)]
    return []


def _path(given: str) -> Path:
    return Path(given.strip("\"'")).expanduser()


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
