"""Tools that find files by name patterns, and lines by regular expressions.

Folders are listed through descriptors, so that a folder replaced by a link is not entered. Links are listed, not
followed. A regular expression can run for very long and blocks all threads of a process, so a separate process without
access to files matches the lines, and is killed when its time is up.
"""

from __future__ import annotations

import fnmatch
import json
import os
import re
import select
import stat
import struct
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Self

from typing_extensions import override

from ..tools.base import Signal, ToolContext, ToolError
from ..types import JsonObject
from ..types.config import Risk
from .files import is_binary
from .programs import build_command
from .sandbox import Folder, PathEntry, open_directory
from .workspace import WorkspaceTool, arguments_schema, boolean_field, integer_field, text_field

MAX_PATTERN = 10_000
MEMORY = 512 << 20
"""Memory limit of the matching process."""


class Matcher:
    """Matches one pattern against many texts in a child process, with a time limit."""

    def __init__(self, pattern: str, ignore_case: bool, seconds: float, signal: Signal) -> None:
        if len(pattern) > MAX_PATTERN:
            raise ToolError(f"The pattern is too long; the limit is {MAX_PATTERN:,} characters.")
        self._pattern, self._ignore_case, self._seconds, self._signal = pattern, ignore_case, seconds, signal
        self._until = monotonic() + seconds

    def __enter__(self) -> Self:
        limits = {"seconds": self._seconds, "memory": MEMORY}
        order = json.dumps({"pattern": self._pattern, "ignore_case": self._ignore_case, **limits})
        self._process = subprocess.Popen(  # noqa: S603 -- this interpreter, this package's source
            build_command("search_process.py", order),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={},
            cwd="/",
        )
        try:
            self._read_answer()  # the pattern is valid
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(OSError):
            self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()

    def search(self, data: bytes, most: int) -> list[tuple[int, str]]:
        """Return the line numbers and excerpts of at most `most` matching lines."""
        assert self._process.stdin is not None
        with suppress(OSError):  # the response explains the failure
            self._process.stdin.write(struct.pack(">QQ", len(data), most) + data)
            self._process.stdin.flush()
        return [(line, words) for line, words in self._read_answer()]

    def _read_answer(self) -> Any:
        assert self._process.stdout is not None
        while not select.select([self._process.stdout], [], [], 0.1)[0]:
            if monotonic() > self._until or self._signal.is_set():
                raise ToolError(
                    f"The search took longer than {self._seconds:g} s and was stopped. "
                    "Use a simpler pattern, without nested repetitions, or search fewer files."
                )
        answer = self._process.stdout.readline()
        if not answer:
            raise ToolError("The pattern exceeds the memory or time limit. Use a simpler one.")
        read = json.loads(answer)
        if "error" in read:
            raise ToolError(f"The pattern is not a regular expression: {read['error']}")
        return read["lines"]


MAX_VISITED = 200_000
MAX_DEPTH = 100
"""Each level holds a file descriptor."""


class PathPattern:
    """A glob pattern of a path: `*`, `?` and `[…]` within a name, `**` for any number of folders."""

    def __init__(self, pattern: str) -> None:
        if "\0" in pattern or len(pattern) > 1000:
            raise ToolError("The pattern is too long, or contains a NUL character.")
        segments = [segment for segment in pattern.split("/") if segment not in ("", ".")]
        if not segments or pattern.startswith(("/", "~")) or ".." in segments:
            raise ToolError(f"{pattern!r} is not a relative pattern. Use path= to choose a folder.")
        self._tests = [None if segment == "**" else _compile_segment(segment) for segment in segments]

    def start(self) -> frozenset[int]:
        return self._add_empty_matches({0})

    def step(self, states: frozenset[int], name: str) -> frozenset[int]:
        """Return the states after one more name."""
        after: set[int] = set()
        for state in states:
            if state == len(self._tests):
                continue
            test = self._tests[state]
            if test is None:
                if name != ".git":  # `.git` only matches its own name
                    after.add(state)
            elif test(name):
                after.add(state + 1)
        return self._add_empty_matches(after)

    def _add_empty_matches(self, states: set[int]) -> frozenset[int]:
        """Add the states in which `**` matches no folder."""
        reached = set(states)
        for state in range(len(self._tests)):
            if state in reached and self._tests[state] is None:
                reached.add(state + 1)
        return frozenset(reached)

    def accepts(self, states: frozenset[int]) -> bool:
        return len(self._tests) in states

    def can_continue(self, states: frozenset[int]) -> bool:
        return any(state < len(self._tests) for state in states)


