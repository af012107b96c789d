"""Every parameter, block and event of the official SDKs is in docs/conformance.md, with its state.

The tables of the page are computed: each entry is encoded or decoded, and found again in the result.
`python -m tests.providers.test_sdk_coverage` writes them. Entries of another release of an SDK are reported as skipped.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias, get_args, get_origin

import pytest

from agent import errors
from agent.calls.call import reveal_secrets
from agent.engine.wire import Reply
from agent.providers import Provider, load_provider
from agent.types import (
    AgentConfig,
    AgentRequest,
    AgentResponse,
    CodeExecution,
    ComputerUse,
    FileContent,
    FileSearch,
    ImageContent,
    ImageGeneration,
    McpConnector,
    Message,
    Origin,
    RefusalContent,
    Role,
    TextContent,
    ThinkingContent,
    ToolCall,
    ToolResult,
    ToolSpec,
    VendorContent,
    WebSearch,
)
from tests.providers.test_losses import PARTS, SETTINGS
from tests.providers.vendor_sdks import APIS, MANY, MARK, NUMBER, Api, Json, sample

PAGE = Path(__file__).parents[2] / "docs" / "conformance.md"
BEGIN, END = "<!-- coverage: begin -->\n", "<!-- coverage: end -->\n"
COMMAND = "python -m tests.providers.test_sdk_coverage"
TOTAL = 3 * MANY
EXTRA, DICT, RAW, VENDOR = "`extra`", "a dict in `tools`", "`raw`", "`VendorContent`"
STREAMING, ERROR, SILENT = "methods that stream", "an error", "no event of its own"
Entries: TypeAlias = dict[str, str]
"""How to reach each entry, by the vendor's name."""

BUILT_IN = (
    WebSearch(),
    CodeExecution(),
    FileSearch(stores=["s"]),
    ComputerUse(),
    McpConnector(label="docs", url="https://mcp.test"),
    ImageGeneration(),
)
TOOL = ToolSpec(name="look", parameters={"type": "object", "properties": {}})
SET: dict[str, Json] = {
    **{field: fields for fields in SETTINGS.values() for field in fields if field != "extra"},
    "thinking": {"thinking": "high"},
    "logprobs": {"logprobs": 3},
    "input": {"input": "Hello"},
    "messages": {"messages": [Message.user("Hello"), Message.assistant("Hi")]},
    "tools": {"tools": [TOOL]},
    "tool_choice": {"tools": [TOOL], "tool_choice": "required"},
    "parallel_tool_calls": {"tools": [TOOL], "parallel_tool_calls": False},
    "metadata": {"metadata": {"user_id": MARK.lower()}, "store": True},
    "session_id": {"session_id": MARK},
    "cache": {"cache": "long"},
    "output_mode": {"output_mode": "native"},
    "deadline": {"deadline": 3.0},
}
"""A value for each request field, with fields that it needs."""


@cache
def codec_of(target: str) -> Provider:
    name, _, model = target.partition(":")
    return load_provider(name)(AgentConfig(provider=name, model=model, api_key="sk-test"))


def encode(target: str, *, stream: bool = False, **fields: Any) -> tuple[Json, set[str], str]:
    """Return the body by paths of parameters, the warnings, and the headers."""
    request = AgentRequest(**{"input": "hi", **fields}, model=target.partition(":")[2])
    wire = codec_of(target).encode(reveal_secrets(request), stream=stream)
    flat: Json = {}
    for name, value in json.loads(wire.body).items():
        nested = name in ("generationConfig", "toolConfig")
        flat |= {f"{name}.{inner}": one for inner, one in value.items()} if nested else {name: value}
    return flat, set(wire.warnings), repr(wire.headers)


# Requests.


class Effect(NamedTuple):
    keys: dict[str, None]
    """Parameters that a field adds or changes, for any of the models."""
    otherwise: str
    """A warning or an error."""


