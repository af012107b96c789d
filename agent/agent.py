"""Agent: one model at one vendor, behind methods that are the same for all of them.

It builds the request, composes the flows and hands them to a driver. There is nothing else in it: what to do is
decided in `execution`, and done in `drivers`.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from . import transports
from .caller import Caller
from .context import Call
from .errors import ConfigurationError
from .execution.accounting import settled
from .execution.call import Endpoint, attempt, complete, stream
from .execution.counting import counted, counter_of, token_count
from .execution.outermost import recorded
from .execution.output_modes import Plan, plan_output
from .execution.retry import retry
from .execution.structured import structured
from .json_streams import Partials
from .models import facts, narrowed
from .providers import Provider, for_client, load
from .requests import RequestLike, prepare, read_config, read_request
from .routing.budgets import retry_budget
from .streams import Settle
from .tokens import TokenCount, estimate_prompt
from .types import AgentConfig, AgentRequest, ProviderCapabilities, RetryConfig, ToolSpec
from .wire import Limits, Transport

if TYPE_CHECKING:
    from .checking import Report


class Agent(Caller):
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
        self._retries = retry_budget(self.retry.budget)
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
        return token_count(self._drained(self._count(), prepared))

    async def acount_tokens(self, request: RequestLike, *, exact: bool | None = None, **overrides: Any) -> TokenCount:
        """As `count_tokens`, with await."""
        prepared = self._prepare(request, overrides)
        if not self._asks_for_count(exact):
            return estimate_prompt(prepared)
        return token_count(await self._adrained(self._count(), prepared))

    # Variants

    def with_config(self, **changes: Any) -> Agent:
        """Another agent with some settings changed; this one stays as it is."""
        config = read_config(self.config, changes)
        retry = self.retry
        if "max_retries" in changes:
            retry = retry.model_copy(update={"max_retries": config.max_retries})
        transport = self._brought_transport if self._client is None else None
        changed = Agent(config, tools=self.tools, retry=retry, transport=transport, client=self._client)
        changed._retries = self._retries  # a vendor in trouble is not spared by asking it in another tone
        return changed

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

    @override
    def _prepare(self, request: RequestLike, overrides: Mapping[str, Any]) -> AgentRequest:
        return prepare(read_request(request, overrides), self.config, self.tools)

    @override
    def _call(self, *, streaming: bool) -> Call:
        call = self._calls.get(streaming)
        if call is None:
            call = self._calls[streaming] = self._compose(streaming=streaming)
        return call

    def _asks_for_count(self, exact: bool | None) -> bool:
        return exact is not False and (exact is True or counter_of(self.provider) is not None)

    def _count(self) -> Call:
        return recorded(retry(counted(self._endpoint()), self.retry, self._retries), streaming=False)

    @override
    def _reading(self, request: AgentRequest) -> tuple[Call, Partials]:
        plan = plan_output(self.provider, request)
        return self._call(streaming=True), Partials(plan.partial, plan.restored)

    @override
    def _settle(self, request: AgentRequest) -> Settle:
        name = self.provider.name
        return lambda partial, received: settled(partial, request, name, received)

    def _endpoint(self) -> Endpoint:
        config = self.config
        limits = Limits(config.connect_timeout, config.first_byte_timeout, config.timeout)
        return Endpoint(self.provider, limits, config.idle_timeout, self._transport)

    def _compose(self, *, streaming: bool) -> Call:
        once = self._attempt(f"{self.provider.name}:{self.config.model}", streaming=streaming)
        call = structured(retry(once, self.retry, self._retries), self.provider, streaming=streaming)
        return recorded(call, streaming=streaming)

    def _attempt(self, name: str, *, streaming: bool) -> Call:
        endpoint = self._endpoint()
        call = stream(endpoint) if streaming else complete(endpoint)
        return attempt(call, target=name, provider=endpoint.provider.name, model=self.config.model)

    @property
    @override
    def _transport(self) -> Transport:
        return self._brought_transport or transports.load(self.provider.transport)

    # As one of several

    def one_call(self, name: str, *, streaming: bool) -> Call:
        """A call that tries once, for a router: retries are its business, and so is the record."""
        return structured(self._attempt(name, streaming=streaming), self.provider, streaming=streaming)

    def as_asked(self, request: AgentRequest) -> AgentRequest:
        """The request as this agent would send it: with its own system prompt, sampling and tools."""
        return prepare(request, self.config, self.tools)

    def output_plan(self, request: AgentRequest) -> Plan:
        """How this agent would ask for the request's schema, and read the answer."""
        return plan_output(self.provider, self.as_asked(request))

    def named(self) -> tuple[str, str]:
        """Its provider and its model."""
        return self.config.provider, self.config.model

    def identity(self) -> tuple[Hashable, Hashable]:
        """What a key's troubles are shared by, and what a model's are."""
        config = self.config
        way = self._client if self._client is not None else self._brought_transport
        access = (config.provider, config.base_url, config.api_key, None if way is None else id(way))
        return access, (*access, config.model)


def _rebuild(config: AgentConfig, tools: Sequence[Any], retry: RetryConfig, transport: Transport | None) -> Agent:
    return Agent(config, tools=tools, retry=retry, transport=transport)
