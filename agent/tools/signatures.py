"""Function signatures as JSON schemas, and JSON arguments as function calls.

A model may pass what the annotations allow, read as JSON: dates are strings, tuples are arrays. Descriptions come from
the docstring, in any of the four usual styles.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from inspect import Parameter
from json import dumps
from types import FrameType, MethodType, SimpleNamespace, UnionType
from typing import Annotated, Any, NotRequired, Optional, Required, Union, Unpack, get_args, get_origin

import docstring_parser.rest
from docstring_parser import Docstring, DocstringMeta, ParseError, epydoc, google, numpydoc
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import PydanticSerializationError, core_schema, to_json
from typing_extensions import Doc, get_type_hints, is_typeddict, override
from typing_extensions import Unpack as UnpackOfExtensions

from ..errors import ConfigurationError
from .base import ArgumentsError, ToolContext
from .results import describe_argument_errors

_UNPACKED: tuple[Any, ...] = (Unpack, UnpackOfExtensions)
_CONFIG = ConfigDict(extra="forbid", val_json_bytes="base64", ser_json_bytes="base64", hide_input_in_errors=True)


@dataclass(frozen=True, slots=True)
class BoundCall:
    """Validated arguments, ready for the call."""

    arguments: Mapping[str, Any]
    """By parameter name, without omitted arguments."""
    _signature: inspect.Signature = field(repr=False, compare=False)
    _contexts: Sequence[str] = field(default=(), repr=False, compare=False)

    def call(self, function: Callable[..., Any], context: ToolContext[Any] | None = None) -> Any:
        """Call the function. An async function returns an awaitable."""
        bound = inspect.BoundArguments(self._signature, {**self.arguments, **dict.fromkeys(self._contexts, context)})
        bound.apply_defaults()  # positional parameters need those before them
        return function(*bound.args, **bound.kwargs)


@dataclass(frozen=True, slots=True)
class _Argument:
    """An argument that the model may pass."""

    name: str
    """The parameter name in the function."""
    schema_name: str
    """The property name in the schema."""
    key: str
    """The field name in the pydantic model, where names such as `copy` and `_x` are reserved."""
    annotation: Any
    default: Any = Parameter.empty
    optional: bool = False
    container: str | None = None
    """The `**kwargs` parameter that receives it."""
    description: str | None = None


@dataclass(frozen=True, slots=True)
class Signature:
    """Name, description and parameters of a function."""

    name: str
    description: str
    parameters: dict[str, Any]
    """JSON schema of the arguments."""
    _signature: inspect.Signature = field(repr=False)
    _arguments: Sequence[_Argument] = field(repr=False)
    _contexts: Sequence[str] = field(repr=False)
    _rest: _Argument | None = field(repr=False)
    """The `**kwargs` parameter, if it accepts any name."""
    _reserved: frozenset[str] = field(repr=False)
    """Names that `**kwargs` may not contain: parameters that the model cannot set."""
    _model: type[BaseModel] = field(repr=False)

    def bind(self, arguments: Mapping[str, Any]) -> BoundCall:
        """Validate arguments and bind them to the parameters.

        Raises:
            ArgumentsError: They are invalid. The message names each field and its problem, without values.
        """
        given = dict(arguments)
        names = [argument.schema_name for argument in self._arguments if argument is not self._rest]
        if self._rest is not None:
            if taken := sorted(self._reserved & given.keys()):
                raise ArgumentsError("; ".join(f"{name}: unknown parameter" for name in taken))
            given = {name: given[name] for name in names if name in given} | {
                self._rest.schema_name: {name: value for name, value in given.items() if name not in names}
            }
        try:
            # As JSON: pydantic's strict types accept dates and the like only from JSON text.
            values = self._model.model_validate_json(to_json(given, bytes_mode="base64"))
        except ValidationError as error:
            rest = None if self._rest is None else self._rest.schema_name
            raise ArgumentsError(describe_argument_errors(error, given, names, rest)) from None
        except (PydanticSerializationError, ValueError, RecursionError):
            unserializable = [name for name, value in arguments.items() if not _is_serializable(value)]
            raise ArgumentsError(f"{', '.join(unserializable) or 'arguments'}: not JSON serializable") from None
        return BoundCall(self._values(values), self._signature, self._contexts)

    def _values(self, model: BaseModel) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for argument in self._arguments:
            if argument.optional and argument.key not in model.model_fields_set:
                continue
            value = getattr(model, argument.key)
            if argument.container is not None:
                values.setdefault(argument.container, {})[argument.name] = value
            else:
                values[argument.name] = value
        return values


def read_signature(function: Callable[..., Any], *, method: bool = False) -> Signature:
    """Read a function's signature and docstring.

    Args:
        method: Whether the first parameter is bound to an instance or class.

    Raises:
        ConfigurationError: An annotation cannot be resolved, or has no JSON schema.
    """
    unwrapped = _unwrap(function)
    title = getattr(unwrapped, "__qualname__", type(function).__name__)
    named: Any = function
    while isinstance(named, partial):
        named = named.func
    description, parameter_docs = _read_docstring(_function_doc(named) or "")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError, NameError) as error:
        raise ConfigurationError(
            f"{title} has no readable signature: {error}.",
            field="function",
            fix="Wrap it in a function.",
        ) from error
    if method:
        signature = signature.replace(parameters=[*signature.parameters.values()][1:])
    preset = function.keywords if isinstance(function, partial) else {}
    arguments: list[_Argument] = []
    contexts: list[str] = []
    rest = None
    for parameter in signature.parameters.values():
        if parameter.name in preset:  # set by functools.partial
            continue
        annotation = _resolve_annotation(parameter, unwrapped, title)
        if _is_context(annotation):
            contexts.append(parameter.name)
            continue
        found = list(_read_arguments(parameter, annotation, parameter_docs, len(arguments)))
        if parameter.kind is Parameter.VAR_KEYWORD and found and found[0].container is None:
            rest = found[0]
        arguments.extend(found)
    names = [argument.schema_name for argument in arguments]
    if duplicates := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigurationError(
            f"{title} has several parameters named {', '.join(duplicates)}.", field=duplicates[0], fix="Rename one."
        )
    arguments = [_allow_none_default(argument) for argument in arguments]
    model, schema = _build_model(arguments, title)
    return Signature(
        name=str(getattr(named, "__name__", None) or type(named).__name__),
        description=description,
        parameters=_finish_schema(schema, model, arguments, rest),
        _signature=signature,
        _arguments=tuple(arguments),
        _contexts=tuple(contexts),
        _rest=rest,
        _reserved=_list_parameter_names(unwrapped).union(signature.parameters, preset)
        - {argument.schema_name for argument in arguments}
        - {rest.name if rest is not None else ""},
        _model=model,
    )


# Callables


def _unwrap(function: Any) -> Any:
    """The function that was dumped down, below whatever it is wrapped in."""
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


def _list_parameter_names(unwrapped: Any) -> frozenset[str]:
    """Return the parameters that can be passed by name, including `self`."""
    code = getattr(unwrapped, "__code__", None)
    if code is None:
        return frozenset()
    return frozenset(code.co_varnames[code.co_posonlyargcount : code.co_argcount + code.co_kwonlyargcount])


def _function_doc(function: Any) -> str | None:
    if inspect.isroutine(function) or "__doc__" in getattr(function, "__dict__", ()):
        return inspect.getdoc(function)
    kind = type(function)
    class_doc = inspect.getdoc(kind) or ""
    generated = class_doc.startswith(f"{kind.__name__}(")  # by @dataclass
    return inspect.getdoc(kind.__call__) or (None if generated else class_doc)


# Annotations


def _resolve_annotation(parameter: Parameter, unwrapped: Any, title: str) -> Any:
    """Evaluate a parameter's annotation in the scope of its function."""
    if parameter.annotation is Parameter.empty:
        return Any
    type_params = {kind.__name__: kind for kind in getattr(unwrapped, "__type_params__", ())}
    holder = SimpleNamespace(__annotations__={parameter.name: parameter.annotation})
    try:
        hints = get_type_hints(
            holder,
            getattr(unwrapped, "__globals__", {}),
            {**_collect_enclosing_names(unwrapped), **type_params},
            include_extras=True,
        )
    except Exception as error:  # evaluating an annotation may raise anything
        raise ConfigurationError(
            f"The annotation of the parameter {parameter.name!r} of {title} cannot be resolved: {error}.",
            field=parameter.name,
            fix="Define its names before the function, and import them at run time, not only under TYPE_CHECKING.",
        ) from error
    return _require_items(hints[parameter.name])


