"""The session of a chat: turns, undo, forks, and their storage. It does no terminal I/O.

A turn is stored when it is complete: as a whole or not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...client import Client
from ...errors import AgentError, ConfigurationError
from ...graph import DAG, Message
from ...graph.dag import rewind_last_turn
from ...graph.files import decode_nodes
from ...graph.node import is_question
from ...loop.hooks import BeforeToolCall
from ...loop.results import RunResult
from ...loop.streams import RunStream
from ...sessions import AgentSession
from ...sessions.state import SessionWriter
from ...stores.base import ConflictError, SessionNotFoundError, SessionRecord, check_session_id
from ...stores.sqlite import SqliteStore
from ...types import ToolLoopConfig, Usage
from .records import (
    MODELS,
    SessionTree,
    SpendingTotal,
    create_fork,
    find_instructions,
    load_by_prefix,
    load_tree,
    make_title,
    random_session_id,
    sum_spending,
)


@dataclass
class ChatSettings:
    """The models of a chat, and the tools offered to them."""

    create_client: Callable[[Sequence[str]], Client]
    models: Sequence[str]
    tools: Sequence[Any] = ()
    before_tool_call: BeforeToolCall | None = None
    loop: ToolLoopConfig = field(default_factory=ToolLoopConfig)
    client: Client = field(init=False)

    def __post_init__(self) -> None:
        self.client = self.create_client(self.models)

    def set_models(self, models: Sequence[str]) -> None:
        """Use other models from now on. If the client cannot be created, nothing changes."""
        self.client = self.create_client(models)
        self.models = tuple(models)


class ChatTurn:
    """A turn in progress. Iterate over the events of `run`, then call `finish`."""

    def __init__(self, chat: ChatSession, start: DAG, question: Message) -> None:
        settings = chat.settings
        self.question = question
        self._chat = chat
        self._session = AgentSession(settings.client, chat.id, tools=settings.tools, dag=start)
        options: dict[str, Any] = {"before_tool_call": settings.before_tool_call, "loop": settings.loop}
        if (instructions := find_instructions(start)) is not None:
            options["system"] = instructions
        self.run: RunStream = self._session.run_stream(question, **options)

    def finish(self) -> RunResult:
        """Store the turn and return its result.

        If another process has changed the session meanwhile, the turn is stored in a fork, where the chat continues.
        """
        chat = self._chat
        try:
            result: RunResult = self.run.result
        except AgentError as error:
            chat.count_responses(error.result)  # responses before the failure are billed
            raise
        chat.count_responses(result)
        if result.paused is not None:
            names = ", ".join(call.name for call in result.paused.pending)
            raise ConfigurationError(
                f"The run is paused for {names}, which has no function to run.", field="tools", fix="Use other tools."
            )
        try:
            chat.save(self._session.dag, title=make_title(self.question.text) or "(no text)")
        except (ConflictError, SessionNotFoundError):
            chat.continue_in_fork(self._session.dag, None)
        chat.unanswered = None
        return result


class ChatSession:
    """A conversation that is created in the store with its first turn.

    Args:
        store: The store of all sessions.
        settings: Models and tools.
        record: The session to continue; None for a new one.
        name: The name of a new session; by default a short random one.
        system: The system prompt.
    """

    def __init__(
        self,
        store: SqliteStore,
        settings: ChatSettings,
        record: SessionRecord | None = None,
        *,
        name: str | None = None,
        system: str | None = None,
    ) -> None:
        if name is not None:
            check_session_id(name)
        self.store = store
        self.settings = settings
        self.chat_spending: SpendingTotal = SpendingTotal()
        """All responses since the chat started, including failed and undone turns."""
        self.interrupted: int = 0
        """Interrupted responses, whose cost is unknown."""
        self.unanswered: Message | None = None
        """The question of a turn that failed or was interrupted."""
        self.is_named: bool = name is not None
        """Whether the name was chosen, or is stored."""
        self._metadata: dict[str, Any] = {}
        self.title: str = ""
        self._is_stale = False
        self._reset(name or random_session_id(), DAG())
        if record is not None:
            self._load(record)
        if system and system != self.instructions:
            self.set_instructions(system)

    def _reset(self, id: str, dag: DAG) -> None:
        self.id = id
        self._dag = dag
        self._keeper = SessionWriter(self.store, id)

    def _load(self, record: SessionRecord) -> None:
        self._reset(record.id, DAG())
        self._dag = self._keeper.read(record)
        self._metadata = dict(record.metadata)
        self.title = record.title
        self.is_named = True
        self._is_stale = False

    # State

    @property
    def is_stored(self) -> bool:
        return self._keeper.version is not None

    @property
    def dag(self) -> DAG:
        """The current conversation."""
        if self._is_stale:
            self.reload()
        return self._dag

    @property
    def turns(self) -> int:
        return sum(is_question(node) for node in self.dag.nodes())

    @property
    def instructions(self) -> str | None:
        return find_instructions(self.dag)

    @property
    def spending(self) -> SpendingTotal:
        """Of the current conversation."""
        return sum_spending(self.dag.nodes())

    @property
    def total_spending(self) -> SpendingTotal:
        """Of the session, including undone turns."""
        if not self.is_stored:
            return self.spending
        return sum_spending(list(decode_nodes(self.store.load(self.id).nodes).values()))

    def load_tree(self) -> SessionTree:
        """Load the session with its forks and undone turns."""
        if not self.is_stored:
            heads = self.dag.heads
            return SessionTree(heads, {head.id: [self.id] for head in heads}, frozenset())
        return load_tree(self.store, self.store.load(self.id))

    # Turns

    def start_turn(self, question: Message) -> ChatTurn:
        turn = ChatTurn(self, self.dag, question)
        self.unanswered = question
        return turn

    def retry_turn(self) -> ChatTurn:
        """Repeat the unanswered question, or the last turn.

        The old answer stays current until the new one is complete, and stays in the graph after that.
        """
        if self.unanswered is not None:
            return self.start_turn(self.unanswered)
        start = rewind_last_turn(self.dag)
        questions = [node.data for node in self.dag.nodes() if is_question(node)]
        if start is None or not questions:
            raise ConfigurationError("There is no turn to retry.", field="/retry", fix="Ask a question first.")
        question = questions[-1]
        assert isinstance(question, Message)
        return ChatTurn(self, start, question)

    def handle_interrupt(self) -> bool:
        """Reload the session after an interrupted turn; return whether the turn was stored."""
        self.interrupted += 1
        version = self._keeper.version or 0
        self._is_stale = True
        self.reload()
        is_stored = (self._keeper.version or 0) > version
        if is_stored:
            self.unanswered = None
        return is_stored

    def count_responses(self, result: object) -> None:
        """Add the responses of a run to `chat_spending`."""
        for response in result.responses if isinstance(result, RunResult) else ():
            cost = response.cost_estimate
            self.chat_spending += SpendingTotal(response.usage or Usage(), cost or 0.0, 1, int(cost is None))

    # Changes

    def save(self, dag: DAG, *, title: str = "") -> None:
        """Make this the current conversation. A session that is not stored yet is created if it has a title."""
        if not self.is_stored and not title:
            self._dag = dag
            return
        rows = self._keeper.unwritten(dag)
        heads = [head.id for head in dag.heads]
        metadata = {**self._metadata, MODELS: list(self.settings.models)}
        self._is_stale = True  # until the write has succeeded
        if (version := self._keeper.version) is None:
            version = self._create(title, metadata=metadata, rows=rows, heads=heads)
        else:
            changed = None if metadata == self._metadata else metadata
            version = self.store.append(self.id, rows, heads=heads, expected_version=version, metadata=changed)
        self._keeper.mark_written(rows, version)
        self._metadata, self._dag, self._is_stale = metadata, dag, False

    def _create(self, title: str, **content: Any) -> int:
        """Create the session in the store, and return its version."""
        while True:
            try:
                record = self.store.create(self.id, title=title, **content)
                break
            except ConflictError:
                if self.is_named:
                    raise
                self._reset(random_session_id(), self._dag)  # the random name is taken
        self.title, self.is_named = title, True
        return record.version

    def undo(self, turns: int = 1) -> None:
        """Rewind the last turns. They stay in the graph."""
        dag = self.dag
        for _ in range(turns):
            earlier = rewind_last_turn(dag)
            if earlier is None:
                raise ConfigurationError(
                    "There is no turn to undo." if turns == 1 else f"There are fewer than {turns} turns.",
                    field="/undo",
                    fix="List them with /history.",
                )
            dag = earlier
        self.unanswered = None
        self.save(dag)

    def set_instructions(self, system: str) -> None:
        """Replace the system prompt for the following turns."""
        self.save(self.dag.system(system))

    def fork(self, name: str | None = None) -> str:
        """Continue in a new session, and return the id of the old one."""
        if not self.is_stored:
            raise ConfigurationError("There is no turn to fork from.", field="/fork", fix="Ask a question first.")
        if name is not None:
            check_session_id(name)
        old_id = self.id
        try:
            self.continue_in_fork(self.dag, name)
        except ConflictError:
            raise ConfigurationError(
                f"The session {name!r} exists already.", field="/fork", fix=f"Use another name, or /switch {name}"
            ) from None
        return old_id

    def continue_in_fork(self, dag: DAG, name: str | None) -> None:
        """Store a conversation in a new session, and switch to it."""
        record = create_fork(self.store, dag, name, forked_from=self.id, title=self.title, models=self.settings.models)
        self._load(self.store.load(record.id))

    def switch(self, name: str) -> None:
        """Continue with another stored session."""
        self._load(load_by_prefix(self.store, name))
        self.unanswered = None

    def reload(self) -> None:
        """Read the session from the store."""
        try:
            self._load(self.store.load(self.id))
        except SessionNotFoundError:
            if self._keeper.version is not None:
                raise
            self._is_stale = False  # its first turn was not stored
