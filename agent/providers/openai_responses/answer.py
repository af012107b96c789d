"""Reading a response: its output items, its counts, and why it ended, in every spelling vendors have for them.

What only the vendor understands (a search it ran, a program it executed, anything new) is kept as it came.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

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
    freeze,
)
from ...wire import parse_json
from ..openai_chat.usage import billed, is_number
from ..writing import original_names
from .items import CUSTOM, LONGEST_NAME
from .traits import DIALECT

_READ_ELSEWHERE = frozenset(("type", "id", "call_id", "name", "arguments", "input", "status"))
"""Keys of a call that have fields of their own here; all others are the vendor's own."""


class ItemReader:
    """Reads the items of one response."""

    __slots__ = ("_names", "_origin", "_strict", "response_id")

    def __init__(self, request: AgentRequest, origin: Origin) -> None:
        self._origin = origin
        self._names = original_names(request, LONGEST_NAME) if request.tools else {}
        self._strict = {
            tool.name: tool.parameters for tool in request.tools if isinstance(tool, ToolSpec) and tool.strict
        }
        self.response_id = ""

    def parts(self, item: Mapping[str, Any], position: int) -> list[tuple[int, Part]]:
        """An item's parts, each with its place in the item."""
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
        facts = {key: item[key] for key in ("id", "phase") if item.get(key)}
        if item.get("status") not in (None, "completed"):
            facts["status"] = item["status"]
        parts: list[tuple[int, Part]] = []
        for place, block in enumerate(content_of(item)):
            kind = block.get("type")
            if kind == "refusal":
                if block.get("refusal"):
                    refusal = RefusalContent(refusal=block["refusal"], provider_data=facts or None, origin=self._origin)
                    parts.append((place, refusal))
            elif isinstance(block.get("text"), str):
                if block["text"]:
                    parts.append((place, self._text(block, facts)))
            else:
                whole = {**item, "content": [block]}  # an item of its own, so that it can be sent back as one
                parts.append((place, VendorContent(kind=str(kind), provider_data=whole, origin=self._origin)))
        return parts

    def _text(self, block: Mapping[str, Any], facts: dict[str, Any]) -> TextContent:
        # The text is text, and the rest is made here or frozen: there is nothing left to check.
        return TextContent.trusted(
            text=block["text"],
            citations=tuple(map(_citation, block.get("annotations") or ())),
            provider_data=freeze(facts) if facts else None,
            origin=self._origin,
        )

    def _reasoning(self, item: Mapping[str, Any]) -> ThinkingContent:
        own = ("type", "id", "summary", "encrypted_content", "status")
        rest = {key: value for key, value in item.items() if key not in own and value}
        summary = item.get("summary") or ()
        return ThinkingContent(
            thinking=_joined(summary) or _joined(item.get("content") or ()),
            id=item.get("id") or "",
            encrypted_content=item.get("encrypted_content") or "",
            summary=summary,
            provider_data=rest or None,
            origin=self._origin,
        )

    def started_call(self, item: Mapping[str, Any], position: int) -> ToolCall:
        """A call of which no more than id and name are known."""
        id, name = self._named(item, position)
        return ToolCall(id=id, name=name)

    def call(self, item: Mapping[str, Any], position: int) -> ToolCall:
        """A finished call. One that was cut off, or is no JSON object, is kept as text and never as arguments."""
        rest = {key: value for key, value in item.items() if key not in _READ_ELSEWHERE and value is not None}
        id, name = self._named(item, position)
        values: Any = {}
        invalid: str | None = None
        cut_off = item.get("status") == "incomplete"
        if item["type"] == "custom_tool_call":
            rest["type"] = CUSTOM
            values, invalid = ({}, item.get("input") or "") if cut_off else ({"input": item.get("input") or ""}, None)
        else:
            values, invalid = _arguments(item.get("arguments"), cut_off=cut_off)
            if invalid is None and name in self._strict:
                values = compile_schema(self._strict[name], DIALECT).restore(values)
        return ToolCall.of(
            id,
            name,
            values,
            invalid_arguments=invalid,
            item_id=item.get("id") or None,
            provider_data=rest or None,
            origin=self._origin,
        )

    def _named(self, item: Mapping[str, Any], position: int) -> tuple[str, str]:
        sent = item.get("name") or ""
        return self._call_id(item, position), self._names.get(sent, sent)

    def _call_id(self, item: Mapping[str, Any], position: int) -> str:
        """The vendor's id; where it gives none, one that is the same each time this answer is read."""
        given = item.get("call_id") or item.get("id")
        if given:
            return str(given)
        return "call_" + hashlib.sha256(f"{self.response_id}/{position}".encode()).hexdigest()[:20]


