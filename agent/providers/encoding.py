"""Encoding helpers shared by the codecs: request fields, JSON, tools, ids, names and media."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeAlias, TypeVar

from pydantic_core import PydanticSerializationError, from_json, to_json

from .. import errors
from ..types import (
    AgentRequest,
    BuiltinTool,
    CodeContent,
    DiffContent,
    DocumentContent,
    Message,
    Origin,
    Part,
    SearchResultContent,
    ThinkingLevel,
    ToolResult,
    ToolSpec,
    thaw,
)
from ..types._base import is_finite

JsonDict: TypeAlias = dict[str, Any]

_N, _I = b"NI"


# The request and its fields.


@dataclass(slots=True)
class EncodingContext:
    """State of encoding one request: the target, the body so far, and the warnings.

    Codecs subclass it to add their dialect.
    """

    request: AgentRequest
    origin: Origin
    """The target: provider, API and model."""
    body: JsonDict = field(default_factory=dict)
    warnings: dict[str, None] = field(default_factory=dict)
    """Warnings in order, each once."""

    @property
    def provider(self) -> str:
        return self.origin.provider

    @property
    def model(self) -> str:
        return self.origin.model

    def warn(self, *warnings: str) -> None:
        self.warnings.update(dict.fromkeys(warnings))

    def refuses(self, name: str) -> bool:
        """Whether the target refuses a request field, so that `encode_fields` drops it with a warning."""
        return False

    def feature_error(self, message: str, *, field: str, fix: str) -> errors.UnsupportedFeatureError:
        """Build the error for a field that the target does not support."""
        return errors.UnsupportedFeatureError(
            message, field=field, fix=fix, provider=self.provider, model=self.model or None
        )

    def builtin_tool_error(self, tool: BuiltinTool) -> errors.UnsupportedFeatureError:
        """Build the error for a built-in tool that the target does not have."""
        return self.feature_error(
            f"{self.provider} does not support the built-in tool {tool.builtin!r}.",
            field="tools",
            fix="Remove it, or use a provider that has it.",
        )

    def drop_tool_settings(self, tool: BuiltinTool, *supported: str) -> None:
        """Warn about settings of a built-in tool that the target does not have."""
        others = tool.model_fields_set - {"builtin", "extra", *supported}
        if names := sorted(name for name in others if getattr(tool, name) not in (None, ())):
            self.warn(f"{', '.join(names)} of {tool.builtin} was left out: {self.provider} does not support it")

    def drop_citation_settings(self, part: DocumentContent | SearchResultContent) -> None:
        """Warn about settings for citations, which only some APIs have."""
        if part.citations:
            self.warn(f"citations of a {part.type} were left out: {self.provider} does not support them")
        if isinstance(part, DocumentContent) and part.context:
            self.warn(f"the context of a document was left out: {self.provider} does not support it")

    def add_extra(self, encoded: JsonDict, extra: Mapping[str, Any], what: str) -> None:
        """Add the vendor's keys of a message or part, and warn about those that are set otherwise."""
        for key, value in extra.items():
            current = encoded.get(key)
            if isinstance(current, Mapping) and isinstance(value, Mapping):
                encoded[key] = {**value, **current}
            elif key not in encoded:
                encoded[key] = value
            elif current != value:
                self.drop_extra({key: value}, what)

    def drop_extra(self, extra: Mapping[str, Any], what: str) -> None:
        """Warn about keys of a message or part that the API has no place for."""
        names: list[str] = []
        for key, value in extra.items():
            names += [f"{key}.{inner}" for inner in value] if isinstance(value, Mapping) else [key]
        if names:
            self.warn(f"keys of {what} were left out: {', '.join(names)}; {self.provider} does not support them there")

    def drop_all_extra(self, messages: Iterable[Message]) -> None:
        """Warn about all keys of messages and parts that are not of this package."""
        for message in messages:
            if message.extra:
                self.drop_extra(message.extra, "a message")
            for part in () if isinstance(message.content, str) else message.content:
                if part.extra:
                    self.drop_extra(part.extra, f"a part of type {part.type!r}")
                inner = part.content if isinstance(part, ToolResult | SearchResultContent) else ""
                for each in () if isinstance(inner, str) else inner:
                    self.drop_extra(each.extra, f"a part of type {each.type!r}")

    def part_error(self, part: Part, where: str) -> errors.UnsupportedFeatureError:
        """Build the error for a content part that the API does not support."""
        return self.feature_error(
            f"{self.provider} does not support a part of type {part.type!r} {where}.",
            field="messages",
            fix="Remove it, or use a provider that supports it.",
        )


