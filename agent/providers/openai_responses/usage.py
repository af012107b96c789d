"""Usage of responses, in all vendors' spellings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ...types import Usage
from ..openai_chat.usage import billed, is_number


def read_usage(response: Mapping[str, Any], items: Iterable[Mapping[str, Any]]) -> Usage | None:
    """Read the usage of a response. Searches are billed by the number of search items."""
    usage = response.get("usage")
    if not isinstance(usage, dict) or not usage:
        return None
    read, written = _group(usage.get("input_tokens_details")), _group(usage.get("output_tokens_details"))
    return Usage.from_counts(
        _first_number(usage, "input_tokens", "prompt_tokens"),
        _first_number(usage, "output_tokens", "completion_tokens"),
        total=_first_number(usage, "total_tokens"),
        cache_read=_first_number(read, "cached_tokens", "cache_read_tokens"),
        cache_write=_first_number(read, "cache_write_tokens", "cache_creation_tokens"),
        reasoning=_first_number(written, "reasoning_tokens"),
        details=_details(response, usage, items),
        billed=billed(usage),
    )


def _details(
    response: Mapping[str, Any], usage: Mapping[str, Any], items: Iterable[Mapping[str, Any]]
) -> dict[str, Any]:
    reported = _group(_group(response.get("tool_usage")).get("web_search"))
    run = _group(usage.get("server_side_tool_usage_details"))
    searches = reported.get("num_requests", run.get("web_search_calls"))
    if searches is None:
        searches = sum(map(_is_search, items))
    return {"web_searches": searches, "code_executions": run.get("code_interpreter_calls")}


def _is_search(item: Mapping[str, Any]) -> bool:
    """Whether an item is a search. Opening a result is a call of the same type, and is not billed."""
    return item.get("type") == "web_search_call" and _group(item.get("action")).get("type") in (None, "search")


def _group(counts: Any) -> Mapping[str, Any]:
    return counts if isinstance(counts, dict) else {}


def _first_number(counts: Mapping[str, Any], *names: str) -> int | None:
    for name in names:
        count = counts.get(name)
        if count is not None and is_number(count):
            return int(count)
    return None
