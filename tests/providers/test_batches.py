"""Batch APIs of vendors that copied OpenAI: addresses, bodies and batches."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agent import Agent, errors
from agent.providers.batches import BatchApi, get_batch_api

KEY = "sk-test-0123456789abcdef"


def batch_api(target: str, **options: Any) -> BatchApi:
    return get_batch_api(Agent(target, api_key=KEY, **options).provider)


@pytest.mark.parametrize(
    ("target", "upload", "create"),
    [
        ("openai:gpt-5", "https://api.openai.com/v1/files", "https://api.openai.com/v1/batches"),
        ("groq:m", "https://api.groq.com/openai/v1/files", "https://api.groq.com/openai/v1/batches"),
        ("mistral:m", "https://api.mistral.ai/v1/files", "https://api.mistral.ai/v1/batch/jobs"),
        ("together:m", "https://api.together.xyz/v1/files/upload", "https://api.together.xyz/v1/batches"),
    ],
)
def test_each_vendor_has_its_addresses(target: str, upload: str, create: str) -> None:
    api = batch_api(target)
    assert api.files is not None
    assert api.files.upload("a.jsonl", [b"{}"]).url == upload
    assert api.create("a", "m", (), file="file-1", headers=()).url == create


@pytest.mark.parametrize(
    ("version", "root", "query", "endpoint"),
    [
        ("", "/openai/v1", "", "/v1/chat/completions"),
        ("2024-10-21", "/openai", "?api-version=2024-10-21", "/chat/completions"),
    ],
)
def test_azure_has_two_forms_of_addresses(
    version: str, root: str, query: str, endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AZURE_OPENAI_ENDPOINT", "https://me.openai.azure.com")
    monkeypatch.setenv("AZURE_OPENAI_API_VERSION", version)
    api = batch_api("azure:deployment")
    assert api.files is not None
    assert api.files.upload("a.jsonl", [b"{}"]).url == f"https://me.openai.azure.com{root}/files{query}"
    assert api.retrieve("b/1").url == f"https://me.openai.azure.com{root}/batches/b%2F1{query}"
    listed = api.list_batches("c").url
    assert listed == f"https://me.openai.azure.com{root}/batches{query}{'&' if query else '?'}limit=100&after=c"
    assert json.loads(api.create("n", "m", (), file="f", headers=()).body)["endpoint"] == endpoint
    assert json.loads(api.encode_item("i", b"{}"))["url"] == endpoint


def test_mistral_has_a_form_of_its_own() -> None:
    api = batch_api("mistral:mistral-small-latest")
    assert json.loads(api.encode_item("i", b'{"model":"m","messages":[]}')) == {
        "custom_id": "i",
        "body": {"messages": []},
    }
    assert json.loads(api.create("job-0", "m", (), file="f", headers=()).body) == {
        "input_files": ["f"],
        "model": "m",
        "endpoint": "/v1/chat/completions",
        "timeout_hours": 24,
        "metadata": {"agent_batch": "job-0"},
    }
    job = {
        "id": "j", "object": "batch", "input_files": ["f"], "endpoint": "/v1/chat/completions", "errors": [],
        "status": "TIMEOUT_EXCEEDED", "created_at": 1_800_000_000, "total_requests": 3, "completed_requests": 2,
        "succeeded_requests": 1, "failed_requests": 1, "output_file": "o", "error_file": "e", "metadata": None,
    }  # fmt: skip
    batch = api.decode_batch(job)
    assert (batch.status, batch.missing, batch.succeeded, batch.failed, batch.total) == ("ended", "expired", 1, 1, 3)
    assert (batch.results, batch.marks) == (("o", "e"), ("f",))
    assert api.decode_batch({**job, "status": "CANCELLATION_REQUESTED"}).status == "cancelling"


def test_together_wraps_the_batch_it_creates_and_lists_without_pages() -> None:
    api = batch_api("together:m")
    job = {
        "id": "b", "status": "VALIDATING", "input_file_id": "f", "created_at": "2026-05-01T10:00:00Z",
        "endpoint": "/v1/chat/completions", "progress": 0.0,
    }  # fmt: skip
    assert api.decode_batch({"job": job, "warning": None}) == api.decode_batch(job)
    batches, cursor = api.decode_list([job, {**job, "status": "CANCELLED"}])
    assert [(batch.status, batch.marks, batch.created) for batch in batches] == [
        ("queued", ("f",), 1777629600.0),
        ("ended", ("f",), 1777629600.0),
    ]
    assert cursor is None
    assert "metadata" not in json.loads(api.create("n", "m", (), file="f", headers=()).body)
    failed = api.decode_batch({**job, "status": "FAILED", "error": "the file has no lines"})
    assert (failed.missing, failed.error) == ("failed", {"message": "the file has no lines"})


def test_ids_that_could_change_a_url_are_quoted() -> None:
    for target in ("openai:m", "anthropic:m", "gemini:m"):
        api = batch_api(target)
        for request in (api.retrieve("../x?y"), api.cancel("../x?y"), api.delete("../x?y"), api.download("../x?y")):
            assert "..%2Fx%3Fy" in request.url


def test_only_some_vendors_have_a_known_batch_api() -> None:
    with pytest.raises(errors.UnsupportedFeatureError, match="xai cannot run batch jobs"):
        batch_api("xai:grok-4")
