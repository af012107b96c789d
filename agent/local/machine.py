"""Whether this machine can run the engine: is it installed, and does the processor have what it was compiled for?

The engine is native code. On a processor without the instructions it uses, importing it ends the process without a
word, so the processor is asked first.
"""

from __future__ import annotations

import platform
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from .. import errors
from .weights import FIX

PACKAGE = "xllamacpp"
VERSION = "0.2.12"
"""Later ones do not keep a model to `tool_choice="required"`."""

NEEDED = frozenset(("sse4_2", "avx", "avx2", "fma", "f16c", "bmi2"))
"""Instructions that the wheels for x86 use without asking."""
_CPU = Path("/proc/cpuinfo")


def engine_version() -> str | None:
    """The installed engine's version; None without one."""
    if find_spec(PACKAGE) is None:
        return None
    try:
        return version(PACKAGE)
    except PackageNotFoundError:
        return "unknown"


def lacking() -> list[str]:
    """Instructions that the engine needs and this processor does not have; none where nobody can tell."""
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return []
    try:
        text = _CPU.read_text("utf-8", "replace")
    except OSError:
        return []
    flags = next((line.partition(":")[2].split() for line in text.splitlines() if line.startswith("flags")), None)
    return [] if flags is None else sorted(NEEDED.difference(flags))


def check_processor() -> None:
    """Raises if the processor cannot run the engine."""
    if missing := lacking():
        raise errors.ConfigurationError(
            f"This processor has no {', '.join(missing)}, which the engine of local models needs.",
            field="provider",
            fix="Use another machine, or a model behind an address, such as ollama:… or openai:….",
        )


def load_engine() -> Any:
    """The engine's module."""
    found = engine_version()
    if found is None:
        raise errors.ConfigurationError("The engine of local models is not installed.", field="provider", fix=FIX)
    if found != VERSION:
        raise errors.ConfigurationError(
            f"The engine of local models is {PACKAGE} {found}, and only {VERSION} has been tried.",
            field="provider",
            fix=FIX,
        )
    check_processor()
    try:
        return import_module(PACKAGE)
    except ImportError as error:
        raise errors.ConfigurationError(
            f"The engine of local models cannot be loaded: {error}.",
            field="provider",
            fix="Run `agent local install --again`.",
        ) from None
