"""Circuit breaker, budgets and limits compared with simple models, in any order of events."""

from __future__ import annotations

import math
import os
import random
import threading
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, precondition, rule

from agent.engine.locks import ForkSafe
from agent.providers.rate_limit_hints import RemainingLimit
from agent.routing.health import Breaker, Cooldown, Permit, Timings
from agent.routing.limits import WINDOW, RateLimiter, RequestBudget, Reservation, SpendLedger, SpendRefusal
from agent.types import BreakerConfig, RateLimit, SpendLimit

MOVES = settings(max_examples=60, stateful_step_count=60, deadline=None)
seconds = st.integers(min_value=0, max_value=40)


class BreakerMachine(RuleBasedStateMachine):
    """The model: a list of outcomes since it closed, when it opened, and who probes."""

    permits: Bundle[Permit] = Bundle("permits")

    def __init__(self) -> None:
        super().__init__()
        self.config = BreakerConfig(window=6, min_samples=3, failure_threshold=0.6, cooldown=10.0)
        self.breaker = Breaker(self.config)
        self.now = 0.0
        self.outcomes: list[bool] = []
        self.opened_at: float | None = None
        self.probe: Permit | None = None

    @rule(passed=seconds)
    def wait(self, passed: int) -> None:
        self.now += passed

    @rule(target=permits, panic=st.booleans())
    def ask(self, panic: bool) -> Any:
        permit = self.breaker.take_permit(self.now, panic=panic)
        if self.opened_at is None:
            assert permit is not None
            assert permit.kind in ("normal", "trial")
        elif self.now >= self.opened_at + 10.0 and self.probe is None:
            assert permit is not None
            assert permit.kind == "probe"
            self.probe = permit
        elif panic:
            assert permit is not None
            assert permit.kind == "panic"
        else:
            assert permit is None
        return permit if permit is not None else multiple()

    @rule(permit=consumes(permits), failed=st.sampled_from([True, False, None]))
    def settle(self, permit: Permit, failed: bool | None) -> None:
        self.breaker.settle(permit, self.now, failed=failed)
        if permit is self.probe:
            self.probe = None
        if failed is None:
            return
        if self.opened_at is not None:
            if permit.kind != "normal":
                self.opened_at = self.now if failed else None
            return
        self.outcomes = [*self.outcomes, failed][-6:]
        if failed and len(self.outcomes) >= 3 and sum(self.outcomes) >= 0.6 * len(self.outcomes):
            self.opened_at, self.outcomes, self.probe = self.now, [], None

    @invariant()
    def agrees(self) -> None:
        state = self.breaker.state(self.now)
        if self.opened_at is None:
            assert state in ("closed", "degraded")
        else:
            assert state == ("open" if self.now < self.opened_at + 10.0 else "half-open")


