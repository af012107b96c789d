"""Rate limits shared between processes through Redis."""

from __future__ import annotations

import logging
from collections.abc import Generator
from functools import partial
from threading import Thread
from typing import Any, Literal, TypeAlias

from typing_extensions import override

from .. import errors
from ..engine.flow import Flow, Now, Query, Sleep
from ..models.token_estimates import estimate_prompt
from ..stores.redis_client import FailFastClient, check_namespace
from ..stores.redis_connections import FAILURES, RedisScript
from ..types import AgentRequest
from .base import CallInfo
from .limits import WINDOW, Throttle

Policy: TypeAlias = Literal["fail_open", "fail_closed"]

# Send times in µs and tokens of the requests of the last minute and of waiting calls:
#   z  sorted set: slot -> send time        h  hash: slot -> tokens, and their sum under ''        n  number of slots
_COMMON = """
local prefix = string.sub(KEYS[1], 1, -2)
local slots, tokens = KEYS[1], prefix .. 'h'

local function whole(number) return string.format('%.0f', number) end

local function remove(slot)
  redis.call('ZREM', slots, slot)
  redis.call('HINCRBY', tokens, '', whole(0 - (redis.call('HGET', tokens, slot) or 0)))
  redis.call('HDEL', tokens, slot)
end

local function add(slot, time, count)
  redis.call('ZADD', slots, whole(time), slot)
  redis.call('HSET', tokens, slot, whole(count))
  redis.call('HINCRBY', tokens, '', whole(count))
end

local function expire(now, window)
  local last = redis.call('ZREVRANGE', slots, 0, 0, 'WITHSCORES')[2] or now
  for _, key in ipairs({slots, tokens, prefix .. 'n'}) do
    redis.call('PEXPIRE', key, whole((math.max(last - now, 0) + 2 * window) / 1000))
  end
end
"""

# tokens, rpm or 0, tpm or 0, longest wait, window and time (or '') in µs. Returns slot or '', and the wait.
_RESERVE = RedisScript(
    _COMMON
    + """
local count, rpm, tpm = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local longest, window, now = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
end
for _, slot in ipairs(redis.call('ZRANGEBYSCORE', slots, '-inf', whole(now - window))) do remove(slot) end
local at = math.max(now, tonumber(redis.call('ZREVRANGE', slots, 0, 0, 'WITHSCORES')[2] or now))
if rpm > 0 then
  local first = redis.call('ZREVRANGE', slots, rpm - 1, rpm - 1, 'WITHSCORES')[2]
  if first then at = math.max(at, first + window) end
end
if tpm > 0 then
  local excess, index = count - tpm + (redis.call('HGET', tokens, '') or 0), 0
  while excess > 0 do
    local slot = redis.call('ZRANGE', slots, index, index, 'WITHSCORES')
    if not slot[1] then break end
    excess = excess - redis.call('HGET', tokens, slot[1])
    at = math.max(at, slot[2] + window)
    index = index + 1
  end
end
if at > now and at - now >= longest then return {'', whole(at - now)} end
local slot = redis.call('INCR', prefix .. 'n')
add(slot, at, count)
expire(now, window)
return {whole(slot), whole(at - now)}
"""
)

# slot, attempts, tokens or '' if unknown
_SETTLE = RedisScript(
    _COMMON
    + """
local slot, attempts = ARGV[1], tonumber(ARGV[2])
local time = redis.call('ZSCORE', slots, slot)
if not time then return 0 end
if attempts == 0 then
  remove(slot)
elseif ARGV[3] ~= '' then
  local count = redis.call('HGET', tokens, slot)
  redis.call('HSET', tokens, slot, ARGV[3])
  redis.call('HINCRBY', tokens, '', whole(ARGV[3] - count))
end
for number = 2, attempts do add(slot .. ':' .. number, time, 0) end
return 1
"""
)


