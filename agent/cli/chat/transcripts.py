"""Conversations as terminal lines, Markdown, JSON, HTML pages and drawings of the session tree."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import ConfigurationError
from ...graph import DAG, Message, Node, Role, SystemPrompt, ToolExecution
from ...graph.diagrams import draw_text
from ...graph.node import causal_order
from ...stores.files import replace_file
from ...types import Session, ToolCall
from ..output import tool_call_line, tool_result_line
from ..terminal import Style, display_width, format_json, sanitize, sanitize_line, truncate
from .records import SessionTree, is_question, model_name

if TYPE_CHECKING:
    from ...stores.base import SessionRecord


def format_dag(dag: DAG, skip: Collection[str] = ()) -> Iterator[tuple[str, Style]]:
    """Format a conversation as a chat displays it: sanitized texts with styles. `skip` holds node ids."""
    is_first = True
    for node in dag.nodes():
        if node.id in skip:
            continue
        match node.data:
            case SystemPrompt(content):
                yield f"instructions: {sanitize_line(content)}", "dim"
            case ToolExecution():
                yield _format_execution(node.data), "dim"
            case Message():
                if is_question(node) and not is_first:
                    yield "", "plain"
                yield from _format_message(node, node.data)
                is_first = False
            case _:
                pass


def _format_message(node: Node, message: Message) -> Iterator[tuple[str, Style]]:
    if is_question(node):
        lines = _message_text(message).split("\n")
        yield "\n".join(f"{'.' if number else '>'} {line}" for number, line in enumerate(lines)), "bold"
    elif message.role is Role.ASSISTANT:
        if text := _message_text(message):
            yield text, "plain"
        for call in message.parts:
            if isinstance(call, ToolCall):
                yield tool_call_line(call.name, call.arguments), "dim"
    elif message.role is Role.SYSTEM:
        yield f"instructions: {sanitize_line(message.text)}", "dim"


def _format_execution(execution: ToolExecution) -> str:
    text = "".join(part.text or "" for part in execution.result)
    return tool_result_line(execution.tool_name, text, is_error=execution.is_error)


def _message_text(message: Message) -> str:
    """The sanitized text of a message, with placeholders for other content and without thinking."""
    texts = [
        part.text or f"[{part.type}]"
        for part in message.parts
        if not isinstance(part, ToolCall) and part.type not in ("thinking", "redacted_thinking")
    ]
    return sanitize("\n".join(texts)).strip("\n")


def format_markdown(dag: DAG, title: str) -> str:
    blocks = [f"# {sanitize_line(title) or 'Conversation'}"]
    for node in dag.nodes():
        match node.data:
            case SystemPrompt(content):
                blocks.append(f"*Instructions:* {sanitize(content)}")
            case Message() if is_question(node):
                blocks.append(f"**You:** {_message_text(node.data)}")
            case Message(role=Role.ASSISTANT):
                if text := _message_text(node.data):
                    blocks.append(f"**{sanitize_line(model_name(node)) or 'Model'}:** {text}")
                blocks += [
                    f"`{tool_call_line(part.name, part.arguments)}`"
                    for part in node.data.parts
                    if isinstance(part, ToolCall)
                ]
            case ToolExecution():
                blocks.append(f"`{_format_execution(node.data)}`")
            case _:
                pass
    return "\n\n".join(blocks) + "\n"


def to_session_dict(dag: DAG, id: str, title: str, record: SessionRecord | None = None) -> dict[str, Any]:
    """Convert a conversation to the JSON that `AgentSession.of` reads."""
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
    """Write a conversation to a .md, .txt, .json or .html file.

    Args:
        replace: Whether an existing file may be replaced.
    """
    suffix = path.suffix.lower()
    if suffix in (".md", ".txt"):
        text = format_markdown(dag, title)
    elif suffix == ".json":
        text = format_json(to_session_dict(dag, id, title, record)) + "\n"
    elif suffix == ".html":
        text = dag.html(title=sanitize_line(title) or id)
    else:
        raise ConfigurationError(
            f"The file format of {path.name!r} is unknown.", field="file", fix="Use .md, .txt, .json or .html."
        )
    _check_free(path, replace=replace)
    replace_file(path, [text.encode("utf-8", "replace")])


def write_tree(path: Path, tree: SessionTree, title: str, *, replace: bool = False) -> None:
    """Write a session tree to a .html page, or to a .json file for `agent graph` and `DAG.load`."""
    suffix = path.suffix.lower()
    if suffix not in (".html", ".json"):
        raise ConfigurationError(
            f"The file format of {path.name!r} is unknown.", field="file", fix="Use .html or .json."
        )
    _check_free(path, replace=replace)
    dag = DAG(tree.heads)
    if suffix == ".html":
        dag.save_html(path, title=sanitize_line(title))
    else:
        dag.save(path)


def _check_free(path: Path, *, replace: bool) -> None:
    if path.is_dir() or (path.exists() and not replace):
        raise ConfigurationError(f"{path} exists already.", field="file", fix="Name another file.")


_NODE = "●"


def draw_tree(tree: SessionTree, current: str | None = None, limit: int | None = None) -> str:
    """Draw a session tree with the names of its sessions, in lines of at most `limit` columns."""
    labels = iter([_node_label(node, tree, current) for node in causal_order(tree.heads)])
    lines: list[str] = []
    for line in draw_text(tree.heads).split("\n"):
        # Each node has one line with a dot, in causal order.
        label = next(labels, "") if _NODE in line else ""
        if limit is not None:
            line = truncate(line, max(20, limit - 1 - display_width(label)))
        lines.append(line + label)
    return "\n".join(lines)


def _node_label(node: Node, tree: SessionTree, current: str | None) -> str:
    if names := tree.sessions.get(node.id, []):
        return f"  ← {', '.join(f'{name} (here)' if name == current else name for name in names)}"
    return "  ← undone" if node.id in tree.undone else ""
