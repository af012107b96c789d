"""The codec: requests to bytes, answers to responses, failures to errors.

Strict where something would be lost: a response that failed or is not finished is never an answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal
from urllib.parse import quote

from typing_extensions import override

from ... import errors
from ...types import AgentConfig, AgentRequest, AgentResponse, Origin, RefusalContent, ToolCall
from ...wire import Reply, WireRequest, parse_json
from ..base import StreamDecoder
from ..codec import SHAPE_ERRORS, CodecBase
from ..credentials import NOWHERE, Address, resolve
from ..failures import request_id
from ..writing import home_of
from .answer import ItemReader, read_logprobs, read_usage, stop_reason
from .body import BodyWriter
from .stream import ResponsesDecoder
from .traits import API, DIALECT, OPENAI, Traits

BASE_URL = "https://api.openai.com/v1"


class ResponsesCodec(CodecBase):
    """One vendor that speaks the Responses API, at one address."""

    api = API
    response_kind = "response"
    schema_dialect = DIALECT

    def __init__(
        self,
        address: Address,
        headers: Mapping[str, str] | None = None,
        *,
        name: str = API,
        foreign_thinking: Literal["drop", "text"] = "drop",
        traits: Traits = OPENAI,
    ) -> None:
        key = None if address.key is None else address.key.get_secret_value()
        sent: dict[str, str] = {}
        if key is not None:
            sent[traits.key_header] = f"Bearer {key}" if traits.key_header == "authorization" else key
        super().__init__(name, traits.capabilities, {**sent, **(headers or {})}, () if key is None else (key,))
        self.traits = traits
        self._foreign_thinking = foreign_thinking
        self._url = f"{address.base_url}/responses"
        self._query = "" if traits.api_version is None else f"?api-version={quote(traits.api_version)}"

    @classmethod
    def from_config(
        cls,
        config: AgentConfig,
        *,
        name: str = API,
        traits: Traits = OPENAI,
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
        return cls(address, config.headers.reveal(), name=name, foreign_thinking=config.foreign_thinking, traits=traits)

    def _origin(self, request: AgentRequest) -> Origin:
        return home_of(self.name, API, request.model or "")

    def _writer(self, request: AgentRequest) -> BodyWriter:
        return BodyWriter(request, self._origin(request), self.traits, self._foreign_thinking)

    @override
    def carried_by(self, client: Any, headers: Mapping[str, str]) -> ResponsesCodec:
        traits = replace(self.traits, api_version=None)  # which the client adds
        return ResponsesCodec(NOWHERE, headers, name=self.name, foreign_thinking=self._foreign_thinking, traits=traits)

    def encode(self, request: AgentRequest, *, stream: bool) -> WireRequest:
        writer = self._writer(request)
        body = writer.body(stream=stream)
        return WireRequest(self._url + self._query, self._headers, body, self.name, writer.warnings)

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
        reader = ItemReader(request, self._origin(request))
        reader.response_id = body.get("id") or ""
        content = tuple(part for place, item in enumerate(items) for _, part in reader.parts(item, place))
        reason, raw_reason = stop_reason(
            body,
            called=any(isinstance(part, ToolCall) for part in content),
            refused=any(isinstance(part, RefusalContent) for part in content),
        )
        return AgentResponse.of(
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
        """Asks how many tokens the request has."""
        if not self.traits.counts_tokens:
            raise errors.UnsupportedFeatureError(
                f"{self.name} does not count tokens.",
                field="provider",
                fix="Estimate them, or ask a provider that counts.",
                provider=self.name,
                model=request.model,
            )
        writer = self._writer(request)
        url = f"{self._url}/input_tokens{self._query}"
        return WireRequest(url, self._headers, writer.count_body(), self.name, writer.warnings)

    def decode_count(self, reply: Reply, request: AgentRequest) -> int:
        if reply.status >= 400:
            raise self.decode_error(reply, request)
        try:
            return int(parse_json(reply.body)["input_tokens"])
        except SHAPE_ERRORS as error:
            raise self._protocol_error(f"the answer holds no count ({type(error).__name__})", reply, request) from None
