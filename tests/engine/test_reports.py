"""Reports of user code: batches on the event loop, in order and without loss."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

from agent.engine.drivers.user_code import ReportBatcher


def test_what_is_reported_before_the_loop_comes_to_it_is_told_at_once() -> None:
    told: list[list[Any]] = []
    scheduled: list[Callable[[], object]] = []
    report = ReportBatcher(told.append, scheduled.append)
    for number in range(100):
        report(number)
    assert len(scheduled) == 1
    scheduled.pop()()
    assert told == [list(range(100))]
    report("more")
    scheduled.pop()()
    assert told[1:] == [["more"]]
    assert scheduled == []


def test_what_is_reported_while_others_are_told_comes_next() -> None:
    told: list[list[Any]] = []
    scheduled: list[Callable[[], object]] = []

    def tell(reports: list[Any]) -> None:
        told.append(reports)
        if len(told) == 1:
            report("later")

    report = ReportBatcher(tell, scheduled.append)
    report("first")
    while scheduled:
        scheduled.pop(0)()
    assert told == [["first"], ["later"]]


def test_threads_that_report_at_once_lose_nothing_and_keep_their_order() -> None:
    told: list[tuple[int, int]] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        report = ReportBatcher(told.extend, loop.call_soon_threadsafe)

        def work(who: int) -> None:
            for number in range(2_000):
                report((who, number))

        threads = [threading.Thread(target=work, args=(who,)) for who in range(4)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            await asyncio.sleep(0.001)
        await asyncio.sleep(0)

    asyncio.run(main())
    for who in range(4):
        assert [number for one, number in told if one == who] == list(range(2_000))
