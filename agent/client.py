"""What agents and routers have in common: the ways to ask.

A subclass says how a request is made ready and which flow answers it. This hands the flow to a driver: blocking or with
await, whole or as a stream, typed or not.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterable, Callable, Iterable, Mapping, Sequence
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any

from .calls.call import settle_stream
from .calls.requests import RequestLike, read_request
from .calls.streams import AsyncJsonStream, AsyncResponseStream, JsonStream, ResponseStream, Settle, StartedResponse
from .engine.context import Call, Context, RunTurn, ambient_deadline
from .engine.drivers.sync import SyncRun, drain
from .engine.wire import Transport
from .errors import ConfigurationError
from .types import AgentRequest, AgentResponse, Message, ProviderCapabilities, ToolLoopConfig

if TYPE_CHECKING:
    from .batch.streams import AsyncBatchStream, BatchStream
    from .batch.values import BatchProgress, BatchResult
    from .calls.streams import Partials
    from .loop.hooks import Hooks
    from .loop.results import PausedRun, RunResult
    from .loop.streams import AsyncRunStream, RunStream
    from .middleware.base import Middleware
    from .sessions import AgentSession
    from .stores.base import Store
    from .tools.base import Tool


class Client:
    """Asks a model. Each method that takes a request also takes any of its fields as keyword arguments."""

    _loop: ToolLoopConfig | None = None
    hooks: Hooks | None = None
    """Who has a say in its runs."""
    middleware: Sequence[Middleware] = ()
    """What stands around its calls."""

    @property
    def loop(self) -> ToolLoopConfig:
        """Limits of its runs."""
        return self._loop if self._loop is not None else ToolLoopConfig()

    # For subclasses

    def provider_and_model(self) -> tuple[str, str]:
        """Its provider and its model."""
        raise NotImplementedError

    @property
    def capabilities(self) -> ProviderCapabilities:
        """What it can do."""
        raise NotImplementedError

    def with_config(self, **changes: Any) -> Client:
        """Another one with some settings changed; this one stays as it is."""
        raise NotImplementedError

    def _chosen(self, overrides: Mapping[str, Any]) -> tuple[Client, Mapping[str, Any]]:
        """Who answers a request with these overrides, and what is left of them."""
        return self, overrides

    def _prepare(self, request: RequestLike, overrides: Mapping[str, Any]) -> AgentRequest:
        """The request that the flow is given. What is wrong with it is raised here, before anything is sent."""
        raise NotImplementedError

    def _call(self, *, streaming: bool) -> Call:
        raise NotImplementedError

    def _settle(self, request: AgentRequest) -> Settle:
        """What works out the cost of a stream that is left."""
        raise NotImplementedError

    def _reading(self, request: AgentRequest) -> tuple[Call, Partials]:
        """A streaming call whose answer is read as a value while it arrives."""
        raise NotImplementedError

    def own_tools(self, response: AgentResponse | None) -> Sequence[Any]:
        """The tools that are offered with every request; after an answer, by whoever gave it."""
        return ()

    @property
    def _transport(self) -> Transport:
        """Carries what the flow sends, unless it says otherwise."""
        raise NotImplementedError

    # One call

    def complete(self, request: RequestLike, **overrides: Any) -> AgentResponse:
        """Ask the model, and wait for the whole answer. Tools are offered, not run."""
        caller, changes = self._chosen(overrides)
        prepared = caller._prepare(request, changes)
        response: AgentResponse = caller._drained(caller._call(streaming=False), prepared)
        return _grown(request, prepared, response)

    async def acomplete(self, request: RequestLike, **overrides: Any) -> AgentResponse:
        """As `complete`, with await."""
        caller, changes = self._chosen(overrides)
        prepared = caller._prepare(request, changes)
        response: AgentResponse = await caller._adrained(caller._call(streaming=False), prepared)
        return _grown(request, prepared, response)

    def stream(self, request: RequestLike, **overrides: Any) -> ResponseStream:
        """Ask the model, and get events while the answer arrives. Nothing is sent before the first is asked for."""
        caller, changes = self._chosen(overrides)
        prepared = caller._prepare(request, changes)
        return ResponseStream(partial(caller._start_stream, caller._call(streaming=True), prepared, request))

    def astream(self, request: RequestLike, **overrides: Any) -> AsyncResponseStream:
        """As `stream`, for `async for`. There is nothing to await first."""
        caller, changes = self._chosen(overrides)
        prepared = caller._prepare(request, changes)
        return AsyncResponseStream(partial(caller._start_astream, caller._call(streaming=True), prepared, request))

    # Typed output

    def json(self, request: RequestLike, **overrides: Any) -> AgentResponse:
        """As `complete`, with `schema=`: a pydantic model, any type, or a JSON schema. The value is in `output`."""
        caller, changes = self._chosen(overrides)
        asked = _with_schema(request, changes)
        return _grown(request, asked, caller.complete(asked))

    async def ajson(self, request: RequestLike, **overrides: Any) -> AgentResponse:
        """As `json`, with await."""
        caller, changes = self._chosen(overrides)
        asked = _with_schema(request, changes)
        return _grown(request, asked, await caller.acomplete(asked))

    def stream_json(self, request: RequestLike, **overrides: Any) -> JsonStream:
        """As `json`, with what has come of the value so far while it arrives. The typed value is in `output`."""
        caller, changes = self._chosen(overrides)
        prepared = caller._prepare(_with_schema(request, changes), {})
        call, partials = caller._reading(prepared)
        return JsonStream(partial(caller._start_stream, call, prepared, request), partials)

    def astream_json(self, request: RequestLike, **overrides: Any) -> AsyncJsonStream:
        """As `stream_json`, for `async for`. There is nothing to await first."""
        caller, changes = self._chosen(overrides)
        prepared = caller._prepare(_with_schema(request, changes), {})
        call, partials = caller._reading(prepared)
        return AsyncJsonStream(partial(caller._start_astream, call, prepared, request), partials)

    # Many at a time

    def batch(
        self,
        requests: Iterable[RequestLike],
        *,
        concurrency: int = 32,
        on_progress: Callable[[BatchProgress], object] | None = None,
        **options: Any,
    ) -> BatchResult:
        """Ask many requests, several at a time, and wait for all. A request that fails does not disturb the others.

        ```python
        from agent.testing import scripted_agent

        result = scripted_agent().batch(["one", "two"], concurrency=2)
        for item in result:
            print(item.index, item.response.text if item.ok else item.error)
        ```

        Args:
            requests: Anything that can be iterated, also a generator without an end: it is read as answers come.
            concurrency: How many are under way at a time.
            on_progress: Called after each request, in this thread.
            options: Fields of every request, such as `schema`, and: `progress`, True for a bar on the terminal;
                `total`, how many requests there are, if `requests` cannot say; `max_failures`, `max_cost` (US dollars)
                and `max_seconds`, after which nothing more is asked.
        """
        return self.batch_stream(requests, concurrency=concurrency, on_progress=on_progress, **options).collect()

    async def abatch(
        self,
        requests: Iterable[RequestLike] | AsyncIterable[RequestLike],
        *,
        concurrency: int = 32,
        on_progress: Callable[[BatchProgress], object] | None = None,
        **options: Any,
    ) -> BatchResult:
        """As `batch`, with await. The requests may come from an async iterable."""
        stream = self.abatch_stream(requests, concurrency=concurrency, on_progress=on_progress, **options)
        return await stream.collect()

    def batch_stream(
        self,
        requests: Iterable[RequestLike],
        *,
        concurrency: int = 32,
        on_progress: Callable[[BatchProgress], object] | None = None,
        **options: Any,
    ) -> BatchStream:
        """As `batch`, with each item as soon as it is done. Nothing is sent before the first is asked for."""
        from .batch.streams import BatchStream  # lazy: only batches need it
        from .batch.values import BatchPlan  # lazy: only batches need it

        return BatchStream(BatchPlan(*self._batched(requests, concurrency, on_progress, options), awaiting=False))

    def abatch_stream(
        self,
        requests: Iterable[RequestLike] | AsyncIterable[RequestLike],
        *,
        concurrency: int = 32,
        on_progress: Callable[[BatchProgress], object] | None = None,
        **options: Any,
    ) -> AsyncBatchStream:
        """As `batch_stream`, for `async for`. There is nothing to await first."""
        from .batch.streams import AsyncBatchStream  # lazy: only batches need it
        from .batch.values import BatchPlan  # lazy: only batches need it

        return AsyncBatchStream(BatchPlan(*self._batched(requests, concurrency, on_progress, options), awaiting=True))

    def _batched(self, requests: Any, concurrency: int, on_progress: Any, options: Mapping[str, Any]) -> Any:
        from .batch.values import read_options  # lazy: only batches need it

        ask, ours = read_options(self, {**options, "concurrency": concurrency, "on_progress": on_progress})
        return ask, requests, ours

    # Conversations

    def session(self, session_id: str | None = None, *, store: Store | None = None, **options: Any) -> AgentSession:
        """A conversation that goes on, kept in `store` if there is one. See `AgentSession` for the options."""
        from .sessions import AgentSession  # lazy: only sessions need it

        return AgentSession(self, session_id, store=store, **options)

    # With tools

    def run(self, request: RequestLike | PausedRun, **options: Any) -> RunResult:
        """Ask the model, run the tools it calls, and ask again, until it has its answer.

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
            request: As for `complete`, or a run that was paused.
            options: Fields of the request, and: `loop`, limits as a `ToolLoopConfig`; `deps`, for the tools' context;
                `run_id` and `journal`, to go on after a crash; `before_tool_call`, `after_tool_call`,
                `transform_context`, `convert_to_llm`, `get_steering_messages`, `get_follow_up_messages`.

        The result has the usage, cost and route of all turns. Errors have in `result` what was done until then.
        """
        caller, run, flow = self._running(request, options, streaming=False)
        context = Context(deadline=_until(run.deadline, monotonic()))
        result: RunResult = drain(SyncRun(caller._transport, flow(context), context.deadline))
        return _grown_by_run(request, result)

    async def arun(self, request: RequestLike | PausedRun, **options: Any) -> RunResult:
        """As `run`, with await."""
        from .engine.drivers.asyncio import AioRun  # lazy: a blocking call needs no event loop
        from .engine.drivers.asyncio import drain as adrain  # lazy: a blocking call needs no event loop

        caller, run, flow = self._running(request, options, streaming=False)
        context = _loop_context(run.deadline)
        result: RunResult = await adrain(AioRun(caller._transport, flow(context), context.deadline))
        return _grown_by_run(request, result)

    def run_stream(self, request: RequestLike | PausedRun, **options: Any) -> RunStream:
        """As `run`, with events while it goes on, and the means to steer it."""
        from .loop.streams import RunStream, StartedRun  # lazy: only runs need it

        caller, run, flow = self._running(request, options, streaming=True)

        def start() -> StartedRun:
            context = Context(deadline=_until(run.deadline, monotonic()))
            driven = SyncRun(caller._transport, flow(context), context.deadline)
            return StartedRun(driven, run.record, run.plan.signal, partial(_grown_by_run, request))

        return RunStream(start, run.record, run.plan.signal)

    def arun_stream(self, request: RequestLike | PausedRun, **options: Any) -> AsyncRunStream:
        """As `run_stream`, for `async for`. There is nothing to await first."""
        from .loop.streams import AsyncRunStream, StartedRun  # lazy: only runs need it

        caller, run, flow = self._running(request, options, streaming=True)

        def start() -> StartedRun:
            from .engine.drivers.asyncio import AioRun  # lazy: a blocking call needs no event loop

            context = _loop_context(run.deadline)
            driven = AioRun(caller._transport, flow(context), context.deadline)
            return StartedRun(driven, run.record, run.plan.signal, partial(_grown_by_run, request))

        return AsyncRunStream(start, run.record, run.plan.signal)

    def as_tool(self, name: str, description: str, **settings: Any) -> Tool:
        """This agent as a tool of another: it gets a task in words, and answers in words.

        Args:
            settings: Options for `run`, and the settings of a tool; `parameters`, for a task that is more than text.
        """
        from .loop.flow import SubAgent  # lazy: only runs need it

        return SubAgent.of(self, name, description, settings)

    # For a driver of one's own

    def run_flow(
        self, request: RequestLike | PausedRun, *, streaming: bool, context: Context | None = None, **options: Any
    ) -> Any:
        """The flow of one run, for a driver of your own, and the run itself."""
        _, run, flow = self._running(request, options, streaming=streaming)
        return flow(context or Context()), run

    def _running(self, request: RequestLike | PausedRun, options: Mapping[str, Any], *, streaming: bool) -> Any:
        from .loop.flow import run_loop  # lazy: only runs need it
        from .loop.setup import prepare_run  # lazy: only runs need it

        caller, changes = self._chosen(options)
        run = prepare_run(caller, request, changes, streaming=streaming)

        def flow(context: Context) -> Any:
            looping = run_loop(run.plan, run.record, context)
            return caller._overheard(looping, run, streaming=streaming) if caller.middleware else looping

        return caller, run, flow

    def _overheard(self, flow: Any, run: Any, *, streaming: bool) -> Any:
        """The flow of a run, with middleware that hears its events."""
        from .middleware.base import CallInfo  # lazy: only callers with middleware need it
        from .middleware.flow import observe_events  # lazy: only callers with middleware need it

        place = RunTurn(run.record.run_id, 0)
        target = ":".join(filter(None, self.provider_and_model()))
        info = CallInfo(streaming=streaming, target=target, request=run.plan.request, run=place)
        return observe_events(flow, self.middleware, info)

    def flow_for(
        self, request: RequestLike, *, streaming: bool, context: Context | None = None, **overrides: Any
    ) -> Any:
        """The flow of one call, for a driver of your own such as the simulated one."""
        caller, changes = self._chosen(overrides)
        prepared = caller._prepare(request, changes)
        return caller._call(streaming=streaming)(prepared, context or Context())

    def deadline_of(self, request: RequestLike, **overrides: Any) -> float | None:
        """Seconds that a call may take as a whole; None for no limit."""
        caller, changes = self._chosen(overrides)
        return caller._prepare(request, changes).deadline

    # Drivers

    def _drained(self, call: Call, prepared: AgentRequest) -> Any:
        context = Context(deadline=_until(prepared.deadline, monotonic()))
        return drain(SyncRun(self._transport, call(prepared, context), context.deadline))

    async def _adrained(self, call: Call, prepared: AgentRequest) -> Any:
        from .engine.drivers.asyncio import AioRun  # lazy: a blocking call needs no event loop
        from .engine.drivers.asyncio import drain as adrain  # lazy: a blocking call needs no event loop

        context = _loop_context(prepared.deadline)
        return await adrain(AioRun(self._transport, call(prepared, context), context.deadline))

    def _start_stream(self, call: Call, prepared: AgentRequest, asked: Any) -> StartedResponse:
        context = Context(deadline=_until(prepared.deadline, monotonic()))
        run = SyncRun(self._transport, call(prepared, context), context.deadline)
        settle = settle_stream(context, self._settle(prepared))
        return StartedResponse(run, settle, partial(_grown, asked, prepared))

    def _start_astream(self, call: Call, prepared: AgentRequest, asked: Any) -> StartedResponse:
        from .engine.drivers.asyncio import AioRun  # lazy: a blocking call needs no event loop

        context = _loop_context(prepared.deadline)
        run = AioRun(self._transport, call(prepared, context), context.deadline)
        settle = settle_stream(context, self._settle(prepared))
        return StartedResponse(run, settle, partial(_grown, asked, prepared))


def _grown(asked: Any, prepared: AgentRequest, response: AgentResponse) -> AgentResponse:
    """The response; if a graph was asked with, with that graph extended by it."""
    if isinstance(asked, str) or not hasattr(asked, "to_request"):
        return response
    from .graph.dag import append_messages  # lazy: only requests with a graph need it

    said = [Message.user(prepared.input)] if prepared.input else []
    object.__setattr__(response, "_dag", append_messages(asked, [*said, response.message], [response]))
    return response


def _grown_by_run(asked: Any, result: RunResult) -> RunResult:
    if isinstance(asked, str) or not hasattr(asked, "to_request"):
        return result
    from .graph.dag import append_messages  # lazy: only requests with a graph need it

    object.__setattr__(result, "_dag", append_messages(asked, result.messages, result.responses))
    return result


def _with_schema(request: RequestLike, overrides: Mapping[str, Any]) -> AgentRequest:
    asked = read_request(request, overrides)
    if asked.output_schema is None:
        raise ConfigurationError(
            "There is no schema for the output.", field="schema", fix="Pass schema=, such as a pydantic model."
        )
    return asked


def _until(seconds: float | None, now: float) -> float:
    """When a call that may take so long must be over, and the run around it, if there is one."""
    own = math.inf if seconds is None else now + seconds
    return min(own, ambient_deadline.get())


def _loop_context(seconds: float | None) -> Context:
    """A context on the running loop's clock, which need not be the system's."""
    import asyncio

    now = monotonic()
    return Context(deadline=asyncio.get_running_loop().time() + _until(seconds, now) - now)
