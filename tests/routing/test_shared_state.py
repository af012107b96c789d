"""Shared router state: one suite for the store in memory and the one in Redis."""

from __future__ import annotations

import asyncio
import math
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)
from typing_extensions import override

from agent import Router, Target, errors
from agent.engine.wire import Answer
from agent.providers.rate_limit_hints import RemainingLimit
from agent.routing.limits import RateLimiter
from agent.routing.outbox import flush_all
from agent.routing.redis_state import RedisState
from agent.routing.router_state import (
    Account,
    AdmitRequest,
    Batch,
    Claim,
    HealthChange,
    MemoryState,
    RouterState,
    Settlement,
)
from agent.testing import Script, Simulation, simulate, start
from agent.types import BreakerConfig, RateLimit, RetryConfig, SpendLimit
from tests.routing.fleet import Fleet, busy
from tests.routing.test_limits import ONE, outcomes
from tests.support.cases import FULL
from tests.support.redis_server import ExternalServer, open_server

LEASE = 60.0


@pytest.fixture(scope="module")
def server() -> Iterator[ExternalServer]:
    running = open_server()
    yield running
    flush_all()
    running.close()


def make_name() -> str:
    return os.urandom(6).hex()


def redis_state(server: ExternalServer, **options: Any) -> RedisState:
    """A store that uses the callers' clock."""
    state = RedisState(server.url, **{"timeout": 5.0, **options})
    state._uses_callers_clock = True
    return state


@pytest.fixture(params=["memory", "redis"])
def make_store(request: pytest.FixtureRequest) -> Callable[..., RouterState]:
    if request.param == "memory":
        return MemoryState
    server: ExternalServer = request.getfixturevalue("server")
    return lambda **options: redis_state(server, **options)


class Caller:
    """One process that uses a store."""

    def __init__(self, store: RouterState, namespace: str, name: str = "p") -> None:
        self.store, self.namespace, self.name = store, namespace, name
        self.number = 0
        self.ids = 0
        self.now = 1000.0

    def admit(self, *claims: Claim, accounts: tuple[Account, ...] = (), version: int = 0, epoch: str = "") -> Any:
        self.ids += 1
        lease = f"{self.name}:{self.ids}"
        return lease, self.store.admit(AdmitRequest(self.namespace, lease, claims, accounts, version, epoch, self.now))

    def exchange(self, *settlements: Settlement, **fields: Any) -> Any:
        self.number += 1
        batch = Batch(self.namespace, self.name, self.number, settlements, (), (), "", "", 0, self.now)
        return self.store.exchange(batch._replace(**fields))


@pytest.fixture
def caller(make_store: Callable[..., RouterState]) -> Caller:
    return Caller(make_store(), make_name())


