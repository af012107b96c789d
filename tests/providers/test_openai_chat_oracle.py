"""The official SDK as judge: the same requests go out, and the same answers are found in what comes back."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import openai
import pytest
import respx

from agent import Agent
from agent.answers import Answer
from agent.testing import LoopbackServer, Script
from agent.types import AgentResponse
from tests.conftest import WIRE
from tests.corpus import Exchange, chat_codec, exchanges

RECORDED = [
    exchange
    for exchange in (exchanges("openai.chat") if WIRE.exists() else ())
    if exchange.expected["kind"] == "message"
]


class Replay:
    """A server that answers whatever it is asked with the recording it was given last."""

    def __init__(self) -> None:
        self.answer = Answer()

    def __call__(self, request: object) -> Answer:
        return self.answer


def replayed(exchange: Exchange) -> Answer:
    if exchange.stream is not None:
        return Answer([exchange.stream], headers={"content-type": "text/event-stream"})
    return Answer([exchange.reply.body], headers={"content-type": "application/json"})


def by_sdk(client: openai.OpenAI, *, streaming: bool) -> tuple[str, list[tuple[str, str]], int | None]:
    """Text, calls and total tokens as the SDK sees them, pieced together as its documentation says."""
    messages: Any = [{"role": "user", "content": "hi"}]
    if not streaming:
        completion = client.chat.completions.create(model="m", messages=messages)
        message: Any = completion.choices[0].message
        content: Any = message.content
        text = content if isinstance(content, str) else "".join(block.get("text", "") for block in content or ())
        calls = [
            (call.function.name, call.function.arguments)
            for call in message.tool_calls or ()
            if call.type == "function" or getattr(call, "function", None)
        ]
        return text, calls, completion.usage.total_tokens if completion.usage else None
    text, total, pieces = "", None, dict[int, list[str]]()
    for chunk in client.chat.completions.create(model="m", messages=messages, stream=True):
        total = chunk.usage.total_tokens if chunk.usage else total
        for choice in chunk.choices[:1]:
            if choice.index or choice.delta is None:
                continue
            delta: Any = choice.delta.content
            text += delta if isinstance(delta, str) else "".join(block.get("text", "") for block in delta or ())
            for call in choice.delta.tool_calls or ():
                name, arguments = pieces.setdefault(call.index, ["", ""])
                function = call.function
                pieces[call.index] = [
                    name or (function.name if function else "") or "",
                    arguments + ((function.arguments if function else "") or ""),
                ]
    return text, [(name, arguments) for name, arguments in pieces.values()], total


@pytest.mark.skipif(not WIRE.exists(), reason="no recordings: set AGENT_WIRE_CORPUS")
def test_every_recorded_answer_holds_what_the_sdk_finds_in_it() -> None:
    replay = Replay()
    compared = 0
    with (
        LoopbackServer(replay) as server,
        openai.OpenAI(base_url=server.url, api_key="sk-test", max_retries=0) as client,
    ):
        for exchange in RECORDED:
            if exchange.expected["tool_calls"] and "custom_input" in exchange.expected["tool_calls"][0]:
                continue  # custom tools have no function to compare
            replay.answer = replayed(exchange)
            text, calls, total = by_sdk(client, streaming=exchange.stream is not None)
            ours = decoded(exchange)
            assert (ours.text or "") == text, exchange.name
            if not exchange.expected.get("legacy_function_call"):
                assert [(call.name, call.arguments) for call in ours.tool_calls] == [
                    (name, json.loads(arguments or "{}")) for name, arguments in calls
                ], exchange.name
            if total is not None:
                assert ours.usage is not None
                assert ours.usage.total_tokens >= total, exchange.name
            compared += 1
    assert compared >= 200


def decoded(exchange: Exchange) -> AgentResponse:
    codec, request = chat_codec(exchange.provider), exchange.agent_request
    if exchange.stream is None:
        return codec.decode(exchange.reply, request)
    decoder = codec.decoder({}, request)
    decoder.feed(exchange.stream)
    decoder.end()
    return decoder.response()


def test_the_sdk_and_the_agent_send_the_same_to_the_same_place() -> None:
    script = Script("one", "two")
    with LoopbackServer(script) as server, openai.OpenAI(base_url=f"{server.url}/v1", api_key="sk-test") as client:
        client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}], temperature=0.5)
        Agent("openai-chat:m", base_url=f"{server.url}/v1", api_key="sk-test", temperature=0.5).complete("hi")
        theirs, ours = server.requests
    assert ours.url == theirs.url
    assert script.requests[0] == script.requests[1]
    for name in (b"authorization", b"content-type", b"host"):
        assert dict(ours.headers)[name] == dict(theirs.headers)[name]


def test_calls_can_be_mocked_at_the_wire_with_respx(httpx2_mock: respx.Router) -> None:
    answer = {"choices": [{"message": {"content": "mocked"}, "finish_reason": "stop"}]}
    route = httpx2_mock.post("https://api.openai.com/v1/chat/completions").mock(
        return_value=httpx.Response(200, json=answer)
    )
    agent = Agent("openai-chat:gpt-4o", api_key="sk-test")
    assert agent.complete("hi").text == "mocked"
    assert asyncio.run(agent.acomplete("hi")).text == "mocked"
    assert json.loads(route.calls[0].request.content)["model"] == "gpt-4o"
