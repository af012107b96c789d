"""Whole runs of batch jobs: `batch` with a deadline of a day, and `run_file_job` for files."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import errors
from ..errors import AgentError, ConfigurationError
from ..models.prices import ServiceTier, price
from ..providers.batches import get_batch_api
from ..types import Usage
from .files import FileReport, FileRun, open_input, open_ledger
from .job_flow import JobFolder
from .jobs import BatchJob, check_agent, prepare_job, submit_job
from .ledger import Line
from .values import BatchInterrupted, BatchItem, BatchProgress, BatchResult, check_source, count_item

if TYPE_CHECKING:
    from typing import BinaryIO

    from ..agent import Agent
    from ..client import Client
    from ..types import AgentRequest
    from ..types.options import JsonSchema, OutputType
    from .ledger import Ledger

# Batches with a deadline of a day: the vendor's batch API if it is cheaper, ordinary calls otherwise.

_DAY_SECONDS = 24 * 3600.0
_LIMITS = ("max_cost", "max_failures", "max_seconds")
_SETTINGS = ("concurrency", "on_progress", "progress", "total")
_UNIT = Usage(prompt_tokens=1000, completion_tokens=1000, total_tokens=2000)


class DayBatch:
    """A batch that may take a day.

    `job` is the prepared batch job, or None if ordinary calls are used: the router's first choice has no batch API, or
    none with a lower price, or a request does not fit it; or spend limits or middleware apply, which jobs do not have.
    """

    def __init__(self, client: Client, requests: Any, options: Mapping[str, Any]) -> None:
        self._client = client
        self.requests: list[Any] = list(check_source(requests, awaiting=False))
        self.options: dict[str, Any] = {name: value for name, value in options.items() if name != "deadline"}
        self._job_options = {name: value for name, value in self.options.items() if name not in _SETTINGS}
        self.job: BatchJob[Any] | None = self._prepare_job()

    def _prepare_job(self) -> BatchJob[Any] | None:
        client = self._client
        is_limited = any(self.options.get(name) is not None for name in _LIMITS)
        if not self.requests or is_limited or client.middleware:
            return None
        try:
            agent = self._find_agent()
            if agent is None:
                return None
            agent, changes = agent._select(self._job_options)
            check_agent(agent)
            return prepare_job(agent, self.requests, changes) if _is_cheaper(agent) else None
        except errors.AgentError:
            return None  # ordinary calls report the problem, for each request

    def _find_agent(self) -> Agent | None:
        """Return the agent, or that of a router's first choice."""
        client: Any = self._client
        if hasattr(client, "targets"):
            router, changes = client._select(self._job_options)
            if router._options["spend"]:
                return None
            client = router._rank_targets(router._prepare(self.requests[0], changes))[0].agent
        return client if hasattr(client, "submit_batch") else None

    def read_results(self, items: Sequence[BatchItem[Any]]) -> dict[int, BatchItem[Any]]:
        """Return the successful items by index. The others are sent again, by ordinary calls."""
        return {
            item.index: BatchItem(item.index, self.requests[item.index], item.response) for item in items if item.ok
        }

    def list_rest(self, done: Mapping[int, BatchItem[Any]]) -> list[int]:
        return [index for index in range(len(self.requests)) if index not in done]

    def join(self, done: dict[int, BatchItem[Any]], rest: Sequence[int], sent: BatchResult[Any]) -> BatchResult[Any]:
        """Return the results of the job and of the ordinary calls as one."""
        progress = BatchProgress(total=len(self.requests), elapsed=sent.progress.elapsed)
        for index, item in zip(rest, sent, strict=True):
            done[index] = BatchItem(index, self.requests[index], item.response, item.error)
        items = [done[index] for index in range(len(self.requests))]
        for item in items:
            progress = count_item(progress, item)
        return BatchResult(items, progress, sent.stopped)


def _is_cheaper(agent: Agent) -> bool:
    provider, models = agent.provider.name, (agent.config.model,)
    discount = get_batch_api(agent.provider).discount
    batch = price(_UNIT, provider=provider, models=models, tier=ServiceTier.BATCH, batch_discount=discount)
    standard = price(_UNIT, provider=provider, models=models)
    return batch is not None and standard is not None and batch.dollars < standard.dollars


@contextmanager
def _note_job(job: BatchJob[Any]) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        error.add_note(f"The batch job goes on: BatchJob.load({job.id!r}) continues it.")
        raise


def run_day_batch(client: Client, requests: Any, options: Mapping[str, Any]) -> BatchResult[Any]:
    """Run a batch that may take a day."""
    batch = DayBatch(client, requests, options)
    if batch.job is None:
        result: BatchResult[Any] = client.batch(batch.requests, **batch.options)
        return result
    with _note_job(batch.job):
        try:
            batch.job.poll().wait(timeout=_DAY_SECONDS)
        except errors.TimeoutError:
            batch.job.cancel()
    done = batch.read_results(list(batch.job.results()))
    rest = batch.list_rest(done)
    sent = client.batch([batch.requests[index] for index in rest], **batch.options)
    if batch.job.ended:
        batch.job.delete()
    return batch.join(done, rest, sent)


async def arun_day_batch(client: Client, requests: Any, options: Mapping[str, Any]) -> BatchResult[Any]:
    """Async version of `run_day_batch`."""
    batch = DayBatch(client, requests, options)
    if batch.job is None:
        result: BatchResult[Any] = await client.abatch(batch.requests, **batch.options)
        return result
    with _note_job(batch.job):
        try:
            await (await batch.job.apoll()).await_(timeout=_DAY_SECONDS)
        except errors.TimeoutError:
            await batch.job.acancel()
    done = batch.read_results([item async for item in batch.job.aresults()])
    rest = batch.list_rest(done)
    sent = await client.abatch([batch.requests[index] for index in rest], **batch.options)
    if batch.job.ended:
        await batch.job.adelete()
    return batch.join(done, rest, sent)


