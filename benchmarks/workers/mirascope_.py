"""mirascope: a provider registered with the server's address, and a Model; `resume` is the loop."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from importlib import import_module
from typing import Any

from benchmarks import workload
from benchmarks.workload import Output

VERSIONS = ("mirascope", "openai", "anthropic", "google-genai", "pydantic")
NAMES = {
    "openai-chat": ("openai", "openai/", ":completions"),
    "openai-responses": ("openai", "openai/", ":responses"),
    "anthropic": ("anthropic", "anthropic/", ""),
    "gemini": ("google", "google/", ""),
}


class Mirascope:
    def __init__(self, api: str, base: str) -> None:
        self.llm: Any = import_module("mirascope.llm")
        name, self.scope, suffix = NAMES[api]
        address = f"{base}/v1" if api.startswith("openai") else base
        self.provider = self.llm.register_provider(name, scope=self.scope, api_key=workload.KEY, base_url=address)
        self._model = self.llm.Model(f"{self.scope}{workload.MODELS[api]}{suffix}", max_tokens=workload.MAX_TOKENS)

    @property
    def model(self) -> Any:
        """Providers are global: the one with this server's address is put back, which costs a microsecond."""
        self.llm.register_provider(self.provider, scope=self.scope)
        return self._model

    @staticmethod
    def read_reply(response: Any) -> Output:
        return response.text(), (response.usage.input_tokens, response.usage.output_tokens)

    def call(self) -> Output:
        return self.read_reply(self.model.call(workload.QUESTION))

    async def acall(self) -> Output:
        return self.read_reply(await self.model.call_async(workload.QUESTION))

    def stream(self) -> Output:
        response = self.model.stream(workload.QUESTION)
        texts = [chunk.delta for chunk in response.chunk_stream() if chunk.type == "text_chunk"]
        return "".join(texts), (response.usage.input_tokens, response.usage.output_tokens)

    async def astream(self) -> Output:
        response = await self.model.stream_async(workload.QUESTION)
        texts = [chunk.delta async for chunk in response.chunk_stream() if chunk.type == "text_chunk"]
        return "".join(texts), (response.usage.input_tokens, response.usage.output_tokens)

    def _long(self) -> tuple[list[Any], list[Any]]:
        made = self.llm.messages
        history: list[Any] = []
        for said in workload.long_history():
            if said["role"] == "system":
                history.append(made.system(said["content"]))
            elif said["role"] == "user":
                history.append(made.user(said["content"]))
            else:
                history.append(made.assistant(said["content"], model_id=None, provider_id=None))
        return history, [self._tool(tool) for tool in workload.many_tools()]

    def _tool(self, described: dict[str, Any]) -> Any:
        """From a schema, as its own bridge to MCP makes tools; usually they are made from functions."""
        schemas: Any = import_module("mirascope.llm.tools.tool_schema")
        parameters = schemas.ToolParameterSchema(
            properties=described["parameters"]["properties"], required=described["parameters"]["required"]
        )
        named = {"name": described["name"], "description": described["description"]}
        return self.llm.Tool(fn=_fail_if_called, parameters=parameters, strict=False, **named)

    def first(self) -> Output:
        history, tools = self._long()
        return self.read_reply(self.model.call(history, tools=tools))

    def conversation(self) -> Callable[[], Output]:
        history, tools = self._long()
        model = self.model

        def turn() -> Output:
            response = model.call(history, tools=tools)
            history.extend((response.messages[-1], self.llm.messages.user(workload.NEXT_QUESTION)))
            return self.read_reply(response)

        return turn

    @cached_property
    def weather(self) -> Any:
        @self.llm.tool  # type: ignore[untyped-decorator]
        def get_weather(city: str, unit: str) -> str:
            """The weather in a city, now.

            Args:
                city: The name of the city.
                unit: The unit of temperatures.
            """
            return workload.weather(city, unit)

        return get_weather

    def loop(self) -> Output:
        response = self.model.call(workload.LOOP_QUESTION, tools=[self.weather])
        while response.tool_calls:
            response = response.resume(response.execute_tools())
        return response.text(), None


def _fail_if_called(query: str, limit: int) -> str:
    raise RuntimeError("the tool must not be called")


def contestant(api: str, base: str, variant: str) -> Mirascope:
    return Mirascope(api, base)
