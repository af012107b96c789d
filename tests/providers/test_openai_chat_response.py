"""Decoded responses of Chat Completions."""

from __future__ import annotations

import base64
import json

from agent.engine.wire import Reply
from agent.providers.compatible import DIALECTS
from agent.providers.openai_chat import Dialect
from agent.providers.repair import FOREIGN_BLOCK_DROPPED, MOVED_MEDIA
from agent.types import AgentRequest, AudioContent, Origin, TextContent, ThinkingContent, VendorContent
from tests.providers.chat_helpers import codec_of, decode_both_ways, encode

HOME = Origin(provider="openai-chat", api="openai-chat", model="m")


def test_an_answer_in_sound_is_named_at_home_and_told_elsewhere() -> None:
    audio = {"id": "audio_1", "data": base64.b64encode(b"RIFF").decode(), "transcript": "Hello.", "expires_at": 9}
    request = AgentRequest(input="hi", model="m", extra={"audio": {"format": "wav", "voice": "x"}})
    whole, streamed = decode_both_ways({"content": None, "audio": audio}, request)
    assert whole == streamed
    assert whole.text == "Hello."
    sound = whole.content[1]
    assert isinstance(sound, AudioContent)
    assert (sound.data, sound.media_type, sound.origin) == (b"RIFF", "audio/wav", HOME)
    again = request.with_messages(whole.message)
    assert encode(again)[0]["messages"][1] == {"role": "assistant", "content": None, "audio": {"id": "audio_1"}}
    abroad, warnings = encode(again, Dialect(name="other"))
    assert abroad["messages"][1] == {"role": "assistant", "content": "Hello."}
    assert "audio" in warnings[0]


def test_sources_are_citations_wherever_they_stand() -> None:
    note = {
        "type": "url_citation",
        "url_citation": {"url": "https://a.example", "title": "A", "start_index": 0, "end_index": 2},
    }
    request = AgentRequest(input="x", model="m")
    for response in decode_both_ways({"content": "Hi", "annotations": [note]}, request):
        (part,) = response.content
        assert isinstance(part, TextContent)
        (citation,) = part.citations
        assert (citation.url, citation.title, citation.start, citation.end) == ("https://a.example", "A", 0, 2)
        assert citation.provider_data == note
    found = [{"url": "https://b.example", "title": "B", "snippet": "words"}]
    for response in decode_both_ways({"content": "Hi"}, request, search_results=found, citations=["https://b.example"]):
        (part,) = response.content
        assert isinstance(part, TextContent)
        assert [(source.url, source.quote) for source in part.citations] == [("https://b.example", "words")]
    for response in decode_both_ways({"content": "Hi"}, request, citations=["https://c.example"]):
        (part,) = response.content
        assert isinstance(part, TextContent)
        assert [source.url for source in part.citations] == ["https://c.example"]


def test_what_the_vendor_did_on_its_own_side_is_kept_as_it_came() -> None:
    ran = [{"type": "search", "index": 0, "output": "found"}]
    note = {"type": "file", "file": {"hash": "h"}}
    message = {"content": "Hi", "executed_tools": ran, "annotations": [note]}
    whole, streamed = decode_both_ways(message, AgentRequest(input="x", model="m"))
    assert whole == streamed
    assert [(part.kind, part.provider_data) for part in whole.content if isinstance(part, VendorContent)] == [
        ("annotations", {"annotations": [note]}),
        ("executed_tools", {"executed_tools": ran}),
    ]
    written, warnings = encode(AgentRequest(input="x", model="m", messages=[whole.message]))
    assert written["messages"][0] == {"role": "assistant", "content": "Hi"}, "it has no place in a request"
    assert warnings == (FOREIGN_BLOCK_DROPPED,)


