"""Reading, writing and describing files."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.toolkit import Toolkit, TruncationConfig
from tests.toolkit.places import Places, expect_error, use


def put(places: Places, content: str | bytes, name: str = "it.txt") -> str:
    (places.root / name).write_bytes(content.encode() if isinstance(content, str) else content)
    return name


# Read


def test_a_file_is_read_as_it_is(kit: Toolkit, places: Places) -> None:
    put(places, "one\n  two\n\tthree\n")
    assert use(kit.read, file_path="it.txt") == "one\n  two\n\tthree"


def test_lines_are_numbered_on_demand(kit: Toolkit, places: Places) -> None:
    put(places, "one\ntwo\nthree")
    assert use(kit.read, file_path="it.txt", line_numbers=True, offset=2) == "     2\ttwo\n     3\tthree"


def test_a_part_is_read_by_offset_and_limit(kit: Toolkit, places: Places) -> None:
    put(places, "".join(f"{number}\n" for number in range(1, 11)))
    assert use(kit.read, file_path="it.txt", offset=4, limit=2) == "4\n5"
    assert use(kit.read, file_path="it.txt", offset=10) == "10"
    assert "the file has 10 lines" in expect_error(kit.read, file_path="it.txt", offset=11)


def test_a_long_file_is_read_in_pages_and_nothing_is_lost(places: Places) -> None:
    lines = [f"line {number} {'x' * (number % 70)}" for number in range(500)]
    put(places, "\n".join(lines))
    for config in (TruncationConfig(1000, 10_000), TruncationConfig(10**9, 7), TruncationConfig(60, 3)):
        with Toolkit(places.root, truncation=config) as kit:
            assert pages(kit) == "\n".join(lines)


def pages(kit: Toolkit) -> str:
    """The whole file, by going on as each page says."""
    read: list[str] = []
    arguments: dict[str, int] = {}
    while True:
        answer = use(kit.read, file_path="it.txt", **arguments)
        page, marker, note = answer.rpartition("\n[… ")
        read.append(("\n" if read and arguments.get("column", 1) == 1 else "") + (page if marker else answer))
        if not marker:
            return "".join(read)
        told = note.partition("Use ")[2].partition("]")[0].removesuffix(" to continue.").rstrip(".")
        arguments = {name: int(value) for name, value in (part.split("=") for part in told.split(", "))}


def test_a_very_long_line_is_read_in_pages_too(places: Places) -> None:
    content = "short\n" + "".join(chr(ord("a") + number % 26) for number in range(5000)) + "\nend"
    put(places, content)
    with Toolkit(places.root, truncation=TruncationConfig(max_chars=700)) as kit:
        assert pages(kit) == content


def test_pages_end_where_the_model_wanted_them_to(places: Places) -> None:
    put(places, "1\n2\n3\n4")
    with Toolkit(places.root, truncation=TruncationConfig(max_lines=2)) as kit:
        assert use(kit.read, file_path="it.txt", limit=2) == "1\n2"
        assert use(kit.read, file_path="it.txt") == "1\n2\n[… 2 of 4 lines are left. Use offset=3 to continue.]"
    with Toolkit(places.root, truncation=TruncationConfig(max_lines=2, enabled=False)) as kit:
        assert use(kit.read, file_path="it.txt") == "1\n2\n3\n4"


@pytest.mark.parametrize(
    ("content", "read"),
    [
        (b"caf\xe9 \xff", "caf� �"),
        (b"\xef\xbb\xbfmarked", "marked"),
        ("wide é".encode("utf-16"), "wide é"),
        (b"one\r\ntwo\r\n", "one\r\ntwo\r"),
        (b"", "['it.txt' is empty.]"),
        (b"\n", ""),
    ],
)
def test_bytes_that_are_no_characters_do_not_keep_a_file_from_being_read(
    kit: Toolkit, places: Places, content: bytes, read: str
) -> None:
    put(places, content)
    assert use(kit.read, file_path="it.txt") == read


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"\x89PNG\r\n\x1a\n" + b"\0" * 50, "a PNG image, 58 bytes"),
        (b"%PDF-1.7\n\xe2\xe3", "a PDF document"),
        (b"\x7fELF\x02\x01\0", "a program"),
        (b"text with a \0 in it", "binary, 19 bytes"),
    ],
)
def test_what_is_no_text_is_described(kit: Toolkit, places: Places, content: bytes, kind: str) -> None:
    put(places, content)
    assert kind in expect_error(kit.read, file_path="it.txt")


def test_a_file_that_is_too_large_is_not_read(places: Places) -> None:
    put(places, "x" * 101)
    with Toolkit(places.root, max_file_bytes=100) as kit:
        assert expect_error(kit.read, file_path="it.txt") == "'it.txt' has 101 bytes; the limit is 100."
        put(places, "x" * 100)
        assert use(kit.read, file_path="it.txt") == "x" * 100


# Write


def test_a_file_is_written_and_replaced(kit: Toolkit, places: Places) -> None:
    assert use(kit.write, file_path="new/a.txt", content="Grüße\n") == "Created 'new/a.txt': 8 bytes."
    assert (places.root / "new" / "a.txt").read_bytes() == "Grüße\n".encode()
    assert use(kit.write, file_path="new/a.txt", content="") == "Replaced 'new/a.txt': 0 bytes."
    assert (places.root / "new" / "a.txt").read_bytes() == b""


def test_what_no_file_can_hold_is_not_written(places: Places) -> None:
    with Toolkit(places.root, max_file_bytes=10) as kit:
        assert "lone surrogate" in expect_error(kit.write, file_path="inside.txt", content="\ud800")
        assert "11 bytes" in expect_error(kit.write, file_path="inside.txt", content="x" * 11)
        assert "is a folder" in expect_error(kit.write, file_path="sub", content="x")
        assert "is a folder" in expect_error(kit.write, file_path=".", content="x")
        assert "not a folder" in expect_error(kit.write, file_path="inside.txt/x", content="x")
    assert (places.root / "inside.txt").read_text() == "inside\n"


# Stat


def test_paths_are_described(kit: Toolkit, places: Places) -> None:
    (places.root / "link").symlink_to("inside.txt")
    (places.root / "absolute").symlink_to(places.root / "inside.txt")
    (places.root / "out").symlink_to(places.outside)
    (places.root / "broken").symlink_to("broken")
    (places.root / "inside.txt").chmod(0o640)
    assert use(kit.stat, file_path="inside.txt").startswith("'inside.txt': a file, 7 bytes, mode 0640, changed 20")
    assert use(kit.stat, file_path="sub").startswith("'sub': a folder, 2 entries, mode ")
    assert use(kit.stat, file_path=".").startswith("'.': a folder, 6 entries")
    assert use(kit.stat, file_path="link").startswith("'link': a link, to 'inside.txt', mode")
    assert use(kit.stat, file_path="absolute").startswith("'absolute': a link, to 'inside.txt', mode")
    assert use(kit.stat, file_path="out").startswith("'out': a link, broken, or leads outside the root folder, mode")
    assert use(kit.stat, file_path="broken").startswith("'broken': a link, broken, or")
    assert expect_error(kit.stat, file_path="missing") == "'missing' does not exist."


def test_a_root_of_another_name_is_never_shown(tmp_path: Path) -> None:
    (tmp_path / "secret-name").mkdir()
    with Toolkit(tmp_path / "secret-name") as kit:
        for tool in (kit.read, kit.stat):
            assert "secret-name" not in expect_error(tool, file_path=f"{tmp_path}/secret-name/missing")
