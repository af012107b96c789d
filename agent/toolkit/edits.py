"""Editing in two steps: one call proposes a change and shows it, another one makes it.

Between the two a person, a hook or the model itself can look. An edit belongs to the file as it was when it was
proposed: if that has changed, the edit is refused, since the place that was shown may be another one by now.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import sha256
from secrets import token_hex
from typing import Any

from typing_extensions import override

from ..tools.base import AgentToolResult, ToolContext, ToolError
from ..types import JsonObject
from ..types.config import Risk
from .files import is_binary
from .state import PendingEdit
from .workspace import MOST_KEPT, WorkspaceTool, flag, now, schema, text

AROUND = 3
"""Lines shown before and after a match."""


def replaced(content: str, old: str, new: str, replace_all: bool, shown: str) -> tuple[str, list[int]]:
    """A text with a part of it replaced, and the places. Raises ToolError if it is not clear which part is meant."""
    if not old:
        raise ToolError("old_string is empty. Give the text to replace, with enough around it to be found once.")
    if old == new:
        raise ToolError("old_string and new_string are the same.")
    places = _places(content, old)
    if not places:
        raise ToolError(f"old_string is not in {shown}. It must be there to the letter, with the same spaces.")
    if len(places) > 1 and not replace_all:
        lines = ", ".join(str(_line_of(content, place)) for place in places[:20])
        raise ToolError(
            f"old_string is in {shown} {len(places)} times (lines {lines}). "
            "Give more of the text around it, or replace_all=true."
        )
    return content.replace(old, new), places


def _places(content: str, old: str) -> list[int]:
    places, start = [], content.find(old)
    while start >= 0:
        places.append(start)
        start = content.find(old, start + len(old))
    return places


def _line_of(content: str, place: int) -> int:
    return content.count("\n", 0, place) + 1


def _read(tool: WorkspaceTool, given: str) -> tuple[str, bytes]:
    """A file as text that turns into the same bytes again, and its digest."""
    root = tool.workspace.root
    data = root.read(given, tool.workspace.max_file_bytes)
    if is_binary(data) or data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise ToolError(f"{root.show(given)} is binary or UTF-16, and cannot be edited as text.")
    return data.decode("utf-8", "surrogateescape"), sha256(data).digest()


@dataclass(eq=False)
class EditTool(WorkspaceTool):
    """Proposes to replace a part of a file. Nothing is changed until the edit is confirmed."""

    name: str = "Edit"
    description: str = (
        "Proposes to replace old_string with new_string in a file, and shows where. Nothing is changed yet: "
        "call EditConfirm with the edit's id."
    )
    parameters: JsonObject = field(
        default_factory=lambda: schema(
            ["file_path", "old_string", "new_string"],
            file_path=text("Path, relative to the root folder."),
            old_string=text("The text to replace, to the letter. It must occur once, unless replace_all is true."),
            new_string=text("What to put in its place."),
            replace_all=flag("Replace every occurrence."),
        )
    )
    risk: Risk = field(default="write", kw_only=True)
    sequential: bool = field(default=True, kw_only=True)

    @override
    def act(self, arguments: dict[str, Any], context: ToolContext[Any]) -> AgentToolResult:
        given, everywhere = arguments["file_path"], bool(arguments.get("replace_all"))
        shown = self.workspace.root.show(given)
        with self.workspace.lock:
            content, digest = _read(self, given)
            old, new = _with_endings_of(content, arguments["old_string"], arguments["new_string"])
            _, places = replaced(content, old, new, everywhere, shown)
            lines, first = content.split("\n"), _line_of(content, places[0])
            end = first + old.count("\n")
            before = [_printable(line) for line in lines[max(0, first - 1 - AROUND) : first - 1]]
            after = [_printable(line) for line in lines[end : end + AROUND]]
            edit = PendingEdit(given, old, new, first, before, after, now(), everywhere, len(places))
            edit_id = f"edit_{token_hex(3)}"
            self.workspace.edits[edit_id] = edit, digest
            for forgotten in list(self.workspace.edits)[:-MOST_KEPT]:
                del self.workspace.edits[forgotten]
        removed = [f"- {_printable(line)}" for line in old.split("\n")]
        added = [f"+ {_printable(line)}" for line in new.split("\n")]
        around = ([f"  {line}" for line in before], [f"  {line}" for line in after])
        times = f", and {len(places) - 1:,} more" if len(places) > 1 else ""
        heading = f"Proposed {edit_id}: {shown}, line {first:,}{times}. Nothing is changed yet."
        ending = f'Call EditConfirm with edit_id="{edit_id}" to make the change.'
        preview = "\n".join([heading, *around[0], *removed, *added, *around[1], ending])
        return AgentToolResult(preview, {"edit_id": edit_id, **edit.to_dict()})


def _with_endings_of(content: str, old: str, new: str) -> tuple[str, str]:
    """Models write lines that end with LF. In a file whose lines end with CR LF, they mean those."""
    if "\r\n" in content and "\r" not in old and old not in content:
        return old.replace("\n", "\r\n"), new.replace("\r\n", "\n").replace("\n", "\r\n")
    return old, new


def _printable(line: str) -> str:
    return line.removesuffix("\r").encode("utf-8", "surrogatepass").decode("utf-8", "replace")


@dataclass(eq=False)
class EditConfirmTool(WorkspaceTool):
    """Makes a proposed edit, or drops it."""

    name: str = "EditConfirm"
    description: str = (
        "Makes the change that Edit has proposed, or drops it with action=discard. "
        "Refused if the file was changed in between."
    )
    parameters: JsonObject = field(
        default_factory=lambda: schema(
            ["edit_id"],
            edit_id=text("The id that Edit has returned."),
            action={"type": "string", "enum": ["apply", "discard"], "default": "apply"},
        )
    )
    risk: Risk = field(default="write", kw_only=True)
    sequential: bool = field(default=True, kw_only=True)

    @override
    def act(self, arguments: dict[str, Any], context: ToolContext[Any]) -> str:
        edit_id = arguments["edit_id"]
        with self.workspace.lock:
            found = self.workspace.edits.pop(edit_id, None)
            if found is None:
                waiting = ", ".join(self.workspace.edits) or "none"
                raise ToolError(f"No edit {edit_id!r} is waiting. Waiting: {waiting}.")
            edit, digest = found
            shown = self.workspace.root.show(edit.file_path)
            if arguments.get("action") == "discard":
                return f"Dropped {edit_id}. {shown} is as it was."
            content, current = _read(self, edit.file_path)
            if current != digest:
                raise ToolError(f"{shown} was changed since {edit_id} was proposed. Read it and propose the edit anew.")
            changed, places = replaced(content, edit.old_string, edit.new_string, edit.replace_all, shown)
            self.workspace.root.write(edit.file_path, self._bytes(changed))
        times = f" in {len(places):,} places" if len(places) > 1 else ""
        return f"Changed {shown}, line {edit.match_line:,}{times}."

    def _bytes(self, changed: str) -> bytes:
        most = self.workspace.max_file_bytes
        try:
            data = changed.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:
            raise ToolError("new_string has half a character in it (a lone surrogate).") from None
        if len(data) > most:
            raise ToolError(f"The file would have {len(data):,} bytes. No more than {most:,} are written.")
        return data
