"""Graphs as files: one JSON document with a version, a node on each line.

A document is written and read node by node, so that a large one never stands in memory as text. Fields that this
version does not know are kept and written again; older versions are read; newer ones are refused, not guessed at.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import ValidationError

from ..errors import ConfigurationError
from ..stores.files import replace_file
from ..types import FrozenDict, Message, NodeData, freeze, read_node_data
from .node import Node

if TYPE_CHECKING:
    from .dag import DAG

FORMAT = "agent.graph"
VERSION = 1
_UNKNOWN = "unknown_fields"
"""Where a node's metadata keeps what this version does not know: `node` and `data`."""
_NODE_FIELDS = frozenset(("id", "parents", "timestamp", "metadata", "data"))
_DOCUMENT_FIELDS = frozenset(("format", "version", "heads", "nodes", "addressed"))


def encode_node(node: Node) -> dict[str, Any]:
    """A node as plain JSON data."""
    metadata = dict(node.metadata)
    unknown: Mapping[str, Any] = metadata.pop(_UNKNOWN, {})
    row: dict[str, Any] = {
        **unknown.get("node", {}),
        "id": node.id,
        "parents": [parent.id for parent in node.parents],
        "timestamp": node.timestamp,
        "data": {**unknown.get("data", {}), **node.data.to_dict()},
    }
    if metadata:
        row["metadata"] = metadata
    return row


def decode_node(row: Mapping[str, Any], known: Mapping[str, Node]) -> Node:
    """The node of a row, whose parents have been read before."""
    try:
        data = dict(row["data"])
        content = read_node_data(data)
        parents = tuple(known[parent] for parent in row["parents"])
        metadata = _metadata(row, data, content)
        return Node(parents, content, str(row["id"]), float(row.get("timestamp") or 0.0), metadata)
    except KeyError as error:
        raise _broken(f"the node {row.get('id')!r} lacks {error}, or comes before its parent") from None
    except (ValidationError, ValueError, TypeError) as error:
        raise _broken(f"the node {row.get('id')!r} cannot be read: {str(error).splitlines()[0]}") from None


def _metadata(row: Mapping[str, Any], data: Mapping[str, Any], content: NodeData) -> Mapping[str, Any]:
    unknown: dict[str, Any] = {}
    if extra := {key: value for key, value in row.items() if key not in _NODE_FIELDS}:
        unknown["node"] = extra
    if not _fields_of(content).issuperset(data):
        unknown["data"] = {key: value for key, value in data.items() if key not in _fields_of(content)}
    metadata = dict(row.get("metadata") or {})
    if unknown:
        metadata[_UNKNOWN] = unknown
    return freeze(metadata) if metadata else FrozenDict()


_ALSO_IN_MESSAGES = ("tool_calls", "tool_name", "tool_use_id", "details", "is_error", "result")
_fields: dict[type[Any], frozenset[str]] = {}


def _fields_of(content: NodeData) -> frozenset[str]:
    kind = type(content)
    if kind not in _fields:
        also = _ALSO_IN_MESSAGES if kind is Message else ()
        _fields[kind] = frozenset(("type", *kind.model_fields, *kind._field_of_alias(), *also))
    return _fields[kind]


# Documents


def encode_document(dag: DAG) -> dict[str, Any]:
    return {
        **dag.extra,
        "format": FORMAT,
        "version": VERSION,
        "addressed": dag.addressed,
        "heads": [head.id for head in dag.heads],
        "nodes": [encode_node(node) for node in dag.nodes()],
    }


class Contents(NamedTuple):
    """What a graph is made from."""

    heads: tuple[Node, ...]
    addressed: bool
    extra: FrozenDict


def decode_document(document: Mapping[str, Any]) -> Contents:
    head, rows = {key: value for key, value in document.items() if key != "nodes"}, document.get("nodes", ())
    return _assembled(_migrated(head), rows)


def _migrated(head: dict[str, Any]) -> dict[str, Any]:
    """What stands around the nodes, in the present version."""
    version = head.get("version", 0)
    if head.get("format", FORMAT) != FORMAT:
        raise _broken(f"it is a {head['format']!r}")
    if not isinstance(version, int) or version > VERSION:
        raise _broken(f"its version is {version!r}, and this program knows versions up to {VERSION}")
    if version == 0:  # before there were versions: heads and nodes alone
        head = {**head, "format": FORMAT, "version": VERSION}
    return head


def _assembled(head: Mapping[str, Any], rows: Iterable[Mapping[str, Any]]) -> Contents:
    nodes: dict[str, Node] = {}
    for row in rows:
        node = decode_node(row, nodes)
        if node.id in nodes:
            raise _broken(f"the id {node.id!r} is there twice")
        nodes[node.id] = node
    try:
        heads = tuple(nodes[id] for id in head.get("heads", ()))
    except KeyError as error:
        raise _broken(f"the head {error} is not among its nodes") from None
    extra = freeze({key: value for key, value in head.items() if key not in _DOCUMENT_FIELDS})
    return Contents(heads, bool(head.get("addressed", False)), extra)


def _broken(what: str) -> ConfigurationError:
    return ConfigurationError(
        f"The graph cannot be read: {what}.", field="graph", fix="Check where it comes from, or update this package."
    )


# Files


def save(dag: DAG, path: str | os.PathLike[str]) -> None:
    replace_file(path, _lines(dag))


def _lines(dag: DAG) -> Iterator[bytes]:
    document = {**dag.extra, "format": FORMAT, "version": VERSION, "addressed": dag.addressed}
    document["heads"] = [head.id for head in dag.heads]
    opening = _compact(document)
    yield f'{opening[:-1]},"nodes":[\n'.encode("utf-8", "surrogatepass")
    first = True
    for node in dag.nodes():
        yield (b"" if first else b",\n") + _compact(encode_node(node)).encode("utf-8", "surrogatepass")
        first = False
    yield b"\n]}\n"


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=True)


def load(path: str | os.PathLike[str]) -> Contents:
    """Line by line if it was written so; whole if somebody has reformatted it."""
    try:
        with open(path, encoding="utf-8") as file:
            opening = file.readline()
            if opening.rstrip().endswith('"nodes":['):
                head = json.loads(f"{opening.rstrip()}]}}")
                head.pop("nodes")
                return _assembled(_migrated(head), _rows(file))
            document = json.loads(opening + file.read())
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _broken(f"{os.path.basename(path)} is not complete, or not JSON ({error})") from None
    if not isinstance(document, dict):
        raise _broken(f"{os.path.basename(path)} holds no graph")
    return decode_document(document)


def _rows(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    ended = False
    for line in lines:
        text = line.strip().removesuffix(",")
        if text == "]}":
            ended = True
        elif text:
            yield json.loads(text)
    if not ended:
        raise _broken("it ends too early")
