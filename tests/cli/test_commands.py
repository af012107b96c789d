"""The commands `models`, `explain`, `check`, `doctor` and `graph`, help pages and versions."""

from __future__ import annotations

import importlib.metadata
import json
import socket
import sys
import webbrowser
from datetime import UTC, datetime
from pathlib import Path

import pytest

import agent
from agent.cli import main
from agent.cli.app import COMMANDS
from agent.cli.errors import ExitCode
from agent.graph import DAG

from .runner import run, run_on_terminal

SECRET = "sk-verysecretkey123456"


# Models


def test_models_are_listed_with_what_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    done = run("models", "gpt-4o-mini", "--provider", "openai")
    head, *lines = done.out.splitlines()
    assert head.split() == ["model", "context", "in", "$/M", "out", "$/M", "capabilities", "max", "output", "retires"]
    row = next(line for line in lines if line.startswith("openai:gpt-4o-mini "))
    assert row.split()[:4] == ["openai:gpt-4o-mini", "128k", "0.15", "0.60"]
    assert "tools vision schema" in row


def test_retired_models_are_hidden_and_the_list_fits_the_terminal() -> None:
    lines = run("models").out.splitlines()
    assert max(map(len, lines)) <= 80
    everything = json.loads(run("models", "--retired", "--json").out)
    today = datetime.now(UTC).date().isoformat()
    retired = [f"{model['provider']}:{model['model']}" for model in everything if model.get("retires", "9") <= today]
    assert retired
    assert not set(retired) & {line.split()[0] for line in lines}


@pytest.mark.parametrize(
    ("option", "fact"),
    [("tools", "tools"), ("vision", "vision"), ("schema", "native_schema"), ("thinking", "thinking"),
     ("documents", "documents"), ("audio", "audio")],
)  # fmt: skip
def test_models_are_chosen_by_what_they_can_do(option: str, fact: str) -> None:
    found = json.loads(run("models", f"--{option}", "--json").out)
    everything = json.loads(run("models", "--json").out)
    assert 0 < len(found) < len(everything)
    assert all(model[fact] for model in found)


def test_models_are_chosen_by_price_window_and_name() -> None:
    found = json.loads(run("models", "--max-price", "1", "--context", "500000", "--json").out)
    assert found
    assert all(model["prices"]["output"] <= 1 and model["context_window"] >= 500_000 for model in found)
    names = [f"{model['provider']}:{model['model']}" for model in json.loads(run("models", "*:gpt-5*", "--json").out)]
    assert names
    assert all(":gpt-5" in name for name in names)


def test_what_costs_nothing_has_a_price_of_nothing() -> None:
    assert run("models", "local:smollm2").out.splitlines()[1].split()[2:4] == ["0", "0"]


