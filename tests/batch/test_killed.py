"""`agent batch` with two thousand requests, a faulty vendor, and five kills."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

from agent import errors
from agent.cli.errors import ExitCode
from agent.engine.wire import WireRequest
from agent.testing import Answer, Chaos, LoopbackServer, Script
from tests.conftest import SEED

LINES = 2000
KILLS = 5
CONCURRENCY = 48
FAULTS = (
    "status-429",
    "status-500",
    "status-503",
    "reset-before-headers",
    "disconnect-before-headers",
    "cut-in-the-middle",
    "json-truncated",
)
ROOT = Path(__file__).parents[2]


class Vendor:
    """Echoes, refuses some prompts whatever happens, and breaks one answer in twenty."""

    def __init__(self, seed: int) -> None:
        self.asked: Counter[str] = Counter()
        self._lock = threading.Lock()
        self.chaos = Chaos(self._answer, faults=FAULTS, share=0.05, seed=seed)

    def _answer(self, request: WireRequest) -> Answer:
        text: str = json.loads(request.body)["messages"][-1]["content"]
        with self._lock:
            self.asked[text] += 1
        answer = (Script(errors.BadRequestError("refused")) if "refuse" in text else Script())(request)
        answer.after = 0.02
        return answer


def prompt(number: int) -> str:
    return f"refuse {number}" if number % 50 == 0 else f"question {number} {'long ' * (number % 40)}".strip()


def line(number: int) -> str:
    """Some lines have an id, some have none, some are no request at all."""
    if number % 333 == 0:
        return "{" * 3
    if number % 3 == 0:
        return json.dumps(prompt(number))
    return json.dumps({"custom_id": f"id-{number}", "prompt": prompt(number)})


def is_bad(number: int) -> bool:
    return number % 333 == 0 or number % 50 == 0


def begin(folder: Path, url: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "agent", "batch", "in.jsonl", "out.jsonl", "-m", "openai-chat:test"]
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "OPENAI_API_KEY": "sk-test"}
    return subprocess.Popen(
        [*command, "--base-url", f"{url}/v1", "--concurrency", str(CONCURRENCY), "--retries", "4"],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def read_outcomes(folder: Path) -> list[bytes]:
    """Read the complete lines of both outputs."""
    found = [path.read_bytes() for path in (folder / "out.jsonl", folder / "out.failed.jsonl") if path.exists()]
    return [record for content in found for record in content.split(b"\n")[:-1]]


def parse_outcomes(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(record) for record in read_outcomes(folder)]


def kill(running: subprocess.Popen[bytes], folder: Path, more: int, pause: float) -> None:
    """Not before so many more outcomes are there."""
    enough = len(read_outcomes(folder)) + more
    end = time.monotonic() + 60
    while len(read_outcomes(folder)) < enough and running.poll() is None:
        assert time.monotonic() < end, "it does nothing"
        time.sleep(0.005)
    time.sleep(pause)
    running.kill()
    said = running.communicate()[1]
    assert running.returncode == -signal.SIGKILL, said


def test_every_line_is_answered_or_reported_exactly_once_however_often_it_is_killed(tmp_path: Path) -> None:
    rng = random.Random(SEED)
    (tmp_path / "in.jsonl").write_text("\n".join(line(number) for number in range(1, LINES + 1)), "utf-8")
    vendor = Vendor(SEED)
    with LoopbackServer(vendor.chaos) as server:
        for _ in range(KILLS):
            kill(begin(tmp_path, server.url), tmp_path, more=rng.randrange(20, 250), pause=rng.random() * 0.03)
            done = {prompt(record["line"]) for record in parse_outcomes(tmp_path)}
            assert vendor.asked.keys() - done, "nothing was under way when it was killed"
            assert len(done) < LINES
        last = begin(tmp_path, server.url)
        _, said = last.communicate(timeout=100)
        sent = len(server.requests)
    assert last.returncode == ExitCode.PARTIAL, said

    records = parse_outcomes(tmp_path)
    assert sorted(record["line"] for record in records) == list(range(1, LINES + 1))
    for name in ("out.jsonl", "out.failed.jsonl"):
        assert (tmp_path / name).read_bytes().endswith(b"\n"), "a torn line"
    failures = {record["line"]: record["error"]["type"] for record in records if "error" in record}
    for record in records:
        number = record["line"]
        assert record.get("custom_id") == (None if number % 3 == 0 else f"id-{number}")
        assert number in failures or record["response"]["text"] == f"You said: {prompt(number)}"
    for number in filter(is_bad, range(1, LINES + 1)):
        assert failures.pop(number) == ("ConfigurationError" if number % 333 == 0 else "BadRequestError")
    assert len(failures) <= 10  # those that met a fault five times in a row

    # Only requests that were running at a kill, or met a fault, were sent again.
    faults = len(vendor.chaos.injected)
    assert 0.02 < faults / sent < 0.08
    assert sum(times - 1 for times in vendor.asked.values()) <= KILLS * CONCURRENCY + faults
