"""Properties of every value: round trips through all formats, and equality of all spellings."""

from __future__ import annotations

import base64
import copy
import json
import pickle
from datetime import UTC, datetime, timedelta, timezone
from inspect import get_annotations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from agent.types import (
    AgentConfig,
    AgentRequest,
    AgentResponse,
    Attempt,
    AudioContent,
    Citation,
    CodeContent,
    ContentPart,
    DiffContent,
    DocumentContent,
    FinishReason,
    ImageContent,
    Message,
    Origin,
    Part,
    ProviderCapabilities,
    RefusalContent,
    RetryConfig,
    Role,
    Session,
    StopReason,
    StreamEvent,
    SystemPrompt,
    TextContent,
    ThinkingContent,
    ThinkingLevel,
    ToolCall,
    ToolDefinitions,
    ToolExecution,
    ToolLoopConfig,
    ToolResult,
    ToolSpec,
    Usage,
    Value,
    VendorContent,
    fold,
    freeze,
    read_node_data,
    redact,
    thaw,
)

# --- strategies -------------------------------------------------------------------------------------------------------

texts = st.text(st.characters(codec="utf-8"), max_size=12)
words = st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1, max_size=8)
counts = st.integers(0, 10**12)
finite = st.floats(0, 1e9, allow_nan=False)
times = st.datetimes(datetime(1970, 1, 2), datetime(2200, 1, 1), timezones=st.just(UTC))
scalars = (
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | texts
)
json_values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3), max_leaves=6
)
json_objects = st.dictionaries(texts, json_values, max_size=3)
maybe_text = st.none() | texts
origins = st.builds(Origin, provider=texts, api=texts, model=texts)
opaque = {
    "provider_data": st.none() | json_objects,
    "origin": st.none() | origins,
    "cache": st.sampled_from((None, "short", "long")),
}
citations = st.builds(
    Citation, url=maybe_text, title=maybe_text, quote=maybe_text, start=st.none() | counts, provider_data=json_objects
)

text_parts = st.builds(
    TextContent, text=texts, signature=maybe_text, citations=st.lists(citations, max_size=2), **opaque
)
thinking_parts = st.builds(
    ThinkingContent,
    thinking=texts,
    signature=texts,
    id=texts,
    encrypted_content=texts,
    summary=st.lists(json_objects, max_size=2),
    redacted=st.booleans(),
    **opaque,
)
calls = st.builds(
    ToolCall, id=texts, name=words, arguments=json_objects, item_id=maybe_text, signature=maybe_text, **opaque
)
urls = words.map(lambda name: f"https://example.com/{name}")
images = st.builds(
    ImageContent, image_url=urls, media_type=maybe_text, name=maybe_text, detail=maybe_text, **opaque
) | st.builds(ImageContent, image_data=st.binary(max_size=20), media_type=maybe_text, name=maybe_text, **opaque)
refusals = st.builds(RefusalContent, refusal=texts, **opaque)
codes = st.builds(CodeContent, code=texts, language=maybe_text, **opaque)
diffs = st.builds(DiffContent, old_code=texts, new_code=texts, language=maybe_text, **opaque)
documents = (
    st.builds(DocumentContent, url=urls, title=maybe_text, **opaque)
    | st.builds(DocumentContent, data=st.binary(max_size=20), media_type=maybe_text, **opaque)
    | st.builds(DocumentContent, text=texts, title=maybe_text, **opaque)
)
sounds = st.builds(AudioContent, data=st.binary(max_size=20), media_type=maybe_text, **opaque)
blocks = st.builds(VendorContent, kind=texts, **opaque)
results = st.builds(
    ToolResult,
    tool_call_id=texts,
    name=maybe_text,
    content=texts | st.lists(text_parts | images | documents | sounds, max_size=3),
    result=json_values,
    is_error=st.booleans(),
    details=json_values,
    **opaque,
)
parts: st.SearchStrategy[Any] = st.one_of(
    text_parts, thinking_parts, calls, results, images, codes, diffs, documents, sounds, refusals, blocks
)


