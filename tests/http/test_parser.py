"""The HTTP/1.1 parser compared with h11: the same result for every way of cutting the bytes."""

from __future__ import annotations

import itertools
import random
import re
from dataclasses import dataclass

import h11
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.http.parser import MAX_HEAD_BYTES, BadRequest, BadResponse, RequestHead, ResponseParser


@dataclass
class Read:
    """Result of a parser."""

    status: int
    headers: dict[str, str]
    body: bytes
    complete: bool
    reusable: bool


def cut(data: bytes, at: list[int]) -> list[bytes]:
    edges = [0, *sorted(set(at)), len(data)]
    return [data[begin:end] for begin, end in itertools.pairwise(edges) if end > begin]


def by_us(pieces: list[bytes], *, ends: bool) -> Read | str:
    reader = ResponseParser()
    body: list[bytes] = []
    headed = False
    try:
        for piece in pieces:
            if not headed:
                headed = reader.feed_head(piece)
                if headed:
                    body.append(reader.feed_rest())
            else:
                body.append(reader.feed(piece))
        if reader.failure is not None:
            raise reader.failure
        if ends and not reader.complete:
            reader.feed_eof()
    except BadResponse:
        return "bad"
    return Read(reader.status, dict(reader.headers), b"".join(body), reader.complete, reader.keep_alive)


def by_h11(pieces: list[bytes], *, ends: bool) -> Read | str:
    connection = h11.Connection(our_role=h11.CLIENT, max_incomplete_event_size=MAX_HEAD_BYTES)
    connection.send(h11.Request(method="POST", target="/", headers=[("host", "x"), ("content-length", "0")]))
    connection.send(h11.EndOfMessage())
    status, headers, body, complete = 0, dict[str, str](), list[bytes](), False
    feed = [*pieces, b""] if ends else pieces
    try:
        for piece in feed:
            if complete:
                break
            connection.receive_data(piece)
            while not complete:
                event = connection.next_event()
                if event in (h11.NEED_DATA, h11.PAUSED):
                    break
                if isinstance(event, h11.Response):
                    status = event.status_code
                    for name, value in event.headers:
                        key, text = name.decode("latin-1"), value.decode("latin-1")
                        headers[key] = f"{headers[key]}, {text}" if key in headers else text
                elif isinstance(event, h11.Data):
                    body.append(bytes(event.data))
                elif isinstance(event, h11.EndOfMessage):
                    complete = True
                elif isinstance(event, h11.ConnectionClosed):
                    break
    except h11.RemoteProtocolError:
        return "bad"
    framed = status in (204, 304) or not {"content-length", "transfer-encoding"}.isdisjoint(headers)
    reusable = complete and framed and connection.their_state is h11.DONE and not connection.trailing_data[0]
    return Read(status, headers, b"".join(body), complete, reusable)


