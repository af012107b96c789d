"""What the rules of all APIs have in common: how a broken rule is told, and what a vendor knows beyond one request.

Rules read bodies that anybody may have written, so nothing about their shape may be taken for granted: what is not what
it should be is either a broken rule or passed over, and never an exception.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar


@dataclass(frozen=True, slots=True)
class Violation:
    """A rule that a request breaks, as the vendor would say it."""

    message: str
    at: str | None = None
    """The part of the body that is wrong, in the vendor's spelling, where the vendor would name it."""
    code: str | None = None
    """The vendor's own code for it, if it has one."""


@dataclass(frozen=True, slots=True)
class Issued:
    """Something opaque in an answer that the vendor will know again."""

    value: str
    text: str | None = None
    """The words that it vouches for, where it does."""
    after: str | None = None
    """The id of the reasoning that it followed, without which it is not taken back."""


class Known:
    """What a vendor would know beyond one request: what it has issued itself, and what a test declares.

    Args:
        signatures: Opaque values (signatures, sealed reasoning, ids of stored items) that count as the vendor's own.
        keys: Keys of a body that a dialect of the wire format takes beyond the format itself.
    """

    def __init__(self, signatures: Container[str] = (), keys: Container[str] = ()) -> None:
        self.keys = keys
        self._declared = signatures
        self._issued: dict[str, set[str] | None] = {}
        self._after: dict[str, str] = {}

    def learn(self, issued: Iterable[Issued]) -> None:
        for one in issued:
            texts = self._issued.setdefault(one.value, set() if one.text is not None else None)
            if texts is not None and one.text is not None:
                texts.add(one.text)
            if one.after is not None:
                self._after[one.value] = one.after

    def knows(self, value: str) -> bool:
        return bool(value) and (value in self._issued or value in self._declared)

    def vouches(self, value: str, text: str) -> bool:
        """Whether a value that is known goes with these words. What was merely declared goes with any."""
        texts = self._issued.get(value)
        return texts is None or text in texts or value in self._declared

    def followed(self, value: str) -> str | None:
        """The id of the reasoning that something issued came after."""
        return self._after.get(value)


class Rules(ABC):
    """What one API refuses, and how it says so."""

    name: ClassVar[str]

    @abstractmethod
    def broken(
        self, body: Mapping[str, Any], known: Known, *, model: str = "", counting: bool = False
    ) -> Iterator[Violation]:
        """The rules that a request breaks, in the order in which they are looked at.

        Args:
            model: The model, where it is not in the body.
            counting: The request is to count tokens, not to answer.
        """

    @abstractmethod
    def complaint(self, violation: Violation) -> dict[str, Any]:
        """The body of the answer with status 400."""

    @abstractmethod
    def unreadable(self) -> Violation:
        """What is said about a body that is no JSON object."""

    def issued(self, answer: Iterable[Any]) -> Iterator[Issued]:
        """What the vendor will know again of an answer: of one that came whole, or of the events of a stream."""
        yield from ()


# Reading what anybody may have written


def an_object(value: Any) -> dict[str, Any]:
    """The object itself; an empty one in place of anything else."""
    return value if isinstance(value, dict) else {}


def objects_in(value: Any) -> list[tuple[int, dict[str, Any]]]:
    """The objects in a list, and where they stand."""
    return [(n, item) for n, item in enumerate(value) if isinstance(item, dict)] if isinstance(value, list) else []


def a_text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def a_number(value: Any) -> float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def is_among(value: Any, known: Container[str]) -> bool:
    """Whether a value is a text that is known; what is no text is not, and cannot even be looked up everywhere."""
    return isinstance(value, str) and value in known


def listed(words: Iterable[str]) -> str:
    """'a', 'b', and 'c'"""
    quoted = [f"'{word}'" for word in words]
    if len(quoted) < 3:
        return " and ".join(quoted)
    return ", ".join(quoted[:-1]) + f", and {quoted[-1]}"


def everything_in(value: Any) -> Iterator[dict[str, Any]]:
    """Every object in a piece of JSON, the outer before the inner."""
    if isinstance(value, dict):
        yield value
        value = list(value.values())
    if isinstance(value, list):
        for inner in value:
            yield from everything_in(inner)
