"""Inventory of the official SDKs: parameters, content, tools, response fields and stream events.

`sample` makes an example of an SDK's type. Examples hold `MARK` or `NUMBER`, to find them in a codec's result.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from itertools import chain
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NotRequired, Required, TypeAlias, Union, get_args, get_origin

import anthropic.types.beta as claude
import google.genai.models as gemini_converters
import google.genai.types as gemini
import openai.types.chat as chat
import openai.types.responses as responses
from anthropic.types.beta.message_create_params import MessageCreateParamsBase as ClaudeParams
from openai.types import CompletionUsage
from openai.types.chat.chat_completion import Choice
from openai.types.chat.completion_create_params import CompletionCreateParamsBase as ChatParams
from openai.types.responses.response_create_params import ResponseCreateParamsBase as ResponsesParams
from openai.types.responses.response_input_message_content_list_param import ResponseInputContentParam
from pydantic import BaseModel
from typing_extensions import get_type_hints

MARK, NUMBER, MANY = "Qx3ZkQx3", 48213, 1_000_000
Json: TypeAlias = dict[str, Any]


# Introspection.


def members(kind: Any) -> list[Any]:
    """Return the types in a union, also inside lists."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Literal or origin is dict or not arguments:
        return [kind]
    inner = arguments if origin in (Union, UnionType) else arguments[:1]  # Annotated, Required, and lists
    return [member for argument in inner for member in members(argument)]


