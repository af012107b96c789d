"""Recorded requests of the Responses API, read into our types: the inverse of what the codec writes.

Written without the codec, so that it can judge it. What our types have no name for goes into `extra`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from agent.types import (
    AgentRequest,
    Citation,
    DocumentContent,
    ImageContent,
    Message,
    Origin,
    Part,
    RefusalContent,
    Role,
    TextContent,
    ThinkingContent,
    ThinkingLevel,
    ToolCall,
    ToolResult,
    VendorContent,
)

API = "openai-responses"
LOGPROBS = "message.output_text.logprobs"

_BY_THE_CALLER = frozenset(
    (
        "additional_tools",
        "apply_patch_call_output",
        "computer_call_output",
        "configuration_update",
        "compaction_trigger",
        "item_reference",
        "local_shell_call_output",
        "mcp_approval_response",
        "shell_call_output",
    )
)
"""Items that no model makes."""
_PLAIN_TOOL = frozenset(("type", "name", "description", "parameters", "strict"))
_SAME_NAME = ("temperature", "top_p", "parallel_tool_calls", "metadata")
_READ = frozenset(
    (
        *_SAME_NAME, "model", "input", "instructions", "stream", "tools", "tool_choice", "max_output_tokens",
        "reasoning", "text", "include", "top_logprobs", "prompt_cache_key",
    )
)  # fmt: skip
_LEVELS = {"none": "off", **{level.value: level.value for level in ThinkingLevel}}


def read_request(body: Mapping[str, Any], model: str | None = None) -> AgentRequest:
    """The request that a recorded body stands for. Its reasoning was made by OpenAI's model of that name."""
    name = model or body.get("model") or "recorded"
    fields: dict[str, Any] = {key: body[key] for key in _SAME_NAME if body.get(key) is not None}
    extra = {key: value for key, value in body.items() if key not in _READ}
    given = body.get("input")
    if isinstance(given, str):
        fields["input"] = given
    else:
        fields["messages"] = _Conversation(Origin(provider="openai", api=API, model=name)).read(given or [])
    _read_tools(body, fields, extra)
    _read_reasoning(body.get("reasoning") or {}, fields, extra)
    _read_text(body.get("text") or {}, fields, extra)
    include = list(body.get("include") or ())
    if LOGPROBS in include:
        include.remove(LOGPROBS)
        fields["logprobs"] = body.get("top_logprobs") or 0
    if include:
        extra["include"] = include
    return AgentRequest(
        model=name,
        system=body.get("instructions") or None,
        max_tokens=body.get("max_output_tokens"),
        session_id=body.get("prompt_cache_key"),
        extra=extra,
        **fields,
    )


def _read_tools(body: Mapping[str, Any], fields: dict[str, Any], extra: dict[str, Any]) -> None:
    tools = body.get("tools") or []
    if any(tool.get("type") == "function" and not tool.keys() <= _PLAIN_TOOL for tool in tools):
        extra["tools"] = tools  # such as tools that are loaded later: a ToolSpec has no word for that
    else:
        fields["tools"] = tools
    choice = body.get("tool_choice")
    if isinstance(choice, Mapping):
        if choice.get("type") == "function":
            fields["tool_choice"] = choice["name"]
        else:
            extra["tool_choice"] = choice
    else:
        fields["tool_choice"] = choice


def _read_reasoning(reasoning: Mapping[str, Any], fields: dict[str, Any], extra: dict[str, Any]) -> None:
    rest = dict(reasoning)
    if rest.get("effort") in _LEVELS:
        fields["thinking"] = _LEVELS[rest.pop("effort")]
    if rest:
        extra["reasoning"] = rest


def _read_text(text: Mapping[str, Any], fields: dict[str, Any], extra: dict[str, Any]) -> None:
    rest = dict(text)
    form = rest.get("format") or {}
    if form.get("type") == "json_schema":
        fields["output_schema"] = rest.pop("format")["schema"]
    if rest:
        extra["text"] = rest


