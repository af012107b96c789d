"""The conversation graph: values that share their history, branch, merge, and come back as messages."""

from __future__ import annotations

import asyncio
import copy
import json
import pickle
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from inline_snapshot import snapshot

from agent import errors, tool
from agent.graph import DAG, Node
from agent.graph.node import NO_RESULT, linearize
from agent.testing import scripted_agent
from agent.types import (
    AgentResponse,
    Message,
    Role,
    StopReason,
    SystemPrompt,
    TextContent,
    ToolCall,
    ToolDefinitions,
    ToolExecution,
    ToolResult,
    ToolResultContent,
    Usage,
)
from tests.graph.random_dags import Gardener
from tests.loop.stories import check_history


def texts(dag: DAG) -> list[str]:
    return [message.text for message in dag.to_messages()]


def call(id: str, name: str = "look") -> ToolCall:
    return ToolCall(id=id, name=name, arguments={})


def result(id: str, text: str = "done") -> ToolResult:
    return ToolResult(tool_call_id=id, name="look", content=text)


# Values


def test_every_method_returns_a_new_graph_and_changes_nothing() -> None:
    empty = DAG()
    asked = empty.system("Be brief.").user("Hi")
    answered = asked.assistant("Hello!")
    assert not empty
    assert (len(asked), len(answered)) == (2, 3)
    assert answered.head.parents[0] is asked.head
    with pytest.raises(FrozenInstanceError):
        answered.head.id = "other"  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        answered.heads = ()  # type: ignore[misc]


def test_nodes_know_their_ancestors_prompt_tools_and_messages() -> None:
    @tool
    def look(where: str) -> str:
        return where

    dag = DAG().system("Be brief.").tools(look).system("Be kind.").user("Hi").assistant("Hello!")
    head = dag.head
    assert [type(node.data).__name__ for node in head.ancestors()] == [
        "SystemPrompt",
        "ToolDefinitions",
        "SystemPrompt",
        "Message",
        "Message",
    ]
    assert head.get_system_prompt() == dag.get_system_prompt() == "Be brief.\n\nBe kind."
    assert [offered["name"] for offered in head.get_tools()] == ["look"]
    assert [message.text for message in head.to_messages()] == ["Hi", "Hello!"]


def test_a_node_freezes_its_parents_and_metadata() -> None:
    first = Node((), Message.user("Hi"))
    parents, metadata = [first], {"usage": {"input_tokens": [1]}}
    node = Node(parents, Message.assistant("Hello"), metadata=metadata)  # type: ignore[arg-type]
    parents.clear()
    metadata["usage"]["input_tokens"].append(2)
    assert node.parents == (first,)
    assert node.metadata == {"usage": {"input_tokens": [1]}}
    changed: Any = node.metadata
    with pytest.raises(TypeError, match="read-only"):
        changed["usage"]["input_tokens"].append(3)
    assert first.child(Message.user("x"), tags=["a"]).metadata == {"tags": ["a"]}


def test_each_id_is_among_the_ancestors_once_even_if_it_was_loaded_twice() -> None:
    dag = DAG().user("Hi").assistant("Hello!")
    loaded = DAG.from_dict(dag.to_dict())
    assert loaded.head is not dag.head
    merged = Node.with_parents([dag.head, loaded.head], Message.user("And?"))
    assert [node.id for node in merged.ancestors()] == [*(node.id for node in dag.nodes()), merged.id]
    assert [message.text for message in merged.to_messages()] == ["Hi", "Hello!", "And?"]
    again = pickle.loads(pickle.dumps(merged))
    assert [node.id for node in again.ancestors()] == [node.id for node in merged.ancestors()]
    both = dag.merge(loaded).user("And?")
    assert len(DAG.from_dict(both.to_dict())) == 3
    assert str(both).count("Hello!") == both.mermaid().count("Hello!") == 1


