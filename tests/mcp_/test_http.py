"""HTTP servers that refuse, break off, flood and forget, played by a loopback server."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from typing import Any

import pytest

from agent import errors
from agent.engine.wire import WireRequest
from agent.mcp import MCPServer
from agent.testing import Answer, LoopbackServer
from agent.tools import ToolError

JSON = {"content-type": "application/json"}
TOOL = {"name": "act", "inputSchema": {"type": "object"}}


def reply(message: Any, result: Any, **headers: str) -> Answer:
    body = json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}).encode()
    return Answer([body], headers={**JSON, **{name.replace("_", "-"): value for name, value in headers.items()}})


def older(call: Callable[[Any, WireRequest], Answer], session: Callable[[], str] = lambda: "s1") -> Any:
    """A server of the older kind whose tool answers as told."""

    def network(request: WireRequest) -> Answer:
        message = json.loads(request.body) if request.body else {"method": "hang up"}
        match message["method"]:
            case "initialize":
                result = {
                    "protocolVersion": "2025-11-25",
                    "capabilities": {"tools": {}},
                    "serverInfo": {"name": "x", "version": "1"},
                }
                return reply(message, result, mcp_session_id=session())
            case "tools/list":
                return reply(message, {"tools": [TOOL]})
            case "tools/call":
                return call(message, request)
            case "notifications/initialized" | "notifications/cancelled":
                return Answer(status=202)
            case _:
                return Answer(status=405)

    return network


def read_messages(message: Any, text: str) -> Answer:
    return reply(message, {"content": [{"type": "text", "text": text}]})


@pytest.mark.parametrize(
    ("answer", "kind", "says"),
    [
        (Answer(status=401), errors.AuthenticationError, "headers= or auth="),
        (Answer(status=403, pieces=[b"you sent Bearer top-secret"]), errors.AuthenticationError, "denied access"),
        (Answer(status=404, pieces=[b"<html>"]), errors.ConfigurationError, "usually listen at /mcp"),
        (Answer(status=405), errors.ConfigurationError, "no MCP server"),
        (Answer(status=500), errors.ConnectionError, "HTTP 500 while connecting"),
        (Answer(pieces=[b"<html>hello</html>"], headers={"content-type": "text/html"}), errors.ProviderError, "html"),
        (Answer(pieces=[b"{}"], headers=JSON), errors.ProviderError, "parse"),
        (Answer(pieces=[b"null"], headers=JSON), errors.ProviderError, "parse"),
        (Answer(pieces=[b"[" * 100_000], headers=JSON), errors.ProviderError, "parse"),
        (Answer(status=202), errors.ProviderError, "202"),
        (Answer(failure=OSError()), errors.ConnectionError, "Error"),
        (Answer(pieces=[b'{"jsonrpc"', OSError()], headers=JSON), errors.ProviderError, "broke off"),
        (Answer(pieces=[b"x" * 200_000], headers=JSON), errors.ProviderError, "longer than 100000 bytes"),
        (
            Answer(pieces=[gzip.compress(b"{}")], headers={**JSON, "content-encoding": "gzip"}),
            errors.ConnectionError,
            "compressed",
        ),
        (
            Answer(pieces=[b"data: " + b"x" * 200_000 + b"\n\n"], headers={"content-type": "text/event-stream"}),
            errors.ConnectionError,
            "SSE stream failed",
        ),
        (Answer(pieces=[], headers={"content-type": "text/event-stream"}), errors.ConnectionError, "without a resp"),
    ],
    ids=lambda value: str(value.status) if isinstance(value, Answer) else None,
)
def test_a_server_that_cannot_be_used_is_a_typed_error(
    answer: Answer, kind: type[errors.AgentError], says: str, caplog: pytest.LogCaptureFixture
) -> None:
    with LoopbackServer(lambda request: answer) as loopback:
        server = MCPServer.http(
            f"{loopback.url}/mcp", {"Authorization": "Bearer top-secret"}, connect_timeout=5, max_bytes=100_000
        )
        with pytest.raises(kind, match=says) as caught:
            server.open()
    assert "top-secret" not in f"{caught.value}{caught.value.body}{server!r}"


def test_a_server_that_never_answers_is_given_up_in_time() -> None:
    with LoopbackServer(lambda request: Answer(after=60)) as loopback:
        with pytest.raises(errors.TimeoutError, match=r"within 0\.2 s while connecting"):
            MCPServer.http(loopback.url, connect_timeout=0.2).open()
        assert loopback.wait_until(lambda: loopback.open_connections == 0)


def test_a_redirect_to_another_origin_is_not_followed() -> None:
    with LoopbackServer(lambda request: Answer()) as elsewhere:
        moved = Answer(status=307, headers={"location": f"{elsewhere.url}/mcp"})
        with LoopbackServer(lambda request: moved) as loopback, pytest.raises(errors.AgentError, match="not followed"):
            MCPServer.http(loopback.url, {"Authorization": "Bearer key"}).open()
        assert elsewhere.requests == []


def test_a_failed_request_fails_its_call_alone() -> None:
    answers = [Answer(failure=OSError()), Answer(status=503, pieces=[b"busy"])]

    def call(message: Any, request: WireRequest) -> Answer:
        return answers.pop(0) if answers else read_messages(message, "fine")

    with LoopbackServer(older(call)) as loopback, MCPServer.http(loopback.url) as server:
        with pytest.raises(errors.ConnectionError, match="Error"):
            server.call("act")
        with pytest.raises(errors.ConnectionError, match="HTTP 503 while calling act") as caught:
            server.call("act")
        assert caught.value.retryable
        assert server.call("act").text == "fine"
        assert sum(b'"initialize"' in request.body for request in loopback.requests) == 1


def test_a_server_that_has_forgotten_the_session_is_asked_again_in_a_new_one() -> None:
    sessions = ["s1", "s2"]

    def call(message: Any, request: WireRequest) -> Answer:
        known = (b"mcp-session-id", b"s2") in [(name.lower(), value) for name, value in request.headers]
        return read_messages(message, "fine") if known else Answer(status=404)

    with (
        LoopbackServer(older(call, lambda: sessions.pop(0))) as loopback,
        MCPServer.http(loopback.url) as server,
    ):
        assert server.call("act").text == "fine"


def test_a_server_that_forgets_every_session_is_asked_twice_and_no_more() -> None:
    with (
        LoopbackServer(older(lambda message, request: Answer(status=404))) as loopback,
        MCPServer.http(loopback.url) as server,
    ):
        with pytest.raises(errors.ConnectionError, match="does not know this session"):
            server.call("act")
        assert sum(b'"tools/call"' in request.body for request in loopback.requests) == 2


def test_an_error_that_the_server_answers_is_for_the_model() -> None:
    def call(message: Any, request: WireRequest) -> Answer:
        error = {"code": -32602, "message": "no such city"}
        body = json.dumps({"jsonrpc": "2.0", "id": message["id"], "error": error}).encode()
        return Answer([body], status=400, headers=JSON)

    with (
        LoopbackServer(older(call)) as loopback,
        MCPServer.http(loopback.url) as server,
        pytest.raises(ToolError, match=r"^no such city$"),
    ):
        server.call("act")


def test_closing_does_not_wait_for_a_server_that_does_not_answer() -> None:
    hanging = older(lambda message, request: Answer(after=60))

    def network(request: WireRequest) -> Answer:
        return hanging(request) if request.body else Answer(after=60)

    with LoopbackServer(network) as loopback:
        server = MCPServer.http(loopback.url).open()
        with pytest.raises(errors.TimeoutError):
            server.call("act", timeout=0.1)
        server.close()
        assert loopback.wait_until(lambda: loopback.open_connections == 0)


@pytest.mark.parametrize(
    ("url", "headers", "field", "says"),
    [
        ("npx some-server", {}, "url", "MCPServer.stdio"),
        ("ftp://example.com", {}, "url", "http or https"),
        ("https://[::1", {}, "url", "must be valid"),
        ("https://example.com:99999/mcp", {}, "url", "must be valid"),
        ("https://exa\nmple.com/mcp", {}, "url", "must be valid"),
        (5, {}, "url", "must be valid"),
        ("https://example.com/mcp", {"X-Key": 5}, "headers", "must be strings"),
        ("http://example.com/mcp", {"Authorization": "Bearer k"}, "url", "allow_insecure"),
        ("https://example.com/mcp", {"X-Key": "a\r\nEvil: 1"}, "headers", "'X-Key' contains a control"),
    ],
)
def test_an_address_that_cannot_be_right_is_refused_at_once(
    url: Any, headers: dict[str, Any], field: str, says: str
) -> None:
    with pytest.raises(errors.ConfigurationError, match=says) as caught:
        MCPServer.http(url, headers)
    assert caught.value.field == field
    assert "Evil" not in str(caught.value)


def test_an_address_is_shown_without_what_may_be_secret() -> None:
    assert repr(MCPServer.http("https://me:pw@example.com:8443/mcp?key=abc")) == (
        "MCPServer('https://example.com:8443/mcp', closed)"
    )


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: MCPServer.http("https://example.com/mcp", timout=1), "timout"),  # type: ignore[call-arg]
        (lambda: MCPServer.http("https://example.com/mcp", timeout="1"), "timeout"),  # type: ignore[arg-type]
        (lambda: MCPServer.http("https://example.com/mcp", only=5), "only"),  # type: ignore[arg-type]
        (lambda: MCPServer.stdio("x", 5), "args"),  # type: ignore[arg-type]
        (lambda: MCPServer.stdio("x", [1]), "args"),  # type: ignore[list-item]
        (lambda: MCPServer.stdio("x", [], {"A": None}), "env"),  # type: ignore[dict-item]
    ],
)
def test_invalid_settings_are_refused_by_name(make: Callable[[], MCPServer], field: str) -> None:
    with pytest.raises(errors.ConfigurationError) as caught:
        make()
    assert caught.value.field == field
    assert caught.value.fix
