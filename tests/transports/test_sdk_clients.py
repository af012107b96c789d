"""Clients of the official SDKs, brought by the caller: they send, and our codecs read.

Each kind of client meets a real loopback server. Additions of the SDK to a request are
recorded; responses and failures must equal those of the HTTP transport.
"""

from __future__ import annotations

import asyncio
import base64
import json
import pickle
import ssl
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import anthropic
import httpx2
import openai
import pytest
from google import genai
from google.auth.exceptions import DefaultCredentialsError
from google.oauth2.credentials import Credentials

from agent import Agent, AgentResponse, RetryConfig, errors
from agent.http.event_stream import EventStreamConverter, encode_message
from agent.testing import Answer, LoopbackServer, Network, Piece
from agent.transports import sdk_clients
from agent.transports.threaded import Head
from tests.support.cases import FULL

KEY = "sk-brought-0123456789"
Events = list[dict[str, Any]]


# Responses of the vendors


def sse(event: dict[str, Any]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (str(event.get("type", "x")).encode(), json.dumps(event).encode())


def frame_events(event: dict[str, Any]) -> bytes:
    """As Bedrock sends it."""
    chunk = json.dumps({"bytes": base64.b64encode(json.dumps(event).encode()).decode(), "p": "abc"}).encode()
    return encode_message(
        {":message-type": "event", ":event-type": "chunk", ":content-type": "application/json"}, chunk
    )


@dataclass(frozen=True)
class Speech:
    """How one API says "Hello there"."""

    whole: dict[str, Any]
    events: Events
    error: dict[str, Any]
    ends: bytes = b""
    frames: Callable[[dict[str, Any]], bytes] = sse
    content_type: str = "text/event-stream"

    def pieces(self) -> list[bytes]:
        return [*(self.frames(event) for event in self.events), *([self.ends] if self.ends else [])]

    def stream_reply(self) -> Answer:
        return Answer(self.pieces(), headers={"content-type": self.content_type, "x-request-id": "req_1"})

    def complete(self) -> Answer:
        headers = {"content-type": "application/json", "x-request-id": "req_1"}
        return Answer([json.dumps(self.whole).encode()], headers=headers)

    def error_reply(self, status: int, **headers: str) -> Answer:
        sent = {"content-type": "application/json", "x-request-id": "req_9", **headers}
        return Answer([json.dumps(self.error).encode()], status=status, headers=sent)


def _chunk(delta: dict[str, Any], reason: str | None = None, **more: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": reason}
    return {"id": "c1", "object": "chat.completion.chunk", "created": 0, "model": "m", "choices": [choice], **more}


_USAGE = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}
CHAT = Speech(
    whole={
        "id": "c1",
        "object": "chat.completion",
        "created": 0,
        "model": "m",
        "choices": [
            {"index": 0, "message": {"role": "assistant", "content": "Hello there"}, "finish_reason": "stop"},
        ],
        "usage": _USAGE,
    },
    events=[
        _chunk({"role": "assistant", "content": "Hello"}),
        _chunk({"content": " there"}),
        _chunk({}, "stop"),
        {**_chunk({}), "choices": [], "usage": _USAGE},
    ],
    error={"error": {"message": "nope", "type": "some_error", "code": "some_code"}},
    ends=b"data: [DONE]\n\n",
)

_ITEM = {
    "type": "message",
    "id": "msg_1",
    "role": "assistant",
    "status": "completed",
    "content": [{"type": "output_text", "text": "Hello there", "annotations": []}],
}
_RESPONSE = {
    "id": "resp_1",
    "object": "response",
    "created_at": 0,
    "model": "m",
    "status": "completed",
    "output": [_ITEM],
    "usage": {"input_tokens": 5, "output_tokens": 2, "total_tokens": 7},
}
_AT = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
RESPONSES = Speech(
    whole=_RESPONSE,
    events=[
        {"type": "response.created", "response": {**_RESPONSE, "status": "in_progress", "output": [], "usage": None}},
        {
            "type": "response.output_item.added",
            "output_index": 0,
            "item": {**_ITEM, "status": "in_progress", "content": []},
        },
        {
            "type": "response.content_part.added",
            **_AT,
            "part": {"type": "output_text", "text": "", "annotations": []},
        },
        {"type": "response.output_text.delta", **_AT, "delta": "Hello"},
        {"type": "response.output_text.delta", **_AT, "delta": " there"},
        {"type": "response.output_text.done", **_AT, "text": "Hello there"},
        {"type": "response.content_part.done", **_AT, "part": _ITEM["content"][0]},
        {"type": "response.output_item.done", "output_index": 0, "item": _ITEM},
        {"type": "response.completed", "response": _RESPONSE},
    ],
    error=CHAT.error,
)

_MESSAGE = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "m",
    "content": [{"type": "text", "text": "Hello there"}],
    "stop_reason": "end_turn",
    "stop_sequence": None,
    "usage": {"input_tokens": 5, "output_tokens": 2},
}
_MESSAGE_EVENTS: Events = [
    {"type": "message_start", "message": {**_MESSAGE, "content": [], "stop_reason": None}},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hello"}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": " there"}},
    {"type": "content_block_stop", "index": 0},
    {
        "type": "message_delta",
        "delta": {"stop_reason": "end_turn", "stop_sequence": None},
        "usage": {"input_tokens": 5, "output_tokens": 2},
    },
    {"type": "message_stop"},
]
_ANTHROPIC_ERROR = {"type": "error", "error": {"type": "some_error", "message": "nope"}}
MESSAGES = Speech(_MESSAGE, _MESSAGE_EVENTS, _ANTHROPIC_ERROR)
BEDROCK = Speech(
    _MESSAGE,
    _MESSAGE_EVENTS,
    {"message": "nope"},
    frames=frame_events,
    content_type="application/vnd.amazon.eventstream",
)


