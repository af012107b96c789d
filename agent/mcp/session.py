"""A connection to an MCP server, on its own event loop in a daemon thread.

A session of the SDK belongs to one event loop. On a separate loop, one session serves synchronous callers, asyncio and
threads. It also keeps the list of tools up to date.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from mcp import Client
from mcp_types import Implementation, ToolListChangedNotification
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from ..engine.drivers.threads import check_threads_run, start_thread
from ..errors import redact_failure
from .credentials import redact_logs
from .errors import (
    ConnectionLog,
    connection_lost,
    is_connection_closed,
    timeout_error,
    to_agent_error,
)
from .tools import iter_pages

if TYPE_CHECKING:
    import mcp_types

T = TypeVar("T")
Connect: TypeAlias = Callable[[ConnectionLog, Callable[[], None]], Any]
"""Creates the transport of the SDK's client, given the log and a callback for the end of the server."""

CLOSE_TIMEOUT = 1.5
"""Seconds for a connection to close before its task is cancelled."""
_CANCEL_TIMEOUT = 0.3
"""Seconds for cancelled tasks to end."""
_LISTEN_TIMEOUT = 1.0
"""Seconds for a server to confirm the subscription to changes of its tools."""

_sessions: set[MCPSession] = set()


class MCPSession:
    """A session that starts immediately. A lost session is replaced, never reopened."""

    def __init__(self, connect: Connect, log: ConnectionLog, seconds: float, mode: str) -> None:
        self.log = log
        self.opened: Future[None] = Future()
        self.ended: Future[None] = Future()
        self.client: Client | None = None
        self.server_tools: Sequence[mcp_types.Tool] = ()
        """The tools as last listed. A change assigns a new sequence."""
        self._connect = connect
        self._seconds = seconds
        self._mode = mode
        self._pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._lock = threading.Lock()
        self._accepting = True
        self._has_timed_out = False
        self._stopping = asyncio.Event()
        self._connection_task: asyncio.Task[None] | None = None
        self._refresh_tasks: set[asyncio.Task[None]] = set()
        _sessions.add(self)
        self._thread = start_thread(self._main, f"agent-mcp {log.label}"[:60])

    @property
    def is_over(self) -> bool:
        """Whether the session accepts no more requests. After a fork, it is over in the child process."""
        return not self._accepting or not self.is_in_process

    @property
    def is_in_process(self) -> bool:
        """Whether the session's thread belongs to this process."""
        return self._pid == os.getpid()

    @property
    def is_own_thread(self) -> bool:
        """Whether this code runs on the session's thread."""
        return threading.current_thread() is self._thread

    def submit(self, work: Callable[[Client], Awaitable[T]], doing: str, seconds: float | None = None) -> Future[T]:
        """Run a request on the session's loop. Cancelling the future cancels the request."""
        check_threads_run()
        with self._lock:
            if not self.is_over:
                return asyncio.run_coroutine_threadsafe(self._execute(work, doing, seconds), self._loop)
        refused: Future[T] = Future()
        refused.set_exception(connection_lost(self.log, doing))
        return refused

    def stop(self, reason: str | None = None) -> None:
        """Start closing the session, from any thread."""
        if not self.is_in_process:
            return
        self.log.reason = self.log.reason or reason
        with self._lock:
            self._accepting = False
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._stop)

    def join(self) -> None:
        """Wait briefly for the thread, after `ended`."""
        if self.is_in_process and not self.is_own_thread:
            self._thread.join(0.5)

    # On the session's thread

    def _main(self) -> None:
        redact_logs(self.log.redactor)
        left: set[asyncio.Task[Any]] = set()
        try:
            left = self._loop.run_until_complete(self._run())
        finally:
            _sessions.discard(self)
            if not self.opened.done():
                self._fail_open(connection_lost(self.log, "connecting"))
            self.ended.set_result(None)
            if left:  # calls of a server in this process that ignore cancellation
                self._loop.run_until_complete(asyncio.wait(left))
            self._loop.close()

    async def _run(self) -> set[asyncio.Task[Any]]:
        if self._stopping.is_set():  # stopped before the start
            return set()
        self._connection_task = asyncio.create_task(self._connect_client())
        timer = self._loop.call_later(self._seconds, self._time_out_connecting)
        await asyncio.wait({self._connection_task})
        timer.cancel()
        with self._lock:
            self._accepting = False
        for _ in range(2):  # lets submitted requests start, so that they can report the reason
            await asyncio.sleep(0)
        left = await _cancel_tasks(asyncio.all_tasks() - {asyncio.current_task()})
        await self._loop.shutdown_asyncgens()
        return left

    async def _connect_client(self) -> None:
        """Connect, and hold the connection open until it is stopped or the server ends."""
        for mode in ("auto", "legacy") if self._mode == "auto" else (self._mode,):
            transport = self._connect(self.log, self._handle_server_end)
            ours = Implementation(name="agent-llm-router", version=version("agent-llm-router"))
            try:
                # Requests from the server (sampling, elicitation, roots) are not supported.
                async with Client(
                    transport, mode=mode, cache=None, message_handler=self._on_message, client_info=ours
                ) as client:
                    await self._hold_open(client)
            except (Exception, asyncio.CancelledError, BaseExceptionGroup) as error:
                if self.opened.done():
                    self.log.reason = self.log.reason or str(to_agent_error(error, self.log, "waiting"))
                elif mode == "auto" and is_connection_closed(error) and self._may_need_legacy_mode():
                    self.log.clear()
                    continue
                else:
                    self._fail_open(self._connect_error(error))
            return

    async def _hold_open(self, client: Client) -> None:
        listening = asyncio.Event()
        watching = asyncio.create_task(self._watch_tools(client, listening))
        # The SDK validates results without limits on the event loop; `make_call` validates them instead.
        client.session.validate_tool_result = _accept_result  # type: ignore[method-assign]
        try:
            with suppress(TimeoutError):  # subscribe before the first list, so that no change is missed
                await asyncio.wait_for(listening.wait(), _LISTEN_TIMEOUT)
            self.server_tools = await _list_tools(client)
            self.client = client
            self.opened.set_result(None)
            await self._stopping.wait()
        finally:
            self._accepting = False
            await _cancel_tasks({watching})

    async def _watch_tools(self, client: Client, listening: asyncio.Event) -> None:
        """Subscribe to changes of the tool list; servers with the older protocol notify without it."""
        try:
            tools = client.server_capabilities.tools
            if tools is not None and tools.list_changed and _is_modern(client):
                with suppress(Exception):  # without notifications, the first list stays
                    async with client.listen(tools_list_changed=True) as changes:
                        listening.set()
                        async for _ in changes:
                            await self._refresh_tools(client)
        finally:
            listening.set()

    async def _on_message(self, message: Any) -> None:
        if isinstance(message, ToolListChangedNotification) and self.client is not None and not _is_modern(self.client):
            # Not awaited: the response arrives through the loop that delivers this message.
            task = asyncio.create_task(self._refresh_tools(self.client))
            self._refresh_tasks.add(task)
            task.add_done_callback(self._refresh_tasks.discard)

    async def _refresh_tools(self, client: Client) -> None:
        with suppress(Exception):  # keep the old list
            self.server_tools = await _list_tools(client)

    def _may_need_legacy_mode(self) -> bool:
        """Whether the server exited at the newer handshake; some older servers do."""
        return (
            self._accepting and not self.log.has_messages and not self._has_timed_out and self.log.exit_code is not None
        )

    def _fail_open(self, error: Exception) -> None:
        """Stop accepting before the failure is published, so that callers who retry get a new session."""
        self._accepting = False
        self.opened.set_exception(redact_failure(error, self.log.redactor))

    def _connect_error(self, error: BaseException) -> Exception:
        if self._has_timed_out:
            return timeout_error(self.log, "connecting", self._seconds)
        if isinstance(error, asyncio.CancelledError):
            return connection_lost(self.log, "connecting")
        return to_agent_error(error, self.log, "connecting")

    def _time_out_connecting(self) -> None:
        if not self.opened.done() and self._connection_task is not None:
            self._has_timed_out = True
            self._connection_task.cancel()

    def _stop(self) -> None:
        """Cancel connecting at once; give an open connection time to close."""
        self._accepting = False
        if not self._stopping.is_set():
            self._stopping.set()
            if self._connection_task is not None:
                self._loop.call_later(CLOSE_TIMEOUT if self.opened.done() else 0.0, self._connection_task.cancel)

    def _handle_server_end(self) -> None:
        if self.opened.done():  # otherwise the SDK reports it to the connecting caller
            self._stop()

    async def _execute(self, work: Callable[[Client], Awaitable[T]], doing: str, seconds: float | None) -> T:
        assert self.client is not None
        try:
            return await work(self.client)
        except asyncio.CancelledError:
            if self._accepting:
                raise
            failure: Exception = connection_lost(self.log, doing)
        except Exception as error:
            if is_connection_closed(error):
                self._stop()
            failure = to_agent_error(error, self.log, doing, seconds)
        # Without a cause and a context, which hold requests and responses.
        try:
            raise redact_failure(failure, self.log.redactor)
        finally:
            del failure  # otherwise the error and this frame form a reference cycle


