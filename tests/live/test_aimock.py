"""An independent server: aimock, which implements the APIs of OpenAI, Anthropic and Google.

The library and the official SDKs must read the same text, tool calls and usage from it.

It is a program for Node, and `make peers` installs it into .tools; without it these tests are skipped.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest
from google import genai
from pydantic import BaseModel

from agent import Agent, AgentRequest, AgentResponse, Message, RetryConfig, Router, RunResult, ToolSpec, errors, tool

ROOT = Path(__file__).parents[2]
AIMOCK = ROOT / ".tools" / "node_modules" / "@copilotkit" / "aimock" / "dist" / "aimock-cli.js"
KEY = "sk-test"

STORY = "Once upon a time, there was a fox — clever, and a bit too proud of it. Ende ☃."
CITY = '{"name":"Paris","population":2100000}'
USAGE = {
    "prompt_tokens": 11,
    "completion_tokens": 7,
    "total_tokens": 18,
    "input_tokens": 11,
    "output_tokens": 7,
    "promptTokenCount": 11,
    "candidatesTokenCount": 7,
    "totalTokenCount": 18,
}
CALLS = [
    {"name": "get_weather", "arguments": '{"city": "Paris", "days": 3}', "id": "call_weather_1"},
    {"name": "get_weather", "arguments": '{"city": "São Paulo"}', "id": "call_weather_2"},
]
LIMITED = {"message": "Rate limit reached", "type": "rate_limit_error", "code": "rate_limit_exceeded"}
BROKEN = {"message": "Something broke", "type": "server_error"}
FIXTURES: list[dict[str, Any]] = [
    {"match": {"userMessage": "story"}, "response": {"content": STORY, "usage": USAGE}, "chunkSize": 5},
    {"match": {"userMessage": "city"}, "response": {"content": CITY, "usage": USAGE}},
    {"match": {"userMessage": "six times seven"}, "response": {"content": "42", "reasoning": "six sevens are"}},
    {"match": {"userMessage": "weather", "hasToolResult": True}, "response": {"content": "Sunny.", "usage": USAGE}},
    {"match": {"userMessage": "weather"}, "response": {"toolCalls": CALLS, "usage": USAGE}},
    {"match": {"userMessage": "hurry"}, "response": {"error": LIMITED, "status": 429, "retryAfter": 7}},
    {
        "match": {"userMessage": "again", "sequenceIndex": 0},
        "response": {"error": BROKEN, "status": 500},
    },
    {"match": {"userMessage": "again"}, "response": {"content": "At last.", "usage": USAGE}},
    {"match": {"userMessage": "forbidden"}, "response": {"error": {"message": "bad key"}, "status": 401}},
    {
        "match": {"userMessage": "cut"},
        "response": {"content": STORY},
        "chunkSize": 3,
        "latency": 10,
        "truncateAfterChunks": 10,
    },
]

WEATHER = ToolSpec(
    name="get_weather",
    description="The weather of the next days.",
    parameters={
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        "required": ["city"],
    },
)


class City(BaseModel):
    name: str
    population: int


@pytest.fixture(scope="session")
def aimock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The server's address."""
    node = shutil.which("node")
    if node is None or not AIMOCK.exists():
        pytest.skip("aimock is not installed; `make peers` installs it where there is npm")
    folder = tmp_path_factory.mktemp("aimock")
    (folder / "fixtures.json").write_text(json.dumps({"fixtures": FIXTURES}), "utf-8")
    (folder / "aimock.json").write_text(json.dumps({"llm": {"fixtures": str(folder / "fixtures.json")}}), "utf-8")
    environment = {name: value for name, value in os.environ.items() if not name.upper().endswith("_PROXY")}
    process = subprocess.Popen(
        [node, str(AIMOCK), "-c", str(folder / "aimock.json"), "-p", "0", "--host", "127.0.0.1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
    )
    try:
        yield _address_of(process)
    finally:
        process.terminate()
        process.wait(10)
        assert process.stdout is not None
        process.stdout.close()


def _address_of(process: subprocess.Popen[str]) -> str:
    """Return the address that the server prints; fail after 30 seconds without one."""
    assert process.stdout is not None
    printed: list[str] = []
    timer = threading.Timer(30, process.kill)
    timer.start()
    try:
        for line in process.stdout:
            printed.append(line)
            if "listening on" in line:
                threading.Thread(target=process.stdout.read, daemon=True).start()  # or it blocks when the pipe is full
                return line.split()[-1]
    finally:
        timer.cancel()
    raise AssertionError(f"aimock did not start: {''.join(printed)}")


# The same question, by us and by the SDKs


@dataclass
class Found:
    """A response as one client read it."""

    text: str
    calls: list[tuple[str, dict[str, Any]]]
    prompt: int | None
    completion: int | None


def read_response(response: AgentResponse) -> Found:
    assert response.usage is not None
    calls = [(call.name, dict(call.arguments)) for call in response.tool_calls]
    return Found(response.text or "", calls, response.usage.prompt_tokens, response.usage.completion_tokens)


def _chat(url: str, question: str, *, tools: bool, stream: bool) -> Found:
    offered: Any = (
        [{"type": "function", "function": {"name": "get_weather", "parameters": dict(WEATHER.parameters)}}]
        if tools
        else openai.omit
    )
    messages: Any = [{"role": "user", "content": question}]
    with openai.OpenAI(api_key=KEY, base_url=f"{url}/v1", max_retries=0) as client:
        if not stream:
            answer = client.chat.completions.create(model="gpt-4o", messages=messages, tools=offered)
            message, usage = answer.choices[0].message, answer.usage
        else:
            with client.chat.completions.stream(
                model="gpt-4o", messages=messages, tools=offered, stream_options={"include_usage": True}
            ) as events:
                final = events.get_final_completion()
            message, usage = final.choices[0].message, final.usage
    calls: list[Any] = list(message.tool_calls or ())
    assert usage is not None
    return Found(
        message.content or "",
        [(call.function.name, json.loads(call.function.arguments)) for call in calls],
        usage.prompt_tokens,
        usage.completion_tokens,
    )


def _responses(url: str, question: str, *, tools: bool, stream: bool) -> Found:
    offered: Any = (
        [{"type": "function", "name": "get_weather", "parameters": dict(WEATHER.parameters), "strict": False}]
        if tools
        else openai.omit
    )
    with openai.OpenAI(api_key=KEY, base_url=f"{url}/v1", max_retries=0) as client:
        answer: Any
        if not stream:
            answer = client.responses.create(model="gpt-4o", input=question, tools=offered)
        else:
            with client.responses.stream(model="gpt-4o", input=question, tools=offered) as events:
                answer = events.get_final_response()
    calls = [(item.name, json.loads(item.arguments)) for item in answer.output if item.type == "function_call"]
    return Found(answer.output_text, calls, answer.usage.input_tokens, answer.usage.output_tokens)


def _messages(url: str, question: str, *, tools: bool, stream: bool) -> Found:
    offered: Any = [{"name": "get_weather", "input_schema": dict(WEATHER.parameters)}] if tools else anthropic.omit
    asked: Any = {
        "model": "claude-sonnet-5",
        "max_tokens": 1000,
        "messages": [{"role": "user", "content": question}],
        "tools": offered,
    }
    with anthropic.Anthropic(api_key=KEY, base_url=url, max_retries=0) as client:
        answer: Any
        if not stream:
            answer = client.messages.create(**asked)
        else:
            with client.messages.stream(**asked) as events:
                answer = events.get_final_message()
    text = "".join(block.text for block in answer.content if block.type == "text")
    calls = [(block.name, block.input) for block in answer.content if block.type == "tool_use"]
    return Found(text, calls, answer.usage.input_tokens, answer.usage.output_tokens)


def _gemini(url: str, question: str, *, tools: bool, stream: bool) -> Found:
    declared = [{"name": "get_weather", "parameters_json_schema": dict(WEATHER.parameters)}]
    config: Any = {
        "tools": [{"function_declarations": declared}] if tools else None,
        "automatic_function_calling": {"disable": True},
    }
    client = genai.Client(api_key=KEY, http_options={"base_url": url, "api_version": "v1beta"})
    try:
        asked: dict[str, Any] = {"model": "gemini-2.5-flash", "contents": question, "config": config}
        answers: list[Any] = (
            list(client.models.generate_content_stream(**asked))
            if stream
            else [client.models.generate_content(**asked)]
        )
    finally:
        client.close()
    parts = [part for answer in answers for part in (answer.candidates[0].content.parts or ())]
    calls = [(part.function_call.name, part.function_call.args) for part in parts if part.function_call]
    usage = next(answer.usage_metadata for answer in reversed(answers) if answer.usage_metadata)
    text = "".join(part.text or "" for part in parts if not part.thought)
    return Found(text, calls, usage.prompt_token_count, usage.candidates_token_count)


@dataclass(frozen=True)
class Dialect:
    model: str
    path: str
    sdk: Callable[..., Found]

    def agent(self, url: str, **options: Any) -> Agent:
        if "retry" not in options:
            options.setdefault("max_retries", 0)
        return Agent(self.model, base_url=f"{url}{self.path}", api_key=KEY, **options)


DIALECTS = [
    Dialect("openai-chat:gpt-4o", "/v1", _chat),
    Dialect("openai-responses:gpt-4o", "/v1", _responses),
    Dialect("anthropic:claude-sonnet-5", "", _messages),
    Dialect("gemini:gemini-2.5-flash", "", _gemini),
]


@pytest.fixture(params=DIALECTS, ids=lambda dialect: dialect.model.partition(":")[0])
def dialect(request: pytest.FixtureRequest) -> Dialect:
    found: Dialect = request.param
    return found


def _complete(agent: Agent, request: Any) -> AgentResponse:
    return agent.complete(request)


def _stream(agent: Agent, request: Any) -> AgentResponse:
    return agent.stream(request).collect()


def _acomplete(agent: Agent, request: Any) -> AgentResponse:
    return asyncio.run(agent.acomplete(request))


def _astream(agent: Agent, request: Any) -> AgentResponse:
    async def main() -> AgentResponse:
        return await agent.astream(request).collect()

    return asyncio.run(main())


Ask = Callable[[Agent, Any], AgentResponse]


@pytest.fixture(params=[_complete, _stream, _acomplete, _astream], ids=lambda way: way.__name__.strip("_"))
def ask(request: pytest.FixtureRequest) -> Ask:
    way: Ask = request.param
    return way


def test_text_and_usage_are_what_the_sdk_finds(aimock: str, dialect: Dialect, ask: Ask) -> None:
    found = read_response(ask(dialect.agent(aimock), "Tell me a story"))
    assert found == Found(STORY, [], 11, 7)
    assert found == dialect.sdk(aimock, "Tell me a story", tools=False, stream=ask in (_stream, _astream))


@pytest.mark.filterwarnings("ignore:FUNCTION_CALL is not a valid FinishReason")  # by google-genai, of aimock's answer
def test_tool_calls_are_what_the_sdk_finds(aimock: str, dialect: Dialect, ask: Ask) -> None:
    question = "How is the weather?"
    response = ask(dialect.agent(aimock), AgentRequest(input=question, tools=(WEATHER,)))
    expected: list[tuple[str, dict[str, Any]]] = [
        ("get_weather", {"city": "Paris", "days": 3}),
        ("get_weather", {"city": "São Paulo"}),
    ]
    assert read_response(response) == Found("", expected, 11, 7)
    assert read_response(response) == dialect.sdk(aimock, question, tools=True, stream=ask in (_stream, _astream))
    assert len({call.id for call in response.tool_calls}) == 2


def test_results_of_tools_go_back_and_the_conversation_goes_on(aimock: str, dialect: Dialect, ask: Ask) -> None:
    agent = dialect.agent(aimock, tools=[WEATHER])
    question = AgentRequest(input="How is the weather?")
    called = ask(agent, question)
    results = [Message.tool("21 °C", tool_call_id=call.id, name=call.name) for call in called.tool_calls]
    assert ask(agent, question.with_messages(called.message, *results)).text == "Sunny."


def test_typed_output_fits(aimock: str, dialect: Dialect, ask: Ask) -> None:
    response = ask(dialect.agent(aimock), AgentRequest(input="Name a city", output_schema=City))
    assert response.output == City(name="Paris", population=2_100_000)


def test_reasoning_is_told_apart_from_the_answer(aimock: str, dialect: Dialect, ask: Ask) -> None:
    response = ask(dialect.agent(aimock), "What is six times seven?")
    assert (response.text, response.thinking) == ("42", "six sevens are")


def test_streamed_and_unstreamed_answers_agree(aimock: str, dialect: Dialect) -> None:
    agent = dialect.agent(aimock, tools=[WEATHER])
    for question in ("Tell me a story", "How is the weather?", "What is six times seven?"):
        whole, streamed = agent.complete(question), agent.stream(question).collect()
        assert read_response(streamed) == read_response(whole)
        assert (streamed.stop_reason, streamed.raw_stop_reason) == (whole.stop_reason, whole.raw_stop_reason)
        assert [type(part) for part in streamed.content] == [type(part) for part in whole.content]


def test_a_rate_limit_says_how_long_to_wait(aimock: str, dialect: Dialect, ask: Ask) -> None:
    with pytest.raises(errors.RateLimitError, match="Rate limit reached") as caught:
        ask(dialect.agent(aimock), "hurry up")
    assert (caught.value.status_code, caught.value.retry_after, caught.value.retryable) == (429, 7, True)
    assert caught.value.request_id


def test_a_refused_key_is_an_authentication_error(aimock: str, dialect: Dialect, ask: Ask) -> None:
    with pytest.raises(errors.AuthenticationError):
        ask(dialect.agent(aimock), "forbidden")


def test_a_failure_is_retried_and_then_it_works(aimock: str, dialect: Dialect, ask: Ask) -> None:
    # Fixtures that come once are counted per test id.
    headers = {"x-test-id": f"{dialect.model} {ask.__name__}"}
    agent = dialect.agent(aimock, headers=headers, retry=RetryConfig(max_retries=2, initial_delay=0.0))
    response = ask(agent, "Try again")
    assert response.text == "At last."
    assert [attempt.error for attempt in response.route] == ["ProviderError", None]


@pytest.mark.parametrize("ask", [_stream, _astream], ids=["stream", "astream"])
def test_a_stream_that_is_cut_is_interrupted(aimock: str, dialect: Dialect, ask: Ask) -> None:
    with pytest.raises(errors.StreamInterrupted) as caught:
        ask(dialect.agent(aimock), "This will be cut")
    assert caught.value.partial is not None
    text = caught.value.partial.text or ""
    assert 0 < len(text) < len(STORY)
    assert STORY.startswith(text)


# The loop


@tool
async def get_weather(city: str, days: int = 1) -> str:
    """The weather of the next days."""
    await asyncio.sleep(0)
    return f"{city}: {21 + days} °C"


def _run(agent: Agent, question: str) -> RunResult:
    return agent.run(question)


def _arun(agent: Agent, question: str) -> RunResult:
    return asyncio.run(agent.arun(question))


def _run_stream(agent: Agent, question: str) -> RunResult:
    return agent.run_stream(question).collect()


def _arun_stream(agent: Agent, question: str) -> RunResult:
    async def main() -> RunResult:
        return await agent.arun_stream(question).collect()

    return asyncio.run(main())


@pytest.mark.parametrize("run", [_run, _arun, _run_stream, _arun_stream], ids=lambda way: way.__name__.strip("_"))
def test_the_loop_makes_parallel_calls_and_comes_to_its_answer(
    aimock: str, dialect: Dialect, run: Callable[[Agent, str], RunResult]
) -> None:
    result = run(dialect.agent(aimock, tools=[get_weather]), "How is the weather?")
    assert result.text == "Sunny."
    assert result.turns == 2
    answers = [message.text for message in result.messages if message.role == "tool"]
    assert answers == ["Paris: 24 °C", "São Paulo: 22 °C"]
    assert result.usage is not None
    assert (result.usage.prompt_tokens, result.usage.completion_tokens) == (22, 14)
    assert [attempt.error for attempt in result.route] == [None, None]


def test_a_router_runs_the_loop_over_three_dialects(aimock: str) -> None:
    agents = [dialect.agent(aimock, tools=[get_weather]) for dialect in DIALECTS]
    router = Router(agents, strategy="round_robin")
    result = router.run("How is the weather?")
    assert result.text == "Sunny."  # one vendor made the calls, another read their results
    assert len({attempt.target for attempt in result.route}) == 2


# Through brought clients


def test_clouds_are_reached_through_brought_clients(aimock: str) -> None:
    azure = openai.AzureOpenAI(azure_endpoint=aimock, api_version="2025-01-01", api_key=KEY)
    bedrock = anthropic.AnthropicBedrock(
        base_url=aimock, aws_access_key="AKIA0", aws_secret_key="secret", aws_region="us-east-1"
    )
    with azure, bedrock:
        assert Agent("openai-chat:gpt-4o", client=azure).complete("Tell me a story").text == STORY
        assert Agent("openai-chat:gpt-4o", client=azure).stream("Tell me a story").collect().text == STORY
        model = "anthropic.claude-3-5-sonnet-20241022-v2:0"
        assert Agent(f"anthropic:{model}", client=bedrock).complete("Tell me a story").text == STORY
