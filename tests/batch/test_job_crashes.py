"""Batch jobs survive their process: interrupted uploads and creations are found again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from agent import Agent, errors
from agent.batch import BatchJob
from agent.batch.job_flow import JobFlow, JobFolder
from agent.batch.jobs import prepare_job
from agent.engine.drivers.simulated import Stopped
from agent.engine.wire import Answer
from agent.testing import Simulation
from agent.types import AgentRequest
from tests.batch.job_desk import CREATE, FORMS, UPLOAD, Desk, Sync, calls, desk, key_of, texts
from tests.batch.vendors import VendorServer, reply

__all__ = ["calls", "desk"]

_SUBMIT = """
import sys
from agent import Agent
target, base_url, folder, key = sys.argv[1:]
agent = Agent(target, base_url=base_url, api_key=key, max_retries=0)
agent.submit_batch(["one", "two"], folder=folder)
"""


def start_submission(desk: Desk, target: str) -> subprocess.Popen[bytes]:
    base_url = desk.server.url + FORMS[target]
    return subprocess.Popen([sys.executable, "-c", _SUBMIT, target, base_url, str(desk.folder), key_of(target)])


def kill_at(desk: Desk, target: str, *at: str) -> None:
    """Submit a job in another process, which is killed when the vendor has carried out a call."""
    processes: list[subprocess.Popen[bytes]] = []

    def kill(call: str) -> None:
        if call in at:
            os.kill(processes[0].pid, signal.SIGKILL)

    desk.vendor.fail = kill
    processes.append(start_submission(desk, target))
    assert processes[0].wait(60) == -signal.SIGKILL
    desk.vendor.fail = lambda call: None


def load_only_job(desk: Desk, target: str) -> BatchJob[Any]:
    (path,) = desk.folder.iterdir()
    return BatchJob.load(path.name, agent=desk.agent(target), folder=desk.folder)


@pytest.mark.parametrize("target", FORMS)
def test_a_batch_is_found_again_after_the_process_was_killed(target: str, desk: Desk) -> None:
    kill_at(desk, target, *CREATE)
    job = load_only_job(desk, target)
    assert job.status == "preparing"
    assert job.poll().status == "running"
    assert desk.count(*CREATE) == 1, "it was not submitted twice"
    desk.vendor.end()
    assert texts(list(job.poll().results())) == ["You said: one", "You said: two"]


@pytest.mark.parametrize("target", ["openai:gpt-4.1-mini", "vertex:gemini-2.5-flash"])
def test_an_uploaded_file_is_found_again_after_the_process_was_killed(target: str, desk: Desk) -> None:
    kill_at(desk, target, *UPLOAD)
    job = load_only_job(desk, target).poll()
    assert (desk.count(*UPLOAD), desk.count(*CREATE), job.status) == (1, 1, "running")


@pytest.mark.parametrize("target", FORMS)
def test_a_creation_with_a_lost_reply_is_looked_up(target: str, desk: Desk, calls: Sync) -> None:
    desk.vendor.fail = lambda call: reply({"error": {"message": "lost"}}, 503) if call in CREATE else None
    with pytest.raises(errors.AgentError, match="lost") as raised:
        calls.submit(desk.agent(target, max_retries=2), ["one"], folder=desk.folder)
    job = raised.value.result
    assert job.status == "preparing"
    assert calls.run(job, "poll").status == "running"
    assert desk.count(*CREATE) == 1


@pytest.mark.parametrize("target", FORMS)
def test_a_batch_that_was_not_created_is_submitted_after_a_minute(target: str, desk: Desk, calls: Sync) -> None:
    desk.vendor.reject = lambda call: reply({"error": {"message": "busy"}}, 503) if call in CREATE else None
    with pytest.raises(errors.OverloadedError) as raised:
        calls.submit(desk.agent(target), ["one"], folder=desk.folder)
    desk.vendor.reject = lambda call: None
    job = raised.value.result
    assert calls.run(job, "poll").status == "preparing", "the vendor may still create it"
    assert desk.count(*CREATE) == 1
    with pytest.raises(errors.ConnectionError, match="less than a minute"):
        calls.run(job, "cancel")
    desk.age(job, 61)
    assert calls.run(job, "poll").status == "running"
    assert (desk.count(*CREATE), desk.count(*UPLOAD)) == (2, int("openai" in target or "vertex" in target))


def test_a_rejected_creation_is_repeated_at_once(desk: Desk, calls: Sync) -> None:
    desk.vendor.reject = lambda call: reply({"error": {"message": "slow down"}}, 429) if call in CREATE else None
    with pytest.raises(errors.RateLimitError) as raised:
        calls.submit(desk.agent("anthropic:claude-sonnet-4-5"), ["one"], folder=desk.folder)
    desk.vendor.reject = lambda call: None
    assert calls.run(raised.value.result, "poll").status == "running"


def test_a_creation_is_never_repeated_on_a_stale_connection(desk: Desk) -> None:
    dropped: list[str] = []

    def drop(call: str) -> Answer | None:
        if call in CREATE and not dropped:
            dropped.append(call)
            return Answer(failure=errors.ConnectionError("dropped"))
        return None

    desk.vendor.fail = drop
    with pytest.raises(errors.AgentError) as raised:
        desk.agent("openai:gpt-4.1-mini").submit_batch(["one"], folder=desk.folder)
    raised.value.result.poll()
    assert (desk.count(*CREATE), len(desk.vendor.batches)) == (1, 1)


def test_without_names_batches_of_other_jobs_are_not_taken(desk: Desk) -> None:
    agent = desk.agent("anthropic:claude-sonnet-4-5")
    other = agent.submit_batch(["other"], folder=desk.folder)
    desk.vendor.fail = lambda call: reply({"error": {"message": "lost"}}, 503) if call in CREATE else None
    with pytest.raises(errors.AgentError) as raised:
        agent.submit_batch(["one"], folder=desk.folder)
    job = raised.value.result.poll()
    assert job.parts == ("msgbatch_2",) != other.parts


def test_several_possible_batches_are_left_to_the_caller(desk: Desk) -> None:
    agent = desk.agent("anthropic:claude-sonnet-4-5")
    agent.submit_batch(["other"], folder=desk.folder.with_name("elsewhere"))
    desk.vendor.fail = lambda call: reply({"error": {"message": "lost"}}, 503) if call in CREATE else None
    with pytest.raises(errors.AgentError) as raised:
        agent.submit_batch(["one"], folder=desk.folder)
    job = raised.value.result
    with pytest.raises(errors.ConfigurationError, match=r"msgbatch_2, msgbatch_1.*adopt"):
        job.poll()
    desk.vendor.end()
    job.adopt("msgbatch_1").poll()
    with pytest.raises(errors.ProtocolError):  # ids of requests are unique across jobs
        list(job.results())


def age(folder: JobFolder) -> None:
    """Let a minute pass since the latest attempt to create a batch."""
    state = folder.load()
    for part in state.parts:
        part.since -= 61
    folder.save(state)


@pytest.mark.parametrize("target", FORMS)
def test_a_crash_at_any_step_creates_each_batch_once(
    target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://127.0.0.1")
    monkeypatch.setenv("AGENT_VERTEX_STORAGE", "gs://bucket")
    agent = Agent(target, base_url="http://127.0.0.1" + FORMS[target], api_key=key_of(target), max_retries=0)
    two_models = [f"one:{agent.config.model}", "two:other-model"]
    for step in range(100):
        vendor = VendorServer()
        vendor.clock = time.time()
        requests = [AgentRequest(input=each.partition(":")[0], model=each.partition(":")[2]) for each in two_models]
        job = prepare_job(agent, requests, {"folder": tmp_path / str(step)})
        folder = JobFolder(tmp_path / str(step), job.id)
        try:
            Simulation(vendor, stop_at=step).run(JobFlow(agent, folder, folder.load()).poll())
            crashed = False
        except Stopped:
            crashed = True
        age(folder)
        Simulation(vendor).run(JobFlow(agent, folder, folder.load()).poll())
        assert len(vendor.batches) == 2, f"crash at step {step}"
        vendor.end()
        for flow in (JobFlow.poll, JobFlow.collect):
            Simulation(vendor).run(flow(JobFlow(agent, folder, folder.load())))
        loaded = BatchJob.load(job.id, agent=agent, folder=tmp_path / str(step))
        assert texts(list(loaded.results())) == ["You said: one", "You said: two"]
        if not crashed:
            assert step >= 8, "the simulation did not stop at each step"
            return
    raise AssertionError("the submission does not end")
