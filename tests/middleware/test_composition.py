"""Composition of middleware with agents and routers: call info, fingerprints and routes."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from time import monotonic
from typing import Any

import pytest
from pydantic import BaseModel, TypeAdapter
from typing_extensions import override

from agent import Agent, AgentRequest, AgentResponse, Message, RetryConfig, Router, StreamEvent, Target, Usage, errors
from agent.engine.context import Context, TurnRef
from agent.engine.flow import Emit, Flow, Now, Sleep
from agent.engine.wire import Answer, WireRequest
from agent.middleware import (
    Cache,
    CallInfo,
    CostTracker,
    Logging,
    Metrics,
    Middleware,
    Redaction,
    Throttle,
    observe_events,
)
from agent.middleware.base import fingerprint_wire
from agent.models import ModelFacts, Prices, register_model
from agent.testing import Script, ScriptedTransport, Simulation, VendorScript, scripted_agent, simulate
from agent.types import ToolSpec
from tests.middleware.spies import Spy, in_a_router, plain_agent, raise_error, router


class Noting(Middleware):
    """Records its arguments."""

    def __init__(self) -> None:
        self.calls: list[CallInfo] = []
        self.requests: list[AgentRequest] = []

    @override
    def before(self, request: AgentRequest, call: CallInfo) -> None:
        call.state["mine"] = len(self.calls)
        self.calls.append(call)
        self.requests.append(request)

    @override
    def after(self, response: AgentResponse, call: CallInfo) -> None:
        assert call.state == {"mine": self.calls.index(call)}


# CallInfo


def test_a_middleware_knows_the_call_it_stands_around() -> None:
    outer, inner = Noting(), Noting()
    louder = Spy("A", [], before=lambda request, call: request.model_copy(update={"input": "HI"}))
    agent = scripted_agent(middleware=[outer, louder, inner])
    simulation = Simulation(Script(), now=5.0)
    simulate(simulation, agent, "hi", streaming=True, deadline=10.0)
    call = inner.calls[0]
    assert (call.streaming, call.counting, call.target) == (True, False, "scripted:script")
    assert (call.request.input, inner.requests[0].input) == ("hi", "HI")
    assert (call.started, call.deadline) == (5.0, 15.0)
    assert call.run is None
    assert call.state is not outer.calls[0].state
    assert repr(call) == "CallInfo('scripted:script', streaming=True)"


def test_what_a_call_is_part_of_comes_from_its_context() -> None:
    place = TurnRef("r1", 2)
    noting = Noting()
    agent = scripted_agent("ok", middleware=[noting])
    Simulation(Script("ok")).run(agent.call_flow("hi", streaming=False, context=Context(run=place)))
    assert noting.calls[0].run is place


def test_routers_and_agents_inside_are_known_by_their_names() -> None:
    mine, theirs = Noting(), Noting()
    inner = scripted_agent("ok", middleware=[theirs])
    Router([Target(inner, name="small")], middleware=[mine], name="chat").complete("hi")
    assert (mine.calls[0].target, theirs.calls[0].target) == ("chat", "small")


def test_attempts_are_those_of_this_call() -> None:
    seen: dict[str, list[str | None]] = {}

    def record(name: str) -> Callable[..., None]:
        def note(outcome: Any, call: CallInfo) -> None:
            seen[name] = [attempt.error for attempt in call.attempts]

        return note

    first = scripted_agent(
        errors.OverloadedError("busy"), model="a", middleware=[Spy("A", [], on_error=record("first"))]
    )
    second = scripted_agent("ok", model="b", middleware=[Spy("B", [], after=record("second"))])
    Router([first, second], middleware=[Spy("R", [], after=record("router"))]).complete("hi")
    assert seen == {"first": ["OverloadedError"], "second": [None], "router": ["OverloadedError", None]}


def test_attempts_that_are_made_side_by_side_are_told_apart() -> None:
    seen: list[list[str]] = []

    def network(request: Any) -> Answer:
        failing = b'"model":"a"' in request.body
        answer = Script(errors.OverloadedError("busy") if failing else "ok")(request)
        return replace(answer, after=1.0 if failing else 2.0)

    note = Spy("B", [], after=lambda response, call: seen.append([attempt.target for attempt in call.attempts]))
    agents = [scripted_agent(model="a"), scripted_agent(model="b", middleware=[note])]
    response = simulate(Simulation(network), Router(agents, race=True), "hi")
    assert (response.text, len(response.route)) == ("ok", 2)
    assert seen == [["scripted:b"]]


# Fingerprints


def fingerprint(agent: Agent | Router, request: Any = "hi", *, streaming: bool = False, **overrides: Any) -> str:
    noting = Noting()
    watched = agent.with_config(middleware=[noting])
    if streaming:
        watched.stream(request, **overrides).collect()
    else:
        watched.complete(request, **overrides)
    return noting.calls[0].fingerprint()


class City(BaseModel):
    name: str


class Town(BaseModel):
    name: str


def make_echo_agent(**options: Any) -> Agent:
    options = {"api_key": "sk-test-0123456789", "base_url": "http://127.0.0.1:9", **options}
    return Agent("openai-chat:m", transport=ScriptedTransport(Script()), **options)


def test_a_fingerprint_is_of_what_is_sent_and_of_nothing_else() -> None:
    mark = fingerprint(make_echo_agent())
    assert len(mark) == 64
    assert int(mark, 16) >= 0
    assert mark == mark.lower()
    assert mark == fingerprint(make_echo_agent(), streaming=True)
    assert mark == fingerprint(make_echo_agent(api_key="sk-another-987654"), deadline=5.0)
    assert mark == fingerprint(make_echo_agent(headers={"x-trace": "1"}, timeout=3.0))
    assert mark == fingerprint(make_echo_agent(), [Message("user", "hi", id="1", timestamp=datetime.now(UTC))])


def test_whatever_changes_the_answer_changes_the_fingerprint() -> None:
    marks = [
        fingerprint(make_echo_agent()),
        fingerprint(make_echo_agent(), "ho"),
        fingerprint(make_echo_agent(), temperature=0.5),
        fingerprint(make_echo_agent(), system="Be brief."),
        fingerprint(make_echo_agent(default_system="Be long.")),
        fingerprint(make_echo_agent(base_url="http://127.0.0.1:10")),
        fingerprint(make_echo_agent(), model="other"),
        fingerprint(make_echo_agent(), tools=[ToolSpec(name="f")]),
        fingerprint(make_echo_agent(), schema=City),
        fingerprint(make_echo_agent(), schema=City.model_json_schema()),
        fingerprint(make_echo_agent(), schema=Town),
        fingerprint(make_echo_agent(), schema=TypeAdapter(list[int])),
    ]
    assert len(set(marks)) == len(marks)


def test_parts_that_are_cut_elsewhere_are_other_parts() -> None:
    marks = [fingerprint_wire("p", WireRequest(url, (), body), schema) for url, body, schema in (
        ("u", b"ab", ""), ("ua", b"b", ""), ("u", b"a", "b"), ("u", b"", "ab"),
    )]  # fmt: skip
    assert len(set(marks)) == 4


def test_a_routers_fingerprint_covers_who_could_be_asked() -> None:
    same = [fingerprint(Router([make_echo_agent()])), fingerprint(Router([make_echo_agent()]), deadline=3.0)]
    same.append(fingerprint(Router([make_echo_agent(api_key="sk-another-987654")]), streaming=True))
    same.append(fingerprint(Router([make_echo_agent()]), "hi", metadata={}))
    assert len(set(same)) == 1
    others = [
        fingerprint(Router([make_echo_agent()]), "ho"),
        fingerprint(Router([make_echo_agent(), make_echo_agent()])),
        fingerprint(Router([make_echo_agent(default_system="Be long.")])),
        fingerprint(Router([make_echo_agent(temperature=1.0)])),
        fingerprint(Router([Target(make_echo_agent(), name="x")])),
        fingerprint(Router([Router([make_echo_agent()])])),
        fingerprint(Router([Router([make_echo_agent(temperature=1.0)])])),
        fingerprint(Router([make_echo_agent()]), schema=City),
        fingerprint(Router([make_echo_agent()]), schema=Town),
    ]
    assert len({same[0], *others}) == len(others) + 1


def test_a_message_is_the_same_whenever_it_was_written() -> None:
    asked = [
        [Message("user", "hi", id=number, timestamp=datetime(2026, 1, int(number), tzinfo=UTC)), Message("user", "ho")]
        for number in ("1", "2")
    ]
    agent = Router([make_echo_agent()])
    assert fingerprint(agent, asked[0]) == fingerprint(agent, asked[1])


def test_a_fingerprint_is_of_the_request_as_it_has_come_to_the_middleware() -> None:
    """Or a cache would give one user the answer to what another middleware added for someone else."""
    users = iter(["alice", "bob"])
    adding = Spy("A", [], before=lambda request, call: request.model_copy(update={"system": f"For {next(users)}."}))
    noting = Noting()
    agent = scripted_agent(middleware=[adding, noting])
    agent.complete("hi")
    agent.complete("hi")
    marks = [call.fingerprint() for call in noting.calls]
    assert marks[0] != marks[1]
    assert noting.calls[0].fingerprint(noting.calls[0].request) == noting.calls[1].fingerprint(noting.calls[1].request)


# No middleware, and variants


def test_without_middleware_nothing_of_it_is_loaded() -> None:
    code = (
        "import sys; from agent import Agent, Router\n"
        "Router([Agent('scripted:a')]).complete('x'); Agent('scripted:a').stream('x').collect()\n"
        "found = [name for name in sys.modules if name.startswith('agent.middleware')]\n"
        "assert not found, found"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


def test_middleware_itself_loads_no_event_loop_and_no_http_client() -> None:
    code = (
        "import sys, agent.middleware\n"
        "agent.middleware.Cache()\n"
        "assert not {'asyncio', 'httpx2', 'jsonschema'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


READY: list[Callable[[], Middleware]] = [
    lambda: Logging("x", prompts=True),
    Metrics,
    lambda: Redaction("email", patterns={"ORDER": r"O-\d+"}, restore=False),
    lambda: Cache(ttl=5.0),
    lambda: Throttle(rpm=3, tpm=100, max_wait=1.0),
    lambda: CostTracker(budget=1.0, per="user"),
]


@pytest.mark.parametrize("make", READY)
def test_the_ready_ones_travel_to_other_processes_with_their_settings(make: Callable[[], Middleware]) -> None:
    one = make()
    agent = Agent("scripted:m", middleware=[one])
    there: Agent = pickle.loads(pickle.dumps(agent))
    assert type(there.middleware[0]) is type(one)
    assert there.complete("hi").text == "You said: hi"
    plain = {name: value for name, value in vars(one).items() if isinstance(value, int | float | str | bool)}
    assert plain == {name: vars(there.middleware[0])[name] for name in plain}
    routed: Router = pickle.loads(pickle.dumps(Router([agent], middleware=[one])))
    assert [type(found) for found in routed.middleware] == [type(one)]
    assert routed.complete("hi").text == "You said: hi"


def test_a_variant_keeps_the_middleware() -> None:
    log: list[str] = []
    spy = Spy("A", log)
    agent = scripted_agent("1", "2", "3", middleware=[spy])
    agent.with_config(temperature=0.5).complete("hi")
    Router([agent]).with_config(temperature=0.5).complete("hi")
    Router([scripted_agent("1")], middleware=[spy]).with_config(max_wait=3.0).complete("hi")
    agent.with_config(middleware=[]).complete("hi")
    assert log == ["A.before", "A.after"] * 3


def test_one_request_of_a_router_may_have_middleware_of_its_own() -> None:
    log: list[str] = []
    Router([scripted_agent("1")]).complete("hi", route={"middleware": [Spy("A", log)]})
    assert log == ["A.before", "A.after"]


# Invalid middleware


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        (Cache(), r"middleware is a Cache, not a list\. Pass a list"),
        ([Cache], r"contains the class Cache, not an instance\. Pass Cache\(\)"),
        ([object()], r"object is not middleware"),
        (["x"], r"str is not middleware"),
        (7, r"middleware is a int"),
    ],
)
def test_what_is_no_middleware_is_refused(given: Any, complaint: str) -> None:
    for make in (
        lambda: Agent("scripted:m", middleware=given),
        lambda: Router([Agent("scripted:m")], middleware=given),
        lambda: Agent("scripted:m").with_config(middleware=given),
    ):
        with pytest.raises(errors.ConfigurationError, match=complaint):
            make()


def test_an_async_generator_is_refused_when_the_agent_is_made() -> None:
    class Wrong(Middleware):
        async def on_event(self, event: Any, call: CallInfo) -> Any:  # type: ignore[explicit-override]
            yield event

    with pytest.raises(errors.ConfigurationError, match=r"Wrong\.on_event is an async generator"):
        Agent("scripted:m", middleware=[Wrong()])


def test_an_object_with_the_methods_needs_no_base_class() -> None:
    class Duck:
        def after(self, response: AgentResponse, call: CallInfo) -> AgentResponse:
            return response.model_copy(update={"warnings": ("quack",)})

    agent = scripted_agent("ok", middleware=[Duck()])  # type: ignore[list-item]
    assert agent.complete("hi").warnings == ("quack",)


@pytest.mark.parametrize(
    ("method", "wanted"),
    [("before", "AgentRequest or an AgentResponse"), ("after", "AgentResponse"), ("on_error", "or an exception")],
)
def test_a_wrong_return_value_names_the_method(method: str, wanted: str) -> None:
    spy = Spy("A", [], "plain", **{method: lambda *args: 7})
    agent = scripted_agent(errors.BadRequestError("no") if method == "on_error" else "ok", middleware=[spy])
    with pytest.raises(errors.ConfigurationError, match=rf"Spy\.{method} returned a int.*{wanted}"):
        agent.complete("hi")


def test_events_that_are_yielded_instead_of_returned_are_named() -> None:
    class Wrong(Middleware):
        @override
        def on_event(self, event: StreamEvent, call: CallInfo) -> Any:
            yield event

    with pytest.raises(errors.ConfigurationError, match=r"Wrong\.on_event yielded a MessageStart.*as a list"):
        scripted_agent("ok", middleware=[Wrong()]).stream("hi").collect()


# Counting tokens


def test_what_is_hidden_from_the_model_is_hidden_from_the_counter() -> None:
    log: list[str] = []
    hiding = Spy("A", log, before=lambda request, call: request.model_copy(update={"input": "***"}))
    known = Spy("B", log, before=lambda request, call: AgentResponse(text="known"))
    script = VendorScript()
    options: dict[str, Any] = {"transport": ScriptedTransport(script), "api_key": "sk-ant-test"}
    agent = Agent("anthropic:claude-sonnet-5", middleware=[hiding, known, Cache()], **options)
    agent.count_tokens("secret", exact=True)
    outer = Router([Agent("anthropic:claude-sonnet-5", **options)], middleware=[hiding])
    outer.count_tokens("secret", exact=True)
    Router([Router([outer])]).count_tokens("secret", exact=True)
    bodies = [json.dumps(body) for body in script.requests]
    assert len(bodies) == 3
    assert not any("secret" in body for body in bodies)
    assert log == ["A.before", "B.before", "A.before", "A.before"]


def test_counting_is_no_call() -> None:
    metrics, tracker, cache = Metrics(), CostTracker(budget=1.0), Cache()
    throttle = Throttle(rpm=1)
    agent = Agent(
        "anthropic:claude-sonnet-5",
        middleware=[metrics, tracker, cache, throttle],
        transport=ScriptedTransport(VendorScript()),
        api_key="sk-ant-test",
    )
    for _ in range(3):
        agent.count_tokens("hi", exact=True)
    assert metrics.snapshot() == {}
    assert cache.stats.misses == 0
    assert tracker.total.calls == 0
    assert agent.complete("hi", deadline=1.0).text  # the throttle's one request is still there


# The record


PRICED = ModelFacts(provider="scripted", model="dear", prices=Prices(input=1_000_000.0, output=1_000_000.0))


@pytest.fixture
def _priced(monkeypatch: pytest.MonkeyPatch) -> None:
    from agent import models

    monkeypatch.setattr(models, "_registered", {}, raising=False)
    register_model(PRICED)


def answer(text: str, tokens: int) -> AgentResponse:
    return AgentResponse(text=text, usage=Usage(prompt_tokens=tokens, completion_tokens=0))


@pytest.mark.usefixtures("_priced")
def test_what_was_paid_for_stays_on_the_bill_when_an_answer_takes_its_place() -> None:
    sorry = AgentResponse(text="Sorry.")
    spies = [Spy("A", [], on_error=lambda error, call: sorry), Spy("B", [], after=raise_error(ValueError("rude")))]
    response = scripted_agent(answer("rude", 7), model="dear", middleware=spies).complete("hi")
    assert (response.text, response.cost_estimate) == ("Sorry.", 7.0)
    assert response.usage is not None
    assert response.usage.prompt_tokens == 7
    own = sorry.model_copy(update={"usage": Usage(prompt_tokens=1), "cost_estimate": 2.0})
    spies[0] = Spy("A", [], on_error=lambda error, call: own)
    response = scripted_agent(answer("rude", 7), model="dear", middleware=spies).complete("hi")
    assert (response.usage or Usage()).prompt_tokens == 8
    assert response.cost_estimate == 9.0


@pytest.mark.usefixtures("_priced")
def test_a_kept_answer_after_an_attempt_that_cost_something_does_not_hide_that_cost() -> None:
    usage = b'{"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":1,"total_tokens":6}}'
    text = b'{"choices":[{"index":0,"delta":{"content":"Hel"}}]}'
    broken = Answer([b"data: " + text + b"\n\ndata: " + usage + b"\n\n"])
    cache = Cache()
    second = scripted_agent(answer("Hello", 3), model="dear", middleware=[cache])
    assert second.complete("hi").cost_estimate == 3.0
    router = Router([scripted_agent(broken, model="dear"), Target(second, name="b")], on_partial="restart")
    response = router.stream("hi").collect()
    assert (response.text, cache.stats.hits) == ("Hello", 1)
    assert response.cost_estimate == 6.0
    assert [attempt.reason for attempt in response.route][1] == "answered by Cache"


def test_an_answer_that_a_middleware_refused_is_asked_of_another() -> None:
    refused = AgentResponse(text="", stop_reason="content_filter")
    guarded = scripted_agent("never", model="a", middleware=[Spy("A", [], before=lambda request, call: refused)])
    router = Router([guarded, scripted_agent("fine", model="b")], on_content_filter="fallback")
    response = router.complete("hi")
    assert response.text == "fine"
    assert [attempt.target for attempt in response.route] == ["scripted:a", "scripted:b"]


@pytest.mark.parametrize("streaming", [False, True])
def test_what_a_router_learns_of_a_target_whose_middleware_answers_is_true(streaming: bool) -> None:
    def waits(request: AgentRequest, call: CallInfo) -> Any:
        yield from Sleep(3.0)
        return AgentResponse(text="known", stop_reason="stop")

    first = scripted_agent(model="a")
    second = scripted_agent(model="b", middleware=[Spy("B", [], before=waits)])
    router = Router([first, second], retry=RetryConfig(max_retries=1), on_partial="restart")
    cut_off = Answer([b'data: {"choices":[{"index":0,"delta":{"content":"Hel"}}]}\n\n'], after=100.0)
    simulation = Simulation(lambda request: cut_off, now=50.0)
    response = simulate(simulation, router, "hi", streaming=streaming)
    assert response.text == "known"
    (learnt,) = router.targets[1].timings._observations
    assert (learnt.at, learnt.total, learnt.first) == (153.0, 3.0, 3.0 if streaming else None)


def test_the_headers_of_another_targets_reply_are_not_learnt_from() -> None:
    limited = Answer([b'{"error":{"message":"busy"}}'], status=503, headers={"x-ratelimit-remaining-requests": "0"})
    refusing = Spy("A", [], before=raise_error(errors.OverloadedError("not now")))
    second = scripted_agent("ok", model="b", middleware=[refusing])
    router = Router([scripted_agent(limited, model="a"), second], retry=RetryConfig(max_retries=1))
    with pytest.raises(errors.RoutingError):
        router.complete("hi")
    assert router.targets[1].limiter.wait_seconds(0, monotonic()) == 0.0


@pytest.mark.parametrize("streaming", [False, True])
def test_races_have_middleware_too(streaming: bool) -> None:
    log: list[str] = []
    slow = scripted_agent(Answer(after=30.0), model="a", middleware=[Spy("A", log)])
    known = AgentResponse(text="known", stop_reason="stop")
    quick = scripted_agent("never", model="b", middleware=[Spy("B", log, before=lambda request, call: known)])
    router = Router([slow, quick], race=True)
    response = router.stream("hi").collect() if streaming else router.complete("hi")
    assert response.text == "known"
    assert sorted(log) == ["A.before", "B.before"]


def test_shadow_traffic_goes_through_the_middleware_of_its_agent() -> None:
    hiding = Spy("A", [], before=lambda request, call: request.model_copy(update={"input": "***"}))
    script = Script()
    shadow = Agent("scripted:s", transport=ScriptedTransport(script), middleware=[hiding])
    simulation = Simulation(script)
    simulate(simulation, Router([scripted_agent("ok")], shadow=[(shadow, 1.0)]), "secret")
    simulation.finish()
    asked = [json.dumps(body["messages"]) for body in script.requests]
    assert sorted("***" in one for one in asked) == [False, True]


# Listening to a flow


class Turn:
    """An event of no class that middleware knows."""

    def __init__(self, number: int) -> None:
        self.number = number


def test_a_loops_events_are_shown_to_middleware_whatever_they_are() -> None:
    def loop() -> Flow[str]:
        yield Emit([Turn(1), Turn(2)])
        yield from Sleep(1.0)
        yield Emit([Turn(3)])
        return "done"

    def act(event: Any, call: CallInfo) -> Any:
        call.state["seen"] = call.state.get("seen", 0) + 1
        if isinstance(event, Turn) and event.number == 2:
            return [Turn(20), Turn(21)]
        return () if event.number == 20 else None

    log: list[str] = []
    spies = [Spy("A", log, on_event=act), Spy("B", log, on_event=act), Spy("C", log)]
    everyone: list[Middleware] = [*spies, Redaction(), Metrics(), Logging(), Cache(), Throttle(rpm=1), CostTracker()]
    info = CallInfo(streaming=True, target="loop", request=AgentRequest(input="hi"), run=1)
    simulation = Simulation(Script())
    assert simulation.run(observe_events(loop(), everyone, info)) == "done"
    assert [event.number for event in simulation.events] == [1, 21, 3]
    assert [entry[0] for entry in log] == ["C", "C", "B", "B", "A", "A", "A", "C", "B", "A"]
    assert info.state == {}


def test_a_flow_to_which_nobody_listens_is_left_alone() -> None:
    def loop() -> Flow[int]:
        return (yield from Now())  # type: ignore[return-value]

    flow = loop()
    info = CallInfo(streaming=True, target="loop", request=AgentRequest(input="hi"))
    assert observe_events(flow, [Cache(), CostTracker()], info) is flow


def test_an_error_of_a_listener_ends_the_flow_it_listens_to() -> None:
    closed: list[bool] = []

    def loop() -> Flow[None]:
        try:
            yield Emit([Turn(1)])
        except Exception:
            closed.append(False)  # it must not look like a failure of what the flow does
        finally:
            closed.append(True)

    info = CallInfo(streaming=True, target="loop", request=AgentRequest(input="hi"))
    with pytest.raises(KeyError):
        Simulation(Script()).run(observe_events(loop(), [Spy("A", [], on_event=raise_error(KeyError("no")))], info))
    assert closed == [True]


def test_a_call_without_a_fingerprint_says_so() -> None:
    info = CallInfo(streaming=False, target="loop", request=AgentRequest(input="hi"))
    with pytest.raises(errors.ConfigurationError, match="has no fingerprint"):
        info.fingerprint()


def test_the_places_of_the_tests_differ() -> None:
    assert [type(make("http://127.0.0.1", [])).__name__ for make in (plain_agent, router, in_a_router)] == [
        "Agent", "Router", "Router",
    ]  # fmt: skip
