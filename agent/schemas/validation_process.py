"""Validate one value against one schema, in a process that can be killed. See `validation`.

The source runs in an isolated interpreter and imports nothing of this package. Standard input is one JSON object;
the response is one line of JSON.
"""

import json
import re
import sys
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

MAX_LISTED = 10
MAX_MESSAGE = 2_000
MEMORY = 1 << 30
"""Memory limit of the process, for error messages that quote a large value many times."""


def create_validator(schema: Any) -> Any:
    """Create a jsonschema validator for the schema's draft, which never fetches remote references."""
    import jsonschema
    from jsonschema_specifications import REGISTRY  # type: ignore[import-untyped]

    kind = jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator)
    return kind(schema, registry=REGISTRY)


def describe_errors(errors: Iterable[Any]) -> "list[tuple[str, str]]":
    """Return paths and messages: the most relevant error, and then the first ones in order."""
    from jsonschema.exceptions import best_match

    found = list(errors)
    best = best_match(found)
    return [(error.json_path, error.message[:MAX_MESSAGE]) for error in [best, *found[:MAX_LISTED]] if found]


def validate(validator: Any, value: Any) -> "dict[str, Any]":
    """Return the errors of a value, or why the schema cannot be evaluated. Raises RecursionError."""
    from jsonschema.exceptions import UnknownType
    from referencing.exceptions import Unresolvable

    try:
        return {"errors": describe_errors(validator.iter_errors(value))}
    except Unresolvable as error:
        return {"unresolved": str(error.ref)}
    except re.error as error:
        return {"unusable": f"a pattern is not a regular expression: {error}"[:MAX_MESSAGE]}
    except (UnknownType, TypeError, ValueError, AttributeError, KeyError, ArithmeticError, MemoryError) as error:
        return {"unusable": f"the schema is invalid ({type(error).__name__})"}


def limit_resources(seconds: float) -> None:
    """Limit CPU time and memory, in case the parent dies."""
    with suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_CPU, (int(seconds) + 2, int(seconds) + 2))
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))


def main() -> None:
    job = json.load(sys.stdin)
    sys.path[:] = job["path"]
    limit_resources(job["seconds"])
    try:
        verdict = validate(create_validator(job["schema"]), job["value"])
    except RecursionError:
        verdict = {"unusable": "the value or the references of the schema are nested too deeply"}
    json.dump(verdict, sys.stdout)


if __name__ == "__main__":
    main()
