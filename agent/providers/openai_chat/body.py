"""Encoding of requests for Chat Completions."""

from __future__ import annotations

from ...types import AgentRequest
from ..encoding import check_extra, dump_json, encode_fields, request_origin
from ..repair import ForeignThinking, repair
from .dialect import API, Dialect
from .fields import FIELDS, ChatContext
from .messages import MessageEncoder

_RESERVED_KEYS = ("messages", "model", "stream")


def encode_body(
    request: AgentRequest, dialect: Dialect, *, stream: bool, foreign_thinking: ForeignThinking = "drop"
) -> tuple[bytes, tuple[str, ...]]:
    """Return the body, and warnings about everything left out of it.

    Content that the API cannot take raises an error before anything is sent.
    """
    check_extra(request, _RESERVED_KEYS)
    origin = request_origin(dialect.name, API, request.model or "")
    messages, repairs = repair(request.to_messages(), origin, foreign_thinking)
    context = ChatContext(request, origin, dialect=dialect)
    context.warn(*repairs)
    body = encode_fields(context, FIELDS)
    if stream:
        body["stream"] = True
        if dialect.stream_usage:
            body["stream_options"] = {"include_usage": True}
    body.update(request.extra)
    body["messages"] = MessageEncoder(context).encode(messages)
    return dump_json(body), tuple(context.warnings)