@st.composite
def usages(draw: st.DrawFn) -> Usage:
    uncached, read, written, output = (draw(counts) for _ in range(4))
    return Usage(
        prompt_tokens=uncached + read + written,
        completion_tokens=output,
        cache_read_tokens=read,
        cache_write_tokens=written,
        reasoning_tokens=draw(st.integers(0, output)),
        total_tokens=draw(st.just(uncached + read + written + output) | counts),
        estimated=draw(st.booleans()),
        details=draw(st.dictionaries(words, st.integers(1, 10**6), max_size=2)),
        billed=draw(st.none() | st.integers(0, 10**6).map(lambda cents: cents / 128)),
    )


message_fields = {
    "name": maybe_text,
    "id": maybe_text,
    "timestamp": st.none() | times,
    "parent_id": maybe_text,
    "usage": st.none() | usages(),
}
messages = st.builds(
    Message, role=st.sampled_from(Role), content=texts | st.lists(parts, max_size=3), **message_fields
) | st.builds(
    Message,
    role=st.just(Role.TOOL),
    content=texts | st.lists(text_parts | images | documents, max_size=3),
    tool_call_id=texts,
    **message_fields,
)
specs = st.builds(
    ToolSpec,
    name=words,
    description=texts,
    parameters=json_objects,
    is_async=st.booleans(),
    strict=st.none() | st.booleans(),
)
requests = st.builds(
    AgentRequest,
    input=maybe_text,
    messages=st.lists(messages, max_size=2),
    system=maybe_text,
    model=maybe_text,
    tools=st.lists(specs, max_size=2, unique_by=lambda spec: spec.name),
    parallel_tool_calls=st.none() | st.booleans(),
    output_schema=st.none() | json_objects,
    temperature=st.none() | st.floats(0, 2),
    max_tokens=st.none() | st.integers(1, 10**6),
    top_p=st.none() | st.floats(0.01, 1),
    stop=st.none() | st.lists(st.text(st.characters(codec="utf-8"), min_size=1, max_size=4), max_size=2),
    thinking=st.none() | st.sampled_from(ThinkingLevel),
    seed=st.none() | st.integers(-(2**31), 2**31),
    logprobs=st.none() | st.integers(0, 20),
    deadline=st.none() | st.floats(0.001, 1e6),
    metadata=json_objects,
    session_id=maybe_text,
    extra=json_objects,
)
attempts = st.builds(
    Attempt,
    target=texts,
    provider=texts,
    model=texts,
    reason=maybe_text,
    started=st.none() | finite,
    latency_ms=st.none() | finite,
    error=maybe_text,
    status_code=st.none() | st.integers(100, 599),
    usage=st.none() | usages(),
    cost=st.none() | finite,
)
finish_reasons: st.SearchStrategy[FinishReason | None] = st.sampled_from(
    [None, "stop", "length", "tool_calls", "content_filter", "refusal", "pause", "error", "other"]
)
responses = st.builds(
    AgentResponse,
    provider=texts,
    model=texts,
    content=st.lists(parts, max_size=3),
    output=json_values,
    usage=st.none() | usages(),
    stop_reason=finish_reasons,
    raw_stop_reason=maybe_text,
    latency_ms=st.none() | finite,
    cost_estimate=st.none() | finite,
    request_id=maybe_text,
    id=maybe_text,
    warnings=st.lists(texts, max_size=2),
    route=st.lists(attempts, max_size=2),
)
indexes = st.none() | st.integers(0, 3)
events = st.one_of(
    st.builds(StreamEvent.text_delta, texts, index=indexes),
    st.builds(StreamEvent.thinking_delta, texts, index=indexes),
    st.builds(StreamEvent.refusal_delta, texts, index=indexes),
    st.builds(StreamEvent.tool_call_start, calls, index=indexes),
    st.builds(StreamEvent.tool_call_delta_event, texts, id=maybe_text, name=maybe_text, index=indexes),
    st.builds(StreamEvent.tool_call_end, calls, index=indexes),
    st.builds(StreamEvent.tool_result_event, texts),
    st.builds(StreamEvent.content_part_event, parts, index=indexes),
    st.builds(StreamEvent.message_start, response=st.none() | responses),
    st.builds(StreamEvent.message_end, usage=st.none() | usages(), response=st.none() | responses),
    st.builds(StreamEvent.usage_event, usages()),
    st.builds(StreamEvent.error_event, texts),
    st.builds(StreamEvent.restart_event, maybe_text),
)
configs = st.builds(
    AgentConfig,
    provider=words,
    model=texts,
    base_url=st.none() | urls,
    timeout=st.floats(0.1, 1e6),
    max_retries=st.integers(0, 10),
    temperature=st.none() | st.floats(0, 2),
    default_system=maybe_text,
    thinking=st.none() | st.sampled_from(ThinkingLevel),
    extra=json_objects,
)
others = st.one_of(
    st.builds(
        RetryConfig,
        max_retries=st.integers(0, 9),
        jitter=st.booleans(),
        retryable_errors=st.lists(st.sampled_from([ValueError, TimeoutError, OSError]), max_size=2),
    ),
    st.builds(ToolLoopConfig, max_iterations=st.integers(1, 99), stop_on_error=st.booleans()),
    st.builds(ProviderCapabilities, tools=st.booleans(), max_context_tokens=st.none() | counts),
    st.builds(Session, id=texts, title=texts, messages=st.lists(messages, max_size=2), created_at=st.none() | times),
    st.builds(SystemPrompt, content=texts),
    st.builds(ToolDefinitions, tools=st.lists(specs, max_size=2)),
    st.builds(ToolExecution, tool_name=texts, tool_use_id=texts, result=st.lists(parts, max_size=2)),
    st.builds(StopReason, reason=texts, usage=st.dictionaries(words, counts, max_size=2)),
    attempts,
    specs,
)
EVERY = {
    "parts": parts,
    "usages": usages(),
    "messages": messages,
    "requests": requests,
    "responses": responses,
    "events": events,
    "configs": configs,
    "others": others,
}
values = st.one_of(list(EVERY.values()))

