"""Codec for Chat Completions, and the address of the endpoint.

Replies without choices, errors with status 200 and incomplete streams raise errors.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import quote, urlsplit

from typing_extensions import override

from ... import errors
from ...engine.wire import WireRequest
from ...types import AgentConfig, AgentRequest, AgentResponse
from ..base import NO_ADDRESS, ApiAddress, StreamDecoder, first_variable, resolve_address, with_base_url
from ..codec import CodecBase
from ..encoding import check_extra, dump_json, encode_fields, request_origin
from ..failures import request_id
from ..repair import ForeignThinking, repair
from .dialect import API, OPENAI, Dialect
from .fields import FIELDS, SCHEMA_DIALECT, ChatContext
from .messages import MessageEncoder
from .response import MessageReader, read_usage
from .stream import ChatDecoder

if TYPE_CHECKING:
    from .batches import OpenAIBatches

_OPENAI_PATHS = (
    (r"(?i)(?:[a-z0-9-]+\.)?api\.openai\.com", "/v1"),
    (r"(?i).*\.azure\.com", "/openai/v1"),
)
"""Path of OpenAI's APIs by host."""
_VARIABLE = re.compile(r"\{([A-Z_]+)\}")
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}\S*")


def openai_api_path(base_url: str) -> str | None:
    """Path of OpenAI's APIs at the host of a base_url; None at other vendors' hosts."""
    host = urlsplit(base_url).hostname or ""
    return next((path for pattern, path in _OPENAI_PATHS if re.fullmatch(pattern, host)), None)


def with_openai_base_url(config: AgentConfig) -> AgentConfig:
    """Set the base_url from the environment, and complete one that is only a host, as portals show it."""
    base_url = config.base_url or first_variable(OPENAI.base_url_variables)
    if base_url is None:
        return config
    config = with_base_url(config, base_url)
    path = None if urlsplit(base_url).path.strip("/") else openai_api_path(base_url)
    return config if path is None else config.with_overrides(base_url=base_url.rstrip("/") + path)


def find_address(config: AgentConfig, dialect: Dialect) -> tuple[ApiAddress, str]:
    """Return key and base URL, and the endpoint's URL, which may contain {model}."""
    base_url = config.base_url or first_variable(dialect.base_url_variables) or _expand_base_url(dialect, config)
    if base_url is not None:
        config = with_base_url(config, base_url.rstrip("/"))
    address = resolve_address(
        config, default_base_url=None, key_variables=dialect.key_variables, key_required=dialect.key_required
    )
    base_url = address.base_url
    if not urlsplit(base_url).path:
        version = os.environ.get(dialect.version_variable, "").strip() if dialect.version_variable else ""
        if _DATE.fullmatch(version):
            return address, base_url + dialect.dated_path.replace("{version}", quote(version, safe=""))
        base_url += dialect.resource_path
    return address, f"{base_url}/chat/completions"


def _expand_base_url(dialect: Dialect, config: AgentConfig) -> str | None:
    """The vendor's base URL with environment variables filled in."""
    if dialect.base_url is None:
        return None
    missing = [name for name in _VARIABLE.findall(dialect.base_url) if not os.environ.get(name, "").strip()]
    if missing:
        example = _VARIABLE.sub("…", dialect.base_url) + dialect.resource_path
        raise errors.ConfigurationError(
            f"The provider {config.provider!r} has another base_url for every customer, and yours is not set.",
            field="base_url",
            fix=f"Set the environment variable {missing[0]}, or pass base_url=, such as {example}",
        )

    def expand(variable: re.Match[str]) -> str:
        text = os.environ[variable[1]].strip().rstrip("/")
        return text if variable.start() == 0 else re.sub(r"^https?://", "", text)

    return _VARIABLE.sub(expand, dialect.base_url)


_RESERVED_KEYS = ("messages", "model", "stream")


def encode_body(
    request: AgentRequest, dialect: Dialect, *, stream: bool, foreign_thinking: ForeignThinking = "drop"
) -> tuple[bytes, tuple[str, ...]]:
    """Return the body, and warnings about everything left out of it.

    Raises:
        UnsupportedFeatureError: The API does not support a content part or a field.
    """
    check_extra(request, _RESERVED_KEYS)
    origin = request_origin(dialect.name, API, request.model or "")
    messages, repairs = repair(request.to_messages(), origin, foreign_thinking)
    context = ChatContext(request, origin, dialect=dialect)
    context.warn(*repairs)
    body = encode_fields(context, FIELDS)
    if stream:
        body["stream"] = True
        if dialect.stream_usage:
            body["stream_options"] = {"include_usage": True}
    body.update(request.extra)
    body["messages"] = MessageEncoder(context).encode(messages)
    return dump_json(body), tuple(context.warnings)