C = TypeVar("C", bound=EncodingContext)
FieldEncoder: TypeAlias = Callable[[C, Any], Mapping[str, Any]]
"""Encodes one request field as keys of the body. It may warn or raise."""

_DEFAULTS = {name: info.default for name, info in AgentRequest.model_fields.items()}


def encode_fields(context: C, rows: Mapping[str, FieldEncoder[C]]) -> JsonDict:
    """Encode every request field that is set, in table order, and return the body."""
    request, body = context.request, context.body
    given = request.model_fields_set
    for name, encode in rows.items():
        if name not in given:
            continue
        value = getattr(request, name)
        if value is None or value == _DEFAULTS[name]:
            continue
        if context.refuses(name):
            context.warn(
                f"{name} was left out: {context.model or 'the model'} at {context.provider} does not support it"
            )
        else:
            body.update(encode(context, value))
    return body


def send_as(key: str) -> FieldEncoder[EncodingContext]:
    """Send the value unchanged under a key."""
    return lambda context, value: {key: value}


def send_nested(key: str, encode: FieldEncoder[C]) -> FieldEncoder[C]:
    """Send a field inside an object that other fields share."""

    def encode_nested(context: C, value: Any) -> JsonDict:
        nested = encode(context, value)
        return {key: {**context.body.get(key, {}), **nested}} if nested else {}

    return encode_nested


def drop_with_warning(warning: str) -> FieldEncoder[EncodingContext]:
    """Drop the field with a warning, in which {provider} is replaced."""

    def encode(context: EncodingContext, value: Any) -> JsonDict:
        context.warn(warning.format(provider=context.provider))
        return {}

    return encode


def drop_unsupported(names: str) -> dict[str, FieldEncoder[EncodingContext]]:
    """Return rows for fields that the API does not support, which are dropped with a warning."""
    return {name: drop_with_warning(f"{name} was left out: {{provider}} does not support it") for name in names.split()}


def refuse_choices(context: EncodingContext, n: int) -> JsonDict:
    """Refuse to request alternative responses, which the API does not have. One response is the default."""
    if n == 1:
        return {}
    raise context.feature_error(
        f"{context.provider} returns one response for a request.", field="n", fix="Send the request several times."
    )


def drop_modalities(context: EncodingContext, modalities: Sequence[str]) -> JsonDict:
    """Drop kinds of output other than text, which the API does not have."""
    if others := [modality for modality in modalities if modality != "text"]:
        context.warn(f"modalities: {', '.join(others)} was left out: {context.provider} returns text only")
    return {}


def drop_silently(context: EncodingContext, value: Any) -> JsonDict:
    """Drop the field without a warning: it is for the client, or has no effect on this API."""
    return {}


def level_for_budget(budget: int, budgets: Mapping[ThinkingLevel, int]) -> ThinkingLevel:
    """Return the lowest thinking level with at least a budget, or the highest one."""
    return min(budgets, key=lambda level: (budgets[level] < budget, abs(budgets[level] - budget)))


def check_extra(request: AgentRequest, reserved_keys: Sequence[str]) -> None:
    """Raise ConfigurationError if `extra` contains a key that a request field sets."""
    if not request.extra:
        return
    for key in (*reserved_keys, "tools") if request.tools else reserved_keys:
        if key in request.extra:
            raise errors.ConfigurationError(
                f"extra may not contain {key!r}.", field="extra", fix=f"Set {key} with the request field."
            )


