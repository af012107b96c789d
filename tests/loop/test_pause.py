"""Paused runs: they stop, are stored, and resume elsewhere without a difference."""

from __future__ import annotations

import asyncio
import base64
import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from typing_extensions import override

from agent import Agent, Router, ToolContext, ToolError, errors, tool
from agent.loop import Allow, Ask, Change, Deny, MemoryJournal, PausedRun, RunResult, SqliteJournal, list_calls
from agent.testing import Script, ScriptedTransport, TimedTool, VendorScript, scripted_agent
from agent.types import AgentResponse, ImageContent, Message, TextContent, ThinkingContent, ToolCall, ToolSpec
from tests.loop.stories import check_history, story
from tests.support.drivers import Driver

Run = Callable[..., RunResult]
PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
)


def call(id: str, name: str = "pay", /, **arguments: Any) -> ToolCall:
    return ToolCall(id=id, name=name, arguments=arguments)


def reload_paused(result: RunResult) -> PausedRun:
    """After it has been written down and read."""
    assert result.paused is not None
    assert result.stop_reason == "pause"
    return PausedRun.from_json(result.paused.to_json())


def results(result: RunResult) -> list[str]:
    return [message.text for message in result.messages if message.role == "tool"]


@pytest.fixture(params=["run", "arun", "run_stream", "arun_stream"])
def run(request: pytest.FixtureRequest) -> Run:
    """All four ways to run."""

    def start(agent: Agent | Router, asked: Any = "Go.", **options: Any) -> RunResult:
        match request.param:
            case "run":
                return agent.run(asked, **options)
            case "arun":
                return asyncio.run(agent.arun(asked, **options))
            case "run_stream":
                return agent.run_stream(asked, **options).collect()
            case _:
                return asyncio.run(collect(agent, asked, options))

    async def collect(agent: Agent | Router, asked: Any, options: dict[str, Any]) -> RunResult:
        return await agent.arun_stream(asked, **options).collect()

    return start


class Till:
    """A tool that remembers what was paid."""

    def __init__(self) -> None:
        self.paid: list[int] = []

        @tool
        def pay(amount: int) -> str:
            """Pays."""
            self.paid.append(amount)
            return f"paid {amount}"

        self.pay = pay


def ask_about(*ids: str) -> Callable[[ToolCall, Any], Any]:
    return lambda call, context: Ask(f"{call.id}?") if call.id in ids else None


THREE = [call("c1", amount=1), call("c2", amount=2), call("c3", amount=3)]


# Decisions


def test_the_other_calls_are_made_and_the_run_waits(run: Run) -> None:
    till = Till()
    result = run(scripted_agent(THREE, "Done."), tools=[till.pay], before_tool_call=ask_about("c2"))
    assert sorted(till.paid) == [1, 3]
    kept = reload_paused(result)
    assert [(one.id, one.name, one.reason, one.kind) for one in kept.pending] == [("c2", "pay", "c2?", "approval")]
    assert kept.pending[0].arguments == {"amount": 2}
    assert kept.undecided == kept.pending
    assert result.text is None
    assert result.usage is not None
    assert result.turns == 1


@pytest.mark.parametrize(
    ("decide", "said", "paid"),
    [
        (lambda one: one.approve(), Allow(), [1, 2, 3]),
        (lambda one: one.approve("c2"), Allow(), [1, 2, 3]),
        (lambda one: one.approve("c2", arguments={"amount": 20}), Change({"amount": 20}), [1, 3, 20]),
        (lambda one: one.approve("c2", arguments={"amount": "much"}), Change({"amount": "much"}), [1, 3]),
        (lambda one: one.deny(), Deny(), [1, 3]),
        (lambda one: one.deny("c2", reason="too much"), Deny("too much"), [1, 3]),
    ],
)
def test_it_goes_on_as_if_it_had_never_stopped(run: Run, decide: Any, said: Any, paid: list[int]) -> None:
    whole, stopped = Till(), Till()
    expected = run(
        scripted_agent(THREE, "Done."),
        tools=[whole.pay],
        before_tool_call=lambda call, context: said if call.id == "c2" else None,
    )
    first = run(scripted_agent(THREE), tools=[stopped.pay], before_tool_call=ask_about("c2"))
    decided = PausedRun.from_json(decide(reload_paused(first)).to_json())
    result = run(scripted_agent("Done."), decided, tools=[stopped.pay], before_tool_call=ask_about("c2"))
    assert sorted(stopped.paid) == sorted(whole.paid) == paid
    assert result.messages == expected.messages
    assert (result.text, result.usage, result.turns) == (expected.text, expected.usage, expected.turns)
    assert (result.stop_reason, result.paused) == ("stop", None)
    assert result.run_id == first.run_id
    assert len(result.route) == len(expected.route) == 2
    check_history(list(result.messages))


