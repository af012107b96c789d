"""Codec for the Messages API and for its endpoint that counts tokens."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, cast

from typing_extensions import override

from ... import errors
from ...engine.wire import WireRequest
from ...types import AgentConfig, AgentRequest, AgentResponse, ToolSpec
from ..base import NO_ADDRESS, ApiAddress, StreamDecoder, make_capabilities, resolve_address
from ..codec import CodecBase
from ..encoding import JsonDict, check_extra, dump_json, encode_fields, request_origin
from ..failures import request_id
from ..repair import ForeignThinking
from .conversation import CacheSlot, add_cache_markers, prepare_conversation, read_cache_slot
from .fields import (
    COUNTED_FIELDS,
    FIELDS,
    SCHEMA_DIALECT,
    MessagesContext,
    choose_thinking,
    default_max_tokens,
    encode_thinking,
)
from .messages import MessageEncoder, encode_text
from .models import API, VERSION
from .response import BlockReader, map_stop_reason, read_metadata, read_refusal, read_usage
from .stream import MessagesDecoder

if TYPE_CHECKING:
    from .batches import AnthropicBatches

TOOL_BETAS = {
    "computer_20241022": "computer-use-2024-10-22",
    "bash_20241022": "computer-use-2024-10-22",
    "text_editor_20241022": "computer-use-2024-10-22",
    "computer_20250124": "computer-use-2025-01-24",
    "computer_20251124": "computer-use-2025-11-24",
    "code_execution_20250522": "code-execution-2025-05-22",
    "advisor_": "advisor-tool-2026-03-01",
    "mcp_toolset": "mcp-client-2025-11-20",
}
"""Betas by the prefix of a server tool's type."""

BLOCK_BETAS = {
    "advisor_tool_result": "advisor-tool-2026-03-01",
    "compaction": "compact-2026-01-12",
    "mcp_tool_use": "mcp-client-2025-04-04",
    "mcp_tool_result": "mcp-client-2025-04-04",
}
"""Betas by the type of a block in the conversation."""

KEY_BETAS = {
    "context_management": "context-management-2025-06-27",
    "fallback_credit_token": "fallback-credit-2026-07-01",
    "fallbacks": "server-side-fallback-2026-07-01",
    "mcp_servers": "mcp-client-2025-04-04",
    "speed": "fast-mode-2026-02-01",
}
"""Betas by a key of the body."""


def find_betas(request: AgentRequest, body: Mapping[str, Any], block_types: Iterable[str]) -> tuple[str, ...]:
    """Return the betas of a request, then those that its content requires. Tools come first among these."""
    betas = [*request.betas]
    if invalid := next((beta for beta in betas if not _BETA.fullmatch(beta)), None):
        raise errors.ConfigurationError(
            f"{invalid!r} is not the name of a beta feature.",
            field="betas",
            fix="Pass names such as files-api-2025-04-14.",
        )
    for tool in body.get("tools", ()):
        if tool_type := tool.get("type"):
            betas += [beta for prefix, beta in TOOL_BETAS.items() if str(tool_type).startswith(prefix)]
    betas += [beta for key, beta in KEY_BETAS.items() if key in body]
    betas += [BLOCK_BETAS[block_type] for block_type in block_types if block_type in BLOCK_BETAS]
    return tuple(betas)


def merge_betas(header: str, betas: Iterable[str]) -> str:
    """Add betas to the caller's header, except for features that it has in another version."""
    merged = [beta.strip() for beta in header.split(",") if beta.strip()]
    features = {_feature_of(beta) for beta in merged}
    for beta in betas:
        if _feature_of(beta) not in features:
            features.add(_feature_of(beta))
            merged.append(beta)
    return ",".join(merged)


def _feature_of(beta: str) -> str:
    return re.sub(r"-\d{4}-\d\d-\d\d$", "", beta)


_BETA = re.compile(r"[A-Za-z0-9._-]+")
_RESERVED_KEYS = ("messages", "model", "stream", "betas")
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
    """Warnings about content that was dropped."""
    betas: tuple[str, ...]
    """Beta features that the body requires."""


def encode_body(
    request: AgentRequest,
    provider: str,
    foreign_thinking: ForeignThinking = "drop",
    *,
    stream: bool = False,
    count_tokens: bool = False,
) -> EncodedBody:
    """Encode a request. Unsupported content raises an error.

    Args:
        request: The request.
        provider: Name of the provider.
        foreign_thinking: Drop reasoning of other models, or send it as text.
        stream: Request a stream of events.
        count_tokens: Encode for the endpoint that counts tokens, which accepts only the prompt.
    """
    check_extra(request, _RESERVED_KEYS)
    context = MessagesContext(request, request_origin(provider, API, request.model or ""))
    system, messages = prepare_conversation(context, foreign_thinking, prefill=context.features.prefill)
    encoder = MessageEncoder(context)
    encoded = encoder.encode(messages)
    context.thinking = choose_thinking(context, messages)
    context.body.update(encode_thinking(context.thinking))
    body = encode_fields(context, COUNTED_FIELDS if count_tokens else FIELDS)
    if not count_tokens:
        body.setdefault("max_tokens", default_max_tokens(context, stream=stream))
    else:
        body.pop("container", None)
    if stream:
        body["stream"] = True
    system_slots = [CacheSlot(cast(JsonDict, encode_text(text.text)), text.cache) for text in system]
    for slot, text in zip(system_slots, system, strict=True):
        context.add_extra(slot.block, text.extra, "a system message")
    add_cache_markers(context, (_tool_slots(context), system_slots, encoder.cache_slots))
    if system:
        check_extra(request, ("system",))
        blocks = [slot.block for slot in system_slots]
        body["system"] = system[0].text if len(blocks) == 1 and len(blocks[0]) == 2 else blocks
    _add_extra(body, request, count_tokens=count_tokens)
    body["messages"] = encoded
    return EncodedBody(dump_json(body), tuple(context.warnings), find_betas(request, body, context.vendor_blocks))


