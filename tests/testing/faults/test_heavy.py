"""Oversized responses are rejected early, with bounded memory and without blocking the event loop."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from agent.engine.wire import parse_json
from agent.testing import LoopbackServer
from tests.support.cases import in_turn
from tests.testing.faults.fault_server import CODECS, faulty
from tests.testing.faults.heavy import HEAVY, LONGEST_HOLD
from tests.testing.faults.outcomes import Failure, find_expected

pytestmark = pytest.mark.malformed

MOST_MEGABYTES = 64


@pytest.mark.timing
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="memory is measured as Linux tells it")
@pytest.mark.parametrize(
    ("codec", "driver"),
    [
        *in_turn(CODECS, ("sync", "aio")),
        *(("openai-chat", driver) for driver in ("httpx", "aio-httpx")),
    ],
)
def test_what_is_too_large_costs_little(codec: str, driver: str) -> None:
    with LoopbackServer(faulty) as server:
        command = [sys.executable, "-m", "tests.testing.faults.heavy", server.url, codec, driver]
        client = subprocess.run(command, capture_output=True, text=True, timeout=100, cwd=Path(__file__).parents[3])
    assert client.returncode == 0, client.stderr
    measured = [json.loads(line) for line in client.stdout.splitlines()]
    assert [(each["fault"], each["form"]) for each in measured] == HEAVY
    for each in measured:
        wanted = find_expected(codec, each["fault"], each["form"])
        assert isinstance(wanted, Failure)
        assert (each["error"], each["retryable"]) == (wanted.kind.__name__, wanted.retryable), each
        assert wanted.cause is None or each["cause"] == wanted.cause.__name__, each
        assert each["megabytes"] <= MOST_MEGABYTES, each
        assert each["held"] <= LONGEST_HOLD, each
        assert each["seconds"] < 10, each


def test_json_of_very_many_values_is_refused_before_it_is_built() -> None:
    for bomb in (b"[" + b"[]," * 200_000 + b"1]", b"[" + b"1," * 300_000 + b"1]", b"[" + b"1.5,  " * 2_000_001 + b"1]"):
        with pytest.raises(ValueError, match="too many values"):
            parse_json(bomb)
        with pytest.raises(ValueError, match="too many values"):
            parse_json(bomb.decode())


def test_long_texts_and_many_small_facts_are_no_bomb() -> None:
    logprobs = [{"token": "a", "logprob": -0.5, "bytes": [97, 98, 99, 100]} for _ in range(50_000)]
    assert parse_json(json.dumps(logprobs, separators=(",", ":")).encode()) == logprobs
    assert parse_json(json.dumps("one, two, [three] " * 500_000).encode())[:4] == "one,"
    assert parse_json(json.dumps("1," * 120_000).encode())[:4] == "1,1,", "a long table of small numbers, in a text"
