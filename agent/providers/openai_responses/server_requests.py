"""Request decoder of the Responses API server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...types import (
    Message,
    Origin,
    Part,
    RefusalContent,
    Role,
    TextContent,
    ToolCall,
    ToolResult,
    ToolSpec,
    VendorContent,
)
from ..server_dialect import (
    EFFORT_LEVELS,
    Fields,
    InboundRequest,
    build_request,
    document_from_url,
    function_tool,
    image_from_url,
    invalid_request,
    read_call,
    require_objects,
    simplify_content,
    with_title,
)
from .models import API
from .response import block_item, message_data, read_citation, read_reasoning

_ENCRYPTED_REASONING = "reasoning.encrypted_content"
_LOGPROBS = "message.output_text.logprobs"
_STORED = ("previous_response_id", "conversation", "background", "prompt")
"""Fields that refer to stored data."""
_ECHOED = ("instructions", "tools", "tool_choice", "parallel_tool_calls", "temperature", "top_p", "metadata", "text",
           "reasoning", "max_output_tokens", "truncation")  # fmt: skip


class RequestReader:
    """Decodes one request body."""

    def __init__(self, fields: Fields) -> None:
        self._fields = fields
        self._echo = {key: value for key in _ECHOED if (value := fields.peek(key)) is not None}
        self._model = fields.text("model") or ""
        self._origin = Origin(provider=API, api=API, model=self._model)
        self._warnings: list[str] = []
        self._references: list[str] = []
        """References to stored items in the input."""

    def read(self) -> InboundRequest:
        fields = self._fields
        unsupported = tuple(name for name in _STORED if fields.peek(name))
        if fields.take("store"):
            self._warnings.append("store was left out: responses are not stored")
        messages = self._messages()
        stream = fields.flag("stream") or False
        request = build_request(messages=messages, model=self._model, **self._settings())
        request = request.model_copy(update={"extra": fields.rest()})
        return InboundRequest(
            request, self._model, stream, tuple(self._warnings), (*unsupported, *self._references), self._echo
        )

    def _settings(self) -> dict[str, Any]:
        fields = self._fields
        reasoning, text = fields.object("reasoning"), fields.object("text")
        effort = reasoning.pop("effort", None)
        if effort is not None and effort not in EFFORT_LEVELS:
            raise invalid_request(f"'reasoning.effort' must be one of {', '.join(EFFORT_LEVELS)}.", "reasoning.effort")
        if effort is not None and reasoning.get("summary") == "auto":
            reasoning.pop("summary")
        form = text.pop("format", None) or {}
        if form.get("type") not in (None, "text", "json_schema"):
            text["format"] = form
        for name, left in (("reasoning", reasoning), ("text", text)):
            if left:
                fields.put(name, left)
        return {
            "tools": [_read_tool(tool) for tool in require_objects(fields.list("tools"), "tools")],
            "tool_choice": _read_tool_choice(fields.take("tool_choice")),
            "parallel_tool_calls": fields.flag("parallel_tool_calls"),
            "max_tokens": fields.take("max_output_tokens"),
            "temperature": fields.take("temperature"),
            "top_p": fields.take("top_p"),
            "logprobs": self._logprobs(),
            "thinking": None if effort is None else EFFORT_LEVELS[effort],
            "output_schema": with_title(form["schema"], form.get("name")) if "schema" in form else None,
            "metadata": fields.object("metadata"),
            "session_id": fields.text("prompt_cache_key"),
            "cache": self._cache(),
        }

    def _logprobs(self) -> int | None:
        include = self._fields.list("include")
        if rest := [name for name in include if name not in (_ENCRYPTED_REASONING, _LOGPROBS)]:
            self._fields.put("include", rest)
        top = self._fields.take("top_logprobs")
        return top or 0 if _LOGPROBS in include or top else None

    def _cache(self) -> str | None:
        retention = self._fields.take("prompt_cache_retention")
        options = self._fields.object("prompt_cache_options")
        return "long" if retention == "24h" or options.get("ttl") in ("12h", "24h") else None

    # The conversation

    def _messages(self) -> list[Message]:
        instructions, input = self._fields.text("instructions"), self._fields.take("input")
        messages = [Message(Role.SYSTEM, instructions)] if instructions else []
        if isinstance(input, str):
            return [*messages, Message(Role.USER, input)]
        pending: list[Part] = []
        results: list[ToolResult] = []
        for at, item in enumerate(require_objects(input or (), "input")):
            where = f"input[{at}]"
            if (result := self._result(item, where)) is not None:
                messages += _end_turns(pending, results, keep_results=True)
                results.append(result)
                continue
            message = self._read_prompt(item, where)
            if message is None:
                parts = self._assistant_parts(item, where)
                messages += _end_turns(pending, results, keep_assistant=not _begins_turn(parts, pending))
                pending += parts
            else:
                messages += _end_turns(pending, results)
                messages.append(message)
        return [*messages, *_end_turns(pending, results)]

    def _read_prompt(self, item: Mapping[str, Any], where: str) -> Message | None:
        """Decode a user or system message; None for items of the model."""
        if item.get("type", "message") != "message" or item.get("role") == "assistant":
            return None
        match item.get("role"):
            case "user":
                role = Role.USER
            case "system" | "developer":
                role = Role.SYSTEM
            case name:
                raise invalid_request(f"{where}.role: {name!r} is not a role.", f"{where}.role")
        content = item.get("content") or ""
        return Message(role, content if isinstance(content, str) else self._blocks(content, f"{where}.content"))

    def _assistant_parts(self, item: Mapping[str, Any], where: str) -> list[Part]:
        match item.get("type", "message"):
            case "message":
                return self._read_message(item, where)
            case "reasoning":
                return [read_reasoning(item, self._origin)]
            case "function_call" | "custom_tool_call":
                return [self._call(item, where)]
            case str(kind):
                if kind == "item_reference":
                    self._references.append(where)
                return [VendorContent(kind=kind, provider_data=dict(item), origin=self._origin)]
            case _:
                raise invalid_request(f"{where}: an item needs a type.", where)

    def _read_message(self, item: Mapping[str, Any], where: str) -> list[Part]:
        data = message_data(item)
        fields: dict[str, Any] = {"provider_data": data, "origin": self._origin} if data else {}
        content = item.get("content") or ()
        if isinstance(content, str):
            return [TextContent(text=content, **fields)]
        parts: list[Part] = []
        for block in require_objects(content, f"{where}.content"):
            if block.get("type") == "refusal":
                parts.append(RefusalContent(refusal=block.get("refusal") or "", **fields))
            elif isinstance(block.get("text"), str):
                citations = [read_citation(note) for note in block.get("annotations") or ()]
                parts.append(TextContent(text=block["text"], citations=citations, **fields))
            else:
                parts.append(block_item(item, block, self._origin))
        return parts

    def _call(self, item: Mapping[str, Any], where: str) -> ToolCall:
        known = ("type", "id", "call_id", "name", "arguments", "input", "status")
        rest = {key: value for key, value in item.items() if key not in known and value is not None}
        if item.get("type") == "custom_tool_call":
            rest["type"] = "custom"
            arguments: Any = {"input": item.get("input") or ""}
        else:
            arguments = item.get("arguments") or "{}"
        fields = {"item_id": item.get("id"), "origin": self._origin, "provider_data": rest or None}
        return read_call(item.get("call_id"), item.get("name"), arguments, where, **fields)

    def _result(self, item: Mapping[str, Any], where: str) -> ToolResult | None:
        if item.get("type") not in ("function_call_output", "custom_tool_call_output"):
            return None
        if not isinstance(id := item.get("call_id"), str):
            raise invalid_request(f"{where}.call_id must be a string.", f"{where}.call_id")
        output = item.get("output") or ""
        return ToolResult(
            tool_call_id=id, content=output if isinstance(output, str) else self._blocks(output, f"{where}.output")
        )

    def _blocks(self, blocks: Any, where: str) -> list[Any]:
        return [self._block(block, f"{where}[{at}]") for at, block in enumerate(require_objects(blocks, where))]

    def _block(self, block: Mapping[str, Any], where: str) -> Part:
        part = self._plain_block(block, where)
        mark = block.get("prompt_cache_breakpoint")
        if not isinstance(mark, Mapping):
            return part
        return part.model_copy(update={"cache": "long" if mark.get("ttl") else "short"})

    def _plain_block(self, block: Mapping[str, Any], where: str) -> Part:
        kind = block.get("type")
        match kind:
            case "input_text" | "output_text" | "text" if isinstance(block.get("text"), str):
                return TextContent(text=block["text"])
            case "input_image" if isinstance(block.get("image_url"), str):
                detail = block.get("detail")
                return image_from_url(block["image_url"], where, None if detail == "auto" else detail)
            case "input_file" if isinstance(url := block.get("file_data") or block.get("file_url"), str):
                return document_from_url(url, where, block.get("filename"))
            case str():
                return VendorContent(kind=kind, provider_data=dict(block), origin=self._origin)
            case _:
                raise invalid_request(f"{where}: a block needs a type.", where)


def _begins_turn(parts: Sequence[Part], pending: Sequence[Part]) -> bool:
    """Whether plain text follows plain text, which would be one item within a turn."""
    return bool(pending and parts) and all(
        part == TextContent(text=part.text or "") for part in (pending[-1], parts[0])
    )


def _end_turns(
    pending: list[Part], results: list[ToolResult], *, keep_results: bool = False, keep_assistant: bool = False
) -> list[Message]:
    """Return the messages of turns that have ended."""
    turns: list[Message] = []
    if pending and not keep_assistant:
        turns.append(Message(Role.ASSISTANT, simplify_content(pending)))
        pending.clear()
    if results and not keep_results:
        turns.append(Message(Role.TOOL, tuple(results)))
        results.clear()
    return turns


def _read_tool(tool: Mapping[str, Any]) -> ToolSpec | dict[str, Any]:
    if tool.get("type") != "function":
        return dict(tool)
    known = ("type", "name", "parameters")
    spec = function_tool(tool.get("name"), tool, tool.get("parameters"), known)
    return spec if spec.strict else spec.model_copy(update={"strict": None})  # the API's default is true


def _read_tool_choice(choice: Any) -> str | None:
    if choice is None or isinstance(choice, str):
        return choice
    name = (choice.get("name") or choice.get("server_label") or choice.get("type")) if isinstance(choice, dict) else 0
    if not isinstance(name, str):
        raise invalid_request("'tool_choice' must be a string or name a tool.", "tool_choice")
    return name
