"""The beginning of a long conversation is written once. It changes nothing but the time that a turn takes."""

from __future__ import annotations

import gc
import pickle
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.types import (
    AgentRequest,
    ImageContent,
    Message,
    Origin,
    Part,
    RefusalContent,
    Role,
    TextContent,
    ThinkingContent,
    ToolCall,
    ToolResult,
    VendorContent,
    prefixes,
)
from agent.types.notes import notes_on
from tests.providers.writing_requests import TARGETS, codec_of, fresh, model_of, written
from tests.steps import steps_of

APIS = ("openai-chat:gpt-4o", "openai-responses:gpt-5", "anthropic:claude-sonnet-4-5", "gemini:gemini-2.5-pro")
PICTURE = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(autouse=True, scope="module")
def _short_conversations_count_as_long() -> Iterator[None]:
    least, prefixes.LEAST = prefixes.LEAST, 3
    yield
    prefixes.LEAST = least


@cache
def home_of(target: str) -> Origin:
    return Origin(provider=codec_of(target).name, api=codec_of(target).api, model=model_of(target))


def request_of(target: str, messages: Sequence[Message], **settings: Any) -> AgentRequest:
    return AgentRequest(messages=messages, model=model_of(target), **settings)


def begun_on(messages: Sequence[Message]) -> list[int]:
    """Where beginnings are kept."""
    return [place for place, one in enumerate(messages) if any(key.endswith("/begun") for key in notes_on(one))]


# What is sent


class Talk:
    """A conversation that somebody has, turn by turn. Calls and items have ids of their own."""

    def __init__(self, target: str) -> None:
        self.home = home_of(target)
        self.said: list[Message] = []
        self.count = 0

    def add(self, kind: str) -> None:
        self.count += 1
        self.said += self._turn(kind)

    def _turn(self, kind: str) -> list[Message]:
        question, answer = Message.user(f"question {self.count}"), Message.assistant(f"answer {self.count}")
        match kind:
            case "words":
                return [question, answer]
            case "two questions":
                return [question, Message.user("or rather"), answer]
            case "two answers":
                return [question, answer, Message.assistant("that is")]
            case "picture":
                seen: list[Part] = [TextContent(text="see"), ImageContent(image_data=PICTURE, media_type="image/png")]
                return [Message(Role.USER, seen), answer]
            case "large":
                return [Message.user("x" * 70_000), answer]
            case "mark":
                return [Message(Role.USER, [TextContent(text="mark", cache="short")]), answer]
            case "named":
                return [Message.user("I am", name="Ann"), answer]
            case "late system":
                return [question, Message.system("Be brief."), answer]
            case "empty":
                return [question, Message.assistant("")]
            case "refusal":
                return [question, Message(Role.ASSISTANT, [RefusalContent(refusal="no", origin=self.home)])]
            case "same turn" if len(self.said) > 1:
                return [self.said[0], self.said[1]]
            case "vendor":
                block = VendorContent(kind="thing", provider_data={"type": "thing"}, origin=self.home)
                return [question, Message(Role.ASSISTANT, [block, TextContent(text="so", origin=self.home)])]
            case "foreign":
                far = Origin(provider="elsewhere", api="other", model="m")
                thought = ThinkingContent(thinking="hm", signature="c2ln", origin=far)
                return [question, Message(Role.ASSISTANT, [thought, TextContent(text="so", origin=far)])]
            case "no result":
                return [question, Message.assistant("", tool_calls=[self._call(0)])]
            case "loop":
                return [question, *self._calling(1), *self._calling(1), *self._calling(3), answer]
            case "results together":
                calls = [self._call(number) for number in range(2)]
                results = [ToolResult(tool_call_id=call.id, content="got", name=call.name) for call in calls]
                return [question, Message(Role.ASSISTANT, calls), Message(Role.TOOL, results), answer]
            case "results with pictures":
                call = self._call(0)
                inside = [TextContent(text="see"), ImageContent(image_data=PICTURE, media_type="image/png")]
                result = ToolResult(tool_call_id=call.id, content=inside, name=call.name)
                return [question, Message(Role.ASSISTANT, [call]), Message(Role.TOOL, [result]), answer]
            case "custom tool":
                call = self._call(0, provider_data={"type": "custom"})
                return [question, Message(Role.ASSISTANT, [call]), Message.tool("got", tool_call_id=call.id), answer]
            case "sealed":
                return [question, self._sealed(), Message.tool("got", tool_call_id=f"call_{self.count}_0"), answer]
            case _:
                return [question]

    def _call(self, number: int, **facts: Any) -> ToolCall:
        id = f"call_{self.count}_{number}"
        return ToolCall(id=id, name="look", arguments={"n": number}, origin=self.home, item_id=f"fc_{id}", **facts)

    def _calling(self, number: int) -> list[Message]:
        self.count += 1
        calls = [self._call(place) for place in range(number)]
        results = [Message.tool("got", tool_call_id=call.id, name=call.name) for call in calls]
        return [Message(Role.ASSISTANT, [TextContent(text="let me see"), *calls]), *results]

    def _sealed(self) -> Message:
        """A turn as the vendor itself says it: reasoning that must come back, and items with ids."""
        id = f"rs_{self.count}"
        thought = ThinkingContent(
            thinking="hm", signature="c2ln", origin=self.home, id=id, encrypted_content="c2VhbA=="
        )
        words = TextContent(text="well", origin=self.home, provider_data={"id": f"msg_{self.count}"})
        return Message(Role.ASSISTANT, [thought, words, self._call(0)])


