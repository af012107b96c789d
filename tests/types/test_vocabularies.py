"""The names of other libraries are read, can be accessed, and are written on request."""

from __future__ import annotations

import copy
from datetime import UTC, datetime
from inspect import getmembers
from typing import Any, get_args

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import agent.types
from agent.graph import DAG, Node
from agent.types import (
    AgentRequest,
    AgentResponse,
    CodeContent,
    ContentBlock,
    ContentPart,
    DocumentContent,
    FileContent,
    ImageContent,
    Message,
    Role,
    Session,
    StopReason,
    SystemPrompt,
    TextContent,
    ThinkingContent,
    ToolCall,
    ToolDefinition,
    ToolDefinitions,
    ToolExecution,
    ToolResult,
    ToolResultContent,
    ToolUseContent,
    Usage,
    Value,
    Vocabulary,
    is_code_content,
    is_image_content,
    is_text_content,
    is_tool_call_content,
    is_tool_result_content,
    read_node_data,
)
from agent.types._base import _aliases

from .test_properties import messages, parts, usages

VOCABULARIES: tuple[Vocabulary, ...] = get_args(Vocabulary)

# --- samples ----------------------------------------------------------------------------------------------------------

PARTS: dict[Vocabulary, list[dict[str, Any]]] = {
    "nano": [
        {"type": "text", "text": "Hello"},
        {"type": "thinking", "thinking": "Let me think…", "signature": "abc123"},
        {"type": "thinking", "thinking": "", "id": "rs_1", "encrypted_content": "xyz", "summary": [{"text": "s"}]},
        {"type": "tool_use", "id": "call_abc123", "name": "Bash", "input": {"command": "ls -la"}},
        {"type": "tool_use", "id": "call_abc123", "name": "Bash", "input": {}, "item_id": "fc_1"},
        {
            "type": "tool_result",
            "tool_use_id": "call_abc123",
            "content": [{"type": "text", "text": "Permission denied"}],
            "is_error": True,
        },
    ],
    "loop": [
        {"type": "text", "text": "look", "text_signature": "s"},
        {"type": "image", "url": "https://example.com/a.png", "mime_type": "image/png"},
        {"type": "image", "url": "data:image/png;base64,aGk=", "mime_type": "image/png"},
        {"type": "thinking", "thinking": "hm", "thinking_signature": "s"},
        {"type": "tool_call", "id": "1", "name": "f", "arguments": {"x": 1}},
        {"type": "tool_call", "id": "1", "name": "f", "arguments": {}, "partial_json": '{"x": '},
    ],
    "deepractice": [
        {"type": "text", "text": "Hello, Agent!"},
        {"type": "thinking", "reasoning": "User is greeting."},
        {"type": "tool-call", "name": "search_web", "id": "call-abc", "input": {"query": "latest news"}},
        {"type": "tool-result", "name": "search_web", "id": "call-abc", "result": {"items": [1, None]}},
        {"type": "tool-result", "name": "search_web", "id": "call-abc", "result": "text"},
        {"type": "image", "images": [{"data": "aGk=", "name": "a.png", "mediaType": "image/png"}]},
        {
            "type": "image",
            "images": [
                {"data": "aGk=", "name": "a.png", "mediaType": "image/png"},
                {"data": "https://example.com/b.jpg", "name": "b.jpg", "mediaType": "image/jpeg"},
            ],
        },
        {"type": "code", "code": "x = 1", "language": "python"},
        {"type": "code", "code": "x = 1"},
        {"type": "diff", "oldCode": "a", "newCode": "b", "language": "python"},
    ],
}
MESSAGES: dict[Vocabulary, list[dict[str, Any]]] = {
    "nano": [
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": [{"type": "text", "text": "Let me help you."}, PARTS["nano"][3]]},
        {"role": "user", "content": [PARTS["nano"][5]]},
    ],
    "loop": [
        {"role": "user", "content": PARTS["loop"][:3], "timestamp": 1_700_000_000_123},
        {
            "role": "assistant",
            "content": [PARTS["loop"][3], PARTS["loop"][0], PARTS["loop"][4]],
            "stop_reason": "toolUse",
            "timestamp": 1_700_000_000_000,
            "api": "openai-chat",
            "provider": "openai",
            "model": "gpt-4o",
            "usage": {"input": 3, "output": 4},
            "error_message": "none",
        },
        {
            "role": "tool_result",
            "tool_call_id": "1",
            "tool_name": "f",
            "content": PARTS["loop"][:2],
            "details": {"shown": True},
            "is_error": False,
            "timestamp": 1_700_000_000_000,
        },
    ],
    "deepractice": [
        {"id": "msg-1", "role": "user", "content": PARTS["deepractice"][0], "timestamp": "2024-01-14T10:00:00Z"},
        {
            "id": "msg-2",
            "role": "assistant",
            "content": PARTS["deepractice"][1],
            "timestamp": "2024-01-14T10:00:00Z",
            "usage": {"input": 150, "output": 80},
        },
        {
            "id": "msg-3",
            "role": "assistant",
            "content": PARTS["deepractice"][2],
            "timestamp": "2024-01-14T10:00:00Z",
            "usage": {"input": 1, "output": 2, "cacheRead": 3, "cacheWrite": 4},
        },
        {
            "id": "msg-4",
            "role": "tool",
            "content": PARTS["deepractice"][3],
            "timestamp": "2024-01-14T10:00:00Z",
            "parentId": "msg-3",
        },
        {"id": "msg-5", "role": "user", "content": PARTS["deepractice"][6], "timestamp": "2024-01-14T10:00:00Z"},
        {"id": "msg-6", "role": "system", "content": PARTS["deepractice"][7], "timestamp": "2024-01-14T10:00:00Z"},
    ],
}
USAGES: dict[Vocabulary, list[dict[str, Any]]] = {
    "nano": [
        {
            "input_tokens": 100,
            "output_tokens": 50,
            "cache_creation_input_tokens": 1,
            "cache_read_input_tokens": 2,
        }
    ],
    "loop": [{"input": 3, "output": 4}, {"input": 3, "output": 4, "cache_write": 1, "cache_read": 0}],
    "deepractice": [{"input": 150, "output": 80}, {"input": 1, "output": 2, "cacheRead": 3, "cacheWrite": 4}],
}
NODE_DATA: list[dict[str, Any]] = [
    {"type": "system_prompt", "content": "You are a helpful assistant."},
    {
        "type": "tool_definitions",
        "tools": [
            {
                "name": "calculator",
                "description": "Evaluate math expressions",
                "input_schema": {"type": "object", "properties": {"expression": {"type": "string"}}},
            }
        ],
    },
    {
        "type": "tool_execution",
        "tool_name": "Bash",
        "tool_use_id": "call_abc123",
        "result": [{"type": "text", "text": "file1.txt"}],
    },
    {"type": "stop_reason", "reason": "end_turn", "usage": {"input_tokens": 150, "output_tokens": 50}},
]


