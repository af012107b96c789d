"""aiohttp's exceptions, made ours.

Its messages quote URLs, and some of its exceptions hold the request's headers, and so the key. What is said is written
here; a cause is kept only where it shows nothing of the request, and without the frames it came through.
"""

from __future__ import annotations

import errno

import aiohttp

from .. import errors
from ..wire import WireRequest
from .replies import is_untrusted, unsendable


def ours(error: Exception, request: WireRequest) -> errors.AgentError:
    """The library's exception as one of ours; an unknown one is a bug, and is raised as it is."""
    made = _mapped(error, f"{request.target}: {_detail(error)}" if request.target else _detail(error))
    made.__cause__ = _cause(error)
    return made


def _mapped(error: Exception, message: str) -> errors.AgentError:
    match error:
        case OSError(errno=errno.EMFILE | errno.ENFILE):
            return errors.PoolExhaustedError(message)
        case TimeoutError():
            return errors.TimeoutError(message)
        case aiohttp.ClientHttpProxyError():
            return errors.ConnectionError(message, retryable=False)
        case aiohttp.InvalidURL():
            return unsendable(error)
        case aiohttp.ClientError() | OSError() | UnicodeError():
            return errors.ConnectionError(message, retryable=not is_untrusted(error))
        case _:
            raise error


def _detail(error: Exception) -> str:
    """What happened, in words that hold no URL."""
    name = type(error).__name__
    match error:
        case aiohttp.ClientConnectorCertificateError():
            return f"{name}: {error.host} cannot be trusted: {error.certificate_error}"
        case aiohttp.ClientConnectorError():
            return f"{name}: {error.host} cannot be reached: {error.os_error}"
        case aiohttp.ConnectionTimeoutError():
            return f"{name}: connecting took too long"
        case aiohttp.ClientHttpProxyError():
            return f"{name}: the proxy answered with status {error.status}"
        case aiohttp.ClientResponseError():
            return f"{name}: the answer is not HTTP: {error.message}"
        case aiohttp.ServerDisconnectedError():
            return f"{name}: the server hung up without an answer"
        case aiohttp.ClientPayloadError():
            return f"{name}: the answer is broken or was cut off: {error.__cause__}"
        case aiohttp.ClientOSError():
            return f"{name}: the connection was lost: {error.__cause__ or error.errno}"
        case aiohttp.ClientConnectionError():
            return f"{name}: the connection was lost"
        case _:
            return f"{name}: {error}" if str(error) else name


def _cause(error: Exception) -> BaseException | None:
    if isinstance(error, aiohttp.InvalidURL | aiohttp.ClientHttpProxyError):
        return None
    # An answer that is not HTTP: the library's error has all of the request, the parser's below it has none.
    found = error.__cause__ if isinstance(error, aiohttp.ClientResponseError) else error
    seen: BaseException | None = found
    while seen is not None:
        seen.__traceback__ = None  # the headers are in the frames that these lead to
        if seen.__cause__ is None and isinstance(seen.__context__, aiohttp.ClientResponseError):
            seen.__context__ = None
        seen = seen.__cause__ or seen.__context__
    return found
