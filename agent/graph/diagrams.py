"""Diagrams of a graph: text with one line per node, Mermaid, and a self-contained HTML page.

Control characters in messages are removed from text, so that they cannot affect the terminal. The HTML page embeds the
graph as JSON in an inert script block. Its content security policy allows the page's own scripts and styles only, by
hash, and no network requests. `viewer_assets` contains the scripts, styles and licenses.
"""

from __future__ import annotations

import html
import json
import re
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from hashlib import sha256
from importlib import resources
from typing import Any

from ..types import (
    Message,
    NodeData,
    Role,
    StopReason,
    SystemPrompt,
    ToolCall,
    ToolDefinitions,
    ToolExecution,
    ToolResult,
)
from .node import Node, causal_order

_WIDTH = 76
_MAX_LANES = 60
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]+")


def draw_text(heads: Sequence[Node]) -> str:
    """Draw the graph as text, oldest node first."""
    nodes = causal_order(heads)
    if not nodes:
        return "(empty)"
    children: dict[str, int] = {}
    for node in nodes:
        for parent in node.parents:
            children[parent.id] = children.get(parent.id, 0) + 1
    lanes = _Lanes()
    try:
        for node in nodes:
            lanes.draw(node, children.get(node.id, 0))
    except _TooWide:
        listed = (f"● {label(node.data)}" for node in nodes)
        return "\n".join((f"({len(nodes):,} nodes with more than {_MAX_LANES} concurrent branches)", *listed))
    return "\n".join(lanes.lines)


class _TooWide(Exception):
    """The graph has more concurrent branches than lanes; drawing them would take quadratic time and space."""


class _Lanes:
    """Columns of the drawing; each leads to the remaining children of a node."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._lanes: list[str | None] = []

    def draw(self, node: Node, children: int) -> None:
        place = self._join(node)
        self._put(place, "●", f" {label(node.data)}")
        self._part(place, node.id, children)

    def _join(self, node: Node) -> int:
        """Join the lanes of all parents in the first one; a node without parents gets a new lane."""
        taken: list[int] = []
        for parent in node.parents:
            place = next((at for at, lane in enumerate(self._lanes) if lane == parent.id and at not in taken), None)
            if place is not None:
                taken.append(place)
        if not taken:
            return self._free()
        taken.sort()
        first = taken[0]
        if len(taken) > 1:
            row = ["─" if first < at < taken[-1] else " " for at in range(len(self._lanes))]
            for at, lane in enumerate(self._lanes):
                if lane is not None:
                    row[at] = "┼" if first < at < taken[-1] else "│"
            for at in taken[1:]:
                row[at] = "┴"
                self._lanes[at] = None
            row[first], row[taken[-1]] = "├", "╯"
            self._write(row, first, taken[-1])
        return first

    def _part(self, place: int, node: str, children: int) -> None:
        """Open a lane for each child; the first child keeps the node's lane."""
        self._lanes[place] = node if children else None
        if children > 1:
            taken = [self._free(node) for _ in range(children - 1)]
            last, begin = max(*taken, place), min(*taken, place)
            row = [" "] * len(self._lanes)
            for at, lane in enumerate(self._lanes):
                inside = begin < at < last
                row[at] = ("┼" if inside else "│") if lane is not None else ("─" if inside else " ")
            for at in taken:
                row[at] = "╭" if at == begin else "╮" if at == last else "┬"
            row[place] = "├" if place == begin else "┤" if place == last else "┼"
            self._write(row, begin, last)
        while self._lanes and self._lanes[-1] is None:
            self._lanes.pop()

    def _free(self, node: str | None = None) -> int:
        """Return an unused lane."""
        for at, lane in enumerate(self._lanes):
            if lane is None and node is not None:
                self._lanes[at] = node
                return at
        if len(self._lanes) == _MAX_LANES:
            raise _TooWide
        self._lanes.append(node)
        return len(self._lanes) - 1

    def _put(self, place: int, mark: str, text: str) -> None:
        row = ["│" if lane is not None else " " for lane in self._lanes]
        row[place] = mark
        self.lines.append(" ".join(row).rstrip() + text)

    def _write(self, row: Sequence[str], begin: int, end: int) -> None:
        text = row[0]
        for at in range(1, len(row)):
            text += ("─" if begin < at <= end else " ") + row[at]
        self.lines.append(text.rstrip())


def label(data: NodeData, width: int = _WIDTH) -> str:
    """Return the kind of a node and the start of its content."""
    match data:
        case SystemPrompt(content):
            return _short("system", content, width)
        case ToolDefinitions():
            return _short("tools", ", ".join(tool.name for tool in data.tools), width)
        case ToolExecution():
            text = "".join(part.text or "" for part in data.result)
            return _short(f"{data.tool_name}{' failed' if data.is_error else ''}", text, width)
        case StopReason(reason):
            return _short("stop", reason, width)
        case Message():
            return _short(data.role.value, _words(data), width)


def _words(message: Message) -> str:
    text: list[str] = []
    for part in message.parts:
        if isinstance(part, ToolCall):
            text.append(f"{part.name}({', '.join(f'{key}={value!r}' for key, value in part.arguments.items())})")
        elif isinstance(part, ToolResult):
            text.append(f"{part.name or part.tool_call_id}: {part.text}" if message.role is Role.TOOL else part.text)
        else:
            text.append(part.text or f"[{part.type}]")
    return " ".join(text)


def _short(kind: str, text: str, width: int) -> str:
    plain = _remove_control_characters(text[: width * 4])
    return f"{_remove_control_characters(kind)}: {plain if len(plain) <= width else plain[: width - 1] + '…'}"


