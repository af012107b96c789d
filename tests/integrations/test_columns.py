"""Requests in columns: answers, errors, the ledger and what is refused."""

from __future__ import annotations

import errno
import json
import os
import pickle
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from pydantic import BaseModel

from agent import Agent, Router
from agent.batch import BatchFileError
from agent.engine.wire import WireRequest
from agent.errors import AuthenticationError, BadRequestError, ConfigurationError
from agent.integrations import ColumnRunner, RowLedger, _workers
from agent.integrations.ray import run_dataset
from agent.testing import Answer, LoopbackServer, Script, VendorScript


class City(BaseModel):
    name: str
    population: int


class Vendor:
    """Counts what is sent, and refuses some of it."""

    def __init__(self) -> None:
        self.sent: Counter[str] = Counter()

    def __call__(self, request: WireRequest) -> Answer:
        text: str = json.loads(request.body)["messages"][-1]["content"]
        self.sent[text] += 1
        if "refuse" in text:
            return Script(BadRequestError("refused"))(request)
        answer = Script()(request)
        answer.after = 0.01
        return answer


@pytest.fixture
def vendor(monkeypatch: pytest.MonkeyPatch) -> Iterator[Vendor]:
    """A vendor whose address and key are in the environment, as in the processes of an engine."""
    network = Vendor()
    with LoopbackServer(network) as server:
        monkeypatch.setenv("ENGINE_TEST_URL", f"{server.url}/v1")
        yield network
    _workers.clear()


def connect() -> Agent:
    return Agent("openai-chat:gpt-4o", api_key="sk-secret-of-a-worker", base_url=os.environ["ENGINE_TEST_URL"])


def test_columns_go_in_and_the_answers_come_out(vendor: Vendor) -> None:
    table = ColumnRunner(connect, "question")({"id": [1, 2], "question": ["one", "two"]})
    assert table["id"] == [1, 2]
    assert table["answer"] == ["You said: one", "You said: two"]
    assert table["error"] == [None, None]
    assert all(tokens > 0 for tokens in table["input_tokens"])
    assert all(0 < cost < 0.01 for cost in table["cost"])


def test_an_empty_batch_has_the_columns_too() -> None:
    runner = ColumnRunner("scripted:test", "question", prefix="llm_")
    assert runner({"question": []}) == {"question": [], **{name: [] for name in runner.columns}}


def test_conversations_and_typed_outputs_are_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    with LoopbackServer(VendorScript()) as server:
        monkeypatch.setenv("ENGINE_TEST_URL", f"{server.url}/v1")
        runner = ColumnRunner(connect, messages_column="chat", schema=City, temperature=0.5)
        table = runner({"chat": [[{"role": "user", "content": "Tell me about Paris."}]]})
    assert table["error"] == [None]
    assert City.model_validate(table["output"][0]).name


def test_a_failed_row_has_an_error_and_the_others_have_answers(vendor: Vendor) -> None:
    table = ColumnRunner(connect, "question")({"question": ["one", "refuse this", ""]})
    assert table["answer"] == ["You said: one", None, None]
    assert table["error"][0] is None
    assert table["error"][1].startswith("BadRequestError: refused")
    assert table["error"][2].startswith("ConfigurationError: ")


def test_a_runner_is_picklable_and_holds_no_key(vendor: Vendor) -> None:
    runner = ColumnRunner(connect, "question")
    assert runner({"question": ["one"]})["error"] == [None]
    stored = pickle.dumps(runner)
    assert b"sk-secret" not in stored
    assert pickle.loads(stored)({"question": ["two"]})["answer"] == ["You said: two"]


