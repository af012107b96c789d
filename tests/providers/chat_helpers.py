"""Helpers for tests of the Chat Completions codec."""

from __future__ import annotations

import json
from typing import Any

from agent.engine.wire import Reply
from agent.providers.base import ApiAddress
from agent.providers.openai_chat import OPENAI, ChatCodec, Dialect
from agent.providers.openai_chat.codec import encode_body
from agent.types import AgentRequest, AgentResponse


def codec_of(dialect: Dialect = OPENAI) -> ChatCodec:
    return ChatCodec(dialect, ApiAddress("http://127.0.0.1", None))


def encode(request: AgentRequest, dialect: Dialect = OPENAI) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return body and warnings."""
    body, warnings = encode_body(request.model_copy(update={"model": request.model or "m"}), dialect, stream=False)
    return json.loads(body), warnings


def decode_both_ways(
    message: dict[str, Any], request: AgentRequest, dialect: Dialect = OPENAI, **body: Any
) -> list[AgentResponse]:
    """Decode a response, complete and as a stream."""
    codec = codec_of(dialect)
    choice = {"index": 0, "finish_reason": "stop"}
    whole = {"id": "r", "model": "m", "choices": [{**choice, "message": message}], **body}
    calls = [{"index": number, **call} for number, call in enumerate(message.get("tool_calls") or ())]
    delta = {**message, **({"tool_calls": calls} if calls else {})}
    chunk = {"id": "r", "model": "m", "choices": [{**choice, "delta": delta}], **body}
    decoder = codec.decoder({}, request)
    decoder.feed(b"data: " + json.dumps(chunk).encode() + b"\n\ndata: [DONE]\n\n")
    assert decoder.failure is None
    reply = Reply(200, {}, json.dumps(whole).encode())
    return [codec.decode(reply, request), decoder.response()]
