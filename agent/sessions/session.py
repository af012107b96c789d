"""AgentSession: a head in a graph, an agent to ask, and a store that keeps it.

A turn counts when it is complete and written down. One that fails, is cancelled or cannot be written leaves the session
as it was: there is never half a turn in it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from ..calls.requests import RequestLike, read_request
from ..calls.streams import AsyncResponseStream, ResponseStream, StartedResponse
from ..errors import ConfigurationError
from ..graph import DAG
from ..graph.dag import append_messages, keep_setup, rewind_last_turn
from ..graph.node import collect_system_prompt, collect_tools
from ..loop.events import MessageLike, read_message
from ..loop.results import PausedRun, RunResult, SessionPlace
from ..loop.streams import AsyncRunStream, RunStream, StartedRun
from ..stores.base import SessionNotFoundError, SessionRecord, Store, StoreError
from ..types import AgentRequest, AgentResponse, Message, Session, ToolSpec, Usage
from .persistence import Keeper, awaited, waited
from .turns import (
    Conversation,
    RunTurn,
    async_turn_scope,
    kept_response,
    kept_result,
    read_turn,
    require_schema,
    turn_messages,
    turn_scope,
)

if TYPE_CHECKING:
    from ..client import Client


class AgentSession:
    """A conversation that goes on.

    ```python
    from agent.testing import scripted_agent

    session = scripted_agent("Hello, Ada!", "You are Ada.").session()
    session.run("I am Ada.")
    print(session.run("Who am I?").text)
    ```

    Args:
        agent: Who is asked: an Agent or a Router.
        session_id: Its name in the store; by default a new one.
        store: Keeps it. By default it lasts as long as this object.
        system: What the model is told before anything else.
        tools: Offered in every turn, besides the agent's own.
        title: For people.
        keep_partial: Whether a stream that is interrupted leaves what had come of the answer, marked, or nothing.
        dag: Where it begins.

    An object serves one turn at a time. Several objects, in several processes, may work on one session: who is late is
    told by `ConflictError`, and can `reload`.
    """

    def __init__(
        self,
        agent: Client,
        session_id: str | None = None,
        *,
        store: Store | None = None,
        system: str | None = None,
        tools: Iterable[Any] = (),
        title: str = "",
        keep_partial: bool = False,
        dag: DAG | None = None,
    ) -> None:
        self._agent = agent
        self._tools = tuple(tools)
        self._title = title
        self._created = self._updated = datetime.now(UTC)
        self.keep_partial = keep_partial
        self.id = session_id if session_id is not None else f"s_{os.urandom(8).hex()}"
        self._keeper = None if store is None else Keeper(store, self.id)
        begun = dag if dag is not None else DAG()
        self._start = begun.system(system) if system else begun
        self._dag: DAG | None = None if store is not None else self._start
        self._messages: list[Message] | None = None
        self._holds: tuple[str, Sequence[ToolSpec | Mapping[str, Any]]] | None = None
        self._busy = False

    # What it holds

    @property
    def agent(self) -> Client:
        return self._agent

    @property
    def dag(self) -> DAG:
        """The conversation, with everything that ever branched off from what is seen from here."""
        return self._loaded()

    @property
    def messages(self) -> Sequence[Message]:
        """What the next question is asked after."""
        return tuple(self._known())

    @property
    def title(self) -> str:
        self._loaded()
        return self._title

    @title.setter
    def title(self, title: str) -> None:
        dag = self._loaded()
        self._commit(dag, title=title)

    @property
    def usage(self) -> Usage:
        """Of all turns on the way here."""
        return self.dag.usage()

    @property
    def cost(self) -> float:
        """In dollars, as far as it is known."""
        return self.dag.cost()

    @property
    def data(self) -> Session:
        """The session as plain data: messages with ids and parents, no behaviour."""
        messages: list[Message] = []
        parent: str | None = None
        for node in self.dag.nodes():
            if isinstance(node.data, Message):
                facts = {"id": node.id, "parent_id": parent, "timestamp": node.timestamp}
                messages.append(node.data.model_copy(update=facts))
                parent = node.id
        return Session(
            id=self.id, title=self.title, messages=messages, created_at=self._created, updated_at=self._updated
        )

    def export(self) -> dict[str, Any]:
        """Plain JSON: the data, for others."""
        return self.data.to_dict()

    @classmethod
    def of(cls, agent: Client, data: Session | Mapping[str, Any], **options: Any) -> AgentSession:
        """A session that goes on from exported data."""
        session = data if isinstance(data, Session) else Session.from_dict(data)
        begun = cls(agent, session.id, title=session.title, dag=DAG().messages(session.messages), **options)
        begun._created = session.created_at or begun._created
        return begun

    @override
    def __repr__(self) -> str:
        return f"AgentSession({self.id!r}, {self._agent!r})"

    # Turns

    def run(self, request: RequestLike | PausedRun, **options: Any) -> RunResult:
        """One turn: the model is asked, and its tools run, until it has its answer.

        A run that pauses leaves the session as it was; resume it here with `run(result.paused.approve())`.
        """
        turn = RunTurn(request, options)
        with self._turn():
            result = turn.finish(self._agent.run(self._start_run(turn), **turn.options))
            if result.paused is None:
                self._add([*turn.said, *result.messages], result.responses, result)
            return result

    async def arun(self, request: RequestLike | PausedRun, **options: Any) -> RunResult:
        """Async version of `run`."""
        turn = RunTurn(request, options)
        with self._turn():
            await self._astart_run(turn)
            result = turn.finish(await self._agent.arun(self._run_request(turn), **turn.options))
            if result.paused is None:
                await self._aadd([*turn.said, *result.messages], result.responses, result)
            return result

    def complete(self, request: RequestLike, **options: Any) -> AgentResponse:
        """One turn with one model call. Tools are offered, not run."""
        asked, rest = read_turn(request, options)
        with self._turn():
            response: AgentResponse = self._agent.complete(self._with_conversation(asked), **rest)
            self._add(turn_messages(asked, response), (response,), response)
            return response

    async def acomplete(self, request: RequestLike, **options: Any) -> AgentResponse:
        """As `complete`, with await."""
        asked, rest = read_turn(request, options)
        with self._turn():
            await self._aloaded()
            response: AgentResponse = await self._agent.acomplete(self._with_conversation(asked), **rest)
            await self._aadd(turn_messages(asked, response), (response,), response)
            return response

    def json(self, request: RequestLike, **options: Any) -> RunResult:
        """As `run`, with `schema=`. The value is in `output`."""
        require_schema(request, options)
        return self.run(request, **options)

    async def ajson(self, request: RequestLike, **options: Any) -> RunResult:
        """As `json`, with await."""
        require_schema(request, options)
        return await self.arun(request, **options)

    def stream(self, request: RequestLike, **options: Any) -> ResponseStream:
        """As `complete`, with events while the answer arrives. The turn counts when its end has been read."""
        asked, rest = read_turn(request, options)

        def start() -> StartedResponse:
            return self._agent.stream(self._with_conversation(asked), **rest).start()

        def commit(response: AgentResponse) -> None:
            self._add(turn_messages(asked, response), (response,), response)

        outcome = partial(kept_response, partial=self.keep_partial)
        return ResponseStream(start, turn_scope(self._turn, outcome, commit))

    def astream(self, request: RequestLike, **options: Any) -> AsyncResponseStream:
        """As `stream`, for `async for`."""
        asked, rest = read_turn(request, options)

        def start() -> StartedResponse:
            return self._agent.astream(self._with_conversation(asked), **rest).start()

        async def commit(response: AgentResponse) -> None:
            await self._aadd(turn_messages(asked, response), (response,), response)

        outcome = partial(kept_response, partial=self.keep_partial)
        return AsyncResponseStream(start, async_turn_scope(self._turn, self._aloaded, outcome, commit))

    def run_stream(self, request: RequestLike | PausedRun, **options: Any) -> RunStream:
        """As `run`, with the events of the loop, and the means to steer it."""
        turn = RunTurn(request, options)

        def start() -> StartedRun:
            return self._agent.run_stream(self._start_run(turn), **turn.options).start().then(turn.finish)

        def commit(result: RunResult) -> None:
            self._add([*turn.said, *result.messages], result.responses, result)

        outcome = partial(kept_result, partial=self.keep_partial)
        return RunStream(start, scope=turn_scope(self._turn, outcome, commit))

    def arun_stream(self, request: RequestLike | PausedRun, **options: Any) -> AsyncRunStream:
        """As `run_stream`, for `async for`."""
        turn = RunTurn(request, options)

        def start() -> StartedRun:
            return self._agent.arun_stream(self._run_request(turn), **turn.options).start().then(turn.finish)

        async def commit(result: RunResult) -> None:
            await self._aadd([*turn.said, *result.messages], result.responses, result)

        load = partial(self._astart_run, turn)
        outcome = partial(kept_result, partial=self.keep_partial)
        return AsyncRunStream(start, scope=async_turn_scope(self._turn, load, outcome, commit))

    # Other changes

    def add_message(self, message: MessageLike) -> None:
        """Add something to the conversation without asking anybody."""
        read = read_message(message)
        if not isinstance(read, Message):
            raise ConfigurationError(
                f"A session does not keep messages of role {read.get('role')!r}.",
                field="message",
                fix="Use user, assistant, system or tool.",
            )
        with self._turn():
            self._commit(self._loaded().add(read), said=[read])

    def undo(self, turns: int = 1) -> None:
        """Go back to before the last turns. What was said stays in the graph, and is not seen from here any more."""
        with self._turn():
            dag = self._loaded()
            for _ in range(turns):
                earlier = rewind_last_turn(dag)
                if earlier is None:
                    raise ConfigurationError(
                        "There is no turn to undo.", field="turns", fix=f"The session has fewer than {turns}."
                    )
                dag = earlier
            self._commit(dag, anew=True)

    def clear(self) -> None:
        """Forget everything that was said. Instructions and tools stay."""
        with self._turn():
            self._commit(keep_setup(self._loaded()), anew=True)

    def fork(self, session_id: str | None = None, *, at: str | None = None) -> AgentSession:
        """Another session that begins where this one is, or where it was at a node. Both go their own ways."""
        dag = self._loaded()
        forked = AgentSession(
            self._agent,
            session_id,
            store=None if self._keeper is None else self._keeper.store,
            tools=self._tools,
            title=self._title,
            keep_partial=self.keep_partial,
            dag=dag if at is None else dag.at(at),
        )
        if self._keeper is not None:
            forked._loaded()
        return forked

    def switch(self, agent: Client) -> AgentSession:
        """Go on with another agent, of any vendor. The conversation is put into its form when it is asked."""
        self._agent = agent
        return self

    def reload(self) -> None:
        """Take what the store has now, such as after a conflict."""
        if self._forget():
            self._loaded()

    # Inside

    def _turn(self) -> _Turn:
        return _Turn(self)

    def _start_run(self, turn: RunTurn) -> Any:
        if turn.paused is not None:
            self._forget()  # it is resumed behind what the store has now
        return self._run_request(turn)

    async def _astart_run(self, turn: RunTurn) -> None:
        if turn.paused is not None:
            self._forget()
        await self._aloaded()

    def _run_request(self, turn: RunTurn) -> AgentRequest | PausedRun:
        heads = tuple(head.id for head in self._loaded().heads)
        turn.start(Conversation(SessionPlace(id=self.id, heads=heads), self._known(), self._standing()[1]))
        if turn.paused is not None:
            return turn.paused
        assert turn.asked is not None
        return self._with_conversation(turn.asked)

    def _forget(self) -> bool:
        """Drop what was loaded, if there is a store to load it from again."""
        if self._keeper is not None:
            self._dag = self._messages = self._holds = None
        return self._keeper is not None

    def _with_conversation(self, asked: AgentRequest) -> AgentRequest:
        """The request with what was said before it, and what holds for the whole session."""
        prompt, tools = self._standing()
        changes: dict[str, Any] = {
            "messages": (*self._known(), *asked.messages),
            "session_id": asked.session_id or self.id,
        }
        if asked.system is None and prompt:
            changes["system"] = prompt
        if tools and not asked.tools:
            changes["tools"] = tools
        return asked.copy_with(**changes)  # all of it is valid already

    def _standing(self) -> tuple[str, Sequence[ToolSpec | Mapping[str, Any]]]:
        """Instructions and tools. Worked out when the conversation is read, and kept: turns add none."""
        if self._holds is None:
            nodes = self._loaded().nodes()
            own = read_request("", {"tools": self._tools}).tools if self._tools else ()
            named = {tool.name for tool in own if isinstance(tool, ToolSpec)}
            recorded = [tool for tool in collect_tools(nodes) if tool.name not in named]
            self._holds = collect_system_prompt(nodes), (*recorded, *own)
        return self._holds

    def _known(self) -> list[Message]:
        """The messages so far, put together once and then added to."""
        if self._messages is None:
            self._messages = self._loaded().to_messages()
        return self._messages

    def _add(self, said: Sequence[Message], responses: Sequence[AgentResponse], answer: AgentResponse) -> None:
        """Take a whole turn in. If it cannot be written, nothing has changed, and the error has what was paid for."""
        try:
            self._commit(append_messages(self._loaded(), said, responses), said=said)
        except StoreError as error:
            error.result = answer
            raise

    async def _aadd(self, said: Sequence[Message], responses: Sequence[AgentResponse], answer: AgentResponse) -> None:
        try:
            await self._acommit(append_messages(self._loaded(), said, responses), said=said)
        except StoreError as error:
            error.result = answer
            raise

    # The store

    def _loaded(self) -> DAG:
        if self._dag is None:
            assert self._keeper is not None
            try:
                self._take(waited(self._keeper.store.load(self.id)))
            except SessionNotFoundError:
                self._dag = self._start
                rows, facts = self._creation()
                self._keeper.wrote(rows, waited(self._keeper.store.create(self.id, rows=rows, **facts)).version)
        assert self._dag is not None
        return self._dag

    async def _aloaded(self) -> None:
        if self._dag is None:
            assert self._keeper is not None
            store = self._keeper.store
            try:
                self._take(await awaited(store, store.load, self.id))
            except SessionNotFoundError:
                self._dag = self._start
                rows, facts = self._creation()
                record = await awaited(store, store.create, self.id, rows=rows, **facts)
                self._keeper.wrote(rows, record.version)

    def _take(self, record: SessionRecord) -> None:
        assert self._keeper is not None
        self._messages = None
        self._dag = self._keeper.read(record)
        self._title = record.title or self._title
        self._created = datetime.fromtimestamp(record.created_at, UTC)
        self._updated = datetime.fromtimestamp(record.updated_at, UTC)

    def _creation(self) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        assert self._keeper is not None
        rows = self._keeper.unwritten(self._start)
        return rows, {"title": self._title, "heads": [head.id for head in self._start.heads]}

    def _commit(self, dag: DAG, *, said: Sequence[Message] = (), title: str | None = None, anew: bool = False) -> None:
        keeper = self._keeper
        if keeper is not None:
            rows, change = self._change(dag, title)
            keeper.wrote(rows, waited(keeper.store.append(self.id, rows, **change)))
        self._committed(dag, said, title, anew=anew)

    async def _acommit(self, dag: DAG, *, said: Sequence[Message]) -> None:
        keeper = self._keeper
        if keeper is not None:
            rows, change = self._change(dag, None)
            keeper.wrote(rows, await awaited(keeper.store, keeper.store.append, self.id, rows, **change))
        self._committed(dag, said, None, anew=False)

    def _change(self, dag: DAG, title: str | None) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        assert self._keeper is not None
        assert self._keeper.version is not None
        rows = self._keeper.unwritten(dag)
        heads = [head.id for head in dag.heads]
        return rows, {"heads": heads, "expected_version": self._keeper.version, "title": title}

    def _committed(self, dag: DAG, said: Sequence[Message], title: str | None, *, anew: bool) -> None:
        self._dag = dag
        self._updated = datetime.now(UTC)
        if title is not None:
            self._title = title
        if anew:
            self._messages = self._holds = None
        elif self._messages is not None:
            self._messages += said


class _Turn:
    """While it lasts, nobody else may change the session through this object."""

    __slots__ = ("_session",)

    def __init__(self, session: AgentSession) -> None:
        self._session = session

    def __enter__(self) -> None:
        if self._session._busy:
            raise ConfigurationError(
                "The session is in the middle of a turn.", field="session", fix="Wait for it, or fork() the session."
            )
        self._session._busy = True

    def __exit__(self, *exc: object) -> None:
        self._session._busy = False
