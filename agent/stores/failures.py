"""What SQLite says when it cannot, as one of our errors."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

from .base import CorruptStoreError, StoreBusyError, StoreError, StoreFullError

_BUSY = frozenset((sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED))
_DAMAGED = frozenset((sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB))
_BROKEN = frozenset((sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL, sqlite3.SQLITE_NOMEM, *_DAMAGED))
_NOT_ALLOWED = frozenset((sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_AUTH))
_LITTLE = 1 << 16
"""Bytes that a change needs, about. With less than that on the disk, any failure to write means that it is full."""


FAILURES = (sqlite3.Error, UnicodeDecodeError)
"""What the engine raises. The second, when it wants to quote a damaged table that is no longer text."""


def code_of(error: BaseException) -> int:
    """The kind of failure, without the details that its upper bytes tell. 0 if the error is not SQLite's own."""
    if isinstance(error, UnicodeDecodeError):
        return sqlite3.SQLITE_CORRUPT
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def says_damaged(error: BaseException) -> bool:
    return code_of(error) in _DAMAGED


def breaks_connection(error: BaseException) -> bool:
    """After such a failure nothing that a connection believes to know is relied on."""
    return code_of(error) in _BROKEN


def explained(error: Exception, path: Path) -> StoreError:
    """The error to raise instead."""
    name: str | None = getattr(error, "sqlite_errorname", None)
    code = code_of(error)
    if code in _BUSY:
        return StoreBusyError(f"{path.name} is in use: somebody else has been writing for too long.", code=name)
    if code == sqlite3.SQLITE_FULL or (code == sqlite3.SQLITE_IOERR and _disk_is_full(path)):
        return StoreFullError(f"There is no room for {path.name}. What was stored is unchanged.", code=name)
    if code in _DAMAGED:
        return CorruptStoreError(f"{path.name} is damaged: {error}.", code=name)
    if code in _NOT_ALLOWED:
        return StoreError(
            f"{path.name} cannot be opened or written: {error}. Check the folder and permissions.", code=name
        )
    return StoreError(f"{path.name} cannot be used: {error}.", code=name)


def _disk_is_full(path: Path) -> bool:
    # SQLite names a full disk where it writes, and not where it makes room for its shared memory.
    try:
        return shutil.disk_usage(path.parent).free < _LITTLE
    except OSError:
        return False
