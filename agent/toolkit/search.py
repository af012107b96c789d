"""Tools that find files by their names and lines by a pattern.

Folders are listed through descriptors, one name at a time, so a folder swapped for a link is not entered. Links are
named and not followed.

A pattern can take a regular expression longer than anybody waits, and while it is matched no other thread of the
program runs. So a process of its own does the matching (`matching`): it is handed text and no files, and it is killed
when its time is up.
"""

from __future__ import annotations

import fnmatch
import json
import os
import re
import stat
import struct
import subprocess
import threading
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
from .processes import bare_command
from .sandbox import Folder, Place, open_folder
from .workspace import WorkspaceTool, flag, number, schema, text

LONGEST_PATTERN = 10_000
MEMORY = 512 << 20
"""Bytes that matching may take."""


class Matcher:
    """One pattern, for many texts, within a time."""

    def __init__(self, pattern: str, ignore_case: bool, seconds: float, signal: Signal) -> None:
        if len(pattern) > LONGEST_PATTERN:
            raise ToolError(f"The pattern is too long: no more than {LONGEST_PATTERN:,} characters.")
        self._pattern, self._ignore_case, self._seconds, self._signal = pattern, ignore_case, seconds, signal
        self._expired = False
        self._done = threading.Event()

    def __enter__(self) -> Self:
        limits = {"seconds": self._seconds, "memory": MEMORY}
        order = json.dumps({"pattern": self._pattern, "ignore_case": self._ignore_case, **limits})
        self._process = subprocess.Popen(  # noqa: S603 -- this interpreter, this package's source
            bare_command("search_process.py", order),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={},
            cwd="/",
        )
        threading.Thread(target=self._end_in_time, name="agent-grep", daemon=True).start()
        try:
            self._answer()  # the pattern is one
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._process.kill()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(OSError):
            self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()

    def _end_in_time(self) -> None:
        waited = 0.0
        while waited < self._seconds and not self._signal.is_set():
            step = min(0.1, self._seconds - waited)
            if self._done.wait(step):
                return
            waited += step
        self._expired = True
        self._process.kill()

    def search(self, data: bytes, most: int) -> list[tuple[int, str]]:
        """Numbers and excerpts of the lines that match, no more than `most`."""
        assert self._process.stdin is not None
        with suppress(OSError):  # the answer says why
            self._process.stdin.write(struct.pack(">QQ", len(data), most) + data)
            self._process.stdin.flush()
        return [(line, words) for line, words in self._answer()]

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        answer = self._process.stdout.readline()
        if not answer:
            if self._expired:
                raise ToolError(
                    f"The search took longer than {self._seconds:g} s and was stopped. "
                    "Use a simpler pattern, without nested repetitions, or search less."
                )
            raise ToolError("The pattern needs more memory or time than a search may take. Use a simpler one.")
        read = json.loads(answer)
        if "error" in read:
            raise ToolError(f"The pattern is not a regular expression: {read['error']}")
        return read["lines"]


MOST_VISITED = 200_000
DEEPEST = 100
"""Each level holds a descriptor."""
_NAME_AND_KIND = tuple[str, int]


class Names:
    """A pattern of names: `*`, `?` and `[…]` within a name, `**` for any number of folders."""

    def __init__(self, pattern: str) -> None:
        if "\0" in pattern or len(pattern) > 1000:
            raise ToolError("The pattern is too long, or has a zero in it.")
        segments = [segment for segment in pattern.split("/") if segment not in ("", ".")]
        if not segments or pattern.startswith(("/", "~")) or ".." in segments:
            raise ToolError(f"{pattern!r} is not a pattern of names in the root folder. Use path= for a folder in it.")
        self._tests = [None if segment == "**" else _matcher(segment) for segment in segments]

    def start(self) -> frozenset[int]:
        return self._closed({0})

    def step(self, states: frozenset[int], name: str) -> frozenset[int]:
        """The states after one more name."""
        after: set[int] = set()
        for state in states:
            if state == len(self._tests):
                continue
            test = self._tests[state]
            if test is None:
                if name != ".git":  # what is in there is only ever in the way; its own name leads there
                    after.add(state)
            elif test(name):
                after.add(state + 1)
        return self._closed(after)

    def _closed(self, states: set[int]) -> frozenset[int]:
        """`**` may stand for no folder at all."""
        reached = set(states)
        for state in range(len(self._tests)):
            if state in reached and self._tests[state] is None:
                reached.add(state + 1)
        return frozenset(reached)

    def accepts(self, states: frozenset[int]) -> bool:
        return len(self._tests) in states

    def goes_on(self, states: frozenset[int]) -> bool:
        return any(state < len(self._tests) for state in states)


def _matcher(segment: str) -> Callable[[str], object]:
    try:
        return re.compile(fnmatch.translate(segment)).match
    except re.error:
        raise ToolError(f"{segment!r} is not a pattern of a name.") from None


