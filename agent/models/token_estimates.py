"""Token estimates without a tokenizer.

Text is measured by words, letters, digits, punctuation, line breaks and non-Latin characters. The weights were fitted
to a public tokenizer on prose, code and JSON; the overhead per message, tool and call was fitted per model family to
vendor counts of recorded requests. The margin covers nine of ten recorded requests.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, assert_never

from pydantic import Field
from pydantic_core import to_json

from ..types import (
    AgentRequest,
    AgentResponse,
    AudioContent,
    CodeContent,
    DiffContent,
    DocumentContent,
    FileContent,
    ImageContent,
    Part,
    RefusalContent,
    RequestTool,
    Role,
    SearchResultContent,
    StreamEvent,
    TextContent,
    ThinkingContent,
    ToolCall,
    ToolResult,
    ToolSpec,
    Usage,
    Value,
    VendorContent,
    VideoContent,
)


class TokenCount(Value, frozen=True):
    """Prompt tokens. The actual number can differ by the fraction `margin`; 0 or None if exact."""

    tokens: int = Field(ge=0)
    exact: bool
    margin: float | None = Field(default=None, ge=0)
    method: str
    """The vendor's name, or `estimate`."""

    @property
    def low(self) -> int:
        return max(min(self.tokens, 1), round(self.tokens * (1 - (self.margin or 0))))

    @property
    def high(self) -> int:
        return round(self.tokens * (1 + (self.margin or 0)))


class Framing(NamedTuple):
    """Token overhead of a model family."""

    text: float = 1.0
    """Factor for the estimate of text."""
    loose: float = 0.18
    """Margin of that estimate."""
    base: float = 4.0
    message: float = 4.0
    tools_once: float = 60.0
    """Overhead of the first tool."""
    tool: float = 15.0
    """Overhead of each tool."""
    definition: float = 1.0
    """Factor for the JSON of tools and schemas."""
    call: float = 15.0
    result: float = 12.0
    schema: float = 1.1
    image: float = 1000.0
    framing_loose: float = 0.45
    """Margin of everything but text."""
    slack: float = 30.0
    """Minimum margin in tokens."""


_OTHER = Framing()
_GPT = Framing(
    loose=0.16,
    base=3.0,
    tools_once=14.0,
    tool=5.0,
    definition=0.65,
    call=8.0,
    result=7.0,
    image=800.0,
    framing_loose=0.45,
    slack=12.0,
)
_CLAUDE = Framing(
    text=1.1,
    loose=0.22,
    base=12.0,
    message=2.0,
    tools_once=330.0,
    tool=60.0,
    definition=1.1,
    call=35.0,
    result=35.0,
    schema=3.8,
    image=1500.0,
    framing_loose=0.38,
    slack=30.0,
)
_GEMINI = Framing(
    text=1.12,
    loose=0.22,
    base=2.0,
    message=2.0,
    tools_once=12.0,
    tool=6.0,
    definition=0.6,
    call=25.0,
    result=20.0,
    schema=0.3,
    image=260.0,
    framing_loose=0.9,
    slack=25.0,
)

_NEW_CLAUDE = _CLAUDE._replace(text=1.4)
_NEW_GEMINI = _GEMINI._replace(message=4.0, definition=1.1, call=60.0, result=40.0, image=1100.0)
_GROK = Framing(base=60.0, message=5.0, tools_once=130.0, tool=90.0, schema=4.0, slack=150.0)
_GPT_OSS = Framing(base=66.0, message=5.0, tools_once=5.0, tool=5.0, definition=0.9, call=18.0, result=18.0)
_MISTRAL = Framing(text=1.3, base=3.0, message=1.0, tools_once=0.0, tool=3.0, definition=1.6)
_KIMI = Framing(text=1.2, tools_once=5.0, tool=5.0, definition=1.6, call=18.0, result=17.0)

FAMILIES: tuple[tuple[str, Framing], ...] = (
    (r"claude-(opus-4-[789]|(opus|sonnet|haiku)-[5-9]|fable|mythos)", _NEW_CLAUDE),
    (r"claude", _CLAUDE),
    (r"gemini-([3-9]|flash|pro)", _NEW_GEMINI),
    (r"gemini|gemma", _GEMINI),
    (r"grok", _GROK),
    (r"gpt-oss", _GPT_OSS),
    (r"llama-?4", Framing(base=20.0, tools_once=560.0, tool=60.0)),
    (r"llama", Framing(base=30.0, definition=1.5)),
    (r"qwen|qwq", Framing(tools_once=70.0, tool=20.0, definition=1.1, call=70.0, result=50.0)),
    (r"deepseek", Framing(tools_once=200.0, tool=27.0, call=25.0, result=10.0)),
    (r"mistral|ministral|magistral|codestral|devstral|pixtral|voxtral", _MISTRAL),
    (r"glm", Framing(text=1.2, tools_once=75.0, tool=60.0, call=25.0, result=22.0)),
    (r"kimi|moonshot", _KIMI),
    (r"gpt|^o\d|codex|davinci", _GPT),
)
"""Model families by name pattern; the first match wins."""

