"""Transport for models in this process. The engine generates in its own thread, ahead of the reader."""

from __future__ import annotations

import contextvars
import json
from collections.abc import Iterable, Iterator
from itertools import chain

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
    """Respond as a server would: with an error, a token count, or server-sent events."""
    parameters = json.loads(request.body)
    model = find_model(parameters["model"])
    counts = request.url.endswith(COUNT_FRAGMENT)
    body = encode_count_request(parameters) if counts else encode_request(parameters, dict(model.settings))
    first = None
    while first is None:  # repeated if the model was unloaded before its first chunk
        generation = start_generation(model, body)
        stepper.interrupt = generation.stop
        if stepper.closed:  # while the model was being loaded
            generation.stop()
            return
        chunks = iter(generation)
        first = next(chunks, None)
    try:
        if is_error(first) and not (counts and read_prompt_tokens(first) is not None):
            yield Head(read_error_status(first), _JSON)
            yield first
        elif counts:
            yield Head(200, _JSON)
            yield json.dumps({"prompt_tokens": read_prompt_tokens(first)}).encode()
        else:
            yield Head(200, _STREAM)
            yield from _encode_events(chain([first], chunks), parameters["max_tokens"])
    finally:
        generation.stop()


def _encode_events(chunks: Iterable[bytes], limit: int) -> Iterator[bytes]:
    """Encode chunks as server-sent events. The engine omits the final `[DONE]`, which follows the usage."""
    is_complete = False
    prompt_tokens, last = 0, b""
    for chunk in chunks:
        if is_progress(chunk):
            prompt_tokens = read_prompt_tokens(chunk) or prompt_tokens
            continue
        if is_truncation(chunk):
            chunk = encode_truncation(last, prompt_tokens, limit)
        if b'"usage":{' in chunk:
            chunk, is_complete = add_usage_details(chunk), True
        yield b"data: " + chunk + b"\n\n"
        last = chunk
    if is_complete:
        yield b"data: [DONE]\n\n"