def test_the_graph_of_a_run_ends_with_its_stop_reason() -> None:
    result = scripted_agent("Hello!").run(DAG().user("Hi"))
    assert result.dag.head.data == StopReason("stop", result.usage or {})
    assert texts(result.dag.user("And?")) == ["Hi", "Hello!", "And?"]


def test_branches_share_everything_before_they_part() -> None:
    asked = DAG().user("Hi")
    kind, curt = asked.assistant("Hello!"), asked.assistant("What?")
    assert kind.head.parents == curt.head.parents == (asked.head,)
    assert (texts(kind), texts(curt)) == (["Hi", "Hello!"], ["Hi", "What?"])
    both = kind.merge(curt).user("Which?")
    assert both.head.parents == (kind.head, curt.head)
    assert texts(both) == ["Hi", "Hello!", "What?", "Which?"]
    assert [branch.head for branch in kind.merge(curt).branches()] == [kind.head, curt.head]


def test_a_graph_can_be_looked_at_as_it_was() -> None:
    dag = DAG().user("one").assistant("two").user("three")
    assert texts(dag.at(dag.head.parents[0])) == ["one", "two"]
    assert texts(dag.at(dag.nodes()[0].id)) == ["one"]
    assert texts(dag.back()) == ["one", "two"]
    assert texts(dag.back(2).assistant("other")) == ["one", "other"]
    assert not dag.back(9)
    with pytest.raises(errors.ConfigurationError, match="is not in this graph"):
        dag.at("nowhere")
    with pytest.raises(errors.ConfigurationError, match="empty"):
        _ = DAG().head


def test_nodes_survive_copies_and_pickles_without_recursion() -> None:
    dag = DAG()
    for number in range(20_000):
        dag = dag.user(str(number))
    again = pickle.loads(pickle.dumps(dag.head))
    assert [node.id for node in again.ancestors()] == [node.id for node in dag.head.ancestors()]
    assert copy.deepcopy(dag.head) is dag.head
    assert "parents" in repr(dag.head)
    assert hash(dag.head) != hash(again)


# The document that describes the graph


def test_parallel_tool_calls_fan_out_and_in() -> None:
    asked = Node((), Message(Role.USER, "Do both."))
    head = asked.child(Message(Role.ASSISTANT, [call("c1"), call("c2")]))
    result_nodes = []
    for tool_call in (call("c1"), call("c2")):
        result_nodes.append(
            head.child(
                ToolExecution(
                    tool_name=tool_call.name, tool_use_id=tool_call.id, result=[TextContent(text="file1.txt")]
                )
            )
        )
    tool_results = [ToolResultContent(tool_use_id=id, content=[TextContent(text="ok")]) for id in ("c1", "c2")]
    merged = Node.with_parents(result_nodes, Message(Role.USER, tool_results))
    assert [type(node.data).__name__ for node in merged.ancestors()] == [
        "Message",
        "Message",
        "ToolExecution",
        "ToolExecution",
        "Message",
    ]
    assert [message.role.value for message in merged.to_messages()] == ["user", "assistant", "user"]


def test_node_data_is_told_apart_by_pattern() -> None:
    def process_node(node: Node) -> str:
        match node.data:
            case SystemPrompt(content=text):
                return f"System: {text}"
            case Message(role=Role.USER, content=content):
                return f"User: {content}"
            case Message(role=Role.ASSISTANT, content=content):
                return f"Assistant: {content}"
            case ToolExecution(tool_name=name):
                return f"Executed: {name}"
            case StopReason(reason=r):
                return f"Stopped: {r}"
            case _:
                return "Other"

    dag = DAG().system("S").user("U").assistant("A").stop("end_turn", {"input_tokens": 1})
    dag = dag.tool_execution(ToolExecution(tool_name="bash", tool_use_id="c1", result="x"))
    assert [process_node(node) for node in dag] == [
        "System: S",
        "User: U",
        "Assistant: A",
        "Stopped: end_turn",
        "Executed: bash",
    ]


