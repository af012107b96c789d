"""Keys that do not leak: a text type that masks itself, and a function that masks other people's text.

Nothing here knows which vendor a key belongs to, or where keys come from.
"""

from __future__ import annotations

import base64
import hmac
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Annotated, Any
from urllib.parse import quote, quote_plus

from pydantic import BeforeValidator, SecretStr
from pydantic_core import CoreSchema, core_schema
from typing_extensions import override

from ._base import FrozenDict, Reads

MASK = "**********"
"""What pydantic writes in place of a secret. It reads back as None: a dumped config has no key, not a wrong one."""

REDACTED = "***"


class Secret(SecretStr):
    """A key: masked wherever it is shown, equal to its text, absent from pickles. `get_secret_value()` reads it."""

    @override
    def __eq__(self, other: object) -> bool:
        text = other.get_secret_value() if isinstance(other, SecretStr) else other
        if not isinstance(text, str):
            return False
        return hmac.compare_digest(_to_bytes(text), _to_bytes(self.get_secret_value()))

    @override
    def __hash__(self) -> int:
        return hash(self.get_secret_value())

    def __copy__(self) -> Secret:
        return self

    def __deepcopy__(self, memo: object) -> Secret:
        return self

    @override
    def __reduce__(self) -> Any:
        return _lost, ()


def _to_bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _lost() -> None:
    """What a pickled secret becomes: other processes find their key in their own environment."""


def _read_secret(value: Any) -> Any:
    if isinstance(value, SecretStr):
        value = value.get_secret_value()
    if value == MASK:
        return None
    return Secret(value) if isinstance(value, str) else value


SecretField = Reads[Annotated[Secret | None, BeforeValidator(_read_secret)], str | SecretStr | None]
"""A field that takes text and gives a `Secret`."""


class SecretHeaders(FrozenDict):
    """HTTP headers with secret values: masked wherever they are shown, absent from pickles."""

    __slots__ = ()

    def reveal(self) -> dict[str, str]:
        """The headers as plain text."""
        return {name: value.get_secret_value() for name, value in self.items()}

    @override
    def __reduce__(self) -> Any:
        return SecretHeaders, ()

    @classmethod
    @override
    def __get_pydantic_core_schema__(cls, source: object, handler: Any) -> CoreSchema:
        return core_schema.no_info_after_validator_function(cls, handler.generate_schema(dict[str, Secret]))


def unmask_headers(headers: Mapping[str, Any]) -> dict[str, Any]:
    """Plain values of headers. Masked values, as read from a dump, are left out."""
    plain = {
        name: value.get_secret_value() if isinstance(value, SecretStr) else value for name, value in headers.items()
    }
    return {name: value for name, value in plain.items() if value != MASK}


def redact(text: str, secrets: Iterable[str]) -> str:
    """`text` with every occurrence of each secret replaced, also where it was quoted, encoded or escaped."""
    pattern = _any_of(tuple(secret for secret in secrets if secret))
    return text if pattern is None else pattern.sub(REDACTED, text)


@lru_cache(maxsize=64)
def _any_of(secrets: tuple[str, ...]) -> re.Pattern[str] | None:
    """Found out once for each key: a vendor in trouble fails more than one call."""
    spellings = {spelling for secret in secrets for spelling in _spellings(secret)}
    if not spellings:
        return None
    longest_first = sorted(spellings, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)))


def _spellings(secret: str) -> Iterator[str]:
    yield secret
    data = _to_bytes(secret)
    for encoded in (quote(data), quote(data, safe=""), quote_plus(data)):
        yield encoded
        yield re.sub("%[0-9A-F]{2}", lambda escape: escape[0].lower(), encoded)
    for encoded in (base64.b64encode(data).decode(), base64.urlsafe_b64encode(data).decode()):
        yield encoded
        yield encoded.rstrip("=")

    for ascii_only in (True, False):
        yield json.dumps(secret, ensure_ascii=ascii_only)[1:-1]


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


def is_credential_header(name: str) -> bool:
    """Whether a header of this name may carry a credential."""
    return _HOLDS_KEY.search(name.lower()) is not None
