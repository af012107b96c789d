"""Conformance tests: suite for wire formats, and harness of the suite for stores.

The codec and the server side of a wire format must agree. Cases for optional features, such as reasoning, images and
token counts, depend on the codec's capabilities.
"""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

from .. import errors
from ..engine.wire import Reply
from ..providers import Provider, load_provider, server_dialects
from ..providers.server_dialect import InboundRequest, ServerDialect
from ..providers.server_stream import response_events
from ..schemas import compile_schema
from ..stores.base import NodeRow, SessionRecord, Store
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


@contextmanager
def name_failures(case: str) -> Iterator[None]:
    """Add the name of a case to its failure."""
    try:
        yield
    except AssertionError as error:
        raise AssertionError(f"{case}: {error}") from error
    except Exception as error:
        raise AssertionError(f"{case}: unexpected {type(error).__name__}: {error}") from error


_URL = "http://127.0.0.1:9"
_USAGE = Usage(prompt_tokens=120, completion_tokens=40)
_LOOKUP = ToolSpec(
    name="lookup",
    description="Finds a word.",
    parameters={"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]},
)
_TEXT = "Once upon a time  there was\na fox \u2603."


@dataclass(slots=True)
class FormatHarness:
    """Codec and server side of one wire format."""

    name: str
    model: str
    codec: Provider = field(init=False)
    server: ServerDialect = field(init=False)

    def __post_init__(self) -> None:
        self.codec = load_provider(self.name)(
            AgentConfig(provider=self.name, model=self.model, base_url=_URL, api_key="sk-test")
        )
        server = next((server for server in server_dialects() if server.api == self.codec.api), None)
        assert server is not None, f"no server side of {self.codec.api}"
        self.server = server

    def request(self, **fields: Any) -> AgentRequest:
        return AgentRequest(**{"model": self.model, "input": "Hi", **fields})

    def receive(self, request: AgentRequest, *, stream: bool = False) -> InboundRequest:
        """Decode a request with the server side."""
        wire = self.codec.encode(request, stream=stream)
        assert self.server.match_endpoint(wire.url) == "generate", f"the server side has no endpoint {wire.url}"
        return self.server.decode_request(wire.url, wire.body)

    def read(self, response: AgentResponse, request: AgentRequest | None = None) -> AgentResponse:
        """Encode a response with the server side and decode it with the codec."""
        request = request or self.request()
        reply = Reply(200, {}, self.server.encode_response(response, self.receive(request)))
        return self.codec.decode(reply, request)

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
        assert decoder.done, "a complete stream counts as incomplete"
        return decoder.response()

    def responses(self) -> dict[str, AgentResponse]:
        """Return test responses by description."""
        text = TextContent(text=_TEXT)
        calls = [
            ToolCall(id="call_a", name="lookup", arguments={"word": "Z\u00fcrich", "n": [1, {"deep": None}]}),
            ToolCall(id="call_b", name="lookup", arguments={}),
        ]
        contents: dict[str, Sequence[Part]] = {"text": [text]}
        if self.codec.capabilities.tools:
            contents["a call"] = calls[:1]
            contents["text and calls"] = [text, *calls]
        if self.codec.capabilities.thinking:
            contents["reasoning"] = [ThinkingContent(thinking="Two and two ..."), TextContent(text="4")]
        return {name: AgentResponse(content=parts, usage=_USAGE, model=self.model) for name, parts in contents.items()}


FormatCase: TypeAlias = Callable[[FormatHarness], None]
WIRE_FORMAT_CASES: dict[str, FormatCase] = {}


def _case(case: FormatCase) -> FormatCase:
    WIRE_FORMAT_CASES[case.__name__] = case
    return case


def check_wire_format(name: str, *, model: str = "model", only: Sequence[str] = ()) -> None:
    """Run the conformance tests of a wire format. The first failure raises AssertionError.

    ```python
    from agent.testing import check_wire_format

    check_wire_format("anthropic", model="claude-sonnet-4-5")
    ```

    Args:
        name: The name of a provider in the registry of wire formats.
        model: A model that supports tools and all settings.
        only: Names of cases; by default, all of `WIRE_FORMAT_CASES`.
    """
    for case in only or WIRE_FORMAT_CASES:
        with name_failures(case):
            WIRE_FORMAT_CASES[case](FormatHarness(name, model))


def _expect_equal(actual: AgentResponse, expected: AgentResponse, label: str) -> None:
    calls = [(call.id, call.name, dict(call.arguments)) for call in expected.tool_calls]
    for name, value, expected_value in (
        ("text", actual.text or "", expected.text or ""),
        ("thinking", actual.thinking or "", expected.thinking or ""),
        ("calls", [(call.id, call.name, dict(call.arguments)) for call in actual.tool_calls], calls),
        ("usage", actual.usage, expected.usage),
        ("stop_reason", actual.stop_reason, "tool_calls" if calls else "stop"),
        ("model", actual.model, expected.model),
    ):
        assert value == expected_value, f"{label}: {name} is {value!r} instead of {expected_value!r}"


@_case
def the_package_is_registered(harness: FormatHarness) -> None:
    declared = wire_format(harness.name)
    assert declared is not None, "it is not in the registry"
    assert declared.api == harness.codec.api == harness.server.api, "its parts have different names"
    if harness.codec.schema_dialect is not None:
        compile_schema(_LOOKUP.parameters, harness.codec.schema_dialect)


@_case
def a_response_is_read_as_it_was_written(harness: FormatHarness) -> None:
    for label, response in harness.responses().items():
        _expect_equal(harness.read(response), response, label)


@_case
def a_stream_says_the_same_however_it_is_cut(harness: FormatHarness) -> None:
    for label, response in harness.responses().items():
        data = harness.stream(response)
        _expect_equal(harness.read_stream([data]), response, f"{label}, in one piece")
        single_bytes = (bytes([byte]) for byte in data)
        _expect_equal(harness.read_stream(single_bytes), response, f"{label}, byte by byte")


@_case
def a_stream_that_was_cut_off_is_incomplete(harness: FormatHarness) -> None:
    data = harness.stream(harness.responses()["text"])
    whole = harness.read_stream([data])
    for end in range(len(data)):
        decoder = harness.codec.decoder({}, harness.request())
        decoder.feed(data[:end])
        decoder.end()
        complete = decoder.done and decoder.response().copy_with(usage=whole.usage)  # usage may come last
        assert not complete or complete == whole, f"cut after {end} bytes, the stream counts as complete"


@_case
def stop_reasons_are_read_as_they_were_written(harness: FormatHarness) -> None:
    for reason in ("stop", "length"):
        response = AgentResponse(text="Hi", stop_reason=reason, usage=_USAGE, model=harness.model)
        assert harness.read(response).stop_reason == reason
        assert harness.read_stream([harness.stream(response)]).stop_reason == reason


@_case
def calls_may_be_interleaved(harness: FormatHarness) -> None:
    """Encode events of another vendor: calls interleave, and all end last."""
    response = harness.responses()["text"]
    if harness.codec.capabilities.tools:
        response = harness.responses()["text and calls"]
    calls = response.tool_calls
    events: list[StreamEvent] = [StreamEvent.text_delta(_TEXT, index=1)]
    events += [
        StreamEvent.tool_call_start(ToolCall(id=call.id, name=call.name), index=3 + place)
        for place, call in enumerate(calls)
    ]
    pieces = [json.dumps(dict(call.arguments), ensure_ascii=False) for call in calls]
    for half in (slice(0, 5), slice(5, None)):
        for place, text in enumerate(pieces):
            events.append(StreamEvent.tool_call_delta_event(text[half], index=3 + place))
    events += [StreamEvent.tool_call_end(call, index=3 + place) for place, call in enumerate(calls)]
    encoder = harness.server.encoder(harness.receive(harness.request(), stream=True))
    written = [encoder.encode_event(event) for event in events]
    _expect_equal(harness.read_stream([*written, encoder.end(response)]), response, "an interleaved stream")


@_case
def errors_are_read_as_what_they_are(harness: FormatHarness) -> None:
    kinds: tuple[type[errors.AgentError], ...] = (
        errors.AuthenticationError,
        errors.BadRequestError,
        errors.ModelNotFoundError,
        errors.RateLimitError,
        errors.QuotaExceededError,
        errors.OverloadedError,
    )
    for kind in kinds:
        status, body = harness.server.encode_error(kind("sorry"))
        error = harness.codec.decode_error(Reply(status, {}, body), harness.request())
        assert (type(error), error.message) == (kind, "sorry"), f"{kind.__name__} is decoded as {error!r}"


@_case
def an_error_in_a_stream_ends_it(harness: FormatHarness) -> None:
    encoder = harness.server.encoder(harness.receive(harness.request(), stream=True))
    decoder = harness.codec.decoder({}, harness.request())
    decoder.feed(encoder.encode_event(StreamEvent.text_delta("Once ", index=0)))
    decoder.feed(encoder.encode_event(StreamEvent.text_delta("upon ", index=0)))
    decoder.feed(encoder.fail(errors.OverloadedError("sorry")))
    decoder.end()
    assert not decoder.done, "the stream counts as complete"
    assert type(decoder.failure) is errors.OverloadedError, f"it is decoded as {decoder.failure!r}"
    assert (decoder.partial().text or "").startswith("Once"), "the partial response is lost"


def _requests(harness: FormatHarness) -> dict[str, AgentRequest]:
    """Return test requests by description."""
    capabilities = harness.codec.capabilities
    requests = {
        "a question": harness.request(),
        "instructions": harness.request(system="Be brief."),
        "a conversation": harness.request(
            input=None, messages=[Message.user("Hi"), Message.assistant("Hello"), Message.user("Bye")]
        ),
        "settings": harness.request(temperature=0.5, max_tokens=2048),
    }
    if capabilities.vision:
        image = ImageContent(image_data=b"\x89PNG picture", media_type="image/png")
        message = Message.user([TextContent(text="Look."), image])
        requests["an image"] = harness.request(input=None, messages=[message])
    if capabilities.tools:
        call = ToolCall(id="call_a", name="lookup", arguments={"word": "fox"})
        messages = [
            Message.user("Look it up."),
            Message.assistant([TextContent(text="I do."), call]),
            Message(Role.TOOL, [ToolResult(tool_call_id="call_a", content="an animal")]),
        ]
        requests["tools"] = harness.request(tools=[_LOOKUP], tool_choice="lookup")
        requests["results"] = harness.request(input=None, messages=messages, tools=[_LOOKUP])
    return requests


@_case
def a_request_round_trips(harness: FormatHarness) -> None:
    """A decoded request is encoded to the same body again."""
    for label, request in _requests(harness).items():
        wire = harness.codec.encode(request, stream=False)
        inbound = harness.server.decode_request(wire.url, wire.body)
        assert (inbound.model, inbound.unsupported) == (harness.model, ()), f"{label}: {inbound}"
        again = harness.codec.encode(inbound.request, stream=False)
        assert json.loads(again.body) == json.loads(wire.body), f"{label}: {again.body!r} and not {wire.body!r}"
        texts = [message.text for message in request.to_messages()]
        assert [message.text for message in inbound.request.to_messages()] == texts, f"{label}: texts differ"
        assert [tool.name for tool in inbound.request.tools if isinstance(tool, ToolSpec)] == [
            tool.name for tool in request.tools if isinstance(tool, ToolSpec)
        ], f"{label}: tools differ"
        assert inbound.request.tool_choice == request.tool_choice, f"{label}: the choice of a tool differs"


@_case
def a_stream_is_requested(harness: FormatHarness) -> None:
    for stream in (False, True):
        assert harness.receive(harness.request(), stream=stream).stream is stream


def _encode_with(harness: FormatHarness, **fields: Any) -> tuple[str, bytes]:
    wire = harness.codec.encode(harness.request(), stream=False)
    return wire.url, json.dumps({**json.loads(wire.body), **fields}).encode()


@_case
def an_unknown_field_is_carried(harness: FormatHarness) -> None:
    request = harness.server.decode_request(*_encode_with(harness, x_new={"a": [1]})).request
    assert request.extra.get("x_new") == {"a": [1]}, "it is not in extra"
    assert json.loads(harness.codec.encode(request, stream=False).body)["x_new"] == {"a": [1]}, "it is not sent on"


@_case
def a_request_cannot_set_its_destination(harness: FormatHarness) -> None:
    for name in ("api_base", "base_url", "api_key", "extra_headers"):
        for fields in ({name: "https://elsewhere.example"}, {"x_new": [{name: "https://elsewhere.example"}]}):
            _expect_rejection(harness, *_encode_with(harness, **fields), label=f"{name} in {fields}")


@_case
def an_invalid_body_is_rejected(harness: FormatHarness) -> None:
    url = harness.codec.encode(harness.request(), stream=False).url
    for body in (b"", b"[]", b"null", b"{", b"\xff"):
        _expect_rejection(harness, url, body, label=repr(body))


def _expect_rejection(harness: FormatHarness, url: str, body: bytes, label: str) -> None:
    try:
        harness.server.decode_request(url, body)
    except errors.ConfigurationError as error:
        status, _ = harness.server.encode_error(error)
        assert status == 400, f"{label}: rejected with status {status}"
    else:
        raise AssertionError(f"{label} is accepted")


@_case
def tokens_are_counted(harness: FormatHarness) -> None:
    codec: Any = harness.codec
    if not harness.codec.capabilities.token_counting:
        return
    wire = codec.encode_count(harness.request())
    assert harness.server.match_endpoint(wire.url) == "count", f"the server side has no endpoint {wire.url}"
    assert harness.server.decode_request(wire.url, wire.body).model == harness.model
    assert codec.decode_count(Reply(200, {}, harness.server.encode_count(17)), harness.request()) == 17


# Stores

Make: TypeAlias = Callable[[], Store | Awaitable[Store]]
Reopen: TypeAlias = Callable[[Store], Store | Awaitable[Store]]
E = TypeVar("E", bound=errors.AgentError)
StoreCase: TypeAlias = "Callable[[StoreHarness], Coroutine[Any, Any, None]]"


class StoreHarness:
    """Creates, reopens and closes the stores of one case."""

    def __init__(self, make: Make, reopen: Reopen | None) -> None:
        self._make, self._reopen = make, reopen
        self._stores: list[Store] = []

    @property
    def can_reopen(self) -> bool:
        return self._reopen is not None

    async def store(self) -> AsyncStore:
        return await self._add(self._make())

    async def reopen(self, store: AsyncStore) -> AsyncStore:
        assert self._reopen is not None
        return await self._add(self._reopen(store.store))

    async def run(self, case: StoreCase) -> None:
        try:
            with name_failures(case.__name__):
                await case(self)
        finally:
            for store in self._stores:
                await _resolve(store.close())

    async def _add(self, made: Store | Awaitable[Store]) -> AsyncStore:
        store: Store = await _resolve(made)
        self._stores.append(store)
        return AsyncStore(store)


async def _resolve(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


class AsyncStore:
    """Store with async methods only. Sync methods run in threads, so that concurrent calls overlap."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def __getattr__(self, name: str) -> Callable[..., Coroutine[Any, Any, Any]]:
        method = getattr(self.store, name)

        async def call(*args: Any, **options: Any) -> Any:
            if inspect.iscoroutinefunction(method):
                return await method(*args, **options)
            return await _resolve(await asyncio.to_thread(method, *args, **options))

        return call

    async def append(self, session_id: str, rows: Sequence[NodeRow], *, expected_version: int, **options: Any) -> int:
        """Append rows. By default, the last one becomes the head."""
        options = {"heads": [rows[-1]["id"]] if rows else [], "expected_version": expected_version, **options}
        version: int = await self.__getattr__("append")(session_id, rows, **options)
        return version


def node(id: str, *parents: str, text: str = "", **more: Any) -> dict[str, Any]:
    """Return a row in the format of graphs."""
    data = {"role": "user", "content": text or f"This is {id}."}
    return {"id": id, "parents": list(parents), "timestamp": 1700000000.25, "metadata": {}, "data": data, **more}


async def expect_error(kind: type[E], operation: Awaitable[Any], label: str) -> E:
    try:
        result = await operation
    except kind as error:
        return error
    except errors.AgentError as error:
        raise AssertionError(f"{label} must raise {kind.__name__}, not {type(error).__name__}: {error}") from error
    raise AssertionError(f"{label} must raise {kind.__name__}; it returned {result!r}")


def expect(actual: Any, expected: Any, label: str) -> None:
    assert actual == expected, f"{label}: {actual!r} instead of {expected!r}"


def expect_rows(actual: Sequence[NodeRow], expected: Sequence[NodeRow], label: str) -> None:
    """Compare rows as JSON, where True is not 1."""
    expect([row["id"] for row in actual], [row["id"] for row in expected], f"{label}, ids of the nodes")
    for actual_row, expected_row in zip(actual, expected, strict=True):
        rows = [json.dumps(row, sort_keys=True) for row in (actual_row, expected_row)]
        assert rows[0] == rows[1], f"{label}, a node: {rows[0]} instead of {rows[1]}"


def expect_record(actual: SessionRecord, expected: SessionRecord, label: str) -> None:
    for name in ("id", "title", "version", "created_at", "updated_at", "metadata", "node_count"):
        expect(getattr(actual, name), getattr(expected, name), f"{label}, {name}")
    expect(list(actual.heads), list(expected.heads), f"{label}, heads")
    expect_rows(actual.nodes, expected.nodes, label)
