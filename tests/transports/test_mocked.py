"""Tools that mock httpcore2 see our requests: a user's tests need no server."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from agent import Agent
from agent.testing import LoopbackServer
from agent.transports.http import HttpTransport
from tests.drivers.play import agent_at, streamed_or_whole

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


def test_a_mock_answers_blocking_and_awaited_calls(httpx2_mock: Any, transport: HttpTransport) -> None:
    route = httpx2_mock.post("https://vendor.example/v1/chat/completions").mock(
        return_value=httpx.Response(200, json=ANSWER)
    )
    agent = Agent("openai-chat:m", api_key="sk-test", base_url="https://vendor.example/v1", transport=transport)
    assert agent.complete("hi").text == "mocked"
    assert asyncio.run(agent.acomplete("hi")).text == "mocked"
    assert route.call_count == 2


def test_without_a_mock_connections_are_our_own(transport: HttpTransport) -> None:
    import httpcore2

    assert "httpcore2" in sys.modules
    with LoopbackServer(streamed_or_whole) as server:
        assert agent_at(server, transport=transport).complete("hi").text == "hello"
        assert len(transport._direct.idle) == 1
        assert isinstance(httpcore2.ConnectionPool, type)
        transport.close()
