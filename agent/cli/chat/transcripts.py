"""A conversation to read: as lines for a terminal, as Markdown, as JSON, as a page; and written to a file."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic_core import to_jsonable_python

from ...errors import ConfigurationError
from ...graph import DAG, Message, Node, Role, SystemPrompt, ToolExecution
from ...graph.drawing import drawn
from ...graph.node import causal_order
from ...stores.files import replace_file
from ...types import Session, ToolCall
from ..tables import cells, cut
from ..terminal import Style, as_json, clean, one_line
from .records import Family, is_question, model_of

if TYPE_CHECKING:
    from ...stores.base import SessionRecord


_WIDTH = 100


def lines_of(dag: DAG, leave_out: Collection[str] = ()) -> Iterator[tuple[str, Style]]:
    """What was said, as a chat shows it, cleaned, each piece with its style. Nodes may be left out by their ids."""
    first = True
    for node in dag.nodes():
        if node.id in leave_out:
            continue
        match node.data:
            case SystemPrompt(content):
                yield f"instructions: {one_line(content)}", "dim"
            case ToolExecution():
                said = "".join(part.text or "" for part in node.data.result)
                yield returned(node.data.tool_name, said, failed=node.data.is_error), "dim"
            case Message():
                if is_question(node) and not first:
                    yield "", "plain"
                yield from _message_lines(node, node.data)
                first = False
            case _:
                pass


def _message_lines(node: Node, message: Message) -> Iterator[tuple[str, Style]]:
    if is_question(node):
        yield quoted(said_in(message)), "bold"
    elif message.role is Role.ASSISTANT:
        if text := said_in(message):
            yield text, "plain"
        for part in message.parts:
            if isinstance(part, ToolCall):
                yield called(part.name, part.arguments), "dim"
    elif message.role is Role.SYSTEM:
        yield f"instructions: {one_line(message.text)}", "dim"


def said_in(message: Message) -> str:
    """The words of a message, cleaned; what is not text is named."""
    texts = [
        part.text or f"[{part.type}]" for part in message.parts if not isinstance(part, ToolCall) and _is_shown(part)
    ]
    return clean("\n".join(texts)).strip("\n")


def _is_shown(part: Any) -> bool:
    return part.type not in ("thinking", "redacted_thinking")


def quoted(text: str) -> str:
    """A question, with the prompt before it."""
    return "\n".join(f"{'>' if at == 0 else '.'} {line}" for at, line in enumerate(text.split("\n")))


def called(name: str, arguments: Any) -> str:
    """A call of a tool, in one line that may be cut."""
    return _cut(f"→ {one_line(call_of(name, arguments))}")


def call_of(name: str, arguments: Any) -> str:
    """A call of a tool, all of it: what would command a terminal is seen as an escape."""
    given = (
        f"{key}={as_json(to_jsonable_python(value, fallback=str))}" for key, value in dict(arguments or {}).items()
    )
    return clean(f"{name}({', '.join(given)})")


def returned(name: str, text: str, *, failed: bool = False) -> str:
    """What a tool gave back, in one line."""
    return _cut(f"{'✗' if failed else '←'} {one_line(f'{name}: {text}')}")


def _cut(line: str) -> str:
    return line if len(line) <= _WIDTH else f"{line[: _WIDTH - 1]}…"


def markdown_of(dag: DAG, title: str) -> str:
    """The conversation as a document."""
    blocks = [f"# {one_line(title) or 'Conversation'}"]
    for node in dag.nodes():
        match node.data:
            case SystemPrompt(content):
                blocks.append(f"*Instructions:* {clean(content)}")
            case Message() if is_question(node):
                blocks.append(f"**You:** {said_in(node.data)}")
            case Message(role=Role.ASSISTANT):
                if text := said_in(node.data):
                    blocks.append(f"**{one_line(model_of(node)) or 'Model'}:** {text}")
                blocks += [
                    f"`{called(part.name, part.arguments)}`" for part in node.data.parts if isinstance(part, ToolCall)
                ]
            case ToolExecution():
                said = "".join(part.text or "" for part in node.data.result)
                blocks.append(f"`{returned(node.data.tool_name, said, failed=node.data.is_error)}`")
            case _:
                pass
    return "\n\n".join(blocks) + "\n"


def data_of(dag: DAG, id: str, title: str, record: SessionRecord | None = None) -> dict[str, Any]:
    """The conversation as plain JSON, from which `AgentSession.of` goes on."""
    messages: list[Message] = []
    parent: str | None = None
    for node in dag.nodes():
        if isinstance(node.data, Message):
            facts = {"id": node.id, "parent_id": parent, "timestamp": node.timestamp}
            messages.append(node.data.model_copy(update=facts))
            parent = node.id
    created = updated = None
    if record is not None:
        created = datetime.fromtimestamp(record.created_at, UTC)
        updated = datetime.fromtimestamp(record.updated_at, UTC)
    return Session(id=id, title=title, messages=messages, created_at=created, updated_at=updated).to_dict()


def write_transcript(
    path: Path, dag: DAG, *, id: str, title: str, record: SessionRecord | None = None, replace: bool = False
) -> None:
    """Write a conversation to a file whose ending says how: .md, .txt, .json or .html.

    Args:
        replace: Whether a file that is there may go. Otherwise it is an error, and nothing is written.
    """
    ending = path.suffix.lower()
    if ending in (".md", ".txt"):
        text = markdown_of(dag, title)
    elif ending == ".json":
        text = as_json(data_of(dag, id, title, record)) + "\n"
    elif ending == ".html":
        text = dag.html(title=one_line(title) or id)
    else:
        raise ConfigurationError(
            f"{path.name!r} does not say what to write.", field="file", fix="End it in .md, .txt, .json or .html."
        )
    check_free(path, replace=replace)
    replace_file(path, [text.encode("utf-8", "replace")])


def check_free(path: Path, *, replace: bool) -> None:
    """Nothing of anybody's is overwritten unless they say so."""
    if path.is_dir() or (path.exists() and not replace):
        raise ConfigurationError(f"There is {path} already.", field="file", fix="Name another file.")


_NODE = "●"


def picture_of(family: Family, here: str | None = None, columns: int | None = None) -> str:
    """The drawing.

    Args:
        family: What is drawn.
        here: The session that somebody is in.
        columns: Lines are cut to that; None for as long as they are.
    """
    marks = {node.id: _mark(node, family, here) for node in causal_order(family.heads)}
    marked = iter(marks.values())
    lines: list[str] = []
    for line in drawn(family.heads).split("\n"):
        # Every node has one line, in causal order, and only these lines begin with lanes and its dot.
        mark = next(marked, "") if _NODE in line else ""
        room = None if columns is None else max(20, columns - 1 - cells(mark))
        lines.append((line if room is None else cut(line, room)) + mark)
    return "\n".join(lines)


def write_graph(path: Path, family: Family, title: str, *, replace: bool = False) -> None:
    """The graph as a page, or as a file that `agent graph` and `DAG.load` read: its ending says which."""
    ending = path.suffix.lower()
    if ending not in (".html", ".json"):
        raise ConfigurationError(
            f"{path.name!r} does not say what to write.", field="file", fix="End it in .html for a page, or in .json."
        )
    check_free(path, replace=replace)
    dag = DAG(family.heads)
    if ending == ".html":
        dag.save_html(path, title=one_line(title))
    else:
        dag.save(path)


def _mark(node: Node, family: Family, here: str | None) -> str:
    names = family.names.get(node.id, [])
    if names:
        return f"  ← {', '.join(f'{name} (here)' if name == here else name for name in names)}"
    return "  ← undone" if node.id in family.undone else ""
