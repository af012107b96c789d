"""Large graphs: no recursion, and costs that do not grow with age."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from agent.graph import DAG, Node
from agent.types import AgentRequest, Message, Role
from benchmarks.conversations import append_ratio, bytes_per_node
from tests.conftest import SEED
from tests.graph.random_dags import Gardener
from tests.support.cases import examples

LONG = examples(20_000, 100_000)


@pytest.fixture(scope="module")
def chain() -> DAG:
    dag = DAG()
    for number in range(LONG):
        dag = dag.add(Message(Role.USER if number % 2 else Role.ASSISTANT, f"turn {number}"))
    return dag


@pytest.fixture(scope="module")
def diamonds() -> DAG:
    """Again and again, fifty branches that part and join."""
    dag = DAG().user("begin")
    for number in range(LONG // 50):
        branches = [Node.with_parents(dag.heads, Message.assistant(f"{number}.{branch}")) for branch in range(50)]
        dag = replace(dag, heads=(Node.with_parents(branches, Message.user("joined")),))
    return dag


@pytest.mark.parametrize("name", ["chain", "diamonds"])
def test_a_large_graph_is_walked_saved_loaded_and_drawn(
    name: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    dag: DAG = request.getfixturevalue(name)
    nodes = dag.nodes()
    assert len(nodes) == (LONG if name == "chain" else LONG + LONG // 50 + 1)
    places = {id(node): place for place, node in enumerate(nodes)}
    assert all(places[id(parent)] < places[id(node)] for node in nodes for parent in node.parents)
    assert len(dag.to_messages()) == len(nodes)
    dag.save(tmp_path / "graph.json")
    loaded = DAG.load(tmp_path / "graph.json")
    assert [node.id for node in loaded.nodes()] == [node.id for node in nodes]
    drawn = str(dag)
    assert drawn.count("●") == len(nodes)
    assert dag.mermaid().count("-->") == sum(len(node.parents) for node in nodes)


def test_two_long_branches_are_compared_and_rebased_without_recursion(chain: DAG) -> None:
    mine, theirs = chain.user("mine"), chain.back(LONG // 2).user("theirs")
    parted = mine.diff(theirs)
    assert (len(parted.only_first), len(parted.only_second), len(parted.common)) == (LONG // 2 + 1, 1, LONG // 2)
    ancestor = mine.common_ancestor(theirs)
    assert ancestor is theirs.back().head
    assert len(theirs.rebase(mine).nodes()) == LONG + 2


@pytest.mark.timing
def test_adding_costs_the_same_however_long_the_conversation_is() -> None:
    assert append_ratio(100_000) <= 1.2


def test_a_node_is_small() -> None:
    assert bytes_per_node(20_000) < 400


@pytest.mark.soak
def test_a_million_turns_cost_the_same_each() -> None:
    assert append_ratio(1_000_000) <= 1.2


# Messages of merged graphs


def test_any_merged_conversation_is_taken_by_all_four_vendors() -> None:
    from tests.loop.result_checks import _judges

    judges = list(_judges())
    chance = random.Random(SEED)
    tried = 0
    for seed in range(40):
        for dag in chance.sample(family := Gardener(seed).grow(14), min(2, len(family))):
            messages = dag.to_messages()
            for judge, model in judges:
                judge(AgentRequest(model=model, messages=messages, input="Go on."))
            tried += 1
    assert tried >= 60
