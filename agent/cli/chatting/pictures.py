"""The graph of a conversation in a terminal: its branches, where each session stands, and what was undone."""

from __future__ import annotations

from pathlib import Path

from ...errors import ConfigurationError
from ...graph import DAG, Node
from ...graph.drawing import drawn
from ...graph.node import causal_order
from ..tables import cells, cut
from ..terminal import one_line
from .records import Family
from .transcripts import check_free

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
