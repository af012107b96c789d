"""The official SDK of MCP is an extra: it is imported here, on first use, or else the caller is told how to get it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from ..errors import ConfigurationError

if TYPE_CHECKING:
    from mcp import Client

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