class LedgerMachine(RuleBasedStateMachine):
    """Model: lists of settled and held amounts, in an adversarial order."""

    reservations: Bundle[Reservation] = Bundle("reservations")
    strict = False

    def __init__(self) -> None:
        super().__init__()
        self.limits = {"": 10.0, "a": 4.0, "b": 4.0}
        """Limits of all requests, and of each user."""
        self.ledger = SpendLedger(
            [SpendLimit(dollars=10.0, strict=self.strict), SpendLimit(dollars=4.0, per="user", strict=self.strict)]
        )
        self.spent = dict.fromkeys(self.limits, 0.0)
        self.held: dict[int, tuple[str, int, int]] = {}
        self.confirmed = dict.fromkeys(self.limits, 0)
        """Responses since the last surprise."""
        self.most_confirmed = dict.fromkeys(self.limits, 1)
        self.largest_excess = dict.fromkeys(self.limits, 0)

    def _fits(self, owner: str, expected: int, most: int) -> bool:
        held = [(low, high) for user, low, high in self.held.values() if owner in ("", user)]
        everything = [*held, (expected, most)]
        excesses = [high - low for low, high in everything]
        needed = sum(high for _, high in everything) - max(excesses)
        if not self.strict and len(held) < self.confirmed[owner]:
            needed = sum(low for low, _ in everything)
        return needed <= self.limits[owner] - self.spent[owner]

    @rule(
        target=reservations,
        user=st.sampled_from(["a", "b"]),
        expected=st.integers(min_value=0, max_value=2),
        more=st.integers(min_value=0, max_value=6),
    )
    def reserve(self, user: str, expected: int, more: int) -> Any:
        reserved = self.ledger.reserve(expected, expected + more, {"user": user}, 0.0)
        fits = all(self._fits(owner, expected, expected + more) for owner in (user, ""))
        assert isinstance(reserved, Reservation) is fits
        if isinstance(reserved, SpendRefusal):
            left = min(self.limits[owner] - self.spent[owner] for owner in (user, ""))
            assert (reserved.seconds == math.inf) is (expected <= left)
            return multiple()
        self.held[id(reserved)] = (user, expected, expected + more)
        for owner in (user, ""):
            self.largest_excess[owner] = max(self.largest_excess[owner], more)
        return reserved

    @rule(reservation=consumes(reservations), part=st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0, 1.0]))
    def settle(self, reservation: Reservation, part: float) -> None:
        user, expected, most = self.held.pop(id(reservation))
        cost = most * part
        self.ledger.settle(reservation, cost, is_response=True)
        self.ledger.settle(reservation, cost, is_response=True)  # a second time is no news
        for owner in (user, ""):
            self.spent[owner] += cost
            self.confirmed[owner] = 0 if cost > expected else self.confirmed[owner] + 1
            self.most_confirmed[owner] = max(self.most_confirmed[owner], self.confirmed[owner])
            if not self.spent[owner] and not any(owner in ("", one[0]) for one in self.held.values()):
                self.confirmed[owner] = 0  # the account is forgotten

    @invariant()
    def costs_are_added_up_exactly(self) -> None:
        for user in ("a", "b"):
            assert self.ledger.get_spend(1, user) == self.spent[user]

    @invariant()
    def a_limit_is_exceeded_by_few_excesses_at_most(self) -> None:
        """By one if strict, and otherwise by as many as responses in a row have confirmed estimates."""
        for owner, limit in self.limits.items():
            excesses = 1 if self.strict else self.most_confirmed[owner]
            assert self.spent[owner] - limit <= excesses * self.largest_excess[owner]


class StrictLedgerMachine(LedgerMachine):
    strict = True


class RatesMachine(RuleBasedStateMachine):
    """The model: the times and sizes of all requests ever sent."""

    entries: Bundle[Any] = Bundle("entries")

    def __init__(self) -> None:
        super().__init__()
        self.rates = RateLimiter(RateLimit(rpm=5, tpm=100, concurrency=3))
        self.now = 0.0
        self.sent: list[Any] = []
        self.under_way = 0

    def _recent(self) -> list[Any]:
        return [entry for entry in self.sent if entry.at > self.now - WINDOW]

    @rule(passed=st.integers(min_value=0, max_value=50))
    def wait(self, passed: int) -> None:
        self.now += passed

    @rule(target=entries, tokens=st.integers(min_value=0, max_value=150))
    def send(self, tokens: int) -> Any:
        wait = self.rates.wait_seconds(tokens, self.now)
        entry = self.rates.acquire(tokens, self.now)
        recent = self._recent()
        used = sum(one.tokens for one in recent)
        allowed = self.under_way < 3 and len(recent) < 5 and used + min(tokens, 100) <= 100
        assert (entry is not None) is allowed
        assert (wait == 0.0) is allowed
        if entry is None:
            return multiple()
        self.sent.append(entry)
        self.under_way += 1
        return entry

    @rule(entry=consumes(entries), tokens=st.one_of(st.none(), st.integers(min_value=0, max_value=150)))
    def record_response(self, entry: Any, tokens: int | None) -> None:
        self.rates.release(entry, tokens)
        self.under_way -= 1

    @invariant()
    def counts(self) -> None:
        assert self.rates.in_flight == self.under_way
        for first in self.sent:
            assert sum(first.at <= one.at < first.at + WINDOW for one in self.sent) <= 5

    @precondition(lambda self: self.under_way < 3)
    @rule(tokens=st.integers(min_value=0, max_value=100))
    def patience_pays(self, tokens: int) -> None:
        """After the wait it speaks of, and not long before, a request may be sent."""
        wait = self.rates.wait_seconds(tokens, self.now)
        assert 0.0 <= wait <= WINDOW
        self.now += wait
        assert self.rates.wait_seconds(tokens, self.now) == 0.0


