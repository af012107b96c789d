"""The server side of a wire format: read requests, write responses, streams and errors.

A codec speaks to a vendor; a `ServerDialect` speaks as one. Each package of a wire format has one in its `server.py`.
The scripted servers of `agent.testing` answer with them, and a gateway can serve real clients with them.

Fields of a request fall into three classes. Those with a counterpart in `AgentRequest` are understood. Those in
`BANNED` are refused, because they would change where a request goes or which credentials it carries. All others are
carried in `AgentRequest.extra`, so that a vendor's new field works on the day it appears; `extra` means something only
to a target that speaks the same wire format, and a gateway must drop it for any other.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias
from uuid import uuid4

from pydantic_core import to_json

from .. import errors
from ..engine.wire import parse_json
from ..types import (
    AgentRequest,
    AgentResponse,
    DocumentContent,
    ImageContent,
    Part,
    StreamEvent,
    ToolCall,
    ToolSpec,
    Usage,
)
from ..types._base import validate_with

Endpoint: TypeAlias = Literal["generate", "count"]


@dataclass(frozen=True, slots=True)
class InboundRequest:
    """One request as a server received it."""

    request: AgentRequest
    model: str
    stream: bool = False
    warnings: tuple[str, ...] = ()
    """What was left out of `request`."""
    unsupported: tuple[str, ...] = ()
    """Fields that ask for what no server of ours can do, such as several answers or what a vendor has stored.

    They are carried in `request.extra`. A server for real clients refuses such a request.
    """
    settings: Mapping[str, Any] = field(default_factory=dict)
    """What the answer repeats or depends on, such as whether a stream ends with a usage chunk."""
    id: str = field(default_factory=lambda: uuid4().hex[:24])
    """Names the response, unless the response has an id of its own."""
    created: int = 0
    """When it arrived, in seconds since the epoch; the server sets it."""


class EventEncoder(Protocol):
    """Writes one stream. Nothing is written before the first event, so an early failure can still have a status."""

    def encode_event(self, event: StreamEvent) -> bytes:
        """The bytes for one event; none for an event that has no counterpart in the wire format.

        Raises:
            ProtocolError: The event is a `restart`. A stream that has begun cannot begin again.
        """
        ...

    def end(self, response: AgentResponse) -> bytes:
        """The end of a stream whose events add up to `response`."""
        ...

    def fail(self, error: errors.AgentError) -> bytes:
        """The end of a stream that broke. The terminal event is not written."""
        ...

    def ping(self) -> bytes:
        """Bytes that keep a silent connection open and mean nothing."""
        ...


class ServerDialect(Protocol):
    """The server side of one wire format."""

    @property
    def api(self) -> str:
        """The name of the wire format, as in `Provider.api`."""
        ...

    @property
    def signature_field(self) -> str | None:
        """The field of `ThinkingContent` that holds the seal of this vendor's reasoning; None without seals."""
        ...

    @property
    def signs_whole_parts(self) -> bool:
        """Whether a signature stands on one whole part, so that the text of a signed part is streamed in one piece."""
        ...

    def match_endpoint(self, path: str) -> Endpoint | None:
        """What a path asks for; None if it belongs to another wire format."""
        ...

    def decode_request(self, path: str, body: bytes) -> InboundRequest:
        """Read a request for a response, or for a count of tokens.

        Raises:
            ConfigurationError: The request is wrong. `encode_error` answers it with status 400.
        """
        ...

    def find_losses(self, response: AgentResponse) -> tuple[str, ...]:
        """What of a response has no place in this wire format, and is not written."""
        ...

    def encode_response(self, response: AgentResponse, inbound: InboundRequest) -> bytes: ...

    def encoder(self, inbound: InboundRequest) -> EventEncoder: ...

    def encode_error(self, error: errors.AgentError) -> tuple[int, bytes]:
        """Status and body. Headers such as `retry-after` are left to the server."""
        ...

    def encode_count(self, tokens: int) -> bytes: ...

    def encode_models(self, models: Sequence[str]) -> bytes: ...

    def stream_headers(self, inbound: InboundRequest) -> Mapping[str, str]: ...


# Requests

BANNED = frozenset(
    (
        "api_base", "api_key", "api_type", "api_version", "aws_access_key_id", "aws_secret_access_key",
        "aws_session_token", "azure_ad_token", "base_url", "custom_llm_provider", "default_headers", "endpoint",
        "extra_body", "extra_headers", "extra_query", "headers", "litellm_params", "organization", "proxies", "proxy",
        "user_config", "vertex_credentials",
    )
)  # fmt: skip
"""Fields that would set an address, a key or headers, in whichever case they are written."""


def _plain_name(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "")


_BANNED_NAMES = frozenset(map(_plain_name, BANNED))


class Fields:
    """The fields of one JSON object of a request. Fields that are not taken are carried, unless they are banned."""

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
        """A field's value, whatever it is; None if it is missing or null."""
        return self._left.pop(name, None)

    def peek(self, name: str) -> Any:
        """A field's value, which stays to be taken."""
        return self._left.get(name)

    def text(self, name: str) -> str | None:
        value: str | None = self._of(name, str, "a string")
        return value

    def flag(self, name: str) -> bool | None:
        value: bool | None = self._of(name, bool, "a boolean")
        return value

    def object(self, name: str) -> dict[str, Any]:
        return self._of(name, dict, "an object") or {}

    def list(self, name: str) -> list[Any]:
        return self._of(name, list, "an array") or []

    def _of(self, name: str, kind: type, called: str) -> Any:
        value = self.take(name)
        if value is not None and not isinstance(value, kind):
            raise invalid_request(f"'{name}' must be {called}.", name)
        return value

    @property
    def left(self) -> Mapping[str, Any]:
        """The fields that were not taken, unchecked."""
        return self._left

    def put(self, name: str, value: Any) -> None:
        """Have a field carried after all."""
        self._left[name] = value

    def rest(self) -> dict[str, Any]:
        """The fields that were not taken.

        Raises:
            ConfigurationError: One of them is banned, at whatever depth.
        """
        _check_banned(self._left, "")
        return self._left


