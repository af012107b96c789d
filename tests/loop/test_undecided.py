"""A waiting call is executed only with a verdict, however the run is resumed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent import tool
from agent.loop import Allow, MemoryJournal, PausedRun, RunResult, SqliteJournal
from agent.testing import Script, scripted_agent
from agent.types import ToolSpec
from tests.loop.pause_helpers import (
    NOBODY,
    WAYS,
    Run,
    Till,
    as_router,
    ask_about,
    call,
    ids,
    pause,
    pays,
    reload,
    results,
    run_by,
)
from tests.support.drivers import Driver


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


# Resuming


@pytest.mark.parametrize("make", [lambda agent: agent, as_router], ids=["agent", "router"])
@pytest.mark.parametrize("hook", [None, lambda call, context: Allow()], ids=["no hook", "a hook that allows"])
def test_calls_without_a_verdict_keep_waiting(run: Run, make: Any, hook: Any) -> None:
    till = Till()
    first = pause(till, *pays("c1", "c2", "c3"))

    def resume(paused: PausedRun, *lines: Any) -> RunResult:
        return run(make(scripted_agent(*lines)), paused, tools=[till.pay], before_tool_call=hook)

    again = resume(reload(first), NOBODY)
    assert till.paid == []
    assert reload(again) == reload(first), "nothing was decided, so nothing has changed"
    some = resume(reload(again).approve("c2"), NOBODY)
    assert till.paid == [2]
    assert ids(reload(some)) == ["c1", "c3"]
    assert [one.reason for one in reload(some).pending] == ["c1?", "c3?"]
    assert some.turns == 1
    done = resume(reload(some).approve("c3").deny("c1"), "Done.")
    assert till.paid == [2, 3]
    assert (done.text, results(done)) == ("Done.", ["The call was denied.", "paid 2", "paid 3"])


def test_calls_without_a_verdict_keep_waiting_under_every_driver(drive: Driver) -> None:
    till = Till()
    first = reload(pause(till, *pays("c1", "c2")))
    second = drive.run(Script(NOBODY), first.approve("c1"), tools=[till.pay])
    assert till.paid == [1]
    assert ids(reload(second.ok)) == ["c2"]
    assert second.requests == []


def test_a_call_whose_tool_has_a_function_now_waits_for_its_caller_all_the_same(run: Run) -> None:
    till = Till()
    described = ToolSpec(name="pay", description="Pays.", parameters={"type": "object"})
    first = run(scripted_agent(pays("c1")), tools=[described])
    assert reload(first).pending[0].kind == "external"
    again = run(scripted_agent(NOBODY), reload(first), tools=[till.pay])
    assert till.paid == []
    assert ids(reload(again)) == ["c1"]


def test_calls_one_by_one_keep_their_verdicts_until_it_is_their_turn(run: Run) -> None:
    till = Till()
    options: dict[str, Any] = {"tools": [till.pay], "loop": {"parallel_tool_execution": False}}
    first = run(scripted_agent(pays("c1", "c2", "c3")), before_tool_call=ask_about("c1", "c3"), **options)
    assert ids(reload(first)) == ["c1", "c3"]
    changed = reload(first).approve("c3", arguments={"amount": 30})
    again = run(scripted_agent(NOBODY), changed, **options)
    assert till.paid == []
    kept = reload(again)
    assert [one.id for one in kept.undecided] == ["c1"]
    done = run(scripted_agent("Done."), kept.approve("c1"), **options)
    assert till.paid == [1, 2, 30]
    assert results(done) == ["paid 1", "paid 2", "paid 30"]


def test_an_approver_sees_the_arguments_that_are_executed() -> None:
    seen: list[Any] = []

    @tool
    def note(data: dict[str, Any]) -> str:
        seen.append(data)
        return "noted"

    given: dict[str, Any] = {"data": {"null": None, "empty": {}, "list": [None, 1.5], "text": "a\nb\u202e"}}
    first = scripted_agent(call("c1", "note", **given)).run("Go.", tools=[note], before_tool_call=ask_about())
    kept = reload(first)
    shown = kept.pending[0].arguments
    scripted_agent("Done.").run(kept.approve(), tools=[note])
    assert seen == [shown["data"]] == [given["data"]]


# Journals


def test_a_run_that_is_restarted_from_its_journal_keeps_waiting(run: Run, journal: Any) -> None:
    till = Till()
    first = pause(till, *pays("c1", "c2"), run_id="r", journal=journal)
    for _ in range(2):
        again = run(scripted_agent(NOBODY), tools=[till.pay], run_id="r", journal=journal)
        assert till.paid == []
        assert [(one.id, one.reason) for one in reload(again).pending] == [("c1", "c1?"), ("c2", "c2?")]
    some = run(scripted_agent(NOBODY), reload(first).approve("c1"), tools=[till.pay], journal=journal)
    assert ids(reload(some)) == ["c2"]
    again = run(scripted_agent(NOBODY), tools=[till.pay], run_id="r", journal=journal)
    assert ids(reload(again)) == ["c2"]
    assert till.paid == [1]
    done = run(scripted_agent("Done."), reload(again).approve(), tools=[till.pay], journal=journal)
    assert (done.text, till.paid) == ("Done.", [1, 2])


def test_a_call_waits_even_if_its_run_was_killed_before_it_paused(journal: Any) -> None:
    till = Till()

    @tool
    def crash() -> str:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        scripted_agent([call("c1", "crash"), *pays("c2")]).run(
            "Go.", tools=[crash, till.pay], before_tool_call=ask_about("c2"), run_id="r", journal=journal
        )
    again = scripted_agent(NOBODY).run("Go.", tools=[crash, till.pay], run_id="r", journal=journal)
    assert ids(reload(again)) == ["c2"]
    assert till.paid == []


def test_a_document_that_forgets_what_waits_is_no_way_around_the_journal() -> None:
    journal, till = MemoryJournal(), Till()
    first = pause(till, *pays("c1", "c2"), run_id="r", journal=journal)
    data = json.loads(reload(first).to_json())
    data["waiting"], data["held"] = data["waiting"][:1], ["c2"]
    again = scripted_agent(NOBODY).run(
        PausedRun.from_json(json.dumps(data)).approve("c1"), tools=[till.pay], journal=journal
    )
    assert till.paid == [1]
    assert ids(reload(again)) == ["c2"]


PROGRAM = """
import sys
from pathlib import Path
from agent import tool
from agent.loop import PausedRun, SqliteJournal
from agent.testing import Script, scripted_agent

