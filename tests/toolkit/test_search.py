"""Finding files by name and lines by pattern."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from time import monotonic

import pytest

from agent.toolkit import Toolkit
from agent.tools import ToolContext, ToolError
from tests.toolkit.places import Places, expect_error, use

FILES = (
    "a.py",
    "b.txt",
    "src/a.py",
    "src/deep/c.py",
    "src/deep/er/d.py",
    ".hidden/e.py",
    ".git/config.py",
    "odd [x].py",
)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in FILES:
        path = tmp_path / "tree" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"I am {name}\nneedle in line 2\n")
    return tmp_path / "tree"


@pytest.fixture
def kit(tree: Path) -> Toolkit:
    return Toolkit(tree)


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("*.py", "a.py, odd [x].py"),
        ("**/*.py", ".hidden/e.py, a.py, odd [x].py, src/a.py, src/deep/c.py, src/deep/er/d.py"),
        ("src/**/*.py", "src/a.py, src/deep/c.py, src/deep/er/d.py"),
        ("src/*/*.py", "src/deep/c.py"),
        ("src/**/er/*", "src/deep/er/d.py"),
        ("**/er/**", "src/deep/er/, src/deep/er/d.py"),
        ("**/**/c.py", "src/deep/c.py"),
        ("[ab].*", "a.py, b.txt"),
        ("?.txt", "b.txt"),
        ("[!a].*", "b.txt"),
        ("odd [[]x[]].py", "odd [x].py"),
        ("src", "src/"),
        ("./src/./a.py", "src/a.py"),
        (".git/**/*.py", ".git/config.py"),
        ("*", ".git/, .hidden/, a.py, b.txt, odd [x].py, src/"),
        ("*.rs", "No matches."),
        ("[", "No matches."),
        ("a.py/*", "No matches."),
        ("*" * 900 + "x", "No matches."),
    ],
)
def test_names_are_found_in_order(kit: Toolkit, pattern: str, found: str) -> None:
    assert use(kit.glob, pattern=pattern) == found.replace(", ", "\n")


def test_a_folder_and_an_absolute_pattern_are_taken_from_the_root(kit: Toolkit, tree: Path) -> None:
    assert use(kit.glob, pattern="*.py", path="src") == "src/a.py"
    assert use(kit.glob, pattern="*.py", path=f"{tree}/src/deep") == "src/deep/c.py"
    assert use(kit.glob, pattern=f"{tree}/src/*.py") == "src/a.py"
    for wrong in ("../*", "/etc/*", "~/*", "", "/", "src/../../*", "x" * 2000):
        assert "pattern" in expect_error(kit.glob, pattern=wrong)
    assert expect_error(kit.glob, pattern="*", path="missing") == "'missing' does not exist."
    assert "not a folder" in expect_error(kit.glob, pattern="*", path="a.py")


def test_a_list_that_is_too_long_says_so(kit: Toolkit, monkeypatch: pytest.MonkeyPatch) -> None:
    assert use(kit.glob, pattern="**/*.py", limit=2).splitlines()[2].startswith("[There are more than 2.")
    assert len(use(kit.glob, pattern="**/*.py", limit=6).splitlines()) == 6
    monkeypatch.setattr("agent.toolkit.search.MAX_VISITED", 4)
    assert "stopped after 4 entries" in use(kit.glob, pattern="**")
    monkeypatch.setattr("agent.toolkit.search.MAX_DEPTH", 0)
    assert "stopped" in use(kit.grep, pattern="x")


def test_a_walk_ends_when_the_call_is_given_up(kit: Toolkit) -> None:
    context = ToolContext[None]()
    context.signal.set()
    assert "stopped" in kit.glob.run({"pattern": "**"}, context)
    late = ToolContext[None](deadline=monotonic() - 1)
    assert "stopped" in kit.glob.run({"pattern": "**"}, late)


def test_names_that_are_no_characters_are_shown_somehow(kit: Toolkit, tree: Path) -> None:
    os.close(os.open(os.fsencode(tree) + b"/bad\xff.py", os.O_CREAT))
    assert "bad�.py" in use(kit.glob, pattern="bad*").splitlines()


# Lines


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ({"pattern": "needle", "path": "src/a.py"}, "src/a.py:2: needle in line 2"),
        ({"pattern": r"I am .*c\.py$"}, "src/deep/c.py:1: I am src/deep/c.py"),
        ({"pattern": "NEEDLE", "path": "b.txt", "ignore_case": True}, "b.txt:2: needle in line 2"),
        ({"pattern": "NEEDLE"}, "No matches."),
        ({"pattern": "needle", "glob": "**/d.py"}, "src/deep/er/d.py:2: needle in line 2"),
        ({"pattern": "needle", "path": "src", "glob": "*.py"}, "src/a.py:2: needle in line 2"),
        ({"pattern": "needle", "files_only": True, "path": "src/deep"}, "src/deep/c.py\nsrc/deep/er/d.py"),
        ({"pattern": "^$"}, "No matches."),
        ({"pattern": "I am", "path": ".git"}, ".git/config.py:1: I am .git/config.py"),
    ],
)
def test_lines_are_found(kit: Toolkit, arguments: dict[str, object], found: str) -> None:
    assert use(kit.grep, **arguments) == found


def test_a_search_says_what_it_left_out(tree: Path) -> None:
    (tree / "binary").write_bytes(b"needle \0 needle")
    (tree / "large").write_text("needle" * 100)
    with Toolkit(tree, max_file_bytes=200) as kit:
        answer = use(kit.grep, pattern="needle", limit=3)
        assert answer.splitlines()[-2].startswith("[There are more than 3.")
        assert answer.splitlines()[-1] == "[2 binary or very large files were skipped.]"
        assert "600 bytes" in expect_error(kit.grep, pattern="needle", path="large")
        assert "does not exist" in expect_error(kit.grep, pattern="x", path="missing")


def test_very_long_lines_are_shown_around_the_match(kit: Toolkit, tree: Path) -> None:
    (tree / "b.txt").write_text("x" * 5000 + "found" + "y" * 5000)
    answer = use(kit.grep, pattern="found", path="b.txt")
    assert "xfoundy" in answer
    assert len(answer) < 600
    assert answer.endswith("…")


def test_wide_text_is_searched_too(kit: Toolkit, tree: Path) -> None:
    (tree / "b.txt").write_bytes("wide Grüße\n".encode("utf-16"))
    assert use(kit.grep, pattern="Gr.ße", path="b.txt") == "b.txt:1: wide Grüße"


@pytest.mark.parametrize("pattern", ["(", "*a", "a{2,1}", "(?P<x", "\\"])
def test_a_pattern_that_is_none_is_refused(kit: Toolkit, pattern: str) -> None:
    assert expect_error(kit.grep, pattern=pattern).startswith("The pattern is not a regular expression: ")


@pytest.mark.parametrize("pattern", [r"^(a+)+$", r"(.*a){25}$", r"^(([a-z])+.)+[A-Z]([a-z])+$"])
def test_a_pattern_that_never_ends_is_stopped_and_holds_up_nobody(tree: Path, pattern: str) -> None:
    (tree / "b.txt").write_text("a" * 60 + "!")
    kit = Toolkit(tree)
    kit.grep.seconds = 0.2
    ticks, done = [0], threading.Event()

    def tick() -> None:
        while not done.wait(0.005):
            ticks[0] += 1

    ticking = threading.Thread(target=tick)
    ticking.start()
    started = monotonic()
    try:
        assert "took longer than 0.2 s" in expect_error(kit.grep, pattern=pattern, path="b.txt")
    finally:
        done.set()
        ticking.join()
    assert monotonic() - started < 10
    assert ticks[0] > 5  # other threads went on


def test_a_pattern_that_eats_memory_or_is_huge_is_refused(
    kit: Toolkit, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent.toolkit.search.MEMORY", 80 << 20)
    (tree / "b.txt").write_text("a" * 2_000_000)
    assert "exceeds the memory" in expect_error(kit.grep, pattern="^(?:(a)|b)*c", path="b.txt")
    assert "too long" in expect_error(kit.grep, pattern="a" * 20_000)


def test_a_search_ends_when_the_call_is_given_up(tree: Path) -> None:
    (tree / "b.txt").write_text("a" * 60 + "!")
    kit, context = Toolkit(tree), ToolContext[None]()
    threading.Timer(0.1, context.signal.set).start()
    started = monotonic()
    with pytest.raises(ToolError, match="stopped"):
        kit.grep.run({"pattern": r"^(a+)+$", "path": "b.txt"}, context)
    assert monotonic() - started < 10


def test_a_long_output_of_another_tool_can_be_searched(places: Places) -> None:
    with Toolkit(places.root) as kit:
        for number in range(600):
            (places.root / f"file-with-a-long-name-{number:04d}-{'x' * 60}").touch()
        use(kit.glob, pattern="*", limit=1000)
        [stored] = kit.truncated_outputs
        assert ":301: " in use(kit.grep, pattern="name-0300", path=stored.temp_file_path)
        assert "is outside the root" in expect_error(kit.write, file_path=stored.temp_file_path, content="x")
