"""A suite for wire formats: what both sides of one promise, as cases that a new format can be run against.

The cases know no format. What only some vendors have (reasoning, images, token counts) is tried where the codec's
capabilities say so.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from .. import errors
from ..engine.wire import Reply
from ..providers import Provider, load_provider, server_dialects
from ..providers.server_dialect import InboundRequest, ServerDialect
from ..providers.server_stream import response_events
from ..schemas import compile_schema
from ..types import (
    AgentConfig,
    AgentRequest,
    AgentResponse,
    ImageContent,
    Message,
    Part,
    Role,
    StreamEvent,
    TextContent,
    ThinkingContent,
    ToolCall,
    ToolResult,
    ToolSpec,
    Usage,
)
from ..wire_formats import wire_format

_URL = "http://127.0.0.1:9"
_USAGE = Usage(prompt_tokens=120, completion_tokens=40)
_LOOKUP = ToolSpec(
    name="lookup",
    description="Finds a word.",
    parameters={"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]},
)
_WORDS = "Once upon a time  there was\na fox \u2603."


@dataclass(slots=True)
class FormatTrial:
    """Both sides of one wire format."""

    name: str
    model: str
    codec: Provider = field(init=False)
    server: ServerDialect = field(init=False)

    def __post_init__(self) -> None:
        self.codec = load_provider(self.name)(
            AgentConfig(provider=self.name, model=self.model, base_url=_URL, api_key="sk-test")
        )
        found = [server for server in server_dialects() if server.api == self.codec.api]
        assert found, f"no server side of {self.codec.api}"
        self.server = found[0]

    def request(self, **fields: Any) -> AgentRequest:
        return AgentRequest(**{"model": self.model, "input": "Hi", **fields})

    def receive(self, request: AgentRequest, *, stream: bool = False) -> InboundRequest:
        """A request as the server side reads it."""
        wire = self.codec.encode(request, stream=stream)
        assert self.server.match_endpoint(wire.url) == "generate", f"its own server does not know {wire.url}"
        return self.server.decode_request(wire.url, wire.body)

    def read(self, response: AgentResponse, request: AgentRequest | None = None) -> AgentResponse:
        """A response, written by the server and read by the codec."""
        asked = request or self.request()
        return self.codec.decode(Reply(200, {}, self.server.encode_response(response, self.receive(asked))), asked)

    def stream(self, response: AgentResponse) -> bytes:
        encoder = self.server.encoder(self.receive(self.request(), stream=True))
        written = [encoder.encode_event(event) for event in response_events(response, self.server)]
        return b"".join([*written, encoder.end(response)])

    def read_stream(self, pieces: Iterable[bytes]) -> AgentResponse:
        decoder = self.codec.decoder({}, self.request())
        for piece in pieces:
            decoder.feed(piece)
        decoder.end()
        assert decoder.failure is None, decoder.failure
        assert decoder.done, "a whole stream is taken for one that was cut off"
        return decoder.response()

    def responses(self) -> dict[str, AgentResponse]:
        """Responses by what is special about them."""
        text = TextContent(text=_WORDS)
        calls = [
            ToolCall(id="call_a", name="lookup", arguments={"word": "Z\u00fcrich", "n": [1, {"deep": None}]}),
            ToolCall(id="call_b", name="lookup", arguments={}),
        ]
        found: dict[str, Sequence[Part]] = {"text": [text]}
        if self.codec.capabilities.tools:
            found["a call"] = calls[:1]
            found["text and calls"] = [text, *calls]
        if self.codec.capabilities.thinking:
            found["reasoning"] = [ThinkingContent(thinking="Two and two ..."), TextContent(text="4")]
        return {name: AgentResponse(content=parts, usage=_USAGE, model=self.model) for name, parts in found.items()}


Case: TypeAlias = Callable[[FormatTrial], None]
WIRE_FORMAT_CASES: dict[str, Case] = {}


def _case(case: Case) -> Case:
    WIRE_FORMAT_CASES[case.__name__] = case
    return case


def check_wire_format(name: str, *, model: str = "model", only: Sequence[str] = ()) -> None:
    """Check that a wire format keeps its promises. The first that it breaks is an AssertionError.

    ```python
    from agent.testing import check_wire_format

    check_wire_format("anthropic", model="claude-sonnet-4-5")
    ```

    Args:
        name: The name of a provider in the registry of wire formats.
        model: A model that takes tools, and all settings.
        only: Names of cases. Without any, all of `WIRE_FORMAT_CASES`.
    """
    for case in only or WIRE_FORMAT_CASES:
        try:
            WIRE_FORMAT_CASES[case](FormatTrial(name, model))
        except AssertionError as error:
            raise AssertionError(f"{case}: {error}") from error
        except Exception as error:
            raise AssertionError(f"{case}: unexpected {type(error).__name__}: {error}") from error


def _same(found: AgentResponse, expected: AgentResponse, what: str) -> None:
    for view in ("text", "thinking"):
        mine, theirs = getattr(found, view) or "", getattr(expected, view) or ""
        assert mine == theirs, f"{what}: {view} is {mine!r} and not {theirs!r}"
    calls = [(call.id, call.name, dict(call.arguments)) for call in found.tool_calls]
    wanted = [(call.id, call.name, dict(call.arguments)) for call in expected.tool_calls]
    assert calls == wanted, f"{what}: calls are {calls} and not {wanted}"
    assert found.usage == expected.usage, f"{what}: usage is {found.usage}"
    reason = "tool_calls" if wanted else "stop"
    assert found.stop_reason == reason, f"{what}: it ended with {found.stop_reason!r} and not with {reason!r}"
    assert found.model == expected.model, f"{what}: the model is {found.model!r}"


@_case
def the_package_is_registered(trial: FormatTrial) -> None:
    declared = wire_format(trial.name)
    assert declared is not None, "it is not in the registry"
    assert declared.api == trial.codec.api == trial.server.api, "its parts have different names"
    if trial.codec.schema_dialect is not None:
        compile_schema(_LOOKUP.parameters, trial.codec.schema_dialect)


@_case
def a_response_is_read_as_it_was_written(trial: FormatTrial) -> None:
    for what, response in trial.responses().items():
        _same(trial.read(response), response, what)


@_case
def a_stream_says_the_same_however_it_is_cut(trial: FormatTrial) -> None:
    for what, response in trial.responses().items():
        data = trial.stream(response)
        _same(trial.read_stream([data]), response, f"{what}, in one piece")
        _same(trial.read_stream(data[at : at + 1] for at in range(len(data))), response, f"{what}, byte by byte")


@_case
def a_stream_that_was_cut_off_has_no_end(trial: FormatTrial) -> None:
    data = trial.stream(trial.responses()["text"])
    whole = trial.read_stream([data])
    for end in range(len(data)):
        decoder = trial.codec.decoder({}, trial.request())
        decoder.feed(data[:end])
        decoder.end()
        assert not decoder.done or decoder.response() == whole, f"cut after {end} bytes, it passes for whole"


@_case
def stop_reasons_are_read_as_they_were_written(trial: FormatTrial) -> None:
    for reason in ("stop", "length"):
        response = AgentResponse(text="Hi", stop_reason=reason, usage=_USAGE, model=trial.model)
        assert trial.read(response).stop_reason == reason
        assert trial.read_stream([trial.stream(response)]).stop_reason == reason


@_case
def a_stream_of_another_vendor_can_be_told(trial: FormatTrial) -> None:
    """Events whose calls interleave, and that end all of them last."""
    response = trial.responses()["text"]
    if trial.codec.capabilities.tools:
        response = trial.responses()["text and calls"]
    calls = response.tool_calls
    events: list[StreamEvent] = [StreamEvent.text_delta(_WORDS, index=1)]
    events += [
        StreamEvent.tool_call_start(ToolCall(id=call.id, name=call.name), index=3 + place)
        for place, call in enumerate(calls)
    ]
    pieces = [json.dumps(dict(call.arguments), ensure_ascii=False) for call in calls]
    for half in (slice(0, 5), slice(5, None)):
        for place, text in enumerate(pieces):
            events.append(StreamEvent.tool_call_delta_event(text[half], index=3 + place))
    events += [StreamEvent.tool_call_end(call, index=3 + place) for place, call in enumerate(calls)]
    encoder = trial.server.encoder(trial.receive(trial.request(), stream=True))
    written = [encoder.encode_event(event) for event in events]
    _same(trial.read_stream([*written, encoder.end(response)]), response, "an interleaved stream")


@_case
def errors_are_read_as_what_they_are(trial: FormatTrial) -> None:
    kinds: tuple[type[errors.AgentError], ...] = (
        errors.AuthenticationError,
        errors.BadRequestError,
        errors.ModelNotFoundError,
        errors.RateLimitError,
        errors.QuotaExceededError,
        errors.OverloadedError,
    )
    for kind in kinds:
        status, body = trial.server.encode_error(kind("sorry"))
        found = trial.codec.decode_error(Reply(status, {}, body), trial.request())
        assert (type(found), found.message) == (kind, "sorry"), f"{kind.__name__} is read as {found!r}"


@_case
def an_error_in_a_stream_ends_it(trial: FormatTrial) -> None:
    encoder = trial.server.encoder(trial.receive(trial.request(), stream=True))
    decoder = trial.codec.decoder({}, trial.request())
    decoder.feed(encoder.encode_event(StreamEvent.text_delta("Once ", index=0)))
    decoder.feed(encoder.encode_event(StreamEvent.text_delta("upon ", index=0)))
    decoder.feed(encoder.fail(errors.OverloadedError("sorry")))
    decoder.end()
    assert not decoder.done, "it passes for whole"
    assert type(decoder.failure) is errors.OverloadedError, f"it is read as {decoder.failure!r}"
    assert (decoder.partial().text or "").startswith("Once"), "what had come is lost"


def _requests(trial: FormatTrial) -> dict[str, AgentRequest]:
    """Requests by what is special about them."""
    capabilities = trial.codec.capabilities
    found = {
        "a question": trial.request(),
        "instructions": trial.request(system="Be brief."),
        "a conversation": trial.request(
            input=None, messages=[Message.user("Hi"), Message.assistant("Hello"), Message.user("Bye")]
        ),
        "settings": trial.request(temperature=0.5, max_tokens=2048),
    }
    if capabilities.vision:
        picture = ImageContent(image_data=b"\x89PNG picture", media_type="image/png")
        found["a picture"] = trial.request(input=None, messages=[Message.user([TextContent(text="Look."), picture])])
    if capabilities.tools:
        call = ToolCall(id="call_a", name="lookup", arguments={"word": "fox"})
        messages = [
            Message.user("Look it up."),
            Message.assistant([TextContent(text="I do."), call]),
            Message(Role.TOOL, [ToolResult(tool_call_id="call_a", content="an animal")]),
        ]
        found["tools"] = trial.request(tools=[_LOOKUP], tool_choice="lookup")
        found["results"] = trial.request(input=None, messages=messages, tools=[_LOOKUP])
    return found


@_case
def a_request_is_understood(trial: FormatTrial) -> None:
    """What the codec writes is read so well that the codec writes the same again."""
    for what, request in _requests(trial).items():
        wire = trial.codec.encode(request, stream=False)
        inbound = trial.server.decode_request(wire.url, wire.body)
        assert (inbound.model, inbound.unsupported) == (trial.model, ()), f"{what}: {inbound}"
        again = trial.codec.encode(inbound.request, stream=False)
        assert json.loads(again.body) == json.loads(wire.body), f"{what}: {again.body!r} and not {wire.body!r}"
        texts = [message.text for message in request.to_messages()]
        assert [message.text for message in inbound.request.to_messages()] == texts, f"{what}: texts differ"
        assert [tool.name for tool in inbound.request.tools if isinstance(tool, ToolSpec)] == [
            tool.name for tool in request.tools if isinstance(tool, ToolSpec)
        ], f"{what}: tools differ"
        assert inbound.request.tool_choice == request.tool_choice, f"{what}: the choice of a tool differs"


@_case
def a_stream_is_asked_for(trial: FormatTrial) -> None:
    for stream in (False, True):
        assert trial.receive(trial.request(), stream=stream).stream is stream


def _altered(trial: FormatTrial, **fields: Any) -> tuple[str, bytes]:
    wire = trial.codec.encode(trial.request(), stream=False)
    return wire.url, json.dumps({**json.loads(wire.body), **fields}).encode()


@_case
def an_unknown_field_is_carried(trial: FormatTrial) -> None:
    request = trial.server.decode_request(*_altered(trial, x_new={"a": [1]})).request
    assert request.extra.get("x_new") == {"a": [1]}, "it is not in extra"
    assert json.loads(trial.codec.encode(request, stream=False).body)["x_new"] == {"a": [1]}, "it is not sent on"


@_case
def a_request_cannot_say_where_it_goes(trial: FormatTrial) -> None:
    for name in ("api_base", "base_url", "api_key", "extra_headers"):
        for fields in ({name: "https://elsewhere.example"}, {"x_new": [{name: "https://elsewhere.example"}]}):
            _refused(trial, *_altered(trial, **fields), what=f"{name} in {fields}")


@_case
def a_wrong_body_is_refused(trial: FormatTrial) -> None:
    url = trial.codec.encode(trial.request(), stream=False).url
    for body in (b"", b"[]", b"null", b"{", b"\xff"):
        _refused(trial, url, body, what=repr(body))


def _refused(trial: FormatTrial, url: str, body: bytes, what: str) -> None:
    try:
        trial.server.decode_request(url, body)
    except errors.ConfigurationError as error:
        status, _ = trial.server.encode_error(error)
        assert status == 400, f"{what}: refused with status {status}"
    else:
        raise AssertionError(f"{what} is taken")


@_case
def tokens_are_counted(trial: FormatTrial) -> None:
    codec: Any = trial.codec
    if not trial.codec.capabilities.token_counting:
        return
    wire = codec.encode_count(trial.request())
    assert trial.server.match_endpoint(wire.url) == "count", f"its own server does not know {wire.url}"
    assert trial.server.decode_request(wire.url, wire.body).model == trial.model
    assert codec.decode_count(Reply(200, {}, trial.server.encode_count(17)), trial.request()) == 17
