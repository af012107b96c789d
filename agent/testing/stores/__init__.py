"""A suite for stores of conversations: what `agent.stores.Store` promises, as cases that anybody can run on theirs.

The cases know only the protocol. Methods may be plain or async: a case runs in an event loop of its own, and plain
methods run in threads beside it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from . import durability, sessions  # noqa: F401  # each adds its cases
from .base import STORE_CASES, Make, Reopen, Trial

__all__ = ["STORE_CASES", "check_store"]


def check_store(make: Make, *, reopen: Reopen | None = None, only: Sequence[str] = ()) -> None:
    """Find out whether a store keeps its promises. The first that it does not keep is an AssertionError.

    ```python
    from agent.stores import MemoryStore
    from agent.testing.stores import check_store

    check_store(MemoryStore)
    ```

    Args:
        make: Gives a store with nothing in it, each time another one. It may be async.
        reopen: Gives a second store with the same content, as another process would open it. Without it, what only
            such a store can show is not looked at.
        only: Names of cases. Without any, all of `STORE_CASES`.
    """
    for name in only or STORE_CASES:
        asyncio.run(_tried(name, Trial(make, reopen)))


async def _tried(name: str, trial: Trial) -> None:
    try:
        await STORE_CASES[name](trial)
    except AssertionError as error:
        raise AssertionError(f"{name}: {error}") from error
    except Exception as error:
        raise AssertionError(f"{name}: unexpected {type(error).__name__}: {error}") from error
    finally:
        await trial.end()
