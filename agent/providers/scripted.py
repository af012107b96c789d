"""A provider without a vendor, for tests, examples and docs: it answers from a script, in the wire format of
Chat Completions, so everything but the model is real.
"""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from pydantic import BaseModel
from pydantic_core import to_json

from .. import errors
from ..answers import Answer, Piece
from ..types import (
    AgentConfig,
    AgentResponse,
    ContentPart,
    RefusalContent,
    TextContent,
    ThinkingContent,
    ToolCall,
    Usage,
)
from ..wire import WireRequest
from .base import Provider, ProviderFactory
from .openai_chat import ChatCodec, Dialect
from .schema_example import example_of

Reply: TypeAlias = (
    "str | AgentResponse | ContentPart | Sequence[ContentPart] | BaseModel | Mapping[str, Any] | Exception | Answer"
)
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
    (errors.ContentFilterError, 400),
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
        body, number = self._asked(request)
        line = self._echo(request) if self._echoes else self._next_line()
        reply = line(body) if callable(line) else line
        if isinstance(reply, Answer):
            return reply
        if isinstance(reply, errors.ConnectionError | errors.TimeoutError):
            return Answer(failure=reply)
        if isinstance(reply, errors.AgentError):
            return self._fail(reply, request)
        if isinstance(reply, Exception):
            return Answer(failure=errors.ConnectionError(f"{type(reply).__name__}: {reply}"))
        return self._say(as_response(reply, body), request, body, number)

    def _asked(self, request: WireRequest) -> tuple[dict[str, Any], int]:
        """The request's body, now on record, and which request it is."""
        body: dict[str, Any] = json.loads(request.body)
        with self._lock:
            self.requests.append(body)
            self._count += 1
            return body, self._count

    def _next_line(self) -> Line:
        try:
            return self._lines.popleft()
        except IndexError:
            return errors.BadRequestError("the script has no more lines")

    def _echo(self, request: WireRequest) -> Line:
        return echo

    def _say(self, response: AgentResponse, request: WireRequest, body: dict[str, Any], number: int) -> Answer:
        check_sayable(response)
        if body.get("stream"):
            return self._streamed(_stream(response, body, number), number)
        return self._whole(_completion(response, body, number), number)

    def _streamed(self, chunks: Iterable[bytes], number: int) -> Answer:
        pieces = [Piece(chunk, self._delay) for chunk in chunks]
        return Answer(pieces, headers={"content-type": "text/event-stream", "x-request-id": f"req_{number}"})

    def _whole(self, body: dict[str, Any], number: int) -> Answer:
        headers = {"content-type": "application/json", "x-request-id": f"req_{number}"}
        return Answer([to_json(body)], headers=headers)

    def _fail(self, error: errors.AgentError, request: WireRequest) -> Answer:
        complaint = {"message": error.message, "type": type(error).__name__, "code": code_of(error)}
        return failed(error, {"error": complaint})


def echo(body: dict[str, Any]) -> Reply:
    """The default script: it says what it was told, and fills forms with examples."""
    choice = body.get("tool_choice")
    if choice not in (None, "auto", "none"):
        wanted = choice["function"]["name"] if isinstance(choice, dict) else None
        functions = (tool["function"] for tool in body.get("tools") or () if "function" in tool)  # others are vendors'
        if function := next((each for each in functions if wanted in (None, each["name"])), None):
            return ToolCall(id="call_1", name=function["name"], arguments=example_of(function.get("parameters") or {}))
    if (form := body.get("response_format")) and form.get("type") == "json_schema":
        return TextContent(text=to_json(example_of(form["json_schema"]["schema"])).decode())
    return f"You said: {_last_text(body)}"


def _last_text(body: dict[str, Any]) -> str:
    content = body["messages"][-1].get("content") or ""
    if isinstance(content, str):
        return content
    return " ".join(block.get("text") or f"[{block['type']}]" for block in content)


def as_response(reply: Any, body: dict[str, Any]) -> AgentResponse:
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
    return response if response.usage is not None else response.model_copy(update={"usage": _counted(response, body)})


