"""A provider without a vendor, for tests, examples and docs: it answers from a script, in the wire format of
Chat Completions, so everything but the model is real.
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
from ..answers import Answer, Piece
from ..types import AgentConfig, AgentResponse, Part, RefusalContent, TextContent, ThinkingContent, ToolCall, Usage
from ..wire import WireRequest
from .base import Provider, ProviderFactory
from .openai_chat import ChatCodec, Dialect
from .schema_example import example_of

Reply: TypeAlias = "str | AgentResponse | Part | Sequence[Part] | BaseModel | Mapping[str, Any] | Exception | Answer"
"""What a script may answer: text, a response, parts, a value to be written as JSON, an error, or bytes as they are."""
Line: TypeAlias = "Reply | Callable[[dict[str, Any]], Reply]"
"""A reply, or a function from the request's body to one."""

DIALECT = Dialect(name="scripted", base_url="http://scripted.localhost", key_required=False)

_STATUS = (
    (errors.AuthenticationError, 401),
    (errors.QuotaExceededError, 402),
    (errors.ModelNotFoundError, 404),
    (errors.RateLimitError, 429),
    (errors.ContextLengthError, 413),
    (errors.BadRequestError, 400),
    (errors.OverloadedError, 529),
)


def provider(name: str) -> ProviderFactory:
    """The factory; with a base_url it speaks HTTP to a server that plays a script, without one it needs none."""
    dialect = replace(DIALECT, name=name)

    def make(config: AgentConfig) -> Provider:
        codec = ScriptedCodec.from_config(config, dialect)
        codec.transport = "scripted" if config.base_url is None else "http"
        return codec

    return make


class ScriptedCodec(ChatCodec):
    """Chat Completions, carried in process unless an address is given."""

    transport: str = "scripted"


class Script:
    """Replies in order. Without any, it echoes the last message, or makes up what a schema or a forced tool demands.

    Args:
        lines: What to answer, one after the other. When they are used up, requests fail.
        delay: Seconds between the pieces of a stream.
    """

    def __init__(self, *lines: Line, delay: float = 0.0) -> None:
        self._echoes = not lines
        self._lines = deque(lines)
        self._delay = delay
        self._lock = threading.Lock()
        self._count = 0
        self.requests: deque[dict[str, Any]] = deque(maxlen=10_000)
        """The bodies that were asked, in order."""

    def __call__(self, request: WireRequest) -> Answer:
        body: dict[str, Any] = json.loads(request.body)
        with self._lock:
            self.requests.append(body)
            self._count += 1
            number = self._count
            line: Line = echo if self._echoes else self._lines.popleft() if self._lines else _used_up()
        reply = line(body) if callable(line) else line
        if isinstance(reply, Answer):
            return reply
        if isinstance(reply, errors.ConnectionError | errors.TimeoutError):
            return Answer(failure=reply)
        if isinstance(reply, errors.AgentError):
            return _failure(reply)
        if isinstance(reply, Exception):
            return Answer(failure=errors.ConnectionError(f"{type(reply).__name__}: {reply}"))
        response = _as_response(reply, body)
        if body.get("stream"):
            pieces = [Piece(chunk, self._delay) for chunk in _stream(response, body, number)]
            return Answer(pieces, headers={"content-type": "text/event-stream", "x-request-id": f"req_{number}"})
        return Answer(
            [to_json(_completion(response, body, number))],
            headers={"content-type": "application/json", "x-request-id": f"req_{number}"},
        )


def _used_up() -> errors.AgentError:
    return errors.BadRequestError("the script has no more lines")


def echo(body: dict[str, Any]) -> Reply:
    """The default script: it says what it was told, and fills forms with examples."""
    choice = body.get("tool_choice")
    if choice not in (None, "auto", "none") and body.get("tools"):
        wanted = choice["function"]["name"] if isinstance(choice, dict) else None
        function = next(
            tool["function"] for tool in body["tools"] if wanted is None or tool["function"]["name"] == wanted
        )
        return ToolCall(id="call_1", name=function["name"], arguments=example_of(function.get("parameters") or {}))
    if (form := body.get("response_format")) and form.get("type") == "json_schema":
        return TextContent(text=to_json(example_of(form["json_schema"]["schema"])).decode())
    return f"You said: {_last_text(body)}"