def _candidate(text: str, reason: str | None = None) -> dict[str, Any]:
    candidate: dict[str, Any] = {"index": 0, "content": {"role": "model", "parts": [{"text": text}]}}
    usage = {"promptTokenCount": 5, "candidatesTokenCount": 2, "totalTokenCount": 7}
    end = {} if reason is None else {"finishReason": reason}
    return {"candidates": [{**candidate, **end}], "usageMetadata": usage, "modelVersion": "m", "responseId": "r1"}


def data_only(event: dict[str, Any]) -> bytes:
    return b"data: %b\r\n\r\n" % json.dumps(event).encode()


GEMINI = Speech(
    _candidate("Hello there", "STOP"),
    [_candidate("Hello"), _candidate(" there", "STOP")],
    {"error": {"code": 0, "message": "nope", "status": "SOME_ERROR"}},
    frames=data_only,
)


# Which clients there are


@dataclass(frozen=True)
class Case:
    """A kind of client, and how its requests look."""

    id: str
    model: str
    make: Callable[[str], Any]
    speech: Speech
    path: str
    stream_path: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    blocking: bool = True
    awaiting: bool = False
    special: bool = False
    """Differs from another one only in what it sends; tried once."""


def _google(url: str, **options: Any) -> Any:
    return genai.Client(http_options={"base_url": url}, **options)


def _vertex(url: str) -> Any:
    credentials = Credentials(token=KEY)  # type: ignore[no-untyped-call]
    return _google(url, vertexai=True, project="p", location="us-east1", credentials=credentials)


_AWS: dict[str, Any] = {"aws_access_key": "AKIA0", "aws_secret_key": KEY, "aws_region": "us-east-1"}
_GCP: dict[str, Any] = {"region": "us-east1", "project_id": "p", "access_token": KEY}
_AZURE: dict[str, Any] = {"api_key": KEY, "api_version": "2025-01-01"}
_BEARER = {"authorization": f"Bearer {KEY}"}
_API_VERSION = "?api-version=2025-01-01"
_INVOKE = "/model/claude/invoke"
_ON_VERTEX = "/v1/projects/p/locations/us-east1/publishers"
_GENERATE = "/v1/models/g:generateContent"


def _pair(id: str, model: str, sync: Any, asynchronous: Any, *rest: Any, **more: Any) -> list[Case]:
    first = Case(id, model, sync, *rest, **more)
    return [first, replace(first, id=f"Async{id}", make=asynchronous, blocking=False, awaiting=True)]


