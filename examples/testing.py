"""Test code that uses an agent: scripted responses, recorded requests, virtual time.

Runs offline.
"""

from __future__ import annotations

from agent import Agent, errors
from agent.testing import Script, ScriptedTransport, Simulation, simulate


def summarize(agent: Agent, text: str) -> str:
    """The code under test."""
    return agent.complete(f"Summarize: {text}", temperature=0.0).text or ""


def test_the_text_reaches_the_model() -> None:
    script = Script("A short text.")
    agent = Agent("scripted:test", transport=ScriptedTransport(script))
    assert summarize(agent, "A long text.") == "A short text."
    assert script.requests[0]["messages"] == [{"role": "user", "content": "Summarize: A long text."}]
    assert script.requests[0]["temperature"] == 0.0


def test_a_rate_limit_of_ninety_seconds_is_waited_for() -> None:
    simulation = Simulation(Script(errors.RateLimitError("slow down", retry_after=90), "Hello"))
    response = simulate(simulation, Agent("scripted:test"), "Hi")
    assert response.text == "Hello"
    assert simulation.now >= 90


if __name__ == "__main__":
    test_the_text_reaches_the_model()
    test_a_rate_limit_of_ninety_seconds_is_waited_for()
    print("2 tests passed")
