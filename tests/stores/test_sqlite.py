"""The SQLite store: threads, forks, processes and files."""

from __future__ import annotations

import json
import os
import pickle
import sqlite3
import stat
import threading
from pathlib import Path

import pytest

from agent import errors
from agent.stores import (
    ConflictError,
    CorruptStoreError,
    MemoryStore,
    NodeExistsError,
    SessionNotFoundError,
    SqliteStore,
    Store,
    StoreBusyError,
    StoreError,
)
from tests.stores.nursery import nursery
from tests.stores.turns import row, turn, turns_in


def test_only_its_owner_can_read_a_file(ram: Path) -> None:
    with SqliteStore(ram / "s.db") as store:
        store.create("s")
        for name in ("s.db", "s.db-wal", "s.db-shm"):
            assert stat.S_IMODE((ram / name).stat().st_mode) == 0o600
    assert os.listdir(ram) == ["s.db"]


def test_a_relative_path_is_meant_from_where_the_program_was(ram: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (ram / "a").mkdir()
    (ram / "b").mkdir()
    monkeypatch.chdir(ram / "a")
    store = SqliteStore("s.db")
    store.create("s")
    store.close()
    monkeypatch.chdir(ram / "b")
    assert store.load("s").version == 1
    store.close()
    assert (os.listdir(ram / "a"), os.listdir(ram / "b")) == (["s.db"], [])


def test_a_link_leads_to_one_and_the_same_store(ram: Path) -> None:
    (ram / "there").mkdir()
    (ram / "link.db").symlink_to(ram / "there" / "s.db")
    with SqliteStore(ram / "link.db") as store, SqliteStore(ram / "there" / "s.db") as other:
        store.create("s")
        assert other.load("s").version == 1
        assert store.path == other.path
    assert sorted(os.listdir(ram)) == ["link.db", "there"]


@pytest.mark.parametrize("path", ["", ":memory:", "a\0b"])
def test_what_is_no_file_is_refused(path: str) -> None:
    with pytest.raises(errors.ConfigurationError, match="Name a file, or use a MemoryStore") as caught:
        SqliteStore(path)
    assert caught.value.field == "path"


def test_after_close_the_next_use_opens_it_again(ram: Path) -> None:
    store = SqliteStore(ram / "s.db")
    store.create("s")
    store.close()
    assert not (ram / "s.db-wal").exists()
    assert store.append("s", turn("t"), heads=["t.2"], expected_version=1) == 2
    store.close()


def test_a_store_goes_to_another_process_by_its_path(ram: Path) -> None:
    with SqliteStore(ram / "s.db", busy_timeout=1.5, check=False) as store:
        store.create("s")
        there: SqliteStore = pickle.loads(pickle.dumps(store))
        assert there.load("s").version == 1
        assert (there.path, there._busy_timeout, there._check) == (store.path, 1.5, False)
        there.close()
    with pytest.raises(TypeError, match="use a SqliteStore"):
        pickle.dumps(MemoryStore())


def test_a_file_that_is_deleted_is_not_written_to(ram: Path) -> None:
    with SqliteStore(ram / "s.db") as store:
        store.create("s")
        for name in os.listdir(ram):
            (ram / name).unlink()
        with pytest.raises(SessionNotFoundError):
            store.append("s", turn("t"), heads=["t.2"], expected_version=1)
        store.create("new")
    with SqliteStore(ram / "s.db") as store:
        assert [record.id for record in store.list()] == ["new"]


def test_threads_share_a_store_and_several_stores_share_a_file(ram: Path) -> None:
    stores = [SqliteStore(ram / "s.db") for _ in range(2)]
    stores[0].create("s")
    failures: list[BaseException] = []

    def work(name: int) -> None:
        try:
            store = stores[name % 2]
            for number in range(25):
                while True:
                    record = store.load("s")
                    rows = turn(f"{name}-{number}", record.heads)
                    try:
                        store.append("s", rows, heads=[rows[-1]["id"]], expected_version=record.version)
                        break
                    except ConflictError:
                        pass
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(name,)) for name in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(turns_in(stores[0].load("s"))) == 150
    for store in stores:
        store.close()


