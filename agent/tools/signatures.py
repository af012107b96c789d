"""From a function's signature to the JSON schema of its arguments, and from arguments to a call.

What a model may pass is what the function's annotations admit, read as JSON: dates are text there, and tuples lists.
Nothing here knows what a tool is beyond its function, or runs one.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from inspect import Parameter
from json import dumps
from types import FrameType, MethodType, SimpleNamespace, UnionType
from typing import TYPE_CHECKING, Annotated, Any, NotRequired, Optional, Required, Union, Unpack, get_args, get_origin

from docstring_parser import DocstringMeta, ParseError, epydoc, google, numpydoc, rest
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import PydanticSerializationError, core_schema, to_json
from typing_extensions import Doc, get_type_hints, is_typeddict, override
from typing_extensions import Unpack as UnpackOfExtensions

from ..errors import ConfigurationError
from .base import ArgumentsError, ToolContext
from .results import explained

if TYPE_CHECKING:
    from docstring_parser import Docstring


_ADVICE = ("Note", "Notes", "Warning", "Warnings", "Important", "Caution", "Hint", "Tip")
"""Sections that say how to use the function, and so belong to what it does."""


@dataclass(frozen=True, slots=True)
class Docs:
    description: str = ""
    """The summary and the text after it, without the sections about parameters, results and errors."""
    parameters: Mapping[str, str] = field(default_factory=dict)


def read_docstring(text: str | None) -> Docs:
    if not text or not text.strip():
        return Docs()
    readings = [reading for read in _styles() if (reading := _read(read, text)) is not None]
    best = max(readings, key=_findings, default=None)
    if best is None or not _findings(best):
        # Words before a colon that no style knows may still look like a section. They are part of the text.
        return Docs(text.strip())
    paragraphs = (best.short_description, best.long_description, *_advice(best))
    gap = "\n\n" if best.blank_after_short_description else "\n"
    first, rest = paragraphs[0], "\n\n".join(part for part in paragraphs[1:] if part)
    return Docs(gap.join(part for part in (first, rest) if part), dict(_parameters(best)))


def _styles() -> Iterator[Callable[[str], Docstring]]:
    """A parser for each style. They take time to load, and programs without tools do not need them."""
    advice = [google.Section(title, "notes", google.SectionType.SINGULAR) for title in _ADVICE]
    yield google.GoogleParser([*google.DEFAULT_SECTIONS, *advice]).parse
    yield numpydoc.parse
    yield rest.parse
    yield epydoc.parse


def _read(read: Callable[[str], Docstring], text: str) -> Docstring | None:
    try:
        return read("\n" + text)  # or the parser takes the indentation below a title in the first line for the margin
    except (ParseError, ValueError, IndexError, KeyError):
        return None  # it is written in another style, or in none


def _findings(reading: Docstring) -> int:
    """How much of it a style has understood. What it merely found is not counted."""
    return sum(type(found) is not DocstringMeta for found in reading.meta)


def _advice(reading: Docstring) -> Iterator[str]:
    for found in reading.meta:
        if found.args and found.args[0] in ("notes", "warnings") and found.description:
            yield f"{found.args[0].removesuffix('s').capitalize()}: {found.description}"


def _parameters(reading: Docstring) -> Iterator[tuple[str, str]]:
    for found in reading.params:
        for name in found.arg_name.split(","):  # numpydoc describes several at once
            if found.description:
                yield name.strip().lstrip("*"), found.description.strip()


_UNPACKED: tuple[Any, ...] = (Unpack, UnpackOfExtensions)
_CONFIG = ConfigDict(extra="forbid", val_json_bytes="base64", ser_json_bytes="base64", hide_input_in_errors=True)


@dataclass(frozen=True, slots=True)
class BoundCall:
    """Arguments that fit, as the function wants them."""

    arguments: Mapping[str, Any]
    """By parameter. What was not given is not here."""
    _signature: inspect.Signature = field(repr=False, compare=False)
    _contexts: Sequence[str] = field(default=(), repr=False, compare=False)

    def call(self, function: Callable[..., Any], context: ToolContext[Any] | None = None) -> Any:
        """Call the function whose signature it was. An async one returns what is to be awaited."""
        given = inspect.BoundArguments(self._signature, {**self.arguments, **dict.fromkeys(self._contexts, context)})
        given.apply_defaults()  # what comes after by place needs what comes before
        return function(*given.args, **given.kwargs)


@dataclass(frozen=True, slots=True)
class _Argument:
    """A parameter that the model may fill in."""

    name: str
    """In the function."""
    shown: str
    """In the schema."""
    key: str
    """In the model that checks it, where names such as `copy` and `_x` would mean something else."""
    annotation: Any
    default: Any = Parameter.empty
    optional: bool = False
    among: str | None = None
    """The parameter with two stars that takes it."""
    description: str | None = None


@dataclass(frozen=True, slots=True)
class Signature:
    """What a function is called, does and takes."""

    name: str
    description: str
    parameters: dict[str, Any]
    """JSON schema of the arguments."""
    _signature: inspect.Signature = field(repr=False)
    _arguments: Sequence[_Argument] = field(repr=False)
    _contexts: Sequence[str] = field(repr=False)
    _rest: _Argument | None = field(repr=False)
    """The parameter with two stars, if it takes any name."""
    _taken: frozenset[str] = field(repr=False)
    """Any name but these: parameters that are filled in by others than the model."""
    _model: type[BaseModel] = field(repr=False)

    def bind(self, arguments: Mapping[str, Any]) -> BoundCall:
        """The call that the arguments mean.

        Raises:
            ArgumentsError: They do not fit. The text names each field and what is wrong with it, and no values.
        """
        given = dict(arguments)
        names = [argument.shown for argument in self._arguments if argument is not self._rest]
        if self._rest is not None:
            if taken := sorted(self._taken & given.keys()):
                raise ArgumentsError("; ".join(f"{name}: no such parameter" for name in taken))
            given = {name: given[name] for name in names if name in given} | {
                self._rest.shown: {name: value for name, value in given.items() if name not in names}
            }
        try:
            # As JSON, which knows fewer types than Python: what is strict about types reads dates from text there.
            read = self._model.model_validate_json(to_json(given, bytes_mode="base64"))
        except ValidationError as error:
            rest = None if self._rest is None else self._rest.shown
            raise ArgumentsError(explained(error, given, names, rest)) from None
        except (PydanticSerializationError, ValueError, RecursionError):
            raise ArgumentsError(
                f"{', '.join(_unwritable(arguments)) or 'arguments'}: cannot be written as JSON"
            ) from None
        return BoundCall(self._values(read), self._signature, self._contexts)

    def _values(self, read: BaseModel) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for argument in self._arguments:
            if argument.optional and argument.key not in read.model_fields_set:
                continue
            value = getattr(read, argument.key)
            if argument.among is not None:
                values.setdefault(argument.among, {})[argument.name] = value
            else:
                values[argument.name] = value
        return values


def read_signature(function: Callable[..., Any], *, method: bool = False) -> Signature:
    """What there is to know about a function before it is called.

    Args:
        method: Whether its first parameter will be filled by the instance or class it is taken from.

    Raises:
        ConfigurationError: An annotation cannot be resolved, or JSON has no values for it.
    """
    plain = _plain(function)
    title = getattr(plain, "__qualname__", type(function).__name__)
    docs = read_docstring(_doc_of(function))
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError, NameError) as error:
        raise ConfigurationError(
            f"{title} does not say what it takes: {error}.", field="function", fix="Wrap it in a function that does."
        ) from error
    if method:
        signature = signature.replace(parameters=[*signature.parameters.values()][1:])
    preset = function.keywords if isinstance(function, partial) else {}
    arguments: list[_Argument] = []
    contexts: list[str] = []
    rest = None
    for parameter in signature.parameters.values():
        if parameter.name in preset:  # whoever filled it in does not want it asked for, or told
            continue
        annotation = _resolved(parameter, plain, title)
        if _is_context(annotation):
            contexts.append(parameter.name)
            continue
        found = list(_arguments_of(parameter, annotation, docs.parameters, len(arguments)))
        if parameter.kind is Parameter.VAR_KEYWORD and found and found[0].among is None:
            rest = found[0]
        arguments.extend(found)
    _check_names(arguments, title)
    arguments = [_or_none(argument) for argument in arguments]
    model, schema = _described(arguments, title)
    return Signature(
        name=_name_of(function),
        description=docs.description,
        parameters=_finished(schema, model, arguments, rest),
        _signature=signature,
        _arguments=tuple(arguments),
        _contexts=tuple(contexts),
        _rest=rest,
        _taken=_names_in(plain).union(signature.parameters, preset)
        - {argument.shown for argument in arguments}
        - {rest.name if rest is not None else ""},
        _model=model,
    )


# What is behind a callable


def _plain(function: Any) -> Any:
    """The function that was written down, below whatever it is wrapped in."""
    for _ in range(100):
        if isinstance(function, partial):
            function = function.func
        elif isinstance(function, MethodType | classmethod | staticmethod):
            function = function.__func__
        elif hasattr(function, "__wrapped__"):
            function = function.__wrapped__
        elif not hasattr(function, "__code__") and hasattr(type(function).__call__, "__code__"):
            function = type(function).__call__
        else:
            break
    return function


def _names_in(plain: Any) -> frozenset[str]:
    """The parameters that can be given by name, `self` among them."""
    code = getattr(plain, "__code__", None)
    if code is None:
        return frozenset()
    return frozenset(code.co_varnames[code.co_posonlyargcount : code.co_argcount + code.co_kwonlyargcount])


def _name_of(function: Any) -> str:
    while isinstance(function, partial):
        function = function.func
    return str(getattr(function, "__name__", None) or type(function).__name__)


def _doc_of(function: Any) -> str | None:
    while isinstance(function, partial):
        function = function.func
    if inspect.isroutine(function) or "__doc__" in getattr(function, "__dict__", ()):
        return inspect.getdoc(function)
    kind = type(function)
    of_class = inspect.getdoc(kind) or ""
    generated = of_class.startswith(f"{kind.__name__}(")  # by @dataclass
    return inspect.getdoc(kind.__call__) or (None if generated else of_class)


# Annotations


def _resolved(parameter: Parameter, plain: Any, title: str) -> Any:
    """The annotation of a parameter; one that is text is looked up where the function was written."""
    if parameter.annotation is Parameter.empty:
        return Any
    of_type = {kind.__name__: kind for kind in getattr(plain, "__type_params__", ())}
    holder = SimpleNamespace(__annotations__={parameter.name: parameter.annotation})
    try:
        hints = get_type_hints(
            holder, getattr(plain, "__globals__", {}), {**_names_around(plain), **of_type}, include_extras=True
        )
    except Exception as error:  # annotations are expressions, and those can fail in any way
        raise ConfigurationError(
            f"The annotation of the parameter {parameter.name!r} of {title} cannot be resolved: {error}.",
            field=parameter.name,
            fix="Define what it names before the function, and import it at run time, not under TYPE_CHECKING alone.",
        ) from error
    return _eager(hints[parameter.name])


def _eager(annotation: Any) -> Any:
    """Lists where anything that can be iterated is wanted: pydantic would only look at the items during the call."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if Iterable in (annotation, origin):
        return list[inner[0] if inner else Any]  # type: ignore[misc]
    if origin is Annotated:
        return Annotated[_eager(inner[0]), *inner[1:]]
    if origin in (Union, UnionType):
        return Union[tuple(map(_eager, inner))]  # noqa: UP007
    return annotation


