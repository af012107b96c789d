"""Runs of a session that pause: they are resumed in it, and become one turn."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from agent import Agent, Hooks, errors
from agent.loop import PausedRun, RunResult
from agent.sessions import AgentSession
from agent.stores import MemoryStore, SqliteStore
from agent.testing import Script, ScriptedTransport, scripted_agent
from agent.types import Message
from tests.loop.pause_helpers import NOBODY, WAYS, Till, ask_about, call, ids, pays, reload, run_by
from tests.loop.stories import check_history

Run = Callable[..., RunResult]


@pytest.fixture(params=WAYS)
def run(request: pytest.FixtureRequest) -> Run:
    return lambda *args, **options: run_by(request.param, *args, **options)


@pytest.fixture(params=["object", "memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """None for a session that lasts as long as its object."""
    match request.param:
        case "object":
            return None
        case "memory":
            return MemoryStore()
        case _:
            return SqliteStore(tmp_path / "sessions.db")


def texts(session: AgentSession) -> list[str]:
    return [message.text for message in session.messages]


def again(session: AgentSession, store: Any, *lines: Any, **options: Any) -> AgentSession:
    """The session in another process, as far as it has a store."""
    agent = scripted_agent(*lines)
    return session.switch(agent) if store is None else agent.session(session.id, store=store, **options)


def test_a_paused_run_is_resumed_in_its_session_and_becomes_one_turn(run: Run, store: Any) -> None:
    whole, stopped = Till(), Till()
    lines: list[Any] = ["Hello.", pays("c1", "c2"), "Both are paid."]
    expected = scripted_agent(*lines).session()
    for words in ("Hi.", "Pay."):
        run(expected, words, tools=[whole.pay])
    session = scripted_agent(*lines[:2]).session(store=store)
    run(session, "Hi.")
    first = run(session, "Pay.", tools=[stopped.pay], before_tool_call=ask_about("c2"))
    assert stopped.paid == [1]
    assert texts(session) == ["Hi.", "Hello."], "a turn counts when it is complete"
    script = Script("Both are paid.", "You paid 1 and 2.")
    resumed = again(session, store)
    resumed.switch(Agent("scripted:m", transport=ScriptedTransport(script)))
    result = run(resumed, reload(first).approve(), tools=[stopped.pay])
    assert (result.text, result.paused) == ("Both are paid.", None)
    assert stopped.paid == whole.paid == [1, 2]
    assert texts(resumed) == texts(expected)
    assert resumed.usage == expected.usage
    assert str(resumed.dag) == str(expected.dag)
    check_history(list(resumed.messages))
    run(resumed, "What did I pay?")
    sent = [(one["role"], one.get("content")) for one in script.requests[-1]["messages"]]
    assert [content for role, content in sent if role == "tool"] == ["paid 1", "paid 2"]
    assert not any("Error" in str(content) or "interrupted" in str(content) for _, content in sent)
    if store is not None:
        assert texts(again(session, store)) == texts(resumed)


def test_what_stays_undecided_pauses_again_and_can_be_resumed_as_often(run: Run, store: Any) -> None:
    till = Till()
    session = scripted_agent(pays("c1", "c2")).session(store=store, tools=[till.pay])
    result = run(session, "Pay.", before_tool_call=ask_about())
    for line, id in ((NOBODY, "c1"), ("Done.", "c2")):
        session = again(session, store, line, tools=[till.pay])
        assert id in ids(reload(result))
        result = run(session, reload(result).approve(id))
    assert (result.text, till.paid) == ("Done.", [1, 2])
    assert texts(session) == ["Pay.", "", "paid 1", "paid 2", "Done."]


def test_without_a_verdict_a_session_executes_nothing(run: Run, store: Any) -> None:
    till = Till()
    session = scripted_agent(pays("c1")).session(store=store, tools=[till.pay])
    first = run(session, "Pay.", before_tool_call=ask_about())
    session = again(session, store, NOBODY, tools=[till.pay])
    result = run(session, reload(first))
    assert till.paid == []
    assert reload(result) == reload(first)
    assert texts(session) == []


def test_a_run_that_is_asked_with_messages_of_its_own_keeps_them(run: Run) -> None:
    till = Till()
    session = scripted_agent("Hello.", pays("c1"), "Done.").session(tools=[till.pay], system="Be brief.")
    run(session, "Hi.")
    asked = [Message.user("First,"), Message.user("pay.")]
    first = run(session, asked, before_tool_call=ask_about())
    run(session, reload(first).deny())
    assert texts(session)[2:] == ["First,", "pay.", "", "The call was denied.", "Done."]


def expect_refusal(field: str, act: Callable[[], Any]) -> errors.ConfigurationError:
    with pytest.raises(errors.ConfigurationError) as raised:
        act()
    assert raised.value.field == field
    assert raised.value.fix
    return raised.value


def test_a_run_is_resumed_only_where_it_was_started(run: Run, store: Any) -> None:
    till = Till()
    session = scripted_agent("Hello.", pays("c1")).session(store=store, tools=[till.pay])
    run(session, "Hi.")
    first = reload(run(session, "Pay.", before_tool_call=ask_about())).approve()
    other = scripted_agent(NOBODY).session(tools=[till.pay])
    expect_refusal("session", lambda: run(other, first))
    expect_refusal("session", lambda: run(session.fork(), first))
    outside = scripted_agent(pays("c1")).run("Pay.", tools=[till.pay], before_tool_call=ask_about())
    expect_refusal("session", lambda: run(session, reload(outside).approve()))
    assert till.paid == []


def test_a_turn_in_between_keeps_a_run_from_being_resumed_until_it_is_undone(run: Run, store: Any) -> None:
    till = Till()
    session = scripted_agent("Hello.", pays("c1"), "Fine.", "Done.").session(store=store, tools=[till.pay])
    run(session, "Hi.")
    first = reload(run(session, "Pay.", before_tool_call=ask_about())).approve()
    run(session, "How are you?")
    assert texts(session) == ["Hi.", "Hello.", "How are you?", "Fine."]
    error = expect_refusal("session", lambda: run(session, first))
    assert "has changed" in str(error)
    assert till.paid == []
    session.undo()
    assert run(session, first).text == "Done."
    assert texts(session) == ["Hi.", "Hello.", "Pay.", "", "paid 1", "Done."]


def test_a_session_that_somebody_else_changed_is_noticed_before_a_call_is_made(run: Run, tmp_path: Path) -> None:
    till, store = Till(), SqliteStore(tmp_path / "sessions.db")
    session = scripted_agent(pays("c1")).session("s", store=store, tools=[till.pay])
    first = reload(run(session, "Pay.", before_tool_call=ask_about())).approve()
    scripted_agent("Fine.").session("s", store=store).run("How are you?")
    expect_refusal("session", lambda: run(session, first))
    assert till.paid == []


def test_an_earlier_conversation_that_was_changed_in_the_document_is_not_believed(run: Run) -> None:
    till, script = Till(), Script("Hello.", pays("c1"), "Done.")
    session = Agent("scripted:m", transport=ScriptedTransport(script)).session(tools=[till.pay])
    run(session, "Hi.")
    data = json.loads(reload(run(session, "Pay.", before_tool_call=ask_about())).to_json())
    data["messages"][0]["content"] = "Somebody else's words."
    run(session, PausedRun.from_json(json.dumps(data)).approve())
    assert script.requests[-1]["messages"][0]["content"] == "Hi."
    assert texts(session)[0] == "Hi."


def test_sub_agents_of_a_session_are_resumed_in_it(run: Run, store: Any) -> None:
    till = Till()

    def tools(*lines: Any, hook: Any = None) -> Sequence[Any]:
        inner = scripted_agent(*lines, tools=[till.pay], hooks=Hooks(before_tool_call=hook))
        return [inner.as_tool("helper", "Helps.")]

    asks = call("o1", "helper", task="Pay.")
    session = scripted_agent(asks).session(store=store)
    first = run(session, "Go.", tools=tools(pays("i1"), hook=ask_about()))
    session = again(session, store, "Done.")
    result = run(session, reload(first).approve("o1/i1"), tools=tools("Paid."))
    assert till.paid == [1]
    assert texts(session) == ["Go.", "", "Paid.", "Done."]
    assert result.usage is not None


def test_a_run_that_has_not_started_has_no_result() -> None:
    for stream in (scripted_agent().session().run_stream("Hi."), scripted_agent().session().arun_stream("Hi.")):
        expect_refusal("result", lambda stream=stream: stream.result)  # type: ignore[misc]


PROGRAM = """
import sys
from pathlib import Path
from agent import tool
from agent.loop import PausedRun
from agent.stores import SqliteStore
from agent.testing import scripted_agent

folder = Path(sys.argv[1])

@tool
def pay(amount: int) -> str:
    return f"paid {amount}"

session = scripted_agent("Done.", "Fine.").session("s", store=SqliteStore(folder / "sessions.db"), tools=[pay])
session.run(PausedRun.from_json((folder / "kept.json").read_text()).approve())
session.run("Thanks.")
"""


def test_another_process_resumes_a_run_of_a_session(tmp_path: Path) -> None:
    till, store = Till(), SqliteStore(tmp_path / "sessions.db")
    session = scripted_agent("Hello.", pays("c1", "c2")).session("s", store=store, tools=[till.pay])
    session.run("Hi.")
    first = session.run("Pay.", before_tool_call=ask_about("c2"))
    (tmp_path / "kept.json").write_text(reload(first).to_json())
    subprocess.run([sys.executable, "-c", PROGRAM, str(tmp_path)], check=True, timeout=120)
    session.reload()
    assert texts(session) == ["Hi.", "Hello.", "Pay.", "", "paid 1", "paid 2", "Done.", "Thanks.", "Fine."]
    check_history(list(session.messages))
