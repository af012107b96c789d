"""State of a session: a conversation graph, the version in its store, and what is not written yet.

A turn is written when it is complete: its nodes and the new heads, or nothing. A turn that fails, is cancelled or
cannot be written leaves the session unchanged. Sync and async sessions take sync and async stores.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Self

from typing_extensions import Unpack, override

from ..calls.requests import read_request
from ..engine.drivers.threads import start_thread
from ..errors import ConfigurationError, printable
from ..graph import DAG, Node
from ..graph.dag import append_messages, keep_setup, rewind_last_turn
from ..graph.files import decode_nodes, encode_node
from ..graph.node import collect_system_prompt, collect_tools, link_messages
from ..loop.events import MessageLike, coerce_message
from ..stores.base import SessionNotFoundError, SessionRecord, Store, StoreError
from ..types import AgentRequest, AgentResponse, Message, RequestTool, Session, ToolSpec, Usage
from ..types.option_errors import check_keywords

if TYPE_CHECKING:
    from ..client import Client
    from ..types.options import AnyTool, SessionOptions


class SessionWriter:
    """Writes a session to a store, and keeps track of its version and of written nodes."""

    __slots__ = ("known", "session_id", "store", "version")

    def __init__(self, store: Store, session_id: str) -> None:
        self.store: Store = store
        self.session_id: str = session_id
        self.version: int | None = None
        self.known: set[str] = set()
        """Ids of the nodes in the store."""

    def read(self, record: SessionRecord) -> DAG:
        """Return the conversation of a record."""
        nodes = decode_nodes(record.nodes)
        self.known = set(nodes)
        self.version = record.version
        return DAG(tuple(nodes[id] for id in record.heads))

    def unwritten(self, dag: DAG) -> list[dict[str, Any]]:
        """Return the rows that are not in the store. Visits new nodes only."""
        fresh: list[Node] = []
        stack, seen = list(dag.heads), set[str]()
        while stack:
            node = stack.pop()
            if node.id in self.known or node.id in seen:
                continue
            seen.add(node.id)
            fresh.append(node)
            stack.extend(node.parents)
        return [encode_node(node) for node in _sort_nodes(fresh)]

    def mark_written(self, rows: Sequence[dict[str, Any]], version: int) -> None:
        self.known.update(row["id"] for row in rows)
        self.version = version


def _sort_nodes(nodes: Sequence[Node]) -> list[Node]:
    """Sort nodes: parents before children."""
    fresh = {node.id for node in nodes}
    placed: set[str] = set()
    order: list[Node] = []
    for start in reversed(nodes):
        stack = [start]
        while stack:
            node = stack[-1]
            missing = [parent for parent in node.parents if parent.id in fresh and parent.id not in placed]
            if missing:
                stack.extend(missing)
                continue
            stack.pop()
            if node.id not in placed:
                placed.add(node.id)
                order.append(node)
    return order


def run_awaitable(value: Any) -> Any:
    """Return the result of a store method. An awaitable runs in a thread with an event loop."""
    if not inspect.isawaitable(value):
        return value
    import asyncio  # lazy: only async stores need it

    outcome: list[Any] = []

    async def settle() -> None:
        outcome.append(await value)

    failure: list[BaseException] = []

    def main() -> None:
        try:
            asyncio.run(settle())
        except BaseException as error:
            failure.append(error)

    # In a thread, because this one may have a running event loop.
    start_thread(main, "agent-store").join()
    if failure:
        raise failure[0]
    return outcome[0]


async def call_store(store: Store, function: Any, *args: Any, **kwargs: Any) -> Any:
    """Call a store method from async code: in a thread if it blocks, awaited if it is async."""
    import asyncio  # lazy: only async code needs it

    if store.blocking and not inspect.iscoroutinefunction(function):
        value = await asyncio.to_thread(function, *args, **kwargs)
    else:
        value = function(*args, **kwargs)
    return await value if inspect.isawaitable(value) else value


class SessionState:
    """A conversation in a graph, and the store that keeps it."""

    @check_keywords("A session")
    def __init__(
        self,
        agent: Client,
        session_id: str | None = None,
        *,
        store: Store | None = None,
        system: str | None = None,
        tools: Sequence[AnyTool] = (),
        title: str = "",
        keep_partial: bool = False,
        dag: DAG | None = None,
    ) -> None:
        self._agent = agent
        self._tools = tuple(tools)
        self._title = title
        self._created = self._updated = datetime.now(UTC)
        self.keep_partial = keep_partial
        self.id: str = session_id if session_id is not None else f"s_{os.urandom(8).hex()}"
        self._writer = None if store is None else SessionWriter(store, self.id)
        start = dag if dag is not None else DAG()
        self._start = start.system(system) if system else start
        self._dag: DAG | None = None if store is not None else self._start
        self._messages: list[Message] | None = None
        self._cached_setup: tuple[str, Sequence[RequestTool]] | None = None
        self._busy = False

    @property
    def agent(self) -> Client:
        """The agent or router that answers."""
        return self._agent

    @property
    def dag(self) -> DAG:
        """Conversation graph, including abandoned branches."""
        return self._load()

    @property
    def messages(self) -> Sequence[Message]:
        """Messages of the conversation."""
        return tuple(self._history())

    @property
    def title(self) -> str:
        """Title, for people."""
        self._load()
        return self._title

    @title.setter
    def title(self, title: str) -> None:
        dag = self._load()
        self._commit(dag, title=title)

    @property
    def usage(self) -> Usage:
        """Usage of all turns of the conversation."""
        return self.dag.usage()

    @property
    def cost(self) -> float | None:
        """Cost in US dollars; None if the price of a response is unknown."""
        return self.dag.cost()

    @property
    def data(self) -> Session:
        """The session as plain data: messages with ids and parents."""
        messages = link_messages(self.dag.nodes())
        return Session(
            id=self.id, title=self.title, messages=messages, created_at=self._created, updated_at=self._updated
        )

    def export(self) -> dict[str, Any]:
        """Return `data` as JSON."""
        return self.data.to_dict()

    @classmethod
    def of(cls, agent: Client, data: Session | Mapping[str, Any], **options: Unpack[SessionOptions]) -> Self:
        """Return a session that continues from exported data."""
        session = data if isinstance(data, Session) else Session.from_dict(data)
        settings: SessionOptions = {"title": session.title, **options, "dag": DAG().messages(session.messages)}
        continued = cls(agent, session.id, **settings)
        continued._created = session.created_at or continued._created
        return continued

    @override
    @printable
    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id!r}, {self._agent!r})"

    # Changes

    def add_message(self, message: MessageLike) -> None:
        """Append a message without calling the model."""
        read = coerce_message(message)
        if not isinstance(read, Message):
            raise ConfigurationError(
                f"Sessions do not support messages with role {read.get('role')!r}.",
                field="message",
                fix="Use user, assistant, system or tool.",
            )
        with self._turn():
            self._commit(self._load().add(read), said=[read])

    def undo(self, turns: int = 1) -> None:
        """Remove the last turns from the conversation. They stay in the graph, on an abandoned branch."""
        with self._turn():
            dag = self._load()
            for _ in range(turns):
                earlier = rewind_last_turn(dag)
                if earlier is None:
                    raise ConfigurationError(
                        "There is no turn to undo.", field="turns", fix=f"Undo fewer than {turns} turns."
                    )
                dag = earlier
            self._commit(dag, anew=True)

    def clear(self) -> None:
        """Remove all messages. The system prompt and tools stay."""
        with self._turn():
            self._commit(keep_setup(self._load()), anew=True)

    def fork(self, session_id: str | None = None, *, at: str | None = None) -> Self:
        """Return a new session that starts from this conversation, or from its state at a node."""
        dag = self._load()
        forked = type(self)(
            self._agent,
            session_id,
            store=None if self._writer is None else self._writer.store,
            tools=self._tools,
            title=self._title,
            keep_partial=self.keep_partial,
            dag=dag if at is None else dag.at(at),
        )
        if self._writer is not None:
            forked._load()
        return forked

    def switch(self, agent: Client) -> Self:
        """Continue with another agent, of any vendor."""
        self._agent = agent
        return self

    def reload(self) -> None:
        """Reload the conversation from the store, such as after a conflict."""
        if self._unload():
            self._load()

    # Internals

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Exclude a second turn, which raises ConfigurationError."""
        if self._busy:
            raise ConfigurationError(
                "The session is busy with another turn.",
                field="session",
                fix="Wait for that turn, or fork() the session.",
            )
        self._busy = True
        try:
            yield
        finally:
            self._busy = False

    def _unload(self) -> bool:
        """Drop the loaded conversation, if there is a store to reload it from."""
        if self._writer is not None:
            self._dag = self._messages = self._cached_setup = None
        return self._writer is not None

    def _with_conversation(self, asked: AgentRequest) -> AgentRequest:
        """Return the request with the conversation, the system prompt and the tools of the session."""
        prompt, tools = self._setup()
        changes: dict[str, Any] = {
            "messages": (*self._history(), *asked.messages),
            "session_id": asked.session_id or self.id,
        }
        if asked.system is None and prompt:
            changes["system"] = prompt
        if tools and not asked.tools:
            changes["tools"] = tools
        return asked.copy_with(**changes)

    def _setup(self) -> tuple[str, Sequence[RequestTool]]:
        """System prompt and tools of the session."""
        if self._cached_setup is None:
            nodes = self._load().nodes()
            own = read_request("", {"tools": self._tools}).tools if self._tools else ()
            named = {tool.name for tool in own if isinstance(tool, ToolSpec)}
            recorded = [tool for tool in collect_tools(nodes) if tool.name not in named]
            self._cached_setup = collect_system_prompt(nodes), (*recorded, *own)
        return self._cached_setup

    def _history(self) -> list[Message]:
        """Messages so far. Turns append to the list."""
        if self._messages is None:
            self._messages = self._load().to_messages()
        return self._messages

    def _add_turn(self, said: Sequence[Message], responses: Sequence[AgentResponse], answer: AgentResponse) -> None:
        """Add a turn. If it cannot be written, the session is unchanged, and the error has the response."""
        try:
            self._commit(append_messages(self._load(), said, responses), said=said)
        except StoreError as error:
            error.result = answer
            raise

    async def _aadd_turn(
        self, said: Sequence[Message], responses: Sequence[AgentResponse], answer: AgentResponse
    ) -> None:
        try:
            await self._acommit(append_messages(self._load(), said, responses), said=said)
        except StoreError as error:
            error.result = answer
            raise

    # The store

    def _load(self) -> DAG:
        if self._dag is None:
            assert self._writer is not None
            try:
                self._read_record(run_awaitable(self._writer.store.load(self.id)))
            except SessionNotFoundError:
                self._dag = self._start
                rows, facts = self._creation()
                self._writer.mark_written(
                    rows, run_awaitable(self._writer.store.create(self.id, rows=rows, **facts)).version
                )
        assert self._dag is not None
        return self._dag

    async def _aload(self) -> None:
        if self._dag is None:
            assert self._writer is not None
            store = self._writer.store
            try:
                self._read_record(await call_store(store, store.load, self.id))
            except SessionNotFoundError:
                self._dag = self._start
                rows, facts = self._creation()
                record = await call_store(store, store.create, self.id, rows=rows, **facts)
                self._writer.mark_written(rows, record.version)

    def _read_record(self, record: SessionRecord) -> None:
        assert self._writer is not None
        self._messages = None
        self._dag = self._writer.read(record)
        self._title = record.title or self._title
        self._created = datetime.fromtimestamp(record.created_at, UTC)
        self._updated = datetime.fromtimestamp(record.updated_at, UTC)

    def _creation(self) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        assert self._writer is not None
        rows = self._writer.unwritten(self._start)
        return rows, {"title": self._title, "heads": [head.id for head in self._start.heads]}

    def _commit(self, dag: DAG, *, said: Sequence[Message] = (), title: str | None = None, anew: bool = False) -> None:
        writer = self._writer
        if writer is not None:
            rows, change = self._change(dag, title)
            writer.mark_written(rows, run_awaitable(writer.store.append(self.id, rows, **change)))
        self._apply_commit(dag, said, title, anew=anew)

    async def _acommit(self, dag: DAG, *, said: Sequence[Message]) -> None:
        writer = self._writer
        if writer is not None:
            rows, change = self._change(dag, None)
            writer.mark_written(rows, await call_store(writer.store, writer.store.append, self.id, rows, **change))
        self._apply_commit(dag, said, None, anew=False)

    def _change(self, dag: DAG, title: str | None) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        assert self._writer is not None
        assert self._writer.version is not None
        rows = self._writer.unwritten(dag)
        heads = [head.id for head in dag.heads]
        return rows, {"heads": heads, "expected_version": self._writer.version, "title": title}

    def _apply_commit(self, dag: DAG, said: Sequence[Message], title: str | None, *, anew: bool) -> None:
        self._dag = dag
        self._updated = datetime.now(UTC)
        if title is not None:
            self._title = title
        if anew:
            self._messages = self._cached_setup = None
        elif self._messages is not None:
            self._messages += said
