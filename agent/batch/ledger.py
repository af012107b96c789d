"""The two files that a batch writes, answers and failures, such that a crash at any moment loses and doubles nothing.

Lines are only ever added, each with one call of the system where that takes it whole. Whatever a crash leaves behind
the last whole line is cut off when the file is opened again: its request was not answered, as far as anybody can know.
Nothing else is ever cut off: a file with a line that cannot be ours is somebody else's, and is refused.
A lock on the file, which ends with the process, keeps a second one out.
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
from typing import Any, BinaryIO, Self

from ..errors import AgentError, ConfigurationError
from ..stores.files import close_folder, open_folder, sync, sync_folder
from .records import Mark, read_json, read_mark

SYNC_SECONDS = 1.0
"""Between two times that lines are forced to the disk. Only a loss of power can take what was written since."""


class BatchFileError(AgentError):
    """A file of a batch cannot be written, as when the disk is full. What was written before is whole, and stays."""

    def __init__(self, message: str = "", *, fix: str | None = None, **facts: Any) -> None:
        super().__init__(message, **facts)
        self.fix = fix


class FileOutput:
    """One file, open for adding lines and closed to other processes."""

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
                    f"{path} is not a plain file.", field=name, fix="Choose a file, or - for standard output."
                )
            _lock(self._descriptor, path, name)
        except BaseException:
            os.close(self._descriptor)
            raise
        self.repaired = False
        """Whether something half-written had to be cut off."""

    def marks(self) -> Iterator[Mark]:
        """What its lines say about the input. What a crash has left of a last line is cut off."""
        whole = 0
        with open(self._descriptor, "rb", closefd=False) as file:
            file.seek(0)
            for number, raw in enumerate(file, start=1):
                try:
                    mark = read_mark(raw)
                except ValueError:
                    mark = None
                if mark is None or not raw.endswith(b"\n"):
                    if file.read(1) or not _left_by_a_crash(raw, mark, behind_others=whole > 0):
                        raise ConfigurationError(
                            f"Line {number} of {self.path} was not written by a batch.",
                            field=self._name,
                            fix="Choose another file, or remove that line.",
                        )
                    os.ftruncate(self._descriptor, whole)
                    self.repaired = True
                    return
                whole += len(raw)
                yield mark

    def append(self, line: bytes) -> None:
        """Add a line, whole or not at all."""
        before = os.fstat(self._descriptor).st_size
        try:
            with memoryview(line) as view:
                written = 0
                while written < len(view):
                    written += os.write(self._descriptor, view[written:])  # it may take less than it is given
        except BaseException as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, before)
            if isinstance(error, OSError):
                raise _cannot_write(self.path, error) from error
            raise
        self._unsynced = True
        if monotonic() - self._synced_at >= SYNC_SECONDS:
            self.sync()

    def sync(self) -> None:
        """Have it on the disk."""
        if self._unsynced:
            try:
                sync(self._descriptor)
            except OSError as error:
                raise _cannot_write(self.path, error) from error
            self._unsynced = False
        self._synced_at = monotonic()

    def clear(self) -> None:
        os.ftruncate(self._descriptor, 0)
        self._unsynced = True

    def close(self) -> None:
        os.close(self._descriptor)


class StreamOutput:
    """Standard output, say: lines go out, and nobody can tell later which."""

    repaired = False

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream

    def marks(self) -> Iterator[Mark]:
        return iter(())

    def append(self, line: bytes) -> None:
        try:
            self._stream.write(line)
            self._stream.flush()
        except BrokenPipeError:  # whoever reads has had enough, which is no trouble of ours
            raise
        except OSError as error:
            raise BatchFileError(
                f"The answers cannot be written: {error.strerror or error}.", code=_code(error)
            ) from error

    def sync(self) -> None:
        """Each line was on its way at once."""

    def clear(self) -> None:
        """There is nothing to take back."""

    def close(self) -> None:
        """It is its owner's."""


class Ledger:
    """Answers and failures.

    `answered` and `failed` have the digests of the lines that earlier runs have settled, by their keys. Of what is
    added later only the numbers are kept, so that an input of any length needs no memory for it.
    """

    def __init__(self, answers: FileOutput | StreamOutput, failures: FileOutput | StreamOutput) -> None:
        self._answers, self._failures = answers, failures
        self.answered: dict[str | int, str] = {}
        self.failed: dict[str | int, str] = {}
        for output, found in ((answers, self.answered), (failures, self.failed)):
            for mark in output.marks():
                if mark.key in self.answered or mark.key in self.failed:
                    raise ConfigurationError(
                        f"The output has line {mark.line} of the input twice.",
                        field="target",
                        fix="Remove one of the two, or choose another output.",
                    )
                found[mark.key] = mark.digest
        self.answers, self.failures = len(self.answered), len(self.failed)
        """How many there are, those added since included."""
        self.repaired = answers.repaired or failures.repaired

    @classmethod
    def in_files(cls, target: Path, failures: Path) -> Self:
        """Opens both, for this process alone."""
        with contextlib.ExitStack() as undo:
            answers = FileOutput(target, "target")
            undo.callback(answers.close)
            failing = FileOutput(failures, "failures")
            undo.callback(failing.close)
            made = cls(answers, failing)
            for folder in {target.parent, failures.parent}:
                _sync_folder(folder)
            undo.pop_all()
            return made

    @classmethod
    def on_stream(cls, stream: BinaryIO) -> Self:
        """Both go to one stream, and nothing is known of earlier runs."""
        both = StreamOutput(stream)
        return cls(both, both)

    def forget_failures(self) -> None:
        """What failed is to be asked again: from here on it is as if it had never been."""
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


_BEGINNINGS = (b'{"custom_id":', b'{"line":')


def _left_by_a_crash(raw: bytes, mark: Mark | None, *, behind_others: bool) -> bool:
    """Whether this, at the end of a file, can be what is left of a line of ours."""
    if mark is not None:
        return True  # all but its end
    if b"\0" in raw:  # where a disk has lost what it was to keep, there are zeros
        return behind_others or not raw.strip(b"\0\n")
    if raw.endswith(b"\n") or not any(raw.startswith(begin) or begin.startswith(raw) for begin in _BEGINNINGS):
        return False
    try:
        read_json(raw)
    except ValueError:
        return True
    return False  # a piece of a line is no JSON; this is, and not ours


def _code(error: OSError) -> str | None:
    return None if error.errno is None else errno.errorcode.get(error.errno)


def _cannot_write(path: Path, error: OSError) -> BatchFileError:
    return BatchFileError(
        f"{path} cannot be written: {error.strerror or error}. What was written before is whole.",
        code=_code(error),
        fix="Make room, or mend what is wrong, and run the same again: it goes on where it stopped.",
    )


def _lock(descriptor: int, path: Path, name: str) -> None:
    """For as long as the file is open: the system takes the lock back when the process ends, however it ends."""
    try:
        if sys.platform == "win32":
            import msvcrt

            os.lseek(descriptor, 1 << 40, os.SEEK_SET)  # beyond what anybody reads: locks there keep readers out
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.EAGAIN, errno.EACCES, errno.EDEADLK):
            raise _cannot_write(path, error) from error
        raise ConfigurationError(
            f"Another process is writing to {path}.", field=name, fix="Wait for it to end, or choose another output."
        ) from None
