"""A graph in Mermaid's language, for documents that draw it."""

from __future__ import annotations

from collections.abc import Sequence

from ..types import Message, NodeData, Role, StopReason
from .drawing import label
from .node import Node, causal_order

_HEAD = """graph TD
    classDef userSide fill:#e1f5fe,stroke:#01579b,color:#01579b
    classDef assistantSide fill:#e8f5e9,stroke:#1b5e20,color:#1b5e20"""
_ESCAPES = {"&": "#amp;", '"': "#quot;", "<": "#lt;", ">": "#gt;", "#": "#35;", ";": "#59;", "`": "#96;", "\\": "#92;"}


def mermaid(heads: Sequence[Node]) -> str:
    """Nodes by number, so that no id or text of anybody's can be read as language."""
    lines = [_HEAD]
    number: dict[int, int] = {}
    for place, node in enumerate(causal_order(heads)):
        number[id(node)] = place
        lines.append(f'    n{place}["{_escaped(label(node.data, 40))}"]:::{side(node.data)}')
        lines += [f"    n{number[id(parent)]} --> n{place}" for parent in node.parents]
    return "\n".join(lines)


def side(data: NodeData) -> str:
    """Whether the model said it, or somebody here."""
    if isinstance(data, StopReason) or (isinstance(data, Message) and data.role is Role.ASSISTANT):
        return "assistantSide"
    return "userSide"


def _escaped(text: str) -> str:
    return "".join(_ESCAPES.get(character, character) for character in text)
