"""Completion in real shells."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pexpect
import pytest

from agent.cli.app import join_words
from agent.cli.options import complete_model
from agent.models import list_models
from agent.routing import strategies
from agent.testing import scripted_agent
from agent.types import ThinkingLevel

from .runner import ROOT, run

KEYS = {
    "bash": (["--norc", "--noprofile", "-i"], 'eval "$(agent --show-completion)"'),
    "zsh": (["-f", "-i"], 'autoload -Uz compinit && compinit -u -D && eval "$(agent --show-completion)"'),
    "fish": (["--no-config", "-i"], "agent --show-completion | source"),
}
"""How a shell is started with nothing of its user's, and how completion comes into it."""


def _only_one() -> str:
    """A model whose name is the only one that begins so, without its last letters."""
    names = list_models("openai")
    name = next(name for name in names if sum(other.startswith(name[:-3]) for other in names) == 1)
    return f"openai:{name}"


ONLY = _only_one()


class Shell:
    """A shell on a terminal of its own."""

    def __init__(self, name: str, home: Path) -> None:
        arguments, setup = KEYS[name]
        folder = home / "bin"
        folder.mkdir()
        script = folder / "agent"
        script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m agent "$@"\n')
        script.chmod(0o755)
        env = {
            "PATH": f"{folder}:{os.environ['PATH']}",
            "HOME": str(home),
            "AGENT_HOME": str(home / "data"),
            "PYTHONPATH": str(ROOT),
            "LANG": "C.UTF-8",
            "TERM": "dumb",
            "PS1": "$ ",
        }
        self._program = pexpect.spawn(
            name, arguments, env=env, cwd=str(home), timeout=30, encoding="utf-8", dimensions=(50, 200)
        )
        self._program.sendline(f"{setup}; echo rea''dy")
        self._program.expect("ready")

    def complete(self, line: str) -> str:
        """The line after the tab key. It is put behind `echo`, so that the shell says what it holds."""
        self._program.send(f"{line}\t\x01echo heard \r")
        self._program.expect(r"\nheard ([^\r\n]*)\r")
        return str(self._program.match[1]).strip()

    def close(self) -> None:
        self._program.close(force=True)


@pytest.mark.alone
@pytest.mark.filterwarnings("ignore:.*forkpty.*:DeprecationWarning")
@pytest.mark.parametrize("name", KEYS)
def test_a_shell_completes_commands_options_models_and_files(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if shutil.which(name) is None:
        pytest.skip(f"there is no {name}")
    monkeypatch.setenv("AGENT_HOME", str(tmp_path / "data"))
    from agent.cli.options import open_session_store

    with open_session_store() as store:
        scripted_agent("Yes.").session("holidays", store=store).run("Shall we?")
    (tmp_path / "notes-of-mine.txt").touch()
    shell = Shell(name, tmp_path)
    try:
        assert shell.complete(f"agent run -m {ONLY[:-3]}") == f"agent run -m {ONLY}"
        assert shell.complete("agent run -a notes-o") == "agent run -a notes-of-mine.txt"
        if name == "bash":  # the others would ask the same
            assert shell.complete("agent mod") == "agent models"
            assert shell.complete("agent run --max-t") == "agent run --max-tokens"
            assert shell.complete("agent run --strategy cheap") == "agent run --strategy cheapest"
            assert shell.complete("agent chat holi") == "agent chat holidays"
    finally:
        shell.close()


@pytest.mark.parametrize(
    ("words", "whole"),
    [
        (["agent", "run", "-m", "openai", ":", "gpt"], ["agent", "run", "-m", "openai:gpt"]),
        (["agent", "run", "-m", "openai", ":"], ["agent", "run", "-m", "openai:"]),
        (["agent", "run", "-m", "a", ":", "b", ":", "c"], ["agent", "run", "-m", "a:b:c"]),
        (["agent", "run", "-m", "a", ":", "b", "-m", "c", ":", ""], ["agent", "run", "-m", "a:b", "-m", "c:"]),
        (["agent", "run", "-m", "openai:gpt"], ["agent", "run", "-m", "openai:gpt"]),
        (["agent", "run", "a", ":", "--mod"], ["agent", "run", "a:", "--mod"]),
        (["agent", ":"], ["agent", ":"]),
        (["agent", "run", ""], ["agent", "run", ""]),
    ],
)
def test_words_that_bash_has_taken_apart_are_put_together(words: list[str], whole: list[str]) -> None:
    assert join_words(words, len(words) - 1) == (whole, len(whole) - 1)


def test_the_help_page_lists_all_strategies_and_thinking_levels() -> None:
    page = run("run", "--help").out
    for name in (*strategies.STRATEGIES, *ThinkingLevel):
        assert name in page


def test_of_a_name_with_a_colon_bash_is_told_what_comes_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_AGENT_COMPLETE", "complete_bash")
    model = ONLY.partition(":")[2]
    for words, answer in (
        (["agent", "run", "-m", "openai", ":", model[:-3]], model),
        (["agent", "run", "-m", ONLY[:-3]], ONLY),  # a bash with COMP_WORDBREAKS changed
    ):
        monkeypatch.setenv("COMP_WORDS", "\n".join(words))
        monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
        assert run().out.split() == [answer]


def test_a_provider_that_is_the_only_one_is_completed_to_its_models() -> None:
    assert set(complete_model("anthr")) == {f"anthropic:{name}" for name in list_models("anthropic")}
    assert list(complete_model("scri")) == ["scripted:"]
    assert {"openai:", "openai-chat:"} <= set(complete_model("open"))


def test_the_tab_key_makes_no_files_and_no_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from agent.cli.chat import complete_session

    monkeypatch.setenv("AGENT_HOME", str(tmp_path / "none"))
    assert complete_session("") == []
    assert not (tmp_path / "none").exists()
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "sessions.db").write_text("this is no database, and is not long enough either")
    monkeypatch.setenv("AGENT_HOME", str(tmp_path / "bad"))
    assert complete_session("") == []