# Files. Those of the job are in a folder beside the output, which is removed when every line has an outcome.


def run_file_job(
    agent: Agent,
    source: str | os.PathLike[str] | BinaryIO,
    target: str | os.PathLike[str],
    *,
    failures: str | os.PathLike[str] | None = None,
    retry_failed: bool = False,
    schema: OutputType[Any] | JsonSchema | None = None,  # Any: outputs are written as JSON
    interval: float = 30.0,
    max_seconds: float = math.inf,
    on_status: Callable[[BatchJob[Any]], object] | None = None,
) -> FileReport:
    """Answer the lines of a file with the vendor's batch API. A second run resumes.

    Args:
        agent: The agent; not a router.
        source: As for `run_file`.
        target: As for `run_file`, but not a stream.
        failures: As for `run_file`.
        retry_failed: As for `run_file`.
        schema: Schema of every output.
        interval: Seconds between two requests for the status.
        max_seconds: Stop waiting after this time. The job goes on, and the next run continues it.
        on_status: Called with the job after each request for its status.

    Raises:
        ConfigurationError: The input or an option is invalid, or the vendor has no batch API. Nothing was sent.
        BatchFileError: The output cannot be written.
        BatchInterrupted: Ctrl-C. The job goes on, and the next run continues it.
    """
    check_agent(agent)
    with ExitStack() as stack:
        file = stack.enter_context(open_input(source))
        ledger = open_ledger(source, target, failures)
        stack.callback(ledger.close)
        run = _JobFileRun(agent, file, ledger, Path(f"{os.fspath(target)}.job"), schema)
        run.check(retry_failed=retry_failed)
        return run.process_jobs(interval, max_seconds, on_status)


class _JobFileRun(FileRun):
    def __init__(self, agent: Agent, source: BinaryIO, ledger: Ledger, folder: Path, schema: Any) -> None:
        super().__init__(agent.acomplete, source, ledger)
        self._agent = agent
        self._folder = folder
        self._options = {} if schema is None else {"schema": schema}
        self._pending: dict[str, Line] = {}
        self._progress = BatchProgress()
        self._stopped: str | None = None
        self._read_parts = -1
        """Number of ended batches whose results were written."""

    def process_jobs(
        self, interval: float, max_seconds: float, on_status: Callable[[BatchJob[Any]], object] | None
    ) -> FileReport:
        started = time.monotonic()
        self._pending = {f"{line.key}:{line.digest}": line for line in self._list_unanswered_lines()}
        self._progress = BatchProgress(total=self._total, earlier=self._total - len(self._pending))
        try:
            while self._pending and self._stopped is None:
                job = self._load_job() or self._submit()
                self._read_parts = -1
                while job is not None and not self._write_results(self._poll(job)):
                    if on_status is not None:
                        on_status(job)
                    if time.monotonic() + interval > started + max_seconds:
                        self._stopped = f"max_seconds: the batch job {job.id} is {job.status}"
                        break
                    time.sleep(interval)
        except KeyboardInterrupt:
            self._ledger.sync()
            raise BatchInterrupted(self._report_jobs(started)) from None
        except AgentError as error:
            if isinstance(error, ConfigurationError):
                raise
            self._stopped = f"{type(error).__name__}: {error}"
        self._ledger.sync()
        return self._report_jobs(started)

    def _load_job(self) -> BatchJob[Any] | None:
        """Load the job of an earlier run."""
        for path in self._folder.glob("*"):
            if (path / "state.json").exists():
                return BatchJob.load(path.name, agent=self._agent, folder=self._folder)
            JobFolder(self._folder, path.name).delete()  # the process died before the job was complete
        return None

    def _submit(self) -> BatchJob[Any] | None:
        """Submit the pending lines. Invalid ones are failures."""
        requests: dict[str, AgentRequest] = {}
        for custom_id, line in list(self._pending.items()):
            try:
                requests[custom_id] = self._agent._prepare(line.request(), self._options)
            except ConfigurationError as error:
                self._add(BatchItem(line.number, line, error=error), custom_id)
        return submit_job(self._agent, requests, {**self._options, "folder": self._folder}) if requests else None

    def _poll(self, job: BatchJob[Any]) -> BatchJob[Any]:
        """Ask for the status. A lost connection does not end a wait of hours."""
        try:
            return job.poll()
        except AgentError as error:
            if not error.retryable:
                raise
            return job

    def _write_results(self, job: BatchJob[Any]) -> bool:
        """Write the results that are there. Returns whether the job has ended, and removes it then."""
        ended, ended_parts = job.ended, job.ended_parts
        if ended_parts == self._read_parts:
            return ended
        self._read_parts = ended_parts
        for item in job.results(ordered=False):
            assert item.custom_id is not None
            line = self._pending.get(item.custom_id)
            if line is not None:
                self._add(replace(item, request=line), item.custom_id)
        if ended:
            self._ledger.sync()
            job.delete()
            self._folder.rmdir()
        return ended

    def _add(self, item: BatchItem, custom_id: str) -> None:
        self._write(item)
        del self._pending[custom_id]
        self._progress = count_item(self._progress, item)

    def _report_jobs(self, started: float) -> FileReport:
        ledger = self._ledger
        progress = replace(self._progress, elapsed=time.monotonic() - started)
        return FileReport(self._total, ledger.answers, ledger.failures, progress, self._stopped, ledger.repaired)
