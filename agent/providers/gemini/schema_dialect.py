"""The subset of JSON schema that the API enforces."""

from __future__ import annotations

from ...schemas.dialects import Dialect

# Of `responseJsonSchema` and `parametersJsonSchema`: without what their older siblings refuse, such as references and
# constants.
SCHEMA_DIALECT = Dialect(
    name="gemini",
    enforced={
        "string": frozenset(("format",)),
        "integer": frozenset(("minimum", "maximum", "format")),
        "number": frozenset(("minimum", "maximum", "format")),
        "array": frozenset(("minItems", "maxItems")),
    },
    formats=frozenset(("date-time", "date", "time", "int32", "int64", "float", "double")),
    literals=frozenset(("string",)),
    const=False,
    closed=False,
    references=False,
    recursion=4,
    tuples=True,
    anything=True,
    object_root=False,
    ordering=True,
    most_nodes=1_500,
)
