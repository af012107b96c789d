"""Decoding of responses: output items, log probabilities and stop reasons, in all vendors' spellings.

Items that only the vendor understands (a search, a program it ran, anything new) become `VendorContent`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

from ...engine.wire import parse_json
from ...schemas import compile_schema
from ...types import (
    AgentRequest,
    Citation,
    FinishReason,
    Origin,
    Part,
    RefusalContent,
    TextContent,
    ThinkingContent,
    ToolCall,
    ToolSpec,
    Usage,
    VendorContent,
)
from ..encoding import original_names, tool_parameters
from ..openai_chat.response import billed, is_number
from .dialect import CUSTOM, MAX_NAME_LENGTH, SCHEMA_DIALECT

_CALL_KEYS = frozenset(("type", "id", "call_id", "name", "arguments", "input", "status"))
"""Keys of a call that `ToolCall` has fields for. Others become its provider data."""
_REASONING_KEYS = frozenset(("type", "id", "summary", "encrypted_content", "status"))


class ItemReader:
    """Reads the items that answer one request, with the tool names and schemas of that request."""

    __slots__ = ("_names", "_origin", "_strict", "response_id")

    def __init__(self, request: AgentRequest, origin: Origin) -> None:
        self._origin = origin
        self._names = original_names(request, MAX_NAME_LENGTH) if request.tools else {}
        self._strict = {tool.name: tool for tool in request.tools if isinstance(tool, ToolSpec) and tool.strict}
        self.response_id = ""

    def parts(self, item: Mapping[str, Any], position: int) -> list[tuple[int, Part]]:
        """Read an item. Returns its parts, each with its number in the item."""
        match item.get("type"):
            case "message":
                return self._message(item)
            case "reasoning":
                return [(0, self._reasoning(item))]
            case "function_call" | "custom_tool_call":
                return [(0, self.call(item, position))]
            case kind:
                return [(0, VendorContent(kind=str(kind), provider_data=dict(item), origin=self._origin))]

    def _message(self, item: Mapping[str, Any]) -> list[tuple[int, Part]]:
        data = {key: item[key] for key in ("id", "phase") if item.get(key)}
        if item.get("status") not in (None, "completed"):
            data["status"] = item["status"]
        parts: list[tuple[int, Part]] = []
        for number, block in enumerate(content_of(item)):
            kind = block.get("type")
            if kind == "refusal":
                if block.get("refusal"):
                    refusal = RefusalContent(refusal=block["refusal"], provider_data=data or None, origin=self._origin)
                    parts.append((number, refusal))
            elif isinstance(block.get("text"), str):
                if block["text"]:
                    parts.append((number, self._text(block, data)))
            else:
                whole = {**item, "content": [block]}  # an item of its own, so that it can be sent back as one
                parts.append((number, VendorContent(kind=str(kind), provider_data=whole, origin=self._origin)))
        return parts

    def _text(self, block: Mapping[str, Any], data: dict[str, Any]) -> TextContent:
        return TextContent(
            text=block["text"],
            citations=tuple(map(_citation, block.get("annotations") or ())),
            provider_data=data or None,
            origin=self._origin,
        )

    def _reasoning(self, item: Mapping[str, Any]) -> ThinkingContent:
        data = {key: value for key, value in item.items() if key not in _REASONING_KEYS and value}
        summary = item.get("summary") or ()
        return ThinkingContent(
            thinking=_join_texts(summary) or _join_texts(item.get("content") or ()),
            id=item.get("id") or "",
            encrypted_content=item.get("encrypted_content") or "",
            summary=summary,
            provider_data=data or None,
            origin=self._origin,
        )

    def started_call(self, item: Mapping[str, Any], position: int) -> ToolCall:
        """A call without its arguments."""
        return ToolCall(id=self.call_id(item, position), name=self.call_name(item))

    def call(self, item: Mapping[str, Any], position: int) -> ToolCall:
        """Read a complete call. Arguments that were cut off or are not a JSON object become `invalid_arguments`."""
        data = {key: value for key, value in item.items() if key not in _CALL_KEYS and value is not None}
        name = self.call_name(item)
        values: Any = {}
        invalid: str | None = None
        cut_off = item.get("status") == "incomplete"
        if item["type"] == "custom_tool_call":
            data["type"] = CUSTOM
            if cut_off:
                invalid = item.get("input") or ""
            else:
                values = {"input": item.get("input") or ""}
        else:
            values, invalid = _read_arguments(item.get("arguments"), cut_off=cut_off)
            if invalid is None and name in self._strict:
                values = compile_schema(tool_parameters(self._strict[name]), SCHEMA_DIALECT).restore(values)
        return ToolCall(
            id=self.call_id(item, position),
            name=name,
            arguments=values,
            invalid_arguments=invalid,
            item_id=item.get("id") or None,
            provider_data=data or None,
            origin=self._origin,
        )

    def call_name(self, item: Mapping[str, Any]) -> str:
        """The tool's name in the request."""
        sent = item.get("name") or ""
        return self._names.get(sent, sent)

    def call_id(self, item: Mapping[str, Any], position: int) -> str:
        """The vendor's id, or a deterministic one where it sends none."""
        given = item.get("call_id") or item.get("id")
        if given:
            return str(given)
        return "call_" + hashlib.sha256(f"{self.response_id}/{position}".encode()).hexdigest()[:20]


