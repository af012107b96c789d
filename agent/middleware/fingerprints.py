"""Digests of requests: equal where the same would be sent, and never made of headers or keys."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Any

from ..types import AgentConfig, AgentRequest
from ..wire import WireRequest

_BOOKKEEPING = {"id", "timestamp", "parent_id", "usage", "error_message"}
"""What a message says about itself that no vendor is told."""
_NOT_ASKED = {"api_key", "headers", "timeout", "connect_timeout", "first_byte_timeout", "idle_timeout", "deadline"}
"""Settings of an agent that decide how it is asked, not what."""


def of_wire(provider: str, wire: WireRequest, schema: str) -> str:
    """Of a request as it would be sent: its address and its body. Beside them, what its output shall become."""
    return _digest(("wire", provider, wire.url, wire.body, schema))


def of_request(request: AgentRequest, targets: Iterable[str]) -> str:
    """Of a request that any of these could be asked."""
    return _digest(("routed", canonical(request), of_schema(request.output_schema), *targets))


def canonical(request: AgentRequest) -> str:
    """A request as JSON that is the same for equal questions, however long they may take."""
    exclude: Any = {"deadline": True, "messages": {"__all__": _BOOKKEEPING}}
    plain = json.loads(request.model_dump_json(exclude_none=True, exclude=exclude))
    return json.dumps(plain, sort_keys=True, separators=(",", ":"))


def of_agent(config: AgentConfig, tools: Iterable[Any]) -> str:
    """What an agent adds to every request."""
    offered = canonical(AgentRequest(tools=tuple(tools)))
    return f"{config.model_dump_json(exclude_none=True, exclude=_NOT_ASKED)} {offered}"


def of_schema(schema: Any) -> str:
    """What an output shall become: nothing, JSON, or a value of a type, which says more than its schema does."""
    if schema is None:
        return ""
    if isinstance(schema, Mapping):
        return "json"
    return f"{schema.__module__}.{schema.__qualname__}" if isinstance(schema, type) else repr(schema)


def _digest(parts: Iterable[str | bytes]) -> str:
    digest = sha256()
    for part in parts:
        data = part if isinstance(part, bytes) else part.encode("utf-8", "surrogatepass")
        digest.update(b"%d:" % len(data))  # or parts that are cut elsewhere would look the same
        digest.update(data)
    return digest.hexdigest()
