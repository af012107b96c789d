"""What generateContent refuses: settings and tools here, the conversation in `gemini_contents`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from typing_extensions import override

from ...providers.gemini.fields import MAX_STOPS
from ...providers.gemini.models import ModelFeatures, features_of
from .base import Issued, Known, Rules, Violation, a_number, a_text, an_object, everything_in, is_among, objects_in
from .gemini_contents import REQUEST, broken_contents, broken_name, broken_parts
from .gemini_schemas import broken_json_schema, broken_schema, camel_key, unknown_name

KEYS = frozenset(
    (
        "cachedContent",
        "contents",
        "generationConfig",
        "labels",
        "model",
        "modelArmorConfig",
        "safetySettings",
        "serviceTier",
        "store",
        "systemInstruction",
        "toolConfig",
        "tools",
    )
)
CONFIG_KEYS = frozenset(
    (
        "audioTimestamp",
        "audioTranscriptionConfig",
        "candidateCount",
        "enableAffectiveDialog",
        "enableEnhancedCivicAnswers",
        "frequencyPenalty",
        "imageConfig",
        "logprobs",
        "maxOutputTokens",
        "mediaResolution",
        "modelSelectionConfig",
        "presencePenalty",
        "responseFormat",
        "responseJsonSchema",
        "responseLogprobs",
        "responseMimeType",
        "responseModalities",
        "responseSchema",
        "routingConfig",
        "seed",
        "speechConfig",
        "stopSequences",
        "temperature",
        "thinkingConfig",
        "topK",
        "topP",
        "translationConfig",
    )
)
_FREE = frozenset(("args", "response", "parameters", "parametersJsonSchema", "responseSchema", "responseJsonSchema"))
"""Keys whose values are the caller's own, and not the API's."""
_RANGES = {"temperature": ("temperature", 2), "topP": ("top_p", 1)}
_MODES = ("MODE_UNSPECIFIED", "AUTO", "ANY", "NONE", "VALIDATED")


@dataclass(frozen=True, slots=True)
class GeminiRules(Rules):
    """The API's rules."""

    name: ClassVar[str] = "gemini"

    @override
    def broken(
        self, body: Mapping[str, Any], known: Known, *, model: str = "", counting: bool = False
    ) -> Iterator[Violation]:
        if counting and isinstance(inner := body.get("generateContentRequest"), dict):
            body = inner
        for key in body:
            if camel_key(key) not in KEYS and key not in known.keys:
                yield unknown_name(key, "")
        plain: dict[str, Any] = camel(body)
        config = an_object(plain.get("generationConfig"))
        for key in config:
            if key not in CONFIG_KEYS and key not in known.keys:
                yield unknown_name(key, "generation_config")
        features = features_of(model)
        yield from broken_contents(plain.get("contents"), known, model)
        if isinstance(system := plain.get("systemInstruction"), dict):
            yield from broken_parts(system.get("parts"), "system_instruction", known, spoken=False)
        yield from _tools(plain, features)
        yield from _settings(config)
        yield from _thinking(an_object(config.get("thinkingConfig")), features)
        yield from _output(plain, config, features)

    @override
    def complaint(self, violation: Violation) -> dict[str, Any]:
        said: dict[str, Any] = {"code": 400, "message": violation.message, "status": "INVALID_ARGUMENT"}
        if violation.at is not None:
            found = {"field": violation.at, "description": violation.message}
            said["details"] = [{"@type": "type.googleapis.com/google.rpc.BadRequest", "fieldViolations": [found]}]
        return {"error": said}

    @override
    def unreadable(self) -> Violation:
        return Violation("Invalid JSON payload received. Unexpected token.")

    @override
    def issued(self, answer: Iterable[Any]) -> Iterator[Issued]:
        for found in everything_in([*answer]):
            if signature := a_text(found.get("thoughtSignature")):
                yield Issued(signature)


def camel(value: Any) -> Any:
    """A body in one of the two spellings that the API reads. What is the caller's own stays as it is."""
    if isinstance(value, list):
        return [camel(item) for item in value]
    if not isinstance(value, Mapping):
        return value
    spelt = {camel_key(key): inner for key, inner in value.items()}
    return {key: inner if key in _FREE else camel(inner) for key, inner in spelt.items()}


