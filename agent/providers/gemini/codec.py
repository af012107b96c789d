"""Codec for generateContent and for its endpoint that counts tokens.

There are two platforms:

* **Gemini API** (`gemini`): a key in `api_key`, GEMINI_API_KEY or GOOGLE_API_KEY. `base_url` may end in a version.
* **Vertex AI** (`vertex`) with an access token: in `api_key` if it begins with `ya29.`, in GOOGLE_CLOUD_ACCESS_TOKEN,
  or in an `authorization` header. Project and location are part of `base_url` (…/projects/P/locations/L), or come from
  GOOGLE_CLOUD_PROJECT and GOOGLE_CLOUD_LOCATION; the default location is "global".
* **Vertex AI in express mode**: any other key, in `api_key` or GOOGLE_API_KEY, without project and location.

Keys are sent in a header, never in the URL. Tokens are not renewed; for that, pass the official SDK's client.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from itertools import takewhile
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import urlsplit

from typing_extensions import override

from ... import errors
from ...engine.wire import WireRequest
from ...types import AgentConfig, AgentRequest, AgentResponse, Origin, Role
from ..base import NO_ADDRESS, ApiAddress, StreamDecoder, make_capabilities, resolve_address
from ..codec import CodecBase
from ..encoding import check_extra, dump_json, encode_fields, request_origin
from ..failures import request_id
from ..repair import ForeignThinking, repair
from .fields import FIELDS, GeminiContext, check_cache_hints, conflict_with_cache, tools_by_name
from .messages import MessageEncoder
from .models import (
    API,
    COUNTED_KEYS,
    GEMINI_API,
    LOCATION_IN_URL,
    SCHEMA_DIALECT_NAME,
    VERTEX,
    Platform,
    features_of,
)
from .stream import GeminiDecoder, ResponseReader

if TYPE_CHECKING:
    from ..batches import BatchApi

_RESERVED_KEYS = ("contents", "model")
_MERGED_KEYS = ("generationConfig", "toolConfig")
"""Objects of the body that `extra` may add keys to."""


def encode_body(
    request: AgentRequest,
    provider: str,
    platform: Platform,
    foreign_thinking: ForeignThinking = "drop",
    *,
    count_tokens: bool = False,
) -> tuple[bytes, tuple[str, ...]]:
    """Return the body, and warnings about content that was dropped. Unsupported content raises an error."""
    check_extra(request, _RESERVED_KEYS)
    model = request.model or ""
    origin = request_origin(provider, API, model)
    messages, repairs = repair(request.to_messages(), origin, foreign_thinking, assistant_media=True)
    context = GeminiContext(request, origin, platform=platform, features=features_of(model))
    context.warn(*repairs)
    check_cache_hints(context, messages)
    context.drop_all_extra(request.messages)
    system = Role.SYSTEM
    leading = list(takewhile(lambda message: message.role is system, messages))
    encoder = MessageEncoder(context)
    contents = encoder.encode(messages[len(leading) :])
    if not contents:
        raise errors.ConfigurationError(
            "The conversation is empty, or has only system messages.",
            field="messages",
            fix="Pass input= or a user's message.",
        )
    context.body["contents"] = contents
    instructions = encoder.encode_instructions(leading)
    if instructions:
        check_extra(request, ("systemInstruction",))
        if request.cached_content is not None:
            raise conflict_with_cache(context, "system prompt")
        context.body["systemInstruction"] = {"parts": instructions}
    body = encode_fields(context, FIELDS)
    for key, value in request.extra.items():
        merges = key in _MERGED_KEYS and key in body and isinstance(value, Mapping)
        body[key] = {**body[key], **value} if merges else value
    if count_tokens and platform.wraps_counted:
        body = {"generateContentRequest": {"model": platform.path(model, "").removesuffix(":"), **body}}
    elif count_tokens:
        body = {key: value for key, value in body.items() if key in COUNTED_KEYS}
    return dump_json(body), tuple(context.warnings)


CAPABILITIES = make_capabilities(system_messages=True, documents=True, audio=True, token_counting=True)


# Addresses and credentials.

TOKEN_VARIABLE = "GOOGLE_CLOUD_ACCESS_TOKEN"  # noqa: S105  # the name of a variable
_TOKEN_PREFIX = "ya29."  # noqa: S105  # of access tokens
_PLAIN_NAME = re.compile(r"[a-zA-Z0-9:._-]+")
_MULTI_REGIONS = ("us", "eu")


def _resolve_gemini(config: AgentConfig) -> ApiAddress:
    credentials = _find_credentials(config.headers)
    return resolve_address(
        config,
        default_base_url="https://generativelanguage.googleapis.com",
        key_variables=() if credentials else ("GEMINI_API_KEY", "GOOGLE_API_KEY"),
        base_url_variables=("GOOGLE_GEMINI_BASE_URL",),
        key_required=not credentials,
    )


def _resolve_vertex(config: AgentConfig) -> tuple[ApiAddress, bool]:
    """Return the address, and whether the key is an access token."""
    location = _read_environment("GOOGLE_CLOUD_LOCATION")
    credentials = _find_credentials(config.headers)
    if config.api_key is None:
        token = "authorization" in credentials or (not credentials and bool(os.environ.get(TOKEN_VARIABLE, "").strip()))
    else:
        token = config.api_key.get_secret_value().startswith(_TOKEN_PREFIX)
    address = resolve_address(
        config,
        default_base_url=_vertex_host(location) if token else _vertex_host("global"),
        key_variables=() if credentials else (TOKEN_VARIABLE, "GOOGLE_API_KEY"),
        base_url_variables=("GOOGLE_VERTEX_BASE_URL",),
        key_required=not credentials,
    )
    root = VERTEX.root(address.base_url)
    if token and not LOCATION_IN_URL.search(root):
        project = _read_environment("GOOGLE_CLOUD_PROJECT")
        if project is None:
            raise errors.ConfigurationError(
                "Vertex AI requires a project when the key is an access token.",
                field="base_url",
                fix="Set GOOGLE_CLOUD_PROJECT (and GOOGLE_CLOUD_LOCATION), or pass "
                "base_url='https://LOCATION-aiplatform.googleapis.com/v1/projects/PROJECT/locations/LOCATION'.",
            )
        root = f"{root}/projects/{project}/locations/{_find_location(root) or location or 'global'}"
    return ApiAddress(root, address.key), token


def _is_token(address: ApiAddress) -> bool:
    return address.key is not None and address.key.get_secret_value().startswith(_TOKEN_PREFIX)


def _find_credentials(headers: Mapping[str, str]) -> set[str]:
    return {name.lower() for name in headers} & {"authorization", "x-goog-api-key"}


def _vertex_host(location: str | None) -> str:
    if location is None or location == "global":
        return "https://aiplatform.googleapis.com"
    if location in _MULTI_REGIONS:
        return f"https://aiplatform.{location}.rep.googleapis.com"
    return f"https://{location}-aiplatform.googleapis.com"


def _find_location(root: str) -> str | None:
    """Return the location in the host name."""
    match = re.match(r"([a-z0-9-]+)-aiplatform\.|aiplatform\.(us|eu)\.rep\.", urlsplit(root).hostname or "")
    return (match[1] or match[2]) if match else None


def _read_environment(variable: str) -> str | None:
    """Return the value of a variable that becomes part of the URL."""
    value = os.environ.get(variable, "").strip()
    if value and not _PLAIN_NAME.fullmatch(value):
        raise errors.ConfigurationError(
            f"{variable} has characters that are not valid in a URL.",
            field="base_url",
            fix=f"Set {variable} to a plain name, such as my-project or us-central1.",
        )
    return value or None


class GeminiCodec(CodecBase):
    """Codec for Gemini at one address.

    Args:
        address: Base URL and key. An empty `base_url` makes relative URLs, for an SDK client.
        headers: Additional headers of every request.
        name: The provider's name. Signatures are only returned to the provider and model that issued them.
        foreign_thinking: Drop reasoning of other models, or send it as text.
        platform: The Gemini API or Vertex AI.
        token: Whether the key is an access token; by default, if it begins with `ya29.`.
    """

    api = API
    response_kind = "generateContent response"
    schema_dialect: ClassVar[str | None] = SCHEMA_DIALECT_NAME
    count_key: ClassVar[str] = "totalTokens"

    def __init__(
        self,
        address: ApiAddress,
        headers: Mapping[str, str] | None = None,
        *,
        name: str = API,
        foreign_thinking: ForeignThinking = "drop",
        platform: Platform = GEMINI_API,
        token: bool | None = None,
    ) -> None:
        self._token = _is_token(address) if token is None else token
        sent = address.credentials() if self._token else address.credentials("x-goog-api-key", prefix="")
        capabilities = CAPABILITIES.model_copy(update={"batch": platform is GEMINI_API or self._token})
        super().__init__(name, capabilities, {**sent, **(headers or {})}, address.secrets)
        self.platform = platform
        self._root = platform.root(address.base_url)
        self._foreign_thinking = foreign_thinking

    @classmethod
    def from_config(cls, config: AgentConfig, name: str) -> GeminiCodec:
        headers, foreign_thinking = config.headers.reveal(), config.foreign_thinking
        if name != "vertex":
            return cls(_resolve_gemini(config), headers, name=name, foreign_thinking=foreign_thinking)
        address, token = _resolve_vertex(config)
        return cls(address, headers, name=name, foreign_thinking=foreign_thinking, platform=VERTEX, token=token)

    def schema_with_tools(self, model: str) -> bool:
        """Whether a model supports an output schema together with tools."""
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
                "No model is set.", field="model", fix='Pass one: Agent("gemini:gemini-2.5-flash").'
            )
        return self.platform.url(self._root, request.model, method)

    def _origin(self, request: AgentRequest) -> Origin:
        return request_origin(self.name, API, request.model or "")

    @override
    def _find_error(self, body: Any) -> Any:
        chunks = body if isinstance(body, list) else (body,)
        return next((chunk for chunk in chunks if isinstance(chunk, dict) and chunk.get("error")), None)

    @override
    def _read_response(self, body: Any, headers: Mapping[str, str], request: AgentRequest) -> AgentResponse:
        reader = ResponseReader(self._origin(request), tools_by_name(request), streaming=False)
        for chunk in body if isinstance(body, list) else (body,):
            reader.read_chunk(chunk)
        if not reader.complete:
            raise ValueError("it has no finish reason")
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
        body, warnings = encode_body(request, self.name, self.platform, self._foreign_thinking, count_tokens=True)
        return WireRequest(self._url(request, "countTokens"), self._headers, body, self.name, warnings)

    def batch_api(self) -> BatchApi:
        from ..batches import make_unsupported_error  # lazy: only batch jobs need it
        from .batches import GeminiBatches, VertexBatches  # lazy: only batch jobs need it

        if self.platform is GEMINI_API:
            return GeminiBatches(self._root, self._headers)
        if not self._token:
            raise make_unsupported_error(
                self.name,
                "Vertex AI in express mode has no batches",
                "Use an access token and a project, or the provider gemini, which has the same models.",
            )
        return VertexBatches(self._root, self._headers)
