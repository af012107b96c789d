"""The command line: `agent run`, `agent chat` and the rest.

This is where it begins. It must not need the extra `cli`, nor load what asks models, until a command wants it: whoever
asks for the version, or has not installed the extra yet, gets an answer at once.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.util import find_spec

from . import exit_codes

INSTALL = 'pip install "agent-llm-router[cli]"'
_NEEDED = ("typer", "rich", "platformdirs")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command, and say how it went as an exit code. Nothing is raised."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # whoever started this had closed it
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
    try:
        return _main(list(sys.argv[1:] if arguments is None else arguments))
    except KeyboardInterrupt:
        return exit_codes.INTERRUPTED


def _main(given: list[str]) -> int:
    if given in (["--version"], ["-V"]):
        return _tell_version()
    missing = _missing()
    if not missing:
        from .app import run_app  # lazy: needs the extra

        return run_app(given)
    if given[:1] == ["local"]:
        from agent.local.installer import run  # lazy: without the extra only

        return run(given[1:])
    sys.stderr.write(
        f"error: The command line needs {' and '.join(missing)}, which this Python does not have.\nfix: {INSTALL}\n"
    )
    return exit_codes.SETUP


def _tell_version() -> int:
    from agent import __version__  # lazy: reads the distribution's metadata

    try:
        sys.stdout.write(f"agent {__version__}\n")
        sys.stdout.flush()
    except OSError as error:
        from .error_messages import unwritten  # lazy: for failures only

        return unwritten(error)
    return exit_codes.OK


def _missing() -> list[str]:
    return [name for name in _NEEDED if find_spec(name) is None]
