"""Files and flows of batch jobs: submit, refresh, collect, cancel and clean up.

Before a request that creates something, the intent is saved. After a crash, or if the reply of such a request was lost,
the flow searches the vendor's batches by name, uploaded file, or time and size, before it sends anything again. No file
contains a key, and only its owner can read it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, TypeVar

from pydantic_core import from_json, to_json

from .. import errors
from ..calls.output_modes import as_sent
from ..engine.context import Call, Context
from ..engine.flow import Flow, Invoke, Send
from ..engine.wire import Reply, WireRequest, parse_json
from ..errors import ConfigurationError
from ..providers.batches import BatchApi, ItemResult, ItemStatus, VendorBatch, VendorStatus, get_batch_api
from ..providers.codec import SHAPE_ERRORS, describe_malformed
from ..stores.files import replace_file
from ..types import AgentRequest
from .ledger import lock_file

if TYPE_CHECKING:
    from ..agent import Agent
    from ..calls.call import Endpoint

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
        rows = (
            {"custom_id": each.custom_id, "warnings": each.warnings, "request": each.request.to_dict()}
            for each in requests
        )
        replace_file(self.path / "requests.jsonl", (to_json(row) + b"\n" for row in rows))

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


# Flows

T = TypeVar("T")

MAX_RESULT_BYTES = 1 << 30
"""Size limit of the results of one batch."""
SETTLE_SECONDS = 60.0
"""Age at which a batch that the vendor does not list was certainly not created."""
_CLOCK_SKEW = 300.0
_MAX_PAGES = 20
_NO_REQUEST = AgentRequest(input="-")


def split_items(api: BatchApi, requests: Iterable[tuple[StoredRequest, int]]) -> list[BatchPart]:
    """Divide requests and their sizes into parts within the vendor's limits, each for one model."""
    parts: list[BatchPart] = []
    open_parts: dict[str, tuple[BatchPart, int]] = {}
    for request, size in requests:
        model = request.request.model or ""
        if size > api.max_bytes:
            raise errors.ConfigurationError(
                f"Request {request.custom_id!r} has {size} bytes; a batch may have {api.max_bytes}.",
                field="requests",
                fix="Shorten it, or refer to files by URL.",
            )
        part, used = open_parts.get(model, (None, 0))
        if part is None or len(part.items) == api.max_requests or used + size > api.max_bytes:
            part, used = BatchPart([], model), 0
            parts.append(part)
        part.items.append(request.position)
        open_parts[model] = part, used + size + 1
    return parts


def item_id(job: str, index: int) -> str:
    """Return the id of a request at the vendor, unique across jobs."""
    return f"{job}-{index}"


