"""Rules for HTTP headers given by users."""

from __future__ import annotations

import re

_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")

_HOLDS_KEY = re.compile(r"auth|key|token|secret|cookie|password|credential")

RESERVED_HEADERS = frozenset(
    (
        "connection",
        "content-length",
        "expect",
        "host",
        "keep-alive",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    )
)
"""Headers that frame a message or belong to one connection. Sent twice, they allow request smuggling."""


def check_header(name: str, value: object) -> None:
    """Raise ValueError, without the value, unless the header may be sent."""
    if not _NAME.fullmatch(name):
        raise ValueError("the name of a header holds a character that HTTP does not allow there")
    if name.lower() in RESERVED_HEADERS:
        raise ValueError(f"the header {name} is set by the HTTP client and cannot be given; remove it")
    if not isinstance(value, str):
        raise ValueError(f"the value of {name} is not text")
    if _CONTROL.search(value):
        raise ValueError(f"the value of {name} holds a line break, NUL or another control character; remove it")
    try:
        value.encode("latin-1")
    except UnicodeEncodeError:
        raise ValueError(f"the value of {name} holds a character outside Latin-1; encode it") from None


def holds_key(name: str) -> bool:
    """Whether a header of this name may carry a credential."""
    return _HOLDS_KEY.search(name.lower()) is not None
