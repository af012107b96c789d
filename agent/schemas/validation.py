"""Validation of values against JSON schemas, with bounded work.

Schemas and values come from servers, files and models. A pattern can backtrack for years, and references can expand
exponentially, so all schemas are evaluated here:

1. Schemas that are too large or nested too deeply are refused.
2. A cheap validation runs in this process: small values, patterns that have a linear matcher, and a limited number of
   steps and milliseconds.
3. Any other validation runs in a process that is killed at the time limit. Code on an event loop uses `run_inline`,
   which raises `Deferred` instead, and repeats the validation in a thread.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from functools import lru_cache
from math import inf
from pathlib import Path
from time import monotonic, thread_time
from typing import Any, NamedTuple, TypeVar

from pydantic_core import SchemaError, SchemaValidator, ValidationError, core_schema

from ..errors import ConfigurationError
from .validation_process import create_validator, validate

T = TypeVar("T")

MAX_DEPTH = 128
"""Nesting limit of a schema, as JSON."""
MAX_VALUES = 50_000
MAX_CHARACTERS = 2_000_000
MAX_REFERENCES = 5_000
MAX_NAME = 500
"""Limit of characters in a property name; paths repeat the names."""
SECONDS = 10.0
"""Time limit of a validation, unless `run_until` sets a shorter one."""
_INLINE_SECONDS = 0.01
_INLINE_STEPS = 20_000
_METASCHEMA_STEPS = 10_000
_INLINE_VALUES = 5_000
"""Limit of JSON values in schemas and values that are evaluated in this process."""
_INLINE_CHARACTERS = 100_000
_VALUES_PER_SECOND = 1_000_000
_CHARACTERS_PER_SECOND = 20_000_000
"""Larger values could not even be sent to another process and read there in time."""


class Deferred(BaseException):
    """The validation is too expensive for this thread. A BaseException, so that no check catches it."""


class TooExpensive(ValueError):
    """The validation did not end within its time limit."""


class SchemaProblem(NamedTuple):
    path: str
    """JSON path of the invalid value, such as `$.city`."""
    message: str


class Validation(NamedTuple):
    """Outcome of a validation."""

    problems: tuple[SchemaProblem, ...] = ()
    """The first problems in order."""
    best: SchemaProblem | None = None
    """The most relevant problem; None if the value is valid."""
    unresolved: str | None = None
    """A reference that cannot be resolved, so that nothing was validated."""
    unusable: str | None = None
    """Why the schema cannot be evaluated."""


_time_limit: ContextVar[float] = ContextVar("time_limit", default=inf)
_is_inline: ContextVar[bool] = ContextVar("is_inline", default=False)


def defer_if_inline() -> None:
    """Raise Deferred within `run_inline`."""
    if _is_inline.get():
        raise Deferred


def _defer_import() -> None:
    """Raise Deferred within `run_inline` if jsonschema is not imported yet, which takes long."""
    if "jsonschema" not in sys.modules:
        defer_if_inline()


# Both run the function in a copy of the context: an interrupt between setting and resetting a variable would affect
# every later validation of the thread.


def run_until(until: float, function: Callable[..., T], *args: Any) -> T:
    """Call a function that validates, until a time on the monotonic clock."""
    context = copy_context()
    context.run(_time_limit.set, min(until, _time_limit.get()))
    return context.run(function, *args)


def run_inline(function: Callable[..., T], *args: Any) -> T:
    """Call a function that validates. Raises Deferred if that could block the thread for long."""
    context = copy_context()
    context.run(_is_inline.set, True)
    return context.run(function, *args)


def find_problems(schema: Mapping[str, Any], value: Any) -> Validation:
    """Validate JSON data against a schema.

    Raises:
        ConfigurationError: The schema exceeds the limits.
        TooExpensive: The time limit has passed.
    """
    _defer_import()
    if check_limits(schema) and _is_small(value):
        validator = create_limited_validator(schema)  # first, because it imports jsonschema
        try:
            with limit_steps(_INLINE_STEPS, _INLINE_SECONDS):
                return _read_validation(validate(validator, value))
        except (StepLimitExceeded, RecursionError):  # the process has more of both
            pass
    defer_if_inline()
    return _read_validation(_validate_in_process(schema, value))


def find_schema_problem(schema: Mapping[str, Any]) -> SchemaProblem | None:
    """Validate a schema against its metaschema, as far as this is cheap."""
    _defer_import()
    import jsonschema  # lazy: slow to import

    check_limits(schema)
    kind = jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator)
    validator = _limit_class(kind)(kind.META_SCHEMA, format_checker=kind.FORMAT_CHECKER)
    try:
        with limit_steps(_METASCHEMA_STEPS):
            return _read_validation(validate(validator, schema)).best
    except (StepLimitExceeded, RecursionError):
        return None


def check_limits(schema: Any) -> bool:
    """Return whether validations may be cheap. Raises ConfigurationError for oversized schemas."""
    values = characters = references = longest = 0
    is_cheap = True
    level = [schema]
    for _ in range(MAX_DEPTH + 1):
        below: list[Any] = []
        for item in level:
            if isinstance(item, Mapping):
                for key, value in item.items():
                    longest = max(longest, len(str(key)))
                    characters += len(str(key))
                    if isinstance(value, str):
                        characters += len(value)
                        references += key in _REFERENCES
                        is_cheap = is_cheap and (key != "pattern" or _compile_pattern(value) is not None)
                    elif key in _EXPENSIVE and value:
                        is_cheap = False
                values += len(item)
                below += item.values()
            elif isinstance(item, list | tuple):
                characters += sum(len(value) for value in item if isinstance(value, str))
                values += len(item)
                below += item
        for count, most, what in (
            (values, MAX_VALUES, "values"),
            (characters, MAX_CHARACTERS, "characters"),
            (references, MAX_REFERENCES, "references"),
            (longest, MAX_NAME, "characters in a name"),
        ):
            if count > most:
                raise _limit_error(f"it has more than {most:,} {what}")
        if not below:
            return is_cheap and values <= _INLINE_VALUES
        level = below
    raise _limit_error(f"it is nested more than {MAX_DEPTH} levels deep")


_REFERENCES = frozenset(("$ref", "$dynamicRef", "$recursiveRef"))
_EXPENSIVE = frozenset(("patternProperties", "unevaluatedProperties", "unevaluatedItems"))


def _limit_error(reason: str) -> ConfigurationError:
    return ConfigurationError(f"The JSON schema is too large: {reason}.", field="schema", fix="Use a simpler schema.")


def _is_small(value: Any, most: int = 2 * _INLINE_VALUES, most_characters: int = _INLINE_CHARACTERS) -> bool:
    """Whether a value is small enough, by default for each step of a validation to be fast."""
    values = characters = 0
    waiting = [value]
    while waiting:
        item = waiting.pop()
        values += 1
        if isinstance(item, str | bytes):
            characters += len(item)
        elif isinstance(item, int):
            characters += item.bit_length() // 3
        elif isinstance(item, Mapping):
            waiting += item.keys()
            waiting += item.values()
        elif isinstance(item, list | tuple):
            waiting += item
        if values + len(waiting) > most or characters > most_characters:
            return False
    return True


# Validation in this process


class StepLimitExceeded(Exception):
    """The work within `limit_steps` exceeds its limit."""


class _Steps:
    __slots__ = ("left", "until")

    def __init__(self, left: float, until: float) -> None:
        self.left, self.until = left, until


_steps: ContextVar[_Steps | None] = ContextVar("steps", default=None)


@contextmanager
def limit_steps(most: float, seconds: float = inf) -> Iterator[None]:
    """Limit the work in this thread; StepLimitExceeded is raised from the step that is too many."""
    outer = _steps.get() or _Steps(inf, inf)
    token = _steps.set(_Steps(min(most, outer.left), min(thread_time() + seconds, outer.until)))
    try:
        yield
    finally:
        _steps.reset(token)


def count_steps(number: int = 1) -> None:
    """Count work within `limit_steps`."""
    steps = _steps.get()
    if steps is None:
        return
    steps.left -= number
    if steps.left < 0 or thread_time() > steps.until:
        raise StepLimitExceeded


def create_limited_validator(schema: Any) -> Any:
    """Create a validator that counts steps, with patterns and `uniqueItems` in linear time."""
    plain = create_validator(schema)
    kind: Any = type(plain)
    return _limit_class(kind)(schema, registry=plain._registry)


@lru_cache(maxsize=32)
def _limit_class(kind: Any) -> Any:
    import jsonschema  # lazy: slow to import

    keywords = {name: _count_steps(function) for name, function in kind.VALIDATORS.items()}
    for name, function in (("pattern", _pattern), ("uniqueItems", _unique_items)):
        keywords[name] = _count_steps(function)
    extend: Any = jsonschema.validators.extend
    limited = extend(kind, keywords)
    evolve = limited.evolve

    def evolve_limited(self: Any, **changes: Any) -> Any:
        evolved = evolve(self, **changes)
        if type(evolved) is limited:
            return evolved
        # A nested `$schema` selects another class.
        other: Any = type(evolved)
        return _limit_class(other)(evolved.schema, registry=evolved._registry, _resolver=evolved._resolver)

    limited.evolve = evolve_limited
    return limited


def _count_steps(function: Callable[..., Any]) -> Callable[..., Any]:
    def check(validator: Any, value: Any, instance: Any, schema: Any) -> Any:
        count_steps(1 + len(value) if isinstance(value, list) else 1)
        return function(validator, value, instance, schema)

    return check


def _pattern(validator: Any, pattern: Any, instance: Any, schema: Any) -> Iterator[Any]:
    from jsonschema import ValidationError as Invalid

    if not validator.is_type(instance, "string"):
        return
    matcher = _compile_pattern(pattern)
    if matcher is None or len(instance) * matcher.size > _MAX_MATCHING:
        raise StepLimitExceeded
    try:
        matcher.validator.validate_python(instance)
    except ValidationError:
        yield Invalid(f"{instance!r} does not match {pattern!r}")


_DIFFERS = r"&&|--|~~|\[(?:[^]\\]|\\.)*\[|\\[<>]"
"""Syntax that the linear matcher and Python may read differently."""
_REPETITION = r"(\))?\{(\d*),?(\d*)\}"
_MEDIUM_CLASS = r"\\[ds]|\[\^|\."
_LARGE_CLASS = r"\\[wWDSpP]|\(\?i"
_MAX_PATTERN = 500
_MAX_PATTERN_SIZE = 2_500
_MAX_MATCHING = 10_000_000
"""Limit of pattern size times text length."""


class _Matcher(NamedTuple):
    validator: SchemaValidator
    size: int


@lru_cache(maxsize=512)
def _compile_pattern(pattern: str) -> _Matcher | None:
    """Return a matcher that takes linear time, or None if there is none, or it is large."""
    if len(pattern) > _MAX_PATTERN or re.search(_DIFFERS, pattern):
        return None
    total, nested = 1, 1
    for group, least, most in re.findall(_REPETITION, pattern):
        count = int((most or least or "1")[:9])
        total, nested = total + count, nested * (count if group else 1)
    weight = 1 + 3 * len(re.findall(_MEDIUM_CLASS, pattern)) + 40 * len(re.findall(_LARGE_CLASS, pattern))
    size = total * nested * weight
    if size > _MAX_PATTERN_SIZE:
        return None
    try:
        return _Matcher(SchemaValidator(core_schema.str_schema(pattern=pattern)), size)
    except SchemaError:
        return None


def _unique_items(validator: Any, wanted: Any, instance: Any, schema: Any) -> Iterator[Any]:
    from jsonschema import ValidationError as Invalid

    if not wanted or not validator.is_type(instance, "array"):
        return
    if len({equality_key(item) for item in instance}) < len(instance):
        yield Invalid(f"{instance!r} has non-unique elements")


def equality_key(value: Any) -> str:
    """Return text that is equal for values that are equal in JSON schema, such as 1 and 1.0, but not true."""
    return json.dumps(_normalize(value), sort_keys=True, default=repr)


def _normalize(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, Mapping):
        return {str(key): _normalize(item) for key, item in value.items()}
    return [_normalize(item) for item in value] if isinstance(value, list | tuple) else value


# Validation in another process


def _validate_in_process(schema: Mapping[str, Any], value: Any) -> Mapping[str, Any]:
    import subprocess  # lazy: few programs need it

    began = monotonic()
    seconds = max(0.0, min(SECONDS, _time_limit.get() - began))
    if not _is_small(value, int(seconds * _VALUES_PER_SECOND), int(seconds * _CHARACTERS_PER_SECOND)):
        raise _time_error(seconds)
    job = {"schema": schema, "value": value, "seconds": seconds, "path": [os.path.abspath(path) for path in sys.path]}
    try:
        text = json.dumps(job, default=str, skipkeys=True)
    except (ValueError, RecursionError):
        return {"unusable": "the value is circular or nested too deeply"}
    source = Path(__file__).with_name("validation_process.py")
    try:
        ended = subprocess.run(  # noqa: S603 -- this interpreter, this package's source
            [sys.executable, "-I", str(source)],
            input=text.encode(),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={name: os.environ[name] for name in ("SYSTEMROOT",) if name in os.environ},
            timeout=max(0.0, seconds - (monotonic() - began)),
            check=False,
        )
        verdict: Mapping[str, Any] = json.loads(ended.stdout)
    except subprocess.TimeoutExpired:
        raise _time_error(seconds) from None
    except (OSError, ValueError):  # killed by its limits
        return {"unusable": "the validation exceeds the limits of its process"}
    return verdict


def _time_error(seconds: float) -> TooExpensive:
    return TooExpensive(f"the validation against the JSON schema took longer than {seconds:.3g} s")


def _read_validation(verdict: Mapping[str, Any]) -> Validation:
    problems = [SchemaProblem(path, message) for path, message in verdict.get("errors", ())]
    return Validation(
        tuple(problems[1:]), problems[0] if problems else None, verdict.get("unresolved"), verdict.get("unusable")
    )
