"""Conversion of tools, arguments and content between MCP and this package.

Content that no model can read is described in text, and kept in the details of the result.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import re
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextvars import copy_context
from dataclasses import dataclass, field
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic_core import PydanticSerializationError, to_json
from typing_extensions import override

from ..engine.drivers.user_code import call_in_thread
from ..errors import ConfigurationError, ProtocolError
from ..schemas.validation import Deferred, TooExpensive, check_limits, find_problems, run_inline, run_until
from ..tools.base import AgentToolResult, ArgumentsError, Signal, Tool, ToolContext, ToolError
from ..types import AudioContent, ContentPart, DocumentContent, ImageContent, Message, TextContent, ToolResult, thaw
from ..types.config import Risk
from .credentials import Redactor
from .errors import tool_error_text

if TYPE_CHECKING:
    import mcp_types
    from mcp import Client

    from .client import MCPServer, ServerSettings


@dataclass
class MCPResult(AgentToolResult):
    """The result of a tool call: parts for the model in `content`, everything else in `details`."""

    @property
    def text(self) -> str:
        """All text parts, joined by newlines."""
        if isinstance(self.content, str):
            return self.content
        return "\n".join(part.text for part in self.content if isinstance(part, TextContent))

    @property
    def structured(self) -> Any:  # Any: a JSON value
        """The structured content, if the server sent any."""
        return self.details.get("structured")


def read_result(result: mcp_types.CallToolResult) -> MCPResult:
    blobs: list[dict[str, Any]] = []
    parts = [read_block(block, blobs) for block in result.content]
    structured = result.structured_content
    if not parts and structured is not None:
        parts.append(TextContent(text=json.dumps(structured, ensure_ascii=False)))
    details: dict[str, Any] = {"structured": structured}
    if blobs:
        details["blobs"] = blobs
    return MCPResult(content=parts, details=details, is_error=result.is_error)


def read_block(block: Any, blobs: list[dict[str, Any]] | None = None) -> ContentPart:
    """Convert a content block. Other binary data is appended to `blobs`, still encoded."""
    match block.type:
        case "text":
            return TextContent(text=block.text)
        case "image":
            return ImageContent(image_data=_decode_base64(block.data), media_type=block.mime_type)
        case "audio":
            return AudioContent(data=_decode_base64(block.data), media_type=block.mime_type)
        case "resource":
            return read_contents(block.resource, blobs)
        case "resource_link":
            about = f" ({block.description})" if block.description else ""
            return TextContent(text=f"{block.title or block.name}{about}: {block.uri}")
        case _:
            return TextContent(text=f"[{block.type}]")


def read_contents(contents: Any, blobs: list[dict[str, Any]] | None = None) -> ContentPart:
    """Convert the contents of a resource."""
    text: str | None = getattr(contents, "text", None)
    if text is not None:
        return TextContent(text=text)
    kind = (contents.mime_type or "application/octet-stream").partition(";")[0].strip().lower()
    if kind.startswith("image/"):
        return ImageContent(image_data=_decode_base64(contents.blob), media_type=kind)
    if kind.startswith("audio/"):
        return AudioContent(data=_decode_base64(contents.blob), media_type=kind)
    if kind == "application/pdf":
        return DocumentContent(data=_decode_base64(contents.blob), media_type=kind, title=contents.uri)
    if blobs is not None:
        blobs.append({"uri": contents.uri, "media_type": kind, "data": contents.blob})
    return TextContent(text=f"[{contents.uri}: {len(contents.blob) * 3 // 4} bytes of {kind}]")


def _decode_base64(data: str) -> bytes:
    try:
        return base64.b64decode(data, validate=True)
    except ValueError:
        raise RuntimeError("data in the response is not base64") from None


def to_mcp_result(result: ToolResult) -> mcp_types.CallToolResult:
    """Convert a tool result to MCP."""
    import mcp_types

    parts: Sequence[ContentPart] = (
        ([TextContent(text=result.content)] if result.content else [])
        if isinstance(result.content, str)
        else result.content
    )
    structured = thaw(result.result) if isinstance(result.result, dict) else None
    return mcp_types.CallToolResult(
        content=[_to_mcp_block(part, number) for number, part in enumerate(parts)],
        structured_content=structured,
        is_error=result.is_error,
    )


def _to_mcp_block(part: ContentPart, number: int) -> mcp_types.ContentBlock:
    import mcp_types

    match part:
        case TextContent(text):
            return mcp_types.TextContent(text=text)
        case ImageContent() if part.image_data is not None:
            return mcp_types.ImageContent(
                data=_encode_base64(part.image_data), mime_type=part.media_type or "image/png"
            )
        case ImageContent():
            return mcp_types.ResourceLink(name=part.name or "image", uri=part.image_url or "")
        case AudioContent():
            return mcp_types.AudioContent(data=_encode_base64(part.data), mime_type=part.media_type or "audio/wav")
        case DocumentContent() if part.data is not None:
            blob = mcp_types.BlobResourceContents(
                uri=f"result:///{number}",
                blob=_encode_base64(part.data),
                mime_type=part.media_type or "application/pdf",
            )
            return mcp_types.EmbeddedResource(resource=blob)
        case DocumentContent() if part.url is not None:
            return mcp_types.ResourceLink(name=part.title or "document", uri=part.url, mime_type=part.media_type)
        case _:
            return mcp_types.TextContent(text=part.text or f"[{part.type}]")


def _encode_base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


_MAX_PAGES = 100


async def list_resources(client: Client) -> list[mcp_types.Resource]:
    if client.server_capabilities.resources is None:
        return []
    pages = iter_pages(client.list_resources, "resources")
    return [resource async for page in pages for resource in page.resources]


async def list_prompts(client: Client) -> list[mcp_types.Prompt]:
    if client.server_capabilities.prompts is None:
        return []
    return [prompt async for page in iter_pages(client.list_prompts, "prompts") for prompt in page.prompts]


async def iter_pages(read: Callable[..., Awaitable[Any]], items: str) -> AsyncIterator[Any]:
    """Yield the pages of a list; raise if they do not end."""
    cursor: str | None = None
    for _ in range(_MAX_PAGES):
        page = await read(cursor=cursor)
        yield page
        if page.next_cursor is None:
            return
        if page.next_cursor == cursor:
            break
        cursor = page.next_cursor
    raise ProtocolError(f"the list of {items} is endless", retryable=False)


async def read_resource(uri: str, client: Client) -> list[ContentPart]:
    return [read_contents(contents) for contents in (await client.read_resource(uri)).contents]


async def get_prompt(name: str, arguments: Mapping[str, str] | None, client: Client) -> list[Message]:
    prompt = await client.get_prompt(name, dict(arguments or {}))
    return [Message(message.role, [read_block(message.content)]) for message in prompt.messages]


T = TypeVar("T")


def make_call(
    tool: MCPTool,
    arguments: Mapping[str, Any],
    context: ToolContext[Any],
    seconds: float | None,
    redactor: Redactor,
) -> Callable[[Client], Awaitable[MCPResult]]:
    """Return the request of a tool call. Cancellation notifies the server; failures are redacted."""
    from mcp import MCPError

    async def report_progress(progress: float, total: float | None, message: str | None) -> None:
        text = message or (f"{progress:g}" if total is None else f"{progress:g} of {total:g}")
        details = {"progress": progress, "total": total, "message": message}
        context.report(AgentToolResult(content=text, details=details))

    async def call(client: Client) -> MCPResult:
        given = dict(arguments)
        try:
            to_json(given)
        except (PydanticSerializationError, ValueError):
            raise ToolError("The arguments are not JSON-serializable.") from None
        calling = client.call_tool(
            tool.original, given, read_timeout_seconds=seconds, progress_callback=report_progress
        )
        try:
            result = read_result(await _wait_unless_stopped(context.signal, calling))
        except MCPError as error:
            if (text := tool_error_text(error, redactor)) is not None:
                raise ToolError(text) from None
            raise
        if result.is_error:
            _redact_result(result, redactor)
        elif tool.output_schema is not None:
            await validate_off_loop(_check_structured, tool, tool.output_schema, result.structured, seconds=seconds)
        return result

    return call


def _redact_result(result: MCPResult, redactor: Redactor) -> None:
    result.details = redactor.redact_json(result.details)
    assert not isinstance(result.content, str)
    result.content = [
        part.copy_with(text=redactor(part.text)) if isinstance(part, TextContent) else part for part in result.content
    ]


def _check_structured(tool: MCPTool, schema: Mapping[str, Any], structured: Any) -> None:
    """Raise RuntimeError, like the SDK, if structured content does not fit the output schema."""
    if structured is None:
        raise RuntimeError(f"Tool {tool.original} has an output schema but did not return structured content")
    try:
        verdict = find_problems(schema, structured)
    except TooExpensive as error:
        raise TimeoutError(str(error)) from None
    if unusable := verdict.unusable or verdict.unresolved:
        raise RuntimeError(f"Invalid schema for tool {tool.original}: {unusable}")
    if verdict.best is not None:
        raise RuntimeError(f"Invalid structured content returned by tool {tool.original}: {verdict.best.message}")


async def validate_off_loop(function: Callable[..., T], *args: Any, seconds: float | None) -> T:
    """Call a function that validates, in a thread if that is expensive."""
    try:
        return run_inline(function, *args)
    except Deferred:
        pass

    until = inf if seconds is None else monotonic() + seconds
    result: T = await call_in_thread(run_until, (until, function, *args), {}, copy_context())
    return result


async def _wait_unless_stopped(signal: Signal, work: Coroutine[Any, Any, T]) -> T:
    """Return the result, or raise ToolError if the signal is set first."""
    working = asyncio.ensure_future(work)
    waiting = asyncio.ensure_future(signal.wait())
    try:
        await asyncio.wait({working, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ToolError("The call was cancelled.")
        return working.result()
    finally:
        waiting.cancel()
        if not working.done():
            working.add_done_callback(lambda done: done.cancelled() or done.exception())  # retrieve the exception
            working.cancel()
            # Wait until the server is notified; a server in this process can be slow.
            await asyncio.wait({working}, timeout=1.0)


_MAX_NAME = 64
_INVALID_CHARACTERS = re.compile(r"[^a-zA-Z0-9_-]")


def assign_names(originals: Iterable[str], prefix: str = "") -> dict[str, str]:
    """Map original names to names that all vendors accept. Valid names stay unless two would be equal."""
    prefixed = {original: prefix + original for original in originals}
    fitted = {original: _fit_name(name) for original, name in prefixed.items()}
    shared = Counter(fitted.values())
    final = {
        original
        for original, name in fitted.items()
        if name == prefixed[original] or (shared[name] == 1 and len(prefixed[original]) <= _MAX_NAME)
    }
    taken = {fitted[original] for original in final}
    for original in sorted(prefixed.keys() - final):
        fitted[original] = _disambiguate(fitted[original], prefixed[original], taken)
        taken.add(fitted[original])
    return fitted


def _fit_name(name: str) -> str:
    name = _INVALID_CHARACTERS.sub("_", name)
    if not name[:1].isalpha() and not name.startswith("_"):
        name = f"_{name}"
    return name[:_MAX_NAME]


def _disambiguate(name: str, original: str, taken: set[str]) -> str:
    """Append digits of the original name's hash; more digits if the result is taken."""
    digest = hashlib.sha256(original.encode("utf-8", "surrogatepass")).hexdigest()
    for digits in range(8, _MAX_NAME - 1, 8):
        made = f"{name[: _MAX_NAME - digits - 1]}_{digest[:digits]}"
        if made not in taken:
            return made
    raise AssertionError("two different names have the same SHA-256")


