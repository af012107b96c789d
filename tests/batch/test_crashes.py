"""File batches under crashes at any write, full disks, concurrent writers and foreign files."""

from __future__ import annotations

import errno
import multiprocessing
import os
import random
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from agent import errors
from agent.batch import BatchFileError, run_file
from agent.testing import scripted_agent
from tests.batch.desk import Files, echo, read_records
from tests.batch.ways import create_observed_agent


class Crash(BaseException):
    """The process is gone."""


class Dying:
    """A system that crashes during a write. Later calls have no effect."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, at: int, share: float) -> None:
        self.left, self.share, self.dead = at, share, False
        self._write, self._truncate = os.write, os.ftruncate
        monkeypatch.setattr("agent.batch.ledger.os.write", self.write)
        monkeypatch.setattr("agent.batch.ledger.os.ftruncate", self.truncate)

    def write(self, descriptor: int, data: Any) -> int:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return self._write(descriptor, data)  # the event loop wakes itself by a write, too
        if self.dead:
            raise Crash
        if self.left == 0:
            self.dead = True
            self._write(descriptor, data[: int(len(data) * self.share)])
            raise Crash
        self.left -= 1
        return self._write(descriptor, data)

    def truncate(self, descriptor: int, size: int) -> None:
        if self.dead:
            raise Crash
        self._truncate(descriptor, size)


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.999, 1.0])
def test_a_crash_at_any_write_loses_and_doubles_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: float
) -> None:
    for at in range(12):
        folder = tmp_path / str(at)
        folder.mkdir()
        files = Files(folder)
        with monkeypatch.context() as patched:
            dying = Dying(patched, at, share)
            try:
                files.run()
            except Crash:
                assert dying.dead
            else:
                assert at >= 10
        report = files.run()
        assert report.left == 0
        assert report.repaired == (dying.dead and 0 < share < 1)
        files.check()


def test_any_number_of_crashes_at_random_loses_and_doubles_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rng: random.Random
) -> None:
    for story in range(12):
        folder = tmp_path / str(story)
        folder.mkdir()
        files = Files(folder, count=30)
        for _ in range(6):
            with monkeypatch.context() as patched:
                Dying(patched, rng.randrange(12), rng.random())
                with suppress(Crash):
                    files.run(retry_failed=rng.random() < 0.3, concurrency=rng.randrange(1, 9))
        files.run()
        files.check()


def test_a_line_without_its_end_is_cut_off_and_asked_again(files: Files) -> None:
    files.run()
    whole = files.target.read_bytes()
    last = whole.splitlines(keepends=True)[-1]
    zeros = b"\x00" * 20  # where a disk has lost what it was to keep
    for torn in (last[:1], last[:40], last[:-1], last[:-1] + zeros, zeros + b"\n", zeros, zeros + last[20:]):
        files.target.write_bytes(whole.removesuffix(last) + torn)
        report = files.run()
        assert report.repaired
        assert report.answered == 7
        files.check()
    for torn in (last[:1], last[:40], last[:-1], zeros + b"\n"):
        files.target.write_bytes(torn)
        assert files.run().repaired
        files.check()


@pytest.mark.parametrize(
    "content",
    [
        b"Dear diary,\nall is well.\n",
        b"Dear diary",
        b'"one"\n"two"\n',
        b'{"custom_id":"a","prompt":"an input, not an output"}\n',
        b'{"custom_id":"a","prompt":"the same without an end"}',
        b'{"line":1}',
        b"\n",
        b"\x00\x01\x02 something binary \x00",
        b"[]",
    ],
)
def test_a_file_of_somebody_else_is_never_touched(files: Files, content: bytes) -> None:
    for path in (files.target, files.failures):
        path.write_bytes(content)
        agent, transport = create_observed_agent()
        with pytest.raises(errors.ConfigurationError, match=r"Line 1 of .* was not written by a batch") as caught:
            files.run(agent)
        assert caught.value.field == ("target" if path == files.target else "failures")
        assert path.read_bytes() == content
        assert transport.begun == 0
        path.unlink()


def test_input_and_output_in_the_wrong_order_cost_nothing(files: Files) -> None:
    files.run()
    before = {path: path.read_bytes() for path in (files.source, files.target)}
    with pytest.raises(errors.ConfigurationError, match="was not written by a batch"):
        run_file(echo(), files.target, files.source)
    assert {path: path.read_bytes() for path in before} == before


def test_a_file_that_somebody_has_edited_is_left_alone(files: Files) -> None:
    files.run()
    text = files.target.read_text("utf-8")
    first, rest = text.split("\n", 1)
    for strange in (
        f"not mine\n{rest}",
        f'{{"a": 1}}\n{rest}',
        f"{first}\n\n{rest}",
        f"{first}\n\0\0\n{rest}",
        f"{text}a note\n",
        f"{text}a note",
    ):
        files.target.write_text(strange, "utf-8")
        with pytest.raises(errors.ConfigurationError, match="was not written by a batch"):
            files.run()
        assert files.target.read_text("utf-8") == strange
    files.target.write_text(text + first + "\n", "utf-8")
    with pytest.raises(errors.ConfigurationError, match=r"contains line \d+ of the input twice"):
        files.run()


def test_a_full_disk_is_said_and_nothing_is_torn(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    write, room = os.write, 3000

    def full(descriptor: int, data: Any) -> int:
        nonlocal room
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return write(descriptor, data)  # the event loop wakes itself by a write, too
        taken = min(room, len(data))
        if taken == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        room -= taken
        return write(descriptor, data[:taken])

    with monkeypatch.context() as patched:
        patched.setattr("agent.batch.ledger.os.write", full)
        with pytest.raises(BatchFileError, match="No space left on device") as caught:
            files.run()
    assert caught.value.code == "ENOSPC"
    assert caught.value.fix
    assert 0 < len(read_records(files.target)) + len(read_records(files.failures)) < 10
    assert not files.run().repaired
    files.check()


def test_a_disk_that_does_not_keep_what_it_took_is_said(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(descriptor: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("agent.batch.ledger.sync", broken)
    with pytest.raises(BatchFileError, match="Input/output error") as caught:
        files.run()
    assert caught.value.code == "EIO"


def test_a_stream_that_takes_no_more_is_said(files: Files) -> None:
    with open("/dev/full", "wb", buffering=0) as full, pytest.raises(BatchFileError, match="No space left") as caught:
        run_file(echo(), files.source, full)
    assert caught.value.code == "ENOSPC"
    reading, writing = os.pipe()
    os.close(reading)
    with pytest.raises(BrokenPipeError), open(writing, "wb", buffering=0) as closed:
        run_file(echo(), files.source, closed)


def hold(source: str, target: str, ready: Any, done: Any) -> None:
    def wait(body: dict[str, Any]) -> str:
        ready.set()
        done.wait(20)
        return "late"

    run_file(scripted_agent(wait), source, target, concurrency=1)


def test_two_processes_do_not_write_to_one_output(tmp_path: Path) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text('"a"\n', "utf-8")
    spawn = multiprocessing.get_context("fork")
    ready, done = spawn.Event(), spawn.Event()
    other = spawn.Process(target=hold, args=(str(source), str(target), ready, done))
    other.start()
    try:
        assert ready.wait(20)
        agent, transport = create_observed_agent()
        with pytest.raises(errors.ConfigurationError, match="Another process is writing to"):
            run_file(agent, source, target)
        with pytest.raises(errors.ConfigurationError, match="Another process is writing to"):
            run_file(agent, source, tmp_path / "other.jsonl", failures=tmp_path / "out.failed.jsonl")
        assert transport.begun == 0
    finally:
        done.set()
        other.join(20)
    assert other.exitcode == 0
    assert len(read_records(target)) == 1
