"""Importing the package costs little and loads nothing that is not needed yet."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from benchmarks.imports import LIMIT, import_ratio

LATER = (
    "openai",
    "anthropic",
    "google",
    "httpx",
    "httpx2",
    "httpcore2",
    "aiohttp",
    "genai_prices",
    "jsonschema",
    "tenacity",
)


def loaded_by(code: str) -> set[str]:
    script = f"{code}\nimport json, sys\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return set(json.loads(done.stdout))


@pytest.mark.parametrize("code", ["import agent", "from agent import Agent", "import agent.types, agent.errors"])
def test_an_import_loads_no_vendor_no_http_and_no_event_loop(code: str) -> None:
    loaded = loaded_by(code)
    assert not {name for name in loaded if name.split(".")[0] in (*LATER, "asyncio", "ssl", "socket")}


def test_a_blocking_call_needs_no_event_loop() -> None:
    code = "from agent import Agent\nassert Agent('scripted:m').complete('x').text == 'You said: x'"
    assert "asyncio" not in loaded_by(code)


def test_an_import_reads_no_file_but_code_and_opens_no_socket() -> None:
    code = """
import sys
events = []
def watch(event, args):
    if event.startswith("socket.") or event in ("subprocess.Popen", "os.system"):
        events.append(event)
    if event == "open" and not str(args[0]).endswith((".py", ".pyc", ".so", ".pth", ".zip")) and args[1] != "rb":
        events.append(f"open {args[0]}")
sys.addaudithook(watch)
import agent
from agent import Agent
assert not events, events
"""
    loaded_by(code)


@pytest.mark.timing
def test_an_import_costs_little_more_than_pydantic_itself() -> None:
    ratio, floor, ours = import_ratio(rounds=9)
    assert ratio <= LIMIT, f"{ours:.0f} ms against {floor:.0f} ms"
