"""The result of a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, NoReturn, Self

from pydantic import ConfigDict, Field, StrictBool

from ..errors import ConfigurationError
from ..types import AgentRequest, AgentResponse, Attempt, JsonObject, Message, Role, ToolCall, ToolResult, Usage, Value
from ..types._base import Json, SequenceOf, validate_with
from ..types.response import OutputT
from .events import AgentMessage, read_message
from .journal import Outcome

Count = Annotated[int, Field(ge=0, strict=True)]


class PendingCall(Value, frozen=True):
    """A call that waits: for approval, or for a result that only the caller can provide."""

    id: str
    """Names the call in `approve`, `deny` and `answer`: its own id, or `outer/inner` for a call of a sub-agent."""
    call: ToolCall
    reason: str = ""
    kind: Literal["approval", "external"] = "approval"

    @property
    def name(self) -> str:
        return self.call.name

    @property
    def arguments(self) -> dict[str, Any]:
        return self.call.arguments


class Verdict(Value, frozen=True):
    """A decision about one pending call."""

    model_config = ConfigDict(extra="forbid")

    approved: StrictBool = False
    reason: str | None = None
    arguments: JsonObject | None = None
    """Replace the model's arguments."""
    answered: StrictBool = False
    """Whether `answer` is the call's result; nothing is executed then."""
    answer: Json = None


class WaitingCall(Value, frozen=True):
    """Why a call of the open turn waits. The call itself is in the messages."""

    model_config = ConfigDict(extra="forbid")

    id: str
    reason: str = ""
    kind: Literal["approval", "external"] = "approval"
    run: PausedRun | None = None
    """For a call of a sub-agent: its own paused run, whose calls wait."""
    spent: SequenceOf[AgentResponse] = ()
    """Usage and cost of the answers that the sub-agent got so far."""


class SessionPlace(Value, frozen=True):
    """The place in a session where a run was started."""

    id: str
    heads: SequenceOf[str] = ()


class RunNotes(Value, frozen=True):
    """State of the loop besides its conversation."""

    digest: str = ""
    start: Count | None = None
    """Like `PausedRun.start`, counting messages with custom roles too."""
    asides: SequenceOf[tuple[Count, JsonObject]] = ()
    """Messages with custom roles, and their places in the history."""
    outcomes: dict[str, Outcome] = Field(default_factory=dict)
    misfits: SequenceOf[str] = ()
    repairs: Count = 0
    repeats: dict[str, tuple[str, Count]] = Field(default_factory=dict)
    steering: SequenceOf[JsonObject] = ()
    """Messages that were sent to the run and are still to be said, as dictionaries."""
    follow_ups: SequenceOf[JsonObject] = ()