def test_a_response_is_recorded_with_what_it_cost() -> None:
    response = AgentResponse(
        text="Paris.",
        provider="openai",
        model="gpt-4o",
        usage=Usage(prompt_tokens=10, completion_tokens=2),
        cost_estimate=0.5,
        latency_ms=12.0,
    )
    dag = DAG().user("Capital?").assistant(response)
    assert dag.head.metadata["cost"] == 0.5
    assert dag.head.metadata["model"] == "gpt-4o"
    assert dag.usage().prompt_tokens == 10
    longer = dag.user("And?").assistant(response)
    assert longer.cost() == 1.0
    assert longer.cost(since=dag.head) == 0.5
    both = longer.merge(dag.user("Or?").assistant(response))
    assert both.cost() == 1.5  # shared nodes count once


# Linearisation


def test_results_that_a_merge_tore_from_their_calls_come_back_to_them() -> None:
    turn = DAG().user("go").assistant([call("c1"), call("c2")])
    one = turn.tool_result(result("c1")).assistant("first done")
    two = turn.tool_result(result("c2")).assistant("second done")
    merged = one.merge(two).user("and now?")
    messages = merged.to_messages()
    check_history(messages)
    assert [message.text for message in messages] == ["go", "", "done", "done", "first done", "second done", "and now?"]


def test_a_call_that_two_branches_answered_has_one_result() -> None:
    turn = DAG().user("go").assistant([call("c1")])
    merged = turn.tool_result(result("c1", "mine")).merge(turn.tool_result(result("c1", "theirs"))).user("?")
    messages = merged.to_messages()
    check_history(messages)
    assert [message.text for message in messages] == ["go", "", "mine", "?"]


def test_a_call_that_nobody_answered_is_answered_unless_it_is_still_to_come() -> None:
    turn = DAG().user("go").assistant([call("c1"), call("c2")])
    assert len(turn.to_messages()) == 2
    after = turn.user("never mind").to_messages()
    check_history(after)
    assert [message.text for message in after][2:4] == [NO_RESULT, NO_RESULT]


def test_ids_that_were_used_twice_are_told_apart() -> None:
    start = DAG().user("go")
    one = start.assistant([call("c1")]).tool_result(result("c1", "one"))
    two = start.assistant([call("c1")]).tool_result(result("c1", "two"))
    messages = one.merge(two).user("?").to_messages()
    check_history(messages)
    ids = [found.id for message in messages for found in message.tool_calls or ()]
    assert ids == ["c1", "c1_2"]
    assert [message.text for message in messages if message.role is Role.TOOL] == ["one", "two"]


def test_a_result_without_its_call_is_told_in_words() -> None:
    messages = linearize([Message.user("go"), Message(Role.TOOL, [result("c9", "lost")])])
    assert [message.text for message in messages] == ["go", "[look returned: lost]"]


def test_a_conversation_in_order_comes_back_as_the_very_same_messages() -> None:
    dag = DAG().user("go").assistant([call("c1")]).tool_result(result("c1")).assistant("done")
    given = [node.data for node in dag]
    assert all(new is old for new, old in zip(dag.to_messages(), given, strict=True))


# Properties


def check_answered(messages: list[Message]) -> None:
    """Every call has one result directly after it; those of the last turn may be pending."""
    waiting: set[str] = set()
    used: set[str] = set()
    for message in messages:
        results = [part.tool_call_id for part in message.parts if isinstance(part, ToolResult)]
        assert waiting.issuperset(results), f"results without calls: {results}"
        assert len(set(results)) == len(results)
        waiting.difference_update(results)
        if not results:
            assert not waiting, f"calls without results: {waiting}"
        calls = {found.id for found in message.tool_calls or ()}
        assert used.isdisjoint(calls), f"ids used twice: {calls}"
        used |= calls
        waiting |= calls


