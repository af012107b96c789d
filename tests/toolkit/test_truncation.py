"""Truncation of long outputs."""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as some
from typing_extensions import override

from agent.errors import ConfigurationError
from agent.toolkit import Toolkit, TruncationConfig
from agent.tools import AgentToolResult, Tool, ToolContext
from agent.tools.base import count_lines, split_long_text
from tests.toolkit.places import Places, use

LONG = "\n".join(f"line {number}" for number in range(1, 3001))


@dataclass
class Talker(Tool):
    name: str = "talker"
    description: str = "Says something."
    says: Any = LONG

    @override
    def run(self, arguments: Any, context: ToolContext[Any]) -> Any:
        return self.says


@dataclass
class ShortTalker(Talker):
    _truncation_config: ClassVar[TruncationConfig] = TruncationConfig(max_chars=100, max_lines=4)


@dataclass
class LaterTalker(ShortTalker):
    @override
    async def run(self, arguments: Any, context: ToolContext[Any]) -> Any:
        return self.says


def talk(kit: Toolkit, talker: Tool) -> Any:
    kit.add(talker)
    return kit[-1].run({}, ToolContext())


def test_what_is_short_stays_as_it_is(kit: Toolkit) -> None:
    for text in ("", "x", "x" * 30_000, "x\n" * 1000):
        assert split_long_text(text, TruncationConfig()) is None
    assert talk(kit, Talker(says="short")) == "short"
    assert kit.truncated_outputs == []


@pytest.mark.parametrize(("text", "lines"), [("", 0), ("a", 1), ("a\n", 1), ("a\nb", 2), ("\n", 1), ("\n\n", 2)])
def test_lines_are_counted_as_people_count_them(text: str, lines: int) -> None:
    assert count_lines(text) == lines


@given(some.text(some.sampled_from("ab\n"), max_size=80), some.integers(0, 40), some.integers(0, 10), some.booleans())
def test_what_is_left_is_the_beginning_and_the_end_and_no_longer_than_it_may_be(
    text: str, chars: int, lines: int, enabled: bool
) -> None:
    parts = split_long_text(text, TruncationConfig(chars, lines, enabled))
    if parts is None:
        assert not enabled or (len(text) <= chars and count_lines(text) <= lines)
        return
    assert enabled
    head, tail = parts
    assert text.startswith(head)
    assert text.removesuffix("\n").endswith(tail) or text.endswith(tail)
    assert len(head) + len(tail) <= min(chars, len(text))
    assert count_lines(head) + count_lines(tail) <= max(lines, 0) + 1


def test_the_rest_is_in_a_file_that_read_reads(kit: Toolkit) -> None:
    answer = talk(kit, Talker())
    [stored] = kit.truncated_outputs
    assert (stored.tool_name, stored.original_chars, stored.original_lines) == ("talker", len(LONG), 3000)
    assert answer.startswith("line 1\nline 2\n")
    assert answer.endswith("\nline 2999\nline 3000")
    marker = re.search(r"\[… (.*)\]", answer)
    assert marker is not None
    assert "characters (2,000 lines) are omitted." in marker[1]
    assert f"The complete output is in {stored.temp_file_path}: Read it with offset and limit." in marker[1]
    assert Path(stored.temp_file_path).read_text() == LONG
    page = use(kit.read, file_path=stored.temp_file_path, offset=1500, limit=2)
    assert page == "line 1500\nline 1501"


def test_other_folders_of_the_toolkit_are_not_read(kit: Toolkit) -> None:
    talk(kit, Talker())
    stored = kit.truncated_outputs[0].temp_file_path
    secret = Path(stored).parent.parent / "secret.txt"
    secret.write_text("secret")
    os.symlink(secret, Path(stored).parent / "link.txt")
    for path in (str(secret), f"{os.path.dirname(stored)}/../secret.txt", f"{os.path.dirname(stored)}/link.txt"):
        assert "outside" in use(kit.read, file_path=path) or "leads out" in use(kit.read, file_path=path)


def test_only_this_user_may_read_what_is_stored_and_it_goes_with_the_toolkit(places: Places) -> None:
    with Toolkit(places.root) as kit:
        talk(kit, Talker())
        path = Path(kit.truncated_outputs[0].temp_file_path)
        for part in (path, path.parent, path.parent.parent):
            assert stat.S_IMODE(part.stat().st_mode) & 0o077 == 0
    assert not path.parent.parent.exists()
    assert kit.truncated_outputs == []
    assert (places.root / "inside.txt").exists()
    with pytest.raises(RuntimeError, match="closed"):
        kit[-1].run({}, ToolContext())


def test_a_toolkit_that_is_forgotten_cleans_up_too(places: Places) -> None:
    kit = Toolkit(places.root)
    talk(kit, Talker())
    path = Path(kit.truncated_outputs[0].temp_file_path)
    del kit
    assert not path.exists()


def test_only_so_many_outputs_are_kept(kit: Toolkit) -> None:
    kit.add(Talker())
    for _ in range(103):
        kit[-1].run({}, ToolContext())
    stored = [output.temp_file_path for output in kit.truncated_outputs]
    assert len(stored) == 100
    assert sorted(os.listdir(os.path.dirname(stored[0]))) == sorted(os.path.basename(path) for path in stored)


def test_a_tool_of_your_own_is_cut_as_its_class_says_or_as_the_toolkit_says(places: Places) -> None:
    with Toolkit(places.root) as kit:
        assert talk(kit, ShortTalker()).splitlines()[0::2] == ["line 1", kit_marker(kit), "line 3000"]
    with Toolkit(places.root, truncation=TruncationConfig(max_lines=2)) as kit:
        assert talk(kit, ShortTalker()).count("\n") == 2
    with Toolkit(places.root, truncation=TruncationConfig(enabled=False)) as kit:
        assert talk(kit, ShortTalker()) == LONG


def kit_marker(kit: Toolkit) -> str:
    stored = kit.truncated_outputs[0]
    lost = f"{stored.original_chars - 32:,} of {stored.original_chars:,} characters (2,996 lines)"
    return f"[… {lost} are omitted. The complete output is in {stored.temp_file_path}: Read it with offset and limit.]"


def test_details_and_what_is_not_text_stay(kit: Toolkit) -> None:
    result = talk(kit, ShortTalker(says=AgentToolResult(LONG, {"kept": LONG}, is_error=True)))
    assert (len(result.content) < 400, result.details, result.is_error) == (True, {"kept": LONG}, True)
    kit.add(ShortTalker(name="other", says=[1, 2, 3]))
    assert kit[-1].run({}, ToolContext()) == [1, 2, 3]


def test_an_async_tool_is_cut_too(kit: Toolkit) -> None:
    import asyncio

    kit.add(LaterTalker())
    assert kit[-1].is_async
    assert len(asyncio.run(kit[-1].run({}, ToolContext()))) < 400


def test_a_tool_in_a_toolkit_is_otherwise_what_it_was(kit: Toolkit) -> None:
    given = Talker(risk="network", timeout=3.0, idempotent=True, retries=2, sequential=True, strict=True)
    kit.add(given)
    taken = kit[-1]
    for name in ("name", "description", "risk", "timeout", "idempotent", "retries", "sequential", "strict", "can_run"):
        assert getattr(taken, name) == getattr(given, name)
    assert taken.spec.name == "talker"
    assert taken.check({"a": 1}) == {"a": 1}
    with pytest.raises(ConfigurationError, match="'talker' exists already"):
        kit.add(Talker())
    with pytest.raises(ConfigurationError, match="separate process"):
        kit.add(Talker(name="far", isolation="process"))
