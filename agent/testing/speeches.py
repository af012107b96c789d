"""How three APIs write answers down: Anthropic's Messages, Responses and Gemini's generateContent.

Chat Completions is what scripts speak by themselves. A speech only speaks; it does not judge what it was asked.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from pydantic_core import to_json
from typing_extensions import override

from .. import errors
from ..providers.schema_example import example_of
from ..providers.scripted import Reply, arguments_of, check_sayable, code_of, status_of, unsayable, words_of
from ..types import AgentResponse, Part, RefusalContent, TextContent, ThinkingContent, ToolCall, Usage, VendorContent
from ..wire import WireRequest

_CHUNK = 12


class Speech(ABC):
    """How one API writes answers down."""

    @abstractmethod
    def whole(self, response: AgentResponse, body: Mapping[str, Any], number: int) -> dict[str, Any]: ...

    @abstractmethod
    def stream(self, response: AgentResponse, body: Mapping[str, Any], number: int) -> Iterator[bytes]: ...

    @abstractmethod
    def count(self, tokens: int) -> dict[str, Any]:
        """The answer of the endpoint that counts a prompt's tokens."""

    @abstractmethod
    def complaint(self, error: errors.AgentError) -> dict[str, Any]: ...

    @abstractmethod
    def last_text(self, body: Mapping[str, Any]) -> str: ...

    @abstractmethod
    def forced_tool(self, body: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]] | None:
        """Name and schema of the tool that must be called, if one must."""

    @abstractmethod
    def schema(self, body: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """The schema the answer must fit, if there is one."""

    def streams(self, request: WireRequest, body: Mapping[str, Any]) -> bool:
        return bool(body.get("stream"))

    def echo(self, body: dict[str, Any]) -> Reply:
        if (tool := self.forced_tool(body)) is not None:
            return ToolCall(id="call_1", name=tool[0], arguments=example_of(dict(tool[1])))
        if (schema := self.schema(body)) is not None:
            return to_json(example_of(dict(schema))).decode()
        return f"You said: {self.last_text(body)}"


def _event(data: Mapping[str, Any], *, named: bool = True) -> bytes:
    name = f"event: {data['type']}\n".encode() if named else b""
    return name + b"data: " + to_json(data) + b"\n\n"


def _reason(response: AgentResponse, words: Mapping[str, str]) -> str:
    """The vendor's word for why the answer ended; where it has none, the script's own."""
    reason = response.stop_reason or "stop"
    if reason == "stop" and response.tool_calls:
        reason = "tool_calls"
    elif reason == "stop" and response.refusal:
        reason = "refusal"
    return words.get(reason, response.raw_stop_reason or reason)


def _pieces(text: str) -> list[str]:
    return [text[start : start + _CHUNK] for start in range(0, len(text), _CHUNK)]


def _usage(response: AgentResponse) -> Usage:
    return response.usage or Usage()


def _shown_parts(response: AgentResponse) -> list[Part]:
    """What is written as blocks. A refusal is not one everywhere, and what cannot be said at all is an error."""
    check_sayable(response, VendorContent)
    return [part for part in response.content if not isinstance(part, RefusalContent)]


class AnthropicSpeech(Speech):
    """The Messages API."""

    _REASONS: ClassVar = {
        "stop": "end_turn",
        "length": "max_tokens",
        "tool_calls": "tool_use",
        "refusal": "refusal",
        "content_filter": "refusal",
        "pause": "pause_turn",
    }

    @override
    def whole(self, response: AgentResponse, body: Mapping[str, Any], number: int) -> dict[str, Any]:
        return {
            **self._head(body, number),
            "content": [self._block(part) for part in _shown_parts(response)],
            **self._ending(response),
            "usage": self._counts(response),
        }

    @override
    def stream(self, response: AgentResponse, body: Mapping[str, Any], number: int) -> Iterator[bytes]:
        counts = self._counts(response)
        opening = {**self._head(body, number), "content": [], "stop_reason": None, "stop_sequence": None}
        yield _event({"type": "message_start", "message": {**opening, "usage": {**counts, "output_tokens": 1}}})
        for index, part in enumerate(_shown_parts(response)):
            block = self._block(part)
            hollow = {key: value for key, value in self._GROWING.items() if key in block and self._grows(block)}
            yield _event({"type": "content_block_start", "index": index, "content_block": {**block, **hollow}})
            for delta in self._deltas(block):
                yield _event({"type": "content_block_delta", "index": index, "delta": delta})
            yield _event({"type": "content_block_stop", "index": index})
        yield _event({"type": "message_delta", "delta": self._ending(response), "usage": counts})
        yield _event({"type": "message_stop"})

    @override
    def count(self, tokens: int) -> dict[str, Any]:
        return {"input_tokens": tokens}

    @override
    def complaint(self, error: errors.AgentError) -> dict[str, Any]:
        return {"type": "error", "error": {"type": code_of(error) or "api_error", "message": error.message}}

    @override
    def last_text(self, body: Mapping[str, Any]) -> str:
        return _text_of(body["messages"][-1]["content"])

    @override
    def forced_tool(self, body: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]] | None:
        choice = body.get("tool_choice") or {}
        if choice.get("type") not in ("any", "tool"):
            return None
        wanted = choice.get("name")
        tool = next((tool for tool in body["tools"] if wanted in (None, tool["name"])), None)
        return None if tool is None else (tool["name"], tool.get("input_schema") or {})

    @override
    def schema(self, body: Mapping[str, Any]) -> Mapping[str, Any] | None:
        form = (body.get("output_config") or {}).get("format") or body.get("output_format") or {}
        return form.get("schema")

    def _head(self, body: Mapping[str, Any], number: int) -> dict[str, Any]:
        return {"id": f"msg_{number}", "type": "message", "role": "assistant", "model": body.get("model")}

    def _block(self, part: Part) -> dict[str, Any]:
        match part:
            case ThinkingContent(redacted=True):
                return {"type": "redacted_thinking", "data": part.encrypted_content or "sealed"}
            case ThinkingContent():
                return {"type": "thinking", "thinking": part.thinking, "signature": part.signature or "sealed"}
            case VendorContent():
                return dict(part.provider_data or {"type": part.kind})
            case ToolCall():
                given = part.arguments if part.invalid_arguments is None else part.invalid_arguments
                return {"type": "tool_use", "id": part.id, "name": part.name, "input": given}
            case _:
                return {"type": "text", "text": part.text or ""}

    _GROWING: ClassVar[dict[str, Any]] = {"text": "", "thinking": "", "signature": "", "input": {}}

    def _grows(self, block: Mapping[str, Any]) -> bool:
        return block["type"] in ("text", "thinking", "tool_use")

    def _deltas(self, block: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        match block["type"]:
            case "text":
                for word in words_of(block["text"]):
                    yield {"type": "text_delta", "text": word}
            case "thinking":
                for word in words_of(block["thinking"]):
                    yield {"type": "thinking_delta", "thinking": word}
                yield {"type": "signature_delta", "signature": block["signature"]}
            case "tool_use":
                given = block["input"]
                for piece in _pieces(given if isinstance(given, str) else to_json(given).decode()):
                    yield {"type": "input_json_delta", "partial_json": piece}
            case _:
                pass  # came whole

    def _ending(self, response: AgentResponse) -> dict[str, Any]:
        reason = _reason(response, self._REASONS)
        details = {"type": "refusal", "category": None, "explanation": response.refusal} if response.refusal else None
        return {"stop_reason": reason, "stop_sequence": None, "stop_details": details}

    def _counts(self, response: AgentResponse) -> dict[str, Any]:
        usage = _usage(response)
        return {
            "input_tokens": usage.input_tokens,
            "output_tokens": usage.completion_tokens,
            "output_tokens_details": {"thinking_tokens": usage.reasoning_tokens},
            "cache_read_input_tokens": usage.cache_read_tokens,
            "cache_creation_input_tokens": usage.cache_write_tokens,
        }


class ResponsesSpeech(Speech):
    """The Responses API."""

    _REASONS: ClassVar = {
        "stop": "",  # complete, and so are answers that call tools or refuse
        "tool_calls": "",
        "refusal": "",
        "length": "max_output_tokens",
        "content_filter": "content_filter",
    }

    @override
    def whole(self, response: AgentResponse, body: Mapping[str, Any], number: int) -> dict[str, Any]:
        cut = _reason(response, self._REASONS)
        usage = _usage(response)
        parts = [*_shown_parts(response), *(part for part in response.content if isinstance(part, RefusalContent))]
        return {
            **self._head(body, number),
            "status": "incomplete" if cut else "completed",
            "incomplete_details": {"reason": cut} if cut else None,
            "output": [self._item(part, index, number) for index, part in enumerate(parts)],
            "usage": {
                "input_tokens": usage.prompt_tokens,
                "input_tokens_details": {
                    "cached_tokens": usage.cache_read_tokens,
                    "cache_write_tokens": usage.cache_write_tokens,
                },
                "output_tokens": usage.completion_tokens,
                "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
                "total_tokens": usage.total_tokens,
            },
        }

    @override
    def stream(self, response: AgentResponse, body: Mapping[str, Any], number: int) -> Iterator[bytes]:
        final = self.whole(response, body, number)
        opening = {**self._head(body, number), "status": "in_progress", "output": [], "usage": None}
        events: list[dict[str, Any]] = [{"type": "response.created", "response": opening}]
        for index, item in enumerate(final["output"]):
            events += self._item_events(item, index)
        ending = "response.incomplete" if final["status"] == "incomplete" else "response.completed"
        events.append({"type": ending, "response": final})
        for sequence_number, event in enumerate(events):
            yield _event({**event, "sequence_number": sequence_number})

    @override
    def count(self, tokens: int) -> dict[str, Any]:
        return {"object": "response.input_tokens", "input_tokens": tokens}

    @override
    def complaint(self, error: errors.AgentError) -> dict[str, Any]:
        code = code_of(error)
        return {"error": {"message": error.message, "type": code or "error", "code": code, "param": None}}

    @override
    def last_text(self, body: Mapping[str, Any]) -> str:
        last = body["input"] if isinstance(body["input"], str) else body["input"][-1]
        if isinstance(last, str):
            return last
        return _text_of(last.get("content", last.get("output", "")))

    @override
    def forced_tool(self, body: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]] | None:
        choice = body.get("tool_choice")
        if choice in (None, "auto", "none"):
            return None
        wanted = choice.get("name") if isinstance(choice, dict) else None
        named = (tool for tool in body["tools"] if "name" in tool)  # those of the vendor are not
        tool = next((tool for tool in named if wanted in (None, tool["name"])), None)
        return None if tool is None else (tool["name"], tool.get("parameters") or {})

    @override
    def schema(self, body: Mapping[str, Any]) -> Mapping[str, Any] | None:
        form = (body.get("text") or {}).get("format") or {}
        return form.get("schema")

    def _head(self, body: Mapping[str, Any], number: int) -> dict[str, Any]:
        return {
            "id": f"resp_{number}",
            "object": "response",
            "created_at": 0,
            "model": body.get("model"),
            "error": None,
        }

    def _item(self, part: Part, index: int, number: int) -> dict[str, Any]:
        match part:
            case ThinkingContent():
                return {
                    "id": f"rs_{number}_{index}",
                    "type": "reasoning",
                    "summary": [{"type": "summary_text", "text": part.thinking}] if part.thinking else [],
                    "encrypted_content": part.encrypted_content or "sealed",
                }
            case ToolCall():
                return {
                    "id": f"fc_{number}_{index}",
                    "type": "function_call",
                    "status": "completed",
                    "call_id": part.id,
                    "name": part.name,
                    "arguments": arguments_of(part),
                }
            case VendorContent():
                return {"id": f"item_{number}_{index}", **(part.provider_data or {"type": part.kind})}
            case _:
                content: dict[str, Any] = {"type": "output_text", "text": part.text or ""}
                content |= {"annotations": [], "logprobs": []}
                if isinstance(part, RefusalContent):
                    content = {"type": "refusal", "refusal": part.refusal}
                item = {"id": f"msg_{number}_{index}", "type": "message", "status": "completed", "role": "assistant"}
                return {**item, "content": [content]}

    def _item_events(self, item: dict[str, Any], index: int) -> Iterator[dict[str, Any]]:
        at = {"output_index": index, "item_id": item["id"]}
        hollow = {**item, "status": "in_progress"}
        hollow |= {key: [] for key in ("content", "summary") if key in item}
        hollow |= {key: "" for key in ("arguments",) if key in item}
        yield {"type": "response.output_item.added", "output_index": index, "item": hollow}
        here: dict[str, Any] = {**at, "content_index": 0}
        if item["type"] == "message" and item["content"][0]["type"] == "refusal":
            part = item["content"][0]
            yield {"type": "response.content_part.added", **here, "part": {**part, "refusal": ""}}
            for word in words_of(part["refusal"]):
                yield {"type": "response.refusal.delta", **here, "delta": word}
            yield {"type": "response.refusal.done", **here, "refusal": part["refusal"]}
            yield {"type": "response.content_part.done", **here, "part": part}
        elif item["type"] == "message":
            part = item["content"][0]
            yield {"type": "response.content_part.added", **here, "part": {**part, "text": ""}}
            for word in words_of(part["text"]):
                yield {"type": "response.output_text.delta", **here, "delta": word, "logprobs": []}
            yield {"type": "response.output_text.done", **here, "text": part["text"], "logprobs": []}
            yield {"type": "response.content_part.done", **here, "part": part}
        elif item["type"] == "reasoning" and item["summary"]:
            part, here = item["summary"][0], {**at, "summary_index": 0}
            yield {"type": "response.reasoning_summary_part.added", **here, "part": {**part, "text": ""}}
            for word in words_of(part["text"]):
                yield {"type": "response.reasoning_summary_text.delta", **here, "delta": word}
            yield {"type": "response.reasoning_summary_text.done", **here, "text": part["text"]}
            yield {"type": "response.reasoning_summary_part.done", **here, "part": part}
        elif item["type"] == "function_call":
            for piece in _pieces(item["arguments"]):
                yield {"type": "response.function_call_arguments.delta", **at, "delta": piece}
            done = {"name": item["name"], "arguments": item["arguments"]}
            yield {"type": "response.function_call_arguments.done", **at, **done}
        yield {"type": "response.output_item.done", "output_index": index, "item": item}


