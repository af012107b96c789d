"""The Batch API: upload a file of requests, create a batch, and download two files of results.

Vendors that copied the API differ in paths, names and limits, which `BatchDialect` holds as data.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any
from urllib.parse import quote, urlencode

from pydantic_core import from_json, to_json

from ...engine.wire import WireRequest
from ..batches import (
    Header,
    ItemResult,
    ItemStatus,
    VendorBatch,
    VendorStatus,
    dump_item,
    encode_form,
    read_json_lines,
    select_headers,
)
from .dialect import BatchDialect

_STATUS: Mapping[str, VendorStatus] = {
    "validating": "queued",
    "queued": "queued",
    "in_progress": "running",
    "running": "running",
    "finalizing": "running",
    "cancelling": "cancelling",
    "cancellation_requested": "cancelling",
}
"""By the vendor's status in lower case; all others are final."""
_MISSING: Mapping[str, ItemStatus] = {
    "failed": "failed",
    "cancelled": "cancelled",
    "expired": "expired",
    "timeout_exceeded": "expired",
}
_ITEM_CODES: Mapping[str, ItemStatus] = {"batch_expired": "expired", "batch_cancelled": "cancelled"}


class OpenAIBatches:
    """The Batch API of one vendor at one address.

    Args:
        dialect: The vendor's differences.
        root: Base URL of the API.
        endpoint: Path of the requests' endpoint, as batches name it.
        headers: Headers of the codec.
        query: Query of every URL, such as `?api-version=…`.
    """

    def __init__(
        self, dialect: BatchDialect, root: str, endpoint: str, headers: tuple[Header, ...], query: str = ""
    ) -> None:
        self.max_requests: int = dialect.max_requests
        self.max_bytes: int = dialect.max_bytes
        self.discount: float | None = dialect.discount
        self._dialect = dialect
        self._root = root
        self._endpoint = endpoint
        self._headers = headers
        self._query = query

    @property
    def files(self) -> OpenAIBatches:
        return self

    def encode_item(self, item: str, body: bytes) -> bytes:
        if self._dialect.job_form:
            fields = {key: value for key, value in from_json(body).items() if key != "model"}  # that of the batch
            return dump_item(custom_id=item, body=fields)
        return dump_item(custom_id=item, method="POST", url=self._endpoint, body=from_json(body))

    def upload(self, name: str, items: Iterable[bytes]) -> WireRequest:
        fields = {"purpose": self._dialect.purpose}
        if self._dialect.named_files:
            fields |= {"file_name": name, "file_type": "jsonl"}
        content_type, body = encode_form(fields, name, items)
        return WireRequest(
            f"{self._root}{self._dialect.upload_path}{self._query}",
            select_headers(self._headers, content_type=content_type),
            body,
        )

    def decode_upload(self, body: Any) -> str:
        return str(body["id"])

    def list_files(self) -> WireRequest:
        return self._get("/files", purpose=self._dialect.purpose)

    def find_file(self, body: Any, name: str) -> str | None:
        return next((str(file["id"]) for file in body["data"] if file.get("filename") == name), None)

    def create(
        self, name: str, model: str, items: Sequence[bytes], *, file: str | None, headers: Sequence[Header]
    ) -> WireRequest:
        body: dict[str, Any]
        if self._dialect.job_form:
            body = {"input_files": [file], "model": model, "endpoint": self._endpoint, "timeout_hours": 24}
        else:
            body = {"input_file_id": file, "endpoint": self._endpoint, "completion_window": "24h"}
        if self._dialect.metadata:
            body["metadata"] = {"agent_batch": name}
        return self._post("", to_json(body))

    def retrieve(self, batch: str) -> WireRequest:
        return self._get(f"{self._dialect.batches_path}/{quote(batch, safe='')}")

    def cancel(self, batch: str) -> WireRequest:
        return self._post(f"/{quote(batch, safe='')}/cancel", b"{}")

    def list_batches(self, cursor: str | None) -> WireRequest:
        size = str(self._dialect.page_size)
        if self._dialect.job_form:
            return self._get(self._dialect.batches_path, page=cursor or "0", page_size=size, order_by="-created")
        return self._get(self._dialect.batches_path, limit=size, **({} if cursor is None else {"after": cursor}))

    def decode_batch(self, body: Any) -> VendorBatch:
        batch = body.get("job") or body  # some vendors wrap the batch that was created
        status = str(batch["status"]).lower()
        counts = batch.get("request_counts") or {}
        files = [batch.get(key) for key in ("output_file_id", "output_file", "error_file_id", "error_file")]
        marks = [(batch.get("metadata") or {}).get("agent_batch"), batch.get("input_file_id")]
        return VendorBatch(
            str(batch["id"]),
            _STATUS.get(status, "ended"),
            succeeded=counts.get("completed") or batch.get("succeeded_requests") or 0,
            failed=counts.get("failed") or batch.get("failed_requests") or 0,
            total=counts.get("total") or batch.get("total_requests"),
            missing=_MISSING.get(status, "failed"),
            error=_find_error(batch),
            results=tuple(str(file) for file in files if file),
            marks=tuple(str(mark) for mark in (*marks, *(batch.get("input_files") or ())) if mark),
            created=read_time(batch.get("created_at")),
        )

    def decode_list(self, body: Any) -> tuple[list[VendorBatch], str | None]:
        entries = body if isinstance(body, list) else body.get("data") or []
        batches = [self.decode_batch(entry) for entry in entries]
        if isinstance(body, dict) and batches and body.get("has_more"):
            return batches, body.get("last_id") or batches[-1].id
        return batches, None

    def download(self, reference: str) -> WireRequest:
        return self._get(f"/files/{quote(reference, safe='')}/content")

    def decode_results(self, data: bytes) -> Iterator[ItemResult]:
        for line in read_json_lines(data):
            item, error = str(line["custom_id"]), line.get("error")
            reply = line.get("response") or {}
            if error:
                status = _ITEM_CODES.get(str(error.get("code")), "failed")
                yield ItemResult(item, status, reply.get("status_code") or 400, body={"error": error})
                continue
            code = int(reply["status_code"])
            status = "succeeded" if code == 200 else "failed"
            yield ItemResult(item, status, code, reply.get("request_id"), reply["body"])

    def delete(self, reference: str) -> WireRequest:
        wire = self._get(f"/files/{quote(reference, safe='')}")
        wire.method = "DELETE"
        return wire

    def _get(self, path: str, **query: str) -> WireRequest:
        joined = f"{'&' if self._query else '?'}{urlencode(query)}" if query else ""
        url = f"{self._root}{path}{self._query}{joined}"
        return WireRequest(url, select_headers(self._headers, content_type=None), b"", method="GET")

    def _post(self, path: str, body: bytes) -> WireRequest:
        url = f"{self._root}{self._dialect.batches_path}{path}{self._query}"
        return WireRequest(url, self._headers, body)


def _find_error(batch: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the first error of a whole batch."""
    listed = batch.get("errors")
    entries = listed.get("data") if isinstance(listed, dict) else listed
    first: Any = entries[0] if entries else batch.get("error")
    return {"message": str(first)} if first and not isinstance(first, dict) else first or None


def read_time(value: Any) -> float | None:
    """Read a Unix time or an ISO date."""
    if isinstance(value, str):
        return datetime.fromisoformat(value).timestamp()
    return None if value is None else float(value)
