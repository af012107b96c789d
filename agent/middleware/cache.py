"""Answers that were given before: the same request, to the same address, is asked once.

Kept is what is complete and can be written down as JSON and read back as it was. An answer from the cache cost nothing
this time, and says so; its usage still tells how long the prompt and the answer are.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pydantic import TypeAdapter
from pydantic_core import from_json, to_json
from typing_extensions import override

from ..errors import AgentError, ConfigurationError
from ..flow import Flow, Invoke
from ..locks import Locked
from ..types import AgentRequest, AgentResponse
from .base import CallInfo, Middleware
from .stores import MemoryStore, Store

SOURCE = "cache"
"""The `cost_source` of an answer that was kept."""
_COMPLETE = ("stop", "tool_calls")
_VIEWS = {"text", "tool_calls", "output", "route", "latency_ms"}
"""What is read from the content, restored by the schema, or about the call."""
_VERSION = 1


@dataclass(frozen=True, slots=True)
class CacheStats:
    """How often a cache was of use."""

    hits: int = 0
    misses: int = 0
    kept: int = 0
    failures: int = 0
    """Uses of the store that failed. The calls went on without it."""


class Cache(Locked, Middleware):
    """Answers from a store what was asked before, whole or as a stream.

    Two calls that ask the same at the same time are both sent.

    Args:
        store: A `MemoryStore`, a `SqliteStore`, or a `Store` of your own; by default a `MemoryStore`.
        ttl: Seconds after which an answer is asked again; None: never.
        when: Which requests to look up and to keep; by default all of them.
        clock: Tells the time, in seconds since any moment that all who share the store agree on.
    """

    def __init__(
        self,
        store: Store | None = None,
        *,
        ttl: float | None = None,
        when: Callable[[AgentRequest], bool] | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        super().__init__()
        if ttl is not None and not ttl > 0:
            raise ConfigurationError(f"ttl is {ttl}.", field="ttl", fix="Use seconds above 0, or leave it out.")
        self._store: Store = MemoryStore() if store is None else store
        self._ttl, self._when, self._clock = ttl, when, clock or _seconds
        self._made_from = (store, ttl, when, clock)
        self._stats = CacheStats()

    @override
    def __reduce__(self) -> Any:
        return _rebuild, self._made_from

    @property
    def stats(self) -> CacheStats:
        return self._stats

    @override
    def before(self, request: AgentRequest, call: CallInfo) -> Flow[AgentResponse | None]:
        if call.counting or (self._when is not None and not self._when(request)):
            return None
        try:
            key = f"{_VERSION}:{call.fingerprint(request)}"
        except (AgentError, ValueError, TypeError):
            return None  # it cannot be sent or written down; whoever is asked will say so
        text = yield from self._use(self._store.get, key, self._clock())
        answer = None if text is None else _read(text, request)
        if answer is None:
            call.state["key"], call.state["schema"] = key, request.output_schema
            self._count(misses=1)
            return None
        self._count(hits=1)
        return answer

    @override
    def after(self, response: AgentResponse, call: CallInfo) -> Flow[None]:
        key = call.state.get("key")
        if key is None or response.stop_reason not in _COMPLETE:
            return
        text = _written(response, call.state["schema"])
        if text is not None:
            now = self._clock()
            expires = None if self._ttl is None else now + self._ttl
            if (yield from self._use(self._store.put, key, text, now, expires, done=True)):
                self._count(kept=1)

    def _use(self, method: Callable[..., Any], *args: Any, done: Any = None) -> Flow[Any]:
        """Ask the store. One that fails is no reason for a call to fail."""
        try:
            value = yield from Invoke(method, args, blocking=self._store.blocking)
        except Exception as error:
            if getattr(error, "deadline", False):
                raise
            self._count(failures=1)
            logging.getLogger("agent").warning("the store of a cache failed: %s", type(error).__name__)
            return None
        return value if done is None else done

    def _count(self, *, hits: int = 0, misses: int = 0, kept: int = 0, failures: int = 0) -> None:
        with self._lock:
            old = self._stats
            self._stats = CacheStats(old.hits + hits, old.misses + misses, old.kept + kept, old.failures + failures)


def _seconds() -> float:
    return datetime.now(UTC).timestamp()


def _written(response: AgentResponse, schema: Any) -> str | None:
    """An answer as text; None if it would not be the same when it is read again."""
    try:
        plain = from_json(response.model_dump_json(exclude=_VIEWS))
        output = None if response.output is None else _output_written(response.output, schema)
        text = to_json({"response": plain, "output": output}).decode()
        again = _parsed(text, schema)
    except (ValueError, TypeError):
        return None
    bare = response.model_copy(update={"route": (), "latency_ms": None})
    return text if again == bare and type(again.output) is type(bare.output) else None


def _read(text: str, request: AgentRequest) -> AgentResponse | None:
    """A kept answer, as it is given now; None if the store holds something else under that key."""
    try:
        response = _parsed(text, request.output_schema)
    except (ValueError, TypeError, KeyError):
        return None
    changes: dict[str, Any] = {"cost_estimate": 0.0, "cost_source": SOURCE}
    if response.usage is not None and response.usage.billed is not None:
        changes["usage"] = response.usage.model_copy(update={"billed": 0.0})
    return response.model_copy(update=changes)


def _parsed(text: str, schema: Any) -> AgentResponse:
    kept = from_json(text)
    if not isinstance(kept, dict):
        raise ValueError("not an answer")
    response = AgentResponse.from_dict(kept["response"])
    output = kept["output"]
    if output is None:
        return response
    if not (schema is None or isinstance(schema, Mapping)):
        output = _adapter(schema).validate_json(to_json(output))
    return response.model_copy(update={"output": output})


def _output_written(output: Any, schema: Any) -> Any:
    if schema is None or isinstance(schema, Mapping):
        return output
    return _adapter(schema).dump_python(output, mode="json", by_alias=True)


def _adapter(schema: Any) -> TypeAdapter[Any]:
    return schema if isinstance(schema, TypeAdapter) else TypeAdapter(schema)


def _rebuild(
    store: Store | None,
    ttl: float | None,
    when: Callable[[AgentRequest], bool] | None,
    clock: Callable[[], float] | None,
) -> Cache:
    return Cache(store, ttl=ttl, when=when, clock=clock)
