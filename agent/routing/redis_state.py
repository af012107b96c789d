"""Shared router state in Redis or Valkey: one script admits a request, another settles batches."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

from pydantic_core import from_json, to_json
from typing_extensions import override

from ..errors import ConfigurationError
from ..stores.redis_client import RedisClient, RedisScript
from .router_state import LEASE_SECONDS, AdmitReply, AdmitRequest, Batch, HealthUpdate, OnLost, Policy, Refusal, Update

RETENTION = 90 * 86400.0
"""Seconds for which the amount spent under a limit without a window is kept after the latest request."""

# Keys of one router have one hash tag, so that they are on one node of a cluster. All keys expire.
#   s:<account>  hash: spent, held, since            l  sorted set: lease -> end
#   w:<target>   hash: totals r, t and buckets,       g  hash: lease -> what it holds
#                c requests in flight                p:<target>  lease of the half-open probe
#   q:<process>  number of its latest exchange        h  hash: health, with version v
#   x:<lease>    amount charged for a lost lease      e  epoch             o  stream of outcomes
# Rate windows are 240 buckets of 250 ms, and the current one.
_COMMON = """
local prefix = string.sub(KEYS[1], 1, -2)
local input = cjson.decode(ARGV[1])
local now = input.now
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end
local HOUR, SIZE, COUNT = 3600000, 250, 240
local bucket = math.floor(now / SIZE)

local function whole(number) return string.format('%.0f', number) end

local function expire_account(account)
  local lifetime = account.window > 0 and account.window + HOUR or input.retention
  redis.call('PEXPIRE', prefix .. 's:' .. account.key, whole(lifetime))
end

local function read_account(account)
  local key = prefix .. 's:' .. account.key
  local values = redis.call('HMGET', key, 'spent', 'held', 'since')
  local spent, held, since = tonumber(values[1]) or 0, tonumber(values[2]) or 0, tonumber(values[3])
  if not since or (account.window > 0 and now >= since + account.window) then
    spent, since = 0, now
    redis.call('HSET', key, 'spent', 0, 'since', whole(now))
    expire_account(account)
  end
  return spent, held, since
end

local function release(lease)
  local packed = redis.call('HGET', prefix .. 'g', lease)
  if not packed then return nil end
  redis.call('HDEL', prefix .. 'g', lease)
  redis.call('ZREM', prefix .. 'l', lease)
  local holding = cjson.decode(packed)
  if holding.c and redis.call('HINCRBY', prefix .. 'w:' .. holding.t, 'c', -1) < 0 then
    redis.call('HSET', prefix .. 'w:' .. holding.t, 'c', 0)
  end
  for _, account in ipairs(holding.a) do
    if holding.m ~= '0' and redis.call('HINCRBY', prefix .. 's:' .. account, 'held', '-' .. holding.m) < 0 then
      redis.call('HSET', prefix .. 's:' .. account, 'held', 0)
    end
  end
  if holding.p and redis.call('GET', prefix .. 'p:' .. holding.t) == lease then
    redis.call('DEL', prefix .. 'p:' .. holding.t)
  end
  return holding
end

for _, lease in ipairs(redis.call('ZRANGEBYSCORE', prefix .. 'l', '-inf', whole(now), 'LIMIT', 0, 50)) do
  local holding = release(lease)
  if holding and input.charge and holding.m ~= '0' then
    for _, account in ipairs(holding.a) do
      redis.call('HINCRBY', prefix .. 's:' .. account, 'spent', holding.m)
    end
    redis.call('SET', prefix .. 'x:' .. lease, holding.m, 'PX', HOUR)
  end
end

local epoch = redis.call('GET', prefix .. 'e')
if not epoch then
  epoch = ''
  if input.epoch == '' then
    epoch = input.new_epoch
    redis.call('SET', prefix .. 'e', epoch, 'PX', whole(input.retention))
  end
end

local version = tonumber(redis.call('HGET', prefix .. 'h', 'v')) or 0
local function list_health()
  if version == input.version then return {} end
  return redis.call('HGETALL', prefix .. 'h')
end
"""

_ADMIT = (
    _COMMON
    + """
local is_lost = input.epoch ~= '' and epoch ~= input.epoch and string.sub(epoch, 1, 8) ~= 'restored'

