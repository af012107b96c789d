"""Tasks of contestants. Each contestant has methods for the tasks that its library supports.

A method does the task once, and returns the text, with the usage if the library reports it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from benchmarks.workload import Output


class Absent(Exception):
    """The library cannot do the task, with the reason."""


class Contestant(Protocol):
    """Interface of contestants. All methods are optional."""

    def call(self) -> Output:
        """One request and response."""
        ...

    async def acall(self) -> Output: ...

    def stream(self) -> Output:
        """A stream, joined from the events of the library."""
        ...

    async def astream(self) -> Output: ...

    def first(self) -> Output:
        """The first request of a long conversation with many tools, built from plain data."""
        ...

    def conversation(self) -> Callable[[], Output]:
        """The same conversation as objects of the library.

        The returned function sends a request, and adds the response and the next question.
        """
        ...

    def loop(self) -> Output:
        """A tool loop of the library with four tool calls."""
        ...
