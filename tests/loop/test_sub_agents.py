"""Calls of sub-agents that wait pause the whole run, and it goes on as if it had never stopped."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from agent import Agent, Hooks, Router, errors, tool
from agent.loop import MemoryJournal, PausedRun, SqliteJournal, list_calls
from agent.testing import Script, ScriptedTransport, scripted_agent
from agent.types import AgentResponse, TextContent, ToolCall, Usage
from tests.loop.pause_helpers import NOBODY, WAYS, Run, Till, ask_about, call, ids, pays, reload, results, run_by
from tests.loop.stories import check_history, story


@pytest.fixture(params=WAYS)
def run(request: pytest.FixtureRequest) -> Run:
    return lambda *args, **options: run_by(request.param, *args, **options)


@pytest.fixture(params=["memory", "sqlite"])
def journal(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    if request.param == "memory":
        yield MemoryJournal()
        return
    kept = SqliteJournal(tmp_path / "runs.db")
    yield kept
    kept.close()


def create_charged_response(number: int, *said: Any) -> AgentResponse:
    """An answer that costs something of its own."""
    content = [TextContent(text=part) if isinstance(part, str) else part for part in said]
    return AgentResponse(content=content, usage=Usage(prompt_tokens=number, completion_tokens=number))


def create_priced_agent(*lines: Any, model: str = "gpt-4o", **options: Any) -> Agent:
    """An agent whose answers have a price."""
    return Agent(f"openai-chat:{model}", api_key="k", transport=ScriptedTransport(Script(*lines)), **options)


def helper(till: Till, *lines: Any, hook: Any = None, name: str = "helper", **options: Any) -> Any:
    """A sub-agent that can pay."""
    inner = create_priced_agent(*lines, tools=[till.pay], hooks=Hooks(before_tool_call=hook), model="gpt-4o-mini")
    return inner.as_tool(name, "Helps.", **options)


def asks(id: str = "o1", name: str = "helper") -> ToolCall:
    return call(id, name, task="Pay.")


# One level


def test_a_call_of_a_sub_agent_that_waits_pauses_the_outer_run(run: Run) -> None:
    whole, stopped = Till(), Till()
    inner = [create_charged_response(10, *pays("i1")), create_charged_response(20, "Paid.")]
    outer = [create_charged_response(1, asks()), create_charged_response(2, "Done.")]
    expected = run(create_priced_agent(*outer, tools=[helper(whole, *inner)]))
    first = run(create_priced_agent(outer[0], tools=[helper(stopped, inner[0], hook=ask_about("i1"))]))
    assert stopped.paid == []
    kept = reload(first)
    assert [(one.id, one.name, one.arguments, one.reason) for one in kept.pending] == [
        ("o1/i1", "pay", {"amount": 1}, "i1?")
    ]
    assert first.usage == Usage(prompt_tokens=11, completion_tokens=11)
    again = run(create_priced_agent(NOBODY, tools=[helper(stopped, NOBODY)]), kept)
    assert stopped.paid == []
    assert reload(again) == kept, "nothing was decided, so nothing has changed"
    approved = PausedRun.from_json(kept.approve().to_json())
    assert approved.undecided == ()
    result = run(create_priced_agent(outer[1], tools=[helper(stopped, inner[1])]), approved)
    assert stopped.paid == whole.paid == [1]
    assert result.messages == expected.messages
    assert result.usage == expected.usage
    assert result.cost_estimate == pytest.approx(expected.cost_estimate)
    assert expected.cost_estimate
    assert [attempt.model for attempt in result.route] == [attempt.model for attempt in expected.route]
    check_history(list(result.messages))


@pytest.mark.parametrize(
    ("decide", "paid", "told"),
    [
        (lambda one: one.approve("o1/i1", arguments={"amount": 50}), [50], "paid 50"),
        (lambda one: one.deny("o1/i1", reason="Too much."), [], "Error: Too much."),
        (lambda one: one.answer("o1/i1", "in cash"), [], "in cash"),
    ],
)
def test_every_verdict_reaches_the_call(
    run: Run, decide: Callable[[PausedRun], PausedRun], paid: Any, told: str
) -> None:
    till, heard = Till(), []
    first = run(scripted_agent(asks(), tools=[helper(till, pays("i1"), hook=ask_about())]))

    def reply(body: dict[str, Any]) -> str:
        heard.append(body["messages"][-1]["content"])
        return "Well."

    decided = PausedRun.from_json(decide(reload(first)).to_json())
    result = run(scripted_agent("Done.", tools=[helper(till, reply)]), decided)
    assert (till.paid, heard, results(result)) == (paid, [told], ["Well."])


def test_sub_agents_wait_beside_other_calls_of_their_turn(run: Run) -> None:
    till = Till()
    turn = [asks("o1"), call("c2", amount=2), call("c3", amount=3), asks("o4", "other"), asks("o5", "third")]

    def agent(*lines: Any, first: Any = NOBODY, other: Any = NOBODY, third: Any = NOBODY, hook: Any = None) -> Agent:
        tools = [
            till.pay,
            helper(till, *first, hook=hook) if isinstance(first, tuple) else helper(till, first, hook=hook),
        ]
        tools += [helper(till, other, hook=hook, name="other"), helper(till, third, name="third")]
        return scripted_agent(*lines, tools=tools)

    asking = ask_about("i6", "i7", "i8")
    paused = run(
        agent(turn, first=pays("i6", "i7"), other=pays("i8"), third="Third.", hook=asking),
        before_tool_call=ask_about("c3"),
    )
    assert till.paid == [2]
    kept = reload(paused)
    assert ids(kept) == ["o1/i6", "o1/i7", "c3", "o4/i8"]
    some = run(agent(NOBODY), kept.approve("o1/i7"))
    assert till.paid == [2, 7]
    kept = reload(some)
    assert ids(kept) == ["o1/i6", "c3", "o4/i8"]
    more = run(agent(NOBODY, other="Other."), kept.approve("c3", "o4/i8"))
    assert sorted(till.paid) == [2, 3, 7, 8]
    kept = reload(more)
    assert ids(kept) == ["o1/i6"]
    result = run(agent("Done.", first="First."), kept.deny())
    assert results(result) == ["First.", "paid 2", "paid 3", "Other.", "Third."]
    assert sorted(till.paid) == [2, 3, 7, 8]
    check_history(list(result.messages))


def test_calls_one_by_one_wait_for_a_sub_agent(run: Run) -> None:
    till = Till()
    options: dict[str, Any] = {"loop": {"parallel_tool_execution": False}}
    lines = [[asks(), *pays("c2")]]
    first = run(scripted_agent(*lines, tools=[till.pay, helper(till, pays("i1"), hook=ask_about())]), **options)
    assert till.paid == []
    result = run(scripted_agent("Done.", tools=[till.pay, helper(till, "Paid.")]), reload(first).approve(), **options)
    assert till.paid == [1, 2]
    assert results(result) == ["Paid.", "paid 2"]


def test_a_sub_agent_may_wait_in_every_turn_and_be_asked_about_itself(run: Run) -> None:
    till = Till()
    first = run(scripted_agent(asks(), tools=[helper(till, NOBODY)]), before_tool_call=ask_about("o1"))
    assert ids(reload(first)) == ["o1"]
    for line, id, paid in ((pays("i1"), "o1/i1", []), (pays("i2"), "o1/i2", [1])):
        first = run(scripted_agent(NOBODY, tools=[helper(till, line, hook=ask_about())]), reload(first).approve())
        assert ids(reload(first)) == [id]
        assert till.paid == paid
    result = run(scripted_agent("Done.", tools=[helper(till, "Paid.")]), reload(first).approve())
    assert (result.text, results(result), till.paid) == ("Done.", ["Paid."], [1, 2])


def test_ids_of_calls_are_never_ambiguous(run: Run) -> None:
    till = Till()
    first = run(
        scripted_agent([asks(), call("o1/i1", amount=5)], tools=[till.pay, helper(till, pays("i1"), hook=ask_about())]),
        before_tool_call=ask_about("o1/i1"),
    )
    kept = reload(first)
    assert {one.id: one.arguments["amount"] for one in kept.pending} == {"o1/i1_": 1, "o1/i1": 5}
    some = run(scripted_agent(NOBODY, tools=[till.pay, helper(till, "Paid.")]), kept.approve("o1/i1_"))
    assert till.paid == [1]
    assert ids(reload(some)) == ["o1/i1"]


def test_a_router_is_a_sub_agent_too(run: Run) -> None:
    till = Till()

    def router(*lines: Any, hook: Any = None) -> Any:
        target = scripted_agent(*lines, tools=[till.pay])
        return Router([target]).as_tool("helper", "Helps.", before_tool_call=hook)

    first = run(Router([scripted_agent(asks(), tools=[router(pays("i1"), hook=ask_about())])]))
    result = run(Router([scripted_agent("Done.", tools=[router("Paid.")])]), reload(first).approve("o1/i1"))
    assert (result.text, till.paid) == ("Done.", [1])


def test_the_events_of_both_parts_are_whole() -> None:
    till = Till()
    first = scripted_agent(asks(), tools=[helper(till, pays("i1"), hook=ask_about())]).run_stream("Go.")
    events = list(first)
    lines = [line for line in story(events) if "tool_execution" in line and "update" not in line]
    assert lines == [
        "tool_execution_start o1 helper",
        "tool_execution_end o1 The agent waits for a decision about: pay.",
    ]
    second = scripted_agent("Done.", tools=[helper(till, "Paid.")]).run_stream(reload(first.result).approve())
    lines = [line for line in story(list(second)) if "tool_execution" in line and "update" not in line]
    assert lines == ["tool_execution_start o1 helper", "tool_execution_end o1 Paid."]


def test_without_its_sub_agent_a_run_is_not_resumed() -> None:
    till = Till()
    first = scripted_agent(asks(), tools=[helper(till, pays("i1"), hook=ask_about())]).run("Go.")

    @tool(name="helper")
    def impostor(task: str) -> str:
        raise AssertionError("it is no sub-agent")

    for tools in ([], [impostor]):
        with pytest.raises(errors.ConfigurationError) as raised:
            scripted_agent(NOBODY, tools=tools).run(reload(first).approve())
        assert raised.value.field == "tools"


# Two levels


def nest(till: Till, lines: Sequence[Any], hook: Any = None) -> Agent:
    outer, middle, inner = lines
    leaf = helper(till, *inner, hook=hook, name="leaf")
    between = create_priced_agent(*middle, tools=[leaf, till.pay], hooks=Hooks(before_tool_call=hook))
    return create_priced_agent(*outer, tools=[between.as_tool("between", "Delegates.")])


LEVELS = (
    [create_charged_response(1, asks("o1", "between")), create_charged_response(2, "Done.")],
    [create_charged_response(10, asks("m1", "leaf"), *pays("m2")), create_charged_response(20, "Passed on.")],
    [create_charged_response(100, *pays("i1", "i3")), create_charged_response(200, "Paid.")],
)


def test_two_levels_deep_nothing_is_lost_and_nothing_is_counted_twice(run: Run) -> None:
    whole, stopped = Till(), Till()
    expected = run(nest(whole, LEVELS))
    assert expected.usage is not None
    assert expected.usage.prompt_tokens == 333
    hook = ask_about("i1", "m2")
    first = run(nest(stopped, [level[:1] for level in LEVELS], hook=hook))
    assert stopped.paid == [3]
    assert first.usage is not None
    assert first.usage.prompt_tokens == 111
    assert ids(reload(first)) == ["o1/m1/i1", "o1/m2"]
    some = run(nest(stopped, ([NOBODY], [NOBODY], LEVELS[2][1:])), reload(first).approve("o1/m1/i1"))
    assert stopped.paid == [3, 1]
    assert ids(reload(some)) == ["o1/m2"]
    result = run(nest(stopped, (LEVELS[0][1:], LEVELS[1][1:], [NOBODY])), reload(some).approve())
    assert stopped.paid == [3, 1, 2]
    assert result.messages == expected.messages
    assert (result.usage, len(result.route)) == (expected.usage, len(expected.route))
    assert result.cost_estimate == pytest.approx(expected.cost_estimate)
    assert expected.cost_estimate


PROGRAM = """
import sys
from pathlib import Path
from agent import Hooks, tool
from agent.loop import PausedRun
from agent.testing import Script, ScriptedTransport, scripted_agent

