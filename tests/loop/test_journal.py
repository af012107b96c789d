"""Journals: completed work is not repeated after a crash."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, computed_field
from typing_extensions import override

from agent import Agent, Hooks, Router, ToolContext, errors, tool
from agent.loop import (
    Change,
    Deny,
    Journal,
    JournalEntry,
    JournalError,
    MemoryJournal,
    RunResult,
    SqliteJournal,
    list_calls,
)
from agent.loop.run_state import INTERRUPTED
from agent.testing import Script, ScriptedTransport, SimulatedLoop, Simulation, TimedTool, scripted_agent
from agent.types import Message, ToolCall
from tests.loop.stories import check_history

Run = Callable[..., RunResult]


def call(id: str, name: str = "look", /, **arguments: Any) -> ToolCall:
    return ToolCall(id=id, name=name, arguments=arguments)


def outcomes(journal: Any, run_id: str = "r") -> dict[str, str]:
    return {record.id: record.outcome for record in list_calls(journal.read(run_id))}


def results(result: RunResult) -> list[str]:
    return [message.text for message in result.messages if message.role == "tool"]


@pytest.fixture(params=["run", "arun"])
def run(request: pytest.FixtureRequest) -> Run:
    """Sync and async."""

    def start(agent: Agent | Router, asked: Any = "Go.", **options: Any) -> RunResult:
        if request.param == "run":
            return agent.run(asked, **options)
        return asyncio.run(agent.arun(asked, **options))

    return start


@pytest.fixture(params=["memory", "sqlite"])
def journal(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    if request.param == "memory":
        yield MemoryJournal()
    else:
        kept = SqliteJournal(tmp_path / "runs.db")
        yield kept
        kept.close()


class Failing(MemoryJournal):
    """Fails at one key, once: before it has written that, or after."""

    def __init__(self, key: str, *, after: bool = False) -> None:
        super().__init__()
        self._key: str | None = key
        self._after = after

    @override
    def write(self, run_id: str, key: str, data: Mapping[str, Any]) -> bool:
        if key != self._key:
            return super().write(run_id, key, data)
        self._key = None
        if self._after:
            super().write(run_id, key, data)
        raise OSError("no space left on device")


# A run that is started again


def test_a_finished_run_is_not_run_again(run: Run, journal: Any) -> None:
    agent = Agent(
        "openai-chat:gpt-4o",
        api_key="k",
        transport=ScriptedTransport(Script(call("c1"), "Done.")),
        tools=[TimedTool("look")],
    )
    first = run(agent, run_id="r", journal=journal)
    again = run(scripted_agent(errors.BadRequestError("never called")), run_id="r", journal=journal)
    assert again.messages == first.messages
    assert (again.text, again.turns, again.run_id, again.stop_reason) == ("Done.", 2, "r", "stop")
    assert again.usage == first.usage
    assert again.cost_estimate == first.cost_estimate
    assert first.cost_estimate is not None
    assert [attempt.model for attempt in again.route] == ["gpt-4o"] * 2


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize(
    "key", ["request", "message:1", "message:2", "begun:c1", "begun:c2", "ended:c1", "ended:c2", "message:5", "end"]
)
def test_a_run_that_cannot_write_ends_with_an_error_and_goes_on_when_it_is_started_again(
    run: Run, key: str, after: bool
) -> None:
    kept = Failing(key, after=after)
    seen: list[str] = []

    @tool
    def look(context: ToolContext[None]) -> str:
        seen.append(context.call_id)
        return "a river"

    def agent() -> Agent:
        said = sum("response" in entry.data for entry in kept.read("r"))
        lines: list[Any] = [[call("c1"), call("c2")], "Done."]
        return scripted_agent(*lines[said:], tools=[look])

    with pytest.raises(JournalError, match="no space left") as raised:
        run(agent(), run_id="r", journal=kept)
    check_history(list(raised.value.result.messages))
    result = run(agent(), run_id="r", journal=kept)
    assert result.text == "Done."
    for id, text in zip(("c1", "c2"), results(result), strict=True):
        assert text in ("a river", INTERRUPTED)
        assert seen.count(id) == 1 if text == "a river" else seen.count(id) <= 1
    if not key.startswith(("begun", "ended")):
        assert outcomes(kept) == {"c1": "completed", "c2": "completed"}


def test_a_call_whose_beginning_cannot_be_written_is_not_made(run: Run) -> None:
    look = TimedTool("look")
    with pytest.raises(JournalError):
        run(scripted_agent(call("c1"), tools=[look]), run_id="r", journal=Failing("begun:c1"))
    assert look.calls == 0


def test_an_interrupted_call_is_reported_and_not_made_again(journal: Any) -> None:
    times: list[int] = []

    @tool
    def pay(amount: int) -> str:
        times.append(amount)
        if len(times) == 1:
            raise KeyboardInterrupt
        return "paid"

    with pytest.raises(KeyboardInterrupt):
        scripted_agent(call("c1", "pay", amount=5)).run("Pay.", tools=[pay], run_id="r", journal=journal)
    assert outcomes(journal) == {"c1": "interrupted"}
    result = scripted_agent("Did it work?").run("Pay.", tools=[pay], run_id="r", journal=journal)
    assert results(result) == [INTERRUPTED]
    assert result.messages[-2].parts[0].is_error  # type: ignore[union-attr]
    assert times == [5]
    assert outcomes(journal) == {"c1": "interrupted"}


def test_an_interrupted_call_that_does_no_harm_is_made_again_with_the_arguments_it_had(journal: Any) -> None:
    seen: list[int] = []

    @tool(idempotent=True)
    def put(amount: int) -> str:
        seen.append(amount)
        if len(seen) == 1:
            raise KeyboardInterrupt
        return "put"

    agent = scripted_agent(call("c1", "put", amount=5), "Done.", tools=[put])
    options: dict[str, Any] = {"run_id": "r", "journal": journal}
    with pytest.raises(KeyboardInterrupt):
        agent.run("Put.", before_tool_call=lambda call, context: Change({"amount": 6}), **options)
    result = agent.run("Put.", before_tool_call=lambda call, context: Deny("not again"), **options)
    assert results(result) == ["put"]
    assert seen == [6, 6]


def test_a_call_that_had_begun_is_interrupted_whatever_is_said_about_it_later(journal: Any) -> None:
    """It may have acted: to say that it was denied, or skipped because another failed, would be a lie."""

    @tool
    def fail() -> str:
        raise ValueError("broken")

    @tool
    def hang() -> str:
        end = time.monotonic() + 5.0
        while outcomes(journal).get("c1") != "failed" and time.monotonic() < end:
            time.sleep(0.002)
        raise KeyboardInterrupt

    calls = [call("c1", "fail"), call("c2", "hang")]
    options: dict[str, Any] = {
        "tools": [fail, hang],
        "run_id": "r",
        "journal": journal,
        "loop": {"stop_on_error": True},
    }
    with pytest.raises(KeyboardInterrupt):
        scripted_agent(calls).run("Go.", **options)
    with pytest.raises(errors.ToolExecutionError, match="broken"):
        scripted_agent().run("Go.", before_tool_call=lambda call, context: Deny("never"), **options)
    assert outcomes(journal) == {"c1": "failed", "c2": "interrupted"}


def test_a_run_goes_on_after_its_model_failed(run: Run, journal: Any) -> None:
    look = TimedTool("look")
    with pytest.raises(errors.BadRequestError):
        run(scripted_agent(call("c1"), errors.BadRequestError("no")), tools=[look], run_id="r", journal=journal)
    result = run(scripted_agent("Done."), tools=[look], run_id="r", journal=journal)
    assert [message.role.value for message in result.messages] == ["user", "assistant", "tool", "assistant"]
    assert look.calls == 1
    assert result.turns == 2


def test_retries_and_fallbacks_do_not_make_calls_again(run: Run, journal: Any) -> None:
    look = TimedTool("look")
    busy = scripted_agent(call("c1"), errors.OverloadedError("busy"), errors.OverloadedError("busy"), model="a")
    router = Router([busy, scripted_agent(call("c2"), "Done.", model="b")])
    result = run(router, tools=[look], run_id="r", journal=journal)
    assert result.text == "Done."
    assert look.calls == 2
    assert outcomes(journal) == {"c1": "completed", "c2": "completed"}


def test_another_question_under_the_same_id_is_refused(run: Run, journal: Any) -> None:
    run(scripted_agent("Hello!"), "Hi.", run_id="r", journal=journal)
    for asked in ("Bye.", [Message.user("Before."), Message.user("Hi.")]):
        with pytest.raises(errors.ConfigurationError, match="different request") as raised:
            run(scripted_agent(), asked, run_id="r", journal=journal)
        assert raised.value.field == "run_id"
    with pytest.raises(errors.ConfigurationError):
        run(scripted_agent(), "Hi.", system="Be brief.", run_id="r", journal=journal)
    assert run(scripted_agent(), "Hi.", run_id="another", journal=journal).text == "You said: Hi."
    assert run(scripted_agent(), [Message.user("Hi.")], run_id="r", journal=journal).text == "Hello!", "the same words"


def test_runs_have_nothing_to_do_with_each_other(run: Run, journal: Any) -> None:
    look = TimedTool("look")
    for number in range(3):
        run(scripted_agent(call("c1"), "Done."), tools=[look], run_id=f"r{number}", journal=journal)
    assert look.calls == 3


def test_an_agents_own_journal_and_one_that_is_async() -> None:
    class Slowly:
        def __init__(self) -> None:
            self._kept = MemoryJournal()

        async def read(self, run_id: str) -> Sequence[JournalEntry]:
            await asyncio.sleep(0)
            return self._kept.read(run_id)

        async def write(self, run_id: str, key: str, data: Mapping[str, Any]) -> bool:
            await asyncio.sleep(0)
            return self._kept.write(run_id, key, data)

    kept: Journal = Slowly()
    look = TimedTool("look")
    agent = scripted_agent(call("c1"), "Done.", tools=[look], hooks=Hooks(journal=kept))
    first = agent.run("Go.", run_id="r")
    assert asyncio.run(agent.arun("Go.", run_id="r")).messages == first.messages
    assert look.calls == 1


def test_everything_that_can_become_of_a_call_is_on_record(run: Run, journal: Any) -> None:
    @tool
    def fail() -> str:
        raise ValueError("broken")

    first = [call("c1"), call("c2", "fail"), call("c3", "unknown"), call("c4"), call("c5")]
    agent = scripted_agent(first, "Done.", tools=[TimedTool("look"), fail])
    steering = iter(["Stop."])
    result = run(
        agent, run_id="r", journal=journal, loop={"parallel_tool_execution": False, "max_tool_calls_per_iteration": 4},
        get_steering_messages=lambda: list(steering) if len(outcomes(journal)) == 3 else [],
        before_tool_call=lambda call, context: Deny("no") if call.id == "c1" else None,
    )  # fmt: skip
    assert result.text == "Done."
    assert outcomes(journal) == {
        "c1": "rejected", "c2": "failed", "c3": "rejected", "c4": "completed", "c5": "rejected",
    }  # fmt: skip
    records = list_calls(journal.read("r"))
    assert [record.name for record in records] == ["look", "fail", "unknown", "look", "look"]
    assert [(record.result or {})["content"] for record in records] == results(result)


def test_what_was_skipped_is_on_record(journal: Any) -> None:
    said = iter(["Stop."])
    agent = scripted_agent([call("c1"), call("c2")], "Stopped.", tools=[TimedTool("look", sequential=True)])
    agent.run("Go.", run_id="r", journal=journal, get_steering_messages=lambda: list(said))
    assert outcomes(journal) == {"c1": "completed", "c2": "skipped"}


# State besides the conversation


class Place(BaseModel):
    """An output with aliases and a computed default."""

    model_config = ConfigDict(strict=True, extra="forbid")

    name: str = Field(alias="place-name")
    at: tuple[float, float]

    @computed_field  # type: ignore[prop-decorator]
    @property
    def shout(self) -> str:
        return self.name.upper()


def test_typed_output_comes_back_as_what_it_was(run: Run, journal: Any) -> None:
    cases: list[tuple[Any, Any]] = [
        (Place, {"place-name": "Rome", "at": [41.9, 12.5]}),
        (list[Place], [{"place-name": "Rome", "at": [41.9, 12.5]}]),
        (TypeAdapter(dict[str, int]), {"a": 1}),
        ({"type": "object", "properties": {"a": {"type": "integer"}}}, {"a": 1}),
    ]
    for number, (schema, said) in enumerate(cases):
        options: dict[str, Any] = {"schema": schema, "run_id": f"r{number}", "journal": journal}
        first = run(scripted_agent(json.dumps(said)), **options)
        again = run(scripted_agent(errors.BadRequestError("never called")), **options)
        assert again.output == first.output
        assert type(again.output) is type(first.output)


def test_the_bill_of_sub_agents_comes_back(run: Run, journal: Any) -> None:
    def agent(*lines: Any) -> Agent:
        helper = scripted_agent("two words").as_tool("helper", "Helps.")
        return scripted_agent(*lines, tools=[helper])

    whole = run(agent(call("c1", "helper", task="Help."), "Done."), run_id="whole", journal=journal)
    with pytest.raises(errors.BadRequestError):
        run(agent(call("c1", "helper", task="Help."), errors.BadRequestError("no")), run_id="r", journal=journal)
    again = run(agent("Done."), run_id="r", journal=journal)
    assert again.usage == whole.usage
    assert len(again.route) == len(whole.route) == 3
    with pytest.raises(errors.BudgetExceededError, match="token_budget"):
        run(
            agent(call("c2", "helper", task="More."), "Done."),
            run_id="tight",
            journal=journal,
            loop={"token_budget": 9},
        )


def test_calls_that_bring_nothing_new_are_counted_over_all_lives(run: Run, journal: Any) -> None:
    look = TimedTool("look")
    limits = {"max_identical_calls": 3}
    for turn in range(2):
        with pytest.raises(errors.BadRequestError):
            script = scripted_agent(call(f"c{turn}"), errors.BadRequestError("no"))
            run(script, tools=[look], run_id="r", journal=journal, loop=limits)
    with pytest.raises(errors.BudgetExceededError, match="3 times"):
        run(scripted_agent(call("c2"), "Done."), tools=[look], run_id="r", journal=journal, loop=limits)


def test_calls_that_cannot_be_made_are_counted_over_all_lives(run: Run, journal: Any) -> None:
    for turn in range(2):
        with pytest.raises(errors.BadRequestError):
            script = scripted_agent(call(f"c{turn}", "unknown"), errors.BadRequestError("no"))
            run(script, run_id="r", journal=journal, loop={"max_repairs": 2})
    with pytest.raises(errors.ToolExecutionError, match="3 turns"):
        run(scripted_agent(call("c2", "unknown")), run_id="r", journal=journal, loop={"max_repairs": 2})


def test_a_name_that_is_none_is_none_in_the_next_life_as_well() -> None:
    kept = Failing("ended:c1")
    look_ = TimedTool("look_", "Is not meant.")
    with pytest.raises(JournalError):
        scripted_agent(call("c1", "look!")).run("Go.", tools=[look_], run_id="r", journal=kept)
    result = scripted_agent("Done.").run("Go.", tools=[look_], run_id="r", journal=kept)
    assert results(result) == ["There is no tool 'look!'. Available tools: look_."]
    assert look_.calls == 0


def test_limits_on_turns_and_tokens_hold_over_all_lives(run: Run, journal: Any) -> None:
    look = TimedTool("look")
    for turn in range(2):
        with pytest.raises(errors.BadRequestError):
            script = scripted_agent(call(f"c{turn}", n=turn), errors.BadRequestError("no"))
            run(script, tools=[look], run_id="r", journal=journal, loop={"max_iterations": 3})
    with pytest.raises(errors.BudgetExceededError, match="3 model calls"):
        run(scripted_agent(call("c2", n=2)), tools=[look], run_id="r", journal=journal, loop={"max_iterations": 3})
    assert look.calls == 2


def test_messages_with_roles_of_their_own_come_back(journal: Any) -> None:
    note = {"role": "note", "text": "remember", "when": {"hour": 5}}
    said = iter([[note]])
    options: dict[str, Any] = {
        "tools": [TimedTool("look")],
        "run_id": "r",
        "journal": journal,
        "get_follow_up_messages": lambda: next(said, []),
        "convert_to_llm": lambda messages: [m if isinstance(m, Message) else Message.user(m["text"]) for m in messages],
    }
    with pytest.raises(errors.BadRequestError):
        scripted_agent(call("c1"), "First.", errors.BadRequestError("no")).run("Go.", **options)
    script = Script("Second.")
    agent = Agent("scripted:m", transport=ScriptedTransport(script))
    assert agent.run("Go.", **options).text == "Second."
    assert script.requests[0]["messages"][-1]["content"] == "remember"


def test_ids_of_an_earlier_conversation_are_not_given_again(run: Run, journal: Any) -> None:
    look = TimedTool("look")
    options: dict[str, Any] = {"tools": [look], "journal": journal}
    first = run(scripted_agent(call(""), "Done."), run_id="r1", **options)
    before = [*first.messages, Message.user("Again.")]
    second = run(scripted_agent(call(""), "Done."), before, run_id="r2", **options)
    ids = [one.id for message in [*before, *second.messages] for one in message.tool_calls or ()]
    assert len(ids) == len(set(ids)) == 2


# Time


def test_nothing_begins_after_the_deadline(run: Run, journal: Any) -> None:
    look = TimedTool("look")

    def think(call: ToolCall, context: Any) -> None:
        time.sleep(0.15)

    with pytest.raises(errors.TimeoutError) as raised:
        run(scripted_agent(call("c1")), tools=[look], before_tool_call=think, deadline=0.1, run_id="r", journal=journal)
    assert raised.value.deadline
    assert look.calls == 0
    assert outcomes(journal) == {}


def test_a_call_that_the_deadline_cuts_off_did_not_fail(journal: Any) -> None:
    for seed in range(20):  # which of two things at the same moment comes first is a matter of luck
        run_id = f"r{seed}"
        simulation = Simulation(Script(call("c1")), seed=seed)
        agent = Agent("openai-chat:m", api_key="k", base_url="http://127.0.0.1/v1")
        look = TimedTool("look", after=60.0, retries=3)
        loop = SimulatedLoop(simulation, agent, "Go.", tools=[look], deadline=5.0, run_id=run_id, journal=journal)
        with pytest.raises(errors.TimeoutError):
            _ = list(loop) and loop.result
        assert outcomes(journal, run_id) == {"c1": "interrupted"}
        assert look.calls == 1


# Files


def test_a_path_that_cannot_be_used_is_an_error_at_once(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="cannot be used"):
        SqliteJournal(tmp_path)
    with pytest.raises(JournalError, match="cannot be used"):
        SqliteJournal(tmp_path / "nowhere" / "runs.db")
    broken = tmp_path / "broken.db"
    broken.write_bytes(b"This is no database, but it is long enough to be looked at as one. " * 100)
    with pytest.raises(JournalError, match="not a database"):
        SqliteJournal(broken)


def test_a_damaged_file_is_an_error_and_nothing_is_run(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "runs.db"
    kept = SqliteJournal(file)
    look = TimedTool("look")
    with pytest.raises(errors.BadRequestError):
        run(scripted_agent(call("c1"), errors.BadRequestError("no")), tools=[look], run_id="r", journal=kept)
    with sqlite3.connect(file) as connection:
        connection.execute("UPDATE entries SET data = '{\"half' WHERE key = 'message:2'")
    connection.close()
    with pytest.raises(JournalError, match="damaged"):
        run(scripted_agent("Done."), tools=[look], run_id="r", journal=kept)
    kept.close()
    whole = file.read_bytes()
    file.write_bytes(whole[:4096] + os.urandom(len(whole) - 4096))
    with pytest.raises(JournalError):
        run(scripted_agent("Done."), tools=[look], run_id="r", journal=SqliteJournal(file))
    assert look.calls == 1


@pytest.mark.parametrize(
    "change", ["data = replace(data, 'paid', 'free')", "key = 'ended:2'", "checksum = NULL", "run = 'r'"]
)
def test_every_changed_entry_is_detected(change: str, tmp_path: Path) -> None:
    kept = SqliteJournal(tmp_path / "runs.db")
    kept.write("r" if change != "run = 'r'" else "q", "ended:1", {"outcome": "paid"})
    kept.close()
    with sqlite3.connect(tmp_path / "runs.db") as connection:
        connection.execute(f"UPDATE entries SET {change}")
    connection.close()
    with pytest.raises(JournalError, match="wrong checksum"):
        kept.read("r")
    kept.close()


def test_a_file_of_the_first_version_is_migrated(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "runs.db") as connection:
        connection.executescript(
            "CREATE TABLE entries (place INTEGER PRIMARY KEY AUTOINCREMENT, run TEXT NOT NULL, key TEXT NOT NULL,"
            " data TEXT NOT NULL, UNIQUE (run, key));"
            "INSERT INTO entries (run, key, data) VALUES ('r', 'k', '{\"ä\":1}');"
            "PRAGMA user_version = 1"
        )
    connection.close()
    for _ in range(2):
        kept = SqliteJournal(tmp_path / "runs.db")
        assert [(entry.key, entry.data) for entry in kept.read("r")] == [("k", {"ä": 1})]
        kept.close()


def test_a_file_of_a_newer_version_is_left_alone(tmp_path: Path) -> None:
    SqliteJournal(tmp_path / "runs.db").close()
    with sqlite3.connect(tmp_path / "runs.db") as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(JournalError, match="newer version"):
        SqliteJournal(tmp_path / "runs.db")


def test_what_cannot_be_read_back_is_an_error(run: Run) -> None:
    kept = MemoryJournal()
    run(scripted_agent('{"a": 1}'), schema=dict[str, int], run_id="r", journal=kept)
    with pytest.raises(errors.ConfigurationError, match="schema"):
        run(scripted_agent(), schema=list[int], run_id="r", journal=kept)
    assert run(scripted_agent(), run_id="r", journal=kept).output == {"a": 1}
    kept.write("s", "request", kept.read("r")[0].data)
    kept.write("s", "message:1", {"message": {"role": "unknown"}})
    with pytest.raises(JournalError, match="cannot be read"):
        run(scripted_agent(), run_id="s", journal=kept)


def test_a_locked_file_is_an_error_and_nothing_is_run(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda path, timeout, **options: real(path, timeout=0.05, **options))
    kept = SqliteJournal(tmp_path / "runs.db")
    look = TimedTool("look")
    holder = real(tmp_path / "runs.db", isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with pytest.raises(JournalError, match="locked"):
        run(scripted_agent(call("c1")), tools=[look], run_id="r", journal=kept)
    holder.execute("ROLLBACK")
    holder.close()
    assert run(scripted_agent(call("c1"), "Done."), tools=[look], run_id="r", journal=kept).text == "Done."
    kept.close()


def test_a_journal_lists_and_forgets_its_runs(tmp_path: Path) -> None:
    with_runs = SqliteJournal(tmp_path / "runs.db")
    for run_id in ("b", "a", "c"):
        with_runs.write(run_id, "request", {})
        with_runs.write(run_id, "end", {"nested": [1, None, "ü\ud800"]})
    assert with_runs.runs() == ["b", "a", "c"]
    with_runs.forget("a")
    with_runs.close()
    assert with_runs.runs() == ["b", "c"], "it is opened again when it is needed"
    assert with_runs.read("b")[1].data == {"nested": [1, None, "ü\ud800"]}
    assert with_runs.read("a") == []
    with_runs.close()


def test_of_many_threads_and_connections_one_writes(tmp_path: Path) -> None:
    journals = [SqliteJournal(tmp_path / "runs.db") for _ in range(4)]
    written: list[tuple[int, int]] = []

    def work(number: int) -> None:
        for place in range(20):
            if journals[number % 4].write("r", f"message:{place}", {"by": number}):
                written.append((place, number))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(place for place, _ in written) == list(range(20))
    assert {(int(e.key.removeprefix("message:")), e.data["by"]) for e in journals[0].read("r")} == set(written)
    for journal in journals:
        journal.close()
