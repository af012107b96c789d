"""Every fault, in every API, is a typed error and never a success.

Each is tested whole and streamed, sync and async, over a real socket.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from agent.errors import AgentError, StreamInterrupted
from agent.testing import FAULTS, Chaos, Fault, FaultyTransport, ScriptedTransport, Simulation, simulate
from agent.transports.http import HttpTransport
from agent.types import AgentResponse
from tests.support.cases import FULL, for_each
from tests.testing.faults.fault_server import CODECS, LIMITS, WORDS, Client, Outcome, good, serve_faults
from tests.testing.faults.outcomes import EXPECTED, OF_ITS_OWN, RETRY_AFTER, Failure, find_expected, ok

pytestmark = pytest.mark.malformed

DRIVERS = ("sync", "aio")
QUICK = [fault for fault in FAULTS.values() if not fault.heavy and not fault.slow]
SLOW = [fault for fault in FAULTS.values() if fault.slow]


def cases(faults: list[Fault]) -> list[tuple[str, str]]:
    return [(fault.name, form) for fault in faults for form in sorted(fault.forms)]


def everywhere(*axes: Sequence[str]) -> list[tuple[str, ...]]:
    """Return every quick fault in every form, with alternating codecs and axis values; with all, if FULL.

    Where codecs differ, all are there.
    """
    found: list[tuple[str, ...]] = []
    for n, (fault, form) in enumerate(cases(QUICK)):
        for m, values in enumerate(itertools.product(*axes)):
            turn = CODECS[(n + m) % len(CODECS)]
            found += [
                (fault, form, codec, *values)
                for codec in CODECS
                if FULL or codec == turn or (codec, fault) in OF_ITS_OWN
            ]
    return found


def by_fault(fault: str, *_: str) -> str:
    return fault


@pytest.fixture(scope="module")
def caller() -> Iterator[Client]:
    with serve_faults() as made:
        yield made


@pytest.fixture(scope="module")
def httpx_caller() -> Iterator[Client]:
    with serve_faults("httpx") as made:
        yield made


def judge(codec: str, fault: str, form: str, response: AgentResponse | None, error: AgentError | None) -> None:
    wanted = find_expected(codec, fault, form)
    if not isinstance(wanted, Failure):
        assert error is None, f"{error!r} for something that is only unusual"
        assert response is not None
        said = response.text or ""
        if fault == "json-with-numbers-for-strings":
            assert "7" in said, "content that is no text becomes JSON text"
            return
        assert said == WORDS or (fault == "events-after-terminal-event" and codec == "gemini" and WORDS in said)
        return
    assert error is not None, f"a success: {response!r}"
    assert type(error) is wanted.kind, repr(error)
    assert error.retryable is wanted.retryable
    assert (error.provider, error.committed) == (codec, wanted.cause is not None)
    assert error.model
    assert len(error.attempts) == 1
    if isinstance(error, StreamInterrupted):
        assert type(error.__cause__) is wanted.cause
        assert error.partial is not None
        assert error.partial.text
        beginning = fault == "endless-stream" or WORDS.startswith(error.partial.text)
        assert beginning, "the partial response is the beginning of the text"
    if fault in RETRY_AFTER:
        assert error.retry_after == pytest.approx(RETRY_AFTER[fault])


def call(caller: Client, codec: str, fault: Fault, form: str, driver: str) -> Outcome:
    options = {}
    if fault.kind == "client":  # no server can do these
        assert caller.transport is not None
        options["transport"] = FaultyTransport(caller.transport, [fault], share=1.0)
    agent = caller.agent(codec, fault.name, **options)
    return caller.either(agent, streaming=form == "stream", driver=driver)


def test_every_fault_is_in_the_table_and_there_are_more_than_a_hundred() -> None:
    assert set(EXPECTED) == set(FAULTS)
    assert {name for _, name, *_ in OF_ITS_OWN} <= set(FAULTS)
    assert sum(fault.harmless != fault.forms for fault in FAULTS.values()) >= 200
    for name, fault in FAULTS.items():
        assert fault.description, name
        for form in ("whole", "stream"):
            wanted = EXPECTED[name][form]
            assert (wanted is not None) == (form in fault.forms), name
            assert (wanted == ok) == (form in fault.harmless), name


@pytest.mark.parametrize("codec", CODECS)
def test_without_a_fault_all_is_well(caller: Client, codec: str) -> None:
    for driver in DRIVERS:
        for streaming in (False, True):
            outcome = caller.either(caller.agent(codec, "good"), streaming=streaming, driver=driver)
            assert outcome.text == WORDS


@for_each("fault, form, codec, driver", everywhere(DRIVERS), by=by_fault)
def test_a_fault_is_a_typed_error(caller: Client, fault: str, form: str, codec: str, driver: str) -> None:
    check_fault(caller, fault, form, codec, driver)


def check_fault(caller: Client, fault: str, form: str, codec: str, driver: str) -> None:
    if isinstance(caller.transport, HttpTransport):
        caller.transport.close()  # a request on a closed keep-alive connection is sent again
    outcome = call(caller, codec, FAULTS[fault], form, driver)
    judge(codec, fault, form, outcome.response, outcome.error)
    assert outcome.requests == (0 if FAULTS[fault].kind == "client" else 1), "no request is sent twice"
    assert outcome.seconds < 5


@for_each("fault, form, driver", [(*case, driver) for case in cases(QUICK) for driver in DRIVERS], by=by_fault)
def test_through_httpx_a_fault_is_the_same_error(httpx_caller: Client, fault: str, form: str, driver: str) -> None:
    """One API is enough: transports do not depend on it."""
    check_fault(httpx_caller, fault, form, "openai-chat", driver)


@pytest.mark.timing
@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize(("fault", "form"), cases(SLOW))
def test_through_httpx_who_keeps_us_waiting_is_left_in_time(
    httpx_caller: Client, fault: str, form: str, driver: str
) -> None:
    test_who_keeps_us_waiting_is_left_in_time(httpx_caller, fault, form, driver)


@pytest.mark.timing
@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize(("fault", "form"), cases(SLOW))
def test_who_keeps_us_waiting_is_left_in_time(caller: Client, fault: str, form: str, driver: str) -> None:
    """All four APIs at once: a limit is what each of them waits for."""
    agents = [caller.agent(codec, fault, **LIMITS) for codec in CODECS]
    streaming = form == "stream"

    async def together() -> list[Outcome]:
        return await asyncio.gather(*(caller.acall(agent, streaming=streaming) for agent in agents))

    if driver != "sync":
        outcomes = asyncio.run(together())
    else:
        with ThreadPoolExecutor(len(agents)) as threads:
            outcomes = list(threads.map(lambda agent: caller.call(agent, streaming=streaming), agents))
    for codec, outcome in zip(CODECS, outcomes, strict=True):
        judge(codec, fault, form, outcome.response, outcome.error)
        assert outcome.seconds <= LIMITS["timeout"] + 0.1


@for_each("fault, form, codec", everywhere(), by=by_fault)
def test_without_a_socket_a_fault_comes_to_the_same(fault: str, form: str, codec: str) -> None:
    """Around a transport and in a simulation, faults are seen as an HTTP client sees them."""
    streaming = form == "stream"
    transport = FaultyTransport(ScriptedTransport(good), [fault], share=1.0)
    agent = Client().agent(codec, "any", transport=transport)
    for driver in DRIVERS:
        outcome = Client().either(agent, streaming=streaming, driver=driver)
        judge(codec, fault, form, outcome.response, outcome.error)
    judge(codec, fault, form, *simulated(codec, fault, streaming=streaming))
    assert [injected.fault.name for injected in transport.injected] == [fault, fault]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(("fault", "form"), cases(SLOW))
def test_in_a_simulation_waiting_costs_nothing(fault: str, form: str, codec: str) -> None:
    judge(codec, fault, form, *simulated(codec, fault, streaming=form == "stream", **LIMITS))


def simulated(
    codec: str, fault: str, *, streaming: bool, **options: float
) -> tuple[AgentResponse | None, AgentError | None]:
    simulation = Simulation(Chaos(good, [fault], share=1.0))
    try:
        return simulate(simulation, Client().agent(codec, "any", **options), "Hi", streaming=streaming), None
    except AgentError as error:
        return None, error
    finally:
        assert simulation.open_bodies == 0
