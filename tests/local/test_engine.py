"""The engine's own HTTP server, used through our codecs as an independent implementation.

It runs in a process of its own, on the same weights and with the same settings as the model in this process. So it has
to write the same text, whatever API is used; if it does not, a codec changed the request.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, NamedTuple

import pytest

from agent import Agent, AgentResponse, Message, ToolCall, errors, tool
from tests.local.conftest import STATUS, Face

pytestmark = pytest.mark.skipif(not STATUS.ready, reason=f"{STATUS.problem}")

KEY = "sk-only-we-know"
SERVER = """
import sys
from agent.local import engine, weights
from agent.local.weights import SMOLLM2, verify_weights

module = weights.load_engine()
params = engine.parameters(module, SMOLLM2, verify_weights(SMOLLM2))
params.api_keys = [sys.argv[1]]
params.cache_prompt = False  # as the model in process does whenever its answer must not vary
params.n_threads_http = 32  # each holds on to one connection for as long as that is kept alive
server = module.Server(params)
print(server.listening_address, flush=True)
sys.stdin.read()
"""
PATHS = {"openai-chat": "/v1", "openai-responses": "/v1", "anthropic": ""}
APIS = pytest.mark.parametrize("api", PATHS)

HELLO = [Message.system("Be brief."), Message.user("Say hello.")]
BRIEFLY = [Message.system("Be brief."), Message.user("Say only: Hello.")]
STORY = "Write a very long story about a lighthouse."
SHORTEST = 16
"""Tokens: the Responses API takes no smaller limit."""


class Server(NamedTuple):
    address: str

    def agent(self, api: str, path: str = "", key: str = KEY) -> Agent:
        # It ends connections that are idle for a few seconds, and may do so just as one of them is used again.
        return Agent(f"{api}:smollm2", base_url=f"{self.address}{PATHS[api]}{path}", api_key=key, max_retries=1)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """It serves until its standard input ends, so it also ends with us."""
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER, KEY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        address = process.stdout.readline().strip()
        assert address.startswith("http://127.0.0.1:"), "it did not start"
        yield Server(address)
    finally:
        process.stdin.close()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


def count_tokens(response: AgentResponse) -> tuple[int, int]:
    assert response.usage is not None
    return response.usage.prompt_tokens, response.usage.completion_tokens


# The same answers


class Here:
    """Greedy responses of the in-process model, for comparison."""

    def __init__(self) -> None:
        self._agent = Agent("local:smollm2")
        self._said: dict[str, AgentResponse] = {}

    def says(self, request: Any, **fields: Any) -> AgentResponse:
        key = repr((request, sorted(fields.items())))
        if key not in self._said:
            self._said[key] = self._agent.complete(request, **{"max_tokens": SHORTEST, "temperature": 0, **fields})
        return self._said[key]


@pytest.fixture(scope="module")
def here() -> Here:
    return Here()


@APIS
def test_every_api_brings_the_answer_of_the_model_in_process(server: Server, here: Here, face: Face, api: str) -> None:
    agent = server.agent(api)
    whole = face.complete(agent, HELLO, max_tokens=SHORTEST, temperature=0)
    events, streamed = face.stream(agent, HELLO, max_tokens=SHORTEST, temperature=0)
    pieces = [event.text or "" for event in events if event.type == "text_delta"]
    hello = here.says(HELLO)
    assert whole.text == streamed.text == "".join(pieces) == hello.text
    assert len(pieces) > 3
    assert count_tokens(whole) == count_tokens(streamed) == count_tokens(hello)
    assert whole.model == streamed.model == "smollm2"
    assert whole.warnings == streamed.warnings == ()
    # They are cut off here. Through its Responses API this server calls every answer complete.
    truncated = "stop" if api == "openai-responses" else "length"
    assert whole.stop_reason == streamed.stop_reason == truncated


@APIS
def test_an_answer_that_has_come_to_its_end_says_so(server: Server, here: Here, api: str) -> None:
    answer = server.agent(api).complete(BRIEFLY, max_tokens=40, temperature=0)
    assert answer.stop_reason == "stop"
    assert answer.text == here.says(BRIEFLY, max_tokens=40).text
    assert count_tokens(answer)[1] < 40


@APIS
def test_a_conversation_reaches_the_model_word_for_word(server: Server, here: Here, api: str) -> None:
    agent = server.agent(api)
    answer = agent.complete(HELLO, max_tokens=SHORTEST, temperature=0)
    again = Message.user("Again, please.")
    more = agent.complete([*HELLO, answer.message, again], max_tokens=SHORTEST, temperature=0)
    expected = here.says([*HELLO, Message.assistant(here.says(HELLO).text), again])
    assert (more.text, count_tokens(more)) == (expected.text, count_tokens(expected))


@pytest.mark.parametrize("api", ["openai-chat", "anthropic"])
def test_a_stop_ends_the_answer_before_it(server: Server, here: Here, api: str) -> None:
    text = here.says(HELLO).text or ""
    mark = text.split()[2]
    cut = server.agent(api).complete(HELLO, max_tokens=SHORTEST, temperature=0, stop=[mark])
    assert cut.stop_reason == "stop"
    assert cut.text == text.partition(mark)[0]


@pytest.mark.parametrize(
    ("api", "seeded"),
    [("openai-chat", {"seed": 5}), ("openai-responses", {"extra": {"seed": 5}})],
    ids=["openai-chat", "openai-responses"],
)
def test_the_same_seed_writes_the_same_text(server: Server, here: Here, api: str, seeded: dict[str, Any]) -> None:
    """Of the three APIs one has a seed, and another lets the server see what it does not know itself."""
    fields: dict[str, Any] = {"max_tokens": SHORTEST, "temperature": 1.2, "top_p": 0.9}
    answer = server.agent(api).complete(HELLO, **fields, **seeded)
    assert answer.text == here.says(HELLO, **fields, seed=5).text
    assert answer.text != here.says(HELLO).text


def test_four_threads_get_the_answers_that_one_gets(server: Server, here: Here) -> None:
    with ThreadPoolExecutor(4) as pool:
        asked = [
            pool.submit(server.agent(api).complete, HELLO, max_tokens=SHORTEST, temperature=0)
            for api in (*PATHS, "openai-chat")
        ]
    assert {answer.result().text for answer in asked} == {here.says(HELLO).text}


# Schemas and tools

SKY = [Message.system("Be brief."), Message.user("The sky is blue.")]
COLOUR = {
    "type": "object",
    "properties": {"colour": {"enum": ["red", "blue"]}},
    "required": ["colour"],
    "additionalProperties": False,
}


@tool
def paint(colour: Literal["red", "blue"]) -> str:
    """Paint."""
    return colour


FORCED: dict[str, Any] = {"tools": [paint], "tool_choice": "required", "max_tokens": 120, "temperature": 0}


def test_a_schema_is_enforced_where_the_api_has_a_place_for_it(server: Server, face: Face) -> None:
    answer = face.json(server.agent("openai-chat"), SKY, schema=COLOUR, max_tokens=60, temperature=0)
    assert answer.output == {"colour": "blue"}
    assert len(answer.route) == 1


def test_where_it_has_none_the_schema_is_enforced_as_a_tool(server: Server) -> None:
    answer = server.agent("anthropic").json(SKY, schema=COLOUR, output_mode="tool", max_tokens=120, temperature=0)
    assert answer.output in ({"colour": "red"}, {"colour": "blue"})
    assert len(answer.route) == 1


def test_a_schema_that_the_server_passes_over_never_yields_an_output(server: Server) -> None:
    """It has no place for one in the format of Anthropic, and does not say so."""
    with pytest.raises(errors.SchemaValidationError) as caught:
        server.agent("anthropic").json(SKY, schema=COLOUR, output_mode="native", max_tokens=4, temperature=0)
    assert caught.value.text


@APIS
@pytest.mark.parametrize("how", ["blocking, whole", "awaited, streamed"])
def test_a_forced_call_is_the_one_that_is_made_in_process(server: Server, here: Here, how: str, api: str) -> None:
    if how == "blocking, whole":
        answer = Face("sync").complete(server.agent(api), SKY, **FORCED)
    else:
        events, answer = Face("async").stream(server.agent(api), SKY, **FORCED)
        assert [event.type for event in events].count("tool_call_delta") > 1
    expected = here.says(SKY, **FORCED)
    assert answer.stop_reason == "tool_calls"
    assert [(call.name, call.arguments) for call in answer.tool_calls] == [
        (call.name, call.arguments) for call in expected.tool_calls
    ]
    assert count_tokens(answer) == count_tokens(expected)


@APIS
def test_the_result_of_a_call_reaches_the_model(server: Server, here: Here, api: str) -> None:
    call = ToolCall(id="call_1", name="paint", arguments={"colour": "blue"})
    story = [*SKY, Message.assistant(tool_calls=[call]), Message.tool("It is blue now.", tool_call_id="call_1")]
    answer = server.agent(api).complete(story, max_tokens=SHORTEST, temperature=0)
    expected = here.says(story)
    assert (answer.text, count_tokens(answer)) == (expected.text, count_tokens(expected))


# Errors


@APIS
def test_a_wrong_key_is_refused(server: Server, face: Face, api: str) -> None:
    with pytest.raises(errors.AuthenticationError) as caught:
        face.complete(server.agent(api, key="sk-another"), HELLO, max_tokens=SHORTEST)
    assert (caught.value.status_code, caught.value.provider) == (401, api)
    assert KEY not in str(caught.value)


@APIS
def test_a_path_that_the_server_does_not_have_is_an_error_with_its_words(server: Server, api: str) -> None:
    with pytest.raises(errors.ModelNotFoundError, match="File Not Found"):
        server.agent(api, path="/nowhere").complete(HELLO, max_tokens=SHORTEST)


@APIS
def test_a_prompt_that_is_too_long_is_refused_as_such(server: Server, face: Face, api: str) -> None:
    with pytest.raises(errors.ContextLengthError, match="8192"):
        face.complete(server.agent(api), "word " * 9000, max_tokens=SHORTEST)
    with pytest.raises(errors.ContextLengthError, match="8192"):
        face.stream(server.agent(api), "word " * 9000, max_tokens=SHORTEST)


def test_what_the_server_cannot_read_is_a_bad_request_in_its_words(server: Server) -> None:
    with pytest.raises(errors.BadRequestError, match="response_format") as caught:
        server.agent("openai-chat").complete(HELLO, max_tokens=SHORTEST, extra={"response_format": {"type": "odd"}})
    assert not caught.value.retryable


def test_tokens_are_counted_as_in_process(server: Server) -> None:
    count = server.agent("anthropic").count_tokens(HELLO)
    assert count.exact
    assert count.tokens == Agent("local:smollm2").count_tokens(HELLO).tokens


# Stopping


def seconds_to_answer(server: Server) -> float:
    """The server answers one request at a time, so a response proves that the previous one was dropped."""
    start = time.monotonic()
    server.agent("openai-chat").complete(HELLO, max_tokens=1)
    return time.monotonic() - start


@pytest.mark.timing
@APIS
def test_leaving_a_stream_stops_the_server(server: Server, api: str) -> None:
    with server.agent(api).stream(STORY, max_tokens=4000) as stream:
        for event in stream:
            if event.type == "text_delta":
                break
    assert seconds_to_answer(server) < 2


@pytest.mark.timing
def test_a_deadline_stops_the_server(server: Server, face: Face) -> None:
    with pytest.raises(errors.TimeoutError):
        face.complete(server.agent("openai-chat"), STORY, max_tokens=4000, deadline=0.5)
    assert seconds_to_answer(server) < 2


def test_what_the_server_says_beyond_the_api_is_kept(server: Server) -> None:
    answer = server.agent("openai-chat").complete(HELLO, max_tokens=1, temperature=0)
    assert answer.raw["timings"]["predicted_n"] == 1
    assert json.dumps(answer.raw)
