"""Type guards for content parts. They narrow both branches, so an if chain can end in `assert_never`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Generic, TypeVar, overload

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
    find_part_class,
)

P = TypeVar("P", bound=ContentPart)


class PartGuard(Generic[P]):
    """Whether a part is of one class. Also accepts part dicts, whose class follows from `type`."""

    def __init__(self, kind: type[P]) -> None:
        self._kind = kind

    @overload
    def __call__(self, part: ContentPart) -> TypeIs[P]: ...

    @overload
    def __call__(self, part: Mapping[str, Any]) -> bool: ...

    def __call__(self, part: ContentPart | Mapping[str, Any]) -> bool:
        if isinstance(part, Mapping):
            tag = part.get("type")
            return isinstance(tag, str) and find_part_class(tag) is self._kind
        return isinstance(part, self._kind)


is_text_content: PartGuard[TextContent] = PartGuard(TextContent)
is_thinking_content: PartGuard[ThinkingContent] = PartGuard(ThinkingContent)
is_tool_call_content: PartGuard[ToolCall] = PartGuard(ToolCall)
is_tool_result_content: PartGuard[ToolResult] = PartGuard(ToolResult)
is_image_content: PartGuard[ImageContent] = PartGuard(ImageContent)
is_code_content: PartGuard[CodeContent] = PartGuard(CodeContent)
is_diff_content: PartGuard[DiffContent] = PartGuard(DiffContent)
is_document_content: PartGuard[DocumentContent] = PartGuard(DocumentContent)
is_audio_content: PartGuard[AudioContent] = PartGuard(AudioContent)
is_refusal_content: PartGuard[RefusalContent] = PartGuard(RefusalContent)
is_vendor_content: PartGuard[VendorContent] = PartGuard(VendorContent)
is_video_content: PartGuard[VideoContent] = PartGuard(VideoContent)
is_file_content: PartGuard[FileContent] = PartGuard(FileContent)
is_search_result_content: PartGuard[SearchResultContent] = PartGuard(SearchResultContent)
