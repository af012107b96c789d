"""What agents and routers have in common: the ways to ask.

A subclass says how a request is made ready and which flow answers it. This hands the flow to a driver: blocking or with
await, whole or as a stream, typed or not.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from time import monotonic
from typing import Any

from .context import Call, Context, ambient_deadline
from .drivers.sync import SyncRun, drain
from .errors import ConfigurationError
from .json_streams import AsyncJsonStream, JsonStream, Partials
from .requests import RequestLike, read_request
from .streams import AsyncResponseStream, ResponseStream, Settle
from .types import AgentRequest, AgentResponse
from .wire import Transport


class Caller:
    """Asks a model. Each method that takes a request also takes any of its fields as keyword arguments."""

    # For subclasses

    def _chosen(self, overrides: Mapping[str, Any]) -> tuple[Caller, Mapping[str, Any]]:
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
        return response

    async def acomplete(self, request: RequestLike, **overrides: Any) -> AgentResponse:
        """As `complete`, with await."""
        caller, changes = self._chosen(overrides)
        prepared = caller._prepare(request, changes)
        response: AgentResponse = await caller._adrained(caller._call(streaming=False), prepared)
        return response

    def stream(self, request: RequestLike, **overrides: Any) -> ResponseStream:
        """Ask the model, and get events while the answer arrives. Nothing is sent before the first is asked for."""
        caller, changes = self._chosen(overrides)
        prepared = caller._prepare(request, changes)
        return caller._streamed(caller._call(streaming=True), prepared)

    def astream(self, request: RequestLike, **overrides: Any) -> AsyncResponseStream:
        """As `stream`, for `async for`. There is nothing to await first."""
        caller, changes = self._chosen(overrides)
        prepared = caller._prepare(request, changes)
        return caller._astreamed(caller._call(streaming=True), prepared)

    # Typed output

    def json(self, request: RequestLike, **overrides: Any) -> AgentResponse:
        """As `complete`, with `schema=`: a pydantic model, any type, or a JSON schema. The value is in `output`."""
        caller, changes = self._chosen(overrides)
        return caller.complete(_with_schema(request, changes))

    async def ajson(self, request: RequestLike, **overrides: Any) -> AgentResponse:
        """As `json`, with await."""
        caller, changes = self._chosen(overrides)
        return await caller.acomplete(_with_schema(request, changes))

    def stream_json(self, request: RequestLike, **overrides: Any) -> JsonStream:
        """As `json`, with what has come of the value so far while it arrives. The typed value is in `output`."""
        caller, changes = self._chosen(overrides)
        prepared = caller._prepare(_with_schema(request, changes), {})
        call, partials = caller._reading(prepared)
        return JsonStream(caller._streamed(call, prepared), partials)

    def astream_json(self, request: RequestLike, **overrides: Any) -> AsyncJsonStream:
        """As `stream_json`, for `async for`. There is nothing to await first."""
        caller, changes = self._chosen(overrides)
        prepared = caller._prepare(_with_schema(request, changes), {})
        call, partials = caller._reading(prepared)
        return AsyncJsonStream(caller._astreamed(call, prepared), partials)

    # For a driver of one's own

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
        context = Context(deadline=_deadline(prepared, monotonic()))
        return drain(SyncRun(self._transport, call(prepared, context), context.deadline))

    async def _adrained(self, call: Call, prepared: AgentRequest) -> Any:
        from .drivers.aio import AioRun
        from .drivers.aio import drain as adrain

        context = _loop_context(prepared)
        return await adrain(AioRun(self._transport, call(prepared, context), context.deadline))

    def _streamed(self, call: Call, prepared: AgentRequest) -> ResponseStream:
        transport = self._transport

        def start() -> SyncRun:
            context = Context(deadline=_deadline(prepared, monotonic()))
            return SyncRun(transport, call(prepared, context), context.deadline)

        return ResponseStream(start, self._settle(prepared))

    def _astreamed(self, call: Call, prepared: AgentRequest) -> AsyncResponseStream:
        from .drivers.aio import AioRun

        transport = self._transport

        def start() -> AioRun:
            context = _loop_context(prepared)
            return AioRun(transport, call(prepared, context), context.deadline)

        return AsyncResponseStream(start, self._settle(prepared))


def _with_schema(request: RequestLike, overrides: Mapping[str, Any]) -> AgentRequest:
    asked = read_request(request, overrides)
    if asked.output_schema is None:
        raise ConfigurationError(
            "There is no schema for the output.", field="schema", fix="Pass schema=, such as a pydantic model."
        )
    return asked


def _deadline(request: AgentRequest, now: float) -> float:
    own = math.inf if request.deadline is None else now + request.deadline
    return min(own, ambient_deadline.get())


def _loop_context(request: AgentRequest) -> Context:
    """A context on the running loop's clock, which need not be the system's."""
    import asyncio

    now = monotonic()
    return Context(deadline=asyncio.get_running_loop().time() + _deadline(request, now) - now)
