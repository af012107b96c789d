"""Conversations that last: an agent, a place in a graph, and a store that keeps it."""

from __future__ import annotations

from .session import AgentSession

__all__ = ["AgentSession"]
