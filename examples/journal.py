"""Resume a killed run in another process, without repeating tool calls. Runs offline."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from agent import ToolCall, tool
from agent.loop import SqliteJournal, list_calls
from agent.testing import scripted_agent


@tool
def pay(recipient: str) -> str:
    """Pay a recipient."""
    print(f"  paid {recipient}", flush=True)
    return f"paid {recipient}"


@tool
def power_cut() -> str:
    """End the process immediately, as a power cut would."""
    os._exit(1)


def work(file: str) -> None:
    calls = [ToolCall(id="call_1", name="pay", arguments={"recipient": "Ada"})]
    calls.append(ToolCall(id="call_2", name="power_cut", arguments={}))
    executed = list_calls(SqliteJournal(file).read("wages"))  # a script, unlike a model, does not read the conversation
    agent = scripted_agent(*calls[len(executed) :], "Done.", tools=[pay, power_cut])
    print(" ", agent.run("Pay the wages.", run_id="wages", journal=SqliteJournal(file)).text)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = str(Path(folder) / "runs.db")
        for attempt in ("first", "second"):
            print(f"{attempt} process:", flush=True)
            subprocess.run([sys.executable, __file__, file])
        for call in list_calls(SqliteJournal(file).read("wages")):
            print(f"{call.name}: {call.outcome}")


if __name__ == "__main__":
    work(sys.argv[1]) if len(sys.argv) > 1 else main()
