"""Conversations that last: an agent, a place in a graph, and a store that keeps it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._missing_names import reject_names
from .session import AgentSession

__all__ = ["AgentSession"]

if not TYPE_CHECKING:
    __getattr__ = reject_names(__name__, __all__)
