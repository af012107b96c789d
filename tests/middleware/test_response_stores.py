"""Where answers are kept: limits, files that several processes share, and files that are damaged."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import sqlite3
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from agent import errors
from agent.middleware import MemoryResponseStore, ResponseStore, SqliteResponseStore


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ResponseStore:
    return (
        MemoryResponseStore(max_entries=4)
        if request.param == "memory"
        else SqliteResponseStore(tmp_path / "c.db", max_entries=4)
    )


def test_what_is_kept_is_found_until_it_expires(store: ResponseStore) -> None:
    store.put("a", "text é\n", 10.0, None)
    store.put("b", "soon over", 10.0, 20.0)
    assert store.get("a", 1e9) == "text é\n"
    assert (store.get("b", 19.9), store.get("b", 20.0)) == ("soon over", None)
    assert store.get("c", 0.0) is None


def test_the_latest_under_a_key_counts(store: ResponseStore) -> None:
    store.put("a", "old", 1.0, None)
    store.put("a", "new", 2.0, 5.0)
    assert store.get("a", 3.0) == "new"
    assert store.get("a", 5.0) is None


def test_there_are_never_many_more_than_allowed(store: ResponseStore) -> None:
    for number in range(40):
        store.put(f"k{number}", str(number), float(number), None)
    kept = [number for number in range(40) if store.get(f"k{number}", 100.0) is not None]
    assert 4 <= len(kept) < 8
    assert kept[-4:] == [36, 37, 38, 39]


def test_memory_keeps_what_was_used_last() -> None:
    store = MemoryResponseStore(max_entries=2)
    store.put("a", "1", 0.0, None)
    store.put("b", "2", 0.0, None)
    store.get("a", 0.0)
    store.put("c", "3", 0.0, None)
    assert [store.get(key, 0.0) for key in "abc"] == ["1", None, "3"]
    assert len(store) == 2
    store.clear()
    assert len(store) == 0


def test_what_has_expired_leaves_the_file(tmp_path: Path) -> None:
    store = SqliteResponseStore(tmp_path / "c.db", max_entries=2)
    store.put("a", "1", 0.0, 1.0)
    store.put("b", "2", 5.0, None)
    rows = sqlite3.connect(tmp_path / "c.db").execute("SELECT key FROM answers").fetchall()
    assert rows == [("b",)]


def test_threads_share_a_store(store: ResponseStore) -> None:
    failures: list[BaseException] = []

    def work(name: str) -> None:
        try:
            for number in range(50):
                store.put(f"{name}", f"{name}{number}", 0.0, None)
                found = store.get(name, 0.0)
                assert found is None or str(found).startswith(name)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


WRITER = """
import sys
from agent.middleware import SqliteResponseStore
store = SqliteResponseStore(sys.argv[1])
for number in range(150):
    store.put(f"{sys.argv[2]}{number}", sys.argv[2] * 100, float(number), None)
    assert store.get(f"{sys.argv[2]}{number}", 0.0) == sys.argv[2] * 100
"""


def test_processes_share_a_file(tmp_path: Path) -> None:
    path = tmp_path / "c.db"
    command = [sys.executable, "-W", "error", "-c", WRITER, str(path)]
    running = [subprocess.Popen([*command, name], stderr=subprocess.PIPE) for name in ("x", "y")]
    for process in running:
        _, complaint = process.communicate(timeout=60)
        assert (process.returncode, complaint) == (0, b"")
    store = SqliteResponseStore(path)
    assert [store.get(f"{name}{number}", 0.0) for name in "xy" for number in (0, 149)] == [
        "x" * 100, "x" * 100, "y" * 100, "y" * 100,
    ]  # fmt: skip
    assert sqlite3.connect(path).execute("PRAGMA journal_mode").fetchone() == ("wal",)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_opens_the_file_itself(tmp_path: Path) -> None:
    store = SqliteResponseStore(tmp_path / "c.db")
    store.put("a", "parent", 0.0, None)

    inherited = store._connection

    def child() -> None:
        ok = store.get("a", 0.0) == "parent" and store._connection is not inherited
        store.put("b", "child", 0.0, None)
        os._exit(0 if ok else 1)

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join(30)
    assert process.exitcode == 0
    assert store.get("b", 0.0) == "child"
    store.put("c", "parent again", 0.0, None)
    assert store.get("c", 0.0) == "parent again"


@pytest.mark.parametrize(
    "junk", [b"this is no database, and long enough to be taken for one" * 20, b"SQLite format 3\0" + b"\xff" * 4096]
)
def test_a_damaged_file_is_set_aside(tmp_path: Path, junk: bytes) -> None:
    path = tmp_path / "c.db"
    path.write_bytes(junk)
    store = SqliteResponseStore(path)
    store.put("a", "1", 0.0, None)
    assert store.get("a", 0.0) == "1"
    assert [aside.name for aside in store.damaged_files] == ["c.db.damaged-1"]
    assert (tmp_path / "c.db.damaged-1").read_bytes()[:20] == junk[:20]


def test_a_file_that_is_damaged_in_use_is_set_aside(tmp_path: Path) -> None:
    path = tmp_path / "c.db"
    store, other = SqliteResponseStore(path), SqliteResponseStore(path)
    for number in range(200):
        store.put(f"k{number}", "x" * 500, 0.0, None)
    other.close()
    store.close()
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(100)
        file.write(b"\xff" * (size - 100))
    assert store.get("k1", 0.0) is None
    store.put("k1", "new", 0.0, None)
    assert (store.get("k1", 0.0), len(store.damaged_files)) == ("new", 1)
    assert other.get("k1", 0.0) == "new"
    assert other.damaged_files == [], "the file was replaced already"


class Malformed:
    """A connection to a file that another process has set aside by now."""

    def execute(self, *args: object) -> None:
        raise sqlite3.DatabaseError("database disk image is malformed")

    def close(self) -> None:
        pass


def test_what_another_process_has_set_aside_is_not_set_aside_again(tmp_path: Path) -> None:
    store = SqliteResponseStore(tmp_path / "c.db")
    store.put("a", "1", 0.0, None)
    store.close()
    store._connection = Malformed()  # type: ignore[assignment]
    assert store.get("a", 0.0) == "1"
    assert store.damaged_files == []


def test_a_file_is_for_its_owner_only(tmp_path: Path) -> None:
    SqliteResponseStore(tmp_path / "c.db").put("a", "1", 0.0, None)
    assert stat.S_IMODE((tmp_path / "c.db").stat().st_mode) == 0o600


def test_a_file_that_cannot_be_used_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(errors.ConfigurationError, match="cannot be opened") as caught:
        SqliteResponseStore(tmp_path / "nowhere" / "c.db")
    assert caught.value.field == "path"
    foreign = tmp_path / "foreign.db"
    connection = sqlite3.connect(foreign)
    connection.execute("CREATE TABLE answers (question TEXT)")
    connection.close()
    with pytest.raises(errors.ConfigurationError, match="no such column"):
        SqliteResponseStore(foreign)
    assert sqlite3.connect(foreign).execute("SELECT * FROM answers").fetchall() == [], "foreign files stay unchanged"


def test_a_store_goes_to_another_process_by_its_path(tmp_path: Path) -> None:
    store = SqliteResponseStore(tmp_path / "c.db", max_entries=7)
    store.put("a", "1", 0.0, None)
    there: SqliteResponseStore = pickle.loads(pickle.dumps(store))
    assert (there.get("a", 0.0), there._max_entries) == ("1", 7)
    there.clear()
    assert store.get("a", 0.0) is None
