"""Shared router state in a real Redis: processes, kills, and a server that fails."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import pickle
import subprocess
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from agent import Router, errors
from agent.routing.outbox import flush_all
from agent.routing.redis_state import RedisState
from agent.types import SpendLimit
from tests.routing.shared_worker import DOLLARS_PER_TOKEN, MAX_TOKENS, Vendor, make_router
from tests.support.cases import FULL
from tests.support.redis_server import ExternalServer, RedisServer, open_server

SHORT = 0.05
"""Seconds after which the server counts as unreachable."""


def make_name() -> str:
    return os.urandom(6).hex()


@pytest.fixture(scope="module")
def server() -> Iterator[ExternalServer]:
    running = open_server()
    yield running
    flush_all()
    running.close()


@pytest.fixture
def own_server() -> Iterator[RedisServer]:
    running = RedisServer()
    yield running
    flush_all()
    running.close()


def run_workers(server: ExternalServer, count: int, **settings: Any) -> list[Any]:
    """Run worker processes that begin together, and return their reports."""
    settings = {"url": server.url, "name": make_name(), **settings}
    settings["state"] = {"timeout": 20.0, **settings.get("state", {})}
    command = [sys.executable, "-m", "tests.routing.shared_worker", json.dumps(settings)]
    pipe = subprocess.PIPE
    workers = [subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) for _ in range(count)]
    for worker in workers:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "ready\n"
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write("\n")
        worker.stdin.flush()
    return [json.loads(worker.communicate()[0]) for worker in workers]


@pytest.mark.parametrize("flights", [4, 64])
def test_processes_spend_a_budget_for_half_of_their_requests_and_no_more(server: ExternalServer, flights: int) -> None:
    """Most flights hold more than what is spent. The mean cost is 10.5 tokens of at most 70.

    The full test has the default timeout, on whatever else the machine is doing.
    """
    processes, requests = (8, 2000) if FULL else (3, 150)
    flights = flights if FULL else flights // 4
    budget = processes * requests / 2 * 10.5 * DOLLARS_PER_TOKEN
    reports = run_workers(
        server,
        processes,
        requests=requests,
        flights=flights,
        budget=budget,
        seconds=0.02,
        max_wait=600.0,
        state={"timeout": 0.05, "policy": "fail_closed"} if FULL else {},
    )
    spent = sum(report["tokens"] for report in reports) * DOLLARS_PER_TOKEN
    print(f"budget {budget:.3f}, spent {spent:.3f}, unused {1 - spent / budget:.2%}")
    assert spent <= budget + 1e-9
    assert spent >= budget - (0.02 * budget if FULL else 2 * MAX_TOKENS * DOLLARS_PER_TOKEN)
    outcomes: Counter[str] = sum((Counter(report["outcomes"]) for report in reports), Counter())
    assert outcomes.keys() == {"ok", "BudgetExceededError"}


@pytest.mark.soak
def test_processes_stay_within_their_rates_and_use_them(server: ExternalServer) -> None:
    """150 seconds at 3,000 requests and 300,000 tokens a minute, with estimates that are corrected."""
    reports = run_workers(
        server, 4, requests=2500, flights=16, rates={"rpm": 3000, "tpm": 300_000}, seconds=0.01, max_wait=600.0
    )
    sent = sorted(at for report in reports for at in report["sent"])
    windows = [sum(at <= other < at + 60 for other in sent) for at in sent[::25] if at + 60 <= sent[-1]]
    print(f"{len(sent)} requests in {sent[-1] - sent[0]:.0f} s, worst window {max(windows)}, least {min(windows)}")
    assert max(windows) <= 3000


def test_exactly_one_process_probes(server: ExternalServer) -> None:
    """The only target is tried by the others too, but not as a probe."""
    count = 8
    reports = run_workers(server, count, probes=1.0, max_wait=0.0)
    reasons: Counter[str] = sum((Counter(report["reasons"]) for report in reports), Counter())
    assert reasons == {"half-open probe": 1, "no target is healthy": count - 1}


def test_the_money_of_a_killed_process_returns_when_its_lease_ends(server: ExternalServer) -> None:
    name, budget = make_name(), MAX_TOKENS * DOLLARS_PER_TOKEN
    state: dict[str, Any] = {"timeout": 20.0, "lease_seconds": 1.0}
    settings = {"url": server.url, "name": name, "requests": 1, "flights": 1, "budget": budget, "state": state}
    command = [sys.executable, "-m", "tests.routing.shared_worker", json.dumps({**settings, "dies": True})]
    holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdin is not None
    assert holder.stdout.readline() == "ready\n"
    holder.stdin.write("\n")
    holder.stdin.flush()
    router = make_router(
        Vendor(0.0, 20), RedisState(server.url, **state), name, max_wait=20.0, spend=SpendLimit(dollars=budget)
    )
    assert router._settings.shared is not None
    with server.client() as client:
        while not client.exists(f"agent:{{{router._settings.shared.namespace}}}:l"):
            time.sleep(0.01)
    with pytest.raises(errors.BudgetExceededError):
        router.with_config(max_wait=0.0).complete("hi", max_tokens=MAX_TOKENS)
    holder.kill()
    killed = time.monotonic()
    holder.communicate()
    assert router.complete("hi", max_tokens=MAX_TOKENS).text == "hello"
    assert time.monotonic() - killed < 10.0


# A server that fails


def _stop(server: RedisServer) -> None:
    server.stop()


def _fill(server: RedisServer) -> None:
    with server.client() as client:
        client.config_set("maxmemory", 1)


def _demote(server: RedisServer) -> None:
    with server.client() as client:
        client.replicaof("127.0.0.1", 1)


def _empty(server: RedisServer) -> None:
    with server.client() as client:
        client.config_set("maxmemory", 0)


def _promote(server: RedisServer) -> None:
    with server.client() as client:
        client.replicaof("NO", "ONE")


FAULTS: dict[str, tuple[Callable[[RedisServer], None], Callable[[RedisServer], None]]] = {
    "stopped": (_stop, RedisServer.start),
    "paused": (RedisServer.pause, RedisServer.resume),
    "full": (_fill, _empty),
    "read-only": (_demote, _promote),
}


def make_limited(server: RedisServer, policy: Any) -> tuple[Router, Vendor]:
    vendor = Vendor(0.0, 20)
    state = RedisState(server.url, policy=policy, timeout=SHORT)
    router = make_router(vendor, state, make_name(), spend=SpendLimit(dollars=1.0), rates={"rpm": 1000}, max_wait=0.0)
    _wait_until_up(router)
    return router, vendor


def _wait_until_up(router: Router) -> None:
    end = time.monotonic() + 20
    while time.monotonic() < end:
        router.flush()
        if router._settings.shared is not None and router._settings.shared.outbox.is_up:
            return
        time.sleep(0.01)
    raise AssertionError("the shared state did not recover")


@pytest.mark.timing
@pytest.mark.parametrize("policy", ["fail_open", "fail_closed"])
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("form", ["sync", "async"])
def test_a_server_that_fails_delays_one_call_and_the_policy_decides(
    own_server: RedisServer, fault: str, policy: str, form: str
) -> None:
    router, vendor = make_limited(own_server, policy)

    def call() -> float:
        begun = time.perf_counter()
        if form == "sync":
            router.complete("hi", max_tokens=MAX_TOKENS)
        else:
            asyncio.run(router.acomplete("hi", max_tokens=MAX_TOKENS))
        return time.perf_counter() - begun

    call()
    router.flush()
    break_it, repair = FAULTS[fault]
    break_it(own_server)
    sent, delays = len(vendor.sent), []
    for _ in range(5):
        begun = time.perf_counter()
        if policy == "fail_open":
            call()
        else:
            with pytest.raises(errors.BudgetExceededError) as caught:
                call()
            assert caught.value.retryable
        delays.append(time.perf_counter() - begun)
    assert len(vendor.sent) - sent == (5 if policy == "fail_open" else 0)
    print(f"{fault} {policy} {form}: {', '.join(f'{1000 * delay:.1f}' for delay in delays)} ms")
    assert delays[0] < SHORT + 0.05
    assert max(delays[1:]) < 0.045, "one call is delayed, and the others do not touch the server"
    repair(own_server)
    _wait_until_up(router)
    if fault == "stopped":
        router.restore_spend(0.0)  # it restarted empty
    call()
    router.flush()
    if fault != "stopped":
        assert router.get_spend() == pytest.approx(vendor.tokens * DOLLARS_PER_TOKEN), "nothing is forgotten"


@pytest.mark.parametrize("policy", ["fail_open", "fail_closed"])
def test_a_server_that_restarted_empty_is_noticed(
    own_server: RedisServer, policy: str, caplog: pytest.LogCaptureFixture
) -> None:
    router, vendor = make_limited(own_server, policy)
    router.complete("hi", max_tokens=MAX_TOKENS)
    router.flush()
    spent = router.get_spend()
    own_server.stop()
    own_server.start()
    with caplog.at_level(logging.WARNING, "agent"):
        _wait_until_up(router)
    if policy == "fail_open":
        assert router.complete("hi", max_tokens=MAX_TOKENS).text == "hello"
        assert "lost its data" in caplog.text
        return
    for _ in range(2):
        with pytest.raises(errors.BudgetExceededError, match="lost its data"):
            router.complete("hi", max_tokens=MAX_TOKENS)
    router.restore_spend(spent)
    assert router.complete("hi", max_tokens=MAX_TOKENS).text == "hello"
    assert len(vendor.sent) == 2
    router.flush()
    assert router.get_spend() == pytest.approx(vendor.tokens * DOLLARS_PER_TOKEN)


def test_a_server_that_was_never_there_delays_nothing_but_the_first_call(own_server: RedisServer) -> None:
    own_server.stop()
    vendor = Vendor(0.0, 20)
    router = make_router(vendor, own_server.url, "x", rates={"rpm": 3}, max_wait=0.0)
    for _ in range(3):
        assert router.complete("hi").text == "hello"
    with pytest.raises(errors.RoutingError, match="rate limit"):
        router.complete("hi")


# Keys and commands


def test_all_keys_expire_share_a_slot_and_hold_no_metadata(own_server: RedisServer) -> None:
    limits = [SpendLimit(dollars=1.0), SpendLimit(dollars=1.0, per="user", window=3600.0)]
    rates = {"rpm": 9, "tpm": 9000, "concurrency": 4}
    vendor = Vendor(0.0, 20)
    router = make_router(vendor, own_server.url, "secret-name", spend=limits, rates=rates)
    _wait_until_up(router)
    router.complete("hi", metadata={"user": "ann@example.com"}, max_tokens=9)
    vendor.fails = True
    with pytest.raises(errors.AgentError):
        router.complete("hi", metadata={"user": "ann@example.com"}, max_tokens=9)
    router.flush()
    with own_server.client() as client:
        keys = client.keys("*")
        assert {key.split(b":")[2] for key in keys} >= {b"s", b"w", b"q", b"e", b"o"}
        assert len({key[key.index(b"{") : key.index(b"}")] for key in keys}) == 1
        for key in keys:
            assert client.pttl(key) > 0, key
            assert b"ann" not in key
            assert b"ann" not in client.dump(key)


def test_a_call_needs_one_command_before_it_and_a_share_of_one_after_it(own_server: RedisServer) -> None:
    router = make_router(Vendor(0.0, 20), RedisState(own_server.url, timeout=20.0), "x", spend=SpendLimit(dollars=99.0))
    _wait_until_up(router)
    with own_server.client() as client:

        def count() -> int:
            return int(client.info("commandstats")["cmdstat_evalsha"]["calls"])

        before = count()
        for _ in range(100):
            router.complete("hi", max_tokens=MAX_TOKENS)
        router.flush()
        commands = count() - before
    print(f"{commands} commands for 100 calls")
    assert 101 <= commands <= 180, "settlements are sent in batches"


def test_scripts_that_the_server_forgot_are_sent_again(own_server: RedisServer) -> None:
    state = RedisState(own_server.url, timeout=20.0)
    router = make_router(Vendor(0.0, 20), state, "x", spend=SpendLimit(dollars=99.0))
    for _ in range(2):
        with own_server.client() as client:
            client.script_flush()
        asyncio.run(router.acomplete("hi"))
        with own_server.client() as client:
            client.script_flush()
        router.complete("hi")
    assert router._settings.shared is not None
    assert router._settings.shared.outbox.is_up
    assert len({router.get_spend() for _ in range(2)}) == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_child_has_its_own_connections_and_settlements(own_server: RedisServer) -> None:
    vendor = Vendor(0.0, 20)
    router = make_router(vendor, RedisState(own_server.url, timeout=20.0), "x", spend=SpendLimit(dollars=99.0))
    router.complete("hi")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        status = 1
        try:
            response = router.complete("hi")
            router.flush()
            status = (response.usage.completion_tokens if response.usage else 0) + 10
        finally:
            os._exit(status)
    router.complete("hi")
    _, status = os.waitpid(child, 0)
    router.flush()
    tokens = vendor.tokens + os.waitstatus_to_exitcode(status) - 10
    assert router.get_spend() == pytest.approx(tokens * DOLLARS_PER_TOKEN)


def test_a_state_is_pickled_without_its_connections_and_prints_no_password(server: ExternalServer) -> None:
    state = RedisState("redis://:secret@127.0.0.1:1/0", policy="fail_closed", on_lost="charge", retention=60.0)
    copy = pickle.loads(pickle.dumps(state))
    assert copy._options == state._options
    assert "secret" not in repr(state)
    router = make_router(Vendor(0.0, 20), server.url, "pickled")
    assert router._settings.shared is not None
    assert router._settings.shared.namespace
    with pytest.raises(errors.ConfigurationError, match="policy"):
        RedisState(server.url, policy="maybe")  # type: ignore[arg-type]
    with pytest.raises(errors.ConfigurationError, match="URL"):
        RedisState("http://127.0.0.1")
