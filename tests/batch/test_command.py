"""`agent batch` in a shell: output and exit codes."""

from __future__ import annotations

import io
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pexpect
import pytest

from agent import errors
from agent.cli import main
from agent.cli.errors import ExitCode
from agent.engine.wire import WireRequest
from agent.testing import Answer, LoopbackServer, Script, VendorScript

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "TERM": "xterm", "OPENAI_API_KEY": "sk-test"}


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("AGENT_MODEL", raising=False)
    (tmp_path / "in.jsonl").write_text('"one"\n{"custom_id": "b", "prompt": "two"}\n', "utf-8")
    return tmp_path


def run(*arguments: str) -> int:
    return main(["batch", *arguments])


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def test_answers_go_to_the_file_and_a_summary_to_standard_error(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("in.jsonl", "out.jsonl", "-m", "scripted:echo") == ExitCode.OK
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("2 of 2 answered, 0 failed; 2 now, in 0:00, for $0.0000")
    assert {record["response"]["text"] for record in records(desk / "out.jsonl")} == {"You said: one", "You said: two"}
    assert run("in.jsonl", "out.jsonl", "-m", "scripted:echo", "--quiet") == ExitCode.OK
    assert capsys.readouterr() == ("", "")


def test_lines_that_fail_make_another_exit_code(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (desk / "in.jsonl").write_text('"one"\nnope\n', "utf-8")
    assert run("in.jsonl", "out.jsonl", "-m", "scripted:echo") == ExitCode.PARTIAL
    assert "The failures are in out.failed.jsonl; to retry them, add --retry-failed." in capsys.readouterr().err
    assert run("in.jsonl", "o2.jsonl", "-m", "scripted:echo", "--failures", "bad.jsonl") == ExitCode.PARTIAL
    assert len(records(desk / "bad.jsonl")) == 1
    (desk / "in.jsonl").write_text('"one"\n"two"\n', "utf-8")
    assert run("in.jsonl", "out.jsonl", "-m", "scripted:echo") == ExitCode.USAGE
    assert "changed: line 2" in capsys.readouterr().err
    assert run("in.jsonl", "out.jsonl", "-m", "scripted:echo", "--retry-failed") == ExitCode.OK


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["in.jsonl"], ExitCode.USAGE, "OUT.jsonl"),
        (["none.jsonl", "out.jsonl", "-m", "scripted:x"], ExitCode.USAGE, "none.jsonl cannot be read"),
        (["in.jsonl", "in.jsonl", "-m", "scripted:x"], ExitCode.USAGE, "the same file"),
        (["in.jsonl", "out.jsonl", "-m", "scripted:x", "-c", "0"], ExitCode.USAGE, "concurrency"),
        (["in.jsonl", "out.jsonl", "-m", "scripted:x", "--max-cost", "-1"], ExitCode.USAGE, "max_cost"),
        (["in.jsonl", "out.jsonl", "-m", "scripted:x", "--temperature", "9"], ExitCode.USAGE, "temperature"),
        (["in.jsonl", "out.jsonl", "-m", "openai-chat:x"], ExitCode.SETUP, "OPENAI_API_KEY"),
        (["in.jsonl", "out.jsonl", "-m", "openai-chat:x", "-m", "groq:y"], ExitCode.SETUP, "GROQ_API_KEY"),
        (
            ["in.jsonl", "out.jsonl", "-m", "scripted:x", "--max-cost", "1"],
            ExitCode.FAILED,
            "the price of this model is unknown",
        ),
    ],
    ids=[
        "no output",
        "no input",
        "the same file",
        "no workers",
        "no money",
        "too hot",
        "no key",
        "no keys",
        "no price",
    ],
)
def test_what_cannot_work_is_said_in_two_lines(
    desk: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, said: str
) -> None:
    assert run(*arguments) == code
    out, err = capsys.readouterr()
    assert said in err
    assert "Traceback" not in out + err


def test_settings_are_for_lines_that_say_nothing_about_them(desk: Path) -> None:
    (desk / "in.jsonl").write_text('"one"\n{"prompt": "two", "system": "Mine.", "max_tokens": 3}\n', "utf-8")
    script = VendorScript()
    with LoopbackServer(script) as server:
        options = ("--base-url", f"{server.url}/v1", "--system", "Be brief.", "--max-tokens", "50", "--retries", "0")
        assert run("in.jsonl", "out.jsonl", "-m", "scripted:echo", "-c", "1", *options) == ExitCode.OK
    sent = [(body["messages"][0]["content"], body["max_tokens"]) for body in script.requests]
    assert sent == [("Be brief.", 50), ("Mine.", 3)]


