"""Encoding of messages as contents, one method per kind of content part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, TypeGuard, TypeVar, assert_never, cast
from urllib.parse import urlsplit

from ...types import (
    AudioContent,
    CodeContent,
    DiffContent,
    DocumentContent,
    FileContent,
    ImageContent,
    Message,
    Part,
    RefusalContent,
    Role,
    SearchResultContent,
    TextContent,
    ThinkingContent,
    ToolCall,
    ToolResult,
    VendorContent,
    VideoContent,
)
from ..encoding import document_text, encode_base64, search_result_text, to_markdown
from ..repair import is_own
from .fields import (
    Content,
    FileData,
    FunctionCall,
    FunctionCallPart,
    FunctionResponse,
    FunctionResponsePart,
    GeminiContext,
    MediaPart,
    PartParam,
    TextPart,
    VideoMetadata,
    is_generated_id,
    normalize_function_name,
)
from .models import SKIP_SIGNATURE

Media = ImageContent | AudioContent | DocumentContent | VideoContent | FileContent
P = TypeVar("P", bound=PartParam)

METADATA_KIND = "metadata"
"""Kind of the part with a candidate's metadata, which is not sent back."""

LATE_SYSTEM = "a system message within the conversation was sent as a user message"
NO_USER_FIRST = "the conversation starts with an assistant message; a user message was inserted before it"
NO_AUTHOR = "the name of a message was dropped: gemini does not support it"
NO_TITLE = "the title of a document was dropped: gemini does not support it"
NO_DETAIL = "the detail of an image was dropped: gemini does not support it"

_EMPTY = {"text": ""}
"""Not sent: the API accepts empty text only with a signature."""
_OPENING = "(The conversation begins with your answer.)"
"""Content of the inserted user message. Constant, so that cached prefixes stay valid."""
_RESULT_TYPES = frozenset(("image/png", "image/jpeg", "image/webp", "application/pdf", "text/plain"))
"""Media types that function responses may contain."""
_VENDOR_FILES = (
    "https://generativelanguage.googleapis.com/",
    "gs://",
    "https://www.youtube.com/",
    "https://youtu.be/",
)
"""URLs of files whose media type the vendor knows."""
_MEDIA_TYPES = {
    "png": "image/png",
    "jpg": "image/jpeg",
    "jpeg": "image/jpeg",
    "webp": "image/webp",
    "gif": "image/gif",
    "heic": "image/heic",
    "heif": "image/heif",
    "pdf": "application/pdf",
    "txt": "text/plain",
    "md": "text/markdown",
    "csv": "text/csv",
    "html": "text/html",
    "json": "application/json",
    "xml": "text/xml",
    "mp3": "audio/mp3",
    "wav": "audio/wav",
    "mp4": "video/mp4",
    "mov": "video/quicktime",
    "webm": "video/webm",
}
"""Media types by extension."""