@given(seed=st.integers(0, 2**32), moves=st.integers(1, 40))
def test_any_sequence_of_moves_keeps_the_graph_acyclic_and_its_messages_valid(seed: int, moves: int) -> None:
    for dag in Gardener(seed).grow(moves):
        order = dag.nodes()
        places = {id(node): place for place, node in enumerate(order)}
        assert len(places) == len(order)
        assert all(places[id(parent)] < places[id(node)] for node in order for parent in node.parents)
        messages = dag.to_messages()
        check_answered(messages)
        again = DAG.from_dict(json.loads(json.dumps(dag.to_dict())))
        assert again.to_dict() == dag.to_dict()
        assert again.to_messages() == messages


@given(seed=st.integers(0, 2**32), moves=st.integers(1, 30))
def test_the_same_content_has_the_same_ids(seed: int, moves: int) -> None:
    one = Gardener(seed, content_ids=True).grow(moves)
    two = Gardener(seed, content_ids=True).grow(moves)
    assert [[node.id for node in dag] for dag in one] == [[node.id for node in dag] for dag in two]
    for dag in one:
        by_id: dict[str, Any] = {}
        for node in dag:
            known = by_id.setdefault(node.id, node)
            assert known.data == node.data
            assert [parent.id for parent in known.parents] == [parent.id for parent in node.parents]


@given(seed=st.integers(0, 2**32), moves=st.integers(2, 30))
def test_difference_and_common_ancestor_agree(seed: int, moves: int) -> None:
    family = Gardener(seed).grow(moves)
    one, two = family[0], family[-1]
    parted = one.diff(two)
    shared = {node.id for node in parted.common}
    assert {node.id for node in one} == shared | {node.id for node in parted.only_first}
    assert {node.id for node in two} == shared | {node.id for node in parted.only_second}
    ancestor = one.common_ancestor(two)
    assert (ancestor is None) == (not shared)
    if ancestor is not None:
        assert ancestor.id in shared


def test_a_rebased_branch_follows_the_other() -> None:
    start = DAG().user("go")
    mine = start.assistant("a").user("b")
    theirs = start.assistant("x").user("y")
    assert texts(mine.rebase(theirs)) == ["go", "x", "y", "a", "b"]
    assert texts(mine) == ["go", "a", "b"]
    assert mine.rebase(mine).heads == mine.heads
    assert texts(start.rebase(theirs)) == ["go", "x", "y"]


def test_ids_are_random_unless_they_are_asked_to_follow_from_content() -> None:
    assert DAG().user("a").head.id != DAG().user("a").head.id
    assert DAG(content_ids=True).user("a").head.id == DAG(content_ids=True).user("a").head.id
    assert DAG(content_ids=True).user("a").head.id != DAG(content_ids=True).user("b").head.id


# Drawing


def test_a_graph_is_drawn_with_its_fan_out_and_fan_in() -> None:
    dag = DAG().system("Be brief.").user("Do both.").assistant([call("c1", "bash"), call("c2", "read")])
    dag = dag.tool_execution(
        ToolExecution(tool_name="bash", tool_use_id="c1", result="listed"),
        ToolExecution(tool_name="read", tool_use_id="c2", result="no such file", is_error=True),
    )
    dag = dag.tool_result(result("c1"), result("c2"))
    other = dag.assistant(
        "Done, in a way that needs a line which is much longer than any terminal is wide, to be cut off."
    )
    dag = dag.assistant("Done.").stop("end_turn").merge(other)
    assert str(dag) == snapshot("""\
● system: Be brief.
● user: Do both.
● assistant: bash() read()
├─╮
● │ bash: listed
│ ● read failed: no such file
├─╯
● tool: look: done look: done
├─╮
● │ assistant: Done.
● │ stop: end_turn
  ● assistant: Done, in a way that needs a line which is much longer than any terminal is …\
""")


