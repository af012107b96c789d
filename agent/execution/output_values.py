"""From what a model wrote to a value that fits a schema, or the reason why there is none.

Strict first: the whole text is JSON, without anything twice. Then, once, leniently: one value in a code fence or among
other words. Never repaired: what is cut off stays cut off.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic_core import to_json

from ..schemas.fitting import validator_of
from ..wire import parse_json

_FENCED = re.compile(r"```[a-zA-Z0-9]*[ \t]*\n(.*?)```", re.S)
_OPENING = re.compile(r"[{\[]")
_MOST_CANDIDATES = 20
_MOST_REASON = 2000


class Misfit(Exception):
    """Why a text holds no value that fits. Its message may be told to the model, unless it is `final`."""

    def __init__(self, reason: str, *, final: bool = False) -> None:
        super().__init__(reason)
        self.final = final
        """Whether asking again cannot mend it."""


def read_value(text: str, schema: Any, restore: Callable[[Any], Any]) -> Any:
    """The value in a text, as the schema wants it; Misfit if there is none."""
    try:
        value = _parse(text)
    except ValueError as error:
        return _among_other_words(text, schema, restore, str(error))
    return _check(restore(value), schema)


def _parse(text: str) -> Any:
    value = parse_json(text)
    json.loads(text, object_pairs_hook=_once)  # which of two values of one key is meant, nobody knows
    return value


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {next(name for name in names if names.count(name) > 1)!r} appears twice")
    return found


def _among_other_words(text: str, schema: Any, restore: Callable[[Any], Any], problem: str) -> Any:
    fitting: list[Any] = []
    misfits: list[Misfit] = []
    for candidate in _candidates(text):
        try:
            fitting.append(_check(restore(candidate), schema))
        except Misfit as misfit:
            misfits.append(misfit)
    if len(fitting) == 1:
        return fitting[0]
    if len(fitting) > 1:
        raise Misfit(f"the answer holds {len(fitting)} values that fit, among other words")
    if len(misfits) == 1:
        raise misfits[0]
    raise Misfit(f"the answer is not JSON: {problem}")


def _candidates(text: str) -> list[Any]:
    """The JSON values in a text. None at all if one begins and does not end: that may be half an answer."""
    fences = _FENCED.findall(text)
    if len(fences) == 1:
        try:
            return [_parse(fences[0])]
        except ValueError:
            pass  # a fence inside the value, perhaps: text that is code has some
    found: list[Any] = []
    decoder = json.JSONDecoder()
    position = 0
    while (opening := _OPENING.search(text, position)) is not None:
        if len(found) == _MOST_CANDIDATES:
            return []
        try:
            _, position = decoder.raw_decode(text, opening.start())
            found.append(_parse(text[opening.start() : position]))
        except (ValueError, RecursionError):
            return []
    return found


def _check(value: Any, schema: Any) -> Any:
    return _check_json(value, schema) if isinstance(schema, Mapping) else _check_type(value, schema)


def _check_json(value: Any, schema: Mapping[str, Any]) -> Any:
    from jsonschema.exceptions import best_match
    from referencing.exceptions import Unresolvable

    try:
        error = best_match(validator_of(schema).iter_errors(value))
    except RecursionError:
        raise Misfit("the answer is nested too deeply") from None
    except Unresolvable as unresolvable:
        raise Misfit(f"the schema refers to {unresolvable.ref!r}, which is not in it", final=True) from None
    if error is not None:
        raise Misfit(f"{error.json_path}: {error.message}"[:_MOST_REASON])
    return value


def _check_type(value: Any, schema: Any) -> Any:
    try:
        # As JSON, which knows fewer types than Python: dates, enums and tuples are read from their JSON form, also by
        # a model that is strict about everything else.
        return _adapter_for(schema).validate_json(to_json(value))
    except ValidationError as error:
        problems = error.errors(include_url=False, include_context=False)
        described = (f"{'.'.join(map(str, problem['loc'])) or '$'}: {problem['msg']}" for problem in problems)
        raise Misfit("; ".join(described)[:_MOST_REASON]) from error


def _adapter_for(schema: Any) -> TypeAdapter[Any]:
    if isinstance(schema, TypeAdapter):
        return schema
    try:
        return _adapter(schema)
    except TypeError:  # not hashable
        return TypeAdapter(schema)


@lru_cache(maxsize=128)
def _adapter(schema: Any) -> TypeAdapter[Any]:
    return TypeAdapter(schema)