RISK = "agent-llm-router/risk"
"""Key of `_meta` for the risk `exec`, for which MCP has no hint."""


def classify_tool(tool: mcp_types.Tool, trusted: bool) -> tuple[Risk, bool]:
    """Determine the risk of a tool, and whether it is idempotent."""
    hints = tool.annotations
    if (tool.meta or {}).get(RISK) == "exec":
        return "exec", False
    if hints is None:
        return "write", False
    harmless = trusted and hints.read_only_hint is True
    idempotent = harmless or (trusted and hints.idempotent_hint is True)
    if hints.open_world_hint is True and (harmless or hints.destructive_hint is not True):
        return "network", idempotent
    return "read" if harmless else "write", idempotent


def make_annotations(tool: Tool) -> dict[str, Any]:
    """Describe a tool by MCP annotations."""
    return {
        "read_only_hint": tool.risk == "read",
        "destructive_hint": tool.risk in ("write", "exec"),
        "idempotent_hint": tool.idempotent or tool.risk == "read",
        "open_world_hint": tool.risk in ("network", "exec"),
    }


@dataclass
class MCPTool(Tool):
    """A tool of an MCP server."""

    original: str = ""
    """The server's name of the tool."""
    title: str | None = None
    """The server's display title."""
    output_schema: Mapping[str, Any] | None = None
    """JSON schema of the structured content, which is validated against it."""
    server: MCPServer | None = field(default=None, repr=False, compare=False)
    definition: mcp_types.Tool | None = field(default=None, repr=False, compare=False)

    @override
    def check(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Validate the arguments; a schema that is invalid or has external references is left to the server."""
        try:
            checked: dict[str, Any] = super().check(arguments)
        except ArgumentsError:
            raise
        except ConfigurationError:  # an invalid schema, or one with external references
            checked = thaw(dict(arguments))
        return checked

    @override
    async def run(self, arguments: Mapping[str, Any], context: ToolContext[Any]) -> MCPResult:
        assert self.server is not None
        limits = [seconds for seconds in (self.timeout, context.seconds_left()) if seconds not in (None, float("inf"))]
        return await self.server.acall_tool(self, arguments, context, min(limits, default=None))


def select_tools(
    server: MCPServer, server_tools: Sequence[mcp_types.Tool], before: Sequence[MCPTool], settings: ServerSettings
) -> list[MCPTool]:
    """Select and convert tools. Unchanged tools keep their objects."""
    only = settings.get("only")
    included = None if only is None else set(only)
    excluded = set(settings.get("without", ()))
    names = assign_names((tool.name for tool in server_tools), settings.get("prefix", ""))
    known = {tool.original: tool for tool in before}
    chosen: list[MCPTool] = []
    for tool in server_tools:
        if tool.name in excluded or (included is not None and tool.name not in included):
            continue
        old = known.get(tool.name)
        if old is not None and old.name == names[tool.name] and old.definition == tool:
            chosen.append(old)
        else:
            chosen.append(_create_tool(server, tool, names[tool.name], settings))
    return chosen


def _create_tool(server: MCPServer, tool: mcp_types.Tool, name: str, settings: ServerSettings) -> MCPTool:
    risk, idempotent = classify_tool(tool, settings.get("trust", False))
    try:
        for schema in (tool.input_schema, tool.output_schema):
            check_limits(schema)
        made = MCPTool(
            name=name,
            description=tool.description or tool.title or "",
            parameters=tool.input_schema,
            timeout=settings.get("timeout"),
            risk=settings.get("risk", risk),
            idempotent=idempotent,
            original=tool.name,
            title=tool.title or (tool.annotations.title if tool.annotations is not None else None),
            output_schema=tool.output_schema,
            server=server,
            definition=tool,
        )
        made.spec  # noqa: B018  # computed early, to report an invalid description
    except ConfigurationError as error:
        raise ConfigurationError(
            f"The server's tool {tool.name!r} cannot be used: {error}",
            field="tools",
            fix=f"Exclude it: without=[{tool.name!r}].",
        ) from error
    return made