def of_each(samples: dict[Vocabulary, list[dict[str, Any]]]) -> list[Any]:
    return [
        pytest.param(name, sample, id=f"{name}{number}")
        for name, several in samples.items()
        for number, sample in enumerate(several)
    ]


@pytest.mark.parametrize(("vocabulary", "sample"), of_each(PARTS))
def test_every_part_is_written_as_it_was_read(vocabulary: Vocabulary, sample: dict[str, Any]) -> None:
    assert ContentPart.model_validate(sample).to_dict(vocabulary=vocabulary) == sample


@pytest.mark.parametrize(("vocabulary", "sample"), of_each(MESSAGES))
def test_every_message_is_written_as_it_was_read(vocabulary: Vocabulary, sample: dict[str, Any]) -> None:
    assert Message.from_dict(sample).to_dict(vocabulary=vocabulary) == sample


@pytest.mark.parametrize(("vocabulary", "sample"), of_each(USAGES))
def test_every_usage_is_written_as_it_was_read(vocabulary: Vocabulary, sample: dict[str, Any]) -> None:
    assert Usage.from_dict(sample).to_dict(vocabulary=vocabulary) == sample


@pytest.mark.parametrize("sample", NODE_DATA, ids=lambda sample: sample["type"])
def test_node_data_is_written_as_it_was_read(sample: dict[str, Any]) -> None:
    assert read_node_data(sample).to_dict(vocabulary="nano") == sample


