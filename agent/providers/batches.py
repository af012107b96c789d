"""Interface of vendors' batch APIs: items in, one line of result per item out.

An implementation is pure, like a codec: it encodes the requests of the API and decodes the replies. The flow in
`agent.batch.job_flow` decides when to send which.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from secrets import token_hex
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

from pydantic_core import to_json

from .. import errors
from ..engine.wire import WireRequest, parse_json

VendorStatus: TypeAlias = Literal["queued", "running", "cancelling", "ended"]
ItemStatus: TypeAlias = Literal["succeeded", "failed", "cancelled", "expired"]
Header: TypeAlias = tuple[bytes, bytes]


@dataclass(frozen=True, slots=True)
class VendorBatch:
    """A batch as the vendor reports it."""

    id: str
    status: VendorStatus
    succeeded: int = 0
    failed: int = 0
    total: int | None = None
    missing: ItemStatus = "expired"
    """Status of items without a result, once the batch has ended."""
    error: Mapping[str, Any] | None = None
    """The vendor's error, if the whole batch failed."""
    results: tuple[str, ...] = ()
    """References of the results for `download`."""
    marks: tuple[str, ...] = ()
    """The name or input file that identifies the batch; none if the API returns neither."""
    created: float | None = None
    """Unix time of the creation."""


class ItemResult(NamedTuple):
    """The outcome of one item, with the parts of an ordinary reply."""

    item: str | int
    """Id of the item, or its position where the vendor returns no id."""
    status: ItemStatus
    code: int = 200
    """HTTP status of the reply."""
    request_id: str | None = None
    body: Any = None
    """The reply's JSON, of a response or an error."""


class BatchFiles(Protocol):
    """Files with the items of a batch."""

    def upload(self, name: str, items: Iterable[bytes]) -> WireRequest: ...

    def decode_upload(self, body: Any) -> str:
        """Return the id of the uploaded file."""
        ...

    def list_files(self) -> WireRequest: ...

    def find_file(self, body: Any, name: str) -> str | None:
        """Return the id of the file with this name in a list."""
        ...


class BatchApi(Protocol):
    """The batch API of one vendor."""

    @property
    def max_requests(self) -> int: ...

    @property
    def max_bytes(self) -> int: ...

    @property
    def discount(self) -> float | None:
        """Price relative to ordinary requests, for models without listed batch prices; None if it varies."""
        ...

    @property
    def files(self) -> BatchFiles | None:
        """Uploads of items, for vendors whose batches are created from files."""
        ...

    def encode_item(self, item: str, body: bytes) -> bytes: ...

    def create(
        self, name: str, model: str, items: Sequence[bytes], *, file: str | None, headers: Sequence[Header]
    ) -> WireRequest:
        """Encode the creation of a batch from items or an uploaded file.

        `headers` are those of the requests in the items.
        """
        ...

    def retrieve(self, batch: str) -> WireRequest: ...

    def cancel(self, batch: str) -> WireRequest: ...

    def list_batches(self, cursor: str | None) -> WireRequest:
        """Encode a request for batches, the newest first."""
        ...

    def decode_batch(self, body: Any) -> VendorBatch: ...

    def decode_list(self, body: Any) -> tuple[list[VendorBatch], str | None]:
        """Return the batches, and the cursor of the next page."""
        ...

    def download(self, reference: str) -> WireRequest: ...

    def decode_results(self, data: bytes) -> Iterator[ItemResult]: ...

    def delete(self, reference: str) -> WireRequest:
        """Encode the deletion of a file if the API has files, otherwise of a batch."""
        ...


def make_unsupported_error(provider: str, reason: str, fix: str) -> errors.UnsupportedFeatureError:
    return errors.UnsupportedFeatureError(
        f"{provider} cannot run batch jobs: {reason}.", field="provider", fix=fix, provider=provider
    )


def get_batch_api(provider: Any) -> BatchApi:
    """Return the batch API of a provider, from its method `batch_api`.

    Raises:
        UnsupportedFeatureError: It has none, or not at its address.
    """
    find = getattr(provider, "batch_api", None)
    if find is None:
        raise make_unsupported_error(
            provider.name, "it has no batch API", "Use batch(), which sends ordinary requests."
        )
    api: BatchApi = find()
    return api


def select_headers(headers: Iterable[Header], *, content_type: bytes | None) -> tuple[Header, ...]:
    """Return the headers of a codec with another content type; None for requests without a body."""
    kept = tuple(header for header in headers if header[0] != b"content-type")
    return kept if content_type is None else (*kept, (b"content-type", content_type))


def encode_form(fields: dict[str, str], name: str, items: Iterable[bytes]) -> tuple[bytes, bytes]:
    """Encode fields and a file of lines as multipart/form-data. Returns the content type and the body."""
    boundary = token_hex(16).encode()
    pieces: list[bytes] = []
    for field, value in fields.items():
        disposition = f'content-disposition: form-data; name="{field}"'.encode()
        pieces.append(b"--%b\r\n%b\r\n\r\n%b\r\n" % (boundary, disposition, value.encode()))
    disposition = f'content-disposition: form-data; name="file"; filename="{name}"'.encode()
    pieces.append(b"--%b\r\n%b\r\ncontent-type: application/jsonl\r\n\r\n" % (boundary, disposition))
    pieces.extend(b"%b\n" % item for item in items)
    pieces.append(b"\r\n--%b--\r\n" % boundary)
    return b"multipart/form-data; boundary=" + boundary, b"".join(pieces)


def read_json_lines(data: bytes) -> Iterator[dict[str, Any]]:
    """Yield the objects of a JSONL file. Raises ValueError for anything else."""
    for line in data.split(b"\n"):
        if line.strip():
            value = parse_json(line)
            if not isinstance(value, dict):
                raise ValueError("a line of the results is not an object")
            yield value


def dump_item(**fields: Any) -> bytes:
    return to_json(fields)
