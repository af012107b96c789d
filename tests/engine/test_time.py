"""Time limits: each exact, each named, none reset by what is not progress."""

from __future__ import annotations

import asyncio
import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import pytest

from agent import Agent, errors
from agent.engine.wire import WireRequest
from agent.testing import Answer, LoopbackServer, Network, Piece, Script
from agent.types import AgentResponse, RetryConfig
from tests.engine.play import (
    END,
    PING,
    agent_at,
    drip_body,
    drip_head,
    endless,
    error_reply,
    never,
    pings,
    sse,
    stall,
    token,
    tokens,
    whole,
)
from tests.support.cases import within_budget
from tests.support.drivers import Driver, run_and_leave_nothing

pytestmark = pytest.mark.timing

MARGIN = 0.1


def always(answer: Callable[[], Answer]) -> Network:
    return lambda request: answer()


def root_of(error: BaseException) -> errors.TimeoutError:
    cause = error.__cause__ if isinstance(error, errors.StreamInterrupted) else error
    assert isinstance(cause, errors.TimeoutError), repr(error)
    return cause


def exactly(seconds: float, took: float, drive: Driver) -> bool:
    if drive.name == "simulated":
        return took == pytest.approx(seconds, abs=1e-9)
    return seconds - 0.005 < took < seconds + MARGIN


@pytest.mark.parametrize("answer", [never, drip_body], ids=lambda made: made.__name__)
def test_a_call_ends_at_its_deadline(drive: Driver, answer: Callable[[], Answer]) -> None:
    outcome = drive.complete(always(answer), deadline=0.4, max_retries=2)
    assert root_of(outcome.failed).deadline
    assert exactly(0.4, outcome.seconds, drive)
    assert len(outcome.requests) == 1


@pytest.mark.parametrize("answer", [never, stall, pings, endless], ids=lambda made: made.__name__)
def test_a_stream_ends_at_its_deadline(drive: Driver, answer: Callable[[], Answer]) -> None:
    outcome = drive.stream(always(answer), deadline=0.4, max_retries=2)
    assert root_of(outcome.failed).deadline
    assert exactly(0.4, outcome.seconds, drive)
    assert len(outcome.requests) == 1


@pytest.mark.parametrize("streaming", [False, True])
def test_headers_that_drip_do_not_extend_the_deadline(drive_http: Driver, streaming: bool) -> None:
    call = drive_http.stream if streaming else drive_http.complete
    outcome = call(always(drip_head), deadline=0.4)
    assert root_of(outcome.failed).deadline
    assert exactly(0.4, outcome.seconds, drive_http)


@pytest.mark.parametrize("streaming", [False, True])
def test_the_socket_is_closed_when_the_deadline_passes(drive_http: Driver, streaming: bool) -> None:
    server = drive_http.serve(always(stall))
    agent = agent_at(server, deadline=0.2, transport=drive_http.carrier)
    with pytest.raises(errors.AgentError):
        _call(drive_http, agent, streaming=streaming)
    assert server.wait_until(lambda: server.open_connections == 0)


def _call(drive: Driver, agent: Agent, *, streaming: bool) -> Any:
    async def main() -> Any:
        return await (agent.astream("hi").collect() if streaming else agent.acomplete("hi"))

    if drive.awaits:
        return run_and_leave_nothing(main())
    return agent.stream("hi").collect() if streaming else agent.complete("hi")


@pytest.mark.parametrize("streaming", [False, True])
def test_the_timeout_of_an_attempt_is_not_the_deadline(drive: Driver, streaming: bool) -> None:
    call = drive.stream if streaming else drive.complete
    outcome = call(always(never), timeout=0.2, deadline=5.0)
    error = root_of(outcome.failed)
    assert (error.deadline, error.retryable) == (False, True)
    assert exactly(0.2, outcome.seconds, drive)


@pytest.mark.parametrize("answer", [endless, pings], ids=lambda made: made.__name__)
def test_the_timeout_covers_the_whole_stream(drive: Driver, answer: Callable[[], Answer]) -> None:
    outcome = drive.stream(always(answer), timeout=0.3)
    assert "timeout" in str(root_of(outcome.failed))
    assert exactly(0.3, outcome.seconds, drive)


