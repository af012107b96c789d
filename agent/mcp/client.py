"""MCP client: connect to a server and use its tools, resources and prompts.

`session` runs the connection on its own thread, `transports` moves the bytes, and `tools` converts tools and content.
"""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as StillWaiting
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, Literal, Self, TypedDict, TypeVar

from typing_extensions import Unpack, override

from .. import errors
from ..schemas.validation import run_until
from ..tools.base import Tool, ToolContext
from ..types import ContentPart, Message
from ..types.config import Risk
from ..types.option_errors import check_options
from .credentials import Redactor, display_url, find_command_secrets
from .errors import ConnectionLog, SessionLost, connection_lost, require_sdk, timeout_error
from .tools import (
    MCPResult,
    MCPTool,
    get_prompt,
    list_prompts,
    list_resources,
    make_call,
    read_resource,
    select_tools,
    validate_off_loop,
)

if TYPE_CHECKING:
    import httpx2
    import mcp_types
    from mcp import Client
    from mcp.server import MCPServer as HighLevelServer
    from mcp.server import Server as LowLevelServer

    from .server import ToolServer
    from .session import Connect, MCPSession
    from .transports import StdioCommand

T = TypeVar("T")
_DEFAULT_TIMEOUT = 60.0
_MAX_BYTES = 16 * 1024 * 1024
_GRACE_PERIOD = 2.0
"""Extra seconds to wait for a timeout that the session's event loop should have raised."""


class ServerSettings(TypedDict, total=False):
    """Options of a connection, for any transport."""

    name: str
    """The name in messages; by default the command, the URL, or the server's own name."""
    prefix: str
    """A prefix for all tool names."""
    only: Iterable[str]
    """The tools to use, by the server's own names. Default: all."""
    without: Iterable[str]
    """The tools to exclude, by the server's own names."""
    risk: Risk
    """The risk of all tools, overriding the server's hints."""
    trust: bool
    """Trust hints that a tool only reads or is idempotent. Default: only for servers in this process. Hints
    about dangers are always trusted."""
    timeout: float
    """Seconds for a tool call. Default: the limit of the loop, and 60 for `call`."""
    connect_timeout: float
    """Seconds for connecting. Default: 30."""
    reconnect: bool
    """Whether a call restarts a server that has ended, once per call. Default: true."""
    mode: Literal["auto", "legacy"]
    """`legacy` uses the handshake of 2025 without trying the newer one."""
    max_bytes: int
    """The maximum size of a message from the server. Default: 16 MiB."""


