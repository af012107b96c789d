"""A server of the Model Context Protocol, and its tools as tools of ours.

`MCPServer` is what a program holds. On which thread and loop its session lives is `session`'s business, how bytes get
there that of `child` and `web`, what its tools look like to a model that of `tools`.
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
from typing import TYPE_CHECKING, Any, Literal, Self, TypedDict, TypeVar

from typing_extensions import Unpack, override

from .. import errors
from ..tools.base import Tool, ToolContext
from ..types import ContentPart, Message
from ..types.config import Risk
from .content import MCPResult, all_prompts, all_resources, prompting, reading
from .errors import Notes, SessionLost, lost, require_sdk, timed_out
from .tools import MCPTool, called, chosen_tools

if TYPE_CHECKING:
    import httpx2
    import mcp_types
    from mcp import Client
    from mcp.server import MCPServer as HighLevelServer
    from mcp.server import Server as LowLevelServer

    from .server import ToolServer
    from .session import Connect, Session
    from .stdio import Command

T = TypeVar("T")
_USUAL_TIMEOUT = 60.0
_SLACK = 2.0
"""Seconds after which a limit that the session's loop should have kept is kept without it."""


class ServerSettings(TypedDict, total=False):
    """What may be said about any server, however it is reached."""

    name: str
    """For messages; by default the command, the address, or the server's own name."""
    prefix: str
    """Put before the name of every tool."""
    only: Iterable[str]
    """The tools to take, by the server's own names. By default all."""
    without: Iterable[str]
    """Tools to leave out, by the server's own names."""
    risk: Risk
    """The risk of all its tools, whatever the server says of them."""
    trust: bool
    """Believe the server when it says that a tool only reads, or may run twice. By default only one in this process
    is believed; hints that warn are believed from any."""
    timeout: float
    """Seconds for one call of a tool. By default as long as the loop allows, and 60 for `call`."""
    connect_timeout: float
    """Seconds until the server must have answered for the first time: 30."""
    reconnect: bool
    """Whether a call to a server that has ended starts it again. By default yes, once for each call."""
    mode: Literal["auto", "legacy"]
    """`legacy` greets the server in the way of 2025 without trying the newer one."""
    max_bytes: int
    """The longest message that is read from it: 16 MiB."""


