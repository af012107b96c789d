"""Transports carry bytes: `http` over the network, `sdk` through a client that the caller brings, `local`, `scripted`
and `function` in process. They know no vendor and decide nothing.
"""

from __future__ import annotations

import threading
from typing import Any

from .. import errors
from ..wire import Transport

_lock = threading.Lock()
_shared: dict[str, Transport] = {}


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


def through(client: Any) -> Transport:
    """A transport through a client that the caller brings."""
    from .sdk import SdkTransport

    return SdkTransport(client)


def _make(name: str) -> Transport:
    if name == "http":
        from .http import HttpTransport

        return HttpTransport()
    if name == "scripted":
        from ..providers.scripted import Script
        from .scripted import ScriptedTransport

        return ScriptedTransport(Script())
    if name == "function":
        from .function import FunctionTransport

        return FunctionTransport()
    if name == "local":
        from .local import LocalTransport

        return LocalTransport()
    raise errors.ConfigurationError(
        f"There is no transport named {name!r}.",
        field="transport",
        fix="Use http, local, scripted or function, or pass one.",
    )
