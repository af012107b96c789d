"""A wire format that no vendor has: one package, to be copied into `agent/providers`."""

from __future__ import annotations

from agent.providers.base import ProviderFactory
from agent.schemas.dialect import SchemaDialect
from agent.wire_formats import WireFormat

from .codec import API, PostcardCodec

WIRE_FORMAT = WireFormat(
    API,
    price_list="mistral",
    facts=("mistral",),
    schema_dialect=SchemaDialect(name=API, enforced={"string": frozenset(("pattern",))}, formats=frozenset()),
)


def provider(name: str) -> ProviderFactory:
    return lambda config: PostcardCodec(name, config)