def _names_around(plain: Any) -> dict[str, Any]:
    """What the scopes hold that a function is written in, if they are being run: a class of theirs, for example."""
    names: dict[str, Any] = {}
    written, known = getattr(plain, "__qualname__", ""), getattr(plain, "__globals__", None)
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        around = f"{frame.f_code.co_qualname}."
        if frame.f_globals is known and written.startswith(around):
            names = {**frame.f_locals, **names}
        frame = frame.f_back
    return names


def _is_context(annotation: Any) -> bool:
    origin = get_origin(annotation)
    if (meant := getattr(origin or annotation, "__value__", None)) is not None:  # the name of another type
        return _is_context(meant)
    if origin is Annotated:
        return _is_context(get_args(annotation)[0])
    if origin in (Union, UnionType):
        return any(map(_is_context, get_args(annotation)))
    kind = origin or annotation
    return isinstance(kind, type) and issubclass(kind, ToolContext)


def _arguments_of(parameter: Parameter, annotation: Any, docs: Mapping[str, str], position: int) -> Iterator[_Argument]:
    """What a parameter takes: usually one argument, but several where two stars are unpacked."""
    name, default = parameter.name, parameter.default
    notes = _notes(annotation)
    description = _said(notes) or docs.get(name)
    common: dict[str, Any] = {"name": name, "shown": name, "key": f"p{position}", "description": description}
    match parameter.kind:
        case Parameter.VAR_POSITIONAL:
            yield _Argument(annotation=tuple[annotation, ...], optional=True, **common)
        case Parameter.VAR_KEYWORD if get_origin(annotation) in _UNPACKED and is_typeddict(get_args(annotation)[0]):
            yield from _members(get_args(annotation)[0], name, docs, position)
        case Parameter.VAR_KEYWORD:
            yield _Argument(annotation=dict[str, annotation], optional=True, **common)
        case _:
            if isinstance(default, FieldInfo):  # as pydantic has it: settings in place of a default
                notes = (*notes, default)
                annotation, default = Annotated[annotation, default], Parameter.empty
            common["shown"] = _alias(notes) or name
            yield _Argument(annotation=annotation, default=default, optional=default is not Parameter.empty, **common)