def test_a_session_is_written_as_it_was_read() -> None:
    session = {
        "id": "session-1",
        "title": "New Conversation",
        "messages": MESSAGES["deepractice"],
        "createdAt": "2024-01-14T10:00:00Z",
        "updatedAt": "2024-01-14T10:05:00Z",
    }
    assert Session.from_dict(session).to_dict(vocabulary="deepractice") == session


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_a_graph_is_written_in_each_vocabulary_and_read_again(vocabulary: Vocabulary) -> None:
    dag = DAG().system("Be brief.").tools(ToolDefinition("f", "d", {"type": "object"})).user("Hi")
    dag = dag.assistant([TextContent("Looking."), ToolCall("1", "f", {"x": 1})])
    dag = dag.tool_execution(ToolExecution("f", "1", "2")).tool_result(ToolResult("1", "2")).stop("stop", Usage(1, 2))
    written = dag.to_dict(vocabulary=vocabulary)
    restored = DAG.from_dict(written)
    assert restored.to_dict(vocabulary=vocabulary) == written
    assert [message.parts[0].text for message in restored.to_messages()] == ["Hi", "Looking.", "2"]
    tags = {"nano": "tool_use", "loop": "tool_call", "deepractice": "tool-call"}
    assert tags[vocabulary] in str(written)


def test_a_tool_message_has_the_role_of_each_vocabulary() -> None:
    message = Message.tool("72F", tool_call_id="c", name="f")
    text = [{"type": "text", "text": "72F"}]
    assert {name: message.to_dict(vocabulary=name) for name in VOCABULARIES} == {
        "nano": {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": "c", "name": "f", "content": text}],
        },
        "loop": {"role": "tool_result", "tool_call_id": "c", "tool_name": "f", "content": text},
        "deepractice": {
            "role": "tool",
            "content": {"type": "tool-result", "id": "c", "name": "f", "result": "72F"},
        },
    }


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
@given(data=st.data())
def test_every_value_survives_each_vocabulary(vocabulary: Vocabulary, data: st.DataObject) -> None:
    message = data.draw(messages)
    assume(message.timestamp is None or message.timestamp.year > 1971)  # smaller numbers are read as seconds
    written = message.to_dict(vocabulary=vocabulary)
    restored = Message.from_dict(written)
    assert restored.to_dict(vocabulary=vocabulary) == written
    assert restored.text == message.text or message.role is Role.TOOL
    assert restored.usage == message.usage
    part = data.draw(parts)
    written = part.to_dict(vocabulary=vocabulary)
    assert ContentPart.model_validate(written).to_dict(vocabulary=vocabulary) == written
    usage = data.draw(usages())
    assert Usage.from_dict(usage.to_dict(vocabulary=vocabulary)) == usage


def test_an_unknown_vocabulary_and_values_without_one_are_refused() -> None:
    with pytest.raises(ValueError, match="expected one of nano, loop, deepractice"):
        TextContent("a").to_dict(vocabulary="nonsense")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="AgentRequest"):
        AgentRequest(input="x").to_dict(vocabulary="nano")


# --- reading ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "usage"),
    [
        (
            {
                "prompt_tokens": 100,
                "completion_tokens": 50,
                "prompt_tokens_details": {"cached_tokens": 30, "audio_tokens": 5},
                "completion_tokens_details": {"reasoning_tokens": 20, "accepted_prediction_tokens": 7},
            },
            Usage(
                prompt_tokens=100,
                completion_tokens=50,
                cache_read_tokens=30,
                reasoning_tokens=20,
                details={"input_audio_tokens": 5, "accepted_prediction_tokens": 7},
            ),
        ),
        (
            {
                "input_tokens": 100,
                "output_tokens": 50,
                "input_tokens_details": {"cached_tokens": 30},
                "output_tokens_details": {"reasoning_tokens": 20},
            },
            Usage(prompt_tokens=100, completion_tokens=50, cache_read_tokens=30, reasoning_tokens=20),
        ),
        (
            {
                "input_tokens": 10,
                "output_tokens": 5,
                "cache_read_input_tokens": 30,
                "cache_creation_input_tokens": 3,
                "cache_creation": {"ephemeral_5m_input_tokens": 1, "ephemeral_1h_input_tokens": 2},
                "server_tool_use": {"web_search_requests": 4},
            },
            Usage(10, 5, 3, 30, details={"cache_write_5m_tokens": 1, "cache_write_1h_tokens": 2, "web_searches": 4}),
        ),
        (
            {"prompt_tokens": 1, "completion_tokens": 2, "prompt_tokens_details": None},
            Usage(prompt_tokens=1, completion_tokens=2),
        ),
    ],
)
def test_nested_counts_are_read(written: dict[str, Any], usage: Usage) -> None:
    assert Usage.from_dict(written) == usage