def _counted(response: AgentResponse, body: dict[str, Any]) -> Usage:
    """Words for tokens: wrong, but the same each time."""
    answered = sum(len(piece.split()) for piece in (response.text or "", response.thinking))
    return Usage(prompt_tokens=words_in(body), completion_tokens=answered + 4 * len(response.tool_calls))


def words_in(body: Mapping[str, Any]) -> int:
    """How many words a request has, in whichever API."""
    asked = body.get("generateContentRequest") or body
    return len(json.dumps(asked.get("messages") or asked.get("input") or asked.get("contents")).split())


def check_sayable(response: AgentResponse, *more: type[ContentPart]) -> None:
    """Refuse what would not be in the answer: a script that leaves something out proves nothing."""
    for part in response.content:
        if not isinstance(part, (TextContent, ThinkingContent, ToolCall, RefusalContent, *more)):
            raise unsayable(f"a part of type {part.type!r}")
        if isinstance(part, TextContent) and part.citations:
            raise unsayable("citations")


def unsayable(what: str) -> errors.ConfigurationError:
    return errors.ConfigurationError(
        f"A script does not know how to answer with {what} here.", field="lines", fix="Pass an Answer with the bytes."
    )


def status_of(error: errors.AgentError) -> int:
    return error.status_code or next((code for kind, code in _STATUS if isinstance(error, kind)), 500)


def code_of(error: errors.AgentError) -> str | None:
    """The vendor's name for an error. No status says that a filter refused something, so its name has to."""
    return error.code or ("content_filter" if isinstance(error, errors.ContentFilterError) else None)


def failed(error: errors.AgentError, body: dict[str, Any]) -> Answer:
    """The HTTP answer with which a vendor would report an error."""
    headers = {"content-type": "application/json"}
    if error.retry_after is not None:
        headers["retry-after"] = str(error.retry_after)
    return Answer([to_json(body)], status=status_of(error), headers=headers)


def _head(body: dict[str, Any], number: int, kind: str) -> dict[str, Any]:
    return {"id": f"scripted-{number}", "object": kind, "created": 0, "model": body.get("model")}


def _completion(response: AgentResponse, body: dict[str, Any], number: int) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": response.text}
    if response.thinking:
        message["reasoning_content"] = response.thinking
    if response.refusal:
        message["refusal"] = response.refusal
    if response.tool_calls:
        message["tool_calls"] = [_call(call, arguments_of(call)) for call in response.tool_calls]
    choice = {"index": 0, "message": message, "finish_reason": _finish_reason(response)}
    return {**_head(body, number, "chat.completion"), "choices": [choice], "usage": _usage(response)}


def _call(call: ToolCall, arguments: str) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}}


def arguments_of(call: ToolCall) -> str:
    """What the model writes as arguments, be it JSON or not."""
    return to_json(call.arguments).decode() if call.invalid_arguments is None else call.invalid_arguments


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
    for word in words_of(response.thinking):
        yield event({"reasoning_content": word})
    for word in words_of(response.text or ""):
        yield event({"content": word})
    for word in words_of(response.refusal or ""):
        yield event({"refusal": word})
    for index, call in enumerate(response.tool_calls):
        yield event({"tool_calls": [{"index": index, **_call(call, "")}]})
        text = arguments_of(call)
        for start in range(0, len(text), 12):
            yield event({"tool_calls": [{"index": index, "function": {"arguments": text[start : start + 12]}}]})
    yield event({}, _finish_reason(response))
    if (body.get("stream_options") or {}).get("include_usage"):
        yield b"data: " + to_json({**head, "choices": [], "usage": _usage(response)}) + b"\n\n"
    yield b"data: [DONE]\n\n"


def words_of(text: str) -> list[str]:
    """Words with the space before them, as models stream them; joined they are the text."""
    words = text.split(" ")
    return [word if position == 0 else f" {word}" for position, word in enumerate(words) if word or position]
