"""Decoding of Gemini's responses: whole, in an array, and streamed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agent import errors
from agent.engine.wire import Reply
from agent.providers import codec
from agent.providers.base import ApiAddress
from agent.providers.gemini import GeminiCodec
from agent.providers.gemini.response import read_usage
from agent.providers.repair import REPEATED_CALL
from agent.types import (
    AgentRequest,
    AgentResponse,
    AudioContent,
    Citation,
    ImageContent,
    Message,
    Origin,
    StreamEvent,
    TextContent,
    ThinkingContent,
    ToolCall,
    ToolSpec,
    Usage,
    VendorContent,
    VideoContent,
    fold,
)

CODEC = GeminiCodec(ApiAddress("http://127.0.0.1", None))
MODEL = "gemini-3-flash-preview"
HOME = Origin(provider="gemini", api="gemini", model=MODEL)
REQUEST = AgentRequest(model=MODEL, input="hi")


def chunk(*parts: dict[str, Any], finish: str | None = None, **candidate: Any) -> dict[str, Any]:
    said: dict[str, Any] = {"content": {"role": "model", "parts": list(parts)}, "index": 0, **candidate}
    if finish is not None:
        said["finishReason"] = finish
    return {"candidates": [said], "modelVersion": "gemini-3-flash-001", "responseId": "r1"}


def decode_stream(
    chunks: list[dict[str, Any]], request: AgentRequest = REQUEST
) -> tuple[AgentResponse, list[StreamEvent]]:
    decoder = CODEC.decoder({}, request)
    data = b"".join(b"data: " + json.dumps(piece).encode() + b"\r\n\r\n" for piece in chunks)
    events = [*decoder.feed(data), *decoder.end()]
    assert decoder.failure is None, decoder.failure
    assert decoder.done
    assert fold(events) == decoder.response()
    return decoder.response(), events


def read(*chunks: dict[str, Any], request: AgentRequest = REQUEST) -> AgentResponse:
    """The answer in chunks, which is the same in every way of sending them."""
    array = CODEC.decode(Reply(200, {}, json.dumps(list(chunks)).encode()), request)
    response, _ = decode_stream(list(chunks), request)
    assert response == array
    if len(chunks) == 1:
        assert CODEC.decode(Reply(200, {}, json.dumps(chunks[0]).encode()), request) == array
    return array


# Content


def test_pieces_of_text_are_one_text() -> None:
    response = read(chunk({"text": "a"}), chunk({"text": "b"}, {"text": "c"}), chunk({"text": ""}, finish="STOP"))
    assert response.content == (TextContent(text="abc"),)
    assert (response.stop_reason, response.raw_stop_reason) == ("stop", "STOP")
    assert (response.model, response.id, response.provider) == ("gemini-3-flash-001", "r1", "gemini")


def test_thoughts_are_thinking_with_their_origin() -> None:
    response = read(
        chunk({"text": "h", "thought": True}), chunk({"text": "m", "thought": True}, {"text": "a"}, finish="STOP")
    )
    assert response.content == (ThinkingContent(thinking="hm", origin=HOME), TextContent(text="a"))
    assert response.text == "a"


def test_a_finished_thought_is_one_event() -> None:
    _, events = decode_stream([chunk({"text": "hm", "thought": True}, {"text": "a"}, finish="STOP")])
    kinds = [event.type for event in events]
    assert kinds == ["message_start", "thinking_delta", "content_part", "text_delta", "message_end"]


def test_a_signed_part_stands_for_itself() -> None:
    response = read(
        chunk({"text": "a"}),
        chunk({"text": "b", "thoughtSignature": "s1"}),
        chunk({"text": "c"}),
        chunk({"text": "", "thoughtSignature": "s2"}, finish="STOP"),
    )
    assert response.content == (
        TextContent(text="a"),
        TextContent(text="b", signature="s1", origin=HOME),
        TextContent(text="c"),
        TextContent(text="", signature="s2", origin=HOME),
    )
    assert response.text == "abc"


def test_a_signature_without_anything_is_kept_on_an_empty_text() -> None:
    response = read(chunk({"text": "a"}, {"thoughtSignature": "s"}, finish="STOP"))
    assert response.content[1] == TextContent(text="", signature="s", origin=HOME)


def test_a_call_is_whole_and_keeps_its_signature() -> None:
    call = {"name": "f", "args": {"a": [1, {"b": None}]}, "id": "x1"}
    chunks = [chunk({"functionCall": call, "thoughtSignature": "s"}), chunk({"text": ""}, finish="STOP")]
    assert read(*chunks).content == (
        ToolCall(id="x1", name="f", arguments={"a": [1, {"b": None}]}, signature="s", origin=HOME),
    )
    response, events = decode_stream(chunks)
    assert response.stop_reason == "tool_calls"
    assert [event.type for event in events] == [
        "message_start",
        "tool_call_start",
        "tool_call_delta",
        "tool_call_end",
        "message_end",
    ]


def test_calls_without_ids_get_the_same_ones_each_time() -> None:
    same = {"functionCall": {"name": "f", "args": {}}}
    first = read(chunk(same, same, finish="STOP"))
    ids = [call.id for call in first.tool_calls]
    assert len(set(ids)) == 2
    assert ids == [call.id for call in read(chunk(same), chunk(same, finish="STOP")).tool_calls]
    assert all(id.startswith("gemini_") for id in ids)


def test_a_call_has_the_name_and_the_values_of_the_tool_that_was_offered() -> None:
    schema = {"type": "object", "properties": {"n": {"enum": [1, 2]}}}
    tool = ToolSpec(name="2fa." + "n" * 80, parameters=schema)
    request = AgentRequest(model=MODEL, input="hi", tools=[tool])
    declared = json.loads(CODEC.encode(request, stream=True).body)["tools"][0]["functionDeclarations"][0]
    assert declared["parametersJsonSchema"]["properties"]["n"]["enum"] == ["1", "2"]
    part = {"functionCall": {"name": declared["name"], "args": {"n": "2"}}}
    (call,) = read(chunk(part, finish="STOP"), request=request).tool_calls
    assert (call.name, call.arguments) == (tool.name, {"n": 2})


def test_arguments_that_come_one_by_one_are_put_together() -> None:
    def piece(*arguments: dict[str, Any], **call: Any) -> dict[str, Any]:
        return {"functionCall": {**call, **({"partialArgs": list(arguments)} if arguments else {})}}

    response = read(
        chunk({**piece(name="f", id="x", willContinue=True), "thoughtSignature": "s"}),
        chunk(piece({"jsonPath": "$.city", "stringValue": "Par", "willContinue": True}, willContinue=True)),
        chunk(piece({"jsonPath": "$.city", "stringValue": "is", "willContinue": True}, willContinue=True)),
        chunk(piece({"jsonPath": "$.city"}, willContinue=True)),
        chunk(
            piece(
                {"jsonPath": "$.days[0].n", "numberValue": 3.0},
                {"jsonPath": "$.days[0].f", "numberValue": 1.5},
                {"jsonPath": "$['a b'].on", "boolValue": False},
                {"jsonPath": "$.none", "nullValue": "NULL_VALUE"},
                willContinue=True,
            )
        ),
        chunk(piece(), finish="STOP"),
    )
    arguments = {"city": "Paris", "days": [{"n": 3, "f": 1.5}], "a b": {"on": False}, "none": None}
    assert response.content == (ToolCall(id="x", name="f", arguments=arguments, signature="s", origin=HOME),)


@pytest.mark.parametrize("path", ["$", "$[0]", "$.a[2]"])
def test_an_argument_without_a_place_is_a_failure(path: str) -> None:
    call = {"name": "f", "id": "x", "partialArgs": [{"jsonPath": path, "stringValue": "v"}]}
    with pytest.raises(errors.ProtocolError):
        read(chunk({"functionCall": call}, finish="STOP"))


def test_a_signature_may_come_with_a_later_piece_of_a_call() -> None:
    response = read(
        chunk({"functionCall": {"name": "f", "id": "x", "willContinue": True}}),
        chunk({"functionCall": {"args": {"a": 1}}, "thoughtSignature": "s"}, finish="STOP"),
    )
    assert response.content == (ToolCall(id="x", name="f", arguments={"a": 1}, signature="s", origin=HOME),)


def test_a_call_that_was_cut_off_has_no_arguments() -> None:
    growing = {"name": "f", "willContinue": True, "partialArgs": [{"jsonPath": "$.a", "stringValue": "x"}]}
    response = read(chunk({"functionCall": growing}, finish="MAX_TOKENS"))
    (call,) = response.tool_calls
    assert (call.arguments, call.invalid_arguments) == ({}, '{"a":"x"}')
    assert response.stop_reason == "length"


@pytest.mark.parametrize(
    "block",
    [
        {"executableCode": {"language": "PYTHON", "code": "1"}, "thoughtSignature": "s"},
        {"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "1"}},
        {"toolCall": {"toolType": "FILE_SEARCH", "id": "1"}},
        {"toolResponse": {"toolType": "FILE_SEARCH", "id": "1", "response": {}}},
        {"fromTheFuture": {"x": 1}},
        {"inlineData": {"mimeType": "image/png", "data": "cG5n"}, "thought": True},
    ],
    ids=lambda block: next(iter(block)),
)
def test_what_only_the_vendor_understands_is_kept_and_goes_back_as_it_came(block: dict[str, Any]) -> None:
    response = read(chunk({"text": "a"}, block), chunk({"text": "b"}, finish="STOP"))
    assert response.content[1] == VendorContent(kind=next(iter(block)), provider_data=block, origin=HOME)
    assert response.text == "ab"
    request = AgentRequest(model=MODEL, messages=[Message.user("hi"), response.message], input="go on")
    assert json.loads(CODEC.encode(request, stream=False).body)["contents"][1]["parts"] == [
        {"text": "a"},
        block,
        {"text": "b"},
    ]


def test_pictures_and_sounds_are_content_and_go_back_with_their_signature() -> None:
    picture = {"inlineData": {"mimeType": "image/png", "data": "cG5n"}, "thoughtSignature": "s"}
    sound = {"inlineData": {"mimeType": "audio/wav", "data": "d2F2"}}
    response = read(chunk(picture, sound, finish="STOP"))
    assert response.content == (
        ImageContent(image_data=b"png", media_type="image/png", provider_data={"thoughtSignature": "s"}, origin=HOME),
        AudioContent(data=b"wav", media_type="audio/wav"),
    )
    request = AgentRequest(model=MODEL, messages=[Message.user("hi"), response.message], input="go on")
    assert json.loads(CODEC.encode(request, stream=False).body)["contents"][1]["parts"] == [picture, sound]


def test_other_candidates_are_choices() -> None:
    def answer(first: str, second: str, **others: Any) -> dict[str, Any]:
        body = chunk({"text": first}, **others)
        other = {"index": 1, "content": {"parts": [{"text": second}]}, "avgLogprobs": -0.5}
        body["candidates"].append({**other, **({"finishReason": "MAX_TOKENS"} if others else {})})
        return body

    response = read(answer("a", "x"), answer("b", "y", finish="STOP"))
    assert (response.text, response.stop_reason) == ("ab", "stop")
    (choice,) = response.choices
    assert (choice.text, choice.stop_reason, choice.provider) == ("xy", "length", "gemini")
    assert choice.vendor == {"avgLogprobs": -0.5}
    assert AgentResponse.model_validate_json(response.model_dump_json()) == response
    decoder = CODEC.decoder({}, REQUEST)
    decoder.feed(frame(answer("a", "x")) + frame(chunk({"text": "b"}, finish="STOP")))
    decoder.end()
    assert not decoder.done, "the other candidate has not ended"


def test_data_without_a_field_is_the_vendors() -> None:
    ratings = [{"category": "HARM_CATEGORY_HARASSMENT", "probability": "LOW"}]
    data: dict[str, Any] = {"avgLogprobs": -0.2, "tokenCount": 3, "safetyRatings": ratings, "finishMessage": "fine"}
    usage = {"promptTokenCount": 3, "serviceTier": "flex", "trafficType": "ON_DEMAND"}
    top = {"createTime": "2026-01-01", "modelStatus": {"modelStage": "LEGACY"}, "usageMetadata": usage}
    response = read({**chunk({"text": "a"}, finish="STOP", **data), **top})
    stage = {"createTime": "2026-01-01", "modelStatus": {"modelStage": "LEGACY"}}
    assert response.vendor == {**data, **stage, "usageMetadata": {"trafficType": "ON_DEMAND"}}
    assert response.service_tier == "flex"
    assert response.warnings == ()


def test_calls_with_one_id_get_different_ones() -> None:
    call = {"functionCall": {"name": "look", "id": "c", "args": {}}}
    response = read(chunk(call, call, finish="STOP"))
    assert [one.id for one in response.tool_calls] == ["c", "c#2"]
    assert response.warnings == (REPEATED_CALL,)


def test_videos_and_files_are_content() -> None:
    files = [
        {"fileData": {"mimeType": "image/png", "fileUri": "gs://b/i"}},
        {"fileData": {"mimeType": "video/mp4", "fileUri": "gs://b/v"}},
        {"inlineData": {"mimeType": "video/mp4", "data": "dmlk"}},
    ]
    response = read(chunk(*files, finish="STOP"))
    assert response.content == (
        ImageContent(image_url="gs://b/i", media_type="image/png"),
        VideoContent(url="gs://b/v", media_type="video/mp4"),
        VideoContent(data=b"vid", media_type="video/mp4"),
    )
    request = AgentRequest(model=MODEL, messages=[Message.user("hi"), response.message], input="go on")
    assert json.loads(CODEC.encode(request, stream=False).body)["contents"][1]["parts"] == files


def test_tools_of_the_vendor_and_drafts_of_images_are_events() -> None:
    parts = [
        {"executableCode": {"language": "PYTHON", "code": "1", "id": "e1"}},
        {"codeExecutionResult": {"outcome": "OUTCOME_FAILED", "id": "e1"}},
        {"toolCall": {"toolType": "FILE_SEARCH", "id": "t1"}},
        {"toolResponse": {"toolType": "FILE_SEARCH", "id": "t1"}},
    ]
    draft = {"inlineData": {"mimeType": "image/png", "data": "cG5n"}, "thought": True}
    response, events = decode_stream([chunk(*parts, draft, {"text": "a"}, finish="STOP")])
    assert [(event.tool, event.status, event.id) for event in events if event.type == "tool_progress"] == [
        ("codeExecution", "in_progress", "e1"),
        ("codeExecution", "failed", "e1"),
        ("FILE_SEARCH", "in_progress", "t1"),
        ("FILE_SEARCH", "completed", "t1"),
    ]
    (image,) = [event.part for event in events if event.type == "partial_image"]
    assert image == ImageContent(image_data=b"png", media_type="image/png")
    assert [type(part) for part in response.content] == [VendorContent] * 5 + [TextContent]


def test_an_answer_does_not_fail_for_its_citations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "describe_malformed", lambda error: type(error).__name__)
    metadata = {"groundingChunks": [7], "groundingSupports": [{"groundingChunkIndices": [0]}]}
    response = read(chunk({"text": "a"}, finish="STOP", groundingMetadata=metadata))
    assert response.text == "a"
    assert response.content[0].provider_data == {"groundingMetadata": metadata}
    assert response.warnings == ("the citations could not be read (AttributeError)",)


# Sources


def web(uri: str) -> dict[str, Any]:
    return {"web": {"uri": uri, "title": uri.upper()}}


def test_places_are_counted_in_characters() -> None:
    text = "Zürich – groß"
    start = len("Zürich – ".encode())
    segment = {"startIndex": start, "endIndex": start + len("groß".encode()), "text": "groß"}
    support = {"segment": segment, "groundingChunkIndices": [0]}
    grounding = {"groundingChunks": [web("u")], "groundingSupports": [support], "webSearchQueries": ["q"]}
    response = read(chunk({"text": text[:4]}), chunk({"text": text[4:]}, finish="STOP", groundingMetadata=grounding))
    (part,) = response.content
    assert isinstance(part, TextContent)
    assert part.text == text
    assert part.citations == (Citation(url="u", title="U", start=9, end=13, provider_data=web("u")),)
    assert text[9:13] == "groß"
    assert part.provider_data == {"groundingMetadata": grounding}


def test_a_citation_belongs_to_the_text_it_lies_in() -> None:
    grounding = {
        "groundingChunks": [web("a"), web("b"), web("c")],
        "groundingSupports": [
            {"segment": {"endIndex": 3, "text": "one"}, "groundingChunkIndices": [0]},
            {"segment": {"startIndex": 3, "endIndex": 6, "text": "two"}, "groundingChunkIndices": [1, 7]},
            {"segment": {"startIndex": 90, "endIndex": 99, "text": "gone"}, "groundingChunkIndices": []},
        ],
    }
    response = read(
        chunk(
            {"text": "one", "thoughtSignature": "s"},
            {"text": "two"},
            {"text": "", "thoughtSignature": "t"},
            finish="STOP",
            groundingMetadata=grounding,
        )
    )
    first, second, last = response.content
    assert isinstance(first, TextContent)
    assert isinstance(second, TextContent)
    assert first.signature == "s"
    assert [(citation.url, citation.start, citation.end) for citation in first.citations] == [("a", 0, 3)]
    assert [(citation.url, citation.start, citation.end) for citation in second.citations] == [
        ("b", 0, 3),
        ("c", None, None),
    ]
    assert last == TextContent(text="", signature="t", origin=HOME)


def test_a_place_whose_words_are_not_the_quoted_ones_is_not_believed() -> None:
    support = {"segment": {"startIndex": 0, "endIndex": 3, "text": "two"}, "groundingChunkIndices": [0]}
    grounding = {"groundingChunks": [web("a")], "groundingSupports": [support]}
    (part,) = read(chunk({"text": "one two"}, finish="STOP", groundingMetadata=grounding)).content
    assert isinstance(part, TextContent)
    assert [(citation.start, citation.end) for citation in part.citations] == [(4, 7)]


@pytest.mark.parametrize(
    ("segment", "place"),
    [
        ({"startIndex": 0, "endIndex": 3, "text": "two"}, (1, 0, 3)),
        ({"startIndex": 2, "endIndex": 9}, (1, None, None)),
        ({"startIndex": 4, "endIndex": 5, "text": "?"}, (1, None, None)),
        ({}, (1, None, None)),
    ],
    ids=["counted from the second text", "outside", "inside a character", "nowhere"],
)
def test_a_place_is_looked_for_in_each_text(segment: dict[str, Any], place: tuple[int, int | None, int | None]) -> None:
    grounding = {
        "groundingChunks": [web("a")],
        "groundingSupports": [{"segment": segment, "groundingChunkIndices": [0]}],
    }
    parts = [{"text": "öne", "thoughtSignature": "s"}, {"text": "two"}]
    response = read(chunk(*parts, finish="STOP", groundingMetadata=grounding))
    found = [
        (number, citation.start, citation.end)
        for number, part in enumerate(response.content)
        if isinstance(part, TextContent)
        for citation in part.citations
    ]
    assert found == [place]


@pytest.mark.parametrize("key", ["citations", "citationSources"])
def test_quoted_sources_are_citations(key: str) -> None:
    source = {"startIndex": 0, "endIndex": 3, "uri": "u", "license": "MIT"}
    (part,) = read(chunk({"text": "one two"}, finish="STOP", citationMetadata={key: [source]})).content
    assert isinstance(part, TextContent)
    assert part.citations == (Citation(url="u", start=0, end=3, provider_data=source),)


def test_sources_of_an_answer_without_text_are_kept() -> None:
    grounding = {"webSearchQueries": ["q"]}
    call = {"functionCall": {"name": "f", "args": {}, "id": "1"}}
    response = read(chunk(call, finish="STOP", groundingMetadata=grounding))
    assert response.content[1] == VendorContent(
        kind="metadata", provider_data={"groundingMetadata": grounding}, origin=HOME
    )


# How it ended


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        ("STOP", "stop"),
        ("MAX_TOKENS", "length"),
        ("SAFETY", "content_filter"),
        ("RECITATION", "content_filter"),
        ("BLOCKLIST", "content_filter"),
        ("PROHIBITED_CONTENT", "content_filter"),
        ("SPII", "content_filter"),
        ("IMAGE_SAFETY", "content_filter"),
        ("IMAGE_PROHIBITED_CONTENT", "content_filter"),
        ("IMAGE_RECITATION", "content_filter"),
        ("MALFORMED_FUNCTION_CALL", "error"),
        ("MALFORMED_RESPONSE", "error"),
        ("UNEXPECTED_TOOL_CALL", "error"),
        ("TOO_MANY_TOOL_CALLS", "error"),
        ("CONTINUATION", "pause"),
        ("LANGUAGE", "other"),
        ("OTHER", "other"),
        ("NO_IMAGE", "other"),
        ("IMAGE_OTHER", "other"),
        ("FROM_THE_FUTURE", "other"),
    ],
)
def test_every_reason_has_its_meaning(word: str, reason: str) -> None:
    response = read(chunk(finish=word, finishMessage="because"))
    assert (response.stop_reason, response.raw_stop_reason) == (reason, word)
    assert response.warnings == (() if word == "STOP" else (f"the response ended with {word}: because",))


def test_calls_that_are_there_count_more_than_that_they_were_not_expected() -> None:
    call = {"functionCall": {"name": "f", "args": {}, "id": "1"}}
    assert read(chunk(call, finish="UNEXPECTED_TOOL_CALL")).stop_reason == "tool_calls"
    assert read(chunk(call, finish="SAFETY")).stop_reason == "content_filter"


def test_a_question_that_was_not_taken_is_an_answer_without_content() -> None:
    feedback = {"blockReason": "SAFETY", "blockReasonMessage": "It is not nice."}
    response = read({"promptFeedback": feedback, "usageMetadata": {"promptTokenCount": 4}, "modelVersion": "m"})
    assert (response.content, response.stop_reason, response.raw_stop_reason) == ((), "content_filter", None)
    assert response.warnings == ("the vendor rejected the prompt (SAFETY): It is not nice.",)
    assert response.usage is not None
    assert response.usage.prompt_tokens == 4


@pytest.mark.malformed
@pytest.mark.parametrize(
    "body",
    [{}, [], {"candidates": []}, {"usageMetadata": {}}, chunk({"text": "a"}), [chunk({"text": "a"})], None, "x", 7],
    ids=repr,
)
def test_an_answer_that_does_not_say_how_it_ended_is_none(body: Any) -> None:
    with pytest.raises(errors.ProtocolError):
        CODEC.decode(Reply(200, {}, json.dumps(body).encode()), REQUEST)


def test_probabilities_are_read() -> None:
    result = {
        "chosenCandidates": [{"token": "a", "logProbability": -0.1, "tokenId": 1}],
        "topCandidates": [
            {"candidates": [{"token": "a", "logProbability": -0.1}, {"token": "b", "logProbability": -3}]}
        ],
    }
    response = read(
        chunk({"text": "a"}, logprobsResult=result), chunk({"text": "a"}, finish="STOP", logprobsResult=result)
    )
    token = {"token": "a", "logprob": -0.1}
    assert response.logprobs == ({**token, "top": [token, {"token": "b", "logprob": -3}]},) * 2


# Counts


def test_thoughts_are_output_and_what_tools_read_is_in_the_total() -> None:
    usage = read_usage(
        {
            "promptTokenCount": 100,
            "cachedContentTokenCount": 60,
            "candidatesTokenCount": 10,
            "thoughtsTokenCount": 30,
            "toolUsePromptTokenCount": 30,
            "totalTokenCount": 170,
            "promptTokensDetails": [
                {"modality": "TEXT", "tokenCount": 80},
                {"modality": "AUDIO", "tokenCount": 20},
            ],
            "cacheTokensDetails": [{"modality": "AUDIO", "tokenCount": 5}],
            "candidatesTokensDetails": [{"modality": "IMAGE", "tokenCount": 7}],
        }
    )
    assert (usage.prompt_tokens, usage.cache_read_tokens, usage.input_tokens) == (100, 60, 40)
    assert (usage.completion_tokens, usage.reasoning_tokens, usage.total_tokens) == (40, 30, 170)
    assert usage.details == {
        "input_tool_tokens": 30,
        "input_audio_tokens": 20,
        "cache_audio_read_tokens": 5,
        "output_image_tokens": 7,
    }


def test_counts_in_every_chunk_replace_each_other() -> None:
    chunks = [
        {**chunk({"text": "a"}), "usageMetadata": {"promptTokenCount": 5, "candidatesTokenCount": 1}},
        {**chunk({"text": "b"}, finish="STOP"), "usageMetadata": {"promptTokenCount": 5, "candidatesTokenCount": 2}},
        {"usageMetadata": {"promptTokenCount": 5, "candidatesTokenCount": 3, "thoughtsTokenCount": 4}},
    ]
    usage = read(*chunks).usage
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens) == (5, 7), "counts after the finish reason are not lost"


# Streams


def frame(piece: Any) -> bytes:
    return b"data: " + json.dumps(piece).encode() + b"\n\n"


def test_what_follows_a_finish_reason_is_still_part_of_the_answer() -> None:
    response, events = decode_stream([chunk({"text": "a"}, finish="STOP"), chunk({"text": "b"}, finish="STOP")])
    assert response.text == "ab"
    assert [event.type for event in events] == ["message_start", "text_delta", "text_delta", "message_end"]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        frame(chunk({"text": "a"})),
        frame(chunk({"text": "a"}, finish="STOP"))[:-2],
        frame(chunk({"text": "a"}, finish="STOP")) + b'data: {"usage',
    ],
    ids=["empty", "no reason", "no end of the event", "cut after the reason"],
)
def test_a_stream_cut_off_is_not_done(data: bytes) -> None:
    decoder = CODEC.decoder({}, REQUEST)
    decoder.feed(data)
    decoder.end()
    assert not decoder.done


def test_a_stream_is_done_only_when_its_bytes_have_ended() -> None:
    decoder = CODEC.decoder({}, REQUEST)
    decoder.feed(frame(chunk({"text": "a"}, finish="STOP")))
    assert not decoder.done
    assert [event.type for event in decoder.end()] == ["message_end"]
    assert decoder.done


def test_a_broken_off_stream_knows_what_it_cost_so_far() -> None:
    decoder = CODEC.decoder({}, REQUEST)
    decoder.feed(frame({**chunk({"text": "a"}), "usageMetadata": {"promptTokenCount": 5}}))
    decoder.feed(frame({**chunk({"text": "b"}), "usageMetadata": {"promptTokenCount": 5, "candidatesTokenCount": 2}}))
    partial = decoder.partial()
    assert partial.text == "ab"
    assert partial.usage is not None
    assert partial.usage.total_tokens == 7


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ({"code": 503, "message": "The model is overloaded.", "status": "UNAVAILABLE"}, errors.OverloadedError),
        ({"code": 429, "message": "Slow down.", "status": "RESOURCE_EXHAUSTED"}, errors.RateLimitError),
        ({"code": 500, "message": "Internal.", "status": "INTERNAL"}, errors.ProviderError),
    ],
)
def test_an_error_inside_a_stream_has_its_type(error: dict[str, Any], kind: type[errors.AgentError]) -> None:
    decoder = CODEC.decoder({}, REQUEST)
    decoder.feed(frame(chunk({"text": "a"})) + frame({"error": error}) + frame(chunk({"text": "b"}, finish="STOP")))
    decoder.end()
    assert not decoder.done
    assert type(decoder.failure) is kind
    assert decoder.failure.retryable
    assert decoder.partial().text == "a"


@pytest.mark.malformed
@pytest.mark.parametrize(
    "payload",
    [b"{", b"[]", b"7", b'{"x": 1}', b'{"candidates": [7]}', b'{"candidates": [{"content": {"parts": [7]}}]}'],
)
def test_a_chunk_that_cannot_be_read_is_a_failure(payload: bytes) -> None:
    decoder = CODEC.decoder({}, REQUEST)
    decoder.feed(b"data: " + payload + b"\n\n" + frame(chunk({"text": "a"}, finish="STOP")))
    decoder.end()
    assert isinstance(decoder.failure, errors.ProtocolError)
    assert not decoder.done


@pytest.mark.parametrize(
    "counts",
    [
        b'{"promptTokenCount": 1e400}',
        b'{"promptTokensDetails": [null]}',
        b'{"promptTokensDetails": 7}',
        b'{"candidatesTokenCount": "7"}',
    ],
)
def test_an_answer_does_not_fail_for_a_count_that_is_none(counts: bytes) -> None:
    data = json.dumps(chunk({"text": "a"}, finish="STOP")).encode()[:-1] + b', "usageMetadata": ' + counts + b"}"
    decoder = CODEC.decoder({}, REQUEST)
    decoder.feed(b"data: " + data + b"\n\n")
    assert decoder.partial().text == "a"
    decoder.end()
    assert decoder.response() == CODEC.decode(Reply(200, {}, data), REQUEST)
    assert decoder.response().usage == Usage()


def test_a_stream_whose_end_cannot_be_read_is_not_done() -> None:
    decoder = CODEC.decoder({}, REQUEST)
    decoder.feed(frame(chunk({"text": "a"}, finishReason=7)))
    decoder.end()
    assert isinstance(decoder.failure, errors.ProtocolError)
    assert not decoder.done


def test_a_reason_that_is_none_does_not_end_an_answer() -> None:
    decoder = CODEC.decoder({}, REQUEST)
    decoder.feed(frame(chunk({"text": "a"}, finish="FINISH_REASON_UNSPECIFIED")))
    decoder.end()
    assert not decoder.done


def test_a_part_is_what_it_holds_and_not_what_is_null_or_stands_beside() -> None:
    answer = read(
        chunk(
            {"partMetadata": {"a": 1}, "text": "said"},
            {"text": None, "inlineData": {"mimeType": "image/png", "data": "AAAA"}},
            {"functionCall": None, "text": "more"},
            finish="STOP",
        )
    )
    assert [part.type for part in answer.content] == ["text", "image", "text"]
    assert answer.text == "saidmore"


def test_nothing_is_said_before_there_is_content() -> None:
    decoder = CODEC.decoder({}, REQUEST)
    assert decoder.feed(frame({"usageMetadata": {"promptTokenCount": 5}, "modelVersion": "m", "responseId": "r"})) == []
    assert [event.type for event in decoder.feed(frame(chunk({"text": "a"})))] == ["message_start", "text_delta"]


def test_a_picture_larger_than_a_usual_event_arrives() -> None:
    data = "A" * 4_000_000
    response, _ = decode_stream([chunk({"inlineData": {"mimeType": "image/png", "data": data}}, finish="STOP")])
    (part,) = response.content
    assert isinstance(part, ImageContent)
    assert len(part.image_data or b"") == 3_000_000


# Failures


def test_an_error_at_the_end_of_an_array_is_a_failure() -> None:
    body = [chunk({"text": "a"}), {"error": {"code": 503, "message": "Overloaded.", "status": "UNAVAILABLE"}}]
    with pytest.raises(errors.OverloadedError, match="Overloaded"):
        CODEC.decode(Reply(200, {}, json.dumps(body).encode()), REQUEST)


def decode_error(status: int, error: dict[str, Any], *, array: bool = False) -> errors.AgentError:
    body: Any = {"error": {"code": status, **error}}
    return CODEC.decode_error(Reply(status, {}, json.dumps([body] if array else body).encode()), REQUEST)


@pytest.mark.parametrize("array", [False, True], ids=["object", "array"])
def test_failures_have_their_types_in_an_object_and_in_an_array(array: bool) -> None:
    reason = {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "API_KEY_INVALID"}
    refused = decode_error(400, {"message": "API key not valid.", "details": [reason]}, array=array)
    assert type(refused) is errors.AuthenticationError
    assert (refused.code, refused.retryable) == ("400", False)
    delay = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "3.5s"}
    limited = decode_error(429, {"message": "Resource exhausted.", "details": [delay]}, array=array)
    assert type(limited) is errors.RateLimitError
    assert limited.retry_after == 3.5
    too_long = "The input token count (2000000) exceeds the maximum number of tokens allowed (1048576)."
    assert type(decode_error(400, {"message": too_long}, array=array)) is errors.ContextLengthError
    assert type(decode_error(503, {"message": "Overloaded."}, array=array)) is errors.OverloadedError
    assert type(decode_error(403, {"message": "No."}, array=array)) is errors.AuthenticationError
    assert type(decode_error(404, {"message": "No such model."}, array=array)) is errors.ModelNotFoundError
