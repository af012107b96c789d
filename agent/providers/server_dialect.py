"""The server side of a wire format: decode requests, encode responses, streams and errors.

A codec is the client side. Each wire format has a `ServerDialect` in its module `server`, for the scripted servers of
`agent.testing` and for gateways.

Request fields with a counterpart in `AgentRequest` are decoded. Those in `BANNED` are rejected, because they would
change the address or the credentials of a request. All others are in `AgentRequest.extra`, so that new vendor fields
work at once; `extra` is valid only for the same wire format, and a gateway must drop it for others.
"""

from __future__ import annotations

import base64
import binascii
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol, TypeAlias
from uuid import uuid4

from pydantic_core import to_json

from .. import errors
from ..engine.wire import parse_json
from ..types import (
    AgentRequest,
    AgentResponse,
    BuiltinTool,
    DocumentContent,
    ImageContent,
    Message,
    Part,
    Role,
    StreamEvent,
    TextContent,
    ThinkingLevel,
    ToolCall,
    ToolResult,
    ToolSpec,
    Usage,
)
from ..types._base import validate_with

Endpoint: TypeAlias = Literal["generate", "count"]


@dataclass(frozen=True, slots=True)
class InboundRequest:
    """A request that a server received."""

    request: AgentRequest
    model: str
    stream: bool = False
    warnings: tuple[str, ...] = ()
    """Warnings about everything left out of `request`."""
    unsupported: tuple[str, ...] = ()
    """Fields for unsupported features, such as several choices or stored responses.

    They are kept in `request.extra`. A server for real clients rejects such a request.
    """
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings for the response, such as whether a stream ends with a usage chunk."""
    id: str = field(default_factory=lambda: uuid4().hex[:24])
    """Id of a response that has none."""
    created: int = 0
    """Time of arrival in seconds since the epoch, set by the server."""


class EventEncoder(Protocol):
    """Encoder of one stream. It writes nothing before the first event, so early errors can set the status."""

    def encode_event(self, event: StreamEvent) -> bytes:
        """Encode one event, as no bytes if the wire format has no counterpart.

        Raises:
            ProtocolError: The event is a `restart`, which no wire format can express.
        """
        ...

    def end(self, response: AgentResponse) -> bytes:
        """Encode the end of a stream, with the response that its events add up to."""
        ...

    def fail(self, error: errors.AgentError) -> bytes:
        """Encode the error of an incomplete stream, without a terminal event."""
        ...

    def ping(self) -> bytes:
        """Keep-alive bytes without meaning."""
        ...


class ServerDialect(Protocol):
    """The server side of one wire format."""

    @property
    def api(self) -> str:
        """The name of the wire format, as in `Provider.api`."""
        ...

    @property
    def signature_field(self) -> str | None:
        """The field of `ThinkingContent` for signatures of this wire format, if it has any."""
        ...

    @property
    def signs_whole_parts(self) -> bool:
        """Whether signatures are on complete parts, so that a signed part is streamed in one event."""
        ...

    def match_endpoint(self, path: str) -> Endpoint | None:
        """The endpoint of a path; None for paths of other wire formats."""
        ...

    def decode_request(self, path: str, body: bytes) -> InboundRequest:
        """Decode a request for a response or a token count.

        Raises:
            ConfigurationError: The request is invalid; `encode_error` maps it to status 400.
        """
        ...

    def find_losses(self, response: AgentResponse) -> tuple[str, ...]:
        """Name the parts of a response that this wire format cannot express, and that are not written."""
        ...

    def encode_response(self, response: AgentResponse, inbound: InboundRequest) -> bytes: ...

    def encoder(self, inbound: InboundRequest) -> EventEncoder: ...

    def encode_error(self, error: errors.AgentError) -> tuple[int, bytes]:
        """Return status and body. The server adds headers such as `retry-after`."""
        ...

    def encode_count(self, tokens: int) -> bytes: ...

    def encode_models(self, models: Sequence[str]) -> bytes: ...

    def stream_headers(self, inbound: InboundRequest) -> Mapping[str, str]: ...


class ServerBase(ABC):
    """Base class of server dialects."""

    signature_field: ClassVar[str | None] = None
    signs_whole_parts: ClassVar[bool] = False

    @abstractmethod
    def _find_loss(self, part: Part) -> str | None:
        """Name what the wire format cannot express of a part."""

    def find_losses(self, response: AgentResponse) -> tuple[str, ...]:
        return tuple(dict.fromkeys(loss for part in response.content if (loss := self._find_loss(part)) is not None))

    def stream_headers(self, inbound: InboundRequest) -> Mapping[str, str]:
        return {"content-type": "text/event-stream"}


# Requests

BANNED = frozenset(
    (
        "api_base", "api_key", "api_type", "api_version", "aws_access_key_id", "aws_secret_access_key",
        "aws_session_token", "azure_ad_token", "base_url", "custom_llm_provider", "default_headers", "endpoint",
        "extra_body", "extra_headers", "extra_query", "headers", "litellm_params", "organization", "proxies", "proxy",
        "user_config", "vertex_credentials",
    )
)  # fmt: skip
"""Fields that would set an address, a key or headers, in any case and with any separators."""


def _normalize_field(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "")


_BANNED_NAMES = frozenset(map(_normalize_field, BANNED))


class Fields:
    """Fields of one JSON object of a request. Remaining ones become `extra`, unless they are banned."""

    def __init__(self, body: bytes | Mapping[str, Any]) -> None:
        if isinstance(body, bytes):
            try:
                body = parse_json(body)
            except ValueError:
                raise invalid_request("The body is not valid JSON.") from None
        if not isinstance(body, Mapping):
            raise invalid_request("The body must be a JSON object.")
        self._left: dict[str, Any] = {key: value for key, value in body.items() if value is not None}

    def take(self, name: str) -> Any:
        """Remove and return a field of any type; None if it is missing or null."""
        return self._left.pop(name, None)

    def peek(self, name: str) -> Any:
        """Return a field without removing it."""
        return self._left.get(name)

    def text(self, name: str) -> str | None:
        value: str | None = self._take_typed(name, str, "a string")
        return value

    def flag(self, name: str) -> bool | None:
        value: bool | None = self._take_typed(name, bool, "a boolean")
        return value

    def object(self, name: str) -> dict[str, Any]:
        return self._take_typed(name, dict, "an object") or {}

    def list(self, name: str) -> list[Any]:
        return self._take_typed(name, list, "an array") or []

    def _take_typed(self, name: str, kind: type, description: str) -> Any:
        value = self.take(name)
        if value is not None and not isinstance(value, kind):
            raise invalid_request(f"'{name}' must be {description}.", name)
        return value

    @property
    def left(self) -> Mapping[str, Any]:
        """The fields that were not taken, without the check for banned ones."""
        return self._left

    def put(self, name: str, value: Any) -> None:
        """Put a field back."""
        self._left[name] = value

    def rest(self) -> dict[str, Any]:
        """Return the fields that were not taken.

        Raises:
            ConfigurationError: One of them is banned, at any depth.
        """
        _check_banned(self._left, "")
        return self._left


def _check_banned(value: Any, where: str) -> None:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            at = f"{where}.{key}" if where else str(key)
            if _normalize_field(str(key)) in _BANNED_NAMES:
                raise invalid_request(f"'{at}' is not allowed: a request cannot set addresses, keys or headers.", at)
            _check_banned(inner, at)
    elif isinstance(value, list):
        for position, inner in enumerate(value):
            _check_banned(inner, f"{where}[{position}]")


def invalid_request(message: str, field: str | None = None) -> errors.ConfigurationError:
    """Build the error for an invalid request."""
    return errors.ConfigurationError(message, field=field, status_code=400)


@contextmanager
def check_shape() -> Iterator[None]:
    """Convert exceptions from decoding a malformed request to ConfigurationError."""
    try:
        yield
    except errors.ConfigurationError:
        raise
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise invalid_request(f"The request is malformed ({type(error).__name__}).") from None


def require_objects(value: Any, field: str) -> list[dict[str, Any]]:
    """Return the items of an array of objects; other values are an error."""
    if not isinstance(value, list | tuple) or not all(isinstance(item, dict) for item in value):
        raise invalid_request(f"'{field}' must be an array of objects.", field)
    return list(value)


def build_request(**fields: Any) -> AgentRequest:
    """Build a request from the fields that are not None.

    Raises:
        ConfigurationError: A value is invalid.
    """
    values = {name: value for name, value in fields.items() if value is not None}
    try:
        return validate_with(lambda: AgentRequest(**values))
    except errors.ConfigurationError as error:
        raise invalid_request(error.message, error.field) from None


def function_tool(name: Any, fields: Mapping[str, Any], schema: Any, known: Sequence[str]) -> ToolSpec:
    """Build the tool spec of a function. Keys that are not `known` become its `extra`."""
    values = {
        "name": name,
        "description": fields.get("description") or "",
        "parameters": schema or {},
        "strict": fields.get("strict"),
        "extra": {key: value for key, value in fields.items() if key not in (*known, "description", "strict")},
    }
    try:
        return validate_with(lambda: ToolSpec(**values))
    except errors.ConfigurationError as error:
        raise invalid_request(error.message, "tools") from None


_DATA_URL = re.compile(r"data:([^;,]*)(?:;[^;,]*)*?;base64,(.*)", re.S)


def make_portable(request: AgentRequest) -> tuple[AgentRequest, tuple[str, ...]]:
    """Remove everything that is valid only in the request's wire format; return the request and warnings."""
    left_out = [*request.extra]
    tools: list[ToolSpec | BuiltinTool] = []
    for tool in request.tools:
        if isinstance(tool, ToolSpec):
            left_out += [f"{key} of the tool {tool.name}" for key in tool.extra]
            tools.append(tool.model_copy(update={"extra": {}}) if tool.extra else tool)
        elif not isinstance(tool, Mapping):
            tools.append(tool)
        else:
            left_out.append(f"the tool {tool.get('type') or tool.get('name') or next(iter(tool))}")
    changed = request.model_copy(update={"extra": {}, "tools": tuple(tools)})
    return changed, tuple(f"{name} was left out: it is valid only in its own wire format" for name in left_out)