# --- there and back ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", EVERY)
@given(data=st.data())
def test_every_value_survives_every_way_out_and_in(kind: str, data: st.DataObject) -> None:
    value: Value = data.draw(EVERY[kind])
    cls = type(value)
    assert cls.model_validate(value.model_dump()) == value
    assert cls.model_validate(value.model_dump(mode="json")) == value
    assert cls.model_validate_json(value.model_dump_json()) == value
    assert cls.from_dict(value.to_dict()) == value
    assert cls.from_dict(json.loads(json.dumps(value.to_dict()))) == value
    assert pickle.loads(pickle.dumps(value)) == value
    assert copy.copy(value) is value
    assert copy.deepcopy(value) is value
    assert value.model_copy() is value
    assert hash(cls.from_dict(value.to_dict())) == hash(value)
    assert hash(pickle.loads(pickle.dumps(value))) == hash(value)
    assert repr(value).startswith(cls.__name__)


@given(values)
def test_a_copy_with_the_same_fields_is_equal(value: Value | StreamEvent) -> None:
    values = value.model_dump() if isinstance(value, StreamEvent) else dict(value.__dict__)
    assert value.model_copy(update=values) == value


@given(parts)
def test_the_front_door_opens_for_every_part(part: Any) -> None:
    assert ContentPart.model_validate(part.to_dict()) == part
    assert ContentPart.model_validate(part) is part
    assert ContentPart(**part.model_dump()) == part
    union: TypeAdapter[Any] = TypeAdapter(Part)
    assert union.validate_json(union.dump_json(part)) == part


@given(st.one_of(st.builds(SystemPrompt, content=texts), messages, st.builds(StopReason, reason=texts)))
def test_node_data_is_read_without_knowing_its_class(data: Any) -> None:
    assert read_node_data(data.to_dict()) == data


@given(json_values)
def test_freezing_changes_nothing_but_mutability(value: Any) -> None:
    frozen = freeze(value)
    assert frozen == value
    assert thaw(frozen) == value
    assert json.dumps(frozen) == json.dumps(value)
    assert hash(frozen) == hash(freeze(thaw(frozen)))
    assert pickle.loads(pickle.dumps(frozen)) == frozen


# --- spellings --------------------------------------------------------------------------------------------------------


