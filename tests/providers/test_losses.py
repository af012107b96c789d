"""Losses: whatever a codec does not send raises an error or adds a warning."""

from __future__ import annotations

import base64
import itertools
import json
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from agent import errors
from agent.providers import Provider, load_provider
from agent.types import (
    AgentConfig,
    AgentRequest,
    AudioContent,
    Citation,
    CodeContent,
    CodeExecution,
    ComputerUse,
    ContentPart,
    DiffContent,
    DocumentContent,
    FileContent,
    FileSearch,
    ImageContent,
    ImageGeneration,
    McpConnector,
    Message,
    Origin,
    RefusalContent,
    Role,
    SearchResultContent,
    TextContent,
    ThinkingContent,
    ToolCall,
    ToolResult,
    ToolSpec,
    VendorContent,
    VideoContent,
    WebSearch,
)
from tests.support.cases import for_each

TARGETS = (
    "openai:gpt-5.6",
    "openai:gpt-4o",
    "openai:o3",
    "openai-chat:gpt-5.6",
    "openai-chat:gpt-4o",
    "anthropic:claude-sonnet-5",
    "anthropic:claude-sonnet-4-5",
    "gemini:gemini-2.5-pro",
    "gemini:gemini-3.5-flash",
    "deepseek:deepseek-chat",
    "groq:openai/gpt-oss-20b",
    "mistral:mistral-large-latest",
    "ollama:llama3.2",
    "openrouter:anthropic/claude-sonnet-4.5",
    "perplexity:sonar",
    "xai:grok-4",
    "zai:glm-4.6",
)

MARK = "Xy7Zq"
"""Stands where it must be found again."""
BYTES = b"\x89PNG" + MARK.encode()
LIMITS = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"], "additionalProperties": False}
TOOL = ToolSpec(name="look", description="Looks.", parameters=LIMITS)
CALL = ToolCall(id="call_1", name="look", arguments={"a": "b"})
PLAIN = TextContent(text="hello")
FOREIGN = Origin(provider="elsewhere", api="other", model="m")

SETTINGS: dict[str, dict[str, Any]] = {
    "system": {"system": MARK},
    "max_tokens": {"max_tokens": 1234},
    "temperature": {"temperature": 0.123},
    "top_p": {"top_p": 0.123},
    "stop": {"stop": [MARK]},
    "many stops": {"stop": [MARK, *"abcdefghijklmnopqrstuvwxyz"]},
    "seed": {"seed": 4711},
    "logprobs": {"logprobs": True},
    "alternatives": {"logprobs": 3},
    "extra": {"extra": {"some_setting": MARK}},
    "thinking=minimal": {"thinking": "minimal"},
    "thinking=low": {"thinking": "low"},
    "thinking=high": {"thinking": "high"},
    "thinking=xhigh": {"thinking": "xhigh"},
    "output_schema": {"output_schema": {**LIMITS, "title": MARK}},
    "tool_choice alone": {"tool_choice": "required"},
    "thinking_budget": {"thinking_budget": 2345},
    "verbosity": {"verbosity": "low"},
    "top_k": {"top_k": 17},
    "frequency_penalty": {"frequency_penalty": 0.321},
    "presence_penalty": {"presence_penalty": 0.321},
    "logit_bias": {"logit_bias": {"50256": -77}},
    "n": {"n": 3},
    "modalities": {"modalities": ["text", "image"]},
    "service_tier": {"service_tier": "flex"},
    "user": {"user": MARK},
    "store": {"store": True},
    "previous_response_id": {"previous_response_id": MARK},
    "conversation": {"conversation": MARK},
    "background": {"background": True},
    "cached_content": {"cached_content": MARK},
    "safety_settings": {"safety_settings": [{"category": MARK, "threshold": "BLOCK_NONE"}]},
    "betas": {"betas": [MARK]},
}
"""Settings of a request without tools."""

