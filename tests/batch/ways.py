"""Sync and async variants of batch calls, and a transport that counts running requests."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

from typing_extensions import override

from agent import Agent
from agent.batch import BatchItem, BatchResult
from agent.client import Client
from agent.engine.wire import Limits, Reply, WireRequest
from agent.testing import Answer, Script, ScriptedTransport
from tests.support.drivers import run_and_leave_nothing


def no_more_threads_than(count: int) -> bool:
    """A progress bar's own thread ends a moment after the bar."""
    end = time.monotonic() + 2
    while threading.active_count() > count and time.monotonic() < end:
        time.sleep(0.01)
    return threading.active_count() <= count


class Way:
    """Sync or async."""

    name = ""

    def batch(self, caller: Client, requests: Any, **options: Any) -> BatchResult:
        raise NotImplementedError

    def stream(self, caller: Client, requests: Any, until: int | None = None, **options: Any) -> list[BatchItem]:
        """The items as they come; the loop is left after `until` of them."""
        raise NotImplementedError

    def close_early(self, caller: Client, requests: Any, **options: Any) -> tuple[list[BatchItem], list[BatchItem]]:
        """Close the stream inside its loop, after the first item."""
        raise NotImplementedError


class Blocking(Way):
    name = "sync"

    @override
    def batch(self, caller: Client, requests: Any, **options: Any) -> BatchResult:
        before = threading.active_count()
        try:
            return caller.batch(requests, **options)
        finally:
            assert no_more_threads_than(before), "a thread was left behind"

    @override
    def stream(self, caller: Client, requests: Any, until: int | None = None, **options: Any) -> list[BatchItem]:
        before = threading.active_count()
        items: list[BatchItem] = []
        for item in caller.batch_stream(requests, **options):
            items.append(item)
            if len(items) == until:
                break
        assert no_more_threads_than(before), "a thread was left behind"
        return items

    @override
    def close_early(self, caller: Client, requests: Any, **options: Any) -> tuple[list[BatchItem], list[BatchItem]]:
        items: list[BatchItem] = []
        stream = caller.batch_stream(requests, **options)
        for item in stream:
            items.append(item)
            stream.close()
        return items, stream.rest()


class Awaiting(Way):
    name = "aio"

    @override
    def batch(self, caller: Client, requests: Any, **options: Any) -> BatchResult:
        return run_and_leave_nothing(caller.abatch(requests, **options))

    @override
    def stream(self, caller: Client, requests: Any, until: int | None = None, **options: Any) -> list[BatchItem]:
        async def main() -> list[BatchItem]:
            items: list[BatchItem] = []
            async for item in caller.abatch_stream(requests, **options):
                items.append(item)
                if len(items) == until:
                    break
            return items

        return run_and_leave_nothing(main())

    @override
    def close_early(self, caller: Client, requests: Any, **options: Any) -> tuple[list[BatchItem], list[BatchItem]]:
        async def main() -> tuple[list[BatchItem], list[BatchItem]]:
            items: list[BatchItem] = []
            stream = caller.abatch_stream(requests, **options)
            async for item in stream:
                items.append(item)
                await stream.aclose()
            return items, stream.rest()

        return run_and_leave_nothing(main())


class Watched(ScriptedTransport):
    """A script that takes its time, and knows how many requests it had at once."""

    def __init__(self, script: Callable[[WireRequest], Answer] | None = None, after: float = 0.0) -> None:
        played = script or Script()

        def network(request: WireRequest) -> Answer:
            answer = played(request)
            answer.after = answer.after or after
            return answer

        super().__init__(network)
        self.under_way = 0
        self.most = 0
        self.begun = 0
        self.cancelled = 0

    @override
    async def asend(self, request: WireRequest, limits: Limits) -> Reply:
        self.begun += 1
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        try:
            return await super().asend(request, limits)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.under_way -= 1


def create_observed_agent(after: float = 0.0, script: Any = None, **options: Any) -> tuple[Agent, Watched]:
    """An agent that echoes, and what it sends through."""
    transport = Watched(script, after)
    return Agent("scripted:watched", transport=transport, **{"max_retries": 0, **options}), transport


def delay_responses(seconds: Callable[[str], float], script: Any = None) -> Callable[[WireRequest], Answer]:
    """A script that takes its time, for each text its own."""

    def network(request: WireRequest) -> Answer:
        answer: Answer = (script or Script())(request)
        answer.after = seconds(last_text(request))
        return answer

    return network


def last_text(request: WireRequest) -> str:
    """The text of the last message."""
    text: str = json.loads(request.body)["messages"][-1]["content"]
    return text


async def slowly(requests: Iterable[Any], seconds: float = 0.0) -> AsyncIterator[Any]:
    for request in requests:
        await asyncio.sleep(seconds)
        yield request


def echoes(items: Any) -> list[str | None]:
    return [item.unwrap().text for item in items]


def echo_texts(*words: object) -> list[str]:
    return [f"You said: {word}" for word in words]


def create_priced_script(cost: float) -> Any:
    """Answers whose price the vendor says."""
    body = {
        "id": "1", "object": "chat.completion", "created": 0, "model": "m",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "ok"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15, "cost": cost},
    }  # fmt: skip
    return lambda request: Answer([json.dumps(body).encode()], headers={"content-type": "application/json"})
