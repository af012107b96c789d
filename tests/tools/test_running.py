"""Starting, cancelling and abandoning single tool calls."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from contextvars import copy_context
from typing import Any

import pytest

from agent.errors import ConfigurationError
from agent.tools import Signal, ToolContext, ToolError, execution, isolation, tool
from agent.tools.execution import CancellableAwaitable, RunningCall, run_tool
from agent.tools.isolation import ChildProcess
from tests.loop import isolated_tools


def child() -> ChildProcess:
    return ChildProcess(isolated_tools.exits, ToolContext(), 1.0, 1_000)


# Signals


def test_a_signal_is_heard_by_all_who_wait_for_it() -> None:
    signal = Signal()

    async def main() -> list[bool]:
        waiting = [asyncio.create_task(signal.wait()) for _ in range(3)]
        await asyncio.sleep(0)
        assert not signal.is_set()
        threading.Thread(target=signal.set).start()
        heard = await asyncio.gather(*waiting)
        return [*heard, await signal.wait()]

    assert asyncio.run(main()) == [True] * 4
    assert signal.block(0)


def test_a_signal_does_not_mind_who_has_stopped_waiting() -> None:
    signal = Signal()

    async def main() -> None:
        waiting = asyncio.create_task(signal.wait())
        await asyncio.sleep(0)
        waiting.cancel()
        with suppress(asyncio.CancelledError):
            await waiting

    asyncio.run(main())
    loop = asyncio.new_event_loop()
    left = loop.create_task(signal.wait())
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    signal.set()  # its loop has ended
    assert signal.is_set()
    left._log_destroy_pending = False  # type: ignore[attr-defined]  # that is the point


# Processes


def test_a_process_that_is_given_up_before_it_begins_is_not_started() -> None:
    running = RunningCall(Signal())
    running.cancel()
    given_up = running.attach_process(child())
    with pytest.raises(ToolError, match="cancelled before it started"):
        given_up.run(report=print)
    given_up.kill()


def test_a_process_that_is_looking_for_its_tool_starts_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolation, "is_loading", True)
    with pytest.raises(ConfigurationError, match="in a tool process runs it") as caught:
        child()
    assert "__main__" in str(caught.value)


# Threads


def test_a_coroutine_that_comes_when_nobody_waits_any_more_is_closed() -> None:
    @tool
    def hands_out() -> Any:
        running.cancel()
        return asyncio.sleep(60)

    running = RunningCall(Signal())
    flow = run_tool(running, hands_out, hands_out.check({}), ToolContext(), 1.0, 1_000)
    invoke: Any = next(flow)
    with pytest.raises(ToolError, match="cancelled"):
        copy_context().run(invoke.function, report=print)  # as drivers do it
    flow.close()


# Coroutines


async def _stays(closed: list[str]) -> None:
    try:
        while True:
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(60)
    except GeneratorExit:
        closed.append("closed")
        raise


def start_awaiting(awaitable: CancellableAwaitable, *, cancelled: bool) -> Any:
    """Its steps, the first of which were made in a loop that has ended since."""

    async def begin() -> Any:
        steps = awaitable.__await__()
        steps.send(None)
        if cancelled:
            steps.throw(asyncio.CancelledError())
        return steps

    return asyncio.run(begin())


def test_a_coroutine_is_closed_with_whoever_awaits_it() -> None:
    closed: list[str] = []
    awaitable = CancellableAwaitable(_stays(closed), lambda: False)
    start_awaiting(awaitable, cancelled=False).close()
    assert closed == ["closed"]
    assert awaitable.closed


def test_a_coroutine_that_was_given_up_is_not_run_again_when_its_loop_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[Any] = []
    monkeypatch.setattr(execution, "_keep_alive_forever", kept.append)
    closed: list[str] = []
    awaitable = CancellableAwaitable(_stays(closed), lambda: True)
    start_awaiting(awaitable, cancelled=True).close()
    assert awaitable.closed
    assert closed == []
    assert [each.__name__ for each in kept] == ["_as_coroutine", "_stays", "sleep"]
    kept[0].close()