def test_a_person_may_bring_the_result(run: Run) -> None:
    till = Till()
    first = run(scripted_agent(THREE), tools=[till.pay], before_tool_call=ask_about("c2"))
    result = run(scripted_agent("Done."), reload_paused(first).answer("c2", {"paid": "in cash"}), tools=[till.pay])
    assert results(result) == ["paid 1", '{"paid":"in cash"}', "paid 3"]
    assert sorted(till.paid) == [1, 3]


def test_pictures_are_results_too(run: Run) -> None:
    first = run(scripted_agent(call("c1", "draw")), tools=[ToolSpec(name="draw")])
    answered = reload_paused(first).answer("c1", [TextContent(text="a dot"), ImageContent(image_data=PNG)])
    result = run(scripted_agent("Nice."), PausedRun.from_json(answered.to_json()), tools=[ToolSpec(name="draw")])
    part = result.messages[2].parts[0]
    assert [one.type for one in part.content] == ["text", "image"]  # type: ignore[union-attr]
    assert part.content[1].image_data == PNG  # type: ignore[union-attr]


def test_calls_that_nobody_decided_wait_again(run: Run) -> None:
    till = Till()
    hook = ask_about("c1", "c3")
    first = run(scripted_agent(THREE), tools=[till.pay], before_tool_call=hook)
    assert till.paid == [2]
    second = run(scripted_agent(), reload_paused(first).approve("c3"), tools=[till.pay], before_tool_call=hook)
    assert till.paid == [2, 3]
    assert [one.id for one in reload_paused(second).pending] == ["c1"]
    assert second.turns == 1
    result = run(scripted_agent("Done."), reload_paused(second).deny("c1"), tools=[till.pay], before_tool_call=hook)
    assert results(result) == ["The call was denied.", "paid 2", "paid 3"]
    assert till.paid == [2, 3]


def test_a_run_may_wait_in_every_turn(run: Run) -> None:
    till = Till()
    hook = ask_about("c1", "d1")
    first = run(scripted_agent(call("c1", amount=1)), tools=[till.pay], before_tool_call=hook)
    second = run(
        scripted_agent(call("d1", amount=2)), reload_paused(first).approve(), tools=[till.pay], before_tool_call=hook
    )
    result = run(scripted_agent("Done."), reload_paused(second).approve(), tools=[till.pay], before_tool_call=hook)
    assert till.paid == [1, 2]
    assert result.turns == 3
    assert [message.role.value for message in result.messages] == [
        "user", "assistant", "tool", "assistant", "tool", "assistant",
    ]  # fmt: skip


def test_calls_one_by_one_wait_for_each_other(run: Run) -> None:
    """Later calls may depend on earlier ones."""
    till = Till()
    options: dict[str, Any] = {
        "tools": [till.pay],
        "before_tool_call": ask_about("c2"),
        "loop": {"parallel_tool_execution": False},
    }
    first = run(scripted_agent(THREE), **options)
    assert till.paid == [1]
    assert [one.id for one in reload_paused(first).pending] == ["c2"]
    result = run(scripted_agent("Done."), reload_paused(first).approve(), **options)
    assert till.paid == [1, 2, 3]
    assert results(result) == ["paid 1", "paid 2", "paid 3"]


def test_what_is_refused_anyway_is_refused_while_others_wait(run: Run) -> None:
    till = Till()
    calls = [call("c1", amount=1), call("c2", amount="much"), call("c3", "unknown")]
    options: dict[str, Any] = {"tools": [till.pay], "before_tool_call": ask_about("c1")}
    first = run(scripted_agent(calls), **options, loop={"parallel_tool_execution": False})
    assert len(reload_paused(first).results) == 2
    result = run(scripted_agent("Done."), reload_paused(first).approve(), **options)
    assert [text.split(":")[0] for text in results(result)] == [
        "paid 1",
        "Invalid arguments",
        "There is no tool 'unknown'. Available tools",
    ]


