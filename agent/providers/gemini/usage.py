"""Usage of generateContent responses."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ...types import Usage


def read_usage(usage: Mapping[str, Any]) -> Usage:
    """Read `usageMetadata`. Thoughts are not part of the candidates' count, nor server-side tools of the prompt's."""
    thoughts, tools = _count(usage, "thoughtsTokenCount"), _count(usage, "toolUsePromptTokenCount")
    total = _count(usage, "totalTokenCount")
    counted = Usage.from_counts(
        _count(usage, "promptTokenCount"),
        _count(usage, "candidatesTokenCount") + thoughts,
        cache_read=_count(usage, "cachedContentTokenCount"),
        reasoning=thoughts,
        total=None if tools else total,
        details={
            "input_tool_tokens": tools,
            "input_audio_tokens": _modality_count(usage.get("promptTokensDetails"), "AUDIO"),
            "cache_audio_read_tokens": _modality_count(usage.get("cacheTokensDetails"), "AUDIO"),
            "output_audio_tokens": _modality_count(usage.get("candidatesTokensDetails"), "AUDIO"),
            "output_image_tokens": _modality_count(usage.get("candidatesTokensDetails"), "IMAGE"),
        },
    )
    return counted.model_copy(update={"total_tokens": max(total, counted.total_tokens)}) if tools else counted


def _count(usage: Mapping[str, Any], key: str) -> int:
    """A count, or 0 for anything else: a malformed count must not fail a response that was paid for."""
    value = usage.get(key)
    return int(value) if isinstance(value, int | float) and 0 <= value < math.inf else 0


def _modality_count(entries: Any, modality: str) -> int:
    if not isinstance(entries, list):
        return 0
    return sum(
        _count(entry, "tokenCount")
        for entry in entries
        if isinstance(entry, dict) and entry.get("modality") == modality
    )
