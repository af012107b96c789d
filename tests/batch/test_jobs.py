"""Batch jobs: vendors' batch APIs on a loopback server, sync and async, across crashes."""

from __future__ import annotations

import json
import stat
from collections.abc import Callable
from typing import Any

import openai
import pytest
from pydantic import BaseModel

from agent import Agent, errors, tool
from agent.batch import BatchJob
from agent.batch.job_flow import JobFolder
from agent.engine.wire import Answer, WireRequest
from agent.middleware import Redaction
from agent.providers import register_provider
from agent.providers.openai_chat import Dialect
from agent.providers.openai_chat.dialect import BatchDialect
from agent.testing import scripted_agent
from agent.types import AgentRequest
from tests.batch.job_desk import CREATE, FORMS, KEY, ROWS, Desk, Sync, calls, desk, texts
from tests.batch.vendors import VendorServer, reply

__all__ = ["calls", "desk"]


class City(BaseModel):
    name: str
    country: str


# From submission to results


@pytest.mark.parametrize("target", FORMS)
def test_a_job_is_submitted_polled_and_read(target: str, desk: Desk, calls: Sync) -> None:
    agent = desk.agent(target)
    assert agent.capabilities.batch
    job = calls.submit(agent, ["one", "a bad one", "three"], folder=desk.folder)
    assert (job.status, job.counts.total, job.counts.pending) == ("running", 3, 3)
    assert calls.results(job) == []
    desk.vendor.end()
    assert calls.run(job, "poll").ended
    items = calls.results(job)
    assert texts(items) == ["You said: one", "BadRequestError", "You said: three"]
    assert [item.custom_id for item in items] == ["0", "1", "2"]
    assert (job.counts.succeeded, job.counts.failed, job.counts.pending) == (2, 1, 0)
    assert isinstance(items[1].error, errors.BadRequestError)
    assert items[1].error.message == "refused"
    assert items[1].error.provider == target.partition(":")[0]
    assert items[0].attempts[0].usage == items[0].unwrap().usage
    unordered = calls.results(job, ordered=False)
    assert {*texts(unordered)} == {*texts(items)}


@pytest.mark.parametrize("target", ROWS)
def test_compatible_vendors_run_the_same_job(target: str, desk: Desk) -> None:
    job = desk.agent(target).submit_batch(["one", "a bad one"], folder=desk.folder)
    desk.vendor.end()
    assert texts(list(job.wait().results())) == ["You said: one", "BadRequestError"]
    job.delete()
    assert not desk.vendor.files
    assert not (desk.folder / job.id).exists()


@pytest.mark.parametrize("target", FORMS)
def test_typed_outputs_and_tools_work_as_in_calls(target: str, desk: Desk, calls: Sync) -> None:
    @tool
    def look_up(city: str) -> str:
        """Look up a city."""
        return city

    requests = {
        "typed": AgentRequest(input="Where?", output_schema=City),
        "tool": AgentRequest(input="Where?", tools=(look_up.spec,), tool_choice="look_up"),
        "plain": "Where?",
    }
    job = calls.submit(desk.agent(target), requests, folder=desk.folder)
    desk.vendor.end()
    loaded = BatchJob.load(job.id, agent=desk.agent(target), folder=desk.folder, schema=City)
    untyped: BatchJob[Any] = BatchJob.load(job.id, agent=desk.agent(target), folder=desk.folder)
    for each, kind in ((job, City), (loaded, City), (untyped, dict)):
        results = {item.custom_id: item.unwrap() for item in calls.results(calls.run(each, "poll"))}
        assert isinstance(results["typed"].output, kind)
        assert [call.name for call in results["tool"].tool_calls] == ["look_up"]
        assert results["plain"].text == "You said: Where?"


def test_an_output_that_does_not_fit_is_an_error_and_can_be_resubmitted(desk: Desk) -> None:
    answers = iter(["{}", '{"name": "Paris", "country": "France"}'])

    def answer(request: WireRequest) -> Answer:
        message = {"role": "assistant", "content": next(answers)}
        usage = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
        return reply({"model": "gpt-4o", "choices": [{"message": message, "finish_reason": "stop"}], "usage": usage})

    desk.vendor.script = answer
    job = desk.agent("openai-chat:gpt-4o").submit_batch(["Paris?"], schema=City, folder=desk.folder)
    desk.vendor.end()
    (item,) = job.poll().results()
    assert isinstance(item.error, errors.SchemaValidationError)
    assert item.attempts[0].cost == pytest.approx((100 * 1.25 + 10 * 5) / 1e6)
    job.resubmit_failed()
    desk.vendor.end()
    (item,) = job.poll().results()
    assert item.unwrap().output == City(name="Paris", country="France")