class MCPServer:
    """A connection to an MCP server. Open it with `with` or `async with` to use its `tools`.

    One object serves synchronous callers, asyncio and threads at the same time.
    """

    def __init__(
        self,
        connect: Connect,
        label: str,
        secrets: Iterable[str] = (),
        **settings: Unpack[ServerSettings],
    ) -> None:
        require_sdk()
        _check_settings(settings)
        self._settings = settings
        self._connect = connect
        self._redact = Redactor(secrets)
        self._label = settings.get("name") or self._redact(label)
        self._lock = threading.Lock()
        self._session: MCPSession | None = None
        self._tools: Sequence[MCPTool] = ()
        self._listed_tools: Sequence[mcp_types.Tool] | None = None
        self._finalizer: Any = None

    @classmethod
    @errors.hide_arguments
    def stdio(
        cls,
        command: str,
        args: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        **settings: Unpack[ServerSettings],
    ) -> Self:
        """Start a program, and communicate over its standard input and output.

        Args:
            env: Environment variables. Of this process's environment, only harmless ones such as PATH are passed on.
        """
        require_sdk()
        from .transports import StdioCommand, connect_stdio  # lazy: needs the extra

        if isinstance(args, str) or not isinstance(args, Iterable):
            raise errors.ConfigurationError(
                "args must be a list of strings.", field="args", fix="Pass a list with one string for each argument."
            )
        stdio_command = StdioCommand(command, tuple(args), dict(env or {}), None if cwd is None else os.fspath(cwd))
        connect = partial(connect_stdio, stdio_command, settings.get("max_bytes", _MAX_BYTES))
        secrets = find_command_secrets(stdio_command.args, stdio_command.env)
        return cls(connect, _display_name(stdio_command), secrets, **settings)

    @classmethod
    @errors.hide_arguments
    def http(
        cls,
        url: str,
        headers: Mapping[str, str] | None = None,
        *,
        auth: httpx2.Auth | None = None,
        allow_insecure: bool = False,
        **settings: Unpack[ServerSettings],
    ) -> Self:
        """Connect to a URL over streamable HTTP.

        Args:
            headers: Sent with every request, such as `{"Authorization": "Bearer …"}`.
            auth: Other authentication, such as the SDK's `OAuthClientProvider`.
            allow_insecure: Allow headers over plain http to another machine.
        """
        require_sdk()
        from .transports import ServerAddress, connect_http  # lazy: needs the extra

        address = ServerAddress(url, dict(headers or {}), auth, allow_insecure)
        connect = partial(connect_http, address, settings.get("max_bytes", _MAX_BYTES))
        return cls(connect, display_url(address.url), address.secrets, **settings)

    @classmethod
    def in_process(
        cls, server: HighLevelServer[Any] | LowLevelServer[Any] | ToolServer, **settings: Unpack[ServerSettings]
    ) -> Self:  # Any: a server with any state
        """Use a server object of the SDK, low-level or high-level, or a `ToolServer`."""
        real: Any = getattr(server, "mcp", server)
        settings.setdefault("trust", True)
        return cls(lambda log, on_end: real, str(getattr(real, "name", "server")), **settings)

    @override
    @errors.printable
    def __repr__(self) -> str:
        return f"MCPServer({self._label!r}, {'open' if self.is_open else 'closed'})"

    # Opening and closing

    def open(self) -> Self:
        """Connect. `with` opens and closes the connection."""
        session = self._open_session()
        try:
            self._wait_for(session.opened, self._connect_timeout, "connecting")
            self._check_selection()
        except BaseException:
            self.close()
            raise
        return self

    async def aopen(self) -> Self:
        session = self._open_session()
        try:
            await asyncio.shield(asyncio.wrap_future(session.opened))
            self._check_selection()
        except BaseException:
            await self.aclose()
            raise
        return self

    def close(self) -> None:
        """End the session and its program, within two seconds."""
        session = self._detach_session()
        if session is not None and not session.is_own_thread:
            with suppress(StillWaiting):
                session.ended.result(_GRACE_PERIOD)
                session.join()

    async def aclose(self) -> None:
        session = self._detach_session()
        if session is not None:
            with suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(session.ended)), _GRACE_PERIOD)
                session.join()

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(self, *exc: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return await self.aopen()

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    @property
    def is_open(self) -> bool:
        """Whether the server was opened and not closed."""
        return self._session is not None

    # Tools, resources and prompts

    @property
    def tools(self) -> list[Tool]:
        """The server's current tools. A server can change them at any time; tools in use keep working."""
        return list(self._current_tools())

    @property
    def instructions(self) -> str | None:
        """The server's instructions for a model."""
        return self._sdk_client().instructions

    @property
    def protocol_version(self) -> str:
        return self._sdk_client().protocol_version

    def call(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        timeout: float | None = None,
        report: Callable[[Any], None] | None = None,  # Any: progress of any type
    ) -> MCPResult:
        """Call a tool by the server's name or the model's name.

        Args:
            timeout: Seconds.
            report: Receives progress reports, on another thread.
        """
        tool = self._find_tool(name)
        seconds = timeout or tool.timeout or _DEFAULT_TIMEOUT
        checked = run_until(monotonic() + seconds, tool.check, arguments or {})
        return self._run_sync(
            make_call(tool, checked, _make_context(tool, report), seconds, self._redact),
            f"calling {tool.original}",
            seconds,
        )

    async def acall(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        timeout: float | None = None,
        report: Callable[[Any], None] | None = None,  # Any: progress of any type
    ) -> MCPResult:
        tool = self._find_tool(name)
        seconds = timeout or tool.timeout or _DEFAULT_TIMEOUT
        checked = await validate_off_loop(tool.check, arguments or {}, seconds=seconds)
        return await self.acall_tool(tool, checked, _make_context(tool, report), seconds)

    async def acall_tool(
        self, tool: MCPTool, arguments: Mapping[str, Any], context: ToolContext[Any], seconds: float | None
    ) -> MCPResult:
        """Call a tool with validated arguments; used by `MCPTool`."""
        return await self._run_async(
            make_call(tool, arguments, context, seconds, self._redact), f"calling {tool.original}", seconds
        )

    def resources(self) -> list[mcp_types.Resource]:
        """List the server's resources."""
        return self._run_sync(list_resources, "listing resources")

    async def aresources(self) -> list[mcp_types.Resource]:
        return await self._run_async(list_resources, "listing resources")

    def read_resource(self, uri: str) -> list[ContentPart]:
        """Read a resource as parts of a message."""
        return self._run_sync(partial(read_resource, uri), f"reading the resource {uri}")

    async def aread_resource(self, uri: str) -> list[ContentPart]:
        return await self._run_async(partial(read_resource, uri), f"reading the resource {uri}")

    def prompts(self) -> list[mcp_types.Prompt]:
        """List the server's prompts."""
        return self._run_sync(list_prompts, "listing prompts")

    async def aprompts(self) -> list[mcp_types.Prompt]:
        return await self._run_async(list_prompts, "listing prompts")

    def get_prompt(self, name: str, arguments: Mapping[str, str] | None = None) -> list[Message]:
        """Fill in a prompt, and return its messages."""
        return self._run_sync(partial(get_prompt, name, arguments), f"getting the prompt {name}")

    async def aget_prompt(self, name: str, arguments: Mapping[str, str] | None = None) -> list[Message]:
        return await self._run_async(
            partial(get_prompt, name, arguments), f"getting the prompt {name}", _DEFAULT_TIMEOUT
        )

    # Sessions

    @property
    def _connect_timeout(self) -> float:
        return self._settings.get("connect_timeout", 30.0)

    def _open_session(self) -> MCPSession:
        with self._lock:
            if self._session is not None:
                raise errors.ConfigurationError(
                    f"{self._label}: the server is already open.", field="server", fix="Open it once and share it."
                )
            return self._start_session()

    def _start_session(self) -> MCPSession:
        from .session import MCPSession  # lazy: needs the extra

        log = self._make_log()
        self._session = MCPSession(self._connect, log, self._connect_timeout, self._settings.get("mode", "auto"))
        if self._finalizer is not None:
            self._finalizer.detach()
        # For objects that are never closed. At exit, the session module stops all sessions.
        self._finalizer = weakref.finalize(self, self._session.stop)
        self._finalizer.atexit = False
        return self._session

    def _make_log(self) -> ConnectionLog:
        return ConnectionLog(self._label, self._redact)

    def _detach_session(self) -> MCPSession | None:
        with self._lock:
            session, self._session = self._session, None
        if session is not None:
            session.stop("it was closed")
        return session

    def _active_session(self) -> MCPSession:
        """Return the current session, or restart a lost one."""
        with self._lock:
            session = self._session
            if session is None:
                raise errors.ConfigurationError(
                    f"{self._label}: the server is not open.", field="server", fix="Use it inside `with server:`."
                )
            if session.is_over and (self._settings.get("reconnect", True) or not session.is_in_process):
                return self._start_session()
            return session

    def _sdk_client(self) -> Client:
        session = self._session
        if session is None or session.client is None:
            self._active_session()
            raise connection_lost(self._make_log(), "reading server information")
        return session.client

    def _run_sync(self, work: Callable[[Client], Awaitable[T]], doing: str, seconds: float = _DEFAULT_TIMEOUT) -> T:
        """Run a request on the session's loop, and block until it is done."""
        for attempt in (1, 2):
            session = self._active_session()
            if session.is_own_thread:
                raise errors.ConfigurationError(
                    f"{self._label}: the session's own thread cannot wait for itself.", field="call", fix="Use acall()."
                )
            self._wait_for(session.opened, self._connect_timeout, "connecting")
            future = session.submit(work, doing, seconds)
            try:
                return self._wait_for(future, seconds, doing)
            except SessionLost:
                self._handle_session_loss(session, attempt, doing)
            except BaseException:
                future.cancel()
                raise
        raise AssertionError("the second attempt returns or raises")

    async def _run_async(
        self, work: Callable[[Client], Awaitable[T]], doing: str, seconds: float | None = _DEFAULT_TIMEOUT
    ) -> T:
        """Run a request on the session's loop, and await it."""
        for attempt in (1, 2):
            session = self._active_session()
            await asyncio.shield(asyncio.wrap_future(session.opened))
            try:
                return await asyncio.wrap_future(session.submit(work, doing, seconds))
            except SessionLost:
                self._handle_session_loss(session, attempt, doing)
        raise AssertionError("the second attempt returns or raises")

    def _handle_session_loss(self, session: MCPSession, attempt: int, doing: str) -> None:
        """Stop a session that the HTTP server has forgotten; its request was not executed and can be retried."""
        session.stop("the server does not know this session any more")
        if attempt == 2 or not self._settings.get("reconnect", True):
            raise connection_lost(session.log, doing) from None

    def _wait_for(self, future: Future[T], seconds: float, doing: str) -> T:
        try:
            return future.result(seconds + _GRACE_PERIOD)
        except StillWaiting:  # a blocking server in this process stops the loop that raises timeouts
            raise timeout_error(self._make_log(), doing, seconds) from None

    # Tools

    def _current_tools(self) -> Sequence[MCPTool]:
        session = self._session
        if session is None:
            session = self._active_session()
        with self._lock:
            if session.server_tools is not self._listed_tools and session.client is not None:
                self._tools = select_tools(self, session.server_tools, self._tools, self._settings)
                self._listed_tools = session.server_tools
            return self._tools

    def _check_selection(self) -> None:
        server_tools = {tool.name for tool in self._session.server_tools} if self._session is not None else set()
        for key in ("only", "without"):
            if unknown := sorted(set(self._settings.get(key, ())) - server_tools):  # type: ignore[call-overload]
                raise errors.ConfigurationError(
                    f"{self._label}: the server has no tool {', '.join(map(repr, unknown))}.",
                    field=key,
                    fix=f"It has: {', '.join(sorted(server_tools)) or 'none'}.",
                )

    def _find_tool(self, name: str) -> MCPTool:
        tools = self._current_tools()
        tool = next((item for item in tools if name == item.original), None)
        tool = tool or next((item for item in tools if name == item.name), None)
        if tool is None:
            raise errors.ConfigurationError(
                f"{self._label}: there is no tool {name!r}.",
                field="name",
                fix=f"There are: {', '.join(item.original for item in tools) or 'none'}.",
            )
        return tool


def _check_settings(settings: ServerSettings) -> None:
    check_options(settings, ServerSettings.__annotations__, "MCPServer")
    for key in ("timeout", "connect_timeout", "max_bytes"):
        value: Any = settings.get(key)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if value is not None and not (is_number and value > 0):
            raise errors.ConfigurationError(
                f"{key} must be a number greater than 0.", field=key, fix="Leave it out, or raise it."
            )
    for key in ("only", "without"):
        names = settings.get(key)
        if isinstance(names, str) or not isinstance(names, Iterable | None):
            raise errors.ConfigurationError(f"{key} must be a list of names.", field=key, fix="Pass a list of names.")


def _display_name(stdio_command: StdioCommand) -> str:
    """Return the program and its first argument, such as `npx some-server`. Options can contain secrets."""
    words = [stdio_command.command, *(word for word in stdio_command.args[:1] if not word.startswith("-"))]
    return " ".join(os.path.basename(word) or word for word in words)[:80]


def _make_context(tool: MCPTool, report: Callable[[Any], None] | None) -> ToolContext[Any]:
    context: ToolContext[Any] = ToolContext(tool_name=tool.name)
    if report is not None:
        context.report = report
    return context
