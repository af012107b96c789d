"""Programs that mypy and pyright accept or reject, both in strict mode."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from .checkers import HAS_PYRIGHT, NO_PYRIGHT, Errors, read_programs, run_mypy, run_pyright, write_programs

each_checker = pytest.mark.parametrize(
    ("checker", "run"),
    [
        ("mypy", run_mypy),
        pytest.param("pyright", run_pyright, marks=pytest.mark.skipif(not HAS_PYRIGHT, reason=NO_PYRIGHT)),
    ],
)


@each_checker
def test_right_programs_are_accepted(checker: str, run: Callable[[Path], Errors], tmp_path: Path) -> None:
    programs = read_programs("accepted")
    assert len(programs) >= 80
    write_programs(tmp_path, programs)
    errors = run(tmp_path)
    assert {programs[number].title: lines for number, lines in errors.items()} == {}


@each_checker
def test_wrong_programs_are_rejected(checker: str, run: Callable[[Path], Errors], tmp_path: Path) -> None:
    programs = read_programs("rejected")
    assert len(programs) >= 80
    write_programs(tmp_path, programs)
    errors = run(tmp_path)
    missed = {
        program.title: errors.get(number, {}).get(line, "no error")
        for number, program in enumerate(programs)
        for line, patterns in program.expected.items()
        if not re.search(patterns[checker], errors.get(number, {}).get(line, ""))
    }
    assert missed == {}
    assert all(program.expected for program in programs)
