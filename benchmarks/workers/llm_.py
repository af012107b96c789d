"""llm: model objects of its plugins, kept; its `chain` is the loop. Nothing is logged to its database.

The plugins make a new client, and so a new connection, for each prompt. The one for Gemini has the vendor's address
in its code and cannot take part; the one for Anthropic always streams, and takes part in streams only.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from importlib import import_module
from typing import Any

from benchmarks import workload
from benchmarks.workers.tasks import Absent
from benchmarks.workload import Output

VERSIONS = ("llm", "llm-anthropic", "openai", "anthropic")


class Llm:
    def __init__(self, api: str, base: str) -> None:
        self.api = api
        self.base = base
        self.llm: Any = import_module("llm")
        self.model = self._model()
        self.settings: dict[str, Any] = {} if api == "openai-responses" else {"max_tokens": workload.MAX_TOKENS}

    def _model(self, prefix: str = "") -> Any:
        if self.api == "anthropic":
            kind = getattr(import_module("llm_anthropic"), f"{prefix}ClaudeMessages")
            model = kind(workload.MODELS[self.api], base_url=self.base, supports_system_messages=True)
            model.key = workload.KEY
            return model
        name = "Chat" if self.api == "openai-chat" else "Responses"
        kind = getattr(import_module("llm.default_plugins.openai_models"), f"{prefix}{name}")
        return kind(workload.MODELS[self.api], key=workload.KEY, api_base=f"{self.base}/v1", supports_tools=True)

    @cached_property
    def async_model(self) -> Any:
        return self._model("Async")

    def _whole(self) -> None:
        if self.api == "anthropic":
            raise Absent("its plugin for Anthropic always streams")

    def call(self) -> Output:
        self._whole()
        response = self.model.prompt(workload.QUESTION, stream=False, **self.settings)
        text, usage = response.text(), response.usage()
        return text, (usage.input, usage.output)

    async def acall(self) -> Output:
        self._whole()
        response = self.async_model.prompt(workload.QUESTION, stream=False, **self.settings)
        text, usage = await response.text(), await response.usage()
        return text, (usage.input, usage.output)

    def stream(self) -> Output:
        response = self.model.prompt(workload.QUESTION, **self.settings)
        text, usage = "".join(response), response.usage()
        return text, (usage.input, usage.output)

    async def astream(self) -> Output:
        response = self.async_model.prompt(workload.QUESTION, **self.settings)
        texts = [piece async for piece in response]
        usage = await response.usage()
        return "".join(texts), (usage.input, usage.output)

    def _long(self) -> tuple[list[Any], list[Any]]:
        self._whole()
        made: Any = import_module("llm.parts")
        history = [getattr(made, said["role"])(said["content"]) for said in workload.long_history()]
        tools = [
            self.llm.Tool(name=tool["name"], description=tool["description"], input_schema=tool["parameters"])
            for tool in workload.many_tools()
        ]
        return history, tools

    def _ask(self, history: list[Any], tools: list[Any]) -> Output:
        response = self.model.prompt(messages=history, tools=tools, stream=False, **self.settings)
        text, usage = response.text(), response.usage()
        return text, (usage.input, usage.output)

    def first(self) -> Output:
        return self._ask(*self._long())

    def conversation(self) -> Callable[[], Output]:
        made: Any = import_module("llm.parts")
        history, tools = self._long()

        def turn() -> Output:
            found = self._ask(history, tools)
            history.extend((made.assistant(found[0]), made.user(workload.NEXT_QUESTION)))
            return found

        return turn

    def loop(self) -> Output:
        self._whole()

        def get_weather(city: str, unit: str) -> str:
            """The weather in a city, now."""
            return workload.weather(city, unit)

        chain = self.model.chain(workload.LOOP_QUESTION, tools=[get_weather], stream=False, options=self.settings)
        return chain.text(), None


def contestant(api: str, base: str, variant: str) -> Llm:
    if api == "gemini":
        raise Absent("its plugin for Gemini takes no address")
    return Llm(api, base)
