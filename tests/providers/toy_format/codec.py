"""The client side of postcards."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from typing_extensions import override

from agent.engine.wire import WireRequest, parse_json
from agent.providers.base import StreamDecoder
from agent.providers.codec import CodecBase, DecoderBase
from agent.types import (
    AgentConfig,
    AgentRequest,
    AgentResponse,
    FinishReason,
    Message,
    Part,
    ProviderCapabilities,
    StreamEvent,
    TextContent,
    ToolCall,
    ToolResult,
    ToolSpec,
    Usage,
)

API = "postcard"
CAPABILITIES = ProviderCapabilities(streaming=True, tools=True)
ENDS: dict[str, FinishReason] = {"done": "stop", "full": "length", "call": "tool_calls"}


class PostcardCodec(CodecBase):
    api = API
    response_kind = "postcard"
    schema_dialect = API

    def __init__(self, name: str, config: AgentConfig) -> None:
        key = "" if config.api_key is None else config.api_key.get_secret_value()
        super().__init__(name, CAPABILITIES, {"x-stamp": key}, (key,))
        self._url = f"{config.base_url}/postcards"

    def encode(self, request: AgentRequest, *, stream: bool) -> WireRequest:
        body: dict[str, Any] = {
            "model": request.model,
            "turns": [turn for message in request.to_messages() for turn in _turns(message)],
            "stream": stream,
            "warmth": request.temperature,
            "room": request.max_tokens,
            "tools": [
                {"name": tool.name, "about": tool.description, "takes": {**tool.parameters}}
                for tool in request.tools
                if isinstance(tool, ToolSpec)
            ],
            "use": request.tool_choice,
            **request.extra,
        }
        return WireRequest(self._url, self._headers, json.dumps(body).encode(), self.name)

    @override
    def _read_response(self, body: Any, headers: Mapping[str, str], request: AgentRequest) -> AgentResponse:
        parts: list[Part] = [TextContent(text=body["text"])] if body["text"] else []
        parts += [_read_call(call) for call in body["calls"]]
        return AgentResponse(
            provider=self.name,
            model=body["model"],
            content=parts,
            usage=_read_cost(body["cost"]),
            stop_reason=ENDS[body["end"]],
        )

    def decoder(self, headers: Mapping[str, str], request: AgentRequest) -> StreamDecoder:
        return PostcardDecoder(self.name, headers, request, self._secrets)


def _turns(message: Message) -> list[dict[str, Any]]:
    results = [part for part in message.parts if isinstance(part, ToolResult)]
    if results:
        return [{"from": "tool", "text": result.text, "answers": result.tool_call_id} for result in results]
    calls = [{"id": call.id, "name": call.name, "args": {**call.arguments}} for call in message.tool_calls or ()]
    return [{"from": message.role.value, "text": message.text, **({"calls": calls} if calls else {})}]


def _read_call(call: Any) -> ToolCall:
    return ToolCall(id=call["id"], name=call["name"], arguments=parse_json(call["args"]))


def _read_cost(cost: Any) -> Usage:
    return Usage(prompt_tokens=cost["read"], completion_tokens=cost["written"])


class PostcardDecoder(DecoderBase):
    __slots__ = ("_calls",)

    def __init__(self, name: str, headers: Mapping[str, str], request: AgentRequest, secrets: tuple[str, ...]) -> None:
        super().__init__(name, headers, request, secrets)
        self._calls: dict[int, dict[str, str]] = {}

    @override
    def _decode_event(self, payload: bytes, events: list[StreamEvent]) -> None:
        line = parse_json(payload)
        if "error" in line:
            self._report_error(line)
        elif "model" in line:
            self._start(AgentResponse(provider=self._name, model=line["model"]), line)
        elif "text" in line:
            events.append(StreamEvent.text_delta(line["text"], index=0))
        elif "call" in line:
            call = self._calls[line["call"]] = {"id": line["id"], "name": line["name"], "args": ""}
            started = ToolCall(id=call["id"], name=call["name"])
            events.append(StreamEvent.tool_call_start(started, index=1 + line["call"]))
        elif "args" in line:
            self._calls[line["of"]]["args"] += line["args"]
            events.append(StreamEvent.tool_call_delta_event(line["args"], index=1 + line["of"]))
        elif "end" in line:
            for number, call in self._calls.items():
                events.append(StreamEvent.tool_call_end(_read_call(call), index=1 + number))
            usage = _read_cost(line["cost"])
            facts = AgentResponse(stop_reason=ENDS[line["end"]], usage=usage)
            events.append(StreamEvent.message_end(usage=usage, response=facts))
            self.done = True
