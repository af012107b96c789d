"""CPU time of the codecs: encoding a long conversation, decoding a response and a chunk.

Nothing is sent. The best of many rounds counts.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from agent.engine.wire import Reply
from agent.providers import Provider, load_provider
from agent.types import AgentConfig, AgentRequest, Message, Role, TextContent, ToolCall, ToolResult

TURNS = 200
CHUNKS = 1000
MODELS = {"openai-chat": "gpt-4o", "openai": "gpt-4o"}
COUNTS = {"prompt_tokens": 9, "completion_tokens": 9, "total_tokens": 18}


def conversation() -> list[Message]:
    """Repeated questions, tool calls and results."""
    messages: list[Message] = []
    for number in range(TURNS):
        call = ToolCall(id=f"call_{number}", name="look", arguments={"number": number})
        result = ToolResult(tool_call_id=call.id, name="look", content="something was found " * 3)
        messages.append(Message.user(f"question {number} " * 10))
        messages.append(Message.assistant([TextContent(text="let me see " * 10), call]))
        messages.append(Message(Role.TOOL, [result]))
    return messages


def answers(name: str) -> tuple[bytes, list[bytes]]:
    """A short response, and a long stream."""
    if name == "openai-chat":
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "Some words."}}
        whole: dict[str, Any] = {"id": "r", "model": "m", "choices": [choice], "usage": COUNTS}
        head: dict[str, Any] = {"id": "r", "model": "m", "object": "chat.completion.chunk"}
        pieces = [{**head, "choices": [{"index": 0, "delta": {"content": "word "}}]}] * CHUNKS
        ends = [{**head, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}, {**head, "usage": COUNTS}]
        return json.dumps(whole).encode(), [*_events([*pieces, *ends]), b"data: [DONE]\n\n"]
    message = {
        "type": "message",
        "id": "i",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "Words."}],
    }
    body: dict[str, Any] = {"id": "r", "model": "m", "status": "completed", "output": [message]}
    delta = {"type": "response.output_text.delta", "output_index": 0, "content_index": 0, "delta": "word "}
    opening = {"type": "response.created", "response": {**body, "output": []}}
    closing = {"type": "response.completed", "response": {**body, "output": []}}
    return json.dumps(body).encode(), _events([opening, *([delta] * CHUNKS), closing])


def _events(payloads: Sequence[dict[str, Any]]) -> list[bytes]:
    return [b"data: " + json.dumps(payload).encode() + b"\n\n" for payload in payloads]


def best(work: Callable[[], object], *, rounds: int, times: int) -> float:
    """Microseconds per call, the best of many rounds."""
    fastest = float("inf")
    for _ in range(rounds):
        before = time.process_time()
        for _ in range(times):
            work()
        fastest = min(fastest, (time.process_time() - before) / times)
    return fastest * 1e6


def _read(codec: Provider, request: AgentRequest, chunks: list[bytes]) -> None:
    decoder = codec.decoder({}, request)
    for chunk in chunks:
        decoder.feed(chunk)
    assert decoder.done, decoder.failure
    decoder.response()


def costs(name: str, model: str) -> dict[str, float]:
    codec = load_provider(name)(AgentConfig(provider=name, model=model, api_key="sk-bench"))
    short = AgentRequest(input="hi", model=model)
    long = AgentRequest(input="hi", model=model, messages=conversation())
    whole, chunks = answers(name)
    again = f"a conversation of {3 * TURNS} messages, again"
    return {
        "a short request": best(lambda: codec.encode(short, stream=False), rounds=20, times=200),
        again: best(lambda: codec.encode(long, stream=False), rounds=20, times=20),
        "an answer": best(lambda: codec.decode(Reply(200, {}, whole), short), rounds=20, times=200),
        "a chunk of a stream": best(lambda: _read(codec, short, chunks), rounds=10, times=2) / CHUNKS,
    }


def main() -> int:
    for name, model in MODELS.items():
        for row, cost in costs(name, model).items():
            print(f"{name:12} {row:38} {cost:8.1f} µs CPU")
    return 0


if __name__ == "__main__":
    sys.exit(main())
