"""Content parts: accepted and refused input, and round trips."""

from __future__ import annotations

import copy
import json
import pickle
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError
from typing_extensions import override

from agent.types import (
    AudioContent,
    ContentPart,
    DocumentContent,
    FrozenDict,
    FrozenList,
    ImageContent,
    Origin,
    TextContent,
    ThinkingContent,
    ToolCall,
    ToolResult,
    freeze,
)


def test_the_front_door_gives_objects_of_the_fitting_class() -> None:
    assert type(ContentPart(type="text", text="a")) is TextContent
    assert type(ContentPart(type="tool_use", id="1", name="f", input={})) is ToolCall
    assert type(ContentPart(type="image_url", image_url="https://x/y")) is ImageContent
    listed = TypeAdapter(list[ContentPart]).validate_python([{"type": "text", "text": "a"}])
    assert type(listed[0]) is TextContent


@pytest.mark.parametrize("fields", [{}, {"text": "a"}, {"type": "bogus"}, {"type": ["text"]}])
def test_the_front_door_refuses_what_it_does_not_know(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        ContentPart.model_validate(fields)


def test_the_constructor_of_the_front_door_refuses_too() -> None:
    with pytest.raises(ValidationError):
        ContentPart(type="bogus")


def test_a_part_accepts_only_its_own_tags() -> None:
    with pytest.raises(ValidationError):
        TextContent.from_dict({"type": "thinking", "text": "a"})


def test_attributes_of_other_parts_read_as_none() -> None:
    call = ToolCall(id="1", name="f")
    assert (call.text, call.image_url, call.image_data, call.media_type) == (None, None, None, None)


@pytest.mark.parametrize(
    ("cls", "fields", "spelling"),
    [
        (TextContent, {"text": "a"}, "text_signature"),
        (ThinkingContent, {"thinking": "a"}, "thinking_signature"),
        (ToolCall, {"id": "1", "name": "f"}, "thought_signature"),
    ],
)
def test_signatures_have_one_name(cls: type[TextContent], fields: dict[str, Any], spelling: str) -> None:
    part = cls.from_dict({**fields, spelling: "sealed"})
    assert part.signature == "sealed"
    assert part.model_copy(update={spelling: "other"}).signature == "other"


def test_opaque_data_is_kept_word_for_word_with_its_origin() -> None:
    origin = Origin(provider="openrouter", api="chat", model="m")
    data = {"reasoning_details": [{"type": "x", "data": None}]}
    part = ThinkingContent(thinking="", provider_data=data, origin=origin, redacted=True)
    assert part.to_dict()["provider_data"] == data
    assert ThinkingContent.from_dict(part.to_dict()) == part


def test_a_call_answers_like_a_dictionary() -> None:
    call = ToolCall(id="1", name="f", arguments={"x": 1})
    assert [call[key] for key in ("type", "id", "name")] == ["tool_call", "1", "f"]
    assert call["arguments"] == call["input"] == {"x": 1}
    assert (call["signature"], call.get("signature", "none"), call.get("colour", "none")) == (None, None, "none")
    for key in ("colour", "model_dump", "_carried"):
        with pytest.raises(KeyError):
            call[key]


@pytest.mark.parametrize("text", ['{"x": ', "nonsense", "[1]", '"x"', "1"])
def test_arguments_that_are_no_json_object_are_refused_by_name(text: str) -> None:
    with pytest.raises(ValidationError, match="arguments"):
        ToolCall(id="1", name="f", arguments=text)


@pytest.mark.parametrize("nothing", [None, "", {}, "{}"])
def test_a_call_without_arguments_has_empty_ones(nothing: Any) -> None:
    assert ToolCall(id="1", name="f", arguments=nothing).arguments == {}


def test_arguments_nested_too_deeply_are_a_validation_error() -> None:
    nested: Any = {}
    for _ in range(100_000):
        nested = {"x": nested}
    with pytest.raises(ValidationError, match="too deeply"):
        ToolCall(id="1", name="f", arguments=nested)
    with pytest.raises(ValidationError, match="arguments"):
        ToolCall(id="1", name="f", arguments='{"x":' * 100_000)
    while nested:  # taken apart by hand: freeing it recursively is deep, too
        nested = nested.pop("x")


def test_none_inside_arguments_survives() -> None:
    call = ToolCall(id="1", name="f", arguments={"x": None})
    assert call.to_dict()["arguments"] == {"x": None}


PNG = b"\x89PNG"
BASE64 = "iVBORw=="


@pytest.mark.parametrize(
    "spelling",
    [
        {"type": "image", "data": BASE64, "mediaType": "image/png"},
        {"type": "image", "data": PNG, "mime_type": "image/png"},
        {"type": "image", "image_data": PNG, "media_type": "image/png"},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": BASE64}},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{BASE64}"}},
        {"type": "image_url", "image_url": f"data:image/png;base64,{BASE64}"},
        {"type": "image", "data": f"data:image/png;base64,{BASE64}"},
        {"type": "image", "url": "data:image/png,%89PNG"},
    ],
)
def test_every_spelling_of_an_image_by_value(spelling: dict[str, Any]) -> None:
    assert ContentPart.model_validate(spelling) == ImageContent(image_data=PNG, media_type="image/png")