def _arguments(given: Any, *, cut_off: bool) -> tuple[dict[str, Any], str | None]:
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
    """The blocks of a message, which some write as plain text."""
    content = item.get("content") or []
    return [{"type": "output_text", "text": content}] if isinstance(content, str) else content


def _joined(blocks: Iterable[Mapping[str, Any]]) -> str:
    return "".join(block.get("text") or "" for block in blocks)


def _citation(annotation: Mapping[str, Any]) -> Citation:
    """Whatever points to a source: a page, a file, a place in a file."""
    at = annotation.get("index")
    return Citation(
        url=annotation.get("url"),
        title=annotation.get("title") or annotation.get("filename"),
        start=annotation.get("start_index", at),
        end=annotation.get("end_index", at),
        provider_data=dict(annotation),
    )


def read_logprobs(items: Iterable[Mapping[str, Any]]) -> tuple[dict[str, Any], ...]:
    """The probabilities of all tokens of the text, if the vendor sent them."""
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


def read_usage(response: Mapping[str, Any], items: Iterable[Mapping[str, Any]]) -> Usage | None:
    """What a response has cost. Among its items, searches are billed one by one."""
    usage = response.get("usage")
    if not isinstance(usage, dict) or not usage:
        return None
    read, written = _group(usage.get("input_tokens_details")), _group(usage.get("output_tokens_details"))
    return Usage.from_counts(
        _first(usage, "input_tokens", "prompt_tokens"),
        _first(usage, "output_tokens", "completion_tokens"),
        total=_first(usage, "total_tokens"),
        cache_read=_first(read, "cached_tokens", "cache_read_tokens"),
        cache_write=_first(read, "cache_write_tokens", "cache_creation_tokens"),
        reasoning=_first(written, "reasoning_tokens"),
        details=_details(response, usage, items),
        billed=billed(usage),
    )


def _details(
    response: Mapping[str, Any], usage: Mapping[str, Any], items: Iterable[Mapping[str, Any]]
) -> dict[str, Any]:
    told = _group(_group(response.get("tool_usage")).get("web_search"))
    run = _group(usage.get("server_side_tool_usage_details"))
    searches = told.get("num_requests", run.get("web_search_calls"))
    if searches is None:
        searches = sum(map(_is_search, items))
    return {"web_searches": searches, "code_executions": run.get("code_interpreter_calls")}


def _is_search(item: Mapping[str, Any]) -> bool:
    """Whether an item is a search. Opening a page that one found is a call of the same type, and is not billed."""
    return item.get("type") == "web_search_call" and _group(item.get("action")).get("type") in (None, "search")


def _group(counts: Any) -> Mapping[str, Any]:
    return counts if isinstance(counts, dict) else {}


def _first(counts: Mapping[str, Any], *names: str) -> int | None:
    for name in names:
        count = counts.get(name)
        if count is not None and is_number(count):
            return int(count)
    return None


_INCOMPLETE: dict[str, FinishReason] = {
    "max_output_tokens": "length",
    "max_tokens": "length",
    "content_filter": "content_filter",
}


def stop_reason(response: Mapping[str, Any], *, called: bool, refused: bool) -> tuple[FinishReason, str]:
    """Why the answer ended, and the vendor's word for it. What is there counts more than the vendor's `completed`."""
    if response.get("status") == "incomplete":
        reason = (response.get("incomplete_details") or {}).get("reason") or "incomplete"
        return _INCOMPLETE.get(reason, "other"), reason
    return "tool_calls" if called else "refusal" if refused else "stop", response.get("status") or "completed"
