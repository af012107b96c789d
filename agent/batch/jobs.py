"""Batch jobs: requests that a vendor's batch API answers within a day, usually at half the price.

A `BatchJob` is a handle for files on this machine and batches at the vendor. Any process can load it by its id.
"""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from secrets import token_hex
from typing import TYPE_CHECKING, Any, Generic, Literal, Self, TypeAlias, TypeVar, overload

from pydantic_core import to_json
from typing_extensions import override

from .. import errors
from ..calls.call import with_warnings
from ..calls.output_modes import plan_output
from ..calls.structured_output import read_output
from ..engine.context import run_validation
from ..engine.drivers.sync import SyncRun, drain
from ..engine.flow import Flow
from ..engine.wire import Reply
from ..models.prices import ServiceTier, price
from ..providers.batches import ItemResult, get_batch_api
from ..types import AgentResponse, Attempt, Route
from ..types.response import OutputT
from ..types.secrets import find_secrets
from ..types.usage import LazyCost
from .job_flow import (
    FINAL,
    UNSENT,
    BatchPart,
    JobFlow,
    JobFolder,
    JobState,
    StoredRequest,
    get_unix_time,
    item_id,
    split_items,
)
from .values import BatchItem, check_source

if TYPE_CHECKING:
    from pydantic import JsonValue

    from ..agent import Agent
    from ..calls.requests import RequestLike
    from ..types.options import JsonSchema, OutputType

BatchRequests: TypeAlias = "Iterable[RequestLike] | Mapping[str, RequestLike]"
"""Requests, or requests by custom id."""
LoadedT = TypeVar("LoadedT")
BatchStatus: TypeAlias = Literal["preparing", "queued", "running", "cancelling", "ended"]
"""`preparing` means that some requests were not handed over to the vendor yet; `poll` does that."""
_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True, slots=True)
class BatchCounts:
    """Requests of a job by outcome, as far as the vendor reports them."""

    total: int
    succeeded: int
    failed: int
    """Including cancelled and expired ones."""

    @property
    def pending(self) -> int:
        return self.total - self.succeeded - self.failed


