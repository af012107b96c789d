"""An agent as a value: copied, varied, handed on."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import openai

from agent import Agent, RetryConfig, ToolSpec
from agent.testing import scripted_agent

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