_USUAL_ALPHABET = {ord("-"): "+", ord("_"): "/", ord("\n"): None, ord("\r"): None}


def split_data_url(url: str, field: str) -> tuple[str | None, bytes] | None:
    """Return media type and bytes of a data URL; None for other URLs."""
    if not url.startswith("data:"):
        return None
    if (match := _DATA_URL.fullmatch(url)) is None:
        raise invalid_request("A data URL must be encoded as base64.", field)
    return match[1] or None, decode_base64(match[2], field)


def decode_base64(text: Any, field: str) -> bytes:
    """Decode base64 in the standard or URL-safe alphabet, with or without padding."""
    try:
        plain = text.translate(_USUAL_ALPHABET).rstrip("=")
        return base64.b64decode(plain + "=" * (-len(plain) % 4), validate=True)
    except (binascii.Error, ValueError, AttributeError):
        raise invalid_request("The data is not valid base64.", field) from None


def image_from_url(url: str, field: str, detail: str | None = None) -> ImageContent:
    if (data := split_data_url(url, field)) is not None:
        return ImageContent(image_data=data[1], media_type=data[0], detail=detail)
    return ImageContent(image_url=url, detail=detail)


def document_from_url(url: str, field: str, title: str | None = None) -> DocumentContent:
    if (data := split_data_url(url, field)) is not None:
        return DocumentContent(data=data[1], media_type=data[0], title=title)
    return DocumentContent(url=url, title=title)


