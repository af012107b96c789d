"""The Message Batches API: requests inline, results as JSON lines in any order.

A batch has neither a name nor metadata, so a batch whose creation was interrupted is found by time and size.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any
from urllib.parse import quote

from ...engine.wire import WireRequest
from ..batches import Header, ItemResult, ItemStatus, VendorBatch, VendorStatus, read_json_lines, select_headers

_STATUS: Mapping[str, VendorStatus] = {"in_progress": "running", "canceling": "cancelling"}
_ITEM_STATUS: Mapping[str, ItemStatus] = {"canceled": "cancelled", "expired": "expired", "errored": "failed"}
_CODES = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "api_error": 500,
    "timeout_error": 504,
    "overloaded_error": 529,
}
"""HTTP status by the type of an error, since results of batches have none."""
_PAGE_SIZE = 100


class AnthropicBatches:
    """The Message Batches API at one address."""

    max_requests = 100_000
    max_bytes = 256_000_000
    files = None
    discount: float | None = 0.5

    def __init__(self, url: str, headers: tuple[Header, ...]) -> None:
        self._url = url
        self._headers = headers

    def encode_item(self, item: str, body: bytes) -> bytes:
        return b'{"custom_id":"%b","params":%b}' % (item.encode(), body)

    def create(
        self, name: str, model: str, items: Sequence[bytes], *, file: str | None, headers: Sequence[Header]
    ) -> WireRequest:
        betas = [value for header, value in headers if header == b"anthropic-beta"]
        kept = tuple(header for header in self._headers if header[0] != b"anthropic-beta")
        names = dict.fromkeys(name for value in betas for name in value.split(b",") if name)
        if names:
            kept = (*kept, (b"anthropic-beta", b",".join(names)))
        return WireRequest(self._url, kept, b'{"requests":[%b]}' % b",".join(items))

    def retrieve(self, batch: str) -> WireRequest:
        return self._get(f"/{quote(batch, safe='')}")

    def cancel(self, batch: str) -> WireRequest:
        return WireRequest(f"{self._url}/{quote(batch, safe='')}/cancel", self._headers, b"")

    def list_batches(self, cursor: str | None) -> WireRequest:
        after = "" if cursor is None else f"&after_id={quote(cursor, safe='')}"
        return self._get(f"?limit={_PAGE_SIZE}{after}")

    def decode_batch(self, body: Any) -> VendorBatch:
        counts = body["request_counts"]
        return VendorBatch(
            str(body["id"]),
            _STATUS.get(body["processing_status"], "ended"),
            succeeded=counts["succeeded"],
            failed=counts["errored"] + counts["canceled"] + counts["expired"],
            total=sum(counts.values()),
            results=(str(body["id"]),),
            created=datetime.fromisoformat(body["created_at"]).timestamp(),
        )

    def decode_list(self, body: Any) -> tuple[list[VendorBatch], str | None]:
        batches = [self.decode_batch(entry) for entry in body["data"]]
        return batches, body.get("last_id") if body.get("has_more") else None

    def download(self, reference: str) -> WireRequest:
        # Not the batch's `results_url`: the key is sent to the configured address only.
        return self._get(f"/{quote(reference, safe='')}/results")

    def decode_results(self, data: bytes) -> Iterator[ItemResult]:
        for line in read_json_lines(data):
            item, result = str(line["custom_id"]), line["result"]
            if result["type"] == "succeeded":
                yield ItemResult(item, "succeeded", body=result["message"])
                continue
            body = result.get("error") or {}
            error = body.get("error") or {}
            status = _ITEM_STATUS.get(result["type"], "failed")
            yield ItemResult(item, status, _CODES.get(str(error.get("type")), 500), body.get("request_id"), body)

    def delete(self, reference: str) -> WireRequest:
        return self._get(f"/{quote(reference, safe='')}", method="DELETE")

    def _get(self, path: str, *, method: str = "GET") -> WireRequest:
        return WireRequest(f"{self._url}{path}", select_headers(self._headers, content_type=None), b"", method=method)
