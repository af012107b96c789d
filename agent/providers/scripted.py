"""Scripted provider for tests, examples and docs.

It answers from a script in the wire format of Chat Completions, so everything except the model is real.
"""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from pydantic import BaseModel
from pydantic_core import to_json

from .. import errors
from ..engine.wire import Answer, Piece, WireRequest
from ..types import (
    AgentConfig,
    AgentRequest,
    AgentResponse,
    ContentPart,
    ImageContent,
    Part,
    TextContent,
    ThinkingContent,
    ToolCall,
    ToolResult,
    ToolSpec,
    Usage,
)
from .base import Provider, ProviderFactory
from .openai_chat import ChatCodec, Dialect
from .openai_chat.server import SERVER
from .server_dialect import InboundRequest, ServerDialect
from .server_stream import response_events

_MAX_DEPTH = 8
_MAX_QUOTE = 300


def generate_example(schema: Any) -> Any:
    """Generate a value that fits a JSON Schema."""
    return _example(schema, schema, 0)


def _example(schema: Any, root: Any, depth: int) -> Any:
    if not isinstance(schema, dict) or depth > _MAX_DEPTH:
        return None
    if "$ref" in schema:
        return _example(_resolve(schema["$ref"], root), root, depth + 1)
    for fixed in ("const", "default"):
        if fixed in schema:
            return schema[fixed]
    if schema.get("enum"):
        return schema["enum"][0]
    for several in ("anyOf", "oneOf", "allOf"):
        if schema.get(several):
            return _example(schema[several][0], root, depth + 1)
    kind = schema.get("type")
    kind = kind[0] if isinstance(kind, list) and kind else kind
    match kind:
        case "object":
            return _object(schema, root, depth)
        case "array":
            items = max(schema.get("minItems", 1), 1) if depth < _MAX_DEPTH else schema.get("minItems", 0)
            return [_example(schema.get("items", {}), root, depth + 1) for _ in range(items)]
        case "string":
            return _string(schema)
        case "integer":
            return int(_number(schema))
        case "number":
            return _number(schema)
        case "boolean":
            return True
        case _:
            return _object(schema, root, depth) if "properties" in schema else None


def _resolve(reference: str, root: Any) -> Any:
    schema = root
    for step in reference.removeprefix("#").strip("/").split("/"):
        schema = schema.get(step.replace("~1", "/").replace("~0", "~"), {}) if isinstance(schema, dict) else {}
    return schema


def _object(schema: dict[str, Any], root: Any, depth: int) -> dict[str, Any]:
    properties: dict[str, Any] = schema.get("properties") or {}
    required = schema.get("required") or ()
    return {
        name: _example(value, root, depth + 1)
        for name, value in properties.items()
        if name in required or depth < _MAX_DEPTH // 2
    }


_FORMATS = {
    "date": "2026-01-01",
    "date-time": "2026-01-01T00:00:00Z",
    "time": "00:00:00",
    "email": "someone@example.com",
    "uri": "https://example.com",
    "uuid": "00000000-0000-4000-8000-000000000000",
}


def _string(schema: dict[str, Any]) -> str:
    text = _FORMATS.get(schema.get("format", ""), "example")
    text = text.ljust(schema.get("minLength", 0), ".")
    return text[: schema.get("maxLength", len(text))]


def _number(schema: dict[str, Any]) -> float:
    low = schema.get("minimum", schema.get("exclusiveMinimum", 0) + ("exclusiveMinimum" in schema))
    high = schema.get("maximum", schema.get("exclusiveMaximum"))
    value = max(1, low) if high is None or high >= 1 else low if "minimum" in schema else high
    return float(value)


Reply: TypeAlias = (
    "str | AgentResponse | ContentPart | Sequence[ContentPart] | BaseModel | Mapping[str, Any] | Exception | Answer"
)
"""Text, a response, parts, a value that is serialized as JSON, an error, or an `Answer` with the exact bytes."""
Line: TypeAlias = "Reply | Callable[[dict[str, Any]], Reply]"
"""A reply, or a function from the body of the request to a reply."""

DIALECT = Dialect(name="scripted", base_url="http://scripted.localhost", key_required=False)


def provider(name: str) -> ProviderFactory:
    """Factory of a scripted provider. With a base_url, it sends HTTP requests to a scripted server."""
    dialect = replace(DIALECT, name=name)

    def make(config: AgentConfig) -> Provider:
        codec = ScriptedCodec.from_config(config, dialect)
        codec.transport = "scripted" if config.base_url is None else "http"
        return codec

    return make


class ScriptedCodec(ChatCodec):
    """Codec for Chat Completions, answered in process unless a base_url is set."""

    transport: str = "scripted"


