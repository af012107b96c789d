"""Tools that read, write and describe files of the root. Where a path leads is not decided here."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from typing_extensions import override

from ..tools.base import ToolContext, ToolError
from ..types import JsonObject
from ..types.config import Risk
from .confinement import kind_of
from .workspace import WorkspaceTool, flag, number, schema, text

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
