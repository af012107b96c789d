"""langchain: a chat model of each integration, kept; `create_agent` is the loop. Tracing is off."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from importlib import import_module
from typing import Any

from benchmarks import workload
from benchmarks.workload import Output

VERSIONS = ("langchain", "langchain-core", "langchain-openai", "langchain-anthropic", "langchain-google-genai")


def _model(api: str, base: str) -> Any:
    settings: dict[str, Any] = {"model": workload.MODELS[api], "max_tokens": workload.MAX_TOKENS}
    settings |= {"api_key": workload.KEY, "base_url": f"{base}/v1" if api.startswith("openai") else base}
    if api == "gemini":
        return import_module("langchain_google_genai").ChatGoogleGenerativeAI(**settings)
    if api == "anthropic":
        return import_module("langchain_anthropic").ChatAnthropic(**settings)
    settings |= {"use_responses_api": api == "openai-responses", "stream_usage": True}
    return import_module("langchain_openai").ChatOpenAI(**settings)


class LangChain:
    def __init__(self, api: str, base: str) -> None:
        self.model = _model(api, base)

    @staticmethod
    def read_reply(message: Any) -> Output:
        usage = message.usage_metadata
        return str(message.text), (usage["input_tokens"], usage["output_tokens"])

    def call(self) -> Output:
        return self.read_reply(self.model.invoke(workload.QUESTION))

    async def acall(self) -> Output:
        return self.read_reply(await self.model.ainvoke(workload.QUESTION))

    def stream(self) -> Output:
        reader = Reader()
        for chunk in self.model.stream(workload.QUESTION):
            reader.take(chunk)
        return reader.result()

    async def astream(self) -> Output:
        reader = Reader()
        async for chunk in self.model.astream(workload.QUESTION):
            reader.take(chunk)
        return reader.result()

    def _long(self) -> tuple[list[Any], Any]:
        kinds: Any = import_module("langchain_core.messages")
        made = {"system": kinds.SystemMessage, "user": kinds.HumanMessage, "assistant": kinds.AIMessage}
        history = [made[said["role"]](said["content"]) for said in workload.long_history()]
        tools = [{"type": "function", "function": tool} for tool in workload.many_tools()]
        return history, self.model.bind_tools(tools)

    def first(self) -> Output:
        history, model = self._long()
        return self.read_reply(model.invoke(history))

    def conversation(self) -> Callable[[], Output]:
        human: Any = import_module("langchain_core.messages").HumanMessage
        history, model = self._long()

        def turn() -> Output:
            reply = model.invoke(history)
            history.extend((reply, human(workload.NEXT_QUESTION)))
            return self.read_reply(reply)

        return turn

    @cached_property
    def agent(self) -> Any:
        def get_weather(city: str, unit: str) -> str:
            """The weather in a city, now.

            Args:
                city: The name of the city.
                unit: The unit of temperatures.
            """
            return workload.weather(city, unit)

        return import_module("langchain.agents").create_agent(self.model, tools=[get_weather])

    def loop(self) -> Output:
        state = self.agent.invoke({"messages": [{"role": "user", "content": workload.LOOP_QUESTION}]})
        return str(state["messages"][-1].text), None


class Reader:
    """Each chunk tells the usage that it adds."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.prompt = self.completion = 0

    def take(self, chunk: Any) -> None:
        self.texts.append(chunk.text)
        usage = chunk.usage_metadata
        if usage:
            self.prompt += usage["input_tokens"]
            self.completion += usage["output_tokens"]

    def result(self) -> Output:
        return "".join(self.texts), (self.prompt, self.completion)


def contestant(api: str, base: str, variant: str) -> LangChain:
    return LangChain(api, base)
