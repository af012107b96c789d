"""Private files with atomic replacement: readable by their owner only."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from secrets import token_hex

from .base import StoreError, StoreFullError

_BLOCK = 1 << 16
_NO_ROOM = frozenset((errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC)))
_CANNOT_SYNC_FOLDERS = frozenset((errno.EINVAL, errno.ENOTSUP))

_creating = threading.Lock()
"""Held while a file is created: closing a file releases the locks of other threads that opened it."""


def _renew_lock() -> None:
    global _creating
    _creating = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)


def create_private_file(path: Path) -> None:
    """Create an empty file with mode 0600 for SQLite, which uses the same mode for `-wal` and `-shm`.

    An existing file is not opened, because closing it would release SQLite's locks on it in this process.
    """
    with _creating:
        try:
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        except FileExistsError:
            return
        folder = open_folder(path.parent)
        try:
            sync_folder(folder)
        finally:
            close_folder(folder)


def replace_file(path: str | os.PathLike[str], chunks: Iterable[bytes]) -> None:
    """Replace the content of a file atomically and durably.

    If anything fails, including `chunks`, the old file is unchanged and no temporary file remains. Exception: if only
    the final sync of the folder fails, the new file is in place.

    Args:
        path: The file. Its permissions are kept; a new file has mode 0600. A symbolic link is followed.
        chunks: The new content, in chunks of any size.
    """
    target = Path(os.path.realpath(path))
    temporary = target.with_name(f".{target.name[:200]}.{token_hex(8)}.tmp")
    with convert_os_errors(target):
        folder = open_folder(target.parent)
    try:
        try:
            _write(temporary, target, chunks)
            with convert_os_errors(target):
                os.replace(temporary, target)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
        with convert_os_errors(target):
            sync_folder(folder)
    finally:
        close_folder(folder)


def _write(temporary: Path, target: Path, chunks: Iterable[bytes]) -> None:
    with convert_os_errors(target):
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0), 0o600)
    try:
        with convert_os_errors(target):
            _copy_permissions(target, descriptor)
        buffer = bytearray()
        for chunk in chunks:  # outside `convert_os_errors`: errors of the caller's iterator are not converted
            buffer += chunk
            if len(buffer) >= _BLOCK:
                with convert_os_errors(target):
                    _write_all(descriptor, buffer)
                buffer.clear()
        with convert_os_errors(target):
            _write_all(descriptor, buffer)
            sync(descriptor)
    finally:
        with convert_os_errors(target):
            os.close(descriptor)  # some network disks report write errors only here


def _copy_permissions(source: Path, descriptor: int) -> None:
    try:
        mode = stat.S_IMODE(os.stat(source).st_mode)
    except FileNotFoundError:
        return
    if hasattr(os, "fchmod"):
        os.fchmod(descriptor, mode)


def _write_all(descriptor: int, content: bytearray) -> None:
    with memoryview(content) as view:
        written = 0
        while written < len(view):
            written += os.write(descriptor, view[written:])  # may write less than requested


def sync(descriptor: int) -> None:
    """Flush a file to disk."""
    try:
        from fcntl import F_FULLFSYNC, fcntl  # type: ignore[attr-defined]  # lazy: macOS only
    except ImportError:
        os.fsync(descriptor)
    else:
        fcntl(descriptor, F_FULLFSYNC)


def open_folder(folder: Path) -> int | None:
    """Open a folder for `sync_folder`; None on Windows."""
    return None if os.name == "nt" else os.open(folder, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))


def sync_folder(folder: int | None) -> None:
    """Flush the entries of a folder to disk, so that a new file survives a power failure."""
    if folder is None:
        return
    try:
        os.fsync(folder)
    except OSError as error:
        if error.errno not in _CANNOT_SYNC_FOLDERS:
            raise


def close_folder(folder: int | None) -> None:
    if folder is not None:
        with contextlib.suppress(OSError):
            os.close(folder)


@contextlib.contextmanager
def convert_os_errors(path: Path) -> Iterator[None]:
    """Convert an OSError to a StoreError."""
    try:
        yield
    except OSError as error:
        kind = StoreFullError if error.errno in _NO_ROOM else StoreError
        reason = error.strerror or str(error)
        code = None if error.errno is None else errno.errorcode.get(error.errno)
        raise kind(f"{path.name} cannot be written: {reason}.", code=code) from error
