"""Batches with a deadline of a day: the vendor's batch API if it is cheaper, ordinary calls otherwise."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from .. import errors
from ..models.prices import ServiceTier, price
from ..providers.batches import get_batch_api
from ..types import Usage
from .jobs import BatchJob, check_agent, prepare_job
from .values import BatchItem, BatchProgress, BatchResult, check_source, count_item

if TYPE_CHECKING:
    from ..agent import Agent
    from ..client import Client

DAY = "24h"
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
