"""Decoding a stream of chat completion chunks into events.

The decoder is pushed bytes and emits events; the response is the fold of those events. Calls are ended, and the
message with them, only when the stream's terminal event has come, so nothing of a broken stream can be acted upon.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic_core import to_json
from typing_extensions import override

from ...types import AgentRequest, AgentResponse, StreamEvent, ToolCall
from ...wire import parse_json
from ..alike import Likeness
from ..decoding import DecoderBase
from ..failures import read_complaint, request_id
from .answer import (
    VENDOR_KEYS,
    Reader,
    call_id,
    finish_reason,
    function_in,
    is_custom,
    read_citations,
    read_logprobs,
    reasoning_text,
    signed,
    split_content,
    stop_reason,
    text_part,
)
from .dialect import OPAQUE_KEYS, Dialect
from .usage import read_usage

_ASIDE = "x_groq"
"""Where a vendor says of a stream what others say in its chunks: why it broke off, and what it cost."""

# Where the blocks of an answer stand, so that a streamed answer has the order of an unstreamed one. What else it may
# hold comes after the last call.
_THINKING, _TEXT, _REFUSAL, _FIRST_CALL = 0, 1, 2, 3


class _GrowingCall:
    """A call whose arguments are still arriving."""

    __slots__ = ("arguments", "id", "name", "number", "opaque", "position", "started")

    def __init__(self, number: Any, position: int) -> None:
        self.number = number
        """The index the vendor gave it, which some give to several calls and some to none."""
        self.position = position
        self.id = ""
        self.name = ""
        self.arguments: list[str] = []
        self.opaque: dict[str, Any] = {}
        self.started = False


_BESIDE_WORDS = frozenset(("error", "citations", "search_results", _ASIDE))
"""Keys of a chunk that is not plain."""
_SAID = frozenset(("content", "role"))
"""Keys of a delta that hold nothing but what is said, and by whom."""
_LIKENESS = Likeness("content", "id", "created", "obfuscation", "p")
"""Chunks of words differ in their ids, times and padding."""
_words = StreamEvent._words


class _Gathered:
    """What comes beside words and calls, until the end says that it is whole."""

    __slots__ = (
        "annotations", "audio", "blocks", "details", "images", "logprobs", "opaque", "ran", "sound", "sources",
        "summary",
    )  # fmt: skip

    def __init__(self) -> None:
        self.opaque: dict[str, Any] = {}
        self.details: list[dict[str, Any]] = []
        self.summary: list[list[dict[str, Any]]] = []
        """Pieces of each part of the thinking, where it may be signed."""
        self.sources: dict[str, Any] = {}
        """Sources that stand beside the message; each chunk repeats them."""
        self.annotations: list[dict[str, Any]] = []
        self.images: list[dict[str, Any]] = []
        self.blocks: list[dict[str, Any]] = []
        self.ran: dict[str, list[Any]] = {}
        self.audio: dict[str, Any] = {}
        self.sound: dict[str, list[str]] = {}
        """Pieces of the audio's data and transcript."""
        self.logprobs: list[dict[str, Any]] = []