def is_model(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def tags(union: Any) -> Json:
    """Return the types in a union of blocks or events, by the value of `type`."""
    found: Json = {}
    for member in members(union):
        if is_model(member):
            tag = member.model_fields["type"].annotation if "type" in member.model_fields else None
        else:
            tag = get_type_hints(member, include_extras=True).get("type") if isinstance(member, type) else None
        for value in chain.from_iterable(get_args(one) for one in members(tag) if get_origin(one) is Literal):
            found.setdefault(value, member)
    return found


def wire_names(model: type[BaseModel]) -> Json:
    return {field.alias or name: field.annotation for name, field in model.model_fields.items()}


def leaves(model: type[BaseModel], prefix: str = "") -> Json:
    """Return the types of a model's fields by path, with the fields of objects in it."""
    found: Json = {}
    for name, kind in wire_names(model).items():
        inner = None if _has_list(kind) else next(filter(is_model, members(kind)), None)
        found |= {f"{prefix}{name}": kind} if inner is None else leaves(inner, f"{prefix}{name}.")
    return found


def _has_list(kind: Any) -> bool:
    return get_origin(kind) is list or any(map(_has_list, get_args(kind)))


def sample(kind: Any, depth: int = 0) -> Any:
    """Make an example of an SDK's type."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Annotated, Required, NotRequired):
        return sample(arguments[0], depth)
    if origin in (Union, UnionType):
        return sample(next(argument for argument in arguments if argument is not NoneType), depth)
    if origin is Literal:
        return arguments[0] if len(arguments) == 1 else MARK
    if origin is list:
        return [sample(arguments[0], depth)]
    if is_model(kind):
        fields = {field.alias or name: field for name, field in kind.model_fields.items()}
        made = {name: field for name, field in fields.items() if field.is_required() or depth < 3}
        return {name: sample(field.annotation, depth + 1) for name, field in made.items()}
    if depth and isinstance(kind, type) and issubclass(kind, Enum):
        return list(kind)[-1].value
    if kind in (int, float):
        return NUMBER
    return {"key": MARK} if origin is dict or kind is object else MARK


# The APIs.


@dataclass(frozen=True, eq=False, kw_only=True)
class Api:
    """One API, with the entries that its SDK lists."""

    name: str
    sdk: str
    targets: tuple[str, ...]
    """Models with different features."""
    parameters: Iterable[str]
    """Paths of parameters in the body."""
    requested: Iterable[str]
    """Kinds of content in requests."""
    received: Iterable[str]
    """Kinds of content in responses."""
    block: Callable[[str], Json]
    """Makes an example of a kind of content."""
    wrap: Callable[[Json], Json]
    """Makes a response with an example of content."""
    fields: Mapping[str, Any]
    """Types of the fields of responses, by path."""
    body: Json
    """A response."""
    stream: Callable[[Json], list[Json]]
    """Makes the events of the same response, streamed."""
    events: Mapping[str, list[Json]]
    """Examples of stream events, each after those that come before it."""
    tools: Iterable[str]
    own_tools: tuple[str, ...]
    """Kinds of tools that the caller runs, from `ToolSpec`."""
    tool: Callable[[str], Json]


CHAT_BODY = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "model": "m",
    "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "hi"}}],
    "usage": {"prompt_tokens": MANY, "completion_tokens": MANY, "total_tokens": 2 * MANY},
}
RESPONSES_TEXT = {"type": "output_text", "text": "hi", "annotations": []}
RESPONSES_BODY = {
    "id": "resp_1",
    "object": "response",
    "status": "completed",
    "model": "m",
    "output": [
        {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [RESPONSES_TEXT]}
    ],
    "usage": {"input_tokens": MANY, "output_tokens": MANY, "total_tokens": 2 * MANY},
}
CLAUDE_BODY: Json = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "m",
    "content": [{"type": "text", "text": "hi"}],
    "stop_reason": "end_turn",
    "usage": {"input_tokens": MANY, "output_tokens": MANY},
}
GEMINI_BODY = {
    "candidates": [{"content": {"role": "model", "parts": [{"text": "hi"}]}, "finishReason": "STOP"}],
    "usageMetadata": {"promptTokenCount": MANY, "candidatesTokenCount": MANY},
    "modelVersion": "m",
    "responseId": "r",
}
RESPONSES_ITEMS = tags(responses.ResponseOutputItem)
CLAUDE_BLOCKS = tags(claude.BetaContentBlock)
GEMINI_PARTS = wire_names(gemini.Part)
CHAT_OF_THE_SDK = ("usage", "choices")
GEMINI_OF_THE_SDK = ("automaticFunctionCallingHistory", "parsed", "sdkHttpResponse", "candidates")
"""Fields that the SDK adds to responses, and those that are listed in detail."""


def stream_chat(body: Json) -> list[Json]:
    choice = {key: value for key, value in body["choices"][0].items() if key not in ("message", "finish_reason")}
    message = body["choices"][0]["message"]
    delta = {**message, "tool_calls": [{"index": 0, **call} for call in message.get("tool_calls") or ()]}
    begin = {**body, "usage": None, "choices": [{**choice, "delta": delta, "finish_reason": None}]}
    end = {"index": 0, "delta": {}, "finish_reason": body["choices"][0]["finish_reason"]}
    return [begin, {**body, "usage": None, "choices": [end]}, {**body, "choices": []}]


def stream_responses(body: Json) -> list[Json]:
    created = {"type": "response.created", "response": {**body, "status": "in_progress", "output": []}}
    return [created, {"type": "response.completed", "response": body}]


def responses_events() -> Iterator[tuple[str, list[Json]]]:
    """Each event after the start of its item."""
    created, _ = stream_responses(RESPONSES_BODY)
    items = {"output_text": "message", "content_part": "message", "refusal": "message"}
    for tag, kind in tags(responses.ResponseStreamEvent).items():
        topic, _, change = tag.removeprefix("response.").partition(".")
        topic = items.get(topic, topic.replace("custom_tool_call_input", "custom_tool_call"))
        item = next((item for item in RESPONSES_ITEMS if topic.startswith(item)), "reasoning")
        example = {**sample(RESPONSES_ITEMS[item]), "id": MARK, "type": item, "status": "in_progress"}
        start = {"type": "response.output_item.added", "output_index": 0, "item": example}
        event = {**sample(kind), "type": tag, "output_index": 0, "content_index": 0}
        if topic == "output_item":
            yield tag, [created, {**start, **event, "item": example}][: 1 if change == "added" else 2]
        elif change or tag == "error":
            yield tag, [created, start, event]
        else:
            status = topic if topic in ("incomplete", "failed", "queued") else "completed"
            yield tag, [created, {"type": tag, "response": {**RESPONSES_BODY, "status": status}}]


def stream_claude(body: Json) -> list[Json]:
    """Each field is in the last event that has it."""
    late, details = wire_names(claude.BetaRawMessageDeltaEvent), wire_names(claude.BetaMessageDeltaUsage)
    changes = wire_names(late["delta"])
    usage = {key: value for key, value in body["usage"].items() if key in details}
    start = {key: value for key, value in body.items() if key not in changes and (key == "usage" or key not in late)}
    blocks = [
        event
        for index, block in enumerate(body["content"])
        for event in (
            {"type": "content_block_start", "index": index, "content_block": block},
            {"type": "content_block_stop", "index": index},
        )
    ]
    delta = {key: value for key, value in body.items() if key in changes}
    rest = {key: value for key, value in body.items() if key in late and key != "type"}
    end = {"type": "message_delta", **rest, "delta": delta, "usage": usage}
    return [{"type": "message_start", "message": {**start, "content": []}}, *blocks, end, {"type": "message_stop"}]


def claude_events() -> Iterator[tuple[str, list[Json]]]:
    whole = stream_claude({**CLAUDE_BODY, "content": []})
    for tag in tags(claude.BetaRawMessageStreamEvent):
        if "block" not in tag:
            yield tag, whole[: next(place for place, event in enumerate(whole) if event["type"] == tag) + 1]
    of_delta = {"text": "text", "citations": "text", "input_json": "tool_use", "compaction": "compaction"}
    for kind in CLAUDE_BLOCKS:
        start = {"type": "content_block_start", "index": 0, "content_block": sample(CLAUDE_BLOCKS[kind])}
        yield f"content_block_start: {kind}", [whole[0], start]
        for tag, model in tags(claude.BetaRawContentBlockDelta).items():
            if of_delta.get(tag.removesuffix("_delta"), "thinking") == kind:
                delta = {"type": "content_block_delta", "index": 0, "delta": sample(model)}
                yield f"content_block_delta: {tag}", [whole[0], start, delta]
        yield f"content_block_stop: {kind}", [whole[0], start, {"type": "content_block_stop", "index": 0}]


def gemini_parameters() -> Iterator[str]:
    """Paths in the body, read from the source of the SDK's converters."""
    for platform in ("mldev", "vertex"):
        source = inspect.getsource(getattr(gemini_converters, f"_GenerateContentConfig_to_{platform}"))
        for place, name in re.findall(r"setv\(\s*(\w+),\s*\['(\w+)'\]", source):
            if name != "toolConfig":
                yield name if place == "parent_object" else f"generationConfig.{name}"
    yield from (f"generationConfig.{name}" for name in wire_names(gemini.GenerationConfig))
    yield from (f"toolConfig.{name}" for name in wire_names(gemini.ToolConfig))
    yield from ("contents", "model")


def gemini_fields() -> Iterator[tuple[str, Any]]:
    for path, kind in leaves(gemini.GenerateContentResponse).items():
        if path.partition(".")[0] not in GEMINI_OF_THE_SDK:
            yield path, kind
    for name, kind in wire_names(gemini.Candidate).items():
        if name != "content":
            yield f"candidates.{name}", kind


def gemini_part(kind: str) -> Json:
    match kind:
        case "text" | "thought" | "thoughtSignature":
            return {"text": MARK, **({kind: sample(GEMINI_PARTS[kind])} if kind != "text" else {})}
        case "functionCall":
            return {kind: {"name": "look", "args": {}}}
        case "inlineData":
            return {kind: {"mimeType": "image/png", "data": MARK}}
        case "videoMetadata" | "mediaResolution" | "partMetadata" | "mediaProcessing":
            return {"text": "hi", kind: sample(GEMINI_PARTS[kind], 1)}
        case _:
            return {kind: sample(GEMINI_PARTS[kind], 1)}


APIS = (
    Api(
        name="Chat Completions",
        sdk="openai",
        targets=("openai-chat:gpt-5.6", "openai-chat:gpt-4o"),
        parameters=(*get_type_hints(ChatParams), "stream"),
        requested=(*tags(chat.ChatCompletionContentPartParam), "refusal"),
        received=(),
        block=lambda kind: {"type": kind},
        wrap=lambda block: {**CHAT_BODY, "content": block},
        fields={
            **{name: kind for name, kind in wire_names(chat.ChatCompletion).items() if name not in CHAT_OF_THE_SDK},
            **{f"choices.{name}": kind for name, kind in wire_names(Choice).items() if name != "message"},
            **{f"choices.message.{name}": kind for name, kind in wire_names(chat.ChatCompletionMessage).items()},
            **leaves(CompletionUsage, "usage."),
        },
        body=CHAT_BODY,
        stream=stream_chat,
        events={},
        tools=tags(chat.ChatCompletionToolUnionParam),
        own_tools=("function",),
        tool=lambda kind: {"type": kind, kind: {"name": MARK}},
    ),
    Api(
        name="Responses",
        sdk="openai",
        targets=("openai:gpt-5.6", "openai:gpt-4o", "openai:gpt-5"),
        parameters=(*get_type_hints(ResponsesParams), "stream"),
        requested=(
            *(*tags(responses.ResponseInputItemParam), *tags(ResponseInputContentParam)),
            *("output_text", "refusal"),
        ),
        received=RESPONSES_ITEMS,
        block=lambda kind: sample(RESPONSES_ITEMS[kind]) if kind in RESPONSES_ITEMS else {"type": kind, "id": MARK},
        wrap=lambda item: {**RESPONSES_BODY, "output": [item]},
        fields={
            **{name: kind for name, kind in wire_names(responses.Response).items() if name != "usage"},
            **leaves(responses.ResponseUsage, "usage."),
        },
        body=RESPONSES_BODY,
        stream=stream_responses,
        events=dict(responses_events()),
        tools=tags(responses.ToolParam),
        own_tools=("function",),
        tool=lambda kind: {"type": kind, "name": MARK},
    ),
    Api(
        name="Messages",
        sdk="anthropic",
        targets=("anthropic:claude-sonnet-4-5", "anthropic:claude-opus-5"),
        parameters=(*get_type_hints(ClaudeParams), "stream"),
        requested=tags(claude.BetaContentBlockParam),
        received=CLAUDE_BLOCKS,
        block=lambda kind: sample(CLAUDE_BLOCKS[kind]) if kind in CLAUDE_BLOCKS else {"type": kind, "id": MARK},
        wrap=lambda block: {**CLAUDE_BODY, "content": [block]},
        fields={
            **{name: kind for name, kind in wire_names(claude.BetaMessage).items() if name != "usage"},
            **leaves(claude.BetaUsage, "usage."),
        },
        body=CLAUDE_BODY,
        stream=stream_claude,
        events=dict(claude_events()),
        tools=tags(claude.BetaToolUnionParam),
        own_tools=("custom",),
        tool=lambda kind: {"type": kind, "name": MARK},
    ),
    Api(
        name="generateContent",
        sdk="google-genai",
        targets=("gemini:gemini-2.5-pro", "gemini:gemini-3.5-flash", "vertex:gemini-2.5-pro"),
        parameters=tuple(gemini_parameters()),
        requested=GEMINI_PARTS,
        received=GEMINI_PARTS,
        block=gemini_part,
        wrap=lambda part: {**GEMINI_BODY, "candidates": [{"content": {"parts": [part]}, "finishReason": "STOP"}]},
        fields=dict(gemini_fields()),
        body=GEMINI_BODY,
        stream=lambda body: [body],
        events={},
        tools=wire_names(gemini.Tool),
        own_tools=("functionDeclarations",),
        tool=lambda kind: {kind: {"name": MARK}},
    ),
)
