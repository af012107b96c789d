"""Request types of the Messages API, as in its API reference.

Blocks that the API itself produced are sent back with all their keys, some of which are not listed here.
"""

from __future__ import annotations

from typing import Any, Literal, Required, TypeAlias, TypedDict


class CacheControl(TypedDict, total=False):
    type: Required[Literal["ephemeral"]]
    ttl: Literal["5m", "1h"]


class TextBlock(TypedDict, total=False):
    type: Required[Literal["text"]]
    text: Required[str]
    citations: list[dict[str, Any]]
    cache_control: CacheControl


class Base64Source(TypedDict):
    """An image or a PDF."""

    type: Literal["base64"]
    media_type: str
    data: str


class UrlSource(TypedDict):
    """An image or a PDF."""

    type: Literal["url"]
    url: str


class TextSource(TypedDict):
    """A plain-text document."""

    type: Literal["text"]
    media_type: Literal["text/plain"]
    data: str


class ImageBlock(TypedDict, total=False):
    type: Required[Literal["image"]]
    source: Required[Base64Source | UrlSource]
    transformations: dict[str, Any]
    cache_control: CacheControl


class DocumentBlock(TypedDict, total=False):
    type: Required[Literal["document"]]
    source: Required[Base64Source | UrlSource | TextSource]
    title: str
    context: str
    citations: dict[str, Any]
    cache_control: CacheControl


class ThinkingBlock(TypedDict):
    type: Literal["thinking"]
    thinking: str
    signature: str


class RedactedThinkingBlock(TypedDict):
    type: Literal["redacted_thinking"]
    data: str


class ToolUseBlock(TypedDict, total=False):
    type: Required[Literal["tool_use"]]
    id: Required[str]
    name: Required[str]
    input: Required[dict[str, Any]]
    cache_control: CacheControl


VendorBlock: TypeAlias = dict[str, Any]
"""A block of a server tool, or of any other type that is passed through."""


class ToolResultBlock(TypedDict, total=False):
    type: Required[Literal["tool_result"]]
    tool_use_id: Required[str]
    content: str | list[Block]
    is_error: bool
    toolset_name: str
    cache_control: CacheControl


Block: TypeAlias = (
    TextBlock
    | ImageBlock
    | DocumentBlock
    | ThinkingBlock
    | RedactedThinkingBlock
    | ToolUseBlock
    | ToolResultBlock
    | VendorBlock
)


class MessageParam(TypedDict):
    role: Literal["user", "assistant"]
    content: list[Block]


class Tool(TypedDict, total=False):
    name: Required[str]
    description: str
    input_schema: Required[dict[str, Any]]
    strict: bool
    cache_control: CacheControl


class ToolChoice(TypedDict, total=False):
    type: Required[Literal["auto", "any", "tool", "none"]]
    name: str
    disable_parallel_tool_use: bool


class JsonOutputFormat(TypedDict):
    type: Literal["json_schema"]
    schema: dict[str, Any]


class ThinkingConfig(TypedDict, total=False):
    type: Required[Literal["enabled", "adaptive", "disabled", "between_tools"]]
    budget_tokens: int
    display: Literal["summarized", "omitted"]