def test_tools_without_a_function_are_answered_by_the_caller(run: Run) -> None:
    outside = ToolSpec(name="outside", description="Elsewhere.", parameters={"type": "object"})
    till = Till()
    first = run(scripted_agent([call("c1", "outside", q=1), call("c2", amount=2)]), tools=[outside, till.pay])
    kept = reload_paused(first)
    assert [(one.id, one.kind) for one in kept.pending] == [("c1", "external")]
    assert kept.approve().verdicts == {}, "an approval is no result"
    again = run(scripted_agent(), kept.approve("c1"), tools=[outside, till.pay])
    result = run(scripted_agent("Done."), reload_paused(again).answer("c1", "brought"), tools=[outside, till.pay])
    assert results(result) == ["brought", "paid 2"]
    assert till.paid == [2]
    assert run(scripted_agent("Done."), kept.deny("c1"), tools=[outside, till.pay]).text == "Done."


def test_ids_that_do_not_wait_are_refused() -> None:
    result = scripted_agent(THREE).run("Go.", tools=[Till().pay], before_tool_call=ask_about("c2"))
    kept = reload_paused(result)
    decisions: list[Callable[[], PausedRun]] = [
        lambda: kept.approve("c1"),
        lambda: kept.approve("c2", "unknown"),
        lambda: kept.deny("c9"),
        lambda: kept.answer("", 1),
        lambda: kept.approve(arguments={"amount": 1}),
    ]
    for decide in decisions:
        with pytest.raises(errors.ConfigurationError) as raised:
            decide()
        assert raised.value.field == "ids"
        assert raised.value.fix
    assert kept.verdicts == {}, "a paused run is a value"


def test_the_last_word_counts(run: Run) -> None:
    till = Till()
    first = run(scripted_agent(call("c1", amount=1)), tools=[till.pay], before_tool_call=ask_about("c1"))
    run(scripted_agent("Done."), reload_paused(first).approve().deny("c1"), tools=[till.pay])
    assert till.paid == []


# Preserved state


def test_the_events_of_both_parts_are_whole(drive: Driver) -> None:
    till = Till()
    hook = ask_about("c2")
    first = drive.run(Script(THREE), tools=[till.pay], asked={"before_tool_call": hook})
    decided = reload_paused(first.ok).approve()
    second = drive.run(Script("Done."), decided, tools=[till.pay], asked={"before_tool_call": hook})
    lines = [line for line in story(first.events) if not line.startswith("message_update")]
    assert lines[-2:] == ["turn_end 1 results", "agent_end 3 messages"]
    assert sum(line.startswith("tool_execution_end") for line in lines) == 2
    assert [line for line in story(second.events) if not line.startswith("message_update")] == [
        "agent_start",
        "turn_start",
        "tool_execution_start c2 pay",
        "tool_execution_end c2 paid 2",
        "message_start tool",
        "message_end tool",
        "message_start tool",
        "message_end tool",
        "turn_end 3 results",
        "turn_start",
        "message_start assistant",
        "message_end assistant",
        "turn_end 0 results",
        "agent_end 6 messages",
    ]


def test_pictures_thoughts_and_signatures_survive(drive: Driver) -> None:
    """And the vendor, who signed its thoughts, takes them back."""
    thought = ThinkingContent(thinking="Hm.", signature="signed")
    network = VendorScript(
        AgentResponse(content=(thought, TextContent(text="I will pay."), call("c1", amount=1))), "Done.", strict=True
    )
    asked = [Message.user([TextContent(text="Pay this."), ImageContent(image_data=PNG, media_type="image/png")])]
    till = Till()
    options: dict[str, Any] = {"agent": "anthropic:claude-sonnet-4-5", "tools": [till.pay]}
    first = drive.run(network, asked, asked={"before_tool_call": ask_about("c1")}, **options)
    kept = reload_paused(first.ok)
    assert kept.messages[0].parts[1].image_data == PNG
    second = drive.run(network, kept.approve(), **options)
    assert second.ok.text == "Done."
    assert not network.refusals
    sent = json.loads(second.requests[0].body)["messages"]
    assert sent[0]["content"][1]["source"]["type"] == "base64"
    assert sent[1]["content"][0] == {"type": "thinking", "thinking": "Hm.", "signature": "signed"}


