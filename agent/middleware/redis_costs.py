"""Usage and cost of calls in all processes, added up in Redis."""

from __future__ import annotations

import atexit
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeAlias
from weakref import WeakSet

from pydantic_core import to_json
from typing_extensions import override

from .. import errors
from ..engine.flow import Flow, Query
from ..models.prices import to_dollars, to_units
from ..stores.base import StoreError
from ..stores.redis_client import REFUSALS, FailFastClient, RedisClient, check_namespace, convert_redis_error
from ..stores.redis_connections import FAILURES, RedisScript
from ..types import AgentRequest, AgentResponse, Attempt, Usage, freeze
from .base import CallInfo
from .limits import CostTracker, Spending
from .redis_throttle import Policy, check_policy

_RETENTION = 90 * 86400.0
_REPORT_TIMEOUT = 5.0
"""Seconds that a report waits for Redis."""
_RETRIES = 20
"""Additions that failed before and are repeated with the next one."""
_PER_UNIT = 10**6
"""Details of usage can be fractions, and are added up in millionths."""
_COUNTS = (
    "prompt_tokens",
    "completion_tokens",
    "cache_read_tokens",
    "cache_write_tokens",
    "reasoning_tokens",
    "total_tokens",
)
Sums: TypeAlias = dict[str, dict[str, int]]
"""Amounts to add, by account and field."""

# Accounts are "t" (total), "m:<target>" and "v:<value as JSON>". All amounts are integers.
#   x          sorted set: account -> time of its latest addition in ms
#   a:<account>  hash: amounts         q:<process>  sorted set: numbers of additions that can be repeated
_ADD = RedisScript("""
local prefix = string.sub(KEYS[1], 1, -2)
local input = cjson.decode(ARGV[1])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local marks = prefix .. 'q:' .. input.process
for _, addition in ipairs(input.additions) do
  local number, sums = addition[1], addition[2]
  if redis.call('ZADD', marks, 'NX', number, number) == 1 then
    for account, amounts in pairs(sums) do
      for field, amount in pairs(amounts) do
        redis.call('HINCRBY', prefix .. 'a:' .. account, field, amount)
      end
      redis.call('PEXPIRE', prefix .. 'a:' .. account, input.retention)
      redis.call('ZADD', KEYS[1], string.format('%.0f', now), account)
    end
  end
end
redis.call('ZREMRANGEBYSCORE', marks, '-inf', '(' .. input.oldest)
redis.call('PEXPIRE', marks, 86400000)
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now - input.retention))
redis.call('PEXPIRE', KEYS[1], input.retention)
return 1
""")

# account
_READ_COST = RedisScript("""
return redis.call('HGET', string.sub(KEYS[1], 1, -2) .. 'a:' .. ARGV[1], 'cost') or '0'
""")

# kind of accounts
_READ = RedisScript("""
local found = {}
for _, account in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
  if string.sub(account, 1, 1) == ARGV[1] then
    local amounts = redis.call('HGETALL', string.sub(KEYS[1], 1, -2) .. 'a:' .. account)
    if #amounts > 0 then found[#found + 1] = {account, amounts} end
  end
end
return found
""")

_RESET = RedisScript("""
for _, account in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
  redis.call('DEL', string.sub(KEYS[1], 1, -2) .. 'a:' .. account)
end
return redis.call('DEL', KEYS[1])
""")