def _compile_segment(segment: str) -> Callable[[str], object]:
    try:
        return re.compile(fnmatch.translate(segment)).match
    except re.error:
        raise ToolError(f"{segment!r} is not a valid pattern.") from None


class FolderWalk:
    """A sorted walk through a folder, limited in time and number of entries."""

    def __init__(self, context: ToolContext[Any], seconds: float) -> None:
        self._until = min(monotonic() + seconds, context.deadline)
        self._stopped = context.signal.is_set
        self.visited: int = 0
        self.cut_short: bool = False

    def is_over(self) -> bool:
        if self.visited >= MAX_VISITED or monotonic() > self._until or self._stopped():
            self.cut_short = True
        return self.cut_short

    def iter_matches(self, opened: int, names: PathPattern) -> Iterator[tuple[str, PathEntry, int]]:
        """Yield the relative path, entry and mode of each match."""
        yield from self._iter_folder(opened, "", names, names.start(), 0)

    def _iter_folder(
        self, opened: int, prefix: str, names: PathPattern, states: frozenset[int], depth: int
    ) -> Iterator[tuple[str, PathEntry, int]]:
        for name, mode in _list_entries(opened):
            self.visited += 1
            if self.is_over():
                return
            after = names.step(states, name)
            if names.accepts(after):
                yield prefix + name, PathEntry(opened, name), mode
            if not stat.S_ISDIR(mode) or not names.can_continue(after):
                continue
            if depth >= MAX_DEPTH:
                self.cut_short = True
                continue
            try:
                inner = open_directory(opened, name)
            except OSError:  # removed, replaced by a link, or not readable
                continue
            try:
                yield from self._iter_folder(inner, f"{prefix}{name}/", names, after, depth + 1)
            finally:
                os.close(inner)


def _list_entries(opened: int) -> list[tuple[str, int]]:
    found: list[tuple[str, int]] = []
    with os.scandir(opened) as entries:
        for entry in entries:
            try:
                found.append((entry.name, entry.stat(follow_symlinks=False).st_mode))
            except OSError:
                continue
    return sorted(found)


def _display_path(path: str) -> str:
    """Convert a path, which can contain arbitrary bytes, to text."""
    return os.fsencode(path).decode("utf-8", "replace")


def _path_prefix(folder: Folder, given: str) -> str:
    """Return the prefix of all paths found in a folder."""
    shown = "/".join(folder.names(given))
    return f"{shown}/" if shown else ""


@dataclass(eq=False)
class GlobTool(WorkspaceTool):
    """Finds files and folders by name."""

    name: str = "Glob"
    description: str = (
        "Finds files and folders by a glob pattern, such as src/**/*.py. Folders end with '/'. "
        "Links are listed, not followed. ** does not enter .git."
    )
    parameters: JsonObject = arguments_schema(
        ["pattern"],
        pattern=text_field("*, ? and […] within a name, ** for any number of folders."),
        path=text_field("The folder to search, relative to the root folder. Default: the root folder."),
        limit=integer_field("The maximum number of paths. Default: 500."),
    )
    risk: Risk = field(default="read", kw_only=True)
    idempotent: bool = field(default=True, kw_only=True)
    seconds: float = field(default=10.0, kw_only=True)

    @override
    def act(self, arguments: dict[str, Any], context: ToolContext[Any]) -> str:
        given, pattern, root = arguments.get("path") or ".", arguments["pattern"], self.workspace.root
        absolute = root.relative(pattern)
        if absolute is not None:
            given, pattern = ".", absolute
        names = PathPattern(pattern)
        limit, walk = arguments.get("limit") or 500, FolderWalk(context, self.seconds)
        prefix = _path_prefix(root, given)
        found: list[str] = []
        with root.listing(given) as opened:
            for path, _, mode in walk.iter_matches(opened, names):
                if len(found) == limit:
                    found.append(f"[There are more than {limit:,}. Narrow the pattern, or raise the limit.]")
                    break
                found.append(_display_path(prefix + path) + ("/" if stat.S_ISDIR(mode) else ""))
        if walk.cut_short:
            found.append(f"[The search stopped after {walk.visited:,} entries. Narrow the pattern.]")
        return "\n".join(found) or "No matches."


