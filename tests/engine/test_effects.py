"""Effects: every driver performs each of them with the same result."""

from __future__ import annotations

import asyncio
import contextvars
import math
import sys
import threading
import time
from typing import Any

import pytest

from agent import errors
from agent.engine.context import ambient_deadline
from agent.engine.drivers.sync import SyncRun
from agent.engine.flow import Emit, Flow, Invoke, Now, Open, Random, Read, Send, Sleep, intercept, rest_of
from agent.engine.wire import Cancelled, Limits
from agent.types import StreamEvent
from tests.engine.play import Stage, SyncStage, cut, endless, listen, never, stall, tokens, whole

COLOUR: contextvars.ContextVar[str] = contextvars.ContextVar("colour", default="none")


def test_every_effect_is_answered(stage: Stage) -> None:
    def flow() -> Flow[dict[str, Any]]:
        before = yield from Now()
        yield from Sleep(0.02)
        after = yield from Now()
        chance = yield from Random()
        reply = yield from Send(stage.ask("page"), Limits())
        text = yield from listen(stage, "words")
        total = yield from Invoke(sum, ([1, 2, 3],))
        return {"waited": after - before, "chance": chance, "reply": reply, "text": text, "total": total}

    played = stage.play(flow(), page=lambda: whole("page"), words=lambda: tokens(3))
    assert played.error is None
    assert 0.0199 <= played.value["waited"] < 0.5
    assert 0 <= played.value["chance"] < 1
    assert played.value["reply"].status == 200
    assert b"page" in played.value["reply"].body
    assert played.value["text"] == "".join(played.texts)
    assert "t2" in played.value["text"]
    assert played.value["total"] == 6


def test_a_failed_effect_is_an_exception_in_the_flow_which_may_go_on(stage: Stage) -> None:
    def flow() -> Flow[str]:
        try:
            yield from listen(stage, "cut")
        except (errors.ConnectionError, ConnectionResetError):
            reply = yield from Send(stage.ask("page"), Limits())
            return reply.body.decode()
        return "not cut"

    played = stage.play(flow(), cut=cut, page=lambda: whole("second try"))
    assert "second try" in played.value
    assert stage.is_everything_closed()


def test_a_body_that_was_let_go_is_closed_before_the_flow_waits(stage: Stage) -> None:
    """No socket may stay open during a backoff."""

    def flow() -> Flow[None]:
        with (yield from Open(stage.ask("stall"), Limits())) as body:
            yield from Read(body)
        yield from Sleep(0.3)

    stage.play(flow(), stall=stall)
    if stage.name == "simulated":
        assert stage.simulation.open_bodies_while_sleeping == 0  # type: ignore[attr-defined]
    else:
        assert time.monotonic() - stage.server.disconnects[0][1] > 0.2


def test_a_body_the_flow_forgot_is_closed_when_the_run_ends(stage: Stage) -> None:
    def flow() -> Flow[str]:
        body = yield from Open(stage.ask("stall"), Limits())
        yield from Read(body)
        return "done"

    assert stage.play(flow(), stall=stall).value == "done"
    assert stage.leftovers("stall")


def test_reading_a_closed_body_is_a_typed_error(stage: Stage) -> None:
    def flow() -> Flow[None]:
        body = yield from Open(stage.ask("words"), Limits())
        while (yield from Read(body)):
            pass
        yield from Read(body)

    error = stage.play(flow(), words=lambda: tokens(1)).error
    assert isinstance(error, errors.ConnectionError)
    assert "after its end" in str(error)


@pytest.mark.parametrize("kind", [StopIteration, StopAsyncIteration])
@pytest.mark.parametrize("blocking", [False, True])
def test_a_stop_iteration_of_user_code_does_not_end_the_flow(
    stage: Stage, kind: type[Exception], blocking: bool
) -> None:
    def user_code() -> None:
        raise kind("mine")

    def flow() -> Flow[str]:
        try:
            yield from Invoke(user_code, blocking=blocking)
        except RuntimeError as error:
            return str(error)
        return "it vanished"

    assert stage.play(flow()).value == f"user code raised {kind.__name__}"


def test_user_code_that_cancels_itself_fails_and_the_flow_goes_on(real_stage: Stage) -> None:
    async def user_code() -> None:
        raise asyncio.CancelledError

    def flow() -> Flow[str]:
        try:
            yield from Invoke(user_code)
        except RuntimeError as error:
            return str(error)
        return "it vanished"

    assert real_stage.play(flow()).value == "user code was cancelled"


