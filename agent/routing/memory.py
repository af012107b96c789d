"""Memory of a router: where conversations were answered, and the turns of its targets."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from ..locks import Locked

CAPACITY = 4096
"""Conversations that are remembered; the least recent one is forgotten first."""
CACHE_SECONDS = 300.0
"""Seconds for which vendors keep a prompt cached."""
PIN_SECONDS = 3600.0
"""Seconds after its last answer in which a conversation stays at its target."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Latest answer of a conversation."""

    target: str
    tokens: int
    at: float


class Memory(Locked):
    """Bounded memory of one router. Losing an entry may cost a cache miss, and nothing else."""

    def __init__(self) -> None:
        super().__init__()
        self.turn = 0.0
        """The latest turn that was taken, for strategies with turns."""
        self._placements: OrderedDict[bytes, Placement] = OrderedDict()

    def record_answer(self, key: bytes, target: str, tokens: int, now: float) -> None:
        """Remember that a target answered a conversation, with so many tokens of prompt."""
        with self._lock:
            self._placements[key] = Placement(target, tokens, now)
            self._placements.move_to_end(key)
            if len(self._placements) > CAPACITY:
                self._placements.popitem(last=False)

    def record_failure(self, key: bytes, target: str) -> None:
        """Forget a conversation's target after it failed."""
        with self._lock:
            placement = self._placements.get(key)
            if placement is not None and placement.target == target:
                del self._placements[key]

    def pinned(self, key: bytes, now: float) -> str | None:
        """Name of the target where a conversation stays; None if there is none."""
        placement = self._placements.get(key)
        return None if placement is None or now > placement.at + PIN_SECONDS else placement.target

    def cached_at(self, key: bytes, target: str, now: float) -> int:
        """Tokens of a conversation that are probably in the cache of a target's vendor."""
        placement = self._placements.get(key)
        if placement is None or placement.target != target or now > placement.at + CACHE_SECONDS:
            return 0
        return placement.tokens
