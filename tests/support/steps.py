"""Costs measured as function calls, which are the same on every machine."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType


def steps_of(act: Callable[[], object], *, of_c: bool = True) -> int:
    """Count the functions entered, of Python and of C. A C function is one step, for any number of values."""
    counted = ("call", "c_call") if of_c else ("call",)
    count = 0

    def profile(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event in counted

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        act()
    finally:
        sys.setprofile(before)
    return count
