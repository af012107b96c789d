"""Usage of messages."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ...types import Usage

_DETAILS = (
    ("cache_creation", "ephemeral_5m_input_tokens", "cache_write_5m_tokens"),
    ("cache_creation", "ephemeral_1h_input_tokens", "cache_write_1h_tokens"),
    ("server_tool_use", "web_search_requests", "web_searches"),
    ("server_tool_use", "web_fetch_requests", "web_fetches"),
)
_SEPARATE_ITERATIONS = {"compaction": "compaction", "advisor_message": "advisor"}
"""Iterations that are billed in addition to the message, and the prefix of their counts in `Usage.details`."""


def read_usage(usage: Any) -> Usage | None:
    """Read usage. The API's `input_tokens` excludes cache reads and writes, while `prompt_tokens` includes them."""
    if not isinstance(usage, dict) or not usage:
        return None
    details = {name: _count(usage.get(group), key) for group, key, name in _DETAILS}
    for iteration in usage.get("iterations") or ():
        prefix = _SEPARATE_ITERATIONS.get(str(iteration.get("type"))) if isinstance(iteration, dict) else None
        if prefix is not None:
            for direction, tokens in (
                ("input", _prompt_tokens(iteration)),
                ("output", _count(iteration, "output_tokens")),
            ):
                name = f"{prefix}_{direction}_tokens"
                details[name] = details.get(name, 0) + tokens
    return Usage.from_counts(
        _prompt_tokens(usage),
        _count(usage, "output_tokens"),
        cache_read=_count(usage, "cache_read_input_tokens"),
        cache_write=_count(usage, "cache_creation_input_tokens"),
        reasoning=_count(usage.get("output_tokens_details"), "thinking_tokens"),
        details=details,
    )


def _prompt_tokens(counts: Mapping[str, Any]) -> int:
    kinds = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    return sum(_count(counts, kind) for kind in kinds)


def _count(counts: Any, key: str) -> int:
    """A count, or 0 if it is malformed: a response that was paid for must not fail for its usage."""
    value = counts.get(key) if isinstance(counts, dict) else None
    return int(value) if isinstance(value, int | float) and 0 <= value < math.inf else 0
