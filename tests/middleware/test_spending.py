"""CostTracker: sums by target and metadata, including failures, and budgets."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from agent import AgentResponse, RetryConfig, Router, Target, Usage, errors, models
from agent.engine.wire import Answer
from agent.middleware import Cache, CostTracker
from agent.models import ModelFacts, Prices, register_model
from agent.testing import Script, scripted_agent
from agent.types import ToolCall
from agent.types._base import FrozenList
from tests.middleware.spies import plain_agent
from tests.support.drivers import Driver


@pytest.fixture(autouse=True)
def _prices() -> Iterator[None]:
    """A dollar for each token of `dear`."""
    before = dict(models._registered)
    for provider in ("scripted", "openai-chat"):
        model = "dear" if provider == "scripted" else "test-model"
        register_model(ModelFacts(provider=provider, model=model, prices=Prices(input=1e6, output=1e6)))
    yield
    models._registered.clear()
    models._registered.update(before)


def line(tokens: int) -> AgentResponse:
    return AgentResponse(text="ok", usage=Usage(prompt_tokens=tokens, completion_tokens=0))


def test_calls_are_added_up_under_every_driver(drive: Driver) -> None:
    tracker = CostTracker()
    for ask in (drive.complete, drive.stream):
        assert ask(Script(line(5)), make=lambda url: plain_agent(url, [tracker])).ok.text == "ok"
    assert (tracker.total.calls, tracker.total.cost, tracker.total.usage.prompt_tokens) == (2, 10.0, 10)
    assert list(tracker.by_target()) == ["openai-chat:test-model"]


def test_each_target_of_a_router_has_its_own_sum() -> None:
    tracker = CostTracker()
    router = Router(
        [
            Target(scripted_agent(line(2), line(3), model="dear"), name="a"),
            Target(scripted_agent(line(7), line(7), model="other"), name="b"),
        ],
        strategy="round_robin",
        middleware=[tracker],
    )
    for _ in range(4):
        router.complete("hi")
    assert {name: (one.calls, one.cost, one.unpriced) for name, one in tracker.by_target().items()} == {
        "a": (2, 5.0, 0),
        "b": (2, None, 2),
    }
    total = tracker.total
    assert (total.calls, total.cost, total.known_cost, total.unpriced) == (4, None, 5.0, 2)
    assert tracker.get_spend() == 5.0


def test_each_customer_has_their_own_sum() -> None:
    tracker = CostTracker(per="user")
    agent = scripted_agent(line(1), line(2), line(4), line(8), line(16), model="dear", middleware=[tracker])
    users: list[Any] = ["amy", "bob", "amy", None, ["odd"]]
    for user in users:
        agent.complete("hi", metadata={} if user is None else {"user": user})
    found = {key: one.cost for key, one in tracker.by_value().items()}
    assert found == {"amy": 5.0, "bob": 2.0, None: 8.0, FrozenList(["odd"]): 16.0}
    assert (tracker.get_spend("amy"), tracker.get_spend("carl")) == (5.0, 0.0)


def test_what_failed_and_was_paid_for_counts() -> None:
    data = b'{"choices":[{"index":0,"delta":{"content":"Hel"}}],"usage":{"prompt_tokens":5,"completion_tokens":1}}'
    tracker = CostTracker()
    agent = scripted_agent(Answer([b"data: " + data + b"\n\n"]), model="dear", middleware=[tracker])
    with pytest.raises(errors.StreamInterrupted):
        agent.stream("hi").collect()
    assert tracker.total.cost == 6.0


def test_every_attempt_counts_once() -> None:
    tracker = CostTracker()
    lines: list[Any] = [errors.OverloadedError("busy"), {"n": "x"}, {"n": 3}]
    agent = scripted_agent(*lines, model="dear", middleware=[tracker], retry=RetryConfig(initial_delay=0.0))
    response = agent.json("hi", schema={"type": "object", "properties": {"n": {"type": "integer"}}})
    assert response.output == {"n": 3}
    assert tracker.total.calls == 1
    assert tracker.by_target()["scripted:dear"].calls == 3
    assert tracker.total.cost == response.cost_estimate


def test_a_kept_answer_costs_nothing() -> None:
    tracker = CostTracker()
    agent = scripted_agent(line(5), model="dear", middleware=[tracker, Cache()])
    for _ in range(3):
        agent.complete("hi")
    assert (tracker.total.calls, tracker.total.cost) == (1, 5.0)


def test_a_kept_answer_of_an_agent_costs_its_router_nothing() -> None:
    tracker = CostTracker()
    agent = scripted_agent(line(5), model="dear", middleware=[Cache()])
    router = Router([agent], middleware=[tracker])
    for _ in range(3):
        router.complete("hi")
    assert (tracker.total.calls, tracker.total.cost) == (1, 5.0)


def test_when_the_budget_is_spent_nothing_is_sent(drive: Driver) -> None:
    tracker = CostTracker(budget=8.0)
    script = Script(*[line(5)] * 4)
    outcomes = [drive.complete(script, make=lambda url: plain_agent(url, [tracker])) for _ in range(3)]
    assert [outcome.error is None for outcome in outcomes] == [True, True, False]
    assert isinstance(outcomes[2].failed, errors.BudgetExceededError)
    assert "The budget is spent: $10.000000 of $8" in outcomes[2].failed.message
    assert not outcomes[2].failed.retryable
    assert len(script.requests) == 2
    tracker.reset()
    assert drive.complete(script, make=lambda url: plain_agent(url, [tracker])).ok.text == "ok"
    assert (tracker.total.cost, len(tracker.by_target())) == (5.0, 1)


def test_each_customer_has_a_budget() -> None:
    tracker = CostTracker(budget=4.0, per="user")
    agent = scripted_agent(*[line(5)] * 3, model="dear", middleware=[tracker])
    agent.complete("hi", metadata={"user": "amy"})
    with pytest.raises(errors.BudgetExceededError, match="of user='amy' is spent"):
        agent.complete("hi", metadata={"user": "amy"})
    agent.complete("hi", metadata={"user": "bob"})
    agent.complete("hi")
    assert {key: one.calls for key, one in tracker.by_value().items()} == {"amy": 1, "bob": 1, None: 1}


def test_a_router_goes_elsewhere_when_one_agents_budget_is_spent() -> None:
    first = scripted_agent(line(5), model="dear", middleware=[CostTracker(budget=1.0)])
    router = Router([first, scripted_agent("b", model="b")])
    assert [router.complete("hi").text for _ in range(2)] == ["ok", "b"]


def test_threads_lose_nothing() -> None:
    tracker = CostTracker(per="user")
    agent = scripted_agent(*[line(1)] * 200, model="dear", middleware=[tracker])

    def work() -> None:
        for _ in range(25):
            agent.complete("hi", metadata={"user": "amy"})

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (tracker.total.calls, tracker.total.cost, tracker.get_spend("amy")) == (200, 200.0, 200.0)


def test_a_budget_of_nothing_is_refused() -> None:
    with pytest.raises(errors.ConfigurationError, match="The budget is 0"):
        CostTracker(budget=0)


def test_calls_of_tools_are_counted_as_calls() -> None:
    tracker = CostTracker()
    agent = scripted_agent(ToolCall(id="1", name="f"), model="dear", middleware=[tracker])
    assert agent.complete("hi").has_tool_calls
    assert tracker.total.known_cost > 0