class RedisCostTracker(CostTracker):
    """A `CostTracker` whose sums and budget count the calls of all processes that use the same name.

    A call is counted before its caller receives the response. While Redis cannot be used, sums are kept in the process
    and added with the next call that reaches it, or at exit.

    Reports (`total`, `by_target`, `by_value`, `get_spend`, `reset`) wait up to five seconds for Redis and raise
    `StoreError`; on an event loop, call them in a thread.

    Args:
        url: `redis://`, `rediss://` or `unix://`, as in redis-py.
        name: Name of the sums; each name has its own.
        budget: US dollars that may be spent; with `per`, for each value of that key.
        per: Key of the requests' metadata to add up by. Its values are stored in clear.
        policy: Behaviour of a budget while Redis cannot be used: `fail_open` compares it with the last known sum and
            the calls of this process, `fail_closed` raises `BudgetExceededError`.
        retention: Seconds after the latest call until a sum is deleted.
        timeout: Seconds that a call waits for Redis, connecting included.
    """

    def __init__(
        self,
        url: str,
        *,
        name: str = "costs",
        budget: float | None = None,
        per: str | None = None,
        policy: Policy = "fail_open",
        retention: float = _RETENTION,
        timeout: float = 0.05,
    ) -> None:
        super().__init__(budget=budget, per=per)
        check_namespace(name)
        check_policy(policy)
        if not retention > 0:
            raise errors.ConfigurationError(f"retention is {retention}.", field="retention", fix="Use seconds above 0.")
        self._url, self._name, self._policy = url, name, policy
        self._retention, self._timeout = retention, timeout
        self._key = f"agent:{{costs:{name}}}:x"
        self._client = FailFastClient(url, timeout, [_ADD, _READ_COST])
        self._reports = RedisClient(url, max(timeout, _REPORT_TIMEOUT), [_ADD, _READ])
        self._start_process()
        _trackers.add(self)

    def _start_process(self) -> None:
        self._process = os.getpid()
        self._process_id = os.urandom(6).hex()
        self._number = 0
        self._flying: dict[int, Sums] = {}
        """Additions that are being sent, by number."""
        self._failed: dict[int, Sums] = {}
        """Additions that Redis may or may not have made. They are repeated under their number, which counts once."""
        self._unsent: Sums = {}
        """Sum of the additions that were not made."""
        self._known: dict[str, int] = {}
        """Cost of accounts when it was last read."""

    @override
    def __reduce__(self) -> Any:
        rebuild = partial(
            RedisCostTracker, name=self._name, budget=self._budget, per=self._per, policy=self._policy,
            retention=self._retention, timeout=self._timeout,
        )  # fmt: skip
        return rebuild, (self._url,)

    @override
    @errors.printable
    def __repr__(self) -> str:
        return f"RedisCostTracker(name={self._name!r})"  # the URL may hold a password

    # Reports

    @property
    @override
    def total(self) -> Spending:
        """Spending of all calls in all processes."""
        return next(iter(self._read("t").values()), Spending())

    @override
    def by_target(self) -> dict[str, Spending]:
        return {account[2:]: spending for account, spending in self._read("m").items()}

    @override
    def by_value(self) -> dict[Any, Spending]:  # Any: values of metadata
        return {_decode_value(account[2:]): spending for account, spending in self._read("v").items()}

    @override
    def get_spend(self, value: Any = None) -> float:  # Any: a value of metadata
        self.flush()
        return to_dollars(int(self._report(_READ_COST, self._account(value))))

    @override
    def reset(self) -> None:
        """Start at zero again in all processes."""
        with self._lock:
            self._failed, self._unsent, self._known = {}, {}, {}
        self._report(_RESET)

    def flush(self) -> None:
        """Send what could not be sent before. Raises `StoreError` if Redis cannot be used."""
        while self._unsent or self._failed:
            additions, document = self._begin({})
            try:
                self._reports.run(_ADD, self._key, document)
            except FAILURES as error:
                self._end(additions, error)
                raise convert_redis_error(error) from error
            self._end(additions, None)

    def close(self) -> None:
        """Close idle connections. The next use opens new ones."""
        self._client.close()
        self._reports.close()

    def _read(self, kind: str) -> dict[str, Spending]:
        self.flush()
        return {
            account.decode(): _decode_spending(dict(zip(amounts[::2], amounts[1::2], strict=True)))
            for account, amounts in self._report(_READ, kind)
        }

    def _report(self, script: RedisScript, *arguments: str) -> Any:
        try:
            return self._reports.run(script, self._key, *arguments)
        except FAILURES as error:
            raise convert_redis_error(error) from error

    # Calls

    @override
    def before(self, request: AgentRequest, call: CallInfo) -> Flow[None] | None:
        if self._budget is None or call.counting:
            return None
        return self._check_shared_budget(self._metadata_value(call.request.metadata), self._budget)

    @override
    def after(self, response: AgentResponse, call: CallInfo) -> Flow[None] | None:
        return self._add_shared(call)

    @override
    def on_error(self, error: Exception, call: CallInfo) -> Flow[None] | None:
        return self._add_shared(call)

    def _check_shared_budget(self, value: Any, budget: float) -> Flow[None]:
        account = self._account(value)
        try:
            units = yield from Query(self._client.run, self._client.arun, (_READ_COST, self._key, account))
        except FAILURES as error:
            if self._policy == "fail_closed":
                raise errors.BudgetExceededError(
                    "The budget cannot be checked, because Redis cannot be used. Nothing was sent.", retryable=True
                ) from error
        else:
            self._known[account] = int(units)
        with self._lock:
            waiting = [self._unsent, *self._failed.values()]
        spent = self._known.get(account, 0) + sum(sums.get(account, {}).get("cost", 0) for sums in waiting)
        self._check_budget(value, budget, to_dollars(spent))

    def _add_shared(self, call: CallInfo) -> Flow[None]:
        attempts = call.attempts
        if not attempts:
            return
        additions, document = self._begin(self._sum_attempts(attempts, call.request.metadata))
        try:
            yield from Query(self._client.run, self._client.arun, (_ADD, self._key, document))
        except BaseException as error:  # also when the flow is closed
            self._end(additions, error)
            if not isinstance(error, FAILURES):
                raise
        else:
            self._end(additions, None)

    def _begin(self, sums: Sums) -> tuple[dict[int, Sums], bytes]:
        """Number an addition. Return it with those that failed before, and the document to send."""
        with self._lock:
            if self._process != os.getpid():
                self._start_process()  # the parent sends its own sums
            self._number += 1
            additions = {self._number: _merge(self._unsent, sums)}
            self._unsent = {}
            for number in list(self._failed)[:_RETRIES]:
                additions[number] = self._failed.pop(number)
            self._flying.update(additions)
            oldest = min((*self._flying, *self._failed))
        document = {
            "process": self._process_id,
            "oldest": oldest,
            "retention": round(self._retention * 1000),
            "additions": [
                [
                    number,
                    {
                        account: {field: str(amount) for field, amount in amounts.items()}
                        for account, amounts in sums.items()
                    },
                ]
                for number, sums in additions.items()
            ],
        }
        return additions, to_json(document)

    def _end(self, additions: Mapping[int, Sums], error: BaseException | None) -> None:
        """Note the outcome of additions, of which the first is the new one."""
        newest = next(iter(additions))
        with self._lock:
            for number, sums in additions.items():
                self._flying.pop(number, None)
                if error is None:
                    continue
                if number == newest and isinstance(error, REFUSALS):
                    self._unsent = _merge(self._unsent, sums)  # certainly not made
                else:
                    self._failed[number] = sums

    def _sum_attempts(self, attempts: Sequence[Attempt], metadata: Mapping[str, Any]) -> Sums:
        sums: Sums = {"t": _encode_attempts(attempts)}
        if self._per is not None:
            sums[self._account(self._metadata_value(metadata))] = sums["t"]
        for attempt in attempts:
            sums = _merge(sums, {f"m:{attempt.target}": _encode_attempts([attempt])})
        return sums

    def _account(self, value: Any) -> str:
        return "t" if self._per is None else f"v:{_encode_value(value)}"


