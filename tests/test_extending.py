"""Additions that need a change in one place: forgetting another one is found out."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NEW_PART = '''
class HologramContent(ContentPart, frozen=True):
    """A new kind of content."""

    type: Literal["hologram"] = "hologram"


'''


def exhaustive_matches(package: Path) -> dict[str, set[int]]:
    """Return the lines of exhaustive matches over parts, by module."""
    found: dict[str, set[int]] = {}
    for path in sorted(package.rglob("*.py")):
        for function in ast.walk(ast.parse(path.read_text("utf-8"))):
            if not isinstance(function, ast.FunctionDef) or "part: Media" in ast.unparse(function.args):
                continue
            at = {
                node.lineno
                for node in ast.walk(function)
                if isinstance(node, ast.Expr) and ast.unparse(node) == "assert_never(part)"
            }
            if at:
                found.setdefault(path.relative_to(package.parent).as_posix(), set()).update(at)
    return found


@pytest.mark.timeout(600)
def test_a_new_content_part_fails_type_checking_wherever_it_is_not_handled(tmp_path: Path) -> None:
    package = tmp_path / "agent"
    shutil.copytree(ROOT / "agent", package, ignore=shutil.ignore_patterns("__pycache__"))
    parts = package / "types" / "parts.py"
    text = parts.read_text("utf-8")
    text = text.replace("class VendorContent(", NEW_PART.lstrip() + "class VendorContent(", 1)
    text = text.replace("    | VendorContent\n", "    | VendorContent\n    | HologramContent\n", 1)
    assert text.count("HologramContent") == 2
    parts.write_text(text, "utf-8")

    expected = exhaustive_matches(package)
    assert {path.split("/")[2] for path in expected if path.startswith("agent/providers/")} >= {
        "anthropic", "gemini", "openai_chat", "openai_responses", "repair.py",
    }  # fmt: skip
    checked = subprocess.run(
        [
            sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml"), "--follow-imports=silent",
            f"--cache-dir={tmp_path / 'cache'}", *expected,
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={**os.environ, "MYPYPATH": str(tmp_path)},
    )  # fmt: skip
    errors = re.findall(r"^(agent/\S+\.py):(\d+): error: Argument 1 to \"assert_never\"", checked.stdout, re.M)
    assert {path: {int(line) for at, line in errors if at == path} for path, _ in errors} == expected, checked.stdout
