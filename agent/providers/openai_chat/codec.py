"""The codec: requests to bytes, answers to responses, failures to errors.

Strict where something would be lost: an answer without choices, an error inside a success, or a stream without its end
is never a response.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from typing_extensions import override

from ... import errors
from ...types import AgentConfig, AgentRequest, AgentResponse, Origin, RefusalContent, ToolCall
from ...wire import Reply, WireRequest, parse_json
from ..base import StreamDecoder
from ..credentials import Address, resolve
from ..failures import failure, read_complaint, reply_failure, request_id, shown
from .answer import read_message, read_usage, stop_reason
from .body import encode_body
from .dialect import API, Dialect
from .stream import ChatDecoder


class ChatCodec:
    """One vendor that speaks Chat Completions, at one address."""

    api = API
    transport = "http"

    def __init__(self, dialect: Dialect, address: Address, headers: Mapping[str, str] | None = None) -> None:
        self.dialect = dialect
        self.name = dialect.name
        self.capabilities = dialect.capabilities
        self._url = f"{address.base_url}/chat/completions"
        self._secrets = () if address.key is None else (address.key.get_secret_value(),)
        sent = {"content-type": "application/json", "accept": "*/*", "user-agent": "agent-llm-router"}
        if address.key is not None:
            sent["authorization"] = f"Bearer {address.key.get_secret_value()}"
        sent.update({name.lower(): value for name, value in (headers or {}).items()})
        self._headers = tuple((name.encode("ascii"), value.encode("latin-1")) for name, value in sent.items())

    @classmethod
    def from_config(cls, config: AgentConfig, dialect: Dialect) -> ChatCodec:
        address = resolve(
            config,
            default_base_url=dialect.base_url,
            key_variables=dialect.key_variables,
            base_url_variables=dialect.base_url_variables,
            key_required=dialect.key_required,
        )
        return cls(dialect, address, config.headers)

    @override
    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    def encode(self, request: AgentRequest, *, stream: bool) -> WireRequest:
        body, warnings = encode_body(request, self.dialect, stream=stream)
        return WireRequest(self._url, self._headers, body, self.name, warnings)

    def decode(self, reply: Reply, request: AgentRequest) -> AgentResponse:
        # Causes are cut off here: their frames hold the vendor's words, which may quote the key.
        try:
            body = parse_json(reply.body)
        except ValueError as error:
            raise self._broken(f"the answer is not JSON: {error}", reply, request) from None
        complaint = read_complaint(body) if isinstance(body, dict) and body.get("error") else None
        if complaint is not None:
            raise failure(
                complaint,
                status=reply.status,
                headers=reply.headers,
                body=body,
                data=reply.body,
                provider=self.name,
                model=request.model,
                secrets=self._secrets,
            )
        try:
            return self._read_answer(body, reply.headers, request)
        except (KeyError, TypeError, IndexError, AttributeError, ValueError) as error:
            reason = f"the answer is not a chat completion ({type(error).__name__})"
            raise self._broken(reason, reply, request) from None

    def _read_answer(self, body: dict[str, Any], headers: Mapping[str, str], request: AgentRequest) -> AgentResponse:
        choice = body["choices"][0]
        model = body.get("model") or request.model or ""
        message = choice["message"]
        if message is None and "finish_reason" not in choice:
            raise TypeError("a choice without a message")
        content = read_message(message or {}, Origin(provider=self.name, api=API, model=model), body.get("id") or "")
        reason = choice.get("finish_reason")
        return AgentResponse(
            provider=self.name,
            model=model,
            content=content,
            usage=read_usage(body.get("usage")),
            stop_reason=stop_reason(
                reason,
                called=any(isinstance(part, ToolCall) for part in content),
                refused=any(isinstance(part, RefusalContent) for part in content),
            ),
            raw_stop_reason=reason,
            id=body.get("id") or None,
            request_id=request_id(headers),
            raw=body,
        )

    def decode_error(self, reply: Reply, request: AgentRequest) -> errors.AgentError:
        return reply_failure(reply, provider=self.name, model=request.model, secrets=self._secrets)

    def decoder(self, headers: Mapping[str, str], request: AgentRequest) -> StreamDecoder:
        return ChatDecoder(self.dialect, headers, request, self._secrets)

    def _broken(self, message: str, reply: Reply, request: AgentRequest) -> errors.ProtocolError:
        return errors.ProtocolError(
            f"{self.name}: {message}",
            provider=self.name,
            model=request.model,
            request_id=request_id(reply.headers),
            body=shown(reply.body, self._secrets),
        )