@cache
def effect_of(api: Api, field: str) -> Effect:
    keys: dict[str, None] = {}
    otherwise = ""
    for target in api.targets if field in SET else ():
        needed = {name: value for name, value in SET[field].items() if name != field}
        before, known, headers = encode(target, **needed)
        try:
            after, warnings, sent = encode(target, **SET[field])
        except errors.ConfigurationError:
            otherwise = "error"
            continue
        keys |= {key: None for key, value in after.items() if before.get(key) != value}
        keys |= {} if sent == headers else {"betas": None}
        otherwise = "warning" if warnings - known else otherwise
    return Effect(keys, otherwise)


def parameter_entries(api: Api) -> Entries:
    always = {"model": ["model"]}
    entries: Entries = {}
    for path in api.parameters:
        fields = [field for field in AgentRequest.model_fields if path in effect_of(api, field).keys]
        by_fields = ", ".join(f"`{field}`" for field in fields or always.get(path, []))
        entries[path] = by_fields or (STREAMING if path == "stream" else _extra_entry(api, path))
    return entries


def _extra_entry(api: Api, path: str) -> str:
    value: Any = MARK
    for name in reversed(path.split(".")):
        value = {name: value}
    with suppress(errors.ConfigurationError):
        return EXTRA if encode(api.targets[0], extra=value)[0].get(path) == MARK else ERROR
    return ERROR


def conversations(target: str) -> Iterator[tuple[str, list[Message]]]:
    """Conversations with a part of each kind, at each place, with the part's class."""
    provider, _, model = target.partition(":")
    origin = Origin(provider=provider, api=codec_of(target).api, model=model)
    text = TextContent(text=MARK, signature=MARK, origin=origin, provider_data={"id": "msg_1"})
    own = (
        text,
        ThinkingContent(thinking="Hm.", signature=MARK, id="rs_1", encrypted_content=MARK, origin=origin),
        ThinkingContent(thinking="", redacted=True, encrypted_content=MARK, origin=origin),
        RefusalContent(refusal=MARK, origin=origin, provider_data={"id": "msg_2"}),
        ImageContent(image_data=b"\0", origin=origin, provider_data={"type": "image_generation_call", "id": "ig_1"}),
    )
    for part in (*PARTS.values(), FileContent(file_id=MARK, media_type="text/csv"), *own):
        yield type(part).__name__, [Message.user([part, part])]
        yield type(part).__name__, [Message.user("hi"), Message.assistant([part, text]), Message.user("go on")]
    for data in (None, {"type": "custom"}, {"type": "computer_call"}):
        call = ToolCall(id="call_1", name="look", arguments={"input": "x"}, provider_data=data, origin=origin)
        calling = [Message.user("hi"), Message.assistant([call])]
        yield "ToolResult", [*calling, Message(Role.TOOL, [ToolResult(tool_call_id="call_1", content="ok")])]


def kinds_in(value: Any) -> set[str]:
    """Return all values of `type`, and all keys."""
    if isinstance(value, list):
        return set().union(*map(kinds_in, value))
    if not isinstance(value, Mapping):
        return set()
    return {str(value.get("type")), *value}.union(*map(kinds_in, value.values()))


def content_entries(api: Api) -> Entries:
    found: dict[str, list[str]] = {}
    for target in api.targets:
        for name, messages in conversations(target):
            with suppress(errors.ConfigurationError):
                for kind in kinds_in(encode(target, messages=messages, input=None)[0]):
                    found.setdefault(kind, []).append(name)
    entries: Entries = {}
    for kind in api.requested:
        names = list(dict.fromkeys(found.get(kind, ())))
        if "TextContent" in names:  # text is beside all other parts
            names = ["TextContent"]
        elif "ToolResult" in names:  # results follow calls
            names = ["ToolResult" if re.search("result|output|Response", kind) else "ToolCall"]
        entries[kind] = ", ".join(f"`{name}`" for name in names) or _vendor_entry(api, kind)
    return entries


def _vendor_entry(api: Api, kind: str) -> str:
    provider, _, model = api.targets[0].partition(":")
    origin = Origin(provider=provider, api=codec_of(api.targets[0]).api, model=model)
    part = VendorContent(kind=kind, provider_data=api.block(kind), origin=origin)
    for messages in ([Message.user([part])], [Message.user("hi"), Message.assistant([part]), Message.user("hi")]):
        with suppress(errors.ConfigurationError):
            if kind in kinds_in(encode(api.targets[0], messages=messages, input=None)[0]):
                return VENDOR
    return ERROR


