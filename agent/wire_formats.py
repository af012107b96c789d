"""The registry of wire formats: one line each. The package itself declares everything else.

A package is imported when its name is first needed, so prices, model facts and schema dialects can be looked up here
without importing any other vendor.
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
}
"""Name of a wire format, which is also the name of its provider → its package.

A package has `WIRE_FORMAT`, `provider(name)` and, in its module `server`, `SERVER`.
"""


@dataclass(frozen=True, slots=True)
class WireFormat:
    """What a package declares about its wire format."""

    api: str
    """Its name, as in `Provider.api`."""
    price_list: str | None = None
    """The vendor's name in the price list of genai-prices; None without list prices."""
    facts: tuple[str, ...] = ()
    """Tables of `agent.models` with the vendor's models; without any, the one of its own name."""
    schema_dialect: SchemaDialect | None = None
    """The subset of JSON schema that the vendor enforces; None if another format declares it, or there is none."""
    rules: str | None = None
    """The class that judges requests for strict scripts, as `module:class`."""


@cache
def wire_format(name: str) -> WireFormat | None:
    """The declaration of a wire format; None for any other name of a provider."""
    package = WIRE_FORMATS.get(name)
    if package is None:
        return None
    declared: WireFormat = import_module(package).WIRE_FORMAT
    return declared


def schema_dialect(name: str) -> SchemaDialect | None:
    """The schema dialect of that name."""
    for format in (name, *WIRE_FORMATS):
        declared = wire_format(format)
        if declared is not None and declared.schema_dialect is not None and declared.schema_dialect.name == name:
            return declared.schema_dialect
    return None
