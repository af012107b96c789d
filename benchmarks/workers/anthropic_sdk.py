"""Anthropic's SDK: one client of each kind, kept open; its beta tool runner is the loop."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from importlib import import_module
from typing import Any

from benchmarks import workload
from benchmarks.workers.tasks import Absent
from benchmarks.workload import Output

VERSIONS = ("anthropic", "httpx2", "pydantic")
anthropic: Any = import_module("anthropic")


class AnthropicSdk:
    asked: dict[str, Any] = {  # noqa: RUF012
        "model": workload.MODELS["anthropic"],
        "messages": [{"role": "user", "content": workload.QUESTION}],
        "max_tokens": workload.MAX_TOKENS,
    }

    def __init__(self, base: str) -> None:
        self.settings = {"base_url": base, "api_key": workload.KEY}
        self.client = anthropic.Anthropic(**self.settings)

    @cached_property
    def async_client(self) -> Any:
        """Keep more than 100 idle connections, which 256 requests in flight need."""
        limits = import_module("httpx2").Limits(max_connections=None, max_keepalive_connections=None)
        return anthropic.AsyncAnthropic(**self.settings, http_client=anthropic.DefaultAsyncHttpxClient(limits=limits))

    @staticmethod
    def read_reply(reply: Any) -> Output:
        text = "".join(block.text for block in reply.content if block.type == "text")
        return text, (reply.usage.input_tokens, reply.usage.output_tokens)

    def call(self) -> Output:
        return self.read_reply(self.client.messages.create(**self.asked))

    async def acall(self) -> Output:
        return self.read_reply(await self.async_client.messages.create(**self.asked))

    def stream(self) -> Output:
        """Read the events; `messages.stream` also builds the message."""
        reader = Reader()
        for event in self.client.messages.create(**self.asked, stream=True):
            reader.take(event)
        return reader.result()

    async def astream(self) -> Output:
        reader = Reader()
        async for event in await self.async_client.messages.create(**self.asked, stream=True):
            reader.take(event)
        return reader.result()

    def _long(self) -> dict[str, Any]:
        system, *said = workload.long_history()
        tools = [
            {"name": tool["name"], "description": tool["description"], "input_schema": tool["parameters"]}
            for tool in workload.many_tools()
        ]
        return {**self.asked, "system": system["content"], "messages": said, "tools": tools}

    def first(self) -> Output:
        return self.read_reply(self.client.messages.create(**self._long()))

    def conversation(self) -> Callable[[], Output]:
        asked = self._long()
        said: list[Any] = asked["messages"]

        def turn() -> Output:
            reply = self.client.messages.create(**asked)
            said.append({"role": "assistant", "content": reply.content})
            said.append({"role": "user", "content": workload.NEXT_QUESTION})
            return self.read_reply(reply)

        return turn

    @cached_property
    def tool(self) -> Any:
        @anthropic.beta_tool  # type: ignore[untyped-decorator]
        def get_weather(city: str, unit: str) -> str:
            """The weather in a city, now.

            Args:
                city: The name of the city.
                unit: The unit of temperatures.
            """
            return workload.weather(city, unit)

        return get_weather

    def loop(self) -> Output:
        asked = {**self.asked, "messages": [{"role": "user", "content": workload.LOOP_QUESTION}]}
        reply = self.client.beta.messages.tool_runner(**asked, tools=[self.tool]).until_done()
        return self.read_reply(reply)[0], None


class Reader:
    def __init__(self) -> None:
        self.texts: list[str] = []
        self.prompt = self.completion = 0

    def take(self, event: Any) -> None:
        if event.type == "content_block_delta":
            self.texts.append(event.delta.text)
        elif event.type == "message_start":
            self.prompt = event.message.usage.input_tokens
        elif event.type == "message_delta":
            self.completion = event.usage.output_tokens

    def result(self) -> Output:
        return "".join(self.texts), (self.prompt, self.completion)


def contestant(api: str, base: str, variant: str) -> AnthropicSdk:
    if api != "anthropic":
        raise Absent("speaks Anthropic's API")
    return AnthropicSdk(base)