def _members(kind: Any, among: str, docs: Mapping[str, str], position: int) -> Iterator[_Argument]:
    for number, (name, annotation) in enumerate(get_type_hints(kind, include_extras=True).items(), position):
        optional = name not in kind.__required_keys__
        origin: Any = get_origin(annotation)
        if origin in (Required, NotRequired):
            optional = origin is NotRequired
            annotation = get_args(annotation)[0]
        said = _said(_notes(annotation)) or docs.get(name)
        yield _Argument(name, name, f"p{number}", annotation, optional=optional, among=among, description=said)


def _notes(annotation: Any) -> tuple[Any, ...]:
    return get_args(annotation)[1:] if get_origin(annotation) is Annotated else ()


def _said(notes: Sequence[Any]) -> str | None:
    """A description among an annotation's notes."""
    texts = (note.documentation if isinstance(note, Doc) else note for note in notes)
    return next((text for text in texts if isinstance(text, str)), None)


def _alias(notes: Sequence[Any]) -> str | None:
    names = (note.alias or note.validation_alias for note in notes if isinstance(note, FieldInfo))
    return next((name for name in names if isinstance(name, str)), None)


def _check_names(arguments: Sequence[_Argument], title: str) -> None:
    names = [argument.shown for argument in arguments]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigurationError(
            f"{title} has two parameters that are shown as {', '.join(twice)}.", field=twice[0], fix="Rename one."
        )