class StoreMachine(RuleBasedStateMachine):
    """Model: all requests ever admitted, what they hold, and what was spent."""

    leases: Bundle[str] = Bundle("leases")
    make: Callable[[], RouterState]
    slack = 0.0
    """Seconds by which a window of the store may be longer than 60."""

    @initialize()
    def begin(self) -> None:
        self.caller = Caller(self.make(), make_name())
        self.held: dict[str, tuple[int, str, float]] = {}
        self.sent: list[list[Any]] = []
        self.spent = {"all": 0, "a": 0, "b": 0}

    def _expire(self) -> None:
        for lease, (_, _, end) in list(self.held.items()):
            if self.caller.now >= end:
                del self.held[lease]

    def _accounts(self, user: str) -> tuple[Account, ...]:
        return Account("0", 100, 0), Account(f"1:{user}", 60, 0)

    @rule(seconds=st.sampled_from([0.1, 1.0, 7.25, 20.0, 60.0]))
    def wait(self, seconds: float) -> None:
        self.caller.now += seconds

    @rule(
        target=leases,
        user=st.sampled_from(["a", "b"]),
        cost=st.integers(0, 40),
        tokens=st.integers(0, 120),
    )
    def admit(self, user: str, cost: int, tokens: int) -> Any:
        self._expire()
        now = self.caller.now
        claim = Claim("t", tokens, cost, rpm=6, tpm=300, concurrency=4)
        lease, reply = self.caller.admit(claim, accounts=self._accounts(user))
        money = self._money_fits(user, cost)
        if reply.position == 0:
            assert money, "money"
            assert len(self.held) < 4, "concurrency"
            assert self._rate_fits(now, 60.0, tokens), "rate"
            self.held[lease] = (cost, user, now + LEASE)
            self.sent.append([now, tokens, lease])
            return lease
        refusal = reply.refusals[0]
        match refusal.reason:
            case "concurrency":
                assert len(self.held) >= 4
            case "rpm" | "tpm":
                assert not self._rate_fits(now, 60.0 + self.slack, tokens)
                assert 0 < refusal.wait <= 60.0 + self.slack
            case "held" | "spent":
                assert not money
                fits = self.spent["all"] + cost <= 100 and self.spent[user] + cost <= 60
                assert (refusal.reason == "held") or not fits
            case reason:
                raise AssertionError(reason)
        return multiple()

    def _money_fits(self, user: str, cost: int) -> bool:
        held = sum(amount for amount, _, _ in self.held.values())
        own = sum(amount for amount, owner, _ in self.held.values() if owner == user)
        return self.spent["all"] + held + cost <= 100 and self.spent[user] + own + cost <= 60

    def _rate_fits(self, now: float, window: float, tokens: int) -> bool:
        recent = [one for one in self.sent if one[0] > now - window]
        return len(recent) < 6 and sum(one[1] for one in recent) + min(tokens, 300) <= 300

    @rule(lease=consumes(leases), part=st.integers(0, 100), more=st.integers(-20, 20))
    def settle(self, lease: str, part: int, more: int) -> None:
        self._expire()
        cost, user, _ = self.held.pop(lease, (0, "a", 0.0))
        entry = next(one for one in self.sent if one[2] == lease)
        more = max(more, -entry[1])
        if entry[0] > self.caller.now - 60.0:
            entry[1] += more
        cost = cost * part // 100
        self.spent["all"] += cost
        self.spent[user] += cost
        bucket = math.floor(entry[0] * 4)
        self.caller.exchange(Settlement(lease, "t", bucket, more, cost, self._accounts(user)))

    @rule()
    def repeat(self) -> None:
        """A batch that is sent again, and one that was overtaken, change nothing."""
        for number in (self.caller.number, self.caller.number - 1):
            if number > 0:
                batch = Settlement("p:1", "t", 0, 5, 7, self._accounts("a"))
                self.caller.exchange(batch, number=number)
                self.caller.number -= 1

    @invariant()
    def check_limits(self) -> None:
        """Whatever the order of events, because the largest cost of each request is reserved."""
        assert self.spent["all"] <= 100
        assert max(self.spent["a"], self.spent["b"]) <= 60

    @rule(user=st.sampled_from(["a", "b"]))
    def read(self, user: str) -> None:
        self._expire()
        _, reply = self.caller.admit(accounts=self._accounts(user))
        assert [balance[0] for balance in reply.balances] == [self.spent["all"], self.spent[user]]
        assert reply.balances[0][1] == sum(amount for amount, _, _ in self.held.values())


@pytest.mark.parametrize("kind", ["memory", "redis"])
def test_a_store_agrees_with_its_model(kind: str, request: pytest.FixtureRequest) -> None:
    if kind == "memory":
        made: Callable[[], RouterState] = MemoryState
    else:
        store = redis_state(request.getfixturevalue("server"))
        made = lambda: store  # noqa: E731

    class Machine(StoreMachine):
        make = staticmethod(made)
        slack = 0.25 if kind == "redis" else 0.0

    examples, steps = (2000, 80) if FULL else (40, 40)
    run_state_machine_as_test(
        Machine, settings=settings(max_examples=examples, stateful_step_count=steps, deadline=None)
    )


