"""Run commands in this process, with piped input."""

from __future__ import annotations

import io
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from agent.cli import main


@dataclass
class Result:
    """The outcome of a command."""

    code: int
    out: str
    err: str


@dataclass
class ChatRunner:
    """Runs commands with a temporary home."""

    monkeypatch: pytest.MonkeyPatch
    capsys: pytest.CaptureFixture[str]
    home: Path

    @classmethod
    def at(cls, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> ChatRunner:
        monkeypatch.setenv("AGENT_HOME", str(home / "data"))
        monkeypatch.setenv("AGENT_MODEL", "scripted:echo")
        monkeypatch.chdir(home)
        return cls(monkeypatch, capsys, home)

    def run(self, *arguments: str, lines: str | bytes = "") -> Result:
        given = lines.encode("utf-8", "surrogatepass") if isinstance(lines, str) else lines
        self.monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given), encoding="utf-8"))
        self.capsys.readouterr()
        code = main(list(arguments))
        shown = self.capsys.readouterr()
        return Result(code, shown.out, shown.err)
