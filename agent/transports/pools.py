"""Connection pools in shards, so that a pool's cost does not grow with what is in flight.

httpcore2 looks at all connections of a pool for each request. A shard takes a bounded number of requests at a time;
when all are full another is opened, so a request never waits for a connection and our own load never looks like a
vendor's failure.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar
from weakref import WeakSet

P = TypeVar("P")

REQUESTS_PER_SHARD = 100


class Place(Generic[P]):
    """Room for one request in a pool, until it is given back or forgotten."""

    __slots__ = ("__weakref__", "_shard", "pool")

    def __init__(self, shard: Shard[P]) -> None:
        self.pool = shard.pool
        self._shard = shard
        shard.taken.add(self)

    def give_back(self) -> None:
        """Again is harmless."""
        self._shard.taken.discard(self)


class Shard(Generic[P]):
    """One pool and the requests it carries."""

    __slots__ = ("pool", "taken")

    def __init__(self, pool: P) -> None:
        self.pool = pool
        self.taken: WeakSet[Place[P]] = WeakSet()


class Shards(Generic[P]):
    """Pools to one destination. Earlier shards are preferred: their connections are the warm ones.

    There is no lock: one that an interrupt leaves locked would hang every later call. Threads that come at the same
    moment may put a few requests too many into a shard, for which its pool has room, or open one shard too many.
    """

    def __init__(self, make: Callable[[], P]) -> None:
        self._make = make
        self._shards: list[Shard[P]] = []

    def take(self) -> Place[P]:
        for shard in list(self._shards):
            if len(shard.taken) < REQUESTS_PER_SHARD:
                return Place(shard)
        shard = Shard(self._make())
        self._shards.append(shard)
        return Place(shard)

    @property
    def pools(self) -> list[P]:
        return [shard.pool for shard in list(self._shards)]
