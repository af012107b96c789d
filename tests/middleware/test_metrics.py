"""Metrics: each call is counted once, per target, from any thread."""

from __future__ import annotations

import multiprocessing
import os
import threading
from typing import Any

import pytest

from agent import AgentResponse, RetryConfig, Router, Usage, errors
from agent.engine.context import Context, TurnRef
from agent.engine.wire import Answer, Piece
from agent.middleware import Cache, CallMetrics, Histogram, Metrics
from agent.testing import Script, Simulation, scripted_agent, simulate
from tests.middleware.spies import Spy, plain_agent
from tests.support.drivers import Driver


def test_calls_streams_failures_and_reasons_are_counted(drive: Driver) -> None:
    metrics = Metrics()
    script = Script("one two", "three", errors.BadRequestError("no"), errors.RateLimitError("slow"), "four")

    def make(url: str) -> Any:
        return plain_agent(url, [metrics])

    for ask in (drive.complete, drive.stream, drive.complete, drive.stream, drive.stream):
        ask(script, make=make)
    (target,) = metrics.snapshot().values()
    assert (target.calls, target.streams, target.attempts, target.unsent) == (5, 3, 5, 0)
    assert target.failures == {"BadRequestError": 1, "RateLimitError": 1}
    assert target.stop_reasons == {"stop": 3}
    assert (target.seconds.count, target.first_event.count, target.completion_tokens.count) == (5, 2, 3)
    assert target.completion_tokens.sum == 4


def test_times_are_those_of_the_call_in_virtual_time_too() -> None:
    records: list[CallMetrics] = []
    pieces = Script("one two")
    simulation = Simulation(lambda request: _delay(pieces(request), 2.0))
    agent = scripted_agent(middleware=[Metrics(records.append)])
    simulate(simulation, agent, "hi", streaming=True)
    (record,) = records
    assert record.first_event == 4.0  # the first piece says who answers, and waits for what it says
    assert record.seconds == simulation.now
    assert record.seconds > 4.0


def _delay(answer: Answer, seconds: float) -> Answer:
    return Answer([Piece(piece.outcome, seconds) for piece in answer.iter_pieces()], headers=answer.headers)


def test_a_record_says_what_became_of_a_call() -> None:
    records: list[CallMetrics] = []
    line = AgentResponse(text="ok", usage=Usage(prompt_tokens=4, completion_tokens=2, billed=0.5))
    retry = RetryConfig(max_retries=1, initial_delay=0.0)
    agent = scripted_agent(errors.OverloadedError("busy"), line, middleware=[Metrics(records.append)], retry=retry)
    simulation = Simulation(Script(errors.OverloadedError("busy"), line))
    place = TurnRef("r", 1)
    simulation.run(agent.call_flow("hi", streaming=False, context=Context(run=place)))
    (record,) = records
    assert (record.target, record.streaming, record.attempts, record.stop_reason, record.error) == (
        "scripted:script", False, 2, "stop", None,
    )  # fmt: skip
    assert record.usage is not None
    assert (record.usage.prompt_tokens, record.run) == (4, place)


def test_what_was_not_sent_is_counted_apart() -> None:
    metrics = Metrics()
    agent = scripted_agent("ok", middleware=[metrics, Cache()])
    for _ in range(3):
        agent.complete("hi")
    (target,) = metrics.snapshot().values()
    assert (target.calls, target.unsent, target.attempts, target.prompt_tokens.count) == (3, 2, 1, 1)


def test_a_router_and_its_agents_count_for_themselves() -> None:
    outer, inner = Metrics(), Metrics()
    first = scripted_agent(errors.OverloadedError("busy"), model="a", middleware=[inner])
    second = scripted_agent("ok", model="b", middleware=[inner])
    Router([first, second], middleware=[outer], name="chat").complete("hi")
    assert {name: (one.calls, one.attempts) for name, one in outer.snapshot().items()} == {"chat": (1, 2)}
    assert {name: dict(one.failures) for name, one in inner.snapshot().items()} == {
        "scripted:a": {"OverloadedError": 1},
        "scripted:b": {},
    }


def test_a_snapshot_stays_as_it_is_and_a_reset_begins_anew() -> None:
    metrics = Metrics()
    agent = scripted_agent("1", "2", middleware=[metrics])
    agent.complete("hi")
    early = metrics.snapshot()
    agent.complete("hi")
    assert [one.calls for one in early.values()] == [1]
    assert [one.calls for one in metrics.reset().values()] == [2]
    assert metrics.snapshot() == {}


def test_a_listener_that_fails_fails_no_call(caplog: pytest.LogCaptureFixture) -> None:
    def fail(record: CallMetrics) -> None:
        raise RuntimeError("exporter down")

    assert scripted_agent("ok", middleware=[Metrics(fail)]).complete("hi").text == "ok"
    assert "on_call of Metrics failed" in caplog.text


def test_threads_lose_nothing() -> None:
    metrics = Metrics()
    agent = scripted_agent(*["ok"] * 200, middleware=[metrics])
    threads = [threading.Thread(target=lambda: [agent.complete("hi") for _ in range(25)]) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (target,) = metrics.snapshot().values()
    assert (target.calls, target.seconds.count, sum(target.seconds.counts)) == (200, 200, 200)


def test_a_histogram_counts_each_value_once() -> None:
    histogram = Histogram((1.0, 2.0))
    assert histogram.quantile(0.5) is None
    for value in (0.5, 1.0, 1.5, 2.0, 9.0, None):
        histogram.add(value)
    assert histogram == Histogram((1.0, 2.0), [2, 2, 1], 5, 14.0)
    assert [histogram.quantile(part) for part in (0.1, 0.4, 0.8, 1.0)] == [1.0, 1.0, 2.0, float("inf")]


def test_an_error_that_is_replaced_further_out_is_counted_as_it_was() -> None:
    metrics = Metrics()
    outer = Spy("A", [], on_error=lambda error, call: AgentResponse(text="Sorry."))
    agent = scripted_agent(errors.BadRequestError("no"), middleware=[outer, metrics])
    assert agent.complete("hi").text == "Sorry."
    (target,) = metrics.snapshot().values()
    assert target.failures == {"BadRequestError": 1}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_child_process_finds_the_numbers_free_to_change() -> None:
    """Also if another thread of its parent was just changing them."""
    metrics = Metrics()
    agent = scripted_agent("1", middleware=[metrics])

    def child() -> None:
        agent.complete("hi")
        os._exit(len(metrics.snapshot()) - 1)

    with metrics._lock:
        process = multiprocessing.get_context("fork").Process(target=child)
        process.start()
    process.join(30)
    assert process.exitcode == 0
