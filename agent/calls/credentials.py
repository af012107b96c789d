"""Rotating keys: `get_api_key` is called before each attempt, and again after a rejected key.

Each key is wrapped in a `Secret` at once, so that no frame or message shows it. The caller's function runs as user
code: outside the event loop, within the deadline.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, TypeAlias

from pydantic import SecretStr

from .. import errors
from ..engine.context import Call, Context
from ..engine.flow import Flow, Invoke
from ..types import AgentRequest, AgentResponse, Secret
from .call import Endpoint

GetKey: TypeAlias = Callable[..., "str | SecretStr | Awaitable[str | SecretStr | None] | None"]
"""Returns a key. It may accept the provider's name and a keyword `refresh`."""

_KEPT = 2
"""Endpoints to cache: for the current key and the previous one, which other calls may still use."""
_UNREACHABLE = 5.0
"""Seconds before the next attempt to fetch a key that could not be fetched."""


class Keys:
    """Keys of an agent, and the endpoints for them.

    Args:
        get: The caller's function.
        provider: The provider's name, passed to the function.
        endpoint: Creates an endpoint for a key. None stands for the configured key.
    """

    def __init__(self, get: GetKey, provider: str, endpoint: Callable[[Secret | None], Endpoint]) -> None:
        if not callable(get):
            raise errors.ConfigurationError(
                f"get_api_key is a {type(get).__name__}.",
                field="get_api_key",
                fix="Pass a function that returns a key.",
            )
        named, self._takes_refresh = _takes(get)
        self._args = (provider,) if named else ()
        self._function = _wrap_key_function(get)
        self._provider = provider
        self._endpoint = endpoint
        self._kept: tuple[tuple[Secret | None, Endpoint], ...] = ()

    def endpoint(self, request: AgentRequest, context: Context, *, refresh: bool = False) -> Flow[Endpoint]:
        """Return the endpoint for the current key."""
        kwargs = {"refresh": True} if refresh and self._takes_refresh else {}
        try:
            key: Secret | None = yield from Invoke(
                self._function, self._args, kwargs, blocking=True, context=context.user_context
            )
        except Exception as error:
            if isinstance(error, errors.AuthenticationError) or getattr(error, "deadline", False):
                raise
            raise errors.AuthenticationError(
                f"get_api_key returned no key for {self._provider!r}: it raised {type(error).__name__}.",
                provider=self._provider,
                model=request.model,
                retry_after=_UNREACHABLE,
            ) from error
        return self._endpoint_for(key)

    def _endpoint_for(self, key: Secret | None) -> Endpoint:
        kept = self._kept
        for known, endpoint in kept:
            if known == key:
                return endpoint
        made = self._endpoint(key)
        self._kept = ((key, made), *kept[: _KEPT - 1])  # one assignment, so that threads need no lock
        return made


def call_with_keys(keys: Keys, once: Callable[[Endpoint], Call]) -> Call:
    """Make an attempt with the current key. If the vendor rejects it, retry once with a newer key.

    Args:
        keys: The keys of the agent.
        once: Creates the attempt at one endpoint. A rejected key fails before the first event.
    """

    def call(request: AgentRequest, context: Context) -> Flow[AgentResponse]:
        endpoint = yield from keys.endpoint(request, context)
        try:
            return (yield from once(endpoint)(request, context))
        except errors.AuthenticationError as error:
            if error.committed:
                raise
            renewed = yield from keys.endpoint(request, context, refresh=True)
            if renewed is endpoint:
                raise
        context.reason = "the vendor rejected the key, and there is a new one"
        return (yield from once(renewed)(request, context))

    return call


def read_keys_by_provider(key: Any, addresses: Collection[tuple[str, str | None]]) -> Mapping[str, Any]:
    """Return the API keys of one call. Refuses a key that might go to another vendor.

    Args:
        key: The option `api_key`: None, a key, or keys by provider.
        addresses: Where the call may go: providers and base URLs.
    """
    providers = sorted({provider for provider, _ in addresses})
    if isinstance(key, Mapping):
        for name in key:
            if name not in providers:
                raise errors.ConfigurationError(
                    f"api_key has a key for {name!r}, which this call does not use.",
                    field="api_key",
                    fix=f"Use {', '.join(providers)}.",
                )
        return key
    if key is not None and len(addresses) > 1:
        raise errors.ConfigurationError(
            "The router sends to several vendors, and api_key does not say which of them it is for.",
            field="api_key",
            fix=f"Pass a dict by provider: api_key={{{', '.join(f'{name!r}: ...' for name in providers)}}}.",
        )
    return {} if key is None else dict.fromkeys(providers, key)


def check_picklable(get: GetKey) -> None:
    """Raise TypeError if pickling the function would store more than its name, which might contain a key."""
    found: Any = sys.modules.get(getattr(get, "__module__", None) or "")
    for part in getattr(get, "__qualname__", "").split("."):
        found = getattr(found, part, None)
    if found is not get:
        raise TypeError(
            "an agent can only be pickled if get_api_key is a module-level function: anything else may contain a key"
        )


def _takes(get: GetKey) -> tuple[bool, bool]:
    """Return whether a function accepts a name, and whether it accepts `refresh`."""
    try:
        parameters = list(inspect.signature(get).parameters.values())
    except (TypeError, ValueError):  # some built-in functions have no signature
        return False, False
    named = any(
        parameter.kind is parameter.VAR_POSITIONAL
        or (
            (parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD))
            and parameter.name != "refresh"
        )
        for parameter in parameters
    )
    refresh = any(
        parameter.kind is parameter.VAR_KEYWORD
        or (parameter.name == "refresh" and parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY))
        for parameter in parameters
    )
    return named, refresh


def _wrap_key_function(get: GetKey) -> Callable[..., Any]:
    """Wrap the function so that it returns a `Secret`, since tracebacks may show its result."""
    if inspect.iscoroutinefunction(get) or inspect.iscoroutinefunction(getattr(get, "__call__", None)):  # noqa: B004

        async def get_async_secret(*args: Any, **kwargs: Any) -> Secret | None:
            return _to_secret(await get(*args, **kwargs))  # type: ignore[misc]  # it is a coroutine function

        return get_async_secret

    def get_secret(*args: Any, **kwargs: Any) -> Any:
        value = get(*args, **kwargs)
        return _await_secret(value) if isinstance(value, Awaitable) else _to_secret(value)

    return get_secret


async def _await_secret(value: Awaitable[Any]) -> Secret | None:
    return _to_secret(await value)


def _to_secret(value: Any) -> Secret | None:
    text = value.get_secret_value() if isinstance(value, SecretStr) else value
    if text is None:
        return None
    if not isinstance(text, str):
        raise TypeError(f"a key must be a string, not {type(text).__name__}")
    return Secret(text.strip()) if text.strip() else None
