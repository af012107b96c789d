"""What else a server offers besides tools: resources to read, and prompts to begin a conversation with."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

from ..errors import ProtocolError
from ..types import ContentPart, Message
from .content import read_block, read_contents

if TYPE_CHECKING:
    import mcp_types
    from mcp import Client

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
