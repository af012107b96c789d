"""Registry of wire formats, one line each; the package of a format declares everything else.

Packages are imported on first use, so prices, model facts and schema dialects load no other vendor.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .schemas.dialect import SchemaDialect

WIRE_FORMATS = {
    "openai-chat": "agent.providers.openai_chat",
    "openai-responses": "agent.providers.openai_responses",
    "anthropic": "agent.providers.anthropic",
    "gemini": "agent.providers.gemini",
    "bedrock": "agent.providers.bedrock",
}
"""Packages by the name of the wire format, which is also the name of its provider.

A package defines `WIRE_FORMAT`, `provider(name)` and `server.SERVER`.
"""


@dataclass(frozen=True, slots=True)
class WireFormat:
    """Declaration of a wire format by its package."""

    api: str
    """Name, as in `Provider.api`."""
    price_list: str | None = None
    """Name of the vendor in genai-prices; None without list prices."""
    facts: tuple[str, ...] = ()
    """Tables of `agent.models` with the vendor's models. Default: the table with the name of the format."""
    schema_dialect: SchemaDialect | None = None
    """JSON Schema subset that the vendor enforces; None if another format declares it, or there is none."""
    rules: str | None = None
    """Class that validates requests for strict scripts, as `module:class`."""


@cache
def wire_format(name: str) -> WireFormat | None:
    """Return the declaration of a wire format; None for other provider names."""
    package = WIRE_FORMATS.get(name)
    if package is None:
        return None
    declared: WireFormat = import_module(package).WIRE_FORMAT
    return declared


def schema_dialect(name: str) -> SchemaDialect | None:
    """Find a schema dialect by name."""
    for format in (name, *WIRE_FORMATS):
        declared = wire_format(format)
        if declared is not None and declared.schema_dialect is not None and declared.schema_dialect.name == name:
            return declared.schema_dialect
    return None
