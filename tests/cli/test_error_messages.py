"""Error messages of the command line, their exit codes, and the absence of secrets."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from agent import errors
from agent.cli.errors import ExitCode, describe_error
from agent.testing import LoopbackServer, VendorScript

from .runner import COMMAND, MODEL, ROOT, environment, run, run_on_terminal

SECRET = "sk-verysecretkey123456"


# Words


def test_a_missing_key_comes_with_the_variable_to_set() -> None:
    done = run("run", "-m", "openai:gpt-5", "hi")
    assert (done.code, done.out) == (ExitCode.SETUP, "")
    assert done.err.splitlines() == [
        "error: There is no key for 'openai'.",
        "fix: Set the environment variable OPENAI_API_KEY; agent doctor lists all keys.",
    ]


@pytest.mark.parametrize(
    ("model", "fix"),
    [("opnai:gpt-5", "Did you mean openai or openai-chat?"), ("zzzzzz:x", "List the providers with: agent doctor")],
)
def test_a_provider_that_does_not_exist_is_not_answered_with_all_that_do(model: str, fix: str) -> None:
    for command in (("run", "-m", model, "hi"), ("models", "-p", model.partition(":")[0])):
        done = run(*command)
        assert done.code == ExitCode.USAGE
        assert done.err.splitlines()[1:] == [f"fix: {fix}"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--temperature", "3"), "--temperature: Input should be less than or equal to 2."),
        (("--max-tokens", "0"), "--max-tokens: Input should be greater than or equal to 1."),
        (("--timeout", "-1"), "--timeout: Input should be greater than 0."),
        (("--base-url", "nowhere"), "The address must begin with http:// or https:// and name a host."),
        (("--base-url", f"https://u:{SECRET}@x"), "The address must not contain a user or password."),
        (("--base-url", f"https://x?key={SECRET}"), "The address must not contain a query or fragment."),
    ],
)
def test_a_wrong_setting_is_named_as_the_option_that_it_is(options: tuple[str, ...], said: str) -> None:
    done = run("run", "-m", "openai-chat:x", *options, "hi")
    assert (done.code, done.out, done.err) == (ExitCode.USAGE, "", f"error: {said}\n")


def test_a_strategy_that_does_not_exist_gets_no_advice_for_programs() -> None:
    done = run("run", "-m", "scripted:a", "-m", "scripted:b", "--strategy", "nope", "hi")
    assert done.code == ExitCode.USAGE
    assert done.err.splitlines()[1].endswith("least_busy, sticky.")


def test_a_mistyped_command_gets_a_suggestion() -> None:
    done = run("rnu", "hi")
    assert done.code == ExitCode.USAGE
    assert "No such command 'rnu'. Did you mean 'run'?" in done.err


def test_a_route_that_failed_names_each_model_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("NO_COLOR", "1")
    with LoopbackServer(VendorScript(*[errors.ModelNotFoundError("no such model")] * 2)) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", f"{server.url}/v1")
        code, seen = run_on_terminal("run", "-m", MODEL, "-m", "anthropic:claude-sonnet-5", "hi")
        done = run("run", "-m", MODEL, "-m", "anthropic:claude-sonnet-5", "hi")
    assert code == done.code == ExitCode.FAILED
    assert re.match(r"error: No model answered \(.*\)\.\n", done.err)
    assert re.sub(" {2,}", " ", done.err).splitlines()[1:] == [
        f" {MODEL} no such model",
        " anthropic:claude-sonnet-5 There is no key for 'anthropic'. Set the environment variable ANTHROPIC_API_KEY.",
    ]
    assert max(len(line) for line in seen.decode().splitlines()) <= 60


def test_a_route_without_any_key_is_a_matter_of_setup() -> None:
    done = run("run", "-m", "openai:gpt-5", "-m", "anthropic:claude-sonnet-5", "hi")
    assert done.code == ExitCode.SETUP
    assert done.err.count("Set the environment variable") == 2


def test_a_server_that_is_not_there_can_be_looked_for() -> None:
    done = run("run", "-m", MODEL, "--base-url", "http://127.0.0.1:9/v1", "hi")
    assert done.code == ExitCode.FAILED
    assert done.err.splitlines()[1:] == [
        "fix: Is openai-chat running? Start it, or pass its address as --base-url. "
        "Test the connections with: agent doctor --reach"
    ]


def test_what_a_vendor_says_about_a_failure_is_told_and_nothing_that_is_known() -> None:
    failure = errors.BadRequestError(
        "No.", provider="openai", model="gpt-5", status_code=400, code="400", request_id="req_1"
    )
    assert describe_error(failure).message == "No. (openai:gpt-5, status 400, request req_1)"
    assert describe_error(errors.StreamInterrupted("It broke.", provider="openai")).message == "It broke."
    assert describe_error(errors.AgentError()).message == "AgentError"
    assert describe_error(errors.RoutingError("Not like that.")).message == "Not like that."


# Secrets


VARIABLES = {
    "OPENAI_API_KEY": SECRET,
    "ANTHROPIC_API_KEY": f"{SECRET}\n{SECRET}",
    "GEMINI_API_KEY": f"{SECRET}é",
    "MISTRAL_API_KEY": f" {SECRET} ",
    "GITHUB_TOKEN": SECRET,
    "AZURE_OPENAI_ENDPOINT": f"https://user:{SECRET}@azure.invalid",
    "AZURE_OPENAI_API_KEY": SECRET,
    "GROQ_BASE_URL": f"https://groq.invalid/v1?key={SECRET}",
    "GROQ_API_KEY": SECRET,
    "HTTP_PROXY": f"http://user:{SECRET}@127.0.0.1:9",
    "HTTPS_PROXY": f"http://user:{SECRET}@127.0.0.1:9",
    "ALL_PROXY": f"http://user:{SECRET}@127.0.0.1:9",
    "AGENT_MODEL": SECRET,
}


@pytest.mark.parametrize(
    "arguments",
    [
        ("doctor",),
        ("doctor", "--json"),
        ("doctor", "--reach", "--timeout", "0.2"),
        ("run", "-m", "openai:gpt-5", "--deadline", "3", "-v", "hi"),
        ("run", "-m", "anthropic:claude-sonnet-5", "hi"),
        ("run", "-m", "gemini:gemini-3", "--deadline", "3", "hi"),
        ("run", "-m", "azure:gpt-5", "hi"),
        ("run", "-m", "groq:x", "--deadline", "3", "hi"),
        ("run", "-m", "openai:gpt-5", "-m", "azure:gpt-5", "--deadline", "3", "--json", "hi"),
        ("check", "-m", "openai:gpt-5", "-m", "anthropic:x", "-m", "azure:x", "hi"),
        ("explain", "-m", "openai:gpt-5", "-m", "anthropic:x", "-m", "azure:x", "hi"),
    ],
    ids=" ".join,
)
def test_nothing_prints_a_key_nor_the_password_of_a_proxy(
    monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)
    done = run(*arguments)
    shown = done.out + done.err
    assert shown
    for start in range(len(SECRET) - 7):
        assert SECRET[start : start + 8] not in shown


# Where there is nothing to write to


def shell(line: str, **more: str) -> subprocess.CompletedProcess[str]:
    given = environment(None, AGENT=" ".join(COMMAND), AGENT_MODEL="scripted:echo", **more)
    return subprocess.run(["bash", "-c", line], cwd=ROOT, env=given, capture_output=True, text=True, timeout=60)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="only Linux has a disk that is always full")
@pytest.mark.parametrize("command", ["--version", "--help", "run hi"])
def test_a_full_disk_is_told_as_such(command: str) -> None:
    done = shell(f"$AGENT {command} </dev/null >/dev/full")
    assert done.returncode == ExitCode.FAILED
    assert done.stderr == "error: The output cannot be written: No space left on device\n"


def test_streams_that_are_closed_or_full_change_no_exit_code() -> None:
    lines = {
        "$AGENT --version >&-": ExitCode.OK,
        "$AGENT run hi </dev/null >&-": ExitCode.OK,
        "$AGENT run hi <&-": ExitCode.OK,
        "$AGENT run -m nonsense hi </dev/null 2>&-": ExitCode.USAGE,
        "$AGENT chat <&-": ExitCode.OK,
    }
    if os.path.exists("/dev/full"):
        lines["$AGENT run -m nonsense hi </dev/null 2>/dev/full"] = ExitCode.USAGE
    script = "; ".join(f"({line}); echo $?" for line in lines)
    done = shell(script)
    codes = [int(line) for line in done.stdout.splitlines() if line.isdigit()]
    assert codes == list(lines.values())
    assert done.stderr == ""


def test_standard_input_that_is_closed_cannot_be_attached() -> None:
    done = shell("$AGENT run -a - hi <&-")
    assert done.returncode == ExitCode.USAGE
    assert "error: Standard input is closed" in done.stderr


def test_a_home_that_cannot_be_written_to_is_a_matter_of_setup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("AGENT_HOME", str(tmp_path / "file" / "home"))
    for command in (
        ("sessions",),
        ("chat", "-m", "scripted:echo"),
        ("run", "-m", "scripted:echo", "--session", "x", "hi"),
    ):
        done = run(*command, stdin=b"hello\n")
        assert (done.code, done.out) == (ExitCode.SETUP, "")
        assert "error: Sessions cannot be stored in " in done.err
        assert "AGENT_HOME" in done.err
    assert run("run", "-m", "scripted:echo", "hi").out == "You said: hi\n"


@pytest.mark.skipif(os.name == "nt", reason="folders are elsewhere there")
def test_conversations_are_kept_where_the_system_wants_them(tmp_path: Path) -> None:
    done = shell("echo hi | $AGENT chat mine", HOME=str(tmp_path), XDG_DATA_HOME=str(tmp_path / "data"))
    assert (done.returncode, done.stdout) == (ExitCode.OK, "You said: hi\n")
    (kept,) = tmp_path.rglob("sessions.db")
    assert kept.parent.stat().st_mode & 0o077 == 0
