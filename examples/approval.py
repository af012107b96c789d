"""Approve a tool call: pause the run, store it, and resume it later.

Runs offline.
"""

from __future__ import annotations

from agent import ToolCall, ToolContext, tool
from agent.loop import Ask, PausedRun
from agent.testing import scripted_agent


@tool
def pay(recipient: str, amount: int) -> str:
    """Pay a recipient."""
    return f"paid {amount} to {recipient}"


def request_approval(call: ToolCall, context: ToolContext[None]) -> Ask:
    return Ask(f"{call.name} {dict(call.arguments)}?")


def main() -> None:
    call = ToolCall(id="call_1", name="pay", arguments={"recipient": "Ada", "amount": 5})
    agent = scripted_agent(call, "Ada has her money.", tools=[pay])

    result = agent.run("Pay Ada five.", before_tool_call=request_approval)
    assert result.paused is not None
    print("waiting:", *(call.reason for call in result.paused.pending))
    stored = result.paused.to_json()  # store it in a file, a database or a queue

    paused = PausedRun.from_json(stored)
    result = agent.run(paused.approve())
    print(result.messages[2].text)
    print(result.text)


if __name__ == "__main__":
    main()