def test_the_first_claim_that_fits_is_admitted_and_the_others_are_explained(caller: Caller) -> None:
    account = Account("0", 100, 0)
    full = Claim("full", cost=10, rpm=1)
    assert caller.admit(full, accounts=(account,))[1].position == 0
    _, reply = caller.admit(full, Claim("dear", cost=95), Claim("fine", cost=10), accounts=(account,))
    assert reply.position == 2
    assert [refusal.reason for refusal in reply.refusals] == ["rpm", "held"]
    assert 60 <= reply.refusals[0].wait <= 60.25
    assert reply.refusals[1].left == 90
    _, reply = caller.admit(Claim("dear", cost=101), accounts=(account,))
    assert reply.refusals[0].reason == "spent"
    assert reply.refusals[0].wait < 0, "a limit without a window is never reset"


def test_a_spend_window_is_reset(caller: Caller) -> None:
    account = Account("0", 10, 5000)
    lease, _ = caller.admit(Claim("t", cost=10), accounts=(account,))
    caller.exchange(Settlement(lease, "t", cost=10, accounts=(account,)))
    caller.now += 4
    refusal = caller.admit(Claim("t", cost=1), accounts=(account,))[1].refusals[0]
    assert (refusal.reason, round(refusal.wait)) == ("spent", 1)
    caller.now += 1
    assert caller.admit(Claim("t", cost=10), accounts=(account,))[1].position == 0


@pytest.mark.parametrize("on_lost", ["release", "charge"])
def test_a_lost_lease_is_released_or_charged(make_store: Callable[..., RouterState], on_lost: str) -> None:
    caller = Caller(make_store(on_lost=on_lost, lease_seconds=10.0), make_name())
    account = Account("0", 100, 0)
    lost, _ = caller.admit(Claim("t", cost=60, concurrency=1), accounts=(account,))
    caller.now += 9
    assert caller.admit(Claim("t", cost=1, concurrency=1))[1].refusals[0].reason == "concurrency"
    caller.now += 1
    _, reply = caller.admit(accounts=(account,))
    assert reply.balances[0][:2] == ((60, 0) if on_lost == "charge" else (0, 0))
    assert caller.admit(Claim("t", cost=1, concurrency=1))[1].position == 0
    caller.exchange(Settlement(lost, "t", cost=25, accounts=(account,)))
    assert caller.admit(accounts=(account,))[1].balances[0][0] == 25, "its holder lived after all"


def test_a_renewed_lease_is_kept(make_store: Callable[..., RouterState]) -> None:
    caller = Caller(make_store(lease_seconds=10.0), make_name())
    lease, _ = caller.admit(Claim("t", concurrency=1))
    for _ in range(5):
        caller.now += 8
        caller.exchange(renewals=(lease,))
    assert caller.admit(Claim("t", concurrency=1))[1].refusals[0].reason == "concurrency"


def test_no_window_of_a_minute_exceeds_its_rate_and_nothing_is_wasted(caller: Caller) -> None:
    """Three minutes of requests every 50 ms, in tokens of several sizes."""
    sent: list[tuple[float, int]] = []
    began = caller.now
    step = 0.05 if FULL else 0.11
    while caller.now < began + 180:
        tokens = 100 + len(sent) % 7
        if caller.admit(Claim("t", tokens, rpm=300, tpm=30_000))[1].position == 0:
            sent.append((caller.now, tokens))
        caller.now += step
    for at, _ in sent:
        window = [tokens for time, tokens in sent if at <= time < at + 60]
        assert len(window) <= 300
        assert sum(window) <= 30_000
    assert sum(tokens for _, tokens in sent) >= 0.99 * 3 * 30_000 - 106


def test_exactly_one_of_many_gets_the_probe(caller: Caller) -> None:
    caller.exchange(changes=(HealthChange("open", "t"),))
    reply = caller.admit(Claim("t"), version=0)[1]
    assert reply.refusals[0].reason == "health", "it has failed in another process"
    assert reply.health.fields["b:t"].startswith("1:")
    results = [caller.admit(Claim("t", generation=1), version=reply.health.version) for _ in range(8)]
    assert [result.position for _, result in results] == [0] + [-1] * 7
    assert {result.refusals[0].reason for _, result in results[1:]} == {"probe"}
    caller.exchange(Settlement(results[0][0], "t"), changes=(HealthChange("close", "t"),))
    _, late = caller.admit(Claim("t", generation=1), version=reply.health.version)
    assert late.refusals[0].reason == "health", "it has recovered since"
    assert late.health.fields["b:t"] == "2:"