class PausedRun(Value, frozen=True, extra="ignore"):
    """A run that waits for decisions. It is plain data: store it with `to_json`, resume it anywhere with `run`.

    Resume it once, or give the run a journal: only a journal knows which calls have been made since.

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

    version: Literal[2] = 2
    run_id: str
    request: AgentRequest
    messages: SequenceOf[Message] = ()
    """The conversation so far. The open turn is at its end: the model's calls, and the first of their results."""
    start: Count = 0
    """How many of the messages were there before the run."""
    turn: Count = 0
    waiting: SequenceOf[WaitingCall] = ()
    """The calls of the open turn that wait for a decision."""
    held: SequenceOf[str] = ()
    """Calls that are allowed, and made after the ones before them: in this turn, calls are made one by one."""
    verdicts: dict[str, Verdict] = Field(default_factory=dict)
    results: SequenceOf[ToolResult] = ()
    """Results of calls that stand behind a waiting one."""
    usage: Usage | None = None
    cost: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    costs_known: bool = True
    attempts: SequenceOf[Attempt] = ()
    answers: SequenceOf[AgentResponse] = ()
    """Usage, cost and model of each answer in the run, without its content."""
    warnings: SequenceOf[str] = ()
    session: SessionPlace | None = None
    """The session that the run belongs to, if it was started by one."""
    notes: RunNotes = Field(default_factory=RunNotes)

    def to_json(self) -> str:
        """Serialize everything. It holds the conversation, so store it as carefully; tools are only named."""
        return self.model_dump_json(exclude_none=True)

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Read a paused run. A damaged or inconsistent document is a ConfigurationError that names the field."""
        found = validate_with(lambda: cls.model_validate_json(text))
        found.check()
        return found

    def check(self) -> None:
        """Raise ConfigurationError unless every call of the open turn has a result, or waits, or is held."""
        _check(self)

    def approve(self, *ids: str, arguments: Mapping[str, Any] | None = None) -> Self:
        """Approve these calls, or all that wait for approval. `arguments` replace the model's, for one call."""
        if arguments is None:
            return self._decide(ids, Verdict(approved=True))
        if len(ids) != 1:
            raise ConfigurationError(
                "Arguments are for one call.", field="ids", fix="Name that call: approve(id, arguments=...)."
            )
        return self._decide(ids, Verdict(approved=True, arguments=dict(arguments)))

    def deny(self, *ids: str, reason: str = "The call was denied.") -> Self:
        """Deny these calls, or all that wait for approval. The model gets the reason."""
        return self._decide(ids, Verdict(reason=reason))

    def answer(self, id: str, result: Any) -> Self:
        """Provide the result of a call; nothing is executed."""
        return self._decide((id,), Verdict(answered=True, answer=result))

    @property
    def pending(self) -> Sequence[PendingCall]:
        """The calls that wait, those of sub-agents included, as they will be executed."""
        return tuple(place.pending for place in self._places())

    @property
    def undecided(self) -> Sequence[PendingCall]:
        """The pending calls without a verdict."""
        return tuple(place.pending for place in self._places() if not place.is_decided)

    @property
    def has_verdicts(self) -> bool:
        """Whether anything was decided since the run paused."""
        return bool(self.verdicts) or any(one.run is not None and one.run.has_verdicts for one in self.waiting)

    def _decide(self, ids: Sequence[str], verdict: Verdict) -> Self:
        places = {place.pending.id: place for place in self._places()}
        if unknown := [id for id in ids if id not in places]:
            raise ConfigurationError(
                f"No call {', '.join(map(repr, unknown))} waits in this run.",
                field="ids",
                fix=f"Use {', '.join(map(repr, places)) or 'none: nothing waits'}.",
            )
        verdicts = dict(self.verdicts)
        nested: dict[str, list[str]] = {}
        for id in ids or [one.id for one in self.undecided if one.kind == "approval"]:
            place = places[id]
            if place.nested_id is None:
                verdicts[id] = verdict
            else:
                nested.setdefault(place.waiting.id, []).append(place.nested_id)
        waiting = [
            one.model_copy(update={"run": one.run._decide(nested[one.id], verdict)})
            if one.run is not None and one.id in nested
            else one
            for one in self.waiting
        ]
        return self.model_copy(update={"verdicts": verdicts, "waiting": tuple(waiting)})

    def _places(self) -> Iterator[_Place]:
        """Where each pending call waits. Ids are unique: own calls keep theirs, those of sub-agents get a prefix."""
        self.check()
        calls = {call.id: call for call in open_turn(self.messages)[1]}
        taken = {one.id for one in self.waiting}
        for one in self.waiting:
            if one.run is None:
                pending = PendingCall(id=one.id, call=calls[one.id], reason=one.reason, kind=one.kind)
                yield _Place(pending, one, None, one.id in self.verdicts)
                continue
            undecided = {inner.id for inner in one.run.undecided}
            for inner in one.run.pending:
                id = f"{one.id}/{inner.id}"
                while id in taken:
                    id += "_"
                taken.add(id)
                yield _Place(inner.model_copy(update={"id": id}), one, inner.id, inner.id not in undecided)


@dataclass(frozen=True, slots=True)
class _Place:
    """One pending call, and where its verdict goes."""

    pending: PendingCall
    waiting: WaitingCall
    nested_id: str | None
    is_decided: bool


def open_turn(messages: Sequence[Message]) -> tuple[int, Sequence[ToolCall]]:
    """The place of the last answer of the model, and its calls."""
    place = next((at for at in reversed(range(len(messages))) if messages[at].role is Role.ASSISTANT), None)
    if place is None:
        _reject("messages", "it holds no answer of the model")
    calls = tuple(messages[place].tool_calls or ())
    ids = [call.id for call in calls]
    if not calls:
        _reject("messages", "its last answer makes no calls")
    if len(set(ids)) < len(ids) or not all(ids):
        _reject("messages", "the calls of its last answer have no ids of their own")
    return place, calls


