"""Rules of vendors' APIs: violations, the state a vendor keeps, and helpers for unvalidated JSON.

Rules check bodies of any shape. A malformed body leads to violations, never to an exception.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar


@dataclass(frozen=True, slots=True)
class Violation:
    """A violation of an API's rule, in the vendor's words."""

    message: str
    field: str | None = None
    """The invalid field of the body, in the vendor's notation, if the vendor names it."""
    code: str | None = None
    """The vendor's error code, if it has one."""


@dataclass(frozen=True, slots=True)
class IssuedValue:
    """An opaque value of a response that the vendor recognizes in later requests."""

    value: str
    text: str | None = None
    """The text that a signature signs."""
    reasoning_id: str | None = None
    """The id of the reasoning item before it, without which the vendor rejects the value."""


class VendorState:
    """State that a vendor keeps between requests: the opaque values that it issued.

    Args:
        signatures: Opaque values (signatures, encrypted reasoning, ids of stored items) that count as issued.
        extra_keys: Keys of a body that are valid in addition to those of the wire format.
    """

    def __init__(self, signatures: Container[str] = (), extra_keys: Container[str] = ()) -> None:
        self.extra_keys = extra_keys
        self._declared = signatures
        self._issued: dict[str, set[str] | None] = {}
        self._reasoning_ids: dict[str, str] = {}

    def record(self, values: Iterable[IssuedValue]) -> None:
        for issued in values:
            texts = self._issued.setdefault(issued.value, set() if issued.text is not None else None)
            if texts is not None and issued.text is not None:
                texts.add(issued.text)
            if issued.reasoning_id is not None:
                self._reasoning_ids[issued.value] = issued.reasoning_id

    def has_issued(self, value: str) -> bool:
        return bool(value) and (value in self._issued or value in self._declared)

    def has_signed(self, value: str, text: str) -> bool:
        """Whether an issued signature is valid for a text. Declared signatures are valid for any text."""
        texts = self._issued.get(value)
        return texts is None or text in texts or value in self._declared

    def find_reasoning(self, value: str) -> str | None:
        """Return the id of the reasoning item that preceded an issued item."""
        return self._reasoning_ids.get(value)


class Rules(ABC):
    """Rules of one API, and the format of its errors."""

    name: ClassVar[str]

    @abstractmethod
    def check(
        self, body: Mapping[str, Any], state: VendorState, *, model: str = "", count_tokens: bool = False
    ) -> Iterator[Violation]:
        """Yield the violations of a request body.

        Args:
            model: The model, if the URL contains it.
            count_tokens: The request is for the endpoint that counts tokens.
        """

    @abstractmethod
    def encode_error(self, violation: Violation) -> dict[str, Any]:
        """Return the body of the response with status 400."""

    @abstractmethod
    def invalid_json(self) -> Violation:
        """Return the violation for a body that is not a JSON object."""

    def find_issued(self, response: Iterable[Any]) -> Iterator[IssuedValue]:
        """Yield the opaque values of a response, or of the events of a stream."""
        yield from ()


# Unvalidated JSON.


def as_object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def as_text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def as_number(value: Any) -> float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def enumerate_objects(value: Any) -> list[tuple[int, dict[str, Any]]]:
    """Return the objects in a list, with their indexes."""
    return [(index, item) for index, item in enumerate(as_list(value)) if isinstance(item, dict)]


def is_text_in(value: Any, allowed: Container[str]) -> bool:
    """Whether a value is an allowed string. Other values may not be hashable."""
    return isinstance(value, str) and value in allowed


def join_quoted(words: Iterable[str]) -> str:
    """Return "'a', 'b', and 'c'"."""
    quoted = [f"'{word}'" for word in words]
    if len(quoted) < 3:
        return " and ".join(quoted)
    return ", ".join(quoted[:-1]) + f", and {quoted[-1]}"


def walk_objects(value: Any) -> Iterator[dict[str, Any]]:
    """Yield every object in a JSON value, outer objects first."""
    if isinstance(value, dict):
        yield value
        value = list(value.values())
    for inner in as_list(value):
        yield from walk_objects(inner)


# JSON schemas.


def walk_schema(
    schema: Any, keywords: tuple[str, ...] = ("items", "additionalProperties"), path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    """Yield a schema and its subschemas, with their paths.

    Args:
        keywords: Keywords with one subschema to follow.
    """
    if not isinstance(schema, dict):
        return
    yield path, schema
    for keyword in ("properties", "$defs", "definitions"):
        for name, inner in as_object(schema.get(keyword)).items():
            yield from walk_schema(inner, keywords, (*path, keyword, str(name)))
    for keyword in keywords:
        yield from walk_schema(schema.get(keyword), keywords, (*path, keyword))
    for keyword in ("anyOf", "allOf", "oneOf", "prefixItems"):
        for index, inner in enumerate(as_list(schema.get(keyword))):
            yield from walk_schema(inner, keywords, (*path, keyword, str(index)))


def find_target(reference: str, root: Mapping[str, Any]) -> Any:
    """Return the target of a `$ref` within a schema; None if there is none."""
    if not reference.startswith("#"):
        return None
    target: Any = root
    for step in reference.removeprefix("#").strip("/").split("/"):
        if step:
            target = target.get(step) if isinstance(target, Mapping) else None
    return target
