"""Google's Gemini API, as answers look today."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from benchmarks import workload
from benchmarks.server.http_bytes import encode_indented, event

MODEL = "gemini-2.5-flash"
HEADERS = {
    "content-type": "application/json; charset=UTF-8",
    "vary": "Origin, X-Origin, Referer",
    "date": "Mon, 21 Sep 2026 14:13:20 GMT",
    "server": "scaffolding on HTTPServer2",
    "x-xss-protection": "0",
    "x-frame-options": "SAMEORIGIN",
    "x-content-type-options": "nosniff",
    "server-timing": "gfet4t7; dur=871",
    "x-gemini-service-tier": "standard",
    "alt-svc": 'h3=":443"; ma=2592000,h3-29=":443"; ma=2592000',
    "access-control-expose-headers": "Server-Timing",
    "x-goog-request-id": "a4d0c7e2b91f4c6d8e3a5b7f9c1d2e04",
}


def _usage(prompt: int, completion: int) -> dict[str, Any]:
    return {
        "promptTokenCount": prompt,
        "candidatesTokenCount": completion,
        "totalTokenCount": prompt + completion,
        "promptTokensDetails": [{"modality": "TEXT", "tokenCount": prompt}],
    }


def _response(part: dict[str, Any], reason: str | None, counts: tuple[int, int], number: int = 0) -> dict[str, Any]:
    candidate: dict[str, Any] = {"content": {"parts": [part], "role": "model"}}
    if reason:
        candidate["finishReason"] = reason
    return {
        "candidates": [{**candidate, "index": 0}],
        "usageMetadata": _usage(*counts),
        "modelVersion": MODEL,
        "responseId": f"kOHPaLm4Nq2RvdIPu8-x6A{number}",
    }


def results(body: bytes) -> int:
    return body.count(b'"functionResponse"') + body.count(b'"function_response"')


def whole() -> bytes:
    return encode_indented(_response({"text": workload.ANSWER}, "STOP", workload.USAGE))


def turn(results: int) -> bytes:
    counts = (90 + 40 * results, 21)
    if results == len(workload.CITIES):
        return encode_indented(_response({"text": workload.LOOP_ANSWER}, "STOP", counts, results))
    arguments = workload.weather_arguments(workload.CITIES[results])
    call = {"name": workload.WEATHER_TOOL["name"], "args": arguments}
    return encode_indented(_response({"functionCall": call}, "STOP", counts, results))


def failure() -> tuple[int, bytes]:
    message = "The model is overloaded. Please try again later."
    return 503, encode_indented({"error": {"code": 503, "message": message, "status": "UNAVAILABLE"}})


def events(count: int) -> Iterable[bytes]:
    prompt, _ = workload.stream_usage(count)
    for number, piece in enumerate(workload.pieces(count), 1):
        reason = "STOP" if number == count else None
        yield event(_response({"text": piece}, reason, (prompt, number)), end=b"\r\n\r\n")