def test_messages_with_roles_of_their_own_survive(run: Run) -> None:
    note = {"role": "note", "text": "be quick"}
    options: dict[str, Any] = {
        "tools": [Till().pay],
        "convert_to_llm": lambda messages: [m if isinstance(m, Message) else Message.user(m["text"]) for m in messages],
    }
    said = {"history": [Message.user("Before."), note], "prompts": [note, Message.user("Go.")]}
    first = run(scripted_agent(call("c1", amount=1)), "", before_tool_call=ask_about("c1"), **said, **options)
    script = Script("Done.")
    result = run(Agent("scripted:m", transport=ScriptedTransport(script)), reload_paused(first).approve(), **options)
    assert [message["content"] for message in script.requests[0]["messages"][:4]] == [
        "Before.",
        "be quick",
        "be quick",
        "Go.",
    ]
    assert [message.text for message in result.messages if message.role == "user"] == ["Go."]


def test_dependencies_are_given_again(run: Run) -> None:
    seen: list[Any] = []

    @tool
    def look(context: ToolContext[Any]) -> str:
        seen.append(context.deps)
        return "seen"

    first = run(scripted_agent(call("c1", "look")), tools=[look], deps="old", before_tool_call=ask_about("c1"))
    run(scripted_agent("Done."), reload_paused(first).approve(), tools=[look], deps=["new"])
    assert seen == [["new"]]


class Receipt(BaseModel):
    amount: int


def test_the_schema_is_given_again_or_the_output_is_plain(run: Run) -> None:
    till = Till()
    asked: dict[str, Any] = {"tools": [till.pay], "schema": Receipt, "before_tool_call": ask_about("c1")}
    first = run(scripted_agent(call("c1", amount=1)), **asked)
    kept = reload_paused(first).approve()
    assert run(scripted_agent('{"amount": 1}'), kept, tools=[till.pay], schema=Receipt).output == Receipt(amount=1)
    assert run(scripted_agent('{"amount": 1}'), kept, tools=[till.pay]).output == {"amount": 1}


def test_settings_of_the_request_are_kept_and_can_be_changed(run: Run) -> None:
    till = Till()
    first = run(
        scripted_agent(call("c1", amount=1)), tools=[till.pay], system="Be brief.", temperature=0.5,
        before_tool_call=ask_about("c1"),
    )  # fmt: skip
    kept = reload_paused(first).approve()
    for changes, temperature in (({}, 0.5), ({"temperature": 1.0}, 1.0)):
        script = Script("Done.")
        agent = Agent("scripted:m", transport=ScriptedTransport(script), tools=[till.pay])
        run(agent, kept, **changes)
        body = script.requests[0]
        assert body["temperature"] == temperature
        assert body["messages"][0]["content"] == "Be brief."
        assert [one["function"]["name"] for one in body["tools"]] == ["pay"]


def test_a_router_pauses_and_goes_on(run: Run) -> None:
    till = Till()
    hook = ask_about("c2")

    def router(*lines: Any) -> Router:
        return Router([scripted_agent(errors.OverloadedError("busy"), model="a"), scripted_agent(*lines, model="b")])

    first = run(router(THREE), tools=[till.pay], before_tool_call=hook)
    result = run(router("Done."), reload_paused(first).approve(), tools=[till.pay], before_tool_call=hook)
    assert result.text == "Done."
    assert sorted(till.paid) == [1, 2, 3]
    assert [attempt.model for attempt in result.route] == ["a", "b", "a", "b"]


def test_limits_hold_over_both_parts(run: Run) -> None:
    till = Till()
    hook = ask_about("c1")
    calls = [call("c1", amount=1)]
    first = run(scripted_agent(calls), tools=[till.pay], before_tool_call=hook, loop={"max_iterations": 2})
    kept = reload_paused(first).approve()
    second = scripted_agent(call("c2", amount=1), "Done.")
    with pytest.raises(errors.BudgetExceededError, match="2 model calls"):
        run(second, kept, tools=[till.pay], loop={"max_iterations": 2})
    assert till.paid == [1]


