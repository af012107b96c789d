"""Answers as scripts: what arrives, when, and how it breaks.

The same script is played by the simulated driver in virtual time, by the scripted transport in process, and by the
loopback server over a real socket, so a behaviour that is described once can be tried in all three.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from .wire import WireRequest


@dataclass(slots=True)
class Piece:
    """Bytes of a body, or the failure that ends it, `after` so many seconds of waiting."""

    outcome: bytes | Exception
    after: float = 0.0


@dataclass(slots=True)
class Answer:
    """What becomes of a request: a reply `after` some seconds, or a `failure` to get any."""

    pieces: Sequence[Piece | bytes | Exception] = ()
    after: float = 0.0
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    failure: Exception | None = None

    def timed(self) -> Iterator[Piece]:
        for piece in self.pieces:
            yield piece if isinstance(piece, Piece) else Piece(piece)


Network: TypeAlias = Callable[[WireRequest], Answer]
"""Decides what becomes of each request."""
