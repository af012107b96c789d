"""Answers that are good HTTP and no answers: something else with status 200, or JSON with something wrong in it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from ...wire import Answer
from .error_bodies import error_answer
from .fault import BOTH, JSON, SSE, STREAM, WHOLE, Exchange, Fault, Form, Kind, fault, payload_of

HTML = (
    b"<!DOCTYPE html><html><head><title>Welcome</title></head><body><p>Please accept our terms to use this network."
    b"</p></body></html>"
)

# Something else with status 200.


def _instead(name: str, about: str, body: bytes, content_type: str = "application/json") -> Fault:
    def apply(exchange: Exchange) -> Answer:
        return exchange.saying(*([body] if body else []), headers={"content-type": content_type})

    return Fault(name=name, about=about, kind="body", apply=apply, replaces=True)


INSTEAD = (
    _instead("empty-body", "Nothing, under a head that promises an answer.", b""),
    _instead("empty-stream", "Nothing, under a head that promises events.", b"", "text/event-stream"),
    _instead("null", "The JSON value null.", b"null"),
    _instead("empty-object", "An object without anything in it.", b"{}"),
    _instead("empty-list", "A list without anything in it.", b"[]"),
    _instead("a-number", "A number.", b"42"),
    _instead("a-string", "A string.", b'"hello"'),
    _instead("a-boolean", "The JSON value true.", b"true"),
    _instead("html-page", "A page, such as the one that asks for a login.", HTML, "text/html; charset=utf-8"),
    _instead("html-page-as-json", "A page, labelled as JSON.", HTML),
    _instead("html-page-as-stream", "A page, labelled as a stream of events.", HTML, "text/event-stream"),
    _instead("plain-text", "A sentence.", b"Service is warming up.", "text/plain"),
    _instead("another-shape", "JSON of some other service.", b'{"status": "ok", "items": [1, 2, 3]}'),
    _instead("error-as-text", "An error that is only a text.", b'{"error": "something went wrong"}'),
    _instead("error-as-list", "An error within a list.", b'[{"error": {"code": 500, "message": "broken"}}]'),
    _instead("binary", "Bytes that are no text.", bytes(range(256)), "application/octet-stream"),
)


@fault("body", replaces=True)
def failure_with_200(exchange: Exchange) -> Answer:
    """The vendor's own words for a failure, with the status of a success."""
    return error_answer(exchange.request, "failing", 200)


@fault("body", replaces=True)
def rate_limit_with_200(exchange: Exchange) -> Answer:
    """The vendor's own words for too many requests, with the status of a success."""
    return error_answer(exchange.request, "rate", 200)


@fault("body", replaces=True)
def credit_gone_with_200(exchange: Exchange) -> Answer:
    """The vendor's own words for an empty account, with the status of a success."""
    return error_answer(exchange.request, "credit", 200)


@fault("body", forms=STREAM)
def answer_of_another_api(exchange: Exchange) -> Answer:
    """A stream in a format that nobody speaks."""
    return exchange.saying(
        b'{"delta": "Hello"}\n{"delta": " there"}\n', headers={"content-type": "application/x-ndjson"}
    )


@fault("body", forms=WHOLE)
def stream_instead(exchange: Exchange) -> Answer:
    """A stream of events where one answer was asked for."""
    return exchange.saying(b"data: " + exchange.body + b"\n\ndata: [DONE]\n\n", headers=SSE)


@fault("body", forms=STREAM)
def whole_instead(exchange: Exchange) -> Answer:
    """One JSON value where a stream of events was asked for."""
    return exchange.saying(payload_of(exchange.events[0]), headers=JSON)


@fault("body", forms=STREAM)
def events_as_list(exchange: Exchange) -> Answer:
    """The events as one JSON list, as one vendor sends them that was not asked for server-sent events."""
    payloads = [payload for event in exchange.events if (payload := payload_of(event))[:1] == b"{"]
    return exchange.saying(b"[" + b",\n".join(payloads) + b"]", headers=JSON)


# JSON with something wrong in it: the body of a whole answer, or an event in the middle of a stream.


def _json_fault(name: str, about: str, spoil: Callable[[bytes], bytes], forms: frozenset[Form] = BOTH) -> Fault:
    kind: Kind = "json"

    def apply(exchange: Exchange) -> Answer:
        if not exchange.streamed:
            return exchange.saying(spoil(exchange.body))
        half, (following, *rest) = exchange.first_half, exchange.second_half
        return exchange.saying(*half, b"data: " + spoil(payload_of(following)) + b"\n\n", *rest)

    return Fault(name=name, about=about, kind=kind, apply=apply, forms=forms)


