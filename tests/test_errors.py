"""The error tree: drawn as it is, printable, picklable, and sure of whether a retry helps."""

from __future__ import annotations

import asyncio
import inspect
import pickle
import re
import socket
import ssl
import traceback
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from time import monotonic

import pytest

from agent import Agent, RetryConfig, Router, errors
from agent.client import Client
from agent.engine.wire import WireRequest
from agent.http.exchange import connection_error
from agent.testing import LoopbackServer, VendorScript, scripted_agent, use_httpx
from agent.types import AgentResponse, Attempt

KINDS = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, errors.AgentError)]
RETRYABLE = {"ConnectionError", "TimeoutError", "RateLimitError", "OverloadedError", "ProtocolError"}


def parse_tree() -> dict[str, str]:
    """Name → parent, read from the drawing in the module's docstring."""
    parents: dict[str, str] = {}
    path: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        found = re.match(r"^    ((?:[│ ]   )*)(?:[├└]── )?(\w+(?:Error|Aborted|Interrupted)|Aborted)\b", line)
        if found is None:
            continue
        depth = len(found[1]) // 4 + (1 if "──" in line else 0)
        path[depth:] = [found[2]]
        if depth:
            parents[found[2]] = path[depth - 1]
    return parents


def test_the_tree_in_the_docstring_is_the_tree_of_the_classes() -> None:
    real = {
        kind.__name__: next(base.__name__ for base in kind.__bases__ if issubclass(base, errors.AgentError))
        for kind in KINDS
        if kind is not errors.AgentError
    }
    drawn = parse_tree()
    assert drawn.keys() == real.keys()
    assert drawn == real


def test_everything_is_exported_but_the_two_that_shadow_builtins() -> None:
    names = {kind.__name__ for kind in KINDS}
    assert set(errors.__all__) == names - {"ConnectionError", "TimeoutError"}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_error_knows_whether_a_retry_helps_and_survives_a_pickle(kind: type[errors.AgentError]) -> None:
    error = kind(
        "it broke", provider="p", model="m", status_code=500, request_id="r", code="c", retry_after=2.0, body="b"
    )
    error.attempts = (Attempt(target="p:m", error="X"),)
    assert error.retryable is (kind.__name__ in RETRYABLE)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert vars(again) == vars(error)
    assert str(again) == str(error)
    assert again.args == error.args


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_an_error_prints_what_happened_and_where(kind: type[errors.AgentError]) -> None:
    text = str(kind("it broke", provider="acme", model="m1", status_code=503, request_id="req_1"))
    assert text.startswith("it broke")
    for fact in ("acme", "m1", "503", "req_1"):
        assert fact in text
    assert str(kind("it broke")) == "it broke"


def test_retryable_can_be_decided_where_the_error_is_made() -> None:
    assert errors.ProtocolError("x", retryable=False).retryable is False
    assert errors.ProviderError("x", retryable=True).retryable is True


def test_a_deadline_is_never_retryable() -> None:
    assert errors.TimeoutError("x", deadline=True).retryable is False
    assert errors.TimeoutError("x").retryable is True


def test_errors_with_more_to_say_keep_it() -> None:
    partial = AgentResponse(text="half")
    interrupted = pickle.loads(pickle.dumps(errors.StreamInterrupted("x", partial=partial)))
    assert interrupted.partial == partial
    assert interrupted.committed
    routing = pickle.loads(pickle.dumps(errors.RoutingError(errors=[errors.RateLimitError("slow")])))
    assert [type(error) for error in routing.errors] == [errors.RateLimitError]
    assert "RateLimitError: slow" in str(routing)
    assert errors.ConfigurationError("x", field="f", fix="Do y.").field == "f"
    assert str(errors.ConfigurationError("X is wrong.", fix="Do y.")) == "X is wrong. Do y."
    assert isinstance(errors.ConfigurationError("x"), ValueError)


def test_a_caller_can_catch_all_of_them_at_once() -> None:
    assert all(issubclass(kind, errors.AgentError) for kind in KINDS)
    assert len(KINDS) == 23


# Causes and fixes

