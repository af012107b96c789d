"""Shared router state: limits, leases and health that the routers of several processes have in common.

Limits are exact: one operation of the store admits a request, and reserves under a lease. Health is eventually
consistent: changes travel with admissions and with the exchanges of a background thread.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from time import monotonic
from typing import TYPE_CHECKING, Any

from .. import errors
from ..engine.flow import Flow, Query
from ..models.prices import to_dollars, to_units
from ..providers.rate_limit_hints import RemainingLimit
from ..types.routing import SpendLimit
from .limits import SpendRefusal
from .outbox import SYNC_SECONDS, Outbox
from .request_profile import Exclusion
from .router_state import (
    Account,
    AdmitReply,
    AdmitRequest,
    Claim,
    HealthChange,
    HealthUpdate,
    Refusal,
    RouterState,
    Settlement,
)

if TYPE_CHECKING:
    from .state import RouterSettings, RoutingState
    from .strategies import RankedTarget
    from .targets import Admission, Target

_UNITS = 1000
"""Picodollars, the unit of spend ledgers, in a nanodollar, the unit of stores."""


def share_state(
    state: str | RouterState, name: str, limits: Sequence[SpendLimit], settings: RouterSettings
) -> SharedState:
    """Return the shared state of a router, from a URL or a store."""
    if isinstance(state, str):
        from .redis_state import RedisState  # lazy: an extra

        state = RedisState(state)
    shared = SharedState(state, name, limits, settings.targets)
    shared.outbox.memory = settings.memory
    return shared


class Lease:
    """Reservation of an attempt in the shared state. It is settled in the background."""

    __slots__ = ("accounts", "bucket", "id", "shared", "target", "tokens")

    def __init__(
        self, shared: SharedState, id: str, target: str, tokens: int, bucket: int, accounts: tuple[Account, ...]
    ) -> None:
        self.shared: SharedState = shared
        self.id: str = id
        self.target: str = target
        self.tokens: int = tokens
        self.bucket: int = bucket
        self.accounts: tuple[Account, ...] = accounts

    def settle(self, tokens: int | None, dollars: float) -> None:
        more = 0 if tokens is None else tokens - self.tokens
        cost = _to_nanodollars(dollars) if self.accounts else 0
        self.shared.outbox.settle(Settlement(self.id, self.target, self.bucket, more, cost, self.accounts))


class SharedState:
    """The part of a router that uses a store: claims, failover, and what other processes report."""

    def __init__(self, store: RouterState, name: str, limits: Sequence[SpendLimit], targets: Sequence[Target]) -> None:
        self.store: RouterState = store
        self.limits: tuple[SpendLimit, ...] = tuple(limits)
        kinds = [(limit.per, limit.window) for limit in self.limits]
        self.namespace: str = _hash(repr((name, kinds)))
        self.has_rates: bool = any(any(target.limit.model_dump().values()) for target in targets)
        self.is_exact: bool = bool(self.limits) or self.has_rates
        """Whether every admission asks the store."""
        self._targets: dict[str, Target] = {}
        for target in targets:
            self._targets.setdefault(target.shared_name, target)
        self._version = 0
        self._generations: dict[str, int] = {}
        self._resets: dict[str, int] = {}
        self.outbox: Outbox = Outbox(self)

    # Admission

    def has_claim(self, target: Target, now: float) -> bool:
        """Whether an attempt needs the store: to count it, or because it is a half-open probe."""
        return self.is_exact or (target.health.breaker.opened_at is not None and target.health.breaker.is_due(now))

    def replaces_ledger(self) -> bool:
        """Whether the store checks the spend limits."""
        return bool(self.limits) and (self.outbox.is_up or self.store.policy == "fail_closed")

    def admit(
        self, state: RoutingState, ranked: Sequence[RankedTarget], now: float, *, panic: bool = False
    ) -> Flow[tuple[Admission | None, int, list[tuple[Target, Exclusion]]]]:
        """Admit the first target that fits all limits. Returns it with its index, or the exclusions."""
        outbox = self.outbox
        exclusions: list[tuple[Target, Exclusion]] = []
        for _ in range(2):  # a second time if the health of a target turns out to be out of date
            if not outbox.is_up or not any(self.has_claim(one.target, now) for one in ranked):
                return self._admit_locally(state, ranked, now, panic=panic)
            open_targets = [one for one in ranked if panic or one.target.health.breaker.admits(now)]
            if not open_targets:
                break
            request = self._make_request(state, open_targets, now, panic=panic)
            reply: AdmitReply | None = None
            try:
                reply = yield from Query(outbox.admit, outbox.aadmit, (request,))
            finally:
                if reply is None:  # the store may have admitted it all the same
                    outbox.settle(Settlement(request.lease))
            if reply is None:
                return self._admit_locally(state, ranked, now, panic=panic)
            self._apply_balances(state, request, reply, now)
            if reply.health is not None:
                self.apply_health(reply.health, now)
            if reply.position >= 0:
                one, claim = open_targets[reply.position], request.claims[reply.position]
                lease = Lease(self, request.lease, claim.target, claim.tokens, reply.bucket, request.accounts)
                outbox.leases[request.lease] = monotonic()
                admission = state.admit(
                    one.target,
                    now,
                    reason=one.reason,
                    panic=panic,
                    lease=lease,
                    is_admitted=True,
                    may_probe=claim.generation >= 0,
                )
                if admission is not None:
                    return admission, ranked.index(one), []
                lease.settle(0, 0.0)
            exclusions = [
                (one.target, self._exclude(one.target, refusal, state))
                for one, refusal in zip(open_targets, reply.refusals, strict=False)
            ]
            if all(refusal.reason != "health" for refusal in reply.refusals):
                break
        return None, 0, exclusions

    def _admit_locally(
        self, state: RoutingState, ranked: Sequence[RankedTarget], now: float, *, panic: bool
    ) -> tuple[Admission | None, int, list[tuple[Target, Exclusion]]]:
        if self.limits and self.store.policy == "fail_closed":
            raise errors.BudgetExceededError(
                "The shared state cannot be reached, so the spend limits cannot be checked.",
                retryable=True,
                retry_after=SYNC_SECONDS,
            )
        accounts = self._make_accounts(state.request.metadata)
        for index, one in enumerate(ranked):
            lease = Lease(self, self.outbox.make_id(), one.target.shared_name, 0, -1, accounts) if accounts else None
            admission = state.admit(one.target, now, reason=one.reason, panic=panic, lease=lease)
            if admission is not None:
                return admission, index, []
        return None, 0, []

    def _make_request(
        self, state: RoutingState, ranked: Sequence[RankedTarget], now: float, *, panic: bool
    ) -> AdmitRequest:
        claims = []
        for one in ranked:
            target = one.target
            limit, breaker = target.limit, target.health.breaker
            probes = not panic and breaker.opened_at is not None and breaker.is_due(now)
            cost = state.profile.estimate_cost(target) if self.limits else None
            claims.append(
                Claim(
                    target.shared_name,
                    state.count_tokens(target),
                    0 if cost is None else _to_nanodollars(cost.maximum),
                    limit.rpm or 0,
                    limit.tpm or 0,
                    limit.concurrency or 0,
                    self._generations.get(target.shared_name, 0) if probes else -1,
                )
            )
        epoch = self.outbox.epoch if self.store.policy == "fail_closed" else ""
        accounts = self._make_accounts(state.request.metadata)
        return AdmitRequest(self.namespace, self.outbox.make_id(), tuple(claims), accounts, self._version, epoch, now)

    def _make_accounts(self, metadata: Mapping[str, Any]) -> tuple[Account, ...]:
        return tuple(
            self._make_account(index, limit, None if limit.per is None else metadata.get(limit.per))
            for index, limit in enumerate(self.limits)
        )

    def _make_account(self, index: int, limit: SpendLimit, value: Any) -> Account:
        key = str(index) if limit.per is None else f"{index}:{_hash(repr(value), self.namespace)}"
        # Rounded down, as costs are rounded up.
        return Account(key, to_units(limit.dollars) // _UNITS, round((limit.window or 0) * 1000))

    def _exclude(self, target: Target, refusal: Refusal, state: RoutingState) -> Exclusion:
        seconds = None if refusal.wait < 0 else refusal.wait
        if refusal.reason in ("spent", "held"):
            limit = self.limits[refusal.account]
            value = None if limit.per is None else state.request.metadata.get(limit.per)
            reserved = to_dollars(refusal.held * _UNITS)
            spent = limit.dollars - to_dollars(refusal.left * _UNITS) - reserved
            return Exclusion(str(SpendRefusal(limit, value, spent, reserved, seconds)), seconds, money=True)
        if refusal.reason == "lost":
            return Exclusion("the shared state lost its data; restore the amounts spent", money=True)
        if refusal.reason == "probe":
            return Exclusion("circuit breaker open", seconds, health=True)
        if refusal.reason == "health":
            return Exclusion("failed in another process", 0.0)
        return Exclusion("rate limit reached", seconds)

    def _apply_balances(self, state: RoutingState, request: AdmitRequest, reply: AdmitReply, now: float) -> None:
        """Keep the last view of the accounts, for the time in which the store cannot be reached."""
        ledger = state.settings.ledger
        for index, (limit, (spent, held, age)) in enumerate(zip(self.limits, reply.balances, strict=False)):
            value = None if limit.per is None else state.request.metadata.get(limit.per)
            ledger.set_spend(index, value, (spent + held) * _UNITS, now - age)
        self.outbox.check_epoch(reply.epoch)

    # Spend

    def get_spend(self, index: int, value: Any) -> float | None:
        """Dollars spent under a limit; None if the store cannot be reached."""
        account = self._make_account(index, self.limits[index], value)
        request = AdmitRequest(self.namespace, "", (), (account,), self._version, "", monotonic())
        self.outbox.flush()
        reply = self.outbox.admit(request) if self.outbox.is_up else None
        return None if reply is None else to_dollars(reply.balances[0][0] * _UNITS)

    def restore_spend(self, dollars: float, index: int, value: Any) -> None:
        """Set the amount spent under a limit, after the store lost its data."""
        self.outbox.restore(self._make_account(index, self.limits[index], value), _to_nanodollars(dollars))

    # Health

    def record_success(
        self, target: Target, was_open: float | None, now: float, timing: tuple[float, float | None, int]
    ) -> None:
        """Report a success and its response time to the other processes."""
        self.outbox.add_event(["t", target.shared_name, *timing])
        if target.health.breaker.opened_at != was_open:
            self._report_breaker(target, now)

    def record_failure(self, target: Target, was_open: float | None, now: float, *, blamed: bool | None) -> None:
        """Report a failure, and the cooldowns of the target and of its API key."""
        if blamed is not None:
            self.outbox.add_event(["o", target.shared_name, int(blamed)])
        if target.health.breaker.opened_at != was_open:
            self._report_breaker(target, now)
        health = target.health
        for kind, name, cooldown in (
            ("cool", target.shared_name, health.cooldown),
            ("key", f"{target.shared_name}#{target.hash_key()}", health.key_cooldown),
        ):
            if (seconds := cooldown.seconds_left(now)) > 0:
                self.outbox.change(HealthChange(kind, name, seconds, cooldown.reason))

    def record_placement(self, key: bytes, target: Target, tokens: int | None) -> None:
        """Report the target of a conversation; None for its tokens if it failed."""
        self.outbox.add_event(["p", key.hex(), target.name, tokens])

    def record_vendor_limits(self, target: Target, now: float) -> None:
        """Report remaining limits in the headers of a vendor: once a second, or at once if nothing is left."""
        limiter = target.limiter
        self.outbox.add_limits(target.shared_name, lambda: limiter.list_vendor_limits(now), urgent=limiter.is_used_up())

    def _report_breaker(self, target: Target, now: float) -> None:
        opened_at = target.health.breaker.opened_at
        kind = "close" if opened_at is None else "open"
        self.outbox.change(
            HealthChange(kind, target.shared_name, 0.0 if opened_at is None else max(0.0, now - opened_at))
        )

    def reset_health(self, target: Target) -> None:
        """Reset the health of a target in all processes."""
        self.outbox.change(HealthChange("reset", target.shared_name))

    def apply_health(self, update: HealthUpdate, now: float) -> None:
        """Apply breakers and cooldowns of other processes. Times are in seconds before or after now."""
        self._version = update.version
        pending = self.outbox.list_changed_targets()
        for field, text in sorted(update.fields.items(), reverse=True):  # resets (x) before breakers (b) and cooldowns
            kind, _, name = field.partition(":")
            target = self._targets.get(name.rpartition("#")[0] if kind == "k" else name)
            if target is None:
                continue
            health = target.health
            number, _, reason = text.partition(":")
            if kind == "x":
                if int(number) > self._resets.get(name, 0):
                    health.reset()
                self._resets[name] = int(number)
            elif kind == "b":
                generation = int(number)
                if generation > self._generations.get(name, 0):
                    self._generations[name] = generation
                    if name not in pending:
                        health.breaker.apply(None if reason == "" else now - float(reason), now)
            elif kind == "c":
                health.cooldown.extend(now + float(number), reason)
            elif name == f"{target.shared_name}#{target.hash_key()}":
                health.key_cooldown.extend(now + float(number), reason)

    def apply_events(self, texts: Sequence[str], memory: Any, now: float) -> None:
        """Apply outcomes, response times, conversations and vendors' limits of other processes."""
        for text in texts:
            for kind, *values in json.loads(text):
                if kind == "p":
                    key, name, tokens = values
                    if tokens is None:
                        memory.record_failure(bytes.fromhex(key), name)
                    else:
                        memory.record_response(bytes.fromhex(key), name, tokens, now)
                elif (target := self._targets.get(values[0])) is None:
                    continue
                elif kind == "l":
                    requests, tokens = (
                        None if limit is None else RemainingLimit.until_time(limit[0], now + limit[1])
                        for limit in values[1:]
                    )
                    target.limiter.lower_vendor_limits(requests, tokens, now)
                else:
                    target.health.breaker.count_other(kind == "o" and bool(values[1]), now)
                    if kind == "t":
                        target.timings.observe(now, *values[1:])


def _hash(text: str, key: str = "") -> str:
    return blake2b(text.encode(errors="replace"), key=key.encode(), digest_size=8).hexdigest()


def _to_nanodollars(dollars: float) -> int:
    """Convert dollars to nanodollars, rounded up."""
    return -(-to_units(dollars) // _UNITS)
