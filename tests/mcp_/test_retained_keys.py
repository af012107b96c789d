"""MCP servers that echo their credentials: no failure, frame, log or dump shows them."""

from __future__ import annotations

import asyncio
import json
import logging
import random
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx2
import pytest

from agent import errors
from agent.engine.wire import Answer, WireRequest
from agent.loop import MemoryJournal
from agent.mcp import MCPServer
from agent.mcp.credentials import Redactor, find_command_secrets
from agent.testing import LoopbackServer, RawAnswer, scripted_agent
from agent.tools import ToolError
from agent.types import ToolCall
from tests.support.cases import examples
from tests.support.leaks import KEY, assert_hidden, assert_no_trace
from tests.test_echoes import BODIES, RAW
from tests.test_echoes import HEADERS as ECHOED

ECHO = str(Path(__file__).with_name("echoing_server.py"))
HEADERS = {**ECHOED, "location": f"https://elsewhere.invalid/{quote(KEY, safe='')}"}
STATUSES = (200, 202, 204, 302, 307, 400, 401, 403, 404, 405, 413, 429, 500, 503)
JSON = {"content-type": "application/json"}
SSE = {"content-type": "text/event-stream"}

RPC: dict[str, Any] = {
    "long error": {"error": {"code": -32602, "message": KEY * 1000}},
    "error at a limit": {"error": {"code": -32602, "message": "x" * 1980 + KEY}},
    "error": {"error": {"code": -32602, "message": f"Bad token {KEY}", "data": {"headers": [KEY]}}},
    "internal error": {"error": {"code": -32603, "message": KEY}},
    "closed": {"error": {"code": -32000, "message": KEY, "data": KEY}},
    "timeout": {"error": {"code": -32001, "message": KEY}},
    "old version": {"error": {"code": -32022, "message": KEY, "data": {"supported": [KEY], "requested": KEY}}},
    "error code": {"error": {"code": KEY, "message": KEY}},
    "odd error": {"error": KEY},
    "odd result": {"result": KEY},
    "odd version": {"result": {"protocolVersion": KEY, "capabilities": {}, "serverInfo": {"name": KEY, "version": ""}}},
    "odd capabilities": {"result": {"protocolVersion": "2025-11-25", "capabilities": KEY, "serverInfo": KEY}},
    "odd tools": {"result": {"tools": [{"name": KEY, "inputSchema": KEY}]}},
    "odd schema": {"result": {"tools": [{"name": "act", "inputSchema": {"type": KEY, "$ref": KEY}}]}},
    "odd description": {"result": {"tools": [{"name": "act", "description": [KEY], "inputSchema": {}}]}},
    "odd content": {"result": {"content": [{"type": "image", "data": KEY, "mimeType": KEY}]}},
    "unknown content": {"result": {"content": [{"type": KEY, "text": KEY}]}},
    "odd structure": {"result": {"content": [], "structuredContent": KEY}},
    "odd resources": {"result": {"contents": [{"uri": KEY, "blob": KEY, "mimeType": "image/png"}], "resources": KEY}},
    "odd prompt": {"result": {"messages": [{"role": KEY, "content": KEY}], "prompts": KEY}},
    "request": {"method": KEY, "params": {"x": KEY}},
    "other id": {"id": KEY, "result": {}},
    "failed result": {"result": {"isError": True, "content": [{"type": "text", "text": f"401: {KEY} is invalid"}]}},
}  # fmt: skip
"""Fields of a JSON-RPC message that replaces the proper response."""

GOOD: dict[str, Any] = {
    "initialize": {
        "protocolVersion": "2025-11-25",
        "capabilities": {"tools": {}, "resources": {}, "prompts": {}},
        "serverInfo": {"name": "x", "version": "1"},
    },
    "tools/list": {
        "tools": [
            {"name": "act", "inputSchema": {"type": "object"}},
            {"name": "typed", "inputSchema": {"type": "object"}, "outputSchema": {"type": "object", "required": ["a"]}},
        ]
    },
}  # fmt: skip

