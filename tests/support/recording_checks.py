"""Checks of decoded responses against the specification of a recording."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from typing import Any

from agent import errors
from agent.calls.call import Endpoint, stream
from agent.engine.context import Context
from agent.engine.drivers.simulated import Simulation
from agent.engine.wire import Answer, Limits
from agent.providers import Provider
from agent.types import AgentRequest, AgentResponse, Message, Origin, Role, StreamEvent, ToolResult, Usage, fold
from tests.support.corpus import Exchange, codec_for


def decode_recording(exchange: Exchange) -> AgentResponse:
    """Decode a recorded response, delivered in one chunk."""
    codec, request = codec_for(exchange), exchange.agent_request
    if exchange.stream is None:
        return codec.decode(exchange.reply, request)
    decoder = codec.decoder(exchange.response.get("headers") or {}, request)
    decoder.feed(exchange.stream)
    decoder.end()
    assert decoder.failure is None, decoder.failure
    assert decoder.done
    return decoder.response()


def events_of(exchange: Exchange, chunks: Iterable[bytes]) -> list[StreamEvent]:
    decoder = codec_for(exchange).decoder({}, exchange.agent_request)
    events = [event for chunk in chunks for event in decoder.feed(chunk)]
    events += decoder.end()
    if decoder.done:
        assert fold(events) == decoder.response()
    return events


def outcome(codec: Provider, exchange: Exchange, answer: Answer) -> str:
    """The name of what a stream ended with, through the flow that callers get."""
    call = stream(Endpoint(codec, Limits(), idle=60.0))
    simulation = Simulation(lambda request: answer)
    try:
        simulation.run(call(exchange.agent_request, Context()))
    except errors.AgentError as error:
        return type(error).__name__
    finally:
        assert simulation.open_bodies == 0
    return "success"


def check_answer(exchange: Exchange) -> None:
    """A recorded answer reports what a correct client reports."""
    response, expected = decode_recording(exchange), exchange.expected
    assert response.text == (expected["text"] or None)
    assert response.thinking == expected["thinking"]
    assert (response.refusal or "") == expected.get("refusal", "")
    assert response.model == expected["model"]
    assert (response.id or "") == (expected["response_id"] or "")
    assert (response.raw_stop_reason or "") == (expected["stop_reason"] or "")
    assert response.stop_reason is not None
    assert calls_of(response) == list_expected_calls(expected)
    check_usage(response.usage, expected["usage"])
    kept = {hash_text(text) for text in strings_in(response.model_dump(mode="json"))}
    assert signatures_in(exchange) <= kept


def check_replay(exchange: Exchange) -> None:
    """Sealed reasoning survives storage, and goes back to its maker unchanged."""
    message = Message.from_dict(json.loads(json.dumps(decode_recording(exchange).message.to_dict())))
    results = [ToolResult(tool_call_id=call.id, name=call.name, content="done") for call in message.tool_calls or ()]
    request = AgentRequest(
        model=exchange.model,
        messages=[Message.user("hi"), message, *([Message(Role.TOOL, results)] if results else [])],
        input="go on",
    )
    body = json.loads(codec_for(exchange).encode(request, stream=False).body)
    assert signatures_in(exchange) <= {hash_text(text) for text in strings_in(body)}


def signatures_in(exchange: Exchange) -> set[tuple[str, int]]:
    """Hashes of the opaque reasoning data in a recorded answer."""
    return {(signature["sha256"], signature["len"]) for signature in exchange.expected.get("signatures") or ()}


def calls_of(response: AgentResponse) -> list[tuple[str, dict[str, Any]]]:
    assert all(call.id for call in response.tool_calls), "every call has an id, given or made"
    assert len({call.id for call in response.tool_calls}) == len(response.tool_calls)
    assert all(call.invalid_arguments is None for call in response.tool_calls)
    return [(call.name, call.arguments) for call in response.tool_calls]


def list_expected_calls(expected: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """The shape before tools existed counts as a call, too: nothing else could be done with it."""
    calls = [
        (call["name"], call.get("arguments", {"input": call.get("custom_input")})) for call in expected["tool_calls"]
    ]
    if (legacy := expected.get("legacy_function_call")) is not None:
        calls.append((legacy["name"], json.loads(legacy["arguments"])))
    return calls


def check_usage(usage: Usage | None, expected: dict[str, Any] | None) -> None:
    """Compare usage with the recording, except for contradictory counts:

    * Reasoning counted beside the completion instead of in it (xAI, and Gemini behind Vercel's gateway; it is billed
      on top, as their own cost figures show): we report the sum as completion, so that it is not forgotten.
    * More cached tokens than prompt tokens (Grok on Azure): cached input is a part of the input.
    """
    if expected is None:
        assert usage is None
        return
    assert usage is not None
    prompt = expected.get("prompt_incl_cache", expected["prompt"]) or 0
    completion = expected.get("completion_incl_reasoning", expected["completion"]) or 0
    reasoning, cached = expected["reasoning"] or 0, expected["cached_read"] or 0
    beside = reasoning > completion or (reasoning and expected["total"] == prompt + completion + reasoning)
    assert usage.prompt_tokens == prompt
    assert usage.completion_tokens == (completion + reasoning if beside else completion)
    assert usage.reasoning_tokens == reasoning
    assert usage.total_tokens == max(expected["total"] or 0, usage.prompt_tokens + usage.completion_tokens)
    assert usage.cache_read_tokens == min(cached, prompt)
    assert usage.cache_write_tokens == (expected["cache_write"] or 0)


def hash_text(text: str) -> tuple[str, int]:
    return hashlib.sha256(text.encode()).hexdigest()[:16], len(text)


def strings_in(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from strings_in(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from strings_in(inner)


class Anything:
    """Contains whatever is looked for."""

    def __contains__(self, value: object) -> bool:
        return True


def collect_own_text(request: AgentRequest, home: Origin) -> set[str]:
    """Every text in the parts that a model made itself: among them what it would know again."""
    parts = (part for message in request.to_messages() for part in message.parts if part.origin == home)
    return {text for part in parts for text in strings_in(part.model_dump(mode="json"))}


def split_bytes(data: bytes, sizes: Iterator[int]) -> Iterator[bytes]:
    start = 0
    while start < len(data):
        size = next(sizes)
        yield data[start : start + size]
        start += size


def event_boundaries(data: bytes) -> list[int]:
    blank = b"\r\n\r\n" if b"\r\n\r\n" in data else b"\n\n"
    ends = [0]
    while (found := data.find(blank, ends[-1])) >= 0:
        ends.append(found + len(blank))
    return ends