class BudgetMachine(RuleBasedStateMachine):
    """Model: deposits, withdrawals and the cap."""

    def __init__(self) -> None:
        super().__init__()
        self.budget = RequestBudget(share=0.25, per_second=1.0, most=4)
        self.left = 4.0
        self.now = 0.0
        self.counted: float | None = None

    @rule()
    def plain(self) -> None:
        self.budget.deposit()
        self.left = min(4.0, self.left + 0.25)

    @rule(quarters=st.integers(min_value=0, max_value=12))
    def wait(self, quarters: int) -> None:
        self.now += quarters / 4

    @rule()
    def extra(self) -> None:
        if self.counted is not None:
            self.left = min(4.0, self.left + self.now - self.counted)
        self.counted = self.now
        assert self.budget.withdraw(self.now) is (self.left >= 1.0)
        if self.left >= 1.0:
            self.left -= 1.0


for machine in (BreakerMachine, LedgerMachine, StrictLedgerMachine, RatesMachine, BudgetMachine):
    machine.TestCase.settings = MOVES
TestBreaker = BreakerMachine.TestCase
TestLedger = LedgerMachine.TestCase
TestStrictLedger = StrictLedgerMachine.TestCase
TestRates = RatesMachine.TestCase
TestBudget = BudgetMachine.TestCase


def test_a_breaker_opens_at_the_tenth_failure_of_ten_and_not_before() -> None:
    breaker = Breaker(BreakerConfig())
    for number in range(10):
        assert breaker.opened_at is None, number
        permit = breaker.take_permit(0.0)
        assert permit is not None
        breaker.settle(permit, 0.0, failed=True)
    assert breaker.state(0.0) == "open"
    assert breaker.seconds_until_probe(0.0) == 15.0