KINDS = (
    "words", "two questions", "two answers", "picture", "large", "mark", "named", "late system", "empty", "refusal",
    "same turn", "vendor", "foreign", "no result", "loop", "results together", "results with pictures", "custom tool",
    "sealed", "question",
)  # fmt: skip
MOSTLY_PLAIN = ("words", "loop", "results together", "sealed")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("target", TARGETS)
def test_every_turn_of_a_conversation_is_written_as_if_it_were_new(target: str, kind: str) -> None:
    talk = Talk(target)
    for number in range(12):
        talk.add(kind if number in (0, 5, 6) else MOSTLY_PLAIN[number % 4])
        for cache_hint in (None, "short"):
            request = request_of(target, [*talk.said, Message.user("?")], cache=cache_hint, system="Be kind.")
            expected = written(target, fresh(request))
            assert [written(target, request) for _ in range(3)] == [expected] * 3


@pytest.mark.parametrize("target", TARGETS)
@settings(max_examples=60)
@given(data=st.data())
def test_conversations_that_are_cut_changed_and_taken_up_again_are_written_as_if_they_were_new(
    target: str, data: st.DataObject
) -> None:
    talk = Talk(target)
    plain = st.sampled_from(MOSTLY_PLAIN)
    for kind in data.draw(st.lists(plain | plain | st.sampled_from(KINDS), min_size=2, max_size=8)):
        talk.add(kind)
        last = len(talk.said) - 1
        match data.draw(st.sampled_from(("go on", "go on", "go on", "back", "edit", "leave out", "put in", "swap"))):
            case "back":
                del talk.said[data.draw(st.integers(0, last)) :]
            case "edit":
                place = data.draw(st.integers(0, last))
                talk.said[place] = talk.said[place].model_copy(update={"content": "something else"})
            case "leave out":
                del talk.said[data.draw(st.integers(0, last))]
            case "put in":
                talk.said.insert(data.draw(st.integers(0, last)), Message.user("by the way"))
            case "swap":  # an equal message that is another object, and may be written differently
                place = data.draw(st.integers(0, last))
                talk.said[place] = pickle.loads(pickle.dumps(talk.said[place]))
            case _:
                pass
        options = data.draw(
            st.fixed_dictionaries(
                {
                    "cache": st.sampled_from((None, None, "short", "long")),
                    "system": st.sampled_from((None, "Be kind.")),
                    "input": st.sampled_from((None, "?")),
                }
            )
        )
        request = request_of(target, talk.said, **options)
        if not request.is_empty:
            expected = written(target, fresh(request))
            assert [written(target, request) for _ in range(2)] == [expected] * 2


def test_equal_messages_are_told_apart() -> None:
    """Numbers of JSON may be equal and still be written differently."""

    def asked(number: Any) -> Message:
        return Message(Role.ASSISTANT, [ToolCall(id="c", name="look", arguments={"n": number})])

    before, after = [Message.user("a")], [Message.tool("got", tool_call_id="c"), *map(Message.user, "bcdef")]
    assert asked(1) == asked(1.0) == asked(True)
    for target in APIS:
        for number in (1, 1.0, True):
            request = request_of(target, [*before, asked(number), *after])
            expected = written(target, fresh(request))
            assert [written(target, request) for _ in range(3)] == [expected] * 3


