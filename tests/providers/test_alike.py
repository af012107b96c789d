"""Deltas that look alike are not parsed, and nobody can tell: the same events, words, counts and failures."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent import Agent, StreamEvent
from agent.providers import alike
from agent.providers.alike import Likeness, Run, pattern_of
from agent.types import AgentRequest, AgentResponse
from tests.conftest import WIRE
from tests.corpus import APIS as RECORDED_APIS
from tests.corpus import codec_for, exchanges

Json = dict[str, Any]


def chat_delta(text: str, number: int, **more: Any) -> Json:
    choice = {"index": 0, "delta": {"content": text}, "logprobs": None, "finish_reason": None}
    return {
        "id": "c1",
        "created": 1,
        "model": "m",
        "choices": [choice],
        "usage": None,
        "obfuscation": "x" * number,
    } | more


def responses_delta(text: str, number: int, **more: Any) -> Json:
    place = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
    return {
        "type": "response.output_text.delta",
        **place,
        "delta": text,
        "logprobs": [],
        "sequence_number": number,
    } | more


def anthropic_delta(text: str, number: int, **more: Any) -> Json:
    return {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}} | more


def gemini_delta(text: str, number: int, **more: Any) -> Json:
    counts = {"promptTokenCount": 7, "candidatesTokenCount": number, "totalTokenCount": 7 + number}
    candidate = {"content": {"parts": [{"text": text}], "role": "model"}, "index": 0}
    return {"candidates": [candidate], "usageMetadata": counts, "modelVersion": "m", "responseId": "r1"} | more


OPENINGS: dict[str, list[Json]] = {
    "openai-chat": [
        {"id": "c1", "model": "m", "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}
    ],
    "openai-responses": [
        {"type": "response.created", "response": {"id": "r1", "model": "m"}},
        {"type": "response.output_item.added", "output_index": 0, "item": {"type": "message", "id": "msg_1"}},
    ],
    "anthropic": [
        {
            "type": "message_start",
            "message": {"id": "m1", "model": "m", "usage": {"input_tokens": 7, "output_tokens": 1}},
        },
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    ],
    "gemini": [],
}
ENDINGS: dict[str, list[Json]] = {
    "openai-chat": [
        {"id": "c1", "model": "m", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
        {"id": "c1", "model": "m", "choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 9}},
    ],
    "openai-responses": [
        {"type": "response.completed", "response": {"id": "r1", "model": "m", "status": "completed", "output": []}}
    ],
    "anthropic": [
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 9}},
        {"type": "message_stop"},
    ],
    "gemini": [{"candidates": [{"content": {"parts": []}, "finishReason": "STOP", "index": 0}], "modelVersion": "m"}],
}
DELTAS: dict[str, Callable[..., Json]] = {
    "openai-chat": chat_delta,
    "openai-responses": responses_delta,
    "anthropic": anthropic_delta,
    "gemini": gemini_delta,
}
APIS = tuple(DELTAS)
every_api = pytest.mark.parametrize("api", APIS)
WORDS = [" the", " sea", ' "quoted"', "\n", " é", " \U0001f353", " back\\slash", "\t", " and", " on"]


def written(event: Json) -> bytes:
    return json.dumps(event, ensure_ascii=False, separators=(",", ":")).encode()


def framed(payload: bytes, end: bytes = b"\n\n") -> bytes:
    return b"data: " + payload + end


def whole(api: str, deltas: list[bytes], end: bytes = b"\n\n") -> list[bytes]:
    """The events of a stream with these payloads in the middle."""
    last = [b"[DONE]"] if api == "openai-chat" else []
    payloads = [*map(written, OPENINGS[api]), *deltas, *map(written, ENDINGS[api]), *last]
    return [framed(payload, end) for payload in payloads]


def deltas(api: str, texts: list[str]) -> list[bytes]:
    return [written(DELTAS[api](text, number)) for number, text in enumerate(texts, 1)]


Told = tuple[list[tuple[StreamEvent, Any]], AgentResponse | str]


def told(api: str, chunks: list[bytes]) -> Told:
    """The events with what they were read from, and the response or what was wrong."""
    codec = Agent(f"{api}:m", api_key="sk-0123456789abcdef", base_url="http://127.0.0.1").provider
    return decoded(codec, AgentRequest(input="?", model="m"), chunks)


def decoded(codec: Any, request: AgentRequest, chunks: list[bytes]) -> Told:
    decoder = codec.decoder({}, request)
    events: list[StreamEvent] = []
    for chunk in chunks:
        events += decoder.feed(chunk)
    events += decoder.end()
    outcome: AgentResponse | str
    if decoder.failure is not None:
        outcome = f"{decoder.failure} {decoder.partial()!r}"
    else:
        outcome = decoder.response() if decoder.done else decoder.partial()
    return [(event, event.raw) for event in events], outcome


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pattern is made of the first delta that can have one."""
    monkeypatch.setattr(alike, "_LEARN_AFTER", 0)


