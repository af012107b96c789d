"""Connections that fail: those that never come about, and those that break at some point of an answer."""

from __future__ import annotations

from ... import errors
from ...engine.wire import Answer
from .fault import STREAM, WHOLE, BrokenWire, Exchange, chunks, fault, lost, reset

# Where only the client can fail. In front of a server these look like a reset; around a transport they are themselves.


@fault("client", replaces=True)
def name_not_found(exchange: Exchange) -> Answer:
    """The host's name leads nowhere."""
    return Answer(failure=errors.ConnectionError("the name of the host is not known"))


@fault("client", replaces=True)
def refused(exchange: Exchange) -> Answer:
    """Nobody listens at the address."""
    return Answer(failure=errors.ConnectionError("the connection was refused"))


@fault("client", replaces=True)
def connect_timeout(exchange: Exchange) -> Answer:
    """The address does not answer."""
    return Answer(failure=errors.TimeoutError("connecting took too long"))


@fault("client", replaces=True)
def handshake_failed(exchange: Exchange) -> Answer:
    """TLS cannot be agreed upon."""
    return Answer(failure=errors.ConnectionError("the TLS handshake failed"))


@fault("client", replaces=True)
def certificate_untrusted(exchange: Exchange) -> Answer:
    """The server cannot prove who it is. Asking again will not change that."""
    return Answer(failure=errors.ConnectionError("the certificate cannot be verified", retryable=False))


@fault("client", replaces=True)
def no_connection_to_spare(exchange: Exchange) -> Answer:
    """This program has too many connections already. No vendor is to blame."""
    return Answer(failure=errors.PoolExhaustedError("no connection is free"))


@fault("client", replaces=True)
def write_failed(exchange: Exchange) -> Answer:
    """The connection breaks while the request is being sent."""
    return Answer(failure=errors.ConnectionError("the request could not be written"))


@fault("client", replaces=True)
def proxy_refuses(exchange: Exchange) -> Answer:
    """The proxy on the way wants to be told who asks."""
    return Answer(failure=errors.ConnectionError("the proxy refuses", retryable=False))


# Before the answer has begun.


@fault("connection", replaces=True)
def reset_before_headers(exchange: Exchange) -> Answer:
    """A reset in the place of an answer."""
    return Answer(failure=reset())


@fault("connection", replaces=True)
def closed_before_headers(exchange: Exchange) -> Answer:
    """The server closes the connection without a word."""
    return BrokenWire((), seen=Answer(failure=lost()))


@fault("connection", replaces=True)
def closed_in_status_line(exchange: Exchange) -> Answer:
    """The server closes the connection within the first line."""
    return BrokenWire((b"HTTP/1.1 20",), seen=Answer(failure=lost()))


@fault("connection", replaces=True)
def closed_in_headers(exchange: Exchange) -> Answer:
    """The server closes the connection within a header."""
    return BrokenWire((b"HTTP/1.1 200 OK\r\ncontent-ty",), seen=Answer(failure=lost()))


@fault("connection", replaces=True)
def closed_after_continue(exchange: Exchange) -> Answer:
    """The server says that it will go on, and does not."""
    return BrokenWire((b"HTTP/1.1 100 Continue\r\n\r\n",), seen=Answer(failure=lost()))


# In the middle of it.


@fault("connection")
def reset_after_headers(exchange: Exchange) -> Answer:
    """The head of the answer comes, and then a reset."""
    return exchange.cut()


@fault("connection")
def closed_after_headers(exchange: Exchange) -> Answer:
    """The head promises a body, and the connection is closed."""
    return exchange.raw(headers={"content-length": str(len(exchange.body))}, seen=exchange.saying(lost()))


@fault("connection")
def cut_after_first_byte(exchange: Exchange) -> Answer:
    """One byte of the body, and then a reset."""
    return exchange.cut(exchange.body[:1])


@fault("connection")
def cut_in_the_middle(exchange: Exchange) -> Answer:
    """Half of the body, and then a reset."""
    return exchange.cut(*exchange.first_half)


@fault("connection")
def cut_before_the_last_byte(exchange: Exchange) -> Answer:
    """All but the last byte of the body, and then a reset."""
    return exchange.cut(exchange.body[:-1])


@fault("connection", forms=STREAM)
def cut_after_first_event(exchange: Exchange) -> Answer:
    """The first event of a stream, and then a reset."""
    return exchange.cut(exchange.events[0])


@fault("connection", forms=STREAM)
def cut_inside_an_event(exchange: Exchange) -> Answer:
    """Half of the events and half of the next one, and then a reset."""
    following = exchange.second_half[0]
    return exchange.cut(*exchange.first_half, following[: len(following) // 2])


@fault("connection")
def cut_inside_a_character(exchange: Exchange) -> Answer:
    """Half of the body, the first byte of a character that needs two, and then a reset."""
    return exchange.cut(*exchange.first_half, b'data: {"x": "\xc3' if exchange.streamed else b"\xc3")


@fault("connection", forms=STREAM)
def cut_before_terminal_event(exchange: Exchange) -> Answer:
    """Everything but the terminal event, and then a reset."""
    return exchange.cut(*exchange.events[:-1])


@fault("connection", forms=STREAM, harmless=STREAM)
def reset_after_terminal_event(exchange: Exchange) -> Answer:
    """A reset in the place of the last chunk: the answer had been complete."""
    return exchange.cut(exchange.body)


@fault("connection")
def chunks_unfinished(exchange: Exchange) -> Answer:
    """Half of the chunks, and the connection is closed without the last one."""
    half = exchange.first_half
    return exchange.chunked(*chunks(half), seen=exchange.saying(*half, lost()))


@fault("connection", forms=WHOLE)
def last_chunk_missing(exchange: Exchange) -> Answer:
    """The whole body, but not the chunk that says so. It may be all; nobody can know."""
    return exchange.chunked(*chunks([exchange.body]), seen=exchange.saying(exchange.body, lost()))


@fault("connection")
def body_shorter_than_announced(exchange: Exchange) -> Answer:
    """Half of the bytes that the head announces, and the connection is closed."""
    half = exchange.first_half
    announced = {"content-length": str(len(exchange.body))}
    return exchange.raw(*half, headers=announced, seen=exchange.saying(*half, lost()))


@fault("connection")
def body_longer_than_announced(exchange: Exchange) -> Answer:
    """The head announces half of the bytes, so that the rest is not part of the answer."""
    half = exchange.first_half
    announced = {"content-length": str(len(b"".join(half)))}
    return exchange.raw(*exchange.events, headers=announced, seen=exchange.saying(*half))


@fault("connection")
def closed_in_the_middle_of_http_1_0(exchange: Exchange) -> Answer:
    """Half of a body that ends with its connection: an end in peace, and too early."""
    half = exchange.first_half
    return exchange.raw(*half, version="1.0", seen=exchange.saying(*half))
