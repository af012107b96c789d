"""`agent batch --vendor` and `run_file_job`: files through a vendor's batch API."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from agent import errors
from agent.batch import BatchInterrupted, FileReport, run_file_job
from agent.cli import main
from agent.cli.errors import ExitCode
from tests.batch.desk import Files
from tests.batch.job_desk import CREATE, KEY, Desk, desk
from tests.batch.vendors import reply

__all__ = ["desk"]
TARGET = "anthropic:claude-sonnet-4-5"


def run(desk: Desk, files: Files, **options: Any) -> FileReport:
    end = {"on_status": lambda job: desk.vendor.end()}
    return run_file_job(desk.agent(TARGET), files.source, files.target, **{"interval": 0.01, **end, **options})


def test_a_file_is_answered_by_one_job(desk: Desk, files: Files) -> None:
    report = run(desk, files)
    assert (report.total, report.answered, report.failed, report.stopped) == (10, 7, 3, None)
    files.check()
    assert report.progress.known_cost > 0
    assert (len(desk.vendor.bodies), len(desk.vendor.deleted)) == (1, 1)
    assert not Path(f"{files.target}.job").exists()
    assert run(desk, files).progress.done == 0
    desk.vendor.script = type(desk.vendor)().script
    assert run(desk, files, retry_failed=True).answered == 9
    assert len(desk.vendor.bodies[1]["requests"]) == 2, "the line that is not JSON was not sent"


def test_an_interrupted_wait_continues_with_the_same_job(desk: Desk, files: Files) -> None:
    def interrupt(job: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(BatchInterrupted):
        run(desk, files, on_status=interrupt)
    report = run(desk, files, on_status=None, max_seconds=0.02)
    assert report.stopped is not None
    assert report.stopped.startswith("max_seconds")
    assert run(desk, files).stopped is None
    files.check()
    assert len(desk.vendor.bodies) == 1


def test_lines_added_in_between_become_another_job(desk: Desk, files: Files) -> None:
    run(desk, files, on_status=None, max_seconds=0.0)
    files.prompts[11] = "late"
    files.ids[11] = None
    with files.source.open("a") as file:
        file.write('{"prompt": "late"}\n')
    assert run(desk, files).answered == 8
    files.check()
    assert [len(body["requests"]) for body in desk.vendor.bodies] == [9, 1]


def test_a_failed_submission_is_continued_by_the_next_run(desk: Desk, files: Files) -> None:
    desk.vendor.reject = lambda call: reply({"error": {"message": "full", "type": "rate_limit_error"}}, 429)
    assert (run(desk, files).stopped or "").startswith("RateLimitError")
    desk.vendor.reject = lambda call: None
    assert run(desk, files).stopped is None
    files.check()


def test_a_lost_connection_does_not_end_the_wait(desk: Desk, files: Files) -> None:
    failures = iter([True])

    def lose(call: str) -> Any:
        lost = call.startswith("GET") and next(failures, False)
        return reply({"error": {"message": "oops", "type": "api_error"}}, 500) if lost else None

    desk.vendor.reject = lose
    assert run(desk, files).stopped is None
    files.check()


def test_the_command_resumes_after_kill(desk: Desk, files: Files) -> None:
    environment = {**os.environ, "ANTHROPIC_API_KEY": KEY, "AGENT_HOME": str(files.source.parent)}
    command = [sys.executable, "-m", "agent", "batch", str(files.source), str(files.target), "-m", TARGET, "--vendor"]
    command += ["--base-url", f"{desk.server.url}/v1", "--interval", "1", "--retries", "0"]
    process = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
    end = time.monotonic() + 60
    while desk.count(*CREATE) == 0 and time.monotonic() < end:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    desk.vendor.end()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == ExitCode.PARTIAL, done.stderr
    assert "7 of 10 answered, 3 failed" in done.stderr
    files.check()
    assert desk.count(*CREATE) == 1


@pytest.mark.parametrize(
    "arguments",
    [("out.jsonl", "-m", "scripted:a", "-m", "scripted:b"), ("-", "-m", TARGET), ("o", "-m", TARGET, "--max-cost=1")],
)
def test_options_that_exclude_each_other_are_refused(arguments: tuple[str, ...], files: Files) -> None:
    assert main(["batch", str(files.source), *arguments, "--vendor"]) == ExitCode.USAGE


def test_a_vendor_without_batches_is_reported_before_anything_is_written(files: Files) -> None:
    from agent.testing import scripted_agent

    with pytest.raises(errors.UnsupportedFeatureError):
        run_file_job(scripted_agent("a"), files.source, files.target)
    assert not files.target.exists()
