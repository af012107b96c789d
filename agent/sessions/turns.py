"""Turns of a session: one model call, a run, or a paused run that is resumed where it was started.

A paused turn is not complete, so nothing of it is in the session: the paused run holds it until it is resumed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
)
from dataclasses import dataclass
from typing import Any, TypeVar

from ..calls.requests import CALL_OPTIONS, REQUEST_OPTIONS, RequestLike, mask_call_options, read_request
from ..calls.streams import ResponseView
from ..errors import ConfigurationError, StreamInterrupted
from ..loop.results import PausedRun, RunResult, SessionPlace
from ..loop.setup import RUN_OPTIONS
from ..loop.streams import RunView
from ..types import AgentRequest, AgentResponse, Message, RequestTool, ToolCall, ToolSpec
from ..types.option_errors import check_options

_CALL_OPTIONS = CALL_OPTIONS | {"route"}


def read_turn(
    request: RequestLike, options: Mapping[str, Any], run_options: Collection[str] = ()
) -> tuple[AgentRequest, dict[str, Any]]:
    """The request of a new turn, and the options that are none of its fields."""
    mask_call_options(options)
    fields = {name: value for name, value in options.items() if name in REQUEST_OPTIONS}
    rest = {name: value for name, value in options.items() if name not in REQUEST_OPTIONS}
    check_options(rest, {*_CALL_OPTIONS, *run_options}, "A turn", REQUEST_OPTIONS)
    return read_request(request, fields), rest


def require_turn_schema(request: RequestLike, options: Mapping[str, Any]) -> None:
    """Raise ConfigurationError unless the turn has an output schema."""
    if read_turn(request, options, RUN_OPTIONS)[0].output_schema is None:
        raise ConfigurationError(
            "There is no schema for the output.", field="schema", fix="Pass schema=, such as a pydantic model."
        )


def turn_messages(asked: AgentRequest, response: AgentResponse) -> list[Message]:
    """Return all messages that a turn with one model call adds."""
    question = [Message.user(asked.input)] if asked.input else []
    return [*asked.messages, *question, response.message]


@dataclass(frozen=True, slots=True)
class Conversation:
    """The content of a session when a turn starts."""

    place: SessionPlace
    messages: Sequence[Message]
    tools: Sequence[RequestTool]


class RunTurn:
    """A run that becomes a turn when it is complete.

    Args:
        request: The request, or a paused run.
        options: As for `Agent.run`.
    """

    __slots__ = ("_place", "asked", "options", "paused", "said")

    def __init__(self, request: RequestLike | PausedRun, options: Mapping[str, Any]) -> None:
        self.paused: PausedRun | None = None
        self.asked: AgentRequest | None = None
        self.options: dict[str, Any] = dict(options)
        if isinstance(request, PausedRun):
            self.paused = request
        else:
            self.asked, self.options = read_turn(request, options, RUN_OPTIONS)
        self.said: Sequence[Message] = () if self.asked is None else self.asked.messages
        """Messages of the turn that precede its run."""
        self._place: SessionPlace | None = None

    def start(self, conversation: Conversation) -> None:
        """Note where the turn starts. Raises ConfigurationError if a paused run was started elsewhere."""
        self._place = conversation.place
        if self.paused is not None:
            self.paused = _move_behind(self.paused, conversation)
            self.said = self.paused.messages[len(conversation.messages) : self.paused.start]
            self.options.setdefault("tools", _with_functions(self.paused.request.tools, conversation.tools))

    def finish(self, result: RunResult) -> RunResult:
        """Return the result. A paused one records the place where it can be resumed."""
        if result.paused is None or result.paused.session is not None:
            return result
        return result.model_copy(update={"paused": result.paused.model_copy(update={"session": self._place})})


def _move_behind(paused: PausedRun, conversation: Conversation) -> PausedRun:
    """Return the paused run, placed after the messages of the session."""
    paused.check()
    here, there = conversation.place, paused.session
    if there is None or there.id != here.id:
        started = "outside of a session" if there is None else f"in the session {there.id!r}"
        raise ConfigurationError(
            f"The run was started {started}, and cannot be resumed in {here.id!r}.",
            field="session",
            fix="Resume it with agent.run()." if there is None else "Resume it in its session.",
        )
    known = tuple(conversation.messages)
    if tuple(there.heads) != tuple(here.heads) or len(known) > paused.start:
        raise ConfigurationError(
            f"The session {here.id!r} has changed since the run paused.",
            field="session",
            fix="undo() the turns since, or go on without the session: agent.run().",
        )
    return paused.model_copy(update={"messages": (*known, *paused.messages[len(known) :])})


def _with_functions(requested: Sequence[Any], own: Sequence[RequestTool]) -> Sequence[RequestTool]:
    """The tools of a request that was read from JSON, with the functions that the session has for them."""
    named = {tool.name: tool for tool in own if isinstance(tool, ToolSpec)}
    return [named.get(tool.name, tool) if isinstance(tool, ToolSpec) else tool for tool in requested]


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


def select_response(stream: ResponseView[Any], *, partial: bool) -> AgentResponse | None:
    """Return the part of a response to store: all, or the received part if `partial`; None for nothing."""
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


def select_result(stream: RunView, *, partial: bool) -> RunResult | None:
    """Return the part of a run to store: all, or the completed part if `partial`; None for nothing."""
    if stream.ended:
        return stream.result if stream.result.paused is None else None
    found: RunResult | None = getattr(stream.error, "result", None)
    return found if partial else None
