"""Branches: flows beside a flow, for tools and races."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from agent import errors
from agent.engine.drivers.asyncio import AioRun
from agent.engine.drivers.simulated import SimulatedTool
from agent.engine.drivers.sync import SyncRun
from agent.engine.flow import (
    Branch,
    Cancel,
    Emit,
    Emitted,
    Failed,
    Finished,
    Flow,
    Invoke,
    Open,
    Paused,
    Read,
    Send,
    Sleep,
    Spawn,
    Wait,
)
from agent.engine.wire import Cancelled, Limits
from agent.types import StreamEvent
from tests.engine.play import (
    Stage,
    SyncStage,
    branch_threads,
    endless,
    error_reply,
    hung_up,
    listen,
    never,
    once_asked,
    stall,
    tokens,
    whole,
)


def invoke(function: Callable[..., Any], *, reports: bool = False) -> Flow[Any]:
    return (yield from Invoke(function, blocking=True, reports=reports))


def together(*functions: Callable[..., Any]) -> Flow[list[Any]]:
    """Run tools at the same time; results or errors in the order of the functions."""
    branches: list[Branch] = []
    for function in functions:
        branches.append((yield from Spawn(invoke(function))))
    outcomes: dict[Branch, Any] = {}
    while len(outcomes) < len(branches):
        event = yield from Wait([branch for branch in branches if branch not in outcomes])
        match event:
            case Finished(branch, value):
                outcomes[branch] = value
            case Failed(branch, error):
                outcomes[branch] = error
            case _:
                raise AssertionError(event)
    return [outcomes[branch] for branch in branches]


def race(contestants: Sequence[Flow[Any]], *, pause: bool) -> Flow[Any]:
    """The first to succeed, or to say something; the others are cancelled."""
    running: list[Branch] = []
    failures: list[BaseException] = []
    for contestant in contestants:
        running.append((yield from Spawn(contestant, pause=pause)))
    while running:
        match (yield from Wait(running)):
            case Failed(branch, error):
                running.remove(branch)
                failures.append(error)
            case Finished(branch, value):
                yield from Cancel([other for other in running if other is not branch])
                return value
            case Paused(branch, rest):
                yield from Cancel([other for other in running if other is not branch])
                return (yield from rest)
            case Emitted():
                pass  # of a branch without pause
            case None:
                raise AssertionError("there was no limit")
    raise errors.RoutingError(f"{len(failures)} failed")


def fetch(stage: Stage, mode: str) -> Flow[bytes]:
    reply = yield from Send(stage.ask(mode), Limits())
    if reply.status != 200:
        raise errors.ProviderError("no", status_code=reply.status)
    return reply.body


def naps(seconds: float, value: str) -> Callable[[], str]:
    def tool() -> str:
        time.sleep(seconds)
        return value

    return tool


def async_naps(seconds: float, value: str) -> Callable[[], Any]:
    async def tool() -> str:
        await asyncio.sleep(seconds)
        return value

    return tool


# Tools


@pytest.mark.timing
def test_tools_run_at_the_same_time_and_results_keep_their_order(stage: Stage) -> None:
    def broken() -> None:
        raise ValueError("no")

    slow: Callable[..., Any] = naps(0.3, "slow")
    async_slow: Callable[..., Any] = async_naps(0.3, "async")
    if not stage.real:
        slow, async_slow = SimulatedTool("slow", 0.3), SimulatedTool("async", 0.3)
    played = stage.play(together(slow, lambda: "fast", async_slow, broken))
    first, second, third, fourth = played.value
    assert (first, second, third) == ("slow", "fast", "async")
    assert isinstance(fourth, ValueError)
    assert played.seconds < 0.58, "one after the other it would take 0.6 s"


@pytest.mark.timing
@pytest.mark.parametrize("kind", ["plain", "async"])
def test_a_hanging_tool_is_left_when_its_time_is_up(stage: Stage, kind: str) -> None:
    ended = threading.Event()

    def plain() -> None:
        ended.wait(30)

    async def wait_for_event() -> None:
        try:
            await asyncio.sleep(30)
        finally:
            ended.set()

    hanging: Callable[..., Any] = plain if kind == "plain" else wait_for_event
    if not stage.real:
        hanging = SimulatedTool(None, after=30)

    def flow() -> Flow[str]:
        branch = yield from Spawn(invoke(hanging))
        assert (yield from Wait([branch], timeout=0.1)) is None
        yield from Cancel([branch])
        assert (yield from Wait([branch], timeout=0.01)) is None
        return "went on"

    try:
        played = stage.play(flow())
        assert played.value == "went on"
        assert played.seconds < 0.6
        if stage.real and kind == "async":
            assert ended.is_set(), "an async tool gets to clean up"
    finally:
        ended.set()


def test_reports_arrive_while_the_tool_runs(stage: Stage) -> None:
    def plain(report: Callable[[object], None]) -> str:
        for number in range(3):
            report(number)
        return "done"

    async def wait_for_event(report: Callable[[object], None]) -> str:
        return plain(report)

    def flow(tool: Callable[..., Any]) -> Flow[list[object]]:
        seen: list[object] = []
        branch = yield from Spawn(invoke(tool, reports=True))
        while True:
            match (yield from Wait([branch])):
                case Emitted(_, events):
                    seen.extend(events)
                case Finished(_, value):
                    return [*seen, value]
                case other:
                    raise AssertionError(other)

    tools: list[Callable[..., Any]] = [plain, wait_for_event]
    if not stage.real:
        tools.append(SimulatedTool("done", after=3, reports=[(1, 0), (2, 1), (2.5, 2)]))
    for tool in tools:
        assert stage.play(flow(tool)).value == [0, 1, 2, "done"]


def test_a_report_after_the_end_does_nothing(real_stage: Stage) -> None:
    reporters: list[Callable[[object], None]] = []

    def flow() -> Flow[object]:
        branch = yield from Spawn(invoke(lambda report: reporters.append(report), reports=True))
        assert isinstance((yield from Wait([branch])), Finished)
        reporters[0]("late")
        return (yield from Wait([branch], timeout=0.05))

    assert real_stage.play(flow()).value is None
    reporters[0]("much too late")


def test_system_exit_in_a_branch_ends_the_whole_run(stage: Stage) -> None:
    def flow() -> Flow[Any]:
        with (yield from Open(stage.ask("stall"), Limits())) as body:
            yield from Read(body)
            return (yield from together(sys.exit, lambda: "fast"))

    assert isinstance(stage.play(flow(), stall=stall).error, SystemExit)
    assert stage.leftovers("stall")


def test_branches_end_with_the_run_that_spawned_them(stage: Stage) -> None:
    def flow() -> Flow[str]:
        yield from Spawn(listen(stage, "stall"))
        yield from Spawn(fetch(stage, "never"))
        yield from Sleep(0.2)
        return "ended first"

    assert stage.play(flow(), stall=stall, never=never).value == "ended first"
    assert stage.leftovers("stall")
    assert stage.leftovers("never")
    assert not branch_threads()


@pytest.mark.timing
def test_a_branch_of_a_branch_ends_too(stage: Stage) -> None:
    def child() -> Flow[None]:
        branch = yield from Spawn(fetch(stage, "never"))
        yield from Wait([branch])

    def flow() -> Flow[str]:
        branch = yield from Spawn(child())
        assert (yield from Wait([branch], timeout=0.2)) is None
        yield from Cancel([branch])
        return "done"

    played = stage.play(flow(), never=never)
    assert played.value == "done"
    assert played.seconds < 0.6
    assert stage.leftovers("never")
    assert not branch_threads()


def test_a_branch_that_is_cancelled_before_it_began_does_nothing(stage: Stage) -> None:
    def flow() -> Flow[str]:
        branch = yield from Spawn(fetch(stage, "never"))
        yield from Cancel([branch])
        yield from Cancel([branch])
        return "done"

    assert stage.play(flow(), never=never).value == "done"


@pytest.mark.timing
def test_waiting_for_branches_ends_at_the_deadline(stage: Stage) -> None:
    def flow() -> Flow[None]:
        branch = yield from Spawn(fetch(stage, "never"))
        assert (yield from Wait([branch])) is not None

    played = stage.play(flow(), deadline=0.2, never=never)
    # Parent and branch share one deadline; either may report it first.
    assert played.error is None or (isinstance(played.error, errors.TimeoutError) and played.error.deadline)
    assert 0.19 < played.seconds < 0.5
    assert stage.leftovers("never")


@pytest.mark.timing
def test_a_tool_that_runs_into_the_deadline_ends_the_run(stage: Stage) -> None:
    ended = threading.Event()
    hanging: Callable[..., Any] = (lambda: ended.wait(5)) if stage.real else SimulatedTool("late", 1)
    played = stage.play(together(hanging), deadline=0.2)
    ended.set()
    error = played.error if played.error is not None else played.value[0]
    assert isinstance(error, errors.TimeoutError)
    assert error.deadline
    assert 0.19 < played.seconds < 0.5


# Races


@pytest.mark.timing
def test_the_fastest_answer_wins_and_the_others_are_hung_up_on(stage: Stage) -> None:
    contestants = [fetch(stage, mode) for mode in ("never", "slow", "failing")]
    played = stage.play(
        race(contestants, pause=False), never=never, slow=lambda: whole("slow", 0.15), failing=error_reply
    )
    assert b"slow" in played.value
    assert played.seconds < 0.5
    assert stage.leftovers("never")
    assert not branch_threads()


def test_a_stream_wins_with_its_first_token_and_the_parent_reads_on(stage: Stage) -> None:
    contestants = [listen(stage, "never"), once_asked(stage, "never", listen(stage, "words"))]
    played = stage.play(race(contestants, pause=True), never=never, words=lambda: tokens(40, 0.003))
    assert played.value == "".join(played.texts)
    assert len(played.events) > 10
    assert "t39" in played.value
    assert stage.leftovers("never")
    assert stage.is_everything_closed()


@pytest.mark.timing
def test_the_deadline_holds_for_a_stream_won_in_a_race(stage: Stage) -> None:
    contestants = [listen(stage, mode) for mode in ("never", "stall")]
    played = stage.play(race(contestants, pause=True), deadline=0.4, never=never, stall=stall)
    assert isinstance(played.error, errors.TimeoutError)
    assert played.error.deadline
    assert len(played.events) == 1
    assert 0.39 < played.seconds < 0.5
    assert stage.leftovers("stall")


@pytest.mark.timing
def test_the_idle_limit_holds_for_a_stream_won_in_a_race(stage: Stage) -> None:
    contestants = [listen(stage, "never"), listen(stage, "stall", idle=0.2)]
    played = stage.play(race(contestants, pause=True), never=never, stall=stall)
    assert isinstance(played.error, errors.TimeoutError)
    assert not played.error.deadline
    assert 0.19 < played.seconds < 0.5


def test_a_stream_won_in_a_race_is_read_on_the_parents_time(stage: Stage) -> None:
    """Each token starts the idle time anew, for the parent as it did for the branch."""
    contestants = [listen(stage, "never"), listen(stage, "words", idle=1.0)]
    played = stage.play(race(contestants, pause=True), never=never, words=lambda: tokens(12, 0.1))
    assert played.error is None
    assert "t11" in played.value
    assert played.seconds > 1.0, "longer than the idle time"


@pytest.mark.timing
def test_a_stream_won_in_a_race_can_be_cancelled() -> None:
    with SyncStage() as stage:
        stage.answers = {"never": never, "stall": stall}
        flow = race([listen(stage, "never"), listen(stage, "stall")], pause=True)
        run = SyncRun(stage.transport, flow)
        assert run.advance()
        threading.Timer(0.1, run.cancel).start()
        started = time.monotonic()
        with pytest.raises(Cancelled):
            run.advance()
        assert time.monotonic() - started < 0.5
        assert stage.leftovers("stall")


def test_a_race_that_all_lose_raises(stage: Stage) -> None:
    contestants = [fetch(stage, mode) for mode in ("failing", "missing")]
    played = stage.play(race(contestants, pause=False), failing=error_reply, missing=lambda: error_reply(404))
    assert isinstance(played.error, errors.RoutingError)
    assert "2 failed" in str(played.error)


def test_a_winner_whose_rest_is_not_wanted_is_closed(stage: Stage) -> None:
    def flow() -> Flow[str]:
        branch = yield from Spawn(listen(stage, "endless"), pause=True)
        assert isinstance((yield from Wait([branch])), Paused)
        yield from Cancel([branch])
        return "not wanted"

    assert stage.play(flow(), endless=endless).value == "not wanted"
    assert stage.leftovers("endless")


def test_a_winner_that_is_forgotten_is_closed_with_the_run(stage: Stage) -> None:
    def flow() -> Flow[str]:
        branch = yield from Spawn(listen(stage, "endless"), pause=True)
        assert isinstance((yield from Wait([branch])), Paused)
        return "forgotten"

    assert stage.play(flow(), endless=endless).value == "forgotten"
    assert stage.leftovers("endless")


def test_leaving_a_race_in_the_middle_closes_everything(real_stage: Stage) -> None:
    real_stage.answers = {"never": never, "endless": endless}
    endless_one = once_asked(real_stage, "never", listen(real_stage, "endless"))
    flow = race([listen(real_stage, "never"), endless_one], pause=True)
    if real_stage.name == "sync":
        run = SyncRun(real_stage.transport, flow)
        run.advance()
        run.close()
    else:
        asyncio.run(_advance_once(real_stage, flow))
    assert hung_up(real_stage.server, "never")
    assert hung_up(real_stage.server, "endless")
    assert not branch_threads()


async def _advance_once(stage: Stage, flow: Flow[Any]) -> None:
    run = AioRun(stage.transport, flow)
    await run.advance()
    await run.aclose()
    assert asyncio.all_tasks() == {asyncio.current_task()}


def test_cancelling_a_race_closes_everything(real_stage: Stage) -> None:
    real_stage.answers = {"never": never}
    flow = race([fetch(real_stage, "never"), listen(real_stage, "never")], pause=False)

    def sync() -> None:
        run = SyncRun(real_stage.transport, flow)
        threading.Timer(0.25, run.cancel).start()
        with pytest.raises(Cancelled):
            run.advance()

    async def aio() -> None:
        task = asyncio.create_task(AioRun(real_stage.transport, flow).advance())
        await asyncio.sleep(0.25)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert asyncio.all_tasks() == {asyncio.current_task()}

    sync() if real_stage.name == "sync" else asyncio.run(aio())
    assert real_stage.server.wait_until(lambda: len(real_stage.server.disconnects) == 2)
    assert not branch_threads()


def test_many_races_leave_nothing(real_stage: Stage) -> None:
    def flow() -> Flow[int]:
        won = 0
        for number in range(12):
            contestants = [listen(real_stage, mode) for mode in ("never", "words", "failing_stream")]
            won += bool((yield from race(contestants, pause=bool(number % 2))))
        return won

    started = {thread.name for thread in threading.enumerate()}
    played = real_stage.play(flow(), never=never, words=lambda: tokens(3), failing_stream=lambda: tokens(1))
    assert played.value == 12
    assert real_stage.is_everything_closed()
    assert not branch_threads()
    # A losing branch that was connecting leaves a thread, which closes its connection.
    assert real_stage.server.wait_until(lambda: {thread.name for thread in threading.enumerate()} <= started)


def test_events_of_a_branch_are_news_for_its_parent(stage: Stage) -> None:
    def child() -> Flow[str]:
        yield Emit([StreamEvent.text_delta("one")])
        yield Emit([StreamEvent.text_delta("two")])
        return "three"

    def flow() -> Flow[list[Any]]:
        branch = yield from Spawn(child())
        heard: list[Any] = []
        while True:
            match (yield from Wait([branch])):
                case Emitted(_, events):
                    heard.extend(event.text for event in events)
                case Finished(_, value):
                    return [*heard, value]
                case other:
                    raise AssertionError(other)

    played = stage.play(flow())
    assert played.value == ["one", "two", "three"]
    assert played.events == []
