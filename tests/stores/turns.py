"""Distinguishable turns of a conversation, and a check that a session contains complete turns only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agent.stores import SessionRecord

PER_TURN = 3


def row(id: str, parents: Sequence[str] = (), text: str = "") -> dict[str, Any]:
    data = {"role": "user", "content": text or f"This is {id}."}
    return {"id": id, "parents": list(parents), "timestamp": 1700000000.5, "metadata": {"a": [1]}, "data": data}


def turn(name: str, parents: Sequence[str] = (), size: int = 40) -> list[dict[str, Any]]:
    """A question, a call and an answer, which only make sense together."""
    text = f"{name} says something. " * (1 + size // 20)
    question, call = row(f"{name}.0", parents, text), row(f"{name}.1", [f"{name}.0"], text)
    return [question, call, row(f"{name}.2", [f"{name}.1"], text)]


def turns_in(record: SessionRecord) -> list[str]:
    """Return the names of all turns in order, each of them complete and the last the head."""
    assert len(record.nodes) == record.node_count
    assert record.node_count % PER_TURN == 0, "a torn turn"
    names: list[str] = []
    for start in range(0, record.node_count, PER_TURN):
        ids = [node["id"] for node in record.nodes[start : start + PER_TURN]]
        name = ids[0].removesuffix(".0")
        assert ids == [f"{name}.{place}" for place in range(PER_TURN)], "a torn turn"
        assert record.nodes[start]["parents"] == ([f"{names[-1]}.2"] if names else []), "a turn after the wrong one"
        names.append(name)
    assert list(record.heads) == ([f"{names[-1]}.2"] if names else []), "a head that belongs to another turn"
    return names
