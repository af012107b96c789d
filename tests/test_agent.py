"""An agent as a value: copied, varied, handed on."""

from __future__ import annotations

import copy
import sys
from pathlib import Path
from types import FrameType, SimpleNamespace

import openai
import pytest

import agent as package
from agent import Agent, RetryConfig, ToolSpec
from agent.testing import LoopbackServer, VendorScript, scripted_agent

LOOK = ToolSpec(name="look", description="Looks")


def test_a_copy_of_an_agent_is_the_agent_whatever_it_sends_through() -> None:
    with openai.OpenAI(api_key="sk-test") as client:
        for agent in (scripted_agent("hi"), Agent("openai-chat:gpt-5", client=client)):
            assert copy.copy(agent) is agent
            assert copy.deepcopy(SimpleNamespace(agent=agent)).agent is agent


def test_a_variant_keeps_everything_that_was_not_changed() -> None:
    agent = Agent("openai-chat:gpt-5", api_key="k", tools=[LOOK], retry=RetryConfig(max_retries=7, max_delay=3.0))
    variant = agent.with_config(temperature=0.5)
    assert (variant.config.temperature, agent.config.temperature) == (0.5, None)
    assert (variant.tools, variant.retry) == (agent.tools, agent.retry)
    assert variant.config.api_key == "k"
    assert variant.with_config(max_retries=1).retry == RetryConfig(max_retries=1, max_delay=3.0)
    with openai.OpenAI(api_key="sk-test") as client:
        brought = Agent("openai-chat:gpt-5", client=client)
        assert brought.with_config(model="gpt-4o")._client is client


@pytest.mark.no_cover
@pytest.mark.parametrize(
    ("api", "modules", "functions"),
    [("openai-chat", 30, 150), ("openai-responses", 30, 162), ("anthropic", 30, 170), ("gemini", 31, 175)],
)
def test_a_warm_call_enters_few_modules_and_functions(api: str, modules: int, functions: int) -> None:
    """Modules and functions to read when following a call. Python 3.11 counts comprehensions."""
    entered: dict[str, set[tuple[str, int]]] = {}
    directory = str(Path(package.__file__).parent)

    def profile(frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(directory):
            entered.setdefault(code.co_filename, set()).add((code.co_name, code.co_firstlineno))

    with LoopbackServer(VendorScript()) as server:
        base_url = f"{server.url}/v1" if api.startswith("openai") else server.url
        agent = Agent(f"{api}:m", api_key="sk-test", base_url=base_url, max_tokens=100)
        for _ in range(2):
            agent.complete("hi")
        before = sys.getprofile()
        sys.setprofile(profile)
        try:
            agent.complete("hi")
        finally:
            sys.setprofile(before)
    assert len(entered) <= modules, sorted(entered)
    assert sum(map(len, entered.values())) <= functions
