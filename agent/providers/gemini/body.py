"""Encoding of requests for generateContent and countTokens."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import takewhile

from ... import errors
from ...types import AgentRequest, Role
from ..encoding import JsonDict, check_extra, dump_json, encode_fields, request_origin
from ..repair import ForeignThinking, repair
from .contents import ContentsEncoder
from .fields import FIELDS, GeminiContext
from .models import API, features_of
from .platform import COUNTED_KEYS, Platform

_RESERVED_KEYS = ("contents", "model")
_MERGED_KEYS = ("generationConfig", "toolConfig")
"""Objects of the body that `extra` may add keys to."""


def encode_body(
    request: AgentRequest, provider: str, platform: Platform, foreign_thinking: ForeignThinking = "drop"
) -> tuple[bytes, tuple[str, ...]]:
    """Return the body, and warnings about everything left out of it.

    Content that the API cannot take raises an error before anything is sent.
    """
    context = _encode(request, provider, platform, foreign_thinking)
    return dump_json(context.body), tuple(context.warnings)


def encode_count_body(
    request: AgentRequest, provider: str, platform: Platform, foreign_thinking: ForeignThinking = "drop"
) -> tuple[bytes, tuple[str, ...]]:
    """Return the body for counting the tokens of a request, and warnings."""
    context = _encode(request, provider, platform, foreign_thinking)
    body: JsonDict
    if platform.wraps_counted:
        model = platform.path(request.model or "", "").removesuffix(":")
        body = {"generateContentRequest": {"model": model, **context.body}}
    else:
        body = {key: value for key, value in context.body.items() if key in COUNTED_KEYS}
    return dump_json(body), tuple(context.warnings)


def _encode(
    request: AgentRequest, provider: str, platform: Platform, foreign_thinking: ForeignThinking
) -> GeminiContext:
    check_extra(request, _RESERVED_KEYS)
    model = request.model or ""
    origin = request_origin(provider, API, model)
    messages, repairs = repair(request.to_messages(), origin, foreign_thinking, assistant_media=True)
    context = GeminiContext(request, origin, platform=platform, features=features_of(model))
    context.warn(*repairs)
    system = Role.SYSTEM
    leading = list(takewhile(lambda message: message.role is system, messages))
    encoder = ContentsEncoder(context)
    contents = encoder.encode(messages[len(leading) :])
    if not contents:
        raise errors.ConfigurationError(
            "There is nothing to answer: the conversation holds only instructions, or nothing at all.",
            field="messages",
            fix="Pass input= or a user's message.",
        )
    context.body["contents"] = contents
    instructions = encoder.encode_instructions(leading)
    if instructions:
        check_extra(request, ("systemInstruction",))
        context.body["systemInstruction"] = {"parts": instructions}
    body = encode_fields(context, FIELDS)
    for key, value in request.extra.items():
        merges = key in _MERGED_KEYS and key in body and isinstance(value, Mapping)
        body[key] = {**body[key], **value} if merges else value
    return context
