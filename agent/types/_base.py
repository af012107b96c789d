"""What every value of the family shares: it is frozen, hashable by content, and reads and writes plain dicts.

This module exists so that immutability is decided once. It knows pydantic and JSON, and nothing about messages,
vendors or configuration.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Generic, NoReturn, Self, TypeVar

from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    PlainSerializer,
    ValidationError,
    WrapValidator,
)
from pydantic_core import CoreSchema, core_schema, to_jsonable_python
from typing_extensions import override

from ..errors import ConfigurationError

Got = TypeVar("Got")
Given = TypeVar("Given")

if TYPE_CHECKING:
    Many = Sequence

    class Reads(Generic[Got, Given]):
        """A field whose attribute gives `Got` and whose constructor also takes `Given`."""

        def __get__(self, instance: object, owner: object) -> Got: ...

        def __set__(self, instance: object, value: Given) -> None: ...

else:

    class Many:
        """Any sequence to the checker (so lists may be passed and mutators are out of reach); a tuple at runtime."""

        def __class_getitem__(cls, item):
            return tuple[item, ...]

    class Reads:
        """To the checker a descriptor with two types; at runtime the first of them, which holds the validators."""

        def __class_getitem__(cls, types):
            return types[0]


def _refuse(self: object, *args: object, **kwargs: object) -> NoReturn:
    raise TypeError(f"{type(self).__name__} is read-only; .copy() gives a mutable one")


class FrozenDict(dict[str, Any]):
    """A JSON object that cannot change. It compares, prints and serialises as a plain dict and hashes by value."""

    __slots__ = ()
    __setitem__ = __delitem__ = __ior__ = _refuse
    update = pop = popitem = clear = setdefault = _refuse

    @override
    def __hash__(self) -> int:  # type: ignore[override]  # dict declares `__hash__ = None`
        return hash(frozenset(self.items()))

    @override
    def copy(self) -> dict[str, Any]:
        """A mutable deep copy."""
        return {key: thaw(value) for key, value in self.items()}

    @classmethod
    def __get_pydantic_core_schema__(cls, source: object, handler: object) -> CoreSchema:
        return core_schema.no_info_after_validator_function(
            read_json, core_schema.dict_schema(core_schema.str_schema())
        )

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self

    @override
    def __reduce__(self) -> Any:
        return freeze, (self.copy(),)


class FrozenList(list[Any]):
    """A JSON array that cannot change. It compares, prints and serialises as a plain list and hashes by value."""

    __slots__ = ()
    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse
    append = extend = insert = pop = remove = clear = sort = reverse = _refuse

    @override
    def __hash__(self) -> int:  # type: ignore[override]  # list declares `__hash__ = None`
        return hash(tuple(self))

    @override
    def copy(self) -> list[Any]:
        """A mutable deep copy."""
        return [thaw(item) for item in self]

    @classmethod
    def __get_pydantic_core_schema__(cls, source: object, handler: object) -> CoreSchema:
        return core_schema.no_info_after_validator_function(read_json, core_schema.list_schema())

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self

    @override
    def __reduce__(self) -> Any:
        return freeze, (self.copy(),)


_put = dict.__setitem__
_SCALARS = frozenset((str, int, float, bool, type(None)))
_AS_IS = _SCALARS | {FrozenDict, FrozenList}


def freeze(value: Any) -> Any:
    """Dicts, lists and tuples become frozen ones, all the way down; anything else stays what it is."""
    if type(value) in _AS_IS:
        return value
    if isinstance(value, dict):
        frozen = FrozenDict(value)
        for key, item in frozen.items():
            if type(item) not in _AS_IS:
                _put(frozen, key, freeze(item))  # a key that is there already: the dict keeps its shape
        return frozen
    if isinstance(value, list | tuple):
        return FrozenList([item if type(item) in _AS_IS else freeze(item) for item in value])
    return value


def thaw(value: Any) -> Any:
    """The inverse of `freeze`: plain, mutable dicts and lists that share nothing with `value`."""
    if isinstance(value, dict):
        thawed = dict(value)
        for key, item in thawed.items():
            if type(item) not in _SCALARS:
                thawed[key] = thaw(item)
        return thawed
    if isinstance(value, list):
        return [item if type(item) in _SCALARS else thaw(item) for item in value]
    return value


def read_json(value: Any) -> Any:
    """`freeze` for validators: what cannot be frozen is a ValueError."""
    try:
        return freeze(value)
    except RecursionError:
        raise ValueError("nested too deeply, or containing itself") from None


def _read_json_object(value: Any, check: Any) -> Any:
    return value if type(value) is FrozenDict else read_json(check(value))


def _write_json(value: Any) -> Any:
    return to_jsonable_python(value, fallback=str, bytes_mode="base64")


JsonObject = Annotated[dict[str, Any], WrapValidator(_read_json_object)]
"""A dict, frozen on the way in."""

Json = Annotated[Any, AfterValidator(read_json), PlainSerializer(_write_json, when_used="json-unless-none")]
"""Anything. What is JSON gets frozen; what is not is kept, and written to JSON as well as can be."""

NOTHING: Any = FrozenDict()
"""The default of `JsonObject` fields: one shared empty object, typed so that it may stand as any default."""


def _read_bytes(value: Any) -> Any:
    """Text is base64 in either alphabet, padded or not, wrapped or not. Bytes are bytes."""
    if not isinstance(value, str):
        return value
    compact = "".join(value.split()).replace("-", "+").replace("_", "/").rstrip("=")
    try:
        return base64.b64decode(compact + "=" * (-len(compact) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("not base64; pass bytes, or text in base64") from None


def _write_bytes(value: bytes) -> str:
    return base64.b64encode(value).decode("ascii")


Base64 = Annotated[
    bytes, BeforeValidator(_read_bytes), PlainSerializer(_write_bytes, return_type=str, when_used="json-unless-none")
]
"""Bytes in Python, standard base64 in JSON. pydantic's own option would write the URL-safe alphabet."""


