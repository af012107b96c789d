"""Client: base class of Agent and Router. Adds batches, sessions and runs to BaseClient."""

from __future__ import annotations

from collections.abc import AsyncIterable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, overload

from .base_client import BaseClient, async_context, attach_run_dag, sync_context
from .calls.requests import HasRequest, RequestLike, mask_call_options
from .engine.drivers.sync import SyncRun, drain
from .engine.drivers.threads import import_asyncio
from .errors import hide_arguments
from .types import AgentRequest
from .types.options import BatchOptions, RunOptions, SessionOptions, SubAgentOptions, document_like, document_options

if TYPE_CHECKING:
    from pydantic import JsonValue
    from typing_extensions import Unpack

    from .batch.streams import AsyncBatchStream, BatchStream
    from .batch.values import BatchResult
    from .loop.results import PausedRun, RunResult
    from .loop.streams import AsyncRunStream, RunStream
    from .sessions import AgentSession
    from .stores.base import Store
    from .tools.base import Tool
    from .types.options import (
        ConfigOptions,
        DepsT,
        JsonSchema,
        OutputT,
        OutputType,
        ToolLike,
    )


class Client(BaseClient):
    """Base class of Agent and Router."""

    def with_config(self, **changes: Unpack[ConfigOptions]) -> Client:
        """Return a client with some settings changed."""
        raise NotImplementedError

    # Batches

    @overload
    def batch(
        self,
        requests: Iterable[RequestLike],
        *,
        schema: OutputType[OutputT] | None = None,
        **options: Unpack[BatchOptions],
    ) -> BatchResult[OutputT]: ...

    @overload
    def batch(
        self, requests: Iterable[RequestLike], *, schema: JsonSchema, **options: Unpack[BatchOptions]
    ) -> BatchResult[JsonValue]: ...

    @document_options(BatchOptions)
    def batch(self, requests: Iterable[RequestLike], **options: Any) -> BatchResult[Any]:
        """Send many requests concurrently and return all results. A failed request does not affect the others.

        ```python
        from agent.testing import scripted_agent

        result = scripted_agent().batch(["one", "two"], concurrency=2)
        for item in result:
            print(item.index, item.response.text if item.ok else item.error)
        ```

        Args:
            requests: Any iterable, also an infinite generator: it is read as responses arrive.
            schema: Schema of every output, as for `complete`.
            deadline: As for `complete`. With `24h`, requests go through the batch API of the agent, or of the router's
                first choice, if it has one and that is cheaper. Requests without a response are then sent as usual.

        Raises:
            ConfigurationError: An option is invalid or unknown. Nothing was sent.
            BatchInputError: The iterable of requests raised an error. Its `result` has the items so far.
        """
        mask_call_options(options)
        if options.get("deadline") == "24h":
            from .batch.job_choice import run_day_batch  # lazy: only batch jobs need it

            return run_day_batch(self, requests, options)
        return self.batch_stream(requests, **options).collect()

    @overload
    async def abatch(
        self,
        requests: Iterable[RequestLike] | AsyncIterable[RequestLike],
        *,
        schema: OutputType[OutputT] | None = None,
        **options: Unpack[BatchOptions],
    ) -> BatchResult[OutputT]: ...

    @overload
    async def abatch(
        self,
        requests: Iterable[RequestLike] | AsyncIterable[RequestLike],
        *,
        schema: JsonSchema,
        **options: Unpack[BatchOptions],
    ) -> BatchResult[JsonValue]: ...

    @document_like(batch)
    async def abatch(
        self, requests: Iterable[RequestLike] | AsyncIterable[RequestLike], **options: Any
    ) -> BatchResult[Any]:
        """Async version of `batch`. The requests may come from an async iterable."""
        from .engine.drivers.user_code import import_in_thread  # lazy: a sync call needs no event loop

        await import_in_thread("agent.batch.streams", "agent.batch.values")
        mask_call_options(options)
        if options.get("deadline") == "24h":
            from .batch.job_choice import arun_day_batch  # lazy: only batch jobs need it

            return await arun_day_batch(self, requests, options)
        return await self.abatch_stream(requests, **options).collect()

    @overload
    def batch_stream(
        self,
        requests: Iterable[RequestLike],
        *,
        schema: OutputType[OutputT] | None = None,
        **options: Unpack[BatchOptions],
    ) -> BatchStream[OutputT]: ...

    @overload
    def batch_stream(
        self, requests: Iterable[RequestLike], *, schema: JsonSchema, **options: Unpack[BatchOptions]
    ) -> BatchStream[JsonValue]: ...

    @document_like(batch)
    def batch_stream(self, requests: Iterable[RequestLike], **options: Any) -> BatchStream[Any]:
        """Send many requests concurrently and return a stream of items in order of completion. See `batch`."""
        import_asyncio()
        from .batch.streams import BatchStream  # lazy: only batches need it

        return BatchStream(self._plan_batch(requests, options, is_async=False))

    @overload
    def abatch_stream(
        self,
        requests: Iterable[RequestLike] | AsyncIterable[RequestLike],
        *,
        schema: OutputType[OutputT] | None = None,
        **options: Unpack[BatchOptions],
    ) -> AsyncBatchStream[OutputT]: ...

    @overload
    def abatch_stream(
        self,
        requests: Iterable[RequestLike] | AsyncIterable[RequestLike],
        *,
        schema: JsonSchema,
        **options: Unpack[BatchOptions],
    ) -> AsyncBatchStream[JsonValue]: ...

    @document_like(batch_stream)
    def abatch_stream(
        self, requests: Iterable[RequestLike] | AsyncIterable[RequestLike], **options: Any
    ) -> AsyncBatchStream[Any]:
        """Async version of `batch_stream`. Iterate with `async for`; the call itself is not awaited."""
        from .batch.streams import AsyncBatchStream  # lazy: only batches need it

        return AsyncBatchStream(self._plan_batch(requests, options, is_async=True))

    def _plan_batch(self, requests: Any, options: Mapping[str, Any], *, is_async: bool) -> Any:
        from .batch.values import BatchPlan, read_options  # lazy: only batches need it

        send, batch_options = read_options(self, options)
        return BatchPlan(send, requests, batch_options, awaiting=is_async)

    # Sessions

    @document_options(SessionOptions)
    @hide_arguments
    def session(
        self, session_id: str | None = None, *, store: Store | None = None, **options: Unpack[SessionOptions]
    ) -> AgentSession:
        """Start or continue a conversation.

        ```python
        from agent.testing import scripted_agent

        session = scripted_agent("Hello, Ada!", "You are Ada.").session()
        session.run("I am Ada.")
        assert session.run("Who am I?").text == "You are Ada."
        ```

        Args:
            session_id: Key of the conversation in the store; by default a new one.
            store: Store that keeps the conversation. By default it is kept in memory, by the session itself.

        Raises:
            ConfigurationError: An option is unknown.
        """
        import_asyncio()
        from .sessions import AgentSession  # lazy: only sessions need it

        return AgentSession(self, session_id, store=store, **options)

    # Runs with tools

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

    @document_options(RunOptions)
    def run(self, request: RequestLike | PausedRun = (), **options: Any) -> RunResult[Any]:
        """Run the agent loop: call the model, run the tools that it calls, and repeat until it answers.

        ```python
        from agent import tool
        from agent.testing import scripted_agent
        from agent.types import ToolCall

        @tool
        def add(a: int, b: int) -> int:
            return a + b

        agent = scripted_agent(ToolCall(id="call_1", name="add", arguments={"a": 2, "b": 3}), "It is 5.")
        result = agent.run("What is 2 + 3?", tools=[add])
        assert result.text == "It is 5." and result.turns == 2
        ```

        Args:
            request: As for `complete`, or a paused run.
            schema: Schema of the output, as for `complete`.
            tools: Tools of this run, in addition to the agent's.
            deps: Dependencies that tools receive as `ToolContext.deps`.

        Raises:
            ConfigurationError: The request is invalid, or an option is unknown. Nothing was sent.
            BudgetExceededError: A limit of the run was reached.
            AgentError: The run failed; see `agent.errors`. Its `result` has the work so far.
        """
        client, run, flow = self._prepare_run(request, options, streaming=False)
        context = sync_context(run.deadline)
        result: RunResult[Any] = drain(SyncRun(client._transport, flow(context), context.deadline))
        return attach_run_dag(request, result)

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

    @document_like(run)
    async def arun(self, request: RequestLike | PausedRun = (), **options: Any) -> RunResult[Any]:
        """Async version of `run`."""
        from .engine.drivers.asyncio import AioRun, adrain  # lazy: a sync call needs no event loop
        from .engine.drivers.user_code import import_in_thread  # lazy: a sync call needs no event loop

        await import_in_thread("agent.loop.flow", "agent.loop.setup")
        client, run, flow = self._prepare_run(request, options, streaming=False)
        context = async_context(run.deadline)
        result: RunResult[Any] = await adrain(AioRun(client._transport, flow(context), context.deadline))
        return attach_run_dag(request, result)

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

    @document_options(RunOptions)
    def run_stream(self, request: RequestLike | PausedRun = (), **options: Any) -> RunStream[Any]:
        """Run the agent loop and return a stream of its events, which can also steer the run.

        ```python
        from agent.testing import scripted_agent

        with scripted_agent("Hello!").run_stream("Hi") as run:
            for event in run:
                print(event.type)
        assert run.result.text == "Hello!"
        ```

        Args:
            request: As for `run`.
            schema: As for `run`.
            tools: As for `run`.
            deps: As for `run`.

        Raises:
            ConfigurationError: The request is invalid, or an option is unknown. Nothing was sent.
            AgentError: Raised by `result`, not by the iteration, when the run fails.
        """
        import_asyncio()
        from .loop.streams import RunStream, StartedRun  # lazy: only runs need it

        client, run, flow = self._prepare_run(request, options, streaming=True)

        def start() -> StartedRun:
            context = sync_context(run.deadline)
            driven = SyncRun(client._transport, flow(context), context.deadline)
            return StartedRun(driven, run.state, run.plan.signal, partial(attach_run_dag, request))

        return RunStream(start, run.state, run.plan.signal)

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

    @document_like(run_stream)
    def arun_stream(self, request: RequestLike | PausedRun = (), **options: Any) -> AsyncRunStream[Any]:
        """Async version of `run_stream`. Iterate with `async for`; the call itself is not awaited."""
        from .loop.streams import AsyncRunStream, StartedRun  # lazy: only runs need it

        client, run, flow = self._prepare_run(request, options, streaming=True)

        def start() -> StartedRun:
            from .engine.drivers.asyncio import AioRun  # lazy: a sync call needs no event loop

            context = async_context(run.deadline)
            driven = AioRun(client._transport, flow(context), context.deadline)
            return StartedRun(driven, run.state, run.plan.signal, partial(attach_run_dag, request))

        return AsyncRunStream(start, run.state, run.plan.signal)

    @document_options(SubAgentOptions)
    def as_tool(self, name: str, description: str, **options: Unpack[SubAgentOptions]) -> Tool:
        """Return a tool that runs this agent as a sub-agent. It takes a task and returns the answer.

        Args:
            name: Name of the tool.
            description: Description for the model.
        """
        import_asyncio()
        from .loop.flow import SubAgent  # lazy: only runs need it

        mask_call_options(options)
        return SubAgent.of(self, name, description, options)
