"""A file that is replaced: the old one or the new one, whatever breaks, and nothing beside it."""

from __future__ import annotations

import errno
import os
import random
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.stores import StoreError, StoreFullError, replace_file
from tests.conftest import SEED
from tests.stores.nursery import nursery

OLD, NEW = b"old" * 50_000, b"new!" * 50_000


def pieces(content: bytes, size: int = 30_000) -> Iterator[bytes]:
    yield from (content[start : start + size] for start in range(0, len(content), size))


def test_a_file_is_written_anew(tmp_path: Path) -> None:
    path = tmp_path / "f.json"
    for content in (OLD, NEW, b"", b"x"):
        replace_file(path, pieces(content))
        assert path.read_bytes() == content
    replace_file(str(path), [b"a", b"", b"bc"])
    assert path.read_bytes() == b"abc"
    assert os.listdir(tmp_path) == ["f.json"]


def test_permissions_are_kept_and_new_files_are_for_their_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "f"
    previous = os.umask(0)
    try:
        replace_file(path, [b"1"])
    finally:
        os.umask(previous)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o640)
    replace_file(path, [b"2"])
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    target, link = tmp_path / "there" / "f", tmp_path / "link"
    target.write_bytes(OLD)
    link.symlink_to(target)
    replace_file(link, [NEW])
    assert link.is_symlink()
    assert target.read_bytes() == NEW
    assert os.listdir(tmp_path / "there") == ["f"]


def test_a_long_name_leaves_room_for_the_temporary_one(tmp_path: Path) -> None:
    path = tmp_path / ("n" * 255)
    replace_file(path, [NEW])
    assert path.read_bytes() == NEW


def test_what_the_content_raises_is_passed_on_and_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(OLD)

    def broken(error: BaseException) -> Iterator[bytes]:
        yield NEW
        raise error

    for error in (ValueError("no"), KeyboardInterrupt(), OSError(errno.ENOSPC, "not ours")):
        with pytest.raises(type(error)) as caught:
            replace_file(path, broken(error))
        assert caught.value is error
        assert (path.read_bytes(), os.listdir(tmp_path)) == (OLD, ["f"])


def test_a_folder_that_is_not_there_is_a_typed_error(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"f\.json cannot be written: No such file") as caught:
        replace_file(tmp_path / "nowhere" / "f.json", [b"x"])
    assert caught.value.code == "ENOENT"
    (tmp_path / "folder").mkdir()
    with pytest.raises(StoreError, match="cannot be written"):
        replace_file(tmp_path / "folder", [b"x"])
    assert os.listdir(tmp_path) == ["folder"]


CALLS = ("open", "write", "fsync", "replace", "stat", "fchmod", "close")


class FailingSystem:
    """Counts the calls to the system, and makes one of them fail: before it is done, or after."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, number: int, error: int, *, after: bool) -> None:
        self.left, self.error, self.after = number, error, after
        self.failed: str | None = None
        for name in CALLS:
            monkeypatch.setattr(os, name, self._count_bytes(name, getattr(os, name)))

    def _count_bytes(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            self.left -= 1
            if self.left:
                return real(*args, **options)
            if self.after or name == "close":  # a file that could not be closed is closed all the same
                result = real(*args, **options)
                if name == "open":
                    os.close(result)
            self.failed = name
            raise OSError(self.error, os.strerror(self.error))

        return call


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC], ids=["EIO", "ENOSPC"])
@pytest.mark.parametrize("old", [OLD, None], ids=["replaced", "new"])
def test_whatever_call_fails_the_old_file_or_the_new_one_is_there(
    tmp_path: Path, old: bytes | None, error: int, after: bool
) -> None:
    path = tmp_path / "f"
    outcomes: list[tuple[str, str]] = []
    number = 0
    while True:
        number += 1
        path.unlink(missing_ok=True)
        if old is not None:
            path.write_bytes(old)
        failure: StoreError | None = None
        with pytest.MonkeyPatch.context() as monkeypatch:
            system = FailingSystem(monkeypatch, number, error, after=after)
            try:
                replace_file(path, pieces(NEW))
            except StoreError as raised:
                failure = raised
        assert os.listdir(tmp_path) in ([], ["f"]), f"left behind after {system.failed} failed"
        content = path.read_bytes() if path.exists() else None
        assert content in (old, NEW), f"a mixture after {system.failed} failed"
        if system.failed is None:
            assert (failure, content) == (None, NEW)
            if system.left > 0:
                break
            continue  # the call that was to fail after it was done had failed by itself
        outcomes.append((system.failed, "new" if content == NEW else "old"))
        if failure is None:
            assert system.failed == "close"  # of the folder, when all was done
            assert content == NEW
        else:
            assert isinstance(failure, StoreFullError) == (error == errno.ENOSPC)
            assert failure.code == errno.errorcode[error]
    assert {name for name, _ in outcomes} >= {"open", "write", "fsync", "replace"}
    # Once the name is changed it stays so; before that, nothing has changed.
    assert [now for _, now in outcomes] == sorted((now for _, now in outcomes), reverse=True)
    assert ("write", "old") in outcomes
    assert ("fsync", "old") in outcomes
    assert ("fsync", "new") in outcomes, "the folder is synced as well"


def test_a_system_that_writes_little_at_a_time_writes_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, content: real(descriptor, content[:1000]))
    replace_file(tmp_path / "f", [NEW])
    assert (tmp_path / "f").read_bytes() == NEW


def test_a_folder_that_cannot_be_synced_at_all_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.fsync

    def picky(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "not for folders")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", picky)
    replace_file(tmp_path / "f", [NEW])
    assert (tmp_path / "f").read_bytes() == NEW


def test_the_content_is_on_the_disk_before_the_name_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []

    def record_sync(name: str) -> Callable[..., Any]:
        real = getattr(os, name)

        def call(*args: Any) -> Any:
            what = "folder" if name == "fsync" and stat.S_ISDIR(os.fstat(args[0]).st_mode) else name
            order.append(what)
            return real(*args)

        return call

    for name in ("fsync", "replace"):
        monkeypatch.setattr(os, name, record_sync(name))
    replace_file(tmp_path / "f", [NEW])
    assert order == ["fsync", "replace", "folder"]


def test_killed_at_any_moment_the_file_is_whole(tmp_path: Path) -> None:
    rng = random.Random(SEED)
    print(f"seed {SEED}")
    acknowledged = 0
    with nursery() as processes:
        for number in range(25):
            path, seed = tmp_path / f"{number}", rng.randrange(2**32)
            child = processes.start("replaced_until_killed", str(path), seed)
            processes.hear(child, rng.choice((0, 1, 3)))
            time.sleep(rng.uniform(0.0, 0.02))  # the moment is what is random here
            said = [int(line.split()[1]) for line in processes.kill(child)]
            acknowledged += len(said)
            last = said[-1] if said else 0
            if not path.exists():
                assert last == 0
                continue
            lines = path.read_bytes().splitlines()
            assert len(lines) == 1 + seed % 40_000, "a torn file"
            assert set(lines) == {lines[0]}, "a mixture"
            assert int(lines[0]) in (last, last + 1)
    assert acknowledged > 25