HEAD = b"HTTP/1.1 200 OK\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
RESPONSES = {
    "a length": HEAD + b"Content-Type: application/json\r\nContent-Length: 5\r\n\r\nhello",
    "no body": HEAD + b"content-length: 0\r\n\r\n",
    "no content": b"HTTP/1.1 204 No Content\r\nx: y\r\n\r\n",
    "not modified": b"HTTP/1.1 304 Not Modified\r\ncontent-length: 5\r\n\r\n",
    "chunks": CHUNKED + b"5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n",
    "chunks with extensions": CHUNKED + b'5;a=b;c="d"\r\nhello\r\n0;last\r\n\r\n',
    "chunks with blanks": CHUNKED + b"5  \r\nhello\r\n0\t\r\n\r\n",
    "large hexadecimal": CHUNKED + b"0000A\r\n0123456789\r\n0\r\n\r\n",
    "chunks with a trailer": CHUNKED + b"5\r\nhello\r\n0\r\nx-checksum: 1\r\ny: z\r\n\r\n",
    "a bad trailer": CHUNKED + b"5\r\nhello\r\n0\r\nno colon\r\n\r\n",
    "the end is the end": HEAD + b"content-type: text/plain\r\n\r\nuntil the end",
    "old": b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nhi",
    "close": HEAD + b"Connection: close\r\ncontent-length: 2\r\n\r\nhi",
    "close among others": HEAD + b"Connection: x, Close\r\ncontent-length: 2\r\n\r\nhi",
    "an announcement": b"HTTP/1.1 100 Continue\r\n\r\n" + HEAD + b"content-length: 2\r\n\r\nhi",
    "early hints": b"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n" + HEAD + b"content-length: 2\r\n\r\nhi",
    "no reason": b"HTTP/1.1 200\r\ncontent-length: 2\r\n\r\nhi",
    "an empty reason": b"HTTP/1.1 200 \r\ncontent-length: 2\r\n\r\nhi",
    "line feeds alone": b"HTTP/1.1 200 OK\nx: y\ncontent-length: 2\n\nhi",
    "folded": HEAD + b"x: one\r\n  two\r\n\tthree\r\ncontent-length: 2\r\n\r\nhi",
    "repeated": HEAD + b"x: one\r\nX: two\r\ncontent-length: 2\r\n\r\nhi",
    "latin": HEAD + b"x: caf\xe9\r\ncontent-length: 2\r\n\r\nhi",
    "empty values": HEAD + b"x:\r\ny:   \r\ncontent-length: 2\r\n\r\nhi",
    "the same length twice": HEAD + b"content-length: 2\r\ncontent-length: 2\r\n\r\nhi",
    "the same length in one": HEAD + b"content-length: 2, 2\r\n\r\nhi",
    "chunks beat a length": HEAD + b"content-length: 99\r\ntransfer-encoding: Chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n",
    "too much": HEAD + b"content-length: 2\r\n\r\nhi there",
    "too much after chunks": CHUNKED + b"2\r\nhi\r\n0\r\n\r\nHTTP/1.1 200 OK\r\n\r\n",
    "too little": HEAD + b"content-length: 20\r\n\r\nhi",
    "chunks without an end": CHUNKED + b"2\r\nhi\r\n",
    "half a chunk": CHUNKED + b"ff\r\nhi",
    "half a head": b"HTTP/1.1 200 OK\r\ncontent-ty",
    "nothing": b"",
    "two lengths": HEAD + b"content-length: 2\r\ncontent-length: 3\r\n\r\nhi",
    "a bad length": HEAD + b"content-length: many\r\n\r\nhi",
    "a negative length": HEAD + b"content-length: -2\r\n\r\nhi",
    "a signed length": HEAD + b"content-length: +2\r\n\r\nhi",
    "an enormous length": HEAD + b"content-length: " + b"9" * 21 + b"\r\n\r\nhi",
    "no colon": HEAD + b"no colon here\r\n\r\nhi",
    "a blank before the colon": HEAD + b"x : y\r\ncontent-length: 2\r\n\r\nhi",
    "a fold at the start": HEAD + b" x: y\r\ncontent-length: 2\r\n\r\nhi",
    "a null": HEAD + b"x: a\x00b\r\ncontent-length: 2\r\n\r\nhi",
    "a lone return": HEAD + b"x: a\rb\r\ncontent-length: 2\r\n\r\nhi",
    "garbage": b"\x16\x03\x01 hello?\r\n\r\n",
    "another protocol": b"SSH-2.0-OpenSSH_9.6\r\n\r\n",
    "a bad status": b"HTTP/1.1 two hundred\r\n\r\n",
    "a long status": b"HTTP/1.1 2000 OK\r\n\r\n",
    "an unknown encoding": HEAD + b"transfer-encoding: gzip\r\n\r\nhi",
    "an encoding before chunked": HEAD + b"transfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "a bad chunk size": CHUNKED + b"zz\r\nhi\r\n0\r\n\r\n",
    "a negative chunk": CHUNKED + b"-2\r\nhi\r\n0\r\n\r\n",
    "a chunk like python": CHUNKED + b"0x2\r\nhi\r\n0\r\n\r\n",
    "a chunk with an underscore": CHUNKED + b"0_2\r\nhi\r\n0\r\n\r\n",
    "a chunk that is longer": CHUNKED + b"2\r\nhello\r\n0\r\n\r\n",
    "a chunk ended by a line feed": CHUNKED + b"2\nhi\n0\n\n",
    "no size": CHUNKED + b"\r\nhi\r\n0\r\n\r\n",
}