@pytest.mark.parametrize(
    "spelling",
    [
        {"type": "image", "url": "https://x/y"},
        {"type": "image", "data": "https://x/y"},
        {"type": "image_url", "image_url": "https://x/y"},
        {"type": "image_url", "image_url": {"url": "https://x/y"}},
        {"type": "image", "source": {"type": "url", "url": "https://x/y"}},
    ],
)
def test_every_spelling_of_an_image_by_address(spelling: dict[str, Any]) -> None:
    part = ContentPart.model_validate(spelling)
    assert part == ImageContent(image_url="https://x/y")
    assert part.type == "image_url"


def test_an_image_has_one_address() -> None:
    image = ImageContent(image_url="https://x/y")
    assert (image.url, image.data, image.images) == ("https://x/y", None, (image,))
    with pytest.raises(ValidationError, match="differ"):
        image.model_copy(update={"url": "https://x/z"})


def test_how_closely_to_look_is_kept() -> None:
    part = ImageContent.from_dict({"type": "image_url", "image_url": {"url": "https://x/y", "detail": "low"}})
    assert part.detail == "low"


@pytest.mark.parametrize("fields", [{}, {"image_url": "https://x/y", "image_data": b"x"}, {"url": None}])
def test_an_image_needs_an_address_or_data_and_says_so(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="exactly one of image_url, image_data"):
        ImageContent(**fields)


@pytest.mark.parametrize("data", ["not base64!", "é", "data:nothing"])
def test_data_that_is_not_base64_is_refused(data: str) -> None:
    with pytest.raises(ValidationError):
        ImageContent.from_dict({"data": data})


def test_image_bytes_are_base64_in_json_and_not_printed() -> None:
    image = ContentPart.image_data_part(bytes(range(256)), media_type="image/png")
    assert ImageContent.model_validate_json(image.model_dump_json()) == image
    assert json.loads(image.model_dump_json())["image_data"].startswith("AAECAwQF")
    assert "x00" not in repr(image)
    assert image.model_dump()["image_data"] == bytes(range(256))


@pytest.mark.parametrize(
    ("spelling", "expected"),
    [
        ({"url": "https://x/y.pdf"}, DocumentContent(url="https://x/y.pdf")),
        ({"url": "data:application/pdf;base64,AAEC"}, DocumentContent(data=b"\0\1\2", media_type="application/pdf")),
        (
            {"source": {"type": "base64", "media_type": "a/b", "data": "AAEC"}},
            DocumentContent(data=b"\0\1\2", media_type="a/b"),
        ),
        (
            {"source": {"type": "text", "media_type": "text/plain", "data": "hi"}},
            DocumentContent(text="hi", media_type="text/plain"),
        ),
        ({"source": {"type": "url", "url": "https://x"}, "title": "T"}, DocumentContent(url="https://x", title="T")),
    ],
)
def test_every_spelling_of_a_document(spelling: dict[str, Any], expected: DocumentContent) -> None:
    assert ContentPart.model_validate({"type": "document", **spelling}) == expected


@pytest.mark.parametrize("fields", [{}, {"url": "https://x", "text": "a"}, {"source": {"type": "file"}}])
def test_a_document_needs_exactly_one_source(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=r"exactly one of url, data, text|source\.type"):
        DocumentContent(**fields)


def test_audio_is_base64_in_json() -> None:
    audio = AudioContent(data=b"\0\1", media_type="audio/wav")
    assert audio.to_dict() == {"type": "audio", "data": "AAE=", "media_type": "audio/wav"}


