"""Failures of constructors: all frames can be printed, and hide rejected settings."""

from __future__ import annotations

import asyncio
import dataclasses
import importlib
import inspect
import random
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

from agent import Agent, AgentConfig, Router
from agent.engine.stream import StreamBase
from agent.loop import AgentLoop
from agent.testing import scripted_agent
from tests.support.cases import examples
from tests.support.leaks import KEY, assert_no_trace, views_of


class Unusual:
    """An argument that breaks whatever is done with it, except printing."""

    def __getattr__(self, name: str) -> Any:
        raise ValueError(name)

    def __iter__(self) -> Any:
        raise OSError("not iterable")

    def __bool__(self) -> bool:
        raise RuntimeError("neither true nor false")


VALUES: list[Any] = [
    None, True, -1, 0, 10**400, 1.5, float("nan"), "", KEY, f"{KEY}\r\n", "\ud800", b"", b"\xff", (), [], [KEY], [[]],
    {}, {"": None}, {KEY: KEY}, {"x": [KEY]}, {1: 2}, object(), object, len, Unusual(), lambda: 1 / 0, "scripted:m",
    f"https://user:{KEY}@example.com", {"type": "object"}, [{"role": "user", "content": 1}],
]  # fmt: skip


PACKAGES = (
    "agent",
    "agent.batch",
    "agent.errors",
    "agent.graph",
    "agent.loop",
    "agent.mcp",
    "agent.middleware",
    "agent.routing",
    "agent.sessions",
    "agent.stores",
    "agent.testing",
    "agent.toolkit",
    "agent.tools",
    "agent.transports.http",
    "agent.types",
)


def find_classes() -> list[type]:
    found: dict[type, None] = {}
    for package in map(importlib.import_module, PACKAGES):
        for name in getattr(package, "__all__", None) or dir(package):
            kind = getattr(package, name)
            if inspect.isclass(kind) and kind.__module__.startswith("agent") and not issubclass(kind, StreamBase):
                found[kind] = None
    return list(found)


def choose_arguments(kind: type, rng: random.Random) -> dict[str, Any]:
    """Choose random arguments: all required ones, and some of the others."""
    try:
        parameters = inspect.signature(kind).parameters.values()
    except (TypeError, ValueError):  # some classes of the standard library have no signature
        return {}
    chosen: dict[str, Any] = {}
    for parameter in parameters:
        is_needed = parameter.default is parameter.empty or rng.random() < 0.4
        if parameter.kind is parameter.VAR_KEYWORD:
            chosen[rng.choice(("x", "api_key", "headers", "extra", "timeout", "name"))] = rng.choice(VALUES)
        elif is_needed and parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            chosen[parameter.name] = rng.choice(VALUES)
    return chosen


def test_every_frame_of_a_failed_constructor_can_be_printed(
    rng: random.Random, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # some values are paths of new files
    failed = succeeded = 0
    for kind in find_classes():
        for _ in range(examples(8, 400)):
            arguments = choose_arguments(kind, rng)
            try:
                made = kind(**arguments)
            except Exception as error:
                failed += 1
                for _ in views_of(error):
                    pass
            else:
                assert str(made) + repr(made)
                succeeded += 1
    print(f"{failed} constructors failed, {succeeded} succeeded")
    assert failed > 500


def test_an_object_without_attributes_can_be_printed() -> None:
    """Also objects whose constructor was interrupted at its start."""
    for kind in find_classes():
        if not (dataclasses.is_dataclass(kind) or inspect.isabstract(kind) or issubclass(kind, tuple | Enum | float)):
            made = kind.__new__(kind)
            assert str(made) + repr(made) is not None


SETTINGS: list[dict[str, Any]] = [
    {"api_key": [KEY]},
    {"api_key": f"{KEY}\n"},
    {"api_key": {"openai": KEY}},
    {"apikey": KEY},
    {"headers": {"x": f"{KEY}\n"}},
    {"headers": {KEY: 1}},
    {"headers": [("x", KEY)]},
    {"base_url": f"https://user:{KEY}@example.com"},
    {"base_url": f"https://example.com/?key={KEY}"},
    {"base_url": [KEY]},
    {"extra": {"options": {"api_key": KEY}}, "temperature": "hot"},
    {"api_key": KEY, "temperature": "hot"},
    {"headers": {"x": KEY}, "timeout": -1},
    {"headers": {"x": KEY}, "base_url": "no URL"},
]
SCRIPTED = scripted_agent("Hi")
TAKERS: dict[str, Callable[..., object]] = {
    "Agent": lambda **settings: Agent("openai:m", **settings),
    "with_config": SCRIPTED.with_config,
    "AgentConfig": lambda **settings: AgentConfig(provider="openai", **settings),
    "model_validate": lambda **settings: AgentConfig.model_validate({"provider": "openai", **settings}),
    "from_dict": lambda **settings: AgentConfig.from_dict({"provider": "openai", **settings}),
    "with_overrides": AgentConfig(provider="openai").with_overrides,
    "Router": Router([SCRIPTED, SCRIPTED.with_config(model="b")]).with_config,
    "complete": lambda **settings: SCRIPTED.complete("x", **settings),
    "json": lambda **settings: SCRIPTED.json("x", schema=int, **settings),
    "stream": lambda **settings: SCRIPTED.stream("x", **settings).collect(),
    "run": lambda **settings: SCRIPTED.run("x", **settings),
    "batch": lambda **settings: SCRIPTED.batch(["x"], **settings)[0].unwrap(),
    "session": lambda **settings: SCRIPTED.session("s", **settings).complete("x"),
    "session call": lambda **settings: SCRIPTED.session("s").complete("x", **settings),
    "explain": lambda **settings: Router([SCRIPTED]).explain("x", **settings),
    "abatch": lambda **settings: asyncio.run(SCRIPTED.abatch(["x"], **settings))[0].unwrap(),
    "batch_stream": lambda **settings: SCRIPTED.batch_stream(["x"], **settings).collect(),
    "stream_json": lambda **settings: SCRIPTED.stream_json("x", schema=int, **settings).collect(),
    "run_stream": lambda **settings: SCRIPTED.run_stream("x", **settings).collect(),
    "session run": lambda **settings: SCRIPTED.session("s").run("x", **settings),
    "count_tokens": lambda **settings: SCRIPTED.count_tokens("x", **settings),
    "check": lambda **settings: SCRIPTED.check("x", **settings),
    "as_tool": lambda **settings: SCRIPTED.as_tool("a", "b", **settings),
    "AgentLoop": lambda **settings: AgentLoop(SCRIPTED, **settings),
    "acomplete": lambda **settings: asyncio.run(SCRIPTED.acomplete("x", **settings)),
    "arun": lambda **settings: asyncio.run(SCRIPTED.arun("x", **settings)),
}


@pytest.mark.parametrize("taker", TAKERS)
def test_no_frame_of_a_failure_keeps_a_rejected_setting(taker: str) -> None:
    failures: list[Exception] = []
    for settings in SETTINGS:
        try:
            TAKERS[taker](**settings)
        except ValueError as error:  # ConfigurationErrors and pydantic's
            try:
                assert_no_trace(error)
            except AssertionError as failure:
                failure.add_note(f"settings: {settings}")
                failures.append(failure)
    if failures:
        raise ExceptionGroup(f"{len(failures)} settings", failures)
