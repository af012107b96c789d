"""Notes on values: what others worked out about a message or a tool, kept with it so that it is worked out once.

A conversation is sent again in every turn, and most of it was sent before. What a codec makes of a message, or finds
out about it, depends on nothing but the message and a few words that stand in the note's key. This module knows
neither codecs nor messages.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ._base import NOTHING, Value


class Noted(Value, frozen=True):
    """A value with room for notes. They are outside equality, hash, copies, pickles and dumps."""

    __slots__ = ("_encoded",)

    if TYPE_CHECKING:
        _encoded: dict[str, Any] = NOTHING


_slot: Any = inspect.getattr_static(Noted, "_encoded")

kept_notes: Callable[[Noted], dict[str, Any]] = _slot.__get__
"""The notes on a value; AttributeError if there are none. `getattr` would ask pydantic then, which takes its time."""

_set_notes: Callable[[Noted, dict[str, Any]], None] = _slot.__set__


def notes_on(value: Noted) -> dict[str, Any]:
    """The notes on a value, to read and to add to. A note's key says what it depends on besides the value."""
    try:
        return kept_notes(value)
    except AttributeError:
        return first_notes(value)


def first_notes(value: Noted) -> dict[str, Any]:
    """Room for notes on a value that is known to have none."""
    notes: dict[str, Any] = {}
    _set_notes(value, notes)
    return notes
