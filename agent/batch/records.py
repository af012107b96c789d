"""Line formats of file batches: requests in the input, responses and failures in the output."""

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

MAX_LINE_BYTES = 64 * 1024 * 1024
"""Maximum bytes of a line. Longer lines are not kept in memory."""

_CHAT = "/v1/chat/completions"
_SAME_FIELDS = (
    "messages", "temperature", "top_p", "stop", "seed", "tools", "parallel_tool_calls", "metadata",
)  # fmt: skip
_KNOWN_FIELDS = frozenset(
    (*_SAME_FIELDS, "model", "max_tokens", "max_completion_tokens", "tool_choice", "response_format")
)
_DEFAULTS = {"stream": (False, None), "n": (1, None)}


class Line:
    """A line of the input. `key` is its custom_id, or else its number."""

    __slots__ = ("_data", "_problem", "custom_id", "digest", "number")

    def __init__(self, number: int, raw: bytes, *, complete: bool = True) -> None:
        self.number: int = number
        self.custom_id: str | None = None
        self._data: Any = None
        self._problem: ConfigurationError | None = None
        self.digest: str = hashlib.sha256(raw).hexdigest()[:16]
        if not complete:
            self._problem = _problem(number, f"it is longer than {MAX_LINE_BYTES} bytes", "Split it.")
            return
        try:
            self._data = parse_json(raw.decode("utf-8"), repair=False)
        except ValueError as error:
            self._problem = _problem(number, f"it is not JSON ({str(error)[:200]})", "Write one JSON value per line.")
            return
        if isinstance(self._data, dict) and "custom_id" in self._data:
            custom_id = self._data.pop("custom_id")
            if isinstance(custom_id, str) and custom_id:
                self.custom_id = custom_id
            elif custom_id is not None:
                self._problem = _problem(number, "its custom_id is not a string", "Use a string.", field="custom_id")

    @property
    def names_model(self) -> bool:
        """Whether the line itself names a model."""
        return isinstance(self._data, dict) and bool(self._data.get("model"))

    @property
    def key(self) -> str | int:
        return self.number if self.custom_id is None else self.custom_id

    def request(self) -> AgentRequest:
        """Return the request, or raise the line's error."""
        if self._problem is not None:
            raise self._problem
        try:
            return _read(self._data)
        except ConfigurationError as error:
            raise _problem(self.number, error.message.rstrip("."), error.fix, field=error.field) from None


def _problem(number: int, problem: str, fix: str | None, *, field: str | None = None) -> ConfigurationError:
    return ConfigurationError(f"Line {number} of the input is invalid: {problem}.", field=field, fix=fix)


def _read(data: Any) -> AgentRequest:
    if isinstance(data, str):
        data = {"input": data}
    if not isinstance(data, dict):
        kind = {list: "an array", bool: "true or false", int: "a number", float: "a number"}.get(type(data), "null")
        raise ConfigurationError(
            f"it is {kind}", fix='Use a string, {"prompt": …}, or an object with the fields of a request.'
        )
    if "body" in data and "url" in data:
        data = _from_batch_api(data)
    elif "prompt" in data:
        if "input" in data:
            raise ConfigurationError("prompt and input are aliases", field="prompt", fix="Use one of them.")
        data = {("input" if name == "prompt" else name): value for name, value in data.items()}
    request = validate_with(lambda: AgentRequest.from_dict(data))
    check_not_empty(request)
    return request


def _from_batch_api(data: dict[str, Any]) -> dict[str, Any]:
    """Convert a line `{"method": "POST", "url": …, "body": …}` of a batch API. Its model is ignored."""
    unknown = sorted(set(data) - {"method", "url", "body"})
    if unknown:
        raise ConfigurationError(f"{', '.join(unknown)}: unknown field", field=unknown[0], fix="Remove it.")
    if data.get("method", "POST") != "POST" or data["url"] != _CHAT:
        raise ConfigurationError("its url is not supported", field="url", fix=f"Use POST and {_CHAT}.")
    body = data["body"]
    if not isinstance(body, dict):
        raise ConfigurationError("its body is not an object", field="body", fix="Use the body of a chat completion.")
    unknown = sorted(name for name in body if name not in _KNOWN_FIELDS and body[name] not in _DEFAULTS.get(name, ()))
    if unknown:
        raise ConfigurationError(
            f"{', '.join(unknown)}: not supported",
            field=f"body.{unknown[0]}",
            fix="Remove it, or use the fields of an AgentRequest, with these in extra.",
        )
    request = {name: body[name] for name in _SAME_FIELDS if body.get(name) is not None}
    for name in ("max_tokens", "max_completion_tokens"):
        if body.get(name) is not None:
            request["max_tokens"] = body[name]
    if (choice := body.get("tool_choice")) is not None:
        request["tool_choice"] = _read_tool_choice(choice)
    if (form := body.get("response_format")) is not None:
        request |= _read_response_format(form)
    return request


