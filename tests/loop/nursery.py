"""A process to fork: each child executes a run with a journal, until it ends or is killed.

Starting an interpreter takes a hundred times as long as forking one that has loaded everything, and a test that kills a
hundred of them cannot wait that long. Commands are lines of JSON: `{"start": {…}}` is answered with the child's pid,
`{"wait": pid}` with its exit status, when it has ended. The result of a run is in the file `<pid>.json`.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from agent import Agent, ToolContext, tool
from agent.errors import AgentError
from agent.loop import Ask, PausedRun, RunResult, SqliteJournal
from agent.testing import Script, ScriptedTransport
from agent.types import AgentResponse, TextContent, ToolCall

TURNS, CALLS = 4, 3


class Nursery:
    """The forking process, as a test holds it."""

    def __init__(self) -> None:
        root = Path(__file__).parents[2]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.loop.nursery"],
            cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": "."},
        )  # fmt: skip

    def start(self, directory: Path, run_id: str, **options: Any) -> int:
        return self._ask({"start": {"directory": str(directory), "run_id": run_id, **options}})

    def wait(self, pid: int) -> int:
        return self._ask({"wait": pid})

    def outcome(self, directory: Path, pid: int) -> dict[str, Any] | None:
        """The child's result, or None if it was killed."""
        self.wait(pid)
        file = directory / f"{pid}.json"
        return json.loads(file.read_text()) if file.exists() else None

    def _ask(self, command: Mapping[str, Any]) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(command), file=self._process.stdin, flush=True)
        return int(self._process.stdout.readline())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._process.communicate()


# The children


def reply(body: dict[str, Any]) -> AgentResponse:
    """Deterministic for a conversation."""
    turn = sum(message["role"] == "assistant" for message in body["messages"])
    calls = [
        ToolCall(id=f"t{turn}c{place}", name="append", arguments={"n": 10 * turn + place})
        for place in range(CALLS if turn < TURNS else 0)
    ]
    return AgentResponse(content=(TextContent(text=f"turn {turn}"), *calls))


def create_appending_agent(file: Path, seconds: float) -> Agent:
    """An agent with a tool that leaves a trace for each time it is run."""

    @tool
    def append(n: int, context: ToolContext[None]) -> str:
        """Appends a line to a file."""
        target = os.open(file, os.O_APPEND | os.O_CREAT | os.O_WRONLY)
        os.write(target, f"{context.call_id}\n".encode())
        os.close(target)
        time.sleep(seconds)
        return f"wrote {n}"

    return Agent("scripted:m", transport=ScriptedTransport(Script(*[reply] * 100)), tools=[append])


def ask_about_some(call: ToolCall, context: Any) -> Ask | None:
    return Ask("Shall it?") if call.id in ("t1c1", "t2c0") else None


def perform(directory: str, run_id: str, way: str = "run", seconds: float = 0.004, **options: Any) -> None:
    """One child: a run, or a paused one with everything approved."""
    place = Path(directory)
    if (most := options.get("most_bytes")) is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    request = "Go." if "paused" not in options else PausedRun.from_json(options["paused"]).approve()
    hook = ask_about_some if options.get("asks") else None
    outcome: dict[str, Any]
    try:
        journal = SqliteJournal(place / "runs.db")
        agent = create_appending_agent(place / run_id, seconds)
        asked: dict[str, Any] = {"run_id": run_id, "journal": journal, "before_tool_call": hook}
        result: RunResult = agent.run(request, **asked) if way == "run" else asyncio.run(agent.arun(request, **asked))
        outcome = {"messages": [message.to_dict() for message in result.messages], "text": result.text}
        if result.paused is not None:
            outcome["paused"] = result.paused.to_json()
    except AgentError as error:
        outcome = {"error": type(error).__name__, "message": str(error)}
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.getrlimit(resource.RLIMIT_FSIZE)[1],) * 2)
    file = place / f"{os.getpid()}.json"
    file.with_suffix(".new").write_text(json.dumps(outcome))
    file.with_suffix(".new").rename(file)


def main() -> None:
    for line in sys.stdin:
        command = json.loads(line)
        if "wait" in command:
            answer = os.waitpid(command["wait"], 0)[1]
        elif (answer := os.fork()) == 0:
            try:
                perform(**command["start"])
            finally:
                os._exit(0)
        print(answer, flush=True)


if __name__ == "__main__":
    main()
