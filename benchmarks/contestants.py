"""Contestants, their environments, and the protocol of their processes."""

from __future__ import annotations

import json
import os
import select
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from benchmarks.environments import Environment

ROOT = Path(__file__).parent.parent
LONGEST = 300.0
"""Timeout of a block in seconds."""


@dataclass(frozen=True)
class Entry:
    name: str
    module: str
    environment: str
    variant: str = "-"


FLOOR = Entry("raw httpx", "raw_httpx", "floor")
AGAIN = Entry("raw httpx, again", "raw_httpx", "floor")
"""The floor a second time, in another process: its ratio to the first says how far to trust the others."""
OURS = Entry("agent", "agent_", "agent", "http")
PEERS = (
    Entry("httpx2 + orjson", "raw_httpx2", "fast-json"),
    Entry("aiohttp + orjson", "raw_aiohttp", "aiohttp"),
    Entry("openai", "openai_sdk", "openai"),
    Entry("anthropic", "anthropic_sdk", "anthropic"),
    Entry("google-genai", "google_genai", "google-genai"),
    Entry("litellm", "litellm_", "litellm"),
    Entry("any-llm", "any_llm_", "any-llm"),
    Entry("aisuite", "aisuite_", "aisuite"),
    Entry("pydantic-ai, direct", "pydantic_ai_", "pydantic-ai", "direct"),
    Entry("pydantic-ai, Agent", "pydantic_ai_", "pydantic-ai", "agent"),
    Entry("langchain", "langchain_", "langchain"),
    Entry("mirascope", "mirascope_", "mirascope"),
    Entry("llm", "llm_", "llm"),
)
EVERYONE = (FLOOR, AGAIN, OURS, *PEERS)

_QUIET = {
    "ANTHROPIC_API_KEY": "sk-benchmark",
    "GEMINI_API_KEY": "sk-benchmark",
    "OPENAI_API_KEY": "sk-benchmark",
    "LANGCHAIN_TRACING_V2": "false",
    "LANGSMITH_TRACING": "false",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "NO_PROXY": "127.0.0.1",
}
"""API keys that some libraries read from the environment, and settings that disable telemetry and downloads."""


def build_environment_variables() -> dict[str, str]:
    """Environment variables of a contestant, without settings of this machine."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TMPDIR") if name in os.environ}
    return {**kept, **_QUIET}


def command(entry: Entry, environment: Environment, program: str, *arguments: str) -> list[str]:
    return [str(environment.python), "-m", program, entry.module, entry.variant, *arguments]


class ContestantError(Exception):
    """The process of a contestant does not answer."""


class Process:
    """Process of a contestant."""

    def __init__(self, entry: Entry, environment: Environment, server: str, log: Path) -> None:
        self.entry = entry
        self.versions: dict[str, str] = {}
        self.reason = environment.reason
        self._process: subprocess.Popen[bytes] | None = None
        if environment.python is None:
            return
        log.parent.mkdir(parents=True, exist_ok=True)
        self._log: IO[bytes] = log.open("wb")
        self._process = subprocess.Popen(
            command(entry, environment, "benchmarks.workers", server),
            cwd=ROOT,
            env=build_environment_variables(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
        )

    def wait_until_ready(self) -> None:
        """Wait until the process is ready. A process that cannot start is absent, with the reason."""
        if self._process is None:
            return
        try:
            self.versions = self._read_reply()["versions"]
        except ContestantError:
            self.close()
            lines = Path(self._log.name).read_text(errors="replace").strip().splitlines()
            self.reason = lines[-1][:300] if lines else "its process ended at once"

    def ask(self, **order: Any) -> dict[str, Any]:
        if self._process is None:
            return {"absent": self.reason}
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(order).encode() + b"\n")
            self._process.stdin.flush()
            return self._read_reply()
        except (OSError, ContestantError) as error:
            self.close()
            self.reason = f"its process failed at {order['task']}, {order['api']}: {error}"
            return {"error": self.reason}

    def _read_reply(self) -> dict[str, Any]:
        assert self._process is not None
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], LONGEST)
        line = self._process.stdout.readline() if ready else b""
        if not line:
            raise ContestantError("no answer" if not ready else "it ended")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()
            self._log.close()
