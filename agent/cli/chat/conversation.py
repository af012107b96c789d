"""The conversation of a chat: its place in the store, who is asked, and every way to change it.

A turn is written when it is complete: all of it at once, or nothing. Nothing here reads a keyboard or writes to a
terminal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...client import Client
from ...errors import AgentError, ConfigurationError
from ...graph import DAG, Message
from ...graph.dag import rewind_last_turn
from ...loop.hooks import BeforeToolCall
from ...loop.results import RunResult
from ...loop.streams import RunStream
from ...sessions import AgentSession
from ...sessions.persistence import Keeper
from ...stores.base import ConflictError, SessionNotFoundError, SessionRecord, check_session_id
from ...stores.sqlite import SqliteStore
from ...types import ToolLoopConfig, Usage
from .records import (
    MODELS,
    Family,
    Spent,
    copied,
    family_of,
    found,
    free_id,
    instructions_of,
    is_question,
    nodes_of,
    spent_on,
    title_from,
)

MakeCaller = Callable[[Sequence[str]], Client]
"""From `provider:model`, once or several times, to whoever is asked."""


@dataclass
class Asking:
    """Who is asked in a chat, and what they are offered."""

    make: MakeCaller
    models: Sequence[str]
    tools: Sequence[Any] = ()
    before_tool_call: BeforeToolCall | None = None
    loop: ToolLoopConfig = field(default_factory=ToolLoopConfig)
    caller: Client = field(init=False)

    def __post_init__(self) -> None:
        self.caller = self.make(self.models)

    def change(self, models: Sequence[str]) -> None:
        """Ask somebody else from now on. If they cannot be asked, nothing has changed."""
        self.caller = self.make(models)
        self.models = tuple(models)


class Turn:
    """A question that is being answered. When its events have been read, `keep` writes it down."""

    def __init__(self, conversation: Conversation, start: DAG, question: Message) -> None:
        asking = conversation.asking
        self.question = question
        self._conversation = conversation
        self._session = AgentSession(asking.caller, conversation.id, tools=asking.tools, dag=start)
        options: dict[str, Any] = {"before_tool_call": asking.before_tool_call, "loop": asking.loop}
        if (instructions := instructions_of(start)) is not None:
            options["system"] = instructions
        self.run: RunStream = self._session.run_stream(question, **options)

    def keep(self) -> RunResult:
        """The result, written down. Raises what the run failed with, or the store's error: then nothing is kept.

        If somebody else went on with the session meanwhile, the turn is kept in a fork, and the conversation goes on
        there; `Conversation.id` says where.
        """
        conversation = self._conversation
        try:
            result: RunResult = self.run.result
        except AgentError as error:
            conversation.count(error.result)  # what was answered before it failed has been paid for
            raise
        conversation.count(result)
        if result.paused is not None:
            names = ", ".join(call.name for call in result.paused.pending)
            raise ConfigurationError(
                f"The model waits for {names}, which only the caller can answer.", field="tools", fix="Use other tools."
            )
        try:
            conversation.adopt(self._session.dag, title=title_from(self.question.text) or "(no words)")
        except (ConflictError, SessionNotFoundError):
            conversation.branch(self._session.dag, None)
        conversation.unanswered = None
        return result


class Conversation:
    """A conversation that may be in the store, and is written to it with its first turn.

    Args:
        store: Where conversations are kept.
        asking: Who is asked.
        record: The session to go on with; None for a new one.
        name: Of a new one; by default it gets a short one.
        system: What the model is told before anything else.
    """

    def __init__(
        self,
        store: SqliteStore,
        asking: Asking,
        record: SessionRecord | None = None,
        *,
        name: str | None = None,
        system: str | None = None,
    ) -> None:
        if name is not None:
            check_session_id(name)
        self.store = store
        self.asking = asking
        self.run_spent = Spent()
        """Of all answers since the chat began, whatever became of them."""
        self.interrupted = 0
        """Answers that were stopped: what they cost is not known."""
        self.unanswered: Message | None = None
        """A question whose turn failed or was stopped."""
        self.is_named = name is not None
        """Whether its name was chosen, or is that of a session in the store."""
        self._metadata: dict[str, Any] = {}
        self.title = ""
        self._stale = False
        self._begin(name or free_id(), DAG())
        if record is not None:
            self._take(record)
        if system and system != self.instructions:
            self.instruct(system)

    def _begin(self, id: str, dag: DAG) -> None:
        self.id = id
        self._dag = dag
        self._keeper = Keeper(self.store, id)

    def _take(self, record: SessionRecord) -> None:
        self._begin(record.id, DAG())
        self._dag = self._keeper.read(record)
        self._metadata = dict(record.metadata)
        self.title = record.title
        self.is_named = True
        self._stale = False

    # What it is

    @property
    def is_stored(self) -> bool:
        return self._keeper.version is not None

    @property
    def version(self) -> int:
        """One more after each change in the store; 0 of a conversation that is not there yet."""
        return self._keeper.version or 0

    @property
    def dag(self) -> DAG:
        """As it stands."""
        if self._stale:
            self.reload()
        return self._dag

    @property
    def turns(self) -> int:
        return sum(is_question(node) for node in self.dag.nodes())

    @property
    def instructions(self) -> str | None:
        return instructions_of(self.dag)

    @property
    def spent(self) -> Spent:
        """On the way here."""
        return spent_on(self.dag.nodes())

    @property
    def spent_in_all(self) -> Spent:
        """With everything that was undone."""
        if not self.is_stored:
            return self.spent
        return spent_on(list(nodes_of(self.store.load(self.id)).values()))

    def family(self) -> Family:
        """The graph with all branches, as the store has it, and where this conversation stands in it."""
        if not self.is_stored:
            heads = self.dag.heads
            return Family(heads, {head.id: [self.id] for head in heads}, frozenset())
        return family_of(self.store, self.store.load(self.id))

    # Turns

    def ask(self, question: Message) -> Turn:
        """A turn with that question, which has not begun."""
        turn = Turn(self, self.dag, question)
        self.unanswered = question
        return turn

    def ask_again(self) -> Turn:
        """The last question once more: one that got no answer, or else the last one in place of the answer it got.

        The old answer stays where it is until there is a new one, and in the graph for ever.
        """
        if self.unanswered is not None:
            return self.ask(self.unanswered)
        earlier = rewind_last_turn(self.dag)
        questions = [node.data for node in self.dag.nodes() if is_question(node)]
        if earlier is None or not questions:
            raise ConfigurationError("There is nothing to ask again.", field="/retry", fix="Ask something first.")
        question = questions[-1]
        assert isinstance(question, Message)
        return Turn(self, earlier, question)

    def stopped(self) -> bool:
        """A turn was interrupted at whatever moment. Whether it had been written down by then, the store knows."""
        self.interrupted += 1
        before = self.version
        self._stale = True
        self.reload()
        written = self.version > before
        if written:
            self.unanswered = None
        return written

    def count(self, result: object) -> None:
        """Answers that were paid for, whatever becomes of them."""
        for response in result.responses if isinstance(result, RunResult) else ():
            cost = response.cost_estimate
            self.run_spent += Spent(response.usage or Usage(), cost or 0.0, 1, int(cost is None))

    # Changes

    def adopt(self, dag: DAG, *, title: str = "") -> None:
        """Make this the conversation: written down, if it is in the store or has a title to begin with."""
        if not self.is_stored:
            if title:
                self._create(dag, title)
            self._dag = dag
            return
        rows = self._keeper.unwritten(dag)
        heads = [head.id for head in dag.heads]
        metadata = {**self._metadata, MODELS: list(self.asking.models)}
        changed = None if metadata == self._metadata else metadata
        self._stale = True  # until it is certain what the store has
        assert self._keeper.version is not None
        version = self.store.append(self.id, rows, heads=heads, expected_version=self._keeper.version, metadata=changed)
        self._keeper.wrote(rows, version)
        self._metadata, self._dag, self._stale = metadata, dag, False

    def _create(self, dag: DAG, title: str) -> None:
        rows = self._keeper.unwritten(dag)
        heads = [head.id for head in dag.heads]
        metadata = {**self._metadata, MODELS: list(self.asking.models)}
        self._stale = True
        while True:
            try:
                record = self.store.create(self.id, title=title, metadata=metadata, rows=rows, heads=heads)
                break
            except ConflictError:
                if self.is_named:
                    raise
                self._begin(free_id(), dag)  # a random name can be taken
        self._keeper.wrote(rows, record.version)
        self._metadata, self.title, self.is_named, self._stale = metadata, title, True, False

    def undo(self, turns: int = 1) -> None:
        """Go back to before the last turns. They stay in the graph."""
        dag = self.dag
        for _ in range(turns):
            earlier = rewind_last_turn(dag)
            if earlier is None:
                raise ConfigurationError(
                    "There is no turn to undo." if turns == 1 else f"There are fewer than {turns} turns.",
                    field="/undo",
                    fix="See them with /history.",
                )
            dag = earlier
        self.unanswered = None
        self.adopt(dag)

    def instruct(self, system: str) -> None:
        """From here on, these are the instructions."""
        self.adopt(self.dag.system(system))

    def fork(self, name: str | None = None) -> str:
        """Go on in a new session from here. The old one stays as it is, and its name is returned."""
        if not self.is_stored:
            raise ConfigurationError("There is nothing to branch from yet.", field="/fork", fix="Ask something first.")
        if name is not None:
            check_session_id(name)
        old = self.id
        try:
            self.branch(self.dag, name)
        except ConflictError:
            raise ConfigurationError(
                f"There is a session {name!r} already.", field="/fork", fix=f"Use another name, or /switch {name}"
            ) from None
        return old

    def branch(self, dag: DAG, name: str | None) -> None:
        """Go on with that graph in a session of its own."""
        record = copied(self.store, dag, name, forked_from=self.id, title=self.title, models=self.asking.models)
        self._take(self.store.load(record.id))

    def switch(self, name: str) -> None:
        """Go on with another session of the store."""
        self._take(found(self.store, name))
        self.unanswered = None

    def reload(self) -> None:
        """Take what the store has now."""
        if self._keeper.version is None:
            try:
                self._take(self.store.load(self.id))  # its first turn may have been written after all
            except SessionNotFoundError:
                self._stale = False
        else:
            self._take(self.store.load(self.id))


def chosen_models(record: SessionRecord) -> list[str]:
    """Who was asked last in a stored session; empty if it does not say."""
    models = record.metadata.get(MODELS)
    if isinstance(models, list | tuple) and all(isinstance(model, str) for model in models):
        return list(models)
    return []
