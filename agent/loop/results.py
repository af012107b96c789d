"""Results of runs, and paused runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NoReturn, Self

from pydantic import AliasChoices, ConfigDict, Field, StrictBool

from ..errors import ConfigurationError
from ..types import AgentRequest, AgentResponse, Attempt, JsonObject, Message, Role, ToolCall, ToolResult, Usage, Value
from ..types._base import Json, SequenceOf, validate_with
from ..types.response import OutputT
from .events import AgentMessage, coerce_message
from .journal import Outcome

Count = Annotated[int, Field(ge=0, strict=True)]


class PendingCall(Value, frozen=True):
    """A tool call that waits for approval, or for a result from the application."""

    id: str
    """Identifies the call in `approve`, `deny` and `answer`: its own id, or `outer/inner` for a call of a sub-agent."""
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

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    approved: StrictBool = False
    reason: str | None = None
    arguments: JsonObject | None = None
    """Replaces the model's arguments."""
    answered: StrictBool = False
    """Whether `answer` is the tool result. The tool is not executed then."""
    answer: Json = None


class WaitingCall(Value, frozen=True):
    """A waiting call of the open turn. The call itself is in the messages."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    id: str
    reason: str = ""
    kind: Literal["approval", "external"] = "approval"
    run: PausedRun | None = None
    """For a sub-agent's call: its paused run."""
    spent: SequenceOf[AgentResponse] = ()
    """Usage and cost of the sub-agent so far."""


class SessionPlace(Value, frozen=True):
    """The position in a session where a run was started."""

    id: str
    heads: SequenceOf[str] = ()


class RunNotes(Value, frozen=True):
    """State of a paused run besides its conversation."""

    digest: str = ""
    start: Count | None = None
    """Like `PausedRun.start`, but also counts messages with custom roles."""
    asides: SequenceOf[tuple[Count, JsonObject]] = ()
    """Messages with custom roles, with their positions in the history."""
    outcomes: dict[str, Outcome] = Field(default_factory=dict)
    misfits: SequenceOf[str] = ()
    repairs: Count = 0
    repeats: dict[str, tuple[str, Count]] = Field(default_factory=dict)
    steering: SequenceOf[JsonObject] = ()
    """Queued messages that the model has not seen, as dicts."""
    follow_ups: SequenceOf[JsonObject] = ()


