"""OpenAI's SDK: one client of each kind, kept open. It has no tool loop."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from importlib import import_module
from typing import Any

from benchmarks import workload
from benchmarks.workers.openai_sdk_readers import ChatReader, ResponsesReader
from benchmarks.workers.tasks import Absent
from benchmarks.workload import Output

VERSIONS = ("openai", "httpx2", "pydantic")
openai: Any = import_module("openai")


class OpenAISdk:
    def __init__(self, base: str) -> None:
        self.settings = {"base_url": f"{base}/v1", "api_key": workload.KEY}
        self.client = openai.OpenAI(**self.settings)

    @cached_property
    def async_client(self) -> Any:
        """Keep more than 100 idle connections, which 256 requests in flight need."""
        limits = import_module("httpx2").Limits(max_connections=None, max_keepalive_connections=None)
        return openai.AsyncOpenAI(**self.settings, http_client=openai.DefaultAsyncHttpxClient(limits=limits))


class Chat(OpenAISdk):
    asked: dict[str, Any] = {  # noqa: RUF012
        "model": workload.MODELS["openai-chat"],
        "messages": [{"role": "user", "content": workload.QUESTION}],
        "max_completion_tokens": workload.MAX_TOKENS,
    }
    streamed: dict[str, Any] = {**asked, "stream": True, "stream_options": {"include_usage": True}}  # noqa: RUF012

    @staticmethod
    def read_reply(reply: Any) -> Output:
        return reply.choices[0].message.content, (reply.usage.prompt_tokens, reply.usage.completion_tokens)

    def call(self) -> Output:
        return self.read_reply(self.client.chat.completions.create(**self.asked))

    async def acall(self) -> Output:
        return self.read_reply(await self.async_client.chat.completions.create(**self.asked))

    def stream(self) -> Output:
        reader = ChatReader()
        for chunk in self.client.chat.completions.create(**self.streamed):
            reader.take(chunk)
        return reader.result()

    async def astream(self) -> Output:
        reader = ChatReader()
        async for chunk in await self.async_client.chat.completions.create(**self.streamed):
            reader.take(chunk)
        return reader.result()

    def _long(self) -> dict[str, Any]:
        tools = [{"type": "function", "function": tool} for tool in workload.many_tools()]
        return {**self.asked, "messages": workload.long_history(), "tools": tools}

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


class Responses(OpenAISdk):
    asked: dict[str, Any] = {  # noqa: RUF012
        "model": workload.MODELS["openai-responses"],
        "input": [{"role": "user", "content": workload.QUESTION}],
        "max_output_tokens": workload.MAX_TOKENS,
        "store": False,
    }

    @staticmethod
    def read_reply(reply: Any) -> Output:
        return reply.output_text, (reply.usage.input_tokens, reply.usage.output_tokens)

    def call(self) -> Output:
        return self.read_reply(self.client.responses.create(**self.asked))

    async def acall(self) -> Output:
        return self.read_reply(await self.async_client.responses.create(**self.asked))

    def stream(self) -> Output:
        reader = ResponsesReader()
        for event in self.client.responses.create(**self.asked, stream=True):
            reader.take(event)
        return reader.result()

    async def astream(self) -> Output:
        reader = ResponsesReader()
        async for event in await self.async_client.responses.create(**self.asked, stream=True):
            reader.take(event)
        return reader.result()

    def _long(self) -> dict[str, Any]:
        tools = [{"type": "function", "strict": False, **tool} for tool in workload.many_tools()]
        return {**self.asked, "input": workload.long_history(), "tools": tools}

    def first(self) -> Output:
        return self.read_reply(self.client.responses.create(**self._long()))

    def conversation(self) -> Callable[[], Output]:
        asked = self._long()
        said: list[Any] = asked["input"]

        def turn() -> Output:
            reply = self.client.responses.create(**asked)
            said.extend((*reply.output, {"role": "user", "content": workload.NEXT_QUESTION}))
            return self.read_reply(reply)

        return turn


def contestant(api: str, base: str, variant: str) -> OpenAISdk:
    if api == "openai-chat":
        return Chat(base)
    if api == "openai-responses":
        return Responses(base)
    raise Absent("speaks OpenAI's APIs")