def parsed(monkeypatch: pytest.MonkeyPatch, tell: Callable[[], Told]) -> Told:
    """The same, with every event parsed."""
    with monkeypatch.context() as patch:
        patch.setattr(Run, "go_on", lambda *_: None)
        return tell()


def cuts(data: bytes, seed: int) -> list[bytes]:
    chance = random.Random(seed)
    places = sorted(chance.sample(range(1, len(data)), 40))
    return [data[start:end] for start, end in zip([0, *places], [*places, len(data)], strict=True)]


@every_api
@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n", b"\r\r"], ids=["LF", "CRLF", "CR"])
def test_a_stream_of_words_is_told_as_if_it_were_parsed_however_it_is_cut(
    api: str, end: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = whole(api, deltas(api, WORDS * 5), end)
    wanted = parsed(monkeypatch, lambda: told(api, events))
    data = b"".join(events)
    for chunks in (events, [data], *(cuts(data, seed) for seed in range(20))):
        assert told(api, chunks) == wanted


@every_api
def test_the_words_of_a_long_stream_are_not_parsed(api: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib import import_module

    module = import_module(f"agent.providers.{api.replace('-', '_')}.stream")
    parse, times = module.parse_json, 0

    def counted(data: bytes) -> Any:
        nonlocal times
        times += 1
        return parse(data)

    monkeypatch.setattr(module, "parse_json", counted)
    events, response = told(api, whole(api, deltas(api, [f" word {number}" for number in range(500)])))
    assert len(events) >= 500
    assert isinstance(response, AgentResponse)
    assert response.text == "".join(f" word {number}" for number in range(500))
    assert times < 25


def other(api: str) -> Iterator[tuple[str, bytes]]:
    """What looks like a delta of words, nearly."""
    delta = DELTAS[api]("odd", 20)
    yield "nothing is said", written(DELTAS[api]("", 20))
    yield "the same key twice", written(delta).replace(b'"odd"', b'"odd","content":"b","text":"b","delta":"b"', 1)
    yield "other bytes that mean the same", json.dumps(delta).encode()
    yield "an error", written(delta | {"error": {"message": "broken"}})
    yield "no UTF-8", written(delta).replace(b"odd", b"o\xffd")
    yield "an escape that means nothing", written(delta).replace(b"odd", b"o\\qd")
    yield "half a pair of surrogates", written(delta).replace(b"odd", b"o\\ud83cd")
    yield "a pair of surrogates", written(delta).replace(b"odd", b"o\\ud83c\\udf53d")
    yield "a bare newline", written(delta).replace(b"odd", b"o\nd")
    yield "a null", written(delta).replace(b'"odd"', b"null")
    yield "a number", written(delta).replace(b'"odd"', b"7")
    yield "cut short", written(delta)[:-2]
    yield "leading zeros", written(delta).replace(b":20", b":020")
    yield "no JSON at all", b"odd"
    match api:
        case "openai-chat":
            choice = delta["choices"][0]
            yield "the end", written(delta | {"choices": [choice | {"finish_reason": "length"}]})
            yield "another choice", written(delta | {"choices": [choice | {"index": 1}]})
            yield "logprobs", written(delta | {"choices": [choice | {"logprobs": {"content": [{"token": "a"}]}}]})
            yield "counts", written(delta | {"usage": {"prompt_tokens": 3, "completion_tokens": 4}})
            yield "thinking", written(delta | {"choices": [choice | {"delta": {"content": "a", "reasoning": "b"}}]})
        case "openai-responses":
            yield "another block", written(delta | {"content_index": 1})
            yield "another item", written(delta | {"output_index": 1, "item_id": "msg_2"})
            yield "a refusal", written(delta | {"type": "response.refusal.delta"})
            yield "logprobs", written(delta | {"logprobs": [{"token": "a", "logprob": -1.0}]})
        case "anthropic":
            yield "another block", written(delta | {"index": 1})
            yield "citations beside", written(delta | {"delta": delta["delta"] | {"citations": []}})
            yield "a thought", written(delta | {"delta": {"type": "thinking_delta", "thinking": "odd"}})
        case _:
            candidate = delta["candidates"][0]
            content = candidate["content"]
            thought = {"parts": [{"text": "odd", "thought": True}], "role": "model"}
            yield "the end", written(delta | {"candidates": [candidate | {"finishReason": "MAX_TOKENS"}]})
            yield "a thought", written(delta | {"candidates": [candidate | {"content": thought}]})
            yield (
                "two parts",
                written(
                    delta
                    | {"candidates": [candidate | {"content": content | {"parts": [{"text": "a"}, {"text": "b"}]}}]}
                ),
            )
            yield "another candidate", written(delta | {"candidates": [candidate | {"index": 1}]})
            yield "fewer counts", written(delta | {"usageMetadata": {"totalTokenCount": 90}})


ODD = [pytest.param(api, payload, id=f"{api}: {name}") for api in APIS for name, payload in other(api)]


@pytest.mark.parametrize(("api", "odd"), ODD)
def test_what_is_not_quite_alike_is_told_as_if_all_were_parsed(
    api: str, odd: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = deltas(api, WORDS * 3)
    for events in (
        whole(api, [*said[:20], odd, *said[20:]]),
        whole(api, [*said[:20], odd, *said[20:]])[:-3],  # it breaks off
    ):
        data = b"".join(events)
        # How many events come before a failure depends on how the bytes are cut, so the same cuts are compared.
        for chunks in (events, [data], cuts(data, 1), cuts(data, 2)):
            assert told(api, chunks) == parsed(monkeypatch, lambda chunks=chunks: told(api, chunks))  # type: ignore[misc]


@pytest.mark.usefixtures("eager")
@given(st.sampled_from(APIS), st.lists(st.text(st.characters(codec="utf-8"), max_size=8), max_size=12), st.booleans())
def test_any_words_are_told_as_if_they_were_parsed(api: str, texts: list[str], escaped: bool) -> None:
    payloads = [
        json.dumps(DELTAS[api](text, number), ensure_ascii=escaped).encode() for number, text in enumerate(texts)
    ]
    events = whole(api, payloads)
    with pytest.MonkeyPatch.context() as patch:
        wanted = parsed(patch, lambda: told(api, events))
    assert told(api, events) == wanted
    assert told(api, [b"".join(events)]) == wanted


@pytest.mark.skipif(not WIRE.exists(), reason="the recorded conversations are not here; set AGENT_WIRE_CORPUS")
@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("api", RECORDED_APIS)
def test_recorded_streams_are_told_as_if_they_were_parsed(api: str, monkeypatch: pytest.MonkeyPatch) -> None:
    taken, streams = 0, 0
    take = Run.take

    def counted(self: Run, chunk: bytes, events: list[StreamEvent]) -> bytes:
        nonlocal taken
        rest = take(self, chunk, events)
        taken += rest != chunk
        return rest

    for exchange in exchanges(api):
        if exchange.stream is None:
            continue
        streams += 1
        codec, request = codec_for(exchange), exchange.agent_request
        for chunks in ([exchange.stream], re.findall(rb".+?(?:\n\r?\n|$)", exchange.stream, re.DOTALL)):
            wanted = parsed(monkeypatch, lambda: decoded(codec, request, chunks))  # noqa: B023
            with monkeypatch.context() as patch:
                patch.setattr(Run, "take", counted)
                assert decoded(codec, request, chunks) == wanted, exchange.name
    assert streams > 0
    assert taken > 0, "no pattern has ever matched"


# Patterns


def test_a_pattern_leaves_only_the_words_and_the_open_keys_open() -> None:
    likeness = Likeness("text", "n", "pad")
    pattern = likeness.pattern_for(b'{"text":"a","n":1,"pad":"xy","m":2}')
    assert pattern is not None
    assert alike.fits(pattern, b'{"text":"b \\"c\\"","n":20,"pad":"","m":2}')
    assert not alike.fits(pattern, b'{"text":"b","n":20,"pad":"","m":3}')
    assert not alike.fits(pattern, b'{"text":"b","n":"20","pad":"","m":2}')
    assert not alike.fits(pattern, b'{"text":"b","n":20,"pad":"\\"","m":2}')
    assert likeness.pattern_for(b'{"text":"z","n":0,"pad":"q","m":2}') is pattern


@pytest.mark.parametrize(
    "payload", [b'{"text":"a","b":{"text":"c"}}', b'{"other":"a"}', b'{"text":7}', b'{"text":\n"a"}', b"{}" * 2000]
)
def test_what_has_no_single_place_for_words_has_no_pattern(payload: bytes) -> None:
    assert pattern_of(payload, b"text", frozenset()) is None


def test_streams_whose_deltas_keep_changing_give_up_making_patterns(monkeypatch: pytest.MonkeyPatch) -> None:
    made = 0
    make = alike.pattern_of

    def counted(payload: bytes, key: bytes, open_keys: frozenset[bytes]) -> Any:
        nonlocal made
        made += 1
        return make(payload, key, open_keys)

    monkeypatch.setattr(alike, "pattern_of", counted)
    payloads = [written(chat_delta("a", 1, **{f"new{number}": 1})) for number in range(200)]
    events, _ = told("openai-chat", whole("openai-chat", payloads))
    assert len(events) > 200
    assert 0 < made <= 16


# Events


def test_what_an_event_was_read_from_is_read_when_asked_for_and_stays_the_same() -> None:
    (event,) = StreamEvent.deltas("text_delta", ["a"], 0, [b'{"text":"a"}'])
    assert event.raw == {"text": "a"}
    assert event.raw is event.raw
    assert event == StreamEvent.text_delta("a", index=0)
    assert event.model_copy(update={"text": "b"}).raw == {"text": "a"}
    assert event.model_copy(update={"raw": None}).raw is None
    assert event.model_copy(update={"raw": 1}).raw == 1
    assert StreamEvent.model_validate(event.model_dump()) == event
