"""What stands around calls: a class of your own, or one of those that are ready.

```python
from agent.middleware import Cache, Middleware
from agent.testing import scripted_agent


class Polite(Middleware):
    def before(self, request, call):
        return request.model_copy(update={"system": "Be polite."})


agent = scripted_agent("With pleasure.", middleware=[Polite(), Cache()])
assert agent.complete("Help me").text == agent.complete("Help me").text
```
"""

from __future__ import annotations

from .base import CallInfo, Hook, Middleware
from .cache import Cache, CacheStats, MemoryStore, SqliteStore, Store
from .flow import listened, replayed, wrapped
from .limits import CostTracker, Spending, Throttle
from .logging import Logging
from .metrics import CallRecord, Histogram, Metrics, TargetMetrics
from .redaction import Redaction

__all__ = [
    "Cache",
    "CacheStats",
    "CallInfo",
    "CallRecord",
    "CostTracker",
    "Histogram",
    "Hook",
    "Logging",
    "MemoryStore",
    "Metrics",
    "Middleware",
    "Redaction",
    "Spending",
    "SqliteStore",
    "Store",
    "TargetMetrics",
    "Throttle",
    "listened",
    "replayed",
    "wrapped",
]
