"""Strict scripts accept recorded requests, requests of the codecs and repaired conversations."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping

import pytest
from hypothesis import given, settings

from agent.engine.wire import WireRequest
from agent.providers import Provider
from agent.providers.anthropic import AnthropicCodec
from agent.providers.base import ApiAddress
from agent.providers.gemini import GeminiCodec
from agent.providers.openai_chat import OPENAI, ChatCodec
from agent.providers.openai_responses import ResponsesCodec
from agent.testing import LoopbackServer, VendorScript
from agent.testing.rules import openai_chat, openai_responses
from agent.types import (
    AgentRequest,
    Message,
    Origin,
    Role,
    TextContent,
    ThinkingContent,
    ThinkingLevel,
    ToolCall,
    ToolResult,
    ToolSpec,
    VendorContent,
)
from tests.support.cases import examples
from tests.support.corpus import APIS, HAS_RECORDINGS, Exchange, exchanges
from tests.support.drivers import Driver
from tests.support.recording_checks import Anything, collect_own_text
from tests.support.values import agent_requests
from tests.testing.rules.test_refusals import post

DIALECTS: Mapping[str, set[str]] = {
    "cerebras": {"clear_thinking"},
    "deepseek": {"thinking"},
    "gpustack": {"enable_thinking"},
    "groq": {"reasoning_format", "search_settings"},
    "mistral": {"random_seed"},
    "ollama": {"enable_thinking"},
    "openrouter": {"models", "provider", "transforms", "usage"},
    "snowflake": {"reasoning"},
    "vercel-gateway": {"reasoning"},
    "zai": {"thinking"},
}
"""Keys that vendors add to the wire format they speak."""

OTHER_WAYS = {
    "huggingface-test-huggingface-test-image-url-input-ac45d5": "takes an empty list of tools",
    "huggingface-test-max-completion-tokens-0438c0": "takes an empty list of tools",
    "mistral-test-multimodal-tool-return-matrix-tool-return-content-url-i-73b832": "takes tools without a type",
    "xai-chat-web-search-with-xai-grok-4-3-replays-search-turns-so-th-afdd2d": "gives several items one id",
}
"""Recordings of vendors who are more patient than the maker of the wire format they speak."""


def find_exchanges(*kinds: int) -> Iterator[Exchange]:
    for api in APIS:
        for exchange in exchanges(api):
            if exchange.request is not None and exchange.response["status"] in kinds:
                yield exchange


def test_every_recorded_request_that_was_answered_is_taken_over_a_real_socket() -> None:
    counted: Counter[str] = Counter()
    refused: dict[str, str] = {}
    keys = {key for vendors in DIALECTS.values() for key in vendors}
    script = VendorScript(*["fine"] * 600, strict=True, signatures=Anything(), extra_keys=keys)
    with LoopbackServer(script) as server:
        for exchange in find_exchanges(200):
            status, answer = post(f"{server.url}{exchange.path}", json.dumps(exchange.request).encode())
            counted[exchange.api] += 1
            if status != 200:
                refused[exchange.case] = answer["error"]["message"]
    counts = {"openai.chat": 209, "openai.responses": 118, "anthropic.messages": 106, "gemini.generate": 110}
    assert refused.keys() == (OTHER_WAYS.keys() if HAS_RECORDINGS else set()), refused
    assert counted == counts or (counted.keys() == counts.keys() and not HAS_RECORDINGS)


def test_only_dialects_have_keys_of_their_own() -> None:
    found: dict[str, set[str]] = {}
    for exchange in find_exchanges(200):
        known = {"openai.chat": openai_chat.KEYS, "openai.responses": openai_responses.KEYS}.get(exchange.api)
        if known is not None and (own := (exchange.request or {}).keys() - known):
            found.setdefault(exchange.provider, set()).update(own)
    assert found == (DIALECTS if HAS_RECORDINGS else {"groq": {"reasoning_format"}})


def test_recorded_refusals_are_repeated_word_for_word() -> None:
    same: list[str] = []
    for exchange in find_exchanges(400):
        script = VendorScript("fine", strict=True, signatures=Anything(), extra_keys=Anything())
        answer = script(WireRequest(exchange.path, (), json.dumps(exchange.request).encode()))
        if answer.status == 400:
            assert script.refusals[0].message == exchange.expected["error"]["message"], exchange.name
            same.append(exchange.name)
    assert len(same) == (4 if HAS_RECORDINGS else 3), same


HERE = ApiAddress("http://127.0.0.1", None)
CODECS: tuple[tuple[Provider, Origin], ...] = (
    (ChatCodec(OPENAI, HERE), Origin(provider="openai-chat", api="openai-chat", model="gpt-5")),
    (ResponsesCodec(HERE, name="openai"), Origin(provider="openai", api="openai-responses", model="gpt-5")),
    (AnthropicCodec(HERE), Origin(provider="anthropic", api="anthropic", model="claude-sonnet-4-5")),
    (GeminiCodec(HERE), Origin(provider="gemini", api="gemini", model="gemini-2.5-pro")),
    (GeminiCodec(HERE), Origin(provider="gemini", api="gemini", model="gemini-3-pro-preview")),
    (AnthropicCodec(HERE), Origin(provider="anthropic", api="anthropic", model="claude-opus-5")),
    (ResponsesCodec(HERE, name="openai"), Origin(provider="openai", api="openai-responses", model="gpt-4o")),
)


@pytest.mark.parametrize(("codec", "home"), CODECS, ids=lambda value: getattr(value, "model", ""))
def test_whatever_a_caller_asks_for_is_taken(codec: Provider, home: Origin) -> None:
    """Requests for whole responses, streams and token counts are valid."""

    @settings(max_examples=examples(40, 150))
    @given(agent_requests(home.model))
    def check(request: AgentRequest) -> None:
        if home.api == "gemini" and "2.5" in home.model and request.tools:
            request = request.model_copy(update={"output_schema": None})  # which the codec itself refuses
        script = VendorScript("fine", "fine", strict=True, signatures=collect_own_text(request, home))
        for stream in (False, True):
            answer = script(codec.encode(request, stream=stream))
            assert answer.status == 200, script.refusals
        if codec.capabilities.token_counting and hasattr(codec, "encode_count"):
            assert script(codec.encode_count(request)).status == 200, script.refusals

    check()


# Repaired conversations

ELSEWHERE = Origin(provider="elsewhere", api="other", model="m")
CALL = ToolCall(id="call_1", name="get_weather", arguments={"city": "Bern"})
RESULT = ToolResult(tool_call_id="call_1", name="get_weather", content="7 C")
ODD = ToolCall(id="functions.get weather:0/" + "x" * 60, name="get weather.now", arguments={})
USER = Message.user("Hi")
BROKEN: Mapping[str, list[Message]] = {
    "a call without a result": [USER, Message.assistant([CALL])],
    "a result without a call": [USER, Message(Role.TOOL, [RESULT])],
    "a result that comes late": [USER, Message.assistant([CALL]), USER, Message(Role.TOOL, [RESULT])],
    "two results of one call": [USER, Message.assistant([CALL]), Message(Role.TOOL, [RESULT, RESULT])],
    "one id for two calls": [
        USER,
        Message.assistant([CALL]),
        Message(Role.TOOL, [RESULT]),
        Message.assistant([CALL]),
        Message(Role.TOOL, [RESULT]),
    ],
    "ids and names of another vendor": [
        USER,
        Message.assistant([ODD]),
        Message(Role.TOOL, [ToolResult(tool_call_id=ODD.id, name=ODD.name, content="ok")]),
    ],
    "empty text": [Message.user(""), USER, Message.assistant([TextContent(text=""), TextContent(text="Hello")])],
    "an assistant who begins": [Message.assistant("Welcome.")],
    "reasoning made elsewhere": [
        USER,
        Message.assistant(
            [
                ThinkingContent(thinking="Hm.", signature="foreign", encrypted_content="foreign", origin=ELSEWHERE),
                VendorContent(kind="block", provider_data={"type": "block"}, origin=ELSEWHERE),
                CALL,
            ]
        ),
        Message(Role.TOOL, [RESULT]),
    ],
    "nothing but reasoning": [USER, Message.assistant([ThinkingContent(thinking="Hm.", origin=ELSEWHERE)])],
    "a failed call": [
        USER,
        Message.assistant([CALL]),
        Message(Role.TOOL, [ToolResult(tool_call_id="call_1", name="get_weather", content="", is_error=True)]),
    ],
}
MODELS = (
    "openai-chat:gpt-4o",
    "openai-responses:gpt-5",
    "anthropic:claude-sonnet-4-5",
    "anthropic:claude-opus-5",
    "gemini:gemini-2.5-pro",
    "gemini:gemini-3-pro-preview",
)
WEATHER = ToolSpec(
    name="get_weather", description="", parameters={"type": "object", "properties": {"city": {"type": "string"}}}
)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_conversation_arrives_mended(drive: Driver, model: str, what: str) -> None:
    messages = [*BROKEN[what], Message.user("Go on.")]
    for level in (None, ThinkingLevel.LOW):
        request = AgentRequest(messages=messages, tools=[WEATHER], thinking=level)
        assert drive.complete(VendorScript("Fine.", strict=True), request, agent=model).ok.text == "Fine."
