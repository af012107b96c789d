"""Stores of shared router state: their protocol, and the store in memory.

The store in memory serves the routers of one process. It is the reference for other stores, and for simulations.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol, TypeAlias

from ..types.routing import RateLimit
from .limits import RateLimiter, WindowEntry

Policy: TypeAlias = Literal["fail_open", "fail_closed"]
OnLost: TypeAlias = Literal["release", "charge"]

LEASE_SECONDS = 60.0
"""Seconds after which the reservations of a process that died are released."""


class Account(NamedTuple):
    """Spend limit for one value of its key, in nanodollars. The window is in milliseconds; 0 for none."""

    key: str
    limit: int
    window: int


class Claim(NamedTuple):
    """Capacity that one target needs for a request. A limit of 0 means no limit."""

    target: str
    tokens: int = 0
    cost: int = 0
    rpm: int = 0
    tpm: int = 0
    concurrency: int = 0
    generation: int = -1
    """Generation of the open circuit breaker that the request would probe; -1 for none."""


class AdmitRequest(NamedTuple):
    """Ranked claims of a request. The first that fits every limit is admitted, under a lease."""

    namespace: str
    lease: str
    claims: tuple[Claim, ...]
    accounts: tuple[Account, ...]
    version: int
    """Version of the health that the process has seen."""
    epoch: str
    """Epoch that the process has seen. The store refuses to spend if its data were lost since; "" accepts any."""
    now: float
    """Time on the caller's clock, for stores inside one process."""


class Refusal(NamedTuple):
    """Why a claim was refused."""

    reason: Literal["rpm", "tpm", "concurrency", "spent", "held", "probe", "health", "lost"]
    wait: float
    """Seconds until it may be admitted; infinity if unknown, negative if never."""
    account: int = -1
    left: int = 0
    held: int = 0


class HealthUpdate(NamedTuple):
    """Health fields of all targets, with their version."""

    version: int
    fields: Mapping[str, str]


class AdmitReply(NamedTuple):
    """Position of the admitted claim, or -1. `balances` are spent, held and age in seconds."""

    position: int
    bucket: int
    refusals: tuple[Refusal, ...]
    balances: tuple[tuple[int, int, float], ...]
    health: HealthUpdate | None
    epoch: str


class Settlement(NamedTuple):
    """Outcome of a lease: tokens beyond the reserved ones, and the cost."""

    lease: str
    target: str = ""
    bucket: int = -1
    tokens: int = 0
    cost: int = 0
    accounts: tuple[Account, ...] = ()


class HealthChange(NamedTuple):
    """Change of health: `open` (since `seconds`), `close`, `reset`, or a cooldown, `cool` or `key`."""

    kind: str
    target: str
    seconds: float = 0.0
    reason: str = ""


class Batch(NamedTuple):
    """A numbered exchange. A store applies each number of a process once."""

    namespace: str
    process: str
    number: int
    settlements: tuple[Settlement, ...]
    renewals: tuple[str, ...]
    changes: tuple[HealthChange, ...]
    events: str
    """Outcomes, response times and conversations, for other processes; "" for none."""
    after: str
    """Read the events of other processes after this one."""
    version: int
    now: float
    restored: tuple[Account, int] | None = None
    """An account, and the amount that was spent according to the caller."""


class Update(NamedTuple):
    """Reply to an exchange. Times in health fields are relative to `now`, in seconds."""

    health: HealthUpdate | None
    events: tuple[str, ...]
    last: str
    epoch: str


class RouterState(Protocol):
    """A store of shared state. Any exception means that it cannot be used at present."""

    policy: Policy
    is_local: bool
    """Whether it never blocks, so that settlements need no background thread."""

    def admit(self, request: AdmitRequest) -> AdmitReply: ...

    async def aadmit(self, request: AdmitRequest) -> AdmitReply: ...

    def exchange(self, batch: Batch) -> Update: ...


@dataclass(slots=True)
class _Balance:
    spent: int = 0
    held: int = 0
    since: float = 0.0


@dataclass(slots=True)
class _Holding:
    """Reservation under a lease."""

    claim: Claim
    accounts: tuple[Account, ...]
    entry: WindowEntry
    end: float


