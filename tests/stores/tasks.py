"""Tasks of subprocesses that are killed, run out of space, or write concurrently. See `nursery`."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import sys
from collections.abc import Callable
from typing import Any

from typing_extensions import override

from agent.stores import ConflictError, CorruptStoreError, MemoryStore, SqliteStore, StoreError, replace_file
from tests.stores.turns import turn


def say(*words: object) -> None:
    """Write a line at once, so that it survives a kill."""
    os.write(sys.stdout.fileno(), (" ".join(map(str, words)) + "\n").encode())


def write_until_killed(path: str, seed: int) -> None:
    """Append turns and report each; in between rename the session, search, and create and delete another."""
    rng = random.Random(seed)
    store = SqliteStore(path)
    if rng.random() < 0.5:  # else the log is copied into the file only now and then
        assert store._connection is not None
        store._connection.execute("PRAGMA wal_autocheckpoint = 8")
    try:
        version = store.create("s").version
        heads: Any = ()
    except ConflictError:
        record = store.load("s")
        version, heads = record.version, record.heads
    say("ack", version)
    other = 0
    while True:
        chance = rng.random()
        if chance < 0.75:
            rows = turn(f"t{version}", heads, size=rng.choice((10, 200, 3000)))
            heads = [rows[-1]["id"]]
            version = store.append("s", rows, heads=heads, expected_version=version)
        elif chance < 0.85:
            version = store.update("s", title=f"at {version}", metadata={"at": version}, expected_version=version)
        elif chance < 0.93:
            store.search("something says")
        else:
            store.create(f"o{os.getpid()}-{other}", rows=turn("x"), heads=["x.2"])
            store.delete(f"o{os.getpid()}-{other}")
            other += 1
        say("ack", version)


def write_turns(path: str, name: str, sessions: list[str], count: int) -> None:
    """Append turns to sessions that others write to as well."""
    store = SqliteStore(path, busy_timeout=30.0)
    conflicts = 0
    known = {session: store.load(session) for session in sessions}
    for number in range(count):
        session = sessions[number % len(sessions)]
        while True:
            record = known[session]
            rows = turn(f"{name}-{number}", record.heads)
            try:
                store.append(session, rows, heads=[rows[-1]["id"]], expected_version=record.version)
            except ConflictError:
                conflicts += 1
                known[session] = store.load(session, since=record.version)
                continue
            known[session] = store.load(session, since=record.version)
            break
    say("conflicts", conflicts)


def kill_at(path: str, step: int, after: bool, act: str) -> None:
    """Die at a certain statement, before or after it was carried out."""
    left = [step]

    def count(perform: Callable[[], Any]) -> Any:
        left[0] -= 1
        if left[0]:
            return perform()
        if after:
            perform()
        return os.kill(os.getpid(), signal.SIGKILL)

    class Mortal(sqlite3.Connection):
        @override
        def execute(self, *args: Any) -> Any:
            return count(lambda: super(Mortal, self).execute(*args))

        @override
        def executemany(self, *args: Any) -> Any:
            return count(lambda: super(Mortal, self).executemany(*args))

        @override
        def backup(self, *args: Any, **options: Any) -> Any:
            return count(lambda: super(Mortal, self).backup(*args, **options))

    real, replace, fsync = sqlite3.connect, os.replace, os.fsync
    sqlite3.connect = lambda *args, **options: count(lambda: real(*args, **{**options, "factory": Mortal}))
    os.replace = lambda *args, **options: count(lambda: replace(*args, **options))
    os.fsync = lambda descriptor: count(lambda: fsync(descriptor))  # type: ignore[assignment]
    store = SqliteStore(path)
    if act == "append":
        record = store.load("s")
        rows = turn("new", record.heads)
        store.append("s", rows, heads=[rows[-1]["id"]], expected_version=record.version, title="new")
    store.close()
    say("survived")


def replace_until_killed(path: str, seed: int) -> None:
    """Replace a file by ever new versions of itself."""
    number = 0
    while True:
        number += 1
        replace_file(path, [b"%d\n" % number] * (1 + seed % 40_000))
        say("ack", number)


def fill_up(path: str, most: int) -> None:
    """Append turns until no file may grow any more."""
    import resource

    store = SqliteStore(path)
    version = store.create("s").version
    heads: list[str] = []
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    try:
        while True:
            rows = turn(f"t{version}", heads, size=5_000)
            version = store.append("s", rows, heads=[rows[-1]["id"]], expected_version=version)
            heads = [rows[-1]["id"]]
            say("ack", version)
    except StoreError as error:
        say("error", type(error).__name__, error.code)
    record = store.load("s")
    say("there", record.version, record.node_count)


def as_nobody(path: str) -> None:
    """Use a store without permissions."""
    if os.getuid() == 0:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
    try:
        SqliteStore(path).create("mine")
        say("created")
    except StoreError as error:
        say("error", type(error).__name__, error)


def fork_repeatedly(path: str) -> None:
    """Show that a forked child has its own locks: without them, it would lose changes."""
    store = SqliteStore(path)
    version = store.create("s").version
    here, there = os.pipe()
    back, forth = os.pipe()
    child = os.fork()
    if child == 0:
        for number in range(3):
            store.append("s", turn(f"child-{number}", store.load("s").heads), heads=[f"child-{number}.2"],
                         expected_version=store.load("s").version)  # fmt: skip
            os.write(there, b".")
            os.read(back, 1)
        os._exit(0)
    os.read(here, 1)
    store.close()  # the last connection that closes takes the log with it
    os.write(forth, b".")
    os.read(here, 1)
    version = store.load("s").version
    store.append("s", turn("parent", store.load("s").heads), heads=["parent.2"], expected_version=version)
    os.write(forth, b".")
    os.read(here, 1)
    os.write(forth, b".")
    os.waitpid(child, 0)
    say("turns", *(node["id"] for node in store.load("s").nodes[::3]))


def begin_anew(path: str, session: str) -> None:
    """Create a session in a file that is damaged at first."""
    while True:
        try:
            SqliteStore(path).create(session)
            break
        except CorruptStoreError as error:
            say("set aside" if error.set_aside is not None else "told")


def fork_under_lock() -> None:
    """Another thread is in the middle of something when the process forks."""
    store = MemoryStore()
    store._lock.acquire()
    child = os.fork()
    if child == 0:
        signal.alarm(10)
        store.create("s")
        os._exit(0)
    say(os.waitpid(child, 0)[1])


TASKS: dict[str, Callable[..., None]] = {
    "write_until_killed": write_until_killed,
    "write_turns": write_turns,
    "killed_at": kill_at,
    "replaced_until_killed": replace_until_killed,
    "fill_up": fill_up,
    "as_nobody": as_nobody,
    "forking": fork_repeatedly,
    "forking_under_lock": fork_under_lock,
    "begin_anew": begin_anew,
}
