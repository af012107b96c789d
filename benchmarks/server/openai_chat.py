"""OpenAI's Chat Completions, as answers look today."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from benchmarks import workload
from benchmarks.server.http_bytes import compact, encode_indented, event

MODEL = "gpt-4o-2024-08-06"
CREATED = 1790000000
HEADERS = {
    "date": "Mon, 21 Sep 2026 14:13:20 GMT",
    "content-type": "application/json",
    "connection": "keep-alive",
    "access-control-expose-headers": "X-Request-ID, CF-Ray",
    "openai-organization": "benchmark-user",
    "openai-processing-ms": "913",
    "openai-project": "proj_Jw7sKq2mVx9bTn4cRf6yLd1h",
    "openai-version": "2020-10-01",
    "x-envoy-upstream-service-time": "927",
    "x-ratelimit-limit-requests": "10000",
    "x-ratelimit-limit-tokens": "2000000",
    "x-ratelimit-remaining-requests": "9999",
    "x-ratelimit-remaining-tokens": "1999984",
    "x-ratelimit-reset-requests": "6ms",
    "x-ratelimit-reset-tokens": "0s",
    "x-request-id": "req_5f0c2d7b91e84a6c8d3b2f4e6a7c9d01",
    "strict-transport-security": "max-age=31536000; includeSubDomains; preload",
    "x-content-type-options": "nosniff",
    "cf-cache-status": "DYNAMIC",
    "server": "cloudflare",
    "cf-ray": "9a1b2c3d4e5f6071-CDG",
    "alt-svc": 'h3=":443"; ma=86400',
}


def usage(prompt: int, completion: int) -> dict[str, Any]:
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": 0, "audio_tokens": 0},
        "completion_tokens_details": {
            "reasoning_tokens": 0,
            "audio_tokens": 0,
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
        },
    }


def _completion(message: dict[str, Any], reason: str, counts: tuple[int, int], number: int = 0) -> bytes:
    return encode_indented(
        {
            "id": f"chatcmpl-DBx7Qm2KsVt9LpYfRn4WcJh6ZaEo{number}",
            "object": "chat.completion",
            "created": CREATED,
            "model": MODEL,
            "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": reason}],
            "usage": usage(*counts),
            "service_tier": "default",
            "system_fingerprint": "fp_4b21c9e7d0",
        }
    )


def _message(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text, "refusal": None, "annotations": []}


def results(body: bytes) -> int:
    return body.count(b'"tool_call_id"')


def whole() -> bytes:
    return _completion(_message(workload.ANSWER), "stop", workload.USAGE)


def turn(results: int) -> bytes:
    counts = (90 + 40 * results, 21)
    if results == len(workload.CITIES):
        return _completion(_message(workload.LOOP_ANSWER), "stop", counts, results)
    arguments = compact(workload.weather_arguments(workload.CITIES[results])).decode()
    function = {"name": workload.WEATHER_TOOL["name"], "arguments": arguments}
    call = {"id": f"call_kT8vQz3mXw5nBc7dJf9hLr{results}P", "type": "function", "function": function}
    message = {"role": "assistant", "content": None, "tool_calls": [call], "refusal": None, "annotations": []}
    return _completion(message, "tool_calls", counts, results)


def failure() -> tuple[int, bytes]:
    message = "The server is currently overloaded with other requests. Sorry about that! Please retry later."
    error = {"message": message, "type": "server_error", "param": None, "code": "service_unavailable"}
    return 503, encode_indented({"error": error})


def _chunk(choices: list[dict[str, Any]], number: int, **more: Any) -> bytes:
    return event(
        {
            "id": "chatcmpl-DBx7Qm2KsVt9LpYfRn4WcJh6ZaEo1",
            "object": "chat.completion.chunk",
            "created": CREATED,
            "model": MODEL,
            "service_tier": "default",
            "system_fingerprint": "fp_4b21c9e7d0",
            "choices": choices,
            "usage": None,
            **more,
            # Padding against observers who guess words from sizes: the vendor really sends it.
            "obfuscation": "aX9kQ2mZ7tB4wC"[: 4 + number % 9],
        }
    )


def _choice(delta: dict[str, Any], reason: str | None = None) -> list[dict[str, Any]]:
    return [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}]


def events(count: int) -> Iterable[bytes]:
    def chunks() -> Iterator[bytes]:
        yield _chunk(_choice({"role": "assistant", "content": "", "refusal": None}), 0)
        for number, piece in enumerate(workload.pieces(count)):
            yield _chunk(_choice({"content": piece}), number)
        yield _chunk(_choice({}, "stop"), 1)
        yield _chunk([], 2, usage=usage(*workload.stream_usage(count)))
        yield b"data: [DONE]\n\n"

    return chunks()
