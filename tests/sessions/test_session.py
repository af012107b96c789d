"""Sessions: complete turns, stored conversations, and changes of the vendor."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from typing_extensions import override

from agent import Agent, Router, errors, tool
from agent.graph import DAG
from agent.sessions import AgentSession
from agent.stores import ConflictError, MemoryStore, SqliteStore, StoreError
from agent.testing import Answer, Script, ScriptedTransport, scripted_agent
from agent.types import AgentResponse, Message, Session, ToolCall, Usage, compute_session_stats


@tool
def add(a: int, b: int) -> int:
    return a + b


def call(id: str, **arguments: Any) -> ToolCall:
    return ToolCall(id=id, name="add", arguments=arguments)


def texts(session: AgentSession) -> list[str]:
    return [message.text for message in session.messages]


@pytest.fixture(params=["none", "memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    if request.param == "none":
        yield None
    else:
        made: Any = MemoryStore() if request.param == "memory" else SqliteStore(tmp_path / "sessions.db")
        yield made
        made.close()


@pytest.fixture(params=["sync", "async"])
def ask(request: pytest.FixtureRequest) -> Any:
    """Run one turn, sync or async."""

    def turn(session: AgentSession, text: str, way: str = "run", **options: Any) -> Any:
        if request.param == "sync":
            return getattr(session, way)(text, **options)
        return asyncio.run(getattr(session, f"a{way}")(text, **options))

    return turn


def test_a_session_remembers(store: Any, ask: Any) -> None:
    script = Script("Hello, Ada!", "You are Ada.")
    session = Agent("scripted:m", transport=ScriptedTransport(script)).session(store=store, system="Be kind.")
    ask(session, "I am Ada.")
    assert ask(session, "Who am I?").text == "You are Ada."
    assert texts(session) == ["I am Ada.", "Hello, Ada!", "Who am I?", "You are Ada."]
    assert [message["role"] for message in script.requests[1]["messages"]] == ["system", "user", "assistant", "user"]


def test_tools_run_and_their_turns_are_kept(store: Any, ask: Any) -> None:
    session = scripted_agent(call("c1", a=1, b=2), "Three.", "Yes.").session(store=store, tools=[add])
    ask(session, "1 + 2?")
    assert texts(session) == ["1 + 2?", "", "3", "Three."]
    drawn = str(session.dag)
    assert "● add: 3" in drawn
    assert "user: 1 + 2?" in drawn


def test_typed_answers(store: Any, ask: Any) -> None:
    class Sum(BaseModel):
        value: int

    session = scripted_agent({"value": 3}).session(store=store)
    assert ask(session, "1 + 2?", "json", schema=Sum).output == Sum(value=3)
    with pytest.raises(errors.ConfigurationError, match="schema"):
        ask(session, "1 + 2?", "json")


def test_a_turn_that_fails_leaves_no_half_state(store: Any, ask: Any) -> None:
    lines = ("One.", errors.BadRequestError("no"), call("c1", a=1, b=2), errors.BadRequestError("no"), "Two.")
    session = scripted_agent(*lines).session(store=store, tools=[add])
    ask(session, "first")
    for _ in range(2):
        with pytest.raises(errors.BadRequestError):
            ask(session, "fails")
        assert texts(session) == ["first", "One."]
    assert ask(session, "second").text == "Two."
    assert texts(session) == ["first", "One.", "second", "Two."]


def test_usage_and_cost_are_those_of_all_turns(store: Any, ask: Any) -> None:
    answer = AgentResponse(text="ok", usage=Usage(prompt_tokens=10, completion_tokens=5))
    agent = Agent("openai-chat:gpt-4o", api_key="k", transport=ScriptedTransport(Script(answer, answer)))
    session = agent.session(store=store)
    ask(session, "a")
    ask(session, "b")
    assert session.usage.prompt_tokens == 20
    assert session.cost == pytest.approx(2 * (10 * 2.5e-6 + 5 * 10e-6))


# Streams


def test_a_stream_is_a_turn_when_its_end_has_been_read(store: Any) -> None:
    session = scripted_agent("Hello there.", "Again.").session(store=store)
    stream = session.stream("Hi")
    assert "".join(stream.text_stream()) == "Hello there."
    assert stream.response.text == "Hello there."
    assert texts(session) == ["Hi", "Hello there."]
    with session.stream("left") as left:
        for event in left:
            if event.type == "text_delta":
                break
    assert texts(session) == ["Hi", "Hello there."]


def test_an_async_stream_is_a_turn_as_well(store: Any) -> None:
    session = scripted_agent("Hello there.", "Again.").session(store=store)

    async def main() -> None:
        assert (await session.astream("Hi").collect()).text == "Hello there."
        async with session.astream("twice") as stream:
            async for _ in stream:
                pass

    asyncio.run(main())
    assert texts(session) == ["Hi", "Hello there.", "twice", "Again."]


def broken() -> Answer:
    chunk = b'data: {"id":"1","choices":[{"index":0,"delta":{"role":"assistant","content":"The an"}}]}\n\n'
    return Answer([chunk], headers={"content-type": "text/event-stream"})


@pytest.mark.parametrize("keep", [False, True])
def test_an_interrupted_stream_is_kept_as_partial_or_dropped(store: Any, keep: bool) -> None:
    session = scripted_agent(broken(), "Better.").session(store=store, keep_partial=keep)
    with pytest.raises(errors.StreamInterrupted):
        session.stream("Go on").collect()
    assert texts(session) == (["Go on", "The an"] if keep else [])
    assert session.run("And?").text == "Better."


@pytest.mark.parametrize("keep", [False, True])
def test_an_aborted_run_is_kept_or_dropped(store: Any, keep: bool) -> None:
    session = scripted_agent(call("c1", a=1, b=2), "Three.", "Better.").session(
        store=store, tools=[add], keep_partial=keep
    )
    run = session.run_stream("Go")
    for event in run:
        if event.type == "tool_execution_end":
            run.abort()
    assert isinstance(run.error, errors.Aborted)
    assert len(session.messages) == (4 if keep else 0)
    assert session.run_stream("And?").collect().text is not None


def test_runs_stream_their_events_and_count_at_the_end(store: Any) -> None:
    session = scripted_agent(call("c1", a=1, b=2), "Three.").session(store=store, tools=[add])

    async def main() -> list[str]:
        run = session.arun_stream("Go")
        seen: list[str] = [event.type async for event in run]
        assert run.result.text == "Three."
        return seen

    assert asyncio.run(main())[-1] == "agent_end"
    assert texts(session) == ["Go", "", "3", "Three."]


# Changes


def test_undo_goes_back_a_turn_and_keeps_the_other_way(store: Any) -> None:
    session = scripted_agent("One.", call("c1", a=1, b=1), "Two.", "Other.").session(
        store=store, tools=[add], system="S"
    )
    session.run("first")
    session.run("second")
    before = session.dag
    session.undo()
    assert texts(session) == ["first", "One."]
    session.run("third")
    assert texts(session) == ["first", "One.", "third", "Other."]
    assert before.common_ancestor(session.dag) is not None
    session.undo(2)
    assert texts(session) == []
    assert session.dag.get_system_prompt() == "S"
    with pytest.raises(errors.ConfigurationError, match="no turn"):
        session.undo()


def test_a_fork_goes_its_own_way(store: Any) -> None:
    session = scripted_agent("One.", "Mine.", "Theirs.").session(store=store)
    session.run("first")
    fork = session.fork()
    assert fork.id != session.id
    session.run("mine")
    fork.run("theirs")
    assert texts(session)[2:] == ["mine", "Mine."]
    assert texts(fork)[2:] == ["theirs", "Theirs."]
    early = session.fork(at=session.dag.nodes()[0].id)
    assert texts(early) == ["first"]


def test_another_vendor_goes_on_in_the_middle(store: Any) -> None:
    script = Script("Go on.")
    session = scripted_agent(call("c1", a=1, b=1), "Two.").session(store=store, tools=[add])
    session.run("1 + 1?")
    other = Agent("openai-chat:gpt-4o", api_key="k", transport=ScriptedTransport(script))
    assert session.switch(Router([other])).run("And?").text == "Go on."
    assert [message["role"] for message in script.requests[0]["messages"]] == [
        "user",
        "assistant",
        "tool",
        "assistant",
        "user",
    ]


def test_messages_can_be_added_and_everything_cleared(store: Any) -> None:
    session = scripted_agent("Noted.").session(store=store, system="S", title="Notes")
    session.add_message("By the way.")
    session.add_message(Message.assistant("Yes?"))
    assert texts(session) == ["By the way.", "Yes?"]
    with pytest.raises(errors.ConfigurationError, match="banner"):
        session.add_message({"role": "banner"})
    session.clear()
    assert texts(session) == []
    assert session.dag.get_system_prompt() == "S"
    assert session.title == "Notes"
    session.title = "Other notes"
    assert session.title == "Other notes"


def test_one_object_serves_one_turn_at_a_time() -> None:
    begun, release = threading.Event(), threading.Event()

    @tool
    def wait() -> str:
        begun.set()
        release.wait(5)
        return "waited"

    session = scripted_agent(ToolCall(id="c1", name="wait", arguments={}), "Done.").session(tools=[wait])
    thread = threading.Thread(target=session.run, args=("go",))
    thread.start()
    begun.wait(5)
    with pytest.raises(errors.ConfigurationError, match="busy with another turn"):
        session.run("me too")
    release.set()
    thread.join()
    assert len(session.messages) == 4


# Stores


def test_a_session_is_found_again(tmp_path: Path, ask: Any) -> None:
    path = tmp_path / "sessions.db"
    store = SqliteStore(path)
    session = scripted_agent(call("c1", a=1, b=2), "Three.").session(
        "math", store=store, tools=[add], system="S", title="Sums"
    )
    ask(session, "1 + 2?")
    drawn = session.dag.to_dict()
    store.close()
    store = SqliteStore(path)
    again = scripted_agent("Still three.").session("math", store=store)
    assert ask(again, "Sure?").text == "Still three."
    assert texts(again) == ["1 + 2?", "", "3", "Three.", "Sure?", "Still three."]
    assert again.title == "Sums"
    assert again.dag.back(2).to_dict()["nodes"] == drawn["nodes"]
    store.close()


def test_who_is_late_is_told_and_loses_nothing(store: Any, ask: Any) -> None:
    if store is None:
        pytest.skip("needs a store that both share")
    first = scripted_agent("A.", "C.").session("shared", store=store)
    second = scripted_agent("B.", "B again.").session("shared", store=store)
    ask(first, "a")
    ask(second, "b")
    with pytest.raises(ConflictError) as caught:
        ask(first, "c")
    assert caught.value.result.text == "C."  # it was paid for
    assert texts(first) == ["a", "A."]
    first.reload()
    assert texts(first) == ["a", "A.", "b", "B."]


def test_a_store_that_cannot_write_leaves_the_session_as_it_was(ask: Any) -> None:
    class Full(MemoryStore):
        full = False

        @override
        def append(self, *args: Any, **kwargs: Any) -> Any:
            if self.full:
                raise StoreError("no room")
            return super().append(*args, **kwargs)

    store = Full()
    session = scripted_agent("A.", "B.", "C.").session(store=store)
    ask(session, "a")
    store.full = True
    with pytest.raises(StoreError, match="no room"):
        ask(session, "b")
    assert texts(session) == ["a", "A."]
    store.full = False
    ask(session, "c")
    assert texts(session) == ["a", "A.", "c", "C."]


def test_an_async_store_serves_both_kinds_of_turns(ask: Any) -> None:
    class Async:
        """As a third party might write it, on a network."""

        blocking = False

        def __init__(self) -> None:
            self._inner = MemoryStore()

        def __getattr__(self, name: str) -> Any:
            method = getattr(self._inner, name)

            async def call(*args: Any, **kwargs: Any) -> Any:
                await asyncio.sleep(0)
                return method(*args, **kwargs)

            return call

    store: Any = Async()
    session = scripted_agent("A.", "B.").session("s", store=store)
    ask(session, "a")
    again = scripted_agent("B.").session("s", store=store)
    ask(again, "b")
    assert texts(again) == ["a", "A.", "b", "B."]


def test_a_name_that_cannot_be_one_is_refused() -> None:
    session = scripted_agent("A.").session("../../etc/passwd", store=MemoryStore())
    with pytest.raises(errors.ConfigurationError):
        session.run("a")


# Data


def test_sessions_go_out_and_come_in_as_data(ask: Any) -> None:
    session = scripted_agent(call("c1", a=1, b=2), "Three.").session("math", tools=[add], title="Sums")
    ask(session, "1 + 2?")
    data = session.data
    assert isinstance(data, Session)
    assert [message.parent_id for message in data.messages] == [None, *(message.id for message in data.messages[:-1])]
    assert compute_session_stats(data.messages).tool_calls == 1
    again = AgentSession.of(scripted_agent("Yes."), Session.from_dict(session.export()))
    assert (again.id, again.title) == ("math", "Sums")
    assert ask(again, "Sure?").text == "Yes."
    assert len(again.messages) == 6
    assert scripted_agent("A request.").complete(data).text == "A request."


# Graphs


def test_agents_routers_and_the_loop_take_a_graph_and_give_back_a_grown_one() -> None:
    dag = DAG().system("Be brief.").tools(add).user("1 + 2?")
    response = scripted_agent("Three.").complete(dag)
    assert [message.text for message in response.dag.to_messages()] == ["1 + 2?", "Three."]
    assert response.dag.head.parents == dag.heads
    grown = scripted_agent(call("c1", a=1, b=2), "Three.", tools=[add]).run(response.dag, input="Again!").dag
    assert [message.text for message in grown.to_messages()] == ["1 + 2?", "Three.", "Again!", "", "3", "Three."]
    assert "● add: 3" in str(grown)
    streamed = Router([scripted_agent("Four.")]).stream(dag)
    assert streamed.collect().dag.to_messages()[-1].text == "Four."

    async def main() -> Any:
        run = scripted_agent("Five.").arun_stream(dag)
        await run.collect()
        return run.result.dag, (await scripted_agent("Six.").acomplete(dag)).dag

    five, six = asyncio.run(main())
    assert (five.to_messages()[-1].text, six.to_messages()[-1].text) == ("Five.", "Six.")
    assert len(dag) == 3


def test_tools_that_a_graph_offers_are_run_and_a_session_offers_them_too(ask: Any) -> None:
    dag = DAG().system("Be brief.").tools(add)
    lines = (call("c1", a=1, b=2), "Three.")
    result = scripted_agent(*lines).run(dag.user("1 + 2?"))
    assert (result.paused, result.text) == (None, "Three.")
    session = scripted_agent(*lines).session(dag=dag)
    ask(session, "1 + 2?")
    assert texts(session) == ["1 + 2?", "", "3", "Three."]


def test_what_a_graph_says_is_sent() -> None:
    script = Script("Done.")
    agent = Agent("scripted:m", transport=ScriptedTransport(script))
    agent.complete(DAG().system("Be brief.").tools(add).user("Hi"))
    body = script.requests[0]
    assert [message["role"] for message in body["messages"]] == ["system", "user"]
    assert body["tools"][0]["function"]["name"] == "add"
    assert agent is not None
