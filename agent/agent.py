"""Agent: one model at one vendor, behind methods that are the same for all of them.

It builds the request, composes the flows and hands them to a driver. There is nothing else in it: what to do is
decided in `execution`, and done in `drivers`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from . import transports
from .calls.call import Endpoint, attempt, complete, recorded, retry, settled, stream
from .calls.credentials import Keys, by_reference, keyed
from .calls.output_modes import as_sent, plan_output
from .calls.preflight import check, counted, counter_of, token_count
from .calls.requests import RequestLike, prepare, read_config, read_request
from .calls.streams import Partials, Settle
from .calls.structured_output import structured
from .client import Client
from .engine.context import Call
from .engine.wire import Limits, Transport
from .errors import ConfigurationError
from .models import facts
from .models.lookup import restrict_capabilities
from .models.token_estimates import TokenCount, estimate_prompt
from .providers import Provider, load_provider, provider_for_client
from .routing.limits import make_retry_budget
from .types import (
    AgentConfig,
    AgentRequest,
    AgentResponse,
    ProviderCapabilities,
    RetryConfig,
    Secret,
    ToolLoopConfig,
    ToolSpec,
)
from .types._base import validate_with

if TYPE_CHECKING:
    from .calls.credentials import GetKey
    from .calls.output_modes import Plan
    from .calls.preflight import Report
    from .loop.hooks import Hooks
    from .middleware import Middleware


class Agent(Client):
    """Calls one model.

    ```python
    from agent import Agent

    agent = Agent("openai-chat:gpt-4o", temperature=0.2)
    print(agent.complete("What is 2 + 2?").text)
    ```

    Args:
        config: An AgentConfig, or `provider:model`.
        tools: Offered to the model with every request: functions, tools, or descriptions of tools.
        retry: How failed calls are repeated; by default as often as `config.max_retries` says.
        loop: Limits of runs in which the model calls tools.
        hooks: Who has a say in those runs: what is asked before a tool is called, and so on.
        transport: Sends the requests; by default the provider's usual one, shared by all agents. One of your own, or
            the name of a shared one: `httpx` sends everything through clients of httpx2.
        http_client: An `httpx2.Client`, an `httpx2.AsyncClient`, or a tuple of both, to send through. Sync calls need
            the first and async calls the second. Clients of httpx work, too.
        client: A client of an official SDK (openai, anthropic, google-genai), to send through. Its key, address and
            proxies stay in use; its retries do not.
        middleware: Stands around every call, the first of it outermost; see `agent.middleware`.
        get_api_key: Gives the key, before each attempt; plain or async. It is passed the provider's name if it takes
            an argument, and `refresh=True`, if it takes that, when the vendor has refused the key it gave. None means
            the key that there is without it.
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
        loop: ToolLoopConfig | None = None,
        hooks: Hooks | None = None,
        transport: Transport | str | None = None,
        http_client: Any = None,
        client: Any = None,
        middleware: Sequence[Middleware] = (),
        get_api_key: GetKey | None = None,
        **overrides: Any,
    ) -> None:
        self.config = read_config(config, overrides)
        load_provider(self.config.provider)  # an unknown provider is an error here, not at the first call
        # Reading the tools as a request would, so that both take the same things.
        self.tools: Sequence[ToolSpec | Mapping[str, Any]] = read_request("", {"tools": tools}).tools if tools else ()
        self._loop = loop
        self.hooks = hooks
        if retry is not None and "max_retries" in overrides:
            raise ConfigurationError(
                "retry and max_retries are both given.", field="max_retries", fix="Say it in RetryConfig(max_retries=)."
            )
        self.retry = retry if retry is not None else RetryConfig(max_retries=self.config.max_retries)
        if client is not None and transport is not None:
            raise ConfigurationError(
                "client and transport are both given.", field="client", fix="Pass the one that shall carry requests."
            )
        if http_client is not None:
            if client is not None or transport is not None:
                raise ConfigurationError(
                    f"http_client and {'transport' if client is None else 'client'} are both given.",
                    field="http_client",
                    fix="Pass one of them.",
                )
            transport = transports.for_http_client(http_client)
        if client is not None and get_api_key is not None:
            raise ConfigurationError(
                "client and get_api_key are both given.", field="get_api_key", fix="Leave it out: a client has its key."
            )
        if isinstance(transport, str):
            transports.check_transport(transport)
        self.middleware = read_middleware(middleware) if middleware else ()
        self._get_key = get_api_key
        self._keys = None if get_api_key is None else _read_keys(get_api_key, self)
        self._client = client
        self._brought_transport = transport if client is None else transports.for_sdk_client(client)
        self._provider: Provider | None = None
        self._retries = make_retry_budget(self.retry.budget)
        self._calls: dict[bool, Call] = {}
        if client is not None:
            _ = self.provider  # needs no key, so whatever does not go together is found out now

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
        return token_count(self._run_sync(self._count(), prepared))

    async def acount_tokens(self, request: RequestLike, *, exact: bool | None = None, **overrides: Any) -> TokenCount:
        """As `count_tokens`, with await."""
        prepared = self._prepare(request, overrides)
        if not self._asks_for_count(exact):
            return estimate_prompt(prepared)
        return token_count(await self._run_async(self._count(), prepared))

    # Variants

    @override
    def with_config(self, **changes: Any) -> Agent:
        """Another agent with some settings changed, also `middleware` or `http_client`; this one stays as it is."""
        middleware = changes.pop("middleware", self.middleware)
        http_client = changes.pop("http_client", None)
        config = read_config(self.config, changes)
        retry = self.retry
        if "max_retries" in changes:
            retry = retry.model_copy(update={"max_retries": config.max_retries})
        transport = self._brought_transport if self._client is None and http_client is None else None
        options = {**self._options(), "retry": retry, "transport": transport, "middleware": middleware}
        changed = Agent(config, client=self._client, http_client=http_client, **options)
        changed._retries = self._retries  # a vendor in trouble is not spared by asking it in another tone
        return changed

    @property
    @override
    def capabilities(self) -> ProviderCapabilities:
        """What the provider can do, as far as this model can, too."""
        return restrict_capabilities(self.provider.capabilities, facts(self.config.provider, self.config.model))

    @property
    def provider(self) -> Provider:
        """The codec, made when it is first needed: only then must there be a key."""
        if self._provider is None:
            make, config = load_provider(self.config.provider), self.config
            if self._get_key is not None:
                config = config.with_overrides(api_key=_LATER)
            self._provider = make(config) if self._client is None else provider_for_client(self._client, make, config)
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
        options = self._options()
        if self._get_key is not None:
            by_reference(self._get_key)
        return _rebuild, (self.config, options)

    def _options(self) -> dict[str, Any]:
        """What it was made from, besides its configuration and a client."""
        return {
            "tools": self.tools, "retry": self.retry, "loop": self.loop, "hooks": self.hooks,
            "transport": self._brought_transport, "middleware": self.middleware, "get_api_key": self._get_key,
        }  # fmt: skip

    # Composition

    @override
    def _prepare(self, request: RequestLike, overrides: Mapping[str, Any]) -> AgentRequest:
        return prepare(read_request(request, overrides), self.config, self.tools)

    @override
    def _call(self, *, streaming: bool) -> Call:
        call = self._calls.get(streaming)
        if call is None:
            call = self._calls[streaming] = self._compose(streaming=streaming)
        return call

    @override
    def own_tools(self, response: AgentResponse | None) -> Sequence[Any]:
        return self.tools

    def _asks_for_count(self, exact: bool | None) -> bool:
        return exact is not False and (exact is True or counter_of(self.provider) is not None)

    def _count(self) -> Call:
        call = retry(self._reached(counted), self.retry, self._retries)
        if self.middleware:
            from .middleware.flow import wrap_token_count  # lazy: only agents with middleware need it

            call = wrap_token_count(call, self.middleware, target=self._name)
        return recorded(call, streaming=False)

    @override
    def _json_call(self, request: AgentRequest) -> tuple[Call, Partials]:
        plan = plan_output(self.provider, request)
        return self._call(streaming=True), Partials(plan.partial, plan.restored)

    @override
    def _settle(self, request: AgentRequest) -> Settle:
        name = self.provider.name
        return lambda partial, received: settled(partial, request, name, received)

    def _endpoint(self, provider: Provider) -> Endpoint:
        config = self.config
        limits = Limits(
            config.connect_timeout, config.first_byte_timeout, config.timeout, allow_insecure=config.allow_insecure
        )
        return Endpoint(provider, limits, config.idle_timeout, self._transport)

    def _endpoint_with(self, key: Secret | None) -> Endpoint:
        config = self.config if key is None else validate_with(lambda: self.config.with_overrides(api_key=key))
        return self._endpoint(load_provider(config.provider)(config))

    def _reached(self, once: Callable[[Endpoint], Call]) -> Call:
        """A call of the vendor: with the key that there is, or with the one that there is at that time."""
        if self._keys is None:
            return once(self._endpoint(self.provider))

        return keyed(self._keys, once)

    @property
    def _name(self) -> str:
        return f"{self.provider.name}:{self.config.model}"

    def _compose(self, *, streaming: bool) -> Call:
        once = retry(self._attempt(self._name, streaming=streaming), self.retry, self._retries)
        return recorded(self._around(once, self._name, streaming=streaming), streaming=streaming)

    def _around(self, once: Call, name: str, *, streaming: bool) -> Call:
        """What stands around the attempts of a call."""
        call = structured(once, self.provider, streaming=streaming)
        if not self.middleware:
            return call
        from .middleware.flow import wrap_call  # lazy: only agents with middleware need it

        return wrap_call(call, self.middleware, streaming=streaming, target=name, fingerprint=self._fingerprint)

    def _fingerprint(self, request: AgentRequest) -> str:
        from .middleware.base import describe_schema, fingerprint_wire  # lazy: only agents with middleware need it

        provider = self.provider
        wire = provider.encode(as_sent(provider, request), stream=False)
        return fingerprint_wire(provider.name, wire, describe_schema(request.output_schema))

    def _attempt(self, name: str, *, streaming: bool) -> Call:
        model = self.config.model

        def once(endpoint: Endpoint) -> Call:
            call = stream(endpoint) if streaming else complete(endpoint)
            return attempt(call, target=name, provider=endpoint.provider.name, model=model)

        return self._reached(once)

    @cached_property
    @override
    def _transport(self) -> Transport:
        brought = self._brought_transport or self.provider.transport
        return transports.shared_transport(brought) if isinstance(brought, str) else brought

    # As one of several

    def attempt_call(self, name: str, *, streaming: bool) -> Call:
        """A call that tries once, for a router: retries are its business, and so is the record."""
        return self._around(self._attempt(name, streaming=streaming), name, streaming=streaming)

    def describe_defaults(self) -> str:
        """What it adds to every request, in a form that is the same for equal agents; its key is no part of it."""
        from .middleware.base import describe_agent  # lazy: only agents with middleware need it

        return describe_agent(self.config, self.tools)

    def apply_defaults(self, request: AgentRequest) -> AgentRequest:
        """The request as this agent would send it: with its own system prompt, sampling and tools."""
        return prepare(request, self.config, self.tools)

    def output_plan(self, request: AgentRequest) -> Plan:
        """How this agent would ask for the request's schema, and read the answer."""
        return plan_output(self.provider, self.apply_defaults(request))

    @override
    def provider_and_model(self) -> tuple[str, str]:
        """Its provider and its model."""
        return self.config.provider, self.config.model

    def identity(self) -> tuple[Hashable, Hashable]:
        """What a key's troubles are shared by, and what a model's are."""
        config = self.config
        way = self._client if self._client is not None else self._brought_transport
        key = config.api_key if self._get_key is None else id(self._get_key)
        # By name, another way leads to the same vendor.
        access = (config.provider, config.base_url, key, None if way is None or isinstance(way, str) else id(way))
        return access, (*access, config.model)


_LATER = "-"
"""Stands in for a key that is asked for before each attempt, in the codec that plans and never sends."""


def _read_keys(get_api_key: GetKey, agent: Agent) -> Any:
    return Keys(get_api_key, agent.config.provider, agent._endpoint_with)


def read_middleware(given: Sequence[Middleware]) -> tuple[Middleware, ...]:
    """Loaded by those who have some."""
    from .middleware.flow import validate_middleware  # lazy: only agents with middleware need it

    return validate_middleware(given)


def _rebuild(config: AgentConfig, options: dict[str, Any]) -> Agent:
    return Agent(config, **options)
