"""Tool loop by hand: reads the tool calls of a response, and adds them with their results."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from benchmarks import workload
from benchmarks.workers import wire
from benchmarks.workers.wire import Json
from benchmarks.workload import Output

Post = Callable[[Json], Json]
FUNCTIONS: dict[str, Callable[..., str]] = {"get_weather": workload.weather}


def run(api: str, post: Post) -> Output:
    body = wire.conversation(api, [{"role": "user", "content": workload.LOOP_QUESTION}], [workload.WEATHER_TOOL])
    step = _STEPS[api]
    for _ in range(workload.TURNS):
        reply = post(body)
        if not step(body, reply):
            return wire.read(api, reply)[0], None
    raise RuntimeError("the loop did not end")


def _openai_chat(body: Json, reply: Json) -> bool:
    message = reply["choices"][0]["message"]
    calls = message.get("tool_calls")
    if not calls:
        return False
    body["messages"].append({"role": "assistant", "tool_calls": calls})
    for call in calls:
        result = FUNCTIONS[call["function"]["name"]](**json.loads(call["function"]["arguments"]))
        body["messages"].append({"role": "tool", "tool_call_id": call["id"], "content": result})
    return True


def _openai_responses(body: Json, reply: Json) -> bool:
    calls = [item for item in reply["output"] if item["type"] == "function_call"]
    body["input"] += calls
    for call in calls:
        result = FUNCTIONS[call["name"]](**json.loads(call["arguments"]))
        body["input"].append({"type": "function_call_output", "call_id": call["call_id"], "output": result})
    return bool(calls)


def _anthropic(body: Json, reply: Json) -> bool:
    calls = [block for block in reply["content"] if block["type"] == "tool_use"]
    if not calls:
        return False
    results = [
        {"type": "tool_result", "tool_use_id": call["id"], "content": FUNCTIONS[call["name"]](**call["input"])}
        for call in calls
    ]
    body["messages"] += [{"role": "assistant", "content": reply["content"]}, {"role": "user", "content": results}]
    return True


def _gemini(body: Json, reply: Json) -> bool:
    content = reply["candidates"][0]["content"]
    calls = [part["functionCall"] for part in content["parts"] if "functionCall" in part]
    if not calls:
        return False
    results = [
        {"functionResponse": {"name": call["name"], "response": {"result": FUNCTIONS[call["name"]](**call["args"])}}}
        for call in calls
    ]
    body["contents"] += [content, {"role": "user", "parts": results}]
    return True


_STEPS: dict[str, Callable[[Any, Any], bool]] = {
    "openai-chat": _openai_chat,
    "openai-responses": _openai_responses,
    "anthropic": _anthropic,
    "gemini": _gemini,
}