CASES = [
    *_pair(
        "OpenAI",
        "openai:m",
        lambda url: openai.OpenAI(api_key=KEY, base_url=f"{url}/v1", default_headers={"x-mine": "yes"}),
        lambda url: openai.AsyncOpenAI(api_key=KEY, base_url=f"{url}/v1", default_headers={"x-mine": "yes"}),
        CHAT,
        "/v1/chat/completions",
        headers={**_BEARER, "x-mine": "yes"},
    ),
    *_pair(
        "OpenAI-responses",
        "openai-responses:m",
        lambda url: openai.OpenAI(api_key=KEY, base_url=f"{url}/v1"),
        lambda url: openai.AsyncOpenAI(api_key=KEY, base_url=f"{url}/v1"),
        RESPONSES,
        "/v1/responses",
        headers=_BEARER,
        special=True,
    ),
    *_pair(
        "AzureOpenAI",
        "openai:m",
        lambda url: openai.AzureOpenAI(azure_endpoint=url, **_AZURE),
        lambda url: openai.AsyncAzureOpenAI(azure_endpoint=url, **_AZURE),
        RESPONSES,
        f"/openai/responses{_API_VERSION}",
        headers={"api-key": KEY},
    ),
    *_pair(
        "AzureOpenAI-chat",
        "openai-chat:dep",
        lambda url: openai.AzureOpenAI(azure_endpoint=url, **_AZURE),
        lambda url: openai.AsyncAzureOpenAI(azure_endpoint=url, **_AZURE),
        CHAT,
        f"/openai/deployments/dep/chat/completions{_API_VERSION}",
        headers={"api-key": KEY},
        special=True,
    ),
    *_pair(
        "Anthropic",
        "anthropic:claude",
        lambda url: anthropic.Anthropic(auth_token=KEY, base_url=url),
        lambda url: anthropic.AsyncAnthropic(auth_token=KEY, base_url=url),
        MESSAGES,
        "/v1/messages",
        headers=_BEARER,
    ),
    *_pair(
        "AnthropicBedrock",
        "anthropic:claude",
        lambda url: anthropic.AnthropicBedrock(base_url=url, **_AWS),
        lambda url: anthropic.AsyncAnthropicBedrock(base_url=url, **_AWS),
        BEDROCK,
        _INVOKE,
        f"{_INVOKE}-with-response-stream",
        headers={"authorization": "AWS4-HMAC-SHA256 Credential=AKIA0/"},
    ),
    *_pair(
        "AnthropicVertex",
        "anthropic:claude",
        lambda url: anthropic.AnthropicVertex(base_url=f"{url}/v1", **_GCP),
        lambda url: anthropic.AsyncAnthropicVertex(base_url=f"{url}/v1", **_GCP),
        MESSAGES,
        f"{_ON_VERTEX}/anthropic/models/claude:rawPredict",
        f"{_ON_VERTEX}/anthropic/models/claude:streamRawPredict",
        headers=_BEARER,
    ),
    Case(
        "genai",
        "gemini:g",
        lambda url: _google(url, api_key=KEY),
        GEMINI,
        _GENERATE,
        "/v1/models/g:streamGenerateContent?alt=sse",
        {"x-goog-api-key": KEY},
        awaiting=True,
    ),
    Case(
        "genai-vertex",
        "gemini:g",
        _vertex,
        GEMINI,
        "/v1beta1/projects/p/locations/us-east1/publishers/google/models/g:generateContent",
        "/v1beta1/projects/p/locations/us-east1/publishers/google/models/g:streamGenerateContent?alt=sse",
        _BEARER,
        awaiting=True,
        special=True,
    ),
]


# Ways to ask


class Session:
    """An agent with a client, asked in one way, and cleaned up after."""

    def __init__(self, case: Case, way: str) -> None:
        self.case = case
        self.way = way
        self.streaming = way.endswith("stream")

    def ask(self, url: str, question: str = "hi", **options: Any) -> AgentResponse:
        if self.way.startswith("a"):
            return asyncio.run(self._aask(url, question, options))
        client = self.case.make(url)
        try:
            agent = self.agent(client, **options)
            return agent.stream(question).collect() if self.streaming else agent.complete(question)
        finally:
            client.close()

    async def _aask(self, url: str, question: str, options: dict[str, Any]) -> AgentResponse:
        client = self.case.make(url)
        try:
            agent = self.agent(client, **options)
            if self.streaming:
                return await agent.astream(question).collect()
            return await agent.acomplete(question)
        finally:
            await aclose(client)

    def agent(self, client: Any, **options: Any) -> Agent:
        if "retry" not in options:
            options.setdefault("max_retries", 0)
        return Agent(self.case.model, client=client, **options)

    def network(self) -> Answer:
        return self.case.speech.stream_reply() if self.streaming else self.case.speech.complete()


async def aclose(client: Any) -> None:
    if isinstance(client, genai.Client):
        await client.aio.aclose()
        client.close()
        return
    closing = client.close()
    if closing is not None:
        await closing


WAYS = ("complete", "stream", "acomplete", "astream")
STREAMS = ("stream", "astream")


