"""Vendors that echo the key in every place of a response: no failure, log or dump shows it."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import random
import ssl
from collections.abc import Awaitable, Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import httpx
import httpx2
import pytest

from agent import Agent, Router, errors, tool
from agent.batch import run_file
from agent.engine.wire import Answer
from agent.loop import SqliteJournal
from agent.middleware import Cache, Logging, SqliteResponseStore
from agent.stores import SqliteStore
from agent.testing import LoopbackServer, RawAnswer
from tests.support.cases import FULL, examples
from tests.support.leaks import KEY, assert_hidden, assert_no_trace

BODIES: dict[str, str] = {
    "error": json.dumps({"error": {"message": f"Incorrect key: {KEY}", "type": KEY, "code": KEY, "param": KEY}}),
    "error code": json.dumps({"error": {"type": "x", "details": {"error_code": KEY}}, "request_id": KEY}),
    "odd shape": json.dumps({"id": KEY, "choices": [{"message": KEY}], "candidates": KEY, "output": [KEY]}),
    "list": json.dumps([KEY, {"x": KEY}]),
    "text": json.dumps(KEY),
    "not JSON": "{" + KEY,
    "HTML": f"<html>{KEY}</html>",
    "deep JSON": "[" * 100 + json.dumps(KEY) + "]" * 100,
    "NaN": f'{{"a": NaN, "key": "{KEY}"}}',
    "stream: error": f'data: {{"error": {{"message": "{KEY}"}}}}\n\n',
    "stream: not JSON": f'data: {{"{KEY}\n\n',
    "stream: odd shape": f'event: {KEY}\ndata: {json.dumps({"choices": KEY, "type": KEY, "candidates": KEY})}\n\n',
    "stream: cut": f'data: {{"key": "{KEY}"}}\n',
    "stream: broken": f'data: {{"choices":[{{"delta":{{"content":"a"}}}}]}}\n\ndata: {{"choices": "{KEY}"}}\n\n',
}  # fmt: skip
HEADERS = dict.fromkeys(("x-request-id", "retry-after", "location", "www-authenticate", "x-amzn-errortype"), KEY)
_OK = b"HTTP/1.1 200 OK\r\n"
RAW: dict[str, bytes] = {
    "no HTTP": b"what? " + KEY.encode(),
    "cut": _OK + b"content-length: 1000\r\n\r\n" + KEY.encode(),
    "length": _OK + b"content-length: " + KEY.encode() + b"\r\n\r\n{}",
    "chunk": _OK + b"transfer-encoding: chunked\r\n\r\n" + KEY.encode() + b"\r\n",
    "encoding": _OK + b"content-encoding: " + KEY.encode() + b"\r\ncontent-length: 2\r\n\r\n{}",
    "gzip": _OK + b"content-encoding: gzip\r\ncontent-length: 40\r\n\r\n" + KEY.encode(),
    "header": _OK + KEY.encode() + b"\r\n\r\n{}",
    "status": b"HTTP/1.1 " + KEY.encode() + b" OK\r\n\r\n{}",
    "proxy": b"HTTP/1.1 407 " + KEY.encode() + b"\r\ncontent-length: 0\r\n\r\n",
}
STATUSES = range(200, 600) if FULL else (200, 201, 204, 302, 400, 401, 403, 404, 413, 429, 500, 503, 529)
PROVIDERS = ("openai-chat", "openai-responses", "anthropic", "gemini", "bedrock")
LIBRARIES = (None, httpx2, httpx)
SCHEMA: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "integer"}}}


@tool
def look() -> str:
    """Look around."""
    return "a sea"


def route(agent: Agent, strategy: Any = "priority") -> Router:
    return Router([agent, agent.with_config(temperature=0.5)], strategy=strategy)


async def collect(stream: Any) -> Any:
    return await stream.collect()


async def abatch(agent: Agent) -> Any:
    return (await agent.abatch(["x"]))[0].unwrap()


FORMS: dict[str, Callable[[Agent], Any]] = {
    "complete": lambda agent: agent.complete("x"),
    "stream": lambda agent: agent.stream("x").collect(),
    "json": lambda agent: agent.json("x", schema=SCHEMA),
    "stream_json": lambda agent: agent.stream_json("x", schema=SCHEMA).collect(),
    "run": lambda agent: agent.run("x", tools=[look]),
    "run_stream": lambda agent: agent.run_stream("x", tools=[look]).collect(),
    "session": lambda agent: agent.session("s").complete("x"),
    "session run": lambda agent: agent.session("s").run("x", tools=[look]),
    "batch": lambda agent: agent.batch(["x"])[0].unwrap(),
    "router": lambda agent: route(agent).complete("x"),
    "race": lambda agent: route(agent, "race").complete("x"),
    "router stream": lambda agent: route(agent).stream("x").collect(),
    "count_tokens": lambda agent: agent.count_tokens("x", exact=True),
    "call options": lambda agent: agent.complete("x", api_key=KEY, headers={"x-gateway": KEY}),
}
ASYNC_FORMS: dict[str, Callable[[Agent], Awaitable[Any]]] = {
    "acomplete": lambda agent: agent.acomplete("x"),
    "astream": lambda agent: collect(agent.astream("x")),
    "ajson": lambda agent: agent.ajson("x", schema=SCHEMA),
    "arun": lambda agent: agent.arun("x", tools=[look]),
    "async session": lambda agent: agent.session("s").acomplete("x"),
    "abatch": abatch,
    "async router": lambda agent: route(agent).acomplete("x"),
    "async race": lambda agent: route(agent, "race").acomplete("x"),
    "async call options": lambda agent: agent.acomplete("x", api_key=KEY, headers={"x-gateway": KEY}),
}


_TLS = ssl.create_default_context()


def call(form: str, agent: Agent, library: Any) -> None:
    """Make a call, directly or through a client of a library."""
    if form == "batch":
        library = None  # it needs async clients, see `abatch`
    if form in FORMS:
        with nullcontext() if library is None else library.Client(verify=_TLS) as client:
            FORMS[form](agent.with_config(http_client=client) if client else agent)
        return

    async def main() -> None:
        async with nullcontext() if library is None else library.AsyncClient(verify=_TLS) as client:
            await ASYNC_FORMS[form](agent.with_config(http_client=client) if client else agent)

    asyncio.run(main())


def answers(rng: random.Random) -> Iterator[tuple[str, Answer]]:
    """Yield one answer for each body, raw reply and status, with random other properties."""
    for name, status in itertools.zip_longest(BODIES, STATUSES):
        name, status = name or rng.choice([*BODIES]), status or rng.choice(STATUSES)
        kind = "text/event-stream" if name.startswith("stream") else "application/json"
        headers = {"content-type": kind, **(HEADERS if rng.random() < 0.5 else {})}
        body = [] if status == 204 else [BODIES[name].encode()]
        yield f"{name}, {status}, {len(headers)} headers", Answer(body, status=status, headers=headers)
    for name, raw in RAW.items():
        yield name, RawAnswer([raw])


@pytest.mark.malformed
@pytest.mark.parametrize("form", [*FORMS, *ASYNC_FORMS])
def test_no_echo_of_the_key_is_shown(form: str, rng: random.Random, caplog: pytest.LogCaptureFixture) -> None:
    current: list[Answer] = []
    cases = [(*case, library) for case in answers(rng) for library in LIBRARIES]
    failures: list[Exception] = []
    with caplog.at_level(logging.DEBUG), LoopbackServer(lambda request: current[0]) as server:
        for name, answer, library in rng.sample(cases, min(examples(12, 600), len(cases))):
            current[:] = [answer]
            provider = rng.choice(PROVIDERS)
            agent = Agent(
                f"{provider}:m",
                api_key=KEY,
                base_url=server.url,
                headers={"X-Gateway": KEY},
                max_retries=0,
                middleware=[Logging()],
            )
            try:
                with pytest.raises(errors.AgentError) as caught:
                    call(form, agent, library)
                assert_no_trace(caught.value)
            except Exception as error:
                error.add_note(f"{name} from {provider} through {library}")
                failures.append(error)
    # The HTTP libraries log URLs, status lines, and headers of responses.
    records = [record for record in caplog.records if not record.name.startswith("http")]
    assert_hidden("the log", "\n".join(f"{record.getMessage()} {vars(record)}" for record in records))
    if failures:
        raise ExceptionGroup(f"{len(failures)} cases", failures)


FIELDS: dict[str, Callable[[str], str]] = {
    "message": lambda text: json.dumps({"error": {"message": text}}),
    "code": lambda text: json.dumps({"error": {"message": "no", "code": text}}),
    "detail": lambda text: json.dumps({"detail": {"headers": text}}),
    "text": lambda text: text,
}


@pytest.mark.malformed
@pytest.mark.parametrize("field", FIELDS)
def test_no_limit_cuts_the_key_before_it_is_redacted(field: str) -> None:
    texts = [
        KEY * 3000,
        *("x" * (limit - start) + KEY for limit in (200, 2048, 4096, 8192) for start in range(4, 64, 8)),
    ]
    with LoopbackServer(lambda request: Answer([body], status=400)) as server:
        agent = Agent("openai-chat:m", api_key=KEY, base_url=server.url, max_retries=0)
        for text in texts:
            body = FIELDS[field](text).encode()
            with pytest.raises(errors.AgentError) as caught:
                agent.complete("x")
            assert_no_trace(caught.value)


@pytest.mark.parametrize("status", [200, 401, 500])
def test_no_echo_of_the_key_is_stored(status: int, tmp_path: Path) -> None:
    """Sessions, journals, caches and batches of failing calls."""
    with LoopbackServer(lambda request: Answer([BODIES["error"].encode()], status=status, headers=HEADERS)) as server:
        agent = Agent("openai-chat:m", api_key=KEY, base_url=server.url, headers={"x-gateway": KEY}, max_retries=0)
        store, journal = SqliteStore(tmp_path / "sessions"), SqliteJournal(tmp_path / "journal")
        session = agent.session("s", store=store)
        attempts: list[Callable[[], Any]] = [
            lambda: session.complete("x"),
            lambda: session.run("x", tools=[look], journal=journal),
            lambda: agent.run("x", tools=[look], journal=journal, run_id="r"),
            lambda: agent.with_config(middleware=[Cache(SqliteResponseStore(tmp_path / "cache"))]).complete("x"),
        ]
        for attempt in attempts:
            with pytest.raises(errors.AgentError):
                attempt()
        source = tmp_path / "requests"
        source.write_text('"one"\n')
        run_file(agent, source, tmp_path / "answers")
    for path in tmp_path.iterdir():
        assert_hidden(path.name, path.read_bytes())
