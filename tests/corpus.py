"""The recorded conversations: found by AGENT_WIRE_CORPUS, read in place, never copied."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from agent.providers.credentials import Address
from agent.providers.openai_chat import OPENAI, ChatCodec, Dialect
from agent.types import AgentRequest
from agent.wire import Reply
from tests.conftest import WIRE

WITHOUT_SENTINEL = {"gpustack", "huggingface", "perplexity"}
"""Vendors whose recorded streams end without [DONE]."""


@dataclass(frozen=True)
class Exchange:
    """One recorded request and answer, and what a correct client reports."""

    case: str
    number: int
    provider: str
    request: dict[str, Any] | None
    response: dict[str, Any]
    expected: dict[str, Any]

    @property
    def name(self) -> str:
        return f"{self.case}#{self.number}"

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
        return AgentRequest(input="recorded", model=(self.request or {}).get("model") or "recorded")


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
                    entry["id"],
                    number,
                    entry["provider"],
                    exchange["request"].get("body"),
                    exchange["response"],
                    wanted,
                )
            )
    return tuple(found)


def dialect_of(provider: str) -> Dialect:
    return replace(OPENAI, name=provider, done_sentinel=provider not in WITHOUT_SENTINEL)


def chat_codec(provider: str) -> ChatCodec:
    return ChatCodec(dialect_of(provider), Address("http://127.0.0.1", None))