def test_an_attempt_that_timed_out_is_tried_again(drive: Driver) -> None:
    script = Script(never(), "second")
    outcome = drive.complete(script, timeout=0.2, retry=RetryConfig(max_retries=1, initial_delay=0))
    assert outcome.ok.text == "second"
    assert [attempt.error for attempt in outcome.ok.route] == ["TimeoutError", None]


def test_the_first_byte_has_a_limit_of_its_own(drive: Driver) -> None:
    outcome = drive.stream(always(never), first_byte_timeout=0.15, timeout=5.0)
    assert "first_byte_timeout" in str(outcome.failed)
    assert exactly(0.15, outcome.seconds, drive)


def test_a_first_byte_in_time_is_all_that_limit_asks(drive: Driver) -> None:
    outcome = drive.stream(always(lambda: tokens(4, 0.1)), first_byte_timeout=0.15)
    assert outcome.ok.text == "t0 t1 t2 t3 "


@pytest.mark.parametrize("answer", [stall, pings], ids=lambda made: made.__name__)
def test_silence_and_pings_are_equally_idle(drive: Driver, answer: Callable[[], Answer]) -> None:
    outcome = drive.stream(always(answer), idle_timeout=0.3)
    error = root_of(outcome.failed)
    assert not error.deadline
    assert "idle_timeout" in str(error)
    assert exactly(0.3, outcome.seconds, drive)


def test_an_hour_of_pings_ends_at_the_idle_limit(drive: Driver) -> None:
    """In virtual time an hour is nothing; on a socket we use shorter ones."""
    limit, pause = (300.0, 10.0) if drive.name == "simulated" else (0.25, 0.02)
    answer = sse(token("a"), *(Piece(PING, pause) for _ in range(360)))
    outcome = drive.stream(lambda request: answer, idle_timeout=limit, timeout=10 * limit)
    assert "idle_timeout" in str(root_of(outcome.failed))
    assert exactly(limit, outcome.seconds, drive)


def test_each_meaningful_event_starts_the_idle_time_anew(drive: Driver) -> None:
    answer = sse(
        *(piece for number in range(5) for piece in (Piece(token(f"t{number} "), 0.08), Piece(PING, 0.02))), END
    )
    outcome = drive.stream(lambda request: answer, idle_timeout=0.2)
    assert outcome.ok.text == "t0 t1 t2 t3 t4 "
    assert outcome.seconds > 0.4


def test_a_slow_consumer_is_not_idle(drive_http: Driver) -> None:
    server = drive_http.serve(always(lambda: tokens(4, 0.01)))
    agent = agent_at(server, idle_timeout=0.08, transport=drive_http.carrier)

    async def main() -> int:
        seen = 0
        async for _ in agent.astream("hi"):
            await asyncio.sleep(0.1)
            seen += 1
        return seen

    if drive_http.awaits:
        assert run_and_leave_nothing(main()) >= 4
    else:
        seen = 0
        for _ in agent.stream("hi"):
            time.sleep(0.1)
            seen += 1
        assert seen >= 4


@pytest.mark.parametrize("streaming", [False, True])
def test_a_wait_that_does_not_fit_the_deadline_is_not_begun(drive: Driver, streaming: bool) -> None:
    call = drive.stream if streaming else drive.complete
    busy = errors.RateLimitError("slow down", retry_after=7)
    outcome = call(Script(busy, "never reached"), deadline=2.0, max_retries=2)
    assert isinstance(outcome.failed, errors.RateLimitError)
    assert outcome.seconds < 0.3
    assert len(outcome.requests) == 1


def test_retries_end_with_the_deadline(drive: Driver) -> None:
    patience = RetryConfig(max_retries=1000, throttle_delay=0.05, exponential_base=1, jitter=False)
    outcome = drive.complete(always(lambda: error_reply(503)), deadline=0.4, retry=patience)
    assert outcome.failed.status_code == 503
    assert 0.25 < outcome.seconds < 0.4 + MARGIN
    assert 3 <= len(outcome.requests) <= 9


# Connecting


