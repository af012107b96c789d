"""Files of other versions, other people's files, and damaged ones."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import sqlite3
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

from agent.stores import (
    CorruptStoreError,
    SessionRecord,
    SqliteStore,
    StoreBusyError,
    StoreError,
    UnknownFormatError,
    sqlite_schema,
)
from tests.conftest import SEED
from tests.stores.nursery import Nursery, nursery
from tests.stores.test_failures import Engine
from tests.stores.turns import row, turn, turns_in
from tests.support.cases import within_budget

VERSION_1 = Path(__file__).parent / "version_1.sql"


@pytest.fixture(scope="module")
def processes() -> Iterator[Nursery]:
    with nursery() as running:
        yield running


def older_file(path: Path) -> Path:
    connection = sqlite3.connect(path)
    connection.executescript(VERSION_1.read_text("utf-8"))
    connection.close()
    return path


def format_of(path: Path) -> int:
    connection = sqlite3.connect(path)
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    connection.close()
    return version


def assert_all_is_there(path: Path) -> None:
    with SqliteStore(path) as store:
        assert {record.id for record in store.list()} == {"first", "second"}
        for name in ("first", "second"):
            record = store.load(name)
            assert turns_in(record) == [f"{name}-{number}" for number in range(4)]
            assert (record.title, record.metadata) == (f"The {name} é 東京", {"n": [1, None]})
            assert record.version == 5


# Older and newer


def test_an_older_file_is_brought_up_to_date_and_copied_before(ram: Path) -> None:
    path = older_file(ram / "s.db")
    assert_all_is_there(path)
    assert format_of(path) == sqlite_schema.SCHEMA == 2
    (backup,) = ram.glob("s.db.backup-v1-*")
    assert format_of(backup) == 1
    assert stat.S_IMODE(backup.stat().st_mode) == 0o600
    with SqliteStore(path) as store:
        assert [hit.node_id for hit in store.search("second-3")] == ["second-3.2", "second-3.1", "second-3.0"]
        store.append("first", turn("new", ["first-3.2"]), heads=["new.2"], expected_version=5)
    assert len(list(ram.glob("*.backup*"))) == 1, "one that is up to date is not copied"
    assert_all_is_there(backup)


def test_a_file_that_is_made_now_is_like_one_that_was_brought_up_to_date(ram: Path) -> None:
    def tables(path: Path) -> list[Any]:
        SqliteStore(path).close()
        connection = sqlite3.connect(path)
        found = connection.execute("SELECT type, name, sql FROM sqlite_master ORDER BY name").fetchall()
        found += connection.execute("SELECT key FROM about ORDER BY key").fetchall()
        connection.close()
        return found

    assert tables(ram / "new.db") == tables(older_file(ram / "old.db"))


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_killed_at_any_step_of_the_way_to_a_new_version_nothing_is_lost(
    processes: Nursery, ram: Path, after: bool
) -> None:
    formats: list[int] = []
    while True:
        folder = ram / str(len(formats))
        folder.mkdir()
        path = older_file(folder / "s.db")
        status, said = processes.wait(processes.start("killed_at", str(path), len(formats) + 1, after, "open"))
        if status == 0:
            assert said == ["survived"]
            break
        assert status == -9, said
        formats.append(format_of(path))
        assert_all_is_there(path)
        assert format_of(path) == 2
        assert list(folder.glob("*.tmp*")) == [], "leftovers of a backup are removed"
        for backup in folder.glob("*.backup*"):
            assert_all_is_there(backup)
        if formats[-1] == 1:
            assert len(list(folder.glob("*.backup*"))) >= 1
    assert formats == sorted(formats)
    assert formats.count(1) > 15
    assert 2 in formats or not after


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_killed_at_any_step_of_an_append_it_is_done_or_not(processes: Nursery, ram: Path, after: bool) -> None:
    done: list[bool] = []
    while True:
        path = ram / f"{len(done)}.db"
        with SqliteStore(path) as store:
            store.create("s", rows=turn("old"), heads=["old.2"])
        status, _ = processes.wait(processes.start("killed_at", str(path), len(done) + 1, after, "append"))
        with SqliteStore(path) as store:
            record = store.load("s")
        assert (record.version, record.title, turns_in(record)) in ((1, "", ["old"]), (2, "new", ["old", "new"]))
        if status == 0:
            assert record.version == 2
            break
        done.append(record.version == 2)
    assert done == sorted(done)
    assert done[-1] == after, "after its last statement the append is done, before it is not"


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("code", [sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL])
def test_whatever_fails_on_the_way_to_a_new_version_the_file_stays_as_it_was(ram: Path, code: int, after: bool) -> None:
    path = ram / "s.db"
    failed: list[str] = []
    formats: list[int] = []
    while True:
        for left in ram.iterdir():
            left.unlink()
        older_file(path)
        engine = Engine(len(failed) + 1, code, after=after)
        with engine.start_task(), contextlib.suppress(StoreError):
            SqliteStore(path).close()
        assert path.exists(), "a failure is no damage"
        if engine.failed is None:
            break
        failed.append(engine.failed)
        formats.append(format_of(path))
        assert list(ram.glob("*.tmp*")) == []
        assert_all_is_there(path)
    assert "backup" in failed
    assert failed[-1] == "COMMIT"
    assert formats == [1] * (len(failed) - 1) + [2 if after else 1]


@pytest.mark.parametrize("name", ["open", "fsync", "replace", "close"])
def test_a_copy_that_cannot_be_made_leaves_the_file_as_it_was(
    ram: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    path = older_file(ram / "s.db")
    real = getattr(os, name)

    def fail(*args: Any, **options: Any) -> Any:
        result = real(*args, **options) if name == "close" else None
        if "backup" in str(args) or name in ("fsync", "close"):
            raise OSError(28, "No space left on device")
        return result if name == "close" else real(*args, **options)

    with monkeypatch.context() as context:
        context.setattr(os, name, fail)
        with pytest.raises(StoreError, match="No space left"):
            SqliteStore(path)
    assert format_of(path) == 1
    assert_all_is_there(path)


def test_several_who_open_an_older_file_make_one_new_one(processes: Nursery, ram: Path) -> None:
    path = older_file(ram / "s.db")
    children = [processes.start("killed_at", str(path), -1, False, "open") for _ in range(6)]
    assert [processes.wait(child) for child in children] == [(0, ["survived"])] * 6
    assert_all_is_there(path)
    assert len(list(ram.glob("*.backup*"))) == 1


def test_several_who_make_a_new_file_make_one(processes: Nursery, ram: Path) -> None:
    path = ram / "s.db"
    children = [processes.start("killed_at", str(path), -1, False, "open") for _ in range(6)]
    assert [processes.wait(child) for child in children] == [(0, ["survived"])] * 6
    assert format_of(path) == 2


def test_a_newer_file_is_refused_and_left_as_it_is(ram: Path) -> None:
    path = ram / "s.db"
    SqliteStore(path).close()
    connection = sqlite3.connect(path)
    connection.executescript("UPDATE about SET value = '3'; PRAGMA user_version = 3; CREATE TABLE more (x)")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(UnknownFormatError, match=r"s\.db has schema version 3; .* supports up to 2\. Update"):
        SqliteStore(path)
    assert path.read_bytes() == before
    assert os.listdir(ram) == ["s.db"]


def test_a_database_of_somebody_else_is_refused_and_left_as_it_is(ram: Path) -> None:
    path = ram / "other.db"
    connection = sqlite3.connect(path)
    connection.executescript("CREATE TABLE sessions (id TEXT); INSERT INTO sessions VALUES ('x')")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(UnknownFormatError, match="not a session store"):
        SqliteStore(path)
    assert path.read_bytes() == before
    assert os.listdir(ram) == ["other.db"]


def test_a_file_that_somebody_else_brings_up_to_date_meanwhile_is_not_taken_for_damaged(
    ram: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = older_file(ram / "s.db")
    real = sqlite3.connect
    quicker: list[SqliteStore] = []

    class Slow(sqlite3.Connection):
        @override
        def execute(self, statement: str, *args: Any) -> Any:
            if "sqlite_master" in statement and not quicker:
                monkeypatch.setattr(sqlite3, "connect", real)
                quicker.append(SqliteStore(path))
            return super().execute(statement, *args)

    def fail(folder: Path) -> Any:
        raise AssertionError("it was taken for damaged")

    monkeypatch.setattr(sqlite_schema, "_lock_folder", fail)
    monkeypatch.setattr(sqlite3, "connect", lambda *args, **options: real(*args, **{**options, "factory": Slow}))
    with SqliteStore(path) as store:
        assert store.load("first").version == 5
    quicker[0].close()
    assert len(list(ram.glob("*.backup*"))) == 1


def test_a_log_that_somebody_else_is_just_turning_on_is_waited_for(ram: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = sqlite3.connect
    refused: list[sqlite3.Error] = []

    class Busy(sqlite3.Connection):
        @override
        def execute(self, statement: str, *args: Any) -> Any:
            if statement == "PRAGMA journal_mode = WAL" and len(refused) < 3:
                error = sqlite3.OperationalError("database is locked")
                error.sqlite_errorcode = sqlite3.SQLITE_BUSY
                refused.append(error)
                raise error
            return super().execute(statement, *args)

    monkeypatch.setattr(sqlite3, "connect", lambda *args, **options: real(*args, **{**options, "factory": Busy}))
    SqliteStore(ram / "s.db").close()
    assert len(refused) == 3
    refused.clear()
    with pytest.raises(StoreBusyError):
        SqliteStore(ram / "s.db", busy_timeout=-1.0)


# Damaged


def whole_store(path: Path) -> dict[str, SessionRecord]:
    """A file with several kinds of pages: tables, indices, long rows, unused pages."""
    with SqliteStore(path) as store:
        for name in "abc":
            version = store.create(name, title=f"Title {name}", metadata={"k": name}).version
            heads: list[str] = []
            for number in range(12):
                rows = turn(f"{name}{number}", heads, size=9000 if number == 5 else 80)
                heads = [rows[-1]["id"]]
                version = store.append(name, rows, heads=heads, expected_version=version)
        store.search("something")
        store.create("gone", rows=[row("x", text="x" * 20_000)], heads=["x"])
        store.delete("gone")
        return {name: store.load(name) for name in "abc"}


def classify_file(path: Path, expected: dict[str, SessionRecord]) -> str:
    """Classify the outcome of a damaged file: correct data, or an error. Anything else fails."""
    damage: CorruptStoreError | None = None
    try:
        store = SqliteStore(path)
    except CorruptStoreError as error:
        damage = error
    if damage is not None:
        assert damage.set_aside is not None
        assert damage.set_aside.name in str(damage)
        assert damage.set_aside.exists()
        assert not path.exists()
        return "set aside"
    outcomes = set()
    with store:
        for name, record in expected.items():
            try:
                assert store.load(name) == record
                outcomes.add("right")
            except CorruptStoreError:
                outcomes.add("told")
        try:
            assert {one.id: one.title for one in store.list()} == {one.id: one.title for one in expected.values()}
        except CorruptStoreError:
            outcomes.add("told")
        try:
            record = store.load("a")
            store.append("a", [row("new", record.heads)], heads=["new"], expected_version=record.version)
            assert store.load("a").nodes[:-1] == record.nodes
        except StoreError:
            outcomes.add("told")
        for hit in store.search("something"):
            assert hit.node_id in {node["id"] for node in expected[hit.session_id].nodes}
    return "told" if "told" in outcomes else "right"


def damage_file(folder: Path, content: bytes) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    (folder / "s.db").write_bytes(content)
    return folder / "s.db"


def flips(content: bytes, rng: random.Random) -> Iterator[tuple[str, bytes]]:
    places = [*range(16, 100, 7), *(rng.randrange(len(content)) for _ in range(60))]
    for place in places:
        changed = bytearray(content)
        changed[place] ^= rng.randrange(1, 256)
        yield f"byte {place}", bytes(changed)


def cuts(content: bytes, rng: random.Random) -> Iterator[tuple[str, bytes]]:
    for place in (2, 15, 16, 50, 99, 100, 4096, *(rng.randrange(1, len(content)) for _ in range(15))):
        yield f"cut at {place}", content[:place]


def pages(content: bytes, rng: random.Random) -> Iterator[tuple[str, bytes]]:
    for start in range(0, len(content), 4096):
        for page in (bytes(4096), rng.randbytes(4096), content[:4096]):
            yield f"page at {start}", content[:start] + page + content[start + 4096 :]


@pytest.mark.parametrize("kind", [flips, cuts, pages])
def test_a_damaged_file_gives_what_is_right_or_says_so(
    ram: Path, kind: Callable[[bytes, random.Random], Iterator[tuple[str, bytes]]]
) -> None:
    print(f"seed {SEED}")
    expected = whole_store(ram / "s.db")
    content = (ram / "s.db").read_bytes()
    assert classify_file(damage_file(ram / "d", content), expected) == "right"
    outcomes: dict[str, int] = {}
    for what, changed in kind(content, random.Random(SEED)):
        try:
            outcome = classify_file(damage_file(ram / "d", changed), expected)
        except AssertionError as error:
            raise AssertionError(f"wrong data after {what}") from error
        outcomes[outcome] = outcomes.get(outcome, 0) + 1
    print(outcomes)
    assert sum(outcomes.values()) >= 20
    assert outcomes["set aside"] > 0


@pytest.mark.soak
def test_a_file_damaged_at_thousands_of_places_gives_what_is_right_or_says_so(ram: Path) -> None:
    expected = whole_store(ram / "s.db")
    content = (ram / "s.db").read_bytes()
    rng = random.Random(SEED)
    places = list(range(rng.randrange(19), len(content), 19))
    for place in within_budget(rng.sample(places, len(places))):
        changed = bytearray(content)
        changed[place] ^= rng.randrange(1, 256)
        try:
            classify_file(damage_file(ram / "d", bytes(changed)), expected)
        except AssertionError as error:
            raise AssertionError(f"wrong data after byte {place} (seed {SEED})") from error


def test_a_file_that_was_set_aside_is_followed_by_a_new_one(ram: Path) -> None:
    path = ram / "s.db"
    path.write_bytes(b"This is no database, and it is long enough to be taken for one. " * 30)
    with pytest.raises(CorruptStoreError, match=r"s\.db is damaged .* Moved to s\.db\.corrupt-\d+T\d+;") as caught:
        SqliteStore(path)
    aside = caught.value.set_aside
    assert aside is not None
    assert aside.read_bytes().startswith(b"This is no database")
    with SqliteStore(path) as store:
        store.create("s")
    path.write_bytes(b"once more, and in the same second " * 50)
    with pytest.raises(CorruptStoreError) as again:
        SqliteStore(path)
    assert again.value.set_aside not in (None, aside)


def test_damage_that_shows_in_use_is_told_and_then_the_file_is_set_aside(ram: Path) -> None:
    path = ram / "s.db"
    whole_store(path)
    store = SqliteStore(path)
    store.close()  # it forgets what it has read, and not that it has looked through the file
    size = path.stat().st_size
    with path.open("r+b") as file:  # under its feet
        file.seek(2 * 4096)
        file.write(b"\xff" * (size - 2 * 4096))
    with pytest.raises(CorruptStoreError) as first:
        store.load("a")
    assert first.value.set_aside is None
    with pytest.raises(CorruptStoreError) as second:
        store.load("a")
    assert second.value.set_aside is not None
    store.create("new")
    assert [record.id for record in store.list()] == ["new"]
    store.close()


def test_a_search_tells_of_damage_as_everything_else_does(ram: Path) -> None:
    path = ram / "s.db"
    store = SqliteStore(path)
    store.close()
    path.write_bytes(b"no database " * 500)
    with pytest.raises(CorruptStoreError, match="the next use creates a new file"):
        store.search("anything")
    assert store.search("anything") == []
    store.close()


def test_an_index_that_sqlite_itself_finds_damaged_is_made_anew(ram: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Newer versions of SQLite look into it, too; the rest of the file is whole."""
    path = ram / "s.db"
    whole_store(path)
    real = sqlite3.connect

    class Newer(sqlite3.Connection):
        @override
        def execute(self, statement: str, *args: Any) -> Any:
            if "integrity_check" in statement:
                return [(b"malformed inverted index for FTS5 table main.search",)]
            return super().execute(statement, *args)

    monkeypatch.setattr(sqlite3, "connect", lambda *args, **options: real(*args, **{**options, "factory": Newer}))
    with SqliteStore(path) as store:
        assert store._connection is not None
        found = store._connection.execute("SELECT count(*) FROM sqlite_master WHERE name = 'search'").fetchone()
        assert found == (0,)
        assert len(store.search("something", limit=1000)) == 108