def _require_items(annotation: Any) -> Any:
    """Replace Iterable by list: pydantic validates the items of iterables lazily, during the call."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if Iterable in (annotation, origin):
        return list[inner[0] if inner else Any]  # type: ignore[misc]
    if origin is Annotated:
        return Annotated[_require_items(inner[0]), *inner[1:]]
    if origin in (Union, UnionType):
        return Union[tuple(map(_require_items, inner))]  # noqa: UP007
    return annotation


def _collect_enclosing_names(unwrapped: Any) -> dict[str, Any]:
    """Return the local variables of the enclosing scopes that are executing."""
    names: dict[str, Any] = {}
    qualname, module_globals = getattr(unwrapped, "__qualname__", ""), getattr(unwrapped, "__globals__", None)
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        around = f"{frame.f_code.co_qualname}."
        if frame.f_globals is module_globals and qualname.startswith(around):
            names = {**frame.f_locals, **names}
        frame = frame.f_back
    return names


def _is_context(annotation: Any) -> bool:
    origin = get_origin(annotation)
    if (target := getattr(origin or annotation, "__value__", None)) is not None:  # a type alias
        return _is_context(target)
    if origin is Annotated:
        return _is_context(get_args(annotation)[0])
    if origin in (Union, UnionType):
        return any(map(_is_context, get_args(annotation)))
    kind = origin or annotation
    return isinstance(kind, type) and issubclass(kind, ToolContext)


def _read_arguments(
    parameter: Parameter, annotation: Any, docs: Mapping[str, str], position: int
) -> Iterator[_Argument]:
    """Yield the arguments of a parameter: one, or several for an unpacked TypedDict."""
    name, default = parameter.name, parameter.default
    notes = _annotation_metadata(annotation)
    description = _find_description(notes) or docs.get(name)
    common: dict[str, Any] = {"name": name, "schema_name": name, "key": f"p{position}", "description": description}
    match parameter.kind:
        case Parameter.VAR_POSITIONAL:
            yield _Argument(annotation=tuple[annotation, ...], optional=True, **common)
        case Parameter.VAR_KEYWORD if get_origin(annotation) in _UNPACKED and is_typeddict(get_args(annotation)[0]):
            yield from _read_typed_dict(get_args(annotation)[0], name, docs, position)
        case Parameter.VAR_KEYWORD:
            yield _Argument(annotation=dict[str, annotation], optional=True, **common)
        case _:
            if isinstance(default, FieldInfo):  # Field(...) in place of a default
                notes = (*notes, default)
                annotation, default = Annotated[annotation, default], Parameter.empty
            common["schema_name"] = _alias(notes) or name
            yield _Argument(annotation=annotation, default=default, optional=default is not Parameter.empty, **common)


def _read_typed_dict(kind: Any, among: str, docs: Mapping[str, str], position: int) -> Iterator[_Argument]:
    for number, (name, annotation) in enumerate(get_type_hints(kind, include_extras=True).items(), position):
        optional = name not in kind.__required_keys__
        origin: Any = get_origin(annotation)
        if origin in (Required, NotRequired):
            optional = origin is NotRequired
            annotation = get_args(annotation)[0]
        said = _find_description(_annotation_metadata(annotation)) or docs.get(name)
        yield _Argument(name, name, f"p{number}", annotation, optional=optional, container=among, description=said)


def _annotation_metadata(annotation: Any) -> tuple[Any, ...]:
    return get_args(annotation)[1:] if get_origin(annotation) is Annotated else ()


def _find_description(notes: Sequence[Any]) -> str | None:
    """Return the description in an annotation's metadata."""
    texts = (note.documentation if isinstance(note, Doc) else note for note in notes)
    return next((text for text in texts if isinstance(text, str)), None)


