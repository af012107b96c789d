"""The public surface is a list, and this reads it."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import re
import tomllib
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest
from inline_snapshot import snapshot

import agent
import agent.types
from agent.providers import sdk_clients
from tests.support.cases import for_each

PACKAGE = Path(agent.__file__).parent
ROOT = PACKAGE.parent


def test_the_public_names_are_these() -> None:
    assert agent.__all__ == snapshot(
        [
            "Agent",
            "AgentConfig",
            "AgentError",
            "AgentRequest",
            "AgentResponse",
            "ContentPart",
            "Hooks",
            "Message",
            "ProviderCapabilities",
            "RetryConfig",
            "Role",
            "Router",
            "RoutingStrategy",
            "RunResult",
            "StreamEvent",
            "Target",
            "ThinkingLevel",
            "Tool",
            "ToolCall",
            "ToolContext",
            "ToolError",
            "ToolLoopConfig",
            "ToolRegistry",
            "ToolResult",
            "ToolSpec",
            "Usage",
            "errors",
            "register_provider",
            "tool",
        ]
    )
    for name in agent.__all__:
        assert getattr(agent, name) is not None


def test_the_types_of_the_package_are_all_in_agent_types() -> None:
    for name in agent.types.__all__:
        assert hasattr(agent.types, name)
    sixteen = (
        "ContentPart Message AgentRequest Usage AgentResponse ToolSpec ToolCall ToolResult StreamEvent StreamEventType "
        "AgentConfig ProviderCapabilities RetryConfig ToolLoopConfig RoutingStrategy RouteResult"
    )
    assert set(sixteen.split()) <= set(agent.types.__all__)


def test_every_public_name_is_documented() -> None:
    pages = [ROOT / "README.md", *(page for page in (ROOT / "docs").rglob("*.md") if page.parent.name != "decisions")]
    code = re.compile(r"```.*?```|`[^`\n]+`|^::: .*$", re.DOTALL | re.MULTILINE)
    documented = {word for page in pages for text in code.findall(page.read_text("utf-8")) for word in words(text)}
    for name, module in public_modules().items():
        assert set(module.__all__) <= documented, f"{name}: {set(module.__all__) - documented}"


def words(text: str) -> list[str]:
    return re.findall(r"\w+", text)


INTERNAL = ("agent.providers.", "agent.testing.faults", "agent.testing.rules")
"""Packages of one wire format or of one test tool. Their exports are for other packages of the library."""


def public_modules() -> dict[str, ModuleType]:
    names = ["agent", *(found.name for found in pkgutil.walk_packages([str(PACKAGE)], "agent."))]
    imported = {name: importlib.import_module(name) for name in names if not name.startswith(INTERNAL)}
    return {name: module for name, module in imported.items() if hasattr(module, "__all__")}


IMPORTED_AS = {"google-genai": "google.genai", "httpx2[socks]": "socksio"}


def test_every_extra_is_used_by_the_package() -> None:
    """Extras bring what the package imports, or the SDKs whose clients it recognizes by name."""
    nodes = [node for path in modules() for node in ast.walk(ast.parse(path.read_text("utf-8")))]
    used = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    used |= {str(node.module) for node in nodes if isinstance(node, ast.ImportFrom) and not node.level}
    used |= {package for package, _ in sdk_clients._KINDS}
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    for extra, requirements in extras.items():
        for requirement in () if extra == "dev" else requirements:
            name = re.split(r"[<>=!~ ]", requirement)[0]
            module = IMPORTED_AS.get(name, name)
            assert any(f"{each}.".startswith(f"{module}.") for each in used), f"nothing imports {name} of {extra}"


def test_the_version_is_that_of_the_distribution() -> None:
    from importlib.metadata import version

    assert agent.__version__ == version("agent-llm-router")
    with pytest.raises(AttributeError, match="nonsense"):
        agent.nonsense  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("package", "name", "message"),
    [
        ("agent", "Agnet", "Did you mean agent.Agent?"),
        ("agent", "TextContent", "Use `from agent.types import TextContent`."),
        ("agent", "CostTracker", "Use `from agent.middleware import CostTracker`."),
        ("agent.types", "Mesage", "Did you mean agent.types.Message?"),
        ("agent.errors", "AgentErorr", "Did you mean agent.errors.AgentError?"),
        ("agent.graph", "Dag", "Did you mean agent.graph.DAG?"),
        ("agent.testing", "Scripts", "Did you mean agent.testing.Script?"),
        ("agent.sessions", "Session", "Use `from agent.types import Session`."),
        *(
            (f"agent.{name}", "Nonsense", "has no 'Nonsense'")
            for name in ("batch", "loop", "mcp", "middleware", "models")
        ),
        *(
            (f"agent.{name}", "Nonsense", "has no 'Nonsense'")
            for name in ("providers", "schemas", "stores", "toolkit", "tools")
        ),
    ],
)
def test_a_missing_name_is_reported_with_the_module_that_has_it(package: str, name: str, message: str) -> None:
    with pytest.raises(ImportError, match=re.escape(message)):
        exec(f"from {package} import {name}", {})
    module = importlib.import_module(package)
    with pytest.raises(AttributeError, match=re.escape(message)):
        getattr(module, name)
    assert not hasattr(module, name)


def test_every_method_that_asks_a_model_has_an_async_twin() -> None:
    names = {name for name, _ in inspect.getmembers(agent.Agent, inspect.isfunction) if not name.startswith("_")}
    for name in ("complete", "stream", "json"):
        assert name in names
        assert f"a{name}" in names
        mine, twin = (inspect.signature(getattr(agent.Agent, each)) for each in (name, f"a{name}"))
        assert list(mine.parameters) == list(twin.parameters)


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


@cache
def parse_module(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


def test_every_module_says_why_it_exists() -> None:
    for found in pkgutil.walk_packages([str(PACKAGE)], "agent."):
        module = importlib.import_module(found.name)
        assert (module.__doc__ or "").strip(), f"{found.name} has no docstring"


@for_each("path", modules())
def test_a_module_holds_one_idea(path: Path) -> None:
    assert len(path.read_text("utf-8").splitlines()) <= 520


@for_each("path", modules())
def test_no_module_does_what_is_never_safe(path: Path) -> None:
    """No pickle, no eval, no exec, no shell, no unverified TLS, no wall clock for durations."""
    tree = parse_module(path)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names] + [getattr(node, "module", None) or ""]
            assert not {"pickle", "marshal", "shelve", "yaml"} & {name.split(".")[0] for name in names}
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in ("eval", "exec", "compile", "__import__")
        if isinstance(node, ast.Attribute):
            dotted = ast.unparse(node)
            assert dotted not in ("time.time", "os.system", "ssl.CERT_NONE", "ssl._create_unverified_context")
        if isinstance(node, ast.keyword):
            assert not (node.arg == "shell" and ast.unparse(node.value) == "True")
            assert not (node.arg == "verify" and ast.unparse(node.value) == "False")


def test_a_vendors_name_appears_only_where_it_belongs() -> None:
    """Providers and the words that quote them; nothing else may know one vendor from another."""
    allowed = {"providers", "testing"}
    for path in modules():
        relative = path.relative_to(PACKAGE)
        if relative.parts[0] in allowed:
            continue
        tree = parse_module(path)
        code = [node for node in ast.walk(tree) if isinstance(node, ast.Compare | ast.Match)]
        for node in code:
            text = ast.unparse(node).lower()
            assert not any(name in text for name in ("openai", "anthropic", "gemini", "mistral")), (relative, text)
