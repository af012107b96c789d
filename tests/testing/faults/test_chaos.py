"""Fault injection is reproducible: by seed, and by the record of a run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from agent import Agent, errors
from agent.engine.wire import WireRequest
from agent.testing import (
    FAULTS,
    Answer,
    Chaos,
    Fault,
    FaultContext,
    FaultyTransport,
    LoopbackServer,
    ScriptedTransport,
    Simulation,
    VendorScript,
    simulate,
)
from agent.testing.faults import is_common, select_faults
from agent.types import RetryConfig
from tests.support.drivers import Driver
from tests.testing.faults.fault_server import CODECS, MODELS, WORDS, good

pytestmark = pytest.mark.malformed

ASKED = WireRequest("/v1/chat/completions", (), b'{"model": "m", "messages": [{"role": "user", "content": "Hi"}]}')
STREAM = WireRequest("/v1/chat/completions", (), ASKED.body[:-1] + b', "stream": true}')
QUICK = RetryConfig(max_retries=2, initial_delay=0.001, throttle_delay=0.001, jitter=False)


def fates(chaos: Chaos, count: int = 300, request: WireRequest = ASKED) -> list[str]:
    for _ in range(count):
        chaos(request)
    found = dict.fromkeys(range(count), "")
    found.update(chaos.plan)
    return list(found.values())


def test_the_same_seed_breaks_the_same_requests() -> None:
    first, again = (fates(Chaos(good, share=0.3, seed=7)) for _ in range(2))
    assert first == again
    assert first != fates(Chaos(good, share=0.3, seed=8))
    assert len(set(first)) > 30


@pytest.mark.parametrize("share", [0.0, 0.05, 0.5, 1.0])
def test_about_as_many_are_broken_as_was_asked(share: float) -> None:
    broken = sum(map(bool, fates(Chaos(good, share=share, seed=1), 2000)))
    assert abs(broken / 2000 - share) < 0.03


def test_what_happened_can_be_played_again() -> None:
    chaos = Chaos(good, share=0.2, seed=3)
    before = fates(chaos)
    replayed = Chaos(good, plan=chaos.plan)
    assert fates(replayed) == before
    assert replayed.injected == chaos.injected
    assert all(injected.url == ASKED.url for injected in chaos.injected)


def test_a_request_gets_only_faults_that_can_happen_to_it() -> None:
    for request, form in ((ASKED, "whole"), (STREAM, "stream")):
        chaos = Chaos(good, FAULTS, share=1.0)
        seen = {FAULTS[name] for name in fates(chaos, 600, request)}
        assert all(form in fault.forms for fault in seen)
        assert all(fault.kind != "client" for fault in seen), "a server cannot fail for its client"


def test_by_default_nothing_is_slow_huge_or_harmless() -> None:
    assert len(select_faults(None)) > 150
    assert all(is_common(fault) and not fault.slow for fault in select_faults(None))


def test_where_a_fault_takes_an_answers_place_nobody_is_asked() -> None:
    script = VendorScript("one", "two")
    chaos = Chaos(script, plan={0: "status-503", 1: "cut-in-the-middle"})
    assert chaos(ASKED).status == 503
    assert len(script.requests) == 0
    chaos(ASKED)
    assert len(script.requests) == 1, "a cut response was sent by the script"
    assert b"two" in b"".join(piece.outcome for piece in chaos(ASKED).iter_pieces() if isinstance(piece.outcome, bytes))


def test_an_answer_that_is_a_failure_by_itself_is_left_alone() -> None:
    chaos = Chaos(VendorScript(errors.RateLimitError("slow down")), ["json-truncated"], share=1.0)
    assert chaos(ASKED).status == 429
    assert chaos.injected == []


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: Chaos(good, ["no-such-fault"]), "faults"),
        (lambda: Chaos(good, plan={0: "no-such-fault"}), "faults"),
        (lambda: Chaos(good, share=5), "share"),
        (lambda: FaultyTransport(ScriptedTransport(good), share=-0.1), "share"),
    ],
)
def test_what_cannot_be_is_refused(make: Callable[[], Any], field: str) -> None:
    with pytest.raises(errors.ConfigurationError) as caught:
        make()
    assert caught.value.field == field


def test_a_fault_of_ones_own_is_a_function() -> None:
    def shout(context: FaultContext) -> Answer:
        return context.respond(context.body.upper())

    loud = Fault(name="loud", description="Everything in capitals.", kind="body", apply=shout)
    with LoopbackServer(Chaos(good, [loud], share=1.0)) as server, pytest.raises(errors.ProtocolError):
        Agent(MODELS["anthropic"], api_key="sk-test", base_url=server.url, max_retries=0).complete("Hi")


@pytest.mark.parametrize("codec", CODECS)
def test_a_retry_gets_over_what_can_be_repeated(drive: Driver, codec: str) -> None:
    """Behind a server and in a simulation alike."""
    plan = {0: "status-503", 1: "disconnect-in-status-line"}
    for call in (drive.complete, drive.stream):
        chaos = Chaos(good, plan=plan)
        outcome = call(chaos, agent=MODELS[codec], retry=QUICK)
        assert outcome.ok.text == WORDS
        assert [attempt.error for attempt in outcome.ok.route] == ["OverloadedError", "ConnectionError", None]
        assert chaos.plan == plan


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("driver", ["sync", "aio"])
def test_around_a_transport_most_calls_pass_untouched(codec: str, driver: str) -> None:
    plan = {1: "connection-refused", 3: "cut-in-the-middle", 4: "html-page"}
    with LoopbackServer(good) as server:
        transport = FaultyTransport(_http(), plan=plan)
        agent = Agent(MODELS[codec], api_key="sk-test", base_url=server.url, transport=transport, max_retries=0)

        async def aoutcome(*, streaming: bool) -> str:
            try:
                response = await (agent.astream("Hi").collect() if streaming else agent.acomplete("Hi"))
            except errors.AgentError as error:
                return type(error).__name__
            return response.text or ""

        def outcome(*, streaming: bool) -> str:
            if driver == "aio":
                return asyncio.run(aoutcome(streaming=streaming))
            try:
                return (agent.stream("Hi").collect() if streaming else agent.complete("Hi")).text or ""
            except errors.AgentError as error:
                return type(error).__name__

        seen = [outcome(streaming=number % 2 == 1) for number in range(6)]
        assert seen == [WORDS, "ConnectionError", WORDS, "StreamInterrupted", "ProtocolError", WORDS]
        assert transport.plan == plan
        assert len(server.requests) == 4, "faults that replace the response send no request"


def _http() -> Any:
    from agent.transports.http import HttpTransport
    from tests.engine.play import NO_TLS

    return HttpTransport(proxy=False, ssl_context=NO_TLS)


def test_a_simulation_with_chaos_replays_exactly() -> None:
    def run(seed: int) -> tuple[list[str], list[str], dict[int, str]]:
        chaos = Chaos(good, share=0.5, seed=seed)
        simulation = Simulation(chaos, seed=seed)
        agent = Agent(MODELS["anthropic"], api_key="sk-test", retry=RetryConfig(max_retries=2))
        outcomes = []
        for _ in range(40):
            try:
                outcomes.append(simulate(simulation, agent, "Hi", streaming=True).text or "")
            except errors.AgentError as error:
                outcomes.append(type(error).__name__)
        return outcomes, simulation.log, chaos.plan

    assert run(5) == run(5)
    assert run(5) != run(6)
    assert WORDS in run(5)[0]
