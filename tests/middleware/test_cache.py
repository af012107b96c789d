"""Cache: which responses are cached, and how cached responses differ."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import Any

import pytest
from pydantic import AliasChoices, BaseModel, Field, field_serializer

from agent import Agent, AgentRequest, AgentResponse, Router, ToolCall, Usage, errors
from agent.engine.wire import Answer
from agent.middleware import Cache, CallInfo, MemoryResponseStore, Redaction, ResponseStore, SqliteResponseStore
from agent.testing import LoopbackServer, Script, ScriptedTransport, Simulation, scripted_agent
from agent.types import AudioContent, Message, TextContent, ThinkingContent, fold
from tests.middleware.spies import EVERY_PLACE, Place
from tests.support.drivers import Driver


class Clock:
    """Shows the time that it is set to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def comparable(response: AgentResponse) -> AgentResponse:
    """Without what a kept answer says about itself."""
    return response.model_copy(update={"cost_estimate": None, "cost_source": None, "latency_ms": None, "route": ()})


RICH = AgentResponse(
    content=[
        ThinkingContent(thinking="hm"),
        TextContent(text="Tōkyō"),
        ToolCall(id="c1", name="f", arguments={"n": 1, "s": ["é"]}),
    ],
    usage=Usage(prompt_tokens=3, completion_tokens=4, cache_read_tokens=1),
)


@pytest.mark.parametrize("place", EVERY_PLACE.values(), ids=list(EVERY_PLACE))
def test_the_same_request_is_asked_once_wherever_the_cache_stands(place: Place) -> None:
    cache = Cache()
    with LoopbackServer(Script("Good day")) as server:  # a second request would fail
        caller = place(server.url, [cache])
        assert [caller.complete("hi").text, caller.stream("hi").collect().text] == ["Good day", "Good day"]
        assert len(server.requests) == 1


@pytest.fixture
def script() -> Script:
    return Script()


def make_cached_agent(script: Script, cache: Cache, **options: Any) -> Agent:
    return Agent("scripted:m", transport=ScriptedTransport(script), middleware=[cache], **options)


@pytest.mark.parametrize("streams", [(False, False), (False, True), (True, False), (True, True)])
@pytest.mark.parametrize("line", ["Good day to you", RICH], ids=["text", "rich"])
def test_a_kept_answer_is_the_answer(line: Any, streams: tuple[bool, bool]) -> None:
    agent = make_cached_agent(Script(line), Cache())  # a second request would fail
    answers: list[AgentResponse] = []
    for streaming in streams:
        if streaming:
            stream = agent.stream("hi")
            events = list(stream)
            assert fold(events).content == stream.response.content
            answers.append(stream.response)
        else:
            answers.append(agent.complete("hi"))
    assert comparable(answers[0]) == comparable(answers[1])
    assert answers[1].content == answers[0].content


def test_a_kept_answer_works_under_every_driver(drive: Driver) -> None:
    cache = Cache()
    kept = scripted_agent("kept", middleware=[cache])
    kept.complete("hi")
    outcome = drive.stream(Script("asked"), "hi", make=lambda url: kept)
    assert (outcome.ok.text, outcome.text, outcome.requests) == ("kept", "kept", [])
    assert drive.complete(Script("asked"), "hi", make=lambda url: kept).ok.text == "kept"
    assert cache.stats.hits == 2


def test_a_kept_answer_cost_nothing_and_says_so() -> None:
    billed = AgentResponse(text="hi", usage=Usage(prompt_tokens=3, completion_tokens=1, billed=0.25))
    cache = Cache()
    info = _call()
    _drain(cache.before(info.request, info))
    asked = billed.model_copy(update={"stop_reason": "stop", "cost_estimate": 0.25, "cost_source": "vendor"})
    _drain(cache.after(asked, info))
    again = _call()
    kept = _drain(cache.before(again.request, again))
    assert (kept.cost_estimate, kept.cost_source) == (0.0, "cache")
    assert kept.usage == billed.usage.model_copy(update={"billed": 0.0})  # type: ignore[union-attr]


def test_a_kept_answer_is_in_the_route_as_such(script: Script) -> None:
    agent = make_cached_agent(script, Cache())
    asked, kept = agent.complete("hi"), agent.complete("hi")
    assert [attempt.reason for attempt in asked.route] == [None]
    assert [(attempt.reason, attempt.cost) for attempt in kept.route] == [("answered by Cache", 0.0)]
    assert len(script.requests) == 1