CALLS: dict[str, tuple[str, Callable[[MCPServer], Any], Callable[[MCPServer], Any]]] = {
    "tool": ("tools/call", lambda server: server.call("act"), lambda server: server.acall("act")),
    "typed tool": ("tools/call", lambda server: server.call("typed"), lambda server: server.acall("typed")),
    "resource": (
        "resources/read",
        lambda server: server.read_resource("file:///x"),
        lambda server: server.aread_resource("file:///x"),
    ),
    "resources": ("resources/list", lambda server: server.resources(), lambda server: server.aresources()),
    "prompt": ("prompts/get", lambda server: server.get_prompt("x"), lambda server: server.aget_prompt("x")),
    "prompts": ("prompts/list", lambda server: server.prompts(), lambda server: server.aprompts()),
    "run": ("tools/call", lambda server: run_tool(server), lambda server: arun_tool(server)),
}
"""For each call its method, and the call, sync and async."""


def run_tool(server: MCPServer) -> None:
    journal = MemoryJournal()
    result = scripted_agent(ToolCall(id="1", name="act"), "Done.").run("x", tools=server.tools, journal=journal)
    assert_hidden("the run", f"{result!r} {result.to_dict()} {vars(journal)}")


async def arun_tool(server: MCPServer) -> None:
    result = await scripted_agent(ToolCall(id="1", name="act"), "Done.").arun("x", tools=server.tools)
    assert_hidden("the run", repr(result))


def use(server: MCPServer, call: str, *, awaits: bool) -> None:
    """Open a server and make a call. Failures of the server pass if they show no key; so do results."""
    _, sync, asynchronous = CALLS[call]
    assert_hidden("a server", repr(server) + repr(vars(server)))

    async def main() -> None:
        async with server:
            await asynchronous(server)

    try:
        if awaits:
            asyncio.run(main())
        else:
            with server:
                sync(server)
    except (errors.AgentError, ToolError) as error:
        assert_no_trace(error)
        assert_hidden("a server", repr(server) + repr(vars(server)))


def check(
    failures: list[Exception], name: str, make: Callable[[], MCPServer], call: str, awaits: bool, log: Any
) -> None:
    """Use a server, and add a failure if something shows the key."""
    try:
        use(make(), call, awaits=awaits)
        assert_hidden("the log", "\n".join(f"{record.getMessage()} {vars(record)}" for record in log.records))
    except Exception as error:
        error.add_note(f"{name}, {'async' if awaits else 'sync'}")
        failures.append(error)
    log.clear()


# HTTP

Reply = Callable[[Any], Answer]


def reply_with(status: int, fields: Any, headers: dict[str, str], message: Any) -> Answer:
    text = json.dumps({"jsonrpc": "2.0", "id": message.get("id"), **fields}).encode()
    is_event = headers["content-type"] == "text/event-stream"
    return Answer([b"data: " + text + b"\n\n"] if is_event else [text], status=status, headers=headers)


def replies(rng: random.Random) -> Iterator[tuple[str, Reply]]:
    """Yield replies to a message: JSON-RPC as JSON and as an event, other bodies, and broken HTTP."""
    for name, fields in RPC.items():
        status = rng.choice((200, 200, 200, *STATUSES))
        headers = {**rng.choice((JSON, SSE)), **rng.choice(({}, HEADERS))}
        yield f"{name}, {status}, {len(headers)} headers", partial(reply_with, status, fields, headers)
    for name, body in BODIES.items():
        status, kind = rng.choice(STATUSES), SSE if name.startswith("stream") else JSON
        headers = {**kind, **rng.choice(({}, HEADERS, {"mcp-session-id": KEY}, {"content-type": KEY}))}
        answer = Answer([] if status == 204 else [body.encode()], status=status, headers=headers)
        yield f"{name}, {status}, {len(headers)} headers", partial(lambda answer, message: answer, answer)
    for name, raw in RAW.items():
        yield name, partial(lambda raw, message: RawAnswer([raw]), raw)


ADDRESSES: dict[str, Callable[[str], tuple[str, dict[str, Any]]]] = {
    "header": lambda url: (url, {"headers": {"Authorization": f"Bearer {KEY}"}}),
    "other header": lambda url: (url, {"headers": {"X-Gateway": KEY}}),
    "cookie": lambda url: (url, {"headers": {"Cookie": f"session={KEY}; theme=dark"}}),
    "query": lambda url: (f"{url}?profile=a&api_key={quote(KEY, safe='')}", {}),
    "path": lambda url: (f"{url}/s/{quote(KEY, safe='')}/mcp", {}),
    "password": lambda url: (url.replace("//", f"//user:{quote(KEY, safe='')}@"), {}),
    "user": lambda url: (url.replace("//", f"//{quote(KEY, safe='')}@"), {}),
    "auth": lambda url: (url, {"auth": httpx2.BasicAuth("user", KEY), "headers": {"X-Gateway": KEY}}),
}


