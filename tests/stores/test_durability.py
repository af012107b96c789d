"""Acknowledged changes survive kill -9, a truncated log and concurrent writers."""

from __future__ import annotations

import os
import random
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.stores import SessionNotFoundError, SqliteStore
from tests.conftest import SEED
from tests.stores.nursery import Nursery, nursery
from tests.stores.turns import turn, turns_in
from tests.support.cases import examples, within_budget

KILLS_PER_FILE = 10


@pytest.fixture(scope="module")
def processes() -> Iterator[Nursery]:
    with nursery() as running:
        yield running


def kill_repeatedly(processes: Nursery, path: Path, rng: random.Random) -> tuple[int, int]:
    """How many changes were acknowledged, and how many were on their way."""
    acknowledged, unheard = 0, 0
    for _ in range(KILLS_PER_FILE):
        before = acknowledged
        child = processes.start("write_until_killed", str(path), rng.randrange(2**32))
        processes.hear(child, rng.choice((0, 0, 1, 2, 4, 8)))
        time.sleep(rng.uniform(0.0, 0.02))  # the moment is what is random here
        said = processes.kill(child)
        assert all(line.startswith("ack ") for line in said), said
        acknowledged = max([before, *(int(line.split()[1]) for line in said)])
        with SqliteStore(path) as store:  # which looks through the whole file
            try:
                record = store.load("s")
            except SessionNotFoundError:
                assert acknowledged == 0, "a session that was acknowledged is lost"
                continue
            assert acknowledged <= record.version <= acknowledged + 1, "an acknowledged turn is lost"
            turns = turns_in(record)
            assert len(turns) < record.version
            titles = record.title.removeprefix("at ")
            assert record.metadata == ({"at": int(titles)} if titles else {}), "a torn update"
            assert {one.id for one in store.list()} - {"s"} == {
                one.id for one in store.list() if one.id.startswith("o") and one.node_count == 3
            }
            if turns:
                assert store.search(turns[-1])[0].node_id == f"{turns[-1]}.2"
        unheard += record.version - acknowledged
        acknowledged = record.version
    return acknowledged, unheard


