"""Dicts in the formats of vendors: each value is sent, named in a warning, or refused."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, TypeAlias

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from agent import errors
from agent.providers import Provider, load_provider
from agent.types import AgentConfig, AgentRequest
from tests.support.cases import examples

Json: TypeAlias = dict[str, Any]
TARGETS = (
    "openai-chat:gpt-4o",
    "openrouter:anthropic/claude-sonnet-4.5",
    "mistral:mistral-large-latest",
    "openai:gpt-5.6",
    "anthropic:claude-sonnet-4-5",
    "gemini:gemini-3.5-flash",
    "bedrock:anthropic.claude-sonnet-4-5-20250929-v1:0",
)
MARKS = tuple(f"Qx{number}z" for number in range(100, 160))
"""Values to find again, each used once."""
NAMES = {
    "thinking": "reasoning",
    "signature": "reasoning",
    "source": "search_result",
    "enabled": "citations",
    "filename": "title",
    "data": "audio",
}
"""Names in warnings of keys that are called otherwise there."""


def encode_text(mark: str) -> str:
    return base64.b64encode(mark.encode()).decode()


def text(mark: Iterator[str]) -> Json:
    return {"type": "text", "text": next(mark)}


def source(mark: Iterator[str], media_type: str) -> Json:
    return {"type": "base64", "media_type": media_type, "data": encode_text(next(mark))}


def document(mark: Iterator[str]) -> Json:
    words = {"type": "text", "media_type": "text/plain", "data": next(mark)}
    return {
        "type": "document",
        "source": words,
        "title": next(mark),
        "context": next(mark),
        "citations": {"enabled": True},
    }


def result(mark: Iterator[str]) -> Json:
    return {"type": "tool_result", "tool_use_id": "call_1", "content": [text(mark), image(mark)], "is_error": True}


def image(mark: Iterator[str]) -> Json:
    return {"type": "image", "source": source(mark, "image/png")}


def passages(mark: Iterator[str]) -> Json:
    found = {"type": "search_result", "source": f"https://a.b/{next(mark)}", "title": next(mark)}
    return {**found, "content": [text(mark)], "citations": {"enabled": True}}


def thoughts(mark: Iterator[str]) -> Json:
    return {"type": "thinking", "thinking": next(mark), "signature": next(mark)}


def image_url(mark: Iterator[str]) -> Json:
    return {"type": "image_url", "image_url": {"url": f"https://a.b/{next(mark)}.png", "detail": "low"}}


def video_url(mark: Iterator[str]) -> Json:
    return {"type": "video_url", "video_url": {"url": f"https://a.b/{next(mark)}.mp4"}}


def use(mark: Iterator[str]) -> Json:
    return {"type": "tool_use", "id": "call_1", "name": "look", "input": {"a": next(mark)}}


PARTS = (
    text,
    image,
    image_url,
    document,
    passages,
    thoughts,
    video_url,
    result,
    use,
    lambda mark: {"type": "document", "source": source(mark, "application/pdf")},
    lambda mark: {"type": "file", "file": {"file_id": next(mark), "filename": next(mark)}},
    lambda mark: {"type": "audio", "data": encode_text(next(mark)), "mime_type": "audio/wav"},
    lambda mark: {"type": "input_audio", "input_audio": {"data": encode_text(next(mark)), "format": "wav"}},
    lambda mark: {"type": "refusal", "refusal": next(mark)},
    lambda mark: {"type": "code", "code": next(mark), "language": next(mark)},
    lambda mark: {"type": "nonsense", "nonsense": next(mark)},
)


def call(mark: Iterator[str]) -> Json:
    arguments = json.dumps({"a": next(mark)})
    return {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": arguments}}


TOOLS = (
    lambda mark: {
        "type": "function",
        "function": {"name": "look", "description": next(mark), "parameters": schema(mark), "strict": True},
    },
    lambda mark: {"name": "look", "description": next(mark), "input_schema": schema(mark)},
    lambda mark: {"type": "custom", "name": "look", "description": next(mark), "input_schema": schema(mark)},
    lambda mark: {"type": "custom", "custom": {"name": "write", "description": next(mark)}},
    lambda mark: {"type": "web_search_20250305", "name": "web_search", "user_location": {"city": next(mark)}},
    lambda mark: {"builtin": "web_search", "allowed_domains": [next(mark)], "max_uses": 2},
    lambda mark: {"builtin": "mcp", "label": next(mark), "url": f"https://a.b/{next(mark)}"},
    lambda mark: {"own": {"setting": next(mark)}},
)


def schema(mark: Iterator[str]) -> Json:
    words = {"type": "string", "description": next(mark)}
    return {"type": "object", "properties": {"a": words}, "required": ["a"], "additionalProperties": False}


def objects_in(value: Any) -> Iterator[Json]:
    """Yield the objects whose keys are prescribed, not those of a schema or of arguments."""
    if isinstance(value, dict):
        yield value
        for key, item in value.items():
            if key not in ("parameters", "input_schema", "input", "cache_control", "citations"):
                yield from objects_in(item)
    elif isinstance(value, list):
        for item in value:
            yield from objects_in(item)


@st.composite
def dicts(draw: st.DrawFn) -> tuple[list[Json], list[Json]]:
    """Messages and tools as dicts, some with unknown keys."""
    mark = iter(MARKS)
    role = draw(st.sampled_from(("user", "assistant", "system", "developer")))
    parts = [make(mark) for make in draw(st.lists(st.sampled_from(PARTS), max_size=3))]
    words = next(mark)
    message: Json = {"role": role, "content": parts or words}
    for key in draw(st.sets(st.sampled_from(("name", "refusal", "reasoning_content")), max_size=2)):
        message[key] = next(mark)
    messages: list[Json] = [message] if role == "user" else [message, {"role": "user", "content": next(mark)}]
    if draw(st.booleans()):
        messages += [{"role": "assistant", "content": None, "tool_calls": [call(mark)], "audio": None}]
        content: Any = draw(st.sampled_from((next(mark), [text(mark)])))
        messages += [{"role": "tool", "tool_call_id": "call_1", "content": content}]
    tools = [make(mark) for make in draw(st.lists(st.sampled_from(TOOLS), max_size=2))]
    places = list(objects_in([*messages, *tools]))
    for number in range(draw(st.integers(0, 3))):
        value = next(mark)
        place = draw(st.sampled_from(places))
        place[f"own{number}"] = draw(st.sampled_from((value, {f"deep{number}": value}, [value])))
    return messages, tools


def leaves(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield the marked values with the keys that lead to them."""
    if isinstance(value, Mapping):
        kind = ("thinking",) if value.get("type") == "thinking" else ()
        for key, item in value.items():
            yield from leaves(item, (*path, *kind, key))
    elif isinstance(value, list):
        for item in value:
            yield from leaves(item, path)
    elif isinstance(value, str):
        yield path, value


