"""Type guards for content parts. They narrow both branches, so an if chain can end in `assert_never`."""

from __future__ import annotations

from typing_extensions import TypeIs

from .media import AudioContent, ContentPart, DocumentContent, FileContent, ImageContent, VideoContent
from .parts import (
    CodeContent,
    DiffContent,
    RefusalContent,
    SearchResultContent,
    TextContent,
    ThinkingContent,
    ToolCall,
    ToolResult,
    VendorContent,
)


def is_text_content(part: ContentPart) -> TypeIs[TextContent]:
    return isinstance(part, TextContent)


def is_thinking_content(part: ContentPart) -> TypeIs[ThinkingContent]:
    return isinstance(part, ThinkingContent)


def is_tool_call_content(part: ContentPart) -> TypeIs[ToolCall]:
    return isinstance(part, ToolCall)


def is_tool_result_content(part: ContentPart) -> TypeIs[ToolResult]:
    return isinstance(part, ToolResult)


def is_image_content(part: ContentPart) -> TypeIs[ImageContent]:
    return isinstance(part, ImageContent)


def is_code_content(part: ContentPart) -> TypeIs[CodeContent]:
    return isinstance(part, CodeContent)


def is_diff_content(part: ContentPart) -> TypeIs[DiffContent]:
    return isinstance(part, DiffContent)


def is_document_content(part: ContentPart) -> TypeIs[DocumentContent]:
    return isinstance(part, DocumentContent)


def is_audio_content(part: ContentPart) -> TypeIs[AudioContent]:
    return isinstance(part, AudioContent)


def is_refusal_content(part: ContentPart) -> TypeIs[RefusalContent]:
    return isinstance(part, RefusalContent)


def is_vendor_content(part: ContentPart) -> TypeIs[VendorContent]:
    return isinstance(part, VendorContent)


def is_video_content(part: ContentPart) -> TypeIs[VideoContent]:
    return isinstance(part, VideoContent)


def is_file_content(part: ContentPart) -> TypeIs[FileContent]:
    return isinstance(part, FileContent)


def is_search_result_content(part: ContentPart) -> TypeIs[SearchResultContent]:
    return isinstance(part, SearchResultContent)
