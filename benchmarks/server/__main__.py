"""Process of the server: prints its address, and serves until its standard input ends."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections import deque
from collections.abc import Callable, Iterator
from functools import cache
from types import ModuleType
from typing import Any

from typing_extensions import override

from benchmarks import workload
from benchmarks.cores import allow_many_sockets, pin
from benchmarks.server import anthropic, gemini, openai_chat, openai_responses
from benchmarks.server.http_bytes import Prebuilt, stream

DELAY = 0.020
TICK = 0.005
"""Answers that wait are sent by one timer for all of them."""

NOT_FOUND = b"HTTP/1.1 404 Not Output\r\ncontent-length: 0\r\n\r\n"

_MODULES: dict[str, Any] = {
    "openai-chat": openai_chat,
    "openai-responses": openai_responses,
    "anthropic": anthropic,
    "gemini": gemini,
}
_ENDINGS = {
    "/v1/chat/completions": "openai-chat",
    "/v1/responses": "openai-responses",
    "/v1/messages": "anthropic",
}


@cache
def _prebuilt(api: str) -> Prebuilt:
    return Prebuilt.of(_MODULES[api], workload.TURNS)


@cache
def _batches(api: str, count: int) -> tuple[bytes, ...]:
    module: ModuleType = _MODULES[api]
    return stream(module.HEADERS, module.events(count))


@cache
def _route(target: bytes) -> tuple[str, str]:
    """Scenario and API of a request line."""
    path = target.decode().partition("?")[0]
    scenario, slash, rest = path.lstrip("/").partition("/")
    rest = slash + rest
    if rest.startswith(("/v1beta/models/", "/v1/models/")):  # Google's SDK has moved to the second
        return scenario, "gemini"
    return scenario, _ENDINGS.get(rest, "")


class Late:
    """Queue of delayed responses."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.waiting: deque[tuple[float, Callable[[bytes], None], bytes]] = deque()

    def add(self, write: Callable[[bytes], None], answer: bytes) -> None:
        if not self.waiting:
            self.loop.call_later(DELAY, self.send)
        self.waiting.append((self.loop.time() + DELAY, write, answer))

    def send(self) -> None:
        now = self.loop.time()
        while self.waiting and self.waiting[0][0] <= now:
            _, write, answer = self.waiting.popleft()
            write(answer)
        if self.waiting:
            self.loop.call_later(TICK, self.send)


class Connection(asyncio.Protocol):
    """Parses requests minimally, and writes prebuilt responses."""

    def __init__(self, loop: asyncio.AbstractEventLoop, late: Late) -> None:
        self.loop = loop
        self.late = late
        self.buffer = b""
        self.paused = False
        self.stalled: Iterator[bytes] | None = None

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    @override
    def data_received(self, data: bytes) -> None:
        if self.buffer:
            data = self.buffer + data
        while data:
            end = data.find(b"\r\n\r\n")
            if end < 0:
                break
            head = data[:end]
            after = end + 4 + _content_length(head)
            if len(data) < after:
                break
            self.answer(head, data[end + 4 : after])
            data = data[after:]
        self.buffer = data

    def answer(self, head: bytes, body: bytes) -> None:
        scenario, api = _route(head[head.index(b" ") + 1 : head.index(b" HTTP/1.1")])
        if not api:
            self.transport.write(NOT_FOUND)
            return
        made = _prebuilt(api)
        if scenario == "whole":
            self.transport.write(made.whole)
        elif scenario == "slow":
            self.late.add(self.transport.write, made.whole)
        elif scenario == "loop":
            self.transport.write(made.turns[made.results(body)])
        elif scenario == "fail":
            self.transport.write(made.failure)
        else:
            self.pump(iter(_batches(api, int(scenario.removeprefix("stream-")))))

    def pump(self, batches: Iterator[bytes]) -> None:
        """Write a batch; other connections have their turn before the next."""
        if self.transport.is_closing():
            return
        if self.paused:
            self.stalled = batches
            return
        batch = next(batches, None)
        if batch is not None:
            self.transport.write(batch)
            self.loop.call_soon(self.pump, batches)

    @override
    def pause_writing(self) -> None:
        self.paused = True

    @override
    def resume_writing(self) -> None:
        self.paused = False
        if self.stalled is not None:
            batches, self.stalled = self.stalled, None
            self.pump(batches)


def _content_length(head: bytes) -> int:
    lowered = head.lower()
    start = lowered.find(b"\r\ncontent-length:")
    if start < 0:
        return 0
    end = lowered.find(b"\r\n", start + 17)
    return int(lowered[start + 17 : end if end > 0 else None])


async def serve(announce: Callable[[str], None]) -> None:
    """Answer until cancelled."""
    loop = asyncio.get_running_loop()
    late = Late(loop)
    for api in workload.APIS:
        _prebuilt(api)
    server = await loop.create_server(lambda: Connection(loop, late), "127.0.0.1", 0, backlog=2048)
    announce(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    async with server:
        await server.serve_forever()


async def _until_input_ends() -> None:
    ended = asyncio.ensure_future(asyncio.to_thread(sys.stdin.read))
    serving = asyncio.ensure_future(serve(lambda url: print(url, flush=True)))
    await asyncio.wait({ended, serving}, return_when=asyncio.FIRST_COMPLETED)
    serving.cancel()


def main() -> None:
    pin(0)
    allow_many_sockets()
    gc.disable()  # garbage collection would delay the clients
    asyncio.run(_until_input_ends())


if __name__ == "__main__":
    main()