def test_a_schema_is_for_every_line(desk: Path) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    (desk / "s.json").write_text(json.dumps(schema), "utf-8")
    assert run("in.jsonl", "out.jsonl", "-m", "scripted:echo", "--schema", "s.json") == ExitCode.OK
    assert all(set(record["response"]["output"]) == {"n"} for record in records(desk / "out.jsonl"))


def test_several_models_are_a_route(desk: Path) -> None:
    with LoopbackServer(Script(*[errors.BadRequestError("no")] * 9)) as dead:
        os.environ["OPENAI_API_KEY"], os.environ["OPENAI_BASE_URL"] = "sk-test", dead.url
        try:
            code = run("in.jsonl", "out.jsonl", "-m", "openai-chat:a", "-m", "scripted:b", "--strategy", "round_robin")
        finally:
            del os.environ["OPENAI_API_KEY"], os.environ["OPENAI_BASE_URL"]
    assert code in (ExitCode.OK, ExitCode.PARTIAL)
    assert any(record["response"]["model"] == "b" for record in records(desk / "out.jsonl"))


def test_half_a_line_of_a_run_that_was_killed_is_spoken_of(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("in.jsonl", "out.jsonl", "-m", "scripted:echo", "-q") == ExitCode.OK
    whole = (desk / "out.jsonl").read_bytes()
    (desk / "out.jsonl").write_bytes(whole[:-20])
    assert run("in.jsonl", "out.jsonl", "-m", "scripted:echo") == ExitCode.OK
    note, summary = capsys.readouterr().err.splitlines()
    assert note == "An incomplete line of an earlier run was removed; its request was sent again."
    assert summary.startswith("2 of 2 answered, 0 failed; 1 now, ")


def test_pipes_work_at_both_ends(
    desk: Path, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b'"one"\nnope\n')))
    assert run("-", "-", "-m", "scripted:echo", "-q") == ExitCode.PARTIAL
    out = [json.loads(line) for line in capfdbinary.readouterr().out.splitlines()]
    assert sorted(record["line"] for record in out) == [1, 2]
    assert sum("error" in record for record in out) == 1


