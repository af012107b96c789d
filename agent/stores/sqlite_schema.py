"""Open SQLite store files: create, check, migrate and back up.

A damaged file is moved aside, never deleted. A foreign file, or one of a newer version, is left unchanged.
"""

from __future__ import annotations

import contextlib
import glob
import os
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeAlias

from .base import CorruptStoreError, StoreBusyError, StoreError, StoreFullError, UnknownFormatError
from .files import close_folder, convert_os_errors, create_private_file, open_folder, sync, sync_folder
from .search import drop_index

_BUSY = frozenset((sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED))
_DAMAGED = frozenset((sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB))
_BROKEN = frozenset((sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL, sqlite3.SQLITE_NOMEM, *_DAMAGED))
_NOT_ALLOWED = frozenset((sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_AUTH))
_LITTLE = 1 << 16
"""With fewer free bytes than this, a failed write means that the disk is full."""


FAILURES = (sqlite3.Error, UnicodeDecodeError)
"""Exceptions of sqlite3; UnicodeDecodeError occurs when it quotes damaged text."""


def error_code(error: BaseException) -> int:
    """Return the primary SQLite result code, 0 for other errors."""
    if isinstance(error, UnicodeDecodeError):
        return sqlite3.SQLITE_CORRUPT
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def is_corruption(error: BaseException) -> bool:
    return error_code(error) in _DAMAGED


def breaks_connection(error: BaseException) -> bool:
    """Whether the connection must be replaced after this error."""
    return error_code(error) in _BROKEN


def convert_error(error: Exception, path: Path) -> StoreError:
    """Convert a sqlite3 exception to a StoreError."""
    name: str | None = getattr(error, "sqlite_errorname", None)
    code = error_code(error)
    if code in _BUSY:
        return StoreBusyError(f"{path.name} is locked by another writer.", code=name)
    if code == sqlite3.SQLITE_FULL or (code == sqlite3.SQLITE_IOERR and _disk_is_full(path)):
        return StoreFullError(f"No space left to write {path.name}. The stored data is unchanged.", code=name)
    if code in _DAMAGED:
        return CorruptStoreError(f"{path.name} is damaged: {error}.", code=name)
    if code in _NOT_ALLOWED:
        return StoreError(
            f"{path.name} cannot be opened or written: {error}. Check the folder and permissions.", code=name
        )
    return StoreError(f"SQLite error in {path.name}: {error}.", code=name)


def _disk_is_full(path: Path) -> bool:
    # SQLite does not report a full disk when it grows its shared memory file.
    try:
        return shutil.disk_usage(path.parent).free < _LITTLE
    except OSError:
        return False


SCHEMA = 2
_TABLES = {
    "about": "CREATE TABLE about (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
    "sessions": (
        "CREATE TABLE sessions (number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE,"
        " version INTEGER NOT NULL, nodes INTEGER NOT NULL, created_at REAL NOT NULL, updated_at REAL NOT NULL,"
        " header TEXT NOT NULL, checksum INTEGER NOT NULL)"
    ),
    "sessions_by_time": "CREATE INDEX sessions_by_time ON sessions (updated_at, id)",
    "nodes": (
        "CREATE TABLE nodes (number INTEGER PRIMARY KEY AUTOINCREMENT, session INTEGER NOT NULL, id TEXT NOT NULL,"
        " version INTEGER NOT NULL, place INTEGER NOT NULL, row TEXT NOT NULL, checksum INTEGER NOT NULL,"
        " UNIQUE (session, id))"
    ),
    "nodes_by_version": "CREATE INDEX nodes_by_version ON nodes (session, version)",
}
"""A file is a store if its tables were created with exactly these statements."""
_PAUSE = 0.005


class _DamagedFile(Exception):
    """The file is damaged."""


Identity: TypeAlias = tuple[int, int] | None
"""Device and inode of a file."""