@dataclass(slots=True)
class _Space:
    """State of the routers of one name."""

    limiters: dict[str, RateLimiter] = field(default_factory=dict)
    balances: dict[str, _Balance] = field(default_factory=dict)
    holdings: dict[str, _Holding] = field(default_factory=dict)
    charged: dict[str, int] = field(default_factory=dict)
    probes: dict[str, str] = field(default_factory=dict)
    numbers: dict[str, int] = field(default_factory=dict)
    generations: dict[str, tuple[int, float | None]] = field(default_factory=dict)
    cooldowns: dict[str, tuple[float, str]] = field(default_factory=dict)
    resets: dict[str, int] = field(default_factory=dict)
    version: int = 0
    events: deque[tuple[int, str, str]] = field(default_factory=lambda: deque(maxlen=1000))
    """The latest events, with number and process."""
    event_count: int = 0


class MemoryState:
    """Shared state of the routers of one process.

    ```python
    from agent import Router
    from agent.routing.router_state import MemoryState

    state = MemoryState()
    routers = [Router(["scripted:m"], name="support", state=state) for _ in range(2)]
    ```

    Args:
        on_lost: Handling of reservations whose holder died: `release`, or `charge` their amount.
        lease_seconds: Seconds after which a holder that reports nothing counts as dead.
    """

    policy: Policy = "fail_open"
    is_local = True

    def __init__(self, *, on_lost: OnLost = "release", lease_seconds: float = LEASE_SECONDS) -> None:
        self._charges = on_lost == "charge"
        self._seconds = lease_seconds
        self._spaces: dict[str, _Space] = {}
        self._lock = threading.Lock()

    def admit(self, request: AdmitRequest) -> AdmitReply:
        """Admit the first claim that fits all limits."""
        with self._lock:
            space, now = self._space(request.namespace, request.now), request.now
            is_current = request.version == space.version
            health = None if is_current else _list_health(space, now)
            refusals: list[Refusal] = []
            index = -1
            for position, claim in enumerate(request.claims):
                refusal = _find_refusal(space, claim, request, is_current, now)
                if refusal is None:
                    self._hold(space, claim, request, now)
                    index = position
                    break
                refusals.append(refusal)
            accounts = [_read_balance(space, account, now) for account in request.accounts]
            balances = tuple((one.spent, one.held, now - one.since) for one in accounts)
            return AdmitReply(index, 0, tuple(refusals), balances, health, "memory")

    async def aadmit(self, request: AdmitRequest) -> AdmitReply:
        return self.admit(request)

    def exchange(self, batch: Batch) -> Update:
        """Settle leases, renew others, and pass on health."""
        with self._lock:
            space, now = self._space(batch.namespace, batch.now), batch.now
            if batch.number > space.numbers.get(batch.process, 0):
                space.numbers[batch.process] = batch.number
                for change in batch.changes:
                    _apply_change(space, change, now)
                    space.version += 1
                for settlement in batch.settlements:
                    _release(space, settlement.lease, settlement.tokens)
                    cost = settlement.cost - space.charged.pop(settlement.lease, 0)
                    for account in settlement.accounts:
                        _read_balance(space, account, now).spent += cost
                if batch.events:
                    space.event_count += 1
                    space.events.append((space.event_count, batch.process, batch.events))
                if batch.restored is not None:
                    account, spent = batch.restored
                    balance = _read_balance(space, account, now)
                    balance.spent = max(balance.spent, spent)
            for lease in batch.renewals:
                if lease in space.holdings:
                    space.holdings[lease].end = now + self._seconds
            after = int(batch.after or space.event_count)
            events = [text for number, process, text in space.events if number > after and process != batch.process]
            health = None if batch.version == space.version else _list_health(space, now)
            return Update(health, tuple(events), str(space.event_count), "memory")

    def _space(self, namespace: str, now: float) -> _Space:
        space = self._spaces.setdefault(namespace, _Space())
        for lease, holding in list(space.holdings.items()):
            if now >= holding.end:
                _release(space, lease, None)
                if self._charges and holding.accounts:
                    space.charged[lease] = holding.claim.cost
                    for account in holding.accounts:
                        _read_balance(space, account, now).spent += holding.claim.cost
        return space

    def _hold(self, space: _Space, claim: Claim, request: AdmitRequest, now: float) -> None:
        entry = space.limiters[claim.target].acquire(claim.tokens, now)
        assert entry is not None, "it was found to fit"
        for account in request.accounts:
            _read_balance(space, account, now).held += claim.cost
        if claim.generation >= 0:
            space.probes[claim.target] = request.lease
        space.holdings[request.lease] = _Holding(claim, request.accounts, entry, now + self._seconds)


