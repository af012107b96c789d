"""Codec for the Responses API. Failed and unfinished responses raise errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import quote

from typing_extensions import override

from ... import errors
from ...engine.wire import WireRequest
from ...types import (
    AgentConfig,
    AgentRequest,
    AgentResponse,
    FinishReason,
    Message,
    RefusalContent,
    Role,
    ToolCall,
    ToolResult,
)
from ..base import NO_ADDRESS, ApiAddress, StreamDecoder, make_capabilities, resolve_address
from ..codec import CodecBase
from ..encoding import JsonDict, check_extra, dump_json, encode_fields, request_origin
from ..failures import request_id
from ..repair import ForeignThinking, repair
from .fields import FIELDS, ResponsesContext
from .messages import ItemEncoder
from .models import API, SCHEMA_DIALECT
from .response import ItemReader, as_text, objects_in, read_logprobs, read_metadata, read_usage, stop_reason
from .stream import ResponsesDecoder

if TYPE_CHECKING:
    from ..openai_chat.batches import OpenAIBatches

_CONTINUING_KEYS = ("previous_response_id", "conversation")
_RESERVED_KEYS = ("input", "instructions", "model", "stream")
_COUNTED_KEYS = (
    "model", "instructions", "tools", "tool_choice", "parallel_tool_calls", "reasoning", "text", "truncation",
    "previous_response_id", "conversation", "personality",
)  # fmt: skip
"""Keys that the endpoint for counting tokens accepts, besides the input."""


def encode_body(
    request: AgentRequest,
    provider: str,
    foreign_thinking: ForeignThinking = "drop",
    *,
    stream: bool = False,
    count_tokens: bool = False,
) -> tuple[bytes, tuple[str, ...]]:
    """Return the body, and warnings about everything left out of it.

    Args:
        request: The request.
        provider: Name of the provider.
        foreign_thinking: Whether reasoning of other models is dropped or sent as text.
        stream: Request a stream of events.
        count_tokens: Encode the body for the endpoint that counts tokens, which accepts only the prompt.

    Raises:
        UnsupportedFeatureError: The API does not support a content part.
    """
    check_extra(request, _RESERVED_KEYS)
    continued = any(getattr(request, key) or request.extra.get(key) for key in _CONTINUING_KEYS)
    origin = request_origin(provider, API, request.model or "")
    context = ResponsesContext(request, origin, stored=_is_stored(request, continued=continued))
    instructions, messages = _split_instructions(request.to_messages())
    # The calls of leading results are in the stored conversation.
    results = list(takewhile(_has_result, messages)) if continued else []
    repaired, repairs = repair(messages[len(results) :], origin, foreign_thinking)
    context.warn(*repairs)
    context.drop_all_extra(request.messages)
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
    body = _merge_extra(body, request.extra)
    if count_tokens:
        body = {key: body[key] for key in _COUNTED_KEYS if key in body}
    if items:  # a stored prompt or conversation needs no input
        body["input"] = items
    return dump_json(body), tuple(context.warnings)


def _is_stored(request: AgentRequest, *, continued: bool) -> bool:
    """Whether the vendor stores the response, so that ids of its reasoning are valid."""
    extra = request.extra
    store = extra.get("store", request.store)
    return continued or bool(request.background or extra.get("background")) if store is None else bool(store)


def _split_instructions(messages: Sequence[Message]) -> tuple[str, Sequence[Message]]:
    """Split off a leading system message that is text without a name."""
    if len(messages) > 1:
        first = messages[0]
        if first.role is Role.SYSTEM and first.name is None and isinstance(first.content, str) and first.content:
            return first.content, messages[1:]
    return "", messages


def _has_result(message: Message) -> bool:
    return any(isinstance(part, ToolResult) for part in message.parts)


def _merge_extra(body: JsonDict, extra: Mapping[str, Any]) -> JsonDict:
    """Merge `extra` into the body. It replaces keys, but extends `include` and groups of settings."""
    if not extra:
        return body
    merged = {**body, **extra}
    if isinstance(extra.get("include"), list) and "include" in body:
        merged["include"] = list(dict.fromkeys((*body["include"], *extra["include"])))
    for group in ("text", "reasoning", "prompt_cache_options"):
        if isinstance(extra.get(group), dict) and group in body:
            merged[group] = {**body[group], **extra[group]}
    return merged


_PENDING = ("queued", "in_progress")
"""Status of a response that the vendor still processes in the background."""
_CAPABILITIES = make_capabilities(system_messages=True, documents=True, token_counting=True, batch=True)


class ResponsesCodec(CodecBase):
    """Codec for the Responses API of OpenAI or a compatible vendor."""

    api = API
    idempotency = True
    response_kind = "response"
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
        super().__init__(name, _CAPABILITIES, {**address.credentials(), **(headers or {})}, address.secrets)
        self._foreign_thinking = foreign_thinking
        self._url = f"{address.base_url}/responses"

    @classmethod
    def from_config(cls, config: AgentConfig, name: str = API) -> ResponsesCodec:
        address = resolve_address(
            config,
            default_base_url="https://api.openai.com/v1",
            key_variables=("OPENAI_API_KEY",),
            base_url_variables=("OPENAI_BASE_URL",),
        )
        return cls(address, config.headers.reveal(), name=name, foreign_thinking=config.foreign_thinking)

    @override
    def with_client(self, client: Any, headers: Mapping[str, str]) -> ResponsesCodec:
        return ResponsesCodec(NO_ADDRESS, headers, name=self.name, foreign_thinking=self._foreign_thinking)

    def encode(self, request: AgentRequest, *, stream: bool) -> WireRequest:
        body, warnings = encode_body(request, self.name, self._foreign_thinking, stream=stream)
        return WireRequest(self._url, self._headers, body, self.name, warnings)

    @override
    def _read_response(self, body: dict[str, Any], headers: Mapping[str, str], request: AgentRequest) -> AgentResponse:
        items = objects_in(body["output"])
        status = body.get("status")
        if status == "failed" or (status in _PENDING and not as_text(body.get("id"))):
            raise errors.ProtocolError(
                f"{self.name}: the response is not finished: status {status}",
                provider=self.name,
                model=request.model,
                request_id=request_id(headers),
                retryable=False,
            )
        reader = ItemReader(request, request_origin(self.name, API, request.model or ""))
        reader.response_id = as_text(body.get("id")) or ""
        content = tuple(part for position, item in enumerate(items) for _, part in reader.read_item(item, position))
        reasons: tuple[FinishReason | None, str | None] = (None, None)
        if status not in _PENDING:
            reasons = stop_reason(
                body,
                called=any(isinstance(part, ToolCall) for part in content),
                refused=any(isinstance(part, RefusalContent) for part in content),
            )
        return AgentResponse(
            provider=self.name,
            model=as_text(body.get("model")) or request.model or "",
            content=content,
            usage=read_usage(body, items),
            stop_reason=reasons[0],
            raw_stop_reason=reasons[1],
            status=status if status in _PENDING else None,
            id=reader.response_id or None,
            request_id=request_id(headers),
            logprobs=read_logprobs(items),
            warnings=tuple(reader.warnings),
            **read_metadata(body),
            raw=body,
        )

    def encode_retrieve(self, response_id: str, request: AgentRequest) -> WireRequest:
        """Encode the request for a stored response, with the output data that `request` asks for."""
        origin = request_origin(self.name, API, request.model or "")
        context = ResponsesContext(request, origin, stored=True)
        encode_fields(context, FIELDS)
        query = "&".join(f"include%5B%5D={quote(value)}" for value in context.include)
        url = f"{self._url}/{quote(response_id, safe='')}{'?' if query else ''}{query}"
        return WireRequest(url, self._headers, b"", self.name, method="GET")

    def encode_cancel(self, response_id: str) -> WireRequest:
        url = f"{self._url}/{quote(response_id, safe='')}/cancel"
        return WireRequest(url, self._headers, b"", self.name)

    def decoder(self, headers: Mapping[str, str], request: AgentRequest) -> StreamDecoder:
        return ResponsesDecoder(self.name, headers, request, self._secrets)

    def encode_count(self, request: AgentRequest) -> WireRequest:
        body, warnings = encode_body(request, self.name, self._foreign_thinking, count_tokens=True)
        return WireRequest(f"{self._url}/input_tokens", self._headers, body, self.name, warnings)

    def batch_api(self) -> OpenAIBatches:
        from ..openai_chat.batches import OpenAIBatches  # lazy: only batch jobs need it
        from ..openai_chat.dialect import BatchDialect  # lazy: only batch jobs need it

        root = self._url.removesuffix("/responses")
        return OpenAIBatches(BatchDialect(), root, "/v1/responses", self._headers)
