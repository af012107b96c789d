"""Message encoder of the Responses API: messages become input items.

An assistant message becomes several items: reasoning, messages, calls. Reasoning is sent back only to its own model and
only with the item that followed it: the API rejects either without the other.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, assert_never, cast

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
from .fields import (
    Call,
    CallOutput,
    ComputerCall,
    ComputerOutput,
    EasyMessage,
    InputBlock,
    InputFile,
    InputImage,
    InputItem,
    InputText,
    OutputBlock,
    OutputMessage,
    Reasoning,
    ResponsesContext,
    Screenshot,
    encode_cache,
)
from .models import COMPUTER_CALL, CUSTOM, MAX_NAME_LENGTH

FAILED = "The tool failed."
"""Text before the output of a failed tool; the API has no field for it."""
LOST_REASONING = "reasoning was left out: the item that followed it is missing"
UNENCRYPTED_REASONING = "reasoning was left out: it is neither encrypted nor stored at the vendor"
REPEATED_TURN = "an assistant message occurs twice; the second one was sent without reasoning and vendor items"
TITLE_LEFT_OUT = "the title of a document was left out: the API does not support it with a URL"
FILE_TITLE_LEFT_OUT = "the title of a file was left out: the vendor stores its name"
COMPUTER_TEXT = "text in the result of a computer call was sent as a user message: the API takes screenshots only"
NO_SCREENSHOT = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJg"
    "gg=="
)
"""A picture of one pixel, for results without a screenshot: the API requires one."""
NAME_LEFT_OUT = "the name of a message was left out: the API does not support it"

_CALL_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_FILE_EXTENSIONS = {
    "application/pdf": ".pdf",
    "application/json": ".json",
    "text/plain": ".txt",
    "text/markdown": ".md",
    "text/html": ".html",
    "text/csv": ".csv",
    "application/msword": ".doc",
    "application/vnd.openxmlformats-officedocument.wordprocessingml.document": ".docx",
    "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet": ".xlsx",
    "application/vnd.openxmlformats-officedocument.presentationml.presentation": ".pptx",
}

PromptRole = Literal["system", "user"]


class ItemEncoder:
    """Encodes the messages of one request."""

    def __init__(self, context: ResponsesContext) -> None:
        self._context = context
        self._origin = context.origin
        self._breakpoints = context.features.cache_breakpoints
        self._seen_ids: set[object] = set()
        """Ids of items so far; the API rejects duplicates."""
        self._call_data: dict[str, Mapping[str, Any]] = {}
        """Provider data of the latest turn's calls, by call id. Results repeat some of it."""

    def encode(self, messages: Iterable[Message]) -> list[InputItem]:
        items: list[InputItem] = []
        tool, assistant = Role.TOOL, Role.ASSISTANT  # looking up enum members is slow in Python 3.11
        for message in messages:
            role = message.role
            if role is tool:
                encode = self._encode_results
            elif role is assistant:
                encode = self._encode_assistant
            else:
                encode = self._encode_prompt
            encoded = encode(message)
            if not isinstance(message.content, str) and self._has_repeated_id(encoded):
                self._context.warn(REPEATED_TURN)
                encoded = encode(message, repeated=True)
            items += encoded
        return items

    def _has_repeated_id(self, items: Iterable[InputItem]) -> bool:
        """Whether the id of an item occurred in an earlier message."""
        ids = {id for item in items if (id := item.get("id"))}
        if not ids.isdisjoint(self._seen_ids):
            return True
        self._seen_ids |= ids
        return False

    # Assistant messages.

    def _encode_assistant(self, message: Message, *, repeated: bool = False) -> list[InputItem]:
        """Encode an assistant message. A repeated one loses reasoning, vendor items and ids."""
        if message.name is not None:
            self._context.warn(NAME_LEFT_OUT)
        self._call_data = {}
        content = message.content
        if isinstance(content, str):
            return [{"role": "assistant", "content": content}]
        items: list[InputItem] = []
        pending: list[Reasoning] = []
        """Reasoning before the next item."""
        intact, after_reasoning = True, False
        for part in content:
            if repeated and isinstance(part, ThinkingContent | VendorContent):
                continue
            if isinstance(part, ThinkingContent):
                intact = intact or not after_reasoning
                after_reasoning = True
                reasoning = self._encode_reasoning(part)
                if reasoning is None:
                    self._context.warn(UNENCRYPTED_REASONING)
                    intact = False
                else:
                    pending.append(reasoning)
                continue
            if _is_empty(part):
                continue
            if part.cache == "long":
                self._context.body.update(encode_cache(self._context, "long"))
            after_reasoning = False
            own = is_own(part, self._origin)
            if pending and not (intact and own):
                self._context.warn(LOST_REASONING)
                intact = False
                pending.clear()
            items += pending
            pending.clear()
            # An item with its id must follow its reasoning.
            self._encode_output(part, items, with_id=intact and own and not repeated)
        if pending:
            self._context.warn(LOST_REASONING)
        return items

    def _encode_reasoning(self, part: ThinkingContent) -> Reasoning | None:
        """Encode reasoning of the same model. None if it is neither encrypted nor stored."""
        data = part.provider_data or {}
        if not (part.encrypted_content or data.get("content") or (self._context.stored and part.id)):
            return None
        item: Reasoning = {"type": "reasoning", "summary": part.summary}
        if part.id:
            item["id"] = part.id
        if part.encrypted_content:
            item["encrypted_content"] = part.encrypted_content
        return cast(Reasoning, {**data, **item})

    def _encode_output(self, part: Part, items: list[InputItem], *, with_id: bool) -> None:
        """Encode a part of an assistant message as a new item, or add it to the last one."""
        match part:
            case TextContent():
                annotations = [citation.provider_data for citation in part.citations if citation.provider_data]
                text: OutputBlock = {"type": "output_text", "text": part.text, "annotations": annotations}
                self._add_text(part, part.text, text, items, with_id=with_id)
            case RefusalContent():
                refusal: OutputBlock = {"type": "refusal", "refusal": part.refusal}
                self._add_text(part, part.refusal, refusal, items, with_id=with_id)
            case CodeContent() | DiffContent():
                self._add_text(part, to_markdown(part), None, items, with_id=False)
            case ToolCall():
                items.append(self._encode_call(part, with_id=with_id))
            case VendorContent():
                _add_vendor_item(part, items)
            case ImageContent() if part.image_data is not None and (data := self._own_data(part)):
                items.append(cast(InputItem, {**data, "result": encode_base64(part.image_data)}))
            case (
                ToolResult()
                | ImageContent()
                | DocumentContent()
                | AudioContent()
                | VideoContent()
                | FileContent()
                | SearchResultContent()
                | ThinkingContent()
            ):
                raise self._context.part_error(part, "in an assistant message")
            case _:
                assert_never(part)

    def _add_text(
        self, part: Part, text: str, block: OutputBlock | None, items: list[InputItem], *, with_id: bool
    ) -> None:
        """Add text to the message with the same id, else to the preceding text."""
        data = self._own_data(part)
        id, phase = data.get("id") if with_id else None, data.get("phase")
        last = cast(JsonDict, items[-1]) if items else {}
        same_message = last.get("role") == "assistant" and last.get("id") == id and last.get("phase") == phase
        if same_message and id is not None:
            last["content"] = [*last["content"], block]
        elif same_message and isinstance(last["content"], str):
            last["content"] += text
        else:
            message: EasyMessage | OutputMessage = {"role": "assistant", "content": text}
            if id is not None and block is not None:
                status = data.get("status") or "completed"
                message = {"type": "message", "id": id, "role": "assistant", "status": status, "content": [block]}
            if phase is not None:
                message["phase"] = phase
            items.append(message)

    def _encode_call(self, call: ToolCall, *, with_id: bool) -> Call:
        data = self._own_data(call)
        if data.get("type") == COMPUTER_CALL:
            return self._encode_computer_call(call, data, with_id=with_id)
        if data:
            self._call_data[call.id] = data
        id, name = normalize_call_id(call.id), normalize_name(call.name, MAX_NAME_LENGTH)
        item: Call
        if data.get("type") == CUSTOM:
            text = call.arguments.get("input", call.invalid_arguments or "")
            item = {"type": "custom_tool_call", "call_id": id, "name": name, "input": text}
        else:
            arguments = dump_arguments(call.arguments) if call.invalid_arguments is None else call.invalid_arguments
            item = {"type": "function_call", "call_id": id, "name": name, "arguments": arguments}
        if with_id and call.item_id:
            item["id"] = call.item_id
        return cast(Call, {**data, **item}) if data else item

    def _encode_computer_call(self, call: ToolCall, data: Mapping[str, Any], *, with_id: bool) -> ComputerCall:
        checks = call.arguments.get("pending_safety_checks", ())
        self._call_data[call.id] = {**data, "pending_safety_checks": checks}
        id = normalize_call_id(call.id)
        item: ComputerCall = {
            "type": "computer_call",
            "id": call.item_id if with_id and call.item_id else f"cu_{id}",
            "call_id": id,
            "status": "completed",
            "pending_safety_checks": checks,
        }
        return cast(ComputerCall, {**data, **call.arguments, **item})

    def _own_data(self, part: Part) -> Mapping[str, Any]:
        """The part's provider data, if the target made it."""
        return (part.provider_data or {}) if is_own(part, self._origin) else {}

    # System and user messages.

    def _encode_prompt(self, message: Message, *, repeated: bool = False) -> list[InputItem]:
        """Encode a system or user message. A repeated one loses its vendor items."""
        if message.name is not None:
            self._context.warn(NAME_LEFT_OUT)
        content = message.content
        role: PromptRole = "system" if message.role is Role.SYSTEM else "user"
        if isinstance(content, str):
            return [{"role": role, "content": content}]
        return self._encode_parts(content, role, repeated=repeated)

    def _encode_parts(self, parts: Iterable[Part], role: PromptRole, *, repeated: bool) -> list[InputItem]:
        items: list[InputItem] = []
        pending_parts: list[Part] = []
        for part in parts:
            if isinstance(part, ToolResult) and self._is_computer_call(part.tool_call_id):
                items.append(self._encode_screenshot(part, pending_parts))
            elif isinstance(part, ToolResult):
                items.append(self._encode_call_output(part.tool_call_id, self._encode_result(part)))
            elif isinstance(part, VendorContent):
                self._add_prompt(pending_parts, role, items)
                pending_parts = []
                if not is_own(part, self._origin):
                    self._context.warn(FOREIGN_BLOCK_DROPPED)
                elif not repeated:  # such as a response to an MCP approval request
                    items.append(_vendor_item(part))
            else:
                pending_parts.append(part)
        self._add_prompt(pending_parts, role, items)
        return items

    def _add_prompt(self, parts: Sequence[Part], role: PromptRole, items: list[InputItem]) -> None:
        blocks = self._encode_blocks(parts, f"in a {role} message")
        if len(blocks) == 1 and blocks[0].keys() == {"type", "text"}:
            items.append({"role": role, "content": cast(InputText, blocks[0])["text"]})
        elif blocks:
            items.append({"role": role, "content": blocks})

    def _encode_blocks(self, parts: Iterable[Part], where: str) -> list[InputBlock]:
        blocks: list[InputBlock] = []
        for part in parts:
            block = self._encode_block(part, where)
            if block.get("text") != "":
                self._mark(block, part)
                blocks.append(block)
        return blocks

    def _mark(self, block: InputBlock, part: Part) -> None:
        """Set a cache breakpoint on a block. Without breakpoints, a long lifetime is that of the whole prompt."""
        if part.cache is not None and self._breakpoints:
            block["prompt_cache_breakpoint"] = (
                {"mode": "explicit", "ttl": "12h"} if part.cache == "long" else {"mode": "explicit"}
            )
        elif part.cache == "long":
            self._context.body.update(encode_cache(self._context, "long"))

    def _encode_block(self, part: Part, where: str) -> InputBlock:
        match part:
            case TextContent():
                return encode_text(part.text)
            case CodeContent() | DiffContent():
                return encode_text(to_markdown(part))
            case ImageContent():
                return encode_image(part)
            case DocumentContent():
                return self._encode_document(part)
            case FileContent():
                if part.title is not None:
                    self._context.warn(FILE_TITLE_LEFT_OUT)
                return encode_file(part)
            case SearchResultContent():
                self._context.drop_citation_settings(part)
                return encode_text(search_result_text(part))
            case (
                AudioContent()
                | VideoContent()
                | ThinkingContent()
                | ToolCall()
                | ToolResult()
                | RefusalContent()
                | VendorContent()
            ):
                raise self._context.part_error(part, where)
            case _:
                assert_never(part)

    def _encode_document(self, part: DocumentContent) -> InputText | InputFile:
        self._context.drop_citation_settings(part)
        if part.text is not None:
            return encode_text(document_text(part))
        if part.data is not None:
            media_type = part.media_type or "application/pdf"
            return {
                "type": "input_file",
                "filename": _file_name(part.title or "document", media_type),
                "file_data": data_url(part.data, media_type),
            }
        if part.title:
            self._context.warn(TITLE_LEFT_OUT)
        return {"type": "input_file", "file_url": part.url or ""}

    # Tool messages.

    def _encode_results(self, message: Message, *, repeated: bool = False) -> list[InputItem]:
        """Encode results. Other parts, as with results of stored calls, become a user message."""
        content, id = message.content, message.tool_call_id
        if isinstance(content, str) and id is not None and not self._is_computer_call(id):
            return [self._encode_call_output(id, content)]
        return self._encode_parts(message.parts, "user", repeated=repeated)

    def _encode_call_output(self, call_id: str, output: str | list[InputBlock]) -> CallOutput:
        data = self._call_data.get(call_id) or {}
        item: CallOutput = {
            "type": "custom_tool_call_output" if data.get("type") == CUSTOM else "function_call_output",
            "call_id": normalize_call_id(call_id),
            "output": output,
        }
        if "caller" in data:
            item["caller"] = data["caller"]
        return item

    def _encode_result(self, result: ToolResult) -> str | list[InputBlock]:
        content = result.content
        parts: Sequence[Part] = () if isinstance(content, str) else content
        hints = {part.cache for part in (result, *parts)}
        if "long" in hints and not self._breakpoints:
            self._context.body.update(encode_cache(self._context, "long"))
        is_marked = self._breakpoints and hints != {None}
        if not is_marked and all(isinstance(part, TextContent) for part in parts):
            return f"{FAILED}\n{result.text}" if result.is_error else result.text
        blocks = self._encode_blocks(parts, "in a tool result")
        if isinstance(content, str) and content:
            blocks.append(encode_text(content))
        if blocks:
            self._mark(blocks[-1], result)
        if result.is_error:
            blocks.insert(0, encode_text(FAILED))
        return blocks or ""

    def _is_computer_call(self, call_id: str) -> bool:
        return self._call_data.get(call_id, {}).get("type") == COMPUTER_CALL

    def _encode_screenshot(self, result: ToolResult, others: list[Part]) -> ComputerOutput:
        """Encode the result of a computer call, and add everything but its screenshot to `others`."""
        parts: list[Part] = [TextContent(text=result.text)] if isinstance(result.content, str) else [*result.content]
        shown = [part for part in parts if isinstance(part, ImageContent | FileContent)]
        screenshot: Screenshot = {"type": "computer_screenshot"}
        match shown[-1:]:
            case [ImageContent() as image]:
                screenshot["image_url"] = encode_image(image)["image_url"]
            case [FileContent() as file]:
                screenshot["file_id"] = file.file_id
            case _:
                screenshot["image_url"] = NO_SCREENSHOT
        if left := [part for part in parts if part not in shown[-1:] and not _is_empty(part)]:
            self._context.warn(COMPUTER_TEXT)
            others += [TextContent(text=FAILED), *left] if result.is_error else left
        item: ComputerOutput = {
            "type": "computer_call_output",
            "call_id": normalize_call_id(result.tool_call_id),
            "output": screenshot,
        }
        checks = self._call_data[result.tool_call_id]["pending_safety_checks"]
        if checks and not result.is_error:
            item["acknowledged_safety_checks"] = checks
        return item


