"""Programs that mypy and pyright accept or reject, both in strict mode."""

from __future__ import annotations

import re
from functools import cached_property
from types import FunctionType
from typing import Any

import pytest

from agent import Agent, AgentResponse, Router, RunResult, Tool, ToolContext, ToolRegistry
from agent.batch import BatchItem, BatchProgress, BatchResult
from agent.batch.streams import AsyncBatchStream, BatchStream
from agent.calls.streams import AsyncJsonStream, AsyncResponseStream, JsonStream, ResponseStream
from agent.loop import AgentLoop, AsyncRunStream, PausedRun, RunStream
from agent.sessions import AgentSession
from agent.testing import SimulatedLoop

from .checkers import HAS_PYRIGHT, NO_PYRIGHT, Errors, read_programs, run_mypy, run_pyright, write_programs

ACCEPTED = read_programs("accepted")
REJECTED = read_programs("rejected")
NO_ERRORS: dict[int, str] = {}
CLASSES: tuple[type, ...] = (
    Agent, Router, AgentSession, AgentLoop, RunResult, AgentResponse, PausedRun, ToolContext, ToolRegistry, Tool,
    BatchResult, BatchItem, BatchProgress, BatchStream, AsyncBatchStream, ResponseStream, AsyncResponseStream,
    JsonStream, AsyncJsonStream, RunStream, AsyncRunStream, SimulatedLoop,
)  # fmt: skip
FOR_THE_PACKAGE = {
    "addresses", "apply_defaults", "attempt_call", "call_flow", "copy_with", "count", "describe_defaults", "for_call",
    "identity", "index", "output_plan", "own_tools", "provider_and_model", "run_flow", "start", "with_cost",
}  # fmt: skip
"""Members that other layers of the package need, and those of `Sequence`."""


@pytest.fixture(
    scope="module",
    params=["mypy", pytest.param("pyright", marks=pytest.mark.skipif(not HAS_PYRIGHT, reason=NO_PYRIGHT))],
)
def checked(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Errors]:
    """The name of a checker, and its errors in both corpora. One run is faster than two."""
    folder = tmp_path_factory.mktemp(request.param)
    write_programs(folder, [*ACCEPTED, *REJECTED])
    return request.param, (run_mypy if request.param == "mypy" else run_pyright)(folder)


def list_members(cls: type) -> dict[str, Any]:
    """Public methods and properties, without those of pydantic."""
    classes = [base for base in cls.__mro__ if base.__module__.startswith("agent.")]
    members = {name: value for base in reversed(classes) for name, value in vars(base).items()}
    return {
        name: value
        for name, value in members.items()
        if not name.startswith(("_", "model_"))
        and name not in FOR_THE_PACKAGE
        and isinstance(value, FunctionType | property | cached_property | classmethod)
    }


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_the_type_of_every_public_value_is_asserted(cls: type) -> None:
    accepted = "".join(program.text for program in ACCEPTED)
    asserted = {name for line in re.findall(r"assert_type\(.+", accepted) for name in re.findall(r"\.(\w+)", line)}
    called = set(re.findall(r"^ *(?:await )?\w+\.(\w+)\(", accepted, re.M))
    missing = []
    for name, member in list_members(cls).items():
        returns_nothing = getattr(member, "__annotations__", {}).get("return") == "None"
        if name not in (called if returns_nothing else asserted):
            missing.append(name)
    assert missing == []


def test_right_programs_are_accepted(checked: tuple[str, Errors]) -> None:
    _, errors = checked
    assert len(ACCEPTED) >= 80
    assert {program.title: errors[number] for number, program in enumerate(ACCEPTED) if number in errors} == {}


def test_wrong_programs_are_rejected(checked: tuple[str, Errors]) -> None:
    checker, errors = checked
    assert len(REJECTED) >= 80
    assert all(program.expected for program in REJECTED)
    missed = {
        program.title: found
        for number, program in enumerate(REJECTED, len(ACCEPTED))
        for line, patterns in program.expected.items()
        if not re.search(patterns[checker], found := errors.get(number, NO_ERRORS).get(line, "no error"))
    }
    assert missed == {}