class GeminiSpeech(Speech):
    """generateContent and streamGenerateContent."""

    _REASONS: ClassVar = {
        "stop": "STOP",
        "tool_calls": "STOP",
        "length": "MAX_TOKENS",
        "content_filter": "SAFETY",
        "refusal": "SAFETY",  # it has no word for a model's own refusal
        "pause": "CONTINUATION",
        "error": "MALFORMED_RESPONSE",
        "other": "OTHER",
    }

    @override
    def whole(self, response: AgentResponse, body: Mapping[str, Any], number: int) -> dict[str, Any]:
        parts = [self._part(part) for part in _shown_parts(response)]
        return self._chunk(parts, response, body, number, last=True)

    @override
    def stream(self, response: AgentResponse, body: Mapping[str, Any], number: int) -> Iterator[bytes]:
        for part in _shown_parts(response):
            written = self._part(part)
            grows = "text" in written and "thoughtSignature" not in written  # a signature is for one whole part
            for piece in [{**written, "text": word} for word in words_of(written["text"])] if grows else [written]:
                yield _event(self._chunk([piece], response, body, number), named=False)
        yield _event(self._chunk([], response, body, number, last=True), named=False)

    @override
    def count(self, tokens: int) -> dict[str, Any]:
        return {"totalTokens": tokens}

    @override
    def complaint(self, error: errors.AgentError) -> dict[str, Any]:
        code = code_of(error)
        details = [{"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": code}] if code else []
        said = {"code": status_of(error), "message": error.message, "status": code or "UNKNOWN", "details": details}
        return {"error": said}

    @override
    def streams(self, request: WireRequest, body: Mapping[str, Any]) -> bool:
        return ":streamGenerateContent" in request.url

    @override
    def last_text(self, body: Mapping[str, Any]) -> str:
        return _text_of(body["contents"][-1]["parts"])

    @override
    def forced_tool(self, body: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]] | None:
        config = (body.get("toolConfig") or {}).get("functionCallingConfig") or {}
        if config.get("mode") != "ANY":
            return None
        allowed = config.get("allowedFunctionNames")
        declared = [tool for group in body["tools"] for tool in group.get("functionDeclarations") or ()]
        tool = next((tool for tool in declared if not allowed or tool["name"] in allowed), None)
        if tool is None:
            return None
        return tool["name"], tool.get("parametersJsonSchema") or tool.get("parameters") or {}

    @override
    def schema(self, body: Mapping[str, Any]) -> Mapping[str, Any] | None:
        config = body.get("generationConfig") or {}
        schema: Mapping[str, Any] | None = config.get("responseJsonSchema") or config.get("responseSchema")
        return schema

    def _part(self, part: Part) -> dict[str, Any]:
        match part:
            case ThinkingContent():
                sealed = {"thoughtSignature": part.signature} if part.signature else {}
                return {"text": part.thinking, "thought": True, **sealed}
            case ToolCall():
                if part.invalid_arguments is not None:
                    raise unsayable("arguments that are no JSON")  # this API has no text for them
                sealed = {"thoughtSignature": part.signature} if part.signature else {}
                return {"functionCall": {"id": part.id, "name": part.name, "args": part.arguments}, **sealed}
            case VendorContent():
                return dict(part.provider_data or {part.kind: {}})
            case TextContent(signature=str(signature)):
                return {"text": part.text, "thoughtSignature": signature}
            case _:
                return {"text": part.text or ""}

    def _chunk(
        self, parts: Any, response: AgentResponse, body: Mapping[str, Any], number: int, *, last: bool = False
    ) -> dict[str, Any]:
        candidate: dict[str, Any] = {"content": {"role": "model", "parts": parts}, "index": 0}
        chunk: dict[str, Any] = {
            "candidates": [candidate],
            "modelVersion": body.get("model"),
            "responseId": f"response_{number}",
        }
        if last:
            usage = _usage(response)
            candidate["finishReason"] = _reason(response, self._REASONS)
            if response.refusal:
                candidate["finishMessage"] = response.refusal
            chunk["usageMetadata"] = {
                "promptTokenCount": usage.prompt_tokens,
                "candidatesTokenCount": usage.completion_tokens - usage.reasoning_tokens,
                "thoughtsTokenCount": usage.reasoning_tokens,
                "cachedContentTokenCount": usage.cache_read_tokens,
                "totalTokenCount": usage.total_tokens,
            }
        return chunk


def _text_of(content: Any) -> str:
    if isinstance(content, str):
        return content
    return " ".join(_block_text(block) for block in content)


def _block_text(block: Mapping[str, Any]) -> str:
    """What a block says: text, or the result of a tool, which each API keeps elsewhere."""
    if isinstance(block.get("text"), str):
        return str(block["text"])
    result = (block.get("functionResponse") or {}).get("response") or {}
    said = block.get("content", result.get("result", result.get("error")))
    return _text_of(said) if isinstance(said, str | list) else f"[{block.get('type', 'part')}]"