def sessions(ways: Sequence[str], *, special: bool = False, by_turns: int = 1) -> pytest.MarkDecorator:
    """Every client in every way of calling; with `by_turns=2` in every second way, alternating by client."""
    found = [
        pytest.param(Session(case, way), id=f"{case.id}-{way}")
        for n, case in enumerate(CASES)
        for m, way in enumerate(ways)
        if (case.blocking or way.startswith("a")) and (special or not case.special)
        if FULL or (n + m) % by_turns == 0
    ]
    return pytest.mark.parametrize("session", found)


def cases(fits: Callable[[Case], bool] = lambda case: True) -> pytest.MarkDecorator:
    found = [case for case in CASES if not case.special and fits(case)]
    return pytest.mark.parametrize("case", found, ids=lambda case: case.id)


@pytest.fixture
def serve() -> Iterator[Callable[[Network], LoopbackServer]]:
    servers: list[LoopbackServer] = []

    def start(network: Network) -> LoopbackServer:
        servers.append(LoopbackServer(network))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


Serve = Callable[[Network], LoopbackServer]


# Answers


@sessions(WAYS, special=True)
def test_the_client_carries_our_request_and_our_codec_reads_the_answer(session: Session, serve: Serve) -> None:
    case = session.case
    server = serve(lambda request: session.network())
    response = session.ask(server.url, headers={"x-config": "1"}, temperature=0.5, max_tokens=100)
    assert (response.text, response.stop_reason) == ("Hello there", "stop")
    assert response.usage is not None
    assert (response.usage.prompt_tokens, response.usage.completion_tokens) == (5, 2)
    assert response.request_id == "req_1"
    assert response.provider == case.model.partition(":")[0]

    assert len(server.requests) == 1
    sent = server.requests[0]
    assert sent.url == ((case.stream_path or case.path) if session.streaming else case.path)
    headers = {name.decode(): value.decode() for name, value in sent.headers}
    assert headers["x-config"] == "1"
    for name, value in case.headers.items():
        assert headers[name].startswith(value), name
    assert "agent-llm-router" not in headers["user-agent"]
    body = json.loads(sent.body)
    assert "hi" in sent.body.decode()
    assert ("model" in body) is not any(place in case.path for place in ("/model/", "/models/"))


@cases()
def test_streamed_and_unstreamed_answers_are_equal(case: Case, serve: Serve) -> None:
    told: list[AgentResponse] = []
    for way in ("acomplete", "astream"):
        session = Session(case, way)
        server = serve(lambda request, session=session: session.network())  # type: ignore[misc]
        response = session.ask(server.url)
        told.append(response.model_copy(update={"latency_ms": None, "route": ()}))
    assert told[0] == told[1]


def test_the_clients_settings_stay_as_they_were(serve: Serve) -> None:
    server = serve(lambda request: CHAT.complete())
    with openai.OpenAI(api_key=KEY, base_url=server.url, max_retries=7, timeout=77) as client:
        Agent("openai:m", client=client).complete("hi")
        assert (client.max_retries, client.timeout) == (7, 77)


def test_middleware_of_the_client_is_used(serve: Serve) -> None:
    seen: list[str] = []

    def watch(request: Any, call_next: Any) -> Any:
        seen.append(request.options.url)
        return call_next(request)

    server = serve(lambda request: MESSAGES.complete())
    with anthropic.Anthropic(api_key=KEY, base_url=server.url, middleware=[watch]) as client:
        assert Agent("anthropic:claude", client=client).complete("hi").text == "Hello there"
    assert seen == ["/v1/messages"]


def test_a_compatible_vendors_accent_is_kept(serve: Serve) -> None:
    server = serve(lambda request: CHAT.complete())
    with openai.OpenAI(api_key=KEY, base_url=server.url) as client:
        response = Agent("deepseek:deepseek-chat", client=client).complete("hi", max_tokens=9)
    assert response.provider == "deepseek"
    assert json.loads(server.requests[0].body)["max_tokens"] == 9


def test_openais_own_address_means_the_responses_api() -> None:
    with openai.OpenAI(api_key=KEY) as client:
        assert Agent("openai:m", client=client).provider.api == "openai-responses"
    with openai.OpenAI(api_key=KEY, base_url="https://llm.example.com/v1") as client:
        assert Agent("openai:m", client=client).provider.api == "openai-chat"


# Failures


def facts_of(error: errors.AgentError) -> dict[str, Any]:
    names = "message status_code request_id code retryable retry_after body provider model committed"
    return {"type": type(error), **{name: getattr(error, name) for name in names.split()}}


