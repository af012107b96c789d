"""The subset of JSON schema that the API enforces."""

from __future__ import annotations

from ...schemas.dialects import FORMATS, Dialect

SCHEMA_DIALECT = Dialect(
    name="anthropic",
    enforced={"string": frozenset(("format",)), "array": frozenset(("minItems",))},
    formats=FORMATS | {"uri"},
    recursion=4,
    min_items=1,
    most_optional=24,
    most_unions=16,
)