def results_in(messages: Sequence[Message]) -> list[ToolResult]:
    """The results in the messages behind an answer."""
    parts = [part for message in messages for part in message.parts]
    results = [part for part in parts if isinstance(part, ToolResult)]
    if len(results) < len(parts) or any(message.role is not Role.TOOL for message in messages):
        _reject("messages", "something other than results stands behind its last answer")
    return results


def read_history(paused: PausedRun) -> tuple[list[AgentMessage], int]:
    """The conversation with messages of custom roles, and how much of it was there before the run."""
    history: list[AgentMessage] = list(paused.messages)
    for place, message in paused.notes.asides:
        if place > len(history):
            _reject("notes", f"there is no place {place} in the conversation")
        history.insert(place, dict(message))
    start = paused.start if paused.notes.start is None else paused.notes.start
    if start > len(history) or sum(isinstance(one, Message) for one in history[:start]) != paused.start:
        _reject("notes", f"the run cannot have started at {start}")
    return history, start


def _check(paused: PausedRun) -> None:
    place, calls = open_turn(paused.messages)
    ids = [call.id for call in calls]
    told = [result.tool_call_id for result in results_in(paused.messages[place + 1 :])]
    if told != ids[: len(told)]:
        _reject("messages", "the results behind its last answer are not those of its first calls")
    behind = [result.tool_call_id for result in paused.results]
    waiting = [one.id for one in paused.waiting]
    for field, named in (("results", behind), ("waiting", waiting), ("held", paused.held)):
        if unknown := set(named) - set(ids):
            _reject(field, f"{_names(unknown)} is no call of the open turn")
        if len(set(named)) < len(named):
            _reject(field, "a call is named twice")
    if both := set(told) & set(behind):
        _reject("results", f"{_names(both)} has a second result")
    done = {*told, *behind}
    if both := done & set(waiting):
        _reject("waiting", f"{_names(both)} has a result")
    if both := (done | set(waiting)) & set(paused.held):
        _reject("held", f"{_names(both)} waits, or has a result")
    if left_out := set(ids) - done - set(waiting) - set(paused.held):
        _reject("waiting", f"{_names(left_out)} has no result, and does not wait")
    if not waiting:
        _reject("waiting", "no call waits")
    if any(ids.index(id) < min(map(ids.index, waiting)) for id in paused.held):
        _reject("held", "a call is held, though none before it waits")
    if unknown := set(paused.verdicts) - {one.id for one in paused.waiting if one.run is None}:
        _reject("verdicts", f"{_names(unknown)} does not wait")
    if paused.start > place:
        _reject("start", f"the run cannot have started at {paused.start}")
    answers = sum(message.role is Role.ASSISTANT for message in paused.messages[paused.start :])
    if not 1 <= paused.turn <= answers:
        _reject("turn", f"there are {answers} answers")
    if len(paused.answers) not in (0, paused.turn):
        _reject("answers", f"there are {paused.turn} turns")
    read_history(paused)
    if unknown := (set(paused.notes.outcomes) | set(paused.notes.misfits)) - done:
        _reject("notes", f"{_names(unknown)} has no result")
    for message in (*paused.notes.steering, *paused.notes.follow_ups):
        read_message(message)
    for one in paused.waiting:
        if one.run is not None:
            one.run.check()


def _names(ids: set[str]) -> str:
    return ", ".join(sorted(map(repr, ids)))


def _reject(field: str, problem: str) -> NoReturn:
    raise ConfigurationError(
        f"The paused run is inconsistent: {problem}.", field=field, fix="Pass it as the run returned it."
    )


class RunResult(AgentResponse[OutputT], frozen=True):
    """The last answer of a run, with the usage, cost and route of all of it, and the messages it added."""

    __slots__ = ("_responses",)
    _carried: ClassVar[tuple[str, ...]] = ("_raw", "_dag", "_responses")

    run_id: str = ""
    turns: int = 0
    """How often the model was asked."""
    messages: SequenceOf[Message] = ()
    """What the run added to the conversation: what was asked, what the model said, what the tools returned."""
    paused: PausedRun | None = None
    """If it is there, the run is not over: calls wait for a person."""

    __hash__ = AgentResponse.__hash__

    @property
    def responses(self) -> Sequence[AgentResponse]:
        """Each answer of the model in this run, with its own usage and cost: outside equality, dumps and pickles."""
        kept: Sequence[AgentResponse] = getattr(self, "_responses", ())
        return kept
