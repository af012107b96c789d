"""Errors for names that a package lacks: they name its module, or the most similar name."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from types import ModuleType


def reject_names(package: str, names: Sequence[str]) -> Callable[[str], ModuleType]:
    """Return the `__getattr__` of a package without lazy names."""

    def get_attribute(name: str) -> ModuleType:
        if name.startswith("__"):
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if (module := sys.modules.get(f"{package}.{name}")) is not None:
            return module  # it is being imported
        raise create_import_error(package, name, names)

    return get_attribute


def create_import_error(package: str, name: str, names: Sequence[str]) -> Exception:
    """Return an ImportError for `from package import name`, and an AttributeError for `package.name`."""
    import dis  # lazy: only misspelled names need it

    caller = sys._getframe(2)
    # An AttributeError would become "cannot import name", without the suggestion.
    is_import = caller.f_code.co_code[caller.f_lasti] == dis.opmap["IMPORT_FROM"]
    message = f"{package!r} has no {name!r}.{_suggest(package, name, names)}"
    return ImportError(message, name=package) if is_import else AttributeError(message, name=name)


def _suggest(package: str, name: str, names: Sequence[str]) -> str:
    modules = _public_names()
    if name in modules:
        return f" Use `from {modules[name]} import {name}`."
    if (similar := _find_similar(name, names)) is not None:
        return f" Did you mean {package}.{similar}?"
    if (similar := _find_similar(name, modules)) is not None:
        return f" Did you mean {modules[similar]}.{similar}?"
    return ""


def _find_similar(name: str, names: Iterable[str]) -> str | None:
    from difflib import get_close_matches  # lazy: only misspelled names need it

    spelled = {one.lower(): one for one in names}
    return next((spelled[match] for match in get_close_matches(name.lower(), spelled, n=1)), None)


@cache
def _public_names() -> dict[str, str]:
    """Return the module of each public name: of several the root, `types`, or the shortest path."""
    import re  # lazy: only misspelled names need it
    from pathlib import Path  # lazy: only misspelled names need it

    root = Path(__file__).parent
    modules: dict[str, str] = {}
    for path in sorted(root.rglob("*.py"), key=lambda path: (len(path.parts), path.parent.name != "types", path)):
        exported = re.search(r"^__all__ = \[(.*?)\]", path.read_text("utf-8"), re.MULTILINE | re.DOTALL)
        module = ".".join(path.relative_to(root.parent).with_suffix("").parts).removesuffix(".__init__")
        for name in re.findall(r'"(\w+)"', exported[1]) if exported else ():
            modules.setdefault(name, module)
    return modules
