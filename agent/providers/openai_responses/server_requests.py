"""Read requests of the Responses API as a server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...types import (
    Citation,
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
    ToolSpec,
    VendorContent,
)
from ..openai_chat.server_requests import read_call, titled
from ..server_dialect import (
    Fields,
    InboundRequest,
    build_request,
    document_from_url,
    function_tool,
    image_from_url,
    invalid_request,
    require_objects,
)
from .dialect import API

_LEVELS: Mapping[str, ThinkingLevel] = {"none": ThinkingLevel.OFF, "max": ThinkingLevel.XHIGH} | {
    level.value: level for level in ThinkingLevel if level is not ThinkingLevel.OFF
}
_SEALED = "reasoning.encrypted_content"
_LOGPROBS = "message.output_text.logprobs"
_STORED = ("previous_response_id", "conversation", "background", "prompt")
"""Fields that refer to what a vendor stores."""
_ECHOED = ("instructions", "tools", "tool_choice", "parallel_tool_calls", "temperature", "top_p", "metadata", "text",
           "reasoning", "max_output_tokens", "truncation")  # fmt: skip


class RequestReader:
    """Reads one request body."""

    def __init__(self, fields: Fields) -> None:
        self._fields = fields
        self._echo = {key: value for key in _ECHOED if (value := fields.peek(key)) is not None}
        self._model = fields.text("model") or ""
        self._origin = Origin(provider=API, api=API, model=self._model)
        self._warnings: list[str] = []
        self._references: list[str] = []
        """Where the input refers to items that a vendor has stored."""

    def inbound(self) -> InboundRequest:
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
        if effort is not None and effort not in _LEVELS:
            raise invalid_request(f"'reasoning.effort' must be one of {', '.join(_LEVELS)}.", "reasoning.effort")
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
            "thinking": None if effort is None else _LEVELS[effort],
            "output_schema": titled(form["schema"], form.get("name")) if "schema" in form else None,
            "metadata": fields.object("metadata"),
            "session_id": fields.text("prompt_cache_key"),
            "cache": self._cache(),
        }

    def _logprobs(self) -> int | None:
        include = self._fields.list("include")
        if rest := [wish for wish in include if wish not in (_SEALED, _LOGPROBS)]:
            self._fields.put("include", rest)
        top = self._fields.take("top_logprobs")
        return top or 0 if _LOGPROBS in include or top else None

    def _cache(self) -> str | None:
        retention = self._fields.take("prompt_cache_retention")
        options = self._fields.object("prompt_cache_options")
        return "long" if retention == "24h" or options.get("ttl") in ("12h", "24h") else None

    # The conversation

    def _messages(self) -> list[Message]:
        instructions, given = self._fields.text("instructions"), self._fields.take("input")
        messages = [Message(Role.SYSTEM, instructions)] if instructions else []
        if isinstance(given, str):
            return [*messages, Message(Role.USER, given)]
        held: list[Part] = []
        results: list[ToolResult] = []
        for at, item in enumerate(require_objects(given or (), "input")):
            where = f"input[{at}]"
            if (result := self._result(item, where)) is not None:
                messages += _turns(held, results, but_results=True)
                results.append(result)
                continue
            message = self._said(item, where)
            if message is None:
                parts = self._assistant_parts(item, where)
                messages += _turns(held, results, but_assistant=not _begins_turn(parts, held))
                held += parts
            else:
                messages += _turns(held, results)
                messages.append(message)
        return [*messages, *_turns(held, results)]

    def _said(self, item: Mapping[str, Any], where: str) -> Message | None:
        """A message of the user's or the system's; None for an item of the model's."""
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
                return self._words(item, where)
            case "reasoning":
                return [self._reasoning(item)]
            case "function_call" | "custom_tool_call":
                return [self._call(item, where)]
            case str(kind):
                if kind == "item_reference":
                    self._references.append(where)
                return [VendorContent(kind=kind, provider_data=dict(item), origin=self._origin)]
            case _:
                raise invalid_request(f"{where}: an item needs a type.", where)

    def _words(self, item: Mapping[str, Any], where: str) -> list[Part]:
        facts = {key: item[key] for key in ("id", "phase") if item.get(key)}
        if item.get("status") not in (None, "completed"):
            facts["status"] = item["status"]
        told: dict[str, Any] = {"provider_data": facts, "origin": self._origin} if facts else {}
        content = item.get("content") or ()
        if isinstance(content, str):
            return [TextContent(text=content, **told)]
        parts: list[Part] = []
        for block in require_objects(content, f"{where}.content"):
            if block.get("type") == "refusal":
                parts.append(RefusalContent(refusal=block.get("refusal") or "", **told))
            elif isinstance(block.get("text"), str):
                citations = [_citation(note) for note in block.get("annotations") or ()]
                parts.append(TextContent(text=block["text"], citations=citations, **told))
            else:
                whole = {**item, "content": [block]}
                kind = str(block.get("type"))
                parts.append(VendorContent(kind=kind, provider_data=whole, origin=self._origin))
        return parts

    def _reasoning(self, item: Mapping[str, Any]) -> ThinkingContent:
        known = ("type", "id", "summary", "encrypted_content", "status")
        summary = item.get("summary") or ()
        return ThinkingContent(
            thinking="".join(part.get("text") or "" for part in summary or item.get("content") or ()),
            id=item.get("id") or "",
            encrypted_content=item.get("encrypted_content") or "",
            summary=summary,
            provider_data={key: value for key, value in item.items() if key not in known and value} or None,
            origin=self._origin,
        )

    def _call(self, item: Mapping[str, Any], where: str) -> ToolCall:
        id, name = item.get("call_id"), item.get("name")
        if not isinstance(id, str) or not isinstance(name, str):
            raise invalid_request(f"{where}: a call needs a call_id and a name.", where)
        known = ("type", "id", "call_id", "name", "arguments", "input", "status")
        rest = {key: value for key, value in item.items() if key not in known and value is not None}
        facts: dict[str, Any] = {"item_id": item.get("id"), "origin": self._origin}
        if item.get("type") == "custom_tool_call":
            rest["type"] = "custom"
            arguments: Any = {"input": item.get("input") or ""}
        else:
            arguments = item.get("arguments") or "{}"
        return read_call(id, name, arguments, provider_data=rest or None, **facts)

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


