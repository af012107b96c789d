"""Response decoder of the Responses API, for all vendors' variants.

Vendor-specific items, such as searches and code executions, become `VendorContent`. So do items that cannot be read,
because the response was paid for.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic_core import to_json

from ...types import (
    AgentRequest,
    Citation,
    FinishReason,
    ImageContent,
    Origin,
    Part,
    RefusalContent,
    TextContent,
    ThinkingContent,
    ToolCall,
    Usage,
    VendorContent,
)
from .. import codec
from ..encoding import JsonDict
from ..openai_chat.response import as_mapping, first_number, generate_call_id, parse_arguments, read_cost, read_token
from ..repair import REPEATED_CALL
from .fields import COMPUTER
from .models import COMPUTER_CALL, CUSTOM, MAX_NAME_LENGTH, SCHEMA_DIALECT

CALLS = ("function_call", "custom_tool_call", COMPUTER_CALL)
_ACTION_KEYS = ("action", "actions", "pending_safety_checks")
_CALL_KEYS = frozenset(("type", "id", "call_id", "name", "arguments", "input", "status"))
"""Keys of a call that are fields of `ToolCall`. Others become its provider data."""
_REASONING_KEYS = frozenset(("type", "id", "summary", "encrypted_content", "status"))


class ItemReader:
    """Decodes the items that answer one request, with the tool names and schemas of that request."""

    def __init__(self, request: AgentRequest, origin: Origin) -> None:
        self._origin = origin
        self._tools = codec.SentTools(request, MAX_NAME_LENGTH, SCHEMA_DIALECT)
        self.response_id: str = ""
        self._positions: dict[str, int] = {}
        """Positions of calls, by id."""
        self.warnings: dict[str, None] = {}

    def read_item(self, item: Mapping[str, Any], position: int) -> list[tuple[int, Part]]:
        """Decode an item as parts, each with its number in the item."""
        kind = item.get("type")
        try:
            if kind == "message":
                return self._read_message(item)
            if kind == "reasoning":
                return [(0, read_reasoning(item, self._origin))]
            if kind in CALLS:
                return [(0, self._read_call(item, position))]
            if kind == "image_generation_call" and item.get("result"):
                return [(0, self._read_image(item))]
        except codec.SHAPE_ERRORS as error:
            self.warnings[f"an item of type {kind} could not be read ({codec.describe_malformed(error)})"] = None
        return [(0, VendorContent(kind=str(kind), provider_data=dict(item), origin=self._origin))]

    def _read_message(self, item: Mapping[str, Any]) -> list[tuple[int, Part]]:
        data = message_data(item)
        parts: list[tuple[int, Part]] = []
        for number, block in enumerate(content_of(item)):
            kind = block.get("type")
            if kind == "refusal":
                if block.get("refusal"):
                    refusal = RefusalContent(refusal=block["refusal"], provider_data=data or None, origin=self._origin)
                    parts.append((number, refusal))
            elif kind == "output_text" or isinstance(block.get("text"), str):
                if text := _write_value(block.get("text")):
                    citations = self._read_citations(block.get("annotations") or ())
                    content = TextContent(
                        text=text, citations=citations, provider_data=data or None, origin=self._origin
                    )
                    parts.append((number, content))
            else:
                parts.append((number, block_item(item, block, self._origin)))
        return parts

    def _read_citations(self, annotations: Iterable[Any]) -> list[Citation]:
        citations: list[Citation] = []
        for annotation in annotations:
            try:
                citations.append(read_citation(annotation))
            except codec.SHAPE_ERRORS as error:
                self.warnings[f"a citation could not be read ({codec.describe_malformed(error)})"] = None
        return citations

    def _read_image(self, item: Mapping[str, Any]) -> ImageContent:
        return ImageContent(
            image_data=base64.b64decode(item["result"], validate=True),
            media_type=image_type(item.get("output_format")),
            provider_data={key: value for key, value in item.items() if key != "result"},
            origin=self._origin,
        )

    def start_call(self, item: Mapping[str, Any], position: int) -> ToolCall:
        """Decode a call without its arguments."""
        return ToolCall(id=self.call_id(item, position), name=self.call_name(item))

    def _read_call(self, item: Mapping[str, Any], position: int) -> ToolCall:
        """Decode a call. Truncated arguments, and those that are no JSON object, become `invalid_arguments`."""
        data = {key: value for key, value in item.items() if key not in _CALL_KEYS and value is not None}
        name = self.call_name(item)
        values: Any = {}
        invalid: str | None = None
        truncated = item.get("status") == "incomplete"
        if item["type"] == "custom_tool_call":
            data["type"] = CUSTOM
            if truncated:
                invalid = item.get("input") or ""
            else:
                values = {"input": item.get("input") or ""}
        elif item["type"] == COMPUTER_CALL:
            data = {key: value for key, value in data.items() if key not in _ACTION_KEYS}
            data["type"] = COMPUTER_CALL
            values = {key: item[key] for key in _ACTION_KEYS if item.get(key)}
        else:
            arguments = item.get("arguments")
            if (truncated and not isinstance(arguments, dict)) or not isinstance(arguments, str | dict | None):
                invalid = _write_value(arguments)
            else:
                values, invalid = parse_arguments(arguments)
            values = self._tools.restore(name, values)
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
        sent = item.get("name") or (COMPUTER if item.get("type") == COMPUTER_CALL else "")
        return self._tools.original_name(sent)

    def call_id(self, item: Mapping[str, Any], position: int) -> str:
        """The call's id. It gets a number if another call of the response has it."""
        id = unique = str(item.get("call_id") or item.get("id") or generate_call_id(self.response_id, position))
        number = 1
        while self._positions.setdefault(unique, position) != position:
            number += 1
            unique = f"{id}#{number}"
            self.warnings[REPEATED_CALL] = None
        return unique


