"""What the engine says piece by piece, each a JSON object: how far it is, what it writes, or why it does not."""

from __future__ import annotations

import json
from typing import Any


def is_progress(piece: bytes) -> bool:
    """Whether a piece tells how far the prompt has been read. Within a text, the quotes would be escaped."""
    return b'"prompt_progress":' in piece


def is_failure(piece: bytes) -> bool:
    return piece.startswith(b'{"error":')


def failure_status(piece: bytes) -> int:
    code = json.loads(piece)["error"].get("code")
    return code if isinstance(code, int) and 400 <= code < 600 else 500


def count_in(piece: bytes) -> int | None:
    """The prompt's tokens, as the first piece of an answer tells them; also of a prompt that is too long."""
    told = json.loads(piece)
    if is_failure(piece):
        count = told["error"].get("n_prompt_tokens")
    else:
        count = (told.get("prompt_progress") or {}).get("total")
    return count if isinstance(count, int) else None


def with_costs(piece: bytes) -> bytes:
    """The last piece with what the engine tells of its cache, where others tell it; and that it was free."""
    told: dict[str, Any] = json.loads(piece)
    usage: dict[str, Any] = told.get("usage") or {}
    cached = (told.get("timings") or {}).get("cache_n") or 0
    usage["prompt_tokens_details"] = {"cached_tokens": cached}
    usage["cost"] = 0
    told["usage"] = usage
    return json.dumps(told).encode()


_NO_END = b"now finding less tool calls"


def is_cut_off(piece: bytes) -> bool:
    """Whether a piece says, in the engine's words, that the limit came before the end of a call."""
    return is_failure(piece) and _NO_END in piece


def cut_off(last: bytes, prompt_tokens: int, limit: int) -> bytes:
    """The end of an answer that is cut off, as the engine tells it of all but calls.

    Args:
        last: The piece before, which knows whose answer it is.
        prompt_tokens: What was read.
        limit: What could be written, and so was.
    """
    told: dict[str, Any] = json.loads(last)
    told["choices"] = [{"finish_reason": "length", "index": 0, "delta": {}}]
    usage = {"completion_tokens": limit, "prompt_tokens": prompt_tokens, "total_tokens": limit + prompt_tokens}
    return json.dumps({**told, "usage": usage}, separators=(",", ":")).encode()