def _or_none(argument: _Argument) -> _Argument:
    """`x: int = None` means that None is fine, though it does not say so."""
    if argument.default is not None:
        return argument
    try:
        _model_of([argument]).model_validate({argument.shown: None})
    except ValidationError:
        pass
    except Exception:
        return argument  # it will be said what is wrong with it when all are looked at
    else:
        return argument
    notes = _notes(argument.annotation)
    annotation: Any = get_args(argument.annotation)[0] if notes else argument.annotation
    annotation = Optional[annotation]  # noqa: UP045  # a value, and `|` is not for all of them
    return replace(argument, annotation=Annotated[annotation, *notes] if notes else annotation)


# Schemas


class _Schemas(GenerateJsonSchema):
    """A default that is no JSON, and a variant that JSON has no values for, are left out in silence."""

    ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012  # it is declared so

    @override
    def is_subclass_schema(self, schema: core_schema.IsSubclassSchema) -> JsonSchemaValue:
        return self.handle_invalid_for_json_schema(schema, "a class")  # which pydantic says can be anything


def _model_of(arguments: Sequence[_Argument]) -> type[BaseModel]:
    fields: dict[str, Any] = {}
    for argument in arguments:
        # The function's own default is left to the function. This one only says that there is one.
        missing: dict[str, Any] = {"default_factory": _nothing} if argument.optional else {}
        fields[argument.key] = (argument.annotation, Field(validation_alias=argument.shown, **missing))
    return create_model("Arguments", __config__=_CONFIG, **fields)


