"""The files of a batch: lines of requests in, append-only files of responses and failures out.

Each output line is written with one system call where possible. A partial last line, left by a crash, is truncated when
the file is opened again. A file with any other unexpected line is rejected, never changed. A file lock, which ends with
the process, excludes concurrent writers.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any, BinaryIO, Self

from pydantic_core import from_json, to_json

from ..calls.requests import check_not_empty
from ..engine.wire import parse_json
from ..errors import AgentError, ConfigurationError, SchemaValidationError
from ..providers import find_server_dialect
from ..stores.files import close_folder, open_folder, sync, sync_folder
from ..types import AgentRequest, AgentResponse, FrozenDict
from ..types._base import validate_with

MAX_LINE_BYTES = 64 * 1024 * 1024
"""Maximum bytes of a line. Longer lines are not kept in memory."""


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
        request = _from_batch_api(data)
    else:
        if "prompt" in data and "input" in data:
            raise ConfigurationError("prompt and input are aliases", field="prompt", fix="Use one of them.")
        fields = {("input" if name == "prompt" else name): value for name, value in data.items()}
        request = validate_with(lambda: AgentRequest.from_dict(fields))
    check_not_empty(request)
    return request


def _from_batch_api(data: dict[str, Any]) -> AgentRequest:
    """Convert a line `{"method": "POST", "url": …, "body": …}` of a batch API. Its model is ignored."""
    if unknown := sorted(set(data) - {"method", "url", "body"}):
        raise ConfigurationError(f"{', '.join(unknown)}: unknown field", field=unknown[0], fix="Remove it.")
    url, body = data["url"], data["body"]
    server = find_server_dialect(url) if isinstance(url, str) else None
    if server is None or server.match_endpoint(url) != "generate" or data.get("method", "POST") != "POST":
        raise ConfigurationError(
            "its url is not supported", field="url", fix="Use POST and a path such as /v1/chat/completions."
        )
    if not isinstance(body, dict):
        raise ConfigurationError("its body is not an object", field="body", fix="Use the body of a request.")
    inbound = server.decode_request(url, to_json(body))
    unsupported = ["stream"] if inbound.stream else []
    unsupported += [name for name, value in inbound.request.extra.items() if (name, value) != ("n", 1)]
    if unsupported:
        raise ConfigurationError(
            f"{', '.join(unsupported)}: not supported",
            field=f"body.{unsupported[0]}",
            fix="Remove it, or use the fields of an AgentRequest, with these in extra.",
        )
    return inbound.request.model_copy(update={"model": None, "extra": FrozenDict()})


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


def read_answers(path: str | os.PathLike[str]) -> Iterator[BatchAnswer]:
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


# Output files

SYNC_SECONDS = 1.0
"""Interval of fsync. Only a power failure can lose lines written since."""


class BatchFileError(AgentError):
    """An output file cannot be written, for example because the disk is full. Earlier lines are intact."""


class FileOutput:
    """An append-only output file, locked against other processes."""

    def __init__(self, path: Path, name: str) -> None:
        self.path = path
        self._name = name
        self._unsynced = False
        self._synced_at = monotonic()
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
        try:
            self._descriptor = os.open(path, flags, 0o600)
        except OSError as error:
            raise ConfigurationError(
                f"{path} cannot be opened: {error.strerror or error}.", field=name, fix="Choose another file."
            ) from None
        try:
            if not stat.S_ISREG(os.fstat(self._descriptor).st_mode):
                raise ConfigurationError(
                    f"{path} is not a regular file.", field=name, fix="Choose a file, or - for standard output."
                )
            lock_file(self._descriptor, path, name)
        except BaseException:
            os.close(self._descriptor)
            raise
        self.repaired: bool = False
        """Whether a partial line was truncated."""

    def read_references(self) -> Iterator[LineReference]:
        """Yield the input line of each output line. Truncate a partial last line."""
        complete = 0
        with open(self._descriptor, "rb", closefd=False) as file:
            file.seek(0)
            for number, raw in enumerate(file, start=1):
                try:
                    reference = read_reference(from_json(raw))
                except ValueError:
                    reference = None
                if reference is None or not raw.endswith(b"\n"):
                    if file.read(1) or not _is_partial_line(raw, reference, follows_others=complete > 0):
                        raise ConfigurationError(
                            f"Line {number} of {self.path} was not written by a batch.",
                            field=self._name,
                            fix="Choose another file, or remove that line.",
                        )
                    os.ftruncate(self._descriptor, complete)
                    self.repaired = True
                    return
                complete += len(raw)
                yield reference

    def append(self, line: bytes) -> None:
        """Append a line completely or not at all."""
        before = os.fstat(self._descriptor).st_size
        try:
            with memoryview(line) as view:
                written = 0
                while written < len(view):
                    written += os.write(self._descriptor, view[written:])  # os.write may write less
        except BaseException as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, before)
            if isinstance(error, OSError):
                raise _write_error(self.path, error) from error
            raise
        self._unsynced = True
        if monotonic() - self._synced_at >= SYNC_SECONDS:
            self.sync()

    def sync(self) -> None:
        """Flush to the disk."""
        if self._unsynced:
            try:
                sync(self._descriptor)
            except OSError as error:
                raise _write_error(self.path, error) from error
            self._unsynced = False
        self._synced_at = monotonic()

    def clear(self) -> None:
        os.ftruncate(self._descriptor, 0)
        self._unsynced = True

    def close(self) -> None:
        os.close(self._descriptor)


class StreamOutput:
    """Output to a stream, such as standard output, without resumption."""

    repaired = False

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream

    def read_references(self) -> Iterator[LineReference]:
        return iter(())

    def append(self, line: bytes) -> None:
        try:
            self._stream.write(line)
            self._stream.flush()
        except BrokenPipeError:  # the reader closed the pipe; the command line handles it
            raise
        except OSError as error:
            raise BatchFileError(
                f"The responses cannot be written: {error.strerror or error}.", code=_code(error)
            ) from error

    def sync(self) -> None:
        """Lines are flushed immediately."""

    def clear(self) -> None:
        """Written lines cannot be removed."""

    def close(self) -> None:
        """The caller owns the stream."""


class Ledger:
    """Responses and failures of a batch.

    `answered` and `failed` map the keys of lines finished by earlier runs to their digests. Lines added later are only
    counted, so that memory does not grow with the input.
    """

    def __init__(self, answers: FileOutput | StreamOutput, failures: FileOutput | StreamOutput) -> None:
        self._answers, self._failures = answers, failures
        self.answered: dict[str | int, str] = {}
        self.failed: dict[str | int, str] = {}
        for output, digests in ((answers, self.answered), (failures, self.failed)):
            for reference in output.read_references():
                if reference.key in self.answered or reference.key in self.failed:
                    raise ConfigurationError(
                        f"The output contains line {reference.line} of the input twice.",
                        field="target",
                        fix="Remove one of the two, or choose another output.",
                    )
                digests[reference.key] = reference.digest
        self.answers: int = len(self.answered)
        """Number of answers, including those added since."""
        self.failures: int = len(self.failed)
        self.repaired: bool = answers.repaired or failures.repaired

    @classmethod
    def open_files(cls, target: Path, failures: Path) -> Self:
        """Open and lock both files."""
        with contextlib.ExitStack() as undo:
            answers = FileOutput(target, "target")
            undo.callback(answers.close)
            failing = FileOutput(failures, "failures")
            undo.callback(failing.close)
            ledger = cls(answers, failing)
            for folder in {target.parent, failures.parent}:
                _sync_folder(folder)
            undo.pop_all()
            return ledger

    @classmethod
    def to_stream(cls, stream: BinaryIO) -> Self:
        """Write both to one stream, without knowledge of earlier runs."""
        output = StreamOutput(stream)
        return cls(output, output)

    def clear_failures(self) -> None:
        """Remove all failures, so that their lines are sent again."""
        self._failures.clear()
        self.failed.clear()
        self.failures = 0

    def add_answer(self, line: bytes) -> None:
        self._answers.append(line)
        self.answers += 1

    def add_failure(self, line: bytes) -> None:
        self._failures.append(line)
        self.failures += 1

    def sync(self) -> None:
        self._answers.sync()
        self._failures.sync()

    def close(self) -> None:
        self._answers.close()
        self._failures.close()


def _sync_folder(folder: Path) -> None:
    opened = open_folder(folder)
    try:
        sync_folder(opened)
    finally:
        close_folder(opened)


_LINE_STARTS = (b'{"custom_id":', b'{"line":')


def _is_partial_line(raw: bytes, reference: LineReference | None, *, follows_others: bool) -> bool:
    """Whether this last line of a file can be a partially written output line."""
    if reference is not None:
        return True  # only the newline is missing
    if b"\0" in raw:  # file systems may leave zeros after a power failure
        return follows_others or not raw.strip(b"\0\n")
    if raw.endswith(b"\n") or not any(raw.startswith(begin) or begin.startswith(raw) for begin in _LINE_STARTS):
        return False
    try:
        from_json(raw)
    except ValueError:
        return True
    return False  # complete JSON, but not an output line


def _code(error: OSError) -> str | None:
    return None if error.errno is None else errno.errorcode.get(error.errno)


def _write_error(path: Path, error: OSError) -> BatchFileError:
    return BatchFileError(
        f"{path} cannot be written: {error.strerror or error}. Earlier lines are intact.",
        code=_code(error),
        fix="Fix the cause, such as a full disk, and run the batch again: it resumes.",
    )


def lock_file(descriptor: int, path: Path, name: str) -> None:
    """Lock the file until it is closed or the process ends."""
    try:
        if sys.platform == "win32":
            import msvcrt  # lazy: Windows only

            os.lseek(descriptor, 1 << 40, os.SEEK_SET)  # beyond the end, since Windows locks block readers
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        else:
            import fcntl  # lazy: not on Windows

            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.EAGAIN, errno.EACCES, errno.EDEADLK):
            raise _write_error(path, error) from error
        raise ConfigurationError(
            f"Another process is writing to {path}.", field=name, fix="Wait until it ends, or choose another output."
        ) from None
