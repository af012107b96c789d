"""Middleware around model calls: the base class and built-in implementations.

```python
from agent.middleware import Cache, Middleware
from agent.testing import scripted_agent


class Politeness(Middleware):
    def before(self, request, call):
        return request.model_copy(update={"system": "Be polite."})


agent = scripted_agent("With pleasure.", middleware=[Politeness(), Cache()])
assert agent.complete("Help me").text == agent.complete("Help me").text
```
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._missing_names import reject_names
from .base import CallInfo, Hook, Middleware
from .cache import Cache, CacheStats, MemoryResponseStore, ResponseStore, SqliteResponseStore
from .flow import observe_events, replay_events, wrap_call
from .limits import CostTracker, Spending, Throttle
from .observability import CallMetrics, Histogram, Logging, Metrics, TargetMetrics
from .redaction import Redaction

__all__ = [
    "Cache",
    "CacheStats",
    "CallInfo",
    "CallMetrics",
    "CostTracker",
    "Histogram",
    "Hook",
    "Logging",
    "MemoryResponseStore",
    "Metrics",
    "Middleware",
    "Redaction",
    "ResponseStore",
    "Spending",
    "SqliteResponseStore",
    "TargetMetrics",
    "Throttle",
    "observe_events",
    "replay_events",
    "wrap_call",
]

if not TYPE_CHECKING:
    __getattr__ = reject_names(__name__, __all__)
