"""Sessions in a real Redis: the promises of a store, processes, and a server that fails."""

from __future__ import annotations

import asyncio
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from agent.errors import ConfigurationError
from agent.stores import (
    ConflictError,
    CorruptStoreError,
    RedisStore,
    SessionNotFoundError,
    Store,
    StoreError,
    StoreFullError,
    StoreUnavailableError,
)
from agent.testing import scripted_agent
from agent.testing.stores import STORE_CASES, check_store
from tests.support.redis_server import ExternalServer, RedisServer, break_server, find_port, open_server, repair_server


def make_name() -> str:
    return os.urandom(6).hex()


@pytest.fixture(scope="module")
def server() -> Iterator[ExternalServer]:
    running = open_server()
    yield running
    running.close()


@pytest.fixture
def own_server() -> Iterator[RedisServer]:
    running = RedisServer()
    yield running
    running.close()


@pytest.mark.parametrize("case", STORE_CASES)
def test_redis_keeps_the_promises_of_a_store(server: ExternalServer, case: str) -> None:
    def reopen(store: Store) -> Store:
        assert isinstance(store, RedisStore)
        return RedisStore(server.url, name=store._name, timeout=20.0)

    check_store(lambda: RedisStore(server.url, name=make_name(), timeout=20.0), reopen=reopen, only=[case])


class FromEventLoops:
    """The store with async methods, as async code calls it."""

    blocking = False

    def __init__(self, store: RedisStore) -> None:
        self.store = store

    def __getattr__(self, name: str) -> Any:
        return partial(asyncio.to_thread, getattr(self.store, name))


@pytest.mark.parametrize("case", STORE_CASES)
def test_redis_keeps_the_promises_of_a_store_on_event_loops(server: ExternalServer, case: str) -> None:
    def reopen(store: Any) -> Any:
        return FromEventLoops(RedisStore(server.url, name=store.store._name, timeout=20.0))

    def make() -> Any:
        return FromEventLoops(RedisStore(server.url, name=make_name(), timeout=20.0))

    check_store(make, reopen=reopen, only=[case])


def row(id: str, *parents: str, text: str = "hello") -> dict[str, Any]:
    data = {"role": "user", "content": text}
    return {"id": id, "parents": list(parents), "timestamp": 0.0, "metadata": {}, "data": data}


@pytest.fixture
def store(server: ExternalServer) -> RedisStore:
    return RedisStore(server.url, name=make_name(), timeout=20.0)


@pytest.mark.parametrize("form", ["sync", "async"])
def test_a_conversation_is_continued_from_redis(store: RedisStore, form: str) -> None:
    agent = scripted_agent("Hello.", "You said hi.")

    def ask(text: str) -> str | None:
        session = agent.session("chat", store=store)
        if form == "sync":
            return session.complete(text).text
        return asyncio.run(session.acomplete(text)).text

    assert [ask("hi"), ask("What did I say?")] == ["Hello.", "You said hi."]
    assert [node["data"]["content"] for node in store.load("chat").nodes][::2] == ["hi", "What did I say?"]
    assert [hit.session_id for hit in store.search("what SAID")] == []
    assert [hit.session_id for hit in store.search("SAID hi")] == ["chat"]


WRITER = """
import sys
from agent.stores import ConflictError, RedisStore
url, name, who = sys.argv[1:]
store = RedisStore(url, name=name, timeout=20.0)
version, conflicts = 1, 0
for number in range(40):
    while True:
        node = {"id": f"{who}{number}", "parents": [], "timestamp": 0.0, "metadata": {}, "data": {}}
        try:
            version = store.append("shared", [node], heads=[node["id"]], expected_version=version)
            break
        except ConflictError as conflict:
            conflicts += 1
            version = conflict.actual
print(conflicts)
"""


