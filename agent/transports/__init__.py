"""Transports send requests over HTTP, through SDK clients, or to code in this process."""

from __future__ import annotations

import threading
from typing import Any

from .. import errors
from ..engine.wire import Transport

_lock = threading.RLock()
_shared: dict[str, Transport] = {}
_NAMES = ("http", "httpx", "local", "scripted", "function")


def get_transport(name: str) -> Transport:
    """Get the shared transport of this name. Agents that share it share connections."""
    with _lock:
        transport = _shared.get(name)
        if transport is None:
            transport = _shared[name] = _create(name)
        return transport


def check_transport(name: str) -> None:
    """Raise ConfigurationError for an unknown transport name. Imports nothing."""
    if name not in _NAMES:
        raise errors.ConfigurationError(
            f"Unknown transport {name!r}.",
            field="transport",
            fix=f"Use {', '.join(_NAMES[:-1])} or {_NAMES[-1]}, or pass a transport.",
        )


def for_sdk_client(client: Any) -> Transport:
    """Create a transport for a client of an official SDK."""
    from .sdk_clients import SdkTransport  # lazy: only SDK clients need it

    return SdkTransport(client)


def for_http_client(http_client: Any) -> Transport:
    """Create a transport for the HTTP clients of a user."""
    from .http import HttpClientTransport  # lazy: loads `socket`

    return HttpClientTransport(http_client)


def _create(name: str) -> Transport:
    check_transport(name)
    if name in ("http", "httpx"):
        from .http import HttpTransport  # lazy: loads `socket`

        return HttpTransport(library="httpx2" if name == "httpx" else None)
    if name == "scripted":
        from ..providers.scripted import Script  # lazy: loads a vendor's codec
        from .scripted import ScriptedTransport  # lazy: only scripts need it

        return ScriptedTransport(Script())
    if name == "function":
        from .function import FunctionTransport  # lazy: only functions as models need it

        return FunctionTransport()
    from .local import LocalTransport  # lazy: only local models need it

    return LocalTransport()
