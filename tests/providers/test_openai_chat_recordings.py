"""What the codec makes of real traffic: each recorded answer reports what a correct client reports."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from agent import errors
from agent.types import AgentResponse, Usage
from tests.conftest import WIRE
from tests.corpus import Exchange, chat_codec, exchanges

pytestmark = pytest.mark.skipif(not WIRE.exists(), reason="no recordings: set AGENT_WIRE_CORPUS")

CHAT = exchanges("openai.chat") if WIRE.exists() else ()


def by_kind(*kinds: str) -> list[Exchange]:
    return [exchange for exchange in CHAT if exchange.expected["kind"] in kinds]


def decoded(exchange: Exchange) -> AgentResponse:
    codec, request = chat_codec(exchange.provider), exchange.agent_request
    if exchange.stream is None:
        return codec.decode(exchange.reply, request)
    decoder = codec.decoder(exchange.response.get("headers") or {}, request)
    decoder.feed(exchange.stream)
    decoder.end()
    assert decoder.failure is None, decoder.failure
    assert decoder.done
    return decoder.response()


@pytest.mark.parametrize("exchange", by_kind("message"), ids=lambda exchange: exchange.name)
def test_a_recorded_answer_reports_what_is_expected(exchange: Exchange) -> None:
    response, expected = decoded(exchange), exchange.expected
    assert response.text == (expected["text"] or None)
    assert response.thinking == expected["thinking"]
    assert (response.refusal or "") == expected.get("refusal", "")
    assert response.model == expected["model"]
    assert (response.id or "") == (expected["response_id"] or "")
    assert (response.raw_stop_reason or "") == (expected["stop_reason"] or "")
    assert calls_of(response) == expected_calls(expected)
    check_usage(response.usage, expected["usage"])
    check_signatures(response, expected.get("signatures") or [])


def calls_of(response: AgentResponse) -> list[tuple[str, dict[str, Any]]]:
    assert all(call.id for call in response.tool_calls), "every call has an id, given or made"
    assert len({call.id for call in response.tool_calls}) == len(response.tool_calls)
    assert all(call.invalid_arguments is None for call in response.tool_calls)
    return [(call.name, call.arguments) for call in response.tool_calls]


def expected_calls(expected: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """The shape before tools existed counts as a call, too: nothing else could be done with it."""
    calls = [
        (call["name"], call.get("arguments", {"input": call.get("custom_input")})) for call in expected["tool_calls"]
    ]
    if (legacy := expected.get("legacy_function_call")) is not None:
        calls.append((legacy["name"], json.loads(legacy["arguments"])))
    return calls


def check_usage(usage: Usage | None, expected: dict[str, Any] | None) -> None:
    """What the recording says, but for counts that contradict each other and so cannot all be kept:

    * Reasoning counted beside the completion instead of in it (xAI, and Gemini behind Vercel's gateway; it is billed
      on top, as their own cost figures show): we report the sum as completion, so that it is not forgotten.
    * More cached tokens than prompt tokens (Grok on Azure): cached input is a part of the input.
    """
    if expected is None:
        assert usage is None
        return
    assert usage is not None
    prompt, completion = expected.get("prompt_incl_cache", expected["prompt"]), expected["completion"]
    reasoning, cached = expected["reasoning"] or 0, expected["cached_read"] or 0
    beside = reasoning > completion or (reasoning and expected["total"] == prompt + completion + reasoning)
    assert usage.prompt_tokens == prompt
    assert usage.completion_tokens == (completion + reasoning if beside else completion)
    assert usage.reasoning_tokens == reasoning
    assert usage.total_tokens == max(expected["total"], usage.prompt_tokens + usage.completion_tokens)
    assert usage.cache_read_tokens == min(cached, prompt)
    assert usage.cache_write_tokens == (expected["cache_write"] or 0)


def test_only_a_few_vendors_contradict_themselves() -> None:
    contradictions = Counter(
        exchange.provider
        for exchange in CHAT
        if (usage := exchange.expected.get("usage"))
        and (
            ((usage["reasoning"] or 0) + usage["prompt"] + usage["completion"] == usage["total"] and usage["reasoning"])
            or (usage["reasoning"] or 0) > usage["completion"]
            or (usage["cached_read"] or 0) > usage["prompt"]
        )
    )
    assert contradictions == {"xai": 14, "vercel-gateway": 4, "openrouter": 1, "azure": 6}


def check_signatures(response: AgentResponse, expected: list[dict[str, Any]]) -> None:
    """Opaque reasoning data survives to the letter, wherever in the answer it stood."""
    found = set()
    for part in response.content:
        for text in strings_in(part.provider_data):
            found.add((hashlib.sha256(text.encode()).hexdigest()[:16], len(text)))
    for signature in expected:
        assert (signature["sha256"], signature["len"]) in found


def strings_in(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from strings_in(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from strings_in(inner)


@pytest.mark.parametrize("exchange", by_kind("error"), ids=lambda exchange: exchange.name)
def test_a_recorded_failure_is_a_typed_error_with_the_vendors_words(exchange: Exchange) -> None:
    error = chat_codec(exchange.provider).decode_error(exchange.reply, exchange.agent_request)
    expected = exchange.expected["error"]
    assert error.message == expected["message"]
    assert error.status_code == expected["status"]
    assert error.provider == exchange.provider
    if expected["code"] or expected["type"]:
        assert error.code == str(expected["code"] or expected["type"])
    assert type(error) is KIND[expected["status"], "context" if "length" in expected["message"] else ""]
    assert error.retryable == isinstance(error, errors.RateLimitError)


KIND: dict[tuple[int, str], type[errors.AgentError]] = {
    (400, ""): errors.BadRequestError,
    (400, "context"): errors.ContextLengthError,
    (401, ""): errors.AuthenticationError,
    (404, ""): errors.ModelNotFoundError,
    (429, ""): errors.RateLimitError,
}


@pytest.mark.parametrize("exchange", by_kind("stream_error"), ids=lambda exchange: exchange.name)
def test_a_recorded_stream_that_fails_midway_keeps_what_had_come_and_says_why(exchange: Exchange) -> None:
    decoder = chat_codec(exchange.provider).decoder({}, exchange.agent_request)
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


def test_the_recordings_are_all_there() -> None:
    kinds = [exchange.expected["kind"] for exchange in CHAT]
    assert (kinds.count("message"), kinds.count("error"), kinds.count("stream_error")) == (209, 21, 2)
