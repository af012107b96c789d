"""Stream decoding of Chat Completions."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from agent import errors
from agent.engine.wire import Reply
from agent.providers.compatible import DIALECTS, ROWS
from agent.providers.openai_chat import OPENAI, Dialect
from agent.providers.openai_chat.dialect import UNKNOWN
from agent.providers.openai_chat.stream import ChatDecoder
from agent.providers.repair import REPEATED_CALL
from agent.types import AgentRequest, AgentResponse, AudioContent, Message, StreamEvent, fold
from tests.providers.chat_helpers import codec_of, decode_both_ways, encode

REQUEST = AgentRequest(input="?", model="m")
DONE = b"data: [DONE]\n\n"
END = {"id": "r", "model": "m", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}


def chunk(delta: dict[str, Any], **choice: Any) -> dict[str, Any]:
    return {"id": "r", "model": "m", "choices": [{"index": 0, "delta": delta, **choice}]}


def fed(*chunks: Any) -> tuple[ChatDecoder, list[StreamEvent]]:
    decoder = codec_of().decoder({}, REQUEST)
    assert isinstance(decoder, ChatDecoder)
    events: list[StreamEvent] = []
    for one in (*chunks, END):
        events += decoder.feed(b"data: " + json.dumps(one).encode() + b"\n\n")
    events += decoder.feed(DONE)
    return decoder, events + decoder.end()


def decode_stream(*chunks: Any) -> AgentResponse:
    decoder, events = fed(*chunks)
    assert decoder.failure is None, decoder.failure
    assert fold(events) == decoder.response()
    return decoder.response()


def read(message: Any, **choice: Any) -> AgentResponse:
    body = {"id": "r", "model": "m", "choices": [{"index": 0, "message": message, "finish_reason": "stop", **choice}]}
    return codec_of().decode(Reply(200, {}, json.dumps(body).encode()), REQUEST)


def piece(arguments: str | None = None, *, name: str | None = None, **more: Any) -> dict[str, Any]:
    given = {"name": name, "arguments": arguments}
    return {"tool_calls": [{"function": {key: value for key, value in given.items() if value is not None}, **more}]}


USAGE = {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}
PARIS = '{"city":"Paris"}'
CALL = {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": PARIS}}


@pytest.mark.parametrize(
    "pieces",
    [
        [piece(PARIS[:5], index=0), piece(name="get_weather", index=0, id="c1"), piece(PARIS[5:], index=0)],
        [piece(PARIS[:5], index=0), piece(PARIS[5:], index=0), piece(name="get_weather", index=0, id="c1")],
        [piece(PARIS, name="get_weather", id="c1")],
        [piece(name="get_weather", id="c1"), piece(PARIS[:5]), piece(PARIS[5:])],
        [
            piece(PARIS[:5], name="get_weather", id="c1", index=0),
            piece(PARIS[5:], name="get_weather", id="c1", index=0),
        ],
        [piece(name="get_weather", id="c1", index=0), piece(PARIS, id="", name="", index=0)],
        [piece(name="get_weather", id="c1", index=5), piece(PARIS, index=5)],
    ],
    ids=["late name", "last name", "no index", "only the first has an id", "all repeated", "blanks", "from five"],
)
def test_a_call_is_put_together_however_it_is_cut(pieces: list[dict[str, Any]]) -> None:
    decoder, events = fed(*map(chunk, pieces))
    assert decoder.response() == read({"content": None, "tool_calls": [CALL]})
    told = "".join((event.tool_call_delta or {}).get("arguments", "") for event in events)
    assert told == PARIS, "who follows the events sees all of it"


def test_a_call_without_a_name_does_not_break_the_stream() -> None:
    decoder, _ = fed(chunk({"content": "Hi"}), chunk(piece(PARIS, index=0, id="c1")))
    assert decoder.failure is None
    nameless = {**CALL, "function": {"arguments": PARIS}}
    assert decoder.response() == read({"content": "Hi", "tool_calls": [nameless]})


def test_calls_at_the_same_index_are_told_apart_by_their_ids() -> None:
    second = {"id": "c2", "type": "function", "function": {"name": "get_time", "arguments": "{}"}}
    pieces = [piece(PARIS, name="get_weather", id="c1", index=0), piece("{}", name="get_time", id="c2", index=0)]
    assert decode_stream(*map(chunk, pieces)) == read({"content": None, "tool_calls": [CALL, second]})


@pytest.mark.parametrize("other", [None, {"name": "", "input": ""}])
def test_a_call_is_a_functions_even_if_the_other_form_stands_empty_beside_it(other: Any) -> None:
    whole, stream = decode_both_ways({"content": None, "tool_calls": [{**CALL, "custom": other}]}, REQUEST)
    assert whole == stream
    (call,) = whole.tool_calls
    assert (call.arguments, call.provider_data) == ({"city": "Paris"}, None)


@pytest.mark.parametrize("more", [{}, {"type": "custom"}, {"type": "custom", "function": {"name": ""}}])
def test_a_call_of_a_custom_tool_is_given_text(more: dict[str, Any]) -> None:
    call = {"id": "c1", "custom": {"name": "run", "input": '{"a":1}'}, **more}
    whole, stream = decode_both_ways({"content": None, "tool_calls": [call]}, REQUEST)
    assert whole == stream
    (read_call,) = whole.tool_calls
    assert (read_call.name, read_call.arguments) == ("run", {"input": '{"a":1}'})


def test_the_first_answer_counts_wherever_it_stands_among_several() -> None:
    messages = [{"content": None, "tool_calls": [{**CALL, "index": 0}], "own": "B"}, {"content": "A"}]
    choices = [
        {"index": index, "finish_reason": reason, "matched_stop": "END"}
        for index, reason in ((1, "tool_calls"), (0, "length"))
    ]
    both, deltas = (
        {
            "id": "r",
            "choices": [{**one, key: said} for one, said in zip(choices, messages, strict=True)],
            "usage": USAGE,
        }
        for key in ("message", "delta")
    )
    response = feed_bytes(sse(deltas) + DONE).response()
    assert (response.text, response.stop_reason, response.stop_sequence) == ("A", "length", "END")
    (other,) = response.choices
    assert (other.tool_calls[0].id, other.stop_reason, other.usage) == ("c1", "tool_calls", None)
    assert other.vendor == {"own": "B"}
    assert response == codec_of().decode(Reply(200, {}, json.dumps(both).encode()), REQUEST)


def test_a_choice_that_does_not_end_is_kept_as_far_as_it_came() -> None:
    half = {"id": "r", "choices": [{"index": 1, "delta": {"content": "B"}}]}
    assert [choice.text for choice in decode_stream(half).choices] == ["B"]
    decoder = codec_of().decoder({}, REQUEST)
    decoder.feed(b"".join(b"data: %b\n\n" % json.dumps(one).encode() for one in (half, END)))
    decoder.end()
    assert not decoder.done, "the bytes ended, and one choice did not"


def test_an_error_in_the_place_of_the_answer_is_a_failure() -> None:
    wrong = {"code": 429, "message": "slow down"}
    decoder, _ = fed(chunk({"content": "Hi"}), chunk({}, error=wrong, finish_reason="error"))
    assert isinstance(decoder.failure, errors.RateLimitError)
    assert not decoder.done
    with pytest.raises(errors.RateLimitError, match="slow down"):
        read({"content": "Hi"}, error=wrong)


@pytest.mark.parametrize(
    "body",
    [
        {"object": "error", "message": "This model's maximum context length is 10", "code": 400},
        {"error": "This model's maximum context length is 10"},
        {"error": {"message": "This model's maximum context length is 10"}},
        {"detail": "This model's maximum context length is 10"},
        {"success": False, "errors": [{"message": "This model's maximum context length is 10"}]},
        [{"error": {"message": "This model's maximum context length is 10"}}],
    ],
)
def test_a_failure_inside_a_success_says_what_is_wrong(body: Any) -> None:
    data = json.dumps(body, indent=1).encode()
    with pytest.raises(errors.ContextLengthError):
        codec_of().decode(Reply(200, {}, data), REQUEST)
    no_stream = codec_of().decoder({}, REQUEST)
    assert [*no_stream.feed(data[:9]), *no_stream.feed(data[9:]), *no_stream.end()] == []
    assert isinstance(no_stream.failure, errors.ContextLengthError)
    if isinstance(body, dict):
        decoder, _ = fed(body)
        assert isinstance(decoder.failure, errors.ContextLengthError)


@pytest.mark.malformed
def test_what_is_neither_answer_nor_failure_is_a_broken_protocol() -> None:
    for data in (b"", b"<html>hello</html>", b'{"choices":[]}', b"[]", b"null", b'{"choices":[{"index":0}]}', b"\xff"):
        with pytest.raises(errors.ProtocolError):
            codec_of().decode(Reply(200, {}, data), REQUEST)
        decoder = codec_of().decoder({}, REQUEST)
        assert [*decoder.feed(data), *decoder.end()] == []
        assert not decoder.done


def test_a_failure_that_is_told_beside_the_answer_is_a_failure() -> None:
    """The reason for which a stream was stopped early, as Groq tells it."""
    decoder, _ = fed(chunk({"content": "Hel"}), {**END, "x_groq": {"id": "req_1", "error": "over capacity"}})
    assert isinstance(decoder.failure, errors.ProviderError)
    assert "over capacity" in str(decoder.failure)
    assert not decoder.done


def test_what_the_vendor_runs_is_told_once_and_with_its_outcome() -> None:
    begun = {"index": 0, "type": "search", "arguments": '{"query":"a"}'}
    ended = {"index": 0, "type": "search", "arguments": None, "output": "found"}
    other = {"index": 1, "type": "search", "arguments": '{"query":"b"}', "output": "nothing"}
    runs = [["odd"], [begun], [ended, other], [{"type": "visit"}]]
    response = decode_stream(*(chunk({"executed_tools": told}) for told in runs))
    assert response == read({"executed_tools": ["odd", {**begun, "output": "found"}, other, {"type": "visit"}]})


def test_sealed_details_with_ids_of_their_own_are_kept_apart() -> None:
    first, second = ({"type": "reasoning.encrypted", "data": id, "id": id, "index": 0} for id in ("t1", "t2"))
    words = [{"type": "reasoning.text", "text": text, "index": 1, "id": id} for text, id in (("h", None), ("m", "r1"))]
    response = decode_stream(*(chunk({"reasoning_details": [detail]}) for detail in (first, second, *words)))
    (thinking,) = response.content
    assert thinking.provider_data == {"reasoning_details": [first, second, {**words[1], "text": "hm"}]}


def test_a_count_that_no_number_can_hold_does_not_cost_the_answer() -> None:
    body = b'{"choices":[{"message":{"content":"Hi"},"finish_reason":"stop"}],"usage":{"prompt_tokens":1e999}}'
    response = codec_of().decode(Reply(200, {}, body), REQUEST)
    assert response.text == "Hi"
    assert response.usage is not None
    assert response.usage.prompt_tokens == 0


@pytest.mark.parametrize(
    "usage",
    [
        {"prompt_tokens": "5"},
        {"prompt_tokens": 5, "prompt_tokens_details": [1]},
        {"cost_details": 1, "is_byok": True, "cost": 1},
        [1],
        "x",
    ],
)
def test_counts_that_cannot_be_read_do_not_cost_the_answer(usage: Any) -> None:
    whole, stream = decode_both_ways({"content": "Hi"}, REQUEST, usage=usage)
    assert whole == stream
    assert whole.text == "Hi"


def test_sound_in_pieces_that_each_have_an_end_is_whole() -> None:
    pieces = [base64.b64encode(data).decode() for data in (b"R", b"IFF", b"....")]
    response = decode_stream(*(chunk({"audio": {"id": "a", "data": text}}) for text in pieces))
    (sound,) = (part for part in response.content if isinstance(part, AudioContent))
    assert sound.data == b"RIFF...."


def test_probabilities_without_a_number_do_not_cost_the_answer() -> None:
    logprobs = {"content": [{"token": "Hi"}]}
    assert read({"content": "Hi"}, logprobs=logprobs) == decode_stream(chunk({"content": "Hi"}, logprobs=logprobs))


def test_usage_in_every_chunk_counts_once() -> None:
    counts = [{"prompt_tokens": 3, "completion_tokens": number} for number in (1, 2, 3)]
    response = decode_stream(*({**chunk({"content": "a"}), "usage": usage} for usage in counts))
    assert response.usage is not None
    assert (response.text, response.usage.total_tokens) == ("aaa", 6)


def feed_bytes(data: bytes, dialect: Dialect = OPENAI) -> ChatDecoder:
    decoder = codec_of(dialect).decoder({}, REQUEST)
    assert isinstance(decoder, ChatDecoder)
    decoder.feed(data)
    decoder.end()
    return decoder


def sse(*chunks: Any) -> bytes:
    return b"".join(b"data: %b\n\n" % json.dumps(one).encode() for one in chunks)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ({"name": "Rome", "sights": ["a"]}, '{"name":"Rome","sights":["a"]}'),
        ([{"name": "Rome"}, {"name": "Bari"}], '[{"name":"Rome"},{"name":"Bari"}]'),
        (7, "7"),
        ({}, "{}"),
        (["a", "b"], "ab"),
        ([{"type": "text", "text": "a"}, "b"], "ab"),
        ({"type": "text", "text": "a"}, "a"),
    ],
)
def test_an_answer_that_is_an_object_is_its_json(content: Any, text: str) -> None:
    whole, stream = decode_both_ways({"content": content}, REQUEST)
    assert whole == stream
    assert whole.text == text


@pytest.mark.parametrize("dialect", [OPENAI, UNKNOWN, *ROWS], ids=lambda dialect: dialect.name)
def test_a_finish_reason_and_the_end_of_the_bytes_end_a_stream(dialect: Dialect) -> None:
    whole = sse(chunk({"content": "Hi"}), END)
    for data in (whole, whole[:-1], whole[:-2], whole + b"data: [DONE]", whole + b": bye"):
        decoder = feed_bytes(data, dialect)
        assert decoder.failure is None
        assert decoder.response().text == "Hi"
    for data in (sse(chunk({"content": "Hi"})), whole[:-3], whole + b"data: {", whole + b"dat"):
        assert not feed_bytes(data, dialect).done


def test_usage_and_the_sentinel_end_a_stream_where_the_vendor_has_no_finish_reasons() -> None:
    chunks = (chunk({"content": "Hi"}), {"choices": [], "usage": USAGE})
    snowflake = DIALECTS["snowflake"]
    decoder = feed_bytes(sse(*chunks) + DONE, snowflake)
    body = {"id": "r", "model": "m", "choices": [{"message": {"content": "Hi"}}], "usage": USAGE}
    assert decoder.response() == codec_of(snowflake).decode(Reply(200, {}, json.dumps(body).encode()), REQUEST)
    assert (decoder.response().stop_reason, decoder.response().raw_stop_reason) == ("stop", None)
    for data, dialect in (
        (sse(*chunks), snowflake),
        (sse(chunks[0]) + DONE, snowflake),
        (sse(*chunks) + DONE, OPENAI),
    ):
        assert not feed_bytes(data, dialect).done


def test_usage_inside_the_choice_is_counted() -> None:
    whole = read({"content": "Hi"}, usage=USAGE)
    assert whole == feed_bytes(sse(chunk({"content": "Hi"}, finish_reason="stop", usage=USAGE)) + DONE).response()
    assert whole.usage is not None
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (3, 4)


@pytest.mark.parametrize(
    ("said", "text"),
    [
        (rb"a\ud83d", "a\ufffd"),
        (rb"\ude00 \ud83d\ude00 \\ud83d", "\ufffd \U0001f600 \\ud83d"),
        (b"\xed\xa0\xbd", "\ufffd" * 3),
        (b"\xe2\x82", "\ufffd"),
    ],
    ids=["escaped", "halves", "bytes", "cut off"],
)
def test_half_a_character_does_not_cost_the_answer(said: bytes, text: str) -> None:
    body = b'{"id":"r","model":"m","choices":[{"index":0,"%b":{"content":"' + said + b'"},"finish_reason":"stop"}]}'
    whole = codec_of().decode(Reply(200, {}, body.replace(b"%b", b"message")), REQUEST)
    assert whole.text == text
    assert feed_bytes(b"data: " + body.replace(b"%b", b"delta") + b"\n\n" + DONE).response() == whole


def test_a_byte_order_mark_and_odd_line_ends_are_no_obstacle() -> None:
    body = {"id": "r", "model": "m", "choices": [{"index": 0, "message": {"content": "Hi"}, "finish_reason": "stop"}]}
    mark = b"\xef\xbb\xbf"
    assert codec_of().decode(Reply(200, {}, mark + json.dumps(body).encode()), REQUEST).text == "Hi"
    data = sse(chunk({"content": "Hi"}), END) + DONE
    for end in (b"\n", b"\r\n", b"\r"):
        assert feed_bytes(mark + data.replace(b"\n", end)).response().text == "Hi"


@pytest.mark.parametrize("names", [["get_", "weather"], ["get_weather", "get_weather"], ["get_weather", ""]])
@pytest.mark.parametrize("tools", [(), ("get_weather",), ("get_weather", "get_")])
def test_a_name_may_come_in_pieces_or_several_times(names: list[str], tools: tuple[str, ...]) -> None:
    request = AgentRequest(input="?", model="m", tools=[{"name": name, "parameters": {}} for name in tools])
    decoder = codec_of().decoder({}, request)
    pieces = [piece("", name=names[0], id="c1", index=0), piece("", name=names[1], index=0), piece("{}", index=0)]
    events = decoder.feed(sse(*map(chunk, pieces), END) + DONE)
    assert [call.name for call in decoder.response().tool_calls] == ["get_weather"]
    assert [event.tool_call.name for event in events if event.tool_call is not None] == ["get_weather"] * 2


def test_calls_with_the_same_id_get_different_ones_with_a_warning() -> None:
    calls = [CALL, {**CALL, "function": {"name": "get_time", "arguments": "{}"}}, CALL]
    whole, stream = decode_both_ways({"content": None, "tool_calls": calls}, REQUEST)
    assert whole == stream
    assert [call.id for call in whole.tool_calls] == ["c1", "c1#2", "c1#3"]
    assert whole.warnings == (REPEATED_CALL,)


def test_a_stream_reports_the_same_data_as_a_complete_response() -> None:
    body = {
        "service_tier": "flex",
        "system_fingerprint": "fp_1",
        "provider": "Upstream",
        "prompt_filter_results": [{"prompt_index": 0}],
        "usage": {**USAGE, "is_byok": True, "completion_tokens_details": {"accepted_prediction_tokens": 2}},
    }
    choice = {
        "finish_reason": "stop",
        "native_finish_reason": "end_turn",
        "content_filter_results": {"hate": {"filtered": False}},
        "avg_logprobs": -0.5,
        "finish_message": "done",
    }
    first = {**chunk({"content": "Hi"}), **{key: body[key] for key in ("provider", "prompt_filter_results")}}
    later = {**chunk({"citations_of": "x"}, **choice), "service_tier": "flex", "system_fingerprint": "fp_1"}
    last = {"choices": [], "usage": body["usage"], "provider": None, "obfuscation": "x"}
    decoder = feed_bytes(sse(first, later, last) + DONE)
    message = {"content": "Hi", "citations_of": "x", "refusal": None}
    whole = {"id": "r", "model": "m", "choices": [{"index": 0, "message": message, **choice}], **body}
    response = codec_of().decode(Reply(200, {}, json.dumps(whole).encode()), REQUEST)
    assert response == decoder.response()
    assert response.service_tier == "flex"
    assert response.vendor == {
        "system_fingerprint": "fp_1",
        "provider": "Upstream",
        "prompt_filter_results": [{"prompt_index": 0}],
        "native_finish_reason": "end_turn",
        "content_filter_results": {"hate": {"filtered": False}},
        "avg_logprobs": -0.5,
        "finish_message": "done",
        "citations_of": "x",
        "usage": {"is_byok": True},
    }
    assert response.usage is not None
    assert response.usage.details == {"accepted_prediction_tokens": 2}


def test_a_gateways_signed_thinking_goes_back_to_it() -> None:
    blocks = [
        {"type": "thinking", "thinking": "Hm, so.", "signature": "s1"},
        {"type": "redacted_thinking", "data": "xx"},
        {"type": "thinking", "thinking": "And.", "signature": "s2"},
    ]
    parts = [
        {"type": "thinking", "thinking": "Hm,", "signature": ""},
        {"type": "thinking", "thinking": " so.", "signature": ""},
        {"type": "thinking", "thinking": "", "signature": "s1"},
        blocks[1],
        {"type": "thinking", "thinking": "And."},
        {"type": "thinking", "signature": "s2"},
    ]
    call = {**CALL, "provider_specific_fields": {"thought_signature": "t"}}
    message = {"content": "Hi", "reasoning_content": "Hm, so.And.", "thinking_blocks": blocks, "tool_calls": [call]}
    whole = read(message)
    pieces = [chunk({"thinking_blocks": [one], "reasoning_content": one.get("thinking")}) for one in parts]
    assert whole == decode_stream(*pieces, chunk({"content": "Hi", "tool_calls": [{"index": 0, **call}]}))
    result = Message.tool("ok", tool_call_id="c1")
    sent = encode(AgentRequest(model="m", messages=[Message.user("?"), whole.message, result]), UNKNOWN)[0]["messages"][
        1
    ]
    assert sent["thinking_blocks"] == blocks
    assert sent["tool_calls"] == [call]
