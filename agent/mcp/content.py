"""Content of MCP and parts of messages: the same things under other names, in both directions.

Nothing vanishes: what no model can read is described in words, and kept whole in a result's details.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import ProtocolError
from ..tools.base import AgentToolResult
from ..types import AudioContent, ContentPart, DocumentContent, ImageContent, Message, TextContent, ToolResult, thaw

if TYPE_CHECKING:
    import mcp_types
    from mcp import Client


@dataclass
class MCPResult(AgentToolResult):
    """What a server's tool answered: parts for the model in `content`, the rest in `details`."""

    @property
    def text(self) -> str:
        """All text of it."""
        if isinstance(self.content, str):
            return self.content
        return "\n".join(part.text for part in self.content if isinstance(part, TextContent))

    @property
    def structured(self) -> Any:
        """The JSON value that some tools answer with, besides or instead of text."""
        return self.details.get("structured")


def read_result(result: mcp_types.CallToolResult) -> MCPResult:
    parts: list[ContentPart] = []
    blobs: list[dict[str, Any]] = []
    for block in result.content:
        parts.append(read_block(block, blobs))
    structured = result.structured_content
    if not parts and structured is not None:
        parts.append(TextContent(text=json.dumps(structured, ensure_ascii=False)))
    details: dict[str, Any] = {"structured": structured}
    if blobs:
        details["blobs"] = blobs
    return MCPResult(content=parts, details=details, is_error=result.is_error)


def read_block(block: Any, blobs: list[dict[str, Any]] | None = None) -> ContentPart:
    """One piece of what a server sends. Binary data that is no picture, sound or PDF goes into `blobs`, undecoded."""
    match block.type:
        case "text":
            return TextContent(text=block.text)
        case "image":
            return ImageContent(image_data=_decoded(block.data), media_type=block.mime_type)
        case "audio":
            return AudioContent(data=_decoded(block.data), media_type=block.mime_type)
        case "resource":
            return read_contents(block.resource, blobs)
        case "resource_link":
            about = f" ({block.description})" if block.description else ""
            return TextContent(text=f"{block.title or block.name}{about}: {block.uri}")
        case _:
            return TextContent(text=f"[{block.type}]")


def read_contents(contents: Any, blobs: list[dict[str, Any]] | None = None) -> ContentPart:
    """A resource's contents: text, or data of some type."""
    text: str | None = getattr(contents, "text", None)
    if text is not None:
        return TextContent(text=text)
    kind = (contents.mime_type or "application/octet-stream").partition(";")[0].strip().lower()
    if kind.startswith("image/"):
        return ImageContent(image_data=_decoded(contents.blob), media_type=kind)
    if kind.startswith("audio/"):
        return AudioContent(data=_decoded(contents.blob), media_type=kind)
    if kind == "application/pdf":
        return DocumentContent(data=_decoded(contents.blob), media_type=kind, title=contents.uri)
    if blobs is not None:
        blobs.append({"uri": contents.uri, "media_type": kind, "data": contents.blob})
    return TextContent(text=f"[{contents.uri}: {len(contents.blob) * 3 // 4} bytes of {kind}]")


def _decoded(data: str) -> bytes:
    try:
        return base64.b64decode(data, validate=True)
    except ValueError:
        raise RuntimeError("data in the answer is not base64") from None


def written(result: ToolResult) -> mcp_types.CallToolResult:
    """One of our results, in MCP's words."""
    import mcp_types

    parts: Sequence[ContentPart] = (
        ([TextContent(text=result.content)] if result.content else [])
        if isinstance(result.content, str)
        else result.content
    )
    structured = thaw(result.result) if isinstance(result.result, dict) else None
    return mcp_types.CallToolResult(
        content=[_block(part, number) for number, part in enumerate(parts)],
        structured_content=structured,
        is_error=result.is_error,
    )


def _block(part: ContentPart, number: int) -> mcp_types.ContentBlock:
    import mcp_types

    match part:
        case TextContent(text):
            return mcp_types.TextContent(text=text)
        case ImageContent() if part.image_data is not None:
            return mcp_types.ImageContent(data=_encoded(part.image_data), mime_type=part.media_type or "image/png")
        case ImageContent():
            return mcp_types.ResourceLink(name=part.name or "image", uri=part.image_url or "")
        case AudioContent():
            return mcp_types.AudioContent(data=_encoded(part.data), mime_type=part.media_type or "audio/wav")
        case DocumentContent() if part.data is not None:
            blob = mcp_types.BlobResourceContents(
                uri=f"result:///{number}", blob=_encoded(part.data), mime_type=part.media_type or "application/pdf"
            )
            return mcp_types.EmbeddedResource(resource=blob)
        case DocumentContent() if part.url is not None:
            return mcp_types.ResourceLink(name=part.title or "document", uri=part.url, mime_type=part.media_type)
        case _:
            return mcp_types.TextContent(text=part.text or f"[{part.type}]")


def _encoded(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


_MOST_PAGES = 100


async def all_resources(client: Client) -> list[mcp_types.Resource]:
    if client.server_capabilities.resources is None:
        return []
    return [resource async for page in _pages(client.list_resources) for resource in page.resources]


async def all_prompts(client: Client) -> list[mcp_types.Prompt]:
    if client.server_capabilities.prompts is None:
        return []
    return [prompt async for page in _pages(client.list_prompts) for prompt in page.prompts]


async def _pages(read: Callable[..., Awaitable[Any]]) -> Any:
    cursor: str | None = None
    for _ in range(_MOST_PAGES):
        page = await read(cursor=cursor)
        yield page
        if page.next_cursor is None:
            return
        if page.next_cursor == cursor:
            break
        cursor = page.next_cursor
    raise ProtocolError("the list does not end", retryable=False)


def reading(uri: str) -> Callable[[Client], Awaitable[list[ContentPart]]]:
    async def read(client: Client) -> list[ContentPart]:
        return [read_contents(contents) for contents in (await client.read_resource(uri)).contents]

    return read


def prompting(name: str, arguments: Mapping[str, str] | None) -> Callable[[Client], Awaitable[list[Message]]]:
    async def get(client: Client) -> list[Message]:
        prompt = await client.get_prompt(name, dict(arguments or {}))
        return [Message(message.role, [read_block(message.content)]) for message in prompt.messages]

    return get
