"""Server dialect and stream encoder of the Responses API, without stored responses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar
from urllib.parse import urlsplit

from pydantic_core import to_json
from typing_extensions import override

from ... import errors
from ...types import (
    AgentResponse,
    Citation,
    ImageContent,
    Part,
    RefusalContent,
    TextContent,
    ThinkingContent,
    ToolCall,
    VendorContent,
)
from ..encoding import encode_base64
from ..openai_chat.server import OpenAIServer, describe_error, encode_logprobs
from ..server_dialect import (
    Endpoint,
    Fields,
    InboundRequest,
    check_shape,
    dump_call_arguments,
    encode_stop_reason,
    is_foreign,
    read_call,
    sse,
    usage_or_zero,
)
from ..server_stream import Block, BlockEncoder
from .models import API, COMPUTER_CALL
from .server_requests import RequestReader

_REASONS: Mapping[str, str] = {
    "stop": "",  # completed
    "tool_calls": "",
    "refusal": "",
    "length": "max_output_tokens",
    "content_filter": "content_filter",
}


class ResponsesServer(OpenAIServer):
    """Server dialect of the Responses API."""

    api: ClassVar[str] = API
    signature_field: ClassVar[str | None] = "encrypted_content"

    def match_endpoint(self, path: str) -> Endpoint | None:
        path = urlsplit(path).path
        if path.endswith("/responses/input_tokens"):
            return "count"
        return "generate" if path.endswith("/responses") else None

    def decode_request(self, path: str, body: bytes) -> InboundRequest:
        with check_shape():
            return RequestReader(Fields(body)).read()

    @override
    def _find_loss(self, part: Part) -> str | None:
        match part:
            case TextContent() if not all(_is_annotation(citation) for citation in part.citations):
                return "citations"
            case TextContent() | ThinkingContent() | RefusalContent() | ToolCall() | ImageContent(image_data=bytes()):
                return None
            case VendorContent() if not is_foreign(part, API):
                return None
            case _:
                return f"a part of type {part.type!r}"

    def encode_response(self, response: AgentResponse, inbound: InboundRequest) -> bytes:
        items: list[dict[str, Any]] = []
        for part in response.content:
            if (item := _encode_item(part, len(items), inbound)) is not None:
                items.append(item)
        _add_logprobs(items, response)
        return to_json(_encode_final(response, inbound, items))

    def encoder(self, inbound: InboundRequest) -> ResponsesEncoder:
        return ResponsesEncoder(inbound)

    def encode_count(self, tokens: int) -> bytes:
        return to_json({"object": "response.input_tokens", "input_tokens": tokens})


def _is_annotation(citation: Citation) -> bool:
    kind = str((citation.provider_data or {}).get("type", ""))
    return kind in ("url_citation", "file_citation", "container_file_citation", "file_path")


def _encode_item(part: Part, number: int, inbound: InboundRequest, id: str | None = None) -> dict[str, Any] | None:
    """Encode a part as an output item, or None if the API cannot express it."""
    data = {} if is_foreign(part, API) else dict(part.provider_data or {})
    match part:
        case ThinkingContent():
            summary = (
                [{"type": "summary_text", "text": part.thinking}] if part.thinking and not data.get("content") else []
            )
            return {
                **data,
                "id": id or part.id or f"rs_{inbound.id}_{number}",
                "type": "reasoning",
                "summary": part.summary or summary,
                "encrypted_content": part.encrypted_content or None,
            }
        case ToolCall():
            item = {"id": id or part.item_id or f"fc_{inbound.id}_{number}", "status": "completed", "call_id": part.id}
            kind = data.pop("type", None)
            if kind == COMPUTER_CALL:
                return {"pending_safety_checks": [], **data, **part.arguments, **item, "type": kind}
            if kind == "custom":
                text = part.arguments.get("input", "")
                return {**data, **item, "type": "custom_tool_call", "name": part.name, "input": text}
            arguments = dump_call_arguments(part)
            return {**data, **item, "type": "function_call", "name": part.name, "arguments": arguments}
        case ImageContent(image_data=bytes(picture)):
            format = (part.media_type or "image/png").removeprefix("image/").removesuffix("+xml")
            item = {"id": id or f"ig_{inbound.id}_{number}", "status": "completed", "output_format": format}
            return {**item, **data, "type": "image_generation_call", "result": encode_base64(picture)}
        case VendorContent() if not is_foreign(part, API):
            return {"id": f"item_{inbound.id}_{number}", **(data or {"type": part.kind})}
        case TextContent():
            notes = [citation.provider_data for citation in part.citations if _is_annotation(citation)]
            block = {"type": "output_text", "text": part.text, "annotations": notes, "logprobs": []}
            return _encode_message(block, data, id or f"msg_{inbound.id}_{number}")
        case RefusalContent():
            return _encode_message(
                {"type": "refusal", "refusal": part.refusal}, data, id or f"msg_{inbound.id}_{number}"
            )
        case _:
            return None


def _encode_message(block: dict[str, Any], data: Mapping[str, Any], id: str) -> dict[str, Any]:
    known = {key: data[key] for key in ("phase",) if data.get(key)}
    message = {"id": id, "type": "message", "status": data.get("status", "completed"), "role": "assistant"}
    return {**message, **known, "content": [block]}


def _add_logprobs(items: Sequence[dict[str, Any]], response: AgentResponse) -> None:
    """Add the log probabilities to the first text."""
    blocks = (block for item in items if item["type"] == "message" for block in item["content"])
    first = next((block for block in blocks if block["type"] == "output_text"), None)
    if first is not None and response.logprobs:
        first["logprobs"] = encode_logprobs(response, bytes=[])


def _encode_head(response: AgentResponse, inbound: InboundRequest) -> dict[str, Any]:
    return {
        "id": response.id or f"resp_{inbound.id}",
        "object": "response",
        "created_at": inbound.created,
        "model": response.model or inbound.model,
        "error": None,
        "incomplete_details": None,
        "store": False,
        "tools": [],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "temperature": None,
        "top_p": None,
        "metadata": {},
        "instructions": None,
        **inbound.settings,
    }


def _encode_final(
    response: AgentResponse, inbound: InboundRequest, items: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    cut = encode_stop_reason(response, _REASONS)
    usage = usage_or_zero(response)
    return {
        **_encode_head(response, inbound),
        "status": "incomplete" if cut else "completed",
        "incomplete_details": {"reason": cut} if cut else None,
        "output": items,
        "usage": {
            "input_tokens": usage.prompt_tokens,
            "input_tokens_details": {
                "cached_tokens": usage.cache_read_tokens,
                "cache_write_tokens": usage.cache_write_tokens,
            },
            "output_tokens": usage.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
            "total_tokens": usage.total_tokens,
        },
    }


_PREFIXES = {"text": "msg", "refusal": "msg", "thinking": "rs", "call": "fc"}


class ResponsesEncoder(BlockEncoder):
    """Encodes a stream of events; each block is an output item."""

    def __init__(self, inbound: InboundRequest) -> None:
        super().__init__(inbound)
        self._sequence = 0
        self._items: list[dict[str, Any]] = []
        self._ids: set[str] = set()
        self._id = ""

    def _event(self, kind: str, **data: Any) -> bytes:
        number = self._sequence
        self._sequence += 1
        return sse({"type": kind, **data, "sequence_number": number}, kind)

    def _choose_id(self, block: Block) -> str:
        """Choose the upstream item's id, which encrypted reasoning is bound to, or a new one."""
        id = block.raw.get("item_id") if isinstance(block.raw, Mapping) else None
        if isinstance(block.part, ThinkingContent):
            id = block.part.id or id
        elif isinstance(block.part, ToolCall):
            id = block.part.item_id or id
        if not isinstance(id, str) or not id or id in self._ids:
            id = f"{_PREFIXES[block.kind]}_{self.inbound.id}_{len(self._items)}"
        self._ids.add(id)
        return id

    @override
    def write_start(self) -> bytes:
        opening = {**_encode_head(self.head, self.inbound), "status": "in_progress", "output": [], "usage": None}
        return self._event("response.created", response=opening) + self._event("response.in_progress", response=opening)

    @override
    def write_open(self, block: Block) -> bytes:
        block.number = len(self._items)
        self._id = self._choose_id(block)
        item: dict[str, Any] = {"id": self._id, "status": "in_progress"}
        match block.kind:
            case "text" | "refusal":
                item |= {"type": "message", "role": "assistant", "content": []}
            case "thinking":
                item |= {"type": "reasoning", "summary": []}
            case "call" if _is_computer_call(block):
                item |= {"type": COMPUTER_CALL, "call_id": block.call.id, "pending_safety_checks": []}
            case "call":
                item |= {"type": "function_call", "call_id": block.call.id, "name": block.call.name, "arguments": ""}
        return self._event("response.output_item.added", output_index=block.number, item=item) + self._open_part(block)

    def _place(self, block: Block) -> dict[str, Any]:
        place = {"item_id": self._id, "output_index": block.number}
        match block.kind:
            case "thinking":
                return {**place, "summary_index": 0}
            case "call":
                return place
            case _:
                return {**place, "content_index": 0}

    def _open_part(self, block: Block) -> bytes:
        match block.kind:
            case "text":
                part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
                return self._event("response.content_part.added", **self._place(block), part=part)
            case "refusal":
                part = {"type": "refusal", "refusal": ""}
                return self._event("response.content_part.added", **self._place(block), part=part)
            case _:
                return b""

    @override
    def write_delta(self, block: Block, text: str) -> bytes:
        place = self._place(block)
        match block.kind:
            case "text":
                return self._event("response.output_text.delta", **place, delta=text, logprobs=[])
            case "refusal":
                return self._event("response.refusal.delta", **place, delta=text)
            case "call" if _is_computer_call(block):
                return b""
            case "call":
                return self._event("response.function_call_arguments.delta", **place, delta=text)
            case "thinking":
                opening = b""
                if len(block.pieces) == 1:  # encrypted reasoning may have no summary
                    part = {"type": "summary_text", "text": ""}
                    opening = self._event("response.reasoning_summary_part.added", **place, part=part)
                return opening + self._event("response.reasoning_summary_text.delta", **place, delta=text)

    @override
    def write_close(self, block: Block) -> bytes:
        part, text, place = self._complete_part(block), block.text, self._place(block)
        item = _encode_item(part, block.number, self.inbound, self._id)
        assert item is not None
        self._items.append(item)
        ended = b""
        match block.kind:
            case "text" | "refusal":
                inner = item["content"][0]
                for position, note in enumerate(inner.get("annotations") or ()):
                    ended += self._event(
                        "response.output_text.annotation.added", **place, annotation_index=position, annotation=note
                    )
                if block.kind == "text":
                    ended += self._event("response.output_text.done", **place, text=text, logprobs=[])
                else:
                    ended += self._event("response.refusal.done", **place, refusal=text)
                ended += self._event("response.content_part.done", **place, part=inner)
            case "thinking" if text:
                inner = {"type": "summary_text", "text": text}
                ended = self._event("response.reasoning_summary_text.done", **place, text=text)
                ended += self._event("response.reasoning_summary_part.done", **place, part=inner)
            case "call" if item["type"] == "function_call":
                done = {"name": item["name"], "arguments": item["arguments"]}
                ended = self._event("response.function_call_arguments.done", **place, **done)
            case _:
                pass
        return ended + self._event("response.output_item.done", output_index=block.number, item=item)

    def _complete_part(self, block: Block) -> Part:
        """Complete the part of a block with the streamed text."""
        part = block.part
        match block.kind:
            case "text":
                text = part if isinstance(part, TextContent) else TextContent(text="")
                return text.model_copy(update={"text": block.text})
            case "refusal":
                refusal = part if isinstance(part, RefusalContent) else RefusalContent(refusal="")
                return refusal.model_copy(update={"refusal": block.text})
            case "thinking":
                if isinstance(part, ThinkingContent) and part.thinking == block.text:
                    return part
                thinking = part if isinstance(part, ThinkingContent) else ThinkingContent(thinking="")
                return thinking.model_copy(update={"thinking": block.text, "summary": ()})
            case "call":
                call = block.call
                return read_call(
                    call.id, call.name, block.text or "{}", "", provider_data=call.provider_data, origin=call.origin
                )

    @override
    def write_part(self, part: Part) -> bytes:
        number = len(self._items)
        item = _encode_item(part, number, self.inbound)
        if item is None:
            return b""
        self._items.append(item)
        added = self._event("response.output_item.added", output_index=number, item=item)
        return added + self._event("response.output_item.done", output_index=number, item=item)

    @override
    def write_end(self, response: AgentResponse) -> bytes:
        facts = {"id": self.head.id, "model": self.head.model}
        _add_logprobs(self._items, response)
        final = _encode_final(response.model_copy(update=facts), self.inbound, self._items)
        kind = "response.incomplete" if final["status"] == "incomplete" else "response.completed"
        return self._event(kind, response=final)

    def fail(self, error: errors.AgentError) -> bytes:
        described = describe_error(error)[1]
        failed = {
            **_encode_head(self.head, self.inbound),
            "status": "failed",
            "error": {"code": described["code"] or "server_error", "message": described["message"]},
            "output": self._items,
            "usage": None,
        }
        return self._event("response.failed", response=failed)


def _is_computer_call(block: Block) -> bool:
    return not is_foreign(block.call, API) and (block.call.provider_data or {}).get("type") == COMPUTER_CALL


SERVER = ResponsesServer()
