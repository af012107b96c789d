"""Twenty thousand rows on Ray: nothing is lost or answered twice when workers are killed."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.batch import BatchProgress
from agent.integrations import ColumnRunner
from agent.integrations.ray import run_dataset
from agent.testing import LoopbackServer
from tests.engines.workload import ADDRESS, Upstream, connect

ROWS = 20_000
CONCURRENCY = 64
ROOT = Path(__file__).parents[2]
pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed"),
    pytest.mark.filterwarnings("ignore"),  # of Ray
]


@pytest.fixture
def upstream(monkeypatch: pytest.MonkeyPatch) -> Iterator[Upstream]:
    import ray

    network = Upstream()
    with LoopbackServer(network) as server:
        monkeypatch.setenv(ADDRESS, f"{server.url}/v1")
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), *sys.path]))
        monkeypatch.setenv("RAY_DATA_DISABLE_PROGRESS_BARS", "1")
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, _node_ip_address="127.0.0.1")
        try:
            yield network
        finally:
            ray.shutdown()


def make_dataset(rows: int) -> Any:
    import ray

    return ray.data.from_items([{"id": number, "question": f"row {number}"} for number in range(rows)])


class Observer:
    """Kills workers and measures memory while a job runs."""

    def __init__(self, ledger: Path, kills: tuple[int, ...] = ()) -> None:
        self._ledger = ledger
        self._kills = list(kills)
        self.killed: list[int] = []
        self.memory: list[tuple[int, int]] = []
        """Answered rows, and the resident bytes of all workers."""

    def __call__(self, progress: BatchProgress) -> None:
        pids = self.find_workers()
        if self._kills and progress.done >= self._kills[0] and pids:
            self._kills.pop(0)
            os.kill(pids[-1], signal.SIGKILL)
            self.killed.append(pids[-1])
        elif pids:
            pages = sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids)
            self.memory.append((progress.done, pages * os.sysconf("SC_PAGE_SIZE") // len(pids)))

    def find_workers(self) -> list[int]:
        pids = [int(path.stem.split("-")[-2]) for path in self._ledger.iterdir()]
        return [pid for pid in pids if pid not in self.killed and Path(f"/proc/{pid}/statm").exists()]


def test_killed_workers_lose_no_row_and_repeat_only_what_was_in_flight(upstream: Upstream, tmp_path: Path) -> None:
    runner = ColumnRunner(connect, "question", ledger=tmp_path, concurrency=CONCURRENCY)
    observer = Observer(tmp_path, kills=(ROWS // 5, ROWS // 2))
    answered = run_dataset(make_dataset(ROWS), runner, on_progress=observer).take_all()
    assert len(observer.killed) == 2
    assert sorted(row["id"] for row in answered) == list(range(ROWS))
    assert all(row["answer"] == f"You said: row {row['id']}" for row in answered)
    assert len(upstream.sent) == ROWS
    resent = upstream.sent.total() - ROWS
    print(f"resent: {resent}, {upstream.rate:.0f} rows/s")
    assert resent <= 2 * CONCURRENCY
    again = run_dataset(make_dataset(ROWS), ColumnRunner(connect, "question", ledger=tmp_path)).count()
    assert (again, upstream.sent.total() - ROWS) == (ROWS, resent), "a finished job sends nothing"


BASELINE = """
import asyncio, sys
from tests.engines.workload import connect

async def main():
    await connect().abatch([f"row {number}" for number in range(int(sys.argv[1]), int(sys.argv[2]))], concurrency=64)

asyncio.run(main())
"""


def test_rows_flow_at_least_at_0_6_of_plain_batches_in_flat_memory(upstream: Upstream, tmp_path: Path) -> None:
    ratios = []
    for attempt in range(3):
        folder = tmp_path / str(attempt)
        observer = Observer(folder)
        upstream.__init__()  # type: ignore[misc]  # counts anew
        runner = ColumnRunner(connect, "question", ledger=folder, concurrency=CONCURRENCY)
        assert run_dataset(make_dataset(ROWS), runner, batch_size=512, on_progress=observer).count() == ROWS
        on_ray = upstream.rate
        upstream.__init__()  # type: ignore[misc]  # counts anew
        halves = ((0, ROWS // 2), (ROWS // 2, ROWS))
        processes = [
            subprocess.Popen([sys.executable, "-c", BASELINE, str(start), str(end)], cwd=ROOT) for start, end in halves
        ]
        assert [process.wait(timeout=120) for process in processes] == [0, 0]
        ratios.append(on_ray / upstream.rate)
        early = [size for done, size in observer.memory if ROWS * 0.2 < done < ROWS * 0.5]
        late = [size for done, size in observer.memory if done > ROWS * 0.8]
        print(f"{on_ray:.0f} rows/s of {upstream.rate:.0f}; memory {early[-1:]} to {late[-1:]} bytes per worker")
        if ratios[-1] >= 0.6 and (not early or not late or late[-1] < early[-1] * 1.3):
            return
    pytest.fail(f"ratios to plain batches: {ratios}")
