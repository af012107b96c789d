"""One connection to a server, alive on an event loop of its own, in a daemon thread of its own.

A session of the SDK belongs to the loop that opened it. Kept apart from the loops of its users, the same session serves
blocking callers, asyncio and threads: it runs what it is given, on the session's loop. It keeps the server's list of
tools fresh, and does not know what becomes of them.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from mcp_types import ToolListChangedNotification
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from .. import errors
from .errors import Notes, client_for, explained, is_closed, lost, timed_out

if TYPE_CHECKING:
    import mcp_types
    from mcp import Client

T = TypeVar("T")
Connect: TypeAlias = Callable[[Notes, Callable[[], None]], Any]
"""Makes what the SDK's client connects to. It is told where to take notes, and what to call when the server ends."""

CLOSING = 1.5
"""Seconds that a connection gets to end before it is left alone."""
_ENDING = 0.3
"""Seconds that cancelled calls get to end."""
_LISTENING = 1.0
"""Seconds that a server gets to confirm that it will tell us of changes."""
_MOST_TOOLS = 1_000

_alive: set[Session] = set()


class Session:
    """`opened` and `ended` say how far it is. It never comes back: a lost one is replaced by another."""

    def __init__(self, connect: Connect, notes: Notes, seconds: float, mode: str) -> None:
        self.notes = notes
        self.opened: Future[None] = Future()
        self.ended: Future[None] = Future()
        self.client: Client | None = None
        self.offered: Sequence[mcp_types.Tool] = ()
        """The tools, as the server last listed them. A change makes a new sequence."""
        self._connect = connect
        self._seconds = seconds
        self._mode = mode
        self._pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._lock = threading.Lock()
        self._accepting = True
        self._too_slow = False
        self._stopping = asyncio.Event()
        self._owner: asyncio.Task[None] | None = None
        self._listings: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._main, daemon=True, name=f"agent-mcp {notes.label}"[:60])
        _alive.add(self)
        self._thread.start()

    @property
    def over(self) -> bool:
        """Whether it takes no more calls. After a fork, the child's copy never does: its thread stayed behind."""
        return not self._accepting or not self.is_here

    @property
    def is_here(self) -> bool:
        """Whether its thread lives in this process."""
        return self._pid == os.getpid()

    @property
    def is_mine(self) -> bool:
        """Whether this code runs on the session's own thread, which must not wait for itself."""
        return threading.current_thread() is self._thread

    def submit(self, work: Callable[[Client], Awaitable[T]], doing: str, seconds: float | None = None) -> Future[T]:
        """Run something on the session's loop. Cancelling the future cancels it there."""
        with self._lock:
            if not self.over:
                return asyncio.run_coroutine_threadsafe(self._perform(work, doing, seconds), self._loop)
        refused: Future[T] = Future()
        refused.set_exception(lost(self.notes, doing))
        return refused

    def stop(self, reason: str | None = None) -> None:
        """Begin to end it, from any thread."""
        if not self.is_here:
            return
        self.notes.reason = self.notes.reason or reason
        with self._lock:
            self._accepting = False
        with suppress(RuntimeError):  # its loop has ended already
            self._loop.call_soon_threadsafe(self._stop)

    def join(self) -> None:
        """After `ended`: the thread has nothing left to do."""
        if self.is_here and not self.is_mine:
            self._thread.join(0.5)

    # On the session's thread

    def _main(self) -> None:
        left: set[asyncio.Task[Any]] = set()
        try:
            left = self._loop.run_until_complete(self._live())
        finally:
            _alive.discard(self)
            if not self.opened.done():
                self._cannot_be_used(lost(self.notes, "connecting"))
            self.ended.set_result(None)
            if left:  # calls that cannot be cancelled, of a server in this process: nobody waits for them any more
                self._loop.run_until_complete(asyncio.wait(left))
            self._loop.close()

    async def _live(self) -> set[asyncio.Task[Any]]:
        if self._stopping.is_set():  # it was stopped before it began
            return set()
        self._owner = asyncio.create_task(self._connected())
        timer = self._loop.call_later(self._seconds, self._give_up_connecting)
        await asyncio.wait({self._owner})
        timer.cancel()
        with self._lock:
            self._accepting = False
        for _ in range(2):  # what was submitted until now gets to begin, and so can say why it ends
            await asyncio.sleep(0)
        left = await _withdrawn(asyncio.all_tasks() - {asyncio.current_task()})
        await self._loop.shutdown_asyncgens()
        return left

    async def _connected(self) -> None:
        """Open the connection, and hold it until someone says stop or the server ends."""
        for mode in ("auto", "legacy") if self._mode == "auto" else (self._mode,):
            try:
                async with client_for(self._connect(self.notes, self._server_ended), mode, self._on_message) as client:
                    await self._hold(client)
            except (Exception, asyncio.CancelledError, BaseExceptionGroup) as error:
                if self.opened.done():
                    self.notes.reason = self.notes.reason or str(explained(error, self.notes, "waiting"))
                elif mode == "auto" and is_closed(error) and self._may_be_old_fashioned():
                    self.notes.clear()
                    continue
                else:
                    self._cannot_be_used(self._why_not(error))
            return

    async def _hold(self, client: Client) -> None:
        listening = asyncio.Event()
        watching = asyncio.create_task(self._watch(client, listening))
        try:
            with suppress(TimeoutError):  # asked for news before the first list, so that no change falls in between
                await asyncio.wait_for(listening.wait(), _LISTENING)
            self.offered = await _listed(client)
            self.client = client
            self.opened.set_result(None)
            await self._stopping.wait()
        finally:
            self._accepting = False
            await _withdrawn({watching})

    async def _watch(self, client: Client, listening: asyncio.Event) -> None:
        """Have a server of the newer kind say when its tools change; older ones say so unasked."""
        try:
            tools = client.server_capabilities.tools
            if tools is not None and tools.list_changed and _is_modern(client):
                with suppress(Exception):  # then there is no news, and the first list stays
                    async with client.listen(tools_list_changed=True) as changes:
                        listening.set()
                        async for _ in changes:
                            await self._list_again(client)
        finally:
            listening.set()

    async def _on_message(self, message: Any) -> None:
        if isinstance(message, ToolListChangedNotification) and self.client is not None and not _is_modern(self.client):
            # Not awaited here: the answer to the question would have to pass whoever waits for this.
            task = asyncio.create_task(self._list_again(self.client))
            self._listings.add(task)
            task.add_done_callback(self._listings.discard)

    async def _list_again(self, client: Client) -> None:
        with suppress(Exception):  # the old list is better than none
            self.offered = await _listed(client)

    def _may_be_old_fashioned(self) -> bool:
        """Some servers leave when the first thing they hear is not the older greeting."""
        return self._accepting and not self.notes.heard and not self._too_slow and self.notes.exit_code is not None

    def _cannot_be_used(self, why: Exception) -> None:
        """Closed before anyone hears of it: whoever has heard, and calls again, shall get another session."""
        self._accepting = False
        self.opened.set_exception(why)

    def _why_not(self, error: BaseException) -> Exception:
        if self._too_slow:
            return timed_out(self.notes, "connecting", self._seconds)
        if isinstance(error, asyncio.CancelledError):
            return lost(self.notes, "connecting")
        return explained(error, self.notes, "connecting")

    def _give_up_connecting(self) -> None:
        if not self.opened.done() and self._owner is not None:
            self._too_slow = True
            self._owner.cancel()

    def _stop(self) -> None:
        """Connecting is given up at once; a connection gets a moment to say goodbye."""
        self._accepting = False
        if not self._stopping.is_set():
            self._stopping.set()
            if self._owner is not None:
                self._loop.call_later(CLOSING if self.opened.done() else 0.0, self._owner.cancel)

    def _server_ended(self) -> None:
        if self.opened.done():  # else the SDK notices, and says so to whoever connects
            self._stop()

    async def _perform(self, work: Callable[[Client], Awaitable[T]], doing: str, seconds: float | None) -> T:
        assert self.client is not None
        try:
            return await work(self.client)
        except asyncio.CancelledError:
            if self._accepting:
                raise
            raise lost(self.notes, doing) from None
        except Exception as error:
            if is_closed(error):
                self._stop()
            raise explained(error, self.notes, doing, seconds) from error


