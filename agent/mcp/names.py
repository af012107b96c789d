"""Names of tools that every vendor takes, made from names that a server may choose freely.

Vendors want a letter or an underscore, then letters, digits, underscores and hyphens, 64 characters at most. The same
names come out whatever the order in which a server lists its tools, so a conversation can be continued tomorrow.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable

_LONGEST = 64
_NOT_TAKEN = re.compile(r"[^a-zA-Z0-9_-]")


def names_for(originals: Iterable[str], prefix: str = "") -> dict[str, str]:
    """For each original name the one that a model sees. A name that fits stays as it is, unless two would be alike."""
    wanted = {original: prefix + original for original in originals}
    fitted = {original: _fitted(name) for original, name in wanted.items()}
    shared = Counter(fitted.values())
    settled = {
        original
        for original, name in fitted.items()
        if name == wanted[original] or (shared[name] == 1 and len(wanted[original]) <= _LONGEST)
    }
    taken = {fitted[original] for original in settled}
    for original in sorted(wanted.keys() - settled):
        fitted[original] = _told_apart(fitted[original], wanted[original], taken)
        taken.add(fitted[original])
    return fitted


def _fitted(name: str) -> str:
    name = _NOT_TAKEN.sub("_", name)
    if not name[:1].isalpha() and not name.startswith("_"):
        name = f"_{name}"
    return name[:_LONGEST]


def _told_apart(name: str, wanted: str, taken: set[str]) -> str:
    """The name with a few digits that depend on the original alone; with more of them if that is taken, too."""
    digest = hashlib.sha256(wanted.encode("utf-8", "surrogatepass")).hexdigest()
    for digits in range(8, _LONGEST - 1, 8):
        made = f"{name[: _LONGEST - digits - 1]}_{digest[:digits]}"
        if made not in taken:
            return made
    raise AssertionError("two different names have the same SHA-256")
