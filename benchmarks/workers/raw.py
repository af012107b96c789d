"""An HTTP client and a JSON parser, nothing else: what the two floors have in common."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

from benchmarks import workload
from benchmarks.workers import wire, wire_loop
from benchmarks.workers.wire import Json
from benchmarks.workload import Found

Loads = Callable[[Any], Any]


class Raw:
    """One client of each kind, kept open. The limit of 100 connections is lifted for the tasks that need more."""

    def __init__(self, library: Any, loads: Loads, api: str, base: str) -> None:
        self.library = library
        self.loads = loads
        self.api = api
        self.url = wire.address(api, base)
        self.stream_url = wire.address(api, base, stream=True)
        self.headers = {**wire.headers(api), "content-type": "application/json"}
        self.client: Any = library.Client(headers=self.headers, timeout=600)

    @cached_property
    def async_client(self) -> Any:
        """Made when it is needed: it reads certificates, which a program that only blocks does not pay for twice."""
        limits = self.library.Limits(max_connections=None, max_keepalive_connections=None)
        return self.library.AsyncClient(headers=self.headers, timeout=600, limits=limits)

    def sent(self, body: Json) -> dict[str, Any]:
        """The body, as the client is given it."""
        return {"json": body}

    def post(self, body: Json) -> Json:
        reply: Json = self.loads(self.client.post(self.url, **self.sent(body)).content)
        return reply

    def call(self) -> Found:
        return wire.read(self.api, self.post(wire.question(self.api)))

    async def acall(self) -> Found:
        reply = await self.async_client.post(self.url, **self.sent(wire.question(self.api)))
        return wire.read(self.api, self.loads(reply.content))

    def stream(self) -> Found:
        reader, loads = wire.Reader(self.api), self.loads
        body = wire.question(self.api, stream=True)
        with self.client.stream("POST", self.stream_url, **self.sent(body)) as reply:
            for line in reply.iter_lines():
                if line.startswith("data: {"):
                    reader.take(loads(line[6:]))
        return reader.found()

    async def astream(self) -> Found:
        reader, loads = wire.Reader(self.api), self.loads
        body = wire.question(self.api, stream=True)
        async with self.async_client.stream("POST", self.stream_url, **self.sent(body)) as reply:
            async for line in reply.aiter_lines():
                if line.startswith("data: {"):
                    reader.take(loads(line[6:]))
        return reader.found()

    def first(self) -> Found:
        body = wire.conversation(self.api, workload.long_history(), workload.many_tools())
        return wire.read(self.api, self.post(body))

    def conversation(self) -> Callable[[], Found]:
        body = wire.conversation(self.api, workload.long_history(), workload.many_tools())

        def turn() -> Found:
            found = wire.read(self.api, self.post(body))
            wire.go_on(self.api, body, found[0], workload.NEXT_QUESTION)
            return found

        return turn

    def loop(self) -> Found:
        return wire_loop.run(self.api, self.post)
