"""Lowest floor for asyncio: aiohttp, with its parser in C, and orjson. It has no blocking calls."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from benchmarks.workers import wire
from benchmarks.workload import Output

VERSIONS = ("aiohttp", "orjson")
aiohttp: Any = import_module("aiohttp")
orjson: Any = import_module("orjson")


class RawAiohttp:
    """One session, without a limit to its connections."""

    def __init__(self, api: str, base: str) -> None:
        self.api = api
        self.url = wire.address(api, base)
        self.stream_url = wire.address(api, base, stream=True)
        self.headers = {**wire.headers(api), "content-type": "application/json"}
        self._session: Any = None

    @property
    def session(self) -> Any:
        """It belongs to a loop, and so is made inside one."""
        if self._session is None:
            self._session = aiohttp.ClientSession(headers=self.headers, connector=aiohttp.TCPConnector(limit=0))
        return self._session

    async def acall(self) -> Output:
        async with self.session.post(self.url, data=orjson.dumps(wire.question(self.api))) as reply:
            return wire.read(self.api, orjson.loads(await reply.read()))

    async def astream(self) -> Output:
        reader, loads = wire.Reader(self.api), orjson.loads
        body = orjson.dumps(wire.question(self.api, stream=True))
        async with self.session.post(self.stream_url, data=body) as reply:
            async for line in reply.content:
                if line.startswith(b"data: {"):
                    reader.take(loads(line[6:]))
        return reader.result()


def contestant(api: str, base: str, variant: str) -> RawAiohttp:
    return RawAiohttp(api, base)
