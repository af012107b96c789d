"""Router: a client that distributes calls over several targets."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from typing_extensions import Unpack, override

from ..agent import Agent, read_middleware
from ..calls.call import record_route, settle_response
from ..calls.credentials import read_keys_by_provider
from ..calls.requests import RequestLike, check_not_empty, read_request, split_call_options
from ..calls.streams import Partials, Settle
from ..client import Client
from ..engine.context import Call, Context
from ..engine.flow import Flow
from ..engine.wire import Transport
from ..errors import ConfigurationError, hide_arguments, printable
from ..models.token_estimates import StreamTokenCounter, TokenCount
from ..types import AgentConfig, AgentRequest, AgentResponse, ProviderCapabilities, RetryConfig, ToolLoopConfig
from ..types._base import validate_with
from ..types.option_errors import check_choice, check_keywords, check_options
from ..types.routing import BreakerConfig, HedgeConfig, OnPartial, RoutingStrategy, SpendLimit, StrategyName
from .flow import Explanation, explain_routing, route_call
from .limits import SpendLedger, make_hedge_budget, make_retry_budget
from .state import RouterSettings, Shadow, count_racers
from .strategies import Memory, Strategy, StrategyFunction, read_strategy
from .targets import Target, merge_tools, name_targets, share_health

if TYPE_CHECKING:
    from ..calls.preflight import Report
    from ..loop.hooks import Hooks
    from ..middleware import Middleware
    from ..types.options import PreflightOptions, RouterChanges
    from .router_state import RouterState

TargetLike: TypeAlias = "Agent | Router | Target | AgentConfig | str"
"""A target, or an agent, router, configuration or `provider:model` for one."""

_NO_BREAKER = BreakerConfig(min_samples=10**9, degraded_threshold=1.0)


class Router(Client):
    """Sends each call to the best of several targets, with fallback to the others.

    ```python
    from agent import Router
    from agent.testing import scripted_agent
    from agent.errors import OverloadedError

    router = Router([scripted_agent(OverloadedError("busy"), model="a"), scripted_agent("Hello!", model="b")])
    response = router.complete("Hi")
    assert response.text == "Hello!"
    ```

    Args:
        targets: Agents, routers, `provider:model`, or `Target`s with weights and limits. A list among them is a model
            group: a fallback level that is used when the entries before it fail.
        strategy: `fallback`, `round_robin`, `fastest`, `cheapest`, `capability`, `least_busy`, `sticky`, a `Strategy`,
            or a function of the request and the targets that returns targets.
        retry: Number of attempts, backoff and retry budget; by default four attempts in all. The retry settings of
            agents are not used.
        on_partial: Handling of streams that break after their first event: `raise` an error, `restart` at another
            target after a restart event, or `continue` the text at another target.
        on_content_filter: Handling of requests that a content filter refuses: `raise`, or `fallback` to another target.
        race: Send each request to several targets and use the first response: True for all, or a number.
        hedge: Send a second request when the first target is slow; True for the default settings.
        breaker: Settings of the circuit breakers; False to disable them.
        spend: Spend limits.
        shadow: Shadow traffic for comparison: pairs of an agent and its share of the requests, or triples with a
            function that receives each outcome.
        max_wait: Maximum number of seconds to wait for an available target.
        deadline: Seconds for a whole call, unless the request sets its own.
        name: Name of this router inside another one.
        only: Names of the targets, or of their models, that may be used.
        state: Limits, budgets and health shared with the routers of this name in other processes: a `redis://` URL, a
            `RedisState`, or another `RouterState`.
        middleware: Middleware around every call; the first is outermost. The agents' own middleware wraps each attempt.
        loop: Limits of runs in which the model calls tools.
        hooks: Hooks called during runs, such as approval before a tool call.

    A router may be shared by threads and event loops.
    """

    @check_keywords("A router")
    def __init__(
        self,
        targets: Sequence[TargetLike | Sequence[TargetLike]],
        *,
        strategy: StrategyName | RoutingStrategy | Strategy | StrategyFunction = "fallback",
        retry: RetryConfig | None = None,
        on_partial: OnPartial = "raise",
        on_content_filter: Literal["raise", "fallback"] = "raise",
        race: bool | int = False,
        hedge: HedgeConfig | bool | None = None,
        breaker: BreakerConfig | Literal[False] | None = None,
        spend: Sequence[SpendLimit] | SpendLimit = (),
        shadow: Sequence[tuple[Any, ...]] = (),  # Any: agent, share and function, of which the last two are optional
        max_wait: float = 60.0,
        deadline: float | None = None,
        name: str = "router",
        only: Sequence[str] | None = None,
        state: str | RouterState | None = None,
        middleware: Sequence[Middleware] = (),
        loop: ToolLoopConfig | None = None,
        hooks: Hooks | None = None,
    ) -> None:
        self.name = name
        self.deadline = deadline
        self.middleware: tuple[Middleware, ...] = read_middleware(middleware) if middleware else ()
        self._loop = loop
        self.hooks = hooks
        self._options: dict[str, Any] = {
            "strategy": strategy, "retry": retry, "on_partial": on_partial, "on_content_filter": on_content_filter,
            "race": race, "hedge": hedge, "breaker": breaker, "spend": spend, "shadow": shadow, "max_wait": max_wait,
            "deadline": deadline, "name": name, "only": only, "state": state,
            "middleware": self.middleware, "loop": loop, "hooks": hooks,
        }  # fmt: skip
        self.targets: tuple[Target, ...] = _read_targets(targets)
        check_choice("on_partial", on_partial, ("raise", "restart", "continue"))
        check_choice("on_content_filter", on_content_filter, ("raise", "fallback"))
        retrying = retry or RetryConfig(max_retries=3)
        hedging = HedgeConfig() if hedge is True else hedge or None
        limits = (spend,) if isinstance(spend, SpendLimit) else tuple(spend)
        share_health(self.targets, _NO_BREAKER if breaker is False else breaker or BreakerConfig())
        self._settings = RouterSettings(
            targets=self.targets,
            strategy=read_strategy(strategy),
            retry=retrying,
            on_partial=on_partial,
            reroute_filtered=on_content_filter == "fallback",
            max_wait=max_wait,
            racers=count_racers(race, len(self.targets)),
            hedge=hedging,
            shadows=tuple(_read_shadow(*one) for one in shadow),
            only=None if only is None else frozenset(only),
            memory=Memory(),
            retry_budget=make_retry_budget(retrying.budget),
            hedge_budget=make_hedge_budget(hedging.max_share if hedging else 0.05),
            ledger=SpendLedger(limits),
        )
        if state is not None:
            from .shared_state import share_state  # lazy: few routers share their state

            self._settings.shared = share_state(state, name, limits, self._settings)
        self._calls: dict[bool, Call] = {}

    def explain(
        self, request: RequestLike = (), *, streaming: bool = False, **overrides: Unpack[PreflightOptions]
    ) -> Explanation:
        """Return the ranked and excluded targets for a request, with reasons. Sends nothing.

        ```python
        from agent import Router

        print(Router(["scripted:small", "scripted:large"]).explain("Hi"))
        ```
        """
        router, changes = self._select(overrides)
        return explain_routing(*router._select_model(router._prepare(request, changes)), streaming=streaming)

    def check(self, request: RequestLike = (), **overrides: Unpack[PreflightOptions]) -> Report:
        """Run the pre-flight check of the first target that accepts the request. Sends nothing."""
        router, changes = self._select(overrides)
        prepared = router._prepare(request, changes)
        targets = router._rank_targets(prepared)
        reports = [target.agent.check(prepared.model_copy(update={"model": None})) for target in targets]
        report: Report = next((report for report in reports if report.ok), reports[0])
        return report

    def count_tokens(
        self, request: RequestLike = (), *, exact: bool | None = None, **overrides: Unpack[PreflightOptions]
    ) -> TokenCount:
        """Count tokens at the first target."""
        router, changes = self._select(overrides)
        prepared = router._prepare(request, changes)
        agent = router._token_counting_agent(prepared)
        count: TokenCount = agent.count_tokens(prepared.model_copy(update={"model": None}), exact=exact)
        return count

    async def acount_tokens(
        self, request: RequestLike = (), *, exact: bool | None = None, **overrides: Unpack[PreflightOptions]
    ) -> TokenCount:
        """Async version of `count_tokens`."""
        router, changes = self._select(overrides)
        prepared = router._prepare(request, changes)
        agent = router._token_counting_agent(prepared)
        count: TokenCount = await agent.acount_tokens(prepared.model_copy(update={"model": None}), exact=exact)
        return count

    def _token_counting_agent(self, request: AgentRequest) -> Any:
        """Return the agent that counts tokens, with the router's middleware, which may rewrite the request."""
        agent = self._rank_targets(request)[0].agent
        return agent.with_config(middleware=(*self.middleware, *agent.middleware)) if self.middleware else agent

    @override
    @hide_arguments
    def with_config(self, **changes: Unpack[RouterChanges]) -> Router:
        """Return a router with changed settings, which shares the state of its targets.

        Settings of agents, such as `temperature`, change for all targets; `max_retries` changes the router's retries.
        """
        own = {name: value for name, value in changes.items() if name in self._options}
        theirs = {name: value for name, value in changes.items() if name not in self._options}
        targets = [
            target if not theirs else target.with_agent(target.agent.with_config(**theirs)) for target in self.targets
        ]
        return self._copy(targets, own, None if "retry" in changes else changes.get("max_retries"))

    def _copy(self, targets: Sequence[Target], changes: Mapping[str, Any], retries: int | None = None) -> Router:
        """Return a router with other targets and settings, which shares the state that they leave."""
        if retries is not None:
            retry = validate_with(lambda: self._settings.retry.model_copy(update={"max_retries": retries}))
            changes = {**changes, "retry": retry}
        other = Router(targets, **{**self._options, **changes})
        settings, current = other._settings, self._settings
        settings.memory = current.memory
        if "retry" not in changes or retries is not None:
            settings.retry_budget = current.retry_budget
        if "spend" not in changes:
            settings.ledger = current.ledger
        if "hedge" not in changes:
            settings.hedge_budget = current.hedge_budget
        if not changes.keys() & {"spend", "state", "name"}:
            settings.shared = current.shared
        return other

    def for_call(self, settings: Mapping[str, Any]) -> Router:  # Any: settings of several types
        """Return a router with the settings of one call: `timeout`, `max_retries`, `headers` and `api_key`."""
        theirs = {name: value for name, value in settings.items() if name != "api_key"}
        keys = read_keys_by_provider(settings.get("api_key"), self.addresses())
        targets: list[Target] = []
        for target in self.targets:
            addresses = target.agent.addresses()
            own = {provider: keys[provider] for provider, _ in addresses if provider in keys}
            if changes := {**theirs, **({"api_key": own} if own else {})}:
                target = target.with_agent(target.agent.for_call(changes), is_other_account=bool(own))
            targets.append(target)
        return self._copy(targets, {}, settings.get("max_retries"))

    def addresses(self) -> set[tuple[str, str | None]]:
        """Return where API keys are sent: providers and base URLs."""
        return {address for target in self.targets for address in target.agent.addresses()}

    def reset_health(self, *names: str) -> None:
        """Reset circuit breakers and cooldowns of some or all targets, for example after a key was replaced."""
        for target in self.targets:
            if not names or target.name in names:
                target.health.reset()
                if self._settings.shared is not None:
                    self._settings.shared.reset_health(target)

    def get_spend(self, limit: int = 0, value: Any = None) -> float:  # Any: a value from the requests' metadata
        """Dollars spent under a spend limit, given by its index; with `per`, for one value of the key.

        With shared state, this is the amount spent by all processes.
        """
        shared = self._settings.shared
        spent = None if shared is None else shared.get_spend(limit, value)
        return self._settings.ledger.get_spend(limit, value) if spent is None else spent

    def restore_spend(self, dollars: float, limit: int = 0, value: Any = None) -> None:  # Any: as in get_spend
        """Set the amount spent under a limit after the shared state lost its data. The larger amount counts."""
        if self._settings.shared is None:
            raise ConfigurationError("The router has no shared state.", field="state", fix="Pass state=.")
        self._settings.shared.restore_spend(dollars, limit, value)

    def flush(self) -> None:
        """Send what is still to be reported to the shared state. Happens in the background, and at exit."""
        if self._settings.shared is not None:
            self._settings.shared.outbox.flush()

    @property
    @override
    def capabilities(self) -> ProviderCapabilities:
        """Capabilities that at least one target has."""
        fields: dict[str, Any] = {}
        for field in ProviderCapabilities.model_fields:
            values = [getattr(target.capabilities, field) for target in self.targets]
            fields[field] = max((value for value in values if value is not None), default=None)
        return ProviderCapabilities(**fields)

    @override
    def __reduce__(self) -> Any:
        # Connections, keys and the state of targets are not pickled.
        return _rebuild, ([_describe_target(target) for target in self.targets], self._options)

    @override
    @printable
    def __repr__(self) -> str:
        return f"Router([{', '.join(target.name for target in self.targets)}])"

    def attempt_call(self, name: str, *, streaming: bool) -> Call:
        """Return the call for an outer router. Attempts of both routers count together."""
        return self._around(name, streaming=streaming)

    def apply_defaults(self, request: AgentRequest) -> AgentRequest:
        return request

    @override
    def provider_and_model(self) -> tuple[str, str]:
        return self.name, ""

    def identity(self) -> tuple[Hashable, Hashable]:
        return ("router", id(self)), ("router", id(self))

    @override
    def own_tools(self, response: AgentResponse | None) -> Sequence[Any]:  # Any: tools, and vendors' own tools
        return merge_tools(self.targets, response)

    @override
    def _select(self, overrides: Mapping[str, Any]) -> tuple[Router, Mapping[str, Any]]:
        """Return this router, or a copy with the settings of one call."""
        settings, rest = split_call_options(overrides)
        router = self
        if "route" in rest:
            if route := rest["route"] or {}:
                check_options(route, self._options, "route")
                router = self.with_config(**route)
            rest = {name: value for name, value in rest.items() if name != "route"}
        return (router.for_call(settings) if settings else router), rest

    @override
    def _prepare(self, request: RequestLike, overrides: Mapping[str, Any]) -> AgentRequest:
        prepared = read_request(request, overrides)
        check_not_empty(prepared)
        if prepared.deadline is None and self.deadline is not None:
            prepared = prepared.model_copy(update={"deadline": self.deadline})
        return prepared

    @override
    def _call(self, *, streaming: bool) -> Call:
        call = self._calls.get(streaming)
        if call is None:
            call = self._calls[streaming] = record_route(
                self._around(self.name, streaming=streaming), streaming=streaming
            )
        return call

    def _around(self, name: str, *, streaming: bool) -> Call:
        """Return the routed call with the router's middleware."""
        call = self._route_call(streaming=streaming)
        if not self.middleware:
            return call
        from ..middleware.flow import wrap_call  # lazy: few routers have middleware

        return wrap_call(
            call, self.middleware, streaming=streaming, target=name, fingerprint=self._fingerprint, every_target=True
        )

    def _fingerprint(self, request: AgentRequest) -> str:
        from ..middleware.base import fingerprint_request  # lazy: few routers have middleware

        return fingerprint_request(
            request, [f"{target.name} {target.agent.describe_defaults()}" for target in self.targets]
        )

    def describe_defaults(self) -> str:
        """Describe the defaults that targets add to every request."""
        return "; ".join(f"{target.name} {target.agent.describe_defaults()}" for target in self.targets)

    def _route_call(self, *, streaming: bool) -> Call:
        default_call = route_call(self._settings, streaming=streaming)

        def call(request: AgentRequest, context: Context) -> Flow[AgentResponse]:
            if request.model is None:
                return default_call(request, context)
            settings, request = self._select_model(request)
            return route_call(settings, streaming=streaming)(request, context)

        return call

    def _select_model(self, request: AgentRequest) -> tuple[RouterSettings, AgentRequest]:
        """Restrict a request that names a model to the targets with that name or model."""
        if request.model is None:
            return self._settings, request
        targets = tuple(target for target in self.targets if request.model in target.aliases)
        if not targets:
            raise ConfigurationError(
                f"The router has no target for the model {request.model!r}.",
                field="model",
                fix=f"Use one of {', '.join(target.name for target in self.targets)}, or leave it out.",
            )
        settings = replace(self._settings, targets=targets)
        return settings, request.model_copy(update={"model": None})

    def _rank_targets(self, request: AgentRequest) -> list[Target]:
        """Return the available targets, best first; all of them if none is available."""
        targets = {target.name: target for target in self.targets}
        return [targets[name] for name in self.explain(request).order] or list(self.targets)

    @override
    def _json_call(self, request: AgentRequest) -> tuple[Call, Partials]:
        parser = _OutputParser(request)
        call = self._call(streaming=True)

        def call_with_parser(request: AgentRequest, context: Context) -> Flow[AgentResponse]:
            context.on_target = parser.set_agent
            return call(request, context)

        return call_with_parser, Partials(parser.parse_partial, parser.parse_final)

    @override
    def _settle(self, request: AgentRequest) -> Settle:
        def settle(partial: AgentResponse, received: StreamTokenCounter) -> AgentResponse:
            names = (partial.provider, partial.model)
            target = next((one for one in self.targets if one.callee.provider_and_model() == names), self.targets[0])
            prepared = target.callee.apply_defaults(request.model_copy(update={"model": None}))
            return settle_response(partial, prepared, partial.provider or target.provider, received)

        return settle

    @property
    @override
    def _transport(self) -> Transport:
        transport: Transport = _NO_TRANSPORT
        return transport