def _read_tool_choice(choice: Any) -> Any:
    if isinstance(choice, Mapping) and isinstance(function := choice.get("function"), Mapping):
        return function.get("name")
    return choice


def _read_response_format(form: Any) -> dict[str, Any]:
    kind = form.get("type") if isinstance(form, Mapping) else None
    if kind == "text":
        return {}
    if kind == "json_schema" and isinstance(inner := form.get("json_schema"), Mapping) and "schema" in inner:
        return {"output_schema": inner["schema"]}
    raise ConfigurationError(
        "its response_format is not supported", field="body.response_format", fix="Use a json_schema."
    )


def read_lines(source: BinaryIO) -> Iterator[Line]:
    """Yield the non-empty lines of a file; numbers count all lines. One line is in memory at a time."""
    source.seek(0)
    number = 0
    while raw := source.readline(MAX_LINE_BYTES + 1):
        number += 1
        complete = raw.endswith(b"\n") or len(raw) <= MAX_LINE_BYTES
        rest = b"" if complete else raw
        while rest and not rest.endswith(b"\n"):
            rest = source.readline(1024 * 1024)
        if number == 1:
            raw = raw.removeprefix(b"\xef\xbb\xbf")
        stripped = raw.strip()
        if stripped:
            yield Line(number, stripped, complete=complete)


_FACTS = ("provider", "model", "status_code", "code", "request_id", "retryable", "retry_after", "field", "fix", "text")

_LINE_SEPARATORS = tuple((end.encode(), b"\\u%04x" % ord(end)) for end in ("\x85", "\u2028", "\u2029"))
"""Characters that JSON allows, but that `str.splitlines` and some editors treat as line breaks."""


def encode_response(line: Line, response: AgentResponse) -> bytes:
    """Return the output line of a response. Raise SchemaValidationError if it is not serializable."""
    try:
        body = response.model_dump_json(exclude_none=True).encode()
    except Exception as error:  # custom output types may raise anything
        message = f"The output is not JSON serializable: {error}."
        raise SchemaValidationError(message, text=response.text, response=response) from None
    return _record(line, "response", body)


def encode_failure(line: Line, error: Exception) -> bytes:
    """Return the output line of any exception."""
    try:
        body = to_json(dump_error(error), fallback=str, inf_nan_mode="null")
    except Exception:  # a broken __str__, or lone surrogates
        text = "".join(traceback.format_exception_only(error)).strip()
        message = text.encode("utf-8", "backslashreplace").decode()
        body = to_json({"type": type(error).__name__, "message": message})
    return _record(line, "error", body)


def _record(line: Line, name: str, body: bytes) -> bytes:
    named = {} if line.custom_id is None else {"custom_id": line.custom_id}
    head = to_json({**named, "line": line.number, "sha256": line.digest})
    record = head[:-1] + b',"%s":%s}' % (name.encode(), body)
    for end, escaped in _LINE_SEPARATORS:
        record = record.replace(end, escaped)
    return record + b"\n"


def dump_error(error: Exception) -> dict[str, Any]:
    """Return an error as data: type, message and attributes."""
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
class LineReference:
    """The input line that an output line belongs to."""

    custom_id: str | None
    line: int
    digest: str

    @property
    def key(self) -> str | int:
        return self.line if self.custom_id is None else self.custom_id


def read_reference(data: Any) -> LineReference:
    """Return the input line of a parsed output line. Raise ValueError for any other line."""
    if not isinstance(data, dict) or not ("response" in data or "error" in data):
        raise ValueError("not an output line of a batch")
    named, number, digest = data.get("custom_id"), data.get("line"), data.get("sha256")
    if not isinstance(number, int) or not isinstance(digest, str) or not isinstance(named, str | None):
        raise ValueError("not an output line of a batch")
    return LineReference(named, number, digest)


@dataclass(frozen=True, slots=True)
class BatchAnswer:
    """An output line, read back."""

    line: int
    """Line number in the input, from 1."""
    custom_id: str | None
    response: AgentResponse | None = None
    error: dict[str, Any] | None = None
    """Type, message and attributes of a failure."""


def read_answers(path: str | PathLike[str]) -> Iterator[BatchAnswer]:
    """Yield the responses or failures of an output file, without a partial last line."""
    with open(path, "rb") as file:
        for number, raw in enumerate(file, start=1):
            if not raw.endswith(b"\n"):
                return
            try:
                data = from_json(raw)
                reference = read_reference(data)
                response = AgentResponse.from_dict(data["response"]) if "response" in data else None
            except ValueError as error:
                raise ConfigurationError(
                    f"Line {number} of {path} was not written by a batch: {error}.",
                    field="path",
                    fix="Pass an output file.",
                ) from None
            yield BatchAnswer(reference.line, reference.custom_id, response, data.get("error"))
