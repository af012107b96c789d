"""A server with the batch APIs of OpenAI and its followers, Anthropic, Gemini and Vertex AI."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email import message_from_bytes
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from agent import errors
from agent.engine.wire import Answer, WireRequest
from agent.testing import VendorScript

CREATED = 1_800_000_000
VERTEX_JOBS = "/projects/p/locations/global/batchPredictionJobs"


@dataclass
class Batch:
    """A batch at the vendor."""

    id: str
    lines: list[dict[str, Any]]
    facts: dict[str, Any]
    status: str = "running"
    outcomes: list[tuple[str, int, Any]] = field(default_factory=list)
    """Kind, HTTP status and body of each line's outcome."""


class VendorServer:
    """Answers the requests of batch APIs. `end` ends the batches."""

    def __init__(self, script: Callable[[WireRequest], Answer] | None = None) -> None:
        self.script = script or VendorScript(strict=True)
        self.files: dict[str, dict[str, Any]] = {}
        self.batches: dict[str, Batch] = {}
        self.calls: list[str] = []
        self.bodies: list[Any] = []
        """Bodies of created batches, as sent."""
        self.deleted: list[str] = []
        self.fail: Callable[[str], Answer | None] = lambda call: None
        """Returns an answer instead of the real one, after the request was carried out."""
        self.reject: Callable[[str], Answer | None] = lambda call: None
        """Returns an answer instead of carrying the request out."""
        self.clock: float = CREATED
        self._numbers = itertools.count(1)

    def __call__(self, request: WireRequest) -> Answer:
        parts = urlsplit("/" + request.url.lstrip("/") if request.url.startswith("/") else request.url)
        path = re.sub(r"^(/openai)?/v1(beta)?", "", parts.path)
        call = f"{request.method} {re.sub(r'(batch|file|msgbatch)[_-]?[0-9]+|batches/g[0-9]+', 'ID', path)}"
        self.calls.append(call)
        rejected = self.reject(call)
        if rejected is not None:
            return rejected
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        answer = self._route(request, request.method, path, query)
        return self.fail(call) or answer

    def _route(self, request: WireRequest, method: str, path: str, query: dict[str, str]) -> Answer:
        if VERTEX_JOBS in path:
            return self._vertex(request, path.partition(VERTEX_JOBS)[2].lstrip("/"))
        if "/storage/v1/b/" in path:
            return self._cloud_storage(request, path.partition("/storage/v1/b/")[2], query)
        if path.endswith(("/responses", "/chat/completions", "/messages", ":generateContent")):
            return self.script(request)
        if path.startswith("/messages/batches"):
            return self._anthropic(request, method, path.removeprefix("/messages/batches"), query)
        if path.startswith("/files"):
            return self._files(request, method, path.removeprefix("/files"))
        if "v1beta/" in request.url:
            return self._gemini(request, method, path)
        return self._openai(request, method, path)

    def end(self, status: str = "completed", *, answer: Callable[[int], str] = lambda number: "run") -> None:
        """End all running batches. `answer` returns what happens to a line: `run`, `expired`, `cancelled`."""
        for batch in self.batches.values():
            if batch.status in ("running", "cancelling"):
                batch.status = status
                batch.outcomes = [self._answer(batch, number, answer(number)) for number in range(len(batch.lines))]

    def _answer(self, batch: Batch, number: int, fate: str) -> tuple[str, int, Any]:
        if fate != "run":
            return fate, 0, None
        url, body = batch.facts["endpoint"], batch.lines[number]["body"]
        if "input_files" in batch.facts:
            body = {"model": batch.facts["model"], **body}
        reply = self.script(WireRequest(url, (), json.dumps(body).encode()))
        text = b"".join(piece for piece in reply.pieces if isinstance(piece, bytes))
        return ("succeeded" if reply.status == 200 else "errored"), reply.status, json.loads(text)

    # Files

    def _files(self, request: WireRequest, method: str, path: str) -> Answer:
        if method == "POST":
            content_type = dict(request.headers)[b"content-type"]
            form = message_from_bytes(b"content-type: " + content_type + b"\r\n\r\n" + request.body)
            fields: dict[str, Any] = {}
            for part in form.walk():
                fields[str(part.get_param("name", header="content-disposition"))] = part
            payload = fields["file"].get_payload(decode=True)
            file = {
                "id": f"file-{next(self._numbers)}",
                "object": "file",
                "bytes": len(payload),
                "created_at": int(self.clock),
                "filename": fields["file"].get_filename(),
                "purpose": fields["purpose"].get_payload(),
                "status": "processed",
            }
            self.files[file["id"]] = {**file, "content": payload}
            return reply(file)
        name = path.strip("/").split("/")[0]
        if not name:
            return reply({"object": "list", "data": [public(file) for file in self.files.values()], "has_more": False})
        if name not in self.files:
            return reply({"error": {"message": "No such file", "code": "not_found"}}, 404)
        if method == "DELETE":
            del self.files[name]
            self.deleted.append(name)
            return reply({"id": name, "object": "file", "deleted": True})
        if path.endswith("/content"):
            return Answer([self.files[name]["content"]], headers={"content-type": "application/octet-stream"})
        return reply(public(self.files[name]))

    def _add_file(self, lines: list[dict[str, Any]]) -> str | None:
        if not lines:
            return None
        name = f"file-{next(self._numbers)}"
        content = "".join(json.dumps(line) + "\n" for line in lines).encode()
        self.files[name] = {"id": name, "content": content, "filename": f"{name}.jsonl", "purpose": "batch_output"}
        return name

    # OpenAI's form

    def _openai(self, request: WireRequest, method: str, path: str) -> Answer:
        job_form = path.startswith("/batch/jobs")
        path = path.removeprefix("/batch/jobs").removeprefix("/batches")
        if method == "POST" and path == "":
            body = json.loads(request.body)
            self.bodies.append(body)
            file = body["input_files"][0] if job_form else body["input_file_id"]
            lines = [json.loads(line) for line in self.files[file]["content"].splitlines()]
            batch = Batch(f"batch_{next(self._numbers)}", lines, {**body, "created_at": int(self.clock)})
            self.batches[batch.id] = batch
            return reply(self._write_openai(batch, job_form=job_form))
        if path == "":
            newest = sorted(self.batches.values(), key=lambda batch: -batch.facts["created_at"])
            listed = [self._write_openai(batch, job_form=job_form) for batch in newest]
            return reply({"object": "list", "data": listed, "has_more": False})
        batch = self.batches[path.strip("/").split("/")[0]]
        if path.endswith("/cancel"):
            batch.status = "cancelling"
        return reply(self._write_openai(batch, job_form=job_form))

    def _write_openai(self, batch: Batch, *, job_form: bool) -> dict[str, Any]:
        if batch.outcomes and "output" not in batch.facts:
            lines = [
                self._write_openai_line(line, outcome)
                for line, outcome in zip(batch.lines, batch.outcomes, strict=True)
            ]
            lines.reverse()  # the order is not that of the requests
            batch.facts["output"] = self._add_file([line for line in lines if not is_error(line)])
            batch.facts["errors_file"] = self._add_file([line for line in lines if is_error(line)])
        kinds = [kind for kind, _, _ in batch.outcomes]
        facts = batch.facts
        if job_form:
            states = {"running": "RUNNING", "completed": "SUCCESS", "cancelling": "CANCELLATION_REQUESTED"}
            return {
                "id": batch.id, "object": "batch", "input_files": facts["input_files"], "endpoint": facts["endpoint"],
                "model": facts["model"], "errors": [], "created_at": facts["created_at"],
                "metadata": facts.get("metadata"), "status": states.get(batch.status, batch.status.upper()),
                "output_file": facts.get("output"), "error_file": facts.get("errors_file"),
                "total_requests": len(batch.lines), "completed_requests": len(kinds),
                "succeeded_requests": kinds.count("succeeded"), "failed_requests": kinds.count("errored"),
            }  # fmt: skip
        states = {"running": "in_progress"}
        written = {
            "id": batch.id, "object": "batch", "input_file_id": facts["input_file_id"], "endpoint": facts["endpoint"],
            "completion_window": facts["completion_window"], "created_at": facts["created_at"],
            "status": states.get(batch.status, batch.status), "metadata": facts.get("metadata"),
            "output_file_id": facts.get("output"), "error_file_id": facts.get("errors_file"),
            "request_counts": {
                "total": len(batch.lines), "completed": kinds.count("succeeded"), "failed": kinds.count("errored"),
            },
        }  # fmt: skip
        if batch.status == "failed":
            error = {"code": "token_limit_exceeded", "message": "Enqueued token limit reached", "line": None}
            written["errors"] = {"object": "list", "data": [error]}
            written |= {"output_file_id": None, "error_file_id": None}
        return written

    def _write_openai_line(self, line: dict[str, Any], outcome: tuple[str, int, Any]) -> dict[str, Any]:
        kind, status, body = outcome
        written = {"id": f"batch_req_{line['custom_id']}", "custom_id": line["custom_id"], "response": None}
        if kind in ("expired", "cancelled"):
            return {**written, "error": {"code": f"batch_{kind}", "message": "This request could not be executed."}}
        response = {"status_code": status, "request_id": f"req_{line['custom_id']}", "body": body}
        return {**written, "response": response, "error": None}

    # Anthropic

    def _anthropic(self, request: WireRequest, method: str, path: str, query: dict[str, str]) -> Answer:
        if method == "POST" and path == "":
            body = json.loads(request.body)
            self.bodies.append(body)
            lines = [{"custom_id": each["custom_id"], "body": each["params"]} for each in body["requests"]]
            facts = {"created_at": self.clock, "endpoint": "/v1/messages"}
            batch = Batch(f"msgbatch_{next(self._numbers)}", lines, facts)
            self.batches[batch.id] = batch
            return reply(self._write_anthropic(batch))
        if path == "":
            listed = [self._write_anthropic(batch) for batch in reversed(self.batches.values())]
            start = next((at + 1 for at, each in enumerate(listed) if each["id"] == query.get("after_id")), 0)
            page = listed[start : start + 2]
            more = start + 2 < len(listed)
            last = page[-1]["id"] if page else None
            return reply({"data": page, "has_more": more, "first_id": page[0]["id"] if page else None, "last_id": last})
        batch = self.batches[path.strip("/").split("/")[0]]
        if method == "DELETE":
            del self.batches[batch.id]
            self.deleted.append(batch.id)
            return reply({"id": batch.id, "type": "message_batch_deleted"})
        if path.endswith("/cancel"):
            batch.status = "cancelling"
        if path.endswith("/results"):
            return Answer([self._write_anthropic_results(batch)], headers={"content-type": "application/x-jsonl"})
        return reply(self._write_anthropic(batch))

    def _write_anthropic(self, batch: Batch) -> dict[str, Any]:
        kinds = [kind for kind, _, _ in batch.outcomes]
        ended = bool(batch.outcomes)
        names = {"succeeded": "succeeded", "errored": "errored", "canceled": "cancelled", "expired": "expired"}
        counts = {name: kinds.count(kind) for name, kind in names.items()}
        state = "ended" if ended else "canceling" if batch.status == "cancelling" else "in_progress"
        return {
            "id": batch.id, "type": "message_batch", "processing_status": state,
            "request_counts": {"processing": 0 if ended else len(batch.lines), **counts},
            "created_at": iso(batch.facts["created_at"]), "expires_at": iso(batch.facts["created_at"] + 86400),
            "ended_at": iso(batch.facts["created_at"] + 3600) if ended else None, "archived_at": None,
            "cancel_initiated_at": None,
            "results_url": f"/v1/messages/batches/{batch.id}/results" if ended else None,
        }  # fmt: skip

    def _write_anthropic_results(self, batch: Batch) -> bytes:
        lines = []
        for line, (kind, _, body) in reversed(list(zip(batch.lines, batch.outcomes, strict=True))):
            result: dict[str, Any] = {"type": {"cancelled": "canceled"}.get(kind, kind)}
            if kind == "succeeded":
                result["message"] = body
            elif kind == "errored":
                result["error"] = body
            lines.append(json.dumps({"custom_id": line["custom_id"], "result": result}))
        return ("\n".join(lines) + "\n").encode()

    # Gemini

    def _gemini(self, request: WireRequest, method: str, path: str) -> Answer:
        if method == "POST" and path.endswith(":batchGenerateContent"):
            body = json.loads(request.body)
            self.bodies.append(body)
            model = path.removeprefix("/models/").partition(":")[0]
            lines = [{**each, "body": each["request"]} for each in body["batch"]["inputConfig"]["requests"]["requests"]]
            facts = {
                "name": body["batch"].get("displayName"), "created_at": self.clock, "model": f"models/{model}",
                "endpoint": f"/v1beta/models/{model}:generateContent",
            }  # fmt: skip
            batch = Batch(f"batches/g{next(self._numbers)}", lines, facts)
            self.batches[batch.id] = batch
            return reply(self._write_gemini(batch))
        if path == "/batches":
            return reply({"operations": [self._write_gemini(batch) for batch in reversed(self.batches.values())]})
        name = path.strip("/").partition(":")[0]
        batch = self.batches[name]
        if method == "DELETE":
            del self.batches[name]
            self.deleted.append(name)
            return reply({})
        if path.endswith(":cancel"):
            batch.status = "cancelling"
            return reply({})
        return reply(self._write_gemini(batch))

    def _write_gemini(self, batch: Batch) -> dict[str, Any]:
        states = {"running": "RUNNING", "cancelling": "RUNNING", "completed": "SUCCEEDED"}
        state = states.get(batch.status, batch.status.upper())
        kinds = [kind for kind, _, _ in batch.outcomes]
        stats = {
            "requestCount": str(len(batch.lines)),
            "successfulRequestCount": str(kinds.count("succeeded")),
            "failedRequestCount": str(len(kinds) - kinds.count("succeeded")),
        }
        facts = {
            "@type": "type.googleapis.com/google.ai.generativelanguage.v1main.GenerateContentBatch",
            "model": batch.facts["model"], "displayName": batch.facts["name"], "state": f"BATCH_STATE_{state}",
            "createTime": iso(batch.facts["created_at"]), "batchStats": stats,
        }  # fmt: skip
        written: dict[str, Any] = {"name": batch.id, "metadata": facts}
        if batch.outcomes:
            written["done"] = True
            responses = [
                self._write_gemini_item(line, outcome)
                for line, outcome in zip(batch.lines, batch.outcomes, strict=True)
            ]
            if batch.status not in ("expired", "failed"):
                facts["output"] = {"inlinedResponses": {"inlinedResponses": responses}}
        return written

    def _write_gemini_item(self, line: dict[str, Any], outcome: tuple[str, int, Any]) -> dict[str, Any]:
        kind, status, body = outcome
        named = {"metadata": line["metadata"]} if "metadata" in line else {}
        if kind == "succeeded":
            return {**named, "response": body}
        if kind != "errored":
            return {**named, "error": {"code": 1 if kind == "cancelled" else 4, "message": "The request did not run."}}
        return {**named, "error": {"code": {400: 3, 429: 8}.get(status, 13), "message": body["error"]["message"]}}

    # Vertex AI and Cloud Storage

    def _cloud_storage(self, request: WireRequest, path: str, query: dict[str, str]) -> Answer:
        if not dict(request.headers)[b"authorization"].startswith(b"Bearer ya29."):
            return reply({"error": {"code": 401, "message": "no token", "status": "UNAUTHENTICATED"}}, 401)
        bucket, _, name = path.partition("/o")
        name = unquote(name.lstrip("/"))
        uri = f"gs://{bucket}/{name}"
        if request.method == "POST":
            self.files[f"{uri}{query['name']}"] = {"content": request.body}
            return reply({"kind": "storage#object", "bucket": bucket, "name": query["name"]})
        if not name:
            names = [each.removeprefix(uri) for each in self.files if each.startswith(uri + query.get("prefix", ""))]
            return reply({"kind": "storage#objects", "items": [{"bucket": bucket, "name": each} for each in names]})
        if uri not in self.files:
            return reply({"error": {"code": 404, "message": f"No such object: {uri}"}}, 404)
        if request.method == "DELETE":
            del self.files[uri]
            self.deleted.append(uri)
            return Answer([], status=204)
        return Answer([self.files[uri]["content"]], headers={"content-type": "application/octet-stream"})

    def _vertex(self, request: WireRequest, name: str) -> Answer:
        if request.method == "POST" and not name:
            body = json.loads(request.body)
            self.bodies.append(body)
            (source,) = body["inputConfig"]["gcsSource"]["uris"]
            requests = [json.loads(line)["request"] for line in self.files[source]["content"].splitlines()]
            lines = [{"request": each, "body": without_labels(each)} for each in requests]
            model = body["model"].removeprefix("publishers/google/models/")
            facts = {**body, "created_at": self.clock, "endpoint": f"/v1beta/models/{model}:generateContent"}
            batch = Batch(f"projects/17{VERTEX_JOBS[11:]}/{next(self._numbers)}", lines, facts)
            self.batches[batch.id] = batch
            return reply(self._write_vertex(batch))
        if not name:
            listed = [self._write_vertex(batch) for batch in reversed(self.batches.values())]
            return reply({"batchPredictionJobs": listed})
        number = name.partition(":")[0]
        batch = next(batch for batch in self.batches.values() if batch.id.endswith(f"/{number}"))
        if name.endswith(":cancel"):
            batch.status = "cancelling"
            return reply({})
        return reply(self._write_vertex(batch))

    def _write_vertex(self, batch: Batch) -> dict[str, Any]:
        facts = {key: batch.facts[key] for key in ("displayName", "model", "inputConfig", "outputConfig")}
        states = {"completed": "SUCCEEDED"}
        written: dict[str, Any] = {
            "name": batch.id, **facts, "createTime": iso(batch.facts["created_at"]),
            "state": f"JOB_STATE_{states.get(batch.status, batch.status.upper())}",
        }  # fmt: skip
        if batch.outcomes:
            pairs = zip(batch.lines, batch.outcomes, strict=True)
            ran = [(line, outcome) for line, outcome in pairs if outcome[0] in ("succeeded", "errored")]
            folder = f"{facts['outputConfig']['gcsDestination']['outputUriPrefix']}/prediction-model-1"
            if ran and "written" not in batch.facts:
                batch.facts["written"] = True
                lines = [self._write_vertex_line(*each) for each in reversed(ran)]
                self.files[f"{folder}/predictions.jsonl"] = {"content": "".join(lines).encode()}
            good = sum(kind == "succeeded" for _, (kind, _, _) in ran)
            stats = {"successfulCount": good, "failedCount": len(ran) - good}
            written["completionStats"] = {key: str(count) for key, count in stats.items() if count}
            written["outputInfo"] = {"gcsOutputDirectory": folder}
        return written

    def _write_vertex_line(self, line: dict[str, Any], outcome: tuple[str, int, Any]) -> str:
        status = f"Bad Request: {json.dumps(outcome[2])}" if outcome[0] == "errored" else ""
        response = {} if status else outcome[2]
        return json.dumps({"status": status, "request": line["request"], "response": response}) + "\n"


def without_labels(request: dict[str, Any]) -> dict[str, Any]:
    """Return a request as the Gemini API takes it, which has no labels."""
    return {key: value for key, value in request.items() if key != "labels"}


def reply(body: Any, status: int = 200) -> Answer:
    return Answer([json.dumps(body).encode()], status=status, headers={"content-type": "application/json"})


def public(file: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in file.items() if key != "content"}


def is_error(line: dict[str, Any]) -> bool:
    return line["error"] is not None or line["response"]["status_code"] != 200


def iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


def reject_bad(request: WireRequest) -> Answer:
    """Refuse prompts with the word `bad`, and echo the rest."""
    lines = (errors.BadRequestError("refused"),) if b"bad" in request.body else ()
    return VendorScript(*lines, strict=True)(request)
