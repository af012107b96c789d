"""Importing the package costs little and loads nothing that is not needed yet."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import agent
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


def list_modules_loaded_by(code: str) -> set[str]:
    script = f"{code}\nimport json, sys\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return set(json.loads(done.stdout))


@pytest.mark.parametrize("code", ["import agent", "from agent import Agent", "import agent.types, agent.errors"])
def test_an_import_loads_no_vendor_no_http_and_no_event_loop(code: str) -> None:
    loaded = list_modules_loaded_by(code)
    assert not {name for name in loaded if name.split(".")[0] in (*LATER, "asyncio", "ssl", "socket")}


def test_a_blocking_call_needs_no_event_loop() -> None:
    code = "from agent import Agent\nassert Agent('scripted:m').complete('x').text == 'You said: x'"
    assert "asyncio" not in list_modules_loaded_by(code)


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
    list_modules_loaded_by(code)


@pytest.mark.timing
def test_an_import_costs_little_more_than_pydantic_itself() -> None:
    ratio, floor, ours = import_ratio(rounds=9)
    assert ratio <= LIMIT, f"{ours:.0f} ms against {floor:.0f} ms"


PACKAGE = Path(agent.__file__).parent
LOADED_ON_USE = {
    **dict.fromkeys(("mcp", "mcp_types", "anyio", "uvicorn", "rich", "socksio"), "an extra"),
    **dict.fromkeys(("fcntl", "msvcrt", "resource", "readline", "ctypes", "termios"), "not on every system"),
    **dict.fromkeys(("asyncio", "ssl"), "a blocking call needs no event loop, and plain HTTP no TLS"),
    **dict.fromkeys(("jsonschema", "jsonschema_specifications", "referencing"), "30 ms, for answers with a schema"),
    **dict.fromkeys(("genai_prices",), "50 ms, for costs that somebody looks at"),
    **dict.fromkeys(("tenacity",), "6 ms, for settings that only a few have"),
}
"""Other packages that functions may import. Our own modules need a comment, `# lazy: ` and a reason."""


def imports_in_functions(tree: ast.AST, inside: bool = False) -> Iterator[ast.Import | ast.ImportFrom]:
    for node in ast.iter_child_nodes(tree):
        if inside and isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        yield from imports_in_functions(node, inside or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def test_an_import_in_a_function_has_a_reason() -> None:
    unexplained = []
    for path in sorted(PACKAGE.rglob("*.py")):
        text = path.read_text("utf-8")
        for node in imports_in_functions(ast.parse(text)):
            named = node.names[0].name if isinstance(node, ast.Import) else "." * node.level + (node.module or "")
            line = text.splitlines()[(node.end_lineno or node.lineno) - 1]
            if named.split(".")[0] not in LOADED_ON_USE and "# lazy: " not in line:
                unexplained.append(f"{path.relative_to(PACKAGE)}:{node.lineno} {ast.unparse(node)}")
    assert unexplained == []