def test_cooldowns_are_extended_never_shortened_and_reset(caller: Caller) -> None:
    caller.exchange(
        changes=(HealthChange("cool", "t", 30.0, "rate limited"), HealthChange("cool", "t", 5.0, "shorter"))
    )
    update = caller.exchange(changes=(HealthChange("key", "t#k", math.inf, "API key rejected"),))
    assert update.health.fields["c:t"] == "30.0:rate limited"
    assert update.health.fields["k:t#k"] == "inf:API key rejected"
    assert caller.exchange(changes=(HealthChange("reset", "t"),)).health.fields.keys() == {"x:t", "b:t"}


def test_events_reach_other_processes_once(caller: Caller) -> None:
    other = Caller(caller.store, caller.namespace, "other")
    last = other.exchange(events="[1]").last
    assert caller.exchange(events="[2]", after=last).events == ()
    update = other.exchange(after=last)
    assert update.events == ("[2]",)
    assert other.exchange(after=update.last).events == ()


# Routers


@pytest.fixture
def routers(make_store: Callable[..., RouterState]) -> Callable[..., tuple[Router, ...]]:
    """Make routers that share a state, each with its own store object, as in different processes."""
    shared = make_store()
    name = make_name()

    def make(fleet: Fleet, count: int = 2, **options: Any) -> tuple[Router, ...]:
        stores = [shared if shared.is_local else make_store() for _ in range(count)]
        return tuple(
            fleet.router(name=name, state=store, **{"retry": RetryConfig(max_retries=0), **options}) for store in stores
        )

    return make


def sync_all(*routers: Router) -> None:
    """Let all hear of each other."""
    for router in (*routers, *routers):
        router.flush()


def test_routers_share_a_budget(routers: Callable[..., tuple[Router, ...]], register_dear: None) -> None:
    fleet = Fleet(dear=[ONE] * 99)
    made = routers(fleet, spend=SpendLimit(dollars=5.0), max_wait=0.0)
    simulation = Simulation(fleet)
    runs: list[Any] = []
    for number in range(8):
        runs.append(start(simulation, made[number % 2], "hi"))
        simulation.finish()
        sync_all(*made)
    assert outcomes(runs) == {"ok": 5, "BudgetExceededError": 3}
    assert [router.get_spend() for router in made] == [5.0, 5.0]
    with pytest.raises(errors.BudgetExceededError, match=r"\$0.000000 is available"):
        simulate(simulation, made[0], "hi")


@pytest.fixture
def register_dear() -> None:
    from tests.routing.test_limits import _register_price

    _register_price("dear", 1.0)


def test_each_value_of_a_key_has_its_budget_in_all_routers(
    routers: Callable[..., tuple[Router, ...]], register_dear: None
) -> None:
    fleet = Fleet(dear=[ONE] * 99)
    made = routers(fleet, spend=SpendLimit(dollars=2.0, per="user"), max_wait=0.0)
    simulation = Simulation(fleet)
    runs: list[Any] = []
    for user in ("ann", "ann", "ben", "ann", "ben", "ben"):
        runs.append(start(simulation, made[len(runs) % 2], "hi", metadata={"user": user}))
        simulation.finish()
        sync_all(*made)
    assert outcomes(runs) == {"ok": 4, "BudgetExceededError": 2}
    assert made[0].get_spend(value="ann") == 2.0


def test_held_money_is_waited_for(make_store: Callable[..., RouterState], register_dear: None) -> None:
    """In virtual time, so with the store in memory."""
    fleet = Fleet(dear=lambda request: _slow(request))
    router = fleet.router(name="x", state=MemoryState(), spend=SpendLimit(dollars=2.0), max_wait=30.0)
    simulation = Simulation(fleet)
    runs = [start(simulation, router, "hi") for _ in range(4)]
    simulation.finish()
    assert outcomes(runs) == {"ok": 2, "BudgetExceededError": 2}
    assert router.get_spend() == 2.0