def failure_through_http(session: Session, server: LoopbackServer) -> errors.AgentError:
    """Result of the HTTP transport for the same response."""
    provider, _, model = session.case.model.partition(":")
    speaks = "openai-responses" if session.case.speech is RESPONSES else provider
    agent = Agent(f"{speaks}:{model}", base_url=server.url, api_key="sk-other", max_retries=0)
    with pytest.raises(errors.AgentError) as caught:
        agent.stream("hi").collect() if session.streaming else agent.complete("hi")
    caught.value.provider = provider
    return caught.value


@sessions(WAYS)
@pytest.mark.parametrize("status", [401, 429, 500])
def test_failures_are_those_of_our_own_transport_and_are_sent_once(session: Session, status: int, serve: Serve) -> None:
    server = serve(lambda request: session.case.speech.error_reply(status, **{"retry-after": "3"}))
    with pytest.raises(errors.AgentError) as caught:
        session.ask(server.url)
    assert len(server.requests) == 1
    assert facts_of(caught.value) == facts_of(failure_through_http(session, server))


@sessions(WAYS)
def test_our_own_retries_are_the_only_ones(session: Session, serve: Serve) -> None:
    server = serve(lambda request: session.case.speech.error_reply(503))
    with pytest.raises(errors.OverloadedError) as caught:
        session.ask(server.url, retry=RetryConfig(max_retries=1, initial_delay=0.0))
    assert len(caught.value.attempts) == len(server.requests) == 2


@sessions(WAYS)
def test_a_server_that_is_not_there_is_a_connection_error(session: Session, serve: Serve) -> None:
    server = serve(lambda request: Answer())
    server.close()
    with pytest.raises(errors.ConnectionError) as caught:
        session.ask(server.url)
    assert caught.value.retryable


@sessions(WAYS)
def test_an_answer_that_breaks_off_before_it_began_is_a_connection_error(session: Session, serve: Serve) -> None:
    server = serve(lambda request: Answer(failure=ConnectionResetError()))
    with pytest.raises(errors.ConnectionError):
        session.ask(server.url)
    assert len(server.requests) == 1


@sessions(STREAMS)
@pytest.mark.parametrize("how", ["reset", "end"])
def test_a_cut_stream_is_interrupted(session: Session, how: str, serve: Serve) -> None:
    speech = session.case.speech
    until = next(place for place, piece in enumerate(speech.events) if "Hello" in json.dumps(piece)) + 1
    if speech is RESPONSES:
        until += 3  # the item's opening says it first
    pieces: list[Any] = [speech.frames(event) for event in speech.events[:until]]
    if how == "reset":
        pieces.append(Piece(ConnectionResetError(), after=0.05))
    server = serve(lambda request: Answer(pieces, headers={"content-type": speech.content_type}))
    with pytest.raises(errors.StreamInterrupted) as caught:
        session.ask(server.url)
    assert caught.value.partial is not None
    assert (caught.value.partial.text or "").startswith("Hello")


@cases(lambda case: case.speech is not GEMINI)  # google-genai follows redirects, and a call cannot tell it not to
def test_a_redirect_is_not_followed_with_the_key(case: Case, serve: Serve) -> None:
    session = Session(case, "acomplete")
    elsewhere = serve(lambda request: session.network())
    server = serve(lambda request: Answer(status=307, headers={"location": f"{elsewhere.url}/x"}))
    with pytest.raises(errors.ProtocolError, match="redirect"):
        session.ask(server.url)
    assert elsewhere.requests == []


def test_no_error_quotes_the_clients_key(serve: Serve) -> None:
    quoting = Answer([json.dumps({"error": {"message": f"bad key {KEY}"}}).encode()], status=401)
    for case in CASES:
        server = serve(lambda request: quoting)
        with pytest.raises(errors.AgentError) as caught:
            Session(case, "acomplete").ask(server.url)
        assert KEY not in f"{caught.value!r} {caught.value} {caught.value.body}", case.id


def test_no_error_quotes_keys_in_headers(serve: Serve) -> None:
    quoting = Answer([b'{"error": {"message": "neither gateway-key-1 nor hc-secret-2"}}'], status=401)
    server = serve(lambda request: quoting)
    with openai.OpenAI(api_key=KEY, base_url=server.url, default_headers={"X-Gateway-Key": "gateway-key-1"}) as client:
        agent = Agent("openai-chat:m", client=client, headers={"Helicone-Auth": "Bearer hc-secret-2"})
        with pytest.raises(errors.AuthenticationError) as caught:
            agent.complete("hi")
    assert caught.value.message == "neither *** nor ***"
    assert "secret" not in str(vars(caught.value))


