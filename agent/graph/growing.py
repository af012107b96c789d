"""How answers and runs grow a graph: what was asked, what the model said, which tools ran, how it ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ..types import AgentResponse, Message, Role, ToolExecution, ToolResult
from .dag import DAG, facts_of


def grown(dag: DAG, said: Sequence[Message], responses: Sequence[AgentResponse] = ()) -> DAG:
    """The graph with these messages behind it. Each assistant's message gets the facts of its response.

    Tools that ran are drawn beside each other, between the calls and their results.
    """
    answers = iter(responses)
    place = 0
    while place < len(said):
        message = said[place]
        if message.role is Role.ASSISTANT:
            response = next(answers, None)
            dag = dag.add(message, **({} if response is None else facts_of(response)))
            place += 1
            results = _results(said, place)
            if results:
                dag = dag.tool_execution(*(_execution(result) for result in results))
        else:
            dag = dag.add(message)
            place += 1
    return dag


def _results(said: Sequence[Message], place: int) -> list[ToolResult]:
    found: list[ToolResult] = []
    while place < len(said) and said[place].role is Role.TOOL:
        found += [part for part in said[place].parts if isinstance(part, ToolResult)]
        place += 1
    return found


def _execution(result: ToolResult) -> ToolExecution:
    shown: Any = result.content if result.content else ""
    return ToolExecution(
        tool_name=result.name or "", tool_use_id=result.tool_call_id, result=shown, is_error=result.is_error
    )


def without_messages(dag: DAG) -> DAG:
    """The same instructions and tools, and nothing said."""
    kept = DAG(addressed=dag.addressed, extra=dag.extra)
    for node in dag.nodes():
        if not isinstance(node.data, Message | ToolExecution) and node.data.type != "stop_reason":
            kept = kept.add(node.data)
    return kept


def before_last_turn(dag: DAG) -> DAG | None:
    """The graph as it was before somebody last said something; None if nobody has."""
    at = dag
    while at.heads:
        said = any(isinstance(head.data, Message) and _is_said(head.data) for head in at.heads)
        at = at.back()
        if said:
            return replace(at, extra=dag.extra)
    return None


def _is_said(message: Message) -> bool:
    """A person's words, not a tool's."""
    return message.role is Role.USER and not any(isinstance(part, ToolResult) for part in message.parts)