class MCPServer:
    """A server whose tools a model may call. Open it with `with` or `async with`; then `tools` are tools like others.

    The same object serves blocking callers, asyncio and threads, all at once.
    """

    def __init__(
        self,
        connect: Callable[[int], Connect],
        label: str,
        secrets: Iterable[str] = (),
        **settings: Unpack[ServerSettings],
    ) -> None:
        require_sdk()
        _check(settings)
        self._settings = settings
        self._connect = connect(settings.get("max_bytes", 16 * 1024 * 1024))
        self._label = settings.get("name") or label
        self._secrets = tuple(secrets)
        self._lock = threading.Lock()
        self._session: Session | None = None
        self._tools: Sequence[MCPTool] = ()
        self._seen: Sequence[mcp_types.Tool] | None = None
        self._finalizer: Any = None

    @classmethod
    def stdio(
        cls,
        command: str,
        args: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        **settings: Unpack[ServerSettings],
    ) -> Self:
        """A program that is started, and speaks over its standard input and output.

        Args:
            env: Variables for it. Of ours it sees only a few harmless ones such as PATH, and no keys.
        """
        require_sdk()
        from .stdio import Command, child  # lazy: needs the extra

        if isinstance(args, str):
            raise errors.ConfigurationError(
                "args is one string.", field="args", fix="Pass a list with one string for each argument."
            )
        what = Command(command, tuple(args), dict(env or {}), None if cwd is None else os.fspath(cwd))

        def connect(most_bytes: int) -> Connect:
            return lambda notes, on_end: child(what, notes, most_bytes, on_end)

        return cls(connect, _shown(what), (env or {}).values(), **settings)

    @classmethod
    def http(
        cls,
        url: str,
        headers: Mapping[str, str] | None = None,
        *,
        auth: httpx2.Auth | None = None,
        allow_insecure: bool = False,
        **settings: Unpack[ServerSettings],
    ) -> Self:
        """A server at an address, over streamable HTTP.

        Args:
            headers: Sent with every request, such as `{"Authorization": "Bearer …"}`.
            auth: For servers that want more than a header: the SDK's `OAuthClientProvider` is one.
            allow_insecure: Send these over plain http to another machine.
        """
        require_sdk()
        from .http import Address, web  # lazy: needs the extra

        address = Address(url, dict(headers or {}), auth, allow_insecure)

        def connect(most_bytes: int) -> Connect:
            return lambda notes, on_end: web(address, most_bytes)

        secrets = [word for value in address.headers.values() for word in (value, *value.split()[-1:])]
        secrets += [address.password] if address.password else []
        return cls(connect, address.shown, secrets, **settings)

    @classmethod
    def in_process(
        cls, server: HighLevelServer[Any] | LowLevelServer[Any] | ToolServer, **settings: Unpack[ServerSettings]
    ) -> Self:
        """A server object of the SDK's, low level or high level, or one of ours. It runs on the session's loop."""
        real: Any = getattr(server, "mcp", server)
        settings.setdefault("trust", True)
        return cls(lambda most_bytes: lambda notes, on_end: real, str(getattr(real, "name", "server")), **settings)

    @override
    def __repr__(self) -> str:
        return f"MCPServer({self._label!r}, {'open' if self.is_open else 'closed'})"

    # Opening and closing

    def open(self) -> Self:
        """Connect. `with` does this, and closes, too."""
        session = self._begin()
        try:
            self._wait(session.opened, self._connect_timeout, "connecting")
            self._check_choice()
        except BaseException:
            self.close()
            raise
        return self

    async def aopen(self) -> Self:
        session = self._begin()
        try:
            await asyncio.shield(asyncio.wrap_future(session.opened))
            self._check_choice()
        except BaseException:
            await self.aclose()
            raise
        return self

    def close(self) -> None:
        """End the session, and the program if one was started. Takes two seconds at most."""
        session = self._forget()
        if session is not None and not session.is_mine:
            with suppress(StillWaiting):
                session.ended.result(_SLACK)
                session.join()

    async def aclose(self) -> None:
        session = self._forget()
        if session is not None:
            with suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(session.ended)), _SLACK)
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
        """Whether it has been opened, and not closed."""
        return self._session is not None

    # What it offers

    @property
    def tools(self) -> list[Tool]:
        """Its tools, as they are now: a server may change them while it runs. Those taken before keep working."""
        return list(self._current_tools())

    @property
    def instructions(self) -> str | None:
        """What the server says about how to use it. Meant for a model's system message; written by the server."""
        return self._client().instructions

    @property
    def protocol_version(self) -> str:
        return self._client().protocol_version

    def call(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        timeout: float | None = None,
        report: Callable[[Any], None] | None = None,
    ) -> MCPResult:
        """Call a tool by its name, the server's or ours.

        Args:
            timeout: Seconds.
            report: Gets the progress that the server reports, on another thread.
        """
        tool, checked = self._checked(name, arguments)
        seconds = timeout or tool.timeout or _USUAL_TIMEOUT
        return self._now(called(tool, checked, _context(tool, report), seconds), f"calling {tool.original}", seconds)

    async def acall(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        timeout: float | None = None,
        report: Callable[[Any], None] | None = None,
    ) -> MCPResult:
        tool, checked = self._checked(name, arguments)
        seconds = timeout or tool.timeout or _USUAL_TIMEOUT
        return await self.acall_tool(tool, checked, _context(tool, report), seconds)

    async def acall_tool(
        self, tool: MCPTool, arguments: Mapping[str, Any], context: ToolContext[Any], seconds: float | None
    ) -> MCPResult:
        """For the tools themselves: arguments that are checked, and a context to report to and be stopped by."""
        return await self._soon(called(tool, arguments, context, seconds), f"calling {tool.original}", seconds)

    def resources(self) -> list[mcp_types.Resource]:
        """What can be read with `read_resource`."""
        return self._now(all_resources, "listing resources", _USUAL_TIMEOUT)

    async def aresources(self) -> list[mcp_types.Resource]:
        return await self._soon(all_resources, "listing resources", _USUAL_TIMEOUT)

    def read_resource(self, uri: str) -> list[ContentPart]:
        """A resource's contents, as parts for a message."""
        return self._now(reading(uri), f"reading {uri}", _USUAL_TIMEOUT)

    async def aread_resource(self, uri: str) -> list[ContentPart]:
        return await self._soon(reading(uri), f"reading {uri}", _USUAL_TIMEOUT)

    def prompts(self) -> list[mcp_types.Prompt]:
        """The prompts that `get_prompt` fills in."""
        return self._now(all_prompts, "listing prompts", _USUAL_TIMEOUT)

    async def aprompts(self) -> list[mcp_types.Prompt]:
        return await self._soon(all_prompts, "listing prompts", _USUAL_TIMEOUT)

    def get_prompt(self, name: str, arguments: Mapping[str, str] | None = None) -> list[Message]:
        """A prompt as messages, to begin a conversation with."""
        return self._now(prompting(name, arguments), f"getting the prompt {name}", _USUAL_TIMEOUT)

    async def aget_prompt(self, name: str, arguments: Mapping[str, str] | None = None) -> list[Message]:
        return await self._soon(prompting(name, arguments), f"getting the prompt {name}", _USUAL_TIMEOUT)

    # Sessions

    @property
    def _connect_timeout(self) -> float:
        return self._settings.get("connect_timeout", 30.0)

    def _begin(self) -> Session:
        with self._lock:
            if self._session is not None:
                raise errors.ConfigurationError(
                    f"{self._label}: the server is open already.", field="server", fix="Open it once, and share it."
                )
            return self._start()

    def _start(self) -> Session:
        from .session import Session  # lazy: needs the extra

        notes = Notes(self._label, self._secrets)
        self._session = Session(self._connect, notes, self._connect_timeout, self._settings.get("mode", "auto"))
        if self._finalizer is not None:
            self._finalizer.detach()
        # If the program forgets to close it; what is open at the end of the program is ended by the sessions' module.
        self._finalizer = weakref.finalize(self, self._session.stop)
        self._finalizer.atexit = False
        return self._session

    def _forget(self) -> Session | None:
        with self._lock:
            session, self._session = self._session, None
        if session is not None:
            session.stop("it was closed")
        return session

    def _ready(self) -> Session:
        """The session to use now: the one there is, or another in its place if that is lost."""
        with self._lock:
            session = self._session
            if session is None:
                raise errors.ConfigurationError(
                    f"{self._label}: the server is not open.", field="server", fix="Use it inside `with server:`."
                )
            if session.over and (self._settings.get("reconnect", True) or not session.is_here):
                return self._start()
            return session

    def _client(self) -> Client:
        session = self._session
        if session is None or session.client is None:
            self._ready()
            raise lost(Notes(self._label), "being asked about itself")
        return session.client

    def _now(self, work: Callable[[Client], Awaitable[T]], doing: str, seconds: float) -> T:
        """Do it on the session's loop, and block until it is done."""
        for attempt in (1, 2):
            session = self._ready()
            if session.is_mine:
                raise errors.ConfigurationError(
                    f"{self._label}: the server's own thread would wait for itself.", field="call", fix="Use acall()."
                )
            self._wait(session.opened, self._connect_timeout, "connecting")
            future = session.submit(work, doing, seconds)
            try:
                return self._wait(future, seconds, doing)
            except SessionLost:
                self._give_up(session, attempt, doing)
            except BaseException:
                future.cancel()
                raise
        raise AssertionError("the second attempt returns or raises")

    async def _soon(self, work: Callable[[Client], Awaitable[T]], doing: str, seconds: float | None) -> T:
        """Do it on the session's loop, while the caller's own goes on."""
        for attempt in (1, 2):
            session = self._ready()
            await asyncio.shield(asyncio.wrap_future(session.opened))
            try:
                return await asyncio.wrap_future(session.submit(work, doing, seconds))
            except SessionLost:
                self._give_up(session, attempt, doing)
        raise AssertionError("the second attempt returns or raises")

    def _give_up(self, session: Session, attempt: int, doing: str) -> None:
        """The server has forgotten the session, and not done what it was asked: another one may ask again."""
        session.stop("the server does not know this session any more")
        if attempt == 2 or not self._settings.get("reconnect", True):
            raise lost(session.notes, doing) from None

    def _wait(self, future: Future[T], seconds: float, doing: str) -> T:
        try:
            return future.result(seconds + _SLACK)
        except StillWaiting:  # a server in this process blocks the loop that should have kept the limit
            raise timed_out(Notes(self._label), doing, seconds) from None

    # Tools

    def _current_tools(self) -> Sequence[MCPTool]:
        session = self._session
        if session is None:
            session = self._ready()
        with self._lock:
            if session.offered is not self._seen and session.client is not None:
                self._tools = chosen_tools(self, session.offered, self._tools, self._settings)
                self._seen = session.offered
            return self._tools

    def _check_choice(self) -> None:
        offered = {tool.name for tool in self._session.offered} if self._session is not None else set()
        for key in ("only", "without"):
            if unknown := sorted(set(self._settings.get(key, ())) - offered):  # type: ignore[call-overload]
                raise errors.ConfigurationError(
                    f"{self._label}: the server has no tool {', '.join(map(repr, unknown))}.",
                    field=key,
                    fix=f"It has: {', '.join(sorted(offered)) or 'none'}.",
                )

    def _checked(self, name: str, arguments: Mapping[str, Any] | None) -> tuple[MCPTool, Mapping[str, Any]]:
        tools = self._current_tools()
        tool = next((each for each in tools if name == each.original), None)
        tool = tool or next((each for each in tools if name == each.name), None)
        if tool is None:
            raise errors.ConfigurationError(
                f"{self._label}: there is no tool {name!r}.",
                field="name",
                fix=f"There are: {', '.join(each.original for each in tools) or 'none'}.",
            )
        return tool, tool.check(arguments or {})


def _check(settings: ServerSettings) -> None:
    for key in ("timeout", "connect_timeout", "max_bytes"):
        value: Any = settings.get(key)
        if value is not None and not value > 0:
            raise errors.ConfigurationError(f"{key} must be more than 0.", field=key, fix="Leave it out, or raise it.")
    for key in ("only", "without"):
        if isinstance(settings.get(key), str):
            raise errors.ConfigurationError(f"{key} is one string.", field=key, fix="Pass a list of names.")


def _shown(what: Command) -> str:
    """The program, and what it is told first if that is a name: `npx some-server`. Options may hold secrets."""
    words = [what.command, *(word for word in what.args[:1] if not word.startswith("-"))]
    return " ".join(os.path.basename(word) or word for word in words)[:80]


def _context(tool: MCPTool, report: Callable[[Any], None] | None) -> ToolContext[Any]:
    context: ToolContext[Any] = ToolContext(tool_name=tool.name)
    if report is not None:
        context.report = report
    return context
