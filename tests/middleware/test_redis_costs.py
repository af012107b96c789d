"""Costs in a real Redis: the suite of one process, several processes, and a server that fails."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import pytest

from agent import Agent, AgentResponse, Usage, errors
from agent.middleware import RedisCostTracker, Spending
from agent.stores import StoreError, StoreFullError, StoreUnavailableError
from agent.testing import scripted_agent
from agent.types import Attempt
from agent.types._base import FrozenList
from tests.middleware import test_spending as one_process
from tests.middleware.test_spending import _prices, line  # noqa: F401  # a fixture
from tests.support.redis_server import ExternalServer, RedisServer, break_server, make_name, repair_server

SUITE: dict[str, Callable[[], None]] = {
    name: test
    for name, test in vars(one_process).items()
    if name.startswith("test_") and not inspect.signature(test).parameters and "refused" not in name
}


@pytest.mark.parametrize("name", SUITE)
def test_redis_keeps_what_one_process_promises(
    name: str, server: ExternalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make(**options: Any) -> RedisCostTracker:
        return RedisCostTracker(server.url, name=make_name(), timeout=20.0, **options)

    assert len(SUITE) >= 8
    monkeypatch.setattr(one_process, "CostTracker", make)
    SUITE[name]()


def make_agent(tracker: RedisCostTracker, *lines: Any) -> Agent:
    return scripted_agent(*lines, model="dear", middleware=[tracker], max_retries=0)


def ask(agent: Agent, form: str, **options: Any) -> str | None:
    response = agent.complete("hi", **options) if form == "sync" else asyncio.run(agent.acomplete("hi", **options))
    assert isinstance(response, AgentResponse)
    return response.text


# Processes

WORKER = """
import asyncio, json, os, signal, sys
from agent import AgentResponse, Usage
from agent.middleware import RedisCostTracker
from agent.models import ModelFacts, Prices, register_model
from agent.testing import scripted_agent
from agent.types import Attempt
from agent.types._base import FrozenList
url, name, calls, form, dies = json.loads(sys.argv[1])
register_model(ModelFacts(provider="scripted", model="dear", prices=Prices(input=1e6, output=1e6)))
tracker = RedisCostTracker(url, name=name, per="user", timeout=20.0)
line = AgentResponse(text="ok", usage=Usage(prompt_tokens=3, completion_tokens=0))
agent = scripted_agent(*[line] * calls, model="dear", middleware=[tracker])
if form == "sync":
    for number in range(calls):
        agent.complete("hi", metadata={"user": f"u{number % 2}"})
else:
    async def main():
        await asyncio.gather(*(agent.acomplete("hi", metadata={"user": f"u{n % 2}"}) for n in range(calls)))
    asyncio.run(main())
if dies:
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_processes_add_up_exactly_and_lose_nothing_when_they_are_killed(server: ExternalServer) -> None:
    name, calls = make_name(), 60
    workers = [
        subprocess.Popen([sys.executable, "-c", WORKER, json.dumps([server.url, name, calls, form, dies])])
        for form, dies in (("sync", False), ("async", False), ("sync", True), ("async", True))
    ]
    codes = [worker.wait(120) for worker in workers]
    assert (codes[:2], [code != 0 for code in codes[2:]]) == ([0, 0], [True, True])
    tracker = RedisCostTracker(server.url, name=name, per="user", timeout=20.0)
    total = tracker.total
    assert (total.calls, total.cost, total.usage.prompt_tokens) == (4 * calls, 12.0 * calls, 12 * calls)
    assert {value: one.cost for value, one in tracker.by_value().items()} == {"u0": 6.0 * calls, "u1": 6.0 * calls}
    assert {target: one.calls for target, one in tracker.by_target().items()} == {"scripted:dear": 4 * calls}


@pytest.mark.parametrize("form", ["sync", "async"])
def test_a_budget_counts_the_calls_of_others(server: ExternalServer, form: str) -> None:
    name = make_name()
    first, second = (RedisCostTracker(server.url, name=name, budget=8.0, timeout=20.0) for _ in range(2))
    assert ask(make_agent(first, line(5)), form) == "ok"
    assert ask(make_agent(second, line(5)), form) == "ok"
    for tracker in (first, second):
        with pytest.raises(errors.BudgetExceededError, match=r"\$10\.000000 of \$8"):
            ask(make_agent(tracker), form)
    second.reset()
    assert first.total == Spending()
    assert ask(make_agent(first, line(5)), form) == "ok"


