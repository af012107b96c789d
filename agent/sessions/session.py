"""AgentSession: a conversation with an agent, optionally kept in a store.

A paused turn is not complete, so nothing of it is in the session: the paused run holds it until it is resumed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, overload

from typing_extensions import override

from ..base_client import CallMethods
from ..calls.methods import RunMethods
from ..calls.requests import CALL_OPTIONS, REQUEST_OPTIONS, RequestLike, mask_call_options, read_request
from ..calls.streams import AsyncResponseStream, ResponseStream, ResponseView, StartedResponse
from ..errors import ConfigurationError, StreamInterrupted
from ..loop.flow import RUN_OPTIONS
from ..loop.results import PausedRun, RunResult, SessionPlace
from ..loop.streams import AsyncRunStream, RunStream, RunView, StartedRun
from ..types import AgentRequest, AgentResponse, Message, RequestTool, ToolCall, ToolSpec
from ..types.option_errors import check_options
from .state import SessionState

if TYPE_CHECKING:
    from pydantic import JsonValue
    from typing_extensions import Unpack

    from ..calls.requests import HasRequest
    from ..types.options import DepsT, JsonSchema, OutputT, OutputType, ToolRunOptions


class AgentSession(SessionState, CallMethods, RunMethods):
    """A conversation with an agent.

    ```python
    from agent.testing import scripted_agent

    session = scripted_agent("Hello, Ada!", "You are Ada.").session()
    session.run("I am Ada.")
    print(session.run("Who am I?").text)
    ```

    Args:
        agent: An Agent or a Router.
        session_id: Key of the session in the store; by default a new one.
        store: Store that keeps the conversation. By default it is kept in memory, by this object.
        system: System prompt.
        tools: Tools that are offered in every turn, in addition to the agent's.
        title: Title, for people.
        keep_partial: Whether an interrupted stream keeps the partial answer, marked as such.
        dag: Conversation graph that the session starts from.

    Each call is one turn, which the session keeps when it is complete: a stream when it has been read to its end. A run
    that pauses leaves the session as it was; resume it with `session.run(result.paused.approve())`.

    A session runs one turn at a time. Several sessions, also in several processes, may share one conversation in a
    store: the second to write raises `ConflictError` and can `reload`.
    """

    @override
    def _run(self, request: RequestLike | PausedRun, options: dict[str, Any]) -> RunResult[Any]:
        turn = RunTurn(request, options)
        with self._turn():
            result = turn.finish(self._agent.run(self._start_run(turn), **turn.options))
            if result.paused is None:
                self._add_turn([*turn.said, *result.messages], result.responses, result)
            return result

    @override
    async def _arun(self, request: RequestLike | PausedRun, options: dict[str, Any]) -> RunResult[Any]:
        turn = RunTurn(request, options)
        with self._turn():
            await self._astart_run(turn)
            result = turn.finish(await self._agent.arun(self._run_request(turn), **turn.options))
            if result.paused is None:
                await self._aadd_turn([*turn.said, *result.messages], result.responses, result)
            return result

    @override
    def _complete(self, request: RequestLike, options: dict[str, Any]) -> AgentResponse[Any]:
        asked, rest = read_turn(request, options)
        with self._turn():
            response: AgentResponse = self._agent.complete(self._with_conversation(asked), **rest)
            self._add_turn(turn_messages(asked, response), (response,), response)
            return response

    @override
    async def _acomplete(self, request: RequestLike, options: dict[str, Any]) -> AgentResponse[Any]:
        asked, rest = read_turn(request, options)
        with self._turn():
            await self._aload()
            response: AgentResponse = await self._agent.acomplete(self._with_conversation(asked), **rest)
            await self._aadd_turn(turn_messages(asked, response), (response,), response)
            return response

    @overload
    def json(
        self, request: AgentRequest | HasRequest, **options: Unpack[ToolRunOptions[DepsT]]
    ) -> RunResult[Any]: ...  # Any: the request has the schema

    @overload
    def json(
        self, request: RequestLike = (), *, schema: OutputType[OutputT], **options: Unpack[ToolRunOptions[DepsT]]
    ) -> RunResult[OutputT]: ...

    @overload
    def json(
        self, request: RequestLike = (), *, schema: JsonSchema, **options: Unpack[ToolRunOptions[DepsT]]
    ) -> RunResult[JsonValue]: ...

    def json(self, request: RequestLike = (), **options: Any) -> RunResult[Any]:
        """Run one turn with a schema. `output` of the result is a value of its type."""
        require_turn_schema(request, options)
        return self.run(request, **options)

    @overload
    async def ajson(
        self, request: AgentRequest | HasRequest, **options: Unpack[ToolRunOptions[DepsT]]
    ) -> RunResult[Any]: ...  # Any: the request has the schema

    @overload
    async def ajson(
        self, request: RequestLike = (), *, schema: OutputType[OutputT], **options: Unpack[ToolRunOptions[DepsT]]
    ) -> RunResult[OutputT]: ...

    @overload
    async def ajson(
        self, request: RequestLike = (), *, schema: JsonSchema, **options: Unpack[ToolRunOptions[DepsT]]
    ) -> RunResult[JsonValue]: ...

    async def ajson(self, request: RequestLike = (), **options: Any) -> RunResult[Any]:
        """Async version of `json`."""
        require_turn_schema(request, options)
        result: RunResult[Any] = await self.arun(request, **options)
        return result

    @override
    def _stream(self, request: RequestLike, options: dict[str, Any]) -> ResponseStream[Any]:
        asked, rest = read_turn(request, options)

        def start() -> StartedResponse:
            return self._agent.stream(self._with_conversation(asked), **rest).start()

        def commit(response: AgentResponse) -> None:
            self._add_turn(turn_messages(asked, response), (response,), response)

        outcome = partial(select_response, partial=self.keep_partial)
        return ResponseStream(start, turn_scope(self._turn, outcome, commit))

    @override
    def _astream(self, request: RequestLike, options: dict[str, Any]) -> AsyncResponseStream[Any]:
        asked, rest = read_turn(request, options)

        def start() -> StartedResponse:
            return self._agent.astream(self._with_conversation(asked), **rest).start()

        async def commit(response: AgentResponse) -> None:
            await self._aadd_turn(turn_messages(asked, response), (response,), response)

        outcome = partial(select_response, partial=self.keep_partial)
        return AsyncResponseStream(start, async_turn_scope(self._turn, self._aload, outcome, commit))

    @override
    def _run_stream(self, request: RequestLike | PausedRun, options: dict[str, Any]) -> RunStream[Any]:
        turn = RunTurn(request, options)

        def start() -> StartedRun:
            return self._agent.run_stream(self._start_run(turn), **turn.options).start().then(turn.finish)

        def commit(result: RunResult) -> None:
            self._add_turn([*turn.said, *result.messages], result.responses, result)

        outcome = partial(select_result, partial=self.keep_partial)
        return RunStream(start, scope=turn_scope(self._turn, outcome, commit))

    @override
    def _arun_stream(self, request: RequestLike | PausedRun, options: dict[str, Any]) -> AsyncRunStream[Any]:
        turn = RunTurn(request, options)

        def start() -> StartedRun:
            return self._agent.arun_stream(self._run_request(turn), **turn.options).start().then(turn.finish)

        async def commit(result: RunResult) -> None:
            await self._aadd_turn([*turn.said, *result.messages], result.responses, result)

        load = partial(self._astart_run, turn)
        outcome = partial(select_result, partial=self.keep_partial)
        return AsyncRunStream(start, scope=async_turn_scope(self._turn, load, outcome, commit))

    def _start_run(self, turn: RunTurn) -> Any:
        if turn.paused is not None:
            self._unload()  # resumes after the current state of the store
        return self._run_request(turn)

    async def _astart_run(self, turn: RunTurn) -> None:
        if turn.paused is not None:
            self._unload()
        await self._aload()

    def _run_request(self, turn: RunTurn) -> AgentRequest | PausedRun:
        heads = tuple(head.id for head in self._load().heads)
        turn.start(Conversation(SessionPlace(id=self.id, heads=heads), self._history(), self._setup()[1]))
        if turn.paused is not None:
            return turn.paused
        assert turn.asked is not None
        return self._with_conversation(turn.asked)


# Turns

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
