"""Runs mypy and pyright on many small programs, each checker in one process."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PYRIGHT = ROOT / ".tools" / "node_modules" / "pyright"
HAS_PYRIGHT = PYRIGHT.is_dir() and shutil.which("node") is not None
NO_PYRIGHT = "pyright is not installed: `make peers` installs it"
HEADER_LINES = 2


@dataclass(frozen=True)
class Program:
    """A program of a corpus. `expected` maps lines to regular expressions for the error, by checker."""

    title: str
    text: str

    @property
    def expected(self) -> dict[int, dict[str, str]]:
        return {
            number: dict(re.findall(r"# (mypy|pyright): (.+?)(?=  ?# pyright|$)", line))
            for number, line in enumerate(self.text.splitlines(), 1)
            if "# mypy: " in line
        }


def read_programs(name: str) -> list[Program]:
    """Read a corpus: programs that are preceded by a line with `---` and a title."""
    parts = (Path(__file__).parent / f"{name}.txt").read_text("utf-8").split("--- ")[1:]
    return [Program(title, text) for title, _, text in (part.partition("\n") for part in parts)]


def write_programs(folder: Path, programs: list[Program]) -> None:
    """Write each program to a module of its own, beside the prelude."""
    shutil.copy(Path(__file__).parent / "prelude.py", folder)
    for number, program in enumerate(programs):
        text = f"from __future__ import annotations\nfrom prelude import *\n{program.text}"
        (folder / f"program{number}.py").write_text(text, "utf-8")


Errors = dict[int, dict[int, str]]
"""Errors by program and line."""


def run_mypy(folder: Path) -> Errors:
    """Check the programs with mypy. The cache of `make types` makes this fast."""
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--config-file",
        "pyproject.toml",
        "--no-error-summary",
        "--show-absolute-path",
    ]
    done = subprocess.run(
        [*command, *map(str, sorted(folder.glob("*.py")))],
        cwd=ROOT,
        env={**os.environ, "MYPYPATH": f"{folder}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert not done.stderr, done.stderr
    found = re.findall(r"program(\d+)\.py:(\d+): error: (.+)", done.stdout)
    assert found or not done.stdout, done.stdout
    return _collect((int(number), int(line), text) for number, line, text in found)


def run_pyright(folder: Path) -> Errors:
    """Check the programs with pyright in strict mode."""
    output = pyright_output("-p", write_pyright_config(folder))
    return _collect(
        (int(Path(found["file"]).stem.removeprefix("program")), found["range"]["start"]["line"] + 1, found["message"])
        for found in output["generalDiagnostics"]
        if found["severity"] == "error"
    )


def write_pyright_config(folder: Path) -> str:
    config = {"typeCheckingMode": "strict", "pythonVersion": "3.11", "extraPaths": [str(ROOT)]}
    (folder / "pyrightconfig.json").write_text(json.dumps(config), "utf-8")
    return str(folder)


def pyright_output(*arguments: str) -> dict[str, Any]:
    """Run pyright, and return its output as JSON."""
    done = subprocess.run(
        ["node", str(PYRIGHT / "index.js"), "--pythonpath", sys.executable, "--outputjson", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=280,
    )
    output: dict[str, Any] = json.loads(done.stdout)
    return output


def _collect(found: Iterator[tuple[int, int, str]]) -> Errors:
    errors: Errors = {}
    for number, line, text in found:
        lines = errors.setdefault(number, {})
        lines[line - HEADER_LINES] = "\n".join(filter(None, (lines.get(line - HEADER_LINES), text)))
    return errors
