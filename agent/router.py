"""Router: several agents behind the interface of one.

It reads what it is made from and hands each request to the flow in `routing`, which decides. Whatever takes an Agent
takes a Router.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from typing_extensions import override

from .agent import Agent, read_middleware
from .caller import Caller
from .context import Call, Context
from .errors import ConfigurationError
from .execution.accounting import settled
from .execution.outermost import recorded
from .flow import Flow
from .json_streams import Partials
from .requests import RequestLike, check_not_empty, read_request
from .routing.assembling import name_targets, one_of, racers_of, share_health, tools_of
from .routing.budgets import SpendLedger, hedge_budget, retry_budget
from .routing.explaining import Explanation, explained
from .routing.memory import Memory
from .routing.routed import routed
from .routing.strategies import Custom, read_strategy
from .routing.targets import Target
from .routing.trip import Routes, Shadow
from .streams import Settle
from .tokens import Received, TokenCount
from .types import (
    AgentConfig,
    AgentRequest,
    AgentResponse,
    ProviderCapabilities,
    RetryConfig,
    RoutingStrategy,
    ToolLoopConfig,
)
from .types.policies import BreakerConfig, HedgeConfig, OnPartial, SpendLimit
from .wire import Transport

if TYPE_CHECKING:
    from .checking import Report
    from .looping.plan import Hooks
    from .middleware import Middleware

TargetLike: TypeAlias = "Agent | Router | Target | AgentConfig | str"
"""An agent or a router, a target with its settings, or what an agent is made from."""

_NO_BREAKER = BreakerConfig(least=10**9, degraded=1.0)
_BY_CONVERSATION = (RoutingStrategy.STICKY, RoutingStrategy.CHEAPEST)
_OPTIONS = frozenset(
    (
        "strategy",
        "retry",
        "on_partial",
        "on_content_filter",
        "race",
        "hedge",
        "breaker",
        "spend",
        "shadow",
        "max_wait",
        "deadline",
        "name",
        "only",
        "middleware",
        "loop",
        "hooks",
    )
)


class Router(Caller):
    """Asks the best of several agents, and another if that one fails.

    ```python
    from agent import Router
    from agent.testing import scripted_agent
    from agent.errors import OverloadedError

    router = Router([scripted_agent(OverloadedError("busy"), model="a"), scripted_agent("Hello!", model="b")])
    response = router.complete("Hi")
    assert response.text == "Hello!"
    print(response.route)
    ```

    Args:
        targets: Agents, routers, `provider:model`, or `Target`s with weights and limits. A list among them is a level
            of its own: each level is asked when those before it cannot answer.
        strategy: `fallback`, `round_robin`, `fastest`, `cheapest`, `capability`, `least_busy`, `sticky`, or a function
            of the request and the targets that returns targets.
        retry: How often and when to ask again; by default four attempts in all. The agents' own retries are not used.
        on_partial: What becomes of a stream that breaks after its first event: `raise`; `restart`, which announces
            itself by an event; or `continue`, which has another target go on from what has come.
        on_content_filter: Whether what one vendor's filter refuses is asked of another: `raise` or `fallback`.
        race: Ask several at once, and take the first to answer: True for all, or how many.
        hedge: Ask a second target when the first is slow; True for the usual settings.
        breaker: When a target that fails is left alone, and how long; False for never.
        spend: Limits on what may be spent.
        shadow: Agents to ask beside the others, for comparison: pairs of an agent and the share of requests, or such
            triples with a function that is told what came of it.
        max_wait: Seconds to wait at most for a target to be ready again, if none is.
        deadline: Seconds for a whole call, unless the request says otherwise.
        name: What it is called inside another router.
        middleware: Stands around every call of the router, the first of it outermost. Its agents keep their own, which
            stand around each attempt.
        loop: Limits of runs in which the model calls tools.
        hooks: Who has a say in those runs.

    A router may be shared by threads and event loops. It remembers how its targets fare.
    """

    def __init__(
        self,
        targets: Sequence[TargetLike | Sequence[TargetLike]],
        *,
        strategy: str | RoutingStrategy | Custom = "fallback",
        retry: RetryConfig | None = None,
        on_partial: OnPartial = "raise",
        on_content_filter: Literal["raise", "fallback"] = "raise",
        race: bool | int = False,
        hedge: HedgeConfig | bool | None = None,
        breaker: BreakerConfig | Literal[False] | None = None,
        spend: Sequence[SpendLimit] | SpendLimit = (),
        shadow: Sequence[tuple[Any, ...]] = (),
        max_wait: float = 60.0,
        deadline: float | None = None,
        name: str = "router",
        only: Sequence[str] | None = None,
        middleware: Sequence[Middleware] = (),
        loop: ToolLoopConfig | None = None,
        hooks: Hooks | None = None,
    ) -> None:
        self.name = name
        self.deadline = deadline
        self.middleware = read_middleware(middleware) if middleware else ()
        self._loop = loop
        self.hooks = hooks
        self._options: dict[str, Any] = {
            "strategy": strategy, "retry": retry, "on_partial": on_partial, "on_content_filter": on_content_filter,
            "race": race, "hedge": hedge, "breaker": breaker, "spend": spend, "shadow": shadow, "max_wait": max_wait,
            "deadline": deadline, "name": name, "only": only,
            "middleware": self.middleware, "loop": loop, "hooks": hooks,
        }  # fmt: skip
        self.targets = _read_targets(targets)
        one_of("on_partial", on_partial, ("raise", "restart", "continue"))
        one_of("on_content_filter", on_content_filter, ("raise", "fallback"))
        retrying = retry or RetryConfig(max_retries=3)
        hedging = HedgeConfig() if hedge is True else hedge or None
        limits = (spend,) if isinstance(spend, SpendLimit) else tuple(spend)
        share_health(self.targets, _NO_BREAKER if breaker is False else breaker or BreakerConfig())
        self._routes = Routes(
            targets=self.targets,
            strategy=read_strategy(strategy),
            retry=retrying,
            on_partial=on_partial,
            filtered_elsewhere=on_content_filter == "fallback",
            max_wait=max_wait,
            racers=racers_of(race, len(self.targets)),
            hedge=hedging,
            shadows=tuple(_read_shadow(*one) for one in shadow),
            takes_turns=strategy == RoutingStrategy.ROUND_ROBIN,
            leaves_to_chance=strategy == RoutingStrategy.FASTEST,
            remembers=strategy in _BY_CONVERSATION,
            only=None if only is None else frozenset(only),
            memory=Memory(),
            retries=retry_budget(retrying.budget),
            hedges=hedge_budget(hedging.share if hedging else 0.05),
            ledger=SpendLedger(limits),
        )
        self._calls: dict[bool, Call] = {}

    # Before a call

    def explain(self, request: RequestLike, *, streaming: bool = False, **overrides: Any) -> Explanation:
        """Who would be asked, in what order, and who is left out and why. Nobody is asked.

        ```python
        from agent import Router

        print(Router(["scripted:small", "scripted:large"]).explain("Hi"))
        ```
        """
        router, changes = self._router(overrides)
        return explained(*router._narrowed(router._prepare(request, changes)), streaming=streaming)

    def check(self, request: RequestLike, **overrides: Any) -> Report:
        """As an agent's: what would become of the request at the target that would be asked first."""
        router, changes = self._router(overrides)
        asked = router._prepare(request, changes)
        reports = [target.agent.check(asked.model_copy(update={"model": None})) for target in router._likely(asked)]
        report: Report = next((report for report in reports if report.ok), reports[0])
        return report

    def count_tokens(self, request: RequestLike, *, exact: bool | None = None, **overrides: Any) -> TokenCount:
        """As an agent's, by the target that would be asked first."""
        router, changes = self._router(overrides)
        asked = router._prepare(request, changes)
        count: TokenCount = router._counter(asked).count_tokens(asked.model_copy(update={"model": None}), exact=exact)
        return count

    async def acount_tokens(self, request: RequestLike, *, exact: bool | None = None, **overrides: Any) -> TokenCount:
        """As `count_tokens`, with await."""
        router, changes = self._router(overrides)
        asked = router._prepare(request, changes)
        counter = router._counter(asked)
        count: TokenCount = await counter.acount_tokens(asked.model_copy(update={"model": None}), exact=exact)
        return count

    def _counter(self, asked: AgentRequest) -> Any:
        """Who counts: the one that would be asked first. What the router's middleware hides, it hides there, too."""
        agent = self._likely(asked)[0].agent
        return agent.with_config(middleware=(*self.middleware, *agent.middleware)) if self.middleware else agent

    # State and variants

    @override
    def with_config(self, **changes: Any) -> Router:
        """Another router with some settings changed; what is remembered about the targets is shared.

        Settings of agents, such as `temperature`, are changed for all of them.
        """
        ours = {name: value for name, value in changes.items() if name in _OPTIONS}
        theirs = {name: value for name, value in changes.items() if name not in _OPTIONS}
        targets = [
            target if not theirs else target.with_agent(target.agent.with_config(**theirs)) for target in self.targets
        ]
        other = Router(targets, **{**self._options, **ours})
        routes, own = other._routes, self._routes
        routes.memory = own.memory
        if "retry" not in changes:
            routes.retries = own.retries
        if "spend" not in changes:
            routes.ledger = own.ledger
        if "hedge" not in changes:
            routes.hedges = own.hedges
        return other

    def revive(self, *names: str) -> None:
        """Trust targets again, at once: after a key was renewed, say. Without names, all of them."""
        for target in self.targets:
            if not names or target.name in names:
                target.health.reset()

    def spent(self, limit: int = 0, value: Any = None) -> float:
        """Dollars spent under one of the spend limits, by its number; of a limit per key, for one value of that."""
        return self._routes.ledger.spent(limit, value)

    @property
    @override
    def capabilities(self) -> ProviderCapabilities:
        """What at least one of the targets can do."""
        every = [target.capabilities for target in self.targets]
        fields: dict[str, Any] = {}
        for field in ProviderCapabilities.model_fields:
            values = [getattr(one, field) for one in every]
            known = [value for value in values if value is not None]
            fields[field] = max(known, default=None)
        return ProviderCapabilities(**fields)

    @override
    def __reduce__(self) -> Any:
        # Connections, keys and what was learnt stay behind: the other process makes its own experience.
        return _rebuild, ([_parts(target) for target in self.targets], self._options)

    @override
    def __repr__(self) -> str:
        return f"Router([{', '.join(target.name for target in self.targets)}])"

    # As one of several

    def one_call(self, name: str, *, streaming: bool) -> Call:
        """Its flow, for a router around it. The attempts of both count together."""
        return self._around(name, streaming=streaming)

    def as_asked(self, request: AgentRequest) -> AgentRequest:
        return request

    @override
    def named(self) -> tuple[str, str]:
        return self.name, ""

    def identity(self) -> tuple[Hashable, Hashable]:
        return ("router", id(self)), ("router", id(self))

    # Composition

    @override
    def own_tools(self, response: AgentResponse | None) -> Sequence[Any]:
        return tools_of(self.targets, response)

    def _router(self, overrides: Mapping[str, Any]) -> tuple[Router, Mapping[str, Any]]:
        """This router, or one with the settings for this request alone."""
        route = overrides.get("route")
        if route is None:
            return self, overrides
        unknown = sorted(set(route) - _OPTIONS)
        if unknown:
            raise ConfigurationError(
                f"route does not know {', '.join(unknown)}.", field="route", fix=f"Use {', '.join(sorted(_OPTIONS))}."
            )
        return self.with_config(**route), {name: value for name, value in overrides.items() if name != "route"}

    @override
    def _chosen(self, overrides: Mapping[str, Any]) -> tuple[Caller, Mapping[str, Any]]:
        return self._router(overrides)

    @override
    def _prepare(self, request: RequestLike, overrides: Mapping[str, Any]) -> AgentRequest:
        asked = read_request(request, overrides)
        check_not_empty(asked)
        if asked.deadline is None and self.deadline is not None:
            asked = asked.model_copy(update={"deadline": self.deadline})
        return asked

    @override
    def _call(self, *, streaming: bool) -> Call:
        call = self._calls.get(streaming)
        if call is None:
            call = self._calls[streaming] = recorded(self._around(self.name, streaming=streaming), streaming=streaming)
        return call

    def _around(self, name: str, *, streaming: bool) -> Call:
        """The flow that asks the targets, and what stands around it."""
        call = self._routed(streaming=streaming)
        if not self.middleware:
            return call
        from .middleware.flow import wrapped

        return wrapped(
            call, self.middleware, streaming=streaming, target=name, fingerprint=self._fingerprint, every_target=True
        )

    def _fingerprint(self, request: AgentRequest) -> str:
        from .middleware.fingerprints import of_request

        return of_request(request, [f"{target.name} {target.agent.adds()}" for target in self.targets])

    def adds(self) -> str:
        """As an agent's: what its targets add to every request."""
        return "; ".join(f"{target.name} {target.agent.adds()}" for target in self.targets)

    def _routed(self, *, streaming: bool) -> Call:
        plain = routed(self._routes, streaming=streaming)

        def call(request: AgentRequest, context: Context) -> Flow[AgentResponse]:
            if request.model is None:
                return plain(request, context)
            routes, narrowed = self._narrowed(request)
            return routed(routes, streaming=streaming)(narrowed, context)

        return call

    def _narrowed(self, request: AgentRequest) -> tuple[Routes, AgentRequest]:
        """A request that names a model may only go to the targets that have it."""
        if request.model is None:
            return self._routes, request
        named = [target for target in self.targets if request.model in target.known_as]
        if not named:
            raise ConfigurationError(
                f"No target of the router has the model {request.model!r}.",
                field="model",
                fix=f"Use one of {', '.join(target.name for target in self.targets)}, or leave it out.",
            )
        routes = replace(self._routes, targets=tuple(named), _smallest_window=None)
        return routes, request.model_copy(update={"model": None})

    def _likely(self, request: AgentRequest) -> list[Target]:
        """Targets in the order they would be asked; if nobody could be, as they were given."""
        places = {one.target: one.place for one in self.explain(request).candidates if one.place is not None}
        ordered = sorted((target for target in self.targets if target.name in places), key=lambda t: places[t.name])
        return ordered or list(self.targets)

    @override
    def _reading(self, request: AgentRequest) -> tuple[Call, Partials]:
        reader = _Reader(request)
        call = self._call(streaming=True)

        def reading(asked: AgentRequest, context: Context) -> Flow[AgentResponse]:
            context.asking = reader.asking
            return call(asked, context)

        return reading, Partials(reader.partial, reader.restored)

    @override
    def _settle(self, request: AgentRequest) -> Settle:
        def settle(partial: AgentResponse, received: Received) -> AgentResponse:
            names = (partial.provider, partial.model)
            target = next((one for one in self.targets if one.callee.named() == names), self.targets[0])
            asked = target.callee.as_asked(request.model_copy(update={"model": None}))
            return settled(partial, asked, partial.provider or target.provider, received)

        return settle

    @property
    @override
    def _transport(self) -> Transport:
        nowhere: Transport = _NOWHERE
        return nowhere


