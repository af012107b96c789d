"""Codec for Chat Completions.

A reply without choices, an error with status 200 and a stream without its end are errors, never responses.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from typing_extensions import override

from ...types import AgentConfig, AgentRequest, AgentResponse, RefusalContent, ToolCall
from ...wire import WireRequest
from ..base import StreamDecoder
from ..codec import CodecBase
from ..credentials import NOWHERE, Address
from ..failures import request_id
from .address import endpoint_of, find_address
from .body import encode_body
from .dialect import API, Dialect
from .fields import SCHEMA_DIALECT
from .response import MessageReader, finish_reason, read_logprobs, stop_reason
from .stream import ChatDecoder
from .usage import read_usage


class ChatCodec(CodecBase):
    """Codec for one vendor of Chat Completions at one address."""

    api = API
    response_kind = "chat completion"
    schema_dialect: ClassVar[str | None] = SCHEMA_DIALECT

    def __init__(
        self,
        dialect: Dialect,
        address: Address,
        headers: Mapping[str, str] | None = None,
        *,
        url: str | None = None,
        foreign_thinking: Literal["drop", "text"] = "drop",
    ) -> None:
        key = None if address.key is None else address.key.get_secret_value()
        sent = {} if key is None else {dialect.key_header: dialect.key_prefix + key}
        super().__init__(dialect.name, dialect.capabilities, {**sent, **(headers or {})}, () if key is None else (key,))
        self.dialect = dialect
        self._url = url or f"{address.base_url}/chat/completions"
        self._foreign_thinking = foreign_thinking

    @classmethod
    def from_config(cls, config: AgentConfig, dialect: Dialect) -> ChatCodec:
        address, url = find_address(config, dialect)
        return cls(dialect, address, config.headers.reveal(), url=url, foreign_thinking=config.foreign_thinking)

    @override
    def carried_by(self, client: Any, headers: Mapping[str, str]) -> ChatCodec:
        return ChatCodec(self.dialect, NOWHERE, headers, foreign_thinking=self._foreign_thinking)

    def encode(self, request: AgentRequest, *, stream: bool) -> WireRequest:
        body, warnings = encode_body(request, self.dialect, stream=stream, foreign_thinking=self._foreign_thinking)
        return WireRequest(endpoint_of(self._url, request.model or ""), self._headers, body, self.name, warnings)

    @override
    def _error_in(self, body: Any) -> Any:
        """Gateways report errors of the vendor behind them in the choice."""
        found = super()._error_in(body)
        choices = body.get("choices") if found is None and isinstance(body, dict) else None
        first = choices[0] if isinstance(choices, list) and choices else None
        return first if isinstance(first, dict) and first.get("error") else found

    @override
    def _read_response(self, body: dict[str, Any], headers: Mapping[str, str], request: AgentRequest) -> AgentResponse:
        choice = body["choices"][0]
        model = body.get("model") or request.model or ""
        message = choice["message"]
        if message is None and "finish_reason" not in choice:
            raise TypeError("a choice without a message")
        content = MessageReader(self.dialect, request, model).message(message or {}, body)
        return AgentResponse(
            provider=self.name,
            model=model,
            content=content,
            usage=read_usage(body.get("usage")),
            stop_reason=stop_reason(
                finish_reason(choice),
                called=any(isinstance(part, ToolCall) for part in content),
                refused=any(isinstance(part, RefusalContent) for part in content),
            ),
            raw_stop_reason=choice.get("finish_reason"),
            id=body.get("id") or None,
            request_id=request_id(headers),
            logprobs=read_logprobs(choice.get("logprobs")),
            raw=body,
        )

    def decoder(self, headers: Mapping[str, str], request: AgentRequest) -> StreamDecoder:
        return ChatDecoder(self.dialect, headers, request, self._secrets)
