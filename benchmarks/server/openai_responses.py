"""OpenAI's Responses, as answers look today."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from benchmarks import workload
from benchmarks.server import openai_chat
from benchmarks.server.http_bytes import compact, encode_indented, event

HEADERS = openai_chat.HEADERS
RESPONSE = "resp_0b7d91f3c2a84e5f0068cfe1a0b2c88193a1d4e6f7b8c90a1b"
MESSAGE = "msg_0b7d91f3c2a84e5f0068cfe1a1d3f48193b2e5f7a8c9d01b2c"


def _usage(prompt: int, completion: int) -> dict[str, Any]:
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": completion,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": prompt + completion,
    }


def _response(
    status: str, output: list[dict[str, Any]], counts: tuple[int, int] | None, number: int = 0
) -> dict[str, Any]:
    return {
        "id": f"{RESPONSE}{number}",
        "object": "response",
        "created_at": openai_chat.CREATED,
        "status": status,
        "background": False,
        "billing": {"payer": "developer"},
        "completed_at": openai_chat.CREATED + 1 if status == "completed" else None,
        "error": None,
        "frequency_penalty": 0.0,
        "incomplete_details": None,
        "instructions": None,
        "max_output_tokens": workload.MAX_TOKENS,
        "max_tool_calls": None,
        "model": openai_chat.MODEL,
        "output": output,
        "parallel_tool_calls": True,
        "presence_penalty": 0.0,
        "previous_response_id": None,
        "prompt_cache_key": None,
        "prompt_cache_retention": None,
        "reasoning": {"effort": None, "summary": None},
        "safety_identifier": None,
        "service_tier": "default",
        "store": False,
        "temperature": 1.0,
        "text": {"format": {"type": "text"}, "verbosity": "medium"},
        "tool_choice": "auto",
        "tools": [],
        "top_logprobs": 0,
        "top_p": 1.0,
        "truncation": "disabled",
        "usage": None if counts is None else _usage(*counts),
        "user": None,
        "metadata": {},
    }


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "annotations": [], "logprobs": [], "text": text}


def _message(text: str) -> dict[str, Any]:
    return {"id": MESSAGE, "type": "message", "status": "completed", "content": [_part(text)], "role": "assistant"}


def results(body: bytes) -> int:
    return body.count(b'"function_call_output"')


def whole() -> bytes:
    return encode_indented(_response("completed", [_message(workload.ANSWER)], workload.USAGE))


def turn(results: int) -> bytes:
    counts = (90 + 40 * results, 21)
    if results == len(workload.CITIES):
        return encode_indented(_response("completed", [_message(workload.LOOP_ANSWER)], counts, results))
    call = {
        "id": f"fc_0b7d91f3c2a84e5f0068cfe1a2e4a08193c3f6a8b9d0e1{results}c",
        "type": "function_call",
        "status": "completed",
        "arguments": compact(workload.weather_arguments(workload.CITIES[results])).decode(),
        "call_id": f"call_kT8vQz3mXw5nBc7dJf9hLr{results}P",
        "name": workload.WEATHER_TOOL["name"],
    }
    return encode_indented(_response("completed", [call], counts, results))


def failure() -> tuple[int, bytes]:
    return openai_chat.failure()


def events(count: int) -> Iterable[bytes]:
    def list_events() -> Iterator[dict[str, Any]]:
        place = {"item_id": MESSAGE, "output_index": 0, "content_index": 0}
        text = "".join(workload.pieces(count))
        yield {"type": "response.created", "response": _response("in_progress", [], None)}
        yield {"type": "response.in_progress", "response": _response("in_progress", [], None)}
        item: dict[str, Any] = {"id": MESSAGE, "type": "message", "status": "in_progress"}
        item |= {"content": [], "role": "assistant"}
        yield {"type": "response.output_item.added", "output_index": 0, "item": item}
        yield {"type": "response.content_part.added", **place, "part": _part("")}
        for number, piece in enumerate(workload.pieces(count)):
            padding = "aX9kQ2mZ7tB4wC"[: 4 + number % 9]
            delta = {"delta": piece, "logprobs": [], "obfuscation": padding}
            yield {"type": "response.output_text.delta", **place, **delta}
        yield {"type": "response.output_text.done", **place, "text": text, "logprobs": []}
        yield {"type": "response.content_part.done", **place, "part": _part(text)}
        yield {"type": "response.output_item.done", "output_index": 0, "item": _message(text)}
        done = _response("completed", [_message(text)], workload.stream_usage(count))
        yield {"type": "response.completed", "response": done}

    for number, value in enumerate(list_events()):
        yield event({**value, "sequence_number": number}, str(value["type"]))
