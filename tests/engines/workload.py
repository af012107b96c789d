"""The upstream of the engine tests, and the requests in its rows."""

from __future__ import annotations

import json
import os
import threading
import time
from collections import Counter

from agent import Agent
from agent.engine.wire import WireRequest
from agent.testing import Answer, Script

LATENCY = 0.02
ADDRESS = "ENGINE_TEST_URL"


class Upstream:
    """Echoes after 20 ms. Counts how often each text was sent, and when."""

    def __init__(self) -> None:
        self.sent: Counter[str] = Counter()
        self.first = self.last = 0.0
        self._lock = threading.Lock()

    def __call__(self, request: WireRequest) -> Answer:
        text: str = json.loads(request.body)["messages"][-1]["content"]
        now = time.monotonic()
        with self._lock:
            self.first = self.first or now
            self.last = now
            self.sent[text] += 1
        answer = Script()(request)
        answer.after = LATENCY
        return answer

    @property
    def rate(self) -> float:
        """Requests per second while requests flow."""
        return self.sent.total() / (self.last - self.first)


def connect() -> Agent:
    """Create the client of a worker process; its settings are in the environment."""
    return Agent("openai-chat:gpt-4o", api_key="sk-engine", base_url=os.environ[ADDRESS])
