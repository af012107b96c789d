"""Codec for Converse, ConverseStream and CountTokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar
from urllib.parse import quote

from typing_extensions import override

from ... import errors
from ...engine.wire import Reply, WireRequest
from ...types import AgentConfig, AgentRequest, AgentResponse, ProviderCapabilities
from ..anthropic.conversation import ends_with_prefill, split_system
from ..anthropic.fields import SCHEMA_DIALECT
from ..base import ApiAddress, StreamDecoder
from ..codec import CodecBase
from ..encoding import JsonDict, check_extra, dump_json, encode_fields, request_origin
from ..failures import request_id
from ..repair import ForeignThinking, repair
from .credentials import Signer, resolve_endpoint
from .fields import (
    FIELDS,
    MERGED_KEYS,
    MODEL_FIELDS,
    PROMPT_FIELDS,
    ConverseContext,
    declare_called_tools,
    encode_thinking,
)
from .messages import MessageEncoder, place_cache_points
from .models import API, features_of, foundation_model
from .response import BlockReader, map_stop_reason, read_model, read_usage
from .stream import ConverseDecoder

_RESERVED_KEYS = ("messages", "modelId")
_COUNTED_KEYS = frozenset(("messages", "system", "toolConfig", MODEL_FIELDS))
"""Keys of the body that the endpoint for counting tokens accepts."""
_PROFILE_HINT = "on-demand throughput isn"
"""In errors for models that only inference profiles serve."""
_PROFILE_ADVICE = "Add a region prefix to the model, such as us.{model}, to use an inference profile."


def encode_body(
    request: AgentRequest,
    provider: str,
    foreign_thinking: ForeignThinking = "drop",
    *,
    count_tokens: bool = False,
) -> tuple[JsonDict, tuple[str, ...]]:
    """Return the body, and warnings about content that was dropped. Unsupported content raises an error."""
    check_extra(request, _RESERVED_KEYS)
    context = ConverseContext(request, request_origin(provider, API, request.model or ""))
    repaired, warnings = repair(request.to_messages(), context.origin, foreign_thinking)
    context.warn(*warnings)
    context.drop_all_extra(request.messages)
    system, messages = split_system(repaired, context)
    if not messages:
        raise errors.ConfigurationError("The conversation is empty.", field="messages", fix="Pass input= or messages.")
    if context.claude is not None and not context.claude.features.prefill and ends_with_prefill(messages):
        raise context.feature_error(
            f"{context.model} does not support a prefill: the last message is from the assistant.",
            field="messages",
            fix="End the conversation with a user message.",
        )
    encoder = MessageEncoder(context)
    context.body["messages"] = encoder.encode(messages)
    if system:
        check_extra(request, ("system",))
        context.body["system"] = encoder.encode_system(system)
    encode_thinking(context, messages)
    body = encode_fields(context, PROMPT_FIELDS if count_tokens else FIELDS)
    declare_called_tools(context)
    place_cache_points(context)
    for key, value in request.extra.items():
        merges = key in MERGED_KEYS and key in body and isinstance(value, Mapping)
        body[key] = {**body[key], **value} if merges else value
    if count_tokens:
        body = {"input": {"converse": {key: value for key, value in body.items() if key in _COUNTED_KEYS}}}
    return body, tuple(context.warnings)


def _capabilities(model: str) -> ProviderCapabilities:
    """Return the capabilities of a model. Only Claude's tokens can be counted."""
    features = features_of(model)
    return ProviderCapabilities(
        streaming=True,
        tools=True,
        structured_output=True,
        vision=True,
        system_messages=True,
        native_schema_output=features.native_schema,
        thinking=True,
        documents=True,
        audio=True,
        token_counting=features.thinking == "claude" and foundation_model(model) is not None,
    )


class BedrockCodec(CodecBase):
    """Codec for Bedrock at one address, for one model or several.

    Args:
        address: Base URL and API key. Without a key, `signer` signs requests.
        headers: Additional headers of every request.
        name: The provider's name.
        model: The model whose capabilities are reported.
        foreign_thinking: Drop reasoning of other models, or send it as text.
        signer: Signs requests with AWS credentials.
    """

    api = API
    response_kind = "Converse response"
    schema_dialect: ClassVar[str | None] = SCHEMA_DIALECT
    count_key: ClassVar[str] = "inputTokens"

    def __init__(
        self,
        address: ApiAddress,
        headers: Mapping[str, str] | None = None,
        *,
        name: str = API,
        model: str = "",
        foreign_thinking: ForeignThinking = "drop",
        signer: Signer | None = None,
    ) -> None:
        super().__init__(name, _capabilities(model), {**address.credentials(), **(headers or {})}, address.secrets)
        self._foreign_thinking = foreign_thinking
        self._root = address.base_url.rstrip("/")
        self._signer = signer
        self._own_secrets = self._secrets
        self.sign: Callable[[WireRequest], WireRequest] | None = None if signer is None else self._sign

    @classmethod
    def from_config(cls, config: AgentConfig, name: str = API) -> BedrockCodec:
        headers = config.headers.reveal()
        has_credentials = "authorization" in {header.lower() for header in headers}
        address, region = resolve_endpoint(config, signed_by_caller=has_credentials)
        return cls(
            address,
            headers,
            name=name,
            model=config.model,
            foreign_thinking=config.foreign_thinking,
            signer=None if has_credentials or address.key is not None else Signer(region),
        )

    def _sign(self, request: WireRequest) -> WireRequest:
        """Sign a request with AWS credentials, which errors must not quote."""
        assert self._signer is not None
        signed = self._signer.sign(request)
        self._secrets = (*self._own_secrets, *self._signer.secrets)
        return signed

    def encode(self, request: AgentRequest, *, stream: bool) -> WireRequest:
        body, warnings = encode_body(request, self.name, self._foreign_thinking)
        url = self._url(request.model, "converse-stream" if stream else "converse")
        return WireRequest(url, self._headers, dump_json(body), self.name, warnings)

    def encode_count(self, request: AgentRequest) -> WireRequest:
        body, warnings = encode_body(request, self.name, self._foreign_thinking, count_tokens=True)
        url = self._url(foundation_model(request.model or "") or request.model, "count-tokens")
        return WireRequest(url, self._headers, dump_json(body), self.name, warnings)

    def _url(self, model: str | None, operation: str) -> str:
        if not model:
            raise errors.ConfigurationError(
                "No model is set.", field="model", fix='Pass one: Agent("bedrock:us.amazon.nova-lite-v1:0").'
            )
        return f"{self._root}/model/{quote(model, safe='~')}/{operation}"

    @override
    def _read_response(self, body: dict[str, Any], headers: Mapping[str, str], request: AgentRequest) -> AgentResponse:
        reader = BlockReader(self.name, request)
        message = body["output"]["message"]
        parts = [reader.read_part(block) for block in message["content"]]
        reason: str = body["stopReason"]
        return AgentResponse(
            provider=self.name,
            model=read_model(body, request),
            content=[part for part in parts if part is not None],
            usage=read_usage(body.get("usage")),
            stop_reason=map_stop_reason(reason),
            raw_stop_reason=reason,
            request_id=request_id(headers),
            raw=body,
        )

    @override
    def decode_error(self, reply: Reply, request: AgentRequest) -> errors.AgentError:
        error = super().decode_error(reply, request)
        if _PROFILE_HINT in error.message:
            error.message = f"{error.message} {_PROFILE_ADVICE.format(model=request.model)}"
        return error

    def decoder(self, headers: Mapping[str, str], request: AgentRequest) -> StreamDecoder:
        return ConverseDecoder(self.name, headers, request, self._secrets)
