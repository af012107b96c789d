"""What a router remembers of conversations: where each one is, and how much of it the vendor there has in its cache."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from ..locks import Locked

KEPT = 4096
"""Conversations; the one that was quiet for longest is forgotten first."""
WARM = 300.0
"""Seconds that vendors keep a prompt cached."""
PINNED = 3600.0


@dataclass(frozen=True, slots=True)
class Stay:
    """A conversation's last answer."""

    target: str
    tokens: int
    at: float


class Memory(Locked):
    """Of one router. Bounded, and only a help: whatever it forgets costs a little, and breaks nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.turn = 0.0
        """Whose turn it is, where targets take turns: the latest turn that was taken."""
        self._stays: OrderedDict[bytes, Stay] = OrderedDict()

    def answered(self, key: bytes, target: str, tokens: int, now: float) -> None:
        with self._lock:
            self._stays[key] = Stay(target, tokens, now)
            self._stays.move_to_end(key)
            if len(self._stays) > KEPT:
                self._stays.popitem(last=False)

    def left(self, key: bytes, target: str) -> None:
        """A target failed a conversation, which will have to move."""
        with self._lock:
            stay = self._stays.get(key)
            if stay is not None and stay.target == target:
                del self._stays[key]

    def pinned(self, key: bytes, now: float) -> str | None:
        stay = self._stays.get(key)
        return None if stay is None or now > stay.at + PINNED else stay.target

    def cached_at(self, key: bytes, target: str, now: float) -> int:
        """Tokens of the conversation that a target's vendor still has."""
        stay = self._stays.get(key)
        return 0 if stay is None or stay.target != target or now > stay.at + WARM else stay.tokens