def test_threads_may_go_on_from_one_beginning_at_once() -> None:
    for target in APIS:
        talk = Talk(target)
        for _ in range(8):
            talk.add("sealed")

        def ask(number: int, talk: Talk = talk, target: str = target) -> bool:
            branch = Talk(target)
            branch.count = 1000 * (number % 3)
            said = [*talk.said]
            for _ in range(4):
                branch.add("sealed")
                request = request_of(target, [*said, *branch.said])
                if written(target, request) != written(target, fresh(request)):
                    return False
            return True

        with ThreadPoolExecutor(8) as pool:
            assert all(pool.map(ask, range(24)))


# What it costs


def cost_of_next_turn(target: str, kind: str, turns: int, **settings: Any) -> int:
    talk = Talk(target)
    for _ in range(turns):
        talk.add(kind)
    for _ in range(2):
        request = request_of(target, [*talk.said, Message.user("?")], **settings)
        codec_of(target).encode(request, stream=False)
        talk.add(kind)
    request = request_of(target, [*talk.said, Message.user("?")], **settings)
    return steps_of(lambda: codec_of(target).encode(request, stream=False))


@pytest.mark.parametrize("settings", [{}, {"cache": "short"}, {"system": "Be kind."}], ids=str)
@pytest.mark.parametrize("kind", ["words", "loop", "results together", "sealed"])
@pytest.mark.parametrize("target", [*APIS, "deepseek:deepseek-chat", "mistral:mistral-large-latest"])
def test_a_turn_of_a_long_conversation_takes_as_many_steps_as_one_of_a_short_one(
    target: str, kind: str, settings: dict[str, Any]
) -> None:
    short, long = cost_of_next_turn(target, kind, 10, **settings), cost_of_next_turn(target, kind, 200, **settings)
    assert abs(long - short) <= 12  # the beginning is in a few more pieces


@pytest.mark.parametrize("target", APIS)
def test_a_question_asked_of_one_conversation_again_and_again_costs_what_is_new(target: str) -> None:
    """Every question follows the same messages: what was begun for one of them serves the others."""
    talk = Talk(target)
    for _ in range(100):
        talk.add("words")

    def ask(number: int) -> int:
        request = request_of(target, [*talk.said, Message.user(f"question {number}")])
        return steps_of(lambda: codec_of(target).encode(request, stream=False))

    costs = [ask(number) for number in range(6)]
    assert max(costs[2:]) < len(talk.said) < costs[1] < costs[0]


# What is kept


@pytest.mark.parametrize("target", APIS)
def test_a_beginning_is_kept_once_and_moves_on(target: str) -> None:
    talk = Talk(target)
    for number in range(20):
        talk.add("loop" if number % 2 else "words")
        written(target, request_of(target, [*talk.said, Message.user("?")]))
        assert len(begun_on(talk.said)) == (number > 1)
    assert begun_on(talk.said)[0] > len(talk.said) - 12


@pytest.mark.parametrize("target", APIS)
def test_what_is_sent_once_keeps_no_beginning(target: str) -> None:
    talk = Talk(target)
    for _ in range(20):
        talk.add("words")
    written(target, request_of(target, talk.said))
    assert begun_on(talk.said) == []


@pytest.mark.parametrize("target", APIS)
def test_an_answer_does_not_keep_the_conversation_before_it(target: str) -> None:
    talk = Talk(target)
    for number in range(20):
        talk.add(("words", "two answers", "loop")[number % 3])
        written(target, request_of(target, [*talk.said, Message.user("?")]))
        assert not [place for place in begun_on(talk.said) if talk.said[place].role is Role.ASSISTANT]


@pytest.mark.parametrize("target", APIS)
def test_a_conversation_that_is_over_is_freed_at_once(target: str) -> None:
    talk = Talk(target)
    for _ in range(10):
        talk.add("loop")
        written(target, request_of(target, [*talk.said, Message.user("?")]))
    assert begun_on(talk.said)
    gc.collect()
    gc.disable()
    try:
        before = sum(isinstance(one, Message) for one in gc.get_objects())
        count = len(talk.said)
        talk.said.clear()
        assert before - sum(isinstance(one, Message) for one in gc.get_objects()) == count
    finally:
        gc.enable()


@pytest.mark.parametrize("target", APIS)
def test_a_large_message_is_not_kept_as_part_of_a_beginning(target: str) -> None:
    """It would double the memory of the conversation: it holds an image, most likely."""
    talk = Talk(target)
    for number in range(10):
        talk.add("large" if number == 2 else "words")
        written(target, request_of(target, [*talk.said, Message.user("?")]))
    kept = [value for one in talk.said for key, value in notes_on(one).items() if key.endswith("/begun")]
    assert sum(len(piece) for one in kept for piece in one.fact.pieces) < 70_000
