"""Batch APIs of the two platforms.

The Gemini API takes requests inline and returns results in order. Files are not used: a larger job becomes several
batches, and nothing has to be uploaded or deleted. On Vertex AI, requests and results are JSONL files in a folder of
Cloud Storage. Its results arrive in any order and without ids, but repeat their request, so each request carries its id
as a label.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any
from urllib.parse import quote, urlsplit

from pydantic_core import from_json, to_json

from ... import errors
from ...engine.wire import WireRequest, parse_json
from ..batches import (
    Header,
    ItemResult,
    ItemStatus,
    VendorBatch,
    VendorStatus,
    dump_item,
    read_json_lines,
    select_headers,
)
from .models import GEMINI_API, VERTEX

_STATUS: Mapping[str, VendorStatus] = {
    "UNSPECIFIED": "queued",
    "PENDING": "queued",
    "QUEUED": "queued",
    "RUNNING": "running",
    "CANCELLING": "cancelling",
}
"""By the part of the state after BATCH_STATE_; all others are final."""
_MISSING: Mapping[str, ItemStatus] = {"FAILED": "failed", "CANCELLED": "cancelled", "EXPIRED": "expired"}
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
            "ended" if body.get("done") else _STATUS.get(state, "ended"),
            succeeded=int(stats.get("successfulRequestCount") or 0),
            failed=int(stats.get("failedRequestCount") or 0),
            total=int(stats["requestCount"]) if "requestCount" in stats else None,
            missing=_MISSING.get(state, "failed"),
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


# Vertex AI

STORAGE_VARIABLE = "AGENT_VERTEX_STORAGE"
_EMULATOR_VARIABLE = "STORAGE_EMULATOR_HOST"
_LABEL = "agent-item"
_VERTEX_STATUS: Mapping[str, VendorStatus] = {**_STATUS, "UPDATING": "running", "PAUSED": "running"}
_URI = re.compile(r"gs://([a-z0-9][a-z0-9._-]+)/?(.*)")


class CloudStorage:
    """Files in a folder of a bucket. Their ids are URIs: gs://bucket/folder/name."""

    def __init__(self, host: str, folder: str, headers: tuple[Header, ...]) -> None:
        self._host = host
        self._folder = folder.rstrip("/")
        self._headers = headers

    @classmethod
    def from_environment(cls, root: str, headers: tuple[Header, ...]) -> CloudStorage:
        """Read the folder from AGENT_VERTEX_STORAGE. `root` is the address that the token is meant for."""
        folder = os.environ.get(STORAGE_VARIABLE, "").strip()
        if not _URI.fullmatch(folder):
            raise errors.ConfigurationError(
                f"{STORAGE_VARIABLE} is {folder!r}." if folder else "Vertex AI reads batches from Cloud Storage.",
                field=STORAGE_VARIABLE,
                fix=f"Set {STORAGE_VARIABLE} to a folder that Vertex AI can read and write: gs://BUCKET/FOLDER.",
            )
        host = os.environ.get(_EMULATOR_VARIABLE, "").strip()
        if not host and not f".{urlsplit(root).hostname}".endswith(".googleapis.com"):
            raise errors.ConfigurationError(
                "The base URL is not Google's, so its credentials are not sent to Cloud Storage.",
                field="base_url",
                fix=f"Set {_EMULATOR_VARIABLE} to the address that serves the Cloud Storage API.",
            )
        if host and "://" not in host:
            host = f"http://{host}"
        return cls(host.rstrip("/") or "https://storage.googleapis.com", folder, headers)

    def upload(self, name: str, items: Iterable[bytes]) -> WireRequest:
        bucket, path = _split_uri(f"{self._folder}/{name}")
        url = f"{self._host}/upload/storage/v1/b/{bucket}/o?uploadType=media&name={quote(path, safe='')}"
        headers = select_headers(self._headers, content_type=b"application/jsonl")
        return WireRequest(url, headers, b"".join(b"%b\n" % item for item in items))

    def decode_upload(self, body: Any) -> str:
        return f"gs://{body['bucket']}/{body['name']}"

    def list_files(self) -> WireRequest:
        bucket, path = _split_uri(f"{self._folder}/")
        return self._send(f"{bucket}/o?prefix={quote(path, safe='')}", "GET")

    def find_file(self, body: Any, name: str) -> str | None:
        uris = [self.decode_upload(entry) for entry in body.get("items") or ()]
        return next((uri for uri in uris if uri == f"{self._folder}/{name}"), None)

    def download(self, uri: str) -> WireRequest:
        return self._send(f"{_object_path(uri)}?alt=media", "GET")

    def delete(self, uri: str) -> WireRequest:
        return self._send(_object_path(uri), "DELETE")

    def _send(self, path: str, method: str) -> WireRequest:
        headers = select_headers(self._headers, content_type=None)
        return WireRequest(f"{self._host}/storage/v1/b/{path}", headers, b"", method=method)


