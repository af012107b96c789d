"""Whether a value fits a schema. Nothing is ever fetched for that: a reference out of the schema leads nowhere."""

from __future__ import annotations

import re
from typing import Any


def validator_of(schema: Any) -> Any:
    """A validator of jsonschema, by the draft that the schema names. Its own would open addresses it refers to."""
    import jsonschema
    from jsonschema_specifications import REGISTRY  # type: ignore[import-untyped]

    kind = jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator)
    return kind(schema, registry=REGISTRY)


def fits(value: Any, validator: Any) -> bool:
    """Whether it does; also if that cannot be told, as with a pattern in another dialect of regular expressions."""
    from referencing.exceptions import Unresolvable

    try:
        return bool(validator.is_valid(value))
    except (Unresolvable, re.error):
        return True
