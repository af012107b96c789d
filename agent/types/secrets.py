"""Secrets and HTTP headers: text that masks itself, redaction, and header validation."""

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

from ._base import Accepts, FrozenDict

MASK = "**********"
"""pydantic's mask for a secret. It is read back as None, so a dumped config has no key instead of a wrong one."""

REDACTED = "***"


class Secret(SecretStr):
    """A secret string: masked in output, absent from pickles. Read it with `get_secret_value()`."""

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
        return _restore_pickled, ()


def _to_bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _restore_pickled() -> None:
    """Return None: the process that unpickles reads the key from its own environment."""


def _read_secret(value: Any) -> Any:
    if isinstance(value, SecretStr):
        value = value.get_secret_value()
    if value == MASK:
        return None
    return Secret(value) if isinstance(value, str) else value


SecretField = Accepts[Annotated[Secret | None, BeforeValidator(_read_secret)], str | SecretStr | None]
"""A field that accepts text and returns a `Secret`."""


class _Rejected:
    """Replaces a secret of the wrong type."""

    @override
    def __repr__(self) -> str:
        return MASK


def mask_options(options: dict[str, Any], names: Iterable[str]) -> None:
    """Make options secret in place, because the arguments of a function are local variables."""
    for name in names:
        if options.get(name) is not None:
            options[name] = _mask_value(options[name])


def _mask_value(value: Any) -> Any:
    if isinstance(value, SecretHeaders | SecretStr):
        return value
    if isinstance(value, Mapping):
        return {name: _mask_value(item) for name, item in value.items()}
    return Secret(value) if isinstance(value, str) else _Rejected()


class SecretHeaders(FrozenDict):
    """HTTP headers with secret values: masked in output, absent from pickles."""

    __slots__ = ()

    def reveal(self) -> dict[str, str]:
        """Return the headers as plain text."""
        return {name: value.get_secret_value() for name, value in self.items()}

    @override
    def __reduce__(self) -> Any:
        return SecretHeaders, ()

    @classmethod
    @override
    def __get_pydantic_core_schema__(cls, source: object, handler: Any) -> CoreSchema:
        return core_schema.no_info_after_validator_function(cls, handler.generate_schema(dict[str, Secret]))


def unmask_headers(headers: Mapping[str, Any]) -> dict[str, Any]:
    """Return plain header values, without those masked in a dump."""
    plain = {
        name: value.get_secret_value() if isinstance(value, SecretStr) else value for name, value in headers.items()
    }
    return {name: value for name, value in plain.items() if value != MASK}


def redact(text: str, secrets: Iterable[str]) -> str:
    """Replace every occurrence of the secrets in `text`, also in encoded, escaped and lower-case forms."""
    pattern = _compile_pattern(tuple(secret for secret in secrets if secret))
    return text if pattern is None else pattern.sub(REDACTED, text)


@lru_cache(maxsize=64)
def _compile_pattern(secrets: tuple[str, ...]) -> re.Pattern[str] | None:
    spellings = {spelling for secret in secrets for spelling in _list_encodings(secret)}
    if not spellings:
        return None
    longest_first = sorted(spellings, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)), re.IGNORECASE)


def _list_encodings(secret: str) -> Iterator[str]:
    yield secret
    data = _to_bytes(secret)
    yield from (quote(data), quote(data, safe=""), quote_plus(data))
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
"""Headers that the HTTP client sets itself. Duplicates would allow request smuggling."""


def validate_header(name: str, value: object) -> None:
    """Raise a ValueError, which never shows the value, if the header must not be sent."""
    if not _NAME.fullmatch(name):
        raise ValueError("a header name contains a character that HTTP does not allow")
    if name.lower() in RESERVED_HEADERS:
        raise ValueError(f"header {name} is set by the HTTP client; remove it")
    if not isinstance(value, str):
        raise ValueError(f"the value of header {name} is not a string")
    if _CONTROL.search(value):
        raise ValueError(f"the value of header {name} contains a line break or control character; remove it")
    try:
        value.encode("latin-1")
    except UnicodeEncodeError:
        raise ValueError(f"the value of header {name} contains characters outside Latin-1; encode it") from None


def is_credential_header(name: str) -> bool:
    """Whether a header of this name may carry a credential."""
    return _HOLDS_KEY.search(name.lower()) is not None
