"""Opening the file of a SQLite store: making it, finding out whether it is whole, bringing an older one up to date.

A damaged file is set aside, and never deleted. A file that somebody else made, or a newer version of this package, is
left as it is.
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

from . import sqlite_search
from .base import CorruptStoreError, StoreBusyError, StoreError, StoreFullError, UnknownFormatError
from .files import close_folder, convert_os_errors, create_private_file, open_folder, sync, sync_folder

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
"""A file is ours if its tables were made with just these words."""
_PAUSE = 0.005


class _Damaged(Exception):
    """What was found in the file cannot be what was written."""


Identity: TypeAlias = tuple[int, int] | None
"""Which file it is, whatever its name."""


def opened(path: Path, *, busy_timeout: float, check: bool) -> tuple[sqlite3.Connection, Identity]:
    """A connection to a file that is whole and up to date.

    Args:
        path: The file. It is made if there is none.
        busy_timeout: Seconds to wait for others.
        check: Whether to look through the whole file. Its format is looked at in any case.
    """
    try:
        return _open(path, busy_timeout, check)
    except _Damaged:
        pass
    with convert_os_errors(path), _alone_in(path.parent):
        try:  # once more: in the meantime somebody else may have set it aside and begun a new one
            return _open(path, busy_timeout, check)
        except _Damaged as damage:
            raise _set_aside(path, str(damage)) from damage


def _open(path: Path, busy_timeout: float, check: bool) -> tuple[sqlite3.Connection, Identity]:
    with convert_os_errors(path):
        create_private_file(path)
    found = identity(path)
    connection: sqlite3.Connection | None = None
    try:
        connection = sqlite3.connect(path, timeout=busy_timeout, isolation_level=None, check_same_thread=False)
        connection.text_factory = bytes  # text that is damaged may not be text
        version = _version_of(connection, path)
        search_is_whole = _check(connection) if check else True
        _prepare(connection, path, version, busy_timeout)
        if not search_is_whole:
            _forget_index(connection)
    except BaseException as error:
        if connection is not None:
            connection.close()
        if says_damaged(error):
            raise _Damaged(str(error)) from error
        if isinstance(error, FAILURES):
            raise explained(error, path) from error
        raise
    return connection, found


def identity(path: Path) -> Identity:
    """Which file has that name just now."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


# Is it ours, and is it whole?


def _version_of(connection: sqlite3.Connection, path: Path) -> int:
    """The version of the format; 0 of a file with nothing in it."""
    if connection.in_transaction:
        return _read_version(connection, path)
    connection.execute("BEGIN")  # all of it from one moment: somebody else may be making the file
    version = _read_version(connection, path)
    connection.execute("COMMIT")
    return version


def _read_version(connection: sqlite3.Connection, path: Path) -> int:
    try:
        version: int = connection.execute("PRAGMA user_version").fetchone()[0]
        rows = connection.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall()
    except sqlite3.OperationalError as error:
        if code_of(error) == sqlite3.SQLITE_ERROR:  # nothing is wrong with the questions, so it is the file
            raise _Damaged(str(error)) from error
        raise
    tables = {_text(name): _text(words) for name, words in rows}
    if not tables and version == 0:
        return 0
    ours = {name for name, words in _TABLES.items() if tables.get(name) == words}
    about = _read_about(connection) if "about" in ours else {}
    if version > SCHEMA and about.get("schema", str(version)) == str(version):
        raise UnknownFormatError(
            f"{path.name} has the format {version}; this version of the package knows {SCHEMA}. Update the package."
        )
    if tables and not ours:
        raise UnknownFormatError(f"{path.name} is a database, and not one of conversations. Name another file.")
    if len(ours) < len(_TABLES) or about.get("schema") != str(version):
        raise _Damaged("its tables are not what they were")
    return version


def _read_about(connection: sqlite3.Connection) -> dict[str, str]:
    return {_text(key): _text(value) for key, value in connection.execute("SELECT key, value FROM about")}