class Script:
    """Scripted replies in order, encoded as Chat Completions.

    Without lines, it echoes the last message, and generates examples for schemas and forced tools.

    Args:
        lines: Replies, one per request. Further requests fail: with the last line if it was an error.
        delay: Seconds between the events of a stream.
    """

    def __init__(self, *lines: Line, delay: float = 0.0) -> None:
        self._echoes = not lines
        self._lines = deque(lines)
        self._failure: Exception | None = None
        """The latest reply, if it was an error."""
        self._delay = delay
        self._lock = threading.Lock()
        self._count = 0
        self.requests: deque[dict[str, Any]] = deque(maxlen=10_000)
        """Bodies of the latest requests, in order."""

    def __call__(self, request: WireRequest) -> Answer:
        return self._answer(request, SERVER)

    def _answer(self, request: WireRequest, server: ServerDialect) -> Answer:
        body, number = self._record(request)
        try:
            inbound = replace(server.decode_request(request.url, request.body), id=str(number))
        except errors.ConfigurationError as error:
            return encode_error_answer(error, server)
        line = echo(inbound.request) if self._echoes else self._next_line()
        if line is None:
            line = self._end(inbound.request)
        reply = line(body) if callable(line) else line
        self._failure = reply if isinstance(reply, Exception) else None
        if isinstance(reply, Answer):
            return reply
        if isinstance(reply, errors.ConnectionError | errors.TimeoutError):
            return Answer(failure=reply)
        if isinstance(reply, errors.AgentError):
            return encode_error_answer(reply, server)
        if isinstance(reply, Exception):
            return Answer(failure=errors.ConnectionError(f"{type(reply).__name__}: {reply}"))
        return self._write(build_response(reply, body), inbound, server)

    def _record(self, request: WireRequest) -> tuple[dict[str, Any], int]:
        body: dict[str, Any] = json.loads(request.body)
        with self._lock:
            self.requests.append(body)
            self._count += 1
            return body, self._count

    def _next_line(self) -> Line | None:
        try:
            return self._lines.popleft()
        except IndexError:
            return None

    def _end(self, request: AgentRequest) -> Exception:
        """The error after the last line. It hides neither the error that is retried nor an output to correct."""
        latest = request.messages[-1].text[:_MAX_QUOTE] if request.messages else ""
        return self._failure or errors.BadRequestError(f"the script has no more lines for {latest!r}")

    def _write(self, response: AgentResponse, inbound: InboundRequest, server: ServerDialect) -> Answer:
        if losses := server.find_losses(response):  # a test of an incomplete response would prove nothing
            raise errors.ConfigurationError(
                f"A script cannot encode {losses[0]} in {server.api}.",
                field="lines",
                fix="Pass an Answer with the bytes.",
            )
        response = _add_signatures(response, server.signature_field).model_copy(update={"model": "", "id": None})
        headers = {"x-request-id": f"req_{inbound.id}"}
        if not inbound.stream:
            body = server.encode_response(response, inbound)
            return Answer([body], headers={"content-type": "application/json", **headers})
        pieces = [Piece(event, self._delay) for event in _stream_events(response, inbound, server)]
        return Answer(pieces, headers={**server.stream_headers(inbound), **headers})


def _stream_events(response: AgentResponse, inbound: InboundRequest, server: ServerDialect) -> Iterator[bytes]:
    encoder = server.encoder(inbound)
    for piece in [*map(encoder.encode_event, response_events(response, server)), encoder.end(response)]:
        *events, rest = piece.split(b"\n\n")
        yield from (event + b"\n\n" for event in events)
        if rest:
            yield rest


def _add_signatures(response: AgentResponse, field: str | None) -> AgentResponse:
    """Sign unsigned reasoning, for wire formats with signatures."""
    if field is None:
        return response
    content: list[Part] = []
    for part in response.content:
        if isinstance(part, ThinkingContent):
            name = "encrypted_content" if part.redacted else field
            part = part if getattr(part, name) else part.model_copy(update={name: "sealed"})
        content.append(part)
    return response.model_copy(update={"content": tuple(content)})


def encode_error_answer(error: errors.AgentError, server: ServerDialect) -> Answer:
    """Encode an error as the vendor's HTTP reply."""
    status, body = server.encode_error(error)
    headers = {"content-type": "application/json"}
    if error.retry_after is not None:
        headers["retry-after"] = str(error.retry_after)
    return Answer([body], status=status, headers=headers)


def echo(request: AgentRequest) -> Reply:
    """Default script: echo the last message, or generate an example for a schema or forced tool."""
    if request.tool_choice not in (None, "auto", "none"):
        name = None if request.tool_choice == "required" else request.tool_choice
        functions = (tool for tool in request.tools if isinstance(tool, ToolSpec))  # others run at the vendor
        if tool := next((tool for tool in functions if name in (None, tool.name)), None):
            return ToolCall(id="call_1", name=tool.name, arguments=generate_example(tool.parameters))
    if (schema := request.output_json_schema) is not None:
        return TextContent(text=to_json(generate_example(schema)).decode())
    parts = request.messages[-1].parts if request.messages else ()
    return f"You said: {' '.join(map(_echo_part, parts))}"


def _echo_part(part: Part) -> str:
    match part:
        case TextContent():
            return part.text
        case ToolResult():
            return part.text or "[tool_result]"
        case ImageContent():
            return "[image_url]"
        case _:
            return f"[{part.type}]"


def build_response(reply: Any, body: Mapping[str, Any]) -> AgentResponse:
    if isinstance(reply, AgentResponse):
        response = reply
    elif isinstance(reply, str):
        response = AgentResponse(text=reply)
    elif isinstance(reply, ContentPart):
        response = AgentResponse(content=(reply,))
    elif isinstance(reply, BaseModel | Mapping):
        response = AgentResponse(text=to_json(reply).decode())
    else:
        response = AgentResponse(content=tuple(reply))
    return (
        response if response.usage is not None else response.model_copy(update={"usage": _count_usage(response, body)})
    )


def _count_usage(response: AgentResponse, body: Mapping[str, Any]) -> Usage:
    """Count words as tokens, which is deterministic."""
    words = sum(len(text.split()) for text in (response.text or "", response.thinking))
    return Usage(prompt_tokens=count_words(body), completion_tokens=words + 4 * len(response.tool_calls))


def count_words(body: Mapping[str, Any]) -> int:
    """Count the words of the conversation in a request of any wire format."""
    body = body.get("generateContentRequest") or body
    return len(json.dumps(body.get("messages") or body.get("input") or body.get("contents") or body).split())