class MessageEncoder:
    """Encodes the messages of one request."""

    def __init__(self, context: GeminiContext) -> None:
        self._context = context
        self._features = context.features
        self._origin = context.origin
        self._any_ids = context.platform.any_ids

    def encode_instructions(self, messages: Sequence[Message]) -> list[PartParam]:
        """Encode system messages. Instructions are text only."""
        for message in messages:
            if message.name is not None:
                self._context.warn(NO_AUTHOR)
        texts = (self._instruction_text(part) for message in messages for part in message.parts)
        return [{"text": text} for text in texts if text]

    def encode(self, messages: Sequence[Message]) -> list[Content]:
        contents: list[Content] = []
        results: list[ToolResult] = []
        calls: list[ToolCall] = []
        """Calls of the latest assistant message."""
        tool, assistant, system = Role.TOOL, Role.ASSISTANT, Role.SYSTEM  # looking up enum members is slow in 3.11
        for message in messages:
            role, content = message.role, message.content
            if role is tool:
                results += [part for part in message.parts if isinstance(part, ToolResult)]
                continue
            if results:
                self._add_turn(contents, "user", self._encode_results(results, calls))
                results = []
            if message.name is not None:
                self._context.warn(NO_AUTHOR)
            if role is assistant:
                calls = [] if isinstance(content, str) else message.tool_calls or []
            elif role is system:
                self._context.warn(LATE_SYSTEM)
            if isinstance(content, str):
                parts: list[PartParam] = [{"text": content}] if content else []
            elif role is assistant:
                parts = self._encode_model_parts(content)
            elif role is system:
                parts = self.encode_instructions([message])
            else:
                parts = [part for part in map(self._encode_user_part, content) if part != _EMPTY]
            self._add_turn(contents, "model" if role is assistant else "user", parts)
        if results:
            self._add_turn(contents, "user", self._encode_results(results, calls))
        return contents

    def _add_turn(self, contents: list[Content], role: Literal["user", "model"], parts: list[PartParam]) -> None:
        """Add a turn. The API requires alternating roles and a user turn first."""
        if not parts:
            return
        if not contents and role == "model":
            self._context.warn(NO_USER_FIRST)
            contents.append({"role": "user", "parts": [{"text": _OPENING}]})
        if contents and contents[-1]["role"] == role:
            contents[-1]["parts"] += parts
        else:
            contents.append({"role": role, "parts": parts})

    # System and user messages.

    def _instruction_text(self, part: Part) -> str:
        match part:
            case TextContent():
                return part.text
            case CodeContent() | DiffContent():
                return to_markdown(part)
            case DocumentContent() if part.text is not None:
                self._context.drop_citation_settings(part)
                return document_text(part)
            case SearchResultContent():
                return self._search_result_text(part)
            case (
                ImageContent() | AudioContent() | DocumentContent() | ThinkingContent() | ToolCall() | ToolResult()
                | RefusalContent() | VendorContent() | VideoContent() | FileContent()
            ):  # fmt: skip
                raise self._context.part_error(part, "in a system message; only text is supported")
            case _:
                assert_never(part)

    def _encode_user_part(self, part: Part) -> PartParam:
        match part:
            case TextContent():
                return {"text": part.text}
            case CodeContent() | DiffContent():
                return {"text": to_markdown(part)}
            case ImageContent() | AudioContent() | DocumentContent() | VideoContent() | FileContent():
                return self._encode_media(part)
            case SearchResultContent():
                return {"text": self._search_result_text(part)}
            case VendorContent():
                return _replay(part)
            case ThinkingContent() | ToolCall() | ToolResult() | RefusalContent():
                raise self._context.part_error(part, "in a user's message")
            case _:
                assert_never(part)

    # Assistant messages.

    def _encode_model_parts(self, parts: Sequence[Part]) -> list[PartParam]:
        encoded: list[PartParam] = []
        unsigned = self._features.signed_calls
        """Whether the first call still needs a signature."""
        for part in parts:
            param = self._encode_model_part(part)
            if param is None or param == _EMPTY:
                continue
            if unsigned and isinstance(part, ToolCall):
                param.setdefault("thoughtSignature", SKIP_SIGNATURE)
                unsigned = False
            encoded.append(param)
        return encoded

    def _encode_model_part(self, part: Part) -> PartParam | None:
        match part:
            case TextContent():
                text: TextPart = {"text": part.text}
                return self._sign(text, part, part.signature)
            case ThinkingContent():
                if not part.thinking and not part.signature:
                    return None
                thought: TextPart = {"text": part.thinking, "thought": True}
                return self._sign(thought, part, part.signature)
            case ToolCall():
                return self._encode_call(part)
            case RefusalContent():
                return {"text": part.refusal}
            case CodeContent() | DiffContent():
                return {"text": to_markdown(part)}
            case ImageContent() | AudioContent() | DocumentContent() | VideoContent() | FileContent():
                return self._sign(self._encode_media(part), part, (part.provider_data or {}).get("thoughtSignature"))
            case VendorContent():
                return None if part.kind == METADATA_KIND else _replay(part)
            case SearchResultContent():
                return {"text": self._search_result_text(part)}
            case ToolResult():
                raise self._context.part_error(part, "in an assistant's message")
            case _:
                assert_never(part)

    def _encode_call(self, call: ToolCall) -> FunctionCallPart:
        function: FunctionCall = {"name": normalize_function_name(call.name), "args": {**call.arguments}}
        if (id := self._encode_id(call)) is not None:
            function["id"] = id
        if call.invalid_arguments is not None:
            function["args"] = {"invalid_arguments": call.invalid_arguments}  # only objects are accepted
        encoded: FunctionCallPart = {"functionCall": function}
        return self._sign(encoded, call, call.signature)

    def _encode_id(self, call: ToolCall) -> str | None:
        """Return the call's id if the vendor accepts it. Generated ids are not sent."""
        if not call.id or not (self._any_ids or is_own(call, self._origin)) or is_generated_id(call.id):
            return None
        return call.id

    def _sign(self, encoded: P, part: Part, signature: str | None) -> P:
        """Add a part's signature, which is valid only on that part and for the model that issued it."""
        if signature and is_own(part, self._origin):
            encoded["thoughtSignature"] = signature
        return encoded

    # Results.

    def _encode_results(self, results: list[ToolResult], calls: Sequence[ToolCall]) -> list[PartParam]:
        """Encode results in the order of their calls, because ids are optional, then separate media."""
        call_by_id = {call.id: call for call in calls}
        attached = [part for result in results for part in self._encode_separate_media(result, call_by_id)]
        order = {id: position for position, id in enumerate(call_by_id)}
        in_order = sorted(results, key=lambda result: order[result.tool_call_id])
        return [*(self._encode_result(result, call_by_id[result.tool_call_id]) for result in in_order), *attached]

    def _encode_separate_media(self, result: ToolResult, call_by_id: Mapping[str, ToolCall]) -> list[PartParam]:
        """Encode media that function responses cannot contain."""
        if isinstance(result.content, str):
            return []
        media = [part for part in result.content if _is_media(part) and not self._fits_in_response(part)]
        if not media:
            return []
        name = normalize_function_name(call_by_id[result.tool_call_id].name)
        return [{"text": f"Returned by {name}:"}, *map(self._encode_media, media)]

    def _fits_in_response(self, part: Media) -> bool:
        return self._features.media_in_results and _media_type(part) in _RESULT_TYPES

    def _encode_result(self, result: ToolResult, call: ToolCall) -> FunctionResponsePart:
        content = result.content
        text, media = (content, []) if isinstance(content, str) else self._encode_result_content(content)
        response: FunctionResponse = {
            "name": normalize_function_name(call.name),
            "response": {"error" if result.is_error else "result": text},
        }
        if (id := self._encode_id(call)) is not None:
            response["id"] = id
        if media:
            response["parts"] = media
        return {"functionResponse": response}

    def _encode_result_content(self, parts: Sequence[Part]) -> tuple[str, list[PartParam]]:
        text: list[str] = []
        media: list[PartParam] = []
        for part in parts:
            if isinstance(part, TextContent):
                text.append(part.text)
            elif isinstance(part, SearchResultContent):
                text.append(self._search_result_text(part))
            elif isinstance(part, DocumentContent) and part.text is not None:
                self._context.drop_citation_settings(part)
                text.append(document_text(part))
            elif _is_media(part) and self._fits_in_response(part):
                media.append(self._encode_media(part))
        return "".join(text), media

    # Media.

    def _encode_media(self, part: Media) -> TextPart | MediaPart:
        match part:
            case ImageContent():
                if part.detail not in (None, "auto"):
                    self._context.warn(NO_DETAIL)
                return self._encode_data(part)
            case AudioContent():
                return _encode_blob(part.data, _media_type(part))
            case DocumentContent():
                return self._encode_document(part)
            case VideoContent():
                return self._encode_video(part)
            case FileContent():
                if part.title is not None:
                    self._context.warn(NO_TITLE)
                return _encode_file(self._file_uri(part), part)
            case _:
                assert_never(part)

    def _file_uri(self, part: FileContent) -> str:
        """Return the URI of a file, whose id may be a URI or a name."""
        name = part.file_id
        if "://" in name:
            return name
        if not self._context.platform.hosts_data:
            raise self._context.part_error(part, "by name; pass a URI such as gs://bucket/file")
        return f"{_VENDOR_FILES[0]}v1beta/files/{name.removeprefix('files/')}"

    def _encode_video(self, part: VideoContent) -> MediaPart:
        encoded = self._encode_data(part)
        offsets = {"startOffset": part.start, "endOffset": part.end}
        metadata = cast(
            VideoMetadata, {key: f"{seconds:g}s" for key, seconds in offsets.items() if seconds is not None}
        )
        if part.fps is not None:
            metadata["fps"] = part.fps
        if metadata:
            encoded["videoMetadata"] = metadata
        return encoded

    def _encode_data(self, part: ImageContent | DocumentContent | VideoContent) -> MediaPart:
        if part.data is None:
            return _encode_file(part.url or "", part)
        return _encode_blob(part.data, _media_type(part))

    def _search_result_text(self, part: SearchResultContent) -> str:
        self._context.drop_citation_settings(part)
        return search_result_text(part)

    def _encode_document(self, part: DocumentContent) -> TextPart | MediaPart:
        self._context.drop_citation_settings(part)
        if part.text is not None:
            return {"text": document_text(part)}
        if part.title is not None:
            self._context.warn(NO_TITLE)
        return self._encode_data(part)


