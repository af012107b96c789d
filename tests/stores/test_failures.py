"""Failures of each statement, full disks and missing permissions leave the old or the new state."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

from agent.stores import SessionRecord, SqliteStore, StoreBusyError, StoreError, StoreFullError, sqlite_schema
from tests.stores.nursery import ROOT, nursery
from tests.stores.turns import turn, turns_in


class Engine:
    """Counts what a store asks of SQLite, and makes one of it fail: before it is done, or after."""

    def __init__(self, number: int, code: int, *, after: bool) -> None:
        self.left, self.code, self.after = number, code, after
        self.failed: str | None = None

    def step(self, what: str, perform: Callable[[], Any]) -> Any:
        self.left -= 1
        if self.left:
            return perform()
        self.failed = what
        if self.after:
            done = perform()
            if done is not None:
                done.close()
        error = sqlite3.OperationalError(f"made to fail at {what}")
        error.sqlite_errorcode = self.code
        error.sqlite_errorname = "SQLITE_MADE_UP"
        raise error

    @contextmanager
    def start_task(self) -> Iterator[None]:
        engine, real = self, sqlite3.connect

        class Connection(sqlite3.Connection):
            @override
            def execute(self, *args: Any) -> Any:
                return engine.step(args[0], lambda: super(Connection, self).execute(*args))

            @override
            def executemany(self, *args: Any) -> Any:
                return engine.step(args[0], lambda: super(Connection, self).executemany(*args))

            @override
            def backup(self, *args: Any, **options: Any) -> Any:
                return engine.step("backup", lambda: super(Connection, self).backup(*args, **options))

        def connect(*args: Any, **options: Any) -> Any:
            return engine.step("connect", lambda: real(*args, **{**options, "factory": Connection}))

        with pytest.MonkeyPatch.context() as monkeypatch:
            monkeypatch.setattr(sqlite3, "connect", connect)
            yield


def states(path: Path) -> dict[str, SessionRecord]:
    with SqliteStore(path) as store:
        return {record.id: store.load(record.id) for record in store.list()}


def append(store: SqliteStore) -> None:
    record = store.load("s")
    rows = turn("new", record.heads)
    store.append("s", rows, heads=["new.2"], expected_version=record.version, title="new", metadata={"new": True})


def update(store: SqliteStore) -> None:
    store.update("s", title="new", metadata={"new": True}, heads=["t0.2"], expected_version=store.load("s").version)


def create(store: SqliteStore) -> None:
    store.create("new", rows=turn("new"), heads=["new.2"], title="new")


def delete(store: SqliteStore) -> None:
    store.delete("s")


def search(store: SqliteStore) -> None:
    store.search("says something")


KINDS = {
    sqlite3.SQLITE_IOERR: StoreError,
    sqlite3.SQLITE_FULL: StoreFullError,
    sqlite3.SQLITE_BUSY: StoreBusyError,
}


def in_short(found: dict[str, SessionRecord]) -> dict[str, Any]:
    """A state without its times."""
    return {
        id: (one.version, one.title, dict(one.metadata), list(one.heads), [str(node) for node in one.nodes])
        for id, one in found.items()
    }


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("code", [sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL, sqlite3.SQLITE_BUSY])
@pytest.mark.parametrize("act", [append, update, create, delete, search])
def test_whatever_statement_fails_the_old_state_or_the_new_one_is_there(
    ram: Path, act: Callable[[SqliteStore], None], code: int, after: bool
) -> None:
    original = ram / "original.db"
    with SqliteStore(original) as good:
        good.create("s", title="old", rows=turn("t0"), heads=["t0.2"])
        good.append("s", turn("t1", ["t0.2"]), heads=["t1.2"], expected_version=1)
        if act is not search:
            good.search("something")
    old = in_short(states(original))
    path = ram / "s.db"
    shutil.copy(original, path)
    with SqliteStore(path) as good:
        act(good)
    new = in_short(states(path))
    assert (old == new) == (act is search)
    failed: list[str] = []
    while True:
        for left in ram.glob("s.db*"):
            left.unlink()
        shutil.copy(original, path)
        engine = Engine(len(failed) + 1, code, after=after)
        store: SqliteStore | None = None
        failure: StoreError | None = None
        with engine.start_task():
            try:
                store = SqliteStore(path)
                act(store)
            except StoreError as error:
                failure = error
        found = in_short(states(path))
        assert found in (old, new), f"a mixture after {engine.failed!r} failed"
        if failure is None:
            assert found == new, f"the failure of {engine.failed!r} was not reported"
        else:
            assert isinstance(failure, KINDS[code])
            # The same store works again after the failure.
            store = SqliteStore(path) if store is None else store
            if found == old:
                act(store)
            assert in_short(states(path)) == new
        assert store is not None
        store.close()
        if engine.failed is None:
            break
        failed.append(engine.failed)
    assert "connect" in failed
    assert "BEGIN IMMEDIATE" in failed
    assert "COMMIT" in failed


def test_a_rollback_that_fails_ends_with_the_connection(ram: Path) -> None:
    """First the change fails, and then the way back."""
    path = ram / "s.db"
    with SqliteStore(path) as store:
        store.create("s")
    for number in range(1, 40):
        engine = Engine(number, sqlite3.SQLITE_IOERR, after=False)

        def step(what: str, perform: Callable[[], Any], engine: Engine = engine) -> Any:
            if what == "ROLLBACK":
                raise sqlite3.OperationalError("no way back")
            return Engine.step(engine, what, perform)

        engine.step = step  # type: ignore[method-assign]
        with engine.start_task():
            try:
                store = SqliteStore(path)
                store.append("s", turn("t"), heads=["t.2"], expected_version=1)
            except StoreError:
                pass
            else:
                break
        assert states(path)["s"].version == 1
    assert engine.left > 0
    assert turns_in(states(path)["s"]) == ["t"]


# No room


def test_a_database_that_may_not_grow_is_full(ram: Path) -> None:
    with SqliteStore(ram / "s.db") as store:
        version = store.create("s").version
        version = store.append("s", turn("t0"), heads=["t0.2"], expected_version=version)
        assert store._connection is not None
        store._connection.execute("PRAGMA max_page_count = 1")  # which SQLite takes to mean: as many as there are
        with pytest.raises(StoreFullError, match=r"No space left to write s\.db") as caught:
            store.append("s", turn("t1", ["t0.2"], size=100_000), heads=["t1.2"], expected_version=version, title="new")
        assert (caught.value.code, caught.value.retryable) == ("SQLITE_FULL", False)
        record = store.load("s")
        assert (record.version, record.title, turns_in(record)) == (2, "", ["t0"])
        # The connection was made anew, and the limit went with the old one.
        store.append("s", turn("t1", ["t0.2"], size=100_000), heads=["t1.2"], expected_version=version)
    assert turns_in(states(ram / "s.db")["s"]) == ["t0", "t1"]


@pytest.mark.parametrize("most", [100_000, 300_000, 1_000_000])
def test_files_that_may_not_grow_keep_what_was_acknowledged(ram: Path, most: int) -> None:
    pytest.importorskip("resource")
    path = ram / "s.db"
    with nursery() as processes:
        said = processes.run("fill_up", str(path), most)
    acknowledged = [int(line.split()[1]) for line in said if line.startswith("ack")]
    assert acknowledged
    assert said[-2].split()[:2] == ["error", "StoreError"], said
    assert said[-1] == f"there {acknowledged[-1]} {3 * (acknowledged[-1] - 1)}"
    record = states(path)["s"]
    assert record.version == acknowledged[-1]
    turns_in(record)


FULL_DISK = """
import os, sys
from agent.stores import SqliteStore, StoreFullError, replace_file
from tests.stores.turns import turn, turns_in
os.chdir(sys.argv[1])
store = SqliteStore("s.db")
version, heads = store.create("s").version, []
try:
    for number in range(10_000):
        rows = turn(f"t{number}", heads, size=3000)
        version = store.append("s", rows, heads=[rows[-1]["id"]], expected_version=version)
        heads = [rows[-1]["id"]]
    raise SystemExit("it is not full")