def test_a_result_is_rendered_for_the_model_when_it_has_no_content() -> None:
    assert ToolResult(tool_call_id="1", result={"a": [1, "é"]}).content == '{"a":[1,"é"]}'
    assert ToolResult(tool_call_id="1", result="plain").content == "plain"
    assert ToolResult(tool_call_id="1", result={"a": 1}, content="short").content == "short"
    assert ToolResult(tool_call_id="1").content == ""


def test_a_result_may_be_any_object() -> None:
    class Thing:
        @override
        def __str__(self) -> str:
            return "a thing"

    result = ToolResult(tool_call_id="1", result=Thing())
    assert result.content == '"a thing"'
    assert result.to_dict()["result"] == "a thing"


def test_the_text_of_a_result_leaves_images_out() -> None:
    image = ImageContent(image_url="https://x/y")
    result = ToolResult(tool_call_id="1", content=[TextContent(text="a"), image, TextContent(text="b")])
    assert result.text == "ab"
    assert result.content == (TextContent(text="a"), image, TextContent(text="b"))
    assert ToolResult(tool_call_id="1", content=image).content == (image,)


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d.__setitem__("a", 2),
        lambda d: d.__delitem__("a"),
        lambda d: d.update(a=2),
        lambda d: d.pop("a"),
        lambda d: d.popitem(),
        lambda d: d.clear(),
        lambda d: d.setdefault("c", 2),
        lambda d: d.__ior__({"c": 1}),
        lambda d: d["b"].append(2),
        lambda d: d["b"].extend([2]),
        lambda d: d["b"].insert(0, 2),
        lambda d: d["b"].pop(),
        lambda d: d["b"].remove(1),
        lambda d: d["b"].clear(),
        lambda d: d["b"].sort(),
        lambda d: d["b"].reverse(),
        lambda d: d["b"].__iadd__([2]),
        lambda d: d["b"].__imul__(2),
        lambda d: d["b"].__setitem__(0, 2),
        lambda d: d["b"].__delitem__(0),
    ],
)
def test_arguments_cannot_be_changed(change: Any) -> None:
    call = ToolCall(id="1", name="f", arguments={"a": 1, "b": [1]})
    with pytest.raises(TypeError, match="read-only"):
        change(call.arguments)
    assert call.arguments == {"a": 1, "b": [1]}


def test_a_copy_of_arguments_is_mutable_and_apart() -> None:
    call = ToolCall(id="1", name="f", arguments={"b": [{"c": 1}]})
    mine = call.arguments.copy()
    mine["b"][0]["c"] = 2
    mine["b"].append(3)
    assert call.arguments == {"b": [{"c": 1}]}
    assert type(mine) is dict
    assert type(mine["b"]) is list
    assert type(call.arguments["b"].copy()) is list


def test_frozen_collections_come_out_of_pickles_frozen() -> None:
    value = pickle.loads(pickle.dumps(freeze({"a": [1]})))
    assert type(value) is FrozenDict
    assert type(value["a"]) is FrozenList


def test_frozen_collections_are_their_own_copies() -> None:
    value = freeze({"a": [1]})
    assert copy.copy(value) is copy.deepcopy(value) is value
    assert copy.copy(value["a"]) is copy.deepcopy(value["a"]) is value["a"]


def test_frozen_collections_may_be_annotations() -> None:
    value = TypeAdapter(FrozenDict).validate_python({"a": [1]})
    assert type(value) is FrozenDict
    assert type(TypeAdapter(FrozenList).validate_python([1])) is FrozenList


def test_dumps_are_plain_and_mutable() -> None:
    dumped = ToolCall(id="1", name="f", arguments={"a": [1]}).model_dump()
    dumped["arguments"]["a"].append(2)
    assert dumped["arguments"] == {"a": [1, 2]}


def test_parts_cannot_be_changed() -> None:
    part = TextContent(text="a")
    with pytest.raises(AttributeError, match="frozen"):
        part.text = "b"  # type: ignore[misc]
    with pytest.raises(AttributeError, match="frozen"):
        del part.text
    assert part.model_copy(update={"text": "b"}) == TextContent(text="b")
    with pytest.raises(ValidationError):
        part.model_copy(update={"text": 5})


def test_equal_parts_are_one_in_a_set() -> None:
    a = ToolCall(id="1", name="f", arguments={"x": [1, {"y": 2}], "z": 3})
    b = ToolCall(id="1", name="f", arguments={"z": 3, "x": [1, {"y": 2}]})
    assert len({a, b}) == 1