def test_branches_that_cross_stay_readable() -> None:
    start = DAG().user("a")
    one, two, three = start.assistant("b"), start.assistant("c"), start.assistant("d")
    joined = one.merge(three).user("e")
    assert str(joined.merge(two).user("f")) == snapshot("""\
● user: a
├─┬─╮
● │ │ assistant: b
│ ● │ assistant: d
├─╯ │
●   │ user: e
│   ● assistant: c
├───╯
● user: f\
""")
    assert str(DAG()) == "(empty)"


def test_what_a_terminal_would_obey_is_not_drawn() -> None:
    drawn = str(DAG().user("red \x1b[31m\x07 \u202e evil\r\nnext"))
    assert drawn == "● user: red [31m evil next"


def test_mermaid_has_two_sides_and_no_text_that_is_language() -> None:
    dag = DAG().user('say "hi"]; click n0 href "javascript:alert(1)"').assistant("<b>#1</b>")
    assert dag.mermaid() == snapshot("""\
graph TD
    classDef userSide fill:#e1f5fe,stroke:#01579b,color:#01579b
    classDef assistantSide fill:#e8f5e9,stroke:#1b5e20,color:#1b5e20
    n0["user: say #quot;hi#quot;]#59; click n0 href #quot;javascript:al…"]:::userSide
    n1["assistant: #lt;b#gt;#35;1#lt;/b#gt;"]:::assistantSide
    n0 --> n1\
""")


# Files


def test_a_graph_survives_its_file(tmp_path: Path) -> None:
    dag = Gardener(7).grow(60)[-1]
    path = tmp_path / "graph.json"
    dag.save(path)
    loaded = DAG.load(path)
    assert loaded.to_dict() == dag.to_dict()
    assert json.loads(path.read_text("utf-8"))["version"] == 1  # it is plain JSON, too
    path.write_text(json.dumps(json.loads(path.read_text("utf-8")), indent=2), "utf-8")
    assert DAG.load(path).to_dict() == dag.to_dict()


def test_fields_that_this_version_does_not_know_are_kept(tmp_path: Path) -> None:
    document = DAG().user("a").assistant("b").to_dict()
    document["colour"] = "green"
    document["nodes"][0]["mood"] = {"happy": True}
    document["nodes"][1]["data"]["sparkle"] = [1, 2]
    path = tmp_path / "graph.json"
    DAG.from_dict(document).user("c").save(path)
    again = DAG.load(path).to_dict()
    assert again["colour"] == "green"
    assert again["nodes"][0]["mood"] == {"happy": True}
    assert again["nodes"][1]["data"]["sparkle"] == [1, 2]


def test_a_file_from_before_there_were_versions_is_read() -> None:
    old = {
        "heads": ["b"],
        "nodes": [
            {"id": "a", "parents": [], "timestamp": 1.0, "data": {"role": "user", "content": "Hi"}},
            {"id": "b", "parents": ["a"], "timestamp": 2.0, "data": {"type": "stop_reason", "reason": "end_turn"}},
        ],
    }
    dag = DAG.from_dict(old)
    assert texts(dag) == ["Hi"]
    assert dag.to_dict()["version"] == 1


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"version": 99}, "version is 99"),
        ({"format": "recipe"}, "'recipe'"),
        ({"heads": ["nowhere"]}, "nowhere"),
        ({"nodes": [{"id": "a", "parents": ["b"], "data": {"role": "user", "content": ""}}]}, "precedes its parent"),
        ({"nodes": [{"id": "a", "parents": [], "data": {"type": "dream"}}]}, "dream"),
        ({"nodes": [{"id": "a", "parents": []}]}, "data"),
    ],
)
def test_a_document_that_cannot_be_right_is_refused(change: dict[str, Any], why: str) -> None:
    with pytest.raises(errors.ConfigurationError, match=why):
        DAG.from_dict({"format": "agent.graph", "version": 1, "heads": [], "nodes": [], **change})


