"""Detection of private values in text, and placeholders for them.

Emails, phone numbers, card numbers, IBANs and keys are found by regular expressions; card numbers and IBANs are also
verified by their checksums. All patterns take linear time.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeAlias

Span: TypeAlias = tuple[int, int]
Finder: TypeAlias = Callable[[str], Iterable[Span]]
"""Returns the spans of values in a text."""

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
_PRIVATE_KEY = re.compile(r"-----BEGIN [A-Z ]{0,32}PRIVATE KEY-----")
_PRIVATE_KEY_END = re.compile(r"-----END [A-Z ]{0,32}PRIVATE KEY-----")

_IBANS = (
    "AD24 AE23 AL28 AT20 AZ28 BA20 BE16 BG22 BH22 BI27 BR29 BY28 CH21 CR22 CY28 CZ24 DE22 DJ27 DK18 DO28 EE20 EG29 "
    "ES24 FI18 FK18 FO18 FR27 GB22 GE22 GI23 GL18 GR27 GT28 HN28 HR21 HU28 IE22 IL23 IQ23 IS26 IT27 JO30 KW30 KZ20 "
    "LB28 LC32 LI21 LT20 LU20 LV21 LY25 MC27 MD24 ME22 MK19 MN20 MR27 MT31 MU30 NI28 NL18 NO15 OM23 PK24 PL28 PS29 "
    "PT25 QA29 RO24 RS22 RU33 SA24 SC31 SD18 SE24 SI19 SK24 SM27 SO23 ST25 SV28 TL23 TN24 TR26 UA29 VA22 VG24 XK20 YE30"
)
"""Countries with the length of their IBANs."""
_IBAN_LENGTHS = {entry[:2]: int(entry[2:]) for entry in _IBANS.split()}
_SHORTEST_CARD = 13


def find_emails(text: str) -> Iterator[Span]:
    return _find_matches(_EMAIL, text, re.Match.end) if "@" in text else iter(())


def find_phones(text: str) -> Iterator[Span]:
    return _find_matches(_PHONE, text, _phone_end)


def find_cards(text: str) -> Iterator[Span]:
    return _find_matches(_CARD, text, _card_end)


def find_ibans(text: str) -> Iterator[Span]:
    return _find_matches(_IBAN, text, _iban_end)


def find_keys(text: str) -> Iterator[Span]:
    yield from _find_matches(_KEY, text, re.Match.end)
    position = 0
    while (start := _PRIVATE_KEY.search(text, position)) is not None:
        end = _PRIVATE_KEY_END.search(text, start.end())
        position = len(text) if end is None else end.end()
        yield start.start(), position


FINDERS: dict[str, Finder] = {
    "key": find_keys,
    "email": find_emails,
    "iban": find_ibans,
    "card": find_cards,
    "phone": find_phones,
}
"""Built-in finders by kind. Where several match at the same position, the first one wins."""


def compile_finder(pattern: str | re.Pattern[str]) -> Finder:
    """Return a finder for the matches of a regular expression."""
    compiled = re.compile(pattern)
    return lambda text: (match.span() for match in compiled.finditer(text) if match.end() > match.start())


def _find_matches(pattern: re.Pattern[str], text: str, verify: Callable[[re.Match[str]], int | None]) -> Iterator[Span]:
    """Yield verified matches. `verify` returns the end of the value; after None, matches inside are tried."""
    position = 0
    while (match := pattern.search(text, position)) is not None:
        end = verify(match)
        if end is None:
            position = match.start() + 1
        else:
            yield match.start(), end
            position = end


def _phone_end(match: re.Match[str]) -> int | None:
    """End of the longest valid phone number; the match may include digits that follow it."""
    text = match[0]
    least = 8 if text.startswith("+") else 9  # eight digits without a plus are usually a date
    for end in range(len(text), 0, -1):
        if text[end - 1].isdigit() and not text[end : end + 1].isdigit():
            digits = sum(map(str.isdigit, text[:end]))
            if least <= digits <= 15:
                return match.start() + end
    return None


def _card_end(match: re.Match[str]) -> int | None:
    """End of the longest valid card number; the match may include digits that follow it, such as a date."""
    text = match.string
    ends = [index + 1 for index in range(match.start(), match.end()) if text[index].isdigit()]
    digits = [int(text[end - 1]) for end in ends]
    for length in range(len(digits), _SHORTEST_CARD - 1, -1):
        end = ends[length - 1]
        at_boundary = not text[end : end + 1].isalnum() and text[end : end + 1] != "_"
        if at_boundary and len(set(digits[:length])) > 1 and _is_luhn_valid(digits[:length]):
            return end
    return None


def _is_luhn_valid(digits: list[int]) -> bool:
    total = 0
    for index, digit in enumerate(reversed(digits)):
        doubled = digit * 2 if index % 2 else digit
        total += doubled - 9 if doubled > 9 else doubled
    return total % 10 == 0


def _iban_end(match: re.Match[str]) -> int | None:
    text = match[0]
    remaining = _IBAN_LENGTHS.get(text[:2].upper(), len(text) + 1)
    for length, character in enumerate(text, 1):
        remaining -= character != " "
        if remaining == 0:
            end = match.start() + length
            is_valid = _is_mod_97_valid(text[:length]) and not match.string[end : end + 1].isalnum()
            return end if is_valid else None
    return None


def _is_mod_97_valid(text: str) -> bool:
    iban = text.replace(" ", "").upper()
    return int("".join(str(int(character, 36)) for character in iban[4:] + iban[:4])) % 97 == 1


_PLACEHOLDER = re.compile(r"\[[A-Z][A-Z0-9_]*_[0-9]+\]")


def find_placeholders(text: str) -> list[str]:
    """Return the substrings that look like placeholders."""
    return _PLACEHOLDER.findall(text) if "[" in text else []


class PlaceholderTable:
    """Private values of one request and their placeholders.

    Args:
        finders: Kinds of values with their finders.
        reserved: Placeholders that the request already contains, with another meaning.
    """

    def __init__(self, finders: Sequence[tuple[str, Finder]], reserved: frozenset[str] = frozenset()) -> None:
        self._finders = finders
        self._reserved = reserved
        self._numbers: dict[str, int] = {}
        self._placeholders: dict[str, str] = {}
        self._values: dict[str, str] = {}

    def __bool__(self) -> bool:
        return bool(self._values)

    def redact(self, text: str) -> str:
        """Replace private values by placeholders."""
        pieces: list[str] = []
        position = 0
        for start, end, kind in self._find_values(text):
            pieces += (text[position:start], self._placeholder(text[start:end], kind))
            position = end
        if not pieces:
            return text
        pieces.append(text[position:])
        return "".join(pieces)

    def restore(self, text: str, *, in_json: bool = False) -> str:
        """Replace placeholders by their values."""
        if "[" not in text:
            return text
        return _PLACEHOLDER.sub(lambda match: self._value(match[0], in_json), text)

    def list_shifts(self, text: str, *, in_json: bool = False) -> list[tuple[int, int]]:
        """Return the ends of placeholders in a text, and how many characters `restore` adds at each."""
        return [
            (match.end(), len(self._value(match[0], in_json)) - len(match[0]))
            for match in _PLACEHOLDER.finditer(text)
            if match[0] in self._values
        ]

    def complete_length(self, text: str) -> int:
        """Length of the text without an incomplete placeholder at its end."""
        start = text.rfind("[")
        if start < 0:
            return len(text)
        tail = text[start:]
        is_incomplete = any(placeholder.startswith(tail) and placeholder != tail for placeholder in self._values)
        return start if is_incomplete else len(text)

    def _find_values(self, text: str) -> list[tuple[int, int, str]]:
        """Return the spans of values in order, with overlapping spans merged."""
        matches = sorted(
            (max(0, start), min(end, len(text)), rank, kind)
            for rank, (kind, find) in enumerate(self._finders)
            for start, end in find(text)
        )
        spans: list[tuple[int, int, str]] = []
        for start, end, _, kind in matches:
            if spans and start < spans[-1][1]:
                first_start, last_end, first_kind = spans[-1]
                spans[-1] = (first_start, max(last_end, end), first_kind)
            elif start < end:
                spans.append((start, end, kind))
        return spans

    def _placeholder(self, value: str, kind: str) -> str:
        placeholder = self._placeholders.get(value)
        while placeholder is None:
            number = self._numbers[kind] = self._numbers.get(kind, 0) + 1
            candidate = f"[{kind}_{number}]"
            if candidate not in self._reserved:
                placeholder = self._placeholders[value] = candidate
                self._values[placeholder] = value
        return placeholder

    def _value(self, placeholder: str, in_json: bool) -> str:
        value = self._values.get(placeholder)
        if value is None:
            return placeholder
        return json.dumps(value, ensure_ascii=False)[1:-1] if in_json else value
