"""The page that compares names tests, and they exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_test_that_the_page_names_exists() -> None:
    page = (ROOT / "docs" / "routing-compared.md").read_text()
    named = set(re.findall(r"`(test_\w+)`", page))
    written = {
        name
        for path in (ROOT / "tests" / "routing").glob("test_*.py")
        for name in re.findall(r"^(?:async )?def (test_\w+)", path.read_text(), re.M)
    }
    assert len(named) >= 16
    assert named <= written, named - written
