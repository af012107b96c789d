"""Request types of the Responses API, as in its API reference.

Items and blocks of a response that are sent back may have more keys, and there are more kinds of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Required, TypeAlias, TypedDict

from .dialect import Effort


class CacheBreakpoint(TypedDict, total=False):
    mode: Required[Literal["explicit"]]
    ttl: Literal["30m", "12h"]


class InputText(TypedDict, total=False):
    type: Required[Literal["input_text"]]
    text: Required[str]
    prompt_cache_breakpoint: CacheBreakpoint


class InputImage(TypedDict, total=False):
    type: Required[Literal["input_image"]]
    image_url: Required[str]
    detail: Required[str]
    prompt_cache_breakpoint: CacheBreakpoint


class InputFile(TypedDict, total=False):
    type: Required[Literal["input_file"]]
    filename: str
    file_data: str
    file_url: str
    prompt_cache_breakpoint: CacheBreakpoint


InputBlock: TypeAlias = InputText | InputImage | InputFile


class OutputText(TypedDict):
    type: Literal["output_text"]
    text: str
    annotations: Sequence[Mapping[str, Any]]


class Refusal(TypedDict):
    type: Literal["refusal"]
    refusal: str


OutputBlock: TypeAlias = OutputText | Refusal


class EasyMessage(TypedDict, total=False):
    """A message without an id: of the system, the user, or another model."""

    role: Required[Literal["system", "user", "assistant"]]
    content: Required[str | list[InputBlock]]
    phase: str


class OutputMessage(TypedDict, total=False):
    """A message that the vendor made."""

    type: Required[Literal["message"]]
    id: Required[str]
    role: Required[Literal["assistant"]]
    status: Required[str]
    content: Required[list[OutputBlock]]
    phase: str


class Reasoning(TypedDict, total=False):
    type: Required[Literal["reasoning"]]
    id: str
    summary: Required[Sequence[Mapping[str, Any]]]
    encrypted_content: str
    content: Sequence[Mapping[str, Any]]


class FunctionCall(TypedDict, total=False):
    type: Required[Literal["function_call"]]
    call_id: Required[str]
    name: Required[str]
    arguments: Required[str]
    id: str


class CustomCall(TypedDict, total=False):
    type: Required[Literal["custom_tool_call"]]
    call_id: Required[str]
    name: Required[str]
    input: Required[str]
    id: str


class CallOutput(TypedDict, total=False):
    type: Required[Literal["function_call_output", "custom_tool_call_output"]]
    call_id: Required[str]
    output: Required[str | list[InputBlock]]
    caller: Mapping[str, Any]


InputItem: TypeAlias = EasyMessage | OutputMessage | Reasoning | FunctionCall | CustomCall | CallOutput


class FunctionTool(TypedDict, total=False):
    type: Required[Literal["function"]]
    name: Required[str]
    description: str
    parameters: Required[dict[str, Any]]
    strict: Required[bool]


class ReasoningConfig(TypedDict, total=False):
    effort: Required[Effort]
    summary: Literal["auto"]


class JsonSchemaFormat(TypedDict):
    type: Literal["json_schema"]
    name: str
    schema: Mapping[str, Any]
    strict: bool
