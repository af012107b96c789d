"""This library."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks import workload
from benchmarks.workload import Found

VERSIONS = ("agent-llm-router", "httpx2", "pydantic")


def _found(response: Any) -> Found:
    usage = response.usage
    return response.text, (usage.input_tokens, usage.output_tokens)


class Ours:
    """An agent, made once. Its settings are the defaults but for the transport."""

    def __init__(self, api: str, base: str) -> None:
        from agent import Agent

        self.api = api
        self.base = base
        self.agent: Agent = self._agent(base)

    def _agent(self, base: str, **more: Any) -> Any:
        from agent import Agent

        address = f"{base}/v1" if self.api.startswith("openai") else base
        name = f"{self.api}:{workload.MODELS[self.api]}"
        settings = {"api_key": workload.KEY, "max_tokens": workload.MAX_TOKENS, **more}
        return Agent(name, base_url=address, **settings)

    def call(self) -> Found:
        return _found(self.agent.complete(workload.QUESTION))

    async def acall(self) -> Found:
        return _found(await self.agent.acomplete(workload.QUESTION))

    def stream(self) -> Found:
        texts: list[str] = []
        with self.agent.stream(workload.QUESTION) as stream:
            for event in stream:
                if event.type == "text_delta":
                    texts.append(event.text or "")
        return "".join(texts), _found(stream.response)[1]

    async def astream(self) -> Found:
        texts: list[str] = []
        async with self.agent.astream(workload.QUESTION) as stream:
            async for event in stream:
                if event.type == "text_delta":
                    texts.append(event.text or "")
        return "".join(texts), _found(stream.response)[1]

    def _long(self) -> tuple[list[Any], list[Any]]:
        from agent import Message, ToolSpec

        messages = [Message(said["role"], said["content"]) for said in workload.long_history()]  # type: ignore[arg-type]
        tools = [
            ToolSpec(name=tool["name"], description=tool["description"], parameters=tool["parameters"])
            for tool in workload.many_tools()
        ]
        return messages, tools

    def first(self) -> Found:
        messages, tools = self._long()
        return _found(self.agent.complete(messages, tools=tools))

    def conversation(self) -> Callable[[], Found]:
        from agent import Message

        messages, tools = self._long()

        def turn() -> Found:
            response = self.agent.complete(messages, tools=tools)
            messages.extend((response.message, Message.user(workload.NEXT_QUESTION)))
            return _found(response)

        return turn

    def loop(self) -> Found:
        from agent import tool

        if not hasattr(self, "tools"):

            @tool
            def get_weather(city: str, unit: str) -> str:
                """The weather in a city, now.

                Args:
                    city: The name of the city.
                    unit: The unit of temperatures.
                """
                return workload.weather(city, unit)

            self.tools = [get_weather]
        result = self.agent.run(workload.LOOP_QUESTION, tools=self.tools)
        if result.turns != workload.TURNS:
            raise RuntimeError(f"{result.turns} turns")
        return result.text or "", None

    # Failing over, and the two calls that it consists of.

    def failover(self) -> Found:
        from agent import RetryConfig, Router

        if not hasattr(self, "router"):
            # Without a breaker and a budget, which would soon stop asking twice: each call shall make both attempts.
            targets = [self._agent(self._failing()), self.agent]
            self.router = Router(targets, breaker=False, retry=RetryConfig(max_retries=3, budget=None))
        return _found(self.router.complete(workload.QUESTION))

    def pair(self) -> Found:
        from agent import errors

        if not hasattr(self, "broken"):
            self.broken = self._agent(self._failing(), max_retries=0)
        try:
            self.broken.complete(workload.QUESTION)
        except errors.AgentError:
            return self.call()
        raise RuntimeError("the failing server has answered")

    def _failing(self) -> str:
        return f"{self.base.rpartition('/')[0]}/fail"


def contestant(api: str, base: str, variant: str) -> Ours:
    return Ours(api, base)