@pytest.mark.parametrize(
    "line",
    [
        AgentResponse(text="cut o", stop_reason="length", raw_stop_reason="length"),
        AgentResponse(text="", stop_reason="content_filter", raw_stop_reason="content_filter"),
        AgentResponse(text="?", stop_reason="other", raw_stop_reason="strange"),
        errors.BadRequestError("no"),
        Answer([b'data: {"choices":[{"index":0,"delta":{"content":"Hel"}}]}\n\n']),
    ],
    ids=["length", "filter", "other", "error", "broken"],
)
def test_only_complete_answers_are_kept(line: Any) -> None:
    cache = Cache()
    agent = make_cached_agent(Script(line, "whole"), cache, max_retries=0)
    with suppress(errors.AgentError):
        agent.stream("hi").collect()
    assert cache.stats.stored == 0
    assert agent.complete("hi").text == "whole"
    assert agent.complete("hi").text == "whole"
    assert cache.stats.stored == 1


def test_a_stream_that_is_left_is_not_kept() -> None:
    cache = Cache()
    agent = make_cached_agent(Script("one two", "whole"), cache)
    for event in agent.stream("hi"):
        if event.text:
            break
    assert agent.complete("hi").text == "whole"


def test_another_question_is_another_answer(script: Script) -> None:
    agent = make_cached_agent(script, Cache())
    assert [agent.complete(text).text for text in ("a", "b", "a")] == ["You said: a", "You said: b", "You said: a"]
    agent.complete("a", temperature=0.5)
    agent.with_config(model="other").complete("a")
    assert len(script.requests) == 4


def test_one_store_serves_several_agents(script: Script) -> None:
    store = MemoryResponseStore()
    for _ in range(3):
        assert make_cached_agent(script, Cache(store)).complete("hi").text == "You said: hi"
    assert len(script.requests) == 1


def test_an_answer_expires(script: Script) -> None:
    clock = Clock()
    agent = make_cached_agent(script, Cache(ttl=60.0, clock=clock))
    for now, requests in ((0.0, 1), (59.9, 1), (60.0, 2), (119.0, 2), (121.0, 3)):
        clock.now = 1000.0 + now
        agent.complete("hi")
        assert len(script.requests) == requests


def test_only_what_is_wanted_is_kept(script: Script) -> None:
    cache = Cache(when=lambda request: request.temperature == 0)
    agent = make_cached_agent(script, cache)
    for _ in range(2):
        agent.complete("hi", temperature=0.7)
        agent.complete("hi", temperature=0)
    assert len(script.requests) == 3
    assert (cache.stats.hits, cache.stats.misses, cache.stats.stored) == (1, 1, 1)


def test_what_cannot_be_sent_is_no_business_of_the_cache() -> None:
    agent = Agent("anthropic:claude-sonnet-5", api_key="sk-ant-test", middleware=[Cache()])
    with pytest.raises(errors.UnsupportedFeatureError):
        agent.complete(Message("user", [AudioContent(data=b"la", media_type="audio/wav")]))


# Typed output


class City(BaseModel):
    name: str
    population: int = Field(validation_alias=AliasChoices("population", "people"), serialization_alias="people")


class Lossy(BaseModel):
    name: str

    @field_serializer("name")
    def _shout(self, name: str) -> str:
        return name.upper()


def test_a_kept_value_has_its_type(script: Script) -> None:
    agent = make_cached_agent(Script({"name": "Paris", "people": 3}, {"name": "Rome", "population": 4}), Cache())
    for _ in range(2):
        assert agent.json("hi", schema=City).output == City(name="Paris", population=3)
    for _ in range(2):
        assert agent.json("hi", schema=City.model_json_schema()).output == {"name": "Rome", "population": 4}


def test_a_value_that_would_come_back_as_another_is_not_kept() -> None:
    cache = Cache()
    agent = make_cached_agent(Script({"name": "Paris"}, {"name": "Paris"}), cache)
    for _ in range(2):
        assert agent.json("hi", schema=Lossy).output == Lossy(name="Paris")
    assert cache.stats.stored == 0


