"""Retries of failed calls: when, how often, and never after events were emitted."""

from __future__ import annotations

import pytest

from agent import RetryConfig, errors
from agent.engine.wire import Answer
from agent.testing import Script, VendorScript, scripted_agent
from tests.support.drivers import Driver

QUICK = RetryConfig(max_retries=2, initial_delay=0.01, max_delay=0.02)


def test_a_passing_failure_is_overcome_and_shown_in_the_route(drive: Driver) -> None:
    script = Script(errors.RateLimitError("slow down"), errors.OverloadedError("busy"), "here")
    response = drive.complete(script, retry=QUICK).ok
    assert response.text == "here"
    assert [attempt.error for attempt in response.route] == ["RateLimitError", "OverloadedError", None]
    assert [attempt.status_code for attempt in response.route] == [429, 503, None]
    assert all(attempt.target == "openai-chat:test-model" for attempt in response.route)


def test_the_last_failure_is_raised_when_retries_are_used_up(drive: Driver) -> None:
    script = Script(*[errors.OverloadedError(f"busy {number}") for number in range(5)])
    outcome = drive.complete(script, retry=QUICK)
    assert isinstance(outcome.failed, errors.OverloadedError)
    assert outcome.failed.message == "busy 2"
    assert len(outcome.requests) == 3
    assert len(outcome.failed.attempts) == 3


@pytest.mark.parametrize(
    "error",
    [
        errors.BadRequestError("no"),
        errors.AuthenticationError("no"),
        errors.QuotaExceededError("no"),
        errors.ContextLengthError("no"),
        errors.ModelNotFoundError("no"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_would_fail_again_is_sent_once(drive: Driver, error: errors.AgentError) -> None:
    outcome = drive.complete(Script(error, "never"), retry=QUICK)
    assert type(outcome.failed) is type(error)
    assert len(outcome.requests) == 1


def test_max_retries_of_the_configuration_counts(drive: Driver) -> None:
    outcome = drive.complete(Script(errors.OverloadedError("busy"), "never"), max_retries=0)
    assert len(outcome.requests) == 1


def test_a_stream_that_fails_before_its_first_event_is_repeated(drive: Driver) -> None:
    role_only = b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\n\n'
    outcome = drive.stream(Script(Answer([role_only]), Answer([]), "fine"), retry=QUICK)
    assert outcome.ok.text == "fine"
    assert [event.type for event in outcome.events].count("message_start") == 1
    assert [attempt.error for attempt in outcome.ok.route] == ["ProtocolError", "ProtocolError", None]


def test_a_stream_is_not_repeated_after_its_first_event(drive: Driver) -> None:
    broken = Answer([b'data: {"choices":[{"index":0,"delta":{"content":"Hel"}}]}\n\n'])
    outcome = drive.stream(Script(broken, "Hello"), retry=QUICK)
    assert isinstance(outcome.failed, errors.StreamInterrupted)
    assert outcome.text == "Hel"
    assert len(outcome.requests) == 1


def test_the_vendors_hint_is_honoured(drive: Driver) -> None:
    script = Script(errors.RateLimitError("slow down", retry_after=0.3), "here")
    outcome = drive.complete(script, retry=QUICK)
    assert outcome.ok.text == "here"
    assert outcome.seconds >= 0.3
    assert [attempt.waited is not None and attempt.waited >= 0.3 for attempt in outcome.ok.route] == [False, True]


@pytest.mark.timing
def test_a_vendor_that_asks_for_hours_is_not_waited_for(drive: Driver) -> None:
    outcome = drive.complete(Script(errors.RateLimitError("tomorrow", retry_after=7200.0), "never"), retry=QUICK)
    assert isinstance(outcome.failed, errors.RateLimitError)
    assert outcome.failed.retry_after == 7200.0
    assert outcome.seconds < 1.0


def test_retries_can_be_changed_without_losing_their_other_settings() -> None:
    agent = scripted_agent(retry=QUICK).with_config(max_retries=4)
    assert (agent.retry.max_retries, agent.retry.initial_delay) == (4, QUICK.initial_delay)


@pytest.mark.timing
def test_a_wait_that_does_not_fit_the_deadline_is_not_begun(drive: Driver) -> None:
    script = Script(errors.RateLimitError("slow down", retry_after=60.0), "never")
    outcome = drive.complete(script, retry=QUICK, deadline=2.0)
    assert isinstance(outcome.failed, errors.RateLimitError)
    assert outcome.failed.retry_after == 60.0
    assert outcome.seconds < 1.0


def test_a_connection_that_cannot_be_made_is_tried_again(drive: Driver) -> None:
    script = Script(Answer(failure=errors.ConnectionError("reset by peer")), "here")
    response = drive.complete(script, retry=QUICK).ok
    assert response.text == "here"
    assert [attempt.error for attempt in response.route] == ["ConnectionError", None]


@pytest.mark.parametrize("api", ["openai-chat", "openai-responses", "anthropic"])
@pytest.mark.parametrize("streaming", [False, True], ids=["complete", "stream"])
def test_retries_of_a_call_have_the_same_idempotency_key_and_other_calls_another(
    drive: Driver, api: str, streaming: bool
) -> None:
    keys = []
    for _ in range(2):
        script = VendorScript(errors.OverloadedError("busy"), errors.OverloadedError("busy"), "here")
        call = drive.stream if streaming else drive.complete
        outcome = call(script, agent=f"{api}:m", retry=QUICK)
        assert outcome.ok.text == "here"
        headers = [dict((*request.headers, *request.call_headers)) for request in outcome.requests]
        sent = [each.get(b"idempotency-key") for each in headers]
        assert len(sent) == 3
        assert len({*sent}) == 1
        keys += sent[:1]
    assert len({*keys}) == (1 if api == "anthropic" else 2)
    assert (None in keys) == (api == "anthropic"), "its SDK sends none"


def test_a_given_idempotency_key_is_sent(drive: Driver) -> None:
    outcome = drive.complete(Script("here"), headers={"Idempotency-Key": "mine"})
    assert [value for name, value in outcome.requests[0].headers if name == b"idempotency-key"] == [b"mine"]
