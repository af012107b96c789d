"""Transports send requests: over HTTP, through an SDK's client, or to a script or function in this process."""

from __future__ import annotations

import threading
from typing import Any

from .. import errors
from ..engine.wire import Transport

_lock = threading.RLock()
_shared: dict[str, Transport] = {}
_NAMES = ("http", "httpx", "local", "scripted", "function")


def get_transport(name: str) -> Transport:
    """The shared transport of this name, made when it is first needed. Agents that share it share connections."""
    found = _shared.get(name)
    if found is None:
        with _lock:
            found = _shared.get(name)
            if found is None:
                found = _shared[name] = _make(name)
    return found


def check_transport(name: str) -> None:
    """Raise unless there is a transport of this name. Loads nothing."""
    if name not in _NAMES:
        raise errors.ConfigurationError(
            f"There is no transport named {name!r}.",
            field="transport",
            fix=f"Use {', '.join(_NAMES[:-1])} or {_NAMES[-1]}, or pass one.",
        )


def for_sdk_client(client: Any) -> Transport:
    """A transport through a client of an official SDK."""
    from .sdk_clients import SdkTransport  # lazy: only brought SDK clients need it

    return SdkTransport(client)


def for_http_client(http_client: Any) -> Transport:
    """A transport through a user's HTTP clients."""
    from .http import HttpClientTransport  # lazy: loads `socket`

    return HttpClientTransport(http_client)


def _make(name: str) -> Transport:
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