class BatchJob(Generic[OutputT]):
    """A batch job. Create one with `Agent.submit_batch`, or continue one with `load`.

    Operations exclude each other, also between processes: a second one raises ConfigurationError.
    """

    def __init__(
        self,
        agent: Agent,
        folder: JobFolder,
        state: JobState,
        *,
        schema: object = None,
        schemas: Mapping[int, object] | None = None,
    ) -> None:
        self._agent = agent
        self._folder = folder
        self._state = state
        self._schema = schema
        """Type of all outputs; None for those of the requests."""
        self._schemas: Mapping[int, object] = schemas or {}
        """Types of the outputs by position. Only the process that submitted the job knows them."""

    @overload
    @staticmethod
    def load(
        id: str, *, schema: None = None, agent: Agent | None = None, folder: str | os.PathLike[str] | None = None
    ) -> BatchJob[Any]: ...  # Any: the requests may have schemas

    @overload
    @staticmethod
    def load(
        id: str,
        *,
        schema: OutputType[LoadedT],
        agent: Agent | None = None,
        folder: str | os.PathLike[str] | None = None,
    ) -> BatchJob[LoadedT]: ...

    @overload
    @staticmethod
    def load(
        id: str, *, schema: JsonSchema, agent: Agent | None = None, folder: str | os.PathLike[str] | None = None
    ) -> BatchJob[JsonValue]: ...

    @staticmethod
    def load(
        id: str,
        *,
        schema: Any = None,
        agent: Agent | None = None,
        folder: str | os.PathLike[str] | None = None,
    ) -> BatchJob[Any]:
        """Load a job of any process. Nothing is sent.

        Args:
            id: The id of the job.
            agent: Agent that sends the requests; by default one for the job's model, with the key of the environment.
            folder: Folder of the jobs, if it is not the default.
            schema: Type of the outputs. By default they are JSON values that fit the schema of their request.
        """
        if not _ID.fullmatch(id):
            raise errors.ConfigurationError(
                f"{id!r} is not the id of a batch job.", field="id", fix="Pass the id of a BatchJob."
            )
        files = JobFolder(folder, id)
        state = files.load()
        if agent is None:
            from ..agent import Agent as NewAgent  # lazy: the agent module imports this package

            agent = NewAgent(f"{state.provider}:{state.model or '-'}", base_url=state.base_url)
        elif agent.config.provider != state.provider:
            raise errors.ConfigurationError(
                f"The job was submitted to {state.provider!r}, the agent is for {agent.config.provider!r}.",
                field="agent",
                fix="Pass an agent of the same provider.",
            )
        check_agent(agent)
        return BatchJob(agent, files, state, schema=schema)

    @property
    def id(self) -> str:
        """Id of the job, for `load`."""
        return self._state.id

    @property
    def provider(self) -> str:
        return self._state.provider

    @property
    def status(self) -> BatchStatus:
        """Status at the time of the latest operation."""
        parts = self._state.parts
        if any(part.stage in UNSENT for part in parts):
            return "preparing"
        active = [part.status for part in parts if part.stage not in FINAL]
        order: tuple[BatchStatus, ...] = ("cancelling", "running", "queued")
        return next((status for status in order if status in active), "ended")

    @property
    def ended(self) -> bool:
        return self.status == "ended"

    @property
    def counts(self) -> BatchCounts:
        """Outcomes so far. Some vendors report them only when a batch ends."""
        parts = self._state.parts
        return BatchCounts(self._state.total, sum(part.succeeded for part in parts), sum(part.failed for part in parts))

    @property
    def ended_parts(self) -> int:
        """Number of batches at the vendor that have ended."""
        return sum(part.stage in FINAL for part in self._state.parts)

    @property
    def parts(self) -> tuple[str | None, ...]:
        """The vendor's ids of its batches, None for those that were not created yet."""
        return tuple(part.batch for part in self._state.parts)

    @override
    @errors.printable
    def __repr__(self) -> str:
        counts = self.counts
        return f"BatchJob({self.id!r}, {self.provider}, {self.status}, {counts.succeeded} of {counts.total} succeeded)"

    # Operations

    def poll(self) -> Self:
        """Ask the vendor for the status, and submit what an interrupted submission left over."""
        return self._run(lambda flow: flow.poll())

    async def apoll(self) -> Self:
        """Async version of `poll`."""
        return await self._arun(lambda flow: flow.poll())

    def wait(self, *, interval: float = 30.0, timeout: float = math.inf) -> Self:
        """Poll until the job has ended. Raises TimeoutError after `timeout` seconds; the job goes on."""
        until = time.monotonic() + timeout
        while not self.poll().ended:
            self._check_time(until)
            time.sleep(interval)
        return self

    async def await_(self, *, interval: float = 30.0, timeout: float = math.inf) -> Self:
        """Async version of `wait`."""
        import asyncio  # lazy: sync jobs need no event loop

        until = time.monotonic() + timeout
        while not (await self.apoll()).ended:
            self._check_time(until)
            await asyncio.sleep(interval)
        return self

    def cancel(self) -> Self:
        """Cancel the job. Requests that were answered before keep their results."""
        return self._run(lambda flow: flow.cancel())

    async def acancel(self) -> Self:
        """Async version of `cancel`."""
        return await self._arun(lambda flow: flow.cancel())

    def results(self, *, ordered: bool = True) -> Iterator[BatchItem[OutputT]]:
        """Download and yield the items of all batches that have ended, each with a response or an error.

        Args:
            ordered: In the order of the requests; otherwise in that of the vendor.
        """
        self._run(lambda flow: flow.collect())
        return map(self._decode_sync, self._list_results(ordered=ordered))

    async def aresults(self, *, ordered: bool = True) -> AsyncIterator[BatchItem[OutputT]]:
        """Async version of `results`."""
        from ..engine.drivers.asyncio import AioRun, adrain  # lazy: sync jobs need no event loop

        await self._arun(lambda flow: flow.collect())
        for pair in self._list_results(ordered=ordered):
            yield await adrain(AioRun(self._agent._transport, self._decode(*pair), math.inf))

    def resubmit_failed(self) -> Self:
        """Submit requests without a valid response again, also those with an invalid output."""
        failed = [item.index for item in self.results() if not item.ok]
        return self._run(lambda flow: flow.resubmit(failed)) if failed else self

    async def aresubmit_failed(self) -> Self:
        """Async version of `resubmit_failed`."""
        failed = [item.index async for item in self.aresults() if not item.ok]
        return await self._arun(lambda flow: flow.resubmit(failed)) if failed else self

    def adopt(self, batch: str) -> Self:
        """Name the batch whose creation was interrupted, if the vendor lists several that it may be."""
        with self._folder.lock():
            self._state = self._folder.load()
            part = next((part for part in self._state.parts if part.stage == "creating"), None)
            if part is None:
                raise errors.ConfigurationError(
                    "No creation of a batch was interrupted.", field="batch", fix="Call poll()."
                )
            part.batch, part.stage = batch, "submitted"
            self._folder.save(self._state)
        return self

    def delete(self) -> None:
        """Delete the ended job: its batches and files at the vendor, and its files on this machine."""
        self._check_ended()
        self._run(lambda flow: flow.clean_up())
        self._folder.delete()

    async def adelete(self) -> None:
        """Async version of `delete`."""
        self._check_ended()
        await self._arun(lambda flow: flow.clean_up())
        self._folder.delete()

    def _check_ended(self) -> None:
        if not self.ended:
            raise errors.ConfigurationError(
                f"The batch job has not ended: it is {self.status}.", field="id", fix="Cancel it, or wait for its end."
            )

    def _check_time(self, until: float) -> None:
        if time.monotonic() >= until:
            raise errors.TimeoutError(f"the batch job {self.id} has not ended in time; it goes on")

    # Drivers

    def _run(self, start: Callable[[JobFlow], Flow[None]]) -> Self:
        with self._folder.lock():
            self._state = self._folder.load()
            flow = JobFlow(self._agent, self._folder, self._state)
            drain(SyncRun(self._agent._transport, start(flow), math.inf))
        return self

    async def _arun(self, start: Callable[[JobFlow], Flow[None]]) -> Self:
        from ..engine.drivers.asyncio import AioRun, adrain  # lazy: sync jobs need no event loop

        with self._folder.lock():
            self._state = self._folder.load()
            flow = JobFlow(self._agent, self._folder, self._state)
            await adrain(AioRun(self._agent._transport, start(flow), math.inf))
        return self

    # Results

    def _list_results(self, *, ordered: bool) -> Iterator[tuple[StoredRequest, BatchPart, ItemResult]]:
        found: dict[int, tuple[BatchPart, ItemResult]] = {}
        for number, part in enumerate(self._state.parts):
            if part.stage != "collected":
                continue
            items = set(part.items)
            results = [each for each in self._folder.read_results(number) if each.item in items]
            found.update((int(result.item), (part, result)) for result in results)
            for item in part.items:
                found.setdefault(item, (part, ItemResult(item, part.missing)))
        indices = sorted(found) if ordered else list(found)
        for stored in self._folder.read_requests(indices):
            part, result = found[stored.position]
            yield stored, part, result

    def _decode_sync(self, pair: tuple[StoredRequest, BatchPart, ItemResult]) -> BatchItem[OutputT]:
        item: BatchItem[OutputT] = drain(SyncRun(self._agent._transport, self._decode(*pair), math.inf))
        return item

    def _decode(self, stored: StoredRequest, part: BatchPart, result: ItemResult) -> Flow[BatchItem[OutputT]]:
        response: AgentResponse[OutputT] | None = None
        error: errors.AgentError | None = None
        try:
            response = yield from run_validation(self._read_result, stored, part, result)
        except errors.AgentError as raised:
            error = raised
        return BatchItem(stored.position, stored.request, response, error, stored.custom_id)

    def _read_result(self, stored: StoredRequest, part: BatchPart, result: ItemResult) -> AgentResponse[Any]:
        provider, request = self._agent.provider, stored.request
        schema = self._schema or self._schemas.get(stored.position)
        if request.output_schema is not None and schema is not None and not isinstance(schema, Mapping):
            request = request.copy_with(output_schema=schema)
        plan = None if request.output_schema is None else plan_output(provider, request)
        sent = request if plan is None else plan.request
        attempt = Attempt(
            target=f"{provider.name}:{part.model}",
            provider=provider.name,
            model=part.model,
            request_id=result.request_id,
        )
        headers = {} if result.request_id is None else {"x-request-id": result.request_id}
        try:
            if result.status in ("cancelled", "expired"):
                raise _item_error(result, provider.name, part.model)
            if result.status == "failed":
                body = result.body if result.body is not None else {"error": part.error or {"message": "no result"}}
                code = result.code if result.code >= 400 else 400
                raise provider.decode_error(Reply(code, headers, to_json(body)), sent)
            response = provider.decode(Reply(result.code, headers, to_json(result.body)), sent)
            discount = get_batch_api(provider).discount
            cost = LazyCost.lazy(partial(_compute_cost, response, part.model, discount))
            response = with_warnings(response.with_cost(cost), stored.warnings)
            attempt = attempt.copy_with(usage=response.usage).with_cost(cost)
            response = response.copy_with(route=Route((attempt,), ()))
            return response if plan is None else read_output(response, plan, request)
        except errors.AgentError as error:
            error.attempts = (attempt.copy_with(error=type(error).__name__, message=error.message),)
            raise


