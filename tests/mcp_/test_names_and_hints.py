"""Names, risks and argument checks of a server's tools."""

from __future__ import annotations

import random
import re
import subprocess
import sys
from typing import Any

import mcp_types
import pytest

from agent import errors
from agent.mcp import MCPServer
from agent.mcp.credentials import Redactor
from agent.mcp.errors import ConnectionLog
from agent.mcp.tools import RISK, MCPTool, assign_names, classify_tool
from agent.testing import Answer, LoopbackServer
from agent.tools import ArgumentsError
from tests.mcp_.conftest import HERE

FITS = re.compile(r"[a-zA-Z_][a-zA-Z0-9_-]{0,63}")


@pytest.mark.parametrize(
    ("original", "name"),
    [
        ("read_file", "read_file"),
        ("read-file", "read-file"),
        ("files.read", "files_read"),
        ("files/read", "files_read"),
        ("2fast", "_2fast"),
        ("-dash", "_-dash"),
        ("grüßen", "gr__en"),
        ("", "_"),
        ("工具", "__"),
    ],
)
def test_a_name_is_changed_as_little_as_possible(original: str, name: str) -> None:
    assert assign_names([original]) == {original: name}


def test_a_name_that_fits_stays_and_its_double_is_told_apart() -> None:
    names = assign_names(["a_b", "a.b", "a:b"])
    assert names["a_b"] == "a_b"
    assert len(set(names.values())) == 3


def test_names_do_not_depend_on_the_order_and_always_fit(rng: random.Random) -> None:
    for _ in range(200):
        originals = list({"".join(rng.choices("ab._/ü9", k=rng.randint(0, 70))) for _ in range(rng.randint(1, 30))})
        names = assign_names(originals, "p.")
        assert len(set(names.values())) == len(originals)
        assert all(FITS.fullmatch(name) for name in names.values())
        rng.shuffle(originals)
        assert assign_names(originals, "p.") == names


def test_a_long_name_is_cut_and_two_that_are_alike_so_far_are_told_apart() -> None:
    names = assign_names(["x" * 70, "x" * 71, "x" * 64])
    assert names["x" * 64] == "x" * 64
    assert len(set(names.values())) == 3


def tool_with(**hints: Any) -> mcp_types.Tool:
    return mcp_types.Tool(
        name="t", input_schema={"type": "object"}, annotations=mcp_types.ToolAnnotations(**hints) if hints else None
    )


@pytest.mark.parametrize(
    ("hints", "trusted", "untrusted"),
    [
        ({}, ("write", False), ("write", False)),
        ({"read_only_hint": True}, ("read", True), ("write", False)),
        ({"read_only_hint": True, "open_world_hint": True}, ("network", True), ("network", False)),
        ({"open_world_hint": True}, ("network", False), ("network", False)),
        ({"open_world_hint": False}, ("write", False), ("write", False)),
        ({"open_world_hint": True, "destructive_hint": True}, ("write", False), ("write", False)),
        ({"idempotent_hint": True}, ("write", True), ("write", False)),
        ({"destructive_hint": False}, ("write", False), ("write", False)),
    ],
)
def test_a_hint_that_reassures_is_believed_only_from_the_trusted(
    hints: dict[str, bool], trusted: Any, untrusted: Any
) -> None:
    assert classify_tool(tool_with(**hints), trusted=True) == trusted
    assert classify_tool(tool_with(**hints), trusted=False) == untrusted


def test_a_server_that_says_it_runs_code_is_believed() -> None:
    tool = mcp_types.Tool(name="t", input_schema={"type": "object"}, _meta={RISK: "exec"})
    assert classify_tool(tool, trusted=False)[0] == "exec"


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"a": {"$ref": "file:///etc/passwd"}}},
        {"type": "object", "properties": {"a": {"type": "no such type"}}},
        {"type": "object", "properties": {"a": {"pattern": "("}}},
        {"type": "object", "$ref": "#/nowhere"},
    ],
)
def test_a_schema_that_leads_elsewhere_or_is_broken_is_left_to_the_server(schema: dict[str, Any]) -> None:
    tool = MCPTool(name="t", parameters=schema)
    assert tool.check({"a": "x"}) == {"a": "x"}


@pytest.mark.filterwarnings("ignore:Automatically retrieving remote references")
@pytest.mark.parametrize("key", ["$ref", "$dynamicRef"])
def test_a_schema_never_makes_us_fetch_anything(key: str) -> None:
    with LoopbackServer(lambda request: Answer([b'{"type": "string"}'])) as elsewhere:
        schema = {"type": "object", "properties": {"a": {"anyOf": [{key: f"{elsewhere.url}/internal"}]}}}
        assert MCPTool(name="t", parameters=schema).check({"a": "x"}) == {"a": "x"}
        assert elsewhere.requests == []
        assert elsewhere.connections_made == 0


def test_a_schema_that_refers_to_itself_is_used() -> None:
    schema = {"type": "object", "properties": {"a": {"$ref": "#/$defs/A"}}, "$defs": {"A": {"type": "integer"}}}
    with pytest.raises(ArgumentsError, match="a: 'x' is not of type 'integer'"):
        MCPTool(name="t", parameters=schema).check({"a": "x"})


def test_last_words_are_bounded() -> None:
    notes = ConnectionLog("server", Redactor())
    for number in range(10_000):
        notes.add_stderr(f"line {number}\n".encode())
    assert notes.describe_end() == "its last message was: line 9999"
    assert len(notes.stderr_tail) <= 2_000


@pytest.mark.parametrize("settings", [{"timeout": 0}, {"connect_timeout": -1}, {"only": "add"}, {"without": "add"}])
def test_settings_that_cannot_be_meant_are_refused(settings: Any) -> None:
    with pytest.raises(errors.ConfigurationError) as caught:
        MCPServer.stdio("true", **settings)
    assert caught.value.field in settings


def test_without_the_extra_the_error_says_how_to_get_it() -> None:
    code = """
import sys
sys.modules["mcp"] = None
from agent.mcp import MCPServer, serve
for use in (lambda: MCPServer.stdio("true"), lambda: MCPServer.http("http://localhost"), lambda: serve([])):
    try:
        use()
    except ValueError as error:
        print(type(error).__name__, error)
print([name for name in ("mcp_types", "anyio", "starlette", "uvicorn") if name in sys.modules])
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=HERE.parent.parent
    )
    *said, loaded = done.stdout.splitlines()
    assert len(said) == 3
    assert all(line.startswith("ConfigurationError") for line in said)
    assert all(line.endswith('pip install "agent-llm-router[mcp]"') for line in said)
    assert loaded == "[]"
