"""A file of requests with some of each kind, and what to expect of its outcomes."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from agent import Agent, errors
from agent.batch import FileReport, run_file
from agent.engine.wire import WireRequest
from agent.testing import Answer, Script
from tests.batch.ways import create_observed_agent, last_text


def reject_bad_requests(request: WireRequest) -> Answer:
    """Refuses what is bad, echoes the rest."""
    return (Script(errors.BadRequestError("refused")) if "bad" in last_text(request) else Script())(request)


def echo() -> Agent:
    return create_observed_agent(script=reject_bad_requests)[0]


def read_records(path: Path) -> list[dict[str, Any]]:
    text = path.read_text("utf-8")
    assert not text or text.endswith("\n"), "a torn line"
    return [json.loads(line) for line in text.splitlines()]


class Files:
    """An input with some of each kind, and where its outcomes go."""

    def __init__(self, folder: Path, count: int = 10) -> None:
        self.source, self.target = folder / "in.jsonl", folder / "out.jsonl"
        self.failures = folder / "out.failed.jsonl"
        self.prompts: dict[int, str] = {}
        self.ids: dict[int, str | None] = {}
        self.bad: set[int] = set()
        lines: list[str] = []
        for number in range(1, count + 1):
            self.ids[number] = f"id-{number}" if number % 2 else None
            self.prompts[number] = f"bad {number}" if number % 5 == 0 else f"question {number}"
            if number % 5 == 0:
                self.bad.add(number)
            named = {} if self.ids[number] is None else {"custom_id": self.ids[number]}
            lines.append(json.dumps({**named, "prompt": self.prompts[number]}))
            if number == 4:
                lines[-1] = "{not json"
                self.bad.add(number)
        self.source.write_text("\n".join(lines) + "\n", "utf-8")

    def run(self, caller: Any = None, **options: Any) -> FileReport:
        return run_file(caller or echo(), self.source, self.target, **{"concurrency": 4, **options})

    def check(self, *, complete: bool = True) -> None:
        """No line twice, no torn line, every answer with its question; at the end, all of them."""
        answers, failures = read_records(self.target), read_records(self.failures)
        numbers = Counter(record["line"] for record in (*answers, *failures))
        assert not [number for number, times in numbers.items() if times > 1]
        for record in answers:
            assert record["response"]["text"] == f"You said: {self.prompts[record['line']]}"
            assert record.get("custom_id") == self.ids[record["line"]]
        assert {record["line"] for record in failures} <= self.bad
        if complete:
            assert set(numbers) == set(self.prompts)
