"""Fixtures of tests of batch jobs: a vendor, agents, and both ways to call them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

from agent import Agent
from agent.batch import BatchItem, BatchJob
from agent.batch.job_flow import JobFolder
from agent.testing import LoopbackServer
from tests.batch.vendors import VendorServer, reject_bad

KEY = "sk-test-0123456789abcdef"
TOKEN = "ya29.test-0123456789abcdef"
"""An access token of Google."""
FORMS = {
    "openai:gpt-4.1-mini": "/v1",
    "openai-chat:gpt-4o": "/v1",
    "anthropic:claude-sonnet-4-5": "/v1",
    "gemini:gemini-2.5-flash": "",
    "vertex:gemini-2.5-flash": "/v1/projects/p/locations/global",
}
"""Base paths of the request formats."""
ROWS = {
    "azure:gpt-4o": "/openai/v1",
    "groq:llama-3.3-70b-versatile": "/openai/v1",
    "mistral:mistral-small-latest": "/v1",
    "together:Qwen/Qwen3.5-9B": "/v1",
}
CREATE = (
    "POST /batches",
    "POST /messages/batches",
    "POST /models/gemini-2.5-flash:batchGenerateContent",
    "POST /projects/p/locations/global/batchPredictionJobs",
)
UPLOAD = ("POST /files", "POST /upload/storage/v1/b/bucket/o")


def key_of(target: str) -> str:
    return TOKEN if target.startswith("vertex:") else KEY


class Sync:
    """Performs operations with blocking calls."""

    def submit(self, agent: Agent, requests: Any, **options: Any) -> BatchJob[Any]:
        return agent.submit_batch(requests, **options)

    def run(self, job: BatchJob[Any], operation: str, **options: Any) -> Any:
        return getattr(job, operation)(**options)

    def results(self, job: BatchJob[Any], **options: Any) -> list[BatchItem[Any]]:
        return list(job.results(**options))


class Async(Sync):
    """Performs operations on an event loop, each on another."""

    @override
    def submit(self, agent: Agent, requests: Any, **options: Any) -> BatchJob[Any]:
        return asyncio.run(agent.asubmit_batch(requests, **options))

    @override
    def run(self, job: BatchJob[Any], operation: str, **options: Any) -> Any:
        return asyncio.run(getattr(job, {"wait": "await_"}.get(operation, f"a{operation}"))(**options))

    @override
    def results(self, job: BatchJob[Any], **options: Any) -> list[BatchItem[Any]]:
        async def collect() -> list[BatchItem[Any]]:
            return [item async for item in job.aresults(**options)]

        return asyncio.run(collect())


@pytest.fixture(params=[Sync, Async])
def calls(request: pytest.FixtureRequest) -> Sync:
    made: Sync = request.param()
    return made


class Desk:
    """A vendor, a folder for jobs, and agents for both."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder / "jobs"
        self.vendor = VendorServer(reject_bad)
        self.vendor.clock = time.time()
        self.server = LoopbackServer(self.vendor)
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", self.server.url)
        monkeypatch.setenv("AGENT_VERTEX_STORAGE", "gs://bucket/folder")

    def agent(self, target: str, **options: Any) -> Agent:
        path = {**FORMS, **ROWS}.get(target, "/v1")
        options = {"base_url": self.server.url + path, "api_key": key_of(target), "max_retries": 0, **options}
        return Agent(target, **options)

    def count(self, *calls: str) -> int:
        return sum(call in calls for call in self.vendor.calls)

    def age(self, job: BatchJob[Any], seconds: float) -> None:
        """Let time pass since the latest attempt to create a batch."""
        folder = JobFolder(self.folder, job.id)
        state = folder.load()
        for part in state.parts:
            part.since -= seconds
        folder.save(state)


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    made = Desk(tmp_path, monkeypatch)
    yield made
    made.server.close()


def texts(items: list[BatchItem[Any]]) -> list[str | None]:
    return [item.response.text if item.response else type(item.error).__name__ for item in items]