def test_all_of_the_usage_is_added_up(server: ExternalServer) -> None:
    usage = Usage(
        prompt_tokens=10, completion_tokens=20, cache_read_tokens=3, cache_write_tokens=4, reasoning_tokens=5,
        details={"web_searches": 2, "audio_seconds": 0.25}, billed=0.125, estimated=True,
    )  # fmt: skip
    attempts = [Attempt(target="m", usage=usage, cost=0.5), Attempt(target="n", usage=Usage(prompt_tokens=1))]
    tracker = RedisCostTracker(server.url, name=make_name(), per="user", timeout=20.0)
    users: list[Any] = ["amy", None, 7, True, FrozenList(["odd"]), object()]
    for user in users:
        tracker._unsent = tracker._sum_attempts(attempts, {"user": user})
        tracker.flush()
    both = usage + Usage(prompt_tokens=1)
    whole = sum([both] * 5, both)
    assert tracker.total == Spending(6, whole, 3.0, 6)
    assert tracker.by_target()["m"] == Spending(6, sum([usage] * 5, usage), 3.0, 0)
    assert {"amy", None, 7, True, FrozenList(["odd"])} <= tracker.by_value().keys()
    assert tracker.get_spend(FrozenList(["odd"])) == 0.5


# Keys


def test_keys_expire_after_the_retention(own_server: RedisServer) -> None:
    tracker = RedisCostTracker(own_server.url, per="user", retention=2.0, timeout=20.0)
    agent = make_agent(tracker, *[line(1)] * 3)
    agent.complete("hi", metadata={"user": "amy"})
    with own_server.client() as client:
        assert {key.split(b"}:")[1][:1] for key in client.keys("*")} == {b"x", b"a", b"q"}
        for key in client.keys("*"):
            assert 0 < client.pttl(key) <= (86_400_000 if b":q:" in key else 2000)
        time.sleep(1.2)
        agent.complete("hi", metadata={"user": "bob"})
        time.sleep(1.2)
        assert list(tracker.by_value()) == ["bob"]
        agent.complete("hi", metadata={"user": "bob"})
        assert client.zrange(tracker._key, 0, -1) == [b"m:scripted:dear", b"t", b'v:"bob"']
        assert client.zcard(f"agent:{{costs:costs}}:q:{tracker._process_id}") == 1, "confirmed additions are forgotten"


# A server that fails

FAULTS: dict[str, type[StoreError]] = {
    "stopped": StoreUnavailableError,
    "paused": StoreUnavailableError,
    "full": StoreFullError,
    "read-only": StoreError,
}


def wait_until_connected(tracker: RedisCostTracker) -> None:
    end = time.monotonic() + 20
    while time.monotonic() < end and not tracker._client._client.is_connected:
        time.sleep(0.01)


@pytest.mark.timing
@pytest.mark.parametrize("form", ["sync", "async"])
@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_spent_without_redis_is_added_when_it_is_back(own_server: RedisServer, fault: str, form: str) -> None:
    tracker = RedisCostTracker(own_server.url, budget=100.0)
    agent = make_agent(tracker, *[line(1)] * 50)
    wait_until_connected(tracker)
    ask(agent, form)
    break_server(own_server, fault)
    delays = []
    for _ in range(5):
        begun = time.perf_counter()
        assert ask(agent, form) == "ok"
        delays.append(time.perf_counter() - begun)
    print(f"{fault} {form}: {', '.join(f'{1000 * delay:.1f}' for delay in delays)} ms")
    assert delays[0] < 0.1
    if fault in ("stopped", "paused"):
        assert median(delays[1:]) < 0.045, "one call is delayed, and the others do not touch the server"
    repair_server(own_server, fault)
    before = 0 if fault == "stopped" else 1
    assert tracker.total.calls == before + 5
    assert tracker.get_spend() == before + 5.0


def test_the_sum_of_an_outage_stays_small(own_server: RedisServer) -> None:
    tracker = RedisCostTracker(own_server.url, timeout=0.2)
    agent = make_agent(tracker, *[line(1)] * 200)
    break_server(own_server, "full")
    for _ in range(100):
        agent.complete("hi")
    assert (len(tracker._failed), len(tracker._flying), tracker._unsent["t"]["calls"]) == (0, 0, 100)
    repair_server(own_server, "full")
    own_server.stop()
    for _ in range(100):
        agent.complete("hi")
    assert len(tracker._failed) <= 2
    own_server.start()
    assert tracker.total.calls == 200