def _begins_turn(parts: Sequence[Part], held: Sequence[Part]) -> bool:
    """Whether plain words follow plain words: within one turn, they would be one item."""
    return bool(held and parts) and all(part == TextContent(text=part.text or "") for part in (held[-1], parts[0]))


def _turns(
    held: list[Part], results: list[ToolResult], *, but_results: bool = False, but_assistant: bool = False
) -> list[Message]:
    """The turns that have ended; what goes on is kept."""
    turns: list[Message] = []
    if held and not but_assistant:
        turns.append(Message(Role.ASSISTANT, _simplest(held)))
        held.clear()
    if results and not but_results:
        turns.append(Message(Role.TOOL, tuple(results)))
        results.clear()
    return turns


def _simplest(parts: list[Part]) -> Any:
    first = parts[0]
    if len(parts) == 1 and isinstance(first, TextContent) and first == TextContent(text=first.text):
        return first.text
    return tuple(parts)


def _citation(note: Any) -> Citation:
    at = note.get("index")
    return Citation(
        url=note.get("url"),
        title=note.get("title") or note.get("filename"),
        start=note.get("start_index", at),
        end=note.get("end_index", at),
        provider_data=note,
    )


def _read_tool(tool: Mapping[str, Any]) -> ToolSpec | dict[str, Any]:
    if tool.get("type") != "function":
        return dict(tool)
    known = ("type", "name", "parameters")
    spec = function_tool(tool.get("name"), tool, tool.get("parameters"), known)
    return spec if spec.strict else spec.model_copy(update={"strict": None})  # the API takes its absence for yes


def _read_tool_choice(choice: Any) -> str | None:
    if choice is None or isinstance(choice, str):
        return choice
    named = (choice.get("name") or choice.get("server_label") or choice.get("type")) if isinstance(choice, dict) else 0
    if not isinstance(named, str):
        raise invalid_request("'tool_choice' must be a word, or name a tool.", "tool_choice")
    return named
