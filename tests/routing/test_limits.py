"""Limits of a router: rate limits, spend limits, deadlines, attempts and the retry budget."""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from agent import RetryConfig, Router, errors
from agent.engine.wire import Answer, WireRequest
from agent.models import ModelFacts, Prices, register_model
from agent.testing import LoopbackServer, Script, Simulation, scripted_agent, simulate, start
from agent.types import AgentRequest, AgentResponse, SpendLimit, Usage
from tests.routing.fleet import Fleet, broken, busy
from tests.routing.test_strategies import answer_slowly
from tests.support.drivers import Driver


def outcomes(runs: list[Any]) -> Counter[str]:
    return Counter("ok" if run.result is not None else type(run.error).__name__ for run in runs)


# RateLimiter


def test_requests_beyond_a_targets_rate_go_elsewhere() -> None:
    fleet = Fleet(a=answer_slowly(0.1), b=answer_slowly(0.1))
    router = fleet.router(each={"a": {"rpm": 5}})
    simulation = Simulation(fleet)
    for _ in range(12):
        simulate(simulation, router, "hi")
    assert Counter(fleet.asked) == {"a": 5, "b": 7}


def test_no_minute_holds_more_requests_than_allowed() -> None:
    times: list[float] = []

    def vendor(request: WireRequest) -> Answer:
        times.append(simulation.now)
        return answer_slowly(0.01)(request)

    fleet = Fleet(a=vendor)
    router = fleet.router(each={"a": {"rpm": 10}}, max_wait=300.0)
    simulation = Simulation(fleet)
    runs = [start(simulation, router, "hi") for _ in range(30)]
    simulation.finish()
    assert outcomes(runs) == {"ok": 30}, "all of them wait for their minute"
    assert all(sum(first <= time < first + 60 for time in times) <= 10 for first in times)
    assert max(times) < 200


def test_when_all_are_at_their_rate_and_there_is_no_time_the_error_says_how_long() -> None:
    fleet = Fleet(a=answer_slowly(0.1), b=answer_slowly(0.1))
    router = fleet.router(each={"a": {"rpm": 1}, "b": {"rpm": 1}}, max_wait=1.0)
    simulation = Simulation(fleet)
    simulate(simulation, router, "hi")
    simulate(simulation, router, "hi")
    with pytest.raises(errors.RoutingError) as caught:
        simulate(simulation, router, "hi")
    assert caught.value.retry_after == pytest.approx(60, abs=1)
    assert caught.value.retryable
    assert len(fleet.asked) == 2


def test_tokens_are_limited_too() -> None:
    answer = AgentResponse(text="fine", usage=Usage(prompt_tokens=900, completion_tokens=50))
    fleet = Fleet(a=[answer] * 9, b=[answer] * 9)
    router = fleet.router(each={"a": {"tpm": 1000}})
    simulation = Simulation(fleet)
    for _ in range(3):
        simulate(simulation, router, "many words " * 50)
    assert Counter(fleet.asked) == {"a": 1, "b": 2}


def test_no_more_requests_at_once_than_allowed() -> None:
    now = {"a": 0, "most": 0}

    def vendor(request: WireRequest) -> Answer:
        busy_now = router.targets[0].in_flight
        now["most"] = max(now["most"], busy_now)
        return answer_slowly(1.0)(request)

    fleet = Fleet(a=vendor)
    router = fleet.router(each={"a": {"concurrency": 3}})
    simulation = Simulation(fleet)
    runs = [start(simulation, router, "hi") for _ in range(12)]
    simulation.finish()
    assert outcomes(runs) == {"ok": 12}
    assert now["most"] == 3


