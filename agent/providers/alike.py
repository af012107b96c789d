"""Deltas that are alike but for their words, recognised by a pattern instead of being parsed.

Nearly all of a stream is the same event over and over, with other words in it. Once a decoder has parsed such an event,
and has found that it holds a few words and nothing else, whatever has the same bytes around its words means the same.
The pattern is those bytes, with a gap for the words and gaps for values that the decoder does not look at: the padding
of an event, its number, the id of the answer. It matches whole server-sent events, so that nothing has to be split.
"""

from __future__ import annotations

import re

from pydantic_core import from_json

from ..types import StreamEvent
from ..types.stream import WordsType

_LEARN_AFTER = 8
"""A stream of fewer deltas is over before a pattern pays off."""
_MOST_TRIES = 16
"""Where deltas keep changing their looks, it is cheaper to parse them."""
_MOST_KNOWN = 8
_MOST_BYTES = 2048
"""Of a delta that is worth a pattern."""

_TOKEN = re.compile(rb'"((?:[^"\\]|\\.)*)"([ \t]*:)?|-?\d[\d.eE+-]*')
_WORDS = rb'"([^"\\\x00-\x1f]*+(?:\\.[^"\\\x00-\x1f]*+)*+)"'
_ANY_TEXT = rb'"[ !#-\[\]-~]*+"'
_ANY_COUNT = rb"(?:0|[1-9][0-9]{0,14}+)"
_BEFORE, _AFTER = rb"(?:event: [\w.]++\r?\n)?data: (", rb")\r?\n\r?\n"
_BLANK_LINE = re.compile(rb"\n\r?\n")


def after_blank_line(chunk: bytes) -> int:
    """Where the first event that begins in these bytes may begin; their end, if none does."""
    found = _BLANK_LINE.search(chunk)
    return len(chunk) if found is None else found.end()


def pattern_of(payload: bytes, key: bytes, open_keys: frozenset[bytes]) -> re.Pattern[bytes] | None:
    """Events like this one: other words at the key, any value at the open keys. It has two groups, payload and words.

    None if the key does not stand there exactly once, with a text.
    """
    if len(payload) > _MOST_BYTES or b"\n" in payload or b"\r" in payload:
        return None
    pieces: list[bytes] = []
    done, words, at = 0, 0, b""
    for token in _TOKEN.finditer(payload):
        text, colon = token.groups()
        if colon is not None:
            at = text
            continue
        gap = b""
        if at == key and text is not None:
            gap = _WORDS
            words += 1
        elif at in open_keys:
            gap = _ANY_TEXT if text is not None else _ANY_COUNT if token[0].isdigit() else b""
        if gap:
            pieces += (re.escape(payload[done : token.start()]), gap)
            done = token.end()
        at = b""
    pieces.append(re.escape(payload[done:]))
    return re.compile(b"".join((_BEFORE, *pieces, _AFTER)), re.DOTALL) if words == 1 else None


class Likeness:
    """How the deltas of one kind differ from each other; one for each of a vendor's kinds.

    It remembers what it was shown: making a pattern takes as long as parsing some hundred deltas, and the streams of
    one model look the same.
    """

    __slots__ = ("_key", "_known", "_open_keys")

    def __init__(self, key: str, *open_keys: str) -> None:
        self._key = key.encode()
        self._open_keys = frozenset(open_key.encode() for open_key in open_keys)
        self._known: tuple[re.Pattern[bytes], ...] = ()

    def pattern_for(self, payload: bytes) -> re.Pattern[bytes] | None:
        for known in self._known:
            if fits(known, payload):
                return known
        made = pattern_of(payload, self._key, self._open_keys)
        if made is not None:
            self._known = (made, *self._known[: _MOST_KNOWN - 1])
        return made


def fits(pattern: re.Pattern[bytes], payload: bytes) -> bool:
    return pattern.fullmatch(b"data: " + payload + b"\n\n") is not None


class Run:
    """Deltas that follow one another in a stream: how they look, and where their words go."""

    __slots__ = ("_index", "_kind", "_pattern", "_pieces", "_tries", "_wait", "latest", "live")

    def __init__(self) -> None:
        self.live = False
        """Whether the last event was one of them. Any other may change what they mean."""
        self.latest: bytes | None = None
        """The last one that was not parsed."""
        self._pattern: re.Pattern[bytes] | None = None
        self._kind: WordsType = "text_delta"
        self._pieces: list[str] = []
        self._index: int | None = None
        self._wait = _LEARN_AFTER
        self._tries = _MOST_TRIES

    @property
    def known(self) -> bool:
        return self.live and self._pattern is not None

    def go_on(self, likeness: Likeness, payload: bytes, kind: WordsType, pieces: list[str], index: int | None) -> None:
        """A delta was parsed that holds nothing but words of this kind, which were added to the pieces."""
        self.live = True
        if pieces is not self._pieces or kind != self._kind or index != self._index:
            self._kind, self._pieces, self._index = kind, pieces, index
            self._pattern = None
        if self._wait > 0:
            self._wait -= 1
        elif self._pattern is None or not fits(self._pattern, payload):
            self._pattern = likeness.pattern_for(payload) if self._tries > 0 else None
            self._tries -= 1

    def take(self, chunk: bytes, events: list[StreamEvent]) -> bytes:
        """Take the deltas that these bytes begin with; what is left. Nothing of an event may be held back elsewhere."""
        if self._pattern is None:
            return chunk
        parts = self._pattern.split(chunk)  # what is between, payload, words, what is between, and so on
        payloads, words = parts[1::3], parts[2::3]
        if not payloads or any(parts[:-1:3]) or b"" in words:
            return chunk
        try:
            texts = [word.decode() if b"\\" not in word else str(from_json(b'"' + word + b'"')) for word in words]
        except ValueError:
            return chunk  # whoever parses it knows what to say
        self._pieces += texts
        self.latest = payloads[-1]
        events += StreamEvent.deltas(self._kind, texts, self._index, payloads)
        return parts[-1]
