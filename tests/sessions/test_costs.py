"""What a turn costs in an old session: what it sends, and nothing besides."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.stores import SqliteStore
from benchmarks.conversations import session_costs


@pytest.mark.timing
def test_a_turn_costs_no_more_per_kilobyte_when_the_session_is_old() -> None:
    costs = session_costs(1_600, (10, 400, 1_600))
    young = costs[10][0]
    per_kilobyte = {age: (cost - young) / size for age, (cost, size) in costs.items()}
    assert per_kilobyte[1_600] <= 2.5 * per_kilobyte[400]  # if it grew with its age, it would be four times as much


@pytest.mark.timing
def test_what_is_written_of_a_turn_does_not_grow_with_its_session(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "sessions.db")
    written: list[int] = []
    append = store.append

    def counted(session_id: str, rows: list[dict[str, object]], **options: object) -> int:
        written.append(len(rows))
        return append(session_id, rows, **options)  # type: ignore[arg-type]

    store.append = counted  # type: ignore[assignment, method-assign]
    session_costs(120, (), store)
    assert set(written) == {2}  # what was asked, and what was answered
    store.close()