def _slow(request: Any) -> Any:
    return Answer(Script(ONE)(request).pieces, after=0.5, headers={})


def test_a_breaker_that_opened_here_is_open_there_and_one_probe_closes_both(
    routers: Callable[..., tuple[Router, ...]],
) -> None:
    fleet = Fleet(a=[*[busy()] * 2, *["fine"] * 9])
    breaker = BreakerConfig(window=2, min_samples=2, cooldown=10.0)
    first, second = routers(fleet, breaker=breaker, max_wait=0.0)
    simulation = Simulation(fleet)
    for _ in range(2):
        with pytest.raises(errors.AgentError):
            simulate(simulation, first, "hi")
    sync_all(first, second)
    health = second.targets[0].health.breaker
    assert health.opened_at is not None
    for router in (first, second):
        router.targets[0].health.breaker.opened_at = simulation.now - 11.0
    assert simulate(simulation, first, "hi").text == "fine"
    sync_all(first, second)
    assert health.opened_at is None


def test_a_rejected_key_and_a_rate_limit_are_known_to_all(routers: Callable[..., tuple[Router, ...]]) -> None:
    limited = errors.RateLimitError("slow down", retry_after=30.0)
    fleet = Fleet(a=[errors.AuthenticationError("bad key")], b=[limited], c=["fine"] * 9)
    first, second = routers(fleet, retry=RetryConfig(max_retries=3))
    simulation = Simulation(fleet)
    assert simulate(simulation, first, "hi").text == "fine"
    sync_all(first, second)
    assert simulate(simulation, second, "hi").text == "fine"
    assert fleet.asked == ["a", "b", "c", "c"]
    first.reset_health()
    sync_all(first, second)
    assert second.targets[0].health.key_cooldown.seconds_left(0.0) == 0.0


def _answer_with_limit(left: str, reset: str) -> Callable[[Any], Any]:
    headers = {"x-ratelimit-remaining-requests": left, "x-ratelimit-reset-requests": reset}
    return lambda request: Answer(Script(ONE)(request).pieces, headers=headers)


def test_what_a_vendor_has_left_is_known_to_all(routers: Callable[..., tuple[Router, ...]]) -> None:
    fleet = Fleet(a=_answer_with_limit("0", "20s"), b=["fine"] * 9)
    first, second, third = routers(fleet, count=3)
    simulation = Simulation(fleet)
    sync_all(first, second, third)
    simulate(simulation, first, "hi")
    sync_all(first, second)
    simulate(simulation, second, "hi")
    assert fleet.asked == ["a", "b"]
    simulate(simulation, third, "hi")
    assert fleet.asked[2] == "a", "it has not heard of it yet"


def test_of_two_remaining_limits_the_lower_one_counts_until_it_is_reset() -> None:
    limiter = RateLimiter(RateLimit())
    limiter.lower_vendor_limits(RemainingLimit.until_time(5, 100.0), None, 90.0)
    limiter.lower_vendor_limits(RemainingLimit.until_time(9, 100.0), RemainingLimit.until_time(50, 95.0), 90.0)
    assert limiter.list_vendor_limits(90.0) == [(5, 10.0), (50, 5.0)]
    limiter.lower_vendor_limits(RemainingLimit.until_time(2, 110.0), RemainingLimit.until_time(80, 110.0), 96.0)
    assert limiter.list_vendor_limits(96.0) == [(2, 14.0), (80, 14.0)]
    assert not limiter.is_used_up()


def test_conversations_and_response_times_are_shared(routers: Callable[..., tuple[Router, ...]]) -> None:
    fleet = Fleet(a=["fine"] * 9, b=["fine"] * 9)
    first, second = routers(fleet, strategy="sticky")
    simulation = Simulation(fleet)
    sync_all(first, second)
    simulate(simulation, first, "hi", session_id="s")
    sync_all(first, second)
    assert second._settings.memory._placements.keys() == first._settings.memory._placements.keys()
    used = next(target.name for target in first.targets if target.timings._observations)
    assert [target.name for target in second.targets if target.timings._observations] == [used]


