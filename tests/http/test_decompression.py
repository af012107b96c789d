"""Unpacking, a piece at a time, never beyond the ratio."""

from __future__ import annotations

import random
import zlib

import pytest

from agent import errors
from agent.http.parser import MAX_RATIO, decompressor_for


def gzip_body(data: bytes, level: int = 9) -> bytes:
    packer = zlib.compressobj(level, wbits=31)
    return packer.compress(data) + packer.flush()


@pytest.mark.parametrize("name", [None, "", "identity", " Identity "])
def test_plain_bytes_need_no_inflater(name: str | None) -> None:
    assert decompressor_for(name) is None


@pytest.mark.parametrize("name", ["br", "zstd", "gzip, gzip", "compress"])
def test_what_we_cannot_unpack_is_refused(name: str) -> None:
    with pytest.raises(errors.ProtocolError) as caught:
        decompressor_for(name)
    assert not caught.value.retryable


def test_any_split_unpacks_to_the_same(rng: random.Random) -> None:
    text = bytes(rng.choices(b"abcdefgh \n", k=3000))
    data = gzip_body(text[:1000]) + gzip_body(text[1000:])
    for size in (1, 2, 3, 7, 100, len(data)):
        inflater = decompressor_for("gzip")
        assert inflater is not None
        out = b"".join(inflater.feed(data[start : start + size]) for start in range(0, len(data), size))
        assert out + inflater.finish() == text


@pytest.mark.parametrize("cut", [1, 5, 12])
def test_a_cut_package_is_an_error_at_its_end(cut: int) -> None:
    inflater = decompressor_for("gzip")
    assert inflater is not None
    inflater.feed(gzip_body(b"hello world")[:-cut])
    with pytest.raises(errors.ProtocolError, match="incomplete"):
        inflater.finish()


def test_an_empty_body_is_not_a_cut_one() -> None:
    inflater = decompressor_for("gzip")
    assert inflater is not None
    assert inflater.finish() == b""


@pytest.mark.parametrize("first", [65_535, 65_536, 65_537])
def test_the_limit_holds_at_its_very_edge(first: int) -> None:
    """A limit of zero bytes left means no limit to zlib: the edge is where a bomb would get through."""
    packer = zlib.compressobj(9, wbits=31)
    opening = packer.compress(b" " * first) + packer.flush(zlib.Z_SYNC_FLUSH)
    rest = packer.compress(b" " * 400_000) + packer.flush()
    assert len(opening) + len(rest) < 655, "small enough that only the floor applies"
    inflater = decompressor_for("gzip")
    assert inflater is not None
    with pytest.raises(errors.ProtocolError, match=f"{MAX_RATIO} times"):
        inflater.feed(opening)
        inflater.feed(rest)
        inflater.finish()


def test_a_body_of_exactly_the_floor_is_fine() -> None:
    data = gzip_body(b" " * 65_536)
    for size in (1, 50, len(data)):
        inflater = decompressor_for("gzip")
        assert inflater is not None
        out = b"".join(inflater.feed(data[start : start + size]) for start in range(0, len(data), size))
        assert len(out + inflater.finish()) == 65_536
