"""Tables and lists fit the width of the terminal."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agent.cli.chat.commands import format_help
from agent.cli.options import open_session_store
from agent.cli.terminal import display_width, format_dollars, format_pairs, format_table, truncate
from agent.testing import scripted_agent

from .runner import run, run_on_terminal

COLUMNS = {"name": ["short", "a-much-longer-name"], "title": ["日本語の長い題です", "title"], "turns": ["1", "10"]}


def test_lines_are_cut_by_columns_and_not_by_characters() -> None:
    assert truncate("abc", 3) == "abc"
    assert truncate("abcd", 3) == "ab…"
    assert truncate("日本語です", 5) == "日本…"
    assert display_width("e\u0301日") == 3
    assert display_width("👩\u200d👧") == 4  # joiners have no width; terminals differ for the emoji


def test_columns_are_in_line_whatever_the_letters() -> None:
    lines = format_table(COLUMNS, right={"turns"})
    assert lines[0].split() == ["name", "title", "turns"]
    assert len({display_width(line) for line in lines}) == 1
    assert display_width(lines[1].partition("日")[0]) == display_width(lines[2].partition("title")[0])


@pytest.mark.parametrize("most", [80, 40, 36, 30, 20, 10, 5])
def test_a_table_cuts_what_may_be_cut_and_then_leaves_columns_out(most: int) -> None:
    lines = format_table(COLUMNS, most, right={"turns"}, elastic={"title"})
    assert max(display_width(line) for line in lines) <= most
    names = lines[0].split()
    assert names == ["name", "title", "turns"][: len(names)]
    if most == 40:
        assert len(names) == 3
        assert "…" in lines[1]
    if most == 5:
        assert lines[2] == "a-mu…"


def test_a_table_without_rows_is_its_heading() -> None:
    assert format_table({"name": [], "title": []}) == ["name  title"]


def test_what_is_said_beside_a_name_goes_on_below_itself() -> None:
    pairs = [("one", "a few words that do not fit"), ("three", "fits")]
    assert format_pairs(pairs, 27, "  ") == [
        "  one    a few words that do",
        "         not fit",
        "  three  fits",
    ]
    assert format_pairs(pairs, None) == ["one    a few words that do not fit", "three  fits"]
    assert format_pairs([]) == []


@pytest.mark.parametrize("most", [50, 80])
def test_the_help_of_a_chat_fits_into_the_terminal(most: int) -> None:
    lines = format_help(most)
    assert max(map(display_width, lines)) <= most
    assert " ".join(" ".join(lines).split()) == " ".join(" ".join(format_help()).split())


@pytest.mark.parametrize("columns", [20, 60, 80])
def test_the_list_of_sessions_is_no_wider_than_the_terminal(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, columns: int
) -> None:
    monkeypatch.setenv("AGENT_HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", str(columns))
    with open_session_store() as store:
        scripted_agent("There.").session("trip", store=store).run("Where shall we go this summer, and how?")
        scripted_agent("はい").session("japan", store=store).run("長い質問" * 30)
    code, seen = run_on_terminal("sessions")
    lines = seen.decode().splitlines()
    assert code == 0
    assert len(lines) == 3
    assert max(map(display_width, lines)) <= columns
    assert ("title" in lines[0]) is (columns > 20)
    assert json.loads(run("sessions", "--json").out)[0]["title"].startswith("長い質問")


@pytest.mark.parametrize(
    ("amount", "shown"),
    [
        (None, ""),
        (0.0, "$0"),
        (0.0000001, "<$0.000001"),
        (0.00012, "$0.00012"),
        (0.5, "$0.50"),
        (1.234, "$1.23"),
        (20.0, "$20.00"),
    ],
)
def test_sums_have_the_digits_that_matter(amount: float | None, shown: str) -> None:
    assert format_dollars(amount) == shown
