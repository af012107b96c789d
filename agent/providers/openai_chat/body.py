"""Writing a request as the JSON that Chat Completions takes.

Messages are immutable, so the bytes of each are made once and kept with it: a turn of a long conversation costs what
is new in it. What the API cannot take raises before anything is sent; a mere setting that is left out is a warning.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any, assert_never

from pydantic_core import to_json

from ... import errors
from ...types import (
    AgentRequest,
    AudioContent,
    CodeContent,
    DiffContent,
    DocumentContent,
    ImageContent,
    Message,
    Part,
    RefusalContent,
    Role,
    TextContent,
    ThinkingContent,
    ThinkingLevel,
    ToolCall,
    ToolResult,
    ToolSpec,
)
from .dialect import API, Dialect

_LARGE = 64 * 1024
"""Encoded messages beyond this are not kept: they hold images, and would double the memory of the conversation."""
_AUDIO_FORMATS = {"audio/wav": "wav", "audio/x-wav": "wav", "audio/mpeg": "mp3", "audio/mp3": "mp3"}
_OWN_KEYS = ("messages", "model", "stream")


def encode_body(request: AgentRequest, dialect: Dialect, *, stream: bool) -> tuple[bytes, tuple[str, ...]]:
    """The body, and what had to be left out of it."""
    for key in _OWN_KEYS:
        if key in request.extra:
            raise errors.ConfigurationError(
                f"extra may not contain {key!r}.", field="extra", fix=f"Set {key} through the request itself."
            )
    writer = _Writer(dialect, request.model or "")
    messages = b",".join([encoded for message in request.to_messages() if (encoded := writer.message(message))])
    settings = to_json({"model": request.model, **_settings(request, dialect, stream=stream), **request.extra})
    return settings[:-1] + b',"messages":[' + messages + b"]}", tuple(writer.warnings)


def _settings(request: AgentRequest, dialect: Dialect, *, stream: bool) -> dict[str, Any]:
    body: dict[str, Any] = {}
    if request.tools:
        body["tools"] = [tool.to_openai_schema() if isinstance(tool, ToolSpec) else tool for tool in request.tools]
    if request.tool_choice is not None:
        body["tool_choice"] = _tool_choice(request.tool_choice)
    if request.parallel_tool_calls is not None:
        body["parallel_tool_calls"] = request.parallel_tool_calls
    if request.max_tokens is not None:
        body[dialect.max_tokens_key] = request.max_tokens
    for key in ("temperature", "top_p", "seed"):
        if (value := getattr(request, key)) is not None:
            body[key] = value
    if request.stop:
        body["stop"] = list(request.stop)
    if request.logprobs is not None:
        body["logprobs"] = True
        if request.logprobs:
            body["top_logprobs"] = request.logprobs
    if request.thinking is not None and request.thinking is not ThinkingLevel.OFF:
        body["reasoning_effort"] = request.thinking.value
    if (schema := request.output_json_schema) is not None:
        body["response_format"] = {"type": "json_schema", "json_schema": _named_schema(schema)}
    if stream:
        body["stream"] = True
        if dialect.stream_usage:
            body["stream_options"] = {"include_usage": True}
    return body


def _tool_choice(choice: str) -> Any:
    if choice in ("auto", "none", "required"):
        return choice
    return {"type": "function", "function": {"name": choice}}


def _named_schema(schema: dict[str, Any]) -> dict[str, Any]:
    title = str(schema.get("title") or "answer")
    name = "".join(letter if letter.isascii() and (letter.isalnum() or letter in "_-") else "_" for letter in title)
    named: dict[str, Any] = {"name": name[:64] or "answer", "schema": schema}
    if _is_closed(schema):
        named["strict"] = True
    return named


def _is_closed(schema: Any) -> bool:
    """Whether the vendor's strict mode takes this schema: objects without optional or unknown properties."""
    if isinstance(schema, list):
        return all(map(_is_closed, schema))
    if not isinstance(schema, dict):
        return True
    if schema.get("type") == "object" or "properties" in schema:
        properties = schema.get("properties") or {}
        if schema.get("additionalProperties") is not False or set(schema.get("required") or ()) != set(properties):
            return False
        if "default" in schema:
            return False
    return all(map(_is_closed, schema.values()))