class ChatCodec(CodecBase):
    """Codec for one vendor of Chat Completions at one address."""

    api = API
    response_kind = "chat completion"
    schema_dialect: ClassVar[str | None] = SCHEMA_DIALECT

    def __init__(
        self,
        dialect: Dialect,
        address: ApiAddress,
        headers: Mapping[str, str] | None = None,
        *,
        url: str | None = None,
        foreign_thinking: ForeignThinking = "drop",
    ) -> None:
        all_headers = {**address.credentials(dialect.key_header, dialect.key_prefix), **(headers or {})}
        capabilities = dialect.capabilities.model_copy(update={"batch": dialect.batch is not None})
        super().__init__(dialect.name, capabilities, all_headers, address.secrets)
        self.dialect = dialect
        self.idempotency: bool = dialect.idempotency
        self._url = url or f"{address.base_url}/chat/completions"
        self._foreign_thinking = foreign_thinking

    @classmethod
    def from_config(cls, config: AgentConfig, dialect: Dialect) -> ChatCodec:
        address, url = find_address(config, dialect)
        return cls(dialect, address, config.headers.reveal(), url=url, foreign_thinking=config.foreign_thinking)

    @override
    def with_client(self, client: Any, headers: Mapping[str, str]) -> ChatCodec:
        return ChatCodec(self.dialect, NO_ADDRESS, headers, foreign_thinking=self._foreign_thinking)

    def encode(self, request: AgentRequest, *, stream: bool) -> WireRequest:
        body, warnings = encode_body(request, self.dialect, stream=stream, foreign_thinking=self._foreign_thinking)
        url = self._url
        if "{model}" in url:
            url = url.replace("{model}", quote(request.model or "", safe=""))
        return WireRequest(url, self._headers, body, self.name, warnings)

    @override
    def _find_error(self, body: Any) -> Any:
        """Find the error in the body, or in its choice, where gateways report upstream errors."""
        if not isinstance(body, dict) or body.get("error"):
            return body if isinstance(body, dict) else None
        choices = body.get("choices")
        first = choices[0] if isinstance(choices, list) and choices else None
        return first if isinstance(first, dict) and first.get("error") else None

    @override
    def _read_response(self, body: dict[str, Any], headers: Mapping[str, str], request: AgentRequest) -> AgentResponse:
        model = body.get("model") or request.model or ""
        first, *others = body["choices"]
        alternatives: list[AgentResponse] = []
        if others:
            first, *others = sorted(body["choices"], key=lambda choice: choice.get("index") or 0)
            head = {"id": body.get("id")}
            for choice in others:
                fields = MessageReader(self.dialect, request, model).read_choice(choice, head)
                alternatives.append(AgentResponse(provider=self.name, model=model, **fields))
        return AgentResponse(
            provider=self.name,
            model=model,
            usage=read_usage(body.get("usage") or first.get("usage")),
            id=body.get("id") or None,
            request_id=request_id(headers),
            choices=alternatives,
            raw=body,
            **MessageReader(self.dialect, request, model).read_choice(first, body),
        )

    def decoder(self, headers: Mapping[str, str], request: AgentRequest) -> StreamDecoder:
        return ChatDecoder(self.dialect, headers, request, self._secrets)

    def batch_api(self) -> OpenAIBatches:
        from ..batches import make_unsupported_error  # lazy: only batch jobs need it
        from .batches import OpenAIBatches  # lazy: only batch jobs need it

        if self.dialect.batch is None:
            raise make_unsupported_error(self.name, "its Batch API is unknown", "Use batch(), or another provider.")
        url, mark, query = self._url.partition("?")
        root = url.removesuffix("/chat/completions")
        resource = root.removesuffix("/deployments/{model}")
        endpoint = "/v1/chat/completions" if resource == root else "/chat/completions"
        return OpenAIBatches(self.dialect.batch, resource, endpoint, self._headers, mark + query)