def nest(levels: int) -> Any:
    value: Any = "x"
    for _ in range(levels):
        value = [value]
    return value


ODD: tuple[Any, ...] = (
    None,
    True,
    0,
    -1,
    1.5,
    10**400,
    "",
    "x",
    [],
    [[]],
    [{}],
    {},
    {"a": []},
    nest(900),
    float("nan"),
)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from places(inner, (*path, key))


def test_whatever_has_the_wrong_type_is_a_typed_error(tmp_path: Path) -> None:
    usage = {"prompt_tokens": 1, "completion_tokens": 2}
    grown = DAG().system("s").tools({"name": "a", "input_schema": {"type": "object"}}).user("Hi").stop("end", usage)
    called = grown.assistant([TextContent(text="a"), call("1")]).tool_result(result("1"))
    whole = {**DAG.merge(called, grown.user("b")).to_dict(), "later": [1]}
    whole["nodes"][0]["later"] = whole["nodes"][1]["data"]["later"] = {"a": 1}
    for path in places(whole):
        for odd in ODD:
            document = copy.deepcopy(whole)
            inside = document
            for step in path[:-1]:
                inside = inside[step]
            if path:
                inside[path[-1]] = odd
            else:
                document = odd
            with suppress(errors.ConfigurationError):
                dag = DAG.from_dict(document)
                assert all(isinstance(node.id, str) for node in dag.nodes())
                repr(dag), str(dag)
                with suppress(RecursionError):
                    json.dumps(dag.to_dict(), allow_nan=False)
            with suppress(ValueError, RecursionError):
                (tmp_path / "graph.json").write_text(json.dumps(document))
                with suppress(errors.ConfigurationError):
                    DAG.load(tmp_path / "graph.json")


def test_a_drawing_of_many_branches_is_bounded() -> None:
    root = DAG().user("root")
    wide = DAG.merge(*(root.user(f"branch {number}") for number in range(10_000)))
    text = str(wide.user("join"))
    assert len(text) < 300_000
    assert text.count("\n") == 10_002
    narrow = DAG.merge(*(root.user(f"branch {number}") for number in range(50)))
    assert "╮" in str(narrow.user("join"))


def test_a_file_that_was_cut_off_is_refused_wherever_it_was_cut(tmp_path: Path) -> None:
    path = tmp_path / "graph.json"
    DAG().user("one").assistant("two").user("three").save(path)
    whole = path.read_bytes()
    for length in range(0, len(whole) - 3, 7):
        path.write_bytes(whole[:length])
        with pytest.raises(errors.ConfigurationError):
            DAG.load(path)


def test_tools_are_read_in_all_their_forms() -> None:
    dag = DAG().tools({"name": "a", "description": "A.", "input_schema": {"type": "object"}}).user("Hi")
    data = dag.nodes()[0].data
    assert isinstance(data, ToolDefinitions)
    request = dag.to_request()
    assert [offered.name for offered in request.tools if not isinstance(offered, dict)] == ["a"]


def test_the_graph_provides_calls_and_records_results_and_somebody_else_runs_the_tools() -> None:
    async def my_tool(input: dict[str, Any]) -> str:
        return f"listed {input['path']}"

    async def main() -> DAG:
        dag = DAG()
        dag = dag.system("...")
        dag = dag.user("List it.")
        response = AgentResponse(content=[ToolCall(id="c1", name="ls", arguments={"path": "."})])
        dag = dag.assistant(response.content)
        for tool_call in response.get_tool_use():
            result = await my_tool(tool_call.input)
            dag = dag.tool_result(
                ToolResultContent(tool_use_id=tool_call.id, content=[TextContent(text=result)], is_error=False)
            )
        return dag

    dag = asyncio.run(main())
    assert texts(dag) == ["List it.", "", "listed ."]
    check_history(dag.to_messages())
