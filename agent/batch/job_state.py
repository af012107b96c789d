"""Files of a batch job: requests, results and the state, which includes the next step.

The state is replaced before and after each side effect. No file contains a key, and only its owner can read it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

from pydantic_core import from_json, to_json

from ..errors import ConfigurationError
from ..providers.batches import ItemResult, ItemStatus, VendorBatch, VendorStatus
from ..stores.files import replace_file
from ..types import AgentRequest
from .ledger import lock_file

Stage: TypeAlias = Literal["planned", "uploading", "uploaded", "creating", "submitted", "ended", "collected"]
"""`uploading` and `creating` are written before the request is sent: after a crash, its outcome is unknown."""
UNSENT: frozenset[Stage] = frozenset(("planned", "uploading", "uploaded", "creating"))
FINAL: frozenset[Stage] = frozenset(("ended", "collected"))
_VERSION = 1


@dataclass(slots=True)
class BatchPart:
    """One batch at the vendor.

    A job has several if it exceeds the vendor's limits, or after a resubmission.
    """

    items: list[int]
    """Its requests by position. A request that is submitted again moves to another part."""
    model: str
    stage: Stage = "planned"
    since: float = 0.0
    """Unix time of the latest attempt to create the batch."""
    file: str | None = None
    """Id of the uploaded file."""
    batch: str | None = None
    """The vendor's id of the batch."""
    status: VendorStatus = "queued"
    succeeded: int = 0
    failed: int = 0
    missing: ItemStatus = "expired"
    """Status of requests without a result."""
    error: dict[str, Any] | None = None
    results: list[str] = field(default_factory=list)

    def update(self, reported: VendorBatch) -> None:
        """Take over what the vendor reports."""
        self.batch, self.status, self.missing = reported.id, reported.status, reported.missing
        self.succeeded, self.failed = reported.succeeded, reported.failed
        self.error = None if reported.error is None else dict(reported.error)
        self.results = list(reported.results)
        self.stage = "ended" if reported.status == "ended" else "submitted"


@dataclass(slots=True)
class JobState:
    """State of a batch job."""

    id: str
    provider: str
    model: str
    base_url: str | None
    created: float
    total: int
    parts: list[BatchPart] = field(default_factory=list)


class StoredRequest(NamedTuple):
    """A request of a job."""

    position: int
    custom_id: str
    request: AgentRequest
    warnings: tuple[str, ...]


class JobFolder:
    """The files of one job."""

    def __init__(self, root: str | os.PathLike[str] | None, job_id: str) -> None:
        self.root: Path = default_root() if root is None else Path(root)
        self.path: Path = self.root / job_id
        self._offsets: list[int] = []

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Exclude other processes, and other operations of this one."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self.path / "lock"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o600)
        try:
            lock_file(descriptor, path, "id")
            yield
        finally:
            os.close(descriptor)

    def save(self, state: JobState) -> None:
        replace_file(self.path / "state.json", [to_json({"version": _VERSION, **asdict(state)})])

    def load(self) -> JobState:
        path = self.path / "state.json"
        try:
            data = from_json(path.read_bytes())
            if data.pop("version") != _VERSION:
                raise ValueError("another version")
            parts = [BatchPart(**part) for part in data.pop("parts")]
            return JobState(**data, parts=parts)
        except FileNotFoundError:
            raise ConfigurationError(
                f"There is no batch job {self.path.name!r} in {self.root}.", field="id", fix="Check id and folder."
            ) from None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigurationError(
                f"{path} cannot be read: {error}.", field="id", fix="Use the version of this package that wrote it."
            ) from None

    def write_requests(self, requests: Iterable[StoredRequest]) -> None:
        replace_file(
            self.path / "requests.jsonl",
            (
                to_json(
                    {"custom_id": each.custom_id, "warnings": each.warnings, "request": each.request.to_dict()},
                )
                + b"\n"
                for each in requests
            ),
        )

    def read_requests(self, indices: Sequence[int]) -> Iterator[StoredRequest]:
        """Yield requests in the given order."""
        with open(self.path / "requests.jsonl", "rb") as file:
            if not self._offsets:
                offsets = [0]
                for line in file:
                    offsets.append(offsets[-1] + len(line))
                self._offsets = offsets
            for index in indices:
                file.seek(self._offsets[index])
                data = from_json(file.readline())
                request = AgentRequest.from_dict(data["request"])
                yield StoredRequest(index, data["custom_id"], request, tuple(data["warnings"]))

    def write_results(self, number: int, results: Iterable[ItemResult]) -> None:
        replace_file(self.path / f"results-{number}.jsonl", (to_json(result) + b"\n" for result in results))

    def read_results(self, number: int) -> Iterator[ItemResult]:
        with open(self.path / f"results-{number}.jsonl", "rb") as file:
            for line in file:
                yield ItemResult(*from_json(line))

    def list_other_batches(self) -> set[str]:
        """Return the vendor's ids of the batches of all jobs in this root."""
        found: set[str] = set()
        for path in self.root.glob("*/state.json"):
            try:
                found.update(part["batch"] for part in from_json(path.read_bytes())["parts"] if part["batch"])
            except (OSError, ValueError, KeyError, TypeError):
                continue  # another version; it cannot be read either way
        return found

    def delete(self) -> None:
        shutil.rmtree(self.path)


def get_unix_time() -> float:
    return datetime.now(UTC).timestamp()


def default_root() -> Path:
    """Return the folder of all jobs: `batches` in AGENT_HOME, or in `~/.agent`."""
    home = os.environ.get("AGENT_HOME", "").strip()
    return (Path(home) if home else Path.home() / ".agent") / "batches"