CALLS: dict[str, Callable[[Client], object]] = {
    "complete": lambda client: client.complete("hi"),
    "stream": lambda client: client.stream("hi").collect(),
    "run": lambda client: client.run("hi"),
    "acomplete": lambda client: asyncio.run(client.acomplete("hi")),
    "astream": lambda client: asyncio.run(client.astream("hi").collect()),
    "arun": lambda client: asyncio.run(client.arun("hi")),
}


@pytest.fixture(params=["direct", "httpx2"])
def refusing(request: pytest.FixtureRequest) -> Iterator[str]:
    """A base URL at which nothing listens."""
    with socket.socket() as free, use_httpx() if request.param == "httpx2" else nullcontext():
        free.bind(("127.0.0.1", 0))  # not listening: connections are refused
        yield f"http://127.0.0.1:{free.getsockname()[1]}"


@pytest.mark.parametrize("name", CALLS)
def test_a_refused_connection_names_the_address_and_the_next_step(name: str, refusing: str) -> None:
    with pytest.raises(errors.ConnectionError) as caught:
        CALLS[name](Agent("ollama:llama3", base_url=f"{refusing}/v1", max_retries=0))
    error = caught.value
    assert refusing in error.message
    assert error.fix == "Is ollama running? Start it, or pass its address as base_url=."
    assert str(error).endswith(error.fix)
    frames = traceback.extract_tb(error.__traceback__)
    assert sum("/agent/" in frame.filename for frame in frames) <= 11
    assert type(error.__cause__).__name__ in ("ConnectionRefusedError", "ConnectError")  # the latter is httpx2's
    assert error.__cause__ is not None
    assert error.__cause__.__traceback__ is None


def test_an_unknown_host_and_an_untrusted_certificate_have_their_own_fixes() -> None:
    request = WireRequest("https://nowhere.invalid:8443/v1/chat", (), b"", "openai")
    lookup = connection_error(socket.gaierror(-2, "Name or service not known"), request)
    assert "https://nowhere.invalid:8443" in lookup.message
    assert lookup.retryable
    assert "host name in base_url" in str(lookup.fix)
    rejected = connection_error(ssl.SSLCertVerificationError("self-signed"), request)
    assert not rejected.retryable
    assert "SSL_CERT_FILE" in str(rejected.fix)
    assert "HTTPS_PROXY" in str(connection_error(OSError("unreachable"), request).fix)


@pytest.mark.parametrize(
    ("failure", "fix"),
    [
        (errors.AuthenticationError("wrong key"), "Check the API key for openai-chat"),
        (errors.ModelNotFoundError("no such model"), "Did you mean gpt-5.6"),
    ],
    ids=["wrong key", "unknown model"],
)
def test_a_rejected_key_and_an_unknown_model_have_a_fix(failure: errors.AgentError, fix: str) -> None:
    with LoopbackServer(VendorScript(failure)) as server, pytest.raises(type(failure)) as caught:
        Agent("openai-chat:gpt-5.66", base_url=server.url, api_key="k").complete("hi")
    assert fix in str(caught.value.fix)
    assert fix in str(caught.value)


def test_a_routing_error_names_each_target_once() -> None:
    busy = errors.OverloadedError("busy")
    agents = [scripted_agent(busy, model="a"), scripted_agent(busy, model="b"), Agent("openai:gpt-5")]
    with pytest.raises(errors.RoutingError) as caught:
        Router(agents, retry=RetryConfig(max_retries=3, initial_delay=0.0)).complete("hi")
    for name in ("scripted:a", "scripted:b", "openai:gpt-5"):
        assert caught.value.message.count(name) == 1
    assert re.search(r"scripted:a: OverloadedError \(\d times\): busy", caught.value.message)
    health = {candidate.target: candidate.health for candidate in caught.value.attempts.candidates}  # type: ignore[attr-defined]
    assert health["openai:gpt-5"] == "no key"
    assert "closed" not in str(caught.value)


def test_health_in_tables_has_plain_words() -> None:
    router = Router([scripted_agent("hi", model="a"), Agent("openai:gpt-5")])
    router.targets[0].health.breaker.opened_at = monotonic()
    assert [one.health for one in router.explain("hi").candidates] == ["open", "no key"]
    router.reset_health()
    assert str(router.explain("hi")).splitlines()[1].split()[2] == "ok"
