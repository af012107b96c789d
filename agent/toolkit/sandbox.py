"""One folder, and no way out of it: every path a model gives is walked here, name by name.

A path that was checked and is opened afterwards can be swapped in between for a link that leads elsewhere. So nothing
is checked and then opened by its path: each name is opened relative to the folder before it, which is held open, and
the system is never asked to follow a link. Links are read and walked here; one that leads out is refused, one that
stays inside is followed.

What is refused is told to the model in a `ToolError`, with paths as they are seen from the folder. It knows no tool.
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

MOST_LINKS = 40
LONGEST_PATH = 4096
LONGEST_NAME = 255

_WALK = getattr(os, "O_PATH", os.O_RDONLY) | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0)
_OPEN = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
_NOT_A_PATH = re.compile(r"~|[A-Za-z]:(?:[\\/]|$)|//|[A-Za-z][A-Za-z0-9+.-]*://?")
_PLAINLY = {
    errno.ENOENT: "is not there",
    errno.EACCES: "may not be opened",
    errno.EPERM: "may not be changed",
    errno.ENOTDIR: "is not a folder, or has a file in the place of a folder",
    errno.EISDIR: "is a folder",
    errno.ENAMETOOLONG: "is too long a name",
    errno.ELOOP: "is a link, or was swapped for one",
    errno.ENOSPC: "cannot be written: the disk is full",
    errno.EROFS: "cannot be written: the disk is read-only",
    errno.EXDEV: "lies on another disk than its folder",
}


@dataclass(frozen=True, slots=True)
class Place:
    """Where a path leads: a name in a folder that is held open."""

    folder: int
    name: str
    """A single name, or `.` for the folder itself."""

    def look(self) -> os.stat_result:
        return os.stat(self.name, dir_fd=self.folder, follow_symlinks=False)


class Folder:
    """A folder that no path given to it leaves."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        if os.open not in os.supports_dir_fd or not hasattr(os, "O_NOFOLLOW"):
            raise ConfigurationError(
                "This system cannot open files relative to a folder, so nothing can be confined to one.",
                field="root",
                fix="The toolkit needs Linux, macOS or another POSIX system.",
            )
        given = os.path.abspath(os.fspath(path))
        self.path = os.path.realpath(given)
        """Absolute, without links. Never shown to a model."""
        self._spellings = tuple({self.path, given})
        if not os.path.isdir(self.path):
            raise ConfigurationError(
                f"{os.fspath(path)!r} is not a folder.", field="root", fix="Make it first, or give one that is there."
            )

    # Names

    def relative(self, path: str) -> str | None:
        """An absolute path that is spelled as one beneath this folder, from there. It may still lead out."""
        for spelling in self._spellings:
            start = spelling.rstrip("/") + "/"
            if path == spelling:
                return ""
            if path.startswith(start):
                return path[len(start) :]
        return None

    def show(self, given: str) -> str:
        """A path as the model may see it: from this folder."""
        beneath = self.relative(given)
        shown = given if beneath is None else beneath or "."
        return repr(shown if len(shown) <= 200 else f"{shown[:200]}…")

    def names(self, given: str) -> list[str]:
        """The names along a path that a model gave. Raises ToolError for what is no path in this folder."""
        if not given:
            raise ToolError("The path is empty. Use '.' for the folder itself.")
        if any(unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp") for character in given):
            raise ToolError(f"The path {self.show(given)} has control characters in it.")
        beneath = self.relative(given)
        if beneath is None and _NOT_A_PATH.match(given):
            raise ToolError(f"{self.show(given)} is not a path in the root folder. Give one that is relative to it.")
        if "\\" in given:
            raise ToolError(f"{self.show(given)} has a backslash in it. Names are separated by '/'.")
        if beneath is None and given.startswith("/"):
            raise ToolError(f"{self.show(given)} is outside the root folder. Give a path relative to it.")
        names = [name for name in (given if beneath is None else beneath).split("/") if name not in ("", ".")]
        if len(os.fsencode(given)) > LONGEST_PATH or any(len(os.fsencode(name)) > LONGEST_NAME for name in names):
            raise ToolError(f"The path {self.show(given)} is too long.")
        return names

    # Walking

    @contextmanager
    def place(self, given: str, *, follow: bool = True, create: bool = False) -> Iterator[Place]:
        """Where a path leads. The last name may be missing; it is no link, unless `follow` is false.

        `create` makes the folders on the way that are missing.
        """
        ahead = deque(self.names(given))
        held: list[int] = []
        try:
            with self._told(given):
                held.append(os.open(self.path, _WALK))
                found = self._walk(given, ahead, held, follow, create)
            yield Place(held[-1], found)
        finally:
            for descriptor in held:
                os.close(descriptor)

    def _walk(self, given: str, ahead: deque[str], held: list[int], follow: bool, create: bool) -> str:
        """Follow the names ahead, holding each folder open. Returns the last name."""
        links = 0
        while ahead:
            name = ahead.popleft()
            if name == "..":
                if len(held) == 1:
                    raise ToolError(f"{self.show(given)} leads out of the root folder.")
                os.close(held.pop())
                continue
            last = not ahead
            try:
                mode = os.stat(name, dir_fd=held[-1], follow_symlinks=False).st_mode
            except FileNotFoundError:
                if last:
                    return name
                if not create:
                    raise
                with suppress(FileExistsError):  # another call made it just now
                    os.mkdir(name, dir_fd=held[-1])
                mode = stat.S_IFDIR
            if stat.S_ISLNK(mode):
                if last and not follow:
                    return name
                links += 1
                if links > MOST_LINKS:
                    raise ToolError(f"{self.show(given)} goes through too many links.")
                self._turn(given, os.readlink(name, dir_fd=held[-1]), ahead, held)
            elif last:
                return name
            else:
                held.append(os.open(name, _WALK, dir_fd=held[-1]))
        return "."

    def _turn(self, given: str, target: str, ahead: deque[str], held: list[int]) -> None:
        """Go on where a link points to."""
        if target.startswith("/"):
            beneath = self.relative(target)
            if beneath is None:
                raise ToolError(f"{self.show(given)} leads out of the root folder, through a link.")
            target = beneath
            while len(held) > 1:
                os.close(held.pop())
        ahead.extendleft(name for name in reversed(target.split("/")) if name not in ("", "."))

    @contextmanager
    def _told(self, given: str) -> Iterator[None]:
        """Errors of the system, in words that do not say where the folder is."""
        try:
            yield
        except OSError as error:
            reason = _PLAINLY.get(error.errno or 0) or os.strerror(error.errno or 0)
            raise ToolError(f"{self.show(given)} {reason}.") from None

    # Using

    def look(self, given: str) -> tuple[os.stat_result, str | None]:
        """Facts about what a path names, and where it points to if it is a link."""
        with self.place(given, follow=False) as place, self._told(given):
            found = place.look()
            return found, os.readlink(place.name, dir_fd=place.folder) if stat.S_ISLNK(found.st_mode) else None

    def read(self, given: str, most: int) -> bytes:
        """The bytes of a regular file that has no more than `most`."""
        with self.place(given) as place, self._told(given):
            return self.read_at(place, given, most)[0]

    def read_at(self, place: Place, given: str, most: int) -> tuple[bytes, os.stat_result]:
        self._regular(place.look(), given)  # opening a device can already do something
        descriptor = os.open(place.name, os.O_RDONLY | _OPEN, dir_fd=place.folder)
        with open(descriptor, "rb") as file:
            found = os.fstat(descriptor)
            self._regular(found, given)  # what was opened need not be what was looked at
            if found.st_size > most:
                raise ToolError(f"{self.show(given)} has {found.st_size:,} bytes. No more than {most:,} are read.")
            data = file.read(most + 1)
        if len(data) > most:
            raise ToolError(f"{self.show(given)} has more than {most:,} bytes. No more are read.")
        return data, found

    def _regular(self, found: os.stat_result, given: str) -> None:
        if stat.S_ISDIR(found.st_mode):
            raise ToolError(f"{self.show(given)} is a folder.")
        if not stat.S_ISREG(found.st_mode):
            raise ToolError(f"{self.show(given)} is {kind_of(found)}, and no file to be read or written.")

    def write(self, given: str, data: bytes) -> bool:
        """Put a file in place at once, or not at all. True if there was none before.

        The file is a new one with the old one's name: other names of the old one, by hard links, keep what they had.
        """
        with self.place(given, create=True) as place, self._told(given):
            if place.name == ".":
                raise ToolError(f"{self.show(given)} is a folder.")
            before: os.stat_result | None = None
            with suppress(FileNotFoundError):
                before = place.look()
                self._regular(before, given)
            self._replace(place, data, before)
            return before is None

    def _replace(self, place: Place, data: bytes, before: os.stat_result | None) -> None:
        fresh = f".{token_hex(8)}.tmp"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _OPEN
        descriptor = os.open(fresh, flags, 0o666 if before is None else 0o600, dir_fd=place.folder)
        try:
            with open(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(descriptor)
                if before is not None:
                    with suppress(OSError):  # only root may give files away
                        os.fchown(descriptor, before.st_uid, before.st_gid)
                    os.fchmod(descriptor, before.st_mode & 0o777)
            os.replace(fresh, place.name, src_dir_fd=place.folder, dst_dir_fd=place.folder)
        except BaseException:
            with suppress(OSError):
                os.unlink(fresh, dir_fd=place.folder)
            raise

    @contextmanager
    def listing(self, given: str) -> Iterator[int]:
        """A folder, open to be listed."""
        with self.place(given) as place:
            with self._told(given):
                opened = open_folder(place.folder, place.name)
            try:
                yield opened
            finally:
                os.close(opened)


def open_folder(parent: int, name: str) -> int:
    """Open a folder to list it. A link is not followed."""
    return os.open(name, os.O_RDONLY | os.O_DIRECTORY | _OPEN, dir_fd=parent)


def kind_of(found: os.stat_result) -> str:
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