class ChatDecoder(DecoderBase):
    """The decoder of a chat completion's stream."""

    __slots__ = (
        "_beside",
        "_calls",
        "_counts",
        "_dialect",
        "_finish_reason",
        "_id",
        "_model",
        "_reader",
        "_refused",
        "_started",
        "_stop_word",
        "_text",
        "_thinking",
    )

    def __init__(
        self, dialect: Dialect, headers: Mapping[str, str], request: AgentRequest, secrets: tuple[str, ...]
    ) -> None:
        super().__init__(dialect.name, headers, request, secrets)
        self._dialect = dialect
        self._started = False
        self._model = ""
        self._id = ""
        self._finish_reason: str | None = None
        self._stop_word: str | None = None
        """Why the answer ended, where the vendor says it in another place."""
        self._counts: dict[str, Any] = {}
        """The latest that was said about usage; some vendors say it with every chunk."""
        self._calls: list[_GrowingCall] = []
        self._text: list[str] = []
        self._thinking: list[str] = []
        self._refused = False
        self._beside = _Gathered()
        self._reader = Reader(dialect, request, "")

    @override
    def _take_end(self, events: list[StreamEvent]) -> None:
        counted = bool(self._counts) or not self._dialect.stream_usage
        complete = self._finish_reason is not None and counted and not self._sse.pending
        if complete and not self._dialect.done_sentinel:
            self._finish(events)

    @override
    def _take(self, payload: bytes, events: list[StreamEvent]) -> None:
        if self.done:
            return  # whatever follows the end is not part of the answer
        if payload == b"[DONE]":
            if self.failure is None:
                self._finish(events)
            return
        chunk = parse_json(payload)
        if self._started and self._is_plain(chunk, events):
            self._goes_on(_LIKENESS, payload, "text_delta", self._text, _TEXT)
            return
        if self.failure is not None:
            self._take_usage(chunk)  # some vendors report what a failed answer cost after the failure
            return
        if chunk.get("error") or _ASIDE in chunk:
            aside = chunk.get(_ASIDE)
            failed = aside if isinstance(aside, dict) and aside.get("error") else chunk
            if failed.get("error"):
                self._complain(failed)
                self._take_usage(failed)
                return
        choices = chunk.get("choices")
        if choices:
            if not self._started:  # not at the very first chunk: some vendors send one without model and id before it
                self._open(chunk)
            for choice in choices:
                self._take_choice(choice, chunk, events)
            if "citations" in chunk or "search_results" in chunk:
                for key in ("search_results", "citations"):
                    if chunk.get(key):
                        self._beside.sources[key] = chunk[key]
        elif choices is None and "usage" not in chunk and chunk.get("object") != "chat.completion.chunk":
            if read_complaint(chunk) is None:
                raise ValueError("it is not a chat completion chunk")
            self._complain(chunk)
            return
        if chunk.get("usage"):
            self._take_usage(chunk)

    def _is_plain(self, chunk: dict[str, Any], events: list[StreamEvent]) -> bool:
        """Take a chunk that brings a few words and nothing else, as nearly all do; False for any other."""
        choices = chunk.get("choices")
        if not choices or len(choices) > 1 or self.failure is not None or not _BESIDE_WORDS.isdisjoint(chunk):
            return False
        choice = choices[0]
        delta = choice.get("delta")
        if (
            not delta
            or (len(delta) > 1 and any(value for key, value in delta.items() if key not in _SAID))
            or chunk.get("usage")
            or choice.get("finish_reason")
            or choice.get("index")
            or choice.get("logprobs")
            or choice.get("error")
        ):
            return False
        text = delta.get("content")
        if type(text) is not str or not text:
            return False
        self._text.append(text)
        events.append(_words("text_delta", text, _TEXT, chunk))
        return True

    def _open(self, chunk: dict[str, Any]) -> None:
        self._started = True
        self._model = chunk.get("model") or self._request.model or ""
        self._id = chunk.get("id") or ""
        if not self._request.model:
            self._reader = Reader(self._dialect, self._request, self._model)
        facts = AgentResponse(
            provider=self._dialect.name,
            model=self._model,
            id=self._id or None,
            request_id=request_id(self._headers),
        )
        self._start(facts, chunk)

    @override
    def partial(self) -> AgentResponse:
        if not self.done and (usage := read_usage(self._counts)) is not None:
            self._fold.add(StreamEvent.usage_event(usage))  # what was told of the cost before it broke off
        return super().partial()

    def _take_usage(self, chunk: dict[str, Any]) -> None:
        told = chunk.get("usage")
        if told and isinstance(told, dict):
            self._counts = told

    def _take_choice(self, choice: dict[str, Any], chunk: dict[str, Any], events: list[StreamEvent]) -> None:
        if choice.get("index"):
            return  # only the first of several answers is ours
        if choice.get("error"):
            self._complain(choice)
            return
        delta = choice.get("delta")
        if delta:
            content = delta.get("content")
            if content and type(content) is str:
                self._text.append(content)
                events.append(_words("text_delta", content, _TEXT, chunk))
                if len(delta) > 1:
                    for key, value in delta.items():
                        if value and key not in _SAID:
                            self._take_rest(delta, chunk, events)
                            break
            else:
                self._take_rest(delta, chunk, events)
                if content:
                    self._take_blocks(content, chunk, events)
        if choice.get("logprobs"):
            self._beside.logprobs += read_logprobs(choice["logprobs"])
        reason = choice.get("finish_reason")
        if reason:
            self._finish_reason = reason
            self._stop_word = finish_reason(choice)
            if not chunk.get("usage") and isinstance(aside := chunk.get(_ASIDE), dict):
                self._take_usage(aside)

    def _say(self, text: str, chunk: dict[str, Any], events: list[StreamEvent]) -> None:
        self._text.append(text)
        events.append(StreamEvent.text_delta(text, index=_TEXT, raw=chunk))

    def _take_blocks(self, content: Any, chunk: dict[str, Any], events: list[StreamEvent]) -> None:
        text, thinking, summary, others = split_content(content)
        self._take_summary(summary)
        if thinking:
            self._think(thinking, chunk, events)
        if text:
            self._say(text, chunk, events)
        self._beside.blocks += others

    def _take_rest(self, delta: dict[str, Any], chunk: dict[str, Any], events: list[StreamEvent]) -> None:
        """Everything a delta may hold besides text."""
        thinking = reasoning_text(delta)
        if thinking:
            self._think(thinking, chunk, events)
        if delta.get("refusal"):
            self._refused = True
            events.append(StreamEvent.refusal_delta(delta["refusal"], index=_REFUSAL, raw=chunk))
        for detail in delta.get("reasoning_details") or ():
            if isinstance(detail, dict):
                self._take_detail(detail)
        for key in OPAQUE_KEYS:
            if key != "reasoning_details" and delta.get(key):
                self._beside.opaque[key] = delta[key]
        self._beside.annotations += delta.get("annotations") or ()
        self._beside.images += delta.get("images") or ()
        for key in VENDOR_KEYS:
            if delta.get(key):
                _take_runs(self._beside.ran.setdefault(key, []), delta[key])
        if delta.get("audio"):
            self._take_audio(delta["audio"], chunk, events)
        for call in delta.get("tool_calls") or ():
            self._take_call(call, chunk, events)
        legacy = delta.get("function_call")
        if legacy and not delta.get("tool_calls") and (legacy.get("name") or self._calls):
            self._take_call({"index": 0, "function": legacy}, chunk, events)

    def _think(self, text: str, chunk: dict[str, Any], events: list[StreamEvent]) -> None:
        self._thinking.append(text)
        events.append(StreamEvent.thinking_delta(text, index=_THINKING, raw=chunk))

    def _take_detail(self, detail: dict[str, Any]) -> None:
        """Pieces of one detail carry the same type, index and id; together they are what must be sent back."""
        for known in self._beside.details:
            if (
                known.get("type") == detail.get("type")
                and known.get("index") == detail.get("index")
                and (known.get("id") is None or detail.get("id") in (None, known["id"]))
            ):
                for key, value in detail.items():
                    if (
                        key in ("text", "summary", "data")
                        and isinstance(known.get(key), str)
                        and isinstance(value, str)
                    ):
                        known[key] += value
                    elif value is not None:
                        known[key] = value
                return
        self._beside.details.append(dict(detail))

    def _take_summary(self, summary: list[dict[str, Any]]) -> None:
        """Pieces of thinking that may be signed: the signature ends what it signs."""
        known = self._beside.summary
        for piece in summary:
            if known and not known[-1][-1].get("signature"):
                known[-1].append(piece)
            else:
                known.append([piece])

    def _take_audio(self, piece: dict[str, Any], chunk: dict[str, Any], events: list[StreamEvent]) -> None:
        """Sound comes in pieces of base64, and its words with it."""
        for key, value in piece.items():
            if key not in ("data", "transcript"):
                self._beside.audio[key] = value
            elif value:
                self._beside.sound.setdefault(key, []).append(value)
        if piece.get("transcript"):
            self._say(piece["transcript"], chunk, events)

    def _take_call(self, piece: dict[str, Any], chunk: dict[str, Any], events: list[StreamEvent]) -> None:
        function = function_in(piece)
        call = self._call_for(piece, function)
        call.id = call.id or piece.get("id") or ""
        call.name = call.name or function.get("name") or ""
        call.opaque.update({key: piece[key] for key in OPAQUE_KEYS if piece.get(key)})
        if is_custom(piece):
            call.opaque["type"] = "custom"
        index = _FIRST_CALL + call.position
        if not call.started and call.name:
            call.started = True
            call.id = call_id(call.id, self._id, call.position)
            started = ToolCall(id=call.id, name=self._reader.name(call.name))
            events.append(StreamEvent.tool_call_start(started, index=index, raw=chunk))
            if call.arguments:  # they came before the name
                self._tell_arguments(call, "".join(call.arguments), chunk, events)
        arguments = function.get("arguments")
        if arguments:
            text = arguments if isinstance(arguments, str) else to_json(arguments).decode()
            call.arguments.append(text)
            if call.started:
                self._tell_arguments(call, text, chunk, events)

    def _tell_arguments(self, call: _GrowingCall, text: str, chunk: dict[str, Any], events: list[StreamEvent]) -> None:
        name, index = self._reader.name(call.name), _FIRST_CALL + call.position
        events.append(StreamEvent.tool_call_delta_event(text, id=call.id, name=name, index=index, raw=chunk))

    def _call_for(self, piece: dict[str, Any], function: Mapping[str, Any]) -> _GrowingCall:
        """Which call a piece belongs to: by index; a new id with a name is a new call, whatever its index says."""
        number, id = piece.get("index"), piece.get("id")
        if number is None:
            found = next((call for call in self._calls if id and call.id == id), None)
            if found is None and not id and not function.get("name") and self._calls:
                found = self._calls[-1]
        else:
            found = next((call for call in reversed(self._calls) if call.number == number), None)
            if found is not None and id and found.id and id != found.id and function.get("name"):
                found = None
        if found is None:
            found = _GrowingCall(number, len(self._calls))
            self._calls.append(found)
        return found

    def _finish(self, events: list[StreamEvent]) -> None:
        """The terminal event: end what was begun, and say how it ended."""
        if self._finish_reason is None:
            self._fail("the stream ended without a finish reason")
            return
        beside, reader = self._beside, self._reader
        details = {"reasoning_details": beside.details} if beside.details else {}
        opaque = {**details, **beside.opaque, **signed([_joined(pieces) for pieces in beside.summary])}
        if opaque or self._thinking:
            part = reader.thinking("".join(self._thinking), opaque)
            events.append(StreamEvent.content_part_event(part, index=_THINKING))
        if self._text and (citations := read_citations(beside.annotations, beside.sources)):
            events.append(StreamEvent.content_part_event(text_part("".join(self._text), citations), index=_TEXT))
        for call in self._calls:
            id = call_id(call.id, self._id, call.position)
            finished = reader.call(id, call.name, "".join(call.arguments), call.opaque)
            events.append(StreamEvent.tool_call_end(finished, index=_FIRST_CALL + call.position))
        sound = {key: "".join(pieces) for key, pieces in beside.sound.items()}
        others = reader.others({**beside.audio, **sound}, beside.images, beside.annotations, beside.ran, beside.blocks)
        for index, other in enumerate(others, _FIRST_CALL + len(self._calls)):
            events.append(StreamEvent.content_part_event(other, index=index))
        self.done = True
        usage = read_usage(self._counts)
        facts = AgentResponse(
            model=self._model,
            usage=usage,
            stop_reason=stop_reason(self._stop_word, called=bool(self._calls), refused=self._refused),
            raw_stop_reason=self._finish_reason,
            logprobs=beside.logprobs,
        )
        events.append(StreamEvent.message_end(usage=usage, response=facts))


def _joined(pieces: list[dict[str, Any]]) -> dict[str, Any]:
    whole = {key: value for piece in pieces for key, value in piece.items()}
    return {**whole, "text": "".join(piece.get("text") or "" for piece in pieces)}


def _take_runs(known: list[Any], told: list[Any]) -> None:
    """Something that the vendor runs is told when it begins, and again with its outcome, under the same index."""
    places = {run["index"]: place for place, run in enumerate(known) if isinstance(run, dict) and "index" in run}
    for run in told:
        place = places.get(run.get("index")) if isinstance(run, dict) else None
        if place is None:
            known.append(run)
        else:
            known[place] = {**known[place], **{key: value for key, value in run.items() if value is not None}}
