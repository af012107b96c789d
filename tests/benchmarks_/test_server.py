"""Responses of the benchmark server are valid for the types of the vendors' SDKs."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from anthropic import Anthropic
from anthropic.types import Message, RawMessageStreamEvent
from google import genai
from google.genai import types as gemini
from openai import OpenAI
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from benchmarks import workload
from benchmarks.workers import wire

WHOLE: dict[str, Any] = {
    "openai-chat": ChatCompletion,
    "openai-responses": Response,
    "anthropic": Message,
    "gemini": gemini.GenerateContentResponse,
}
EVENTS: dict[str, TypeAdapter[Any]] = {
    "openai-chat": TypeAdapter(ChatCompletionChunk),
    "openai-responses": TypeAdapter(ResponseStreamEvent),
    "anthropic": TypeAdapter(RawMessageStreamEvent),
    "gemini": TypeAdapter(gemini.GenerateContentResponse),
}
TEXT = "".join(workload.pieces(100))


def post(api: str, base: str, body: dict[str, Any], *, stream: bool = False) -> httpx.Response:
    return httpx.post(wire.address(api, base, stream=stream), json=body, headers=wire.headers(api))


@pytest.mark.parametrize("api", workload.APIS)
def test_whole_answers_have_the_fields_of_the_official_types(server: str, api: str) -> None:
    for scenario in ("whole", "slow", "loop"):
        reply = post(api, f"{server}/{scenario}", wire.question(api))
        assert reply.status_code == 200
        assert len(reply.headers) >= 12
        WHOLE[api].model_validate(reply.json())


@pytest.mark.parametrize("api", workload.APIS)
def test_events_of_streams_have_the_fields_of_the_official_types(server: str, api: str) -> None:
    reply = post(api, f"{server}/stream-100", wire.question(api, stream=True), stream=True)
    assert reply.headers["transfer-encoding"] == "chunked"
    lines = [line[6:] for line in reply.text.splitlines() if line.startswith("data: {")]
    assert len(lines) >= 100
    for line in lines:
        event = json.loads(line)
        if event.get("type") != "ping":  # the SDK drops these before it looks at them
            EVENTS[api].validate_python(event)


@pytest.mark.parametrize("api", workload.APIS)
def test_a_failing_server_says_that_it_is_overloaded(server: str, api: str) -> None:
    reply = post(api, f"{server}/fail", wire.question(api))
    assert reply.status_code == 503
    assert "error" in reply.json()


def test_an_unknown_path_is_not_found_and_the_connection_lives_on(server: str) -> None:
    with httpx.Client() as client:
        assert client.get(f"{server}/whole/v1/nothing").status_code == 404
        body = wire.question("anthropic")
        assert client.post(wire.address("anthropic", f"{server}/whole"), json=body).status_code == 200


def test_the_openai_sdk_finds_the_text(server: str) -> None:
    asked: list[Any] = [{"role": "user", "content": workload.QUESTION}]
    with OpenAI(base_url=f"{server}/whole/v1", api_key="k") as client:
        reply = client.chat.completions.create(model="gpt-4o", messages=asked)
        assert reply.choices[0].message.content == workload.ANSWER
        assert client.responses.create(model="gpt-4o", input="Hi").output_text == workload.ANSWER
    with OpenAI(base_url=f"{server}/stream-100/v1", api_key="k") as client:
        chunks = client.chat.completions.create(model="gpt-4o", messages=asked, stream=True)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == TEXT
        events = client.responses.create(model="gpt-4o", input="Hi", stream=True)
        assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == TEXT


def test_the_anthropic_sdk_finds_the_text(server: str) -> None:
    asked: dict[str, Any] = {"model": workload.MODELS["anthropic"], "max_tokens": 9}
    asked["messages"] = [{"role": "user", "content": workload.QUESTION}]
    with Anthropic(base_url=f"{server}/whole", api_key="k") as client:
        message = client.messages.create(**asked)
        assert [block.text for block in message.content] == [workload.ANSWER]
        assert (message.usage.input_tokens, message.usage.output_tokens) == workload.USAGE
    with (
        Anthropic(base_url=f"{server}/stream-100", api_key="k") as client,
        client.messages.stream(**asked) as stream,
    ):
        assert "".join(stream.text_stream) == TEXT
        assert stream.get_final_message().usage.output_tokens == 100


def test_the_google_sdk_finds_the_text(server: str) -> None:
    def client(scenario: str) -> genai.Client:
        return genai.Client(api_key="k", http_options=gemini.HttpOptions(base_url=f"{server}/{scenario}"))

    asked: dict[str, Any] = {"model": workload.MODELS["gemini"], "contents": workload.QUESTION}
    with client("whole") as whole:
        assert whole.models.generate_content(**asked).text == workload.ANSWER
    with client("stream-100") as streaming:
        chunks = streaming.models.generate_content_stream(**asked)
        assert "".join(chunk.text or "" for chunk in chunks) == TEXT
