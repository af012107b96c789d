"""The interpreter that this package's own small programs run in, and the source they run.

Whatever a model can write must not end up in a process that is not confined. So the interpreter is the one that was
installed, not the link to it in a virtual environment that may lie in the root; it loads no packages; and the source
is read once, when this module is loaded, and handed over as an argument.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from pathlib import Path

_SOURCES = {name: Path(__file__).with_name(name).read_text("utf-8") for name in ("matching.py", "confined.py")}


def base_interpreter() -> str:
    """The real file of the Python that runs this, outside any virtual environment."""
    return os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)


def standard_library() -> str:
    return os.path.realpath(sysconfig.get_paths()["stdlib"])


def bare_command(source: str, order: str) -> list[str]:
    """Run a source of this package: no site, no environment, nothing of the current directory, no bytecode written."""
    return [base_interpreter(), "-I", "-S", "-B", "-W", "ignore", "-c", _SOURCES[source], order]


def folders_of_python() -> list[str]:
    """What has to be readable for the running Python, its packages included, to start."""
    found = [base_interpreter()]
    for prefix in dict.fromkeys((sys.base_prefix, sys.base_exec_prefix, sys.prefix, sys.exec_prefix)):
        found += [os.path.join(prefix, part) for part in ("bin", "lib", "lib64", "include", "pyvenv.cfg")]
    return [path for path in dict.fromkeys(found) if os.path.exists(path)]