def _with_member(value: bytes) -> Callable[[bytes], bytes]:
    """Adds a member that no API knows: a value that cannot be read spoils everything around it."""
    return lambda good: good.rstrip()[:-1] + b', "x_added": ' + value + b"}"


def _numbers_for_texts(value: Any) -> Any:
    """What kind of thing an object is stays as it was: of an unknown kind, nothing is known to be wrong."""
    if isinstance(value, dict):
        return {
            key: item if key in ("type", "object", "status") else _numbers_for_texts(item)
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [_numbers_for_texts(item) for item in value]
    return 7 if isinstance(value, str) else value


def _texts_for_containers(value: dict[str, Any]) -> dict[str, Any]:
    return {key: "text" if isinstance(item, dict | list) else item for key, item in value.items()}


def _rewritten(change: Callable[[dict[str, Any]], Any]) -> Callable[[bytes], bytes]:
    def spoil(good: bytes) -> bytes:
        value = json.loads(good) if good[:1] == b"{" else {}  # some events are no JSON
        return json.dumps(change(value)).encode()

    return spoil


SPOILT = (
    _json_fault("json-truncated", "Half of a JSON value.", lambda good: good[: len(good) // 2]),
    _json_fault("json-with-rest", "JSON, and then something else.", lambda good: good + b" and so on"),
    _json_fault("json-twice", "The same JSON twice.", lambda good: good + good),
    _json_fault("json-with-single-quotes", "JSON as some languages print it.", lambda good: good.replace(b'"', b"'")),
    _json_fault("json-without-quotes", "Keys without quotes.", lambda good: b"{id: 1}"),
    _json_fault("json-with-comma", "A comma too many.", lambda good: good.rstrip()[:-1] + b",}"),
    _json_fault("json-in-utf-16", "JSON in an encoding of two bytes.", lambda good: good.decode().encode("utf-16-be")),
    _json_fault("json-not-utf-8", "A byte that is no character.", _with_member(b'"caf\xe9"')),
    _json_fault("json-with-nan", "A number that is none.", _with_member(b"NaN")),
    _json_fault("json-with-infinity", "A number without end.", _with_member(b"Infinity")),
    _json_fault("json-with-minus-infinity", "The other number without end.", _with_member(b"-Infinity")),
    _json_fault("json-with-lone-surrogate", "Half of a character, escaped.", _with_member(b'"\\ud83d"')),
    _json_fault("json-with-control-character", "A line break within a text.", _with_member(b'"a\x01b"')),
    _json_fault("json-with-huge-integer", "An integer of 5,000 digits.", _with_member(b"9" * 5000)),
    _json_fault("json-nested-70-deep", "A little deeper than is taken.", _with_member(b"[" * 70 + b"1" + b"]" * 70)),
    _json_fault("json-nested-200000-deep", "So deep that parsers fall over.", lambda good: b"[" * 200_000),
    _json_fault("json-with-numbers-for-texts", "Numbers where texts belong.", _rewritten(_numbers_for_texts)),
    _json_fault(
        "json-with-texts-for-lists", "Texts where lists and objects belong.", _rewritten(_texts_for_containers)
    ),
    _json_fault(
        "json-with-nulls", "Null in the place of everything.", _rewritten(lambda good: dict.fromkeys(good)), WHOLE
    ),
)

HARMLESS = (
    Fault(
        name="unknown-members",
        about="Members that no API has had so far.",
        kind="harmless",
        apply=lambda exchange: _everywhere(exchange, _with_member(b'{"a": [1, null]}')),
        harmless=BOTH,
    ),
    Fault(
        name="label-wrong",
        about="The right answer, labelled as something else.",
        kind="harmless",
        apply=lambda exchange: exchange.saying(exchange.body, headers={"content-type": "text/plain"}),
        harmless=BOTH,
    ),
    Fault(
        name="label-missing",
        about="The right answer, not labelled at all.",
        kind="harmless",
        apply=lambda exchange: exchange.saying(exchange.body, headers={"x-nothing": "1"}),
        harmless=BOTH,
    ),
)


def _everywhere(exchange: Exchange, change: Callable[[bytes], bytes]) -> Answer:
    if not exchange.streamed:
        return exchange.saying(change(exchange.body))
    changed = []
    for event in exchange.events:
        payload = payload_of(event)
        changed.append(event.replace(payload, change(payload)) if payload[:1] == b"{" else event)
    return exchange.saying(*changed)
