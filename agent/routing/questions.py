"""A request as a router looks at it: what it needs, how long it is, which conversation it belongs to.

All of it is worked out once, and only if somebody asks: a plain question to healthy targets needs none of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from hashlib import blake2b
from typing import NamedTuple

from ..tokens import TokenCount, estimate_prompt, framing_of
from ..types import (
    AgentRequest,
    AudioContent,
    DocumentContent,
    ImageContent,
    Message,
    Part,
    TextContent,
    ThinkingLevel,
    ToolResult,
    ToolSpec,
)
from ..types.prefixes import folded
from .targets import Target

_OF_PARTS = {ImageContent: "vision", DocumentContent: "documents", AudioContent: "audio"}
_MEDIA = 100_000
"""Tokens that a picture or document might have at most; what holds one is measured properly."""
_PER_MESSAGE = 100
_PER_PART = 20


NO_CHANCE = 1.0
"""For those who leave nothing to it."""


class Question:
    """One request and the moment in which it is asked."""

    def __init__(self, request: AgentRequest, streaming: bool, now: float, chance: float) -> None:
        self.request = request
        self.streaming = streaming
        self.now = now
        self.chance = chance
        """A random number from 0 up to 1, for strategies that leave something to it."""
        self._counts: dict[object, TokenCount] = {}
        self._asked: dict[int, AgentRequest] = {}
        self._needs: frozenset[str] | None = None
        self._at_most = self._most_taken = -1
        self._known: _Said | None = None if request.messages else _NOTHING_SAID

    @property
    def _said(self) -> _Said:
        if self._known is None:
            self._known = folded(self.request.messages, "routing/said", _and_said)
        return self._known

    def asked(self, target: Target) -> AgentRequest:
        """The request as this target would send it: with its own system prompt, sampling and tools."""
        asked = self._asked.get(id(target))
        if asked is None:
            asked = self._asked[id(target)] = target.callee.as_asked(self.request)
        return asked

    @property
    def needs(self) -> frozenset[str]:
        """Capabilities without which it cannot be answered."""
        if self._needs is None:
            request = self.request
            needs = self._said.needs
            self._needs = needs | {"tools"} if request.tools else needs
        return self._needs

    def fits_any(self, window: float) -> bool:
        """Whether it surely needs nothing special, and no more room than this: then nobody need look closer."""
        request = self.request
        if request.tools:
            return False
        if not request.messages and request.system is None:
            return 2 * len(request.input or "") + 2 * _PER_MESSAGE + (request.max_tokens or 0) <= window
        return not self.needs and self.at_most + (request.max_tokens or 0) <= window

    @cached_property
    def wishes(self) -> frozenset[str]:
        """Capabilities that would be of use, too."""
        found = set(self.needs)
        if self.request.output_schema is not None:
            found.add("native_schema_output")
        if self.request.thinking not in (None, ThinkingLevel.OFF):
            found.add("thinking")
        return frozenset(found)

    @property
    def at_most(self) -> int:
        """Tokens that the prompt surely does not exceed, at next to no cost."""
        if self._at_most < 0:
            self._at_most = self._measured()
        return self._at_most

    @property
    def most_taken(self) -> int:
        """Tokens that question and answer surely do not exceed together, as far as the answer is limited."""
        if self._most_taken < 0:
            self._most_taken = self.at_most + (self.request.max_tokens or 0)
        return self._most_taken

    def _measured(self) -> int:
        request = self.request
        letters = self._said.letters + len(request.input or "") + len(request.system or "")
        tools = sum(_tool_letters(tool) for tool in request.tools)
        return 2 * letters + tools + _PER_MESSAGE * (len(request.messages) + 2)

    def tokens(self, target: Target) -> TokenCount:
        """An estimate of the prompt for this target's model."""
        asked = self.asked(target)
        family = framing_of(asked.model or "")
        count = self._counts.get(family)
        if count is None:
            count = self._counts[family] = estimate_prompt(asked)
        return count

    @cached_property
    def key(self) -> bytes:
        """The same for every turn of a conversation: its session, or else what stays the same at its beginning."""
        digest = blake2b(digest_size=16)
        request = self.request
        if request.session_id is not None:
            digest.update(b"session\0" + request.session_id.encode(errors="replace"))
            return digest.digest()
        digest.update((request.system or "").encode(errors="replace"))
        for tool in request.tools:
            name = tool.name if isinstance(tool, ToolSpec) else str(tool.get("name"))
            digest.update(b"\0" + name.encode(errors="replace"))
        first = next(iter(request.messages), None)
        opening = (request.input or "") if first is None else first.text
        digest.update(b"\0\0" + opening.encode(errors="replace"))
        return digest.digest()


class _Said(NamedTuple):
    """What is known of a conversation."""

    letters: int = 0
    needs: frozenset[str] = frozenset()


_NOTHING_SAID = _Said()


def _and_said(known: _Said | None, messages: Sequence[Message]) -> _Said:
    letters, needs = known or _NOTHING_SAID
    for message in messages:
        content = message.content
        if isinstance(content, str):
            letters += len(content)
            continue
        letters += sum(map(_letters, content))
        if media := {_OF_PARTS[type(part)] for part in _parts(content) if type(part) in _OF_PARTS}:
            needs |= media
    return _Said(letters, needs)


def _parts(content: Iterable[Part]) -> Iterable[Part]:
    for part in content:
        yield part
        if isinstance(part, ToolResult) and not isinstance(part.content, str):
            yield from part.content


def _letters(part: Part) -> int:
    if type(part) is TextContent:
        return len(part.text) + _PER_PART
    if isinstance(part, ToolResult):
        inner = part.content
        return len(inner) if isinstance(inner, str) else sum(_letters(one) for one in inner)
    return _MEDIA if type(part) in _OF_PARTS else len(repr(part))


def _tool_letters(tool: object) -> int:
    return 2 * len(repr(tool))