@cache
def codec(target: str) -> Provider:
    name, _, model = target.partition(":")
    config = AgentConfig(
        provider=name, model=model, api_key="sk-test", base_url="https://bedrock.test" if name == "bedrock" else None
    )
    return load_provider(name)(config)


def find_losses(target: str, messages: list[Json], tools: list[Json]) -> list[str]:
    """Return the values that are neither sent nor named in a warning. Refused requests lose nothing."""
    try:
        request = AgentRequest.from_dict({"messages": messages, "tools": tools, "model": target.partition(":")[2]})
        wire = codec(target).encode(request, stream=False)
    except (errors.ConfigurationError, ValidationError):
        return []
    body = json.dumps(json.loads(wire.body), ensure_ascii=False).replace("\\", "")
    warned = " ".join(wire.warnings)
    lost: list[str] = []
    for path, value in leaves([*messages, *tools]):
        mark = next((mark for mark in MARKS if mark in value or encode_text(mark) == value), None)
        keys = {
            name for key in path for name in (key, NAMES.get(key, key)) if key not in ("content", "function", "text")
        }
        if mark is None or mark in body or encode_text(mark) in body or any(key in warned for key in keys):
            continue
        if "reasoning alone" in warned or "several results" in warned:
            continue
        lost.append(f"{target}: {'.'.join(path)}={value}; warnings: {wire.warnings}")
    return lost


@pytest.mark.parametrize("target", TARGETS)
@settings(max_examples=examples(60, 3000), suppress_health_check=list(HealthCheck), deadline=None)
@given(dicts())
def test_each_value_of_a_dict_is_sent_or_named_in_a_warning_or_refused(
    target: str, given_dicts: tuple[list[Json], list[Json]]
) -> None:
    assert find_losses(target, *given_dicts) == []
