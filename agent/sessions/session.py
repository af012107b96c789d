"""AgentSession: a conversation with an agent, optionally kept in a store."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, overload

from typing_extensions import Unpack

from ..calls.requests import HasRequest, RequestLike
from ..calls.streams import AsyncResponseStream, ResponseStream, StartedResponse
from ..loop.results import PausedRun, RunResult
from ..loop.streams import AsyncRunStream, RunStream, StartedRun
from ..types import AgentRequest, AgentResponse
from .state import SessionState
from .turns import (
    RunTurn,
    async_turn_scope,
    read_turn,
    require_turn_schema,
    select_response,
    select_result,
    turn_messages,
    turn_scope,
)

if TYPE_CHECKING:
    from pydantic import JsonValue

    from ..types.options import CompleteOptions, DepsT, JsonSchema, OutputT, OutputType, RunOptions, ToolLike


class AgentSession(SessionState):
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

    A session runs one turn at a time. Several sessions, also in several processes, may share one conversation in a
    store: the second to write raises `ConflictError` and can `reload`.
    """

    @overload
    def run(
        self,
        request: AgentRequest | HasRequest | PausedRun,
        *,
        tools: Sequence[ToolLike[DepsT]] = (),
        deps: DepsT = ...,
        **options: Unpack[RunOptions],
    ) -> RunResult[Any]: ...  # Any: the request may have a schema

    @overload
    def run(
        self,
        request: RequestLike = (),
        *,
        schema: None = None,
        tools: Sequence[ToolLike[DepsT]] = (),
        deps: DepsT = ...,
        **options: Unpack[RunOptions],
    ) -> RunResult[None]: ...

    @overload
    def run(
        self,
        request: RequestLike = (),
        *,
        schema: OutputType[OutputT],
        tools: Sequence[ToolLike[DepsT]] = (),
        deps: DepsT = ...,
        **options: Unpack[RunOptions],
    ) -> RunResult[OutputT]: ...

    @overload
    def run(
        self,
        request: RequestLike = (),
        *,
        schema: JsonSchema,
        tools: Sequence[ToolLike[DepsT]] = (),
        deps: DepsT = ...,
        **options: Unpack[RunOptions],
    ) -> RunResult[JsonValue]: ...

    def run(self, request: RequestLike | PausedRun = (), **options: Any) -> RunResult[Any]:
        """Run one turn: call the model, run the tools it calls, repeat until it answers. See `Agent.run`.

        A run that pauses leaves the session as it was; resume it here with `run(result.paused.approve())`.
        """
        turn = RunTurn(request, options)
        with self._turn():
            result = turn.finish(self._agent.run(self._start_run(turn), **turn.options))
            if result.paused is None:
                self._add_turn([*turn.said, *result.messages], result.responses, result)
            return result

    @overload
    async def arun(
        self,
        request: AgentRequest | HasRequest | PausedRun,
        *,
        tools: Sequence[ToolLike[DepsT]] = (),
        deps: DepsT = ...,
        **options: Unpack[RunOptions],
    ) -> RunResult[Any]: ...  # Any: the request may have a schema

    @overload
    async def arun(
        self,
        request: RequestLike = (),
        *,
        schema: None = None,
        tools: Sequence[ToolLike[DepsT]] = (),
        deps: DepsT = ...,
        **options: Unpack[RunOptions],
    ) -> RunResult[None]: ...

    @overload
    async def arun(
        self,
        request: RequestLike = (),
        *,
        schema: OutputType[OutputT],
        tools: Sequence[ToolLike[DepsT]] = (),
        deps: DepsT = ...,
        **options: Unpack[RunOptions],
    ) -> RunResult[OutputT]: ...

    @overload
    async def arun(
        self,
        request: RequestLike = (),
        *,
        schema: JsonSchema,
        tools: Sequence[ToolLike[DepsT]] = (),
        deps: DepsT = ...,
        **options: Unpack[RunOptions],
    ) -> RunResult[JsonValue]: ...

    async def arun(self, request: RequestLike | PausedRun = (), **options: Any) -> RunResult[Any]:
        """Async version of `run`."""
        turn = RunTurn(request, options)
        with self._turn():
            await self._astart_run(turn)
            result = turn.finish(await self._agent.arun(self._run_request(turn), **turn.options))
            if result.paused is None:
                await self._aadd_turn([*turn.said, *result.messages], result.responses, result)
            return result

    @overload
    def complete(
        self, request: AgentRequest | HasRequest, **options: Unpack[CompleteOptions]
    ) -> AgentResponse[Any]: ...  # Any: the request may have a schema

    @overload
    def complete(
        self, request: RequestLike = (), *, schema: None = None, **options: Unpack[CompleteOptions]
    ) -> AgentResponse[None]: ...

    @overload
    def complete(
        self, request: RequestLike = (), *, schema: OutputType[OutputT], **options: Unpack[CompleteOptions]
    ) -> AgentResponse[OutputT]: ...

    @overload
    def complete(
        self, request: RequestLike = (), *, schema: JsonSchema, **options: Unpack[CompleteOptions]
    ) -> AgentResponse[JsonValue]: ...

    def complete(self, request: RequestLike = (), **options: Any) -> AgentResponse[Any]:
        """Run one turn with one model call. Tools are offered, not run."""
        asked, rest = read_turn(request, options)
        with self._turn():
            response: AgentResponse = self._agent.complete(self._with_conversation(asked), **rest)
            self._add_turn(turn_messages(asked, response), (response,), response)
            return response

    @overload
    async def acomplete(
        self, request: AgentRequest | HasRequest, **options: Unpack[CompleteOptions]
    ) -> AgentResponse[Any]: ...  # Any: the request may have a schema

    @overload
    async def acomplete(
        self, request: RequestLike = (), *, schema: None = None, **options: Unpack[CompleteOptions]
    ) -> AgentResponse[None]: ...

    @overload
    async def acomplete(
        self, request: RequestLike = (), *, schema: OutputType[OutputT], **options: Unpack[CompleteOptions]
    ) -> AgentResponse[OutputT]: ...

    @overload
    async def acomplete(
        self, request: RequestLike = (), *, schema: JsonSchema, **options: Unpack[CompleteOptions]
    ) -> AgentResponse[JsonValue]: ...

    async def acomplete(self, request: RequestLike = (), **options: Any) -> AgentResponse[Any]:
        """Async version of `complete`."""
        asked, rest = read_turn(request, options)
        with self._turn():
            await self._aload()
            response: AgentResponse = await self._agent.acomplete(self._with_conversation(asked), **rest)
            await self._aadd_turn(turn_messages(asked, response), (response,), response)
            return response

    @overload
    def json(
        self,
        request: AgentRequest | HasRequest,
        *,
        tools: Sequence[ToolLike[DepsT]] = (),
        deps: DepsT = ...,
        **options: Unpack[RunOptions],
    ) -> RunResult[Any]: ...  # Any: the request has the schema

    @overload
    def json(
        self,
        request: RequestLike = (),
        *,
        schema: OutputType[OutputT],
        tools: Sequence[ToolLike[DepsT]] = (),
        deps: DepsT = ...,
        **options: Unpack[RunOptions],
    ) -> RunResult[OutputT]: ...

    @overload
    def json(
        self,
        request: RequestLike = (),
        *,
        schema: JsonSchema,
        tools: Sequence[ToolLike[DepsT]] = (),
        deps: DepsT = ...,
        **options: Unpack[RunOptions],
    ) -> RunResult[JsonValue]: ...

    def json(self, request: RequestLike = (), **options: Any) -> RunResult[Any]:
        """Run one turn with a schema. `output` of the result is a value of its type."""
        require_turn_schema(request, options)
        return self.run(request, **options)

    @overload
    async def ajson(
        self,
        request: AgentRequest | HasRequest,
        *,
        tools: Sequence[ToolLike[DepsT]] = (),
        deps: DepsT = ...,
        **options: Unpack[RunOptions],
    ) -> RunResult[Any]: ...  # Any: the request has the schema

    @overload
    async def ajson(
        self,
        request: RequestLike = (),
        *,
        schema: OutputType[OutputT],
        tools: Sequence[ToolLike[DepsT]] = (),
        deps: DepsT = ...,
        **options: Unpack[RunOptions],
    ) -> RunResult[OutputT]: ...

    @overload
    async def ajson(
        self,
        request: RequestLike = (),
        *,
        schema: JsonSchema,
        tools: Sequence[ToolLike[DepsT]] = (),
        deps: DepsT = ...,
        **options: Unpack[RunOptions],
    ) -> RunResult[JsonValue]: ...

    async def ajson(self, request: RequestLike = (), **options: Any) -> RunResult[Any]:
        """Async version of `json`."""
        require_turn_schema(request, options)
        result: RunResult[Any] = await self.arun(request, **options)
        return result

    @overload
    def stream(
        self, request: AgentRequest | HasRequest, **options: Unpack[CompleteOptions]
    ) -> ResponseStream[Any]: ...  # Any: the request may have a schema

    @overload
    def stream(
        self, request: RequestLike = (), *, schema: None = None, **options: Unpack[CompleteOptions]
    ) -> ResponseStream[None]: ...

    @overload
    def stream(
        self, request: RequestLike = (), *, schema: OutputType[OutputT], **options: Unpack[CompleteOptions]
    ) -> ResponseStream[OutputT]: ...

    @overload
    def stream(
        self, request: RequestLike = (), *, schema: JsonSchema, **options: Unpack[CompleteOptions]
    ) -> ResponseStream[JsonValue]: ...

    def stream(self, request: RequestLike = (), **options: Any) -> ResponseStream[Any]:
        """Run one turn as a stream of events. The turn is kept when the stream has been read to its end."""
        asked, rest = read_turn(request, options)

        def start() -> StartedResponse:
            return self._agent.stream(self._with_conversation(asked), **rest).start()

        def commit(response: AgentResponse) -> None:
            self._add_turn(turn_messages(asked, response), (response,), response)

        outcome = partial(select_response, partial=self.keep_partial)
        return ResponseStream(start, turn_scope(self._turn, outcome, commit))

    @overload
    def astream(
        self, request: AgentRequest | HasRequest, **options: Unpack[CompleteOptions]
    ) -> AsyncResponseStream[Any]: ...  # Any: the request may have a schema

    @overload
    def astream(
        self, request: RequestLike = (), *, schema: None = None, **options: Unpack[CompleteOptions]
    ) -> AsyncResponseStream[None]: ...

    @overload
    def astream(
        self, request: RequestLike = (), *, schema: OutputType[OutputT], **options: Unpack[CompleteOptions]
    ) -> AsyncResponseStream[OutputT]: ...

    @overload
    def astream(
        self, request: RequestLike = (), *, schema: JsonSchema, **options: Unpack[CompleteOptions]
    ) -> AsyncResponseStream[JsonValue]: ...

    def astream(self, request: RequestLike = (), **options: Any) -> AsyncResponseStream[Any]:
        """Async version of `stream`."""
        asked, rest = read_turn(request, options)

        def start() -> StartedResponse:
            return self._agent.astream(self._with_conversation(asked), **rest).start()

        async def commit(response: AgentResponse) -> None:
            await self._aadd_turn(turn_messages(asked, response), (response,), response)

        outcome = partial(select_response, partial=self.keep_partial)
        return AsyncResponseStream(start, async_turn_scope(self._turn, self._aload, outcome, commit))

    @overload
    def run_stream(
        self,
        request: AgentRequest | HasRequest | PausedRun,
        *,
        tools: Sequence[ToolLike[DepsT]] = (),
        deps: DepsT = ...,
        **options: Unpack[RunOptions],
    ) -> RunStream[Any]: ...  # Any: the request may have a schema

    @overload
    def run_stream(
        self,
        request: RequestLike = (),
        *,
        schema: None = None,
        tools: Sequence[ToolLike[DepsT]] = (),
        deps: DepsT = ...,
        **options: Unpack[RunOptions],
    ) -> RunStream[None]: ...

    @overload
    def run_stream(
        self,
        request: RequestLike = (),
        *,
        schema: OutputType[OutputT],
        tools: Sequence[ToolLike[DepsT]] = (),
        deps: DepsT = ...,
        **options: Unpack[RunOptions],
    ) -> RunStream[OutputT]: ...

    @overload
    def run_stream(
        self,
        request: RequestLike = (),
        *,
        schema: JsonSchema,
        tools: Sequence[ToolLike[DepsT]] = (),
        deps: DepsT = ...,
        **options: Unpack[RunOptions],
    ) -> RunStream[JsonValue]: ...

    def run_stream(self, request: RequestLike | PausedRun = (), **options: Any) -> RunStream[Any]:
        """Run one turn as a stream of run events, which can also steer the run."""
        turn = RunTurn(request, options)

        def start() -> StartedRun:
            return self._agent.run_stream(self._start_run(turn), **turn.options).start().then(turn.finish)

        def commit(result: RunResult) -> None:
            self._add_turn([*turn.said, *result.messages], result.responses, result)

        outcome = partial(select_result, partial=self.keep_partial)
        return RunStream(start, scope=turn_scope(self._turn, outcome, commit))

    @overload
    def arun_stream(
        self,
        request: AgentRequest | HasRequest | PausedRun,
        *,
        tools: Sequence[ToolLike[DepsT]] = (),
        deps: DepsT = ...,
        **options: Unpack[RunOptions],
    ) -> AsyncRunStream[Any]: ...  # Any: the request may have a schema

    @overload
    def arun_stream(
        self,
        request: RequestLike = (),
        *,
        schema: None = None,
        tools: Sequence[ToolLike[DepsT]] = (),
        deps: DepsT = ...,
        **options: Unpack[RunOptions],
    ) -> AsyncRunStream[None]: ...

    @overload
    def arun_stream(
        self,
        request: RequestLike = (),
        *,
        schema: OutputType[OutputT],
        tools: Sequence[ToolLike[DepsT]] = (),
        deps: DepsT = ...,
        **options: Unpack[RunOptions],
    ) -> AsyncRunStream[OutputT]: ...

    @overload
    def arun_stream(
        self,
        request: RequestLike = (),
        *,
        schema: JsonSchema,
        tools: Sequence[ToolLike[DepsT]] = (),
        deps: DepsT = ...,
        **options: Unpack[RunOptions],
    ) -> AsyncRunStream[JsonValue]: ...

    def arun_stream(self, request: RequestLike | PausedRun = (), **options: Any) -> AsyncRunStream[Any]:
        """Async version of `run_stream`."""
        turn = RunTurn(request, options)

        def start() -> StartedRun:
            return self._agent.arun_stream(self._run_request(turn), **turn.options).start().then(turn.finish)

        async def commit(result: RunResult) -> None:
            await self._aadd_turn([*turn.said, *result.messages], result.responses, result)

        load = partial(self._astart_run, turn)
        outcome = partial(select_result, partial=self.keep_partial)
        return AsyncRunStream(start, scope=async_turn_scope(self._turn, load, outcome, commit))