class RedisThrottle(Throttle):
    """A `Throttle` whose limits hold for all processes that use the same name.

    Calls are sent in the order in which they reach Redis. A process that dies leaves its waiting calls in the queue
    until their time has passed, which is why `max_wait` has a limit by default.

    Args:
        url: `redis://`, `rediss://` or `unix://`, as in redis-py.
        name: Name of the limits; each name has its own. Its throttles must have the same `rpm` and `tpm`.
        rpm: Requests in any 60 seconds.
        tpm: Tokens of prompts and responses in any 60 seconds, as in `Throttle`.
        max_wait: Maximum number of seconds to delay a call.
        policy: Behaviour while Redis cannot be used: `fail_open` keeps the limits in each process, `fail_closed` raises
            `RateLimitError`.
        timeout: Seconds that a call waits for Redis, connecting included.
    """

    def __init__(
        self,
        url: str,
        *,
        name: str = "throttle",
        rpm: int | None = None,
        tpm: int | None = None,
        max_wait: float = 2 * WINDOW,
        policy: Policy = "fail_open",
        timeout: float = 0.05,
    ) -> None:
        super().__init__(rpm=rpm, tpm=tpm, max_wait=max_wait)
        check_namespace(name)
        check_policy(policy)
        self._url, self._name, self._policy, self._timeout = url, name, policy, timeout
        self._key = f"agent:{{throttle:{name}}}:z"
        self._client = FailFastClient(url, timeout, [_RESERVE, _SETTLE])
        self._uses_callers_clock = False
        """Whether requests state the time, for tests in virtual time."""

    @override
    def __reduce__(self) -> Any:
        rebuild = partial(
            RedisThrottle, name=self._name, rpm=self._rpm, tpm=self._tpm, max_wait=self._max_wait, policy=self._policy,
            timeout=self._timeout,
        )  # fmt: skip
        return rebuild, (self._url,)

    @override
    @errors.printable
    def __repr__(self) -> str:
        return f"RedisThrottle(name={self._name!r})"  # the URL may hold a password

    @override
    def before(self, request: AgentRequest, call: CallInfo) -> Flow[None]:
        if call.counting:
            return
        tokens = 0 if self._tpm is None else estimate_prompt(request).tokens + (request.max_tokens or 0)
        now = yield from Now()
        longest = min(self._max_wait, call.deadline - now)
        try:
            slot, wait = yield from self._reserve_shared(tokens, longest, now)
        except FAILURES as error:
            if self._policy == "fail_closed":
                raise errors.RateLimitError(
                    "The rate limit cannot be checked, because Redis cannot be used. Nothing was sent.",
                    retry_after=1.0,
                ) from error
            yield from super().before(request, call)
            return
        if not slot:
            raise self._rate_limit_error(wait)
        local = self._record(now + wait, tokens, now)
        if wait > 0:
            try:
                yield from Sleep(wait)
            except BaseException:  # also when the flow is closed: it cannot wait for Redis then
                self._release(local)
                Thread(target=self._release_shared, args=(slot,), daemon=True, name="agent-throttle").start()
                raise
        call.state.update(slot=local, shared=slot)

    @override
    def after(self, response: Any, call: CallInfo) -> Flow[None]:  # Any: of any kind of call
        yield from self._settle_shared(call)

    @override
    def on_error(self, error: Exception, call: CallInfo) -> Flow[None]:
        yield from self._settle_shared(call)

    def close(self) -> None:
        """Close idle connections. The next use opens new ones."""
        self._client.close()

    def _reserve_shared(self, tokens: int, longest: float, now: float) -> Generator[Any, Any, tuple[str, float]]:
        """Reserve the next free send time. Return its slot, '' if it is too late, and the seconds to it."""
        # Replies take up to `timeout`, by which requests are sent later than at their time.
        window = WINDOW if self._uses_callers_clock else WINDOW + self._timeout
        slot, wait = yield from Query(
            self._client.run,
            self._client.arun,
            (
                _RESERVE, self._key, tokens, self._rpm or 0, self._tpm or 0, min(longest, 1e9) * 1e6, window * 1e6,
                int(now * 1e6) if self._uses_callers_clock else "",
            ),
        )  # fmt: skip
        return slot.decode(), int(wait) / 1e6

    def _settle_shared(self, call: CallInfo) -> Flow[None]:
        self._settle(call)
        slot = call.state.get("shared")
        if slot is None:
            return  # it was sent while Redis could not be used
        attempts = call.attempts
        tokens = [attempt.usage.total_tokens for attempt in attempts if attempt.usage is not None]
        used = sum(tokens) if tokens and self._tpm is not None else ""
        if used == "" and len(attempts) == 1:
            return  # exactly what was reserved
        try:
            yield from Query(self._client.run, self._client.arun, (_SETTLE, self._key, slot, len(attempts), used))
        except FAILURES:
            logging.getLogger("agent").debug("a reservation of a throttle stays until it expires")

    def _release_shared(self, slot: str) -> None:
        try:
            self._client.run(_SETTLE, self._key, slot, 0, "")
        except FAILURES:
            logging.getLogger("agent").debug("a reservation of a throttle stays until it expires")


def check_policy(policy: str) -> None:
    if policy not in ("fail_open", "fail_closed"):
        raise errors.ConfigurationError(f"policy is {policy!r}.", field="policy", fix="Use fail_open or fail_closed.")
