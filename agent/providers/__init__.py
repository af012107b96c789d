"""Vendors by name. Each lives in a module of its own and is imported when it is first asked for."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING

from .. import errors
from .base import Provider, ProviderFactory, StreamDecoder

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

__all__ = ["Provider", "ProviderFactory", "StreamDecoder", "known_providers", "load", "register_provider"]

ENTRY_POINTS = "agent.providers"

_BUILT_IN = {
    "openai": "openai_chat",
    "openai-chat": "openai_chat",
    "scripted": "scripted",
}
"""Name of a provider → module here that has a `provider(name)` function."""

_registered: dict[str, ProviderFactory] = {}


def register_provider(name: str, factory: ProviderFactory) -> None:
    """Add a provider under a name, or replace one."""
    if not name or ":" in name or name != name.strip():
        raise errors.ConfigurationError(
            f"{name!r} cannot name a provider.", field="name", fix="Use a short name without colons or spaces."
        )
    _registered[name] = factory


def known_providers() -> list[str]:
    """All names that `load` understands."""
    return sorted({*_BUILT_IN, *_registered, *(point.name for point in _entry_points())})


def load(name: str) -> ProviderFactory:
    """The factory for a provider's name."""
    if (registered := _registered.get(name)) is not None:
        return registered
    if (module := _BUILT_IN.get(name)) is not None:
        provider: Callable[[str], ProviderFactory] = import_module(f"{__name__}.{module}").provider
        return provider(name)
    for point in _entry_points():
        if point.name == name:
            factory: ProviderFactory = point.load()
            return factory
    raise errors.ConfigurationError(
        f"There is no provider named {name!r}.",
        field="provider",
        fix=f"Use one of {', '.join(known_providers())}, or add yours with register_provider().",
    )


def _entry_points() -> list[EntryPoint]:
    from importlib.metadata import entry_points

    return list(entry_points(group=ENTRY_POINTS))
