"""Ask a person before a tool runs: pause the run, write it down, go on later.

Runs offline.
"""

from __future__ import annotations

from agent import ToolCall, ToolContext, tool
from agent.loop import Ask, PausedRun
from agent.testing import scripted_agent


@tool
def pay(recipient: str, amount: int) -> str:
    """Pays somebody."""
    return f"paid {amount} to {recipient}"


def before(call: ToolCall, context: ToolContext[None]) -> Ask:
    return Ask(f"{call.name} {dict(call.arguments)}?")


def main() -> None:
    call = ToolCall(id="call_1", name="pay", arguments={"recipient": "Ada", "amount": 5})
    agent = scripted_agent(call, "Ada has her money.", tools=[pay])

    result = agent.run("Pay Ada five.", before_tool_call=before)
    assert result.paused is not None
    print("waiting:", *(one.reason for one in result.paused.pending))
    written = result.paused.to_json()  # into a file, a database, a queue

    paused = PausedRun.from_json(written)
    result = agent.run(paused.approve())
    print(result.messages[2].text)
    print(result.text)


if __name__ == "__main__":
    main()
