"""Writes docs/reference/command-line.md: the help pages of every command, as `agent … --help` prints them.

    python scripts/command_line.py

A test compares the page with what this would write.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "reference" / "command-line.md"
WIDTH = 80
HEAD = """# Command line

What `agent --help` and the help of each command print; written by `scripts/command_line.py`. How to use them is in the
guides to the [command line](../guides/command-line.md) and to [chat](../guides/chat.md).
"""


def page() -> str:
    """The whole page."""
    parts = [HEAD]
    for depth, path, text in helps():
        parts.append(f"{'#' * (depth + 2)} {path}\n\n```text\n{text}\n```\n")
    return "\n".join(parts)


def helps() -> Iterator[tuple[int, str, str]]:
    """How deep a command is, its path, and its help page."""
    from agent.cli.app import create_command

    group = create_command()
    context = group.make_context("agent", [], resilient_parsing=True, terminal_width=WIDTH)
    yield from _helps(group, context, 0)


def _helps(command: Any, context: Any, depth: int) -> Iterator[tuple[int, str, str]]:
    yield depth, context.command_path, "\n".join(line.rstrip() for line in command.get_help(context).splitlines())
    if not hasattr(command, "list_commands"):
        return
    for name in command.list_commands(context):
        child = command.get_command(context, name)
        if not child.hidden:
            inner = child.make_context(name, [], parent=context, resilient_parsing=True)
            yield from _helps(child, inner, depth + 1)


def main() -> int:
    PAGE.write_text(page(), "utf-8")
    print(f"{PAGE.relative_to(ROOT)} is written.")
    return 0


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    sys.exit(main())