def test_signed_thinking_goes_back_before_the_text_that_it_led_to() -> None:
    """As Databricks hands out Claude's."""
    row = DIALECTS["databricks"]
    request = AgentRequest(input="x", model="m")
    signed = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm", "signature": "SIGNED"}]}
    content = [signed, {"type": "text", "text": "Hi"}]
    whole, streamed = decode_both_ways({"content": content}, request, row)
    assert whole == streamed
    assert (whole.thinking, whole.text) == ("hm", "Hi")
    again = request.with_messages(whole.message)
    assert encode(again, row)[0]["messages"][1] == {"role": "assistant", "content": content}
    assert encode(again)[0]["messages"][1] == {"role": "assistant", "content": "Hi"}
    calls = [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
    whole, _ = decode_both_ways({"content": [signed], "tool_calls": calls}, request, row)
    called = encode(request.with_messages(whole.message), row)[0]["messages"][1]
    assert called == {"role": "assistant", "content": [signed], "tool_calls": calls}


def test_signed_thinking_may_come_in_pieces_that_its_signature_ends() -> None:
    pieces = [{"text": "h", "signature": ""}, {"text": "m"}, {"text": "", "signature": "ONE"}, {"text": "so"}]
    decoder = codec_of().decoder({}, AgentRequest(input="x", model="m"))
    for number, piece in enumerate(pieces):
        content = [{"type": "reasoning", "summary": [{"type": "summary_text", **piece}]}]
        choice = {"index": 0, "delta": {"content": content}, "finish_reason": "stop" if number == 3 else None}
        decoder.feed(b"data: " + json.dumps({"id": "r", "choices": [choice]}).encode() + b"\n\n")
    decoder.feed(b"data: [DONE]\n\n")
    (thinking,) = decoder.response().content
    assert isinstance(thinking, ThinkingContent)
    assert (thinking.thinking, thinking.provider_data) == (
        "hmso",
        {
            "content": [
                {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm", "signature": "ONE"}]},
                {"type": "reasoning", "summary": [{"type": "summary_text", "text": "so"}]},
            ]
        },
    )


def test_a_picture_of_a_vendor_that_takes_none_back_is_shown_to_it_again() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0K"}}
    request = AgentRequest(input="x", model="m")
    whole, streamed = decode_both_ways({"content": "Hi", "images": [image]}, request)
    assert whole == streamed
    written, warnings = encode(request.with_messages(whole.message))
    assert [message["role"] for message in written["messages"]] == ["user", "assistant", "user"]
    assert written["messages"][2]["content"][1] == image
    assert warnings == (MOVED_MEDIA,)


def test_probabilities_are_reported_token_by_token() -> None:
    codec = codec_of()
    request = AgentRequest(input="x", model="m", logprobs=1)
    top = [{"token": "Hi", "logprob": -0.1, "bytes": [72]}, {"token": "Yo", "logprob": -2.0, "bytes": None}]
    content = [{"token": "Hi", "logprob": -0.1, "bytes": [72], "top_logprobs": top}]
    choice = {"index": 0, "logprobs": {"content": content, "refusal": None}, "finish_reason": "stop"}
    whole = {"id": "r", "choices": [{**choice, "message": {"content": "Hi"}}]}
    response = codec.decode(Reply(200, {}, json.dumps(whole).encode()), request)
    wanted = {
        "token": "Hi",
        "logprob": -0.1,
        "top": [{"token": "Hi", "logprob": -0.1}, {"token": "Yo", "logprob": -2.0}],
    }
    assert response.logprobs == (wanted,)
    decoder = codec.decoder({}, request)
    chunk = {"id": "r", "choices": [{**choice, "delta": {"content": "Hi"}}]}
    decoder.feed(b"data: " + json.dumps(chunk).encode() + b"\n\ndata: [DONE]\n\n")
    assert decoder.response() == response
    older = {"choices": [{"message": {"content": "Hi"}, "logprobs": {"tokens": ["Hi"], "token_logprobs": [-0.1]}}]}
    response = codec.decode(Reply(200, {}, json.dumps(older).encode()), request)
    assert response.logprobs == ({"token": "Hi", "logprob": -0.1, "top": []},)


def test_arguments_that_are_no_object_are_kept_as_text_and_never_taken_for_none() -> None:
    for written in ([1, 2], 3, True):
        call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": written}}
        message = {"role": "assistant", "content": None, "tool_calls": [call]}
        body = {"id": "r", "model": "m", "choices": [{"index": 0, "finish_reason": "tool_calls", "message": message}]}
        reply = Reply(200, {}, json.dumps(body).encode())
        found = codec_of().decode(reply, AgentRequest(input="hi", model="m")).tool_calls[0]
        assert (found.arguments, found.invalid_arguments) == ({}, json.dumps(written, separators=(",", ":")))