local function read_window(key)
  local head = redis.call('HMGET', key, 'o', 'n', 'r', 't', 'c')
  local oldest, newest = tonumber(head[1]) or bucket, tonumber(head[2]) or bucket
  local requests, tokens, flying = tonumber(head[3]) or 0, tonumber(head[4]) or 0, tonumber(head[5]) or 0
  local first = bucket - COUNT
  if oldest < first then
    local names = {}
    for number = oldest, math.min(newest, first - 1) do
      names[#names + 1] = 'r' .. whole(number)
      names[#names + 1] = 't' .. whole(number)
    end
    local values = redis.call('HMGET', key, unpack(names))
    for i = 1, #values, 2 do
      requests = requests - (tonumber(values[i]) or 0)
      tokens = tokens - (tonumber(values[i + 1]) or 0)
    end
    redis.call('HDEL', key, unpack(names))
    oldest = newest < first and bucket or first
    newest = math.max(newest, oldest)
    redis.call('HSET', key, 'o', whole(oldest), 'n', whole(newest), 'r', whole(requests), 't', whole(tokens))
  end
  return oldest, newest, requests, tokens, flying
end

local function find_wait(key, oldest, newest, field, excess)
  local names = {}
  for number = oldest, newest do names[#names + 1] = field .. whole(number) end
  local values = redis.call('HMGET', key, unpack(names))
  for i = 1, #values do
    excess = excess - (tonumber(values[i]) or 0)
    if excess <= 0 then return (oldest + i + COUNT) * SIZE - now end
  end
  return COUNT * SIZE
end

local function refuse(claim)
  local target = claim.target
  if version ~= input.version or claim.generation >= 0 then
    local health = redis.call('HMGET', prefix .. 'h', 'c:' .. target, 'b:' .. target)
    local generation, opened = string.match(health[2] or '', '^(%d+):(%d*)$')
    local cooling = tonumber(string.match(health[1] or '', '^(%d+):')) or 0
    if version ~= input.version and (cooling > now or ((opened or '') ~= '' and claim.generation < 0)) then
      return {'health', 0, -1, '0', '0'}
    end
    if claim.generation >= 0 then
      if (tonumber(generation) or 0) > claim.generation then return {'health', 0, -1, '0', '0'} end
      local left = redis.call('PTTL', prefix .. 'p:' .. target)
      if left >= 0 then return {'probe', left, -1, '0', '0'} end
    end
  end
  if claim.rpm > 0 or claim.tpm > 0 or claim.concurrency > 0 then
    local key = prefix .. 'w:' .. target
    local oldest, newest, requests, tokens, flying = read_window(key)
    if claim.concurrency > 0 and flying >= claim.concurrency then return {'concurrency', -2, -1, '0', '0'} end
    local wait, reason = 0, nil
    if claim.rpm > 0 and requests >= claim.rpm then
      wait, reason = find_wait(key, oldest, newest, 'r', requests + 1 - claim.rpm), 'rpm'
    end
    if claim.tpm > 0 then
      local excess = tokens + math.min(claim.tokens, claim.tpm) - claim.tpm
      if excess > 0 then
        wait, reason = math.max(wait, find_wait(key, oldest, newest, 't', excess)), reason or 'tpm'
      end
    end
    if reason then return {reason, wait, -1, '0', '0'} end
  end
  for index, account in ipairs(input.accounts) do
    if is_lost then return {'lost', -1, index - 1, '0', '0'} end
    local spent, held, since = read_account(account)
    local left = account.limit - spent - held
    if claim.cost > left then
      if spent + claim.cost <= account.limit then return {'held', -2, index - 1, whole(left), whole(held)} end
      local wait = account.window > 0 and since + account.window - now or -1
      return {'spent', wait, index - 1, whole(left), whole(held)}
    end
  end
  return nil
end

local function hold(claim)
  local target = claim.target
  if claim.rpm > 0 or claim.tpm > 0 or claim.concurrency > 0 then
    local key = prefix .. 'w:' .. target
    if claim.rpm > 0 or claim.tpm > 0 then
      if not redis.call('HGET', key, 'o') then redis.call('HSET', key, 'o', whole(bucket)) end
      redis.call('HINCRBY', key, 'r', 1)
      redis.call('HINCRBY', key, 'r' .. whole(bucket), 1)
      if claim.tokens > 0 then
        redis.call('HINCRBY', key, 't', claim.tokens)
        redis.call('HINCRBY', key, 't' .. whole(bucket), claim.tokens)
      end
      redis.call('HSET', key, 'n', whole(bucket))
    end
    if claim.concurrency > 0 then redis.call('HINCRBY', key, 'c', 1) end
    redis.call('PEXPIRE', key, HOUR)
  end
  local names = {}
  for index, account in ipairs(input.accounts) do
    redis.call('HINCRBY', prefix .. 's:' .. account.key, 'held', whole(claim.cost))
    expire_account(account)
    names[index] = account.key
  end
  local probes = claim.generation >= 0
  if probes then redis.call('SET', prefix .. 'p:' .. target, input.lease, 'PX', input.seconds) end
  if #names > 0 or claim.concurrency > 0 or probes then
    local holding = {t = target, a = names, m = whole(claim.cost), c = claim.concurrency > 0, p = probes}
    redis.call('HSET', prefix .. 'g', input.lease, cjson.encode(holding))
    redis.call('ZADD', prefix .. 'l', whole(now + input.seconds), input.lease)
    redis.call('PEXPIRE', prefix .. 'g', HOUR)
    redis.call('PEXPIRE', prefix .. 'l', HOUR)
  end
end

local admitted, refusals = -1, {}
for index, claim in ipairs(input.claims) do
  local refusal = refuse(claim)
  if not refusal then
    hold(claim)
    admitted = index - 1
    break
  end
  refusals[index] = refusal
end
local balances = {}
for index, account in ipairs(input.accounts) do
  local spent, held, since = read_account(account)
  balances[index] = {whole(spent), whole(held), now - since}
end
return cjson.encode({admitted, bucket, whole(now), refusals, balances, version, list_health(), epoch})
"""
)

_EXCHANGE = (
    _COMMON
    + """
local function set_health(field, value)
  redis.call('HSET', prefix .. 'h', field, value)
end

local function change_health(change)
  local target, kind = change.target, change.kind
  if kind == 'open' or kind == 'close' or kind == 'reset' then
    local current = redis.call('HGET', prefix .. 'h', 'b:' .. target) or '0:'
    local generation = tonumber(string.match(current, '^(%d+):')) + 1
    local opened = kind == 'open' and whole(now - change.ms) or ''
    set_health('b:' .. target, whole(generation) .. ':' .. opened)
  end
  if kind == 'reset' then
    set_health('x:' .. target, whole((tonumber(redis.call('HGET', prefix .. 'h', 'x:' .. target)) or 0) + 1))
    redis.call('HDEL', prefix .. 'h', 'c:' .. target)
    for _, field in ipairs(redis.call('HKEYS', prefix .. 'h')) do
      if string.sub(field, 1, #target + 3) == 'k:' .. target .. '#' then redis.call('HDEL', prefix .. 'h', field) end
    end
  end
  if kind == 'cool' or kind == 'key' then
    local field = string.sub(kind, 1, 1) .. ':' .. target
    local current = redis.call('HGET', prefix .. 'h', field) or ''
    local ending = change.ms < 0 and 9e15 or now + change.ms
    if ending > (tonumber(string.match(current, '^(%d+):')) or 0) then
      set_health(field, whole(ending) .. ':' .. change.reason)
    end
  end
end

local function settle(settlement)
  release(settlement.lease)
  local cost = settlement.cost
  if #settlement.accounts > 0 then
    local charged = redis.call('GET', prefix .. 'x:' .. settlement.lease)
    if charged then
      cost = cost - tonumber(charged)
      redis.call('DEL', prefix .. 'x:' .. settlement.lease)
    end
  end
  for _, account in ipairs(settlement.accounts) do
    read_account(account)
    if cost ~= 0 then redis.call('HINCRBY', prefix .. 's:' .. account.key, 'spent', whole(cost)) end
    expire_account(account)
  end
  if settlement.tokens ~= 0 and settlement.bucket >= 0 then
    local key, field = prefix .. 'w:' .. settlement.target, 't' .. whole(settlement.bucket)
    local oldest = tonumber(redis.call('HGET', key, 'o'))
    if oldest and settlement.bucket >= oldest then
      redis.call('HINCRBY', key, field, settlement.tokens)
      redis.call('HINCRBY', key, 't', settlement.tokens)
    end
  end
end

local process = prefix .. 'q:' .. input.process
if input.number > (tonumber(redis.call('GET', process)) or 0) then
  redis.call('SET', process, input.number, 'PX', HOUR)
  for _, change in ipairs(input.changes) do
    change_health(change)
    version = redis.call('HINCRBY', prefix .. 'h', 'v', 1)
    redis.call('PEXPIRE', prefix .. 'h', 24 * HOUR)
  end
  for _, settlement in ipairs(input.settlements) do settle(settlement) end
  if input.events ~= '' then
    redis.call('XADD', prefix .. 'o', 'MAXLEN', '~', 1000, '*', 'p', input.process, 'e', input.events)
    redis.call('PEXPIRE', prefix .. 'o', HOUR)
  end
  if input.restored then
    local account = input.restored
    local spent = read_account(account)
    redis.call('HSET', prefix .. 's:' .. account.key, 'spent', whole(math.max(spent, account.spent)))
    expire_account(account)
    epoch = 'restored' .. input.new_epoch
    redis.call('SET', prefix .. 'e', epoch)
  end
end
for _, lease in ipairs(input.renewals) do
  if redis.call('ZADD', prefix .. 'l', 'XX', 'CH', whole(now + input.seconds), lease) == 1 then
    local holding = cjson.decode(redis.call('HGET', prefix .. 'g', lease))
    redis.call('PEXPIRE', prefix .. 'w:' .. holding.t, HOUR)
    if holding.p then redis.call('PEXPIRE', prefix .. 'p:' .. holding.t, input.seconds) end
    for _, key in ipairs({'g', 'l'}) do redis.call('PEXPIRE', prefix .. key, HOUR) end
  end
end
if epoch ~= '' then redis.call('PEXPIRE', prefix .. 'e', whole(input.retention)) end
local events, last = {}, input.after
if last == '' then
  local newest = redis.call('XREVRANGE', prefix .. 'o', '+', '-', 'COUNT', 1)[1]
  last = newest and newest[1] or '0-0'
else
  for _, entry in ipairs(redis.call('XRANGE', prefix .. 'o', '(' .. last, '+', 'COUNT', 200)) do
    last = entry[1]
    if entry[2][2] ~= input.process then events[#events + 1] = entry[2][4] end
  end
end
return cjson.encode({whole(now), version, list_health(), events, last, epoch})
"""
)


class RedisState:
    """Router state in Redis (7 or later) or Valkey, shared by the routers of one name in all processes.

    Args:
        url: `redis://`, `rediss://` or `unix://`, as in redis-py.
        policy: Behaviour while the server cannot be reached: `fail_open` uses local limits, `fail_closed` refuses
            calls of routers with spend limits.
        on_lost: Handling of reservations whose holder died: `release`, or `charge` their amount.
        lease_seconds: Seconds after which a holder that reports nothing counts as dead.
        retention: Seconds for which the amount spent under a limit without a window is kept.
        timeout: Seconds after which the server counts as unreachable, connecting included.
    """

    is_local = False

    def __init__(
        self,
        url: str,
        *,
        policy: Policy = "fail_open",
        on_lost: OnLost = "release",
        lease_seconds: float = LEASE_SECONDS,
        retention: float = RETENTION,
        timeout: float = 0.05,
    ) -> None:
        for field, value, choices in (
            ("policy", policy, ("fail_open", "fail_closed")),
            ("on_lost", on_lost, ("release", "charge")),
        ):
            if value not in choices:
                raise ConfigurationError(f"{field} is {value!r}.", field=field, fix=f"Use {' or '.join(choices)}.")
        self.policy: Policy = policy
        self._options: dict[str, Any] = {
            "policy": policy, "on_lost": on_lost, "lease_seconds": lease_seconds, "retention": retention,
            "timeout": timeout,
        }  # fmt: skip
        self._url = url
        self._charges = on_lost == "charge"
        self._seconds = round(lease_seconds * 1000)
        self._retention = round(retention * 1000)
        self._admit = RedisScript(_ADMIT)
        self._exchange = RedisScript(_EXCHANGE)
        self._client = RedisClient(url, timeout, [self._admit, self._exchange], field="state")
        self._client.connect()  # connecting can take longer than a call may wait
        self._uses_callers_clock = False
        """Whether requests state the time, for tests in virtual time."""

    def admit(self, request: AdmitRequest) -> AdmitReply:
        """Admit the first claim that fits all limits."""
        return _read_admission(self._client.run(self._admit, _key(request.namespace), self._encode_request(request)))

    async def aadmit(self, request: AdmitRequest) -> AdmitReply:
        """Async version of `admit`."""
        document = self._encode_request(request)
        return _read_admission(await self._client.arun(self._admit, _key(request.namespace), document))

    def exchange(self, batch: Batch) -> Update:
        """Settle leases, renew others, and pass on health."""
        document = {
            **self._common(batch.now),
            "epoch": "",
            "process": batch.process,
            "number": batch.number,
            "settlements": [{**one._asdict(), "accounts": _encode_accounts(one.accounts)} for one in batch.settlements],
            "renewals": batch.renewals,
            "changes": [
                {
                    "kind": one.kind, "target": one.target, "reason": one.reason,
                    "ms": -1 if math.isinf(one.seconds) else round(one.seconds * 1000),
                }
                for one in batch.changes
            ],
            "events": batch.events,
            "after": batch.after,
            "version": batch.version,
        }  # fmt: skip
        if batch.restored is not None:
            account, spent = batch.restored
            document["restored"] = {**account._asdict(), "spent": spent}
        reply = self._client.run(self._exchange, _key(batch.namespace), to_json(document))
        now, version, health, events, last, epoch = from_json(reply)
        return Update(_read_health(version, health, int(now)), tuple(events), last, epoch)

    def close(self) -> None:
        """Close idle connections."""
        self._client.close()

    @override
    def __reduce__(self) -> Any:
        return _rebuild, (self._url, self._options)

    @override
    def __repr__(self) -> str:
        return f"RedisState(policy={self.policy!r})"  # the URL may hold a password

    def _common(self, now: float) -> dict[str, Any]:
        common = {
            "seconds": self._seconds, "retention": self._retention, "charge": self._charges,
            "new_epoch": f"{time.time_ns():x}",
        }  # fmt: skip
        return {**common, "now": round(now * 1000)} if self._uses_callers_clock else common

    def _encode_request(self, request: AdmitRequest) -> bytes:
        return to_json(
            {
                **self._common(request.now),
                "lease": request.lease,
                "claims": [claim._asdict() for claim in request.claims],
                "accounts": _encode_accounts(request.accounts),
                "version": request.version,
                "epoch": request.epoch,
            }
        )


def _rebuild(url: str, options: dict[str, Any]) -> RedisState:
    return RedisState(url, **options)


def _key(namespace: str) -> str:
    """Return a key of the router. The scripts derive the others from it, which are in the same slot."""
    return f"agent:{{{namespace}}}:l"


def _encode_accounts(accounts: Sequence[Any]) -> list[dict[str, Any]]:
    return [account._asdict() for account in accounts]


def _read_refusal(reason: Any, wait: float, account: int, left: str, held: str) -> Refusal:
    seconds = math.inf if wait == -2 else wait / 1000  # -1 ms: never
    return Refusal(reason, seconds, account, int(left), int(held))


def _read_admission(reply: bytes) -> AdmitReply:
    index, bucket, now, refusals, balances, version, health, epoch = from_json(reply)
    return AdmitReply(
        index,
        bucket,
        tuple(_read_refusal(*refusal) for refusal in refusals),
        tuple((int(spent), int(held), age / 1000) for spent, held, age in balances),
        _read_health(version, health, int(now)),
        epoch,
    )


def _read_health(version: int, values: Sequence[str], now: int) -> HealthUpdate | None:
    """Read the fields of the hash; None if nothing is new. Times become relative to now."""
    if not values:
        return None
    fields: dict[str, str] = {}
    for field, text in zip(values[::2], values[1::2], strict=True):
        number, _, rest = text.partition(":")
        kind = field[0]
        if kind == "b":
            fields[field] = f"{number}:" if rest == "" else f"{number}:{(now - int(rest)) / 1000}"
        elif kind == "x":
            fields[field] = f"{number}:"
        elif kind in "ck":
            left = math.inf if int(number) > 8e15 else max(0, int(number) - now) / 1000
            fields[field] = f"{left}:{rest}"
    return HealthUpdate(version, fields)