def _tools(body: Mapping[str, Any], features: ModelFeatures) -> Iterator[Violation]:
    names: set[str] = set()
    own: list[str] = []
    for n, tool in objects_in(body.get("tools")):
        own += [key for key in tool if key != "functionDeclarations"]
        for position, function in objects_in(tool.get("functionDeclarations")):
            at = f"tools[{n}].function_declarations[{position}]"
            yield from broken_name(function.get("name"), f"{at}.name")
            name = a_text(function.get("name"))
            if name in names:
                yield Violation(f"Duplicate function declaration found: {name}")
            names.add(name)
            if "parameters" in function and "parametersJsonSchema" in function:
                yield _both(at, "parameters", "parameters_json_schema")
            if isinstance(schema := function.get("parameters"), dict):
                kind = schema.get("type")
                if isinstance(kind, str) and kind.upper() != "OBJECT":
                    yield Violation(f"{REQUEST}.{at}.parameters.type: only allowed to be OBJECT type\n")
                yield from broken_schema(schema, f"{at}.parameters", f"GenerateContentRequest.{at}.parameters")
            if "parametersJsonSchema" in function:
                where = f"GenerateContentRequest.{at}.parameters_json_schema"
                yield from broken_json_schema(function["parametersJsonSchema"], where)
    if names and own and not features.mixes_tools:
        yield Violation("Tool use with function calling is unsupported")
    calling = an_object(an_object(body.get("toolConfig")).get("functionCallingConfig"))
    if not calling:
        return
    at = "tool_config.function_calling_config"
    if not names:
        yield Violation("Function calling config is set without function_declarations.")
    if a_text(calling.get("mode") or "AUTO").upper() not in _MODES:
        kind = "type.googleapis.com/google.ai.generativelanguage.v1beta.FunctionCallingConfig.Mode"
        yield Violation(f"Invalid value at '{at}.mode' ({kind}), \"{calling['mode']}\"", f"{at}.mode")
    allowed = calling.get("allowedFunctionNames")
    if allowed and a_text(calling.get("mode")).upper() not in ("ANY", "VALIDATED"):
        said = "can only be set when function calling mode is ANY or VALIDATED"
        yield Violation(f"{REQUEST}.{at}.allowed_function_names: {said}\n")
    for n, name in enumerate(allowed if isinstance(allowed, list) else ()):
        if names and not is_among(name, names):
            said = f"'{name}' is not the name of a declared function"
            yield Violation(f"{REQUEST}.{at}.allowed_function_names[{n}]: {said}\n")


def _both(at: str, one: str, other: str) -> Violation:
    return Violation(f"{REQUEST}.{at}: only one of {one} and {other} may be set\n")


def _settings(config: Mapping[str, Any]) -> Iterator[Violation]:
    at = f"{REQUEST}.generation_config"
    for key, (name, most) in _RANGES.items():
        value = a_number(config.get(key))
        if config.get(key) is not None and value is None:
            where = f"generation_config.{name}"
            yield Violation(f"Invalid value at '{where}' (TYPE_FLOAT), \"{config[key]}\"", where)
        elif value is not None and not 0 <= value <= most:
            yield Violation(f"{at}.{name}: {name} must be in the range [0.0, {most:.1f}].\n")
    for key, name in (("maxOutputTokens", "max_output_tokens"), ("candidateCount", "candidate_count")):
        if (value := a_number(config.get(key))) is not None and value < 1:
            yield Violation(f"{at}.{name}: {name} must be positive.\n")
    stops = config.get("stopSequences")
    if isinstance(stops, list):
        if len(stops) > MAX_STOPS:
            yield Violation(f"{at}.stop_sequences: the maximum number of stop sequences is {MAX_STOPS}.\n")
        for n, stop in enumerate(stops):
            if not stop:
                yield Violation(f"{at}.stop_sequences[{n}]: stop sequence must not be empty.\n")


def _thinking(thinking: Mapping[str, Any], features: ModelFeatures) -> Iterator[Violation]:
    budget, level = a_number(thinking.get("thinkingBudget")), thinking.get("thinkingLevel")
    if budget is not None and level is not None:
        yield Violation("You can only set only one of thinking budget and thinking level.")
    if level is not None and features.levels and a_text(level).upper() not in features.levels:
        said = f"Thinking level {a_text(level).upper()} is not supported for this model."
        yield Violation(f"{said} Please retry with other thinking level.")
    elif level is not None and not features.levels:
        yield Violation("Thinking level is not supported for this model.")
    if budget is None or features.budget is None or budget == -1:
        return
    least, most = features.budget
    if budget == 0:
        if not features.can_stop_thinking:
            yield Violation("Budget 0 is invalid. This model only works in thinking mode.")
    elif not least <= budget <= most:
        said = f"The thinking budget {budget:g} is invalid. Please choose a value between {least} and {most}."
        yield Violation(said)


def _output(body: Mapping[str, Any], config: Mapping[str, Any], features: ModelFeatures) -> Iterator[Violation]:
    at = "generation_config"
    form = config.get("responseMimeType")
    schemas = [key for key in ("responseSchema", "responseJsonSchema") if config.get(key) is not None]
    if len(schemas) == 2:
        yield _both(at, "response_schema", "response_json_schema")
    if schemas and form not in ("application/json", "text/x.enum"):
        said = "only allowed when response_mime_type is application/json"
        yield Violation(f"{REQUEST}.{at}.response_schema: {said}\n")
    if "responseSchema" in schemas:
        where = f"{at}.response_schema"
        yield from broken_schema(config["responseSchema"], where, f"GenerateContentRequest.{where}")
    if "responseJsonSchema" in schemas:
        yield from broken_json_schema(config["responseJsonSchema"], f"GenerateContentRequest.{at}.response_json_schema")
    functions = any(tool.get("functionDeclarations") for _, tool in objects_in(body.get("tools")))
    if form == "application/json" and functions and not features.schema_with_tools:
        yield Violation("Function calling with a response mime type: 'application/json' is unsupported")
