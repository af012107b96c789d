"""Logging: one line per call, without text of the conversation, keys or control characters."""

from __future__ import annotations

import logging
import pickle
import re

import pytest

from agent import Agent, AgentResponse, Message, RetryConfig, Usage, errors
from agent.engine.context import Context, TurnRef
from agent.middleware import Logging
from agent.testing import Script, Simulation, scripted_agent
from tests.middleware.spies import plain_agent, raise_error, spy_with
from tests.support.drivers import Driver

KEY = "sk-canary-0123456789abcdef"


def lines(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    return [(record.levelname, record.getMessage()) for record in caplog.records if record.name == "agent"]


@pytest.fixture(autouse=True)
def _everything(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)


def test_a_call_is_one_line(drive: Driver, caplog: pytest.LogCaptureFixture) -> None:
    script = Script(AgentResponse(text="Hello", usage=Usage(prompt_tokens=12, completion_tokens=3)), "bye")
    for ask in (drive.complete, drive.stream):
        ask(script, "secret question", make=lambda url: plain_agent(url, [Logging()]))
    (first, second) = lines(caplog)
    assert first[0] == "INFO"
    assert re.fullmatch(
        r"openai-chat:test-model call answered seconds=\d+\.\d{3} attempts=1 tokens=12\+3 stop=stop request_id=req_1",
        first[1],
    )
    assert second[1].startswith("openai-chat:test-model stream answered ")
    assert "secret" not in caplog.text
    assert "Hello" not in caplog.text


def test_a_failure_is_one_line(drive: Driver, caplog: pytest.LogCaptureFixture) -> None:
    script = Script(errors.RateLimitError("slow\x1b[31m down\nplease"))
    drive.complete(script, "secret question", make=lambda url: plain_agent(url, [Logging()]))
    ((level, line),) = lines(caplog)
    assert level == "WARNING"
    assert re.fullmatch(
        r"openai-chat:test-model call failed seconds=\S+ attempts=1 error=RateLimitError status=429 "
        r"code=rate_limit_exceeded message='slow.*please'",
        line,
    )
    assert "secret" not in line
    assert not re.search(r"[\x00-\x1f\x7f-\x9f]", line)


def test_a_line_cannot_be_forged(caplog: pytest.LogCaptureFixture) -> None:
    error = errors.BadRequestError("no", code="x\x1b[2J\u202e", request_id="r\nINFO all is well")
    agent = scripted_agent("ok", middleware=[Logging(), spy_with("A", [], "before", raise_error(error))])
    with pytest.raises(errors.BadRequestError):
        agent.complete("hi")
    ((_, line),) = lines(caplog)
    assert "code=x [2J  request_id=r INFO all is well message='no'" in line


def test_the_words_of_other_peoples_errors_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    inner = spy_with("A", [], "before", raise_error(KeyError(f"the prompt was: secret {KEY}")))
    with pytest.raises(KeyError):
        scripted_agent("ok", middleware=[Logging(), inner]).complete("hi")
    ((_, line),) = lines(caplog)
    assert line.endswith("error=KeyError")
    assert "secret" not in line


def test_words_are_logged_if_asked_for_on_one_line_and_without_keys(caplog: pytest.LogCaptureFixture) -> None:
    agent = scripted_agent(f"use\x1b]0;evil\x07 {KEY}\u202e\r\n", "x" * 2000, middleware=[Logging(prompts=True)])
    agent.complete(f"explain\n{KEY}?")
    agent.complete([Message("user", "y" * 600 + " " + KEY)])
    first, second = (line for _, line in lines(caplog))
    assert "prompt='explain\\n***" in first
    assert "answer='use\\x1b]0;evil\\x07 ***\\u202e\\r\\n'" in first
    assert KEY[3:] not in caplog.text
    assert not re.search("[\x00-\x1f\x7f-\x9f\u2028-\u202e]", first + second)
    assert len(second) < 1300
    assert "xxx…'" in second


def test_what_no_log_can_hold_is_replaced(caplog: pytest.LogCaptureFixture) -> None:
    agent = scripted_agent("ok", middleware=[Logging(prompts=True)])
    with pytest.raises(errors.ConfigurationError):
        agent.complete("half a character: \ud800")
    ((_, line),) = lines(caplog)
    assert "attempts=0 error=ConfigurationError" in line
    line.encode()


def test_a_key_that_is_cut_is_still_a_key(caplog: pytest.LogCaptureFixture) -> None:
    agent = scripted_agent("z" * 490 + " " + KEY, middleware=[Logging(prompts=True)])
    agent.complete(KEY + " " + "y" * 490)
    ((_, line),) = lines(caplog)
    assert not any(KEY[start : start + 8] in line for start in range(len(KEY) - 8))


def test_levels_and_loggers_can_be_chosen(caplog: pytest.LogCaptureFixture) -> None:
    chosen = Logging(logging.getLogger("mine"), level=logging.DEBUG, error_level=logging.ERROR)
    agent = scripted_agent("ok", errors.BadRequestError("no"), middleware=[chosen])
    agent.complete("hi")
    with pytest.raises(errors.BadRequestError):
        agent.complete("hi")
    assert [(record.name, record.levelname) for record in caplog.records] == [("mine", "DEBUG"), ("mine", "ERROR")]
    caplog.clear()
    logging.getLogger("mine").setLevel(logging.CRITICAL)
    try:
        scripted_agent("ok", middleware=[chosen]).complete("hi")
        with pytest.raises(errors.BadRequestError):
            scripted_agent(errors.BadRequestError("no"), middleware=[chosen]).complete("hi")
    finally:
        logging.getLogger("mine").setLevel(logging.NOTSET)
    assert caplog.records == []


def test_retries_and_the_run_are_told(caplog: pytest.LogCaptureFixture) -> None:
    retry = RetryConfig(max_retries=1, initial_delay=0.0)
    agent = scripted_agent(middleware=[Logging()], retry=retry)
    simulation = Simulation(Script(errors.OverloadedError("busy"), "ok"))
    simulation.run(agent.call_flow("hi", streaming=False, context=Context(run=TurnRef("r7", 2))))
    ((_, line),) = lines(caplog)
    assert "attempts=2 run=r7/2" in line


def test_a_logger_travels_by_its_name() -> None:
    there: Agent = pickle.loads(pickle.dumps(Agent("scripted:m", middleware=[Logging("mine", prompts=True)])))
    (found,) = there.middleware
    assert isinstance(found, Logging)
    assert found._logger is logging.getLogger("mine")
