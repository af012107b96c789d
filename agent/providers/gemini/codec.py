"""Codec for generateContent, including token counts by the vendor.

The model is part of the URL. A reply without candidates is a response only if it says why the prompt was rejected.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import takewhile
from typing import Any, Literal

from typing_extensions import override

from ... import errors
from ...engine.wire import Reply, WireRequest, parse_json
from ...types import AgentConfig, AgentRequest, AgentResponse, Origin, ProviderCapabilities, Role
from ..base import NO_ADDRESS, ApiAddress, StreamDecoder
from ..codec import CodecBase
from ..encoding import JsonDict, check_extra, dump_json, encode_fields, request_origin
from ..failures import error_from_details, read_error_details, request_id
from ..repair import ForeignThinking, repair
from .contents import ContentsEncoder
from .fields import FIELDS, GeminiContext
from .models import API, SCHEMA_DIALECT_NAME, features_of
from .names import tools_by_name
from .platform import COUNTED_KEYS, GEMINI_API, VERTEX, Platform, gemini_endpoint, is_token, vertex_endpoint
from .response import ResponseReader
from .stream import GeminiDecoder

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


CAPABILITIES = ProviderCapabilities(
    streaming=True,
    tools=True,
    structured_output=True,
    json_mode=True,
    vision=True,
    system_messages=True,
    native_schema_output=True,
    thinking=True,
    documents=True,
    audio=True,
    token_counting=True,
)

_ENDPOINTS = {"vertex": vertex_endpoint}
"""By provider name. The Gemini API serves all others."""


class GeminiCodec(CodecBase):
    """Codec for Gemini at one address.

    Args:
        address: Base URL and key. An empty `base_url` makes relative URLs, for an SDK client.
        headers: Sent with every request.
        name: The provider's name. Signatures are sent back only to the name and model that made them.
        foreign_thinking: Whether reasoning of other models is dropped, or sent as text.
        platform: The Gemini API or Vertex AI.
        token: Whether the key is an access token. By default, keys that begin with `ya29.` are.
    """

    api = API
    response_kind = "generateContent response"
    schema_dialect = SCHEMA_DIALECT_NAME

    def __init__(
        self,
        address: ApiAddress,
        headers: Mapping[str, str] | None = None,
        *,
        name: str = API,
        foreign_thinking: Literal["drop", "text"] = "drop",
        platform: Platform = GEMINI_API,
        token: bool | None = None,
    ) -> None:
        key = None if address.key is None else address.key.get_secret_value()
        sent: dict[str, str] = {}
        if key is not None:
            bearer = is_token(address) if token is None else token
            sent = {"authorization": f"Bearer {key}"} if bearer else {"x-goog-api-key": key}
        super().__init__(name, CAPABILITIES, {**sent, **(headers or {})}, () if key is None else (key,))
        self.platform = platform
        self._root = platform.root(address.base_url)
        self._foreign_thinking = foreign_thinking

    @classmethod
    def from_config(cls, config: AgentConfig, name: str) -> GeminiCodec:
        endpoint = _ENDPOINTS.get(name, gemini_endpoint)(config)
        return cls(
            endpoint.address,
            config.headers.reveal(),
            name=name,
            foreign_thinking=config.foreign_thinking,
            platform=endpoint.platform,
            token=endpoint.token,
        )

    def schema_with_tools(self, model: str) -> bool:
        """Whether a model takes an output schema together with tools."""
        return features_of(model).schema_with_tools

    @override
    def with_client(self, client: Any, headers: Mapping[str, str]) -> GeminiCodec:
        platform = VERTEX if getattr(client, "vertexai", False) else GEMINI_API
        return GeminiCodec(
            NO_ADDRESS, headers, name=self.name, foreign_thinking=self._foreign_thinking, platform=platform
        )

    def encode(self, request: AgentRequest, *, stream: bool) -> WireRequest:
        url = self._url(request, "streamGenerateContent?alt=sse" if stream else "generateContent")
        body, warnings = encode_body(request, self.name, self.platform, self._foreign_thinking)
        return WireRequest(url, self._headers, body, self.name, warnings)

    def _url(self, request: AgentRequest, method: str) -> str:
        if not request.model:
            raise errors.ConfigurationError(
                "No model is named.", field="model", fix='Name one: Agent("gemini:gemini-2.5-flash").'
            )
        return self.platform.url(self._root, request.model, method)

    def _origin(self, request: AgentRequest) -> Origin:
        return request_origin(self.name, API, request.model or "")

    @override
    def _read_response(self, body: Any, headers: Mapping[str, str], request: AgentRequest) -> AgentResponse:
        reader = ResponseReader(self._origin(request), tools_by_name(request), streaming=False)
        for chunk in body if isinstance(body, list) else (body,):
            complaint = read_error_details(chunk) if chunk.get("error") else None
            if complaint is not None:
                raise error_from_details(
                    complaint,
                    status=200,
                    headers=headers,
                    body=chunk,
                    provider=self.name,
                    model=request.model,
                    secrets=self._secrets,
                )
            reader.read_chunk(chunk)
        if not reader.complete:
            raise ValueError("it does not say how it ended")
        reader.finish()
        return reader.response(
            provider=self.name,
            model=request.model or "",
            content=reader.content,
            request_id=request_id(headers),
            raw=body,
        )

    def decoder(self, headers: Mapping[str, str], request: AgentRequest) -> StreamDecoder:
        return GeminiDecoder(self.name, self._origin(request), headers, request, self._secrets)

    def encode_count(self, request: AgentRequest) -> WireRequest:
        """Encode a request for the number of its tokens."""
        body, warnings = encode_count_body(request, self.name, self.platform, self._foreign_thinking)
        return WireRequest(self._url(request, "countTokens"), self._headers, body, self.name, warnings)

    def decode_count(self, reply: Reply, request: AgentRequest) -> int:
        try:
            return int(parse_json(reply.body)["totalTokens"])
        except (ValueError, KeyError, TypeError, OverflowError):
            raise self._protocol_error("the answer is not a count of tokens", reply, request) from None