except StoreFullError as error:
    print("append:", error.code)
record = store.load("s")
assert (record.version, len(turns_in(record)), number) == (version, number, number), record
try:
    replace_file("f", [b"x" * 100_000] * 40)
except StoreFullError as error:
    print("replace_file:", error.code)
assert sorted(os.listdir()) == ["s.db", "s.db-shm", "s.db-wal"], os.listdir()
store.close()
print("again:", len(turns_in(SqliteStore("s.db").load("s"))) == number)
"""


@pytest.mark.skipif(shutil.which("unshare") is None, reason="there is no unshare")
def test_a_disk_that_is_really_full_is_a_typed_error_and_keeps_what_was_there(tmp_path: Path) -> None:
    """A small disk in memory, in a namespace of its own, which takes it away with it."""
    (tmp_path / "disk").mkdir()
    command = 'mount -t tmpfs -o size=1m tmpfs "$1" 2>/dev/null || exit 77; exec "$0" -W error -c "$2" "$1"'
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", command, sys.executable, str(tmp_path / "disk"), FULL_DISK],
        capture_output=True, text=True, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, timeout=60,
    )  # fmt: skip
    if done.returncode in (1, 77) and "Traceback" not in done.stderr:
        pytest.skip("disks may not be mounted here")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["append: SQLITE_FULL", "replace_file: ENOSPC", "again: True"]


def test_a_failure_to_write_on_a_full_disk_means_that_it_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite says so where it writes rows, and not where it makes room for its shared memory."""
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode, error.sqlite_errorname = sqlite3.SQLITE_IOERR | (19 << 8), "SQLITE_IOERR_SHMSIZE"
    for free, kind in ((0, StoreFullError), (10**9, StoreError)):
        monkeypatch.setattr(shutil, "disk_usage", lambda path, free=free: shutil._ntuple_diskusage(1, 1, free))
        explained = sqlite_schema.convert_error(error, Path("s.db"))
        assert (type(explained), explained.code) == (kind, "SQLITE_IOERR_SHMSIZE")

    def unknown(path: Path) -> Any:
        raise OSError

    monkeypatch.setattr(shutil, "disk_usage", unknown)
    assert type(sqlite_schema.convert_error(error, Path("s.db"))) is StoreError


# Not allowed


def test_somebody_elses_files_are_a_typed_error(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    for folder in (tmp_path, *(above for above in tmp_path.parents if above.name.startswith(("pytest-", "popen-")))):
        folder.chmod(0o755)
    with SqliteStore(path) as store:
        store.create("s")
    if os.getuid() != 0:
        path.chmod(0o000)
    with nursery() as processes:
        (said,) = processes.run("as_nobody", str(path))
        assert said.startswith("error StoreError s.db cannot be opened or written"), said
        (said,) = processes.run("as_nobody", str(tmp_path / "new.db"))
        assert said.startswith("error StoreError new.db cannot be written: Permission denied") or os.getuid() != 0, said
        if os.getuid() == 0:
            path.chmod(0o644)
            tmp_path.chmod(0o777)
            (said,) = processes.run("as_nobody", str(path))
            assert "readonly" in said, said
    path.chmod(0o600)
    assert list(states(path)) == ["s"]


def test_a_path_that_cannot_be_a_file_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="No such file or directory"):
        SqliteStore(tmp_path / "nowhere" / "s.db")
    (tmp_path / "folder").mkdir()
    with pytest.raises(StoreError, match="folder cannot be opened"):
        SqliteStore(tmp_path / "folder")