def test_threads_that_make_a_file_together_make_one(ram: Path) -> None:
    together = threading.Barrier(6)
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            together.wait()
            with SqliteStore(ram / "s.db") as store:
                store.create(f"s{number}")
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    with SqliteStore(ram / "s.db") as store:
        assert len(store.list()) == 6


def test_a_forked_child_and_its_parent_lose_nothing(ram: Path) -> None:
    """With a connection open across the fork, SQLite in the child takes the parent's locks for its own."""
    with nursery() as processes:
        assert processes.run("forking", str(ram / "s.db")) == ["turns child-0.0 child-1.0 parent.0 child-2.0"]


def test_a_forked_child_finds_the_lock_of_a_memory_store_free() -> None:
    with nursery() as processes:
        assert processes.run("forking_under_lock") == ["0"]


def test_a_fork_that_python_does_not_see_is_noticed_by_the_process_id(ram: Path) -> None:
    with SqliteStore(ram / "s.db") as store:
        store.create("s")
        inherited = store._connection
        store._process -= 1
        assert store.load("s").version == 1
        assert store._connection is not inherited
        assert inherited is not None
        inherited.execute("SELECT 1")  # it was left alone
        inherited.close()


def test_a_transaction_that_an_interrupt_left_open_is_ended(ram: Path) -> None:
    with SqliteStore(ram / "s.db") as store:
        store.create("s")
        assert store._connection is not None
        store._connection.execute("BEGIN IMMEDIATE")  # and the interrupt comes here
        with SqliteStore(ram / "s.db", busy_timeout=0.01) as other:
            with pytest.raises(StoreBusyError):
                other.create("x")
            assert store.load("s").version == 1
            other.create("x")


def test_what_was_refused_keeps_nobody_waiting(ram: Path) -> None:
    with SqliteStore(ram / "s.db") as store, SqliteStore(ram / "s.db", busy_timeout=0.01) as other:
        store.create("s")
        with pytest.raises(ConflictError):
            store.append("s", turn("t"), heads=["t.2"], expected_version=7)
        other.create("x")
        with pytest.raises(errors.ConfigurationError):
            store.append("s", [row("a", ["nowhere"])], heads=[], expected_version=1)
        other.create("y")


