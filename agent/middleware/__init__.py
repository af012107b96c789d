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

import sys
from importlib import import_module
from typing import TYPE_CHECKING

from .._missing_names import create_import_error
from .base import CallInfo, Hook, Middleware
from .cache import Cache, CacheStats, MemoryResponseStore, ResponseStore, SqliteResponseStore
from .flow import observe_events, replay_events, wrap_call
from .limits import CostTracker, Spending, Throttle
from .observability import CallMetrics, Histogram, Logging, Metrics, TargetMetrics
from .redaction import Redaction

if TYPE_CHECKING:
    from .redis_cache import RedisResponseStore
    from .redis_costs import RedisCostTracker
    from .redis_throttle import RedisThrottle

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
    "RedisCostTracker",
    "RedisResponseStore",
    "RedisThrottle",
    "ResponseStore",
    "Spending",
    "SqliteResponseStore",
    "TargetMetrics",
    "Throttle",
    "observe_events",
    "replay_events",
    "wrap_call",
]

_LAZY = {"RedisResponseStore": "redis_cache", "RedisCostTracker": "redis_costs", "RedisThrottle": "redis_throttle"}
"""Names whose modules need the extra `redis`."""

if not TYPE_CHECKING:

    def __getattr__(name):
        if name in _LAZY:
            return getattr(import_module(f".{_LAZY[name]}", __name__), name)
        if name.startswith("__"):
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        if (module := sys.modules.get(f"{__name__}.{name}")) is not None:
            return module  # it is being imported
        raise create_import_error(__name__, name, __all__)
