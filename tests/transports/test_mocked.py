"""Mocks of httpx and httpx2 see the requests of all agents while they are active."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from agent import Agent, errors
from agent.testing import LoopbackServer, use_httpx
from agent.transports import http
from agent.transports.http import HttpTransport
from tests.engine.play import agent_at, stream_or_whole

ROOT = Path(__file__).parents[2]
ANSWER = {
    "id": "c",
    "model": "m",
    "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "mocked"}}],
}


@pytest.fixture
def transport() -> Iterator[HttpTransport]:
    transport = HttpTransport(proxy=False)
    yield transport
    transport.close()


def count_mocked_calls(mock: Any, transport: HttpTransport | None) -> None:
    route = mock.post("https://vendor.example/v1/chat/completions").mock(return_value=httpx.Response(200, json=ANSWER))
    agent = Agent("openai-chat:m", api_key="sk-test", base_url="https://vendor.example/v1", transport=transport)
    assert agent.complete("hi").text == "mocked"
    assert asyncio.run(agent.acomplete("hi")).text == "mocked"
    assert route.call_count == 2


def test_pytest_httpx2_answers_sync_and_async_calls(httpx2_mock: Any, transport: HttpTransport) -> None:
    """The package's plugin selects clients of httpx2 where its fixture is used."""
    count_mocked_calls(httpx2_mock, transport)


def test_respx_answers_sync_and_async_calls(respx_mock: Any) -> None:
    """The package's plugin selects clients of httpx where its fixture is used."""
    count_mocked_calls(respx_mock, None)


def test_use_httpx_selects_clients_for_a_block_of_code(transport: HttpTransport) -> None:
    with LoopbackServer(stream_or_whole) as server:
        with use_httpx():
            assert agent_at(server, transport=transport).complete("hi").text == "hello"
            assert not transport._direct.idle
            with use_httpx("httpx"):
                assert agent_at(server, transport=transport).complete("hi").text == "hello"
        assert len(transport._clients) == 2
        assert agent_at(server, transport=transport).complete("hi").text == "hello"
        assert len(transport._direct.idle) == 1


def test_without_a_mock_connections_are_direct(transport: HttpTransport) -> None:
    with LoopbackServer(stream_or_whole) as server:
        assert agent_at(server, transport=transport).complete("hi").text == "hello"
        assert len(transport._direct.idle) == 1
        assert not transport._clients


@pytest.mark.parametrize(
    ("value", "direct"), [(None, True), ("direct", True), ("httpx", False), ("HTTPX2 ", False)], ids=str
)
def test_the_environment_selects_the_option_of_a_process(value: str | None, direct: bool) -> None:
    program = """
import os, sys
from agent import Agent
agent = Agent("openai-chat:m", api_key="k", base_url=os.environ["URL"] + "/v1")
assert agent.complete("hi").text == "hello"
print("httpx2" not in sys.modules)
"""
    with LoopbackServer(stream_or_whole) as server:
        environment = {**os.environ, "URL": server.url, "AGENT_HTTP": value or ""}
        done = subprocess.run(
            [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60, env=environment
        )
        assert done.stdout == f"{direct}\n", done.stderr


def test_an_unknown_option_in_the_environment_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENT_HTTP", "curl")
    monkeypatch.setattr(http, "_reads_environment", True)
    agent = Agent("openai-chat:m", api_key="k", base_url="https://vendor.example/v1", max_retries=0)
    with pytest.raises(errors.ConfigurationError, match="curl") as caught:
        agent.complete("hi")
    assert caught.value.field == "AGENT_HTTP"


def test_the_package_registers_its_pytest_plugin() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    assert '"agent.pytest_plugin" = "agent.pytest_plugin"' in project
