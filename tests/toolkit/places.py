"""A root folder, and a folder outside that must stay unread and unchanged."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent.errors import ConfigurationError
from agent.toolkit.programs import ProgramRunner
from agent.tools import Tool, ToolContext, ToolError

CANARY = "the-canary-sings-7c1f"
UNMENTIONED = "a-name-that-only-a-listing-shows"


@dataclass(frozen=True)
class Places:
    root: Path
    outside: Path

    @property
    def canary(self) -> Path:
        return self.outside / "canary.txt"

    def outside_as_it_is(self) -> list[tuple[object, ...]]:
        """Names, kinds, modes, owners, times and contents of everything outside the root."""
        found: list[tuple[object, ...]] = []
        for folder in (self.outside, self.root.with_name("root-evil")):
            for path in (folder, *sorted(folder.rglob("*"))):
                facts = path.lstat()
                content = path.read_bytes() if path.is_file() else b""
                found.append((str(path), facts.st_mode, facts.st_uid, facts.st_mtime_ns, facts.st_nlink, content))
        found.append(tuple(sorted(os.listdir(self.root.parent))))
        return found

    def holds_the_canary(self) -> list[str]:
        """Files of the root into which the canary got."""
        found = []
        for path in self.root.rglob("*"):
            if not path.is_symlink() and path.is_file() and CANARY.encode() in path.read_bytes():
                found.append(path.name)
        return found


def make_places(parent: Path) -> Places:
    root, outside, evil = parent / "root", parent / "outside", parent / "root-evil"
    for folder in (root / "sub" / "deep", outside / "inner", evil):
        folder.mkdir(parents=True)
    for folder in (outside, outside / "inner", evil):
        (folder / "canary.txt").write_text(f"{CANARY}\n")
        (folder / UNMENTIONED).touch()
    (root / "inside.txt").write_text("inside\n")
    (root / "sub" / "file.txt").write_text("in sub\n")
    return Places(root, outside)


def use(tool: Tool, **arguments: Any) -> str:
    """Call a tool; return the text that a model would read."""
    try:
        result = tool.run(tool.check(arguments), ToolContext())
    except ToolError as error:
        return f"ToolError: {error}"
    return result if isinstance(result, str) else str(result.content)


def expect_error(tool: Tool, **arguments: Any) -> str:
    """Call a tool that must fail; return the error."""
    answer = use(tool, **arguments)
    assert answer.startswith("ToolError: "), answer
    return answer.removeprefix("ToolError: ")


def why_not_confined() -> str:
    """Empty where programs can be confined."""
    try:
        ProgramRunner("/nowhere").check()
    except ConfigurationError as error:
        return str(error)
    return ""
