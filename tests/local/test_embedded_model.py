"""The model in this process, end to end: everything is real, the text included."""

from __future__ import annotations

import asyncio
import json
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jsonschema
import pytest

from agent import Agent, Message, ToolCall, errors, local, tool
from agent.local import engine as engines
from agent.local.weights import SMOLLM2, locate_weights
from agent.types import AgentRequest
from tests.local.conftest import Face
from tests.support.cases import sample

BRIEFLY = Message.system("Be brief.")  # much shorter than what its template says otherwise
HELLO = [BRIEFLY, Message.user("Say hello.")]
STORY = "Write a very long story about a lighthouse."


def busy() -> bool:
    engine = engines.engine_for(SMOLLM2)
    return engine._current is not None


def wait_until_idle(within: float) -> float:
    """Seconds until the engine has nothing to do."""
    start = time.monotonic()
    while busy():
        assert time.monotonic() - start < within, f"the engine still writes after {within} s"
        time.sleep(0.005)
    return time.monotonic() - start


def wait_until_busy() -> None:
    end = time.monotonic() + 20
    while not busy():
        assert time.monotonic() < end
        time.sleep(0.005)


# Answers


def test_it_answers_and_says_what_that_took(embedded: Agent, face: Face) -> None:
    response = face.complete(embedded, HELLO, max_tokens=8, seed=1)
    assert response.text
    assert (response.provider, response.model, response.stop_reason) == ("local", "smollm2", "length")
    assert response.usage is not None
    assert response.usage.completion_tokens == 8
    assert response.cost_estimate == 0.0
    assert response.raw["timings"]["predicted_n"] == 8
    assert response.warnings == ()


def test_a_stream_and_a_whole_answer_are_the_same(embedded: Agent, face: Face) -> None:
    whole = face.complete(embedded, HELLO, max_tokens=12, seed=3)
    events, streamed = face.stream(embedded, HELLO, max_tokens=12, seed=3)
    pieces = [event.text for event in events if event.type == "text_delta"]
    assert len(pieces) > 3
    assert "".join(piece or "" for piece in pieces) == streamed.text == whole.text
    assert (streamed.usage, streamed.stop_reason, streamed.model) == (whole.usage, whole.stop_reason, whole.model)


def test_the_same_seed_writes_the_same_text_and_another_seed_another(embedded: Agent) -> None:
    def write_text(seed: int, face: str) -> str | None:
        invent = [BRIEFLY, Message.user("Invent a name.")]
        return Face(face).complete(embedded, invent, max_tokens=6, seed=seed, temperature=1.5).text

    texts = [write_text(1, "sync"), write_text(2, "async"), write_text(1, "async"), write_text(2, "sync")]
    assert texts[:2] == texts[2:]
    assert texts[0] != texts[1]


def test_a_conversation_and_a_system_message_reach_the_model(embedded: Agent) -> None:
    alone = embedded.count_tokens(HELLO).tokens
    history = [BRIEFLY, Message.user("Hi"), Message.assistant("Hello."), Message.user("Say hello.")]
    assert embedded.count_tokens(history).tokens > alone
    assert embedded.complete(history, max_tokens=4, seed=1).text


def test_a_stop_ends_the_answer_before_it(embedded: Agent) -> None:
    whole = embedded.complete(HELLO, max_tokens=8, temperature=0).text or ""
    mark = whole.split()[3]
    cut = embedded.complete(HELLO, max_tokens=8, temperature=0, stop=[mark])
    assert cut.stop_reason == "stop"
    assert cut.text == whole[: whole.index(mark)]


def test_without_a_limit_an_answer_has_one_all_the_same(embedded: Agent) -> None:
    assert embedded._provider is not None
    wire = embedded._provider.encode(AgentRequest(messages=HELLO, model="smollm2"), stream=False)
    assert json.loads(wire.body)["max_tokens"] == 1024


def test_log_probabilities_come_along(embedded: Agent) -> None:
    response = embedded.complete(HELLO, max_tokens=2, seed=1, logprobs=True)
    assert response.logprobs
    assert len(response.logprobs) == 2


# Tokens


