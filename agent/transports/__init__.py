"""Transports carry bytes: `http`, `fast` and `aiohttp` over the network, `sdk` through a client that the caller brings,
`local`, `scripted` and `function` in process. They know no vendor and decide nothing.
"""

from __future__ import annotations

import threading
from typing import Any

from .. import errors
from ..wire import Transport

_lock = threading.RLock()  # one of them is made of another
_shared: dict[str, Transport] = {}
_NAMES = ("http", "fast", "aiohttp", "local", "scripted", "function")


def load(name: str) -> Transport:
    """The transport that everybody shares under this name, made when it is first needed.

    Sharing it means sharing connections: agents made in passing find warm ones.
    """
    found = _shared.get(name)
    if found is None:
        with _lock:
            found = _shared.get(name)
            if found is None:
                found = _shared[name] = _make(name)
    return found


def check(name: str) -> None:
    """Raises unless there is a transport of this name, and what it is made of; loads nothing."""
    if name not in _NAMES:
        raise errors.ConfigurationError(
            f"There is no transport named {name!r}.",
            field="transport",
            fix=f"Use {', '.join(_NAMES[:-1])} or {_NAMES[-1]}, or pass one.",
        )
    if name in ("fast", "aiohttp") and not _is_there("aiohttp"):
        raise errors.ConfigurationError(
            f"The transport named {name!r} needs aiohttp, which is not installed.",
            field="transport",
            fix="Install the extra: pip install 'agent-llm-router[fast]'.",
        )


def _is_there(package: str) -> bool:
    from importlib.util import find_spec

    return find_spec(package) is not None


def through(client: Any) -> Transport:
    """A transport through a client that the caller brings."""
    from .sdk import SdkTransport

    return SdkTransport(client)


def _make(name: str) -> Transport:
    check(name)
    if name == "http":
        from .http import HttpTransport

        return HttpTransport()
    if name in ("fast", "aiohttp"):
        from .http import HttpTransport

        http = load("http")
        assert isinstance(http, HttpTransport)
        if name == "fast":
            from .fast import FastTransport

            return FastTransport.beside(http)
        from .over_aiohttp import AiohttpTransport

        return AiohttpTransport.beside(http)
    if name == "scripted":
        from ..providers.scripted import Script
        from .scripted import ScriptedTransport

        return ScriptedTransport(Script())
    if name == "function":
        from .function import FunctionTransport

        return FunctionTransport()
    from .local import LocalTransport

    return LocalTransport()
