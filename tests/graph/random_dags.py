"""Random graphs: conversations that branch, merge, are rebase_heads and go on."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from agent.graph import DAG
from agent.types import Message, Role, TextContent, ThinkingContent, ToolCall, ToolExecution, ToolResult, Usage

NAMES = ("look", "read", "write")


class Gardener:
    """Grows a family of graphs by random moves. The same seed grows the same family."""

    def __init__(self, seed: int, *, content_ids: bool = False) -> None:
        self._chance = random.Random(seed)
        self._calls = 0
        self.family: list[DAG] = [DAG(content_ids=content_ids).system("Be brief.").user("begin")]

    def grow(self, moves: int) -> list[DAG]:
        for _ in range(moves):
            self._chance.choice(
                (self._say, self._say, self._answer, self._call, self._call, self._branch, self._merge, self._rebase)
            )()
        return self.family

    def _pick(self) -> int:
        return self._chance.randrange(len(self.family))

    def _put(self, place: int, dag: DAG) -> None:
        self.family[place] = dag

    def _say(self) -> None:
        place = self._pick()
        self._put(place, self.family[place].user(f"said {self._chance.randrange(99)}"))

    def _answer(self) -> None:
        place = self._pick()
        content: list[Any] = [TextContent(text=f"answer {self._chance.randrange(99)}")]
        if self._chance.random() < 0.2:
            content.insert(0, ThinkingContent(thinking="hm"))
        usage = Usage(prompt_tokens=self._chance.randrange(50), completion_tokens=self._chance.randrange(50))
        self._put(place, self.family[place].add(Message(Role.ASSISTANT, content, usage=usage), cost=0.01))

    def _call(self) -> None:
        """A turn with calls; their results come as one message, as several, in part, reversed, or not at all."""
        place = self._pick()
        calls = [self._new_call() for _ in range(self._chance.randint(1, 3))]
        dag = self.family[place].assistant([TextContent(text="calling"), *calls])
        if self._chance.random() < 0.4:
            dag = dag.tool_execution(
                *(ToolExecution(tool_name=call.name, tool_use_id=call.id, result="ran") for call in calls)
            )
        results = [ToolResult(tool_call_id=call.id, name=call.name, content=f"result of {call.id}") for call in calls]
        match self._chance.randrange(6):
            case 0:
                dag = dag.tool_result(*results)
            case 1:
                for result in results:
                    dag = dag.tool_result(result)
            case 2:  # each result in a branch of its own, joined by whatever comes next
                dag = DAG.merge(*(dag.tool_result(result) for result in results))
            case 3:
                dag = dag.tool_result(*reversed(results))
            case 4:
                dag = dag.tool_result(results[0])
            case _:
                pass
        self._put(place, dag)

    def _new_call(self) -> ToolCall:
        self._calls += 1
        number = self._calls if self._chance.random() < 0.9 else self._chance.randint(1, self._calls)  # ids come twice
        return ToolCall(id=f"call_{number}", name=self._chance.choice(NAMES), arguments={"n": number})

    def _branch(self) -> None:
        dag = self.family[self._pick()]
        nodes = dag.nodes()
        self.family.append(replace(dag, heads=(nodes[self._chance.randrange(len(nodes))],)))

    def _merge(self) -> None:
        one, two = self._pick(), self._pick()
        self.family.append(self.family[one].merge(self.family[two]))

    def _rebase(self) -> None:
        one, two = self._pick(), self._pick()
        self.family.append(self.family[one].rebase(self.family[two]))
