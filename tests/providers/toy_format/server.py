"""The server side of postcards."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from typing_extensions import override

from agent import errors
from agent.providers.server_dialect import (
    Endpoint,
    Fields,
    InboundRequest,
    build_request,
    check_shape,
    dump_call_arguments,
    encode_stop_reason,
    error_kind,
    error_status,
    function_tool,
    invalid_request,
    require_objects,
    sse,
    usage_or_zero,
)
from agent.providers.server_stream import Block, BlockEncoder
from agent.types import AgentResponse, Message, Part, Role, TextContent, ToolCall, ToolResult

from .codec import API

ENDS = {"stop": "done", "length": "full", "tool_calls": "call"}
STATUSES = {"authentication": 401, "not_found": 404, "rate_limit": 429, "quota": 402, "overloaded": 529, "server": 500}


class PostcardServer:
    api: ClassVar[str] = API
    signature_field: ClassVar[str | None] = None
    signs_whole_parts: ClassVar[bool] = False

    def match_endpoint(self, path: str) -> Endpoint | None:
        return "generate" if path.endswith("/postcards") else None

    def decode_request(self, path: str, body: bytes) -> InboundRequest:
        with check_shape():
            fields = Fields(body)
            model, stream = fields.text("model") or "", fields.flag("stream") or False
            request = build_request(
                model=model,
                messages=[_message(turn) for turn in require_objects(fields.list("turns"), "turns")],
                temperature=fields.take("warmth"),
                max_tokens=fields.take("room"),
                tools=[
                    function_tool(tool["name"], {"description": tool["about"]}, tool["takes"], ())
                    for tool in require_objects(fields.list("tools"), "tools")
                ],
                tool_choice=fields.text("use"),
            )
            return InboundRequest(request.model_copy(update={"extra": fields.rest()}), model, stream)

    def find_losses(self, response: AgentResponse) -> tuple[str, ...]:
        lost = [part.type for part in response.content if not isinstance(part, TextContent | ToolCall)]
        return tuple(f"a part of type {kind!r}" for kind in lost)

    def encode_response(self, response: AgentResponse, inbound: InboundRequest) -> bytes:
        calls = [{"id": call.id, "name": call.name, "args": dump_call_arguments(call)} for call in response.tool_calls]
        body = {"model": response.model or inbound.model, "text": response.text or "", "calls": calls}
        return json.dumps({**body, **_encode_end(response)}).encode()

    def encoder(self, inbound: InboundRequest) -> PostcardEncoder:
        return PostcardEncoder(inbound)

    def stream_headers(self, inbound: InboundRequest) -> Mapping[str, str]:
        return {"content-type": "text/event-stream"}

    def encode_error(self, error: errors.AgentError) -> tuple[int, bytes]:
        status = error_status(error, STATUSES.get(error_kind(error), 400))
        return status, json.dumps(_error(error)).encode()

    def encode_count(self, tokens: int) -> bytes:
        raise NotImplementedError

    def encode_models(self, models: Sequence[str]) -> bytes:
        return json.dumps(list(models)).encode()


def _message(turn: Mapping[str, Any]) -> Message:
    match turn["from"]:
        case "tool":
            return Message(Role.TOOL, [ToolResult(tool_call_id=turn["answers"], content=turn["text"])])
        case "user" | "system" | "assistant" as role:
            calls = [
                ToolCall(id=call["id"], name=call["name"], arguments=call["args"]) for call in turn.get("calls", ())
            ]
            said: list[Part] = [TextContent(text=turn["text"])] if turn["text"] else []
            return Message(Role(role), [*said, *calls] if calls else turn["text"])
        case who:
            raise invalid_request(f"{who!r} cannot write a postcard.", "turns")


def _encode_end(response: AgentResponse) -> dict[str, Any]:
    usage = usage_or_zero(response)
    cost = {"read": usage.prompt_tokens, "written": usage.completion_tokens}
    return {"end": encode_stop_reason(response, ENDS), "cost": cost}


def _error(error: errors.AgentError) -> dict[str, Any]:
    code = "overloaded" if isinstance(error, errors.OverloadedError) else error.code
    return {"error": {"message": error.message, "code": code}}


class PostcardEncoder(BlockEncoder):
    _calls = 0

    @override
    def write_start(self) -> bytes:
        return sse({"model": self.head.model})

    @override
    def write_open(self, block: Block) -> bytes:
        if block.kind != "call":
            return b""
        block.number = self._calls
        self._calls += 1
        return sse({"call": block.number, "id": block.call.id, "name": block.call.name})

    @override
    def write_delta(self, block: Block, text: str) -> bytes:
        return sse({"args": text, "of": block.number} if block.kind == "call" else {"text": text})

    @override
    def write_end(self, response: AgentResponse) -> bytes:
        return sse(_encode_end(response))

    def fail(self, error: errors.AgentError) -> bytes:
        return sse(_error(error))


SERVER = PostcardServer()
