"""Writing a conversation as Gemini's contents: turns of `user` and `model`, each a list of parts.

A message's parts are encoded once and kept with the message, so a turn of a long conversation costs what is new in it.
Neighbours of one role become one turn. What was sealed by this very model goes back on the part it came with; a call
made elsewhere carries the documented stand-in where a signature is demanded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias, TypeGuard, assert_never
from urllib.parse import urlsplit

from ... import errors
from ...types import (
    AudioContent,
    CodeContent,
    DiffContent,
    DocumentContent,
    ImageContent,
    Message,
    Origin,
    Part,
    RefusalContent,
    Role,
    TextContent,
    ThinkingContent,
    ToolCall,
    ToolResult,
    VendorContent,
)
from ...types.notes import first_notes, kept_notes, notes_on
from ..beginnings import Begun
from ..repair import is_own
from ..writing import (
    LARGE,
    TURN_ENDS,
    as_json,
    as_markdown,
    as_text,
    base64_text,
    cannot_take,
    join_turns,
    words_json,
)
from .family import SKIP_SIGNATURE, Family
from .names import sent_id, sent_name

Media = ImageContent | AudioContent | DocumentContent

METADATA_KIND = "metadata"
"""The kind of a block that holds what a candidate says about itself. It is no part, and is not sent back."""

LATE_SYSTEM = "a system message in the middle of the conversation was told as a user's"
NO_USER_FIRST = "the conversation began with the assistant; a user's turn was put before it"
NO_AUTHOR = "the name of a message's author was left out: the API has no place for it"
NO_TITLE = "the title of a file was left out: the API has no place for it"
NO_DETAIL = "how closely to look at an image was left to the model"

_ASSISTANT, _SYSTEM, _TOOL = Role.ASSISTANT, Role.SYSTEM, Role.TOOL  # looked up once: enums are slow to ask
_USER, _MODEL = b'{"role":"user","parts":[', b'{"role":"model","parts":['
_Named: TypeAlias = tuple[tuple[str, str, bool], ...]
"""Calls by id, name, and whether the vendor takes the id."""
_Written: TypeAlias = tuple[tuple[bytes, bytes], _Named]
"""How a message's turn begins and its parts; and the calls that it makes or answers."""
_EMPTY = {"text": ""}
"""Never sent: a text without words, unless a signature stands on it."""
_OPENING = as_json({"text": "(The conversation begins with your answer.)"})
_IN_RESULTS = frozenset(("image/png", "image/jpeg", "image/webp", "application/pdf", "text/plain"))
_KNOWN_TO_VENDOR = ("https://generativelanguage.googleapis.com/", "gs://")
_BY_EXTENSION = {
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
}


