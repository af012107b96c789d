"""The documentation matches the command line: help pages, commands, exit codes."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from agent.cli.app import COMMANDS, create_command
from agent.cli.errors import ExitCode
from agent.engine.wire import Answer, WireRequest
from agent.graph import DAG
from agent.testing import LoopbackServer, VendorScript
from scripts.command_line import PAGE, page
from tests.test_docs import PAGES, short, vendor

from .runner import ROOT, run

PNG = b"\x89PNG\r\n\x1a\n"
CITY = {"type": "object", "properties": {"name": {"type": "string"}, "population": {"type": "integer"}}}
WEATHER = '''
def get_weather(city: str) -> str:
    """The weather in a city, now."""
    return f"{city}: 21 degrees, sunny"
'''
SHAPES = "from pydantic import BaseModel\nclass City(BaseModel):\n    name: str\n    population: int\n"

NOT_RUN = ("chat", "batch", "local", "sessions", "--install-completion", "--show-completion")
"""They talk, need files of their own, or change the machine; they are only parsed here."""


class Line(NamedTuple):
    """A command of the documentation."""

    page: Path
    text: str
    arguments: list[str]
    stdin: bytes
    promised: list[str]


def lines() -> Iterator[Line]:
    for path in PAGES:
        for block in re.findall(r"^ *```(?:bash|sh)\n(.*?)^ *```$", path.read_text("utf-8"), re.M | re.S):
            joined = block.replace("\\\n", " ")
            for found in re.finditer(r"^(?P<line>(?!#).*)\n(?P<said>(?:#>.*\n)*)", joined, re.M):
                yield from line(path, found["line"].strip(), re.findall(r"^#> ?(.*)$", found["said"], re.M))


def line(path: Path, text: str, promised: list[str]) -> Iterator[Line]:
    """The part of a line of the shell that is ours, with what it would read."""
    stages: list[list[str]] = [[]]
    for word in shlex.split(text, comments=True):
        stages.append([]) if word == "|" else stages[-1].append(word)
    for place, stage in enumerate(stages):
        while stage and re.fullmatch(r"[A-Z_]+=.*", stage[0]):
            stage = stage[1:]
        if stage[:1] != ["agent"]:
            continue
        stdin = b"some text" if place else b""
        for mark in ("<", ">"):
            if mark in stage:
                at = stage.index(mark)
                stdin = PNG if mark == "<" and stage[at + 1].endswith(".png") else stdin
                stage = stage[:at]
        yield Line(path, text, stage[1:], stdin, promised if place == len(stages) - 1 else [])


LINES = list(lines())


@pytest.fixture(scope="module")
def server() -> Iterator[LoopbackServer]:
    """The vendor of the documentation, which also sees."""

    def answer(request: WireRequest) -> Answer:
        return VendorScript("A red square.")(request) if b"image/png" in request.body else vendor(request)

    with LoopbackServer(answer) as running:
        yield running


@pytest.fixture
def runner(server: LoopbackServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keys, addresses, a model, and the files that the documentation speaks of."""
    variables = {
        "OPENAI_API_KEY": "sk-test",
        "OPENAI_BASE_URL": f"{server.url}/v1",
        "ANTHROPIC_API_KEY": "sk-ant-test",
        "ANTHROPIC_BASE_URL": server.url,
        "AGENT_MODEL": "openai:gpt-5.6",
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photo.png").write_bytes(PNG)
    (tmp_path / "notes.txt").write_text("Buy milk.")
    (tmp_path / "city.json").write_text(json.dumps(CITY))
    (tmp_path / "weather.py").write_text(WEATHER)
    (tmp_path / "shapes.py").write_text(SHAPES)
    DAG().user("Hello?").assistant("Yes.").save(tmp_path / "talk.json")
    return tmp_path


def parse_snippets(arguments: list[str]) -> Any:
    """The command that these arguments would run. Wrong ones raise."""
    group: Any = create_command()
    context = group.make_context("agent", list(arguments), resilient_parsing=False)
    while hasattr(group, "resolve_command"):
        rest = [*context._protected_args, *context.args]
        if not rest:
            return group
        name, group, rest = group.resolve_command(context, rest)
        context = group.make_context(name, rest, parent=context)
    return group


def test_there_are_commands_in_the_documentation() -> None:
    assert len(LINES) > 25
    assert {arguments[0] for _, _, arguments, _, _ in LINES if arguments} >= set(COMMANDS) - {"batch", "sessions"}


@pytest.mark.parametrize("one", LINES, ids=lambda one: f"{short(one.page)}: {one.text[:60]}")
@pytest.mark.usefixtures("runner")
def test_every_command_of_the_documentation_is_right(one: Line) -> None:
    if one.arguments[:1] and one.arguments[0] in NOT_RUN:
        if one.arguments[0] in COMMANDS:
            assert parse_snippets(one.arguments).name in (*COMMANDS, *one.arguments)
        return
    done = run(*one.arguments, stdin=one.stdin)
    assert done.code == ExitCode.OK, done.err
    if one.promised:
        if "--session" in one.arguments:  # the lines before it have not been said here
            return
        assert done.out.splitlines() == one.promised


def test_a_command_that_is_wrong_would_be_found() -> None:
    with pytest.raises(Exception, match="No such option"):
        parse_snippets(["chat", "--no-such-option"])
    with pytest.raises(Exception, match="No such command"):
        parse_snippets(["local", "explode"])


def test_the_help_pages_are_those_of_the_program() -> None:
    assert PAGE.read_text("utf-8") == page(), "run: python scripts/command_line.py"


def test_every_exit_code_is_documented() -> None:
    guide = (ROOT / "docs" / "guides" / "command-line.md").read_text("utf-8")
    documented = {int(code) for code in re.findall(r"^\| (\d+) \|", guide, re.M)}
    defined = {int(code) for code in ExitCode}
    assert documented == defined
