"""Reads what a GGUF file says about itself, so that one that cannot be run is refused in words.

The engine refuses most files that are damaged. But a description that makes no sense, or a memory that it does not get,
ends the process, so these are looked for first. Nothing here runs a model.
"""

from __future__ import annotations

import math
import os
import struct
from pathlib import Path
from typing import Any

from .. import errors

_MAGIC = b"GGUF"
_HEAD = struct.Struct("<4sIQQ")
_VERSIONS = (2, 3)
_BEGINNING = 65536
"""Bytes. What a model is made of stands at the beginning, before its vocabulary."""
_TEXT, _LIST = 8, 9
_PLAIN = {
    kind: struct.Struct(f"<{form}")
    for kind, form in {
        0: "B",
        1: "b",
        2: "H",
        3: "h",
        4: "I",
        5: "i",
        6: "f",
        7: "?",
        10: "Q",
        11: "q",
        12: "d",
    }.items()
}
_COUNT, _KIND = struct.Struct("<Q"), struct.Struct("<I")
_PER_NUMBER = 2
"""Bytes that the engine needs for each number it remembers of a text."""


def check_gguf(path: Path, context: int) -> None:
    """Raises if the engine cannot run this file, as far as a few bytes tell.

    Args:
        path: A file that is there.
        context: Tokens that it shall remember; 0 for what it was trained on.
    """
    try:
        with path.open("rb") as file:
            beginning = file.read(_BEGINNING)
        size = path.stat().st_size
    except OSError as error:
        raise errors.ConfigurationError(
            f"{path} cannot be read: {error.strerror or error}.", field="model", fix="Check its permissions."
        ) from None
    if wrong := _what_is_wrong(beginning, size):
        raise errors.ConfigurationError(f"{path} {wrong}.", field="model", fix="Download it again, or name another.")
    needed, there = estimate_memory(read_metadata(beginning), context), _memory()
    if there is not None and needed > there:
        raise errors.ConfigurationError(
            f"{path} needs {needed / 1e9:.0f} GB for so long a context, and this machine has {there / 1e9:.0f} GB.",
            field="context",
            fix="Give it a name and a smaller context, with agent.local.register_model.",
        )


def _what_is_wrong(beginning: bytes, size: int) -> str | None:
    if len(beginning) < _HEAD.size or not beginning.startswith(_MAGIC):
        return "is no GGUF file"
    _, version, tensors, _ = _HEAD.unpack_from(beginning)
    if version not in _VERSIONS:
        return f"is a GGUF file of version {version}, which the engine does not read"
    if tensors == 0:
        return "has no weights in it"
    if size < _HEAD.size + 32 * tensors:
        return "is cut off"
    facts = read_metadata(beginning)
    layers = facts.get(f"{facts.get('general.architecture')}.block_count", 1)
    if layers == 0 or any(isinstance(fact, float) and not math.isfinite(fact) for fact in facts.values()):
        return "describes a model that cannot be"
    return None


def read_metadata(beginning: bytes) -> dict[str, Any]:
    """What these bytes say, up to the first fact that is not whole, as the vocabulary never is."""
    facts: dict[str, Any] = {}
    place = _HEAD.size
    try:
        for _ in range(_HEAD.unpack_from(beginning)[3]):
            name, place = _text(beginning, place)
            (kind,) = _KIND.unpack_from(beginning, place)
            facts[name], place = _value(beginning, place + _KIND.size, kind)
    except (struct.error, KeyError, UnicodeDecodeError, RecursionError):
        pass
    return facts


def _text(data: bytes, place: int) -> tuple[str, int]:
    (length,) = _COUNT.unpack_from(data, place)
    end = place + _COUNT.size + length
    if end > len(data):
        raise struct.error
    return data[place + _COUNT.size : end].decode(), end


def _value(data: bytes, place: int, kind: int) -> tuple[Any, int]:
    if kind == _TEXT:
        return _text(data, place)
    if kind != _LIST:
        form = _PLAIN[kind]
        return form.unpack_from(data, place)[0], place + form.size
    (kind,) = _KIND.unpack_from(data, place)
    (count,) = _COUNT.unpack_from(data, place + _KIND.size)
    place += _KIND.size + _COUNT.size
    values = []
    for _ in range(count):
        value, place = _value(data, place, kind)
        values.append(value)
    return values, place


def estimate_memory(facts: dict[str, Any], context: int) -> int:
    """About how many bytes the engine needs to remember so many tokens; 0 if the file does not tell.

    The weights are not counted: they are read from the file as they are needed.
    """

    def fact(name: str, otherwise: Any) -> Any:
        return facts.get(f"{facts.get('general.architecture')}.{name}", otherwise)

    layers, heads = fact("block_count", 0), fact("attention.head_count", 0)
    if isinstance(heads, list) or not heads:
        return 0
    length = fact("embedding_length", 0) // heads
    numbers = fact("attention.key_length", length) + fact("attention.value_length", length)
    remembered = fact("attention.head_count_kv", heads)
    per_token = (sum(remembered) if isinstance(remembered, list) else layers * remembered) * numbers * _PER_NUMBER
    total: int = per_token * (context or fact("context_length", 0))
    return total


def _memory() -> int | None:
    """Bytes of this machine; None where it does not tell."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None
