"""Helpers for tests against official SDKs: strict types, and a server that replays recordings."""

from __future__ import annotations

from functools import cache
from typing import Any

from pydantic import TypeAdapter
from pydantic_core import SchemaValidator

from agent.engine.wire import Answer
from tests.support.corpus import Exchange


@cache
def sdk_types(params: Any) -> SchemaValidator:
    """The SDK's types, made strict: unknown keys are errors, and lists are looked into at once."""
    schema: Any = _strict(TypeAdapter(params).core_schema)
    return SchemaValidator(schema)


def _strict(node: Any) -> Any:
    if isinstance(node, list | tuple):
        return type(node)(map(_strict, node))
    if not isinstance(node, dict):
        return node
    if node.get("type") == "generator":
        node = {"type": "list", "items_schema": node["items_schema"]}
    strict = {key: _strict(value) for key, value in node.items()}
    if strict.get("type") == "typed-dict":
        strict["extra_behavior"] = "forbid"
    return strict


class Replay:
    """A server that answers every request with the latest recording."""

    def __init__(self) -> None:
        self.answer = Answer()

    def __call__(self, request: object) -> Answer:
        return self.answer


def build_answer(exchange: Exchange) -> Answer:
    if exchange.stream is not None:
        return Answer([exchange.stream], headers={"content-type": "text/event-stream"})
    return Answer([exchange.reply.body], headers={"content-type": "application/json"})