class VertexBatches:
    """Batch prediction jobs of one project and location."""

    max_requests = 200_000
    max_bytes = 200_000_000
    """A file may have 1 GB; it is made in memory."""
    discount: float | None = 0.5

    def __init__(self, root: str, headers: tuple[Header, ...]) -> None:
        self._root = root
        self._headers = headers
        self.files: CloudStorage = CloudStorage.from_environment(root, headers)

    def encode_item(self, item: str, body: bytes) -> bytes:
        request = from_json(body)
        return dump_item(request={**request, "labels": {**request.get("labels", {}), _LABEL: item}})

    def create(
        self, name: str, model: str, items: Sequence[bytes], *, file: str | None, headers: Sequence[Header]
    ) -> WireRequest:
        assert file is not None
        body = dump_item(
            displayName=name,
            model=VERTEX.url("", model, "").removesuffix(":"),
            inputConfig={"instancesFormat": "jsonl", "gcsSource": {"uris": [file]}},
            outputConfig={
                "predictionsFormat": "jsonl",
                "gcsDestination": {"outputUriPrefix": file.removesuffix(".jsonl")},
            },
        )
        return WireRequest(f"{self._root}/batchPredictionJobs", self._headers, body)

    def retrieve(self, batch: str) -> WireRequest:
        return self._send(_quote_id(batch), "GET")

    def cancel(self, batch: str) -> WireRequest:
        return self._send(f"{_quote_id(batch)}:cancel", "POST")

    def list_batches(self, cursor: str | None) -> WireRequest:
        token = "" if cursor is None else f"&pageToken={quote(cursor, safe='')}"
        return self._send(f"?pageSize=100{token}", "GET")

    def decode_batch(self, body: Any) -> VendorBatch:
        state = body["state"].removeprefix("JOB_STATE_")
        stats: Mapping[str, Any] = body.get("completionStats") or {}
        succeeded, failed = int(stats.get("successfulCount") or 0), int(stats.get("failedCount") or 0)
        folder = (body.get("outputInfo") or {}).get("gcsOutputDirectory")
        sources = ((body.get("inputConfig") or {}).get("gcsSource") or {}).get("uris") or ()
        created = body.get("createTime")
        return VendorBatch(
            body["name"],
            _VERTEX_STATUS.get(state, "ended"),
            succeeded=succeeded,
            failed=failed,
            missing=_MISSING.get(state, "failed"),
            error=body.get("error"),
            results=(f"{folder}/predictions.jsonl",) if folder and succeeded + failed else (),
            marks=(body["displayName"], *sources),
            created=None if created is None else datetime.fromisoformat(created).timestamp(),
        )

    def decode_list(self, body: Any) -> tuple[list[VendorBatch], str | None]:
        jobs = body.get("batchPredictionJobs") or ()
        return [self.decode_batch(entry) for entry in jobs], body.get("nextPageToken") or None

    def download(self, reference: str) -> WireRequest:
        return self.files.download(reference)

    def decode_results(self, data: bytes) -> Iterator[ItemResult]:
        for line in read_json_lines(data):
            item = line["request"]["labels"][_LABEL]
            if not line.get("status"):
                yield ItemResult(item, "succeeded", body=line["response"])
                continue
            error = _read_status(line["status"])
            yield ItemResult(item, "failed", error["code"], body={"error": error})

    def delete(self, reference: str) -> WireRequest:
        return self.files.delete(reference)

    def _send(self, path: str, method: str) -> WireRequest:
        slash = "" if path.startswith("?") else "/"
        headers = select_headers(self._headers, content_type=None)
        return WireRequest(f"{self._root}/batchPredictionJobs{slash}{path}", headers, b"", method=method)


def _quote_id(batch: str) -> str:
    """Return the last part of a name such as projects/P/locations/L/batchPredictionJobs/1."""
    return quote(batch.rpartition("/")[2], safe="")


def _split_uri(uri: str) -> tuple[str, str]:
    """Return the bucket and the path of an object."""
    match = _URI.fullmatch(uri)
    if match is None:
        raise ValueError("a URI is not one of Cloud Storage")
    return match[1], match[2]


def _object_path(uri: str) -> str:
    bucket, path = _split_uri(uri)
    return f"{bucket}/o/{quote(path, safe='')}"


def _read_status(status: str) -> dict[str, Any]:
    """Return the error in a status such as `Bad Request: {"error": {"code": 400, …}}`."""
    reason, brace, rest = status.partition("{")
    try:
        error = from_json(f"{brace}{rest}")["error"]
        return {**error, "code": int(error["code"])}
    except (ValueError, KeyError, TypeError):
        return {"code": 400 if reason.startswith("Bad Request") else 500, "message": status}