@given(counts, counts, counts, counts)
def test_every_vocabulary_of_usage_reads_the_same(fresh: int, output: int, read: int, written: int) -> None:
    ours = Usage(
        prompt_tokens=fresh + read + written,
        completion_tokens=output,
        cache_read_tokens=read,
        cache_write_tokens=written,
    )
    spellings: list[dict[str, Any]] = [
        {
            "input_tokens": fresh,
            "output_tokens": output,
            "cache_creation_input_tokens": written,
            "cache_read_input_tokens": read,
        },
        {"input": fresh, "output": output, "cache_read": read, "cache_write": written},
        {"input": fresh, "output": output, "cacheRead": read, "cacheWrite": written},
        {
            "prompt_tokens": fresh + read + written,
            "completion_tokens": output,
            "total_tokens": None,
            "cacheRead": read,
            "cacheWrite": written,
        },
    ]
    for spelling in spellings:
        assert Usage.from_dict(spelling) == ours
        assert Usage.model_validate_json(json.dumps(spelling)) == ours
    assert ours.input_tokens + ours.cache_read_input_tokens + ours.cache_creation_input_tokens == ours.prompt_tokens
    assert (ours.input, ours.output, ours.cache_read, ours.cache_write) == (fresh, output, read, written)
    assert ours.total_tokens == ours.prompt_tokens + ours.completion_tokens


@given(usages(), usages())
def test_adding_usage_adds_every_bucket(a: Usage, b: Usage) -> None:
    total = a + b
    for name in ("prompt_tokens", "completion_tokens", "total_tokens", "input", "cache_read", "cache_write"):
        assert getattr(total, name) == getattr(a, name) + getattr(b, name)
    assert total.estimated == (a.estimated or b.estimated)
    assert total == b + a
    assert a + Usage() == a


maybe_count = st.none() | st.integers(-5, 50)


@given(maybe_count, maybe_count, maybe_count, maybe_count, maybe_count, maybe_count)
def test_counts_of_a_paid_answer_never_fail(
    prompt: int | None,
    completion: int | None,
    read: int | None,
    write: int | None,
    reasoning: int | None,
    total: int | None,
) -> None:
    usage = Usage.from_counts(prompt, completion, cache_read=read, cache_write=write, reasoning=reasoning, total=total)
    assert usage.prompt_tokens == max(prompt or 0, 0)
    assert usage.input_tokens >= 0
    assert usage.reasoning_tokens <= usage.completion_tokens


