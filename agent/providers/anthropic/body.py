"""Encoding of requests for the Messages API, and for its endpoint that counts tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from ... import errors
from ...types import AgentRequest, TextContent, ToolSpec
from ..encoding import JsonDict, check_extra, dump_json, encode_fields, request_origin
from ..repair import ForeignThinking, repair
from .betas import find_betas
from .cache import CacheSlot, add_breakpoints, fixed_slot
from .conversation import ends_with_prefill, split_system
from .fields import COUNTED_FIELDS, FIELDS, MessagesContext, choose_thinking, default_max_tokens, encode_thinking
from .messages import MessageEncoder, encode_text
from .models import API

_RESERVED_KEYS = ("messages", "model", "stream")
_COUNTED_KEYS = frozenset(
    (
        "cache_control",
        "compaction",
        "context_management",
        "mcp_servers",
        "output_config",
        "speed",
        "system",
        "thinking",
        "tool_choice",
        "tools",
    )
)
"""Keys of `extra` that the endpoint for counting tokens accepts."""


@dataclass(frozen=True, slots=True)
class EncodedBody:
    data: bytes
    warnings: tuple[str, ...]
    """Warnings about everything left out of the body."""
    betas: tuple[str, ...]
    """Beta features that the body may use."""


def encode_body(
    request: AgentRequest,
    provider: str,
    foreign_thinking: ForeignThinking = "drop",
    *,
    stream: bool = False,
    count_tokens: bool = False,
) -> EncodedBody:
    """Encode a request.

    Content that the API cannot take raises an error before anything is sent.

    Args:
        request: The request.
        provider: Name of the provider.
        foreign_thinking: Whether reasoning of other models is dropped, or sent as text.
        stream: Ask for a stream of events.
        count_tokens: Encode the body for the endpoint that counts tokens, which accepts only the prompt.
    """
    check_extra(request, _RESERVED_KEYS)
    context = MessagesContext(request, request_origin(provider, API, request.model or ""))
    repaired, warnings = repair(request.to_messages(), context.origin, foreign_thinking)
    context.warn(*warnings)
    system, messages = split_system(repaired, context)
    if not messages:
        raise errors.ConfigurationError(
            "There is nothing to send: the conversation is empty.", field="messages", fix="Pass input= or messages."
        )
    if not context.features.prefill and ends_with_prefill(messages):
        raise context.unsupported(
            f"{context.model} does not go on from an assistant's message that stands last.",
            field="messages",
            fix="End the conversation with a user's message.",
        )
    encoder = MessageEncoder(context)
    encoded = encoder.encode(messages)
    context.thinking = choose_thinking(context, messages)
    context.body.update(encode_thinking(context.thinking))
    body = encode_fields(context, COUNTED_FIELDS if count_tokens else FIELDS)
    if not count_tokens:
        body.setdefault("max_tokens", default_max_tokens(context, stream=stream))
    if stream:
        body["stream"] = True
    system_slots = [CacheSlot(cast(JsonDict, encode_text(text.text)), text.cache) for text in system]
    add_breakpoints(context, (_tool_slots(context), system_slots, encoder.cache_slots))
    if system:
        check_extra(request, ("system",))
        body["system"] = _join_system(system, [slot.block for slot in system_slots])
    _add_extra(body, request, count_tokens=count_tokens)
    body["messages"] = encoded
    return EncodedBody(dump_json(body), tuple(context.warnings), find_betas(request, context.vendor_blocks))


def _tool_slots(context: MessagesContext) -> list[CacheSlot]:
    slots: list[CacheSlot] = []
    for tool, block in zip(context.request.tools, context.body.get("tools", ()), strict=True):
        if isinstance(tool, ToolSpec):
            slots.append(CacheSlot(block, tool.cache))
        elif control := tool.get("cache_control"):
            slots.append(fixed_slot(block, control))
    return slots


def _join_system(texts: Sequence[TextContent], blocks: list[JsonDict]) -> str | list[JsonDict]:
    if len(blocks) == 1 and "cache_control" not in blocks[0]:
        return texts[0].text
    return blocks


def _add_extra(body: JsonDict, request: AgentRequest, *, count_tokens: bool) -> None:
    """Add the keys of `extra`, which replace others. `output_config` is merged, because several fields share it."""
    extra = {key: value for key, value in request.extra.items() if not count_tokens or key in _COUNTED_KEYS}
    if isinstance(given := extra.get("output_config"), Mapping):
        extra["output_config"] = {**body.get("output_config", {}), **given}
    body.update(extra)
