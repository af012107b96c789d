"""Message encoder of Chat Completions: one method per role and kind of content part."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, TypeVar, assert_never, cast

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
    ToolSpec,
    VendorContent,
    VideoContent,
)
from ..encoding import (
    JsonDict,
    data_url,
    document_text,
    dump_arguments,
    encode_base64,
    normalize_id,
    normalize_name,
    search_result_text,
    to_markdown,
)
from ..repair import FOREIGN_BLOCK_DROPPED, is_own
from .dialect import MAX_NAME_LENGTH, SIGNED_CONTENT, Fragment, matches
from .fields import (
    AssistantMessage,
    AudioBlock,
    Block,
    Call,
    ChatContext,
    Content,
    FileBlock,
    ImageBlock,
    ImageUrl,
    MessageParam,
    PromptMessage,
    TextBlock,
    ToolMessage,
    VideoBlock,
)

ATTACHED = "The result is attached to the next message."
CLIP_LEFT_OUT = "the clip and frame rate of a video were left out: the API does not support them"
FILE_TITLE_LEFT_OUT = "the title of a file was left out: the vendor stores its name"
AUDIO_LEFT_OUT = "the audio of an assistant message was left out; its transcript was sent"
MARKS_LEFT_OUT = "the first cache breakpoints were left out: the vendor has a limit"

_AUDIO_FORMATS = {"audio/wav": "wav", "audio/x-wav": "wav", "audio/mpeg": "mp3", "audio/mp3": "mp3"}
_ASSISTANT_OK: AssistantMessage = {"role": "assistant", "content": "OK"}
"""Assistant message between a tool message and a user message, for vendors that require one."""

CacheHint = Literal["short", "long"]
M = TypeVar("M", bound=MessageParam)


class MessageEncoder:
    """Encodes the messages of one request."""

    def __init__(self, context: ChatContext) -> None:
        self._context = context
        self._dialect = dialect = context.dialect
        self._origin = context.origin
        self._system_role: Literal["system", "developer"] = "system"
        if dialect.developer_models and matches(dialect.developer_models, context.model):
            self._system_role = "developer"
        marks = dialect.cache_marks
        self._marks = marks if marks is not None and matches(marks.models, context.model) else None
        self._ignored_marks: frozenset[int] = frozenset()
        """Ids of parts whose breakpoints exceed the vendor's limit."""
        self._attachments: list[Block] = []
        """Media of results, for a user message after the turn's last result."""
        self._unmarked: set[CacheHint] = set()
        """Hints of parts without breakpoints."""

    def encode(self, messages: Sequence[Message]) -> list[MessageParam]:
        marked = {} if self._marks is None else self._find_breakpoints(messages)
        encoded: list[MessageParam] = []
        after_tool = False
        tool, assistant = Role.TOOL, Role.ASSISTANT  # looking up enum members is slow in Python 3.11
        for position, message in enumerate(messages):
            role = message.role
            if role is tool:
                after_tool = True
            elif after_tool:
                self._end_results(encoded, before_user=role is Role.USER)
                after_tool = False
            if role is assistant:
                params: Sequence[MessageParam] = self._encode_assistant(message)
            elif role is tool:
                params = self._encode_results(message)
            else:
                params = (self._encode_prompt(message),)
            encoded.extend(params)
            if position in marked and params:
                encoded[-1] = _mark_last_block(params[-1], marked[position])
        self._end_results(encoded)
        if self._unmarked or self._context.request.cache is not None or self._context.request.tools:
            self._check_cache_hints()
        return encoded

    def _check_cache_hints(self) -> None:
        """Warn about hints that neither breakpoints nor the vendor's own cache honour."""
        context, hints, dialect = self._context, self._unmarked, self._dialect
        whole = context.request.cache
        marked = self._marks is not None and self._marks.whole_requests
        if whole is not None and not marked and (whole == "short" or dialect.find_long_cache(context.model) is None):
            hints.add(whole)
        hints |= {tool.cache for tool in context.tools if isinstance(tool, ToolSpec) and tool.cache is not None}
        if hints and not dialect.caches:
            context.warn(f"cache was left out: {context.provider} does not support it there")
        elif "long" in hints:
            context.warn(f"cache='long' was left out: {context.provider} decides how long it caches")

    def _end_results(self, encoded: list[MessageParam], *, before_user: bool = False) -> None:
        """Add the attachments after a turn's last result."""
        if not self._dialect.user_after_tool and (self._attachments or before_user):
            encoded.append(_ASSISTANT_OK)
        if self._attachments:
            encoded.append({"role": "user", "content": self._attachments})
            self._attachments = []

    # Cache breakpoints.

    def _find_breakpoints(self, messages: Sequence[Message]) -> dict[int, Fragment]:
        """Find the request's own breakpoints by position, as far as those of parts leave room."""
        assert self._marks is not None
        limit, hint = self._marks.most, self._context.request.cache
        marked = [id(part) for message in messages for part in _flatten_parts(message) if part.cache is not None]
        if len(marked) > limit:
            self._ignored_marks = frozenset(marked[:-limit])
            self._context.warn(MARKS_LEFT_OUT)
        if hint is None or not self._marks.whole_requests:
            return {}
        positions = [len(messages) - 1]
        positions += [at for at, message in enumerate(messages) if message.role is Role.SYSTEM][-1:]
        return {position: self._marks.fragment(hint) for position in positions[: max(0, limit - len(marked))]}

    def _mark_of(self, part: Part) -> Fragment:
        if part.cache is None or id(part) in self._ignored_marks:
            return {}
        if self._marks is None:
            self._unmarked.add(part.cache)
            return {}
        return self._marks.fragment(part.cache)

    # System and user messages.

    def _encode_prompt(self, message: Message) -> PromptMessage:
        system = message.role is Role.SYSTEM
        content = message.content
        encoded: PromptMessage = {
            "role": self._system_role if system else "user",
            "content": content if isinstance(content, str) else self._encode_content(content, system=system),
        }
        return self._add_name(encoded, message)

    def _add_name(self, encoded: M, message: Message) -> M:
        if message.extra:
            encoded = cast(M, {**encoded})
            self._context.add_extra(cast(JsonDict, encoded), message.extra, "a message")
        if message.name is None:
            return encoded
        if self._dialect.refuses("name", self._context.model):
            self._context.warn(f"the name of a message was left out: {self._dialect.name} does not support it")
            return encoded
        return cast(M, {**encoded, "name": message.name})

    def _encode_content(self, parts: Sequence[Part], *, system: bool) -> Content:
        where = "in a system message" if system else "in a user message"
        blocks: list[Block] = []
        for part in parts:
            block = self._encode_block(part, where)
            self._add_extra(block, part)
            if system and block["type"] != "text":
                raise self._context.part_error(part, where)
            blocks.append(cast(Block, {**block, **self._mark_of(part)}))
        if len(blocks) == 1 and (block := blocks[0])["type"] == "text" and len(block) == 2:
            return block["text"]
        return blocks

    def _encode_block(self, part: Part, where: str) -> Block:
        match part:
            case TextContent():
                return encode_text(part.text)
            case CodeContent() | DiffContent():
                return encode_text(to_markdown(part))
            case ImageContent():
                return encode_image(part)
            case AudioContent():
                return self._encode_audio(part)
            case DocumentContent():
                return self._encode_document(part)
            case SearchResultContent():
                self._context.drop_citation_settings(part)
                return encode_text(search_result_text(part))
            case FileContent() if self._dialect.file_ids:
                if part.title is not None:
                    self._context.warn(FILE_TITLE_LEFT_OUT)
                return {"type": "file", "file": {"file_id": part.file_id}}
            case VideoContent() if self._dialect.video_urls:
                return self._encode_video(part)
            case (
                VideoContent()
                | FileContent()
                | ThinkingContent()
                | ToolCall()
                | ToolResult()
                | RefusalContent()
                | VendorContent()
            ):
                raise self._context.part_error(part, where)
            case _:
                assert_never(part)

    def _add_extra(self, encoded: Block | Call, part: Part) -> None:
        if part.extra:
            self._context.add_extra(cast(JsonDict, encoded), part.extra, f"a part of type {part.type!r}")
        for inner in part.content if isinstance(part, SearchResultContent) else ():
            self._drop_extra(inner)

    def _drop_extra(self, part: Part) -> None:
        self._context.drop_extra(part.extra, f"a part of type {part.type!r}")

    def _encode_audio(self, part: AudioContent) -> AudioBlock:
        format = _AUDIO_FORMATS.get(part.media_type or "audio/wav")
        if format is None:
            raise self._context.part_error(part, f"as {part.media_type}; use wav or mp3")
        return {"type": "input_audio", "input_audio": {"data": encode_base64(part.data), "format": format}}

    def _encode_video(self, part: VideoContent) -> VideoBlock:
        if (part.start, part.end, part.fps) != (None, None, None):
            self._context.warn(CLIP_LEFT_OUT)
        url = data_url(part.data, part.media_type or "video/mp4") if part.data is not None else part.url or ""
        return {"type": "video_url", "video_url": {"url": url}}

    def _encode_document(self, part: DocumentContent) -> TextBlock | FileBlock:
        self._context.drop_citation_settings(part)
        if part.text is not None:
            return encode_text(document_text(part) or "(an empty document)")
        if part.data is not None:
            data = data_url(part.data, part.media_type or "application/pdf")
        elif part.url is not None and self._dialect.document_urls:
            data = part.url
        else:
            raise self._context.part_error(part, "by URL; pass its bytes as data")
        return {"type": "file", "file": {"filename": part.title or "document", "file_data": data}}

    # Assistant messages.

    def _encode_assistant(self, message: Message) -> list[AssistantMessage]:
        """Encode an assistant message, if anything in it can be sent."""
        content = message.content
        encoded: AssistantMessage = {"role": "assistant"}
        if isinstance(content, str):
            encoded["content"] = content
            return [self._add_name(encoded, message)]
        text: list[str] = []
        thinking: list[ThinkingContent] = []
        calls: list[Call] = []
        opaque: JsonDict = {}
        mark: Fragment = {}
        for part in content:
            match part:
                case TextContent():
                    text.append(part.text)
                case CodeContent() | DiffContent():
                    text.append(to_markdown(part))
                case ToolCall():
                    calls.append(self._encode_call(part))
                case ThinkingContent():
                    thinking.append(part)
                    self._replay(part, opaque)
                case RefusalContent() if self._dialect.refusals:
                    encoded["refusal"] = encoded.get("refusal", "") + part.refusal
                case RefusalContent():
                    text.append(part.refusal)
                case VendorContent():
                    if not self._replay(part, opaque):
                        self._context.warn(FOREIGN_BLOCK_DROPPED)
                case AudioContent():
                    self._encode_audio_reference(part, encoded)
                case ImageContent() if is_own(part, self._origin) and "images" in self._dialect.replayed:
                    encoded.setdefault("images", []).append(encode_image(part))
                case (
                    ToolResult()
                    | ImageContent()
                    | DocumentContent()
                    | VideoContent()
                    | FileContent()
                    | SearchResultContent()
                ):
                    raise self._context.part_error(part, "in an assistant message")
                case _:
                    assert_never(part)
            if part.cache is not None:
                mark = self._mark_of(part) or mark
            if part.extra and not isinstance(part, ToolCall):
                self._drop_extra(part)
        content_text = "" if "audio" in encoded else "".join(text)
        if not content_text and not calls and len(encoded) == 1:
            named = {} if message.name is None else {"name": message.name}
            self._context.drop_extra({**message.extra, **named}, "a message")
            return []
        self._add_content(encoded, content_text, thinking, opaque, has_calls=bool(calls))
        if calls:
            encoded["tool_calls"] = calls
        encoded = self._add_name(cast(AssistantMessage, {**encoded, **opaque}), message)
        return [_mark_last_block(encoded, mark) if mark else encoded]

    def _add_content(
        self,
        encoded: AssistantMessage,
        text: str,
        thinking: Sequence[ThinkingContent],
        opaque: JsonDict,
        *,
        has_calls: bool,
    ) -> None:
        """Add the text, and the reasoning for dialects with a key for it."""
        key = self._dialect.reasoning_key
        reasoning = "".join(part.thinking for part in thinking)
        blocks: list[Block] = [
            block for part in thinking for block in (part.provider_data or {}).get(SIGNED_CONTENT, ())
        ]
        if key == "content" and reasoning:
            blocks = [{"type": "thinking", "thinking": [encode_text(reasoning)]}]
        elif key is not None and key != "content" and reasoning:
            opaque[key] = reasoning
        elif key is not None and key != "content" and has_calls and self._dialect.reasoning_filler is not None:
            opaque[key] = self._dialect.reasoning_filler
        if blocks and text:
            blocks.append(encode_text(text))
        encoded["content"] = blocks or text or None

    def _replay(self, part: ThinkingContent | VendorContent, opaque: JsonDict) -> bool:
        """Add a part's opaque data, which is the target's own after repair. Returns whether there is any."""
        replayed = False
        for key, value in (part.provider_data or {}).items():
            if key in self._dialect.replayed:
                earlier = opaque.get(key)
                opaque[key] = [*earlier, *value] if isinstance(earlier, list | tuple) else value
                replayed = True
        return replayed

    def _encode_audio_reference(self, part: AudioContent, encoded: AssistantMessage) -> None:
        """Refer to audio by its id at the vendor that made it. Other vendors get the transcript."""
        data = part.provider_data or {}
        if is_own(part, self._origin) and data.get("id"):
            encoded["audio"] = {"id": data["id"]}
        else:
            self._context.warn(AUDIO_LEFT_OUT)

    def _encode_call(self, call: ToolCall) -> Call:
        opaque: Mapping[str, Any] = (call.provider_data or {}) if is_own(call, self._origin) else {}
        id, name = self._normalize_id(call.id), normalize_name(call.name, MAX_NAME_LENGTH)
        if opaque.get("type") == "custom":
            custom: Call = {
                "id": id,
                "type": "custom",
                "custom": {"name": name, "input": call.arguments.get("input", "")},
            }
            self._add_extra(custom, call)
            return custom
        arguments = dump_arguments(call.arguments) if call.invalid_arguments is None else call.invalid_arguments
        encoded: Call = {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}
        self._add_extra(encoded, call)
        if opaque:
            keys = {*self._dialect.replayed, "provider_specific_fields"}
            replayed = {key: value for key, value in opaque.items() if key in keys}
            return cast(Call, {**encoded, **replayed})
        return encoded

    def _normalize_id(self, id: str) -> str:
        return normalize_id(id, self._dialect.call_ids.form, self._dialect.call_ids.length)

    # Tool messages.

    def _encode_results(self, message: Message) -> list[ToolMessage]:
        id, content = message.tool_call_id, message.content
        encoded: list[ToolMessage]
        if isinstance(content, str) and id is not None:
            encoded = [{"role": "tool", "tool_call_id": self._normalize_id(id), "content": content}]
        else:
            encoded = [self._encode_result(part) for part in message.parts if isinstance(part, ToolResult)]
        for each in encoded if message.extra else ():
            self._context.add_extra(cast(JsonDict, each), message.extra, "a message")
        return encoded

    def _encode_result(self, result: ToolResult) -> ToolMessage:
        id, text = self._normalize_id(result.tool_call_id), result.text
        parts = () if isinstance(result.content, str) else result.content
        images = [part for part in parts if isinstance(part, ImageContent)]
        media = [part for part in parts if not isinstance(part, TextContent)]
        blocks: list[Block] = []
        if self._dialect.result_images and len(images) == len(media):
            blocks += map(encode_image, images)
        elif media:
            self._attachments.append(encode_text(f"Attached to the result of {result.name or 'the call'} ({id}):"))
            for attached in media:
                block = self._encode_block(attached, "in a tool result")
                self._add_extra(block, attached)
                self._attachments.append(block)
            text = text or ATTACHED
        if result.is_error:
            text = f"Error: {text}"
        if blocks and text:
            blocks.insert(0, encode_text(text))
        encoded: ToolMessage = {"role": "tool", "tool_call_id": id, "content": blocks or text}
        self._context.add_extra(cast(JsonDict, encoded), result.extra, "a tool result")
        for inner in parts:
            if inner.extra and (blocks or isinstance(inner, TextContent)):
                self._drop_extra(inner)
        for part in (result, *reversed(parts)):
            if mark := self._mark_of(part):
                return _mark_last_block(encoded, mark)
        return encoded


def encode_text(text: str) -> TextBlock:
    return {"type": "text", "text": text}


def encode_image(part: ImageContent) -> ImageBlock:
    url = part.image_url
    if url is None:
        url = data_url(part.image_data or b"", part.media_type or "image/png")
    image: ImageUrl = {"url": url}
    if part.detail is not None:
        image["detail"] = part.detail
    return {"type": "image_url", "image_url": image}


def _flatten_parts(message: Message) -> Iterator[Part]:
    """Yield the parts of a message, and those inside a result before it."""
    for part in () if isinstance(message.content, str) else message.content:
        if isinstance(part, ToolResult) and not isinstance(part.content, str):
            yield from part.content
        yield part


def _mark_last_block(message: M, mark: Fragment) -> M:
    """Set a cache breakpoint on the last content block, if there is one."""
    content = message.get("content")
    if not content:
        return message
    blocks: list[Any] = [encode_text(content)] if isinstance(content, str) else list(cast(list[Block], content))
    blocks[-1] = {**blocks[-1], **mark}
    return cast(M, {**message, "content": blocks})
