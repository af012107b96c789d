"""Tools that are flows: they run as a part of the flow that calls them, and may be runs themselves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..flow import Flow
from .base import Tool, ToolContext


@dataclass
class FlowTool(Tool):
    """A tool that is a flow."""

    def steps(self, arguments: Any, context: ToolContext[Any]) -> Flow[Any]:
        """Like `run`, as a flow."""
        raise NotImplementedError


@dataclass
class NestedTool(FlowTool):
    """A tool that is a run, such as a sub-agent. It can be resumed where it stopped, and `steps` may return Suspended.

    A run that calls it passes a `Nesting` in the context.
    """


@dataclass(frozen=True, slots=True)
class Suspended:
    """The outcome of a nested run that waits for a decision."""

    run: Any


@dataclass(frozen=True, slots=True)
class Nesting:
    """What a run passes to a nested one."""

    context: Any
    """The context of the flow: deadline and place."""
    journal: Any = None
    paused: Any = None
    """The nested run to resume; None to start it."""
    is_retried: Callable[[], bool] = bool
    """Whether this call has been paid for before, by a try that failed."""
