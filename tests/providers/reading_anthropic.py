"""Reading recorded bodies of the Messages API back into our types, to be sent again, here or elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from agent.types import (
    AgentRequest,
    Citation,
    DocumentContent,
    ImageContent,
    Message,
    Origin,
    Part,
    Role,
    TextContent,
    ThinkingContent,
    ThinkingLevel,
    ToolCall,
    ToolResult,
    ToolSpec,
    VendorContent,
)

LEVEL_OF_EFFORT = {
    "low": ThinkingLevel.LOW,
    "medium": ThinkingLevel.MEDIUM,
    "high": ThinkingLevel.HIGH,
    "xhigh": ThinkingLevel.XHIGH,
    "max": ThinkingLevel.XHIGH,
}
LEVEL_OF_BUDGET = (
    (1_024, ThinkingLevel.MINIMAL),
    (2_048, ThinkingLevel.LOW),
    (8_192, ThinkingLevel.MEDIUM),
    (16_384, ThinkingLevel.HIGH),
)
_READ = frozenset(
    (
        "max_tokens",
        "messages",
        "metadata",
        "model",
        "output_config",
        "output_format",
        "stop_sequences",
        "stream",
        "system",
        "temperature",
        "thinking",
        "tool_choice",
        "tools",
        "top_p",
    )
)
"""Keys that have a place in our request; the others are `extra`."""
_TOOL_KEYS = frozenset(("name", "description", "input_schema", "strict", "cache_control", "type"))


def read_request(body: dict[str, Any], model: str | None = None) -> AgentRequest:
    """The request that a body was written for. `model` is asked instead of the recorded one."""
    asked = model or body["model"]
    home = Origin(provider="anthropic", api="anthropic", model=body.get("model") or asked)
    choice = body.get("tool_choice") or {}
    output = dict(body.get("output_config") or {})
    schema = (output.pop("format", None) or body.get("output_format") or {}).get("schema")
    level = _level(body.get("thinking"), output)
    extra = {key: value for key, value in body.items() if key not in _READ}
    if output:
        extra["output_config"] = output
    return AgentRequest(
        model=asked,
        messages=[*_instructions(body.get("system")), *_messages(body["messages"], home)],
        tools=[_tool(tool) for tool in body.get("tools") or ()],
        tool_choice=_choice(choice),
        parallel_tool_calls=not choice["disable_parallel_tool_use"] if "disable_parallel_tool_use" in choice else None,
        output_schema=schema,
        max_tokens=body["max_tokens"],
        temperature=body.get("temperature"),
        top_p=body.get("top_p"),
        stop=body.get("stop_sequences") or None,
        thinking=level,
        metadata=body.get("metadata") or {},
        extra=extra,
    )


def _level(thinking: Mapping[str, Any] | None, output: dict[str, Any]) -> ThinkingLevel | None:
    """How hard was thought. An effort beside thinking is what the level says; alone it stays a setting."""
    match thinking:
        case {"type": "adaptive"}:
            return LEVEL_OF_EFFORT[output.pop("effort", "high")]
        case {"type": "enabled", "budget_tokens": int(budget)}:
            return next((level for most, level in LEVEL_OF_BUDGET if budget <= most), ThinkingLevel.XHIGH)
        case {"type": "disabled" | "between_tools"}:
            return ThinkingLevel.OFF
        case _:
            return None


def _choice(choice: Mapping[str, Any]) -> str | None:
    match choice:
        case {"type": "any"}:
            return "required"
        case {"type": "tool", "name": str(name)}:
            return name
        case {"type": str(kind)}:
            return kind
        case _:
            return None


def _tool(tool: dict[str, Any]) -> ToolSpec | dict[str, Any]:
    """A tool of the caller's, or one that runs at the vendor. Settings that `ToolSpec` lacks are lost."""
    if tool.get("type") not in (None, "custom"):
        return tool
    return ToolSpec.model_validate({key: value for key, value in tool.items() if key in _TOOL_KEYS})


def _instructions(system: str | list[dict[str, Any]] | None) -> list[Message]:
    if not system:
        return []
    if isinstance(system, str):
        return [Message.system(system)]
    return [Message.system([_text(block) for block in system])]


def _messages(messages: Iterable[dict[str, Any]], home: Origin) -> Iterator[Message]:
    for message in messages:
        role, content = Role(message["role"]), message["content"]
        if isinstance(content, str):
            yield Message(role, content)
            continue
        if role is Role.ASSISTANT:
            yield Message(role, [_said(block, home) for block in content])
            continue
        results = [_result(block) for block in content if block["type"] == "tool_result"]
        if results:
            yield Message(Role.TOOL, results)
        rest = [_given(block, home) for block in content if block["type"] != "tool_result"]
        if rest:
            yield Message(role, rest)


def _said(block: dict[str, Any], home: Origin) -> Part:
    """A block of an assistant's message."""
    match block["type"]:
        case "text" if block.get("citations"):
            citations = [
                Citation(quote=source.get("cited_text"), provider_data=source) for source in block["citations"]
            ]
            return TextContent(text=block["text"], citations=citations, origin=home, cache=block.get("cache_control"))
        case "text":
            return _text(block)
        case "thinking":
            return ThinkingContent(thinking=block["thinking"], signature=block["signature"], origin=home)
        case "redacted_thinking":
            return ThinkingContent(thinking="", redacted=True, encrypted_content=block["data"], origin=home)
        case "tool_use":
            rest = {
                key: value
                for key, value in block.items()
                if key not in ("type", "id", "name", "input", "cache_control")
            }
            return ToolCall(
                id=block["id"],
                name=block["name"],
                arguments=block["input"],
                cache=block.get("cache_control"),
                provider_data=rest or None,
                origin=home if rest else None,
            )
        case kind:
            return VendorContent(kind=kind, provider_data=block, origin=home)


def _given(block: dict[str, Any], home: Origin) -> Part:
    """A block of a user's message, other than a result. What we have no part for goes back as it was."""
    source = block.get("source") or {}
    match block["type"], source.get("type"):
        case "text", _:
            return _text(block)
        case "image", "base64" | "url":
            return ImageContent.model_validate(block)
        case "document", "base64" | "url" | "text":
            settings = {key: block[key] for key in ("citations", "context") if key in block}
            document = DocumentContent.model_validate(
                {key: value for key, value in block.items() if key not in ("citations", "context")}
            )
            return document.model_copy(update={"provider_data": settings}) if settings else document
        case kind, _:
            return VendorContent(kind=kind, provider_data=block, origin=home)


def _text(block: dict[str, Any]) -> TextContent:
    return TextContent(text=block["text"], cache=block.get("cache_control"))


def _result(block: dict[str, Any]) -> ToolResult:
    content = block.get("content", "")
    if not isinstance(content, str):
        content = [
            _text(inner)
            if inner["type"] == "text"
            else (ImageContent if inner["type"] == "image" else DocumentContent).model_validate(inner)
            for inner in content
        ]
    return ToolResult(
        tool_call_id=block["tool_use_id"],
        content=content,
        is_error=bool(block.get("is_error")),
        cache=block.get("cache_control"),
    )