@dataclass(eq=False)
class GrepTool(WorkspaceTool):
    """Finds lines by a regular expression."""

    name: str = "Grep"
    description: str = (
        "Finds lines that match a regular expression (Python's), as path:line: text. "
        "Binary files, very large files and .git are skipped."
    )
    parameters: JsonObject = arguments_schema(
        ["pattern"],
        pattern=text_field("A regular expression, matched against each line."),
        path=text_field("The file or folder to search, relative to the root folder. Default: the root folder."),
        glob=text_field("A glob pattern of the files to search, relative to path, such as **/*.py."),
        ignore_case=boolean_field("Ignore case."),
        files_only=boolean_field("Return only the names of matching files."),
        limit=integer_field("The maximum number of lines. Default: 200."),
    )
    risk: Risk = field(default="read", kw_only=True)
    idempotent: bool = field(default=True, kw_only=True)
    seconds: float = field(default=10.0, kw_only=True)

    @override
    def act(self, arguments: dict[str, Any], context: ToolContext[Any]) -> str:
        limit, only = arguments.get("limit") or 200, bool(arguments.get("files_only"))
        walk = FolderWalk(context, self.seconds)
        left = min(self.seconds, context.seconds_left())
        found: list[str] = []
        skipped = 0
        wanted = 1 if only else limit + 1
        with Matcher(arguments["pattern"], bool(arguments.get("ignore_case")), left, context.signal) as matcher:
            for path, data in self._texts(arguments, walk):
                if data is None:
                    skipped += 1
                    continue
                lines = matcher.search(data, wanted)
                found += [path] if only and lines else [f"{path}:{line}: {words}" for line, words in lines]
                if len(found) > limit:
                    found[limit:] = [f"[There are more than {limit:,}. Narrow the pattern, or raise the limit.]"]
                    break
        if skipped:
            found.append(f"[{skipped:,} binary or very large files were skipped.]")
        if walk.cut_short:
            found.append(f"[The search stopped after {walk.visited:,} entries. Narrow the path or the glob.]")
        return "\n".join(found) or "No matches."

    def _texts(self, arguments: dict[str, Any], walk: FolderWalk) -> Iterator[tuple[str, bytes | None]]:
        """Yield the path and bytes of each file; None for files that are not searched."""
        given = arguments.get("path") or "."
        folder, most = self.workspace.folder_of(given), self.workspace.max_file_bytes
        names = PathPattern(arguments.get("glob") or "**")
        with folder.open_parent(given) as entry:
            single = _read_mode(entry)
        if single is not None and not stat.S_ISDIR(single):
            yield _display_path(given), _text(folder.read(given, most))
            return
        prefix = _path_prefix(folder, given)
        with folder.listing(given) as opened:
            for path, entry, mode in walk.iter_matches(opened, names):
                if not stat.S_ISREG(mode):
                    continue
                try:
                    data = folder.read_at(entry, path, most)
                except (OSError, ToolError):  # removed, unreadable, too large, or not a file
                    yield path, None
                else:
                    yield _display_path(prefix + path), _text(data)


def _read_mode(entry: PathEntry) -> int | None:
    try:
        return entry.stat().st_mode
    except FileNotFoundError:
        return None


def _text(data: bytes) -> bytes | None:
    """Convert text to UTF-8, the encoding of the matcher; None for binary data."""
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return data.decode("utf-16", "replace").encode("utf-8", "replace")
    return None if is_binary(data) else data