# JSON.


def dump_json(value: Any) -> bytes:
    """Serialize a body. Lone surrogates, non-finite numbers and unknown objects raise ConfigurationError."""
    try:
        data = to_json(value)
        # Searching for one byte first takes a tenth of the time.
        if (_N in data and b"NaN" in data) or (_I in data and b"Infinity" in data):
            from_json(data, allow_inf_nan=False)
    except (PydanticSerializationError, ValueError) as error:
        raise errors.ConfigurationError(
            f"The request cannot be serialized as JSON: {error}.",
            field="request",
            fix="Pass JSON values only; text.encode('utf-8', 'replace').decode() replaces lone surrogates.",
        ) from None
    return data


def dump_arguments(arguments: Mapping[str, Any]) -> str:
    return dump_json({**arguments}).decode()  # a plain dict is serialized faster than a frozen one


def read_arguments(arguments: dict[str, Any]) -> tuple[dict[str, Any], str | None]:
    """Return arguments from a response; their text if they contain an infinite number, such as 1e999."""
    if is_finite(arguments):
        return arguments, None
    return {}, to_json(arguments, inf_nan_mode="constants").decode()


# Tools and schemas.


def tool_parameters(tool: ToolSpec) -> JsonDict:
    """The tool's schema as a plain dict. Vendors require an object without properties for no parameters."""
    return thaw(tool.parameters) or {"type": "object", "properties": {}}


def schema_name(schema: Mapping[str, Any]) -> str:
    """Derive the name of an output schema from its title."""
    title = str(schema.get("title") or "answer")
    name = "".join(letter if letter.isascii() and (letter.isalnum() or letter in "_-") else "_" for letter in title)
    return name[:64] or "answer"


# Ids and names.


@lru_cache(maxsize=256)
def request_origin(provider: str, api: str, model: str) -> Origin:
    """The origin of the response's parts. Cached, so that origins usually compare by identity."""
    return Origin(provider=provider, api=api, model=model)


def normalize_id(id: str, pattern: re.Pattern[str], length: int = 24, *, prefix: str = "") -> str:
    """Return the id if it matches the pattern, else a hash of it.

    Ids of calls and results both pass through here, so they still match; the conversation keeps the originals.
    """
    if pattern.fullmatch(id):
        return id
    return prefix + hashlib.sha256(id.encode("utf-8", "surrogatepass")).hexdigest()[: length - len(prefix)]


@lru_cache(maxsize=4096)
def normalize_name(name: str, max_length: int, allowed: str = "a-zA-Z0-9_-") -> str:
    """Replace invalid characters of a tool name. A changed name ends in a hash of the original."""
    clean = re.sub(f"[^{allowed}]", "_", name)
    if clean == name and len(name) <= max_length:
        return name
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:6]
    return f"{clean[: max_length - 7]}_{digest}"


def original_names(request: AgentRequest, max_length: int, allowed: str = "a-zA-Z0-9_-") -> dict[str, str]:
    """Map changed tool names to those in the request, for decoding the response."""
    names = (tool.name for tool in request.tools if isinstance(tool, ToolSpec))
    return {sent: name for name in names if (sent := normalize_name(name, max_length, allowed)) != name}


# Content.


def to_markdown(part: CodeContent | DiffContent) -> str:
    if isinstance(part, CodeContent):
        return f"```{part.language or ''}\n{part.code}\n```"
    removed = "".join(f"-{line}\n" for line in part.old_code.splitlines())
    added = "".join(f"+{line}\n" for line in part.new_code.splitlines())
    return f"```diff\n{removed}{added}```"


def search_result_text(result: SearchResultContent) -> str:
    return f"{result.title} ({result.source}):\n{result.text}"


def document_text(document: DocumentContent) -> str:
    return f"{document.title}:\n{document.text}" if document.title else document.text or ""


def encode_base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def data_url(data: bytes, media_type: str) -> str:
    return f"data:{media_type};base64,{encode_base64(data)}"
