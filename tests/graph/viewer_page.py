"""Graphs to look at, in the plain form of saved files."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import Any

from agent.types import (
    ImageContent,
    Message,
    NodeData,
    Role,
    StopReason,
    SystemPrompt,
    TextContent,
    ThinkingContent,
    ToolCall,
    ToolDefinition,
    ToolDefinitions,
    ToolExecution,
    ToolResult,
    Usage,
)

PIXEL = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010802000000907753de0000000c49444154789c63f8cfc0000003010100c9fe92ef"
    "0000000049454e44ae426082"
)
"""A picture of one red point."""


def document(nodes: Sequence[dict[str, Any]], heads: Iterable[str] | None = None) -> dict[str, Any]:
    parents = {parent for node in nodes for parent in node["parents"]}
    if heads is None:
        heads = [node["id"] for node in nodes if node["id"] not in parents]
    return {"format": "agent.graph", "version": 1, "heads": list(heads), "nodes": list(nodes)}


def row(id: str, parents: Sequence[str], data: NodeData, second: float = 0, **metadata: Any) -> dict[str, Any]:
    time = 1_763_300_000.0 + second
    return {"id": id, "parents": list(parents), "timestamp": time, "metadata": metadata, "data": data.to_dict()}


def talk() -> dict[str, Any]:
    """A talk with a tool that forks after the tool's result, one branch of which ends and one goes on."""
    usage = Usage(prompt_tokens=120, completion_tokens=30, cache_read_tokens=20)
    call = [
        ThinkingContent(thinking="I should look."),
        TextContent(text="Let me see."),
        ToolCall(id="call-1", name="look", arguments={"place": "Paris", "ticket": 12345678901234567890}),
    ]
    answers = {
        "sunny": Message(Role.ASSISTANT, "It is sunny in Paris.", usage=usage),
        "rain": Message(Role.ASSISTANT, "It rains in Paris: take an umbrella.\n\n  And boots.", usage=usage),
    }
    return document(
        [
            row("system", [], SystemPrompt(content="Be brief.")),
            row(
                "tools",
                ["system"],
                ToolDefinitions(tools=[ToolDefinition(name="look", description="Looks.", input_schema={})]),
            ),
            row("question", ["tools"], Message(Role.USER, "How is the weather?"), 1),
            row(
                "call",
                ["question"],
                Message(Role.ASSISTANT, call, usage=usage),
                3,
                cost=0.0125,
                latency_ms=1840,
                model="claude-sonnet-4-5",
                provider="anthropic",
                request_id="req_7",
            ),
            row(
                "run",
                ["call"],
                ToolExecution(tool_name="look", tool_use_id="call-1", result="clear sky"),
                4,
                latency_ms=60,
            ),
            row(
                "result",
                ["run"],
                Message(Role.TOOL, [ToolResult(tool_call_id="call-1", name="look", content="clear")]),
                4,
            ),
            row("sunny", ["result"], answers["sunny"], 6, cost=0.01, latency_ms=900),
            row("rain", ["result"], answers["rain"], 7, cost=0.02, latency_ms=1100),
            row("stop", ["sunny"], StopReason(reason="end_turn", usage=usage), 6),
            row("thanks", ["rain"], Message(Role.USER, "Thanks!"), 9),
            row("picture", ["thanks"], Message(Role.USER, [ImageContent(image_data=PIXEL, media_type="image/png")]), 9),
            row("address", ["picture"], Message(Role.USER, [ImageContent(image_url="https://evil.invalid/x.png")]), 10),
        ]
    )


def assign_numbers(parents: Sequence[Iterable[int]]) -> dict[str, Any]:
    """A graph of turns with these parents, for its shape."""
    roles = ("user", "assistant")
    return document(
        [
            {
                "id": f"node-{at}",
                "parents": [f"node-{parent}" for parent in mine],
                "timestamp": 1_763_300_000.0 + at,
                "metadata": {"cost": 0.001, "latency_ms": 500, "model": "m"},
                "data": {
                    "role": roles[at % 2],
                    "content": f"turn number {at} about the weather",
                    "usage": {"prompt_tokens": 100, "completion_tokens": 20},
                },
            }
            for at, mine in enumerate(parents)
        ]
    )


