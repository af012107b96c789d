"""What goes wrong between us and a server, as errors of this package: which server, what happened, what to do.

Nothing here does I/O. What a server answers to a tool's call is for the model to read; what breaks the connection, and
what it answers to anything else, is typed.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from .. import errors
from ..errors import ConfigurationError
from ..tools.base import ToolError

if TYPE_CHECKING:
    from mcp import Client, MCPError


_KEPT = 4_096
_SHORTEST_SECRET = 6
_COLOURS = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")


class Notes:
    """Written by a transport, read by whoever explains a failure."""

    def __init__(self, label: str, secrets: Iterable[str] = ()) -> None:
        self.label = label
        self._secrets = sorted({each for each in secrets if len(each) >= _SHORTEST_SECRET}, key=len, reverse=True)
        self.clear()

    def clear(self) -> None:
        """Before another try."""
        self.exit_code: int | None = None
        self.reason: str | None = None
        """Why the connection ended, where the transport knows."""
        self.heard = False
        """Whether the server ever said something that is a message."""
        self.babble: str | None = None
        """The first line on its output that was no message."""
        self._stderr = bytearray()

    def hear_stderr(self, data: bytes) -> None:
        self._stderr += data
        del self._stderr[:-_KEPT]

    def clean(self, text: str) -> str:
        """Without control characters, and without what was passed in confidence."""
        for secret in self._secrets:
            text = text.replace(secret, "***")
        text = _COLOURS.sub("", text)
        return "".join(each if each.isprintable() or each == "\n" else " " for each in text)

    @property
    def last_words(self) -> str:
        """The end of what it wrote to stderr."""
        return self.clean(self._stderr.decode("utf-8", "replace")).strip()[-2_000:]

    def epitaph(self) -> str:
        """How it ended, and what it said last."""
        parts: list[str] = []
        if self.reason is not None:
            parts.append(self.reason)
        elif self.exit_code is not None:
            parts.append(f"it ended with status {self.exit_code}")
        if self.babble is not None and not self.heard:
            parts.append(f"it wrote what is no message to its output: {self.babble!r}")
        if words := self.last_words:  # the last line; the others are for those who look for them
            parts.append(f"it last said: {words.rpartition(chr(10))[2].strip()[-300:]}")
        return "; ".join(parts)


MARK = "agent-llm-router/http"
"""The key, in the data of an error that our HTTP client made up, of what really happened on the wire."""
_MOST = 2_000


class SessionLost(Exception):
    """An HTTP server does not know our session any more. What was asked was not done, and may be asked again."""


def explained(error: BaseException, notes: Notes, doing: str, seconds: float | None = None) -> Exception:
    """The error to raise for whatever the SDK raised while we were `doing` something."""
    from mcp import MCPError

    if isinstance(error, BaseExceptionGroup):
        return explained(_innermost(error), notes, doing, seconds)
    if isinstance(error, errors.AgentError | ToolError | SessionLost):
        return error
    if isinstance(error, MCPError):
        return _answered(error, notes, doing, seconds)
    if isinstance(error, ValidationError):
        fields = sorted({".".join(map(str, problem["loc"][:4])) for problem in error.errors(include_input=False)})
        return errors.ProtocolError(
            f"{notes.label}: the answer while {doing} is not what MCP promises: {', '.join(fields[:5])}",
            provider=notes.label,
            retryable=False,
        )
    if isinstance(error, TimeoutError):
        return timed_out(notes, doing, seconds)
    if isinstance(error, OSError):
        return errors.ConnectionError(f"{notes.label}: {notes.clean(str(error))[:_MOST]}", provider=notes.label)
    # The SDK reports structured content that does not fit its schema, and unknown versions, as RuntimeError.
    return errors.ProtocolError(
        f"{notes.label}: {type(error).__name__} while {doing}: {notes.clean(str(error)).partition(chr(10))[0][:_MOST]}",
        provider=notes.label,
        retryable=False,
    )


def timed_out(notes: Notes, doing: str, seconds: float | None) -> errors.TimeoutError:
    within = "in time" if seconds is None else f"within {seconds:g} s"
    seen = notes.epitaph()
    return errors.TimeoutError(
        f"{notes.label}: no answer {within} while {doing}{f'; {seen}' if seen else ''}",
        provider=notes.label,
        body=notes.last_words or None,
    )


def lost(notes: Notes, doing: str) -> errors.ConnectionError:
    seen = notes.epitaph()
    return errors.ConnectionError(
        f"{notes.label}: the connection to the MCP server ended while {doing}{f'; {seen}' if seen else ''}",
        provider=notes.label,
        body=notes.last_words or None,
    )


def is_closed(error: BaseException) -> bool:
    """Whether the SDK says that its connection is over for good, not just one answer lost."""
    from mcp import MCPError
    from mcp_types import CONNECTION_CLOSED

    error = _innermost(error)
    return isinstance(error, MCPError) and error.code == CONNECTION_CLOSED and error.message == "Connection closed"


def words_for_a_model(error: MCPError) -> str | None:
    """What the server itself answered; None if it is not the server that speaks, but the connection that failed."""
    from mcp_types import CONNECTION_CLOSED, REQUEST_TIMEOUT

    made_up = isinstance(error.data, dict) and MARK in error.data
    if made_up or error.code in (CONNECTION_CLOSED, REQUEST_TIMEOUT):
        return None
    return error.message[:_MOST] or f"The server refused with code {error.code}."


def _innermost(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _answered(error: Any, notes: Notes, doing: str, seconds: float | None) -> Exception:
    from mcp_types import CONNECTION_CLOSED, REQUEST_TIMEOUT

    if isinstance(error.data, dict) and isinstance(found := error.data.get(MARK), dict):
        return _on_the_wire(found, notes, doing)
    if error.code == CONNECTION_CLOSED:
        if error.message != "Connection closed" and notes.reason is None:
            return errors.ConnectionError(f"{notes.label}: {notes.clean(error.message)}", provider=notes.label)
        return lost(notes, doing)
    if error.code == REQUEST_TIMEOUT and seconds is not None:
        return timed_out(notes, doing, seconds)
    return errors.ProviderError(
        f"{notes.label}: {notes.clean(error.message)[:_MOST] or 'refused'}", provider=notes.label, code=str(error.code)
    )


def _on_the_wire(found: dict[str, Any], notes: Notes, doing: str) -> Exception:
    status, text = found.get("status"), notes.clean(str(found.get("text") or ""))[:_MOST]
    facts: dict[str, Any] = {"provider": notes.label, "status_code": status, "body": text or None}
    if found.get("session_lost"):
        return SessionLost(notes.label)
    if status in (401, 403):
        return errors.AuthenticationError(
            f"{notes.label}: the MCP server refuses us while {doing}; pass what it wants in headers= or auth=", **facts
        )
    if status in (404, 405, 410):
        return errors.ConfigurationError(
            f"{notes.label}: there is no MCP server at this address.",
            field="url",
            fix="Check its path: servers usually listen at /mcp. Old servers with the SSE transport are not supported.",
            **facts,
        )
    if status is not None:
        return errors.ConnectionError(
            f"{notes.label}: HTTP {status} while {doing}", **facts, retryable=status >= 500 or status == 429
        )
    return errors.ConnectionError(f"{notes.label}: {text or 'no answer'}", **{**facts, "body": None})


INSTALL = 'pip install "agent-llm-router[mcp]"'


def require_sdk() -> None:
    """Raises ConfigurationError unless the SDK is there."""
    try:
        import mcp.client.client  # noqa: F401
        import mcp_types  # noqa: F401
    except ImportError as error:
        raise ConfigurationError(
            "MCP needs the official SDK, the package `mcp` 2.3 or later.", field="extra", fix=f"Run: {INSTALL}"
        ) from error
    for name in ("mcp.client", "client"):
        # What the SDK logs about a broken connection we raise, so it is not printed as well, unless someone wants it.
        logger = logging.getLogger(name)
        if not logger.handlers:
            logger.addHandler(logging.NullHandler())


def client_for(transport: Any, mode: str, message_handler: Any) -> Client:
    """The SDK's client. What a server may ask of a client (a model's answer, a person's, a list of directories) is
    refused: no callback for it is given, and so none is advertised."""
    from importlib.metadata import version  # lazy: slow to import

    import mcp_types
    from mcp import Client

    return Client(
        transport,
        mode=mode,
        cache=None,
        message_handler=message_handler,
        client_info=mcp_types.Implementation(name="agent-llm-router", version=version("agent-llm-router")),
    )
