"""One call, buffered or streamed, under every driver."""

from __future__ import annotations

import json

from agent.testing import Script
from tests.drive import Driver


def test_a_completed_and_a_streamed_answer_are_equal_but_for_the_time_they_took(drive: Driver) -> None:
    whole = drive.complete(Script("Good day to you")).ok
    streamed = drive.stream(Script("Good day to you")).ok
    same = {"latency_ms": None, "route": ()}
    assert streamed.model_copy(update=same) == whole.model_copy(update=same)


def test_the_request_reaches_the_vendor(drive: Driver) -> None:
    script = Script("Hello")
    assert drive.complete(script, "hi", temperature=0.5).ok.text == "Hello"
    assert script.requests[0]["messages"] == [{"role": "user", "content": "hi"}]
    assert json.dumps(script.requests[0]["temperature"]) == "0.5"
