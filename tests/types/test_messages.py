"""Messages and requests: content is the truth, and a request that cannot work says which field to fix."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import BaseModel, TypeAdapter, ValidationError

from agent import errors
from agent.types import (
    AgentRequest,
    ContentPart,
    FrozenDict,
    ImageContent,
    Message,
    Role,
    TextContent,
    ThinkingLevel,
    ToolCall,
    ToolResult,
    ToolSpec,
    Usage,
    WebSearch,
)

CALL = ToolCall(id="1", name="f", arguments={"x": 1})

# --- messages ---------------------------------------------------------------------------------------------------------


def test_text_stays_text_after_a_round_trip() -> None:
    assert Message.from_dict(Message.user("a").to_dict()).content == "a"


def test_parts_stay_parts() -> None:
    message = Message.user([TextContent(text="a")])
    assert message.content == (TextContent(text="a"),)
    assert message != Message.user("a")
    assert message.text == "a"


def test_a_single_part_is_a_sequence_of_one() -> None:
    assert Message.user(TextContent(text="a")).content == (TextContent(text="a"),)


def test_any_iterable_of_parts_will_do() -> None:
    content: Any = (TextContent(text=letter) for letter in "ab")
    assert Message.user(content).text == "ab"


def test_no_content_is_empty_text() -> None:
    assert Message("assistant", None).content == ""
    assert Message("assistant").parts == ()


@pytest.mark.parametrize("content", [5, [5], [["text"]], object()])
def test_content_of_another_kind_is_refused(content: Any) -> None:
    with pytest.raises(ValidationError):
        Message("user", content)
    with pytest.raises(ValidationError):
        Message("user", content, tool_calls=[CALL])


def test_a_message_without_role_is_refused_by_name() -> None:
    with pytest.raises(ValidationError, match="role"):
        Message(content="a")  # type: ignore[call-arg]


def test_given_calls_move_into_the_content() -> None:
    nested = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
    message = Message.assistant("let me see", tool_calls=[nested])
    assert message.content == (TextContent(text="let me see"), CALL)
    assert message.tool_calls == [CALL]
    assert Message.assistant(None, tool_calls=[CALL]).content == (CALL,)
    assert Message.assistant("a", tool_calls=[]).content == "a"


def test_a_call_given_twice_is_kept_once() -> None:
    tagged = {"type": "tool_use", "id": "1", "name": "f", "input": {"x": 1}}
    assert Message("assistant", [CALL], tool_calls=[CALL]).content == (CALL,)
    assert Message.from_dict({"role": "assistant", "content": [tagged], "tool_calls": [CALL]}).content == (CALL,)


def test_bad_calls_are_refused() -> None:
    calls: Any = 5
    with pytest.raises(ValidationError, match="tool_calls"):
        Message("assistant", "", tool_calls=calls)
    with pytest.raises(ValidationError, match="name"):
        Message("assistant", "", tool_calls=[{"id": "1"}])


def test_codecs_read_a_tools_text_as_a_result() -> None:
    message = Message.tool("done", tool_call_id="1", name="f")
    assert message.content == "done"
    assert message.parts == (ToolResult(tool_call_id="1", name="f", content="done"),)
    assert message.text == "done"


def test_a_tools_parts_become_one_result() -> None:
    image = ImageContent(image_url="https://x/y")
    message = Message.tool([TextContent(text="a"), image], tool_call_id="1")
    assert message.parts == (ToolResult(tool_call_id="1", content=[TextContent(text="a"), image]),)


def test_a_lone_result_names_its_message() -> None:
    result = ToolResult(tool_call_id="1", name="f", content="done")
    message = Message(Role.TOOL, [result])
    assert (message.tool_call_id, message.name, message.text) == ("1", "f", "done")
    assert message.parts == (result,)
    assert Message.from_dict(message.to_dict()) == message


def test_an_error_beside_a_tools_text_is_not_lost() -> None:
    message = Message.from_dict({"role": "tool", "content": "broken", "tool_call_id": "1", "is_error": True})
    assert message.parts == (ToolResult(tool_call_id="1", content="broken", is_error=True),)


def test_several_results_share_a_message() -> None:
    results = [ToolResult(tool_call_id=str(i), content=str(i)) for i in range(2)]
    assert Message(Role.TOOL, results).parts == tuple(results)
    assert Message(Role.USER, results).parts == tuple(results)


def test_unknown_keys_of_dicts_are_kept_as_extra() -> None:
    message = Message.from_dict({"role": "user", "content": "a", "flavour": "x", "audio": None, "annotations": []})
    assert message == Message("user", "a", extra={"flavour": "x"})
    assert Message.from_dict(message.to_dict()) == message
    image = {"type": "image_url", "image_url": {"url": "https://a.b/c", "own": 1}, "other": 2}
    text = {"type": "text", "text": "a", "own": [1]}
    call = {"id": "c", "function": {"name": "f", "arguments": "{}", "own": 1}, "other": 2}
    message = Message.from_dict({"role": "assistant", "content": [text, image], "tool_calls": [call]})
    assert [part.extra for part in message.parts] == [
        {"own": [1]},
        {"image_url": {"own": 1}, "other": 2},
        {"own": 1, "other": 2},
    ]
    assert Message.from_dict(message.to_dict()) == message


@pytest.mark.parametrize(
    ("make", "name", "right"),
    [
        (lambda **fields: Message("user", "a", **fields), "nmae", "name"),
        (lambda **fields: TextContent(text="a", **fields), "signatur", "signature"),
        (lambda **fields: ImageContent(image_url="https://a.b/c", **fields), "detial", "detail"),
        (lambda **fields: ToolCall(id="c", name="f", **fields), "argments", "arguments"),
        (lambda **fields: ToolResult(tool_call_id="c", **fields), "contents", "content"),
        (lambda **fields: ToolSpec(name="f", **fields), "descripton", "description"),
        (WebSearch, "max_use", "max_uses"),
        (lambda **fields: ContentPart(type="text", text="a", **fields), "signatur", "signature"),
    ],
)
def test_unknown_keywords_raise_with_the_right_name(make: Callable[..., object], name: str, right: str) -> None:
    with pytest.raises(errors.ConfigurationError) as raised:
        make(**{name: "x"})
    assert (raised.value.field, raised.value.fix) == (name, f"Did you mean {right}?")


def test_equal_messages_are_equal_whenever_they_were_made() -> None:
    assert Message.user("a") == Message.user("a")
    assert hash(Message.user("a")) == hash(Message.user("a"))


def test_a_time_outside_the_calendar_is_refused() -> None:
    with pytest.raises(ValidationError, match="years 1 to 9999"):
        Message("user", "a", timestamp="0001-01-01T00:00:00+05:00")


def test_messages_match_by_position() -> None:
    match Message.user("hello"):
        case Message(Role.USER, str(text)):
            assert text == "hello"
        case _:
            pytest.fail("no match")


# --- requests ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", 2.1),
        ("temperature", float("nan")),
        ("top_p", 0),
        ("top_p", 1.1),
        ("max_tokens", 0),
        ("deadline", 0),
        ("deadline", float("inf")),
        ("stop", ["ok", ""]),
        ("stop", ""),
        ("logprobs", 21),
        ("logprobs", -1),
        ("thinking", "a lot"),
        ("output_schema", "a string"),
        ("output_schema", [1]),
        ("metadata", [1]),
        ("tools", [5]),
        ("tools", [{}]),
        ("tools", [{"name": "not a name"}]),
    ],
)
def test_a_bad_setting_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(ValidationError) as caught:
        AgentRequest(**{field: value})
    assert caught.value.errors()[0]["loc"][0] == field


def test_a_single_stop_text_is_a_list_of_one() -> None:
    assert AgentRequest(stop="END").stop == ("END",)


@pytest.mark.parametrize(("given", "read"), [(True, 0), (False, None), (None, None), (5, 5)])
def test_logprobs_may_be_switched_on(given: Any, read: int | None) -> None:
    assert AgentRequest(logprobs=given).logprobs == read


def test_thinking_is_read_by_name() -> None:
    assert AgentRequest(thinking="high").thinking is ThinkingLevel.HIGH


F = ToolSpec(name="f", description="d", parameters={"type": "object", "properties": {}})


@pytest.mark.parametrize(
    "tool",
    [
        F,
        type("Decorated", (), {"spec": F})(),
        {"type": "function", "function": {"name": "f", "description": "d", "parameters": F.parameters}},
        {"type": "function", "name": "f", "description": "d", "parameters": F.parameters},
        {"name": "f", "description": "d", "input_schema": F.parameters},
        {"type": "custom", "name": "f", "description": "d", "input_schema": F.parameters},
        {"name": "f", "description": "d", "inputSchema": F.parameters},
        F.to_dict(),
        F.to_openai_schema(),
        F.to_anthropic_schema(),
        F.to_gemini_schema(),
    ],
)
def test_every_shape_of_a_tool_becomes_a_spec(tool: Any) -> None:
    assert AgentRequest(tools=[tool]).tools == (F,)


@pytest.mark.parametrize(
    "tool",
    [
        {"type": "web_search_20250305", "name": "web_search", "max_uses": 5},
        {"google_search": {}},
        {"type": "custom", "name": "grammar", "format": {"type": "text"}},
    ],
)
def test_a_tool_that_runs_at_the_vendor_is_passed_through(tool: dict[str, Any]) -> None:
    request = AgentRequest(tools=[tool])
    assert request.tools == (tool,)
    assert type(request.tools[0]) is FrozenDict
    assert AgentRequest.model_validate_json(request.model_dump_json()) == request


def test_two_tools_of_one_name_are_refused() -> None:
    with pytest.raises(ValidationError, match="duplicate names f; rename"):
        AgentRequest(tools=[F, {"name": "f"}])


def test_a_choice_may_name_a_tool_that_only_the_agent_offers() -> None:
    assert AgentRequest(tool_choice="f").tool_choice == "f"


class City(BaseModel):
    name: str


def test_a_schema_is_a_dictionary_or_a_type() -> None:
    schema = {"type": "object", "properties": {}}
    by_alias = AgentRequest(schema=schema)
    assert by_alias == AgentRequest(output_schema=schema)
    assert by_alias.output_json_schema == schema
    assert AgentRequest(output_schema=City).output_schema is City
    assert AgentRequest(output_schema=City).output_json_schema == City.model_json_schema()
    assert AgentRequest(schema=list[int]).output_json_schema == {"type": "array", "items": {"type": "integer"}}
    assert AgentRequest(schema=int | None).output_json_schema == {"anyOf": [{"type": "integer"}, {"type": "null"}]}
    assert AgentRequest(schema=TypeAdapter(int)).output_json_schema == {"type": "integer"}
    assert AgentRequest().output_json_schema is None


def test_the_schema_of_a_type_is_worked_out_once_and_never_stale() -> None:
    request = AgentRequest(schema=City)
    assert request.output_json_schema is request.output_json_schema
    assert request.model_copy(update={"schema": list[int]}).output_json_schema == {
        "type": "array",
        "items": {"type": "integer"},
    }


def test_a_type_is_written_to_json_as_its_schema() -> None:
    request = AgentRequest(schema=City)
    assert json.loads(request.model_dump_json())["output_schema"] == City.model_json_schema()
    assert request.model_dump()["output_schema"] is City
    assert hash(request) == hash(AgentRequest(schema=City))


def test_a_request_goes_on_with_more_messages() -> None:
    request = AgentRequest(input="q", messages=[Message.user("p")], system="s", temperature=0.5)
    answer = Message.assistant("a")
    longer = request.with_messages(answer)
    assert longer.messages == (Message.user("p"), Message.user("q"), answer)
    assert longer.input is None
    assert (longer.system, longer.temperature) == ("s", 0.5)
    assert longer.to_messages() == [*request.to_messages(), answer]
    assert request.messages == (Message.user("p"),)


def test_changed_copies_are_checked() -> None:
    request = AgentRequest(input="q")
    assert request.model_copy(update={"temperature": 1}).temperature == 1
    with pytest.raises(ValidationError, match="temperature"):
        request.model_copy(update={"temperature": 3})
    with pytest.raises(ValidationError, match="temprature"):
        request.model_copy(update={"temprature": 1})


def test_a_request_is_not_changed_by_its_makers_lists() -> None:
    messages = [Message.user("a")]
    metadata = {"tags": ["x"]}
    request = AgentRequest(messages=messages, metadata=metadata)
    messages.append(Message.user("b"))
    metadata["tags"].append("y")
    assert request.messages == (Message.user("a"),)
    assert request.metadata == {"tags": ["x"]}


def test_only_given_fields_count_as_set() -> None:
    copy = AgentRequest(input="q").model_copy(update={"system": "s"})
    assert copy.model_fields_set == {"input", "system"}
    assert copy.model_dump(exclude_unset=True) == {"input": "q", "system": "s"}


# --- tools ------------------------------------------------------------------------------------------------------------


def test_schemas_are_fresh_and_mutable() -> None:
    spec = ToolSpec(name="f", parameters={"type": "object", "properties": {"x": {}}}, strict=True)
    for make in (spec.to_openai_schema, spec.to_anthropic_schema, spec.to_gemini_schema):
        schema: dict[str, Any] = make()
        inner = schema.get("function", schema)
        inner.get("parameters", inner.get("input_schema"))["properties"].clear()
        assert make() != schema
    assert spec.to_openai_schema()["function"]["strict"] is True


def test_a_tool_without_parameters_takes_an_empty_object() -> None:
    empty = {"type": "object", "properties": {}}
    spec = ToolSpec(name="f")
    assert spec.to_openai_schema()["function"]["parameters"] == empty
    assert spec.to_anthropic_schema()["input_schema"] == empty
    assert spec.to_gemini_schema()["parameters"] == empty


@pytest.mark.parametrize("name", ["", "a b", "a" * 129, "é", "a\n", "a/b"])
def test_a_tools_name_is_checked(name: str) -> None:
    with pytest.raises(ValidationError, match="name"):
        ToolSpec(name=name)


def test_a_tools_function_is_compared_but_never_shown() -> None:
    spec = ToolSpec(name="f", function=print)
    assert spec != ToolSpec(name="f")
    assert spec == ToolSpec(name="f", function=print)
    assert "print" not in repr(spec)
    assert "function" not in spec.model_dump()


def test_messages_carry_usage() -> None:
    message = Message("assistant", "a", usage=Usage(prompt_tokens=1))
    assert Message.from_dict(message.to_dict()).usage == Usage(prompt_tokens=1)
