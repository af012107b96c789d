"""Anthropic's Messages, as answers look today."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from benchmarks import workload
from benchmarks.server.http_bytes import compact, event

MESSAGE = "msg_01Qx7vKt2mLp9YfWn4JhRd"
MODEL = "claude-sonnet-5"
HEADERS = {
    "date": "Mon, 21 Sep 2026 14:13:20 GMT",
    "content-type": "application/json",
    "connection": "keep-alive",
    "anthropic-ratelimit-input-tokens-limit": "2000000",
    "anthropic-ratelimit-input-tokens-remaining": "1999000",
    "anthropic-ratelimit-input-tokens-reset": "2026-09-21T14:13:20Z",
    "anthropic-ratelimit-output-tokens-limit": "400000",
    "anthropic-ratelimit-output-tokens-remaining": "400000",
    "anthropic-ratelimit-output-tokens-reset": "2026-09-21T14:13:20Z",
    "anthropic-ratelimit-requests-limit": "4000",
    "anthropic-ratelimit-requests-remaining": "3999",
    "anthropic-ratelimit-requests-reset": "2026-09-21T14:13:19Z",
    "anthropic-ratelimit-tokens-limit": "2400000",
    "anthropic-ratelimit-tokens-remaining": "2399000",
    "anthropic-ratelimit-tokens-reset": "2026-09-21T14:13:20Z",
    "anthropic-organization-id": "3c1f7a52-9d84-4b6e-8a0d-5e2b7c91f604",
    "request-id": "req_011CdR7vQx2mKt9LpYfWn4Jh",
    "strict-transport-security": "max-age=31536000; includeSubDomains; preload",
    "x-envoy-upstream-service-time": "1412",
    "via": "1.1 google",
    "cf-cache-status": "DYNAMIC",
    "x-robots-tag": "none",
    "server": "cloudflare",
    "cf-ray": "9a1b2c3d4e5f6071-CDG",
}


def _usage(prompt: int, completion: int) -> dict[str, Any]:
    return {
        "input_tokens": prompt,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
        "cache_creation": {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 0},
        "output_tokens": completion,
        "service_tier": "standard",
        "inference_geo": "not_available",
    }


def _message(
    content: list[dict[str, Any]], reason: str | None, counts: tuple[int, int], number: int = 0
) -> dict[str, Any]:
    """Build a message. Each response of a loop has its own id, by which clients distinguish messages."""
    return {
        "model": MODEL,
        "id": f"{MESSAGE}{number}Z",
        "type": "message",
        "role": "assistant",
        "content": content,
        "stop_reason": reason,
        "stop_sequence": None,
        "usage": _usage(*counts),
    }


def results(body: bytes) -> int:
    """Count tool results; the SDK's tool runner refers to the previous message instead of sending it."""
    continued = body.find(b'"previous_message_id"')
    if continued < 0:
        return body.count(b'"tool_use_id"')
    return int(body[body.index(MESSAGE.encode(), continued) + len(MESSAGE) :][:1]) + 1


def whole() -> bytes:
    return compact(_message([{"type": "text", "text": workload.ANSWER}], "end_turn", workload.USAGE))


def turn(results: int) -> bytes:
    counts = (390 + 40 * results, 58)
    if results == len(workload.CITIES):
        return compact(_message([{"type": "text", "text": workload.LOOP_ANSWER}], "end_turn", counts, results))
    call = {
        "type": "tool_use",
        "id": f"toolu_01Vx8Qz3mXw5nBc7dJf9hL{results}P",
        "name": workload.WEATHER_TOOL["name"],
        "input": workload.weather_arguments(workload.CITIES[results]),
        "caller": {"type": "direct"},
    }
    return compact(_message([call], "tool_use", counts, results))


def failure() -> tuple[int, bytes]:
    error = {"type": "overloaded_error", "message": "Overloaded"}
    return 503, compact({"type": "error", "error": error, "request_id": HEADERS["request-id"]})


def events(count: int) -> Iterable[bytes]:
    def encode_event(value: dict[str, Any]) -> bytes:
        return event(value, str(value["type"]))

    prompt, completion = workload.stream_usage(count)
    yield encode_event({"type": "message_start", "message": _message([], None, (prompt, 1))})
    yield encode_event({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}})
    yield encode_event({"type": "ping"})
    for piece in workload.pieces(count):
        delta = {"type": "text_delta", "text": piece}
        yield encode_event({"type": "content_block_delta", "index": 0, "delta": delta})
    yield encode_event({"type": "content_block_stop", "index": 0})
    counts = {"input_tokens": prompt, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0}
    ending = {"stop_reason": "end_turn", "stop_sequence": None}
    yield encode_event({"type": "message_delta", "delta": ending, "usage": {**counts, "output_tokens": completion}})
    yield encode_event({"type": "message_stop"})
