"""Extensions: dialects, functions, wire formats and entry points as providers."""

from __future__ import annotations

import asyncio
import contextvars
import json
import sys
import textwrap
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from agent import (
    Agent,
    AgentConfig,
    AgentRequest,
    AgentResponse,
    Message,
    RetryConfig,
    StreamEvent,
    ToolCall,
    Usage,
    errors,
    providers,
)
from agent.engine.wire import Reply, WireRequest
from agent.providers import register_provider
from agent.providers.function import encode_events, is_model_function
from agent.providers.openai_chat import Dialect
from agent.testing import Answer, LoopbackServer, Script
from agent.types import ImageContent, RefusalContent, TextContent, ThinkingContent

PLUGIN = {
    "acme_plugin/__init__.py": '''
        """Three ways to add a model."""

        from agent.providers.openai_chat import Dialect

        ACME = Dialect(base_url="https://api.acme.example/v1", key_variables=("ACME_KEY",))


        def shout(request):
            return request.to_messages()[-1].content.upper()
        ''',
    "acme_plugin/telegraph.py": '''
        """A wire format of its own: {"to": model, "words": [...]} asks, {"telegram": text} answers."""

        import json

        from agent.providers.base import resolve_address
        from agent.providers.codec import CodecBase, DecoderBase
        from agent.types import AgentResponse, ProviderCapabilities, StreamEvent, TextContent, Usage
        from agent.engine.wire import WireRequest, parse_json


        class TelegraphCodec(CodecBase):
            api = "telegraph"
            response_kind = "telegram"

            def __init__(self, config):
                address = resolve_address(config, default_base_url=None, key_variables=("TELEGRAPH_KEY",))
                key = address.key.get_secret_value() if address.key else ""
                super().__init__("telegraph", ProviderCapabilities(streaming=True), {"x-key": key}, (key,))
                self._url = f"{address.base_url}/send"

            def encode(self, request, *, stream):
                words = [word for message in request.to_messages() for word in str(message.content).split()]
                body = json.dumps({"to": request.model, "words": words, "piecemeal": stream}).encode()
                return WireRequest(self._url, self._headers, body, self.name)

            def _read_response(self, body, headers, request):
                text = TextContent(text=body["telegram"])
                usage = Usage(prompt_tokens=body["paid"], completion_tokens=body["got"])
                return AgentResponse(
                    provider=self.name, model=request.model, content=(text,), usage=usage, stop_reason="stop"
                )

            def decoder(self, headers, request):
                return TelegraphDecoder(self.name, headers, request, self._secrets)


        class TelegraphDecoder(DecoderBase):
            def __init__(self, *args):
                super().__init__(*args)
                self._start(AgentResponse(provider=self._name, model=self._request.model), None)

            def _decode_event(self, payload, events):
                body = parse_json(payload)
                if "error" in body:
                    self._report_error(body)
                elif "word" in body:
                    events.append(StreamEvent.text_delta(body["word"]))
                else:
                    usage = Usage(prompt_tokens=body["paid"], completion_tokens=body["got"])
                    self.done = True
                    events.append(StreamEvent.message_end(usage=usage, response=AgentResponse(stop_reason="stop")))


        def provider(config):
            return TelegraphCodec(config)
        ''',
    "acme_plugin-1.0.dist-info/METADATA": """
        Metadata-Version: 2.1
        Name: acme-plugin
        Version: 1.0
        """,
    "acme_plugin-1.0.dist-info/entry_points.txt": """
        [agent.providers]
        acme = acme_plugin:ACME
        telegraph = acme_plugin.telegraph:provider
        shout = acme_plugin:shout
        nonsense = acme_plugin:__doc__
        """,
}