def _to_utc(time: datetime) -> datetime:
    if time.tzinfo is None:
        return time.replace(tzinfo=UTC)
    try:
        return time.astimezone(UTC)
    except OverflowError:
        raise ValueError("outside the years 1 to 9999 in UTC") from None


Utc = Annotated[datetime, AfterValidator(_to_utc)]
"""An aware time in UTC, read from seconds, milliseconds, ISO text or a datetime (naive ones are taken as UTC)."""


class Value(BaseModel, frozen=True):
    """The base of the family. Every subclass repeats `frozen=True` in its header: checkers read it only there."""

    model_config = ConfigDict(defer_build=True, val_json_bytes="base64")

    _carried: ClassVar[tuple[str, ...]] = ()
    """Slots that a changed copy takes along; an update names them without the underscore."""

    def copy_with(self, **values: Any) -> Self:
        """Return a copy with some fields replaced. For values that are valid already: nothing is validated."""
        cls = type(self)
        copy = cls.__new__(cls)
        initialize(copy, {**self.__dict__, **values}, {*self.__pydantic_fields_set__, *values})
        for slot in self._carried:
            if (kept := get_slot(self, slot)) is not None:
                object.__setattr__(copy, slot, kept)
        return copy

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data without the fields that are None."""
        return self.model_dump(mode="json", exclude_none=True)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Reads what `to_dict` writes, and the other spellings of the same thing."""
        return cls.model_validate(data if type(data) is dict else dict(data))

    @override
    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """A changed copy, validated: pydantic's own would take any value under any name. Without changes, itself."""
        if not update:
            return self
        field_of = self._field_of_alias()
        changes = {field_of.get(name, name): value for name, value in update.items()}
        copy = type(self).model_validate({**self.__dict__, **changes})
        given = self.model_fields_set | (changes.keys() & copy.__dict__.keys())
        object.__setattr__(copy, "__pydantic_fields_set__", given)
        self._copy_slots(copy, update)
        return copy

    def _copy_slots(self, copy: Self, update: Mapping[str, Any]) -> None:
        for slot in self._carried:
            name = slot.removeprefix("_")
            kept = update[name] if name in update else get_slot(self, slot)
            if kept is not None:
                object.__setattr__(copy, slot, kept)

    @classmethod
    def _field_of_alias(cls) -> Mapping[str, str]:
        """Field names by their other spellings, which would otherwise lose against the field's present value."""
        return _aliases(cls)

    @override
    def __copy__(self) -> Self:
        return self

    @override
    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        return self

    @override
    def __repr_args__(self) -> Any:
        return [(name, value) for name, value in super().__repr_args__() if value is not None]


_set_fields = BaseModel.__dict__["__dict__"].__set__
_set_fields_set = BaseModel.__dict__["__pydantic_fields_set__"].__set__
_set_extra = BaseModel.__dict__["__pydantic_extra__"].__set__
_set_private = BaseModel.__dict__["__pydantic_private__"].__set__


def initialize(value: Value, fields: dict[str, Any], given: set[str]) -> None:
    """Set all fields of a new value without validation. The only place that bypasses pydantic.

    It is used for changed copies of valid values, and for messages of plain text, of which long conversations consist.
    Without the latter, the benchmark of a first request with 200 messages costs 1.4 to 1.6 times raw httpx; the limit
    is 1.35.
    """
    _set_fields(value, fields)
    _set_fields_set(value, given)
    _set_extra(value, None)
    _set_private(value, None)


def get_slot(value: Value, slot: str) -> Any:
    """Return a slot's value, or None if it is not set. `getattr` is slower: it also asks pydantic for the name."""
    try:
        return object.__getattribute__(value, slot)
    except AttributeError:
        return None


@cache
def _aliases(cls: type[Value]) -> dict[str, str]:
    return {
        alias: name
        for name, field in cls.model_fields.items()
        if isinstance(field.validation_alias, AliasChoices)
        for alias in field.validation_alias.choices
        if isinstance(alias, str)
    }


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Columns as wide as they must be; a column in which nothing stands is left out."""
    lines = [tuple(head), *(tuple(" ".join(cell.split()) for cell in row) for row in rows)]
    used = [index for index in range(len(head)) if len(lines) == 1 or any(line[index] for line in lines[1:])]
    widths = {index: max(len(line[index]) for line in lines) for index in used}
    return "\n".join("  ".join(line[index].ljust(widths[index]) for index in used).rstrip() for line in lines)


T = TypeVar("T")


def validate_with(make: Callable[[], T]) -> T:
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
