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
NOT_PUBLIC = ("agent/providers/", "agent/engine/", "agent/schemas/", "agent/testing/rules/", "agent/types/_base.py")
"""Modules that users do not call: codecs of JSON, flows and validators of data of every type."""
PLAIN = re.compile(r"\b(?:Mapping|dict)\[str, Any\]|\bToolContext\[Any\]")
"""JSON objects, and contexts of tools that need no dependencies."""


@needs_pyright
def test_every_public_name_has_a_complete_type() -> None:
    report = pyright_output("--verifytypes", "agent", "--ignoreexternal")["typeCompleteness"]
    incomplete = [
        symbol["name"] for symbol in report["symbols"] if symbol["isTypeAmbiguous"] or not symbol["isTypeKnown"]
    ]
    assert (report["completenessScore"], incomplete) == (1, [])


def list_exported_names() -> set[str]:
    """Names in an `__all__` of the package."""
    texts = (path.read_text("utf-8") for path in (ROOT / "agent").rglob("*.py"))
    lists = (re.search(r"^__all__ = \[(.*?)\]", text, re.M | re.S) for text in texts)
    return {name for found in lists if found for name in re.findall(r'"(\w+)"', found[1])}


def public_functions(tree: ast.Module, exported: set[str]) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Public functions and methods, without the implementations of overloads."""
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name in exported]
    functions = [node for node in tree.body if getattr(node, "name", None) in exported and node not in classes]
    for body in (functions, *(node.body for node in classes)):
        overloaded: set[str] = set()
        for node in body:
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            is_overload = any(ast.unparse(decorator) == "overload" for decorator in node.decorator_list)
            if is_overload:
                overloaded.add(node.name)
            # pydantic declares the types of methods such as `model_dump`.
            is_public = node.name in ("__init__", "__call__") or not node.name.startswith(("_", "model_"))
            if is_public and (is_overload or node.name not in overloaded):
                yield node


def has_any(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether `Any` is in the signature, besides in JSON objects and in `raw`, the vendor's own data."""
    own = function.args
    arguments = [*own.posonlyargs, *own.args, *own.kwonlyargs, own.vararg, own.kwarg]
    found = [argument.annotation for argument in arguments if argument is not None and argument.arg != "raw"]
    types = [ast.unparse(annotation) for annotation in (*found, function.returns) if annotation is not None]
    return any(re.search(r"\bAny\b", PLAIN.sub("", each)) for each in types)


def test_any_in_a_public_signature_is_explained() -> None:
    exported, unexplained, checked = list_exported_names(), [], 0
    for path in sorted((ROOT / "agent").rglob("*.py")):
        module = path.relative_to(ROOT).as_posix()
        if module.startswith(NOT_PUBLIC):
            continue
        text = path.read_text("utf-8")
        for function in public_functions(ast.parse(text), exported):
            checked += 1
            signature = text.splitlines()[function.lineno - 1 : function.body[0].lineno]
            if has_any(function) and not any("# Any: " in line for line in signature):
                unexplained.append(f"{module}:{function.lineno} {function.name}")
    assert unexplained == []
    assert checked > 500


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