def test_what_brings_nothing_new_is_counted_over_both_parts(run: Run) -> None:
    look = TimedTool("look")
    hook = ask_about("c2")
    first = run(
        scripted_agent(call("c0", "look"), call("c1", "look"), call("c2", "look")), tools=[look], before_tool_call=hook
    )
    with pytest.raises(errors.BudgetExceededError, match="3 times with the same arguments"):
        run(scripted_agent("Done."), reload_paused(first).approve(), tools=[look])


def test_a_failure_before_the_pause_still_ends_a_run_that_must_not_fail(run: Run) -> None:
    @tool
    def fail() -> str:
        raise ToolError("broken")

    till = Till()
    calls = [call("c1", "fail"), call("c2", amount=2)]
    options: dict[str, Any] = {
        "tools": [fail, till.pay],
        "before_tool_call": ask_about("c2"),
        "loop": {"stop_on_error": True},
    }
    first = run(scripted_agent(calls), **options)
    with pytest.raises(errors.ToolExecutionError, match="broken") as raised:
        run(scripted_agent("Done."), reload_paused(first).approve(), **options)
    check_history(list(raised.value.result.messages))
    assert till.paid == []
    assert run(scripted_agent("Fine."), reload_paused(first).approve(), tools=[fail, till.pay]).text == "Fine."


def test_an_error_after_the_pause_leaves_no_call_unanswered(run: Run) -> None:
    class Broken(MemoryJournal):
        @override
        def read(self, run_id: str) -> Any:
            raise OSError("gone")

    first = run(scripted_agent(THREE), tools=[Till().pay], before_tool_call=ask_about("c2"))
    with pytest.raises(errors.AgentError, match="gone") as raised:
        run(scripted_agent("Done."), reload_paused(first).approve(), tools=[Till().pay], journal=Broken())
    check_history(list(raised.value.result.messages))


# Journals


def test_a_paused_run_reads_what_it_wrote_and_more_and_nothing_else() -> None:
    result = scripted_agent(THREE).run("Go.", tools=[Till().pay], before_tool_call=ask_about("c2"))
    assert result.paused is not None
    text = result.paused.to_json()
    assert PausedRun.from_json(text).to_json() == text
    data = json.loads(text)
    later = PausedRun.from_json(json.dumps({**data, "invented later": 1}))
    assert later == PausedRun.from_json(text)
    broken: list[Any] = [{**data, "version": 1}, {**data, "messages": "none"}, {}, [], "nothing"]
    for wrong in broken:
        with pytest.raises(errors.ConfigurationError, match="PausedRun"):
            PausedRun.from_json(json.dumps(wrong))
    with pytest.raises(errors.ConfigurationError):
        PausedRun.from_json(b"\xff{")
    with pytest.raises(errors.ConfigurationError, match="no model response"):
        scripted_agent().run(PausedRun.from_json(json.dumps({**data, "messages": []})))
    least = {name: data[name] for name in ("run_id", "request", "messages", "turn", "waiting", "results", "version")}
    assert (
        scripted_agent("Done.").run(PausedRun.from_json(json.dumps(least)).approve(), tools=[Till().pay]).text
        == "Done."
    )


def test_functions_and_secrets_are_not_written_down() -> None:
    till = Till()
    agent = Agent(
        "openai-chat:m", api_key="sk-very-secret", transport=ScriptedTransport(Script(THREE)), tools=[till.pay]
    )
    result = agent.run("Go.", before_tool_call=ask_about("c2"), deps={"password": "hidden"}, tools=[till.pay])
    assert result.paused is not None
    text = result.paused.to_json()
    assert "sk-very-secret" not in text
    assert "hidden" not in text
    assert "0x" not in text


