"""Python things named on the command line: `module:name` and `file.py:name`, for tools and schemas.

Naming one runs its module's code, as `python -m` would; nothing is looked for that was not named.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from .exit_codes import Problem


def load(reference: str, option: str) -> Any:
    """What `module:name` or `file.py:name` names."""
    place, colon, path = reference.rpartition(":")
    if not colon or not place or not path:
        raise Problem(f"{option} {reference!r} names nothing.", fix="Write module:name or file.py:name.")
    found: Any = _from_file(place, option) if place.endswith(".py") or os.sep in place else _module(place, option)
    for name in path.split("."):
        if not hasattr(found, name):
            raise Problem(f"{option}: {place} has no {path!r}.", fix="Check the name behind the colon.")
        found = getattr(found, name)
    return found


def tools(references: Sequence[str]) -> list[Any]:
    """The tools that were named; a name may stand for a list of them."""
    found: list[Any] = []
    for reference in references:
        named = load(reference, "--tool")
        several = list(named) if isinstance(named, list | tuple) else [named]
        for one in several:
            if not callable(one) and not hasattr(one, "run"):
                raise Problem(
                    f"--tool {reference!r} is a {type(one).__name__}.",
                    fix="Name a function, a tool, or a list of these.",
                )
        found += several
    return found


def schema(text: str) -> Any:
    """A JSON schema from a file or from the text itself, or a type that is named."""
    if text.lstrip().startswith("{"):
        return _schema_in(text, "--schema")
    path = Path(text)
    if path.suffix == ".json" or path.is_file():
        try:
            return _schema_in(path.read_text("utf-8"), text)
        except (OSError, UnicodeDecodeError) as error:
            raise Problem(f"--schema: {text} cannot be read: {_reason(error)}.", fix="Check the path.") from None
    if ":" in text:
        return load(text, "--schema")
    raise Problem(
        f"--schema {text!r} is neither a file nor a schema.", fix="Pass a .json file, inline JSON, or module:Model."
    )


def _schema_in(text: str, where: str) -> dict[str, Any]:
    try:
        read = json.loads(text)
    except ValueError as error:
        raise Problem(f"{where} is not JSON: {error}.", fix="Check it with: python -m json.tool") from None
    if not isinstance(read, dict):
        raise Problem(f"{where} is no JSON schema but a {type(read).__name__}.", fix="A schema is a JSON object.")
    return read


def _module(name: str, option: str) -> Any:
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)  # as `python -m` does; a console script begins without it
    return _ran(name, option, lambda: importlib.import_module(name))


def _from_file(name: str, option: str) -> Any:
    path = Path(name).expanduser()
    if not path.is_file():
        raise Problem(f"{option}: there is no file {name}.", fix="Check the path, or name a module.")
    spec = importlib.util.spec_from_file_location(path.stem, path.resolve())
    if spec is None or spec.loader is None:
        raise Problem(f"{option}: {name} is not a Python file.", fix="Name a file that ends in .py.")
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)  # what it defines can be found by its name later
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    loader = spec.loader
    _ran(name, option, lambda: loader.exec_module(module))
    return module


def _ran(name: str, option: str, run: Callable[[], Any]) -> Any:
    """What the named code does wrong is its author's to know, in one line."""
    try:
        return run()
    except ModuleNotFoundError as error:
        raise Problem(
            f"{option}: there is no module {error.name!r}.", fix="Run this where it can be imported."
        ) from error
    except (Exception, SystemExit) as error:  # a script may end the program, and would decide about the exit code
        raise Problem(
            f"{option}: {name} fails when it is loaded: {type(error).__name__}: {error}",
            fix="Run it with Python alone, which shows where.",
        ) from error


def _reason(error: Exception) -> str:
    return (error.strerror or str(error)) if isinstance(error, OSError) else "it is not UTF-8 text"
