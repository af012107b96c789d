"""Costs are computed on first access, which no reader of a response can tell."""

from __future__ import annotations

import copy
import gc
import json
import pickle
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import pytest
from pydantic import TypeAdapter

from agent.testing import scripted_agent
from agent.types import AgentRequest, AgentResponse, Attempt, Message, Route, Usage
from agent.types.usage import LazyCost

ROOT = Path(__file__).parents[2]
USAGE = Usage(prompt_tokens=3, completion_tokens=4)


class Counted:
    """Computes a cost and counts how often."""

    def __init__(self, cost: float | None = 0.5, source: str | None = "list 1") -> None:
        self.found = (cost, source)
        self.times = 0

    def __call__(self) -> tuple[Any, ...]:
        self.times += 1
        return self.found


def fail_to_price(counted: Counted, **fields: Any) -> AgentResponse:
    return AgentResponse(model="m", text="hi", usage=USAGE, **fields).with_cost(LazyCost.lazy(counted))


def count_price(**fields: Any) -> AgentResponse:
    return AgentResponse(model="m", text="hi", usage=USAGE, cost_estimate=0.5, cost_source="list 1", **fields)


def test_a_cost_is_computed_on_first_access_and_only_once() -> None:
    counted = Counted()
    response = fail_to_price(counted)
    assert response.text == "hi"
    assert response.usage is USAGE
    assert hash(response) == hash(count_price())
    assert counted.times == 0
    assert (response.cost_estimate, response.cost_source, response.cost_estimate) == (0.5, "list 1", 0.5)
    assert counted.times == 1


READERS: dict[str, Any] = {
    "equality": lambda response: response == count_price(),
    "equality from the other side": lambda response: count_price() == response,
    "a dump": lambda response: response.model_dump(),
    "JSON": lambda response: json.loads(response.model_dump_json()),
    "a dict": lambda response: response.to_dict(),
    "a dump inside another": lambda response: TypeAdapter(list[AgentResponse]).dump_python([response]),
    "a pickle": lambda response: pickle.loads(pickle.dumps(response)),
    "a copy": lambda response: response.model_copy(update={"model": "n"}),
    "repr": repr,
    "iteration": lambda response: list(response),
    "a copy of Python's": copy.deepcopy,
    "the fields that are given": lambda response: response.cost_estimate and sorted(response.model_fields_set),
}


@pytest.mark.parametrize("reader", READERS)
def test_whatever_reads_all_fields_finds_the_cost(reader: str) -> None:
    read = READERS[reader]
    assert read(fail_to_price(Counted())) == read(count_price())


def test_a_copy_stays_lazy_and_keeps_the_raw_response() -> None:
    counted = Counted()
    response = (
        AgentResponse(model="m", raw={"x": 1}).with_cost(LazyCost.lazy(counted)).model_copy(update={"latency_ms": 5.0})
    )
    assert counted.times == 0
    assert response.raw == {"x": 1}
    assert (response.cost_estimate, response.latency_ms) == (0.5, 5.0)


def test_a_cost_that_is_given_later_on_wins() -> None:
    response = fail_to_price(Counted()).model_copy(update={"cost_estimate": 2.0})
    assert (response.cost_estimate, response.cost_source) == (2.0, "list 1")
    assert list(response.to_dict()) == list(count_price().to_dict())


def test_a_price_that_nobody_knows_is_none() -> None:
    response = fail_to_price(Counted(None, None))
    assert (response.cost_estimate, response.cost_source) == (None, None)
    assert "cost_estimate" not in response.to_dict()


def test_threads_that_ask_at_once_find_the_same() -> None:
    gate = threading.Barrier(8)
    response = fail_to_price(Counted())
    found: list[Any] = []

    def ask() -> None:
        gate.wait()
        found.append((response.cost_estimate, response.cost_source))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [(0.5, "list 1")] * 8


def test_attempts_are_lazy_too_and_compare_in_a_route() -> None:
    attempt = Attempt(target="a", usage=USAGE).with_cost(LazyCost.lazy(lambda: (0.25, None)))
    assert Route([attempt]) == Route([Attempt(target="a", usage=USAGE, cost=0.25)])
    assert attempt.to_dict() == Attempt(target="a", usage=USAGE, cost=0.25).to_dict()
    assert hash(attempt) == hash(Attempt(target="a", usage=USAGE, cost=0.25))


def test_a_program_that_asks_for_no_cost_loads_no_prices_and_no_http_library() -> None:
    """The price list and what comes with it would take longer to load than everything else."""
    code = """
        import sys
        from agent import Agent
        from agent.testing import LoopbackServer, Script
        with LoopbackServer(Script("hello")) as server:
            agent = Agent("openai-chat:gpt-4o", api_key="k", base_url=server.url + "/v1")
            response = agent.complete("hi")
            heavy = ("genai_prices", "httpx2", "httpcore2", "h11", "jsonschema")
            print([name for name in heavy if name in sys.modules])
            response.cost_estimate
            print("genai_prices" in sys.modules)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.split("\n") == ["[]", "True", ""], done.stderr


def test_an_answer_does_not_keep_the_conversation_that_it_answers() -> None:
    """Otherwise, keeping responses would keep a long conversation alive once per response."""
    response = scripted_agent("hello").complete([Message.user("a long story"), Message.user("and now?")])
    reached: list[Any] = [response]
    seen: set[int] = set()
    while reached:
        found = reached.pop()
        if id(found) in seen or isinstance(found, type | ModuleType):
            continue
        seen.add(id(found))
        assert not isinstance(found, AgentRequest | Message), "it is kept"
        if isinstance(found, FunctionType):  # follow the closure, not the module
            reached += [cell.cell_contents for cell in found.__closure__ or ()]
        else:
            reached += gc.get_referents(found)
    assert len(seen) > 10