@pytest.mark.parametrize("name", RESPONSES)
@pytest.mark.parametrize("ends", [True, False])
def test_every_response_is_read_as_h11_reads_it_however_it_is_cut(name: str, ends: bool) -> None:
    data = RESPONSES[name]
    expected = by_h11([data] if data else [], ends=ends)
    cuts = [[], *([at] for at in range(1, len(data))), list(range(1, len(data)))]
    for at in cuts:
        found = by_us(cut(data, at), ends=ends)
        if isinstance(expected, Read) and isinstance(found, Read) and not expected.complete:
            found.reusable = expected.reusable  # nothing is said of what goes on
        assert found == expected, f"cut at {at}"


def random_response(rng: random.Random) -> bytes:
    """A response that may be anything from fine to hopeless: fine ones with a few bytes changed."""
    data = bytearray(rng.choice(list(RESPONSES.values())))
    for _ in range(rng.choice([0, 1, 1, 2, 3])):
        if not data:
            break
        where = rng.randrange(len(data))
        match rng.randrange(4):
            case 0:
                data[where] = rng.choice(b"\r\n \t:;0123456789abcdefxXHTP/.\x00\xff")
            case 1:
                del data[where]
            case 2:
                data[where:where] = rng.choice([b"\r\n", b"\n", b" ", b":", b"0", b"\r"])
            case _:
                data[where:where] = data[where : where + rng.randrange(1, 20)]
    return bytes(data)


def differs_knowingly(data: bytes, ours: Read | str, theirs: Read | str) -> bool:
    """Whether this is one of the decisions in the docstring of the parser."""
    if b"HTTP/1.1 101" in data:
        return ours == "bad"
    if ours == "bad":
        return theirs != "bad" and re.search(rb";[^\n]*\r(?!\n)", data) is not None
    return theirs == "bad" and re.search(rb"\r\n0.*\n(content-length|transfer-encoding):", data, re.S) is not None


@pytest.mark.parametrize(
    ("data", "ours", "theirs"),
    [
        (CHUNKED + b'2;a="\r"\r\nhi\r\n0\r\n\r\n', "bad", "hi"),
        (CHUNKED + b"2;" + b"a" * 9000 + b"\r\nhi\r\n0\r\n\r\n", "bad", "hi"),
        (CHUNKED + b"2\r\nhi\r\n0\r\ncontent-length: x\r\n\r\n", "hi", "bad"),
        (CHUNKED + b"2\r\nhi\r\n0\r\ntransfer-encoding: gzip\r\n\r\n", "hi", "bad"),
        (b"HTTP/1.1 100 Continue\r\n\r\n" * 21 + HEAD + b"content-length: 2\r\n\r\nhi", "bad", "hi"),
        (HEAD.replace(b"OK", b"O\x0bK") + b"content-length: 2\r\n\r\nhi", "bad", "bad"),
    ],
)
def test_the_differences_from_h11_are_decisions(data: bytes, ours: str, theirs: str) -> None:
    for read, expected in ((by_us, ours), (by_h11, theirs)):
        for pieces in ([data], cut(data, list(range(1, len(data), 50)))):
            found = read(pieces, ends=True)
            assert (found if isinstance(found, str) else found.body.decode()) == expected


