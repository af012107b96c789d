"""One call, buffered or streamed, under every driver."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agent import ToolSpec, errors
from agent.engine.wire import Answer, Piece
from agent.testing import Script
from agent.types import (
    AgentRequest,
    AgentResponse,
    ContentPart,
    Message,
    RefusalContent,
    Session,
    TextContent,
    ThinkingContent,
    ToolCall,
    Usage,
    fold,
)
from tests.support.drivers import Driver

RICH = AgentResponse(
    content=(
        ThinkingContent(thinking="Two and two"),
        TextContent(text="It is four, and here is the weather."),
        ToolCall(id="c1", name="get_weather", arguments={"city": "Tōkyō", "days": 3}),
        ToolCall(id="c2", name="get_weather", arguments={}),
    ),
    usage=Usage(prompt_tokens=30, completion_tokens=12, cache_read_tokens=10, reasoning_tokens=4),
)


def comparable(response: AgentResponse) -> AgentResponse:
    """Without what differs between any two calls: the time they took."""
    return response.model_copy(update={"latency_ms": None, "route": ()})


def sse(*events: Any) -> list[bytes]:
    return [
        b"data: " + (event if isinstance(event, bytes) else json.dumps(event).encode()) + b"\n\n" for event in events
    ]


def delta(text: str | None = None, reason: str | None = None, **more: Any) -> dict[str, Any]:
    content = {} if text is None else {"content": text}
    choice = {"index": 0, "delta": {**content, **more}, "finish_reason": reason}
    return {"id": "x", "object": "chat.completion.chunk", "model": "m", "choices": [choice]}


DONE = b"[DONE]"


@pytest.mark.parametrize("answer", ["Good day to you", RICH, [RefusalContent(refusal="I will not.")]])
def test_a_completed_and_a_streamed_answer_are_equal_but_for_the_time_they_took(drive: Driver, answer: Any) -> None:
    whole = drive.complete(Script(answer)).ok
    streamed = drive.stream(Script(answer))
    assert comparable(streamed.ok) == comparable(whole)
    assert fold(streamed.events).content == streamed.ok.content


def test_everything_an_answer_holds_is_reported(drive: Driver) -> None:
    response = drive.stream(Script(RICH)).ok
    assert response.text == "It is four, and here is the weather."
    assert response.thinking == "Two and two"
    assert [(call.id, call.name, call.arguments) for call in response.tool_calls] == [
        ("c1", "get_weather", {"city": "Tōkyō", "days": 3}),
        ("c2", "get_weather", {}),
    ]
    assert response.usage == RICH.usage
    assert (response.provider, response.model, response.stop_reason) == ("openai-chat", "test-model", "tool_calls")
    assert response.request_id == "req_1"
    assert response.latency_ms is not None
    assert [attempt.error for attempt in response.route] == [None]


def test_events_arrive_in_order_and_tool_arguments_in_pieces(drive: Driver) -> None:
    events = drive.stream(Script(RICH)).events
    kinds = [event.type for event in events]
    assert kinds[0] == "message_start"
    assert kinds[-1] == "message_end"
    assert kinds.index("thinking_delta") < kinds.index("text_delta") < kinds.index("tool_call_start")
    pieces = [event.tool_call_delta or {} for event in events if event.type == "tool_call_delta" and event.index == 3]
    assert json.loads("".join(piece["arguments"] for piece in pieces)) == {"city": "Tōkyō", "days": 3}
    assert len(pieces) > 1
    assert all(event.raw for event in events if event.type == "text_delta")


def test_the_raw_answer_is_kept_outside_of_equality(drive: Driver) -> None:
    response = drive.complete(Script("hi")).ok
    assert response.raw["choices"][0]["message"]["content"] == "hi"
    assert "raw" not in response.to_dict()


def test_a_refusal_is_not_an_answer(drive: Driver) -> None:
    response = drive.stream(Script(RefusalContent(refusal="I will not."))).ok
    assert (response.text, response.refusal, response.stop_reason) == (None, "I will not.", "refusal")


@pytest.mark.parametrize(
    ("raw", "reason"),
    [("stop", "stop"), ("length", "length"), ("content_filter", "content_filter"), ("brand_new", "other")],
)
def test_stop_reasons_are_normalised_and_the_vendors_word_is_kept(drive: Driver, raw: str, reason: str) -> None:
    answer = Answer(sse(delta("hi", raw), DONE))
    response = drive.stream(lambda request: answer).ok
    assert (response.stop_reason, response.raw_stop_reason) == (reason, raw)


# Requests


@pytest.mark.parametrize(
    "request_",
    [
        "hi",
        Message.user("hi"),
        [Message.user("hi")],
        [{"role": "user", "content": "hi"}],
        AgentRequest(input="hi"),
        Session(id="s", messages=[Message.user("hi")]),
    ],
    ids=["text", "message", "messages", "dicts", "request", "session"],
)
def test_a_request_may_be_written_in_short(drive: Driver, request_: Any) -> None:
    script = Script("hello")
    assert drive.complete(script, request_).ok.text == "hello"
    assert script.requests[0]["messages"] == [{"role": "user", "content": "hi"}]


def test_settings_of_the_agent_fill_what_the_request_leaves_open(drive: Driver) -> None:
    script = Script("a")
    options: dict[str, Any] = {
        "temperature": 0.5,
        "max_tokens": 9,
        "default_system": "Be kind.",
        "extra": {"user": "u1", "service_tier": "flex"},
    }
    drive.complete(script, AgentRequest(input="hi", temperature=0.0, extra={"user": "u2"}), **options)
    body = script.requests[0]
    assert (body["temperature"], body["max_tokens"]) == (0.0, 9)
    assert (body["user"], body["service_tier"]) == ("u2", "flex")
    assert body["messages"][0] == {"role": "system", "content": "Be kind."}


def test_a_system_message_of_ones_own_replaces_the_default_one(drive: Driver) -> None:
    script = Script("a")
    drive.complete(script, [Message.system("Mine."), Message.user("hi")], default_system="Yours.")
    assert [message["content"] for message in script.requests[0]["messages"]] == ["Mine.", "hi"]


def test_tools_are_offered_and_not_run(drive: Driver) -> None:
    def explode() -> None:
        raise AssertionError("the tool was run")

    script = Script([ToolCall(id="c1", name="f", arguments={})])
    response = drive.complete(script, tools=[ToolSpec(name="f", description="d", function=explode)]).ok
    assert response.has_tool_calls
    assert script.requests[0]["tools"][0]["function"]["name"] == "f"


def test_images_are_sent_by_address_and_by_value(drive: Driver) -> None:
    script = Script("a cat")
    parts = [
        ContentPart.text_part("what is it?"),
        ContentPart.image_url_part("https://example.com/cat.png"),
        ContentPart.image_data_part(b"\x89PNG", media_type="image/png"),
    ]
    drive.complete(script, Message.user(parts))
    urls = [block["image_url"]["url"] for block in script.requests[0]["messages"][0]["content"][1:]]
    assert urls == ["https://example.com/cat.png", "data:image/png;base64,iVBORw=="]


# Failures


@pytest.mark.parametrize(
    ("status", "kind", "retryable"),
    [
        (400, errors.BadRequestError, False),
        (401, errors.AuthenticationError, False),
        (402, errors.QuotaExceededError, False),
        (403, errors.AuthenticationError, False),
        (404, errors.ModelNotFoundError, False),
        (408, errors.ProviderError, True),
        (409, errors.ProviderError, True),
        (413, errors.ContextLengthError, False),
        (422, errors.BadRequestError, False),
        (425, errors.ProviderError, True),
        (429, errors.RateLimitError, True),
        (500, errors.ProviderError, True),
        (502, errors.ProviderError, True),
        (503, errors.OverloadedError, True),
        (504, errors.ProviderError, True),
        (529, errors.OverloadedError, True),
    ],
)
@pytest.mark.parametrize("streaming", [False, True], ids=["complete", "stream"])
def test_a_failing_status_is_a_typed_error(
    drive: Driver, status: int, kind: type[errors.AgentError], retryable: bool, streaming: bool
) -> None:
    body = json.dumps({"error": {"message": "no", "type": "t", "code": "c"}}).encode()
    answer = Answer([body], status=status, headers={"x-request-id": "req_9", "retry-after": "7"})
    call = drive.stream if streaming else drive.complete
    error = call(lambda request: answer).failed
    assert type(error) is kind
    assert (error.status_code, error.retryable, error.request_id) == (status, retryable, "req_9")
    assert (error.provider, error.model, error.code) == ("openai-chat", "test-model", "c")
    assert error.message == "no"
    assert [attempt.status_code for attempt in error.attempts] == [status]


@pytest.mark.malformed
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b'"text"',
        b"<html>captive portal</html>",
        b'{"choices": []}',
        b'{"choices": [{}]}',
        b'{"choices": [{"message": "x"}]}',
        b'{"choices": [{"message": {"content": "x"}, "finish_reason": "stop"}]',
        b'{"id": "x"}',
        b"\xff\xfe",
        b'{"choices": [{"message": {"content": NaN}}]}',
        b'{"choices": ' + b"[" * 100 + b"]" * 100 + b"}",
        b'{"choices": ' + b"[" * 200_000 + b"]" * 200_000 + b"}",
        b'{"usage": ' + b"1" * 5000 + b"}",
    ],
    ids=lambda body: repr(body[:30]),
)
def test_a_success_that_is_no_answer_is_a_protocol_error(drive: Driver, body: bytes) -> None:
    error = drive.complete(lambda request: Answer([body])).failed
    assert isinstance(error, errors.ProtocolError), error
    assert error.retryable


def test_an_error_inside_a_success_is_an_error(drive: Driver) -> None:
    body = b'{"error": {"message": "overloaded", "code": 529}}'
    assert isinstance(drive.complete(lambda request: Answer([body])).failed, errors.OverloadedError)
    assert isinstance(drive.stream(lambda request: Answer([body])).failed, errors.OverloadedError)


@pytest.mark.malformed
@pytest.mark.parametrize(
    "pieces",
    [
        [],
        [b"\n\n"],
        [b": ping\n\n"],
        [b"data: [DONE]\n\n"],
        [b"<html>captive portal</html>"],
        [b"data: not json\n\n"],
        [b"data: null\n\n"],
        [b"data: []\n\n"],
        [b"data: {}\n\n"],
        [b'data: {"choices": "x"}\n\n'],
        [b'data: {"choices": [7]}\n\n'],
        [b"data: \xff\n\n"],
        [b"data: " + b"[" * 500 + b"\n\n"],
        [b"data: " + b"x" * (1024 * 1024 + 10)],
    ],
    ids=lambda pieces: repr(b"".join(pieces)[:30]),
)
def test_a_stream_that_never_begins_is_a_protocol_error(drive: Driver, pieces: list[bytes]) -> None:
    error = drive.stream(lambda request: Answer(pieces)).failed
    assert isinstance(error, errors.ProtocolError), error
    assert error.retryable
    assert not error.committed


@pytest.mark.parametrize(
    "rest",
    [
        [],
        [Piece(errors.ConnectionError("reset"), 0.01)],
        sse(DONE),
        sse({"error": {"message": "boom", "code": 500}}),
        [b"data: {half"],
        [b"data: nonsense\n\n"],
        sse(delta(tool_calls=[{"index": 0, "id": "c", "function": {"name": "f", "arguments": "{"}}])),
    ],
    ids=["clean", "reset", "no-finish", "error-event", "half-event", "nonsense", "half-call"],
)
def test_a_stream_that_breaks_off_is_an_error_with_what_had_arrived(drive: Driver, rest: list[Any]) -> None:
    outcome = drive.stream(lambda request: Answer([*sse(delta("Hello"), delta(" wor")), *rest]))
    error = outcome.failed
    assert isinstance(error, errors.StreamInterrupted), error
    assert error.partial is not None
    assert (error.partial.text or "").startswith("Hello wor")
    assert error.partial.tool_calls == [], "a call of a broken stream must never be acted upon"
    assert error.committed
    assert not error.retryable
    assert outcome.text.startswith("Hello wor")
    assert outcome.events[-1].type == "error"
    assert outcome.response is None


def test_what_follows_the_end_of_a_stream_is_ignored(drive: Driver) -> None:
    pieces = sse(delta("hi", "stop"), DONE, delta(" there"), DONE, b"nonsense")
    assert drive.stream(lambda request: Answer([b"".join(pieces)])).ok.text == "hi"


def test_the_usage_after_a_failure_is_still_counted(drive: Driver) -> None:
    usage = {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}}
    pieces = sse(delta("Hel"), {"error": {"message": "boom"}}, usage, DONE)
    error = drive.stream(lambda request: Answer(pieces)).failed
    assert isinstance(error, errors.StreamInterrupted)
    assert error.partial is not None
    assert error.partial.usage == Usage(prompt_tokens=5, completion_tokens=2)
    assert error.attempts[0].usage == error.partial.usage


def test_usage_that_is_reported_again_replaces_the_earlier_one(drive: Driver) -> None:
    def count_chunk(tokens: int) -> dict[str, Any]:
        return {**delta("a"), "usage": {"prompt_tokens": 3, "completion_tokens": tokens, "total_tokens": 3 + tokens}}

    response = drive.stream(lambda request: Answer(sse(count_chunk(1), count_chunk(2), delta(None, "stop"), DONE))).ok
    assert response.usage == Usage(prompt_tokens=3, completion_tokens=2)


@pytest.mark.parametrize(
    "pieces",
    [
        [{"index": 0, "id": "a", "name": "f", "arguments": '{"x":1}'}, {"index": 1, "id": "b", "name": "g"}],
        [
            {"index": 0, "id": "a", "name": "f"},
            {"index": 0, "arguments": '{"x":'},
            {"index": 0, "arguments": "1}"},
            {"index": 1, "id": "b", "name": "g"},
        ],
        [{"id": "a", "name": "f", "arguments": '{"x":1}'}, {"id": "b", "name": "g"}],
        [{"id": "a", "name": "f"}, {"arguments": '{"x":1}'}, {"id": "b", "name": "g"}],
        [{"index": 0, "id": "a", "name": "f", "arguments": '{"x":1}'}, {"index": 0, "id": "b", "name": "g"}],
        [
            {"index": 0, "id": "a", "name": "f"},
            {"index": 0, "id": "a", "arguments": '{"x":1}'},
            {"index": 1, "id": "b", "name": "g"},
        ],
        [
            {"index": 0, "id": "a", "name": "f"},
            {"index": 0, "id": "", "name": None, "arguments": '{"x":1}'},
            {"index": 1, "id": "b", "name": "g"},
        ],
        [
            {"index": 0, "id": "a", "name": "f"},
            {"index": 1, "id": "b", "name": "g"},
            {"index": 0, "arguments": '{"x":1}'},
        ],
    ],
    ids=[
        "whole",
        "pieces",
        "no-index",
        "no-index-pieces",
        "one-index-for-two",
        "id-repeated",
        "empty-id",
        "interleaved",
    ],
)
def test_parallel_calls_are_told_apart_however_the_vendor_numbers_them(
    drive: Driver, pieces: list[dict[str, Any]]
) -> None:
    def as_delta(piece: dict[str, Any]) -> dict[str, Any]:
        function = {key: piece[key] for key in ("name", "arguments") if key in piece}
        rest = {key: value for key, value in piece.items() if key not in function}
        return delta(tool_calls=[{**rest, "type": "function", "function": function}])

    events = sse(*map(as_delta, pieces), delta(None, "tool_calls"), DONE)
    calls = drive.stream(lambda request: Answer(events)).ok.tool_calls
    assert [(call.id, call.name, call.arguments) for call in calls] == [("a", "f", {"x": 1}), ("b", "g", {})]


def test_a_call_without_an_id_gets_the_same_one_each_time(drive: Driver) -> None:
    call = {"function": {"name": "f", "arguments": "{}"}}
    whole = {"id": "r1", "choices": [{"message": {"tool_calls": [call]}, "finish_reason": "tool_calls"}]}
    streamed = sse({**delta(tool_calls=[call]), "id": "r1"}, delta(None, "tool_calls"), DONE)
    first = drive.complete(lambda request: Answer([json.dumps(whole).encode()])).ok.tool_calls[0].id
    assert first.startswith("call_")
    assert drive.stream(lambda request: Answer(streamed)).ok.tool_calls[0].id == first


def test_arguments_that_are_no_json_object_are_kept_as_the_model_wrote_them(drive: Driver) -> None:
    call = {"index": 0, "id": "a", "function": {"name": "f", "arguments": '{"x": oops'}}
    (made,) = drive.stream(
        lambda request: Answer(sse(delta(tool_calls=[call]), delta(None, "stop"), DONE))
    ).ok.tool_calls
    assert (made.arguments, made.invalid_arguments) == ({}, '{"x": oops')