@pytest.mark.parametrize("form", ["sync", "async"])
def test_an_addition_whose_reply_was_lost_counts_once(
    server: ExternalServer, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracker = RedisCostTracker(server.url, name=make_name(), timeout=20.0)
    agent = make_agent(tracker, *[line(1)] * 5)
    run, arun, lost = tracker._client.run, tracker._client.arun, []

    def lose() -> None:
        lost.append(1)
        if len(lost) <= 3:
            raise ConnectionResetError("reset by peer")

    def lose_reply(*arguments: Any) -> Any:
        reply = run(*arguments)
        lose()
        return reply

    async def lose_async_reply(*arguments: Any) -> Any:
        reply = await arun(*arguments)
        lose()
        return reply

    monkeypatch.setattr(tracker._client, "run", lose_reply)
    monkeypatch.setattr(tracker._client, "arun", lose_async_reply)
    for _ in range(3):
        ask(agent, form)
    assert len(tracker._failed) == 3
    ask(agent, form)
    assert tracker._failed == {}
    assert tracker.total.calls == 4


@pytest.mark.parametrize("form", ["sync", "async"])
@pytest.mark.parametrize("fault", FAULTS)
def test_reports_and_budgets_that_fail_closed_raise_typed_errors(
    own_server: RedisServer, fault: str, form: str
) -> None:
    tracker = RedisCostTracker(own_server.url, budget=1.0, policy="fail_closed", timeout=0.2)
    tracker._reports._timeout = 0.2
    break_server(own_server, fault)
    if fault in ("stopped", "paused"):
        for _ in range(2):
            with pytest.raises(errors.BudgetExceededError, match=r"Redis cannot be used\. Nothing was sent") as caught:
                ask(make_agent(tracker), form)
            assert caught.value.retryable
        with pytest.raises(StoreUnavailableError):
            _ = tracker.total
        return
    ask(make_agent(tracker, line(3)), form)  # reading is possible, and what was spent is known here
    with pytest.raises(errors.BudgetExceededError, match="is spent"):
        ask(make_agent(tracker), form)
    with pytest.raises(FAULTS[fault]) as refused:
        _ = tracker.total
    assert type(refused.value) is FAULTS[fault]
    repair_server(own_server, fault)
    assert tracker.total.cost == 3.0


def test_a_budget_that_fails_open_uses_what_is_known(own_server: RedisServer) -> None:
    other = RedisCostTracker(own_server.url, budget=9.0, timeout=20.0)
    make_agent(other, line(4)).complete("hi")
    tracker = RedisCostTracker(own_server.url, budget=9.0, timeout=0.2)
    agent = make_agent(tracker, *[line(2)] * 5)
    wait_until_connected(tracker)
    agent.complete("hi")  # 4 are known
    own_server.stop()
    agent.complete("hi")
    agent.complete("hi")
    agent.complete("hi")
    with pytest.raises(errors.BudgetExceededError):
        agent.complete("hi")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_adds_its_own_calls_only(own_server: RedisServer) -> None:
    tracker = RedisCostTracker(own_server.url, timeout=20.0)
    agent = make_agent(tracker, *[line(1)] * 5)
    break_server(own_server, "full")
    agent.complete("hi")
    repair_server(own_server, "full")
    child = os.fork()
    if child == 0:
        try:
            agent.complete("hi")
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    with own_server.client() as client:
        assert client.hget("agent:{costs:costs}:a:t", "calls") == b"1"
    assert tracker.total.calls == 2


def test_sums_of_an_outage_are_sent_at_exit(own_server: RedisServer) -> None:
    code = (
        "import sys; from agent.middleware import RedisCostTracker; from agent.testing import scripted_agent; "
        "from redis import Redis; url = sys.argv[1]; client = Redis.from_url(url, protocol=2); "
        "tracker = RedisCostTracker(url, timeout=20.0); client.config_set('maxmemory', 1); "
        "scripted_agent('ok', middleware=[tracker]).complete('hi'); client.config_set('maxmemory', 0)"
    )
    subprocess.run([sys.executable, "-c", code, own_server.url], check=True, timeout=120)
    assert RedisCostTracker(own_server.url).total.calls == 1


def test_arguments_are_checked_and_survive_pickling(server: ExternalServer) -> None:
    for options in ({"policy": "maybe"}, {"name": "{}"}, {"retention": 0}, {"budget": 0}):
        with pytest.raises(errors.ConfigurationError) as caught:
            RedisCostTracker(server.url, **options)
        assert caught.value.field in options
    tracker = RedisCostTracker(
        server.url, name="x", budget=3.0, per="user", policy="fail_closed", retention=6.0, timeout=7.0
    )
    copy: RedisCostTracker = pickle.loads(pickle.dumps(tracker))
    fields = ("_url", "_name", "_budget", "_per", "_policy", "_retention", "_timeout")
    assert [getattr(copy, field) for field in fields] == [getattr(tracker, field) for field in fields]
    assert repr(copy) == "RedisCostTracker(name='x')"
