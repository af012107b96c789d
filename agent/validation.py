"""What pydantic finds wrong, said as one of our errors: which fields and what to do, and never the values."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from pydantic import ValidationError

from .errors import ConfigurationError

T = TypeVar("T")


def validated(make: Callable[[], T]) -> T:
    """Run a validation; what it finds becomes an error that names the fields and shows no values."""
    try:
        return make()
    except ValidationError as error:
        raise _explained(error) from None


def _explained(error: ValidationError) -> ConfigurationError:
    problems = error.errors(include_url=False, include_context=False, include_input=False)
    fields = [".".join(map(str, problem["loc"])) for problem in problems]
    described = "; ".join(
        f"{field}: {problem['msg']}" if field else problem["msg"]
        for field, problem in zip(fields, problems, strict=True)
    )
    unknown = [field for field, problem in zip(fields, problems, strict=True) if problem["type"] == "extra_forbidden"]
    return ConfigurationError(
        f"{error.title} cannot be made: {described}.",
        field=next((field for field in fields if field), None),
        fix=f"Remove or correct {', '.join(unknown)}." if unknown else None,
    )