class PausedRun(Value, frozen=True, extra="ignore"):
    """A run that waits for decisions. It is plain data: store it with `to_json`, and resume it with `run`.

    Resume it once, or give the run a journal: only a journal knows which calls were executed since.

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
    text = result.paused.to_json()

    paused = PausedRun.from_json(text)
    assert agent.run(paused.approve()).text == "Done."
    ```
    """

    version: Literal[2] = 2
    run_id: str
    request: AgentRequest
    messages: SequenceOf[Message] = ()
    """The conversation so far. It ends with the open turn: the model's calls and the first of their results."""
    start: Count = 0
    """Number of messages before the run."""
    turn: Count = 0
    waiting: SequenceOf[WaitingCall] = ()
    """Calls of the open turn that wait for a decision."""
    held: SequenceOf[str] = ()
    """Approved calls that run after the calls before them. The calls of this turn run one by one."""
    verdicts: dict[str, Verdict] = Field(default_factory=dict)
    results: SequenceOf[ToolResult] = ()
    """Results of calls after a waiting call."""
    usage: Usage | None = None
    known_cost: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = Field(
        default=None, validation_alias=AliasChoices("known_cost", "cost")
    )
    """US dollars, without responses whose price is unknown."""
    costs_known: bool = True
    """Whether every response has a price."""
    attempts: SequenceOf[Attempt] = ()
    answers: SequenceOf[AgentResponse] = ()
    """Usage, cost and model of each response in the run, without content."""
    warnings: SequenceOf[str] = ()
    session: SessionPlace | None = None
    """The session that started the run, if any."""
    notes: RunNotes = Field(default_factory=RunNotes)

    @property
    def cost(self) -> float | None:
        """US dollars so far; None if the price of a response is unknown."""
        return self.known_cost if self.costs_known else None

    def to_json(self) -> str:
        """Serialize the run. Protect the JSON, which holds the conversation; tools are stored by name."""
        return self.model_dump_json(exclude_none=True)

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Read a paused run. An invalid document raises a ConfigurationError that names the field."""
        paused = validate_with(lambda: cls.model_validate_json(text))
        paused.check()
        return paused

    def check(self) -> None:
        """Raise ConfigurationError unless every call of the open turn has a result, waits, or is held."""
        _check(self)

    def approve(self, *ids: str, arguments: Mapping[str, Any] | None = None) -> Self:
        """Approve these calls, or all that wait for approval.

        Args:
            arguments: Replaces the model's arguments, for a single call.
        """
        if arguments is None:
            return self._prepare_call(ids, Verdict(approved=True))
        if len(ids) != 1:
            raise ConfigurationError(
                "arguments needs exactly one call id.", field="ids", fix="Use approve(id, arguments=...)."
            )
        return self._prepare_call(ids, Verdict(approved=True, arguments=dict(arguments)))

    def deny(self, *ids: str, reason: str = "The call was denied.") -> Self:
        """Deny these calls, or all that wait for approval. The model gets the reason."""
        return self._prepare_call(ids, Verdict(reason=reason))

    def answer(self, id: str, result: Any) -> Self:  # Any: a result of any type
        """Provide the result of a call; the tool is not executed."""
        return self._prepare_call((id,), Verdict(answered=True, answer=result))

    @property
    def pending(self) -> Sequence[PendingCall]:
        """The waiting calls, including those of sub-agents, in execution order."""
        return tuple(place.pending for place in self._find_decisions())

    @property
    def undecided(self) -> Sequence[PendingCall]:
        """The pending calls without a verdict."""
        return tuple(place.pending for place in self._find_decisions() if not place.is_decided)

    @property
    def has_verdicts(self) -> bool:
        """Whether any call was decided since the run paused."""
        return bool(self.verdicts) or any(one.run is not None and one.run.has_verdicts for one in self.waiting)

    def _prepare_call(self, ids: Sequence[str], verdict: Verdict) -> Self:
        places = {place.pending.id: place for place in self._find_decisions()}
        if unknown := [id for id in ids if id not in places]:
            raise ConfigurationError(
                f"{', '.join(map(repr, unknown))}: no such pending call in this run.",
                field="ids",
                fix=f"Pending calls: {', '.join(map(repr, places)) or 'none'}.",
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
            one.model_copy(update={"run": one.run._prepare_call(nested[one.id], verdict)})
            if one.run is not None and one.id in nested
            else one
            for one in self.waiting
        ]
        return self.model_copy(update={"verdicts": verdicts, "waiting": tuple(waiting)})

    def _find_decisions(self) -> Iterator[_PendingDecision]:
        """Yield each pending call. The ids of sub-agents' calls get a prefix that makes them unique."""
        self.check()
        calls = {call.id: call for call in open_turn(self.messages)[1]}
        taken = {one.id for one in self.waiting}
        for one in self.waiting:
            if one.run is None:
                pending = PendingCall(id=one.id, call=calls[one.id], reason=one.reason, kind=one.kind)
                yield _PendingDecision(pending, one, None, one.id in self.verdicts)
                continue
            undecided = {inner.id for inner in one.run.undecided}
            for inner in one.run.pending:
                id = f"{one.id}/{inner.id}"
                while id in taken:
                    id += "_"
                taken.add(id)
                yield _PendingDecision(inner.model_copy(update={"id": id}), one, inner.id, inner.id not in undecided)


@dataclass(frozen=True, slots=True)
class _PendingDecision:
    """A pending call, and where its verdict is stored."""

    pending: PendingCall
    waiting: WaitingCall
    nested_id: str | None
    is_decided: bool


def open_turn(messages: Sequence[Message]) -> tuple[int, Sequence[ToolCall]]:
    """Return the position of the last model response, and its calls."""
    place = next((at for at in reversed(range(len(messages))) if messages[at].role is Role.ASSISTANT), None)
    if place is None:
        _reject("messages", "there is no model response")
    calls = tuple(messages[place].tool_calls or ())
    ids = [call.id for call in calls]
    if not calls:
        _reject("messages", "the last response has no tool calls")
    if len(set(ids)) < len(ids) or not all(ids):
        _reject("messages", "the tool calls of the last response have missing or repeated ids")
    return place, calls


