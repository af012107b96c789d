"""Requests that generateContent refuses, and their neighbours that it takes."""

from __future__ import annotations

from typing import Any

from tests.testing.rules.cases import CLOSED, GEMINI_2, GEMINI_3, OBJECT, Bad, valid


def _contents(*contents: Any, **settings: Any) -> dict[str, Any]:
    return {**valid(GEMINI_2), **({"contents": list(contents)} if contents else {}), **settings}


def _turn(*parts: Any, role: str = "user") -> dict[str, Any]:
    return {"role": role, "parts": list(parts)}


def _calls(*ids: str, **more: Any) -> dict[str, Any]:
    return _turn(*({"functionCall": {"name": "f", "args": {}, "id": id}, **more} for id in ids), role="model")


def _results(*ids: str, name: str = "f") -> dict[str, Any]:
    return _turn(*({"functionResponse": {"name": name, "response": {}, "id": id}} for id in ids))


def _tool(**more: Any) -> dict[str, Any]:
    return {"functionDeclarations": [{"name": "f", **more}]}


def _config(**config: Any) -> dict[str, Any]:
    return _contents(generationConfig=config)


def _choice(**config: Any) -> dict[str, Any]:
    return {"functionCallingConfig": config}


_HI = _turn({"text": "Hi"})
_COUNT = (
    "the number of function response parts is equal to the number of function call parts of the function call turn."
)
_BAD_TYPE = {"type": "object", "properties": {"a": {"type": ["string", "null"]}}}

_GEMINI_CASES: tuple[tuple[Any, ...], ...] = (
    ("no contents", {}, "* GenerateContentRequest.contents: contents is not specified"),
    ("an unknown key", _contents(foo=1), 'Unknown name "foo": Cannot find field.'),
    (
        "an unknown setting",
        _config(foo=1),
        "Unknown name \"foo\" at 'generation_config': Cannot find field.",
        "generation_config",
    ),
    (
        "an unknown role",
        _contents(_turn({"text": "x"}, role="assistant")),
        "Please use a valid role: user, model.",
    ),
    ("no parts", _contents(_turn()), "contents[0].parts: contents.parts must not be empty."),
    (
        "an empty part",
        _contents(_turn({})),
        "contents[0].parts[0].data: required oneof field 'data' must have one",
    ),
    ("empty text", _contents(_turn({"text": ""})), "it has an empty text parameter."),
    (
        "two things in one part",
        _contents(_turn({"text": "x", "inlineData": {}})),
        "oneof field 'data' is already set.",
    ),
    (
        "a block of another vendor",
        _contents(_turn({"type": "text", "text": "x"})),
        "Unknown name \"type\" at 'contents[0].parts[0]'",
    ),
    ("an orphaned call", _contents(_HI, _calls("1"), _HI), _COUNT),
    ("an orphaned call at the end", _contents(_HI, _calls("1")), _COUNT),
    ("one response too few", _contents(_HI, _calls("1", "2"), _results("1")), _COUNT),
    (
        "an orphaned response",
        _contents(_results("1")),
        "function response turn comes immediately after a function call turn.",
    ),
    (
        "a response before its call",
        _contents(_HI, _turn({"text": "x"}, role="model"), _results("1"), _calls("1")),
        "response turn",
    ),
    (
        "a conversation that begins with a call",
        _contents(_calls("1"), _results("1")),
        "function call turn comes immediately",
    ),
    ("a response to another call", _contents(_HI, _calls("1"), _results("1", name="g")), "1 does not."),
    ("a response under another id", _contents(_HI, _calls("1"), _results("2")), "2 does not."),
    (
        "a call's id twice",
        _contents(_HI, _calls("1", "1"), _results("1", "1")),
        "function call ids are unique",
    ),
    (
        "a bad name of a call",
        _contents(_HI, _turn({"functionCall": {"name": "a b"}}, role="model")),
        "Invalid function name.",
    ),
    (
        "a response without a name",
        _contents(_HI, _calls("1"), _turn({"functionResponse": {"response": {}}})),
        "Name cannot be empty.",
    ),
    (
        "a response in words",
        _contents(_HI, _calls("1"), _turn({"functionResponse": {"name": "f", "response": "done"}})),
        "function_response.response' (type.googleapis.com/google.protobuf.Struct)",
    ),
    (
        "a signature made elsewhere",
        _contents(_HI, _calls("1", thoughtSignature="x"), _results("1")),
        "Corrupted thought signature.",
    ),
    (
        "a bad name of a function",
        _contents(tools=[_tool(name="1f")]),
        "function_declarations[0].name: Invalid function name.",
    ),
    (
        "two functions of one name",
        _contents(tools=[_tool(), _tool()]),
        "Duplicate function declaration found: f",
    ),
    (
        "a keyword of JSON schema",
        _contents(tools=[_tool(parameters={**CLOSED})]),
        "Unknown name \"additionalProperties\" at 'tools[0].function_declarations[0].parameters': Cannot find field.",
        "tools[0].function_declarations[0].parameters",
    ),
    (
        "a reference",
        _contents(tools=[_tool(parameters={"type": "object", "properties": {"a": {"$ref": "#/$defs/A"}}})]),
        "Unknown name \"$ref\" at 'tools[0].function_declarations[0].parameters.properties[0].value'",
    ),
    (
        "two types at once",
        _contents(tools=[_tool(parameters=_BAD_TYPE)]),
        "Proto field is not repeating, cannot start list.",
    ),
    (
        "numbers to choose from",
        _config(responseMimeType="application/json", responseSchema={"type": "INTEGER", "enum": [1]}),
        "Invalid value at 'generation_config.response_schema.enum[0]' (TYPE_STRING), 1",
    ),
    (
        "an array without items",
        _config(responseMimeType="application/json", responseSchema={"type": "ARRAY"}),
        "generation_config.response_schema.items: missing field.",
    ),
    (
        "a property that is required but not there",
        _config(
            responseMimeType="application/json", responseSchema={"type": "OBJECT", "properties": {}, "required": ["a"]}
        ),
        "required[0]: property is not defined",
    ),
    (
        "a schema without JSON",
        _config(responseSchema={"type": "STRING"}),
        "only allowed when response_mime_type is application/json",
    ),
    (
        "a JSON schema whose reference leads nowhere",
        _config(responseMimeType="application/json", responseJsonSchema={"$ref": "#/$defs/A"}),
        "reference '#/$defs/A' could not be resolved",
    ),
    (
        "two schemas",
        _contents(tools=[_tool(parameters=OBJECT, parametersJsonSchema=OBJECT)]),
        "only one of parameters and parameters_json_schema may be set",
    ),
    (
        "a schema beside tools",
        {**_config(responseMimeType="application/json"), "tools": [_tool()]},
        "Function calling with a response mime type: 'application/json' is unsupported",
    ),
    (
        "tools of two kinds",
        _contents(tools=[_tool(), {"googleSearch": {}}]),
        "Tool use with function calling is unsupported",
    ),
    ("a temperature that is too high", _config(temperature=2.1), "temperature must be in the range [0.0, 2.0]."),
    ("a top_p that is too high", _config(topP=1.5), "top_p must be in the range [0.0, 1.0]."),
    ("a limit of nothing", _config(maxOutputTokens=0), "max_output_tokens must be positive."),
    ("too many stops", _config(stopSequences=list("abcdef")), "the maximum number of stop sequences is 5."),
    (
        "thinking in two ways",
        _config(thinkingConfig={"thinkingBudget": 500, "thinkingLevel": "LOW"}),
        "You can only set only one",
    ),
    (
        "a budget out of range",
        _config(thinkingConfig={"thinkingBudget": 99999}),
        "Please choose a value between 128 and 32768.",
    ),
    ("no budget at all", _config(thinkingConfig={"thinkingBudget": 0}), "This model only works in thinking mode."),
    ("a choice without tools", _contents(toolConfig=_choice(mode="AUTO")), "set without function_declarations."),
    (
        "a choice of an unknown function",
        _contents(tools=[_tool()], toolConfig=_choice(mode="ANY", allowedFunctionNames=["g"])),
        "allowed_function_names[0]: 'g' is not the name of a declared function",
    ),
    (
        "names without a choice",
        _contents(tools=[_tool()], toolConfig=_choice(mode="AUTO", allowedFunctionNames=["f"])),
        "can only be set when function calling mode is ANY or VALIDATED",
    ),
)

