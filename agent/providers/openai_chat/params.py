"""Request types of the Chat Completions API, as in its API reference.

Dialects may add keys of their own to messages, calls and content blocks: opaque reasoning, cache breakpoints.
"""

from __future__ import annotations

from typing import Any, Literal, Required, TypeAlias, TypedDict


class TextBlock(TypedDict):
    type: Literal["text"]
    text: str


class ImageUrl(TypedDict, total=False):
    url: Required[str]
    detail: str


class ImageBlock(TypedDict):
    type: Literal["image_url"]
    image_url: ImageUrl


class InputAudio(TypedDict):
    data: str
    format: str


class AudioBlock(TypedDict):
    type: Literal["input_audio"]
    input_audio: InputAudio


class File(TypedDict):
    filename: str
    file_data: str


class FileBlock(TypedDict):
    type: Literal["file"]
    file: File


class ThinkingBlock(TypedDict):
    """Mistral's."""

    type: Literal["thinking"]
    thinking: list[TextBlock]


Block: TypeAlias = TextBlock | ImageBlock | AudioBlock | FileBlock | ThinkingBlock
Content: TypeAlias = str | list[Block]


class Function(TypedDict):
    name: str
    arguments: str


class FunctionCall(TypedDict):
    id: str
    type: Literal["function"]
    function: Function


class CustomInput(TypedDict):
    name: str
    input: str


class CustomCall(TypedDict):
    id: str
    type: Literal["custom"]
    custom: CustomInput


Call: TypeAlias = FunctionCall | CustomCall


class PromptMessage(TypedDict, total=False):
    """A message of the system, the developer or the user."""

    role: Required[Literal["system", "developer", "user"]]
    content: Required[Content]
    name: str


class AudioReference(TypedDict):
    id: str


class AssistantMessage(TypedDict, total=False):
    role: Required[Literal["assistant"]]
    content: Content | None
    name: str
    refusal: str
    audio: AudioReference
    images: list[ImageBlock]
    tool_calls: list[Call]


class ToolMessage(TypedDict):
    role: Literal["tool"]
    tool_call_id: str
    content: Content


MessageParam: TypeAlias = PromptMessage | AssistantMessage | ToolMessage


class FunctionDefinition(TypedDict, total=False):
    name: Required[str]
    description: str
    parameters: dict[str, Any]
    strict: bool


class FunctionTool(TypedDict):
    type: Literal["function"]
    function: FunctionDefinition


class JsonSchema(TypedDict, total=False):
    name: Required[str]
    schema: dict[str, Any]
    strict: bool


class ResponseFormat(TypedDict, total=False):
    type: Required[Literal["json_schema", "json_object"]]
    json_schema: JsonSchema