# Compiled on first use: compiling takes longer than the rest of the import.
_WORD = r"[A-Za-z]+"
_MARKS = r"[!-/:-@\[-`{-~]+"
_DIGITS = r"[0-9]{1,3}"
_CJK = "[\u3000-\u30ff\u3400-\u9fff\uac00-\ud7af\uff00-\uffef\U00020000-\U0003ffff]"
_ACCENTED = "[\u00c0-\u024f\u1e00-\u1eff]"
_ASCII = r"[\x00-\x7f]+"
_GAPS = r"[ \t]{40,}"

_PER_WORD, _PER_LETTER, _PER_MARKS, _PER_DIGITS, _PER_LINE = 0.465, 0.14, 0.66, 1.5, 0.85
_PER_CJK, _PER_ACCENT, _PER_OTHER = 0.85, 0.7, 0.4
_PER_BLANK = 1 / 40
"""Per character in runs of blanks, which are single tokens."""

_BYTES_PER_PAGE = 60_000
_TOKENS_PER_PAGE = 1_800.0
_TOKENS_PER_VIDEO_SECOND = 300
_BYTES_PER_VIDEO_SECOND = 250_000
_BYTES_PER_SECOND = 16_000
_TOKENS_PER_SECOND = 30.0
_SEAL, _LETTERS_PER_SEALED_TOKEN = 750, 7.5
"""Encrypted reasoning: characters of overhead, and characters per token."""
_MEDIA_LOOSE = 1.0


def estimate_text(text: str) -> float:
    """Estimate the tokens of a text."""
    words = re.findall(_WORD, text)
    total = (
        _PER_WORD * len(words)
        + _PER_LETTER * sum(map(len, words))
        + _PER_MARKS * len(re.findall(_MARKS, text))
        + _PER_DIGITS * len(re.findall(_DIGITS, text))
        + _PER_LINE * text.count("\n")
        + _PER_BLANK * sum(map(len, re.findall(_GAPS, text)))
    )
    if not text.isascii():
        east_asian = len(re.findall(_CJK, text))
        accented = len(re.findall(_ACCENTED, text))
        other = len(text) - sum(map(len, re.findall(_ASCII, text))) - east_asian - accented
        total += _PER_CJK * east_asian + _PER_ACCENT * accented + _PER_OTHER * other
    return total


@lru_cache(maxsize=1024)
def find_framing(model: str) -> Framing:
    name = model.lower()
    return next((framing for pattern, framing in FAMILIES if re.search(pattern, name)), _OTHER)


def estimate_prompt(request: AgentRequest) -> TokenCount:
    """Estimate the prompt tokens of a request, with a margin."""
    framing = find_framing(request.model or "")
    content = _PromptContent()
    for message in request.to_messages():
        content.messages += 1
        if isinstance(message.content, str) and message.role is not Role.TOOL:
            content.text += estimate_text(message.content)
        else:
            for part in message.parts:
                content.add(part)
    text = framing.text * content.text
    media = framing.image * content.images + content.media
    framed = (
        framing.message * content.messages
        + framing.call * content.calls
        + framing.result * content.results
        + content.blocks
    )
    if request.tools:
        framed += framing.tools_once
        framed += sum(framing.tool + framing.definition * _tool_tokens(tool) for tool in request.tools)
    if (schema := request.output_json_schema) is not None:
        framed += framing.schema * estimate_text(_json(schema))
    tokens = max(1, round(text + framing.base + framed + media))
    unsure = framing.loose * text + framing.framing_loose * framed + _MEDIA_LOOSE * media + framing.slack
    return TokenCount(tokens=tokens, exact=False, margin=round(unsure / tokens, 3), method="estimate")


