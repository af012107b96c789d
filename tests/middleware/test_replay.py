"""Replayed events fold into the same response."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from agent.middleware import replay_events
from agent.types import (
    AgentResponse,
    Attempt,
    Citation,
    ImageContent,
    RefusalContent,
    TextContent,
    ThinkingContent,
    ToolCall,
    ToolResult,
    Usage,
    fold,
)
from tests.support.corpus import APIS, HAS_RECORDINGS, Exchange, exchanges
from tests.support.recording_checks import decode_recording
from tests.support.values import assistant_parts, images, json_values, opaque, results, said, words

ANSWERED = [exchange for api in APIS for exchange in exchanges(api) if exchange.response.get("status", 200) == 200]
counts = st.integers(0, 10_000)
usages = st.builds(
    Usage,
    prompt_tokens=counts.map(lambda count: count + 100),
    completion_tokens=counts,
    cache_read_tokens=st.integers(0, 50),
    billed=st.none() | st.floats(0, 1),
    estimated=st.booleans(),
)
cited = st.builds(
    TextContent,
    text=said,
    signature=st.none() | opaque,
    citations=st.lists(st.builds(Citation, url=st.none() | words, start=st.none() | counts), max_size=2),
)
parts: Any = st.one_of(assistant_parts, cited, images, results, st.just(TextContent(text="")))
responses = st.builds(
    AgentResponse,
    provider=st.just("") | words,
    model=words,
    content=st.lists(parts, max_size=6),
    output=st.none() | json_values.filter(lambda value: value != ""),
    usage=st.none() | usages,
    stop_reason=st.sampled_from((None, "stop", "length", "tool_calls", "refusal", "other")),
    raw_stop_reason=st.none() | words,
    latency_ms=st.none() | st.floats(0, 1e6),
    cost_estimate=st.none() | st.floats(0, 10),
    cost_source=st.none() | words,
    request_id=st.none() | words,
    id=st.none() | words,
    warnings=st.lists(words, max_size=3, unique=True),
    logprobs=st.lists(st.fixed_dictionaries({"token": said, "logprob": st.floats(-10, 0)}), max_size=2),
    route=st.lists(st.builds(Attempt, target=words), max_size=2),
)


@given(responses)
def test_the_fold_of_a_replayed_answer_is_the_answer(response: AgentResponse) -> None:
    assert fold(replay_events(response)) == response


def _try(exchange: Exchange) -> AgentResponse | None:
    try:
        return decode_recording(exchange)
    except Exception:
        return None  # recorded failures


def test_every_recorded_answer_can_be_replayed() -> None:
    answers = [response for exchange in ANSWERED if (response := _try(exchange)) is not None]
    assert len(answers) > (100 if HAS_RECORDINGS else 15)
    for response in answers:
        again = fold(replay_events(response))
        # An empty word for why it ended is none, once it has been folded.
        assert again == response.model_copy(update={"raw_stop_reason": response.raw_stop_reason or None})
        assert again.raw is response.raw


def test_what_is_said_arrives_as_deltas() -> None:
    response = AgentResponse(
        content=[
            ThinkingContent(thinking="hm", signature="sealed"),
            TextContent(text="words", citations=[Citation(url="u")]),
            RefusalContent(refusal="no"),
            ToolCall(id="1", name="f", arguments={"a": [1, "é"]}),
            ImageContent(image_url="https://example.com/a.png"),
            ToolResult(tool_call_id="1", content="r"),
        ],
        usage=Usage(prompt_tokens=1),
        stop_reason="stop",
    )
    events = replay_events(response)
    assert [(event.type, event.index) for event in events] == [
        ("message_start", None),
        ("thinking_delta", 0),
        ("content_part", 0),
        ("text_delta", 1),
        ("content_part", 1),
        ("refusal_delta", 2),
        ("tool_call_start", 3),
        ("tool_call_delta", 3),
        ("tool_call_end", 3),
        ("content_part", 4),
        ("content_part", 5),
        ("message_end", None),
    ]
    deltas = [event.tool_call_delta for event in events if event.tool_call_delta is not None]
    assert deltas == [{"id": "1", "arguments": '{"a":[1,"é"]}'}]
    assert events[-1].usage == response.usage


def test_a_test_that_loses_a_part_would_be_noticed() -> None:
    response = AgentResponse(content=[TextContent(text="a"), TextContent(text="b")])
    events = [event for event in replay_events(response) if event.text != "b"]
    assert fold(events) != response
