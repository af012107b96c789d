"""Confinement of paths to the root, including races with links."""

from __future__ import annotations

import os
import shutil
import socket
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from agent.errors import ConfigurationError
from agent.toolkit import Toolkit
from agent.toolkit.sandbox import Folder
from agent.tools import ToolError
from tests.toolkit.places import CANARY, Places, expect_error, use


@pytest.fixture
def folder(places: Places) -> Folder:
    return Folder(places.root)


def read(folder: Folder, path: str) -> str:
    return folder.read(path, 1000).decode()


# Allowed programs


@pytest.mark.parametrize(
    "path",
    ["sub/file.txt", "./sub/file.txt", "sub//file.txt", "sub/deep/../file.txt", "{root}/sub/file.txt", "sub/file.txt/"],
)
def test_paths_inside_are_fine_however_they_are_written(folder: Folder, places: Places, path: str) -> None:
    assert read(folder, path.format(root=places.root)) == "in sub\n"


def test_links_that_stay_inside_are_followed(folder: Folder, places: Places) -> None:
    for name, target in (
        ("relative", "sub/file.txt"),
        ("absolute", f"{places.root}/sub/file.txt"),
        ("sub/up", "../sub/file.txt"),
        ("chain", "relative"),
    ):
        (places.root / name).symlink_to(target)
        assert read(folder, name) == "in sub\n"
    (places.root / "folder").symlink_to("sub/deep")
    assert read(folder, "folder/../file.txt") == "in sub\n"  # as the system reads it: from where the link leads


def test_a_root_that_is_itself_reached_by_a_link_is_fine(places: Places) -> None:
    alias = places.root.with_name("alias")
    alias.symlink_to(places.root)
    for root in (alias, places.root):
        folder = Folder(root)
        assert read(folder, f"{root}/sub/file.txt") == "in sub\n"
    folder = Folder(alias)
    assert read(folder, f"{places.root}/sub/file.txt") == "in sub\n"
    with pytest.raises(ToolError) as raised:
        folder.read(f"{alias}/missing", 10)
    assert str(raised.value) == "'missing' does not exist."


def test_a_root_must_be_a_folder_that_is_there(places: Places) -> None:
    for wrong in (places.root / "missing", places.root / "inside.txt"):
        with pytest.raises(ConfigurationError, match="is not a folder") as raised:
            Folder(wrong)
        assert raised.value.field == "root"


def test_errors_name_paths_from_the_root_and_never_the_root(folder: Folder, places: Places) -> None:
    for path in ("missing", f"{places.root}/missing", f"{places.root}/sub", "inside.txt/x", f"{places.root}/../x"):
        with pytest.raises(ToolError) as raised:
            folder.read(path, 1000)
        assert str(places.root) not in str(raised.value)


# Writing