def image_type(format: Any) -> str:
    """The media type of a generated image. The default format is PNG."""
    return {None: "image/png", "svg": "image/svg+xml"}.get(format, f"image/{format}")


def _write_value(value: Any) -> str:
    """Text, or the JSON text of a value that some vendors send for output with a schema."""
    return value if isinstance(value, str) else "" if value is None else to_json(value).decode()


def message_data(item: Mapping[str, Any]) -> dict[str, Any]:
    """Provider data of the parts of a message."""
    data = {key: item[key] for key in ("id", "phase") if item.get(key)}
    return data if item.get("status") in (None, "completed") else {**data, "status": item["status"]}


def block_item(item: Mapping[str, Any], block: Mapping[str, Any], origin: Origin) -> VendorContent:
    """A vendor-specific block, as an item that can be sent back."""
    return VendorContent(kind=str(block.get("type")), provider_data={**item, "content": [block]}, origin=origin)


def read_reasoning(item: Mapping[str, Any], origin: Origin) -> ThinkingContent:
    data = {key: value for key, value in item.items() if key not in _REASONING_KEYS and value}
    summary = item.get("summary") or ()
    return ThinkingContent(
        thinking=_join_texts(summary) or _join_texts(item.get("content") or ()),
        id=item.get("id") or "",
        encrypted_content=item.get("encrypted_content") or "",
        summary=summary,
        provider_data=data or None,
        origin=origin,
    )


