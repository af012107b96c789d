"""aisuite: a client, kept. Chat Completions for OpenAI and Anthropic; its `max_turns` is the loop.

Its provider for Gemini has no setting for the base URL, and cannot take part.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from benchmarks import workload
from benchmarks.workers.openai_sdk_readers import aread_all, read_all
from benchmarks.workers.tasks import Absent
from benchmarks.workload import Output

VERSIONS = ("aisuite", "openai", "anthropic")
PROVIDERS = {"openai-chat": "openai", "anthropic": "anthropic"}


class AiSuite:
    def __init__(self, api: str, base: str) -> None:
        library: Any = import_module("aisuite")
        address = f"{base}/v1" if api == "openai-chat" else base
        self.client = library.Client({PROVIDERS[api]: {"api_key": workload.KEY, "base_url": address}})
        limit = "max_completion_tokens" if api == "openai-chat" else "max_tokens"
        self.settings: dict[str, Any] = {
            "model": f"{PROVIDERS[api]}:{workload.MODELS[api]}",
            limit: workload.MAX_TOKENS,
        }
        self.streaming: dict[str, Any] = {"stream": True}
        if api == "openai-chat":
            self.streaming["stream_options"] = {"include_usage": True}

    @staticmethod
    def read_reply(reply: Any) -> Output:
        return reply.choices[0].message.content, (reply.usage.prompt_tokens, reply.usage.completion_tokens)

    def _request(self) -> dict[str, Any]:
        return {**self.settings, "messages": [{"role": "user", "content": workload.QUESTION}]}

    def call(self) -> Output:
        return self.read_reply(self.client.chat.completions.create(**self._request()))

    async def acall(self) -> Output:
        return self.read_reply(await self.client.chat.completions.acreate(**self._request()))

    def stream(self) -> Output:
        return read_all(self.client.chat.completions.create(**self._request(), **self.streaming))

    async def astream(self) -> Output:
        return await aread_all(await self.client.chat.completions.acreate(**self._request(), **self.streaming))

    def _long(self) -> dict[str, Any]:
        tools = [{"type": "function", "function": tool} for tool in workload.many_tools()]
        return {**self.settings, "messages": workload.long_history(), "tools": tools}

    def first(self) -> Output:
        return self.read_reply(self.client.chat.completions.create(**self._long()))

    def conversation(self) -> Callable[[], Output]:
        asked = self._long()
        messages: list[Any] = asked["messages"]

        def turn() -> Output:
            reply = self.client.chat.completions.create(**asked)
            messages.extend((reply.choices[0].message, {"role": "user", "content": workload.NEXT_QUESTION}))
            return self.read_reply(reply)

        return turn

    def loop(self) -> Output:
        def get_weather(city: str, unit: str) -> str:
            """The weather in a city, now.

            Args:
                city (str): The name of the city.
                unit (str): The unit of temperatures.
            """
            return workload.weather(city, unit)

        messages = [{"role": "user", "content": workload.LOOP_QUESTION}]
        asked = {**self.settings, "messages": messages, "tools": [get_weather], "max_turns": workload.TURNS + 1}
        return self.read_reply(self.client.chat.completions.create(**asked))[0], None


def contestant(api: str, base: str, variant: str) -> AiSuite:
    if api not in PROVIDERS:
        raise Absent("has no Responses API" if api == "openai-responses" else "takes no address for Gemini")
    return AiSuite(api, base)
