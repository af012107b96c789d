"""BaseClient: single calls, and the drivers of flows.

A subclass prepares requests and composes flows. Each call method passes the flow to a driver: sync or async, whole or
streamed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache, partial
from time import monotonic
from typing import TYPE_CHECKING, Any, overload

from typing_extensions import override

from .calls.call import settle_stream
from .calls.methods import RunMethods
from .calls.requests import HasRequest, RequestLike, read_request
from .calls.streams import AsyncResponseStream, ResponseStream, Settle, StartedResponse
from .engine.context import Call, Context, TurnRef, ambient_deadline
from .engine.drivers.sync import SyncRun, drain
from .engine.drivers.threads import import_asyncio
from .engine.wire import Transport
from .errors import ConfigurationError
from .types import AgentRequest, AgentResponse, Message, ProviderCapabilities, ToolLoopConfig
from .types.options import CompleteOptions, document_like, document_options

if TYPE_CHECKING:
    from pydantic import JsonValue
    from typing_extensions import Unpack

    from .calls.streams import Partials
    from .loop.hooks import Hooks
    from .loop.results import PausedRun, RunResult
    from .middleware.base import Middleware
    from .types.options import AllRunOptions, JsonSchema, OutputT, OutputType, PreflightOptions


@cache
def _default_loop() -> ToolLoopConfig:
    return ToolLoopConfig()


class CallMethods:
    """Single calls of agents, routers and sessions. Subclasses implement them without overloads."""

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

    @document_options(CompleteOptions)
    def complete(self, request: RequestLike = (), **options: Any) -> AgentResponse[Any]:
        """Send a request and return the response. Tools are offered, not run.

        ```python
        from agent.testing import scripted_agent

        response = scripted_agent("Hello!").complete("Hi", temperature=0.2, max_tokens=100)
        assert response.text == "Hello!"
        ```

        Args:
            request: Text, a message, a conversation, a graph, or an AgentRequest.
            schema: Schema of the output: a pydantic model, a type, a TypeAdapter, or a JSON schema. `output` has its
                type.

        Raises:
            ConfigurationError: The request is invalid, or an option is unknown. Nothing was sent.
            AgentError: The call failed; see `agent.errors`. Its `attempts` list what was sent.
        """
        return self._complete(request, options)

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

    @document_like(complete)
    async def acomplete(self, request: RequestLike = (), **options: Any) -> AgentResponse[Any]:
        """Async version of `complete`."""
        return await self._acomplete(request, options)

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

    @document_options(CompleteOptions)
    def stream(self, request: RequestLike = (), **options: Any) -> ResponseStream[Any]:
        """Send a request and return a stream of events. The request is sent when the iteration starts.

        ```python
        from agent.testing import scripted_agent

        with scripted_agent("Hello!").stream("Hi") as stream:
            for event in stream:
                if event.type == "text_delta":
                    print(event.text, end="")
        ```

        Args:
            request: As for `complete`.
            schema: As for `complete`.

        Raises:
            ConfigurationError: The request is invalid, or an option is unknown. Nothing was sent.
            AgentError: Raised by the iteration when the call fails; `StreamInterrupted` has the partial response.
        """
        return self._stream(request, options)

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

    @document_like(stream)
    def astream(self, request: RequestLike = (), **options: Any) -> AsyncResponseStream[Any]:
        """Async version of `stream`. Iterate with `async for`; the call itself is not awaited."""
        return self._astream(request, options)

    # For subclasses

    def _complete(self, request: RequestLike, options: dict[str, Any]) -> AgentResponse[Any]:
        raise NotImplementedError

    async def _acomplete(self, request: RequestLike, options: dict[str, Any]) -> AgentResponse[Any]:
        raise NotImplementedError

    def _stream(self, request: RequestLike, options: dict[str, Any]) -> ResponseStream[Any]:
        raise NotImplementedError

    def _astream(self, request: RequestLike, options: dict[str, Any]) -> AsyncResponseStream[Any]:
        raise NotImplementedError


class BaseClient(CallMethods, RunMethods):
    """The single calls of Agent and Router."""

    _loop: ToolLoopConfig | None = None
    hooks: Hooks | None = None
    """Hooks called during runs."""
    middleware: Sequence[Middleware] = ()
    """Middleware around every call; the first is outermost."""

    @property
    def loop(self) -> ToolLoopConfig:
        """Limits of runs."""
        return self._loop if self._loop is not None else _default_loop()

    # For subclasses

    def provider_and_model(self) -> tuple[str, str]:
        """Provider and model; a router returns its name and an empty string."""
        raise NotImplementedError

    @property
    def capabilities(self) -> ProviderCapabilities:
        """Capabilities of the model."""
        raise NotImplementedError

    def own_tools(self, response: AgentResponse | None) -> Sequence[Any]:  # Any: tools, and vendors' own tools
        """Tools that are offered with every request; after a response, those of the agent that gave it."""
        return ()

    def _select(self, options: Mapping[str, Any]) -> tuple[BaseClient, Mapping[str, Any]]:
        """Return the client that handles a request with these options, and the remaining options."""
        return self, options

    def _prepare(self, request: RequestLike, options: Mapping[str, Any]) -> AgentRequest:
        """Return the request with options and defaults applied. Raises ConfigurationError if it is invalid."""
        raise NotImplementedError

    def _call(self, *, streaming: bool) -> Call:
        raise NotImplementedError

    def _settle(self, request: AgentRequest) -> Settle:
        """Return the function that estimates usage and cost of an interrupted stream."""
        raise NotImplementedError

    def _json_call(self, request: AgentRequest) -> tuple[Call, Partials]:
        """Return a streaming call, and the parser of its partial output."""
        raise NotImplementedError

    @property
    def _transport(self) -> Transport:
        """Transport of effects that name no other."""
        raise NotImplementedError

    # One call

    @override
    def _complete(self, request: RequestLike, options: dict[str, Any]) -> AgentResponse[Any]:
        client, changes = self._select(options)
        prepared = client._prepare(request, changes)
        response: AgentResponse[Any] = client._run_sync(client._call(streaming=False), prepared)
        return attach_dag(request, prepared, response)

    @override
    async def _acomplete(self, request: RequestLike, options: dict[str, Any]) -> AgentResponse[Any]:
        client, changes = self._select(options)
        prepared = client._prepare(request, changes)
        response: AgentResponse[Any] = await client._run_async(client._call(streaming=False), prepared)
        return attach_dag(request, prepared, response)

    @override
    def _stream(self, request: RequestLike, options: dict[str, Any]) -> ResponseStream[Any]:
        client, changes = self._select(options)
        prepared = client._prepare(request, changes)
        return ResponseStream(partial(client._start_stream, client._call(streaming=True), prepared, request))

    @override
    def _astream(self, request: RequestLike, options: dict[str, Any]) -> AsyncResponseStream[Any]:
        client, changes = self._select(options)
        prepared = client._prepare(request, changes)
        return AsyncResponseStream(partial(client._start_astream, client._call(streaming=True), prepared, request))

    # Flows, for custom drivers such as the simulated one

    def call_flow(
        self,
        request: RequestLike,
        *,
        streaming: bool,
        context: Context | None = None,
        **options: Unpack[PreflightOptions],
    ) -> Any:  # Any: a flow of many effects
        """Return the flow of one call."""
        client, changes = self._select(options)
        prepared = client._prepare(request, changes)
        return client._call(streaming=streaming)(prepared, context or Context())

    def run_flow(
        self,
        request: RequestLike | PausedRun,
        *,
        streaming: bool,
        context: Context | None = None,
        **options: Unpack[AllRunOptions],
    ) -> Any:  # Any: a flow of many effects, and its run
        """Return the flow of one run, and the run itself."""
        _, run, flow = self._prepare_run(request, options, streaming=streaming)
        return flow(context or Context()), run

    def deadline_of(self, request: RequestLike, **options: Unpack[PreflightOptions]) -> float | None:
        """Seconds that a call may take as a whole; None for no limit."""
        client, changes = self._select(options)
        return client._prepare(request, changes).deadline

    def _prepare_run(self, request: RequestLike | PausedRun, options: Mapping[str, Any], *, streaming: bool) -> Any:
        import_asyncio()
        from .loop.flow import prepare_run, run_loop  # lazy: only runs need it

        client, changes = self._select(options)
        run = prepare_run(client, request, changes, streaming=streaming)

        def flow(context: Context) -> Any:
            loop = run_loop(run.plan, run.state, context)
            return client._observe_run(loop, run, streaming=streaming) if client.middleware else loop

        return client, run, flow

    def _observe_run(self, flow: Any, run: Any, *, streaming: bool) -> Any:
        """Return the flow of a run whose events pass through the middleware."""
        from .middleware.base import CallInfo  # lazy: only clients with middleware need it
        from .middleware.flow import observe_events  # lazy: only clients with middleware need it

        target = ":".join(filter(None, self.provider_and_model()))
        turn = TurnRef(run.state.run_id, 0)
        info = CallInfo(streaming=streaming, target=target, request=run.plan.request, run=turn)
        return observe_events(flow, self.middleware, info)

    # Drivers

    def _run_sync(self, call: Call, prepared: AgentRequest) -> Any:
        context = sync_context(prepared.deadline)
        return drain(SyncRun(self._transport, call(prepared, context), context.deadline))

    async def _run_async(self, call: Call, prepared: AgentRequest) -> Any:
        from .engine.drivers.asyncio import AioRun, adrain  # lazy: a sync call needs no event loop

        context = async_context(prepared.deadline)
        return await adrain(AioRun(self._transport, call(prepared, context), context.deadline))

    def _start_stream(self, call: Call, prepared: AgentRequest, request: Any) -> StartedResponse:
        context = sync_context(prepared.deadline)
        run = SyncRun(self._transport, call(prepared, context), context.deadline)
        settle = settle_stream(context, self._settle(prepared))
        return StartedResponse(run, settle, partial(attach_dag, request, prepared))

    def _start_astream(self, call: Call, prepared: AgentRequest, request: Any) -> StartedResponse:
        from .engine.drivers.asyncio import AioRun  # lazy: a sync call needs no event loop

        context = async_context(prepared.deadline)
        run = AioRun(self._transport, call(prepared, context), context.deadline)
        settle = settle_stream(context, self._settle(prepared))
        return StartedResponse(run, settle, partial(attach_dag, request, prepared))


def attach_dag(request: Any, prepared: AgentRequest, response: AgentResponse) -> AgentResponse:
    """If the request was a graph, attach the graph with the response appended."""
    if isinstance(request, str) or not hasattr(request, "to_request"):
        return response
    from .graph.dag import DAG, append_messages  # lazy: only requests with a graph need it

    if not isinstance(request, DAG):
        return response
    question = [Message.user(prepared.input)] if prepared.input else []
    object.__setattr__(response, "_dag", append_messages(request, [*question, response.message], [response]))
    return response


def attach_run_dag(request: Any, result: RunResult) -> RunResult:
    """If the request was a graph, attach the graph extended by the run and its stop reason."""
    if isinstance(request, str) or not hasattr(request, "to_request"):
        return result
    from .graph.dag import DAG, append_messages  # lazy: only requests with a graph need it

    if not isinstance(request, DAG):
        return result
    dag = append_messages(request, result.messages, result.responses)
    object.__setattr__(result, "_dag", dag.stop(result.stop_reason or "stop", result.usage))
    return result


def require_schema(request: RequestLike, options: Mapping[str, Any]) -> AgentRequest:
    """Return the request. Raises ConfigurationError if it has no output schema."""
    read = read_request(request, options)
    if read.output_schema is None:
        raise ConfigurationError(
            "There is no schema for the output.", field="schema", fix="Pass schema=, such as a pydantic model."
        )
    return read


def sync_context(seconds: float | None) -> Context:
    """Return a context with a deadline, which is that of the surrounding run if it is earlier."""
    return Context(deadline=min(math.inf if seconds is None else monotonic() + seconds, ambient_deadline.get()))


def async_context(seconds: float | None) -> Context:
    """Return a context with a deadline on the clock of the running event loop, real or simulated."""
    import asyncio  # lazy: a sync call needs no event loop

    offset = asyncio.get_running_loop().time() - monotonic()
    return Context(deadline=sync_context(seconds).deadline + offset)
