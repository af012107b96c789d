"""Paths confined to a root folder, safe against links and races.

A path that is checked first and opened later can be replaced by a link in between. So each name is opened relative to
its parent, which is held open, and the system never follows links. Links are resolved here; those that leave the root
are refused. Errors become `ToolError`, with paths relative to the root.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import unicodedata
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from secrets import token_hex

from ..errors import ConfigurationError
from ..tools.base import ToolError

MAX_LINKS = 40
MAX_PATH = 4096
MAX_NAME = 255

_WALK = getattr(os, "O_PATH", os.O_RDONLY) | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0)
_OPEN = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
_INVALID_PATH = re.compile(r"~|[A-Za-z]:(?:[\\/]|$)|//|[A-Za-z][A-Za-z0-9+.-]*://?")
_ERRORS = {
    errno.ENOENT: "does not exist",
    errno.EACCES: "cannot be opened: permission denied",
    errno.EPERM: "cannot be changed: permission denied",
    errno.ENOTDIR: "is not a folder, or contains a file as a folder",
    errno.EISDIR: "is a folder",
    errno.ENAMETOOLONG: "has a name that is too long",
    errno.ELOOP: "is a link, or was replaced by one",
    errno.ENOSPC: "cannot be written: the disk is full",
    errno.EROFS: "cannot be written: the disk is read-only",
    errno.EXDEV: "is on another disk than its folder",
}


@dataclass(frozen=True, slots=True)
class PathEntry:
    """The parent folder of a path, held open, and the last name."""

    folder: int
    name: str
    """A single name, or `.` for the folder itself."""

    def stat(self) -> os.stat_result:
        return os.stat(self.name, dir_fd=self.folder, follow_symlinks=False)


class Folder:
    """A folder that no path can leave."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        if os.open not in os.supports_dir_fd or not hasattr(os, "O_NOFOLLOW"):
            raise ConfigurationError(
                "This system cannot open files relative to a folder, so paths cannot be confined.",
                field="root",
                fix="Use Linux, macOS or another POSIX system.",
            )
        given: str = os.path.abspath(os.fspath(path))
        self.path: str = os.path.realpath(given)
        """Absolute, without links. Never shown to a model."""
        self._spellings = tuple({self.path, given})
        if not os.path.isdir(self.path):
            raise ConfigurationError(
                f"{os.fspath(path)!r} is not a folder.", field="root", fix="Create it, or pass an existing folder."
            )

    # Names

    def relative(self, path: str) -> str | None:
        """Make an absolute path relative to this folder, if it is spelled as inside; links can lead out."""
        for spelling in self._spellings:
            start = spelling.rstrip("/") + "/"
            if path == spelling:
                return ""
            if path.startswith(start):
                return path[len(start) :]
        return None

    def show(self, given: str) -> str:
        """Format a path for messages, relative to this folder."""
        beneath = self.relative(given)
        shown = given if beneath is None else beneath or "."
        return repr(shown if len(shown) <= 200 else f"{shown[:200]}…")

    def names(self, given: str) -> list[str]:
        """Split a path into names; raise ToolError for an invalid path."""
        if not given:
            raise ToolError("The path is empty. Use '.' for the folder itself.")
        if any(unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp") for character in given):
            raise ToolError(f"The path {self.show(given)} contains control characters.")
        beneath = self.relative(given)
        if beneath is None and _INVALID_PATH.match(given):
            raise ToolError(f"{self.show(given)} is not a path in the root folder. Use a path relative to it.")
        if "\\" in given:
            raise ToolError(f"{self.show(given)} contains a backslash. Separate names by '/'.")
        if beneath is None and given.startswith("/"):
            raise ToolError(f"{self.show(given)} is outside the root folder. Use a path relative to it.")
        names = [name for name in (given if beneath is None else beneath).split("/") if name not in ("", ".")]
        if len(os.fsencode(given)) > MAX_PATH or any(len(os.fsencode(name)) > MAX_NAME for name in names):
            raise ToolError(f"The path {self.show(given)} is too long.")
        return names

    # Resolution

    @contextmanager
    def open_parent(self, given: str, *, follow: bool = True, create: bool = False) -> Iterator[PathEntry]:
        """Resolve a path to its open parent folder and last name, which may not exist.

        Args:
            follow: Whether to resolve a link as the last name.
            create: Whether to create missing parent folders.
        """
        names = deque(self.names(given))
        descriptors: list[int] = []
        try:
            with self._translate_errors(given):
                descriptors.append(os.open(self.path, _WALK))
                found = self._walk(given, names, descriptors, follow, create)
            yield PathEntry(descriptors[-1], found)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _walk(self, given: str, names: deque[str], descriptors: list[int], follow: bool, create: bool) -> str:
        """Resolve the names in order, holding each folder open; return the last name."""
        links = 0
        while names:
            name = names.popleft()
            if name == "..":
                if len(descriptors) == 1:
                    raise ToolError(f"{self.show(given)} leads outside the root folder.")
                os.close(descriptors.pop())
                continue
            last = not names
            try:
                mode = os.stat(name, dir_fd=descriptors[-1], follow_symlinks=False).st_mode
            except FileNotFoundError:
                if last:
                    return name
                if not create:
                    raise
                with suppress(FileExistsError):  # created by a concurrent call
                    os.mkdir(name, dir_fd=descriptors[-1])
                mode = stat.S_IFDIR
            if stat.S_ISLNK(mode):
                if last and not follow:
                    return name
                links += 1
                if links > MAX_LINKS:
                    raise ToolError(f"{self.show(given)} contains too many links.")
                self._follow_link(given, os.readlink(name, dir_fd=descriptors[-1]), names, descriptors)
            elif last:
                return name
            else:
                descriptors.append(os.open(name, _WALK, dir_fd=descriptors[-1]))
        return "."

    def _follow_link(self, given: str, target: str, names: deque[str], descriptors: list[int]) -> None:
        """Continue with the target of a link."""
        if target.startswith("/"):
            beneath = self.relative(target)
            if beneath is None:
                raise ToolError(f"{self.show(given)} leads outside the root folder through a link.")
            target = beneath
            while len(descriptors) > 1:
                os.close(descriptors.pop())
        names.extendleft(name for name in reversed(target.split("/")) if name not in ("", "."))

    @contextmanager
    def _translate_errors(self, given: str) -> Iterator[None]:
        """Convert system errors to ToolError, without the location of the folder."""
        try:
            yield
        except OSError as error:
            reason = _ERRORS.get(error.errno or 0) or os.strerror(error.errno or 0)
            raise ToolError(f"{self.show(given)} {reason}.") from None

    # Operations

    def stat(self, given: str) -> tuple[os.stat_result, str | None]:
        """Return the status of a path, and its target if it is a link."""
        with self.open_parent(given, follow=False) as entry, self._translate_errors(given):
            found = entry.stat()
            return found, os.readlink(entry.name, dir_fd=entry.folder) if stat.S_ISLNK(found.st_mode) else None

    def read(self, given: str, most: int) -> bytes:
        """Read a regular file of at most `most` bytes."""
        with self.open_parent(given) as entry, self._translate_errors(given):
            return self.read_at(entry, given, most)

    def read_at(self, entry: PathEntry, given: str, most: int) -> bytes:
        self._check_regular(entry.stat(), given)  # opening a device can have effects
        descriptor = os.open(entry.name, os.O_RDONLY | _OPEN, dir_fd=entry.folder)
        with open(descriptor, "rb") as file:
            found = os.fstat(descriptor)
            self._check_regular(found, given)  # the file can be replaced between stat and open
            if found.st_size > most:
                raise ToolError(f"{self.show(given)} has {found.st_size:,} bytes; the limit is {most:,}.")
            data = file.read(most + 1)
        if len(data) > most:
            raise ToolError(f"{self.show(given)} has more than {most:,} bytes, which is the limit.")
        return data

    def _check_regular(self, found: os.stat_result, given: str) -> None:
        if stat.S_ISDIR(found.st_mode):
            raise ToolError(f"{self.show(given)} is a folder.")
        if not stat.S_ISREG(found.st_mode):
            raise ToolError(f"{self.show(given)} is {describe_file_type(found)}, not a regular file.")

    def write(self, given: str, data: bytes) -> bool:
        """Write a file atomically; return whether it is new.

        The file is replaced by a new one, so hard links keep the old content.
        """
        with self.open_parent(given, create=True) as entry, self._translate_errors(given):
            if entry.name == ".":
                raise ToolError(f"{self.show(given)} is a folder.")
            before: os.stat_result | None = None
            with suppress(FileNotFoundError):
                before = entry.stat()
                self._check_regular(before, given)
            self._replace(entry, data, before)
            return before is None

    def _replace(self, entry: PathEntry, data: bytes, before: os.stat_result | None) -> None:
        fresh = f".{token_hex(8)}.tmp"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _OPEN
        descriptor = os.open(fresh, flags, 0o666 if before is None else 0o600, dir_fd=entry.folder)
        try:
            with open(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(descriptor)
                if before is not None:
                    with suppress(OSError):  # only root may change owners
                        os.fchown(descriptor, before.st_uid, before.st_gid)
                    os.fchmod(descriptor, before.st_mode & 0o777)
            os.replace(fresh, entry.name, src_dir_fd=entry.folder, dst_dir_fd=entry.folder)
        except BaseException:
            with suppress(OSError):
                os.unlink(fresh, dir_fd=entry.folder)
            raise

    @contextmanager
    def listing(self, given: str) -> Iterator[int]:
        """Open a folder for listing."""
        with self.open_parent(given) as entry:
            with self._translate_errors(given):
                opened = open_directory(entry.folder, entry.name)
            try:
                yield opened
            finally:
                os.close(opened)


def open_directory(parent: int, name: str) -> int:
    """Open a folder for listing, without following links."""
    return os.open(name, os.O_RDONLY | os.O_DIRECTORY | _OPEN, dir_fd=parent)


def describe_file_type(found: os.stat_result) -> str:
    for test, kind in (
        (stat.S_ISDIR, "a folder"),
        (stat.S_ISLNK, "a link"),
        (stat.S_ISREG, "a file"),
        (stat.S_ISFIFO, "a named pipe"),
        (stat.S_ISSOCK, "a socket"),
    ):
        if test(found.st_mode):
            return kind
    return "a device"
