"""litellm: its module-level functions, for Chat Completions of every vendor and Responses.

Callbacks, telemetry and the download of prices are off; its list of prices is the one in the package. `run_tool_loop`
is the loop.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib import import_module
from typing import Any

from benchmarks import workload
from benchmarks.workers.openai_sdk_readers import ResponsesReader, aread_all, read_all
from benchmarks.workload import Output

VERSIONS = ("litellm", "openai", "httpx", "aiohttp", "pydantic")
PREFIXES = {"openai-chat": "openai/", "openai-responses": "openai/", "anthropic": "anthropic/", "gemini": "gemini/"}


def _quiet_library() -> Any:
    library: Any = import_module("litellm")
    for setting, value in (("telemetry", False), ("suppress_debug_info", True)):
        setattr(library, setting, value)
    return library


class LiteLLM:
    def __init__(self, api: str, base: str) -> None:
        self.library = _quiet_library()
        self.settings: dict[str, Any] = {
            "model": PREFIXES[api] + workload.MODELS[api],
            "api_base": _address(api, base),
            "api_key": workload.KEY,
            "max_tokens": workload.MAX_TOKENS,
            "num_retries": 0,
        }
        self.asked = {**self.settings, "messages": [{"role": "user", "content": workload.QUESTION}]}
        self.streamed = {**self.asked, "stream": True, "stream_options": {"include_usage": True}}

    @staticmethod
    def read_reply(reply: Any) -> Output:
        return reply.choices[0].message.content, (reply.usage.prompt_tokens, reply.usage.completion_tokens)

    def call(self) -> Output:
        return self.read_reply(self.library.completion(**self.asked))

    async def acall(self) -> Output:
        return self.read_reply(await self.library.acompletion(**self.asked))

    def stream(self) -> Output:
        return read_all(self.library.completion(**self.streamed))

    async def astream(self) -> Output:
        return await aread_all(await self.library.acompletion(**self.streamed))

    def _long(self) -> dict[str, Any]:
        tools = [{"type": "function", "function": tool} for tool in workload.many_tools()]
        return {**self.settings, "messages": workload.long_history(), "tools": tools}

    def first(self) -> Output:
        return self.read_reply(self.library.completion(**self._long()))

    def conversation(self) -> Callable[[], Output]:
        asked = self._long()
        messages: list[Any] = asked["messages"]

        def turn() -> Output:
            reply = self.library.completion(**asked)
            messages.extend((reply.choices[0].message, {"role": "user", "content": workload.NEXT_QUESTION}))
            return self.read_reply(reply)

        return turn

    def loop(self) -> Output:
        tool = {"type": "function", "function": workload.WEATHER_TOOL}
        messages = [{"role": "user", "content": workload.LOOP_QUESTION}]
        asked = {**self.settings, "messages": messages, "tools": [tool], "max_rounds": workload.TURNS}
        return self.library.run_tool_loop(**asked, execute_tool=_execute), None


def _execute(call: Any) -> dict[str, Any]:
    if call.function.name != workload.WEATHER_TOOL["name"]:
        raise ValueError(f"the model called {call.function.name}")
    result = workload.weather(**json.loads(call.function.arguments))
    return {"role": "tool", "tool_call_id": call.id, "content": result}


class LiteLLMResponses:
    def __init__(self, api: str, base: str) -> None:
        self.library = _quiet_library()
        self.asked: dict[str, Any] = {
            "model": PREFIXES[api] + workload.MODELS[api],
            "api_base": _address(api, base),
            "api_key": workload.KEY,
            "max_output_tokens": workload.MAX_TOKENS,
            "store": False,
            "input": [{"role": "user", "content": workload.QUESTION}],
        }

    @staticmethod
    def read_reply(reply: Any) -> Output:
        texts = [part.text for item in reply.output if item.type == "message" for part in item.content]
        return "".join(texts), (reply.usage.input_tokens, reply.usage.output_tokens)

    def call(self) -> Output:
        return self.read_reply(self.library.responses(**self.asked))

    async def acall(self) -> Output:
        return self.read_reply(await self.library.aresponses(**self.asked))

    def stream(self) -> Output:
        reader = ResponsesReader()
        for event in self.library.responses(**self.asked, stream=True):
            reader.take(event)
        return reader.result()

    async def astream(self) -> Output:
        reader = ResponsesReader()
        async for event in await self.library.aresponses(**self.asked, stream=True):
            reader.take(event)
        return reader.result()

    def _long(self) -> dict[str, Any]:
        tools = [{"type": "function", "strict": False, **tool} for tool in workload.many_tools()]
        return {**self.asked, "input": workload.long_history(), "tools": tools}

    def first(self) -> Output:
        return self.read_reply(self.library.responses(**self._long()))

    def conversation(self) -> Callable[[], Output]:
        asked = self._long()
        said: list[Any] = asked["input"]

        def turn() -> Output:
            reply = self.library.responses(**asked)
            said.extend(item.model_dump() for item in reply.output)
            said.append({"role": "user", "content": workload.NEXT_QUESTION})
            return self.read_reply(reply)

        return turn


def _address(api: str, base: str) -> str:
    if api == "gemini":  # it adds the method to what it is given
        return f"{base}/v1beta/models/{workload.MODELS[api]}"
    return f"{base}/v1" if api.startswith("openai") else base


def contestant(api: str, base: str, variant: str) -> LiteLLM | LiteLLMResponses:
    return LiteLLMResponses(api, base) if api == "openai-responses" else LiteLLM(api, base)