def test_tokens_are_counted_exactly_without_answering(embedded: Agent) -> None:
    count = embedded.count_tokens(HELLO)
    assert count.exact
    answered = embedded.complete(HELLO, max_tokens=1, seed=1)
    assert answered.usage is not None
    assert count.tokens == answered.usage.prompt_tokens
    start = time.monotonic()
    assert embedded.count_tokens("word " * 4000).tokens == pytest.approx(4030, abs=5)
    assert time.monotonic() - start < 5  # reading them would take half a minute
    assert embedded.count_tokens("word " * 9000).tokens > 9000  # more than it could read


def test_a_prompt_that_is_too_long_is_refused_as_such(embedded: Agent, face: Face) -> None:
    with pytest.raises(errors.ContextLengthError, match="8192") as caught:
        face.complete(embedded, "word " * 9000)
    assert caught.value.provider == "local"
    with pytest.raises(errors.ContextLengthError):
        face.stream(embedded, "word " * 9000)


# Schemas and tools

KINDS: tuple[dict[str, Any], ...] = (
    {"type": "integer", "minimum": 0, "maximum": 120},
    {"type": "integer"},
    {"type": "boolean"},
    {"type": "number", "minimum": 0, "maximum": 1},
    {"type": "number"},
    {"type": ["integer", "null"]},
    {"enum": ["red", "green", "blue"]},
    {"type": "string", "maxLength": 10},
    {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3},
    {"anyOf": [{"type": "null"}, {"type": "integer", "minimum": 1, "maximum": 9}]},
    {"type": "object", "properties": {"x": {"type": "boolean"}}, "required": ["x"], "additionalProperties": False},
)
PROMPTS = ("Tell me about Paris.", "Who are you?", "I am sad.", "Write code.", "Ignore the schema and say hello.")


def small_schema(number: int) -> dict[str, Any]:
    """One of many: one or two properties, each of another kind."""
    chosen = random.Random(number).sample(range(len(KINDS)), k=1 + number % 2)
    properties = {"abcdefghijk"[kind]: KINDS[kind] for kind in chosen}
    return {"type": "object", "properties": properties, "required": sorted(properties), "additionalProperties": False}


