"""A server as a child process that speaks over its standard input and output.

The SDK brings such a transport, too. This one bounds what it reads, remembers the child's last words, notices its end,
and is sure to end the child, with everything the child started, in little more than a second.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import anyio
import mcp_types
from mcp.client.stdio import get_default_environment
from mcp.shared.message import SessionMessage
from typing_extensions import override

from ..errors import ConfigurationError
from .errors import Notes

if TYPE_CHECKING:
    from mcp.client._transport import TransportStreams

PATIENCE = 0.4
"""Seconds that a child gets to end by itself, and again to end when it is told to, before it is killed."""
_TIME_TO_FALL = 0.2
"""Seconds for the exit status and the last words to arrive after the output has ended."""
_MOST_BABBLE = 1_000


@dataclass(frozen=True, slots=True)
class Command:
    """What to run. The child sees a few harmless variables of our environment and those in `env`, nothing else."""

    command: str
    args: Sequence[str] = field(default=(), repr=False)
    env: Mapping[str, str] | None = field(default=None, repr=False)
    cwd: str | None = None


class _Protocol(asyncio.subprocess.SubprocessStreamProtocol):
    """Says when the process has ended; `Process.wait` would also wait for grandchildren that hold its pipes."""

    def __init__(self, limit: int) -> None:
        super().__init__(limit=limit, loop=asyncio.get_running_loop())
        self.ended = asyncio.Event()

    @override
    def process_exited(self) -> None:
        super().process_exited()
        self.ended.set()


@asynccontextmanager
async def child(
    command: Command, notes: Notes, most_bytes: int, on_end: Callable[[], None]
) -> AsyncIterator[TransportStreams]:
    """Start it; give the streams that the SDK reads and writes messages with; end it."""
    transport, protocol = await _start(command, most_bytes)
    process = asyncio.subprocess.Process(transport, protocol, asyncio.get_running_loop())
    incoming, read_stream = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    write_stream, outgoing = anyio.create_memory_object_stream[SessionMessage](0)
    closing = False

    async def read() -> None:
        try:
            await _messages(process.stdout, incoming, notes)
        except ValueError:  # the limit of the stream's buffer
            notes.reason = f"it sent a message of more than {most_bytes} bytes"
        except (OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass
        if not closing:
            if notes.reason is None:  # it was not our decision
                await _at_most(_TIME_TO_FALL, protocol.ended.wait())
                await _at_most(_TIME_TO_FALL, asyncio.shield(listening))
            notes.exit_code = transport.get_returncode()
            on_end()
        incoming.close()

    async def write() -> None:
        assert process.stdin is not None
        # When the child does not read any more, its output ends as well; or else it is the reader who waits for it.
        with suppress(OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
            async for message in outgoing:
                text: str = message.message.model_dump_json(by_alias=True, exclude_unset=True)
                process.stdin.write(text.encode("utf-8") + b"\n")
                await process.stdin.drain()

    async def listen() -> None:
        assert process.stderr is not None
        while data := await process.stderr.read(4_096):
            notes.hear_stderr(data)

    listening = asyncio.create_task(listen())
    tasks = [listening, asyncio.create_task(read()), asyncio.create_task(write())]
    try:
        yield read_stream, write_stream
    finally:
        closing = True
        try:
            await _end(process, protocol, polite=notes.heard)
        finally:
            _signal_group(process.pid, "SIGKILL")
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for stream in (incoming, read_stream, write_stream, outgoing):
                stream.close()
            transport.close()


async def _start(command: Command, most_bytes: int) -> tuple[asyncio.SubprocessTransport, _Protocol]:
    try:
        return await asyncio.get_running_loop().subprocess_exec(
            lambda: _Protocol(most_bytes),
            command.command,
            *command.args,
            env={**get_default_environment(), **(command.env or {})},
            cwd=command.cwd,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        raise _not_started(command, error) from error


def _not_started(command: Command, error: OSError | ValueError) -> ConfigurationError:
    if command.cwd is not None and not os.path.isdir(command.cwd):
        return ConfigurationError(f"There is no directory {command.cwd!r}.", field="cwd", fix="Correct cwd=.")
    why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return ConfigurationError(
        f"The MCP server {command.command!r} cannot be started: {why}.",
        field="command",
        fix="Install it, or pass its full path; arguments go into args=, each as a string of its own.",
    )


async def _messages(stdout: asyncio.StreamReader | None, incoming: Any, notes: Notes) -> None:
    """Hand on message after message, until the output ends. What is no message is skipped, within limits."""
    assert stdout is not None
    babble = 0
    while line := await stdout.readline():
        if not line.strip():
            continue
        try:
            message = mcp_types.jsonrpc_message_adapter.validate_json(line, by_name=False)
        except ValueError:
            if (unreadable := _unreadable(line)) is not None:
                await incoming.send(SessionMessage(unreadable))
                continue
            babble += 1
            notes.babble = notes.babble or notes.clean(line[:200].decode("utf-8", "replace")).strip()
            if babble > _MOST_BABBLE:
                notes.reason = f"more than {_MOST_BABBLE} lines of its output were no messages"
                return
            continue
        notes.heard = True
        await incoming.send(SessionMessage(message))


def _unreadable(line: bytes) -> mcp_types.JSONRPCError | None:
    """For an answer that is JSON but no message: an error in its place, so that nobody waits for it."""
    try:
        said = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(said, dict) or "method" in said or not isinstance(said.get("id"), int | str):
        return None
    error = mcp_types.ErrorData(code=mcp_types.PARSE_ERROR, message="The server's answer cannot be read.")
    return mcp_types.JSONRPCError(jsonrpc="2.0", id=said["id"], error=error)


async def _end(process: asyncio.subprocess.Process, protocol: _Protocol, *, polite: bool) -> None:
    """Close its input, ask it to go, kill it: whatever is needed. One that never spoke is not waited for first."""
    if process.stdin is not None:
        process.stdin.close()
    for means in ("", "SIGTERM", "SIGKILL") if polite else ("SIGTERM", "SIGKILL"):
        if means:
            _signal_group(process.pid, means)
        if await _at_most(PATIENCE, protocol.ended.wait()):
            return


async def _at_most(seconds: float, waiting: Awaitable[Any]) -> bool:
    """Whether it ended in time."""
    try:
        await asyncio.wait_for(waiting, seconds)
    except TimeoutError:
        return False
    return True


def _signal_group(pid: int, name: str) -> None:
    """To the child and everything it started that stayed in its group."""
    with suppress(ProcessLookupError, PermissionError):
        if hasattr(os, "killpg"):
            os.killpg(pid, getattr(signal, name))
        else:  # Windows has no groups; its children die with their pipes
            os.kill(pid, signal.SIGTERM)
