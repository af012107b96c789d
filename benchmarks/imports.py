"""CPU time of `from agent import Agent`, as a ratio to pydantic with a model of one field.

Each sample is a fresh interpreter; the contestants take turns, and the median of the ratios of neighbours counts.
Bytecode is compiled beforehand, as an installer does it. The empty interpreter's own start is taken off both.
"""

from __future__ import annotations

import compileall
import os
import resource
import statistics
import subprocess
import sys
from pathlib import Path

from benchmarks.rows import IMPORT, OTHER_LIMITS

LIMIT = OTHER_LIMITS[IMPORT]
FLOOR = "from pydantic import BaseModel\nclass M(BaseModel):\n    x: int\nM(x=1)"
OURS = "from agent import Agent"
ROOT = Path(__file__).parent.parent


def cpu_seconds(code: str) -> float:
    """CPU time of a fresh interpreter that runs the code."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, env=environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def import_ratio(rounds: int = 15) -> tuple[float, float, float]:
    """The ratio, and the milliseconds of floor and ours."""
    compileall.compile_dir(ROOT / "agent", quiet=1)
    for code in (FLOOR, OURS):
        cpu_seconds(code)
    floors: list[float] = []
    ours: list[float] = []
    for _ in range(rounds):
        empty = cpu_seconds("pass")
        floors.append(cpu_seconds(FLOOR) - empty)
        ours.append(cpu_seconds(OURS) - empty)
    ratio = statistics.median(mine / floor for mine, floor in zip(ours, floors, strict=True))
    return ratio, statistics.median(floors) * 1000, statistics.median(ours) * 1000


def main() -> int:
    ratio, floor, ours = import_ratio()
    print(f"from agent import Agent: {ours:.0f} ms CPU, {ratio:.2f} x pydantic with one model ({floor:.0f} ms CPU)")
    return 0 if ratio <= LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