WITH_TOOLS: dict[str, dict[str, Any]] = {
    "tool_choice=none": {"tool_choice": "none"},
    "tool_choice=required": {"tool_choice": "required"},
    "tool_choice by name": {"tool_choice": "look"},
    "parallel_tool_calls=False": {"parallel_tool_calls": False},
    "strict": {"tools": [TOOL.model_copy(update={"strict": True})]},
    "description": {"tools": [TOOL.model_copy(update={"description": MARK})]},
    "extra of a tool": {"tools": [TOOL.model_copy(update={"extra": {"own": MARK}})]},
    "a dict with a key of its own": {"tools": [{"name": "look", "parameters": LIMITS, "own": MARK}]},
    "a tool of the vendor's": {"tools": [TOOL, {"type": MARK, "own": 1}]},
    "web search": {"tools": [TOOL, WebSearch(allowed_domains=[MARK])]},
    "code execution": {"tools": [TOOL, CodeExecution(container=MARK)]},
    "file search": {"tools": [TOOL, FileSearch(stores=[MARK])]},
    "computer use": {"tools": [TOOL, ComputerUse(extra={MARK: 1})]},
    "mcp": {"tools": [TOOL, McpConnector(label="docs", url=f"https://example.com/{MARK}", token="Title7")]},
    "image generation": {"tools": [TOOL, ImageGeneration(size=MARK)]},
    "output_schema beside tools": {"output_schema": {**LIMITS, "title": MARK}},
}

PARTS: dict[str, ContentPart] = {
    "text": TextContent(text=MARK),
    "code": CodeContent(code=MARK, language="python"),
    "language": CodeContent(code="x", language=MARK),
    "diff": DiffContent(old_code="a", new_code=MARK),
    "image by url": ImageContent(image_url=f"https://example.com/{MARK}.png"),
    "image": ImageContent(image_data=BYTES, media_type="image/png"),
    "detail of an image": ImageContent(image_data=BYTES, media_type="image/png", detail="low"),
    "document": DocumentContent(data=BYTES, media_type="application/pdf"),
    "document by url": DocumentContent(url=f"https://example.com/{MARK}.pdf", media_type="application/pdf"),
    "document of text": DocumentContent(text=MARK),
    "title of a document": DocumentContent(data=BYTES, media_type="application/pdf", title="Title7"),
    "title of a document by url": DocumentContent(url="https://example.com/a.pdf", title="Title7"),
    "title of a document of text": DocumentContent(text=MARK, title="Title7"),
    "audio": AudioContent(data=BYTES, media_type="audio/wav"),
    "video": VideoContent(data=BYTES, media_type="video/mp4"),
    "video by url": VideoContent(url=f"https://example.com/{MARK}.mp4", media_type="video/mp4"),
    "clip of a video": VideoContent(data=BYTES, media_type="video/mp4", start=1.5, end=2, fps=3),
    "file by id": FileContent(file_id=MARK, title="Title7"),
    "image by id": FileContent(file_id=MARK, media_type="image/png"),
    "search result": SearchResultContent(source=f"https://example.com/{MARK}", title="Title7", content=MARK),
    "citations of a document": DocumentContent(text=MARK, citations=True),
    "context of a document": DocumentContent(text=MARK, context="Title7"),
    "refusal": RefusalContent(refusal=MARK),
    "thinking made elsewhere": ThinkingContent(thinking=MARK, origin=FOREIGN),
    "block made elsewhere": VendorContent(kind="x", provider_data={"own": MARK}, origin=FOREIGN),
    "citation": TextContent(text=MARK, citations=[Citation(url="https://example.com/")]),
}
WITHOUT: dict[str, ContentPart] = {
    "detail of an image": PARTS["image"],
    "clip of a video": PARTS["video"],
    "citations of a document": PARTS["document of text"],
    "context of a document": PARTS["document of text"],
}
"""Counterparts of parts in the comparison, other than different text."""
PLACES: dict[str, Callable[[ContentPart], list[Message]]] = {
    "user": lambda part: [Message.user([TextContent(text="hi"), part])],
    "system": lambda part: [Message.system([TextContent(text="be brief"), part]), Message.user("hi")],
    "assistant": lambda part: [
        Message.user("hi"),
        Message.assistant([TextContent(text="yes"), part]),
        Message.user("go on"),
    ],
}


