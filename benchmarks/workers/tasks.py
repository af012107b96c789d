"""What a contestant can be asked to do. Each has those methods that its library can do; the rest are empty cells.

A method does the whole task once, and returns the text that it found, with the usage where the library tells it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from benchmarks.workload import Found


class Absent(Exception):
    """The library cannot do this here; the text says why."""


class Contestant(Protocol):
    """Methods are looked up by name, so that a library need not have them all."""

    def call(self) -> Found:
        """One question, one answer."""
        ...

    async def acall(self) -> Found: ...

    def stream(self) -> Found:
        """The text, put together from the library's own events."""
        ...

    async def astream(self) -> Found: ...

    def first(self) -> Found:
        """A long conversation and many tools, made from plain data, and asked."""
        ...

    def conversation(self) -> Callable[[], Found]:
        """The same conversation in the library's own objects.

        What is returned asks, and adds the answer and the next question, each time that it is called.
        """
        ...

    def loop(self) -> Found:
        """A question whose answer takes four calls of a tool, by the library's own loop."""
        ...
