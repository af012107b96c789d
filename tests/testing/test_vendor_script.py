"""Vendor scripts are read by the official SDKs as clients of a loopback server."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import anthropic
import openai
import pytest
from google import genai
from google.genai import errors as genai_errors

from agent import Agent, AgentResponse, errors
from agent.providers.scripted import Line
from agent.testing import LoopbackServer, VendorScript, scripted_agent
from agent.types import (
    Citation,
    ImageContent,
    RefusalContent,
    TextContent,
    ThinkingContent,
    ToolCall,
    ToolSpec,
    Usage,
    VendorContent,
)

KEY = "sk-0123456789"
USAGE = Usage.from_counts(120, 40, cache_read=20, reasoning=10)
CALLS = (
    ToolCall(id="call_a", name="get_weather", arguments={"city": "Zürich", "days": 3}),
    ToolCall(id="call_b", name="get_time", arguments={}),
)
STORY = AgentResponse(text="Once upon a time  there was\na fox ☃.", usage=USAGE)
CALLING = AgentResponse(content=(TextContent(text="Let me see."), *CALLS), usage=USAGE)
THINKING = AgentResponse(content=(ThinkingContent(thinking="Two and two ..."), TextContent(text="4")), usage=USAGE)


@dataclass
class Found:
    """Content of a response as a client reads it."""

    text: str
    calls: list[tuple[str, str, Any]] = field(default_factory=list)
    thinking: str = ""
    reason: str | None = None
    refusal: str | None = None
    usage: tuple[int | None, ...] = ()
    """Everything read, of that cached; everything written, of that reasoning."""


# How the SDKs read


def _chat(url: str, *, stream: bool) -> Found:
    asked: Any = {"model": "gpt-4o", "messages": [{"role": "user", "content": "Hi"}]}
    with openai.OpenAI(api_key=KEY, base_url=f"{url}/v1", max_retries=0) as client:
        if stream:
            with client.chat.completions.stream(**asked, stream_options={"include_usage": True}) as events:
                with suppress(openai.LengthFinishReasonError, openai.ContentFilterFinishReasonError):
                    events.until_done()
                answer: Any = events.current_completion_snapshot
        else:
            answer = client.chat.completions.create(**asked)
    choice, usage = answer.choices[0], answer.usage
    message = choice.message
    assert answer.model == "gpt-4o"
    return Found(
        message.content or "",
        [(call.id, call.function.name, json.loads(call.function.arguments)) for call in message.tool_calls or ()],
        getattr(message, "reasoning_content", None) or "",
        choice.finish_reason,
        message.refusal,
        (
            usage.prompt_tokens,
            usage.prompt_tokens_details.cached_tokens,
            usage.completion_tokens,
            usage.completion_tokens_details.reasoning_tokens,
        ),
    )


def _responses(url: str, *, stream: bool) -> Found:
    asked: Any = {"model": "gpt-5.6", "input": "Hi"}
    with openai.OpenAI(api_key=KEY, base_url=f"{url}/v1", max_retries=0) as client:
        if stream:
            with client.responses.stream(**asked) as events:
                seen = list(events)
                answer: Any = next(event for event in reversed(seen) if hasattr(event, "response")).response
            grown = "".join(event.delta for event in seen if event.type == "response.output_text.delta")
            assert grown == answer.output_text
            assert [event.sequence_number for event in seen] == list(range(len(seen)))
        else:
            answer = client.responses.create(**asked)
    blocks = [block for item in answer.output if item.type == "message" for block in item.content]
    summaries = [part.text for item in answer.output if item.type == "reasoning" for part in item.summary]
    assert answer.model == "gpt-5.6"
    return Found(
        answer.output_text,
        [
            (item.call_id, item.name, json.loads(item.arguments))
            for item in answer.output
            if item.type == "function_call"
        ],
        "".join(summaries),
        answer.incomplete_details.reason if answer.incomplete_details else answer.status,
        "".join(block.refusal for block in blocks if block.type == "refusal") or None,
        (
            answer.usage.input_tokens,
            answer.usage.input_tokens_details.cached_tokens,
            answer.usage.output_tokens,
            answer.usage.output_tokens_details.reasoning_tokens,
        ),
    )


def _messages(url: str, *, stream: bool) -> Found:
    asked: Any = {"model": "claude-sonnet-5", "max_tokens": 1000, "messages": [{"role": "user", "content": "Hi"}]}
    with anthropic.Anthropic(api_key=KEY, base_url=url, max_retries=0) as client:
        if stream:
            with client.messages.stream(**asked) as events:
                answer: Any = events.get_final_message()
        else:
            answer = client.messages.create(**asked)
    usage = answer.usage
    assert answer.model == "claude-sonnet-5"
    return Found(
        "".join(block.text for block in answer.content if block.type == "text"),
        [(block.id, block.name, block.input) for block in answer.content if block.type == "tool_use"],
        "".join(block.thinking for block in answer.content if block.type == "thinking"),
        answer.stop_reason,
        answer.stop_details.explanation if answer.stop_details else None,
        (
            usage.input_tokens + usage.cache_read_input_tokens + usage.cache_creation_input_tokens,
            usage.cache_read_input_tokens,
            usage.output_tokens,
            usage.output_tokens_details.thinking_tokens,
        ),
    )


def _gemini(url: str, *, stream: bool) -> Found:
    client = genai.Client(api_key=KEY, http_options={"base_url": url})
    try:
        if stream:
            answers: list[Any] = list(client.models.generate_content_stream(model="gemini-3.5-flash", contents="Hi"))
        else:
            answers = [client.models.generate_content(model="gemini-3.5-flash", contents="Hi")]
    finally:
        client.close()
    parts = [part for answer in answers for part in answer.candidates[0].content.parts or ()]
    calls = [part.function_call for part in parts if part.function_call]
    last, usage = answers[-1].candidates[0], answers[-1].usage_metadata
    assert {answer.model_version for answer in answers} == {"gemini-3.5-flash"}
    return Found(
        "".join(part.text or "" for part in parts if not part.thought),
        [(call.id, call.name, call.args) for call in calls],
        "".join(part.text or "" for part in parts if part.thought),
        last.finish_reason.value,
        None,
        (
            usage.prompt_token_count,
            usage.cached_content_token_count,
            usage.candidates_token_count + usage.thoughts_token_count,
            usage.thoughts_token_count,
        ),
    )


@dataclass(frozen=True)
class Api:
    target: str
    path: str
    read: Callable[..., Found]
    words: dict[str, str]
    """How it says that an answer ended, by our names."""

    def agent(self, server: LoopbackServer) -> Agent:
        return Agent(self.target, base_url=f"{server.url}{self.path}", api_key=KEY, max_retries=0)


APIS = [
    Api(
        "openai-chat:gpt-4o",
        "/v1",
        _chat,
        {"stop": "stop", "length": "length", "tool_calls": "tool_calls", "content_filter": "content_filter"},
    ),
    Api(
        "openai-responses:gpt-5.6",
        "/v1",
        _responses,
        {
            "stop": "completed",
            "length": "max_output_tokens",
            "tool_calls": "completed",
            "content_filter": "content_filter",
        },
    ),
    Api(
        "anthropic:claude-sonnet-5",
        "",
        _messages,
        {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use", "content_filter": "refusal"},
    ),
    Api(
        "gemini:gemini-3.5-flash",
        "",
        _gemini,
        {"stop": "STOP", "length": "MAX_TOKENS", "tool_calls": "STOP", "content_filter": "SAFETY"},
    ),
]


@pytest.fixture(params=APIS, ids=lambda api: api.target.partition(":")[0])
def api(request: pytest.FixtureRequest) -> Api:
    found: Api = request.param
    return found


@pytest.fixture(params=[False, True], ids=["whole", "streamed"])
def stream(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def read(api: Api, *lines: Line, stream: bool) -> Found:
    with LoopbackServer(VendorScript(*lines)) as server:
        return api.read(server.url, stream=stream)


def receive(api: Api, *lines: Line, stream: bool) -> AgentResponse:
    with LoopbackServer(VendorScript(*lines)) as server:
        agent = api.agent(server)
        return agent.stream("Hi").collect() if stream else agent.complete("Hi")


# Responses in the SDKs


def test_sdks_read_text_and_usage(api: Api, stream: bool) -> None:
    found = read(api, STORY, stream=stream)
    assert (found.text, found.reason, found.usage) == (STORY.text, api.words["stop"], (120, 20, 40, 10))
    assert (found.calls, found.thinking, found.refusal) == ([], "", None)


def test_sdks_read_calls(api: Api, stream: bool) -> None:
    found = read(api, CALLING, stream=stream)
    assert found.calls == [(call.id, call.name, call.arguments) for call in CALLS]
    assert (found.text, found.reason, found.usage) == ("Let me see.", api.words["tool_calls"], (120, 20, 40, 10))


def test_sdks_read_thinking(api: Api, stream: bool) -> None:
    found = read(api, THINKING, stream=stream)
    assert (found.thinking, found.text) == ("Two and two ...", "4")


def test_sdks_read_refusals(api: Api, stream: bool) -> None:
    found = read(api, RefusalContent(refusal="I would rather not."), stream=stream)
    if api.read is _gemini:  # which has no words for it
        assert (found.text, found.reason) == ("", "SAFETY")
    else:
        assert (found.text, found.refusal) == ("", "I would rather not.")


@pytest.mark.parametrize("reason", ["stop", "length", "content_filter"])
def test_sdks_read_how_an_answer_ended(api: Api, reason: Any, stream: bool) -> None:
    assert read(api, AgentResponse(text="Hi", stop_reason=reason), stream=stream).reason == api.words[reason]


@pytest.mark.parametrize("reason", ["length", "content_filter", "pause", "error", "other"])
def test_an_answer_that_did_not_end_well_is_never_told_as_one_that_did(api: Api, reason: Any, stream: bool) -> None:
    assert receive(api, AgentResponse(text="Hi", stop_reason=reason), stream=stream).stop_reason not in (
        None,
        "stop",
    )


def test_sdks_raise_what_their_vendors_errors_are(stream: bool) -> None:
    line = errors.RateLimitError("slow down", retry_after=3)
    with pytest.raises(openai.RateLimitError, match="slow down") as caught:
        _chat_or(_responses, line, stream)
    assert caught.value.response.headers["retry-after"] == "3"
    with pytest.raises(openai.RateLimitError, match="slow down"):
        _chat_or(_chat, line, stream)
    with pytest.raises(anthropic.RateLimitError, match="slow down"):
        _chat_or(_messages, line, stream)
    with pytest.raises(genai_errors.ClientError, match="slow down"):
        _chat_or(_gemini, line, stream)


def test_a_filters_refusal_is_met_as_that(api: Api, stream: bool) -> None:
    with pytest.raises(errors.ContentFilterError, match="not this"):
        receive(api, errors.ContentFilterError("not this"), stream=stream)


def _chat_or(reading: Callable[..., Found], line: Line, stream: bool) -> None:
    with LoopbackServer(VendorScript(line)) as server:
        reading(server.url, stream=stream)


def test_sdks_read_counts_and_no_line_is_used_up() -> None:
    script = VendorScript("Hello")
    question: Any = {"messages": [{"role": "user", "content": "one two three"}]}
    with LoopbackServer(script) as server:
        with anthropic.Anthropic(api_key=KEY, base_url=server.url) as claude:
            assert claude.messages.count_tokens(model="claude-sonnet-5", **question).input_tokens > 2
        with openai.OpenAI(api_key=KEY, base_url=f"{server.url}/v1") as gpt:
            assert gpt.responses.input_tokens.count(model="gpt-5.6", input="one two three").input_tokens == 3
        gemini = genai.Client(api_key=KEY, http_options={"base_url": server.url})
        try:
            counted = gemini.models.count_tokens(model="gemini-3.5-flash", contents="one two three")
        finally:
            gemini.close()
        assert (counted.total_tokens or 0) > 2
        for api in APIS[1:]:
            assert api.agent(server).count_tokens("one two three").exact
        assert _chat(server.url, stream=False).text == "Hello"
    assert len(script.requests) == 7


# Promises to users


def test_a_tool_of_the_vendor_is_not_mistaken_for_the_one_to_call(api: Api) -> None:
    vendors: dict[str, Any] = {"googleSearch": {}} if api.read is _gemini else {"type": "web_search"}
    if api.read is _messages:
        vendors = {"type": "web_search_20250305", "name": "web_search"}
    with LoopbackServer(VendorScript()) as server:
        agent = api.agent(server)
        response = agent.complete("Hi", tools=[vendors, ToolSpec(name="f")], tool_choice="f")
        assert [call.name for call in response.tool_calls] == ["f"]
        if api.read is not _messages:  # all of its tools have names
            assert agent.complete("Hi", tools=[vendors], tool_choice="required").text == "You said: Hi"


def test_ids_of_calls_are_those_of_the_script(api: Api, stream: bool) -> None:
    response = receive(api, CALLING, stream=stream)
    assert [call.id for call in response.tool_calls] == ["call_a", "call_b"]
    assert response.stop_reason == "tool_calls"


def test_arguments_that_are_no_json_can_be_scripted(api: Api, stream: bool) -> None:
    line = ToolCall(id="call_a", name="get_weather", invalid_arguments='{"city": "Par')
    if api.read is _gemini:  # its arguments are never text
        with pytest.raises(errors.AgentError, match="invalid arguments"):
            receive(api, line, stream=stream)
        return
    call = receive(api, line, stream=stream).tool_calls[0]
    assert (dict(call.arguments), call.invalid_arguments) == ({}, '{"city": "Par')


def test_sealed_reasoning_can_be_scripted(stream: bool) -> None:
    by_name = {api.target.partition(":")[0]: api for api in APIS}
    withheld = ThinkingContent(thinking="", redacted=True, encrypted_content="sealed-1")
    (part,) = receive(by_name["anthropic"], withheld, stream=stream).content
    assert isinstance(part, ThinkingContent)
    assert part.redacted
    assert part.encrypted_content == "sealed-1"
    (part,) = receive(by_name["openai-responses"], withheld, stream=stream).content
    assert isinstance(part, ThinkingContent)
    assert part.encrypted_content == "sealed-1"
    signed = [
        ThinkingContent(thinking="Hm, hm.", signature="c2lnMQ=="),
        TextContent(text="4 or 5", signature="c2lnMg=="),
    ]
    first, second = receive(by_name["gemini"], signed, stream=stream).content
    assert isinstance(first, ThinkingContent)
    assert (first.thinking, first.signature) == ("Hm, hm.", "c2lnMQ==")
    assert isinstance(second, TextContent)
    assert (second.text, second.signature) == ("4 or 5", "c2lnMg==")


def test_blocks_of_the_vendor_can_be_scripted(stream: bool) -> None:
    blocks: list[dict[str, Any]] = [
        {"type": "web_search_call", "id": "ws_1", "status": "completed"},
        {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "foxes"}},
        {"executableCode": {"language": "PYTHON", "code": "1 + 1"}},
    ]
    for api, block in zip(APIS[1:], blocks, strict=True):
        line = [VendorContent(kind="any", provider_data=block), TextContent(text="Found.")]
        vendor, text = receive(api, line, stream=stream).content
        assert (vendor.provider_data, text.text) == (block, "Found.")


@pytest.fixture(params=["in process", "served"])
def failing(request: pytest.FixtureRequest) -> Iterator[Callable[[Line], Agent]]:
    servers: list[LoopbackServer] = []

    def make(line: Line) -> Agent:
        if request.param == "in process":
            return scripted_agent(line, max_retries=0)
        servers.append(LoopbackServer(VendorScript(line)))
        return Agent("openai-chat:any", base_url=servers[-1].url, api_key=KEY, max_retries=0)

    yield make
    for server in servers:
        server.close()


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (ImageContent(image_data=b"x", media_type="image/png"), "a part of type 'image'"),
        (VendorContent(kind="web_search", provider_data={}), "a part of type 'vendor'"),
        (TextContent(text="Paris", citations=[Citation(url="https://example.com")]), "citations"),
    ],
    ids=["image", "vendor", "citations"],
)
def test_what_cannot_be_said_is_refused_and_not_left_out(
    failing: Callable[[Line], Agent], line: Line, says: str
) -> None:
    with pytest.raises(errors.AgentError, match=says):
        failing(line).complete("Hi")


def test_what_a_function_of_the_script_raises_is_told_to_the_client(api: Api, stream: bool) -> None:
    def picky(body: dict[str, Any]) -> str:
        raise AssertionError("no temperature was sent")

    with pytest.raises(errors.BadRequestError, match="AssertionError: no temperature was sent"):
        receive(api, picky, stream=stream)


def test_other_paths_are_not_found_rather_than_answered_wrongly() -> None:
    with LoopbackServer(VendorScript()) as server, openai.OpenAI(api_key=KEY, base_url=server.url) as client:
        with pytest.raises(openai.NotFoundError, match="/embeddings"):
            client.embeddings.create(model="text-embedding-3-small", input="Hi")
        with pytest.raises(openai.NotFoundError):
            client.models.list()