def many_kills(processes: Nursery, folder: Path, kills: int) -> None:
    rng = random.Random(SEED)
    total = unheard = files = 0
    for files in within_budget(range(1, kills // KILLS_PER_FILE + 1)):
        more, late = kill_repeatedly(processes, folder / f"{files}.db", rng)
        total, unheard = total + more, unheard + late
    kills = files * KILLS_PER_FILE
    print(f"seed {SEED}: {kills} kills, {total} changes acknowledged, {unheard} done and not yet acknowledged, 0 lost")
    assert total > kills, "the children were killed before they had done anything"


def test_kills_lose_no_acknowledged_turn_and_tear_none(processes: Nursery, tmp_path: Path) -> None:
    many_kills(processes, tmp_path, examples(40, 200))


@pytest.mark.soak
def test_2000_kills_lose_no_acknowledged_turn_and_tear_none(processes: Nursery, tmp_path: Path) -> None:
    many_kills(processes, tmp_path, 2000)


def many_writers(processes: Nursery, path: Path, sessions: list[str], turns: int) -> None:
    """Eight processes write to the same sessions, each `turns` turns."""
    with SqliteStore(path) as store:
        for session in sessions:
            store.create(session)
    start = time.monotonic()
    children = [processes.start("write_turns", str(path), f"p{name}", sessions, turns) for name in range(8)]
    ended = [processes.wait(child) for child in children]
    took = time.monotonic() - start
    assert [status for status, _ in ended] == [0] * 8, ended
    conflicts = sum(int(said[-1].split()[1]) for _, said in ended)
    print(f"8 processes x {turns} turns in {len(sessions)} sessions: {took:.1f} s, {conflicts} conflicts")
    with SqliteStore(path) as store:
        written: list[str] = []
        for session in sessions:
            record = store.load(session)
            names = turns_in(record)
            assert record.version == 1 + len(names), "each turn is one version"
            written += names
    assert len(written) == len(set(written)) == 8 * turns
    assert set(written) == {f"p{name}-{number}" for name in range(8) for number in range(turns)}


def test_eight_processes_lose_no_update_in_one_session(processes: Nursery, tmp_path: Path) -> None:
    many_writers(processes, tmp_path / "s.db", ["one"], examples(250, 1_000))


def test_eight_processes_lose_no_update_in_several_sessions(processes: Nursery, tmp_path: Path) -> None:
    many_writers(processes, tmp_path / "s.db", ["one", "two", "three", "four"], examples(60, 150))


@pytest.mark.soak
def test_eight_processes_with_1000_turns_each_lose_no_update_in_several_sessions(
    processes: Nursery, tmp_path: Path
) -> None:
    many_writers(processes, tmp_path / "s.db", ["one", "two", "three", "four"], 1000)


def test_a_log_that_was_cut_off_holds_whole_turns_and_nothing_else(ram: Path) -> None:
    """A power failure during unsynced writes: a truncated log, or one with garbage at the end."""
    rng = random.Random(SEED)
    print(f"seed {SEED}")
    path = ram / "s.db"
    store = SqliteStore(path)
    version = store.create("s").version
    sizes = [os.path.getsize(f"{path}-wal")]
    heads: list[str] = []
    for number in range(12):
        rows = turn(f"t{number}", heads, size=rng.choice((10, 3000)))
        heads = [rows[-1]["id"]]
        version = store.append("s", rows, heads=heads, expected_version=version)
        sizes.append(os.path.getsize(f"{path}-wal"))
    whole, log = path.read_bytes(), Path(f"{path}-wal").read_bytes()
    store.close()
    for place in [*sizes, *(rng.randrange(sizes[0], len(log)) for _ in range(40))]:
        for rest in (b"", bytes(len(log) - place), rng.randbytes(len(log) - place)):
            folder = ram / "after"
            folder.mkdir()
            (folder / "s.db").write_bytes(whole)
            (folder / "s.db-wal").write_bytes(log[:place] + rest)
            with SqliteStore(folder / "s.db") as left:
                turns = turns_in(left.load("s"))
            synced = sum(size <= place for size in sizes[1:])
            assert turns == [f"t{number}" for number in range(synced)], f"cut at {place}"
            shutil.rmtree(folder)


def test_a_commit_reaches_the_disk_before_it_is_acknowledged(tmp_path: Path) -> None:
    with SqliteStore(tmp_path / "s.db") as store:
        connection = store._connection
        assert connection is not None
        settings = {
            name: connection.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("synchronous", "journal_mode", "busy_timeout", "fullfsync")
        }
    assert settings == {"synchronous": 2, "journal_mode": b"wal", "busy_timeout": 5000, "fullfsync": 1}


@pytest.mark.timing
def test_the_cost_of_an_append_does_not_grow_with_the_session(ram: Path) -> None:
    with SqliteStore(ram / "s.db") as store:
        assert store._connection is not None
        store._connection.execute("PRAGMA synchronous = OFF")  # the disk's moods are not what is measured
        times = cost_of_appends(store, 4000)
    first, last = sorted(times[:400]), sorted(times[-400:])
    ratio = last[40] / first[40]  # of the quick ones: others use this machine, too
    print(f"the last tenth of 4,000 appends against the first: {ratio:.2f}")
    assert ratio < 1.5


@pytest.mark.soak
def test_the_cost_of_10000_appends_stays_the_same(tmp_path: Path) -> None:
    with SqliteStore(tmp_path / "s.db") as store:
        times = cost_of_appends(store, 10_000)
    ratio = sum(times[-1000:]) / sum(times[:1000])
    print(f"the last tenth of 10,000 appends against the first: {ratio:.2f}; {sum(times) / 10:.2f} ms each")
    assert ratio < 1.5


def cost_of_appends(store: SqliteStore, count: int) -> list[float]:
    version = store.create("s").version
    heads: list[str] = []
    times = []
    for number in range(count):
        rows = turn(f"t{number}", heads, size=600)
        heads = [rows[-1]["id"]]
        start = time.perf_counter()
        version = store.append("s", rows, heads=heads, expected_version=version)
        times.append(time.perf_counter() - start)
    return times
