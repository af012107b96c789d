"""Stream decoding of Chat Completions."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from agent import errors
from agent.engine.wire import Reply
from agent.providers.openai_chat.stream import ChatDecoder
from agent.types import AgentRequest, AgentResponse, AudioContent, StreamEvent, fold
from tests.providers.chat_helpers import codec_of, decode_both_ways

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
    both = {
        "id": "r",
        "model": "m",
        "choices": [{"index": 1, "delta": {"content": "B"}}, {"index": 0, "delta": {"content": "A"}}],
    }
    assert decode_stream(both).text == "A"


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
