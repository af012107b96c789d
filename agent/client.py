"""Client, the base class of Agent and Router: JSON, batches, sessions and runs. JobClient adds jobs."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, cast, overload

from typing_extensions import override

from .base_client import BaseClient, async_context, attach_dag, attach_run_dag, require_schema, sync_context
from .calls.requests import mask_call_options
from .calls.streams import AsyncJsonStream, JsonStream
from .engine.drivers.sync import SyncRun, drain
from .engine.drivers.threads import import_asyncio
from .errors import hide_arguments
from .types.options import (
    BatchJobOptions,
    BatchOptions,
    CompleteOptions,
    SessionOptions,
    SubAgentOptions,
    document_like,
    document_options,
)

if TYPE_CHECKING:
    from pydantic import JsonValue
    from typing_extensions import Unpack

    from .agent import Agent
    from .batch.jobs import BatchJob, BatchRequests
    from .batch.streams import AsyncBatchStream, BatchStream
    from .batch.values import BatchResult
    from .calls.requests import AnyRequests, HasRequest, RequestLike, Requests
    from .loop.results import PausedRun, RunResult
    from .loop.streams import AsyncRunStream, RunStream
    from .sessions import AgentSession
    from .stores.base import Store
    from .tools.base import Tool
    from .types import AgentRequest, AgentResponse
    from .types.options import ConfigOptions, JsonSchema, OutputT, OutputType


class Client(BaseClient):
    """Base class of Agent and Router."""

    def with_config(self, **changes: Unpack[ConfigOptions]) -> Client:
        """Return a client with some settings changed."""
        raise NotImplementedError

    # Structured output

    @overload
    def json(
        self, request: RequestLike = (), *, schema: OutputType[OutputT], **options: Unpack[CompleteOptions]
    ) -> AgentResponse[OutputT]: ...

    @overload
    def json(
        self, request: RequestLike = (), *, schema: JsonSchema, **options: Unpack[CompleteOptions]
    ) -> AgentResponse[JsonValue]: ...

    @overload
    def json(
        self, request: AgentRequest | HasRequest, **options: Unpack[CompleteOptions]
    ) -> AgentResponse[Any]: ...  # Any: the request has the schema

    @document_options(CompleteOptions)
    def json(self, request: RequestLike = (), **options: Any) -> AgentResponse[Any]:
        """Send a request with a schema. `output` of the response is a value of its type.

        ```python
        from agent.testing import scripted_agent

        response = scripted_agent("[1, 2]").json("Two numbers", schema=list[int])
        assert response.output == [1, 2]
        ```

        Args:
            request: As for `complete`.
            schema: A pydantic model, a type such as `list[int]`, or a TypeAdapter; a JSON schema gives a JSON value.

        Raises:
            ConfigurationError: The request is invalid, has no schema, or an option is unknown. Nothing was sent.
            SchemaValidationError: The output does not fit the schema, also after repair requests.
            AgentError: The call failed; see `agent.errors`.
        """
        client, changes = self._select(options)
        asked = require_schema(request, changes)
        return attach_dag(request, asked, client.complete(asked))

    @overload
    async def ajson(
        self, request: RequestLike = (), *, schema: OutputType[OutputT], **options: Unpack[CompleteOptions]
    ) -> AgentResponse[OutputT]: ...

    @overload
    async def ajson(
        self, request: RequestLike = (), *, schema: JsonSchema, **options: Unpack[CompleteOptions]
    ) -> AgentResponse[JsonValue]: ...

    @overload
    async def ajson(
        self, request: AgentRequest | HasRequest, **options: Unpack[CompleteOptions]
    ) -> AgentResponse[Any]: ...  # Any: the request has the schema

    @document_like(json)
    async def ajson(self, request: RequestLike = (), **options: Any) -> AgentResponse[Any]:
        """Async version of `json`."""
        if isinstance(options.get("schema"), Mapping):
            from .engine.drivers.user_code import import_in_thread  # lazy: a sync call needs no event loop

            await import_in_thread("jsonschema")
        client, changes = self._select(options)
        asked = require_schema(request, changes)
        return attach_dag(request, asked, await client.acomplete(asked))

    @overload
    def stream_json(
        self, request: RequestLike = (), *, schema: OutputType[OutputT], **options: Unpack[CompleteOptions]
    ) -> JsonStream[OutputT]: ...

    @overload
    def stream_json(
        self, request: RequestLike = (), *, schema: JsonSchema, **options: Unpack[CompleteOptions]
    ) -> JsonStream[JsonValue]: ...

    @overload
    def stream_json(
        self, request: AgentRequest | HasRequest, **options: Unpack[CompleteOptions]
    ) -> JsonStream[Any]: ...  # Any: the request has the schema

    @document_options(CompleteOptions)
    def stream_json(self, request: RequestLike = (), **options: Any) -> JsonStream[Any]:
        """Send a request with a schema and return a stream of partial values.

        ```python
        from agent.testing import scripted_agent

        stream = scripted_agent("[1, 2]").stream_json("Two numbers", schema=list[int])
        for partial in stream:
            print(partial)
        assert stream.output == [1, 2]
        ```

        Args:
            request: As for `complete`.
            schema: As for `json`.

        Raises:
            ConfigurationError: The request is invalid, has no schema, or an option is unknown. Nothing was sent.
            SchemaValidationError: Raised by the iteration when the output does not fit the schema.
            AgentError: Raised by the iteration when the call fails.
        """
        client, changes = self._select(options)
        prepared = client._prepare(require_schema(request, changes), {})
        call, partials = client._json_call(prepared)
        return JsonStream(partial(client._start_stream, call, prepared, request), partials)

    @overload
    def astream_json(
        self, request: RequestLike = (), *, schema: OutputType[OutputT], **options: Unpack[CompleteOptions]
    ) -> AsyncJsonStream[OutputT]: ...

    @overload
    def astream_json(
        self, request: RequestLike = (), *, schema: JsonSchema, **options: Unpack[CompleteOptions]
    ) -> AsyncJsonStream[JsonValue]: ...

    @overload
    def astream_json(
        self, request: AgentRequest | HasRequest, **options: Unpack[CompleteOptions]
    ) -> AsyncJsonStream[Any]: ...  # Any: the request has the schema

    @document_like(stream_json)
    def astream_json(self, request: RequestLike = (), **options: Any) -> AsyncJsonStream[Any]:
        """Async version of `stream_json`. Iterate with `async for`; the call itself is not awaited."""
        client, changes = self._select(options)
        prepared = client._prepare(require_schema(request, changes), {})
        call, partials = client._json_call(prepared)
        return AsyncJsonStream(partial(client._start_astream, call, prepared, request), partials)

    # Batches

    @overload
    def batch(
        self, requests: Requests, *, schema: OutputType[OutputT] | None = None, **options: Unpack[BatchOptions]
    ) -> BatchResult[OutputT]: ...

    @overload
    def batch(
        self, requests: Requests, *, schema: JsonSchema, **options: Unpack[BatchOptions]
    ) -> BatchResult[JsonValue]: ...

    @document_options(BatchOptions)
    def batch(self, requests: Requests, **options: Any) -> BatchResult[Any]:
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
            from .batch.job_runs import run_day_batch  # lazy: only batch jobs need it

            return run_day_batch(self, requests, options)
        return self.batch_stream(requests, **options).collect()

    @overload
    async def abatch(
        self, requests: AnyRequests, *, schema: OutputType[OutputT] | None = None, **options: Unpack[BatchOptions]
    ) -> BatchResult[OutputT]: ...

    @overload
    async def abatch(
        self, requests: AnyRequests, *, schema: JsonSchema, **options: Unpack[BatchOptions]
    ) -> BatchResult[JsonValue]: ...

    @document_like(batch)
    async def abatch(self, requests: AnyRequests, **options: Any) -> BatchResult[Any]:
        """Async version of `batch`. The requests may come from an async iterable."""
        from .engine.drivers.user_code import import_in_thread  # lazy: a sync call needs no event loop

        await import_in_thread("agent.batch.streams", "agent.batch.values")
        mask_call_options(options)
        if options.get("deadline") == "24h":
            from .batch.job_runs import arun_day_batch  # lazy: only batch jobs need it

            return await arun_day_batch(self, requests, options)
        return await self.abatch_stream(requests, **options).collect()

    @overload
    def batch_stream(
        self, requests: Requests, *, schema: OutputType[OutputT] | None = None, **options: Unpack[BatchOptions]
    ) -> BatchStream[OutputT]: ...

    @overload
    def batch_stream(
        self, requests: Requests, *, schema: JsonSchema, **options: Unpack[BatchOptions]
    ) -> BatchStream[JsonValue]: ...

    @document_like(batch)
    def batch_stream(self, requests: Requests, **options: Any) -> BatchStream[Any]:
        """Send many requests concurrently and return a stream of items in order of completion. See `batch`."""
        import_asyncio()
        from .batch.streams import BatchStream  # lazy: only batches need it

        return BatchStream(self._plan_batch(requests, options, is_async=False))

    @overload
    def abatch_stream(
        self, requests: AnyRequests, *, schema: OutputType[OutputT] | None = None, **options: Unpack[BatchOptions]
    ) -> AsyncBatchStream[OutputT]: ...

    @overload
    def abatch_stream(
        self, requests: AnyRequests, *, schema: JsonSchema, **options: Unpack[BatchOptions]
    ) -> AsyncBatchStream[JsonValue]: ...

    @document_like(batch_stream)
    def abatch_stream(self, requests: AnyRequests, **options: Any) -> AsyncBatchStream[Any]:
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

    @override
    def _run(self, request: RequestLike | PausedRun, options: dict[str, Any]) -> RunResult[Any]:
        client, run, flow = self._prepare_run(request, options, streaming=False)
        context = sync_context(run.deadline)
        result: RunResult[Any] = drain(SyncRun(client._transport, flow(context), context.deadline))
        return attach_run_dag(request, result)

    @override
    async def _arun(self, request: RequestLike | PausedRun, options: dict[str, Any]) -> RunResult[Any]:
        from .engine.drivers.asyncio import AioRun, adrain  # lazy: a sync call needs no event loop
        from .engine.drivers.user_code import import_in_thread  # lazy: a sync call needs no event loop

        await import_in_thread("agent.loop.flow")
        client, run, flow = self._prepare_run(request, options, streaming=False)
        context = async_context(run.deadline)
        result: RunResult[Any] = await adrain(AioRun(client._transport, flow(context), context.deadline))
        return attach_run_dag(request, result)

    @override
    def _run_stream(self, request: RequestLike | PausedRun, options: dict[str, Any]) -> RunStream[Any]:
        import_asyncio()
        from .loop.streams import RunStream, StartedRun  # lazy: only runs need it

        client, run, flow = self._prepare_run(request, options, streaming=True)

        def start() -> StartedRun:
            context = sync_context(run.deadline)
            driven = SyncRun(client._transport, flow(context), context.deadline)
            return StartedRun(driven, run.state, run.plan.signal, partial(attach_run_dag, request))

        return RunStream(start, run.state, run.plan.signal)

    @override
    def _arun_stream(self, request: RequestLike | PausedRun, options: dict[str, Any]) -> AsyncRunStream[Any]:
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


class JobClient(Client):
    """The batch jobs of Agent."""

    @overload
    def submit_batch(
        self,
        requests: BatchRequests,
        *,
        schema: OutputType[OutputT] | None = None,
        **options: Unpack[BatchJobOptions],
    ) -> BatchJob[OutputT]: ...

    @overload
    def submit_batch(
        self,
        requests: BatchRequests,
        *,
        schema: JsonSchema,
        **options: Unpack[BatchJobOptions],
    ) -> BatchJob[JsonValue]: ...

    @document_options(BatchJobOptions)
    def submit_batch(self, requests: BatchRequests, **options: Any) -> BatchJob[Any]:
        """Submit requests to the vendor's batch API, which answers within a day, usually at half the price.

        The job outlives this process: any other continues it with `BatchJob.load(job.id)`.

        Args:
            requests: The requests, or a dict of requests by custom id.
            schema: Schema of every output, as for `complete`.

        Raises:
            ConfigurationError: A request or option is invalid, or the vendor has no batch API. Nothing was sent.
            AgentError: The submission failed. `result` of the error is the job; its `poll` continues.
        """
        from .batch.jobs import submit_job  # lazy: only batch jobs need it

        mask_call_options(options)
        agent, changes = self._select(options)
        return submit_job(cast("Agent", agent), requests, changes)

    @overload
    async def asubmit_batch(
        self,
        requests: BatchRequests,
        *,
        schema: OutputType[OutputT] | None = None,
        **options: Unpack[BatchJobOptions],
    ) -> BatchJob[OutputT]: ...

    @overload
    async def asubmit_batch(
        self,
        requests: BatchRequests,
        *,
        schema: JsonSchema,
        **options: Unpack[BatchJobOptions],
    ) -> BatchJob[JsonValue]: ...

    async def asubmit_batch(self, requests: BatchRequests, **options: Any) -> BatchJob[Any]:
        """Async version of `submit_batch`."""
        from .batch.jobs import asubmit_job  # lazy: only batch jobs need it

        mask_call_options(options)
        agent, changes = self._select(options)
        return await asubmit_job(cast("Agent", agent), requests, changes)
