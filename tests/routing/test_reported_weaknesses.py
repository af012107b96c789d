"""Regression tests for weaknesses that users of other routers reported."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from agent import RetryConfig, Router, errors
from agent.engine.wire import Answer, WireRequest
from agent.routing.health import MAX_OBSERVATIONS, Timings
from agent.testing import Script, Simulation, scripted_agent, simulate
from agent.types import AgentRequest, BreakerConfig
from agent.types.options import RouteOptions
from tests.routing.fleet import Fleet, broken, busy
from tests.routing.test_strategies import answer_slowly, tally
from tests.support.drivers import Driver

ONCE = RetryConfig(max_retries=0)


def test_a_host_that_is_down_leaves_the_rotation() -> None:
    fleet = Fleet(dead=lambda request: Answer(failure=errors.ConnectionError("refused")), alive=answer_slowly(0))
    router = fleet.router()
    simulation = Simulation(fleet)
    tally(simulation, router, fleet, 12)
    assert tally(simulation, router, fleet, 100) == {"alive": 100}


def test_a_breaker_that_opens_at_the_first_failure_does() -> None:
    fleet = Fleet(a=[busy(), "never"], b=["from b"] * 9)
    router = fleet.router(breaker=BreakerConfig(window=1, min_samples=1))
    simulation = Simulation(fleet)
    assert tally(simulation, router, fleet, 4) == {"a": 1, "b": 4}


def test_a_breaker_can_be_turned_off() -> None:
    fleet = Fleet(a=[busy()] * 40)
    router = fleet.router(breaker=False, retry=ONCE)
    simulation = Simulation(fleet)
    for _ in range(40):
        with pytest.raises(errors.RoutingError):
            simulate(simulation, router, "hi")
    assert router.targets[0].health.breaker.opened_at is None


def test_what_is_told_is_the_rest_that_is_left_and_not_the_one_that_was_asked_for() -> None:
    fleet = Fleet(a=[errors.RateLimitError("slow down", retry_after=100.0), "never"])
    router = fleet.router(retry=ONCE)
    simulation = Simulation(fleet)
    with pytest.raises(errors.RoutingError):
        simulate(simulation, router, "hi")
    simulation.now += 30
    with pytest.raises(errors.RoutingError) as caught:
        simulate(simulation, router, "hi")
    assert caught.value.retry_after == pytest.approx(70, abs=1)


def test_a_second_shorter_rest_does_not_shorten_the_first() -> None:
    router = Fleet(a="x").router()
    parking = router.targets[0].health.cooldown
    parking.extend(100.0, "long")
    parking.extend(10.0, "short")
    assert parking.seconds_left(0.0) == 100.0


def test_the_wait_is_that_of_the_latest_failure() -> None:
    hints = [errors.RateLimitError("slow", retry_after=5.0), errors.RateLimitError("slower", retry_after=20.0), "here"]
    fleet = Fleet(a=hints)
    simulation = Simulation(fleet)
    response = simulate(simulation, fleet.router(retry=RetryConfig(max_retries=3, jitter=False)), "hi")
    waits = [attempt.waited for attempt in response.route]
    assert waits[0] is None
    assert waits[1] == pytest.approx(5.0, abs=0.1)
    assert waits[2] == pytest.approx(20.0, abs=0.1)


def test_a_wrong_request_leaves_no_mark_on_the_target(drive: Driver) -> None:
    fleet = Fleet(a=[errors.BadRequestError("no")] * 30 + ["fine"])
    routers: list[Router] = []

    def make(base_url: str) -> Router:
        if not routers:
            routers.append(fleet.router(base_url, breaker=BreakerConfig(window=3, min_samples=1)))
        return routers[0]

    for _ in range(30):
        assert isinstance(drive.complete(fleet, make=make).failed, errors.BadRequestError)
    assert routers[0].targets[0].health.breaker.opened_at is None


def test_the_only_target_is_never_shut_out_for_good() -> None:
    fleet = Fleet(a=[busy()] * 30 + ["back"] * 9)
    router = fleet.router(retry=ONCE)
    simulation = Simulation(fleet)
    for _ in range(30):
        with pytest.raises(errors.RoutingError):
            simulate(simulation, router, "hi")
    assert len(fleet.asked) == 30, "each call was admitted once, without other targets"
    assert simulate(simulation, router, "hi").text == "back"


def test_all_failures_of_a_race_are_told() -> None:
    fleet = Fleet(a=errors.AuthenticationError("bad key"), b=errors.ModelNotFoundError("no such model"))
    with pytest.raises(errors.RoutingError) as caught:
        simulate(Simulation(fleet), fleet.router(race=True), "hi")
    assert {type(error) for error in caught.value.errors} == {errors.AuthenticationError, errors.ModelNotFoundError}


def test_the_winner_of_a_race_is_the_first_to_say_something_and_not_the_first_to_pick_up() -> None:
    quick_headers = Answer([b": ping\n\n"] * 3 + [b""], after=0.01)

    def picks_up_and_thinks(request: WireRequest) -> Answer:
        good = Script("slow thinker", delay=0.0)(request)
        from agent.engine.wire import Piece

        return Answer([*quick_headers.pieces, Piece(b": ping\n\n", 5.0), *good.pieces], headers=good.headers)

    fleet = Fleet(a=picks_up_and_thinks, b=answer_slowly(0.5, "quick talker"))
    simulation = Simulation(fleet)
    assert simulate(simulation, fleet.router(race=True), "hi", streaming=True).text == "quick talker"


def test_a_broken_stream_keeps_its_cause_and_its_usage(drive: Driver) -> None:
    fleet = Fleet(a=broken("Hel", "lo"))
    error = drive.stream(fleet, make=fleet.make()).failed
    assert isinstance(error, errors.StreamInterrupted)
    assert isinstance(error.__cause__, errors.AgentError)
    assert error.partial is not None
    assert error.partial.usage is not None
    assert error.partial.usage.completion_tokens > 0


def test_a_stream_that_breaks_late_is_no_success_for_the_breaker() -> None:
    fleet = Fleet(a=[broken("word")] * 10 + ["never"], b=["fine"] * 20)
    router = fleet.router(retry=ONCE, breaker=BreakerConfig(degraded_threshold=1.0))
    simulation = Simulation(fleet)
    for _ in range(10):
        with pytest.raises(errors.StreamInterrupted):
            simulate(simulation, router, "hi", streaming=True)
    assert router.targets[0].health.breaker.state(simulation.now) == "open"
    assert simulate(simulation, router, "hi").text == "fine"


def test_only_the_latest_answers_say_how_fast_a_target_is() -> None:
    timings = Timings()
    for _ in range(MAX_OBSERVATIONS):
        timings.observe(0.0, 100.0, None, 10)
    for _ in range(MAX_OBSERVATIONS):
        timings.observe(0.0, 1.0, None, 10)
    assert timings.estimate_seconds(0.0, streaming=False) == pytest.approx(1.0)


def test_answers_without_tokens_are_no_trouble() -> None:
    timings = Timings()
    timings.observe(0.0, 2.0, 0.5, 0)
    assert timings.estimate_seconds(0.0, streaming=True) == pytest.approx(0.5)
    assert timings.estimate_seconds(0.0, streaming=False) is not None


def test_what_the_request_says_of_time_counts_before_what_the_router_says() -> None:
    fleet = Fleet(a=answer_slowly(10.0))
    simulation = Simulation(fleet)
    router = fleet.router(deadline=2.0)
    with pytest.raises(errors.TimeoutError):
        simulate(simulation, router, "hi")
    assert simulation.now == pytest.approx(2.0)
    assert simulate(simulation, router, "hi", deadline=20.0).text == "fine"


def test_a_targets_own_time_limit_counts_for_its_attempt_alone() -> None:
    fleet = Fleet(a=answer_slowly(10.0), b=answer_slowly(0.5))
    response = simulate(Simulation(fleet), fleet.router(each={"a": {"timeout": 3.0}}), "hi")
    assert [(attempt.target, attempt.error) for attempt in response.route] == [("a", "TimeoutError"), ("b", None)]


def test_no_error_of_a_router_quotes_a_key(drive: Driver) -> None:
    def tattler(request: WireRequest) -> Answer:
        return Answer([request.headers[-1][1] + b' {"error": {"message": "bad key sk-a"}}'], status=401)

    fleet = Fleet(a=tattler, b=tattler)
    keys = {"a": {"api_key": "sk-very-secret-a"}, "b": {"api_key": "sk-very-secret-b"}}
    error = drive.complete(fleet, make=fleet.make(each=keys)).failed
    for told in (str(error), repr(error), str(error.attempts), *(str(one) for one in _list_errors(error))):
        assert "very-secret" not in told


def _list_errors(error: errors.AgentError) -> Any:
    assert isinstance(error, errors.RoutingError)
    return error.errors


def test_a_request_can_have_no_fallback_at_all(drive: Driver) -> None:
    fleet = Fleet(a=busy(), b="never")
    make = lambda base_url: fleet.router(base_url).with_config(only=["a"], retry=ONCE)  # noqa: E731
    assert isinstance(drive.complete(fleet, make=make).failed, errors.RoutingError)
    assert fleet.asked == ["a"]


def test_what_one_request_wants_counts_before_what_the_router_is_set_to() -> None:
    router = Router([scripted_agent("a", model="a"), scripted_agent("b", model="b")], strategy="fallback")
    backwards: RouteOptions = {"strategy": lambda request, targets: targets[::-1]}
    assert router.complete("hi", route=backwards).text == "b"
    assert router.explain("hi").order == ["scripted:a", "scripted:b"]


def test_requests_can_be_sent_by_their_labels() -> None:
    """Tags, as others call it: a function of three lines."""

    def by_tag(request: AgentRequest, targets: Any) -> Any:
        return [target for target in targets if target.name in request.metadata.get("tags", ())]

    router = Fleet(eu="x", us="y").router(strategy=by_tag)
    assert router.explain("hi", metadata={"tags": ["eu"]}).order == ["eu"]


def test_a_dead_key_is_not_asked_about_by_everybody() -> None:
    fleet = Fleet(a=[errors.AuthenticationError("no")] * 99, b=answer_slowly(0))
    counted = tally(Simulation(fleet), fleet.router(), fleet, 50)
    assert counted == Counter({"b": 50, "a": 1})
