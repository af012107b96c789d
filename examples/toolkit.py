"""Tools confined to a folder: read, write, search, edit and task list.

Runs offline and without a model: it calls the tools directly.
"""

from __future__ import annotations

import tempfile
import textwrap
from pathlib import Path
from typing import Any

from agent.toolkit import Toolkit
from agent.tools import Tool, ToolContext, ToolError


def call(tool: Tool, **arguments: Any) -> str:
    """Call a tool and print the text that a model would read."""
    try:
        result = tool.run(tool.check(arguments), ToolContext())
    except ToolError as error:
        result = f"refused: {error}"
    text = str(getattr(result, "content", result))
    print(f"{tool.name}({', '.join(f'{name}={value!r}' for name, value in arguments.items())})")
    print(textwrap.indent(text, "    "), end="\n\n")
    return text


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, Toolkit(folder) as kit:
        call(kit.write, file_path="src/hello.py", content='def hello():\n    return "hello"\n')
        call(kit.glob, pattern="**/*.py")
        call(kit.grep, pattern="return .*", path="src")

        call(kit.edit, file_path="src/hello.py", old_string='"hello"', new_string='"good day"')
        for edit_id, edit in kit.pending_edits.items():  # review the edit here
            print(f"waiting: {edit.old_string} -> {edit.new_string} in line {edit.match_line}\n")
            call(kit.edit_confirm, edit_id=edit_id)
        call(kit.read, file_path="src/hello.py", line_numbers=True)

        call(kit.read, file_path="../../etc/passwd")
        Path(folder, "sly").symlink_to("/etc")
        call(kit.read, file_path="sly/passwd")


if __name__ == "__main__":
    main()
