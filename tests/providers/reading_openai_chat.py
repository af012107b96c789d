"""Recorded requests of Chat Completions, read into our types: the inverse of what the codec writes.

Written without the codec, so that it can judge it. What our types have no name for goes into `extra`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from agent.types import (
    AgentRequest,
    AudioContent,
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
)

API = "openai-chat"

_SEALED = ("reasoning_details", "extra_content", "thought_signature")
_SAME_NAME = ("temperature", "top_p", "parallel_tool_calls")
_READ = frozenset(
    (
        *_SAME_NAME, "model", "messages", "stream", "stream_options", "tools", "tool_choice", "max_tokens",
        "max_completion_tokens", "stop", "seed", "random_seed", "logprobs", "top_logprobs", "reasoning_effort",
        "response_format", "prompt_cache_key", "n", "functions",
    )
)  # fmt: skip
_LEVELS = {"none": "off", "max": "xhigh", **{level.value: level.value for level in ThinkingLevel}}


def read_request(body: Mapping[str, Any], provider: str, model: str | None = None) -> AgentRequest:
    """The request that a recorded body stands for. Its reasoning was made by the provider's model of that name."""
    name = model or body.get("model") or "recorded"
    home = Origin(provider=provider, api=API, model=name)
    fields: dict[str, Any] = {key: body[key] for key in _SAME_NAME if body.get(key) is not None}
    extra = {key: value for key, value in body.items() if key not in _READ}
    _read_tools(body, fields, extra)
    _read_output(body, fields, extra)
    effort = body.get("reasoning_effort")
    if effort in _LEVELS:
        fields["thinking"] = _LEVELS[effort]
    elif effort is not None:
        extra["reasoning_effort"] = effort
    if body.get("logprobs"):
        fields["logprobs"] = body.get("top_logprobs") or 0
    return AgentRequest(
        model=name,
        messages=_read_messages(body["messages"], home),
        max_tokens=body.get("max_completion_tokens") or body.get("max_tokens"),
        stop=body.get("stop") or None,
        seed=body["seed"] if body.get("seed") is not None else body.get("random_seed"),
        session_id=body.get("prompt_cache_key"),
        extra=extra,
        **fields,
    )


def _read_tools(body: Mapping[str, Any], fields: dict[str, Any], extra: dict[str, Any]) -> None:
    fields["tools"] = [*(body.get("tools") or ()), *(body.get("functions") or ())]
    choice = body.get("tool_choice")
    if isinstance(choice, Mapping):
        if choice.get("type") == "function":
            fields["tool_choice"] = choice["function"]["name"]
        else:
            extra["tool_choice"] = choice
    elif choice is not None:
        fields["tool_choice"] = "required" if choice == "any" else choice


def _read_output(body: Mapping[str, Any], fields: dict[str, Any], extra: dict[str, Any]) -> None:
    form = body.get("response_format")
    if form is None:
        return
    if form.get("type") == "json_schema" and "json_schema" in form:
        fields["output_schema"] = form["json_schema"]["schema"]
    else:
        extra["response_format"] = form


def _read_messages(messages: Sequence[Mapping[str, Any]], home: Origin) -> list[Message]:
    read: list[Message] = []
    for message in messages:
        role = Role(message["role"])
        if role is Role.TOOL:
            result = ToolResult(
                tool_call_id=message["tool_call_id"],
                name=message.get("name"),
                content=_content(message["content"]),
            )
            if read and read[-1].role is Role.TOOL:  # results that come together are one message
                read[-1] = Message(Role.TOOL, [*read[-1].parts, result])
            else:
                read.append(Message(Role.TOOL, [result]))
        elif role is Role.ASSISTANT:
            read.append(Message(role, _assistant(message, home), name=message.get("name")))
        else:
            read.append(Message(role, _marked(message), name=message.get("name")))
    return read


def _assistant(message: Mapping[str, Any], home: Origin) -> list[Part]:
    parts: list[Part] = []
    reasoning = message.get("reasoning_content") or message.get("reasoning") or ""
    sealed = {key: message[key] for key in _SEALED if message.get(key)}
    if not reasoning:
        details = message.get("reasoning_details") or ()
        reasoning = "".join(detail.get("text") or detail.get("summary") or "" for detail in details)
    if reasoning or sealed:
        parts.append(ThinkingContent(thinking=reasoning, provider_data=sealed or None, origin=home))
    parts += _content(message.get("content"))
    if message.get("refusal"):
        parts.append(RefusalContent(refusal=message["refusal"]))
    parts += [_call(call, home) for call in message.get("tool_calls") or ()]
    return parts


def _call(call: Mapping[str, Any], home: Origin) -> ToolCall:
    sealed = {key: call[key] for key in _SEALED if call.get(key)}
    if call.get("type") == "custom":
        sealed["type"] = "custom"
        name, arguments = call["custom"]["name"], {"input": call["custom"]["input"]}
    else:
        name, arguments = call["function"]["name"], json.loads(call["function"]["arguments"] or "{}")
    if sealed:
        return ToolCall(id=call["id"], name=name, arguments=arguments, provider_data=sealed, origin=home)
    return ToolCall(id=call["id"], name=name, arguments=arguments)


def _marked(message: Mapping[str, Any]) -> list[Part]:
    """Some mark a whole message for the cache instead of a block."""
    parts = _content(message["content"])
    if message.get("cache_control") and parts:
        parts[-1] = parts[-1].model_copy(update={"cache": "short"})
    return parts


def _content(content: str | Sequence[Mapping[str, Any]] | None) -> list[Part]:
    if content is None:
        return []
    if isinstance(content, str):
        return [TextContent(text=content)] if content else []
    return [_block(block) for block in content]


def _block(block: Mapping[str, Any]) -> Part:
    cache = block.get("cache_control")
    match block["type"]:
        case "text":
            return TextContent.model_validate({"type": "text", "text": block["text"], "cache": cache})
        case "image_url":
            image = block["image_url"]
            if isinstance(image, str):
                return ImageContent(image_url=image)
            return ImageContent(image_url=image["url"], detail=image.get("detail"))
        case "input_audio":
            sound = block["input_audio"]
            return AudioContent.model_validate(
                {"type": "audio", "data": sound["data"], "media_type": f"audio/{sound['format']}"}
            )
        case "file":
            file = block["file"]
            return DocumentContent(url=file["file_data"], title=file.get("filename"))
        case "refusal":
            return RefusalContent(refusal=block["refusal"])
        case other:
            raise ValueError(f"a content block of type {other!r}")
