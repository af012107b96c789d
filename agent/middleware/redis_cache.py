"""Response store in Redis, shared between processes and machines."""

from __future__ import annotations

import logging
import zlib
from functools import partial
from hashlib import sha256
from typing import Any

from typing_extensions import override

from ..errors import ConfigurationError, printable
from ..stores.redis_client import FailFastClient, check_namespace, convert_redis_error
from ..stores.redis_connections import FAILURES, RedisScript

_RETENTION = 30 * 86400.0
_GET = RedisScript("return redis.call('GET', KEYS[1])")
_PUT = RedisScript("return redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])")
_CHECKSUM = 8
"""Hex digits in front of each text."""


class RedisResponseStore:
    """Keeps responses in Redis (7 or later) or Valkey, for processes on several machines.

    While Redis cannot be reached, calls continue without the cache: one of them waits for `timeout`, and the others do
    not touch Redis until it is back.

    Args:
        url: `redis://`, `rediss://` or `unix://`, as in redis-py.
        name: Name of the cache; each name has its own responses.
        max_bytes: Maximum size of a response; larger ones are not stored.
        retention: Seconds until a response expires if the cache has no `ttl`.
        timeout: Seconds that a call waits for Redis, connecting included.
    """

    blocking = True

    def __init__(
        self,
        url: str,
        *,
        name: str = "responses",
        max_bytes: int = 1_000_000,
        retention: float = _RETENTION,
        timeout: float = 0.05,
    ) -> None:
        check_namespace(name)
        for field, value in (("max_bytes", max_bytes), ("retention", retention)):
            if not value > 0:
                raise ConfigurationError(f"{field} is {value}.", field=field, fix="Use a number above 0.")
        self._url, self._name, self._max_bytes = url, name, max_bytes
        self._retention, self._timeout = retention, timeout
        self._client = FailFastClient(url, timeout, [_GET, _PUT])

    @override
    def __reduce__(self) -> Any:
        rebuild = partial(
            RedisResponseStore, name=self._name, max_bytes=self._max_bytes, retention=self._retention,
            timeout=self._timeout,
        )  # fmt: skip
        return rebuild, (self._url,)

    @override
    @printable
    def __repr__(self) -> str:
        return f"RedisResponseStore(name={self._name!r})"  # the URL may hold a password

    def get(self, key: str, now: float) -> str | None:
        try:
            return _decode(self._client.run(_GET, self._key(key)))
        except FAILURES as error:
            raise convert_redis_error(error) from error

    async def aget(self, key: str, now: float) -> str | None:
        """Async version of `get`."""
        try:
            return _decode(await self._client.arun(_GET, self._key(key)))
        except FAILURES as error:
            raise convert_redis_error(error) from error

    def put(self, key: str, text: str, now: float, expires: float | None) -> None:
        arguments = self._encode(text, now, expires)
        if arguments is not None:
            try:
                self._client.run(_PUT, self._key(key), *arguments)
            except FAILURES as error:
                raise convert_redis_error(error) from error

    async def aput(self, key: str, text: str, now: float, expires: float | None) -> None:
        """Async version of `put`."""
        arguments = self._encode(text, now, expires)
        if arguments is not None:
            try:
                await self._client.arun(_PUT, self._key(key), *arguments)
            except FAILURES as error:
                raise convert_redis_error(error) from error

    def close(self) -> None:
        """Close idle connections. The next use opens new ones."""
        self._client.close()

    def _key(self, key: str) -> str:
        return f"agent:{{responses:{self._name}}}:{sha256(key.encode()).hexdigest()}"

    def _encode(self, text: str, now: float, expires: float | None) -> tuple[bytes, int] | None:
        """Return the stored form and its lifetime in ms; None if it must not be stored."""
        data = text.encode()
        lifetime = round((self._retention if expires is None else expires - now) * 1000)
        if len(data) > self._max_bytes or lifetime < 1:
            return None
        return _compute_checksum(data) + data, lifetime


def _decode(stored: bytes | None) -> str | None:
    """Return the text; None if there is none, or if it is damaged."""
    if stored is None:
        return None
    checksum, data = stored[:_CHECKSUM], stored[_CHECKSUM:]
    if checksum != _compute_checksum(data):
        logging.getLogger("agent").warning("a cached response in Redis is damaged")
        return None
    return data.decode()


def _compute_checksum(data: bytes) -> bytes:
    return b"%08x" % zlib.crc32(data)