def _is_modern(client: Client) -> bool:
    return client.protocol_version in MODERN_PROTOCOL_VERSIONS


async def _listed(client: Client) -> Sequence[mcp_types.Tool]:
    """All tools, page by page. A server whose list does not end is not waited for."""
    if client.server_capabilities.tools is None:
        return ()
    found: list[mcp_types.Tool] = []
    cursor: str | None = None
    while len(found) <= _MOST_TOOLS:
        page = await client.list_tools(cursor=cursor)
        found += page.tools
        if page.next_cursor is None:
            return tuple({tool.name: tool for tool in reversed(found)}.values())[::-1]
        if not page.tools or page.next_cursor == cursor:
            break
        cursor = page.next_cursor
    raise errors.ProtocolError(f"the list of tools does not end: {len(found)} so far", retryable=False)


async def _withdrawn(tasks: Iterable[asyncio.Task[Any] | None]) -> set[asyncio.Task[Any]]:
    """Cancel tasks; those that do not end are given back."""
    pending = {task for task in tasks if task is not None and not task.done()}
    for task in pending:
        task.cancel()
    return (await asyncio.wait(pending, timeout=_ENDING))[1] if pending else set()


def _end_all() -> None:
    """At the end of the program: children are ended in order, and nobody waits for long."""
    here = [session for session in list(_alive) if session.is_here]
    for session in here:
        session.stop("the program ends")
    wait([session.ended for session in here], timeout=CLOSING + _ENDING)


atexit.register(_end_all)