def _read_arguments(given: Any, *, cut_off: bool) -> tuple[dict[str, Any], str | None]:
    """Return the arguments, and the text of invalid ones."""
    if isinstance(given, dict):
        return given, None
    text = given or ""
    if cut_off:
        return {}, text
    if not text.strip():
        return {}, None
    try:
        values = parse_json(text)
    except ValueError:
        values = None
    return (values, None) if isinstance(values, dict) else ({}, text)


def content_of(item: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The blocks of a message. Some vendors send text instead."""
    content = item.get("content") or []
    return [{"type": "output_text", "text": content}] if isinstance(content, str) else content


def _join_texts(blocks: Iterable[Mapping[str, Any]]) -> str:
    return "".join(block.get("text") or "" for block in blocks)


def _citation(annotation: Mapping[str, Any]) -> Citation:
    """Read an annotation: a page, a file, or a place in a file."""
    index = annotation.get("index")
    return Citation(
        url=annotation.get("url"),
        title=annotation.get("title") or annotation.get("filename"),
        start=annotation.get("start_index", index),
        end=annotation.get("end_index", index),
        provider_data=dict(annotation),
    )


def read_logprobs(items: Iterable[Mapping[str, Any]]) -> tuple[dict[str, Any], ...]:
    """Log probabilities by token of the text."""
    return tuple(
        {
            "token": token.get("token"),
            "logprob": token.get("logprob"),
            "top": [
                {"token": other.get("token"), "logprob": other.get("logprob")}
                for other in token.get("top_logprobs") or ()
            ],
        }
        for item in items
        if item.get("type") == "message"
        for block in content_of(item)
        for token in block.get("logprobs") or ()
    )


_INCOMPLETE: dict[str, FinishReason] = {
    "max_output_tokens": "length",
    "max_tokens": "length",
    "content_filter": "content_filter",
}


def stop_reason(response: Mapping[str, Any], *, called: bool, refused: bool) -> tuple[FinishReason, str]:
    """The stop reason, and the vendor's word for it. Calls and refusals take precedence over `completed`."""
    if response.get("status") == "incomplete":
        reason = (response.get("incomplete_details") or {}).get("reason") or "incomplete"
        return _INCOMPLETE.get(reason, "other"), reason
    return "tool_calls" if called else "refusal" if refused else "stop", response.get("status") or "completed"


def read_usage(response: Mapping[str, Any], items: Iterable[Mapping[str, Any]]) -> Usage | None:
    """Read the usage of a response. Searches are billed by the number of search items."""
    usage = response.get("usage")
    if not isinstance(usage, dict) or not usage:
        return None
    read, written = _group(usage.get("input_tokens_details")), _group(usage.get("output_tokens_details"))
    return Usage.from_counts(
        _first_number(usage, "input_tokens", "prompt_tokens"),
        _first_number(usage, "output_tokens", "completion_tokens"),
        total=_first_number(usage, "total_tokens"),
        cache_read=_first_number(read, "cached_tokens", "cache_read_tokens"),
        cache_write=_first_number(read, "cache_write_tokens", "cache_creation_tokens"),
        reasoning=_first_number(written, "reasoning_tokens"),
        details=_details(response, usage, items),
        billed=billed(usage),
    )


def _details(
    response: Mapping[str, Any], usage: Mapping[str, Any], items: Iterable[Mapping[str, Any]]
) -> dict[str, Any]:
    reported = _group(_group(response.get("tool_usage")).get("web_search"))
    run = _group(usage.get("server_side_tool_usage_details"))
    searches = reported.get("num_requests", run.get("web_search_calls"))
    if searches is None:
        searches = sum(map(_is_search, items))
    return {"web_searches": searches, "code_executions": run.get("code_interpreter_calls")}


def _is_search(item: Mapping[str, Any]) -> bool:
    """Whether an item is a search. Opening a result is a call of the same type, and is not billed."""
    return item.get("type") == "web_search_call" and _group(item.get("action")).get("type") in (None, "search")


def _group(counts: Any) -> Mapping[str, Any]:
    return counts if isinstance(counts, dict) else {}


def _first_number(counts: Mapping[str, Any], *names: str) -> int | None:
    for name in names:
        count = counts.get(name)
        if count is not None and is_number(count):
            return int(count)
    return None
