"""any-llm: a provider object of `AnyLLM.create`, kept as its documentation advises.

Its blocking calls run the async ones in a loop of a thread. It has no loop of tools.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from typing_extensions import override

from benchmarks import workload
from benchmarks.workers.openai_sdk_readers import ResponsesReader, aread_all, read_all
from benchmarks.workload import Output

VERSIONS = ("any-llm-sdk", "openai", "anthropic", "google-genai", "pydantic")
PROVIDERS = {"openai-chat": "openai", "openai-responses": "openai", "anthropic": "anthropic", "gemini": "gemini"}


class AnyLLM:
    def __init__(self, api: str, base: str) -> None:
        library: Any = import_module("any_llm")
        address = f"{base}/v1" if api.startswith("openai") else base
        # Blocking and async calls have a provider each: its client's connections belong to one event loop.
        make = library.AnyLLM.create
        self.blocking = make(PROVIDERS[api], api_key=workload.KEY, api_base=address)
        self.provider = make(PROVIDERS[api], api_key=workload.KEY, api_base=address)
        self.settings: dict[str, Any] = {"model": workload.MODELS[api], "max_tokens": workload.MAX_TOKENS}
        self.asked = {**self.settings, "messages": [{"role": "user", "content": workload.QUESTION}]}
        self.streamed = {**self.asked, "stream": True}
        if api == "openai-chat":
            self.streamed["stream_options"] = {"include_usage": True}

    @staticmethod
    def read_reply(reply: Any) -> Output:
        return reply.choices[0].message.content, (reply.usage.prompt_tokens, reply.usage.completion_tokens)

    def call(self) -> Output:
        return self.read_reply(self.blocking.completion(**self.asked))

    async def acall(self) -> Output:
        return self.read_reply(await self.provider.acompletion(**self.asked))

    def stream(self) -> Output:
        return read_all(self.blocking.completion(**self.streamed))

    async def astream(self) -> Output:
        return await aread_all(await self.provider.acompletion(**self.streamed))

    def _long(self) -> dict[str, Any]:
        tools = [{"type": "function", "function": tool} for tool in workload.many_tools()]
        return {**self.settings, "messages": workload.long_history(), "tools": tools}

    def first(self) -> Output:
        return self.read_reply(self.blocking.completion(**self._long()))

    def conversation(self) -> Callable[[], Output]:
        asked = self._long()
        messages: list[Any] = asked["messages"]

        def turn() -> Output:
            reply = self.blocking.completion(**asked)
            messages.extend((reply.choices[0].message, {"role": "user", "content": workload.NEXT_QUESTION}))
            return self.read_reply(reply)

        return turn


class AnyLLMResponses(AnyLLM):
    def __init__(self, api: str, base: str) -> None:
        super().__init__(api, base)
        self.asked = {
            "model": workload.MODELS[api],
            "max_output_tokens": workload.MAX_TOKENS,
            "store": False,
            "input_data": [{"role": "user", "content": workload.QUESTION}],
        }

    read_reply = staticmethod(lambda reply: (reply.output_text, (reply.usage.input_tokens, reply.usage.output_tokens)))

    @override
    def call(self) -> Output:
        return self.read_reply(self.blocking.responses(**self.asked))

    @override
    async def acall(self) -> Output:
        return self.read_reply(await self.provider.aresponses(**self.asked))

    @override
    def stream(self) -> Output:
        reader = ResponsesReader()
        for event in self.blocking.responses(**self.asked, stream=True):
            reader.take(event)
        return reader.result()

    @override
    async def astream(self) -> Output:
        reader = ResponsesReader()
        async for event in await self.provider.aresponses(**self.asked, stream=True):
            reader.take(event)
        return reader.result()

    @override
    def _long(self) -> dict[str, Any]:
        tools = [{"type": "function", "strict": False, **tool} for tool in workload.many_tools()]
        return {**self.asked, "input_data": workload.long_history(), "tools": tools}

    @override
    def first(self) -> Output:
        return self.read_reply(self.blocking.responses(**self._long()))

    @override
    def conversation(self) -> Callable[[], Output]:
        asked = self._long()
        said: list[Any] = asked["input_data"]

        def turn() -> Output:
            reply = self.blocking.responses(**asked)
            said.extend(item.model_dump(exclude_none=True) for item in reply.output)  # it takes no other form back
            said.append({"role": "user", "content": workload.NEXT_QUESTION})
            return self.read_reply(reply)

        return turn


def contestant(api: str, base: str, variant: str) -> AnyLLM:
    return AnyLLMResponses(api, base) if api == "openai-responses" else AnyLLM(api, base)
