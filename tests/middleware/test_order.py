"""Order of middleware methods, and propagation of errors, under every driver."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
from typing_extensions import override

from agent import Agent, AgentRequest, AgentResponse, Router, StreamEvent, errors
from agent.engine.flow import Flow, Sleep
from agent.engine.wire import Answer
from agent.middleware import CallInfo, Middleware
from agent.testing import Script, Simulation, Stopped, scripted_agent, simulate
from agent.types import fold
from tests.middleware.spies import EVERY_PLACE, KINDS, PLACES, Place, Spy, innermost, plain_agent, raise_error, spy_with
from tests.support.drivers import Driver

CUT_OFF = Answer([b'data: {"choices":[{"index":0,"delta":{"content":"Hel"}}]}\n\n'])


@pytest.fixture(params=PLACES.values(), ids=list(PLACES))
def place(request: pytest.FixtureRequest) -> Place:
    found: Place = request.param
    return found


@pytest.fixture(params=[False, True], ids=["complete", "stream"])
def streaming(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def ask(drive: Driver, streaming: bool, network: Any, make: Callable[[str], Any], request: Any = "hi") -> Any:
    return (drive.stream if streaming else drive.complete)(network, request, make=make)


def _place_agent(place: Place, spies: Sequence[Middleware], url: str) -> Agent | Router:
    return place(url, spies)


def without_events(log: list[str]) -> list[str]:
    return [entry for entry in log if ".on_event" not in entry]


@pytest.mark.parametrize("place", EVERY_PLACE.values(), ids=list(EVERY_PLACE))
def test_the_first_is_the_outermost(drive: Driver, place: Place, streaming: bool) -> None:
    log: list[str] = []
    spies = [Spy(name, log) for name in "ABC"]
    outcome = ask(drive, streaming, Script("ok"), lambda url: place(url, spies))
    assert outcome.ok.text == "ok"
    assert without_events(log) == ["A.before", "B.before", "C.before", "C.after", "B.after", "A.after"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_method_may_be_plain_or_async_or_a_flow(drive: Driver, streaming: bool, kind: str) -> None:
    log: list[str] = []
    spies = [Spy(name, log, kind) for name in "AB"]
    outcome = ask(drive, streaming, Script("ok"), lambda url: plain_agent(url, spies))
    assert outcome.ok.text == "ok"
    assert without_events(log) == ["A.before", "B.before", "B.after", "A.after"]
    shown = [entry.split(" ")[1] for entry in log if entry.startswith("A.on_event")]
    assert shown == [event.type for event in outcome.events]


def test_every_event_passes_through_from_the_inside_out(drive: Driver, place: Place) -> None:
    log: list[str] = []
    outcome = drive.stream(Script("good day"), make=lambda url: place(url, [Spy(name, log) for name in "AB"]))
    seen = [entry for entry in log if ".on_event" in entry]
    types = [event.type for event in outcome.events]
    by_chunk = {name: [entry.split(" ")[1] for entry in seen if entry.startswith(name)] for name in "AB"}
    assert by_chunk == {"A": types, "B": types}
    assert all(
        seen.index(f"B.on_event {kind}") < seen.index(f"A.on_event {kind}") for kind in ("message_start", "text_delta")
    )


def test_before_may_change_the_request(drive: Driver, place: Place, streaming: bool) -> None:
    def louder(request: AgentRequest, call: Any) -> AgentRequest:
        return request.model_copy(update={"input": f"{request.input}!"})

    spies = [Spy("A", [], before=louder), Spy("B", [], before=louder)]
    outcome = ask(drive, streaming, Script(), lambda url: place(url, spies))
    assert outcome.ok.text == "You said: hi!!"


def test_a_request_made_anew_means_the_same_model(drive: Driver, streaming: bool) -> None:
    spy = Spy("A", [], before=lambda request, call: AgentRequest(input="other"))
    outcome = ask(drive, streaming, Script(), lambda url: plain_agent(url, [spy]))
    assert (outcome.ok.text, outcome.ok.model) == ("You said: other", "test-model")


def test_after_may_change_the_response(drive: Driver, place: Place, streaming: bool) -> None:
    def louder(response: AgentResponse, call: Any) -> AgentResponse:
        return response.model_copy(update={"content": AgentResponse(text=f"{response.text}!").content})

    spies = [Spy("A", [], after=louder), Spy("B", [], after=louder)]
    assert ask(drive, streaming, Script("ok"), lambda url: place(url, spies)).ok.text == "ok!!"


def test_events_may_be_replaced_multiplied_and_dropped(drive: Driver, place: Place) -> None:
    def act(event: StreamEvent, call: Any) -> Any:
        if event.type != "text_delta":
            return None
        return {
            "one": StreamEvent.text_delta("1", index=event.index),
            " two": [StreamEvent.text_delta(" 2", index=event.index), StreamEvent.text_delta("!", index=event.index)],
            " three": (),
        }[event.text or ""]

    outcome = drive.stream(Script("one two three"), make=lambda url: place(url, [Spy("A", [], on_event=act)]))
    assert outcome.text == "1 2!"
    assert outcome.ok.text == "one two three"


def test_an_answer_from_before_is_the_answer_and_nobody_is_asked(drive: Driver, place: Place, streaming: bool) -> None:
    log: list[str] = []
    known = AgentResponse(text="known", stop_reason="stop", provider="p", model="m")
    spies = [Spy("A", log), Spy("B", log, before=lambda request, call: known), Spy("C", log)]
    outcome = ask(drive, streaming, Script("never"), lambda url: place(url, spies))
    assert outcome.ok.text == "known"
    assert outcome.requests == []
    assert without_events(log) == ["A.before", "B.before", "A.after"]
    if streaming:
        assert fold(outcome.events).content == known.content
        assert not [entry for entry in log if entry.startswith("B.on_event")]
        assert [entry.split(" ")[1] for entry in log if entry.startswith("A.on")] == [e.type for e in outcome.events]


def test_an_answer_from_before_is_on_record_as_such(drive: Driver, place: Place, streaming: bool) -> None:
    known = AgentResponse(text="known", cost_estimate=0.0)
    spy = Spy("A", [], before=lambda request, call: known)
    response = ask(drive, streaming, Script(), lambda url: place(url, [spy])).ok
    assert [(attempt.reason, attempt.error, attempt.cost) for attempt in response.route] == [
        ("answered by Spy", None, 0.0)
    ]


# Errors


def test_a_failure_reaches_all_from_the_inside_out(drive: Driver, place: Place, streaming: bool) -> None:
    log: list[str] = []
    spies = [Spy(name, log) for name in "AB"]
    outcome = ask(drive, streaming, Script(errors.BadRequestError("no")), lambda url: place(url, spies))
    assert isinstance(innermost(outcome.failed), errors.BadRequestError)
    kinds = [entry.split(" ")[1] for entry in log if ".on_error" in entry]
    assert [entry.split(" ")[0] for entry in without_events(log)] == [
        "A.before", "B.before", "B.on_error", "A.on_error",
    ]  # fmt: skip
    assert len(set(kinds)) == 1


def test_what_before_raises_reaches_those_outside_and_nothing_is_sent(
    drive: Driver, place: Place, streaming: bool
) -> None:
    log: list[str] = []
    spies = [Spy("A", log), Spy("B", log, before=raise_error(errors.ConfigurationError("no"))), Spy("C", log)]
    outcome = ask(drive, streaming, Script("never"), lambda url: place(url, spies))
    assert isinstance(innermost(outcome.failed), errors.ConfigurationError)
    assert outcome.requests == []
    assert without_events(log) == ["A.before", "B.before", "A.on_error ConfigurationError"]


def test_what_after_raises_reaches_those_outside(drive: Driver, place: Place, streaming: bool) -> None:
    log: list[str] = []
    spies = [Spy("A", log), Spy("B", log, after=raise_error(errors.ContentFilterError("no"))), Spy("C", log)]
    outcome = ask(drive, streaming, Script("rude"), lambda url: place(url, spies))
    assert isinstance(innermost(outcome.failed), errors.ContentFilterError)
    assert without_events(log) == [
        "A.before", "B.before", "C.before", "C.after", "B.after", "A.on_error ContentFilterError",
    ]  # fmt: skip
    assert outcome.failed.committed is streaming


def test_what_on_event_raises_reaches_those_outside_and_ends_the_stream(drive: Driver, place: Place) -> None:
    log: list[str] = []

    def stop(event: StreamEvent, call: Any) -> None:
        if event.text == " two":
            raise errors.ContentFilterError("enough")

    spies = [Spy("A", log), Spy("B", log, on_event=stop), Spy("C", log)]
    outcome = drive.stream(Script("one two three"), make=lambda url: place(url, spies))
    assert isinstance(outcome.failed, errors.ContentFilterError)
    assert outcome.failed.committed
    assert outcome.text == "one"
    assert without_events(log) == ["A.before", "B.before", "C.before", "A.on_error ContentFilterError"]


def test_no_router_goes_on_elsewhere_because_its_middleware_has_had_enough(drive: Driver) -> None:
    spy = Spy("A", [], on_event=raise_error(errors.ContentFilterError("enough")))

    def make(url: str) -> Router:
        return Router([plain_agent(url), plain_agent(url)], on_partial="restart", middleware=[spy])

    outcome = drive.stream(Script("one", "two"), make=make)
    assert isinstance(outcome.failed, errors.ContentFilterError)
    assert len(outcome.requests) == 1


def test_another_exception_stays_what_it_is_and_is_seen_by_those_outside(
    drive: Driver, place: Place, streaming: bool
) -> None:
    log: list[str] = []
    for method in ("before", "after"):
        log.clear()
        spies = [Spy("A", log), spy_with("B", log, method, raise_error(KeyError("mine"))), Spy("C", log)]
        with pytest.raises(KeyError, match="mine"):
            ask(drive, streaming, Script("ok"), partial(_place_agent, place, spies))
        assert without_events(log)[-1] == "A.on_error KeyError"
        assert not [entry for entry in log if entry.startswith(("B.on_error", "C.on_error"))]


def test_a_failure_can_be_recovered_from(drive: Driver, place: Place, streaming: bool) -> None:
    log: list[str] = []
    sorry = AgentResponse(text="Sorry.", stop_reason="stop")
    spies = [Spy("A", log), Spy("B", log, on_error=lambda error, call: sorry), Spy("C", log)]
    outcome = ask(drive, streaming, Script(errors.BadRequestError("no")), lambda url: place(url, spies))
    assert outcome.ok.text == "Sorry."
    assert [attempt.error for attempt in outcome.ok.route] == ["BadRequestError", None]
    assert without_events(log)[-2:] == ["B.on_error BadRequestError", "A.after"]
    if streaming:
        assert outcome.text == "Sorry."


def test_an_error_can_be_replaced(drive: Driver, place: Place, streaming: bool) -> None:
    log: list[str] = []
    other = errors.QuotaExceededError("really")
    spies = [Spy("A", log), Spy("B", log, on_error=lambda error, call: other)]
    outcome = ask(drive, streaming, Script(errors.BadRequestError("no")), lambda url: place(url, spies))
    assert innermost(outcome.failed) is other
    assert isinstance(innermost(other.__cause__), errors.BadRequestError)  # type: ignore[arg-type]
    assert log[-1] == "A.on_error QuotaExceededError"


def test_after_the_first_event_nothing_is_recovered(drive: Driver, place: Place) -> None:
    sorry = AgentResponse(text="Sorry.")
    spies = [Spy("A", [], on_error=lambda error, call: sorry)]
    outcome = drive.stream(Script(CUT_OFF), make=lambda url: place(url, spies))
    assert isinstance(outcome.failed, errors.StreamInterrupted)
    assert outcome.text == "Hel"


def test_what_was_dropped_on_its_way_out_counts_as_handed_out(drive: Driver) -> None:
    """The inner middleware cannot know that the caller has not received it."""
    dropping = Spy("A", [], on_event=lambda event, call: ())
    for instead in (AgentResponse(text="Sorry."), errors.OverloadedError("later")):
        spies = [dropping, Spy("B", [], on_error=lambda error, call, instead=instead: instead)]
        outcome = drive.stream(Script(CUT_OFF), make=partial(_place_agent, plain_agent, spies))
        assert type(outcome.failed) is (
            errors.StreamInterrupted if instead.__class__ is AgentResponse else type(instead)
        )
        assert outcome.failed.committed
        assert [event.type for event in outcome.events] == ["error"]


def test_nothing_is_recovered_from_what_after_raises_at_the_end_of_a_stream(drive: Driver, place: Place) -> None:
    sorry = AgentResponse(text="Sorry.")
    spies = [Spy("A", [], on_error=lambda error, call: sorry), Spy("B", [], after=raise_error(ValueError("no")))]
    with pytest.raises(ValueError, match="no"):
        drive.stream(Script("ok"), make=lambda url: place(url, spies))
    assert drive.complete(Script("ok"), make=lambda url: place(url, spies)).ok.text == "Sorry."


def test_an_error_is_committed_if_it_takes_the_place_of_one_that_was(drive: Driver) -> None:
    spies = [Spy("A", [], on_error=lambda error, call: errors.OverloadedError("later"))]
    outcome = drive.stream(Script(CUT_OFF), make=lambda url: plain_agent(url, spies))
    assert isinstance(outcome.failed, errors.OverloadedError)
    assert outcome.failed.committed


def test_what_on_error_raises_reaches_those_outside(drive: Driver, streaming: bool) -> None:
    log: list[str] = []
    spies = [Spy("A", log), Spy("B", log, on_error=raise_error(KeyError("worse")))]
    with pytest.raises(KeyError, match="worse"):
        ask(drive, streaming, Script(errors.BadRequestError("no")), lambda url: plain_agent(url, spies))
    assert log[-1] == "A.on_error KeyError"


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit, asyncio.CancelledError])
@pytest.mark.parametrize("method", ["before", "after", "on_event"])
def test_interrupts_reach_no_middleware(method: str, interrupt: type[BaseException]) -> None:
    log: list[str] = []

    def raise_interrupt(*args: Any) -> None:
        raise interrupt

    spies = [Spy("A", log), spy_with("B", log, method, raise_interrupt)]
    agent = scripted_agent("ok", middleware=spies)
    with pytest.raises(interrupt):
        agent.stream("hi").collect()
    assert not [entry for entry in log if "on_error" in entry]


def test_a_cancelled_call_reaches_no_middleware() -> None:
    log: list[str] = []
    agent = scripted_agent(Answer(after=60.0), middleware=[Spy("A", log)])

    async def main() -> None:
        task = asyncio.create_task(agent.acomplete("hi"))
        while not log:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert log == ["A.before"]


def test_a_stream_that_is_left_reaches_no_middleware() -> None:
    log: list[str] = []
    agent = scripted_agent("one two three", middleware=[Spy("A", log)])
    for event in agent.stream("hi"):
        if event.type == "text_delta":
            break
    assert without_events(log) == ["A.before"]


# A flow of one's own


def test_a_flow_can_wait_and_the_deadline_holds_there_too() -> None:
    class Patient(Middleware):
        @override
        def before(self, request: AgentRequest, call: CallInfo) -> Flow[None]:
            yield from Sleep(30.0)

    agent = scripted_agent("ok", middleware=[Patient()], max_retries=0)
    simulation = Simulation(Script("ok"))
    assert simulate(simulation, agent, "hi").text == "ok"
    assert simulation.now == 30.0
    with pytest.raises(errors.TimeoutError) as caught:
        simulate(Simulation(Script("ok")), agent, "hi", deadline=10.0)
    assert caught.value.deadline


def test_a_flow_is_closed_when_the_call_is() -> None:
    closed: list[str] = []

    class Waiting(Middleware):
        @override
        def before(self, request: AgentRequest, call: CallInfo) -> Flow[None]:
            try:
                yield from Sleep(30.0)
            finally:
                closed.append("closed")

    simulation = Simulation(Script("ok"), stop_at=4)
    with pytest.raises(Stopped):
        simulate(simulation, scripted_agent("ok", middleware=[Waiting()]), "hi")
    assert closed == ["closed"]


# Nothing is kept


def fails(*args: Any) -> None:
    raise errors.ContentFilterError("enough")


FAILING: dict[str, tuple[Any, str, Callable[..., Any]]] = {
    "the call fails": (errors.BadRequestError("no"), "before", lambda request, call: None),
    "before raises": ("ok", "before", fails),
    "after raises": ("ok", "after", fails),
    "on_event raises": ("ok", "on_event", fails),
    "on_error raises": (errors.BadRequestError("no"), "on_error", fails),
    "another error": (errors.BadRequestError("no"), "on_error", lambda error, call: errors.OverloadedError("x")),
    "the stream breaks": (CUT_OFF, "on_error", lambda error, call: AgentResponse(text="Sorry.")),
}


@pytest.mark.parametrize("case", FAILING)
def test_an_error_that_nobody_holds_is_gone(case: str) -> None:
    """A reference cycle would keep its frames, and the connections in them, until garbage collection."""
    line, method, act = FAILING[case]
    spies = [Spy("A", []), spy_with("B", [], method, act), Spy("C", [])]
    agent = scripted_agent(line, line, middleware=spies, max_retries=0)
    with pytest.raises(errors.AgentError):
        agent.stream("hi").collect()  # types that are built at their first use keep the frames they are built in
    gc.collect()
    gc.disable()
    try:
        held: list[weakref.ref[BaseException]] = []
        try:
            agent.stream("hi").collect()
        except errors.AgentError as error:
            held.append(weakref.ref(error))
        assert [one() for one in held] == [None]
    finally:
        gc.enable()
