"""The documents this package was made from, run as they are: only their import lines were adapted."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeGuard, assert_never, get_args

import pytest
from pydantic import ValidationError

import agent.types
from agent.errors import RateLimitError
from agent.types import (
    AgentConfig,
    AgentRequest,
    AgentResponse,
    ContentBlock,
    ContentPart,
    Image,
    ImageContent,
    Message,
    MessageContent,
    NodeData,
    ProviderCapabilities,
    Response,
    RetryConfig,
    Role,
    RouteResult,
    RoutingStrategy,
    Session,
    StopReason,
    StreamEvent,
    StreamEventType,
    SystemPrompt,
    TextContent,
    ThinkingContent,
    ThinkingLevel,
    ToolCall,
    ToolDefinition,
    ToolDefinitions,
    ToolExecution,
    ToolLoopConfig,
    ToolResult,
    ToolResultContent,
    ToolSpec,
    ToolUseContent,
    Usage,
    compute_session_stats,
    is_audio_content,
    is_code_content,
    is_diff_content,
    is_document_content,
    is_file_content,
    is_image_content,
    is_refusal_content,
    is_search_result_content,
    is_text_content,
    is_thinking_content,
    is_tool_call_content,
    is_tool_result_content,
    is_vendor_content,
    is_video_content,
)

# --- the public type system -------------------------------------------------------------------------------------------


def test_all_sixteen_names_come_from_the_types_package() -> None:
    names = [
        "ContentPart",
        "Message",
        "AgentRequest",
        "Usage",
        "AgentResponse",
        "ToolSpec",
        "ToolCall",
        "ToolResult",
        "StreamEvent",
        "StreamEventType",
        "AgentConfig",
        "ProviderCapabilities",
        "RetryConfig",
        "ToolLoopConfig",
        "RoutingStrategy",
        "RouteResult",
    ]
    assert len(names) == 16
    assert set(names) <= set(agent.types.__all__)


def test_content_parts_are_made_by_factories(tmp_path: Path) -> None:
    (tmp_path / "photo.png").write_bytes(b"\x89PNG\xff")

    text = ContentPart.text_part("Hello, world!")
    image_url = ContentPart.image_url_part("https://example.com/image.jpg")
    with open(tmp_path / "photo.png", "rb") as f:
        image_data = ContentPart.image_data_part(f.read(), media_type="image/png")

    assert (text.type, text.text, text.image_url, text.image_data, text.media_type) == (
        "text",
        "Hello, world!",
        None,
        None,
        None,
    )
    assert (image_url.type, image_url.image_url, image_url.text) == ("image_url", "https://example.com/image.jpg", None)
    assert (image_data.type, image_data.image_data, image_data.media_type) == ("image", b"\x89PNG\xff", "image/png")


def test_messages_are_made_by_factories() -> None:
    system = Message.system("You are a helpful assistant.")
    user = Message.user("What's the weather?")
    assistant = Message.assistant("I'd be happy to help with that.")
    tool_result = Message.tool("72F and sunny", tool_call_id="call_123", name="get_weather")

    assert user.text == "What's the weather?"
    assert user.role == "user"
    assert f"{user.role}" == "user"
    assert [system.role, assistant.role, tool_result.role] == ["system", "assistant", "tool"]
    assert (tool_result.tool_call_id, tool_result.name) == ("call_123", "get_weather")
    assert assistant.tool_calls is None


def test_a_request_gives_its_whole_conversation() -> None:
    request = AgentRequest(
        input="What's 2+2?",
        messages=[
            Message.system("You are a math tutor."),
        ],
        system="Be concise.",
        temperature=0.7,
        max_tokens=100,
    )

    all_messages = request.to_messages()

    assert all_messages == [
        Message.system("Be concise."),
        Message.system("You are a math tutor."),
        Message.user("What's 2+2?"),
    ]


def test_usage_from_names_and_from_a_dictionary() -> None:
    usage = Usage(
        prompt_tokens=100,
        completion_tokens=50,
        total_tokens=150,
    )

    assert usage == Usage.from_dict({"prompt_tokens": 100, "completion_tokens": 50})


def test_a_response_is_read_and_serialised(capsys: pytest.CaptureFixture[str]) -> None:
    response = AgentResponse(
        text="Hello!",
        provider="openai",
        model="gpt-4o",
        usage=Usage(prompt_tokens=10, completion_tokens=5, total_tokens=15),
    )

    if response.has_tool_calls:
        for tc in response.tool_calls:
            print(f"Tool: {tc.name}, Args: {tc.arguments}")

    data = response.to_dict()

    assert capsys.readouterr().out == ""
    assert data["text"] == "Hello!"
    assert AgentResponse.from_dict(data) == response


def test_a_response_with_calls_lists_them(capsys: pytest.CaptureFixture[str]) -> None:
    response = AgentResponse(tool_calls=[ToolCall(id="1", name="get_weather", arguments={"city": "Tokyo"})])

    if response.has_tool_calls:
        for tc in response.tool_calls:
            print(f"Tool: {tc.name}, Args: {tc.arguments}")

    assert capsys.readouterr().out == "Tool: get_weather, Args: {'city': 'Tokyo'}\n"
    assert response.text is None


def test_a_tool_spec_converts_to_three_formats() -> None:
    spec = ToolSpec(
        name="get_weather",
        description="Get weather for a city",
        parameters={
            "type": "object",
            "properties": {
                "city": {"type": "string"},
            },
            "required": ["city"],
        },
    )

    openai_format = spec.to_openai_schema()
    anthropic_format = spec.to_anthropic_schema()
    gemini_format = spec.to_gemini_schema()

    schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    described = {"name": "get_weather", "description": "Get weather for a city"}
    assert openai_format == {"type": "function", "function": {**described, "parameters": schema}}
    assert anthropic_format == {**described, "input_schema": schema}
    assert gemini_format == {**described, "parameters": schema}


def test_a_tool_call_survives_its_dictionary() -> None:
    call = ToolCall(
        id="call_abc123",
        name="get_weather",
        arguments={"city": "Tokyo"},
    )

    data = call.to_dict()
    restored = ToolCall.from_dict(data)

    assert restored == call


def test_tool_results_with_and_without_error() -> None:
    result = ToolResult(
        tool_call_id="call_abc123",
        name="get_weather",
        content="72F and sunny",
        is_error=False,
    )
    error_result = ToolResult(
        tool_call_id="call_xyz",
        name="failing_tool",
        content="Error: connection timeout",
        is_error=True,
    )

    assert result.content == "72F and sunny"
    assert error_result.is_error


def test_the_event_types_include_the_eight_documented_ones() -> None:
    documented = {
        "text_delta",
        "tool_call_start",
        "tool_call_delta",
        "tool_result",
        "message_start",
        "message_end",
        "usage",
        "error",
    }

    assert documented <= set(get_args(StreamEventType))


def test_stream_events_are_made_by_factories() -> None:
    chunk = object()
    tool_call = ToolCall(id="1", name="f")
    usage = Usage(prompt_tokens=1)

    text_event = StreamEvent.text_delta("Hello", raw=chunk)
    tool_start = StreamEvent.tool_call_start(tool_call, raw=chunk)
    end_event = StreamEvent.message_end(usage=usage, raw=chunk)
    error_event = StreamEvent.error_event("Connection lost")

    assert (text_event.type, text_event.text, text_event.raw) == ("text_delta", "Hello", chunk)
    assert (tool_start.type, tool_start.tool_call) == ("tool_call_start", tool_call)
    assert (end_event.type, end_event.usage) == ("message_end", usage)
    assert (error_event.type, error_event.error, error_event.raw) == ("error", "Connection lost", None)


def test_a_config_is_changed_by_making_another() -> None:
    config = AgentConfig(
        provider="openai",
        model="gpt-4o",
        api_key="sk-...",
        timeout=120.0,
        max_retries=3,
        temperature=0.7,
    )

    new_config = config.with_overrides(temperature=0.9, max_tokens=500)

    assert (config.temperature, config.max_tokens) == (0.7, None)
    assert (new_config.temperature, new_config.max_tokens) == (0.9, 500)
    assert new_config.api_key is not None
    assert new_config.api_key.get_secret_value() == "sk-..."


def test_capabilities_are_declared() -> None:
    caps = ProviderCapabilities(
        streaming=True,
        tools=True,
        structured_output=True,
        json_mode=True,
        vision=True,
        system_messages=True,
        batch=False,
        native_schema_output=True,
    )

    assert caps.vision
    assert caps.max_context_tokens is None


def test_retries_are_asked_for_and_waited_for() -> None:
    error = RateLimitError("slow down")
    config = RetryConfig(
        max_retries=3,
        initial_delay=1.0,
        max_delay=60.0,
        exponential_base=2.0,
        jitter=True,
    )
    assert 0 <= config.get_delay(attempt=1, error=error) <= 1

    config = RetryConfig(initial_delay=0.001)
    waited = False
    if config.should_retry(error, attempt=1):
        delay = config.get_delay(attempt=1, error=error)
        time.sleep(delay)
        waited = True
    assert waited


def test_a_tool_loop_is_configured() -> None:
    config = ToolLoopConfig(
        max_iterations=10,
        max_tool_calls_per_iteration=20,
        timeout_per_tool=30.0,
        parallel_tool_execution=True,
        stop_on_error=False,
    )

    assert config == ToolLoopConfig()


def test_routing_strategies_have_names() -> None:
    strategy = RoutingStrategy.FALLBACK

    assert strategy == "fallback"
    documented = {"FALLBACK", "ROUND_ROBIN", "FASTEST", "CHEAPEST", "CAPABILITY", "CUSTOM"}
    assert documented <= set(RoutingStrategy.__members__)


def test_a_route_result_holds_an_agent_and_a_reason() -> None:
    selected_agent = object()

    result = RouteResult(
        agent=selected_agent,
        reason="Cheapest available",
    )

    assert result.agent is selected_agent
    assert result.model_dump() == {"reason": "Cheapest available"}


def test_a_bad_role_is_refused() -> None:
    msg = Message(role="user", content="Hello")
    assert msg.role is Role.USER

    with pytest.raises(ValidationError):
        msg = Message(role="invalid", content="Hello")  # type: ignore[arg-type]


def test_a_message_survives_all_four_serialisations() -> None:
    msg = Message.user("Hello")
    data = msg.model_dump()
    json_str = msg.model_dump_json()

    restored = Message.model_validate(data)
    assert restored == msg

    restored = Message.model_validate_json(json_str)
    assert restored == msg


def test_types_serve_as_hints() -> None:
    def process_response(response: AgentResponse) -> list[ToolCall]:
        """Extract tool calls from response."""
        return response.tool_calls

    def format_messages(messages: list[Message]) -> str:
        """Format messages for display."""
        return "\n".join(f"[{m.role}] {m.text}" for m in messages)

    call = ToolCall(id="1", name="f")
    assert process_response(AgentResponse(content=[call])) == [call]
    assert format_messages([Message.user("Hi"), Message.assistant("Ho")]) == "[user] Hi\n[assistant] Ho"


# --- content blocks and node data -------------------------------------------------------------------------------------


def test_text_content_prints_and_converts() -> None:
    content = TextContent(text="Hello, world!")

    assert content.text == "Hello, world!"
    assert content.to_dict() == {"type": "text", "text": "Hello, world!"}


def test_thinking_content_carries_a_signature() -> None:
    thinking = ThinkingContent(
        thinking="Let me think about this step by step...",
        signature="abc123",
    )

    assert (thinking.id, thinking.encrypted_content, thinking.summary) == ("", "", ())
    assert ThinkingContent.from_dict(thinking.to_dict()) == thinking


def test_tool_use_content_is_a_tool_call() -> None:
    tool_call = ToolUseContent(
        id="call_abc123",
        name="Bash",
        input={"command": "ls -la"},
    )

    assert tool_call.name == "Bash"
    assert tool_call.input == {"command": "ls -la"}
    assert tool_call.item_id is None
    assert isinstance(tool_call, ToolCall)
    assert ToolUseContent(id="1", name="f", input=None).input == {}


def test_tool_result_content_holds_blocks() -> None:
    result = ToolResultContent(
        tool_use_id="call_abc123",
        content=[TextContent(text="file1.txt\nfile2.py")],
    )
    error_result = ToolResultContent(
        tool_use_id="call_abc123",
        content=[TextContent(text="Permission denied")],
        is_error=True,
    )

    assert result.tool_use_id == "call_abc123"
    assert result.text == "file1.txt\nfile2.py"
    assert not result.is_error
    assert error_result.is_error


def test_messages_hold_text_or_blocks() -> None:
    user_msg = Message(role=Role.USER, content="Hello")
    assistant_msg = Message(
        role=Role.ASSISTANT,
        content=[
            TextContent(text="Let me help you."),
            ToolUseContent(id="call_1", name="Bash", input={"command": "ls"}),
        ],
    )

    assert user_msg.content == "Hello"
    assert assistant_msg.text == "Let me help you."
    assert assistant_msg.tool_calls == [ToolCall(id="call_1", name="Bash", arguments={"command": "ls"})]


def test_roles_are_texts() -> None:
    assert Role.USER.value == "user"
    assert Role("assistant") is Role.ASSISTANT


def test_node_data_is_built_and_written() -> None:
    prompt = SystemPrompt(content="You are a helpful assistant.")
    tool_def = ToolDefinition(
        name="calculator",
        description="Evaluate math expressions",
        input_schema={
            "type": "object",
            "properties": {"expression": {"type": "string"}},
            "required": ["expression"],
        },
    )
    exec_node = ToolExecution(
        tool_name="Bash",
        tool_use_id="call_abc123",
        result=[TextContent(text="file1.txt")],
    )
    stop = StopReason(
        reason="end_turn",
        usage={
            "input_tokens": 150,
            "output_tokens": 50,
            "cache_read_input_tokens": 100,
        },
    )

    assert prompt.to_dict() == {"type": "system_prompt", "content": "You are a helpful assistant."}
    assert tool_def.input_schema["required"] == ["expression"]
    assert ToolDefinitions(tools=[tool_def]).tools == (tool_def,)
    assert not exec_node.is_error
    assert stop.usage["cache_read_input_tokens"] == 100
    assert StopReason(reason="end_turn").usage == {}


def test_a_response_answers_what_it_holds() -> None:
    call = ToolUseContent(id="1", name="Bash", input={})
    response = Response(
        id="msg_1",
        model="m",
        content=[TextContent(text="Hi"), call],
        stop_reason="end_turn",  # type: ignore[arg-type]
        usage=Usage(input_tokens=1, output_tokens=2),
    )

    assert (response.id, response.role, response.stop_reason) == ("msg_1", Role.ASSISTANT, "stop")
    assert response.get_text() == "Hi"
    assert response.get_tool_use() == [call]
    assert response.has_tool_use()


def test_usage_in_disjoint_words() -> None:
    usage = Usage(input_tokens=100, output_tokens=50)

    assert usage.to_dict() == {
        "input_tokens": 100,
        "output_tokens": 50,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
        "reasoning_tokens": 0,
        "total_tokens": 150,
    }


def test_blocks_are_matched_by_pattern() -> None:
    def process_content(block: ContentBlock) -> str:
        match block:
            case TextContent(text=t):
                return f"Text: {t}"
            case ThinkingContent(thinking=t):
                return f"Thinking: {t}"
            case ToolUseContent(name=n, input=i):
                return f"Tool: {n}({i})"
            case ToolResultContent(content=c):
                return f"Result: {c!r}"
            case _:
                return "something else"

    assert process_content(TextContent(text="a")) == "Text: a"
    assert process_content(ThinkingContent(thinking="b")) == "Thinking: b"
    assert process_content(ToolCall(id="1", name="f", arguments={"x": 1})) == "Tool: f({'x': 1})"
    assert process_content(ToolResult(tool_call_id="1", content="c")) == "Result: 'c'"


def test_a_users_own_guard_narrows(capsys: pytest.CaptureFixture[str]) -> None:
    response = AgentResponse(content=[TextContent(text="a"), ToolCall(id="1", name="Bash")])

    def is_tool_call(block: ContentBlock) -> TypeGuard[ToolUseContent]:
        return isinstance(block, ToolUseContent)

    for block in response.content:
        if is_tool_call(block):
            print(block.name)

    assert capsys.readouterr().out == "Bash\n"


def test_node_data_is_told_apart_by_class(capsys: pytest.CaptureFixture[str]) -> None:
    def handle_node_data(data: NodeData) -> None:
        if isinstance(data, Message):
            print(f"Message from {data.role}")
        elif isinstance(data, SystemPrompt):
            print(f"System: {data.content}")
        elif isinstance(data, ToolDefinitions):
            print(f"Tools: {[t.name for t in data.tools]}")
        elif isinstance(data, ToolExecution):
            print(f"Executed: {data.tool_name}")
        elif isinstance(data, StopReason):
            print(f"Stopped: {data.reason}")

    every: list[NodeData] = [
        Message.user("x"),
        SystemPrompt(content="s"),
        ToolDefinitions(tools=[ToolSpec(name="t")]),
        ToolExecution(tool_name="e", tool_use_id="1", result="done"),
        StopReason(reason="end_turn"),
    ]
    for data in every:
        handle_node_data(data)

    assert capsys.readouterr().out.splitlines() == [
        "Message from user",
        "System: s",
        "Tools: ['t']",
        "Executed: e",
        "Stopped: end_turn",
    ]


def test_dictionaries_go_out_and_come_in() -> None:
    content = TextContent(text="Hello")
    data = content.to_dict()
    assert data == {"type": "text", "text": "Hello"}

    message = Message(Role.USER, "Hello")
    data = message.to_dict()
    assert data == {"role": "user", "content": "Hello"}

    content = TextContent.from_dict({"type": "text", "text": "Hello"})
    assert content == TextContent(text="Hello")


# --- typed dictionaries of the agent loop -----------------------------------------------------------------------------


def test_the_loops_dictionaries_are_messages() -> None:
    user = Message.from_dict(
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "look", "text_signature": "s"},
                {"type": "image", "url": "https://x/y.png", "mime_type": "image/png"},
            ],
            "timestamp": 1700000000000,
        }
    )
    assistant = Message.from_dict(
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "thinking_signature": None},
                None,
                {"type": "tool_call", "id": "1", "name": "f", "arguments": {"x": 1}, "partial_json": '{"x'},
            ],
            "stop_reason": "stop",
            "provider": "p",
            "usage": {"input": 3, "output": 4},
        }
    )
    result = Message.from_dict(
        {
            "role": "tool_result",
            "tool_call_id": "1",
            "tool_name": "f",
            "content": [{"type": "text", "text": "2"}],
            "details": {"shown": True},
            "is_error": True,
            "timestamp": 1700000000,
        }
    )

    assert user.content == (
        TextContent(text="look", signature="s"),
        ImageContent(image_url="https://x/y.png", media_type="image/png"),
    )
    assert user.timestamp == result.timestamp == datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)
    assert assistant.content == (
        ThinkingContent(thinking="hm"),
        ToolCall(id="1", name="f", arguments={"x": 1}, partial_json='{"x'),
    )
    assert assistant.usage == Usage(prompt_tokens=3, completion_tokens=4)
    assert (result.role, result.tool_call_id, result.name) == (Role.TOOL, "1", "f")
    assert result.content == (
        ToolResult(tool_call_id="1", name="f", content=[TextContent(text="2")], is_error=True, details={"shown": True}),
    )


def test_thinking_has_six_levels() -> None:
    assert [level.value for level in ThinkingLevel] == ["off", "minimal", "low", "medium", "high", "xhigh"]


# --- messages with ids, sessions, guards ------------------------------------------------------------------------------


def conversation() -> list[Message]:
    user_message = Message.model_validate(
        {
            "id": "msg-1",
            "role": "user",
            "content": {"type": "text", "text": "Hello, Agent!"},
            "timestamp": datetime.now(UTC),
        }
    )
    ai_message = Message.model_validate(
        {
            "id": "msg-2",
            "role": "assistant",
            "content": {"type": "thinking", "reasoning": "User is greeting, should respond politely..."},
            "timestamp": datetime.now(UTC),
            "usage": {"input": 150, "output": 80},
        }
    )
    tool_call = Message.model_validate(
        {
            "id": "msg-3",
            "role": "assistant",
            "content": {
                "type": "tool-call",
                "name": "search_web",
                "id": "call-abc",
                "input": {"query": "latest news"},
            },
            "timestamp": datetime.now(UTC),
        }
    )
    tool_result = Message.model_validate(
        {
            "id": "msg-4",
            "role": "tool",
            "content": {
                "type": "tool-result",
                "name": "search_web",
                "id": "call-abc",
                "result": {"items": [1, 2]},
            },
            "timestamp": datetime.now(UTC),
            "parentId": "msg-3",
        }
    )
    return [user_message, ai_message, tool_call, tool_result]


def test_messages_have_ids_parents_and_usage() -> None:
    user_message, ai_message, tool_call, tool_result = conversation()

    assert user_message.text == "Hello, Agent!"
    assert ai_message.usage == Usage(input=150, output=80)
    assert tool_call.tool_calls == [ToolCall(id="call-abc", name="search_web", arguments={"query": "latest news"})]
    assert (tool_result.parent_id, tool_result.tool_call_id, tool_result.name) == ("msg-3", "call-abc", "search_web")
    part = tool_result.parts[0]
    assert isinstance(part, ToolResult)
    assert part.result == {"items": [1, 2]}
    assert part.text == '{"items":[1,2]}'


def test_a_session_is_plain_data_and_statistics_are_computed() -> None:
    session = Session.model_validate(
        {
            "id": "session-1",
            "title": "New Conversation",
            "messages": conversation(),
            "createdAt": datetime(2024, 1, 14, 10, 0, 0, tzinfo=UTC),
            "updatedAt": "2024-01-14T10:05:00Z",
        }
    )

    stats = compute_session_stats(session.messages)

    assert session.updated_at == datetime(2024, 1, 14, 10, 5, tzinfo=UTC)
    assert (stats.message_count, stats.user_messages, stats.assistant_messages, stats.tool_messages) == (4, 1, 2, 1)
    assert (stats.tool_calls, stats.usage.input, stats.usage.output) == (1, 150, 80)


def test_an_image_gallery_becomes_several_parts() -> None:
    message = Message.model_validate(
        {
            "role": "user",
            "content": {
                "type": "image",
                "images": [
                    {"data": "iVBORw0KGgo=", "name": "a.png", "mediaType": "image/png"},
                    {"data": "https://example.com/b.jpg", "name": "b.jpg", "mediaType": "image/jpeg"},
                ],
            },
        }
    )

    assert message.content == (
        Image(image_data=b"\x89PNG\r\n\x1a\n", name="a.png", media_type="image/png"),
        Image(image_url="https://example.com/b.jpg", name="b.jpg", media_type="image/jpeg"),
    )


def render(content: MessageContent) -> Any:
    if is_text_content(content):
        return content.text
    if is_thinking_content(content):
        return content.reasoning
    if is_tool_call_content(content):
        return content.name, content.input
    if is_tool_result_content(content):
        return content.result
    if is_image_content(content):
        return content.images
    if is_code_content(content):
        return content.code, content.language
    if is_diff_content(content):
        return content.old_code, content.new_code
    if is_document_content(content):
        return content.title
    if is_audio_content(content):
        return content.data
    if is_refusal_content(content):
        return content.refusal
    if is_vendor_content(content):
        return content.kind
    if is_video_content(content) or is_file_content(content) or is_search_result_content(content):
        return content.type
    assert_never(content)


def test_guards_render_every_kind_of_content() -> None:
    image = ImageContent(image_url="https://x/y")
    every = {
        "text": ({"type": "text", "text": "a"}, "a"),
        "thinking": ({"type": "thinking", "reasoning": "b"}, "b"),
        "call": ({"type": "tool-call", "name": "f", "id": "1", "input": {"x": 1}}, ("f", {"x": 1})),
        "result": ({"type": "tool-result", "name": "f", "id": "1", "result": [1]}, [1]),
        "image": (image, (image,)),
        "code": ({"type": "code", "code": "x = 1", "language": "python"}, ("x = 1", "python")),
        "diff": ({"type": "diff", "oldCode": "a", "newCode": "b"}, ("a", "b")),
        "document": ({"type": "document", "url": "https://x/y.pdf", "title": "Y"}, "Y"),
        "refusal": ({"type": "refusal", "refusal": "no"}, "no"),
        "audio": ({"type": "audio", "data": "AAEC"}, b"\x00\x01\x02"),
    }
    for name, (given, expected) in every.items():
        assert render(ContentPart.model_validate(given)) == expected, name  # type: ignore[arg-type]