def test_a_text_that_json_cannot_hold_is_not_kept() -> None:
    cache = Cache()
    info = _call()
    _drain(cache.before(info.request, info))
    _drain(cache.after(AgentResponse(text="\ud800", stop_reason="stop"), info))
    assert cache.stats.stored == 0


# With others


def test_with_redaction_around_it_the_store_holds_nothing_private() -> None:
    store = MemoryResponseStore()
    script = Script("Dear [EMAIL_1]")
    agent = Agent("scripted:m", transport=ScriptedTransport(script), middleware=[Redaction(), Cache(store)])
    assert agent.complete("amy@example.com").text == "Dear amy@example.com"
    assert agent.complete("bob@example.org").text == "Dear bob@example.org"  # the same to the vendor
    assert "amy" not in json.dumps(list(store._entries.values()))


def test_a_router_keeps_answers_whoever_gave_them() -> None:
    cache = Cache()
    router = Router(
        [scripted_agent(errors.OverloadedError("busy"), model="a"), scripted_agent("ok", model="b")], middleware=[cache]
    )
    assert [router.complete("hi").text for _ in range(3)] == ["ok"] * 3
    assert cache.stats.hits == 2


def test_calls_at_the_same_time_are_both_asked_and_both_right() -> None:
    cache = Cache()
    agent = make_cached_agent(Script(*["hello"] * 8, delay=0.001), cache)

    async def main() -> list[AgentResponse]:
        return list(await asyncio.gather(*(agent.acomplete("hi") for _ in range(8))))

    assert [response.text for response in asyncio.run(main())] == ["hello"] * 8
    assert agent.complete("hi").text == "hello"


# Stores that fail, and stores of one's own


class Failing:
    blocking = False

    def get(self, key: str, now: float) -> str | None:
        raise OSError("disk on fire")

    def put(self, key: str, text: str, now: float, expires: float | None) -> None:
        raise OSError("disk on fire")


def test_a_store_that_fails_fails_no_call(script: Script, caplog: pytest.LogCaptureFixture) -> None:
    cache = Cache(Failing())
    agent = make_cached_agent(script, cache)
    assert agent.complete("hi").text == "You said: hi"
    assert (cache.stats.failures, cache.stats.stored) == (2, 0)
    assert "cache store failed: OSError" in caplog.text


@pytest.mark.parametrize(
    "junk", ["", "null", "[]", "{}", '{"response": 3, "output": null}', '{"response": {"content": 7}}']
)
def test_what_is_no_answer_in_the_store_is_asked_again(script: Script, junk: str) -> None:
    store = MemoryResponseStore()
    agent = make_cached_agent(script, Cache(store))
    agent.complete("hi")
    (key,) = store._entries
    store.put(key, junk, 0.0, None)
    assert agent.complete("hi").text == "You said: hi"
    assert len(script.requests) == 2


class AsyncStore:
    blocking = False

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}

    async def get(self, key: str, now: float) -> str | None:
        return self.texts.get(key)

    async def put(self, key: str, text: str, now: float, expires: float | None) -> None:
        self.texts[key] = text


def test_a_store_may_be_async(drive: Driver) -> None:
    store: ResponseStore = AsyncStore()
    agent = scripted_agent("once", middleware=[Cache(store)])
    for ask in (drive.complete, drive.stream):
        assert ask(Script("once"), make=lambda url: agent).ok.text == "once"


def test_a_file_serves_every_driver(drive: Driver, tmp_path: Any) -> None:
    store = SqliteResponseStore(tmp_path / "cache.db")
    agent = scripted_agent("once", middleware=[Cache(store)])
    for ask in (drive.complete, drive.stream):
        assert ask(Script("once"), make=lambda url: agent).ok.text == "once"
    store.close()


def test_settings_that_cannot_work_are_refused() -> None:
    with pytest.raises(errors.ConfigurationError, match="ttl is 0"):
        Cache(ttl=0)
    with pytest.raises(errors.ConfigurationError, match="max_entries is 0"):
        MemoryResponseStore(0)


def _call() -> Any:
    request = AgentRequest(messages=[Message("user", "hi")])
    return CallInfo(streaming=False, target="t", request=request, hash_request=lambda request: "f")


def _drain(flow: Any) -> Any:
    return Simulation(Script()).run(flow)
