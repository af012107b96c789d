"""Tools that read, write and describe files of the root. Where a path leads is not decided here."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import sha256
from secrets import token_hex
from typing import Any

from typing_extensions import override

from ..tools.base import AgentToolResult, ToolContext, ToolError
from ..types import JsonObject
from ..types.config import Risk
from .sandbox import kind_of
from .workspace import MOST_KEPT, PendingEdit, WorkspaceTool, flag, now, number, schema, text

_PATH = text("Path, relative to the root folder.")
_BINARY_PROBE = 8192
_KNOWN = (
    (b"\x89PNG", "a PNG image"),
    (b"\xff\xd8\xff", "a JPEG image"),
    (b"GIF8", "a GIF image"),
    (b"%PDF", "a PDF document"),
    (b"PK\x03\x04", "a zip archive or office document"),
    (b"\x1f\x8b", "a gzip archive"),
    (b"\x7fELF", "a program"),
    (b"SQLite format 3", "an SQLite database"),
)


def is_binary(data: bytes) -> bool:
    """Whether bytes are no text. UTF-16 with its mark is text, for all its zeros."""
    return not data.startswith((b"\xff\xfe", b"\xfe\xff")) and b"\0" in data[:_BINARY_PROBE]


def decode(data: bytes, shown: str) -> str:
    """Text, with a sign in place of what is none. Raises ToolError for bytes that are no text at all."""
    kind = next((kind for start, kind in _KNOWN if data.startswith(start)), None)
    if is_binary(data) or (kind is not None and not data.isascii()):
        raise ToolError(f"{shown} is {kind or 'binary'}, {len(data):,} bytes, and not text.")
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return data.decode("utf-16", "replace")
    return data.decode("utf-8-sig", "replace")


@dataclass(eq=False)
class ReadTool(WorkspaceTool):
    """Reads a text file, a page at a time."""

    name: str = "Read"
    description: str = (
        "Reads a text file. Long files come in pages: the result says with which offset to go on. "
        "Also reads the files in which long outputs of other tools are kept."
    )
    parameters: JsonObject = field(
        default_factory=lambda: schema(
            ["file_path"],
            file_path=_PATH,
            offset=number("The first line to read, counted from 1."),
            limit=number("How many lines to read."),
            column=number("The first character of the first line to read, for lines that are very long."),
            line_numbers=flag("Put the number of each line in front of it."),
        )
    )
    risk: Risk = field(default="read", kw_only=True)
    idempotent: bool = field(default=True, kw_only=True)

    @override
    def run(self, arguments: Any, context: ToolContext[Any]) -> Any:
        return self.act(arguments, context)  # it is read in pages: a copy of a file would help nobody

    @override
    def act(self, arguments: dict[str, Any], context: ToolContext[Any]) -> str:
        given = arguments["file_path"]
        folder = self.workspace.folder_of(given)
        read = decode(folder.read(given, self.workspace.max_file_bytes), folder.show(given))
        if not read:
            return f"[{folder.show(given)} is empty.]"
        return self._page(read.removesuffix("\n").split("\n"), arguments)

    def _page(self, lines: list[str], arguments: dict[str, Any]) -> str:
        config = self.workspace.config_of(self)
        first, column = arguments.get("offset") or 1, arguments.get("column") or 1
        if first > len(lines):
            raise ToolError(f"There is no line {first:,}: the file has {len(lines):,} lines.")
        wanted = arguments.get("limit") or len(lines)
        most = min(wanted, config.max_lines) if config.enabled else wanted
        room = config.max_chars if config.enabled else None
        page: list[str] = []
        for count, line in enumerate(lines[first - 1 : first - 1 + most], start=first):
            words = line[column - 1 :] if count == first else line
            prefix = f"{count:>6}\t" if arguments.get("line_numbers") else ""
            if room is not None and len(prefix) + len(words) > room:
                if page:  # it begins the next page, with all the room there is
                    break
                fits = max(room - len(prefix), 1)
                goes_on = f"line {count:,} goes on for {len(words) - fits:,} characters"
                return f"{prefix}{words[:fits]}\n[… {goes_on}. Use offset={count}, column={column + fits}.]"
            if room is not None:
                room -= len(prefix) + len(words) + 1
            page.append(prefix + words)
        after = first + len(page)
        if after <= len(lines) and len(page) < wanted:
            left = len(lines) - after + 1
            page.append(f"[… {left:,} of {len(lines):,} lines are left. Use offset={after} to go on.]")
        return "\n".join(page)


@dataclass(eq=False)
class WriteTool(WorkspaceTool):
    """Writes a whole file, at once or not at all."""

    name: str = "Write"
    description: str = (
        "Writes a text file, replacing it if it is there. Missing folders are made. "
        "To change a part of a file, use Edit."
    )
    parameters: JsonObject = field(
        default_factory=lambda: schema(
            ["file_path", "content"], file_path=_PATH, content=text("The whole text of the file.")
        )
    )
    risk: Risk = field(default="write", kw_only=True)
    idempotent: bool = field(default=True, kw_only=True)

    @override
    def act(self, arguments: dict[str, Any], context: ToolContext[Any]) -> str:
        given = arguments["file_path"]
        data = encoded(arguments["content"], self.workspace.max_file_bytes)
        with self.workspace.lock:
            created = self.workspace.root.write(given, data)
        return f"{'Created' if created else 'Replaced'} {self.workspace.root.show(given)}: {len(data):,} bytes."


def encoded(content: str, most: int) -> bytes:
    """The bytes of a text that is to be written."""
    try:
        data = content.encode("utf-8")
    except UnicodeEncodeError:
        raise ToolError("The text has half a character in it (a lone surrogate), which no file can hold.") from None
    if len(data) > most:
        raise ToolError(f"The text has {len(data):,} bytes. No more than {most:,} are written.")
    return data


@dataclass(eq=False)
class StatTool(WorkspaceTool):
    """Tells what a path names, without opening it."""

    name: str = "Stat"
    description: str = "Tells whether a path is there, what it is, its size, its mode and when it was changed."
    parameters: JsonObject = field(default_factory=lambda: schema(["file_path"], file_path=_PATH))
    risk: Risk = field(default="read", kw_only=True)
    idempotent: bool = field(default=True, kw_only=True)

    @override
    def act(self, arguments: dict[str, Any], context: ToolContext[Any]) -> str:
        given = arguments["file_path"]
        folder = self.workspace.folder_of(given)
        found, target = folder.look(given)
        changed = datetime.fromtimestamp(found.st_mtime, UTC).isoformat(timespec="seconds")
        facts = [f"{folder.show(given)}: {kind_of(found)}"]
        if stat.S_ISREG(found.st_mode):
            facts.append(f"{found.st_size:,} bytes")
        if stat.S_ISDIR(found.st_mode):
            with folder.listing(given) as opened:
                facts.append(f"{len(os.listdir(opened)):,} entries")
        if target is not None:
            facts.append(self._pointing(given, target))
        return ", ".join([*facts, f"mode {stat.S_IMODE(found.st_mode):04o}", f"changed {changed}"])

    def _pointing(self, given: str, target: str) -> str:
        folder = self.workspace.folder_of(given)
        try:
            with folder.place(given):
                return f"to {folder.show(target)}"
        except ToolError:
            return "broken, or leading out of the root folder"


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