@pytest.mark.parametrize("given", ["budget_exhausted", "end_turn", "MAX_TOKENS"])
def test_a_stop_reason_stays_readable_as_received(given: str) -> None:
    response = AgentResponse.from_dict({"stop_reason": given})
    assert response.raw_stop_reason == given
    assert Message.from_dict({"role": "assistant", "content": "", "stop_reason": given}).stop_reason == given
    assert StopReason(given).reason == given


def test_an_image_part_holds_several_images() -> None:
    first, second = ImageContent(image_data=b"hi", name="a"), ImageContent(url="https://example.com/b")
    gallery = ImageContent(images=[first, {"data": "https://example.com/b"}])
    assert gallery.images == [first, second]
    assert ImageContent.from_dict(gallery.to_dict()) == gallery
    assert ImageContent(images=[first]) == first
    assert first.images == [first]
    assert Message.user([TextContent("Look"), gallery]).content == [TextContent("Look"), first, second]
    assert Message.user(gallery).content == [first, second]
    assert ToolResult("1", gallery).content == [first, second]
    with pytest.raises(ValueError, match="no common cache"):
        Message.from_dict({"role": "user", "content": {**PARTS["deepractice"][6], "cache": "short"}})
    broken: Any
    for broken in ([], "x"):
        with pytest.raises(ValueError, match="images"):
            ImageContent(images=broken)


# --- access -----------------------------------------------------------------------------------------------------------


def test_every_spelling_that_is_read_can_be_accessed() -> None:
    missing = []
    for name, kind in getmembers(agent.types, lambda value: isinstance(value, type) and issubclass(value, Value)):
        for alias, field in _aliases(kind).items():
            value = kind.model_construct(**{field: "the value"})
            if value[alias] != "the value" and value[alias] is not getattr(value, field):
                missing.append(f"{name}[{alias!r}]")
            is_a_name_of_python = alias.islower() and alias != "cache_control"
            if is_a_name_of_python and getattr(value, alias) != getattr(value, field):
                missing.append(f"{name}.{alias}")
    assert missing == []


def test_attributes_have_the_names_of_each_library() -> None:
    assert TextContent("a", text_signature="s").text_signature == "s"
    assert ThinkingContent("a", "s").thinking_signature == "s"
    assert ToolCall("1", "f", partial_json='{"a').partial_json == '{"a'
    for part in (
        ImageContent(url="https://x/y", mime_type="a/b"),
        DocumentContent(url="https://x/y", media_type="a/b"),
    ):
        assert part.mime_type == part["mime_type"] == part["mediaType"] == "a/b"
    assert FileContent(file_id="f").id == "f"
    result = Message.from_dict(MESSAGES["loop"][2])
    assert (result.tool_name, result.tool_use_id, result.is_error, result.details) == ("f", "1", False, {"shown": True})
    assert AgentRequest(input="x", output_schema={"type": "object"}).schema == {"type": "object"}


def test_values_answer_by_key() -> None:
    message = Message(Role.ASSISTANT, [TextContent("a")], usage=Usage(1, 2, 3, 4), parent_id="p")
    assert message["role"] == "assistant"
    assert message["content"][0]["text"] == "a"
    assert message["parentId"] == message.get("parent_id") == "p"
    assert (message["usage"]["cacheRead"], message["usage"]["input"]) == (4, 1)
    assert message.get("color") is None
    with pytest.raises(KeyError, match="color"):
        message["color"]