def test_of_a_thousand_callers_at_once_exactly_one_probes(rng: random.Random) -> None:
    breaker = Breaker(BreakerConfig(window=1, min_samples=1, cooldown=1.0))
    permit = breaker.take_permit(0.0)
    assert permit is not None
    breaker.settle(permit, 0.0, failed=True)
    taken: list[Permit | None] = []
    barrier = threading.Barrier(20)

    def callers() -> None:
        barrier.wait()
        for _ in range(50):
            taken.append(breaker.take_permit(2.0))

    threads = [threading.Thread(target=callers) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(taken) == 1000
    assert [permit.kind for permit in taken if permit is not None] == ["probe"]


def test_a_clock_that_jumps_a_day_does_not_reopen_or_lose_a_probe() -> None:
    breaker = Breaker(BreakerConfig(window=1, min_samples=1, cooldown=15.0))
    permit = breaker.take_permit(100_000.0)
    assert permit is not None
    breaker.settle(permit, 100_000.0, failed=True)
    assert breaker.take_permit(13_600.0) is None, "a day before"
    probe = breaker.take_permit(186_400.0)
    assert probe is not None
    assert probe.kind == "probe"
    assert breaker.take_permit(186_400.0) is None


def test_an_old_probe_does_not_end_a_new_one() -> None:
    """A probe that outlives its breaker's recovery and next fall must not make room for a second probe."""
    breaker = Breaker(BreakerConfig(window=1, min_samples=1, cooldown=1.0))
    breaker.settle(_take_permit(breaker, 0.0), 0.0, failed=True)
    old = _take_permit(breaker, 2.0)
    breaker.settle(_take_permit(breaker, 2.0, panic=True), 2.0, failed=False)
    breaker.settle(_take_permit(breaker, 2.0), 2.0, failed=True)
    new = _take_permit(breaker, 4.0)
    assert new.kind == "probe"
    breaker.settle(old, 4.0, failed=None)
    assert breaker.take_permit(4.0) is None, "the new probe is still under way"


def _take_permit(breaker: Breaker, now: float, *, panic: bool = False) -> Permit:
    permit = breaker.take_permit(now, panic=panic)
    assert permit is not None
    return permit


def test_parking_is_only_ever_extended() -> None:
    parking = Cooldown()
    parking.extend(10.0, "first")
    parking.extend(5.0, "shorter")
    assert parking.seconds_left(4.0) == 6.0
    assert parking.reason == "first"
    parking.extend(20.0, "longer")
    assert parking.seconds_left(4.0) == 16.0
    assert parking.reason == "longer"


def test_two_hundred_threads_on_a_budget_for_a_hundred_overspend_nothing() -> None:
    ledger = SpendLedger([SpendLimit(dollars=100.0)])
    reserved: list[Any] = []

    def spend() -> None:
        reserved.append(ledger.reserve(0.5, 1.0, {}, 0.0))

    threads = [threading.Thread(target=spend) for _ in range(200)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(isinstance(one, Reservation) for one in reserved) == 100


def test_a_spend_limit_is_whole_again_after_its_window() -> None:
    ledger = SpendLedger([SpendLimit(dollars=1.0, window=60.0)])
    first = ledger.reserve(1.0, 1.0, {}, 0.0)
    assert isinstance(first, Reservation)
    ledger.settle(first, 1.0)
    refusal = ledger.reserve(1.0, 1.0, {}, 59.0)
    assert isinstance(refusal, SpendRefusal)
    assert refusal.seconds == 1.0
    assert isinstance(ledger.reserve(1.0, 1.0, {}, 60.0), Reservation)


def _spend(ledger: SpendLedger, user: Any, dollars: float, now: float) -> None:
    reservation = ledger.reserve(dollars, 2 * dollars, {"user": user}, now)
    assert isinstance(reservation, Reservation)
    ledger.settle(reservation, dollars, is_response=True)


def test_values_whose_window_has_ended_are_forgotten() -> None:
    """Ten new users a second, and windows of a minute."""
    ledger = SpendLedger([SpendLimit(dollars=1.0, per="user", window=60.0)])
    in_flight = ledger.reserve(0.5, 1.0, {"user": "slow"}, 0.0)
    assert isinstance(in_flight, Reservation)
    for number in range(100_000):
        _spend(ledger, number, 0.25, number / 10)
    assert ledger.count_accounts() <= 2 * 600
    ledger.settle(in_flight, 0.75)
    assert ledger.get_spend(0, "slow") == 0.75


def test_values_for_which_nothing_was_spent_are_forgotten_and_all_others_are_not() -> None:
    ledger = SpendLedger([SpendLimit(dollars=1.0, per="user"), SpendLimit(dollars=1e9)])
    for number in range(100_000):
        metadata = {"user": number}
        assert ledger.find_refusal(0.5, 1.0, metadata, 0.0) is None
        assert isinstance(ledger.reserve(2.0, 2.0, metadata, 0.0), SpendRefusal)
        reservation = ledger.reserve(0.5, 1.0, metadata, 0.0)
        assert isinstance(reservation, Reservation)
        ledger.settle(reservation, 0.0)
    assert ledger.count_accounts() == 0
    for number in range(1000):
        _spend(ledger, number, 0.25, 0.0)
    for number in range(100_000, 110_000):
        ledger.find_refusal(0.5, 1.0, {"user": number}, 1e9)
    assert ledger.count_accounts() == 1001
    assert all(ledger.get_spend(0, number) == 0.25 for number in range(1000))


def test_a_window_that_was_renewed_is_not_forgotten() -> None:
    ledger = SpendLedger([SpendLimit(dollars=1.0, per="user", window=60.0)])
    for at in (0.0, 70.0):
        _spend(ledger, "regular", 0.25, at)
    for number in range(100):
        _spend(ledger, number, 0.25, 100.0)
    assert ledger.get_spend(0, "regular") == 0.25


def test_times_are_read_while_another_thread_adds_some() -> None:
    timings, failures = Timings(), []

    def read() -> None:
        try:
            for _ in range(20_000):
                timings.estimate_tokens(1)
        except RuntimeError as error:
            failures.append(error)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    while any(reader.is_alive() for reader in readers):
        timings.observe(0.0, 1.0, None, 1)
    assert not failures


def test_what_the_vendor_says_is_left_counts() -> None:
    rates = RateLimiter(RateLimit())
    rates.update_from_vendor(RemainingLimit(1, 0.0, {"reset": "20"}, "reset"), None)
    assert rates.wait_seconds(0, 0.0) == 0.0
    assert rates.acquire(0, 0.0) is not None
    assert rates.wait_seconds(0, 0.0) == 20.0
    assert rates.wait_seconds(0, 20.0) == 0.0
    rates.update_from_vendor(None, RemainingLimit(500, 30.0, {"reset": "10"}, "reset"))
    assert rates.wait_seconds(400, 30.0) == 0.0
    assert rates.wait_seconds(600, 30.0) == 10.0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_lock_that_another_thread_held_while_forking_is_free_in_the_child() -> None:
    import warnings

    state = ForkSafe()
    held, release = threading.Event(), threading.Event()

    def hold() -> None:
        with state._lock:
            held.set()
            release.wait(5)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        with state._lock:
            os._exit(7)
    _, status = os.waitpid(child, 0)
    release.set()
    thread.join()
    assert os.waitstatus_to_exitcode(status) == 7
