"""How misbehaving tools are written down: each with what the model is to read of it."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from agent.tools import Tool, tool

F = TypeVar("F", bound=Callable[..., Any])

LIMIT = 0.2
"""Seconds for tools that do not end by themselves."""
MOST = 2_000
"""Bytes of a result that a model is shown in these tests."""
HUGE = 100_000_000
CUT = f"\n[truncated: the output was longer than {MOST} bytes]"
LATE = f"The tool timed out after {LIMIT} seconds; it may have taken effect."

released = threading.Event()
"""Set when a test is over: nothing that hangs does so for ever."""


@dataclass(frozen=True)
class Misbehaviour:
    """A tool and its expected result."""

    tool: Tool
    told: str | re.Pattern[str]
    failed: bool

    @property
    def hangs(self) -> bool:
        return self.tool.timeout is not None and self.tool.timeout <= LIMIT

    @property
    def name(self) -> str:
        return self.tool.name


class Table:
    """Tools and their expected results."""

    def __init__(self) -> None:
        self.rows: list[Misbehaviour] = []

    def fails(self, told: str | re.Pattern[str], **settings: Any) -> Callable[[F], F]:
        """The call fails, and the model reads this."""
        return self._list(told, settings, failed=True)

    def returns(self, told: str | re.Pattern[str], **settings: Any) -> Callable[[F], F]:
        """The call is fine after all, and the model reads this."""
        return self._list(told, settings, failed=False)

    def _list(self, told: str | re.Pattern[str], settings: dict[str, Any], *, failed: bool) -> Callable[[F], F]:
        def add(function: F) -> F:
            seconds = LIMIT if told == LATE else 5.0
            made = tool(function, description="Misbehaves.", **{"timeout": seconds, **settings})
            self.rows.append(Misbehaviour(made, told, failed))
            return function

        return add