@settings(max_examples=300, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_damaged_responses_are_judged_as_h11_judges_them(seed: int) -> None:
    rng = random.Random(seed)
    data = random_response(rng)
    whole = by_us([data] if data else [], ends=True)
    theirs = by_h11([data] if data else [], ends=True)
    if isinstance(theirs, Read) and isinstance(whole, Read):
        whole.reusable = theirs.reusable = whole.reusable and theirs.reusable
    assert whole == theirs or differs_knowingly(data, whole, theirs), data
    at = [rng.randrange(1, len(data)) for _ in range(rng.randrange(5))] if len(data) > 1 else []
    pieces = by_us(cut(data, at), ends=True)
    if isinstance(pieces, Read) and isinstance(whole, Read):
        pieces.reusable = whole.reusable
    assert pieces == whole, (data, at)


def test_a_head_without_an_end_is_refused_in_bounded_memory() -> None:
    reader = ResponseParser()
    with pytest.raises(BadResponse, match="too long"):
        for _ in range(100):
            reader.feed_head(b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 1000)


def test_the_line_of_a_chunk_without_an_end_is_refused() -> None:
    reader = ResponseParser()
    reader.feed_head(CHUNKED)
    with pytest.raises(BadResponse, match="size"):
        for _ in range(100):
            reader.feed(b"0" * 1000)


def test_a_header_of_many_blanks_is_read_in_linear_time() -> None:
    reader = ResponseParser()
    assert reader.feed_head(HEAD + b"x: " + b" \t" * 45_000 + b"y\r\n\r\n")
    assert reader.headers["x"] == "y"


@pytest.mark.parametrize(
    ("url", "headers"),
    [
        ("http://host/a b", ()),
        ("http://host/a\r\nx: y", ()),
        ("ftp://host/", ()),
        ("http:///path", ()),
        ("http://host:port/", ()),
        ("http://h\u00f6st/", ()),
        ("http://host/", ((b"x", b"a\r\ny: z"),)),
        ("http://host/", ((b"x y", b"a"),)),
        ("http://host/", ((b"", b"a"),)),
        ("http://host/", ((b"x", b"a\x00"),)),
    ],
)
def test_nothing_can_be_smuggled_into_a_request(url: str, headers: tuple[tuple[bytes, bytes], ...]) -> None:
    with pytest.raises(BadRequest) as caught:
        RequestHead(url, headers)
    assert "y: z" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "host", "line"),
    [
        ("http://host", b"host", b"POST / HTTP/1.1"),
        ("https://host:8443/v1/chat?x=1&y", b"host:8443", b"POST /v1/chat?x=1&y HTTP/1.1"),
        ("http://[::1]:80/a", b"[::1]:80", b"POST /a HTTP/1.1"),
        ("http://HOST/a#b", b"host", b"POST /a HTTP/1.1"),
    ],
)
def test_a_request_is_one_that_h11_reads(url: str, host: bytes, line: bytes) -> None:
    address = RequestHead(url, ((b"authorization", b"Bearer k"),))
    written = address.encoded + b"5\r\n\r\nhello"
    server = h11.Connection(our_role=h11.SERVER)
    server.receive_data(written)
    request, data = server.next_event(), server.next_event()
    assert isinstance(request, h11.Request)
    assert isinstance(data, h11.Data)
    headers = dict(request.headers)
    assert headers[b"host"] == host
    assert headers[b"authorization"] == b"Bearer k"
    assert headers[b"content-length"] == b"5"
    assert headers[b"accept-encoding"] == b"identity"
    assert bytes(data.data) == b"hello"
    assert written.startswith(line)


@pytest.mark.parametrize("method", ["GET", "DELETE"])
def test_other_methods_have_an_empty_body(method: str) -> None:
    server = h11.Connection(our_role=h11.SERVER)
    server.receive_data(RequestHead("http://host/a", (), method).encoded + b"0\r\n\r\n")
    request = server.next_event()
    assert isinstance(request, h11.Request)
    assert request.method == method.encode()
    assert isinstance(server.next_event(), h11.EndOfMessage)