def test_arguments_are_accepted_by_position() -> None:
    assert TextContent("a") == TextContent(text="a")
    assert ThinkingContent("a", "s", "id", "opaque", [{"x": 1}]) == ThinkingContent(
        thinking="a", signature="s", id="id", encrypted_content="opaque", summary=[{"x": 1}]
    )
    assert ToolUseContent("1", "f", {"x": 1}, "i") == ToolCall(id="1", name="f", arguments={"x": 1}, item_id="i")
    assert ToolResultContent("1", "x", True) == ToolResult(tool_call_id="1", content="x", is_error=True)
    assert SystemPrompt("x") == SystemPrompt(content="x")
    assert ToolDefinition("f", "d", {"type": "object"}).input_schema == {"type": "object"}
    assert ToolDefinitions([ToolDefinition("f")]) == ToolDefinitions(tools=[ToolDefinition(name="f")])
    assert ToolExecution("f", "1", "x", True) == ToolExecution(
        tool_name="f", tool_use_id="1", result="x", is_error=True
    )
    assert StopReason("stop", {"a": 1}) == StopReason(reason="stop", usage={"a": 1})
    assert Usage(1, 2, 3, 4) == Usage(
        input_tokens=1, output_tokens=2, cache_creation_input_tokens=3, cache_read_input_tokens=4
    )
    assert Node((), SystemPrompt("x"), "id", 1.0, {"a": 1}).metadata == {"a": 1}


def test_wrong_positional_arguments_are_type_errors() -> None:
    text: Any = TextContent
    part: Any = ContentPart
    with pytest.raises(TypeError, match="TextContent takes 1 positional arguments; got 2"):
        text("a", "b")
    with pytest.raises(TypeError, match="two values for text"):
        text("a", text="b")
    with pytest.raises(TypeError, match="ContentPart takes 0"):
        part("a")


def test_sequences_equal_lists_and_tuples() -> None:
    part: Any = TextContent("a")
    message: Any = Message.user([part])
    assert message.content == [part]
    assert [part] == message.content
    assert message.content == (part,)
    assert (message.content != [part]) is False
    assert message.content != []
    assert message.parts == Message.user("a").parts == [part]
    assert len({message.content, (part,)}) == 1
    request: Any = AgentRequest(messages=[message], stop=["x"], tools=[ToolDefinition("f")])
    assert (request.messages, request.stop, request.tools) == ([message], ["x"], [ToolDefinition("f")])
    assert AgentResponse(content=[part]).content == [part]
    for empty in (AgentResponse().content, AgentRequest().tools, Session(id="s").messages):
        assert empty == []
    assert ToolDefinitions([ToolDefinition("f")]).tools == [ToolDefinition("f")]
    assert copy.deepcopy(message) == message


def test_a_frozen_value_is_changed_by_replacing() -> None:
    message = Message.user("a")
    for name in ("content", "color"):
        with pytest.raises(AttributeError, match="Message is frozen"):
            setattr(message, name, "b")
    assert message.replace(content="b") == Message.user("b")
    assert ToolCall("1", "f").replace(input={"x": 1}).arguments == {"x": 1}
    replace: Any = getattr(copy, "replace", None)  # since Python 3.13
    assert replace is None or replace(message, content="b") == Message.user("b")
    assert Message.__dict__.get("__replace__", Value.__dict__["__replace__"]) is Value.replace
    with pytest.raises(TypeError, match="no field 'color'"):
        message.replace(color="red")
    with pytest.raises(ValueError, match="role"):
        message.replace(role="nobody")


def test_blocks_are_told_apart_by_their_union() -> None:
    assert isinstance(TextContent("a"), ContentBlock)
    assert not isinstance(Message.user("a"), ContentBlock)
    assert not isinstance({"type": "text", "text": "a"}, ContentBlock)


def test_guards_accept_dicts() -> None:
    assert is_text_content({"type": "text", "text": "a"})
    assert not is_text_content({"type": "code", "code": "a"})
    assert is_tool_call_content(PARTS["nano"][3])
    assert is_tool_call_content(PARTS["deepractice"][2])
    assert is_tool_result_content(PARTS["deepractice"][3])
    assert is_image_content(PARTS["deepractice"][6])
    assert is_code_content(CodeContent(code="a"))
    for broken in ({}, {"type": None}, {"type": ["text"]}):
        assert not is_text_content(broken)


def test_a_schema_is_written_by_its_alias_on_request() -> None:
    request = AgentRequest.from_dict({"input": "x", "schema": {"type": "object"}})
    assert request.model_dump(by_alias=True)["schema"] == {"type": "object"}
    assert request.model_dump()["output_schema"] == {"type": "object"}
    assert AgentRequest.model_validate_json(request.model_dump_json(by_alias=True)) == request


def test_times_are_read_from_milliseconds() -> None:
    message = Message.from_dict({"role": "user", "content": "x", "timestamp": 1_705_226_400_000})
    assert message.timestamp == message.created_at == datetime(2024, 1, 14, 10, tzinfo=UTC)
