"""Things of a simulated world: answers that arrive in virtual time, and tools that take it."""

from __future__ import annotations

from collections import deque
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from ..wire import Answer, Body, Piece


@dataclass(slots=True)
class SimulatedTool:
    """A function for Invoke that takes virtual time: reports at given times, then a result or a failure."""

    result: Any
    after: float = 0.0
    reports: Sequence[tuple[float, Any]] = ()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise AssertionError("only the simulated driver can run this tool")


class SimulatedBody(Body):
    """An answer arriving in virtual time."""

    __slots__ = ("pieces",)

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.status, answer.headers)
        self.pieces = deque(answer.timed())

    def next_piece(self) -> Piece:
        """What comes next, and when; an empty piece is only a pause, as on a socket."""
        waited = 0.0
        while self.pieces:
            piece = self.pieces.popleft()
            waited += piece.after
            if isinstance(piece.outcome, Exception) or piece.outcome:
                return Piece(piece.outcome, waited)
        return Piece(b"", waited)


def nothing() -> None:
    pass


def at_once(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """The value of a coroutine that waits for nothing: there is no event loop in here."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value
    coroutine.close()
    raise AssertionError("user code waits for real time; in a simulation, use a SimulatedTool")