def tool_entries(api: Api) -> Entries:
    entries: Entries = dict.fromkeys(api.own_tools, "`ToolSpec`")
    for target in api.targets:
        for built_in in BUILT_IN:
            with suppress(errors.ConfigurationError):
                body, _, _ = encode(target, tools=[built_in])
                for kind in kinds_in(list(body.get("tools", ()))) & set(api.tools):
                    entries[kind] = f"`{type(built_in).__name__}`, or {DICT}"
    for kind in api.tools:
        tool = api.tool(kind)
        sent = tool in encode(api.targets[0], tools=[tool])[0]["tools"]
        entries.setdefault(kind, DICT if sent else ERROR)
    return entries


# Responses.


def decode(api: Api, body: Json) -> AgentResponse:
    return codec_of(api.targets[0]).decode(Reply(200, {}, json.dumps(body).encode()), AgentRequest(input="hi"))


def decode_events(api: Api, events: Iterable[Json]) -> tuple[list[str], AgentResponse, bool]:
    """Return the types of events before the end, the response, and whether decoding failed."""
    decoder = codec_of(api.targets[0]).decoder({}, AgentRequest(input="hi"))
    decoded = [event for one in events for event in decoder.feed(b"data: %b\n\n" % json.dumps(one).encode())]
    types: list[str] = [event.type for event in decoded]
    decoder.feed(b"" if decoder.done else b"data: [DONE]\n\n" if api.name == "Chat Completions" else b"")
    decoder.end()
    return types, decoder.response() if decoder.done else decoder.partial(), decoder.failure is not None


def block_entries(api: Api) -> Entries:
    entries: Entries = {}
    for kind in api.received:
        parts = decode(api, api.wrap(api.block(kind))).content
        entries[kind] = ", ".join(dict.fromkeys(f"`{type(part).__name__}`" for part in parts)) or RAW
    return entries


def find_mark(value: Any, path: str = "") -> str | None:
    """Return the path of the first mark in a dump, without the vendor's own keys."""
    if isinstance(value, Mapping):
        found = (find_mark(item, f"{path}.{key}" if path else str(key)) for key, item in value.items())
        return next((one for one in found if one is not None), None)
    if isinstance(value, list | tuple):
        return next((one for item in value if (one := find_mark(item, path)) is not None), None)
    marked = value in (NUMBER, TOTAL) or (isinstance(value, str) and MARK in value)
    return re.sub(r"(provider_data|vendor\.\w+|logprobs|choices)\..*", r"\1", path) if marked else None


def field_entries(api: Api) -> Entries:
    """Find each field of a response, complete and streamed."""
    entries: Entries = {}
    for path, kind in api.fields.items():
        if path.endswith("index") or (get_origin(kind) is Literal and len(get_args(kind)) == 1):
            continue  # a constant
        body = json.loads(json.dumps(api.body))
        if path.startswith("promptFeedback"):  # no answer
            body |= {"candidates": [], "promptFeedback": {"blockReason": "SAFETY"}}
        place: Any = body
        *outer, last = path.split(".")
        for step in outer:
            place = place.setdefault(step, {})
            place = place[0] if isinstance(place, list) else place
        place[last] = TOTAL if "total" in last else sample(kind)
        try:
            whole = find_mark(decode(api, body).model_dump(mode="json"))
        except errors.AgentError:
            entries[path] = ERROR
            continue
        streamed = find_mark(decode_events(api, api.stream(body))[1].model_dump(mode="json"))
        entries[path] = RAW if whole is None and streamed is None else f"`{whole or streamed}`"
        if whole != streamed:
            entries[path] += " (not in streams)" if streamed is None else f" (`{streamed}` in streams)"
    return entries


def event_entries(api: Api) -> Entries:
    entries: Entries = {}
    for kind, events in api.events.items():
        before = decode_events(api, events[:-1])[0]
        after, _, failed = decode_events(api, events)
        new = [f"`{name}`" for name in dict.fromkeys(after[len(before) :]) if name != "message_start"]
        entries[kind] = ERROR if failed else ", ".join(new) or SILENT
    return entries