def test_an_interrupt_in_the_middle_changes_nothing(ram: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from agent.stores import sqlite

    with SqliteStore(ram / "s.db") as store:
        store.create("s")
        real = sqlite.write_changes

        def interrupt(*args: object) -> object:
            real(*args)  # type: ignore[arg-type]
            raise KeyboardInterrupt

        with monkeypatch.context() as context:
            context.setattr(sqlite, "write_changes", interrupt)
            with pytest.raises(KeyboardInterrupt):
                store.append("s", turn("t"), heads=["t.2"], expected_version=1)
        assert store.load("s").node_count == 0
        assert store.append("s", turn("t"), heads=["t.2"], expected_version=1) == 2


def test_a_store_that_nobody_holds_lets_go_of_its_file(ram: Path) -> None:
    store = SqliteStore(ram / "s.db")
    store.create("s")
    del store
    assert os.listdir(ram) == ["s.db"]


def test_what_was_read_belongs_to_one_moment(ram: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from agent.stores import sqlite

    with SqliteStore(ram / "s.db") as store, SqliteStore(ram / "s.db") as other:
        store.create("s")
        real = sqlite.find_session

        def slow(*args: object) -> object:
            found = real(*args)  # type: ignore[arg-type]
            monkeypatch.undo()
            other.append("s", turn("t"), heads=["t.2"], expected_version=1)
            return found

        monkeypatch.setattr(sqlite, "find_session", slow)
        record = store.load("s")
        assert (record.version, record.nodes) == (1, ())
        assert store.load("s").version == 2


def test_a_session_whose_nodes_are_missing_is_damaged(ram: Path) -> None:
    with SqliteStore(ram / "s.db") as store:
        store.create("s", rows=turn("t"), heads=["t.2"])
        store.create("other", rows=turn("t"), heads=["t.2"])
        connection = sqlite3.connect(ram / "s.db")
        connection.execute("DELETE FROM nodes WHERE session = 1 AND place = 1")
        connection.commit()
        connection.close()
        with pytest.raises(CorruptStoreError, match="'s' is damaged: nodes are missing"):
            store.load("s")
        assert turns_in(store.load("other")) == ["t"]


def test_a_session_whose_own_row_was_changed_is_damaged(ram: Path) -> None:
    with SqliteStore(ram / "s.db") as store:
        for change in (
            "UPDATE sessions SET header = replace(header, 'Title', 'Tutle')",
            "UPDATE sessions SET version = version + 1",
            "UPDATE sessions SET nodes = 2",
            "UPDATE sessions SET updated_at = 5.0",
            "UPDATE sessions SET header = NULL",
        ):
            store.create("s", title="Title", rows=turn("t"), heads=["t.2"])
            connection = sqlite3.connect(ram / "s.db", isolation_level=None)
            kept = connection.execute("SELECT * FROM sessions").fetchone()
            try:
                connection.execute(change)
            except sqlite3.IntegrityError:
                continue
            for ask in (lambda: store.load("s"), store.list):
                with pytest.raises(CorruptStoreError, match="Session 's' is damaged"):
                    ask()
            assert store.search("says") == [], "damaged nodes are not found"
            connection.execute("DELETE FROM sessions")
            connection.execute("INSERT INTO sessions VALUES (?, ?, ?, ?, ?, ?, ?, ?)", kept)
            connection.close()
            store.delete("s")


def test_very_deep_rows_are_refused_and_not_half_stored(ram: Path) -> None:
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    stores: list[Store] = [MemoryStore(), SqliteStore(ram / "s.db")]
    for store in stores:
        store.create("s")
        with pytest.raises(errors.ConfigurationError, match="is not JSON: RecursionError"):
            store.append("s", [row("a"), {**row("b"), "data": deep}], heads=["a"], expected_version=1)
        store.close()


def test_a_row_that_is_too_deep_to_be_read_is_a_typed_error(ram: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was written where there was more room on the stack."""
    with SqliteStore(ram / "s.db") as store:
        store.create("s", rows=turn("t"), heads=["t.2"])
        real = json.loads

        def shallow(text: bytes) -> object:
            if b"parents" in text:
                raise RecursionError
            return real(text)

        monkeypatch.setattr(json, "loads", shallow)
        with pytest.raises(StoreError, match="nested too deeply"):
            store.load("s")


def test_an_id_that_is_half_a_character_is_refused(ram: Path) -> None:
    with SqliteStore(ram / "s.db") as store:
        store.create("s")
        for rows, heads in (([row("a\ud800")], []), ([row("a", ["\ud800"])], []), ([], ["\ud800"])):
            with pytest.raises(errors.ConfigurationError, match="not valid Unicode"):
                store.append("s", rows, heads=heads, expected_version=1)


def test_errors_travel_between_processes() -> None:
    for error in (
        StoreError("x", code="SQLITE_IOERR"),
        ConflictError(session_id="s", expected=1, actual=2),
        NodeExistsError(node_id="n"),
        SessionNotFoundError(session_id="s"),
        CorruptStoreError("x", set_aside=Path("y")),
        StoreBusyError("x"),
    ):
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), str(again), again.__dict__) == (type(error), str(error), error.__dict__)
        assert isinstance(error, errors.AgentError)
    assert str(ConflictError(session_id="s", expected=1, actual=2)) == (
        "Session 's' is at version 2, not 1: it was changed elsewhere."
    )
    assert str(ConflictError(session_id="s", expected=0, actual=2)) == "Session 's' already exists."
    assert StoreBusyError("x").retryable
    assert not ConflictError(session_id="s").retryable


def test_importing_stores_loads_no_database(ram: Path) -> None:
    import subprocess
    import sys

    code = "import sys, agent.stores; assert 'sqlite3' not in sys.modules; agent.stores.SqliteStore"
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)
    import agent.stores

    with pytest.raises(AttributeError, match="nonsense"):
        _ = agent.stores.nonsense  # type: ignore[attr-defined]
