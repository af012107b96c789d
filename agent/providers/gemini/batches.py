"""Batch mode of the Gemini API: requests inline, results in the batch, in order.

Files are not used: a larger job becomes several batches, and nothing has to be uploaded or deleted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any
from urllib.parse import quote

from pydantic_core import from_json, to_json

from ...engine.wire import WireRequest, parse_json
from ..batches import Header, ItemResult, ItemStatus, VendorBatch, VendorStatus, dump_item, select_headers
from .models import GEMINI_API

STATUS: Mapping[str, VendorStatus] = {
    "UNSPECIFIED": "queued",
    "PENDING": "queued",
    "QUEUED": "queued",
    "RUNNING": "running",
    "CANCELLING": "cancelling",
}
"""By the part of the state after BATCH_STATE_; all others are final."""
MISSING: Mapping[str, ItemStatus] = {"FAILED": "failed", "CANCELLED": "cancelled", "EXPIRED": "expired"}
_CODES = {1: 499, 3: 400, 4: 504, 5: 404, 7: 403, 8: 429, 9: 400, 13: 500, 14: 503, 16: 401}
"""HTTP status by the code of a google.rpc.Status."""


class GeminiBatches:
    """Batch mode at one address."""

    max_requests = 50_000
    max_bytes = 19_000_000
    """Inline requests may have 20 MB; some is left for the frame."""
    files = None
    discount: float | None = 0.5

    def __init__(self, root: str, headers: tuple[Header, ...]) -> None:
        self._root = root
        self._headers = headers

    def encode_item(self, item: str, body: bytes) -> bytes:
        return dump_item(request=from_json(body), metadata={"key": item})

    def create(
        self, name: str, model: str, items: Sequence[bytes], *, file: str | None, headers: Sequence[Header]
    ) -> WireRequest:
        url = GEMINI_API.url(self._root, model, "batchGenerateContent")
        body = b'{"batch":{"displayName":%b,"inputConfig":{"requests":{"requests":[%b]}}}}'
        return WireRequest(url, self._headers, body % (to_json(name), b",".join(items)))

    def retrieve(self, batch: str) -> WireRequest:
        return self._send(self._path(batch), "GET")

    def cancel(self, batch: str) -> WireRequest:
        return self._send(f"{self._path(batch)}:cancel", "POST")

    def list_batches(self, cursor: str | None) -> WireRequest:
        token = "" if cursor is None else f"&pageToken={quote(cursor, safe='')}"
        return self._send(f"batches?pageSize=100{token}", "GET")

    def decode_batch(self, body: Any) -> VendorBatch:
        facts = body.get("metadata") or {}
        state = str(facts.get("state", "UNSPECIFIED")).rpartition("STATE_")[2]
        stats = facts.get("batchStats") or {}
        error = body.get("error")
        created = facts.get("createTime")
        return VendorBatch(
            body["name"],
            "ended" if body.get("done") else STATUS.get(state, "ended"),
            succeeded=int(stats.get("successfulRequestCount") or 0),
            failed=int(stats.get("failedRequestCount") or 0),
            total=int(stats["requestCount"]) if "requestCount" in stats else None,
            missing=MISSING.get(state, "failed"),
            error=error,
            results=(body["name"],),
            marks=tuple(filter(None, (facts.get("displayName"),))),
            created=None if created is None else datetime.fromisoformat(created).timestamp(),
        )

    def decode_list(self, body: Any) -> tuple[list[VendorBatch], str | None]:
        return [self.decode_batch(entry) for entry in body.get("operations") or ()], body.get("nextPageToken") or None

    def download(self, reference: str) -> WireRequest:
        return self.retrieve(reference)

    def decode_results(self, data: bytes) -> Iterator[ItemResult]:
        body = parse_json(data)
        output = (body.get("metadata") or {}).get("output") or body.get("response") or {}
        for position, entry in enumerate((output.get("inlinedResponses") or {}).get("inlinedResponses") or ()):
            item: str | int = (entry.get("metadata") or {}).get("key", position)
            if (error := entry.get("error")) is None:
                yield ItemResult(item, "succeeded", body=entry["response"])
                continue
            code = _CODES.get(int(error.get("code") or 0), 500)
            status: ItemStatus = "cancelled" if code == 499 else "failed"
            yield ItemResult(item, status, code, body={"error": {**error, "code": code}})

    def delete(self, reference: str) -> WireRequest:
        return self._send(self._path(reference), "DELETE")

    def _path(self, batch: str) -> str:
        return f"batches/{quote(batch.removeprefix('batches/'), safe='')}"

    def _send(self, path: str, method: str) -> WireRequest:
        headers = select_headers(self._headers, content_type=None)
        return WireRequest(f"{self._root}/{path}", headers, b"", method=method)