folder = Path(sys.argv[1])

@tool
def pay(amount: int) -> str:
    with (folder / "paid").open("a") as file:
        print(amount, file=file)
    return f"paid {amount}"

leaf = scripted_agent("Paid.", tools=[pay]).as_tool("leaf", "Helps.")
between = scripted_agent("Passed on.", tools=[leaf, pay]).as_tool("between", "Delegates.")
paused = PausedRun.from_json((folder / "kept.json").read_text())
result = scripted_agent("Done.", tools=[between]).run(paused.approve("o1/m1/i1").deny("o1/m2"))
print(result.text, result.usage.prompt_tokens)
"""


def test_another_process_resumes_two_levels_deep(tmp_path: Path) -> None:
    first = nest(Till(), [level[:1] for level in LEVELS], hook=ask_about("i1", "m2")).run("Go.")
    (tmp_path / "kept.json").write_text(reload(first).to_json())
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.startswith("Done. ")
    assert (tmp_path / "paid").read_text().split() == ["1"]


def test_a_tampered_run_of_a_sub_agent_is_rejected() -> None:
    first = nest(Till(), [level[:1] for level in LEVELS], hook=ask_about("i1", "i3", "m2")).run("Go.")
    data = json.loads(reload(first).to_json())
    del data["waiting"][0]["run"]["waiting"][0]["run"]["waiting"][1]
    with pytest.raises(errors.ConfigurationError) as raised:
        PausedRun.from_json(json.dumps(data))
    assert raised.value.field == "waiting"


# Journals


def test_a_journal_keeps_calls_of_sub_agents_waiting(run: Run, journal: Any) -> None:
    till = Till()
    options: dict[str, Any] = {"run_id": "r", "journal": journal}
    whole = run(nest(Till(), LEVELS))
    first = run(nest(till, [level[:1] for level in LEVELS], hook=ask_about("i1", "m2")), **options)
    silent = ([NOBODY], [NOBODY], [NOBODY])
    again = run(nest(till, silent), **options)
    assert till.paid == [3]
    assert reload(again).pending == reload(first).pending
    assert again.usage == first.usage
    some = run(nest(till, ([NOBODY], [NOBODY], LEVELS[2][1:])), reload(again).approve("o1/m1/i1"), journal=journal)
    assert till.paid == [3, 1]
    again = run(nest(till, silent), **options)
    assert ids(reload(again)) == ids(reload(some)) == ["o1/m2"]
    assert again.usage == some.usage
    stale = reload(first).approve("o1/m1/i1").deny("o1/m2")
    result = run(nest(till, (LEVELS[0][1:], LEVELS[1][1:], [NOBODY])), stale, journal=journal)
    assert till.paid == [3, 1], "executed calls are not repeated"
    assert (result.usage, result.text) == (whole.usage, "Done.")
    again = run(nest(till, silent), **options)
    assert (again.messages, again.usage) == (result.messages, result.usage)


def test_a_sub_agent_that_was_killed_goes_on_and_makes_no_call_twice(run: Run, journal: Any) -> None:
    till = Till()

    @tool
    def crash() -> str:
        raise KeyboardInterrupt

    def agent(outer: Any, inner: Any) -> Agent:
        helping = scripted_agent(*inner, tools=[till.pay, crash])
        return scripted_agent(*outer, tools=[helping.as_tool("helper", "Helps.")])

    options: dict[str, Any] = {"run_id": "r", "journal": journal}
    lines = [create_charged_response(10, *pays("i1")), create_charged_response(20, call("i2", "crash"))]
    with pytest.raises(KeyboardInterrupt):
        run(agent([create_charged_response(1, asks())], lines), **options)
    result = run(agent([create_charged_response(2, "Done.")], [create_charged_response(40, "Paid.")]), **options)
    assert till.paid == [1]
    assert (result.text, results(result)) == ("Done.", ["Paid."])
    assert result.usage is not None
    assert result.usage.prompt_tokens == 73
    assert {one.id: one.outcome for one in list_calls(journal.read("r/o1"))} == {"i1": "completed", "i2": "interrupted"}


def test_a_retried_sub_agent_is_billed_once(journal: Any) -> None:
    till = Till()
    inner = scripted_agent(
        create_charged_response(10, *pays("i1")),
        errors.BadRequestError("no"),
        create_charged_response(20, "Paid."),
        tools=[till.pay],
    )
    outer = scripted_agent(
        create_charged_response(1, asks()),
        create_charged_response(2, "Done."),
        tools=[inner.as_tool("helper", "Helps.", retries=1)],
    )
    result = outer.run("Go.", run_id="r", journal=journal)
    assert (results(result), till.paid) == (["Paid."], [1])
    assert result.usage is not None
    assert result.usage.prompt_tokens == 33


def test_a_run_is_listed_and_forgotten_with_its_sub_agents(tmp_path: Path) -> None:
    journal, till = SqliteJournal(tmp_path / "runs.db"), Till()
    for id in ("r", "r/other"):
        nest(till, LEVELS).run("Go.", run_id=id, journal=journal)
    assert journal.runs() == ["r", "r/other"]
    assert journal.read("r/o1/m1")
    journal.forget("r")
    assert [journal.read(id) for id in ("r", "r/o1", "r/o1/m1")] == [[], [], []]
    assert journal.runs() == ["r/other"]
    assert journal.read("r/other/o1/m1")
    journal.close()