@pytest.mark.parametrize("target", FORMS)
def test_failed_requests_can_be_submitted_again(target: str, desk: Desk, calls: Sync) -> None:
    job = calls.submit(desk.agent(target), ["one", "bad", "three"], folder=desk.folder)
    desk.vendor.end(answer=lambda number: "expired" if number == 2 else "run")
    assert texts(calls.results(calls.run(job, "poll")))[:2] == ["You said: one", "BadRequestError"]
    desk.vendor.script = VendorServer().script
    calls.run(job, "resubmit_failed")
    assert len(job.parts) == 2
    assert (job.counts.total, job.counts.succeeded, job.counts.pending) == (3, 1, 2)
    desk.vendor.end()
    calls.run(job, "poll")
    assert texts(calls.results(job)) == ["You said: one", "You said: bad", "You said: three"]
    calls.run(job, "resubmit_failed")
    assert len(job.parts) == 2, "nothing failed"
    calls.run(job, "delete")
    assert not desk.vendor.files
    assert not (desk.folder / job.id).exists()


def test_two_processes_do_not_submit_failures_twice(desk: Desk) -> None:
    job = desk.agent("openai:gpt-4.1-mini").submit_batch(["one", "bad"], folder=desk.folder)
    desk.vendor.end()
    other: BatchJob[Any] = BatchJob.load(job.id, agent=desk.agent("openai:gpt-4.1-mini"), folder=desk.folder)
    list(job.poll().results())
    job._run(lambda flow: flow.resubmit([1]))
    other._run(lambda flow: flow.resubmit([1]))
    assert desk.count(*CREATE) == 2


# Ends


@pytest.mark.parametrize("target", FORMS)
def test_an_expired_batch_keeps_what_was_answered(target: str, desk: Desk, calls: Sync) -> None:
    job = calls.submit(desk.agent(target), ["one", "two"], folder=desk.folder)
    desk.vendor.end("expired", answer=lambda number: "expired" if number else "run")
    items = calls.results(calls.run(job, "poll"))
    expected = ["TimeoutError", "TimeoutError"] if target.startswith("gemini:") else ["You said: one", "TimeoutError"]
    assert texts(items) == expected
    assert getattr(items[1].error, "retryable", False)


@pytest.mark.parametrize("target", FORMS)
def test_a_cancelled_job_keeps_what_was_answered(target: str, desk: Desk, calls: Sync) -> None:
    job = calls.submit(desk.agent(target), ["one", "two"], folder=desk.folder)
    calls.run(job, "cancel")
    assert job.status in ("cancelling", "running")
    with pytest.raises(errors.ConfigurationError, match="has not ended"):
        calls.run(job, "delete")
    desk.vendor.end("cancelled", answer=lambda number: "cancelled" if number else "run")
    assert texts(calls.results(calls.run(job, "poll"))) == ["You said: one", "Aborted"]
    calls.run(job, "cancel")
    assert job.ended, "cancelling an ended job has no effect"


def test_a_batch_that_fails_as_a_whole_fails_all_its_requests(desk: Desk) -> None:
    job = desk.agent("azure:gpt-4o").submit_batch(["one", "two"], folder=desk.folder)
    desk.vendor.end("failed", answer=lambda number: "expired")
    items = list(job.poll().results())
    assert [getattr(item.error, "code", None) for item in items] == ["token_limit_exceeded"] * 2
    assert "Enqueued token limit" in str(items[0].error)


def test_waiting_ends_with_the_job_or_the_time(desk: Desk, calls: Sync) -> None:
    job = calls.submit(desk.agent("openai:gpt-4.1-mini"), ["one"], folder=desk.folder)
    with pytest.raises(errors.TimeoutError, match="it goes on"):
        calls.run(job, "wait", interval=0.01, timeout=0.02)
    desk.vendor.end()
    assert calls.run(job, "wait", interval=0.01).ended


# Limits, files and errors


def test_a_job_is_split_by_the_limits_of_the_vendor_and_joined(desk: Desk, calls: Sync) -> None:
    register_provider("tiny", Dialect(name="tiny", batch=BatchDialect(max_requests=4)))
    agent = desk.agent("tiny:m")
    requests = [AgentRequest(input=f"number {number}", model=f"m{number % 2}") for number in range(20)]
    job = calls.submit(agent, requests, folder=desk.folder)
    assert len(job.parts) == 6, "ten requests for each of two models, four in a batch"
    desk.vendor.end()
    items = calls.results(calls.run(job, "poll"))
    assert texts(items) == [f"You said: number {number}" for number in range(20)]


