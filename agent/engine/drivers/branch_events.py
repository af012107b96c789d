"""News of branches, taken the same way by every driver."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from ..flow import Branch, Failed, Finished, News


def take_news(waiting: deque[News], branches: Sequence[Branch], children: list[Any]) -> News | None:
    """The oldest news of these branches, taken out of what waits; one that has ended is no child any more."""
    for news in waiting:
        if news.branch in branches:
            waiting.remove(news)
            if isinstance(news, Finished | Failed):
                news.branch.done = True
                children.remove(news.branch.run)
            return news
    return None


def fatal(news: News | None) -> BaseException | None:
    """What a branch died of, if that is no mere Exception: an interrupt or an exit ends the whole run."""
    if isinstance(news, Failed) and not isinstance(news.error, Exception):
        return news.error
    return None


class Gathered:
    """Takes reports in any thread, and tells all of them at once as soon as the event loop comes to it.

    A thread that never rests leaves a loop milliseconds for each system call, and being woken takes three of them: a
    thousand reports told one by one would hold everybody up for many seconds.
    """

    __slots__ = ("_on_loop", "_scheduled", "_tell", "_waiting")

    def __init__(self, tell: Callable[[list[Any]], object], on_loop: Callable[[Callable[[], object]], object]) -> None:
        self._tell = tell
        self._on_loop = on_loop
        self._waiting: deque[Any] = deque()
        self._scheduled = False

    def __call__(self, report: Any) -> None:
        self._waiting.append(report)
        if not self._scheduled:
            self._scheduled = True
            self._on_loop(self._tell_all)

    def _tell_all(self) -> None:
        self._scheduled = False  # first: what comes from now on is told in any case, now or by another call
        waiting = self._waiting
        if reports := [waiting.popleft() for _ in range(len(waiting))]:
            self._tell(reports)