STAGES = {"connect": ("server/discover", "initialize"), "list": ("tools/list",)} | {
    call: (method,) for call, (method, _, _) in CALLS.items()
}
"""The methods whose replies show the key."""


@pytest.mark.parametrize("stage", STAGES)
def test_no_http_failure_shows_a_credential(stage: str, rng: random.Random, caplog: pytest.LogCaptureFixture) -> None:
    current: list[Reply] = []

    def network(request: WireRequest) -> Answer:
        message = json.loads(request.body) if request.body else {}
        method = message.get("method", "")
        if method in STAGES[stage]:
            return current[0](message)
        if method in GOOD:
            return reply_with(200, {"result": GOOD[method]}, JSON, message)
        return Answer(status=202 if method.startswith("notifications/") else 405)

    cases = [(*case, address) for case in replies(rng) for address in ADDRESSES]
    failures: list[Exception] = []
    with caplog.at_level(logging.DEBUG), LoopbackServer(network) as loopback:
        for name, reply, address in rng.sample(cases, min(examples(10, 250), len(cases))):
            current[:] = [reply]
            url, options = ADDRESSES[address](f"{loopback.url}/mcp")
            make = partial(MCPServer.http, url, connect_timeout=1.0, timeout=1.0, **options)
            call = stage if stage in CALLS else "tool"
            check(failures, f"{name}, key in {address}", make, call, rng.random() < 0.5, caplog)
    if failures:
        raise ExceptionGroup(f"{len(failures)} cases", failures)


# stdio

SHOWN = (
    KEY,
    f"Error: Bearer {KEY} is invalid",
    json.dumps({"id": 1, "jsonrpc": "2.0", "x": KEY}),
    "[" * 9000 + KEY,
    KEY * 1000,
    " " * 180 + KEY,
)
"""Lines of output that are no messages, or last words."""
SECRETS: dict[str, tuple[list[str], dict[str, str]]] = {
    "environment": ([], {"TOKEN": KEY}),
    "variable": ([], {"SETTING": KEY, "ROOT": "/srv"}),
    "URL in the environment": ([], {"DATABASE": f"postgres://user:{quote(KEY, safe='')}@localhost/db"}),
    "option": ([f"--token={KEY}"], {}),
    "option of two words": (["--api-key", KEY], {}),
    "header": (["--header", f"Authorization: Bearer {KEY}"], {}),
    "URL": ([f"https://user:{quote(KEY, safe='')}@localhost/mcp?x={quote(KEY, safe='')}"], {}),
    "word": ([KEY], {}),
}


@pytest.mark.parametrize("stage", STAGES)
def test_no_failure_of_a_program_shows_a_credential(
    stage: str, rng: random.Random, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = tmp_path / "settings"
    kinds = [("reply", json.dumps(fields), name) for name, fields in RPC.items()]
    kinds += [(kind, text, kind) for kind in ("line", "half a line", "last words") for text in SHOWN]
    cases = [(*kind, secret) for kind in kinds for secret in SECRETS]
    failures: list[Exception] = []
    with caplog.at_level(logging.DEBUG):
        for kind, text, name, secret in rng.sample(cases, min(examples(4, 40), len(cases))):
            args, env = SECRETS[secret]
            settings.write_text(json.dumps([STAGES[stage], kind, text, GOOD]))
            make = partial(MCPServer.stdio, sys.executable, [ECHO, str(settings), *args], env, connect_timeout=3.0)
            call = stage if stage in CALLS else "tool"
            check(failures, f"{name}, key in {secret}", make, call, rng.random() < 0.5, caplog)
    if failures:
        raise ExceptionGroup(f"{len(failures)} cases", failures)


def test_paths_and_settings_of_a_server_are_not_redacted() -> None:
    secrets = find_command_secrets(["--root", "/srv/files", "x://["], {"ROOT": "/srv/files", "KEY_FILE": "/srv/key"})
    assert Redactor(secrets)("no file /srv/files/a, no /srv/key") == "no file /srv/files/a, no ***"
