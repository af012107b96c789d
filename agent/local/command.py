"""`agent local …`, with nothing but the standard library: it must work before anything else is installed."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from typing import TextIO

from .. import errors
from .installing import Progress, Status, install, status

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
    fetch.set_defaults(command=lambda asked: install_here(again=asked.again))
    tell = commands.add_parser("status", help="say what is installed, and what is wrong")
    tell.add_argument("--json", action="store_true", help="as JSON")
    tell.set_defaults(command=lambda asked: tell_status(as_json=asked.json))
    path = commands.add_parser("path", help="print where the weights are")
    path.set_defaults(command=lambda asked: tell_path())
    return parser


def install_here(*, again: bool = False) -> int:
    """Install, with a progress bar on a terminal."""
    bar = _Bar()
    try:
        ready = install(bar.show, again=again)
    finally:
        bar.clear()
    _say(f"local:smollm2 is ready (engine {ready.engine}, weights {ready.weights}).\n")
    _say("Try it: python -c \"from agent import Agent; print(Agent('local:smollm2').complete('Say hello.').text)\"\n")
    return OK


def tell_status(*, as_json: bool = False) -> int:
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


def tell_path() -> int:
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
