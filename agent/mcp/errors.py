"""Conversion of MCP failures to the errors of this package.

Errors that a server returns for a tool call become `ToolError`, which the model reads. Connection failures and other
errors are typed.
"""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import ValidationError

from .. import errors
from ..errors import ConfigurationError
from ..tools.base import ToolError
from .credentials import Redactor, drop_inputs

if TYPE_CHECKING:
    from mcp import MCPError


E = TypeVar("E", bound=errors.AgentError)
_MAX_STDERR = 4_096
_COLOR_CODES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")


class ConnectionLog:
    """Facts about a connection, recorded by the transport for error messages."""

    def __init__(self, label: str, redactor: Redactor) -> None:
        self.label = label
        self.redactor = redactor
        self.clear()

    def clear(self) -> None:
        self.exit_code: int | None = None
        self.reason: str | None = None
        """Why the connection ended, if the transport knows."""
        self.has_messages = False
        """Whether the server has sent a valid message."""
        self.invalid_line: str | None = None
        """The first line of output that is not a message."""
        self._stderr = bytearray()
        self._has_all_stderr = True

    def add_stderr(self, data: bytes) -> None:
        self._stderr += data
        self._has_all_stderr = self._has_all_stderr and len(self._stderr) <= _MAX_STDERR
        del self._stderr[:-_MAX_STDERR]

    def redact(self, text: str, length: int) -> str:
        """Return the start of a text, without secrets and control characters."""
        return _remove_control_characters(self.redactor.redact_start(drop_inputs(text), length))

    @property
    def stderr_tail(self) -> str:
        """The end of the server's standard error."""
        redact = self.redactor if self._has_all_stderr else self.redactor.redact_end
        return _remove_control_characters(redact(self._stderr.decode("utf-8", "replace"))).strip()[-2_000:]

    def describe_end(self) -> str:
        """Describe how the connection ended, with the last line of standard error."""
        parts: list[str] = []
        if self.reason is not None:
            parts.append(self.reason)
        elif self.exit_code is not None:
            parts.append(f"it exited with status {self.exit_code}")
        if self.invalid_line is not None and not self.has_messages:
            parts.append(f"its output is not an MCP message: {self.invalid_line!r}")
        if words := self.stderr_tail:  # the complete text is in the body of the error
            parts.append(f"its last message was: {words.rpartition(chr(10))[2].strip()[-300:]}")
        return "; ".join(parts)

    def make_error(self, kind: type[E], message: str, **facts: Any) -> E:
        """Create an error that names the server."""
        return kind(f"{self.label}: {message}", provider=self.label, **facts)

    def make_end_error(self, kind: type[E], message: str) -> E:
        """Create an error that describes how the connection ended."""
        ending = self.describe_end()
        return self.make_error(kind, f"{message}; {ending}" if ending else message, body=self.stderr_tail or None)


def _remove_control_characters(text: str) -> str:
    return "".join(char if char.isprintable() or char == "\n" else " " for char in _COLOR_CODES.sub("", text))


HTTP_ERROR_KEY = "agent-llm-router/http"
"""Key of the HTTP failure in the data of an error that our HTTP client generates."""
_MAX_TEXT = 2_000


class SessionLost(Exception):
    """The HTTP server has forgotten the session. The request was not executed and can be retried."""


def to_agent_error(error: BaseException, log: ConnectionLog, doing: str, seconds: float | None = None) -> Exception:
    """Convert an exception of the SDK that was raised while `doing` something."""
    from mcp import MCPError

    if isinstance(error, BaseExceptionGroup):
        return to_agent_error(_innermost_error(error), log, doing, seconds)
    if isinstance(error, errors.AgentError | ToolError | SessionLost):
        return error
    if isinstance(error, MCPError):
        return _convert_mcp_error(error, log, doing, seconds)
    if isinstance(error, ValidationError):
        fields = sorted({".".join(map(str, problem["loc"][:4])) for problem in error.errors(include_input=False)})
        message = f"the answer while {doing} violates the protocol: {', '.join(fields[:5])}"
        return log.make_error(errors.ProtocolError, message, retryable=False)
    if isinstance(error, TimeoutError):
        return timeout_error(log, doing, seconds)
    if isinstance(error, OSError):
        return log.make_error(errors.ConnectionError, log.redact(str(error), _MAX_TEXT))
    text = log.redact(str(error), _MAX_TEXT)
    # The SDK reports structured content that does not fit its schema, and unknown versions, as RuntimeError.
    message = f"{type(error).__name__} while {doing}: {text.partition(chr(10))[0]}"
    return log.make_error(errors.ProtocolError, message, retryable=False)