def _last_text(body: dict[str, Any]) -> str:
    content = body["messages"][-1].get("content") or ""
    if isinstance(content, str):
        return content
    return " ".join(block.get("text") or f"[{block['type']}]" for block in content)


def _as_response(reply: Any, body: dict[str, Any]) -> AgentResponse:
    if isinstance(reply, AgentResponse):
        response = reply
    elif isinstance(reply, str):
        response = AgentResponse(text=reply)
    elif isinstance(reply, TextContent | ThinkingContent | ToolCall | RefusalContent):
        response = AgentResponse(content=(reply,))
    elif isinstance(reply, BaseModel | Mapping):
        response = AgentResponse(text=to_json(reply).decode())
    else:
        response = AgentResponse(content=tuple(reply))
    return response if response.usage is not None else response.model_copy(update={"usage": _counted(response, body)})


def _counted(response: AgentResponse, body: dict[str, Any]) -> Usage:
    """Words for tokens: wrong, but the same each time."""
    said = len(json.dumps(body.get("messages")).split())
    answered = sum(len(piece.split()) for piece in (response.text or "", response.thinking))
    return Usage(prompt_tokens=said, completion_tokens=answered + 4 * len(response.tool_calls))


def _failure(error: errors.AgentError) -> Answer:
    status = error.status_code or next((code for kind, code in _STATUS if isinstance(error, kind)), 500)
    headers = {"content-type": "application/json"}
    if error.retry_after is not None:
        headers["retry-after"] = str(error.retry_after)
    complaint = {"message": error.message, "type": type(error).__name__, "code": error.code}
    return Answer([to_json({"error": complaint})], status=status, headers=headers)


def _head(body: dict[str, Any], number: int, kind: str) -> dict[str, Any]:
    return {"id": f"scripted-{number}", "object": kind, "created": 0, "model": body.get("model")}


def _completion(response: AgentResponse, body: dict[str, Any], number: int) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": response.text}
    if response.thinking:
        message["reasoning_content"] = response.thinking
    if response.refusal:
        message["refusal"] = response.refusal
    if response.tool_calls:
        message["tool_calls"] = [_call(call, to_json(call.arguments).decode()) for call in response.tool_calls]
    choice = {"index": 0, "message": message, "finish_reason": _finish_reason(response)}
    return {**_head(body, number, "chat.completion"), "choices": [choice], "usage": _usage(response)}


def _call(call: ToolCall, arguments: str) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}}


def _finish_reason(response: AgentResponse) -> str:
    if response.stop_reason in (None, "stop", "refusal", "tool_calls"):
        return "tool_calls" if response.tool_calls else "stop"
    return str(response.raw_stop_reason or response.stop_reason)


def _usage(response: AgentResponse) -> dict[str, Any]:
    usage = response.usage or Usage()
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.total_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cache_read_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


def _stream(response: AgentResponse, body: dict[str, Any], number: int) -> Iterator[bytes]:
    head = _head(body, number, "chat.completion.chunk")

    def event(delta: dict[str, Any], reason: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": reason}
        return b"data: " + to_json({**head, "choices": [choice]}) + b"\n\n"

    yield event({"role": "assistant", "content": ""})
    for word in _words(response.thinking):
        yield event({"reasoning_content": word})
    for word in _words(response.text or ""):
        yield event({"content": word})
    for word in _words(response.refusal or ""):
        yield event({"refusal": word})
    for index, call in enumerate(response.tool_calls):
        yield event({"tool_calls": [{"index": index, **_call(call, "")}]})
        text = to_json(call.arguments).decode()
        for start in range(0, len(text), 12):
            yield event({"tool_calls": [{"index": index, "function": {"arguments": text[start : start + 12]}}]})
    yield event({}, _finish_reason(response))
    if (body.get("stream_options") or {}).get("include_usage"):
        yield b"data: " + to_json({**head, "choices": [], "usage": _usage(response)}) + b"\n\n"
    yield b"data: [DONE]\n\n"


def _words(text: str) -> list[str]:
    """Words with the space before them, as models stream them; joined they are the text."""
    words = text.split(" ")
    return [word if position == 0 else f" {word}" for position, word in enumerate(words) if word or position]
