"""The tool loop under thousands of fault and crash orders in virtual time."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from agent.engine.flow import Flow
from agent.loop import flow, recovery, tool_calls
from agent.loop.journal import JournalError, list_calls
from agent.loop.run_state import INTERRUPTED, RunState, Slot
from agent.tools.execution import run_tool
from agent.types import ToolResult
from tests.conftest import SEED
from tests.loop.scenarios import BREAKS, SAID, TOOLS, VENDORS, Scenario, Wish, shrunk
from tests.loop.world import RUN, World, differences, violations
from tests.routing.world import FAULTS
from tests.support.cases import FULL, examples, within_budget

pytestmark = pytest.mark.malformed
SEEDS = 2_000
SOAKED = 50_000
FIRST = SEED if FULL else 0
"""The same worlds in every run, so that a build does not fail by chance; `make soak` looks at others."""


def _try(seeds: range) -> None:
    for seed in within_budget(seeds):
        scenario = Scenario.draw(seed)
        if problems := violations(scenario):
            least = shrunk(scenario, _breaks)
            raise AssertionError(f"seed {seed}: {problems}\nthe least that breaks it: {least}\n{violations(least)}")


def _breaks(scenario: Scenario) -> bool:
    return bool(violations(scenario))


@pytest.mark.parametrize("part", range(4))
def test_no_promise_is_broken(part: int) -> None:
    size = examples(75, SEEDS // 4)
    _try(range(FIRST + part * size, FIRST + (part + 1) * size))


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_no_promise_is_broken_in_very_many_worlds() -> None:
    _try(range(SEED, SEED + SOAKED))


# One run, disturbed at every place

THREE_TURNS = Scenario(
    0,
    ("openai-chat",),
    (
        (Wish("slow"), Wish("quick", number=1), Wish("safe", number=2)),
        (Wish("flaky", number=3), Wish("sub", number=4)),
        (Wish("lone", number=5), Wish("quick", "change", number=6)),
    ),
    streaming=False,
)


def _steps(scenario: Scenario) -> int:
    world = World(scenario).run()
    assert not world.problems
    assert len(world.lives) == 1
    return world.steps


def _as_if_nothing_had_been(scenario: Scenario) -> set[str]:
    """Run it, and look whether it ends as if nothing had been. Which calls it says were interrupted."""
    world = World(scenario).run()
    assert (world.problems or differences(world)) == [], scenario
    return {record.id for record in list_calls(world.journal.read(RUN)) if record.outcome == "interrupted"}


def test_a_run_that_crashes_at_any_step_goes_on_as_if_nothing_had_been() -> None:
    interrupted: set[str] = set()
    for step in range(_steps(THREE_TURNS) + 1):
        interrupted |= _as_if_nothing_had_been(replace(THREE_TURNS, crashes=((step, "crash"),)))
    expected = {"t0c0", "t0c1", "t1c0", "t2c0", "t2c1"}
    assert interrupted == expected, "all but the one that may be run again, and the sub-agent, which is resumed"
    streamed = replace(THREE_TURNS, turns=THREE_TURNS.turns[:1], streaming=True)
    for step in range(_steps(streamed) + 1):
        _as_if_nothing_had_been(replace(streamed, crashes=((step, "crash"),)))


def test_a_run_that_is_aborted_at_any_step_goes_on_as_if_nothing_had_been() -> None:
    whole = replace(THREE_TURNS, turns=THREE_TURNS.turns[:1])
    for step in range(_steps(whole) + 1):
        _as_if_nothing_had_been(replace(whole, crashes=((step, "abort"),)))


def test_a_run_that_is_cut_off_again_and_again_comes_to_its_end() -> None:
    for step in range(5, 60, 4):
        _as_if_nothing_had_been(replace(THREE_TURNS, crashes=((step, "crash"),) * 8))


@pytest.mark.parametrize("kind", BREAKS)
def test_a_run_goes_on_after_a_fault_between_any_two_effects(kind: str) -> None:
    whole = replace(THREE_TURNS, turns=THREE_TURNS.turns[:2], streaming=kind == "connection")
    places = 0
    while not World(broken := replace(whole, breaks=((places, kind),))).run().breaks_left:
        _as_if_nothing_had_been(broken)
        places += 1
    assert places > 5, "from there on, there was nothing left to break"


# Coverage of the worlds


def test_the_worlds_are_as_various_as_they_should_be() -> None:
    drawn = [Scenario.draw(FIRST + number) for number in range(SEEDS)]
    wishes = [wish for scenario in drawn for turn in scenario.turns for wish in turn]
    assert {wish.tool for wish in wishes} == set(TOOLS)
    assert {wish.said for wish in wishes} == set(SAID)
    assert {vendor for scenario in drawn for vendor in scenario.vendors} == set(VENDORS)
    assert {len(scenario.vendors) for scenario in drawn} == {1, 2, 3}
    assert {fault for scenario in drawn for _, fault in scenario.answers} == set(FAULTS)
    assert {kind for scenario in drawn for _, kind in scenario.breaks} == set(BREAKS)
    assert {how for scenario in drawn for _, how in scenario.crashes} == {"crash", "abort"}
    assert {how for scenario in drawn for _, how in scenario.spoken} == {"steer", "follow_up"}
    assert {len(scenario.crashes) for scenario in drawn} == {0, 1, 2, 3}
    for trait in ("parallel", "stop_on_error", "streaming"):
        assert {getattr(scenario, trait) for scenario in drawn} == {False, True}
    for limit in ("token_budget", "deadline", "rival"):
        assert {getattr(scenario, limit) is None for scenario in drawn} == {False, True}


def test_everything_happens_in_these_worlds_that_promises_are_made_about() -> None:
    """Or they would be kept by nothing happening."""
    worlds = [World(Scenario.draw(seed)).run() for seed in range(FIRST, FIRST + 120)]
    records = [record for world in worlds for record in list_calls(world.journal.read(RUN))]
    assert {record.outcome for record in records} == {"completed", "failed", "rejected", "skipped", "interrupted"}
    ends = {type(life.error).__name__ for world in worlds for life in world.lives}
    assert {"Aborted", "BudgetExceededError", "JournalError", "TimeoutError", "ToolExecutionError"} <= ends
    assert any(life.result is not None and life.result.paused for world in worlds for life in world.lives)
    assert max(len(world.lives) for world in worlds) > 4


def test_both_of_two_rivals_lose_and_win_in_these_worlds() -> None:
    drawn = (Scenario.draw(seed) for seed in range(FIRST, FIRST + SEEDS))
    worlds = [World(scenario).run() for scenario in drawn if scenario.rival is not None and not scenario.crashes]
    for lives in (
        [life for world in worlds for life in world.rivals],
        [world.lives[0] for world in worlds if world.rivals],
    ):
        assert any(isinstance(life.error, JournalError) for life in lives)
        assert any(life.result is not None for life in lives)


def test_the_same_seed_is_the_same_run_to_the_last_step() -> None:
    for seed in range(FIRST, FIRST + 25):
        first, second = World(Scenario.draw(seed)).run(), World(Scenario.draw(seed)).run()
        assert first.log == second.log
        assert first.journal.read(RUN) == second.journal.read(RUN)


# The checks themselves: a loop that is broken on purpose is found out


def _do_nothing(*args: Any) -> Flow[None]:
    return
    yield


def _begin_without_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool_calls, "write_started", _do_nothing)


def _end_without_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool_calls, "write_ended", _do_nothing)


def _forget_what_the_model_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flow, "write_response", _do_nothing)


def _forget_results(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool_calls, "restore", lambda state, slot: None)
    monkeypatch.setattr(recovery, "restore", lambda state, slot: None)


def _forget_results_of_paused_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    real = recovery._restore_results
    monkeypatch.setattr(recovery, "_restore_results", lambda state: real(state) if state.latest.id else None)


def _run_interrupted_calls_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool_calls, "find_started_call", lambda state, slot: None)


def _give_up_on_safe_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    def resume(plan: Any, state: Any, slot: Slot, tool: Any, arguments: Any) -> Flow[None]:
        yield from ()
        slot.fail(INTERRUPTED, "interrupted")

    monkeypatch.setattr(tool_calls, "_resume", resume)


def _deny_what_had_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    def resume(plan: Any, state: Any, slot: Slot, tool: Any, arguments: Any) -> Flow[None]:
        yield from ()
        slot.fail("The call was denied.", "rejected")

    monkeypatch.setattr(tool_calls, "_resume", resume)


def _share_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    real = recovery._write

    def write(*args: Any) -> Flow[bool]:
        yield from real(*args)
        return True

    monkeypatch.setattr(recovery, "_write", write)


def _tell_results_as_they_come(monkeypatch: pytest.MonkeyPatch) -> None:
    def take_ready_results(self: RunState) -> list[Any]:
        ready = [slot.message for slot in self.slots if slot.result is not None]
        fresh = [message for message in ready if message not in self.added]
        self.reported_results += len(fresh)
        return self.append_messages(*fresh)

    monkeypatch.setattr(RunState, "take_ready_results", take_ready_results)


def _leave_calls_unanswered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RunState, "_close_calls", lambda self: [])


def _skip_without_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Slot.fail

    def fail(self: Slot, message: str, outcome: Any) -> None:
        real(self, message, outcome)
        if outcome == "skipped":
            self.result = ToolResult(tool_call_id="unknown", content=message)

    monkeypatch.setattr(Slot, "fail", fail)


def _retry_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    def retry(running: Any, tool: Any, arguments: Any, context: Any, timeout: Any, limit: Any, until: Any) -> Flow[Any]:
        try:
            return (yield from run_tool(running, tool, arguments, context, timeout, limit))
        except Exception:
            return (yield from run_tool(running, tool, arguments, context, timeout, limit))

    monkeypatch.setattr(tool_calls, "run_with_retries", retry)


def _let_tools_take_their_time(monkeypatch: pytest.MonkeyPatch) -> None:
    real = tool_calls._spawn_call

    def spawn(plan: Any, slot: Slot, around: Any) -> Flow[Any]:
        branch = yield from real(plan, slot, around)
        slot.expires_at = float("inf")
        return branch

    monkeypatch.setattr(tool_calls, "_spawn_call", spawn)


def _never_mind_the_order(monkeypatch: pytest.MonkeyPatch) -> None:
    real = tool_calls.run_calls

    def run_calls(plan: Any, state: Any, around: Any) -> Flow[None]:
        config = plan.config.model_copy(update={"parallel_tool_execution": True})
        return real(replace(plan, config=config), state, around)

    monkeypatch.setattr(flow, "run_calls", run_calls)


def _ask_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flow, "_check_budgets", lambda plan, state: None)


def _lose_the_bill(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RunState, "charge_response", lambda self, response: None)


def _begin_anew_with_every_life(monkeypatch: pytest.MonkeyPatch) -> None:
    def replay(plan: Any, state: RunState, data: Mapping[str, Any]) -> None:
        state.journal_entries = {}

    monkeypatch.setattr(recovery, "_replay_message", replay)


@pytest.mark.parametrize(
    ("sabotage", "found"),
    [
        (_begin_without_a_word, "it is not in the journal"),
        (_end_without_a_word, "is reported before it is in the journal"),
        (_forget_what_the_model_said, "the journal holds"),
        (_forget_results, "is run though it has ended"),
        (_forget_results_of_paused_runs, "the run never ended"),
        (_run_interrupted_calls_again, "is run again"),
        (_give_up_on_safe_calls, "is said to be interrupted"),
        (_deny_what_had_begun, "is said to be rejected, and was run"),
        (_share_runs, "is interrupted, and the model reads|is run again"),
        (_tell_results_as_they_come, "results are in the order of their calls"),
        (_leave_calls_unanswered, "calls without results"),
        (_skip_without_a_word, "calls without results|order of their calls"),
        (_retry_tools, r"was run \d+ times"),
        (_let_tools_take_their_time, "goes on after its time"),
        (_never_mind_the_order, "is run beside|before its turn"),
        (_ask_for_ever, "the model was called, though"),
        (_lose_the_bill, "the journal holds"),
        (_begin_anew_with_every_life, "the run never ended"),
    ],
)
def test_a_loop_that_is_broken_is_found_out(
    sabotage: Callable[[pytest.MonkeyPatch], None], found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sabotage(monkeypatch)
    for seed in range(SEEDS):
        if any(re.search(found, problem) for problem in violations(Scenario.draw(seed))):
            return
    raise AssertionError(f"{SEEDS} worlds without a detection")


def test_the_least_that_breaks_a_promise_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    _run_interrupted_calls_again(monkeypatch)
    scenario = next(one for one in map(Scenario.draw, range(SEEDS)) if one.size > 8 and _breaks(one))
    least = shrunk(scenario, _breaks)
    assert _breaks(least)
    assert least.size <= 6, "one turn with one call, one vendor, and one crash is all it takes"