def test_concurrency_is_shared(routers: Callable[..., tuple[Router, ...]]) -> None:
    fleet = Fleet(a=_slow)
    made = routers(fleet, each={"a": {"concurrency": 2}}, max_wait=0.0)
    simulation = Simulation(fleet)
    runs = [start(simulation, made[number % 2], "hi") for number in range(4)]
    simulation.finish()
    assert outcomes(runs) == {"ok": 2, "RoutingError": 2}


def test_a_router_without_exact_limits_does_not_ask_the_store(register_dear: None) -> None:
    asked: list[Any] = []

    class Counting(MemoryState):
        @override
        def admit(self, request: AdmitRequest) -> Any:
            asked.append(request)
            return super().admit(request)

    fleet = Fleet(a=["fine"] * 9)
    router = fleet.router(name="x", state=Counting())
    assert simulate(Simulation(fleet), router, "hi").text == "fine"
    assert not asked


def test_copies_share_the_state_and_other_accounts_have_their_own_windows() -> None:
    fleet = Fleet(a=["fine"] * 9)
    router = fleet.router(name="x", state=MemoryState(), each={"a": {"rpm": 2}}, max_wait=0.0)
    simulation = Simulation(fleet)
    assert router.with_config(max_wait=1.0)._settings.shared is router._settings.shared
    assert router.with_config(name="y")._settings.shared is not router._settings.shared
    for key in ("one", "two", "one", "two"):
        simulate(simulation, router.for_call({"api_key": key}), "hi")
    with pytest.raises(errors.RoutingError, match="rate limit"):
        simulate(simulation, router.for_call({"api_key": "one"}), "hi")
    simulate(simulation, router, "hi")


def test_many_threads_and_event_loops_use_one_store(server: ExternalServer, register_dear: None) -> None:
    fleet = Fleet(dear=[ONE] * 500)
    router = fleet.router(name=make_name(), state=redis_state(server), spend=SpendLimit(dollars=30.0))
    shared = router._settings.shared
    assert shared is not None
    accounts, claims = shared._make_accounts({}), (Claim("t", cost=10**9),)
    done: list[Any] = []

    def ask() -> AdmitRequest:
        return AdmitRequest(shared.namespace, shared.outbox.make_id(), claims, accounts, 0, "", 1.0)

    async def ask_both() -> None:
        done.append(shared.store.admit(ask()).position)
        done.append((await shared.store.aadmit(ask())).position)

    def work() -> None:
        for _ in range(10):
            asyncio.run(ask_both())

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(done) == [-1] * 50 + [0] * 30


def test_the_target_of_a_router_may_be_a_router_with_its_own_state(register_dear: None) -> None:
    fleet = Fleet(dear=[ONE] * 9)
    inner = fleet.router(name="inner", state=MemoryState(), spend=SpendLimit(dollars=1.0), max_wait=0.0)
    outer = Router([Target(inner, name="inner", rpm=5)], name="outer", state=MemoryState(), max_wait=0.0)
    simulation = Simulation(fleet)
    assert simulate(simulation, outer, "hi").text == "x"
    with pytest.raises(errors.AgentError):
        simulate(simulation, outer, "hi")


def test_a_state_in_memory_keeps_only_the_latest_events() -> None:
    state = MemoryState()

    def exchange(process: str, number: int, events: str, after: str) -> tuple[tuple[str, ...], str]:
        update = state.exchange(Batch("n", process, number, (), (), (), events, after, 0, 0.0))
        return update.events, update.last

    _, start = exchange("reader", 1, "", "")
    for number in range(1, 3001):
        exchange("writer", number, str(number), "")
    received, last = exchange("reader", 2, "", start)
    assert received == tuple(map(str, range(2001, 3001)))
    exchange("writer", 3001, "new", "")
    assert exchange("reader", 3, "", last)[0] == ("new",)
