"""Session stores: in memory, in a SQLite file, in Redis, or your own implementation of `Store`.

```python
from agent.stores import MemoryStore

store = MemoryStore()
record = store.create("trip-to-paris", title="A trip")
hello = {"id": "n1", "parents": [], "timestamp": 0.0, "metadata": {}, "data": {"role": "user", "content": "Hello"}}
store.append("trip-to-paris", [hello], heads=["n1"], expected_version=record.version)
assert store.load("trip-to-paris").nodes == (hello,)
```
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .base import (
    ConflictError,
    CorruptStoreError,
    NodeExistsError,
    Row,
    SearchHit,
    SessionNotFoundError,
    SessionRecord,
    Store,
    StoreBusyError,
    StoreError,
    StoreFullError,
    StoreUnavailableError,
    UnknownFormatError,
    check_session_id,
    is_same_row,
    read_rows,
    select_new_rows,
)
from .files import replace_file
from .memory import MemoryStore
from .search import SearchTerms, extract_text

if TYPE_CHECKING:
    from .redis import RedisStore
    from .sqlite import SqliteStore

__all__ = [
    "ConflictError",
    "CorruptStoreError",
    "MemoryStore",
    "NodeExistsError",
    "RedisStore",
    "Row",
    "SearchHit",
    "SearchTerms",
    "SessionNotFoundError",
    "SessionRecord",
    "SqliteStore",
    "Store",
    "StoreBusyError",
    "StoreError",
    "StoreFullError",
    "StoreUnavailableError",
    "UnknownFormatError",
    "check_session_id",
    "extract_text",
    "is_same_row",
    "read_rows",
    "replace_file",
    "select_new_rows",
]


if not TYPE_CHECKING:

    def __getattr__(name):
        if name == "SqliteStore":
            from .sqlite import SqliteStore  # lazy: avoids importing sqlite3 unless it is used

            return SqliteStore
        if name == "RedisStore":
            from .redis import RedisStore  # lazy: redis is an extra

            return RedisStore
        if name.startswith("__"):
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from .._missing_names import create_import_error  # lazy: only misspelled names need it

        raise create_import_error(__name__, name, __all__)
