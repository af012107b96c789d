"""Request types of generateContent, as in its API reference."""

from __future__ import annotations

from typing import Any, Literal, Required, TypeAlias, TypedDict


class Blob(TypedDict):
    mimeType: str
    data: str


class FileData(TypedDict, total=False):
    fileUri: Required[str]
    mimeType: str


class FunctionCall(TypedDict, total=False):
    id: str
    name: Required[str]
    args: dict[str, Any]


class FunctionResponse(TypedDict, total=False):
    id: str
    name: Required[str]
    response: Required[dict[str, Any]]
    parts: list[PartParam]


class _AnyPart(TypedDict, total=False):
    thought: bool
    thoughtSignature: str


class TextPart(_AnyPart):
    text: str


class InlineDataPart(_AnyPart):
    inlineData: Blob


class FileDataPart(_AnyPart):
    fileData: FileData


class FunctionCallPart(_AnyPart):
    functionCall: FunctionCall


class FunctionResponsePart(_AnyPart):
    functionResponse: FunctionResponse


MediaPart: TypeAlias = InlineDataPart | FileDataPart
PartParam: TypeAlias = TextPart | InlineDataPart | FileDataPart | FunctionCallPart | FunctionResponsePart


class Content(TypedDict):
    role: Literal["user", "model"]
    parts: list[PartParam]


class SystemInstruction(TypedDict):
    parts: list[TextPart]


class FunctionDeclaration(TypedDict, total=False):
    name: Required[str]
    description: str
    parametersJsonSchema: dict[str, Any]


class FunctionCallingConfig(TypedDict, total=False):
    mode: Required[Literal["AUTO", "ANY", "NONE", "VALIDATED"]]
    allowedFunctionNames: list[str]


class ToolConfig(TypedDict, total=False):
    functionCallingConfig: FunctionCallingConfig
    includeServerSideToolInvocations: bool


class ThinkingConfig(TypedDict, total=False):
    thinkingLevel: str
    thinkingBudget: int
    includeThoughts: bool