def test_an_error_inside_a_stream_is_typed(serve: Serve) -> None:
    anthropic_error = {"type": "error", "error": {"type": "overloaded_error", "message": "busy"}}
    google_error = {"error": {"code": 503, "message": "busy", "status": "UNAVAILABLE"}}
    throttled = encode_message(
        {":message-type": "exception", ":exception-type": "overloaded_error"}, json.dumps({"message": "busy"}).encode()
    )
    told = {id(MESSAGES): sse(anthropic_error), id(GEMINI): data_only(google_error), id(BEDROCK): throttled}
    for case in CASES:
        if id(case.speech) not in told:
            continue
        headers = {"content-type": case.speech.content_type}
        server = serve(lambda request, case=case, headers=headers: Answer([told[id(case.speech)]], headers=headers))  # type: ignore[misc]
        with pytest.raises(errors.OverloadedError, match="busy"):
            Session(case, "astream").ask(server.url)


def _with_cause(error: Exception, cause: BaseException) -> Exception:
    error.__cause__ = cause
    return error


_REQUEST = httpx2.Request("POST", "https://x.example")


@pytest.mark.parametrize(
    ("error", "kind", "retryable"),
    [
        (openai.APITimeoutError(request=_REQUEST), errors.TimeoutError, True),
        (anthropic.APIConnectionError(request=_REQUEST), errors.ConnectionError, True),
        (httpx2.ReadError("gone"), errors.ConnectionError, True),
        (httpx2.ReadTimeout("slow"), errors.TimeoutError, True),
        (httpx2.DecodingError("no gzip"), errors.ProtocolError, True),
        (
            _with_cause(anthropic.APIConnectionError(request=_REQUEST), ssl.SSLCertVerificationError("self-signed")),
            errors.ConnectionError,
            False,
        ),
        (DefaultCredentialsError("no credentials"), errors.AuthenticationError, False),  # type: ignore[no-untyped-call]
        (RuntimeError("Expected dictionary json_data"), errors.ConfigurationError, False),
        (OSError("unreachable"), errors.ConnectionError, True),
        (errors.ProtocolError("ours already"), errors.ProtocolError, True),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_sdks_raise_has_a_name_of_ours(error: Exception, kind: type[errors.AgentError], retryable: bool) -> None:
    told = sdk_clients.map_sdk_error(error, "acme")
    assert type(told) is kind
    assert told.retryable is retryable


def test_an_illegal_header_is_not_quoted(serve: Serve) -> None:
    server = serve(lambda request: CHAT.complete())
    with openai.OpenAI(api_key=f"{KEY}\n", base_url=server.url) as client:
        with pytest.raises(errors.ConfigurationError) as caught:
            Agent("openai:m", client=client).complete("hi")
        assert KEY not in f"{caught.value} {caught.value!r}"
    assert server.requests == []


class _Requests:
    """As Google's SDK gets it where there are client certificates."""

    headers = {"X-Some": "1"}

    def iter_content(self, size: None) -> Iterator[bytes]:
        yield b"a"

    def close(self) -> None:
        self.closed = True


class _Aiohttp:
    """As Google's SDK gets it where aiohttp is installed."""

    headers = [("X-Some", "1")]

    class content:
        @staticmethod
        async def iter_any() -> AsyncIterator[bytes]:
            yield b"a"

    def close(self) -> None:
        self.closed = True


def test_responses_of_other_libraries_are_read_too() -> None:
    plain, awaited = _Requests(), _Aiohttp()
    opened = sdk_clients.StreamedResponse(plain, Head(200, sdk_clients.decode_headers(plain.headers)))
    assert opened.head.headers == {"x-some": "1"}
    assert list(opened.chunks()) == [b"a"]
    assert opened.interrupter() is None
    opened.close()
    assert plain.closed

    async def main() -> None:
        opened = sdk_clients.StreamedResponse(awaited, Head(200, sdk_clients.decode_headers(awaited.headers)))
        assert opened.head.headers == {"x-some": "1"}
        assert [chunk async for chunk in opened.achunks()] == [b"a"]
        await opened.aclose()
        assert awaited.closed

    asyncio.run(main())


# Time and cancellation


def endless(session: Session) -> Network:
    """Begins, and then says nothing for a long time."""
    speech = session.case.speech
    pieces: list[Any] = [speech.frames(event) for event in speech.events[:-1]]
    return lambda request: Answer([*pieces, Piece(b"", after=30)], headers={"content-type": speech.content_type})


@pytest.mark.timing
@sessions(WAYS, by_turns=2)
def test_deadlines_hold(session: Session, serve: Serve) -> None:
    server = serve(lambda request: Answer(after=30))
    started = time.monotonic()
    with pytest.raises(errors.TimeoutError) as caught:
        session.ask(server.url, deadline=0.2)
    assert caught.value.deadline
    assert time.monotonic() - started < 5.0, "long before the answer"


@pytest.mark.timing
@sessions(STREAMS)
def test_a_stream_that_falls_silent_ends_in_time(session: Session, serve: Serve) -> None:
    server = serve(endless(session))
    started = time.monotonic()
    with pytest.raises(errors.StreamInterrupted, match="idle_timeout"):
        session.ask(server.url, idle_timeout=0.2)
    assert time.monotonic() - started < 2.5


@sessions(STREAMS)
def test_leaving_a_stream_closes_its_connection(session: Session, serve: Serve) -> None:
    server = serve(endless(session))

    async def leave_async() -> None:
        client = session.case.make(server.url)
        async with session.agent(client).astream("hi") as stream:
            async for event in stream:
                if event.type == "text_delta":
                    break
        assert await asyncio.to_thread(server.wait_until, lambda: bool(server.disconnects))
        await aclose(client)

    def leave() -> None:
        client = session.case.make(server.url)
        with session.agent(client).stream("hi") as stream:
            for event in stream:
                if event.type == "text_delta":
                    break
        assert server.wait_until(lambda: bool(server.disconnects))
        client.close()

    asyncio.run(leave_async()) if session.way == "astream" else leave()


@cases(lambda case: case.awaiting)
def test_cancelling_a_task_closes_the_connection(case: Case, serve: Serve) -> None:
    server = serve(lambda request: Answer(after=30))

    async def main() -> None:
        client = case.make(server.url)
        task = asyncio.create_task(Session(case, "acomplete").agent(client).acomplete("hi"))
        await asyncio.to_thread(server.wait_until, lambda: bool(server.requests))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await asyncio.to_thread(server.wait_until, lambda: bool(server.disconnects))
        await aclose(client)

    asyncio.run(main())


@cases(lambda case: case.blocking)
def test_aborting_frees_a_blocked_reader(case: Case, serve: Serve) -> None:
    session = Session(case, "stream")
    server = serve(endless(session))
    client = case.make(server.url)
    stream = session.agent(client).stream("hi")
    threading.Timer(0.2, stream.abort).start()
    started = time.monotonic()
    with pytest.raises(errors.Aborted):
        stream.collect()
    assert time.monotonic() - started < 1.5
    assert server.wait_until(lambda: bool(server.disconnects))
    client.close()


def test_an_abandoned_call_closes_its_answer_when_it_comes(serve: Serve) -> None:
    server = serve(lambda request: Answer([CHAT.pieces()[0], Piece(b"", after=30)], after=0.4))
    with openai.OpenAI(api_key=KEY, base_url=server.url) as client:
        stream = Agent("openai:m", client=client).stream("hi")
        threading.Timer(0.1, stream.abort).start()
        with pytest.raises(errors.Aborted):
            stream.collect()
        assert not server.disconnects
        assert server.wait_until(lambda: bool(server.disconnects))


# Conflicting options


def test_an_async_client_cannot_be_used_by_blocking_methods() -> None:
    agent = Agent("openai-chat:m", client=openai.AsyncOpenAI(api_key=KEY, base_url="http://127.0.0.1:1"))
    for call in (agent.complete, lambda text: agent.stream(text).collect()):
        with pytest.raises(errors.ConfigurationError, match="acomplete") as caught:
            call("hi")
        assert caught.value.field == "client"


@pytest.mark.parametrize(
    ("model", "options", "says"),
    [
        ("anthropic:m", {"client": openai.OpenAI(api_key=KEY)}, "uses anthropic"),
        ("openai:m", {"client": anthropic.Anthropic(api_key=KEY)}, "client of type Anthropic"),
        ("openai:m", {"client": object()}, "Unsupported client"),
        ("openai:m", {"client": openai.OpenAI}, "Unsupported client"),
        ("openai:m", {"client": openai.OpenAI(api_key=KEY), "api_key": "sk-another"}, "cannot be combined"),
        ("openai:m", {"client": openai.OpenAI(api_key=KEY), "base_url": "https://x.example"}, "cannot be combined"),
        ("openai:m", {"client": openai.OpenAI(api_key=KEY), "transport": object()}, "exclude each other"),
    ],
    ids=["wrong vendor", "wrong SDK", "no client", "a class", "key", "address", "transport"],
)
def test_what_does_not_go_together_is_refused_at_once(model: str, options: dict[str, Any], says: str) -> None:
    with pytest.raises(errors.ConfigurationError, match=says):
        Agent(model, **options)


def test_an_agent_with_a_client_is_not_pickled() -> None:
    agent = Agent("openai:m", client=openai.OpenAI(api_key=KEY))
    with pytest.raises(TypeError, match="client"):
        pickle.dumps(agent)
    with pytest.raises(TypeError, match="client"):
        pickle.dumps(agent._given_transport)
    assert repr(agent._given_transport) == "SdkTransport(OpenAI)"


def test_a_variant_of_an_agent_keeps_its_client(serve: Serve) -> None:
    server = serve(lambda request: CHAT.complete())
    with openai.OpenAI(api_key=KEY, base_url=server.url) as client:
        agent = Agent("openai:m", client=client).with_config(temperature=0.1)
        assert agent.complete("hi").text == "Hello there"
    assert json.loads(server.requests[0].body)["temperature"] == 0.1


# AWS event streams


def test_the_sdk_itself_reads_our_idea_of_an_event_stream(serve: Serve) -> None:
    server = serve(lambda request: BEDROCK.stream_reply())
    with anthropic.AnthropicBedrock(base_url=server.url, **_AWS) as client:
        asked: Any = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
        with client.messages.stream(**asked) as stream:
            assert stream.get_final_text() == "Hello there"


def test_an_event_stream_may_be_cut_anywhere() -> None:
    data = b"".join(frame_events(event) for event in _MESSAGE_EVENTS)
    expected = EventStreamConverter().feed(data)
    assert expected.count(b"data: ") == len(_MESSAGE_EVENTS)
    for size in (1, 7, 100):
        decoder = EventStreamConverter()
        assert b"".join(decoder.feed(data[at : at + size]) for at in range(0, len(data), size)) == expected


@pytest.mark.parametrize("place", [0, 9, 30, -20, -1])
def test_a_broken_event_stream_is_an_error(place: int) -> None:
    data = bytearray(frame_events(_MESSAGE_EVENTS[0]))
    data[place] ^= 0xFF
    with pytest.raises(errors.ProtocolError):
        EventStreamConverter().feed(bytes(data))


@pytest.mark.parametrize(
    ("headers", "payload", "says"),
    [
        ({":message-type": "exception", ":exception-type": "throttlingException"}, b'{"message": "slow"}', b"slow"),
        ({":message-type": "error", ":error-code": "500", ":error-message": "oh"}, b"", b"oh"),
        ({":message-type": "exception", ":exception-type": "modelError"}, b"not json", b"not json"),
    ],
)
def test_exceptions_of_an_event_stream_are_error_events(headers: dict[str, str], payload: bytes, says: bytes) -> None:
    event = json.loads(EventStreamConverter().feed(encode_message(headers, payload)).removeprefix(b"data: "))
    assert event["type"] == "error"
    assert says.decode() in event["error"]["message"]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("throttlingException", errors.RateLimitError),
        ("serviceUnavailableException", errors.OverloadedError),
        ("validationException", errors.BadRequestError),
        ("internalServerException", errors.ProviderError),
        ("modelStreamErrorException", errors.ProviderError),
    ],
)
def test_exceptions_of_an_event_stream_are_typed(name: str, kind: type[errors.AgentError], serve: Serve) -> None:
    case = next(case for case in CASES if case.speech is BEDROCK)
    failed = encode_message({":message-type": "exception", ":exception-type": name}, b'{"message": "no"}')
    server = serve(lambda request: Answer([failed], headers={"content-type": BEDROCK.content_type}))
    with pytest.raises(errors.AgentError) as caught:
        Session(case, "stream").ask(server.url)
    assert (type(caught.value), caught.value.message) == (kind, "no")
    assert caught.value.retryable is (kind is not errors.BadRequestError)


def test_messages_without_content_are_passed_over() -> None:
    assert EventStreamConverter().feed(encode_message({":message-type": "event"}, b'{"metrics": {}}')) == b""
    with pytest.raises(errors.ProtocolError, match="cannot be decoded"):
        EventStreamConverter().feed(encode_message({":message-type": "event"}, b"nonsense"))
