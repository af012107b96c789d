"""Base of all value types: frozen, hashable by content, and convertible to and from plain dicts.

The modules of value types do not import `annotations` from `__future__`: pydantic would compile and evaluate the text
of each annotation again for every subclass, which takes a twentieth of the time to the first response.
"""

import base64
import binascii
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from math import isfinite
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Generic, Literal, NoReturn, Self, TypeVar

from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    GetCoreSchemaHandler,
    PlainSerializer,
    ValidationError,
    WrapValidator,
)
from pydantic.alias_generators import to_snake
from pydantic_core import CoreSchema, core_schema, to_jsonable_python
from typing_extensions import override

from ..errors import ConfigurationError, printable

Vocabulary = Literal["nano", "loop", "deepractice"]
"""Names of other libraries: nano-agent, the agent loop with stream functions, Deepractice's agent types."""
Got = TypeVar("Got")
Given = TypeVar("Given")

if TYPE_CHECKING:
    SequenceOf = Sequence

    class Accepts(Generic[Got, Given]):
        """A field that returns `Got` and whose constructor argument also accepts `Given`."""

        def __get__(self, instance: object, owner: object) -> Got: ...

        def __set__(self, instance: object, value: Given) -> None: ...

else:

    class SequenceOf:
        """`Sequence` for type checkers, so that lists can be passed; a `FrozenTuple` at run time."""

        def __class_getitem__(cls, item):
            return Annotated[tuple[item, ...], FrozenTuple]

    class Accepts:
        """A descriptor with two types for type checkers; the first type at run time."""

        def __class_getitem__(cls, types):
            return types[0]


def _raise_read_only(self: object, *args: object, **kwargs: object) -> NoReturn:
    raise TypeError(f"{type(self).__name__} is read-only; use .copy() for a mutable copy")


class _Frozen:
    """Copy and pickle support of frozen JSON containers."""

    __slots__ = ()

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self

    @override
    def __reduce__(self: Any) -> Any:
        return freeze, (self.copy(),)


class FrozenDict(_Frozen, dict[str, Any]):
    """An immutable JSON object that compares, prints and serializes like a dict, and is hashable by value."""

    __slots__ = ()
    if not TYPE_CHECKING:
        __setitem__ = __delitem__ = __ior__ = _raise_read_only
        update = pop = popitem = clear = setdefault = _raise_read_only

    @override
    def __hash__(self) -> int:  # type: ignore[override]  # dict declares `__hash__ = None`
        return hash(frozenset(self.items()))

    @override
    def copy(self) -> dict[str, Any]:
        """Return a mutable deep copy."""
        return {key: thaw(value) for key, value in self.items()}

    @classmethod
    def __get_pydantic_core_schema__(cls, source: object, handler: object) -> CoreSchema:
        return core_schema.no_info_after_validator_function(
            freeze_json, core_schema.dict_schema(core_schema.str_schema())
        )


class FrozenList(_Frozen, list[Any]):
    """An immutable JSON array that compares, prints and serializes like a list, and is hashable by value."""

    __slots__ = ()
    if not TYPE_CHECKING:
        __setitem__ = __delitem__ = __iadd__ = __imul__ = _raise_read_only
        append = extend = insert = pop = remove = clear = sort = reverse = _raise_read_only

    @override
    def __hash__(self) -> int:  # type: ignore[override]  # list declares `__hash__ = None`
        return hash(tuple(self))

    @override
    def copy(self) -> list[Any]:
        """Return a mutable deep copy."""
        return [thaw(item) for item in self]

    @classmethod
    def __get_pydantic_core_schema__(cls, source: object, handler: object) -> CoreSchema:
        return core_schema.no_info_after_validator_function(freeze_json, core_schema.list_schema())