def _item_error(result: ItemResult, provider: str, model: str) -> errors.AgentError:
    if result.status == "cancelled":
        return errors.Aborted("the batch was cancelled before this request ran", provider=provider, model=model)
    return errors.TimeoutError("the batch expired before this request ran", provider=provider, model=model)


def _compute_cost(response: AgentResponse[Any], model: str, discount: float | None) -> tuple[float | None, str | None]:
    models, tier = (response.model, model), ServiceTier.BATCH
    cost = price(response.usage, provider=response.provider, models=models, tier=tier, batch_discount=discount)
    return (None, None) if cost is None else cost


# Submission


def check_agent(agent: Agent) -> None:
    """Raise the reason why an agent cannot run batch jobs."""
    if agent.middleware:
        raise errors.ConfigurationError(
            "Batch jobs do not pass through middleware.",
            field="middleware",
            fix="Use batch(), or agent.with_config(middleware=()).",
        )
    if agent._client is not None:
        raise errors.ConfigurationError(
            "Batch jobs cannot use an SDK client.", field="client", fix="Use an agent without client=."
        )
    get_batch_api(agent.provider)


def prepare_job(agent: Agent, requests: BatchRequests, options: Mapping[str, Any]) -> BatchJob[Any]:
    """Write the files of a new job. Nothing is sent."""
    check_agent(agent)
    api, provider = get_batch_api(agent.provider), agent.provider
    named = _name_requests(requests)
    options = dict(options)
    folder = options.pop("folder", None)
    if not named:
        raise errors.ConfigurationError("There are no requests.", field="requests", fix="Pass at least one.")
    job_id = f"batch-{token_hex(8)}"
    stored: list[tuple[StoredRequest, int]] = []
    schemas: dict[int, Any] = {}
    for index, (custom_id, given) in enumerate(named.items()):
        try:
            request = agent._prepare(given, options)
            if find_secrets(request.extra):
                raise errors.ConfigurationError(
                    "extra contains a credential, which a batch job would have to store.",
                    field="extra",
                    fix="Pass it to the agent as api_key or headers.",
                )
            sent = request if request.output_schema is None else plan_output(provider, request).request
            wire = provider.encode(sent, stream=False)
        except errors.ConfigurationError as error:
            error.add_note(f"Request {custom_id!r} of the batch job.")
            raise
        if request.output_schema is not None:
            schemas[index] = request.output_schema
        size = len(api.encode_item(item_id(job_id, index), wire.body))
        stored.append((StoredRequest(index, custom_id, request, wire.warnings), size))
    config = agent.config
    state = JobState(job_id, config.provider, config.model, config.base_url, get_unix_time(), len(stored))
    state.parts = split_items(api, stored)
    files = JobFolder(folder, job_id)
    with files.lock():
        files.write_requests(request for request, _ in stored)
        files.save(state)
    return BatchJob(agent, files, state, schemas=schemas)


def submit_job(agent: Agent, requests: BatchRequests, options: Mapping[str, Any]) -> BatchJob[Any]:
    """Create a job and submit it. If that fails, the error's `result` is the job."""
    job = prepare_job(agent, requests, options)
    try:
        return job.poll()
    except errors.AgentError as error:
        _attach_job(error, job)
        raise


async def asubmit_job(agent: Agent, requests: BatchRequests, options: Mapping[str, Any]) -> BatchJob[Any]:
    """Async version of `submit_job`."""
    import asyncio  # lazy: sync jobs need no event loop

    named = _name_requests(requests)  # read here: an iterable may belong to this thread
    job = await asyncio.to_thread(prepare_job, agent, named, options)
    try:
        return await job.apoll()
    except errors.AgentError as error:
        _attach_job(error, job)
        raise


def _name_requests(requests: BatchRequests) -> dict[str, RequestLike]:
    if isinstance(requests, Mapping):
        return dict(requests)
    return {str(index): request for index, request in enumerate(check_source(requests, awaiting=False))}


def _attach_job(error: errors.AgentError, job: BatchJob[Any]) -> None:
    error.result = job
    error.add_note(f"The batch job {job.id} is saved: BatchJob.load({job.id!r}).poll() continues it.")
