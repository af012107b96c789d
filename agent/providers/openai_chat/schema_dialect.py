"""The subset of JSON schema that the API enforces."""

from __future__ import annotations

from ...schemas.dialects import FORMATS, NUMBERS, Dialect

SCHEMA_DIALECT = Dialect(
    name="openai",
    enforced={
        "string": frozenset(("pattern", "format")),
        "integer": NUMBERS,
        "number": NUMBERS,
        "array": frozenset(("minItems", "maxItems")),
    },
    formats=FORMATS,
    all_required=True,
    loose=True,
    most_properties=5_000,
    most_listed=1_000,
    deepest=10,
)
