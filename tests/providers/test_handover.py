"""Handover: recorded conversations with tool calls, continued at every other vendor."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from agent import errors
from agent.providers import Provider, repair
from agent.providers.anthropic import AnthropicCodec
from agent.providers.base import ApiAddress
from agent.providers.gemini import GeminiCodec
from agent.providers.openai_chat import OPENAI
from agent.providers.openai_responses import ResponsesCodec
from agent.providers.server_dialect import make_portable
from agent.types import (
    AgentRequest,
    AudioContent,
    Message,
    Origin,
    Role,
    ThinkingContent,
    ToolCall,
    ToolResult,
    VendorContent,
)
from tests.providers import (
    test_anthropic_oracle,
    test_gemini_oracle,
    test_openai_chat_oracle,
    test_openai_responses_oracle,
)
from tests.support.cases import for_each
from tests.support.corpus import APIS, Exchange, exchanges, needs_recordings
from tests.support.recorded_requests import read_request
from tests.support.recording_checks import decode_recording, hash_text, signatures_in, strings_in

MODELS = {
    "openai.chat": "gpt-5",
    "openai.responses": "gpt-5",
    "anthropic.messages": "claude-sonnet-4-5",
    "gemini.generate": "gemini-2.5-pro",
}
JUDGES: dict[str, Callable[[AgentRequest], dict[str, Any]]] = {
    "openai.chat": test_openai_chat_oracle.judge,
    "openai.responses": test_openai_responses_oracle.judge,
    "anthropic.messages": test_anthropic_oracle.encode_checked,
    "gemini.generate": test_gemini_oracle.encode_checked,
}
CODECS: dict[str, Provider] = {
    "openai.chat": test_openai_chat_oracle.codec_of(OPENAI),
    "openai.responses": test_openai_responses_oracle.CODEC,
    "anthropic.messages": test_anthropic_oracle.CODEC,
    "gemini.generate": test_gemini_oracle.CODEC,
}
DEAF = ("openai.responses", "anthropic.messages")
"""APIs that take no sound: a conversation with some in it cannot go there, and that is said before it is tried."""
REPAIRS = {
    repair.UNANSWERED,
    repair.STRAY_RESULT,
    repair.MOVED_RESULT,
    repair.REPEATED_RESULT,
    repair.REPEATED_CALL,
}


def continue_conversation(exchange: Exchange) -> tuple[AgentRequest, list[Message]]:
    """Build the continued conversation: request, response, results of its calls, and a next question."""
    asked = read_request(exchange)
    messages = [*asked.to_messages()]
    answer = decode_recording(exchange).message
    if answer.parts:
        messages.append(answer)
    results = [ToolResult(tool_call_id=call.id, name=call.name, content="done") for call in answer.tool_calls or ()]
    if results:
        messages.append(Message(Role.TOOL, results))
    return asked, [*messages, Message.user("Go on.")]


@cache
def tool_using(api: str) -> tuple[Exchange, ...]:
    """The last exchange of each recorded conversation in which a tool was called."""
    last: dict[str, Exchange] = {
        exchange.case: exchange
        for exchange in exchanges(api)
        if exchange.request is not None and exchange.expected["kind"] == "message"
    }
    return tuple(
        exchange
        for exchange in last.values()
        if any(isinstance(part, ToolCall) for message in continue_conversation(exchange)[1] for part in message.parts)
    )


CASES = [(exchange, target) for api in APIS for exchange in tool_using(api) for target in APIS if target != api]


@for_each("exchange, target", CASES, by=lambda exchange, target: f"{exchange.api} -> {target}")
def test_a_recorded_conversation_goes_on_through_another_api(exchange: Exchange, target: str) -> None:
    asked, messages = continue_conversation(exchange)
    tools = make_portable(asked)[0].tools
    request = AgentRequest(model=MODELS[target], messages=messages, tools=tools)
    if target in DEAF and any(isinstance(part, AudioContent) for message in messages for part in message.parts):
        with pytest.raises(errors.UnsupportedFeatureError, match="audio"):
            JUDGES[target](request)
        return
    body = JUDGES[target](request)  # valid by the SDK's types and the API's rules: no orphans, ids and names in form

    sent = {hash_text(text) for text in strings_in(body)}
    foreign = {seal for one in exchanges(exchange.api) if one.case == exchange.case for seal in signatures_in(one)}
    assert sent.isdisjoint(foreign), "no sealed reasoning of another vendor is sent"

    warnings = set(CODECS[target].encode(request, stream=False).warnings)
    assert warnings.isdisjoint(REPAIRS), "a conversation in order needs no repair"
    parts = [part for message in messages for part in message.parts]
    thought = any(isinstance(part, ThinkingContent) for part in parts)
    ran = any(isinstance(part, VendorContent) for part in parts)
    assert (repair.FOREIGN_THINKING_DROPPED in warnings) == thought, "what is lost is said"
    assert (repair.FOREIGN_BLOCK_DROPPED in warnings) == ran

    everything = json.dumps(body, ensure_ascii=False)
    for part in parts:
        if isinstance(part, ToolCall):
            assert json.dumps(part.name)[1:-1] in everything or len(part.name) > 64
    assert "Go on." in everything


@needs_recordings
def test_the_matrix_is_large() -> None:
    counted = Counter(exchange.api for exchange, _ in CASES)
    conversations = {"openai.chat": 72, "openai.responses": 30, "anthropic.messages": 22, "gemini.generate": 27}
    assert counted == {api: 3 * count for api, count in conversations.items()}
    page = (Path(__file__).parents[2] / "docs" / "conformance.md").read_text("utf-8")
    assert f"{len(CASES)} handovers, from\n{sum(conversations.values())} conversations" in page


def test_reasoning_can_be_carried_over_as_text() -> None:
    thought = ThinkingContent(thinking="Rain, probably.", origin=Origin(provider="x", api="y", model="z"))
    messages = [Message.user("hi"), Message(Role.ASSISTANT, [thought]), Message.user("so?")]
    for api, codec in CODECS.items():
        dropped = codec.encode(AgentRequest(model=MODELS[api], messages=messages), stream=False)
        assert b"Rain" not in dropped.body
        assert dropped.warnings == (repair.FOREIGN_THINKING_DROPPED,)
    here = ApiAddress("http://127.0.0.1", None)
    for told in (
        AnthropicCodec(here, foreign_thinking="text").encode(
            AgentRequest(model="claude-sonnet-4-5", messages=messages), stream=False
        ),
        GeminiCodec(here, foreign_thinking="text").encode(
            AgentRequest(model="gemini-2.5-pro", messages=messages), stream=False
        ),
        ResponsesCodec(here, foreign_thinking="text").encode(
            AgentRequest(model="gpt-5", messages=messages), stream=False
        ),
    ):
        assert b"Rain" in told.body
        assert told.warnings == (repair.FOREIGN_THINKING_AS_TEXT,)
