"""Replay of recorded conversations."""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any

import pytest

from agent import errors
from agent.types import AgentRequest, Message, TextContent
from tests.support.cases import for_each
from tests.support.corpus import APIS, Exchange, codec_for, exchanges, needs_recordings, vendor
from tests.support.recording_checks import (
    check_answer,
    check_replay,
    check_usage,
    decode_recording,
    hash_text,
    signatures_in,
    strings_in,
)

ALL = [exchange for api in APIS for exchange in exchanges(api)]


def by_kind(*kinds: str) -> list[Exchange]:
    return [exchange for exchange in ALL if exchange.expected["kind"] in kinds]


@for_each("exchange", by_kind("message"), by=vendor)
def test_a_recorded_answer_reports_what_is_expected(exchange: Exchange) -> None:
    check_answer(exchange)


@for_each("exchange", [one for one in by_kind("message") if one.expected.get("signatures")], by=vendor)
def test_sealed_reasoning_survives_storage_and_goes_back_to_its_maker_unchanged(exchange: Exchange) -> None:
    check_replay(exchange)


@for_each("exchange", [one for one in by_kind("message") if one.expected.get("signatures")], by=vendor)
def test_sealed_reasoning_is_sent_to_no_other_model(exchange: Exchange) -> None:
    message = decode_recording(exchange).message
    if not any(isinstance(part, TextContent) or part.type == "tool_call" for part in message.parts):
        pytest.skip("nothing else was said")
    request = AgentRequest(model="another-model", messages=[Message.user("hi"), message], input="go on")
    wire = codec_for(exchange).encode(request, stream=False)
    assert signatures_in(exchange).isdisjoint({hash_text(text) for text in strings_in(json.loads(wire.body))})


@needs_recordings
def test_only_a_few_vendors_contradict_themselves() -> None:
    contradictions = Counter(
        exchange.provider
        for exchange in exchanges("openai.chat")
        if (usage := exchange.expected.get("usage"))
        and (
            ((usage["reasoning"] or 0) + usage["prompt"] + usage["completion"] == usage["total"] and usage["reasoning"])
            or (usage["reasoning"] or 0) > usage["completion"]
            or (usage["cached_read"] or 0) > usage["prompt"]
        )
    )
    assert contradictions == {"xai": 14, "vercel-gateway": 4, "openrouter": 1, "azure": 6}


@for_each("exchange", by_kind("error"), by=vendor)
def test_a_recorded_failure_is_a_typed_error_with_the_vendors_words(exchange: Exchange) -> None:
    error = codec_for(exchange).decode_error(exchange.reply, exchange.agent_request)
    expected = exchange.expected["error"]
    assert error.message == " ".join(expected["message"].split())
    assert error.status_code == expected["status"]
    assert error.provider == exchange.provider
    if expected["code"] or expected["type"]:
        assert error.code == str(expected["code"] or expected["type"])
    assert type(error) is KIND[expected["status"], _about(expected)]
    assert error.retryable == isinstance(error, errors.RateLimitError)
    assert error.retry_after == _has_retry_after(exchange)


def _about(expected: dict[str, Any]) -> str:
    too_long = ("context length", "prompt is too long", "total length of all messages is too long")
    if any(words in expected["message"] for words in too_long):
        return "context"
    return "model" if expected["code"] == "model_not_found" else ""


def _has_retry_after(exchange: Exchange) -> float | None:
    """Read the retry delay of a recorded error; no recording contains two different ones."""
    headers = exchange.response.get("headers") or {}
    if "retry-after" in headers:
        return float(headers["retry-after"])
    delay = re.search(r'"retryDelay": "(\d+)s"', json.dumps(exchange.response["body"]))
    return float(delay[1]) if delay else None


KIND: dict[tuple[int, str], type[errors.AgentError]] = {
    (400, ""): errors.BadRequestError,
    (400, "context"): errors.ContextLengthError,
    (401, ""): errors.AuthenticationError,
    (400, "model"): errors.ModelNotFoundError,
    (404, ""): errors.ModelNotFoundError,
    (404, "model"): errors.ModelNotFoundError,
    (429, ""): errors.RateLimitError,  # Google's, too: its words are of quotas, but it says when to come back
}


@for_each("exchange", by_kind("stream_error"), by=vendor)
def test_a_recorded_stream_that_fails_midway_keeps_what_had_come_and_says_why(exchange: Exchange) -> None:
    decoder = codec_for(exchange).decoder({}, exchange.agent_request)
    assert exchange.stream is not None
    decoder.feed(exchange.stream)
    decoder.end()
    assert not decoder.done
    assert decoder.failure is not None
    expected = exchange.expected
    assert decoder.failure.message == expected["error"]["message"]
    assert decoder.failure.code == str(expected["error"]["code"])
    partial = decoder.partial()
    assert (partial.text or "") == expected["text"]
    assert partial.thinking == expected["thinking"]
    assert partial.tool_calls == []
    check_usage(partial.usage, expected["usage"])


@needs_recordings
def test_the_recordings_are_all_there() -> None:
    kinds = Counter((exchange.api, exchange.expected["kind"]) for exchange in ALL)
    assert kinds == {
        ("openai.chat", "message"): 209,
        ("openai.chat", "error"): 21,
        ("openai.chat", "stream_error"): 2,
        ("openai.responses", "message"): 127,
        ("openai.responses", "error"): 6,
        ("openai.responses", "stream_error"): 1,
        ("anthropic.messages", "message"): 108,
        ("anthropic.messages", "error"): 7,
        ("gemini.generate", "message"): 111,
        ("gemini.generate", "error"): 5,
    }
