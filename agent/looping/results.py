"""What a run comes to, and what is left of one that waits for a person."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, Self

from pydantic import Field

from ..errors import ConfigurationError
from ..types import AgentRequest, AgentResponse, Attempt, JsonObject, Message, ToolCall, ToolResult, Usage, Value
from ..types._base import Json, Many
from ..validation import validated


class PendingCall(Value, frozen=True):
    """A call that waits: for approval, or for a result that only the caller can bring."""

    call: ToolCall
    reason: str = ""
    kind: Literal["approval", "external"] = "approval"

    @property
    def id(self) -> str:
        return self.call.id

    @property
    def name(self) -> str:
        return self.call.name

    @property
    def arguments(self) -> dict[str, Any]:
        return self.call.arguments


class Verdict(Value, frozen=True):
    """What a person said about a pending call."""

    approved: bool = False
    reason: str | None = None
    arguments: JsonObject | None = None
    """In place of the model's."""
    answered: bool = False
    """Whether `answer` is the call's result, and nothing is run."""
    answer: Json = None


class PausedRun(Value, frozen=True, extra="ignore"):
    """A run that waits. It is plain data: write it down with `to_json`, and go on from it anywhere with `run`.

    Go on from it once, or give the run a journal: only that knows which calls have been made since.

    ```python
    from agent import Agent, tool
    from agent.loop import Ask, PausedRun
    from agent.testing import scripted_agent
    from agent.types import ToolCall

    @tool
    def pay(amount: int) -> str:
        return f"paid {amount}"

    agent = scripted_agent(ToolCall(id="call_1", name="pay", arguments={"amount": 5}), "Done.", tools=[pay])
    result = agent.run("Pay five.", before_tool_call=lambda call, context: Ask("Really?"))
    assert result.paused is not None
    kept = result.paused.to_json()

    paused = PausedRun.from_json(kept)
    assert agent.run(paused.approve()).text == "Done."
    ```
    """

    version: Literal[1] = 1
    run_id: str
    request: AgentRequest
    messages: Many[Message] = ()
    """The conversation so far; the last message is the model's, with the calls that wait."""
    start: int = 0
    """How many of the messages were there before the run."""
    turn: int = 0
    pending: Many[PendingCall] = ()
    verdicts: dict[str, Verdict] = Field(default_factory=dict)
    results: Many[ToolResult] = ()
    """Of calls in the same turn that did not have to wait."""
    usage: Usage | None = None
    cost: float | None = None
    costs_known: bool = True
    attempts: Many[Attempt] = ()
    warnings: Many[str] = ()
    notes: Json = None
    """What the loop itself has to remember."""

    def to_json(self) -> str:
        """All of it as text. It holds the conversation, so keep it as carefully as that; tools are only named."""
        return self.model_dump_json(exclude_none=True)

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        return validated(lambda: cls.model_validate_json(text))

    def approve(self, *ids: str, arguments: Mapping[str, Any] | None = None) -> Self:
        """Let calls be made: these, or all that wait for approval. `arguments` replace the model's, of one call."""
        if arguments is None:
            return self._decided(ids, Verdict(approved=True))
        if len(ids) != 1:
            raise ConfigurationError(
                "Arguments are for one call.", field="ids", fix="Name that call: approve(id, arguments=...)."
            )
        return self._decided(ids, Verdict(approved=True, arguments=dict(arguments)))

    def deny(self, *ids: str, reason: str = "The call was denied.") -> Self:
        """Refuse calls: these, or all that wait for approval. The model is told the reason."""
        return self._decided(ids, Verdict(reason=reason))

    def answer(self, id: str, result: Any) -> Self:
        """Bring the result of a call yourself; nothing is run."""
        return self._decided((id,), Verdict(answered=True, answer=result))

    @property
    def undecided(self) -> Sequence[PendingCall]:
        return tuple(one for one in self.pending if one.id not in self.verdicts)

    def _decided(self, ids: Sequence[str], verdict: Verdict) -> Self:
        waiting = {one.id: one for one in self.pending}
        if unknown := [id for id in ids if id not in waiting]:
            raise ConfigurationError(
                f"No call {', '.join(map(repr, unknown))} waits in this run.",
                field="ids",
                fix=f"Use {', '.join(map(repr, waiting)) or 'none: nothing waits'}.",
            )
        chosen = ids or [one.id for one in self.undecided if one.kind == "approval"]
        return self.model_copy(update={"verdicts": {**self.verdicts, **dict.fromkeys(chosen, verdict)}})


class RunResult(AgentResponse, frozen=True):
    """The last answer of a run, with the usage, cost and route of all of it, and the messages it added."""

    __slots__ = ("_responses",)
    _carried: ClassVar[tuple[str, ...]] = ("_raw", "_dag", "_responses")

    run_id: str = ""
    turns: int = 0
    """How often the model was asked."""
    messages: Many[Message] = ()
    """What the run added to the conversation: what was asked, what the model said, what the tools returned."""
    paused: PausedRun | None = None
    """If it is there, the run is not over: calls wait for a person."""

    __hash__ = AgentResponse.__hash__

    @property
    def responses(self) -> Sequence[AgentResponse]:
        """Each answer of the model in this run, with its own usage and cost: outside equality, dumps and pickles."""
        kept: Sequence[AgentResponse] = getattr(self, "_responses", ())
        return kept
