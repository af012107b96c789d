"""Recorded conversations with vendors, and the expected result of each.

The recordings are read from the directory in AGENT_WIRE_CORPUS, by default `shared/wire` beside the checkout. Without
them the tests use `tests/fixtures/wire`: a few conversations of each wire format, written for this project, in the same
layout. Tests that depend on real traffic, such as counts of the whole corpus, carry the mark `needs_recordings`.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from agent.engine.wire import Reply
from agent.providers import Provider
from agent.providers.base import ApiAddress
from agent.providers.compatible import DIALECTS
from agent.providers.openai_chat import OPENAI, ChatCodec, Dialect
from agent.types import AgentRequest

CORPUS = Path(os.environ.get("AGENT_WIRE_CORPUS") or Path(__file__).parents[3] / "shared" / "wire")
FIXTURES = Path(__file__).parents[1] / "fixtures" / "wire"
HAS_RECORDINGS = (CORPUS / "index.json").exists()
WIRE = CORPUS if HAS_RECORDINGS else FIXTURES

needs_recordings = pytest.mark.skipif(not HAS_RECORDINGS, reason="needs the recorded traffic: set AGENT_WIRE_CORPUS")

APIS = ("openai.chat", "openai.responses", "anthropic.messages", "gemini.generate")
"""The wire formats of the recordings that there are codecs for."""

ROWS = {"google": "gemini-chat", "vercel-gateway": "vercel"}
"""Recorded vendors whose row of data has another name."""


@dataclass(frozen=True)
class Exchange:
    """One recorded request and answer, and what a correct client reports."""

    api: str
    case: str
    number: int
    provider: str
    path: str
    request: dict[str, Any] | None
    response: dict[str, Any]
    expected: dict[str, Any]

    @property
    def name(self) -> str:
        return f"{self.api}/{self.case}#{self.number}"

    @property
    def stream(self) -> bytes | None:
        return self.response["sse"].encode() if "sse" in self.response else None

    @property
    def reply(self) -> Reply:
        body = self.response["body"]
        data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        return Reply(self.response["status"], self.response.get("headers") or {}, data)

    @property
    def agent_request(self) -> AgentRequest:
        """A placeholder for the request: decoding needs only its model."""
        return AgentRequest(input="recorded", model=self.model)

    @property
    def model(self) -> str:
        in_path = re.search(r"/models/([^/:]+):", self.path)
        return (self.request or {}).get("model") or (in_path[1] if in_path else "recorded")


def vendor(exchange: Exchange, *_: object) -> str:
    """Group of a recording: API and provider."""
    return f"{exchange.api}, {exchange.provider}"


@cache
def exchanges(api: str) -> tuple[Exchange, ...]:
    found: list[Exchange] = []
    for entry in json.loads((WIRE / "index.json").read_text("utf-8")):
        if entry["api"] != api:
            continue
        case = json.loads((WIRE / entry["file"]).read_text("utf-8"))
        expected = json.loads((WIRE / "expected" / f"{entry['id']}.json").read_text("utf-8"))
        for number, (exchange, wanted) in enumerate(zip(case["exchanges"], expected["exchanges"], strict=True)):
            found.append(
                Exchange(
                    api,
                    entry["id"],
                    number,
                    entry["provider"],
                    exchange["request"].get("path") or "",
                    exchange["request"].get("body"),
                    exchange["response"],
                    wanted,
                )
            )
    return tuple(found)


def dialect_of(provider: str) -> Dialect:
    """The vendor's own row, under the name that the recording has for it."""
    row = OPENAI if provider == "openai" else DIALECTS[ROWS.get(provider, provider)]
    return replace(row, name=provider)


def chat_codec(provider: str) -> ChatCodec:
    return ChatCodec(dialect_of(provider), ApiAddress("http://127.0.0.1", None))


def codec_for(exchange: Exchange) -> Provider:
    """The codec that would have sent a recorded request."""
    here = ApiAddress("http://127.0.0.1", None)
    match exchange.api:
        case "openai.chat":
            return chat_codec(exchange.provider)
        case "openai.responses":
            from agent.providers.openai_responses import ResponsesCodec

            return ResponsesCodec(here, name=exchange.provider)
        case "anthropic.messages":
            from agent.providers.anthropic import AnthropicCodec

            return AnthropicCodec(here, name=exchange.provider)
        case "gemini.generate":
            from agent.providers.gemini import GeminiCodec

            return GeminiCodec(here, name=exchange.provider)
        case _:
            raise ValueError(exchange.api)