class ContentsWriter:
    """The conversation of one request; collects what had to be changed on the way."""

    def __init__(self, home: Origin, family: Family, *, any_ids: bool) -> None:
        self._home = home
        self._family = family
        self._any_ids = any_ids
        self.key = f"{home.api}/{home.provider}/{home.model}/{'' if any_ids else 'own ids'}"
        """Of the notes on messages that hold their bytes."""
        self.warnings: dict[str, None] = {}

    def system(self, messages: Sequence[Message]) -> list[dict[str, Any]]:
        """The leading system messages as the parts of the system instruction, which is text only."""
        if any(message.name is not None for message in messages):
            self._warn(NO_AUTHOR)
        return [{"text": text} for message in messages for part in message.parts if (text := self._system_text(part))]

    def contents(self, messages: Sequence[Message]) -> list[bytes]:
        """All turns, with commas, in pieces; none if there is no turn. Neighbours of one role become one turn."""
        contents, speaking = self._joined(messages, None)
        return [] if speaking is None else [contents, TURN_ENDS]

    def continued(self, begun: Begun) -> list[bytes]:
        """As `contents`. What is known of how the conversation begins is not written again."""
        added, speaking = self._joined(begun.added, begun.state)
        if not self.warnings:
            begun.keep(added, speaking)
        rest, speaking = self._joined(begun.rest, speaking)
        return [] if speaking is None else [*begun.pieces, added, rest, TURN_ENDS]

    def _joined(self, messages: Sequence[Message], speaking: bytes | None) -> tuple[bytes, bytes | None]:
        """Some turns behind that of whoever is `speaking`. The API insists that the user speaks first."""
        said = self._said(messages)
        if speaking is None and next((opening for opening, parts in said if parts), None) is _MODEL:
            self.warnings = {NO_USER_FIRST: None, **self.warnings}  # in front, however much was written at a time
            said.insert(0, (_USER, _OPENING))
        return join_turns(said, speaking)

    def _said(self, messages: Sequence[Message]) -> list[tuple[bytes, bytes]]:
        """How the turn of each message begins, and its parts; results are told once the last of them has come."""
        key = self.key
        said: list[tuple[bytes, bytes]] = []
        add = said.append
        results: list[Message] = []
        latest: Message | None = None
        asked: _Named = ()
        for message in messages:
            role = message.role
            if role is _TOOL:
                results.append(message)
                continue
            if results:
                add(self._answers(results, latest, asked))
                results = []
            try:
                notes = kept_notes(message)
            except AttributeError:
                notes = first_notes(message)
            written = notes.get(key)
            if written is None:
                words = words_json(message, b'{"text":', b"}") if role is not _SYSTEM else None
                if words is None:
                    written = self._written(message)
                else:
                    written = (_MODEL if role is _ASSISTANT else _USER, words), ()
                    if len(words) <= LARGE:
                        notes[key] = written
            said_here, named = written
            add(said_here)
            if role is _ASSISTANT:
                latest, asked = message, named
        if results:
            add(self._answers(results, latest, asked))
        return said

    def _warn(self, warning: str) -> None:
        self.warnings[warning] = None

    def _written(self, message: Message) -> _Written:
        """The parts of a message that is not a tool's, and the calls in a turn of the model's."""
        called = message.role is _ASSISTANT and not isinstance(message.content, str)
        asked = tuple(map(self._naming, _by_id(message).values())) if called else ()
        encoded = self._plainly(message)
        if encoded is not None:
            return self._kept(message, encoded, asked)
        before, self.warnings = self.warnings, {}
        if message.name is not None:
            self._warn(NO_AUTHOR)
        write = self._model_parts if message.role is _ASSISTANT else self._user_parts
        encoded = b",".join(map(as_json, write(message)))
        warned, self.warnings = bool(self.warnings), {**before, **self.warnings}
        # A warning must come again with the next request, so a message that causes one is not kept.
        return self._kept(message, encoded, asked, keep=not warned)

    def _kept(self, message: Message, encoded: bytes, named: _Named, *, keep: bool = True) -> _Written:
        written = (_MODEL if message.role is _ASSISTANT else _USER, encoded), named
        if keep and len(encoded) <= LARGE:
            notes_on(message)[self.key] = written
        return written

    def _plainly(self, message: Message) -> bytes | None:
        """A turn of words and calls, in one go. None for any other message."""
        content = message.content
        if not content or message.name is not None or isinstance(content, str) or message.role is not _ASSISTANT:
            return None
        parts: list[dict[str, Any]] = []
        called = False
        for part in content:
            if isinstance(part, TextContent) and part.text and part.signature is None:
                parts.append({"text": part.text})
            elif isinstance(part, ToolCall) and part.signature is None:
                call: dict[str, Any] = {"functionCall": self._call(part)}
                if not called and self._family.signed_calls:
                    call["thoughtSignature"] = SKIP_SIGNATURE
                called = True
                parts.append(call)
            else:
                return None
        return as_json(parts)[1:-1]

    def _system_text(self, part: Part) -> str:
        match part:
            case TextContent():
                return part.text
            case CodeContent() | DiffContent():
                return as_markdown(part)
            case DocumentContent() if part.text is not None:
                return as_text(part)
            case _:
                raise self._cannot(part, "in a system message; it takes text there")

    def _user_parts(self, message: Message) -> list[dict[str, Any]]:
        if message.role is Role.SYSTEM:
            self._warn(LATE_SYSTEM)
            return self.system([message])
        return [written for part in message.parts if (written := self._user_part(part)) != _EMPTY]

    def _user_part(self, part: Part) -> dict[str, Any]:
        match part:
            case TextContent():
                return {"text": part.text}
            case CodeContent() | DiffContent():
                return {"text": as_markdown(part)}
            case ImageContent() | AudioContent() | DocumentContent():
                return self._media(part)
            case VendorContent():
                return dict(part.provider_data or {})
            case ThinkingContent() | ToolCall() | ToolResult() | RefusalContent():
                raise self._cannot(part, "in a user's message")
            case _:
                assert_never(part)

    def _model_parts(self, message: Message) -> list[dict[str, Any]]:
        written: list[dict[str, Any]] = []
        called = False
        for part in message.parts:
            wire = self._model_part(part)
            if wire is None or wire == _EMPTY:
                continue
            if "functionCall" in wire and isinstance(part, ToolCall):
                if not called and self._family.signed_calls:
                    wire.setdefault("thoughtSignature", SKIP_SIGNATURE)
                called = True
            written.append(wire)
        return written

    def _model_part(self, part: Part) -> dict[str, Any] | None:
        match part:
            case TextContent():
                return self._signed({"text": part.text}, part, part.signature)
            case ThinkingContent():
                if not part.thinking and not part.signature:
                    return None
                return self._signed({"text": part.thinking, "thought": True}, part, part.signature)
            case ToolCall():
                return self._signed({"functionCall": self._call(part)}, part, part.signature)
            case RefusalContent():
                return {"text": part.refusal}
            case CodeContent() | DiffContent():
                return {"text": as_markdown(part)}
            case ImageContent() | AudioContent() | DocumentContent():
                return self._signed(self._media(part), part, (part.provider_data or {}).get("thoughtSignature"))
            case VendorContent():
                return None if part.kind == METADATA_KIND else dict(part.provider_data or {})
            case ToolResult():
                raise self._cannot(part, "in an assistant's message")
            case _:
                assert_never(part)

    def _signed(self, wire: dict[str, Any], part: Part, signature: str | None) -> dict[str, Any]:
        if signature and is_own(part, self._home):
            wire["thoughtSignature"] = signature
        return wire

    def _call(self, call: ToolCall) -> dict[str, Any]:
        arguments: Mapping[str, Any] = {**call.arguments}  # a plain dict is written faster than a frozen one
        if call.invalid_arguments is not None:
            arguments = {
                "invalid_arguments": call.invalid_arguments
            }  # it must be an object; the model sees its mistake
        return {**_named(*self._naming(call)), "args": arguments}

    def _takes_id(self, call: ToolCall) -> bool:
        return self._any_ids or is_own(call, self._home)

    def _naming(self, call: ToolCall) -> tuple[str, str, bool]:
        """What the bytes of a call's result depend on besides the result itself."""
        return call.id, call.name, self._takes_id(call)

    def _answers(self, messages: Sequence[Message], turn: Message | None, asked: _Named) -> tuple[bytes, bytes]:
        """The results of a turn's calls: from the last time if they answered the same calls, or anew."""
        known: list[_Written | None] = [notes_on(message).get(self.key) for message in messages]
        if len(known) == 1 and (only := known[0]) is not None and only[1] == asked:
            return only[0]
        written = [kept for kept in known if kept is not None]
        if len(written) < len(known) or tuple(named for _, answered in written for named in answered) != asked:
            written = self._plain_answers(messages, asked)
        if written:
            return _USER, b",".join([encoded for (_, encoded), _ in written])
        return _USER, b",".join(self._results(messages, {} if turn is None else _by_id(turn)))

    def _plain_answers(self, messages: Sequence[Message], asked: _Named) -> list[_Written]:
        """Results that are only text, one in each message, in the order of their calls; none if they are not."""
        written: list[_Written] = []
        if len(messages) != len(asked):
            return written
        for message, naming in zip(messages, asked, strict=True):
            said = _words_of(message)
            if said is None or said[0] != naming[0]:
                return []
            _, text, failed = said
            response = {**_named(*naming), "response": {"error" if failed else "result": text}}
            written.append(self._kept(message, as_json({"functionResponse": response}), (naming,)))
        return written

    def _results(self, messages: Sequence[Message], calls: Mapping[str, ToolCall]) -> list[bytes]:
        """Responses in the order of their calls, since they may have no ids; then whatever cannot stand inside them."""
        by_message = [(message, _results_in(message)) for message in messages]
        results = [result for _, own in by_message for result in own]
        if [result.tool_call_id for result in results] == list(calls):
            return self._results_in_order(by_message, calls)
        following = [part for result in results for part in self._following(result, calls)]
        order = {id: position for position, id in enumerate(calls)}
        results.sort(key=lambda result: order[result.tool_call_id])
        responses = [as_json(response) for response in self._responses(results, calls)]
        return [*responses, *map(as_json, following)]

    def _results_in_order(
        self, by_message: Sequence[tuple[Message, list[ToolResult]]], calls: Mapping[str, ToolCall]
    ) -> list[bytes]:
        outside: list[tuple[list[dict[str, Any]], bool]] = []
        for _, results in by_message:
            before, self.warnings = self.warnings, {}
            following = [part for result in results for part in self._following(result, calls)]
            outside.append((following, not following and not self.warnings))
            self.warnings = {**before, **self.warnings}
        responses: list[bytes] = []
        for (message, results), (_, keep) in zip(by_message, outside, strict=True):
            before, self.warnings = self.warnings, {}
            encoded = b",".join(map(as_json, self._responses(results, calls)))
            named = tuple([self._naming(calls[result.tool_call_id]) for result in results])
            self._kept(message, encoded, named, keep=keep and not self.warnings)
            self.warnings = {**before, **self.warnings}
            responses.append(encoded)
        return [*responses, *(as_json(part) for following, _ in outside for part in following)]

    def _following(self, result: ToolResult, calls: Mapping[str, ToolCall]) -> list[dict[str, Any]]:
        """What a result holds that must follow it, and whose it is."""
        if isinstance(result.content, str):
            return []
        media = [part for part in result.content if _is_media(part) and not self._fits_inside(part)]
        if not media:
            return []
        return [{"text": f"Returned by {sent_name(calls[result.tool_call_id].name)}:"}, *map(self._media, media)]

    def _fits_inside(self, part: Media) -> bool:
        return self._family.media_in_results and _media_type(part) in _IN_RESULTS

    def _responses(self, results: Iterable[ToolResult], calls: Mapping[str, ToolCall]) -> list[dict[str, Any]]:
        return [{"functionResponse": self._response(result, calls)} for result in results]

    def _response(self, result: ToolResult, calls: Mapping[str, ToolCall]) -> dict[str, Any]:
        text: list[str] = []
        inside: list[dict[str, Any]] = []
        if isinstance(result.content, str):
            text.append(result.content)
        else:
            for part in result.content:
                if isinstance(part, TextContent):
                    text.append(part.text)
                elif isinstance(part, DocumentContent) and part.text is not None:
                    text.append(as_text(part))
                elif self._fits_inside(part):
                    inside.append(self._media(part))
        written: dict[str, Any] = {
            **_named(*self._naming(calls[result.tool_call_id])),
            "response": {"error" if result.is_error else "result": "".join(text)},
        }
        if inside:
            written["parts"] = inside
        return written

    def _media(self, part: Media) -> dict[str, Any]:
        if isinstance(part, ImageContent) and part.detail not in (None, "auto"):
            self._warn(NO_DETAIL)
        if isinstance(part, DocumentContent) and part.text is not None:
            return {"text": as_text(part)}
        if isinstance(part, DocumentContent) and part.title is not None:
            self._warn(NO_TITLE)
        media_type = _media_type(part)
        if isinstance(part, AudioContent) or part.data is not None:
            return {"inlineData": {"mimeType": media_type, "data": base64_text(part.data or b"")}}
        return {
            "fileData": {"fileUri": part.url} if media_type is None else {"fileUri": part.url, "mimeType": media_type}
        }

    def _cannot(self, part: Part, where: str) -> errors.UnsupportedFeatureError:
        return cannot_take(part, where, provider=self._home.provider, model=self._home.model)


