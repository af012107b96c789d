"""Requests over a Ray Dataset."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ..batch.values import BatchProgress
from ..errors import ConfigurationError
from . import ColumnRunner

if TYPE_CHECKING:
    from ray.data import Dataset

CPUS_PER_WORKER = 0.25
"""CPUs that Ray reserves for a worker, which mostly waits: whole CPUs would leave none for reading the data."""
PROGRESS_SECONDS = 1.0


def run_dataset(
    dataset: Dataset,
    runner: ColumnRunner,
    *,
    max_in_flight: int | None = None,
    batch_size: int = 256,
    on_progress: Callable[[BatchProgress], object] | None = None,
) -> Dataset:
    """Answer every row of a Ray Dataset. Needs the extra `ray`.

    The pool has as many workers as the limit of requests in flight allows, whatever the number of cores. A worker that
    is killed is replaced; its rows are sent again, except for those in the runner's ledger.

    Args:
        dataset: The rows.
        runner: The request of each row, and the client.
        max_in_flight: Maximum number of requests in flight in the cluster; by default those of two workers.
        batch_size: Rows per call of a worker.
        on_progress: Called about once per second, and at the end, with the progress of the ledger. Runs the job at once
            instead of when its rows are read.

    Returns:
        The dataset with the columns of the answers.
    """
    try:
        import ray  # lazy: an extra
    except ImportError:
        raise ConfigurationError(
            "run_dataset needs Ray, which is not installed.", field="ray", fix='pip install "agent-llm-router[ray]"'
        ) from None
    if max_in_flight is not None and max_in_flight < runner.concurrency:
        raise ConfigurationError(
            f"max_in_flight is {max_in_flight}, but each worker has {runner.concurrency} requests in flight.",
            field="max_in_flight",
            fix="Create the ColumnRunner with a smaller concurrency.",
        )
    ledger = runner.ledger
    if on_progress is not None and ledger is None:
        raise ConfigurationError(
            "Progress is read from the ledger.", field="on_progress", fix="Create the ColumnRunner with ledger=folder."
        )
    runner.create_client()  # raises here, not in every worker, if a key is missing
    workers = 2 if max_in_flight is None else math.floor(max_in_flight / runner.concurrency)
    answered = dataset.map_batches(
        _RayWorker,
        fn_constructor_args=(runner,),
        batch_size=batch_size,
        # The next batch of a worker starts while the slowest requests of the last one finish.
        compute=ray.data.ActorPoolStrategy(
            size=workers, max_concurrent_calls_per_actor=2, enable_true_multi_threading=True
        ),
        num_cpus=CPUS_PER_WORKER,
        udf_modifying_row_count=False,
    )
    if on_progress is None or ledger is None:
        return answered
    ended = threading.Event()

    def report() -> None:
        is_last = False
        while not is_last:
            is_last = ended.wait(PROGRESS_SECONDS)
            ledger.refresh()
            on_progress(ledger.progress)

    thread = threading.Thread(target=report, name="agent-ray-progress", daemon=True)
    thread.start()
    try:
        return answered.materialize()
    finally:
        ended.set()
        thread.join()


class _RayWorker:
    """Runs in an actor: threads of one actor share the client and the concurrency of the runner."""

    def __init__(self, runner: ColumnRunner) -> None:
        self._runner = runner

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        return self._runner(batch)
