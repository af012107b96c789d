"""Token counts: from the vendor, estimated, and of a response that was interrupted."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest

from agent import Agent, errors
from agent.engine.wire import Answer, Piece
from agent.models.token_estimates import TokenCount, estimate_prompt, estimate_text
from agent.testing import LoopbackServer, scripted_agent
from agent.types import (
    AgentRequest,
    AgentResponse,
    AudioContent,
    CodeContent,
    DocumentContent,
    ImageContent,
    Message,
    StreamEvent,
    TextContent,
    ThinkingContent,
    ToolCall,
    ToolResult,
    ToolSpec,
    Usage,
)
from tests.calls.test_call import DONE, delta, sse
from tests.support.corpus import needs_recordings
from tests.support.drivers import Driver, run_and_leave_nothing
from tests.support.recorded_requests import text_requests

# Guesses


@needs_recordings
def test_nine_of_ten_recorded_requests_lie_within_the_margin() -> None:
    """And the margins are worth something: for longer prompts half of the guesses are right within 15 %."""
    inside: dict[str, list[bool]] = {}
    wrong_by: list[float] = []
    margins: list[float] = []
    for exchange, request, counted in text_requests():
        guess = estimate_prompt(request)
        assert guess.margin is not None
        inside.setdefault(exchange.api, []).append(guess.low <= counted <= guess.high)
        if counted > 200:
            wrong_by.append(abs(guess.tokens - counted) / counted)
            margins.append(guess.margin)
    everything = [good for each in inside.values() for good in each]
    assert len(everything) > 300
    assert sum(everything) / len(everything) >= 0.93
    for api, each in inside.items():
        assert sum(each) / len(each) >= 0.9, api
    assert sorted(wrong_by)[len(wrong_by) // 2] < 0.15
    assert sorted(margins)[len(margins) // 2] < 0.5


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        # As OpenAI's o200k_base counts them.
        ("The quick brown fox jumps over the lazy dog.", 10),
        ("今天天气很好，我们去公园散步吧。", 12),
        ("def add(a: int, b: int) -> int:\n    return a + b\n", 19),
        ("Der schnelle braune Fuchs springt über den faulen Hund.", 14),
        ("Быстрая коричневая лиса прыгает через ленивую собаку.", 20),
        ('{"name": "Ada", "age": 36, "tags": ["a", "b"]}', 22),
        ("1234567890 2024-11-05 3.14159", 16),
        ("all work and no play " * 50, 251),
    ],
)
def test_text_of_every_kind_is_measured_about_right(text: str, tokens: int) -> None:
    assert estimate_text(text) == pytest.approx(tokens, rel=0.35)


def test_a_long_text_has_a_small_margin() -> None:
    guess = estimate_prompt(AgentRequest(input="The quick brown fox jumps over the lazy dog. " * 500, model="gpt-4o"))
    assert guess.tokens == pytest.approx(5_000, rel=0.2)
    assert guess.margin is not None
    assert guess.margin < 0.2
    assert guess.low < guess.tokens < guess.high
    assert not guess.exact
    assert guess.method == "estimate"


def test_everything_in_a_request_counts() -> None:
    def tokens(**fields: Any) -> int:
        return estimate_prompt(AgentRequest(model="gpt-4o", **fields)).tokens

    plain = tokens(input="Hello there")
    assert tokens(input="Hello there", system="Be brief and kind") > plain
    assert tokens(input="Hello there", tools=[ToolSpec(name="f", description="Does a thing")]) > plain
    assert tokens(input="Hello there", tools=[{"type": "web_search"}]) > plain
    assert tokens(input="Hello there", output_schema={"type": "object", "title": "T"}) > plain
    parts = [
        TextContent(text="Hello there"),
        ImageContent(image_data=b"x", media_type="image/png"),
        DocumentContent(data=b"x" * 600_000, media_type="application/pdf"),
        AudioContent(data=b"x" * 160_000, media_type="audio/wav"),
        CodeContent(code="print(1)", language="python"),
    ]
    counts = [tokens(messages=[Message.user(parts[: n + 1])]) for n in range(len(parts))]
    assert counts == sorted(set(counts)), "each part adds something"
    call = Message.assistant(
        [ThinkingContent(thinking="hm"), ToolCall(id="c", name="f", arguments={"a": "long " * 50})]
    )
    result = Message("tool", [ToolResult(tool_call_id="c", content=[TextContent(text="long " * 50)])])
    assert tokens(messages=[Message.user("Hello there"), call, result]) > plain + 100


@pytest.mark.parametrize("text", ["", " " * 4_000_000, "a" * 4_000_000, "\t\n" * 2_000_000, "😀" * 1_000_000])
def test_odd_text_is_measured_too_and_in_no_time(text: str) -> None:
    started = time.process_time()
    tokens = estimate_text(text)
    assert time.process_time() - started < 10
    assert len(text) / 200 <= tokens <= len(text)


def test_the_same_text_is_more_tokens_for_some_families() -> None:
    text = "The quick brown fox jumps over the lazy dog. " * 100
    gpt, claude, newer = (
        estimate_prompt(AgentRequest(input=text, model=model)).tokens
        for model in ("gpt-5", "anthropic/claude-sonnet-4.5", "claude-opus-4-7")
    )
    assert gpt < claude < newer


# The agent's method


def count(agent: Agent, face: str, request: Any = "How many?", **options: Any) -> TokenCount:
    if face == "sync":
        return agent.count_tokens(request, **options)
    return run_and_leave_nothing(agent.acount_tokens(request, **options))


faces = pytest.mark.parametrize("face", ["sync", "async"])

COUNTING: dict[str, tuple[str, dict[str, Any], str]] = {
    "anthropic": ("anthropic:claude-sonnet-4-5", {"input_tokens": 42}, "count_tokens"),
    "openai-responses": ("openai-responses:gpt-5", {"input_tokens": 42}, "input_tokens"),
    "gemini": ("gemini:gemini-2.5-flash", {"totalTokens": 42}, "countTokens"),
}  # fmt: skip


@faces
@pytest.mark.parametrize("vendor", COUNTING)
def test_a_vendor_that_counts_is_asked(vendor: str, face: str) -> None:
    name, body, path = COUNTING[vendor]
    with LoopbackServer(lambda request: Answer([json.dumps(body).encode()])) as server:
        agent = Agent(name, api_key="k", base_url=server.url)
        assert count(agent, face) == TokenCount(tokens=42, exact=True, margin=0.0, method=agent.provider.name)
        assert path in server.requests[0].url
        assert b"How many?" in server.requests[0].body


@faces
@pytest.mark.parametrize("vendor", COUNTING)
@pytest.mark.parametrize(("mode", "sent"), [("tool", b"final_answer"), ("prompted", b"JSON that fits")])
def test_a_schema_is_counted_the_way_it_would_be_sent(vendor: str, mode: str, sent: bytes, face: str) -> None:
    name, body, _ = COUNTING[vendor]
    with LoopbackServer(lambda request: Answer([json.dumps(body).encode()])) as server:
        agent = Agent(name, api_key="k", base_url=server.url)
        assert count(agent, face, schema=dict[str, int], output_mode=mode).exact
        assert sent in server.requests[0].body


@faces
def test_a_schema_that_the_vendor_does_not_take_is_counted_as_the_tool_it_becomes(face: str) -> None:
    with LoopbackServer(lambda request: Answer([b'{"input_tokens": 7}'])) as server:
        agent = Agent("anthropic:claude-sonnet-4-5", api_key="k", base_url=server.url)
        assert count(agent, face, schema=dict[str, int]).tokens == 7
        assert b"final_answer" in server.requests[0].body


@faces
def test_counting_is_retried_and_fails_as_a_call_does(face: str) -> None:
    answers = [Answer([b"{}"], status=529), Answer([b'{"input_tokens": 7}']), Answer([b"{}"], status=401)]
    with LoopbackServer(lambda request: answers.pop(0)) as server:
        agent = Agent("anthropic:claude-sonnet-4-5", api_key="k", base_url=server.url, max_retries=1)
        agent.retry = agent.retry.model_copy(update={"initial_delay": 0.0})
        assert count(agent, face).tokens == 7
        with pytest.raises(errors.AuthenticationError):
            count(agent, face)


@faces
def test_counting_keeps_to_the_deadline(face: str) -> None:
    with LoopbackServer(lambda request: Answer([Piece(b'{"input_tokens": 7}', 5.0)])) as server:
        agent = Agent("anthropic:claude-sonnet-4-5", api_key="k", base_url=server.url, deadline=0.2)
        with pytest.raises(errors.TimeoutError):
            count(agent, face)


@faces
def test_without_a_counting_vendor_it_is_a_guess_and_says_so(face: str) -> None:
    counted = count(scripted_agent(), face)
    assert not counted.exact
    assert counted.margin is not None
    assert counted.margin > 0


@faces
def test_a_guess_can_be_demanded_and_sends_nothing(face: str) -> None:
    agent = Agent("anthropic:claude-sonnet-4-5", api_key="k", base_url="http://127.0.0.1:1")
    assert not count(agent, face, exact=False).exact


@faces
def test_exactness_can_be_demanded_and_is_an_error_where_there_is_none(face: str) -> None:
    with pytest.raises(errors.UnsupportedFeatureError, match="exact=False"):
        count(scripted_agent(), face, exact=True)


@faces
def test_overrides_and_the_agents_own_tools_are_counted(face: str) -> None:
    tool = ToolSpec(name="lookup", description="Looks something up in a rather large collection of things")
    plain, equipped = scripted_agent(), scripted_agent(tools=[tool])
    assert count(equipped, face).tokens > count(plain, face).tokens
    assert count(plain, face, system="Answer in verse, please.").tokens > count(plain, face).tokens


# Answers that were not heard to their end


def partial_of(error: errors.AgentError) -> AgentResponse:
    assert isinstance(error, errors.StreamInterrupted)
    assert error.partial is not None
    return error.partial


def test_a_broken_stream_says_what_it_may_have_cost(drive: Driver) -> None:
    said = "The quick brown fox jumps over the lazy dog. " * 10
    question = "Tell me about the fox. " * 20
    outcome = drive.stream(lambda request: Answer(sse(delta(said))), question, agent="openai-chat:gpt-5")
    usage = partial_of(outcome.failed).usage
    assert usage is not None
    assert usage.estimated
    assert usage.completion_tokens == pytest.approx(100, rel=0.25)
    assert usage.prompt_tokens == pytest.approx(125, rel=0.25)
    assert partial_of(outcome.failed).cost_estimate == pytest.approx(
        (usage.prompt_tokens * 1.25 + usage.completion_tokens * 10) / 1_000_000
    )
    attempt = outcome.failed.attempts[0]
    assert (attempt.usage, attempt.cost) == (usage, partial_of(outcome.failed).cost_estimate)


def test_arguments_of_a_call_that_never_ended_were_written_all_the_same(drive: Driver) -> None:
    start = {"index": 0, "id": "c", "type": "function", "function": {"name": "write", "arguments": ""}}
    more = {"index": 0, "function": {"arguments": '{"text": "' + "all work and no play " * 50}}
    chunks = sse(delta(tool_calls=[start]), delta(tool_calls=[more]))
    partial = partial_of(drive.stream(lambda request: Answer(chunks)).failed)
    assert partial.tool_calls == []
    assert partial.usage is not None
    assert partial.usage.completion_tokens == pytest.approx(250, rel=0.3)


class Left:
    """A stream that was left in the middle, sync or async."""

    def __init__(self, face: str, leave: str) -> None:
        self._face = face
        self._leave = leave

    def of(self, agent: Agent, after: int = 3) -> Any:
        return self._sync(agent, after) if self._face == "sync" else asyncio.run(self._async(agent, after))

    def _sync(self, agent: Agent, after: int) -> Any:
        stream = agent.stream("Tell me a story about a fox")
        try:
            for number, event in enumerate(stream):
                if number >= after and event.type == "text_delta":
                    if self._leave == "break":
                        break
                    stream.abort()
        except errors.Aborted:
            pass
        return stream

    async def _async(self, agent: Agent, after: int) -> Any:
        stream = agent.astream("Tell me a story about a fox")
        number = 0
        try:
            async for event in stream:
                if number >= after and event.type == "text_delta":
                    if self._leave == "break":
                        break
                    if self._leave == "close":
                        await stream.aclose()
                        break
                    stream.abort()
                number += 1
        except errors.Aborted:
            pass
        return stream


@pytest.mark.parametrize(
    ("face", "leave"),
    [("sync", "break"), ("sync", "abort"), ("async", "break"), ("async", "abort"), ("async", "close")],
)
def test_a_stream_that_was_left_keeps_its_usage_and_cost(face: str, leave: str) -> None:
    with LoopbackServer(
        lambda request: Answer([Piece(chunk, 0.02) for chunk in sse(*[delta("one two three four ")] * 40, DONE)])
    ) as server:
        agent = Agent("openai-chat:gpt-4o", api_key="k", base_url=f"{server.url}/v1")
        stream = Left(face, leave).of(agent)
        assert stream.text.startswith("one two three four ")
        usage = stream.usage
        assert usage is not None
        assert usage.estimated
        assert usage.completion_tokens >= 4
        assert usage.prompt_tokens >= 5
        response = stream.response
        assert response.stop_reason is None
        assert response.usage == usage
        assert response.text == stream.text
        assert response.cost_estimate is not None
        assert response.cost_estimate > 0
        assert stream.response is response


@faces
def test_a_stream_that_broke_has_the_errors_part_too(face: str) -> None:
    with LoopbackServer(lambda request: Answer(sse(delta("one two three")))) as server:
        agent = Agent("openai-chat:gpt-4o", api_key="k", base_url=f"{server.url}/v1", max_retries=0)

        async def read_async() -> tuple[Any, errors.StreamInterrupted]:
            stream = agent.astream("x")
            try:
                await stream.collect()
            except errors.StreamInterrupted as error:
                assert stream.usage is not None, "even while the error is being handled"
                return stream, error
            raise AssertionError

        def read_sync() -> tuple[Any, errors.StreamInterrupted]:
            stream = agent.stream("x")
            with pytest.raises(errors.StreamInterrupted) as caught:
                stream.collect()
            return stream, caught.value

        stream, error = read_sync() if face == "sync" else asyncio.run(read_async())
        assert error.partial is not None
        assert stream.usage == error.partial.usage
        assert stream.text == stream.partial.text == "one two three"
        with pytest.raises(errors.StreamInterrupted) as again:
            _ = stream.response
        assert str(again.value) == str(error) == str(stream.error)
        assert again.value.partial == error.partial
        assert again.value.attempts == error.attempts


@faces
def test_a_stream_that_never_began_has_cost_nothing_that_is_known(face: str) -> None:
    agent = scripted_agent(errors.BadRequestError("no"), max_retries=0)

    async def read_async() -> Any:
        stream = agent.astream("x")
        with pytest.raises(errors.BadRequestError):
            await stream.collect()
        return stream

    def read_sync() -> Any:
        stream = agent.stream("x")
        with pytest.raises(errors.BadRequestError):
            stream.collect()
        return stream

    stream = read_sync() if face == "sync" else asyncio.run(read_async())
    assert stream.usage is None
    assert stream.text == ""
    with pytest.raises(errors.BadRequestError, match="no"):
        _ = stream.response


def test_known_counts_are_never_lost() -> None:
    from agent.models.token_estimates import StreamTokenCounter, complete_usage

    opening = Usage(prompt_tokens=900, completion_tokens=1, cache_read_tokens=400, details={"cache_write_1h_tokens": 5})
    received = StreamTokenCounter()
    received.add(StreamEvent.message_start(response=AgentResponse(model="claude-sonnet-4-5", usage=opening)))
    partial = AgentResponse(model="claude-sonnet-4-5", text="one two three " * 20, usage=opening)
    usage = complete_usage(partial, AgentRequest(input="x"), received)
    assert (usage.prompt_tokens, usage.cache_read_tokens, usage.details) == (900, 400, opening.details)
    assert usage.completion_tokens > 40
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert usage.estimated
    final = Usage(prompt_tokens=900, completion_tokens=70, cache_read_tokens=400)
    assert complete_usage(partial.model_copy(update={"usage": final}), AgentRequest(input="x"), received) == final


def anthropic_stream(*, final: bool) -> list[bytes]:
    def event(kind: str, **data: Any) -> bytes:
        return f"event: {kind}\ndata: {json.dumps({'type': kind, **data})}\n\n".encode()

    usage = {"input_tokens": 500, "cache_read_input_tokens": 300, "output_tokens": 1}
    message = {"id": "m", "type": "message", "role": "assistant", "model": "claude-sonnet-4-5", "content": []}
    events = [
        event("message_start", message={**message, "stop_reason": None, "usage": usage}),
        event("content_block_start", index=0, content_block={"type": "text", "text": ""}),
        event("content_block_delta", index=0, delta={"type": "text_delta", "text": "one two three four " * 10}),
    ]
    if final:
        events += [
            event("content_block_stop", index=0),
            event("message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": 41}),
            event("message_stop"),
        ]
    return events


def test_what_a_vendor_said_at_the_start_is_completed_and_not_replaced(drive: Driver) -> None:
    name = "anthropic:claude-sonnet-4-5"
    whole = drive.stream(lambda request: Answer(anthropic_stream(final=True)), agent=name).ok
    assert whole.usage is not None
    assert not whole.usage.estimated
    assert whole.cost_estimate == pytest.approx((500 * 3 + 300 * 0.3 + 41 * 15) / 1_000_000)
    usage = partial_of(drive.stream(lambda request: Answer(anthropic_stream(final=False)), agent=name).failed).usage
    assert usage is not None
    assert (usage.input_tokens, usage.cache_read_tokens, usage.estimated) == (500, 300, True)
    assert usage.completion_tokens == pytest.approx(41, rel=0.3)
