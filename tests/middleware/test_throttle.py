"""Throttle: sliding windows, shared limits, and errors instead of long waits."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from agent import Agent, AgentRequest, AgentResponse, Router, Usage, errors
from agent.middleware import Cache, Throttle, limits
from agent.models.token_estimates import estimate_prompt
from agent.testing import Script, Simulation, Stopped, scripted_agent, simulate, start
from tests.middleware.spies import Spy, plain_agent, raise_error
from tests.support.drivers import Driver


def used(tokens: int) -> AgentResponse:
    return AgentResponse(text="ok", usage=Usage(prompt_tokens=tokens, completion_tokens=0))


class World:
    """Calls in virtual time, and when each was sent."""

    def __init__(self, *middleware: Any, line: Any = "ok", now: float = 0.0, **options: Any) -> None:
        self.sent: list[float] = []

        def network(request: Any) -> Any:
            self.sent.append(self.simulation.now)
            return Script(line)(request)

        self.simulation = Simulation(network, now=now)
        self.agent = scripted_agent(middleware=middleware, **options)

    def ask(self, **overrides: Any) -> AgentResponse:
        return simulate(self.simulation, self.agent, "hi", **overrides)

    def ask_at_once(self, count: int, **overrides: Any) -> list[Any]:
        runs = [start(self.simulation, self.agent, "hi", **overrides) for _ in range(count)]
        self.simulation.finish()
        return runs


MINUTE = 60.0 - 1e-6
"""Sums of times are not exact."""


def most_in_a_minute(times: list[float]) -> int:
    return max(sum(1 for other in times if moment <= other < moment + MINUTE) for moment in times)


def test_requests_beyond_the_limit_wait_for_their_minute() -> None:
    world = World(Throttle(rpm=3))
    for _ in range(7):
        world.ask()
    assert world.sent == [0.0, 0.0, 0.0, 60.0, 60.0, 60.0, 120.0]


def test_those_who_wait_go_in_the_order_in_which_they_came() -> None:
    world = World(Throttle(rpm=2))
    runs = world.ask_at_once(7)
    assert all(run.error is None for run in runs)
    assert world.sent == [0.0, 0.0, 60.0, 60.0, 120.0, 120.0, 180.0]


def test_nobody_is_overtaken_by_a_smaller_request() -> None:
    world = World(Throttle(tpm=1000))
    world.simulation._network = lambda request: replace(Script(used(1))(request), after=10.0)
    runs: dict[int, Any] = {}

    def ask(at: float, tokens: int) -> None:
        def begin() -> None:
            runs[tokens] = start(world.simulation, world.agent, "hi", max_tokens=tokens)

        world.simulation.at(at, begin)

    ask(0.0, 900)  # which turns out to be small, at 10.0
    ask(1.0, 800)  # waits for the first to be a minute old
    ask(20.0, 10)
    world.simulation.finish()
    ended = {tokens: run.ended_at for tokens, run in runs.items()}
    assert ended == {900: 10.0, 800: 70.0, 10: 70.0}


def test_windows_slide() -> None:
    world = World(Throttle(rpm=2))
    for pause in (0.0, 40.0, 0.0, 0.0):
        world.simulation.now += pause
        world.ask()
    assert world.sent == [0.0, 40.0, 60.0, 100.0]


@pytest.mark.parametrize("seed", range(20))
def test_in_no_minute_is_there_more_than_allowed(seed: int) -> None:
    rng = random.Random(seed)
    expected = estimate_prompt(AgentRequest(input="hi", model="script")).tokens + 40
    rpm, tpm = rng.randint(1, 6), rng.randint(expected, 5 * expected)
    tokens: list[int] = []

    def answer(body: Any) -> AgentResponse:
        tokens.append(rng.randint(1, expected))
        return used(tokens[-1])

    world = World(Throttle(rpm=rpm, tpm=tpm), line=answer)

    def ask() -> None:
        start(world.simulation, world.agent, "hi", max_tokens=40)

    for _ in range(rng.randint(5, 25)):
        world.simulation.at(rng.uniform(0, 120), ask)
    world.simulation.finish()
    assert most_in_a_minute(world.sent) <= rpm
    for moment in world.sent:
        minute = [used for used, sent in zip(tokens, world.sent, strict=True) if moment <= sent < moment + MINUTE]
        assert sum(minute) <= tpm


def test_tokens_are_limited_as_expected_and_then_as_they_were() -> None:
    expected = estimate_prompt(AgentRequest(input="hi", model="script")).tokens + 50
    world = World(Throttle(tpm=2 * expected), line=used(expected))
    for _ in range(3):
        world.ask(max_tokens=50)
    assert world.sent == [0.0, 0.0, 60.0]
    world = World(Throttle(tpm=2 * expected), line=used(1))
    for _ in range(3):
        world.ask(max_tokens=50)  # they were much smaller than they could have been
    assert world.sent == [0.0, 0.0, 0.0]
    world = World(Throttle(tpm=2 * expected), line=used(2 * expected))
    for _ in range(2):
        world.ask(max_tokens=50)  # larger than expected
    assert world.sent == [0.0, 60.0]


def test_a_request_that_is_larger_than_the_limit_is_sent_when_it_is_alone() -> None:
    world = World(Throttle(tpm=10), line=used(500))
    for _ in range(3):
        world.ask(max_tokens=1000)
    assert world.sent == [0.0, 60.0, 120.0]


def test_a_wait_beyond_the_deadline_is_not_begun() -> None:
    world = World(Throttle(rpm=1))
    world.ask()
    world.simulation.now = 10.0
    with pytest.raises(
        errors.RateLimitError, match=r"Rate limit of 1 requests per minute exceeded.*in 50\.0 s"
    ) as caught:
        world.ask(deadline=30.0)
    assert (caught.value.retry_after, caught.value.retryable, caught.value.attempts) == (50.0, True, ())
    assert (world.sent, world.simulation.now) == ([0.0], 10.0)
    assert world.ask(deadline=51.0).text == "ok"
    assert world.sent == [0.0, 60.0]


def test_a_wait_beyond_the_longest_is_not_begun() -> None:
    world = World(Throttle(rpm=1, max_wait=5.0))
    world.ask()
    with pytest.raises(errors.RateLimitError):
        world.ask()
    world.simulation.now = 56.0
    assert world.ask().text == "ok"
    assert world.sent == [0.0, 60.0]


def test_who_was_refused_takes_nobodys_place() -> None:
    world = World(Throttle(rpm=1))
    world.ask()
    for _ in range(5):
        with pytest.raises(errors.RateLimitError):
            world.ask(deadline=1.0)
    world.ask()
    assert world.sent == [0.0, 60.0]


def test_who_leaves_the_queue_leaves_no_gap() -> None:
    world = World(Throttle(rpm=1))
    world.ask()
    waiting = start(world.simulation, world.agent, "hi")
    behind = start(world.simulation, world.agent, "hi")
    world.simulation.at(30.0, lambda: world.simulation.cancel(waiting))
    world.simulation.finish()
    assert behind.error is None
    world.ask()
    assert len(world.sent) == 3
    assert world.sent[-1] - world.sent[-2] == 60.0
    assert most_in_a_minute(world.sent) == 1


def test_what_is_answered_further_in_counts_for_nothing() -> None:
    world = World(Throttle(rpm=2), Cache())
    for _ in range(10):
        world.ask()
    assert world.sent == [0.0]


def test_what_could_not_be_sent_counts_for_nothing() -> None:
    agent = scripted_agent(
        middleware=[Throttle(rpm=1), Spy("A", [], before=raise_error(errors.ConfigurationError("no")))]
    )
    plain = scripted_agent(middleware=[Throttle(rpm=1)])
    simulation = Simulation(Script("ok"))
    for _ in range(3):
        with pytest.raises(errors.ConfigurationError):
            simulate(simulation, agent, "hi")
        with pytest.raises(errors.ConfigurationError):
            simulate(simulation, plain, "half a character: \ud800")
    assert simulation.now == 0.0


def test_retries_count_as_the_requests_they_are() -> None:
    lines: Iterator[Any] = iter([errors.OverloadedError("busy"), errors.OverloadedError("busy"), "ok", "ok"])
    world = World(Throttle(rpm=3), line=lambda body: next(lines), max_retries=2)
    world.ask()
    world.ask()
    assert len(world.sent) == 4
    assert world.sent[2] < 30.0
    assert world.sent[3] >= 60.0


def test_several_agents_share_a_limit() -> None:
    throttle = Throttle(rpm=1)
    simulation = Simulation(Script("ok", "ok", "ok"))
    for model in "abc":
        simulate(simulation, scripted_agent(model=model, middleware=[throttle]), "hi")
    assert simulation.now == 120.0


def test_a_router_goes_elsewhere_rather_than_wait() -> None:
    throttle = Throttle(rpm=1, max_wait=0.0)
    first = scripted_agent("a", model="a", middleware=[throttle])
    router = Router([first, scripted_agent("b", "b", model="b")])
    assert [router.complete("hi").text for _ in range(3)] == ["a", "b", "b"]


def test_a_stream_is_held_back_before_it_begins() -> None:
    world = World(Throttle(rpm=1))
    world.ask(streaming=True)
    world.ask(streaming=True)
    assert world.sent == [0.0, 60.0]


@pytest.mark.timing
def test_waiting_is_real_where_time_is(drive_real: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "WINDOW", 0.2)
    throttle = Throttle(rpm=1)
    started = time.monotonic()
    for _ in range(3):
        outcome = drive_real.complete(Script("ok"), make=lambda url: plain_agent(url, [throttle]))
        assert outcome.ok.text == "ok"
    assert 0.4 <= time.monotonic() - started < 2.0


@pytest.mark.timing
def test_threads_and_tasks_share_a_limit_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "WINDOW", 0.6)
    sent: list[float] = []

    def network(body: Any) -> str:
        sent.append(time.monotonic())
        return "ok"

    agent = scripted_agent(*[network] * 20, middleware=[Throttle(rpm=5)])

    async def tasks() -> None:
        await asyncio.gather(*(agent.acomplete("hi") for _ in range(10)))

    threads = [threading.Thread(target=agent.complete, args=("hi",)) for _ in range(10)]
    for thread in threads:
        thread.start()
    asyncio.run(tasks())
    for thread in threads:
        thread.join()
    assert len(sent) == 20
    sent.sort()
    assert all(later - earlier >= 0.3 for earlier, later in zip(sent, sent[5:], strict=False))


def test_an_abandoned_call_leaves_no_place_behind() -> None:
    throttle = Throttle(rpm=1)
    agent = scripted_agent(middleware=[throttle])
    simulate(Simulation(Script("ok")), agent, "hi")
    with pytest.raises(Stopped):
        simulate(Simulation(Script("ok"), stop_at=4, now=1.0), agent, "hi")
    assert len(throttle._slots) == 1


@pytest.mark.parametrize(
    ("options", "complaint"),
    [({}, "Throttle has no limit"), ({"rpm": 0}, "rpm is 0"), ({"tpm": -1}, "tpm is -1")],
)
def test_limits_that_cannot_work_are_refused(options: Any, complaint: str) -> None:
    with pytest.raises(errors.ConfigurationError, match=complaint):
        Throttle(**options)


def test_an_agent_is_made_with_it() -> None:
    assert Agent("scripted:m", middleware=[Throttle(rpm=60)]).complete("hi").text == "You said: hi"
