"""Keys that change: asked for before each attempt, and once more when the vendor refuses one.

A key is sealed in a `Secret` as soon as there is one, before any frame of ours could show it; and no message here holds
one. What asks a vault is the caller's function, and it is performed as user code: off the event loop, within the
deadline.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from pydantic import SecretStr

from .. import errors
from ..engine.context import Call, Context
from ..engine.flow import Flow, Invoke
from ..types import AgentRequest, AgentResponse, Secret
from .call import Endpoint

GetKey: TypeAlias = Callable[..., "str | SecretStr | Awaitable[str | SecretStr | None] | None"]
"""Gives a key. It may take the provider's name, and a keyword `refresh`."""

_KEPT = 2
"""Endpoints that are kept: of the key in use, and of the one before, which other calls may still be using."""
_UNREACHABLE = 5.0
"""Seconds until it is worth asking again for a key that could not be fetched."""


class Keys:
    """Where an agent's keys come from, and the endpoints for them.

    Args:
        get: The caller's function.
        provider: The name it is asked by.
        endpoint: Makes an endpoint for a key; for None, one with the key that there is without the function.
    """

    def __init__(self, get: GetKey, provider: str, endpoint: Callable[[Secret | None], Endpoint]) -> None:
        if not callable(get):
            raise errors.ConfigurationError(
                f"get_api_key is a {type(get).__name__}.", field="get_api_key", fix="Pass a function that gives a key."
            )
        named, self._takes_refresh = _takes(get)
        self._args = (provider,) if named else ()
        self._function = _sealing(get)
        self._provider = provider
        self._endpoint = endpoint
        self._kept: tuple[tuple[Secret | None, Endpoint], ...] = ()

    def endpoint(self, request: AgentRequest, context: Context, *, refresh: bool = False) -> Flow[Endpoint]:
        """The endpoint for the key that there is now."""
        kwargs = {"refresh": True} if refresh and self._takes_refresh else {}
        try:
            key: Secret | None = yield from Invoke(
                self._function, self._args, kwargs, blocking=True, context=context.user_context
            )
        except Exception as error:
            if isinstance(error, errors.AuthenticationError) or getattr(error, "deadline", False):
                raise
            raise errors.AuthenticationError(
                f"get_api_key gave no key for {self._provider!r}: it raised {type(error).__name__}.",
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
        self._kept = ((key, made), *kept[: _KEPT - 1])  # as a whole, so that threads need no lock
        return made


def keyed(keys: Keys, once: Callable[[Endpoint], Call]) -> Call:
    """An attempt with the key that there is now. One that is refused is made again, once, if there is another by then.

    Args:
        keys: Where keys come from.
        once: The attempt at one endpoint. It fails before its first event, or not for the key.
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
        context.reason = "its key was refused, and there is a new one"
        return (yield from once(renewed)(request, context))

    return call


def by_reference(get: GetKey) -> None:
    """A pickle may hold the name of the function and nothing else: anything else may hold a key."""
    found: Any = sys.modules.get(getattr(get, "__module__", None) or "")
    for part in getattr(get, "__qualname__", "").split("."):
        found = getattr(found, part, None)
    if found is not get:
        raise TypeError(
            "an agent cannot be pickled whose get_api_key is no function of a module: what else is in it might be a key"
        )


def _takes(get: GetKey) -> tuple[bool, bool]:
    """Whether a function takes a name, and whether it takes `refresh`."""
    try:
        parameters = list(inspect.signature(get).parameters.values())
    except (TypeError, ValueError):  # some built-in functions do not say
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


def _sealing(get: GetKey) -> Callable[..., Any]:
    """The function, whose key leaves it sealed: what drivers and flows hold may be shown in a traceback."""
    if inspect.iscoroutinefunction(get) or inspect.iscoroutinefunction(getattr(get, "__call__", None)):  # noqa: B004

        async def sealed_later(*args: Any, **kwargs: Any) -> Secret | None:
            return _sealed(await get(*args, **kwargs))  # type: ignore[misc]  # it is a coroutine function

        return sealed_later

    def sealed(*args: Any, **kwargs: Any) -> Any:
        value = get(*args, **kwargs)
        return _awaited(value) if isinstance(value, Awaitable) else _sealed(value)

    return sealed


async def _awaited(value: Awaitable[Any]) -> Secret | None:
    return _sealed(await value)


def _sealed(value: Any) -> Secret | None:
    text = value.get_secret_value() if isinstance(value, SecretStr) else value
    if text is None:
        return None
    if not isinstance(text, str):
        raise TypeError(f"a key is text, not {type(text).__name__}")
    return Secret(text.strip()) if text.strip() else None
