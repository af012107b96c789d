"""Malformed responses decode completely or raise a typed error.

Recordings are changed at random but repeatable positions: values replaced, keys removed, events lost, repeated,
swapped or truncated. A decoded response survives storage and can be sent back.
"""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from agent import errors
from agent.engine.wire import Reply
from agent.types import AgentResponse, Message
from tests.support.corpus import HAS_RECORDINGS, Exchange, codec_for, exchanges

APIS = ("anthropic.messages", "gemini.generate", "openai.responses")
TIMES = 25 if HAS_RECORDINGS else 300
"""How often each recording is spoilt."""
ODD: tuple[Any, ...] = (None, 0, -1, 1.5, 1e308, "", "x", [], {}, [None], {"type": None}, True, 10**25, [[]], {"a": 1})


def decode_body(api: str, *, streamed: bool) -> list[Exchange]:
    found = exchanges(api)
    return [one for one in found if (one.stream is not None) is streamed and one.response["status"] == 200]


def spoilt(value: Any, chance: random.Random) -> Any:
    """The value with one thing in it changed."""
    if not isinstance(value, dict | list) or not value or chance.random() < 0.15:
        return chance.choice(ODD)
    copy: Any = dict(value) if isinstance(value, dict) else list(value)
    place: Any = chance.choice(list(copy)) if isinstance(copy, dict) else chance.randrange(len(copy))
    match chance.randrange(8):
        case 0:
            del copy[place]
        case 1:
            copy[place] = chance.choice(ODD)
        case _:
            copy[place] = spoilt(copy[place], chance)
    return copy


def spoilt_stream(events: list[Any], chance: random.Random) -> list[Any]:
    events = list(events)
    for _ in range(chance.choice((1, 1, 2, 4))):
        place, other = chance.randrange(len(events)), chance.randrange(len(events))
        match chance.randrange(8):
            case 0 if len(events) > 1:
                del events[place]
            case 1:
                events.insert(place, events[place])
            case 2:
                events[place], events[other] = events[other], events[place]
            case 3:
                del events[place + 1 :]
            case _:
                events[place] = spoilt(events[place], chance)
    return events


def events_in(exchange: Exchange) -> list[Any]:
    lines = (exchange.stream or b"").decode().splitlines()
    return [json.loads(line[5:]) for line in lines if line.startswith("data:") and line[5:].strip().startswith("{")]


def check_whole(answer: AgentResponse, exchange: Exchange) -> None:
    assert answer.stop_reason is not None
    stored = AgentResponse.model_validate_json(answer.model_dump_json())
    assert stored == answer
    codec, request, going_on = codec_for(exchange), exchange.agent_request, Message.user("Go on")
    sent = [codec.encode(request.with_messages(one.message, going_on), stream=False).body for one in (answer, stored)]
    assert sent[0] == sent[1]


@pytest.mark.malformed
@pytest.mark.parametrize("api", APIS)
def test_a_spoilt_stream_is_whole_or_fails_with_an_error_of_ours(api: str) -> None:
    chance = random.Random(api)  # repeatable on purpose
    whole = failed = 0
    for exchange in decode_body(api, streamed=True):
        events = events_in(exchange)
        for _ in range(TIMES if events else 0):
            decoder = codec_for(exchange).decoder({}, exchange.agent_request)
            for event in spoilt_stream(events, chance):
                decoder.feed(b"data: " + json.dumps(event).encode() + b"\n\n")
            decoder.end()
            decoder.partial()
            assert not (decoder.done and decoder.failure), "an end is reached or it is not"
            if decoder.done:
                whole += 1
                check_whole(decoder.response(), exchange)
            else:
                failed += 1
    assert whole > 100
    assert failed > 100


@pytest.mark.malformed
@pytest.mark.parametrize("api", APIS)
def test_a_spoilt_answer_is_whole_or_fails_with_an_error_of_ours(api: str) -> None:
    chance = random.Random(api)  # repeatable on purpose
    whole = failed = 0
    for exchange in decode_body(api, streamed=False):
        for _ in range(TIMES):
            body = spoilt(exchange.response["body"], chance)
            try:
                answer = codec_for(exchange).decode(Reply(200, {}, json.dumps(body).encode()), exchange.agent_request)
            except errors.AgentError:
                failed += 1
            else:
                whole += 1
                check_whole(answer, exchange)
    assert whole > 100
    assert failed > 100
