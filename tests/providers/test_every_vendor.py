"""The same calls through every wire format, under every driver, from one script."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest
from pydantic import BaseModel

from agent import Agent, Message, ToolSpec, errors
from agent.engine.wire import Answer
from agent.testing import LoopbackServer, VendorScript
from agent.types import AgentResponse, Part, Role, TextContent, ThinkingContent, ToolCall, ToolResult, Usage
from agent.types.messages import OutputMode
from tests.support.drivers import Driver

TARGETS = (
    "openai-chat:gpt-5",
    "openai-responses:gpt-5",
    "anthropic:claude-sonnet-4-5",
    "gemini:gemini-2.5-pro",
    "bedrock:us.anthropic.claude-sonnet-4-5-20250929-v1:0",
    "xai:grok-4",
)
WEATHER = ToolSpec(
    name="get_weather",
    description="The weather in a city.",
    parameters={"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
)
USAGE = Usage(prompt_tokens=100, completion_tokens=40, cache_read_tokens=20, total_tokens=140)
every_vendor = pytest.mark.parametrize("target", TARGETS)


class City(BaseModel):
    name: str
    country: str
    population: int | None = None


@every_vendor
def test_text_comes_back_whole_and_streamed_alike(drive: Driver, target: str) -> None:
    def network() -> VendorScript:
        return VendorScript(AgentResponse(text="Paris is the capital.", usage=USAGE))

    whole = drive.complete(network(), "What is the capital?", agent=target).ok
    streamed = drive.stream(network(), "What is the capital?", agent=target)
    assert whole.text == streamed.text == "Paris is the capital."
    assert (whole.stop_reason, whole.usage) == ("stop", USAGE)
    assert whole.model_copy(update=AGAIN) == streamed.ok.model_copy(update=AGAIN)


AGAIN: dict[str, Any] = {"latency_ms": None, "route": ()}
"""Fields that differ between two calls."""


@every_vendor
def test_thinking_and_calls_come_back_whole_and_streamed_alike(drive: Driver, target: str) -> None:
    said: list[Part] = [
        ThinkingContent(thinking="I should look."),
        TextContent(text="Let me look."),
        ToolCall(id="call_1", name="get_weather", arguments={"city": "Köln"}),
        ToolCall(id="call_2", name="get_weather", arguments={"city": "Bern", "days": [1, 2]}),
    ]
    whole = drive.complete(VendorScript(said), "What is the weather?", agent=target, tools=[WEATHER]).ok
    streamed = drive.stream(VendorScript(said), "What is the weather?", agent=target, tools=[WEATHER])
    assert whole.thinking == "I should look."
    assert whole.text == "Let me look."
    assert [(call.name, call.arguments) for call in whole.tool_calls] == [
        ("get_weather", {"city": "Köln"}),
        ("get_weather", {"city": "Bern", "days": [1, 2]}),
    ]
    assert whole.stop_reason == "tool_calls"
    assert whole.model_copy(update=AGAIN) == streamed.ok.model_copy(update=AGAIN)
    kinds = [event.type for event in streamed.events]
    assert kinds.count("tool_call_start") == kinds.count("tool_call_end") == 2


@every_vendor
def test_a_tool_loop_by_hand_goes_round(drive_real: Driver, target: str) -> None:
    script = VendorScript(ToolCall(id="call_1", name="get_weather", arguments={"city": "Bern"}), "It is 7 degrees.")
    server = drive_real.serve(script)
    agent = Agent(target, base_url=f"{server.url}/v1", api_key="sk-test", tools=[WEATHER])
    first = agent.complete("What is the weather?")
    results = [ToolResult(tool_call_id=call.id, name=call.name, content="7 C") for call in first.tool_calls]
    second = agent.complete([Message.user("What is the weather?"), first.message, Message(Role.TOOL, results)])
    assert second.text == "It is 7 degrees."
    assert second.warnings == ()
    assert "7 C" in json.dumps(script.requests[-1])


@every_vendor
@pytest.mark.parametrize("mode", ["native", "tool", "prompted"])
def test_typed_output_in_every_mode(drive_real: Driver, target: str, mode: OutputMode) -> None:
    paris: Any = {"name": "Paris", "country": "France"}
    line = ToolCall(id="c", name="final_answer", arguments=paris) if mode == "tool" else paris
    server = drive_real.serve(VendorScript(line, line))
    agent = Agent(target, base_url=f"{server.url}/v1", api_key="sk-test")
    whole = agent.json("Tell me about Paris.", schema=City, output_mode=mode)
    assert whole.output == City(name="Paris", country="France")
    assert whole.tool_calls == []
    with agent.stream_json("Tell me about Paris.", schema=City, output_mode=mode) as stream:
        partials = list(stream)
    assert partials[-1] == paris
    assert stream.output == City(name="Paris", country="France")


@every_vendor
def test_what_does_not_fit_is_asked_for_again_and_paid_for(drive: Driver, target: str) -> None:
    script = VendorScript(
        AgentResponse(text='{"name": "Paris"}', usage=USAGE),
        AgentResponse(text='{"name": "Paris", "country": "France"}', usage=USAGE),
    )
    request: Any = {"input": "Tell me about Paris.", "output_schema": City, "output_mode": "native"}
    response = drive.complete(script, _request(request), agent=target).ok
    assert response.output == City(name="Paris", country="France")
    assert response.usage == USAGE + USAGE
    assert len(response.route) == 2
    assert "country" in json.dumps(script.requests[-1])


def _request(fields: dict[str, Any]) -> Any:
    from agent import AgentRequest

    return AgentRequest(**fields)


@every_vendor
@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (errors.RateLimitError("slow down", retry_after=7.0, status_code=429), errors.RateLimitError),
        (errors.AuthenticationError("wrong key", status_code=401), errors.AuthenticationError),
        (errors.ModelNotFoundError("no such model", status_code=404), errors.ModelNotFoundError),
        (errors.BadRequestError("no", status_code=400), errors.BadRequestError),
        (errors.OverloadedError("busy", status_code=529), errors.OverloadedError),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_failures_are_typed(
    drive: Driver, target: str, error: errors.AgentError, kind: type[errors.AgentError]
) -> None:
    for outcome in (
        drive.complete(VendorScript(error), agent=target),
        drive.stream(VendorScript(error), agent=target),
    ):
        assert type(outcome.failed) is kind
        assert outcome.failed.message == error.message
        assert outcome.failed.retry_after == error.retry_after
        assert outcome.failed.provider == target.split(":")[0]


@every_vendor
def test_a_stream_that_breaks_off_keeps_what_had_come_with_an_estimate_of_its_cost(drive: Driver, target: str) -> None:
    def network(request: Any) -> Answer:
        whole = VendorScript("One two three four five six seven eight.")(request)
        cut = [*whole.pieces][: len(whole.pieces) // 2]
        return Answer([*cut, errors.ConnectionError("reset")], headers=whole.headers)

    error = drive.stream(network, agent=target).failed
    assert isinstance(error, errors.StreamInterrupted)
    assert error.partial is not None
    assert (error.partial.text or "").startswith("One two")
    assert error.partial.usage is not None
    assert error.partial.usage.estimated
    assert error.partial.usage.completion_tokens > 0


@every_vendor
def test_a_stream_that_is_left_early_says_what_is_known(target: str) -> None:
    with LoopbackServer(VendorScript("One two three four five six seven eight.")) as server:
        agent = Agent(target, base_url=f"{server.url}/v1", api_key="sk-test")
        with agent.stream("count") as stream:
            next(event for event in stream if event.type == "text_delta")
        assert stream.response.usage is not None
        assert stream.response.usage.estimated
        assert stream.response.stop_reason is None


@pytest.mark.malformed
@every_vendor
def test_a_server_that_breaks_its_word_is_never_believed(drive: Driver, target: str) -> None:
    for body in (b"", b"null", b"<html>", b"{}", b"[]", b'{"choices": [], "output": null, "content": 3}'):
        outcome = drive.complete(partial(_answers, body), agent=target)
        assert isinstance(outcome.failed, errors.ProtocolError), body


def _answers(body: bytes, request: object) -> Answer:
    return Answer([body])