def test_no_model_is_like_that() -> None:
    done = run("models", "no-such-model-anywhere")
    assert (done.code, done.out) == (ExitCode.FAILED, "")
    assert "No known model matches" in done.err
    done = run("models", "--provider", "nobody")
    assert done.code == ExitCode.USAGE
    assert "nobody" in done.err


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_a_table_is_no_wider_than_the_terminal(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    code, seen = run_on_terminal("models", "gpt-4o-mini")
    assert code == 0
    assert max(len(line) for line in seen.decode().splitlines()) <= columns
    assert (b"retires" in seen) is (columns == 200)


# Explain and check


def test_a_route_is_explained_and_nobody_is_asked() -> None:
    done = run("explain", "-m", "scripted:a", "-m", "openai:gpt-5", "hi")
    assert done.code == 0
    assert done.out.splitlines()[1].split()[:2] == ["1", "scripted:a"]
    assert "OPENAI_API_KEY" in done.out
    found = json.loads(
        run("explain", "-m", "scripted:a", "-m", "scripted:b", "--strategy", "cheapest", "--json", "x").out
    )
    assert [one["target"] for one in found["candidates"]] == ["scripted:a", "scripted:b"]


def test_a_route_without_anybody_fails() -> None:
    done = run("explain", "-m", "openai:gpt-5", "hi")
    assert done.code == ExitCode.FAILED
    assert "api_key=" not in done.out


def test_a_request_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    done = run("check", "-m", "openai:gpt-5", "--max-tokens", "100", "hi")
    assert done.code == 0
    assert "cost" in done.out
    assert SECRET not in done.out + done.err
    assert json.loads(run("check", "-m", "openai:gpt-5", "--json", "hi").out)[0]["ok"] is True


def test_a_request_that_would_fail_ends_with_one() -> None:
    done = run("check", "-m", "scripted:a", "-m", "openai:gpt-5", "hi")
    assert done.code == ExitCode.FAILED
    assert "key      missing" in done.out


# Doctor


def test_the_doctor_shows_no_part_of_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    monkeypatch.setenv("ANTHROPIC_API_KEY", f"{SECRET}\nwith a line break")
    for options in ((), ("--json",)):
        done = run("doctor", *options)
        assert done.code == 0
        for start in range(len(SECRET) - 5):
            assert SECRET[start : start + 6] not in done.out + done.err
    found = json.loads(done.out)
    keys = {one["provider"]: one["key"] for one in found["providers"]}
    assert (keys["openai"], keys["anthropic"], keys["mistral"]) == ("found", "not set up", "missing")
    assert found["extras"]["cli"]["typer"]
    assert "scripted" not in keys


def test_the_doctor_says_which_variable_is_missing() -> None:
    done = run("doctor")
    assert "set MISTRAL_API_KEY" in done.out
    assert agent.__version__ in done.out


def test_the_doctor_knows_extras_with_all_that_they_bring(monkeypatch: pytest.MonkeyPatch) -> None:
    found = json.loads(run("doctor", "--json").out)["extras"]
    assert set(found["cli"]) == {"platformdirs", "rich", "typer"}
    assert set(found["socks"]) == {
        "httpx2",
        "socksio",
    }  # the package is there in any case, and its own extra may not be
    assert "dev" not in found
    real = importlib.metadata.version

    def version(name: str) -> str:
        if name in ("socksio", "rich"):
            raise importlib.metadata.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    rows = {line.split()[0]: line for line in run("doctor").out.splitlines() if line.strip()}
    assert rows["socks"].endswith('; missing socksio: pip install "agent-llm-router[socks]"')
    assert 'missing rich: pip install "agent-llm-router[cli]"' in rows["cli"]


def test_the_doctor_says_that_a_model_is_not_named_right_and_not_what_stands_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AGENT_MODEL", SECRET)
    done = run("doctor")
    assert "AGENT_MODEL is not a model name. Write provider:model" in done.out
    assert SECRET not in done.out


def test_the_doctor_connects_only_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[object] = []

    def connect(address: object, timeout: float) -> socket.socket:
        tried.append(address)
        raise OSError("not here")

    monkeypatch.setattr(socket, "create_connection", connect)
    assert run("doctor").code == 0
    assert tried == []
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    done = run("doctor", "--reach")
    assert ("api.openai.com", 443) in tried
    assert "not reached" in done.out


def test_the_doctor_reaches_what_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        monkeypatch.setenv("OPENAI_BASE_URL", f"http://127.0.0.1:{listener.getsockname()[1]}/v1")
        found = json.loads(run("doctor", "--reach", "--json", "--timeout", "5").out)
    assert {one["provider"]: one["reached"] for one in found["providers"]}["openai-chat"] is True


# Graph


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    path = tmp_path / "talk.json"
    DAG().user("Hello?").assistant("Yes.").save(path)
    return path


def test_a_graph_is_printed(graph: Path) -> None:
    assert run("graph", str(graph), "--text").out == "● user: Hello?\n● assistant: Yes.\n"
    assert run("graph", str(graph), "--mermaid").out.startswith("graph TD\n")
    assert run("graph", str(graph), "--mermaid", "--text").code == ExitCode.USAGE
    assert run("graph", str(graph), "--text", "--no-open").code == ExitCode.USAGE


def test_a_graph_is_opened_in_the_browser(graph: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []

    def browser(url: str) -> bool:
        opened.append(url)
        return True

    monkeypatch.setattr(webbrowser, "open", browser)
    page = graph.parent / "page.html"
    assert run("graph", str(graph), "--out", str(page)).out == f"{page}\n"
    assert opened == [page.resolve().as_uri()]
    assert "Hello?" in page.read_text("utf-8")
    assert run("graph", str(graph), "--out", str(page), "--no-open").code == 0
    assert len(opened) == 1
    monkeypatch.setattr(webbrowser, "open", lambda url: False)
    done = run("graph", str(graph))
    written = Path(done.out.strip())
    assert "No browser" in done.err
    assert "Hello?" in written.read_text("utf-8")
    assert written.parent.stat().st_mode & 0o077 == 0
    written.unlink()
    written.parent.rmdir()


def test_a_file_that_is_no_graph(graph: Path, tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text("{}")
    (tmp_path / "bytes.json").write_bytes(b"\xff\x00")
    (tmp_path / "half.json").write_bytes(graph.read_bytes()[:-20])
    for name in ("nowhere.json", "other.json", "bytes.json", "half.json", "."):
        done = run("graph", str(tmp_path / name))
        assert done.code == ExitCode.USAGE
        assert done.err.startswith("error: ")
        assert "\nfix: " in done.err
    done = run("graph", str(graph), "--no-open", "--out", str(tmp_path / "no" / "where.html"))
    assert done.code == ExitCode.FAILED
    assert "where.html cannot be written" in done.err


# The program itself


@pytest.mark.parametrize("arguments", [("--version",), ("-V",)])
def test_the_version_is_printed(arguments: tuple[str, ...]) -> None:
    assert run(*arguments).out == f"agent {agent.__version__}\n"


def test_the_version_is_printed_by_the_parser_too() -> None:
    assert run("--version", "run").out == f"agent {agent.__version__}\n"


def test_without_arguments_it_shows_its_help() -> None:
    done = run()
    assert done.code == 0
    assert all(f"  {name} " in done.out for name in COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself(name: str) -> None:
    done = run(name, "--help")
    assert done.code == 0
    assert done.out.startswith(f"Usage: agent {name} ")


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "typer", None)
    done = run("run", "hi")
    assert (done.code, done.out) == (ExitCode.SETUP, "")
    assert 'fix: pip install "agent-llm-router[cli]"' in done.err
    assert run("--version").code == 0


def test_ctrl_c_before_anything_has_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(name: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("agent.cli.find_spec", interrupt)
    assert main(["run", "hi"]) == ExitCode.INTERRUPTED


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("agent mo", ["models"]),
        ("agent run -m scri", ["scripted:"]),
        ("agent run -m openai:gpt-4o-mi", ["openai:gpt-4o-mini"]),
        ("agent run --strategy che", ["cheapest"]),
        ("agent check --thinking hi", ["high"]),
        ("agent run --max-t", ["--max-tokens"]),
    ],
)
def test_the_shell_completes(monkeypatch: pytest.MonkeyPatch, line: str, expected: list[str]) -> None:
    monkeypatch.setenv("_AGENT_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(line.count(" ")))
    done = run()
    assert set(expected) <= set(done.out.split())