def _remove_control_characters(text: str) -> str:
    """Remove control characters and line breaks."""
    return " ".join(_CONTROL.sub(" ", text).split())


_HEAD = """graph TD
    classDef userSide fill:#e1f5fe,stroke:#01579b,color:#01579b
    classDef assistantSide fill:#e8f5e9,stroke:#1b5e20,color:#1b5e20"""
_ESCAPES = {"&": "#amp;", '"': "#quot;", "<": "#lt;", ">": "#gt;", "#": "#35;", ";": "#59;", "`": "#96;", "\\": "#92;"}


def draw_mermaid(heads: Sequence[Node]) -> str:
    """Draw a Mermaid diagram. Nodes are numbered and labels escaped, so content is never parsed as syntax."""
    lines = [_HEAD]
    number: dict[str, int] = {}
    for place, node in enumerate(causal_order(heads)):
        number[node.id] = place
        text = "".join(_ESCAPES.get(character, character) for character in label(node.data, 40))
        lines.append(f'    n{place}["{text}"]:::{_css_class(node.data)}')
        lines += [f"    n{number[parent.id]} --> n{place}" for parent in node.parents]
    return "\n".join(lines)


def _css_class(data: NodeData) -> str:
    if isinstance(data, StopReason) or (isinstance(data, Message) and data.role is Role.ASSISTANT):
        return "assistantSide"
    return "userSide"


# HTML

_SCRIPTS = (
    "cytoscape.min.js",
    "dagre.min.js",
    "reading.js",
    "folding.js",
    "layers.js",
    "arranging.js",
    "drawing.js",
    "panel.js",
    "viewer.js",
)
"""In dependency order."""
_NOTICES = ("NOTICE", "LICENSE-cytoscape.txt", "LICENSE-dagre.txt")

_PLACE = re.compile("@@([a-z]+)@@")
_SOURCE_MAP = re.compile(r"^//# sourceMappingURL=.*\n?", re.MULTILINE)
_SURROGATES = re.compile("[\ud800-\udfff]")
_NOT_IN_SCRIPTS = re.compile("[<>&\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff\ufffe\uffff\ud800-\udfff]")
"""Characters that could end a script block, start a comment, mislead readers of the source, or break UTF-8."""
_PICTURES = ("image/png", "image/jpeg", "image/gif", "image/webp")


def html_page(graph: Mapping[str, Any], *, title: str = "Conversation") -> str:
    """Return the HTML page for a graph in its saved form. Write it as UTF-8.

    Raises:
        ValueError: The graph contains values that JSON cannot represent, such as NaN.
    """
    static = _static_parts()
    parts = {
        **static,
        "policy": _policy(static["script_digests"], static["style_digests"], pictures=_has_pictures(graph)),
        "title": html.escape(_SURROGATES.sub("\ufffd", title)),
        "graph": _script_safe(graph),
    }
    # A single pass, so that inserted content is not searched for placeholders.
    return _PLACE.sub(lambda place: parts[place[1]], _asset("page.html"))


def _script_safe(graph: Mapping[str, Any]) -> str:
    """Encode the graph as JSON that is safe inside a script element."""
    try:
        text = json.dumps(graph, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the graph cannot be encoded as JSON ({error}); use finite numbers and plain data") from None
    return _NOT_IN_SCRIPTS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _policy(scripts: str, styles: str, *, pictures: bool) -> str:
    """Return the content security policy: only the page's own scripts and styles, and embedded images."""
    rules = {
        "default-src": "'none'",
        "script-src": scripts,
        "script-src-attr": "'none'",
        "style-src": styles,
        "style-src-attr": "'none'",
        "img-src": "data:" if pictures else "'none'",
        "connect-src": "'none'",
        "frame-src": "'none'",
        "object-src": "'none'",
        "worker-src": "'none'",
        "base-uri": "'none'",
        "form-action": "'none'",
        # Blocks DOM injection even if the scripts had a bug.
        "require-trusted-types-for": "'script'",
        "trusted-types": "'none'",
    }
    return "; ".join(f"{name} {value}" for name, value in rules.items())


def _has_pictures(graph: Mapping[str, Any]) -> bool:
    return any(
        part.get("type") in ("image", "image_url") and (part.get("media_type") or "image/png") in _PICTURES
        for node in graph.get("nodes", ())
        for part in _parts(node.get("data", {}))
    )


def _parts(data: Any) -> Iterator[Mapping[str, Any]]:
    """Iterate over all content parts of a node."""
    waiting = [data]
    while waiting:
        value = waiting.pop()
        if isinstance(value, Mapping):
            yield value
            waiting += (value.get("content"), value.get("result"))
        elif isinstance(value, list | tuple):
            waiting += value


@cache
def _static_parts() -> dict[str, str]:
    """Return the parts that are the same on every page."""
    scripts = [_SOURCE_MAP.sub("", _asset(name)) for name in _SCRIPTS]
    style = _asset("viewer.css")
    return {
        "scripts": "\n".join(f"<script>{text}</script>" for text in scripts),
        # cytoscape would add a style element without this id, which the policy forbids.
        "style": f'<style id="__________cytoscape_stylesheet">{style}</style>',
        "script_digests": _digests(scripts),
        "style_digests": _digests([style]),
        "notices": "\n\n".join(_asset(name).strip() for name in _NOTICES),
    }


def _digests(texts: Sequence[str]) -> str:
    return " ".join(f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'" for text in texts)


@cache
def _asset(name: str) -> str:
    return (resources.files(__package__) / "viewer_assets" / name).read_text(encoding="utf-8")