async def _accept_result(name: str, result: mcp_types.CallToolResult) -> None:
    pass


def _is_modern(client: Client) -> bool:
    return client.protocol_version in MODERN_PROTOCOL_VERSIONS


async def _list_tools(client: Client) -> Sequence[mcp_types.Tool]:
    """List all tools; of tools with the same name, the first."""
    if client.server_capabilities.tools is None:
        return ()
    found = [tool async for page in iter_pages(client.list_tools, "tools") for tool in page.tools]
    return tuple({tool.name: tool for tool in reversed(found)}.values())[::-1]


async def _cancel_tasks(tasks: Iterable[asyncio.Task[Any] | None]) -> set[asyncio.Task[Any]]:
    """Cancel tasks, and return those that do not end in time."""
    pending = {task for task in tasks if task is not None and not task.done()}
    for task in pending:
        task.cancel()
    return (await asyncio.wait(pending, timeout=_CANCEL_TIMEOUT))[1] if pending else set()


def _stop_all() -> None:
    """Stop all sessions at exit, within a time limit."""
    here = [session for session in list(_sessions) if session.is_in_process]
    for session in here:
        session.stop("the program ends")
    wait([session.ended for session in here], timeout=CLOSE_TIMEOUT + _CANCEL_TIMEOUT)


atexit.register(_stop_all)