def _as_result(part: ContentPart) -> list[Message]:
    result = ToolResult(tool_call_id="call_1", name="look", content=[TextContent(text="ok"), part])
    return [Message.user("hi"), Message.assistant([CALL]), Message(Role.TOOL, [result])]


DECLARED = {
    ("gemini", "tool_choice alone"): "without tools there is nothing to choose",
}
"""Expected losses, with the reason. Hints such as cache, session and metadata do not change a response."""


@cache
def codec(target: str) -> Provider:
    name = target.partition(":")[0]
    return load_provider(name)(AgentConfig(provider=name, model="m", api_key="sk-test"))


def outcome(target: str, request: AgentRequest) -> tuple[str, tuple[str, ...]] | None:
    """Return body and headers, and the warnings; None for an error with field and fix."""
    provider, asked = codec(target), request.model_copy(update={"model": target.partition(":")[2]})
    try:
        wire = provider.encode(asked, stream=False)
    except errors.ConfigurationError as error:
        return None if error.field and error.fix else ("", ())
    return f"{json.dumps(json.loads(wire.body), sort_keys=True)} {wire.headers!r}", wire.warnings


def check(target: str, name: str, before: AgentRequest, after: AgentRequest, *wanted: str) -> None:
    found, base = outcome(target, after), outcome(target, before)
    if found is None or (target.partition(":")[0], name) in DECLARED:
        return
    assert base is not None
    (body, warnings), (plain, expected) = found, base
    if set(warnings) - set(expected):
        assert all(warning and "\n" not in warning for warning in warnings)
        return
    assert body != plain, "neither sent, nor refused, nor warned about"
    for mark in wanted:
        assert any(form in body for form in (mark, *_in_base64(mark))), f"{mark} was not sent"


def _in_base64(mark: str) -> list[str]:
    """The middle of a text in base64, wherever it stands."""
    return [base64.b64encode(b"\0" * shift + mark.encode())[4:-4].decode() for shift in (1, 2, 3)]


def marks_in(value: Any) -> list[str]:
    text = str(value.to_dict() if isinstance(value, ContentPart) else value) + repr(getattr(value, "data", ""))
    return [mark for mark in (MARK, "Title7") if mark in text or any(form in text for form in _in_base64(mark))]


@pytest.mark.parametrize("target", TARGETS)
@for_each("name", SETTINGS)
def test_a_setting_is_sent_or_warned_about(name: str, target: str) -> None:
    base = AgentRequest(input="hi")
    check(target, name, base, base.model_copy(update=SETTINGS[name]), *marks_in(SETTINGS[name]))


@pytest.mark.parametrize("target", TARGETS)
@for_each("name", WITH_TOOLS)
def test_what_is_said_about_tools_is_sent_or_warned_about(name: str, target: str) -> None:
    base = AgentRequest(input="hi", tools=[TOOL])
    if outcome(target, base) is None:
        return  # no tools at all
    check(target, name, base, base.model_copy(update=WITH_TOOLS[name]), *marks_in(WITH_TOOLS[name]))


@pytest.mark.parametrize("target", TARGETS)
@for_each("name, place", itertools.product(PARTS, PLACES))
def test_a_part_is_sent_or_refused_or_warned_about(name: str, place: str, target: str) -> None:
    part = PARTS[name]
    before, after = PLACES[place](WITHOUT.get(name, PLAIN)), PLACES[place](part)
    check(target, name, AgentRequest(messages=before), AgentRequest(messages=after), *marks_in(part))


@pytest.mark.parametrize("target", TARGETS)
@for_each(
    "name", [name for name, part in PARTS.items() if part.type in ("text", "image", "image_url", "document", "audio")]
)
def test_a_part_of_a_result_is_sent_or_refused_or_warned_about(name: str, target: str) -> None:
    part = PARTS[name]
    before, after = _as_result(WITHOUT.get(name, PLAIN)), _as_result(part)
    check(target, name, AgentRequest(messages=before), AgentRequest(messages=after), *marks_in(part))


