"""Malformed tool calls: never executed by mistake, always answered, accepted back by every vendor."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from agent import Agent, errors, tool
from agent.engine.wire import WireRequest
from agent.testing import Answer, Piece, ScriptedTransport, VendorScript, scripted_agent
from agent.tools import ToolContext
from agent.types import AgentResponse, Message, ToolCall
from tests.loop.result_checks import call, check_conversation, ran, results_of
from tests.loop.stories import check_history

TARGETS = ("openai-chat:gpt-5", "openai-responses:gpt-5", "anthropic:claude-sonnet-4-5", "gemini:gemini-2.5-pro")
every_vendor = pytest.mark.parametrize("target", TARGETS)
whole_and_streamed = pytest.mark.parametrize("way", ["run", "arun_stream"])

NOT_JSON = "The arguments are not a JSON object. Repeat the call with valid JSON."
MISSING = "Invalid arguments: a: Field required; b: Field required"


@tool
def add(a: int, b: int) -> int:
    """Adds."""
    return a + b


@tool
def look(value: Any = None) -> str:
    """Needs nothing."""
    return "looked"


def unknown(shown: str) -> str:
    return f"There is no tool {shown}. Available tools: add, look."


def nest(depth: int) -> str:
    return f'{{"value": {"[" * depth}{"]" * depth}}}'


ODD_NAMES: dict[str, str] = {
    "no_such_tool": unknown("'no_such_tool'"),
    "get weather": unknown("'get weather'"),
    "météo 天気": unknown("'météo 天気'"),
    "functions.add": unknown("'functions.add'"),
    'a.b:c/"d\n': unknown("'a.b:c/\"d\\n'"),
    "add\0": unknown(r"'add\x00'"),
    "": "The call names no tool. Available tools: add, look.",
    "x" * 200: unknown(f"'{'x' * 80}'"),
}
ODD_ARGUMENTS: dict[str, tuple[str, str]] = {
    '{"a": 2': ("add", NOT_JSON),
    "[1, 2]": ("add", NOT_JSON),
    '"a"': ("look", NOT_JSON),
    "5": ("look", NOT_JSON),
    "a is 2, b is 3": ("look", NOT_JSON),
    '{"a": 1, "b": 2} done': ("add", NOT_JSON),
    '{"a": NaN, "b": 1}': ("add", NOT_JSON),
    '{"value": 1e999}': ("look", NOT_JSON),
    '{"value": "\\ud800"}': ("look", NOT_JSON),
    f'{{"value": {"9" * 5_000}}}': ("look", NOT_JSON),
    nest(20_000): ("look", NOT_JSON),
    nest(50): ("look", "looked"),
    '{"value": "a\\u0000b"}': ("look", "looked"),
    f'{{"value": {"9" * 100}}}': ("look", "looked"),
    '{"a": 1, "a": 2, "b": 3}': ("add", "5"),
    '{"a": "x", "b": 1}': (
        "add",
        "Invalid arguments: a: Input should be a valid integer, unable to parse string as an integer",
    ),
    '{"a": 1, "b": 2, "c": 3}': ("add", "Invalid arguments: c: unknown parameter; valid parameters: a, b"),
    "{}": ("add", MISSING),
}


def agent_at(target: str, *lines: Any, tools: Any = (add, look)) -> Agent:
    """An agent of a vendor that refuses what the real one would."""
    script = VendorScript(*lines, strict=True)
    return Agent(target, transport=ScriptedTransport(script), api_key="k", tools=tools, max_retries=0)


@every_vendor
@whole_and_streamed
def test_names_that_are_none(target: str, way: str) -> None:
    calls = [call(f"c{number}", name, a=1, b=2) for number, name in enumerate(ODD_NAMES)]
    agent = agent_at(target, [call("ok", "add", a=2, b=3), *calls], call("ok", "add", a=3, b=4), "Done.")
    result = ran(way, agent)
    assert result.text == "Done."
    told = [part.text for part in results_of(result.messages).values()]
    assert told == ["5", *ODD_NAMES.values(), "7"]
    check_conversation(result.messages, [add, look])


@pytest.mark.parametrize(
    ("target", "way"),
    [
        *((target, "arun_stream") for target in TARGETS[:3]),
        *((target, "run") for target in TARGETS[:2]),  # the others send objects, which are JSON or are not sent
    ],
)
def test_arguments_that_are_none(target: str, way: str) -> None:
    calls = [
        ToolCall(id=f"c{number}", name=name, arguments={}, invalid_arguments=text)
        for number, (text, (name, _)) in enumerate(ODD_ARGUMENTS.items())
    ]
    result = ran(way, agent_at(target, [call("ok", "add", a=2, b=3), *calls], "Done."))
    assert result.text == "Done."
    told = [part.text for part in results_of(result.messages).values()]
    assert told == ["5", *(words for _, words in ODD_ARGUMENTS.values())]
    check_conversation(result.messages, [add, look])


@every_vendor
@whole_and_streamed
def test_ids_that_are_none_or_anothers(target: str, way: str) -> None:
    ids = ["c1", "", "c1", "", "x" * 500, 'a b\n"ü"', "call_1_3", "c1"]
    calls = [call(id, "add", a=number, b=10) for number, id in enumerate(ids)]
    result = ran(way, agent_at(target, calls, calls[:2], "Done."))
    assert result.text == "Done."
    results = results_of(result.messages)
    assert len(results) == len(ids) + 2, "each has an id of its own"
    assert [part.text for part in results.values()] == [*(str(10 + number) for number in range(len(ids))), "10", "11"]
    check_conversation(result.messages, [add, look])


@every_vendor
def test_ids_are_not_those_of_an_earlier_run(target: str) -> None:
    first = agent_at(target, [call("c1", "add", a=1, b=1), call("", "add", a=2, b=1)], "Done.").run("Go.")
    history = list(first.messages)
    again = agent_at(target, [call("c1", "add", a=3, b=1), call("", "add", a=4, b=1)], "Done.")
    second = again.run([*history, Message.user("Once more.")])
    conversation = [*history, *(message for message in second.messages if message not in history)]
    assert [part.text for part in results_of(conversation).values()] == ["2", "3", "4", "5"]
    check_conversation(conversation, [add, look])


@every_vendor
@whole_and_streamed
def test_names_with_dots_are_names(target: str, way: str) -> None:
    dotted = tool(lambda: "read", name="files.read:v2", description="Reads.")
    asked = VendorScript(call("c1", "files.read:v2"), "Done.")
    agent = Agent(target, transport=ScriptedTransport(asked), api_key="k", tools=[dotted])
    result = ran(way, agent)
    assert results_of(result.messages)["c1"].text == "read"
    assert results_of(result.messages)["c1"].name == "files.read:v2"
    check_conversation(result.messages, [dotted])


# Answers that break off


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        *((target, reason) for target in TARGETS for reason in ("length", "content_filter")),
        ("anthropic:claude-sonnet-4-5", "refusal"),
        ("openai-chat:gpt-5", "error"),
        ("gemini:gemini-2.5-pro", "error"),
    ],
)
@whole_and_streamed
def test_the_last_call_of_an_answer_that_was_cut_off_is_not_made(target: str, way: str, reason: Any) -> None:
    made: list[str] = []

    @tool
    def wipe(path: str = "/") -> str:
        made.append(path)
        return "wiped"

    broken = AgentResponse(content=[call("c1", "wipe", path="a"), call("c2", "wipe")], stop_reason=reason)
    result = ran(way, agent_at(target, broken, "Done.", tools=[wipe]))
    assert made == ["a"], "the earlier call was complete"
    assert "may be incomplete" in results_of(result.messages)["c2"].text
    check_history(list(result.messages))


class CutOff:
    """A vendor whose answer breaks off after so many bytes. It counts how many there are."""

    def __init__(self, *lines: Any) -> None:
        self._script = VendorScript(*lines)
        self.size = 0
        self.end: int | None = None

    def __call__(self, request: WireRequest) -> Answer:
        answer = self._script(request)
        data = b"".join(piece.outcome for piece in answer.iter_pieces() if isinstance(piece.outcome, bytes))
        self.size = self.size or len(data)
        if self.end is not None:
            data, self.end = data[: self.end], None
        return Answer([Piece(data)], status=answer.status, headers=answer.headers)


@every_vendor
@pytest.mark.parametrize("way", ["run_stream", "arun_stream"])
def test_a_call_in_a_stream_that_breaks_off_is_never_made(target: str, way: str) -> None:
    made: list[tuple[int, int]] = []

    @tool
    def subtract(a: int = 0, b: int = 0) -> int:
        made.append((a, b))
        return a - b

    calls = [call("c1", "subtract", a=70_000, b=3), call("c2", "subtract", a=8, b=3)]

    def attempt(end: int | None) -> tuple[CutOff, Exception | None]:
        made.clear()
        network = CutOff(calls, "Done.")
        network.end = end
        agent = Agent(target, transport=ScriptedTransport(network), api_key="k", tools=[subtract], max_retries=0)
        try:
            ran(way, agent)
        except errors.AgentError as error:
            return network, error
        return network, None

    complete, error = attempt(None)
    assert error is None
    assert made == [(70_000, 3), (8, 3)]
    broken = 0
    step = 11 if way == "run_stream" else 61
    for end in range(0, complete.size, step):
        _, error = attempt(end)
        if error is None:
            assert made == [(70_000, 3), (8, 3)], "all that matters had come"
            continue
        broken += 1
        assert made == []
        assert isinstance(error, errors.AgentError)
        check_history([message for message in error.result.messages if message.stop_reason not in ("error", "aborted")])
    assert broken > 0.8 * complete.size / step


# Answers that are hardly answers


def chat_answer(calls: Any) -> Callable[[dict[str, Any]], Answer]:
    """A chat completion with these calls, whatever they are, whole or as a stream."""
    head = {"id": "x", "created": 1, "model": "m"}

    def line(body: dict[str, Any]) -> Answer:
        if not body.get("stream"):
            message = {"role": "assistant", "content": None, "tool_calls": calls}
            choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
            whole = {**head, "object": "chat.completion", "choices": [choice]}
            return Answer([json.dumps(whole).encode()], headers={"content-type": "application/json"})
        return Answer([*_events(head, calls), b"data: [DONE]\n\n"], headers={"content-type": "text/event-stream"})

    return line


def _events(head: dict[str, Any], calls: Any) -> Iterator[bytes]:
    numbered = [{"index": n, **each} if isinstance(each, dict) else each for n, each in enumerate(calls)]
    for delta, reason in (({"role": "assistant", "tool_calls": numbered}, None), ({}, "tool_calls")):
        choice = {"index": 0, "delta": delta, "finish_reason": reason}
        yield (
            b"data: " + json.dumps({**head, "object": "chat.completion.chunk", "choices": [choice]}).encode() + b"\n\n"
        )


def function(**changes: Any) -> dict[str, Any]:
    return {"name": "add", "arguments": '{"a": 2, "b": 3}', **changes}


NAMELESS = "The call names no tool. Available tools: add."
RAW: dict[str, tuple[Any, str | None]] = {
    "without an id": ({"type": "function", "function": function()}, "5"),
    "its id is null": ({"id": None, "type": "function", "function": function()}, "5"),
    "its id is a number": ({"id": 5, "type": "function", "function": function()}, "5"),
    "without a type": ({"id": "c9", "function": function()}, "5"),
    "without a name": ({"id": "c9", "function": {"arguments": "{}"}}, NAMELESS),
    "its name is null": (
        {"id": "c9", "function": function(name=None)},
        NAMELESS,
    ),
    "without a function": ({"id": "c9", "type": "function"}, NAMELESS),
    "its arguments are null": ({"id": "c9", "function": function(arguments=None)}, MISSING),
    "its arguments are empty": ({"id": "c9", "function": function(arguments="")}, MISSING),
    "its arguments are an object": ({"id": "c9", "function": function(arguments={"a": 2, "b": 3})}, "5"),
    "its name is a list": ({"id": "c9", "function": function(name=["add"])}, None),
    "its function is text": ({"id": "c9", "function": "add"}, None),
    "that is null": (None, None),
    "that is text": ("add", None),
}


@whole_and_streamed
@pytest.mark.parametrize(("odd", "told"), RAW.values(), ids=RAW)
@pytest.mark.malformed
def test_a_call(odd: Any, told: str | None, way: str) -> None:
    good = {"id": "c1", "type": "function", "function": function()}
    agent = scripted_agent(chat_answer([good, odd]), "Done.", tools=[add], max_retries=0)
    if told is None:  # then the whole answer cannot be read
        with pytest.raises((errors.ProtocolError, errors.StreamInterrupted)) as caught:
            ran(way, agent)
        assert not results_of(caught.value.result.messages)
        return
    result = ran(way, agent)
    assert [part.text for part in results_of(result.messages).values()] == ["5", told]
    check_conversation(result.messages, [add])


# Arguments belong to the call


@whole_and_streamed
def test_a_tool_may_do_with_its_arguments_what_it_likes(way: str) -> None:
    seen: list[Any] = []

    @tool(retries=1)
    def takes(items: list[int], context: ToolContext[Any]) -> str:
        seen.append(list(items))
        items.clear()
        if len(seen) == 1:
            raise ValueError("once more")
        return f"{len(context.arguments['items'])} given"

    result = ran(way, scripted_agent(call("c1", "takes", items=[1, 2]), "Done.", tools=[takes]))
    assert results_of(result.messages)["c1"].text == "2 given"
    assert seen == [[1, 2], [1, 2]], "tried again with what the model wrote"
    asked = next(message for message in result.messages if message.tool_calls)
    assert asked.tool_calls[0].arguments == {"items": [1, 2]}  # type: ignore[index]
