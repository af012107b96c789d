"""The lines that a batch writes: an answer or a failure, and which line of the input it belongs to."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from os import PathLike
from typing import Any

from pydantic_core import from_json, to_json

from ..errors import AgentError, ConfigurationError, SchemaValidationError
from ..types import AgentResponse
from .lines import Line

_FACTS = ("provider", "model", "status_code", "code", "request_id", "retryable", "retry_after", "field", "fix", "text")

_OTHER_ENDS = tuple((end.encode(), b"\\u%04x" % ord(end)) for end in ("\x85", "\u2028", "\u2029"))
"""JSON lets these be, but `str.splitlines` and some editors take them for the end of a line."""


def answered(line: Line, response: AgentResponse) -> bytes:
    """The line for an answer; one that cannot be written as JSON is a SchemaValidationError, which has its text."""
    try:
        body = response.model_dump_json(exclude_none=True).encode()
    except Exception as error:  # an output of the caller's own type can be anything
        message = f"The answer cannot be written as JSON: {error}."
        raise SchemaValidationError(message, text=response.text, response=response) from None
    return _record(line, "response", body)


def failed(line: Line, error: Exception) -> bytes:
    """The line for a failure, whatever the error is made of."""
    try:
        body = to_json(described(error), fallback=str, inf_nan_mode="null")
    except Exception:  # it breaks when it is shown, or has half a character in what it says
        said = "".join(traceback.format_exception_only(error)).strip()
        message = said.encode("utf-8", "backslashreplace").decode()
        body = to_json({"type": type(error).__name__, "message": message})
    return _record(line, "error", body)


def _record(line: Line, name: str, body: bytes) -> bytes:
    named = {} if line.custom_id is None else {"custom_id": line.custom_id}
    head = to_json({**named, "line": line.number, "sha256": line.digest})
    record = head[:-1] + b',"%s":%s}' % (name.encode(), body)
    for end, escaped in _OTHER_ENDS:
        record = record.replace(end, escaped)
    return record + b"\n"


def described(error: Exception) -> dict[str, Any]:
    """An error as data: its type, what it says, and the facts it has."""
    message = error.message if isinstance(error, AgentError) else str(error)
    data: dict[str, Any] = {"type": type(error).__name__, "message": message}
    for name in _FACTS:
        value = getattr(error, name, None)
        if value is not None:
            data[name] = value
    if attempts := getattr(error, "attempts", ()):
        data["attempts"] = [attempt.to_dict() for attempt in attempts]
    return data


@dataclass(frozen=True, slots=True)
class Mark:
    """What a line of an output says about the input."""

    custom_id: str | None
    line: int
    digest: str

    @property
    def key(self) -> str | int:
        return self.line if self.custom_id is None else self.custom_id


def read_mark(raw: bytes) -> Mark:
    """Which line of the input a line of the output belongs to; ValueError if it is none of ours."""
    return _mark(read_json(raw))


def read_json(raw: bytes) -> Any:
    """Of a file that a batch has written; ValueError if it is none.

    The limits for what vendors say do not hold here: what is just within them is beyond them as a part of our lines.
    """
    return from_json(raw)


def _mark(data: Any) -> Mark:
    if not isinstance(data, dict) or not ("response" in data or "error" in data):
        raise ValueError("not a line of a batch")
    named, number, digest = data.get("custom_id"), data.get("line"), data.get("sha256")
    if not isinstance(number, int) or not isinstance(digest, str) or not isinstance(named, str | None):
        raise ValueError("not a line of a batch")
    return Mark(named, number, digest)


@dataclass(frozen=True, slots=True)
class BatchAnswer:
    """One line of an output, read again."""

    line: int
    """Of the input, from 1."""
    custom_id: str | None
    response: AgentResponse | None = None
    error: dict[str, Any] | None = None
    """Of a failure: `type`, `message`, and facts such as `status_code`."""


def read_answers(path: str | PathLike[str]) -> Iterator[BatchAnswer]:
    """The answers, or the failures, that a batch has written, one at a time. The line that is just being written is
    left out.
    """
    with open(path, "rb") as file:
        for number, raw in enumerate(file, start=1):
            if not raw.endswith(b"\n"):
                return
            try:
                data = read_json(raw)
                mark = _mark(data)
                response = AgentResponse.from_dict(data["response"]) if "response" in data else None
            except ValueError as error:
                raise ConfigurationError(
                    f"Line {number} of {path} was not written by a batch: {error}.", field="path", fix="Pass its OUT."
                ) from None
            yield BatchAnswer(mark.line, mark.custom_id, response, data.get("error"))
