"""Tools that read, write, edit and describe files. `sandbox` resolves the paths."""

from __future__ import annotations

import os
import re
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
from .sandbox import describe_file_type
from .workspace import (
    MAX_KEPT,
    PendingEdit,
    WorkspaceTool,
    arguments_schema,
    boolean_field,
    integer_field,
    now,
    text_field,
)

_PATH = text_field("Path, relative to the root folder.")
_BINARY_PROBE = 8192
_SIGNATURES = (
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
    """Whether bytes are not text. UTF-16 with a byte order mark is text."""
    return not data.startswith((b"\xff\xfe", b"\xfe\xff")) and b"\0" in data[:_BINARY_PROBE]


def decode(data: bytes, shown: str) -> str:
    """Decode text, with replacement characters for invalid bytes; raise ToolError for binary data."""
    kind = next((kind for start, kind in _SIGNATURES if data.startswith(start)), None)
    if is_binary(data) or (kind is not None and not data.isascii()):
        raise ToolError(f"{shown} is {kind or 'binary'}, {len(data):,} bytes, and not text.")
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return data.decode("utf-16", "replace")
    return data.decode("utf-8-sig", "replace")


@dataclass(eq=False)
class ReadTool(WorkspaceTool):
    """Reads a text file in pages."""

    name: str = "Read"
    description: str = (
        "Reads a text file. Long files are read in pages: the result contains the next offset. "
        "It also reads the stored outputs of other tools."
    )
    parameters: JsonObject = arguments_schema(
        ["file_path"],
        file_path=_PATH,
        offset=integer_field("The first line to read, counted from 1."),
        limit=integer_field("The number of lines to read."),
        column=integer_field("The first character of the first line to read, for lines that are very long."),
        line_numbers=boolean_field("Prefix each line with its number."),
    )
    risk: Risk = field(default="read", kw_only=True)
    idempotent: bool = field(default=True, kw_only=True)

    @override
    def run(self, arguments: Any, context: ToolContext[Any]) -> Any:  # Any: see `Tool.run`
        return self.act(arguments, context)  # paged output needs no truncation

    @override
    def act(self, arguments: dict[str, Any], context: ToolContext[Any]) -> str:
        path = arguments["file_path"]
        folder = self.workspace.folder_of(path)
        read = decode(folder.read(path, self.workspace.max_file_bytes), folder.show(path))
        if not read:
            return f"[{folder.show(path)} is empty.]"
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
                if page:  # continues on the next page
                    break
                fits = max(room - len(prefix), 1)
                goes_on = f"line {count:,} continues for {len(words) - fits:,} characters"
                return f"{prefix}{words[:fits]}\n[… {goes_on}. Use offset={count}, column={column + fits}.]"
            if room is not None:
                room -= len(prefix) + len(words) + 1
            page.append(prefix + words)
        after = first + len(page)
        if after <= len(lines) and len(page) < wanted:
            left = len(lines) - after + 1
            page.append(f"[… {left:,} of {len(lines):,} lines are left. Use offset={after} to continue.]")
        return "\n".join(page)


@dataclass(eq=False)
class WriteTool(WorkspaceTool):
    """Writes a complete file atomically."""

    name: str = "Write"
    description: str = (
        "Writes or replaces a text file. Missing folders are created. To change a part of a file, use Edit."
    )
    parameters: JsonObject = arguments_schema(
        ["file_path", "content"], file_path=_PATH, content=text_field("The complete text of the file.")
    )
    risk: Risk = field(default="write", kw_only=True)
    idempotent: bool = field(default=True, kw_only=True)

    @override
    def act(self, arguments: dict[str, Any], context: ToolContext[Any]) -> str:
        path = arguments["file_path"]
        data = encode_text(arguments["content"], self.workspace.max_file_bytes)
        with self.workspace.lock:
            created = self.workspace.root.write(path, data)
        return f"{'Created' if created else 'Replaced'} {self.workspace.root.show(path)}: {len(data):,} bytes."


def encode_text(content: str, most: int, errors: str = "strict") -> bytes:
    """Encode text for writing, up to a size limit."""
    try:
        data = content.encode("utf-8", errors)
    except UnicodeEncodeError:
        raise ToolError("The text contains a lone surrogate, which cannot be encoded.") from None
    if len(data) > most:
        raise ToolError(f"The text has {len(data):,} bytes; the limit is {most:,}.")
    return data


@dataclass(eq=False)
class StatTool(WorkspaceTool):
    """Describes a path without opening it."""

    name: str = "Stat"
    description: str = "Describes a path: existence, type, size, mode and time of the last change."
    parameters: JsonObject = arguments_schema(["file_path"], file_path=_PATH)
    risk: Risk = field(default="read", kw_only=True)
    idempotent: bool = field(default=True, kw_only=True)

    @override
    def act(self, arguments: dict[str, Any], context: ToolContext[Any]) -> str:
        path = arguments["file_path"]
        folder = self.workspace.folder_of(path)
        found, target = folder.stat(path)
        changed = datetime.fromtimestamp(found.st_mtime, UTC).isoformat(timespec="seconds")
        facts = [f"{folder.show(path)}: {describe_file_type(found)}"]
        if stat.S_ISREG(found.st_mode):
            facts.append(f"{found.st_size:,} bytes")
        if stat.S_ISDIR(found.st_mode):
            with folder.listing(path) as opened:
                facts.append(f"{len(os.listdir(opened)):,} entries")
        if target is not None:
            facts.append(self._describe_link(path, target))
        return ", ".join([*facts, f"mode {stat.S_IMODE(found.st_mode):04o}", f"changed {changed}"])

    def _describe_link(self, path: str, target: str) -> str:
        folder = self.workspace.folder_of(path)
        try:
            with folder.open_parent(path):
                return f"to {folder.show(target)}"
        except ToolError:
            return "broken, or leads outside the root folder"


AROUND = 3
"""Context lines before and after a match."""


def replace_text(content: str, old: str, new: str, replace_all: bool, shown: str) -> tuple[str, list[int]]:
    """Replace a unique part of a text; return the new text and the offsets of the matches."""
    if not old:
        raise ToolError("old_string is empty. Pass the text to replace, with enough context to be unique.")
    if old == new:
        raise ToolError("old_string and new_string are the same.")
    offsets = [match.start() for match in re.finditer(re.escape(old), content)]
    if not offsets:
        raise ToolError(f"old_string is not in {shown}. It must match exactly, including whitespace.")
    if len(offsets) > 1 and not replace_all:
        lines = ", ".join(str(_line_number(content, place)) for place in offsets[:20])
        raise ToolError(
            f"old_string is in {shown} {len(offsets)} times (lines {lines}). "
            "Add more context, or pass replace_all=true."
        )
    return content.replace(old, new), offsets


def _line_number(content: str, place: int) -> int:
    return content.count("\n", 0, place) + 1


def _read(tool: WorkspaceTool, path: str) -> tuple[str, bytes]:
    """Read a file as losslessly decoded text, with its digest."""
    root = tool.workspace.root
    data = root.read(path, tool.workspace.max_file_bytes)
    if is_binary(data) or data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise ToolError(f"{root.show(path)} is binary or UTF-16 and cannot be edited as text.")
    return data.decode("utf-8", "surrogateescape"), sha256(data).digest()


@dataclass(eq=False)
class EditTool(WorkspaceTool):
    """Proposes an edit, which EditConfirm applies."""

    name: str = "Edit"
    description: str = (
        "Proposes to replace old_string with new_string in a file, and shows a preview. To apply it, "
        "call EditConfirm with the id of the edit."
    )
    parameters: JsonObject = arguments_schema(
        ["file_path", "old_string", "new_string"],
        file_path=text_field("Path, relative to the root folder."),
        old_string=text_field("The exact text to replace. It must be unique, unless replace_all is true."),
        new_string=text_field("The replacement."),
        replace_all=boolean_field("Replace every occurrence."),
    )
    risk: Risk = field(default="write", kw_only=True)
    sequential: bool = field(default=True, kw_only=True)

    @override
    def act(self, arguments: dict[str, Any], context: ToolContext[Any]) -> AgentToolResult:
        path, everywhere = arguments["file_path"], bool(arguments.get("replace_all"))
        shown = self.workspace.root.show(path)
        with self.workspace.lock:
            content, digest = _read(self, path)
            old, new = _with_endings_of(content, arguments["old_string"], arguments["new_string"])
            _, offsets = replace_text(content, old, new, everywhere, shown)
            lines, first = content.split("\n"), _line_number(content, offsets[0])
            end = first + old.count("\n")
            before = [_printable(line) for line in lines[max(0, first - 1 - AROUND) : first - 1]]
            after = [_printable(line) for line in lines[end : end + AROUND]]
            edit = PendingEdit(path, old, new, first, before, after, now(), everywhere, len(offsets))
            edit_id = f"edit_{token_hex(3)}"
            self.workspace.edits[edit_id] = edit, digest
            for forgotten in list(self.workspace.edits)[:-MAX_KEPT]:
                del self.workspace.edits[forgotten]
        removed = [f"- {_printable(line)}" for line in old.split("\n")]
        added = [f"+ {_printable(line)}" for line in new.split("\n")]
        around = ([f"  {line}" for line in before], [f"  {line}" for line in after])
        times = f", and {len(offsets) - 1:,} more" if len(offsets) > 1 else ""
        heading = f"Proposed {edit_id}: {shown}, line {first:,}{times}. Nothing is changed yet."
        ending = f'Call EditConfirm with edit_id="{edit_id}" to make the change.'
        preview = "\n".join([heading, *around[0], *removed, *added, *around[1], ending])
        return AgentToolResult(preview, {"edit_id": edit_id, **edit.to_dict()})


def _with_endings_of(content: str, old: str, new: str) -> tuple[str, str]:
    """Adapt line feeds of the model to a file with CR LF line endings."""
    if "\r\n" in content and "\r" not in old and old not in content:
        return old.replace("\n", "\r\n"), new.replace("\r\n", "\n").replace("\n", "\r\n")
    return old, new


def _printable(line: str) -> str:
    return line.removesuffix("\r").encode("utf-8", "surrogatepass").decode("utf-8", "replace")


@dataclass(eq=False)
class EditConfirmTool(WorkspaceTool):
    """Applies or discards a proposed edit."""

    name: str = "EditConfirm"
    description: str = (
        "Applies an edit proposed by Edit, or drops it with action=discard. Fails if the file has changed since."
    )
    parameters: JsonObject = arguments_schema(
        ["edit_id"],
        edit_id=text_field("The id returned by Edit."),
        action={"type": "string", "enum": ["apply", "discard"], "default": "apply"},
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
                raise ToolError(f"There is no proposed edit {edit_id!r}. Proposed edits: {waiting}.")
            edit, digest = found
            shown = self.workspace.root.show(edit.file_path)
            if arguments.get("action") == "discard":
                return f"Dropped {edit_id}. {shown} is unchanged."
            content, current = _read(self, edit.file_path)
            if current != digest:
                raise ToolError(
                    f"{shown} has changed since {edit_id} was proposed. Read it and propose the edit again."
                )
            changed, offsets = replace_text(content, edit.old_string, edit.new_string, edit.replace_all, shown)
            data = encode_text(changed, self.workspace.max_file_bytes, "surrogateescape")
            self.workspace.root.write(edit.file_path, data)
        times = f" in {len(offsets):,} places" if len(offsets) > 1 else ""
        return f"Changed {shown}, line {edit.match_line:,}{times}."
