"""The `agent` command line.

The entry point imports neither the extra `cli` nor the rest of the package until a command needs them, so that
`agent --version` is fast and a missing extra is reported.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.util import find_spec

INSTALL = 'pip install "agent-llm-router[cli]"'
_REQUIRED_PACKAGES = ("typer", "rich", "platformdirs")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code; errors are printed, not raised."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the parent process
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
    try:
        return _run(list(sys.argv[1:] if arguments is None else arguments))
    except KeyboardInterrupt:
        from .errors import ExitCode  # lazy: for failures only

        return ExitCode.INTERRUPTED


def _run(arguments: list[str]) -> int:
    if arguments in (["--version"], ["-V"]):
        return print_version()
    missing = [name for name in _REQUIRED_PACKAGES if find_spec(name) is None]
    if not missing:
        from .app import run_app  # lazy: needs the extra

        return run_app(arguments)
    if arguments[:1] == ["local"]:
        from agent.local.installer import run  # lazy: without the extra only

        return run(arguments[1:])
    from .errors import ExitCode  # lazy: for failures only
    from .terminal import write_error  # lazy: for failures only

    write_error(f"The command line needs {' and '.join(missing)}, which is not installed.", INSTALL)
    return ExitCode.SETUP


def print_version() -> int:
    """Print the version, without loading the commands."""
    from agent import __version__  # lazy: reads the distribution's metadata

    try:
        sys.stdout.write(f"agent {__version__}\n")
        sys.stdout.flush()
    except OSError as error:
        from .errors import report_os_error  # lazy: for failures only

        return report_os_error(error)
    return 0