def results_in(messages: Sequence[Message]) -> list[ToolResult]:
    """Return the tool results in the messages after a response."""
    parts = [part for message in messages for part in message.parts]
    results = [part for part in parts if isinstance(part, ToolResult)]
    if len(results) < len(parts) or any(message.role is not Role.TOOL for message in messages):
        _reject("messages", "the last response is followed by something other than tool results")
    return results


def read_history(paused: PausedRun) -> tuple[list[AgentMessage], int]:
    """Return the conversation with messages of custom roles, and its length before the run."""
    history: list[AgentMessage] = list(paused.messages)
    for place, message in paused.notes.asides:
        if place > len(history):
            _reject("notes", f"position {place} is outside the conversation")
        history.insert(place, dict(message))
    start = paused.start if paused.notes.start is None else paused.notes.start
    if start > len(history) or sum(isinstance(one, Message) for one in history[:start]) != paused.start:
        _reject("notes", f"the run cannot start at message {start}")
    return history, start


def _check(paused: PausedRun) -> None:
    place, calls = open_turn(paused.messages)
    ids = [call.id for call in calls]
    answered = [result.tool_call_id for result in results_in(paused.messages[place + 1 :])]
    if answered != ids[: len(answered)]:
        _reject("messages", "the results after the last response do not belong to its first calls")
    later = [result.tool_call_id for result in paused.results]
    waiting = [one.id for one in paused.waiting]
    for field, named in (("results", later), ("waiting", waiting), ("held", paused.held)):
        if unknown := set(named) - set(ids):
            _reject(field, f"the open turn has no call {_names(unknown)}")
        if len(set(named)) < len(named):
            _reject(field, "a call occurs twice")
    if duplicates := set(answered) & set(later):
        _reject("results", f"{_names(duplicates)} has two results")
    done = {*answered, *later}
    if duplicates := done & set(waiting):
        _reject("waiting", f"{_names(duplicates)} has a result already")
    if duplicates := (done | set(waiting)) & set(paused.held):
        _reject("held", f"{_names(duplicates)} waits or has a result already")
    if missing := set(ids) - done - set(waiting) - set(paused.held):
        _reject("waiting", f"{_names(missing)} has no result and does not wait")
    if not waiting:
        _reject("waiting", "no call waits for a decision")
    if any(ids.index(id) < min(map(ids.index, waiting)) for id in paused.held):
        _reject("held", "a held call has no waiting call before it")
    if unknown := set(paused.verdicts) - {one.id for one in paused.waiting if one.run is None}:
        _reject("verdicts", f"{_names(unknown)} does not wait")
    if paused.start > place:
        _reject("start", f"the run cannot start at message {paused.start}")
    answers = sum(message.role is Role.ASSISTANT for message in paused.messages[paused.start :])
    if not 1 <= paused.turn <= answers:
        _reject("turn", f"there are {answers} responses")
    if len(paused.answers) not in (0, paused.turn):
        _reject("answers", f"there are {paused.turn} turns")
    read_history(paused)
    if unknown := (set(paused.notes.outcomes) | set(paused.notes.misfits)) - done:
        _reject("notes", f"{_names(unknown)} has no result")
    for message in (*paused.notes.steering, *paused.notes.follow_ups):
        coerce_message(message)
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
    """The last response of a run, with the usage, cost and route of the whole run."""

    __slots__ = ("_responses",)
    _carried: ClassVar[tuple[str, ...]] = ("_raw", "_dag", "_responses")

    run_id: str = ""
    turns: int = 0
    """Number of model calls."""
    messages: SequenceOf[Message] = ()
    """Messages the run added: prompts, responses and tool results."""
    paused: PausedRun | None = None
    """Set if the run waits for decisions."""

    if not TYPE_CHECKING:
        __hash__ = AgentResponse.__hash__

    @property
    def responses(self) -> Sequence[AgentResponse]:
        """Each response of the run, with its own usage and cost. Not part of equality, dumps and pickles."""
        responses: Sequence[AgentResponse] = getattr(self, "_responses", ())
        return responses
