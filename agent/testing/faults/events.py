"""Streams whose events go wrong, and those whose events only look unusual."""

from __future__ import annotations

import re

from ...engine.wire import Answer
from .fault import STREAM, Exchange, Fault, fault
from .responses import HTML, Reason, error_event

# Ends that are none.


@fault("events", forms=STREAM)
def no_terminal_event(exchange: Exchange) -> Answer:
    """Everything but the terminal event, and a clean end."""
    return exchange.saying(*exchange.events[:-1])


@fault("events", forms=STREAM)
def ends_in_the_middle(exchange: Exchange) -> Answer:
    """Half of the events, and a clean end."""
    return exchange.saying(*exchange.first_half)


@fault("events", forms=STREAM)
def ends_after_first_event(exchange: Exchange) -> Answer:
    """The first event, and a clean end."""
    return exchange.saying(exchange.events[0])


@fault("events", forms=STREAM)
def ends_inside_an_event(exchange: Exchange) -> Answer:
    """Half of the events and half of the next one, and a clean end."""
    following = exchange.second_half[0]
    return exchange.saying(*exchange.first_half, following[: len(following) // 2])


@fault("events", forms=STREAM)
def ends_inside_a_character(exchange: Exchange) -> Answer:
    """Half of the events and the first byte of a character that needs two, and a clean end."""
    return exchange.saying(*exchange.first_half, b'data: {"x": "\xc3')


@fault("events", forms=STREAM)
def terminal_event_unfinished(exchange: Exchange) -> Answer:
    """The terminal event without the blank line that ends it, and a clean end."""
    return exchange.saying(exchange.body.rstrip(b"\n"))


@fault("events", forms=STREAM, replaces=True)
def only_comments(exchange: Exchange) -> Answer:
    """Comments, and a clean end."""
    return exchange.saying(b": hello\n\n", b": still here\n\n")


@fault("events", forms=STREAM, replaces=True)
def only_blank_lines(exchange: Exchange) -> Answer:
    """Blank lines, and a clean end."""
    return exchange.saying(b"\n" * 64)


# Events that are none.


def _between(name: str, about: str, event: bytes) -> Fault:
    def apply(exchange: Exchange) -> Answer:
        return exchange.saying(*exchange.first_half, event, *exchange.second_half)

    return Fault(name=name, about=about, kind="events", apply=apply, forms=STREAM)


NONSENSE = (
    _between("event-null", "In the middle, an event that is null.", b"data: null\n\n"),
    _between("event-list", "In the middle, an event that is a list.", b"data: [1, 2]\n\n"),
    _between("event-number", "In the middle, an event that is a number.", b"data: 17\n\n"),
    _between("event-string", "In the middle, an event that is a string.", b'data: "hello"\n\n'),
    _between("event-of-no-type", "In the middle, an event whose type is a number.", b'data: {"type": 7}\n\n'),
    _between("event-words", "In the middle, an event that is no JSON.", b"data: please wait\n\n"),
    _between("event-html", "In the middle, a page as an event.", b"data: " + HTML + b"\n\n"),
)


@fault("events", forms=STREAM)
def html_in_the_middle(exchange: Exchange) -> Answer:
    """Half of the events, and then the page of a gateway that has given up."""
    return exchange.saying(*exchange.first_half, HTML)


# Errors that a vendor reports.


def _reported(name: str, about: str, reason: Reason, *, first: bool) -> Fault:
    def apply(exchange: Exchange) -> Answer:
        error = error_event(exchange.request, reason)
        return exchange.saying(*([] if first else exchange.first_half), error)

    return Fault(name=name, about=about, kind="events", apply=apply, forms=STREAM, replaces=first)


REPORTED = (
    _reported("overloaded-event-first", "The first event says: overloaded.", "overloaded", first=True),
    _reported("rate-limit-event-first", "The first event says: too many requests.", "rate", first=True),
    _reported("credit-event-first", "The first event says: no credit.", "credit", first=True),
    _reported("failure-event-first", "The first event says: the server has failed.", "failing", first=True),
    _reported("overloaded-event", "In the middle, an event says: overloaded.", "overloaded", first=False),
    _reported("rate-limit-event", "In the middle, an event says: too many requests.", "rate", first=False),
    _reported("failure-event", "In the middle, an event says: the server has failed.", "failing", first=False),
)

# What is only unusual, and must not be noticed.


@fault("harmless", forms=STREAM, harmless=STREAM)
def comments(exchange: Exchange) -> Answer:
    """Comments between the events."""
    return exchange.saying(*(b": ping\n\n" + event for event in exchange.events))


@fault("harmless", forms=STREAM, harmless=STREAM)
def bom(exchange: Exchange) -> Answer:
    """A byte order mark at the start."""
    return exchange.saying(b"\xef\xbb\xbf" + exchange.body)


@fault("harmless", forms=STREAM, harmless=STREAM)
def crlf(exchange: Exchange) -> Answer:
    """Lines that end with CR and LF."""
    return exchange.saying(exchange.body.replace(b"\n", b"\r\n"))


@fault("harmless", forms=STREAM, harmless=STREAM)
def cr(exchange: Exchange) -> Answer:
    """Lines that end with CR."""
    return exchange.saying(exchange.body.replace(b"\n", b"\r"))


@fault("harmless", forms=STREAM, harmless=STREAM)
def no_space_after_colon(exchange: Exchange) -> Answer:
    """No blank after `data:`."""
    return exchange.saying(re.sub(rb"(?m)^(data|event): ", rb"\1:", exchange.body))


@fault("harmless", forms=STREAM, harmless=STREAM)
def ids_and_retry_hints(exchange: Exchange) -> Answer:
    """Fields that server-sent events may have."""
    return exchange.saying(b"retry: 3000\n\n", *(b"id: 7\n" + event for event in exchange.events))


@fault("harmless", forms=STREAM, harmless=STREAM)
def unknown_fields(exchange: Exchange) -> Answer:
    """Fields that server-sent events do not have."""
    return exchange.saying(*(b"colour: red\nnothing\n" + event for event in exchange.events))


@fault("harmless", forms=STREAM, harmless=STREAM)
def blank_lines(exchange: Exchange) -> Answer:
    """More blank lines than are needed."""
    return exchange.saying(b"\n\n", *(event + b"\n\n\n" for event in exchange.events))


@fault("harmless", forms=STREAM, harmless=STREAM)
def data_in_several_lines(exchange: Exchange) -> Answer:
    """Events whose JSON is spread over lines."""
    return exchange.saying(re.sub(rb"(?m)^data: \{", b"data: {\ndata: ", exchange.body))


@fault("harmless", forms=STREAM, harmless=STREAM)
def byte_by_byte(exchange: Exchange) -> Answer:
    """Every byte by itself."""
    body = exchange.body
    return exchange.saying(*(body[at : at + 1] for at in range(len(body))))


@fault("harmless", forms=STREAM, harmless=STREAM)
def all_at_once(exchange: Exchange) -> Answer:
    """All events in one piece."""
    return exchange.saying(exchange.body)


@fault("harmless", forms=STREAM, harmless=STREAM)
def terminal_event_twice(exchange: Exchange) -> Answer:
    """The terminal event, and once more."""
    return exchange.saying(exchange.body, exchange.events[-1])


@fault("harmless", forms=STREAM, harmless=STREAM)
def comments_after_terminal_event(exchange: Exchange) -> Answer:
    """A comment behind the end."""
    return exchange.saying(exchange.body, b": bye\n\n")


@fault("harmless", forms=STREAM, harmless=STREAM)
def events_after_terminal_event(exchange: Exchange) -> Answer:
    """The first event once more, behind the end. Where only the end of the bytes is one, it is part of the answer."""
    return exchange.saying(exchange.body, exchange.events[0])


@fault("harmless", forms=STREAM, harmless=STREAM)
def garbage_after_terminal_event(exchange: Exchange) -> Answer:
    """A page behind the end. Where only the end of the bytes is an end, the answer is broken."""
    return exchange.saying(exchange.body, HTML)