def _named(id: str, name: str, takes_id: bool) -> dict[str, Any]:
    """What a call and its response have in common: the id, if the vendor takes it, and the name."""
    sent = sent_id(id) if takes_id else None
    return {"name": sent_name(name)} if sent is None else {"id": sent, "name": sent_name(name)}


def _by_id(turn: Message) -> dict[str, ToolCall]:
    return {call.id: call for call in turn.tool_calls or ()}


def _words_of(message: Message) -> tuple[str | None, str, bool] | None:
    """Which call a tool's message answers, in which words, and whether it failed; None if there is more in it."""
    content = message.content
    if isinstance(content, str):
        return message.tool_call_id, content, False
    only = content[0] if len(content) == 1 else None
    if isinstance(only, ToolResult) and isinstance(only.content, str):
        return only.tool_call_id, only.content, only.is_error
    return None


def _results_in(message: Message) -> list[ToolResult]:
    return [part for part in message.parts if isinstance(part, ToolResult)]


def _is_media(part: Part) -> TypeGuard[Media]:
    return isinstance(part, ImageContent | AudioContent) or (isinstance(part, DocumentContent) and part.text is None)


def _extension(url: str) -> str:
    try:
        return urlsplit(url).path.rpartition(".")[2].lower()
    except ValueError:  # no address at all, which is for the vendor to say
        return ""


def _media_type(part: Media) -> str | None:
    """What it was said to be, else what its address looks like, else the usual. The vendor knows its own files."""
    if part.media_type is not None:
        return part.media_type
    url = None if isinstance(part, AudioContent) else part.url
    guessed = None if url is None else _BY_EXTENSION.get(_extension(url))
    if guessed is not None or (url is not None and url.startswith(_KNOWN_TO_VENDOR)):
        return guessed
    match part:
        case ImageContent():
            return "image/jpeg" if url is not None else "image/png"
        case AudioContent():
            return "audio/wav"
        case DocumentContent():
            return "application/pdf"
