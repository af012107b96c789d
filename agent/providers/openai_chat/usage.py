"""Usage of chat completions, in all vendors' spellings."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ...types import Usage

_TICKS_PER_DOLLAR = 1e10
"""xAI reports cost in ticks. Its recorded replies agree with its prices at this rate."""

_BESIDE = {
    "citation_tokens": "output_citation_tokens",
    "num_search_queries": "web_searches",
    "num_sources_used": "web_sources",
}
_READ = {
    "audio_tokens": "input_audio_tokens",
    "image_tokens": "input_image_tokens",
    "video_tokens": "input_video_tokens",
}
_WRITTEN = {"audio_tokens": "output_audio_tokens", "image_tokens": "output_image_tokens"}


def read_usage(usage: Any) -> Usage | None:
    if not isinstance(usage, dict) or not usage:
        return None
    prompt = _group(usage.get("prompt_tokens_details"))
    completion = _group(usage.get("completion_tokens_details"))
    return Usage.from_counts(
        _first_number(usage.get("prompt_tokens")),
        _first_number(usage.get("completion_tokens")),
        total=_first_number(usage.get("total_tokens")),
        cache_read=_first_number(
            prompt.get("cached_tokens"),
            usage.get("prompt_cache_hit_tokens"),
            usage.get("cached_tokens"),
            usage.get("num_cached_tokens"),
            usage.get("cache_read_input_tokens"),
        ),
        cache_write=_first_number(
            prompt.get("cache_write_tokens"),
            prompt.get("cache_creation_tokens"),
            prompt.get("cache_creation_input_tokens"),
            usage.get("cache_creation_input_tokens"),
        ),
        reasoning=_first_number(completion.get("reasoning_tokens"), usage.get("reasoning_tokens")),
        details=_details(usage, prompt, completion),
        billed=billed(usage),
    )


def _details(usage: Mapping[str, Any], prompt: Mapping[str, Any], completion: Mapping[str, Any]) -> dict[str, Any]:
    """Other counts, which most replies lack."""
    found: dict[str, Any] = {}
    for counts, names in ((usage, _BESIDE), (prompt, _READ), (completion, _WRITTEN)):
        for key, count in counts.items():
            if count and key in names:
                found[names[key]] = count
    if "web_searches" not in found and (run := _group(usage.get("server_tool_use"))):
        found["web_searches"] = run.get("web_search_requests")
    return found


def _group(counts: Any) -> Mapping[str, Any]:
    return counts if isinstance(counts, dict) else {}


def billed(usage: Mapping[str, Any]) -> Any:
    """Cost in US dollars, if reported. With a user's own key, gateways report the vendor's cost separately."""
    cost = usage.get("cost")
    if isinstance(cost, dict):
        return cost.get("total_cost")
    # Zero ticks are reported where another party bills, such as Azure.
    if cost is None and isinstance(ticks := usage.get("cost_in_usd_ticks"), int | float) and ticks:
        return ticks / _TICKS_PER_DOLLAR
    if usage.get("is_byok") and isinstance(cost, int | float):
        upstream = _group(usage.get("cost_details")).get("upstream_inference_cost")
        return cost + upstream if isinstance(upstream, int | float) else cost
    return cost


def _first_number(*values: Any) -> int:
    for value in values:
        if value is not None and is_number(value):
            return int(value)
    return 0


def is_number(value: Any) -> bool:
    """Whether a count is a finite number: JSON numbers may exceed every float."""
    return isinstance(value, int) or (isinstance(value, float) and math.isfinite(value))
