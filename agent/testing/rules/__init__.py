"""Request validation: rules of the four wire formats, and errors with status 400.

Rules check bodies of any shape: a malformed body leads to violations, never to an exception. The messages are those of
recorded errors.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any, ClassVar
from urllib.parse import unquote, urlsplit

from ...providers import find_server_dialect
from ...wire_formats import wire_format


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


def contains_json(value: Any) -> bool:
    """Whether a conversation contains the word "json", which JSON mode requires."""
    if isinstance(value, str):
        return "json" in value.lower()
    if isinstance(value, list):
        return any(map(contains_json, value))
    return any(contains_json(as_object(value).get(key)) for key in ("content", "text", "output")) if value else False


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


# Validation of requests.

_MODEL_IN_PATH = re.compile(r"/models/([^/]+):\w+$|/deployments/([^/]+)/")


@cache
def _load_rules(api: str) -> Rules | None:
    declared = wire_format(api)
    if declared is None or declared.rules is None:
        return None
    module, _, name = declared.rules.partition(":")
    rules: Rules = getattr(import_module(module), name)()
    return rules


def _rules_for(url: str) -> tuple[Rules, bool] | None:
    """Return the rules of the API at a URL, and whether it is the endpoint that counts tokens."""
    server = find_server_dialect(url)
    rules = None if server is None else _load_rules(server.api)
    return None if server is None or rules is None else (rules, server.match_endpoint(url) == "count")


def _model_in(url: str) -> str:
    match = _MODEL_IN_PATH.search(urlsplit(url).path)
    return unquote(match[1] or match[2]) if match else ""


def find_violations(
    url: str, body: Mapping[str, Any], *, signatures: Container[str] = (), extra_keys: Container[str] = ()
) -> Iterator[Violation]:
    """Yield the violations of a request body.

    Args:
        url: URL or path of the request, such as `/v1/messages`. It determines the API.
        body: The request body, as parsed JSON.
        signatures: Signatures, encrypted reasoning and ids of stored items that count as the vendor's.
        extra_keys: Keys that are valid in addition to those of the wire format, such as a compatible vendor's.

    Raises:
        ValueError: The URL belongs to none of the four APIs.
    """
    found = _rules_for(url)
    if found is None:
        raise ValueError(f"no wire format has the path {url}")
    rules, count_tokens = found
    return rules.check(body, VendorState(signatures, extra_keys), model=_model_in(url), count_tokens=count_tokens)


class RequestValidator:
    """Validates requests, and keeps the state of each vendor, so that its signatures stay valid."""

    def __init__(self, signatures: Container[str] = (), extra_keys: Container[str] = ()) -> None:
        self._states: defaultdict[str, VendorState] = defaultdict(lambda: VendorState(signatures, extra_keys))

    def validate(self, url: str, body: bytes) -> tuple[Violation, dict[str, Any]] | None:
        """Return the first violation and the vendor's error body, or None for a valid request."""
        found = _rules_for(url)
        if found is None:
            return None
        rules, count_tokens = found
        try:
            parsed = json.loads(body)
        except ValueError:
            parsed = None
        violation: Violation | None = rules.invalid_json()
        if isinstance(parsed, dict):
            state = self._states[rules.name]
            violation = next(rules.check(parsed, state, model=_model_in(url), count_tokens=count_tokens), None)
        return None if violation is None else (violation, rules.encode_error(violation))

    def record_response(self, url: str, pieces: Iterable[bytes]) -> None:
        """Record the opaque values of a response or stream."""
        if (found := _rules_for(url)) is not None:
            rules, _ = found
            self._states[rules.name].record(rules.find_issued(_parse_response(b"".join(pieces))))


def _parse_response(data: bytes) -> Iterator[Any]:
    """Yield the JSON values of a response or of server-sent events."""
    lines = [line.removeprefix(b"data:") for line in data.splitlines() if line.startswith(b"data:")]
    for text in lines or [data]:
        try:
            yield json.loads(text)
        except ValueError:
            continue  # the end of a stream, or malformed by intention
