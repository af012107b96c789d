"""Contestant for this package."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks import workload
from benchmarks.workload import Output

VERSIONS = ("agent-llm-router", "httpx2", "pydantic")


def _read_response(response: Any) -> Output:
    usage = response.usage
    return response.text, (usage.input_tokens, usage.output_tokens)


class AgentContestant:
    """One agent with default settings."""

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

    def call(self) -> Output:
        return _read_response(self.agent.complete(workload.QUESTION))

    async def acall(self) -> Output:
        return _read_response(await self.agent.acomplete(workload.QUESTION))

    def stream(self) -> Output:
        texts: list[str] = []
        with self.agent.stream(workload.QUESTION) as stream:
            for event in stream:
                if event.type == "text_delta":
                    texts.append(event.text or "")
        return "".join(texts), _read_response(stream.response)[1]

    async def astream(self) -> Output:
        texts: list[str] = []
        async with self.agent.astream(workload.QUESTION) as stream:
            async for event in stream:
                if event.type == "text_delta":
                    texts.append(event.text or "")
        return "".join(texts), _read_response(stream.response)[1]

    def _long(self) -> tuple[list[Any], list[Any]]:
        from agent import Message, ToolSpec

        messages = [Message(turn["role"], turn["content"]) for turn in workload.long_history()]  # type: ignore[arg-type]
        tools = [
            ToolSpec(name=tool["name"], description=tool["description"], parameters=tool["parameters"])
            for tool in workload.many_tools()
        ]
        return messages, tools

    def first(self) -> Output:
        messages, tools = self._long()
        return _read_response(self.agent.complete(messages, tools=tools))

    def conversation(self) -> Callable[[], Output]:
        from agent import Message

        messages, tools = self._long()

        def turn() -> Output:
            response = self.agent.complete(messages, tools=tools)
            messages.extend((response.message, Message.user(workload.NEXT_QUESTION)))
            return _read_response(response)

        return turn

    def loop(self) -> Output:
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

    # Failover, and its two calls made one by one.

    def failover(self) -> Output:
        from agent import RetryConfig, Router

        if not hasattr(self, "router"):
            # A circuit breaker or retry budget would stop the second attempt.
            targets = [self._agent(self._get_failing_url()), self.agent]
            self.router = Router(targets, breaker=False, retry=RetryConfig(max_retries=3, budget=None))
        return _read_response(self.router.complete(workload.QUESTION))

    def pair(self) -> Output:
        from agent import errors

        if not hasattr(self, "broken"):
            self.broken = self._agent(self._get_failing_url(), max_retries=0)
        try:
            self.broken.complete(workload.QUESTION)
        except errors.AgentError:
            return self.call()
        raise RuntimeError("the failing server answered")

    def _get_failing_url(self) -> str:
        return f"{self.base.rpartition('/')[0]}/fail"


def contestant(api: str, base: str, variant: str) -> AgentContestant:
    return AgentContestant(api, base)
