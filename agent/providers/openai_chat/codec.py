"""Codec for Chat Completions.

A reply without choices, an error with status 200 and a stream without its end are errors, never responses.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any, ClassVar, Literal
from urllib.parse import quote, urlsplit

from typing_extensions import override

from ... import errors
from ...engine.wire import WireRequest
from ...types import AgentConfig, AgentRequest, AgentResponse, RefusalContent, ToolCall
from ...types._base import validate_with
from ..base import NO_ADDRESS, ApiAddress, StreamDecoder, resolve_address
from ..codec import CodecBase
from ..failures import request_id
from .dialect import API, OPENAI, Dialect
from .fields import SCHEMA_DIALECT
from .messages import encode_body
from .response import MessageReader, finish_reason, read_logprobs, read_usage, stop_reason
from .stream import ChatDecoder

_PATHS_AT_OPENAI = (
    (re.compile(r"(?:[a-z0-9-]+\.)?api\.openai\.com", re.I), "/v1"),
    (re.compile(r".*\.azure\.com", re.I), "/openai/v1"),
)
"""Hosts where OpenAI's models are at home, and where their APIs are there."""
_VARIABLE = re.compile(r"\{([A-Z_]+)\}")
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}\S*")


def openai_api_path(base_url: str) -> str | None:
    """Where OpenAI's APIs are below an address that names only the host; None if the host is somebody else's."""
    host = urlsplit(base_url).hostname or ""
    return next((path for pattern, path in _PATHS_AT_OPENAI if pattern.fullmatch(host)), None)


def with_openai_base_url(config: AgentConfig) -> AgentConfig:
    """The configuration with the address told for OpenAI, if one is. Its host alone will do: portals show no more."""
    base_url = config.base_url or _told(OPENAI.base_url_variables)
    if base_url is None:
        return config
    config = _at(config, base_url)
    path = None if urlsplit(base_url).path.strip("/") else openai_api_path(base_url)
    return config if path is None else config.with_overrides(base_url=base_url.rstrip("/") + path)


def find_address(config: AgentConfig, dialect: Dialect) -> tuple[ApiAddress, str]:
    """Key and base address, and the URL of the endpoint, in which {model} may stand for the model's name."""
    base_url = config.base_url or _told(dialect.base_url_variables) or _filled(dialect, config.provider)
    if base_url is not None:
        config = _at(config, base_url.rstrip("/"))
    address = resolve_address(
        config,
        default_base_url=None,
        key_variables=dialect.key_variables,
        key_required=dialect.key_required,
    )
    return address, _endpoint(address.base_url, dialect)


def _told(variables: tuple[str, ...]) -> str | None:
    return next((value for name in variables if (value := os.environ.get(name, "").strip())), None)


def _at(config: AgentConfig, base_url: str) -> AgentConfig:
    """What the environment says is checked as if it had been passed in."""
    return validate_with(lambda: config.with_overrides(base_url=base_url))


def _filled(dialect: Dialect, provider: str) -> str | None:
    """The vendor's usual address, with the customer's part of it."""
    if dialect.base_url is None:
        return None
    missing = [name for name in _VARIABLE.findall(dialect.base_url) if not os.environ.get(name, "").strip()]
    if missing:
        example = _VARIABLE.sub("…", dialect.base_url) + dialect.resource_path
        raise errors.ConfigurationError(
            f"The address of {provider!r} is different for every customer, and is not known.",
            field="base_url",
            fix=f"Set the environment variable {missing[0]}, or pass base_url=, such as {example}",
        )

    def value(found: re.Match[str]) -> str:
        text = os.environ[found[1]].strip().rstrip("/")
        return text if found.start() == 0 else re.sub(r"^https?://", "", text)

    return _VARIABLE.sub(value, dialect.base_url)


def _endpoint(base_url: str, dialect: Dialect) -> str:
    if not urlsplit(base_url).path:
        version = os.environ.get(dialect.version_variable, "").strip() if dialect.version_variable else ""
        if _DATE.fullmatch(version):
            return base_url + dialect.dated_path.replace("{version}", quote(version, safe=""))
        base_url += dialect.resource_path
    return f"{base_url}/chat/completions"


def endpoint_of(template: str, model: str) -> str:
    return template.replace("{model}", quote(model, safe="")) if "{model}" in template else template


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
    def with_client(self, client: Any, headers: Mapping[str, str]) -> ChatCodec:
        return ChatCodec(self.dialect, NO_ADDRESS, headers, foreign_thinking=self._foreign_thinking)

    def encode(self, request: AgentRequest, *, stream: bool) -> WireRequest:
        body, warnings = encode_body(request, self.dialect, stream=stream, foreign_thinking=self._foreign_thinking)
        return WireRequest(endpoint_of(self._url, request.model or ""), self._headers, body, self.name, warnings)

    @override
    def _find_error(self, body: Any) -> Any:
        """Gateways report errors of the vendor behind them in the choice."""
        found = super()._find_error(body)
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
