"""What is known of how a conversation begins: it was found out for an earlier turn, and is not found out again.

Every turn sends again what was said before it. Whatever is worked out from all of the messages (their bytes, their
length, the ids of their calls) is kept with one of them near the end, and moves on as the conversation grows. It is
found by looking back from the end, and believed only if all messages in front are the very same objects: whatever was
put in, left out or replaced is looked at anew. This module does not know what is worked out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from operator import is_
from typing import Any, NamedTuple, TypeAlias, TypeVar

from .messages import Message, Role
from .notes import kept_notes, notes_on

T = TypeVar("T")

LEAST = 32
"""Messages of a conversation of which something is kept: in a shorter one it is found out as fast as found again."""
_LOOKED_AT = 64
"""Messages at the end among which something is looked for: more than a turn adds."""
_NOT_THE_MODELS = (Role.USER, Role.TOOL)

Ids: TypeAlias = tuple[frozenset[Any], ...]
"""All ids of a beginning. A few sets, each far larger than the next: so what is large is seldom copied."""


class _Known(NamedTuple):
    """A note on a message, about all messages up to it."""

    before: tuple[Message, ...]
    """Those in front of it. It is not among them itself, or it would keep itself alive."""
    fact: Any


def known_prefix(messages: Sequence[Message], key: str, first: int = 0) -> tuple[int, Any]:
    """Up to where something is known, and what it is; `first` and None if nothing is.

    It never is about all of the messages: the last one is new, or is going to be said differently next time.

    Args:
        messages: The conversation.
        key: What it is about, and all that it depends on besides the messages.
        first: The first message that counts.
    """
    count = len(messages)
    for place in range(count - 2, max(first, count - _LOOKED_AT) - 1, -1):
        try:
            known: _Known | None = kept_notes(messages[place]).get(key)
        except AttributeError:  # nothing at all is noted on it
            continue
        if known is not None and _is_about(known, messages, first, place):
            return place + 1, known.fact
    return first, None


def _is_about(known: _Known, messages: Sequence[Message], first: int, place: int) -> bool:
    """Whether the messages in front of that place are still those that the note on it is about."""
    return len(known.before) == place - first and all(map(is_, known.before, islice(messages, first, place)))


def keep_prefix(
    messages: Sequence[Message], key: str, end: int, fact: Any, *, first: int = 0, instead_of: int = 0
) -> None:
    """Let others find what is known of the messages from `first` to before `end`, and no longer what was known before.

    Args:
        messages: The conversation.
        key: As in `known_prefix`.
        end: As `prefix_end` found it.
        fact: What is known; other than None.
        first: The first message that counts.
        instead_of: Up to where something was known already.
    """
    if instead_of > first:
        notes_on(messages[instead_of - 1]).pop(key, None)  # two of them would take twice the memory
    notes_on(messages[end - 1])[key] = _Known(tuple(messages[first : end - 1]), fact)


def prefix_end(messages: Sequence[Message], start: int) -> int:
    """How far a beginning can reach beyond `start`: to the last place where all calls have their results.

    The message in front of it is not the model's: an answer is often kept without its conversation, and what is noted
    on a message keeps all that came before it.
    """
    for place in range(len(messages) - 1, start, -1):
        if messages[place].role is not Role.TOOL and messages[place - 1].role in _NOT_THE_MODELS:
            return place
    return start


def folded(messages: Sequence[Message], key: str, fold: Callable[[T | None, Sequence[Message]], T]) -> T:
    """What a fold makes of a conversation. In a long one it is shown only what is new.

    Args:
        messages: The conversation.
        key: Names the fold, among all that is noted on messages.
        fold: From what is known of a beginning, None at first, and the messages behind it to what is known of both.
    """
    if len(messages) < LEAST:
        return fold(None, messages)
    start, fact = known_prefix(messages, key)
    end = prefix_end(messages, start)
    if end > start:
        fact = fold(fact, messages[start:end])
        keep_prefix(messages, key, end, fact, instead_of=start)
    return fold(fact, messages[end:])


def with_ids(ids: Ids, more: Iterable[Any]) -> Ids:
    """These ids as well. Nothing is added to a set that another request may be reading."""
    added = frozenset(more)
    if not added:
        return ids
    while ids and len(ids[-1]) < 2 * len(added):
        added |= ids[-1]
        ids = ids[:-1]
    return (*ids, added)
