"""The simulated driver itself: the same seed gives the same run, and it notices what is wrong."""

from __future__ import annotations

import random
from typing import Any

import pytest

from agent import errors
from agent.engine.drivers.simulated import SimulatedTool, Simulation, Stopped
from agent.engine.flow import AnyEffect, Emit, Flow, Invoke, Open, Read, Send, Sleep, Spawn, Wait
from agent.engine.wire import Limits, WireRequest
from agent.testing import Answer, Piece, simulate
from agent.types import RetryConfig, StreamEvent
from tests.engine.play import END, error_reply, never, sse, stall, token, tokens, whole
from tests.support.drivers import make_agent


def flaky(seed: int) -> Any:
    chance = random.Random(seed)

    def network(request: WireRequest) -> Answer:
        roll = chance.random()
        return error_reply(503) if roll < 0.4 else stall() if roll < 0.5 else tokens(4, chance.random())

    return network


def call(simulation: Simulation) -> str:
    retry = RetryConfig(max_retries=3, initial_delay=1.0)
    agent = make_agent({"retry": retry, "base_url": "http://127.0.0.1/v1", "idle_timeout": 20})
    try:
        return simulate(simulation, agent, "hi", streaming=True, deadline=600).text or ""
    except errors.AgentError as error:
        return type(error).__name__


def test_the_same_seed_gives_the_same_log() -> None:
    for seed in range(30):
        first, second = (Simulation(flaky(seed), seed=seed) for _ in range(2))
        assert (call(first), first.log, first.now) == (call(second), second.log, second.now)


def busy_flow() -> Flow[list[int]]:
    order: list[int] = []

    def child(number: int) -> Flow[None]:
        yield from Sleep(1)
        order.append(number)

    branches = []
    for number in range(6):
        branches.append((yield from Spawn(child(number))))
    for _ in branches:
        yield from Wait(branches)
    return order


def test_other_seeds_give_other_orders() -> None:
    orders = {tuple(Simulation(lambda request: whole(), seed=seed).run(busy_flow())) for seed in range(20)}
    assert len(orders) > 10
    same = {tuple(Simulation(lambda request: whole(), seed=7).run(busy_flow())) for _ in range(5)}
    assert len(same) == 1


def test_an_hour_passes_at_once() -> None:
    simulation = Simulation(lambda request: whole(), now=100.0)

    def flow() -> Flow[None]:
        yield from Sleep(3600)

    simulation.run(flow())
    assert simulation.now == 3700.0


def test_faults_can_be_injected_before_any_effect() -> None:
    broken: list[str] = []

    def second_read_breaks(simulation: Simulation, effect: AnyEffect) -> Exception | None:
        if isinstance(effect, Read):
            broken.append("read")
        return errors.ConnectionError("injected") if len(broken) == 2 and isinstance(effect, Read) else None

    simulation = Simulation(lambda request: tokens(3), fault=second_read_breaks)
    agent = make_agent({"base_url": "http://127.0.0.1/v1"})
    with pytest.raises(errors.StreamInterrupted, match="injected"):
        simulate(simulation, agent, "hi", streaming=True)
    assert simulation.open_bodies == 0


def test_a_run_abandoned_at_any_step_leaves_no_open_body() -> None:
    """As a consumer who may leave at any moment."""

    def network(request: WireRequest) -> Answer:
        return error_reply(503) if len(simulation.requests) == 1 else tokens(3, 0.1)

    steps = 0
    while True:
        simulation = Simulation(network, stop_at=steps)
        try:
            assert call(simulation) == "t0 t1 t2 "
            break
        except Stopped:
            assert simulation.open_bodies == 0, f"abandoned at step {steps}"
        steps += 1
    assert steps > 15


def test_a_race_abandoned_at_any_step_leaves_no_open_body() -> None:
    def contestant() -> Flow[str]:
        with (yield from Open(WireRequest("http://x/", (), b""), Limits())) as body:
            while chunk := (yield from Read(body)):
                yield Emit([StreamEvent.text_delta(chunk.decode())])
        return "end"

    def flow() -> Flow[Any]:
        branches = []
        for _ in range(3):
            branches.append((yield from Spawn(contestant(), pause=True)))
        event = yield from Wait(branches)
        return (yield from event.rest)  # type: ignore[union-attr]

    steps = 0
    while True:
        simulation = Simulation(lambda request: tokens(3, 0.1), seed=steps, stop_at=steps)
        try:
            simulation.run(flow())
            break
        except Stopped:
            assert simulation.open_bodies == 0, f"abandoned at step {steps}"
        steps += 1
    assert steps > 10


def test_a_flow_that_waits_for_what_cannot_come_is_found_out() -> None:
    def flow() -> Flow[None]:
        yield from Wait([])

    with pytest.raises(AssertionError, match="deadlock"):
        Simulation(lambda request: whole()).run(flow())


def test_a_body_held_while_sleeping_is_noticed() -> None:
    def flow() -> Flow[None]:
        body = yield from Open(WireRequest("http://x/", (), b""), Limits())
        yield from Sleep(1)
        yield from Read(body)

    simulation = Simulation(lambda request: tokens(1))
    simulation.run(flow())
    assert simulation.open_bodies_while_sleeping == 1
    assert simulation.open_bodies == 0


def test_an_answer_that_comes_after_its_time_is_closed() -> None:
    def flow() -> Flow[str]:
        try:
            yield from Open(WireRequest("http://x/", (), b""), Limits(first_byte=1.0))
        except errors.TimeoutError:
            yield from Sleep(100)
        return "later"

    simulation = Simulation(lambda request: never())
    assert simulation.run(flow()) == "later"
    assert (simulation.now, simulation.open_bodies) == (101.0, 0)


def test_an_empty_piece_is_a_pause_as_it_is_on_a_socket() -> None:
    simulation = Simulation(lambda request: sse(token("a"), Piece(b"", 5), token("b"), Piece(END, 1)))
    agent = make_agent({"base_url": "http://127.0.0.1/v1"})
    assert simulate(simulation, agent, "hi", streaming=True).text == "ab"
    assert simulation.now == 6.0


def test_user_code_that_waits_for_real_time_is_an_error() -> None:
    import asyncio

    def flow() -> Flow[None]:
        yield from Invoke(asyncio.sleep, (1,))

    with pytest.raises((AssertionError, RuntimeError)):
        Simulation(lambda request: whole()).run(flow())


def test_a_simulated_tool_takes_virtual_time_and_may_fail() -> None:
    def flow() -> Flow[str]:
        first: str = yield from Invoke(SimulatedTool("done", after=50))
        try:
            yield from Invoke(SimulatedTool(ValueError("no"), after=5))
        except ValueError:
            return first
        return "it did not fail"

    simulation = Simulation(lambda request: whole())
    assert simulation.run(flow()) == "done"
    assert simulation.now == 55.0
    with pytest.raises(AssertionError, match="only the simulated driver"):
        SimulatedTool("x")()


def test_the_deadline_is_exact_to_the_last_digit() -> None:
    def flow() -> Flow[None]:
        yield from Send(WireRequest("http://x/", (), b""), Limits())

    simulation = Simulation(lambda request: never())
    with pytest.raises(errors.TimeoutError) as caught:
        simulation.run(flow(), deadline=0.7)
    assert caught.value.deadline
    assert simulation.now == 0.7
