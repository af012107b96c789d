"""Network and protocol errors, mapped to AgentError."""

from __future__ import annotations

import errno
import sys

from .. import errors
from ..wire import WireRequest
from .parser import BadRequest, BadResponse


def check_status(status: int) -> None:
    """Refuse a status that only a proxy sends."""
    if status == 407:
        raise errors.ConnectionError("proxy authentication required (status 407)", retryable=False)


def describe(error: Exception, request: WireRequest) -> str:
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


def map_error(error: Exception, request: WireRequest) -> Exception:
    """A socket or protocol error as an AgentError. Any other exception is a bug and is raised as it is."""
    match error:
        case BadRequest():
            return unsendable(error)
        case BadResponse():
            return errors.ConnectionError(describe(error, request))
        case OSError(errno=errno.EMFILE | errno.ENFILE):
            return errors.PoolExhaustedError(describe(error, request))
        case TimeoutError():
            return errors.TimeoutError(describe(error, request))
        case OSError() | UnicodeError():
            return errors.ConnectionError(describe(error, request), retryable=not is_untrusted(error))
        case _:
            raise error


def cause_of(error: Exception) -> Exception | None:
    """The cause to chain; None for a parser error, whose frames hold the vendor's words."""
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
    ssl = sys.modules.get("ssl")  # not loaded: no certificate was verified
    cause: BaseException | None = error if ssl is not None else None
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):  # type: ignore[union-attr]
            return True
        if isinstance(cause, ssl.SSLError) and str(getattr(cause, "reason", "")).endswith(_CERTIFICATE_ALERTS):  # type: ignore[union-attr]
            return True
        cause = cause.__cause__ or cause.__context__
    return False
