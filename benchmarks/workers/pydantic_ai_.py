"""pydantic-ai in two variants: its direct API for requests, and its Agent.

A model object is made once and kept. Its blocking calls run the async ones in an event loop. Instrumentation is off,
as it is by default. The Agent's loop is the loop of tools.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from importlib import import_module
from typing import Any

from benchmarks import workload
from benchmarks.workload import Output

VERSIONS = ("pydantic-ai-slim", "openai", "anthropic", "google-genai", "pydantic")


def _model(api: str, base: str) -> Any:
    if api == "gemini":
        provider = import_module("pydantic_ai.providers.google").GoogleProvider(api_key=workload.KEY, base_url=base)
        return import_module("pydantic_ai.models.google").GoogleModel(workload.MODELS[api], provider=provider)
    if api == "anthropic":
        kind = import_module("pydantic_ai.providers.anthropic").AnthropicProvider
        provider = kind(api_key=workload.KEY, base_url=base)
        return import_module("pydantic_ai.models.anthropic").AnthropicModel(workload.MODELS[api], provider=provider)
    kind = import_module("pydantic_ai.providers.openai").OpenAIProvider
    provider = kind(api_key=workload.KEY, base_url=f"{base}/v1")
    models = import_module("pydantic_ai.models.openai")
    made = models.OpenAIChatModel if api == "openai-chat" else models.OpenAIResponsesModel
    return made(workload.MODELS[api], provider=provider)


class Shared:
    def __init__(self, api: str, base: str) -> None:
        self.model = _model(api, base)
        # Connections belong to the loop that opened them, so that async tasks have a model of their own.
        self.async_model = _model(api, base)
        self.messages: Any = import_module("pydantic_ai.messages")
        self.settings = {"max_tokens": workload.MAX_TOKENS}

    def _history(self) -> list[Any]:
        kinds = self.messages
        system, *said = workload.long_history()
        made: list[Any] = []
        for one in said:
            if one["role"] == "user":
                parts = [kinds.UserPromptPart(content=one["content"])]
                if not made:
                    parts.insert(0, kinds.SystemPromptPart(content=system["content"]))
                made.append(kinds.ModelRequest(parts=parts))
            else:
                made.append(kinds.ModelResponse(parts=[kinds.TextPart(content=one["content"])]))
        return made

    @staticmethod
    def _text(response: Any) -> str:
        return "".join(part.content for part in response.parts if part.part_kind == "text")


class Direct(Shared):
    @cached_property
    def direct(self) -> Any:
        return import_module("pydantic_ai.direct")

    def read_reply(self, response: Any) -> Output:
        return self._text(response), (response.usage.input_tokens, response.usage.output_tokens)

    def _question(self) -> list[Any]:
        return [self.messages.ModelRequest.user_text_prompt(workload.QUESTION)]

    def call(self) -> Output:
        asked = self._question()
        return self.read_reply(self.direct.model_request_sync(self.model, asked, model_settings=self.settings))

    async def acall(self) -> Output:
        asked = self._question()
        return self.read_reply(await self.direct.model_request(self.async_model, asked, model_settings=self.settings))

    def stream(self) -> Output:
        texts: list[str] = []
        asked = self._question()
        with self.direct.model_request_stream_sync(self.model, asked, model_settings=self.settings) as stream:
            for event in stream:
                texts.append(_delta(event))
            return "".join(texts), self.read_reply(stream.response)[1]

    async def astream(self) -> Output:
        texts: list[str] = []
        asked = self._question()
        async with self.direct.model_request_stream(self.async_model, asked, model_settings=self.settings) as stream:
            async for event in stream:
                texts.append(_delta(event))
            return "".join(texts), self.read_reply(stream.get())[1]

    def _tools(self) -> Any:
        definition = import_module("pydantic_ai.tools").ToolDefinition
        tools = [
            definition(name=tool["name"], description=tool["description"], parameters_json_schema=tool["parameters"])
            for tool in workload.many_tools()
        ]
        return import_module("pydantic_ai.models").ModelRequestParameters(function_tools=tools)

    def first(self) -> Output:
        asked, tools = self._history(), self._tools()
        reply = self.direct.model_request_sync(
            self.model, asked, model_settings=self.settings, model_request_parameters=tools
        )
        return self.read_reply(reply)

    def conversation(self) -> Callable[[], Output]:
        said, tools = self._history(), self._tools()

        def turn() -> Output:
            reply = self.direct.model_request_sync(
                self.model, said, model_settings=self.settings, model_request_parameters=tools
            )
            said.extend((reply, self.messages.ModelRequest.user_text_prompt(workload.NEXT_QUESTION)))
            return self.read_reply(reply)

        return turn


class WithAgent(Shared):
    def __init__(self, api: str, base: str) -> None:
        super().__init__(api, base)
        self.kind: Any = import_module("pydantic_ai").Agent
        self.agent = self.kind(self.model, model_settings=self.settings)

    @cached_property
    def async_agent(self) -> Any:
        return self.kind(self.async_model, model_settings=self.settings)

    @staticmethod
    def read_reply(result: Any) -> Output:
        usage = result.usage
        return result.output, (usage.input_tokens, usage.output_tokens)

    def call(self) -> Output:
        return self.read_reply(self.agent.run_sync(workload.QUESTION))

    async def acall(self) -> Output:
        return self.read_reply(await self.async_agent.run(workload.QUESTION))

    def stream(self) -> Output:
        """Read deltas without debouncing."""
        result = self.agent.run_stream_sync(workload.QUESTION)
        texts = list(result.stream_text(delta=True, debounce_by=None))
        usage = result.usage
        return "".join(texts), (usage.input_tokens, usage.output_tokens)

    async def astream(self) -> Output:
        async with self.async_agent.run_stream(workload.QUESTION) as result:
            texts = [text async for text in result.stream_text(delta=True, debounce_by=None)]
            usage = result.usage
        return "".join(texts), (usage.input_tokens, usage.output_tokens)

    def _toolset(self) -> Any:
        """External tools, described by a schema."""
        definition = import_module("pydantic_ai.tools").ToolDefinition
        tools = [
            definition(name=tool["name"], description=tool["description"], parameters_json_schema=tool["parameters"])
            for tool in workload.many_tools()
        ]
        return import_module("pydantic_ai.toolsets").ExternalToolset(tools)

    @cached_property
    def deferring(self) -> Any:
        tools = import_module("pydantic_ai.tools").DeferredToolRequests
        return self.kind(self.model, model_settings=self.settings, output_type=[str, tools])

    def first(self) -> Output:
        *said, last = self._history()
        asked = last.parts[0].content
        return self.read_reply(self.deferring.run_sync(asked, message_history=said, toolsets=[self._toolset()]))

    def conversation(self) -> Callable[[], Output]:
        *said, last = self._history()
        tools = [self._toolset()]
        ask = last.parts[0].content

        def turn() -> Output:
            nonlocal ask, said
            result = self.deferring.run_sync(ask, message_history=said, toolsets=tools)
            said, ask = result.all_messages(), workload.NEXT_QUESTION
            return self.read_reply(result)

        return turn

    @cached_property
    def looping(self) -> Any:
        agent = self.kind(self.model, model_settings=self.settings)

        @agent.tool_plain  # type: ignore[untyped-decorator]
        def get_weather(city: str, unit: str) -> str:
            """The weather in a city, now.

            Args:
                city: The name of the city.
                unit: The unit of temperatures.
            """
            return workload.weather(city, unit)

        return agent

    def loop(self) -> Output:
        return self.looping.run_sync(workload.LOOP_QUESTION).output, None


def _delta(event: Any) -> str:
    if event.event_kind == "part_delta":
        return event.delta.content_delta or ""
    if event.event_kind == "part_start":
        return event.part.content or ""
    return ""


def contestant(api: str, base: str, variant: str) -> Shared:
    return Direct(api, base) if variant == "direct" else WithAgent(api, base)