def content_of(item: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The blocks of a message, whose content may be text or a value."""
    content = item.get("content") or []
    return objects_in(content) if isinstance(content, list) else [{"type": "output_text", "text": content}]


def objects_in(values: list[Any]) -> list[dict[str, Any]]:
    return [value for value in values if isinstance(value, dict)]


def _join_texts(blocks: Iterable[Mapping[str, Any]]) -> str:
    return "".join(block.get("text") or "" for block in blocks)


def read_citation(annotation: Mapping[str, Any]) -> Citation:
    """Decode an annotation: a page, a file, or a position in a file."""
    index = annotation.get("index")
    return Citation(
        url=annotation.get("url"),
        title=annotation.get("title") or annotation.get("filename"),
        start=annotation.get("start_index", index),
        end=annotation.get("end_index", index),
        provider_data=dict(annotation),
    )


def read_logprobs(items: Iterable[Mapping[str, Any]]) -> tuple[dict[str, Any], ...]:
    """Read log probabilities by token."""
    return tuple(
        read_token(token)
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
    """Read the stop reason and its raw value. Calls and refusals take precedence over `completed`."""
    if response.get("status") == "incomplete":
        reason = as_text(as_mapping(response.get("incomplete_details")).get("reason")) or "incomplete"
        return _INCOMPLETE.get(reason, "other"), reason
    if response.get("status") == "cancelled":
        return "error", "cancelled"
    status = as_text(response.get("status")) or "completed"
    if status != "completed":
        return "other", status
    return "tool_calls" if called else "refusal" if refused else "stop", status


def as_text(value: Any) -> str | None:
    """Return a text that is not empty, else None: a malformed value must not discard the response."""
    return value if isinstance(value, str) and value else None


_ECHOED_KEYS = frozenset(
    (
        "background", "frequency_penalty", "include", "instructions", "max_output_tokens", "max_tool_calls", "metadata",
        "parallel_tool_calls", "presence_penalty", "previous_response_id", "prompt", "prompt_cache_key",
        "prompt_cache_retention", "safety_identifier", "store", "temperature", "text", "tool_choice", "tools",
        "top_logprobs", "top_p", "truncation", "user",
    )
)  # fmt: skip
"""Keys of a response that repeat the request. `raw` has them."""
_READ_KEYS = _ECHOED_KEYS | {"error", "id", "model", "object", "output", "service_tier", "status", "usage"}
_READ_USAGE_KEYS = frozenset(
    (
        "completion_tokens", "completion_tokens_details", "cost", "input_tokens", "input_tokens_details",
        "output_tokens", "output_tokens_details", "prompt_tokens", "prompt_tokens_details",
        "server_side_tool_usage_details", "total_tokens",
    )
)  # fmt: skip


def read_metadata(response: Mapping[str, Any]) -> JsonDict:
    """Read service tier and vendor-specific data as fields of the response."""
    vendor = {key: value for key, value in response.items() if key not in _READ_KEYS and value}
    usage, tier = as_mapping(response.get("usage")), response.get("service_tier")
    if others := {key: value for key, value in usage.items() if key not in _READ_USAGE_KEYS and value}:
        vendor["usage"] = others
    return {"service_tier": as_text(tier), "vendor": vendor}


def read_usage(response: Mapping[str, Any], items: Iterable[Mapping[str, Any]]) -> Usage | None:
    """Read the usage of a response. Searches are counted by their items if the vendor sends no count."""
    usage = response.get("usage")
    if not isinstance(usage, dict) or not usage:
        return None
    prompt, completion = as_mapping(usage.get("input_tokens_details")), as_mapping(usage.get("output_tokens_details"))
    written = as_mapping(prompt.get("cache_write_tokens_details"))
    web_search = as_mapping(as_mapping(response.get("tool_usage")).get("web_search"))
    tool_calls = as_mapping(usage.get("server_side_tool_usage_details"))
    searches = web_search.get("num_requests", tool_calls.get("web_search_calls"))
    if searches is None:
        searches = sum(map(_is_search, items))
    return Usage.from_counts(
        first_number(usage.get("input_tokens"), usage.get("prompt_tokens")),
        first_number(usage.get("output_tokens"), usage.get("completion_tokens")),
        total=first_number(usage.get("total_tokens")),
        cache_read=first_number(prompt.get("cached_tokens"), prompt.get("cache_read_tokens")),
        cache_write=first_number(prompt.get("cache_write_tokens"), prompt.get("cache_creation_tokens")),
        reasoning=first_number(completion.get("reasoning_tokens")),
        details={
            "web_searches": searches,
            "code_executions": tool_calls.get("code_interpreter_calls"),
            "cache_write_30m_tokens": written.get("ttl_30m_tokens"),
            "cache_write_12h_tokens": written.get("ttl_12h_tokens"),
        },
        billed=read_cost(usage),
    )


def _is_search(item: Mapping[str, Any]) -> bool:
    """Whether an item is a search. Opening a result has the same item type, and is not billed."""
    return item.get("type") == "web_search_call" and as_mapping(item.get("action")).get("type") in (None, "search")
