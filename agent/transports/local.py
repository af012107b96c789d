"""Transport for models in this process. The engine generates in its own thread, ahead of the reader."""

from __future__ import annotations

import contextvars
import json
from collections.abc import Iterator

from ..engine.wire import AsyncBody, Headers, Limits, Reply, RunTimeout, SyncBody, WireRequest
from ..local.engine import (
    add_usage_details,
    encode_count_request,
    encode_request,
    encode_truncation,
    is_error,
    is_progress,
    is_truncation,
    read_error_status,
    read_prompt_tokens,
    start_generation,
)
from ..local.weights import find_model
from ..providers.local import COUNT_FRAGMENT
from .threaded import Head, Stepper, Steps, acollect, aopen_body, collect, open_body

_STREAM = Headers({"content-type": "text/event-stream"})
_JSON = Headers({"content-type": "application/json"})


class LocalTransport:
    """Sends requests to the engines of this process."""

    def send(self, request: WireRequest, limits: Limits, timeout: RunTimeout) -> Reply:
        return collect(self.open(request, limits, timeout), limits, timeout)

    def open(self, request: WireRequest, limits: Limits, timeout: RunTimeout) -> SyncBody:
        return open_body(_stepper(request), timeout)

    async def asend(self, request: WireRequest, limits: Limits) -> Reply:
        return await acollect(await self.aopen(request, limits, []), limits)

    async def aopen(self, request: WireRequest, limits: Limits, bodies: list[AsyncBody]) -> AsyncBody:
        return await aopen_body(_stepper(request), bodies)


def _stepper(request: WireRequest) -> Stepper:
    return Stepper(lambda stepper: _steps(request, stepper), contextvars.copy_context())


def _steps(request: WireRequest, stepper: Stepper) -> Steps:
    """An answer as a server would give it: a failure, or events with an end."""
    asked = json.loads(request.body)
    model = find_model(asked["model"])
    counted = request.url.endswith(COUNT_FRAGMENT)
    body = encode_count_request(asked) if counted else encode_request(asked, dict(model.settings))
    first = None
    while first is None:  # or it was unloaded before it said anything, and is loaded again
        generation = start_generation(model, body)
        stepper.interrupt = generation.stop
        if stepper.closed:  # while the model was being loaded
            generation.stop()
            return
        pieces = iter(generation)
        first = next(pieces, None)
    try:
        if is_error(first) and not (counted and read_prompt_tokens(first) is not None):
            yield from _whole(first, read_error_status(first))
        elif counted:
            yield from _whole(json.dumps({"prompt_tokens": read_prompt_tokens(first)}).encode(), 200)
        else:
            yield Head(200, _STREAM)
            yield from _events(first, pieces, asked["max_tokens"])
    finally:
        generation.stop()


def _whole(body: bytes, status: int) -> Steps:
    yield Head(status, _JSON)
    yield body


def _events(first: bytes, pieces: Iterator[bytes], limit: int) -> Iterator[bytes]:
    """The pieces as events. The engine swallows the mark of the end; it has come if the usage has."""
    ended = False
    read, last = 0, b""
    piece: bytes | None = first
    while piece is not None:
        if is_progress(piece):
            read = read_prompt_tokens(piece) or read
        else:
            if is_truncation(piece):
                piece = encode_truncation(last, read, limit)
            if b'"usage":{' in piece:
                piece, ended = add_usage_details(piece), True
            yield b"data: " + piece + b"\n\n"
            last = piece
        piece = next(pieces, None)
    if ended:
        yield b"data: [DONE]\n\n"
