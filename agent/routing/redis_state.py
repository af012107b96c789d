"""Shared router state in Redis or Valkey: one script admits a request, another settles batches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from pydantic_core import from_json, to_json
from typing_extensions import override

from ..errors import ConfigurationError, printable
from ..stores.redis_client import RedisClient
from ..stores.redis_connections import RedisScript
from .redis_scripts import ADMIT, EXCHANGE
from .router_state import LEASE_SECONDS, AdmitReply, AdmitRequest, Batch, HealthUpdate, OnLost, Policy, Refusal, Update

RETENTION = 90 * 86400.0
"""Seconds for which the amount spent under a limit without a window is kept after the latest request."""

EXCHANGE_SECONDS = 1.0
"""Seconds after which an exchange counts as failed at the earliest. No call waits for it."""


class RedisState:
    """Router state in Redis (7 or later) or Valkey, shared by the routers of one name in all processes.

    Args:
        url: `redis://`, `rediss://` or `unix://`, as in redis-py.
        client: A client of redis-py instead of a URL: `Redis`, that of a Sentinel (`sentinel.master_for("main")`), or
            `RedisCluster`. Its addresses, credentials and TLS settings are used, not its connections.
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
        url: str | None = None,
        *,
        client: Any = None,  # Any: one of redis-py's clients
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
        if (url is None) is (client is None):
            raise ConfigurationError("RedisState needs a URL or a client.", field="url", fix="Pass url or client.")
        self.policy: Policy = policy
        self._options: dict[str, Any] = {
            "policy": policy, "on_lost": on_lost, "lease_seconds": lease_seconds, "retention": retention,
            "timeout": timeout,
        }  # fmt: skip
        self._url = url
        self._settings = (_to_milliseconds(lease_seconds), _to_milliseconds(retention), on_lost == "charge")
        self._patience = max(timeout, EXCHANGE_SECONDS)
        self._admit = RedisScript(ADMIT)
        self._exchange = RedisScript(EXCHANGE)
        self._client = RedisClient(
            url if client is None else client, timeout, [self._admit, self._exchange], field="state"
        )
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
        changes = [
            (
                change.kind,
                change.target,
                -1 if math.isinf(change.seconds) else _to_milliseconds(change.seconds),
                change.reason,
            )
            for change in batch.changes
        ]
        document = to_json(
            (
                *self._settings, self._now(batch.now), "", batch.version,
                batch.process, batch.number, batch.settlements, batch.renewals, changes, batch.events, batch.after,
                batch.restored or (),
            )
        )  # fmt: skip
        reply = self._client.run(self._exchange, _key(batch.namespace), document, timeout=self._patience)
        now, version, health, events, last, epoch = from_json(reply)
        return Update(_read_health(version, health, int(now)), tuple(events), last, epoch)

    def close(self) -> None:
        """Close idle connections."""
        self._client.close()

    @override
    def __reduce__(self) -> Any:
        if self._url is None:
            raise ConfigurationError(
                "A RedisState with a client cannot be pickled.",
                field="client",
                fix="Pass a URL, or create the state in each process.",
            )
        return _rebuild, (self._url, self._options)

    @override
    @printable
    def __repr__(self) -> str:
        return f"RedisState(policy={self.policy!r})"  # the URL may hold a password

    def _now(self, now: float) -> int:
        return _to_milliseconds(now) if self._uses_callers_clock else -1

    def _encode_request(self, request: AdmitRequest) -> bytes:
        _, lease, claims, accounts, version, epoch, now = request
        return to_json((*self._settings, self._now(now), epoch, version, lease, claims, accounts))


def _rebuild(url: str, options: dict[str, Any]) -> RedisState:
    return RedisState(url, **options)


def _key(namespace: str) -> str:
    """Return a key of the router. The scripts derive the others from it, which are in the same slot."""
    return f"agent:{{{namespace}}}:l"


def _to_milliseconds(seconds: float) -> int:
    return round(seconds * 1000)


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