def test_a_file_is_set_aside_with_its_log(ram: Path) -> None:
    path = ram / "s.db"
    whole_store(path)
    with SqliteStore(path) as store:
        store.create("s", rows=turn("t"), heads=["t.2"])
        log, size = Path(f"{path}-wal").read_bytes(), path.stat().st_size
        with path.open("r+b") as file:
            file.seek(size // 3)
            file.write(b"\xff" * (size // 3))
        with pytest.raises(CorruptStoreError) as caught:
            SqliteStore(path)
        assert Path(f"{caught.value.set_aside}-wal").read_bytes() == log
        assert [name for name in os.listdir(ram) if "corrupt" not in name] == []


def test_others_who_have_a_file_open_notice_that_it_was_set_aside(ram: Path) -> None:
    path = ram / "s.db"
    with SqliteStore(path) as store, SqliteStore(path) as other:
        other.create("s")
        for suffix in ("-wal", "-shm", ""):
            os.rename(f"{path}{suffix}", f"{path}.corrupt{suffix}")
        store.create("new")
        assert [record.id for record in other.list()] == ["new"], "changes of the old file would be lost"
        other.create("newer")
        assert {record.id for record in store.list()} == {"new", "newer"}


def test_of_several_who_find_the_same_damage_one_sets_it_aside(processes: Nursery, ram: Path) -> None:
    """The slower ones must not take away the new file that the fastest has begun."""
    for number in range(4):
        path = ram / f"{number}.db"
        path.write_bytes(b"no database " * 500)
        children = [processes.start("begin_anew", str(path), f"s{name}") for name in range(6)]
        said = [processes.wait(child) for child in children]
        assert [status for status, _ in said] == [0] * 6, said
        assert len(list(ram.glob(f"{number}.db.corrupt-*"))) == 1
        assert sum("set aside" in lines for _, lines in said) == 1
        with SqliteStore(path) as store:
            assert {record.id for record in store.list()} == {f"s{name}" for name in range(6)}


def test_damage_is_dealt_with_by_one_at_a_time(ram: Path) -> None:
    fcntl = pytest.importorskip("fcntl")
    path = ram / "s.db"
    path.write_bytes(b"no database " * 500)
    raised: list[Exception] = []

    def find() -> None:
        try:
            SqliteStore(path)
        except CorruptStoreError as error:
            raised.append(error)

    folder = os.open(ram, os.O_RDONLY)
    fcntl.flock(folder, fcntl.LOCK_EX)  # another process moves the file
    thread = threading.Thread(target=find)
    thread.start()
    thread.join(0.2)
    assert thread.is_alive()
    assert path.exists()
    os.close(folder)
    thread.join(10)
    assert len(raised) == 1
    assert not path.exists()


@pytest.mark.parametrize("words", [b"CREATE TABLE nodes", b"CREATE INDEX", b"WITHOUT ROWID"])
def test_a_table_whose_description_is_no_text_any_more_is_damage(ram: Path, words: bytes) -> None:
    path = ram / "s.db"
    expected = whole_store(path)
    content = path.read_bytes()
    path.write_bytes(content.replace(words, words[:5] + b"\xfa" + words[6:], 1))
    assert classify_file(path, expected) == "set aside"


def test_a_damaged_file_that_cannot_be_set_aside_stays_and_says_so(ram: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = ram / "s.db"
    path.write_bytes(b"no database " * 500)

    def refuse(*args: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "rename", refuse)
    with pytest.raises(CorruptStoreError, match=r"cannot be moved aside: .*Permission denied") as caught:
        SqliteStore(path)
    assert caught.value.set_aside is None
    assert path.exists()


def test_an_index_for_searching_that_is_damaged_is_made_anew(ram: Path) -> None:
    path = ram / "s.db"
    expected = whole_store(path)
    connection = sqlite3.connect(path)
    connection.execute("UPDATE search_data SET block = x'ff' WHERE id > 10")
    connection.commit()
    connection.close()
    with SqliteStore(path) as store:
        assert len(store.search("something", limit=1000)) == 108, "without the index it takes longer"
        assert store.load("a") == expected["a"]
        assert len(store.search("something", limit=1000)) == 108
        connection = sqlite3.connect(path)
        assert connection.execute("SELECT count(*) FROM search WHERE search MATCH 'something'").fetchone() == (108,)
        connection.close()


# Busy


def test_a_file_that_is_busy_for_too_long_is_a_typed_error(ram: Path) -> None:
    path = ram / "s.db"
    with SqliteStore(path, busy_timeout=0.02) as store:
        store.create("s")
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreBusyError, match=r"s\.db is locked by another writer") as caught:
            store.append("s", turn("t"), heads=["t.2"], expected_version=1)
        assert (caught.value.retryable, caught.value.code) == (True, "SQLITE_BUSY")
        assert store.load("s").version == 1, "reading goes on"
        assert store.search("anything") == []
        other.execute("ROLLBACK")
        other.close()
        assert store.append("s", turn("t"), heads=["t.2"], expected_version=1) == 2


def test_a_writer_waits_for_the_one_before(ram: Path) -> None:
    path = ram / "s.db"
    with SqliteStore(path) as store:
        store.create("s")
        other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        other.execute("BEGIN IMMEDIATE")
        timer = threading.Timer(0.1, lambda: other.execute("COMMIT"))
        timer.start()
        assert store.append("s", turn("t"), heads=["t.2"], expected_version=1) == 2
        timer.join()
        other.close()