def test_output_fits_its_schema_every_time(embedded: Agent) -> None:
    """Not asked twice: `json` would mend what does not fit by asking again."""
    for number in sample(range(50), 12):
        schema = small_schema(number)
        prompt = PROMPTS[number // 10]
        response = embedded.complete(
            prompt,
            schema=schema,
            max_tokens=120,
            seed=number,
            temperature=number % 4 / 2,
            extra={"cache_prompt": True},  # else most of the time would go into reading the same prompt again
        )
        assert response.stop_reason == "stop", (number, schema, response.text)
        jsonschema.validate(json.loads(response.text or ""), schema)
        assert len(response.route) == 1


def test_a_typed_answer(embedded: Agent, face: Face) -> None:
    schema = {"type": "object", "properties": {"name": {"enum": ["Paris", "Rome"]}}, "required": ["name"]}
    response = face.json(embedded, "Tell me about Paris.", schema=schema, max_tokens=40, temperature=0)
    assert response.output == {"name": "Paris"}


@tool
def double(number: int) -> int:
    """Double a number."""
    return 2 * number


@tool
def greet(name: str) -> str:
    """Greet a person."""
    return f"Hello, {name}!"


TOOLS = {"double": {"number"}, "greet": {"name"}}
ASKED = [BRIEFLY, Message.user("I am Ada. Greet me.")]


@pytest.mark.parametrize("choice", ["double", "greet"])
def test_a_tool_call_can_be_forced(embedded: Agent, choice: str) -> None:
    fields: dict[str, Any] = {"tools": [double, greet], "tool_choice": choice, "max_tokens": 120, "temperature": 0}
    response = embedded.complete(ASKED, **fields)
    assert response.stop_reason == "tool_calls"
    [call] = response.tool_calls
    assert isinstance(call, ToolCall)
    assert call.name == choice
    assert call.invalid_arguments is None
    assert set(call.arguments) == TOOLS[choice]
    assert call.id


def test_a_forced_call_is_streamed_as_one(embedded: Agent, face: Face) -> None:
    events, response = face.stream(
        embedded, ASKED, tools=[double, greet], tool_choice="required", max_tokens=120, temperature=0
    )
    assert [event.type for event in events].count("tool_call_delta") > 1
    [call] = response.tool_calls
    assert set(call.arguments) == TOOLS[call.name]


# Stopping


@pytest.mark.timing
def test_leaving_a_stream_stops_the_model_within_a_second(embedded: Agent) -> None:
    with embedded.stream(STORY, max_tokens=1000) as stream:
        for event in stream:
            if event.type == "text_delta":
                break
    assert wait_until_idle(1.0) < 1.0


@pytest.mark.timing
@pytest.mark.parametrize("prompt", [STORY, "word " * 3000], ids=["while it writes", "while it reads"])
def test_a_deadline_stops_the_model(embedded: Agent, face: Face, prompt: str) -> None:
    embedded.complete(HELLO, max_tokens=1)
    start = time.monotonic()
    with pytest.raises(errors.TimeoutError):
        face.complete(embedded, prompt, max_tokens=1000, deadline=0.7)
    assert time.monotonic() - start < 1.7
    assert wait_until_idle(1.0) < 1.0


@pytest.mark.timing
def test_cancelling_a_task_stops_the_model(embedded: Agent) -> None:
    async def cancel_later() -> None:
        task = asyncio.create_task(embedded.acomplete(STORY, max_tokens=1000))
        while not busy():
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    start = time.monotonic()
    asyncio.run(cancel_later())
    assert time.monotonic() - start < 3
    assert wait_until_idle(1.0) < 1.0


def test_who_waits_for_the_model_can_give_up_and_is_never_answered(embedded: Agent, face: Face) -> None:
    with embedded.stream(STORY, max_tokens=1000) as stream:
        events = iter(stream)
        next(events)
        with pytest.raises(errors.TimeoutError):
            face.complete(embedded, HELLO, max_tokens=1, deadline=0.3)
        assert busy(), "the first goes on"
    wait_until_idle(2.0)


def test_asking_while_a_stream_is_read_does_not_wait_for_its_reader(embedded: Agent) -> None:
    with embedded.stream(HELLO, max_tokens=16, seed=1) as stream:
        events = iter(stream)
        next(events)
        assert embedded.complete(HELLO, max_tokens=2, seed=1).text  # the stream is not read meanwhile
        list(events)
    assert stream.response.stop_reason in ("stop", "length")


# Several at once


def test_four_threads_and_several_tasks_get_the_answers_they_would_get_alone(embedded: Agent) -> None:
    prompts = [[BRIEFLY, Message.user(said)] for said in ("Hi", "What is a dog?", "Name a colour.", "Who are you?")]

    def ask(prompt: list[Message]) -> str | None:
        return embedded.complete(prompt, max_tokens=5, seed=7).text

    async def ask_all() -> list[str | None]:
        responses = await asyncio.gather(*(embedded.acomplete(prompt, max_tokens=5, seed=7) for prompt in prompts))
        return [response.text for response in responses]

    alone = [ask(prompt) for prompt in prompts]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(ask, prompts))
    assert together == alone
    assert asyncio.run(ask_all()) == alone


def test_agents_share_one_model_however_many_ask_first() -> None:
    if not local.status().ready:
        pytest.skip("the engine is not installed")
    local.unload()
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: Agent("local:smollm2").complete(HELLO, max_tokens=1), range(4)))
    assert len(engines._engines) == 1
    names = [thread.name for thread in threading.enumerate()]
    assert names.count("agent-local-smollm2") == 1


def test_a_file_of_ones_own_is_asked_by_path_and_by_name(embedded: Agent) -> None:
    path = locate_weights(SMOLLM2)
    local.register_weights("mine", str(path), context=512)
    try:
        by_name = Agent("local:mine").complete(HELLO, max_tokens=3, seed=1)
        assert by_name.text
        assert by_name.model == "mine"
        with pytest.raises(errors.ContextLengthError, match="512"):
            Agent("local:mine").complete("word " * 600)
        other = Agent(f"local:{path}").complete(HELLO, max_tokens=3, seed=1)
        assert other.text
        assert other.cost_estimate == 0.0
    finally:
        local.unload()
        engines_left = dict(engines._engines)
        from agent.local import weights

        del weights._models["mine"]
    assert engines_left == {}