def chain(length: int) -> dict[str, Any]:
    return assign_numbers([[at - 1] if at else [] for at in range(length)])


def diamond(branches: int, length: int) -> dict[str, Any]:
    """One node, many branches of some length, one node again."""
    parents: list[list[int]] = [[]]
    ends = []
    for _ in range(branches):
        for step in range(length):
            parents.append([len(parents) - 1 if step else 0])
        ends.append(len(parents) - 1)
    return assign_numbers([*parents, ends])


def layers_of(layers: int, width: int) -> dict[str, Any]:
    """Layers in which each node has two parents: nothing in it is a run."""
    parents: list[list[int]] = [[]]
    before = [0]
    for _ in range(layers):
        now = list(range(len(parents), len(parents) + width))
        parents += [sorted({before[at % len(before)], before[(at + 1) % len(before)]}) for at in range(width)]
        before = now
    return assign_numbers(parents)


def tangle(size: int, seed: int) -> dict[str, Any]:
    """Each node has one to three parents, any that came before it."""
    chance = random.Random(seed)
    return assign_numbers(
        [{chance.randrange(at) for _ in range(chance.randint(1, 3))} if at else [] for at in range(size)]
    )


def hostile(payloads: Sequence[str]) -> dict[str, Any]:
    """Return nodes with the payload in every field of all content parts and node types."""
    nodes: list[dict[str, Any]] = []
    for number, text in enumerate(payloads):
        usage = {text: 7, "prompt_tokens": 5, "details": {text: text}}
        metadata = {text: text, "model": text, "provider": text, "nested": {text: [text]}, "usage": usage, "cost": 0.1}
        parts = [
            {"type": "text", "text": text, "citations": [{"url": text, "title": text}]},
            {"type": "thinking", "thinking": text, "signature": text},
            {"type": "tool_call", "id": text, "name": text, "arguments": {text: text}},
            {"type": "tool_result", "tool_call_id": text, "name": text, "content": text, "is_error": True},
            {"type": "tool_result", "tool_call_id": text, "content": [{"type": "text", "text": text}]},
            {"type": "image_url", "image_url": text},
            {"type": "image", "image_data": text, "media_type": "image/png"},
            {"type": "image", "image_data": "PHN2Zy8+", "media_type": text},
            {"type": "image", "image_data": "PHN2ZyBvbmxvYWQ9YWxlcnQoMSkvPg==", "media_type": "image/svg+xml"},
            {"type": "document", "url": text, "title": text},
            {"type": "document", "text": text},
            {"type": "code", "code": text, "language": text},
            {"type": "diff", "old_code": text, "new_code": text},
            {"type": "vendor", "kind": text, "provider_data": {text: text}},
            {"type": text, text: text},
            text,
        ]
        others: list[dict[str, Any]] = [
            {"type": "system_prompt", "content": text},
            {"type": "tool_definitions", "tools": [{"name": text, "description": text, "parameters": {text: text}}]},
            {"type": "tool_execution", "tool_name": text, "tool_use_id": text, "result": parts, "is_error": True},
            {"type": "stop_reason", "reason": text, "usage": {text: text}},
            {"type": text, "content": text},
            {"role": text, "content": text, "name": text, text: text},
        ]
        parent = [nodes[-2]["id"]] if nodes else []
        role = ("user", "assistant", "tool")[number % 3]
        first = {"id": f"{number} {text}", "parents": parent, "metadata": metadata, text: text}
        nodes.append({**first, "timestamp": number, "data": {"role": role, "content": parts, "error_message": text}})
        second = {"id": text, "parents": [f"{number} {text}", text, f"missing {text}"], "metadata": metadata}
        nodes.append({**second, "timestamp": text, "data": others[number % len(others)]})
    return document(nodes)