# Errors

ErrorKind: TypeAlias = Literal[
    "bad_request",
    "context_length",
    "authentication",
    "not_found",
    "rate_limit",
    "quota",
    "overloaded",
    "content_filter",
    "server",
]

_KINDS: tuple[tuple[type[errors.AgentError], ErrorKind], ...] = (
    (errors.ConfigurationError, "bad_request"),
    (errors.AuthenticationError, "authentication"),
    (errors.ContextLengthError, "context_length"),
    (errors.BadRequestError, "bad_request"),
    (errors.ModelNotFoundError, "not_found"),
    (errors.RateLimitError, "rate_limit"),
    (errors.QuotaExceededError, "quota"),
    (errors.BudgetExceededError, "quota"),
    (errors.OverloadedError, "overloaded"),
    (errors.ContentFilterError, "content_filter"),
)


def error_kind(error: errors.AgentError) -> ErrorKind:
    """Classify an error by the kinds that all wire formats have."""
    if isinstance(error, errors.RoutingError) and error.errors:
        return error_kind(error.errors[-1])
    return next((kind for cause, kind in _KINDS if isinstance(error, cause)), "server")


def error_status(error: errors.AgentError, usual: int) -> int:
    """The upstream vendor's status if there is one, else the usual one."""
    status = error.status_code
    return status if status is not None and 400 <= status < 600 else usual


