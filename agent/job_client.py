"""JobClient: base class of Agent. Adds batch jobs to Client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast, overload

from .calls.requests import mask_call_options
from .client import Client
from .types.options import BatchJobOptions, document_options

if TYPE_CHECKING:
    from pydantic import JsonValue
    from typing_extensions import Unpack

    from .agent import Agent
    from .batch.jobs import BatchJob, BatchRequests
    from .types.options import JsonSchema, OutputT, OutputType


class JobClient(Client):
    """The batch jobs of Agent."""

    @overload
    def submit_batch(
        self,
        requests: BatchRequests,
        *,
        schema: OutputType[OutputT] | None = None,
        **options: Unpack[BatchJobOptions],
    ) -> BatchJob[OutputT]: ...

    @overload
    def submit_batch(
        self,
        requests: BatchRequests,
        *,
        schema: JsonSchema,
        **options: Unpack[BatchJobOptions],
    ) -> BatchJob[JsonValue]: ...

    @document_options(BatchJobOptions)
    def submit_batch(self, requests: BatchRequests, **options: Any) -> BatchJob[Any]:
        """Submit requests to the vendor's batch API, which answers within a day, usually at half the price.

        The job outlives this process: any other continues it with `BatchJob.load(job.id)`.

        Args:
            requests: The requests, or a dict of requests by custom id.
            schema: Schema of every output, as for `complete`.

        Raises:
            ConfigurationError: A request or option is invalid, or the vendor has no batch API. Nothing was sent.
            AgentError: The submission failed. `result` of the error is the job; its `poll` continues.
        """
        from .batch.jobs import submit_job  # lazy: only batch jobs need it

        mask_call_options(options)
        agent, changes = self._select(options)
        return submit_job(cast("Agent", agent), requests, changes)

    @overload
    async def asubmit_batch(
        self,
        requests: BatchRequests,
        *,
        schema: OutputType[OutputT] | None = None,
        **options: Unpack[BatchJobOptions],
    ) -> BatchJob[OutputT]: ...

    @overload
    async def asubmit_batch(
        self,
        requests: BatchRequests,
        *,
        schema: JsonSchema,
        **options: Unpack[BatchJobOptions],
    ) -> BatchJob[JsonValue]: ...

    async def asubmit_batch(self, requests: BatchRequests, **options: Any) -> BatchJob[Any]:
        """Async version of `submit_batch`."""
        from .batch.jobs import asubmit_job  # lazy: only batch jobs need it

        mask_call_options(options)
        agent, changes = self._select(options)
        return await asubmit_job(cast("Agent", agent), requests, changes)
