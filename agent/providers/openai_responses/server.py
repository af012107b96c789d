"""The server side of the Responses API. It stores nothing: a conversation comes whole with every request."""

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
    Part,
    RefusalContent,
    TextContent,
    ThinkingContent,
    ToolCall,
    VendorContent,
)
from ..openai_chat.server import describe_error, model_entry
from ..openai_chat.server_requests import read_call
from ..server_dialect import (
    Endpoint,
    Fields,
    InboundRequest,
    check_shape,
    dump_call_arguments,
    encode_stop_reason,
    is_foreign,
    sse,
    usage_or_zero,
)
from ..server_stream import Block, BlockEncoder
from .dialect import API
from .server_requests import RequestReader

_REASONS: Mapping[str, str] = {
    "stop": "",  # completed, as are answers that call tools or refuse
    "tool_calls": "",
    "refusal": "",
    "length": "max_output_tokens",
    "content_filter": "content_filter",
}


class ResponsesServer:
    """The Responses API, as a server speaks it."""

    api: ClassVar[str] = API
    signature_field: ClassVar[str | None] = "encrypted_content"
    signs_whole_parts: ClassVar[bool] = False

    def match_endpoint(self, path: str) -> Endpoint | None:
        path = urlsplit(path).path
        if path.endswith("/responses/input_tokens"):
            return "count"
        return "generate" if path.endswith("/responses") else None

    def decode_request(self, path: str, body: bytes) -> InboundRequest:
        with check_shape():
            return RequestReader(Fields(body)).inbound()

    def find_losses(self, response: AgentResponse) -> tuple[str, ...]:
        return tuple(dict.fromkeys(loss for part in response.content if (loss := _loss(part)) is not None))

    def encode_response(self, response: AgentResponse, inbound: InboundRequest) -> bytes:
        items: list[dict[str, Any]] = []
        for part in response.content:
            if (item := _item(part, len(items), inbound)) is not None:
                items.append(item)
        _add_logprobs(items, response)
        return to_json(_final(response, inbound, items))

    def encoder(self, inbound: InboundRequest) -> ResponsesEncoder:
        return ResponsesEncoder(inbound)

    def stream_headers(self, inbound: InboundRequest) -> Mapping[str, str]:
        return {"content-type": "text/event-stream"}

    def encode_error(self, error: errors.AgentError) -> tuple[int, bytes]:
        status, body = describe_error(error)
        return status, to_json({"error": body})

    def encode_count(self, tokens: int) -> bytes:
        return to_json({"object": "response.input_tokens", "input_tokens": tokens})

    def encode_models(self, models: Sequence[str]) -> bytes:
        return to_json({"object": "list", "data": [model_entry(model) for model in models]})


def _loss(part: Part) -> str | None:
    match part:
        case TextContent() if not all(_is_annotation(citation) for citation in part.citations):
            return "citations"
        case TextContent() | ThinkingContent() | RefusalContent() | ToolCall():
            return None
        case VendorContent() if not is_foreign(part, API):
            return None
        case _:
            return f"a part of type {part.type!r}"


def _is_annotation(citation: Citation) -> bool:
    kind = str((citation.provider_data or {}).get("type", ""))
    return kind in ("url_citation", "file_citation", "container_file_citation", "file_path")


def _item(part: Part, number: int, inbound: InboundRequest, id: str | None = None) -> dict[str, Any] | None:
    """A part as an output item of its own; None for what has no place."""
    facts = {} if is_foreign(part, API) else dict(part.provider_data or {})
    match part:
        case ThinkingContent():
            shown = (
                [{"type": "summary_text", "text": part.thinking}] if part.thinking and not facts.get("content") else []
            )
            return {
                **facts,
                "id": id or part.id or f"rs_{inbound.id}_{number}",
                "type": "reasoning",
                "summary": part.summary or shown,
                "encrypted_content": part.encrypted_content or None,
            }
        case ToolCall():
            item = {"id": id or part.item_id or f"fc_{inbound.id}_{number}", "status": "completed", "call_id": part.id}
            if facts.pop("type", None) == "custom":
                given = part.arguments.get("input", "")
                return {**facts, **item, "type": "custom_tool_call", "name": part.name, "input": given}
            arguments = dump_call_arguments(part)
            return {**facts, **item, "type": "function_call", "name": part.name, "arguments": arguments}
        case VendorContent() if not is_foreign(part, API):
            return {"id": f"item_{inbound.id}_{number}", **(facts or {"type": part.kind})}
        case TextContent():
            notes = [citation.provider_data for citation in part.citations if _is_annotation(citation)]
            block = {"type": "output_text", "text": part.text, "annotations": notes, "logprobs": []}
            return _message(block, facts, id or f"msg_{inbound.id}_{number}")
        case RefusalContent():
            return _message({"type": "refusal", "refusal": part.refusal}, facts, id or f"msg_{inbound.id}_{number}")
        case _:
            return None


def _message(block: dict[str, Any], facts: Mapping[str, Any], id: str) -> dict[str, Any]:
    known = {key: facts[key] for key in ("phase",) if facts.get(key)}
    message = {"id": id, "type": "message", "status": facts.get("status", "completed"), "role": "assistant"}
    return {**message, **known, "content": [block]}