@dataclass(slots=True)
class _PromptContent:
    """Contents of a prompt, before the weights of a model family are applied."""

    text: float = 0.0
    """Tokens by `estimate_text`."""
    messages: int = 0
    calls: int = 0
    results: int = 0
    blocks: float = 0.0
    """Tokens in vendor-specific blocks."""
    images: int = 0
    media: float = 0.0
    """Tokens in documents, audio and encrypted reasoning."""

    def add(self, part: Part) -> None:
        match part:
            case TextContent():
                self.text += estimate_text(part.text)
            case ThinkingContent():
                self.text += estimate_text(part.thinking)
                self.media += max(0.0, len(part.encrypted_content) - _SEAL) / _LETTERS_PER_SEALED_TOKEN
            case RefusalContent():
                self.text += estimate_text(part.refusal)
            case CodeContent():
                self.text += estimate_text(part.code)
            case DiffContent():
                self.text += estimate_text(part.old_code) + estimate_text(part.new_code)
            case ToolCall():
                self.calls += 1
                self.text += estimate_text(part.name + _json(part.arguments))
            case ToolResult():
                self.results += 1
                if isinstance(part.content, str):
                    self.text += estimate_text(part.content)
                else:
                    for inner in part.content:
                        self.add(inner)
            case ImageContent():
                self.images += 1
            case DocumentContent():
                if (text := _document_text(part)) is not None:
                    self.text += estimate_text(text)
                else:
                    self.media += _TOKENS_PER_PAGE * max(1, _size(part) / _BYTES_PER_PAGE)
            case AudioContent():
                self.media += _TOKENS_PER_SECOND * max(1, _size(part) / _BYTES_PER_SECOND)
            case VideoContent():
                self.media += _TOKENS_PER_VIDEO_SECOND * max(1, _size(part) / _BYTES_PER_VIDEO_SECOND)
            case FileContent():
                self.media += _TOKENS_PER_PAGE
            case SearchResultContent():
                self.text += estimate_text(f"{part.source}{part.title}{part.text}")
            case VendorContent():
                self.blocks += estimate_text(_json(part.provider_data))
            case _:
                assert_never(part)


def _tool_tokens(tool: RequestTool) -> float:
    if not isinstance(tool, ToolSpec):
        return estimate_text(_json(tool))
    return estimate_text(_json({"name": tool.name, "description": tool.description, "parameters": tool.parameters}))


_WORDS = frozenset(("text_delta", "thinking_delta", "refusal_delta"))
"""Events that need no counting, because the partial response contains their text."""


class StreamTokenCounter:
    """Counts the tokens of a stream that may break before the vendor reports usage.

    Fragments of unfinished tool calls are billed, but not part of the partial response, so they are collected here.
    """

    __slots__ = ("_opening", "_pieces", "first")

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._opening: Usage | None = None
        self.first: object = None
        """The first event of the vendor."""

    def add(self, event: StreamEvent) -> None:
        kind = event.type
        if kind == "tool_call_delta":
            if event.tool_call_delta is not None:
                self._pieces.append(event.tool_call_delta.get("arguments") or "")
        elif kind == "message_start":
            self._opening = None if event.response is None else event.response.usage
            self.first = event.raw
        elif kind == "restart":
            self._pieces.clear()
            self._opening = None

    def add_all(self, events: Iterable[StreamEvent]) -> None:
        for event in events:
            if event.type not in _WORDS:
                self.add(event)

    def has_new_usage(self, usage: Usage) -> bool:
        """Whether the vendor has reported usage since the start of the response."""
        return usage != self._opening

    def tokens(self, partial: AgentResponse) -> int:
        scale = find_framing(partial.model).text
        said, called = _PromptContent(), _PromptContent()
        for part in partial.content:
            if isinstance(part, TextContent | ThinkingContent | RefusalContent):
                said.add(part)
            elif isinstance(part, ToolCall):
                called.add(part)
        return round(scale * (said.text + max(called.text, estimate_text("".join(self._pieces)))))


def complete_usage(partial: AgentResponse, request: AgentRequest, received: StreamTokenCounter) -> Usage:
    """Return the usage of an interrupted stream: the vendor's counts, completed by estimates.

    The vendor's completion count is used if it is plausible; at the start of a stream it is only a token or two.
    """
    guess = received.tokens(partial)
    known = partial.usage or Usage()
    counted = known.completion_tokens > 0 and known.completion_tokens >= _MIN_PLAUSIBLE * guess
    if counted and known.prompt_tokens and received.has_new_usage(known):
        return known
    prompt = known.prompt_tokens or estimate_prompt(request).tokens
    completion = known.completion_tokens if counted else guess
    return known.model_copy(
        update={
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": max(known.total_tokens, prompt + completion),
            "estimated": True,
        }
    )


_MIN_PLAUSIBLE = 0.6
"""Fraction of the estimate that the vendor's count must reach to be plausible."""


def _json(value: object) -> str:
    return to_json(value, fallback=str).decode()


def _document_text(part: DocumentContent) -> str | None:
    """Return the text of a text document; None for pages and URLs."""
    if part.text is not None:
        return part.text
    kind = (part.media_type or "").partition(";")[0].strip().lower()
    if part.data is None or not (kind.startswith("text/") or kind.endswith(("json", "xml", "yaml", "javascript"))):
        return None
    return part.data.decode(errors="replace")


def _size(part: DocumentContent | AudioContent | VideoContent) -> int:
    data = part.data
    return 0 if data is None else len(data)