class JobFlow:
    """The flows of one job. Each saves the state whenever it changes."""

    def __init__(self, agent: Agent, folder: JobFolder, state: JobState) -> None:
        self._agent = agent
        self._folder = folder
        self._state = state
        self._provider = agent.provider
        self._api = get_batch_api(agent.provider)

    # Flows

    def poll(self) -> Flow[None]:
        """Refresh running batches, and submit the parts that were not submitted yet."""
        for part in self._state.parts:
            if part.stage == "submitted":
                yield from self._refresh(part)
        yield from self.submit()

    def submit(self) -> Flow[None]:
        for number, part in enumerate(self._state.parts):
            if part.stage == "uploading":
                yield from self._find_upload(number, part)
            if part.stage == "creating" and not (yield from self._find_created(number, part)):
                continue
            if part.stage in ("planned", "uploaded"):
                yield from self._submit_part(number, part)

    def resubmit(self, indices: Sequence[int]) -> Flow[None]:
        """Submit requests again, except those that another process submitted meanwhile."""
        collected = {item for part in self._state.parts if part.stage == "collected" for item in part.items}
        moved = collected & set(indices)
        parts = yield from Invoke(self._split, (sorted(moved),), blocking=True)
        for part in self._state.parts:
            part.items = [item for item in part.items if item not in moved]
            if part.stage == "collected":
                part.succeeded, part.failed = len(part.items), 0
        self._state.parts.extend(parts)
        yield from self._save()
        yield from self.submit()

    def collect(self) -> Flow[None]:
        """Download the results of ended batches."""
        for number, part in enumerate(self._state.parts):
            if part.stage != "ended":
                continue
            results: list[ItemResult] = []
            for reference in part.results:
                results += yield from self._download(part, reference)
            yield from Invoke(self._folder.write_results, (number, results), blocking=True)
            part.succeeded = sum(result.status == "succeeded" for result in results)
            part.failed = len(part.items) - part.succeeded
            part.stage = "collected"
            yield from self._save()

    def cancel(self) -> Flow[None]:
        """Cancel running batches. Parts that were not submitted never will be."""
        for number, part in enumerate(self._state.parts):
            if part.stage == "creating" and not (yield from self._find_created(number, part)):
                raise errors.ConnectionError(
                    "The vendor does not list a batch whose creation was interrupted less than a minute ago.",
                    provider=self._provider.name,
                    retry_after=SETTLE_SECONDS,
                )
            if part.stage in UNSENT:
                part.stage, part.missing = "ended", "cancelled"
            elif part.stage == "submitted":
                yield from self._refresh(part)
                if part.stage == "submitted":
                    yield from self._cancel_batch(part)
        yield from self._save()

    def clean_up(self) -> Flow[None]:
        """Delete batches and files at the vendor."""
        for part in self._state.parts:
            for reference in (part.batch,) if self._api.files is None else (part.file, *part.results):
                if reference is not None:
                    yield from self._delete(reference)

    # Steps

    def _download(self, part: BatchPart, reference: str) -> Flow[list[ItemResult]]:
        reply = yield from self._exchange(lambda api: api.download(reference), MAX_RESULT_BYTES)
        results: list[ItemResult] = yield from Invoke(self._read_results, (part, reply), blocking=True)
        return results

    def _cancel_batch(self, part: BatchPart) -> Flow[None]:
        batch = part.batch or ""
        yield from self._exchange(lambda api: api.cancel(batch))
        yield from self._refresh(part)

    def _delete(self, reference: str) -> Flow[None]:
        with suppress(errors.ModelNotFoundError):  # status 404: it is gone already
            yield from self._exchange(lambda api: api.delete(reference))

    def _refresh(self, part: BatchPart) -> Flow[None]:
        batch = part.batch or ""
        reply = yield from self._exchange(lambda api: api.retrieve(batch), MAX_RESULT_BYTES)
        before = (part.stage, part.status, part.succeeded, part.failed)
        part.update(self._decode(reply, self._api.decode_batch))
        if before != (part.stage, part.status, part.succeeded, part.failed):
            yield from self._save()

    def _submit_part(self, number: int, part: BatchPart) -> Flow[None]:
        name = f"{self._state.id}-{number}"
        items: list[bytes] = []
        headers: list[tuple[bytes, bytes]] = []
        if part.file is None:
            items, headers = yield from Invoke(self._encode_part, (part,), blocking=True)
        files = self._api.files
        if files is not None and part.file is None:
            part.stage = "uploading"
            yield from self._save()
            reply = yield from self._exchange(lambda api: api.files.upload(f"{name}.jsonl", items))
            part.file = self._decode(reply, files.decode_upload)
            part.stage = "uploaded"
            yield from self._save()
        before = part.stage
        part.stage, part.since = "creating", get_unix_time()
        yield from self._save()

        def create(api: BatchApi) -> WireRequest:
            wire = api.create(name, part.model, items, file=part.file, headers=headers)
            wire.once = True
            return wire

        try:
            reply = yield from self._exchange(create)
        except errors.AgentError as error:
            if not _may_have_arrived(error):
                part.stage = before
                yield from self._save()
            raise
        part.update(self._decode(reply, self._api.decode_batch))
        yield from self._save()

    def _find_upload(self, number: int, part: BatchPart) -> Flow[None]:
        """Use the file of an interrupted upload if the vendor has it."""
        files = self._api.files
        assert files is not None
        reply = yield from self._exchange(lambda api: api.files.list_files())
        name = f"{self._state.id}-{number}.jsonl"
        part.file = self._decode(reply, lambda body: files.find_file(body, name))
        part.stage = "planned" if part.file is None else "uploaded"
        yield from self._save()

    def _find_created(self, number: int, part: BatchPart) -> Flow[bool]:
        """Look for the batch of an interrupted creation. Returns False if that is still undecided."""
        found = yield from self._look_up(f"{self._state.id}-{number}", part)
        if found is not None:
            part.update(found)
        elif get_unix_time() - part.since < SETTLE_SECONDS:
            return False
        else:
            part.stage = "planned" if part.file is None else "uploaded"
        yield from self._save()
        return True

    def _look_up(self, name: str, part: BatchPart) -> Flow[VendorBatch | None]:
        candidates: list[VendorBatch] = []
        known: set[str] = yield from Invoke(self._folder.list_other_batches, blocking=True)
        cursor: str | None = None
        for _ in range(_MAX_PAGES):
            batches, cursor = yield from self._list(cursor)
            for batch in batches:
                if name in batch.marks or (part.file is not None and part.file in batch.marks):
                    return batch
                recent = batch.created is not None and batch.created >= part.since - _CLOCK_SKEW
                if recent and not batch.marks and batch.total == len(part.items) and batch.id not in known:
                    candidates.append(batch)
            if cursor is None or _ends_before(batches, part.since - _CLOCK_SKEW):
                break
        if len(candidates) > 1:
            raise errors.ConfigurationError(
                f"The creation of a batch was interrupted, and several batches of {self._provider.name} may be it: "
                f"{', '.join(batch.id for batch in candidates)}.",
                field="batch",
                fix="Find out which it is, and pass its id to adopt().",
            )
        return candidates[0] if candidates else None

    def _list(self, cursor: str | None) -> Flow[tuple[list[VendorBatch], str | None]]:
        reply = yield from self._exchange(lambda api: api.list_batches(cursor))
        return self._decode(reply, self._api.decode_list)

    # Helpers

    def _save(self) -> Flow[None]:
        yield from Invoke(self._folder.save, (self._state,), blocking=True)

    def _split(self, indices: Sequence[int]) -> list[BatchPart]:
        requests = self._folder.read_requests(indices)
        return split_items(self._api, ((each, len(self._encode_item(each)[0])) for each in requests))

    def _encode_item(self, stored: StoredRequest) -> tuple[bytes, WireRequest]:
        wire = self._provider.encode(as_sent(self._provider, stored.request), stream=False)
        return self._api.encode_item(item_id(self._state.id, stored.position), wire.body), wire

    def _encode_part(self, part: BatchPart) -> tuple[list[bytes], list[tuple[bytes, bytes]]]:
        items: list[bytes] = []
        headers: dict[tuple[bytes, bytes], None] = {}
        for stored in self._folder.read_requests(part.items):
            item, wire = self._encode_item(stored)
            items.append(item)
            headers.update(dict.fromkeys(wire.headers))
        return items, list(headers)

    def _read_results(self, part: BatchPart, reply: Reply) -> list[ItemResult]:
        """Return the results by index. Raises ProtocolError if they are not those of the part."""
        expected = {item_id(self._state.id, item): item for item in part.items}

        def decode() -> list[ItemResult]:
            return [
                result._replace(item=part.items[result.item] if isinstance(result.item, int) else expected[result.item])
                for result in self._api.decode_results(reply.body)
            ]

        return self._read(decode)

    def _decode(self, reply: Reply, decode: Callable[[Any], T]) -> T:
        return self._read(lambda: decode(parse_json(reply.body)))

    def _read(self, decode: Callable[[], T]) -> T:
        try:
            return decode()
        except SHAPE_ERRORS as error:
            name = self._provider.name
            raise errors.ProtocolError(
                f"{name}: the answer of the batch API cannot be read ({describe_malformed(error)})", provider=name
            ) from None

    def _exchange(self, build: Callable[[Any], WireRequest], max_bytes: int | None = None) -> Flow[Reply]:
        """Send a request and return its successful reply, with retries unless it may be sent only once."""

        def at(endpoint: Endpoint) -> Call:
            def call(request: AgentRequest, context: Context) -> Flow[Any]:
                provider, limits = endpoint.provider, endpoint.limits
                wire = build(get_batch_api(provider))
                wire.target = provider.name
                if max_bytes is not None:
                    limits = replace(limits, max_bytes=max_bytes)
                try:
                    reply = yield from Send(wire, limits, endpoint.via)
                    if not 200 <= reply.status < 300:
                        raise provider.decode_error(reply, request)
                except errors.AgentError as error:
                    if wire.once and _may_have_arrived(error):
                        error.retryable = False
                    raise
                return reply

            return call

        reply: Reply = yield from self._agent._exchange_call(at)(_NO_REQUEST, Context())  # type: ignore[assignment]
        return reply


def _ends_before(batches: Sequence[VendorBatch], limit: float) -> bool:
    """Whether the newest batches come first and further pages are older than a time."""
    times = [batch.created or 0.0 for batch in batches]
    return bool(times) and times[0] >= times[-1] < limit


def _may_have_arrived(error: errors.AgentError) -> bool:
    """Whether the vendor may have carried out a request that failed."""
    if isinstance(error, errors.ConfigurationError | errors.PoolExhaustedError | errors.AuthenticationError):
        return False
    return error.status_code is None or error.status_code >= 500 or error.status_code == 408
