"""The error tree: drawn as it is, printable, picklable, and sure of whether a retry helps."""

from __future__ import annotations

import inspect
import pickle
import re

import pytest

from agent import errors
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
