"""What to look for in texts that shall not go out: addresses, numbers and keys, found by their form and checked by
their arithmetic where they have one.

Every pattern begins where a word does, and no part of one can be read in two ways, so that looking through a text takes
as long as the text is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeAlias

Span: TypeAlias = tuple[int, int]
Finder: TypeAlias = Callable[[str], Iterable[Span]]
"""Finds where in a text something is."""

_EMAIL = re.compile(r"(?<![\w.%+-])\w[\w.%+'-]{0,255}@(?:[\w-]{1,63}\.){1,8}[^\W\d_]{2,24}(?![\w@])")
_PHONE = re.compile(
    r"(?<![\w.+/-])(?:"
    r"(?:\+|00)[1-9]\d{0,14}(?:[ ./()-]{1,3}\d{1,10}){0,6}"  # +49 (0)30 123456
    r"|\(\d{2,5}\)[ .-]?\d{2,8}(?:[ .-]\d{2,8}){0,3}"  # (030) 123456
    r"|\d{3}[ .-]\d{3}[ .-]\d{4}"  # 555-123-4567
    r"|0\d{1,5}[ /-]\d{2,8}(?:[ -]\d{2,8}){0,4}"  # 0170 1234567
    r")(?![\w/-]|\.\d)"
)
_CARD = re.compile(r"(?<![\w.-])[2-6](?:[ -]?\d){12,18}")
_IBAN = re.compile(r"(?<!\w)[A-Z]{2}\d{2}(?: ?[A-Z0-9]){11,30}", re.I)
_KEY = re.compile(
    r"(?<![\w-])(?:"
    r"sk-[\w-]{16,}"
    r"|(?:sk|pk|rk)_(?:live|test)_\w{16,}"
    r"|gh[pousr]_\w{30,}|github_pat_\w{22,}|glpat-[\w-]{16,}"
    r"|AIza[\w-]{35}"
    r"|(?:AKIA|ASIA)[A-Z0-9]{16}"
    r"|xox[abeoprs]-[\w-]{10,}"
    r"|hf_\w{30,}|gsk_\w{32,}|xai-\w{32,}|npm_\w{36}"
    r"|eyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]{8,}"  # a JSON web token
    r")(?!\w)"
)
_PRIVATE = re.compile(r"-----BEGIN [A-Z ]{0,32}PRIVATE KEY-----")
_PRIVATE_END = re.compile(r"-----END [A-Z ]{0,32}PRIVATE KEY-----")

_IBANS = (
    "AD24 AE23 AL28 AT20 AZ28 BA20 BE16 BG22 BH22 BI27 BR29 BY28 CH21 CR22 CY28 CZ24 DE22 DJ27 DK18 DO28 EE20 EG29 "
    "ES24 FI18 FK18 FO18 FR27 GB22 GE22 GI23 GL18 GR27 GT28 HN28 HR21 HU28 IE22 IL23 IQ23 IS26 IT27 JO30 KW30 KZ20 "
    "LB28 LC32 LI21 LT20 LU20 LV21 LY25 MC27 MD24 ME22 MK19 MN20 MR27 MT31 MU30 NI28 NL18 NO15 OM23 PK24 PL28 PS29 "
    "PT25 QA29 RO24 RS22 RU33 SA24 SC31 SD18 SE24 SI19 SK24 SM27 SO23 ST25 SV28 TL23 TN24 TR26 UA29 VA22 VG24 XK20 YE30"
)
"""Countries, and how long an IBAN is there."""
_IBAN_LENGTHS = {entry[:2]: int(entry[2:]) for entry in _IBANS.split()}
_SHORTEST_CARD = 13


def emails(text: str) -> Iterator[Span]:
    return _found(_EMAIL, text, re.Match.end) if "@" in text else iter(())


def phones(text: str) -> Iterator[Span]:
    return _found(_PHONE, text, _phone_end)


def cards(text: str) -> Iterator[Span]:
    return _found(_CARD, text, _card_end)


def ibans(text: str) -> Iterator[Span]:
    return _found(_IBAN, text, _iban_end)


def keys(text: str) -> Iterator[Span]:
    yield from _found(_KEY, text, re.Match.end)
    end = 0
    while (begins := _PRIVATE.search(text, end)) is not None:
        ends = _PRIVATE_END.search(text, begins.end())
        end = len(text) if ends is None else ends.end()
        yield begins.start(), end


FINDERS: dict[str, Finder] = {"key": keys, "email": emails, "iban": ibans, "card": cards, "phone": phones}
"""By kind; where two find something in the same place, the first of them has it."""


def by_pattern(pattern: str | re.Pattern[str]) -> Finder:
    """A finder for whatever a regular expression matches."""
    compiled = re.compile(pattern)
    return lambda text: (found.span() for found in compiled.finditer(text) if found.end() > found.start())


def _found(pattern: re.Pattern[str], text: str, end_of: Callable[[re.Match[str]], int | None]) -> Iterator[Span]:
    """What a pattern finds, as far as it proves to be that. After what does not, something may begin inside of it."""
    position = 0
    while (found := pattern.search(text, position)) is not None:
        end = end_of(found)
        if end is None:
            position = found.start() + 1
        else:
            yield found.start(), end
            position = end


def _phone_end(found: re.Match[str]) -> int | None:
    """The end of the longest number that a telephone could have; what follows it may look like more of it."""
    text = found[0]
    # With a plus it is nothing else; without, eight digits are a date more often.
    least = 8 if text.startswith("+") else 9
    for end in range(len(text), 0, -1):
        if text[end - 1].isdigit() and not text[end : end + 1].isdigit():
            digits = sum(map(str.isdigit, text[:end]))
            if least <= digits <= 15:
                return found.start() + end
    return None


def _card_end(found: re.Match[str]) -> int | None:
    """The end of the longest number that a card could have. What follows it, such as a date, may look like digits."""
    text = found.string
    ends = [place + 1 for place in range(found.start(), found.end()) if text[place].isdigit()]
    digits = [int(text[end - 1]) for end in ends]
    for length in range(len(digits), _SHORTEST_CARD - 1, -1):
        end = ends[length - 1]
        alone = not text[end : end + 1].isalnum() and text[end : end + 1] != "_"
        if alone and len(set(digits[:length])) > 1 and _luhn(digits[:length]):
            return end
    return None


def _luhn(digits: list[int]) -> bool:
    total = 0
    for place, digit in enumerate(reversed(digits)):
        doubled = digit * 2 if place % 2 else digit
        total += doubled - 9 if doubled > 9 else doubled
    return total % 10 == 0


def _iban_end(found: re.Match[str]) -> int | None:
    text = found[0]
    letters = _IBAN_LENGTHS.get(text[:2].upper(), len(text) + 1)
    for place, character in enumerate(text, 1):
        letters -= character != " "
        if letters == 0:
            end = found.start() + place
            return end if _mod_97(text[:place]) and not found.string[end : end + 1].isalnum() else None
    return None


def _mod_97(text: str) -> bool:
    plain = text.replace(" ", "").upper()
    return int("".join(str(int(character, 36)) for character in plain[4:] + plain[:4])) % 97 == 1


Key: TypeAlias = tuple[str, int | None]
"""Which of the texts of a stream: the type of its events, and their index."""

_SHAPE = re.compile(r"\[[A-Z][A-Z0-9_]*_[0-9]+\]")


def placeholders_in(text: str) -> list[str]:
    """What a text holds that looks like a placeholder."""
    return _SHAPE.findall(text) if "[" in text else []


class Table:
    """Values of one request and their placeholders.

    Args:
        finders: Kinds of values, and what finds them.
        taken: Placeholders that mean something else, since the request holds them already.
    """

    def __init__(self, finders: Sequence[tuple[str, Finder]], taken: frozenset[str] = frozenset()) -> None:
        self._finders = finders
        self._taken = taken
        self._numbers: dict[str, int] = {}
        self._placeholders: dict[str, str] = {}
        self._values: dict[str, str] = {}

    def __bool__(self) -> bool:
        return bool(self._values)

    def hide(self, text: str) -> str:
        """The text with placeholders for all values that are found in it."""
        pieces: list[str] = []
        position = 0
        for start, end, kind in self._spans(text):
            pieces += (text[position:start], self._placeholder(text[start:end], kind))
            position = end
        if not pieces:
            return text
        pieces.append(text[position:])
        return "".join(pieces)

    def show(self, text: str, *, in_json: bool = False) -> str:
        """The text with the values in the place of their placeholders."""
        if "[" not in text:
            return text
        return _SHAPE.sub(lambda found: self._value(found[0], in_json), text)

    def shifts(self, text: str, *, in_json: bool = False) -> list[tuple[int, int]]:
        """Where `show` changes a text, and by how much it grows there: ends of placeholders, and characters."""
        return [
            (found.end(), len(self._value(found[0], in_json)) - len(found[0]))
            for found in _SHAPE.finditer(text)
            if found[0] in self._values
        ]

    def unfinished(self, text: str) -> int:
        """Where at the end of a text a placeholder begins that is cut off; the text's length if none does."""
        start = text.rfind("[")
        if start < 0:
            return len(text)
        tail = text[start:]
        begun = any(placeholder.startswith(tail) and placeholder != tail for placeholder in self._values)
        return start if begun else len(text)

    def _spans(self, text: str) -> list[tuple[int, int, str]]:
        """Where values are, in order. What overlaps is one value: no part of it may be left."""
        found = sorted(
            (*_within(span, text), rank, kind) for rank, (kind, find) in enumerate(self._finders) for span in find(text)
        )
        spans: list[tuple[int, int, str]] = []
        for start, end, _, kind in found:
            if spans and start < spans[-1][1]:
                begun, last, first_kind = spans[-1]
                spans[-1] = (begun, max(last, end), first_kind)
            elif start < end:
                spans.append((start, end, kind))
        return spans

    def _placeholder(self, value: str, kind: str) -> str:
        known = self._placeholders.get(value)
        if known is not None:
            return known
        while True:
            number = self._numbers[kind] = self._numbers.get(kind, 0) + 1
            placeholder = f"[{kind}_{number}]"
            if placeholder not in self._taken:
                break
        self._placeholders[value] = placeholder
        self._values[placeholder] = value
        return placeholder

    def _value(self, placeholder: str, in_json: bool) -> str:
        value = self._values.get(placeholder)
        if value is None:
            return placeholder
        return json.dumps(value, ensure_ascii=False)[1:-1] if in_json else value


def _within(span: Span, text: str) -> Span:
    start, end = span
    return max(0, start), min(end, len(text))


class Pieces:
    """Texts that arrive in pieces, several at a time: what may be half a placeholder is held back until more comes."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._held: dict[Key, str] = {}

    def feed(self, key: Key, piece: str, *, in_json: bool) -> str:
        """What can be said of a text now that another piece of it has come."""
        text = self._held.pop(key, "") + piece
        cut = self._table.unfinished(text)
        if cut < len(text):
            self._held[key] = text[cut:]
        return self._table.show(text[:cut], in_json=in_json)

    def holding(self) -> list[Key]:
        return list(self._held)

    def end(self, key: Key) -> str:
        """What was held back of a text after which nothing comes any more."""
        return self._held.pop(key, "")

    def clear(self) -> None:
        self._held.clear()