# Responses


def encode_stop_reason(response: AgentResponse, words: Mapping[str, str]) -> str:
    """Return the wire format's stop reason, or else the raw one."""
    reason = response.stop_reason or "stop"
    if reason == "stop" and response.tool_calls:
        reason = "tool_calls"
    elif reason == "stop" and response.refusal:
        reason = "refusal"
    return words.get(reason, response.raw_stop_reason or reason)


def dump_call_arguments(call: ToolCall) -> str:
    """Serialize a call's arguments; invalid ones are returned as the model wrote them."""
    return to_json({**call.arguments}).decode() if call.invalid_arguments is None else call.invalid_arguments


def sse(data: Mapping[str, Any], name: str | None = None) -> bytes:
    """Encode one server-sent event."""
    head = b"" if name is None else b"event: %b\n" % name.encode()
    return b"%bdata: %b\n\n" % (head, to_json(data))


def is_foreign(part: Part, api: str) -> bool:
    """Whether a part is from another wire format, so that its opaque data is invalid in this one."""
    return part.origin is not None and part.origin.api not in ("", api)


def usage_or_zero(response: AgentResponse) -> Usage:
    return response.usage or Usage()


# Helpers of the request decoders.

EFFORT_LEVELS: Mapping[str, ThinkingLevel] = {"none": ThinkingLevel.OFF, "max": ThinkingLevel.XHIGH} | {
    level.value: level for level in ThinkingLevel if level is not ThinkingLevel.OFF
}
"""Thinking levels by OpenAI's reasoning efforts."""


def simplify_content(parts: Sequence[Part]) -> Any:
    """Return the text of a single plain text part, else the parts."""
    if not parts:
        return ""
    first = parts[0]
    return first.text if len(parts) == 1 and first == TextContent(text=first.text or "") else tuple(parts)


def split_turn(role: Any, parts: Sequence[Part], where: str) -> list[Message]:
    """Return a turn's messages. Results of tools in a user's turn are a message of their own."""
    if role in ("assistant", "system"):
        return [Message(Role(role), simplify_content(parts))]
    if role != "user":
        raise invalid_request(f"{where}.role: {role!r} is not a role.", f"{where}.role")
    results = [part for part in parts if isinstance(part, ToolResult)]
    others = [part for part in parts if not isinstance(part, ToolResult)]
    messages = [Message(Role.TOOL, results)] if results else []
    return [*messages, Message(Role.USER, simplify_content(others))] if others or not results else messages


def read_call(id: Any, name: Any, arguments: Any, where: str, **fields: Any) -> ToolCall:
    """Decode a call, whose arguments are text or an object."""
    if not isinstance(id, str) or not isinstance(name, str):
        raise invalid_request(f"{where}: a call needs an id and a name.", where)
    if isinstance(arguments, str):
        try:
            values = parse_json(arguments, repair=False)
        except ValueError:
            values = None
        if not isinstance(values, dict):
            return ToolCall(id=id, name=name, invalid_arguments=arguments, **fields)
        arguments = values
    return ToolCall(id=id, name=name, arguments=arguments, **fields)


def with_title(schema: Mapping[str, Any], name: Any) -> dict[str, Any]:
    """Return a schema with the name that it was sent under as its title."""
    return {"title": name, **schema} if name not in (None, "answer") else dict(schema)
