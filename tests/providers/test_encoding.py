"""Encoding is deterministic, for every form of a request and every order of targets."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.errors import ConfigurationError
from agent.types import AgentRequest, FrozenDict, Message, Role, TextContent, ToolSpec
from agent.types.messages import RoleName
from tests.providers.encoding_targets import TARGETS, codec_of, copy_request, encode_request, model_of
from tests.support.values import agent_requests

APIS = ("openai-chat:gpt-4o", "openai-responses:gpt-4o", "anthropic:claude-sonnet-4-5", "gemini:gemini-2.5-flash")


def with_model(request: AgentRequest, target: str) -> AgentRequest:
    return request.copy_with(model=model_of(target), messages=tuple(request.to_messages()), input=None, system=None)


@pytest.mark.parametrize("target", TARGETS)
@settings(max_examples=25)
@given(data=st.data())
def test_a_conversation_that_grew_is_written_as_one_that_is_new(target: str, data: st.DataObject) -> None:
    request = with_model(data.draw(agent_requests(model_of(target))), target)
    stream = data.draw(st.booleans())
    expected = encode_request(target, copy_request(request), stream=stream)
    for length in range(len(request.messages)):
        hint = (None, "short", "long")[length % 3]  # cache breakpoints change the encoding
        encode_request(target, request.copy_with(messages=request.messages[:length], cache=hint), stream=stream)
    for _ in range(2):
        assert encode_request(target, request, stream=stream) == expected


@settings(max_examples=60)
@given(data=st.data())
def test_what_one_vendor_was_sent_does_not_change_what_another_is_sent(data: st.DataObject) -> None:
    """Nor one model, one dialect or another set of settings."""
    request = data.draw(agent_requests("m"))
    targets = data.draw(st.permutations(TARGETS))[:4]
    asked = [with_model(request, target) for target in targets]
    expected = [encode_request(target, copy_request(one)) for target, one in zip(targets, asked, strict=True)]
    bare = request.copy_with(cache=None, tools=(), tool_choice=None, parallel_tool_calls=None, extra={"store": True})
    for _ in range(2):
        for target, one, wanted in zip(targets, asked, expected, strict=True):
            encode_request(target, with_model(bare, target))
            encode_request(target, one.copy_with(messages=one.messages[1:]))
            assert encode_request(target, one) == wanted


# Serialization of a complete body


@pytest.mark.parametrize("text", ["hi", 'caf\u00e9 "\\/\n\x00\u2028', " x ", "NaN"])
@pytest.mark.parametrize("role", ["user", "assistant", "system"])
@pytest.mark.parametrize("target", TARGETS)
def test_words_are_written_as_the_same_words_in_parts(target: str, role: RoleName, text: str) -> None:
    """Words take a way of their own; parts are taken one by one."""

    def build_request(content: Any) -> AgentRequest:
        said = [Message("user", "q"), Message(role, content), Message("user", "a"), Message("user", "b")]
        named = Message("user", content, name="Ann")
        return AgentRequest(messages=[*said, named, said[0]], model=model_of(target))

    assert encode_request(target, build_request(text)) == encode_request(
        target, build_request([TextContent(text=text)])
    )


@pytest.mark.parametrize("target", APIS)
def test_half_a_character_is_named_with_its_fix(target: str) -> None:
    request = AgentRequest(messages=[Message("user", "half \ud83d of it")], model=model_of(target))
    for _ in range(2):
        with pytest.raises(ConfigurationError, match=r"cannot be serialized as JSON.*surrogates") as caught:
            codec_of(target).encode(request, stream=False)
        assert caught.value.field == "request"
        assert caught.value.fix is not None


SCHEMAS: tuple[dict[str, Any], ...] = (
    {},
    {"type": "object"},
    {"properties": {"n": {"type": "integer"}}},
    {"type": "object", "properties": {"n": {"minimum": 0.5, "maximum": 1e22, "enum": (1, 2.0, None, True)}}},
    {"type": "object", "properties": {"\u00e9": {"const": 'a "quote" \\ \x00'}}, "x": [[], {}, [{"y": {}}]]},
    {"type": "object", "properties": {"n": {"default": float("nan")}}},
    {"type": "object", "properties": {"n": {"default": b"bytes"}}},
    {"type": "object", "properties": {1: {"type": "string"}}},
    {"type": "object", "properties": {"n": FrozenDict(type="string")}},
    {"type": "object", "properties": {"n": {"default": Role.USER}}},
    {"type": "object", "properties": {"n": {"default": object}}},
)


@pytest.mark.parametrize("schema", SCHEMAS)
@pytest.mark.parametrize("description", ["", "Looks \u00e9."])
@pytest.mark.parametrize("name", ["look", "look.at:it", "1st"])
def test_a_plain_tool_is_written_as_one_that_pydantic_has_read(
    name: str, description: str, schema: dict[str, Any]
) -> None:
    given: dict[str, Any] = {"name": name, "description": description, "parameters": schema}
    for target in TARGETS:
        asked = [
            AgentRequest(input="hi", tools=[tool], model=model_of(target))
            for tool in (
                ToolSpec(**given),
                ToolSpec.model_validate(given),
                pickle.loads(pickle.dumps(ToolSpec(**given))),
            )
        ]
        first, *others = [encode_request(target, request) for request in asked]
        assert [first, first] == others


def test_a_tool_is_written_as_it_was_when_it_was_made() -> None:
    schema: dict[str, Any] = {"type": "object", "properties": {"n": {"type": "integer"}}}
    tools = [ToolSpec(name="look", description="Looks.", parameters=schema)]
    expected = [
        encode_request(target, AgentRequest(input="hi", tools=tools, model=model_of(target))) for target in APIS
    ]
    later = [ToolSpec(name="look", description="Looks.", parameters=schema)]
    schema["properties"]["n"]["type"] = "string"
    for target, wanted in zip(APIS, expected, strict=True):
        assert encode_request(target, AgentRequest(input="hi", tools=later, model=model_of(target))) == wanted


def test_a_changed_tool_is_written_anew() -> None:
    tool = ToolSpec(name="look", description="Looks.", parameters={"type": "object", "properties": {}})
    for target in APIS:
        for change in ({"strict": True}, {"extra": {"more": 1}}, {"parameters": {"type": "object", "title": "T"}}):
            changed = tool.model_copy(update=change)
            fresh_one = ToolSpec.from_dict(changed.to_dict())
            sent = [
                encode_request(target, AgentRequest(input="hi", tools=[one], model=model_of(target)))
                for one in (tool, changed, fresh_one)
            ]
            assert sent[1] == sent[2]
            assert sent[0] != sent[1] or "strict" in change


def test_what_a_tool_loses_is_told_every_time() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 1}}, "required": ["n"]}
    tool = ToolSpec(name="look", parameters={**schema, "additionalProperties": False}, strict=True)
    for target in APIS:
        request = AgentRequest(input="hi", tools=[tool], model=model_of(target))
        first = codec_of(target).encode(request, stream=False).warnings
        assert codec_of(target).encode(request, stream=False).warnings == first
        assert target.startswith("anthropic") == any("minimum is not enforced" in warning for warning in first)
