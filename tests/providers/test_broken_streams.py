"""Malformed streams: decoders report an error and never raise."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from agent import errors
from agent.engine.wire import MAX_REPLY_BYTES, Reply
from agent.http.sse import SseDecoder
from agent.types import AgentRequest, ToolSpec
from tests.support.corpus import APIS, Exchange, codec_for, exchanges

TIMES = 300
LONGEST = 60
JUNK: tuple[Any, ...] = (
    None,
    0,
    "",
    "x",
    [],
    {},
    [1],
    ["a"],
    {"a": 1},
    1.5,
    True,
    -1,
    10**30,
    [None],
    [{}],
    {"type": "x"},
    "{}",
    1e308,
)
CITY = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}, "required": ["city"]}
TOOLS = [ToolSpec(name=name, parameters=CITY, strict=True) for name in ("get_weather", "get_current_weather")]


def payloads(exchange: Exchange) -> list[Any]:
    """The events of a recorded stream that are JSON."""
    found = SseDecoder(MAX_REPLY_BYTES).feed(exchange.stream or b"")
    return [json.loads(payload) for payload in found if payload[:1] == b"{"]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inner:
        yield (*path, key)
        yield from places(item, (*path, key))


def broken(events: list[Any], rng: random.Random) -> list[Any]:
    """Up to three things wrong: a value, or an event that is missing, repeated, moved or nonsense."""
    events = copy.deepcopy(events)
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(events))
        match rng.choice(("value", "value", "value", "missing", "repeated", "moved", "nonsense")):
            case "value" if found := list(places(events[at])):
                *path, last = rng.choice(found)
                target = events[at]
                for key in path:
                    target = target[key]
                if isinstance(target, dict) and rng.random() < 0.3:
                    del target[last]
                else:
                    target[last] = copy.deepcopy(rng.choice(JUNK))
            case "missing" if len(events) > 1:
                del events[at]
            case "repeated":
                events.insert(rng.randrange(len(events) + 1), copy.deepcopy(events[at]))
            case "moved":
                events.append(events.pop(at))
            case _:
                events.insert(at, copy.deepcopy(rng.choice(JUNK)))
    return events


@pytest.mark.malformed
@pytest.mark.parametrize("api", APIS)
def test_a_broken_stream_never_raises(api: str, rng: random.Random) -> None:
    whole = [(one, events) for one in exchanges(api) if one.stream and 0 < len(events := payloads(one)) <= LONGEST]
    for _ in range(TIMES):
        exchange, events = rng.choice(whole)
        events = broken(events, rng)
        decoder = codec_for(exchange).decoder({}, AgentRequest(input="?", model=exchange.model, tools=TOOLS))
        for event in events:
            decoder.feed(b"data: " + json.dumps(event).encode() + b"\n\n")
            decoder.partial()
        decoder.feed(b"data: [DONE]\n\n")
        decoder.end()
        decoder.partial()
        if decoder.done and decoder.failure is None:
            decoder.response()


@pytest.mark.malformed
@pytest.mark.parametrize("api", APIS)
def test_a_broken_answer_raises_only_errors_of_ours(api: str, rng: random.Random) -> None:
    whole = [one for one in exchanges(api) if one.stream is None and isinstance(one.response["body"], dict)]
    for _ in range(TIMES):
        exchange = rng.choice(whole)
        codec, request = codec_for(exchange), AgentRequest(input="?", model=exchange.model, tools=TOOLS)
        reply = Reply(200, {}, json.dumps(broken([exchange.response["body"]], rng)[0]).encode())
        with suppress(errors.AgentError):
            codec.decode(reply, request)
        assert codec.decode_error(Reply(400, {}, reply.body), request).message
