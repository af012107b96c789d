"""Writing a request as the JSON that Chat Completions takes.

Messages are immutable, so the bytes of each are made once and kept with it: a turn of a long conversation costs what
is new in it. What the API cannot take raises before anything is sent; a mere setting that is left out is a warning.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, assert_never

from ... import errors
from ...types import (
    AgentRequest,
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
from ...types.notes import first_notes, kept_notes
from ..beginnings import Begun, begun
from ..history import FOREIGN_BLOCK_DROPPED, is_home, repair
from ..writing import (
    LARGE,
    arguments_text,
    as_json,
    as_markdown,
    as_text,
    base64_text,
    cannot_take,
    check_extra,
    data_url,
    fitting_id,
    fitting_name,
    home_of,
    object_json,
    text_json,
    with_commas,
    words_json,
)
from .dialect import API, LONGEST_NAME, SIGNED_CONTENT, CacheMarks, Dialect, Fragment, fits
from .settings import write_settings

_ASSISTANT, _SYSTEM, _TOOL = Role.ASSISTANT, Role.SYSTEM, Role.TOOL  # looked up once: enums are slow to ask
_USER = b'{"role":"user","content":'
_TURN = b'{"role":"assistant","content":'
_AUDIO_FORMATS = {"audio/wav": "wav", "audio/x-wav": "wav", "audio/mpeg": "mp3", "audio/mp3": "mp3"}
_OWN_KEYS = ("messages", "model", "stream")
_OK = b'{"role":"assistant","content":"OK"}'
"""Said by the assistant where a vendor insists on its turn between a tool's message and a user's."""
ATTACHED = "The result is attached to the next message."
SOUND_LEFT_OUT = "the sound of an assistant's answer was left out of the conversation; its words were told"
MARKS_LEFT_OUT = "more parts are marked for the prompt cache than the vendor takes; the first marks were left out"


def encode_body(
    request: AgentRequest, dialect: Dialect, *, stream: bool, foreign_thinking: Literal["drop", "text"] = "drop"
) -> tuple[bytes, tuple[str, ...]]:
    """The body, and what had to be left out of it."""
    check_extra(request, _OWN_KEYS)
    home = home_of(dialect.name, API, request.model or "")
    said = request.to_messages()
    known = None if _marks_of(dialect, home.model) else begun(said, _key(dialect, home.model))
    messages, repairs = repair(said, home, foreign_thinking, begun=known)
    warnings = [*repairs]
    body = write_settings(request, dialect, stream=stream, warn=warnings)
    body.update(request.extra)
    conversation = Conversation(dialect, home, messages, request.cache, warnings)
    written = conversation.write(known if messages is said else None)
    whole = b"".join([object_json(body)[:-1], b',"messages":[', *with_commas(written), b"]}"])
    return whole, tuple(dict.fromkeys(warnings))


def _key(dialect: Dialect, model: str) -> str:
    """Of the notes on messages that hold their bytes."""
    return f"{API}/{dialect.name}/{dialect.ways}/{model}"


def _marks_of(dialect: Dialect, model: str) -> CacheMarks | None:
    marks = dialect.cache_marks
    return marks if marks is not None and fits(marks.models, model) else None


class Conversation:
    """The messages of one request; collects what is left out on the way."""

    def __init__(
        self,
        dialect: Dialect,
        home: Origin,
        messages: Sequence[Message],
        cache: Literal["short", "long"] | None,
        warnings: list[str],
    ) -> None:
        self._dialect = dialect
        self._home = home
        self._messages = messages
        self._key = _key(dialect, home.model)
        self._warnings = warnings
        self._after_tool = False
        self._attached: list[dict[str, Any]] = []
        """What results hold besides text, to follow them in a user's message."""
        models = dialect.developer_models
        self._system_role = "developer" if models and fits(models, home.model) else "system"
        self._system = b'{"role":"' + self._system_role.encode() + b'","content":'
        self._marks = _marks_of(dialect, home.model)
        self._marked: dict[int, Literal["short", "long"]] = {}
        """Messages that the request as a whole marks, by position."""
        self._unmarked: frozenset[int] = frozenset()
        """Parts whose marks are too many, by identity."""
        if self._marks is not None:
            self._choose_marks(cache, self._marks.most, self._marks.whole_requests)

    def write(self, begun: Begun | None = None) -> list[bytes]:
        """The messages as JSON, of a beginning that is known several in one piece: it is not written again."""
        pieces: list[bytes] = []
        if begun is None:
            self._write(self._messages, pieces)
        else:
            self._write(begun.messages[: begun.first], pieces)
            pieces += begun.pieces
            self._after_tool = bool(begun.state)
            added: list[bytes] = []
            self._write(begun.added, added)
            begun.keep(b",".join(added), self._after_tool, separator=b",")
            pieces += added
            self._write(begun.rest, pieces)
        if self._after_tool or self._attached:
            self._write_attached(pieces, None)
        return pieces

    def _write(self, messages: Sequence[Message], pieces: list[bytes]) -> None:
        key, marked, attached = self._key, self._marked, self._attached
        openings = {_SYSTEM: self._system, Role.USER: _USER, _ASSISTANT: _TURN}
        plain = self._dialect.user_after_tool and not marked and not self._unmarked
        for position, message in enumerate(messages):
            try:
                notes = kept_notes(message)
            except AttributeError:
                notes = first_notes(message)
            if plain and not attached:
                known = notes.get(key)
                if known is None and (opening := openings.get(message.role)) is not None:
                    known = words_json(message, opening, b"}")
                    if known is not None and len(known) <= LARGE:
                        notes[key] = known
                if known is not None:
                    pieces.append(known)
                    continue
            if message.role is _TOOL:
                self._after_tool = True
            elif self._after_tool or attached:
                self._after_tool = False
                self._write_attached(pieces, message.role)
            if encoded := self._encoded(message, marked.get(position), notes):
                pieces.append(encoded)

    def _write_attached(self, pieces: list[bytes], next_role: Role | None) -> None:
        """After the last of a turn's results: what they hold besides text."""
        if not self._dialect.user_after_tool and (self._attached or next_role is Role.USER):
            pieces.append(_OK)
        if self._attached:
            pieces.append(as_json({"role": "user", "content": self._attached}))
            self._attached.clear()

    def _choose_marks(self, cache: Literal["short", "long"] | None, most: int, whole_requests: bool) -> None:
        """A vendor takes a few marks only. Those of parts come first, and of these the last."""
        marked = [id(part) for message in self._messages for part in _parts_within(message) if part.cache is not None]
        if len(marked) > most:
            self._unmarked = frozenset(marked[:-most])
            self._warnings.append(MARKS_LEFT_OUT)
        if cache is None or not whole_requests:
            return
        places = [len(self._messages) - 1]
        places += [at for at, message in enumerate(self._messages) if message.role is Role.SYSTEM][-1:]
        for place in places[: max(0, most - len(marked))]:
            self._marked[place] = cache

    def _encoded(self, message: Message, mark: Literal["short", "long"] | None, notes: dict[str, Any]) -> bytes:
        """The message as JSON; several, joined by commas, where the API wants it in pieces; none for an empty one."""
        key = self._key if mark is None else f"{self._key}/{mark}"
        if not self._unmarked and (known := notes.get(key)) is not None:
            return known  # type: ignore[no-any-return]  # a note is whatever was left
        warned, attached = len(self._warnings), len(self._attached)
        encoded = self._plainly(message) if mark is None else None
        if encoded is None:
            encoded = b",".join([as_json(written) for written in self._write_message(message, mark)])
        # A warning must come again with the next request, so a message that causes one is not kept.
        unchanged = warned == len(self._warnings) and attached == len(self._attached)
        if unchanged and encoded and len(encoded) <= LARGE and not self._unmarked:
            notes[key] = encoded
        return encoded

    def _plainly(self, message: Message) -> bytes | None:
        """A message of words and calls alone, in one go: of such are most of a conversation's. None for any other."""
        content, role = message.content, message.role
        if role is _TOOL:
            id = message.tool_call_id
            if id is None or not isinstance(content, str):
                return None
            start = b'{"role":"tool","tool_call_id":' + text_json(self._id(id)) + b',"content":'
        elif message.name is not None or not content:
            return None
        elif role is _ASSISTANT:
            start = _TURN
        else:
            start = _USER if role is not _SYSTEM else self._system
        return start + text_json(content) + b"}" if isinstance(content, str) else self._plain_turn(content, role)

    def _plain_turn(self, content: Sequence[Part], role: Role) -> bytes | None:
        if role is not _ASSISTANT or self._dialect.reasoning_filler is not None:
            return None
        words = ""
        calls: list[dict[str, Any]] = []
        for part in content:
            if part.cache is not None:
                return None
            if isinstance(part, TextContent):
                words += part.text
            elif isinstance(part, ToolCall) and part.provider_data is None and part.invalid_arguments is None:
                function = {"name": fitting_name(part.name, LONGEST_NAME), "arguments": arguments_text(part.arguments)}
                calls.append({"id": self._id(part.id), "type": "function", "function": function})
            else:
                return None
        if calls:
            return as_json({"role": "assistant", "content": words or None, "tool_calls": calls})
        return _TURN + text_json(words) + b"}" if words else None

    def _write_message(self, message: Message, mark: Literal["short", "long"] | None) -> list[dict[str, Any]]:
        match message.role:
            case Role.ASSISTANT:
                written = self._assistant(message)
            case Role.TOOL:
                written = [self._result(part) for part in message.parts if isinstance(part, ToolResult)]
            case Role.USER | Role.SYSTEM:
                system = message.role is Role.SYSTEM
                content = self._content(
                    message.parts, "in a system message" if system else "in a user's message", system
                )
                written = [{"role": self._system_role if system else "user", "content": content}]
                self._sign(written[0], message)
            case _:
                assert_never(message.role)
        if mark is not None and written:
            _mark_end(written[-1], self._fragment(mark))
        return written

    def _sign(self, said: dict[str, Any], message: Message) -> None:
        if message.name is None:
            return
        if self._dialect.refuses("name", self._home.model):
            self._warnings.append(f"the name of a message was left out: {self._dialect.name} does not take it")
        else:
            said["name"] = message.name

    def _assistant(self, message: Message) -> list[dict[str, Any]]:
        said: dict[str, Any] = {"role": "assistant"}
        text: list[str] = []
        thinking: list[str] = []
        blocks: list[dict[str, Any]] = []
        calls: list[dict[str, Any]] = []
        mark: Fragment = {}
        spoken = False
        for part in message.parts:
            match part:
                case TextContent():
                    text.append(part.text)
                case ThinkingContent():
                    thinking.append(part.thinking)
                    blocks += (part.provider_data or {}).get(SIGNED_CONTENT, ())
                    self._replay(said, part)
                case ToolCall():
                    calls.append(self._call(part))
                case RefusalContent():
                    if self._dialect.refusals:
                        said["refusal"] = said.get("refusal", "") + part.refusal
                    else:
                        text.append(part.refusal)
                case CodeContent() | DiffContent():
                    text.append(as_markdown(part))
                case VendorContent():
                    if self._dialect.replayed.isdisjoint(part.provider_data or ()):
                        self._warnings.append(FOREIGN_BLOCK_DROPPED)
                    self._replay(said, part)
                case AudioContent():
                    spoken = self._say(said, part) or spoken
                case ImageContent() if is_home(part, self._home) and "images" in self._dialect.replayed:
                    said.setdefault("images", []).append(_image(part))
                case ToolResult() | ImageContent() | DocumentContent():
                    raise self._cannot(part, "in an assistant's message")
                case _:
                    assert_never(part)
            if part.cache is not None:
                mark = self._mark(part) or mark
        self._fill(said, [] if spoken else text, thinking, blocks, calls)
        if len(said) == 1:
            return []
        self._sign(said, message)
        if mark:
            _mark_end(said, mark)
        return [said]

    def _fill(
        self,
        said: dict[str, Any],
        text: list[str],
        thinking: list[str],
        blocks: list[dict[str, Any]],
        calls: list[dict[str, Any]],
    ) -> None:
        """Content, calls and reasoning, once all of them are known; nothing if the turn says nothing."""
        words = "".join(text)
        if not words and not calls and said.keys() <= {"role", *self._dialect.replayed} and "images" not in said:
            said.clear()
            said["role"] = "assistant"
            return
        key = self._dialect.reasoning_key
        reasoning = "".join(thinking)
        if key == "content" and reasoning:
            blocks = [{"type": "thinking", "thinking": [{"type": "text", "text": reasoning}]}]
        if blocks and words:
            blocks = [*blocks, {"type": "text", "text": words}]
        said["content"] = blocks or words or None
        if key is not None and key != "content":
            if reasoning:
                said[key] = reasoning
            elif calls and self._dialect.reasoning_filler is not None:
                said[key] = self._dialect.reasoning_filler
        if calls:
            said["tool_calls"] = calls

    def _replay(self, said: dict[str, Any], part: Part) -> None:
        """What only this vendor understands goes back to it; the conversation holds no other's by now."""
        for key, value in (part.provider_data or {}).items():
            if key in self._dialect.replayed:
                earlier = said.get(key)
                said[key] = [*earlier, *value] if isinstance(earlier, list | tuple) else value

    def _say(self, said: dict[str, Any], part: AudioContent) -> bool:
        """An answer in sound is known to its vendor by its id. Elsewhere only its words are told."""
        data = part.provider_data or {}
        if is_home(part, self._home) and data.get("id"):
            said["audio"] = {"id": data["id"]}
            return True
        self._warnings.append(SOUND_LEFT_OUT)
        return False

    def _call(self, call: ToolCall) -> dict[str, Any]:
        opaque: Mapping[str, Any] = (call.provider_data or {}) if is_home(call, self._home) else {}
        id, name = self._id(call.id), fitting_name(call.name, LONGEST_NAME)
        if opaque.get("type") == "custom":
            return {"id": id, "type": "custom", "custom": {"name": name, "input": call.arguments.get("input", "")}}
        arguments = call.invalid_arguments if call.invalid_arguments is not None else arguments_text(call.arguments)
        written: dict[str, Any] = {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}
        written.update({key: value for key, value in opaque.items() if key in self._dialect.replayed})
        return written

    def _id(self, id: str) -> str:
        return fitting_id(id, self._dialect.call_ids.form, self._dialect.call_ids.length)

    def _result(self, result: ToolResult) -> dict[str, Any]:
        id = self._id(result.tool_call_id)
        text, others = result.text, _besides_text(result)
        if others and not (self._dialect.result_images and all(isinstance(part, ImageContent) for part in others)):
            self._attached.append(
                {"type": "text", "text": f"Attached to the result of {result.name or 'the call'} ({id}):"}
            )
            self._attached += [self._block(part, "in a tool's result") for part in others]
            text, others = text or ATTACHED, []
        if result.is_error:
            text = f"Error: {text}"
        content: Any = text
        if others:
            content = [*([{"type": "text", "text": text}] if text else []), *map(_image, others)]
        written = {"role": "tool", "tool_call_id": id, "content": content}
        for part in reversed((*_inside(result), result)):
            if mark := self._mark(part):
                _mark_end(written, mark)
                break
        return written

    def _content(self, parts: Sequence[Part], where: str, only_text: bool) -> Any:
        if len(parts) == 1 and isinstance(parts[0], TextContent) and not self._mark(parts[0]):
            return parts[0].text
        blocks = []
        for part in parts:
            if isinstance(part, TextContent) and not part.text:
                continue
            block = self._block(part, where)
            if only_text and block["type"] != "text":
                raise self._cannot(part, where)
            blocks.append({**block, **self._mark(part)})
        return blocks

    def _block(self, part: Part, where: str) -> dict[str, Any]:
        match part:
            case TextContent():
                return {"type": "text", "text": part.text}
            case ImageContent():
                return _image(part)
            case AudioContent():
                return self._audio(part)
            case DocumentContent():
                return self._document(part)
            case CodeContent() | DiffContent():
                return {"type": "text", "text": as_markdown(part)}
            case ThinkingContent() | ToolCall() | ToolResult() | RefusalContent() | VendorContent():
                raise self._cannot(part, where)
            case _:
                assert_never(part)

    def _audio(self, part: AudioContent) -> dict[str, Any]:
        format = _AUDIO_FORMATS.get(part.media_type or "audio/wav")
        if format is None:
            raise self._cannot(part, f"as {part.media_type}; it takes wav and mp3")
        return {"type": "input_audio", "input_audio": {"data": base64_text(part.data), "format": format}}

    def _document(self, part: DocumentContent) -> dict[str, Any]:
        if part.text is not None:
            return {"type": "text", "text": as_text(part) or "(an empty document)"}
        if part.data is not None:
            data = data_url(part.data, part.media_type or "application/pdf")
        elif part.url is not None and self._dialect.document_urls:
            data = part.url
        else:
            raise self._cannot(part, "by URL; pass its bytes as data")
        return {"type": "file", "file": {"filename": part.title or "document", "file_data": data}}

    def _mark(self, part: Part) -> Fragment:
        if part.cache is None or self._marks is None or id(part) in self._unmarked:
            return {}
        return self._fragment(part.cache)

    def _fragment(self, mark: Literal["short", "long"]) -> Fragment:
        assert self._marks is not None
        return self._marks.short if mark == "short" else self._marks.long

    def _cannot(self, part: Part, where: str) -> errors.UnsupportedFeatureError:
        return cannot_take(part, where, provider=self._dialect.name, model=self._home.model)


def _parts_within(message: Message) -> Iterator[Part]:
    for part in () if isinstance(message.content, str) else message.content:
        if isinstance(part, ToolResult):
            yield from _inside(part)
        yield part


def _inside(result: ToolResult) -> Sequence[Part]:
    return () if isinstance(result.content, str) else result.content


def _besides_text(result: ToolResult) -> list[Part]:
    return [part for part in _inside(result) if not isinstance(part, TextContent)]


def _mark_end(written: dict[str, Any], mark: Fragment) -> None:
    """The mark stands on a message's last content block; a message that only calls has none."""
    content = written.get("content")
    if isinstance(content, str) and content:
        written["content"] = [{"type": "text", "text": content, **mark}]
    elif isinstance(content, list) and content:
        content[-1] = {**content[-1], **mark}


def _image(part: Part) -> dict[str, Any]:
    assert isinstance(part, ImageContent)
    url = part.image_url
    if url is None:
        url = data_url(part.image_data or b"", part.media_type or "image/png")
    image: dict[str, Any] = {"url": url}
    if part.detail is not None:
        image["detail"] = part.detail
    return {"type": "image_url", "image_url": image}
