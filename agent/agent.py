"""Agent: one model at one vendor, behind methods that are the same for all of them.

It builds the request, composes the flows and hands them to a driver. There is nothing else in it: what to do is
decided in `execution`, and done in `drivers`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from time import monotonic
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from . import transports
from .context import Call, Context, ambient_deadline
from .drivers.sync import SyncRun, drain
from .errors import ConfigurationError
from .execution.accounting import settled
from .execution.call import Target, attempt, complete, stream
from .execution.counting import counted, counter_of, token_count
from .execution.outermost import recorded
from .execution.output_modes import plan_output
from .execution.retry import retry
from .execution.structured import structured
from .json_streams import AsyncJsonStream, JsonStream, Partials
from .models import facts, narrowed
from .providers import Provider, for_client, load
from .requests import RequestLike, prepare, read_config, read_request
from .streams import AsyncResponseStream, ResponseStream, Settle
from .tokens import TokenCount, estimate_prompt
from .types import AgentConfig, AgentRequest, AgentResponse, ProviderCapabilities, RetryConfig, ToolSpec
from .wire import Limits, Transport

if TYPE_CHECKING:
    from .checking import Report


class Agent:
    """Calls one model.

    ```python
    from agent import Agent

    agent = Agent("openai-chat:gpt-4o", temperature=0.2)
    print(agent.complete("What is 2 + 2?").text)
    ```

    Args:
        config: An AgentConfig, or `provider:model`.
        tools: Offered to the model with every request.
        retry: How failed calls are repeated; by default as often as `config.max_retries` says.
        transport: Carries the requests; by default the provider's usual one, shared by all agents.
        client: A client of an official SDK (openai, anthropic, google-genai), to send through. Its key, address and
            proxies stay in use; its retries do not.
        overrides: Any field of AgentConfig.

    An agent is immutable and may be shared by threads, event loops and forked processes. Each method that takes a
    request also takes any of its fields as keyword arguments.
    """

    def __init__(
        self,
        config: AgentConfig | str,
        *,
        tools: Sequence[Any] = (),
        retry: RetryConfig | None = None,
        transport: Transport | None = None,
        client: Any = None,
        **overrides: Any,
    ) -> None:
        self.config = read_config(config, overrides)
        load(self.config.provider)  # an unknown provider is an error here, not at the first call
        # Reading the tools as a request would, so that both take the same things.
        self.tools: Sequence[ToolSpec | Mapping[str, Any]] = read_request("", {"tools": tools}).tools if tools else ()
        if retry is not None and "max_retries" in overrides:
            raise ConfigurationError(
                "retry and max_retries are both given.", field="max_retries", fix="Say it in RetryConfig(max_retries=)."
            )
        self.retry = retry if retry is not None else RetryConfig(max_retries=self.config.max_retries)
        if client is not None and transport is not None:
            raise ConfigurationError(
                "client and transport are both given.", field="client", fix="Pass the one that shall carry requests."
            )
        self._client = client
        self._brought_transport = transport if client is None else transports.through(client)
        self._provider: Provider | None = None
        self._calls: dict[bool, Call] = {}
        if client is not None:
            _ = self.provider  # needs no key, so whatever does not go together is found out now

    # One call

    def complete(self, request: RequestLike, **overrides: Any) -> AgentResponse:
        """Ask the model, and wait for the whole answer. Tools are offered, not run."""
        prepared = self._prepare(request, overrides)
        context = Context(deadline=self._deadline(prepared, monotonic()))
        run = SyncRun(self._transport, self._call(streaming=False)(prepared, context), context.deadline)
        response: AgentResponse = drain(run)
        return response

    async def acomplete(self, request: RequestLike, **overrides: Any) -> AgentResponse:
        """As `complete`, with await."""
        from .drivers.aio import AioRun
        from .drivers.aio import drain as adrain

        prepared = self._prepare(request, overrides)
        context = self._loop_context(prepared)
        run = AioRun(self._transport, self._call(streaming=False)(prepared, context), context.deadline)
        response: AgentResponse = await adrain(run)
        return response

    def stream(self, request: RequestLike, **overrides: Any) -> ResponseStream:
        """Ask the model, and get events while the answer arrives. Nothing is sent before the first is asked for."""
        prepared, transport, call = self._prepare(request, overrides), self._transport, self._call(streaming=True)

        def start() -> SyncRun:
            context = Context(deadline=self._deadline(prepared, monotonic()))
            return SyncRun(transport, call(prepared, context), context.deadline)

        return ResponseStream(start, self._settle(prepared))

    def astream(self, request: RequestLike, **overrides: Any) -> AsyncResponseStream:
        """As `stream`, for `async for`. There is nothing to await first."""
        from .drivers.aio import AioRun

        prepared, transport, call = self._prepare(request, overrides), self._transport, self._call(streaming=True)

        def start() -> AioRun:
            context = self._loop_context(prepared)
            return AioRun(transport, call(prepared, context), context.deadline)

        return AsyncResponseStream(start, self._settle(prepared))

    # Typed output

    def json(self, request: RequestLike, **overrides: Any) -> AgentResponse:
        """As `complete`, with `schema=`: a pydantic model, any type, or a JSON schema. The value is in `output`."""
        return self.complete(self._with_schema(request, overrides))

    async def ajson(self, request: RequestLike, **overrides: Any) -> AgentResponse:
        """As `json`, with await."""
        return await self.acomplete(self._with_schema(request, overrides))

    def stream_json(self, request: RequestLike, **overrides: Any) -> JsonStream:
        """As `json`, with what has come of the value so far while it arrives. The typed value is in `output`."""
        asked = self._with_schema(request, overrides)
        return JsonStream(self.stream(asked), self._partials(asked))

    def astream_json(self, request: RequestLike, **overrides: Any) -> AsyncJsonStream:
        """As `stream_json`, for `async for`. There is nothing to await first."""
        asked = self._with_schema(request, overrides)
        return AsyncJsonStream(self.astream(asked), self._partials(asked))

    def _partials(self, asked: AgentRequest) -> Partials:
        prepared = self._prepare(asked, {})
        plan = plan_output(self.provider, prepared)
        return Partials(plan.partial, plan.restored)

    def _with_schema(self, request: RequestLike, overrides: Mapping[str, Any]) -> AgentRequest:
        asked = read_request(request, overrides)
        if asked.output_schema is None:
            raise ConfigurationError(
                "There is no schema for the output.", field="schema", fix="Pass schema=, such as a pydantic model."
            )
        return asked

    # Before a call

    def check(self, request: RequestLike, **overrides: Any) -> Report:
        """What would become of a request: problems, losses, size and cost. Nothing is sent, and nothing is raised.

        ```python
        from agent import Agent

        report = Agent("scripted:echo").check("Hello!", max_tokens=100)
        assert report.ok
        print(report)
        ```
        """
        from .checking import check

        return check(self.config, lambda: self.provider, lambda: self._prepare(request, overrides))

    def count_tokens(self, request: RequestLike, *, exact: bool | None = None, **overrides: Any) -> TokenCount:
        """How many tokens the request has as a prompt.

        Args:
            exact: True asks the vendor, and raises if it cannot be asked; False estimates, and sends nothing. By
                default the vendor is asked where it can be.
        """
        prepared = self._prepare(request, overrides)
        if not self._asks_for_count(exact):
            return estimate_prompt(prepared)
        context = Context(deadline=self._deadline(prepared, monotonic()))
        run = SyncRun(self._transport, self._count()(prepared, context), context.deadline)
        return token_count(drain(run))

    async def acount_tokens(self, request: RequestLike, *, exact: bool | None = None, **overrides: Any) -> TokenCount:
        """As `count_tokens`, with await."""
        from .drivers.aio import AioRun
        from .drivers.aio import drain as adrain

        prepared = self._prepare(request, overrides)
        if not self._asks_for_count(exact):
            return estimate_prompt(prepared)
        context = self._loop_context(prepared)
        run = AioRun(self._transport, self._count()(prepared, context), context.deadline)
        return token_count(await adrain(run))

    # Variants

    def with_config(self, **changes: Any) -> Agent:
        """Another agent with some settings changed; this one stays as it is."""
        config = read_config(self.config, changes)
        retry = self.retry
        if "max_retries" in changes:
            retry = retry.model_copy(update={"max_retries": config.max_retries})
        transport = self._brought_transport if self._client is None else None
        return Agent(config, tools=self.tools, retry=retry, transport=transport, client=self._client)

    @property
    def capabilities(self) -> ProviderCapabilities:
        """What the provider can do, as far as this model can, too."""
        return narrowed(self.provider.capabilities, facts(self.config.provider, self.config.model))

    @property
    def provider(self) -> Provider:
        """The codec, made when it is first needed: only then must there be a key."""
        if self._provider is None:
            make = load(self.config.provider)
            self._provider = make(self.config) if self._client is None else for_client(self._client, make, self.config)
        return self._provider

    @override
    def __repr__(self) -> str:
        return f"Agent({f'{self.config.provider}:{self.config.model}'!r})"

    def __copy__(self) -> Agent:
        return self  # it is immutable

    def __deepcopy__(self, memo: dict[int, Any]) -> Agent:
        return self

    @override
    def __reduce__(self) -> Any:
        if self._client is not None:
            raise TypeError("an agent with a client of its own cannot be pickled; make both in the other process")
        # Connections stay behind, and so does the key: the other process finds its own in the environment.
        return _rebuild, (self.config, self.tools, self.retry, self._brought_transport)

    # Composition

    def flow_for(
        self, request: RequestLike, *, streaming: bool, context: Context | None = None, **overrides: Any
    ) -> Any:
        """The flow of one call, for a driver of your own such as the simulated one."""
        prepared = self._prepare(request, overrides)
        return self._call(streaming=streaming)(prepared, context or Context())

    def _prepare(self, request: RequestLike, overrides: Mapping[str, Any]) -> AgentRequest:
        return prepare(read_request(request, overrides), self.config, self.tools)

    def _call(self, *, streaming: bool) -> Call:
        call = self._calls.get(streaming)
        if call is None:
            call = self._calls[streaming] = self._compose(streaming=streaming)
        return call

    def _asks_for_count(self, exact: bool | None) -> bool:
        return exact is not False and (exact is True or counter_of(self.provider) is not None)

    def _count(self) -> Call:
        return recorded(retry(counted(self._target()), self.retry), streaming=False)

    def _settle(self, request: AgentRequest) -> Settle:
        name = self.provider.name
        return lambda partial, received: settled(partial, request, name, received)

    def _target(self) -> Target:
        config = self.config
        limits = Limits(config.connect_timeout, config.first_byte_timeout, config.timeout)
        return Target(self.provider, limits, config.idle_timeout)

    def _compose(self, *, streaming: bool) -> Call:
        config, provider, target = self.config, self.provider, self._target()
        name = f"{provider.name}:{config.model}"
        call = stream(target) if streaming else complete(target)
        call = retry(attempt(call, target=name, provider=provider.name, model=config.model), self.retry)
        return recorded(structured(call, provider, streaming=streaming), streaming=streaming)

    @property
    def _transport(self) -> Transport:
        return self._brought_transport or transports.load(self.provider.transport)

    def _deadline(self, request: AgentRequest, now: float) -> float:
        own = math.inf if request.deadline is None else now + request.deadline
        return min(own, ambient_deadline.get())

    def _loop_context(self, request: AgentRequest) -> Context:
        """A context on the running loop's clock, which need not be the system's."""
        import asyncio

        now = monotonic()
        return Context(deadline=asyncio.get_running_loop().time() + self._deadline(request, now) - now)


def _rebuild(config: AgentConfig, tools: Sequence[Any], retry: RetryConfig, transport: Transport | None) -> Agent:
    return Agent(config, tools=tools, retry=retry, transport=transport)
