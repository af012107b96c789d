"""What something costs, counted: the same on every machine, whatever else runs there."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType


def steps_of(act: Callable[[], object], *, of_c: bool = True) -> int:
    """How many functions are entered, of Python or of C. What one function of C does with many values is one step."""
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