def test_a_file_is_replaced_at_once_or_not_at_all(
    folder: Folder, places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = places.root / "inside.txt"
    for step in ("fsync", "replace", "fchmod"):
        with monkeypatch.context() as patched:
            patched.setattr(os, step, disk_full)
            with pytest.raises(ToolError, match="the disk is full"):
                folder.write("inside.txt", b"half")
        assert target.read_text() == "inside\n"
        assert sorted(os.listdir(places.root)) == ["inside.txt", "sub"]
    assert folder.write("inside.txt", b"whole") is False
    assert target.read_text() == "whole"


def disk_full(*_: Any, **__: Any) -> None:
    raise OSError(28, "No space left on device")


def test_a_file_keeps_its_mode(folder: Folder, places: Places) -> None:
    target = places.root / "inside.txt"
    target.chmod(0o4751)
    folder.write("inside.txt", b"x")
    assert stat.S_IMODE(target.stat().st_mode) == 0o751  # but never the right to act as its owner


def test_missing_folders_are_made(folder: Folder, places: Places) -> None:
    assert folder.write("a/b/c.txt", b"x") is True
    assert (places.root / "a" / "b" / "c.txt").read_text() == "x"


def test_a_link_inside_is_written_through_and_stays_a_link(folder: Folder, places: Places) -> None:
    (places.root / "link").symlink_to("sub/file.txt")
    (places.root / "dangling").symlink_to("sub/new.txt")
    folder.write("link", b"through")
    folder.write("dangling", b"made")
    assert (places.root / "link").is_symlink()
    assert (places.root / "sub" / "file.txt").read_text() == "through"
    assert (places.root / "sub" / "new.txt").read_text() == "made"


def test_writing_never_changes_what_has_another_name_outside(folder: Folder, places: Places) -> None:
    os.link(places.canary, places.root / "hard")
    folder.write("hard", b"changed")
    assert places.canary.read_text() == f"{CANARY}\n"


@pytest.mark.parametrize("kind", ["fifo", "socket", "folder"])
def test_only_files_are_read_and_written_and_nothing_hangs(
    kit: Toolkit, places: Places, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(places.root)  # names of sockets must be short
    if kind == "fifo":
        os.mkfifo("odd")
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind("odd")
    else:
        os.mkdir("odd")
    before = os.lstat("odd")
    assert "is a" in expect_error(kit.read, file_path="odd")
    assert "is a" in expect_error(kit.write, file_path="odd", content="x")
    assert "is a" in expect_error(kit.edit, file_path="odd", old_string="a", new_string="b")
    assert use(kit.stat, file_path="odd").startswith("'odd': a ")
    assert "inside" in use(kit.grep, pattern="inside")
    assert os.lstat("odd").st_ino == before.st_ino


def test_a_pipe_put_in_place_of_a_file_does_not_hang(
    folder: Folder, places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.open

    def swap(path: Any, *arguments: Any, **named: Any) -> int:
        if path == "inside.txt":
            os.unlink(places.root / "inside.txt")
            os.mkfifo(places.root / "inside.txt")
        return real(path, *arguments, **named)

    monkeypatch.setattr(os, "open", swap)
    with pytest.raises(ToolError, match="is a named pipe"):
        folder.read("inside.txt", 1000)


def test_no_descriptor_stays_open(kit: Toolkit, places: Places) -> None:
    (places.root / "link").symlink_to("sub/deep")
    (places.root / "out").symlink_to("..")

    def list_contents() -> None:
        for path in ("sub/file.txt", "link/../file.txt", "out/x", "missing/x", "sub", "../x", "a/b/c"):
            use(kit.read, file_path=path)
            use(kit.stat, file_path=path)
            use(kit.write, file_path=path, content="x")
            use(kit.glob, pattern="**", path=path)
            use(kit.edit, file_path=path, old_string="x", new_string="y")

    list_contents()
    before = len(os.listdir("/dev/fd"))
    list_contents()
    assert len(os.listdir("/dev/fd")) == before


# Races


class Swapper:
    """Swaps a folder of the root for a link that leads out, and back."""

    def __init__(self, places: Places) -> None:
        self.name, self.aside, self.outside = places.root / "swap", places.root / "aside", places.outside
        self.name.mkdir()
        (self.name / "canary.txt").write_text("harmless")
        self.is_link = False

    def swap(self) -> None:
        if self.is_link:
            self.name.unlink()
            self._put(lambda: self.aside.rename(self.name))
        else:
            self.name.rename(self.aside)
            self._put(lambda: self.name.symlink_to(self.outside))
        self.is_link = not self.is_link

    def _put(self, act: Callable[[], object]) -> None:
        while True:
            try:
                act()
            except OSError:  # a tool has made a folder where there was nothing for a moment
                shutil.rmtree(self.name, ignore_errors=True)
            else:
                return


OPERATIONS: dict[str, Callable[[Folder], object]] = {
    "read": lambda folder: folder.read("swap/canary.txt", 1000),
    "write": lambda folder: folder.write("swap/canary.txt", b"written"),
    "create": lambda folder: folder.write("swap/new/file.txt", b"written"),
    "look": lambda folder: folder.stat("swap/canary.txt"),
}


def naive(places: Places) -> Callable[[Folder], object]:
    """How it must not be done."""

    def read(_: Folder) -> object:
        path = (places.root / "swap" / "canary.txt").resolve()
        if not path.is_relative_to(places.root):
            raise ToolError("outside")
        descriptor = os.open(path, os.O_RDONLY)
        with open(descriptor, "rb") as file:
            return file.read()

    return read


@contextmanager
def before_call(number: int, act: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Do something just before the n-th call to the system that takes a path."""
    counted = [0]

    def run_hooked(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            counted[0] += 1
            if counted[0] == number:
                act()
            return real(*arguments, **named)

        return call

    with monkeypatch.context() as patched:
        for name in ("open", "stat", "lstat", "readlink", "mkdir", "replace"):
            patched.setattr(os, name, run_hooked(getattr(os, name)))
        patched.setattr(os, "supports_dir_fd", {os.open})
        yield counted


def leaks(operation: Callable[[Folder], object], places: Places, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether a swap before any call to the system makes an operation read or change what is outside."""
    swapper, folder = Swapper(places), Folder(places.root)
    before = places.outside_as_it_is()
    for number in range(1, 100):
        result: object = None
        with suppress(ToolError, OSError), before_call(number, silently(swapper), monkeypatch) as counted:
            result = operation(folder)
        if CANARY in str(result) or places.outside_as_it_is() != before:
            return True
        if counted[0] < number:
            return False
        if swapper.is_link:
            swapper.swap()
    raise AssertionError("it never ends")


def silently(swapper: Swapper) -> Callable[[], None]:
    swapping = False

    def act() -> None:
        nonlocal swapping
        if not swapping:
            swapping = True  # it calls the system, too
            swapper.swap()

    return act


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_swap_at_any_moment_gains_nothing(places: Places, operation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not leaks(OPERATIONS[operation], places, monkeypatch)


def test_a_path_that_is_checked_and_then_opened_is_caught_by_this_very_test(
    places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert leaks(naive(places), places, monkeypatch)


def test_a_thread_that_swaps_as_fast_as_it_can_gains_nothing(kit: Toolkit, places: Places) -> None:
    swapper = Swapper(places)
    before = places.outside_as_it_is()
    stop = threading.Event()

    def swap_and_swap() -> None:
        while not stop.is_set():
            swapper.swap()

    swapping = threading.Thread(target=swap_and_swap)
    swapping.start()
    answers: dict[str, int] = {}
    try:
        until = monotonic() + 0.4
        while monotonic() < until:
            for answer in (
                use(kit.read, file_path="swap/canary.txt"),
                use(kit.write, file_path="swap/new.txt", content="new"),
                use(kit.write, file_path="swap/folder/new.txt", content="new"),
                use(kit.stat, file_path="swap/canary.txt"),
                use(kit.glob, pattern="swap/*"),
                use(kit.glob, pattern="*", path="swap"),
            ):
                answers[answer[:30]] = answers.get(answer[:30], 0) + 1
                assert CANARY not in answer
                assert "inner" not in answer
    finally:
        stop.set()
        swapping.join()
    assert len(answers) > 3  # both sides of the swap were seen
    assert places.outside_as_it_is() == before


def test_a_disk_without_folders_to_open_from_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "supports_dir_fd", set())
    with pytest.raises(ConfigurationError, match="cannot open files relative to a folder"):
        Toolkit(tmp_path)
