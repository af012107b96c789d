"""Codec for the Messages API, and its endpoint that counts tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from typing_extensions import override

from ...types import AgentConfig, AgentRequest, AgentResponse, ProviderCapabilities
from ...wire import Reply, WireRequest, parse_json
from ..base import StreamDecoder
from ..codec import CodecBase
from ..credentials import NOWHERE, Address, resolve
from ..failures import request_id
from .betas import merge_betas
from .body import EncodedBody, encode_body
from .fields import SCHEMA_DIALECT
from .models import API, VERSION
from .response import BlockReader, read_refusal, stop_reason
from .stream import MessagesDecoder
from .usage import read_usage

BASE_URL = "https://api.anthropic.com"
_BETA_HEADER = b"anthropic-beta"
_CAPABILITIES = ProviderCapabilities(
    streaming=True,
    tools=True,
    structured_output=True,
    vision=True,
    system_messages=True,
    native_schema_output=True,
    thinking=True,
    documents=True,
    token_counting=True,
)


class AnthropicCodec(CodecBase):
    """Codec for the Messages API at one address: Anthropic's, or a compatible vendor's."""

    api = API
    response_kind = "message"
    schema_dialect: ClassVar[str | None] = SCHEMA_DIALECT

    def __init__(
        self,
        address: Address,
        headers: Mapping[str, str] | None = None,
        *,
        name: str = API,
        foreign_thinking: Literal["drop", "text"] = "drop",
    ) -> None:
        key = None if address.key is None else address.key.get_secret_value()
        sent = {"anthropic-version": VERSION}
        if key is not None:
            sent["x-api-key"] = key
        given = {header.lower(): value for header, value in (headers or {}).items()}
        super().__init__(name, _CAPABILITIES, {**sent, **given}, () if key is None else (key,))
        self._foreign_thinking = foreign_thinking
        self._betas = given.get(_BETA_HEADER.decode(), "")
        self._url = address.base_url.rstrip("/").removesuffix("/v1") + "/v1/messages"

    @classmethod
    def from_config(cls, config: AgentConfig, name: str = API) -> AnthropicCodec:
        has_credentials = not {header.lower() for header in config.headers}.isdisjoint(("authorization", "x-api-key"))
        address = resolve(
            config,
            default_base_url=BASE_URL,
            key_variables=() if has_credentials else ("ANTHROPIC_API_KEY",),
            base_url_variables=("ANTHROPIC_BASE_URL",),
            key_required=not has_credentials,
        )
        return cls(address, config.headers.reveal(), name=name, foreign_thinking=config.foreign_thinking)

    @override
    def carried_by(self, client: Any, headers: Mapping[str, str]) -> AnthropicCodec:
        return AnthropicCodec(NOWHERE, headers, name=self.name, foreign_thinking=self._foreign_thinking)

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

    def decode_count(self, reply: Reply, request: AgentRequest) -> int:
        try:
            count = parse_json(reply.body)["input_tokens"]
        except (ValueError, KeyError, TypeError) as error:
            raise self._protocol_error(
                f"the count of tokens cannot be read ({type(error).__name__})", reply, request
            ) from None
        if not isinstance(count, int):
            raise self._protocol_error("the count of tokens is not a number", reply, request)
        return count

    @override
    def _read_response(self, body: dict[str, Any], headers: Mapping[str, str], request: AgentRequest) -> AgentResponse:
        model = body.get("model") or request.model or ""
        reader = BlockReader(self.name, request, model)
        parts = [reader.part(block) for block in body["content"]]
        parts.append(read_refusal(body))
        reason = body.get("stop_reason")
        if not reason:
            raise ValueError("it does not say how it ended")
        return AgentResponse(
            provider=self.name,
            model=model,
            content=[part for part in parts if part is not None],
            usage=read_usage(body.get("usage")),
            stop_reason=stop_reason(reason),
            raw_stop_reason=reason,
            id=body.get("id") or None,
            request_id=request_id(headers),
            raw=body,
        )

    def decoder(self, headers: Mapping[str, str], request: AgentRequest) -> StreamDecoder:
        return MessagesDecoder(self.name, headers, request, self._secrets)