# The page.

TABLES: dict[str, Callable[[Api], Entries]] = {
    "Parameters": parameter_entries,
    "Content of requests": content_entries,
    "Tools": tool_entries,
    "Content of responses": block_entries,
    "Fields of responses": field_entries,
    "Stream events": event_entries,
}
HEADINGS = {f"{api.name}: {title.lower()}": (api, compute) for api in APIS for title, compute in TABLES.items()}


def render_fields() -> str:
    """Render the table of request fields: the parameters that each sets, a warning, an error, or nothing."""
    lines = ["| Field | " + " | ".join(api.name for api in APIS) + " |", "|---" * (len(APIS) + 1) + "|"]
    for field in sorted(SET):
        effects = [effect_of(api, field) for api in APIS]
        cells = [", ".join(f"`{key.rpartition('.')[2]}`" for key in effect.keys) for effect in effects]
        cells = [cell or effect.otherwise for cell, effect in zip(cells, effects, strict=True)]
        lines.append(f"| `{field}` | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def render() -> str:
    text = ", ".join(f"{sdk} {version(sdk)}" for sdk in dict.fromkeys(api.sdk for api in APIS))
    text = f"Versions of the SDKs: {text}.\n\n### Request fields\n\n{render_fields()}"
    for heading, (api, compute) in HEADINGS.items():
        names_by_way: dict[str, list[str]] = {}
        for name, way in sorted(compute(api).items()):
            names_by_way.setdefault(way, []).append(f"`{name}`")
        rows = [f"| {way} | {', '.join(names)} |\n" for way, names in sorted(names_by_way.items())]
        text += f"\n### {heading}\n\n| Here | {api.name} |\n|---|---|\n{''.join(rows)}" if rows else ""
    return text


def read_page() -> tuple[str, dict[str, Entries]]:
    """Return the computed part of the page, and the entries of its tables."""
    page = PAGE.read_text("utf-8")
    part = page[page.index(BEGIN) + len(BEGIN) : page.index(END)].strip()
    tables: dict[str, Entries] = {}
    for section in part.split("\n### ")[2:]:
        heading, _, rows = section.partition("\n")
        for way, names in re.findall(r"^\| (.+?) \| (`.+`) \|$", rows, re.M):
            tables.setdefault(heading, {}).update(dict.fromkeys(re.findall("`([^`]+)`", names), way))
    return part, tables


@pytest.mark.parametrize("heading", HEADINGS)
def test_every_entry_of_an_sdk_is_on_the_page_with_its_state(heading: str) -> None:
    page, tables = read_page()
    api, compute = HEADINGS[heading]
    stated, actual = tables.get(heading, {}), compute(api)
    wrong = {name: (stated[name], actual[name]) for name in stated.keys() & actual.keys()}
    wrong = {name: states for name, states in wrong.items() if states[0] != states[1]}
    assert not wrong, f"run `{COMMAND}`; stated and actual: {wrong}"
    new, gone = sorted(actual.keys() - stated.keys()), sorted(stated.keys() - actual.keys())
    if (new or gone) and f"{api.sdk} {version(api.sdk)}" not in page.partition("\n")[0]:
        pytest.skip(f"another release of {api.sdk}: new {new}, gone {gone}")
    assert not new, f"run `{COMMAND}`; not on the page: {new}"
    assert not gone, f"run `{COMMAND}`; not in the SDK: {gone}"


def test_the_page_states_what_each_request_field_sets() -> None:
    stated = read_page()[0].partition("### Request fields\n\n")[2].partition("\n###")[0]
    assert stated == render_fields(), f"run `{COMMAND}`"
    assert SET.keys() | {"model", "extra"} == AgentRequest.model_fields.keys()


if __name__ == "__main__":
    text = PAGE.read_text("utf-8")
    start, end = text[: text.index(BEGIN) + len(BEGIN)], text[text.index(END) :]
    PAGE.write_text(f"{start}\n{render()}\n{end}", "utf-8")