def _check_banned(value: Any, where: str) -> None:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            at = f"{where}.{key}" if where else str(key)
            if _plain_name(str(key)) in _BANNED_NAMES:
                raise invalid_request(f"'{at}' is not allowed: a request cannot set addresses, keys or headers.", at)
            _check_banned(inner, at)
    elif isinstance(value, list):
        for position, inner in enumerate(value):
            _check_banned(inner, f"{where}[{position}]")


def invalid_request(message: str, field: str | None = None) -> errors.ConfigurationError:
    """The error for a request that is wrong."""
    return errors.ConfigurationError(message, field=field, status_code=400)


@contextmanager
def check_shape() -> Iterator[None]:
    """A request of the wrong shape raises a ConfigurationError, whatever stumbles over it."""
    try:
        yield
    except errors.ConfigurationError:
        raise
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise invalid_request(f"The request does not have the shape of this API ({type(error).__name__}).") from None


def require_objects(value: Any, field: str) -> list[dict[str, Any]]:
    """The items of an array of objects."""
    if not isinstance(value, list | tuple) or not all(isinstance(item, dict) for item in value):
        raise invalid_request(f"'{field}' must be an array of objects.", field)
    return list(value)


def build_request(**fields: Any) -> AgentRequest:
    """An `AgentRequest` from the fields that were given.

    Raises:
        ConfigurationError: A value is out of range.
    """
    given = {name: value for name, value in fields.items() if value is not None}
    try:
        return validate_with(lambda: AgentRequest(**given))
    except errors.ConfigurationError as error:
        raise invalid_request(error.message, error.field) from None


def function_tool(name: Any, fields: Mapping[str, Any], schema: Any, known: Sequence[str]) -> ToolSpec:
    """A function that the client offers. Keys that are not `known` become the tool's `extra`."""
    given = {
        "name": name,
        "description": fields.get("description") or "",
        "parameters": schema or {},
        "strict": fields.get("strict"),
        "extra": {key: value for key, value in fields.items() if key not in (*known, "description", "strict")},
    }
    try:
        return validate_with(lambda: ToolSpec(**given))
    except errors.ConfigurationError as error:
        raise invalid_request(error.message, "tools") from None


_DATA_URL = re.compile(r"data:([^;,]*)(?:;[^;,]*)*?;base64,(.*)", re.S)


def make_portable(request: AgentRequest) -> tuple[AgentRequest, tuple[str, ...]]:
    """A request without what only its own wire format understands, and warnings about it."""
    left_out = [*request.extra]
    tools: list[ToolSpec] = []
    for tool in request.tools:
        if isinstance(tool, ToolSpec):
            left_out += [f"{key} of the tool {tool.name}" for key in tool.extra]
            tools.append(tool.model_copy(update={"extra": {}}) if tool.extra else tool)
        else:
            left_out.append(f"the tool {tool.get('type') or tool.get('name') or next(iter(tool))}")
    changed = request.model_copy(update={"extra": {}, "tools": tuple(tools)})
    return changed, tuple(f"{name} was left out: another wire format has no place for it" for name in left_out)


_USUAL_ALPHABET = {ord("-"): "+", ord("_"): "/", ord("\n"): None, ord("\r"): None}


def split_data_url(url: str, field: str) -> tuple[str | None, bytes] | None:
    """Media type and bytes of a data URL; None for any other URL."""
    if not url.startswith("data:"):
        return None
    if (found := _DATA_URL.fullmatch(url)) is None:
        raise invalid_request("A data URL must be encoded as base64.", field)
    return found[1] or None, decode_base64(found[2], field)


def decode_base64(text: Any, field: str) -> bytes:
    """Bytes from base64, in the alphabet for URLs or the usual one, with padding or without."""
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
    """What went wrong, in the terms that all wire formats have words for."""
    if isinstance(error, errors.RoutingError) and error.errors:
        return error_kind(error.errors[-1])
    return next((kind for cause, kind in _KINDS if isinstance(error, cause)), "server")


def error_status(error: errors.AgentError, usual: int) -> int:
    """The status to answer with: the vendor's own, if the failure came with one."""
    status = error.status_code
    return status if status is not None and 400 <= status < 600 else usual


# Responses


def encode_stop_reason(response: AgentResponse, words: Mapping[str, str]) -> str:
    """The vendor's word for why a response ended; where it has none, the response's own."""
    reason = response.stop_reason or "stop"
    if reason == "stop" and response.tool_calls:
        reason = "tool_calls"
    elif reason == "stop" and response.refusal:
        reason = "refusal"
    return words.get(reason, response.raw_stop_reason or reason)


def dump_call_arguments(call: ToolCall) -> str:
    """A call's arguments as the model wrote them, JSON or not."""
    return to_json({**call.arguments}).decode() if call.invalid_arguments is None else call.invalid_arguments


def sse(data: Mapping[str, Any], name: str | None = None) -> bytes:
    """One server-sent event."""
    head = b"" if name is None else b"event: %b\n" % name.encode()
    return b"%bdata: %b\n\n" % (head, to_json(data))


def is_foreign(part: Part, api: str) -> bool:
    """Whether another wire format made a part, so that its opaque data means nothing in this one."""
    return part.origin is not None and part.origin.api not in ("", api)


def usage_or_zero(response: AgentResponse) -> Usage:
    return response.usage or Usage()
