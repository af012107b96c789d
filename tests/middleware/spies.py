"""Spies: middleware that logs its calls and runs given functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import agent
from agent import Agent, RetryConfig, Router
from agent.engine.flow import Now
from agent.middleware import Middleware

KINDS = ("plain", "async", "flow", "awaitable")
Place = Callable[[str, Sequence[Middleware]], Agent | Router]


def as_kind(kind: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function as a plain, async, generator or awaitable-returning method."""

    async def run_async(*args: Any) -> Any:
        return function(*args)

    def flow(*args: Any) -> Any:
        yield from Now()
        return function(*args)

    def returns_an_awaitable(*args: Any) -> Any:
        return run_async(*args)

    return {"plain": function, "async": run_async, "flow": flow, "awaitable": returns_an_awaitable}[kind]


class Spy(Middleware):
    """Appends each call of a method to `log`, and runs the function given for it."""

    def __init__(self, name: str, log: list[str], kind: str = "plain", **methods: Callable[..., Any]) -> None:
        self.name = name
        for method in ("before", "after", "on_event", "on_error"):
            setattr(self, method, as_kind(kind, self._make_method(method, log, methods.get(method))))

    def _make_method(self, method: str, log: list[str], act: Callable[..., Any] | None) -> Callable[..., Any]:
        def record(subject: Any, call: Any) -> Any:
            about = {"on_event": getattr(subject, "type", ""), "on_error": type(subject).__name__}.get(method)
            log.append(f"{self.name}.{method}" + (f" {about}" if about else ""))
            return None if act is None else act(subject, call)

        return record


def spy_with(name: str, log: list[str], method: str, act: Callable[..., Any]) -> Spy:
    return Spy(name, log, "plain", **{method: act})


def raise_error(error: Exception) -> Callable[..., Any]:
    def act(*args: Any) -> Any:
        raise error

    return act


def plain_agent(url: str, middleware: Sequence[Middleware] = (), **options: Any) -> Agent:
    options.setdefault("max_retries", 0)
    return Agent("openai-chat:test-model", base_url=f"{url}/v1", api_key="sk-test", middleware=middleware, **options)


def router(url: str, middleware: Sequence[Middleware]) -> Router:
    return Router([plain_agent(url)], middleware=middleware, retry=RetryConfig(max_retries=0))


def in_a_router(url: str, middleware: Sequence[Middleware]) -> Router:
    return Router([plain_agent(url, middleware)], retry=RetryConfig(max_retries=0))


def in_a_nested_router(url: str, middleware: Sequence[Middleware]) -> Router:
    return Router([router(url, middleware)], retry=RetryConfig(max_retries=0))


PLACES: dict[str, Place] = {
    "agent": plain_agent,
    "router": router,
    "agent in a router": in_a_router,
}
EVERY_PLACE: dict[str, Place] = {**PLACES, "router in a router": in_a_nested_router}


def innermost(error: agent.AgentError) -> agent.AgentError:
    """Return the last error of a nested RoutingError, or the error itself."""
    inner = getattr(error, "errors", None)
    return innermost(inner[-1]) if inner else error