def _alias(notes: Sequence[Any]) -> str | None:
    names = (note.alias or note.validation_alias for note in notes if isinstance(note, FieldInfo))
    return next((name for name in names if isinstance(name, str)), None)


def _allow_none_default(argument: _Argument) -> _Argument:
    """Allow None for `x: int = None`."""
    if argument.default is not None:
        return argument
    try:
        _model_of([argument]).model_validate({argument.schema_name: None})
    except ValidationError:
        pass
    except Exception:
        return argument  # reported when the whole signature is checked
    else:
        return argument
    notes = _annotation_metadata(argument.annotation)
    annotation: Any = get_args(argument.annotation)[0] if notes else argument.annotation
    annotation = Optional[annotation]  # noqa: UP045  # a value, and `|` is not for all of them
    return replace(argument, annotation=Annotated[annotation, *notes] if notes else annotation)


# Schemas


class _Schemas(GenerateJsonSchema):
    """JSON schema generator that omits unserializable defaults and unsupported union variants."""

    ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012  # it is declared so

    @override
    def is_subclass_schema(self, schema: core_schema.IsSubclassSchema) -> JsonSchemaValue:
        return self.handle_invalid_for_json_schema(schema, "a class")  # which pydantic says can be anything


def _model_of(arguments: Sequence[_Argument]) -> type[BaseModel]:
    fields: dict[str, Any] = {}
    for argument in arguments:
        # Only marks the field as optional; the function applies its own default.
        missing: dict[str, Any] = {"default_factory": lambda: None} if argument.optional else {}
        fields[argument.key] = (argument.annotation, Field(validation_alias=argument.schema_name, **missing))
    return create_model("Arguments", __config__=_CONFIG, **fields)