@pytest.mark.parametrize("target", TARGETS)
def test_who_speaks_and_what_failed_is_sent_or_warned_about(target: str) -> None:
    plain, named = (AgentRequest(messages=[Message.user("hi", name=name)]) for name in (None, "Ada"))
    check(target, "name", plain, named, "Ada")

    def add_instructions(name: str | None, content: Any, *, late: bool) -> AgentRequest:
        told, user = Message(Role.SYSTEM, content, name=name), Message.user("hi")
        return AgentRequest(messages=[user, told, Message.assistant("oh"), user] if late else [told, user])

    for content in ("Be brief.", [TextContent(text="Be brief.")]):
        for late in (False, True):
            before, after = (add_instructions(name, content, late=late) for name in (None, "Ada"))
            check(target, "name", before, after, "Ada")

    def add_response(**more: Any) -> AgentRequest:
        result = ToolResult(tool_call_id="call_1", name="look", content="oh", **more)
        return AgentRequest(messages=[Message.user("hi"), Message.assistant([CALL]), Message(Role.TOOL, [result])])

    check(target, "is_error", add_response(), add_response(is_error=True))


@pytest.mark.parametrize("target", TARGETS)
def test_every_target_takes_a_plain_request(target: str) -> None:
    assert outcome(target, AgentRequest(input="hi")) is not None


def test_every_field_of_a_request_is_looked_at() -> None:
    """Every new field needs an entry."""
    asked = {field for table in (SETTINGS, WITH_TOOLS) for fields in table.values() for field in fields}
    hints = {"cache", "metadata", "session_id"}
    drop_silently = {"deadline", "output_mode"}
    known = asked | hints | drop_silently | {"input", "messages", "model"}
    assert known ^ set(AgentRequest.model_fields) == set(), "SETTINGS in this file lacks a field, or has an unknown one"


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    "fields",
    [
        {"extra": {"own": object()}},
        {"extra": {"own": b"\xff"}},
        {"input": "half a character: \ud83d"},
        {"messages": [Message.user("hi"), Message.assistant([CALL.model_copy(update={"arguments": {"a": "\ud83d"}})])]},
    ],
    ids=["object", "bytes", "text", "arguments"],
)
def test_what_json_cannot_hold_is_refused_before_anything_is_sent(fields: dict[str, Any], target: str) -> None:
    check_refused(target, fields)


def check_refused(target: str, fields: dict[str, Any]) -> None:
    model = target.partition(":")[2]
    with pytest.raises(errors.ConfigurationError, match="JSON"):
        codec(target).encode(AgentRequest(**{"input": "hi", **fields}, model=model), stream=False)


@pytest.mark.parametrize(
    "target", ["openai:gpt-5.6", "openai-chat:gpt-4o", "anthropic:claude-sonnet-4-5", "gemini:gemini-2.5-pro"]
)
@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [ToolSpec(name="look", parameters={"type": "object", "title": "\ud83d"})]},
        {"tools": [ToolSpec(name="look", parameters={"type": "object", "title": "\ud83d"}, strict=True)]},
        {"output_schema": {"type": "object", "properties": {"a": {"type": "string", "description": "\ud83d"}}}},
    ],
    ids=["parameters", "strict parameters", "schema"],
)
def test_half_a_character_in_a_schema_is_refused_before_anything_is_sent(fields: dict[str, Any], target: str) -> None:
    check_refused(target, fields)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_a_number_that_json_does_not_have_is_refused_and_its_name_as_text_is_not(target: str, number: float) -> None:
    provider, model = codec(target), target.partition(":")[2]
    with pytest.raises(errors.ConfigurationError, match="JSON"):
        provider.encode(AgentRequest(input="hi", model=model, extra={"x": number}), stream=False)
    spoken = AgentRequest(input="NaN and Infinity", model=model, extra={"x": "NaN"})
    assert "NaN and Infinity" in provider.encode(spoken, stream=False).body.decode()