def _parts(target: Target) -> tuple[Any, dict[str, Any]]:
    return target.agent, {
        "name": target.name, "weight": target.weight, "level": target.level, **target.limit.model_dump()
    }  # fmt: skip


def _rebuild(targets: Sequence[tuple[Any, dict[str, Any]]], options: dict[str, Any]) -> Router:
    return Router([Target(agent, **settings) for agent, settings in targets], **options)


class _Nowhere:
    """The transport of a router's own run: whatever it sends says through which agent's."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError("a router sends through its agents' transports")


_NOWHERE: Any = _Nowhere()


class _Reader:
    """Reads a value while it arrives, in the way of whichever agent is answering."""

    def __init__(self, request: AgentRequest) -> None:
        self._request = request.model_copy(update={"model": None})
        self._plan: Any = None

    def asking(self, agent: Any) -> None:
        if isinstance(agent, Agent):
            self._plan = agent.output_plan(self._request)

    def partial(self, value: Any) -> Any:
        return value if self._plan is None else self._plan.partial(value)

    def restored(self, value: Any) -> Any:
        return value if self._plan is None else self._plan.restored(value)


# What a router is made from


def _read_targets(given: Sequence[TargetLike | Sequence[TargetLike]]) -> tuple[Target, ...]:
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise ConfigurationError(
            f"A router is made from a list of targets, not from {type(given).__name__}.",
            field="targets",
            fix='Write Router([agent, "provider:model"]).',
        )
    targets: list[Target] = []
    for level, entry in enumerate(given):
        if isinstance(entry, list | tuple):
            targets += [_read_target(one, level) for one in entry]
        else:
            levelled = any(isinstance(other, list | tuple) for other in given)
            targets.append(_read_target(entry, level if levelled else None))
    if not targets:
        raise ConfigurationError("A router needs at least one target.", field="targets", fix="Pass some agents.")
    name_targets(targets)
    return tuple(targets)


def _read_target(given: Any, level: int | None) -> Target:
    target = given if isinstance(given, Target) else Target(given)
    agent = target.agent
    if isinstance(agent, str | AgentConfig):
        target = target.with_agent(Agent(agent))
    elif not isinstance(agent, Agent | Router):
        raise ConfigurationError(
            f"{type(agent).__name__} cannot be a target.",
            field="targets",
            fix="Pass agents, routers, configurations, or provider:model.",
        )
    if level is not None:
        target.level = level
    return target


def _read_shadow(agent: Any, share: float = 1.0, heard: Callable[[Any], object] | None = None) -> Shadow:
    if not 0 < share <= 1:
        raise ConfigurationError(
            f"The share of a shadow is {share}.", field="shadow", fix="Use a number above 0, and 1 at most."
        )
    target = _read_target(agent, None)
    target.name = target.name or "shadow"
    return Shadow(target, share, heard)
