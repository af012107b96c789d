"""Streams as turns of a session: what surrounds their iteration, and what the session keeps of them.

A turn counts when its end has been read. A stream that is left, aborted or broken leaves nothing; or, if the session
keeps partial answers, what had arrived, without incomplete tool calls.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
)
from typing import Any, TypeVar

from ..errors import StreamInterrupted
from ..looping.results import RunResult
from ..looping.streams import RunView
from ..streams import ResponseView
from ..types import AgentResponse, ToolCall

T = TypeVar("T")


def turn_scope(
    turn: Callable[[], AbstractContextManager[None]],
    outcome: Callable[[Any], T | None],
    commit: Callable[[T], None],
) -> Callable[[Any], AbstractContextManager[None]]:
    """The scope of a stream that is a turn: `commit` gets the stream's outcome, if there is one."""

    @contextmanager
    def scope(stream: Any) -> Iterator[None]:
        with turn():
            yield
            found = outcome(stream)
            if found is not None:
                commit(found)

    return scope


def async_turn_scope(
    turn: Callable[[], AbstractContextManager[None]],
    load: Callable[[], Awaitable[object]],
    outcome: Callable[[Any], T | None],
    commit: Callable[[T], Awaitable[None]],
) -> Callable[[Any], AbstractAsyncContextManager[None]]:
    """Async version of `turn_scope`; `load` is awaited before the stream starts."""

    @asynccontextmanager
    async def scope(stream: Any) -> AsyncIterator[None]:
        with turn():
            await load()
            yield
            found = outcome(stream)
            if found is not None:
                await commit(found)

    return scope


def kept_response(stream: ResponseView[Any], *, partial: bool) -> AgentResponse | None:
    """What a session keeps of an answer: all of it, or if `partial`, what had arrived; None for nothing."""
    if stream.ended:
        return stream.response
    if not partial:
        return None
    error = stream.error
    arrived = error.partial if isinstance(error, StreamInterrupted) else stream.partial
    if arrived is None:
        return None
    content = tuple(part for part in arrived.content if not isinstance(part, ToolCall))
    return arrived.model_copy(update={"content": content, "stop_reason": "error"}) if content else None


def kept_result(stream: RunView, *, partial: bool) -> RunResult | None:
    """What a session keeps of a run: all of it, or if `partial`, what was done before it failed; None for nothing."""
    if stream.ended:
        return stream.result if stream.result.paused is None else None
    found: RunResult | None = getattr(stream.error, "result", None)
    return found if partial else None