def test_system_exit_in_user_code_ends_the_run_and_closes_what_it_held(stage: Stage) -> None:
    caught: list[BaseException] = []

    def flow() -> Flow[None]:
        with (yield from Open(stage.ask("stall"), Limits())) as body:
            yield from Read(body)
            try:
                yield from Invoke(sys.exit, (3,))
            except Exception as error:
                caught.append(error)

    played = stage.play(flow(), stall=stall)
    assert isinstance(played.error, SystemExit)
    assert not caught
    assert stage.leftovers("stall")


@pytest.mark.parametrize("blocking", [False, True])
def test_user_code_sees_the_callers_context_and_cannot_change_it(stage: Stage, blocking: bool) -> None:
    def plain() -> str:
        seen = COLOUR.get()
        COLOUR.set("changed")
        return seen

    async def wait_for_event() -> str:
        return plain()

    def flow() -> Flow[tuple[str, str]]:
        first: str = yield from Invoke(plain, blocking=blocking)
        second: str = yield from Invoke(wait_for_event, blocking=blocking)
        return first, second

    token = COLOUR.set("blue")
    try:
        assert stage.play(flow()).value == ("blue", "blue")
        assert COLOUR.get() == "blue"
    finally:
        COLOUR.reset(token)


def test_user_code_can_be_given_a_context_of_its_own(stage: Stage) -> None:
    own = contextvars.copy_context()
    own.run(COLOUR.set, "red")

    async def wait_for_event() -> str:
        return COLOUR.get()

    def flow() -> Flow[tuple[str, str]]:
        return (yield from Invoke(COLOUR.get, context=own)), (yield from Invoke(wait_for_event, context=own))

    assert stage.play(flow()).value == ("red", "red")


@pytest.mark.timing
def test_user_code_sees_the_deadline_and_nobody_else_does(real_stage: Stage) -> None:
    def flow() -> Flow[tuple[float, float]]:
        inside: float = yield from Invoke(ambient_deadline.get)
        return inside, ambient_deadline.get()

    started = time.monotonic()
    inside, outside = real_stage.play(flow(), deadline=5).value
    assert 4.5 < inside - started < 5.5
    assert outside == math.inf


@pytest.mark.timing
def test_async_user_code_ends_at_the_deadline(real_stage: Stage) -> None:
    cleaned: list[str] = []

    async def hangs() -> None:
        try:
            await asyncio.sleep(30)
        finally:
            cleaned.append("yes")

    def flow() -> Flow[None]:
        yield from Invoke(hangs)

    played = real_stage.play(flow(), deadline=0.2)
    assert isinstance(played.error, errors.TimeoutError)
    assert played.error.deadline
    assert cleaned == ["yes"]
    assert 0.19 < played.seconds < 0.6


@pytest.mark.timing
def test_user_code_that_swallows_its_cancellation_is_left_after_the_grace(real_stage: Stage) -> None:
    gate: list[Any] = []

    async def stubborn() -> None:
        release = asyncio.Event()
        gate.append((asyncio.get_running_loop(), release))
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue

    def flow() -> Flow[str]:
        try:
            yield from Invoke(stubborn)
        except errors.TimeoutError:
            loop, release = gate[0]
            loop.call_soon_threadsafe(release.set)  # so that nothing is left for the next test
            return "gave up"
        return "waited"

    played = real_stage.play(flow(), deadline=0.1)
    assert played.value == "gave up"
    assert played.seconds < 2.0


def test_intercept_replaces_events_and_passes_everything_else(stage: Stage) -> None:
    def on_emit(emit: Emit) -> Flow[None]:
        yield from Sleep(0.001)
        yield Emit([StreamEvent.text_delta("[" + (event.text or "") + "]") for event in emit.events])

    def inner() -> Flow[str]:
        try:
            yield from Send(stage.ask("cut"), Limits())
        except (errors.ConnectionError, ConnectionResetError):
            yield Emit([StreamEvent.text_delta("caught")])
        return "result"

    played = stage.play(intercept(inner(), on_emit), cut=lambda: cut())
    assert (played.value, played.texts) == ("result", ["[caught]"])


