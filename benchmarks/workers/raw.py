"""Base of the floors: an HTTP client and a JSON parser."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

from benchmarks import workload
from benchmarks.workers import wire, wire_loop
from benchmarks.workers.wire import Json
from benchmarks.workload import Output

Loads = Callable[[Any], Any]


class Raw:
    """One client of each kind, kept open, without a limit of connections."""

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
        """Created on first use, because it loads certificates."""
        limits = self.library.Limits(max_connections=None, max_keepalive_connections=None)
        return self.library.AsyncClient(headers=self.headers, timeout=600, limits=limits)

    def request_options(self, body: Json) -> dict[str, Any]:
        """Return the body as arguments of the client."""
        return {"json": body}

    def post(self, body: Json) -> Json:
        reply: Json = self.loads(self.client.post(self.url, **self.request_options(body)).content)
        return reply

    def call(self) -> Output:
        return wire.read(self.api, self.post(wire.question(self.api)))

    async def acall(self) -> Output:
        reply = await self.async_client.post(self.url, **self.request_options(wire.question(self.api)))
        return wire.read(self.api, self.loads(reply.content))

    def stream(self) -> Output:
        reader, loads = wire.Reader(self.api), self.loads
        body = wire.question(self.api, stream=True)
        with self.client.stream("POST", self.stream_url, **self.request_options(body)) as reply:
            for line in reply.iter_lines():
                if line.startswith("data: {"):
                    reader.take(loads(line[6:]))
        return reader.result()

    async def astream(self) -> Output:
        reader, loads = wire.Reader(self.api), self.loads
        body = wire.question(self.api, stream=True)
        async with self.async_client.stream("POST", self.stream_url, **self.request_options(body)) as reply:
            async for line in reply.aiter_lines():
                if line.startswith("data: {"):
                    reader.take(loads(line[6:]))
        return reader.result()

    def first(self) -> Output:
        body = wire.conversation(self.api, workload.long_history(), workload.many_tools())
        return wire.read(self.api, self.post(body))

    def conversation(self) -> Callable[[], Output]:
        body = wire.conversation(self.api, workload.long_history(), workload.many_tools())

        def turn() -> Output:
            found = wire.read(self.api, self.post(body))
            wire.go_on(self.api, body, found[0], workload.NEXT_QUESTION)
            return found

        return turn

    def loop(self) -> Output:
        return wire_loop.run(self.api, self.post)