def _text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _check(connection: sqlite3.Connection) -> bool:
    """Look through the whole file. False if all is well but the index for searching, which is made from the rest."""
    problems = [_text(said) for (said,) in connection.execute("PRAGMA integrity_check(20)")]
    for problem in problems:
        if problem != "ok" and "FTS5" not in problem:
            raise _Damaged(problem)
    return problems == ["ok"]


def _forget_index(connection: sqlite3.Connection) -> None:
    connection.execute("BEGIN IMMEDIATE")
    sqlite_search.forget(connection)
    connection.execute("COMMIT")


# Bringing it up to date


def _prepare(connection: sqlite3.Connection, path: Path, version: int, busy_timeout: float) -> None:
    _begin_log(connection, busy_timeout)
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA fullfsync = ON")  # macOS: else a commit stops at the disk's cache
    connection.execute("PRAGMA checkpoint_fullfsync = ON")
    if version == SCHEMA:
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        version = _version_of(connection, path)  # somebody else may have been faster
        if 0 < version < SCHEMA:
            _back_up(path, version)
        for step in _STEPS[version:]:
            step(connection)
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            with contextlib.suppress(sqlite3.Error):  # the connection is closed next, and that ends it, too
                connection.execute("ROLLBACK")
        raise


def _begin_log(connection: sqlite3.Connection, busy_timeout: float) -> None:
    """Turn write-ahead logging on. Of processes that open a new file together one can, and SQLite lets none wait."""
    deadline = time.monotonic() + busy_timeout
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if code_of(error) not in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED) or time.monotonic() > deadline:
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
    """An index for searching, which is made when somebody searches, and the number of the last node in it."""
    connection.execute("INSERT INTO about (key, value) VALUES ('indexed', '0')")
    connection.execute("UPDATE about SET value = '2' WHERE key = 'schema'")
    connection.execute("PRAGMA user_version = 2")


_STEPS: tuple[Callable[[sqlite3.Connection], None], ...] = (_to_1, _to_2)
"""Each brings a file from the version of its place to the next. Together they are one transaction."""


def _back_up(path: Path, version: int) -> None:
    """Copy the file as it is, under the lock that keeps others from changing it."""
    for left in path.parent.glob(f"{_globbed(path.name)}.backup-*.tmp*"):  # of one that was killed
        left.unlink(missing_ok=True)
    backup = _free_name(path, f"backup-v{version}")
    temporary = backup.with_name(f"{backup.name}.tmp")
    with convert_os_errors(path), contextlib.ExitStack() as closing:
        try:
            descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
            closing.callback(os.close, descriptor)
            # A connection of its own: one that is writing cannot be copied from.
            source = closing.enter_context(contextlib.closing(sqlite3.connect(path)))
            with contextlib.closing(sqlite3.connect(temporary)) as target:
                target.execute("PRAGMA synchronous = OFF")  # it is synced below, once
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


def _globbed(name: str) -> str:
    return glob.escape(name)


# Setting aside


def _set_aside(path: Path, reason: str) -> CorruptStoreError:
    """Give a damaged file another name, with its log. What remains under the old name is nothing."""
    aside = _free_name(path, "corrupt")
    try:
        for suffix in ("-wal", "-shm", ""):  # the file last: without its log it may lack what was acknowledged
            with contextlib.suppress(FileNotFoundError):
                os.rename(f"{path}{suffix}", f"{aside}{suffix}")
    except OSError as error:
        return CorruptStoreError(f"{path.name} is damaged ({reason}), and cannot be set aside: {error.strerror}.")
    return CorruptStoreError(
        f"{path.name} is damaged ({reason}). It is now {aside.name}; the next use begins a new file.", set_aside=aside
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
def _alone_in(folder: Path) -> Iterator[None]:
    """Of several processes that find the same damage, one at a time."""
    try:
        import fcntl
    except ImportError:  # Windows, where an open file cannot be renamed under somebody's feet
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
