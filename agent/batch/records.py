"""The lines that a batch writes: an answer or a failure, and which line of the input it belongs to."""

from __future__ import annotations

import hashlib
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from os import PathLike
from typing import Any, BinaryIO

from pydantic_core import from_json, to_json

from ..calls.requests import check_not_empty
from ..engine.wire import parse_json
from ..errors import AgentError, ConfigurationError, SchemaValidationError
from ..types import AgentRequest, AgentResponse
from ..types._base import validate_with

LONGEST = 64 * 1024 * 1024
"""Bytes of a line. A longer one is no request, and is not kept in memory to find out."""

_CHAT = "/v1/chat/completions"
_SAME = (
    "messages", "temperature", "top_p", "stop", "seed", "tools", "parallel_tool_calls", "metadata",
)  # fmt: skip
_OURS = frozenset((*_SAME, "model", "max_tokens", "max_completion_tokens", "tool_choice", "response_format"))
_SAY_NOTHING = {"stream": (False, None), "n": (1, None)}


class Line:
    """One line of the input. `key` is its custom_id, or its number if it has none."""

    __slots__ = ("_data", "_problem", "custom_id", "digest", "number")

    def __init__(self, number: int, raw: bytes, *, whole: bool = True) -> None:
        self.number = number
        self.custom_id: str | None = None
        self._data: Any = None
        self._problem: ConfigurationError | None = None
        self.digest = hashlib.sha256(raw).hexdigest()[:16]
        if not whole:
            self._problem = _problem(number, f"it is longer than {LONGEST} bytes", "Split it.")
            return
        try:
            self._data = parse_json(raw.decode("utf-8"))
        except ValueError as error:
            self._problem = _problem(number, f"it is not JSON ({str(error)[:200]})", "Write one JSON value per line.")
            return
        if isinstance(self._data, dict) and "custom_id" in self._data:
            given = self._data.pop("custom_id")
            if isinstance(given, str) and given:
                self.custom_id = given
            elif given is not None:
                self._problem = _problem(number, "its custom_id is not text", "Use a string.", field="custom_id")

    @property
    def names_model(self) -> bool:
        """Whether it says itself which model it wants."""
        return isinstance(self._data, dict) and bool(self._data.get("model"))

    @property
    def key(self) -> str | int:
        return self.number if self.custom_id is None else self.custom_id

    def request(self) -> AgentRequest:
        """The request it means; raises what is wrong with it."""
        if self._problem is not None:
            raise self._problem
        try:
            return _read(self._data)
        except ConfigurationError as error:
            raise _problem(self.number, error.message.rstrip("."), error.fix, field=error.field) from None


def _problem(number: int, what: str, fix: str | None, *, field: str | None = None) -> ConfigurationError:
    return ConfigurationError(f"Line {number} of the input cannot be asked: {what}.", field=field, fix=fix)


def _read(data: Any) -> AgentRequest:
    if isinstance(data, str):
        data = {"input": data}
    if not isinstance(data, dict):
        raise ConfigurationError(
            f"it is {_kind(data)}", fix='Write text, {"prompt": …}, or an object with the fields of a request.'
        )
    if "body" in data and "url" in data:
        data = _from_batch_api(data)
    elif "prompt" in data:
        if "input" in data:
            raise ConfigurationError(
                "prompt and input are two names of one thing", field="prompt", fix="Write one of them."
            )
        data = {("input" if name == "prompt" else name): value for name, value in data.items()}
    request = validate_with(lambda: AgentRequest.from_dict(data))
    check_not_empty(request)
    return request


def _kind(data: Any) -> str:
    return {list: "an array", bool: "true or false", int: "a number", float: "a number"}.get(type(data), "null")


def _from_batch_api(data: dict[str, Any]) -> dict[str, Any]:
    """A line `{"method": "POST", "url": …, "body": …}`. The model is that of the caller, who may be any vendor's."""
    unknown = sorted(set(data) - {"method", "url", "body"})
    if unknown:
        raise ConfigurationError(f"{', '.join(unknown)}: no field of this format", field=unknown[0], fix="Remove it.")
    if data.get("method", "POST") != "POST" or data["url"] != _CHAT:
        raise ConfigurationError("its url is not known here", field="url", fix=f"Use POST and {_CHAT}.")
    body = data["body"]
    if not isinstance(body, dict):
        raise ConfigurationError("its body is not an object", field="body", fix="Write the body of a request.")
    unknown = sorted(name for name in body if name not in _OURS and not _says_nothing(name, body[name]))
    if unknown:
        raise ConfigurationError(
            f"{', '.join(unknown)}: not known here",
            field=f"body.{unknown[0]}",
            fix="Remove it, or write the line as a request of ours, with these in extra.",
        )
    request = {name: body[name] for name in _SAME if body.get(name) is not None}
    for name in ("max_tokens", "max_completion_tokens"):
        if body.get(name) is not None:
            request["max_tokens"] = body[name]
    if (choice := body.get("tool_choice")) is not None:
        request["tool_choice"] = _choice(choice)
    if (form := body.get("response_format")) is not None:
        request |= _schema(form)
    return request


def _says_nothing(name: str, value: Any) -> bool:
    return value in _SAY_NOTHING.get(name, ())


def _choice(choice: Any) -> Any:
    if isinstance(choice, Mapping) and isinstance(function := choice.get("function"), Mapping):
        return function.get("name")
    return choice


def _schema(form: Any) -> dict[str, Any]:
    kind = form.get("type") if isinstance(form, Mapping) else None
    if kind == "text":
        return {}
    if kind == "json_schema" and isinstance(inner := form.get("json_schema"), Mapping) and "schema" in inner:
        return {"output_schema": inner["schema"]}
    raise ConfigurationError(
        "its response_format is not known here", field="body.response_format", fix="Use a json_schema."
    )


def lines_of(source: BinaryIO) -> Iterator[Line]:
    """The lines of a file from its beginning, the empty ones left out but counted. One is in memory at a time."""
    source.seek(0)
    number = 0
    while raw := source.readline(LONGEST + 1):
        number += 1
        whole = raw.endswith(b"\n") or len(raw) <= LONGEST
        if not whole:
            _skip_line(source)
        if number == 1:
            raw = raw.removeprefix(b"\xef\xbb\xbf")
        stripped = raw.strip()
        if stripped:
            yield Line(number, stripped, whole=whole)


def _skip_line(source: BinaryIO) -> None:
    while (rest := source.readline(1024 * 1024)) and not rest.endswith(b"\n"):
        pass


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
