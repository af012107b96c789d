"""Encoding of requests for the Responses API, and for its endpoint that counts tokens.

The whole conversation is sent, with the model's reasoning in encrypted form, and nothing is stored at the vendor unless
the caller asks for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...types import AgentRequest, Message, Role, ToolResult
from ..encoding import JsonDict, check_extra, dump_json, encode_fields, request_origin
from ..repair import ForeignThinking, repair
from .dialect import API, Dialect
from .fields import FIELDS, ResponsesContext
from .messages import ItemEncoder

_RESERVED_KEYS = ("input", "instructions", "model", "stream")
_COUNTED_KEYS = (
    "model", "instructions", "tools", "tool_choice", "parallel_tool_calls", "reasoning", "text", "truncation",
    "previous_response_id", "conversation", "personality",
)  # fmt: skip
"""Keys that the endpoint for counting tokens accepts, besides the input."""


def encode_body(
    request: AgentRequest,
    provider: str,
    dialect: Dialect,
    foreign_thinking: ForeignThinking = "drop",
    *,
    stream: bool = False,
    count_tokens: bool = False,
) -> tuple[bytes, tuple[str, ...]]:
    """Return the body, and warnings about everything left out of it.

    Content that the API cannot take raises an error before anything is sent.

    Args:
        request: The request.
        provider: Name of the provider.
        dialect: The vendor's dialect.
        foreign_thinking: Whether reasoning of other models is dropped, or sent as text.
        stream: Ask for a stream of events.
        count_tokens: Encode the body for the endpoint that counts tokens, which accepts only the prompt.
    """
    check_extra(request, _RESERVED_KEYS)
    continued = _continues(request)
    origin = request_origin(provider, API, request.model or "")
    context = ResponsesContext(request, origin, dialect=dialect, stored=_is_stored(request, continued=continued))
    instructions, messages = _split_instructions(request.to_messages())
    results: Sequence[Message] = ()
    if continued:
        results, messages = _split_leading_results(messages)
    repaired, repairs = repair(messages, origin, foreign_thinking)
    context.warn(*repairs)
    items = ItemEncoder(context).encode((*results, *repaired))
    body = encode_fields(context, FIELDS)
    if instructions:
        body["instructions"] = instructions
    if stream:
        body["stream"] = True
    if context.include:
        body["include"] = context.include
    if not context.stored:
        body["store"] = False
    body = _merged(body, request.extra)
    if count_tokens:
        body = {key: body[key] for key in _COUNTED_KEYS if key in body}
    if items:  # a stored prompt or conversation needs no input
        body["input"] = items
    return dump_json(body), tuple(context.warnings)


def _continues(request: AgentRequest) -> bool:
    """Whether the request continues a conversation that the vendor has stored."""
    extra = request.extra
    return bool(extra) and any(extra.get(key) for key in ("previous_response_id", "conversation"))


def _is_stored(request: AgentRequest, *, continued: bool) -> bool:
    """Whether the vendor stores the response, and so knows its reasoning by id."""
    extra = request.extra
    return bool(extra["store"]) if "store" in extra else continued or bool(extra.get("background"))


def _split_instructions(messages: Sequence[Message]) -> tuple[str, Sequence[Message]]:
    """Split off a leading system message that is text alone. Instructions have no author's name."""
    if len(messages) > 1:
        first = messages[0]
        if first.role is Role.SYSTEM and first.name is None and isinstance(first.content, str) and first.content:
            return first.content, messages[1:]
    return "", messages


def _split_leading_results(messages: Sequence[Message]) -> tuple[Sequence[Message], Sequence[Message]]:
    """Split off results at the start, whose calls are in the stored conversation."""
    count = 0
    for message in messages:
        if not any(isinstance(part, ToolResult) for part in message.parts):
            break
        count += 1
    return messages[:count], messages[count:]


def _merged(body: JsonDict, extra: Mapping[str, Any]) -> JsonDict:
    """Merge `extra` into the body. It replaces keys, but adds to `include` and to groups of settings."""
    if not extra:
        return body
    merged = {**body, **extra}
    if isinstance(extra.get("include"), list) and "include" in body:
        merged["include"] = list(dict.fromkeys((*body["include"], *extra["include"])))
    for group in ("text", "reasoning", "prompt_cache_options"):
        if isinstance(extra.get(group), dict) and group in body:
            merged[group] = {**body[group], **extra[group]}
    return merged
