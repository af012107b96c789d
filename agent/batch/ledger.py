"""The output files of a batch: crash-safe, append-only files of responses and failures.

Each line is written with one system call where possible. A partial last line, left by a crash, is truncated when the
file is opened again. A file with any other unexpected line is rejected, never changed. A file lock, which ends with the
process, excludes concurrent writers.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from time import monotonic
from typing import BinaryIO, Self

from pydantic_core import from_json

from ..errors import AgentError, ConfigurationError
from ..stores.files import close_folder, open_folder, sync, sync_folder
from .records import LineReference, read_reference

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
