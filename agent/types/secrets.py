"""Secrets and HTTP headers: text that masks itself, redaction, and header validation."""

from __future__ import annotations

import base64
import hmac
import json
import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from typing import Annotated, Any
from urllib.parse import quote, quote_plus

from pydantic import BeforeValidator, PlainSerializer, SecretStr, WrapValidator
from pydantic_core import CoreSchema, core_schema
from typing_extensions import override

from ..errors import printable
from ._base import EMPTY_OBJECT, Accepts, FrozenDict, FrozenList, freeze, freeze_json, to_plain_json

MASK = "**********"
"""pydantic's mask for a secret. It is read back as None, so a dumped config has no key instead of a wrong one."""

REDACTED = "***"


class Secret(SecretStr):
    """A secret string: masked in output, absent from pickles. Read it with `get_secret_value()`."""

    _secret_value: str = ""  # if the constructor was interrupted

    @override
    def _display(self) -> str:
        return MASK

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
    @printable
    def __repr__(self) -> str:
        return MASK


def mask_options(options: dict[str, Any], public: Container[str]) -> None:
    """Make options secret in place, because arguments of a function are local variables."""
    for name, value in options.items():
        if name == "extra" and isinstance(value, Mapping):
            with suppress(ValueError):
                options[name] = freeze_extra(freeze_json(dict(value)))
        elif (
            value is not None and name not in public and (name in ("headers", "base_url") or is_credential_header(name))
        ):
            options[name] = _mask_value(value)


def _mask_value(value: Any) -> Any:
    if isinstance(value, SecretHeaders | SecretStr):
        return value
    if isinstance(value, Mapping):
        return {
            name if isinstance(name, str) and _NAME.fullmatch(name) else "": _mask_value(value[name]) for name in value
        }
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


_CREDENTIAL_NAME = (
    r"(?i)(?:^|[_-])(?:(?:api|access|account|private|secret|subscription)[_-]?)?key$|^(?:\w*[_-])?token$|[a-z]Token$"
    r"|secret|password|passphrase|credential|authorization|cookie"
)
_PUBLIC_NAMES = frozenset(("prompt_cache_key",))
_CREDENTIAL = r"(?:Bearer|Basic)\s+\S{8,}|(?:sk|pk|rk|gsk|hf|ghp|glpat|xai)[-_]\S{16,}"


class _Extra(FrozenDict):
    """A JSON object in which credentials are secret: masked in output, absent from pickles."""

    __slots__ = ()

    @override
    def __reduce__(self) -> Any:
        return freeze_extra, (_remove(self, lambda item: isinstance(item, SecretStr)),)


def looks_like_credential(text: str) -> bool:
    """Whether text has the form of a credential, such as `Bearer …` or `sk-…`."""
    return re.fullmatch(_CREDENTIAL, text) is not None


def freeze_extra(value: Mapping[str, Any]) -> FrozenDict:
    """Freeze vendor settings. Credentials become secret, and those masked in a dump are removed."""
    return _Extra(_hide_credentials(_remove(dict(value), lambda item: item == MASK)))


def _remove(value: Any, is_removed: Callable[[Any], bool]) -> Any:
    if isinstance(value, dict):
        return {key: _remove(item, is_removed) for key, item in value.items() if not is_removed(item)}
    if isinstance(value, list):
        return [_remove(item, is_removed) for item in value if not is_removed(item)]
    return value


def _hide_credentials(value: Any, name: str = "") -> Any:
    """Make text secret if its name or its form is that of a credential."""
    if isinstance(value, dict):
        return FrozenDict([(key, _hide_credentials(item, key)) for key, item in value.items()])
    if isinstance(value, list):
        return FrozenList([_hide_credentials(item, name) for item in value])
    if isinstance(value, SecretStr):
        return _read_secret(value)
    if isinstance(value, str) and name not in _PUBLIC_NAMES:
        return Secret(value) if re.search(_CREDENTIAL_NAME, name) or looks_like_credential(value) else value
    return value


def _freeze_extra(value: Any, check: Any) -> Any:
    return freeze_extra(freeze_json(check(value))) if value else EMPTY_OBJECT


ExtraField = Annotated[
    dict[str, Any], WrapValidator(_freeze_extra), PlainSerializer(to_plain_json, when_used="json-unless-none")
]
"""Vendor settings: a frozen object in which credentials are secret."""


def reveal_extra(extra: Mapping[str, Any]) -> Any:
    """Return vendor settings with their credentials as text, for a request that is about to be sent."""
    return freeze(_reveal(extra)) if find_secrets(extra) else extra


def _reveal(value: Any) -> Any:
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    if isinstance(value, dict):
        return {key: _reveal(item) for key, item in value.items()}
    return [_reveal(item) for item in value] if isinstance(value, list) else value


def find_secrets(value: Any) -> list[str]:
    """Return the secrets in JSON data."""
    if isinstance(value, SecretStr):
        return [value.get_secret_value()]
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [secret for item in items for secret in find_secrets(item)]


def unmask_headers(headers: Mapping[str, Any]) -> dict[str, Any]:
    """Return plain header values, without those masked in a dump."""
    plain = {
        name: value.get_secret_value() if isinstance(value, SecretStr) else value for name, value in headers.items()
    }
    return {name: value for name, value in plain.items() if value != MASK}


def redact(text: str, secrets: Iterable[str]) -> str:
    """Replace every occurrence of the secrets in `text`, also encoded, escaped or in lower case."""
    pattern = _compile_pattern(tuple(secret for secret in secrets if secret))
    return text if pattern is None else pattern.sub(REDACTED, text)


def redact_start(text: str, secrets: Iterable[str], length: int) -> str:
    """Return the redacted start of a text, which does not end within a secret."""
    secrets = tuple(secrets)
    start = text[: 4 * length]
    redacted = redact(start, secrets)
    if len(start) < len(text):
        redacted = redacted[: max(0, len(redacted) - longest_spelling(secrets))]
    return redacted[:length]


def longest_spelling(secrets: Iterable[str]) -> int:
    """Return the length of the longest text that `redact` replaces.

    A text that was cut may begin or end with a part of it.
    """
    return max((len(spelling) for secret in secrets for spelling in _list_encodings(secret)), default=0)


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
