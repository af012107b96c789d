"""The set of tools."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import agent.toolkit
from agent.errors import ConfigurationError
from agent.toolkit import Toolkit
from agent.tools import ArgumentsError
from tests.toolkit.places import Places, why_not_confined

READING = {"Read": "read", "Glob": "read", "Grep": "read", "Stat": "read", "TodoWrite": "read"}
WRITING = {"Write": "write", "Edit": "write", "EditConfirm": "write"}
RUNNING = {"Bash": "exec", "Python": "exec"}
ASKING = {"WebFetch": "network"}


@pytest.mark.parametrize(
    ("switches", "tools"),
    [
        ({}, READING | WRITING),
        ({"allow_write": False}, READING),
        ({"allow_exec": "unconfined"}, READING | WRITING | RUNNING),
        ({"allow_network": True, "allow_write": False}, READING | ASKING),
    ],
)
def test_there_is_only_what_was_switched_on(places: Places, switches: dict[str, object], tools: dict[str, str]) -> None:
    with Toolkit(places.root, **switches) as kit:  # type: ignore[arg-type]
        assert {tool.name: tool.risk for tool in kit} == tools
        assert [tool.name for tool in kit.tools] == [tool.name for tool in (*kit,)]
        assert len(kit) == len(tools)
        assert kit[0] is kit.read
        assert kit[0:2] == kit.tools[:2]
        assert kit.read in kit


def test_confined_programs_are_switched_on_by_true(places: Places) -> None:
    if reason := why_not_confined():
        pytest.skip(reason)
    with Toolkit(places.root, allow_exec=True) as kit:
        assert kit.bash.programs.confine
        assert kit.python.programs.confine


def test_each_tool_is_at_hand_by_its_name(places: Places) -> None:
    with Toolkit(places.root, allow_exec="unconfined", allow_network=True) as kit:
        at_hand = (kit.read, kit.write, kit.edit, kit.edit_confirm, kit.glob, kit.grep, kit.stat, kit.todo_write)
        assert [*at_hand, kit.bash, kit.python, kit.web_fetch] == kit.tools
    with Toolkit(places.root, allow_write=False) as kit:
        for name, switch in (
            ("write", "allow_write"),
            ("edit_confirm", "allow_write"),
            ("bash", "allow_exec"),
            ("web_fetch", "allow_network"),
        ):
            with pytest.raises(ConfigurationError, match="This toolkit has no") as raised:
                getattr(kit, name)
            assert raised.value.fix == f"Create it with {switch}=True."


def test_every_tool_can_be_offered_and_checks_its_arguments(places: Places) -> None:
    with Toolkit(places.root, allow_exec="unconfined", allow_network=True) as kit:
        for tool in kit:
            assert tool.can_run
            assert tool.spec.to_openai_schema()["function"]["name"] == tool.name
            assert tool.spec.description.endswith(".") or tool.spec.description
            with pytest.raises(ArgumentsError):
                tool.check({"nonsense": 1})
            with pytest.raises(ArgumentsError):
                tool.check({})
        with pytest.raises(ArgumentsError):
            kit.bash.check({"command": "true", "timeout": 0})
        with pytest.raises(ArgumentsError):
            kit.read.check({"file_path": "x", "offset": 0})


def test_wrong_switches_are_refused(places: Places, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="allow_exec cannot be 'yes'"):
        Toolkit(places.root, allow_exec="yes")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="is not a folder"):
        Toolkit(tmp_path / "missing")


def test_it_says_what_it_is(places: Places) -> None:
    kit = Toolkit(places.root, allow_write=False)
    assert repr(kit) == f"Toolkit({str(places.root)!r}: Read, Glob, Grep, Stat, TodoWrite)"
    assert kit.root == places.root
    kit.close()
    kit.close()


def test_the_public_names_are_these() -> None:
    assert sorted(agent.toolkit.__all__) == agent.toolkit.__all__
    for name in agent.toolkit.__all__:
        assert getattr(agent.toolkit, name).__doc__ or name == "TodoStatus"


def test_loading_it_loads_no_event_loop_and_no_ctypes() -> None:
    code = "import sys, agent.toolkit; print(sorted({'asyncio', 'ctypes'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
