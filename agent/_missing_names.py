"""Errors for names that a package lacks: they name its module, or the most similar name."""

from __future__ import annotations

import dis
import re
import sys
from difflib import get_close_matches
from pathlib import Path

_ALL = re.compile(r"^__all__ = \[(.*?)\]", re.MULTILINE | re.DOTALL)


def create_import_error(package: str, name: str, names: list[str]) -> Exception:
    """Return an ImportError for `from package import name`, and an AttributeError for `package.name`."""
    caller = sys._getframe(2)
    # An AttributeError would become "cannot import name", without the suggestion.
    is_import = caller.f_code.co_code[caller.f_lasti] == dis.opmap["IMPORT_FROM"]
    message = f"{package!r} has no {name!r}.{_suggest(package, name, names)}"
    return ImportError(message, name=package) if is_import else AttributeError(message, name=name)


def _suggest(package: str, name: str, names: list[str]) -> str:
    modules = _public_names()
    if name in modules:
        return f" Use `from {modules[name]} import {name}`."
    if similar := get_close_matches(name, names, n=1):
        return f" Did you mean {package}.{similar[0]}?"
    if similar := get_close_matches(name, modules, n=1):
        return f" Did you mean {modules[similar[0]]}.{similar[0]}?"
    return ""


def _public_names() -> dict[str, str]:
    """Public names and the modules that export them; of several modules, the one with the shortest path."""
    root = Path(__file__).parent
    modules: dict[str, str] = {}
    for path in sorted(root.rglob("*.py"), key=lambda path: (len(path.parts), path)):
        exported = _ALL.search(path.read_text("utf-8"))
        module = ".".join(path.relative_to(root.parent).with_suffix("").parts).removesuffix(".__init__")
        for name in re.findall(r'"(\w+)"', exported[1]) if exported else ():
            modules.setdefault(name, module)
    return modules