def timeout_error(log: ConnectionLog, doing: str, seconds: float | None) -> errors.TimeoutError:
    within = "in time" if seconds is None else f"within {seconds:g} s"
    return log.make_end_error(errors.TimeoutError, f"no answer {within} while {doing}")


def connection_lost(log: ConnectionLog, doing: str) -> errors.ConnectionError:
    return log.make_end_error(errors.ConnectionError, f"the connection to the MCP server ended while {doing}")


def is_connection_closed(error: BaseException) -> bool:
    """Whether the connection is closed, rather than one response lost."""
    from mcp import MCPError
    from mcp_types import CONNECTION_CLOSED

    error = _innermost_error(error)
    return isinstance(error, MCPError) and error.code == CONNECTION_CLOSED and error.message == "Connection closed"


def tool_error_text(error: MCPError, redactor: Redactor) -> str | None:
    """Return the error text that the server sent; None if the connection failed instead."""
    from mcp_types import CONNECTION_CLOSED, PARSE_ERROR, REQUEST_TIMEOUT

    is_generated = isinstance(error.data, dict) and HTTP_ERROR_KEY in error.data
    if is_generated or error.code in (CONNECTION_CLOSED, REQUEST_TIMEOUT):
        return None
    text = drop_inputs(error.message) if error.code == PARSE_ERROR else error.message
    return redactor.redact_start(text, _MAX_TEXT) or f"The server refused with code {error.code}."


def _innermost_error(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _convert_mcp_error(error: Any, log: ConnectionLog, doing: str, seconds: float | None) -> Exception:
    from mcp_types import CONNECTION_CLOSED, REQUEST_TIMEOUT

    if isinstance(error.data, dict) and isinstance(failure := error.data.get(HTTP_ERROR_KEY), dict):
        return _convert_http_error(failure, log, doing)
    if error.code == CONNECTION_CLOSED:
        if error.message != "Connection closed" and log.reason is None:
            return log.make_error(errors.ConnectionError, log.redact(error.message, _MAX_TEXT))
        return connection_lost(log, doing)
    if error.code == REQUEST_TIMEOUT and seconds is not None:
        return timeout_error(log, doing, seconds)
    text = log.redact(error.message, _MAX_TEXT) or "refused"
    return log.make_error(errors.ProviderError, text, code=str(error.code))


def _convert_http_error(failure: dict[str, Any], log: ConnectionLog, doing: str) -> Exception:
    status, text = failure.get("status"), log.redact(str(failure.get("text") or ""), _MAX_TEXT)
    facts: dict[str, Any] = {"status_code": status, "body": text or None}
    if failure.get("session_lost"):
        return SessionLost(log.label)
    if status in (401, 403):
        message = f"the MCP server denied access while {doing}; pass credentials in headers= or auth="
        return log.make_error(errors.AuthenticationError, message, **facts)
    if status in (404, 405, 410):
        return log.make_error(
            errors.ConfigurationError,
            "there is no MCP server at this address.",
            field="url",
            fix="Check its path: servers usually listen at /mcp. Old servers with the SSE transport are not supported.",
            **facts,
        )
    if status is not None:
        retryable = status >= 500 or status == 429
        return log.make_error(errors.ConnectionError, f"HTTP {status} while {doing}", **facts, retryable=retryable)
    return log.make_error(errors.ConnectionError, text or "no answer")


INSTALL = 'pip install "agent-llm-router[mcp]"'


def require_sdk() -> None:
    """Raise ConfigurationError unless the SDK is installed."""
    try:
        import mcp.client.client  # noqa: F401
        import mcp_types  # noqa: F401
    except ImportError as error:
        raise ConfigurationError(
            "MCP needs the official SDK, the package `mcp` 2.3 or later.", field="extra", fix=f"Run: {INSTALL}"
        ) from error
    for name in ("mcp.client", "client"):
        # Failures are raised, so the SDK's log messages are silent unless the program configures them.
        logger = logging.getLogger(name)
        if not logger.handlers:
            logger.addHandler(logging.NullHandler())
