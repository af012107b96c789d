"""Rate limits in a real Redis: the suite of one process, several processes, and a server that fails."""

from __future__ import annotations

import asyncio
import inspect
import json
import math
import pickle
import subprocess
import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import pytest

from agent import Agent, AgentResponse, Usage, errors
from agent.middleware import RedisThrottle
from agent.testing import scripted_agent
from tests.middleware import test_throttle as one_process
from tests.support.redis_server import ExternalServer, RedisServer, break_server, make_name, repair_server

SUITE: dict[str, Callable[[], None]] = {
    name: test
    for name, test in vars(one_process).items()
    if name.startswith("test_") and not inspect.signature(test).parameters and "an_agent_is_made" not in name
}


@pytest.fixture
def in_redis(server: ExternalServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the tests of `Throttle` use Redis, in virtual time."""

    def make(*, max_wait: float = math.inf, **limits: Any) -> RedisThrottle:
        throttle = RedisThrottle(server.url, name=make_name(), max_wait=max_wait, timeout=20.0, **limits)
        throttle._uses_callers_clock = True
        return throttle

    monkeypatch.setattr(one_process, "Throttle", make)


@pytest.mark.usefixtures("in_redis")
@pytest.mark.parametrize("name", SUITE)
def test_redis_keeps_what_one_process_promises(name: str) -> None:
    assert len(SUITE) >= 14
    SUITE[name]()


@pytest.mark.usefixtures("in_redis")
@pytest.mark.parametrize("seed", range(20))
def test_in_no_minute_is_there_more_than_allowed(seed: int) -> None:
    one_process.test_in_no_minute_is_there_more_than_allowed(seed)


# Processes

WORKER = """
import asyncio, json, sys, time
from agent import errors
from agent.middleware import RedisThrottle, redis_throttle
from agent.testing import scripted_agent
url, name, window, rpm, calls, form = json.loads(sys.argv[1])
redis_throttle.WINDOW = window
sent = []

def network(body):
    sent.append(time.time())
    return "ok"

throttle = RedisThrottle(url, name=name, rpm=rpm, max_wait=60.0, policy="fail_closed", timeout=20.0)
throttle._timeout = 0.05  # the margin that is documented; the machine may be busy
agent = scripted_agent(*[network] * calls, middleware=[throttle], max_retries=0)
print("ready", flush=True)
input()
if form == "sync":
    for _ in range(calls):
        agent.complete("hi")
else:
    async def main():
        await asyncio.gather(*(agent.acomplete("hi") for _ in range(calls)))
    asyncio.run(main())
print(json.dumps(sent))
"""


def test_processes_share_a_limit_exactly(server: ExternalServer) -> None:
    window, rpm, calls = 1.0, 20, 15
    name = make_name()
    pipe = subprocess.PIPE
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, json.dumps([server.url, name, window, rpm, calls, form])],
            stdin=pipe, stdout=pipe, text=True,
        )
        for form in ("sync", "async", "sync", "async")
    ]  # fmt: skip
    for worker in workers:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "ready\n"
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write("\n")
        worker.stdin.flush()
    reserved: dict[bytes, float] = {}
    with server.client() as client:
        while any(worker.poll() is None for worker in workers) and len(reserved) < 4 * calls:
            reserved.update(client.zrange(f"agent:{{throttle:{name}}}:z", 0, -1, withscores=True))
            time.sleep(0.02)
    sent = sorted(moment for worker in workers for moment in json.loads(worker.communicate()[0]))
    times = sorted(moment / 1e6 for moment in reserved.values())
    gaps = [later - earlier for earlier, later in zip(times, times[rpm:], strict=False)]
    print(f"{len(sent)} requests in {sent[-1] - sent[0]:.2f} s; {rpm} take {min(gaps):.3f} to {max(gaps):.3f} s")
    assert len(sent) == len(times) == 4 * calls
    assert min(gaps) >= window, "no window has more than allowed"
    assert all(real >= planned - 0.001 for planned, real in zip(times, sent, strict=True)), "nothing is sent too early"
    assert times[-1] - times[0] < 3 * window + 2.0, "the limit is used"


def test_a_process_that_dies_while_it_waits_leaves_the_limit_as_it_is(server: ExternalServer) -> None:
    name = make_name()
    settings = json.dumps([server.url, name, 0.5, 1, 4, "async"])
    worker = subprocess.Popen(
        [sys.executable, "-c", WORKER, settings], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert worker.stdin is not None
    worker.stdin.write("\n")
    worker.stdin.flush()
    with server.client() as client:
        while client.zcard(f"agent:{{throttle:{name}}}:z") < 4:
            time.sleep(0.01)
        worker.kill()
        worker.communicate()
        assert 0 < client.pttl(f"agent:{{throttle:{name}}}:z") <= 4 * 550 + 1100


# Settling


def used(tokens: int) -> AgentResponse:
    return AgentResponse(text="ok", usage=Usage(prompt_tokens=tokens, completion_tokens=0))


def make_agent(throttle: RedisThrottle, *lines: Any) -> Agent:
    return scripted_agent(*lines, middleware=[throttle], max_retries=0)


def ask(agent: Agent, form: str, **options: Any) -> str | None:
    response = agent.complete("hi", **options) if form == "sync" else asyncio.run(agent.acomplete("hi", **options))
    assert isinstance(response, AgentResponse)
    return response.text


@pytest.mark.parametrize("form", ["sync", "async"])
def test_all_keys_expire_and_sums_agree(own_server: RedisServer, form: str) -> None:
    throttle = RedisThrottle(own_server.url, rpm=100, tpm=10_000, timeout=20.0)
    agent = make_agent(throttle, used(7), errors.OverloadedError("busy"), used(30))
    ask(agent, form, max_tokens=500)
    with pytest.raises(errors.OverloadedError):
        ask(agent, form, max_tokens=1)
    ask(agent, form, max_tokens=10)
    with own_server.client() as client:
        assert {key.split(b":")[-1] for key in client.keys("*")} == {b"z", b"h", b"n"}
        assert all(0 < client.pttl(key) <= 170_000 for key in client.keys("*"))
        tokens = {slot: int(count) for slot, count in client.hgetall("agent:{throttle:throttle}:h").items()}
        total = tokens.pop(b"")
        assert (tokens[b"1"], tokens[b"3"], total) == (7, 30, sum(tokens.values()))
        assert client.zcard("agent:{throttle:throttle}:z") == 3


def test_a_call_that_is_cancelled_while_it_waits_gives_its_place_back(server: ExternalServer) -> None:
    throttle = RedisThrottle(server.url, name=make_name(), rpm=1, timeout=20.0)
    agent = make_agent(throttle, "ok", "ok")

    async def main() -> None:
        await agent.acomplete("hi")
        waiting = asyncio.create_task(agent.acomplete("hi"))
        with server.client() as client:
            while client.zcard(throttle._key) < 2 and not waiting.done():
                await asyncio.sleep(0.01)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            end = time.monotonic() + 20
            while client.zcard(throttle._key) == 2 and time.monotonic() < end:
                await asyncio.sleep(0.01)
            assert client.zcard(throttle._key) == 1

    asyncio.run(main())
    assert len(throttle._slots) == 1


# A server that fails

FAULTS = ("stopped", "paused", "full", "read-only")


@pytest.mark.timing
@pytest.mark.parametrize("form", ["sync", "async"])
@pytest.mark.parametrize("fault", FAULTS)
def test_without_redis_each_process_keeps_the_limit(own_server: RedisServer, fault: str, form: str) -> None:
    throttle = RedisThrottle(own_server.url, rpm=6, max_wait=0.0)
    agent = make_agent(throttle, *["ok"] * 20)
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and not throttle._client._client.is_connected:
        time.sleep(0.01)
    assert ask(agent, form) == "ok"
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
    with pytest.raises(errors.RateLimitError, match="Rate limit of 6 requests"):
        ask(agent, form)  # the first was sent through Redis, and counts
    repair_server(own_server, fault)
    end = time.monotonic() + 20
    while time.monotonic() < end:
        try:
            ask(agent, form)
            break
        except errors.RateLimitError:
            time.sleep(0.05)  # the server is not back yet
    else:
        raise AssertionError("Redis was not used again")


@pytest.mark.parametrize("form", ["sync", "async"])
@pytest.mark.parametrize("fault", FAULTS)
def test_fail_closed_sends_nothing_without_redis(own_server: RedisServer, fault: str, form: str) -> None:
    throttle = RedisThrottle(own_server.url, rpm=6, policy="fail_closed", timeout=0.2)
    break_server(own_server, fault)
    agent = make_agent(throttle)
    for _ in range(2):
        with pytest.raises(errors.RateLimitError, match=r"Redis cannot be used\. Nothing was sent") as caught:
            ask(agent, form)
        assert (caught.value.retryable, caught.value.retry_after, caught.value.attempts) == (True, 1.0, ())


def test_a_server_that_restarted_empty_starts_a_new_window(own_server: RedisServer) -> None:
    throttle = RedisThrottle(own_server.url, rpm=1, max_wait=0.0, timeout=20.0)
    agent = make_agent(throttle, "ok", "ok")
    agent.complete("hi")
    with pytest.raises(errors.RateLimitError):
        agent.complete("hi")
    with own_server.client() as client:
        client.flushall()
    assert agent.complete("hi").text == "ok"


def test_arguments_are_checked_and_survive_pickling(server: ExternalServer) -> None:
    for options in ({"policy": "maybe"}, {"name": "{}"}, {"rpm": 0}):
        with pytest.raises(errors.ConfigurationError) as caught:
            RedisThrottle(server.url, **{"rpm": 1, **options})  # type: ignore[arg-type]
        assert caught.value.field in options
    throttle = RedisThrottle(server.url, name="x", rpm=3, tpm=4, max_wait=5.0, policy="fail_closed", timeout=6.0)
    copy: RedisThrottle = pickle.loads(pickle.dumps(throttle))
    fields = ("_url", "_name", "_rpm", "_tpm", "_max_wait", "_policy", "_timeout")
    assert [getattr(copy, field) for field in fields] == [getattr(throttle, field) for field in fields]
    assert repr(copy) == "RedisThrottle(name='x')"