def test_batches_in_several_threads_share_the_concurrency(vendor: Vendor, monkeypatch: pytest.MonkeyPatch) -> None:
    most = 0

    def count(request: WireRequest) -> Answer:
        nonlocal most
        most = max(most, server.open_connections)
        return vendor(request)

    with LoopbackServer(count) as server:
        monkeypatch.setenv("ENGINE_TEST_URL", f"{server.url}/v1")
        runner = ColumnRunner(connect, "question", concurrency=4)
        threads = [Thread(target=runner, args=({"question": [f"{n} {i}" for i in range(20)]},)) for n in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert vendor.sent.total() == 60
    assert most == 4


def test_answered_rows_are_not_sent_again(vendor: Vendor, tmp_path: Path) -> None:
    rows = {"question": ["one", "two", "refuse it"]}
    first = ColumnRunner(connect, "question", ledger=tmp_path)(rows)
    again = ColumnRunner(connect, "question", ledger=tmp_path)(rows)  # another process would do the same
    assert again == first
    assert vendor.sent == {"one": 1, "two": 1, "refuse it": 2}
    other = ColumnRunner(connect, "question", ledger=tmp_path, temperature=0.1)(rows)
    assert other["answer"] == first["answer"]
    assert vendor.sent["one"] == 2, "another request, another answer"
    progress = RowLedger(tmp_path)
    progress.refresh()
    assert (progress.progress.done, progress.progress.failed) == (6, 2)
    assert progress.progress.known_cost > 0
    assert all(file.stat().st_mode & 0o077 == 0 for file in tmp_path.iterdir()) or sys.platform == "win32"


def test_a_key_tells_equal_rows_apart(vendor: Vendor, tmp_path: Path) -> None:
    for ids in ([1, 2], [2, 3]):
        runner = ColumnRunner(connect, "question", key_column="id", ledger=tmp_path)
        assert runner({"id": ids, "question": ["same", "same"]})["error"] == [None, None]
    assert vendor.sent == {"same": 3}


def test_a_row_that_was_half_written_is_sent_again(vendor: Vendor, tmp_path: Path) -> None:
    ColumnRunner(connect, "question", ledger=tmp_path)({"question": ["one", "two"]})
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[:-5])
    ColumnRunner(connect, "question", ledger=tmp_path)({"question": ["one", "two"]})
    assert sorted(vendor.sent.values()) == [1, 2]


def test_a_foreign_file_in_the_ledger_is_an_error_that_names_it(vendor: Vendor, tmp_path: Path) -> None:
    (tmp_path / "notes.jsonl").write_text('{"a": 1}\n')
    with pytest.raises(ConfigurationError, match=r"notes\.jsonl has a line at byte 0") as caught:
        ColumnRunner(connect, "question", ledger=tmp_path)({"question": ["one"]})
    assert caught.value.field == "ledger"


def test_a_full_disk_is_a_typed_error(vendor: Vendor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    runner = ColumnRunner(connect, "question", ledger=tmp_path)
    runner({"question": ["one"]})
    monkeypatch.setattr(os, "write", fail)
    with pytest.raises(BatchFileError, match="No space left") as caught:
        runner({"question": ["two"]})
    monkeypatch.undo()
    assert caught.value.code == "ENOSPC"
    (file,) = tmp_path.iterdir()
    assert file.read_bytes().count(b"\n") == 1


def test_a_missing_key_is_one_error_and_not_one_per_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(AuthenticationError):
        ColumnRunner("openai-chat:gpt-4o", "question")({"question": ["one"]})


def test_a_router_answers_rows_too() -> None:
    table = ColumnRunner(lambda: Router(["scripted:a", "scripted:b"]), "question")({"question": ["one"]})
    assert table["answer"] == ["You said: one"]


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"client": Agent("scripted:a"), "text_column": "q"}, "client"),
        ({"client": "scripted:a"}, "text_column"),
        ({"client": "scripted:a", "text_column": "q", "messages_column": "m"}, "text_column"),
        ({"client": "scripted:a", "text_column": "q", "concurrency": 0}, "concurrency"),
        ({"client": "scripted:a", "text_column": "q", "api_key": "sk-1"}, "api_key"),
        ({"client": "scripted:a", "text_column": "q", "headers": {"Authorization": "x"}}, "headers"),
        ({"client": "scripted:a", "text_column": "q", "temprature": 1}, "temprature"),
        ({"client": "scripted:a", "text_column": "q", "temperature": "hot"}, "temperature"),
    ],
)
def test_invalid_arguments_are_refused_by_name(arguments: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        ColumnRunner(**arguments)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("columns", "field"), [({"q": ["x"]}, "question"), ({"question": ["x"], "answer": ["y"]}, "prefix")]
)
def test_columns_that_are_missing_or_taken_are_named(columns: dict[str, list[str]], field: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        ColumnRunner("scripted:a", "question")(columns)
    assert caught.value.field == field


def test_without_ray_a_typed_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigurationError, match="Ray, which is not installed") as caught:
        run_dataset(object(), ColumnRunner("scripted:a", "question"))
    assert caught.value.fix == 'pip install "agent-llm-router[ray]"'