_GEMINI_3_CASES = (
    (
        "a call without a signature",
        _contents(_HI, _calls("1"), _results("1")),
        "Function call is missing a thought_signature in functionCall parts.",
        "contents[1].parts[0]",
    ),
    (
        "a second step without a signature",
        _contents(_HI, _calls("1", thoughtSignature="declared"), _results("1"), _calls("2"), _results("2")),
        "function call `default_api:f` , position 4.",
    ),
    (
        "a level that the model does not know",
        _config(thinkingConfig={"thinkingLevel": "MINIMAL"}),
        "Thinking level MINIMAL",
    ),
)

BAD = (
    *(Bad(case[0], GEMINI_2, *case[1:]) for case in _GEMINI_CASES),
    *(Bad(case[0], GEMINI_3, *case[1:]) for case in _GEMINI_3_CASES),
)

GOOD = (
    ("a plain question", GEMINI_2, _contents()),
    ("snake case", GEMINI_2, {"contents": [_HI], "generation_config": {"top_p": 0.5}}),
    ("an older model's call without a signature", GEMINI_2, _contents(_HI, _calls("1"), _results("1"))),
    (
        "calls at once of which the first is signed",
        GEMINI_3,
        _contents(
            _HI,
            _turn(*_calls("1", thoughtSignature="declared")["parts"], *_calls("2")["parts"], role="model"),
            _results("1", "2"),
        ),
    ),
    (
        "an older turn without a signature",
        GEMINI_3,
        _contents(_HI, _calls("1"), _results("1"), _turn({"text": "x"}, role="model"), _HI),
    ),
    (
        "the stand-in for a signature",
        GEMINI_3,
        _contents(_HI, _calls("1", thoughtSignature="skip_thought_signature_validator"), _results("1")),
    ),
)
"""Their neighbours, which are taken."""
