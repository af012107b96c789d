"""Conformance tests for stores of conversations: the promises of `agent.stores.Store`.

The methods of a store may be sync or async.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from . import cases  # noqa: F401  # adds the cases
from .base import STORE_CASES, Make, Reopen, StoreHarness

__all__ = ["STORE_CASES", "check_store"]


def check_store(make: Make, *, reopen: Reopen | None = None, only: Sequence[str] = ()) -> None:
    """Run the conformance tests of a store. The first failure raises AssertionError.

    ```python
    from agent.stores import MemoryStore
    from agent.testing.stores import check_store

    check_store(MemoryStore)
    ```

    Args:
        make: Returns a new, empty store. It may be async.
        reopen: Returns a second store with the same content, as another process would open it. It may be async.
            Without it, cases that need a second store are skipped.
        only: Names of cases; by default, all of `STORE_CASES`.
    """
    for name in only or STORE_CASES:
        asyncio.run(_run_case(name, StoreHarness(make, reopen)))


async def _run_case(name: str, harness: StoreHarness) -> None:
    try:
        await STORE_CASES[name](harness)
    except AssertionError as error:
        raise AssertionError(f"{name}: {error}") from error
    except Exception as error:
        raise AssertionError(f"{name}: unexpected {type(error).__name__}: {error}") from error
    finally:
        await harness.close()
