"""Finders of private values: matches, checksums, and linear time."""

from __future__ import annotations

import time

import pytest

from agent.middleware.patterns import FINDERS, compile_finder

FOUND = [
    ("email", "write to o'brien.x+1@mail.example.co.uk, please", ["o'brien.x+1@mail.example.co.uk"]),
    ("email", "<bob@x.com>, 'amy@y.org'.", ["bob@x.com", "amy@y.org"]),
    ("email", "jürgen@müller.de", ["jürgen@müller.de"]),
    ("email", "a@b, @handle, user@localhost, x@1.2", []),
    ("phone", "+49 (0)30 1234567 or +1-555-123-4567", ["+49 (0)30 1234567", "+1-555-123-4567"]),
    ("phone", "call 0170 1234567, 555-123-4567, (030) 1234567.", ["0170 1234567", "555-123-4567", "(030) 1234567"]),
    ("phone", "00441632960961", ["00441632960961"]),
    ("phone", "on 01-02-2024 at 10.0.0.1, 2024-01-02, 12/24, version 1.2.3, 3.14159265, id 12345678", []),
    ("card", "4111 1111 1111 1111 12/26", ["4111 1111 1111 1111"]),
    ("card", "no. 23 4111-1111-1111-1111, 378282246310005", ["4111-1111-1111-1111", "378282246310005"]),
    ("card", "5555555555554444, 6011111111111117", ["5555555555554444", "6011111111111117"]),
    ("card", "4111 1111 1111 1112, 1234567812345678, 4444444444444444444, x4111111111111111", []),
    ("iban", "DE89 3704 0044 0532 0130 00 IS MINE", ["DE89 3704 0044 0532 0130 00"]),
    ("iban", "gb82west12345698765432.", ["gb82west12345698765432"]),
    ("iban", "DE89 3704 0044 0532 0130 01, XX82 WEST 1234 5698 7654 32, DE89370400440532013000X", []),
    ("key", "sk-proj-abcdefghijklmnop1234", ["sk-proj-abcdefghijklmnop1234"]),
    ("key", f"ghp_{'a' * 36} AKIA{'B' * 16} AIza{'c' * 35}", [f"ghp_{'a' * 36}", f"AKIA{'B' * 16}", f"AIza{'c' * 35}"]),
    ("key", f"Bearer eyJ{'a' * 9}.eyJ{'b' * 9}.{'c' * 9}", [f"eyJ{'a' * 9}.eyJ{'b' * 9}.{'c' * 9}"]),
    (
        "key",
        "x -----BEGIN RSA PRIVATE KEY-----\nabc\n-----END RSA PRIVATE KEY----- y",
        ["-----BEGIN RSA PRIVATE KEY-----\nabc\n-----END RSA PRIVATE KEY-----"],
    ),
    ("key", "-----BEGIN PRIVATE KEY-----\nthe rest is cut", ["-----BEGIN PRIVATE KEY-----\nthe rest is cut"]),
    ("key", "sk-short, task-abcdefghijklmnopqrst, risk-abcdefghijklmnopqrst", []),
]


@pytest.mark.parametrize(("kind", "text", "expected"), FOUND)
def test_what_is_private_is_found_and_nothing_else(kind: str, text: str, expected: list[str]) -> None:
    assert [text[start:end] for start, end in FINDERS[kind](text)] == expected


def test_a_pattern_that_matches_nothing_finds_nothing() -> None:
    assert list(compile_finder("x*")("axxb")) == [(1, 3)]


HOSTILE = [
    "a", "a@", "a.", "1", "+1", "1 ", "4-", "+1 1-1 ", "DE11 ", "sk-", "-----BEGIN PRIVATE KEY-----", "a'", "0 ",
    "eyJaaaaaaaaa.", "(030) ", "x@x.", "00", "[EMAIL_", "4 ",
]  # fmt: skip


@pytest.mark.timing
def test_no_text_takes_longer_than_its_length_says() -> None:
    """Each of these, read in every possible way, would take hours."""
    texts = [piece * (40_000 // len(piece)) + tail for piece in HOSTILE for tail in ("", "!")]
    started = time.process_time()
    for text in texts:
        for find in FINDERS.values():
            for _ in find(text):
                pass
    assert time.process_time() - started < 8.0
