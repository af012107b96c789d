"""Graph files: one JSON document with a format version and one node per line.

Files are written and read line by line, so a large graph is never in memory as text. Unknown fields are preserved;
older versions are migrated, newer ones refused.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from math import isfinite
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from ..errors import ConfigurationError
from ..stores.files import replace_file
from ..types import FrozenDict, Message, NodeData, Vocabulary, freeze, read_node_data
from ..types._base import is_finite
from .node import Node

if TYPE_CHECKING:
    from .dag import DAG

FORMAT = "agent.graph"
VERSION = 1
_UNKNOWN = "unknown_fields"
"""Metadata key for unknown fields of a node and of its data."""
_NODE_FIELDS = frozenset(("id", "parents", "timestamp", "metadata", "data"))
_DOCUMENT_FIELDS = frozenset(("format", "version", "heads", "nodes", "addressed"))


def encode_node(node: Node, vocabulary: Vocabulary | None = None) -> dict[str, Any]:
    """Encode a node as plain JSON data."""
    metadata = dict(node.metadata)
    unknown: Mapping[str, Any] = metadata.pop(_UNKNOWN, {})
    row: dict[str, Any] = {
        **unknown.get("node", {}),
        "id": node.id,
        "parents": [parent.id for parent in node.parents],
        "timestamp": node.timestamp,
        "data": {**unknown.get("data", {}), **node.data.to_dict(vocabulary=vocabulary)},
    }
    if metadata:
        row["metadata"] = metadata
    return row


def decode_node(row: Mapping[str, Any], known: Mapping[str, Node]) -> Node:
    """Decode a node whose parents are already decoded."""
    id = _read(row, "id", str, "a node")
    name = f"node {id[:80]!r}"
    try:
        data = dict(_read(row, "data", Mapping, name))
        content = read_node_data(data)
        ids = [_expect(parent, str, f"a parent of {name}") for parent in _read(row, "parents", list | tuple, name)]
        parents = tuple(known[parent] for parent in ids)
        metadata = _metadata(row, data, content)
        timestamp = float(_expect(row.get("timestamp") or 0.0, int | float, f"the timestamp of {name}"))
        if not isfinite(timestamp):
            raise ValueError("its timestamp is not a finite number")
        return Node(parents, content, id, timestamp, metadata)
    except KeyError as error:
        raise _invalid(f"{name} precedes its parent {error}") from None
    except (ValidationError, ValueError, TypeError, OverflowError, RecursionError) as error:
        raise _invalid(f"{name} is invalid: {str(error).splitlines()[0]}") from None


def decode_nodes(rows: Iterable[Mapping[str, Any]], known: dict[str, Node] | None = None) -> dict[str, Node]:
    """Return nodes by id, added to the known ones. Parents come before their children."""
    nodes = {} if known is None else known
    for row in rows:
        if row["id"] not in nodes:
            nodes[row["id"]] = decode_node(row, nodes)
    return nodes


def _read(row: Any, key: str, kind: Any, name: str) -> Any:
    if key not in _expect(row, Mapping, "a node"):
        raise _invalid(f"{name} lacks {key!r}")
    return _expect(row[key], kind, f"{key!r} of {name}")


def _expect(value: Any, kind: Any, name: str) -> Any:
    if not isinstance(value, kind):
        raise _invalid(f"{name} has the wrong type {type(value).__name__}")
    return value


def _metadata(row: Mapping[str, Any], data: Mapping[str, Any], content: NodeData) -> Mapping[str, Any]:
    unknown: dict[str, Any] = {}
    if extra := {key: value for key, value in row.items() if key not in _NODE_FIELDS}:
        unknown["node"] = extra
    known = _list_fields(type(content))
    if not known.issuperset(data):
        unknown["data"] = {key: value for key, value in data.items() if key not in known}
    metadata = dict(_expect(row.get("metadata") or {}, Mapping, "metadata"))
    if unknown:
        metadata[_UNKNOWN] = unknown
    if not is_finite(metadata):
        raise ValueError(_OUT_OF_RANGE)
    return freeze(metadata) if metadata else FrozenDict()


_OUT_OF_RANGE = "an unknown field contains NaN or an infinite number"
_ALSO_IN_MESSAGES = ("tool_calls", "tool_name", "tool_use_id", "details", "is_error", "result")


@cache
def _list_fields(kind: type[NodeData]) -> frozenset[str]:
    also = _ALSO_IN_MESSAGES if kind is Message else ()
    return frozenset(("type", *kind.model_fields, *kind._field_of_alias(), *also))


# Documents


def encode_document(dag: DAG, vocabulary: Vocabulary | None = None) -> dict[str, Any]:
    return {**_encode_head(dag), "nodes": [encode_node(node, vocabulary) for node in dag.nodes()]}


def _encode_head(dag: DAG) -> dict[str, Any]:
    """Encode the fields around the nodes."""
    heads = [head.id for head in dag.heads]
    return {**dag.extra, "format": FORMAT, "version": VERSION, "addressed": dag.content_ids, "heads": heads}


Contents = tuple[tuple[Node, ...], bool, FrozenDict]
"""Constructor arguments of a DAG: heads, content_ids and extra."""


def decode_document(document: Mapping[str, Any]) -> Contents:
    _expect(document, Mapping, "the document")
    head, rows = {key: value for key, value in document.items() if key != "nodes"}, document.get("nodes", ())
    return _link_nodes(head, rows)


def _check_version(head: Mapping[str, Any]) -> None:
    version = head.get("version", 0)  # the first format, without a version, had heads and nodes only
    if head.get("format", FORMAT) != FORMAT:
        raise _invalid(f"its format is {head['format']!r}")
    if not isinstance(version, int) or isinstance(version, bool) or not 0 <= version <= VERSION:
        raise _invalid(f"its version is {version!r}, but this package supports up to {VERSION}")


def _link_nodes(head: Mapping[str, Any], rows: Iterable[Mapping[str, Any]]) -> Contents:
    _check_version(head)
    nodes: dict[str, Node] = {}
    for row in _expect(rows, Iterable, "'nodes'"):
        node = decode_node(row, nodes)
        if node.id in nodes:
            raise _invalid(f"duplicate node id {node.id!r}")
        nodes[node.id] = node
    try:
        ids = [_expect(id, str, "a head") for id in _expect(head.get("heads", ()), list | tuple, "'heads'")]
        heads = tuple(nodes[id] for id in ids)
        extra = {key: value for key, value in head.items() if key not in _DOCUMENT_FIELDS}
        if not is_finite(extra):
            raise _invalid(_OUT_OF_RANGE)
        extra = freeze(extra)
    except KeyError as error:
        raise _invalid(f"head {error} is not a node of the graph") from None
    except RecursionError:
        raise _invalid("an unknown field is nested too deeply") from None
    return heads, bool(head.get("addressed", False)), extra


def _invalid(what: str) -> ConfigurationError:
    return ConfigurationError(
        f"The graph cannot be read: {what}.", field="graph", fix="Check the file, or update this package."
    )


# Files


def save(dag: DAG, path: str | os.PathLike[str]) -> None:
    replace_file(path, _lines(dag))


def _lines(dag: DAG) -> Iterator[bytes]:
    yield _compact(_encode_head(dag))[:-1] + b',"nodes":[\n'
    separator = b""
    for node in dag.nodes():
        yield separator + _compact(encode_node(node))
        separator = b",\n"
    yield b"\n]}\n"


def _compact(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def load(path: str | os.PathLike[str]) -> Contents:
    """Load a graph line by line, or as a whole if the file was reformatted."""
    try:
        with open(path, encoding="utf-8") as file:
            opening = file.readline()
            if opening.rstrip().endswith('"nodes":['):
                head = json.loads(f"{opening.rstrip()}]}}")
                head.pop("nodes")
                return _link_nodes(head, _rows(file))
            document = json.loads(opening + file.read())
    except (ValueError, RecursionError) as error:  # broken JSON, encoding, or a number with too many digits
        raise _invalid(f"{os.path.basename(path)} is incomplete or not JSON ({error})") from None
    if not isinstance(document, dict):
        raise _invalid(f"{os.path.basename(path)} does not contain a graph")
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
        raise _invalid("the end of the file is missing")
