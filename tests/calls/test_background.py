"""Responses that the vendor processes in the background."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import openai
import pytest
from pydantic import BaseModel

from agent import Agent, RetryConfig, Router, ToolCall, ToolSpec, errors
from agent.calls import background as polling
from agent.engine.wire import Answer, WireRequest
from agent.middleware import Cache, Redaction
from agent.testing import LoopbackServer, Simulation, VendorScript, simulate
from agent.types import AgentRequest, AgentResponse
from tests.support.drivers import Driver

BACKGROUND = AgentRequest(input="Research this", background=True)
OVERLOADED = {"error": {"type": "server_error", "code": "server_error", "message": "busy"}}
LOST = Answer(failure=errors.ConnectionError("connection lost"))


def answer(body: Any, status: int = 200) -> Answer:
    return Answer([json.dumps(body).encode()], status=status, headers={"content-type": "application/json"})


class BackgroundVendor:
    """OpenAI's endpoints for background responses, in front of a script.

    Args:
        lines: See `VendorScript`.
        polls: Number of polls before a response is complete.
        failures: Answers to the first polls.
        final: Changes to complete responses.
    """

    def __init__(self, *lines: Any, polls: int = 2, failures: tuple[Answer, ...] = (), **final: Any) -> None:
        self.script = VendorScript(*lines)
        self.polls, self.failures, self.final = polls, list(failures), final
        self.responses: dict[str, tuple[int, dict[str, Any]]] = {}
        self.submitted: list[dict[str, Any]] = []

    def __call__(self, request: WireRequest) -> Answer:
        id, _, action = urlsplit(request.url).path.partition("/responses")[2].removeprefix("/").partition("/")
        if not id:
            return self._submit(request)
        if id not in self.responses:
            return answer({"error": {"message": f"Response with id '{id}' not found."}}, 404)
        if action == "cancel":
            assert request.method == "POST"
            self.responses[id] = (0, {**self.responses[id][1], "status": "cancelled", "output": []})
            return answer(self.responses[id][1])
        assert request.method == "GET"
        if self.failures:
            return self.failures.pop(0)
        left, body = self.responses[id]
        self.responses[id] = (left - 1, body)
        return answer(body if left <= 0 else {**body, "status": "in_progress", "output": [], "usage": None})

    def _submit(self, request: WireRequest) -> Answer:
        sent = json.loads(request.body)
        self.submitted.append(sent)
        reply = self.script(request)
        whole = b"".join(piece.outcome for piece in reply.iter_pieces() if isinstance(piece.outcome, bytes))
        if reply.status != 200 or not sent.get("background"):
            return reply
        id = f"resp_{len(self.submitted)}"
        body = {**json.loads(whole), "id": id, "background": True, **self.final}
        self.responses[id] = (self.polls, body)
        return answer({**body, "status": "queued", "output": [], "usage": None, "error": None})


@pytest.fixture(autouse=True)
def _short_waits(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "simulated" not in request.node.name:
        monkeypatch.setattr(polling, "_FIRST_POLL", 0.01)


def make(base_url: str, **options: Any) -> Agent:
    return Agent(
        "openai-responses:gpt-5", api_key="sk-test", base_url=f"{base_url}/v1", **{"max_retries": 2, **options}
    )


HERE, THERE = "http://127.0.0.1:1", "http://127.0.0.1:2"
RESPONSES: dict[str, Any] = {"agent": "openai-responses:gpt-5", "max_retries": 2}


def test_a_call_in_the_background_is_polled_until_it_is_complete(drive: Driver) -> None:
    vendor = BackgroundVendor("Done.", polls=3)
    outcome = drive.complete(vendor, BACKGROUND, **RESPONSES)
    assert outcome.ok.text == "Done."
    assert (outcome.ok.status, outcome.ok.stop_reason, outcome.ok.id) == (None, "stop", "resp_1")
    assert outcome.ok.usage is not None
    assert [attempt.error for attempt in outcome.ok.route] == [None]
    assert [request.method for request in outcome.requests] == ["POST", "GET", "GET", "GET", "GET"]
    assert vendor.submitted[0]["background"] is True
    assert "store" not in vendor.submitted[0]
    if drive.name == "simulated":
        assert outcome.seconds == pytest.approx(1 + 1.5 + 2.25 + 3.375)


def test_failed_polls_are_repeated_and_the_request_is_not(drive: Driver) -> None:
    vendor = BackgroundVendor("Done.", failures=(answer(OVERLOADED, 503), LOST, Answer([b"<html>"]), LOST))
    assert drive.complete(vendor, BACKGROUND, **RESPONSES).ok.text == "Done."
    assert len(vendor.submitted) == 1


def test_a_response_that_cannot_be_polled_is_named_by_the_error(drive: Driver) -> None:
    for failures, polls in (((LOST,) * 20, 11), ((answer(OVERLOADED, 401),), 1)):
        vendor = BackgroundVendor("Done.", failures=failures)
        outcome = drive.complete(vendor, BACKGROUND, **RESPONSES)
        error = outcome.failed
        assert isinstance(error, errors.ResponsePendingError)
        assert error.response is not None
        assert (error.response.id, error.response.status) == ("resp_1", "queued")
        assert "resp_1" in str(error)
        assert not error.retryable
        assert len(vendor.submitted) == 1
        repeated = len(outcome.requests) - 1 - polls
        assert 0 <= repeated <= 1, "besides the one on a connection that the server had closed"


def test_the_deadline_ends_the_wait_and_not_the_response(drive: Driver) -> None:
    vendor = BackgroundVendor("Done.", polls=10_000)
    request = BACKGROUND.model_copy(update={"deadline": 30.0 if drive.name == "simulated" else 0.3})
    error = drive.complete(vendor, request, **RESPONSES).failed
    assert isinstance(error, errors.ResponsePendingError)
    assert error.deadline
    assert error.response is not None
    assert error.response.status == "in_progress"


def test_a_failure_of_the_vendor_is_the_error_of_the_call(drive: Driver) -> None:
    vendor = BackgroundVendor("Done.", status="failed", error={"code": "invalid_prompt", "message": "no"})
    error = drive.complete(vendor, BACKGROUND, **RESPONSES).failed
    assert isinstance(error, errors.BadRequestError)
    assert len(vendor.submitted) == 1
    vendor = BackgroundVendor("1", "2", status="failed", error={"code": "rate_limit_exceeded", "message": "slow"})
    retry = RetryConfig(max_retries=1, initial_delay=0.001, throttle_delay=0.001)
    outcome = drive.complete(vendor, BACKGROUND, agent=RESPONSES["agent"], retry=retry)
    assert isinstance(outcome.failed, errors.RateLimitError)
    assert len(vendor.submitted) == 2, "a failed response is retried as any other"


class City(BaseModel):
    name: str


Both = Callable[..., AgentResponse[Any]]


@pytest.fixture(params=["", "a"])
def act(request: pytest.FixtureRequest) -> Both:
    """Call a method of an agent by name, sync or async."""

    def call(agent: Agent, method: str, *args: Any, **options: Any) -> AgentResponse[Any]:
        result = getattr(agent, request.param + method)(*args, **options)
        return asyncio.run(await_result(result)) if request.param else result

    return call


async def await_result(result: Any) -> Any:
    return await result


def test_a_response_is_submitted_and_retrieved_by_its_id(act: Both) -> None:
    vendor = BackgroundVendor('{"name": "Rome"}', polls=1)
    with LoopbackServer(vendor) as server:
        submitted = act(make(server.url), "submit", "Which city?", schema=City)
        assert (submitted.status, submitted.id, submitted.output, submitted.text) == ("queued", "resp_1", None, None)
        other = make(server.url)  # another process
        assert act(other, "retrieve", "resp_1").status == "in_progress"
        response = act(other, "retrieve", "resp_1", schema=City, wait=True)
        assert response.output == City(name="Rome")
        assert response.cost_estimate is not None
        with pytest.raises(errors.AgentError, match="not found"):
            act(other, "retrieve", "resp_2")
    assert len(vendor.submitted) == 1


def test_a_response_is_cancelled_at_the_vendor(act: Both) -> None:
    with LoopbackServer(BackgroundVendor("Done.")) as server:
        agent = make(server.url)
        submitted = act(agent, "submit", "Research this")
        cancelled = act(agent, "cancel", submitted.id)
        assert (cancelled.status, cancelled.stop_reason, cancelled.raw_stop_reason) == (None, "error", "cancelled")
        assert act(agent, "retrieve", submitted.id, wait=True).raw_stop_reason == "cancelled"


def test_a_vendor_without_background_processing_answers_at_once(act: Both) -> None:
    with LoopbackServer(VendorScript("Done.")) as server:
        agent = Agent("openai-chat:gpt-5", api_key="sk-test", base_url=f"{server.url}/v1")
        submitted = act(agent, "submit", "Hi")
        assert (submitted.text, submitted.status) == ("Done.", None)
        assert "background was left out" in submitted.warnings[0]
        with pytest.raises(errors.UnsupportedFeatureError) as caught:
            act(agent, "retrieve", "resp_1")
        assert caught.value.field == "response_id"


def test_a_router_waits_and_does_not_ask_another_target() -> None:
    vendor = BackgroundVendor("1", "2", failures=(answer(OVERLOADED, 404),))
    simulation = Simulation(vendor)
    with pytest.raises(errors.ResponsePendingError):
        simulate(simulation, Router([make(HERE), make(THERE)]), BACKGROUND)
    assert len(vendor.submitted) == 1
    assert simulate(simulation, Router([make(HERE), make(THERE)]), BACKGROUND).text == "2"


def test_the_sdk_sends_the_same_and_reads_the_same() -> None:
    vendor = BackgroundVendor("Gone.", "Done.", polls=0)
    with (
        LoopbackServer(vendor) as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="sk-test", max_retries=0) as client,
    ):
        theirs = client.responses.create(model="gpt-5", input="Hi", background=True)
        submitted = make(server.url).submit("Hi")
        assert (theirs.status, submitted.status) == ("queued", "queued")
        assert client.responses.cancel(theirs.id).status == make(server.url).cancel(theirs.id).raw_stop_reason
        last = client.responses.retrieve(submitted.id or "", include=["reasoning.encrypted_content"])
        for agent in (make(server.url), Agent("openai-responses:gpt-5", client=client)):
            ours = agent.retrieve(submitted.id or "", wait=True)
            assert (ours.text, ours.id) == (last.output_text, last.id)
        create, submit, *others = server.requests
        assert (create.method, create.url) == (submit.method, submit.url)
        for one, other in ((others[0], others[1]), (others[2], others[3]), (others[2], others[4])):
            assert (one.method, one.url, one.body) == (other.method, other.url, other.body)


def test_a_submitted_request_passes_through_middleware() -> None:
    vendor = BackgroundVendor("Done.", "Done.", polls=0)
    with LoopbackServer(vendor) as server:
        agent = make(server.url, middleware=[Redaction(), Cache()])
        for number in (1, 2):
            submitted = agent.submit("Write to ada@example.com")
            assert submitted.id == f"resp_{number}", "an incomplete response is not cached"
            assert agent.retrieve(submitted.id, wait=True).text == "Done."
    assert "ada@example.com" not in json.dumps(vendor.submitted)


def test_calls_of_a_retrieved_response_have_the_names_of_the_request() -> None:
    name = "a.name.that.the.vendor.does.not.take"
    tools = [ToolSpec(name=name, parameters={"type": "object", "properties": {}})]
    vendor = BackgroundVendor(ToolCall(id="call_1", name=name), polls=0)
    with LoopbackServer(vendor) as server:
        submitted = make(server.url).submit("Hi", tools=tools)
        response = make(server.url).retrieve(submitted.id or "", tools=tools)
        assert [call.name for call in response.tool_calls] == [name]


def test_a_broken_stream_in_the_background_names_the_response_and_is_not_repeated(drive: Driver) -> None:
    head = {"id": "resp_1", "model": "gpt-5", "status": "queued", "background": True, "output": []}
    created = b"data: %b\n\n" % json.dumps({"type": "response.created", "response": head}).encode()
    sent = Answer([created, errors.ConnectionError("lost")], headers={"content-type": "text/event-stream"})
    outcome = drive.stream(lambda request: sent, BACKGROUND, **RESPONSES)
    assert isinstance(outcome.failed, errors.StreamInterrupted)
    assert outcome.failed.partial is not None
    assert outcome.failed.partial.id == "resp_1"
    assert len(outcome.requests) == 1