def open_database(path: Path, *, busy_timeout: float, check: bool) -> tuple[sqlite3.Connection, Identity]:
    """Open a store file, migrated to the current schema.

    Args:
        path: The file; created if it does not exist.
        busy_timeout: Seconds to wait for other writers.
        check: Whether to run an integrity check. The schema is always checked.
    """
    try:
        return _open(path, busy_timeout, check)
    except _DamagedFile:
        pass
    with convert_os_errors(path), _lock_folder(path.parent):
        try:  # again under the lock: another process may have replaced the file
            return _open(path, busy_timeout, check)
        except _DamagedFile as damage:
            raise _set_aside(path, str(damage)) from damage


def _open(path: Path, busy_timeout: float, check: bool) -> tuple[sqlite3.Connection, Identity]:
    with convert_os_errors(path):
        create_private_file(path)
    opened = file_identity(path)
    connection: sqlite3.Connection | None = None
    try:
        connection = sqlite3.connect(path, timeout=busy_timeout, isolation_level=None, check_same_thread=False)
        connection.text_factory = bytes  # damaged text may not decode
        version = _check_format(connection, path)
        search_is_whole = _check(connection) if check else True
        _prepare(connection, path, version, busy_timeout)
        if not search_is_whole:
            _rebuild_index_later(connection)
    except BaseException as error:
        if connection is not None:
            connection.close()
        if is_corruption(error):
            raise _DamagedFile(str(error)) from error
        if isinstance(error, FAILURES):
            raise convert_error(error, path) from error
        raise
    return connection, opened


