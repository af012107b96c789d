"""The floor: httpx 0.28 and the standard library's JSON, used as their documentation shows."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cached_property

import httpx

from benchmarks import workload
from benchmarks.workers import wire, wire_loop
from benchmarks.workers.wire import Json
from benchmarks.workload import Found

VERSIONS = ("httpx", "httpcore", "h11")


class RawHttpx:
    """One client of each kind, kept open. The limit of 100 connections is lifted for the tasks that need more."""

    def __init__(self, api: str, base: str) -> None:
        self.api = api
        self.url = wire.address(api, base)
        self.stream_url = wire.address(api, base, stream=True)
        self.headers = wire.headers(api)
        self.client = httpx.Client(headers=self.headers, timeout=600)

    @cached_property
    def async_client(self) -> httpx.AsyncClient:
        """Made when it is needed: it reads certificates, which a program that only blocks does not pay for twice."""
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        return httpx.AsyncClient(headers=self.headers, timeout=600, limits=limits)

    def post(self, body: Json) -> Json:
        reply: Json = json.loads(self.client.post(self.url, json=body).content)
        return reply

    def call(self) -> Found:
        return wire.read(self.api, self.post(wire.question(self.api)))

    async def acall(self) -> Found:
        reply = await self.async_client.post(self.url, json=wire.question(self.api))
        return wire.read(self.api, json.loads(reply.content))

    def stream(self) -> Found:
        reader = wire.Reader(self.api)
        with self.client.stream("POST", self.stream_url, json=wire.question(self.api, stream=True)) as reply:
            for line in reply.iter_lines():
                if line.startswith("data: {"):
                    reader.take(json.loads(line[6:]))
        return reader.found()

    async def astream(self) -> Found:
        reader = wire.Reader(self.api)
        body = wire.question(self.api, stream=True)
        async with self.async_client.stream("POST", self.stream_url, json=body) as reply:
            async for line in reply.aiter_lines():
                if line.startswith("data: {"):
                    reader.take(json.loads(line[6:]))
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


def contestant(api: str, base: str, variant: str) -> RawHttpx:
    return RawHttpx(api, base)