@given(st.sampled_from(["tool_call", "tool_use", "tool-call", "function"]), texts, words, json_objects)
def test_every_spelling_of_a_call_reads_the_same(tag: str, id: str, name: str, arguments: dict[str, Any]) -> None:
    call = ToolCall(id=id, name=name, arguments=arguments)
    for key in ("arguments", "input"):
        for value in (arguments, json.dumps(arguments)):
            given_call = {"type": tag, "id": id, "name": name, key: value}
            assert ToolCall.from_dict(given_call) == call
            assert ContentPart.model_validate(given_call) == call
    nested = {"id": id, "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
    assert ContentPart.model_validate(nested) == call
    assert Message("assistant", None, tool_calls=[nested]).tool_calls == [call]


@given(texts, st.sampled_from(["tool_call_id", "tool_use_id", "id"]), st.sampled_from(["tool_result", "tool-result"]))
def test_every_spelling_of_a_result_reads_the_same(id: str, key: str, tag: str) -> None:
    expected = ToolResult(tool_call_id=id, content="done")
    assert ContentPart.model_validate({"type": tag, key: id, "content": "done"}) == expected
    assert (expected.id, expected.tool_use_id) == (id, id)


@given(st.datetimes(datetime(1980, 1, 1), datetime(2100, 1, 1)).map(lambda time: time.replace(microsecond=0)))
def test_every_spelling_of_a_time_reads_the_same(naive: datetime) -> None:
    aware = naive.replace(tzinfo=UTC)
    seconds = int(aware.timestamp())
    elsewhere = aware.astimezone(timezone(timedelta(hours=5, minutes=30)))
    for spelling in (naive, aware, elsewhere, seconds, float(seconds), aware.isoformat(), naive.isoformat()):
        for key in ("timestamp", "created_at", "createdAt"):
            message = Message.model_validate({"role": "user", "content": "x", key: spelling})
            assert message.timestamp == aware
            assert message.timestamp.tzinfo is UTC or message.timestamp.utcoffset() == timedelta(0)
    if seconds * 1000 > 2e10:
        assert Message("user", "x", timestamp=seconds * 1000).timestamp == aware


@pytest.mark.parametrize(("spelling", "role"), [("tool_result", "tool"), ("developer", "system"), ("user", "user")])
def test_every_spelling_of_a_role_reads_the_same(spelling: str, role: str) -> None:
    assert Message.from_dict({"role": spelling, "content": "", "tool_call_id": "1"}).role == Role(role)


@given(st.binary(max_size=40))
def test_every_spelling_of_bytes_reads_the_same(data: bytes) -> None:
    standard = base64.b64encode(data).decode()
    urlsafe = base64.urlsafe_b64encode(data).decode()
    expected = ImageContent(image_data=data, media_type="image/png")
    for text in (standard, urlsafe, standard.rstrip("="), "\n".join(standard), base64.encodebytes(data).decode()):
        given_image = {"type": "image", "image_data": text, "media_type": "image/png"}
        assert ContentPart.model_validate(given_image) == expected
        assert ImageContent.model_validate_json(json.dumps(given_image)) == expected
        assert ImageContent.from_dict({"data": text, "mediaType": "image/png"}) == expected
    assert (
        ImageContent.from_dict({"type": "image_url", "image_url": {"url": f"data:image/png;base64,{standard}"}})
        == expected
    )
    assert expected.to_dict()["image_data"] == standard


# --- nothing but a ValidationError ------------------------------------------------------------------------------------

CLASSES: list[type[Value] | type[StreamEvent]] = [
    TextContent,
    ThinkingContent,
    ToolCall,
    ToolResult,
    ImageContent,
    DocumentContent,
    AudioContent,
    Usage,
    Message,
    AgentRequest,
    AgentResponse,
    StreamEvent,
    AgentConfig,
    RetryConfig,
    ToolSpec,
    ToolExecution,
    StopReason,
    Session,
]
KEYS = sorted(
    {name for cls in CLASSES if issubclass(cls, Value) for name in (*cls.model_fields, *cls._field_of_alias())}
    | set(get_annotations(StreamEvent))
    | {"function", "source", "images", "url", "data", "tool_calls", "text", "input_tokens", "output", "cacheRead"}
)
tags = st.sampled_from(["text", "image", "tool_call", "tool_result", "function", "base64", "url", "system_prompt"])
junk = st.recursive(
    scalars | tags | st.sampled_from(["user", "tool", "assistant", "tool_result", "data:,x", "https://x/"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=8,
)


@pytest.mark.parametrize("cls", CLASSES)
@given(data=st.dictionaries(st.sampled_from(KEYS), junk, max_size=6) | junk)
def test_junk_is_a_value_or_a_validation_error(cls: type[Value] | type[StreamEvent], data: Any) -> None:
    try:
        value = cls.model_validate(data)
    except ValidationError:
        return
    assert cls.from_dict(value.to_dict()) == value


# --- streams and secrets ----------------------------------------------------------------------------------------------


@given(st.lists(texts, min_size=1, max_size=8))
def test_however_text_is_cut_it_folds_to_the_same(pieces: list[str]) -> None:
    folded = fold(StreamEvent.text_delta(piece) for piece in pieces)
    assert folded.get_text() == "".join(pieces)


@given(json_objects, st.data())
def test_however_arguments_are_cut_they_fold_to_the_same(arguments: dict[str, Any], data: st.DataObject) -> None:
    text = json.dumps(arguments)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=4)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    started = StreamEvent.tool_call_start(ToolCall(id="1", name="f"))
    folded = fold([started, *(StreamEvent.tool_call_delta_event(piece) for piece in pieces)])
    assert folded.tool_calls == [ToolCall(id="1", name="f", arguments=arguments)]


@given(
    st.text(st.characters(codec="utf-8", exclude_characters="*"), min_size=1, max_size=10),
    st.lists(st.text(max_size=5), max_size=3),
)
def test_no_spelling_of_a_secret_survives_redaction(secret: str, around: list[str]) -> None:
    encoded = [secret, json.dumps(secret), base64.b64encode(secret.encode()).decode()]
    text = "|".join([*around, *encoded])
    assert secret not in redact(text, [secret, ""])
