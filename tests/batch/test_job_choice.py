"""`batch(..., deadline="24h")` uses the vendor's batch API if it is cheaper."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from pydantic import BaseModel

from agent import Agent, Router, errors
from agent.batch import BatchResult
from agent.middleware import Logging
from agent.testing import scripted_agent
from agent.types import SpendLimit
from tests.batch.job_desk import CREATE, FORMS, Desk, desk
from tests.batch.vendors import VendorServer, reply

__all__ = ["desk"]


class City(BaseModel):
    name: str


@pytest.fixture(params=["sync", "async"])
def run(request: pytest.FixtureRequest, desk: Desk, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("AGENT_HOME", str(desk.folder))

    def run_batch(client: Agent | Router, requests: Any, **options: Any) -> BatchResult[Any]:
        if request.param == "sync":
            return client.batch(requests, deadline="24h", **options)
        return asyncio.run(client.abatch(requests, deadline="24h", **options))

    return run_batch


def end_at_once(desk: Desk) -> None:
    desk.vendor.fail = lambda call: desk.vendor.end() if call in CREATE else None


@pytest.mark.parametrize("target", FORMS)
def test_a_router_uses_the_batch_api_of_its_first_choice(target: str, desk: Desk, run: Any) -> None:
    end_at_once(desk)
    router = Router([desk.agent(target), scripted_agent("unused")])
    result = run(router, ["one", "two"], temperature=0.5, schema=City)
    assert all(isinstance(item.unwrap().output, City) for item in result)
    assert desk.count(*CREATE) == 1
    assert [item.request for item in result] == ["one", "two"]
    assert (result.progress.done, result.progress.total) == (2, 2)
    calls = router.batch(["one", "two"], temperature=0.5, schema=City)
    assert result.cost == pytest.approx((calls.cost or 0.0) / 2)
    assert not any((desk.folder / "batches").iterdir()), "the job is deleted"


def test_requests_without_a_response_are_sent_as_usual(desk: Desk, run: Any) -> None:
    end_at_once(desk)
    router = Router([desk.agent("openai:gpt-4.1-mini"), scripted_agent("from the fallback")])
    result = run(router, ["one", "a bad one", "three"])
    assert [item.error is None for item in result] == [True, False, True]
    assert isinstance(result[1].error, errors.BadRequestError)
    desk.vendor.script = VendorServer().script
    assert run(router, ["bad"]).ok


@pytest.mark.parametrize(
    "make",
    [
        lambda desk: Router([scripted_agent(), desk.agent("openai:gpt-4.1-mini")]),
        lambda desk: Router([desk.agent("together:Qwen/Qwen3.5-9B")]),
        lambda desk: Router([desk.agent("openai:gpt-4.1-mini")], middleware=[Logging()]),
        lambda desk: Router([desk.agent("openai:gpt-4.1-mini")], spend=SpendLimit(dollars=1.0)),
        lambda desk: Router([desk.agent("openai:gpt-4.1-mini", middleware=[Logging()])]),
        lambda desk: Router([Router([desk.agent("openai:gpt-4.1-mini")])]),
    ],
    ids=["no batch API", "unknown price", "middleware", "spend limit", "middleware of the agent", "nested router"],
)
def test_ordinary_calls_are_used_otherwise(make: Any, desk: Desk, run: Any) -> None:
    assert [item.unwrap().text for item in run(make(desk), ["one"])] == ["You said: one"]
    assert desk.count(*CREATE) == 0


def test_limits_of_the_batch_and_requests_that_do_not_fit_need_ordinary_calls(desk: Desk, run: Any) -> None:
    router = Router([desk.agent("openai:gpt-4.1-mini")])
    assert run(router, ["one"], max_cost=1.0).ok
    assert [item.ok for item in run(router, ["one", ""])] == [True, False]
    assert run(router, []).responses == []
    assert desk.count(*CREATE) == 0


def test_a_failed_submission_names_the_job(desk: Desk, run: Any) -> None:
    desk.vendor.fail = lambda call: reply({"error": {"message": "lost"}}, 503) if call in CREATE else None
    with pytest.raises(errors.OverloadedError) as raised:
        run(desk.agent("openai:gpt-4.1-mini"), ["one"])
    (path,) = (desk.folder / "batches").iterdir()
    assert path.name in raised.value.__notes__[0]


def test_other_methods_take_seconds_only() -> None:
    with pytest.raises(errors.ConfigurationError, match="deadline"):
        scripted_agent().complete("x", deadline="24h")
