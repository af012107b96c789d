"""Agent: a client for one model of one vendor.

It reads the settings and composes flows. The flows are in `agent.calls`, the drivers in `agent.engine`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from typing_extensions import Unpack, override

from . import transports
from .calls.background import cancel, retrieve, without_waiting
from .calls.call import Endpoint, attempt, complete, record_route, retry, reveal_secrets, settle_response, stream
from .calls.credentials import Keys, call_with_keys, check_picklable, read_keys_by_provider
from .calls.output_modes import as_sent, plan_output
from .calls.preflight import check, count_tokens, get_token_counter, read_token_count
from .calls.requests import RequestLike, prepare, read_config, read_request, split_call_options
from .calls.streams import Partials, Settle
from .calls.structured_output import parse_output
from .client import JobClient
from .engine.context import Call
from .engine.wire import Limits, Transport
from .errors import ConfigurationError, hide_arguments, printable
from .models import facts, restrict_capabilities
from .models.token_estimates import TokenCount, estimate_prompt
from .providers import Provider, load_provider, provider_for_client
from .routing.limits import make_retry_budget
from .types import (
    AgentConfig,
    AgentRequest,
    AgentResponse,
    ProviderCapabilities,
    RequestTool,
    RetryConfig,
    Secret,
    ToolLoopConfig,
)
from .types._base import validate_with

if TYPE_CHECKING:
    from .calls.credentials import GetKey
    from .calls.output_modes import Plan
    from .calls.preflight import Report
    from .loop.hooks import Hooks
    from .middleware import Middleware
    from .types.options import (
        AnyTool,
        ConfigChanges,
        ConfigOptions,
        PreflightOptions,
    )


class Agent(JobClient):
    """A client for one model.

    ```python
    from agent import Agent

    agent = Agent("openai-chat:gpt-4o", temperature=0.2)
    print(agent.complete("What is 2 + 2?").text)
    ```

    Args:
        config: An AgentConfig, or `provider:model`.
        tools: Tools that are offered to the model with every request: functions, tools, or descriptions of tools.
        retry: Number and timing of retries. By default `config.max_retries` retries.
        loop: Limits of runs in which the model calls tools.
        hooks: Hooks called during runs, such as approval before a tool call.
        transport: Transport of the requests, or the name of a shared one: `httpx` sends everything through httpx2. By
            default that of the provider, shared by all agents.
        http_client: An `httpx2.Client` for sync calls, an `httpx2.AsyncClient` for async calls, or a tuple of both.
            Clients of httpx work, too.
        client: A client of an official SDK (openai, anthropic, google-genai) that sends the requests. Its API key, base
            URL and proxies apply; its retries do not.
        middleware: Middleware around every call; the first is outermost. See `agent.middleware`.
        get_api_key: Function, sync or async, that returns the API key before each attempt. It receives the provider's
            name if it has a parameter, and `refresh=True`, if it has that, after the vendor rejected its key. None
            selects the key from `api_key` or the environment.
        options: Fields of AgentConfig, such as `temperature` or `timeout`.

    An agent is immutable and may be shared by threads, event loops and forked processes.
    """

    @hide_arguments
    def __init__(
        self,
        config: AgentConfig | str,
        *,
        tools: Sequence[AnyTool] = (),
        retry: RetryConfig | None = None,
        loop: ToolLoopConfig | None = None,
        hooks: Hooks | None = None,
        transport: Transport | str | None = None,
        http_client: Any = None,  # Any: a client of httpx2 or httpx, which need not be installed
        client: Any = None,  # Any: a client of an SDK, which need not be installed
        middleware: Sequence[Middleware] = (),
        get_api_key: GetKey | None = None,
        **options: Unpack[ConfigOptions],
    ) -> None:
        self.config: AgentConfig = read_config(config, options)
        load_provider(self.config.provider)  # raises for an unknown provider
        self.tools: Sequence[RequestTool] = read_request("", {"tools": tools}).tools if tools else ()
        self._loop = loop
        self.hooks = hooks
        if retry is not None and "max_retries" in options:
            raise ConfigurationError(
                "retry and max_retries exclude each other.",
                field="max_retries",
                fix="Use RetryConfig(max_retries=...).",
            )
        self.retry: RetryConfig = retry if retry is not None else RetryConfig(max_retries=self.config.max_retries)
        if client is not None and transport is not None:
            raise ConfigurationError(
                "client and transport exclude each other.", field="client", fix="Pass one of them."
            )
        if http_client is not None:
            if client is not None or transport is not None:
                raise ConfigurationError(
                    f"http_client and {'transport' if client is None else 'client'} exclude each other.",
                    field="http_client",
                    fix="Pass one of them.",
                )
            transport = transports.for_http_client(http_client)
        if client is not None and get_api_key is not None:
            raise ConfigurationError(
                "client and get_api_key exclude each other.",
                field="get_api_key",
                fix="Remove it: the client has a key.",
            )
        if isinstance(transport, str):
            transports.check_transport(transport)
        self.middleware: tuple[Middleware, ...] = read_middleware(middleware) if middleware else ()
        self._get_key = get_api_key
        self._keys = None if get_api_key is None else _read_keys(get_api_key, self)
        self._client = client
        self._given_transport = transport if client is None else transports.for_sdk_client(client)
        self._provider: Provider | None = None
        self._retries = make_retry_budget(self.retry.budget)
        self._calls: dict[bool, Call] = {}
        if client is not None:
            _ = self.provider  # raises if client and provider do not match

    # Before a call

    def check(self, request: RequestLike = (), **options: Unpack[PreflightOptions]) -> Report:
        """Pre-flight check: report problems, dropped data, size and cost of a request without sending it.

        ```python
        from agent import Agent

        report = Agent("scripted:echo").check("Hello!", max_tokens=100)
        assert report.ok
        print(report)
        ```
        """
        agent, changes = self._select(options)
        return check(agent.config, lambda: agent.provider, lambda: agent._prepare(request, changes))

    def count_tokens(
        self, request: RequestLike = (), *, exact: bool | None = None, **options: Unpack[PreflightOptions]
    ) -> TokenCount:
        """Count the prompt tokens of a request.

        Args:
            exact: True counts at the vendor, and raises an error if the vendor cannot; False estimates and sends
                nothing. By default the vendor counts if it can.
        """
        agent, changes = self._select(options)
        prepared = agent._prepare(request, changes)
        if not agent._counts_at_vendor(exact):
            return estimate_prompt(prepared)
        return read_token_count(agent._run_sync(agent._count_call(), prepared))

    async def acount_tokens(
        self, request: RequestLike = (), *, exact: bool | None = None, **options: Unpack[PreflightOptions]
    ) -> TokenCount:
        """Async version of `count_tokens`."""
        agent, changes = self._select(options)
        prepared = agent._prepare(request, changes)
        if not agent._counts_at_vendor(exact):
            return estimate_prompt(prepared)
        return read_token_count(await agent._run_async(agent._count_call(), prepared))

    # Responses that the vendor processes in the background

    def submit(self, request: RequestLike = (), **options: Unpack[PreflightOptions]) -> AgentResponse:
        """Submit a request for background processing, and return without waiting for the response.

        The `id` of the returned response is the argument of `retrieve`. `status` is None if the response is complete,
        as it is at vendors without background processing.
        """
        agent, changes = self._select(options)
        prepared = agent._prepare(request, {**changes, "background": True})
        response: AgentResponse = agent._run_sync(without_waiting(agent._call(streaming=False)), prepared)
        return response

    async def asubmit(self, request: RequestLike = (), **options: Unpack[PreflightOptions]) -> AgentResponse:
        """Async version of `submit`."""
        agent, changes = self._select(options)
        prepared = agent._prepare(request, {**changes, "background": True})
        response: AgentResponse = await agent._run_async(without_waiting(agent._call(streaming=False)), prepared)
        return response

    def retrieve(self, response_id: str, *, wait: bool = False, **options: Unpack[PreflightOptions]) -> AgentResponse:
        """Return a response by its id, in any process.

        Args:
            response_id: The vendor's id of a stored response.
            wait: Wait until a background response is complete, at most for `deadline` seconds.

        Options are those of the request, as far as reading the response depends on them: `tools`, `schema`, `deadline`.
        """
        agent, call, prepared = self._prepare_stored(retrieve(response_id, wait=wait), response_id, options)
        response: AgentResponse = agent._run_sync(call, prepared)
        return response

    async def aretrieve(
        self, response_id: str, *, wait: bool = False, **options: Unpack[PreflightOptions]
    ) -> AgentResponse:
        """Async version of `retrieve`."""
        agent, call, prepared = self._prepare_stored(retrieve(response_id, wait=wait), response_id, options)
        response: AgentResponse = await agent._run_async(call, prepared)
        return response

    def cancel(self, response_id: str, **options: Unpack[PreflightOptions]) -> AgentResponse:
        """Cancel a background response at the vendor. Returns it with `raw_stop_reason` "cancelled"."""
        agent, call, prepared = self._prepare_stored(cancel(response_id), response_id, options)
        response: AgentResponse = agent._run_sync(call, prepared)
        return response

    async def acancel(self, response_id: str, **options: Unpack[PreflightOptions]) -> AgentResponse:
        """Async version of `cancel`."""
        agent, call, prepared = self._prepare_stored(cancel(response_id), response_id, options)
        response: AgentResponse = await agent._run_async(call, prepared)
        return response

    def _prepare_stored(
        self, once: Callable[[Endpoint], Call], response_id: str, options: Mapping[str, Any]
    ) -> tuple[Agent, Call, AgentRequest]:
        """Return agent, call and request for a stored response. The request is for reading it only."""
        agent, changes = self._select(options)
        prepared = agent._prepare(AgentRequest(input=f"(response {response_id})"), changes)
        return agent, agent._compose(once, streaming=False), prepared

    # Variants

    @override
    @hide_arguments
    def with_config(self, **changes: Unpack[ConfigChanges]) -> Agent:
        """Return an agent with some settings changed."""
        options = self._options()
        options.update({name: changes[name] for name in ("middleware", "http_client") if name in changes})
        if "http_client" in changes or self._client is not None:
            options["transport"] = None
        config = read_config(
            self.config, {name: value for name, value in changes.items() if name not in ("middleware", "http_client")}
        )
        if "max_retries" in changes:
            options["retry"] = self.retry.model_copy(update={"max_retries": config.max_retries})
        if changes.get("api_key") is not None:
            options["get_api_key"] = None
        changed = Agent(config, client=self._client, **options)
        changed._retries = self._retries  # the retry budget is shared
        return changed

    @override
    def _select(self, options: Mapping[str, Any]) -> tuple[Agent, Mapping[str, Any]]:
        settings, rest = split_call_options(options)
        return (self.for_call(settings) if settings else self), rest

    def for_call(self, settings: Mapping[str, Any]) -> Agent:  # Any: settings of several types
        """Return an agent with the settings of one call: `timeout`, `max_retries`, `headers` and `api_key`."""
        changes = dict(settings)
        key, headers = changes.get("api_key"), changes.get("headers")
        if key is not None and self._client is not None:
            raise ConfigurationError(
                "api_key has no effect: the agent's client has its own key.",
                field="api_key",
                fix="Remove it, or use an agent with another client.",
            )
        changes["api_key"] = read_keys_by_provider(key, self.addresses()).get(self.config.provider)
        if isinstance(headers, Mapping):
            given = {str(name).lower() for name in headers}
            own = {name: value for name, value in self.config.headers.items() if name.lower() not in given}
            changes["headers"] = {**own, **headers}
        return self.with_config(**{name: value for name, value in changes.items() if value is not None})

    def addresses(self) -> set[tuple[str, str | None]]:
        """Return where an API key is sent: provider and base URL."""
        return {(self.config.provider, self.config.base_url)}

    @property
    @override
    def capabilities(self) -> ProviderCapabilities:
        """Capabilities of the provider, restricted to those of the model."""
        return restrict_capabilities(self.provider.capabilities, facts(self.config.provider, self.config.model))

    @property
    def provider(self) -> Provider:
        """The provider, created on first use. Raises AuthenticationError if there is no API key."""
        if self._provider is None:
            self._provider = self._create_provider()
        return self._provider

    @hide_arguments
    def _create_provider(self) -> Provider:
        make, config = load_provider(self.config.provider), self.config
        if self._get_key is not None:
            config = config.with_overrides(api_key=_PLACEHOLDER_KEY)
        return make(config) if self._client is None else provider_for_client(self._client, make, config)

    @override
    @printable
    def __repr__(self) -> str:
        return f"Agent({f'{self.config.provider}:{self.config.model}'!r})"

    def __copy__(self) -> Agent:
        return self  # it is immutable

    def __deepcopy__(self, memo: dict[int, Any]) -> Agent:
        return self

    @override
    def __reduce__(self) -> Any:
        if self._client is not None:
            raise TypeError("an agent with an SDK client cannot be pickled; create both in the other process")
        # Connections and keys are not pickled: the other process reads its key from the environment.
        options = self._options()
        if self._get_key is not None:
            check_picklable(self._get_key)
        return _rebuild, (self.config, options)

    def _options(self) -> dict[str, Any]:
        """Constructor arguments, besides the configuration and the client."""
        return {
            "tools": self.tools, "retry": self.retry, "loop": self.loop, "hooks": self.hooks,
            "transport": self._given_transport, "middleware": self.middleware, "get_api_key": self._get_key,
        }  # fmt: skip

    # Composition

    @override
    def _prepare(self, request: RequestLike, overrides: Mapping[str, Any]) -> AgentRequest:
        return prepare(read_request(request, overrides), self.config, self.tools)

    @override
    def _call(self, *, streaming: bool) -> Call:
        call = self._calls.get(streaming)
        if call is None:
            call = self._calls[streaming] = self._compose(stream if streaming else complete, streaming=streaming)
        return call

    @override
    def own_tools(self, response: AgentResponse | None) -> Sequence[Any]:  # Any: tools, and vendors' own tools
        return self.tools

    def _counts_at_vendor(self, exact: bool | None) -> bool:
        return exact is not False and (exact is True or get_token_counter(self.provider) is not None)

    def _exchange_call(self, once: Callable[[Endpoint], Call]) -> Call:
        """Return a call of another endpoint than that of responses, with the keys and retries of this agent."""
        return retry(self._with_key(once), self.retry, self._retries)

    def _count_call(self) -> Call:
        call = self._exchange_call(count_tokens)
        if self.middleware:
            from .middleware.flow import wrap_token_count  # lazy: only agents with middleware need it

            call = wrap_token_count(call, self.middleware, target=self._name)
        return record_route(call, streaming=False)

    @override
    def _json_call(self, request: AgentRequest) -> tuple[Call, Partials]:
        plan = plan_output(self.provider, request)
        return self._call(streaming=True), Partials(plan.partial, plan.restore)

    @override
    def _settle(self, request: AgentRequest) -> Settle:
        name = self.provider.name
        return lambda partial, received: settle_response(partial, request, name, received)

    def _endpoint(self, provider: Provider) -> Endpoint:
        config = self.config
        limits = Limits(
            config.connect_timeout, config.first_byte_timeout, config.timeout, allow_insecure=config.allow_insecure
        )
        return Endpoint(provider, limits, config.idle_timeout, self._transport)

    @hide_arguments
    def _endpoint_with(self, key: Secret | None) -> Endpoint:
        config = self.config if key is None else validate_with(lambda: self.config.with_overrides(api_key=key))
        return self._endpoint(load_provider(config.provider)(config))

    def _with_key(self, once: Callable[[Endpoint], Call]) -> Call:
        """Return a call with the static API key, or with that of `get_api_key`."""
        if self._keys is None:
            return once(self._endpoint(self.provider))
        return call_with_keys(self._keys, once)

    @property
    def _name(self) -> str:
        return f"{self.provider.name}:{self.config.model}"

    def _compose(self, once: Callable[[Endpoint], Call], *, streaming: bool) -> Call:
        call = retry(self._attempt(self._name, once), self.retry, self._retries)
        return record_route(self._wrap(call, self._name, streaming=streaming), streaming=streaming)

    def _wrap(self, once: Call, name: str, *, streaming: bool) -> Call:
        """Wrap attempts in structured output and middleware."""
        call = parse_output(once, self.provider, streaming=streaming)
        if not self.middleware:
            return call
        from .middleware.flow import wrap_call  # lazy: only agents with middleware need it

        return wrap_call(call, self.middleware, streaming=streaming, target=name, fingerprint=self._fingerprint)

    def _fingerprint(self, request: AgentRequest) -> str:
        from .middleware.base import describe_schema, fingerprint_wire  # lazy: only agents with middleware need it

        provider = self.provider
        wire = provider.encode(reveal_secrets(as_sent(provider, request)), stream=False)
        return fingerprint_wire(provider.name, wire, describe_schema(request.output_schema))

    def _attempt(self, name: str, once: Callable[[Endpoint], Call]) -> Call:
        model = self.config.model

        def attempt_once(endpoint: Endpoint) -> Call:
            return attempt(once(endpoint), target=name, provider=endpoint.provider, model=model)

        return self._with_key(attempt_once)

    @cached_property
    @override
    def _transport(self) -> Transport:
        transport = self._given_transport or self.provider.transport
        return transports.get_transport(transport) if isinstance(transport, str) else transport

    # As the target of a router

    def attempt_call(self, name: str, *, streaming: bool) -> Call:
        """Return a call with one attempt, for a router, which retries and records."""
        once = stream if streaming else complete
        return self._wrap(self._attempt(name, once), name, streaming=streaming)

    def describe_defaults(self) -> str:
        """Describe the defaults of every request as text, without the API key; equal for equal agents."""
        from .middleware.base import describe_agent  # lazy: only agents with middleware need it

        return describe_agent(self.config, self.tools)

    def apply_defaults(self, request: AgentRequest) -> AgentRequest:
        """Return the request with the system prompt, sampling settings and tools of this agent."""
        return prepare(request, self.config, self.tools)

    def output_plan(self, request: AgentRequest) -> Plan:
        """Return the structured output plan for a request."""
        return plan_output(self.provider, self.apply_defaults(request))

    @override
    def provider_and_model(self) -> tuple[str, str]:
        return self.config.provider, self.config.model

    def identity(self) -> tuple[Hashable, Hashable]:
        """Return two health keys: one for the API key, one for the model behind it."""
        config = self.config
        transport = self._client if self._client is not None else self._given_transport
        key = config.api_key if self._get_key is None else id(self._get_key)
        own_transport = None if transport is None or isinstance(transport, str) else id(transport)
        access = (config.provider, config.base_url, key, own_transport)
        return access, (*access, config.model)


_PLACEHOLDER_KEY = "-"
"""API key of the provider that plans requests, if `get_api_key` supplies the key of each attempt."""


def _read_keys(get_api_key: GetKey, agent: Agent) -> Any:
    return Keys(get_api_key, agent.config.provider, agent._endpoint_with)


def read_middleware(middleware: Sequence[Middleware]) -> tuple[Middleware, ...]:
    """Validate middleware. Returns it as a tuple."""
    from .middleware.flow import validate_middleware  # lazy: only agents with middleware need it

    return validate_middleware(middleware)


def _rebuild(config: AgentConfig, options: dict[str, Any]) -> Agent:
    return Agent(config, **options)
