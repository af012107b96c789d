"""Files that hold conversations: readable only by their owner, and replaced atomically."""

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
"""Held while a file is created: closing it would release the locks of a thread that has opened it in the meantime."""


def _renew_lock() -> None:
    global _creating
    _creating = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)


def create_private_file(path: Path) -> None:
    """Create an empty file with mode 0600, for SQLite to open. An existing file is not touched.

    SQLite gives the `-wal` and `-shm` files beside it the same mode. The file is created exclusively: opening and
    closing an existing one would release the locks that SQLite holds on it in this process.
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
    """Write a file anew. When this has returned, the new content survives a loss of power.

    If anything fails, `chunks` included, the old file is untouched and nothing is left beside it. The one exception: if
    the folder cannot be synced after the new file took its place, that is an error, and the new file is there.

    Args:
        path: The file. Its permissions are kept; a new one has mode 0600. A link stays a link, and what it points to
            is replaced.
        chunks: The new content, in pieces of any size.
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
        held = bytearray()
        for chunk in chunks:  # outside `convert_os_errors`: what the caller's iterator raises is the caller's
            held += chunk
            if len(held) >= _BLOCK:
                with convert_os_errors(target):
                    _write_all(descriptor, held)
                held.clear()
        with convert_os_errors(target):
            _write_all(descriptor, held)
            sync(descriptor)
    finally:
        with convert_os_errors(target):
            os.close(descriptor)  # on some network disks, what could not be written is said only here


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
            written += os.write(descriptor, view[written:])  # it may take less than it is given


def sync(descriptor: int) -> None:
    """Have the content of a file on the disk itself."""
    try:
        from fcntl import F_FULLFSYNC, fcntl  # type: ignore[attr-defined]  # macOS: fsync stops at the disk's cache
    except ImportError:
        os.fsync(descriptor)
    else:
        fcntl(descriptor, F_FULLFSYNC)


def open_folder(folder: Path) -> int | None:
    """For `sync_folder`. None where folders are no files."""
    return None if os.name == "nt" else os.open(folder, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))


def sync_folder(folder: int | None) -> None:
    """Have the names in a folder on the disk: a new file that is not in its folder is lost."""
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
    """What the system says, as one of our errors."""
    try:
        yield
    except OSError as error:
        kind = StoreFullError if error.errno in _NO_ROOM else StoreError
        said = error.strerror or str(error)
        code = None if error.errno is None else errno.errorcode.get(error.errno)
        raise kind(f"{path.name} cannot be written: {said}.", code=code) from error