class _Conversation:
    """Items joined to messages: a turn of the model is one message, and so are results that come together."""

    def __init__(self, home: Origin) -> None:
        self._home = home
        self._turns: list[tuple[Role, list[Part]]] = []

    def read(self, items: list[dict[str, Any]]) -> list[Message]:
        for item in items:
            self._take(item)
        return [Message(role, parts) for role, parts in self._turns]

    def _say(self, role: Role, *parts: Part, join: bool = True) -> None:
        if join and self._turns and self._turns[-1][0] is role:
            self._turns[-1][1].extend(parts)
        else:
            self._turns.append((role, list(parts)))

    def _take(self, item: dict[str, Any]) -> None:
        kind = item.get("type") or "message"
        if kind == "message" and item.get("role") == "assistant":
            self._say(Role.ASSISTANT, *self._words(item))
        elif kind == "message":
            self._say(Role(item["role"]), *_content(item["content"]), join=False)
        elif kind == "reasoning":
            self._say(Role.ASSISTANT, self._thinking(item))
        elif kind in ("function_call", "custom_tool_call"):
            self._say(Role.ASSISTANT, self._call(item))
        elif kind in ("function_call_output", "custom_tool_call_output"):
            output = item["output"]
            content: Any = output if isinstance(output, str) else _content(output)
            self._say(Role.TOOL, ToolResult(tool_call_id=item["call_id"], content=content))
        elif kind in _BY_THE_CALLER or (kind == "tool_search_output" and item.get("execution") == "client"):
            self._say(Role.USER, VendorContent(kind=kind, provider_data=item, origin=self._home), join=False)
        else:
            self._say(Role.ASSISTANT, VendorContent(kind=kind, provider_data=item, origin=self._home))

    def _words(self, item: dict[str, Any]) -> list[Part]:
        content = item["content"]
        if isinstance(content, str):
            return [TextContent(text=content)]
        facts = {key: item[key] for key in ("id", "status", "phase") if item.get(key)}
        made: dict[str, Any] = {"provider_data": facts, "origin": self._home} if "id" in facts else {}
        return [
            RefusalContent(refusal=block["refusal"], **made)
            if block["type"] == "refusal"
            else TextContent(
                text=block["text"],
                citations=[Citation(provider_data=annotation) for annotation in block.get("annotations") or ()],
                **made,
            )
            for block in content
        ]

    def _thinking(self, item: dict[str, Any]) -> ThinkingContent:
        rest = {key: value for key, value in item.items() if key in ("content",) and value}
        return ThinkingContent(
            thinking="".join(block["text"] for block in item.get("summary") or ()),
            id=item.get("id"),
            encrypted_content=item.get("encrypted_content"),
            summary=item.get("summary") or (),
            provider_data=rest or None,
            origin=self._home,
        )

    def _call(self, item: dict[str, Any]) -> ToolCall:
        rest = {key: item[key] for key in ("namespace", "caller") if item.get(key)}
        custom = item["type"] == "custom_tool_call"
        return ToolCall(
            id=item["call_id"],
            name=item["name"],
            arguments={"input": item["input"]} if custom else json.loads(item["arguments"] or "{}"),
            item_id=item.get("id"),
            provider_data={**rest, "type": "custom"} if custom else rest or None,
            origin=self._home,
        )


def _content(content: str | list[dict[str, Any]]) -> list[Part]:
    if isinstance(content, str):
        return [TextContent(text=content)]
    return [_block(block) for block in content]


def _block(block: dict[str, Any]) -> Part:
    match block["type"]:
        case "input_text" | "output_text" | "text":
            return TextContent(text=block["text"])
        case "input_image":
            return ImageContent(image_url=block["image_url"], detail=block.get("detail"))
        case "input_file":
            url = block.get("file_url") or block["file_data"]
            return DocumentContent(url=url, title=block.get("filename"))
        case other:
            raise ValueError(f"a content block of type {other!r}")
