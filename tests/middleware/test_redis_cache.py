"""Cached responses in a real Redis: sharing, expiry, damage, and a server that fails."""

from __future__ import annotations

import asyncio
import logging
import pickle
import time
import zlib
from statistics import median
from typing import Any

import pytest

from agent import Agent, errors
from agent.middleware import Cache, RedisResponseStore
from agent.stores import StoreError, StoreFullError, StoreUnavailableError
from agent.testing import Script, ScriptedTransport
from tests.support.redis_server import ExternalServer, RedisServer, break_server, make_name, repair_server


def make_agent(script: Script, cache: Cache) -> Agent:
    return Agent("scripted:m", transport=ScriptedTransport(script), middleware=[cache])


def ask(agent: Agent, form: str, text: str = "hi") -> str | None:
    if form == "sync":
        return agent.complete(text).text
    return asyncio.run(agent.acomplete(text)).text


@pytest.mark.parametrize("form", ["sync", "async"])
def test_a_response_of_one_process_answers_another(server: ExternalServer, form: str) -> None:
    script, store = Script(), RedisResponseStore(server.url, name=make_name(), timeout=20.0)
    there: RedisResponseStore = pickle.loads(pickle.dumps(store))
    first, second = Cache(store), Cache(there)
    assert ask(make_agent(script, first), form) == "You said: hi"
    for other in ("sync", "async"):
        assert ask(make_agent(script, second), other) == "You said: hi"
    assert len(script.requests) == 1
    assert (first.stats.stored, second.stats.hits, second.stats.failures) == (1, 2, 0)
    other_name = Cache(RedisResponseStore(server.url, name=make_name(), timeout=20.0))
    ask(make_agent(script, other_name), form)
    assert other_name.stats.misses == 1


def test_responses_expire_by_their_ttl_or_else_by_the_retention(own_server: RedisServer) -> None:
    store = RedisResponseStore(own_server.url, retention=1000.0, timeout=20.0)
    store.put("secret-key", "text é\n", 10.0, None)
    store.put("brief", "x", 10.0, 10.2)
    store.put("past", "x", 10.0, 10.0)
    assert [store.get(key, 1e9) for key in ("secret-key", "brief", "past", "none")] == ["text é\n", "x", None, None]
    with own_server.client() as client:
        assert all(0 < client.pttl(key) <= 1_000_000 for key in client.keys("*"))
        assert all(key.startswith(b"agent:{responses:responses}:") for key in client.keys("*"))
        assert not any(b"secret" in key for key in client.keys("*"))
    time.sleep(0.25)
    assert store.get("brief", 0.0) is None


@pytest.mark.parametrize("form", ["sync", "async"])
def test_large_responses_are_not_stored(server: ExternalServer, form: str) -> None:
    store = RedisResponseStore(server.url, name=make_name(), max_bytes=10, timeout=20.0)
    for key, text in (("a", "x" * 10), ("b", "x" * 11), ("c", "é" * 6)):
        if form == "sync":
            store.put(key, text, 0.0, None)
        else:
            asyncio.run(store.aput(key, text, 0.0, None))
    assert [store.get(key, 0.0) for key in "abc"] == ["x" * 10, None, None]


@pytest.mark.parametrize("damage", [b"", b"junk", b"00000000{}", "flip", "valid"])
def test_a_damaged_entry_is_a_miss_with_a_warning(
    own_server: RedisServer, damage: Any, caplog: pytest.LogCaptureFixture
) -> None:
    script, store = Script(), RedisResponseStore(own_server.url, timeout=20.0)
    cache = Cache(store)
    agent = make_agent(script, cache)
    agent.complete("hi")
    with own_server.client() as client:
        (key,) = client.keys("*")
        if damage == "flip":
            damage = client.get(key).replace(b"You said", b"You sold")
        if damage == "valid":  # a checksum that is right, of no response
            damage = b"%08x" % zlib.crc32(b"null") + b"null"
        client.set(key, damage)
    with caplog.at_level(logging.WARNING, "agent"):
        assert agent.complete("hi").text == "You said: hi"
    assert "damaged" in caplog.text
    assert (len(script.requests), cache.stats.misses) == (2, 2)
    assert agent.complete("hi").text == "You said: hi"
    assert len(script.requests) == 2, "the damaged entry was replaced"


FAULTS: dict[str, type[StoreError]] = {
    "stopped": StoreUnavailableError,
    "paused": StoreUnavailableError,
    "full": StoreFullError,
    "read-only": StoreError,
}


@pytest.mark.timing
@pytest.mark.parametrize("form", ["sync", "async"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_server_that_fails_is_a_miss_and_delays_one_call(own_server: RedisServer, fault: str, form: str) -> None:
    script, cache = Script(), Cache(RedisResponseStore(own_server.url))
    agent = make_agent(script, cache)
    while cache.stats.stored == 0:
        ask(agent, form)
    break_server(own_server, fault)
    delays = []
    for number in range(5):
        begun = time.perf_counter()
        assert ask(agent, form, f"new {number}") == f"You said: new {number}"
        delays.append(time.perf_counter() - begun)
    print(f"{fault} {form}: {', '.join(f'{1000 * delay:.1f}' for delay in delays)} ms")
    assert delays[0] < 0.1
    if fault in ("stopped", "paused"):
        assert median(delays[1:]) < 0.045, "one call is delayed, and the others do not touch the server"
    assert cache.stats.stored == 1
    repair_server(own_server, fault)
    end = time.monotonic() + 20
    while cache.stats.stored == 1 and time.monotonic() < end:
        ask(agent, form, f"later {time.monotonic()}")
        time.sleep(0.05)
    assert cache.stats.stored == 2, "it comes back by itself"


@pytest.mark.parametrize("fault", FAULTS)
def test_errors_of_the_store_itself_are_typed(own_server: RedisServer, fault: str) -> None:
    store = RedisResponseStore(own_server.url, timeout=0.2)
    break_server(own_server, fault)
    for _ in range(2):
        with pytest.raises(FAULTS[fault]) as caught:
            store.put("a", "b", 0.0, None)
        assert type(caught.value) is FAULTS[fault]
        with pytest.raises(FAULTS[fault]):
            asyncio.run(store.aput("a", "b", 0.0, None))
    if FAULTS[fault] is StoreUnavailableError:
        with pytest.raises(StoreUnavailableError):
            store.get("a", 0.0)
        with pytest.raises(StoreUnavailableError):
            asyncio.run(store.aget("a", 0.0))
    else:
        assert store.get("a", 0.0) is None


def test_arguments_are_checked_and_passwords_are_not_printed(server: ExternalServer) -> None:
    for options in ({"max_bytes": 0}, {"retention": 0.0}, {"name": "a b"}):
        with pytest.raises(errors.ConfigurationError) as caught:
            RedisResponseStore(server.url, **options)
        assert caught.value.field in options
    assert "secret" not in repr(RedisResponseStore("redis://:secret@127.0.0.1:1/0"))
