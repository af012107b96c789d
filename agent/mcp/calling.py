"""One call of a server's tool, on the session's loop: progress out, the result back, and an end when it is given up."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic_core import PydanticSerializationError, to_json

from ..tools.base import AgentToolResult, ToolContext, ToolError
from ..tools.signal import Signal
from .content import MCPResult, read_result
from .failures import words_for_a_model

if TYPE_CHECKING:
    from mcp import Client

    from .tools import MCPTool

T = TypeVar("T")


def called(
    tool: MCPTool, arguments: Mapping[str, Any], context: ToolContext[Any], seconds: float | None
) -> Callable[[Client], Awaitable[MCPResult]]:
    """What the session shall do. If it is cancelled, or the context's signal is set, the server is told to stop."""
    from mcp import MCPError

    async def tell(progress: float, total: float | None, message: str | None) -> None:
        text = message or (f"{progress:g}" if total is None else f"{progress:g} of {total:g}")
        details = {"progress": progress, "total": total, "message": message}
        context.report(AgentToolResult(content=text, details=details))

    async def call(client: Client) -> MCPResult:
        given = dict(arguments)
        try:
            to_json(given)
        except (PydanticSerializationError, ValueError):
            raise ToolError("The arguments cannot be written as JSON.") from None
        calling = client.call_tool(tool.original, given, read_timeout_seconds=seconds, progress_callback=tell)
        try:
            return read_result(await _unless(context.signal, calling))
        except MCPError as error:
            if (words := words_for_a_model(error)) is not None:
                raise ToolError(words) from error
            raise

    return call


async def _unless(signal: Signal, work: Coroutine[Any, Any, T]) -> T:
    """The work's result, unless the signal comes first."""
    working = asyncio.ensure_future(work)
    waiting = asyncio.ensure_future(signal.wait())
    try:
        await asyncio.wait({working, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ToolError("The call was given up.")
        return working.result()
    finally:
        waiting.cancel()
        if not working.done():
            working.add_done_callback(lambda done: done.cancelled() or done.exception())  # nobody else will ask
            working.cancel()
            # Until the server has been told. A server in this process may take its time to notice.
            await asyncio.wait({working}, timeout=1.0)
