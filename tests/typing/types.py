"""The types as a user's checker sees them: this file is checked and never run.

It must pass `mypy --strict` without pydantic's plugin. A `type: ignore` here is a promise that the line is an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, assert_never, assert_type

from agent import Agent, Router, Target
from agent.types import (
    AgentConfig,
    AgentRequest,
    AgentResponse,
    AnyStreamEvent,
    AudioContent,
    BuiltinTool,
    CodeContent,
    ContentPart,
    ContentPartEvent,
    DiffContent,
    DocumentContent,
    ErrorEvent,
    FileContent,
    FinishReason,
    Fold,
    HedgeConfig,
    ImageContent,
    JsonObject,
    Message,
    MessageContent,
    MessageEnd,
    MessageStart,
    NodeData,
    Part,
    PartialImage,
    RefusalContent,
    RefusalDelta,
    RestartEvent,
    RetryConfig,
    Role,
    Route,
    SearchResultContent,
    Secret,
    SpendLimit,
    StopReason,
    StreamEvent,
    SystemPrompt,
    TextContent,
    TextDelta,
    ThinkingContent,
    ThinkingDelta,
    ThinkingLevel,
    TokenUsage,
    ToolCall,
    ToolCallDelta,
    ToolCallEnd,
    ToolCallStart,
    ToolDefinition,
    ToolDefinitions,
    ToolExecution,
    ToolProgress,
    ToolResult,
    ToolResultContent,
    ToolResultEvent,
    ToolSpec,
    ToolUseContent,
    Usage,
    UsageEvent,
    VendorContent,
    VideoContent,
    fold,
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


def every_part_is_matched(part: Part) -> str:
    match part:
        case TextContent(text=text):
            return text
        case ThinkingContent(thinking=thinking):
            return thinking
        case ToolUseContent(name=name, arguments=arguments):
            return f"{name}({arguments})"
        case ToolResultContent():
            return part.text
        case ImageContent(image_url=url):
            return url or "image"
        case CodeContent(code=code):
            return code
        case DiffContent(new_code=code):
            return code
        case DocumentContent(title=title):
            return title or "document"
        case AudioContent():
            return "audio"
        case RefusalContent(refusal=refusal):
            return refusal
        case VendorContent(kind=kind):
            return kind
        case VideoContent() | FileContent() | SearchResultContent():
            return part.type
        case _:
            assert_never(part)


def every_part_is_guarded(content: MessageContent) -> str | None:
    if is_text_content(content):
        return assert_type(content, TextContent).text
    if is_thinking_content(content):
        return content.reasoning
    if is_tool_call_content(content):
        return assert_type(content, ToolCall).name
    if is_tool_result_content(content):
        return content.text
    if is_image_content(content):
        return content.url
    if is_code_content(content):
        return content.language
    if is_diff_content(content):
        return content.old_code
    if is_document_content(content):
        return content.title
    if is_audio_content(content):
        return content.media_type
    if is_refusal_content(content):
        return content.refusal
    if is_vendor_content(content):
        return content.kind
    if is_video_content(content):
        return content.url
    if is_file_content(content):
        return content.file_id
    if is_search_result_content(content):
        return content.source
    assert_never(content)


def every_node_is_told_apart(data: NodeData) -> str:
    if isinstance(data, Message):
        return data.role
    elif isinstance(data, SystemPrompt):
        return data.content
    elif isinstance(data, ToolDefinitions):
        return ", ".join(tool.name for tool in data.tools)
    elif isinstance(data, ToolExecution):
        return data.tool_name
    elif isinstance(data, StopReason):
        return data.reason
    assert_never(data)


def every_reason_is_matched(reason: FinishReason) -> bool:
    match reason:
        case "stop" | "length" | "tool_calls" | "content_filter" | "refusal" | "pause":
            return True
        case "error" | "other":
            return False
        case _:
            assert_never(reason)


def parts() -> None:
    assert_type(ContentPart.text_part("a"), TextContent)
    assert_type(ContentPart.image_data_part(b"", media_type="image/png"), ImageContent)
    assert_type(ContentPart(type="text", text="a").text, str | None)
    ToolCall(id="1", name="f", arguments={"x": 1})
    ToolCall(id="1", name="f", arguments='{"x": 1}', signature="s", provider_data={"x": 1})
    ToolUseContent(id="1", name="f", input=None, item_id="i")
    ToolCall(name="f")  # type: ignore[call-overload]
    ToolCall(id="1", name="f", arguments={}, input={})  # type: ignore[call-overload]
    ToolResult(tool_call_id="1", name="f", content="x", is_error=True, details={"any": "thing"})
    ToolResultContent(tool_use_id="1", content=[TextContent(text="a"), ImageContent(image_url="https://x")])
    ThinkingContent(thinking="a", signature="s", redacted=True)
    ThinkingContent(reasoning="a")
    assert_type(ToolCall(id="1", name="f").arguments, dict[str, Any])
    TextContent(text="a").text = "b"  # type: ignore[misc]
    TextContent()  # type: ignore[call-arg]


def messages() -> None:
    Message("user", "a")
    Message(Role.USER, [TextContent(text="a"), ImageContent(image_url="https://x")])
    Message("assistant", None, tool_calls=[{"id": "1", "function": {"name": "f"}}, ToolCall(id="2", name="g")])
    Message("user", "a", timestamp=1_700_000_000, id="1", parent_id="0", usage=Usage(input=1))
    Message("invalid", "a")  # type: ignore[arg-type]
    message = Message.user("a")
    assert_type(message, Message)
    assert_type(message.role, Role)
    assert_type(message.content, str | Sequence[Part])
    assert_type(message.parts, Sequence[Part])
    assert_type(message.text, str)
    assert_type(message.tool_calls, list[ToolCall] | None)
    assert_type(message.timestamp, datetime | None)


class Decorated:
    spec = ToolSpec(name="f")


def requests() -> None:
    request = AgentRequest(
        input="q",
        messages=[Message.user("a")],
        tools=[ToolSpec(name="f"), {"name": "g", "input_schema": {}}, Decorated()],
        tool_choice="f",
        schema=dict[str, int],
        stop="END",
        thinking="high",
        logprobs=True,
        metadata={"a": 1},
    )
    AgentRequest(stop=["a", "b"], thinking=ThinkingLevel.LOW, output_schema=Usage)
    AgentRequest(tools=[5])  # type: ignore[list-item]
    AgentRequest(thinking="a lot")  # type: ignore[arg-type]
    AgentRequest(temprature=1)  # type: ignore[call-arg]
    assert_type(request.thinking, ThinkingLevel | None)
    assert_type(request.tools, Sequence[ToolSpec | BuiltinTool | JsonObject])
    assert_type(request.stop, tuple[str, ...] | None)
    assert_type(request.logprobs, int | None)
    assert_type(request.output_json_schema, dict[str, Any] | None)
    assert_type(request.to_messages(), list[Message])
    assert_type(request.with_messages(Message.user("b")), AgentRequest)
    assert_type(request.model_copy(update={"input": "x"}), AgentRequest)
    request.messages.append(Message.user("c"))  # type: ignore[attr-defined]


def answers() -> None:
    usage = Usage(prompt_tokens=1, completion_tokens=2)
    assert_type(usage + TokenUsage(input_tokens=1, cache_read=2), Usage)
    assert_type(usage.input_tokens, int)
    assert_type(Usage.from_counts(None, 5, cache_read=None), Usage)
    response = AgentResponse(text="a", provider="p", model="m", usage=usage, stop_reason="stop", raw=object())
    AgentResponse(content=[TextContent(text="a")], tool_calls=[ToolCall(id="1", name="f")], warnings=["w"])
    AgentResponse(stop_reason="end_turn")  # type: ignore[arg-type]
    assert_type(response.text, str | None)
    assert_type(response.tool_calls, list[ToolCall])
    assert_type(response.content, Sequence[Part])
    assert_type(response.stop_reason, FinishReason | None)
    assert_type(response.message, Message)
    assert_type(response.refusal, str | None)
    assert_type(AgentResponse.from_dict({}), AgentResponse)


def streams(events: Sequence[StreamEvent]) -> None:
    assert_type(StreamEvent.text_delta("a", raw=object()), TextDelta)
    assert_type(StreamEvent(type="text_delta", text="a"), StreamEvent)
    StreamEvent.tool_call_delta_event('{"x"', index=0)
    StreamEvent.message_end(usage=Usage(), response=AgentResponse())
    StreamEvent(type="bogus")  # type: ignore[arg-type]
    assert_type(fold(events), AgentResponse)
    folding = Fold()
    for event in events:
        folding.add(event)
    assert_type(folding.partial(), AgentResponse)


def narrow_events(event: AnyStreamEvent) -> None:
    match event.type:
        case "text_delta" | "thinking_delta" | "refusal_delta":
            assert_type(event, TextDelta | ThinkingDelta | RefusalDelta)
            assert_type(event.text, str)
            assert_type(event.index, int | None)
        case "tool_call_start" | "tool_call_end":
            assert_type(event, ToolCallStart | ToolCallEnd)
            assert_type(event.tool_call, ToolCall)
        case "tool_call_delta":
            assert_type(event, ToolCallDelta)
            assert_type(event.tool_call_delta, dict[str, Any])
        case "tool_result":
            assert_type(event, ToolResultEvent)
            assert_type(event.tool_result, str)
        case "content_part":
            assert_type(event, ContentPartEvent)
            assert_type(event.part, Part)
        case "partial_image":
            assert_type(event, PartialImage)
            assert_type(event.part, Part)
        case "tool_progress":
            assert_type(event, ToolProgress)
            assert_type(event.status, str)
        case "message_start" | "message_end":
            assert_type(event, MessageStart | MessageEnd)
            assert_type(event.response, AgentResponse | None)
        case "usage":
            assert_type(event, UsageEvent)
            assert_type(event.usage, Usage)
        case "error":
            assert_type(event, ErrorEvent)
            assert_type(event.error, str)
        case "restart":
            assert_type(event, RestartEvent)
            assert_type(event.error, str | None)
        case _:
            assert_never(event)
    if event.type == "text_delta":
        assert_type(event, TextDelta)
        event.text = "b"  # type: ignore[misc]


def settings(error: Exception) -> None:
    config = AgentConfig(provider="openai", model="m", api_key="sk", thinking="low", headers={"a": "b"})
    AgentConfig(provider="openai", api_key=config.api_key)
    AgentConfig(model="m")  # type: ignore[call-arg]
    assert_type(config.api_key, Secret | None)
    assert_type(config.with_overrides(temperature=0.5), AgentConfig)
    retry = RetryConfig(retryable_errors=[ValueError, OSError])
    assert_type(retry.should_retry(error, attempt=1), bool)
    assert_type(retry.get_delay(attempt=1, error=error, rand=0.5), float)
    ToolDefinition(name="f", description="d", input_schema={"type": "object"})


def routing(agent: Agent) -> None:
    router = Router([agent, "scripted:m", Target(agent, weight=2), [agent, Router([agent])]], strategy="cheapest")
    assert_type(router.complete("hi"), AgentResponse[None])
    assert_type(router.complete("hi").route, Route)
    assert_type(router.explain("hi").order, list[str])
    assert_type(router.with_config(race=True), Router)
    Router([agent], strategy=lambda request, targets: targets[0])
    Router([agent], on_partial="ignore")  # type: ignore[arg-type]
    Router([agent], spend=[SpendLimit(dollars=1.0, per="user")], hedge=HedgeConfig(), breaker=False)
    Router([3])  # type: ignore[list-item]