folder = Path(sys.argv[1])

@tool
def pay(amount: int) -> str:
    with (folder / "paid").open("a") as file:
        print(amount, file=file)
    return f"paid {amount}"

paused = PausedRun.from_json((folder / "kept.json").read_text())
journal = SqliteJournal(folder / "runs.db")
requests = {"document": paused, "verdict": paused.approve("c1"), "journal": "Go."}
result = scripted_agent("Done.", tools=[pay]).run(requests[sys.argv[2]], run_id="r", journal=journal)
print(*[one.id for one in result.paused.pending])
"""


@pytest.mark.parametrize(
    ("how", "waits", "paid"), [("document", "c1 c2", ""), ("verdict", "c2", "1"), ("journal", "c1 c2", "")]
)
def test_another_process_keeps_undecided_calls_waiting(tmp_path: Path, how: str, waits: str, paid: str) -> None:
    journal = SqliteJournal(tmp_path / "runs.db")
    first = pause(Till(), *pays("c1", "c2"), run_id="r", journal=journal)
    journal.close()
    (tmp_path / "kept.json").write_text(reload(first).to_json())
    command = [sys.executable, "-c", PROGRAM, str(tmp_path), how]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.strip() == waits
    file = tmp_path / "paid"
    assert (file.read_text().strip() if file.exists() else "") == paid


# Steering


def test_what_was_said_to_a_run_before_it_paused_is_said_when_it_goes_on(run: Run) -> None:
    till = Till()

    @tool
    def look() -> str:
        first.steer("Be quick.")
        first.follow_up("And thank you.")
        return "seen"

    first = scripted_agent([call("c1", "look"), *pays("c2")]).run_stream(
        "Go.", tools=[look, till.pay], before_tool_call=ask_about("c2")
    )
    kept = reload(first.collect())
    again = reload(run(scripted_agent(NOBODY), kept, tools=[look, till.pay]))
    result = run(scripted_agent("Done.", "You are welcome."), again.approve(), tools=[look, till.pay])
    assert till.paid == [2], "the approved call is not skipped"
    assert [(message.role.value, message.text) for message in result.messages[2:]] == [
        ("tool", "seen"),
        ("tool", "paid 2"),
        ("user", "Be quick."),
        ("assistant", "Done."),
        ("user", "And thank you."),
        ("assistant", "You are welcome."),
    ]