@pytest.fixture
def full_house() -> Iterator[int]:
    """The port of a listening socket that accepts no connection."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        port = listener.getsockname()[1]
        crowd = [socket.socket() for _ in range(4)]
        for one in crowd:
            one.setblocking(False)
            one.connect_ex(("127.0.0.1", port))
        time.sleep(0.02)
        yield port
        for one in crowd:
            one.close()


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("limit", ["connect_timeout", "deadline"])
def test_connecting_has_its_limits(drive_http: Driver, full_house: int, limit: str, streaming: bool) -> None:
    options: dict[str, Any] = {limit: 0.3}
    agent = Agent(
        "openai-chat:m",
        transport=drive_http.carrier,
        api_key="sk-test",
        base_url=f"http://127.0.0.1:{full_house}/v1",
        max_retries=0,
        **options,
    )
    started = time.monotonic()
    with pytest.raises(errors.TimeoutError) as caught:
        _call(drive_http, agent, streaming=streaming)
    assert caught.value.deadline == (limit == "deadline")
    assert exactly(0.3, time.monotonic() - started, drive_http)


@pytest.mark.parametrize("limit", ["connect_timeout", "deadline"])
def test_a_lookup_that_hangs_delays_nobody(drive_http: Driver, monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    """Not even the end of the event loop."""
    if drive_http.carrier == "httpx" and (drive_http.awaits or limit == "connect_timeout"):
        pytest.skip("httpx does not limit lookups, and has them done in the loop's executor")
    released = threading.Event()

    def hang(*args: Any, **kwargs: Any) -> Any:
        released.wait(5)
        raise socket.gaierror("given up")

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    options: dict[str, Any] = {limit: 0.3}
    agent = Agent(
        "openai-chat:m",
        transport=drive_http.carrier,
        api_key="sk-test",
        base_url="https://slow.invalid/v1",
        max_retries=0,
        **options,
    )
    started = time.monotonic()
    try:
        with pytest.raises(errors.TimeoutError):
            _call(drive_http, agent, streaming=False)
        assert exactly(0.3, time.monotonic() - started, drive_http)
    finally:
        released.set()


@pytest.mark.parametrize("host", ["nowhere.invalid", "a" * 70 + ".invalid"])
def test_a_host_that_does_not_exist_is_a_connection_error(
    drive_http: Driver, monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    def unknown(name: str | bytes, *args: Any, **kwargs: Any) -> Any:
        str(name, "ascii").encode("idna") if isinstance(name, bytes) else name.encode("idna")
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    agent = Agent(
        "openai-chat:m", transport=drive_http.carrier, api_key="sk-test", base_url=f"https://{host}/v1", max_retries=0
    )
    with pytest.raises(errors.ConnectionError):
        _call(drive_http, agent, streaming=False)


def test_a_host_with_several_addresses_is_reached_at_the_one_that_answers(
    drive_http: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = drive_http.serve(always(whole))
    port = int(server.url.rsplit(":", 1)[1])

    resolve = socket.getaddrinfo

    def two(name: str | bytes, *args: Any, **kwargs: Any) -> Any:
        if name not in ("two.localhost", b"two.localhost"):
            return resolve(name, *args, **kwargs)
        deaf = (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", port, 0, 0))
        return [deaf, (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]

    monkeypatch.setattr(socket, "getaddrinfo", two)
    agent = Agent(
        "openai-chat:m",
        transport=drive_http.carrier,
        api_key="sk-test",
        base_url=f"http://two.localhost:{port}/v1",
        max_retries=0,
        allow_insecure=True,
    )
    assert _call(drive_http, agent, streaming=False).text == "hello"


# In a crowd


@pytest.mark.parametrize("cases", [60, pytest.param(3000, marks=pytest.mark.soak)])
def test_no_call_succeeds_after_its_deadline(drive_real: Driver, cases: int, rng: random.Random) -> None:
    """However late, slow or large the answer is, and whatever else keeps the machine busy."""

    def answer(request: WireRequest) -> Answer:
        seconds, size, streaming = (
            rng.uniform(0, 0.25),
            rng.choice([10, 100_000, 8_000_000]),
            b'"stream":true' in request.body,
        )
        if not streaming:
            return whole("[1]" if b"json" in request.body else "x" * size, after=seconds)
        return sse(*(Piece(token("x" * 50), seconds / 5) for _ in range(5)), END)

    late: list[float] = [-1.0]
    outcomes: Counter[str] = Counter()

    def record(form: str, deadline: float, outcome: AgentResponse | errors.AgentError) -> None:
        if isinstance(outcome, errors.AgentError):
            assert getattr(outcome, "deadline", False), repr(outcome)
            outcomes["timeout"] += 1
        else:
            assert outcome.latency_ms is not None
            outcomes["success"] += 1
            slack = 0.1 if form == "stream" else 0.0  # the time to hand out its last events
            late.append(outcome.latency_ms / 1000 - deadline - slack)

    def send(form: str, deadline: float) -> None:
        try:
            match form:
                case "stream":
                    record(form, deadline, agent.stream("hi", deadline=deadline).collect())
                case "json":
                    record(form, deadline, agent.json("hi", schema={"type": "array"}, deadline=deadline))
                case _:
                    record(form, deadline, agent.complete("hi", deadline=deadline))
        except errors.AgentError as error:
            record(form, deadline, error)

    async def asend(form: str, deadline: float) -> None:
        try:
            match form:
                case "stream":
                    record(form, deadline, await agent.astream("hi", deadline=deadline).collect())
                case "json":
                    record(form, deadline, await agent.ajson("hi", schema={"type": "array"}, deadline=deadline))
                case _:
                    record(form, deadline, await agent.acomplete("hi", deadline=deadline))
        except errors.AgentError as error:
            record(form, deadline, error)

    async def main(planned: list[tuple[str, float]]) -> None:
        await asyncio.gather(*(asend(form, deadline) for form, deadline in planned))

    agent = agent_at(drive_real.serve(answer))
    forms = ["complete", "stream", "json"]
    rounds = 0
    for _ in within_budget(range(cases // 20)):
        rounds += 1
        planned = [(rng.choice(forms), rng.uniform(0.1, 0.5)) for _ in range(20)]
        if drive_real.awaits:
            run_and_leave_nothing(main(planned))
        else:
            threads = [threading.Thread(target=send, args=one) for one in planned]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    print(f"{20 * rounds} calls, {dict(outcomes)}; the latest success {1000 * max(late):.1f} ms after its deadline")
    assert outcomes.total() == 20 * rounds
    assert max(late) <= 0


def test_deadlines_are_exact_for_60_threads_at_once() -> None:
    with LoopbackServer(always(pings)) as server:
        agent = agent_at(server, deadline=1.0)
        with pytest.raises(errors.AgentError):
            agent.stream("hi", deadline=0.1).collect()  # the first call loads modules

        def read_stream_late() -> None:
            with pytest.raises(errors.AgentError):
                agent.stream("hi").collect()

        late, by_hand = _lateness(read_stream_late), _lateness(lambda: _read_until_late(server.url))
        assert len(late) == 60
        assert max(late) < max(MARGIN, 2 * max(by_hand))


def _lateness(work: Callable[[], None]) -> list[float]:
    """By how much each of sixty threads at once misses a deadline of a second."""
    late: list[float] = []

    def measure() -> None:
        started = time.monotonic()
        work()
        late.append(time.monotonic() - started - 1.0)

    threads = [threading.Thread(target=measure) for _ in range(60)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return late


def _read_until_late(url: str) -> None:
    """The same with a plain socket, as the baseline on a busy machine."""
    until = time.monotonic() + 1.0
    address = urlsplit(url)
    with socket.create_connection((address.hostname, address.port), timeout=1.0) as connection:
        connection.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}")
        with suppress(TimeoutError):
            while (left := until - time.monotonic()) > 0:
                connection.settimeout(left)
                assert connection.recv(65536)


def test_deadlines_are_exact_for_90_tasks_at_once() -> None:
    with LoopbackServer(always(pings)) as server:
        agent = agent_at(server, deadline=1.0)

        async def work() -> float:
            started = time.monotonic()
            with pytest.raises(errors.AgentError):
                await agent.astream("hi").collect()
            return time.monotonic() - started - 1.0

        async def main() -> list[float]:
            return await asyncio.gather(*(work() for _ in range(90)))

        assert max(run_and_leave_nothing(main())) < MARGIN