def _find_refusal(space: _Space, claim: Claim, request: AdmitRequest, is_current: bool, now: float) -> Refusal | None:
    generation, opened_at = space.generations.get(claim.target, (0, None))
    cooldown, _ = space.cooldowns.get(f"c:{claim.target}", (-math.inf, ""))
    if not is_current and (cooldown > now or (opened_at is not None and claim.generation < 0)):
        return Refusal("health", 0.0)
    if claim.generation >= 0:
        if generation > claim.generation:
            return Refusal("health", 0.0)
        if claim.target in space.probes:
            return Refusal("probe", max(0.0, space.holdings[space.probes[claim.target]].end - now))
    limit = RateLimit(rpm=claim.rpm or None, tpm=claim.tpm or None, concurrency=claim.concurrency or None)
    wait = space.limiters.setdefault(claim.target, RateLimiter(limit)).wait_seconds(claim.tokens, now)
    if wait > 0:
        return Refusal("concurrency" if math.isinf(wait) else "rpm", wait)
    for index, account in enumerate(request.accounts):
        balance = _read_balance(space, account, now)
        if balance.spent + balance.held + claim.cost > account.limit:
            left = account.limit - balance.spent - balance.held
            if balance.spent + claim.cost <= account.limit:
                return Refusal("held", math.inf, index, left, balance.held)
            wait = balance.since + account.window / 1000 - now if account.window else -1.0
            return Refusal("spent", wait, index, left, balance.held)
    return None


def _read_balance(space: _Space, account: Account, now: float) -> _Balance:
    balance = space.balances.setdefault(account.key, _Balance(since=now))
    if account.window and now >= balance.since + account.window / 1000:
        balance.spent, balance.since = 0, now
    return balance


def _release(space: _Space, lease: str, tokens: int | None) -> None:
    """Release what a lease holds, with the tokens beyond the reserved ones."""
    holding = space.holdings.pop(lease, None)
    if holding is None:
        return
    claim, entry = holding.claim, holding.entry
    space.limiters[claim.target].release(entry, None if tokens is None else entry.tokens + tokens)
    for account in holding.accounts:
        space.balances[account.key].held -= claim.cost
    if space.probes.get(claim.target) == lease:
        del space.probes[claim.target]


def _apply_change(space: _Space, change: HealthChange, now: float) -> None:
    target = change.target
    generation, _ = space.generations.get(target, (0, None))
    match change.kind:
        case "open":
            space.generations[target] = (generation + 1, now - change.seconds)
        case "close":
            space.generations[target] = (generation + 1, None)
        case "reset":
            space.generations[target] = (generation + 1, None)
            space.resets[target] = space.resets.get(target, 0) + 1
            for field_name in list(space.cooldowns):
                if field_name == f"c:{target}" or field_name.startswith(f"k:{target}#"):
                    del space.cooldowns[field_name]
        case kind:
            field_name = f"{kind[0]}:{target}"
            end = now + change.seconds
            if end > space.cooldowns.get(field_name, (-math.inf, ""))[0]:
                space.cooldowns[field_name] = (end, change.reason)


def _list_health(space: _Space, now: float) -> HealthUpdate:
    fields = {f"x:{target}": f"{number}:" for target, number in space.resets.items()}
    for target, (generation, opened_at) in space.generations.items():
        fields[f"b:{target}"] = f"{generation}:" if opened_at is None else f"{generation}:{now - opened_at}"
    for name, (end, reason) in space.cooldowns.items():
        fields[name] = f"{max(0.0, end - now)}:{reason}"
    return HealthUpdate(space.version, fields)