def _encode_attempts(attempts: Sequence[Attempt]) -> dict[str, int]:
    amounts = {"calls": 1}

    def add(field: str, amount: int) -> None:
        if amount:
            amounts[field] = amounts.get(field, 0) + amount

    for attempt in attempts:
        usage = attempt.usage
        if attempt.cost is not None:
            add("cost", to_units(attempt.cost))
        elif usage is not None:
            add("unpriced", 1)
        if usage is not None:
            for name in _COUNTS:
                add(name, getattr(usage, name))
            for name, count in usage.details.items():
                add(f"details:{name}", round(count * _PER_UNIT))
            if usage.billed is not None:
                add("billed", to_units(usage.billed))
                add("billed_calls", 1)
            add("estimated", int(usage.estimated))
    return amounts


def _decode_spending(stored: Mapping[bytes, bytes]) -> Spending:
    amounts = {field.decode(): int(amount) for field, amount in stored.items()}
    details = {
        field.partition(":")[2]: amount // _PER_UNIT if amount % _PER_UNIT == 0 else amount / _PER_UNIT
        for field, amount in amounts.items()
        if field.startswith("details:")
    }
    usage = Usage(
        **{name: amounts.get(name, 0) for name in _COUNTS},
        details=details,
        billed=to_dollars(amounts.get("billed", 0)) if "billed_calls" in amounts else None,
        estimated=amounts.get("estimated", 0) > 0,
    )
    return Spending(amounts.get("calls", 0), usage, to_dollars(amounts.get("cost", 0)), amounts.get("unpriced", 0))


def _encode_value(value: Any) -> str:
    try:
        return json.dumps(value, sort_keys=True)
    except (TypeError, ValueError):
        return json.dumps(repr(value))


def _decode_value(text: str) -> Any:
    return freeze(json.loads(text))


def _merge(one: Sums, other: Sums) -> Sums:
    merged = {account: dict(amounts) for account, amounts in one.items()}
    for account, amounts in other.items():
        mine = merged.setdefault(account, {})
        for field, amount in amounts.items():
            mine[field] = mine.get(field, 0) + amount
    return merged


_trackers: WeakSet[RedisCostTracker] = WeakSet()


@atexit.register
def _flush_all() -> None:
    for tracker in list(_trackers):
        with suppress(StoreError):
            tracker.flush()