def test_a_job_is_split_by_size(desk: Desk) -> None:
    register_provider("tiny", Dialect(name="tiny", batch=BatchDialect(max_bytes=1000)))
    agent = desk.agent("tiny:m")
    job = agent.submit_batch(["x" * 200] * 8, folder=desk.folder)
    sizes = [len(file["content"]) for file in desk.vendor.files.values()]
    assert len(job.parts) == len(sizes) > 2
    assert max(sizes) <= 1000
    with pytest.raises(errors.ConfigurationError, match="a batch may have 1000"):
        agent.submit_batch(["x" * 2000], folder=desk.folder)


@pytest.mark.parametrize("count", [1_000, pytest.param(10_000, marks=pytest.mark.soak)])
def test_many_requests_are_split_and_joined(count: int, desk: Desk) -> None:
    def answer(request: WireRequest) -> Answer:
        text = json.loads(request.body)["messages"][0]["content"]
        message = {"role": "assistant", "content": f"You said: {text}"}
        return reply({"model": "m", "choices": [{"message": message, "finish_reason": "stop"}]})

    desk.vendor.script = answer
    register_provider("tiny", Dialect(name="tiny", batch=BatchDialect(max_requests=count // 4)))
    job = desk.agent("tiny:m").submit_batch((f"number {number}" for number in range(count)), folder=desk.folder)
    desk.vendor.end()
    items = list(job.poll().results())
    assert len(job.parts) == 4
    assert [item.unwrap().text for item in items] == [f"You said: number {number}" for number in range(count)]


def test_an_interrupted_submission_of_several_parts_continues(desk: Desk) -> None:
    register_provider("tiny", Dialect(name="tiny", batch=BatchDialect(max_requests=1)))
    desk.vendor.reject = lambda call: (
        reply({"error": {"message": "full"}}, 429) if call in CREATE and desk.vendor.batches else None
    )
    with pytest.raises(errors.RateLimitError) as raised:
        desk.agent("tiny:m").submit_batch(["one", "two"], folder=desk.folder)
    job = raised.value.result
    assert (job.status, job.parts[1]) == ("preparing", None)
    job.cancel()
    desk.vendor.end("cancelled", answer=lambda number: "cancelled")
    assert texts(list(job.poll().results())) == ["Aborted", "Aborted"]


def test_files_hold_no_key_and_are_private(desk: Desk) -> None:
    job = desk.agent("openai:gpt-4.1-mini", headers={"x-secret": "hidden-value"}).submit_batch(
        ["one"], folder=desk.folder
    )
    desk.vendor.end()
    list(job.poll().results())
    for path in (desk.folder / job.id).iterdir():
        content = path.read_bytes()
        assert KEY.encode() not in content
        assert b"hidden-value" not in content
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path


def test_an_invalid_request_is_reported_before_anything_is_sent(desk: Desk) -> None:
    with pytest.raises(errors.ConfigurationError) as raised:
        desk.agent("openai:gpt-4.1-mini").submit_batch({"a": "one", "b": ""}, folder=desk.folder)
    assert raised.value.__notes__ == ["Request 'b' of the batch job."]
    assert not desk.vendor.calls
    assert not desk.folder.exists()


def test_warnings_about_dropped_data_are_on_the_response(desk: Desk) -> None:
    job = desk.agent("anthropic:claude-sonnet-4-5").submit_batch(
        [AgentRequest(input="one", seed=1)], folder=desk.folder
    )
    desk.vendor.end()
    (item,) = (
        BatchJob.load(job.id, agent=desk.agent("anthropic:claude-sonnet-4-5"), folder=desk.folder).poll().results()
    )
    assert any("seed" in warning for warning in item.unwrap().warnings)


def test_polling_is_retried(desk: Desk, calls: Sync) -> None:
    job = calls.submit(desk.agent("openai:gpt-4.1-mini", max_retries=2), ["one"], folder=desk.folder)
    failures = iter([True])
    desk.vendor.reject = lambda call: reply({"error": {"message": "oops"}}, 500) if next(failures, False) else None
    assert calls.run(job, "poll").status == "running"


def test_rotating_keys_are_used(desk: Desk) -> None:
    keys = iter(["sk-first-0123456789", *["sk-second-0123456789"] * 9])
    agent = desk.agent("anthropic:claude-sonnet-4-5", api_key=None, get_api_key=lambda: next(keys))
    agent.submit_batch(["one"], folder=desk.folder).poll()
    sent = [dict(request.headers)[b"x-api-key"] for request in desk.server.requests]
    assert sent == [b"sk-first-0123456789", b"sk-second-0123456789"]


def test_betas_of_all_requests_are_sent(desk: Desk) -> None:
    requests = [AgentRequest(input="one", betas=("a-2026-01-01",)), AgentRequest(input="two", betas=("b-2026-01-01",))]
    desk.agent("anthropic:claude-sonnet-4-5").submit_batch(requests, folder=desk.folder)
    assert dict(desk.server.requests[0].headers)[b"anthropic-beta"] == b"a-2026-01-01,b-2026-01-01"


def test_operations_exclude_each_other(desk: Desk) -> None:
    job = desk.agent("openai:gpt-4.1-mini").submit_batch(["one"], folder=desk.folder)
    with JobFolder(desk.folder, job.id).lock(), pytest.raises(errors.ConfigurationError, match="Another process"):
        job.poll()


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: Agent("vertex:gemini-2.5-flash", api_key="k"), "express mode"),
        (lambda: Agent("deepseek:deepseek-chat", api_key="k"), "Batch API is unknown"),
        (lambda: Agent("bedrock:m", api_key="k", base_url="http://localhost"), "no batch API"),
        (lambda: scripted_agent("one"), "Batch API is unknown"),
    ],
    ids=["vertex", "deepseek", "bedrock", "scripted"],
)
def test_vendors_without_batches_say_why(make: Callable[[], Agent], problem: str) -> None:
    agent = make()
    assert not agent.capabilities.batch
    with pytest.raises(errors.UnsupportedFeatureError, match=problem):
        agent.submit_batch(["one"])