def test_what_an_interceptor_raises_is_raised_at_the_emit() -> None:
    seen: list[str] = []

    def inner() -> Flow[str]:
        try:
            yield Emit([])
        except KeyError:
            seen.append("raised inside")
            raise
        return "never"

    def on_emit(emit: Emit) -> Flow[None]:
        raise KeyError("hook")
        yield emit

    flow = intercept(inner(), on_emit)
    with pytest.raises(KeyError):
        next(flow)
    assert seen == ["raised inside"]


@pytest.mark.parametrize("wrap", ["intercept", "rest_of"])
def test_closing_a_wrapped_flow_closes_the_flow(wrap: str) -> None:
    closed: list[str] = []

    def inner() -> Flow[None]:
        try:
            yield from Sleep(1)
            yield from Sleep(1)
        finally:
            closed.append("yes")

    def on_emit(emit: Emit) -> Flow[None]:
        yield emit

    flow = inner()
    if wrap == "intercept":
        wrapped = intercept(flow, on_emit)
    else:
        next(flow)
        wrapped = rest_of(flow, Emit([]))
    next(wrapped)
    wrapped.close()
    assert closed == ["yes"]


def test_the_rest_of_a_flow_begins_with_what_was_pending() -> None:
    def inner() -> Flow[str]:
        yield Emit([])
        value: str = yield from Invoke(str, ("x",))
        return value

    flow = inner()
    pending = next(flow)
    assert isinstance(pending, Emit)
    rest = rest_of(flow, pending)
    assert next(rest) is pending
    assert isinstance(rest.send(None), Invoke)
    with pytest.raises(StopIteration) as stop:
        rest.send("x")
    assert stop.value.value == "x"


def test_a_flow_that_acts_while_being_closed_is_an_error_but_its_socket_is_closed(real_stage: Stage) -> None:
    def flow() -> Flow[None]:
        try:
            yield from listen(real_stage, "endless")
        finally:
            yield from Now()

    real_stage.answers = {"endless": endless}
    if real_stage.name == "sync":
        run = SyncRun(real_stage.transport, flow())
        run.advance()
        with pytest.raises(RuntimeError, match="ignored GeneratorExit"):
            run.close()
    else:
        asyncio.run(_advance_and_close(real_stage, flow()))
    assert real_stage.leftovers("endless")


async def _advance_and_close(stage: Stage, flow: Flow[Any]) -> None:
    from agent.engine.drivers.asyncio import AioRun

    run = AioRun(stage.transport, flow)
    await run.advance()
    with pytest.raises(RuntimeError, match="ignored GeneratorExit"):
        await run.aclose()


def test_a_flow_that_raises_value_error_while_being_closed_does_not_keep_its_socket() -> None:
    """A context variable that is reset elsewhere raises ValueError, as a running generator would."""

    def flow() -> Flow[None]:
        try:
            yield from listen(stage, "endless")
        finally:
            raise ValueError("created in a different Context")

    with SyncStage() as stage:
        stage.answers = {"endless": endless}
        run = SyncRun(stage.transport, flow())
        run.advance()
        with pytest.raises(ValueError, match="different Context"):
            run.close()
        assert stage.leftovers("endless")


@pytest.mark.parametrize("mode", ["never", "stall", "sleep"])
def test_closing_from_another_thread_ends_a_blocked_run(mode: str) -> None:
    def flow() -> Flow[None]:
        if mode == "sleep":
            yield from Sleep(30)
        else:
            yield from listen(stage, mode)

    with SyncStage() as stage:
        stage.answers = {"never": never, "stall": stall}
        run = SyncRun(stage.transport, flow())
        stamps: list[float] = []

        def close() -> None:
            stage.server.wait_until(lambda: mode == "sleep" or bool(stage.server.requests))
            time.sleep(0.05)
            stamps.append(time.monotonic())
            run.close()

        threading.Thread(target=close).start()
        with pytest.raises(Cancelled):
            while run.advance() is not None:
                pass
        assert time.monotonic() - stamps[0] < 0.3
        assert run.finished
        assert mode == "sleep" or stage.leftovers(mode)


def test_a_flow_may_close_its_own_run(real_stage: Stage) -> None:
    """A plain hook is called inside the flow, and may end the stream."""
    runs: list[SyncRun] = []

    def flow() -> Flow[None]:
        yield from Now()
        runs[0].close()
        yield from Sleep(30)

    runs.append(SyncRun(real_stage.transport, flow()))
    with pytest.raises(Cancelled):
        runs[0].advance()
    assert runs[0].finished