@pytest.fixture(autouse=True)
def _forget_what_is_registered() -> Iterator[None]:
    before = dict(providers._registered)
    yield
    providers._registered.clear()
    providers._registered.update(before)


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name, text in PLUGIN.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(textwrap.dedent(text).lstrip(), "utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    for name in [name for name in sys.modules if name.split(".")[0] == "acme_plugin"]:
        del sys.modules[name]


def telegraph_office(request: WireRequest) -> Answer:
    """The other end of the made-up wire."""
    asked = json.loads(request.body)
    if dict(request.headers)[b"x-key"] != b"k-7":
        return Answer([b'{"error": {"message": "who are you?"}}'], status=401)
    if asked["to"] == "closed":
        return Answer([b'{"error": {"message": "come back later"}}'], status=503, headers={"retry-after": "7"})
    words = ["STOP", *(f" {word}" for word in asked["words"])]
    counts = {"paid": len(asked["words"]), "got": len(words)}
    if not asked["piecemeal"]:
        return Answer([json.dumps({"telegram": "".join(words), **counts}).encode()])
    events: list[dict[str, Any]] = [*({"word": word} for word in words), {} if asked["to"] == "cut" else counts]
    if asked["to"] == "cut":
        events.pop()
    return Answer([b"data: %b\n\n" % json.dumps(event).encode() for event in events])


def _complete(agent: Agent, request: Any) -> AgentResponse:
    return agent.complete(request)


def _acomplete(agent: Agent, request: Any) -> AgentResponse:
    return asyncio.run(agent.acomplete(request))


def _stream(agent: Agent, request: Any) -> AgentResponse:
    return agent.stream(request).collect()


def _astream(agent: Agent, request: Any) -> AgentResponse:
    async def main() -> AgentResponse:
        return await agent.astream(request).collect()

    return asyncio.run(main())


Ask = Callable[[Agent, Any], AgentResponse]
WAYS: list[Ask] = [_complete, _acomplete, _stream, _astream]


@pytest.fixture(params=WAYS, ids=lambda way: way.__name__.strip("_"))
def ask(request: pytest.FixtureRequest) -> Ask:
    way: Ask = request.param
    return way


def first_of(agents: Sequence[Agent], ask: Ask, request: Any) -> AgentResponse:
    """The smallest router: the next one, when one fails."""
    failures: list[errors.AgentError] = []
    for agent in agents:
        try:
            return ask(agent, request)
        except errors.AgentError as error:
            failures.append(error)
    raise errors.RoutingError(errors=failures)


@pytest.mark.usefixtures("plugin")
def test_the_plugins_names_are_known() -> None:
    assert {"acme", "telegraph", "shout"} <= set(providers.list_providers())


@pytest.mark.usefixtures("plugin")
def test_a_row_is_a_vendor(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACME_KEY", "sk-acme")
    with LoopbackServer(Script("Hello from Acme")) as server:
        response = ask(Agent("acme:large", base_url=f"{server.url}/v1"), "hi")
        assert (response.provider, response.text) == ("acme", "Hello from Acme")
        assert (b"authorization", b"Bearer sk-acme") in server.requests[0].headers


@pytest.mark.usefixtures("plugin")
def test_a_row_without_its_key_names_the_variable() -> None:
    with pytest.raises(errors.AuthenticationError, match="ACME_KEY"):
        Agent("acme:large").complete("hi")


@pytest.mark.usefixtures("plugin")
def test_a_wire_format_is_one_file(ask: Ask) -> None:
    with LoopbackServer(telegraph_office) as server:
        response = ask(Agent("telegraph:london", base_url=server.url, api_key="k-7"), "come home")
    assert (response.provider, response.model, response.text) == ("telegraph", "london", "STOP come home")
    assert response.usage == Usage(prompt_tokens=2, completion_tokens=3)
    assert response.stop_reason == "stop"


@pytest.mark.usefixtures("plugin")
def test_a_wire_format_gets_typed_errors_for_nothing(ask: Ask) -> None:
    with LoopbackServer(telegraph_office) as server:
        with pytest.raises(errors.AuthenticationError):
            ask(Agent("telegraph:london", base_url=server.url, api_key="wrong"), "hi")
        with pytest.raises(errors.OverloadedError) as caught:
            ask(Agent("telegraph:closed", base_url=server.url, api_key="k-7", max_retries=0), "hi")
        assert caught.value.retry_after == 7
        with pytest.raises(errors.StreamInterrupted) as cut:
            Agent("telegraph:cut", base_url=server.url, api_key="k-7").stream("hi").collect()
        assert cut.value.partial is not None
        assert cut.value.partial.text == "STOP hi"


@pytest.mark.usefixtures("plugin")
def test_a_function_is_a_model(ask: Ask) -> None:
    response = ask(Agent("shout:any"), "hi")
    assert (response.provider, response.model, response.text) == ("shout", "any", "HI")
    assert response.stop_reason == "stop"


@pytest.mark.usefixtures("plugin")
def test_all_three_stand_in_for_each_other(ask: Ask) -> None:
    with LoopbackServer(telegraph_office) as server, LoopbackServer(lambda request: Answer(status=500)) as broken:
        down = Agent("acme:large", base_url=broken.url, api_key="sk", max_retries=0)
        closed = Agent("telegraph:closed", base_url=server.url, api_key="k-7", max_retries=0)
        open_ = Agent("telegraph:london", base_url=server.url, api_key="k-7")
        assert first_of([down, closed, Agent("shout:any"), open_], ask, "hi").text == "HI"
        assert first_of([down, closed, open_, Agent("shout:any")], ask, "hi").text == "STOP hi"
        with pytest.raises(errors.RoutingError) as caught:
            first_of([down, closed], ask, "hi")
    assert [type(error) for error in caught.value.errors] == [errors.ProviderError, errors.OverloadedError]


@pytest.mark.usefixtures("plugin")
def test_an_entry_point_to_something_else_is_refused() -> None:
    with pytest.raises(errors.ConfigurationError, match="nonsense"):
        Agent("nonsense:m")


# register_provider


def test_a_dialect_can_be_registered(ask: Ask) -> None:
    with LoopbackServer(Script("Hello")) as server:
        register_provider("acme", Dialect(base_url=f"{server.url}/v1", key_variables=("ACME_KEY",)))
        assert ask(Agent("acme:m"), "hi").provider == "acme"


@pytest.mark.parametrize(
    "given",
    [{}, {"provider": lambda config: None, "function": lambda request: ""}, {"provider": "x"}, {"function": "x"}],
    ids=["nothing", "both", "text", "text for a function"],
)
def test_what_is_no_provider_is_refused(given: Any) -> None:
    with pytest.raises(errors.ConfigurationError):
        register_provider("acme", **given)


def _with_annotation(config: AgentRequest) -> str:
    return ""


def _with_request_name(request):  # type: ignore[no-untyped-def]
    return ""


def _factory(config: AgentConfig) -> Any:
    return None


def _no_parameters() -> Any:
    return None


@pytest.mark.parametrize(
    ("found", "is_model"),
    [
        (_with_annotation, True),
        (_with_request_name, True),
        (_factory, False),
        (_no_parameters, False),
        (lambda config: None, False),
        (dict, False),
    ],
)
def test_a_models_function_is_told_from_a_factory_by_its_first_parameter(found: Any, is_model: bool) -> None:
    assert is_model_function(found) is is_model


# Kinds of functions and results


def plain(request: AgentRequest) -> str:
    return "one two"


async def answer_async(request: AgentRequest) -> str:
    await asyncio.sleep(0)
    return "one two"


def yield_words(request: AgentRequest) -> Iterator[str]:
    yield "one "
    yield "two"


async def yield_words_async(request: AgentRequest) -> AsyncIterator[str]:
    yield "one "
    await asyncio.sleep(0)
    yield "two"


def events(request: AgentRequest) -> Iterator[StreamEvent]:
    yield StreamEvent.text_delta("one two")
    yield StreamEvent.message_end(response=AgentResponse(stop_reason="stop"))


def return_awaitable(request: AgentRequest) -> Any:
    return answer_async(request)


async def return_iterator_async(request: AgentRequest) -> Any:
    return yield_words(request)


class Callable_:
    async def __call__(self, request: AgentRequest) -> str:
        return "one two"


KINDS = [
    plain,
    answer_async,
    yield_words,
    yield_words_async,
    events,
    return_awaitable,
    return_iterator_async,
    Callable_(),
]


@pytest.mark.parametrize("function", KINDS, ids=lambda kind: getattr(kind, "__name__", "object"))
def test_every_kind_of_function_works_every_way(function: Any, ask: Ask) -> None:
    register_provider("mine", function=function)
    response = ask(Agent("mine:m"), "hi")
    assert (response.provider, response.model, response.text, response.stop_reason) == ("mine", "m", "one two", "stop")


class City(BaseModel):
    name: str


CALL = ToolCall(id="c1", name="look", arguments={"where": "up"})
ANSWERS: list[tuple[Any, dict[str, Any]]] = [
    (CALL, {"tool_calls": [CALL], "stop_reason": "tool_calls"}),
    ([TextContent(text="Well: "), CALL], {"text": "Well: ", "tool_calls": [CALL]}),
    ([ThinkingContent(thinking="hm", signature="s"), "yes"], {"thinking": "hm", "text": "yes"}),
    ({"name": "Paris"}, {"text": '{"name":"Paris"}'}),
    (City(name="Paris"), {"text": '{"name":"Paris"}'}),
    (AgentResponse(text="x", usage=Usage(prompt_tokens=3), stop_reason="length", id="r1"), {"stop_reason": "length"}),
    (AgentResponse(text="x", provider="other", model="big"), {"provider": "other", "model": "big"}),
    ("", {"text": None, "stop_reason": "stop"}),
    ([], {"text": None, "stop_reason": "stop"}),
    (Message.assistant("Hello"), {"text": "Hello", "stop_reason": "stop"}),
    (Message.assistant("", tool_calls=[CALL]), {"text": None, "tool_calls": [CALL]}),
    (RefusalContent(refusal="No."), {"refusal": "No.", "stop_reason": "refusal"}),
    (ImageContent(image_url="https://x.example/y.png"), {"text": None, "stop_reason": "stop"}),
    ([StreamEvent.message_start(response=AgentResponse(id="r2")), "yes"], {"id": "r2", "provider": "mine"}),
]


@pytest.mark.parametrize(("answer", "facts"), ANSWERS, ids=lambda value: type(value).__name__)
def test_streamed_and_unstreamed_answers_are_equal(answer: Any, facts: dict[str, Any]) -> None:
    register_provider("mine", function=lambda request: answer)
    told = [ask(Agent("mine:m"), "hi").model_copy(update={"latency_ms": None, "route": ()}) for ask in WAYS]
    assert all(response == told[0] for response in told)
    assert {name: getattr(told[0], name) for name in facts} == facts
    if isinstance(answer, AgentResponse):
        assert (told[0].content, told[0].usage, told[0].id) == (answer.content, answer.usage, answer.id)


def test_signed_parts_stream_first_and_are_kept_whole() -> None:
    signed = ThinkingContent(thinking="hm", signature="s")
    register_provider("mine", function=lambda request: AgentResponse(content=(signed, RefusalContent(refusal="No."))))
    stream = Agent("mine:m").stream("hi")
    kinds = [event.type for event in stream]
    assert kinds == ["message_start", "thinking_delta", "content_part", "refusal_delta", "message_end"]
    assert stream.response.content == (signed, RefusalContent(refusal="No."))
    assert stream.response.stop_reason == "refusal"


def test_calls_are_streamed_as_calls() -> None:
    register_provider("mine", function=lambda request: CALL)
    kinds = [event.type for event in Agent("mine:m").stream("hi")]
    assert kinds == ["message_start", "tool_call_start", "tool_call_delta", "tool_call_end", "message_end"]


@pytest.mark.parametrize("answer", [None, 7, b"bytes", ["text", 7]], ids=repr)
def test_what_is_no_answer_is_an_error(answer: Any, ask: Ask) -> None:
    register_provider("mine", function=lambda request: answer)
    with pytest.raises(errors.ProviderError, match="TypeError") as caught:
        ask(Agent("mine:m"), "hi")
    assert len(caught.value.attempts) == 1  # asked again, it would answer the same


def test_an_answer_without_its_end_is_not_believed() -> None:
    register_provider("mine", function=lambda request: "yes")
    codec = Agent("mine:m").provider
    half = Reply(200, {}, encode_events([StreamEvent.text_delta("ye")]))
    with pytest.raises(errors.ProtocolError, match="incomplete"):
        codec.decode(half, AgentRequest(input="hi"))


def test_typed_output_works(ask: Ask) -> None:
    register_provider("mine", function=lambda request: City(name="Paris"))
    assert ask(Agent("mine:m"), AgentRequest(input="where?", output_schema=City)).output == City(name="Paris")


def test_a_function_sees_the_request_as_it_was_made(ask: Ask) -> None:
    seen: list[AgentRequest] = []

    def look(request: AgentRequest) -> str:
        seen.append(request)
        return "ok"

    register_provider("mine", function=look)
    ask(Agent("mine:m", temperature=0.5, default_system="Be brief."), "hi")
    assert (seen[0].input, seen[0].temperature, seen[0].system, seen[0].model) == ("hi", 0.5, "Be brief.", "m")


# Failures


@pytest.mark.parametrize("kind", ["plain", "generator", "async", "async generator"])
def test_exceptions_become_provider_errors_that_hold_no_frames(kind: str, ask: Ask) -> None:
    def fail(request: AgentRequest) -> str:
        raise ValueError("no such city")

    def generate(request: AgentRequest) -> Iterator[str]:
        yield fail(request)

    async def afail(request: AgentRequest) -> str:
        return fail(request)

    async def agenerate(request: AgentRequest) -> AsyncIterator[str]:
        yield fail(request)

    made = {"plain": fail, "generator": generate, "async": afail, "async generator": agenerate}[kind]
    register_provider("mine", function=made)
    with pytest.raises(errors.ProviderError) as caught:
        ask(Agent("mine:m"), "a secret question")
    error = caught.value
    assert error.message == "mine: ValueError: no such city"
    assert (error.retryable, error.provider, error.model) == (False, "mine", "m")
    assert len(error.attempts) == 1
    assert (error.__cause__, error.__context__) == (None, None)
    assert "fail" in error.__notes__[0]


def test_our_own_errors_pass_and_are_retried(ask: Ask) -> None:
    failures = [errors.OverloadedError("busy"), errors.RateLimitError("slow down", retry_after=0.0)]

    def sometimes(request: AgentRequest) -> str:
        if failures:
            raise failures.pop()
        return "at last"

    register_provider("mine", function=sometimes)
    response = ask(Agent("mine:m", retry=RetryConfig(max_retries=2, initial_delay=0.0)), "hi")
    assert response.text == "at last"
    assert [attempt.error for attempt in response.route] == ["RateLimitError", "OverloadedError", None]


@pytest.mark.parametrize("kind", ["plain", "async"])
def test_a_failure_in_the_middle_interrupts_the_stream(kind: str) -> None:
    def half(request: AgentRequest) -> Iterator[str]:
        yield "half "
        raise errors.OverloadedError("busy")

    async def ahalf(request: AgentRequest) -> AsyncIterator[str]:
        yield "half "
        raise errors.OverloadedError("busy")

    register_provider("mine", function=half if kind == "plain" else ahalf)
    for ask in (_stream, _astream):
        with pytest.raises(errors.StreamInterrupted) as caught:
            ask(Agent("mine:m"), "hi")
        assert caught.value.partial is not None
        assert caught.value.partial.text == "half "


@pytest.mark.parametrize("ask", [_complete, _acomplete], ids=["sync", "async"])
def test_a_function_that_cancels_itself_has_failed(ask: Ask) -> None:
    async def gives_up(request: AgentRequest) -> str:
        raise asyncio.CancelledError

    def runs_it(request: AgentRequest) -> str:
        return asyncio.run(gives_up(request))

    for function in (gives_up, runs_it):
        register_provider("mine", function=function)
        with pytest.raises(errors.ProviderError, match="raised CancelledError"):
            ask(Agent("mine:m"), "hi")


_CALL = ToolCall(id="c1", name="f")


@pytest.mark.parametrize(
    "events",
    [
        [StreamEvent.tool_call_delta_event("{}")],
        [StreamEvent.tool_call_start(_CALL), StreamEvent.tool_call_delta_event('{"city": "Par')],
    ],
    ids=["a call that never began", "arguments that never end"],
)
def test_events_that_do_not_fit_together_are_an_error_of_ours(events: list[StreamEvent], ask: Ask) -> None:
    def odd(request: AgentRequest) -> Iterator[str | StreamEvent]:
        yield "Let me see."
        yield from events

    register_provider("mine", function=odd)
    with pytest.raises((errors.ProtocolError, errors.StreamInterrupted), match="do not fit together") as caught:
        ask(Agent("mine:m", max_retries=0), "hi")
    if isinstance(caught.value, errors.StreamInterrupted):
        assert caught.value.partial is not None
        assert caught.value.partial.text == "Let me see."


def test_an_error_event_is_an_error(ask: Ask) -> None:
    register_provider("mine", function=lambda request: StreamEvent.error_event("no more ink"))
    with pytest.raises(errors.ProviderError, match="no more ink"):
        ask(Agent("mine:m"), "hi")


def test_an_answer_may_be_long_but_not_endless(ask: Ask) -> None:
    register_provider("mine", function=lambda request: "x" * 3_000_000)
    assert len(ask(Agent("mine:m"), "hi").text or "") == 3_000_000

    def endless(request: AgentRequest) -> Iterator[str]:
        while True:
            yield "x" * 4_000_000

    register_provider("mine", function=endless)
    with pytest.raises(errors.ProviderError, match=r"larger|longer"):
        ask(Agent("mine:m"), "hi")


# Time


async def asleep(request: AgentRequest) -> str:
    await asyncio.sleep(5)
    return "late"


def sleep_forever(request: AgentRequest) -> str:
    time.sleep(0.6)
    return "late"


@pytest.mark.timing
@pytest.mark.parametrize("function", [sleep_forever, asleep])
def test_deadlines_hold(function: Any, ask: Ask) -> None:
    register_provider("mine", function=function)
    started = time.monotonic()
    with pytest.raises(errors.TimeoutError) as caught:
        ask(Agent("mine:m", deadline=0.1), "hi")
    assert caught.value.deadline
    assert time.monotonic() - started < 0.4


@pytest.mark.timing
def test_what_a_generator_holds_open_while_it_yields_still_works(ask: Ask) -> None:
    async def impatient(request: AgentRequest) -> AsyncIterator[str]:
        async with asyncio.timeout(0.05):
            yield "Let me"
            await asyncio.sleep(30)
            yield " see."

    register_provider("mine", function=impatient)
    with pytest.raises((errors.ProviderError, errors.StreamInterrupted), match="TimeoutError"):
        ask(Agent("mine:m", deadline=5.0), "hi")

    async def call_helper(request: AgentRequest) -> AsyncIterator[str]:
        async with asyncio.TaskGroup() as group:
            word = group.create_task(asyncio.sleep(0.01, "see."))
            yield "Let me "
            yield await word

    register_provider("mine", function=call_helper)
    assert ask(Agent("mine:m", deadline=5.0), "hi").text == "Let me see."


def test_the_first_piece_has_its_own_limit() -> None:
    register_provider("mine", function=sleep_forever)
    with pytest.raises(errors.TimeoutError, match="first_byte_timeout"):
        Agent("mine:m", first_byte_timeout=0.1, max_retries=0).stream("hi").collect()


@pytest.mark.timing
def test_a_model_asked_by_a_function_inherits_the_time_that_is_left(ask: Ask) -> None:
    def ask_another(request: AgentRequest) -> str:
        return Agent("inner:m").complete("deeper").text or ""

    seen = threading.Event()

    def slow(request: AgentRequest) -> str:
        time.sleep(0.5)
        seen.set()
        return "late"

    register_provider("inner", function=slow)
    register_provider("mine", function=ask_another)
    with pytest.raises(errors.TimeoutError):
        ask(Agent("mine:m", deadline=0.1), "hi")
    assert seen.wait(2)


# Cancellation, context


class Watched:
    """Generators that say when they were closed."""

    def __init__(self) -> None:
        self.closed = threading.Event()

    def plain(self, request: AgentRequest) -> Iterator[str]:
        try:
            while True:
                yield "more "
        finally:
            self.closed.set()

    async def loop_forever(self, request: AgentRequest) -> AsyncIterator[str]:
        try:
            while True:
                await asyncio.sleep(0)
                yield "more "
        finally:
            self.closed.set()


@pytest.mark.parametrize("kind", ["plain", "loop_forever"])
def test_leaving_a_stream_closes_the_generator(kind: str) -> None:
    watched = Watched()
    register_provider("mine", function=getattr(watched, kind))
    with Agent("mine:m").stream("hi") as stream:
        for event in stream:
            if event.type == "text_delta":
                break
    assert watched.closed.is_set()

    watched.closed.clear()

    async def main() -> None:
        async with Agent("mine:m").astream("hi") as stream:
            async for event in stream:
                if event.type == "text_delta":
                    break
        assert watched.closed.is_set()

    asyncio.run(main())


@pytest.mark.parametrize("function", [sleep_forever, asleep])
def test_a_stream_can_be_aborted_while_the_function_works(function: Any) -> None:
    register_provider("mine", function=function)
    stream = Agent("mine:m").stream("hi")
    threading.Timer(0.05, stream.abort).start()
    started = time.monotonic()
    with pytest.raises(errors.Aborted):
        stream.collect()
    assert time.monotonic() - started < 0.5


def test_cancelling_a_task_cancels_the_function() -> None:
    ended = threading.Event()

    async def patient(request: AgentRequest) -> str:
        try:
            await asyncio.sleep(5)
        finally:
            ended.set()
        return "late"

    register_provider("mine", function=patient)

    async def main() -> None:
        task = asyncio.create_task(Agent("mine:m").acomplete("hi"))
        await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ended.is_set()

    asyncio.run(main())


tenant: contextvars.ContextVar[str] = contextvars.ContextVar("tenant", default="nobody")


@pytest.mark.parametrize("kind", ["plain", "async", "generator"])
def test_context_variables_are_copied(kind: str, ask: Ask) -> None:
    def tell_name(request: AgentRequest) -> str:
        before = tenant.get()
        tenant.set("someone else")
        return before

    async def tell_name_async(request: AgentRequest) -> str:
        return tell_name(request)

    def yield_name(request: AgentRequest) -> Iterator[str]:
        yield tell_name(request)
        yield tenant.get()

    register_provider("mine", function={"plain": tell_name, "async": tell_name_async, "generator": yield_name}[kind])
    token = tenant.set("acme")
    try:
        assert ask(Agent("mine:m"), "hi").text in ("acme", "acmesomeone else")
        assert tenant.get() == "acme"
    finally:
        tenant.reset(token)


def test_plain_functions_do_not_block_the_loop() -> None:
    gate = threading.Event()
    register_provider("mine", function=lambda request: "open" if gate.wait(5) else "shut")

    async def main() -> str | None:
        task = asyncio.create_task(Agent("mine:m").acomplete("hi"))
        await asyncio.sleep(0.02)
        gate.set()
        return (await task).text

    assert asyncio.run(main()) == "open"


def test_only_functions_are_carried_to_functions() -> None:
    from agent.transports import get_transport

    with pytest.raises(errors.ConfigurationError, match="only with a function"):
        Agent("scripted:m", transport=get_transport("function")).complete("hi")
