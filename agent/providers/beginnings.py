"""The beginning of a conversation, as it was written the last time: a turn costs what is new, and a copy of the rest.

The bytes of a long beginning are kept joined (`types.prefixes` says where) together with all that a codec has to know
to go on behind it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from operator import contains
from typing import Any, NamedTuple

from ..types import Message, Role, ToolCall, prefixes
from ..types.notes import kept_notes
from ..types.prefixes import Ids, keep_prefix, known_prefix, prefix_end, with_ids

_ASSISTANT, _SYSTEM = Role.ASSISTANT, Role.SYSTEM


class _Written(NamedTuple):
    """What is kept of a beginning."""

    ids: Ids = ()
    pieces: tuple[bytes, ...] = ()
    state: Any = None


_NOTHING = _Written()


@dataclass(slots=True)
class Begun:
    """How far one request can begin as an earlier one did, and how far a later one can begin as this one does.

    Both end where every call has its result, and before the last message, which is written differently by some.
    """

    messages: Sequence[Message]
    first: int
    """The first message that is no instruction at the start: those are made anew for every request."""
    start: int
    """The first message of which nothing is known; `first` if there is no beginning yet."""
    cut: int
    """The first message that a later request writes anew; `start` if there is nothing to add."""
    pieces: tuple[bytes, ...]
    """The messages from `first` to `start`, some in each piece."""
    state: Any
    """How the codec went on from there; None if there is no beginning yet."""
    _ids: Ids
    _key: str
    calls: set[str] = field(default_factory=set)
    """Ids of all calls that the beginning does not hold; for whoever looks through these messages to fill in."""

    @property
    def unknown(self) -> list[Message]:
        """All messages that the beginning does not hold."""
        return [*self.messages[: self.first], *self.messages[self.start :]]

    @property
    def added(self) -> Sequence[Message]:
        """The messages by which the beginning grows."""
        return self.messages[self.start : self.cut]

    @property
    def rest(self) -> Sequence[Message]:
        """The messages behind the beginning."""
        return self.messages[self.cut :]

    def names(self, id: str | bytes) -> bool:
        """Whether an id is one of the beginning's."""
        return any(id in some for some in self._ids)

    def keep(self, written: bytes, state: Any, *, separator: bytes = b"", ids: Iterable[bytes] = ()) -> None:
        """Let the next request begin where this one has got to; not if any of the messages is written anew each time.

        Args:
            written: The messages in `added`, as they follow `pieces`.
            state: All that the codec needs to know to go on from there, other than None.
            separator: Stands between pieces.
            ids: What else must not occur again, besides the ids of calls.
        """
        if not written or not _were_all_written(self.added, self._key):
            return
        known = {*ids, *self.calls.difference(_calls_in(self.rest))}
        kept = _Written(with_ids(self._ids, known), _with_piece(self.pieces, written, separator), state)
        keep_prefix(self.messages, _note(self._key), self.cut, kept, first=self.first, instead_of=self.start)


def begun(messages: Sequence[Message], key: str) -> Begun | None:
    """What is known of how a conversation begins; None if it is short, or if it is new.

    A conversation that is sent for the first time may well be sent only once. So its beginning is kept the second time.

    Args:
        messages: As they are going to be written, instructions first.
        key: Of the notes on messages that hold their bytes.
    """
    count = len(messages)
    if count < prefixes.LEAST or not _was_written(messages[count // 2], key):
        return None
    first = 0
    while first < count and messages[first].role is _SYSTEM:
        first += 1
    start, found = known_prefix(messages, _note(key), first)
    kept: _Written = found or _NOTHING
    return Begun(messages, first, start, prefix_end(messages, start), kept.pieces, kept.state, kept.ids, key)


def _note(key: str) -> str:
    return f"{key}/begun"


def _was_written(message: Message, key: str) -> bool:
    try:
        return key in kept_notes(message)
    except AttributeError:
        return False


def _were_all_written(messages: Sequence[Message], key: str) -> bool:
    try:
        return all(map(contains, map(kept_notes, messages), repeat(key)))
    except AttributeError:  # nothing at all is noted on one of them
        return False


def _calls_in(messages: Iterable[Message]) -> list[str]:
    turns = [message.content for message in messages if message.role is _ASSISTANT]
    said = [part for parts in turns if not isinstance(parts, str) for part in parts]
    return [part.id for part in said if isinstance(part, ToolCall)]


def _with_piece(pieces: tuple[bytes, ...], more: bytes, separator: bytes) -> tuple[bytes, ...]:
    """A few pieces, each far longer than the next: so what is long is seldom copied."""
    while pieces and len(pieces[-1]) < 2 * len(more):
        more = pieces[-1] + separator + more
        pieces = pieces[:-1]
    return (*pieces, more)