def _replay(part: VendorContent) -> PartParam:
    """Return a part in the vendor's format. `repair` has dropped those of other vendors."""
    return cast(PartParam, dict(part.provider_data or {}))


def _encode_blob(data: bytes, media_type: str | None) -> MediaPart:
    return {"inlineData": {"mimeType": media_type or "", "data": encode_base64(data)}}


def _encode_file(uri: str, part: Media) -> MediaPart:
    file: FileData = {"fileUri": uri}
    if (media_type := _media_type(part)) is not None:
        file["mimeType"] = media_type
    return {"fileData": file}


def _is_media(part: Part) -> TypeGuard[Media]:
    return isinstance(part, ImageContent | AudioContent | VideoContent | FileContent) or (
        isinstance(part, DocumentContent) and part.text is None
    )


def _media_type(part: Media) -> str | None:
    """Return the media type: as given, by extension, or a default. None for files that the vendor stores."""
    if part.media_type is not None:
        return part.media_type
    url = None if isinstance(part, AudioContent | FileContent) else part.url
    if url is not None:
        guessed = _MEDIA_TYPES.get(_extension(url))
        if guessed is not None or url.startswith(_VENDOR_FILES):
            return guessed
    match part:
        case ImageContent():
            return "image/png" if url is None else "image/jpeg"
        case AudioContent():
            return "audio/wav"
        case DocumentContent():
            return "application/pdf"
        case VideoContent():
            return "video/mp4"
        case FileContent():
            return None
        case _:
            assert_never(part)


def _extension(url: str) -> str:
    try:
        return urlsplit(url).path.rpartition(".")[2].lower()
    except ValueError:  # not a URL; the vendor reports it
        return ""
