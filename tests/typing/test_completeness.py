"""Every public name has a complete type; editors complete and explain the options."""

from __future__ import annotations

import ast
import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .checkers import HAS_PYRIGHT, NO_PYRIGHT, PYRIGHT, ROOT, pyright_output, write_pyright_config

needs_pyright = pytest.mark.skipif(not HAS_PYRIGHT, reason=NO_PYRIGHT)
MODULES = {
    "agent": "Agent",
    "base_client": "BaseClient",
    "batch/values": "BatchItem BatchResult",
    "client": "Client",
    "loop/hooks": "Hooks",
    "middleware/base": "CallInfo Middleware",
    "routing/router": "Router",
    "routing/strategies": "Strategy",
    "sessions/session": "AgentSession",
    "sessions/state": "SessionState",
    "testing/__init__": "scripted_agent",
    "testing/simulation": "simulate start",
    "tools/base": "Tool ToolContext",
    "tools/functions": "FunctionTool tool",
    "types/response": "AgentResponse",
}
"""Modules, and the classes and functions in them that users call."""
JSON_OBJECTS = {"Mapping[str, Any]", "dict[str, Any]", "Mapping[str, Any] | None", "Session | Mapping[str, Any]"}


@needs_pyright
def test_every_public_name_has_a_complete_type() -> None:
    report = pyright_output("--verifytypes", "agent", "--ignoreexternal")["typeCompleteness"]
    incomplete = [
        symbol["name"] for symbol in report["symbols"] if symbol["isTypeAmbiguous"] or not symbol["isTypeKnown"]
    ]
    assert (report["completenessScore"], incomplete) == (1, [])


def public_functions(tree: ast.Module, names: list[str]) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Public functions and methods, without the implementations of overloads."""
    functions: list[ast.stmt] = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name in names]
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name in names]
    for body in (functions, *(node.body for node in classes)):
        overloaded: set[str] = set()
        for node in body:
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            is_overload = any(ast.unparse(decorator) == "overload" for decorator in node.decorator_list)
            if is_overload:
                overloaded.add(node.name)
            if (node.name[0] != "_" or node.name == "__init__") and (is_overload or node.name not in overloaded):
                yield node


@pytest.mark.parametrize("module", MODULES)
def test_any_in_a_public_signature_is_explained(module: str) -> None:
    text = (ROOT / "agent" / f"{module}.py").read_text("utf-8")
    lines = text.splitlines()
    unexplained = []
    for function in public_functions(ast.parse(text), MODULES[module].split()):
        arguments = function.args
        annotated = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
        annotations = [argument.annotation for argument in annotated if argument is not None] + [function.returns]
        types = [ast.unparse(annotation) for annotation in annotations if annotation is not None]
        has_any = any(re.search(r"\bAny\b", each) for each in types if each not in JSON_OBJECTS)
        signature = lines[function.lineno - 1 : function.body[0].lineno]
        if has_any and not any("# Any: " in line for line in signature):
            unexplained.append(f"{function.name} ({function.lineno})")
    assert unexplained == []


def test_any_in_an_option_is_explained() -> None:
    lines = (ROOT / "agent" / "types" / "options.py").read_text("utf-8").splitlines()
    options = [line for line in lines if re.match(r"    \w+: .*\bAny\b", line)]
    assert [line for line in options if "# Any: " not in line] == []


class LanguageServer:
    """pyright-langserver over stdio, with one open document."""

    def __init__(self, folder: Path, text: str) -> None:
        self._process = subprocess.Popen(
            ["node", str(PYRIGHT / "langserver.index.js"), "--stdio"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self._requests = 0
        self._document = {"uri": (folder / "program.py").as_uri()}
        root = {"uri": folder.as_uri(), "name": "programs"}
        self.request("initialize", {"processId": None, "capabilities": {}, "workspaceFolders": [root]})
        self._send({"method": "initialized", "params": {}})
        document = {**self._document, "languageId": "python", "version": 1, "text": text}
        self._send({"method": "textDocument/didOpen", "params": {"textDocument": document}})

    def _send(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        self._process.stdin.write(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        self._process.stdin.flush()

    def _receive(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        length = 0
        while line := self._process.stdout.readline().strip():
            if line.lower().startswith(b"content-length:"):
                length = int(line.split(b":")[1])
        message: dict[str, Any] = json.loads(self._process.stdout.read(length))
        return message

    def request(self, method: str, params: dict[str, Any]) -> Any:
        """Send a request, answer those of the server, and return the result."""
        self._requests += 1
        self._send({"id": self._requests, "method": method, "params": params})
        while True:
            message = self._receive()
            if "method" not in message and message.get("id") == self._requests:
                return message["result"]
            if "method" in message and "id" in message:
                self._send({"id": message["id"], "result": None})

    def at(self, method: str, line: int, character: int) -> Any:
        """Ask about a place in the document."""
        place = {"line": line, "character": character}
        return self.request(f"textDocument/{method}", {"textDocument": self._document, "position": place})

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


PROGRAM = """\
from agent import Agent, Router
agent = Agent("scripted:echo")
agent.complete("x", te)
agent.complete("x", temperature=0.5)
Router([agent], strategy="")
"""


@needs_pyright
def test_an_editor_completes_and_explains_options(tmp_path: Path) -> None:
    write_pyright_config(tmp_path)
    lines = PROGRAM.splitlines()
    server = LanguageServer(tmp_path, PROGRAM)
    try:
        completed = server.at("completion", 2, lines[2].index("te)") + 2)
        assert "temperature=" in [item["label"] for item in completed["items"]]
        hover = server.at("hover", 3, lines[3].index("temperature") + 2)
        assert "Sampling temperature, 0 to 2." in json.dumps(hover)
        strategies = server.at("completion", 4, lines[4].index('""') + 1)
        assert {'"cheapest"', '"fastest"', '"fallback"'} <= {item["label"] for item in strategies["items"]}
    finally:
        server.close()
