"""Google's SDK: one client, kept open; its automatic function calling is the loop.

Where aiohttp is installed it would use that for async calls; it is not among its own requirements, so httpx it is.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from importlib import import_module
from typing import Any

from benchmarks import workload
from benchmarks.workers.tasks import Absent
from benchmarks.workload import Output

VERSIONS = ("google-genai", "httpx2", "pydantic")


class GoogleGenai:
    def __init__(self, base: str) -> None:
        genai: Any = import_module("google.genai")
        self.types: Any = genai.types
        options = self.types.HttpOptions(base_url=base)
        self.client = genai.Client(api_key=workload.KEY, http_options=options)
        self.model = workload.MODELS["gemini"]

    @cached_property
    def config(self) -> Any:
        off = self.types.AutomaticFunctionCallingConfig(disable=True)
        return self.types.GenerateContentConfig(max_output_tokens=workload.MAX_TOKENS, automatic_function_calling=off)

    @staticmethod
    def read_reply(reply: Any) -> Output:
        usage = reply.usage_metadata
        return reply.text, (usage.prompt_token_count, usage.candidates_token_count)

    def call(self) -> Output:
        asked = {"model": self.model, "contents": workload.QUESTION, "config": self.config}
        return self.read_reply(self.client.models.generate_content(**asked))

    async def acall(self) -> Output:
        asked = {"model": self.model, "contents": workload.QUESTION, "config": self.config}
        return self.read_reply(await self.client.aio.models.generate_content(**asked))

    def stream(self) -> Output:
        texts: list[str] = []
        usage: Any = None
        asked = {"model": self.model, "contents": workload.QUESTION, "config": self.config}
        for chunk in self.client.models.generate_content_stream(**asked):
            texts.append(chunk.text or "")
            usage = chunk.usage_metadata
        return "".join(texts), (usage.prompt_token_count, usage.candidates_token_count)

    async def astream(self) -> Output:
        texts: list[str] = []
        usage: Any = None
        asked = {"model": self.model, "contents": workload.QUESTION, "config": self.config}
        async for chunk in await self.client.aio.models.generate_content_stream(**asked):
            texts.append(chunk.text or "")
            usage = chunk.usage_metadata
        return "".join(texts), (usage.prompt_token_count, usage.candidates_token_count)

    def _long(self) -> tuple[list[Any], Any]:
        types = self.types
        system, *said = workload.long_history()
        contents = [
            types.Content(
                role="model" if one["role"] == "assistant" else "user", parts=[types.Part(text=one["content"])]
            )
            for one in said
        ]
        declarations = [
            types.FunctionDeclaration(
                name=tool["name"], description=tool["description"], parameters_json_schema=tool["parameters"]
            )
            for tool in workload.many_tools()
        ]
        config = types.GenerateContentConfig(
            max_output_tokens=workload.MAX_TOKENS,
            system_instruction=system["content"],
            tools=[types.Tool(function_declarations=declarations)],
            automatic_function_calling=types.AutomaticFunctionCallingConfig(disable=True),
        )
        return contents, config

    def first(self) -> Output:
        contents, config = self._long()
        return self.read_reply(self.client.models.generate_content(model=self.model, contents=contents, config=config))

    def conversation(self) -> Callable[[], Output]:
        types = self.types
        contents, config = self._long()

        def turn() -> Output:
            reply = self.client.models.generate_content(model=self.model, contents=contents, config=config)
            contents.append(reply.candidates[0].content)
            contents.append(types.Content(role="user", parts=[types.Part(text=workload.NEXT_QUESTION)]))
            return self.read_reply(reply)

        return turn

    def loop(self) -> Output:
        def get_weather(city: str, unit: str) -> str:
            """The weather in a city, now."""
            return workload.weather(city, unit)

        config = self.types.GenerateContentConfig(max_output_tokens=workload.MAX_TOKENS, tools=[get_weather])
        chat = self.client.chats.create(model=self.model, config=config)  # where the SDK says that its loop belongs
        return self.read_reply(chat.send_message(workload.LOOP_QUESTION))[0], None


def contestant(api: str, base: str, variant: str) -> GoogleGenai:
    if api != "gemini":
        raise Absent("speaks Gemini's API")
    return GoogleGenai(base)
