"""News of branches, taken the same way by every driver."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
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