def _nothing() -> None:
    return None


def _described(arguments: Sequence[_Argument], title: str) -> tuple[type[BaseModel], dict[str, Any]]:
    """The model that checks the arguments, and its schema."""
    try:
        model = _model_of(arguments)
        return model, model.model_json_schema(schema_generator=_Schemas)
    except Exception as error:  # types bring code of their own into this
        if len(arguments) == 1:
            raise _unfit(arguments[0], title, error) from error
        for argument in arguments:
            _described([argument], title)  # which of them it is
        raise


def _unfit(argument: _Argument, title: str, error: Exception) -> ConfigurationError:
    why = str(error).partition("\n")[0].partition(". ")[0].rstrip(".")
    return ConfigurationError(
        f"The parameter {argument.name!r} of {title} cannot be passed as JSON: {why}.",
        field=argument.name,
        fix="Annotate it with a type that JSON has values for, or hand it to the tool through ToolContext.deps.",
    )


def _finished(
    schema: dict[str, Any], model: type[BaseModel], arguments: Sequence[_Argument], rest: _Argument | None
) -> dict[str, Any]:
    """The schema with what the function says, and without titles that repeat names."""
    definitions: dict[str, Any] = schema.get("$defs", {})
    for name, defined in ((model.__name__, schema), *definitions.items()):
        if defined.get("title") == name:
            del defined["title"]
        for key, member in defined.get("properties", {}).items():
            if isinstance(member, dict) and member.get("title") == key.title().replace("_", " ").strip():
                del member["title"]
    properties: dict[str, Any] = schema.get("properties", {})
    for argument in arguments:
        shown = properties[argument.shown]
        if argument.description:
            shown.setdefault("description", argument.description)
        if argument.default is not Parameter.empty:
            shown.update(_shown_default(argument, model))
    others: Any = False
    if rest is not None:
        others = properties.pop(rest.shown).get("additionalProperties", True)
        if rest.description:
            others = {"description": rest.description, **({} if others is True else others)}
    finished = {"type": "object", "properties": properties, "additionalProperties": others}
    if required := schema.get("required"):
        finished["required"] = required
    return {**finished, "$defs": definitions} if definitions else finished


def _shown_default(argument: _Argument, model: type[BaseModel]) -> dict[str, Any]:
    """A default as JSON, if it is read from there as the same again: no sentinels, no secrets, no infinities."""
    key, default = argument.key, argument.default
    try:
        written = model.model_construct(**{key: default}).model_dump(mode="json", include={key}, warnings="error")[key]
        if isinstance(default, set | frozenset):
            written = sorted(written, key=dumps)  # or it would be another one in each process
        dumps(written, allow_nan=False)
        read = model.__pydantic_validator__.validate_assignment(model.model_construct(), key, written)
        return {"default": written} if getattr(read, key) == default else {}
    except Exception:  # values bring code of their own into this
        return {}


def _unwritable(given: Mapping[str, Any]) -> Iterator[str]:
    for name, value in given.items():
        try:
            to_json(value, bytes_mode="base64")
        except (PydanticSerializationError, ValueError, RecursionError):
            yield name
