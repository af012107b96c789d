"""Reading recorded bodies of generateContent back into our types, to be sent again, here or elsewhere."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from agent.providers.gemini.names import made_up_id
from agent.testing.rules.gemini import camel
from agent.types import (
    AgentRequest,
    AudioContent,
    DocumentContent,
    ImageContent,
    Message,
    Origin,
    Part,
    Role,
    TextContent,
    ThinkingContent,
    ThinkingLevel,
    ToolCall,
    ToolResult,
    ToolSpec,
    VendorContent,
)

LEVEL_OF_BUDGET = (
    (0, ThinkingLevel.OFF),
    (512, ThinkingLevel.MINIMAL),
    (2_048, ThinkingLevel.LOW),
    (8_192, ThinkingLevel.MEDIUM),
    (24_576, ThinkingLevel.HIGH),
)
_CHOICES = {"AUTO": "auto", "NONE": "none", "ANY": "required", "VALIDATED": "auto"}


def read_request(body: dict[str, Any], model: str) -> AgentRequest:
    """The request that a body was written for."""
    plain: dict[str, Any] = camel(body)
    config: dict[str, Any] = plain.pop("generationConfig", None) or {}
    tool_config: dict[str, Any] = plain.pop("toolConfig", None) or {}
    calling = tool_config.pop("functionCallingConfig", None) or {}
    tools = list(_tools(plain.pop("tools", None) or (), strict=calling.get("mode") == "VALIDATED"))
    contents = plain.pop("contents")
    system = plain.pop("systemInstruction", None) or {}
    settings = _settings(config)
    extra = {**plain, **({"generationConfig": config} if config else {})}
    if tool_config:
        extra["toolConfig"] = tool_config
    return AgentRequest(
        model=model,
        messages=[*_instructions(system), *_Conversation(model).messages(contents, body["contents"])],
        tools=tools,
        tool_choice=_choice(calling) if tools else None,
        extra=extra,
        **settings,
    )


def _settings(config: dict[str, Any]) -> dict[str, Any]:
    """Takes out of the configuration what our request has a place for."""
    settings: dict[str, Any] = {
        ours: config.pop(theirs)
        for ours, theirs in (
            ("temperature", "temperature"),
            ("top_p", "topP"),
            ("max_tokens", "maxOutputTokens"),
            ("stop", "stopSequences"),
            ("seed", "seed"),
        )
        if theirs in config
    }
    if config.pop("responseLogprobs", None):
        settings["logprobs"] = config.pop("logprobs", 0)
    schema = config.pop("responseJsonSchema", None) or config.pop("responseSchema", None)
    if schema is not None:
        config.pop("responseMimeType", None)
        settings["output_schema"] = json_schema(schema)
    thinking = config.get("thinkingConfig") or {}
    if "thinkingLevel" in thinking:
        settings["thinking"] = ThinkingLevel(config.pop("thinkingConfig")["thinkingLevel"].lower())
    elif "thinkingBudget" in thinking:
        budget = config.pop("thinkingConfig")["thinkingBudget"]
        found = (level for most, level in LEVEL_OF_BUDGET if budget <= most)
        settings["thinking"] = next(found, ThinkingLevel.XHIGH)
    return settings


def _instructions(system: Mapping[str, Any]) -> Iterator[Message]:
    parts = system.get("parts") or ()
    texts = [part["text"] for part in ([parts] if isinstance(parts, Mapping) else parts) if part.get("text")]
    if texts:
        yield Message(Role.SYSTEM, [TextContent(text=text) for text in texts])


def _choice(calling: Mapping[str, Any]) -> str | None:
    allowed: list[str] = calling.get("allowedFunctionNames") or []
    return allowed[0] if len(allowed) == 1 else _CHOICES.get(calling.get("mode") or "")


def _tools(tools: Iterable[Mapping[str, Any]], *, strict: bool) -> Iterator[ToolSpec | dict[str, Any]]:
    for tool in tools:
        declared = tool.get("functionDeclarations")
        if declared is None:
            yield dict(tool)
            continue
        for function in declared:
            schema = function.get("parametersJsonSchema") or function.get("parameters") or {}
            yield ToolSpec(
                name=function["name"],
                description=function.get("description") or "",
                parameters=json_schema(schema),
                strict=True if strict else None,
            )


def json_schema(schema: Any) -> Any:
    """The older form of schemas has its types in capitals, and `nullable`."""
    if isinstance(schema, list):
        return [json_schema(item) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    read = {key: json_schema(value) for key, value in schema.items() if key not in ("property_ordering", "nullable")}
    if isinstance(kind := schema.get("type"), str):
        read["type"] = [kind.lower(), "null"] if schema.get("nullable") is True else kind.lower()
    return read


class _Conversation:
    """Turns into messages. Calls without an id get one, and results find theirs by name and order."""

    def __init__(self, model: str) -> None:
        self._origin = Origin(provider="gemini", api="gemini", model=model)
        self._open: list[ToolCall] = []
        self._count = 0

    def messages(self, contents: Iterable[Mapping[str, Any]], verbatim: Iterable[Mapping[str, Any]]) -> list[Message]:
        read: list[Message] = []
        for content, original in zip(contents, verbatim, strict=True):
            parts = list(zip(content.get("parts") or (), original.get("parts") or (), strict=True))
            if content.get("role") == "model":
                said = [part for plain, as_it_was in parts for part in self._model_part(plain, as_it_was)]
                self._open = [part for part in said if isinstance(part, ToolCall)]
                read.append(Message(Role.ASSISTANT, said))
                continue
            results = [self._result(plain["functionResponse"]) for plain, _ in parts if "functionResponse" in plain]
            said = [part for plain, _ in parts if "functionResponse" not in plain for part in _user_part(plain)]
            if results:
                read.append(Message(Role.TOOL, results))
            if said:
                read.append(Message(Role.USER, said))
        return read

    def _model_part(self, part: Mapping[str, Any], as_it_was: Mapping[str, Any]) -> Iterator[Part]:
        signature = part.get("thoughtSignature")
        origin = self._origin if signature else None
        if (call := part.get("functionCall")) is not None:
            arguments = call.get("args") or {}
            id = call.get("id") or made_up_id("recorded", self._count, call["name"], arguments)
            self._count += 1
            yield ToolCall(id=id, name=call["name"], arguments=arguments, signature=signature, origin=origin)
        elif part.get("thought") and "text" in part:
            yield ThinkingContent(thinking=part["text"], signature=signature or "", origin=self._origin)
        elif kind := next((key for key in part if key not in ("text", "thought", "thoughtSignature")), None):
            yield VendorContent(kind=kind, provider_data=dict(as_it_was), origin=self._origin)
        else:  # text, or a signature alone
            yield TextContent(text=part.get("text") or "", signature=signature, origin=origin)

    def _result(self, response: Mapping[str, Any]) -> ToolResult:
        id, name = response.get("id"), response["name"]
        call = next(call for call in self._open if (call.id == id if id else call.name == name))
        self._open.remove(call)
        value: dict[str, Any] = response.get("response") or {}
        failed = set(value) == {"error"}
        text = _text(next(iter(value.values())) if set(value) in ({"result"}, {"output"}, {"error"}) else value)
        media = [piece for part in response.get("parts") or () for piece in _user_part(part)]
        return ToolResult(
            tool_call_id=call.id,
            name=name,
            content=[TextContent(text=text), *media] if media else text,
            is_error=failed,
        )


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _user_part(part: Mapping[str, Any]) -> Iterator[Part]:
    if "text" in part:
        yield TextContent(text=part["text"])
        return
    by_value = "inlineData" in part
    media = part["inlineData"] if by_value else part["fileData"]
    kind = media.get("mimeType")
    address, data = media.get("fileUri"), media.get("data")
    if (kind or "").startswith("image/"):
        yield (
            ImageContent(image_data=data, media_type=kind)
            if by_value
            else ImageContent(image_url=address, media_type=kind)
        )
    elif (kind or "").startswith("audio/") and by_value:
        yield AudioContent(data=data, media_type=kind)
    else:
        yield DocumentContent(data=data, url=address, media_type=kind)
