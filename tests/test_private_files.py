"""New files with conversations are readable by their owner only; existing files keep their mode."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agent import tool
from agent.batch import run_file
from agent.cli.chat.records import write_transcript
from agent.graph import DAG
from agent.loop import SqliteJournal
from agent.middleware import SqliteResponseStore
from agent.stores import SqliteStore
from agent.testing import scripted_agent
from agent.types import ToolCall

DIALOG = DAG().user("Hello").assistant("Hi")


@pytest.fixture(autouse=True)
def open_umask() -> Iterator[None]:
    previous = os.umask(0)
    yield
    os.umask(previous)


def modes(folder: Path) -> dict[str, int]:
    return {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}


@tool
def look() -> str:
    """Look around."""
    return "a secret"


def keep_journal(path: Path) -> object:
    journal = SqliteJournal(path)
    scripted_agent(ToolCall(id="1", name="look"), "Done.").run("x", tools=[look], run_id="r", journal=journal)
    return journal


def keep_session(path: Path) -> object:
    store = SqliteStore(path)
    scripted_agent("Hi").session("s", store=store).complete("Hello")
    return store


def keep_answers(path: Path) -> object:
    cache = SqliteResponseStore(path)
    cache.put("key", "answer", 0.0, None)
    return cache


def answer_batch(path: Path) -> None:
    source = path.with_name("in")
    source.write_text('"one"\n{"nonsense": 1}\n')
    run_file(scripted_agent("Hi"), source, path)
    source.unlink()


WRITERS: dict[str, tuple[Callable[[Path], object], set[str]]] = {
    "journal": (keep_journal, {"file", "file-wal", "file-shm"}),
    "session store": (keep_session, {"file", "file-wal", "file-shm"}),
    "cache": (keep_answers, {"file", "file-wal", "file-shm"}),
    "batch": (answer_batch, {"file", "file.failed.jsonl"}),
    "graph": (DIALOG.save, {"file"}),
    "page": (DIALOG.save_html, {"file"}),
}


@pytest.mark.parametrize("writer", WRITERS)
def test_a_new_file_with_conversations_is_for_its_owner_only(writer: str, tmp_path: Path) -> None:
    write, names = WRITERS[writer]
    kept = write(tmp_path / "file")  # held: SQLite removes its other files with the last connection
    assert modes(tmp_path) == dict.fromkeys(names, 0o600)
    del kept


@pytest.mark.parametrize("ending", ["md", "txt", "json", "html"])
def test_an_exported_session_is_for_its_owner_only(ending: str, tmp_path: Path) -> None:
    write_transcript(tmp_path / f"file.{ending}", DIALOG, id="s", title="A talk")
    assert modes(tmp_path) == {f"file.{ending}": 0o600}


@pytest.mark.parametrize("writer", ["journal", "session store", "cache", "batch", "graph", "page"])
def test_an_existing_file_keeps_its_mode(writer: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch(0o644)
    kept = WRITERS[writer][0](path)
    assert modes(tmp_path)["file"] == 0o644
    del kept
