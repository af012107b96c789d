"""Turns of a session while they happen. A turn counts when its end has been read, and then it is written down.

One that is left, aborted or broken leaves nothing; or, if the session keeps partial answers, what had come by then,
marked. A partial answer never holds half a call.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, Self

from typing_extensions import override

from ..errors import AgentError, ConfigurationError, StreamInterrupted
from ..looping.results import RunResult
from ..types import AgentResponse, ToolCall


def _kept(response: AgentResponse | None) -> AgentResponse | None:
    """What of a broken answer may stay."""
    if response is None:
        return None
    content = tuple(part for part in response.content if not isinstance(part, ToolCall))
    return response.model_copy(update={"content": content, "stop_reason": "error"}) if content else None


def _partial_of(stream: Any, error: BaseException | None) -> AgentResponse | None:
    if isinstance(error, StreamInterrupted):
        return _kept(error.partial)
    try:
        return _kept(stream.response)
    except AgentError:
        return None


class _Forwards:
    """Everything about a stream that the session does not change."""

    _stream: Any = None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or self._stream is None:
            raise AttributeError(name)
        return getattr(self._stream, name)

    def abort(self) -> None:
        if self._stream is not None:
            self._stream.abort()


class _Turn(_Forwards):
    """A stream that is a turn of a session. What becomes of it when it ends is said below."""

    def __init__(
        self, turn: Callable[[], Any], start: Callable[[], Any], commit: Callable[[Any], None], *, keep_partial: bool
    ) -> None:
        self._turn = turn
        self._start = start
        self._commit = commit
        self._keep = keep_partial

    def __iter__(self) -> Iterator[Any]:
        with self._turn():
            stream = self._stream = self._start()
            failure: BaseException | None = None
            try:
                yield from stream
            except BaseException as error:
                failure = error
                raise
            finally:
                stream.close()
                if (whole := self._taken(stream, failure)) is not None:
                    self._commit(whole)

    def _taken(self, stream: Any, failure: BaseException | None) -> Any:
        """What the session takes of it; None for nothing."""
        raise NotImplementedError

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class _AsyncTurn(_Forwards):
    """The same, for `async for`."""

    def __init__(
        self,
        turn: Callable[[], Any],
        start: Callable[[], Awaitable[Any]],
        commit: Callable[[Any], Awaitable[None]],
        *,
        keep_partial: bool,
    ) -> None:
        self._turn = turn
        self._start = start
        self._commit = commit
        self._keep = keep_partial

    async def __aiter__(self) -> AsyncIterator[Any]:
        with self._turn():
            stream = self._stream = await self._start()
            failure: BaseException | None = None
            try:
                async for event in stream:
                    yield event
            except BaseException as error:
                failure = error
                raise
            finally:
                await stream.aclose()
                if (whole := self._taken(stream, failure)) is not None:
                    await self._commit(whole)

    def _taken(self, stream: Any, failure: BaseException | None) -> Any:
        """What the session takes of it; None for nothing."""
        raise NotImplementedError

    async def aclose(self) -> None:
        if self._stream is not None:
            await self._stream.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()


class SessionStream(_Turn):
    """The events of an answer, as from `Agent.stream`; `response`, `text`, `usage` and the others are its."""

    @override
    def _taken(self, stream: Any, failure: BaseException | None) -> Any:
        return _answer_of(stream, failure, keep=self._keep)

    def text_stream(self) -> Iterator[str]:
        """Only the text, piece by piece."""
        for event in self:
            if event.type == "text_delta" and event.text:
                yield event.text

    def collect(self) -> AgentResponse:
        """Read to the end, and return the response."""
        for _ in self:
            pass
        response: AgentResponse = self._stream.response
        return response


class AsyncSessionStream(_AsyncTurn):
    """As `SessionStream`, for `async for`. Leave it with `async with`, or read it to its end."""

    @override
    def _taken(self, stream: Any, failure: BaseException | None) -> Any:
        return _answer_of(stream, failure, keep=self._keep)

    async def collect(self) -> AgentResponse:
        """Read to the end, and return the response."""
        async for _ in self:
            pass
        response: AgentResponse = self._stream.response
        return response


class SessionRun(_Turn):
    """The events of a run, as from `Agent.run_stream`; `result`, `steer`, `follow_up` and the others are its."""

    def __init__(
        self,
        turn: Callable[[], Any],
        start: Callable[[], Any],
        commit: Callable[[Any], None],
        *,
        keep_partial: bool,
        finish: Callable[[RunResult], RunResult],
    ) -> None:
        super().__init__(turn, start, commit, keep_partial=keep_partial)
        self._finish = finish

    @property
    def result(self) -> RunResult:
        """As of `Agent.run_stream`. A paused run can be resumed with the session's `run`."""
        return self._finish(_started(self._stream).result)

    @override
    def _taken(self, stream: Any, failure: BaseException | None) -> Any:
        return _result_of(stream, keep=self._keep)

    def collect(self) -> RunResult:
        """Run to the end, and return the result."""
        for _ in self:
            pass
        return self.result


class AsyncSessionRun(_AsyncTurn):
    """As `SessionRun`, for `async for`."""

    def __init__(
        self,
        turn: Callable[[], Any],
        start: Callable[[], Awaitable[Any]],
        commit: Callable[[Any], Awaitable[None]],
        *,
        keep_partial: bool,
        finish: Callable[[RunResult], RunResult],
    ) -> None:
        super().__init__(turn, start, commit, keep_partial=keep_partial)
        self._finish = finish

    @property
    def result(self) -> RunResult:
        """As of `Agent.run_stream`. A paused run can be resumed with the session's `run`."""
        return self._finish(_started(self._stream).result)

    @override
    def _taken(self, stream: Any, failure: BaseException | None) -> Any:
        return _result_of(stream, keep=self._keep)

    async def collect(self) -> RunResult:
        """Run to the end, and return the result."""
        async for _ in self:
            pass
        return self.result


def _started(stream: Any) -> Any:
    if stream is None:
        raise ConfigurationError(
            "The run has not started, so there is no result yet.",
            field="result",
            fix="Iterate to the end first, or call collect().",
        )
    return stream


def _answer_of(stream: Any, failure: BaseException | None, *, keep: bool) -> AgentResponse | None:
    """What the session takes of an answer: all of it, or what had come before it broke, or nothing."""
    if stream.ended:
        whole: AgentResponse = stream.response
        return whole
    return _partial_of(stream, failure) if keep else None


def _result_of(stream: Any, *, keep: bool) -> RunResult | None:
    """What the session takes of a run: all of it, or what was done before it broke, or nothing."""
    error = stream.error
    if error is None:
        try:
            found: RunResult = stream.result
        except AgentError:
            return None  # it was left
        return found if found.paused is None else None
    partial: RunResult | None = getattr(error, "result", None)
    return partial if keep and partial is not None else None
