"""What carrying HTTP has in common whoever carries it: sizes that are kept, and errors that become ours."""

from __future__ import annotations

import errno
import sys
from collections.abc import Mapping
from io import BytesIO

from .. import errors
from ..wire import WireRequest
from .http1 import BadRequest, BadResponse

AT_A_TIME = 64
"""Pieces, or kilobytes, of an answer that is already here, before other tasks of the loop get their turn."""


class Collector:
    """A buffered body, kept within its size."""

    __slots__ = ("_first", "_max_bytes", "_more", "_size")

    def __init__(self, headers: Mapping[str, str], max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._first = b""
        self._more: BytesIO | None = None
        """All of it, once it has come in several parts: a list of them would need twice the room at the end."""
        self._size = 0
        announced = headers.get("content-length", "")
        if announced.isdigit() and int(announced) > max_bytes:
            raise self._too_large()

    def add(self, part: bytes) -> None:
        self._size += len(part)
        if self._size > self._max_bytes:
            self._first, self._more = b"", None  # whoever keeps the error must not keep the megabytes
            raise self._too_large()
        if self._more is not None:
            self._more.write(part)
        elif self._first:
            self._more = BytesIO()
            self._more.write(self._first)
            self._more.write(part)
        else:
            self._first = part

    def finish(self) -> bytes:
        return self._first if self._more is None else self._more.getvalue()

    def _too_large(self) -> errors.ProtocolError:
        return errors.ProtocolError(f"the answer is larger than {self._max_bytes} bytes", retryable=False)


def check_status(status: int) -> None:
    """What no vendor says, but somebody on the way."""
    if status == 407:
        raise errors.ConnectionError("the proxy wants to be told who asks (status 407)", retryable=False)


def described(error: Exception, request: WireRequest) -> str:
    detail = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return f"{request.target}: {detail}" if request.target else detail


def unsendable(error: Exception) -> errors.ConfigurationError:
    """A request that cannot be sent. A library's own message may quote a header, and so a key."""
    if isinstance(error, BadRequest):
        return errors.ConfigurationError(
            f"The request cannot be sent: {error.detail}.", field=error.field, fix="Check URL and headers."
        )
    return errors.ConfigurationError(
        f"The request cannot be sent: {type(error).__name__}.", field="base_url", fix="Check URL and headers."
    )


def ours(error: Exception, request: WireRequest) -> Exception:
    """What a socket or the other side did, as one of our errors; an unknown one is a bug and stays what it is."""
    match error:
        case BadRequest():
            return unsendable(error)
        case BadResponse():
            return errors.ConnectionError(described(error, request))
        case OSError(errno=errno.EMFILE | errno.ENFILE):
            return errors.PoolExhaustedError(described(error, request))
        case TimeoutError():
            return errors.TimeoutError(described(error, request))
        case OSError() | UnicodeError():
            return errors.ConnectionError(described(error, request), retryable=not is_untrusted(error))
        case _:
            raise error


def cause_of(error: Exception) -> Exception | None:
    """What an error of ours may name as its cause: not what was read, for its frames hold the vendor's words."""
    return None if isinstance(error, BadResponse) else error


_CERTIFICATE_ALERTS = (
    "ALERT_ACCESS_DENIED",
    "ALERT_BAD_CERTIFICATE",
    "ALERT_CERTIFICATE_EXPIRED",
    "ALERT_CERTIFICATE_REQUIRED",
    "ALERT_CERTIFICATE_REVOKED",
    "ALERT_CERTIFICATE_UNKNOWN",
    "ALERT_HANDSHAKE_FAILURE",
    "ALERT_UNKNOWN_CA",
    "ALERT_UNSUPPORTED_CERTIFICATE",
)
"""Alerts that refuse a client certificate, or the lack of one, as OpenSSL names them. None goes away by itself."""


def is_untrusted(error: BaseException) -> bool:
    """Whether a certificate was refused, the server's or ours. It will not be accepted next time either."""
    ssl = sys.modules.get("ssl")  # where nobody has loaded it, nothing was verified
    cause: BaseException | None = error if ssl is not None else None
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):  # type: ignore[union-attr]
            return True
        if isinstance(cause, ssl.SSLError) and str(getattr(cause, "reason", "")).endswith(_CERTIFICATE_ALERTS):  # type: ignore[union-attr]
            return True
        cause = cause.__cause__ or cause.__context__
    return False