def file_identity(path: Path) -> Identity:
    """Return the identity of the file at this path, None if there is none."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


# Checks


def _check_format(connection: sqlite3.Connection, path: Path) -> int:
    """Return the schema version; 0 for an empty file."""
    if connection.in_transaction:
        return _read_version(connection, path)
    connection.execute("BEGIN")  # a consistent read: another process may be creating the tables
    version = _read_version(connection, path)
    connection.execute("COMMIT")
    return version


def _read_version(connection: sqlite3.Connection, path: Path) -> int:
    try:
        version: int = connection.execute("PRAGMA user_version").fetchone()[0]
        rows = connection.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall()
    except sqlite3.OperationalError as error:
        if error_code(error) == sqlite3.SQLITE_ERROR:  # the statements are valid, so the file is damaged
            raise _DamagedFile(str(error)) from error
        raise
    tables = {_text(name): _text(words) for name, words in rows}
    if not tables and version == 0:
        return 0
    ours = {name for name, words in _TABLES.items() if tables.get(name) == words}
    about = _read_about(connection) if "about" in ours else {}
    if version > SCHEMA and about.get("schema", str(version)) == str(version):
        raise UnknownFormatError(
            f"{path.name} has schema version {version}; this package supports up to {SCHEMA}. Update the package."
        )
    if tables and not ours:
        raise UnknownFormatError(f"{path.name} is a SQLite database, but not a session store. Name another file.")
    if len(ours) < len(_TABLES) or about.get("schema") != str(version):
        raise _DamagedFile("its tables were changed")
    return version


def _read_about(connection: sqlite3.Connection) -> dict[str, str]:
    return {_text(key): _text(value) for key, value in connection.execute("SELECT key, value FROM about")}


def _text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _check(connection: sqlite3.Connection) -> bool:
    """Run the integrity check. Return False if only the search index is damaged."""
    problems = [_text(message) for (message,) in connection.execute("PRAGMA integrity_check(20)")]
    for problem in problems:
        if problem != "ok" and "FTS5" not in problem:
            raise _DamagedFile(problem)
    return problems == ["ok"]


def _rebuild_index_later(connection: sqlite3.Connection) -> None:
    connection.execute("BEGIN IMMEDIATE")
    drop_index(connection)
    connection.execute("COMMIT")


# Migrations


def _prepare(connection: sqlite3.Connection, path: Path, version: int, busy_timeout: float) -> None:
    _enable_wal(connection, busy_timeout)
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA fullfsync = ON")  # macOS: fsync alone stops at the disk cache
    connection.execute("PRAGMA checkpoint_fullfsync = ON")
    if version == SCHEMA:
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        version = _check_format(connection, path)  # another process may have migrated it
        if 0 < version < SCHEMA:
            _back_up(path, version)
        for step in _STEPS[version:]:
            step(connection)
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            with contextlib.suppress(sqlite3.Error):  # closing the connection ends the transaction, too
                connection.execute("ROLLBACK")
        raise


def _enable_wal(connection: sqlite3.Connection, busy_timeout: float) -> None:
    """Enable write-ahead logging, with retries: SQLite does not wait for other processes here."""
    deadline = time.monotonic() + busy_timeout
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if error_code(error) not in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED) or time.monotonic() > deadline:
                raise
            time.sleep(_PAUSE)
        else:
            return


def _to_1(connection: sqlite3.Connection) -> None:
    for statement in _TABLES.values():
        connection.execute(statement)
    connection.execute("INSERT INTO about (key, value) VALUES ('schema', '1')")
    connection.execute("PRAGMA user_version = 1")


def _to_2(connection: sqlite3.Connection) -> None:
    """Add the number of the last indexed node; the first search creates the index."""
    connection.execute("INSERT INTO about (key, value) VALUES ('indexed', '0')")
    connection.execute("UPDATE about SET value = '2' WHERE key = 'schema'")
    connection.execute("PRAGMA user_version = 2")


_STEPS: tuple[Callable[[sqlite3.Connection], None], ...] = (_to_1, _to_2)
"""Migrations by version, run in one transaction."""


def _back_up(path: Path, version: int) -> None:
    """Back up the file while its write lock is held."""
    for left in path.parent.glob(f"{glob.escape(path.name)}.backup-*.tmp*"):  # left by a killed process
        left.unlink(missing_ok=True)
    backup = _free_name(path, f"backup-v{version}")
    temporary = backup.with_name(f"{backup.name}.tmp")
    with convert_os_errors(path), contextlib.ExitStack() as closing:
        try:
            descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
            closing.callback(os.close, descriptor)
            # A new connection: one in a transaction cannot be copied.
            source = closing.enter_context(contextlib.closing(sqlite3.connect(path)))
            with contextlib.closing(sqlite3.connect(temporary)) as target:
                target.execute("PRAGMA synchronous = OFF")  # synced once below
                source.backup(target)
            sync(descriptor)
            folder = open_folder(path.parent)
            closing.callback(close_folder, folder)
            os.replace(temporary, backup)
            sync_folder(folder)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise


# Damaged files


def _set_aside(path: Path, reason: str) -> CorruptStoreError:
    """Rename a damaged file and its log."""
    aside = _free_name(path, "corrupt")
    try:
        for suffix in ("-wal", "-shm", ""):  # the file last: without its log it may lack committed changes
            with contextlib.suppress(FileNotFoundError):
                os.rename(f"{path}{suffix}", f"{aside}{suffix}")
    except OSError as error:
        return CorruptStoreError(f"{path.name} is damaged ({reason}) and cannot be moved aside: {error.strerror}.")
    return CorruptStoreError(
        f"{path.name} is damaged ({reason}). Moved to {aside.name}; the next use creates a new file.", set_aside=aside
    )


def _free_name(path: Path, word: str) -> Path:
    moment = datetime.now(UTC).strftime("%Y%m%dT%H%M%S")
    number = 0
    while True:
        free = path.with_name(f"{path.name}.{word}-{moment}{f'-{number}' if number else ''}")
        if not free.exists():
            return free
        number += 1


@contextlib.contextmanager
def _lock_folder(folder: Path) -> Iterator[None]:
    """Lock the folder, so that one process at a time moves a damaged file aside."""
    try:
        import fcntl
    except ImportError:  # Windows, where an open file cannot be renamed
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