def _tool_slots(context: MessagesContext) -> list[CacheSlot]:
    slots: list[CacheSlot] = []
    for tool, block in zip(context.request.tools, context.body.get("tools", ()), strict=True):
        if isinstance(tool, ToolSpec):
            slots.append(CacheSlot(block, tool.cache))
        elif isinstance(tool, Mapping) and (control := tool.get("cache_control")):
            slots.append(read_cache_slot(block, control))
    return slots


def _add_extra(body: JsonDict, request: AgentRequest, *, count_tokens: bool) -> None:
    """Add the keys of `extra`, which override fields. `output_config` is merged."""
    extra = {key: value for key, value in request.extra.items() if not count_tokens or key in _COUNTED_KEYS}
    if isinstance(config := extra.get("output_config"), Mapping):
        extra["output_config"] = {**body.get("output_config", {}), **config}
    body.update(extra)


BASE_URL = "https://api.anthropic.com"
_BETA_HEADER = b"anthropic-beta"
_CAPABILITIES = make_capabilities(
    json_mode=False, system_messages=True, documents=True, token_counting=True, batch=True
)


class AnthropicCodec(CodecBase):
    """Codec for the Messages API of Anthropic or a compatible vendor."""

    api = API
    response_kind = "message"
    schema_dialect: ClassVar[str | None] = SCHEMA_DIALECT
    count_key: ClassVar[str] = "input_tokens"

    def __init__(
        self,
        address: ApiAddress,
        headers: Mapping[str, str] | None = None,
        *,
        name: str = API,
        foreign_thinking: ForeignThinking = "drop",
    ) -> None:
        custom_headers = {header.lower(): value for header, value in (headers or {}).items()}
        sent = {"anthropic-version": VERSION, **address.credentials("x-api-key", prefix=""), **custom_headers}
        super().__init__(name, _CAPABILITIES, sent, address.secrets)
        self._foreign_thinking = foreign_thinking
        self._betas = custom_headers.get(_BETA_HEADER.decode(), "")
        self._url = address.base_url.rstrip("/").removesuffix("/v1") + "/v1/messages"

    @classmethod
    def from_config(cls, config: AgentConfig, name: str = API) -> AnthropicCodec:
        has_credentials = not {header.lower() for header in config.headers}.isdisjoint(("authorization", "x-api-key"))
        address = resolve_address(
            config,
            default_base_url=BASE_URL,
            key_variables=() if has_credentials else ("ANTHROPIC_API_KEY",),
            base_url_variables=("ANTHROPIC_BASE_URL",),
            key_required=not has_credentials,
        )
        return cls(address, config.headers.reveal(), name=name, foreign_thinking=config.foreign_thinking)

    @override
    def with_client(self, client: Any, headers: Mapping[str, str]) -> AnthropicCodec:
        return AnthropicCodec(NO_ADDRESS, headers, name=self.name, foreign_thinking=self._foreign_thinking)

    def encode(self, request: AgentRequest, *, stream: bool) -> WireRequest:
        return self._wire(self._url, encode_body(request, self.name, self._foreign_thinking, stream=stream))

    def encode_count(self, request: AgentRequest) -> WireRequest:
        body = encode_body(request, self.name, self._foreign_thinking, count_tokens=True)
        return self._wire(f"{self._url}/count_tokens", body)

    def _wire(self, url: str, body: EncodedBody) -> WireRequest:
        headers = self._headers
        if body.betas:
            value = merge_betas(self._betas, body.betas).encode("latin-1")
            headers = (*(header for header in headers if header[0] != _BETA_HEADER), (_BETA_HEADER, value))
        return WireRequest(url, headers, body.data, self.name, body.warnings)

    @override
    def _read_response(self, body: dict[str, Any], headers: Mapping[str, str], request: AgentRequest) -> AgentResponse:
        model = body.get("model") or request.model or ""
        reader = BlockReader(self.name, request, model)
        parts = [reader.read_part(reader.with_unique_id(block)) for block in body["content"]]
        parts.append(read_refusal(body))
        reason = body.get("stop_reason")
        if not reason:
            raise ValueError("it has no stop reason")
        return AgentResponse(
            provider=self.name,
            model=model,
            content=[part for part in parts if part is not None],
            usage=read_usage(body.get("usage")),
            stop_reason=map_stop_reason(reason),
            raw_stop_reason=reason,
            warnings=tuple(reader.warnings),
            **read_metadata(body),
            id=body.get("id") or None,
            request_id=request_id(headers),
            raw=body,
        )

    def decoder(self, headers: Mapping[str, str], request: AgentRequest) -> StreamDecoder:
        return MessagesDecoder(self.name, headers, request, self._secrets)

    def batch_api(self) -> AnthropicBatches:
        from .batches import AnthropicBatches  # lazy: only batch jobs need it

        return AnthropicBatches(f"{self._url}/batches", self._headers)