class Walk:
    """A walk through a folder, in the order of names, that ends when its time is up or it has seen enough."""

    def __init__(self, context: ToolContext[Any], seconds: float) -> None:
        self._until = min(monotonic() + seconds, context.deadline)
        self._stopped = context.signal.is_set
        self.visited = 0
        self.cut_short = False

    def over(self) -> bool:
        if self.visited >= MOST_VISITED or monotonic() > self._until or self._stopped():
            self.cut_short = True
        return self.cut_short

    def matching(self, opened: int, names: Names) -> Iterator[tuple[str, Place, int]]:
        """Path from the folder, place and mode of everything whose path fits."""
        yield from self._inside(opened, "", names, names.start(), 0)

    def _inside(
        self, opened: int, prefix: str, names: Names, states: frozenset[int], depth: int
    ) -> Iterator[tuple[str, Place, int]]:
        for name, mode in _entries(opened):
            self.visited += 1
            if self.over():
                return
            after = names.step(states, name)
            if names.accepts(after):
                yield prefix + name, Place(opened, name), mode
            if not stat.S_ISDIR(mode) or not names.goes_on(after):
                continue
            if depth >= DEEPEST:
                self.cut_short = True
                continue
            try:
                inner = open_folder(opened, name)
            except OSError:  # gone, swapped for a link, or not ours to list
                continue
            try:
                yield from self._inside(inner, f"{prefix}{name}/", names, after, depth + 1)
            finally:
                os.close(inner)


def _entries(opened: int) -> list[_NAME_AND_KIND]:
    found: list[_NAME_AND_KIND] = []
    with os.scandir(opened) as entries:
        for entry in entries:
            try:
                found.append((entry.name, entry.stat(follow_symlinks=False).st_mode))
            except OSError:
                continue
    return sorted(found)


def _shown(path: str) -> str:
    """A path as text: names are bytes, and need not be characters."""
    return os.fsencode(path).decode("utf-8", "replace")


def _in_front(folder: Folder, given: str) -> str:
    """What stands in front of the paths found in a folder."""
    shown = "/".join(folder.names(given))
    return f"{shown}/" if shown else ""


@dataclass(eq=False)
class GlobTool(WorkspaceTool):
    """Finds files and folders by their names."""

    name: str = "Glob"
    description: str = (
        "Finds files and folders by a pattern of their paths, such as src/**/*.py. Folders end with '/'. "
        "Links are named, not followed. ** does not enter .git."
    )
    parameters: JsonObject = field(
        default_factory=lambda: schema(
            ["pattern"],
            pattern=text("*, ? and […] within a name, ** for any number of folders."),
            path=text("The folder to look in, relative to the root folder; all of it unless given."),
            limit=number("The most paths to return; 500 unless given."),
        )
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
        names = Names(pattern)
        limit, walk = arguments.get("limit") or 500, Walk(context, self.seconds)
        prefix = _in_front(root, given)
        found: list[str] = []
        with root.listing(given) as opened:
            for path, _, mode in walk.matching(opened, names):
                if len(found) == limit:
                    found.append(f"[There are more than {limit:,}. Narrow the pattern, or raise the limit.]")
                    break
                found.append(_shown(prefix + path) + ("/" if stat.S_ISDIR(mode) else ""))
        if walk.cut_short:
            found.append(f"[The search was cut short after {walk.visited:,} entries. Narrow the pattern.]")
        return "\n".join(found) or "Nothing matches."


@dataclass(eq=False)
class GrepTool(WorkspaceTool):
    """Finds lines by a regular expression."""

    name: str = "Grep"
    description: str = (
        "Finds lines that match a regular expression (Python's), as path:line: text. "
        "Binary and very large files are left out, and so is .git."
    )
    parameters: JsonObject = field(
        default_factory=lambda: schema(
            ["pattern"],
            pattern=text("A regular expression, matched against each line."),
            path=text("The file or folder to search, relative to the root folder; all of it unless given."),
            glob=text("Search only files whose path, from there, fits this pattern, such as **/*.py."),
            ignore_case=flag("Take capital and small letters for the same."),
            files_only=flag("Name only the files that have a match."),
            limit=number("The most lines to return; 200 unless given."),
        )
    )
    risk: Risk = field(default="read", kw_only=True)
    idempotent: bool = field(default=True, kw_only=True)
    seconds: float = field(default=10.0, kw_only=True)

    @override
    def act(self, arguments: dict[str, Any], context: ToolContext[Any]) -> str:
        limit, only = arguments.get("limit") or 200, bool(arguments.get("files_only"))
        walk = Walk(context, self.seconds)
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
            found.append(f"[{skipped:,} binary or very large files were left out.]")
        if walk.cut_short:
            found.append(f"[The search was cut short after {walk.visited:,} entries. Narrow the path or the glob.]")
        return "\n".join(found) or "Nothing matches."

    def _texts(self, arguments: dict[str, Any], walk: Walk) -> Iterator[tuple[str, bytes | None]]:
        """Path and bytes of each file to search; None for bytes that are not searched."""
        given = arguments.get("path") or "."
        folder, most = self.workspace.folder_of(given), self.workspace.max_file_bytes
        names = Names(arguments.get("glob") or "**")
        with folder.place(given) as place:
            single = _mode(place)
        if single is not None and not stat.S_ISDIR(single):
            yield _shown(given), _text(folder.read(given, most))
            return
        prefix = _in_front(folder, given)
        with folder.listing(given) as opened:
            for path, place, mode in walk.matching(opened, names):
                if not stat.S_ISREG(mode):
                    continue
                try:
                    data, _ = folder.read_at(place, path, most)
                except (OSError, ToolError):  # gone, unreadable, too large, or no longer a file
                    yield path, None
                else:
                    yield _shown(prefix + path), _text(data)


def _mode(place: Place) -> int | None:
    try:
        return place.look().st_mode
    except FileNotFoundError:
        return None


def _text(data: bytes) -> bytes | None:
    """As UTF-8, which is what is matched."""
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return data.decode("utf-16", "replace").encode("utf-8", "replace")
    return None if is_binary(data) else data
