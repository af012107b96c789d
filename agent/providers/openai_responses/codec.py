"""Codec for the Responses API.

A failed or unfinished response is an error, never a response.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal
from urllib.parse import quote

from typing_extensions import override

from ... import errors
from ...types import AgentConfig, AgentRequest, AgentResponse, RefusalContent, ToolCall
from ...wire import Reply, WireRequest, parse_json
from ..base import StreamDecoder
from ..codec import SHAPE_ERRORS, CodecBase, describe_malformed
from ..credentials import NOWHERE, Address, resolve
from ..encoding import request_origin
from ..failures import request_id
from .body import encode_body
from .dialect import API, OPENAI, SCHEMA_DIALECT, Dialect
from .response import ItemReader, read_logprobs, stop_reason
from .stream import ResponsesDecoder
from .usage import read_usage

BASE_URL = "https://api.openai.com/v1"


class ResponsesCodec(CodecBase):
    """Codec for one vendor of the Responses API at one address."""

    api = API
    response_kind = "response"
    schema_dialect = SCHEMA_DIALECT

    def __init__(
        self,
        address: Address,
        headers: Mapping[str, str] | None = None,
        *,
        name: str = API,
        foreign_thinking: Literal["drop", "text"] = "drop",
        dialect: Dialect = OPENAI,
    ) -> None:
        key = None if address.key is None else address.key.get_secret_value()
        sent: dict[str, str] = {}
        if key is not None:
            sent[dialect.key_header] = f"Bearer {key}" if dialect.key_header == "authorization" else key
        super().__init__(name, dialect.capabilities, {**sent, **(headers or {})}, () if key is None else (key,))
        self.dialect = dialect
        self._foreign_thinking = foreign_thinking
        self._url = f"{address.base_url}/responses"
        self._query = "" if dialect.api_version is None else f"?api-version={quote(dialect.api_version)}"

    @classmethod
    def from_config(
        cls,
        config: AgentConfig,
        *,
        name: str = API,
        dialect: Dialect = OPENAI,
        base_url: str | None = BASE_URL,
        key_variables: tuple[str, ...] = ("OPENAI_API_KEY",),
        base_url_variables: tuple[str, ...] = ("OPENAI_BASE_URL",),
        key_required: bool = True,
    ) -> ResponsesCodec:
        address = resolve(
            config,
            default_base_url=base_url,
            key_variables=key_variables,
            base_url_variables=base_url_variables,
            key_required=key_required,
        )
        return cls(
            address, config.headers.reveal(), name=name, foreign_thinking=config.foreign_thinking, dialect=dialect
        )

    @override
    def carried_by(self, client: Any, headers: Mapping[str, str]) -> ResponsesCodec:
        dialect = replace(self.dialect, api_version=None)  # the client adds it
        return ResponsesCodec(
            NOWHERE, headers, name=self.name, foreign_thinking=self._foreign_thinking, dialect=dialect
        )

    def encode(self, request: AgentRequest, *, stream: bool) -> WireRequest:
        body, warnings = encode_body(request, self.name, self.dialect, self._foreign_thinking, stream=stream)
        return WireRequest(self._url + self._query, self._headers, body, self.name, warnings)

    @override
    def _read_response(self, body: dict[str, Any], headers: Mapping[str, str], request: AgentRequest) -> AgentResponse:
        items = body["output"]
        status = body.get("status")
        if status not in (None, "completed", "incomplete"):
            raise errors.ProtocolError(
                f"{self.name}: the response is not finished, its status is {status}",
                provider=self.name,
                model=request.model,
                request_id=request_id(headers),
                retryable=False,
            )
        reader = ItemReader(request, request_origin(self.name, API, request.model or ""))
        reader.response_id = body.get("id") or ""
        content = tuple(part for position, item in enumerate(items) for _, part in reader.parts(item, position))
        reason, raw_reason = stop_reason(
            body,
            called=any(isinstance(part, ToolCall) for part in content),
            refused=any(isinstance(part, RefusalContent) for part in content),
        )
        return AgentResponse(
            provider=self.name,
            model=body.get("model") or request.model or "",
            content=content,
            usage=read_usage(body, items),
            stop_reason=reason,
            raw_stop_reason=raw_reason,
            id=body.get("id") or None,
            request_id=request_id(headers),
            logprobs=read_logprobs(items),
            raw=body,
        )

    def decoder(self, headers: Mapping[str, str], request: AgentRequest) -> StreamDecoder:
        return ResponsesDecoder(self.name, headers, request, self._secrets)

    def encode_count(self, request: AgentRequest) -> WireRequest:
        """Encode a request for the number of its input tokens."""
        if not self.dialect.counts_tokens:
            raise errors.UnsupportedFeatureError(
                f"{self.name} does not count tokens.",
                field="provider",
                fix="Estimate them, or ask a provider that counts.",
                provider=self.name,
                model=request.model,
            )
        body, warnings = encode_body(request, self.name, self.dialect, self._foreign_thinking, count_tokens=True)
        url = f"{self._url}/input_tokens{self._query}"
        return WireRequest(url, self._headers, body, self.name, warnings)

    def decode_count(self, reply: Reply, request: AgentRequest) -> int:
        if reply.status >= 400:
            raise self.decode_error(reply, request)
        try:
            return int(parse_json(reply.body)["input_tokens"])
        except SHAPE_ERRORS as error:
            reason = f"the answer holds no count ({describe_malformed(error)})"
            raise self._protocol_error(reason, reply, request) from None
