"""`agent sessions`: list, show, export, fork, draw and delete."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest
from typing_extensions import override

from agent.cli import main
from agent.cli.chat.records import SpendingTotal, create_fork, load_by_prefix, load_tree
from agent.cli.options import open_session_store
from agent.errors import ConfigurationError
from agent.sessions import AgentSession
from agent.testing import scripted_agent
from tests.cli.chat_script import ChatRunner


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> ChatRunner:
    return ChatRunner.at(tmp_path, monkeypatch, capsys)


@pytest.fixture
def kept(runner: ChatRunner) -> ChatRunner:
    """Two sessions: one from the command line, one from a program."""
    runner.run("chat", "trip", lines="Where to?\nAnd how?\n")
    with open_session_store() as store:
        scripted_agent("Hello, Ada!").session("ada", store=store, system="Be kind.").run("I am Ada.")
    return runner


def test_the_list_says_what_each_session_is_about(kept: ChatRunner) -> None:
    for command in (("sessions",), ("sessions", "list")):
        done = kept.run(*command)
        assert done.code == 0
        header, first, second = done.out.splitlines()
        assert header.split() == ["session", "title", "turns", "model", "updated", "cost"]
        assert first.split()[:5] == ["ada", "I", "am", "Ada.", "1"]
        assert second.split()[:4] == ["trip", "Where", "to?", "2"]
        assert "scripted:echo" in second
    listed = json.loads(kept.run("sessions", "--json", "-n", "1").out)
    assert [(one["id"], one["turns"], one["cost"]) for one in listed] == [("ada", 1, None)]
    assert json.loads(kept.run("sessions", "list", "--json").out)[1]["title"] == "Where to?"


def test_with_nothing_kept_the_list_says_how_to_begin(runner: ChatRunner) -> None:
    done = runner.run("sessions")
    assert (done.code, done.out) == (0, "")
    assert "agent chat" in done.err
    assert json.loads(runner.run("sessions", "list", "--json").out) == []


def test_a_session_is_shown_and_exported_and_gone_on_with_from_its_file(kept: ChatRunner) -> None:
    assert kept.run("sessions", "show", "ada").out == "instructions: Be kind.\n> I am Ada.\nHello, Ada!\n"
    shown = json.loads(kept.run("sessions", "show", "ada", "--json").out)
    assert kept.run("sessions", "export", "ada", "ada.json").code == 0
    exported = json.loads((kept.home / "ada.json").read_text("utf-8"))
    assert exported == shown
    again = AgentSession.of(scripted_agent("You are Ada."), exported)
    assert again.run("Who am I?").text == "You are Ada."
    assert [message.text for message in again.messages][:2] == ["I am Ada.", "Hello, Ada!"]

    refused = kept.run("sessions", "export", "trip", "ada.json")
    assert refused.code == 2
    assert "add --force" in refused.err
    assert json.loads((kept.home / "ada.json").read_text("utf-8")) == shown
    assert kept.run("sessions", "export", "trip", "ada.json", "--force").code == 0
    assert json.loads((kept.home / "ada.json").read_text("utf-8"))["id"] == "trip"
    assert kept.run("sessions", "export", "trip", "missing/trip.md").code == 1


def test_a_session_is_forked_drawn_and_deleted(kept: ChatRunner) -> None:
    assert kept.run("sessions", "fork", "trip", "other").code == 0
    assert kept.run("sessions", "fork", "trip", "other").code == 2
    assert kept.run("sessions", "fork", "trip", "bad name").code == 2
    kept.run("chat", "other", lines="Elsewhere.\n")
    picture = kept.run("sessions", "graph", "trip").out
    assert "← trip\n" in picture
    assert "Elsewhere.  ← other" in picture
    assert kept.run("sessions", "graph", "trip", "trip.html").code == 0
    assert "Elsewhere." in (kept.home / "trip.html").read_text("utf-8")
    assert kept.run("sessions", "graph", "trip", "trip.html").code == 2
    assert kept.run("sessions", "graph", "trip", "trip.html", "--force").code == 0
    assert kept.run("sessions", "graph", "trip", "trip.png").code == 2

    assert "--yes" in kept.run("sessions", "delete", "trip").err  # there is no terminal to confirm on
    assert kept.run("sessions", "delete", "trip", "--yes").err == "deleted trip\n"
    assert kept.run("sessions", "show", "trip").code == 2
    assert "Where to?" in kept.run("sessions", "graph", "other").out  # a fork stands by itself


@pytest.mark.parametrize(("answer", "left"), [("y\n", 1), ("n\n", 2), ("\n", 2), ("", 2)])
def test_deleting_asks_first(kept: ChatRunner, answer: str, left: int) -> None:
    class Keys(io.StringIO):
        @override
        def isatty(self) -> bool:
            return True

    kept.monkeypatch.setattr(sys, "stdin", Keys(answer))
    assert main(["sessions", "delete", "tri"]) == 0
    assert "Delete trip (Where to?, 2 turns)? [y/N]" in kept.capsys.readouterr().err
    assert len(json.loads(kept.run("sessions", "--json").out)) == left


def test_names_may_be_shortened_and_wrong_ones_get_suggestions(kept: ChatRunner) -> None:
    assert "Where to?" in kept.run("sessions", "show", "tr").out
    assert "Did you mean trip?" in kept.run("sessions", "show", "trpi").err
    assert "agent sessions" in kept.run("sessions", "show", "zzz").err
    kept.run("chat", "trip-2", lines="x\n")
    assert "Use one of trip-2, trip." in kept.run("sessions", "show", "tri").err
    assert "x" in kept.run("sessions", "show", "trip-").out
    with open_session_store() as store, pytest.raises(ConfigurationError, match="Invalid session id"):
        load_by_prefix(store, "../../etc/passwd")


def test_forks_of_forks_are_one_family_and_names_are_numbered(kept: ChatRunner) -> None:
    with open_session_store() as store:
        record = store.load("trip")
        dag = scripted_agent().session("trip", store=store).dag
        names = [create_fork(store, dag, None, forked_from=name, title="").id for name in ("trip", "trip-2", "x" * 64)]
        assert names == ["trip-2", "trip-3", f"{'x' * 58}-2"]
        together = load_tree(store, record)
        assert list(together.sessions.values()) == [["trip", "trip-3", "trip-2"]]
        assert len(together.heads) == 1
    picture = kept.run("sessions", "graph", "trip-3").out
    assert picture.rstrip().endswith("← trip-3, trip-2, trip")


def test_what_is_not_known_is_not_counted_as_nothing() -> None:
    free, unknown = SpendingTotal(known_cost=0.0, responses=1), SpendingTotal(responses=1, unpriced=1)
    assert free.cost == 0.0
    assert unknown.cost is None
    assert (free + unknown).cost is None
