"""Connection pools in shards, so that a pool's cost does not grow with what is in flight.

httpcore2 looks at all connections of a pool for each request. A shard takes a bounded number of requests at a time;
when all are full another is opened, so a request never waits for a connection and our own load never looks like a
vendor's failure.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

P = TypeVar("P")

REQUESTS_PER_SHARD = 100


class Shard(Generic[P]):
    """One pool and how many requests it carries."""

    __slots__ = ("busy", "pool")

    def __init__(self, pool: P) -> None:
        self.pool = pool
        self.busy = 0


class Shards(Generic[P]):
    """Pools to one destination. Earlier shards are preferred: their connections are the warm ones."""

    def __init__(self, make: Callable[[], P]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._shards: list[Shard[P]] = []

    def take(self) -> Shard[P]:
        with self._lock:
            for shard in self._shards:
                if shard.busy < REQUESTS_PER_SHARD:
                    break
            else:
                shard = Shard(self._make())
                self._shards.append(shard)
            shard.busy += 1
            return shard

    def give_back(self, shard: Shard[P]) -> None:
        with self._lock:
            shard.busy -= 1

    @property
    def pools(self) -> list[P]:
        return [shard.pool for shard in self._shards]