def normalize_call_id(id: str) -> str:
    return normalize_id(id, _CALL_ID, 29, prefix="call_")


def encode_text(text: str) -> InputText:
    return {"type": "input_text", "text": text}


def encode_image(part: ImageContent) -> InputImage:
    url = part.image_url
    if url is None:
        url = data_url(part.image_data or b"", part.media_type or "image/png")
    return {"type": "input_image", "image_url": url, "detail": part.detail or "auto"}


def encode_file(part: FileContent) -> InputImage | InputFile:
    if (part.media_type or "").startswith("image/"):
        return {"type": "input_image", "file_id": part.file_id, "detail": "auto"}
    return {"type": "input_file", "file_id": part.file_id}


def _file_name(title: str, media_type: str) -> str:
    """Add an extension, by which the vendor recognizes file types."""
    return title if "." in title else title + _FILE_EXTENSIONS.get(media_type, "")


def _is_empty(part: Part) -> bool:
    return (isinstance(part, TextContent) and not part.text) or (isinstance(part, RefusalContent) and not part.refusal)


def _vendor_item(part: VendorContent) -> InputItem:
    return cast(InputItem, dict(part.provider_data or {"type": part.kind}))


def _add_vendor_item(part: VendorContent, items: list[InputItem]) -> None:
    """Add a vendor item. A block of a message is added to that message."""
    item = cast(JsonDict, _vendor_item(part))
    last = cast(JsonDict, items[-1]) if items else {}
    if item.get("type") == last.get("type") == "message" and last.get("id") == item.get("id"):
        last["content"] = [*last["content"], *item["content"]]
    else:
        items.append(cast(InputItem, item))