def test_what_the_vendors_headers_say_is_left_is_believed() -> None:
    def nearly_used_up(request: WireRequest) -> Answer:
        good = Script("fine")(request)
        left = {"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "30s"}
        return Answer(good.pieces, headers={**good.headers, **left})

    fleet = Fleet(a=nearly_used_up, b=answer_slowly(0))
    router = fleet.router()
    simulation = Simulation(fleet)
    for _ in range(3):
        simulate(simulation, router, "hi")
    assert fleet.asked == ["a", "b", "b"]
    simulation.now += 31
    simulate(simulation, router, "hi")
    assert fleet.asked[-1] == "a"


def test_what_one_vendor_says_is_left_is_not_believed_of_another_that_said_nothing() -> None:
    def used_up(request: WireRequest) -> Answer:
        left = {"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "30s"}
        return Answer([b"{}"], status=503, headers={"content-type": "application/json", **left})

    fleet = Fleet(a=used_up, b=[errors.ConnectionError("unreachable"), "from b"], c=["from c"] * 9)
    router = fleet.router()
    simulation = Simulation(fleet)
    assert simulate(simulation, router, "hi").text == "from c"
    simulation.now += 10  # both have rested from their failures
    assert simulate(simulation, router, "hi").text == "from b"
    assert fleet.asked == ["a", "b", "c", "b"]


def test_a_target_that_asks_for_rest_gets_it_from_every_request() -> None:
    fleet = Fleet(a=[errors.RateLimitError("slow down", retry_after=20.0), "back"], b=["from b"] * 9)
    router = fleet.router()
    simulation = Simulation(fleet)
    for _ in range(4):
        simulate(simulation, router, "hi")
    assert fleet.asked == ["a", "b", "b", "b", "b"]
    simulation.now = 21.0
    assert simulate(simulation, router, "hi").text == "back"


def test_the_only_target_is_waited_for_as_long_as_it_asks(drive: Driver) -> None:
    fleet = Fleet(a=[errors.RateLimitError("slow down", retry_after=0.3), "back"])
    outcome = drive.complete(fleet, make=fleet.make(retry=RetryConfig(throttle_delay=0.01)))
    assert outcome.ok.text == "back"
    assert outcome.seconds >= 0.3
    assert [attempt.reason for attempt in outcome.ok.route] == ["in order", "retry"]


def test_a_wait_that_does_not_fit_before_the_deadline_is_not_begun(drive: Driver) -> None:
    fleet = Fleet(a=[errors.RateLimitError("slow down", retry_after=30.0), "never"])
    outcome = drive.complete(fleet, AgentRequest(input="hi", deadline=5.0), make=fleet.make())
    assert isinstance(outcome.failed, errors.RoutingError)
    assert outcome.seconds < 2.0
    assert outcome.failed.retry_after == pytest.approx(30, abs=2)


# Zeal


def test_repeated_requests_of_all_callers_share_one_budget() -> None:
    """A thousand callers, two targets that always fail but never long enough to open a breaker."""
    flips = {"n": 0}

    def flaky(request: WireRequest) -> Answer:
        flips["n"] += 1
        return Script(busy())(request) if flips["n"] % 3 else answer_slowly(0.01)(request)

    fleet = Fleet(a=flaky, b=flaky)
    router = fleet.router()
    simulation = Simulation(fleet)
    runs = []
    for index in range(1000):
        simulation.at(index * 0.001, lambda: runs.append(start(simulation, router, "hi")))
    simulation.finish()
    free = 2 * 16  # switches to a target that is not yet known to fail
    assert len(fleet.asked) <= 1000 * 1.2 + 20 + 5 + free


def test_agents_keep_to_such_a_budget_by_themselves() -> None:
    never = RetryConfig(max_retries=2, throttle_delay=0.0, initial_delay=0.0)
    agent = scripted_agent(*[busy()] * 400, retry=never)
    sent = 0
    for _ in range(100):
        with pytest.raises(errors.OverloadedError) as caught:
            agent.complete("hi")
        sent += len(caught.value.attempts)
    assert sent <= 100 * 1.2 + 20 + 5


def test_a_probe_that_is_given_up_is_not_lost() -> None:
    fleet = Fleet(a=[busy()] * 10 + [Answer([], after=1e6)] + ["back"] * 9)
    router = fleet.router(retry=RetryConfig(max_retries=0))
    simulation = Simulation(fleet)
    for _ in range(10):
        with pytest.raises(errors.AgentError):
            simulate(simulation, router, "hi")
    breaker = router.targets[0].health.breaker
    assert breaker.state(simulation.now) == "open"
    simulation.now += 16
    run = start(simulation, router, "hi")
    while len(fleet.asked) < 11:
        assert simulation.step()
    simulation.cancel(run)
    assert breaker.state(simulation.now) == "half-open"
    assert simulate(simulation, router, "hi").text == "back"
    assert breaker.state(simulation.now) == "closed"


def test_our_own_lack_of_connections_is_nobodys_fault() -> None:
    fleet = Fleet(a=lambda request: Answer(failure=errors.PoolExhaustedError("no file handles")), b="never")
    router = fleet.router()
    simulation = Simulation(fleet)
    for _ in range(30):
        with pytest.raises(errors.PoolExhaustedError):
            simulate(simulation, router, "hi")
    assert router.targets[0].health.breaker.state(simulation.now) == "closed"
    assert set(fleet.asked) == {"a"}


def test_a_black_hole_is_found_out_though_deadlines_are_shorter_than_its_timeout() -> None:
    fleet = Fleet(hole=lambda request: Answer([], after=1e6), good=answer_slowly(0.1))
    router = fleet.router()
    simulation = Simulation(fleet)
    runs = []
    for index in range(30):
        simulation.at(index * 2.0, lambda: runs.append(start(simulation, router, "hi", deadline=8.0)))
    simulation.finish()
    assert sum(run.result is not None for run in runs[-10:]) >= 8, "only those that probe it are lost"


# Money


def _register_price(name: str, dollars: float) -> None:
    """Register a price per response of one token."""
    prices = Prices(input=0.0, output=dollars * 1_000_000)
    register_model(ModelFacts(provider="openai-chat", model=name, prices=prices, max_output=1))


ONE = AgentResponse(text="x", usage=Usage(prompt_tokens=5, completion_tokens=1))


def test_two_hundred_requests_at_once_on_a_budget_for_a_hundred_overspend_nothing() -> None:
    _register_price("dear", 1.0)
    fleet = Fleet(dear=lambda request: Answer(Script(ONE)(request).pieces, after=0.5, headers={}))
    router = fleet.router(spend=SpendLimit(dollars=100.0))
    simulation = Simulation(fleet)
    runs = [start(simulation, router, "hi") for _ in range(200)]
    simulation.finish()
    assert outcomes(runs) == {"ok": 100, "BudgetExceededError": 100}
    assert len(fleet.asked) == 100
    assert router.get_spend() == pytest.approx(100.0)


@pytest.mark.parametrize("face", ["threads", "tasks"])
def test_real_callers_overspend_nothing_either(face: str) -> None:
    _register_price("dear", 1.0)
    fleet = Fleet(dear=lambda request: Script(ONE)(request))
    with LoopbackServer(fleet) as server:
        router = fleet.router(server.url, spend=SpendLimit(dollars=20.0))
        results: list[str] = []

        def call() -> None:
            try:
                router.complete("hi")
                results.append("ok")
            except errors.BudgetExceededError:
                results.append("refused")

        async def acalls() -> None:
            done = await asyncio.gather(*(router.acomplete("hi") for _ in range(40)), return_exceptions=True)
            results.extend("ok" if isinstance(one, AgentResponse) else "refused" for one in done)
            assert all(isinstance(one, AgentResponse | errors.BudgetExceededError) for one in done)

        if face == "tasks":
            asyncio.run(acalls())
        else:
            threads = [threading.Thread(target=call) for _ in range(40)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert Counter(results) == {"ok": 20, "refused": 20}
        assert len(fleet.asked) == 20


def _register_long_answers(name: str, *, most: int) -> None:
    """Register a model at $1 per million tokens, with long answers if it wants to."""
    prices = Prices(input=0.0, output=1.0)
    register_model(ModelFacts(provider="openai-chat", model=name, prices=prices, max_output=most))


def _answers(lengths: Callable[[], int], seconds: float) -> Callable[[WireRequest], Answer]:
    def answer(request: WireRequest) -> Answer:
        usage = Usage(prompt_tokens=5, completion_tokens=lengths())
        return Answer(Script(AgentResponse(text="x", usage=usage))(request).pieces, after=seconds, headers={})

    return answer


@pytest.mark.parametrize("most", [16_384, 128_000, 1_000_000])
def test_five_hundred_parallel_calls_that_cost_little_are_all_answered(most: int) -> None:
    """Even if the longest answer of a single one would cost $1, five times the limit."""
    _register_long_answers("chatty", most=most)
    fleet = Fleet(chatty=_answers(lambda: 2, 0.5))
    router = fleet.router(spend=SpendLimit(dollars=0.2))
    simulation = Simulation(fleet)
    runs = [start(simulation, router, "hi") for _ in range(500)]
    simulation.finish()
    assert outcomes(runs) == {"ok": 500}
    assert router.get_spend() == pytest.approx(0.001)
    assert simulation.now < 30


def test_real_threads_wait_for_reservations_of_each_other() -> None:
    _register_long_answers("chatty", most=150_000)
    with LoopbackServer(fleet := Fleet(chatty=_answers(lambda: 2, 0.01))) as server:
        router = fleet.router(server.url, spend=SpendLimit(dollars=0.2))
        results: list[str | None] = []
        threads = [threading.Thread(target=lambda: results.append(router.complete("hi").text)) for _ in range(40)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert results == ["x"] * 40


def test_a_call_waits_for_reserved_money_no_longer_than_max_wait() -> None:
    _register_long_answers("slow", most=150_000)
    fleet = Fleet(slow=_answers(lambda: 2, 100.0))
    router = fleet.router(spend=[SpendLimit(dollars=0.2), SpendLimit(dollars=1.0, per="user")], max_wait=5.0)
    simulation = Simulation(fleet)
    runs = [start(simulation, router, "hi") for _ in range(3)]
    simulation.finish()
    assert outcomes(runs) == {"ok": 2, "BudgetExceededError": 1}
    error = next(run.error for run in runs if run.error is not None)
    assert "$0.2, $0.000000 is spent, $0.300000 is reserved for requests in flight" in str(error)
    assert "$0.000000 is available" in str(error)


@pytest.mark.parametrize("cases", [6, pytest.param(2000, marks=pytest.mark.soak)])
def test_a_limit_is_exceeded_by_the_excess_of_one_answer_at_most(cases: int, rng: random.Random) -> None:
    worst = max(_overspend(rng) for _ in range(cases))
    print(f"{cases} cases; at most {worst:.3f} of the excess that one answer may have")


def _overspend(rng: random.Random) -> float:
    """Send bursts of calls with answers of random lengths. Returns the part of one excess."""
    usual, most = rng.choice([10, 100, 1000]), rng.choice([2_000, 20_000, 200_000])
    _register_long_answers("moody", most=most)
    surprise_at = rng.randrange(400)
    fleet = Fleet(moody=_answers(lambda: 1, 0.0))

    def choose_length() -> int:
        return most if len(fleet.asked) == surprise_at else rng.randint(1, usual)

    fleet.vendors["moody"] = _answers(choose_length, rng.uniform(0.01, 2.0))
    dollars = rng.uniform(0.5, 300.0) * usual / 1e6 + rng.choice([0.0, most / 1e6])
    router = fleet.router(spend=SpendLimit(dollars=dollars), max_wait=rng.choice([0.5, 10.0]))
    simulation = Simulation(fleet)
    runs = []
    for _ in range(rng.randint(1, 4)):
        runs += [start(simulation, router, "hi") for _ in range(rng.choice([1, 20, 200]))]
        simulation.finish()
    refused = [run for run in runs if run.error is not None]
    assert all("is reserved for requests in flight" in str(run.error) for run in refused)
    longest = most if surprise_at <= len(fleet.asked) else usual
    excess = (router.get_spend() - dollars) * 1e6 / longest
    assert excess <= 1
    return excess


def test_a_limit_per_key_is_for_each_of_its_values() -> None:
    _register_price("dear", 1.0)
    fleet = Fleet(dear=[ONE] * 9)
    router = fleet.router(spend=[SpendLimit(dollars=2.0, per="user")])
    simulation = Simulation(fleet)
    for user in ("ada", "ada", "bob"):
        simulate(simulation, router, "hi", metadata={"user": user})
    with pytest.raises(errors.BudgetExceededError, match="user='ada'"):
        simulate(simulation, router, "hi", metadata={"user": "ada"})
    assert simulate(simulation, router, "hi", metadata={"user": "bob"}).text == "x"
    assert router.get_spend(0, "ada") == pytest.approx(2.0)


def test_when_money_runs_short_a_cheaper_target_is_asked() -> None:
    _register_price("dear", 1.0)
    _register_price("cheap", 0.1)
    fleet = Fleet(dear=[ONE] * 9, cheap=[ONE] * 9)
    router = fleet.router(spend=SpendLimit(dollars=2.5))
    simulation = Simulation(fleet)
    for _ in range(4):
        simulate(simulation, router, "hi")
    assert fleet.asked == ["dear", "dear", "cheap", "cheap"]
    excluded = router.explain("hi").excluded
    assert "limit of $2.5" in excluded["dear"]


def test_what_was_set_aside_and_not_spent_is_free_again() -> None:
    register_model(
        ModelFacts(provider="openai-chat", model="roomy", prices=Prices(input=0.0, output=1_000_000.0), max_output=10)
    )
    fleet = Fleet(roomy=[ONE] * 9)
    router = fleet.router(spend=SpendLimit(dollars=12.0))
    simulation = Simulation(fleet)
    for _ in range(3):
        simulate(simulation, router, "hi")
    assert router.get_spend() == pytest.approx(3.0)
    with pytest.raises(errors.BudgetExceededError):
        simulate(simulation, router, "hi")


def test_failures_cost_nothing_and_broken_streams_what_had_come() -> None:
    _register_price("dear", 1.0)
    register_model(
        ModelFacts(provider="openai-chat", model="dear", prices=Prices(input=0.0, output=1000.0), max_output=1000)
    )
    fleet = Fleet(dear=[busy(), broken("some", " words"), ONE])
    router = fleet.router(spend=SpendLimit(dollars=5.0), retry=RetryConfig(max_retries=0))
    simulation = Simulation(fleet)
    with pytest.raises(errors.RoutingError):
        simulate(simulation, router, "hi")
    assert router.get_spend() == 0.0
    with pytest.raises(errors.StreamInterrupted):
        simulate(simulation, router, "hi", streaming=True)
    assert 0 < router.get_spend() < 0.1


def test_a_target_without_a_price_is_not_asked_under_a_spend_limit_unless_allowed() -> None:
    fleet = Fleet(unpriced="x")
    with pytest.raises(errors.BudgetExceededError, match="unknown price under a spend limit"):
        simulate(Simulation(fleet), fleet.router(spend=SpendLimit(dollars=5.0)), "hi")
    lenient = fleet.router(spend=SpendLimit(dollars=5.0, unpriced="allow"))
    assert simulate(Simulation(fleet), lenient, "hi").text == "x"


# Many callers


def test_thirty_two_threads_share_a_router() -> None:
    from agent.testing import LoopbackServer

    calls = {"n": 0}

    def flaky(request: WireRequest) -> Answer:
        calls["n"] += 1
        return Script(busy())(request) if calls["n"] % 7 == 0 else Script("fine")(request)

    fleet = Fleet(a=flaky, b=lambda request: Script("fine")(request), c=lambda request: Script("fine")(request))
    with LoopbackServer(fleet) as server:
        router = fleet.router(server.url, strategy="round_robin")
        texts: list[str | None] = []

        def work() -> None:
            for _ in range(10):
                texts.append(router.complete("hi").text)

        threads = [threading.Thread(target=work) for _ in range(32)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert texts == ["fine"] * 320
        assert [target.in_flight for target in router.targets] == [0, 0, 0]


@pytest.mark.timing
def test_deadlines_hold_on_real_sockets_under_two_hundred_callers() -> None:
    import time

    from agent.testing import LoopbackServer

    fleet = Fleet(hole=lambda request: Answer([], after=60.0), other=lambda request: Answer([], after=60.0))

    async def call_all(router: Router) -> float:
        started = time.monotonic()
        with pytest.raises(errors.AgentError):
            await router.acomplete("hi", deadline=0.5)
        return time.monotonic() - started

    async def main(url: str) -> list[float]:
        router = fleet.router(url, hedge=None)
        return await asyncio.gather(*(call_all(router) for _ in range(200)))

    with LoopbackServer(fleet) as server:
        took = asyncio.run(main(server.url))
    assert max(took) - 0.5 <= max(0.1, _seconds_for_as_many_calls(200))


def _seconds_for_as_many_calls(count: int) -> float:
    """Seconds that this machine needs for so many calls: a lower bound for ending them."""
    import time

    from agent.testing import scripted_agent

    async def main() -> None:
        agent = scripted_agent()
        await asyncio.gather(*(agent.acomplete("hi") for _ in range(count)))

    began = time.monotonic()
    asyncio.run(main())
    return time.monotonic() - began