class _Writer:
    """Messages of one request; collects what is left out on the way."""

    def __init__(self, dialect: Dialect, model: str) -> None:
        self._dialect = dialect
        self._model = model
        self._key = f"{API}/{dialect.name}/{model}"
        self.warnings: list[str] = []

    def message(self, message: Message) -> bytes:
        """The message as JSON; several, joined by commas, where the API wants it in pieces; none for an empty one."""
        kept: dict[str, bytes] | None = getattr(message, "_encoded", None)
        if kept is not None and (known := kept.get(self._key)) is not None:
            return known
        warned = len(self.warnings)
        encoded = b",".join(map(to_json, self._write(message)))
        # A warning must come again with the next request, so a message that causes one is not kept.
        if len(self.warnings) == warned and len(encoded) <= _LARGE:
            if kept is None:
                kept = {}
                object.__setattr__(message, "_encoded", kept)
            kept[self._key] = encoded
        return encoded

    def _write(self, message: Message) -> list[dict[str, Any]]:
        if message.role is Role.ASSISTANT:
            return self._assistant(message)
        written: list[dict[str, Any]] = []
        content: list[Part] = []
        for part in message.parts:
            if isinstance(part, ToolResult):
                written.append(self._result(part))
            else:
                content.append(part)
        if content:
            said = {"role": message.role.value, "content": self._content(content)}
            if message.name is not None and message.role is not Role.TOOL:
                said["name"] = message.name
            written.append(said)
        return written

    def _assistant(self, message: Message) -> list[dict[str, Any]]:
        said: dict[str, Any] = {"role": "assistant"}
        text: list[str] = []
        calls: list[dict[str, Any]] = []
        for part in message.parts:
            match part:
                case TextContent():
                    text.append(part.text)
                case ThinkingContent():
                    self._reasoning(said, part)
                case ToolCall():
                    calls.append(self._call(part))
                case RefusalContent():
                    said["refusal"] = part.refusal
                case CodeContent() | DiffContent():
                    text.append(_as_markdown(part))
                case ToolResult() | ImageContent() | DocumentContent() | AudioContent():
                    raise self._cannot(part, "in an assistant's message")
                case _:
                    assert_never(part)
        if text:
            said["content"] = "".join(text)
        elif calls or "refusal" in said:
            said["content"] = None
        else:
            return []
        if calls:
            said["tool_calls"] = calls
        if message.name is not None:
            said["name"] = message.name
        return [said]

    def _reasoning(self, said: dict[str, Any], part: ThinkingContent) -> None:
        """What only its maker understands goes back to its maker; other reasoning is not sent at all."""
        mine = part.origin is not None and part.origin.provider == self._dialect.name and part.origin.api == API
        if mine:
            for key, value in (part.provider_data or {}).items():
                if key in self._dialect.replayed:
                    said[key] = value
        else:
            self.warnings.append("reasoning made elsewhere was left out of the conversation")

    def _call(self, call: ToolCall) -> dict[str, Any]:
        mine = call.origin is not None and call.origin.provider == self._dialect.name and call.origin.api == API
        opaque: Mapping[str, Any] = (call.provider_data or {}) if mine else {}
        if opaque.get("type") == "custom":
            text = call.arguments.get("input", "")
            return {"id": call.id, "type": "custom", "custom": {"name": call.name, "input": text}}
        arguments = call.invalid_arguments if call.invalid_arguments is not None else to_json(call.arguments).decode()
        written: dict[str, Any] = {
            "id": call.id,
            "type": "function",
            "function": {"name": call.name, "arguments": arguments},
        }
        written.update({key: value for key, value in opaque.items() if key in self._dialect.replayed})
        return written

    def _result(self, result: ToolResult) -> dict[str, Any]:
        if not isinstance(result.content, str):
            for part in result.content:
                if not isinstance(part, TextContent):
                    raise self._cannot(part, "in a tool's result")
        return {"role": "tool", "tool_call_id": result.tool_call_id, "content": result.text}

    def _content(self, parts: Sequence[Part]) -> Any:
        if len(parts) == 1 and isinstance(parts[0], TextContent):
            return parts[0].text
        return [self._block(part) for part in parts]

    def _block(self, part: Part) -> dict[str, Any]:
        match part:
            case TextContent():
                return {"type": "text", "text": part.text}
            case ImageContent():
                return _image(part)
            case AudioContent():
                return self._audio(part)
            case DocumentContent():
                return self._document(part)
            case CodeContent() | DiffContent():
                return {"type": "text", "text": _as_markdown(part)}
            case ThinkingContent() | ToolCall() | ToolResult() | RefusalContent():
                raise self._cannot(part, "in a user's message")
            case _:
                assert_never(part)

    def _audio(self, part: AudioContent) -> dict[str, Any]:
        format = _AUDIO_FORMATS.get(part.media_type or "audio/wav")
        if format is None:
            raise self._cannot(part, f"as {part.media_type}; it takes wav and mp3")
        return {"type": "input_audio", "input_audio": {"data": _base64(part.data), "format": format}}

    def _document(self, part: DocumentContent) -> dict[str, Any]:
        if part.text is not None:
            return {"type": "text", "text": part.text}
        if part.data is None:
            raise self._cannot(part, "by URL; pass its bytes as data")
        file = {"file_data": _data_url(part.data, part.media_type or "application/pdf")}
        return {"type": "file", "file": {"filename": part.title or "document", **file}}

    def _cannot(self, part: Part, where: str) -> errors.UnsupportedFeatureError:
        return errors.UnsupportedFeatureError(
            f"{self._dialect.name} does not take a part of type {part.type!r} {where}.",
            field="messages",
            fix="Leave it out, or use a provider that takes it.",
            provider=self._dialect.name,
            model=self._model or None,
        )


def _image(part: ImageContent) -> dict[str, Any]:
    url = part.image_url
    if url is None:
        url = _data_url(part.image_data or b"", part.media_type or "image/png")
    image: dict[str, Any] = {"url": url}
    if part.detail is not None:
        image["detail"] = part.detail
    return {"type": "image_url", "image_url": image}


def _as_markdown(part: CodeContent | DiffContent) -> str:
    if isinstance(part, CodeContent):
        return f"```{part.language or ''}\n{part.code}\n```"
    before = "".join(f"-{line}\n" for line in part.old_code.splitlines())
    after = "".join(f"+{line}\n" for line in part.new_code.splitlines())
    return f"```diff\n{before}{after}```"


def _data_url(data: bytes, media_type: str) -> str:
    return f"data:{media_type};base64,{_base64(data)}"


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")