PROGRAM = """
import json, sys
from pathlib import Path
from agent import tool
from agent.loop import Ask, PausedRun
from agent.testing import scripted_agent
from agent.types import ToolCall

kept, paid = map(Path, sys.argv[1:3])

@tool
def pay(amount: int) -> str:
    with paid.open("a") as file:
        print(amount, file=file)
    return f"paid {amount}"

def ask(call, context):
    return Ask("Really?") if call.id == "c2" else None

calls = [ToolCall(id=f"c{n}", name="pay", arguments={"amount": n}) for n in (1, 2, 3)]
if not kept.exists():
    result = scripted_agent(calls, tools=[pay]).run("Pay.", before_tool_call=ask)
    kept.write_text(result.paused.to_json())
    print("paused", flush=True)
    sys.stdin.read()
paused = PausedRun.from_json(kept.read_text())
result = scripted_agent("Done.", tools=[pay]).run(paused.approve("c2", arguments={"amount": 20}), before_tool_call=ask)
print(json.dumps([message.to_dict() for message in result.messages]))
"""


def test_a_run_goes_on_in_another_process_after_its_own_was_killed(tmp_path: Path) -> None:
    kept, paid = tmp_path / "kept.json", tmp_path / "paid"
    command = [sys.executable, "-c", PROGRAM, str(kept), str(paid)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "paused\n"
        first.send_signal(signal.SIGKILL)
    assert first.returncode == -signal.SIGKILL
    second = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert sorted(paid.read_text().split()) == ["1", "20", "3"]
    till = Till()
    expected = scripted_agent(THREE, "Done.", tools=[till.pay]).run(
        "Pay.", before_tool_call=lambda call, context: Change({"amount": 20}) if call.id == "c2" else None
    )
    assert json.loads(second.stdout) == [message.to_dict() for message in expected.messages]


# With a journal


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[SqliteJournal]:
    kept = SqliteJournal(tmp_path / "runs.db")
    yield kept
    kept.close()


def test_a_run_with_a_journal_goes_on_from_either(run: Run, journal: SqliteJournal) -> None:
    till = Till()
    options: dict[str, Any] = {"tools": [till.pay], "before_tool_call": ask_about("c2"), "journal": journal}
    first = run(scripted_agent(THREE), run_id="r", **options)
    again = run(scripted_agent(), run_id="r", **options)
    assert [one.id for one in reload_paused(again).pending] == ["c2"], "started again, it asks again"
    assert sorted(till.paid) == [1, 3]
    result = run(scripted_agent("Done."), reload_paused(first).approve(), **options)
    assert sorted(till.paid) == [1, 2, 3]
    assert {record.id: record.outcome for record in list_calls(journal.read("r"))} == dict.fromkeys(
        ("c1", "c2", "c3"), "completed"
    )
    for asked in (reload_paused(first).approve(), reload_paused(first).deny(), "Go."):
        done = run(scripted_agent(errors.BadRequestError("never called")), asked, run_id="r", **options)
        assert done.messages == result.messages
        assert done.usage == result.usage
    assert sorted(till.paid) == [1, 2, 3]


def test_an_approved_call_that_was_interrupted_is_not_made_again(journal: SqliteJournal) -> None:
    paid: list[int] = []

    @tool
    def pay(amount: int) -> str:
        paid.append(amount)
        raise KeyboardInterrupt

    options: dict[str, Any] = {"tools": [pay], "before_tool_call": ask_about("c1"), "journal": journal}
    first = scripted_agent(call("c1", amount=1)).run("Go.", run_id="r", **options)
    with pytest.raises(KeyboardInterrupt):
        scripted_agent().run(reload_paused(first).approve(), **options)
    denied = scripted_agent("Done.").run(reload_paused(first).deny(), **options)
    assert results(denied) == ["The call was interrupted; it may have taken effect."], "it was not denied"
    assert paid == [1]


def test_somebody_who_knows_better_may_say_what_became_of_an_interrupted_call(journal: SqliteJournal) -> None:
    @tool
    def pay(amount: int) -> str:
        raise KeyboardInterrupt

    options: dict[str, Any] = {"tools": [pay], "before_tool_call": ask_about("c1"), "journal": journal}
    first = scripted_agent(call("c1", amount=1)).run("Go.", run_id="r", **options)
    with pytest.raises(KeyboardInterrupt):
        scripted_agent().run(reload_paused(first).approve(), **options)
    result = scripted_agent("Done.").run(reload_paused(first).answer("c1", "It was paid; I looked."), **options)
    assert results(result) == ["It was paid; I looked."]