def test_standard_output_may_go_by_its_other_name(desk: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert run("in.jsonl", "/dev/stdout", "-m", "scripted:echo", "-q") == ExitCode.OK
    assert len(capfdbinary.readouterr().out.splitlines()) == 2


def test_a_disk_without_room_is_said_with_what_helps(desk: Path) -> None:
    (desk / "in.jsonl").write_text('"one"\n' * 50, "utf-8")
    limited = "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192)); import agent.cli as c; "
    # -B: compiled modules would be cut off at the limit, too, and stay so.
    command = [sys.executable, "-B", "-c", limited + "sys.exit(c.main())", "batch", "in.jsonl", "out.jsonl"]
    ended = subprocess.run([*command, "-m", "scripted:echo"], env=ENVIRONMENT, capture_output=True, text=True)
    assert ended.returncode == ExitCode.FAILED
    error, fix = ended.stderr.splitlines()
    assert error == "error: out.jsonl cannot be written: File too large. Earlier lines are intact."
    assert fix.endswith("run the batch again: it resumes.")
    kept = len(records(desk / "out.jsonl"))
    assert 0 < kept < 50
    assert run("in.jsonl", "out.jsonl", "-m", "scripted:echo", "-q") == ExitCode.OK
    assert len(records(desk / "out.jsonl")) == 50


def test_standard_input_that_is_closed_is_said(
    desk: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    assert run("-", "out.jsonl", "-m", "scripted:echo") == ExitCode.USAGE
    assert "Standard input is closed." in capsys.readouterr().err


def test_many_at_a_time_are_more_than_most_systems_allow_at_first(desk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = resource.getrlimit(resource.RLIMIT_NOFILE)
    asked_for: list[tuple[int, tuple[int, int]]] = []
    monkeypatch.setattr("resource.setrlimit", lambda what, limits: asked_for.append((what, limits)))
    for soft, hard, wanted in ((256, 1 << 20, 2256), (256, 1024, 1024), (256, resource.RLIM_INFINITY, 2256)):
        monkeypatch.setattr("resource.getrlimit", lambda what, found=(soft, hard): found)
        assert run("in.jsonl", "out.jsonl", "-m", "scripted:echo", "-c", "1000", "-q") == ExitCode.OK
        assert asked_for.pop() == (resource.RLIMIT_NOFILE, (wanted, hard))
    for enough in ((1 << 20, 1 << 20), (resource.RLIM_INFINITY, resource.RLIM_INFINITY)):
        monkeypatch.setattr("resource.getrlimit", lambda what, found=enough: found)
        assert run("in.jsonl", "out.jsonl", "-m", "scripted:echo", "-c", "1000", "-q") == ExitCode.OK
    assert asked_for == []
    monkeypatch.undo()
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == now


def test_a_log_gets_a_line_now_and_then(
    desk: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent.cli.run._PROGRESS_INTERVAL", 0.0)
    assert run("in.jsonl", "out.jsonl", "-m", "scripted:echo", "-c", "1") == ExitCode.OK
    first, second, _ = capsys.readouterr().err.splitlines()
    assert first.startswith("1 of 2 done, ")
    assert second.startswith("2 of 2 done, ")


# In a terminal


@pytest.fixture
def slow_vendor() -> Iterator[LoopbackServer]:
    def network(request: WireRequest) -> Answer:
        answer = Script()(request)
        text = json.loads(request.body)["messages"][-1]["content"]
        answer.after = 30.0 if "slow" in text else 0.0
        return answer

    with LoopbackServer(network) as server:
        yield server


def terminal(desk: Path, *arguments: str) -> pexpect.spawn[str]:
    return pexpect.spawn(
        sys.executable,
        ["-m", "agent", "batch", *arguments],
        cwd=str(desk),
        env=ENVIRONMENT,
        encoding="utf-8",
        timeout=30,
        dimensions=(24, 100),
    )


def test_ctrl_c_in_a_terminal_keeps_what_is_done_and_says_how_to_go_on(desk: Path, slow_vendor: LoopbackServer) -> None:
    lines = [f'"{"slow" if number % 2 else "quick"} {number}"' for number in range(8)]
    (desk / "in.jsonl").write_text("\n".join(lines), "utf-8")
    child = terminal(desk, "in.jsonl", "out.jsonl", "-m", "openai-chat:x", "--base-url", f"{slow_vendor.url}/v1")
    try:
        child.expect("4/8")
        began = time.monotonic()
        child.sendintr()
        child.expect("interrupted: 4 of 8 answered, 0 failed, 4 left. Run the same command again")
        child.expect(pexpect.EOF)
        assert time.monotonic() - began < 5
    finally:
        child.close()
    assert child.exitstatus == ExitCode.INTERRUPTED
    assert len(records(desk / "out.jsonl")) == 4


def test_a_terminal_gets_a_bar_and_no_commands_of_the_models(desk: Path) -> None:
    evil = "\x1b]0;title\x07\x9b31mred\x7f\u202e"
    (desk / "in.jsonl").write_text(json.dumps(evil) + "\n", "utf-8")
    child = terminal(desk, "in.jsonl", "-", "-m", "scripted:echo", "-q")
    shown = child.read()
    child.close()
    assert child.exitstatus == ExitCode.OK
    assert json.loads(shown)["response"]["text"] == f"You said: {evil}"
    assert not {"\x1b", "\x07", "\x9b", "\x7f", "\u202e"} & set(shown)
    child = terminal(desk, "in.jsonl", "out.jsonl", "-m", "scripted:echo")
    shown = child.read()
    child.close()
    assert "1/1" in shown
    assert "$0.0000" in shown


def test_a_signal_that_ends_the_command_costs_nothing(desk: Path, slow_vendor: LoopbackServer) -> None:
    (desk / "in.jsonl").write_text('"quick"\n"slow"\n', "utf-8")
    child = terminal(desk, "in.jsonl", "out.jsonl", "-m", "openai-chat:x", "--base-url", f"{slow_vendor.url}/v1")
    child.expect("1/2")
    end = time.monotonic() + 5
    while not (desk / "out.jsonl").read_bytes() and time.monotonic() < end:
        time.sleep(0.01)  # it is counted a moment before it is written
    child.kill(signal.SIGTERM)
    child.expect(pexpect.EOF)
    child.close()
    assert [record["line"] for record in records(desk / "out.jsonl")] == [1]
