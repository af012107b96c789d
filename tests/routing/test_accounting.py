"""One attempt per request, and totals that are the sums of the attempts, however a call ends."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from agent import Agent, RetryConfig, Router, errors, models
from agent.engine.wire import Answer, WireRequest
from agent.models import ModelFacts, Prices, register_model
from agent.testing import Script, Simulation, scripted_agent, simulate
from agent.types import AgentResponse, HedgeConfig
from tests.routing.fleet import Fleet, broken, busy
from tests.routing.test_strategies import answer_slowly
from tests.routing.world import Scenario, violations
from tests.support.cases import within_budget

WORDS = "one two three four five six"


@pytest.fixture(autouse=True)
def prices() -> Iterator[None]:
    for provider in ("openai-chat", "scripted"):
        for model in ("m", "a", "b", "c"):
            register_model(ModelFacts(provider=provider, model=model, prices=Prices(input=1.0, output=7.0)))
    yield
    models._registered.clear()
    models.facts.cache_clear()


def assert_adds_up(response: AgentResponse) -> None:
    assert response.route, "no attempts"
    usages = [attempt.usage for attempt in response.route if attempt.usage is not None]
    assert response.usage is not None
    assert response.usage.prompt_tokens == sum(usage.prompt_tokens for usage in usages)
    assert response.usage.completion_tokens == sum(usage.completion_tokens for usage in usages)
    costs = [attempt.cost for attempt in response.route if attempt.usage is not None]
    assert all(cost is not None for cost in costs)
    assert response.cost_estimate == pytest.approx(sum(cost for cost in costs if cost is not None), abs=1e-12)


def names(response: AgentResponse) -> list[tuple[str, str | None]]:
    return [(attempt.target, attempt.error) for attempt in response.route]


@pytest.mark.malformed
@pytest.mark.parametrize("part", range(2))
def test_attempts_and_totals_agree_in_simulated_scenarios(part: int) -> None:
    for seed in range(20_000 + part * 250, 20_250 + part * 250):
        assert not violations(Scenario.draw(seed)), seed


@pytest.mark.parametrize("streaming", [False, True])
def test_simultaneous_answers_of_an_async_race_are_recorded_once_each(streaming: bool) -> None:
    async def race() -> AgentResponse:
        router = Router([scripted_agent(WORDS, model=model) for model in "abc"], race=True)
        if streaming:
            return await router.astream("hi").collect()
        return await router.acomplete("hi")

    response = asyncio.run(race())
    assert sorted(attempt.target for attempt in response.route) == ["scripted:a", "scripted:b", "scripted:c"]
    assert sum(attempt.error is None for attempt in response.route) == 1
    assert_adds_up(response)


@pytest.mark.parametrize("targets", [2, 3, 5])
def test_a_race_sends_four_requests_at_most(targets: int) -> None:
    fleet = Fleet(**{f"t{number}": busy() for number in range(targets)})
    with pytest.raises(errors.AgentError) as caught:
        simulate(Simulation(fleet), fleet.router(race=True), "hi")
    assert len(fleet.asked) == len(caught.value.attempts) <= 4


def test_a_hedged_call_pays_for_both_requests() -> None:
    fleet = Fleet(a=answer_slowly(9.0), b=answer_slowly(0.1))
    response = simulate(Simulation(fleet), fleet.router(hedge=HedgeConfig(delay=0.5, max_share=1.0)), "hi")
    assert names(response) == [("a", "Cancelled"), ("b", None)]
    assert_adds_up(response)


def test_a_restarted_stream_pays_for_both_attempts() -> None:
    fleet = Fleet(a=broken("Hel", "lo"), b=WORDS)
    response = simulate(Simulation(fleet), fleet.router(on_partial="restart"), "hi", streaming=True)
    assert names(response) == [("a", "StreamInterrupted"), ("b", None)]
    assert_adds_up(response)


def _routers() -> dict[str, Any]:
    return {
        "one target": lambda: Router([scripted_agent(WORDS, model="a")]),
        "fallback": lambda: Router([scripted_agent(busy(), model="a"), scripted_agent(WORDS, model="b")]),
        "race": lambda: Router([scripted_agent(WORDS, model=model) for model in "abc"], race=True),
        "nested": lambda: Router([Router([scripted_agent(WORDS, model="a")], race=False)]),
        "agent": lambda: scripted_agent(WORDS, model="a"),
    }


@pytest.mark.parametrize("events", [1, 2, 4])
@pytest.mark.parametrize("kind", list(_routers()))
def test_an_abandoned_stream_has_its_attempts_and_their_sum(kind: str, events: int) -> None:
    with _routers()[kind]().stream("hi") as stream:
        for number, _ in enumerate(stream, 1):
            if number == events:
                break
    response = stream.response
    assert_adds_up(response)
    assert all(attempt.error is not None for attempt in response.route), "no attempt was answered in full"


@pytest.mark.parametrize("kind", list(_routers()))
def test_an_abandoned_async_stream_has_its_attempts_and_their_sum(kind: str) -> None:
    async def abandon() -> AgentResponse:
        async with _routers()[kind]().astream("hi") as stream:
            async for event in stream:
                if event.type == "text_delta":
                    break
        response: AgentResponse = stream.response
        return response

    assert_adds_up(asyncio.run(abandon()))


def test_an_aborted_stream_has_its_attempts_and_their_sum() -> None:
    router = Router([scripted_agent(busy(), model="a"), scripted_agent(WORDS, model="b", delay=0.05)])
    stream = router.stream("hi")
    with pytest.raises(errors.Aborted):
        for event in stream:
            if event.type == "text_delta":
                threading.Timer(0.0, stream.abort).start()
    assert names(stream.response) == [("scripted:a", "OverloadedError"), ("scripted:b", "Cancelled")]
    assert_adds_up(stream.response)


def test_the_partial_response_of_a_broken_stream_has_its_attempts_and_their_sum() -> None:
    fleet = Fleet(a=busy(), b=broken("Hel", "lo"))
    with pytest.raises(errors.StreamInterrupted) as caught:
        simulate(Simulation(fleet), fleet.router(), "hi", streaming=True)
    partial = caught.value.partial
    assert partial is not None
    assert names(partial) == [("a", "OverloadedError"), ("b", "StreamInterrupted")]
    assert partial.usage == partial.route[1].usage


def test_a_run_costs_what_its_attempts_cost() -> None:
    agent = scripted_agent(busy(), WORDS, model="a")
    assert_adds_up(agent.run("hi"))


OUTCOMES: list[Any] = [
    busy(), errors.RateLimitError("slow down"), errors.ConnectionError("reset"), errors.AuthenticationError("key"),
    errors.ContentFilterError("no"), broken("Hel", "lo"), broken(), "no JSON", '{"a": "wrong"}', '{"a": 1}', WORDS,
]  # fmt: skip


def _count_requests(rng: random.Random) -> tuple[int, int]:
    """Make one call of a random form against failing vendors. Returns its requests and the documented cap."""

    def answer(request: WireRequest) -> Answer:
        outcome = rng.choice(outcomes)
        answer = outcome if isinstance(outcome, Answer) else Script(outcome)(request)
        return replace(answer, after=rng.choice([0.0, 0.01, 0.5, 5.0]))

    outcomes = rng.choices(OUTCOMES, k=rng.randint(1, 4))
    fleet = Fleet(**{f"t{number}": answer for number in range(rng.randint(1, 6))})
    streaming, has_schema, retries = rng.random() < 0.4, rng.random() < 0.5, rng.randint(0, 5)
    retry = RetryConfig(max_retries=retries, initial_delay=0.01, budget=rng.choice([None, 0.2]))
    client: Agent | Router
    if rng.random() < 0.2:
        client = fleet.agent("t0", "http://127.0.0.1", retry=retry)
    else:
        client = fleet.router(
            retry=retry,
            race=rng.choice([False, False, True, 2, 3]),
            hedge=rng.choice([None, HedgeConfig(delay=0.05, max_share=1.0)]),
            on_partial=rng.choice(["raise", "restart", "continue"]),
            on_content_filter=rng.choice(["raise", "fallback"]),
            max_wait=20.0,
        )
        if rng.random() < 0.2:
            client = Router([client, fleet.router(retry=retry)], retry=retry)
    options: dict[str, Any] = (
        {"output_schema": {"type": "object", "properties": {"a": {"type": "integer"}}}} if has_schema else {}
    )
    with suppress(errors.AgentError):
        simulate(Simulation(fleet), client, "hi", streaming=streaming, **options)
    return len(fleet.asked), (1 + retries) * (3 if has_schema and not streaming else 1)


@pytest.mark.parametrize("cases", [300, pytest.param(50_000, marks=pytest.mark.soak)])
def test_a_call_never_sends_more_requests_than_documented(cases: int, rng: random.Random) -> None:
    """However races, hedges, restarts, retries, fallbacks and corrections of structured output combine."""
    worst = 0.0
    for case in within_budget(range(cases)):
        before = rng.getstate()
        sent, cap = _count_requests(rng)
        assert sent <= cap, f"case {case}: {sent} requests, at most {cap} are documented; {before[1][:3]}"
        worst = max(worst, sent / cap)
    print(f"the most requests were {worst:.0%} of the cap")