def _add_logprobs(items: Sequence[dict[str, Any]], response: AgentResponse) -> None:
    """Probabilities stand on the first text."""
    blocks = (block for item in items if item["type"] == "message" for block in item["content"])
    first = next((block for block in blocks if block["type"] == "output_text"), None)
    if first is not None and response.logprobs:
        first["logprobs"] = [_token(entry) for entry in response.logprobs]


def _token(entry: Mapping[str, Any]) -> dict[str, Any]:
    tops = [{"token": top.get("token"), "logprob": top.get("logprob"), "bytes": []} for top in entry.get("top") or ()]
    return {"token": entry.get("token"), "logprob": entry.get("logprob"), "bytes": [], "top_logprobs": tops}


def _head(response: AgentResponse, inbound: InboundRequest) -> dict[str, Any]:
    asked = inbound.settings
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
        **asked,
    }


def _final(response: AgentResponse, inbound: InboundRequest, items: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    cut = encode_stop_reason(response, _REASONS)
    usage = usage_or_zero(response)
    return {
        **_head(response, inbound),
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
    """Writes a stream of events; each block is an output item."""

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
        """The upstream item's own id, if it has one: sealed reasoning is bound to it."""
        told = block.raw.get("item_id") if isinstance(block.raw, Mapping) else None
        if isinstance(block.part, ThinkingContent):
            told = block.part.id or told
        elif isinstance(block.part, ToolCall):
            told = block.part.item_id or told
        if not isinstance(told, str) or not told or told in self._ids:
            told = f"{_PREFIXES[block.kind]}_{self.inbound.id}_{len(self._items)}"
        self._ids.add(told)
        return told

    @override
    def write_start(self) -> bytes:
        opening = {**_head(self.head, self.inbound), "status": "in_progress", "output": [], "usage": None}
        return self._event("response.created", response=opening) + self._event("response.in_progress", response=opening)

    @override
    def write_open(self, block: Block) -> bytes:
        block.number = len(self._items)
        self._id = self._choose_id(block)
        hollow: dict[str, Any] = {"id": self._id, "status": "in_progress"}
        match block.kind:
            case "text" | "refusal":
                hollow |= {"type": "message", "role": "assistant", "content": []}
            case "thinking":
                hollow |= {"type": "reasoning", "summary": []}
            case "call":
                hollow |= {"type": "function_call", "call_id": block.call.id, "name": block.call.name, "arguments": ""}
        return self._event("response.output_item.added", output_index=block.number, item=hollow) + self._open_part(
            block
        )

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
            case "call":
                return self._event("response.function_call_arguments.delta", **place, delta=text)
            case "thinking":
                opened = b""
                if len(block.pieces) == 1:  # sealed reasoning may have no summary at all
                    part = {"type": "summary_text", "text": ""}
                    opened = self._event("response.reasoning_summary_part.added", **place, part=part)
                return opened + self._event("response.reasoning_summary_text.delta", **place, delta=text)

    @override
    def write_close(self, block: Block) -> bytes:
        part, text, place = self._finished(block), block.text, self._place(block)
        item = _item(part, block.number, self.inbound, self._id)
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

    def _finished(self, block: Block) -> Part:
        """The part that a block has become, with the words that were streamed."""
        part = block.part
        match block.kind:
            case "text":
                told = part if isinstance(part, TextContent) else TextContent(text="")
                return told.model_copy(update={"text": block.text})
            case "refusal":
                told_refusal = part if isinstance(part, RefusalContent) else RefusalContent(refusal="")
                return told_refusal.model_copy(update={"refusal": block.text})
            case "thinking":
                if isinstance(part, ThinkingContent) and part.thinking == block.text:
                    return part
                thought = part if isinstance(part, ThinkingContent) else ThinkingContent(thinking="")
                return thought.model_copy(update={"thinking": block.text, "summary": ()})
            case "call":
                call = block.call
                return read_call(
                    call.id, call.name, block.text or "{}", provider_data=call.provider_data, origin=call.origin
                )

    @override
    def write_part(self, part: Part) -> bytes:
        number = len(self._items)
        item = _item(part, number, self.inbound)
        if item is None:
            return b""
        self._items.append(item)
        added = self._event("response.output_item.added", output_index=number, item=item)
        return added + self._event("response.output_item.done", output_index=number, item=item)

    @override
    def write_end(self, response: AgentResponse) -> bytes:
        facts = {"id": self.head.id, "model": self.head.model}
        _add_logprobs(self._items, response)
        final = _final(response.model_copy(update=facts), self.inbound, self._items)
        kind = "response.incomplete" if final["status"] == "incomplete" else "response.completed"
        return self._event(kind, response=final)

    def fail(self, error: errors.AgentError) -> bytes:
        described = describe_error(error)[1]
        failed = {
            **_head(self.head, self.inbound),
            "status": "failed",
            "error": {"code": described["code"] or "server_error", "message": described["message"]},
            "output": self._items,
            "usage": None,
        }
        return self._event("response.failed", response=failed)


SERVER = ResponsesServer()