def _describe_target(target: Target) -> tuple[Any, dict[str, Any]]:
    return target.agent, {
        "name": target.name, "weight": target.weight, "level": target.level, **target.limit.model_dump()
    }  # fmt: skip


def _rebuild(targets: Sequence[tuple[Any, dict[str, Any]]], options: dict[str, Any]) -> Router:
    return Router([Target(agent, **settings) for agent, settings in targets], **options)


class _NoTransport:
    """Placeholder: effects of routed calls name the transports of the agents."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError("routers send through the transports of their agents")


_NO_TRANSPORT: Any = _NoTransport()


class _OutputParser:
    """Parses structured output with the output plan of the responding agent."""

    def __init__(self, request: AgentRequest) -> None:
        self._request = request.model_copy(update={"model": None})
        self._plan: Any = None

    def set_agent(self, agent: Any) -> None:
        if isinstance(agent, Agent):
            self._plan = agent.output_plan(self._request)

    def parse_partial(self, value: Any) -> Any:
        return value if self._plan is None else self._plan.partial(value)

    def parse_final(self, value: Any) -> Any:
        return value if self._plan is None else self._plan.restore(value)


def _read_targets(entries: Sequence[TargetLike | Sequence[TargetLike]]) -> tuple[Target, ...]:
    if isinstance(entries, str) or not isinstance(entries, Sequence):
        problem = f"A router takes a list of targets, not {type(entries).__name__}."
        raise ConfigurationError(problem, field="targets", fix='Write Router([agent, "provider:model"]).')
    targets: list[Target] = []
    has_levels = any(isinstance(entry, list | tuple) for entry in entries)
    for level, entry in enumerate(entries):
        if isinstance(entry, list | tuple):
            targets += [_read_target(one, level) for one in entry]
        else:
            targets.append(_read_target(entry, level if has_levels else None))
    if not targets:
        raise ConfigurationError("A router needs at least one target.", field="targets", fix="Pass a list of agents.")
    name_targets(targets)
    return tuple(targets)


def _read_target(entry: Any, level: int | None) -> Target:
    target = entry if isinstance(entry, Target) else Target(entry)
    agent = target.agent
    if isinstance(agent, str | AgentConfig):
        target = target.with_agent(Agent(agent))
    elif not isinstance(agent, Agent | Router):
        raise ConfigurationError(
            f"{type(agent).__name__} cannot be a target.",
            field="targets",
            fix="Pass agents, routers, configurations or provider:model.",
        )
    if level is not None:
        target.level = level
    return target


def _read_shadow(agent: Any, share: float = 1.0, on_result: Callable[[Any], object] | None = None) -> Shadow:
    if not 0 < share <= 1:
        problem = f"The share of shadow traffic is {share}."
        raise ConfigurationError(problem, field="shadow", fix="Use a number above 0 and at most 1.")
    target = _read_target(agent, None)
    target.name = target.name or "shadow"
    return Shadow(target, share, on_result)