class FrozenTuple(tuple[Any, ...]):
    """A tuple that also compares equal to lists. As an annotation, it converts the tuples of a field."""

    __slots__ = ()

    @override
    def __eq__(self, other: object) -> bool:
        return super().__eq__(tuple(other) if isinstance(other, list) else other)

    @override
    def __ne__(self, other: object) -> bool:
        return super().__ne__(tuple(other) if isinstance(other, list) else other)

    @override
    def __hash__(self) -> int:
        return super().__hash__()

    @classmethod
    def __get_pydantic_core_schema__(cls, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        # An AfterValidator would do the same, but pydantic inspects its function at the first call.
        return core_schema.no_info_after_validator_function(cls, handler(tuple[Any, ...] if source is cls else source))


EMPTY_SEQUENCE: Any = FrozenTuple()
"""Default of `SequenceOf` fields."""

_put = dict.__setitem__
_SCALARS = frozenset((str, int, float, bool, type(None)))
_AS_IS = _SCALARS | {FrozenDict, FrozenList}


def freeze(value: Any) -> Any:
    """Return an immutable copy of nested dicts, lists and tuples; other values are returned as they are."""
    if type(value) in _AS_IS:
        return value
    if isinstance(value, dict):
        frozen = FrozenDict(value)
        for key, item in value.items():
            if type(item) not in _AS_IS:
                _put(frozen, key, freeze(item))
        return frozen
    if isinstance(value, list | tuple):
        return FrozenList(map(freeze, value))
    return value


def thaw(value: Any) -> Any:
    """Return a mutable deep copy of nested dicts and lists."""
    if isinstance(value, dict):
        thawed = dict(value)
        for key, item in thawed.items():
            if type(item) not in _SCALARS:
                thawed[key] = thaw(item)
        return thawed
    if isinstance(value, list):
        return [item if type(item) in _SCALARS else thaw(item) for item in value]
    return value


def freeze_json(value: Any) -> Any:
    """Freeze a value during validation; circular or too deeply nested data is a ValueError."""
    try:
        return freeze(value)
    except RecursionError:
        raise ValueError("nested too deeply or circular") from None


def is_finite(data: Any) -> bool:
    """Whether JSON data contains no NaN or infinity, such as the value of 1e999."""
    if isinstance(data, float):
        return isfinite(data)
    if isinstance(data, dict):
        return all(map(is_finite, data.values()))
    return not isinstance(data, list) or all(map(is_finite, data))


def _freeze_object(value: Any, check: Any) -> Any:
    return value if type(value) is FrozenDict else freeze_json(check(value))


def to_plain_json(value: Any) -> Any:
    return to_jsonable_python(value, fallback=str, bytes_mode="base64")


JsonObject = Annotated[dict[str, Any], WrapValidator(_freeze_object)]
"""A dict that is frozen on validation."""

Json = Annotated[Any, AfterValidator(freeze_json), PlainSerializer(to_plain_json, when_used="json-unless-none")]
"""Any value. JSON data is frozen; other objects are kept and serialized to JSON as far as possible."""

EMPTY_OBJECT: Any = FrozenDict()
"""Default of `JsonObject` fields: a shared empty object."""


def _read_bytes(value: Any) -> Any:
    """Decode base64 text: either alphabet, with or without padding and line breaks."""
    if isinstance(value, os.PathLike):
        raise ConfigurationError(
            f"A {type(value).__name__} is not data.", fix="Pass the bytes of the file: path.read_bytes()."
        )
    if not isinstance(value, str):
        return value
    compact = "".join(value.split()).replace("-", "+").replace("_", "/").rstrip("=")
    try:
        return base64.b64decode(compact + "=" * (-len(compact) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise ConfigurationError(
            "The text is not valid base64.", fix="Pass bytes or base64 text; of a file, Path(name).read_bytes()."
        ) from None


def _write_bytes(value: bytes) -> str:
    return base64.b64encode(value).decode("ascii")


Base64 = Annotated[
    bytes, BeforeValidator(_read_bytes), PlainSerializer(_write_bytes, return_type=str, when_used="json-unless-none")
]
"""Bytes in Python, standard base64 in JSON (pydantic's own option writes the URL-safe alphabet)."""


def _to_utc(time: datetime) -> datetime:
    if time.tzinfo is None:
        return time.replace(tzinfo=UTC)
    try:
        return time.astimezone(UTC)
    except OverflowError:
        raise ValueError("outside the years 1 to 9999 in UTC") from None


Utc = Annotated[datetime, AfterValidator(_to_utc)]
"""A UTC datetime, read from seconds, milliseconds, ISO text or a datetime; naive times count as UTC."""


class Value(BaseModel, frozen=True):
    """Base class of the value types. Subclasses repeat `frozen=True`, where type checkers look for it."""

    model_config: ClassVar[ConfigDict] = ConfigDict(defer_build=True, val_json_bytes="base64")

    _carried: ClassVar[tuple[str, ...]] = ()
    """Slots that copies keep; `model_copy(update=...)` names them without the underscore."""
    _positional: ClassVar[tuple[str, ...]] = ()
    """Names of the positional arguments. Subclasses with positional arguments declare the signature."""
    _spellings: ClassVar[tuple[str, ...]] = ()
    """Keyword arguments besides fields and their aliases, which validators of the class read."""
    _keywords: ClassVar[frozenset[str]] = frozenset()
    """All keyword arguments. Dicts may have other keys."""

    if not TYPE_CHECKING:

        def __init__(self, /, *args, **fields):
            __tracebackhide__ = True
            if args:
                fields = self._name_arguments(args, fields)
            if not self._keywords.issuperset(fields):
                self._reject_keyword(fields)
            try:
                self.__pydantic_validator__.validate_python(fields, self_instance=self)
            except ValidationError as error:
                raise find_configuration_error(error) or error from None

        # pydantic builds nested values without calling an __init__ marked like this.
        __init__.__pydantic_base_init__ = True

        @classmethod
        def __pydantic_init_subclass__(cls, **kwargs):
            super().__pydantic_init_subclass__(**kwargs)
            cls._keywords = frozenset((*cls.model_fields, *_aliases(cls), *cls._spellings))

    @classmethod
    def _name_arguments(cls, args: Sequence[Any], fields: dict[str, Any]) -> dict[str, Any]:
        if len(args) > len(cls._positional):
            raise TypeError(f"{cls.__name__} takes {len(cls._positional)} positional arguments; got {len(args)}")
        named = dict(zip(cls._positional, args, strict=False))
        if twice := named.keys() & fields.keys():
            raise TypeError(f"{cls.__name__} got two values for {', '.join(sorted(twice))}")
        return {**named, **fields}

    @classmethod
    def _reject_keyword(cls, fields: Mapping[str, Any]) -> None:
        from .option_errors import check_options  # lazy: import cycle

        check_options(fields, cls._keywords, cls.__name__)

    if not TYPE_CHECKING:  # type checkers know from `frozen=True` that attributes are read-only

        def __setattr__(self, name, value):
            raise AttributeError(f"{type(self).__name__} is frozen; use .replace({name}=...), which returns a copy")

        def __delattr__(self, name):
            raise AttributeError(f"{type(self).__name__} is frozen")

    def __getitem__(self, key: str) -> Any:
        """Return a field by name, in any accepted spelling."""
        name = self._field_of_alias().get(key) or to_snake(key)
        cls = type(self)
        if name in cls.model_fields or isinstance(getattr(cls, name, None), property):
            return getattr(self, name)
        raise KeyError(key)

    def get(self, key: str, default: Any = None) -> Any:
        """Return a field by name, in any accepted spelling."""
        try:
            return self[key]
        except KeyError:
            return default

    def replace(self, **changes: Any) -> Self:
        """Return a validated copy with some fields replaced."""
        unknown = [name for name in changes if not hasattr(self, name)]
        if unknown:
            raise TypeError(f"{type(self).__name__} has no field {unknown[0]!r}")
        return self.model_copy(update=changes)

    if not TYPE_CHECKING:
        __replace__ = replace

    def copy_with(self, **values: Any) -> Self:
        """Return a copy with some fields replaced, without validation; the new values must be valid."""
        cls = type(self)
        copy = cls.__new__(cls)
        initialize(copy, {**self.__dict__, **values}, self.__pydantic_fields_set__.union(values))
        for slot in self._carried:
            if (value := get_slot(self, slot)) is not None:
                object.__setattr__(copy, slot, value)
        return copy

    def to_dict(self, *, vocabulary: Vocabulary | None = None) -> dict[str, Any]:
        """Return plain JSON data without None fields, in this package's names or another library's."""
        if vocabulary is not None:
            from .vocabularies import write_value  # lazy: import cycle

            return write_value(self, vocabulary)
        return self.model_dump(mode="json", exclude_none=True)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Create the value from `to_dict` output or any accepted alias spelling."""
        return cls.model_validate(data if type(data) is dict else dict(data))

    @override
    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Return a validated copy with some fields replaced (pydantic would not validate them)."""
        if not update:
            return self
        field_of = self._field_of_alias()
        changes = {field_of.get(name, name): value for name, value in update.items()}
        copy = type(self).model_validate({**self.__dict__, **changes})
        fields_set = self.model_fields_set | (changes.keys() & copy.__dict__.keys())
        object.__setattr__(copy, "__pydantic_fields_set__", fields_set)
        self._copy_slots(copy, update)
        return copy

    def _copy_slots(self, copy: Self, update: Mapping[str, Any]) -> None:
        for slot in self._carried:
            name = slot.removeprefix("_")
            value = update[name] if name in update else get_slot(self, slot)
            if value is not None:
                object.__setattr__(copy, slot, value)

    @classmethod
    def _field_of_alias(cls) -> Mapping[str, str]:
        """Map aliases to field names, so that an update by alias replaces the current value."""
        return _aliases(cls)

    @override
    def __copy__(self) -> Self:
        return self

    @override
    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        return self

    @override
    @printable
    def __repr__(self) -> str:
        return super().__repr__()

    @override
    @printable
    def __str__(self) -> str:
        return super().__str__()

    @override
    def __repr_args__(self) -> Any:
        return [(name, value) for name, value in super().__repr_args__() if value is not None]


_set_fields = BaseModel.__dict__["__dict__"].__set__
_set_fields_set = BaseModel.__dict__["__pydantic_fields_set__"].__set__
_set_extra = BaseModel.__dict__["__pydantic_extra__"].__set__
_set_private = BaseModel.__dict__["__pydantic_private__"].__set__


def initialize(value: Value, fields: dict[str, Any], fields_set: set[str]) -> None:
    """Set all fields of a new value without validation, for copies and plain text messages.

    With validation, the benchmark of a first request with 200 messages exceeds its limit (1.4 to 1.6 times raw httpx
    instead of 1.35).
    """
    _set_fields(value, fields)
    _set_fields_set(value, fields_set)
    _set_extra(value, None)
    _set_private(value, None)


def get_slot(value: Value, slot: str) -> Any:
    """Return a slot's value or None; faster than `getattr`, which also consults pydantic."""
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


def align_columns(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Align columns as text, and leave out empty columns."""
    lines = [tuple(head), *(tuple(" ".join(cell.split()) for cell in row) for row in rows)]
    used = [index for index in range(len(head)) if len(lines) == 1 or any(line[index] for line in lines[1:])]
    widths = {index: max(len(line[index]) for line in lines) for index in used}
    return "\n".join("  ".join(line[index].ljust(widths[index]) for index in used).rstrip() for line in lines)


T = TypeVar("T")


def validate_with(validate: Callable[[], T]) -> T:
    """Run a validation; raise a ConfigurationError that names the invalid fields and hides their values."""
    try:
        return validate()
    except ValidationError as error:
        failure = _convert_error(error)
    raise failure  # here it has no context, whose frames would hold the values


def find_configuration_error(error: ValidationError) -> ConfigurationError | None:
    """Return the first error of a validator that knows a fix, with the field."""
    for problem in error.errors(include_url=False, include_input=False):
        cause = problem.get("ctx", {}).get("error")
        if isinstance(cause, ConfigurationError):
            cause.field = ".".join(map(str, problem["loc"]))
            return cause
    return None


def _convert_error(error: ValidationError) -> ConfigurationError:
    if (known := find_configuration_error(error)) is not None:
        return known
    problems = error.errors(include_url=False, include_context=False, include_input=False)
    fields = [".".join(map(str, problem["loc"])) for problem in problems]
    described = "; ".join(
        f"{field}: {problem['msg']}" if field else problem["msg"]
        for field, problem in zip(fields, problems, strict=True)
    )
    unknown = [field for field, problem in zip(fields, problems, strict=True) if problem["type"] == "extra_forbidden"]
    return ConfigurationError(
        f"Invalid {error.title}: {described}.",
        field=next((field for field in fields if field), None),
        fix=f"Remove or correct {', '.join(unknown)}." if unknown else None,
    )
