"""Every fault, behind one server: the path of a request says which."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from agent import Agent
from agent.engine.wire import Transport, WireRequest
from agent.errors import AgentError
from agent.testing import FAULTS, Answer, LoopbackServer, VendorScript
from agent.types import AgentResponse, TextContent
from tests.engine.play import NO_TLS
from tests.support.drivers import make_transport

CODECS = ("openai-chat", "openai-responses", "anthropic", "gemini")
MODELS = {
    "openai-chat": "openai-chat:gpt-5-mini",
    "openai-responses": "openai-responses:gpt-5-mini",
    "anthropic": "anthropic:claude-sonnet-5",
    "gemini": "gemini:gemini-3.5-flash",
}
WORDS = "Grüße aus der Stadt, in der es regnet"
LIMITS = {"timeout": 0.5, "idle_timeout": 0.15, "first_byte_timeout": 0.2}
"""Short, for faults that keep a client waiting."""
PATIENT = {"timeout": 20.0, "idle_timeout": 10.0}


def good(request: WireRequest) -> Answer:
    """Return a valid response."""
    return VendorScript(TextContent(text=WORDS))(request)


def faulty(request: WireRequest) -> Answer:
    """The fault that the first part of the path names; a request to count tokens is none of its business."""
    _, name, path = request.url.split("/", 2)
    asked = WireRequest(f"/{path}", request.headers, request.body)
    return good(asked) if name == "good" else FAULTS[name](good(asked), asked)


@dataclass
class Outcome:
    """Outcome of a call. Unexpected exceptions are not caught and fail the test."""

    response: AgentResponse | None = None
    error: AgentError | None = None
    seconds: float = 0.0
    requests: int = 0
    text: str = field(default="")


class Client:
    """Calls agents, sync and async, at the faulty server or through a transport."""

    def __init__(self, server: LoopbackServer | None = None, transport: Transport | None = None) -> None:
        self.transport = transport
        self.url = "http://127.0.0.1" if server is None else server.url
        self.requests = [] if server is None else server.requests

    def agent(self, codec: str, fault: str, **options: Any) -> Agent:
        settings: dict[str, Any] = {"max_retries": 0, **PATIENT, **options}
        settings.setdefault("transport", self.transport)
        return Agent(MODELS[codec], api_key="sk-test", base_url=f"{self.url}/{fault}/v1", **settings)

    def call(self, agent: Agent, *, streaming: bool) -> Outcome:
        outcome, before, started = Outcome(), len(self.requests), time.monotonic()
        try:
            outcome.response = agent.stream("Hi").collect() if streaming else agent.complete("Hi")
        except AgentError as error:
            outcome.error = error
        return self._complete(outcome, before, started)

    async def acall(self, agent: Agent, *, streaming: bool) -> Outcome:
        outcome, before, started = Outcome(), len(self.requests), time.monotonic()
        try:
            outcome.response = await (agent.astream("Hi").collect() if streaming else agent.acomplete("Hi"))
        except AgentError as error:
            outcome.error = error
        return self._complete(outcome, before, started)

    def either(self, agent: Agent, *, streaming: bool, driver: str) -> Outcome:
        if driver == "sync":
            return self.call(agent, streaming=streaming)
        return asyncio.run(self.acall(agent, streaming=streaming))

    def _complete(self, outcome: Outcome, before: int, started: float) -> Outcome:
        outcome.seconds = time.monotonic() - started
        outcome.requests = len(self.requests) - before
        outcome.text = "" if outcome.response is None else outcome.response.text or ""
        return outcome


@contextmanager
def serve_faults(carrier: str | None = None) -> Iterator[Client]:
    with LoopbackServer(faulty) as server:
        transport = make_transport(carrier, proxy=False, ssl_context=NO_TLS)
        yield Client(server, transport)
        transport.close()