def test_agents_with_middleware_or_a_client_cannot_run_jobs(desk: Desk) -> None:
    with pytest.raises(errors.ConfigurationError, match="middleware"):
        Agent("openai:gpt-4o", api_key=KEY, middleware=[Redaction()]).submit_batch(["one"])
    with pytest.raises(errors.ConfigurationError, match="SDK client"):
        Agent("openai:gpt-4o", client=openai.OpenAI(api_key=KEY)).submit_batch(["one"])
    with pytest.raises(errors.ConfigurationError, match="extra contains a credential"):
        desk.agent(next(iter(FORMS))).submit_batch(
            [AgentRequest(input="hi", extra={"api_key": KEY})], folder=desk.folder
        )


def test_loading_checks_id_folder_and_agent(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    job = desk.agent("openai:gpt-4.1-mini").submit_batch(["one"], folder=desk.folder)
    with pytest.raises(errors.ConfigurationError, match="no batch job 'x'"):
        BatchJob.load("x", folder=desk.folder)
    with pytest.raises(errors.ConfigurationError, match="not the id"):
        BatchJob.load("../x", folder=desk.folder)
    with pytest.raises(errors.ConfigurationError, match="submitted to 'openai'"):
        BatchJob.load(job.id, agent=desk.agent("anthropic:claude-sonnet-4-5"), folder=desk.folder)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("AGENT_HOME", str(desk.folder.parent))
    desk.folder.rename(desk.folder.with_name("batches"))
    assert BatchJob.load(job.id).poll().status == "running"


# Cloud Storage


def test_jobs_on_vertex_ai_need_a_folder(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("", "s3://bucket", "gs://"):
        monkeypatch.setenv("AGENT_VERTEX_STORAGE", folder)
        with pytest.raises(errors.ConfigurationError, match=r"gs://BUCKET/FOLDER") as raised:
            desk.agent("vertex:gemini-2.5-flash").submit_batch(["one"], folder=desk.folder)
        assert raised.value.field == "AGENT_VERTEX_STORAGE"
    assert not desk.vendor.calls


def test_a_token_for_another_host_is_not_sent_to_cloud_storage(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STORAGE_EMULATOR_HOST")
    with pytest.raises(errors.ConfigurationError, match="not Google's"):
        desk.agent("vertex:gemini-2.5-flash").submit_batch(["one"], folder=desk.folder)
    assert not desk.vendor.calls


@pytest.mark.parametrize(
    ("status", "error"),
    [
        ('Bad Request: {"error": {"code": 400, "message": "refused"}}', errors.BadRequestError),
        (
            'Too many: {"error": {"code": 429, "message": "slow down", "status": "RESOURCE_EXHAUSTED"}}',
            errors.RateLimitError,
        ),
        ("Bad Request: unreadable {", errors.BadRequestError),
        ("internal", errors.ProviderError),
    ],
)
def test_errors_in_a_file_of_results_are_typed(status: str, error: type[errors.AgentError], desk: Desk) -> None:
    job = desk.agent("vertex:gemini-2.5-flash").submit_batch(["one"], folder=desk.folder)
    desk.vendor.end()
    job.poll()
    (name,) = [name for name in desk.vendor.files if name.endswith("predictions.jsonl")]
    line = json.loads(desk.vendor.files[name]["content"])
    desk.vendor.files[name]["content"] = json.dumps({**line, "status": status, "response": {}}).encode()
    (item,) = job.results()
    assert isinstance(item.error, error)