def test_processes_that_write_one_session_lose_nothing(server: ExternalServer, store: RedisStore) -> None:
    store.create("shared")
    command = [sys.executable, "-c", WRITER, server.url, store._name]
    running = [subprocess.Popen([*command, who], stdout=subprocess.PIPE, text=True) for who in "abcd"]
    conflicts = [int(process.communicate(timeout=120)[0]) for process in running]
    record = store.load("shared")
    assert record.version == 1 + 4 * 40
    assert sorted(node["id"] for node in record.nodes) == sorted(f"{who}{n}" for who in "abcd" for n in range(40))
    assert [int(node["id"][1:]) for node in record.nodes if node["id"][0] == "a"] == list(range(40))
    print(f"{sum(conflicts)} conflicts")


def test_a_session_that_was_deleted_and_created_again_is_not_taken_for_the_old_one(
    store: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.create("s", rows=[row("a")], heads=["a"])
    run, other = store._client.run, RedisStore(store._url, name=store._name)

    def meddle(script: Any, *arguments: Any) -> Any:
        if len(arguments) > 10:  # between the look and the change
            monkeypatch.setattr(store._client, "run", run)
            other.delete("s")
            other.create("s", title="new")
        return run(script, *arguments)

    monkeypatch.setattr(store._client, "run", meddle)
    with pytest.raises(ConflictError):
        store.append("s", [row("b", "a")], heads=["b"], expected_version=1)
    assert (store.load("s").title, store.load("s").node_count) == ("new", 0)


# Keys


def test_keys_share_a_slot_and_stay_unless_sessions_expire(own_server: RedisServer) -> None:
    RedisStore(own_server.url, name="kept").create("s", rows=[row("a")], heads=["a"])
    with own_server.client() as client:
        keys = client.keys("*")
        assert sorted(key.decode() for key in keys) == [
            f"agent:{{store:kept}}:{end}" for end in ("i", "n:s", "r:s", "s:s")
        ]
        assert {client.pttl(key) for key in keys} == {-1}
        client.flushall()
        brief = RedisStore(own_server.url, name="brief", expire_after=0.4)
        for session_id in ("s", "t"):
            brief.create(session_id, rows=[row("a")], heads=["a"])
        assert all(client.pttl(key) > 0 for key in client.keys("*") if not key.endswith(b":i"))
        time.sleep(0.2)
        brief.append("t", [row("b", "a")], heads=["b"], expected_version=1)
        time.sleep(0.25)
        with pytest.raises(SessionNotFoundError):
            brief.load("s")
        assert [record.id for record in brief.list()] == ["t"], "a change prolongs the life of a session"
        assert client.zrange("agent:{store:brief}:i", 0, -1) == [b"t"]
        time.sleep(0.4)
        brief.create("u")
        assert client.zrange("agent:{store:brief}:i", 0, -1) == [b"u"], "without a listing, too"
        brief.delete("u")
        assert client.keys("*") == []


def test_a_node_of_a_cluster_runs_all_scripts() -> None:
    server = RedisServer("--cluster-enabled", "yes", "--cluster-port", str(find_port()))
    try:
        with server.client() as client:
            with pytest.raises(StoreUnavailableError, match="ClusterDownError"):
                RedisStore(server.url)
            client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        end = time.monotonic() + 30
        while time.monotonic() < end:
            try:
                RedisStore(server.url).delete("unknown")
            except SessionNotFoundError:
                break
            except StoreUnavailableError:
                time.sleep(0.05)
        check_store(lambda: RedisStore(server.url, name=make_name(), timeout=20.0))
    finally:
        server.close()


@pytest.mark.parametrize("part", ["s", "r", "n"])
def test_rests_of_a_session_do_not_reach_a_new_one(server: ExternalServer, store: RedisStore, part: str) -> None:
    store.create("s", rows=[row("a")], heads=["a"])
    with server.client() as client:
        for other in {"s", "r", "n"} - {part}:
            client.delete(f"agent:{{store:{store._name}}}:{other}:s")
    if part == "s":
        with pytest.raises(CorruptStoreError, match="nodes are missing"):
            store.load("s")
        return
    assert store.create("s", rows=[row("a", text="other")], heads=["a"]).node_count == 1
    assert [node["data"]["content"] for node in store.load("s").nodes] == ["other"]


def test_damage_is_found(server: ExternalServer, store: RedisStore) -> None:
    for session_id in ("header", "row", "intact"):
        store.create(session_id, title="t", rows=[row(session_id, text="needle")], heads=[session_id])
    prefix = f"agent:{{store:{store._name}}}:"
    with server.client() as client:
        client.hset(f"{prefix}s:header", "header", client.hget(f"{prefix}s:header", "header").replace(b'"t"', b'"x"'))
        (stored,) = client.zrange(f"{prefix}r:row", 0, -1)
        client.zadd(f"{prefix}r:row", {stored.replace(b"needle", b"needel"): 1})
        client.zrem(f"{prefix}r:row", stored)
    with pytest.raises(CorruptStoreError, match="'header' is damaged"):
        store.load("header")
    with pytest.raises(CorruptStoreError, match="'row' is damaged: a node has a wrong checksum"):
        store.load("row")
    with pytest.raises(CorruptStoreError):
        store.append("row", [row("row", text="needle")], heads=["row"], expected_version=1)
    assert [hit.session_id for hit in store.search("nee")] == ["intact"]


def test_pages_and_searches_go_beyond_one_reply(store: RedisStore) -> None:
    for number in range(230):
        store.create(f"s{number:03}", rows=[row("a", text=f"text{number} common")], heads=["a"])
    seen: list[str] = []
    page = store.list(limit=70)
    while page:
        seen += [record.id for record in page]
        page = store.list(limit=70, before=page[-1])
    assert seen == [f"s{number:03}" for number in reversed(range(230))]
    assert [hit.session_id for hit in store.search("text3 common")] == [
        f"s{number:03}" for number in (*range(39, 29, -1), 3)
    ]
    assert [hit.session_id for hit in store.search("common", limit=3)] == ["s229", "s228", "s227"]


# A server that fails

FAULTS: dict[str, tuple[type[StoreError], str | None]] = {
    "stopped": (StoreUnavailableError, None),
    "paused": (StoreUnavailableError, None),
    "full": (StoreFullError, "OOM"),
    "read-only": (StoreError, "READONLY"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_change_that_fails_is_an_error_and_is_never_made_later(own_server: RedisServer, fault: str) -> None:
    store = RedisStore(own_server.url, timeout=0.3)
    store.create("s", rows=[row("a")], heads=["a"])
    kind, code = FAULTS[fault]
    changes: list[Callable[[], object]] = [
        lambda: store.create("new"),
        lambda: store.append("s", [row("b", "a")], heads=["b"], expected_version=1),
        lambda: store.update("s", expected_version=1, title="x"),
        lambda: store.delete("s"),
    ]
    break_server(own_server, fault)
    for number, change in enumerate(changes):
        if fault == "full" and number == 3:
            continue  # it frees memory, and is allowed
        begun = time.monotonic()
        with pytest.raises(kind) as caught:
            change()
        assert type(caught.value) is kind
        assert (caught.value.code, caught.value.retryable) == (code, kind is StoreUnavailableError)
        assert time.monotonic() - begun < 1.5
    repair_server(own_server, fault)
    time.sleep(0.1)
    if fault == "stopped":
        assert store.list() == [], "this server keeps nothing on disk"
        assert store.create("s").version == 1
        return
    record = store.load("s")
    assert ([one.id for one in store.list()], record.version, record.title, record.node_count) == (["s"], 1, "", 1)
    assert store.append("s", [row("b", "a")], heads=["b"], expected_version=1) == 2


def test_a_change_is_not_made_after_its_caller_has_given_up(
    own_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server stops between the look and the change, and goes on when the caller has left."""
    store = RedisStore(own_server.url, timeout=0.2)
    store.create("s")
    run = store._client.run

    def stop_first(script: Any, *arguments: Any) -> Any:
        if len(arguments) > 10:
            own_server.pause()
        return run(script, *arguments)

    monkeypatch.setattr(store._client, "run", stop_first)
    with pytest.raises(StoreUnavailableError):
        store.append("s", [row("a")], heads=["a"], expected_version=1)
    monkeypatch.setattr(store._client, "run", run)
    own_server.resume()
    time.sleep(0.1)
    assert store.load("s").version == 1


def test_a_change_whose_reply_was_lost_is_made_once(store: RedisStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.create("s")
    run, sent = store._client.run, []

    def lose_reply(script: Any, *arguments: Any) -> Any:
        reply = run(script, *arguments)
        if len(arguments) > 10:
            sent.append(arguments)
            if len(sent) == 1:
                raise ConnectionResetError("reset by peer")
        return reply

    monkeypatch.setattr(store._client, "run", lose_reply)
    assert store.append("s", [row("a")], heads=["a"], expected_version=1) == 2
    assert len(sent) == 2
    assert (store.load("s").version, store.load("s").node_count) == (2, 1)


def test_a_server_that_restarted_is_used_again(own_server: RedisServer) -> None:
    store = RedisStore(own_server.url)
    store.create("s")
    own_server.stop()
    own_server.start()
    with pytest.raises(SessionNotFoundError):
        store.load("s")
    assert store.create("s").version == 1


def test_a_server_that_is_not_there_or_evicts_sessions_is_refused_at_once(own_server: RedisServer) -> None:
    with own_server.client() as client:
        client.config_set("maxmemory", 10**9)
        client.config_set("maxmemory-policy", "volatile-lru")
        RedisStore(own_server.url)
        with pytest.raises(ConfigurationError, match="maxmemory-policy is volatile-lru"):
            RedisStore(own_server.url, expire_after=60.0)
        client.config_set("maxmemory-policy", "allkeys-lru")
        with pytest.raises(ConfigurationError, match="deletes sessions when its memory is full") as caught:
            RedisStore(own_server.url)
        assert caught.value.field == "url"
        client.config_set("maxmemory", 0)
        client.acl_setuser("limited", enabled=True, passwords=["+secret"], keys=["*"], commands=["+@all", "-info"])
    url = own_server.url.replace("redis://", "redis://limited:secret@")
    assert RedisStore(url).create("s").version == 1
    with pytest.raises(StoreError, match="invalid username-password") as refused:
        RedisStore(url.replace("secret", "wrong"))
    assert type(refused.value) is StoreError
    own_server.stop()
    with pytest.raises(StoreUnavailableError, match="cannot be reached"):
        RedisStore(own_server.url)


def test_arguments_are_checked(server: ExternalServer) -> None:
    with pytest.raises(ConfigurationError, match="URL of Redis"):
        RedisStore("http://127.0.0.1")
    with pytest.raises(ConfigurationError, match="name"):
        RedisStore(server.url, name="{x}")
    with pytest.raises(ConfigurationError, match="expire_after"):
        RedisStore(server.url, expire_after=0.0)


def test_a_store_goes_to_another_process_by_its_url(server: ExternalServer) -> None:
    store = RedisStore(server.url, name=make_name(), expire_after=60.0, timeout=7.0)
    store.create("s")
    there: RedisStore = pickle.loads(pickle.dumps(store))
    assert (there.load("s").id, there._expire_after, there._timeout) == ("s", 60.0, 7.0)
    assert "secret" not in repr(store)
    with there:
        assert there.list()
    assert there.list(), "it opens new connections after it was closed"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_uses_connections_of_its_own(store: RedisStore) -> None:
    store.create("s")
    child = os.fork()
    if child == 0:
        status = 1
        try:
            status = 0 if store.append("s", [row("a")], heads=["a"], expected_version=1) == 2 else 1
        finally:
            os._exit(status)
    assert store.load("s").id == "s"
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert store.load("s").version == 2