def _build_model(arguments: Sequence[_Argument], title: str) -> tuple[type[BaseModel], dict[str, Any]]:
    """Return the pydantic model that validates the arguments, and its schema."""
    try:
        model = _model_of(arguments)
        return model, model.model_json_schema(schema_generator=_Schemas)
    except Exception as error:  # custom types run their own code here
        if len(arguments) == 1:
            reason = str(error).partition("\n")[0].partition(". ")[0].rstrip(".")
            raise ConfigurationError(
                f"The parameter {arguments[0].name!r} of {title} has no JSON schema: {reason}.",
                field=arguments[0].name,
                fix="Annotate it with a JSON type, or pass it to the tool through ToolContext.deps.",
            ) from error
        for argument in arguments:
            _build_model([argument], title)  # finds the parameter at fault
        raise


def _finish_schema(
    schema: dict[str, Any], model: type[BaseModel], arguments: Sequence[_Argument], rest: _Argument | None
) -> dict[str, Any]:
    """Add descriptions and defaults to the schema, and remove redundant titles."""
    definitions: dict[str, Any] = schema.get("$defs", {})
    for name, defined in ((model.__name__, schema), *definitions.items()):
        if defined.get("title") == name:
            del defined["title"]
        for key, member in defined.get("properties", {}).items():
            if isinstance(member, dict) and member.get("title") == key.title().replace("_", " ").strip():
                del member["title"]
    properties: dict[str, Any] = schema.get("properties", {})
    for argument in arguments:
        property_schema = properties[argument.schema_name]
        if argument.description:
            property_schema.setdefault("description", argument.description)
        if argument.default is not Parameter.empty:
            property_schema.update(_schema_default(argument, model))
    others: Any = False
    if rest is not None:
        others = properties.pop(rest.schema_name).get("additionalProperties", True)
        if rest.description:
            others = {"description": rest.description, **({} if others is True else others)}
    result = {"type": "object", "properties": properties, "additionalProperties": others}
    if required := schema.get("required"):
        result["required"] = required
    return {**result, "$defs": definitions} if definitions else result


def _schema_default(argument: _Argument, model: type[BaseModel]) -> dict[str, Any]:
    """Return the default for the schema, if it survives a JSON round trip."""
    key, default = argument.key, argument.default
    try:
        dumped = model.model_construct(**{key: default}).model_dump(mode="json", include={key}, warnings="error")[key]
        if isinstance(default, set | frozenset):
            dumped = sorted(dumped, key=dumps)  # the order of sets differs between processes
        dumps(dumped, allow_nan=False)
        restored = model.__pydantic_validator__.validate_assignment(model.model_construct(), key, dumped)
        return {"default": dumped} if getattr(restored, key) == default else {}
    except Exception:  # custom types run their own code here
        return {}


def _is_serializable(value: Any) -> bool:
    try:
        to_json(value, bytes_mode="base64")
    except (PydanticSerializationError, ValueError, RecursionError):
        return False
    return True


# Docstrings

_ADVICE = ("Note", "Notes", "Warning", "Warnings", "Important", "Caution", "Hint", "Tip")
"""Docstring sections that become part of the description."""
_NOTES = [google.Section(title, "notes", google.SectionType.SINGULAR) for title in _ADVICE]
_STYLES = (
    google.GoogleParser([*google.DEFAULT_SECTIONS, *_NOTES]).parse,
    numpydoc.parse,
    docstring_parser.rest.parse,
    epydoc.parse,
)


def _read_docstring(text: str) -> tuple[str, dict[str, str]]:
    """Return the descriptions of a function and its parameters, in the style with the most sections."""
    readings: list[Docstring] = []
    for parse in _STYLES:
        with suppress(ParseError, ValueError, IndexError, KeyError):  # it is written in another style, or in none
            readings.append(parse("\n" + text))  # the parsers misread indentation below a title in the first line
    best = max(readings, key=_count_sections, default=None)
    if best is None or not _count_sections(best):
        return text.strip(), {}  # a word before a colon may look like a section of an unknown style
    paragraphs = [best.long_description]
    for found in best.meta:
        if found.args and found.args[0] in ("notes", "warnings") and found.description:
            paragraphs.append(f"{found.args[0].removesuffix('s').capitalize()}: {found.description}")
    gap = "\n\n" if best.blank_after_short_description else "\n"
    description = gap.join(filter(None, (best.short_description, "\n\n".join(filter(None, paragraphs)))))
    parameters = {
        name.strip().lstrip("*"): found.description.strip()
        for found in best.params
        for name in found.arg_name.split(",")  # numpydoc describes several at once
        if found.description
    }
    return description, parameters


def _count_sections(reading: Docstring) -> int:
    """Count the recognized sections."""
    return sum(type(found) is not DocstringMeta for found in reading.meta)
